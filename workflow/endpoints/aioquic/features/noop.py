"""NOOP: packet protection that leaves packets as they are, for all packets but Initial ones.

Nothing of aioquic is patched. Its connections take the class of their keys by name from their module, and get classes
from here that act where the key of a packet space is set, also after a key update (RFC 9001, section 6).
"""

from __future__ import annotations

from typing import Any

from aioquic._crypto import CryptoError
from aioquic.quic import connection, crypto

TAG = 16 * b"\x2a"
"""The constant tag (A Quantum of QUIC, section III); it is not verified."""


class NoopAead:
    """An AEAD whose ciphertext is the plaintext with a constant tag."""

    def encrypt(self, data: bytes, associated_data: bytes, packet_number: int) -> bytes:  # noqa: ARG002
        """Append the tag."""
        return data + TAG

    def decrypt(self, data: bytes, associated_data: bytes, packet_number: int) -> bytes:  # noqa: ARG002
        """Remove the tag."""
        if len(data) < len(TAG):
            raise CryptoError("Payload is shorter than a tag")
        return data[: -len(TAG)]


class NoHeaderProtection:
    """Header protection whose mask is zero."""

    def apply(self, plain_header: bytes, protected_payload: bytes) -> bytes:
        """Join header and payload."""
        return plain_header + protected_payload

    def remove(self, packet: bytes, pn_offset: int) -> tuple[bytes, int]:
        """Header and truncated packet number."""
        end = pn_offset + (packet[0] & 0x03) + 1
        if end > len(packet):
            raise CryptoError("Packet is too short")
        return packet[:end], int.from_bytes(packet[pn_offset:end], "big")


def install(noop_aead: bool, header_protection_off: bool) -> None:
    """Let all connections made from now on do without the AEAD, header protection, or both."""

    class Keys(crypto.CryptoContext):
        """Keys of one direction; `initial` says that they are for Initial packets."""

        initial = False

        def setup(self, **secret: Any) -> None:
            super().setup(**secret)
            if noop_aead and not self.initial:
                self.aead = NoopAead()
            if header_protection_off and not self.initial:
                self.hp = NoHeaderProtection()

    class KeyPair(crypto.CryptoPair):
        """Keys of both directions."""

        def setup_initial(self, **secret: Any) -> None:
            self.recv.initial = self.send.initial = True
            super().setup_initial(**secret)

    crypto.CryptoContext = Keys
    connection.CryptoPair = KeyPair
