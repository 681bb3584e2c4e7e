"""Two cells or builds compared by concurrent pairs of runs, until the interval of their ratio is narrow enough.

A pair is measured and kept as those of experiments are (`quicbed.measure.stored_pairs`). After the pairs the
instructions of both are counted (`quicbed.measure.counted_arms`).
"""

from __future__ import annotations

import copy
import datetime
import difflib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quicbed.base import durable
from quicbed.base.hashing import digest
from quicbed.base.revision import revision
from quicbed.base.statistics import Interval, blocks_for, paired_ratio
from quicbed.builds import making
from quicbed.builds.kit import BuildError, UnusableError
from quicbed.config.model import ConfigError, Experiment, Pair, Project, Variant, parse_model
from quicbed.measure import certificates, counted_arms, stored_pairs
from quicbed.measure.attempt import MeasureError
from quicbed.measure.concurrent_pair import ARMS, Arm
from quicbed.measure.counted_arms import Counted
from quicbed.measure.driver import Driver
from quicbed.measure.link import link_settings
from quicbed.measure.progress import now, say
from quicbed.measure.session import check_tools, terminating, testbed_of
from quicbed.measure.storing import need_room
from quicbed.plan.cells import Cell, builds_needed, cells_of, paired_reason, slug_of
from quicbed.plan.spec import RunSpec, proof_spec, run_spec
from quicbed.store.campaign import Session
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run
from quicbed.testbed import Testbed, TestbedError

NAME = "compare"
"""Of the experiment of these runs, and of its scale."""
BYTES = 256 * 2**20
TIMEOUT_S = 120.0
FAILURES = 3
"""So many pairs that fail one after the other end a comparison."""
_PAIR = "p[0-9][0-9][0-9][0-9]"
PARTS: Mapping[str, Sequence[str]] = {
    "both ends": stored_pairs.BOTH,
    "client": ("client_cpu_s",),
    "server": ("server_cpu_s",),
}


class UnsupportedError(Exception):
    """What cannot be compared here, with the reason in one line."""


@dataclass(frozen=True)
class Asked:
    """What is to be compared, and until when."""

    arms: Mapping[Arm, str]
    """LIBRARY, LIBRARY/FLAVOUR or EXPERIMENT/CELL."""
    variants: Mapping[Arm, Mapping[str, str]]
    """Values of keys of variants, by arm."""
    bytes: int = BYTES
    """What the faster arm downloads in each pair."""
    half_width: float = 0.01
    """As a fraction of the ratio of both ends."""
    min_pairs: int = 8
    max_pairs: int = 100
    minutes: float = 30.0
    instructions: bool = False
    """Whether they are counted after the pairs."""


@dataclass(frozen=True)
class Compared:
    """What pairs have shown so far."""

    told: Mapping[Arm, str]
    """Both arms for people."""
    directory: Path
    """Of the pairs."""
    half_width: float
    """That was asked for."""
    intervals: Mapping[str, Interval]
    """Processor time per byte of B over A, by `PARTS`."""
    pairs: int
    """That count."""
    failed: int
    earlier: int
    """Of those that count, how many an earlier command has measured."""
    disturbances: Sequence[str]
    """What ought not to have happened while they were measured, one entry a pair."""
    decided: bool
    """Whether the interval of both ends is as narrow as asked."""
    seconds: float
    """That a pair takes."""
    instructions: Counted | str | None = None
    """Of both arms, or why they could not be counted; None where they were not to be."""

    @property
    def needed(self) -> int | None:
        """How many pairs it would take by what is known; None where that is unknown."""
        return blocks_for(self.intervals["both ends"].deviation, self.half_width)

    def as_dict(self) -> dict[str, Any]:
        """For a file of JSON."""
        ratios = {
            name: {"ratio": one.ratio, "low": one.low, "high": one.high, "deviation": one.deviation}
            for name, one in self.intervals.items()
        }
        finite = {
            name: {key: value if math.isfinite(value) else None for key, value in one.items()}
            for name, one in ratios.items()
        }
        return {
            "a": self.told["a"],
            "b": self.told["b"],
            "directory": str(self.directory),
            "unit": "processor time per byte, b over a",
            "ratios": finite,
            "half_width": self.half_width,
            "decided": self.decided,
            "pairs": self.pairs,
            "failed": self.failed,
            "earlier": self.earlier,
            "disturbances": list(self.disturbances),
            "needed": self.needed,
            "instructions": self.instructions.as_dict()
            if isinstance(self.instructions, Counted)
            else self.instructions and {"problem": self.instructions},
        }

    def text(self) -> str:
        """For people."""
        lines = [f"{arm.upper()}  {told}" for arm, told in self.told.items()]
        beside = {"of them measured before": self.earlier, "failed": self.failed}
        more = "".join(f", {count} {name}" for name, count in beside.items() if count)
        lines += ["", f"Processor time per byte, B over A ({self.pairs} pairs{more})"]
        for name, one in self.intervals.items():
            width = f"{100 * (one.ratio - 1):+.2f} % ± {100 * one.half_width:.2f} %" if one.n > 1 else ""
            lines.append(f"  {name:9}  {one.ratio:.4f}  [{one.low:.4f}, {one.high:.4f}]  {width}".rstrip())
        if isinstance(self.instructions, Counted):
            lines += self.instructions.lines()
        elif self.instructions is not None:
            lines.append(f"Instructions are not counted: {self.instructions}")
        if self.disturbances:
            many = f"{len(self.disturbances)} pairs were disturbed"
            lines.append(
                f"{many}, the last because {self.disturbances[-1]}; it affected both arms alike, so they count"
            )
        lines.append(f"Runs: {self.directory}")
        if self.decided:
            lines.append(f"The interval is as narrow as requested, ± {100 * self.half_width:g} %.")
        else:
            more = "" if self.needed is None else f"; about {self.needed} pairs of {self.seconds:.1f} s would do"
            lines.append(f"The interval is wider than requested, ± {100 * self.half_width:g} %{more}.")
        return "\n".join(lines)


def compare(project: Project, asked: Asked, log: Path, opener: Callable[[Project], Testbed] = testbed_of) -> Compared:
    """Measure pairs until the interval of both ends is as narrow as asked, or to the limits.

    Pairs of the same cells that are stored already count. What is not built yet is built, with its output in *log*.
    ConfigError for what does not exist or go together, UnsupportedError for what cannot be done here, and MeasureError
    where pairs fail or the testbed does not work.
    """
    project = _planned(project, asked)
    testbed = opener(project)
    pins = testbed.pins()
    if isinstance(pins, str):
        raise UnsupportedError(pins)
    for arm in ARMS:
        _refuse(_cell(project, arm, {}), project, arm)
    _build(project, log)
    for arm in ARMS:
        check_tools(project, _experiment(arm))
    project.raw.mkdir(parents=True, exist_ok=True)
    need_room(project.raw)
    try:
        with terminating(), testbed:
            pins = testbed.pins()
            if isinstance(pins, str):
                raise UnsupportedError(pins)
            driver = Driver(project, testbed, testbed.facts())
            comparison = Comparison(driver, asked, pins)
            compared = comparison.run()
            return replace(compared, instructions=comparison.count()) if asked.instructions else compared
    except TestbedError as error:
        raise MeasureError(str(error)) from error


class Comparison:
    """Pairs of two arms on one testbed, and what is still missing."""

    def __init__(self, driver: Driver, asked: Asked, pins: Mapping[Any, int]) -> None:
        self._driver = driver
        self._asked = asked
        self._pins = pins
        project = driver.project
        needed = builds_needed(project, [_experiment(arm) for arm in ARMS])
        made = {key: making.read_known(project, *key) for key in needed}
        for key, info in made.items():
            making.keep(project, *key, info.build)
        self._builds = made
        self._cells = {arm: _cell(project, arm, made) for arm in ARMS}
        self._specs: dict[Arm, RunSpec] = {arm: _spec(project, arm, self._cells[arm]) for arm in ARMS}
        identity = {
            "cells": [cell.id for cell in self._cells.values()],
            "machine": asdict(driver.store.host),
            "testbed": project.config.testbed,
            "bytes": asked.bytes,
            "workloads": [spec.workload.model_dump() for spec in self._specs.values()],
            "link": self._specs["a"].link.model_dump(),
        }
        self.id = digest(identity)
        self.directory = driver.store.raw / NAME / self.id
        self._place = {"experiment": NAME, "campaign": self.id}
        self._named: dict[Arm, dict[str, str | None]] = {
            "a": {"arm": "a", "baseline": None},
            "b": {"arm": "b", "baseline": self._cells["a"].id},
        }
        self._proofs: dict[Arm, str] = {}
        self._pairs: dict[int, Mapping[Arm, Run]] = {}

    def run(self) -> Compared:
        """Prove both arms, and measure what is missing."""
        durable.remove_leftovers(self.directory, RUN_FILE)
        self._read()
        earlier = len(self._counting())
        self._prove()
        self._keep_session()
        begin, failures = time.monotonic(), 0
        while True:
            compared = self._compared(earlier)
            measured = len(self._pairs)
            late = time.monotonic() - begin >= 60 * self._asked.minutes
            if compared.decided or compared.pairs >= self._asked.max_pairs or (late and measured):
                return compared
            number = 1 + max(self._pairs, default=-1)
            pair = self._measure(number)
            for arm, run in pair.items():
                if run.status == "unsupported":
                    raise UnsupportedError(f"{self._cells[arm].label}: {run.reason}")
            failures = 0 if stored_pairs.finished(pair) else failures + 1
            if failures == FAILURES:
                many = f"{FAILURES} pairs failed one after the other, the last because of"
                raise MeasureError(f"{many} {stored_pairs.reason(pair)}; see {self.directory}")
            told = _progress(self._compared(earlier)) if stored_pairs.ok(pair) else stored_pairs.reason(pair)
            say(f"{NAME}: pair {number}: {told}")

    def count(self) -> Counted | str:
        """Instructions of both arms, which `run` has proven, or why they cannot be counted."""
        return counted_arms.count(
            self._driver,
            self._specs,
            self.directory / "counted",
            proofs=self._proofs,
            place=self._place,
            named=self._named,
        )

    # ---- before ----------------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        project = self._driver.project
        for arm, spec in self._specs.items():
            reason = self._driver.link.unsupported(spec)
            if reason is not None:
                raise UnsupportedError(f"{self._cells[arm].label}: {reason}")
            say(f"{NAME}: proof of {self._cells[arm].label}")
            experiment = project.experiments[_experiment(arm)]
            verdict = self._driver.prover.prove(proof_spec(project, experiment, self._cells[arm]))
            if verdict.status == "unsupported":
                raise UnsupportedError(f"{self._cells[arm].label}: {verdict.reason}")
            if verdict.status != "ok":
                raise MeasureError(f"{self._cells[arm].label}: is not proven: {verdict.reason}")
            self._proofs[arm] = verdict.proof

    def _keep_session(self) -> None:
        """Record what identifies this command and its builds."""
        for info in self._builds.values():
            file = self.directory / "builds" / f"{info.build}.json"
            if not file.exists():
                info.write(file)
        project = self._driver.project
        values = {
            "started_at": now(),
            "facts": dict(self._driver.facts),
            "config": project.config.model_dump(mode="json"),
            "experiment": {arm: project.experiments[_experiment(arm)].model_dump(mode="json") for arm in ARMS},
            "revision": revision(project.root),
            "cells": [{**cell.as_dict(), "arm": arm} for arm, cell in self._cells.items()],
        }
        name = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{os.getpid()}.json"
        Session.made(values).write(self.directory / "sessions" / name)

    def _read(self) -> None:
        for directory in sorted(self.directory.glob(_PAIR)):
            self._pairs[int(directory.name[1:])] = stored_pairs.read(directory)

    # ---- pairs -----------------------------------------------------------------------------------------------------

    def _measure(self, number: int) -> Mapping[Arm, Run]:
        """One pair, stored."""
        driver = self._driver
        driver.link.await_link()
        driver.link.prepare(self._specs["a"])
        first = stored_pairs.first(driver.project.config.seed, self.id, number)
        place = {**self._place, "block": number, "attempt": 0}
        self._pairs[number] = stored_pairs.measure_pair(
            driver,
            self._specs,
            self.directory / f"p{number:04d}",
            before=[pair for _, pair in sorted(self._pairs.items())],
            first=first,
            pins=self._pins,
            proofs=self._proofs,
            places={arm: {**place, "order": int(arm != first)} for arm in ARMS},
            named=self._named,
        )
        return self._pairs[number]

    def _counting(self) -> dict[int, Mapping[Arm, Run]]:
        """Pairs that count, by number."""
        return {number: pair for number, pair in self._pairs.items() if stored_pairs.ok(pair)}

    def _compared(self, earlier: int) -> Compared:
        counting = self._counting()
        intervals = {
            name: paired_ratio(
                [(number, stored_pairs.per_byte(pair["b"], parts)) for number, pair in counting.items()],
                [(number, stored_pairs.per_byte(pair["a"], parts)) for number, pair in counting.items()],
            )
            for name, parts in PARTS.items()
        }
        disturbed = ["; ".join(pair["a"].contamination) for pair in counting.values()]  # as b was
        spent = [run.metrics.spent_s or 0.0 for pair in counting.values() for run in pair.values()]
        n = len(counting)
        return Compared(
            told={arm: _described(cell) for arm, cell in self._cells.items()},
            directory=self.directory,
            half_width=self._asked.half_width,
            intervals=intervals,
            pairs=n,
            failed=len(self._pairs) - n,
            earlier=earlier,
            disturbances=[one for one in disturbed if one],
            decided=n >= self._asked.min_pairs and intervals["both ends"].half_width <= self._asked.half_width,
            seconds=sum(spent) / len(spent) if spent else 0.0,
        )


# ---- what is asked ---------------------------------------------------------------------------------------------------


def _experiment(arm: Arm) -> str:
    return f"{NAME}-{arm}"


def _planned(project: Project, asked: Asked) -> Project:
    """The project with an experiment for each arm, of one variant."""
    planned = copy.copy(project)
    planned.config = project.config.model_copy(
        update={"scale": NAME, "study": None, "experiments": [_experiment(arm) for arm in ARMS]}
    )
    planned.experiments = {_experiment(arm): _arm(project, asked, arm) for arm in ARMS}
    settings = [link_settings(_spec(planned, arm, _cell(planned, arm, {}))).model_dump() for arm in ARMS]
    for name, value in settings[0].items():
        if settings[1][name] != value:
            raise ConfigError(
                f"{name} is a setting of the link, which both arms share: A has {value}, B has {settings[1][name]}; "
                "give both the same"
            )
    return planned


def _arm(project: Project, asked: Asked, arm: Arm) -> Experiment:
    name, _, of = asked.arms[arm].partition("/")
    where = f"arm {arm.upper()} ({asked.arms[arm]})"
    data: dict[str, Any] = {"workload": {"kind": "bulk"}, "link": {"mode": "throughput"}}
    variant: dict[str, Any] = {"cipher": "aes-128-gcm"}
    libraries: list[Any] = [name]
    if name in project.experiments:
        libraries, variant, data = _of_cell(project.experiments[name], where, of)
    elif name in project.libraries:
        libraries = [name]
        if of:
            if of not in project.libraries[name].flavours:
                raise ConfigError(
                    f"{where}: has no flavour `{of}`; it has {', '.join(project.libraries[name].flavours)}"
                )
            variant["flavour"] = of
    else:
        raise ConfigError(f"{where}: no library or experiment is named `{name}`; see `quicbed list libraries`")
    given = {**variant, **asked.variants[arm], "label": asked.arms[arm]}
    variant = parse_model(Variant, given, where).model_dump(exclude_unset=True)
    made = {
        **data,
        "title": NAME,
        "source": "none",
        "question": "What is the ratio of their processor times?",
        "libraries": libraries,
        "variants": [variant],
        "baseline": variant["label"],
        "aa": False,
        "scales": {NAME: {"bytes": asked.bytes, "blocks": 1, "timeout_s": TIMEOUT_S}},
    }
    return parse_model(Experiment, made, where)


def _of_cell(
    experiment: Experiment, where: str, slug: str
) -> tuple[list[dict[str, str]], dict[str, Any], dict[str, Any]]:
    """Client and server, variant, and workload and link of a cell of an experiment."""
    if experiment.workload.kind != "bulk":
        raise ConfigError(f"{where}: its experiment has workload `{experiment.workload.kind}`; downloads are compared")
    found: dict[str, tuple[Pair, Variant]] = {
        slug_of(pair, variant.label): (pair, variant) for pair in experiment.pairs() for variant in experiment.variants
    }
    if slug not in found:
        close = difflib.get_close_matches(slug, found, n=5, cutoff=0) or list(found)[:5]
        raise ConfigError(f"{where}: its experiment has no cell `{slug}`; among its cells are {', '.join(close)}")
    pair, variant = found[slug]
    own = variant.model_dump(exclude_defaults=True, exclude={"label", "baseline", "arm", "bytes"})
    same = {"workload": experiment.workload.model_dump(), "link": experiment.link.model_dump()}
    return [pair.model_dump()], own, same


def _cell(project: Project, arm: Arm, builds: Mapping[Any, Any]) -> Cell:
    return cells_of(project, _experiment(arm), NAME, builds)[0]


def _spec(project: Project, arm: Arm, cell: Cell) -> RunSpec:
    name = _experiment(arm)
    return run_spec(project, project.experiments[name], cell, project.scale(name))


def _refuse(cell: Cell, project: Project, arm: Arm) -> None:
    """UnsupportedError for what is known not to work before anything is built."""
    if cell.unsupported is not None:
        raise UnsupportedError(f"{cell.label}: {cell.unsupported}")
    for library in _spec(project, arm, cell).libraries.values():
        if (reason := paired_reason(library)) is not None:
            raise UnsupportedError(reason)


def _build(project: Project, log: Path) -> None:
    """Have the builds and certificates of both arms, and say what is made."""
    names = [_experiment(arm) for arm in ARMS]
    jobs = os.cpu_count() or 1
    for library, build in builds_needed(project, names):
        try:
            known = making.read_known(project, library, build)
        except BuildError:
            if not making.is_made(project, library, build):
                say(f"{NAME}: {library}/{build} is not built yet; building it, with output in {log}")
            with suppress(UnusableError):  # whose reason is kept
                making.build(project, library, build, jobs=jobs, log=log)
            known = making.read_known(project, library, build)
        if known.problem is not None:
            raise UnsupportedError(f"{library}/{build}: {known.problem}")
    certificates.make_all(project, certificates.needed(project, names), jobs=jobs, log=log)


# ---- what pairs say --------------------------------------------------------------------------------------------------


def _progress(compared: Compared) -> str:
    one = compared.intervals["both ends"]
    return f"{one.ratio:.4f} ± {100 * one.half_width:.2f} %" if one.n > 1 else f"{one.ratio:.4f}"


def _described(cell: Cell) -> str:
    """A cell for people: builds and variant."""
    sides = dict.fromkeys(f"{side.library}/{side.flavour} {side.version}" for side in (cell.client, cell.server))
    # what is nothing is left out, as no round-trip time
    variant = {name: value for name, value in cell.variant.as_dict().items() if value or value is False}
    settings = ", ".join(f"{name} {_shown(value)}" for name, value in variant.items())
    return f"{' to '.join(sides)}: {settings}"


def _shown(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
