"""What a variant changes beside its cryptography: MTU, socket buffers, AES instructions; and sizes of downloads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import pytest

import fakeproject
from clone import ROOT
from fakeproject import behave, run, runs
from faketestbed import FakeHost, FakeTestbed
from quicbed.config.model import ConfigError, Library, Project, Variant
from quicbed.measure import agenda
from quicbed.measure.attempt import MeasureError
from quicbed.plan.cells import cells_of, flavour_of, unsupported_reason
from quicbed.wire import proof

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, *, mode: str = "wire", blocks: int = 1
) -> Project:
    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    text = EXPERIMENT.replace("FIRST", first).replace("SECOND", second)
    text = text.replace("mode: wire", f"mode: {mode}").replace("blocks: 1", f"blocks: {blocks}")
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
    monkeypatch.setattr(agenda, "builds_needed", lambda *_: [])
    assert f" MB of raw data, of which {disk} are captures" in agenda.describe(project)


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
    assert entry["evidence"]["unproven"] == "the server cannot tell whether it uses AES instructions"


@pytest.mark.parametrize(
    ("library", "factors", "reason"),
    [
        ("openssl", {"mtu": 3000}, "1200 bytes"),
        ("quic-go", {"mtu": 3000}, "quic-go sends datagrams of at most 1452 bytes, which an MTU of 1480 holds"),
        ("quic-go", {"mtu": 1500}, None),
        ("quiche", {"mtu": 9000}, None),
        ("quinn", {"aes_hardware": False}, "ring has no switch"),
        ("quinn", {"aes_hardware": True}, None),
        ("tcp-tls", {"receive_buffer": 212992}, "the kernel sizes the buffers of TCP"),
        ("quiche", {"aead": "noenc", "header_protection": False}, "cannot leave out packet protection"),
        ("msquic", {"aead": "noenc", "header_protection": False}, None),
    ],
)
def test_what_a_library_cannot_do_has_a_reason(library: str, factors: dict[str, object], reason: str | None) -> None:
    described: Library = Project(ROOT).libraries[library]
    found = unsupported_reason(described.title, described, variant(**factors), "any")
    assert (found is None) if reason is None else (found is not None and reason in found)


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
    reason = unsupported_reason("MsQuic", libraries["msquic"], named, "any")
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
    quic = [name for name, library in project.libraries.items() if library.alpn == "hq-interop"]
    assert len(quic) >= 8
    for size in (212992, 6815744):
        met = {(c.client.library, c.server.library) for c in cells if c.variant.receive_buffer == size}
        assert met >= {(client, server) for client in quic for server in quic}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mtu: 9000}", "mtu: 9001}", "mtu"),
        ("capture: 1\n", "", "capture_bytes: needs capture and workload.kind `bulk`"),
        ("kind: bulk", "kind: handshake", "mtu, receive_buffer, loss_percent and offloads need workload.kind `bulk`"),
        ("aead: noop, header_protection: false, mtu: 9000", "aead: noenc, mtu: 9000", "noenc leaves out header"),
    ],
)
def test_a_variant_that_cannot_be_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "workflow" / "crypto").mkdir(parents=True)
    shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", tmp_path / "workflow" / "crypto")
    file = tmp_path / "config" / "experiments" / "mtu.yaml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        Project(tmp_path)
