"""The benchmark of handshakes on fake endpoints: what it prints, and how it fails."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import fakeproject
from fakeproject import behave
from faketestbed import FakeTestbed
from quicbed import bench as bench_module
from quicbed import build as builds
from quicbed import certificates, examples, generator
from quicbed.bench import BenchError, bench
from quicbed.build import BuildError
from quicbed.config import Project
from trexserver import Clock, TrexServer

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: handshake, congestion_control: any}
link: {mode: wire}
flavour: pq
libraries: [quinn, tcp-tls]
variants:
  - {label: RSA-2048, cipher: aes-128-gcm}
  - {label: ECDSA P-256, cipher: aes-128-gcm, signature: ecdsa-p-256}
baseline: RSA-2048
aa: true
scales:
  tiny: {bytes: 1, connections: 3, blocks: 2, timeout_s: 1}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    (tmp_path / "config" / "experiments" / "test.yaml").rename(
        tmp_path / "config" / "experiments" / "table3-signature.yaml"
    )
    config = tmp_path / "config" / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("[test]", "[table3-signature]"), encoding="utf-8")
    made = Project(tmp_path)

    def build_directory(project: Project, library: str, flavour: str) -> Path:
        return project.build / f"{library}-{flavour}"

    monkeypatch.setattr(builds, "build_directory", build_directory)
    monkeypatch.setattr(bench_module, "testbed_of", lambda _: FakeTestbed())
    for name, value in {"ROUNDS": 2, "SERIES": 3, "FEW": 4, "MANY": 5}.items():
        monkeypatch.setattr(bench_module, name, value)
    for library in ("quinn", "tcp-tls"):
        behave(made, library, "pq")
        (build_directory(made, library, "pq") / "build.json").write_text(json.dumps({}), encoding="utf-8")
    return made


def test_rates_and_memory_of_every_library_are_told(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(project, ["handshakes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "== handshakes"
    assert lines[1].startswith("  2 rounds of 3 handshakes with X25519 and ECDSA P-256")
    assert [line.split()[:2] for line in lines[2:4]] == [["quinn", "median"], ["tcp-tls", "median"]]
    assert lines[4].startswith("  quinn (median ")
    assert "target at least 300 handshakes/s: " in lines[4]
    # the fake endpoints always have the same size
    assert [line.split(",")[0].strip() for line in lines[5:7]] == ["quinn", "tcp-tls"]
    assert all(line.endswith(": 0 MiB, target at most 2 MiB: met") for line in lines[5:7])
    # once as a warm-up, in every round, and for memory
    assert (project.build / "quinn-pq" / "bin" / "server.count").read_text() == "5"


def test_only_the_certificate_it_needs_is_made(project: Project) -> None:
    target = certificates.directory(project, "ecdsa-p-256")
    for file in target.iterdir():
        file.unlink()
    bench(project, ["handshakes"])
    assert certificates.problem(target) is None


def test_a_missing_build_is_named_with_the_remedy(project: Project) -> None:
    (project.build / "quinn-pq" / "build.json").unlink()
    with pytest.raises(BenchError, match="quinn-pq: not built; run `snakemake"):
        bench(project, ["handshakes"])


def test_a_failed_run_ends_the_benchmark_with_its_reason(project: Project) -> None:
    behave(project, "quinn", "pq", client=["ok", "failed-connection"])
    with pytest.raises(BenchError, match=r"quinn.*bad_certificate"):
        bench(project, ["handshakes"])


def test_endpoints_are_held_against_the_examples_that_there_are(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def theirs(_project: Project, name: str, *_: object) -> float:
        measured.append(name)
        return 1000.0

    monkeypatch.setattr(builds, "build", lambda *_, **__: None)
    monkeypatch.setattr(examples, "build", lambda *_, **__: Path("programs"))
    monkeypatch.setattr(examples, "goodput", theirs)
    monkeypatch.setattr(examples, "own_goodput", lambda _, name, *__: 900.0 if name == "quinn" else 1000.0)
    assert bench(project, ["examples"]) == 0
    lines = capsys.readouterr().out.splitlines()
    verdicts = {line.split()[0]: line.rpartition(": ")[2] for line in lines if " / its example" in line}
    compared = {name for name, library in project.libraries.items() if library.example}
    assert verdicts == dict.fromkeys(compared, "met") | {"quinn": "MISSED"}
    # a warm-up and every round
    assert measured.count("quinn") == 1 + bench_module.ROUNDS
    # the others with their reason
    for name, library in project.libraries.items():
        if name not in compared:
            assert f"  {name}: not compared with an example: {library.no_example}" in lines
    assert sum("not compared" in line for line in lines) == len(project.libraries) - len(compared)


LISTEN = """\
import signal, socket

bound = socket.socket(type=socket.SOCK_DGRAM)
bound.bind(("127.0.0.1", {}))
signal.pause()
"""
SAYS = "echo 'Response Body: {} bytes' >&2"


@pytest.mark.parametrize(
    ("library", "client", "message"),
    [
        ("noq", "printf %1000d 7", None),
        ("noq", "echo connected >&2; printf %1000d 7", None),
        ("noq", "echo connected >&2; printf %999d 7", r"client: exit code 0, but it wrote 999 of 1000 bytes"),
        ("noq", "printf %1000d 7; echo no more >&2; exit 3", r"client: exit code 3: no more"),
        ("noq", "exec sleep 60", r"client: not finished after 0.5 s"),
        ("quic-go", SAYS.format(1000), None),
        ("quic-go", SAYS.format(999), r"client: exit code 0, but it received 999 of 1000 bytes"),
        ("quic-go", "printf %1000d 7", r"client: does not say how much it received"),
    ],
)
def test_an_example_counts_only_with_all_it_was_to_receive(
    project: Project, monkeypatch: pytest.MonkeyPatch, library: str, client: str, message: str | None
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(examples, "PORT", port)
    if "sleep" in client:
        monkeypatch.setattr(examples, "CLIENT_TIMEOUT", 0.5)
    described = project.libraries[library].example
    assert described is not None
    programs = project.root / "programs"
    programs.mkdir()
    scripts = {
        Path(described.server[0]).name: f"#!{sys.executable} -S\n{LISTEN.format(port)}",
        Path(described.client[0]).name: f"#!/bin/sh\n{client}\n",
    }
    for name, text in scripts.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    directory = project.root / "run"
    directory.mkdir()
    if message is None:
        assert examples.goodput(project, library, programs, 1000, directory) > 0
    else:
        with pytest.raises(BuildError, match=message):
            examples.goodput(project, library, programs, 1000, directory)


def test_an_unknown_benchmark_is_named_before_anything_runs(project: Project) -> None:
    with pytest.raises(BenchError, match="`handshake` is unknown; known are goodput, handshakes"):
        bench(project, ["handshakes", "handshake"])
    assert not (project.build / "quinn-pq" / "bin" / "server.count").exists()


def test_what_disturbed_the_machine_is_told(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    behave(project, "quinn", "pq", client=["ok", "ok", "slow", "ok"])
    bench(project, ["handshakes"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  disturbed by other work on the machine: 1, the first ")
    assert ", 3 handshakes: client waited for a processor " in last


def test_runs_over_ssh_need_hosts_to_be_measured_on(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(project, ["ssh"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "== ssh",
        "  unsupported: the testbed is not of kind `ssh`; set `testbed` in config/config.yaml",
    ]


def test_a_line_rate_needs_a_generator_that_sends_at_one(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(project, ["line-rate"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "== line-rate",
        "  unsupported: testbed local has no generator of kind `trex`, which alone sends at the rate of a port "
        "(docs/background-traffic.md)",
    ]


@pytest.mark.parametrize("receiver", [None, 1])
def test_line_rates_of_every_frame_size_and_their_losses_are_told(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], receiver: int | None
) -> None:
    clock = Clock()
    monkeypatch.setattr(generator, "time", clock)
    with TrexServer(clock=clock.monotonic) as server:
        server.refresh_s, server.lost_share = 0.5, 0.25
        described: dict[str, Any] = {"kind": "trex", "host": "127.0.0.1", "rpc_port": server.port, "receiver": receiver}
        file = project.root / "config" / "testbeds" / "local.yaml"
        file.write_text(json.dumps({"kind": "local", "generator": described}), encoding="utf-8")
        assert bench(Project(project.root), ["line-rate"]) == 0
        assert server.rates == [{"type": "percentage", "op": "abs", "value": 100.0}] * 8
        assert (server.ports[0].state, server.ports[0].owner) == ("IDLE", "")
    heading, first, *_, last = capsys.readouterr().out.splitlines()[1:]
    assert heading == f"  port 0 of TRex at 127.0.0.1:{server.port}, 10 s of each frame size:"
    assert [first.split()[:2], last.split()[:1]] == [["64", "bytes"], ["IMIX"]]
    # 10 Gbit/s with 20 bytes of preamble and gap for each frame of 64 bytes (IEEE 802.3)
    assert float(first.split()[3]) == pytest.approx(10e9 / 84 / 8 / 1e6, rel=0.01)
    assert float(first.split()[5]) == pytest.approx(10e3 * 64 / 84, rel=0.01)
    if receiver is None:
        assert first.endswith("; what arrives is not counted: generator.receiver names no port")
    else:
        assert float(first.split("received")[1].split()[0]) == pytest.approx(0.75 * 10e9 / 84 / 8 / 1e6, rel=0.01)
        assert first.endswith(" packets (25 %)")
