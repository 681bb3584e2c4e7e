"""Pairs of runs at the same time as they are kept: two runs that name each other, in one directory.

Each has a run.json as any other run, with the same model (`quicbed.measure.concurrent_pair` executes them). Both are
below one directory, which appears when the pair is complete. So what reads runs reads these too, and half a pair cannot
be there.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quicbed.measure.attempt import MeasureError
from quicbed.measure.concurrent_pair import ARMS, Arm, Together
from quicbed.measure.driver import Driver
from quicbed.measure.storing import drop_empty, read_run, stored
from quicbed.plan.spec import RunSpec
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run

FEWEST_BYTES = 65536
LOOKED_AT = 4
"""Pairs that tell how fast arms are: on a busy machine one alone tells it badly."""
BOTH = ("client_cpu_s", "server_cpu_s")
"""Keys of `together` of a run: the processor time of both ends."""
Runs = Mapping[Arm, Run]
"""Of a pair."""


def sizes(specs: Mapping[Arm, RunSpec], before: Sequence[Runs]) -> dict[Arm, int]:
    """What each arm is to download, so that both are about equally long: by the last pairs *before* that tell.

    The faster one downloads what its spec says. Nothing tells how fast they are before the first pair.
    """
    most = {arm: spec.bytes for arm, spec in specs.items()}
    known = [pair for pair in before if finished(pair)]
    if not known:
        return most
    speeds = {
        arm: statistics.geometric_mean(
            (pair[arm].workload.bytes or 1) / _told(pair[arm], "seconds") for pair in known[-LOOKED_AT:]
        )
        for arm in ARMS
    }
    scale = min(most[arm] / speed for arm, speed in speeds.items())
    return {arm: max(min(FEWEST_BYTES, most[arm]), round(scale * speed)) for arm, speed in speeds.items()}


def first(seed: int, pair: str, number: int) -> Arm:
    """The arm that is started first in the pair of this *number*: either one in one of two, which one by the seed."""
    coin = random.Random(f"{seed}/{pair}/{number // 2}").random() < 0.5
    return ARMS[int(coin) ^ number % 2]


def measure_pair(
    driver: Driver,
    specs: Mapping[Arm, RunSpec],
    target: Path,
    *,
    before: Sequence[Runs],
    first: Arm,
    pins: Mapping[Any, int],
    proofs: Mapping[Arm, str],
    places: Mapping[Arm, Mapping[str, Any]],
    named: Mapping[Arm, Mapping[str, str | None]],
) -> dict[Arm, Run]:
    """One pair, stored as the directory *target* below that of its campaign; the link is prepared.

    *before* are pairs of the same arms, in their order. Of each arm, *places* are the keys of
    run.json that say which attempt it is, and *named* what else its cell is named.
    """
    begin = time.monotonic()
    campaign = str(places["a"]["campaign"])
    downloads = sizes(specs, before)
    sized = {arm: replace(spec, bytes=downloads[arm]) for arm, spec in specs.items()}
    runs: dict[Arm, Run] = {}
    with stored(target) as partial:
        directories = {arm: partial / arm for arm in ARMS}
        for directory in directories.values():
            directory.mkdir()
        together = Together(driver.project, driver.testbed, sized, directories, first=first, pins=pins)
        for arm, attempt in together.run().items():
            drop_empty(directories[arm])
            attempt.evidence["proof"] = proofs[arm]
            inside = target.parts[target.parts.index(campaign) :]
            told = {"pair": "/".join(inside), **together.told[arm]}
            run = driver.store.record(sized[arm], attempt, named=named[arm], together=told, **places[arm])
            runs[arm] = driver.store.keep(run, directories[arm], begin)
    return runs


def read(directory: Path) -> dict[Arm, Run]:
    """The runs of a stored pair; MeasureError where one is missing or damaged."""
    return {arm: read_run(directory / arm / RUN_FILE) for arm in ARMS}


def ok(pair: Runs) -> bool:
    """Whether a pair counts."""
    return all(run.status == "ok" for run in pair.values())


def finished(pair: Runs) -> bool:
    """Whether both arms came to their ends, also where one was alone for too long: it tells how fast they are."""
    return all(run.together is not None and run.together.seconds for run in pair.values())


def reason(pair: Runs) -> str:
    """Why a pair has failed: of the arm that did not fail because of the other."""
    own = [f"arm {arm}: {run.reason}" for arm, run in pair.items() if not (run.reason or "").startswith("arm ")]
    return own[0] if own else str(pair["a"].reason)


def per_byte(run: Run, parts: Sequence[str] = BOTH) -> float:
    """Processor time of these ends by byte, in seconds."""
    return sum(_told(run, part) for part in parts) / (run.workload.bytes or 1)


def _told(run: Run, name: str) -> float:
    value = None if run.together is None else getattr(run.together, name)
    if not value:
        raise MeasureError(f"a run of {run.campaign} has no `together.{name}`; move its pair out of the way")
    return float(value)
