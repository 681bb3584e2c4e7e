"""What the columns of tables mean: every one of ours has a meaning, and units follow from names."""

from __future__ import annotations

import polars as pl
import pytest

from quicbed.analysis import comparison
from quicbed.store import described

TABLES = {**described.TABLES, "figure": comparison.FIGURE_SCHEMA}


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_a_meaning(name: str) -> None:
    for one in described.columns(TABLES[name]):
        assert one.meaning.endswith("."), one
        assert "\n" not in one.meaning, one
        assert "|" not in one.meaning, one


def test_every_table_says_what_has_a_row() -> None:
    assert described.ROWS.keys() == described.TABLES.keys()


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("goodput_mbps", "Mbit/s"),
        ("ttfb_ms_p99", "ms"),
        ("client_cpu_s", "s"),
        ("client_cpu_s_per_gib", "s/GiB"),
        ("gib_per_busy_cpu_s", "GiB/s"),
        ("handshakes_per_s", "1/s"),
        ("bytes_initial_client", "bytes"),
        ("memory", "GiB"),
        ("memory_held_bytes", "bytes"),
        ("pacing_precision_us", "µs"),
        ("loss_percent", "%"),
        ("reorder_permille", "per mille"),
        ("blocks", ""),
        ("stalls", ""),
        ("start_share", ""),
    ],
)
def test_a_unit_follows_from_the_name(name: str, unit: str) -> None:
    (one,) = described.columns({name: pl.Float64()})
    assert one.unit == unit


def test_what_the_models_say_of_a_column_is_said_of_it() -> None:
    told = {one.column: one for one in described.columns(described.TABLES["runs"])}
    assert told["load_event_ms"].meaning.startswith("For a page in a browser: from the start of the navigation")
    assert told["cipher"].meaning == "The only cipher suite offered and accepted."
    assert told["server_cpu_samples"].kind == "list of number"
    assert told["started_at"].kind == "time (UTC)"


def test_nothing_is_said_of_a_column_of_ones_own() -> None:
    assert described.columns({"twice": pl.Int64()}) == [described.Described("twice", "whole number", "", "")]
