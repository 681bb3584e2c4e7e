"""An experiment of pairs with real endpoints on the local testbed. Nothing is said of how long anything takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from clone import ROOT
from quicbed.analysis import comparison, paired_runs
from quicbed.config.model import Project
from quicbed.measure import certificates, session, stored_pairs
from quicbed.store import runs
from quicbed.testbed.base import Role
from quicbed.testbed.local import LocalTestbed, namespace_name

pytestmark = pytest.mark.root

ENDS: tuple[Role, ...] = ("client", "middle", "server")
NAME = "header-protection-pairs"


@pytest.fixture
def overrides(tmp_path: Path, build_of: Callable[[str, str], Path]) -> dict[str, object]:
    """What makes a project of this test's own with the builds of quinn, where each end can have a processor."""
    if isinstance(told := LocalTestbed().pins(), str):
        pytest.skip(told)
    for flavour in ("stock", "noop"):
        build = build_of("quinn", flavour)
        (tmp_path / "build").mkdir(exist_ok=True)
        (tmp_path / "build" / build.name).symlink_to(build)
    paths = {name: str(tmp_path / name) for name in ("build", "raw", "artifacts")}
    # so that what else the machine does cannot leave a ratio without a pair
    return {"paths": paths, "libraries": ["quinn"], "experiments": [NAME], "scale": "tiny", "gate": {"retries": 10}}


def test_an_experiment_is_measured_killed_and_goes_on(overrides: dict[str, object], tmp_path: Path) -> None:
    project = Project(ROOT, overrides)
    certificates.make_all(project, certificates.needed(project, [NAME]), jobs=1, log=tmp_path / "log")
    marker = str(tmp_path / "marker.json")
    argv = [sys.executable, "-m", "quicbed", "--config", json.dumps(overrides), "measure", NAME, "--marker", marker]
    log = tmp_path / "said"
    with log.open("wb") as out, subprocess.Popen(argv, cwd=ROOT, stderr=out, start_new_session=True) as process:
        deadline = time.monotonic() + 240
        while not list(project.raw.glob(f"local/{NAME}/*/b0000/[!.]*/b/run.json")):
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finished = {file: file.read_bytes() for file in project.raw.glob(f"local/{NAME}/*/b*/[!.]*/*/run.json")}
    session.measure(project, NAME, tmp_path / "marker.json")
    assert {file: file.read_bytes() for file in finished} == finished, "nothing is measured again"
    assert not list(project.raw.glob(f"local/{NAME}/*/b*/.*"))
    pairs = [stored_pairs.read(file.parents[1]) for file in project.raw.glob(f"local/{NAME}/*/b*/*/a/run.json")]
    counting = [pair for pair in pairs if stored_pairs.ok(pair)]
    assert len(counting) == 8, "two blocks of three contrasts and the A/A arm"
    for pair in counting:
        a, b = pair["a"], pair["b"]
        assert (a.cell.arm, b.cell.baseline) == ("beside", a.cell.id)
        assert a.variant.header_protection
        assert b.variant.header_protection is (b.cell.arm == "aa")
        assert {run.evidence.server.header_protection for run in (a,)} == {"on"}
        for run in pair.values():
            assert run.together is not None
            assert run.together.processors["server"] != run.together.processors["client"]
            assert (run.together.overlap or 0) >= 0.8
            assert run.evidence.proof
    proofs = list(project.raw.glob("local/proofs/*/*/capture.pcap"))
    assert len(proofs) == 6, "each variant is proven by a capture, also those that are beside others"
    table = runs.table(project.raw / "local")
    assert table.filter(pl.col("pair").is_not_null())["goodput_mbps"].null_count() == 2 * len(pairs)
    shown = paired_runs.table(comparison.Campaigns(table), NAME)
    assert shown.height == 4
    assert (shown["both_ratio_low"] < shown["both_ratio_high"]).all()
    assert not [role for role in ENDS if Path("/run/netns", namespace_name("local", role)).exists()]
