"""Text of the figures of pacing can be read with all libraries on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from choreographer.browsers import Chromium

import legible
from clone import ROOT
from pacedruns import copied, own, place, times
from quicbed.config.model import PICTURES_VARIABLE, Project
from quicbed.figures import goodput
from quicbed.papers.steps import analysis, figures
from quicbed.report import pictures


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
