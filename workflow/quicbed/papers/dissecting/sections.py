"""The sections of the notebook on "Dissecting QUIC Implementation Performance"."""

from __future__ import annotations

import polars as pl

from quicbed.analysis import cpu_shares
from quicbed.figures import cpu_figures, findings, link_figures
from quicbed.figures.output import NotMeasured
from quicbed.figures.sheets import Sheet
from quicbed.papers import results, sections
from quicbed.papers.dissecting import figures
from quicbed.papers.sections import Section


class Dissecting(sections.Paper):
    """Kernel bypass and reordering."""

    claims = "dissecting-quic"

    def results(self) -> Sheet:
        """What the paper found, and which of it holds by these runs."""
        return results.of_paper(self.claims, self.table, self.here.raw, self.project)

    def reordering(self) -> Section:
        """Goodput and processor time by reordered packets."""
        labels = {
            "1 permille by 830": "1 permille of packets reordered by 830",
            "10 permille by 830": "10 permille of packets reordered by 830",
        }
        return self.section(
            "reordering",
            link_figures.reordering,
            lambda table: findings.contrasts(table.filter(pl.col("flavour") == "stock"), labels, self.titles),
            prepare=link_figures.reorder_table,
        )

    def kernel_bypass(self) -> Section:
        """Goodput and processor time by how datagrams pass between endpoints and the kernel."""
        labels = {
            "mmsg": "Many datagrams a call, against one",
            "GSO": "GSO and GRO, against one datagram a call",
            "io_uring": "io_uring, against one datagram a call",
            "AF_XDP": "AF_XDP, against one datagram a call",
        }
        return self.section(
            "kernel-bypass",
            figures.by_io,
            lambda table: findings.contrasts(table, labels, self.titles),
            prepare=figures.io_table,
        )

    def kernel_bypass_shares(self) -> Section:
        """Shares of processor time by how datagrams pass."""
        experiment, source = cpu_shares.BYPASS, "Dissecting QUIC Implementation Performance, breakdown"
        found = cpu_shares.profiled(self.table, self.here.raw, self.here.root, experiment)
        if found.empty:
            return Section(NotMeasured(experiment))
        told = findings.shares(found.shares, "packet-io", "Packet I/O", ("single", "GSO", "AF_XDP"), self.titles)
        labels = [variant.label for variant in self.experiments[experiment].variants]
        return Section(self.save(cpu_figures.stacked(found, self.titles, labels=labels, source=source)), told)
