"""What becomes of single hostile files: the row, the reason, the line that a command prints."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

import fakeruns
import wording
from clone import ROOT, copy_config
from quicbed import importers
from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.cli import commands
from quicbed.config.model import ConfigError
from quicbed.figures import output
from quicbed.figures.handshake_tables import Printed
from quicbed.importers import logs, pcapng, samples
from quicbed.importers.files import CopyError
from quicbed.papers import reading
from quicbed.papers.highway import perf as recordings
from quicbed.report import look
from quicbed.report import page as report
from quicbed.store import details, runs, symbols
from quicbed.store.record import RunsError

DEEP = b"[" * 300 + b"]" * 300


def with_metric(value: str) -> bytes:
    return json.dumps(fakeruns.make_run()).replace("2000.0", value).encode()


HOSTILE = {
    "surrogate": (json.dumps(fakeruns.make_run(reason="\ud800")).encode(), "no Unicode"),
    "large": (json.dumps(fakeruns.make_run(block=2**63)).encode(), "beyond what can be"),
    "nan": (with_metric("NaN"), "NaN is not JSON"),
    "infinity": (with_metric("-Infinity"), "-Infinity is not JSON"),
    "exponent": (with_metric("1e999"), "beyond 64 bits"),
    "negative": (with_metric("-1"), "is negative"),
    "unmeasured": (with_metric("1.5e19"), "beyond what can be"),
    "type": (json.dumps(fakeruns.make_run(host={"delta": [1]})).encode(), "'host.delta' is no object"),
    "gates": (json.dumps(fakeruns.make_run(contamination=1)).encode(), "'contamination' is no list"),
    "deep": (
        json.dumps(fakeruns.make_run(extra=0)).encode().replace(b'"extra": 0', b'"extra": ' + DEEP),
        "nested more",
    ),
    "bytes": (b"\xff\xfe{}", "truncated or corrupt"),
    "early": (json.dumps(fakeruns.make_run(started_at="0001-01-01T00:00:00+23:00")).encode(), "no ISO 8601 time"),
    "samples": (
        json.dumps(fakeruns.make_run(host={"cpu": {"client": {"samples": ["x"]}}})).encode(),
        "'host.cpu.client.samples.0': expected",
    ),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A campaign with a run of every kind that cannot be read beside those that can."""
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2)
    block = raw / "local" / "aead-goodput" / "hostile" / "b0000"
    for name, (content, _) in HOSTILE.items():
        (block / name).mkdir(parents=True)
        (block / name / "run.json").write_bytes(content)
    for name in ("fifo", "link", "folder", "huge"):
        (block / name).mkdir()
    os.mkfifo(block / "fifo" / "run.json")
    (block / "link" / "run.json").symlink_to("/dev/zero")
    (block / "folder" / "run.json").mkdir()
    with (block / "huge" / "run.json").open("wb") as file:
        file.truncate(1 << 40)
    return raw


def test_each_bad_run_is_a_row_with_its_reason_in_tables_and_report(raw: Path, tmp_path: Path) -> None:
    table = runs.table(raw)
    bad = {row["origin"].rpartition("/")[2]: row for row in table.filter(status=runs.UNREADABLE).to_dicts()}
    reasons = {name: reason for name, (_, reason) in HOSTILE.items()}
    reasons |= {"fifo": "not a regular file", "link": "is a link", "folder": "Is a directory", "huge": "larger than"}
    assert bad.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in bad[name]["reason"], name
    assert table.filter(status="ok").height == 28
    page = report.write(tmp_path / "artifacts", raw).read_text(encoding="utf-8")
    for name in reasons:
        assert f"hostile/b0000/{name}" in page
    assert details.read(raw).connections.is_empty()


def test_a_directory_whose_name_is_not_utf8_has_a_row(tmp_path: Path) -> None:
    directory = tmp_path / "raw" / "local" / "e" / "c" / "b0" / os.fsdecode(b"\xff")
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(fakeruns.make_run()))
    table = runs.table(tmp_path / "raw")
    assert table["origin"].to_list() == ["raw/local/e/c/b0/\\xff"]


def test_what_a_program_left_in_its_run_is_no_run_record_or_archive(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    directory = fakeruns.write_run(raw, fakeruns.make_run())
    for planted in ("logs", "logs/deeper"):
        (directory / planted).mkdir()
        (directory / planted / "run.json").write_text(json.dumps(fakeruns.make_run(block=9)))
        (directory / planted / "campaign.json").write_text("{}")
    fakeruns.archive(raw, "local", "aead-goodput", directory / "planted.tar.gz")
    assert runs.table(raw).height == 1
    assert details.read(raw).campaigns == []
    archive = fakeruns.archive(raw, "local", "aead-goodput", tmp_path / "packed" / "raw" / "x.tar.gz")
    assert runs.table(archive.parent).height == 1
    assert details.read(archive.parent).campaigns == []


def test_a_hostile_plan_and_records_of_odd_types_cost_nothing_else(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    run = fakeruns.make_run()
    campaign = fakeruns.write_run(raw, run).parents[1]
    plans: dict[str, Any] = {
        "arm": [run["cell"] | {"arm": "proof"}],
        "baseline": [run["cell"] | {"baseline": []}],
        "early": [run["cell"]],
        "facts": [run["cell"]],
    }
    (campaign / "campaign.json").write_text("{}")
    for kind in ("sessions", "builds"):
        (campaign / kind).mkdir()
    for number, (name, cells) in enumerate(plans.items()):
        started = "0001-01-01T00:00:00+23:00" if name == "early" else f"203{number}-01-01T00:00:00+00:00"
        session = {"started_at": started, "cells": cells, "facts": ["x"] if name == "facts" else {}}
        (campaign / "sessions" / f"{name}.json").write_text(json.dumps(session))
    (campaign / "builds" / "odd.json").write_text(json.dumps({"crates": ["x", 1], "patches": {"a": 1}}))
    os.mkfifo(campaign / "builds" / "fifo.json")
    (campaign / "sessions" / "link.json").symlink_to("/etc/passwd")
    table = runs.table(raw)
    assert runs.select_campaign(table, "aead-goodput")["arm"].to_list() == ["main"]
    problems = [line for one in details.read(raw).campaigns for line in one.problems]
    assert [line.split("/")[-1].partition(":")[0] for line in sorted(problems)] == [
        "fifo.json",
        "odd.json",
        "campaign.json",
        "baseline.json",
        "early.json",
        "facts.json",
        "link.json",
    ]
    assert "hostile" not in report.write(tmp_path / "artifacts", raw).read_text(encoding="utf-8")


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_an_archive_with_a_file_twice_has_an_unreadable_run(tmp_path: Path) -> None:
    content = json.dumps(fakeruns.make_run()).encode()
    members = [(tarfile.TarInfo("local/e/c/b0/r/run.json"), content) for _ in range(2)]
    archive = tmp_path / "raw" / "x.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(gzip.compress(tar_of(members)))
    assert runs.table(archive.parent)["reason"].to_list() == ["run.json: is in the archive twice"]
    first, second = (found for _, found in untrusted.packed(archive, lambda path: path.name == "run.json"))
    assert (first, str(second)) == (content, "is in the archive twice")


def test_a_run_that_is_in_two_archives_counts_once(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("a", "b"):
        members = [
            (tarfile.TarInfo(f"local/e/c/b{block}/r/run.json"), json.dumps(fakeruns.make_run(block=block)).encode())
            for block in range(2)
        ]
        (raw / f"{name}.tar.gz").write_bytes(gzip.compress(tar_of(members)))
    table = runs.table(raw).sort("origin")
    assert table["status"].to_list() == ["ok", "ok", "unreadable", "unreadable"]
    (first, second) = runs.problems(table)
    assert first.endswith(
        "raw/b.tar.gz!local/e/c/b0/r: is the same run as raw/a.tar.gz!local/e/c/b0/r, which counts; "
        "move one of both away"
    )
    assert "b1" in second


def test_headers_that_lead_back_or_ask_for_everything_end_an_archive() -> None:
    good = bytearray(tar_of([(tarfile.TarInfo("a"), b"x")]))
    for kind, size in ((b"0", -512), (b"x", -512), (b"x", 1 << 40), (b"L", 1 << 33)):
        header = bytearray(good)
        header[156:157] = kind
        header[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % 256**11).to_bytes(11, "big")
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header[:512]):06o}\0 ".encode()
        with pytest.raises(UntrustedError):
            list(untrusted.members(io.BytesIO(bytes(header)), 1 << 50))


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_archives_unpack_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes]
) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(compress(tar_of([(tarfile.TarInfo("a"), bytes(5 << 20)), (tarfile.TarInfo("b"), b"")])))
    monkeypatch.setattr(untrusted, "MOST_UNPACKED", 1 << 20)
    monkeypatch.setattr(untrusted, "UNPACKED_RATIO", 10)
    with pytest.raises(UntrustedError, match="unpacks to more than"):
        list(untrusted.packed(archive, lambda path: path.name == "b"))
    with pytest.raises(UntrustedError, match="unpacks to more than"):
        untrusted.gunzip(gzip.compress(bytes(2 << 20)), 1 << 20)
    os.mkfifo(tmp_path / "fifo.tar.gz")
    with pytest.raises(UntrustedError, match="not a regular file"):
        list(untrusted.packed(tmp_path / "fifo.tar.gz", lambda _: True))


def test_an_archive_may_not_ask_for_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "x.tar.xz"
    archive.write_bytes(lzma.compress(tar_of([(tarfile.TarInfo("a"), b"x")])))
    assert list(untrusted.packed(archive, lambda _: True)) == [("a", b"x")]
    monkeypatch.setattr(untrusted, "MOST_MEMORY", 1 << 20)
    with pytest.raises(UntrustedError, match=r"[Mm]emory"):
        list(untrusted.packed(archive, lambda _: True))


def test_what_is_small_needs_no_memory_for_the_most_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 10)
    assert untrusted.read(tmp_path / "small", 1 << 50) == b"x" * 10
    assert untrusted.gunzip(gzip.compress(b"x" * 10), 1 << 50) == b"x" * 10


def test_full_memory_is_no_damage_of_a_file() -> None:
    """A run that is left out for want of memory would change the figures."""

    class Full(io.BytesIO):
        def read1(self, _size: int | None = -1, /) -> bytes:
            raise MemoryError

    with pytest.raises(MemoryError):
        list(untrusted.members(Full(), 1 << 20))


# ---- names and values in files ---------------------------------------------------------------------------------------


def test_a_run_cannot_name_a_file_elsewhere() -> None:
    assert output.file_name("flame-../../x\0y") == "flame-..-..-x-y"
    assert len(output.file_name("é" * 500).encode()) <= 200
    with pytest.raises(ConfigError, match="is no name of a library"):
        symbols.symbol_map(ROOT, "../../etc/passwd", "client")


def test_values_cannot_break_a_table_in_tex() -> None:
    hostile = "[x\\end{table}~^&%$#_{}\n\n\0\x1b"
    table = Printed("t", [("", 1)], ["h"], [[hostile], ["[second"]], [hostile], frozenset())
    written = table.latex()
    assert "\\textbackslash{}end\\{table\\}\\textasciitilde{}\\textasciicircum{}\\&\\%\\$\\#\\_\\{\\}" in written
    assert "\n{}[second \\\\" in written
    assert "\0" not in written
    assert "\n\n" not in written


# ---- importers -------------------------------------------------------------------------------------------------------


def highway(tmp_path: Path, **changes: bytes) -> dict[str, Any]:
    content = samples.repetition("quiche", "lsquic", 8.66) | {
        name.replace("__", "/"): data for name, data in changes.items()
    }
    content = {f"run/quiche_lsquic/goodput/1/{name}": data for name, data in content.items()}
    reading.read("highway", samples.write(content, tmp_path / "copy"), tmp_path / "out")
    return pl.read_parquet(tmp_path / "out" / "runs.parquet").row(0, named=True)


@pytest.mark.parametrize(
    ("duration_s", "status"), [(8.66, "ok"), (1e-9, "unreadable"), (9.0, "unreadable"), (8.0, "unreadable")]
)
def test_a_duration_that_is_not_that_of_the_log_is_no_result(tmp_path: Path, duration_s: float, status: str) -> None:
    row = highway(tmp_path, **{"client__time.json": samples.time_json(duration_s)})
    assert row["status"] == status
    assert (row["goodput_mbps"] is None) == (status != "ok")


def test_more_than_any_link_carries_is_no_result(tmp_path: Path) -> None:
    """Of a log that does not tell how long it took."""
    log = samples.output("quiche", "lsquic")
    cut = b"\n".join(line for line in log.split(b"\n") if b"Transferring" not in line)
    assert cut != log
    row = highway(tmp_path, **{"output.txt": cut, "client__time.json": samples.time_json(1e-9)})
    assert row["status"] == "unreadable"
    assert "are more than any link carries" in row["reason"]


def test_a_repetition_with_a_file_twice_is_no_result(tmp_path: Path) -> None:
    content = samples.repetition("quiche", "lsquic", 8.66)
    both = [
        (f"run/quiche_lsquic/goodput/{number}/{name}", data) for number in ("1", "01") for name, data in content.items()
    ]
    reading.read("highway", samples.write(dict(both), tmp_path / "copy"), tmp_path / "out")
    row = pl.read_parquet(tmp_path / "out" / "runs.parquet").row(0, named=True)
    assert (row["status"], row["reason"]) == ("unreadable", "output.txt is there twice")


@pytest.mark.parametrize(
    "line", [b" " * 200_000, b"a " + b"/" * 200_000, b"a 1 Run " + b"x/" * 100_000, b"x y Client stderr\n" * 9000]
)
def test_patterns_end(line: bytes) -> None:
    for parser in (logs.parse_ethtool, logs.parse_netstat, logs.parse_output, logs.parse_tc, logs.parse_pidstat):
        with pytest.raises(logs.ParseError):
            parser(b"NIC statistics:\n" + line + b"\n")
    assert logs.parse_output(line + b"\nTest failed\n").status == "failed"


@pytest.mark.parametrize("header", [b"a" + b" " * 4000 + b"x 1", b"a" + b" 1" * 2000, b"a" * 1_000_000])
def test_headers_of_samples_end(header: bytes) -> None:
    packed = recordings_packed(header + b"\n")
    with pytest.raises(recordings.PerfTextError):
        recordings.fold(packed, "a")


def recordings_packed(text: bytes) -> bytes:
    return subprocess.run(["zstd", "-cq"], input=text, capture_output=True, check=True).stdout


def test_a_mapping_that_backtracks_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MATCHING_S", 0.2)
    profile = recordings.Profile()
    profile.stacks["a" * 60 + "b"] = 1
    with pytest.raises(recordings.PerfTextError, match="sorts no recording"):
        recordings.categories(profile, recordings.mapping({"regex:(a+)+$": "X"}))
    assert recordings.mapping({"regex:a{9999999999}": "X", "regex:" + "(" * 9000: "X"}) == []


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = recordings_packed(b"\n" * (8 << 20))
    monkeypatch.setattr("quicbed.importers.files.UNPACKED_AT_LEAST", 1 << 20)
    with pytest.raises(recordings.PerfTextError, match="unpacks to more than"):
        recordings.fold(packed, "a")


def one_repetition(tmp_path: Path) -> Path:
    """A copy of a repetition."""
    content = samples.repetition("a", "b", 9.0)
    return samples.write({f"run/a_b/goodput/1/{name}": data for name, data in content.items()}, tmp_path / "copy")


def test_an_import_deletes_nothing_that_it_did_not_write(tmp_path: Path) -> None:
    copy = samples.write(
        {f"run/a_b/goodput/1/{n}": d for n, d in samples.repetition("a", "b", 9.0).items()}, tmp_path / "copy"
    )
    out = tmp_path / "out"
    kept = {"notes.txt": b"1", "gaps/notes.txt": b"2"}
    samples.write(kept, out)
    (tmp_path / "out.partial").mkdir()
    reading.read("highway", copy, out)
    reading.read("highway", copy, out)
    assert {name: (out / name).read_bytes() for name in kept} == kept
    assert (tmp_path / "out.partial").is_dir()
    (out / "mine.parquet").write_bytes(b"3")
    with pytest.raises(CopyError, match=r"mine\.parquet: is of no import"):
        reading.read("highway", copy, out)
    assert (out / "mine.parquet").read_bytes() == b"3"
    (out / "mine.parquet").unlink()
    (tmp_path / "precious.parquet").write_bytes(b"4")
    document = json.loads((out / "import.json").read_text())
    (out / "import.json").write_text(json.dumps(document | {"tables": {"runs": 1, "counters": 1, "../precious": 1}}))
    reading.read("highway", copy, out)
    assert (tmp_path / "precious.parquet").read_bytes() == b"4"


def test_the_summary_goes_first_and_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = samples.write(
        {f"run/a_b/goodput/1/{n}": d for n, d in samples.repetition("a", "b", 9.0).items()}, tmp_path / "copy"
    )
    out = tmp_path / "out"
    reading.read("highway", copy, out)
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target == out / "runs.parquet":
            assert not (out / "import.json").exists()
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        reading.read("highway", copy, out)
    assert importers.imported(tmp_path) == {}
    monkeypatch.undo()
    reading.read("highway", copy, out)
    assert sorted(file.name for file in out.iterdir()) == ["counters.parquet", "import.json", "runs.parquet"]


def test_names_and_kinds_of_files_in_a_copy(tmp_path: Path) -> None:
    copy = samples.write(
        {f"run/a_b/goodput/1/{n}": d for n, d in samples.repetition("a", "b", 9.0).items()}, tmp_path / "copy"
    )
    for name in (b"\xff.json", b"a\nb", b"l" * 250):
        (copy / os.fsdecode(name)).write_bytes(b"{}")
    summary = reading.read("highway", copy, tmp_path / "out")
    reasons = {"name that is not UTF-8": 1, "name with control characters": 1, "name that is too long": 1}
    assert reasons.items() <= summary.skipped.items()
    summary.text().encode()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CopyError, match="neither a folder nor a file"):
        reading.read("qir", tmp_path / "fifo", tmp_path / "out")


def test_a_time_that_no_clock_showed_is_no_packet() -> None:
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, 1, 0, 65535, 20)
    packet = struct.pack("<IIIIIIII", 6, 32, 0, 0xFFFFFFFF, 0, 0, 0, 32)
    with pytest.raises(pcapng.PcapngError, match="no clock"):
        pcapng.to_pcap(section + interface + packet)


# ---- command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["build", "quiche", "nowhere"],
        ["build", "quiche", "stock@x"],
        ["runner-folder", "quiche", "nowhere", "--out", "x"],
        ["--config", "[" * 100_000, "plan"],
        ["--config", '{"scale": NaN}', "plan"],
        ["tables", "{tmp}", "/proc/nowhere/runs.parquet"],
        ["tables", "{tmp}", "{tmp}/file/runs.parquet"],
        ["import", "qir", "{tmp}/qir.json", "--out", "/proc/nowhere"],
        ["export", "qir", "aead-goodput", "{tmp}/out", "--table", "{tmp}/file"],
        ["symbols", "{tmp}"],
        ["handshake", "{tmp}/file", "{tmp}/file", "--server", "10.0.0.1:1"],
        ["predict", "--library", "x", "--group", "x25519", "--signature", "ed25519"],
        ["predict", "--library", "quinn", "--group", "x", "--signature", "ed25519"],
        ["predict", "--library", "quinn", "--group", "x25519", "--signature", "x"],
        ["predict", "--library", "quinn", "--group", "x25519", "--signature", "ed25519", "--raw", "{tmp}"],
    ],
    ids=wording.name,
)
def test_wrong_input_is_one_line(
    argv: list[str],
    snapshot: SnapshotAssertion,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    found = {
        "servers": ["a"],
        "clients": ["a"],
        "results": [[]],
        "measurements": [[{"name": "goodput", "result": "failed"}]],
    }
    (tmp_path / "qir.json").write_text(json.dumps(found))
    assert commands.main([part.replace("{tmp}", str(tmp_path)) for part in argv]) == 1
    error = capsys.readouterr().err
    assert error.startswith("quicbed: ")
    assert wording.one_line(error.removesuffix("\n"), tmp_path) == snapshot


def test_full_memory_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(details, "write_tables", full)
    assert commands.main(["tables", "x", "y"]) == 1
    assert capsys.readouterr().err == ("quicbed: memory is full: end other programs, then run the same command again\n")


def test_jobs_are_a_number_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.main(["certificates", "--jobs", "0"])
    assert "0 is not between 1 and 1024" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("symbols/zz.yaml", "claims: {packet-io: ['(']}", "bad pattern"),
        ("claims/zz.yaml", "title: [", "not valid YAML"),
        ("claims/zz.yaml", "title: 2024-99-99", "not valid YAML"),
    ],
)
def test_plan_checks_mappings_and_claims(
    file: str,
    content: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "clone"
    root.mkdir()
    for name in ("workflow", "raw"):
        (root / name).symlink_to(ROOT / name)
    copy_config(root / "config")
    (root / "config" / file).write_text(content, encoding="utf-8")
    monkeypatch.setattr(commands, "ROOT", root)
    assert commands.main(["plan"]) == 1
    error = capsys.readouterr().err
    assert file in error
    assert told in error
    assert error.count("\n") == 1


def test_a_look_at_a_hostile_tree_finds_nothing(raw: Path) -> None:
    sheet = look.handshake(raw, library="quinn", group="x25519", signature="rsa-2048")
    assert sheet.headers == ["not here"]


def test_a_table_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    table = tmp_path / "runs.parquet"
    os.mkfifo(table)
    with pytest.raises(RunsError, match=r"runs\.parquet: cannot be read: is not a regular file; run `quicbed tables`"):
        runs.read_parquet(table, runs.SCHEMA)
