"""When measuring will be done: what runs took so far, and what is left of the experiments.

Everything here is computed from what it is given: no clock, no file. All times are in seconds.

How long a run takes is learnt as a ratio to what was thought before (`Pace`), by keys from the run itself to all runs:
a library that turns out slow is expected to be slow in the cells not measured yet, and a machine that turns out slow in
experiments not begun yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MEMORY = 10.0
"""Of about so many runs of the same cell the last ones count, as a machine does not stay as it is."""
MEMORY_OF_OTHERS = 300.0
WEIGHT_OF_OTHERS = 1.0
"""What other runs tell counts as much as so many of the very runs that are asked about."""
AGAIN, AGAIN_BUSY = 0.03, 0.9
"""Share of runs that have to be repeated, as long as nothing is known: on a machine that has nothing else to do, and on
a busy one. It counts like `AGAIN_RUNS` runs."""
AGAIN_RUNS = 10.0
FEWEST_PAIRS = 4
"""Blocks from which on the width of an interval says how many blocks it will take."""


@dataclass(frozen=True)
class Work:
    """A run as far as its time is concerned."""

    keys: tuple[Hashable, ...]
    """What it has in common with other runs: the first is shared with runs that are alike in all, the last with any."""
    transfer_s: float
    """Roughly: of the download or the handshakes."""
    beyond_s: float
    """Roughly: what else it costs to prepare, start, stop, look at and store it."""


@dataclass
class _Seen:
    took: float = 0.0
    expected: float = 0.0
    runs: float = 0.0

    def add(self, took: float, expected: float, kept: float) -> None:
        self.took = self.took * kept + took
        self.expected = self.expected * kept + expected
        self.runs = self.runs * kept + 1


class Pace:
    """How long runs take, learnt from runs in the order in which they were measured."""

    def __init__(self, before: Pace | None = None, *, forgets: bool = True, slowdown: float = 1.0) -> None:
        """*before* is what was known already, of another machine; without it the rough figures of the work count.

        Everything is thought to take *slowdown* times as long, until runs tell.
        Of a machine that is not measured on now, all runs count alike: nothing is to be forgotten.
        """
        self._before = before
        self._forgets = forgets
        self._slowdown = slowdown
        self._seen: dict[tuple[str, Hashable], _Seen] = {}

    def saw(self, work: Work, spent_s: float, transfer_s: float | None) -> None:
        """A run took *spent_s*, of which *transfer_s* were its transfer; None where it did not get that far."""
        transfer, beyond = self._known(work)
        if transfer_s is None and work.transfer_s:
            # that time tells nothing of other runs
            self._add("transfer", work.keys[:1], max(spent_s - beyond, 0.0), transfer, work)
            return
        self._add("transfer", work.keys, transfer_s or 0.0, transfer, work)
        self._add("beyond", work.keys, max(spent_s - (transfer_s or 0.0), 0.0), beyond, work)

    def _add(self, part: str, keys: Sequence[Hashable], took: float, expected: float, work: Work) -> None:
        if expected > 0:
            for key in keys:
                memory = MEMORY if key == work.keys[0] else MEMORY_OF_OTHERS
                kept = 1 - 1 / memory if self._forgets else 1.0
                self._seen.setdefault((part, key), _Seen()).add(took, expected, kept)

    def _known(self, work: Work) -> tuple[float, float]:
        """Time of the transfer and beyond it before anything was seen."""
        return self._before.parts(work) if self._before else (work.transfer_s, work.beyond_s)

    def parts(self, work: Work) -> tuple[float, float]:
        """Time of the transfer of a run, and beyond it."""
        transfer, beyond = self._known(work)
        return transfer * self._ratio("transfer", work), beyond * self._ratio("beyond", work)

    def seconds(self, work: Work) -> float:
        """How long a run will take."""
        return sum(self.parts(work))

    def _ratio(self, part: str, work: Work) -> float:
        """Of what runs took to what was known before: of all runs, corrected by those more and more alike."""
        ratio = self._slowdown
        for key in reversed(work.keys):
            if (seen := self._seen.get((part, key))) is not None:
                one = seen.expected / seen.runs * WEIGHT_OF_OTHERS
                ratio = (seen.took + one * ratio) / (seen.expected + one)
        return ratio

    def machine(self) -> float:
        """How much longer than before everything took so far, or is thought to take."""
        alone = [seen for (_, key), seen in self._seen.items() if key == EVERYTHING]
        expected = sum(seen.expected for seen in alone)
        return sum(seen.took for seen in alone) / expected if expected else self._slowdown


EVERYTHING = "everything"
"""The last key of every work."""


@dataclass
class Repeats:
    """How often runs have to be repeated."""

    before: float = AGAIN
    """Share of runs that have to be, as long as nothing is known."""
    runs: float = 0.0
    spoilt: float = 0.0

    def saw(self, *, spoilt: bool) -> None:
        """A run; it had to be repeated if it was spoilt."""
        kept = 1 - 1 / MEMORY_OF_OTHERS
        self.runs = self.runs * kept + 1
        self.spoilt = self.spoilt * kept + spoilt

    def attempts(self, retries: int) -> float:
        """Runs that it will take to get one, if at most *retries* are tried after the first."""
        share = (self.spoilt + self.before * AGAIN_RUNS) / (self.runs + AGAIN_RUNS)
        return sum(share**number for number in range(retries + 1))


@dataclass(frozen=True)
class Span:
    """A time: the expected one, and the shortest and longest by the rules that end experiments."""

    expected: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(self.expected + other.expected, self.least + other.least, self.most + other.most)

    @staticmethod
    def of(seconds: float) -> Span:
        """A time that no rule changes."""
        return Span(seconds, seconds, seconds)


@dataclass
class Left:
    """What is left of an experiment."""

    works: Mapping[str, Work]
    """By cell."""
    done: Mapping[str, int]
    """In how many blocks a cell was measured."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of cells that are in the first blocks only: in how many."""
    besides: frozenset[str] = frozenset()
    """Cells whose time does not count for *max_s*."""
    once: Sequence[Work] = ()
    """What is done before the blocks: proofs, warm-up."""
    least: int = 1
    """Blocks at least, before the experiment may end."""
    most: int = 1
    needed: Mapping[str, int] | None = None
    """By cell, blocks that its contrast is expected to take, from what was measured here; None: not known yet."""
    usual: Mapping[str, int] = field(default_factory=dict)
    """The same from measurements elsewhere, as far as they tell."""
    max_s: float | None = None
    spent_s: float = 0.0
    start_s: float = 0.0
    """What starting costs."""

    def span(self, pace: Pace, attempts: float) -> Span:
        """How long it will take."""
        each = {cell: pace.seconds(work) * attempts for cell, work in self.works.items()}
        before = self.start_s + sum(map(pace.seconds, self.once))

        def blocks_s(blocks: int, cells: Iterable[str], needed: Mapping[str, int]) -> float:
            def missing(cell: str) -> int:
                enough = max(needed.get(cell, self.most), self.least)
                return max(min(blocks, enough, self.limits.get(cell, blocks)) - self.done.get(cell, 0), 0)

            return sum(each[cell] * missing(cell) for cell in cells)

        timed = [cell for cell in each if cell not in self.besides]

        def last(needed: Mapping[str, int]) -> int:
            """The last block that is begun in time."""
            block, most = self.least, min(self.most, max((needed.get(cell, self.most) for cell in each), default=0))
            while block < most and (self.max_s is None or self.spent_s + blocks_s(block, timed, needed) < self.max_s):
                block += 1
            return block

        expected = dict.fromkeys(each, self.least) | dict(self.usual) if self.needed is None else self.needed
        unlimited: dict[str, int] = {}
        found = ((expected, last(expected)), (unlimited, self.least), (unlimited, last(unlimited)))
        return Span(*(before + blocks_s(blocks, each, needed) for needed, blocks in found))


def blocks_needed(blocks: int, half_width: float, wanted: float, least: int) -> int | None:
    """Blocks until an interval is narrow enough; None if that cannot be told yet.

    It has *half_width* after *blocks*; *wanted* is the half width that ends the experiment. The width falls with the
    root of the number of blocks.
    """
    if blocks < FEWEST_PAIRS:
        return None
    more = blocks + 1 if half_width > wanted else 0
    return max(least, more, round(min(blocks * (half_width / wanted) ** 2, 1e6)))
