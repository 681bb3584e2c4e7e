"""What cryptography costs, in a few sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

import fakeruns
from clone import ROOT
from quicbed.analysis import comparison
from quicbed.claims import papers, verdicts
from quicbed.config.model import Project
from quicbed.report import made_with, summary
from quicbed.store import details, runs

PROJECT = Project(ROOT)
NONE = pl.DataFrame(schema=comparison.UNDECIDED)


def told(raw: Path, wide: pl.DataFrame = NONE) -> dict[str, str]:
    """Answers on the runs of a directory, by topic."""
    table, beside = details.everything(raw)
    every = papers.stated(PROJECT)
    results = verdicts.evaluate(PROJECT, every, verdicts.tables(raw, ROOT, table, beside))
    return {one.topic: one.text for one in summary.answers(PROJECT, table, beside, results, None, wide)}


def test_without_runs_nothing_is_said(tmp_path: Path) -> None:
    assert told(tmp_path) == {}


def test_a_first_own_run_says_what_each_cipher_costs(tmp_path: Path) -> None:
    fakeruns.write_campaign(tmp_path, "aead-goodput", libraries=("quiche", "quinn"), noise=0.001, incidents=False)
    text = told(tmp_path)["Packet protection"]
    # of two libraries the lower one; effects are those of `fakeruns.EXPERIMENTS`
    assert re.search(r"ChaCha20-Poly1305 changes goodput by −12 % \[−12, −12\] \(\w+ −12, \w+ −12\)", text)
    assert re.search(r"AES-256-GCM by −1\.[456] % \[−1\.\d, −1\.\d\]", text)
    assert "NOOP without header protection by +16 % [" in text


def test_ratios_of_header_protection_are_within_builds(tmp_path: Path) -> None:
    fakeruns.write_campaign(tmp_path, "header-protection", libraries=("quinn",), noise=0.001, incidents=False)
    text = told(tmp_path)["Header protection"]
    assert re.match(r"Leaving it out changes goodput by \+1\.[01] % \[.*\] \(quinn\) with AES-128-GCM; by \+4\.", text)


def test_the_middle_library_is_told_with_its_interval_and_the_furthest_apart() -> None:
    cells = [
        {"client_library": name, "ratio": ratio, "ratio_low": ratio - 0.01, "ratio_high": ratio + 0.01}
        for name, ratio in (("quiche", 0.5), ("quinn", 0.9), ("msquic", 1.2), ("noq", 12.0))
    ]
    assert summary._middle(cells, {"noq": "Noq"}) == "−10 % [−11, −9.0] (quiche −50, Noq +1,100)"
    assert summary._middle(cells[:1], {}) == "−50 % [−51, −49] (quiche)"
    assert summary._middle([], {}) is None


def test_packets_and_round_trips_are_told_where_there_are_more() -> None:
    def cell(name: str, packets: int | None, waits: int) -> dict[str, Any]:
        own = {"packets_client": packets, "packets_server": 2, "round_trips_blocked": waits}
        return {"cell": name, "baseline": "base", **own}

    every = [cell("base", 3, 0), cell("more", 5, 1), cell("most", 6, 1), cell("same", 3, 0), cell("unknown", None, 0)]
    table = pl.DataFrame(every)
    assert summary._more(table, every[1:3]) == " and takes 2 to 3 packets and 1 round trip more"
    assert summary._more(table, every[3:4]) == ""
    assert summary._more(table, every[4:]) == ""


def test_the_machine_is_told_in_a_line(tmp_path: Path) -> None:
    assert made_with.measured_by(runs.table(tmp_path), []) is None
    fakeruns.write_campaign(tmp_path, "aead-goodput", libraries=("quinn",), blocks=2)
    found = details.read(tmp_path).campaigns
    said = made_with.measured_by(runs.table(tmp_path), found)
    assert said is not None
    assert said.startswith("a machine (")
    assert said.endswith("testbed local)")
