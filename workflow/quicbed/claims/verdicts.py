"""Verdicts on published claims (`quicbed.claims.papers`), from the newest campaign of the experiment each one reads.

**Outcomes.** A claim is about one or more libraries and makes one or more comparisons; each comparison on each library
is an outcome. A ratio is formed within blocks and has the interval that figures show (`quicbed.analysis.comparison`); a
share of processor time, a ratio itself, is a mean over blocks. Packets and sizes are what protocol and build decide:
their value is the median of the captured connections, their interval the quartiles, and no error of sampling is
assumed; fewer than three connections decide nothing. Counts of events, such as lost datagrams, and small shares are
zero in some blocks, of which there is no ratio: their ratio is that of the sums over all blocks, infinite over nothing
but zeros, and whether it is on one side of a bound is told by what one is above the other times the bound (E. C.
Fieller, "Some Problems in Interval Estimation", Journal of the Royal Statistical Society B 16(2), 1954). Which pair is
the fastest or the slowest is told by the means over blocks; where pairs are missing, others may be faster or slower
still, so that only a value beyond the bounds on that side decides.

**External programs.** The goodput of an external client has the start of its program in it, some tens of milliseconds a
run, which goodput in a program of ours has not. The two are never compared, and never in one verdict: a claim on both
is judged by what was measured without the start, and the others are left out with that reason. An external client that
reports the times of its connections has no start in them.

**Processor time.** A claim about cost (`cost` in its file) is judged by goodput, as its paper does. The same
comparisons are made of what both ends download per second of their processor time, the twin of goodput: with the same
bounds, an A/A arm of its own, and p-values that are adjusted among twins only, so that neither weighs on the other. The
two may be decided differently, which is said: what takes processor time costs no goodput where something else is in the
way, and goodput also depends on what else a machine does.

**Pairs.** Runs at the same time tell a ratio of processor time far more precisely than runs one after the other do, and
no goodput. A claim may name an experiment of such pairs (`pairs` in its file). Its comparisons of processor time are
then made of the pairs. Those of goodput are made of what the busier end downloads per second of its processor time:
the goodput that follows where nothing else is in the way. That is asked of the separate runs: the two intervals have to
overlap, else the measured goodput decides. Either way the verdict says so.

**Decision.** An outcome is clear when its 95 % interval lies within or outside the bounds and straddles neither. The
p-value asks how surely the mean lies on that side of the nearest bound: Student's t of the blocks' values (of their
logarithms for ratios), doubled, so that p = 0.05 is where Student's 95 % interval touches the bound. A claim holds if
all its outcomes are inside, which needs no correction (an intersection-union test: the largest p); it fails if one is
outside (the smallest p times their number, Bonferroni).

**Multiple testing.** The claims of one paper are one family. Their p-values are adjusted by the procedure of Benjamini
and Hochberg, and a verdict is given where the adjusted value is at most 5 %: of the verdicts `holds` and `fails` on a
paper, at most 5 % are expected to be wrong. Controlling that any of them is wrong (Holm) would make every cell of a
table weigh on every finding; the p-values are in the table for whoever wants it. Ratios that share a baseline depend
on each other positively, under which the procedure still controls the rate (Y. Benjamini and D. Yekutieli, "The
Control of the False Discovery Rate in Multiple Testing under Dependency", Annals of Statistics 29(4), 2001). All of it
is about chance. What moves all blocks alike, such as a testbed unlike the paper's, no p-value sees; the interval of the
A/A arm, the baseline against itself, shows what of that differs between cells that should be equal.

**Hardware.** A value of a paper's hardware is judged on another kind of testbed as a ratio or an order only: through
the claim's `locally`, and else not at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import polars as pl
from scipy.special import stdtr

from quicbed.analysis import comparison as analysis
from quicbed.analysis import cpu_shares, floors, paired_runs, published, ttfb
from quicbed.analysis.pairs import mtu_table
from quicbed.base import statistics
from quicbed.claims.papers import (
    GOODPUT,
    SAMPLED,
    Claim,
    Comparison,
    Paper,
    Predicate,
    Reading,
    Stated,
    Term,
    digits,
)
from quicbed.config.model import Project
from quicbed.plan.arms import LEFT_OUT
from quicbed.plan.estimate import duration
from quicbed.store import details

Verdict = Literal["holds", "fails", "inconclusive", "not measured", "not applicable"]
Basis = Literal["ratio", "order", "share", "count", "value", "failures"]

LEVEL = 1 - statistics.CONFIDENCE
"""Expected share of wrong ones among the verdicts `holds` and `fails` on a paper, at most."""
MOST_BLOCKS = 100_000
"""More than so many blocks are not asked for: the value lies on the bound."""
FEWEST_CAPTURED = 3
"""Captured connections whose quartiles can differ from their median."""
LOCAL = "local"
WITH_START = frozenset({GOODPUT, analysis.TWIN})
"""Metrics that have the start of the program in them where the client is an external endpoint."""
PUBLISHED = "published"
"""Kind of the testbed of published raw data, to which no block can be added."""


@dataclass(frozen=True)
class Tables:
    """What claims read: `quicbed.store.runs`, `quicbed.store.details`, and `quicbed.analysis.cpu_shares.BLOCKS`.

    There may be runs alone, for claims that read nothing else.
    """

    runs: pl.DataFrame
    handshakes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=details.HANDSHAKES))
    primitives: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=details.PRIMITIVE_TIMES))
    shares: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=cpu_shares.BLOCKS))
    published: bool = False  # raw data of the authors, not what was measured here
    floors: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=details.FLOORS))
    campaigns: analysis.Campaigns = field(init=False)  # of the runs

    def __post_init__(self) -> None:
        object.__setattr__(self, "campaigns", analysis.Campaigns(self.runs))


def as_campaign(table: pl.DataFrame) -> pl.DataFrame:
    """Published runs, named by experiment and label, as a campaign of each of these experiments."""
    cell = pl.concat_str(["experiment", "label", "client_library", "server_library"], separator=" ")
    return table.with_columns(campaign=pl.lit("published data"), testbed=pl.lit(PUBLISHED), cell=cell)


def tables(raw: Path, root: Path, table: pl.DataFrame | None = None, beside: details.Details | None = None) -> Tables:
    """Read what lies below *raw*; *table* and *beside* spare reading again. *root* is the repository."""
    if table is None:
        table, beside = details.everything(raw)
    beside = beside or details.read(raw)
    profiled = [
        cpu_shares.profiled(table, raw, root, name).blocks for name in (cpu_shares.EXPERIMENT, cpu_shares.BYPASS)
    ]
    return Tables(table, beside.handshakes, beside.primitives, pl.concat(profiled), floors=beside.floors)


@dataclass(frozen=True)
class Outcome:
    """One comparison on one library."""

    library: str | None  # null where the comparison names its libraries itself
    text: str
    low_bound: float
    high_bound: float
    value: float = math.nan
    low: float = math.nan  # 95 % interval, or quartiles of what was captured
    high: float = math.nan
    n: int = 0  # blocks, or captured connections
    p: float | None = None  # None where no error of sampling is assumed
    margin: float = math.nan  # from the mean to the nearest bound, on the scale of the test, in standard deviations
    published: float | None = None  # the same, of the paper's own numbers
    missing: Verdict | None = None  # `not measured` or `not applicable`
    reason: str = ""
    undecided: str = ""  # why the value decides nothing, whatever its interval
    external: bool = False  # a goodput with the start of an external program in it
    cells: tuple[str, ...] = ()
    contaminated: int | None = None  # runs of its cells that count although contaminated; None where no runs do
    floor: tuple[float, float] | None = None  # interval of the A/A arm, of several libraries the widest
    through: str | None = None  # experiment of pairs that it was made of, in place of separate runs
    beside: str = ""  # what separate runs say where pairs decide, and what pairs say where they do not

    @property
    def inside(self) -> bool:
        """Whether the value is within the bounds."""
        return self.low_bound <= self.value <= self.high_bound

    @property
    def clear(self) -> bool:
        """Whether the interval is on the same side of the bounds as the value."""
        if math.isnan(self.low) or math.isnan(self.high):
            return False
        if self.inside:
            return self.low_bound <= self.low and self.high <= self.high_bound
        return self.high < self.low_bound or self.low > self.high_bound

    @property
    def agrees(self) -> bool | None:
        """Whether the paper's own numbers are within the bounds, to the digits it prints."""
        if self.published is None:
            return None
        near = 1e-9 * max(1.0, abs(self.published))
        return self.low_bound - near <= self.published <= self.high_bound + near


@dataclass
class Result:
    """The verdict on a claim and what it rests on."""

    stated: Stated
    verdict: Verdict = "not measured"
    reason: str = ""
    basis: Basis = "ratio"
    predicate: Predicate | None = None  # the bounds that were judged, those of `locally` on a local testbed
    outcomes: list[Outcome] = field(default_factory=list)
    beyond: list[Outcome] = field(default_factory=list)  # other libraries of ours
    p: float | None = None
    adjusted: float | None = None
    more_blocks: int | None = None
    block_s: float | None = None  # that a block of the pairs of libraries took that it compares
    experiment: str = ""
    campaign: str | None = None
    testbed: str | None = None
    testbed_kind: str | None = None
    scale: str | None = None
    contaminated: int | None = None  # runs behind it that count although contaminated
    floor: tuple[float, float] | None = None  # widest interval of the A/A arms of its libraries
    twin: Result | None = None  # the same of processor time, of a claim about cost

    @property
    def differs(self) -> str:
        """Where processor time says something else of a claim about cost than goodput; empty where it says the same."""
        if self.twin is None or not self.measured or not self.twin.measured or self.verdict == self.twin.verdict:
            return ""
        if self.twin.verdict == "inconclusive":
            return "processor time does not decide it"
        if self.verdict == "inconclusive":
            return f"processor time decides it, goodput does not: by processor time it {self.twin.verdict}"
        return f"the two disagree: by goodput it {self.verdict}, by processor time it {self.twin.verdict}"

    @property
    def more_hours(self) -> float | None:
        """Hours that `more_blocks` take, with all cells of its pairs of libraries; None where that is not known."""
        if self.more_blocks is None or self.block_s is None:
            return None
        return self.more_blocks * self.block_s / 3600

    @property
    def measured(self) -> list[Outcome]:
        """Outcomes that have a value."""
        return [outcome for outcome in self.outcomes if outcome.missing is None]

    @property
    def outside(self) -> list[Outcome]:
        """Those of them that are outside the bounds, and decide."""
        return [outcome for outcome in self.measured if not outcome.inside and not outcome.undecided]

    @property
    def external(self) -> bool:
        """Whether it rests on goodput with the start of external programs in it."""
        return any(one.external for one in self.measured)

    @property
    def conditions(self) -> str:
        """What it was measured under; empty without a value."""
        if not self.measured:
            return ""
        published_ = self.testbed_kind == PUBLISHED
        parts = ["published runs" if published_ else f"testbed {self.testbed}, scale {self.scale}"]
        if self.external:
            parts.append("the start of external programs included")
        if self.contaminated is not None and not published_:
            plural = "s" if self.contaminated != 1 else ""
            parts.append(f"{self.contaminated or 'no'} contaminated run{plural}")
        if self.floor is not None:
            parts.append(self.noise)
        return "; ".join([", ".join(parts), *self.through])

    @property
    def through(self) -> list[str]:
        """What of it was made of concurrent pairs, and what separate runs say."""
        names = self.stated.paper.libraries
        found = [(one, f"{names.get(one.library or '', one.library or '')} ({one.beside})") for one in self.measured]
        lines = []
        for name in dict.fromkeys(one.through for one, _ in found if one.through):
            told = ", ".join(text for one, text in found if one.through == name)
            lines.append(f"through concurrent pairs ({name}): {told}")
        if others := [text for one, text in found if one.beside and not one.through]:
            lines.append(f"not through pairs: {', '.join(others)}")
        return lines

    @property
    def noise(self) -> str:
        """The widest interval of the A/A arms, and whether equal cells differ there; empty without one."""
        if self.floor is None:
            return ""
        low, high = self.floor
        unlike = "" if low <= 1 <= high else ", which excludes 1: equal cells differ here"
        return f"A/A {low:.3f} to {high:.3f}{unlike}"

    @property
    def judged(self) -> str:
        """As what the claim is judged, and why only as that."""
        names: dict[Basis, str] = {
            "share": "a share of processor time, which is a ratio",
            "count": "a property of protocol and build",
            "failures": "which connections fail",
            "ratio": "a ratio",
            "order": "an order",
            "value": "a value",
        }
        text = names[self.basis]
        if self.only_relative:
            text += f" only: stated for {self.stated.paper.hardware}, measured on a local testbed"
        return text

    @property
    def only_relative(self) -> bool:
        """Whether the claim is about other hardware, and judged as a ratio or an order for that reason."""
        hardware = self.stated.paper.hardware and self.stated.claim.hardware
        return bool(hardware) and self.basis in ("ratio", "order", "share") and self.testbed_kind == LOCAL


# ---- statistics ------------------------------------------------------------------------------------------------------


def side(values: np.ndarray[Any, np.dtype[np.float64]], low: float, high: float) -> tuple[float, float]:
    """p-value that the mean of *values* lies where it lies, within or outside the bounds, and its margin.

    The margin is the distance of the mean to the bound that matters, in standard deviations; infinite without spread.
    """
    n, mean = len(values), float(values.mean())
    distance = abs(min(mean - low, high - mean))  # within them that to the nearer one, outside to the one passed
    if n < 2:
        return 1.0, math.nan
    deviation = float(values.std(ddof=1))
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        return 0.0, math.inf
    margin = distance / deviation
    if math.isinf(margin):
        return 0.0, margin
    return float(2 * stdtr(n - 1, -margin * math.sqrt(n))), margin


def more_blocks_needed(margin: float, n: int, level: float) -> int | None:
    """How many blocks beyond *n* make the p-value *level* if mean and spread stay; None for more than can be asked."""

    def enough(count: int) -> bool:
        return 2 * float(stdtr(count - 1, -margin * math.sqrt(count))) <= level

    if not margin > 0 or not enough(MOST_BLOCKS):
        return None
    low, high = max(n, 1), MOST_BLOCKS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high - n


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's adjusted p-values, in the order given."""
    values = np.array(p_values)
    count = len(values)
    order = np.argsort(values)
    # scipy.stats has this too, and takes two seconds to import
    scaled = values[order] * (count / np.arange(1.0, count + 1))
    values[order] = np.clip(np.minimum.accumulate(scaled[::-1])[::-1], 0.0, 1.0)
    return list(map(float, values))


# ---- what was measured -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measured:
    """One table of an experiment's newest campaign, by cell."""

    campaign: pl.DataFrame
    paired: bool  # of concurrent pairs: values are ratios to the run beside
    rows: Mapping[tuple[str, str, str], Mapping[str, Any]]  # by client, server, label
    sampled: Mapping[tuple[str, str | None, str | None], Mapping[int, float]]  # by cell, role, category: by block
    counted: Mapping[str, tuple[float, float, float, int]]  # by cell: median, quartiles, n


class _Book:
    """What claims read of all experiments, each worked out once."""

    def __init__(self, project: Project, found: Tables) -> None:
        self.project = project
        self.tables = found
        self._done: dict[tuple[str, str, str], _Measured] = {}

    def read(self, reading: Reading) -> _Measured:
        """The table that a claim reads."""
        key = (reading.experiment, reading.table, reading.metric)
        if key not in self._done:
            self._done[key] = self._read(reading)
        return self._done[key]

    def _read(self, reading: Reading) -> _Measured:
        campaign = self.tables.campaigns.newest(reading.experiment)
        handshakes = "handshake" in set(campaign["workload"].drop_nulls())
        metric = reading.metric if reading.table == "runs" else "ttfb_ms" if handshakes else "goodput_mbps"
        paired = paired_runs.is_paired(campaign)
        arms = pl.col("arm") == "main" if paired else pl.col("arm") != "aa"
        table = self.tables.campaigns.figure(reading.experiment, metric).filter(arms)
        rows = {(row["client_library"], row["server_library"], row["label"]): row for row in table.to_dicts()}
        sampled: dict[tuple[str, str | None, str | None], dict[int, float]] = {}
        counted: dict[str, tuple[float, float, float, int]] = {}
        if reading.table == "runs":
            found = analysis.block_values(campaign, reading.metric)
            sampled = {(cell, None, None): values for cell, values in found.items()}
        elif reading.table == "shares":
            for cell, role, category, block, share in self.tables.shares.select(
                "cell", "role", "category", "block", "share"
            ).rows():
                sampled.setdefault((cell, role, category), {})[block] = share
        else:
            counted = {cell: _quartiles(values) for cell, values in self._counts(reading, campaign, table)}
        return _Measured(campaign, paired, rows, sampled, counted)

    def _counts(
        self, reading: Reading, campaign: pl.DataFrame, table: pl.DataFrame
    ) -> Iterator[tuple[str, list[float]]]:
        """Values by cell of a table that has no blocks."""
        if reading.table == "handshakes":
            captured = ttfb.proven(self.tables.runs, campaign, self.tables.handshakes)
            own = ttfb.counted_proofs(campaign).join(captured, on="proof", how="inner")
            for (cell,), part in own.filter(pl.col(reading.metric).is_not_null()).group_by("cell"):
                yield str(cell), part[reading.metric].cast(pl.Float64).to_list()
            return
        if reading.table in ("sizes", "phases"):
            newest = campaign.sort("started_at", "origin").unique("cell", keep="last", maintain_order=True)
            cells = table.join(newest.select("cell", "group", "signature"), on="cell", how="left")
            times = ttfb.timed(self.tables.runs, campaign, self.tables.primitives)
            if reading.table == "sizes":
                table = ttfb.sizes(cells, times)
            else:
                table = ttfb.phases(cells, times).with_columns(crypto_share=pl.col("crypto_ms") / pl.col("median"))
        else:
            table = mtu_table(self.tables.runs, campaign, table)
        for cell, value in table.filter(pl.col(reading.metric).is_not_null()).select("cell", reading.metric).rows():
            yield cell, [float(value)]


def _quartiles(values: Sequence[float]) -> tuple[float, float, float, int]:
    low, median, high = np.quantile(np.sort(np.asarray(values)), [0.25, 0.5, 0.75])
    return float(median), float(low), float(high), len(values)


class _MissingError(Exception):
    """A comparison that cannot be made, and why."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


@dataclass(frozen=True)
class _Place:
    """The cell that a term names for a library."""

    term: Term
    client: str
    server: str


def _places(terms: Iterable[Term], library: str | None) -> list[_Place]:
    found = []
    for term in terms:
        client = term.library or library or ""
        found.append(_Place(term, client, term.server or client))
    return found


# ---- evaluation ------------------------------------------------------------------------------------------------------


def evaluate(project: Project, claims: Sequence[Stated], found: Tables) -> list[Result]:
    """The verdict on every claim, in their order.

    The families of multiple testing are those among *claims*: give all of a paper.
    """
    book = _Book(project, found)
    results = [_Evaluation(book, one).result() for one in claims]
    for result in results:
        # no published data have processor time by run
        if (twin := result.stated.twin) is not None and not found.published:
            result.twin = _Evaluation(book, twin).result()
    for name in dict.fromkeys(one.name for one in claims):
        own = [result for result in results if result.stated.name == name]
        _decide(own)
        _decide([result.twin for result in own if result.twin is not None])
    return results


class _Evaluation:
    """One claim before the other claims of its family are looked at."""

    def __init__(self, book: _Book, one: Stated) -> None:
        self.book = book
        self.stated = one
        self.claim: Claim = one.claim
        self.reading = one.claim.reads
        self.predicate = one.claim.predicate
        self.over: list[Term] = []  # divides every value on a local testbed

    def result(self) -> Result:
        """Outcomes, p-value and what is missing."""
        result = Result(self.stated, experiment=self.reading.experiment, predicate=self.predicate)
        try:
            campaign = self._campaign()
            first = campaign.row(0, named=True)
            for name in ("campaign", "testbed", "testbed_kind", "scale"):
                setattr(result, name, first[name])
            self._adapt(str(result.testbed_kind))
            measured = self.book.read(self.reading)
            result.predicate, result.basis = self.predicate, self._basis(measured)
        except _MissingError as missing:
            result.verdict, result.reason = missing.verdict, missing.reason
            return result
        by_cell = {row["cell"]: row for row in measured.rows.values()}
        for library in self.claim.subjects():
            result.outcomes += self._under(self._outcomes(measured, library), by_cell)
        result.outcomes = self._on_one_basis(result.outcomes)
        if self.claim.beyond:
            for library in self._others(measured):
                found = [one for one in self._outcomes(measured, library) if one.missing is None]
                found = [one for one in found if one.external == result.external]
                result.beyond += self._under(found, by_cell)
        alone = [one for one in result.measured if one.through is None]
        cells = [by_cell[cell] for cell in sorted({cell for one in alone for cell in one.cells})]
        result.contaminated, result.floor = self._conditions(cells)
        if len(alone) < len(result.measured):
            known = [one.floor for one in result.measured if one.floor is not None]
            result.floor = max(known, key=lambda ends: ends[1] - ends[0], default=None)
            result.contaminated = sum(one.contaminated or 0 for one in result.measured)
        took = {(row["client_library"], row["server_library"]): row["block_s"] for row in cells}
        if took and None not in took.values():
            result.block_s = sum(took.values())
        _summarise(result)
        return result

    def _on_one_basis(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Outcomes without those of external programs, where there are others."""
        if len({one.external for one in outcomes if one.missing is None}) < 2:
            return list(outcomes)
        reason = "its goodput includes the start of its external program, the others' does not"
        return [replace(one, missing="not applicable", reason=reason) if one.external else one for one in outcomes]

    def _external(self, row: Mapping[str, Any]) -> bool:
        """Whether the value of a cell has the start of an external program in it."""
        if self.reading.table != "runs" or self.reading.metric not in WITH_START:
            return False
        if row["testbed_kind"] == PUBLISHED:
            return False  # all of them are of whole programs
        if row["client_external"] is not None:
            return bool(row["client_external"]) and not row["client_times"]
        known = self.book.project.libraries.get(row["client_library"])
        return known is not None and known.external is not None and not known.external.statement.times

    def _under(self, outcomes: Iterable[Outcome], by_cell: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        """Outcomes with the conditions that they were measured under."""
        found = []
        for one in outcomes:
            if one.through is not None:
                found.append(one)
                continue
            contaminated, floor = self._conditions([by_cell[cell] for cell in dict.fromkeys(one.cells)])
            found.append(replace(one, contaminated=contaminated, floor=floor))
        return found

    def _conditions(self, rows: Sequence[Mapping[str, Any]]) -> tuple[int | None, tuple[float, float] | None]:
        """Contaminated runs that count, and the widest interval of an A/A arm, of cells."""
        if not rows or self.reading.table not in SAMPLED:
            return None, None
        # the A/A arm of another metric tells nothing
        floors = [(row["aa_low"], row["aa_high"]) for row in rows if self.reading.table == "runs"]
        known = [(low, high) for low, high in floors if low is not None and high is not None]
        contaminated = sum(row["contaminated"] for row in rows)
        return contaminated, max(known, key=lambda ends: float(ends[1] - ends[0]), default=None)

    def _campaign(self) -> pl.DataFrame:
        """The campaign that is judged, or why none can be."""
        name = self.reading.experiment
        campaign = self.book.tables.campaigns.newest(name)
        if campaign.is_empty() and self.book.tables.published:
            raise _MissingError("not measured", "the published data here have no runs for it")
        elsewhere = not campaign.is_empty() and campaign["testbed_kind"][0] != LOCAL
        if self.claim.needs is not None and not elsewhere:
            raise _MissingError("not applicable", f"needs {self.claim.needs}")
        if campaign.is_empty() and name not in self.book.project.experiments:
            reason = f"there is no experiment `{name}` yet: {self.stated.paper.awaited[name]}"
            raise _MissingError("not measured", reason)
        if campaign.is_empty():
            raise _MissingError("not measured", f"there are no runs of experiment `{name}`")
        return campaign

    def _adapt(self, testbed_kind: str) -> None:
        """Take a value of other hardware as a ratio, or not at all."""
        if self.stated.value_of is None or testbed_kind != LOCAL:
            return
        if self.claim.locally is None:
            raise _MissingError("not applicable", self.stated.not_locally or "")
        self.predicate, self.over = self.claim.locally.predicate, self.claim.locally.over

    def _basis(self, measured: _Measured) -> Basis:
        if self.predicate.kind == "fails-above":
            return "failures"
        if self.predicate.kind == "order":
            return "order"
        if self.reading.table not in SAMPLED:
            return "count"
        if self.over or measured.paired or all(comparison.relative for comparison in self.claim.compare):
            return "ratio"
        return "share" if self.reading.table == "shares" else "value"

    def _others(self, measured: _Measured) -> list[str]:
        """Our other libraries with the transport of those that the claim was stated for, measured with themselves."""
        known = self.book.project.libraries
        if self.claim.subjects() == [None]:
            return []
        stated_for = {name for name in self.claim.libraries if name in known}
        transports = {known[name].transport for name in stated_for} or {"quic"}
        named = {t.library for c in self.claim.compare for t in c.terms() if t.library}
        pairs = sorted({client for client, server, _ in measured.rows if client == server})
        return [
            name
            for name in pairs
            if name in known and name not in stated_for | named and known[name].transport in transports
        ]

    def _outcomes(self, measured: _Measured, library: str | None) -> list[Outcome]:
        found = []
        for comparison in self.claim.compare:
            if self.predicate.kind == "fails-above":
                found += [self._failure(measured, term, library) for term in comparison.of]
            elif comparison.pairs:
                found.append(self._over_pairs(measured, comparison, comparison.pairs))
            elif comparison.rising:
                steps = [Comparison(of=[b], over=[a]) for a, b in itertools.pairwise(comparison.rising)]
                found += [self._ratio(measured, step, library) for step in steps]
            else:
                found.append(self._ratio(measured, comparison, library))
        return found

    # ---- single outcomes ---------------------------------------------------------------------------------------------

    def _ratio(self, measured: _Measured, comparison: Comparison, library: str | None) -> Outcome:
        """A value, a ratio or a ratio of ratios."""
        groups = [comparison.of, comparison.over or self.over]
        if comparison.against:
            groups += [comparison.against.over, comparison.against.of]  # divides, so that they change places
        places = [_places(terms, library) for terms in groups]
        low, high = self.predicate.region()
        text = " / ".join(_sum_text(terms) for terms in groups[:2] if terms)
        if comparison.against:
            text = f"({text}) / ({_sum_text(comparison.against.of)} / {_sum_text(comparison.against.over)})"
        outcome = Outcome(library, text, low, high, published=self._published(places))
        try:
            cells = [[self._cell(measured, place) for place in group] for group in places]
            flat = tuple(str(row["cell"]) for group in cells for row in group)
            bases = {self._external(row) for group in cells for row in group}
            if len(bases) > 1:
                reason = "goodput of an external client includes the start of its program, the other's does not"
                raise _MissingError("not applicable", reason)
            outcome = replace(outcome, external=bases.pop())
            if self.reading.table not in SAMPLED:
                counted = replace(outcome, cells=flat, **self._count(measured, cells))
                return replace(counted, undecided=self._too_few(counted.n))
            series: list[Sequence[Mapping[int, float]]] = [
                [self._blocks(measured, row, place) for row, place in zip(rows, group, strict=True)]
                for rows, group in zip(cells, places, strict=True)
            ]
            if measured.paired:
                outcome = replace(outcome, text=f"{text}, to the run beside it")
                series = _over_beside(measured, series, cells)
            counts = self.reading.table == "runs" and measured.campaign.schema[self.reading.metric].is_integer()
            sampled = replace(outcome, cells=flat, **_sample(series, low, high, counts=counts))
            if (
                self.claim.pairs is not None
                and (of_pairs := self._of_pairs(sampled, measured.campaign, places)) is not None
            ):
                return of_pairs
            return replace(sampled, undecided=self._within_floor(measured.campaign, sampled, [*map(_mean, series)]))
        except _MissingError as missing:
            return replace(outcome, missing=missing.verdict, reason=missing.reason)

    def _of_pairs(self, alone: Outcome, lone: pl.DataFrame, places: Sequence[Sequence[_Place]]) -> Outcome | None:
        """The outcome of runs *alone*, which are of *lone*, by the pairs that the claim names; None without pairs."""
        name, tables = self.claim.pairs or "", self.book.tables
        campaign = tables.campaigns.newest(name)
        if tables.published or campaign.is_empty():
            return None
        by_time = self.reading.metric == analysis.TWIN
        metric = analysis.TWIN if by_time else paired_runs.BUSY
        rows = tables.campaigns.figure(name, metric).filter(pl.col("arm") == "main").to_dicts()
        (of,), (over,) = places
        cells = {
            one["label"]: one
            for one in rows
            if (one["client_library"], one["server_library"]) == (of.client, of.server)
        }
        own, other = cells.get(of.term.label), cells.get(over.term.label)
        if own is None or (other or own)["baseline_label"] != own["baseline_label"]:
            return None
        if other is None and over.term.label != own["baseline_label"]:
            return None
        compared = [one for one in (own, other) if one is not None]
        values = analysis.block_values(campaign, metric)
        ratios = [_by_block(values, one) for one in compared]
        blocks = sorted(set.intersection(*map(set, ratios)))
        if len(blocks) < 2:
            return None
        logs = [math.log(ratios[0][block]) - sum(math.log(one[block]) for one in ratios[1:]) for block in blocks]
        told = _logarithmic(np.exp(np.array(logs)), alone.low_bound, alone.high_bound)
        elsewhere = "" if lone["host"][0] == campaign["host"][0] else f" on host {lone['host'][0]}"
        measured = f"separate runs{elsewhere} {_interval(alone.value, alone.low, alone.high)}"
        if not by_time and not (alone.low <= told["high"] and told["low"] <= alone.high):
            pairs = _interval(told["value"], told["low"], told["high"])
            return replace(alone, beside=f"{measured}, by pairs {pairs}: they disagree")
        return replace(
            alone,
            **told,
            through=name,
            beside=measured,
            cells=tuple(str(one["cell"]) for one in compared),
            contaminated=sum(one["contaminated"] for one in compared),
            floor=None if own["aa_low"] is None else (own["aa_low"], own["aa_high"]),
        )

    def _within_floor(self, campaign: pl.DataFrame, outcome: Outcome, means: Sequence[float]) -> str:
        """Why a value about gaps or trains may be that of the testbed's timers; empty where it is not, and of others.

        *means* are those of what the value is made of: itself, or what is divided by what.
        """
        metric, first = self.reading.metric, campaign.row(0, named=True)
        if self.reading.table != "runs" or metric not in floors.METRICS or first["testbed_kind"] == PUBLISHED:
            return ""
        floor = floors.of_campaign(self.book.tables.floors, first["campaign"])
        least = floor.of(metric) if floor is not None else None
        if least is None:
            return f"{floors.NOT_MEASURED}, below which nothing is claimed about gaps and trains"
        if len(means) > 1:  # of a ratio, what the floor is of each part
            least = abs(outcome.value) * sum(least / mean if mean > 0 else math.inf for mean in means)
        bounds = (abs(outcome.value - bound) for bound in (outcome.low_bound, outcome.high_bound))
        if min(bounds, default=math.inf) >= least:
            return ""
        return f"{digits(outcome.value)} is nearer to the bound than {digits(least)}, the floor of the testbed's timers"

    def _too_few(self, captured: int) -> str:
        """Why so many captured connections decide nothing; empty where they do, and for what is no count of theirs."""
        if self.reading.table != "handshakes" or captured >= FEWEST_CAPTURED:
            return ""
        plural = "s" if captured != 1 else ""
        return f"{captured} captured connection{plural} cannot show how others vary; {FEWEST_CAPTURED} can"

    def _over_pairs(self, measured: _Measured, comparison: Comparison, term: Term) -> Outcome:
        """The fastest pair over the slowest, or one of the two, among the libraries of the claim."""
        low, high = self.predicate.region()
        pairs = list(itertools.product(self.claim.libraries, repeat=2))
        rows = [measured.rows.get((client, server, term.label)) for client, server in pairs]
        met = [row for row in rows if row is not None and row["n"]]
        # those of external clients, whose programs' start is in it, count where there are no others
        met = [row for row in met if not self._external(row)] or met
        what = "largest / smallest" if comparison.spread else "largest" if comparison.largest else "smallest"
        external = bool(met) and self._external(met[0])
        outcome = Outcome(None, f"{what}, {term.label}", low, high, external=external)
        if len(met) < 2:
            reason = f"fewer than two pairs of {', '.join(self.claim.libraries)} were measured"
            return replace(outcome, missing="not measured", reason=reason)
        by_block = [measured.sampled[row["cell"], None, None] for row in met]
        means = [fmean(one.values()) for one in by_block]
        largest, smallest = means.index(max(means)), means.index(min(means))
        chosen = {"largest": [largest], "smallest": [smallest]}.get(what, [largest, smallest])
        try:
            found = _sample([[by_block[number]] for number in chosen], low, high)
        except _MissingError as missing:
            return replace(outcome, missing=missing.verdict, reason=missing.reason)
        named = " / ".join(self._pair(met[number]) for number in chosen)
        # a pair that does not get on is a result, one that was not tried is none
        failed = sum(row is not None and not row["n"] and row["failure"] is not None for row in rows)
        some = f"{len(met)} of {len(pairs)} pairs" + (f", {failed} failed" if failed else "")
        undecided = ""
        beyond = found["value"] < low if comparison.smallest else found["value"] > high
        if len(met) + failed < len(pairs) and not beyond:
            bound = "most" if comparison.smallest else "least"
            undecided = f"{digits(found['value'])} over {some} is the {bound} that it can be over all"
        text = f"{what}, {term.label}: {named}, {some}"
        cells = tuple(str(row["cell"]) for row in met)
        return replace(outcome, text=text, cells=cells, undecided=undecided, **found)

    def _pair(self, row: Mapping[str, Any]) -> str:
        """Name of a pair, as in figures."""
        return analysis.pair_title((row["client_library"], row["server_library"]), self.stated.paper.libraries)

    def _failure(self, measured: _Measured, term: Term, library: str | None) -> Outcome:
        """Whether connections fail with one certificate; the value is 1 where it is as stated, else 0."""
        (place,) = _places([term], library)
        size = next((row["certificate_bytes"] for row in published.rows("table3") if row["label"] == term.label), None)
        outcome = Outcome(library, term.text(), 1.0, 1.0)
        row = measured.rows.get((place.client, place.server, term.label))
        try:
            if row is None or row["unsupported"] or not (row["n"] or row["failure"]):
                row = self._cell(measured, place)
        except _MissingError as missing:
            return replace(outcome, missing=missing.verdict, reason=missing.reason)
        if size is None:
            return replace(outcome, missing="not measured", reason=f"no certificate size of {term.label} is known")
        failed = not row["n"]
        value = float(failed == (size > (self.predicate.value or 0)))
        text = f"{term.label} ({size} B): {'fails' if failed else 'succeeds'}"
        return replace(outcome, text=text, value=value, low=value, high=value, n=row["blocks"], cells=(row["cell"],))

    def _cell(self, measured: _Measured, place: _Place) -> Mapping[str, Any]:
        """The row of a cell that has values, or why it has none."""
        paper, known = self.stated.paper, self.book.project.libraries
        row = measured.rows.get((place.client, place.server, place.term.label))
        if row is None:
            theirs = measured.campaign["testbed_kind"][0] == PUBLISHED
            for name in (place.client, place.server):
                if name not in known and not theirs:
                    title = paper.libraries.get(name, name)
                    reason = f"{title} is not configured; it can take part as an external endpoint"
                    raise _MissingError("not measured", reason)
            client, server = (paper.libraries.get(name, name) for name in (place.client, place.server))
            pair = client if client == server else f"server {server} and client {client}"
            met = any((place.client, place.server) == row_of[:2] for row_of in measured.rows)
            what = place.term.label if met else f"experiment `{self.reading.experiment}`"
            where = "the published data have" if theirs else "there are"
            raise _MissingError("not measured", f"{where} no runs of {what} with {pair}")
        if (row["unsupported"] or "").startswith(LEFT_OUT):
            raise _MissingError("not measured", row["unsupported"])
        if row["unsupported"]:
            raise _MissingError("not applicable", f"unsupported: {row['unsupported']}")
        if not row["n"]:
            raise _MissingError("not measured", f"failed: {row['failure'] or 'no run counts'}")
        return row

    def _blocks(self, measured: _Measured, row: Mapping[str, Any], place: _Place) -> Mapping[int, float]:
        values = measured.sampled.get((row["cell"], place.term.role, place.term.category))
        category = place.term.category
        if category is not None and category not in {one for _, _, one in measured.sampled}:
            raise _MissingError("not measured", f"the samples have no category {category}")
        if not values:
            name = self.stated.paper.libraries.get(place.client, place.client)
            raise _MissingError("not measured", f"nothing of {place.term.text()} of {name} can be read")
        return values

    def _count(self, measured: _Measured, cells: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Value and quartiles of what no block changes; those of a ratio from the quartiles of its parts."""
        value = low = high = 1.0
        n = 0
        for position, group in enumerate(cells):
            found = []
            for row in group:
                if row["cell"] not in measured.counted:
                    raise _MissingError("not measured", f"no `{self.reading.metric}` of {row['label']} was read")
                found.append(measured.counted[row["cell"]])
            if not found:
                continue
            median, q1, q3 = (sum(one[i] for one in found) for i in range(3))
            if position % 2 == 0:
                value, low, high = value * median, low * q1, high * q3
            elif q1 > 0:
                value, low, high = value / median, low / q3, high / q1
            else:
                raise _MissingError("not measured", "a value is zero, so there is no ratio")
            n = min(n or found[0][3], *(one[3] for one in found))
        return {"value": value, "low": low, "high": high, "n": n}

    def _published(self, places: Sequence[Sequence[_Place]]) -> float | None:
        """The same, of the numbers that the paper prints; None where it prints none."""
        table = self.stated.paper.published.get(self.reading.experiment)
        if table is None:
            return None
        rows = published.rows(table)
        result = 1.0
        for position, group in enumerate(places):
            numbers = [_printed(rows, self.reading, place) for place in group]
            if None in numbers:
                return None
            if numbers:
                total = sum(number for number in numbers if number is not None)
                result *= total if position % 2 == 0 else 1 / total
        return result


def _printed(rows: Sequence[Mapping[str, Any]], reading: Reading, place: _Place) -> float | None:
    """A number of a published table."""
    term = place.term
    for row in rows:
        if row["label"] != term.label or row.get("library", place.client) != place.client:
            continue
        if reading.table == "shares":
            value = row.get(f"{term.role}_{(term.category or '').replace('-', '_')}")
            return None if value is None else value / 100
        # sizes are the same for every library, and their columns are named without it
        value = row.get(f"{reading.metric}_{place.client}", row.get(reading.metric.removeprefix("tls_")))
        return None if value is None else float(value)
    return None


def _mean(group: Sequence[Mapping[int, float]]) -> float:
    """Mean over blocks of the sum of a group's cells; infinite of an empty one, by which nothing is divided."""
    return sum(fmean(values.values()) for values in group) if group else math.inf


def _by_block(values: analysis.Values, cell: Mapping[str, Any]) -> dict[int, float]:
    """Ratio of a cell of pairs to the one beside it."""
    own, other = values.get(cell["cell"], {}), values.get(cell["baseline"], {})
    return {block: own[block] / other[block] for block in own.keys() & other.keys()}


def _over_beside(
    measured: _Measured,
    series: Sequence[Sequence[Mapping[int, float]]],
    cells: Sequence[Sequence[Mapping[str, Any]]],
) -> list[Sequence[Mapping[int, float]]]:
    """Groups that are multiplied and divided by turns, each with the runs beside its own, by which it is divided."""
    found: list[Sequence[Mapping[int, float]]] = []
    for position, (group, rows) in enumerate(zip(series, cells, strict=True)):
        beside = [measured.sampled.get((row["baseline"], None, None), {}) for row in rows]
        found += (group, beside) if position % 2 == 0 else (beside, group)
    return found


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _sum_text(terms: Sequence[Term]) -> str:
    text = " + ".join(f"{term.text()}{f' of {term.library}' if term.library else ''}" for term in terms)
    return f"({text})" if len(terms) > 1 else text


def _sample(
    series: Sequence[Sequence[Mapping[int, float]]], low: float, high: float, *, counts: bool = False
) -> dict[str, Any]:
    """Value, interval and p-value of a value (one group), a ratio (two), or a ratio of ratios (four)."""
    blocks = sorted(set.intersection(*(set(values) for group in series for values in group)))
    if not blocks:
        raise _MissingError("not measured", "no block has all compared cells")
    sums = [np.array([sum(values[block] for values in group) for block in blocks]) for group in series if group]
    if len(sums) == 1:
        return _linear(sums[0], low, high)
    if len(sums) == 2 and (np.array(sums if counts else sums[1:]) == 0).any():
        return _of_sums(sums[0], sums[1], low, high)
    if any((values <= 0).any() for values in sums[1:]):
        empty = sum(bool((values <= 0).any()) for values in np.array(sums[1:]).T)
        reason = f"in {empty} of {len(blocks)} blocks the divisor is zero"
        raise _MissingError("not measured", reason)
    if len(sums) == 2 and (sums[0] <= 0).any():
        return _linear(sums[0] / sums[1], low, high)  # a ratio of zero has no logarithm
    logs = sum(np.log(values) * (1 if position % 2 == 0 else -1) for position, values in enumerate(sums))
    return _logarithmic(np.exp(logs), low, high)


def _linear(values: np.ndarray[Any, np.dtype[np.float64]], low: float, high: float, least: float = 0) -> dict[str, Any]:
    """Of values: their mean; none can be below *least*."""
    p, margin = side(values, low, high)
    ends = statistics.mean_interval(np.sort(values), least) if len(values) > 1 else (math.nan, math.nan)
    mean = float(values.mean())
    return {"value": mean, "low": ends[0], "high": ends[1], "n": len(values), "p": p, "margin": margin}


def _of_sums(
    values: np.ndarray[Any, np.dtype[np.float64]], over: np.ndarray[Any, np.dtype[np.float64]], low: float, high: float
) -> dict[str, Any]:
    """Of what may be zero: the ratio of the sums over all blocks."""
    if not over.any() and not values.all():
        raise _MissingError("not measured", "all divisors are zero, so there is no ratio")
    value, n = float(values.sum() / over.sum()) if over.any() else math.inf, len(values)
    inside = low <= value <= high
    above = value - low > high - value if inside else value > high  # which bound matters
    bound = high if above else low
    p, margin = side(values - bound * over, -math.inf, 0.0) if math.isfinite(bound) else (0.0, math.inf)
    ends = statistics.ratio_of_means(values, over, paired=True) if n > 1 else (math.nan, math.nan)
    return {"value": value, "low": ends[0], "high": ends[1], "n": n, "p": p, "margin": margin}


def _logarithmic(ratios: np.ndarray[Any, np.dtype[np.float64]], low: float, high: float) -> dict[str, Any]:
    """Of ratios: their geometric mean, as `quicbed.base.statistics.paired_ratio` has it."""
    lower, upper = (math.log(bound) if bound > 0 else -math.inf for bound in (low, high))
    found = _linear(np.log(ratios), lower, upper, least=-math.inf)
    return found | {name: statistics.antilog(found[name]) for name in ("value", "low", "high")}


# ---- verdicts --------------------------------------------------------------------------------------------------------


def _summarise(result: Result) -> None:
    """p-value of a claim, or the verdict that needs none."""
    measured, outside = result.measured, result.outside
    if not measured:
        kinds = {outcome.missing for outcome in result.outcomes}
        result.verdict = "not measured" if "not measured" in kinds else "not applicable"
        result.reason = _gaps(result)
        return
    result.reason = _gaps(result)
    undecided = [(one.library, one.undecided) for one in measured if one.undecided]
    if undecided and not outside:
        result.verdict = "inconclusive"
        result.reason = _join(_by_reason(result.stated.paper, undecided), result.reason)
        return
    if any(outcome.p is None for outcome in measured):
        clear = [one for one in outside if one.clear] if outside else measured
        decided = bool(clear) and all(one.clear for one in clear)
        result.verdict = "inconclusive" if not decided else "fails" if outside else "holds"
        if not decided:
            differ = "captured connections differ by more than the bounds"
            result.reason = _join(f"{differ}; further captures would decide, not further blocks", result.reason)
        return
    if outside:
        result.p = min(1.0, min(one.p or 0.0 for one in outside) * len(measured))
    else:
        result.p = max(one.p or 0.0 for one in measured)


def _gaps(result: Result) -> str:
    """What is missing of a claim and why, once for every reason."""
    missing = [(one.library, one.reason) for one in result.outcomes if one.missing is not None]
    text = _by_reason(result.stated.paper, missing)
    return ("left out: " if result.measured and text else "") + text


def _by_reason(paper: Paper, found: Iterable[tuple[str | None, str]]) -> str:
    """Libraries and reasons, each reason once, with the libraries that it does not name itself."""
    reasons: dict[str, list[str]] = {}
    for library, reason in found:
        reasons.setdefault(reason, []).append(paper.libraries.get(library or "", library or ""))
    texts = []
    for reason, names in reasons.items():
        who = ", ".join(dict.fromkeys(name for name in names if name and name not in reason))
        texts.append(f"{who}: {reason}" if who else reason)
    return "; ".join(texts)


def _join(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _decide(results: Sequence[Result]) -> None:
    """Verdicts on the claims of one paper that have p-values."""
    tested = [result for result in results if result.p is not None]
    values = adjusted([result.p or 0.0 for result in tested])
    found = sum(value <= LEVEL for value in values)
    # what the next claim would have to reach
    level = LEVEL * min(found + 1, len(tested)) / max(len(tested), 1)
    for result, value in zip(tested, values, strict=True):
        result.adjusted = value
        outside = result.outside
        clear = any(one.clear for one in outside) if outside else all(one.clear for one in result.measured)
        if clear and value <= LEVEL:
            result.verdict = "fails" if outside else "holds"
            continue
        result.verdict = "inconclusive"
        if result.testbed_kind != PUBLISHED:
            result.more_blocks = _more_blocks(result, level)
        result.reason = _join(_open(result, clear, len(tested)), result.reason)


def _more_blocks(result: Result, level: float) -> int | None:
    """How many more blocks would decide a claim if means and spreads stay; None where that cannot be told."""
    if result.outside:
        wanted = [more_blocks_needed(one.margin, one.n, level / len(result.measured)) for one in result.outside]
        known = [count for count in wanted if count is not None]
        return min(known, default=None)
    wanted = [more_blocks_needed(one.margin, one.n, level) for one in result.measured]
    known = [count for count in wanted if count is not None]
    return max(known) if len(known) == len(wanted) else None


def _open(result: Result, clear: bool, family: int) -> str:
    """Why a claim is not decided, and what would decide it."""
    if any(one.n < 2 for one in result.measured):
        return "one block gives no interval; at least two are needed"
    if clear:
        text = f"its interval is clear of the bounds, but not by enough for one of {family} claims tested together"
    else:
        text = "its interval straddles a bound"
    if result.testbed_kind == PUBLISHED:
        return text
    if result.more_blocks is None:
        return f"{text}; the value lies so near to it that blocks will not decide"
    plural = "s" if result.more_blocks != 1 else ""
    took = f" ({duration(60 * result.more_hours)})" if result.more_hours is not None else ""
    return f"{text}; about {result.more_blocks} more block{plural}{took} would decide it if the values stay as they are"
