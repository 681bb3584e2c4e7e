"""Runs whose connections begin at a rate: which rates, what is asked of the client, and how they are judged."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import fakeproject
import wording
from fakeproject import behave, run, runs
from faketestbed import FakeProcess, FakeTestbed
from quicbed.builds import making
from quicbed.config.model import ConfigError, Project
from quicbed.measure.attempt import MeasureError
from quicbed.measure.campaign import arrival_seed
from quicbed.measure.judge import percentile_99
from quicbed.measure.prove import Prover, Verdict
from quicbed.plan.cells import builds_needed, cells_of

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: handshake, congestion_control: any}
link: {mode: wire}
flavour: pq
libraries: [quinn, quiche, tcp-tls]
open_loop: {client: ngtcp2, loads: [0.5, 1]}
failures: findings
defaults: {cipher: aes-128-gcm}
variants:
  - {label: X25519}
  - {label: ML-KEM-768, group: mlkem768}
baseline: X25519
aa: false
scales:
  tiny: {bytes: 1, connections: 5, blocks: 2, timeout_s: 1}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return made(tmp_path, monkeypatch)


def made(root: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> Project:
    """A project with this experiment, of which texts are changed."""
    text = EXPERIMENT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    proven = Verdict(proof="p", status="ok", reason=None, transferred=True)
    monkeypatch.setattr(Prover, "prove", lambda *_: proven)
    return fakeproject.make(root, text, monkeypatch)


def test_every_variant_has_every_load_and_one_client(project: Project) -> None:
    cells = cells_of(project, "test", "", {})
    assert {cell.libraries for cell in cells} == {("ngtcp2", "quinn"), ("ngtcp2", "quiche")}  # no TCP
    own = [cell for cell in cells if cell.server.library == "quinn"]
    assert [(cell.label, cell.variant.load) for cell in own] == [
        ("X25519, load 0.5", 0.5),
        ("X25519, load 1", 1),
        ("ML-KEM-768, load 0.5", 0.5),
        ("ML-KEM-768, load 1", 1),
    ]
    ids = {cell.label: cell.id for cell in own}
    lowest, first = ids["X25519, load 0.5"], ids["ML-KEM-768, load 0.5"]
    assert [cell.baseline for cell in own] == [None, lowest, lowest, first]
    assert builds_needed(project, ["test"]) == [("ngtcp2", "pq"), ("quiche", "pq"), ("quinn", "pq")]


def test_a_client_without_rates_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, ("client: ngtcp2", "client: quiche"))
    cells = cells_of(project, "test", "", {})
    assert {cell.unsupported for cell in cells} == {"quiche: its client makes one connection after the other"}
    assert builds_needed(project, ["test"]) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("client: ngtcp2", "client: ngtcp"),
        ("loads: [0.5, 1]", "loads: [1, 0.5]"),
        ("loads: [0.5, 1]", "loads: [0, 1]"),
        ("loads: [0.5, 1]", "loads: [1]"),
        ("kind: handshake", "kind: bulk"),
        ("{label: X25519}", "{label: X25519, load: 2}"),
        ("loads: [0.5, 1]", "loads: [0.5, 1], held: {connections: 9000, load: 1}"),
        ("{label: X25519}", "{label: X25519, processors: some}"),
        ("failures: findings", "pairwise: true"),
        ("libraries: [quinn,", "libraries: [{client: quinn, server: quinn},"),
    ],
    ids=wording.name,
)
def test_bad_input_has_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ConfigError) as raised:
        made(tmp_path, monkeypatch, (old, new))
    assert wording.one_line(raised.value, tmp_path, names="test.yaml: ") == snapshot


def measured(project: Project, testbed: FakeTestbed | None = None, **behaviour: Any) -> list[dict[str, Any]]:
    for library in ("ngtcp2", "quinn", "quiche"):
        making.read_build(project, library, "pq")
        behave(project, library, "pq", **behaviour)
    run(project, testbed)
    return runs(project)


def test_rates_are_shares_of_what_the_pilot_found(project: Project) -> None:
    found = measured(project)
    assert {one["status"] for one in found} == {"ok"}
    (file,) = (project.raw / "local" / "test").glob("*/pilot.json")
    costs = json.loads(file.read_text(encoding="utf-8"))["costs"]
    # one for both loads
    assert len(costs) == len({(one["server"], one["variant"]) for one in costs}) == 4
    seconds = {(one["server"], json.loads(one["variant"])["group"]): one["server_cpu_s"] for one in costs}
    for one in found:
        load = one["variant"]["load"]
        cost = seconds[one["server"]["library"], one["variant"]["group"]]
        assert one["workload"]["rate_per_s"] == pytest.approx(load / cost)
        assert one["workload"]["arrival_seed"] == arrival_seed(project.config.seed, one["block"])
        metrics = one["metrics"]
        assert metrics["ttfb_ms_p99"] >= metrics["ttfb_ms"]
        assert metrics["late_ms_p99"] == pytest.approx(0.001)
        assert (metrics["late_share"], metrics["connections"]) == (0, 5)
        assert metrics["most_in_flight"] == 1
    assert len({one["workload"]["arrival_seed"] for one in found}) == 2


HELD = ("loads: [0.5, 1]", "loads: [0.5, 1], held: {connections: 4, load: 0.5}")


def held_open(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if "held" in one["variant"]]


def test_every_variant_is_also_measured_with_connections_held_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, HELD)
    found = held_open(measured(project))
    assert {one["cell"]["label"] for one in found} == {"X25519, held", "ML-KEM-768, held"}
    assert len(found) == 8
    for one in found:
        assert (one["status"], one["reason"]) == ("ok", None)
        # not more than are to be held, and at the rate of the load
        assert (one["variant"]["held"], one["variant"]["load"], one["workload"]["connections"]) == (4, 0.5, 4)
        metrics = one["metrics"]
        assert (metrics["memory_none_bytes"], metrics["memory_held_bytes"]) == (10 << 20, 11 << 20)
        assert metrics["memory_per_connection_bytes"] == (1 << 20) / 4
    (file,) = (project.raw / "local" / "test").glob("*/pilot.json")
    # the pilot is that of the loads
    assert len(json.loads(file.read_text(encoding="utf-8"))["costs"]) == 4


@pytest.mark.parametrize(
    ("memory", "client", "told"),
    [
        ((10 << 20, 10 << 20), [], "the server took 10485760 bytes with 4 open connections and 10485760 with none"),
        ((), [], "the memory of the server cannot be read"),
        ((1, 2), ["early"], "the client closed a connection before all had their answers"),
    ],
)
def test_connections_that_were_not_held_open_have_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: tuple[int, ...], client: list[str], told: str
) -> None:
    project = made(tmp_path, monkeypatch, HELD)
    monkeypatch.setattr(FakeProcess, "memory", memory)
    with contextlib.suppress(MeasureError):
        measured(project, **({"client": client * 100} if client else {}))
    found = held_open(runs(project))
    assert found
    assert all(told in one["reason"] for one in found)
    assert all("memory_per_connection_bytes" not in one["metrics"] for one in found)


ALL = ("{label: X25519}", "{label: X25519}\n  - {label: All, processors: all}")


class Machine(FakeTestbed):
    """With processors for two programs at each end."""

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"cpus": 5}


def test_a_server_on_all_processors_has_as_many_programs_and_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, ALL, HELD)
    testbed = Machine()
    found = measured(project, testbed)
    assert {(one["status"], one["reason"]) for one in found} == {("ok", None)}
    every = [one for one in found if "processors" in one["variant"]]
    assert {one["cell"]["label"] for one in every} == {"All, load 0.5", "All, load 1"}  # and none that are held open
    (file,) = (project.raw / "local" / "test").glob("*/pilot.json")
    costs = json.loads(file.read_text(encoding="utf-8"))["costs"]
    # one processor, one cost
    assert len(costs) == 4
    seconds = {(one["server"], json.loads(one["variant"])["group"]): one["server_cpu_s"] for one in costs}
    for one in every:
        cost = seconds[one["server"]["library"], one["variant"]["group"]]
        assert one["workload"]["rate_per_s"] == pytest.approx(2 * one["variant"]["load"] / cost)
        assert (one["workload"]["copies"], one["workload"]["connections"], one["metrics"]["connections"]) == (2, 10, 10)
    assert all("copies" not in one["workload"] for one in found if one not in every)
    started = [argv for argv in testbed.hosts["server"].spawned if "fleet" in Path(argv[0]).name]
    assert len(started) == len(every)
    assert {(argv[1], Path(argv[2]).name) for argv in started} == {("2", "server")}


def test_all_processors_are_unsupported_where_an_end_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, ALL)
    found = measured(project)
    assert {one["cell"]["label"] for one in found} == {
        f"{label}, load {load}" for label in ("X25519", "ML-KEM-768") for load in ("0.5", "1")
    }
    excluded = runs(project, "test/*/excluded")
    assert {(one["cell"]["label"], one["status"], one["reason"]) for one in excluded} == {
        (f"All, load {load}", "unsupported", "testbed local has a single processor for each end")
        for load in ("0.5", "1")
    }


def test_a_copy_that_crashes_fails_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, ALL)
    with contextlib.suppress(MeasureError):
        # after the pilots of both variants; the client whose turn it is ends by a signal
        measured(project, Machine(), client=["ok", "ok", "crash"])
    found = [one for one in runs(project) if "processors" in one["variant"]]
    assert found
    assert {one["status"] for one in found} == {"failed"}
    assert all("the client was killed by SIGSEGV" in one["reason"] for one in found)


def test_a_run_whose_client_fell_behind_has_failed(project: Project) -> None:
    with pytest.raises(MeasureError, match="no run succeeded, the last failed: the client fell behind"):
        measured(project, client=["behind"])
    found = runs(project)
    assert {one["status"] for one in found} == {"failed"}
    assert all(one["reason"].startswith("the client fell behind: it began 1 % of") for one in found)
    assert all(one["metrics"]["late_share"] == 1 for one in found)


def test_without_a_pilot_there_is_no_rate(project: Project) -> None:
    assert measured(project, client=["crash"]) == []
    excluded = runs(project, "test/*/excluded")
    assert len(excluded) == 8
    assert {one["reason"] for one in excluded} == {
        "its pilot, one connection after the other, failed: no rate is known"
    }


def test_the_99th_percentile_is_interpolated() -> None:
    assert percentile_99([7.0]) == 7
    assert percentile_99([float(value) for value in range(101)]) == 99
    assert percentile_99([0.0, 100.0]) == pytest.approx(99)
