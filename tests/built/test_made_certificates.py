"""Certificates that are made: sizes as published, names and extensions of all, and that OpenSSL takes them."""

from __future__ import annotations

import base64
import csv
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from clone import ROOT
from quicbed.analysis import published
from quicbed.config import algorithms
from quicbed.config.algorithms import Signature
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.measure.certificates import Tools

PROJECT = Project(ROOT)


TABLE = algorithms.read(ROOT)


PUBLISHED = published.DIRECTORY / "quantum-of-quic-table3.csv"


pytestmark = pytest.mark.timeout(1800)  # components may have to be built


all_signatures = pytest.mark.parametrize(
    "signature",
    TABLE.signatures,
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


CHAINS = [name for name in certificates.CHAINS if name is not None]
"""Of certificates, besides the server's alone."""


CHAINS = [name for name in certificates.CHAINS if name is not None]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    "signature",
    [TABLE.signature("rsa-2048"), TABLE.signature("mldsa65")],
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


@pytest.mark.parametrize("name", ["mldsa44", "mldsa65", "mldsa87"])
def test_ml_dsa_keys_hold_seed_and_expanded_key(made: Callable[[Signature], Path], name: str) -> None:
    """RFC 9881, section 6: the CHOICE `both`, so that every library finds the form it takes."""
    text = (made(TABLE.signature(name)) / "server.key").read_text().splitlines()
    (info,) = elements(base64.b64decode("".join(text[1:-1])))
    (both,) = elements(elements(info)[2])
    sizes = {"mldsa44": 2560, "mldsa65": 4032, "mldsa87": 4896}  # FIPS 204, table 2
    assert [len(part) for part in elements(both)] == [32, sizes[name]]
