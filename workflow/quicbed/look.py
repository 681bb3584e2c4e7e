"""A captured handshake, packet by packet, for looking: with pyshark, which reads a few hundred packets a second.

Nothing that is counted or drawn comes from here; see `quicbed.handshake` for that.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from quicbed.report import Sheet
from quicbed.runs import RUN_FILE, RunsError

CAPTURE, KEYS = "capture.pcap", "keys.log"
PORT = 4433

_FRAMES = {
    "0": "PADDING",
    "1": "PING",
    "2": "ACK",
    "3": "ACK",
    "6": "CRYPTO",
    "7": "NEW_TOKEN",
    "24": "NEW_CONNECTION_ID",
    "25": "RETIRE_CONNECTION_ID",
    "28": "CONNECTION_CLOSE",
    "29": "CONNECTION_CLOSE",
    "30": "HANDSHAKE_DONE",
}
_LEVELS = {"0": "Initial", "1": "0-RTT", "2": "Handshake", "3": "Retry"}
_MESSAGES = {
    "1": "ClientHello",
    "2": "ServerHello",
    "4": "NewSessionTicket",
    "8": "EncryptedExtensions",
    "11": "Certificate",
    "15": "CertificateVerify",
    "20": "Finished",
}


def handshake(raw: Path, *, library: str, group: str, signature: str, packets: int = 40) -> Sheet:
    """The first *packets* QUIC packets of a captured series of handshakes, decrypted with its key log.

    The capture is that of the cell's proof below *raw*, in an archive or not; without one the sheet says so.
    """
    with tempfile.TemporaryDirectory(prefix="quicbed-look-") as temporary:
        origin = _find(raw, Path(temporary), library, group, signature)
        if origin is None:
            return Sheet(["not here"], [[f"no capture of {library} with {group} and {signature} below {raw.name}"]])
        rows = _in_thread(Path(temporary) / CAPTURE, Path(temporary) / KEYS, packets)
    headers = ["packet", "ms", "from", "datagram [B]", "level", "number", "frames", "TLS messages"]
    return Sheet(headers, rows, frozenset({0, 1, 3, 5}))


def _find(raw: Path, target: Path, library: str, group: str, signature: str) -> str | None:
    """Copy capture and key log of the cell's proof to *target*; returns its origin."""

    def wanted(content: bytes) -> bool:
        run = json.loads(content)
        variant = run["variant"]
        return (
            run["status"] == "ok"
            and run["cell"]["arm"] == "proof"
            and run["client"]["library"] == run["server"]["library"] == library
            and variant.get("group") == group
            and variant.get("signature") == signature
            and not variant.get("retry")
            and not variant.get("rtt_ms")
            and variant.get("initial_size") in (None, 1200)
        )

    if not raw.is_dir():
        raise RunsError(f"{raw}: no such directory of runs; measure first or name another")
    for directory, _, files in os.walk(raw):
        path = Path(directory)
        if {RUN_FILE, CAPTURE, KEYS} <= set(files) and wanted((path / RUN_FILE).read_bytes()):
            for name in (CAPTURE, KEYS):
                shutil.copy(path / name, target / name)
            return str(path)
    for archive in sorted(raw.rglob("*.tar.gz")):
        with tarfile.open(archive, "r:gz") as opened:
            members = {member.name: member for member in opened if member.isfile()}
            for name in sorted(members):
                place = PurePosixPath(name).parent
                parts = [str(place / other) for other in (CAPTURE, KEYS)]
                if PurePosixPath(name).name != RUN_FILE or not all(part in members for part in parts):
                    continue
                file = opened.extractfile(members[name])
                if file and wanted(file.read()):
                    for part in parts:
                        content = opened.extractfile(members[part])
                        (target / PurePosixPath(part).name).write_bytes(content.read() if content else b"")
                    return f"{archive}!{place}"
    return None


def _in_thread(capture: Path, keys: Path, packets: int) -> list[list[Any]]:
    """Run pyshark in a thread of its own: it needs an event loop, and a notebook's kernel has one running."""
    rows: list[list[Any]] = []
    failure: list[BaseException] = []

    def target() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        try:
            rows.extend(_rows(capture, keys, packets))
        except BaseException as error:  # noqa: BLE001 (handed to the caller's thread)
            failure.append(error)

    thread = threading.Thread(target=target, name="pyshark")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return rows


def _rows(capture: Path, keys: Path, packets: int) -> Iterator[list[Any]]:
    import pyshark

    opened = pyshark.FileCapture(
        str(capture),
        override_prefs={"tls.keylog_file": str(keys)},
        decode_as={f"udp.port=={PORT}": "quic", f"tcp.port=={PORT}": "tls"},
        # so that tshark ends by itself: pyshark does not survive being stopped
        custom_parameters=["-c", str(3 * packets)],
    )
    begin: float | None = None
    count = 0
    try:
        for frame in opened:
            time = float(frame.sniff_timestamp)
            begin = time if begin is None else begin
            transport = frame.udp if "UDP" in frame else frame.tcp
            sender = "server" if int(transport.srcport) == PORT else "client"
            layers = [layer for layer in frame.layers if layer.layer_name in ("quic", "tls")]
            for layer in layers:
                count += 1
                if count > packets:
                    continue
                yield [
                    count,
                    f"{1e3 * (time - begin):.3f}",
                    sender,
                    int(transport.length) - 8 if "UDP" in frame else int(transport.len),
                    _level(layer),
                    str(getattr(layer, "packet_number", "")) or None,
                    _names(layer, "frame_type", _FRAMES),
                    _names(layer, "tls_handshake_type" if layer.layer_name == "quic" else "handshake_type", _MESSAGES),
                ]
    finally:
        opened.close()


def _level(layer: Any) -> str:
    if layer.layer_name == "tls":
        return "TLS"
    kind = getattr(layer, "long_packet_type", None)
    return "1-RTT" if kind is None else _LEVELS.get(str(kind), str(kind))


def _names(layer: Any, field: str, names: dict[str, str]) -> str:
    """Every value of a field that occurs several times, by name, with how often it follows itself."""
    found = getattr(layer, field, None)
    if found is None:
        return ""
    values = [str(one.get_default_value()) for one in found.all_fields]
    shown: list[list[Any]] = []
    for value in (names.get(str(int(value, 0)), "STREAM" if 8 <= int(value, 0) < 16 else value) for value in values):
        if shown and shown[-1][0] == value:
            shown[-1][1] += 1
        else:
            shown.append([value, 1])
    return ", ".join(name if times == 1 else f"{times} {name}" for name, times in shown)
