"""Key logs, and what tshark knows about the packets of a capture, given the secrets of its connections.

One call a capture. tshark writes the tree of every frame as JSON, because its flat fields do not tell which of the
packets coalesced in a datagram a value belongs to. CRYPTO data are reassembled by tshark, so that a message that spans
packets is found in the packet that completes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quicbed.base import untrusted
from quicbed.base.errors import QuicbedError
from quicbed.base.untrusted import UntrustedError
from quicbed.wire.messages import (
    CERTIFICATE,
    CERTIFICATE_VERIFY,
    CLIENT_HELLO,
    ENCRYPTED_EXTENSIONS,
    SERVER_HELLO,
    Message,
)

TIMEOUT_S = 300.0
PACKAGE = "tshark"

# NSS key log format: label, client random, secret (SHA-256 or SHA-384).
_KEY_LOG_LINE = re.compile(r"([A-Z0-9_]+)[ \t]+([0-9a-fA-F]{64})[ \t]+([0-9a-fA-F]{64}|[0-9a-fA-F]{96})")


class TsharkError(QuicbedError):
    """tshark or one of its inputs cannot be used: one line naming the file and the remedy."""


@dataclass(frozen=True, slots=True)
class QuicDetails:
    """A QUIC packet."""

    bytes: int
    """Its whole length."""
    decrypted: bool
    packet_number: int | None
    frame_types: tuple[int, ...]
    """RFC 9000, 19; a run of PADDING is one entry."""
    crypto: tuple[tuple[int, int], ...]
    """Offset and length of every CRYPTO frame."""
    largest_acknowledged: int | None
    messages: tuple[Message, ...]
    """Messages completed by this packet."""


@dataclass(frozen=True, slots=True)
class TlsDetails:
    """The TLS in a TCP segment; sequence and acknowledgement numbers count from the start of the connection."""

    sequence_end: int
    acknowledged: int
    record_bytes: tuple[int, ...]
    """Lengths, with their headers, of the TLS records completed by this segment."""
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class FrameDetails:
    """A captured frame."""

    quic: tuple[QuicDetails, ...]
    tls: TlsDetails | None


def read_key_log(path: Path) -> dict[str, dict[str, bytes]]:
    """Secrets by label of each client random (hexadecimal, lower case) in a key log.

    Lines of no use here are passed over: comments, other keys (RFC 9850 and older forms), and one that is cut off.
    :class:`TsharkError` for a file that is not one: without a single secret, and not empty.
    """
    try:
        content = untrusted.read(path, links=True)
    except UntrustedError as error:
        said = str(error).removeprefix("cannot be read: ")
        raise TsharkError(f"{path}: the key log cannot be read: {said}; record it with --key-log") from None
    known: dict[str, dict[str, bytes]] = {}
    other: tuple[int, str] | None = None
    for number, line in enumerate(content.decode("utf-8-sig", errors="replace").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if (found := _KEY_LOG_LINE.fullmatch(text)) is not None:
            known.setdefault(found[2].lower(), {})[found[1]] = bytes.fromhex(found[3])
        elif other is None:
            other = number, text
    if not known and other is not None:
        number, text = other
        if not text.isprintable() or "\N{REPLACEMENT CHARACTER}" in text:
            raise TsharkError(f"{path}: not a key log in NSS format")
        raise TsharkError(
            f"{path}: line {number} is not a whole line of a key log, and neither is another: {text[:40]!r}; "
            "record it again"
        )
    return known


@contextlib.contextmanager
def _plain_key_log(path: Path) -> Iterator[Path]:
    """A key log of whole lines alone: tshark loses a line to a byte order mark, or to what follows a secret."""
    known = read_key_log(path)
    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory) / "keys.log"
        lines = (f"{label} {random} {secret.hex()}\n" for random, own in known.items() for label, secret in own.items())
        plain.write_text("".join(lines), encoding="ascii")
        yield plain


def problem() -> str | None:
    """Why there is no tshark to be used, with the remedy; None if there is."""
    if shutil.which("tshark"):
        return None
    return f"tshark is missing; install with: apt-get install {PACKAGE} (as an administrator)"


def version() -> str:
    """Version of tshark, like ``4.0.17``; :class:`TsharkError` where it does not tell one."""
    said = run(["tshark", "--version"], Path("tshark"), TIMEOUT_S, "install it again")
    if (found := re.match(rb"TShark \(Wireshark\) ([0-9.]+)", said)) is None:
        raise TsharkError("tshark: does not print its version; install it again")
    return found[1].decode()


def run(argv: list[str], capture: Path, timeout_s: float, patience: str) -> bytes:
    """What tshark writes about a capture; :class:`TsharkError` where it fails, with *patience* if it takes too long."""
    try:
        # Preferences of whoever runs this must not change what is found.
        with tempfile.TemporaryDirectory() as preferences:
            environment = {**os.environ, "WIRESHARK_CONFIG_DIR": preferences}
            done = subprocess.run(
                argv, env=environment, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
            )
    except subprocess.TimeoutExpired:
        raise TsharkError(f"{capture}: tshark is not done after {timeout_s:g} s; {patience}") from None
    except OSError as error:
        raise TsharkError(f"tshark cannot be started: {error.strerror}; install it again") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").splitlines()
        lines = [line for line in said if not line.startswith("Running as")]
        raise TsharkError(f"{capture}: tshark: {lines[-1] if lines else f'exit status {done.returncode}'}")
    return done.stdout


def dissect(capture: Path, key_log: Path, *, port: int, transport: Literal["quic", "tcp"]) -> dict[int, FrameDetails]:
    """What tshark finds in every frame of a capture, by the frame's index in the file (0, 1, ...)."""
    if (missing := problem()) is not None:
        raise TsharkError(missing)
    decode = f"udp.port=={port},quic" if transport == "quic" else f"tcp.port=={port},tls"
    layers = "frame quic" if transport == "quic" else "frame tcp tls"
    with _plain_key_log(key_log) as plain:
        argv = ["tshark", "-n", "-r", str(capture), "-o", f"tls.keylog_file:{plain}", "-d", decode]
        argv += ["-T", "json", "--no-duplicate-keys", "-J", layers]
        said = run(argv, capture, TIMEOUT_S, "capture fewer connections")
    try:
        rows = json.loads(said)
    except ValueError:
        raise TsharkError(f"{capture}: tshark did not write JSON; version 4.0 of it is known to work") from None
    found: dict[int, FrameDetails] = {}
    for row in rows:
        layers = row["_source"]["layers"]
        number = int(layers["frame"]["frame.number"])
        found[number - 1] = FrameDetails(
            tuple(_quic(layer) for layer in _list(layers.get("quic")) if "quic.packet_length" in layer),
            _tls(layers) if transport == "tcp" and "tcp" in layers else None,
        )
    return found


def _list(value: Any) -> list[dict[str, Any]]:
    """The objects under a key: none, one, or a list of them among other things."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def _number(value: Any) -> int:
    """A value of tshark as an integer; the first of several."""
    return int(value[0] if isinstance(value, list) else value, 0)


def _quic(layer: dict[str, Any]) -> QuicDetails:
    frames = _list(layer.get("quic.frame"))
    key = "quic.ack.largest_acknowledged"
    acknowledged = [_number(one[key]) for one in frames if key in one]
    return QuicDetails(
        bytes=_number(layer["quic.packet_length"]),
        decrypted=bool(frames),
        packet_number=_number(layer["quic.packet_number"]) if "quic.packet_number" in layer else None,
        frame_types=tuple(_number(one["quic.frame_type"]) for one in frames if "quic.frame_type" in one),
        crypto=tuple(
            (_number(one["quic.crypto.offset"]), _number(one["quic.crypto.length"]))
            for one in frames
            if "quic.crypto.offset" in one
        ),
        largest_acknowledged=max(acknowledged, default=None),
        messages=tuple(_messages(frames)),
    )


def _tls(layers: dict[str, Any]) -> TlsDetails:
    tcp = layers["tcp"]
    records = [one for layer in _list(layers.get("tls")) for one in _list(layer.get("tls.record"))]
    return TlsDetails(
        sequence_end=_number(tcp["tcp.seq"]) + _number(tcp["tcp.len"]),
        acknowledged=_number(tcp["tcp.ack"]) if "tcp.ack" in tcp else 0,
        record_bytes=tuple(5 + _number(one["tls.record.length"]) for one in records if "tls.record.length" in one),
        messages=tuple(_messages(layers.get("tls"))),
    )


def _messages(tree: Any) -> Iterator[Message]:
    """The handshake messages anywhere in a tree, in their order."""
    if isinstance(tree, list):
        for one in tree:
            yield from _messages(one)
    elif isinstance(tree, dict):
        if isinstance(tree.get("tls.handshake.type"), str) and "tls.handshake.length" in tree:
            yield _message(tree)
            return
        for value in tree.values():
            yield from _messages(value)


def _message(tree: dict[str, Any]) -> Message:
    kind = _number(tree["tls.handshake.type"])

    def number(of: int, key: str) -> int | None:
        return _number(tree[key]) if kind == of and key in tree else None

    hello = kind in (CLIENT_HELLO, SERVER_HELLO)
    random = tree.get("tls.handshake.random") if hello else None
    return Message(
        type=kind,
        bytes=4 + _number(tree["tls.handshake.length"]),
        random=random.replace(":", "").lower() if isinstance(random, str) else None,
        cipher=number(SERVER_HELLO, "tls.handshake.ciphersuite"),
        extensions=tuple(_extensions(tree)) if hello or kind == ENCRYPTED_EXTENSIONS else (),
        key_shares=tuple(_key_shares(tree)) if hello else (),
        signature=number(CERTIFICATE_VERIFY, "tls.handshake.sig_hash_alg"),
        signature_bytes=number(CERTIFICATE_VERIFY, "tls.handshake.client_cert_vrfy.sig_len"),
        public_key_bytes=next(_public_keys(tree), None) if kind == CERTIFICATE else None,
    )


def _public_keys(tree: Any) -> Iterator[int]:
    """Sizes of the public keys of the certificates in a tree, in their order."""
    if isinstance(tree, list):
        for one in tree:
            yield from _public_keys(one)
    elif isinstance(tree, dict):
        if isinstance(key := tree.get("x509af.subjectPublicKey"), str):
            modulus = tree.get("x509af.subjectPublicKey_tree", {}).get("pkcs1.modulus")
            content = bytes.fromhex((modulus or key).replace(":", ""))
            yield len(content.lstrip(b"\0") if modulus else content)
            return
        for value in tree.values():
            yield from _public_keys(value)


def _extensions(tree: Any) -> Iterator[int]:
    key = "tls.handshake.extension.type"
    for one in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        if isinstance(one, dict) and key in one:
            yield _number(one[key])
        elif isinstance(one, (dict, list)):
            yield from _extensions(one)


def _key_shares(tree: Any) -> Iterator[tuple[int, int]]:
    group = "tls.handshake.extensions_key_share_group"
    length = "tls.handshake.extensions_key_share_key_exchange_length"
    for one in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        if isinstance(one, dict) and group in one and length in one:
            yield _number(one[group]), _number(one[length])
        elif isinstance(one, (dict, list)):
            yield from _key_shares(one)
