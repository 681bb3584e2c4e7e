"""An analysis of one's own: what it compares, draws, and says of what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.figures.output import NotMeasured, Saved
from quicbed.report.own import Own, OwnError, Ratios

EXPERIMENT = "aead-goodput"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    fakeruns.write_campaign(tmp_path / "raw", EXPERIMENT, blocks=3, libraries=("quinn", "quiche"))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("QUICBED_RAW", str(tmp_path / "raw"))
    monkeypatch.setenv("QUICBED_ARTIFACTS", str(tmp_path / "artifacts"))
    monkeypatch.setenv("QUICBED_PICTURES", "")
    return Own(EXPERIMENT)


def of(mine: Own, label: str) -> pl.DataFrame:
    return mine.runs.filter(arm="main", label=label)


def test_ratios_are_drawn_and_written_with_the_runs_behind_them(mine: Own, tmp_path: Path) -> None:
    one, other = of(mine, "ChaCha20-Poly1305"), of(mine, "AES-128-GCM")
    ratios = mine.ratios(one, other, "goodput_mbps")
    assert ratios.table["n"].to_list() == [3, 3]
    assert set(ratios.runs["origin"]) == {*one["origin"], *other["origin"]}
    saved = mine.figure(ratios, "goodput", "mine")
    assert isinstance(saved, Saved)
    assert saved.drawn.origins == sorted(ratios.runs["origin"])
    assert (tmp_path / "artifacts" / "figures" / "own" / "mine.html").is_file()
    (trace,) = saved.drawn.figure.data
    assert list(trace.x) == ratios.table["ratio"].to_list()
    assert list(trace.error_x.array) == (ratios.table["high"] - ratios.table["ratio"]).to_list()


def test_other_columns_are_compared_too(mine: Own) -> None:
    ratios = mine.ratios(of(mine, "NOOP"), of(mine, "AES-128-GCM"), "client_cpu_s_per_gib")
    assert ratios.table["ratio"].is_between(ratios.table["low"], ratios.table["high"]).all()


def test_what_is_no_ratio_within_blocks_is_said_in_one_line(mine: Own) -> None:
    aes = of(mine, "AES-128-GCM")
    with pytest.raises(OwnError, match=r"^quiche has several runs in a block: filter until one cell is left"):
        mine.ratios(mine.runs.filter(arm="main"), aes, "goodput_mbps")
    with pytest.raises(OwnError, match=r"^there is no column 'goodput' of numbers"):
        mine.ratios(aes, aes, "goodput")
    with pytest.raises(OwnError, match=r"^there is no column 'label' of numbers"):
        mine.ratios(aes, aes, "label")
    with pytest.raises(OwnError, match=r"^no library has goodput_mbps of both in two blocks"):
        mine.ratios(of(mine, "ChaCha"), aes, "goodput_mbps")
    with pytest.raises(OwnError, match=r"^there is no experiment 'goodput'"):
        Own("goodput")


def test_what_was_not_measured_is_no_error(mine: Own) -> None:
    absent = Own("table2-kem")
    ratios = absent.ratios(absent.runs, absent.runs, "ttfb_ms")
    assert ratios.table.is_empty()
    assert isinstance(absent.figure(ratios, "TTFB"), NotMeasured)


def test_an_interval_across_a_bound_decides_nothing() -> None:
    found = {"library": ["a", "b", "c", "d"], "low": [0.85, 0.7, 0.8, 0.95], "high": [0.9, 0.8, 0.9, 0.99]}
    table = pl.DataFrame(found | {"ratio": [0.87, 0.75, 0.85, 0.97], "n": [5, 5, 5, 5]})
    sheet = Ratios(table, pl.DataFrame()).within(0.84, 0.91)
    assert sheet.headers[-1] == "0.84 to 0.91"
    assert [row[-1] for row in sheet.rows] == ["holds", "fails", "inconclusive", "fails"]
    assert sheet.rows[0][:3] == ["a", "0.870", "0.850 to 0.900"]


def test_columns_that_have_a_value_are_described(mine: Own) -> None:
    sheet = mine.columns(mine.runs)
    told = {row[0]: row for row in sheet.rows}
    assert told["goodput_mbps"][1] == "Mbit/s"
    assert told["label"][3] in mine.runs["label"].to_list()
    assert "page_load_ms" not in told
    assert all(row[2] for row in sheet.rows)


def test_rows_have_their_whole_texts(mine: Own) -> None:
    shown = mine.rows(mine.runs.select("block", "origin"))
    assert [row[1] for row in shown.rows] == mine.runs["origin"].to_list()
