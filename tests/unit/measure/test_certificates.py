"""Certificates: which there are, who can use them, and what is said when they cannot be used."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import get_args

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from clone import ROOT
from quicbed.analysis import published
from quicbed.builds import components
from quicbed.cli.commands import main
from quicbed.config import algorithms
from quicbed.config.model import Chain, Project
from quicbed.measure import certificates
from quicbed.measure.certificates import CertificateError

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
CLASSICAL = [signature for signature in TABLE.signatures if not signature.quantum_safe]
PUBLISHED = published.DIRECTORY / "quantum-of-quic-table3.csv"


def test_every_row_of_table_iii_has_a_signature_algorithm() -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        named = {row["signature"].lower() for row in csv.DictReader(file)}
    assert named <= {signature.title.lower() for signature in TABLE.signatures}


def test_variants_may_ask_for_every_chain_that_can_be_made() -> None:
    assert list(get_args(Chain)) == ["leaf", *filter(None, certificates.CHAINS)]


def test_chains_are_named_made_and_checked_like_certificates(project: Project, tmp_path: Path) -> None:
    name = "ed25519.two-intermediates"
    (made,) = certificates.make_all(project, [name], jobs=1, log=tmp_path / "log")
    assert made == certificates.directory(project, name) != certificates.directory(project, "ed25519")
    certificates.check(project, [name])
    assert certificates.signature_of(name) == "ed25519"
    server, first, second = x509.load_pem_x509_certificates((made / "server.pem").read_bytes())
    assert [one.issuer.rfc4514_string() for one in (server, first, second)] == [
        "CN=quicbed intermediate CA 2",
        "CN=quicbed intermediate CA 1",
        "CN=quicbed CA",
    ]
    # one of the chain that expires is found as well
    start = datetime.datetime.now(datetime.UTC) - certificates.LIFETIME
    old = certificates._builder("quicbed CA", "quicbed CA", certificates._generate("ed25519"), start)
    expired = old.sign(certificates._generate("ed25519"), None).public_bytes(Encoding.PEM)
    (made / "server.pem").write_bytes((made / "server.pem").read_bytes() + expired)
    with pytest.raises(CertificateError, match=rf"server.pem: expires on .*; run `quicbed certificates {name}`"):
        certificates.check(project, [name])
    with pytest.raises(CertificateError, match="there is no chain `three`; there are leaf-scts, interm"):
        certificates.make_all(project, ["ed25519.three"], jobs=1, log=tmp_path / "log")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project with a build directory of its own, in which no component can be built."""

    def forbidden(*_: object, **__: object) -> Path:
        raise AssertionError("a component is asked for")

    monkeypatch.setattr(components, "provide", forbidden)
    return Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})


def test_classical_certificates_need_no_component(project: Project, tmp_path: Path) -> None:
    names = [signature.name for signature in CLASSICAL]
    target = [certificates.directory(project, name) for name in names]
    assert certificates.make_all(project, names, jobs=1, log=tmp_path / "log") == target
    certificates.check(project, names)
    assert certificates.directory(project) == certificates.directory(project, "rsa-2048")
    with pytest.raises(AssertionError, match="a component is asked for"):
        certificates.make_all(project, ["falcon-512"], jobs=1, log=tmp_path / "log")


def test_usable_certificates_are_kept_and_others_made_again(project: Project, tmp_path: Path) -> None:
    names = ["ecdsa-p-256", "ed25519"]
    certificates.make_all(project, names, jobs=1, log=tmp_path / "log")
    kept = (certificates.directory(project, names[0]) / "server.pem").read_bytes()
    (certificates.directory(project, names[1]) / "server.key").unlink()
    made = certificates.make_all(project, names, jobs=1, log=tmp_path / "log")
    assert made == [certificates.directory(project, "ed25519")]
    assert (certificates.directory(project, names[0]) / "server.pem").read_bytes() == kept
    certificates.check(project, names)


@pytest.mark.parametrize("name", certificates.FILES)
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\n", b"\xff\xfe"])
def test_missing_and_unreadable_files_are_named(project: Project, name: str, content: bytes | None) -> None:
    target = certificates.directory(project, "ed25519")
    certificates.make(target, TABLE.signature("ed25519"))
    if content is None:
        (target / name).unlink()
    else:
        (target / name).write_bytes(content)
    with pytest.raises(
        CertificateError, match=rf"ed25519/{name}: cannot be used .*; run `quicbed certificates ed25519`"
    ):
        certificates.check(project, ["ed25519"])


def test_a_truncated_key_is_named(project: Project) -> None:
    target = certificates.directory(project, "rsa-2048")
    certificates.make(target)
    key = target / "server.key"
    key.write_text(key.read_text()[:-300])
    with pytest.raises(CertificateError, match=r"server\.key: cannot be used \(not a private key in PEM\)"):
        certificates.check(project)


def test_expired_certificates_are_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LIFETIME", datetime.timedelta(hours=2))
    certificates.make(certificates.directory(project))
    with pytest.raises(
        CertificateError, match=r"ca\.pem: expires on \d{4}-\d\d-\d\d; run `quicbed certificates rsa-2048`"
    ):
        certificates.check(project)


def test_an_interrupted_make_leaves_the_old_certificates(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    target = certificates.directory(project)
    certificates.make(target)
    before = {name: (target / name).read_bytes() for name in certificates.FILES}

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cryptography.hazmat.primitives.asymmetric.rsa.generate_private_key", interrupted)
    with pytest.raises(KeyboardInterrupt):
        certificates.make(target)
    assert {name: (target / name).read_bytes() for name in certificates.FILES} == before


def test_post_quantum_certificates_without_tools_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="dilithium3: only the openssl command"):
        certificates.make(tmp_path / "dilithium3", TABLE.signature("dilithium3"))


def test_needed_are_those_of_the_experiments_in_the_order_of_the_table() -> None:
    experiments = [PROJECT.experiments[name] for name in PROJECT.config.experiments]
    asked = {getattr(v, "signature", "rsa-2048") for experiment in experiments for v in experiment.variants}
    assert certificates.needed(PROJECT) == [s.name for s in TABLE.signatures if s.name in asked]
    assert certificates.needed(PROJECT, ["aead-goodput"]) == ["rsa-2048"]


def test_an_unknown_signature_is_one_line_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certificates", "dilithium9"]) == 1
    error = capsys.readouterr().err
    assert "has no signature `dilithium9`" in error
    assert error.count("\n") == 1


def test_a_missing_openssl_is_named(tmp_path: Path) -> None:
    found = certificates.provider_problem(tmp_path / "openssl", tmp_path / "quicbed-pq.so")
    assert found == f"{tmp_path / 'openssl'}: is missing; build the flavour `pq` again"
