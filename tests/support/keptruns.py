"""What is stored while processes are killed, and that none of it is lost. For tests."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from fakeproject import runs
from quicbed.config.model import Project

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: throughput}
libraries: [quinn]
aa: false
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
  - {label: NOOP, cipher: aes-128-gcm, aead: noop, header_protection: false}
baseline: AES-128-GCM
scales:
  tiny: {bytes: 1000, blocks: 3, timeout_s: 1}
"""

RUNS = 6


class Kept:
    """What was stored under its name, which nobody may lose, change or find half."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.stored: dict[Path, dict[str, str]] = {}

    def look(self) -> None:
        """Compare with the last time; every run and every file of JSON that has its name is whole."""
        raw = self.project.raw
        for directory, before in self.stored.items():
            assert content(directory) == before, directory
        found = [*raw.glob("local/test/*/b*/[!.]*/"), *raw.glob("local/proofs/*/[!.]*/")]
        self.stored = {directory: content(directory) for directory in found}
        assert all("run.json" in files for files in self.stored.values())
        for file in raw.rglob("*.json"):
            if not any(part.endswith(".partial") for part in file.parts):
                json.loads(file.read_bytes())

    def complete(self) -> None:
        """A whole campaign was measured, nothing twice; it goes, for the next one."""
        self.look()
        done = [one for one in runs(self.project) if one["status"] == "ok"]
        assert len(done) == RUNS
        assert len({(one["cell"]["id"], one["block"]) for one in done}) == RUNS
        assert not list(self.project.raw.rglob("*.partial"))
        self.forget()

    def forget(self) -> None:
        shutil.rmtree(self.project.raw)
        self.stored = {}


def content(directory: Path) -> dict[str, str]:
    files = [file for file in sorted(directory.rglob("*")) if file.is_file()]
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
