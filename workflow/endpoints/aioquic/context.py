"""TLS of aioquic, telling what was negotiated."""

from __future__ import annotations

from aioquic import tls


class Context(tls.Context):
    """TLS of one connection, which remembers the signature scheme of CertificateVerify."""

    signature: int | None = None

    def _check_certificate_verify_signature(self, verify: tls.CertificateVerify) -> None:
        super()._check_certificate_verify_signature(verify)
        self.signature = verify.algorithm

    def _signature_algorithms_for_private_key(self) -> list[tls.SignatureAlgorithm]:
        able = super()._signature_algorithms_for_private_key()
        permitted = [scheme for scheme in able if scheme in self._signature_algorithms]
        # no more than one is permitted, so that the handshake fails or uses this one
        self.signature = permitted[0] if permitted else None
        return permitted
