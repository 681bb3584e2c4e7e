"""result.json of the QUIC Interop Runner, in and out again."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from quicbed.cli import commands
from quicbed.importers import samples
from quicbed.importers.files import CopyError
from quicbed.importers.summary import Summary
from quicbed.papers import reading
from quicbed.report.export import result as exported
from quicbed.store import runs

CLIENTS, SERVERS = ["quinn", "quiche"], ["quic-go", "quinn", "quiche"]


def official(**changes: Any) -> dict[str, Any]:
    """As the runner writes it: client-major, tests described by abbreviation."""
    return {
        "start_time": 1700000000.0,
        "end_time": 1700003600.0,
        "log_dir": "logs_x",
        "servers": SERVERS,
        "clients": CLIENTS,
        "tests": {"H": {"name": "handshake", "desc": "x"}, "G": {"name": "goodput", "desc": "x"}},
        "results": [
            [{"abbr": "H", "result": outcome}]
            for outcome in ("succeeded", "failed", "unsupported", "succeeded", None, "succeeded")
        ],
        "measurements": [
            [{"abbr": "G", "result": "succeeded", "details": "8123 (± 45) kbps"}],
            [{"abbr": "G", "result": "failed", "details": ""}],
            [{"abbr": "G", "result": "unsupported", "details": ""}],
            [{"abbr": "G", "result": "succeeded", "details": "9.5 (± 0.5) Mbps"}],
            [{"abbr": "G", "result": None, "details": ""}],
            [],
        ],
    } | changes


def imported(directory: Path, document: Any) -> tuple[pl.DataFrame, pl.DataFrame, Summary]:
    file = directory / "result.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    summary = reading.read("qir", file, directory / "out")
    tables = [pl.read_parquet(directory / "out" / f"{name}.parquet") for name in ("runs", "results")]
    return tables[0], tables[1], summary


def test_measurements_and_matrix_are_read_client_by_client(tmp_path: Path) -> None:
    table, results, summary = imported(tmp_path, official())
    by_pair = {(row["client_library"], row["server_library"]): row for row in table.to_dicts()}
    first = by_pair["quinn", "quic-go"]
    assert (first["status"], first["goodput_mbps"], first["goodput_sd_mbps"]) == ("ok", 8.123, 0.045)
    assert by_pair["quinn", "quinn"]["status"] == "failed"
    assert by_pair["quinn", "quiche"]["status"] == "unsupported"
    assert by_pair["quiche", "quic-go"]["goodput_mbps"] == 9.5
    assert (by_pair["quiche", "quinn"]["status"], by_pair["quiche", "quinn"]["reason"]) == ("unreadable", "not run")
    assert ("quiche", "quiche") not in by_pair
    matrix = results.filter(pl.col("kind") == "test")
    outcomes = {(row["client"], row["server"]): row["result"] for row in matrix.to_dicts()}
    assert outcomes["quinn", "quinn"] == "failed"
    assert outcomes["quiche", "quinn"] is None
    assert matrix["test"].unique().to_list() == ["handshake"]
    assert not summary.differences


def test_an_older_file_names_its_tests_in_every_entry(tmp_path: Path) -> None:
    document = official(results=[[{"abbr": "H", "name": "handshake", "result": "succeeded"}]] * 6)
    del document["tests"]
    _, results, _ = imported(tmp_path, document)
    assert set(results.filter(pl.col("kind") == "test")["test"]) == {"handshake"}


def test_the_bare_metal_runner_lists_every_goodput(tmp_path: Path) -> None:
    pairs = {("quiche", "quiche-aes"): [100.0, 200.0], ("lsquic", "quiche-aes"): []}
    table, _, summary = imported(tmp_path, samples.result_json(pairs))
    rows = {row["server_library"]: row for row in table.to_dicts()}
    assert (rows["quiche"]["goodput_mbps"], rows["quiche"]["repetitions"]) == (150.0, 2)
    assert rows["quiche"]["client_flavour"] == "aes"
    assert rows["quiche"]["workload_bytes"] == 8192 * samples.MIB
    assert rows["lsquic"]["status"] == "failed"
    assert not summary.differences


def test_an_unfinished_matrix_keeps_its_places(tmp_path: Path) -> None:
    document = official()
    document["results"] = document["results"][:2]
    _, results, summary = imported(tmp_path, document)
    matrix = results.filter(pl.col("kind") == "test")
    assert matrix.select("client", "server").rows() == [("quinn", "quic-go"), ("quinn", "quinn")]
    assert summary.differences == {"`results` has another number of cells than clients times servers": 1}


@pytest.mark.parametrize("details", ["fast", "", 7])
def test_a_success_without_a_goodput_is_no_value(tmp_path: Path, details: Any) -> None:
    measurements = [[{"abbr": "G", "result": "succeeded", "details": details}]] * 6
    table, _, summary = imported(tmp_path, official(measurements=measurements))
    assert table["status"].unique().to_list() == ["unreadable"]
    assert sum(summary.skipped.values()) == 6


@pytest.mark.parametrize("goodput", [1e15, -1.0, 0, True, "Infinity"])
def test_a_goodput_that_nothing_reaches_is_no_value(tmp_path: Path, goodput: Any) -> None:
    document = samples.result_json({("quiche", "quiche"): [100.0, goodput]})
    table, _, _ = imported(tmp_path, document)
    assert table["status"].to_list() == ["unreadable"]
    assert table["goodput_mbps"].to_list() == [None]


def test_a_file_without_measurements_has_the_matrix(tmp_path: Path) -> None:
    document = official()
    del document["measurements"]
    table, results, _ = imported(tmp_path, document)
    assert table.height == 0
    assert results.height == 6


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    files = {"a/result.json": json.dumps(official()).encode(), "b/result.json": b"{", "c/package.json": b"{}", "d": b""}
    summary = reading.read("qir", samples.write(files, tmp_path / "copy"), tmp_path / "out")
    assert sorted(summary.skipped.values()) == [1, 1, 1]
    assert any("not a result.json of the runner" in reason for reason in summary.skipped)


# ---- out again -------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> pl.DataFrame:
    """Runs of aead-goodput: three libraries, four variants, with failures and one that is unsupported."""
    fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", blocks=4, incidents=True)
    return runs.table(tmp_path / "raw")


def cells(document: dict[str, Any], key: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The entries by client and server, found as the website does: client by client, server by server."""
    index = 0
    found = {}
    for client in document["clients"]:
        for server in document["servers"]:
            found[client, server] = document[key][index]
            index += 1
    assert index == len(document[key])
    return found


def test_every_entry_is_where_the_website_looks_for_it(table: pl.DataFrame) -> None:
    document = exported(table, "aead-goodput")
    assert cells(document, "results") == {key: [] for key in cells(document, "results")}
    for (client, server), entries in cells(document, "measurements").items():
        if client != server:
            assert entries == []
            continue
        assert [entry["abbr"] for entry in entries] == list(document["tests"])
        for entry in entries:
            assert entry["name"] == document["tests"][entry["abbr"]]["name"]
            assert entry["abbr"].isalnum()
            assert entry["result"] in ("succeeded", "failed", "unsupported")
            # the website takes the first word of the details for a number
            assert entry["result"] != "succeeded" or float(entry["details"].split(" ")[0]) > 0
    assert document["end_time"] > document["start_time"]
    assert json.loads(json.dumps(document)) == document


def abbreviation(document: dict[str, Any], label: str) -> str:
    """The test that stands for a variant."""
    (found,) = (abbr for abbr, test in document["tests"].items() if test["desc"].endswith(f", {label}."))
    return str(found)


def test_values_are_means_over_blocks_in_kbit_per_second(tmp_path: Path) -> None:
    written = fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", blocks=4, incidents=False)
    goodputs = [
        run["metrics"]["goodput_mbps"]
        for run in written
        if run["client"]["library"] == "quiche" and run["cell"]["label"] == "AES-256-GCM"
    ]
    document = exported(runs.table(tmp_path / "raw"), "aead-goodput")
    entries = {entry["abbr"]: entry for entry in cells(document, "measurements")["quiche", "quiche"]}
    details = f"{1000 * statistics.fmean(goodputs):.0f} (± {1000 * statistics.stdev(goodputs):.0f}) kbps"
    assert entries[abbreviation(document, "AES-256-GCM")] == {
        "abbr": abbreviation(document, "AES-256-GCM"),
        "name": document["tests"][abbreviation(document, "AES-256-GCM")]["name"],
        "result": "succeeded",
        "details": details,
    }


def test_what_a_library_cannot_do_is_unsupported(table: pl.DataFrame) -> None:
    document = exported(table, "aead-goodput")
    entries = {entry["abbr"]: entry for entry in cells(document, "measurements")["quinn", "quinn"]}
    assert entries[abbreviation(document, "NOOP")]["result"] == "unsupported"


def test_what_is_written_is_read_back(tmp_path: Path, table: pl.DataFrame) -> None:
    runs.write_parquet(table, tmp_path / "runs.parquet")
    argv = ["export", "qir", "aead-goodput", str(tmp_path / "result.json"), "--table", str(tmp_path / "runs.parquet")]
    assert commands.main(argv) == 0
    summary = reading.read("qir", tmp_path / "result.json", tmp_path / "out")
    assert not summary.skipped
    assert not summary.differences
    back = pl.read_parquet(tmp_path / "out" / "runs.parquet").filter(pl.col("status") == "ok")
    quiche = back.filter(pl.col("client_library") == "quiche")["goodput_mbps"]
    assert quiche.min() == pytest.approx(3000, rel=0.4)


def test_an_experiment_without_runs_is_one_clear_error(table: pl.DataFrame) -> None:
    with pytest.raises(CopyError, match=r"no runs of experiment `pairwise`; the table has aead-goodput"):
        exported(table, "pairwise")


def test_a_table_that_is_not_there_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["export", "qir", "pairwise", str(tmp_path / "out.json"), "--table", str(tmp_path / "runs.parquet")]
    assert commands.main(argv) == 1
    assert "runs.parquet: no such file; `make all` writes it; --table artifacts/reference" in capsys.readouterr().err


def test_a_table_of_something_else_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    argv = ["export", "qir", "pairwise", str(tmp_path / "out.json"), "--table", str(tmp_path / "other.parquet")]
    assert commands.main(argv) == 1
    assert "not a table of runs" in capsys.readouterr().err


def test_one_failed_block_makes_a_measurement_failed_and_handshakes_are_tests(tmp_path: Path) -> None:
    cell = {"id": "1", "slug": "quinn", "arm": "main", "label": "X25519", "baseline": None}
    for block, status in enumerate(["ok", "failed", "ok"]):
        run = fakeruns.make_run(experiment="table2-kem", cell=cell, block=block, status=status)
        run["workload"] = {"kind": "handshake", "bytes": 1, "connections": 10}
        fakeruns.write_run(tmp_path / "raw", run)
    document = exported(runs.table(tmp_path / "raw"), "table2-kem")
    assert cells(document, "results")["quinn", "quinn"] == [{"abbr": "H", "name": "handshake", "result": "failed"}]
    assert cells(document, "measurements")["quinn", "quinn"] == []
