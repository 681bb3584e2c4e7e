"""The sections of the notebook on "A Quantum of QUIC"."""

from __future__ import annotations

from functools import cached_property, partial

import polars as pl

from quicbed.analysis import additivity, comparison, cpu_shares, instructions, pairs, ttfb
from quicbed.config import algorithms
from quicbed.figures import (
    cpu_figures,
    findings,
    goodput,
    handshake_figures,
    handshake_tables,
    instruction_figures,
    output,
    pair_figures,
)
from quicbed.figures.handshake_tables import Printed
from quicbed.figures.output import NotMeasured, Saved
from quicbed.figures.sheets import Sheet
from quicbed.papers import sections
from quicbed.papers.sections import Section
from quicbed.store import details

KEMS = {
    "Kyber768": "TTFB with Kyber768 against X25519",
    "ML-KEM-768": "TTFB with ML-KEM-768 against X25519",
    "BIKE-L3": "TTFB with BIKE-L3 against X25519",
}
SIGNATURES = {
    "FALCON-512": "TTFB with FALCON-512 against RSA-2048",
    "ML-DSA-44": "TTFB with ML-DSA-44 against RSA-2048",
    "SPHINCS+-SHA2-128f": "TTFB with SPHINCS+-SHA2-128f against RSA-2048",
}
FACTORS = {"table2-kem": "group", "table3-signature": "signature"}
"""What is varied in the experiments of Tables II and III."""


class Quantum(sections.Paper):
    """Every figure and table of the paper, and what goes beyond it."""

    claims = "quantum-of-quic"

    # ---- goodput -----------------------------------------------------------------------------------------------------

    def goodput_by_aead(self) -> Section:
        """Fig. 3."""
        labels = {
            "AES-256-GCM": "AES-256 against AES-128",
            "ChaCha20-Poly1305": "ChaCha20-Poly1305 against AES-128",
            "NOOP": "NOOP against AES-128",
        }
        return self.section(
            "aead-goodput",
            partial(goodput.goodput_by_aead, of_paper=self.of_paper),
            lambda table: findings.contrasts(table, labels, self.titles),
        )

    def header_protection(self) -> Section:
        """Fig. 4."""
        labels = {
            f"{cipher} without HP": f"{cipher} without header protection against with it"
            for cipher in ("AES-128-GCM", "ChaCha20-Poly1305")
        }
        return self.section(
            "header-protection",
            partial(goodput.header_protection, of_paper=self.of_paper),
            lambda table: findings.contrasts(table, labels, self.titles),
            prepare=goodput.within_builds,
        )

    def header_protection_witnesses(self) -> Printed | NotMeasured:
        """What header protection costs by goodput, processor time, pairs, samples and instructions, side by side."""
        if self._profiled.empty:
            return NotMeasured("cpu-shares")
        campaign, cells = self.campaigns.newest("header-protection"), self.campaigns.figure("header-protection")
        timed = cells if campaign.is_empty() else goodput.within_builds(campaign, cells)
        paired = self.campaigns.figure("header-protection-pairs", comparison.TWIN)
        counted = {} if self._counted.empty else instructions.header_protection(self._counted)
        gains = cpu_shares.header_protection(self._profiled)
        measured = {
            "Goodput, and processor time alone": campaign,
            "Pairs": self.campaigns.newest("header-protection-pairs"),
            "Samples": self._profiled.campaign,
            "Instructions": self._counted.campaign,
        }
        shown = cpu_figures.header_protection(gains, timed, paired, counted, self.titles, measured)
        handshake_tables.write(shown, gains, "header-protection-witnesses", self.here.tables)
        return shown

    def goodput_by_mtu(self) -> Section:
        """Fig. 5."""
        labels = {f"AES-128-GCM, MTU {mtu}": f"Goodput with an MTU of {mtu} against 1500" for mtu in (3000, 9000)}
        return self.section(
            "mtu",
            pair_figures.goodput_by_mtu,
            lambda table: findings.contrasts(table, labels, self.titles),
            prepare=lambda campaign, table: pairs.mtu_table(self.table, campaign, table),
        )

    # ---- handshakes --------------------------------------------------------------------------------------------------

    @cached_property
    def algorithms(self) -> algorithms.Table:
        """All algorithms by name."""
        return algorithms.read(self.here.root)

    @cached_property
    def details(self) -> details.Details:
        """What lies beside the runs: times of connections and primitives, captured handshakes."""
        return details.read(self.here.raw)

    def _measured(self, experiment: str, factor: str) -> ttfb.Handshakes:
        return ttfb.handshakes(self.table, self.details, experiment, factor, self.algorithms)

    @cached_property
    def _by_experiment(self) -> dict[str, ttfb.Handshakes]:
        return {experiment: self._measured(experiment, factor) for experiment, factor in FACTORS.items()}

    def handshake_table(self, experiment: str) -> Printed | NotMeasured:
        """Table II or III, also written as CSV, HTML and LaTeX."""
        measured = self._by_experiment[experiment]
        if measured.empty:
            return NotMeasured(experiment)
        shown = handshake_tables.handshake_table(measured.cells, FACTORS[experiment], self.titles)
        handshake_tables.write(shown, measured.cells, experiment, self.here.tables)
        return shown

    def primitive_times(self, experiment: str) -> Printed | NotMeasured:
        """What the algorithms of Table II or III take by themselves, by implementation."""
        measured = self._by_experiment[experiment]
        if measured.empty:
            return NotMeasured(experiment)
        timed = ttfb.crypto(measured.primitives)
        campaign = measured.campaign["campaign"][0]
        shown = handshake_tables.primitive_times(timed, campaign, FACTORS[experiment], self.algorithms, self.titles)
        handshake_tables.write(shown, timed, f"{experiment}-primitives", self.here.tables)
        return shown

    def ttfb_by_algorithm(self, experiment: str) -> Section:
        """Table II or III as a figure."""
        measured = self._by_experiment[experiment]
        if measured.empty:
            return Section(NotMeasured(experiment))
        drawn = handshake_figures.ttfb_by_algorithm(measured.campaign, measured.cells, FACTORS[experiment], self.titles)
        labels = KEMS if experiment == "table2-kem" else SIGNATURES
        return Section(self.save(drawn), findings.contrasts(measured.cells, labels, self.titles))

    def kem_sizes(self) -> Saved | NotMeasured:
        """Fig. 6."""
        kem = self._by_experiment["table2-kem"]
        if kem.empty:
            return NotMeasured("table2-kem")
        return self.save(handshake_figures.kem_sizes(kem.campaign, kem.cells, kem.primitives))

    def predicted(self, experiment: str) -> Section:
        """Measured and predicted TTFB of Table II or III."""
        measured = self._by_experiment[experiment]
        if measured.empty:
            return Section(NotMeasured(experiment))
        drawn = handshake_figures.predicted(measured.campaign, measured.cells, self.titles)
        main = measured.cells.filter(pl.col("arm") == "main")
        found = findings.errors(main["residual_ms"] / main["ttfb_ms"], "Measured TTFB beyond the predicted")
        return Section(self.save(drawn), found)

    def transports(self) -> Sheet:
        """The transport of each library as fitted."""
        fits = {
            (experiment, measured.campaign["campaign"][0]): measured.fits
            for experiment, measured in self._by_experiment.items()
            if not measured.empty
        }
        return handshake_tables.transports(fits, self.titles)

    def ttfb_by_bytes(self, experiment: str) -> Section:
        """TTFB against the size of the handshake."""
        measured = self._by_experiment[experiment]
        if measured.empty:
            return Section(NotMeasured(experiment))
        drawn = handshake_figures.ttfb_by_bytes(measured.campaign, measured.cells, measured.fits, self.titles)
        return Section(self.save(drawn), findings.per_bytes(measured.fits, self.titles))

    def phases(self, experiment: str, library: str) -> Section:
        """What the TTFB of a library consists of; the pages of all others are written too."""
        measured = self._by_experiment[experiment]
        if measured.empty:
            return Section(NotMeasured(experiment))
        drawn = {
            name: handshake_figures.phases(measured.campaign, measured.cells, name, self.titles)
            for name in measured.fits
        }
        saved = output.save(list(drawn.values()), self.here.figures, root=self.here.root)
        by_library = dict(zip(drawn, saved, strict=True))
        shown = library if library in by_library else next(iter(by_library), None)
        if shown is None:
            return Section(NotMeasured(experiment))
        return Section(by_library[shown], findings.parts(measured.cells, shown, self.titles))

    def hybrid_cost(self) -> Section:
        """Hybrids and the sum of their parts."""
        measured = self._measured("hybrid-cost", "group")
        if measured.empty:
            return Section(NotMeasured("hybrid-cost"))
        sums = ttfb.hybrids(measured, self.algorithms)
        comparison.write_figure_table(sums, "hybrid-cost", self.here.tables)
        drawn = handshake_figures.hybrid_cost(measured.campaign, measured.cells, sums, self.titles)
        return Section(self.save(drawn), findings.hybrids(sums, self.titles))

    @cached_property
    def _every(self) -> list[additivity.Measured]:
        return additivity.measured(self.table, self.details, self.algorithms)

    @cached_property
    def _sampled(self) -> pl.DataFrame:
        return additivity.out_of_sample(self._every)

    def additivity_table(self) -> Printed | NotMeasured:
        """Errors of predictions by library."""
        if self._sampled.is_empty():
            return NotMeasured("table2-kem")
        far = additivity.delayed(self.table)
        predictions = self._sampled.vstack(far)
        lacking = additivity.lacking(self._every, far)
        shown = handshake_tables.additivity_table(predictions, lacking, self.algorithms, self.titles)
        handshake_tables.write(shown, predictions, "ttfb-additivity", self.here.tables)
        return shown

    def additive(self) -> Section:
        """Errors of TTFB predicted out of sample."""
        if self._sampled.is_empty():
            return Section(NotMeasured("table2-kem"))
        campaigns = [one.found.campaign for one in self._every]
        drawn = handshake_figures.additive(campaigns, self._sampled, self.algorithms, self.titles)
        return Section(self.save(drawn), findings.errors(self._sampled["error"], "Predicted TTFB beyond the measured"))

    def breaks(self) -> Sheet:
        """Where predictions go wrong."""
        return handshake_tables.breaks(self._sampled, self.algorithms, self.titles)

    def native(self) -> Section:
        """TTFB with what libraries have of themselves."""
        measured = self._measured("native-handshake", "group")
        if measured.empty:
            return Section(NotMeasured("native-handshake"))
        own = measured.cells[[name for name in measured.cells.columns if not name.startswith("published_")]]
        comparison.write_figure_table(own, "native-handshake", self.here.tables)
        drawn = handshake_figures.native(measured.campaign, own, self.algorithms, self.titles)
        labels = {name: f"TTFB with {name} against X25519" for name in ("X25519MLKEM768", "SecP384r1MLKEM1024")}
        return Section(self.save(drawn), findings.contrasts(own, labels, self.titles))

    def amplification(self) -> Section:
        """TTFB by round-trip time, certificate and mitigation."""
        limit = self._measured("amplification", "signature")
        if limit.empty:
            return Section(NotMeasured("amplification"))
        comparison.write_figure_table(limit.cells, "amplification", self.here.tables)
        drawn = handshake_figures.amplification(limit.campaign, limit.cells, self.algorithms, self.titles)
        return Section(self.save(drawn), findings.strongest(limit.cells, "TTFB", self.titles))

    # ---- processor time ----------------------------------------------------------------------------------------------

    @cached_property
    def _profiled(self) -> cpu_shares.Profiled:
        return cpu_shares.profiled(self.table, self.here.raw, self.here.root)

    def table_i(self) -> Printed | NotMeasured:
        """Table I."""
        if self._profiled.empty:
            return NotMeasured("cpu-shares")
        shown = cpu_figures.table_i(self._profiled.shares, self.titles)
        handshake_tables.write(shown, self._profiled.shares, "cpu-shares", self.here.tables)
        return shown

    def cpu_shares(self) -> Section:
        """Shares of all categories."""
        if self._profiled.empty:
            return Section(NotMeasured("cpu-shares"))
        labels = ("AES-128-GCM", "ChaCha20-Poly1305", "NOOP")
        found = findings.shares(self._profiled.shares, "packet-protection", "Packet protection", labels, self.titles)
        return Section(self.save(cpu_figures.stacked(self._profiled, self.titles)), found)

    def crypto_cost(self) -> Section:
        """What cryptography costs each library, as processor time."""
        table = cpu_shares.cryptography_cost(self._profiled)
        if table.is_empty():
            return Section(NotMeasured("cpu-shares"))
        comparison.write_figure_table(table, "crypto-cost", self.here.tables)
        return Section(self.save(cpu_figures.crypto_cost(self._profiled, table, self.titles)))

    @cached_property
    def _counted(self) -> instructions.Counted:
        return instructions.counted(self.table, self.here.raw, self.here.root)

    def instructions(self) -> Saved | NotMeasured:
        """Instructions for a byte, by category."""
        if self._counted.empty:
            return NotMeasured(instructions.EXPERIMENT)
        return self.save(instruction_figures.per_byte(self._counted, self.titles))

    def instruction_table(self) -> Printed | NotMeasured:
        """Instructions for a byte, a packet and a handshake."""
        if self._counted.empty:
            return NotMeasured(instructions.EXPERIMENT)
        shown = instruction_figures.table(self._counted, self.titles)
        handshake_tables.write(shown, self._counted.counts, instructions.EXPERIMENT, self.here.tables)
        return shown

    def flames(self) -> Saved | NotMeasured:
        """A flame graph of every library, of which the first is shown; stacks are written for other tools."""
        if self._profiled.empty:
            return NotMeasured("cpu-shares")
        cpu_figures.export(self._profiled, self.here.tables / "folded")
        drawn = cpu_figures.flames(self._profiled, self.here.root, self.titles)
        saved = output.save(drawn, self.here.figures, root=self.here.root)
        return saved[0] if saved else NotMeasured("cpu-shares")
