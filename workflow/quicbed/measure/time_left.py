"""Saying when everything will be done: what runs took here, what is left, and the lines for the person watching.

A run of a cell takes what its runs took on this machine on average. Before there is one, it takes what runs of the
reference data took (`quicbed.measure.run_times`), else the rough figures of `quicbed.plan.estimate`, times how much
longer the other runs of its experiment took here, or all others. Proofs tell of proofs only: most of one is capturing.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicbed.base.environment import STARTED
from quicbed.builds import kit, making
from quicbed.config.model import Project
from quicbed.measure import run_times
from quicbed.measure.attempt import MeasureError
from quicbed.measure.campaign import Campaign, block_told
from quicbed.measure.campaign_of_pairs import campaign_for
from quicbed.measure.progress import say
from quicbed.measure.storing import read_run
from quicbed.plan import estimate
from quicbed.plan.arms import BESIDE, CAPTURED, PRIMITIVES
from quicbed.plan.cells import Cell, builds_needed
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run

LOOK_S = 1.0
"""How long is looked at what else the machine does."""
REFRESH_S = 60.0
"""Between two lines that say when all will be done."""
AGAIN_S = 10.0
"""Between two looks at what is left."""
FEWEST_PAIRS = 4
"""Blocks from which on the width of an interval says how many blocks it will take."""
ALIKE = 10
"""So many runs without a repetition are thought of before the first one."""
START_S = 4.0
"""Roughly, to start measuring an experiment: programs, namespaces, and reading what is there."""
# Roughly, in seconds: drawing an experiment's figures; tables, notebooks and the report; and for every run.
DRAW_S = 7.0
ANALYSIS_S = 40.0
ANALYSIS_RUN_S = 0.01
PROOFS = "proofs"
WARM_UP = "warm-up"
RECORD = "forecast.json"
"""The first prediction of a run of the workflow, among the logs."""


@dataclass
class Times:
    """Seconds of runs by cell."""

    _thought: dict[str, tuple[str, float]] = field(default_factory=dict)
    """What a cell is of, and how long it is thought to take."""
    _took: dict[str, run_times.Took] = field(default_factory=dict)
    _sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds that runs took, and those that they were thought to take: of an experiment, and of all (empty)."""

    def think(self, cell: str, of: str, seconds: float) -> None:
        """Expect a run of a cell to take so long on the reference machine; *of* is its experiment or group."""
        self._thought[cell] = of, seconds

    def saw(self, cell: str, seconds: float) -> None:
        """A run took so long here."""
        if cell not in self._thought:
            return
        self._took[cell] = self._took.get(cell, run_times.Took()).and_(run_times.Took(1, seconds))
        of, thought = self._thought[cell]
        for sums in {of} if of == PROOFS else {of, ""}:
            took, expected = self._sums.get(sums, (0.0, 0.0))
            self._sums[sums] = took + seconds, expected + thought

    def __contains__(self, cell: str) -> bool:
        return cell in self._thought

    def slower(self, of: str = "") -> float:
        """How much longer the runs of an experiment take than was thought, or, before there is one, all runs."""
        took, thought = self._sums.get(of) or self._sums.get("", (1.0, 1.0))
        return took / thought if thought else 1.0

    def seconds(self, cell: str) -> float:
        """How long a run will take."""
        if (took := self._took.get(cell)) is not None:
            return took.spent_s / took.runs
        of, thought = self._thought[cell]
        return thought * self.slower(of)


def processors() -> tuple[int, int]:
    """Of all processors together the time used and passed, in ticks."""
    lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text(encoding="ascii").splitlines())
    user, nice, system, idle, waiting, *more = map(int, lines["cpu"].split()[:8])
    passed = user + nice + system + idle + waiting + sum(more)
    return passed - idle - waiting, passed


def busy(look: Callable[[], tuple[int, int]] = processors) -> float:
    """Share of the time of all processors that other programs use now, within `LOOK_S`."""
    before = look()
    time.sleep(LOOK_S)
    used, passed = (now - then for now, then in zip(look(), before, strict=True))
    return used / passed if passed else 0.0


@dataclass(frozen=True)
class Forecast:
    """When things are done, in seconds from now."""

    experiment: float
    everything: float | None
    """With the experiments that come later, and the analysis; None where nothing else is to be done."""


class Outlook:
    """What is left of a run of the workflow, while one of its experiments is measured."""

    def __init__(self, campaign: Campaign, *, whole: bool | None = None) -> None:
        """*whole*: whether more is to come than this experiment; by default what started the workflow knows."""
        self._campaign = campaign
        self._project = campaign.driver.project
        self._whole = STARTED in os.environ if whole is None else whole
        self._shipped = run_times.shipped(self._project)
        self._times = Times()
        self._runs = self._good = ALIKE
        self._said = self._looked = -1e9
        self._forecast = Forecast(0.0, None)
        self._begin = time.monotonic()
        self._first: float | None = None
        self._known = False
        later = self._later() if self._whole else ()
        self._active = {one: self._cells(one) for one in (campaign, *later)}
        for file in campaign.driver.prover.directory.glob(f"[!.]*/{RUN_FILE}"):
            with contextlib.suppress(MeasureError):  # who reads it for its results says so
                self.saw(read_run(file))
        for one in self._active:
            for block in one.blocks():
                for attempts in one.runs(block).values():
                    for run in attempts:
                        self.saw(run)

    def _later(self) -> Iterator[Campaign]:
        """Other experiments of this run of the workflow."""
        for name in self._project.config.experiments:
            if name != self._campaign.name:
                try:
                    yield campaign_for(self._campaign.driver, name)
                except (MeasureError, kit.BuildError) as error:
                    say(f"{name}: {error}; it is not in the prediction for everything")

    def _cells(self, campaign: Campaign) -> dict[str, Cell]:
        """Cells of a campaign that take time, by id; how long is thought of each."""
        active = [cell for cell in campaign.cells if cell.unsupported is None]
        if campaign is not self._campaign:  # what this testbed was found not to be able to
            known = {path.name for path in (campaign.directory / "excluded").glob("*")}
            active = [cell for cell in active if f"{cell.slug}-{cell.id}.0" not in known]
        # a pilot that has not been yet will make downloads larger of which the start of a program would be a large part
        sized = campaign.pilot.sizes if campaign.pilot is not None else {}
        if campaign.experiment.workload.kind == "bulk":
            active = estimate.as_sized(self._project, campaign.name, active, sized)
        by_id = {cell.id: cell for cell in active}
        for cell in active:
            rough = estimate.run_s(self._project, campaign.name, cell, by_id.get(cell.baseline or ""))
            spec = campaign.spec(cell)
            work = run_times.work(spec.bytes, spec.connections)
            for name, arm in ((cell.id, cell.arm), (WARM_UP + cell.id, WARM_UP)):
                like = run_times.key(campaign.name, arm, cell.libraries, cell.label, spec.bytes)
                self._think(name, campaign.name if arm == cell.arm else WARM_UP, like, work, rough)
        kind = campaign.experiment.workload.kind
        proof_s = [estimate.proof_s(self._project, campaign.name, cell) for cell in active if cell.arm != PRIMITIVES]
        if proof_s:
            like = run_times.proofs(kind)
            self._think(like, PROOFS, like, 1, sum(proof_s) / len(proof_s))
        # what is beside another run takes no time of its own
        return {cell.id: cell for cell in active if cell.arm != BESIDE}

    def _think(self, name: str, of: str, like: str, work: int, rough: float) -> None:
        took = self._shipped.get(like)
        self._times.think(name, of, took.seconds(work) if took else rough)

    def saw(self, run: Run) -> None:
        """A run was finished on this machine."""
        spent, arm = run_times.spent_s(run), run.cell.arm
        names = {"proof": run_times.proofs(run.workload.kind), WARM_UP: WARM_UP + run.cell.id, BESIDE: ""}
        if spent is not None and arm != "pilot":
            self._times.saw(names.get(arm, run.cell.id), spent)
            self._known = True
        if run.block is not None and arm not in (BESIDE, CAPTURED, PRIMITIVES):
            self._runs += 1
            self._good += not run.contaminated

    # ---- what is left --------------------------------------------------------------------------------------------

    def _left_s(self, campaign: Campaign) -> float:
        """Seconds that are left of a campaign."""
        excluded, scale = campaign.excluded, campaign.scale
        active = {name: cell for name, cell in self._active[campaign].items() if name not in excluded}
        done = dict.fromkeys(active, 0)
        for block, order in campaign.blocks().items():
            finished = campaign.runs(block)
            for name in order:
                if name in active and campaign.settled(finished.get(name, [])):
                    done[name] += 1
        # a pair counts whatever disturbed it
        repeats = 1.0 if campaign.experiment.paired else self._runs / self._good
        each = {name: self._times.seconds(name) * repeats for name in active}
        needed = self._needed(campaign, active)

        def blocks_s(blocks: Callable[[Cell], int], *, besides: bool) -> float:
            return sum(
                each[name] * max(campaign.blocks_of(cell, blocks(cell)) - done[name], 0)
                for name, cell in active.items()
                if (cell.arm == CAPTURED) == besides
            )

        least = min(scale.min_blocks or scale.blocks, scale.blocks)
        seconds = blocks_s(lambda cell: needed.get(cell.libraries, scale.blocks), besides=False)
        if scale.max_minutes is not None and seconds:
            # a block that is begun in time is finished
            more = scale.max_minutes * 60 - campaign.spent_s() + sum(each.values()) / 2
            seconds = max(min(seconds, more), blocks_s(lambda _: least, besides=False))
        seconds += blocks_s(lambda _: scale.blocks, besides=True)
        if not campaign.warm and seconds:
            proof = run_times.proofs(campaign.experiment.workload.kind)
            seconds += sum(self._times.seconds(proof) for _ in self._unproven(campaign, active))
            seconds += sum(self._times.seconds(WARM_UP + cell.id) for cell in self._warm_ups(campaign))
        if campaign is not self._campaign and seconds:
            seconds += START_S
        return seconds

    def _warm_ups(self, campaign: Campaign) -> list[Cell]:
        """Cells whose runs are the warm-up of a campaign."""
        known = (cell for cell in campaign.cells if WARM_UP + cell.id in self._times)
        return campaign.first_alone([cell for cell in known if cell.id not in campaign.excluded])

    def _needed(self, campaign: Campaign, active: Mapping[str, Cell]) -> dict[tuple[str, str], int]:
        """Blocks until the contrast of pairs of libraries is narrow enough: its width falls with their root."""
        contrast, scale = campaign.experiment.contrast, campaign.scale
        if contrast is None or len(campaign.blocks()) < FEWEST_PAIRS:
            return {}
        least, found = min(scale.min_blocks or scale.blocks, scale.blocks), {}
        for pair, one in campaign.intervals(active).items():
            if one.n >= FEWEST_PAIRS:
                blocks = one.n * (one.half_width / contrast.half_width) ** 2
                more = one.n + 1 if one.half_width > contrast.half_width else 0
                found[pair] = min(max(least, more, round(min(blocks, 1e6))), scale.blocks)
        return found

    def _unproven(self, campaign: Campaign, active: Mapping[str, Cell]) -> set[str]:
        """Proofs that are not there yet."""
        prover = campaign.driver.prover
        there = {path.name.rpartition(".")[0].rpartition("-")[2] for path in prover.directory.glob("*")}
        return {prover.id_of(campaign.proof(c)) for c in active.values() if c.arm != PRIMITIVES} - there

    def look(self) -> Forecast:
        """When this experiment and everything will be done."""
        own = self._left_s(self._campaign)
        if not self._whole:
            return Forecast(own, None)
        later = [self._left_s(campaign) for campaign in self._active if campaign is not self._campaign]
        runs = sum(len(cells) * (one.scale.min_blocks or one.scale.blocks) for one, cells in self._active.items())
        analysis = ANALYSIS_S + ANALYSIS_RUN_S * runs + DRAW_S * (1 + sum(map(bool, later)))
        return Forecast(own, own + sum(later) + analysis * self._times.slower())

    # ---- saying it -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Say when all will be done, before anything is measured: roughly, on a machine that nothing is known of."""
        self._forecast = self.look()
        self._first = self._forecast.experiment
        share = busy() if self._project.testbed.kind == "local" else 0.0
        if share > self._project.config.gate.max_foreign_cpu:
            say(f"other programs use {100 * share:.0f} % of this machine: measuring takes longer beside them")
        roughly = "" if self._known else ", roughly as on the machine of the reference data"
        self._say(f"begins, {self._blocks()} blocks{roughly}")

    def warmed(self) -> None:
        """Proofs and first runs have told how fast this machine is; say when all will be done."""
        self._forecast, self._looked = self.look(), time.monotonic()
        if self._forecast.everything is not None:
            record(self._project.root / "logs", self._forecast.everything)
        self._say("warmed up")

    def proving(self, number: int, of: int) -> None:
        """So many proofs of so many are next."""
        self._refresh(f"proof {number} of {of}")

    def measuring(self, block: int) -> str:
        """A run of a block is finished; returns when the experiment and everything will be done."""
        self._refresh(block_told(block, self._campaign.scale.blocks, self._blocks()))
        everything = self._forecast.everything
        later = "" if everything is None else f", everything about {clock(everything)}"
        return f"; done about {clock(self._forecast.experiment)}{later}"

    def end(self) -> None:
        """Say what is left after the experiment."""
        took = time.monotonic() - self._begin
        told = "" if self._first is None else f", expected were {in_words(self._first)}"
        self._forecast = self.look()
        say(f"{self._campaign.name}: measured in {in_words(took)}{told}{self._everything()}")

    def _blocks(self) -> str:
        """How many blocks there are, for people."""
        scale = self._campaign.scale
        return f"{scale.min_blocks} to {scale.blocks}" if scale.min_blocks else str(scale.blocks)

    def _refresh(self, where: str) -> None:
        now = time.monotonic()
        if now - self._looked >= AGAIN_S:
            self._forecast, self._looked = self.look(), now
        if now - self._said >= REFRESH_S:
            self._say(where)

    def _everything(self) -> str:
        everything = self._forecast.everything
        return "" if everything is None else f"; everything {_when(everything)}"

    def _say(self, where: str) -> None:
        self._said = time.monotonic()
        say(f"{self._campaign.name}: {where}: done {_when(self._forecast.experiment)}{self._everything()}")


def _took(log: Path) -> float | None:
    """Seconds that a job of the workflow took the last time, from its file of Snakemake's benchmarks."""
    with contextlib.suppress(OSError, ValueError, KeyError, StopIteration, UnicodeDecodeError):
        return float(next(csv.DictReader(log.read_text().splitlines(), delimiter="\t"))["s"])
    return None


def in_words(seconds: float) -> str:
    """For people."""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def clock(seconds: float) -> str:
    """Local time so many seconds from now; with the day, unless it is today."""
    now = time.time()
    then, today = time.localtime(now + seconds), time.localtime(now)
    return time.strftime("%H:%M" if then.tm_yday == today.tm_yday else "%a %H:%M", then)


def _when(seconds: float) -> str:
    return f"about {clock(seconds)} (in {in_words(seconds)})"


def record(logs: Path, everything: float) -> None:
    """Keep the first prediction of this run of the workflow that knows the machine."""
    file, started = logs / RECORD, os.environ.get(STARTED, "")
    if (_recorded(file) or {}).get("started") != started:
        now = time.time()
        kit.write_json(file, {"started": started, "said": now, "expected": now + everything})


def _recorded(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(file.read_text(encoding="utf-8"))
        return data if isinstance(data, dict) else None
    return None


def compared(logs: Path) -> str | None:
    """A line that compares the first prediction of this run of the workflow with what it took; None without one."""
    told = _recorded(logs / RECORD)
    if told is None or told.get("started") != os.environ.get(STARTED, ""):
        return None
    took, expected = time.time() - told["said"], told["expected"] - told["said"]
    return (
        f"predicted at {clock(-took)}: {in_words(expected)}; it took {in_words(took)} "
        f"({100 * (expected / took - 1):+.0f} %)"
    )


def building(project: Project, library: str, build: str) -> str:
    """A line before a build of the workflow: which, how many are left, and about when they will be done."""
    needed = builds_needed(project, project.config.experiments)

    def open_(key: tuple[str, str]) -> bool:
        return not (making.is_made(project, *key) or making.listing(project, *key).exists())

    minutes = {key: estimate.build_estimate(project, *key).minutes for key in needed}
    left = [key for key in needed if open_(key) or key == (library, build)]
    took = {key: _took(project.root / "logs" / f"build-{making.build_id(project, *key)}.tsv") for key in needed}
    known = [(found, 60 * minutes[key]) for key, found in took.items() if found and key not in left]
    # as if one more had taken what it is estimated to
    own = 60 * minutes.get((library, build), 1.0)
    ratio = (sum(seconds for seconds, _ in known) + own) / (sum(rough for _, rough in known) + own)
    seconds = ratio * sum(60 * minutes[key] for key in left)
    return (
        f"build {len(needed) - len(left) + 1} of {len(needed)}: {library}, {build}; the builds are done roughly at "
        f"{clock(seconds)} (in {in_words(seconds)})"
    )
