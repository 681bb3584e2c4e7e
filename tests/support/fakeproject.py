"""A project whose builds are fake endpoints, measured on a testbed without namespaces. For tests of the driver."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from clone import EXTERNAL, ROOT, copy_config
from faketestbed import FAKE_ENDPOINT, FakeTestbed
from quicbed.builds import sources
from quicbed.config import algorithms
from quicbed.config.model import External, ExternalFile, ExternalLibrary, Library, Project, external_library
from quicbed.measure import campaign as campaign_module
from quicbed.measure import certificates, endpoint_pair, session, time_left
from quicbed.measure.attempt import Attempt
from quicbed.measure.driver import Driver
from quicbed.plan.built import Build
from quicbed.plan.fleet import FLEET
from quicbed.testbed import Testbed
from quicbed.wire import proof

INTERPRETER = f'#!/usr/bin/env -S "{sys.executable}" -S\n'
"""First line of a program in Python, also where the path of the interpreter has spaces."""

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: throughput}
libraries: [quiche, quinn]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
  - {label: NOOP, cipher: aes-128-gcm, aead: noop, header_protection: false}
baseline: AES-128-GCM
scales:
  tiny: {bytes: 1000, blocks: 3, timeout_s: 1}
"""

HEAD = """
import json, os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
log = options["--events"]
def emit(text):
    with open(log, "a") as out:
        out.write(text + "\\n")
"""


def make(root: Path, experiment: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project below `root` with this experiment, named `test`, alone; its builds are made as they are asked for."""
    copy_config(root / "config")
    (root / "workflow" / "crypto").mkdir(parents=True)
    shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", root / "workflow" / "crypto")
    shutil.copytree(ROOT / FLEET.parent, root / FLEET.parent)
    shutil.rmtree(root / "config" / "studies")
    for file in (root / "config" / "experiments").iterdir():
        file.unlink()
    (root / "config" / "experiments" / "test.yaml").write_text(experiment, encoding="utf-8")
    (root / "config" / "config.yaml").write_text(
        "scale: tiny\nexperiments: [test]\ngate: {retries: 1}\n", encoding="utf-8"
    )
    made = Project(root)
    certificates.make(certificates.directory(made))
    for signature in certificates.needed(made):
        if signature != certificates.DEFAULT:
            shutil.copytree(certificates.directory(made), certificates.directory(made, signature))
    pretend(monkeypatch)
    return made


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let builds be made as they are asked for, and let nothing be waited for as long as with real ones."""

    def read_build(project: Project, library: str, flavour: str) -> Build:
        directory = project.build / f"{library}-{flavour}"
        (directory / "bin").mkdir(parents=True, exist_ok=True)
        if not (directory / "bin" / "client").exists():
            behave(project, library, flavour)
        return Build(build=directory.name, library=library, flavour=flavour, version="1")

    monkeypatch.setattr(campaign_module.making, "read_build", read_build)
    monkeypatch.setattr(sources, "fetched", lambda _: False)
    monkeypatch.setattr(time_left, "LOOK_S", 0.0)
    monkeypatch.setattr(endpoint_pair, "READY_TIMEOUT", 1.0)
    monkeypatch.setattr(endpoint_pair, "STOP_TIMEOUT", 0.5)
    monkeypatch.setattr(endpoint_pair, "HANG_MARGIN", 0.5)


class Proven:
    """What an examined capture says, where the capture itself is not the subject of a test."""

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"mode": mode, "client_to_server": {"mean_frame_bytes": 80.0}}


def prove(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every capture show what it should."""
    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    monkeypatch.setattr(proof, "undecided", lambda *_args: None)


def behave(project: Project, library: str, flavour: str, **behaviour: list[str]) -> None:
    """Install the fake endpoint as a build; `client=["ok", "crash"]` is per execution, the last one repeating."""
    binaries = project.build / f"{library}-{flavour}" / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    for role in ("client", "server", "primitives"):
        (binaries / role).write_text(f"{INTERPRETER}{FAKE_ENDPOINT}", encoding="utf-8")
        (binaries / role).chmod(0o755)
        (binaries / f"{role}.count").unlink(missing_ok=True)
    shutil.copy(project.root / "workflow" / "crypto" / "algorithms.csv", binaries)
    (binaries / "behaviour.json").write_text(json.dumps(behaviour), encoding="utf-8")


def run(project: Project, testbed: FakeTestbed | None = None) -> dict[str, Any]:
    """Measure the experiment; returns what the marker of a finished one says."""
    marker = project.root / "marker.json"
    session.measure(project, "test", marker, opener=lambda _: testbed or FakeTestbed())
    data: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
    return data


def once(project: Project, directory: Path, testbed: Testbed | None = None) -> Attempt:
    """One run of the experiment's first cell, with its output in a new directory; nothing is proven or stored."""
    testbed = testbed or FakeTestbed()
    campaign = campaign_module.Campaign(Driver(project, testbed, testbed.facts()), "test")
    directory.mkdir()
    return campaign.driver.runner.execute(campaign.spec(campaign.cells[0]), directory)


def runs(project: Project, pattern: str = "test/*/b*") -> list[dict[str, Any]]:
    """Every run.json in directories below raw/local."""
    files = sorted((project.raw / "local").glob(f"{pattern}/*/run.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def orders(project: Project) -> list[list[str]]:
    """Cells of every block in the order in which they are measured."""
    files = sorted((project.raw / "local" / "test").glob("*/b*/block.json"))
    return [json.loads(file.read_text(encoding="utf-8"))["cells"] for file in files]


def outside(library: Library, **stated: Any) -> ExternalLibrary:
    """A library as that of a folder, which states this besides."""
    folder = described(path=str(EXTERNAL / "misbehaving"), **stated)
    return ExternalLibrary(**dict(library), folder=folder.folder, statement=folder.statement)


def described(*, path: str, **more: Any) -> ExternalLibrary:
    """A library as a file in config/libraries/ describes it, the folder being at *path*.

    What is no key of `external` takes the place of what the folder states.
    """
    own = {name: more.pop(name) for name in list(more) if name in External.model_fields}
    file = ExternalFile(external=External(path=path, **own))
    library = external_library(ROOT, "ext", file, algorithms.read(ROOT))
    stated = library.statement.model_copy(update=more)
    return library.model_copy(update={"statement": stated})
