"""The sections of the notebook on "quic-benchmark"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quicbed.figures import findings, sheets
from quicbed.figures.findings import Found
from quicbed.figures.output import NotMeasured, Saved
from quicbed.figures.sheets import Sheet
from quicbed.papers import sections
from quicbed.papers.quic_benchmark import analysis, figures
from quicbed.papers.quic_benchmark.analysis import Measured
from quicbed.papers.sections import Section

FOUND: Mapping[str, Callable[[Measured, Mapping[str, str]], Found | None]] = {
    "flow": figures.found_flow,
    "overhead": figures.found_overhead,
    "timeline": figures.found_durations,
}
TABLES: Mapping[str, Callable[[Measured, Mapping[str, str]], Sheet | None]] = {
    "overhead": figures.overhead_table,
    "timeline": figures.durations_table,
}
MEASURED_BY = {"handshake": "native-handshake", "transfer": "aead-goodput"}
"""The experiment whose proofs have the captures of a figure, by the end of its name; of all others the first."""


@dataclass(frozen=True)
class Kept:
    """A figure of ours, and that of the published data, which is None without a copy of it."""

    figure: Saved | NotMeasured
    published: Saved | None


class QuicBenchmark(sections.Paper):
    """Every analysis of the project, of its published captures and of those that prove our variants."""

    def __init__(self) -> None:
        super().__init__()
        self.published = analysis.published(self.here.published.get(analysis.SOURCE))
        self.own = analysis.own(self.table, self.here.raw)
        self._saved = figures.save(self.published, self.own, self.titles, self.here)

    def captures(self) -> Sheet:
        """Which captures of ours the figures are drawn from."""
        return figures.captures(self.own, self.titles)

    def figure(self, name: str) -> Kept:
        """A figure by its name, or how to measure what is in it, and what is published of it."""
        experiment = MEASURED_BY.get(name.rpartition("-")[2], MEASURED_BY["handshake"])
        known = self._saved.get(f"{figures.PREFIX}{name}", NotMeasured(experiment))
        kind = name.removesuffix("-handshake").removesuffix("-transfer")
        return Kept(known, self._saved.get(f"{figures.PREFIX}published-{kind}"))

    def told(self, kind: str) -> Section:
        """What was found, of the published data and of ours, and all numbers: of `flow`, `overhead` or `timeline`."""
        sides = (self.published, self.own)
        found = findings.joined(*(FOUND[kind](side, self.titles) for side in sides))
        both = [TABLES[kind](side, self.titles) for side in sides] if kind in TABLES else []
        known = [sheet for sheet in both if sheet is not None]
        return Section(None, found, sheets.joined(known) if known else None)
