"""Certificates of a testbed: for each signature algorithm a trust anchor and one server certificate.

The server sends a chain of one certificate that the clients verify (RSA-2048 unless an experiment asks for another, as
in A Quantum of QUIC, Sec. IV); the certificate's key and the signature on it are of the same algorithm. All server
certificates hold the same names and extensions, chosen so that they are as large as those of the paper's Table III.

An experiment may ask for longer chains (`CHAINS`), as servers of the web have them. They are of one algorithm too.
Signed certificate timestamps are as long as those of real logs, but no log has signed them; clients ignore them.

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
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quicbed.base import durable
from quicbed.base.errors import QuicbedError
from quicbed.builds import components
from quicbed.config import algorithms
from quicbed.config.algorithms import Signature
from quicbed.config.model import Project
from quicbed.plan.variant import CellVariant

DEFAULT = "rsa-2048"
"""Signature algorithm of experiments that name none."""

FILES = ("ca.pem", "server.pem", "server.key")


class Parts(NamedTuple):
    """What a chain is made of besides the server's certificate."""

    intermediates: int
    scts: int
    """Signed certificate timestamps in the server's certificate."""


CHAINS: Mapping[str | None, Parts] = {
    None: Parts(0, 0),
    "leaf-scts": Parts(0, 2),
    "intermediate": Parts(1, 0),
    "intermediate-scts": Parts(1, 2),
    "two-intermediates": Parts(2, 0),
    "two-intermediates-scts": Parts(2, 2),
}
"""By the name that variants have for it; RFC 6962 and browsers' policies ask for two timestamps of short-lived ones."""
LIFETIME = datetime.timedelta(days=3650)
AUTHORITY = "quicbed CA"
INTERMEDIATES = ("quicbed intermediate CA 1", "quicbed intermediate CA 2")
"""In the order in which they issue: the first is issued by the authority."""
NAMES = ("server", "localhost")
ADDRESSES = ("127.0.0.1", "::1")

_SCTS = "1.3.6.1.4.1.11129.2.4.2"  # RFC 6962, 3.3

# The extensions that _make_classical writes, as openssl req reads them. What openssl adds by default is switched off.
_REQUEST = """\
[req]
distinguished_name = name
prompt = no
[name]
"""
_AUTHORITY_SECTION = """\
[authority-{below}]
basicConstraints = critical, CA:TRUE, pathlen:{below}
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = none
"""
_SERVER_SECTION = f"""\
[server]
subjectAltName = {", ".join([f"DNS:{name}" for name in NAMES] + [f"IP:{address}" for address in ADDRESSES])}
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
subjectKeyIdentifier = none
authorityKeyIdentifier = none
"""

_Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class CertificateError(QuicbedError):
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


def of_variant(variant: CellVariant) -> str:
    """Name of the certificates of a variant."""
    return _named(variant.signature, variant.chain)


def _named(signature: str, chain: str | None) -> str:
    return signature if chain in (None, "leaf") else f"{signature}.{chain}"


def signature_of(name: str) -> str:
    """The signature algorithm of certificates."""
    return name.partition(".")[0]


def _parts(name: str) -> Parts:
    """What the chain of certificates of a name is made of; CertificateError where there is no such chain."""
    _, dot, chain = name.partition(".")
    if dot and chain not in CHAINS:
        raise CertificateError(f"{name}: there is no chain `{chain}`; there are {', '.join(filter(None, CHAINS))}")
    return CHAINS[chain or None]


def directory(project: Project, name: str = DEFAULT) -> Path:
    """Where certificates on the configured testbed are, by signature algorithm or the name of `of_variant`."""
    return project.build / "certificates" / project.config.testbed / name


def needed(project: Project, experiments: Iterable[str] | None = None) -> list[str]:
    """Names of the certificates of these experiments, or of all configured ones, in the order of algorithms.csv."""
    chosen = project.config.experiments if experiments is None else experiments
    variants = [variant for name in chosen for variant in project.experiments[name].variants]
    table = algorithms.read(project.root)
    known = [signature.name for signature in table.signatures]
    for variant in variants:
        table.signature(variant.signature)
    named = {_named(variant.signature, variant.chain) for variant in variants}
    return sorted(named, key=lambda name: (known.index(signature_of(name)), name))


def make_all(project: Project, names: Iterable[str], *, jobs: int, log: Path) -> list[Path]:
    """Make the certificates that are missing or cannot be used any more; returns the directories of those made.

    Components are built only if a post-quantum algorithm is among them.
    """
    table = algorithms.read(project.root)
    wanted = {name: (table.signature(signature_of(name)), _parts(name)) for name in names}
    missing = {name: one for name, one in wanted.items() if problem(directory(project, name)) is not None}
    tools = None
    if any(signature.quantum_safe for signature, _ in missing.values()):
        tools = Tools.provide(project, jobs=jobs, log=log)
        unusable = provider_problem(tools.openssl, tools.provider)
        if unusable is not None:
            raise CertificateError(unusable)
    made = []
    for name, (signature, parts) in missing.items():
        target = directory(project, name)
        make(target, signature, tools, parts)
        made.append(target)
    return made


def make(
    target: Path, signature: Signature | None = None, tools: Tools | None = None, parts: Parts = CHAINS[None]
) -> None:
    """Write ca.pem, server.pem and server.key to `target`, replacing the directory as a whole; RSA-2048 by default.

    server.pem has the server's certificate first, then that of its issuer and so on, without ca.pem. Post-quantum
    algorithms need `tools`.
    """
    start = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)).replace(microsecond=0)
    with durable.filling(target, replace=True) as made:
        if signature is None or not signature.quantum_safe:
            _make_classical(made, DEFAULT if signature is None else signature.name, start, parts)
        elif tools is None:
            raise CertificateError(f"{signature.name}: only the openssl command can make its certificates")
        else:
            _make_post_quantum(made, signature.tls_name, start, tools, parts)


def message_bytes(target: Path) -> int:
    """Size of the Certificate message with the chain of a directory in bytes (RFC 8446, 4.4.2)."""
    chain = x509.load_pem_x509_certificates((target / "server.pem").read_bytes())
    # message header, context and length of the list; of each certificate its length and that of its extensions
    return 8 + sum(5 + len(one.public_bytes(serialization.Encoding.DER)) for one in chain)


def _counted(content: bytes) -> bytes:
    return len(content).to_bytes(2, "big") + content


def _timestamps(count: int) -> bytes:
    """Value of the extension with as many signed certificate timestamps: an OCTET STRING with their list."""
    listed = b""
    for _ in range(count):
        # of 71 bytes, as most that P-256 has made: the first number has a zero before it
        first, second = (bytes([high | secrets.randbelow(64)]) + secrets.token_bytes(31) for high in (0x80, 0x40))
        signature = b"\x30\x45\x02\x21\x00" + first + b"\x02\x20" + second
        time = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000).to_bytes(8, "big")
        # version 1, id of the log, no extensions, ECDSA with SHA-256
        one = b"\0" + secrets.token_bytes(32) + time + b"\0\0\x04\x03" + _counted(signature)
        listed += _counted(one)
    listed = _counted(listed)
    return b"\x04\x81" + bytes([len(listed)]) + listed  # two are shorter than 256 bytes, and longer than 127


def _serial_number() -> int:
    """A random serial number of exactly 20 octets (RFC 5280, 4.1.2.2), so that certificates are equally long."""
    return 1 << 158 | secrets.randbits(158)


def _make_post_quantum(target: Path, algorithm: str, start: datetime.datetime, tools: Tools, parts: Parts) -> None:
    sections = [_REQUEST, *(_AUTHORITY_SECTION.format(below=below) for below in range(parts.intermediates + 1))]
    server = _SERVER_SECTION + (f"{_SCTS} = DER:{_timestamps(parts.scts).hex(':')}\n" if parts.scts else "")
    (target / "request.cnf").write_text("".join([*sections, server]), encoding="utf-8")
    authorities = [AUTHORITY, *INTERMEDIATES[: parts.intermediates]]
    files = ["ca", *(f"intermediate-{number}" for number in range(1, parts.intermediates + 1))]
    for name in (*files, "server"):
        # openssl writes private keys with mode 0600
        tools.run("genpkey", "-algorithm", algorithm, "-out", f"{name}.key", cwd=target)
    validity = ["-not_before", f"{start:%Y%m%d%H%M%SZ}", "-not_after", f"{start + LIFETIME:%Y%m%d%H%M%SZ}"]
    request = ["req", "-x509", "-new", "-config", "request.cnf", *validity]

    def issue(file: str, subject: str, section: str, issuer: str | None) -> None:
        made = ["-key", f"{file}.key", "-subj", f"/CN={subject}", "-extensions", section, "-out", f"{file}.pem"]
        by = ["-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key"] if issuer else []
        tools.run(*request, "-set_serial", hex(_serial_number()), *made, *by, cwd=target)

    for number, (file, subject) in enumerate(zip(files, authorities, strict=True)):
        issue(file, subject, f"authority-{parts.intermediates - number}", files[number - 1] if number else None)
    issue("server", NAMES[0], "server", files[-1])
    with (target / "server.pem").open("ab") as chain:
        for file in reversed(files[1:]):
            chain.write((target / f"{file}.pem").read_bytes())
            (target / f"{file}.pem").unlink()
    for name in (*(f"{file}.key" for file in files), "request.cnf"):
        (target / name).unlink()


def _make_classical(target: Path, algorithm: str, start: datetime.datetime, parts: Parts) -> None:
    digest = _digest(algorithm)
    authorities: list[x509.Certificate] = []
    issuer_key, issuer = _generate(algorithm), AUTHORITY
    for number, subject in enumerate([AUTHORITY, *INTERMEDIATES[: parts.intermediates]]):
        own = _generate(algorithm) if number else issuer_key
        authorities.append(
            _builder(subject, issuer, own, start)
            .add_extension(x509.BasicConstraints(ca=True, path_length=parts.intermediates - number), critical=True)
            .add_extension(_AUTHORITY_KEY_USAGE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
            .sign(issuer_key, digest)
        )
        issuer_key, issuer = own, subject
    key = _generate(algorithm)
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    asked = (
        _builder(NAMES[0], issuer, key, start)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    if parts.scts:
        timestamps = x509.UnrecognizedExtension(x509.ObjectIdentifier(_SCTS), _timestamps(parts.scts))
        asked = asked.add_extension(timestamps, critical=False)
    root, *intermediates = authorities
    chain = [asked.sign(issuer_key, digest), *reversed(intermediates)]
    (target / "ca.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (target / "server.pem").write_bytes(b"".join(one.public_bytes(serialization.Encoding.PEM) for one in chain))
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
            chain = x509.load_pem_x509_certificates((target / name).read_bytes())
        except (OSError, ValueError) as error:
            return f"{target / name}: cannot be used ({error})"
        end = min(certificate.not_valid_after_utc for certificate in chain)
        if end < datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1):
            return f"{target / name}: expires on {end:%Y-%m-%d}"
    file = target / "server.key"
    try:
        text = file.read_text(encoding="ascii")
        found = re.fullmatch(r"-----BEGIN PRIVATE KEY-----\n(.+)-----END PRIVATE KEY-----\n", text, re.DOTALL)
        if found is None or not base64.b64decode(found[1].replace("\n", ""), validate=True):
            return f"{file}: cannot be used (not a private key in PEM)"
    except (OSError, ValueError) as error:
        return f"{file}: cannot be used ({error})"
    return None


def check(project: Project, names: Iterable[str] = (DEFAULT,)) -> None:
    """Raise CertificateError unless the certificates of these names can be used for another day."""
    for name in names:
        found = problem(directory(project, name))
        if found is not None:
            raise CertificateError(f"{found}; run `quicbed certificates {name}`")


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
