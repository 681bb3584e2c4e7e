"""Pairs of real endpoints at the same time. Nothing is said of how long anything takes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.config.model import Project
from quicbed.measure import comparing
from quicbed.measure.comparing import Asked, UnsupportedError
from quicbed.measure.counted_arms import Counted
from quicbed.store.record import Run
from quicbed.testbed.base import Role
from quicbed.testbed.local import LocalTestbed, namespace_name

pytestmark = pytest.mark.root

ENDS: tuple[Role, ...] = ("client", "middle", "server")
LIBRARIES = ("quiche", "quinn")


@pytest.fixture
def project(tmp_path: Path, build_of: Callable[[str, str], Path]) -> Project:
    """A project whose runs and certificates are of this test, with builds of two libraries."""
    made = Project(ROOT, {"paths": {"build": str(tmp_path / "build"), "raw": str(tmp_path / "raw")}})
    made.build.mkdir()
    for library in LIBRARIES:
        for flavour in ("stock", "noop"):
            build = build_of(library, flavour)
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


@pytest.fixture
def valgrind() -> None:
    """What counts instructions."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is missing")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.usefixtures("valgrind")
def test_instructions_of_two_builds(library: str, project: Project, tmp_path: Path) -> None:
    what = replace(
        asked(aead="noop", header_protection="off"),
        arms={"a": f"{library}/stock", "b": f"{library}/noop"},
        instructions=True,
    )
    found = comparing.compare(project, what, tmp_path / "log")
    assert isinstance(found.instructions, Counted), found.instructions
    # a NOOP that encrypts would take as many
    assert all(0 < ratio < 0.9 for ratio in map(found.instructions.ratio, ("both ends", "client", "server")))
    runs = [Run.read(file) for file in sorted(found.directory.glob("counted/*/run.json"))]
    assert [(run.status, run.cell.arm, run.workload.bytes == 1) for run in runs] == [
        ("ok", arm, start) for _ in range(2) for arm in "ab" for start in (True, False)
    ]
    for run in runs:
        assert run.evidence.proof
        assert run.together is None
        assert run.evidence.client.aead == ("noop" if run.cell.arm == "b" else "standard")
        assert "aes" in (run.host.perf or {})["processor"]
    again = comparing.compare(project, what, tmp_path / "log")
    assert again.instructions == found.instructions
    assert len(list(found.directory.glob("counted/*"))) == len(runs), "what is stored is not counted again"


def command(project: Project, tmp_path: Path, *words: str) -> list[str]:
    """A comparison of quinn with itself, as a command."""
    paths = {"paths": {"build": str(project.build), "raw": str(project.raw)}}
    argv = [sys.executable, "-m", "quicbed", "--config", json.dumps(paths), "compare", "quinn/stock", "quinn/noop"]
    return [*argv, "--bytes", str(8 << 20), "--log", str(tmp_path / "log"), *words]


def kill_once_there(argv: list[str], project: Project, pattern: str, limit_s: float) -> None:
    """Run a command, and kill it when there is something of this pattern among the runs."""
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        deadline = time.monotonic() + limit_s
        while not list((project.raw / "local" / "compare").glob(pattern)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("valgrind")
def test_a_count_that_is_killed_goes_on_where_it_ended(project: Project, tmp_path: Path) -> None:
    argv = command(project, tmp_path, "--b-aead", "noop", "--half-width", "90", "--min-pairs", "3", "--max-pairs", "3")
    argv += ["--json", str(tmp_path / "found.json")]
    kill_once_there(argv, project, "*/counted/0001-a/run.json", 300)
    compare = project.raw / "local" / "compare"
    before = {file: file.read_bytes() for file in compare.glob("*/*/*/run.json")}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    # 3: the limits came before the interval was narrow, of which counting says nothing
    assert done.returncode in (0, 3), done.stderr
    assert {file: file.read_bytes() for file in before} == before
    assert len(list(compare.glob("*/counted/*/run.json"))) == 8
    assert not [*compare.glob("*/.*"), *compare.glob("*/counted/.*")]
    told = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["instructions"]
    assert 0 < told["ratios"]["both ends"]["ratio"] < 1
    assert "Instructions per byte, B over A" in done.stdout
    assert not [role for role in ENDS if Path("/run/netns", namespace_name("local", role)).exists()]


def test_a_command_that_is_killed_leaves_nothing_that_the_next_does_not_clean_up(
    project: Project, tmp_path: Path
) -> None:
    argv = command(project, tmp_path, "--half-width", "0.01", "--max-pairs", "500", "--no-instructions")
    kill_once_there(argv, project, "*/p0001/b/run.json", 120)
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
