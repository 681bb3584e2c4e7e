"""A captured handshake, packet by packet, for looking: with pyshark, which reads a few hundred packets a second.

Nothing that is counted or drawn comes from here; see `quicbed.handshake` for that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from quicbed.report import Sheet
from quicbed.runs import RUN_FILE, RunsError
from quicbed.tshark import PACKAGE, TIMEOUT_S, TsharkError

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
        rows = list(_rows(Path(temporary) / CAPTURE, Path(temporary) / KEYS, packets))
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


def _rows(capture: Path, keys: Path, packets: int) -> Iterator[list[Any]]:
    begin: float | None = None
    count = 0
    # frames that have no row, as TCP's acknowledgements, are among them
    for frame in _frames(capture, keys, 3 * packets):
        time = float(frame.sniff_timestamp)
        begin = time if begin is None else begin
        transport = frame.udp if "UDP" in frame else frame.tcp
        sender = "server" if int(transport.srcport) == PORT else "client"
        for layer in frame.layers:
            if layer.layer_name not in ("quic", "tls"):
                continue
            if count == packets:
                return
            count += 1
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


def _frames(capture: Path, keys: Path, frames: int) -> Iterator[Any]:
    """The first frames of a capture as pyshark has them.

    Only its parser is used. It would run tshark through asyncio, which a notebook's kernel is in already, and kill it
    at the end of its output, which fails on a busy machine where tshark has ended between.
    """
    from pyshark.tshark.output_parser.tshark_xml import packet_from_xml_packet

    argv = [PACKAGE, "-r", str(capture), "-n", "-T", "pdml", "-c", str(frames), "-o", f"tls.keylog_file:{keys}"]
    argv += ["-d", f"udp.port=={PORT},quic", "-d", f"tcp.port=={PORT},tls"]
    try:
        # preferences of whoever runs this must not change what is found
        with tempfile.TemporaryDirectory(prefix="quicbed-look-") as preferences:
            environment = {**os.environ, "WIRESHARK_CONFIG_DIR": preferences}
            done = subprocess.run(
                argv, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
            )
    except FileNotFoundError:
        raise TsharkError(f"{PACKAGE} is not installed; run `make setup`") from None
    except subprocess.TimeoutExpired:
        raise TsharkError(f"{capture}: tshark is not done after {TIMEOUT_S:g} s; look at fewer packets") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise TsharkError(f"{capture}: tshark: {said[-1] if said else f'exit status {done.returncode}'}")
    for frame in re.findall(rb"<packet>.*?</packet>", done.stdout, re.DOTALL):
        yield packet_from_xml_packet(frame)


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
