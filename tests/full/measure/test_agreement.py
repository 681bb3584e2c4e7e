"""What endpoints tell of handshakes and what their capture shows agree: shipped runs, looked at anew."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure.examine import Examiner
from quicbed.plan.cells import cells_of
from quicbed.plan.spec import proof_spec
from quicbed.store import walk
from quicbed.store.paths import CAPTURE, KEYS, RUN_FILE
from quicbed.store.record import Run
from quicbed.wire import handshake

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")

PROJECT = Project(ROOT).without_folders()
EXPERIMENT = PROJECT.experiments["native-handshake"]
LABEL = "X25519"
"""Of these proofs the captures are shipped, one of each library."""
FILES = (RUN_FILE, CAPTURE, KEYS, "client.jsonl", "server.jsonl")
UNMEASURED = {"picoquic"}
"""Libraries that the shipped runs do not have yet."""
LIBRARIES = tuple(name for name in EXPERIMENT.libraries if name not in UNMEASURED)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of the shipped proofs with a capture, by library."""
    top = tmp_path_factory.mktemp("proofs")
    (archive,) = (ROOT / "raw" / "reference").glob("native-handshake.tar.*")
    for name, content in walk.unpacked(archive, lambda path: "proofs" in path.parts and path.name in FILES):
        assert isinstance(content, bytes)
        file = top / Path(name).parent.name / Path(name).name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    found = {file.parent: Run.read(file.with_name(RUN_FILE)) for file in top.glob(f"*/{CAPTURE}")}
    return {run.client.library: directory for directory, run in found.items() if run.cell.label == LABEL}


def examiner(directory: Path) -> Examiner:
    """What looks at a proof, as if it had just been captured."""
    run = Run.read(directory / RUN_FILE)
    (cell,) = (
        one
        for one in cells_of(PROJECT, "native-handshake", "", {})
        if (one.client.library, one.label, one.arm) == (run.client.library, LABEL, "main")
    )
    assert run.workload.connections is not None
    spec = replace(proof_spec(PROJECT, EXPERIMENT, cell), connections=run.workload.connections)
    with (directory / "server.jsonl").open(encoding="utf-8") as log:
        ready = next(event for event in map(json.loads, log) if event["event"] == "ready")
    return Examiner(PROJECT, spec, ready["address"])


def test_there_is_a_capture_of_every_library(shipped: dict[str, Path]) -> None:
    assert sorted(shipped) == sorted(LIBRARIES)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_capture_shows_what_both_ends_tell(shipped: dict[str, Path], library: str) -> None:
    directory = shipped[library]
    run = Run.read(directory / RUN_FILE)
    summary, problems = examiner(directory).handshakes(directory)
    assert problems == []
    assert summary == run.evidence.handshake
    seen = json.loads((directory / "handshakes.json").read_text(encoding="utf-8"))
    ends = [
        events.read(directory / "client.jsonl", "client").connections,
        events.read(directory / "server.jsonl", "server").connections,
    ]
    table = PROJECT.algorithms
    for told in ends:
        assert len(told) == len(seen) == run.workload.connections
        for one, captured in zip(told, seen, strict=True):
            groups = {known.tls_name: known.code_point for known in table.groups}
            signatures = {known.tls_name: known.code_point for known in table.signatures}
            assert groups[str(one.group)] == captured["group"]
            # a server may not know what it signed with
            assert one.signature is None or signatures[one.signature] == captured["signature"]
            assert (one.retry or False, one.hello_retry_request or False) == (
                captured["retry"],
                captured["hello_retry_request"],
            )


@pytest.mark.parametrize("library", ["quinn", "openssl", "tcp-tls"])
def test_events_of_another_run_do_not_agree(shipped: dict[str, Path], tmp_path: Path, library: str) -> None:
    directory = tmp_path / library
    shutil.copytree(shipped[library], directory)
    _, problems = examiner(directory).handshakes(directory)
    assert problems == []
    lines = (directory / "client.jsonl").read_text(encoding="utf-8").splitlines()
    changed = [
        json.loads(line) | ({"handshake_bytes_sent": 99_999} if '"event":"connection"' in line.replace(" ", "") else {})
        for line in lines
    ]
    (directory / "client.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in changed), encoding="utf-8")
    seen = [
        handshake.Handshake.model_validate(one)
        for one in json.loads((directory / "handshakes.json").read_text(encoding="utf-8"))
    ]
    client = events.read(directory / "client.jsonl", "client").connections
    server = events.read(directory / "server.jsonl", "server").connections
    assert "the client counts 99999 bytes sent" in " ".join(handshake.count_differences(seen, client, server))
    assert "the client reports 19 connections" in " ".join(handshake.count_differences(seen, client[1:], server))
