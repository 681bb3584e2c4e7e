"""Stored captures dissected again: what agrees, what does not, and what cannot be compared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest

import fakeruns
import wirefixtures
from quicbed.analysis import dissect
from quicbed.cli.commands import main
from quicbed.report import page as report
from quicbed.store.record import RunsError
from quicbed.wire import handshake, proof, tshark

NAMES = sorted(file.stem for file in fakeruns.CAPTURES.glob("*.pcap"))

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


def change(file: Path, mutate: Callable[[Any], object]) -> None:
    """Change a JSON document in place."""
    document = json.loads(file.read_text(encoding="utf-8"))
    mutate(document)
    file.write_text(json.dumps(document), encoding="utf-8")


def write_download(
    raw: Path, capture: Path, *, transport: Literal["quic", "tcp"], server: str, key_log: Path | None = None
) -> Path:
    """The proof of a download that a capture would be; with a key log one between external endpoints."""
    seen = proof.examine(capture, server_ip=server, server_port=4433, transport=transport, mtu=1500)
    evidence: dict[str, Any] = {"seen": seen.model_dump(mode="json")}
    metrics = {
        "goodput_mbps": 80.0,
        "bytes": 65_536,
        "client_mean_frame_bytes": seen.client_to_server.mean_frame_bytes,
        "server_mean_frame_bytes": seen.server_to_client.mean_frame_bytes,
    }
    if key_log is not None:
        shown = handshake.examine(capture, key_log, server_ip=server, server_port=4433, transport=transport)
        evidence["signatures"] = sorted({one.signature for one in shown if one.signature is not None})
    cell = {"id": "0000000d", "slug": "download", "arm": "proof", "label": "download", "baseline": None}
    run = fakeruns.make_run(cell=cell, block=None, experiment="proofs", evidence=evidence, metrics=metrics)
    directory = fakeruns.write_run(raw, run)
    shutil.copy(capture, directory / "capture.pcap")
    if key_log is not None:
        shutil.copy(key_log, directory / "keys.log")
    return directory


# ---- what agrees


def test_every_stored_value_of_captured_handshakes_follows_from_its_capture(raw: Path) -> None:
    directories = {name: fakeruns.write_captured(raw, name) for name in NAMES}
    table = dissect.read(raw)
    assert table.schema == pl.Schema(dissect.COLUMNS)
    stored = {name: json.loads((one / "handshakes.json").read_text()) for name, one in directories.items()}
    assert dict(table.group_by("label").len().rows()) == {name: len(found) for name, found in stored.items()}
    assert set(table["outcome"]) == {"agrees"}
    assert set(table["differences"].list.len()) == {0}
    assert table["compared"].min() > 40
    for row in table.to_dicts():
        assert json.loads(row["dissected"]) == stored[row["label"]][row["index"]]
        content = (directories[row["label"]] / "capture.pcap").read_bytes()
        assert (row["capture_sha256"], row["capture_bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
        assert row["origin"] == directories[row["label"]].relative_to(raw.parent).as_posix()
    assert dissect.problems(table) == []
    assert dissect.text(table) == (
        f"{len(NAMES)} captures dissected again and {table['compared'].sum()} values compared: all agree"
    )


@pytest.mark.parametrize("name", ["quic", "tcp", "external"])
def test_what_the_capture_of_a_download_shows_is_compared(raw: Path, tmp_path: Path, name: str) -> None:
    if name == "external":
        capture, keys = (fakeruns.CAPTURES / f"quiche.{suffix}" for suffix in ("pcap", "keys"))
        directory = write_download(raw, capture, transport="quic", server="10.113.0.2", key_log=keys)
    else:
        frames = wirefixtures.QuicTransfer().run() if name == "quic" else wirefixtures.tls_transfer()
        capture = wirefixtures.pcap(tmp_path / "some.pcap", frames)
        directory = write_download(raw, capture, transport="quic" if name == "quic" else "tcp", server="10.0.0.1")
    (row,) = dissect.read(raw).to_dicts()
    assert (row["outcome"], row["index"], row["reason"]) == ("agrees", None, None)
    seen = json.loads(row["dissected"])
    assert seen["transport"] == ("tcp" if name == "tcp" else "quic")
    assert seen["server_mean_frame_bytes"] > 500
    assert seen.get("signatures") == ([0x0804] if name == "external" else None)

    def tamper(run: Any) -> None:
        run["evidence"]["seen"]["server_to_client"]["packets"] += 1
        run["metrics"]["client_mean_frame_bytes"] = 1
        run["evidence"] |= {"signatures": []} if name == "external" else {}

    change(directory / "run.json", tamper)
    (row,) = dissect.read(raw).to_dicts()
    packets = seen["server_to_client"]["packets"]
    assert row["differences"] == [
        f"client_mean_frame_bytes: stored 1, dissected {seen['client_mean_frame_bytes']}",
        f"server_to_client.packets: stored {packets + 1}, dissected {packets}",
        *(["signatures: stored [], dissected [2052]"] if name == "external" else []),
    ]


def test_where_a_key_log_lay_is_no_difference(raw: Path) -> None:
    directory = fakeruns.write_captured(raw, "tcp-tls")
    (directory / "keys.log").write_text("", encoding="ascii")
    (seen,) = handshake.examine(
        directory / "capture.pcap",
        directory / "keys.log",
        server_ip="10.113.0.2",
        server_port=4433,
        transport="tcp",
    )
    assert str(directory) in (seen.problem or "")
    elsewhere = (seen.problem or "").replace(str(directory), "/other place/.partial")
    stored = [seen.model_dump(mode="json") | {"problem": elsewhere}]
    (directory / "handshakes.json").write_text(json.dumps(stored), encoding="utf-8")
    (row,) = dissect.read(raw).to_dicts()
    assert (row["outcome"], row["differences"]) == ("agrees", [])
    assert json.loads(row["dissected"])["problem"] in (seen.problem or "").replace(f"{directory}/", "")


def test_times_taken_from_a_capture_are_compared_too(raw: Path) -> None:
    directory = fakeruns.write_captured(raw, "quiche")
    found = handshake.openings(directory / "capture.pcap", server_ip="10.113.0.2", server_port=4433)
    openings = directory / "openings.json"
    openings.write_text(json.dumps([one.model_dump() for one in found]), encoding="utf-8")
    assert set(dissect.read(raw)["outcome"]) == {"agrees"}
    change(openings, lambda stored: stored[1].update(t_client_one_rtt=7))
    table = dissect.read(raw)
    assert table["outcome"].to_list() == ["agrees", "differs"]
    assert table["differences"][1].to_list() == [
        f"opening.t_client_one_rtt: stored 7, dissected {found[1].t_client_one_rtt}"
    ]
    # of a run that failed, which has no key log
    (directory / "handshakes.json").unlink()
    (directory / "keys.log").unlink()
    assert dissect.read(raw)["outcome"].to_list() == ["agrees", "differs"]


def test_a_value_that_was_not_looked_at_when_it_was_captured_is_no_difference(raw: Path) -> None:
    directory = fakeruns.write_captured(raw, "tcp-tls")
    change(directory / "handshakes.json", lambda stored: stored[0]["messages"].pop("public_key"))
    (row,) = dissect.read(raw).to_dicts()
    assert (row["outcome"], row["not_stored"]) == ("agrees", ["messages.public_key"])


# ---- what does not agree


def test_a_stored_value_that_was_changed_is_found(raw: Path) -> None:
    changes: list[tuple[Callable[[Any], object], str]] = [
        (lambda stored: stored[0]["server"].update(packets=4), "server.packets: stored 4, dissected 3"),
        (lambda stored: stored[0]["messages"].update(certificate=None), "messages.certificate: stored null, diss"),
        (lambda stored: stored[0].update(retry=True), "retry: stored true, dissected false"),
        (lambda stored: stored[0]["client"]["levels"].pop("handshake"), "client.levels.handshake: stored null, diss"),
        (lambda stored: stored[0].update(colour=1), "colour: stored 1, which is no longer dissected"),
    ]
    for number, (mutate, _) in enumerate(changes):
        change(fakeruns.write_captured(raw, "quiche", campaign=str(number)) / "handshakes.json", mutate)
    fakeruns.write_captured(raw, "tcp-tls")
    table = dissect.read(raw)
    wrong = table.filter(pl.col("outcome") != "agrees").to_dicts()
    assert [(row["label"], row["index"], row["outcome"]) for row in wrong] == [("quiche", 0, "differs")] * len(changes)
    assert "5 captures with stored values that do not follow from them" in dissect.text(table)
    for row, problem, (_, expected) in zip(wrong, dissect.problems(table), changes, strict=True):
        (said,) = row["differences"]
        assert said.startswith(expected)
        assert (problem["index"], problem["words"]) == (0, said)


def test_a_connection_more_or_less_is_found(raw: Path) -> None:
    directory = fakeruns.write_captured(raw, "quiche")
    stored = json.loads((directory / "handshakes.json").read_text())
    for kept, where in ((stored[:1], "not stored, but in the capture"), (stored * 2, "stored, but not in the capture")):
        (directory / "handshakes.json").write_text(json.dumps(kept), encoding="utf-8")
        last = dissect.read(raw).row(-1, named=True)
        assert (last["outcome"], last["differences"]) == ("differs", [f"the connection is {where}"])


# ---- what cannot be compared


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def test_what_is_missing_or_damaged_is_a_row_with_its_reason(raw: Path) -> None:
    damages: list[tuple[str, Callable[[Path], object], str]] = [
        ("capture.pcap", Path.unlink, "capture.pcap is missing"),
        ("capture.pcap", cut, "capture.pcap: at byte 3513: the file ends within frame 16, after 44 of 54 bytes"),
        ("capture.pcap", lambda file: file.write_bytes(b"no capture"), "capture.pcap: at byte 0: not a pcap file"),
        ("capture.pcap", lambda file: file.write_bytes(b""), "the file ends within the 24-byte file header"),
        ("capture.pcap", lambda file: wirefixtures.pcap(file, []), "capture.pcap: no packet from or to port 4433"),
        ("keys.log", Path.unlink, "keys.log: the key log cannot be read"),
        ("handshakes.json", cut, "handshakes.json: truncated or corrupt"),
        ("handshakes.json", lambda file: file.write_text("{}"), "handshakes.json: is not a list of objects"),
        ("handshakes.json", Path.unlink, "what it showed is not stored"),
        ("run.json", Path.unlink, "run.json: cannot be read: No such file"),
        ("run.json", cut, "run.json: truncated or corrupt"),
        ("run.json", lambda file: file.write_text("{}"), "run.json: not a run of quicbed"),
    ]
    for number, (name, damage, _) in enumerate(damages, start=10):
        damage(fakeruns.write_captured(raw, "tcp-tls", campaign=str(number)) / name)
    fakeruns.write_captured(raw, "tcp-tls-hrr")
    *bad, good = dissect.read(raw).to_dicts()
    for row, (_, _, expected) in zip(bad, damages, strict=True):
        assert (row["outcome"], row["dissected"]) == ("not compared", None)
        assert expected in row["reason"]
        assert str(raw) not in row["reason"]
    assert good["outcome"] == "agrees"


def test_a_run_that_failed_before_its_capture_was_looked_at_says_so(raw: Path) -> None:
    directory = fakeruns.write_captured(raw, "tcp-tls", status="failed", reason="the client hung", metrics={})
    (directory / "handshakes.json").unlink()
    (row,) = dissect.read(raw).to_dicts()
    assert row["reason"] == "what it showed is not stored; the run failed: the client hung"


def test_runs_without_captures_have_no_rows(raw: Path) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1)
    table = dissect.read(raw)
    assert table.is_empty()
    assert dissect.text(table) == "0 captures dissected again"
    with pytest.raises(RunsError, match="no such directory of runs"):
        dissect.read(raw / "absent")


# ---- archives, files, command and report


def test_archives_are_read_as_directories_are_and_what_they_leave_out_is_named(raw: Path, tmp_path: Path) -> None:
    fakeruns.write_captured(raw, "tcp-tls")
    without = fakeruns.write_captured(raw, "quinn-dilithium3-20ms")
    capture = without / "capture.pcap"
    name = capture.relative_to(raw).as_posix()
    listed = {"file": name, "bytes": capture.stat().st_size, "sha256": "ab" * 32}
    capture.unlink()
    (raw / "local" / "proofs" / "left-out.json").write_text(json.dumps({"left_out": [listed]}), encoding="utf-8")
    reference = tmp_path / "elsewhere" / "raw" / "reference"
    packed = fakeruns.archive(raw, "local", "proofs", reference / "some.tar.gz")
    as_directory, as_archive = dissect.read(raw), dissect.read(reference)
    rest = ["outcome", "capture_sha256", "label", "index", "dissected", "stored"]
    agreeing = pl.col("outcome") == "agrees"
    assert as_archive.filter(agreeing).select(rest).equals(as_directory.filter(agreeing).select(rest))
    (left,) = as_archive.filter(~agreeing).to_dicts()
    assert (left["outcome"], left["capture_sha256"], left["label"]) == ("left out", "ab" * 32, without.name[:-11])
    assert left["origin"] == f"raw/reference/some.tar.gz!local/proofs/c0ffee00/{without.name}"
    assert dissect.text(as_archive).endswith("all agree; 1 left out of the archives")

    (reference / "torn.tar.gz").write_bytes(packed.read_bytes()[:-500])
    torn = dissect.read(reference)
    assert torn.filter(pl.col("origin").str.contains("some.tar.gz")).equals(as_archive)
    (row,) = torn.filter(pl.col("origin") == "raw/reference/torn.tar.gz").to_dicts()
    assert row["reason"].startswith("damaged archive: ")


def test_the_table_is_the_same_bytes_whatever_works_on_it(raw: Path, tmp_path: Path) -> None:
    for name in ("tcp-tls", "tcp-tls-hrr", "openssl-retry"):
        fakeruns.write_captured(raw, name)
    files = [tmp_path / "tables" / f"{jobs}.parquet" for jobs in (1, 2)]
    for jobs, file in zip((1, 2), files, strict=True):
        dissect.write(raw, file, jobs)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_command_and_the_report_say_what_came_of_it(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = fakeruns.write_captured(raw, "tcp-tls")
    change(directory / "handshakes.json", lambda stored: stored[0]["client"].update(bytes=1))
    artifacts = raw.parent / "artifacts"
    assert main(["dissect", str(raw), str(artifacts / "tables" / dissect.FILE), "--jobs", "1"]) == 0
    origin = directory.relative_to(raw.parent).as_posix()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1 capture dissected again")
    assert second.startswith(f"{origin}: connection 0: differs: client.bytes: stored 1, dissected ")
    index = report.write(artifacts, raw)
    page = index.with_name("provenance.html").read_text(encoding="utf-8")
    assert first in page
    assert f'<a href="runs.html#run={origin}">{origin}</a></td><td>0</td><td>differs</td>' in page
    (artifacts / "tables" / dissect.FILE).unlink()
    report.write(artifacts, raw)
    assert all("dissected again" not in file.read_text(encoding="utf-8") for file in index.parent.glob("*.html"))


def test_without_tshark_the_command_says_what_to_install(
    raw: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fakeruns.write_captured(raw, "tcp-tls")
    monkeypatch.setenv("PATH", str(raw))
    table = raw.parent / "captures.parquet"
    assert main(["dissect", str(raw), str(table)]) == 1
    assert capsys.readouterr().err == f"quicbed: {tshark.problem()}\n"
    assert not table.exists()
