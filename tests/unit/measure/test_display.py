"""What somebody sees who watches a measurement on a terminal, and what a log has."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from quicbed.measure.display import showing_progress
from quicbed.measure.progress import At, copy_progress, logger, say

WHY = "other programs used 31 % of the processors"


def run(cell: int, *, ok: bool = True, contamination: tuple[str, ...] = ()) -> None:
    """Say that a run has ended."""
    say(f"cell {cell} is measured", At("aead: block 1 of at most 6", cell, 4, ok, contamination, "done about 14:20"))


def frames(written: str) -> list[str]:
    """What was drawn, without codes for the terminal."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "\n")
    return [line.strip() for line in plain.split("\n") if line.strip()]


def test_a_terminal_has_one_bar_with_the_reason_of_the_last_contamination() -> None:
    written = io.StringIO()
    with showing_progress(Console(file=written, force_terminal=True, width=160)):
        run(1)
        run(2, contamination=(WHY,))
        say("waiting for the link")
        run(3, ok=False)
    drawn = frames(written.getvalue())
    bars = [line for line in drawn if line.startswith("aead: block 1 of at most 6")]
    assert any(line.endswith("1/4 done about 14:20") for line in bars)
    assert bars[-1].endswith(f"3/4 done about 14:20; 1 contaminated, the last: {WHY}")
    # what is as it should be moves the bar only
    lines = [line for line in drawn if line not in bars]
    assert lines == ["cell 2 is measured", "waiting for the link", "cell 3 is measured"]


def test_what_is_no_terminal_gets_every_line_and_no_bar(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "handlers", [])
    copy_progress(tmp_path / "log")
    written = io.StringIO()
    with showing_progress(Console(file=written, width=160)):
        run(1)
        run(2, contamination=(WHY,))
    assert written.getvalue() == ""
    assert [line.split(" ", 2)[2] for line in (tmp_path / "log").read_text().splitlines()] == [
        "cell 1 is measured",
        "cell 2 is measured",
    ]
    for handler in logger.handlers:
        handler.close()


def test_afterwards_lines_go_where_they_went_before() -> None:
    before = list(logger.handlers)
    with showing_progress(Console(file=io.StringIO(), force_terminal=True)):
        assert logger.handlers != before
    assert sorted(map(id, logger.handlers)) == sorted(map(id, before))
