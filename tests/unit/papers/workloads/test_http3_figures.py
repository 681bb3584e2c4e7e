"""What HTTP/3 costs a download, of runs that are made up, so that it is known."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import fakeruns
from quicbed.figures import goodput
from quicbed.papers.workloads import http3, http3_figures
from quicbed.store import runs
from runlinks import filters

SIZES = {"1 kB": 1_000, "20 MB": 20_000_000}
TITLES = {"quiche": "quiche & co"}
COST = {"quiche": 0.8, "quic-go": 0.5}
"""Goodput over HTTP/3 by that over a bare stream; the processor time is the inverse."""


def measured(raw: Path, blocks: int = 3) -> pl.DataFrame:
    """Runs of these, and a library that has no HTTP/3."""
    for library in (*COST, "quinn"):
        for label, size in SIZES.items():
            for over in (False, True):
                able = library in COST or not over
                for block in range(blocks if able else 1):
                    rate = 1000.0 * (block + 1) * (COST.get(library, 1) if over else 1)
                    made = fakeruns.make_run(
                        experiment=http3.EXPERIMENT,
                        cell={
                            "id": f"{library}-{size}-{over}",
                            "slug": f"{library}-{size}-{over}",
                            "label": f"{label}, HTTP/3" if over else label,
                            "arm": "main",
                            "baseline": f"{library}-{size}-False" if over else None,
                        },
                        client={"library": library, "flavour": "stock", "version": "1", "build": library},
                        server={"library": library, "flavour": "stock", "version": "1", "build": library},
                        block=block,
                        metrics={
                            "goodput_mbps": rate,
                            "first_byte_ms": 1e3 / rate,
                            "bytes": size,
                            "client_cpu_s": size / rate / 1e6,
                            "server_cpu_s": size / rate / 1e6,
                        },
                    )
                    made["variant"] = made["variant"] | ({"alpn": "h3"} if over else {})
                    made["workload"] = made["workload"] | {"bytes": size}
                    if not able:
                        made |= {"status": "unsupported", "reason": "speaks <one>", "metrics": {}, "block": None}
                    fakeruns.write_run(raw, made)
    return runs.select_campaign(runs.table(raw), http3.EXPERIMENT)


@pytest.fixture
def found(tmp_path: Path) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    campaign = measured(tmp_path / "raw")
    table = http3.by_metric(campaign)
    return campaign, table, http3.costs(table)


def test_costs_are_paired_with_the_bare_stream_of_the_same_size(
    found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> None:
    assert found[2].schema == http3.COSTS
    rows = {(row["library"], row["metric"], row["bytes"]): row for row in found[2].to_dicts()}
    assert len(rows) == 3 * 3 * len(SIZES)
    for library, cost in COST.items():
        for size in SIZES.values():
            slower = rows[library, "goodput_mbps", size]
            assert (slower["ratio"], slower["low"], slower["n"]) == (pytest.approx(cost), pytest.approx(cost), 3)
            assert rows[library, "cpu_s_per_gib", size]["ratio"] == pytest.approx(1 / cost)
            assert rows[library, "first_byte_ms", size]["ratio"] == pytest.approx(1 / cost)
            assert slower["http3"] == pytest.approx(cost * slower["bare"])
    missing = rows["quinn", "goodput_mbps", 1000]
    assert (missing["ratio"], missing["n"], missing["unsupported"]) == (None, 0, "speaks <one>")


def test_every_library_and_size_is_drawn(found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]) -> None:
    drawn = http3_figures.costs(*found, TITLES)
    assert [trace.name for trace in drawn.figure.data] == ["quic-go", "quiche &amp; co", "quinn"] * 3
    assert sum(trace.showlegend for trace in drawn.figure.data) == 3
    assert list(drawn.figure.data[0].y) == pytest.approx([-50, -50])
    assert list(drawn.figure.data[1].y) == pytest.approx([-20, -20])
    absent = [one for one in drawn.figure.layout.annotations if one.text == "unsupported"]
    assert [one.hovertext for one in absent] == ["speaks &lt;one&gt;"] * 6
    assert len(drawn.origins) == 3 * len(SIZES) * (2 + 2 + 1)


def test_the_table_leads_to_the_runs_of_both(found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]) -> None:
    sheet = http3_figures.sheet(found[2], TITLES)
    rows = {(row[0], row[1], row[2]): number for number, row in enumerate(sheet.rows)}
    number = rows["quiche & co", "1 kB", "Goodput [Mbit/s]"]
    assert sheet.rows[number][5:9] == ["0.8", "0.800 to 0.800", 3, None]
    behind = found[0].filter(filters(sheet.behind[number, 5]))
    assert set(behind["cell"]) == {"quiche-1000-False", "quiche-1000-True"}
    assert sheet.rows[rows["quinn", "20 MB", "Goodput [Mbit/s]"]][8] == "unsupported: speaks <one>"


def test_a_sentence_tells_every_library_and_size(found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]) -> None:
    told = http3_figures.found(found[2], TITLES)
    assert told is not None
    assert len(told.sentences) == len(COST) * len(SIZES)
    assert told.sentences[1].startswith(
        "quiche & co, 1 kB: HTTP/3 changes goodput by \N{MINUS SIGN}20.0 % (95 % interval"
    )
    assert http3_figures.found(found[2].clear(), TITLES) is None


def test_one_block_has_no_interval(tmp_path: Path) -> None:
    campaign = measured(tmp_path / "one", blocks=1)
    table = http3.by_metric(campaign)
    assert set(http3.costs(table)["low"]) == {None}
    assert http3_figures.costs(campaign, table, http3.costs(table), {}).figure.data


def test_a_library_that_differs_from_itself_is_marked(found: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]) -> None:
    campaign, table, costs = found
    again = table.filter((pl.col("client_library") == "quic-go") & (pl.col("metric") == "goodput_mbps")).head(1)
    for low, marked in ((0.9, False), (1.1, True)):
        row = again.with_columns(arm=pl.lit("aa"), ratio_low=pl.lit(low), ratio_high=pl.lit(1.2))
        figure = http3_figures.costs(campaign, pl.concat([table, row], how="vertical_relaxed"), costs, TITLES).figure
        names = {trace.name for trace in figure.data}
        assert (f"quic-go {goodput.UNLIKE_ITSELF}" in names) is marked
        assert (goodput.UNLIKE_ITSELF_MEANS in figure.layout.annotations[-1].text) is marked
