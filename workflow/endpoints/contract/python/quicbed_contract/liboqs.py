"""Key encapsulation and signatures of liboqs, through workflow/crypto/pq/pq.h in a library beside this package."""

from __future__ import annotations

from ctypes import CDLL, POINTER, byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from pathlib import Path

LIBRARY = Path(__file__).parents[1] / "libquicbed-pq.so"

_pq = CDLL(str(LIBRARY))
_SIZE = POINTER(c_size_t)
for _name, _result, *_arguments in (
    ("pq_version", c_char_p),
    ("kem_find", c_void_p, c_char_p),
    ("kem_left_out", c_int, c_char_p),
    ("kem_implementation", c_char_p, c_void_p),
    *(
        (f"kem_{part}_bytes", c_size_t, c_void_p)
        for part in ("public_key", "secret_key", "ciphertext", "shared_secret")
    ),
    ("kem_keypair", c_int, c_void_p, c_char_p, c_char_p),
    ("kem_encapsulate", c_int, c_void_p, c_char_p, c_char_p, c_char_p),
    ("kem_decapsulate", c_int, c_void_p, c_char_p, c_char_p, c_char_p),
    ("sig_find", c_void_p, c_char_p),
    ("sig_implementation", c_char_p, c_void_p),
    *((f"sig_{part}_bytes", c_size_t, c_void_p) for part in ("public_key", "secret_key", "signature")),
    ("sig_sign", c_int, c_void_p, c_char_p, _SIZE, c_char_p, c_size_t, c_char_p),
    ("sig_verify", c_int, c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, c_char_p),
):
    _function = getattr(_pq, f"quicbed_{_name}")
    _function.restype = _result
    _function.argtypes = _arguments

VERSION: str = _pq.quicbed_pq_version().decode()
"""`liboqs 0.13.0`"""


def left_out(name: str) -> bool:
    """Whether a KEM is missing because it is here for other processors only."""
    return bool(_pq.quicbed_kem_left_out(name.encode()))


class Kem:
    """A key encapsulation mechanism; what it cannot use is a ValueError."""

    def __init__(self, name: str) -> None:
        self._kem = _pq.quicbed_kem_find(name.encode())
        if not self._kem:
            raise LookupError(f"{VERSION} has no {name}")
        self.implementation: str = _pq.quicbed_kem_implementation(self._kem).decode()
        self.public_key_bytes: int = _pq.quicbed_kem_public_key_bytes(self._kem)
        self.ciphertext_bytes: int = _pq.quicbed_kem_ciphertext_bytes(self._kem)
        self._secret_key_bytes: int = _pq.quicbed_kem_secret_key_bytes(self._kem)
        self._shared_secret_bytes: int = _pq.quicbed_kem_shared_secret_bytes(self._kem)

    def keypair(self) -> tuple[bytes, bytes]:
        """A new public and secret key."""
        public, secret = create_string_buffer(self.public_key_bytes), create_string_buffer(self._secret_key_bytes)
        _check(_pq.quicbed_kem_keypair(self._kem, public, secret))
        return public.raw, secret.raw

    def encapsulate(self, public: bytes) -> tuple[bytes, bytes]:
        """A ciphertext for the public key, and the shared secret in it."""
        _length(public, self.public_key_bytes)
        text, shared = create_string_buffer(self.ciphertext_bytes), create_string_buffer(self._shared_secret_bytes)
        _check(_pq.quicbed_kem_encapsulate(self._kem, text, shared, public))
        return text.raw, shared.raw

    def decapsulate(self, secret: bytes, ciphertext: bytes) -> bytes:
        """The shared secret in a ciphertext."""
        _length(ciphertext, self.ciphertext_bytes)
        shared = create_string_buffer(self._shared_secret_bytes)
        _check(_pq.quicbed_kem_decapsulate(self._kem, shared, ciphertext, secret))
        return shared.raw


class Sig:
    """A signature algorithm."""

    def __init__(self, name: str) -> None:
        self._sig = _pq.quicbed_sig_find(name.encode())
        if not self._sig:
            raise LookupError(f"{VERSION} has no {name}")
        self.implementation: str = _pq.quicbed_sig_implementation(self._sig).decode()
        self.public_key_bytes: int = _pq.quicbed_sig_public_key_bytes(self._sig)
        self.secret_key_bytes: int = _pq.quicbed_sig_secret_key_bytes(self._sig)
        self._signature_bytes: int = _pq.quicbed_sig_signature_bytes(self._sig)

    def sign(self, secret: bytes, message: bytes) -> bytes:
        """The signature of a whole message."""
        _length(secret, self.secret_key_bytes)
        signature, length = create_string_buffer(self._signature_bytes), c_size_t()
        _check(_pq.quicbed_sig_sign(self._sig, signature, byref(length), message, len(message), secret))
        return signature.raw[: length.value]

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether a signature is that of the message."""
        if len(public) != self.public_key_bytes:
            return False
        arguments = (message, len(message), signature, len(signature), public)
        return bool(_pq.quicbed_sig_verify(self._sig, *arguments))


def _length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise ValueError(f"{len(data)} bytes instead of {expected}")


def _check(done: int) -> None:
    if done != 1:
        raise ValueError(f"{VERSION} failed")
