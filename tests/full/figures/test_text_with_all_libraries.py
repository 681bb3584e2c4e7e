"""Text of the figures of pacing can be read with all libraries on both sides."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from choreographer.browsers import Chromium

import fakeruns
import legible
from clone import ROOT
from quicbed.analysis.place import Place
from quicbed.config.model import PICTURES_VARIABLE, Project
from quicbed.figures import goodput
from quicbed.importers import samples
from quicbed.papers import reading
from quicbed.papers.steps import analysis, figures
from quicbed.papers.steps.analysis import Published
from quicbed.report import pictures
from quicbed.store import details, runs
from quicbed.wire import pacing
from quicbed.wire.trains import with_trains

MS = 1_000_000


def times(trains: list[int], gap: int = MS) -> list[int]:
    """Packets in trains of these lengths, 10 µs apart; *gap* ns between the last of a train and the next one."""
    steps = itertools.chain.from_iterable([gap, *[10_000] * (length - 1)] for length in trains)
    return list(itertools.accumulate(steps))


def copied(tmp_path: Path, repetitions: dict[str, list[list[int]]]) -> Published:
    """What is imported of a copy with gap files alone, by configuration and repetition from 1 on."""
    files = {}
    for name, found in repetitions.items():
        for number, packets in enumerate(found, 1):
            rows = [[moment, moment, 1482, -1] for moment in packets]
            files[f"build/data/{name}/{name}-rep{number}.pcap.json"] = json.dumps(rows).encode()
    reading.read("steps", samples.write(files, tmp_path / "copy"), tmp_path / "published")
    return analysis.published(tmp_path / "published")


def own(
    raw: Path,
    experiment: str,
    cells: dict[tuple[str, str], list[int]],
    *,
    blocks: int = 2,
    more: dict[str, float] | None = None,
    **changes: Any,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Runs of cells, by library and label, that are traced as told; the tables of runs and of their gaps and trains."""
    for (library, label), packets in cells.items():
        sent = with_trains(pl.LazyFrame({"time_ns": packets})).collect()
        kept = pacing.distributions(sent)
        gaps, trains = (kept.filter(pl.col("quantity") == name) for name in (pacing.GAPS, pacing.TRAINS))
        for block in range(1, blocks + 1):
            endpoint = {"library": library, "flavour": "stock", "version": "1", "build": library}
            cell = {"id": f"{library}-{label}", "slug": "x", "label": label, "arm": "main", "baseline": None}
            metrics = {"goodput_mbps": 30.0 + block, "bytes": 1 << 20, "dropped_packets": 10 * block} | (more or {})
            told = {"cell": cell, "client": endpoint, "server": endpoint, "metrics": metrics | pacing.metrics(sent)}
            run = fakeruns.make_run(experiment=experiment, block=block, **(told | changes))
            directory = fakeruns.write_run(raw, run)
            values = {"gap_ns": gaps["value"].to_list(), "gaps": gaps["count"].to_list()}
            values |= {"train_packets": trains["value"].to_list(), "packets": trains["count"].to_list()}
            (directory / "pacing.json").write_text(json.dumps({"format": 1, **values}), encoding="utf-8")
    return runs.table(raw), details.read(raw).pacing


def place(tmp_path: Path) -> Place:
    return Place(tmp_path, tmp_path / "raw", tmp_path / "artifacts", {})


@pytest.mark.skipif(Chromium.find_browser(skip_local=False) is None, reason="no Chromium is installed")
def test_all_text_can_be_read_with_all_libraries_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PICTURES_VARIABLE, "svg")
    theirs = copied(tmp_path, {name: [times([1, 2])] for name, _, _ in analysis.CONFIGURATIONS})
    libraries = list(Project(ROOT).libraries)
    raw = tmp_path / "raw"
    for experiment, labels in (
        ("pacing-congestion-control", ("CUBIC", "Reno", "BBR")),
        ("pacing-gso", ("GSO", "no GSO", "paced GSO", "BBR, GSO", "BBR, no GSO", "BBR, paced GSO")),
        ("pacing-etf", ("no discipline", "FQ", "ETF")),
        ("pacing-cipher", ("AES-128-GCM", "ChaCha20-Poly1305", "NOOP")),
    ):
        own(raw, experiment, {(library, label): times([2, 1]) for library in libraries for label in labels}, blocks=1)
    table, paced = own(
        raw, "pacing-baseline", {(library, "baseline"): times([2, 1]) for library in libraries}, blocks=1
    )
    here = place(tmp_path)
    beside = figures.beside(theirs, table, paced, here, goodput.library_titles(ROOT, table))
    assert {figure["figure"] for figure in pictures.found(here.artifacts, table)} == set(beside.saved)
    svgs = sorted(here.figures.glob("*.svg"))
    assert len(svgs) == len(figures.FIGURES)
    assert legible.problems(svgs, tmp_path) == []
