"""`quicbed try`: what the folder of an external endpoint does, said step by step."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clone import EXTERNAL, ROOT
from quicbed.config.model import ConfigError, Project
from quicbed.measure import certificates
from quicbed.measure.try_folder import Outcome, try_folder

pytestmark = pytest.mark.root


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(ROOT, {"paths": {"build": str(tmp_path / "build"), "raw": str(tmp_path / "raw")}})
    certificates.make(certificates.directory(made))
    return made


def told(project: Project, folder: Path, **parameters: str) -> dict[str, Outcome]:
    """The outcomes by step."""
    return {outcome.step: outcome for outcome in try_folder(project, folder, parameters)}


def test_a_folder_that_keeps_its_contract(project: Project, build_of: Callable[[str, str], Path]) -> None:
    stock, noop = (str(build_of("quinn", flavour) / "bin") for flavour in ("stock", "noop"))
    found = told(project, EXTERNAL / "wrapping", PROGRAMS=stock, NOOP_PROGRAMS=noop)
    downloads = ("cipher chacha20-poly1305", "group p-256", "NOOP", "header protection off", "buffers", "offloads off")
    assert list(found) == [
        *("build", "build of flavour noop", "download, captured", "downloads, timed"),
        *(f"download, {what}" for what in downloads),
        "handshakes, captured",
    ]
    assert all(outcome.ok for outcome in found.values()), found
    assert "group p-256;" in found["download, group p-256"].told
    assert "headers protected, tags constant" in found["download, NOOP"].told
    assert "headers clear, tags varying" in found["download, header protection off"].told
    assert found["download, buffers"].told == "as requested, by the event files of both ends"
    assert "cipher suite aes-128-gcm; group x25519; signature scheme 0x0804" in found["download, captured"].told
    assert "headers protected, tags varying" in found["download, captured"].told
    assert "64 MiB" in found["downloads, timed"].told
    assert "20 handshakes" in found["handshakes, captured"].told
    assert not (project.raw / "local").exists(), "a try is no data"


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        (True, "evidence: the client reports group x25519, the cell says secp256r1"),
        (False, "The group is 0x0017, but a ServerHello has 0x001d. (quicbed.yaml of wrapped states otherwise)"),
    ],
)
def test_a_wrong_statement_is_said(
    reports: bool, reason: str, project: Project, build_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(EXTERNAL / "wrapping", tmp_path / "folder")
    # it does what it likes, and has no flavour noop
    script = (folder / "variant.sh").read_text(encoding="utf-8").replace('"$QUICBED_GROUP"', "x25519")
    (folder / "variant.sh").write_text(script + ("" if reports else "QUICBED_EVENTS=$LOGS/own\n"), encoding="utf-8")
    programs = str(build_of("quinn", "stock") / "bin")
    found = told(project, folder, PROGRAMS=programs, NOOP_PROGRAMS=programs)
    wrong = {step: outcome.told for step, outcome in found.items() if not outcome.ok}
    assert set(wrong) == {"download, group p-256", "download, NOOP", "download, header protection off"}
    assert reason in wrong["download, group p-256"]
    assert "exited with 127" in wrong["download, NOOP"] or "cannot do test case goodput" in wrong["download, NOOP"]
    if not reports:
        assert "does not report its receive_buffer" in found["download, buffers"].told


def test_a_statement_that_cannot_be_used_ends_the_try(project: Project, tmp_path: Path) -> None:
    folder = shutil.copytree(EXTERNAL / "misbehaving", tmp_path / "folder")
    statement = folder / "quicbed.yaml"
    statement.write_text(statement.read_text(encoding="utf-8").replace("x25519", "p256"), encoding="utf-8")
    (outcome,) = try_folder(project, folder, {})
    assert (outcome.step, outcome.ok) == ("statement", False)
    assert outcome.told == f"{statement}: supports.groups: `p256` is unknown; did you mean `p-256`?"
    statement.unlink()
    (outcome,) = try_folder(project, folder, {})
    assert outcome.told.startswith(f"{folder} has no quicbed.yaml; state there what it can do")


def test_the_folder_of_the_page_is_tried_as_it_says(
    build_of: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of docs/external-endpoints.md that make a folder and try it, the folder being in another place."""
    page = (ROOT / "docs" / "external-endpoints.md").read_text(encoding="utf-8").partition("## Export a build")[2]
    commands = [shlex.split(line) for line in re.findall(r"^quicbed .*", page, re.MULTILINE)]
    assert [words[1] for words in commands] == ["runner-folder", "try"]
    build_of("quinn", "stock")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "workflow"))
    for _, *words in commands:
        argv = [sys.executable, "-m", "quicbed", *(word.replace("../", f"{tmp_path}/") for word in words)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    steps = [line.partition(": ")[0] for line in done.stdout.splitlines()]
    assert {line[:2] for line in steps} == {"ok"}
    assert {"ok     download, signature ed25519", "ok     handshakes, Retry"} < set(steps)


def test_what_is_wrong_is_said_with_the_logs(project: Project) -> None:
    found = told(project, EXTERNAL / "misbehaving")
    assert found["build"].ok
    wrong = found["download, captured"]
    assert not wrong.ok
    reason, _, logs = wrong.told.rpartition("; ")
    assert reason.startswith("failed: ")
    assert (Path(logs) / "client.logs" / "output.txt").is_file()
    assert "downloads, timed" not in found


def test_a_folder_that_cannot_be_built_ends_the_try(project: Project, tmp_path: Path) -> None:
    shutil.copytree(EXTERNAL / "misbehaving", tmp_path / "folder")
    (tmp_path / "folder" / "VERSION").write_text("", encoding="utf-8")
    found = told(project, tmp_path / "folder")
    assert list(found) == ["build"]
    assert "VERSION: is empty" in found["build"].told
    with pytest.raises(ConfigError, match="is no directory; give the folder of the endpoint"):
        told(project, tmp_path / "nowhere")
