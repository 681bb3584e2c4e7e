"""From configuration to cells: what an experiment measures, and what identifies it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from quicbed.base.hashing import digest
from quicbed.config.model import (
    STATEMENT,
    ConfigError,
    Experiment,
    ExternalLibrary,
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
from quicbed.plan import browser, fleet, march
from quicbed.plan.arms import BESIDE, CAPTURED, LEFT_OUT, PRIMITIVES
from quicbed.plan.built import Build
from quicbed.plan.host import host_of
from quicbed.plan.variant import CellVariant

# Connections in the captured run of a handshake cell at any scale, and of one that is slow.
PROOF_PAGE = "light-2019"
"""The page that proves the variant of a video, the smallest there is."""
PROOF_CONNECTIONS = 20


PROOF_SLOW_CONNECTIONS = 3

BROWSER_GROUPS = frozenset({"x25519", "x25519-mlkem768"})
"""Groups that Chromium sends key shares of; others that it has take a HelloRetryRequest."""
BROWSER_SIGNATURES = frozenset({"rsa-2048", "rsa-4096", "ecdsa-p-256", "ecdsa-p-384"})
"""Signature algorithms of certificates that Chromium takes."""

SMALLEST_INITIAL = 1200
"""UDP payload in bytes that datagrams with Initial packets have at least (RFC 9000, 14.1)."""
UDP_OVERHEAD = 28
"""Bytes of IPv4 and UDP headers."""
DEFAULT_MTU = 1500


def flavour_of(variant: Variant, library: Library) -> str:
    """The flavour that a variant is measured on."""
    if variant.flavour is not None:
        return variant.flavour
    # all MTUs on one build, as they are compared
    jumbo = next((name for name, flavour in library.flavours.items() if flavour.jumbo), None)
    if variant.mtu is not None and jumbo is not None:
        return jumbo
    # without packet protection there is no header protection either, which takes no other build
    unprotected = library.transport == "quic" and not variant.header_protection and variant.aead != "noenc"
    return "noop" if variant.aead == "noop" or unprotected else "stock"


def build_of(project: Project, name: str, variant: Variant, role: Side) -> str:
    """The build of a library, as client or server, that a variant is measured on (`quicbed.plan.march.named`)."""
    library, settings = project.libraries[name], project.testbed.build
    compiled = march.unsupported_reason(library) is None
    level = variant.march or (settings.march if compiled else None)
    host = role if compiled and settings.where == "hosts" else None
    return march.named(flavour_of(variant, library), level, host)


def congestion_control_of(library: Library, asked: str) -> str:
    """The congestion control that a workload asks for, of a library."""
    return library.supports.congestion_controls[0] if asked == "any" else asked


def pacing_of(library: Library, asked: str | None, congestion_control: str) -> str | None:
    """The `--pacing` of a library's endpoints with this congestion control, or None if it is not told."""
    supports = library.supports
    if asked is None or not supports.pacing:
        return None
    if asked != "own":
        return asked
    if supports.paces is not None and congestion_control not in supports.paces:
        return "off"
    return next(value for value, able in supports.pacing.items() if able is True)


def io_of(variant: CellVariant, role: Side) -> str | None:
    """How datagrams pass at one end of a cell, or None if UDP GSO and GRO are all that is said of it."""
    return "gso" if variant.io is not None and variant.io_at not in (None, role) else variant.io


def pacing_reason(title: str, library: Library, variant: Variant, congestion_control: str) -> str | None:
    """Why a library cannot pace as a variant asks, or None if it can."""
    supports = library.supports
    paced = supports.paces is None or congestion_control in supports.paces
    if library.transport == "udp" and (variant.gso, variant.gro, variant.io or "gso") != (None, None, "gso"):
        return f"{title} is always with UDP GSO and GRO"
    if variant.gso is not None and library.transport != "quic":
        return f"{title}: the kernel segments what TCP sends"
    if variant.gro is not None and library.transport != "quic":
        return f"{title}: the kernel joins what TCP receives"
    if variant.io is not None and library.transport == "tcp":
        return f"{title}: the kernel makes the segments of TCP"
    if variant.gso in ("on", "paced") and not supports.gso:
        return f"{title} has no UDP GSO"
    if variant.gro and not supports.gro:
        return f"{title} has no UDP GRO"
    if variant.gso == "paced" and supports.gso_paced is not True:
        return f"{title}: {supports.gso_paced}"
    if variant.io is not None and variant.io not in supports.io:
        return f"{title}: its endpoints cannot be told to pass datagrams by `{variant.io}`"
    if variant.pacing is not None and variant.pacing != "own":
        able = supports.pacing.get(variant.pacing, "its endpoint has no option for pacing")
        if able is not True:
            return f"{title}: {able}"
    if variant.qdisc == "etf" and pacing_of(library, variant.pacing, congestion_control) != "txtime":
        return f"{title}: ETF needs a release time for every packet, so `pacing: txtime`"
    if variant.qdisc == "etf" and library.external is not None:
        return f"{title}: external endpoints have no option for ETF"
    if not paced and (variant.gso == "paced" or variant.pacing in ("library", "txtime")):
        return f"{title} computes release times with {', '.join(supports.paces or ())} only"
    return None


def algorithm_reason(title: str, library: Library, flavour: str, kind: str, name: str) -> str | None:
    """Why a flavour has no group or signature algorithm of this name, or None if it has."""
    build = library.flavours[flavour]
    if build.algorithms == "all":
        return f"{title}: {build.unsupported[name]}" if name in build.unsupported else None
    listed = library.supports.groups if kind == "group" else library.supports.signatures
    return None if name in listed else f"{title} has no {kind} {name} in flavour {flavour}"


def noenc_reason(library: Library) -> str:
    """Why a library that has no NOENC cannot leave out packet protection."""
    if library.transport == "tcp":
        return "TLS 1.3 protects every record of content (RFC 8446, 5.2)"
    return "QUIC protects all 1-RTT packets (RFC 9001, 5), and the library has no extension for both ends to agree on"


def unstated_reason(library: ExternalLibrary, variant: Variant) -> str | None:
    """What a variant asks of an external endpoint that its folder does not state; None where it states all.

    What lists of `supports` say is not looked at here. Interfaces of the hosts are set whatever a folder states, which
    is all that offloads are for TCP.
    """
    stated = library.statement.supports
    if variant.receive_buffer is not None and not stated.receive_buffer:
        return f"its {STATEMENT} does not say that it sets the size of its buffers"
    if library.transport != "quic":
        return None
    gso = None if variant.gso is None else variant.gso != "off"
    gro = variant.gro
    if variant.offloads is not None:
        gso = gro = variant.offloads != "off"
    for what, wanted, able in (("GSO", gso, stated.gso), ("GRO", gro, stated.gro)):
        if wanted is not None and not able:
            return f"its {STATEMENT} does not say whether it uses UDP {what}"
        if wanted is False and False not in able:
            return f"its {STATEMENT} says that it always uses UDP {what}"
    return None


def unsupported_reason(title: str, library: Library, variant: Variant, congestion_control: str) -> str | None:
    """Why a library cannot do a variant according to its description, or None if it can."""
    supports = library.supports
    if library.external is not None and library.external.problem is not None:
        return f"{title}: {library.external.problem}"
    flavour = flavour_of(variant, library)
    if flavour not in library.flavours:
        reason = library.no_flavour.get(flavour)
        return f"{title}: {reason}" if reason else f"{title} has no flavour {flavour}"
    if variant.cipher not in supports.ciphers:
        return f"{title} has no {variant.cipher}"
    for kind, name in (("group", variant.group), ("signature", variant.signature)):
        if (reason := algorithm_reason(title, library, flavour, kind, name)) is not None:
            return reason
    if variant.tls_version == "TLSv1.2" and library.transport == "quic":
        return f"{title}: QUIC has no TLS before 1.3 (RFC 9001, 4.2)"
    if variant.tls_version == "TLSv1.2" and not supports.tls12:
        return f"{title} has no TLS 1.2"
    if (reason := protocol_reason(title, library, variant)) is not None:
        return reason
    if variant.bytes is not None and variant.bytes > (library.max_bytes or variant.bytes):
        return f"{title} is asked for at most {library.max_bytes} bytes"
    if variant.retry and supports.retry is not True:
        return f"{title}: {supports.retry or 'has no Retry'}"
    if variant.initial_size > SMALLEST_INITIAL and supports.initial_size is not True:
        return f"{title}: {supports.initial_size or 'has no larger Initial packets'}"
    controlled = congestion_control_of(library, variant.congestion_control or congestion_control)
    if controlled not in supports.congestion_controls:
        return f"{title} has no congestion control {controlled}"
    if (reason := pacing_reason(title, library, variant, controlled)) is not None:
        return reason
    if (variant.page is not None or variant.video is not None) and not supports.pages:
        return f"{title}: its endpoints load no pages"
    if (reason := visit_reason(title, library, variant)) is not None:
        return reason
    if variant.loaded_by == "chromium" and (reason := browser_reason(variant)) is not None:
        return reason
    if variant.aead == "noop" and not supports.noop:
        return f"{title} has no NOOP AEAD"
    if variant.aead == "noenc" and not supports.noenc:
        return f"{title} cannot leave out packet protection: {noenc_reason(library)}"
    without = not variant.header_protection and variant.aead != "noenc"
    if without and library.transport == "quic" and not supports.header_protection_off:
        return f"{title} cannot switch header protection off"
    if library.transport == "udp" and (variant.receive_buffer, variant.mtu) != (None, None):
        return f"{title} has sockets and datagrams of one size"
    if variant.receive_buffer is not None and library.transport != "quic":
        return f"{title}: the kernel sizes the buffers of TCP"
    if library.external is not None and (reason := unstated_reason(library.external, variant)) is not None:
        return f"{title}: {reason}"
    if variant.aes_hardware is False and isinstance(supports.aes_hardware_off, str):
        return f"{title}: {supports.aes_hardware_off}"
    if variant.march is not None and (reason := march.unsupported_reason(library)) is not None:
        return f"{title}: {reason}"
    limit = None if library.flavours[flavour].jumbo else supports.udp_payload_max
    return _datagram_reason(title, limit, variant.mtu)


def protocol_reason(title: str, library: Library, variant: Variant) -> str | None:
    """Why a library does not speak the application protocol that a variant asks for, or None if it does."""
    if variant.alpn in (None, library.alpn):
        return None
    if library.transport != "quic":
        return f"{title}: HTTP/3 runs over QUIC (RFC 9114)"
    able = library.supports.http3
    return None if able is True else f"{title}: {able or 'has no HTTP/3'}"


def alpn_of(library: Library, variant: CellVariant) -> str:
    """The application protocol of a cell's connections."""
    return variant.alpn or library.alpn


def browser_reason(variant: Variant) -> str | None:
    """Why Chromium cannot load a page as a variant asks, or None if it can."""
    if variant.aead != "standard" or not variant.header_protection:
        return "Chromium protects all packets"
    if variant.group not in BROWSER_GROUPS:
        return f"Chromium sends no key share of {variant.group}"
    if variant.signature not in BROWSER_SIGNATURES:
        return f"Chromium takes no certificates with {variant.signature}"
    return None


def visit_reason(title: str, library: Library, variant: Variant) -> str | None:
    """Why a library cannot make a second visit as a variant asks, or None if it can."""
    if variant.visit == "first":
        return None
    if variant.visit == "kept":
        # what loads pages can load another over the same connection
        in_browser = "the program that drives Chromium waits until the connection of the first visit is closed"
        return in_browser if variant.loaded_by == "chromium" else None
    supports = library.supports
    if supports.resumption is not True:
        return f"{title}: {supports.resumption}"
    if variant.visit == "resumed":
        return None
    if variant.tls_version == "TLSv1.2":
        return "TLS 1.2 has no early data (RFC 8446, 1.2)"
    return None if supports.early_data is True else f"{title}: {supports.early_data}"


def paired_reason(library: Library) -> str | None:
    """Why two programs of a library cannot run at the same time, or None if they can."""
    if library.external is None:
        return None
    return f"{library.title}: two external endpoints cannot run in one folder at the same time"


def open_loop_reason(library: Library, variant: Variant) -> str | None:
    """Why a library's client cannot begin connections as a variant asks, or None if it can."""
    able = library.supports.open_loop
    return None if variant.load is None or able is True else f"{library.title}: {able or 'has no --rate'}"


def _datagram_reason(title: str, limit: int | str | None, mtu: int | None) -> str | None:
    """Why a library cannot fill a link with this MTU, or None if it can."""
    if limit is None or mtu is None or mtu <= DEFAULT_MTU:
        return None
    if isinstance(limit, str):
        return f"{title}: {limit}"
    if mtu - UDP_OVERHEAD <= limit:
        return None
    return f"{title} sends datagrams of at most {limit} bytes, which an MTU of {limit + UDP_OVERHEAD} holds"


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


def cell_variant(variant: Variant, transport: str) -> CellVariant:
    """The variant of a cell; what has no meaning for TCP is null, unless a cell asks for it in vain."""
    quic = transport == "quic"
    # what an experiment does not vary is left out, so that its cells stay those they were
    varied = {
        "tls_version": None if variant.tls_version == "TLSv1.3" else variant.tls_version,
        "chain": None if variant.chain == "leaf" else variant.chain,
        "alpn": variant.alpn,
        "mtu": variant.mtu,
        "receive_buffer": variant.receive_buffer,
        "aes_hardware": variant.aes_hardware,
        "march": variant.march,
        "loss_percent": variant.loss_percent,
        "reorder_permille": variant.reorder_permille,
        "reorder_packets": variant.reorder_packets,
        "rate_mbit": variant.rate_mbit,
        "page": variant.page,
        "loaded_by": None if variant.loaded_by == "endpoint" else variant.loaded_by,
        "visit": None if variant.visit == "first" else variant.visit,
        "video": variant.video,
        "rate_trace": variant.rate_trace,
        "load": variant.load,
        "held": variant.held,
        "processors": variant.processors,
        "offloads": variant.offloads,
        "pacing": variant.pacing,
        "gso": variant.gso,
        "gro": variant.gro,
        "io": variant.io,
        "io_at": variant.io_at,
        "congestion_control": variant.congestion_control,
        "qdisc": variant.qdisc,
        "background": variant.background and variant.background.model_dump(exclude_none=True),
    }
    always = {
        "cipher": variant.cipher,
        "aead": variant.aead,
        "header_protection": variant.header_protection if quic else None,
        "group": variant.group,
        "signature": variant.signature,
        "retry": variant.retry if quic or variant.retry else None,
        "initial_size": variant.initial_size if quic or variant.initial_size > SMALLEST_INITIAL else None,
        "rtt_ms": variant.rtt_ms,
    }
    return CellVariant.model_validate(always | {name: value for name, value in varied.items() if value is not None})


def link_of(cell: Cell, link: Link) -> Link:
    """The link while a cell runs: that of the experiment, with the cell's MTU, rate and super-frames."""
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


def _rough_bytes(project: Project, pair: Pair, scale: Scale) -> int:
    """Size of a download of the scale as far as it is known without a pilot."""
    if scale.least_s is None:
        return scale.bytes
    slow = any(project.libraries[name].max_bytes for name in (pair.client, pair.server))
    return int((SLOW_GOODPUT_BITS if slow else GOODPUT_BITS) / 8 * scale.least_s)


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
    scale = experiment.scales[project.config.scale]
    cells: list[Cell] = []
    for pair in experiment.pairs():
        size = (sizes or {}).get((pair.client, pair.server)) or _rough_bytes(project, pair, scale)
        if experiment.paired:
            cells += _pairs(project, experiment, campaign, pair, builds, size)
            continue
        by_label: dict[str, Cell] = {}
        for variant in _baselines_first(experiment):
            target = variant.baseline or experiment.baseline
            baseline = by_label[target].id if variant.label != experiment.baseline else None
            by_label[variant.label] = _cell(
                project, experiment, campaign, pair, variant, variant.arm, baseline, builds, size
            )
        cells += [by_label[variant.label] for variant in experiment.variants]
        if experiment.aa:
            variant = next(v for v in experiment.variants if v.label == experiment.baseline)
            reference = by_label[variant.label].id
            cells.append(_cell(project, experiment, campaign, pair, variant, "aa", reference, builds, size))
        if experiment.capture:
            cells += [
                _cell(project, experiment, campaign, pair, variant, CAPTURED, None, builds, size)
                for variant in experiment.variants
            ]
    if experiment.primitives:
        for library in dict.fromkeys(name for pair in experiment.pairs() for name in (pair.client, pair.server)):
            cells += _primitives(project, experiment, campaign, library, builds)
    return cells


def _pairs(
    project: Project,
    experiment: Experiment,
    campaign: str,
    pair: Pair,
    builds: Mapping[tuple[str, str], Build],
    size: int,
) -> list[Cell]:
    """Cells of an experiment whose runs are measured in pairs: each one follows its own baseline."""
    cells: list[Cell] = []
    for variant, target, other, arm in _compared(experiment, pair):
        cell = _cell(project, experiment, campaign, pair, variant, arm, None, builds, size)
        beside = _cell(project, experiment, campaign, other, target, BESIDE, None, builds, size, beside=cell)
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


def _primitives(
    project: Project,
    experiment: Experiment,
    campaign: str,
    library: str,
    builds: Mapping[tuple[str, str], Build],
) -> list[Cell]:
    """One cell for every build of a library: its primitives of all algorithms of the experiment."""
    described = project.libraries[library]
    cells = []
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
            "campaign": campaign,
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
    project: Project,
    experiment: Experiment,
    campaign: str,
    pair: Pair,
    variant: Variant,
    arm: str,
    baseline: str | None,
    builds: Mapping[tuple[str, str], Build],
    wanted: int,
    *,
    beside: Cell | None = None,
) -> Cell:
    """A cell; *beside* is the one that it is the baseline of, where both are measured at the same time."""
    scale = experiment.scales[project.config.scale]
    connections = scale.connections_of(variant)
    sides: list[Endpoint] = []
    reason = open_loop_reason(project.libraries[pair.client], variant)
    problem: str | None = None
    for role, name in _sides(pair):
        library = project.libraries[name]
        reason = reason or unsupported_reason(library.title, library, variant, experiment.workload.congestion_control)
        if connections > 1 and experiment.workload.kind == "bulk" and library.external is not None:
            reason = reason or f"{library.title}: an external endpoint makes one download a run"
        if experiment.paired:
            reason = reason or paired_reason(library)
        if experiment.instructions and library.external is not None:
            reason = reason or f"{library.title}: instructions of an external endpoint's scripts would count too"
        if variant.processors is not None and library.external is not None:
            reason = reason or f"{library.title}: an external endpoint is one program, whose script knows one port"
        named = build_of(project, name, variant, role)
        build = builds.get((name, named))
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
        "campaign": campaign,
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
                if open_loop_reason(project.libraries[pair.client], variant) is not None:
                    continue
                for role, library in _sides(pair):
                    described = project.libraries[library]
                    if described.external is not None and described.external.problem is not None:
                        needed.add((library, "stock"))  # which is not made, and says why
                        continue
                    reason = unsupported_reason(
                        described.title, described, variant, experiment.workload.congestion_control
                    )
                    if reason is None:
                        needed.add((library, build_of(project, library, variant, role)))
                        if experiment.primitives:  # which are timed on the client's host
                            needed.add((library, build_of(project, library, variant, "client")))
    return sorted(needed)
