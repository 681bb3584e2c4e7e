"""What a notebook shows of a captured handshake: shipped with the reference data, else dissected, else why not."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import pytest

import fakeruns
from quicbed.cli.commands import main
from quicbed.report import look
from quicbed.store import paths
from quicbed.wire.tshark import TsharkError

NEEDS_TSHARK = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
ARCHIVES = ("native-handshake", "table2-kem", "table3-signature")
ASKED = {"library": "quiche", "group": "kyber768", "signature": "rsa-2048"}
MISSING = "tshark is missing; install with: apt-get install tshark (as an administrator)"


@pytest.fixture
def reference(repository: Path) -> Path:
    return repository / "raw" / "reference"


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which there is nothing yet."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


@pytest.fixture
def own(repository: Path, tmp_path: Path) -> Path:
    """Runs with the proof of a handshake, as they are measured."""
    side = fakeruns.make_run()["client"] | {"library": "quiche"}
    variant = {"group": "kyber768", "signature": "rsa-2048"}
    fakeruns.write_captured(tmp_path / "raw", "quiche", client=side, server=side, variant=variant)
    return tmp_path / "raw"


@pytest.fixture
def packed(own: Path, tmp_path: Path) -> Path:
    """An archive of those runs, with the packets of its handshake shipped beside it."""
    archive = tmp_path / "kept" / "some.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as file:
        file.add(own / "local", arcname="local")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    head = {"archive": archive.name, "archive_sha256": digest, "columns": look.HEADERS, "tshark": "4"}
    row = [1, "0.000", "client", 1200, "Initial", 0, "CRYPTO", "ClientHello"]
    lines = [head, ASKED | {"packets": [row] * look.PACKETS}]
    shipped = archive.with_name(f"some{look.PACKETS_SUFFIX}")
    shipped.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return archive


def test_the_reference_data_is_shown_without_tshark(reference: Path, no_tools: Path) -> None:
    sheet = look.handshake(reference, **ASKED)
    assert sheet.headers == look.HEADERS
    assert len(sheet.rows) == look.PACKETS
    assert sheet.rows[0][:5] == [1, "0.000", "client", 1200, "Initial"]
    assert "ClientHello" in {row[7] for row in sheet.rows}
    assert len(look.handshake(reference, **ASKED, packets=3).rows) == 3


def test_nothing_else_is_shipped(reference: Path) -> None:
    assert {file.name for file in reference.glob(f"*{look.PACKETS_SUFFIX}")} == {
        f"{name}{look.PACKETS_SUFFIX}" for name in ARCHIVES
    }


@pytest.mark.parametrize("damage", [None, "another archive", "another layout", "cut short", "no JSON"])
def test_what_was_made_of_something_else_is_not_shown(packed: Path, no_tools: Path, damage: str | None) -> None:
    shipped = packed.with_name(f"some{look.PACKETS_SUFFIX}")
    text = shipped.read_text(encoding="utf-8")
    head, _, rest = text.partition("\n")
    match damage:
        case None:
            assert len(look.handshake(packed.parent, **ASKED).rows) == look.PACKETS
            return
        case "another archive":
            with packed.open("ab") as file:
                file.write(bytes(512))
        case "another layout":
            shipped.write_text(f"{json.dumps(json.loads(head) | {'columns': ['packet']})}\n{rest}", encoding="utf-8")
        case "cut short":
            shipped.write_text(text[: len(head) + 100], encoding="utf-8")
        case _:
            shipped.write_text("packets\n", encoding="utf-8")
    sheet = look.handshake(packed.parent, **ASKED)
    assert sheet.headers == ["not shown"]
    ((line,),) = sheet.rows
    assert line.startswith(f"the first 40 packets of a handshake of quiche with kyber768 and rsa-2048: {MISSING}")


def test_more_packets_than_are_shipped_need_tshark(packed: Path, no_tools: Path) -> None:
    sheet = look.handshake(packed.parent, **ASKED, packets=look.PACKETS + 1)
    ((line,),) = sheet.rows
    assert line.startswith("the first 41 packets of a handshake of quiche")
    assert MISSING in line


@NEEDS_TSHARK
def test_own_runs_are_dissected(own: Path) -> None:
    sheet = look.handshake(own, **ASKED, packets=5)
    assert [row[0] for row in sheet.rows] == [1, 2, 3, 4, 5]
    assert look.handshake(own, library="quinn", group="kyber768", signature="rsa-2048").headers == ["not here"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, MISSING),
        ("", "tshark cannot be started: Exec format error; install it again"),
        ("#!/bin/sh\nkill -SEGV $$\n", "capture.pcap: tshark: exit status -11"),
        ("#!/bin/sh\necho 'capture.pcap: cut short' >&2; exit 2\n", "capture.pcap: tshark: capture.pcap: cut short"),
        ("#!/bin/sh\nwhile :; do :; done\n", "capture.pcap: tshark is not done after 0.5 s; look at fewer packets"),
        ("#!/bin/sh\nexit 0\n", "capture.pcap: tshark finds no packet in it"),
        ("#!/bin/sh\necho '<packet>no XML</packe><packet></packet>'\n", "capture.pcap: tshark did not write PDML"),
    ],
)
def test_a_tshark_that_is_missing_or_fails_costs_one_line(
    own: Path, no_tools: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    monkeypatch.setattr(look, "TIMEOUT_S", 0.5)
    if script is not None:
        (no_tools / "tshark").write_text(script, encoding="utf-8")
        (no_tools / "tshark").chmod(0o755)
    sheet = look.handshake(own, **ASKED)
    assert sheet.headers == ["not shown"]
    ((line,),) = sheet.rows
    assert line.startswith(f"the first 40 packets of a handshake of quiche with kyber768 and rsa-2048: {reason}")
    assert str(own.parent) not in line


def test_damaged_runs_and_archives_are_passed_over(own: Path, no_tools: Path) -> None:
    (run,) = own.rglob("run.json")
    run.write_text("{", encoding="utf-8")
    (own / "torn.tar.gz").write_bytes(b"torn")
    with tarfile.open(own / "odd.tar.gz", "w:gz") as odd:
        odd.add(run.parent, arcname="local/odd")
    assert look.handshake(own, **ASKED).headers == ["not here"]


@NEEDS_TSHARK
def test_packets_of_an_archive_are_written_beside_it(own: Path, tmp_path: Path) -> None:
    archive = tmp_path / "packed" / "runs.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(own / "local", arcname="local")
    file = look.write(archive)
    assert file == archive.with_name("runs.packets.jsonl")
    first = file.read_bytes()
    look.write(archive)
    assert file.read_bytes() == first
    head, one = map(json.loads, first.decode().splitlines())
    assert head["archive"] == "runs.tar.gz"
    assert one["run"] == "local/proofs/c0ffee00/quiche-0000000f.0"
    (own / "local" / "proofs" / "c0ffee00" / "quiche-0000000f.0" / "run.json").unlink()
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(own / "local", arcname="local")
    assert look.write(archive) is None
    assert not file.exists()


@pytest.mark.parametrize("argv", [["packets"], ["dissect", "RAW", "OUT"]])
def test_commands_that_need_tshark_say_so_in_a_line(
    own: Path, tmp_path: Path, no_tools: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    words = {"RAW": str(own), "OUT": str(tmp_path / "captures.parquet")}
    assert main([words.get(word, word) for word in argv]) == 1
    assert capsys.readouterr().err.splitlines() == [f"quicbed: {MISSING}"]


@NEEDS_TSHARK
def test_a_capture_that_tshark_cannot_read_is_named_with_its_archive(own: Path, tmp_path: Path) -> None:
    (capture,) = own.rglob(paths.CAPTURE)
    capture.write_bytes(b"no capture")
    archive = tmp_path / "runs.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(own / "local", arcname="local")
    with pytest.raises(TsharkError, match=r"runs.tar.gz!local/proofs/c0ffee00/quiche-0000000f.0/capture.pcap: tshark"):
        look.write(archive)
