"""A driver on a fake testbed as a program of its own. For tests that kill.

`fakedriver.py PROJECT MARKER [paired]` measures the experiment of a project that `fakeproject.make` has made; with
`paired` on a testbed that can run pairs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fakeproject
from faketestbed import FakeProcess, FakeTestbed, Sending
from quicbed.config.model import Project
from quicbed.measure import session
from quicbed.testbed.agent import cpu_seconds
from quicbed.testbed.lock import Lock


class LockedTestbed(FakeTestbed):
    """A fake testbed that one driver at a time has."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.lock = Lock(directory / "testbed.lock", "local")

    def __enter__(self) -> LockedTestbed:
        self.lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def main() -> None:
    monkeypatch = pytest.MonkeyPatch()
    fakeproject.pretend(monkeypatch)
    fakeproject.prove(monkeypatch)
    project = Project(Path(sys.argv[1]))
    paired = "paired" in sys.argv[3:]
    monkeypatch.setattr(FakeProcess, "sample_cpu", lambda self: cpu_seconds(self.pid))

    def opener(_: Project) -> FakeTestbed:
        return Sending() if paired else LockedTestbed(project.root)

    session.measure(project, "test", Path(sys.argv[2]), opener=opener)


if __name__ == "__main__":
    main()
