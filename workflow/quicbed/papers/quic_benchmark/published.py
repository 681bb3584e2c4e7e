"""Samples of "quic-benchmark", a university project of 2021: QUIC (draft 27) against TCP with TLS.

``samples/samples_threshold<T>_dev<D>_delay<ms>/<quic|tcp>/<host>/<time>/`` holds one repetition: ``ping.json`` (pings
before it), ``<quic|tcp>-benchmark-{client,server}.json`` (events), ``<quic|tcp>.pcap`` and ``ssl-keys.log``;
``nginx-measurements/<n>-run/{quic,tcp}.pcap`` has captures only.

``phases.parquet`` has two rows a repetition, and none of one that is no result. From the *events* of the server, whose
clock is the only one used:

* handshake: `handshakeDurationInNs`, text in some files and a number in others; else `session` to `secure`;
* first byte, from the start of the handshake: the handshake and `secure` to `data`;
* transfer: `data` to `streamEnd`; close: `streamEnd` to `socketClose`.

From the *capture*, by the clock of the host that captured:

* handshake: the ClientHello to the client's first 1-RTT packet (QUIC), or to the client's first protected TLS record,
  its Finished (TCP). What the server logs begins there too; the handshake of TCP before it is in neither;
* first byte: the ClientHello to the first packet with content in either direction, a STREAM frame (QUIC, with the key
  log) or a protected record after those of the handshake (TCP);
* transfer: the first to the last packet with content; close: the last packet with content to the last packet.

``packets.parquet`` has the packets of the first connection of every such capture, with their bytes by layer; without a
key log most are opaque.

Durations are whole: not without their full seconds, and one of zero is one of zero.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quicbed.base import untrusted
from quicbed.importers import pcapng, tables
from quicbed.importers.files import MOST_BYTES, MOST_RECORDED, Entry, content_of, entries
from quicbed.importers.logs import ParseError, parse_object, text_of
from quicbed.importers.summary import Summary
from quicbed.store import runs
from quicbed.wire import layers, tshark
from quicbed.wire.handshake import quic_connections
from quicbed.wire.pcap import TCP_SYN, Capture, CaptureError, Packet
from quicbed.wire.quicwire import PacketType, WireError, parse_datagram
from quicbed.wire.tshark import TsharkError

SOURCE = "quic-benchmark"
OK = "ok"
NGINX = "nginx-measurements"
LAYOUT = "samples_threshold<T>_dev<D>_delay<ms>/<quic|tcp>/<host>/<time>/ or nginx-measurements/<n>-run/"
BASES = ("events", "capture")

_SAMPLE = re.compile(
    r"(?:^|/)(?P<experiment>samples_threshold[\d.]+_dev[\d.]+_delay(?P<delay>\d{1,9}(?:\.\d{1,9})?))/(?P<transport>quic|tcp)/"
    r"(?P<host>[^/]+)/(?P<time>[^/]+)/(?P<file>[^/]+)$"
)
_NGINX = re.compile(
    r"(?:^|/)(?P<experiment>nginx-measurements)/(?P<run>(?P<number>\d{1,9})[a-z]*-run)/(?P<file>[^/]+)$"
)
PHASES = ("handshake_ms", "first_byte_ms", "transfer_ms", "close_ms")
_EVENT_FILE = re.compile(r"^(?:quic|tcp)-benchmark-(client|server)\.json$")
_NS_PER_MS = 1e6
LARGEST = 1e18
"""ns or ms that no sample took."""

# RFC 8446, 5.1 and 5.2; RFC 9000, 19.8
_APPLICATION_DATA = 23
_ALERT_RECORD_BYTES = 2 + 1 + 16
_STREAM_FRAMES = range(0x08, 0x10)

# RFC 9000, 17.2
_LONG_HEADER = 0x80


@dataclass
class _Sample:
    """One repetition."""

    experiment: str
    transport: str
    delay_ms: float | None
    host: str | None
    order: str
    """What repetitions of one experiment are numbered by."""
    ping: dict[str, Any] | None = None
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By role."""
    capture: bytes | None = None
    key_log: str | None = None
    damaged: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)


def read(copy: Path, out: Path, summary: Summary) -> None:
    """Import a copy of the samples; see `quicbed.papers.reading.read`."""
    samples: dict[str, _Sample] = {}
    for entry in entries(copy, summary):
        _take(entry, samples, summary)
    if not samples:
        return
    rows: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    packets: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    counted: dict[tuple[str, str], int] = {}
    for origin, sample in sorted(samples.items(), key=lambda item: (item[1].experiment, item[1].order, item[0])):
        _tell_missing(sample, origin, summary)
        key = (sample.experiment, sample.transport)
        number = counted[key] = counted.get(key, 0) + 1
        identity: dict[str, Any] = {"origin": origin, "experiment": sample.experiment, "transport": sample.transport}
        identity |= {"source": SOURCE, "repetition": number}
        by_events = _from_events(sample)
        status, reason = _status(sample, by_events)
        if status == OK:
            by_capture, seen = _from_capture(sample, origin, summary)
            packets += [identity | row for row in seen]
            found = [by_events, by_capture]
            phases += [identity | {"basis": basis} | times for basis, times in zip(BASES, found, strict=True) if times]
        events += _events(sample, origin)
        times = by_events if status == OK else None
        rows.append(_row(sample, origin, number, times, summary, status=status, reason=reason))
    tables.write_runs(rows, out, summary)
    order = ["experiment", "transport", "repetition", "basis", "origin"]
    tables.write(tables.frame(phases, tables.PHASES, order), out, "phases", summary)
    order = ["experiment", "transport", "repetition", "origin", "packet"]
    tables.write(tables.frame(packets, tables.PACKETS, order), out, "packets", summary)
    tables.write(tables.frame(events, tables.EVENTS, ["origin", "role", "time", "event"]), out, "events", summary)


def _take(entry: Entry, samples: dict[str, _Sample], summary: Summary) -> None:
    place = _SAMPLE.search(entry.path) or _NGINX.search(entry.path)
    if place is None:
        summary.skip(f"not part of a sample ({LAYOUT})", entry.path)
        return
    file, found = place["file"], place.groupdict()
    directory = entry.path.rpartition("/")[0]
    if "transport" in found:
        origin, transport, order = directory, found["transport"], found["time"]
    elif file in ("quic.pcap", "tcp.pcap"):
        transport = file.removesuffix(".pcap")
        origin, order = f"{directory}/{transport}", f"{int(found['number']):06}"
    else:
        summary.skip("made from a capture, which is read instead", entry.path)
        return
    if not (file in ("ping.json", "ssl-keys.log", f"{transport}.pcap") or _EVENT_FILE.match(file)):
        summary.skip("made from a capture, which is read instead", entry.path)
        return
    data = content_of(entry, summary, MOST_RECORDED if file.endswith(".pcap") else MOST_BYTES)
    if data is None:
        return
    delay = found.get("delay")
    sample = samples.setdefault(
        origin, _Sample(found["experiment"], transport, float(delay) if delay else None, found.get("host"), order)
    )
    if file in sample.taken:
        sample.damaged.append(f"{file}: is there twice")
        summary.skip(f"{file}: is there twice", entry.path)
        return
    sample.taken.add(file)
    if file.endswith(".pcap"):
        sample.capture = data
    else:
        try:
            if file == "ssl-keys.log":
                sample.key_log = text_of(data)
                return
            document = parse_object(data)
        except ParseError as error:
            sample.damaged.append(f"{file}: {error}")
            summary.skip(f"{file}: {error}", entry.path)
            return
        if events := _EVENT_FILE.match(file):
            sample.events[events[1]] = document
        else:
            sample.ping = document


def _tell_missing(sample: _Sample, origin: str, summary: Summary) -> None:
    """Tell which files of a sample are not in the copy, and what is null without them."""
    if sample.experiment == NGINX:
        return  # captures are all there is of these
    transport = sample.transport
    costs: dict[str, tuple[object, str]] = {
        "ping.json": (sample.ping, "network conditions are null"),
        f"{transport}-benchmark-server.json": (sample.events.get("server"), "the repetition has no times by events"),
        f"{transport}-benchmark-client.json": (sample.events.get("client"), "whether the client failed is not known"),
        f"{transport}.pcap": (sample.capture, "there are no times by the capture"),
    }
    if transport == "quic" and sample.capture is not None:
        costs["ssl-keys.log"] = (sample.key_log, "the capture does not show first byte and transfer")
    for file, (found, cost) in costs.items():
        if found is None and not any(told.startswith(f"{file}:") for told in sample.damaged):
            summary.skip(f"sample without {file}: {cost}", origin)


# ---- the row ---------------------------------------------------------------------------------------------------------


def _status(sample: _Sample, times: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """What became of a repetition whose *times* by events are these, and why it is no result."""
    client = sample.events.get("client", {})
    if sample.damaged:
        return runs.UNREADABLE, "; ".join(sample.damaged)
    if client.get("error"):
        return "failed", untrusted.shown(client["error"])
    if sample.experiment != NGINX and times is None:
        return runs.UNREADABLE, "no events of the server"
    if wrong := [name for name in PHASES if times and (times[name] or 0) < 0]:
        return runs.UNREADABLE, f"by the events of the server {wrong[0]} is negative"
    return OK, None


def _row(
    sample: _Sample,
    origin: str,
    number: int,
    times: Mapping[str, Any] | None,
    summary: Summary,
    *,
    status: str,
    reason: str | None,
) -> dict[str, Any]:
    client = sample.events.get("client", {})
    ping = _ping(sample, origin, summary)
    return tables.run(
        SOURCE,
        origin,
        status,
        reason=reason,
        experiment=sample.experiment,
        campaign=sample.experiment,
        scale="published",
        label=sample.transport,
        slug=f"{sample.experiment}-{sample.transport}",
        cell=f"{sample.experiment} {sample.transport}",
        library=sample.transport,
        client_library=sample.transport,
        server_library=sample.transport,
        testbed=sample.host,
        repetition=number,
        block=number,
        workload="message",
        connections=1,
        rtt_ms=sample.delay_ms,
        ttfb_ms=times["handshake_ms"] if times else None,
        first_byte_ms=times["first_byte_ms"] if times else None,
        started_at=_moment(client.get("ready")),
        **ping,
    )


def _ping(sample: _Sample, origin: str, summary: Summary) -> dict[str, float | None]:
    """Network conditions right before the repetition; the limits are those applied, not those in the folder's name."""
    ping = sample.ping
    if ping is None:
        return {}
    statistics = ping.get("rtt_statistics")

    def time(found: Any) -> float | None:
        number = _number(found)
        if found is not None and (number is None or number < 0):
            summary.differ("ping.json has a time that is none, as a negative one; it is null", origin)
            return None
        return number

    def value(name: str) -> float | None:
        found = statistics.get(name) if isinstance(statistics, dict) else None
        return time(found.get("value")) if isinstance(found, dict) else None

    mean = value("avg")
    threshold, delay = time(ping.get("benchmark threshold")), time(ping.get("benchmark delay"))
    if delay is not None and sample.delay_ms is not None and delay != sample.delay_ms:
        summary.differ("ping.json has another delay than the folder's name, which counts", origin)
    if mean is not None and threshold is not None and mean > threshold:
        summary.differ("the mean RTT of the pings is above the threshold; the repetition counts", origin)
    return {"rtt_mean_ms": mean, "rtt_deviation_ms": value("mdev"), "rtt_threshold_ms": threshold}


def _number(value: Any) -> float | None:
    """A number, or a text that is one: the files have both."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if abs(found) < LARGEST else None


def _moment(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None


# ---- events ----------------------------------------------------------------------------------------------------------


def _server_events(sample: _Sample) -> dict[str, datetime]:
    events = sample.events.get("server", {}).get("events")
    found = {name: _moment(time) for name, time in events.items()} if isinstance(events, dict) else {}
    return {name: time for name, time in found.items() if time is not None}


def _from_events(sample: _Sample) -> dict[str, Any] | None:
    """Times by the server's events; None without them."""
    events = _server_events(sample)
    if not events:
        return None

    def between(first: str, second: str) -> float | None:
        if first not in events or second not in events:
            return None
        return (events[second] - events[first]).total_seconds() * 1e3

    durations = sample.events["server"].get("durations")
    logged = _number(durations.get("handshakeDurationInNs")) if isinstance(durations, dict) else None
    handshake = logged / _NS_PER_MS if logged is not None else between("session", "secure")
    until_data = between("secure", "data")
    missing = [name for name in ("secure", "data", "streamEnd", "socketClose") if name not in events]
    return {
        "handshake_ms": handshake,
        "first_byte_ms": handshake + until_data if handshake is not None and until_data is not None else None,
        "transfer_ms": between("data", "streamEnd"),
        "close_ms": between("streamEnd", "socketClose"),
        "problem": f"the server logged no {', '.join(missing)}" if missing else None,
    }


def _events(sample: _Sample, origin: str) -> list[dict[str, Any]]:
    """Rows of ``events.parquet``."""
    client = sample.events.get("client", {})
    found = {"client": {name: _moment(value) for name, value in client.items() if name != "error"}}
    found["server"] = dict(_server_events(sample))
    return [
        {"source": SOURCE, "origin": origin, "role": role, "event": name, "time": time}
        for role, events in found.items()
        for name, time in events.items()
        if time is not None
    ]


# ---- captures --------------------------------------------------------------------------------------------------------


Rows = list[dict[str, Any]]


def _from_capture(sample: _Sample, origin: str, summary: Summary) -> tuple[dict[str, Any] | None, Rows]:
    """Times by the capture and rows of its packets; None and no rows without one that can be read."""
    if sample.capture is None:
        return None, []
    with tempfile.TemporaryDirectory(prefix="quicbed-import-") as directory:
        file = Path(directory) / "capture.pcap"
        try:
            # whatever the name says, the published captures are in the newer format
            is_new = sample.capture.startswith(pcapng.MAGIC)
            file.write_bytes(pcapng.to_pcap(sample.capture) if is_new else sample.capture)
            capture = Capture(file, allow_truncated=True)
            packets = [packet for packet in capture.packets() if packet.protocol == _PROTOCOL[sample.transport]]
            # files may have been joined in another order
            packets.sort(key=lambda packet: packet.frame.time_ns)
        except (CaptureError, pcapng.PcapngError) as error:
            summary.skip(f"capture: {str(error).removeprefix(f'{file}: ')}", origin)
            return None, []
        if capture.truncation:
            summary.differ("capture that ends within a frame; the frames before it count", origin)
        connection = _connection(packets)
        if not connection:
            summary.skip(f"capture without a {sample.transport} connection", origin)
            return None, []
        keys = None
        if sample.key_log is not None:
            keys = Path(directory) / "keys.log"
            keys.write_text(sample.key_log, encoding="utf-8", errors="replace")
        quic = sample.transport == "quic"
        moments = _quic_moments(connection, keys) if quic else _tcp_moments(connection)
        return _times(connection, *moments), _by_layer(connection, keys, origin, summary)


def _by_layer(connection: list[Packet], keys: Path | None, origin: str, summary: Summary) -> Rows:
    """Rows of the packets of a connection; none if their bytes cannot be told."""
    try:
        secrets = {} if keys is None else tshark.read_key_log(keys)
        server = connection[0].destination, connection[0].destination_port
        found = layers.connections(connection, server, secrets)
    except (CaptureError, TsharkError) as error:
        summary.skip(f"packets by layer: {str(error).replace(str(keys), 'key log')}", origin)
        return []
    return found[0].rows() if found else []


_PROTOCOL = {"quic": "udp", "tcp": "tcp"}
Endpoint = tuple[str, int]


def _connection(packets: list[Packet]) -> list[Packet]:
    """The packets of the first connection, which begins with the client's."""
    for index, first in enumerate(packets):
        if first.protocol == "tcp" and not first.flags & TCP_SYN:
            continue
        ends = {(first.source, first.source_port), (first.destination, first.destination_port)}
        return [p for p in packets[index:] if {(p.source, p.source_port), (p.destination, p.destination_port)} == ends]
    return []


def _times(connection: list[Packet], handshake: int | None, contents: list[int], problem: str | None) -> dict[str, Any]:
    """Times in ms from the moments, ns, of the end of the handshake and of every packet with content."""
    client = (connection[0].source, connection[0].source_port)
    # the first packet with a payload has the ClientHello: over TCP the first one opens the connection
    hello = (
        packet.frame.time_ns
        for packet in connection
        if (packet.source, packet.source_port) == client and packet.payload_bytes
    )
    start, end = next(hello, None), connection[-1].frame.time_ns
    sent: dict[bool, list[int]] = {True: [], False: []}
    for packet in connection:
        sent[(packet.source, packet.source_port) == client].append(packet.frame.wire_bytes)
    return {
        "handshake_ms": (handshake - start) / _NS_PER_MS if start is not None and handshake is not None else None,
        "first_byte_ms": (contents[0] - start) / _NS_PER_MS if start is not None and contents else None,
        "transfer_ms": (contents[-1] - contents[0]) / _NS_PER_MS if contents else None,
        "close_ms": (end - contents[-1]) / _NS_PER_MS if contents else None,
        "client_packets": len(sent[True]),
        "server_packets": len(sent[False]),
        "client_bytes": sum(sent[True]),
        "server_bytes": sum(sent[False]),
        "problem": problem,
    }


def _quic_moments(connection: list[Packet], keys: Path | None) -> tuple[int | None, list[int], str | None]:
    """End of the handshake, packets with STREAM frames, and why they are not known."""
    client: Endpoint = (connection[0].source, connection[0].source_port)
    of_client = (packet for packet in connection if (packet.source, packet.source_port) == client)
    handshake = next((packet.frame.time_ns for packet in of_client if _has_one_rtt(packet.payload)), None)
    if keys is None:
        return handshake, [], "no key log, without which content cannot be distinguished from the rest"
    try:
        secrets = tshark.read_key_log(keys)
    except TsharkError as error:
        return handshake, [], str(error).replace(str(keys), "key log")
    contents = [
        unit.time_ns
        for one in quic_connections(connection, (connection[0].destination, connection[0].destination_port))
        for unit, opened in zip(one.units, one.open(secrets).packets, strict=True)
        if any(frame.type in _STREAM_FRAMES for packet in opened for frame in packet.frames or ())
    ]
    return handshake, contents, None if contents else "no STREAM frame could be decrypted with the key log"


def _has_one_rtt(payload: bytes) -> bool:
    """Whether a datagram has a packet with a short header; what follows the packets may be padding."""
    if payload and not payload[0] & _LONG_HEADER:
        return any(payload)
    try:
        found = parse_datagram(payload)
    except WireError:
        return False
    return any(packet.type is PacketType.ONE_RTT for packet in found.packets)


def _tcp_moments(connection: list[Packet]) -> tuple[int | None, list[int], str | None]:
    """End of the handshake, segments that complete a record with content, and why they are not known.

    The first protected record of the client is its Finished. The server's before that belong to the handshake, and a
    protected alert has a length of its own. Session tickets of the server cannot be told from content.
    """
    client: Endpoint = (connection[0].source, connection[0].source_port)
    streams: dict[bool, _Stream] = {True: _Stream(), False: _Stream()}
    handshake: int | None = None
    contents = []
    for packet in connection:
        of_client = (packet.source, packet.source_port) == client
        for kind, length in streams[of_client].take(packet):
            if kind != _APPLICATION_DATA:
                continue
            if of_client and handshake is None:
                handshake = packet.frame.time_ns
            elif handshake is not None and length != _ALERT_RECORD_BYTES:
                contents.append(packet.frame.time_ns)
    if any(stream.lost for stream in streams.values()):
        problem = "segments are missing from the capture or out of order; records after them are not known"
        return handshake, contents, problem
    return handshake, contents, None if contents else "no protected record after the handshake"


class _Stream:
    """TLS records of one direction; bytes that come again are passed over."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.rest = b""
        self.lost = False

    def take(self, packet: Packet) -> list[tuple[int, int]]:
        """Content type and length of the records that a segment completes."""
        if packet.flags & TCP_SYN:
            self.next = (packet.sequence + 1) % 2**32
            return []
        if not packet.payload_bytes or self.lost:
            return []
        if self.next is None:
            self.next = packet.sequence
        ahead = (packet.sequence - self.next + 2**31) % 2**32 - 2**31
        if ahead > 0 or packet.cut:
            self.lost = True
            return []
        new = packet.payload[-ahead:] if ahead else packet.payload
        self.next = (self.next + len(new)) % 2**32
        self.rest += new
        found = []
        data, at = self.rest, 0
        while len(data) >= at + 5 and len(data) >= at + 5 + (length := int.from_bytes(data[at + 3 : at + 5], "big")):
            found.append((data[at], length))
            at += 5 + length
        self.rest = data[at:]
        return found
