"""Instructions of bytes, packets and handshakes: differences of runs within blocks, their table and figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from quicbed.analysis import instructions
from quicbed.config.model import at_start, of_handshakes
from quicbed.figures import instruction_figures
from quicbed.store import runs, symbols
from quicbed.store.stacks import INSTRUCTIONS, folded_name, write_folded

MAPPING = (
    "claims: {packet-protection: ['^seal$'], header-protection: ['^mask$']}\nrest: {connection-management: ['^lib_']}\n"
)
LINES = {
    "packet-protection": "program;bin`main;bin`lib_send;bin`seal",
    "header-protection": "program;bin`main;bin`lib_send;bin`mask",
    "connection-management": "program;bin`main;bin`lib_send",
    "uncategorised": "program;bin`main",
}
AES, WITHOUT, NOOP = "AES-128-GCM", "AES-128-GCM without HP", "NOOP"
VARIANTS = {
    AES: fakeruns.AES128,
    WITHOUT: fakeruns.AES128 | fakeruns.NO_HP,
    NOOP: fakeruns.NOOP | fakeruns.NO_HP,
}
BYTES, PACKETS, HANDSHAKES = 1_000_001, 800, 5
START, HANDSHAKE = 50_000, 7_000
PER_BYTE = {
    AES: {"packet-protection": 2, "header-protection": 1, "connection-management": 7},
    WITHOUT: {"packet-protection": 2, "header-protection": 0, "connection-management": 7},
    NOOP: {"packet-protection": 1, "header-protection": 0, "connection-management": 7},
}


def executed(run: dict[str, Any], role: str) -> dict[str, int]:
    """What a program executes: a server twice as much for its handshakes, and a thousandth more in the second block."""
    label = run["cell"]["label"].partition(",")[0]
    bytes_, connections = run["workload"]["bytes"] - 1, run["workload"]["connections"]
    own = {category: count * bytes_ for category, count in PER_BYTE[label].items()}
    own["connection-management"] += bytes_ // 100 * run["block"]
    own["uncategorised"] = START + connections * HANDSHAKE * (2 if role == "server" else 1)
    return own


class Measured:
    """A campaign of instructions below a directory that is raw data and repository at once."""

    def __init__(self, root: Path) -> None:
        self.root, self.raw = root, root / "raw"
        (root / "config" / "symbols" / "shared").mkdir(parents=True)
        (root / "config" / "symbols" / "shared" / "linux.yaml").write_text("claims: {}\n")
        (root / "config" / "symbols" / "quinn.yaml").write_text(MAPPING)
        symbols.symbol_map.cache_clear()

    def measure(self, *, processor: list[str] | None = None, without: str = "") -> None:
        """Write two blocks of it, but not the runs with the label *without*."""
        for run in fakeruns.campaign(instructions.EXPERIMENT, blocks=2, incidents=False, libraries=("quinn",)):
            label = run["cell"]["label"]
            several = label.endswith("handshakes")
            size = BYTES if label in VARIANTS else 1
            run["workload"] = {"kind": "bulk", "bytes": size, "connections": HANDSHAKES if several else 1}
            run["metrics"] |= {"client_packets_received": PACKETS, "bytes": size}
            run["host"]["perf"] = {"event": INSTRUCTIONS, "processor": processor or ["aes", "avx2"]}
            if label == without:
                continue
            directory = fakeruns.write_run(self.raw, run)
            for role in ("client", "server"):
                folded = {LINES[category]: count for category, count in executed(run, role).items() if count}
                write_folded(directory / folded_name(role), folded)

    def counted(self) -> instructions.Counted:
        return instructions.counted(runs.table(self.raw), self.raw, self.root)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    rows = []
    for label, variant in VARIANTS.items():
        baseline = None if label == AES else AES
        rows += [(label, variant, baseline, "main", 1.0)]
        rows += [(name(label), variant, AES, "control", 1.0) for name in (at_start, of_handshakes)]
    monkeypatch.setitem(fakeruns.EXPERIMENTS, instructions.EXPERIMENT, rows)
    return Measured(tmp_path)


def row(found: instructions.Counted, label: str, role: str, category: str = instructions.ALL) -> dict[str, Any]:
    at = (pl.col("label") == label) & (pl.col("role") == role) & (pl.col("category") == category)
    (only,) = found.counts.filter(at).to_dicts()
    return only


def test_bytes_packets_and_handshakes_are_differences_of_runs_within_blocks(measured: Measured) -> None:
    measured.measure()
    found = measured.counted()
    whole = row(found, AES, "client")
    assert whole["per_byte"] == pytest.approx(10.005)
    assert whole["per_packet"] == pytest.approx(10.005 * (BYTES - 1) / PACKETS)
    assert (whole["per_handshake"], row(found, AES, "server")["per_handshake"]) == (HANDSHAKE, 2 * HANDSHAKE)
    assert whole["spread"] == pytest.approx(0.01 / 10.005)
    assert (whole["ratio"], whole["blocks"], whole["problem"]) == (1.0, 2, None)
    parts = [row(found, AES, "client", name)["per_byte"] for name in instructions.USER]
    assert parts == pytest.approx([2, 1, 0, 7.005, 0, 0])
    assert sum(parts) == pytest.approx(whole["per_byte"])
    noop = row(found, NOOP, "server", "packet-protection")
    assert noop["ratio"] == pytest.approx(0.5)
    assert set(found.counts["label"]) == set(VARIANTS), "what is subtracted is no result"


def test_header_protection_saves_what_is_in_its_functions(measured: Measured) -> None:
    measured.measure()
    gains = instructions.header_protection(measured.counted())
    assert gains == {("quinn", "quinn", "aes-128-gcm"): pytest.approx(1 / 9.005)}


def test_a_download_without_the_run_to_subtract_is_not_measured(measured: Measured) -> None:
    measured.measure(without=at_start(NOOP))
    found = measured.counted()
    assert row(found, NOOP, "client")["problem"] == "not measured"
    assert row(found, NOOP, "client")["per_byte"] is None
    assert row(found, AES, "client")["problem"] is None


def test_stacks_that_are_missing_or_damaged_are_a_problem_of_their_cell(measured: Measured) -> None:
    measured.measure()
    for file in measured.raw.rglob(folded_name("server")):
        if "noop" not in str(file) or "start" not in str(file):
            file.write_bytes(b"no stacks")
    found = measured.counted()
    assert "damaged folded stacks" in str(row(found, AES, "server")["problem"])
    assert row(found, AES, "client")["problem"] is None


def test_the_figure_and_the_table_say_what_counts_do_not_tell(measured: Measured) -> None:
    measured.measure(processor=["aes", "avx2"])
    found = measured.counted()
    drawn = instruction_figures.per_byte(found, {"quinn": "Quinn"})
    figure = str(drawn.figure.to_dict())
    printed = instruction_figures.table(found, {"quinn": "Quinn"})
    for text in (figure.replace("<br>", " "), " ".join(printed.notes)):
        assert "Instructions are not time" in text
        assert "without AVX-512 and VAES" in text
    assert "Blocks differ by 0.11 % in the median, at most by 0.12 %." in figure
    assert {trace.name for trace in drawn.figure.data} == {
        name.replace("-", " ").replace("packet io", "packet I/O") for name in instructions.USER
    }
    (line,) = [line for line in printed.rows if line[1:3] == [NOOP, "client"]]
    assert line[3:7] == ["8.005", "1.000", "0.000", "0.800"]
    assert line[-1] == "0.12"


def test_a_library_that_takes_many_times_as_many_ends_at_the_edge(measured: Measured) -> None:
    measured.measure()
    found = measured.counted()
    far = found.counts.with_columns(
        client_library=pl.lit("slow"), server_library=pl.lit("slow"), per_byte=pl.col("per_byte") * 50
    )
    near = [found.counts.with_columns(client_library=pl.lit(name), server_library=pl.lit(name)) for name in "abc"]
    found.counts = pl.concat([*near, far])
    figure = instruction_figures.per_byte(found).figure
    assert any("›" in (note.text or "") for note in figure.layout.annotations)
    assert figure.layout.xaxis.range[1] < 50


def test_without_runs_nothing_is_counted(tmp_path: Path) -> None:
    assert instructions.counted(runs.table(tmp_path), tmp_path, tmp_path).empty
