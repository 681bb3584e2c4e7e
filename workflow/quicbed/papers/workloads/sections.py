"""The sections of the notebook on workloads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import polars as pl

from quicbed.analysis import comparison
from quicbed.figures.output import Drawn, NotMeasured
from quicbed.figures.sheets import Sheet
from quicbed.papers import results, sections
from quicbed.papers.sections import Section
from quicbed.papers.workloads import http3, http3_figures, size_figures, sizes, video, video_figures, web, web_figures
from quicbed.store import runs

TOLD = ("0 ms, 50 Mbit/s", "50 ms, 50 Mbit/s", "200 ms, 50 Mbit/s", "50 ms, 50 Mbit/s, 1 %", "50 ms, 5 Mbit/s")
"""Variants that sentences are about."""

PAPER = "web-cloud-video"
"""Name of the file with what the paper states."""

Tables = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]
Tabulated = Callable[[pl.DataFrame], pl.DataFrame]
Changes = Callable[[pl.DataFrame, pl.DataFrame], Drawn]
Compared = Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]


class Workloads(sections.Paper):
    """Every figure and table of what people use a transport for."""

    def results(self) -> Sheet:
        """What the paper found, and which of it holds by these runs."""
        return results.of_paper(PAPER, self.table, self.here.raw, self.project)

    def _tables(self, experiment: str, by_cell: Tabulated, compared: Compared, name: str) -> Tables:
        """The newest campaign of an experiment, its table, and what its cells are compared for; all written."""
        campaign = runs.select_campaign(self.table, experiment)
        if campaign.is_empty():
            return campaign, campaign, campaign
        table = by_cell(campaign)
        comparison.write_figure_table(table, experiment, self.here.tables)
        more = compared(campaign, table)
        comparison.write_figure_table(more, f"{experiment}-{name}", self.here.tables)
        return campaign, table, more

    @cached_property
    def _storage(self) -> Tables:
        return self._tables(sizes.EXPERIMENT, sizes.by_size, sizes.changes, "changes")

    def storage(self, metric: str) -> Section:
        """A metric of single downloads by size, and what was found."""
        campaign, table, changed = self._storage
        if campaign.is_empty():
            return Section(NotMeasured(sizes.EXPERIMENT))
        drawn = size_figures.by_size(campaign, table, changed, metric, self.titles)
        return Section(self.save(drawn), size_figures.found(changed, metric, self.titles))

    def storage_changes(self) -> Sheet | NotMeasured:
        """The sizes at which the better one changes."""
        campaign, _, changed = self._storage
        if campaign.is_empty():
            return NotMeasured(sizes.EXPERIMENT)
        return size_figures.changes_sheet(changed, self.titles)

    @cached_property
    def _http3(self) -> Tables:
        return self._tables(http3.EXPERIMENT, http3.by_metric, lambda _, table: http3.costs(table), "costs")

    def http3(self) -> Section:
        """What HTTP/3 costs a download, against a bare stream of the same library."""
        campaign, table, costs = self._http3
        if campaign.is_empty():
            return Section(NotMeasured(http3.EXPERIMENT))
        drawn = http3_figures.costs(campaign, table, costs, self.titles)
        return Section(self.save(drawn), http3_figures.found(costs, self.titles))

    def http3_costs(self) -> Sheet | NotMeasured:
        """The same as a table."""
        campaign, _, costs = self._http3
        return NotMeasured(http3.EXPERIMENT) if campaign.is_empty() else http3_figures.sheet(costs, self.titles)

    @cached_property
    def _browser(self) -> Tables:
        return self._tables(web.BROWSER, web.by_metric, web.against_tcp, "ratios")

    @cached_property
    def _web(self) -> Tables:
        return self._tables(web.EXPERIMENT, web.by_metric, web.against_tcp, "ratios")

    def web(self, metric: str) -> Section:
        """A time of web pages by round-trip time, rate and page, and how HTTP/3 compares with HTTP/2."""
        return self._web_times(web.EXPERIMENT, self._web, metric)

    def browser(self, metric: str) -> Section:
        """A time of web pages in a browser, as `web`."""
        return self._web_times(web.BROWSER, self._browser, metric)

    def _web_times(self, experiment: str, tables: Tables, metric: str) -> Section:
        campaign, table, ratios = tables
        if campaign.is_empty():
            return Section(NotMeasured(experiment))
        drawn = web_figures.times(campaign, table, ratios, metric)
        return Section(self.save(drawn), web_figures.found(ratios, metric, TOLD))

    def web_cryptography(self) -> Section:
        """What post-quantum cryptography changes of web pages."""
        return self._web_changes(web.EXPERIMENT, self._web, web_figures.cryptography)

    def web_chains(self) -> Section:
        """What chains of certificates change of web pages."""
        return self._web_changes(web.EXPERIMENT, self._web, web_figures.chains)

    def browser_handshakes(self) -> Section:
        """What key exchange and chains of certificates change of web pages in a browser."""
        return self._web_changes(web.BROWSER, self._browser, web_figures.handshakes)

    def web_visits(self) -> Section:
        """What second visits save of web pages."""
        return self._web_visits(web.EXPERIMENT, self._web, "page_load_ms")

    def browser_visits(self) -> Section:
        """What second visits save of web pages in a browser."""
        return self._web_visits(web.BROWSER, self._browser, "largest_contentful_paint_ms")

    @cached_property
    def _reuse(self) -> Tables:
        return self._tables(web.REUSE, web.by_metric, web.against_tcp, "ratios")

    def reuse(self) -> Section:
        """What a connection that is kept open saves of web pages, against second visits that resume a session."""
        return self._web_visits(web.REUSE, self._reuse, "page_load_ms")

    def _web_visits(self, experiment: str, tables: Tables, metric: str) -> Section:
        campaign, table, _ = tables
        if campaign.is_empty():
            return Section(NotMeasured(experiment))
        saved = web.saved(campaign, table)
        drawn = web_figures.visits(campaign, table)
        if isinstance(drawn, NotMeasured):
            return Section(drawn)
        comparison.write_figure_table(saved, f"{experiment}-visits", self.here.tables)
        return Section(self.save(drawn), web_figures.found_visits(saved, metric))

    def _web_changes(self, experiment: str, tables: Tables, draw: Changes) -> Section:
        campaign, table, _ = tables
        if campaign.is_empty():
            return Section(NotMeasured(experiment))
        return Section(self.save(draw(campaign, table)))

    @cached_property
    def _video(self) -> Tables:
        return self._tables(video.EXPERIMENT, video.by_metric, video.against_tcp, "ratios")

    def video_start(self) -> Section:
        """How videos start: connection time and start-up delay."""
        return self._video_section(video_figures.start, video_figures.START)

    def video_quality(self) -> Section:
        """Which bit rates the player chooses."""
        return self._video_section(video_figures.quality, video_figures.QUALITY[:2])

    def video_stalls(self) -> Section:
        """How videos stall."""
        return self._video_section(video_figures.stalls, video_figures.STALLS)

    def _video_section(self, draw: Changes, metrics: tuple[str, ...]) -> Section:
        campaign, table, ratios = self._video
        if campaign.is_empty():
            return Section(NotMeasured(video.EXPERIMENT))
        return Section(self.save(draw(campaign, table)), video_figures.found(table, ratios, metrics))
