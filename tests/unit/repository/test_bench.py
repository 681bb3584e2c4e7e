"""The benchmark of handshakes on fake endpoints: what it prints, and how it fails."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

import fakeproject
from benchmarks import bench as bench_module
from benchmarks import examples
from benchmarks.bench import BenchError, bench
from fakeproject import INTERPRETER, behave
from faketestbed import FakeTestbed
from quicbed.builds import making
from quicbed.builds.kit import BuildError
from quicbed.builds.recipes import cargo
from quicbed.config.model import Project, Scale
from quicbed.measure import certificates, generator
from quicbed.plan.built import BUILD_FILE, Build
from quicbed.testbed import LinkSettings, Testbed, TestbedError
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

    monkeypatch.setattr(making, "build_directory", build_directory)
    monkeypatch.setattr(making, "listing", lambda *key: build_directory(*key).with_suffix(".json"))
    monkeypatch.setattr(bench_module, "testbed_of", lambda _: FakeTestbed())
    for name, value in {"ROUNDS": 2, "SERIES": 3, "FEW": 4, "MANY": 5}.items():
        monkeypatch.setattr(bench_module, name, value)
    for library in ("quinn", "tcp-tls"):
        behave(made, library, "pq")
        build = Build(build=f"{library}-pq", library=library, flavour="pq", version="1")
        build.write(build_directory(made, library, "pq") / BUILD_FILE)
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


def test_a_missing_build_is_named_with_the_remedy_and_the_rest_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = making.read_build

    def read_build(of: Project, library: str, flavour: str) -> Build:
        if library == "quinn":
            raise BuildError("quinn: cannot be read")
        return known(of, library, flavour)

    monkeypatch.setattr(making, "read_build", read_build)
    assert bench(project, ["handshakes", "line-rate"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "== handshakes"
    assert lines[1].startswith("  not run: quinn-pq: not built; run `snakemake")
    assert lines[2] == "== line-rate"


def test_a_library_whose_run_fails_is_left_out_with_its_reason(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    behave(project, "quinn", "pq", client=["ok", "failed-connection"])
    assert bench(project, ["handshakes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (reason,) = [line for line in lines if "left out" in line]
    assert re.match(r"  quinn: left out: quinn.*bad_certificate", reason)
    assert [line.split()[0] for line in lines[3:]] == ["tcp-tls", "tcp-tls,"]


GOODPUT = """
title: Test
source: none
question: none
workload: {kind: bulk, congestion_control: any}
link: {mode: throughput}
flavour: pq
libraries: [quinn, tcp-tls]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
  - {label: ChaCha20, cipher: chacha20-poly1305}
baseline: AES-128-GCM
aa: true
scales:
  tiny: {bytes: 1000, blocks: 2, timeout_s: 1}
"""


def test_goodput_is_measured_with_a_congestion_control_of_the_kernel_and_without_what_is_missing(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.root / "config" / "experiments" / "aead-goodput.yaml").write_text(GOODPUT, encoding="utf-8")
    config = project.root / "config" / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("table3-signature", "aead-goodput"), encoding="utf-8")
    applied: list[LinkSettings] = []

    class Recording(FakeTestbed):
        def apply(self, link: LinkSettings) -> None:
            applied.append(link)
            super().apply(link)

    def without_iperf3(_: Testbed) -> float:
        raise TestbedError("client: iperf3 is not installed")

    monkeypatch.setattr(bench_module, "testbed_of", lambda _: Recording())
    monkeypatch.setattr(bench_module, "raw_udp", lambda _: 5000.0)
    monkeypatch.setattr(bench_module, "iperf3", without_iperf3)
    monkeypatch.setattr(bench_module, "BULK", Scale(bytes=1000, blocks=1, timeout_s=1))
    assert bench(Project(project.root), ["goodput"]) == 0
    assert {link.congestion_control for link in applied} == {"cubic"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  TCP (iperf3): left out: client: iperf3 is not installed"
    told = [line.split(" median")[0].strip() for line in lines if line.startswith("    ")]
    assert told == ["raw UDP, GSO/GRO", "quinn", "quinn, plain send/receive", "tcp-tls"]
    assert any(line.startswith("  quinn / nginx+curl") for line in lines)
    assert any(line.startswith("  quinn / raw UDP") for line in lines)
    assert not any(line.startswith("  quinn / TCP") for line in lines)


def _transfer(size: int, mbps: float, cpu_s: float = 1.0) -> examples.Transfer:
    return examples.Transfer(seconds=8e-6 * size / mbps, said="", wrote=0, cpu_s=cpu_s)


def test_endpoints_are_held_against_the_examples_that_there_are(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def theirs(_project: Project, name: str, *_: object) -> float:
        measured.append(name)
        return 1000.0

    def ours(_project: Project, name: str, size: int, _: Path) -> examples.Transfer:
        return _transfer(size, 900.0 if name == "quinn" else 1000.0)

    monkeypatch.setattr(making, "build", lambda *_, **__: None)
    monkeypatch.setattr(examples, "build", lambda *_, **__: Path("programs"))
    monkeypatch.setattr(examples, "goodput", theirs)
    monkeypatch.setattr(examples, "own_transfer", ours)
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


def test_endpoints_are_held_against_bare_transfers(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms: list[str] = []

    def ours(_project: Project, name: str, size: int, _: Path) -> examples.Transfer:
        arms.append("our endpoints")
        # faster and dearer than a bare one
        return _transfer(size, 1100.0, 3.0 if name == "noq" else 2.0)

    def bare(_project: Project, program: Path, size: int, _: Path) -> examples.Transfer:
        arms.append("bare transfer")
        return _transfer(size, 1000.0, 2.0)

    monkeypatch.setattr(making, "build", lambda *_, **__: None)
    monkeypatch.setattr(cargo, "has_bare", lambda _, name: name in ("noq", "quinn"))
    monkeypatch.setattr(examples, "build_bare", lambda *_, **__: Path("bare"))
    monkeypatch.setattr(examples, "own_transfer", ours)
    monkeypatch.setattr(examples, "bare_transfer", bare)
    assert bench(project, ["bare"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " / bare" in line]
    assert lines == [
        "  noq / bare, goodput [1.1, 1.1]: 1.1, target at least 1: met",
        "  noq / bare, processor time [1.5, 1.5]: 1.5, target at most 1: MISSED",
        "  quinn / bare, goodput [1.1, 1.1]: 1.1, target at least 1: met",
        "  quinn / bare, processor time [1, 1]: 1, target at most 1: met",
    ]
    # in turn, after a first round that does not count
    one = arms[: 2 * (1 + bench_module.ROUNDS)]
    assert one == ["bare transfer", "our endpoints", "our endpoints", "bare transfer", "bare transfer", "our endpoints"]


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
        Path(described.server[0]).name: f"{INTERPRETER}{LISTEN.format(port)}",
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
