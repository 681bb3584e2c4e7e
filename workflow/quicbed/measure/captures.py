"""What the capture of a run tells: times of handshakes, and sizes of frames."""

from __future__ import annotations

import statistics
from pathlib import Path

from quicbed.builds import kit
from quicbed.config.model import Link
from quicbed.measure.attempt import Attempt
from quicbed.measure.judge import ttfb_metrics
from quicbed.measure.program import PORT
from quicbed.plan.spec import RunSpec
from quicbed.store.details import OPENINGS
from quicbed.store.paths import CAPTURE
from quicbed.testbed import Capture
from quicbed.wire import handshake
from quicbed.wire.pcap import Capture as CaptureFile
from quicbed.wire.pcap import CaptureError

# Of each frame of a run that is captured besides: its headers.
CAPTURED_BYTES = 128
_FROM_CAPTURE = "capture: from the client's first Initial packet to its first 1-RTT packet"
# What neither the scripts of an external client tell nor a capture without secrets shows.
_UNKNOWN = {
    "client_cpu_ms": "the processor time of an external client is that of its whole program, not of a connection",
    "confirmed_ms": "an external client does not tell when its handshake is confirmed",
    "first_byte_ms": "an external client does not tell when content arrives",
}


def whole_frames(link: Link) -> int:
    """Bytes of a frame that hold all of it; with offloads several datagrams of a client make one."""
    return link.mtu + 100 if link.mode == "wire" else 2**16 + 100


def lost_packets(captured: Capture) -> str:
    """What a capture lacks."""
    by = "" if captured.packets_dropped else ", as client and server have sent more"
    return f"the capture lost {captured.packets_lost} packets{by}"


def observe(attempt: Attempt, spec: RunSpec, directory: Path, server: str) -> None:
    """Take the times of handshakes from the run's capture; writes openings.json.

    One object (`quicbed.wire.handshake.Opening`) a connection. *server* is the server's address.
    """
    try:
        seen = handshake.openings(directory / CAPTURE, server_ip=server, server_port=PORT)
    except (handshake.HandshakeError, OSError) as error:
        attempt.fail(str(error).replace(f"{directory}/", ""))
        return
    kit.write_json(directory / OPENINGS, [one.model_dump() for one in seen])
    if len(seen) != spec.connections:
        attempt.fail(f"the capture holds {len(seen)} connections, {spec.connections} were asked for")
        return
    attempt.evidence |= {"ttfb": _FROM_CAPTURE, "unknown": dict(_UNKNOWN)}
    ttfb_metrics(attempt, [one.ttfb_ms for one in seen])


def measure_frames(attempt: Attempt, directory: Path, server: str) -> None:
    """Take the mean size of the frames of each direction from the run's capture; *server* is the server's address."""
    sizes: dict[str, list[int]] = {"client": [], "server": []}
    try:
        for packet in CaptureFile(directory / CAPTURE).packets():
            if (packet.source, packet.source_port) == (server, PORT):
                sizes["server"].append(packet.frame.wire_bytes)
            elif (packet.destination, packet.destination_port) == (server, PORT):
                sizes["client"].append(packet.frame.wire_bytes)
    except CaptureError as error:
        attempt.fail(f"capture: {error}".replace(f"{directory}/", ""))
        return
    for role, found in sizes.items():
        if found:
            attempt.metrics[f"{role}_mean_frame_bytes"] = round(statistics.fmean(found), 1)
