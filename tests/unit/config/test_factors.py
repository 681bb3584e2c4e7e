"""What a variant changes beside its cryptography: MTU, socket buffers, AES instructions; and sizes of downloads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

import fakeproject
import wording
from clone import ROOT, copy_config
from fakeproject import behave, run, runs
from faketestbed import FakeHost, FakeTestbed
from quicbed.builds import components
from quicbed.config.model import ConfigError, Library, Link, Project, Variant
from quicbed.measure import captures, certificates, floor, workflow_estimate
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.measure.examine import Examiner
from quicbed.plan.cells import cells_of
from quicbed.plan.factors import flavour_of, unsupported_reason
from quicbed.plan.spec import RunSpec, proof_spec
from quicbed.store import details
from quicbed.store.runs import table as table_of
from quicbed.testbed import Capture, Process, TestbedError
from quicbed.testbed.shaping import at_server, dropped_at_server, qdisc_problem, verify_at_server
from quicbed.wire import proof, releases

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: wire}
libraries: [quiche]
variants:
  - {label: one, cipher: aes-128-gcm, FIRST}
  - {label: two, cipher: aes-128-gcm, SECOND}
baseline: one
aa: false
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 5}
"""


class Proven:
    """What an examined capture says, where the capture itself is not the subject of a test."""

    def model_dump(self, mode: str) -> dict[str, object]:
        return {"mode": mode, "server_to_client": {"mean_frame_bytes": 1200.5}, "client_to_server": {}}


def made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
    *,
    mode: str = "wire",
    blocks: int = 1,
    library: str = "quiche",
) -> Project:
    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    text = EXPERIMENT.replace("FIRST", first).replace("SECOND", second)
    text = text.replace("mode: wire", f"mode: {mode}").replace("blocks: 1", f"blocks: {blocks}")
    text = text.replace("[quiche]", f"[{library}]")
    return fakeproject.make(tmp_path, text, monkeypatch)


def variant(**factors: object) -> Variant:
    return Variant.model_validate({"label": "x", "cipher": "aes-128-gcm", **factors})


def spawned(testbed: FakeTestbed) -> list[list[str]]:
    """Command lines of all clients and servers."""
    return [argv for role in ("client", "server") for argv in cast(FakeHost, testbed.hosts[role]).spawned]


def value(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_the_link_and_the_datagrams_of_a_cell_follow_its_mtu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = FakeTestbed()
    run(made(tmp_path, monkeypatch, "mtu: 1500", "mtu: 9000"), testbed)
    assert {settings.mtu for settings in testbed.applied} >= {1500, 9000}
    assert {value(argv, "--udp-payload") for argv in spawned(testbed)} == {"1472", "8972"}
    project = Project(tmp_path)
    measured = {entry["cell"]["label"]: entry["link"]["mtu"] for entry in runs(project)}
    assert measured == {"one": 1500, "two": 9000}


def test_a_proof_keeps_mean_frame_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, "mtu: 1500", "mtu: 3000")
    run(project)
    proofs = runs(project, "proofs/*")
    assert [p["metrics"]["server_mean_frame_bytes"] for p in proofs] == [1200.5, 1200.5]
    assert not any("client_mean_frame_bytes" in p["metrics"] for p in proofs)


def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, limit: int) -> Project:
    """Whose cells, of two MTUs, are captured besides, in a download of at most *limit* bytes of *size*."""
    project = made(tmp_path, monkeypatch, "mtu: 1500", "mtu: 9000")
    file = tmp_path / "config" / "experiments" / "test.yaml"
    text = file.read_text(encoding="utf-8").replace("bytes: 1000", f"bytes: {size}")
    file.write_text(text.replace("aa: false", f"aa: false\ncapture: 1\ncapture_bytes: {limit}"), encoding="utf-8")
    return Project(project.root)


@pytest.mark.parametrize(("limit", "captured_bytes"), [(400, 400), (4000, 1000)])
def test_captured_downloads_have_a_limit_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, captured_bytes: int
) -> None:
    project = captured(tmp_path, monkeypatch, 1000, limit)
    run(project)
    sizes = {entry["cell"]["arm"]: entry["workload"]["bytes"] for entry in runs(project)}
    assert sizes == {"main": 1000, "captured": captured_bytes}


@pytest.mark.parametrize(("limit", "disk"), [(2**33, "23 MB"), (2**26, "12 MB")])
def test_the_plan_tells_the_disk_that_captures_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, disk: str
) -> None:
    project = captured(tmp_path, monkeypatch, 2**27, limit)
    monkeypatch.setattr(workflow_estimate, "builds_needed", lambda *_: [])
    assert f" MB of raw data, of which {disk} are captures" in workflow_estimate.describe(project)


def test_buffers_change_the_command_lines_and_need_no_proof_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "receive_buffer: 212992", "receive_buffer: 6815744")
    testbed = FakeTestbed()
    run(project, testbed)
    assert {value(argv, "--receive-buffer") for argv in spawned(testbed)} == {"212992", "6815744"}
    assert {value(argv, "--send-buffer") for argv in spawned(testbed)} == {"212992", "6815744"}
    assert len(runs(project, "proofs/*")) == 1
    assert len({entry["cell"]["id"] for entry in runs(project)}) == 2


def test_without_offloads_endpoints_use_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, 'offloads: "off"', "offloads: default", mode="throughput")
    testbed = FakeTestbed()
    run(project, testbed)
    assert [settings.offloads for settings in testbed.applied if settings.mode == "throughput"] != []
    measured = {entry["cell"]["label"]: entry["variant"]["offloads"] for entry in runs(project)}
    assert measured == {"one": "off", "two": "default"}
    told = {value(argv, "--gso") + value(argv, "--gro") for argv in spawned(testbed)}
    assert told == {"offoff", "onon"}
    # the proof, whose link has none anyway, is one
    assert len(runs(project, "proofs/*")) == 1


def test_delay_and_loss_of_downloads_are_of_the_link_and_not_of_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "rtt_ms: 10", "rtt_ms: 10, loss_percent: 1")
    testbed = FakeTestbed()
    run(project, testbed)
    assert len(runs(project, "proofs/*")) == 1
    proofs, measured = testbed.applied[0], testbed.applied[1:]
    assert (proofs.rtt_ms, proofs.loss_percent) == (0, 0)
    assert {(settings.rtt_ms, settings.loss_percent) for settings in measured} == {(10, 0), (10, 1)}
    found = {entry["cell"]["label"]: entry for entry in runs(project)}
    assert [found[label]["link"]["loss_percent"] for label in ("one", "two")] == [0, 1]


def test_the_same_frames_are_lost_for_every_cell_of_a_block_and_others_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "loss_percent: 1", "loss_percent: 0.1", blocks=2)
    testbed = FakeTestbed()
    run(project, testbed)
    seeds: dict[int, set[int]] = {}
    for entry in runs(project):
        seeds.setdefault(entry["block"], set()).add(entry["host"]["loss_seed"])
    assert [len(of_block) for of_block in seeds.values()] == [1, 1]
    assert seeds[0] != seeds[1]
    assert set(testbed.seeds) == seeds[0] | seeds[1]
    # not at random: a new project draws the same ones
    again = made(tmp_path / "again", monkeypatch, "loss_percent: 1", "loss_percent: 0.1", blocks=2)
    run(again, FakeTestbed())
    assert {entry["host"]["loss_seed"] for entry in runs(again)} == set(testbed.seeds)


def test_a_testbed_without_losses_measures_the_other_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = FakeTestbed()
    testbed.no_loss = "no losses: kernel has no tc with extended BPF"
    project = made(tmp_path, monkeypatch, "rtt_ms: 10", "loss_percent: 1")
    run(project, testbed)
    assert [entry["cell"]["label"] for entry in runs(project)] == ["one"]
    (excluded,) = runs(project, "test/*/excluded")
    assert (excluded["status"], excluded["reason"]) == ("unsupported", testbed.no_loss)


REORDER = "reorder_permille: 10, reorder_packets: 83"


def test_packets_put_back_are_of_the_link_and_of_what_a_run_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "mtu: 1500", REORDER)
    testbed = FakeTestbed()
    run(project, testbed)
    assert {(link.reorder_permille, link.reorder_packets) for link in testbed.applied} == {(0, None), (10, 83)}
    found = {entry["cell"]["label"]: entry for entry in runs(project)}
    assert (found["two"]["link"]["reorder_permille"], found["two"]["link"]["reorder_packets"]) == (10, 83)
    assert found["two"]["host"]["reorder_seed"] in testbed.seeds
    assert not {"loss_seed", "reorder_seed"} & found["one"]["host"].keys()
    # the order of packets is nothing that a proof depends on, and a link without is described as it was
    assert all("reorder_packets" not in entry["variant"] for entry in runs(project, "proofs/*"))
    assert not {name for name in found["one"]["link"] | found["one"]["variant"] if name.startswith("reorder")}
    table = table_of(project.raw).filter(label="two", arm="main").select("reorder_permille", "reorder_packets")
    assert (10, 83) in table.rows()


def test_a_testbed_that_puts_no_packets_back_measures_the_other_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed = FakeTestbed()
    testbed.no_reorder = "no reordering: kernel does not take the program"
    project = made(tmp_path, monkeypatch, "mtu: 1500", REORDER)
    run(project, testbed)
    assert [entry["cell"]["label"] for entry in runs(project)] == ["one"]
    (excluded,) = runs(project, "test/*/excluded")
    assert (excluded["status"], excluded["reason"]) == ("unsupported", testbed.no_reorder)


def test_a_run_whose_link_lost_what_it_was_to_put_back_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = FakeTestbed()
    testbed.misplaced = 2
    project = made(tmp_path, monkeypatch, "mtu: 1500", REORDER)
    with pytest.raises(MeasureError):
        run(project, testbed)
    reasons = {(entry["cell"]["label"], entry["reason"]) for entry in runs(project)}
    assert reasons == {("one", None), ("two", "the link lost 2 packets that it held for reordering")}


def test_aes_instructions_are_switched_off_and_both_ends_must_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "aes_hardware: true", "aes_hardware: false")
    run(project)
    seen = {
        entry["cell"]["label"]: [entry["evidence"][role]["aes_hardware"] for role in ("client", "server")]
        for entry in runs(project)
    }
    assert seen == {"one": [True, True], "two": [False, False]}
    assert all(entry["status"] == "ok" and "unproven" not in entry["evidence"] for entry in runs(project))


def test_an_end_that_cannot_tell_is_unproven_with_and_refused_without_aes_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "aes_hardware: true", "aes_hardware: false")
    behave(project, "quiche", "stock", server=["silent"])
    with pytest.raises(MeasureError, match="the server reports aes_hardware null, the cell says false"):
        run(project)
    (entry,) = runs(project)
    assert entry["cell"]["label"] == "one"
    assert entry["evidence"]["unproven"] == "the server cannot report whether it uses AES instructions"


@pytest.mark.parametrize(
    ("library", "factors"),
    [
        ("openssl", {"mtu": 3000}),
        ("quic-go", {"mtu": 3000}),
        ("quic-go", {"mtu": 1500}),
        ("quiche", {"mtu": 9000}),
        ("quinn", {"aes_hardware": False}),
        ("quinn", {"aes_hardware": True}),
        ("tcp-tls", {"receive_buffer": 212992}),
        ("quiche", {"aead": "noenc", "header_protection": False}),
        ("msquic", {"aead": "noenc", "header_protection": False}),
        ("quiche", {"pacing": "own"}),
        ("quiche", {"pacing": "txtime"}),
        ("quiche", {"pacing": "txtime", "congestion_control": "bbr", "gso": "paced"}),
        ("quiche", {"pacing": "txtime", "congestion_control": "bbr", "qdisc": "etf"}),
        ("quiche", {"pacing": "library", "congestion_control": "bbr", "qdisc": "etf"}),
        ("quinn", {"pacing": "own", "qdisc": "etf"}),
        ("quiche", {"gso": "paced"}),
        ("ngtcp2", {"pacing": "library"}),
        ("ngtcp2", {"pacing": "txtime"}),
        ("ngtcp2", {"gso": "paced"}),
        ("quinn", {"pacing": "off"}),
        ("quinn", {"gso": "paced"}),
        ("openssl", {"pacing": "library"}),
        ("openssl", {"pacing": "own"}),
        ("quic-go", {"congestion_control": "cubic"}),
        ("tcp-tls", {"pacing": "off"}),
        ("tcp-tls", {"tls_version": "TLSv1.2"}),
        ("quinn", {"tls_version": "TLSv1.2"}),
        ("quiche", {"alpn": "h3"}),
        ("nginx-h3", {"alpn": "h3"}),
        ("quinn", {"alpn": "h3"}),
        ("tcp-tls", {"alpn": "h3"}),
        ("aioquic", {"bytes": 67108864}),
        ("aioquic", {"bytes": 67108865}),
        ("tcp-tls", {"gso": "off"}),
        ("quinn", {"flavour": "no-rollback"}),
        ("picoquic", {"io": "af-xdp"}),
        ("quiche", {"io": "single"}),
        ("quiche", {"io": "mmsg"}),
        ("msquic", {"io": "gso"}),
        ("tcp-tls", {"io": "single"}),
        ("bare-udp", {"io": "gso"}),
        ("bare-udp", {"io": "single"}),
    ],
    ids=wording.name,
)
def test_what_a_library_cannot_do_has_a_reason(
    library: str, factors: dict[str, object], snapshot: SnapshotAssertion
) -> None:
    described: Library = Project(ROOT).libraries[library]
    assert unsupported_reason(described, variant(**factors), "any") == snapshot


def test_without_packet_protection_there_is_no_need_of_another_build() -> None:
    libraries = Project(ROOT).libraries
    assert flavour_of(variant(aead="noenc", header_protection=False), libraries["quiche"]) == "stock"


def test_variants_that_vary_the_mtu_are_all_measured_on_the_build_for_larger_ones() -> None:
    libraries = Project(ROOT).libraries
    for factors in ({"mtu": 1500}, {"mtu": 9000}, {"mtu": 1500, "aead": "noop", "header_protection": False}):
        assert flavour_of(variant(**factors), libraries["msquic"]) == "jumbo"
        assert flavour_of(variant(**factors), libraries["quinn"]) == ("noop" if "aead" in factors else "stock")
    assert flavour_of(variant(), libraries["msquic"]) == "stock"
    named = variant(mtu=3000, flavour="stock")
    reason = unsupported_reason(libraries["msquic"], named, "any")
    assert reason is not None
    assert "CXPLAT_MAX_MTU" in reason


def test_a_slow_library_limits_the_download_of_all_its_pairs() -> None:
    project = Project(ROOT, {"experiments": ["pairwise"], "scale": "paper"})
    limit = project.libraries["aioquic"].max_bytes
    full = project.scale("pairwise").bytes
    assert limit is not None
    assert limit < full
    for cell in cells_of(project, "pairwise", "", {}):
        assert cell.bytes == (limit if "aioquic" in (cell.client.library, cell.server.library) else full)


def test_every_client_meets_every_server_with_both_sizes_of_buffers() -> None:
    project = Project(ROOT, {"experiments": ["pairwise"], "scale": "tiny"})
    cells = [cell for cell in cells_of(project, "pairwise", "", {}) if cell.unsupported is None]
    quic = [name for name, one in project.libraries.items() if (one.transport, one.alpn) == ("quic", "hq-interop")]
    assert len(quic) >= 8
    for size in (212992, 6815744):
        met = {(c.client.library, c.server.library) for c in cells if c.variant.receive_buffer == size}
        assert met >= {(client, server) for client in quic for server in quic}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mtu: 9000}", "mtu: 9001}"),
        ("capture: 1\n", ""),
        ("kind: bulk", "kind: handshake"),
        ("aead: noop, header_protection: false, mtu: 9000", "aead: noenc, mtu: 9000"),
        ("aead: noop, header_protection: false, mtu: 9000", "alpn: h2, mtu: 9000"),
    ],
    ids=wording.name,
)
def test_a_variant_that_cannot_be_is_named(tmp_path: Path, old: str, new: str, snapshot: SnapshotAssertion) -> None:
    copy_config(tmp_path / "config")
    (tmp_path / "workflow" / "crypto").mkdir(parents=True)
    shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", tmp_path / "workflow" / "crypto")
    file = tmp_path / "config" / "experiments" / "mtu.yaml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        Project(tmp_path)
    assert wording.one_line(error.value, tmp_path, names="mtu.yaml: ") == snapshot


def sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, scale: str) -> Project:
    """Two variants with a size of their own, and what the scale says besides."""
    project = made(tmp_path, monkeypatch, first, second)
    file = tmp_path / "config" / "experiments" / "test.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("bytes: 1000,", f"bytes: 1000, {scale}"), encoding="utf-8")
    return Project(project.root)


def test_small_downloads_are_repeated_within_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = sized(tmp_path, monkeypatch, "bytes: 300", "bytes: 10", "connections: 5,")
    testbed = FakeTestbed()
    run(project, testbed)
    done = {entry["cell"]["label"]: entry for entry in runs(project)}
    told = {label: (entry["workload"]["bytes"], entry["workload"]["connections"]) for label, entry in done.items()}
    # 4 x 300 are the first to reach 1000; 100 x 10 would, and 5 are the most
    assert told == {"one": (300, 4), "two": (10, 5)}
    for entry, size in ((done["one"], 1200), (done["two"], 50)):
        metrics, count = entry["metrics"], entry["workload"]["connections"]
        assert metrics["bytes"] == size
        # of every connection the fake endpoints report 2 ms
        assert metrics["client_cpu_s"] == pytest.approx(0.002 * count)
        assert metrics["server_cpu_s_per_gib"] == pytest.approx(0.002 * count / (size / 2**30))
        assert metrics["client_packets_sent"] == 10 * count
        # 9 of the 10 steps of a connection, of which the request comes after 2
        assert metrics["goodput_mbps"] / metrics["throughput_mbps"] == pytest.approx(9 / 7, rel=1e-3)
        # there is a pause between two connections, which only the time of the whole run has in it
        assert size * 8e-6 / metrics["wall_s"] < metrics["throughput_mbps"]
    assert len(runs(project, "proofs/*")) == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("short", "ok is true, but content_ok is not"), ("failed-connection", "bad_certificate")],
)
def test_one_bad_download_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, reason: str
) -> None:
    project = sized(tmp_path, monkeypatch, "bytes: 10", "bytes: 20", "connections: 3,")
    # the proof is one transfer
    behave(project, "quiche", "stock", client=["ok", behaviour])
    with pytest.raises(MeasureError, match=reason):
        run(project)


def test_a_lost_connection_of_several_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = sized(tmp_path, monkeypatch, "bytes: 10", "bytes: 20", "connections: 3,")
    behave(project, "quiche", "stock", server=["ok", "lost-connection"])
    with pytest.raises(MeasureError, match="the server reported 2 of 3 connections"):
        run(project)


def test_what_a_scale_leaves_out_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = sized(tmp_path, monkeypatch, "bytes: 10", "bytes: 2000", "most_bytes: 1999,")
    run(project)
    assert [entry["cell"]["label"] for entry in runs(project)] == ["one"]
    (excluded,) = runs(project, "test/*/excluded")
    assert excluded["status"] == "unsupported"
    assert excluded["reason"] == "left out: scale tiny has no downloads of more than 1999 bytes"


@pytest.mark.parametrize(
    ("first", "scale"),
    [
        ("bytes: 10", "connections: 2,"),
        ("rtt_ms: 0", "most_bytes: 5,"),
        ("bytes: 10", "least_s: 1,"),
        ("tls_version: TLSv1.2, group: mlkem768", ""),
        ("tls_version: TLSv1.2, signature: ed25519", ""),
        ("tls_version: TLSv1.2, chain: intermediate", ""),
        ('tls_version: "1.2"', ""),
    ],
    ids=wording.name,
)
def test_sizes_and_versions_that_do_not_go_together_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, scale: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ConfigError) as error:
        sized(tmp_path, monkeypatch, first, "group: x25519", scale)
    assert wording.one_line(error.value, tmp_path, names=".yaml: ") == snapshot


def test_the_version_of_tls_is_told_proven_and_must_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[Any] = []

    def checked(_seen: object, claim: object, _resumed: object) -> list[str]:
        claims.append(claim)
        return []

    project = made(tmp_path, monkeypatch, "tls_version: TLSv1.3", "tls_version: TLSv1.2", library="tcp-tls")
    monkeypatch.setattr(proof, "check", checked)
    testbed = FakeTestbed()
    run(project, testbed)
    assert {value(argv, "--tls-version") for argv in spawned(testbed) if "--tls-version" in argv} == {"TLSv1.2"}
    seen = {
        entry["cell"]["label"]: [
            (entry["evidence"][role]["tls_version"], entry["evidence"][role]["cipher"]) for role in ("client", "server")
        ]
        for entry in runs(project)
    }
    old = ("TLSv1.2", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    assert seen == {"one": [("TLSv1.3", "TLS_AES_128_GCM_SHA256")] * 2, "two": [old] * 2}
    # the group of TLS 1.2 is not in its ServerHello
    assert {(one.cipher_suite, one.group) for one in claims} == {(0x1301, 0x1D), (0xC02F, None)}
    shutil.rmtree(tmp_path / "raw")
    behave(project, "tcp-tls", "stock", server=["wrong-version"])
    with pytest.raises(MeasureError, match=r"the server reports tls_version TLSv1\.3, the cell says TLSv1\.2"):
        run(project)


def test_the_application_protocol_is_told_and_must_be_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, "group: x25519", "alpn: h3")
    testbed = FakeTestbed()
    # the endpoints of tests speak hq-interop, whatever they are told
    with pytest.raises(MeasureError, match=r"the (client|server) reports alpn hq-interop, the cell says h3"):
        run(project, testbed)
    told = [argv for argv in spawned(testbed) if "--alpn" in argv]
    assert {value(argv, "--alpn") for argv in told} == {"h3"}
    assert len(told) < len(spawned(testbed))
    (bare, http3) = (cell for cell in cells_of(project, next(iter(project.experiments)), "", {}) if cell.arm == "main")
    assert (bare.variant.alpn, http3.variant.alpn) == (None, "h3")
    # cells that do not vary it stay those they were
    assert "alpn" not in bare.variant.as_dict()


def test_http3_is_planned_with_the_bare_stream_of_the_same_size() -> None:
    for scale in ("tiny", "quick", "paper"):
        project = Project(ROOT, {"scale": scale, "experiments": ["http3"]})
        cells = cells_of(project, "http3", "", {})
        assert {cell.unsupported for cell in cells} == {None}
        by_id = {cell.id: cell for cell in cells}
        over = [cell for cell in cells if cell.variant.alpn == "h3"]
        assert len(over) == 3 * 3
        for cell in over:
            against = by_id[str(cell.baseline)]
            assert (against.variant.alpn, against.bytes, against.libraries) == (None, cell.bytes, cell.libraries)
        assert {cell.arm for cell in cells} == {"main", "aa"}


def test_the_chain_is_that_of_the_cell_and_proven_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, "chain: leaf", "chain: two-intermediates-scts")
    testbed = FakeTestbed()
    run(project, testbed)
    places = {value(argv, "--certificate") for argv in spawned(testbed) if "--certificate" in argv}
    places |= {value(argv, "--ca") for argv in spawned(testbed) if "--ca" in argv}
    assert {Path(place).parent.name for place in places} == {"rsa-2048", "rsa-2048.two-intermediates-scts"}
    chains = {entry["cell"]["label"]: entry["variant"].get("chain") for entry in runs(project)}
    assert chains == {"one": None, "two": "two-intermediates-scts"}
    longer = certificates.directory(project, "rsa-2048.two-intermediates-scts")
    shutil.rmtree(longer)
    certificates.make_all(project, [longer.name], jobs=1, log=tmp_path / "log")
    experiment = project.experiments["test"]
    wanted = {}
    for cell in cells_of(project, "test", "", {}):
        examiner = Examiner(project, proof_spec(project, experiment, cell), "10.0.0.1")
        wanted[cell.variant.chain] = examiner._expected["certificate_bytes"]
    assert wanted == {None: None, "two-intermediates-scts": certificates.message_bytes(longer)}
    with pytest.raises(ConfigError, match="Input should be 'leaf', 'leaf-scts'"):
        made(tmp_path / "other", monkeypatch, "chain: leaf", "chain: three")


def test_cloud_storage_is_planned_at_every_scale() -> None:
    for scale, most in (("tiny", 20_000_000), ("quick", 200_000_000), ("paper", 2_000_000_000)):
        cells = cells_of(Project(ROOT, {"scale": scale}), "cloud-storage", "", {})
        able = {cell.slug: cell for cell in cells if cell.unsupported is None}
        assert max(cell.bytes or 0 for cell in able.values()) == most
        left = {cell.bytes for cell in cells if (cell.unsupported or "").startswith("left out: ")}
        assert left == {size for size in (200_000_000, 2_000_000_000) if size > most}
        tcp = {cell.variant.tls_version for cell in able.values() if cell.transport == "tcp"}
        quic = {cell.variant.tls_version for cell in able.values() if cell.transport == "quic"}
        assert (tcp, quic) == ({None, "TLSv1.2"}, {None})
        assert {cell.connections for cell in able.values() if cell.bytes == most} == {1}


def test_endpoints_are_told_how_to_pace_and_a_proof_does_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(
        tmp_path, monkeypatch, "pacing: own", "pacing: txtime, congestion_control: bbr, gso: paced, qdisc: fq"
    )
    testbed = FakeTestbed()
    run(project, testbed)
    told = {
        tuple(value(argv, f"--{name}") for name in ("pacing", "gso", "congestion-control"))
        for argv in spawned(testbed)
        if "--pacing" in argv
    }
    # quiche's own programs hand release times to the kernel, and it computes none with CUBIC
    assert told == {("off", "on", "cubic"), ("txtime", "paced", "bbr")}
    assert {settings.qdisc for settings in testbed.applied} == {None, "fq"}
    assert len(runs(project, "proofs/*")) == 1
    (paced,) = [entry for entry in runs(project) if entry["cell"]["label"] == "two"]
    varied = {name: paced["variant"][name] for name in ("pacing", "gso", "congestion_control", "qdisc")}
    assert varied == {"pacing": "txtime", "gso": "paced", "congestion_control": "bbr", "qdisc": "fq"}
    assert paced["host"]["options"]["server"]["pacing"] == "txtime"


def test_an_end_that_paces_otherwise_than_the_cell_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "congestion_control: bbr", "pacing: library, congestion_control: bbr")
    behave(project, "quiche", "stock", server=["unpaced"])
    with pytest.raises(MeasureError, match="the server reports pacing off, the cell says library"):
        run(project)


def test_the_server_is_told_of_etf_and_has_to_report_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, "pacing: own", "pacing: txtime, congestion_control: bbr, qdisc: etf")
    testbed = FakeTestbed()
    run(project, testbed)
    told = {(Path(argv[0]).name, value(argv, "--etf")) for argv in spawned(testbed) if "--etf" in argv}
    assert told == {("server", "on")}
    behave(project, "quiche", "stock", server=["no etf"])
    shutil.rmtree(project.raw)
    with pytest.raises(MeasureError, match="the server reports etf False, the cell says True"):
        run(project)


def test_both_ends_or_one_are_told_how_datagrams_pass_and_a_proof_does_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "io: single", "io: io-uring, io_at: server", library="picoquic")
    testbed = FakeTestbed()
    run(project, testbed)
    told = {
        (Path(argv[0]).name, tuple(argv[argv.index(name) + 1] for name in ("--gso", "--gro", "--io") if name in argv))
        for argv in spawned(testbed)
    }
    both_off, both_on, by_ring = ("off", "off"), ("on", "on"), ("io-uring",)
    # of the cells and, with what the workload says, of the proof
    expected = {("client", both_off), ("server", both_off), ("client", both_on), ("server", by_ring)}
    assert told == expected | {("server", both_on)}
    assert len(runs(project, "proofs/*")) == 1
    found = {entry["cell"]["label"]: entry for entry in runs(project)}
    options = found["two"]["host"]["options"]
    assert [(options[role]["gso"], options[role].get("io")) for role in ("client", "server")] == [
        (True, None),
        (False, "io-uring"),
    ]
    table = table_of(project.raw).filter(label="two", arm="main").select("io", "io_at")
    assert ("io-uring", "server") in table.rows()


def test_super_frames_are_an_arm_beside_frames_of_the_mtu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, monkeypatch, "io: gso", "io: gso, offloads: default", library="picoquic")
    testbed = FakeTestbed()
    run(project, testbed)
    assert {settings.segmentation for settings in testbed.applied} == {"off", "default"}
    found = {entry["cell"]["label"]: entry["link"]["mode"] for entry in runs(project)}
    assert found == {"one": "wire", "two": "throughput"}
    # packets are the same
    assert [entry["link"]["mode"] for entry in runs(project, "proofs/*")] == ["wire"]


def test_an_end_that_passes_datagrams_otherwise_than_the_cell_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = made(tmp_path, monkeypatch, "io: gso", "io: mmsg", library="picoquic")
    behave(project, "picoquic", "stock", client=["other io"])
    with pytest.raises(MeasureError, match="the client reports io gso, the cell says mmsg"):
        run(project)


@pytest.mark.parametrize(
    "wrong",
    [
        "io: mmsg, gro: false",
        "io_at: client",
        "io: gso, io_at: server",
        "io: af-xdp, mtu: 3000",
        "io: mmsg, offloads: default",
        "io: gso, offloads: gso-gro",
        "io: gso, offloads: default, baseline: two",
    ],
)
def test_what_does_not_go_together_with_a_way_of_datagrams_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ConfigError) as error:
        made(tmp_path, monkeypatch, "io: single", wrong, library="picoquic")
    assert wording.one_line(error.value, tmp_path, names=".yaml: ") == snapshot


class LosingTestbed(FakeTestbed):
    """Whose captures of traced runs lack packets."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self._lost = lost

    def capture(self, path: Path, *, snaplen: int = 128, **options: Any) -> AbstractContextManager[Capture]:
        self.lost = self._lost if snaplen == captures.CAPTURED_BYTES else 0
        return super().capture(path, snaplen=snaplen, **options)


SUMMARY = {
    "format": "pcap",
    "packing": None,
    "interfaces": 1,
    "frames": 4,
    "connections": 1,
    "other_frames": 0,
    "short_frames": 0,
    "first_short": None,
    "backward_frames": 0,
    "first_backward": None,
    "unstamped_frames": 0,
    "unknown_connection": 0,
    "dropped_frames": None,
    "truncated": None,
}


def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *said: dict[str, object]) -> Project:
    """Whose runs are traced, and whose reader of traces finds two packets 0.05 ms apart, a third 1 ms later, and one of
    the client; *said* are its summaries, the last one repeating.
    """
    project = made(tmp_path, monkeypatch, "rtt_ms: 1", "rtt_ms: 2")
    file = tmp_path / "config" / "experiments" / "test.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("aa: false", "aa: false\ntrace: true"), encoding="utf-8")
    monkeypatch.setattr(components, "directory", lambda of, name: of.build / "work" / name)
    monkeypatch.setattr(components, "is_built", lambda *_: True)
    monkeypatch.setattr(floor, "PACKETS", 4)
    directory = components.directory(project, "capture-reader") / "bin"
    directory.mkdir(parents=True)
    columns = {"time_ns": [0, 50_000, 60_000, 1_050_000], "frame_bytes": [1294] * 4, "packet_number": [None] * 4}
    sides = ["to_client", "to_client", "to_server", "to_client"]
    pl.DataFrame({"connection": [0] * 4, "interface": [0] * 4, "direction": sides, **columns}).write_parquet(
        directory / "table"
    )
    (directory / "said").write_text(json.dumps([SUMMARY | one for one in said or ({},)]), encoding="utf-8")
    program = (
        "import json, pathlib, shutil, sys\n"
        "here = pathlib.Path(sys.argv[0]).parent\n"
        "summaries = json.loads((here / 'said').read_text())\n"
        "print(json.dumps(summaries[0]))\n"
        "(here / 'said').write_text(json.dumps(summaries[1:] or summaries))\n"
        "shutil.copy(here / 'table', sys.argv[2])\n"
    )
    (directory / "capture-reader").write_text(f"{fakeproject.INTERPRETER}{program}", encoding="utf-8")
    (directory / "capture-reader").chmod(0o755)
    return Project(project.root)


@pytest.mark.parametrize("lost", [0, 3])
def test_a_traced_run_keeps_its_headers_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    project = traced(tmp_path, monkeypatch)
    testbed = LosingTestbed(lost)
    run(project, testbed)
    directories = [path.parent for path in tmp_path.glob("raw/local/test/*/b*/*/run.json")]
    for directory in directories:
        assert {path.name for path in directory.iterdir()} >= {"trace.pcap.gz", "run.json"}
        assert (directory / "pacing.json").exists() == (lost == 0)
        assert not (directory / "capture.pcap").exists()
    assert len(directories) == (2 if lost == 0 else 2 * (1 + project.config.gate.retries))
    assert captures.CAPTURED_BYTES in testbed.snaplens
    told = {reason for entry in runs(project) for reason in entry["contamination"] if "capture" in reason}
    assert told == (set() if lost == 0 else {"the capture lost 3 packets"})


def test_a_traced_run_tells_gaps_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = traced(tmp_path, monkeypatch)
    run(project)
    expected = {
        "traced_packets": 3,
        "packets_in_trains_to_5": 1.0,
        "gap_ms": 0.525,
        "gap_ms_p25": 0.2875,
        "gap_ms_p75": 0.7625,
    }
    for entry in runs(project):
        assert {name: entry["metrics"][name] for name in expected} == pytest.approx(expected)
    found = details.read(project.raw / "local")
    assert not found.problems
    assert found.pacing["origin"].n_unique() == 2
    (first, _) = found.pacing.partition_by("origin")
    # the next larger of 100 values a decade
    gaps = [("gap_ns", round(10**4.7), 1), ("gap_ns", 10**6, 1)]
    assert first.select("quantity", "value", "count").rows() == [
        *gaps,
        ("train_packets", 1, 1),
        ("train_packets", 2, 2),
    ]


def test_a_run_without_release_times_says_why_it_has_no_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = traced(tmp_path, monkeypatch)
    run(project)
    for entry in runs(project):
        assert entry["status"] == "ok"
        assert "pacing_precision_us" not in entry["metrics"]
        assert "releases.bin: " in entry["evidence"]["unknown"]["pacing_precision_us"]


def test_the_precision_of_a_run_is_kept_and_only_servers_that_can_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = traced(tmp_path, monkeypatch)
    asked: list[tuple[str, str, tuple[str, int]]] = []

    def found(file: Path, capture: Path, server: tuple[str, int]) -> float:
        asked.append((file.name, capture.name, server))
        return 12.5

    given: list[Mapping[str, str] | None] = []
    spawn = FakeHost.spawn

    def spawned_(host: FakeHost, argv: Sequence[str], **options: Any) -> Process:
        given.append(options["env"])
        return spawn(host, argv, **options)

    monkeypatch.setattr(FakeHost, "spawn", spawned_)
    monkeypatch.setattr(releases, "precision_us", found)
    run(project)
    assert {entry["metrics"]["pacing_precision_us"] for entry in runs(project)} == {12.5}
    assert set(asked) == {("releases.bin", "capture.pcap", ("127.0.0.1", 4433))}
    named = [Path(one["QUICBED_RELEASE_TIMES"]).name for one in given if one]
    assert set(named) == {"releases.bin"}
    # the servers of traced runs, and neither clients nor proofs
    assert len(named) < len(given) / 2


def test_a_library_that_tells_no_release_times_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = traced(tmp_path, monkeypatch)
    spec, attempt = SimpleNamespace(libraries={"server": project.libraries["quinn"]}), Attempt()
    captures.measure_precision(attempt, cast(RunSpec, spec), tmp_path, "127.0.0.1")
    assert attempt.evidence == {
        "unknown": {"pacing_precision_us": "quinn keeps the release times of its pacer to itself"}
    }


def test_a_broken_trace_costs_only_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the first one is of the warm-up
    project = traced(tmp_path, monkeypatch, {}, {"short_frames": 1, "first_short": 2}, {})
    run(project)
    measured = runs(project)
    (broken,) = [entry for entry in measured if entry["contamination"]]
    (reason,) = broken["contamination"]
    assert reason.startswith("trace: capture.pcap: 1 frames, the first is frame 2, were captured too short")
    assert "traced_packets" not in broken["metrics"]
    assert len(measured) == 3
    assert [entry["cell"]["id"] for entry in measured].count(broken["cell"]["id"]) == 2
    assert details.read(project.raw / "local").pacing["origin"].n_unique() == 2


def test_a_reader_of_traces_that_is_not_built_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = traced(tmp_path, monkeypatch)
    monkeypatch.setattr(components, "is_built", lambda *_: False)
    with pytest.raises(MeasureError, match="is not built; run `quicbed component capture-reader`"):
        run(project)
    assert not runs(project)


def test_what_a_link_leaves_out_is_not_part_of_its_campaign() -> None:
    assert Link(mode="wire").model_dump() == {"mode": "wire", "mtu": 1500, "rate_mbit": None}
    whole = {"mode": "wire", "mtu": 1500, "rate_mbit": 40, "queue_ms": 80, "bottleneck": "client"}
    assert Link.model_validate(whole).model_dump() == whole


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("queue_ms: 80", "need `rate_mbit`"),
        ("bottleneck: client", "need `rate_mbit`"),
    ],
)
def test_a_link_without_a_limit_has_no_bottleneck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        made(tmp_path, monkeypatch, "rtt_ms: 1", "rtt_ms: 2", mode=f"wire, {wrong}")


def test_a_discipline_that_is_not_to_be_had_has_a_reason() -> None:
    assert qdisc_problem(None, "kernel has no fq") is None
    assert qdisc_problem("fq", "") is None
    assert qdisc_problem("fq", "kernel has no fq") == "no queueing discipline fq: kernel has no fq"
    assert "set link.bottleneck" in str(qdisc_problem("fq", "", at_client=False))
    assert qdisc_problem("etf", "") is None
    assert qdisc_problem("etf", "kernel has no etf") == "no queueing discipline etf: kernel has no etf"
    assert "it takes a network card that keeps to times" in str(qdisc_problem("etf-launchtime", ""))


def test_a_discipline_that_is_not_what_was_set_is_refused() -> None:
    assert at_server(None) == ["default"]
    assert at_server("fq") == ["fq"]
    words = at_server("etf")
    # frames of priority 1 go through ETF, the first band
    assert words[:5] == ["prio", "bands", "2", "priomap", "1"]
    assert words[4:20] == ["1", "0", *["1"] * 14]
    assert words[20:] == ["child", "etf", "clockid", "CLOCK_TAI", "delta", "200000"]
    both = json.dumps([{"kind": "prio", "root": True, "drops": 1}, {"kind": "etf", "parent": "1:1", "drops": 5}])
    alone = json.dumps([{"kind": "prio", "root": True, "drops": 0}])
    verify_at_server("server", "eth0", "etf", both)
    verify_at_server("server", "eth0", None, alone)
    assert dropped_at_server(both) == 6
    for name, shown in (("etf", alone), ("fq", both), ("fq", "[]")):
        with pytest.raises(TestbedError, match=f"server: eth0 has .* after {name} was set"):
            verify_at_server("server", "eth0", name, shown)


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_the_experiments_of_quic_steps_are_planned_as_published(scale: str) -> None:
    project = Project(ROOT, {"scale": scale})
    names = ("baseline", "congestion-control", "fq", "gso", "etf")
    for name in (f"pacing-{one}" for one in names):
        experiment = project.experiments[name]
        link = experiment.link
        assert (link.rate_mbit, {one.rtt_ms for one in experiment.variants}, experiment.trace) == (40, {40}, True)
        # two bandwidth-delay products
        assert link.queue_ms == 2 * 40
        if scale == "paper":
            assert (project.scale(name).bytes, project.scale(name).blocks) == (100 << 20, 20)
        able = [cell.slug for cell in cells_of(project, name, "", {}) if cell.unsupported is None]
        assert any(slug.startswith("quiche") for slug in able)
