"""Certificates: sizes as published, who can use them, and what is said when they cannot be used."""

from __future__ import annotations

import base64
import csv
import datetime
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from clone import ROOT
from quicbed.analysis import published
from quicbed.builds import components
from quicbed.cli.commands import main
from quicbed.config import algorithms
from quicbed.config.algorithms import Signature
from quicbed.config.model import Chain, Project
from quicbed.measure import certificates
from quicbed.measure.certificates import CertificateError, Tools

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
CLASSICAL = [signature for signature in TABLE.signatures if not signature.quantum_safe]
PUBLISHED = published.DIRECTORY / "quantum-of-quic-table3.csv"

pytestmark = pytest.mark.timeout(1800)  # components may have to be built

all_signatures = pytest.mark.parametrize(
    "signature",
    [pytest.param(s, marks=[pytest.mark.workflow] if s.quantum_safe else []) for s in TABLE.signatures],
    ids=lambda signature: signature.name,
)


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Signature], Path]:
    """Certificates of a signature algorithm, made once; for post-quantum ones the components are built."""
    directory = tmp_path_factory.mktemp("certificates")

    def make(signature: Signature) -> Path:
        tools = None
        if signature.quantum_safe:
            request.getfixturevalue("vendor")
            tools = Tools.provide(PROJECT, jobs=os.cpu_count() or 1, log=directory / "build.log")
        if not (directory / signature.name).is_dir():
            certificates.make(directory / signature.name, signature, tools)
        return directory / signature.name

    return make


def load(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def public_key_info(certificate: x509.Certificate) -> bytes:
    """The raw SubjectPublicKeyInfo, whatever its algorithm."""
    fields = elements(elements(certificate.tbs_certificate_bytes)[0])
    return fields[6]  # version, serial number, signature, issuer, validity, subject, subjectPublicKeyInfo


def elements(data: bytes) -> list[bytes]:
    """Contents of the DER elements that follow each other."""
    found = []
    while data:
        length, start = data[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(data[2:start], "big")
        found.append(data[start : start + length])
        data = data[start + length :]
    return found


@all_signatures
def test_sizes_are_those_of_table_iii(made: Callable[[Signature], Path], signature: Signature) -> None:
    leaf = load(made(signature) / "server.pem")
    public_key = elements(public_key_info(leaf))[1][1:]
    if (signature.classical or "").startswith("rsa-"):
        public_key = elements(elements(public_key)[0])[0][1:]  # the modulus
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = {row["signature"].lower(): row for row in csv.DictReader(file)}
    row = rows.get(signature.title.lower())
    if row is None:  # not in the paper: the other sizes of standards (FIPS 204, table 2; RFC 5480; RFC 8032)
        sizes = {
            "ecdsa-p-256": (65, None),
            "ecdsa-p-384": (97, None),
            "ed25519": (32, 64),
            "dilithium2": (1312, 2420),
            "mldsa44": (1312, 2420),
            "mldsa65": (1952, 3309),
            "mldsa87": (2592, 4627),
        }
        expected, signature_bytes = sizes[signature.name]
        assert len(public_key) == expected
        assert signature_bytes in (None, len(leaf.signature))
        return
    assert len(public_key) == int(row["public_key_bytes"])
    assert len(leaf.signature) == int(row["signature_bytes"])
    assert len(leaf.public_bytes(Encoding.DER)) == pytest.approx(int(row["certificate_bytes"]), rel=0.05)


def test_every_row_of_table_iii_has_a_signature_algorithm() -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        named = {row["signature"].lower() for row in csv.DictReader(file)}
    assert named <= {signature.title.lower() for signature in TABLE.signatures}


@all_signatures
def test_leaf_and_authority(made: Callable[[Signature], Path], signature: Signature) -> None:
    """The same names and extensions for every algorithm, whoever made the certificate."""
    directory = made(signature)
    leaf, authority = load(directory / "server.pem"), load(directory / "ca.pem")
    assert leaf.subject.rfc4514_string() == "CN=server"
    assert leaf.issuer == authority.subject == authority.issuer
    assert [extension.oid._name for extension in leaf.extensions] == [
        "subjectAltName",
        "basicConstraints",
        "extendedKeyUsage",
    ]
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    key_usage = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert (key_usage.critical, key_usage.value.key_cert_sign, key_usage.value.digital_signature) == (True, True, False)
    for certificate in (leaf, authority):
        assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == certificates.LIFETIME
        assert len(certificate.serial_number.to_bytes(20, "big").lstrip(b"\0")) == 20
        key = elements(public_key_info(certificate))[0]
        assert key.startswith(signature.oid_der)
        if signature.quantum_safe:  # the key's and the signature's algorithm are one, without parameters
            assert key == signature.oid_der
            assert certificate.signature_algorithm_oid.dotted_string == signature.oid
    assert sorted(path.name for path in directory.iterdir()) == sorted(certificates.FILES)
    assert stat.S_IMODE((directory / "server.key").stat().st_mode) == 0o600
    assert certificates.problem(directory) is None


@pytest.mark.workflow
@pytest.mark.parametrize("signature", TABLE.signatures, ids=lambda signature: signature.name)
def test_openssl_verifies_leaf_and_reads_key(made: Callable[[Signature], Path], signature: Signature) -> None:
    made(TABLE.signature("dilithium2"))  # builds the components, or skips
    directory = made(signature)
    tools = Tools.provide(PROJECT, jobs=1, log=directory / "build.log")
    command = ["verify", "-auth_level", "0", "-purpose", "sslserver", "-verify_hostname", "localhost"]
    assert "server.pem: OK" in tools.run(*command, "-CAfile", "ca.pem", "server.pem", cwd=directory)
    key = tools.run("pkey", "-in", "server.key", "-pubout", cwd=directory)
    assert key == tools.run("x509", "-in", "server.pem", "-noout", "-pubkey", cwd=directory)


CHAINS = [name for name in certificates.CHAINS if name is not None]
"""Of certificates, besides the server's alone."""


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    "signature",
    [TABLE.signature("rsa-2048"), pytest.param(TABLE.signature("mldsa65"), marks=pytest.mark.workflow)],
    ids=lambda signature: signature.name,
)
def test_a_chain_goes_from_the_server_to_the_authority(
    made: Callable[[Signature], Path], tmp_path: Path, signature: Signature, chain: str
) -> None:
    made(signature)  # builds the components, or skips
    tools = None
    if signature.quantum_safe:
        tools = Tools.provide(PROJECT, jobs=1, log=tmp_path / "build.log")
    certificates.make(tmp_path / "made", signature, tools, certificates.CHAINS[chain])
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == sorted(certificates.FILES)
    assert certificates.problem(tmp_path / "made") is None
    sent = x509.load_pem_x509_certificates((tmp_path / "made" / "server.pem").read_bytes())
    root = load(tmp_path / "made" / "ca.pem")
    assert len(sent) == 1 + {"leaf": 0, "intermediate": 1, "two-intermediates": 2}[chain.removesuffix("-scts")]
    keys = set()
    for below, (one, issuer) in enumerate(zip(sent, [*sent[1:], root], strict=True)):
        assert one.issuer == issuer.subject
        constraints = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert (constraints.ca, constraints.path_length) == (True, below)
        keys.add(public_key_info(one))
        if tools is None:
            one.verify_directly_issued_by(issuer)
    assert len(keys) == len(sent)
    if tools is not None:
        command = ["verify", "-auth_level", "0", "-purpose", "sslserver", "-CAfile", "ca.pem"]
        said = tools.run(*command, "-untrusted", "server.pem", "server.pem", cwd=tmp_path / "made")
        assert "server.pem: OK" in said
    shown = [one.oid.dotted_string for one in sent[0].extensions]
    timestamps = x509.PrecertificateSignedCertificateTimestamps
    if chain.endswith("-scts"):
        assert len(shown) == 4
        scts = list(sent[0].extensions.get_extension_for_class(timestamps).value)
        assert [(len(sct.signature), len(sct.log_id)) for sct in scts] == [(71, 32)] * 2
        assert len({sct.log_id for sct in scts}) == 2
    else:
        assert len(shown) == 3
    sizes = [len(one.public_bytes(Encoding.DER)) for one in sent]
    assert certificates.message_bytes(tmp_path / "made") == 8 + sum(size + 5 for size in sizes)


def test_variants_may_ask_for_every_chain_that_can_be_made() -> None:
    assert list(get_args(Chain)) == ["leaf", *CHAINS]


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


@pytest.mark.workflow
@pytest.mark.parametrize("name", ["mldsa44", "mldsa65", "mldsa87"])
def test_ml_dsa_keys_hold_seed_and_expanded_key(made: Callable[[Signature], Path], name: str) -> None:
    """RFC 9881, section 6: the CHOICE `both`, so that every library finds the form it takes."""
    text = (made(TABLE.signature(name)) / "server.key").read_text().splitlines()
    (info,) = elements(base64.b64decode("".join(text[1:-1])))
    (both,) = elements(elements(info)[2])
    sizes = {"mldsa44": 2560, "mldsa65": 4032, "mldsa87": 4896}  # FIPS 204, table 2
    assert [len(part) for part in elements(both)] == [32, sizes[name]]


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
