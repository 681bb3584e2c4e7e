"""What commands print of this repository as it is, word by word: a change of it is a difference of a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT
from quicbed.cli import commands
from quicbed.config.model import Project
from quicbed.measure import doctor, workflow_estimate
from quicbed.testbed import Feature


@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["plan", "mtu", "web", "scale=paper"],
        ["plan", "experiments=[table2-kem]", "libraries=[quiche]"],
        ["list", "libraries"],
        ["list", "experiments"],
        ["list", "variants", "--experiment", "aead-goodput"],
        ["list", "claims", "--experiment", "mtu"],
    ],
    ids=wording.name,
)
def test_a_command_prints_this(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    """Of a clone in which nothing has been built or measured."""
    paths = {"paths": {name: str(tmp_path / name) for name in ("build", "raw", "artifacts")}}
    assert commands.main(["--config", json.dumps(paths), *words]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == snapshot


@pytest.mark.parametrize(
    "lacking", [[], ["delay", "fq", "etf", "perf"], ["tshark", "generator"], ["veth"]], ids=wording.name
)
def test_the_doctor_says_this_of_every_experiment(
    lacking: list[str], monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(workflow_estimate, "disk_mb", lambda *_: 0.0)
    project = Project(ROOT).without_folders()
    found = {name: Feature(False, f"there is no {name}") for name in lacking}
    processor = {"aes", "avx2", "bmi1", "pclmulqdq"}
    lines = []
    for name in project.experiments:
        verdict, reasons = doctor.judged(project, name, found, [processor])
        lines += [f"{name}: {verdict}", *(f"  {reason}" for reason in reasons)]
    assert "\n".join(lines) == snapshot
