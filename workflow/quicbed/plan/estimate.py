"""Estimates of time, disk and traffic of builds and experiments."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from quicbed.config.model import Estimate, Experiment, Project, Scale
from quicbed.plan import march
from quicbed.plan.arms import BESIDE, CAPTURED, PRIMITIVES
from quicbed.plan.cells import (
    GOODPUT_BITS,
    PROOF_CONNECTIONS,
    PROOF_SLOW_CONNECTIONS,
    SLOW_GOODPUT_BITS,
    Cell,
    as_proven,
    builds_needed,
    cells_of,
    link_of,
)
from quicbed.plan.sizing import with_start, without_start
from quicbed.plan.spec import HOLD_S
from quicbed.plan.variant import Variant

# Rough figures behind the estimates, on two cores: what a run costs beyond its transfer.
RUN_SECONDS = 0.1
# Two runs at the same time: both servers share a processor, and both clients; what starting, holding and stopping cost.
PAIR_SECONDS = 0.3
# The start of an external program that reports no times, which is within the goodput of its downloads.
START_SECONDS = 0.05
# And one whose client is a browser, which is started and waits for the largest contentful paint.
BROWSER_SECONDS = 2.5
PLAYED_AND_COMPARED = 1.1
# Of a link that loses packets (Mathis, Semke, Mahdavi, Ott: The Macroscopic Behavior of the TCP Congestion Avoidance
# Algorithm, 1997), which CUBIC exceeds; round trips until a link is full; and giving a link what a cell asks for.
PACKET_BITS = 1472 * 8
LOSS_CONSTANT = 1.22
SLOW_START_ROUND_TRIPS = 10
CHANGE_SECONDS = 0.4
# Where the fastest cell of two libraries is to take so long (`least_s`), of the others, a mean over variants.
SLOWER = 1.3
LINK_FACTORS = {"mtu", "loss_percent", "reorder_permille", "reorder_packets", "offloads", "rate_mbit"}
PROOF_SECONDS = 1.0
COUNTED_SECONDS = 6.0
"""What starting, translating and ending both programs takes while their instructions are counted."""
RUN_BYTES = 30_000
# Of a captured download: what is kept of full frames of 1500 bytes and of what acknowledges them, how many frames there
# are for each full one, and how many are read in a second.
CAPTURED_SHARE = 0.15
FRAMES_PER_FULL = 1.5
FRAMES_READ_PER_SECOND = 40_000
# Of a traced download: what is kept, compressed.
TRACED_SHARE = 0.08
# Least part of a link that a download gets beside other traffic.
LEAST_LEFT = 0.05
# A connection of a handshake run, a mean over algorithms; one whose signature takes long to make; its events; what of
# it a capture holds; and how often a round-trip time is waited for, request and close included.
HANDSHAKE_SECONDS = 0.012
SLOW_SECONDS = 0.35
# Of a connection that begins at a rate, the processor time of the server, which the rate is a share of.
SERVER_SECONDS = 0.0015
CONNECTION_BYTES = 1_800
CAPTURED_BYTES = 40_000
ROUND_TRIPS = 3
# Dissecting a capture of handshakes, and repeating the operations of one algorithm.
DISSECT_SECONDS = 0.5
PRIMITIVE_SECONDS = 0.1
SLOW_PRIMITIVE_SECONDS = 2.0
PRIMITIVE_BYTES = 12_000
SOURCES_MB = 750
SOURCES_MINUTES = 1.0
ANALYSIS_MINUTES = 1.0


def duration(minutes: float) -> str:
    if minutes < 1:
        return f"{minutes * 60:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def build_estimate(project: Project, name: str, build: str) -> Estimate:
    """Time and disk of a build, which are those of its flavour for every instruction set."""
    return project.libraries[name].flavours[march.parts(build).flavour].estimate


@dataclass(frozen=True)
class Cost:
    """What a run of the workflow takes in a fresh clone, on two cores."""

    build_minutes: float  # sources and builds
    measure_minutes: float  # at most, with the analysis
    disk_mb: float

    def text(self) -> str:
        """For people: time of building and of measuring, and disk."""
        disk = f"{self.disk_mb / 1000:.1f} GB" if self.disk_mb >= 1000 else f"{self.disk_mb:.0f} MB"
        return f"build {duration(self.build_minutes)}, measure at most {duration(self.measure_minutes)}, {disk}"


def cost(project: Project) -> Cost:
    """Time and disk of the project's experiments when nothing is built or measured yet."""
    names = project.config.experiments
    builds_of = [build_estimate(project, *key) for key in builds_needed(project, names)]
    measured = [of_measuring(project, name) for name in names]
    return Cost(
        SOURCES_MINUTES + sum(build.minutes for build in builds_of),
        ANALYSIS_MINUTES + sum(minutes for _, minutes, _ in measured),
        SOURCES_MB + sum(build.disk_mb for build in builds_of) + sum(mb for _, _, mb in measured),
    )


def of_measuring(project: Project, name: str) -> tuple[str, float, float]:
    """What measuring an experiment means, as text, in minutes at most and in MB of raw data."""
    handshakes = project.experiments[name].workload.kind == "handshake"
    cells = [cell for cell in cells_of(project, name, "", {}) if cell.unsupported is None]
    return (_handshakes if handshakes else _downloads)(project, name, project.scale(name), cells)


def _span(scale: Scale, block_s: float, besides_s: float) -> tuple[str, str, float]:
    """Blocks and time as text, and the minutes at most, of an experiment with blocks that take so long.

    Proofs, pilots and what is captured besides take *besides_s*, which the scale does not limit.
    """
    least = last = scale.min_blocks or scale.blocks
    # as long as there is time, another one begins
    while last < scale.blocks and (scale.max_minutes is None or last * block_s < scale.max_minutes * 60):
        last += 1
    fewest, most = ((block_s * blocks + besides_s) / 60 for blocks in (least, last))
    if least == scale.blocks:
        return f"{least} blocks", duration(most), most
    return f"{least} to {scale.blocks} blocks", f"{duration(fewest)} to {duration(most)}", most


def _proofs(cells: Sequence[Cell], kind: str) -> list[Cell]:
    """One cell for every proof: what is captured of a variant, on a pair of builds."""
    found = {}
    for cell in cells:
        proven = as_proven(cell, kind)
        found[cell.client, cell.server, proven.variant] = cell
    return list(found.values())


def transfer_s(
    project: Project,
    libraries: Iterable[str],
    variant: Variant,
    size: int,
    rate_mbit: float | None,
    connections: int = 1,
) -> float:
    """Roughly the seconds of downloads of *size* bytes, over a link that may be limited to *rate_mbit*."""
    rate, rtt_s = goodput_bits(project, libraries, variant, rate_mbit), (variant.rtt_ms or 0) / 1000
    more = (connections - 1) * connection_s(variant.signature, variant.rtt_ms or 0, ())
    return connections * (size * 8 / rate + SLOW_START_ROUND_TRIPS * rtt_s) + more


def pair_s(transfer_s: float) -> float:
    """Roughly the seconds of two transfers at the same time, of which each alone takes so long on all processors."""
    return 2 * transfer_s


def goodput_bits(project: Project, libraries: Iterable[str], variant: Variant, rate_mbit: float | None) -> float:
    """Roughly the bits that a download gets in a second, over a link that may be limited to *rate_mbit*."""
    # libraries of results of others may be unknown
    slow = any(name in project.libraries and project.libraries[name].max_bytes for name in libraries)
    left = max(1 - (variant.background.percent or 0) / 100, LEAST_LEFT)
    rate = min(SLOW_GOODPUT_BITS if slow else GOODPUT_BITS, left * (rate_mbit or math.inf) * 1e6)
    rtt_s, loss = (variant.rtt_ms or 0) / 1000, (variant.loss_percent or 0) / 100
    return min(rate, PACKET_BITS * LOSS_CONSTANT / (rtt_s * math.sqrt(loss))) if rtt_s and loss else rate


def as_sized(project: Project, name: str, cells: Sequence[Cell], known: Collection[tuple[str, str]] = ()) -> list[Cell]:
    """Cells of an experiment, those with the start of an external program as large as a pilot will make them.

    Of pairs of libraries in *known* the pilot has told the size, and their cells have it.
    """
    experiment, scale = project.experiments[name], project.scale(name)
    sizes: dict[tuple[str, str], int] = {}
    for libraries in {cell.libraries for cell in cells if with_start(experiment, cell)}.difference(known):
        rates = [
            goodput_bits(project, libraries, cell.variant, link_of(cell, experiment.link).rate_mbit) / 1e6
            for cell in cells
            if cell.libraries == libraries and cell.arm == "main" and cell.unsupported is None
        ]
        if rates:
            sizes[libraries] = without_start(max(rates), min(rates), scale.timeout_s, START_SECONDS)

    def size(cell: Cell) -> int:
        limits = [most for one in cell.libraries if (most := project.libraries[one].max_bytes)]
        limits += [experiment.capture_bytes] if cell.arm == CAPTURED and experiment.capture_bytes else []
        return min([max(cell.bytes or 0, sizes[cell.libraries]), *limits])

    # one that names its size keeps it
    fixed = {variant.label for variant in experiment.variants if variant.bytes is not None}
    return [
        replace(cell, bytes=size(cell)) if cell.libraries in sizes and cell.label not in fixed else cell
        for cell in cells
    ]


def handshakes_s(variant: Variant, connections: int, long: Collection[str | None]) -> float:
    """Roughly the seconds of so many handshakes, which may begin at a rate; *long* are signatures that take long."""
    if variant.load is not None:
        return connections * SERVER_SECONDS / variant.load + (HOLD_S if variant.held else 0.0)
    return connections * connection_s(variant.signature, variant.rtt_ms or 0, long)


def connection_s(signature: str | None, rtt_ms: float, long: Collection[str | None]) -> float:
    """Roughly the seconds of a handshake; *long* are signature algorithms that take long."""
    alone = SLOW_SECONDS if signature in long else HANDSHAKE_SECONDS
    return alone + ROUND_TRIPS * rtt_ms / 1000


def primitive_s(algorithms: Iterable[str], long: Collection[str | None]) -> float:
    """Roughly the seconds of timing the primitives of these algorithms."""
    return sum(SLOW_PRIMITIVE_SECONDS if name in long else PRIMITIVE_SECONDS for name in algorithms)


def run_s(project: Project, name: str, cell: Cell, beside: Cell | None = None) -> float:
    """Roughly the seconds of a run of a cell of an experiment, or of the pair of runs that it and its baseline are."""
    experiment, scale = project.experiments[name], project.scale(name)
    long = _long(experiment)
    if cell.arm == PRIMITIVES:
        return primitive_s(cell.variant.timed, long) + RUN_SECONDS
    if experiment.workload.kind == "handshake":
        return handshakes_s(cell.variant, cell.connections, long) + RUN_SECONDS

    def alone_s(cell: Cell) -> float:
        size, rate_mbit = cell.bytes or 0, link_of(cell, experiment.link).rate_mbit
        return transfer_s(project, cell.libraries, cell.variant, size, rate_mbit, _connections(cell))

    # of a pair the faster one downloads all that it is to
    transfer = min(map(alone_s, [cell, *([beside] if experiment.paired and beside else [])]))
    transfer *= SLOWER if scale.least_s else 1.0
    if experiment.paired:
        return min(pair_s(transfer) + PAIR_SECONDS, scale.timeout_s)
    started = BROWSER_SECONDS if cell.variant.loaded_by else RUN_SECONDS
    # a video lasts as long as it is played, and its bodies are compared after that
    played = PLAYED_AND_COMPARED * scale.play_s if scale.play_s else 0.0
    pings = project.config.gate.ping
    run = min(transfer + started + played, scale.timeout_s)
    run += COUNTED_SECONDS if experiment.instructions else 0.0
    run += pings.count * pings.interval_ms / 1000 if experiment.ping else 0.0
    return run + (CHANGE_SECONDS if LINK_FACTORS & cell.variant.model_fields_set else 0.0)


def proof_s(project: Project, name: str, cell: Cell) -> float:
    """Roughly the seconds of the proof of a cell of an experiment."""
    experiment = project.experiments[name]
    if experiment.workload.kind != "handshake":
        return PROOF_SECONDS
    each_s = connection_s(cell.variant.signature, cell.variant.rtt_ms, _long(experiment))
    return _proof_connections(cell) * each_s + DISSECT_SECONDS


def _proof_connections(cell: Cell) -> int:
    return PROOF_SLOW_CONNECTIONS if cell.slow else PROOF_CONNECTIONS


def _long(experiment: Experiment) -> set[str | None]:
    """Signature algorithms of an experiment that take long."""
    return {variant.signature for variant in experiment.variants if variant.slow and not variant.rtt_ms}


def _connections(cell: Cell) -> int:
    """Those of a run, a first visit included."""
    return cell.connections + (cell.variant.visit is not None)


def _bytes(cell: Cell) -> int:
    """That all connections of a run download."""
    return (cell.bytes or 0) * _connections(cell)


def _downloads(project: Project, name: str, scale: Scale, cells: Sequence[Cell]) -> tuple[str, float, float]:
    """What measuring downloads means, as text, in minutes and in MB of raw data."""
    experiment = project.experiments[name]
    cells = as_sized(project, name, cells)
    by_id = {cell.id: cell for cell in cells}

    def own_s(cell: Cell) -> float:
        return run_s(project, name, cell, by_id.get(cell.baseline or ""))

    # both runs of a pair are measured at once
    measured = [cell for cell in cells if cell.arm not in (CAPTURED, BESIDE)]
    downloading = [cell for cell in cells if cell.arm != CAPTURED]
    captured = [cell for cell in cells if cell.arm == CAPTURED]
    repeats = min(experiment.capture, scale.blocks)
    full = repeats * sum((cell.bytes or 0) / link_of(cell, experiment.link).mtu for cell in captured)  # frames
    reading_s = full * FRAMES_PER_FULL / FRAMES_READ_PER_SECOND
    block_s = sum(map(own_s, measured))
    pilot_s = block_s if scale.least_s else 0.0
    proofs_s = len(_proofs(cells, "bulk")) * PROOF_SECONDS
    besides_s = proofs_s + pilot_s + repeats * sum(map(own_s, captured)) + reading_s
    blocks, span, minutes = _span(scale, block_s, besides_s)
    runs = len(downloading) * scale.blocks + len(captured) * repeats
    seen = repeats * sum(cell.bytes or 0 for cell in captured)
    traffic = sum(map(_bytes, downloading)) * scale.blocks + seen
    traced = sum(map(_bytes, downloading)) * scale.blocks if experiment.trace else 0
    captures_mb = full * 1500 * CAPTURED_SHARE / 1e6 + traced * TRACED_SHARE / 1e6
    mb = runs * RUN_BYTES / 1e6 + captures_mb
    size = f"{scale.bytes / 2**20:.0f} MiB downloads" if scale.least_s is None else f"downloads of {scale.least_s:g} s"
    if experiment.workload.kind == "page":
        size = "page loads"
    elif experiment.workload.kind == "video":
        size = f"{scale.play_s:g} s of video"
    what = "concurrent pairs of runs" if experiment.paired else "cells"
    text = (
        f"{len(measured)} {what}, {blocks} of {size}, about {span} unless finished "
        f"already; at most {traffic / 2**30:.0f} GiB of traffic inside the testbed, {mb:.0f} MB of raw data"
    )
    if captured or traced:
        text += f", of which {captures_mb:.0f} MB are captures"
    return text, minutes, mb


def _handshakes(project: Project, name: str, scale: Scale, cells: Sequence[Cell]) -> tuple[str, float, float]:
    """As `_downloads` for series of handshakes."""
    experiment = project.experiments[name]
    measured = [cell for cell in cells if cell.arm not in (PRIMITIVES, CAPTURED)]
    besides = [cell for cell in cells if cell.arm == CAPTURED]
    timed = [cell for cell in cells if cell.arm == PRIMITIVES]

    def own_s(cell: Cell) -> float:
        return run_s(project, name, cell)

    proven = _proofs(measured, "handshake")
    algorithms = [name for cell in timed for name in cell.variant.timed]
    primitives_s = primitive_s(algorithms, _long(experiment))
    repeats = min(experiment.primitives, scale.blocks)
    again = min(experiment.capture, scale.blocks)
    proofs_s = sum(proof_s(project, name, cell) for cell in proven)
    besides_s = proofs_s + repeats * primitives_s + again * sum(map(own_s, besides))
    blocks, span, minutes = _span(scale, sum(map(own_s, measured)), besides_s)
    connections = sum(cell.connections for cell in measured) * scale.blocks
    mb = (
        len(measured) * scale.blocks * RUN_BYTES
        + connections * CONNECTION_BYTES
        + sum(map(_proof_connections, proven)) * CAPTURED_BYTES
        + repeats * len(algorithms) * PRIMITIVE_BYTES
        + again * sum(RUN_BYTES + cell.connections * CAPTURED_BYTES for cell in besides)
    ) / 1e6
    series = " or ".join(str(count) for count in sorted({cell.connections for cell in measured}, reverse=True))
    text = (
        f"{len(measured)} cells, {blocks} of {series} handshakes, about {span} unless finished already; at most "
        f"{connections} handshakes, {mb:.0f} MB of raw data"
    )
    return text, minutes, mb
