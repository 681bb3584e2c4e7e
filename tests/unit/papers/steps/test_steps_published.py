"""Importing "QUIC Steps": gaps and trains within repetitions, and the logs of its archives."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from quicbed.importers import samples, tables
from quicbed.importers.summary import Summary
from quicbed.papers import reading
from quicbed.papers.steps import published
from quicbed.papers.steps.samples import gap_files
from quicbed.wire.trains import TRAIN_GAP_NS

CONFIG = "quiche-cubic"
DATA = f"analysis/build/data/{CONFIG}"
DETAILED = f"results/detailed/{CONFIG}"
MS = 1_000_000
# a train of two, one of three (0.1 ms still belongs to it), one of one
TIMES = [0, 50_000, 2 * MS, 2 * MS + 100_000, 2 * MS + 110_000, 2 * MS + 210_001]
TRACE = "++ pos_get_variable -r cc\n+ CC=bbr\n++ pos_get_variable -r gso\n+ GSO=1"


def packets(times: list[int], frame: int = 1482, number: int = -1) -> bytes:
    return json.dumps([[time, 7_000_000 + time, frame, number] for time in times]).encode()


def gaps(times: list[int]) -> bytes:
    return json.dumps([(b - a) / 1e6 for a, b in itertools.pairwise(times)]).encode()


def imported(directory: Path, files: dict[str, bytes]) -> Summary:
    return reading.read("steps", samples.write(files, directory / "copy"), directory / "out")


def table(directory: Path, config: str = CONFIG) -> pl.DataFrame:
    return pl.read_parquet(directory / "out" / "gaps" / f"{config}.parquet")


# ---- gaps ------------------------------------------------------------------------------------------------------------


def test_trains_end_where_a_gap_is_longer_than_a_tenth_of_a_millisecond(tmp_path: Path) -> None:
    imported(tmp_path, {f"{DATA}/{CONFIG}-rep1.pcap.json": packets(TIMES)})
    found = table(tmp_path)
    assert found["gap_ns"].to_list() == [None, 50_000, 2 * MS - 50_000, 100_000, 10_000, 100_001]
    assert found["train_packets"].to_list() == [2, 2, 3, 3, 3, 1]
    assert found["frame_bytes"].unique().to_list() == [1482]
    assert found["packet_number"].unique().to_list() == [None]
    assert found.select("source", "config").unique().rows() == [("steps", CONFIG)]


def test_gaps_and_trains_are_those_of_the_definition_on_random_packets(tmp_path: Path) -> None:
    whole, only_gaps = gap_files(500, seed=3)
    expected_gaps = [round(gap * 1e6) for gap in json.loads(only_gaps)]
    expected: list[int] = []
    train = 1
    for gap in [*expected_gaps, None]:
        if gap is not None and gap <= TRAIN_GAP_NS:
            train += 1
        else:
            expected += [train] * train
            train = 1
    for name, data in (("pcap", whole), ("ipg", only_gaps)):
        imported(tmp_path / name, {f"{DATA}/{CONFIG}-rep1.{name}.json": data})
        found = table(tmp_path / name)
        assert found["gap_ns"].to_list() == [None, *expected_gaps]
        assert found["train_packets"].to_list() == expected


def test_gaps_are_not_joined_across_repetitions_and_the_unnumbered_one_is_another(tmp_path: Path) -> None:
    files = {f"{DATA}/{CONFIG}{suffix}.pcap.json": packets(TIMES[:2]) for suffix in ("", "-rep1", "-rep10", "-rep2")}
    summary = imported(tmp_path, files)
    found = table(tmp_path)
    assert found["repetition"].to_list() == [0, 0, 1, 1, 2, 2, 10, 10]
    assert found["gap_ns"].to_list() == [None, 50_000] * 4
    assert summary.tables == {f"gaps/{CONFIG}": 8, "runs": 0, "counters": 0}
    assert pl.read_parquet(tmp_path / "out" / "runs.parquet").schema == pl.Schema(tables.RUNS)


def test_the_gap_file_is_read_only_where_there_are_no_packets(tmp_path: Path) -> None:
    files = {
        f"{DATA}/{CONFIG}-rep1.pcap.json": packets(TIMES, number=5),
        f"{DATA}/{CONFIG}-rep1.ipg.json": gaps([0, 1]),
        f"{DATA}/{CONFIG}-rep2.ipg.json": gaps(TIMES),
        f"{DATA}/{CONFIG}-rep3.pcap.json": packets(TIMES)[:-9],
        f"{DATA}/{CONFIG}-rep3.ipg.json": gaps(TIMES),
    }
    summary = imported(tmp_path, files)
    found = table(tmp_path)
    first = found.filter(pl.col("repetition") == 1)
    for number in (2, 3):
        other = found.filter(pl.col("repetition") == number)
        assert other["gap_ns"].to_list() == first["gap_ns"].to_list()
        assert other["train_packets"].to_list() == first["train_packets"].to_list()
        assert other["frame_bytes"].null_count() == other.height
    assert first["packet_number"].to_list() == [5] * len(TIMES)
    assert sorted(summary.skipped.values()) == [1, 1]
    assert summary.differences["no usable .pcap.json: frame lengths and packet numbers are null"] == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (packets(TIMES)[:-1], "truncated JSON"),
        (b'{"packets": []}', "truncated JSON, or not a list"),
        (b"[[0, 1, 2], [3, 4, 5]]", "JSON of"),
        (b"[[0, 1, 2, 3], [4, 5, 6]]", "JSON of"),
        (b"[[0, 1, 2, 3, 4]]", "numbers"),
        (b'[[0, 1, 2, "x"]]', "numbers"),
        (b"[[0, 1, 2, null]]", "numbers"),
        (b"", "truncated JSON"),
    ],
)
def test_a_damaged_gap_file_costs_only_itself(tmp_path: Path, data: bytes, reason: str) -> None:
    files = {f"{DATA}/{CONFIG}-rep1.pcap.json": data, f"{DATA}/{CONFIG}-rep2.pcap.json": packets(TIMES)}
    summary = imported(tmp_path, files)
    assert table(tmp_path)["repetition"].unique().to_list() == [2]
    assert len(summary.skipped) == 1
    assert reason in next(iter(summary.skipped))


def test_white_space_and_packets_of_an_empty_repetition_do_not_matter() -> None:
    assert published.parse_packets(b" [ [0,1,\n2,-1],\t[3,4,5,6] ]\n").rows() == [(0, 1, 2, -1), (3, 4, 5, 6)]
    assert published.parse_packets(b"[]").height == 0
    assert published.parse_gaps(b"[]")["time_ns"].to_list() == [0]


def test_an_archive_whose_files_are_in_any_order_gives_the_same(tmp_path: Path) -> None:
    files = {}
    for config in (CONFIG, "picoquic-bbr"):
        for number in (1, 2):
            stem = f"analysis/build/data/{config}/{config}-rep{number}"
            files[f"{stem}.pcap.json"] = packets(TIMES[: 3 + number])
            files[f"{stem}.ipg.json"] = gaps(TIMES[: 3 + number])
    imported(tmp_path, files)
    # gap files of both configurations first, then packets, the configurations in turn
    order = sorted(files, key=lambda name: (name.endswith("pcap.json"), name.rpartition("rep")[2], name))
    archive = samples.pack_files(((name, files[name]) for name in order), tmp_path / "copy.tar")
    reading.read("steps", archive, tmp_path / "other" / "out")
    for config in (CONFIG, "picoquic-bbr"):
        assert table(tmp_path / "other", config).equals(table(tmp_path, config))


# ---- logs ------------------------------------------------------------------------------------------------------------


def archive(directory: Path, config: str, **changes: Any) -> bytes:
    """The logs of a repetition, with the AppleDouble files of the published archives."""
    log = {"parameters": {"cc": "cubic", "rtt": 40, "wmem_value": 52428800}, "size": 100 * samples.MIB} | changes
    log = {"scripts": ["set-sendbuf.sh", "set-rtt-netem.sh", "setup-fq.sh"]} | log
    files = samples.repetition("quiche", "quiche", 25.0, **log) | {"client/tc-stats.txt": samples.tc_stats(155)}
    inside = {f"{config}-rep1/quiche_quiche/goodput/1/{name}": data for name, data in files.items()}
    inside |= {f"{config}-rep1/quiche_quiche/goodput/1/._output.txt": b"\0mac", f"{config}-rep1/spre_x.sh": b"x"}
    packed = samples.pack_files(inside.items(), directory / "packed.tar").read_bytes()
    return subprocess.run(["zstd", "-qc"], input=packed, capture_output=True, check=True).stdout


def row(directory: Path, config: str = CONFIG, **changes: Any) -> tuple[dict[str, Any], Summary]:
    data = archive(directory, config, **changes)
    summary = imported(directory, {f"results/detailed/{config}/{config}-rep7.tar.zst": data})
    return pl.read_parquet(directory / "out" / "runs.parquet").row(0, named=True), summary


def test_a_repetition_has_the_bottleneck_that_tc_showed(tmp_path: Path) -> None:
    parameters = {"cc": "cubic", "gso": 1, "wmem_value": 52428800}
    found, summary = row(tmp_path, traces={"server": TRACE}, parameters=parameters)
    expected = {
        "source": "steps",
        "status": "ok",
        "experiment": CONFIG,
        "repetition": 7,
        "bottleneck_dropped": 155,
        "bottleneck_queue": 143,
        "rate_mbit": 40.0,
        "rtt_ms": 40.0,
        "congestion_control": "cubic",
        "gso": "1",
        "qdisc": "fq",
        "server_send_buffer": 52428800,
        "server_receive_buffer": 212992,
        "workload_bytes": 100 * samples.MIB,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["goodput_mbps"] == pytest.approx(8 * 100 * samples.MIB / 25.0 / 1e6)
    assert not summary.skipped
    assert not summary.differences


def test_a_congestion_control_that_nothing_reads_is_null(tmp_path: Path) -> None:
    found, summary = row(tmp_path)
    assert found["congestion_control"] is None
    assert json.loads(found["unread_parameters"])["server"] == {"cc": "cubic"}
    assert any("nothing shows quiche reading" in told for told in summary.differences)


def test_a_name_that_contradicts_what_was_applied_is_told(tmp_path: Path) -> None:
    found, summary = row(tmp_path, config="quiche-bbr", traces={"server": TRACE})
    assert found["congestion_control"] == "cubic"
    assert summary.differences == {"named after bbr, but the server got cubic, which counts": 1}


def test_a_failed_repetition_has_no_values(tmp_path: Path) -> None:
    found, _ = row(tmp_path, verdict="☠ Test failed", traces={"server": TRACE})
    assert found["status"] == "failed"
    assert found["goodput_mbps"] is None
    assert found["bottleneck_dropped"] is None


def test_a_damaged_archive_is_told_and_others_are_read(tmp_path: Path) -> None:
    whole = archive(tmp_path, CONFIG, traces={"server": TRACE})
    files = {
        f"{DETAILED}/{CONFIG}-rep1.tar.zst": whole,
        f"{DETAILED}/{CONFIG}-rep2.tar.zst": whole[: len(whole) // 2],
        f"{DETAILED}/{CONFIG}-rep3.tar.zst": b"nothing of the kind",
        "results/pcaps/quiche-cubic/quiche-cubic-rep1.pcap.zst": b"x",
    }
    summary = imported(tmp_path, files)
    found = pl.read_parquet(tmp_path / "out" / "runs.parquet")
    assert found.select("repetition", "status").rows() == [(1, "ok"), (2, "unreadable"), (3, "unreadable")]
    assert sum(count for reason, count in summary.skipped.items() if reason.startswith("damaged archive")) == 2
    assert any(reason.startswith("capture;") for reason in summary.skipped)


def test_gaps_of_a_failed_repetition_are_left_out(tmp_path: Path) -> None:
    files = {
        f"{DETAILED}/{CONFIG}-rep1.tar.zst": archive(tmp_path, CONFIG, verdict="☠ Test failed"),
        f"{DETAILED}/{CONFIG}-rep2.tar.zst": archive(tmp_path, CONFIG),
        f"{DATA}/{CONFIG}-rep1.pcap.json": packets(TIMES),
        f"{DATA}/{CONFIG}-rep2.pcap.json": packets(TIMES),
    }
    summary = imported(tmp_path, files)
    assert table(tmp_path)["repetition"].unique().to_list() == [2]
    assert summary.skipped == {"gaps of a repetition that is no result": 1}
    assert summary.tables[f"gaps/{CONFIG}"] == len(TIMES)


def test_gaps_of_repetitions_without_logs_are_told(tmp_path: Path) -> None:
    files = {
        f"{DETAILED}/{CONFIG}-rep1.tar.zst": archive(tmp_path, CONFIG, traces={"server": TRACE}),
        f"{DATA}/{CONFIG}-rep1.pcap.json": packets(TIMES),
        f"{DATA}/{CONFIG}-rep2.pcap.json": packets(TIMES),
    }
    summary = imported(tmp_path, files)
    assert summary.differences == {"gaps without logs: whether the repetition succeeded is not known": 1}
