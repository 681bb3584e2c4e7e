"""What a driver keeps, with each of its steps on the file system failing once, and with the driver killed there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from failingsteps import ENOUGH, KilledError, Steps
from quicbed.base import durable
from quicbed.measure.storing import stored


def measure(raw: Path) -> None:
    """What a driver keeps: a campaign, two runs of a block, and what is made anew each time."""
    durable.remove_leftovers(raw, "run.json")
    if not (raw / "campaign.json").exists():
        durable.write_json(raw / "campaign.json", {"id": 1})
    for number in range(2):
        target = raw / "b0000" / f"run.{number}"
        if not (target / "run.json").exists():
            with stored(target) as directory:
                (directory / "logs").mkdir()
                (directory / "logs" / "client").write_text("whole", encoding="ascii")
                (directory / "server.err").write_text("", encoding="ascii")
                durable.write_json(directory / "run.json", {"number": number})
    with durable.filling(raw / "made", replace=True) as made:
        (made / "table").write_text("whole", encoding="ascii")
    durable.write_text(raw / "marker.json", "done")


def found(raw: Path) -> dict[str, str]:
    """Contents of files by name."""
    return {path.relative_to(raw).as_posix(): path.read_text() for path in raw.rglob("*") if path.is_file()}


WHOLE = {
    "campaign.json": '{\n "id": 1\n}\n',
    "b0000/run.0/run.json": '{\n "number": 0\n}\n',
    "b0000/run.0/logs/client": "whole",
    "b0000/run.1/run.json": '{\n "number": 1\n}\n',
    "b0000/run.1/logs/client": "whole",
    "made/table": "whole",
    "marker.json": "done",
}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory where there is one: this makes thousands of files."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as made:
        yield Path(made)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kills", [False, True])
def test_no_step_leaves_half_of_anything_and_the_next_start_makes_it_whole(
    memory: Path, monkeypatch: pytest.MonkeyPatch, kills: bool, again: bool
) -> None:
    """*again*: everything has been made before, of which the first start keeps what is kept."""
    before = memory / "before"
    before.mkdir()
    if again:
        measure(before)
        shutil.rmtree(before / "b0000" / "run.1")
    for number in range(ENOUGH):
        raw = memory / str(number)
        shutil.copytree(before, raw)
        with monkeypatch.context() as patched:
            steps = Steps(patched, kills=kills)
            steps.left = number
            try:
                measure(raw)
                failed = False
            except (OSError, KilledError):
                failed = True
        seen = {name: text for name, text in found(raw).items() if ".partial" not in name}
        # whatever has its name is whole, and a directory has all of its files
        assert seen.items() <= WHOLE.items(), number
        for run in ("run.0", "run.1"):
            names = {name for name in WHOLE if name.startswith(f"b0000/{run}/")}
            assert names & seen.keys() in (set(), names), number
        if again:
            assert "b0000/run.0/run.json" in seen
        # the next start may do something else first
        durable.remove_leftovers(raw, "run.json")
        assert not list(raw.rglob(".*")), number
        measure(raw)
        assert found(raw) == WHOLE, number
        shutil.rmtree(raw)
        if not failed and steps.left >= 0:
            assert number > 20
            return
    pytest.fail(f"more than {ENOUGH} steps")
