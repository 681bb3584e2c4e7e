"""Certificates that a test wants otherwise than those of `quicbed.measure.certificates`."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write_certificates(target: Path, *, days: int = 1, filler: int = 0) -> Path:
    """A certificate of ECDSA P-256 for so many days with an extension of `filler` bytes, its key and its CA."""
    target.mkdir()
    now = datetime.datetime.now(datetime.UTC)
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    for file, subject, owner, is_ca in (("ca.pem", ca, authority, True), ("server.pem", server, key, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca)
            .public_key(owner.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=20))
            .not_valid_after(now + datetime.timedelta(days=1 if is_ca else days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if not is_ca:
            names = x509.SubjectAlternativeName([x509.DNSName("server")])
            unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.9999.1"), bytes(filler))
            builder = builder.add_extension(names, critical=False).add_extension(unknown, critical=False)
        certificate = builder.sign(authority, hashes.SHA256())
        (target / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (target / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return target
