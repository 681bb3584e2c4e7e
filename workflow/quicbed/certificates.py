"""Certificates of a testbed: one trust anchor and one server certificate, made by the workflow.

The server sends a chain of one certificate (RSA-2048, as in A Quantum of QUIC, Sec. IV) that the clients verify.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quicbed.config import Project

LIFETIME = datetime.timedelta(days=3650)
NAMES = ("server", "localhost")
ADDRESSES = ("127.0.0.1", "::1")


class CertificateError(Exception):
    """Certificates that are missing, expired or unreadable, with the remedy."""


def directory(project: Project) -> Path:
    """Where the certificates of the configured testbed are."""
    return project.build / "certificates" / project.config.testbed


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def make(target: Path) -> None:
    """Write ca.pem, server.pem and server.key to `target`, replacing the directory as a whole."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    ca_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ca = (
        x509.CertificateBuilder()
        .subject_name(_name("quicbed CA"))
        .issuer_name(_name("quicbed CA"))
        .public_key(ca_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    leaf = (
        x509.CertificateBuilder()
        .subject_name(_name("server"))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (partial / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(partial / "server.key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(private)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _key_usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def check(project: Project) -> None:
    """Raise CertificateError unless the testbed's certificates can be used for another day."""
    target = directory(project)
    remedy = f"delete {target} and run `quicbed certificates`"
    for name in ("ca.pem", "server.pem"):
        try:
            certificate = x509.load_pem_x509_certificate((target / name).read_bytes())
        except (OSError, ValueError) as error:
            raise CertificateError(f"{target / name}: cannot be used ({error}); {remedy}") from None
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1):
            raise CertificateError(f"{target / name}: expires on {certificate.not_valid_after_utc:%Y-%m-%d}; {remedy}")
    if not (target / "server.key").is_file():
        raise CertificateError(f"{target / 'server.key'}: is missing; {remedy}")
