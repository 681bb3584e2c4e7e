"""Times the operations of a handshake through the functions and objects that aioquic's TLS calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, x448, x25519
from cryptography.hazmat.primitives.serialization import Encoding
from endpoint import library
from endpoint.features import pq
from quicbed_contract import OK
from quicbed_contract.events import Events, one_line
from quicbed_contract.primitives import Options, from_command_line, time

from aioquic import tls

MESSAGE = 64 * b" " + tls.SERVER_CONTEXT_STRING + b"\0" + 32 * b"\xa5"
"""What a server signs, with a transcript hash of SHA-256 (RFC 8446, section 4.4.3)."""


def generate(group: int) -> Any:
    """A private key, as aioquic makes it for this group."""
    if group == tls.Group.X25519:
        return x25519.X25519PrivateKey.generate()
    if group == tls.Group.X448:
        return x448.X448PrivateKey.generate()
    return tls.ec.generate_private_key(tls.GROUP_TO_CURVE[group]())


def exchange(key: Any, share: tuple[int, bytes]) -> bytes:
    """The secret shared with the peer."""
    peer = tls.decode_public_key(share)
    return bytes(key.exchange(ec.ECDH(), peer) if isinstance(peer, ec.EllipticCurvePublicKey) else key.exchange(peer))


def answer(share: tuple[int, bytes]) -> tuple[int, bytes]:
    """A server's share, and on the way to it the secret."""
    key = generate(share[0])
    public = key.public_key()
    exchange(key, share)
    return tls.encode_public_key(public)


def implementation(name: str) -> str:
    """What computes a group, in the order of the parts of its share."""
    curve = pq.CURVES.get(library.GROUPS[name])
    if curve is None:
        return library.OPENSSL
    kem = curve.kem.implementation
    if curve.classical is None:
        return kem
    return " + ".join((kem, library.OPENSSL) if curve.algorithm.kem_first else (library.OPENSSL, kem))


def time_group(name: str, milliseconds: int) -> Iterator[dict[str, Any]]:
    """Key generation of the client, the server's answer, and what the client does with that."""
    group = library.GROUPS[name]

    def share() -> tuple[int, bytes]:
        return tls.encode_public_key(generate(group).public_key())

    def answered() -> tuple[Any, tuple[int, bytes]]:
        key = generate(group)
        return key, answer(tls.encode_public_key(key.public_key()))

    offered = share()
    sent = {"keygen": len(offered[1]), "encapsulate": len(answer(offered)[1]), "decapsulate": None}
    samples = {
        "keygen": time(milliseconds, lambda _: share()),
        "encapsulate": time(milliseconds, lambda _: answer(offered)),
        "decapsulate": time(milliseconds, lambda prepared: exchange(*prepared), answered),
    }
    for operation, samples_ns in samples.items():
        told = {"kind": "group", "name": name, "operation": operation, "implementation": implementation(name)}
        yield {**told, "samples_ns": samples_ns, "bytes": sent[operation]}


def time_signature(name: str, directory: Path, milliseconds: int) -> Iterator[dict[str, Any]]:
    """CertificateVerify on both sides, and the certificate against the CA."""
    scheme = library.SIGNATURES[name]
    key = pq.load_private_key((directory / "server.key").read_bytes())
    certificate, *chain = tls.load_pem_x509_certificates((directory / "server.pem").read_bytes())
    if not library.belongs(key, certificate):
        raise ValueError("server.key is not the key of server.pem")
    trusted = (directory / "ca.pem").read_bytes()
    parameters = tls.signature_algorithm_params(scheme)
    signature = key.sign(MESSAGE, *parameters)

    def verify(_: None) -> None:
        if (public := pq.VerifyKey.of(certificate)) is None:
            certificate.public_key().verify(signature, MESSAGE, *parameters)
        elif not public.verifies(MESSAGE, signature):
            raise ValueError("a signature does not verify")

    def verify_chain(_: None) -> None:
        tls.verify_certificate(certificate=certificate, chain=chain, server_name=None, cadata=trusted)

    sent = {"sign": len(signature), "verify": None, "verify-chain": len(certificate.public_bytes(Encoding.DER))}
    samples = {
        "sign": time(milliseconds, lambda _: key.sign(MESSAGE, *parameters)),
        "verify": time(milliseconds, verify),
        "verify-chain": time(milliseconds, verify_chain),
    }
    by = pq.SCHEMES[scheme].sig.implementation if name in pq.SIGNATURES else library.OPENSSL
    for operation, samples_ns in samples.items():
        told = {"kind": "signature", "name": name, "operation": operation, "implementation": by}
        yield {**told, "samples_ns": samples_ns, "bytes": sent[operation]}


def measure(options: Options, events: Events) -> str | None:
    """Time everything; returns why it could not be."""
    for name in options.groups:
        if name not in library.GROUPS:
            events.write("unsupported", name=name, reason=f"{library.LIBRARY} has no such group")
            continue
        for primitive in time_group(name, options.milliseconds):
            events.write("primitive", **primitive)
    for name, directory in options.signatures:
        if name not in library.SIGNATURES:
            events.write("unsupported", name=name, reason=f"{library.LIBRARY} has no such signature algorithm")
            continue
        try:
            for primitive in time_signature(name, directory, options.milliseconds):
                events.write("primitive", **primitive)
        except OSError as error:
            return f"{name}: {error.filename}: {error.strerror}"
        except (ValueError, TypeError, InvalidSignature, tls.Alert) as error:
            return one_line(f"{name}: {directory}: {error}")
    return None


def main() -> int:
    """Run the program; returns its exit code."""
    options = from_command_line()
    events = Events("primitives", library.LIBRARY, library.VERSION, options.events)
    signatures = [name for name, _ in options.signatures]
    events.start({"milliseconds": options.milliseconds, "groups": options.groups, "signatures": signatures})
    pq.install()
    if reason := measure(options, events):
        return events.error(reason)
    events.end()
    return OK
