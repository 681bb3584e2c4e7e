"""Figures, table and notebook of the capacity of servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import capacityruns
from capacityruns import LOADS, RATE
from clone import ROOT
from quicbed.analysis import capacity
from quicbed.analysis.place import ARTIFACTS_VARIABLE, PUBLISHED_VARIABLE
from quicbed.figures import capacity_figures, layout
from quicbed.figures.output import NotMeasured
from quicbed.report import notebooks
from quicbed.store import details, runs
from quicbed.store.paths import RAW_VARIABLE
from runlinks import filters

TITLES = {"quinn": "Quinn", "quiche": "quiche"}


def test_every_rate_that_was_measured_is_drawn_and_doubling_marked(tmp_path: Path) -> None:
    campaign, primitives = capacityruns.measured(tmp_path, behind={("ML-DSA", LOADS[-1])}, blocks_behind=[1])
    cells, series = capacity.by_rate(campaign), capacity.by_series(campaign, primitives)
    figure = capacity_figures.ttfb_by_rate(campaign, cells, series, TITLES).figure
    lines = {(trace.name, trace.xaxis): list(trace.x) for trace in figure.data if trace.name}
    assert lines["RSA", "x"] == [RATE * load for load in LOADS]
    assert lines["ML-DSA", "x2"] == [RATE * load for load in LOADS[:-1]]
    crosses = [trace for trace in figure.data if not trace.name]
    assert [list(trace.y) for trace in crosses] == [[2]] * 4
    for cross in crosses:
        (at,), (more,), (less,) = cross.x, cross.error_x.array, cross.error_x.arrayminus
        # its bar ends at rates, one of them the next
        assert {at - less, at + more} <= {RATE * load for load in LOADS}
        assert not any(at - less < RATE * load < at + more for load in LOADS)
    caption = figure.layout.meta["caption"]
    assert "2 runs failed." in caption
    assert "Left out: 2 of 16 rates, at which the client fell behind in a block" in caption
    assert [tick.x0 for tick in figure.layout.shapes] == [RATE * LOADS[-1]] * 2
    assert [(tick.xref, tick.yref) for tick in figure.layout.shapes] == [("x", "y domain"), ("x2", "y2 domain")]
    assert [note.text for note in figure.layout.annotations][:2] == [
        f"<b>{name}</b> <span style='color:{layout.SOFT};font-size:10px'>1 of 8 left out</span>"
        for name in ("quiche", "Quinn")
    ]


def test_cores_are_drawn_beside_their_prediction(tmp_path: Path) -> None:
    campaign, primitives = capacityruns.measured(tmp_path)
    drawn = capacity_figures.cores(campaign, capacity.by_series(campaign, primitives), TITLES)
    bars = {trace.name: list(trace.y) for trace in drawn.figure.data if trace.type == "bar"}
    assert bars["RSA"] == pytest.approx([10, 10])
    assert bars["ML-DSA"] == pytest.approx([7, 7])
    # neighbours are told apart without colours
    assert [trace.marker.color == "white" for trace in drawn.figure.data if trace.type == "bar"] == [False, True]
    predicted = [y for trace in drawn.figure.data if trace.type == "scatter" for y in trace.y]
    assert predicted == pytest.approx([6, 6])
    assert drawn.table["experiment"].unique().to_list() == [capacity.EXPERIMENT]


def test_the_table_says_where_nothing_doubles(tmp_path: Path) -> None:
    campaign, primitives = capacityruns.measured(tmp_path, p99_ms=[1, 1, 1, 1])
    series = capacity.by_series(campaign, primitives)
    sheet = capacity_figures.table(series, TITLES)
    assert {row[4] for row in sheet.rows} == {f"> {RATE:.0f}"}
    assert {row[5] for row in sheet.rows} == {f"> {RATE:.0f} to > {RATE:.0f}"}
    for number, one in enumerate(series.to_dicts()):
        behind = campaign.filter(filters(sheet.behind[number, 10]))
        # the runs of its own algorithms, at every rate
        assert behind.select(capacity.KEYS).unique().rows() == [tuple(one[key] for key in capacity.KEYS)]
        assert len(set(behind["load"])) == len(LOADS)
    found = capacity_figures.found(series, TITLES)
    assert found is not None
    assert found.sentences[0].startswith("quiche: 10 000 connections a second take 7.0 cores with ML-DSA and 10.0 with")
    assert "off by 14 %" in found.sentences[-1]


def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the notebook shows of the runs in a directory."""
    environment = {RAW_VARIABLE: str(tmp_path / "raw"), ARTIFACTS_VARIABLE: str(tmp_path / "artifacts")}
    monkeypatch.setattr(os, "environ", {**os.environ, **environment, PUBLISHED_VARIABLE: ""})
    monkeypatch.chdir(ROOT / "notebooks")
    namespace: dict[str, Any] = {}
    values = []
    cells = json.loads(Path("server-capacity.ipynb").read_text(encoding="utf-8"))["cells"]
    for source in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        *statements, last = source.splitlines()
        exec("\n".join(statements), namespace)  # noqa: S102 (our own notebook)
        values.append(eval(last, namespace))  # noqa: S307
    return values


def test_without_runs_the_notebook_says_how_to_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").mkdir()
    told = [one for one in shown(tmp_path, monkeypatch) if isinstance(one, NotMeasured)]
    wanted = [*["experiments=[capacity]"] * 3, "experiments=[capacity-cores]"]
    assert all(command in one._repr_html_() for command, one in zip(wanted, told, strict=True))


def test_the_notebook_draws_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capacityruns.write(tmp_path / "raw")
    capacityruns.write_held(tmp_path / "raw")
    capacityruns.write_scaling(tmp_path / "raw")
    values = shown(tmp_path, monkeypatch)
    assert not any(isinstance(one, NotMeasured) for one in values)
    written = {file.name for file in (tmp_path / "artifacts").glob("*/*")}
    assert {"capacity-ttfb.html", "capacity-cores.html", "capacity.csv", "capacity-rates.csv"} <= written
    assert {"capacity-scaling.html", "capacity-scaling.csv"} <= written


def test_what_is_drawn_once_it_is_measured_is_all_of_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacityruns.write(tmp_path / "raw")
    capacityruns.write_held(tmp_path / "raw")
    for name, value in {RAW_VARIABLE: tmp_path / "raw", ARTIFACTS_VARIABLE: tmp_path / "artifacts"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(ROOT / "notebooks")
    drawn = {one.drawn.name for one in notebooks.draw(ROOT / "notebooks", capacity.EXPERIMENT)}
    assert drawn == {"capacity-ttfb", "capacity-cores", "capacity-memory"}


def test_scaling_is_drawn_beside_the_number_of_programs(tmp_path: Path) -> None:
    capacityruns.write_scaling(tmp_path)
    campaign = runs.select_campaign(runs.table(tmp_path), capacity.CORES)
    series = capacity.by_series(campaign, details.read(tmp_path).primitives)
    # the rate at which quinn is slow on all processors is not known
    unknown = (pl.col("server_library") == "quinn") & (pl.col("copies") > 1)
    rates = (pl.col("doubling_per_s", "doubling_low", "doubling_high"),)
    table = capacity.on_all_processors(series.with_columns(pl.when(~unknown).then(*rates)))
    drawn = capacity_figures.scaling(campaign, table, TITLES)
    (points,) = drawn.figure.data
    assert (points.name, list(points.x), list(points.y)) == ("RSA", [0], pytest.approx([3.5]))
    (line,) = drawn.figure.layout.shapes
    assert line.y0 == line.y1 == capacityruns.COPIES
    notes = {note.text: note.hovertext for note in drawn.figure.layout.annotations if note.textangle == -90}
    assert notes == {"unknown": f"TTFB has not doubled at the highest rate of {capacityruns.COPIES} programs"}
    sheet = capacity_figures.scaling_table(table, TITLES)
    assert sheet.rows[0][:7] == ["quiche", "RSA", 3, capacityruns.COPIES, "800", "2800", "3.50"]
    assert sheet.rows[1][4:8] == ["800", "", "", ""]
    told = capacity_figures.found_scaling(table, TITLES)
    assert told is not None
    assert told.sentences == ["quiche with RSA: 4 programs take 3.50 times the connections of one."]
    behind = campaign.filter(filters(sheet.behind[0, 6]))
    assert (behind["server_library"].unique().to_list(), len(behind)) == (["quiche"], 2 * 3 * len(LOADS))


def test_memory_is_drawn_by_open_connection(tmp_path: Path) -> None:
    capacityruns.write_held(tmp_path, failed=["quinn"])
    campaign = runs.select_campaign(runs.table(tmp_path), capacity.EXPERIMENT)
    cells = capacity.by_memory(campaign)
    drawn = capacity_figures.memory(campaign, cells, TITLES)
    assert drawn.name == "capacity-memory"
    bars = {trace.name: list(trace.y) for trace in drawn.figure.data}
    assert bars == {"ML-DSA": pytest.approx([26]), "RSA": pytest.approx([21])}
    assert [note.text for note in drawn.figure.layout.annotations if note.textangle == -90] == ["failed", "failed"]
    assert f"{capacityruns.HELD} open connections" in drawn.figure.layout.meta["caption"]
    sheet = capacity_figures.memory_table(cells, TITLES)
    by_server = {(row[0], row[1]): row for row in sheet.rows}
    assert by_server["quiche", "RSA"][2:7] == [3, capacityruns.HELD, "8.0", "28.5", "21.0"]
    assert by_server["Quinn", "RSA"][2:] == [0, "", "", "", "", "", "ended while it was held open"]
    told = capacity_figures.found_memory(cells, TITLES)
    assert told is not None
    assert told.sentences == [
        "quiche: an open connection takes 21.0 KiB of the server with RSA and 26.0 KiB with ML-DSA."
    ]
