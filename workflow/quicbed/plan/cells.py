"""From configuration to cells: what an experiment measures, and what identifies it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from quicbed.base.hashing import digest
from quicbed.config.model import (
    ConfigError,
    Experiment,
    Library,
    Link,
    Load,
    Pair,
    Project,
    Scale,
    Side,
    Testbed,
    Variant,
    Workload,
)
from quicbed.config.pages import PageError
from quicbed.config.videos import VideoError
from quicbed.plan import browser, factors, fleet, march
from quicbed.plan.arms import BESIDE, CAPTURED, LEFT_OUT, PRIMITIVES
from quicbed.plan.built import Build
from quicbed.plan.factors import algorithm_reason as algorithm_reason  # for a recipe, whose text its builds depend on
from quicbed.plan.host import host_of
from quicbed.plan.variant import CellVariant

# Connections in the captured run of a handshake cell at any scale, and of one that is slow.
PROOF_PAGE = "light-2019"
"""The page that proves the variant of a video, the smallest there is."""
PROOF_CONNECTIONS = 20
PROOF_SLOW_CONNECTIONS = 3


def build_of(project: Project, name: str, variant: Variant, role: Side) -> str:
    """The build of a library, as client or server, that a variant is measured on (`quicbed.plan.march.named`)."""
    library, settings = project.libraries[name], project.testbed.build
    compiled = march.unsupported_reason(library) is None
    level = variant.march or (settings.march if compiled else None)
    host = role if compiled and settings.where == "hosts" else None
    return march.named(factors.flavour_of(variant, library), level, host)


def paired_reason(library: Library) -> str | None:
    """Why two programs of a library cannot run at the same time, or None if they can."""
    if library.external is None:
        return None
    return f"{library.title}: two external endpoints cannot run in one folder at the same time"


@dataclass(frozen=True)
class Endpoint:
    """One side of a cell: a build of a library."""

    library: str
    flavour: str
    version: str
    build: str
    march: str | None = None
    external: bool = False
    times: bool = False
    """Whether it is an external endpoint that reports the times of its connections."""

    def as_dict(self) -> dict[str, str | bool]:
        """The fields of run.json."""
        always: dict[str, str | bool] = {
            "library": self.library,
            "flavour": self.flavour,
            "version": self.version,
            "build": self.build,
        }
        chosen = {"external": self.external, "times": self.times}
        return always | ({"march": self.march} if self.march else {}) | {name: True for name in chosen if chosen[name]}


@dataclass(frozen=True)
class Cell:
    """One combination of an experiment's factors. Its id changes with anything that could change a measurement."""

    id: str
    slug: str
    label: str
    arm: str
    baseline: str | None
    client: Endpoint
    server: Endpoint
    transport: str
    variant: CellVariant
    connections: int
    bytes: int | None
    slow: bool
    unsupported: str | None

    @property
    def libraries(self) -> tuple[str, str]:
        """Of its client and its server."""
        return self.client.library, self.server.library

    def as_dict(self) -> dict[str, Any]:
        """The `cell` object of run.json."""
        return {
            "id": self.id,
            "slug": self.slug,
            "label": self.label,
            "arm": self.arm,
            "baseline": self.baseline,
        }


_OF_QUIC = ("header_protection", "retry", "initial_size")
_ALWAYS = {"cipher", "aead", "group", "signature", "rtt_ms"}
"""Keys of the variants of all cells; others are there where an experiment varies them."""


def cell_variant(variant: Variant, transport: str) -> CellVariant:
    """The variant of a cell; what has no meaning for TCP is null, unless a cell asks for it in vain."""
    # what an experiment does not vary is left out, so that its cells stay those they were
    chosen = variant.model_dump(exclude_defaults=True).keys() | _ALWAYS
    chosen = chosen | set(_OF_QUIC) if transport == "quic" else chosen - {"header_protection"}
    asked = variant.model_dump(include=chosen & CellVariant.model_fields.keys(), exclude_none=True)
    return CellVariant.model_validate(dict.fromkeys(_OF_QUIC) | asked)


def link_of(cell: Cell, link: Link) -> Link:
    """The link while a cell runs: that of the experiment, with the cell's MTU and rate.

    A cell with super-frames, of `io: gso` with `offloads: default` in link mode `wire`, is in link mode `throughput`.
    """
    changed: dict[str, Any] = {
        name: value for name in ("mtu", "rate_mbit") if (value := getattr(cell.variant, name)) is not None
    }
    if link.mode == "wire" and cell.variant.offloads is not None:
        changed["mode"] = "throughput"
    return link.model_copy(update=changed) if changed else link


def workload_of(cell: Cell, workload: Workload) -> Workload:
    """What the connections of a cell do: the experiment's workload, with what the cell varies of it."""
    changed: dict[str, Any] = {}
    if size := cell.variant.receive_buffer:
        changed["receive_buffer"] = size
    if cell.variant.offloads == "off":
        changed |= {"gso": False, "gro": False}
    if cell.variant.gso is not None:
        changed["gso"] = cell.variant.gso != "off"
    if cell.variant.gro is not None:
        changed["gro"] = cell.variant.gro
    if name := cell.variant.congestion_control:
        changed["congestion_control"] = name
    return workload.model_copy(update=changed) if changed else workload


def as_proven(cell: Cell, kind: str) -> Cell:
    """A cell with the variant that is captured as a proof.

    Without what is within the hosts, such as buffers, without when packets leave and connections begin, without
    competing traffic, and for downloads what the link does to packets: what packets are made of depends on none of
    these. The exchange of packets that a captured handshake shows depends on the round-trip time, and so does whether a
    request is early, before the handshake is complete.

    Of a video, what is captured is a page, loaded by the same browser.
    """
    sending = ("pacing", "gso", "gro", "io", "io_at", "congestion_control", "qdisc")
    link = ("loss_percent", "reorder_permille", "reorder_packets", "rate_mbit")
    within = ("receive_buffer", "load", "held", "processors", "offloads", "background")
    # the library's client downloads as it loads pages, and a browser does nothing but load them
    page = () if cell.variant.loaded_by else ("page",)
    variant = cell.variant.without(*within, *page, *link, *sending, "video", "rate_trace")
    if cell.variant.video is not None:
        variant = variant.model_copy(update={"page": PROOF_PAGE})
    delayed = kind == "handshake" or variant.visit == "early-data"
    return replace(cell, variant=variant if delayed else variant.model_copy(update={"rtt_ms": 0}))


def load_of(cell: Cell) -> Load | None:
    """The traffic that a cell competes with."""
    load = cell.variant.background.model_dump(exclude_unset=True)
    return Load.model_validate(load) if load else None


def scale_of(cell: Cell, scale: Scale) -> Scale:
    """How much is measured of a cell: the scale of the experiment, with the cell's size of the download."""
    return scale if cell.bytes is None else scale.model_copy(update={"bytes": cell.bytes})


def _bytes_of(project: Project, pair: Pair, size: int) -> int:
    """Size of the download of a pair of libraries that is to have *size*."""
    limits = (project.libraries[name].max_bytes for name in (pair.client, pair.server))
    return min([size, *(limit for limit in limits if limit is not None)])


# Of a download that is to last so long, before a pilot says how much that is: of any libraries, and of slow ones.
GOODPUT_BITS = 5e9
SLOW_GOODPUT_BITS = 4e8  # of libraries with `max_bytes`


@dataclass(frozen=True)
class _Planned:
    """An experiment of which cells are planned, with what `cells_of` is told."""

    project: Project
    experiment: Experiment
    campaign: str
    builds: Mapping[tuple[str, str], Build]
    sizes: Mapping[tuple[str, str], int]

    @property
    def scale(self) -> Scale:
        """How much is measured."""
        return self.experiment.scales[self.project.config.scale]

    def size(self, client: str, server: str) -> int:
        """Size of a download of client and server in bytes, as far as it is known without a pilot."""
        if (size := self.sizes.get((client, server))) or (least_s := self.scale.least_s) is None:
            return size or self.scale.bytes
        slow = any(self.project.libraries[name].max_bytes for name in (client, server))
        return int((SLOW_GOODPUT_BITS if slow else GOODPUT_BITS) / 8 * least_s)


_HOST_SETTINGS = ("cpus", "governor", "irq_cpus", "rings", "sysctl", "ingress")
"""Keys of a host that change what is measured there."""


def host_settings(testbed: Testbed) -> str | None:
    """Digest of what the configuration sets on both hosts while they measure; None where it sets nothing."""
    if testbed.kind != "ssh":
        return None
    chosen = {role: host.model_dump(include=set(_HOST_SETTINGS)) for role, host in testbed.hosts.items()}
    if not any(value for host in chosen.values() for value in host.values()):
        return None
    for host in chosen.values():
        host["sysctl"] = {name: str(value) for name, value in host["sysctl"].items()}
    return digest(chosen)


def in_browser(experiment: Experiment) -> bool:
    """Whether a browser loads some of its pages."""
    return any(variant.loaded_by == "chromium" for variant in experiment.variants)


def campaign_of(project: Project, name: str, machine: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Id and identity of a campaign: runs of different campaigns are never compared.

    A campaign is an experiment at one scale on one testbed of one host (`host_of` the facts *machine*), with one
    workload and link, and with the same settings of its hosts (`host_settings`). Where a browser loads pages, it is one
    version of it (`browser` of the facts). Cells may be added to it later.
    """
    experiment = project.experiments[name]
    scale = project.scale(name)
    identity = {
        "experiment": name,
        "scale": project.config.scale,
        "testbed": project.config.testbed,
        "machine": host_of(machine).identity,
        "bytes": scale.bytes,
        "connections": [scale.connections, scale.slow_connections],
        "workload": experiment.workload.model_dump(),
        "link": experiment.link.model_dump(),
    }
    if project.study is not None:
        identity["study"] = project.study.digest
        identity["least_s"] = scale.least_s
    if experiment.perf:
        identity["perf"] = experiment.perf.model_dump()
    if experiment.instructions:
        identity["instructions"] = experiment.instructions.model_dump()
    if experiment.trace:
        identity["trace"] = True
    if experiment.paired:
        identity["paired"] = experiment.paired
    if in_browser(experiment) and machine.get("browser"):
        identity["browser"] = machine["browser"]
    if (chosen := host_settings(project.testbed)) is not None:
        identity["host_settings"] = chosen
    return digest(identity), identity


def cells_of(
    project: Project,
    name: str,
    campaign: str,
    builds: Mapping[tuple[str, str], Build],
    sizes: Mapping[tuple[str, str], int] | None = None,
) -> list[Cell]:
    """Cells of an experiment in the order of its file; `builds` maps what `builds_needed` names to its build.json.

    Where that is of a build that cannot be used (`problem`), its cells are unsupported. *sizes* are of the downloads of
    client and server in bytes, as far as a pilot has told them.
    """
    experiment = project.experiments[name]
    planned = _Planned(project, experiment, campaign, builds, sizes or {})
    cells: list[Cell] = []
    for pair in experiment.pairs():
        if experiment.paired:
            cells += _pairs(planned, pair)
            continue
        by_label: dict[str, Cell] = {}
        for variant in _baselines_first(experiment):
            target = variant.baseline or experiment.baseline
            baseline = by_label[target].id if variant.label != experiment.baseline else None
            by_label[variant.label] = _cell(planned, pair, variant, variant.arm, baseline)
        cells += [by_label[variant.label] for variant in experiment.variants]
        if experiment.aa:
            reference = by_label[experiment.baseline].id
            cells.append(_cell(planned, pair, experiment.variant(experiment.baseline), "aa", reference))
        if experiment.capture:
            cells += [_cell(planned, pair, variant, CAPTURED) for variant in experiment.variants]
    if experiment.primitives:
        for library in dict.fromkeys(name for pair in experiment.pairs() for name in (pair.client, pair.server)):
            cells += _primitives(planned, library)
    return cells


def _pairs(planned: _Planned, pair: Pair) -> list[Cell]:
    """Cells of an experiment whose runs are measured in pairs: each one follows its own baseline."""
    cells: list[Cell] = []
    for variant, target, other, arm in _compared(planned.experiment, pair):
        cell = _cell(planned, pair, variant, arm)
        beside = _cell(planned, other, target, BESIDE, beside=cell)
        # neither is measured without the other
        reason = cell.unsupported or beside.unsupported
        cells += [replace(beside, unsupported=reason), replace(cell, baseline=beside.id, unsupported=reason)]
    return cells


def _compared(experiment: Experiment, pair: Pair) -> list[tuple[Variant, Variant, Pair, str]]:
    """Each variant of a pair of libraries that is compared, what is beside it and of which libraries, and its arm."""
    found: list[tuple[Variant, Variant, Pair, str]] = []
    for label in experiment.contrast.labels if experiment.contrast else ():
        variant = experiment.variant(label)
        target, against = experiment.beside(variant), variant.against
        other = pair if against is None else Pair(client=against, server=against)
        if (variant, pair) != (target, other):  # which is the A/A arm of the other library
            found.append((variant, target, other, variant.arm))
    if experiment.aa:
        baseline = experiment.variant(experiment.baseline)
        found.append((baseline, baseline, pair, "aa"))
    return found


def _primitives(planned: _Planned, library: str) -> list[Cell]:
    """One cell for every build of a library: its primitives of all algorithms of the experiment.

    None of an external endpoint, whose scripts time no primitives.
    """
    project, experiment, builds = planned.project, planned.experiment, planned.builds
    described = project.libraries[library]
    cells: list[Cell] = []
    if described.external is not None:
        return cells
    for named in dict.fromkeys(build_of(project, library, variant, "client") for variant in experiment.variants):
        if (library, named) not in builds:
            continue
        own = [v for v in experiment.variants if build_of(project, library, v, "client") == named]
        flavour = march.parts(named).flavour
        names = {
            kind: [
                name
                for name in dict.fromkeys(getattr(variant, kind) for variant in own)
                if algorithm_reason(described.title, described, flavour, kind, name) is None
            ]
            for kind in ("group", "signature")
        }
        side = _endpoint(project, library, named, builds[library, named])
        settings = CellVariant(groups=names["group"], signatures=names["signature"])
        identity = {
            "campaign": planned.campaign,
            "build": side.build,
            "library": library,
            "variant": settings.as_dict(),
            "arm": PRIMITIVES,
        }
        cells.append(
            Cell(
                id=digest(identity),
                slug=f"{library}-{PRIMITIVES}" if named == "pq" else f"{library}-{_slug(named)}-{PRIMITIVES}",
                label=PRIMITIVES,
                arm=PRIMITIVES,
                baseline=None,
                client=side,
                server=side,
                transport=described.transport,
                variant=settings,
                connections=0,
                bytes=None,
                slow=False,
                unsupported=None,
            )
        )
    return cells


def _baselines_first(experiment: Experiment) -> list[Variant]:
    """The variants in an order in which each one's baseline comes before it."""
    done: list[str] = []
    ordered: list[Variant] = []
    waiting = list(experiment.variants)
    while waiting:
        ready = [v for v in waiting if v.label == experiment.baseline or (v.baseline or experiment.baseline) in done]
        if not ready:
            raise ValueError(f"variants: {[v.label for v in waiting]} are each other's baselines")
        ordered += ready
        done += [v.label for v in ready]
        waiting = [v for v in waiting if v.label not in done]
    return ordered


def _cell(
    planned: _Planned, pair: Pair, variant: Variant, arm: str, baseline: str | None = None, beside: Cell | None = None
) -> Cell:
    """A cell; *beside* is the one that it is the baseline of, where both are measured at the same time."""
    project, experiment, scale = planned.project, planned.experiment, planned.scale
    connections = scale.connections_of(variant)
    sides: list[Endpoint] = []
    reason = factors.open_loop_reason(project.libraries[pair.client], variant)
    problem: str | None = None
    for role, name in _sides(pair):
        library = project.libraries[name]
        reason = reason or factors.unsupported_reason(library, variant, experiment.workload.congestion_control)
        if connections > 1 and experiment.workload.kind == "bulk" and library.external is not None:
            reason = reason or f"{library.title}: an external endpoint makes one download a run"
        if experiment.paired:
            reason = reason or paired_reason(library)
        if experiment.instructions and library.external is not None:
            reason = reason or f"{library.title}: instructions of an external endpoint's scripts would count too"
        if variant.processors is not None and library.external is not None:
            reason = reason or f"{library.title}: an external endpoint is one program, whose script knows one port"
        named = build_of(project, name, variant, role)
        build = planned.builds.get((name, named))
        if problem is None and build is not None and build.problem is not None:
            problem = f"{library.title}: {build.problem}"
        sides.append(_endpoint(project, name, named, build))
    transport = project.libraries[pair.client].transport
    settings = cell_variant(variant, transport)
    if variant.rate_trace is not None:
        settings = settings.model_copy(update={"rate_mbit": project.rate_traces[variant.rate_trace].highest_mbit})
    told = "" if arm == "main" else arm
    if beside is not None:
        told += f" {beside.label if beside.arm == 'main' else beside.arm}"
        told += "" if beside.libraries == (pair.client, pair.server) else f" of {beside.client.library}"
    slug = slug_of(pair, variant.label, told)
    identity: dict[str, Any] = {
        "campaign": planned.campaign,
        "client": sides[0].build,
        "server": sides[1].build,
        "flavours": [side.flavour for side in sides],
        "libraries": [side.library for side in sides],
        "variant": settings.as_dict(),
        "arm": arm,
    }
    if beside is not None:
        identity["beside"] = beside.id
    elif variant.against is not None and arm != "aa":
        identity["against"] = variant.against
    limit = experiment.capture_bytes if arm == CAPTURED else None
    # a baseline at the same time transfers as much as what is compared with it
    wanted = planned.size(*((pair.client, pair.server) if beside is None else beside.libraries))
    size = variant.bytes or _bytes_of(project, pair, wanted)
    size = size if limit is None else min(limit, size)
    if variant.page is not None:
        identity["page"] = project.pages[variant.page].sizes
        if variant.loaded_by != "endpoint":
            identity["browser"] = _browser_identity(project, variant.page)
        size = project.pages[variant.page].bytes
    if variant.processors is not None:
        identity["fleet"] = fleet.identity(project.root)
    if variant.video is not None:
        identity["video"] = _video_identity(project, variant.video, scale)
        if variant.rate_trace is not None:
            identity["rate_trace"] = [asdict(step) for step in project.rate_traces[variant.rate_trace].steps]
    if size != scale.bytes:
        identity["bytes"] = size
    if variant.bytes is not None:
        identity["connections"] = connections
        if variant.bytes > (scale.most_bytes or variant.bytes):
            left_out = f"{LEFT_OUT}scale {project.config.scale} has no downloads of more than {scale.most_bytes} bytes"
            reason = reason or left_out
    return Cell(
        id=digest(identity),
        slug=slug,
        label=variant.label,
        arm=arm,
        baseline=baseline,
        client=sides[0],
        server=sides[1],
        transport=transport,
        variant=settings,
        connections=connections,
        bytes=size,
        slow=variant.slow,
        unsupported=reason or problem,
    )


def _browser_identity(project: Project, name: str) -> str:
    try:
        return browser.identity(browser.files(project.root, project.pages[name]))
    except PageError as error:
        raise ConfigError(str(error)) from None


def _video_identity(project: Project, name: str, scale: Scale) -> str:
    try:
        return browser.video_identity(project.root, project.videos[name], scale.play_s or 0)
    except VideoError as error:
        raise ConfigError(str(error)) from None


def _endpoint(project: Project, library: str, named: str, build: Build | None) -> Endpoint:
    flavour, level, _ = march.parts(named)
    version, identity = ("", "") if build is None else (build.version, build.build)
    external = project.libraries[library].external
    times = external is not None and external.statement.times
    return Endpoint(library, flavour, version, identity, level, external is not None, times)


def _sides(pair: Pair) -> tuple[tuple[Side, str], tuple[Side, str]]:
    return ("client", pair.client), ("server", pair.server)


def slug_of(pair: Pair, label: str, arm: str = "") -> str:
    """Name of a cell in file names and messages; *arm* is empty for the main one."""
    name = pair.client if pair.client == pair.server else f"{pair.client}-to-{pair.server}"
    return _slug(f"{name}-{label}-{arm}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _built(experiment: Experiment) -> list[tuple[Pair, list[Variant]]]:
    """The pairs of libraries of an experiment, each with the variants that it is built for."""
    pairs = experiment.pairs()
    compared = [one for pair in pairs for one in _compared(experiment, pair)] if experiment.paired else []
    besides = [(other, [target]) for _, target, other, _ in compared if other not in pairs]
    return [*((pair, experiment.variants) for pair in pairs), *besides]


def builds_needed(project: Project, names: list[str]) -> list[tuple[str, str]]:
    """Library and name (`build_of`) of every build that the experiments measure, sorted."""
    needed: set[tuple[str, str]] = set()
    for name in names:
        experiment = project.experiments[name]
        for pair, variants in _built(experiment):
            for variant in variants:
                if factors.open_loop_reason(project.libraries[pair.client], variant) is not None:
                    continue
                for role, library in _sides(pair):
                    described = project.libraries[library]
                    if described.external is not None and described.external.problem is not None:
                        needed.add((library, "stock"))  # which is not made, and says why
                        continue
                    reason = factors.unsupported_reason(described, variant, experiment.workload.congestion_control)
                    if reason is None:
                        needed.add((library, build_of(project, library, variant, role)))
                        if experiment.primitives:  # which are timed on the client's host
                            needed.add((library, build_of(project, library, variant, "client")))
    return sorted(needed)
