"""Saying when everything will be done: what runs on disk tell, what is left, and the lines for the person watching.

`quicbed.plan.forecast` computes. Runs of this machine count first, then those of the reference data, which know how
libraries and algorithms differ, then the rough figures of `quicbed.plan.estimate`.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from quicbed.base.environment import STARTED
from quicbed.base.statistics import paired_ratio
from quicbed.builds import kit, making
from quicbed.config.model import Project
from quicbed.measure.attempt import MeasureError
from quicbed.measure.campaign import Campaign, block_told
from quicbed.measure.campaign_of_pairs import campaign_for
from quicbed.measure.progress import say
from quicbed.measure.run_times import Finished, shipped
from quicbed.measure.storing import read_run
from quicbed.plan import estimate
from quicbed.plan.arms import BESIDE, CAPTURED, PRIMITIVES
from quicbed.plan.cells import Cell, builds_needed
from quicbed.plan.forecast import AGAIN, AGAIN_BUSY, EVERYTHING, Left, Pace, Repeats, Span, Work, blocks_needed
from quicbed.plan.host import Host
from quicbed.plan.spec import RunSpec
from quicbed.plan.variant import Variant
from quicbed.store.paths import RUN_FILE, directories
from quicbed.store.record import Run

LOOK_S, LOOKS = 1.0, 20
"""How long is looked at what else the machine does, and how often in that time."""
PAST_RUNS = 4000
"""Of the runs on disk the newest tell how long runs take here."""
REFRESH_S = 60.0
"""Between two lines that say when all will be done."""
AGAIN_S = 10.0
"""Between two looks at what is left."""
START_S = 4.0
"""Roughly, to start measuring an experiment: programs, namespaces, and reading what is there."""
# Roughly, in seconds: drawing an experiment's figures; tables, notebooks and the report; and for every run. A capture
# is dissected again.
DRAW_S = 7.0
ANALYSIS_S = 20.0
ANALYSIS_RUN_S = 0.01
DISSECT_S = 0.1
JOB_S = 1.0
"""Between two jobs."""
ANALYSIS_RULES = ("runs", "dissect", "verdicts", "notebooks", "report")
RECORD = "forecast.json"
"""The first prediction of a run of the workflow, among the logs."""


PAIR = "pair"
"""What two runs at the same time have in common."""


class Works:
    """Runs as `quicbed.plan.forecast` knows them, those that are planned and those on disk."""

    def __init__(self, project: Project) -> None:
        self._project = project
        variants = (variant for experiment in project.experiments.values() for variant in experiment.variants)
        self._long = {variant.signature for variant in variants if variant.slow and not variant.rtt_ms}
        pings = project.config.gate.ping
        self._pings_s = pings.count * pings.interval_ms / 1000

    def planned(self, campaign: Campaign, cell: Cell) -> Work:
        """A run of a cell."""
        if cell.arm == PRIMITIVES:
            return self._primitives(cell.client.library, cell.variant)
        spec = campaign.spec(cell)
        pair = campaign.experiment.paired and cell.arm != BESIDE
        measured = "counted" if spec.counted else "perf" if spec.perf else PAIR if pair else ""
        extra = "captured" if spec.captured else measured
        return self._of(spec, extra, pinged=campaign.experiment.ping)

    def proof(self, campaign: Campaign, cell: Cell) -> Work:
        """The proof of a cell."""
        return self._of(campaign.proof(cell), "proof")

    def _of(self, spec: RunSpec, extra: str, *, pinged: bool = False) -> Work:
        cell, link = spec.cell, spec.link
        return self._work(
            spec.workload.kind,
            extra,
            cell.libraries,
            cell.variant,
            (link.mode, link.mtu, link.rate_mbit),
            spec.bytes,
            spec.connections,
            pinged=pinged,
        )

    def stored(self, run: Finished) -> tuple[Work, float, float | None] | None:
        """A finished run, all the seconds it took, and those of its transfer; None where it does not tell."""
        if run.spent_s is None or run.kind is None or (run.pair and run.arm == BESIDE):
            return None
        # as the cells of a plan have it: what was not varied is not there
        variant = _variant(run.variant)
        if run.arm == "pilot":  # whose connections are made one after the other
            variant = variant.model_copy(update={"load": None, "held": None})
        if run.arm == PRIMITIVES:
            return self._primitives(run.client, variant), run.spent_s, None
        extra = run.arm if run.arm in (CAPTURED, "proof") else run.profile or (PAIR if run.pair else "")
        work = self._work(
            run.kind,
            extra,
            (run.client, run.server),
            variant,
            (run.mode, run.mtu, run.rate_mbit),
            run.bytes or 0,
            run.connections or 1,
            pinged=run.pinged,
        )
        return work, run.spent_s, run.wall_s

    def _primitives(self, library: str, variant: Variant) -> Work:
        keys = (PRIMITIVES, library, _text(variant)), (PRIMITIVES, library), (PRIMITIVES,), EVERYTHING
        return Work(keys, 0.0, estimate.primitive_s(variant.timed, self._long) + estimate.RUN_SECONDS)

    def _work(
        self,
        kind: str,
        extra: str,
        libraries: tuple[str, str],
        variant: Variant,
        link: tuple[Any, ...],
        size: int,
        connections: int,
        *,
        pinged: bool = False,
    ) -> Work:
        # connections that begin at a rate take as long as the rate says, whatever others take
        what, beyond = (kind, extra or ("load" if variant.load is not None else "")), estimate.RUN_SECONDS
        if kind == "handshake":
            transfer = estimate.handshakes_s(variant, connections, self._long)
            alike: tuple[Any, ...] = variant.group, variant.signature, variant.rtt_ms or 0
        else:
            transfer = estimate.transfer_s(self._project, libraries, variant, size, link[-1], connections)
            alike = variant.cipher, variant.aead, *libraries
        if extra == PAIR:
            transfer, beyond = estimate.pair_s(transfer), estimate.PAIR_SECONDS
        elif extra == "proof":
            beyond = estimate.DISSECT_SECONDS if kind == "handshake" else estimate.PROOF_SECONDS
        elif extra == "counted":
            beyond += estimate.COUNTED_SECONDS
        elif estimate.LINK_FACTORS & variant.model_fields_set:
            beyond += estimate.CHANGE_SECONDS
        beyond += self._pings_s if pinged else 0.0
        general = (what, libraries, _text(variant))
        keys = ((*general, link, size, connections), general, (what, alike), (what, libraries), what, EVERYTHING)
        return Work(keys, transfer, beyond)


def _text(variant: Variant) -> str:
    return json.dumps(variant.as_dict(), sort_keys=True)


@functools.cache
def _variant(text: str) -> Variant:
    return Variant.model_validate(json.loads(text))


def _past(directory: Path, host: Host) -> Iterator[Run]:
    """The newest runs of a host below *directory*, in the order in which they were measured."""
    files = []
    for path, names in directories(directory):
        if RUN_FILE in names:
            with contextlib.suppress(OSError):
                files.append(((path / RUN_FILE).stat().st_mtime, path / RUN_FILE))
    found = []
    for _, file in sorted(files)[-PAST_RUNS:]:
        with contextlib.suppress(MeasureError):  # who reads it for its results says so
            run = read_run(file)
            if run.testbed.host == host and run.started_at is not None:
                found.append(run)
    yield from sorted(found, key=lambda run: str(run.started_at))


@dataclass(frozen=True)
class Busy:
    """What other programs use of this machine."""

    share: float
    """Of the time of all processors."""
    slowdown: float
    """How much longer what needs two processors takes beside them."""


def processors() -> tuple[int, int, int]:
    """Of all processors together the time used and passed, in ticks, and the programs that want one now."""
    lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text(encoding="ascii").splitlines())
    user, nice, system, idle, waiting, *more = map(int, lines["cpu"].split()[:8])
    passed = user + nice + system + idle + waiting + sum(more)
    return passed - idle - waiting, passed, int(lines["procs_running"])


def busy(look: Callable[[], tuple[int, int, int]] = processors) -> Busy:
    """What other programs use now, within `LOOK_S`, by what `processors` says."""
    count = os.cpu_count() or 1
    before, running = look(), []
    for _ in range(LOOKS):
        time.sleep(LOOK_S / LOOKS)
        running.append(look()[2] - 1)  # without this one
    after = look()
    used, passed = (after[n] - before[n] for n in (0, 1))
    others = sum(running) / len(running)
    share = used / passed if passed else 0.0
    # they do not take as much as they might: what often waits is served first
    return Busy(share, math.sqrt(max(1.0, (others + 2) / max(count, 2))))


class Shipped:
    """How many blocks the contrasts of experiments took on the machine of the reference data."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str, str], dict[int, float]] = {}

    def saw(self, run: Finished) -> None:
        """A shipped run."""
        if run.block is not None and run.arm == "main" and run.value:
            key = (run.experiment, run.client, run.server, run.label)
            self._values.setdefault(key, {})[run.block] = run.value

    def blocks(self, campaign: Campaign, by_id: Mapping[str, Cell], least: int) -> dict[str, int]:
        """Blocks until the contrast of a campaign is narrow enough, by cell, as far as that was shipped."""
        contrast = campaign.experiment.contrast
        if contrast is None:
            return {}
        found: dict[tuple[str, str], int] = {}
        for cell in by_id.values():
            baseline = by_id.get(cell.baseline or "")
            if cell.label in contrast.labels and cell.arm == "main" and baseline is not None:
                libraries = (campaign.name, *cell.libraries)
                own, other = (self._values.get((*libraries, one.label), {}) for one in (cell, baseline))
                interval = paired_ratio(own.items(), other.items())
                blocks = blocks_needed(interval.n, interval.half_width, contrast.half_width, least)
                if blocks is not None:
                    found[cell.libraries] = max(blocks, found.get(cell.libraries, 0))
        return {cell.id: found[cell.libraries] for cell in by_id.values() if cell.libraries in found}


@dataclass(frozen=True)
class Forecast:
    """When things are done, in seconds from now."""

    experiment: Span
    everything: Span | None
    """With the experiments that come later, and the analysis; None where nothing else is to be done."""


class Outlook:
    """What is left of a run of the workflow, while one of its experiments is measured."""

    def __init__(self, campaign: Campaign, *, whole: bool | None = None) -> None:
        """*whole*: whether more is to come than this experiment; by default what started the workflow knows."""
        driver = campaign.driver
        self._campaign = campaign
        self._project = driver.project
        self._works = Works(driver.project)
        self._whole = STARTED in os.environ if whole is None else whole
        self._later: list[Left] = []
        self._needed: tuple[int, dict[str, int] | None] = (-1, None)
        gate = self._project.config.gate
        self._busy = busy() if self._project.testbed.kind == "local" else Busy(0.0, 1.0)
        self._repeats = Repeats(AGAIN_BUSY if self._busy.share > gate.max_foreign_cpu else AGAIN)
        self._said = self._looked = -1e9
        self._forecast = Forecast(Span(), None)
        self._begin = time.monotonic()
        self._first: Span | None = None
        others = Pace(forgets=False)
        self._shipped = Shipped()
        for finished in shipped(self._project):
            self._learn(others, finished)
            self._shipped.saw(finished)
        self._pace = Pace(others, slowdown=self._busy.slowdown)
        self._known = False
        for run in _past(driver.store.raw, driver.store.host):
            self.saw(run)
            self._known = True
        if self._whole:
            self._later = list(self._others())
            self._counted = _count(driver.store.raw)
            self._analysed = _analysed(self._project)

    def _learn(self, pace: Pace, run: Finished) -> None:
        if (told := self._works.stored(run)) is not None:
            pace.saw(*told)

    def saw(self, run: Run) -> None:
        """A run was finished on this machine."""
        self._learn(self._pace, Finished.of(run))
        if run.block is not None and run.cell.arm not in (CAPTURED, PRIMITIVES):
            self._repeats.saw(spoilt=bool(run.contaminated))

    def _others(self) -> Iterator[Left]:
        """What is left of other experiments of this run of the workflow that are not finished."""
        for name in self._project.config.experiments:
            if name == self._campaign.name:
                continue
            marker = self._project.artifacts / "measured" / self._project.config.testbed / f"{name}.json"
            try:
                left = self._left(campaign_for(self._campaign.driver, name))
            except (MeasureError, kit.BuildError) as error:
                say(f"{name}: {error}; it is not in the prediction for everything")
                continue
            if not marker.exists() or left.span(self._pace, 1).least > START_S:
                yield left

    # ---- what is left --------------------------------------------------------------------------------------------

    def _left(self, campaign: Campaign) -> Left:
        """What is left of a campaign."""
        current = campaign is self._campaign
        active = [cell for cell in campaign.cells if cell.id not in campaign.excluded and cell.unsupported is None]
        if not current:  # what this testbed was found not to be able to
            known = {path.name for path in (campaign.directory / "excluded").glob("*")}
            active = [cell for cell in active if f"{cell.slug}-{cell.id}.0" not in known]
        # a pilot that has not been yet will make downloads larger of which the start of a program would be a large part
        sized = campaign.pilot.sizes if campaign.pilot is not None else {}
        if campaign.experiment.workload.kind == "bulk":
            active = estimate.as_sized(self._project, campaign.name, active, sized)
        by_id = {cell.id: cell for cell in active}
        done = dict.fromkeys(by_id, 0)
        planned = campaign.blocks()
        for block, order in planned.items():
            finished = campaign.runs(block)
            for cell in order:
                if cell in by_id and campaign.settled(finished.get(cell, [])):
                    done[cell] += 1
        scale = campaign.scale
        least = min(scale.min_blocks or scale.blocks, scale.blocks)
        once = []
        if not campaign.warm:
            once += [self._works.proof(campaign, cell) for cell in self._unproven(campaign, active)]
            once += [self._works.planned(campaign, cell) for cell in campaign.first_alone(active)]
        needed = self._blocks_needed(by_id, least) if current else _needed(campaign, by_id, least)
        # what is beside another run takes no time of its own
        timed = [cell for cell in active if cell.arm != BESIDE]
        return Left(
            {cell.id: self._works.planned(campaign, cell) for cell in timed},
            done,
            limits={c.id: campaign.blocks_of(c, scale.blocks) for c in active if c.arm in (CAPTURED, PRIMITIVES)},
            besides=frozenset(cell.id for cell in active if cell.arm == CAPTURED),
            once=once,
            least=least,
            most=scale.blocks,
            needed=needed,
            usual=self._shipped.blocks(campaign, by_id, least),
            max_s=None if scale.max_minutes is None else scale.max_minutes * 60,
            spent_s=campaign.spent_s(),
            start_s=0.0 if current else START_S,
        )

    def _blocks_needed(self, by_id: Mapping[str, Cell], least: int) -> dict[str, int] | None:
        """Of the experiment being measured; its intervals take time, and change with a block only."""
        block = max(self._campaign.blocks(), default=0)
        if self._needed[0] != block:
            self._needed = block, _needed(self._campaign, by_id, least)
        return self._needed[1]

    def _unproven(self, campaign: Campaign, cells: Sequence[Cell]) -> list[Cell]:
        """One cell for every proof that is not there yet."""
        prover = campaign.driver.prover
        there = {path.name.rpartition(".")[0].rpartition("-")[2] for path in prover.directory.glob("*")}
        missing: dict[str, Cell] = {}
        for cell in cells:
            if cell.arm != PRIMITIVES:
                missing.setdefault(prover.id_of(campaign.proof(cell)), cell)
        return [cell for proof, cell in missing.items() if proof not in there]

    def _analysis_s(self, left: Sequence[Left]) -> float:
        """How long drawing, tables, notebooks and the report will take."""
        machine, more = self._pace.machine(), _Count()
        for one in left:
            blocks = max(one.least - min(one.done.values(), default=0), 0)
            more += _Count(len(one.works) * blocks, len(one.once))
        # a notebook may have been drawn on a machine that was as slow as this one
        ratio = self._analysed.ratio or machine
        return ratio * (self._counted + more).analysis_s() + (self._analysed.draw_s or machine * DRAW_S) * len(left)

    def look(self) -> Forecast:
        """When this experiment and everything will be done."""
        attempts = self._repeats.attempts(self._project.config.gate.retries)
        left = self._left(self._campaign)
        own = left.span(self._pace, attempts)
        if not self._whole:
            return Forecast(own, None)
        everything = own + Span.of(self._analysis_s([left, *self._later]))
        # how noisy this machine is, the experiment being measured tells
        told = left.needed if self._campaign.experiment.contrast else None
        known = {cell: blocks for cell, blocks in (told or {}).items() if cell in left.usual}
        noise = sum(known.values()) / sum(left.usual[cell] for cell in known) if known else 1.0
        for later in self._later:
            usual = {cell: round(noise * blocks) for cell, blocks in later.usual.items()}
            if not usual and told:
                usual = dict.fromkeys(later.works, round(sum(told.values()) / len(told)))
            everything += replace(later, usual=usual).span(self._pace, attempts)
        forecast = Forecast(own, everything)
        self._keep(forecast)
        return forecast

    # ---- saying it -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Say when all will be done, before anything is measured: roughly, on a machine that nothing is known of."""
        self._forecast = self.look()
        self._first = self._forecast.experiment
        if self._busy.share > self._project.config.gate.max_foreign_cpu:
            say(
                f"other programs use {100 * self._busy.share:.0f} % of this machine: measuring takes longer beside them"
            )
        roughly = "" if self._known else ", roughly as on the machine of the reference data"
        self._say(f"begins, {self._blocks()} blocks{roughly}")

    def warmed(self) -> None:
        """Proofs and first runs have told how fast this machine is; say when all will be done."""
        self._known = True
        self._forecast, self._looked = self.look(), time.monotonic()
        self._say("warmed up")

    def _keep(self, forecast: Forecast) -> None:
        """Keep what is said first that knows how fast the machine is, and how noisy where that ends experiments."""
        noisy = self._campaign.experiment.contrast is not None and self._needed[1] is None
        if forecast.everything is not None and self._known and not noisy:
            record(self._project.root / "logs", forecast.everything)

    def proving(self, number: int, of: int) -> None:
        """So many proofs of so many are next."""
        self._refresh(f"proof {number} of {of}")

    def measuring(self, block: int) -> str:
        """A run of a block is finished; returns when the experiment and everything will be done."""
        self._refresh(block_told(block, self._campaign.scale.blocks, self._blocks()))
        everything = self._forecast.everything
        later = f", everything about {clock(everything.expected)}" if everything else ""
        return f"; done about {clock(self._forecast.experiment.expected)}{later}"

    def end(self) -> None:
        """Say what is left after the experiment."""
        took = time.monotonic() - self._begin
        told = f", expected were {in_words(self._first.expected)}" if self._first else ""
        self._forecast = self.look()
        everything = self._forecast.everything
        later = f"; everything {_when(everything)}" if everything else ""
        say(f"{self._campaign.name}: measured in {in_words(took)}{told}{later}")

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

    def _say(self, where: str) -> None:
        self._said = time.monotonic()
        everything = self._forecast.everything
        later = f"; everything {_when(everything)}" if everything else ""
        say(f"{self._campaign.name}: {where}: done {_when(self._forecast.experiment)}{later}")


def _needed(campaign: Campaign, by_id: Mapping[str, Cell], least: int) -> dict[str, int] | None:
    """By cell, blocks that a campaign is expected to take; None as long as its contrast does not tell."""
    contrast = campaign.experiment.contrast
    if contrast is None:
        return dict.fromkeys(by_id, campaign.scale.blocks)
    found = {
        pair: blocks_needed(one.n, one.half_width, contrast.half_width, least)
        for pair, one in campaign.intervals(by_id).items()
    }
    if not all(found.values()):
        return None
    return {cell.id: found.get(cell.libraries) or least for cell in by_id.values()}


@dataclass(frozen=True)
class _Count:
    """What the analysis has to read."""

    runs: int = 0
    captures: int = 0

    def __add__(self, other: _Count) -> _Count:
        return _Count(self.runs + other.runs, self.captures + other.captures)

    def analysis_s(self) -> float:
        return ANALYSIS_S + ANALYSIS_RUN_S * self.runs + DISSECT_S * self.captures


def _count(raw: Path) -> _Count:
    """Runs and proofs of a testbed."""
    return _Count(
        sum(1 for _ in raw.glob(f"*/*/b[0-9]*/**/{RUN_FILE}")), sum(1 for _ in raw.glob("proofs/*/*/capture.pcap"))
    )


@dataclass(frozen=True)
class _Analysed:
    """What the last analysis on this machine told."""

    ratio: float | None
    """Of its time to the rough figures."""
    draw_s: float | None


def _analysed(project: Project) -> _Analysed:
    logs = project.root / "logs"
    took = [_took(logs, f"{rule}-own*.tsv") for rule in ANALYSIS_RULES]
    tables = project.artifacts / "tables"
    try:
        height = {name: pl.scan_parquet(tables / f"{name}.parquet").select(pl.len()).collect().item() for name in _READ}
    except (OSError, pl.exceptions.PolarsError):
        height = {}
    ratio = None
    if height and all(took):
        # notebooks run beside each other
        ratio = (sum(map(max, took)) + JOB_S * len(took)) / _Count(height["runs"], height["captures"]).analysis_s()
    drawn = _took(logs, "draw-*.tsv")
    return _Analysed(ratio, sum(drawn) / len(drawn) if drawn else None)


_READ = ("runs", "captures")


def _took(logs: Path, pattern: str) -> list[float]:
    """Seconds that jobs of the workflow took the last time, from their files of Snakemake's benchmarks."""
    found = []
    for file in logs.glob(pattern):
        with contextlib.suppress(OSError, ValueError, KeyError, StopIteration, UnicodeDecodeError):
            found.append(float(next(csv.DictReader(file.read_text().splitlines(), delimiter="\t"))["s"]))
    return found


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


def _when(span: Span) -> str:
    """About when, with the range that the rules that end experiments leave."""
    text = f"about {clock(span.expected)} (in {in_words(span.expected)}"
    if clock(span.least) != clock(span.most):
        text += f"; between {clock(span.least)} and {clock(span.most)} at the latest"
    return text + ")"


def record(logs: Path, everything: Span) -> None:
    """Keep the first prediction of this run of the workflow that knows the machine."""
    file, started = logs / RECORD, os.environ.get(STARTED, "")
    if (_recorded(file) or {}).get("started") != started:
        now = time.time()
        kit.write_json(
            file, {"started": started, "said": now, **{k: now + s for k, s in dataclasses.asdict(everything).items()}}
        )


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
    least, most = told["least"] - told["said"], told["most"] - told["said"]
    between = f", between {in_words(least)} and {in_words(most)}" if in_words(least) != in_words(most) else ""
    return (
        f"predicted at {clock(-took)}: {in_words(expected)}{between}; it took {in_words(took)} "
        f"({100 * (expected / took - 1):+.0f} %)"
    )


def building(project: Project, library: str, build: str) -> str:
    """A line before a build of the workflow: which, how many are left, and about when they will be done."""
    needed = builds_needed(project, project.config.experiments)

    def open_(key: tuple[str, str]) -> bool:
        return not (making.is_made(project, *key) or making.listing(project, *key).exists())

    minutes = {key: estimate.build_estimate(project, *key).minutes for key in needed}
    left = [key for key in needed if open_(key) or key == (library, build)]
    took = {key: _took(project.root / "logs", f"build-{making.build_id(project, *key)}.tsv") for key in needed}
    known = [(found[0], 60 * minutes[key]) for key, found in took.items() if found and key not in left]
    # as if one more had taken what it is estimated to
    own = 60 * minutes.get((library, build), 1.0)
    ratio = (sum(seconds for seconds, _ in known) + own) / (sum(rough for _, rough in known) + own)
    seconds = ratio * sum(60 * minutes[key] for key in left)
    return (
        f"build {len(needed) - len(left) + 1} of {len(needed)}: {library}, {build}; the builds are done roughly at "
        f"{clock(seconds)} (in {in_words(seconds)})"
    )
