"""A campaign whose runs are measured in concurrent pairs, where an experiment is `paired`.

Every cell that is compared is measured at the same time as the baseline that stands before it in a block (arm
`beside`), and both runs are in one directory (`quicbed.measure.stored_pairs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from quicbed.measure import stored_pairs
from quicbed.measure.attempt import MeasureError
from quicbed.measure.campaign import Campaign
from quicbed.measure.concurrent_pair import Arm
from quicbed.measure.driver import Driver
from quicbed.measure.storing import need_room
from quicbed.plan.cells import Cell
from quicbed.store.record import Run


def campaign_for(driver: Driver, name: str) -> Campaign:
    """The campaign of an experiment, of pairs where it says so."""
    paired = driver.project.experiments[name].paired
    return CampaignOfPairs(driver, name) if paired else Campaign(driver, name)


class CampaignOfPairs(Campaign):
    """A campaign of pairs: neither run of one is without the other."""

    at_once = 2

    @cached_property
    def _pins(self) -> Mapping[Any, int] | str:
        """The processors of both ends, or why programs cannot be kept to any."""
        return self.driver.testbed.pins()

    def impossible(self) -> str | None:
        """Why programs cannot be pinned to processors here, or None."""
        return self._pins if isinstance(self._pins, str) else None

    def read_block(self, directory: Path) -> Iterable[Run]:
        """The runs of all pairs of a block."""
        return (run for pair in directory.glob("[!.]*/") for run in stored_pairs.read(pair).values())

    def settles(self, run: Run) -> bool:  # noqa: ARG002 (it counts whatever it is)
        """A pair counts whatever disturbed it: both runs had it alike."""
        return True

    def prove(self) -> None:
        """As of separate runs; a cell whose other half is excluded is so too."""
        super().prove()
        by_id = {cell.id: cell for cell in self.cells}
        pairs = [(cell, by_id[cell.baseline]) for cell in self.cells if cell.baseline is not None]
        for cell, other in (*pairs, *((b, a) for a, b in pairs)):
            if other.id in self.excluded and cell.id not in self.excluded:
                status = "failed" if other.slug in self.unproven else "unsupported"
                self.exclude(cell, status, f"{other.label}, which it is paired with: {self.excluded[other.id]}")

    def in_full(self, order: list[str], by_id: Mapping[str, Cell]) -> list[str]:
        """Each cell behind its baseline."""
        return [one for cell in order for one in (by_id[cell].baseline, cell) if one is not None]

    def wanted(self, by_id: Mapping[str, Cell], planned: Mapping[int, Sequence[str]]) -> set[str]:
        """As of separate runs, and the cells of the baselines among them."""
        found = super().wanted(by_id, planned)
        return found | {cell.id for cell in by_id.values() if cell.baseline in found}

    def value_of(self, run: Run) -> float | None:
        """Processor time of both ends by byte (s)."""
        return stored_pairs.per_byte(run)

    def measure_once(self, cell: Cell, block: int, order: int, number: int) -> Run:
        """One stored pair; returns the run of the cell that is compared."""
        need_room(self.directory)
        if isinstance(self._pins, str):
            raise MeasureError(self._pins)
        beside = next(one for one in self.cells if one.id == cell.baseline)
        cells: dict[Arm, Cell] = {"a": beside, "b": cell}
        specs = {arm: self.spec(one) for arm, one in cells.items()}
        self.driver.link.prepare(specs["a"])
        place = {"experiment": self.name, "campaign": self.id, "block": block, "attempt": number}
        pair = stored_pairs.measure_pair(
            self.driver,
            specs,
            self._target(cell, block, number),
            before=self._before(cell, beside),
            first=stored_pairs.first(self.driver.project.config.seed, f"{self.id}/{cell.id}", block),
            pins=self._pins,
            proofs={arm: self.proofs[one.id] for arm, one in cells.items()},
            places={"a": {**place, "order": order - 1}, "b": {**place, "order": order}},
            named={"a": {}, "b": {}},
        )
        for run in pair.values():
            self.runs(block).setdefault(run.cell.id, []).append(run)
        return pair["b"]

    def _before(self, cell: Cell, beside: Cell) -> list[stored_pairs.Runs]:
        """The pairs of a cell so far, in their order."""
        found: list[stored_pairs.Runs] = []
        for block in sorted(self.blocks()):
            runs = self.runs(block)
            both = zip(runs.get(beside.id, []), runs.get(cell.id, []), strict=True)
            found += [{"a": a, "b": b} for a, b in both]
        return found
