"""Instructions of two arms that are compared: each counted by itself, and kept beside their pairs.

They are counted as the experiment `instructions` counts them (`quicbed.measure.callgrind`): of a download, less one of
a single byte, which has the start and the end of the programs and the handshake.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quicbed.base.untrusted import one_line
from quicbed.config.model import Instructions
from quicbed.measure import callgrind
from quicbed.measure.attempt import MeasureError
from quicbed.measure.concurrent_pair import ARMS, Arm
from quicbed.measure.driver import Driver
from quicbed.measure.progress import say
from quicbed.measure.storing import read_run, stored
from quicbed.plan.spec import RunSpec
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run
from quicbed.testbed import TestbedError

BYTES = 4 << 20
"""Of a download that is counted, as in the scale `quick` of the experiment."""
BLOCKS = 2
"""As many as there: what differs between them is the work of batches, and not of an arm."""
TIMEOUT_S = 120.0
NOT_TIME = "Instructions are not time, and Callgrind runs no code with AVX-512 or vector AES."
PARTS: Mapping[str, Sequence[str]] = {
    "both ends": ("client", "server"),
    "client": ("client",),
    "server": ("server",),
}
"""Names for people of the ends whose instructions are added up."""


@dataclass(frozen=True)
class Counted:
    """Instructions per byte of content."""

    blocks: Sequence[Mapping[Arm, Mapping[str, float]]]
    """By arm and part; one or more."""
    bytes: int
    """Of a download."""

    def mean(self, arm: Arm, part: str) -> float:
        """Instructions per byte of a part of an arm."""
        return math.fsum(block[arm][part] for block in self.blocks) / len(self.blocks)

    def ratios(self, part: str) -> list[float]:
        """B over A, by block."""
        return [block["b"][part] / block["a"][part] for block in self.blocks]

    def ratio(self, part: str) -> float:
        """B over A, of all blocks."""
        return statistics.geometric_mean(self.ratios(part))

    def as_dict(self) -> dict[str, Any]:
        """For a file of JSON."""
        return {
            "unit": "instructions per byte, b over a",
            "note": NOT_TIME,
            "bytes": self.bytes,
            "ratios": {part: {"ratio": self.ratio(part), "blocks": self.ratios(part)} for part in PARTS},
            "per_byte": {arm: {part: self.mean(arm, part) for part in PARTS} for arm in ARMS},
        }

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"Instructions per byte, B over A ({len(self.blocks)} counts, [lowest, highest])"]
        for part in PARTS:
            ratio, ratios = self.ratio(part), self.ratios(part)
            span = f"[{min(ratios):.4f}, {max(ratios):.4f}]"
            both = f"{self.mean('b', part):.2f} over {self.mean('a', part):.2f}"
            lines.append(f"  {part:9}  {ratio:.4f}  {span}  {100 * (ratio - 1):+.2f} %, {both}")
        return [*lines, NOT_TIME]


_COUNTED = "[0-9][0-9][0-9][0-9]-[ab]"
Key = tuple[int, Arm, int]
"""Block, arm and bytes of a counted run."""


def count(
    driver: Driver,
    specs: Mapping[Arm, RunSpec],
    directory: Path,
    *,
    proofs: Mapping[Arm, str],
    place: Mapping[str, Any],
    named: Mapping[Arm, Mapping[str, str | None]],
) -> Counted | str:
    """Instructions of both arms, of runs that are stored in *directory*, or why there are none, in one line.

    Runs that are there already count and are not made again. *proofs*, *place* and *named* are as
    `quicbed.measure.stored_pairs.measure_pair` takes them. What goes wrong here takes nothing from what pairs show.
    """
    whole = min(BYTES, *(spec.bytes for spec in specs.values()))
    wanted: list[Key] = [(block, arm, size) for block in range(BLOCKS) for arm in ARMS for size in (1, whole)]
    try:
        files = list(directory.glob(f"{_COUNTED}/{RUN_FILE}"))
        kept = [read_run(file) for file in files]
        # also after one that somebody has moved out of the way
        first = 1 + max((int(file.parent.name[:4]) for file in files), default=-1)
        good = {_key(run): run for run in kept if run.status == "ok"}
        missing = [key for key in wanted if key not in good]
        ends = (driver.testbed.client, driver.testbed.server)
        if missing and (problem := next(filter(None, map(callgrind.problem, ends)), None)) is not None:
            return problem
        for number, key in enumerate(missing):
            block, arm, size = key
            label = specs[arm].cell.label
            say(f"{place['experiment']}: instructions of {label}, run {number + 1} of {len(missing)}")
            spec = replace(specs[arm], perf=Instructions(), bytes=size, timeout_s=TIMEOUT_S)
            driver.link.await_link()
            driver.link.prepare(spec)
            begin = time.monotonic()
            with stored(directory / f"{first + number:04d}-{arm}") as partial:
                attempt = driver.runner.execute(spec, partial)
                attempt.evidence["proof"] = proofs[arm]
                which = {"block": block, "order": wanted.index(key), "attempt": sum(_key(run) == key for run in kept)}
                run = driver.store.record(spec, attempt, named=named[arm], **place, **which)
                run = driver.store.keep(run, partial, begin)
            if run.status != "ok":
                return f"{label}: {run.reason}"
            kept.append(run)
            good[key] = run
        return Counted([_per_byte(good, block, whole) for block in range(BLOCKS)], whole)
    except (MeasureError, TestbedError, OSError) as error:
        return one_line(error)


def _key(run: Run) -> Key:
    arm: Arm = "b" if run.cell.arm == "b" else "a"
    return run.block or 0, arm, run.workload.bytes or 0


def _per_byte(runs: Mapping[Key, Run], block: int, whole: int) -> dict[Arm, dict[str, float]]:
    found: dict[Arm, dict[str, float]] = {}
    for arm in ARMS:
        more = {
            role: _counted(runs[block, arm, whole], role) - _counted(runs[block, arm, 1], role)
            for role in ("client", "server")
        }
        if least := [role for role, count in more.items() if count <= 0]:
            raise MeasureError(
                f"{whole} bytes take the {least[0]} of arm {arm} no more instructions than one byte does"
            )
        found[arm] = {part: sum(more[role] for role in roles) / (whole - 1) for part, roles in PARTS.items()}
    return found


def _counted(run: Run, role: str) -> int:
    told = (run.host.perf or {}).get(role)
    count = told.get("instructions") if isinstance(told, dict) else None
    if not isinstance(count, int):
        raise MeasureError(f"a counted run of {run.campaign} has no `host.perf.{role}`; move it out of the way")
    return count
