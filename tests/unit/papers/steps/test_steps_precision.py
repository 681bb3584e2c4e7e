"""The figure of pacing precision: made-up runs with known values by rate and load."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacedruns import FLOOR, at_rates
from quicbed.papers.steps import precision


def test_numbers_of_every_rate(tmp_path: Path) -> None:
    campaign = at_rates(tmp_path)
    table = precision.by_rate(campaign)
    kept = table.select("rate_mbit", "aes_hardware", "n", "mean", "min", "max", "load", "goodput_mbps").rows()
    assert kept == [
        (40.0, True, 3, 10.0, 9.0, 11.0, pytest.approx(0.25), 40.0),
        (1000.0, True, 3, 20.0, 19.0, 21.0, pytest.approx(0.25), 1000.0),
        (40.0, False, 3, 20.0, 19.0, 21.0, pytest.approx(0.5), 40.0),
        (1000.0, False, 3, 40.0, 39.0, 41.0, pytest.approx(0.5), 1000.0),
    ]
    assert all(low < mean < high for low, mean, high in table.select("mean_low", "mean", "mean_high").rows())
    sheet = precision.sheet(campaign, table)
    assert sheet.rows[0][:4] == ["40", "yes", 3, "10.0"]
    assert sheet.rows[3][5:] == ["1000.0", "50.0"]
    told = precision.found(table, FLOOR)
    assert told is not None
    assert told.sentences[0] == (
        "quiche with AES instructions: 10 µs at 40 Mbit/s (server busy for 25 % of the transfer) and 20 µs at "
        "1000 Mbit/s (server busy for 25 % of the transfer)."
    )
    assert told.sentences[-1] == "The floor of the timers is 40 µs."


def test_the_figure_says_what_failed(tmp_path: Path) -> None:
    campaign = at_rates(tmp_path / "raw", failing=(1000.0, False))
    table = precision.by_rate(campaign)
    drawn = precision.precision(campaign, table, FLOOR)
    assert [(trace.name, len(trace.y)) for trace in drawn.figure.data] == [
        ("with AES instructions", 2),
        ("with AES instructions", 2),
        ("without", 1),
        ("without", 1),
        (precision.GAP, 2),
    ]
    # of a packet of 1514 bytes
    assert drawn.figure.data[-1].y == pytest.approx((302.8, 12.112))
    assert [one.hovertext for one in drawn.figure.layout.annotations if one.text == "failed"] == ["it was too slow"]
    assert "floor of the timers here, 40.0 µs" in drawn.figure.layout.meta["caption"]


def test_without_a_floor_nothing_is_a_finding(tmp_path: Path) -> None:
    campaign = at_rates(tmp_path)
    drawn = precision.precision(campaign, precision.by_rate(campaign), None)
    assert "so no value can be interpreted" in drawn.figure.layout.meta["caption"]
    assert not drawn.figure.layout.shapes
