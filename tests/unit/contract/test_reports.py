"""What scripts of external endpoints report is read as what strangers wrote: used, or refused in one line."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT

ENDPOINTS = ROOT / "workflow" / "endpoints"
BEGIN, END = 1000, 9000


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the programs that drive a folder, which run without what quicbed needs."""
    monkeypatch.syspath_prepend(str(ENDPOINTS / "contract" / "python"))
    specification = importlib.util.spec_from_file_location("told", ENDPOINTS / "external" / "told.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(__import__("sys").modules, "told", module)  # where its dataclasses look for themselves
    specification.loader.exec_module(module)
    return module


def lines(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def connection(**fields: Any) -> str:
    return lines({"event": "connection", **fields})


def test_what_is_reported_is_taken_and_nothing_else(told: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    assert told.read(file, "client", BEGIN, END) == told.Report()
    start = {"event": "start", "pid": 1, "options": {"receive_buffer": 5, "gso": True, "window": None, "mood": "good"}}
    file.write_text(
        lines(start, {"event": "ready", "port": "none"}) + connection(index=7, ok=True, group="x25519", mood=1), "utf-8"
    )
    report = told.read(file, "client", BEGIN, END)
    assert report.options == {"receive_buffer": 5, "gso": True}
    assert report.connections == [{"group": "x25519"}]


def test_a_line_that_is_being_written_waits(told: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(lines({"event": "start", "options": {"gso": False}}) + '{"event": "conn', encoding="utf-8")
    assert told.read(file, "server", BEGIN, END, unfinished=True).options == {"gso": False}
    with pytest.raises(told.ReportError, match="line 2: is not JSON"):
        told.read(file, "server", BEGIN, END)


@pytest.mark.parametrize(
    "text",
    [
        "[]\n",
        "[" * 60_000,
        '{"event": "connection", "packets_sent": NaN}',
        connection(packets_sent=2**63),
        connection(packets_sent=True),
        connection(packets_lost=-1),
        connection(retry=1),
        connection(cipher="a\nb"),
        connection(cipher="x" * 1000),
        connection(aead="none"),
        connection(t_first_byte=END + 1),
        connection(t_first_byte=3000, t_last_byte=2000),
        connection(ok=False),
        '{"event": "\\ud800"}',
        connection(cipher="\ud800"),
        "\xff\xfe",
    ],
    ids=wording.name,
)
def test_a_report_that_is_none_is_refused_in_one_line(
    text: str, snapshot: SnapshotAssertion, told: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(text.encode("latin-1", "replace"))
    with pytest.raises(told.ReportError) as refused:
        told.read(file, "client", BEGIN, END)
    assert wording.one_line(refused.value, tmp_path) == snapshot
    assert len(str(refused.value)) < 400


def large(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (lambda file: file.symlink_to("/etc/passwd"), "cannot be read"),
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (large, "is larger than 16 MiB"),
    ],
)
def test_what_is_no_file_of_a_report_is_not_read(
    plant: Callable[[Path], object], problem: str, told: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    plant(file)
    with pytest.raises(told.ReportError, match=f"events.jsonl: {problem}"):
        told.read(file, "client", BEGIN, END)
