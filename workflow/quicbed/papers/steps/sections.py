"""The sections of the notebook on "QUIC Steps"."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from quicbed.analysis import comparison, floors
from quicbed.figures import findings
from quicbed.figures.findings import Found
from quicbed.figures.output import NotMeasured
from quicbed.figures.sheets import Sheet
from quicbed.papers import sections
from quicbed.papers.sections import Section
from quicbed.papers.steps import analysis, figures, precision
from quicbed.store import details, runs


@dataclass(frozen=True)
class Pacing(Section):
    """A section that shows the published data, whether or not ours is there."""

    missing: NotMeasured | None = None
    """How to measure ours, where only the published data is shown."""


class Steps(sections.Paper):
    """Every figure and table of the paper, of its published data and of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.published = analysis.published(self.here.published.get(analysis.SOURCE))
        found = details.read(self.here.raw)
        self._floors = found.floors
        self._beside = figures.beside(self.published, self.table, found.pacing, self.here, self.titles, found.floors)

    def cdf(self, name: str) -> Pacing:
        """A figure by its name, what was found, and how to measure ours where it is not there."""
        figure = figures.FIGURES[name]
        known = self._beside.sides[figure.experiment]
        told = figures.found(figure.quantity, known, self._beside.names)
        return Pacing(self._beside.show(name), told, missing=self._beside.missing(figure.experiment))

    def floor(self) -> Sheet | None:
        """How precisely the hosts of our runs send and stamp packets; None where nothing tells."""
        return figures.floor_table(self._beside.sides, self.here)

    def drops(self, name: str, experiment: str) -> Pacing:
        """Table 1 or 2, which is no figure."""
        known, names = self._beside.sides[experiment], self._beside.names
        return Pacing(
            None,
            figures.found_drops(known, names),
            figures.table(name, experiment, known, names, self.here),
            self._beside.missing(experiment),
        )

    def ciphers(self, metric: str, what: str) -> Found | None:
        """How a metric of runs changes by cipher, within blocks, beside what an A/A arm of each library shows."""
        campaign = runs.select_campaign(self.table, analysis.CIPHER)
        if campaign.is_empty():
            return None
        table = comparison.figure_table(campaign, metric)
        labels = {label: f"{what} with {label}" for label in ("ChaCha20-Poly1305", "NOOP")}
        return findings.joined(
            findings.contrasts(table, labels, self.titles),
            findings.contrasts(
                table.filter(pl.col("arm") == "aa").with_columns(arm=pl.lit("main"), label=pl.lit("A/A")),
                {"A/A": f"{what} of the same cell once more"},
                self.titles,
            ),
        )

    def precision(self) -> Section:
        """Pacing precision by rate and load: the figure, what was found, and all numbers."""
        campaign = runs.select_campaign(self.table, analysis.PRECISION)
        if campaign.is_empty():
            return Section(NotMeasured(analysis.PRECISION))
        table = precision.by_rate(campaign)
        comparison.write_figure_table(table, precision.NAME, self.here.tables)
        floor = floors.of_campaign(self._floors, campaign["campaign"][0])
        drawn = precision.precision(campaign, table, floor)
        return Section(self.save(drawn), precision.found(table, floor), precision.sheet(campaign, table))
