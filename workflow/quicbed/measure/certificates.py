"""Certificates of a testbed: for each signature algorithm a trust anchor and one server certificate.

The server sends a chain of one certificate that the clients verify (RSA-2048 unless an experiment asks for another, as
in A Quantum of QUIC, Sec. IV); the certificate's key and the signature on it are of the same algorithm. All server
certificates hold the same names and extensions, chosen so that they are as large as those of the paper's Table III.

Classical certificates are made with the Python package cryptography, those of post-quantum algorithms with the openssl
command of the component `openssl` and the provider of the component `openssl-provider`.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
import re
import secrets
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quicbed.base import durable
from quicbed.builds import components
from quicbed.config import algorithms
from quicbed.config.algorithms import Signature
from quicbed.config.model import Project

DEFAULT = "rsa-2048"
"""Signature algorithm of experiments that name none."""

FILES = ("ca.pem", "server.pem", "server.key")
LIFETIME = datetime.timedelta(days=3650)
AUTHORITY = "quicbed CA"
NAMES = ("server", "localhost")
ADDRESSES = ("127.0.0.1", "::1")

# The extensions that _Classical writes, as openssl req reads them. What openssl adds by default is switched off.
_REQUEST = f"""\
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = none
[server]
subjectAltName = {", ".join([f"DNS:{name}" for name in NAMES] + [f"IP:{address}" for address in ADDRESSES])}
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
subjectKeyIdentifier = none
authorityKeyIdentifier = none
"""

_Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class CertificateError(Exception):
    """Certificates that are missing, expired or unreadable, or cannot be made, with the remedy."""


@dataclass(frozen=True)
class Tools:
    """The openssl command with the algorithms of liboqs."""

    openssl: Path
    provider: Path
    """quicbed-pq.so"""
    configuration: Path

    @classmethod
    def provide(cls, project: Project, *, jobs: int, log: Path) -> Tools:
        """The tools of the components, built unless they are there already."""
        provider = components.provide(project, "openssl-provider", jobs=jobs, log=log)
        openssl = components.provide(project, "openssl", jobs=jobs, log=log)
        return cls(openssl / "bin" / "openssl", provider / "lib" / "quicbed-pq.so", provider / "openssl.cnf")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables under which OpenSSL loads the provider."""
        return {"OPENSSL_CONF": str(self.configuration), "OPENSSL_MODULES": str(self.provider.parent)}

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Run an openssl command and return its output; CertificateError with OpenSSL's reason if it fails."""
        argv = [str(self.openssl), *map(str, arguments)]
        try:
            done = subprocess.run(
                argv,
                cwd=cwd,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise CertificateError(f"{self.openssl}: cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            raise CertificateError(f"openssl {arguments[0]} failed: {_reason(done.stderr)}")
        return done.stdout


def directory(project: Project, signature: str = DEFAULT) -> Path:
    """Where the certificates of a signature algorithm on the configured testbed are."""
    return project.build / "certificates" / project.config.testbed / signature


def needed(project: Project, experiments: Iterable[str] | None = None) -> list[str]:
    """Signature algorithms of these experiments, or of all configured ones, in the order of algorithms.csv."""
    chosen = project.config.experiments if experiments is None else experiments
    named = {
        getattr(variant, "signature", DEFAULT) for name in chosen for variant in project.experiments[name].variants
    }
    table = algorithms.read(project.root)
    for name in named:
        table.signature(name)
    return [signature.name for signature in table.signatures if signature.name in named]


def make_all(project: Project, signatures: Iterable[str], *, jobs: int, log: Path) -> list[Path]:
    """Make the certificates that are missing or cannot be used any more; returns the directories of those made.

    Components are built only if a post-quantum algorithm is among them.
    """
    table = algorithms.read(project.root)
    missing = [
        table.signature(name)
        for name in signatures
        if problem(directory(project, table.signature(name).name)) is not None
    ]
    tools = None
    if any(signature.quantum_safe for signature in missing):
        tools = Tools.provide(project, jobs=jobs, log=log)
        unusable = provider_problem(tools.openssl, tools.provider)
        if unusable is not None:
            raise CertificateError(unusable)
    made = []
    for signature in missing:
        target = directory(project, signature.name)
        make(target, signature, tools)
        made.append(target)
    return made


def make(target: Path, signature: Signature | None = None, tools: Tools | None = None) -> None:
    """Write ca.pem, server.pem and server.key to `target`, replacing the directory as a whole; RSA-2048 by default.

    Post-quantum algorithms need `tools`.
    """
    start = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)).replace(microsecond=0)
    with durable.filling(target, replace=True) as made:
        if signature is None or not signature.quantum_safe:
            _make_classical(made, DEFAULT if signature is None else signature.name, start)
        elif tools is None:
            raise CertificateError(f"{signature.name}: only the openssl command can make its certificates")
        else:
            _make_post_quantum(made, signature.tls_name, start, tools)


def _serial_number() -> int:
    """A random serial number of exactly 20 octets (RFC 5280, 4.1.2.2), so that certificates are equally long."""
    return 1 << 158 | secrets.randbits(158)


def _make_post_quantum(target: Path, algorithm: str, start: datetime.datetime, tools: Tools) -> None:
    (target / "request.cnf").write_text(_REQUEST, encoding="utf-8")
    for name in ("ca.key", "server.key"):
        # openssl writes private keys with mode 0600
        tools.run("genpkey", "-algorithm", algorithm, "-out", name, cwd=target)
    validity = ["-not_before", f"{start:%Y%m%d%H%M%SZ}", "-not_after", f"{start + LIFETIME:%Y%m%d%H%M%SZ}"]
    request = ["req", "-x509", "-new", "-config", "request.cnf", *validity]
    authority = ["-key", "ca.key", "-subj", f"/CN={AUTHORITY}", "-extensions", "authority", "-out", "ca.pem"]
    tools.run(*request, "-set_serial", hex(_serial_number()), *authority, cwd=target)
    server = ["-key", "server.key", "-subj", f"/CN={NAMES[0]}", "-extensions", "server", "-out", "server.pem"]
    issuer = ["-CA", "ca.pem", "-CAkey", "ca.key"]
    tools.run(*request, "-set_serial", hex(_serial_number()), *server, *issuer, cwd=target)
    for name in ("ca.key", "request.cnf"):
        (target / name).unlink()


def _make_classical(target: Path, algorithm: str, start: datetime.datetime) -> None:
    ca_key, key = _generate(algorithm), _generate(algorithm)
    digest = _digest(algorithm)
    ca = (
        _builder(AUTHORITY, AUTHORITY, ca_key, start)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_AUTHORITY_KEY_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, digest)
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    leaf = (
        _builder(NAMES[0], AUTHORITY, key, start)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, digest)
    )
    (target / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (target / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(target / "server.key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(private)


def _generate(algorithm: str) -> _Key:
    family, _, parameter = algorithm.partition("-")
    if family == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=int(parameter))
    if algorithm == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    curves: Mapping[str, ec.EllipticCurve] = {"p-256": ec.SECP256R1(), "p-384": ec.SECP384R1()}
    return ec.generate_private_key(curves[parameter])


def _digest(algorithm: str) -> hashes.SHA256 | hashes.SHA384 | None:
    if algorithm == "ed25519":
        return None
    return hashes.SHA384() if algorithm == "ecdsa-p-384" else hashes.SHA256()


def _builder(subject: str, issuer: str, key: _Key, start: datetime.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


_AUTHORITY_KEY_USAGE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def problem(target: Path) -> str | None:
    """Why the certificates in a directory cannot be used for another day; None if they can."""
    for name in ("ca.pem", "server.pem"):
        try:
            certificate = x509.load_pem_x509_certificate((target / name).read_bytes())
        except (OSError, ValueError) as error:
            return f"{target / name}: cannot be used ({error})"
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1):
            return f"{target / name}: expires on {certificate.not_valid_after_utc:%Y-%m-%d}"
    file = target / "server.key"
    try:
        text = file.read_text(encoding="ascii")
        found = re.fullmatch(r"-----BEGIN PRIVATE KEY-----\n(.+)-----END PRIVATE KEY-----\n", text, re.DOTALL)
        if found is None or not base64.b64decode(found[1].replace("\n", ""), validate=True):
            return f"{file}: cannot be used (not a private key in PEM)"
    except (OSError, ValueError) as error:
        return f"{file}: cannot be used ({error})"
    return None


def check(project: Project, signatures: Iterable[str] = (DEFAULT,)) -> None:
    """Raise CertificateError unless the certificates of these algorithms can be used for another day."""
    for signature in signatures:
        found = problem(directory(project, signature))
        if found is not None:
            raise CertificateError(f"{found}; run `quicbed certificates {signature}`")


_REBUILD = "delete both and build the flavour `pq` again"


def provider_problem(openssl: Path, provider: Path) -> str | None:
    """Why an openssl command cannot use a build of the provider, in one line with the remedy; None if it can."""
    for file in (openssl, provider):
        if not file.is_file():
            return f"{file}: is missing; build the flavour `pq` again"
    argv = [str(openssl), "list", "-providers", "-provider-path", str(provider.parent)]
    environment = {"OPENSSL_CONF": os.devnull}
    try:
        done = subprocess.run(
            [*argv, "-provider", provider.stem],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except OSError as error:
        return f"{openssl}: cannot be run: {error.strerror}"
    if done.returncode == 0 and f"name: {provider.stem}\n" in done.stdout:
        return None
    version = re.search(r"built for OpenSSL (\S+), loaded by OpenSSL (\S+);", done.stderr)
    if version is not None:
        return f"{provider}: is built for OpenSSL {version[1]}, but {openssl} is OpenSSL {version[2]}; {_REBUILD}"
    return f"{provider}: cannot be loaded by {openssl}: {_reason(done.stderr)}; {_REBUILD}"


def _reason(output: str) -> str:
    """The first reason in OpenSSL's error queue, or the last line of other output."""
    lines = output.strip().splitlines()
    for line in lines:
        fields = line.split(":", 8)
        # thread, "error", code, library, function, reason, file, line, data
        if len(fields) > 5 and fields[1] == "error":
            return f"{fields[5]} ({fields[8]})" if len(fields) > 8 and fields[8] else fields[5]
    return lines[-1] if lines else "no reason given"
