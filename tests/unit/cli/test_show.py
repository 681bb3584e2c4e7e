"""Runs looked up by name and printed, and lists of what there is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fakeruns
from clone import ROOT
from quicbed import __version__
from quicbed.claims import causes
from quicbed.cli import commands, show
from quicbed.config.model import Project
from quicbed.store.record import RunsError

MS = 1_000_000


def events(role: str, connections: int = 1) -> str:
    """What a program says of connections that begin at 1 s, 10 ms apart."""
    lines: list[dict[str, Any]] = [{"event": "start", "t": 900 * MS}]
    if role == "server":
        lines.append({"event": "ready", "t": 950 * MS})
    for index in range(connections):
        begin = (1000 + 10 * index) * MS
        first = {"t_client_hello": begin} if role == "client" else {"t_accept": begin + MS // 4}
        times = first | {"t_handshake_complete": begin + 2 * MS, "t_close": None}
        lines.append({"event": "connection", "index": index, "ok": True, "t": begin + 5 * MS, **times})
    lines.append({"event": "end", "t": 2000 * MS})
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two runs of one cell, in two blocks, with what their programs said."""
    for block in (0, 1):
        directory = fakeruns.write_run(tmp_path / "raw", fakeruns.make_run(block=block))
        for role in ("client", "server"):
            (directory / f"{role}.jsonl").write_text(events(role), encoding="utf-8")
    return tmp_path / "raw"


def shown(name: object, raw: Path, **options: bool) -> str:
    return show.text(*show.find(str(name), [raw]), **options)


def test_a_run_is_found_by_directory_file_origin_and_the_end_of_it(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(raw.parent)
    directory = sorted(raw.glob("*/*/*/b0001/*"))[0]
    origin = str(directory.relative_to(raw.parent))
    found = [shown(name, raw).splitlines()[1:] for name in (directory, directory / "run.json", origin)]
    monkeypatch.chdir("/")
    end = "/".join(directory.parts[-2:])
    found += [shown(name, raw).splitlines()[1:] for name in (origin, end, f"{end}/run.json")]
    assert all(one == found[0] for one in found)
    assert "1, place 0, attempt 0" in found[0][2]


def test_a_run_in_an_archive_is_found_by_its_origin_and_by_its_end(raw: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed" / "raw" / "reference"
    fakeruns.archive(raw, "local", "aead-goodput", packed / "other.tar.gz")
    end = "b0000/quinn-aes-128-gcm-00000001.0"
    for name in (end, f"raw/reference/other.tar.gz!local/aead-goodput/c0ffee00/{end}"):
        text = shown(name, packed)
        assert " ".join(text.split()).startswith(
            f"run raw/reference/other.tar.gz!local/aead-goodput/c0ffee00/{end} experiment"
        )
        assert "connection 0: client hello" in text


def test_it_says_what_was_measured_what_shows_it_and_when_what_happened(raw: Path) -> None:
    text = shown("b0000/quinn-aes-128-gcm-00000001.0", raw)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "client quinn 0.11.12, quinn-stock-000000000001",
        "testbed local, Example CPU, 6.1.0",
        "status ok",
        "goodput_mbps 2000",
        "client.cipher TLS_AES_128_GCM_SHA256",
        "proof proof-1",
        "run_delay_s.server 0.02",
        "-100.000 client start",
        "-50.000 server ready",
        "0.000 client connection 0: client hello",
        "0.250 server connection 0: accept",
        "2.000 client connection 0: handshake complete",
        "5.000 client connection 0: ok",
        "1000.000 server end",
    ):
        assert line in lines
    times = [float(line.split()[0]) for line in lines[lines.index("ms") + 1 :]]
    assert times == sorted(times)


def test_of_many_connections_the_first_are_shown_unless_all_are_asked_for(raw: Path) -> None:
    directory = next(raw.glob("*/*/*/b0000/*"))
    for role in ("client", "server"):
        (directory / f"{role}.jsonl").write_text(events(role, 40), encoding="utf-8")
    text = shown(directory, raw)
    assert "connection 2: client hello" in text
    assert "connection 3:" not in text
    assert text.endswith("\n37 more connections; --all shows them")
    assert "connection 39: client hello" in shown(directory, raw, every=True)


def test_what_programs_say_is_shown_without_control_characters(raw: Path) -> None:
    directory = next(raw.glob("*/*/*/b0000/*"))
    said = [
        {"event": "error", "reason": "\x1b[2Jgone\x9b", "t": 5},
        {"event": ["\x1b"], "t": 7},
        {"event": "connection", "index": 0, "t_close": "late", "t_\x1b": 8, "t": True},
        {"event": "connection", "index": "0", "t": 10**30},
    ]
    lines = [json.dumps(one).encode() for one in said]
    (directory / "client.jsonl").write_bytes(b"\n".join([*lines, b"\xff{", b"[]", b'{"event": "end']))
    text = shown(directory, raw)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "gone" in text


def test_a_run_without_events_is_shown_and_a_broken_one_says_why(raw: Path) -> None:
    directory = next(raw.glob("*/*/*/b0000/*"))
    for log in directory.glob("*.jsonl"):
        log.unlink()
    assert "Events" not in shown(directory, raw)
    (directory / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunsError, match=r"run\.json"):
        shown(directory, raw)


def test_a_name_of_no_run_or_of_several_is_one_line(raw: Path) -> None:
    with pytest.raises(RunsError, match=r"^nothing: no run has this name below .*`quicbed list runs` names them$"):
        show.find("nothing", [raw, raw / "absent"])
    with pytest.raises(RunsError, match=r"several runs end like this: .*b0000.*, .*b0001"):
        show.find("quinn-aes-128-gcm-00000001.0", [raw])


def test_the_commands_print_them(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = next(raw.glob("*/*/*/b0000/*"))
    assert commands.main(["show", str(directory)]) == 0
    assert "connection 0: client hello" in capsys.readouterr().out
    assert commands.main(["show", "no/such/run-1.0"]) == 1
    assert capsys.readouterr().err.startswith("quicbed: no/such/run-1.0: no run has this name below ")


def listed(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert commands.main(["list", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_lists_name_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    project = Project(ROOT)
    for kind, names in (("libraries", project.libraries), ("experiments", project.experiments)):
        assert [line.split()[0] for line in listed(capsys, kind)[1:]] == list(names)
    variants = listed(capsys, "variants", "--experiment", "aead-goodput")[1:]
    assert len(variants) == len(project.experiments["aead-goodput"].variants)
    assert "aead noop" in variants[3]
    claims = listed(capsys, "claims", "--experiment", "mtu")
    assert len(claims) > 1
    assert all(line.startswith("quantum-of-quic/fig5") for line in claims[1:] if "Fig. 5" in line)
    assert commands.main(["list", "claims", "--experiment", "mtuu"]) == 1
    assert capsys.readouterr().err.startswith("quicbed: experiment `mtuu` is unknown; known are ")


def test_runs_are_listed_with_the_names_that_show_takes(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fakeruns.write_run(raw, fakeruns.make_run(block=2, status="failed", reason="the client\thung", metrics={}))
    os.truncate(next(raw.glob("*/*/*/b0001/*")) / "run.json", 5)
    ok = listed(capsys, "runs", "--raw", str(raw), "--status", "ok")[1:]
    failed = listed(capsys, "runs", "--raw", str(raw), "--status", "failed", "--experiment", "aead-goodput")[1:]
    unreadable = listed(capsys, "runs", "--raw", str(raw), "--status", "unreadable")[1:]
    assert [len(one) for one in (ok, failed, unreadable)] == [1, 1, 1]
    assert ok[0].endswith("2000 Mbit/s")
    assert "hung" in failed[0]
    assert show.find(ok[0].split()[0], [raw])[0].endswith("b0000/quinn-aes-128-gcm-00000001.0")
    assert len(listed(capsys, "runs", "--raw", str(raw))) == 4


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        commands.main(["--version"])
    assert capsys.readouterr().out == f"quicbed {__version__}\n"


def test_a_plan_reads_what_is_read_when_all_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "causes.yaml"
    monkeypatch.setattr(causes, "FILE", file)
    unknown = "causes: [{id: x, text: y, explains: [{claims: no/such}], would_tell: z}]"
    for hostile in ("causes: [" * 1000, "causes: [{id: x}]", unknown):
        file.write_text(hostile, encoding="utf-8")
        assert commands.main(["plan", "mtu"]) == 1
        assert f"{file}: " in capsys.readouterr().err


def test_a_plan_of_named_experiments_is_of_these(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["plan", "mtu"]) == 0
    told = capsys.readouterr().out
    assert "measure mtu:" in told
    assert "measure aead-goodput:" not in told
    assert commands.main(["plan", "mtuu"]) == 1
    assert "mtuu" in capsys.readouterr().err
