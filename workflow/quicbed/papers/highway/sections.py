"""The sections of the notebook on "QUIC on the Highway", and beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from quicbed.analysis import cpu_shares
from quicbed.analysis.pairs import pair_table
from quicbed.figures import cpu_figures, findings, goodput, link_figures, load_figures, pair_figures
from quicbed.figures.output import NotMeasured, Saved
from quicbed.figures.sheets import Sheet
from quicbed.papers import sections
from quicbed.papers.highway import analysis, figures
from quicbed.papers.highway.analysis import Published
from quicbed.papers.sections import Section

FOUND: Mapping[str, Mapping[str, str]] = {
    "highway-fig5": {"32x": "Goodput with 32 times the receive buffer of Linux"},
    "highway-fig6": {"32x": "Packets that the client sends with 32 times the receive buffer of Linux"},
    "highway-fig6-drops": {},
    "highway-fig7": {"AES without AES-NI": "AES in software against AES with instructions"},
    "highway-fig8": {"off": "Goodput without offloads", "gso-gro": "Goodput with GSO and GRO only"},
    "highway-fig8-cpu": {"off": "Processor time of the client without offloads"},
    "highway-fig9": {},
}
"""What is told of our runs in the paper's figures: label, and the words that its sentence begins with."""


class Highway(sections.Paper):
    """Every figure of the paper, of its published data and of ours, and what goes beyond it."""

    claims = "quic-on-the-highway"

    def __init__(self) -> None:
        super().__init__()
        self.published = analysis.published(self.here.published.get(analysis.SOURCE))
        self._pairs = self.campaigns.newest("pairwise"), self.campaigns.figure("pairwise")
        if not self._pairs[0].is_empty():
            self._pairs = (self._pairs[0], pair_table(*self._pairs))
        self._profiled = cpu_shares.profiled(self.table, self.here.raw, self.here.root)
        self._beside = figures.beside(self.published, self.table, self._pairs, self._profiled, self.here, self.titles)

    def implementations(self) -> Sheet | None:
        """Libraries, builds, versions and hosts of the published runs; None without a copy of them."""
        return figures.implementations(self.published)

    def deviations(self) -> Sheet | None:
        """Published runs that were not measured as their figure says; None without a copy of them."""
        return figures.deviations(self.published)

    def changed(self) -> Sheet | Published:
        """Means that differ between the authors' tables and their raw files; without a copy, how to get one."""
        return figures.changed_sheet(self.published, self.here.tables)

    def differences(self) -> Sheet | None:
        """All that differs between them; None without a copy."""
        return figures.difference_sheet(self.published, self.here.tables)

    def figure(self, name: str) -> Saved | NotMeasured | None:
        """A figure of the paper by its name; None where only published data would be in it and there is none."""
        return self._beside.show(name)

    def setting(self, name: str) -> Section:
        """A figure of the paper with a box for every setting."""
        return Section(self._beside.show(name), self._beside.found(name, FOUND[name]), self._beside.sheet(name))

    def pairwise(self) -> Section:
        """Ours of Fig. 3 and 10."""
        return self.section(
            "pairwise",
            pair_figures.pairwise,
            lambda table: findings.extremes(table, self.titles),
            prepare=lambda *_: self._pairs[1],
        )

    def cpu_shares(self) -> Section:
        """Ours of Fig. 4."""
        if self._profiled.empty:
            return Section(NotMeasured("cpu-shares"))
        label = "AES-128-GCM"
        found = findings.shares(self._profiled.shares, "packet-io", "Packet I/O", [label], self.titles)
        return Section(self.save(cpu_figures.stacked(self._profiled, self.titles, label)), found)

    def aes_instructions(self) -> Section:
        """Ours of Fig. 7."""
        labels = {
            "AES without AES-NI": "AES in software against AES with instructions",
            "ChaCha20": "ChaCha20-Poly1305 against AES with instructions",
        }
        return self.section(
            "aes-ni",
            partial(goodput.aes_instructions, of_paper=self.of_paper),
            lambda table: findings.contrasts(table, labels, self.titles),
        )

    def delay_and_loss(self) -> Section:
        """Goodput by round-trip time and loss."""
        labels = {
            "10 ms, 0 %": "10 ms of round-trip time",
            "10 ms, 1 %": "10 ms of round-trip time and 1 % of frames lost",
        }
        return self.section(
            "delay-loss",
            link_figures.goodput_by_delay,
            lambda table: findings.contrasts(table, labels, self.titles),
            prepare=link_figures.link_table,
        )

    def load(self, experiment: str, needs: str = "") -> Section:
        """Downloads beside competing traffic."""
        return self.section(
            experiment,
            load_figures.beside_load,
            lambda table: findings.strongest(table, "Beside other traffic", self.titles),
            prepare=lambda campaign, _: load_figures.load_table(campaign),
            needs=needs,
        )
