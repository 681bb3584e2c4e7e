"""Pairs of real endpoints at the same time. Nothing is said of how long anything takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.config.model import Project
from quicbed.measure import comparing
from quicbed.measure.comparing import Asked, UnsupportedError
from quicbed.store.record import Run
from quicbed.testbed.base import Role
from quicbed.testbed.local import LocalTestbed, namespace_name

pytestmark = pytest.mark.root

ENDS: tuple[Role, ...] = ("client", "middle", "server")


@pytest.fixture
def project(tmp_path: Path, build_of: Callable[[str, str], Path]) -> Project:
    """A project whose runs and certificates are of this test, with the builds of quinn."""
    made = Project(ROOT, {"paths": {"build": str(tmp_path / "build"), "raw": str(tmp_path / "raw")}})
    made.build.mkdir()
    for flavour in ("stock", "noop"):
        build = build_of("quinn", flavour)
        (made.build / build.name).symlink_to(build)
    if isinstance(told := LocalTestbed().pins(), str):
        pytest.skip(told)
    return made


def asked(**variant: str) -> Asked:
    return Asked(
        arms={"a": "quinn/stock", "b": "quinn/noop"},
        variants={"a": {}, "b": variant},
        bytes=8 << 20,
        min_pairs=2,
        max_pairs=2,
        half_width=0.9,
    )


def test_two_builds_of_quinn(project: Project, tmp_path: Path) -> None:
    found = comparing.compare(project, asked(aead="noop"), tmp_path / "log")
    assert found.pairs == 2
    assert all(0 < one.low <= one.ratio <= one.high for one in found.intervals.values())
    pairs = sorted(found.directory.glob("p*"))
    for pair in pairs:
        runs = {arm: Run.read(pair / arm / "run.json") for arm in "ab"}
        if "transferred alone" in (runs["a"].reason or ""):
            continue  # as on a busy machine
        assert {run.status for run in runs.values()} == {"ok"}
        assert [run.evidence.client.aead for run in runs.values()] == ["standard", "noop"]
        for run in runs.values():
            told = run.together
            assert told is not None
            assert 0 < (told.overlap or 0) <= 1
            assert told.processors["server"] != told.processors["client"]
            # what the kernel tells from outside, beside what the whole program used
            for role in ("client", "server"):
                own, whole = (getattr(told, f"{role}_cpu_s"), getattr(run.metrics, f"{role}_process_cpu_s"))
                assert 0 < own <= whole
            assert "processor" not in " ".join(run.contamination).replace("of all processor time", "")
    assert len({run.parent for run in found.directory.glob("p*/*/run.json")}) == 2 * len(pairs)
    proofs = list((project.raw / "local" / "proofs").glob("*/*/capture.pcap"))
    assert len(proofs) == 2, "each arm is proven by a capture"


def test_a_build_that_cannot_do_the_variant(project: Project, tmp_path: Path) -> None:
    what = Asked(arms={"a": "quinn/noop", "b": "quinn/stock"}, variants={"a": {}, "b": {"aead": "noop"}})
    with pytest.raises(UnsupportedError, match=r"quinn/stock: .*noop"):
        comparing.compare(project, what, tmp_path / "log")


def test_a_command_that_is_killed_leaves_nothing_that_the_next_does_not_clean_up(
    project: Project, tmp_path: Path
) -> None:
    paths = {"paths": {"build": str(project.build), "raw": str(project.raw)}}
    argv = [sys.executable, "-m", "quicbed", "--config", json.dumps(paths), "compare", "quinn/stock", "quinn/noop"]
    argv += ["--bytes", str(8 << 20), "--half-width", "0.01", "--max-pairs", "500", "--log", str(tmp_path / "log")]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not list((project.raw / "local" / "compare").glob("*/p0001/b/run.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    before = len(list((project.raw / "local" / "compare").glob("*/p*")))
    argv[argv.index("500")] = str(before + 1)
    argv[argv.index("0.01")] = "90"
    # what was stored before counts, and the rest is measured
    done = subprocess.run(
        [*argv, "--min-pairs", str(before + 1)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for pair in (project.raw / "local" / "compare").glob("*/p*"):
        assert {run.parent.name for run in pair.glob("*/run.json")} == {"a", "b"}
    assert not list((project.raw / "local" / "compare").glob("*/.*"))
    assert not [role for role in ENDS if Path("/run/netns", namespace_name("local", role)).exists()]
