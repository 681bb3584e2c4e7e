"""Importing "QUIC on the Highway": what counts as a result, what was really applied, and what is damaged."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from quicbed.importers import logs, names, samples, tables
from quicbed.importers.summary import Summary
from quicbed.papers import reading
from quicbed.papers.highway import perf, processed, published
from quicbed.papers.highway.samples import PROFILED, profiled
from quicbed.store import runs

LOGDIR = "results/baseline/goracle/run1"
SIZE = 8192 * samples.MIB
FAILED = {"verdict": "☠ Test failed", "before_verdict": "Client or server expired"}


def goodput(duration_s: float) -> float:
    return 8 * SIZE / duration_s / 1e6


def copy_of(
    repetitions: dict[int, dict[str, bytes]], result: dict[str, Any] | None = None, pair: str = "quiche_lsquic"
) -> dict[str, bytes]:
    files = {
        f"{LOGDIR}/{pair}/goodput/{number}/{name}": data
        for number, found in repetitions.items()
        for name, data in found.items()
    }
    return files | ({f"{LOGDIR}/result.json": json.dumps(result).encode()} if result else {})


def imported(directory: Path, files: dict[str, bytes]) -> tuple[pl.DataFrame, Summary]:
    summary = reading.read("highway", samples.write(files, directory / "copy"), directory / "out")
    return pl.read_parquet(directory / "out" / "runs.parquet"), summary


def one(directory: Path, **log: Any) -> dict[str, Any]:
    table, _ = imported(directory, copy_of({1: samples.repetition("quiche", "lsquic", 20.0, **log)}))
    return table.row(0, named=True)


def test_a_repetition_becomes_a_row_of_the_table_of_runs(tmp_path: Path) -> None:
    result = samples.result_json({("quiche", "lsquic"): [goodput(20.0)]})
    files = copy_of({1: samples.repetition("quiche", "lsquic", 20.0, parameters={"rmem_value": 6815744})}, result)
    table, summary = imported(tmp_path, files)
    assert list(table.columns[: len(runs.SCHEMA)]) == list(runs.SCHEMA)
    assert table.schema == pl.Schema(tables.RUNS)
    row = table.row(0, named=True)
    expected = {
        "source": "highway",
        "status": "ok",
        "experiment": "baseline/goracle",
        "campaign": "run1",
        "testbed": "birch-alder",
        "client_library": "lsquic",
        "server_library": "quiche",
        "client_version": "lsquic-commit",
        "repetition": 1,
        "workload": "bulk",
        "workload_bytes": SIZE,
        "wall_s": 20.0,
        "goodput_basis": "time.json",
        "client_receive_buffer": 6815744,
        "server_receive_buffer": 6815744,
        "client_send_buffer": logs.DEFAULT_BUFFER,
        "client_cpu_percent": 92.0,
        "client_udp_receive_buffer_errors": 5,
        "client_udp_packets_received": 1000,
        "aes_hardware": True,
        "parameters": '{"client": {"rmem_value": 6815744}, "server": {"rmem_value": 6815744}}',
        "unread_parameters": None,
        "cipher": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["goodput_mbps"] == pytest.approx(goodput(20.0), rel=1e-12)
    assert not summary.skipped
    assert not summary.differences


def test_it_can_be_put_together_with_our_own_runs(tmp_path: Path) -> None:
    table, _ = imported(tmp_path, copy_of({1: samples.repetition("quiche", "lsquic", 20.0)}))
    own = pl.DataFrame(schema=runs.SCHEMA)
    assert pl.concat([own, table], how="diagonal").height == 1


def test_failed_repetitions_have_no_values_and_shift_none(tmp_path: Path) -> None:
    failed = {"output.txt": samples.output("quiche", "lsquic", **FAILED), "client/time.json": samples.time_json(0.01)}
    repetitions = {n: samples.repetition("quiche", "lsquic", 20.0 + n) for n in (1, 3, 4)} | {2: failed}
    result = samples.result_json({("quiche", "lsquic"): [goodput(20.0 + n) for n in (1, 3, 4)]})
    table, summary = imported(tmp_path, copy_of(repetitions, result))
    rows = {row["repetition"]: row for row in table.to_dicts()}
    assert rows[2]["status"] == "failed"
    assert rows[2]["reason"] == "Client or server expired"
    assert rows[2]["goodput_mbps"] is None
    assert rows[2]["wall_s"] is None
    for number in (1, 3, 4):
        assert rows[number]["goodput_mbps"] == pytest.approx(goodput(20.0 + number))
    assert summary.statuses == {"ok": 3, "failed": 1}
    assert not summary.differences


@pytest.mark.parametrize(
    ("details", "told"),
    [([1.0], "another number"), ([goodput(21.0), 1.0], "other goodputs"), ([goodput(21.0)] * 3, "another number")],
)
def test_what_result_json_has_differently_is_told_and_not_taken(
    tmp_path: Path, details: list[float], told: str
) -> None:
    repetitions = {n: samples.repetition("quiche", "lsquic", 20.0 + n) for n in (1, 2)}
    table, summary = imported(tmp_path, copy_of(repetitions, samples.result_json({("quiche", "lsquic"): details})))
    assert [told in difference for difference in summary.differences] == [True]
    assert table["goodput_mbps"].to_list() == pytest.approx([goodput(21.0), goodput(22.0)])


def damaged(name: str, data: bytes | None) -> dict[str, bytes]:
    files = samples.repetition("quiche", "lsquic", 20.0)
    if data is None:
        del files[name]
    else:
        files[name] = data
    return files


@pytest.mark.parametrize(
    ("name", "data", "status", "reason"),
    [
        ("output.txt", None, "unreadable", "repetition without output.txt"),
        ("output.txt", samples.output("quiche", "lsquic")[:-30], "unreadable", "output.txt: without a verdict"),
        ("client/time.json", None, "ok", None),
        ("client/time.json", b'{"start": 17000', "ok", "time.json: truncated or corrupt JSON"),
        ("client/time.json", b'{"start": 2, "end": 1}', "ok", "time.json: an end that is not after the start"),
        ("client/ethtool-start.txt", None, "ok", "ethtool of a client without its -start half"),
        ("server/netstat-stop.txt", b"", "ok", "netstat-stop.txt: no counters of netstat"),
        ("client/pidstat.txt", samples.pidstat([1, 2, 3, 4]), "ok", "pidstat.txt: no sample left"),
        ("client/ethtool-stop.txt", samples.ethtool(2, 1), "ok", "ethtool counter of a client that is lower after"),
    ],
)
def test_damaged_and_missing_files_are_told_and_cost_no_more_than_their_values(
    tmp_path: Path, name: str, data: bytes | None, status: str, reason: str | None
) -> None:
    other = samples.repetition("quiche", "lsquic", 25.0)
    table, summary = imported(tmp_path, copy_of({1: damaged(name, data), 2: other}))
    first, second = table.sort("repetition").to_dicts()
    assert (first["status"], second["status"]) == (status, "ok")
    assert second["goodput_mbps"] == pytest.approx(goodput(25.0))
    if reason is not None:
        assert any(told.startswith(reason) for told in summary.skipped), summary.skipped
    if status == "ok":
        assert first["goodput_mbps"] == pytest.approx(goodput(20.0), rel=1e-4)
        assert first["goodput_basis"] == ("output.txt" if name == "client/time.json" else "time.json")
    else:
        assert first["goodput_mbps"] is None
        assert first["reason"]


def test_a_truncated_result_json_costs_versions_only(tmp_path: Path) -> None:
    files = copy_of({1: samples.repetition("quiche", "lsquic", 20.0)})
    files[f"{LOGDIR}/result.json"] = b'{"measurements": [['
    table, summary = imported(tmp_path, files)
    assert table["status"].to_list() == ["ok"]
    assert table["client_version"].to_list() == [None]
    assert summary.skipped == {"result.json: truncated or corrupt JSON": 1}


def test_foreign_files_are_counted_by_reason(tmp_path: Path) -> None:
    files = copy_of({1: samples.repetition("quiche", "lsquic", 20.0)}) | {
        f"{LOGDIR}/quiche_lsquic/goodput/1/server/keys.log": b"x",
        "README.md": b"x",
    }
    _, summary = imported(tmp_path, files)
    assert sorted(summary.skipped.values()) == [1, 1]


def test_a_logdir_itself_can_be_imported(tmp_path: Path) -> None:
    result = samples.result_json({("quiche", "lsquic"): [goodput(20.0)]})
    whole = copy_of({1: samples.repetition("quiche", "lsquic", 20.0)}, result)
    files = {name.removeprefix(f"{LOGDIR}/"): data for name, data in whole.items()}
    table, summary = imported(tmp_path, files)
    assert table["client_version"].to_list() == ["lsquic-commit"]
    assert not summary.differences


# ---- what was applied ------------------------------------------------------------------------------------------------


def test_a_misspelt_parameter_leaves_the_default(tmp_path: Path) -> None:
    row = one(tmp_path, parameters={"rmem_valu": 6815744})
    assert row["client_receive_buffer"] == logs.DEFAULT_BUFFER
    assert "rmem_valu" in row["unread_parameters"]
    assert row["parameters"] is None


def test_a_buffer_without_the_script_that_sets_it_leaves_the_default(tmp_path: Path) -> None:
    row = one(tmp_path, parameters={"rmem_value": 6815744}, scripts=["run-ethtool.sh"])
    assert row["server_receive_buffer"] == logs.DEFAULT_BUFFER


def test_a_cipher_that_nothing_reads_is_none(tmp_path: Path) -> None:
    row = one(tmp_path, parameters={"cipher": "TLS_CHACHA20_POLY1305_SHA256"})
    assert row["cipher"] is None
    assert "TLS_CHACHA20_POLY1305_SHA256" in row["unread_parameters"]


def test_a_parameter_that_the_library_reads_is_applied(tmp_path: Path) -> None:
    row = one(tmp_path, parameters={"CC_ALGO": 2})
    # the server is quiche, whose script does not read it
    assert json.loads(row["parameters"]) == {"client": {"CC_ALGO": 2}, "server": {}}
    assert json.loads(row["unread_parameters"]) == {"client": {}, "server": {"CC_ALGO": 2}}


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ({}, True),
        ({"client": logs.AES_SWITCH + '"~0x2" ', "server": logs.AES_SWITCH + '"~0x2" '}, False),
        ({"client": logs.AES_SWITCH + '"~0x2" '}, None),
    ],
)
def test_the_aes_switch_is_seen_in_the_commands(tmp_path: Path, prefix: dict[str, str], expected: bool | None) -> None:
    assert one(tmp_path, prefix=prefix)["aes_hardware"] is expected


def test_runs_that_belong_together_have_one_cell_across_logdirs(tmp_path: Path) -> None:
    small = samples.repetition("quiche", "quiche", 20.0, parameters={"rmem_value": 106496})
    large = samples.repetition("quiche", "quiche", 20.0, parameters={"rmem_value": 6815744})
    places = {"run1/buffer-small": small, "run1/buffer-large": large, "run2/buffer-small": small}
    files = {
        f"results/buffer/{place}/quiche_quiche/goodput/1/{name}": data
        for place, found in places.items()
        for name, data in found.items()
    }
    table, _ = imported(tmp_path, files)
    cells = {f"{row['experiment']}/{row['campaign']}": row["cell"] for row in table.to_dicts()}
    assert cells["buffer/run1/buffer-small"] == cells["buffer/run2/buffer-small"] != cells["buffer/run1/buffer-large"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quiche", ("quiche", "stock")),
        ("quiche-aes", ("quiche", "aes")),
        ("quic-go", ("quic-go", "stock")),
        ("quic-go-march", ("quic-go", "march")),
        ("tls1.3", ("tcp-tls", "stock")),
        ("tcp+tls", ("tcp-tls", "stock")),
        ("quicly", ("quicly", "stock")),
    ],
)
def test_a_name_is_a_library_and_a_build(name: str, expected: tuple[str, str]) -> None:
    assert names.library(name) == expected


# ---- counters --------------------------------------------------------------------------------------------------------


def test_counters_of_queues_are_summed_and_others_kept(tmp_path: Path) -> None:
    imported(tmp_path, copy_of({1: samples.repetition("quiche", "lsquic", 20.0, queues=3, packets=70)}))
    table = pl.read_parquet(tmp_path / "out" / "counters.parquet")
    client = table.filter(pl.col("role") == "client")
    counted = {(row["tool"], row["counter"]): row["delta"] for row in client.to_dicts()}
    assert counted["ethtool", "*: rx_ucast_packets"] == 210
    assert counted["ethtool", "*: tx_errors"] == 0
    assert counted["netstat", "Udp: receive buffer errors"] == 5
    assert counted["netstat", "Udp: IgnoredMulti"] == 0
    assert counted["netstat", "IpExt: InOctets"] == 0


def test_a_counter_that_fell_costs_only_itself(tmp_path: Path) -> None:
    files = samples.repetition("quiche", "lsquic", 20.0, more={"rx_ring_level": 900})
    files["server/ethtool-stop.txt"] = files["server/ethtool-stop.txt"].replace(b"level: 900", b"level: 12")
    _, summary = imported(tmp_path, copy_of({1: files}))
    table = pl.read_parquet(tmp_path / "out" / "counters.parquet").filter(pl.col("tool") == "ethtool")
    found = {(row["role"], row["counter"]): row["delta"] for row in table.to_dicts()}
    assert found["client", "rx_ring_level"] == 0
    assert ("server", "rx_ring_level") not in found
    assert found["server", "*: rx_ucast_packets"] == found["client", "*: rx_ucast_packets"] == 2000
    assert summary.skipped == {"ethtool counter of a server that is lower after the repetition than before it": 1}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("     [17]: rx_discards: 4", "*: rx_discards"),
        ("     rx_queue_3_packets: 4", "rx_queue_*_packets"),
        ("     tx-12.bytes: 4", "tx-*.bytes"),
        ("     rx7_xdp_drop: 4", "rx*_xdp_drop"),
        ("     rx_1024_to_1522_byte_packets: 4", "rx_1024_to_1522_byte_packets"),
        ("     port.rx_size_64: 4", "port.rx_size_64"),
        ("     rx_bytes_pri0: 4", "rx_bytes_pri0"),
    ],
)
def test_names_of_counters_differ_by_driver(line: str, name: str) -> None:
    assert logs.parse_ethtool(f"NIC statistics:\n{line}\n".encode()) == {name: 4}


@pytest.mark.parametrize("time", ["03:04:05", "03:04:05 PM", "\uc624\ud6c4 03\uc2dc 04\ubd84 05\ucd08", "1700000000"])
@pytest.mark.parametrize("command", ["server", "the server --port 4433"])
@pytest.mark.parametrize("begin", ["", "# "])
def test_pidstat_with_times_and_commands_of_several_words(time: str, command: str, begin: str) -> None:
    names = "UID       PID    %usr %system  %guest   %wait    %CPU   CPU  Command"
    rows = [
        f"{time}     0      1234   50.00   10.00    0.00    0.00   {cpu}     1  {command}"
        for cpu in (0, 0, 50, 70, 0, 0)
    ]
    average = f"Average:   0      1234   50.00   10.00    0.00    0.00   99     -  {command}"
    text = "\n".join(["Linux 6.1 (host)", "", f"{begin}{time} {names}", *rows, average, ""])
    assert logs.parse_pidstat(text.encode()) == 60.0


def test_pidstat_with_hours_of_one_word_is_read_too() -> None:
    text = samples.pidstat([0, 0, 50, 70, 0, 0]).decode().replace(" PM ", " ")
    assert logs.parse_pidstat(text.encode()) == 60.0


# ---- perf ------------------------------------------------------------------------------------------------------------

PERF = """\
swapper     0 [000]   100.000001:     501501 cycles:
\tffffffff81000000 native_safe_halt+0xe ([kernel.kallsyms])

quiche-server  77 [004]   100.500000:     501501 cycles:
\t        55d0aa aes_gcm_enc+0x1b (/opt/quiche-server)
\t        55d0bb quiche::send+0x40 (/opt/quiche-server)

:-1    -1 [000]   100.600001:         16 cycles:
\tffffffff81000000 native_safe_halt+0xe ([kernel.kallsyms])

quiche-server  77 [004]   100.700000:       1000 cycles:
\tffffffff81000aaa __sys_sendmsg+0x1 ([kernel.kallsyms])
\t        7f0000 [unknown] (/usr/lib/libc.so.6)

quiche-server  77 [004]   100.800000:     501501 cycles:
\t        55d0cc something_else+0x1 (/opt/quiche-server)

swapper     0 [000]   100.900001:     501501 cycles:
\tffffffff81000000 native_safe_halt+0xe ([kernel.kallsyms])

"""
MAPPING = {"regex:.*aes.*": "CRYPTO (AES)", "regex:.*sendmsg.*": "PACKET_IO (send)", "regex:.*quiche.*;.*": "GENERAL"}


def compressed(text: str) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=text.encode(), capture_output=True, check=True).stdout


def test_samples_are_trimmed_to_the_endpoint_and_folded() -> None:
    profile = perf.fold(compressed(PERF), "quiche-server")
    # three of the endpoint and one of another process between them
    assert profile.all_samples == 2 * 501501 + 1000 + 16
    assert profile.stacks == {
        "quiche-server;quiche::send;aes_gcm_enc": 501501,
        "quiche-server;[libc.so.6];__sys_sendmsg": 1000,
        "quiche-server;something_else": 501501,
    }


def test_samples_without_periods_count_once() -> None:
    profile = perf.fold(compressed(PERF.replace(" 501501 ", " ").replace(" 1000 ", " ")), "quiche-server")
    assert sorted(profile.stacks.values()) == [1, 1, 1]


def perf_copy(text: str = PERF) -> dict[str, bytes]:
    files = samples.repetition("quiche", "quiche", 20.0) | {"server/out.perf.zst": compressed(text)}
    return copy_of({1: files}, pair="quiche_quiche")


def test_the_first_matching_expression_of_the_mapping_in_the_copy_decides(tmp_path: Path) -> None:
    mapping = {"analysis-pipeline/util/perf/mappings/quiche.json": json.dumps(MAPPING).encode()}
    imported(tmp_path, mapping | perf_copy())
    table = pl.read_parquet(tmp_path / "out" / "cpu_shares.parquet")
    assert {row["category"]: row["samples"] for row in table.to_dicts()} == {
        "CRYPTO": 501501,
        "PACKET_IO": 1000,
        "GENERAL": 501501,
    }
    assert table["endpoint_samples"].unique().to_list() == [1004002]
    assert table["all_samples"].unique().to_list() == [1004018]
    assert table["role"].unique().to_list() == ["server"]


def test_made_up_recordings_are_read_as_real_ones() -> None:
    files = dict(profiled(1, 300))
    recordings = [name for name in files if name.endswith(published.PERF_FILE)]
    assert len(recordings) == 2 * len(PROFILED)
    (mapping,) = (data for name, data in files.items() if name.endswith("perf/mappings/quiche.json"))
    recording = files["results/perf/goracle/optimized/run1/quiche_quiche/goodput/1/server/out.perf.zst"]
    found, endpoint, everything = perf.shares(recording, "quiche-server", perf.mapping(json.loads(mapping)))
    assert 0.8 < endpoint / everything < 1
    assert sum(found.values()) == endpoint  # every stack is in a category
    assert sum(value > 0 for value in found.values()) > 3


def test_recordings_before_their_mapping_in_an_archive_count_too(tmp_path: Path) -> None:
    name = "analysis-pipeline/util/perf/mappings/quiche.json"
    files = {name: json.dumps(MAPPING).encode()} | perf_copy()
    archive = samples.pack_files(reversed(files.items()), tmp_path / "copy.tar.gz")
    first = reading.read("highway", samples.write(files, tmp_path / "copy"), tmp_path / "a")
    second = reading.read("highway", archive, tmp_path / "b")
    assert (tmp_path / "a" / "cpu_shares.parquet").read_bytes() == (tmp_path / "b" / "cpu_shares.parquet").read_bytes()
    # what is read in a second pass is told once
    assert second.text() == first.text()


def test_without_a_mapping_samples_are_left_out(tmp_path: Path) -> None:
    _, summary = imported(tmp_path, perf_copy())
    assert any("perf/mappings/quiche.json" in reason for reason in summary.skipped)
    assert not (tmp_path / "out" / "cpu_shares.parquet").exists()


@pytest.mark.parametrize(
    ("text", "told"), [("not perf\n", "not the text"), (PERF.replace("quiche-", "q-"), "no sample")]
)
def test_a_recording_of_something_else_is_told(tmp_path: Path, text: str, told: str) -> None:
    mapping = {"analysis-pipeline/util/perf/mappings/quiche.json": json.dumps(MAPPING).encode()}
    _, summary = imported(tmp_path, mapping | perf_copy(text))
    assert any(told in reason for reason in summary.skipped)


# ---- processed.csv ---------------------------------------------------------------------------------------------------


def csv_of(*rows: dict[str, Any], logdir: str = f"../../{LOGDIR}") -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    table = csv.DictWriter(text, ["logdir", "server", "client", *names], lineterminator="\n")
    table.writeheader()
    table.writerows({"logdir": logdir, "server": "quiche", "client": "lsquic"} | row for row in rows)
    return text.getvalue().encode()


def compared(directory: Path, files: dict[str, bytes]) -> tuple[list[tuple[Any, ...]], Summary]:
    """What `processed.parquet` has on differences, and the summary."""
    _, summary = imported(directory, files)
    table = pl.read_parquet(directory / "out" / "processed.parquet")
    assert table.schema == pl.Schema(tables.PROCESSED)
    found = table.filter(pl.col("problem").is_not_null()).select("origin", "quantity", "processed", "raw", "problem")
    return sorted((origin.rpartition("/")[2], *rest) for origin, *rest in found.rows()), summary


def test_values_that_the_parser_shifted_are_listed(tmp_path: Path) -> None:
    repetitions = {
        1: samples.repetition("quiche", "lsquic", 20.0),
        2: samples.repetition("quiche", "lsquic", 0.01, verdict="Test failed"),
        3: samples.repetition("quiche", "lsquic", 25.0),
        4: samples.repetition("quiche", "lsquic", 30.0),
    }
    # as by position among the successful ones
    table = csv_of(
        {"repetition": 1, "goodput": goodput(20.0), "client_runtime": 20.0},
        {"repetition": 2, "goodput": goodput(25.0), "client_runtime": 0.01},
        {"repetition": 3, "goodput": goodput(30.0), "client_runtime": 25.0},
        {"repetition": 5, "goodput": 1.0},
    )
    for path in ("results/baseline/goracle/processed.csv", "results/baseline/processed.csv"):
        found, summary = compared(tmp_path / path.replace("/", "-"), copy_of(repetitions) | {path: table})
        assert found == [
            ("2", "goodput_mbps", pytest.approx(goodput(25.0)), None, processed.ONLY_PROCESSED),
            ("2", "wall_s", 0.01, None, processed.ONLY_PROCESSED),
            ("3", "goodput_mbps", pytest.approx(goodput(30.0)), pytest.approx(goodput(25.0)), processed.OTHER),
            ("4", None, None, None, processed.MISSING),
            ("5", None, None, None, processed.NOT_THERE),
        ]
        assert summary.differences["processed.csv has another value of goodput_mbps; the raw files count"] == 1


def test_the_numbers_of_perf_are_compared_as_shares(tmp_path: Path) -> None:
    mapping = {"analysis-pipeline/util/perf/mappings/quiche.json": json.dumps(MAPPING).encode()}
    right, total = 501501 / 1004018, 1004018
    cell = {"SUM_SAMPLES": total, "OVERVIEW": {"CRYPTO": 501501, "PACKET_IO": total // 2, "UNKNOWN": 1}}
    row = {"server": "quiche", "client": "quiche", "repetition": 1, "server_perf": str(cell), "client_perf": "{"}
    files = mapping | perf_copy() | {"results/baseline/processed.csv": csv_of(row)}
    found, _ = compared(tmp_path, files)
    assert [(name, problem) for _, name, *_, problem in found] == [("server_PACKET_IO_percent", processed.OTHER)]
    table = pl.read_parquet(tmp_path / "out" / "processed.parquet")
    assert table.filter(pl.col("quantity") == "server_CRYPTO_percent")["raw"].item() == pytest.approx(100 * right)


def test_a_table_that_names_no_repetitions_is_told(tmp_path: Path) -> None:
    files = copy_of({1: samples.repetition("quiche", "lsquic", 20.0)})
    _, summary = imported(tmp_path, files | {"results/processed.csv": b"goodput\n1\n"})
    assert summary.skipped == {"processed.csv: without the columns logdir, server, client, repetition": 1}
    assert not (tmp_path / "out" / "processed.parquet").exists()
