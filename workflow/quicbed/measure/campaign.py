"""An experiment measured block by block: order, repetition, resumption and the rule that ends it.

An experiment is measured in randomised complete blocks. A block's order is written down before its first run, so a
driver that was killed finishes that block first; a run's directory appears whole or not at all; a finished run is never
measured again. Cells added later are measured in new blocks together with their baselines, because ratios are paired
within blocks. Where contrasts end an experiment, a pair of libraries whose intervals are narrow enough is in no further
block, so that the time goes to those that are undecided.

Each run is measured separately here; `quicbed.measure.campaign_of_pairs` has what differs for two at a time.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from quicbed.base import durable
from quicbed.base.models import RecordError
from quicbed.base.revision import revision
from quicbed.base.statistics import Interval, paired_ratio
from quicbed.builds import making
from quicbed.measure import floor, stored_pairs
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.measure.driver import Driver
from quicbed.measure.pilot import START_PILOT_BYTES, STARTS, Pilot, read_pilot, write_pilot
from quicbed.measure.progress import At, now, say
from quicbed.measure.storing import need_room, read_run, stored
from quicbed.plan.arms import BESIDE, CAPTURED, PRIMITIVES
from quicbed.plan.cells import Cell, builds_needed, campaign_of, cells_of, in_browser
from quicbed.plan.sizing import with_start
from quicbed.plan.spec import RunSpec, proof_spec, run_spec
from quicbed.store import campaign as records
from quicbed.store.campaign import BLOCK_FILE, CAMPAIGN_FILE, Block, Session
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run


class Watch(Protocol):
    """What is told how far a campaign is."""

    def proving(self, number: int, of: int) -> None:
        """So many proofs of so many are next."""

    def warmed(self) -> None:
        """The warm-up is over."""

    def measuring(self, block: int) -> str:
        """A run of a block is finished; returns what to say behind it."""


class Campaign:
    """Runs of one experiment at one scale on one testbed, and what is still missing."""

    at_once = 1
    """Runs that are measured at the same time."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver = driver
        self.name = name
        project = driver.project
        self.experiment = project.experiments[name]
        self.scale = project.scale(name)
        told = {"browser": driver.browser} if in_browser(self.experiment) else {}
        self.id, self.identity = campaign_of(project, name, {**driver.facts, **told})
        self.directory = driver.store.raw / name / self.id
        self.builds = {
            (library, build): making.read_known(project, library, build)
            for library, build in builds_needed(project, [name])
        }
        self.pilot: Pilot | None = None
        planned = cells_of(project, name, self.id, self.builds)
        if self.scale.least_s or any(with_start(self.experiment, cell) or cell.variant.load for cell in planned):
            self.pilot = read_pilot(self.directory, self.scale.least_s)
        self.cells = self._cells()
        self.failures_are_findings = self.experiment.failures == "findings"
        self.proofs: dict[str, str] = {}
        self.excluded: dict[str, str] = {}
        self.unproven: dict[str, str] = {}
        self.retry: set[str] = set()
        self.warm = False
        self.watch: Watch | None = None
        # what is on disk, read once: only this campaign's driver adds to it
        self._runs: dict[int, dict[str, list[Run]]] = {}
        self._planned: dict[int, list[str]] | None = None

    def _cells(self) -> list[Cell]:
        sizes = self.pilot.sizes if self.pilot is not None else {}
        return cells_of(self.driver.project, self.name, self.id, self.builds, sizes)

    def spec(self, cell: Cell) -> RunSpec:
        """What a run of a cell is; one with a load has no rate before the pilot has found what the load is."""
        spec = run_spec(self.driver.project, self.experiment, cell, self.scale)
        cost_s = self.pilot.server_cpu_s(cell) if self.pilot is not None else None
        if not cell.variant.load or not cost_s:
            return spec
        # so that each program of a server does what one alone does
        copies = self.driver.link.copies if cell.variant.processors else 1
        rate = copies * cell.variant.load / cost_s
        return replace(spec, rate_per_s=rate, connections=copies * spec.connections, copies=copies)

    def proof(self, cell: Cell) -> RunSpec:
        """What a proof of a cell is."""
        return proof_spec(self.driver.project, self.experiment, cell)

    # ---- state on disk -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Record what identifies this campaign and session."""
        for info in self.builds.values():
            if info.problem is not None:
                continue
            file = self.directory / "builds" / f"{info.build}.json"
            if not file.exists():
                info.write(file)
        kept = self.directory / CAMPAIGN_FILE
        if not kept.exists():
            records.Campaign.made({"id": self.id, **self.identity}).write(kept)
        durable.remove_leftovers(self.directory, RUN_FILE)
        session = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
        values = {
            "started_at": now(),
            "facts": dict(self.driver.facts),
            "config": self.driver.project.config.model_dump(mode="json"),
            "experiment": self.experiment.model_dump(mode="json"),
            "revision": revision(self.driver.project.root),
            "cells": [cell.as_dict() for cell in self.cells],
        }
        Session.made(values).write(self.directory / "sessions" / f"{session}.json")

    def blocks(self) -> dict[int, list[str]]:
        """Planned blocks: number -> cell ids in order."""
        if self._planned is not None:
            return self._planned
        planned = {}
        for file in sorted(self.directory.glob(f"b[0-9][0-9][0-9][0-9]/{BLOCK_FILE}")):
            try:
                planned[int(file.parent.name[1:])] = Block.read(file).cells
            except RecordError as error:
                raise MeasureError(f"{file}: is damaged ({error}); move {file.parent} out of the way") from None
        self._planned = planned
        return planned

    def runs(self, block: int) -> dict[str, list[Run]]:
        """Finished runs of a block: cell id -> attempts in order."""
        if block in self._runs:
            return self._runs[block]
        found: dict[str, list[Run]] = {}
        directory = self.directory / f"b{block:04d}"
        for run in self.read_block(directory):
            found.setdefault(run.cell.id, []).append(run)
        for attempts in found.values():
            attempts.sort(key=_number)
        self._runs[block] = found
        return found

    def read_block(self, directory: Path) -> Iterable[Run]:
        """The runs that the directory of a block holds."""
        return (read_run(file) for file in directory.glob(f"*/{RUN_FILE}"))

    def settled(self, attempts: Sequence[Run]) -> bool:
        """Whether a cell of a block needs no further attempt."""
        outcomes = (run for run in attempts if self.failures_are_findings or run.status != "failed")
        return any(map(self.settles, outcomes)) or len(attempts) > self.driver.project.config.gate.retries

    def settles(self, run: Run) -> bool:
        """Whether an outcome need not be measured again: nothing has disturbed it.

        Of what is captured besides, where the capture itself delays and uses processor time, frames must not be lost.
        """
        return not (run.host.capture.lost if run.cell.arm == CAPTURED else run.contaminated)

    # ---- before measuring ----------------------------------------------------------------------------------------

    def size_up(self) -> None:
        """Find out how many bytes downloads have, where the scale says how long they last (`quicbed.measure.pilot`).

        And where the start of an external client's program is in them. A pair of libraries without a successful
        download is left as it is; its runs fail too.
        """
        if self.pilot is None:
            return
        main = [cell for cell in self.cells if cell.arm == "main"]
        for libraries in dict.fromkeys(cell.libraries for cell in main):
            theirs = [cell for cell in main if cell.libraries == libraries]
            starts = any(with_start(self.experiment, cell) for cell in theirs)
            if libraries in self.pilot.sizes or not (starts or self.scale.least_s):
                continue
            goodput: dict[str, float] = {}
            start_s: float | None = None
            size = self._tried_bytes(theirs[0], starts)
            for cell in theirs:
                if cell.unsupported or self.driver.link.unsupported(self.spec(cell)):
                    continue
                say(f"{self.name}: pilot {cell.slug}")
                if starts and start_s is None:
                    start_s = self._start_s(cell)
                run = self._aside(cell, replace(self.spec(cell), perf=None, bytes=size), "pilot")
                if run.status == "ok" and run.metrics.goodput_mbps:
                    goodput[cell.label] = run.metrics.goodput_mbps
            if goodput:
                self.pilot = self.pilot.with_pair(libraries, goodput, self.scale, size, start_s)
                write_pilot(self.directory, self.pilot)
        self._find_costs(main)
        self.cells = self._cells()

    def _find_costs(self, cells: Sequence[Cell]) -> None:
        """Find out which rates loads are, by connections one after the other."""
        for cell in cells:
            if not cell.variant.load or self.pilot is None or self.pilot.server_cpu_s(cell) is not None:
                continue
            if cell.unsupported or self.driver.link.unsupported(self.spec(cell)):
                continue
            say(f"{self.name}: pilot {cell.slug}")
            spec = self.spec(cell)
            run = self._aside(cell, spec, "pilot")
            # the kernel's accounting, unless that is too coarse, else what the server tells
            seconds = (run.host.cpu.server.seconds or 0) / spec.connections
            seconds = seconds or (run.metrics.server_cpu_ms or 0) / 1e3
            if run.status == "ok" and seconds:
                self.pilot = self.pilot.with_cost(cell, seconds)
                write_pilot(self.directory, self.pilot)

    def _tried_bytes(self, cell: Cell, starts: bool) -> int:
        """Size of the downloads of the pilot of a cell's pair of libraries."""
        spec = self.spec(cell)
        size = min(self.scale.bytes, spec.bytes)
        limits = [library.max_bytes for library in spec.libraries.values() if library.max_bytes]
        return max(size, min([START_PILOT_BYTES, *limits])) if starts else size

    def _start_s(self, cell: Cell) -> float | None:
        """Seconds that a download of one byte takes; None where none succeeds."""
        spec = replace(self.spec(cell), perf=None, bytes=1)
        runs = [self._aside(cell, spec, "pilot") for _ in range(STARTS)]
        rates = [run.metrics.goodput_mbps for run in runs if run.status == "ok" and run.metrics.goodput_mbps]
        return statistics.median(8e-6 / rate for rate in rates) if rates else None

    def _aside(self, cell: Cell, spec: RunSpec, arm: str) -> Run:
        """A run that is kept in a directory of its arm, and counts for nothing."""
        begin = time.monotonic()
        parent = self.directory / arm
        number = len(list(parent.glob("*"))) if parent.exists() else 0
        self.driver.link.prepare(spec)
        with stored(parent / f"{number:04d}-{cell.slug}-{cell.id}") as directory:
            attempt = self.driver.runner.execute(spec, directory)
            named = {"arm": arm}
            run = self._record(spec, attempt, block=None, order=None, number=number, named=named)
            return self.driver.store.keep(run, directory, begin)

    # ---- measuring -----------------------------------------------------------------------------------------------

    def prove(self) -> None:
        """Proof of every build and variant in the experiment; cells without one are not measured.

        Where failures are findings, a cell whose transfer failed while it was captured stays: its runs fail too, or the
        first that does not is proven (`_attest`).
        """
        # cells of one link follow each other, because changing it takes seconds
        ordered = sorted(self.cells, key=lambda cell: (cell.variant.rtt_ms, cell.variant.mtu or 0))
        for number, cell in enumerate(ordered):
            if self.watch is not None:
                self.watch.proving(number + 1, len(ordered))
            reason = cell.unsupported or self.impossible() or self.driver.link.unsupported(self.spec(cell))
            if reason is not None:
                self.exclude(cell, "unsupported", reason)
                continue
            if cell.arm == PRIMITIVES:
                continue
            if cell.variant.load and self.spec(cell).rate_per_s is None:
                self.exclude(cell, "failed", "its pilot, one connection after the other, failed: no rate is known")
                continue
            say(f"{self.name}: proof of {cell.slug}")
            verdict = self.driver.prover.prove(self.proof(cell))
            if verdict.status == "ok":
                self.proofs[cell.id] = verdict.proof
            elif verdict.status == "failed" and self.failures_are_findings and not verdict.transferred:
                say(f"{self.name}: {cell.slug}: failed: {verdict.reason}; tried again in every block")
            else:
                self.exclude(cell, verdict.status, verdict.reason or "")

    def impossible(self) -> str | None:
        """Why no cell can be measured on this testbed, or None."""
        return None

    def find_floor(self) -> None:
        """How precisely the hosts send and stamp packets, where runs are traced, once for the campaign."""
        if not self.experiment.trace:
            return
        active = [cell for cell in self.cells if cell.arm == "main" and cell.id not in self.excluded]
        floor.find(self.driver, self.name, self.directory, [self.spec(cell) for cell in active])

    def exclude(self, cell: Cell, status: str, reason: str) -> None:
        """Keep a cell that is not measured in the data, with its reason."""
        self.excluded[cell.id] = reason
        if status == "failed":
            self.unproven[cell.slug] = reason
        say(f"{self.name}: {cell.slug}: {status}: {reason}")
        parent = self.directory / "excluded"
        earlier = sorted(
            (read_run(file) for file in parent.glob(f"{cell.slug}-{cell.id}.*/run.json")),
            key=_number,
        )
        if earlier and (earlier[-1].status, earlier[-1].reason) == (status, reason):
            return
        number = len(earlier)
        with stored(parent / f"{cell.slug}-{cell.id}.{number}") as partial:
            run = self._record(
                self.spec(cell), Attempt(status=status, reason=reason), block=None, order=None, number=number
            )
            run.write(partial / RUN_FILE)

    def measure(self) -> None:
        """Measure what is missing; nothing, where no cell is supported."""
        active = [cell for cell in self.cells if cell.id not in self.excluded]
        if not active:
            say(f"{self.name}: no cell can be measured; the reasons are above")
            return
        by_id = {cell.id: cell for cell in active}
        # where failures are findings, the blocks have told how often a cell fails
        self.retry = set() if self.failures_are_findings else set(self.unsuccessful(by_id))
        while (work := self.next_work(by_id)) is not None:
            block, order = work
            if self._leave_changed(by_id):
                continue  # the next block is another
            self.driver.link.await_link()
            if not self.warm:
                self.warm_up(active)
                self.warm = True
                if self.watch is not None:
                    self.watch.warmed()
            for position, cell_id in enumerate(order):
                cell = by_id.get(cell_id)
                if cell is None or cell.arm == BESIDE:  # which is measured with the one that it is beside
                    continue
                while not self.settled(attempts := self.runs(block).get(cell_id, [])):
                    run = self.measure_once(cell, block, position, len(attempts))
                    told = self.watch.measuring(block) if self.watch is not None else ""
                    where = f"{self.name}: {block_told(block, self.scale.blocks, f'at most {self.scale.blocks}')}"
                    done, of = position // self.at_once + 1, len(order) // self.at_once
                    at = At(where, done, of, run.status == "ok", run.contamination, told.lstrip("; "))
                    say(f"{where}, {done}/{of} {cell.slug}: {_summary(run)}{told}", at)
            self.driver.link.unload()

    def _leave_changed(self, by_id: dict[str, Cell]) -> bool:
        """Exclude cells of folders that are not what was built of them any more; whether there were any."""
        project = self.driver.project
        reasons = {}
        for (library, named), info in self.builds.items():
            if project.libraries[library].external is not None and info.problem is None:
                reasons[info.build] = making.changed(project, library, named, info.build)
        left = [cell for cell in by_id.values() if reasons.get(cell.client.build) or reasons.get(cell.server.build)]
        for cell in left:
            self.exclude(cell, "failed", reasons.get(cell.client.build) or reasons.get(cell.server.build) or "")
            del by_id[cell.id]
        return bool(left)

    def next_work(self, by_id: Mapping[str, Cell]) -> tuple[int, list[str]] | None:
        """The block to measure next and its order, or None when the experiment is complete."""
        planned = self.blocks()
        for block, order in planned.items():
            runs = self.runs(block)
            mine = (cell for cell in order if cell in by_id and by_id[cell].arm != BESIDE)
            if any(not self.settled(runs.get(cell, [])) for cell in mine):
                return block, order
        wanted = self.wanted(by_id, planned)
        if not wanted:
            return None
        block = max(planned, default=-1) + 1
        # the seed is a string so that it does not depend on Python's hash of tuples
        shuffled = random.Random(f"{self.driver.project.config.seed}/{self.id}/{block}")
        order = sorted(cell for cell in wanted if by_id[cell].arm != BESIDE)
        shuffled.shuffle(order)
        # changing the delay of the link or competing traffic takes seconds: cells of one follow each other, in random
        # order of the delays and loads
        conditions = {cell: _condition(by_id[cell]) for cell in order}
        found = sorted(set(conditions.values()))
        if len(found) > 1:
            shuffled.shuffle(found)
            order.sort(key=lambda cell: found.index(conditions[cell]))
        order = self.in_full(order, by_id)
        values = {"block": block, "cells": order, "seed": self.driver.project.config.seed, "created_at": now()}
        Block.made(values).write(self.directory / f"b{block:04d}" / BLOCK_FILE)
        planned[block] = order
        return block, order

    def in_full(self, order: list[str], by_id: Mapping[str, Cell]) -> list[str]:  # noqa: ARG002 (for pairs)
        """The order of a block with what is measured beside its cells."""
        return order

    def wanted(self, by_id: Mapping[str, Cell], planned: Mapping[int, Sequence[str]]) -> set[str]:
        """Cells that need another block, with the baselines they are compared to."""
        counts: dict[str, int] = {}
        for cell in by_id.values():
            # a block counts for a cell if what the cell is compared with is in it
            together = {cell.id} | ({cell.baseline} & by_id.keys() if cell.baseline else set())
            counts[cell.id] = sum(together <= set(order) for order in planned.values())
        least = self.scale.min_blocks or self.scale.blocks
        lacking = {cell for cell, count in counts.items() if count < self.blocks_of(by_id[cell], least)}
        if not lacking and not self.out_of_time():
            lacking = {
                cell.id for cell in self.undecided(by_id) if counts[cell.id] < self.blocks_of(cell, self.scale.blocks)
            }
        lacking |= self.retry & by_id.keys()
        self.retry = set()
        result = set(lacking)
        while more := {b for c in result if (b := by_id[c].baseline) is not None and b in by_id} - result:
            result |= more
        return result

    def blocks_of(self, cell: Cell, blocks: int) -> int:
        """In how many of so many blocks a cell is measured."""
        limits = {PRIMITIVES: self.experiment.primitives, CAPTURED: self.experiment.capture}
        return min(limits.get(cell.arm, blocks), blocks)

    def unsuccessful(self, by_id: Mapping[str, Cell]) -> dict[str, str]:
        """Cells that count and were measured without a single success, and why the last run failed."""
        last: dict[str, str] = {}
        successful: set[str] = set()
        for block in self.blocks():
            for cell, attempts in self.runs(block).items():
                last[cell] = attempts[-1].reason or ""
                if any(run.status == "ok" for run in attempts):
                    successful.add(cell)
        # of a pair both have failed, or neither has
        counting = {cell for cell, known in by_id.items() if known.arm not in (CAPTURED, BESIDE)}
        return {cell: reason for cell, reason in last.items() if cell in counting - successful}

    def problems(self) -> list[str]:
        """What must not pass for a finished experiment.

        Contradicting evidence and cells without a successful run; where failures are findings, an experiment without a
        successful run.
        """
        by_id = {cell.id: cell for cell in self.cells if cell.id not in self.excluded}
        contradicting = [
            f"{by_id[cell].slug} in block {block}: {text}"
            for block in self.blocks()
            for cell, attempts in self.runs(block).items()
            if cell in by_id
            for run in attempts
            for text in run.contradictions
        ]
        unsuccessful = [
            f"{by_id[cell].slug}: no run succeeded, the last failed: {reason}"
            for cell, reason in self.unsuccessful(by_id).items()
        ]
        if self.failures_are_findings:
            counting = [cell for cell in by_id.values() if cell.arm != CAPTURED]
            return contradicting + (unsuccessful if len(unsuccessful) == len(counting) else [])
        unproven = [f"{slug}: not measured: {reason}" for slug, reason in self.unproven.items()]
        return unproven + contradicting + unsuccessful

    def findings(self) -> dict[str, str]:
        """Cells that failed, with how often; empty where failures are errors."""
        if not self.failures_are_findings:
            return {}
        found = dict.fromkeys(self.unproven, "not proven")
        for cell in self.cells:
            if cell.id in self.excluded or cell.arm == CAPTURED:
                continue
            runs = [run for block in self.blocks() for run in self.runs(block).get(cell.id, [])]
            failed = sum(run.status == "failed" for run in runs)
            if failed:
                found[cell.slug] = f"{failed} of {len(runs)} runs failed"
        return found

    def out_of_time(self) -> bool:
        """Whether the runs so far have taken as long as the scale allows."""
        return self.scale.max_minutes is not None and self.spent_s() >= self.scale.max_minutes * 60

    def spent_s(self) -> float:
        """How long the runs so far have taken, preparing the link and storing included, as far as the scale limits it.

        Of runs that do not tell it, what client and server took.
        """
        finished = (run for block in self.blocks() for attempts in self.runs(block).values() for run in attempts)
        # both runs of a pair tell what the pair took
        counting = (run.metrics for run in finished if run.cell.arm not in (CAPTURED, BESIDE))
        return sum((took.run_wall_s if took.spent_s is None else took.spent_s) or 0.0 for took in counting)

    def undecided(self, by_id: Mapping[str, Cell]) -> list[Cell]:
        """Cells of the pairs of libraries with a contrast whose interval is too wide; without a contrast, all."""
        contrast = self.experiment.contrast
        if contrast is None:
            return list(by_id.values())
        wide = {pair for pair, one in self.intervals(by_id).items() if one.half_width > contrast.half_width}
        # of a pair the cell that is compared, as the one beside may be of another library
        return [cell for cell in by_id.values() if cell.libraries in wide and cell.arm != BESIDE]

    def intervals(self, by_id: Mapping[str, Cell]) -> dict[tuple[str, str], Interval]:
        """The widest interval of the contrasts by pair of libraries."""
        contrast = self.experiment.contrast
        values = self.values()
        widest: dict[tuple[str, str], Interval] = {}
        for cell in by_id.values():
            if contrast is None or cell.label not in contrast.labels or cell.arm != "main":
                continue
            if cell.baseline in by_id:
                found = paired_ratio(values.get(cell.id, []), values.get(cell.baseline or "", []))
                before = widest.get(cell.libraries, found)
                widest[cell.libraries] = max(before, found, key=lambda interval: interval.half_width)
        return widest

    def values(self) -> dict[str, list[tuple[int, float]]]:
        """What is compared (`value_of`) by cell: (block, value) of the first uncontaminated successful attempt."""
        values: dict[str, list[tuple[int, float]]] = {}
        for block in self.blocks():
            for cell, attempts in self.runs(block).items():
                good = [run for run in attempts if run.status == "ok"]
                clean = [run for run in good if not run.contaminated]
                if not (chosen := clean[:1] or good[-1:]):
                    continue
                if (value := self.value_of(chosen[0])) is not None:
                    values.setdefault(cell, []).append((block, value))
        return values

    def value_of(self, run: Run) -> float | None:
        """Goodput (Mbit/s) of a run, or of handshakes TTFB (ms)."""
        metrics = run.metrics
        return metrics.ttfb_ms if self.experiment.workload.kind == "handshake" else metrics.goodput_mbps

    def warm_up(self, active: Sequence[Cell]) -> None:
        """One run of every baseline that is kept but counts for nothing: caches, frequency, memory."""
        for cell in self.first_alone(active):
            if cell.id in self.proofs:
                say(f"{self.name}: warm-up {cell.slug}")
                self._aside(cell, replace(self.spec(cell), perf=None), "warm-up")

    @staticmethod
    def first_alone(active: Sequence[Cell]) -> list[Cell]:
        """The baselines among cells, those that are alike once."""
        alone = [cell for cell in active if cell.baseline is None and cell.arm not in (CAPTURED, PRIMITIVES)]
        return list({(cell.client, cell.server, cell.label): cell for cell in alone}.values())

    def measure_once(self, cell: Cell, block: int, order: int, number: int) -> Run:
        """One stored run."""
        need_room(self.directory)
        begin = time.monotonic()
        runs = self.runs(block)
        target = self._target(cell, block, number)
        spec, link = self.spec(cell), self.driver.link
        if cell.arm == PRIMITIVES:
            link.unload()
        else:
            link.prepare(spec)
        with stored(target) as directory:
            if cell.arm == PRIMITIVES:
                attempt = self.driver.runner.time_primitives(spec, directory)
            else:
                settled = link.settle(spec, f"{self.id}/{block}/{number}", pings=self.experiment.ping)
                # of all cells of a block the connections begin in the same order of gaps
                spec = replace(spec, arrival_seed=arrival_seed(self.driver.project.config.seed, block))
                attempt = self.driver.runner.execute(spec, directory)
                attempt.host |= settled.host
                attempt.contamination += settled.contamination
                self._note_start(cell, attempt)
                self._attest(cell, attempt)
            run = self._record(spec, attempt, block=block, order=order, number=number)
            run = self.driver.store.keep(run, directory, begin)
        runs.setdefault(cell.id, []).append(run)
        return run

    def _target(self, cell: Cell, block: int, number: int) -> Path:
        """Directory of an attempt."""
        return self.directory / f"b{block:04d}" / f"{cell.slug}-{cell.id}.{number}"

    def _note_start(self, cell: Cell, attempt: Attempt) -> None:
        """Keep which part of a run the start of an external client's program was."""
        starts = self.pilot.starts if self.pilot is not None else {}
        start_s, goodput = starts.get(cell.libraries), attempt.metrics.get("goodput_mbps")
        if start_s is not None and goodput:
            attempt.metrics["start_share"] = start_s / (8 * attempt.metrics["bytes"] / goodput / 1e6)

    def _attest(self, cell: Cell, attempt: Attempt) -> None:
        """Name the proof of a run; a success without one is proven now, or has failed."""
        if cell.id not in self.proofs and attempt.status == "ok":
            verdict = self.driver.prover.prove(self.proof(cell))
            if verdict.status == "ok":
                self.proofs[cell.id] = verdict.proof
            else:
                attempt.fail(f"not proven: {verdict.reason}")
        if cell.id in self.proofs:
            attempt.evidence["proof"] = self.proofs[cell.id]

    def _record(self, spec: RunSpec, attempt: Attempt, *, number: int, **place: Any) -> Run:
        return self.driver.store.record(spec, attempt, experiment=self.name, campaign=self.id, attempt=number, **place)


def block_told(block: int, most: int, of: str) -> str:
    """Which of so many blocks it is, for people; cells that lack runs of earlier blocks are measured in more than most.

    *of* says how many there are.
    """
    return f"block {block + 1} of {of}" if block < most else f"block {block + 1}, for what earlier ones lack"


def arrival_seed(seed: int, block: int) -> int:
    """The seed of when connections of a block begin."""
    return random.Random(f"{seed}/{block}").getrandbits(32)


def _summary(run: Run) -> str:
    if run.status != "ok":
        return f"{run.status}: {run.reason}"
    metrics = run.metrics
    if run.together is not None:
        text = f"{stored_pairs.per_byte(run) * 2**30:.2f} s of processors per GiB"
    elif metrics.bit_rate_mbps is not None:
        text = f"video {metrics.bit_rate_mbps:.2f} Mbit/s, {metrics.stalls or 0} stalls"
    elif metrics.page_load_ms is not None:
        text = f"page {metrics.page_load_ms:.0f} ms"
    elif metrics.goodput_mbps is not None:
        text = f"{metrics.goodput_mbps / 1000:.2f} Gbit/s"
    elif metrics.ttfb_ms is not None:
        text = f"TTFB {metrics.ttfb_ms:.2f} ms"
    else:
        text = f"{metrics.wall_s or 0:.1f} s"
    return text + (f" (contaminated: {'; '.join(run.contamination)})" if run.contaminated else "")


def _number(run: Run) -> int:
    return run.attempt or 0


def _condition(cell: Cell) -> tuple[float, str]:
    """What a cell needs of the link that takes long to change."""
    return cell.variant.rtt_ms, json.dumps(cell.variant.as_dict().get("background"), sort_keys=True)
