"""Figures and tables of "QUIC Steps": CDFs of made-up captures with known ones, published and ours side by side."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clone import ROOT
from pacedruns import MS, copied, own, place, times
from quicbed.analysis.place import ARTIFACTS_VARIABLE, PUBLISHED_VARIABLE
from quicbed.figures import goodput, output
from quicbed.figures.output import NotMeasured
from quicbed.papers.steps import analysis, figures
from quicbed.papers.steps.analysis import Published
from quicbed.papers.steps.figures import Side
from quicbed.store import details, runs
from quicbed.store.paths import RAW_VARIABLE
from quicbed.wire import pacing

NOTHING = analysis.published(None)
NO_RUNS = pl.DataFrame(schema=runs.SCHEMA)
NO_PACING = pl.DataFrame(schema=details.PACED)
NAMES = {"quiche": "quiche", "tcp-tls": "TCP+TLS"}


def shares(curves: pl.DataFrame, quantity: str = pacing.TRAINS) -> list[tuple[int, float]]:
    return curves.filter(pl.col("quantity") == quantity).select("value", "share").rows()


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_published_repetitions_are_pooled_and_no_gap_is_taken_across_them(tmp_path: Path) -> None:
    found = copied(tmp_path, {"picoquic-cubic": [times([1, 3]), times([6])], "picoquic-bbr": [times([1])]})
    curves = analysis.published_curves(found, "pacing-baseline")
    # of four and six packets; a gap of 10 µs, and one of 1 ms within the first repetition
    assert shares(curves) == [(1, 0.1), (3, pytest.approx(0.4)), (6, 1.0)]
    assert shares(curves, pacing.GAPS) == [(10_000, pytest.approx(7 / 8)), (MS, 1.0)]
    assert curves.select("library", "label", "runs", "source").unique().rows() == [("picoquic", "baseline", 2, "steps")]
    # the same repetitions with another name
    again = analysis.published_curves(found, "pacing-congestion-control")
    assert shares(again.filter(pl.col("label") == "CUBIC")) == shares(curves)
    numbers = analysis.numbers(analysis.published_runs(found, "pacing-baseline")).row(0, named=True)
    assert numbers["packets_in_trains_to_5"] == pytest.approx((1.0 + 0.0) / 2)
    assert numbers["packets_in_trains_to_5_n"] == 2
    assert (numbers["dropped_packets"], numbers["goodput_mbps_n"]) == (None, 0)


def test_every_setting_of_fig_5_has_its_configuration(tmp_path: Path) -> None:
    stem = "quiche-gso-txtime-cubic"
    named = {
        "default": f"{stem}-gso_unpaced",
        "FQ": f"{stem}-fq-gso_unpaced",
        "no roll-back": f"{stem}-gso_unpaced-spurious_fixed",
        "FQ, no roll-back": f"{stem}-fq-gso_unpaced-spurious_fixed",
    }
    found = copied(tmp_path, {name: [times([number])] for number, name in enumerate(named.values(), 2)})
    curves = analysis.published_curves(found, "pacing-fq").filter(pl.col("quantity") == pacing.TRAINS)
    assert dict(curves.select("label", "value").rows()) == dict(zip(named, (2, 3, 4, 5), strict=True))
    # with a queueing discipline and without roll-back, as the paper compares offloads
    offload = analysis.published_curves(found, "pacing-gso").filter(pl.col("quantity") == pacing.TRAINS)
    assert offload.select("label", "value").rows() == [("GSO", 5)]


def test_our_curves_are_of_the_runs_that_count(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    own(raw, "pacing-baseline", {("quiche", "baseline"): times([2, 2])}, blocks=1)
    # which another attempt has replaced
    own(
        raw,
        "pacing-baseline",
        {("quiche", "baseline"): times([7])},
        blocks=1,
        attempt=1,
        contaminated=True,
        contamination=["x"],
    )
    table, paced = own(raw, "pacing-gso", {("quiche", "GSO"): times([9])}, blocks=1)
    curves = analysis.own_curves(analysis.own_campaign(table, "pacing-baseline"), paced)
    assert shares(curves) == [(2, 1.0)]
    assert curves["runs"].unique().to_list() == [1]
    assert analysis.own_campaign(table, "pacing-fq").is_empty()


def test_numbers_are_means_over_runs_with_an_interval(tmp_path: Path) -> None:
    table, _ = own(tmp_path / "raw", "pacing-gso", {("quiche", "GSO"): times([6, 1, 1, 1])}, blocks=3)
    (row,) = analysis.numbers(table).to_dicts()
    assert (row["dropped_packets"], row["goodput_mbps"]) == (20.0, pytest.approx(32.0))
    assert row["dropped_packets_low"] < 20.0 < row["dropped_packets_high"]
    assert row["packets_in_trains_to_5"] == pytest.approx(3 / 9)
    assert row["gap_ms"] == pytest.approx(0.01)


def test_the_loss_of_a_short_queue_is_what_is_beyond_its_room_in_each_train(tmp_path: Path) -> None:
    found = copied(tmp_path, {"picoquic-cubic": [times([4, 1, 1]), times([10])]})
    lost = dict(shares(analysis.published_curves(found, "pacing-baseline"), analysis.LOSS))
    assert list(lost) == list(analysis.QUEUES)
    # of 16 packets
    expected = {1: 3 + 9, 2: 2 + 8, 4: 6, 9: 1, 10: 0, 20: 0}
    assert {room: lost[room] for room in expected} == {room: pytest.approx(n / 16) for room, n in expected.items()}


# ---- figures ---------------------------------------------------------------------------------------------------------


def both(tmp_path: Path) -> list[Side]:
    """Published runs of picoquic and TCP, and ours of quiche and TCP, of `pacing-baseline`."""
    theirs = copied(tmp_path, {"picoquic-cubic": [times([1] * 6 + [16] * 4)], "tcp+tls-cubic": [times([1, 1, 2])]})
    cells = {("quiche", "baseline"): times([3, 1]), ("tcp-tls", "baseline"): times([1, 1], gap=300_000)}
    return figures.sides(theirs, *own(tmp_path / "raw", "pacing-baseline", cells), "pacing-baseline")


def lines(drawn: output.Drawn) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Points of each line, by horizontal axis and name."""
    return {(one.xaxis, one.name): (list(one.x), list(one.y)) for one in drawn.figure.data}


def titles(drawn: output.Drawn) -> list[str]:
    return [one.text for one in drawn.figure.layout.annotations if one.text.startswith("<b>")]


def test_a_figure_has_published_and_measured_lines_in_panels_of_their_own(tmp_path: Path) -> None:
    drawn = figures.cdf(figures.FIGURES["steps-fig3"], both(tmp_path), NAMES)
    assert drawn is not None
    assert titles(drawn) == ["<b>published</b>", "<b>measured here</b>"]
    found = lines(drawn)
    assert set(found) == {("x", "picoquic"), ("x", "TCP+TLS"), ("x2", "quiche"), ("x2", "TCP+TLS")}
    assert found["x", "picoquic"] == ([1, 1, 16, 21], [0, pytest.approx(6 / 70), 1, 1])
    assert found["x2", "quiche"] == ([1, 1, 3, 21], [0, 0.25, 1, 1])
    colours = {
        one.name: {other.line.color for other in drawn.figure.data if other.name == one.name}
        for one in drawn.figure.data
    }
    assert all(len(one) == 1 for one in colours.values())
    assert len({*map(tuple, colours.values())}) == 3
    assert [one.name for one in drawn.figure.data if one.showlegend] == ["picoquic", "TCP+TLS", "quiche"]
    assert "stamped by the host that sends them" in drawn.figure.layout.meta["caption"]
    assert drawn.table.select("campaign", "testbed").unique().sort("campaign").rows() == [
        (None, None),
        ("c0ffee00", "local"),
    ]
    assert sum("raw/" in origin for origin in drawn.origins) == 4


def test_gaps_are_in_ms_and_end_with_the_axis(tmp_path: Path) -> None:
    drawn = figures.cdf(figures.FIGURES["steps-fig2"], both(tmp_path), NAMES)
    assert drawn is not None
    assert drawn.source == "QUIC Steps, Fig. 2"
    at, share = lines(drawn)["x2", "TCP+TLS"]
    # to the next larger of the values that are kept
    assert at == pytest.approx([0.30199, 0.30199, 2.1], rel=1e-4)
    assert share == [0, 1, 1]


def test_a_predicted_loss_begins_with_a_queue_of_one_packet(tmp_path: Path) -> None:
    drawn = figures.cdf(figures.FIGURES["steps-loss"], both(tmp_path), NAMES)
    assert drawn is not None
    assert drawn.source == "beyond QUIC Steps"
    room, lost = lines(drawn)["x2", "quiche"]
    # three packets and one
    assert (room[0], room[-1]) == (1, 21)
    assert lost[:4] == [0.5, 0.25, 0, 0]


def test_a_figure_by_setting_has_a_panel_for_each_library(tmp_path: Path) -> None:
    theirs = copied(tmp_path, {"ngtcp2-reno": [times([2])], "ngtcp2-bbr": [times([4])]})
    cells = {("quiche", "CUBIC"): times([1]), ("quiche", "BBR"): times([30, 1]), ("tcp-tls", "CUBIC"): times([1, 2])}
    known = figures.sides(
        theirs, *own(tmp_path / "raw", "pacing-congestion-control", cells), "pacing-congestion-control"
    )
    drawn = figures.cdf(figures.FIGURES["steps-fig4"], known, NAMES)
    assert drawn is not None
    expected = ["ngtcp2, published", "quiche, measured here", "TCP+TLS, measured here"]
    assert titles(drawn) == [f"<b>{title}</b>" for title in expected]
    found = lines(drawn)
    assert set(found) == {("x", "Reno"), ("x", "BBR"), ("x2", "CUBIC"), ("x2", "BBR"), ("x3", "CUBIC")}
    # a train that is longer than the axis
    assert found["x2", "BBR"] == ([1, 1, 21], [0, pytest.approx(1 / 31), pytest.approx(1 / 31)])


def test_without_our_runs_the_published_ones_are_drawn_and_it_is_said_how_to_measure(tmp_path: Path) -> None:
    theirs = copied(tmp_path, {"picoquic-cubic": [times([1, 2])]})
    beside = figures.beside(theirs, NO_RUNS, NO_PACING, place(tmp_path), {})
    assert set(beside.saved) == {"steps-fig2", "steps-fig3", "steps-fig4", "steps-fig4-gaps", "steps-loss"}
    missing = beside.missing("pacing-baseline")
    assert missing is not None
    assert "experiments=[pacing-baseline]" in missing._repr_html_()
    assert beside.missing("pacing-gso") is None  # which its figure says
    unknown = beside.show("steps-fig6")
    assert isinstance(unknown, NotMeasured)
    assert unknown.experiment == "pacing-gso"
    (told, _) = beside.saved["steps-fig2"].drawn.figure.layout.meta["conditions"][1].split(",")
    assert told == "measured here: nothing yet"
    # a copy that is not told any more
    figures.beside(NOTHING, NO_RUNS, NO_PACING, place(tmp_path), {})
    assert not list((tmp_path / "artifacts").rglob("steps-*"))


def test_what_is_found_names_each_cell_or_of_many_the_ends(tmp_path: Path) -> None:
    known = both(tmp_path)
    found = figures.found(figures.TRAINS, known, NAMES)
    assert found is not None
    assert found.sentences == [
        "Published runs: share of packets in trains of at most five: 100.00 % (TCP+TLS); 8.57 % (picoquic).",
        "Measured here: share of packets in trains of at most five: 100.00 % (TCP+TLS); 100.00 % (quiche).",
    ]
    gaps = figures.found(figures.GAPS, known, NAMES)
    assert gaps is not None
    # 60 of 69 gaps, one of three; two of three
    assert gaps.sentences[0].endswith("of at most 0.1 ms: 86.96 % (picoquic); 33.33 % (TCP+TLS).")
    assert gaps.sentences[1].endswith("of at most 0.1 ms: 66.67 % (quiche); 0.00 % (TCP+TLS).")
    lost = figures.found(figures.LOSS, known, NAMES)
    assert lost is not None
    # four trains of 16 among 70 packets
    assert lost.sentences[0].endswith("a queue of 10 packets drops: 34.29 % (picoquic); 0.00 % (TCP+TLS).")
    drops = figures.found_drops(known, NAMES)
    assert drops is not None  # of ours alone: the copy has no logs
    ends = " to ".join(f"15.00 packets dropped at 31.50 Mbit/s ({name})" for name in ("quiche", "TCP+TLS"))
    assert drops.sentences == [f"Measured here: from {ends}."]
    assert figures.found_drops([], NAMES) is None
    one = figures.sides(
        NOTHING, *own(tmp_path / "one", "pacing-gso", {("quiche", "GSO"): times([1])}, blocks=1), "pacing-gso"
    )
    drops = figures.found_drops(one, NAMES)
    assert drops is not None
    assert drops.sentences == ["Measured here: 10.00 packets dropped at 31.00 Mbit/s (quiche, GSO)."]
    cells = {
        ("quiche", label): times([number]) for number, label in enumerate(("GSO", "no GSO", "a", "b", "c", "d"), 1)
    }
    known = figures.sides(NOTHING, *own(tmp_path / "many", "pacing-gso", cells), "pacing-gso")
    many = figures.found(figures.TRAINS, known, NAMES)
    assert many is not None
    assert "from 100.00 % (quiche, GSO) to 0.00 % (quiche, d); 100.00 %" in many.sentences[0]


def test_a_table_has_both_sides_of_every_cell(tmp_path: Path) -> None:
    here = place(tmp_path)
    sheet = figures.table("steps-table1", "pacing-baseline", both(tmp_path), NAMES, here)
    assert sheet is not None
    assert [row[0] for row in sheet.rows] == ["picoquic", "quiche", "TCP+TLS"]
    picoquic, quiche, tcp = sheet.rows
    assert picoquic[2:] == ["0", None, None, "8.57", None, None, None, None]
    assert quiche[2:6] == [None] * 4
    assert quiche[6] == "2"
    assert str(quiche[7]).startswith("15.00 (")
    assert tcp[5] == "100.00"
    assert pl.read_parquet(here.tables / "steps-table1.parquet").height == 4
    assert figures.table("steps-table2", "pacing-gso", [], NAMES, here) is None


def test_a_table_has_the_pacing_precision_where_a_library_tells_it(tmp_path: Path) -> None:
    cells = {("quiche", "BBR, GSO"): times([1, 1])}
    own(tmp_path / "raw", "pacing-gso", {("quiche", "GSO"): times([3])})
    tables = own(tmp_path / "raw", "pacing-gso", cells, more={"pacing_precision_us": 40.0})
    sheet = figures.table(
        "steps-table2", "pacing-gso", figures.sides(NOTHING, *tables, "pacing-gso"), NAMES, place(tmp_path)
    )
    assert sheet is not None
    assert sheet.headers[-1] == "pacing precision [µs]"
    assert [row[-1] for row in sheet.rows] == [None, "40.0 (40.0 to 40.0)"]
    assert "if it reports it" in sheet.notes[-1]


def floor_of(campaign: str, deviation: int = 12_000) -> pl.DataFrame:
    """The floor of a campaign: packets 0.3 ms apart, and in trains of ten, of which one was captured as two of five."""
    named = {
        "testbed": "local",
        "experiment": "x",
        "campaign": campaign,
        "origin": "o",
        "qdisc": None,
        "method": "sleep",
    }
    rows = []
    for schedule, size, trains in (("even", 1, [(1, 50)]), ("trains", 10, [(5, 10), (10, 90)])):
        place = named | {"schedule": schedule, "intended_train_packets": size, "intended_gap_ns": 300_000}
        points = [("deviation_ns", sign * deviation, 24) for sign in (-1, 1)]
        points += [("sender_deviation_ns", sign * deviation // 2, 24) for sign in (-1, 1)]
        points += [("gap_ns", 300_000, 49), *(("train_packets", length, packets) for length, packets in trains)]
        rows += [place | {"quantity": name, "value": value, "count": count} for name, value, count in points]
    return pl.DataFrame(rows, schema=details.FLOORS)


@pytest.mark.parametrize("name", ["steps-fig2", "steps-fig3"])
def test_the_floor_of_timers_lies_under_our_lines_with_its_numbers(tmp_path: Path, name: str) -> None:
    tables = own(tmp_path / "raw", "pacing-baseline", {("quiche", "baseline"): times([3, 1])})
    known = figures.sides(NOTHING, *tables, "pacing-baseline", floor_of("c0ffee00"))
    drawn = figures.cdf(figures.FIGURES[name], known, NAMES)
    assert drawn is not None
    first, *_ = drawn.figure.data
    assert first.name == figures.BARE
    assert (first.line.color, max(first.y)) == (goodput.FLOOR, 1)
    caption = " ".join(drawn.figure.layout.meta["caption"].split("<br>"))
    assert "by 12.1 µs (standard deviation; 99 % by at most 12.0 µs), and 10.00 % of its packets" in caption
    table = figures.floor_table({"pacing-baseline": known}, place(tmp_path))
    assert table is not None
    assert [row[2:] for row in table.rows] == [
        ["program", "evenly", "12.1", "12.0", "6.1", "0.00"],
        ["program", "in trains", "12.1", "12.0", "6.1", "10.00"],
    ]
    assert (tmp_path / "artifacts" / "tables" / "steps-floor.csv").is_file()


def test_runs_without_a_floor_say_so_and_published_ones_have_none(tmp_path: Path) -> None:
    drawn = figures.cdf(figures.FIGURES["steps-fig3"], both(tmp_path), NAMES)
    assert drawn is not None
    assert "was not measured, so our gaps and trains cannot be interpreted" in " ".join(
        drawn.figure.layout.meta["caption"].split("<br>")
    )
    theirs = figures.sides(copied(tmp_path, {"picoquic-cubic": [times([1])]}), NO_RUNS, NO_PACING, "pacing-baseline")
    drawn = figures.cdf(figures.FIGURES["steps-fig3"], theirs, NAMES)
    assert drawn is not None
    assert "floor" not in drawn.figure.layout.meta["caption"].lower()
    assert figures.floor_table({"pacing-baseline": theirs}, place(tmp_path)) is None


# ---- notebook --------------------------------------------------------------------------------------------------------


def cells_of(notebook: str) -> list[str]:
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_shows_every_figure_or_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").mkdir()
    environment = {RAW_VARIABLE: str(tmp_path / "raw"), ARTIFACTS_VARIABLE: str(tmp_path / "artifacts")}
    monkeypatch.setattr(os, "environ", {**os.environ, **environment, PUBLISHED_VARIABLE: ""})
    monkeypatch.chdir(ROOT / "notebooks")
    namespace: dict[str, Any] = {}
    shown = []
    for source in cells_of("quic-steps"):
        *statements, last = source.splitlines()
        exec("\n".join(statements), namespace)  # noqa: S102 (our own notebook)
        shown.append(eval(last, namespace))  # noqa: S307
    told = [one.experiment for one in shown if isinstance(one, NotMeasured)]
    *others, loss = (figures.FIGURES[name].experiment for name in figures.FIGURES)
    assert told == [*others, analysis.PRECISION, loss]
    assert "published: {steps: PATH}" in "".join(one._repr_html_() for one in shown if isinstance(one, Published))
    text = "\n".join(cells_of("quic-steps"))
    assert all(f'paper.cdf("{name}")' in text for name in figures.FIGURES)
