"""The sections of the notebook on "QUIC Steps"."""

from __future__ import annotations

from dataclasses import dataclass

from quicbed.analysis import steps_runs
from quicbed.figures import steps_figures
from quicbed.figures.goodput import NotMeasured, Saved
from quicbed.figures.sheets import Sheet
from quicbed.report import sections
from quicbed.report.sections import Section
from quicbed.store import details
from quicbed.wire import pacing

FOUND = {
    pacing.GAPS: steps_figures.found_gaps,
    pacing.TRAINS: steps_figures.found_trains,
    steps_runs.LOSS: steps_figures.found_loss,
}
"""What is told of a figure, by its quantity."""


@dataclass(frozen=True)
class Pacing(Section):
    """A section that shows the published data, whether or not ours is there."""

    missing: NotMeasured | None = None
    """How to measure ours, where only the published data is shown."""


class Steps(sections.Paper):
    """Every figure and table of the paper, of its published data and of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.published = steps_runs.published(self.here.published.get(steps_runs.SOURCE))
        found = details.read(self.here.raw)
        self._beside = steps_figures.beside(
            self.published, self.table, found.pacing, self.here, self.titles, found.floors
        )

    def figure(self, name: str) -> Saved | NotMeasured:
        """A figure of the paper by its name."""
        return self._beside.show(name)

    def cdf(self, name: str) -> Pacing:
        """A figure by its name, what was found, and how to measure ours where it is not there."""
        figure = steps_figures.FIGURES[name]
        told = FOUND[figure.quantity]
        known = self._beside.sides[figure.experiment]
        return Pacing(
            self._beside.show(name), told(known, self._beside.names), missing=self._beside.missing(figure.experiment)
        )

    def floor(self) -> Sheet | None:
        """How precisely the hosts of our runs send and stamp packets; None where nothing tells."""
        return steps_figures.floor_table(self._beside.sides, self.here)

    def drops(self, name: str, experiment: str) -> Pacing:
        """Table 1 or 2, which is no figure."""
        known, names = self._beside.sides[experiment], self._beside.names
        return Pacing(
            None,
            steps_figures.found_drops(known, names),
            steps_figures.table(name, experiment, known, names, self.here),
            self._beside.missing(experiment),
        )
