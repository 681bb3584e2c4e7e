"""What is killed at random loses no finished run, leaves no process and no setting, and is gone on with.

`QUICBED_KILLS` is how often each kind is killed, by other chances every time; a few times, always the same, where it is
not set. What is over SSH is killed in test_testbed_ssh.py, the testbed of this machine in test_testbed_local.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakeproject
import killed
from agentclient import Client, holder
from clone import ROOT
from fakeproject import behave, run, runs
from keptruns import EXPERIMENT, Kept
from killed import KILLS, chances, processes
from quicbed.config.model import Project
from quicbed.measure.attempt import MeasureError
from quicbed.testbed import agent

PATIENCE_S = 30
pytestmark = pytest.mark.timeout(300 + 20 * KILLS)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory: a kill loses nothing that was written."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="quicbed-kills-", dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture
def project(place: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.prove(monkeypatch)
    return fakeproject.make(place, EXPERIMENT, monkeypatch)


def await_none(*words: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := processes(*words):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


# ---- the driver ------------------------------------------------------------------------------------------------------


def _measure(project: Project, step: int | None) -> None:
    if step is not None:
        killed.die_at(step, project.raw)
    run(project)


def test_a_driver(project: Project) -> None:
    """After some time, or at one of the steps in which it writes."""
    chance, count, kept = chances(), 0, Kept(project)
    while count < (KILLS or 4):
        step = chance.choice([None, chance.randint(1, 60), chance.randint(1, 700)])
        child = multiprocessing.get_context("fork").Process(target=_measure, args=(project, step))
        child.start()
        if step is None:
            child.join(chance.uniform(0, 0.8))
            child.kill()
        child.join()
        await_none(f"{project.build}/")
        kept.look()
        if child.exitcode == 0:
            kept.complete()
        else:
            assert child.exitcode == -signal.SIGKILL
            count += 1
    run(project)
    kept.complete()


# ---- Snakemake -------------------------------------------------------------------------------------------------------

RULES = """
rule all:
    input:
        "tables/runs.parquet",


rule measure:
    output:
        "measured/test.json",
    shell:
        "{python:q} {tests:q}/fakedriver.py . {{output:q}}"


rule table:
    input:
        "measured/test.json",
    output:
        "tables/runs.parquet",
    shell:
        "{python:q} -c 'import pathlib, sys; from quicbed.store import details; "
        'details.write_tables(pathlib.Path("raw"), pathlib.Path(sys.argv[1]))'
        "' {{output:q}}"
"""


class Snakemake:
    """Starts Snakemake in a project."""

    def __init__(self, project: Project) -> None:
        self.root = project.root
        rules = RULES.replace("{python:q}", sys.executable).replace("{tests:q}", str(ROOT / "tests" / "support"))
        (self.root / "Snakefile").write_text(rules.replace("{{", "{").replace("}}", "}"), encoding="utf-8")
        shutil.copytree(ROOT / "profiles", self.root / "profiles")

    def start(self) -> subprocess.Popen[bytes]:
        argv = [str(Path(sys.executable).with_name("snakemake")), "--cores", "1"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT / 'tests'}"}
        with (self.root / "log").open("wb") as log:
            return subprocess.Popen(
                argv, cwd=self.root, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def unlock(self) -> None:
        """As `--unlock` does, which takes a start of Snakemake."""
        shutil.rmtree(self.root / ".snakemake" / "locks", ignore_errors=True)

    def said(self) -> str:
        return (self.root / "log").read_text(errors="replace")


@pytest.mark.parametrize("what", ["the whole group", "its leader"])
def test_snakemake(project: Project, what: str) -> None:
    """With what it started, or alone: its driver then goes on, and no second one is let in."""
    chance, count, kept, snakemake = chances(), 0, Kept(project), Snakemake(project)
    ours = (f"{project.build}/", "fakedriver.py . measured/test.json")
    while count < (KILLS or 1):
        whole = snakemake.start()
        wait_for_driver(chance, whole, ours[1])
        if whole.poll() is None:
            (os.killpg if what == "the whole group" else os.kill)(whole.pid, signal.SIGKILL)
            count += 1
        code = whole.wait()
        if what == "the whole group":
            await_none(*ours)
        kept.look()
        if code == 0:
            kept.complete()
            for directory in ("measured", "tables"):
                shutil.rmtree(project.root / directory)
        snakemake.unlock()
        if what == "its leader" and processes(ours[1]):
            again = snakemake.start()
            if again.wait() != 0:
                assert "testbed local is in use by process" in (said := snakemake.said()), said[-4000:]
            await_none(*ours)
            kept.look()
    assert snakemake.start().wait() == 0, snakemake.said()
    kept.complete()
    assert (project.root / "tables" / "runs.parquet").is_file()


def wait_for_driver(chance: random.Random, whole: subprocess.Popen[bytes], driver: str) -> None:
    """Until the driver is at work, which takes Snakemake long; with many kills not always."""
    if not KILLS or chance.random() < 0.8:
        while whole.poll() is None and not processes(driver):
            time.sleep(0.1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        whole.wait(chance.uniform(0, 1.2))


# ---- agents ----------------------------------------------------------------------------------------------------------

AGENT = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
import killed
from quicbed.testbed import agent
kernel = Path({kernel!r})
agent._FILES["sysctl"] = lambda name: kernel / name
killed.die_at({step}, kernel.parent)
sys.exit(agent.main(sys.argv[1:]))
"""
NAMES = ("a.one", "a.two", "a.three")


def test_an_agent(place: Path) -> None:
    """The next one of the host puts back what it changed, and ends what it started."""
    chance, count = chances(), 0
    kernel, directory, marked = place / "sys", place / "host", f"{place}/endpoint"
    kernel.mkdir()
    directory.mkdir()
    for name in NAMES:
        (kernel / name).write_text("0")
    while count < (KILLS or 4):
        step = chance.choice([0, chance.randint(1, 60)])
        client = agent_that_dies(place, step)
        late = threading.Timer(chance.uniform(0.05, 0.6), client.popen.kill)
        late.start()
        with contextlib.suppress(OSError, agent.struct.error):  # it has died
            work(client, chance, place, marked)
        late.join()
        count += client.popen.wait(PATIENCE_S) == -signal.SIGKILL
        for stream in (client.popen.stdin, client.popen.stdout, client.popen.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        if chance.random() < 0.5:
            continue  # and what two have left is for the one after
        settle(place, marked)
    settle(place, marked)


def agent_that_dies(place: Path, step: int) -> Client:
    program = place / "agent.py"
    words = {
        "path": [str(ROOT / "workflow"), str(ROOT / "tests" / "support")],
        "kernel": str(place / "sys"),
        "step": step,
    }
    program.write_text(AGENT.format(**words), encoding="utf-8")
    return Client(place / "host", str(program))


def work(client: Client, chance: random.Random, place: Path, marked: str) -> None:
    """Change settings, run programs that leave others behind, put everything back; again and again."""
    client.ask("acquire", holder=holder("a"))
    client.ask("recover")
    script = f"setsid sh -c 'sleep 1000; : {marked}' & sleep 1000; : {marked}"
    for _ in range(50):
        chosen = chance.sample(NAMES, 2)
        client.ask("apply", changes=[{"kind": "sysctl", "name": n, "value": str(chance.randint(1, 9))} for n in chosen])
        output = {name: str(place / name) for name in ("stdout", "stderr")}
        pid = client.ask("spawn", argv=["sh", "-c", script], **output)
        if chance.random() < 0.5:
            client.ask("signal", pid=pid, number=signal.SIGKILL)
            client.ask("wait", pid=pid, timeout=PATIENCE_S)
        if chance.random() < 0.5:
            client.ask("clean_up")


def settle(place: Path, marked: str) -> None:
    """An agent that nobody kills begins and ends."""
    client = agent_that_dies(place, 0)
    assert client.ask("acquire", holder=holder("b")) is None
    client.ask("recover")
    client.end()
    assert {name: (place / "sys" / name).read_text() for name in NAMES} == dict.fromkeys(NAMES, "0")
    assert not (place / "host" / "journal.json").exists()
    await_none(marked)


# ---- endpoints -------------------------------------------------------------------------------------------------------


def test_endpoints(project: Project) -> None:
    """Each costs its run, which says so, and nothing else."""
    chance, kept = chances(), Kept(project)
    for flavour in ("stock", "noop"):
        behave(project, "quinn", flavour)
    count = 0
    over = threading.Event()

    def kill() -> None:
        nonlocal count
        while not over.wait(chance.uniform(0, 0.25)):
            if count < (KILLS or 4) and (found := processes(f"{project.build}/quinn")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(found), signal.SIGKILL)
                    count += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while count < (KILLS or 4):
            complete = False
            with contextlib.suppress(MeasureError):  # no proof, or a cell without a run that succeeded
                run(project)
                complete = True
            kept.look()
            if complete:  # nothing would be measured any more
                kept.forget()
    finally:
        over.set()
        killer.join()
    run(project)
    kept.look()
    failed = [one for one in runs(project) if one["status"] != "ok"]
    assert all("was killed by SIGKILL" in one["reason"] for one in failed), failed
    assert processes(f"{project.build}/") == []
