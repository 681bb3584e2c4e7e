"""What one run is: a cell with all that its experiment and scale say of it, and the runs that prove a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quicbed.config.model import Experiment, Instructions, Library, Link, Load, Perf, Project, Scale, Side, Workload
from quicbed.config.videos import RateTrace, Video
from quicbed.plan.arms import CAPTURED, PRIMITIVES
from quicbed.plan.cells import (
    PROOF_CONNECTIONS,
    PROOF_SLOW_CONNECTIONS,
    Cell,
    Endpoint,
    as_proven,
    link_of,
    load_of,
    scale_of,
    workload_of,
)

# A download this size gives a capture of a few hundred packets. Its rate is limited so that the client answers every
# few of them: some libraries otherwise acknowledge a transfer this short with a handful of packets.
PROOF_BYTES = 262144
PROOF_RATE_MBIT = 100.0
# A larger one, where the MTU is a factor and the mean size of frames is to be that of a transfer, not of its beginning;
# and for a second attempt.
PROOF_BYTES_LARGE = 4194304
# The largest one of a pair that acknowledges smaller ones with too few packets to judge headers by, as on a busy host.
PROOF_BYTES_LARGEST = 16777216
HOLD_S = 5.0
"""Seconds that connections are held open once all are; their client then asks whether the server has them still."""
PROOF_TIMEOUT_S = {"bulk": 30.0, "page": 30.0, "video": 30.0, "handshake": 120.0}


@dataclass(frozen=True)
class RunSpec:
    """All that says what one run is; `run_spec` and `proof_spec` make them."""

    cell: Cell
    libraries: Mapping[Side, Library]
    """Descriptions of the libraries of both sides."""
    workload: Workload
    """With what the cell varies of it."""
    link: Link
    """With what the cell varies of it."""
    bytes: int
    """Size of the download of a connection."""
    connections: int
    timeout_s: float
    """A run that takes longer has failed."""
    page: tuple[int, ...] = ()
    """Bytes of the objects of a page, its document first; empty for a download."""
    video: Video | None = None
    """That is played."""
    play_s: float = 0.0
    """Seconds of it."""
    rate_trace: RateTrace | None = None
    """Rates of the link meanwhile."""
    perf: Perf | Instructions | None = None
    """How both endpoints are sampled or their instructions counted, in an experiment whose runs are."""
    captured: bool = False
    """Whether it is captured besides."""
    traced: bool = False
    """Whether the headers of its packets are kept."""
    secrets: bool = False
    """Whether the TLS secrets are written down."""
    rate_per_s: float | None = None
    """At which connections begin, whatever becomes of those before; None: one after the other."""
    arrival_seed: int = 0
    """Of the times at which they begin."""
    copies: int = 1
    """Programs at each end, which have equal shares of connections and rate."""

    def side(self, role: Side) -> Endpoint:
        """The build that is client or server."""
        return self.cell.client if role == "client" else self.cell.server

    def external(self, role: Side) -> bool:
        """Whether a side is an external endpoint, which may report no connections and no negotiated values."""
        return self.libraries[role].external is not None

    def silent(self, role: Side) -> bool:
        """Whether it is one that does not state that it reports times, so that the start of its program is in them."""
        external = self.libraries[role].external
        return external is not None and not external.statement.times

    @property
    def browser(self) -> bool:
        """Whether a browser takes the place of the client."""
        return self.cell.variant.loaded_by is not None

    @property
    def held(self) -> bool:
        """Whether its connections stay open until the memory of the server is read; not in a pilot, without a rate."""
        return self.cell.variant.held is not None and self.rate_per_s is not None

    @property
    def visits_before(self) -> int:
        """Loads of the client before those that are measured, which leave what these go on with.

        Each has a connection of its own, or all have one that is `kept`.
        """
        return 0 if self.cell.variant.visit is None else 1

    @property
    def kept(self) -> bool:
        """Whether the load that is measured goes over the connection of the one before, which has stayed open."""
        return self.cell.variant.visit == "kept"

    @property
    def requests(self) -> int:
        """Requests that come on a connection of a page or video, or of all loads over a connection that is kept."""
        if self.kept:
            return (len(self.page) or 1) * (self.visits_before + self.connections)
        if self.video is None:
            return len(self.page)
        # document and manifest, all initialization segments, and each segment once
        return 2 + len(self.video.kbits) + self.video.segments(self.play_s)

    @property
    def handshakes(self) -> bool:
        """Whether it is a series of handshakes, not a download."""
        return self.workload.kind == "handshake"

    @property
    def quic(self) -> bool:
        """Whether the transport is QUIC, not TCP."""
        return self.cell.transport == "quic"

    @property
    def observed(self) -> bool:
        """Whether the times of its handshakes are taken from a capture, because its client does not tell them."""
        return self.handshakes and self.silent("client")

    @property
    def profile(self) -> Perf | Instructions | None:
        """How both endpoints are sampled or their instructions counted while it runs."""
        return None if self.captured else self.perf

    @property
    def counted(self) -> bool:
        """Whether the instructions of both endpoints are counted, for which they run many times as long."""
        return isinstance(self.profile, Instructions)

    @property
    def load(self) -> Load | None:
        """The traffic that it competes with."""
        return load_of(self.cell)

    @property
    def work(self) -> dict[str, Any]:
        """The `workload` object of run.json."""
        if self.cell.arm == PRIMITIVES:
            return {"kind": PRIMITIVES, "bytes": None, "connections": None}
        done = {"kind": self.workload.kind, "bytes": self.bytes, "connections": self.connections}
        if self.visits_before:
            done["visits_before"] = self.visits_before
        if self.copies > 1:
            done["copies"] = self.copies
        return done | ({"rate_per_s": self.rate_per_s, "arrival_seed": self.arrival_seed} if self.rate_per_s else {})


def _libraries(project: Project, cell: Cell) -> dict[Side, Library]:
    return {"client": project.libraries[cell.client.library], "server": project.libraries[cell.server.library]}


def _page(project: Project, cell: Cell) -> tuple[int, ...]:
    return () if cell.variant.page is None else project.pages[cell.variant.page].sizes


def _video(project: Project, cell: Cell) -> Video | None:
    return None if cell.variant.video is None else project.videos[cell.variant.video]


def run_spec(project: Project, experiment: Experiment, cell: Cell, scale: Scale) -> RunSpec:
    """A run of a cell of an experiment."""
    return RunSpec(
        cell,
        _libraries(project, cell),
        workload_of(cell, experiment.workload),
        link_of(cell, experiment.link),
        scale_of(cell, scale).bytes,
        cell.connections,
        scale.timeout_s,
        _page(project, cell),
        _video(project, cell),
        scale.play_s or 0.0,
        None if cell.variant.rate_trace is None else project.rate_traces[cell.variant.rate_trace],
        experiment.perf or experiment.instructions,
        captured=cell.arm == CAPTURED,
        traced=experiment.trace,
    )


def proof_spec(project: Project, experiment: Experiment, cell: Cell) -> RunSpec:
    """The captured run that proves a cell: of a download, also for pages, or of handshakes with their secrets.

    A browser loads the page, also for a video. The secrets of a download are written down where both ends are external,
    which tell nothing themselves, of a browser, and where a chain of certificates or a resumed session has to be seen.
    """
    kind = experiment.workload.kind
    libraries = _libraries(project, cell)
    silent = all(library.external is not None for library in libraries.values())
    size, connections = proof_size(cell, kind)
    proven = as_proven(cell, kind)
    page = _page(project, proven) if cell.variant.loaded_by else ()
    workload = experiment.workload.model_copy(update={"kind": "page"}) if cell.variant.video else experiment.workload
    return RunSpec(
        proven,
        libraries,
        workload,
        proof_link(kind, link_of(cell, experiment.link).mtu),
        sum(page) or size,
        connections,
        PROOF_TIMEOUT_S[kind],
        page,
        secrets=kind == "handshake"
        or silent
        or bool(page)
        or cell.variant.chain is not None
        or cell.variant.visit not in (None, "kept"),
    )


def proof_link(kind: str, mtu: int) -> Link:
    """The link on which downloads or handshakes are captured."""
    return Link(mode="wire", mtu=mtu, rate_mbit=None if kind == "handshake" else PROOF_RATE_MBIT)


def proof_size(cell: Cell, kind: str) -> tuple[int, int]:
    """Bytes and connections of the first attempt at a proof."""
    if kind == "handshake":
        return 1, PROOF_SLOW_CONNECTIONS if cell.slow else PROOF_CONNECTIONS
    return PROOF_BYTES_LARGE if cell.variant.mtu else PROOF_BYTES, 1
