"""A captured handshake, packet by packet, for looking: with pyshark, which reads a few hundred packets a second.

Of the reference data what is shown is shipped beside each archive, so that it needs no tshark. Nothing that is counted
or drawn comes from here; see `quicbed.wire.handshake` for that.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from quicbed.base import durable, untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.figures.sheets import Sheet
from quicbed.store import walk
from quicbed.store.paths import CAPTURE, KEYS, PORT, RUN_FILE, archives_below, directories, without_suffix
from quicbed.store.record import Run, RunsError
from quicbed.wire import handshake as handshakes
from quicbed.wire import tshark
from quicbed.wire.pcap import Capture, CaptureError
from quicbed.wire.tshark import TsharkError

PACKETS = 40
"""As many are shipped of each handshake, and shown unless another number is asked for."""
PACKETS_SUFFIX = ".packets.jsonl"
"""In place of an archive's `.tar.xz`: the file beside it with the packets of its handshakes."""
TIMEOUT_S = 60.0
"""For the few frames that are shown."""
HEADERS = ["packet", "ms", "from", "datagram [B]", "level", "number", "frames", "TLS messages"]

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
_MESSAGES = {
    "1": "ClientHello",
    "2": "ServerHello",
    "4": "NewSessionTicket",
    "8": "EncryptedExtensions",
    "11": "Certificate",
    "15": "CertificateVerify",
    "20": "Finished",
}


class Handshake(NamedTuple):
    """What somebody asks to be shown."""

    library: str
    group: str
    signature: str


def handshake(raw: Path, *, library: str, group: str, signature: str, packets: int = PACKETS) -> Sheet:
    """The first *packets* QUIC packets of a captured series of handshakes, decrypted with its key log.

    The capture is that of the cell's proof below *raw*, in an archive or not. What `write` has shipped with an archive
    needs no tshark. Without a capture, and where tshark is missing or fails, the sheet says so in one line.
    """
    wanted = Handshake(library, group, signature)
    what = f"{library} with {group} and {signature}"
    if not raw.is_dir():
        raise RunsError(f"{raw}: no such directory of runs; measure first or name another")
    archives = archives_below(raw)
    with tempfile.TemporaryDirectory(prefix="quicbed-look-") as temporary:
        target = Path(temporary)
        try:
            if not _unpacked(raw, target, wanted):
                if packets <= PACKETS:
                    for archive in archives:
                        if (shipped := _shipped(archive, wanted)) is not None:
                            return _sheet(shipped[:packets])
                if not any(_from_archive(archive, target, wanted) for archive in archives):
                    return Sheet(["not here"], [[f"no capture of {what} below {raw.name}"]])
            return _sheet(list(_rows(target / CAPTURE, target / KEYS, packets)))
        except TsharkError as error:
            reason = str(error).replace(f"{temporary}/", "")
            return Sheet(["not shown"], [[f"the first {packets} packets of a handshake of {what}: {reason}"]])


def write(archive: Path) -> Path | None:
    """Write beside an archive of runs what `handshake` shows of the captures in it; returns the file, None without one.

    The file is JSON Lines, the same bytes for the same archive and tshark: the first line names both, every other one
    has a handshake with the SHA-256 of its capture. Raises TsharkError where tshark is missing or fails, and RunsError
    for a capture that cannot be read.
    """
    file = _beside(archive)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="quicbed-look-") as temporary:
        target = Path(temporary)
        for run, one in sorted(_handshakes(archive).items(), key=lambda item: (item[1], item[0])):
            if lines and all(lines[-1][name] == value for name, value in one._asdict().items()):
                continue  # `handshake` shows the first
            if not _extract(archive, run, target):
                raise RunsError(f"{archive}!{run}: {CAPTURE} or {KEYS} cannot be read")
            content = (target / CAPTURE).read_bytes()
            try:
                rows = list(_rows(target / CAPTURE, target / KEYS, PACKETS))
            except TsharkError as error:
                raise TsharkError(str(error).replace(temporary, f"{archive}!{run}")) from None
            lines.append(
                {
                    **one._asdict(),
                    "run": run,
                    "capture_bytes": len(content),
                    "capture_sha256": hashlib.sha256(content).hexdigest(),
                    "packets": rows,
                }
            )
    if not lines:
        file.unlink(missing_ok=True)
        return None
    head = {"archive": archive.name, "archive_sha256": _sha256(archive), "columns": HEADERS, "tshark": tshark.version()}
    text = "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in [head, *lines])
    durable.write_text(file, text)
    return file


def _beside(archive: Path) -> Path:
    return archive.with_name(without_suffix(archive.name) + PACKETS_SUFFIX)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _shipped(archive: Path, wanted: Handshake) -> list[list[Any]] | None:
    """What was shipped with an archive of a handshake; None where nothing was, or it was made of another archive."""
    try:
        head, *lines = map(untrusted.parse, untrusted.read(_beside(archive)).splitlines())
        for line in lines:
            if all(line[name] == value for name, value in wanted._asdict().items()):
                whole = head["columns"] == HEADERS and head["archive_sha256"] == _sha256(archive)
                return [list(row) for row in line["packets"]] if whole else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return None


def _sheet(rows: list[list[Any]]) -> Sheet:
    return Sheet(HEADERS, rows, frozenset({0, 1, 3, 5}))


def _shown(content: bytes | UntrustedError) -> Handshake | None:
    """The handshake that a run.json is of; None if it is none that is shown, or not whole."""
    # most runs are none of these, which a look at the text tells sooner
    if isinstance(content, UntrustedError) or b'"handshake"' not in content or b'"proof"' not in content:
        return None
    try:
        run = Run.parse(content)
    except RunsError:
        return None
    variant, library = run.variant, run.client.library
    plain = not variant.retry and not variant.rtt_ms and variant.initial_size in (None, 1200)
    if run.status != "ok" or run.cell.arm != "proof" or run.workload.kind != "handshake" or not plain:
        return None
    return Handshake(library, str(variant.group), str(variant.signature)) if library == run.server.library else None


def _unpacked(raw: Path, target: Path, wanted: Handshake) -> bool:
    """Copy capture and key log of the handshake to *target*, if they are in a directory below *raw*."""
    for path, files in directories(raw):
        whole = {RUN_FILE, CAPTURE, KEYS} <= set(files) and _shown(walk.content(path / RUN_FILE)) == wanted
        if whole and _copied({name: walk.content(path / name) for name in (CAPTURE, KEYS)}, target):
            return True
    return False


def _handshakes(archive: Path) -> dict[str, Handshake]:
    """Directories of an archive with the capture and key log of a handshake; none of one that is damaged."""
    names: set[str] = set()

    def wanted(path: PurePosixPath) -> bool:
        names.add(str(path))
        return path.name == RUN_FILE

    found = {}
    try:
        for path, content in untrusted.packed(archive, wanted):
            if (one := _shown(content)) is not None:
                found[str(PurePosixPath(path).parent)] = one
    except UntrustedError:
        return {}
    return {
        place: found[place] for place in walk.own(found.keys()) if {f"{place}/{CAPTURE}", f"{place}/{KEYS}"} <= names
    }


def _extract(archive: Path, place: str, target: Path) -> bool:
    """Copy capture and key log of a run in an archive to *target*; False if one cannot be read."""
    names = {f"{place}/{name}" for name in (CAPTURE, KEYS)}
    packed = untrusted.packed(archive, lambda path: str(path) in names)
    return _copied({PurePosixPath(path).name: content for path, content in packed}, target)


def _from_archive(archive: Path, target: Path, wanted: Handshake) -> bool:
    """As `_unpacked` of an archive."""
    return any(_extract(archive, place, target) for place, one in _handshakes(archive).items() if one == wanted)


def _copied(found: Mapping[str, bytes | UntrustedError], target: Path) -> bool:
    """Copy capture and key log to *target*; False if one is missing or cannot be read."""
    for name in (CAPTURE, KEYS):
        content = found.get(name)
        if content is None or isinstance(content, UntrustedError):
            return False
        (target / name).write_bytes(content)
    return True


def _rows(capture: Path, keys: Path, packets: int) -> Iterator[list[Any]]:
    begin: float | None = None
    count = 0
    # frames that have no row, as TCP's acknowledgements, are among them
    frames = list(_frames(capture, keys, 3 * packets))
    levels = _levels(capture)
    for frame in frames:
        time = float(frame.sniff_timestamp)
        begin = time if begin is None else begin
        if "UDP" not in frame and "TCP" not in frame:
            continue  # ARP, for one
        transport = frame.udp if "UDP" in frame else frame.tcp
        sender = "server" if int(transport.srcport) == PORT else "client"
        layers = [layer for layer in frame.layers if layer.layer_name in ("quic", "tls")]
        # tshark takes padding behind the last packet of a datagram for one
        of_frame = levels.get(int(frame.number), []) if "UDP" in frame else ["TLS"] * len(layers)
        for layer, level in zip(layers, of_frame, strict=False):
            if count == packets:
                return
            count += 1
            yield [
                count,
                f"{1e3 * (time - begin):.3f}",
                sender,
                int(transport.length) - 8 if "UDP" in frame else int(transport.len),
                level,
                str(getattr(layer, "packet_number", "")) or None,
                _names(layer, "frame_type", _FRAMES),
                _names(layer, "tls_handshake_type" if layer.layer_name == "quic" else "handshake_type", _MESSAGES),
            ]


def _levels(capture: Path) -> dict[int, list[str]]:
    """Levels of the QUIC packets in every frame of a capture, by its number as tshark counts."""
    try:
        packets = [packet for packet in Capture(capture, allow_truncated=True).packets() if packet.protocol == "udp"]
    except CaptureError as error:
        raise TsharkError(str(error)) from None
    servers: dict[tuple[str, int], None] = {}
    for packet in packets:
        for end in ((packet.source, packet.source_port), (packet.destination, packet.destination_port)):
            if end[1] == PORT:
                servers[end] = None
    return {
        unit.frame + 1: [piece.packet.type.value for piece in unit.pieces]
        for server in servers
        for connection in handshakes.quic_connections(
            [
                one
                for one in packets
                if server in ((one.source, one.source_port), (one.destination, one.destination_port))
            ],
            server,
        )
        for unit in connection.units
    }


def _frames(capture: Path, keys: Path, frames: int) -> Iterator[Any]:
    """The first frames of a capture as pyshark has them.

    Only its parser is used. It would run tshark through asyncio, which a notebook's kernel is in already, and kill it
    at the end of its output, which fails on a busy machine where tshark has ended between.
    """
    from pyshark.tshark.output_parser.tshark_xml import packet_from_xml_packet

    if (missing := tshark.problem()) is not None:
        raise TsharkError(missing)
    argv = ["tshark", "-r", str(capture), "-n", "-T", "pdml", "-c", str(frames), "-o", f"tls.keylog_file:{keys}"]
    argv += ["-d", f"udp.port=={PORT},quic", "-d", f"tcp.port=={PORT},tls"]
    said = tshark.run(argv, capture, TIMEOUT_S, "look at fewer packets")
    found = re.findall(rb"<packet>.*?</packet>", said, re.DOTALL)
    if not found:
        raise TsharkError(f"{capture}: tshark finds no packet in it")
    try:
        for frame in found:
            yield packet_from_xml_packet(frame)
    except (SyntaxError, ValueError, LookupError, AttributeError):
        raise TsharkError(f"{capture}: tshark did not write PDML; version 4.0 of it is known to work") from None


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
