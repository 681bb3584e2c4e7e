"""Trying the folder of an external endpoint: what it states is proven, and it is timed, before it is measured.

Nothing of it is data: runs go to a directory of their own, which the next try of the folder replaces.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from quicbed.base import trees
from quicbed.builds import making
from quicbed.builds.kit import BuildError
from quicbed.config.model import (
    ConfigError,
    Experiment,
    External,
    ExternalFile,
    Library,
    Project,
    Statement,
    external_library,
    parse_model,
    read_statement,
)
from quicbed.measure import certificates
from quicbed.measure.attempt import Attempt
from quicbed.measure.driver import Driver
from quicbed.measure.session import testbed_of
from quicbed.measure.storing import read_run
from quicbed.plan.built import Build
from quicbed.plan.cells import Cell, cells_of
from quicbed.plan.sizing import START_SHARE
from quicbed.plan.spec import RunSpec, proof_spec, run_spec
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Evidence
from quicbed.testbed import Testbed, TestbedError
from quicbed.wire.handshake import CIPHER_SUITES

KINDS = ("bulk", "sending", "handshake")
"""What is tried: downloads that are captured, downloads with settings that no capture shows, handshakes."""
PLAIN = "plain"
"""Label of the variant with the first of everything that a folder states."""
NAME = "try"
"""Of the experiment and its scale, and of a folder that no library describes."""
BYTES = 64 * 2**20
SHORT_BYTES = 1
TIMES = 3
"""Downloads of each size; the median counts."""
SMALL_BUFFER = 425_984
"""Bytes, other than what experiments set by default."""


@dataclass(frozen=True)
class Outcome:
    """What one step of a try showed."""

    step: str
    ok: bool
    told: str


def try_folder(
    project: Project,
    folder: Path,
    parameters: Mapping[str, str],
    opener: Callable[[Project], Testbed] = testbed_of,
) -> Iterator[Outcome]:
    """What the folder does, step by step, and whether that is what it states.

    The steps after a wrong statement or a failed build are left out. A folder that a library of the project describes
    is tried as described there, with *parameters* on top. Raises ConfigError where the folder is none, and TestbedError
    where the testbed cannot be opened.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is no directory; give the folder of the endpoint")
    try:
        stated = read_statement(folder.resolve(), project.algorithms)
    except ConfigError as error:
        yield Outcome("statement", False, str(error))
        return
    name, library = _described(project, folder.resolve(), parameters)
    tried = _alone(project, name, library, stated)
    if tried.raw.exists():
        trees.remove(tried.raw)
    made: dict[tuple[str, str], Build] = {}
    for flavour in stated.flavours:
        built = _built(tried, name, flavour)
        yield built
        if not built.ok:
            return
        made[name, flavour] = making.read_build(tried, name, flavour)
    classical = [one.name for one in tried.algorithms.signatures if not one.quantum_safe]
    needed = [one for one in certificates.needed(tried) if one in classical]
    certificates.make_all(tried, needed, jobs=1, log=_log(tried, name))
    with opener(tried) as testbed:
        driver = Driver(tried, testbed, testbed.facts())
        for kind in KINDS:
            yield from _tried(driver, kind, made)


def _log(project: Project, name: str) -> Path:
    return project.root / "logs" / f"try-{name}.log"


def _described(project: Project, folder: Path, parameters: Mapping[str, str]) -> tuple[str, Library]:
    """Name and description of the library of a folder."""
    for name, library in project.libraries.items():
        external = library.external
        if external is not None and (project.root / external.folder.path).resolve() == folder:
            own = external.folder
            update = {"parameters": {**own.parameters, **parameters}}
            file = ExternalFile(external=own.model_copy(update=update))
            return name, external_library(project.root, name, file, project.algorithms)
    file = ExternalFile(external=External(path=str(folder), parameters=dict(parameters)))
    return NAME, external_library(project.root, NAME, file, project.algorithms)


def _built(project: Project, name: str, flavour: str) -> Outcome:
    step = "build" if flavour == "stock" else f"build of flavour {flavour}"
    log = _log(project, name)
    try:
        making.build(project, name, flavour, jobs=1, log=log)
    except BuildError as error:
        return Outcome(step, False, f"{error}; {log}")
    return Outcome(step, True, f"{name}, version {making.read_build(project, name, flavour).version}")


def _alone(project: Project, name: str, library: Library, stated: Statement) -> Project:
    """The project with this library alone in one experiment for each workload, and with a place of its own for runs."""
    tried = copy.copy(project)
    tried.libraries = {**project.libraries, name: library}
    paths = project.config.paths.model_copy(update={"raw": f"{project.config.paths.build}/try/{name}"})
    names = [_named(kind) for kind in KINDS]
    update = {"scale": NAME, "study": None, "paths": paths, "experiments": names, "libraries": [name]}
    tried.config = project.config.model_copy(update=update)
    tried.experiments = {_named(kind): _experiment(kind, name, stated) for kind in KINDS}
    return tried


def _named(kind: str) -> str:
    return f"{NAME}-{kind}"


def _variants(kind: str, stated: Statement) -> dict[str, dict[str, Any]]:
    """A variant for everything that a folder states and that is seen from outside, by what is different in it."""
    able = stated.supports
    plain: dict[str, Any] = {"cipher": able.ciphers[0], "group": able.groups[0], "signature": able.signatures[0]}
    if kind == "handshake":
        more: dict[str, dict[str, Any]] = {PLAIN: {}}
        more |= {"Retry": {"retry": True}} if able.retry else {}
        more |= {"large Initial packets": {"initial_size": 1400}} if able.initial_size else {}
        return {label: plain | one for label, one in more.items()}
    if kind == "sending":
        more = {PLAIN: {}}
        more |= {"buffers": {"receive_buffer": SMALL_BUFFER}} if able.receive_buffer else {}
        more |= {"offloads off": {"offloads": "off"}} if able.gso and able.gro else {}
        return {label: plain | one for label, one in more.items()}
    found = {PLAIN: plain}
    for key, names in (("cipher", able.ciphers), ("group", able.groups), ("signature", able.signatures)):
        found |= {f"{key} {name}": plain | {key: name} for name in names[1:]}
    if able.noenc:
        found["NOENC"] = plain | {"aead": "noenc", "header_protection": False}
    if able.noop:
        found["NOOP"] = plain | {"aead": "noop"}
    if able.header_protection_off:
        found["header protection off"] = plain | {"header_protection": False}
    for flavour, own in stated.flavours.items():
        groups, signatures = own.groups or able.groups[:1], own.signatures or able.signatures[:1]
        first = plain | {"flavour": flavour, "group": groups[0], "signature": signatures[0]}
        named = [("group", name) for name in own.groups or ()] + [("signature", name) for name in own.signatures or ()]
        found |= {f"flavour {flavour}, {key} {name}": first | {key: name} for key, name in named}
    return found


def _experiment(kind: str, name: str, stated: Statement) -> Experiment:
    variants = _variants(kind, stated)
    data = {
        "title": NAME,
        "source": "none",
        "question": "Does it keep its contract?",
        "workload": {"kind": "handshake" if kind == "handshake" else "bulk", "congestion_control": "any"},
        "link": {"mode": "wire" if kind == "handshake" else "throughput"},
        "libraries": [name],
        "variants": [{"label": label, **variant} for label, variant in variants.items()],
        "baseline": PLAIN,
        "aa": False,
        "scales": {NAME: {"bytes": 1 if kind == "handshake" else BYTES, "blocks": 1, "timeout_s": 60}},
    }
    return parse_model(Experiment, data, NAME)


def _tried(driver: Driver, kind: str, made: Mapping[tuple[str, str], Build]) -> Iterator[Outcome]:
    """The steps with one workload; only the first one, where that goes wrong."""
    for cell in cells_of(driver.project, _named(kind), NAME, made):
        if kind == "sending":
            if cell.label != PLAIN:
                yield _sent(driver, cell)
            continue
        outcome = _proven(driver, kind, cell)
        yield outcome
        if cell.label == PLAIN:
            if not outcome.ok:
                return
            if kind == "bulk":
                yield _timed(driver, cell)


def _proven(driver: Driver, kind: str, cell: Cell) -> Outcome:
    """One captured download, or series of handshakes, and what its capture shows."""
    step = "download" if kind == "bulk" else "handshakes"
    step += ", captured" if cell.label == PLAIN else f", {cell.label}"
    project = driver.project
    if cell.unsupported is not None:
        return Outcome(step, False, f"unsupported: {cell.unsupported}")
    identity = certificates.of_variant(cell.variant)
    if certificates.problem(certificates.directory(project, identity)) is not None:
        return Outcome(step, False, f"there is no certificate; run `quicbed certificates {identity}`")
    verdict = driver.prover.prove(proof_spec(project, project.experiments[_named(kind)], cell))
    files = sorted(driver.prover.directory.glob(f"[!.]*-{verdict.proof}.*/{RUN_FILE}"))
    where = f"; {files[-1].parent}" if files else ""
    if verdict.status != "ok":
        return Outcome(step, False, f"{verdict.status}: {verdict.reason}{where}")
    run = read_run(files[-1])
    if kind == "bulk":
        return Outcome(step, True, _seen(project, run.evidence))
    median_ms, count = run.metrics.ttfb_ms or 0, run.metrics.connections
    return Outcome(step, True, f"{count} handshakes, time to first byte {median_ms:.2f} ms (median)")


def _sent(driver: Driver, cell: Cell) -> Outcome:
    """A download with settings that no capture shows: what the event files say of them."""
    step = f"download, {cell.label}"
    spec = run_spec(
        driver.project, driver.project.experiments[_named("sending")], cell, driver.project.scale(_named("sending"))
    )
    attempt = _once(driver, replace(spec, bytes=BYTES // 8), driver.store.raw / cell.slug)
    if not attempt.ok:
        return Outcome(step, False, f"{attempt.status}: {attempt.reason}")
    return Outcome(step, True, attempt.evidence.get("unproven") or "as requested, by the event files of both ends")


def _seen(project: Project, evidence: Evidence) -> str:
    """What the capture of a download shows, for people."""
    found = evidence.seen or {}
    if not found:
        return "without what its capture shows"
    ciphers = {code: name for name, code in CIPHER_SUITES.items()}
    groups = {group.code_point: group.name for group in project.algorithms.groups}
    named: dict[str, list[str]] = {
        "cipher suite": [ciphers.get(code, f"{code:#06x}") for code in found["cipher_suites"]],
        "group": [groups.get(code, f"{code:#06x}") for code in found["groups"]],
        "signature scheme": [f"{code:#06x}" for code in evidence.signatures or ()],
    }
    parts = [f"{key} {', '.join(names)}" for key, names in named.items() if names]
    for way in ("client_to_server", "server_to_client"):
        one = found[way]
        parts.append(
            f"{way.replace('_', ' ')}: {one['packets']} packets, {one['mean_frame_bytes']:.0f} bytes a frame, "
            f"headers {one['headers']}, tags {one['tags']}"
        )
    return "; ".join([f"connections {found['connections']}", *parts, *filter(None, [evidence.unproven])])


def _timed(driver: Driver, cell: Cell) -> Outcome:
    """Downloads as they are measured: goodput, and how long one must be so that starting programs hardly counts."""
    step = "downloads, timed"
    name = _named("bulk")
    spec = run_spec(driver.project, driver.project.experiments[name], cell, driver.project.scale(name))
    took: dict[int, float] = {}
    for size in (SHORT_BYTES, BYTES):
        runs = []
        for number in range(TIMES):
            attempt = _once(driver, replace(spec, bytes=size), driver.store.raw / f"{size}.{number}")
            if not attempt.ok:
                return Outcome(step, False, f"{size} bytes: {attempt.status}: {attempt.reason}")
            runs.append(8 * attempt.metrics["bytes"] / attempt.metrics["goodput_mbps"] / 1e6)
        took[size] = median(runs)
    if not spec.silent("client"):
        return Outcome(
            step,
            True,
            f"{8 * BYTES / took[BYTES] / 1e6:.0f} Mbit/s with {BYTES >> 20} MiB, by the times that it reports",
        )
    transfer = max(took[BYTES] - took[SHORT_BYTES], 1e-9)
    rate = 8 * BYTES / transfer / 1e6
    needed = took[SHORT_BYTES] / START_SHARE * rate * 1e6 / 8
    return Outcome(
        step,
        True,
        f"{8 * BYTES / took[BYTES] / 1e6:.0f} Mbit/s with {BYTES >> 20} MiB, of which "
        f"{1000 * took[SHORT_BYTES]:.0f} ms are the programs' start and the handshake (a download of 1 byte); they are "
        f"{START_SHARE:.0%} of {needed / 2**20:.0f} MiB",
    )


def _once(driver: Driver, spec: RunSpec, directory: Path) -> Attempt:
    directory.mkdir(parents=True)
    driver.link.prepare(spec)
    try:
        return driver.runner.execute(spec, directory)
    except TestbedError as error:
        attempt = Attempt()
        attempt.fail(str(error))
        return attempt
