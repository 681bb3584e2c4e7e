"""Tables of what lies beside runs, in directories and archives: connections, times of primitives, handshakes."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from quicbed.cli.commands import main
from quicbed.report import page as report
from quicbed.store import details, paths, runs
from quicbed.store.record import RunsError

EXPERIMENT = "table2-kem"
MS = 1_000_000


def connection(index: int, *, begin: int = 10**12, tcp: bool = False, **changes: Any) -> dict[str, Any]:
    """What both ends have in common; times are set by the roles."""
    return {
        "event": "connection",
        "index": index,
        "t_client_hello": begin + index * 20 * MS,
        "hello_retry_request": False,
        "retry": None if tcp else False,
        "handshake_packets_sent": None if tcp else 3 + index,
        "handshake_bytes_sent": None if tcp else 2400 + index,
        "packets_sent": None if tcp else 7,
        "packets_lost": None if tcp else 0,
        "cpu_user_ns": 2 * MS,
        "cpu_system_ns": MS // 2,
    } | changes


def client_connection(index: int, ttfb_ms: float = 1.5, **changes: Any) -> dict[str, Any]:
    event = connection(index, **changes)
    begin = event["t_client_hello"]
    return event | {
        "t_handshake_complete": begin + int(ttfb_ms * MS),
        "t_handshake_confirmed": begin + int((ttfb_ms + 1) * MS),
        "t_first_byte": begin + int((ttfb_ms + 2) * MS),
    }


def jsonl(*events: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(event)}\n" for event in [{"event": "start"}, *events, {"event": "end"}])


def make_run(**changes: Any) -> dict[str, Any]:
    run = {
        "format": 2,
        "experiment": EXPERIMENT,
        "link": {"mode": "wire", "mtu": 1500, "rate_mbit": None, "rtt_ms": 0},
        "workload": {"kind": "handshake", "bytes": 1, "connections": 2},
        "metrics": {"connections": 2, "ttfb_ms": 1.5},
    }
    return fakeruns.make_run(**run | changes)


def write_handshakes(raw: Path, block: int = 0, times_ms: tuple[float, ...] = (1.5, 2.5), **changes: Any) -> Path:
    """A run of several connections with the events of both ends."""
    directory = fakeruns.write_run(raw, make_run(block=block, **changes))
    clients = [client_connection(index, time) for index, time in enumerate(times_ms)]
    servers = [connection(index, cpu_user_ns=4 * MS) for index in range(len(times_ms))]
    (directory / "client.jsonl").write_text(jsonl(*clients), encoding="utf-8")
    (directory / "server.jsonl").write_text(jsonl(*servers), encoding="utf-8")
    return directory


def primitive(**changes: Any) -> dict[str, Any]:
    return {
        "event": "primitive",
        "kind": "group",
        "name": "kyber768",
        "operation": "keygen",
        "implementation": "liboqs 0.13.0",
        "samples_ns": [40_000, 10_000, 30_000, 21_000],
        "bytes": 1184,
    } | changes


def write_primitives(raw: Path, *events: dict[str, Any]) -> Path:
    cell = {"id": "00000002", "slug": "quinn-primitives", "arm": "primitives", "label": "primitives", "baseline": None}
    workload = {"kind": "primitives", "bytes": None, "connections": None}
    directory = fakeruns.write_run(raw, make_run(cell=cell, workload=workload, metrics={}))
    (directory / "primitives.jsonl").write_text(jsonl(*(events or [primitive()])), encoding="utf-8")
    return directory


def captured(index: int, **changes: Any) -> dict[str, Any]:
    """One object of handshakes.json, as far as it is tabulated."""
    sent = {
        "packets": 4,
        "datagrams": 3,
        "bytes": 3600,
        "ack_only_packets": 1,
        "levels": {"initial": {"packets": 3, "bytes": 2466}, "handshake": {"packets": 1, "bytes": 104}},
    }
    answer = {
        "packets": 5,
        "datagrams": 4,
        "bytes": 3169,
        "ack_only_packets": 0,
        "levels": {"1rtt": {"packets": 1, "bytes": 70}, "handshake": {"packets": 2, "bytes": 1332}},
    }
    sizes = ("client_hello", "server_hello", "certificate", "certificate_verify", "signature")
    messages = {name: 100 * position for position, name in enumerate(sizes, start=1)}
    return {
        "index": index,
        "client": sent,
        "server": answer,
        "retry": False,
        "hello_retry_request": False,
        "messages": messages | {"client_key_share": 1184, "server_key_share": 1088},
        "amplification": {"bytes_before_validation": 3169, "limit_hits": 2, "round_trips_blocked": 1},
        "server_flights": 3,
    } | changes


def write_proof(raw: Path, *handshakes: dict[str, Any], rtt_ms: float = 0) -> Path:
    cell = {"id": "0000000f", "slug": "quinn-kyber768", "arm": "proof", "label": "Kyber768", "baseline": None}
    link = {"mode": "wire", "mtu": 1500, "rate_mbit": None, "rtt_ms": rtt_ms}
    run = make_run(cell=cell, block=None, link=link, experiment="proofs")
    directory = raw / "local" / "proofs" / run["campaign"] / f"quinn-kyber768-{cell['id']}"
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (directory / "handshakes.json").write_text(json.dumps(handshakes or [captured(0)]), encoding="utf-8")
    return directory


# ---- what the tables hold


def test_connections_stand_in_their_order_with_the_times_of_the_client_and_counts_of_both(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    second = write_handshakes(raw, 1, tuple(3 + index / 8 for index in range(12)))
    first = write_handshakes(raw, 0)
    found = details.read(raw)
    assert found.problems == []
    table = found.connections
    assert table.schema == pl.Schema(details.CONNECTIONS)
    origins = [directory.relative_to(tmp_path).as_posix() for directory in (first, second)]
    assert table["origin"].to_list() == [origins[0]] * 2 + [origins[1]] * 12
    assert table["block"].to_list() == [0] * 2 + [1] * 12
    assert table["index"].to_list() == [0, 1, *range(12)], "by number, not as text"
    assert table["ttfb_ms"].to_list() == [1.5, 2.5, *(3 + index / 8 for index in range(12))]
    row = table.row(1, named=True)
    assert (row["confirmed_ms"], row["first_byte_ms"]) == (3.5, 4.5)
    assert (row["client_cpu_ms"], row["server_cpu_ms"]) == (2.5, 4.5)
    assert (row["client_handshake_packets_sent"], row["server_handshake_bytes_sent"]) == (4, 2401)
    assert (row["experiment"], row["library"], row["build"]) == (EXPERIMENT, "quinn", "quinn-stock-000000000001")
    assert row["t_client_hello"] == 10**12 + 20 * MS
    assert (row["hello_retry_request"], row["retry"]) == (False, False)


def test_what_an_end_does_not_know_is_null_and_not_zero(tmp_path: Path) -> None:
    directory = write_handshakes(tmp_path / "raw")
    unknown = client_connection(0, tcp=True) | {"t_handshake_confirmed": None, "cpu_system_ns": None}
    (directory / "client.jsonl").write_text(jsonl(unknown), encoding="utf-8")
    (directory / "server.jsonl").write_text(jsonl(connection(0, tcp=True)), encoding="utf-8")
    row = details.read(tmp_path / "raw").connections.row(0, named=True)
    for name in ("confirmed_ms", "client_cpu_ms", "retry", "client_packets_lost", "server_handshake_packets_sent"):
        assert row[name] is None
    assert (row["ttfb_ms"], row["server_cpu_ms"]) == (1.5, 2.5)


def test_runs_that_are_no_series_of_handshakes_have_no_connections(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    warm_up = {"id": "00000003", "slug": "warm", "arm": "warm-up", "label": "X25519", "baseline": None}
    write_handshakes(raw, block=None, cell=warm_up)
    write_handshakes(raw, block=1, status="failed", reason="the client hung", metrics={})
    write_handshakes(
        raw, block=2, workload={"kind": "bulk", "bytes": 1, "connections": 1}, metrics={"goodput_mbps": 1.0, "bytes": 1}
    )
    found = details.read(raw)
    assert found.problems == []
    for table in (found.connections, found.primitives, found.handshakes):
        assert table.is_empty()


def test_times_of_primitives_are_medians_of_their_samples(tmp_path: Path) -> None:
    write_primitives(
        tmp_path / "raw",
        primitive(kind="signature", name="dilithium3", operation="verify", samples_ns=[7], bytes=None),
        primitive(),
        primitive(operation="decapsulate", samples_ns=[5, 9, 1], bytes=None),
        {"event": "unsupported", "name": "x448", "reason": "no such group"},
    )
    found = details.read(tmp_path / "raw")
    assert found.problems == []
    table = found.primitives
    assert table.schema == pl.Schema(details.PRIMITIVE_TIMES)
    assert table.select("kind", "name", "operation", "n", "median_ns", "mean_ns", "min_ns", "bytes").rows() == [
        ("group", "kyber768", "decapsulate", 3, 5, 5, 1, None),
        ("group", "kyber768", "keygen", 4, 25_500, 25_250, 10_000, 1184),
        ("signature", "dilithium3", "verify", 1, 7, 7, 7, None),
    ]
    assert set(table["implementation"]) == {"liboqs 0.13.0"}


def test_captured_handshakes_have_a_column_for_every_level_and_message(tmp_path: Path) -> None:
    directory = write_proof(tmp_path / "raw", captured(0), captured(1, retry=True))
    found = details.read(tmp_path / "raw")
    assert found.problems == []
    assert found.handshakes.schema == pl.Schema(details.HANDSHAKES)
    assert found.handshakes["index"].to_list() == [0, 1]
    assert found.handshakes["retry"].to_list() == [False, True]
    row = found.handshakes.row(0, named=True)
    assert row["proof"] == "0000000f"
    assert row["origin"] == directory.relative_to(tmp_path).as_posix()
    expected = {
        "packets_client": 4,
        "packets_server": 5,
        "packets_initial_client": 3,
        "packets_initial_server": 0,
        "packets_handshake_server": 2,
        "packets_1rtt_server": 1,
        "packets_retry_server": 0,
        "bytes_initial_client": 2466,
        "bytes_handshake_server": 1332,
        "ack_only_packets_client": 1,
        "datagrams_server": 4,
        "handshake_bytes": 3600 + 3169,
        "bytes_before_validation": 3169,
        "limit_hits": 2,
        "tls_certificate_bytes": 300,
        "tls_signature_bytes": 500,
        "tls_client_key_share_bytes": 1184,
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("rtt_ms", "changes", "waits"),
    [
        (0, {}, 1),  # the anti-amplification limit alone: acknowledgements lengthen the chain of flights
        (0, {"retry": True}, 2),
        (0, {"hello_retry_request": True}, 2),
        (0, {"amplification": None, "server_flights": 4}, 0),  # TCP
        (40, {}, 2),
        (40, {"server_flights": 1}, 0),
        (40, {"server_flights": None}, 0),
    ],
)
def test_waits_are_flights_where_there_is_a_round_trip_time_and_else_what_is_known_to_wait(
    tmp_path: Path, rtt_ms: float, changes: dict[str, Any], waits: int
) -> None:
    write_proof(tmp_path / "raw", captured(0, **changes), rtt_ms=rtt_ms)
    found = details.read(tmp_path / "raw")
    assert found.problems == []
    assert found.handshakes["waits"].to_list() == [waits]


# ---- where they are read from


def write_everything(raw: Path) -> None:
    for block in range(3):
        write_handshakes(raw, block)
    write_primitives(raw)
    write_proof(raw, captured(0), captured(1))


def test_an_archive_is_read_like_the_directory_it_was_made_of(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_everything(raw)
    tree = details.read(raw)
    reference = tmp_path / "elsewhere" / "raw" / "reference"
    for name in (EXPERIMENT, "proofs"):
        fakeruns.archive(raw, "local", name, reference / f"{name}.tar.gz")
    packed = details.read(reference)
    assert packed.problems == []
    for name, count in (("connections", 6), ("primitives", 1), ("handshakes", 2)):
        one, other = getattr(tree, name), getattr(packed, name)
        assert len(one) == count
        assert other.drop("origin").equals(one.drop("origin"))
        assert set(other["origin"]) <= set(runs.table(reference)["origin"])
    assert packed.handshakes["origin"][0].startswith("raw/reference/proofs.tar.gz!local/proofs/")


def test_no_runs_give_empty_tables_and_no_directory_an_error(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    with pytest.raises(RunsError, match="raw: no such directory of runs"):
        details.read(raw)
    raw.mkdir()
    found = details.read(raw)
    assert found.connections.schema == pl.Schema(details.CONNECTIONS)
    assert found.primitives.is_empty()
    assert found.handshakes.is_empty()


def test_tables_are_the_same_bytes_wherever_and_in_whatever_order_runs_were_written(tmp_path: Path) -> None:
    written = []
    for name, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        raw = tmp_path / name / "raw"
        for block in order:
            write_handshakes(raw, block)
        write_primitives(raw)
        write_proof(raw)
        assert main(["tables", str(raw), str(tmp_path / name / "out" / "runs.parquet")]) == 0
        files = sorted((tmp_path / name / "out").iterdir())
        assert [file.name for file in files] == [
            "campaigns.parquet",
            "connections.parquet",
            "floors.parquet",
            "handshakes.parquet",
            "pacing.parquet",
            "primitives.parquet",
            "read.json",
            "runs.parquet",
            "unread.parquet",
        ]
        written.append([file.read_bytes() for file in files if file.suffix == ".parquet"])
    assert written[0] == written[1]


def test_archives_are_read_again_only_when_they_or_what_reads_them_have_changed(tmp_path: Path) -> None:
    write_handshakes(tmp_path / "raw", 0)
    packed, table = tmp_path / "packed", tmp_path / "out" / "runs.parquet"
    archive = fakeruns.archive(tmp_path / "raw", "local", EXPERIMENT, packed / "a.tar.gz")
    details.write_tables(packed, table)
    told = table.with_name(details.READ)
    read = details.everything(packed)
    # what comes from the tables can be told by their having fewer rows
    runs.write_parquet(read[0].clear(), table)

    def from_tables() -> bool:
        found, beside = details.everything(packed, made=table)
        assert beside.connections.equals(read[1].connections)
        return found.is_empty()

    assert from_tables()
    before = told.read_text(encoding="utf-8")
    told.write_text(before.replace('"code": "', '"code": "0'), encoding="utf-8")
    assert not from_tables()
    told.unlink()
    assert not from_tables()
    told.write_text(before, encoding="utf-8")
    assert from_tables()
    # another compression of the same
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()), 1))
    assert not from_tables()
    # of directories, names, sizes and times tell
    raw = tmp_path / "raw"
    details.write_tables(raw, table)
    runs.write_parquet(read[0].clear(), table)
    assert details.everything(raw, made=table)[0].is_empty()
    write_handshakes(raw, 1)
    assert not details.everything(raw, made=table)[0].is_empty()


def test_what_the_workflow_collected_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, table = tmp_path / "raw", tmp_path / "out" / "runs.parquet"
    write_handshakes(raw, 0)
    cut(write_handshakes(raw, 1) / "client.jsonl")
    read = details.read(raw)
    assert main(["tables", str(raw), str(table)]) == 0
    monkeypatch.setenv(paths.RAW_VARIABLE, str(raw))
    monkeypatch.setenv(paths.TABLE_VARIABLE, str(table))
    write_handshakes(raw, 2)
    found = details.read(raw)
    assert found.connections.equals(read.connections)
    assert found.problems == read.problems
    assert len(read.problems) == 1
    assert runs.table(raw).height == 2
    # of other runs nothing was collected
    assert runs.table(raw / "local").height == 3
    table.with_name("handshakes.parquet").write_bytes(b"")
    with pytest.raises(RunsError, match=r"handshakes\.parquet: cannot be read: .*; run `quicbed tables` again"):
        details.read(raw)


# ---- damaged files


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def cut_between_lines(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def binary(file: Path) -> None:
    file.write_bytes(b"\xff\x00" * 50)


def other(file: Path) -> None:
    file.write_text("[]\n17\n" if file.suffix == ".jsonl" else "[17]", encoding="utf-8")


def wrong_type(file: Path) -> None:
    """A value that only a column of the table refuses."""
    text = file.read_text(encoding="utf-8")
    for old in ('"packets_lost": 0', '"bytes": 1184', '"limit_hits": 2'):
        text = text.replace(old, old.partition(":")[0] + ': "many"')
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("damage", [cut, cut_between_lines, empty, binary, other, wrong_type, Path.unlink])
@pytest.mark.parametrize("name", details.FILES)
def test_a_damaged_file_is_named_by_its_run_and_the_others_are_read(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    raw = tmp_path / "raw"
    write_everything(raw)
    before = details.read(raw)
    victim = min(raw.rglob(name))
    damage(victim)
    found = details.read(raw)
    origin = victim.parent.relative_to(tmp_path).as_posix()
    (problem,) = found.problems
    assert problem.startswith(f"{origin}: what lies beside run.json cannot be read: ")
    assert "\n" not in problem
    for table in ("connections", "primitives", "handshakes"):
        expected = getattr(before, table).filter(pl.col("origin") != origin)
        assert getattr(found, table).equals(expected)


def test_a_missing_file_and_a_missing_value_are_called_so(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (write_handshakes(raw, 0) / "server.jsonl").unlink()
    file = write_handshakes(raw, 1) / "client.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("t_first_byte", "first_byte"), encoding="utf-8")
    problems = sorted(details.read(raw).problems)
    assert problems[0].endswith("'server.jsonl' is missing")
    assert problems[1].endswith("'t_first_byte' is missing")


def test_connections_that_only_one_end_reports_are_not_guessed(tmp_path: Path) -> None:
    directory = write_handshakes(tmp_path / "raw")
    (directory / "server.jsonl").write_text(jsonl(connection(0)), encoding="utf-8")
    found = details.read(tmp_path / "raw")
    (problem,) = found.problems
    assert problem.endswith("2 connections of the client, 1 of the server")
    assert found.connections.is_empty()


def test_a_damaged_archive_is_named_and_its_readable_runs_are_kept(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_everything(raw)
    # not compressible, so that what is cut off lies behind all runs
    padding = raw / "local" / EXPERIMENT / "c0ffee00" / "z.bin"
    padding.write_bytes(b"".join(value.to_bytes(4, "big") for value in range(0, 2**32, 104729)))
    archive = fakeruns.archive(raw, "local", EXPERIMENT, tmp_path / "kept" / "raw" / "reference" / "whole.tar.gz")
    shutil.copy(archive, archive.with_name("part.tar.gz"))
    cut(archive.with_name("part.tar.gz"))
    (archive.with_name("text.tar.gz")).write_text("not an archive", encoding="utf-8")
    found = details.read(archive.parent)
    part, text = sorted(found.problems)
    assert part.startswith("raw/reference/part.tar.gz: damaged archive: ")
    assert text.startswith("raw/reference/text.tar.gz: damaged archive: ")
    counts = dict(found.connections["origin"].str.split("!").list.first().value_counts().rows())
    assert counts == {"raw/reference/part.tar.gz": 6, "raw/reference/whole.tar.gz": 6}


@pytest.mark.parametrize("damaged", ["server.jsonl", "run.json"])
def test_the_report_names_what_could_not_be_read_once(tmp_path: Path, damaged: str) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1)
    directory = write_handshakes(raw)
    cut(directory / damaged)
    page = report.write(tmp_path / "artifacts", raw).read_text(encoding="utf-8")
    assert "1 file could not be read" in page
    assert directory.relative_to(tmp_path).as_posix() + ": " in page


def test_gaps_and_trains_of_a_damaged_file_cost_their_run_alone(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    kept = {"format": 1, "gap_ns": [10, 20], "gaps": [3, 1], "train_packets": [5], "packets": [5]}
    traced = fakeruns.make_run()
    traced["metrics"]["traced_packets"] = 5
    for block, content in enumerate((kept, kept | {"gaps": [3]}, kept | {"packets": [-1]}, {}), start=1):
        directory = fakeruns.write_run(raw, traced | {"block": block})
        (directory / "pacing.json").write_text(json.dumps(content), encoding="utf-8")
    # a run without a trace has none, whoever left this
    planted = fakeruns.write_run(raw, fakeruns.make_run(block=0))
    (planted / "pacing.json").write_text(json.dumps(kept), encoding="utf-8")
    found = details.read(raw)
    assert found.pacing.schema == pl.Schema(details.PACED)
    rows = [("gap_ns", 10, 3), ("gap_ns", 20, 1), ("train_packets", 5, 5)]
    assert found.pacing.select("block", "quantity", "value", "count").rows() == [(1, *row) for row in rows]
    reasons = ("values and their counts are not equally many", "key 'packets.0': -1 is negative", "no key 'format'")
    assert len(found.problems) == len(reasons)
    assert all(any(reason in problem for problem in found.problems) for reason in reasons)
    assert all("pacing.json: " in problem for problem in found.problems)
