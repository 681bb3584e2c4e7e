"""Groups and signature algorithms of liboqs in aioquic's TLS, without a patch of aioquic.

aioquic looks groups up in a table of elliptic curves; a KEM, alone or with a classical group, enters it as a curve,
whose "public key" is the client's public key or the server's ciphertext. Signatures, and chains of certificates with
them, are verified here, because OpenSSL does not know them; so is ML-DSA, which it does, to use one implementation for
all.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import service_identity
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from endpoint.context import Context as ClassicalContext
from quicbed_contract import algorithms, liboqs

from aioquic import tls
from aioquic.quic import connection

LARGEST_FLIGHT = 1 << 17
"""Room for the messages of a server in bytes: two signatures of SPHINCS+ take 100 kB."""

_POINTS = {"p-256": ec.SECP256R1, "p-384": ec.SECP384R1, "p-521": ec.SECP521R1}


class Classical:
    """The classical part of a hybrid."""

    def __init__(self, name: str) -> None:
        self._curve = None if name == "x25519" else _POINTS[name]()

    def generate(self) -> Any:
        """A new private key."""
        return x25519.X25519PrivateKey.generate() if self._curve is None else ec.generate_private_key(self._curve)

    def share(self, key: Any) -> bytes:
        """The public key as TLS has it (RFC 8446, section 4.2.8.2)."""
        if self._curve is None:
            return bytes(key.public_key().public_bytes_raw())
        return bytes(key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))

    def exchange(self, key: Any, share: bytes) -> bytes:
        """The secret shared with the peer."""
        if self._curve is None:
            return bytes(key.exchange(x25519.X25519PublicKey.from_public_bytes(share)))
        return bytes(key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(self._curve, share)))


class Curve:
    """A group, in the place of a curve; each has a class of its own, by which aioquic tells them apart."""

    algorithm: algorithms.Algorithm
    kem: liboqs.Kem
    classical: Classical | None
    name: str

    def join(self, classical: bytes, kem: bytes) -> bytes:
        """Shares or secrets of both parts, without lengths (draft-ietf-tls-hybrid-design, section 3)."""
        return kem + classical if self.algorithm.kem_first else classical + kem

    def split(self, share: bytes, kem_bytes: int) -> tuple[bytes, bytes]:
        """The classical part of a share, and that of the KEM."""
        if len(share) < kem_bytes:
            raise ValueError(f"a share of {len(share)} bytes is too short")
        if self.algorithm.kem_first:
            return share[kem_bytes:], share[:kem_bytes]
        return share[:-kem_bytes], share[-kem_bytes:]


class PrivateKey:
    """One side's part of a key exchange: a client's from its share on, a server's from the client's share on."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.own = b""
        self._secret: bytes | None = None
        self._classical: Any = None

    def public_key(self) -> PublicKey:
        """What is told to the peer, once it is known."""
        return PublicKey(self.curve, self)

    def share(self) -> bytes:
        """The share of this side; that of a client is made here."""
        if not self.own:
            public, self._secret = self.curve.kem.keypair()
            self.own = self.curve.join(self._classical_share(), public)
        return self.own

    def exchange(self, _: ec.ECDH, peer: PublicKey) -> bytes:
        """The secret; a server's share is made here. Raises ValueError."""
        kem, classical = self.curve.kem, self.curve.classical
        if self._secret is None:
            other, public = self.curve.split(peer.received, kem.public_key_bytes)
            ciphertext, shared = kem.encapsulate(public)
            self.own = self.curve.join(self._classical_share(), ciphertext)
        else:
            other, ciphertext = self.curve.split(peer.received, kem.ciphertext_bytes)
            shared = kem.decapsulate(self._secret, ciphertext)
        if classical is not None:
            return self.curve.join(classical.exchange(self._classical, other), shared)
        if other:
            raise ValueError(f"a share has {len(other)} bytes too many")
        return shared

    def _classical_share(self) -> bytes:
        if self.curve.classical is None:
            return b""
        self._classical = self.curve.classical.generate()
        return self.curve.classical.share(self._classical)


@ec.EllipticCurvePublicKey.register
class PublicKey:
    """A share: one received, or that of a private key."""

    def __init__(self, curve: Curve, private: PrivateKey | None, received: bytes = b"") -> None:
        self.curve = curve
        self.received = received
        self._private = private

    def public_bytes(self, *_: Any) -> bytes:
        """The share as it is sent."""
        return self._private.share() if self._private else self.received


def _curve(algorithm: algorithms.Algorithm) -> type[Curve]:
    classical = Classical(algorithm.classical) if algorithm.classical else None
    own = {"algorithm": algorithm, "name": algorithm.tls_name, "kem": liboqs.Kem(algorithm.liboqs)}
    return type("Curve", (Curve,), {**own, "classical": classical})


CURVES = {
    algorithm.code_point: _curve(algorithm)
    for algorithm in algorithms.liboqs("group")
    if not liboqs.left_out(algorithm.liboqs)
}
GROUPS = {curve.algorithm.name: code for code, curve in CURVES.items()}
"""Code points by name."""


class Scheme:
    """A signature algorithm."""

    def __init__(self, algorithm: algorithms.Algorithm) -> None:
        self.algorithm = algorithm
        self.sig = liboqs.Sig(algorithm.liboqs)


SCHEMES = {algorithm.code_point: Scheme(algorithm) for algorithm in algorithms.liboqs("signature")}
SIGNATURES = {scheme.algorithm.name: code for code, scheme in SCHEMES.items()}
"""Code points by name."""
_BY_OID = {scheme.algorithm.oid: scheme for scheme in SCHEMES.values()}


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and value of the elements that follow each other (X.690, section 8.1). Raises ValueError."""
    at = 0
    while at < len(der):
        head = der[at : at + 2]
        if len(head) < 2:
            raise ValueError("it is no DER")
        tag, length = head
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[at : at + size], "big")
            at += size
        if at + length > len(der):
            raise ValueError("it is no DER")
        yield tag, der[at : at + length]
        at += length


def _dotted(oid: bytes) -> str:
    """An object identifier in dots (X.690, section 8.19)."""
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


class VerifyKey:
    """The public key of a certificate."""

    def __init__(self, scheme: Scheme, public: bytes) -> None:
        self.scheme = scheme
        self.public = public

    @classmethod
    def of(cls, certificate: x509.Certificate) -> VerifyKey | None:
        """That of a certificate; None if it is of no algorithm here."""
        scheme = _BY_OID.get(certificate.public_key_algorithm_oid.dotted_string)
        if scheme is None:
            return None
        ((_, body),) = _elements(certificate.tbs_certificate_bytes)
        fields = [value for tag, value in _elements(body) if tag != 0xA0]  # the version may be missing
        (_, _), (_, bits) = _elements(fields[5])  # after serial number, algorithm, issuer, validity, and subject
        return cls(scheme, bits[1:])

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether a signature is right."""
        return self.scheme.sig.verify(self.public, message, signature)


class SigningKey:
    """A private key; `sign` is what aioquic calls."""

    def __init__(self, scheme: Scheme, secret: bytes) -> None:
        self.scheme = scheme
        self._secret = secret

    def sign(self, message: bytes) -> bytes:
        """Sign a whole message."""
        return self.scheme.sig.sign(self._secret, message)

    def belongs_to(self, certificate: x509.Certificate) -> bool:
        """Whether the certificate has the public key."""
        public = VerifyKey.of(certificate)
        return public is not None and public.scheme is self.scheme and public.verifies(b"", self.sign(b""))


def load_private_key(pem: bytes) -> Any:
    """A private key in PKCS#8, of liboqs or any other. Raises ValueError.

    Those of liboqs hold the secret and the public key in an OCTET STRING, as oqs-provider writes them, or the expanded
    key of ML-DSA (RFC 9881, section 6).
    """
    lines = [line for line in pem.splitlines() if line and not line.startswith(b"-----")]
    try:
        ((_, body),) = _elements(base64.b64decode(b"".join(lines), validate=True))
        _, (_, algorithm), (_, private), *_ = _elements(body)
        (_, oid), *_ = _elements(algorithm)
        scheme = _BY_OID.get(_dotted(oid))
    except ValueError:
        scheme = None
    if scheme is None:
        return tls.load_pem_private_key(pem)
    ((tag, keys),) = _elements(private)
    if tag == 0x30:  # seed and expanded key
        _, (_, keys) = _elements(keys)
    secret, public = scheme.sig.secret_key_bytes, scheme.sig.public_key_bytes
    if len(keys) not in (secret, secret + public):
        raise ValueError(f"the key has {len(keys)} bytes instead of {secret} or {secret + public}")
    return SigningKey(scheme, keys[:secret])


class Context(ClassicalContext):
    """TLS of one connection, with signatures of liboqs."""

    def _signature_algorithms_for_private_key(self) -> list[Any]:
        key = self.certificate_private_key
        if not isinstance(key, SigningKey):
            return super()._signature_algorithms_for_private_key()
        self.signature = key.scheme.algorithm.code_point
        return [self.signature]

    def _check_certificate_verify_signature(self, verify: tls.CertificateVerify) -> None:
        if verify.algorithm not in SCHEMES:
            super()._check_certificate_verify_signature(verify)
            return
        key = VerifyKey.of(self._peer_certificate)
        if verify.algorithm not in self._signature_algorithms or key is None:
            raise tls.AlertDecryptError("CertificateVerify has a signature algorithm that was not offered")
        message = self.key_schedule.certificate_verify_data(tls.SERVER_CONTEXT_STRING)
        if key.scheme is not SCHEMES[verify.algorithm] or not key.verifies(message, verify.signature):
            raise tls.AlertDecryptError("CertificateVerify does not verify")
        self.signature = verify.algorithm


def verify_chain(certificate: x509.Certificate, chain: Sequence[x509.Certificate], trusted: bytes) -> None:
    """Follow signatures of liboqs from a certificate to a trusted one; raises AlertBadCertificate."""
    anchors = tls.load_pem_x509_certificates(trusted)
    rest = list(chain)
    now = tls.utcnow()
    link = certificate
    while True:
        if not link.not_valid_before_utc <= now <= link.not_valid_after_utc:
            raise tls.AlertCertificateExpired("a certificate is not valid at this time")
        anchor = next((known for known in anchors if known.subject == link.issuer), None)
        issuer = anchor or next((known for known in rest if known.subject == link.issuer), None)
        if issuer is None:
            raise tls.AlertBadCertificate("unable to get local issuer certificate")
        try:
            authority = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            authority = False
        key = VerifyKey.of(issuer)
        of_key = key is not None and link.signature_algorithm_oid.dotted_string == key.scheme.algorithm.oid
        if not (authority and key and of_key and key.verifies(link.tbs_certificate_bytes, link.signature)):
            raise tls.AlertBadCertificate("certificate signature failure")
        if anchor is not None:
            return
        rest.remove(issuer)
        link = issuer


def verify_certificate(certificate: x509.Certificate, **how: Any) -> None:
    """Verify a server's certificate, as aioquic's function of this name does those without a part of liboqs."""
    if certificate.signature_algorithm_oid.dotted_string not in _BY_OID:
        _verify_certificate(certificate=certificate, **how)
        return
    name = how["server_name"]
    if name is not None:
        verify_name(certificate, name)
    verify_chain(certificate, how["chain"], how["cadata"] or b"")


def verify_name(certificate: x509.Certificate, name: str) -> None:
    """Check that a certificate is that of a host; raises AlertBadCertificate."""
    try:
        try:
            ipaddress.ip_address(name)
        except ValueError:
            service_identity.cryptography.verify_certificate_hostname(certificate, name)
        else:
            service_identity.cryptography.verify_certificate_ip_address(certificate, name)
    except (service_identity.CertificateError, service_identity.VerificationError):
        raise tls.AlertBadCertificate(f"certificate is not that of {name!r}") from None


_verify_certificate = tls.verify_certificate
_decode_public_key = tls.decode_public_key
_signature_algorithm_params = tls.signature_algorithm_params


def _decode(share: tuple[int, bytes]) -> Any:
    curve = CURVES.get(share[0])
    return PublicKey(curve(), None, share[1]) if curve else _decode_public_key(share)


def _params(scheme: int) -> tuple[Any, ...]:
    return () if scheme in SCHEMES else _signature_algorithm_params(scheme)


def _generate(curve: Any) -> Any:
    return PrivateKey(curve) if isinstance(curve, Curve) else ec.generate_private_key(curve)


def install() -> None:
    """Give aioquic's TLS the groups and signature algorithms."""
    tls.GROUP_TO_CURVE.update(CURVES)
    tls.CURVE_TO_GROUP.update({curve: code for code, curve in CURVES.items()})
    tls.ec = SimpleNamespace(**{**vars(ec), "generate_private_key": _generate})
    tls.decode_public_key = _decode
    tls.signature_algorithm_params = _params
    tls.verify_certificate = verify_certificate
    tls.Context = Context
    connection.CRYPTO_BUFFER_SIZE = LARGEST_FLIGHT
