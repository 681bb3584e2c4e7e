"""What the capture of a run tells: times of handshakes, and sizes of frames."""

from __future__ import annotations

import gzip
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Literal

import polars as pl

from quicbed.builds import kit
from quicbed.config.model import Link
from quicbed.measure.attempt import Attempt
from quicbed.measure.judge import ttfb_metrics
from quicbed.plan.spec import RunSpec
from quicbed.store.paths import CAPTURE, OPENINGS, PACING, PORT, RELEASES, TRACE
from quicbed.store.record import Pacing
from quicbed.testbed import Capture
from quicbed.wire import handshake, pacing, packets, proof, releases
from quicbed.wire.pcap import Capture as CaptureFile
from quicbed.wire.pcap import CaptureError

# Of each frame of a run that is captured besides, or traced: its headers.
CAPTURED_BYTES = 128
READER = "capture-reader"
"""The component that traces are read with."""
_FROM_CAPTURE = "capture: from the client's first Initial packet to its first 1-RTT packet"
# What neither the scripts of an external client tell nor a capture without secrets shows.
_UNKNOWN = {
    "client_cpu_ms": "the processor time of an external client is that of its whole program, not of a connection",
    "confirmed_ms": "an external client does not report when its handshake is confirmed",
    "first_byte_ms": "an external client does not report when content arrives",
}


def whole_frames(link: Link) -> int:
    """Bytes of a frame that hold all of it; with offloads several datagrams of a client make one."""
    return link.mtu + 100 if link.mode == "wire" else 2**16 + 100


def keep_trace(directory: Path) -> None:
    """Compress the run's capture, which has headers only and much alike."""
    with (directory / CAPTURE).open("rb") as plain, gzip.GzipFile(directory / TRACE, "wb", 6, mtime=0) as packed:
        shutil.copyfileobj(plain, packed, 2**20)


def measure_pacing(attempt: Attempt, directory: Path, program: Path, server: str) -> None:
    """Take gaps and trains of the server's packets from the run's trace; writes pacing.json.

    *program* reads captures (`quicbed.wire.packets`), *server* is the server's address. A trace whose times do not
    count contaminates the run, which is repeated.
    """
    capture = directory / CAPTURE
    try:
        with tempfile.TemporaryDirectory() as temporary:
            table = Path(temporary) / "packets.parquet"
            pacing.counted(capture, packets.read(program, capture, table, server=(server, PORT)))
            sent = pacing.server_packets(table)
    except (CaptureError, pacing.PacingError) as error:
        told = str(error).replace(str(table), CAPTURE)
        attempt.contamination.append(f"trace: {told}".replace(f"{directory}/", ""))
        return
    attempt.metrics |= pacing.metrics(sent)
    kept = pacing.distributions(sent).partition_by("quantity", as_dict=True)
    gaps, trains = (
        kept.get((quantity,), pl.DataFrame(schema=pacing.DISTRIBUTIONS)) for quantity in (pacing.GAPS, pacing.TRAINS)
    )
    values = {"gap_ns": gaps["value"].to_list(), "gaps": gaps["count"].to_list()}
    values |= {"train_packets": trains["value"].to_list(), "packets": trains["count"].to_list()}
    Pacing.made(values).write(directory / PACING)


def measure_precision(attempt: Attempt, spec: RunSpec, directory: Path, server: str) -> None:
    """Compare the gaps of the run's trace with those that the server's library meant, where the server notes them.

    What is wrong with what it notes costs this metric only, and is kept as the reason why it is not known.
    """
    library = spec.libraries["server"]
    try:
        if isinstance(library.supports.release_times, str):
            raise releases.ReleasesError(f"{library.title} {library.supports.release_times}")
        precision = releases.precision_us(directory / RELEASES, directory / CAPTURE, (server, PORT))
    except (releases.ReleasesError, CaptureError) as error:
        why = str(error).replace(f"{directory}/", "")
        attempt.evidence["unknown"] = {**attempt.evidence.get("unknown", {}), "pacing_precision_us": why}
        return
    attempt.metrics["pacing_precision_us"] = precision


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
        problem = resumption(directory, spec, server)
    except (handshake.HandshakeError, CaptureError, OSError) as error:
        attempt.fail(str(error).replace(f"{directory}/", ""))
        return
    kit.write_json(directory / OPENINGS, [one.model_dump() for one in seen])
    if len(seen) != spec.connections:
        attempt.fail(f"the capture holds {len(seen)} connections, {spec.connections} were asked for")
        return
    if problem is not None:
        attempt.fail(f"capture: {problem}")
        return
    attempt.evidence |= {"ttfb": _FROM_CAPTURE, "unknown": dict(_UNKNOWN)}
    ttfb_metrics(attempt, [one.ttfb_ms for one in seen])


def resumption(directory: Path, spec: RunSpec, server: str) -> str | None:
    """What is wrong with a run whose capture shows resumed connections; None if it shows none.

    *server* is the server's address; raises CaptureError.
    """
    transport: Literal["quic", "tcp"] = "quic" if spec.quic else "tcp"
    count = proof.resumed(directory / CAPTURE, server_ip=server, server_port=PORT, transport=transport)
    if not count:
        return None
    return (
        f"the ServerHello takes a pre-shared key on {count} connections: the scripts have kept a ticket of an earlier "
        "one; start the program without a store of tickets"
    )


def measure_frames(attempt: Attempt, directory: Path, server: str) -> None:
    """Take the mean size of the frames of each direction from the run's capture; *server* is the server's address."""
    sizes: dict[str, list[int]] = {"client": [], "server": []}
    try:
        for packet in CaptureFile(directory / CAPTURE).packets():
            if (packet.source, packet.source_port) == (server, PORT):
                sizes["server"].append(packet.ethernet_bytes)
            elif (packet.destination, packet.destination_port) == (server, PORT):
                sizes["client"].append(packet.ethernet_bytes)
    except CaptureError as error:
        attempt.fail(f"capture: {error}".replace(f"{directory}/", ""))
        return
    for role, found in sizes.items():
        if found:
            attempt.metrics[f"{role}_mean_frame_bytes"] = round(statistics.fmean(found), 1)
