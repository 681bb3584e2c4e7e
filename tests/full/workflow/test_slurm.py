"""The workflow with profiles/slurm, on a real Slurm cluster of one node: what becomes a job and what stays here."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nbformat
import polars as pl
import pytest
import yaml

import fakeruns
from clone import EXTERNAL, ROOT
from quicbed.builds import making
from quicbed.config.model import Project

SNAKEMAKE = str(Path(sys.executable).parent / "snakemake")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [
    name
    for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
    if shutil.which(name, path=PATH) is None
]

slurm = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("CI") != "true",
    reason=f"Slurm is not installed ({', '.join(MISSING)}); `make test` installs it",
)

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=64000
PartitionName=all Nodes=ALL Default=YES State=UP
"""

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: throughput}
libraries: [outside]
variants: [{label: AES-128-GCM, cipher: aes-128-gcm}]
baseline: AES-128-GCM
aa: false
scales:
  tiny: {bytes: 100000, blocks: 1, timeout_s: 120}
"""

NOTEBOOK = """
import json, os
import polars as pl
from quicbed.analysis import place
place = place.here()
rows = pl.read_parquet(place.tables / "runs.parquet").height
(place.artifacts / "seen.json").write_text(json.dumps({"job": os.environ.get("SLURM_JOB_ID"), "rows": rows}))
"""


def library() -> dict[str, object]:
    """Describe a library that is built in a moment: quinn's programs as an external endpoint."""
    programs = making.build_directory(Project(ROOT), "quinn", "stock") / "bin"
    folder = EXTERNAL / "wrapping"
    return {"external": {"path": str(folder), "parameters": {"PROGRAMS": str(programs)}}}


def free_ports(count: int) -> list[int]:
    """TCP ports of the loopback interface that nobody listens on."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


@contextmanager
def running(argv: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in the foreground, stopped at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(happened: Callable[[], bool], directory: Path) -> None:
    """Return when the cluster is so far; fails with its logs when it does not get there."""
    deadline = time.monotonic() + 60
    while not happened():
        logs = {file.name: file.read_text(errors="replace")[-2000:] for file in directory.glob("*.log")}
        assert time.monotonic() < deadline, logs
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster whose only node is this machine; gives the environment in which its commands work."""
    assert MISSING == []
    directory = tmp_path_factory.mktemp("slurm")
    for name in ("bin", "spool", "state"):
        (directory / name).mkdir()
    key = directory / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    ports = free_ports(2)
    configuration = directory / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            directory=directory,
            controller_port=ports[0],
            node_port=ports[1],
        ),
        encoding="utf-8",
    )
    # the executor takes SLURM_CONF from the environment of srun, which then looks in /etc/slurm
    srun = directory / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={configuration} exec {shutil.which("srun", path=PATH)} "$@"\n')
    srun.chmod(0o755)
    environment = {**os.environ, "PATH": f"{srun.parent}:{PATH}", "SLURM_CONF": str(configuration)}
    munged = ["munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}"]
    munged += [f"--{kind}-file={directory}/munge.{kind}" for kind in ("log", "pid", "seed")]
    socket_file = directory / "munge.socket"

    def idle() -> bool:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], env=environment, capture_output=True, text=True, check=False
        )
        return asked.stdout.strip() == "idle"

    with ExitStack() as daemons:
        argv = [*munged, f"--socket={socket_file}"]
        daemons.enter_context(running(argv, directory / "munged.log", environment))
        wait_until(socket_file.is_socket, directory)
        for program in ("slurmctld", "slurmd"):
            daemons.enter_context(running([program, "-D"], directory / f"{program}.log", environment))
        wait_until(idle, directory)
        yield environment
        # of a test that failed
        subprocess.run(["scancel", "--user=root"], env=environment, check=True)
        wait_until(idle, directory)


def jobs(environment: dict[str, str]) -> dict[str, str]:
    """State of every job the cluster has had, by the comment that Snakemake gives it: its rule and wildcards."""
    argv = ["squeue", "--states=all", "--noheader", "--format=%k|%T"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    lines = [line.rpartition("|") for line in done.stdout.splitlines()]
    assert len({comment for comment, _, _ in lines}) == len(lines)
    return {comment: state for comment, _, state in lines}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what the workflow consists of, with an experiment and a notebook of its own."""
    root = tmp_path / "clone"
    for name in ("config", "envs", "profiles", "workflow"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "target"))
    for name in ("Snakefile", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    (root / "config" / "experiments" / "test.yaml").write_text(EXPERIMENT, encoding="utf-8")
    (root / "config" / "libraries" / "outside.yaml").write_text(yaml.safe_dump(library()), encoding="utf-8")
    (root / "notebooks").mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])  # type: ignore[no-untyped-call]
    nbformat.write(notebook, root / "notebooks" / "rows.ipynb")  # type: ignore[no-untyped-call]
    return root


def snakemake(
    root: Path, environment: dict[str, str], targets: Sequence[str | Path], *options: str
) -> subprocess.CompletedProcess[str]:
    argv = [SNAKEMAKE, "--profile", "profiles/slurm", *options]
    # a machine that builds and measures at once is busy
    argv += ["--config", "scale=tiny", "experiments=[test]", "gate={retries: 0}", "--", *map(str, targets)]
    return subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=False)


@slurm
@pytest.mark.root
@pytest.mark.timeout(600)
def test_builds_dissection_tables_and_notebooks_are_jobs_and_measuring_is_not(
    clone: Path, cluster: dict[str, str], build_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    build_of("quinn", "stock")
    # so that nothing is fetched
    (clone / "build").mkdir()
    (clone / "build" / "sources").symlink_to(ROOT / "build" / "sources")
    rows = 1 + len(fakeruns.write_campaign(tmp_path / "made", "aead-goodput", blocks=1))
    fakeruns.write_captured(tmp_path / "made", "tcp-tls")
    for experiment in ("aead-goodput", "proofs"):
        packed = clone / "raw" / "reference" / f"{experiment}.tar.gz"
        fakeruns.archive(tmp_path / "made", "local", experiment, packed)
    marker = clone / "artifacts" / "measured" / "local" / "test.json"
    page = clone / "artifacts" / "reference" / "notebooks" / "rows.html"
    captures = clone / "artifacts" / "reference" / "tables" / "captures.parquet"
    # Snakemake asks for a job after this time, and each time it asks in vain 10 s later
    done = snakemake(clone, cluster, [marker, page, captures], "--slurm-init-seconds-before-status-checks", "1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]

    (build,) = (clone / "build").glob("outside-stock-*.json")
    wildcards = build.stem.replace("-", "_")
    rules = {
        f"rule_build_wildcards_{wildcards}",
        "rule_runs_reference",
        "rule_dissect_reference",
        "rule_verdicts_reference",
        "rule_notebooks_reference",
    }
    # nothing else was a job, certificates and measuring not either
    assert jobs(cluster) == dict.fromkeys(rules, "COMPLETED")
    seen = json.loads((clone / "artifacts" / "reference" / "seen.json").read_text(encoding="utf-8"))
    assert seen["rows"] == rows
    assert seen["job"] is not None
    assert page.is_file()
    assert pl.read_parquet(captures)["outcome"].to_list() == ["agrees"]
    assert len(json.loads(marker.read_text(encoding="utf-8"))["cells"]) == 1
    measured = [json.loads(file.read_text(encoding="utf-8")) for file in clone.glob("raw/local/test/*/b*/*/run.json")]
    assert [(run["status"], run["reason"]) for run in measured] == [("ok", None)]


def test_without_slurm_nothing_is_begun(clone: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    # what Snakemake itself runs
    for name in ("bash", "which"):
        (programs / name).symlink_to(shutil.which(name, path=PATH) or "")
    environment = {**os.environ, "PATH": f"{Path(SNAKEMAKE).parent}:{programs}"}
    done = snakemake(clone, environment, ["builds"])
    assert done.returncode == 1
    assert "Slurm's command sbatch is not on the PATH" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (clone / "build").exists()
