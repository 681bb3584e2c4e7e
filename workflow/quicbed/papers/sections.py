"""What the notebooks of papers share: runs read once, and for every figure one call that draws, writes and shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from quicbed.analysis import comparison, paired_runs, place
from quicbed.claims import papers
from quicbed.config.model import Project
from quicbed.figures import cost_figures, findings, output, sheets
from quicbed.figures.findings import Found
from quicbed.figures.output import Drawn, NotMeasured, Saved
from quicbed.store import runs

Titles = Mapping[str, str]
Draw = Callable[[pl.DataFrame, pl.DataFrame, Titles], Drawn]
"""Draws the newest campaign of an experiment from its table."""
Prepare = Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]
"""Makes of a campaign and its figure's table the table that is drawn."""


@dataclass(frozen=True)
class Section:
    """What a section of a notebook shows: a figure or how to measure it, what was found, and all numbers.

    There is no figure where another one has ours, and only published data would be in it.
    """

    figure: Saved | NotMeasured | None
    found: Found | None = None
    numbers: sheets.Sheet | None = None


class Paper:
    """Runs and names of libraries, read once; *table* has every run, failed and contaminated ones too.

    Runs of campaigns that a study leaves out are not in it.
    """

    claims = ""
    """The file in config/claims/ of the paper."""

    def __init__(self) -> None:
        self.here = place.here()
        self.project = Project(self.here.root)
        self.table = runs.without(runs.table(self.here.raw), self.project.left_out)
        self.campaigns = comparison.Campaigns(self.table)
        self.experiments = self.project.experiments
        self.titles = comparison.titles(self.project.libraries, self.table)

    @property
    def of_paper(self) -> list[str]:
        """Libraries that the paper has, by the names they have here."""
        return list(papers.read(self.here.root)[self.claims].libraries)

    def overview(self) -> sheets.Sheet:
        """How many runs of each campaign there are, by status."""
        return sheets.overview(self.table)

    def columns(self, table: pl.DataFrame) -> sheets.Sheet:
        """What the columns of a table mean, and their units: of those that have a value in it."""
        return sheets.columns(table)

    def rows(self, table: pl.DataFrame) -> sheets.Sheet:
        """All rows of a table with their whole texts, which polars would cut."""
        return sheets.Sheet(table.columns, table.rows())

    def problems(self) -> list[str]:
        """Files that could not be read, a line each."""
        return runs.problems(self.table)

    def section(
        self,
        experiment: str,
        draw: Draw,
        found: Callable[[pl.DataFrame], Found | None],
        *,
        prepare: Prepare | None = None,
        needs: str = "",
    ) -> Section:
        """Draw an experiment of downloads, write its figure and table, and say what was found."""
        campaign, table = self.campaigns.newest(experiment), self.campaigns.figure(experiment)
        if campaign.is_empty():
            return Section(NotMeasured(experiment, needs))
        if prepare is not None:
            table = prepare(campaign, table)
        comparison.write_figure_table(table, experiment, self.here.tables)
        wide = cost_figures.undecided(self.campaigns, self.experiments, experiment)
        told = findings.joined(found(table), findings.undecided(wide, self.titles))
        return Section(self.save(draw(campaign, table, self.titles)), told, sheets.summary(table, self.titles))

    def cost(self, experiment: str) -> Section:
        """The twin of a figure of downloads: the same ratios by goodput and by processor time; none without ratios."""
        twin = cost_figures.TWINS[experiment]
        campaign, table = self.campaigns.newest(experiment), self.campaigns.figure(experiment)
        if campaign.is_empty():
            return Section(None)
        table = twin.prepare(campaign, table)
        drawn = cost_figures.both_ways(campaign, table, twin, self.titles)
        if drawn is None:
            return Section(None)
        return Section(self.save(drawn), cost_figures.found(table, twin, self.titles))

    def at_once(self, experiment: str) -> Section:
        """An experiment of pairs: its figure and table."""
        campaign = self.campaigns.newest(experiment)
        if campaign.is_empty():
            return Section(NotMeasured(experiment))
        alone, twin = self.experiments[experiment].alone, cost_figures.PAIRS[experiment]
        table = paired_runs.table(self.campaigns, experiment, alone)
        comparison.write_figure_table(table, experiment, self.here.tables)
        drawn = cost_figures.both_ways(campaign, table, twin, self.titles)
        figure = None if drawn is None else self.save(drawn)
        return Section(figure, cost_figures.found(table, twin, self.titles), sheets.paired(table, self.titles, alone))

    def save(self, drawn: Drawn) -> Saved:
        """Write a figure in every format."""
        (saved,) = output.save(drawn, self.here.figures, root=self.here.root)
        return saved
