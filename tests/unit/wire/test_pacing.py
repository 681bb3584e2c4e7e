"""Gaps, trains and precision of captures made to have known ones."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from quicbed.wire import pacing
from quicbed.wire.pacing import PacingError
from quicbed.wire.packets import Packets
from quicbed.wire.trains import with_trains

US = 1000
NS = 10**9
WHOLE = Packets(
    format="pcap",
    packing=None,
    interfaces=1,
    frames=6,
    connections=1,
    other_frames=0,
    short_frames=0,
    first_short=None,
    backward_frames=0,
    first_backward=None,
    unstamped_frames=0,
    unknown_connection=0,
    dropped_frames=None,
    truncated=None,
)


def table(path: Path, times: list[int], **columns: list[object]) -> Path:
    """A table of packets of one server, as `quicbed.wire.packets` writes it."""
    rows = len(times)
    values: dict[str, list[object]] = {
        "frame": list(range(1, rows + 1)),
        "interface": [0] * rows,
        "time_ns": list(times),
        "frame_bytes": [1294] * rows,
        "payload_bytes": [1252] * rows,
        "connection": [0] * rows,
        "direction": ["to_client"] * rows,
        "packet_type": ["1rtt"] * rows,
        "packet_number": list(range(rows)),
    }
    schema = {"direction": pl.String, "packet_type": pl.String}
    pl.DataFrame(values | columns, schema_overrides=schema | {"packet_number": pl.Int64}).write_parquet(path)
    return path


# trains of three (a gap of exactly 0.1 ms belongs to it), one and two packets
TIMES = [0, 100 * US, 150 * US, 151 * US + 100 * US, 900 * US, 990 * US]


def test_gaps_and_trains_of_a_known_capture(tmp_path: Path) -> None:
    found = pacing.server_packets(table(tmp_path / "t.parquet", TIMES))
    assert found["gap_ns"].to_list() == [None, 100_000, 50_000, 101_000, 649_000, 90_000]
    assert found["train_packets"].to_list() == [3, 3, 3, 1, 2, 2]
    gaps = pacing.gap_distribution(found)
    assert gaps["gap_ns"].to_list() == [50_000, 90_000, 100_000, 101_000, 649_000]
    assert gaps["share"].to_list() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    trains = pacing.train_distribution(found)
    assert trains.rows() == [(1, 1 / 6), (2, 0.5), (3, 1.0)]
    assert found.select(pacing.in_short_trains()).item() == 1.0


def test_a_train_of_six_is_not_short(tmp_path: Path) -> None:
    times = [number * US for number in range(6)] + [NS, 2 * NS]
    found = pacing.server_packets(table(tmp_path / "t.parquet", times))
    assert found.select(pacing.in_short_trains()).item() == 2 / 8


def test_evenly_paced_packets_are_alone_in_their_trains(tmp_path: Path) -> None:
    """1252 bytes at 40 Mbit/s are sent every 250.4 µs."""
    times = [number * 250_400 for number in range(1000)]
    found = pacing.server_packets(table(tmp_path / "t.parquet", times))
    assert pacing.gap_distribution(found).rows() == [(250_400, 1.0)]
    assert pacing.train_distribution(found).rows() == [(1, 1.0)]


def test_distributions_are_exact_at_the_points_that_are_kept(tmp_path: Path) -> None:
    """The end of a train is one of them; a gap just beyond it counts at the next."""
    gaps = [0, 1, 99_999, 100_000, 100_001, 250_400, 10**9]
    times = [sum(gaps[:number]) for number in range(len(gaps) + 1)]
    found = pacing.distributions(pacing.server_packets(table(tmp_path / "t.parquet", times)))
    assert found.schema == pl.Schema(pacing.DISTRIBUTIONS)
    beyond, paced = round(10**5.01), round(10**5.4)
    kept = [(0, 1), (1, 1), (100_000, 2), (beyond, 1), (paced, 1), (10**9, 1)]
    # five packets, then three alone
    assert found.rows() == [("gap_ns", *row) for row in kept] + [("train_packets", 1, 3), ("train_packets", 5, 5)]


def test_metrics_of_a_run_are_quantiles_of_its_gaps(tmp_path: Path) -> None:
    found = pacing.metrics(pacing.server_packets(table(tmp_path / "t.parquet", [0, 1_000_000, 3_000_000, 6_000_000])))
    expected = {"traced_packets": 4, "gap_ms_p25": 1.5, "gap_ms": 2.0, "gap_ms_p75": 2.5, "packets_in_trains_to_5": 1.0}
    assert found == expected
    # which has no gap
    alone = pacing.metrics(pacing.server_packets(table(tmp_path / "one.parquet", [0])))
    assert alone == {"traced_packets": 1, "packets_in_trains_to_5": 1.0}


def test_only_the_server_of_one_connection_counts(tmp_path: Path) -> None:
    sides = ["to_client", "to_server", "to_client", "to_client"]
    path = table(tmp_path / "t.parquet", [0, 1, 5, 9], direction=sides, connection=[0, 0, 0, 1])
    assert pacing.server_packets(path, connection=0)["gap_ns"].to_list() == [None, 5]
    with pytest.raises(PacingError, match=r"t\.parquet: has packets of 2 connections; choose one"):
        pacing.server_packets(path)
    with pytest.raises(PacingError, match="no packet to a client"):
        pacing.server_packets(path, connection=7)


def test_times_of_the_server_must_not_run_backwards(tmp_path: Path) -> None:
    sides = ["to_client", "to_server", "to_client", "to_client"]
    # the client's packet may be stamped before the one before
    path = table(tmp_path / "t.parquet", [5, 4, 6, 9], direction=sides)
    assert pacing.server_packets(path)["gap_ns"].to_list() == [None, 1, 3]
    with pytest.raises(PacingError, match=r"t\.parquet: packets of the server are stamped before the one before"):
        pacing.server_packets(table(tmp_path / "t.parquet", [5, 6, 8, 7], direction=sides))


def test_precision_is_the_deviation_of_gaps_from_the_intended_ones(tmp_path: Path) -> None:
    found = pacing.server_packets(table(tmp_path / "t.parquet", [1000, 1110, 1190, 1300, 1400]))
    # meant to be sent every 100 ns, on another clock; of packet 3 the library does not tell
    intended = pl.DataFrame({"packet_number": [0, 1, 2, 4], "intended_ns": [0, 100, 200, 400]})
    assert pacing.deviations(found, intended).rows() == [(1, 110, 100, 10), (2, 80, 100, -20)]
    assert pacing.precision_ns(found, intended) == pytest.approx(15 * 2**0.5)
    assert pacing.precision_ns(found, intended.head(2)) is None
    # told twice, and so not known
    assert pacing.deviations(found, pl.concat([intended, intended[1:2]])).is_empty()


def test_without_packets_there_is_nothing_to_tell() -> None:
    none = with_trains(pl.LazyFrame(schema={"time_ns": pl.Int64})).collect()
    assert pacing.gap_distribution(none).is_empty()
    assert pacing.train_distribution(none).is_empty()
    assert none.select(pacing.in_short_trains()).item() is None


def test_captures_of_one_run_are_compared(tmp_path: Path) -> None:
    one = table(tmp_path / "one.parquet", TIMES)
    other = table(tmp_path / "other.parquet", [time + 77 for time in TIMES])
    assert pacing.disagreement(one, other) is None
    lost = table(tmp_path / "lost.parquet", TIMES[:-1])
    told = pacing.disagreement(one, lost)
    assert told == f"{one} and {lost}: have 6 and 5 packets; one of them lost packets: capture again"
    swapped = table(tmp_path / "swapped.parquet", TIMES, packet_number=[0, 2, 1, 3, 4, 5])
    assert "differ from frames 2 and 2 on" in str(pacing.disagreement(one, swapped))
    unknown = table(tmp_path / "unknown.parquet", TIMES, packet_number=[0, 1, None, 3, 4, 5])
    assert "differ from frames 3 and 3 on" in str(pacing.disagreement(one, unknown))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"truncated": "at byte 9: the file ends 3 bytes into a record"}, "at byte 9"),
        ({"short_frames": 1, "first_short": 1}, "snap length"),
        ({"dropped_frames": 3}, "lost 3 frames"),
        ({"unstamped_frames": 1}, "no time"),
        ({"unknown_connection": 1}, "too many connections"),
    ],
)
def test_a_capture_that_is_not_whole_does_not_count(wrong: dict[str, object], words: str) -> None:
    capture = Path("run/capture.pcap")
    pacing.counted(capture, WHOLE)
    pacing.counted(capture, WHOLE.model_copy(update={"dropped_frames": 0}))
    # of the two directions, stamped by two processors
    pacing.counted(capture, WHOLE.model_copy(update={"backward_frames": 2, "first_backward": 5}))
    with pytest.raises(PacingError) as caught:
        pacing.counted(capture, WHOLE.model_copy(update=wrong))
    told = str(caught.value)
    assert told.startswith("run/capture.pcap: ")
    assert words in told
    assert "\n" not in told
