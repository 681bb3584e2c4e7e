"""An analysis of one's own: the runs that count, ratios within blocks with their intervals, and a figure of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.base.errors import QuicbedError
from quicbed.base.statistics import paired_ratio
from quicbed.figures import output, ratio_figures
from quicbed.figures.output import NotMeasured, Saved
from quicbed.figures.sheets import Sheet
from quicbed.papers import sections

_ENDS = ["client_library", "server_library"]
_SCHEMA = {"library": pl.String(), "ratio": pl.Float64(), "low": pl.Float64(), "high": pl.Float64(), "n": pl.Int64()}


class OwnError(QuicbedError):
    """What an analysis asks for and there is not, or what would be no ratio within blocks."""


@dataclass(frozen=True)
class Ratios:
    """Ratios within blocks with their 95 % intervals (docs/statistics.md); shows itself as a table."""

    table: pl.DataFrame
    """Columns `library`, `ratio`, its interval from `low` to `high`, and `n`, the blocks that have both."""
    runs: pl.DataFrame
    """What was compared."""

    def within(self, low: float, high: float) -> Sheet:
        """Whether each ratio lies between *low* and *high*; `inconclusive` where its interval has values of both."""
        verdicts = [
            "holds" if low <= row["low"] and row["high"] <= high
            else "fails" if row["high"] < low or row["low"] > high
            else "inconclusive"
            for row in self.table.to_dicts()
        ]  # fmt: skip
        return self._sheet([f"{low:g} to {high:g}"], ([verdict] for verdict in verdicts))

    def _sheet(self, headers: Sequence[str], more: Iterable[Sequence[Any]]) -> Sheet:
        rows = [
            [row["library"], f"{row['ratio']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}", row["n"], *told]
            for row, told in zip(self.table.to_dicts(), more, strict=True)
        ]
        return Sheet(["library", "ratio", "95 % interval", "blocks", *headers], rows, frozenset({1, 2, 3}))

    def _repr_html_(self) -> str:
        return self._sheet([], ([] for _ in range(len(self.table))))._repr_html_()


class Own(sections.Paper):
    """The newest campaign of an experiment; *runs* are those that count, one for every cell and block."""

    def __init__(self, experiment: str) -> None:
        super().__init__()
        if experiment not in self.experiments:
            raise OwnError(f"there is no experiment {experiment!r}; `quicbed list experiments` names all")
        self.experiment = experiment
        campaign = self.campaigns.newest(experiment)
        former = comparison.superseded(campaign).select("cell").unique()
        self.runs = comparison.counted(campaign.join(former, on="cell", how="anti"))

    def ratios(self, one: pl.DataFrame, other: pl.DataFrame, metric: str) -> Ratios:
        """A *metric*'s ratio of *one* to *other*, which are rows of `runs`, paired within blocks, for every library."""
        for table in (one, other):
            if metric not in table.columns or not table.schema[metric].is_numeric():
                raise OwnError(f"there is no column {metric!r} of numbers; `columns` says which there are")
        rows = []
        for ends, own in sorted(one.drop_nulls(metric).group_by(_ENDS)):
            paired = other.drop_nulls(metric).filter(**dict(zip(_ENDS, ends, strict=True)))
            library = comparison.pair_title((str(ends[0]), str(ends[1])), self.titles)
            for table in (own, paired):
                if table["block"].is_duplicated().any():
                    raise OwnError(
                        f"{library} has several runs in a block: filter until one cell is left, as by arm and label"
                    )
            if min([*own[metric], *paired[metric]]) <= 0:
                continue  # a count may be zero, of which there is no ratio
            found = paired_ratio(own.select("block", metric).rows(), paired.select("block", metric).rows())
            if found.n > 1:
                rows.append((library, found.ratio, found.low, found.high, found.n))
        if not rows and not self.runs.is_empty():
            raise OwnError(f"no library has {metric} of both in two blocks; look at what the filters leave")
        compared = pl.concat([one, other]).unique("origin", maintain_order=True)
        return Ratios(pl.DataFrame(rows, schema=_SCHEMA, orient="row"), compared)

    def figure(self, ratios: Ratios, axis: str, name: str = "own-ratios") -> Saved | NotMeasured:
        """Draw ratios with their intervals, and write the figure to `artifacts/figures/own/` in every format."""
        if ratios.table.is_empty():
            return NotMeasured(self.experiment)
        drawn = ratio_figures.ratios(name, ratios.table, axis, ratios.runs)
        (saved,) = output.save(drawn, self.here.figures / "own", root=self.here.root)
        return saved
