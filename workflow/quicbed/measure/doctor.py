"""What a testbed has and needs, and which experiments it can measure, before anything is measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from quicbed.builds import build_store
from quicbed.builds.kit import BuildError
from quicbed.config.model import Project
from quicbed.measure import browser, generator, player, workflow_estimate
from quicbed.measure.session import testbed_of
from quicbed.plan.cells import Cell, cells_of, load_of
from quicbed.plan.host import host_of
from quicbed.testbed import features
from quicbed.testbed.facts import machine
from quicbed.testbed.features import Feature
from quicbed.testbed.remote import PROCESSOR, SshTestbed
from quicbed.testbed.shaping import qdisc_problem
from quicbed.wire import tshark

NEEDED = ("root", "namespaces", "veth", "bridge")
BUILD_TOOLS = ("gcc", "g++", "make", "cmake", "perl", "patch", "git")
TOOLCHAINS = Path(__file__).resolve().parents[3] / "tools" / "toolchains.py"
_CANNOT = "unsupported: "
NAMED_CELLS = 3
"""Cells that are named of those with the same reason."""


def doctor(project: Project, tell: Callable[[str], None] = print) -> int:
    """Say line by line what the testbed is, and of every experiment whether it can be measured there.

    Returns 1 if the experiments of the configuration cannot be measured for want of something.
    """
    tell(f"testbed {project.config.testbed} ({project.testbed.kind})")
    problem = tshark.problem()
    captures = Feature(problem is None, problem or "")
    if project.testbed.kind == "ssh":
        missing, found, processors = _hosts(project, captures, tell)
    else:
        missing, found = _local(project, captures, tell)
        processors = [machine()["cpu_flags"]]
    missing |= _generator(project, found, tell)
    tell("this machine")
    for name, text in _machine(project):
        tell(f"  {name:13} {text}")
    tell(f"experiments, scale {project.config.scale}")
    width = max(map(len, project.experiments))
    for name in project.experiments:
        verdict, reasons = judged(project, name, found, processors)
        tell(f"  {name:{width}}  {verdict}")
        for reason in reasons:
            tell(f"  {'':{width}}    {reason}")
    return int(missing)


def judged(
    project: Project, name: str, found: Mapping[str, Feature], processors: Sequence[Collection[str]] = ()
) -> tuple[str, list[str]]:
    """Whether an experiment can be measured, `yes`, `in part` or `no`, with cells; and why not, a reason each line.

    *processors* are the flags of those that compute, as far as they are known.
    """
    experiment = project.experiments[name]
    if project.config.scale not in experiment.scales:
        project = project.without_study()
    blocking = [f"{one}: {lack}" for one in NEEDED if (lack := _lack(found, one))]
    if experiment.workload.kind == "handshake" and (lack := _lack(found, "tshark")):
        blocking.append(lack)
    if experiment.paired and isinstance(pins := testbed_of(project).pins(), str):
        blocking.append(pins)
    free_mb, needed_mb = shutil.disk_usage(project.root).free / 1e6, workflow_estimate.disk_mb(project, [name])
    if free_mb < needed_mb:
        blocking.append(f"its builds and runs need {needed_mb / 1000:.1f} GB of disk, {free_mb / 1000:.1f} GB are free")
    if blocking:
        return "no", blocking
    cells = cells_of(project, name, "", {})
    reasons = {cell: reason for cell in cells if (reason := _reason(project, name, cell, found, processors))}
    can = len(cells) - len(reasons)
    if not reasons:
        return f"yes, {can} cells", []
    return (f"in part, {can} of {len(cells)} cells" if can else "no"), _grouped(project, reasons)


def _grouped(project: Project, reasons: Mapping[Cell, str]) -> list[str]:
    """A line for each reason, with the cells, and the libraries where it is the same of several."""
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for cell, reason in reasons.items():
        titles = (project.libraries[name].title for name in cell.libraries)
        title = next((title for title in titles if reason.startswith((f"{title} ", f"{title}: "))), "")
        named, labels = groups.setdefault(reason.removeprefix(title).lstrip(": "), ([], []))
        named.append(title)
        labels.append(cell.label)
    return [_in_one_line(reason, *group) for reason, group in groups.items()]


def _in_one_line(reason: str, named: list[str], labels: list[str]) -> str:
    cells = list(dict.fromkeys(labels))
    more = f" and {len(cells) - NAMED_CELLS} more" if len(cells) > NAMED_CELLS else ""
    libraries = ", ".join(filter(None, dict.fromkeys(named)))
    words = f"{libraries}: {reason}" if libraries else reason
    return f"{len(labels)} unsupported ({'; '.join(cells[:NAMED_CELLS])}{more}): {words}"


def _lack(found: Mapping[str, Feature], name: str) -> str | None:
    """Why the testbed cannot do something; None if nothing is known against it."""
    feature = found.get(name)
    return None if feature is None or feature.available else feature.reason


def _reason(
    project: Project, name: str, cell: Cell, found: Mapping[str, Feature], processors: Sequence[Collection[str]]
) -> str | None:
    """Why a cell cannot be measured: a library cannot do it, or the testbed."""
    if cell.unsupported is not None:
        return cell.unsupported
    variant = cell.variant
    if lack := project.algorithms.lacking(variant.group, processors):
        return lack
    if variant.rtt_ms and (lack := _lack(found, "delay")):
        return f"no round-trip time: {lack}"
    if variant.loss_percent and (lack := _lack(found, "loss")):
        return f"no losses: {lack}"
    if variant.reorder_packets and (lack := _lack(found, "reorder")):
        return f"no reordering: {lack}"
    if variant.qdisc and (lack := qdisc_problem(variant.qdisc, _lack(found, variant.qdisc) or "")):
        return lack
    if project.experiments[name].perf is not None and (lack := _lack(found, "perf")):
        return lack
    if project.experiments[name].instructions is not None and (lack := _lack(found, "valgrind")):
        return lack
    if variant.loaded_by and project.testbed.kind == "local" and (lack := browser.problem()):
        return lack
    if variant.video and (lack := player.problem(project)):
        return lack
    if load_of(cell) is not None:
        if project.testbed.generator is None:
            return f"testbed {project.config.testbed} has no generator of competing traffic"
        return _lack(found, "generator")
    return None


def _store(project: Project) -> str:
    """The store of builds, and what it has room for."""
    try:
        build_store.check(project.store, project.root)
    except BuildError as error:
        return f"{_CANNOT}{error}"
    return f"{shutil.disk_usage(project.store).free / 1e9:.1f} GB free at {project.store}, the store of builds"


def _machine(project: Project) -> Iterator[tuple[str, str]]:
    """What builds and runs need of the machine this runs on."""
    yield "processors", f"{os.cpu_count()} x {host_of(machine()).described}"
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    total, available = (int(memory[key].split()[0]) / 1e6 for key in ("MemTotal", "MemAvailable"))
    yield "memory", f"{total:.1f} GB, {available:.1f} GB available"
    yield "disk", f"{shutil.disk_usage(project.root).free / 1e9:.1f} GB free at {project.root}"
    yield "store", _store(project)
    remedy = "`make setup` installs it"
    absent = [name for name in BUILD_TOOLS if shutil.which(name) is None]
    yield "build tools", f"{_CANNOT}no {', '.join(absent)}; {remedy}" if absent else f"yes: {', '.join(BUILD_TOOLS)}"
    done = subprocess.run([sys.executable, str(TOOLCHAINS)], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        name, _, problem = line.partition("\t")
        yield name, f"{_CANNOT}{problem}; {remedy}" if problem else "yes"


def _local(project: Project, captures: Feature, tell: Callable[[str], None]) -> tuple[bool, dict[str, Feature]]:
    """Say what this machine's kernel and tools can do; returns whether something needed is missing, and all of it."""
    needed = {*NEEDED, "tshark"} if _captures(project) else set(NEEDED)
    found = {**features(), "tshark": captures}
    missing = False
    for name, feature in found.items():
        required = name in needed
        missing |= required and not feature.available
        tell(f"  {name:13} {'yes' if feature.available else _absence(feature, required=required)}")
    return missing, found


def _hosts(
    project: Project, captures: Feature, tell: Callable[[str], None]
) -> tuple[bool, dict[str, Feature], list[list[str]]]:
    """Say what the hosts of a testbed over SSH are; returns whether one cannot be used, what they cannot do, and the
    flags of their processors.
    """
    required = _captures(project)
    missing = required and not captures.available
    tell(f"  {'tshark':12} {'yes' if captures.available else _absence(captures, required=required)}")
    found = {"tshark": captures}
    processors: list[list[str]] = []
    for where, rows in SshTestbed(project.config.testbed, project.testbed).inspect().items():
        tell(where)
        if PROCESSOR in rows:
            processors.append(rows[PROCESSOR].reason.split())
        for name, feature in rows.items():
            missing |= not feature.available
            tell(f"  {name:13} {(feature.reason or 'yes') if feature.available else _absence(feature, required=True)}")
            if feature.reason.startswith(_CANNOT):
                found[name] = Feature(False, f"{where}: {feature.reason.removeprefix(_CANNOT)}")
    return missing, found, processors


def _generator(project: Project, found: dict[str, Feature], tell: Callable[[str], None]) -> bool:
    """Say what the testbed's generator of competing traffic is; returns whether it is needed and cannot be used."""
    settings = project.testbed.generator
    # iperf3 runs on the hosts, which tell themselves
    if settings is None or (settings.kind == "iperf3" and project.testbed.kind == "ssh"):
        return False
    tell(f"generator {settings.kind}")
    chosen = [project.experiments[name] for name in project.config.experiments]
    required = any(variant.background is not None for experiment in chosen for variant in experiment.variants)
    missing = False
    for name, feature in generator.inspect(settings, project.config.testbed).items():
        missing |= required and not feature.available
        tell(f"  {name:13} {feature.reason if feature.available else _absence(feature, required=required)}")
        if not feature.available:
            found["generator"] = feature
    return missing


def _captures(project: Project) -> bool:
    """Whether handshakes are captured by the experiments of the configuration."""
    return any(project.experiments[name].workload.kind == "handshake" for name in project.config.experiments)


def _absence(feature: Feature, *, required: bool) -> str:
    return f"MISSING: {feature.reason}" if required else f"{_CANNOT}{feature.reason}"
