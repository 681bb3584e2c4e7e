"""The sections of the notebook on the capacity of servers."""

from __future__ import annotations

from functools import cached_property

import polars as pl

from quicbed.analysis import capacity, comparison
from quicbed.figures import capacity_figures
from quicbed.figures.output import NotMeasured
from quicbed.papers import sections
from quicbed.papers.sections import Section
from quicbed.store import details, runs


class Capacity(sections.Paper):
    """What handshakes cost servers, by rate, key exchange and signature."""

    @cached_property
    def _measured(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        return capacity.measured(self.table, details.read(self.here.raw))

    @cached_property
    def _series(self) -> pl.DataFrame:
        campaign, primitives = self._measured
        table = capacity.by_series(campaign, primitives)
        comparison.write_figure_table(table, "capacity", self.here.tables)
        return table

    @property
    def _absent(self) -> bool:
        return comparison.counted(self._measured[0]).is_empty()

    def latency(self) -> Section:
        """The 99th percentile of TTFB by rate."""
        if self._absent:
            return Section(NotMeasured(capacity.EXPERIMENT))
        campaign = self._measured[0]
        cells = capacity.by_rate(campaign)
        comparison.write_figure_table(cells, "capacity-rates", self.here.tables)
        drawn = capacity_figures.ttfb_by_rate(campaign, cells, self._series, self.titles)
        return Section(self.save(drawn))

    def memory(self) -> Section:
        """What open, idle connections take of the servers' memory."""
        campaign = self._measured[0]
        if campaign.is_empty() or campaign["held"].is_null().all():
            return Section(NotMeasured(capacity.EXPERIMENT, what="open connections"))
        cells = capacity.by_memory(campaign)
        comparison.write_figure_table(cells, "capacity-memory", self.here.tables)
        drawn = capacity_figures.memory(campaign, cells, self.titles)
        told = capacity_figures.found_memory(cells, self.titles)
        return Section(self.save(drawn), told, capacity_figures.memory_table(cells, self.titles))

    def scaling(self) -> Section:
        """The rate that servers take on all processors, by that on one."""
        campaign = runs.select_campaign(self.table, capacity.CORES)
        table = capacity.on_all_processors(capacity.by_series(campaign, details.read(self.here.raw).primitives.clear()))
        if table.is_empty():
            return Section(NotMeasured(capacity.CORES, " where each end has two processors or more"))
        comparison.write_figure_table(table, "capacity-scaling", self.here.tables)
        drawn = capacity_figures.scaling(campaign, table, self.titles)
        told = capacity_figures.found_scaling(table, self.titles)
        return Section(self.save(drawn), told, capacity_figures.scaling_table(table, self.titles))

    def cores(self) -> Section:
        """Cores for 10 000 connections a second, predicted and measured, and all numbers."""
        if self._absent:
            return Section(NotMeasured(capacity.EXPERIMENT))
        drawn = capacity_figures.cores(self._measured[0], self._series, self.titles)
        told = capacity_figures.found(self._series, self.titles)
        return Section(self.save(drawn), told, capacity_figures.table(self._series, self.titles))
