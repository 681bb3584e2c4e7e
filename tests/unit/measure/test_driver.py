"""The driver: order, resumption, failures and evidence, with endpoints that misbehave on demand."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import fakeproject
from fakeproject import EXPERIMENT, behave, once, orders, run, runs
from faketestbed import FakeHost, FakeTestbed
from killed import processes
from quicbed.base.statistics import Interval
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import campaign, certificates, link, session
from quicbed.measure.attempt import MeasureError
from quicbed.measure.driver import Driver
from quicbed.plan import spec
from quicbed.plan.built import Build
from quicbed.plan.host import host_of
from quicbed.store import runs as quicbed_runs
from quicbed.store.paths import PORT
from quicbed.store.record import Run
from quicbed.testbed import Capture, HostLostError, LinkSettings, Process, Role, TestbedError
from quicbed.wire import proof
from wirefixtures import pcap, udp


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    fakeproject.prove(monkeypatch)
    return fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)


def test_blocks_are_complete_random_and_reproducible(project: Project, tmp_path: Path) -> None:
    run(project)
    done = runs(project)
    cells = {entry["cell"]["id"] for entry in done}
    assert len(cells) == 6  # two libraries: two variants and the A/A arm
    for order in orders(project):
        assert set(order) == cells
    assert len(orders(project)) == 3
    assert len({tuple(order) for order in orders(project)}) > 1
    assert all(entry["status"] == "ok" for entry in done)
    assert len(done) == 18
    for entry in done:
        order = orders(project)[entry["block"]]
        assert order[entry["order"]] == entry["cell"]["id"]
    first = orders(project)
    shutil.rmtree(tmp_path / "raw")
    run(project)
    assert orders(project) == first


def test_a_second_start_measures_nothing(project: Project) -> None:
    run(project)
    before = {file: file.stat().st_mtime_ns for file in project.raw.rglob("run.json")}
    run(project)
    assert {file: file.stat().st_mtime_ns for file in project.raw.rglob("run.json")} == before


def test_the_link_is_wire_for_proofs_and_the_experiments_for_runs(project: Project) -> None:
    testbed = FakeTestbed()
    run(project, testbed)
    assert {link.mode for link in testbed.applied[:-1]} == {"wire"}
    assert testbed.applied[-1].mode == "throughput"
    assert {entry["link"]["mode"] for entry in runs(project)} == {"throughput"}
    assert {entry["link"]["mode"] for entry in runs(project, "proofs/*")} == {"wire"}


def test_every_run_names_the_proof_of_its_builds_and_variant(project: Project) -> None:
    run(project)
    proofs = {entry["cell"]["id"]: entry for entry in runs(project, "proofs/*")}
    for entry in runs(project):
        proven = proofs[entry["evidence"]["proof"]]
        assert proven["variant"] == entry["variant"]
        assert proven["client"] == entry["client"]


@pytest.mark.parametrize(
    "changed", [{"cpu_model": "other"}, {"kernel": "6.2"}, {"microcode": "0x2"}, {"memory_bytes": 2**34}]
)
def test_another_host_measures_and_proves_everything_itself(project: Project, changed: dict[str, Any]) -> None:
    run(project)
    before = {file: file.stat().st_mtime_ns for file in project.raw.rglob("run.json")}
    testbed = FakeTestbed()
    testbed.machine |= changed
    run(project, testbed)
    known = {Run.read(file).testbed.host for file in before}
    files = set(project.raw.rglob("run.json")) - set(before)
    later = [Run.read(file) for file in files]
    assert len(later) == len(before)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert {one.testbed.host for one in later} == {host_of(testbed.facts())}
    assert known.isdisjoint({host_of(testbed.facts())})
    proven = {one.cell.id for one in later if one.cell.arm == "proof"}
    assert {one.evidence.proof for one in later if one.block is not None} == proven
    assert proven.isdisjoint(Run.read(file).cell.id for file in before)


def test_new_cells_are_measured_in_new_blocks_with_their_baselines(project: Project) -> None:
    run(project)
    old = {file.read_bytes() for file in project.raw.glob("local/test/*/b*/*/run.json")}
    file = project.root / "config" / "experiments" / "test.yaml"
    added = "  - {label: ChaCha20-Poly1305, cipher: chacha20-poly1305}\nbaseline:"
    file.write_text(EXPERIMENT.replace("baseline:", added), encoding="utf-8")
    again = Project(project.root)
    run(again)
    now = {file.read_bytes() for file in again.raw.glob("local/test/*/b*/*/run.json")}
    assert old < now
    by_id = {entry["cell"]["id"]: entry["cell"]["slug"] for entry in runs(again)}
    assert len(orders(again)) == 6
    for order in orders(again)[3:]:
        assert sorted(by_id[cell] for cell in order) == [
            "quiche-aes-128-gcm",
            "quiche-chacha20-poly1305",
            "quinn-aes-128-gcm",
            "quinn-chacha20-poly1305",
        ]


@pytest.mark.parametrize(
    ("role", "behaviour", "reason"),
    [
        ("client", "hang", "the client hung"),
        ("client", "crash", "the client was killed by SIGSEGV"),
        ("client", "garbage", "client.jsonl"),
        ("client", "truncated", "client.jsonl"),
        ("client", "short", "ok is true, but content_ok is not"),
        ("client", "wrong-content", "content differs at byte 3"),
        ("client", "failed-connection", "handshake failed: TLS alert bad_certificate (42)"),
        ("client", "odd-option", "key 'host.options.client.receive_buffer': expected int, found 'much'"),
        ("server", "crash", "the server exited with 1: server: cannot bind"),
        ("server", "never-ready", "the server was not ready"),
        ("server", "ignore-sigterm", "the server did not stop"),
    ],
)
def test_a_misbehaving_endpoint_is_a_failed_run_with_its_reason(
    project: Project, role: str, behaviour: str, reason: str
) -> None:
    # the proof of the variant is the first execution and the warm-up the second
    behave(project, "quiche", "stock", **{role: ["ok", "ok", behaviour, behaviour, "ok"]})
    run(project)
    failed = [entry for entry in runs(project) if entry["status"] == "failed"]
    assert len(failed) == 2
    for entry in failed:
        assert entry["client"]["library"] == "quiche"
        assert reason in entry["reason"]
        assert "goodput_mbps" not in entry["metrics"]
    assert sum(entry["status"] == "ok" for entry in runs(project)) >= 16
    assert processes(f"{project.build}/") == []


def test_an_endpoint_that_is_left_running_would_be_noticed(project: Project, tmp_path: Path) -> None:
    behave(project, "quiche", "stock", server=["ignore-sigterm"])
    argv = [str(project.build / "quiche-stock" / "bin" / "server"), "--events", str(tmp_path / "events")]
    argv += ["--listen", "127.0.0.1:4433", "--content", "1"]
    left = FakeTestbed().server.spawn(argv, stdout=tmp_path / "out", stderr=tmp_path / "err")
    try:
        deadline = time.monotonic() + 60
        # a process has no command line for a moment while it starts another program, as that of `#!` does
        while (found := processes(f"{project.build}/")) != [left.pid] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == [left.pid]
    finally:
        left.kill()
    assert processes(f"{project.build}/") == []


def test_contradicting_evidence_fails_loudly_and_is_no_data_point(project: Project) -> None:
    behave(project, "quinn", "stock", client=["ok", "ok", "wrong-cipher", "ok"])
    with pytest.raises(MeasureError, match="client reports cipher TLS_AES_256_GCM_SHA384, the cell says TLS_AES_128"):
        run(project)
    failed = [entry for entry in runs(project) if entry["status"] == "failed"]
    assert len(failed) == 1
    assert failed[0]["client"]["library"] == "quinn"
    with pytest.raises(MeasureError, match="client reports cipher TLS_AES_256_GCM_SHA384"):
        run(project)  # nothing is measured again, and nothing is forgotten
    assert not (project.root / "marker.json").exists()


def test_an_experiment_with_a_cell_that_never_succeeded_is_not_complete(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    behave(project, "quinn", "noop", client=["ok", "crash"])
    with pytest.raises(MeasureError, match=r"quinn-noop: no run succeeded, the last failed: .*SIGSEGV"):
        run(project)
    assert not (project.root / "marker.json").exists()
    assert "test: block 3 of at most 3, 6/6 " in caplog.text
    behave(project, "quinn", "noop")
    run(project)
    assert (project.root / "marker.json").exists()
    assert "test: block 4, for what earlier ones lack, 2/2 " in caplog.text
    slugs = [{entry["cell"]["slug"] for entry in runs(project) if entry["block"] == block} for block in (2, 3)]
    assert len(slugs[0]) == 6
    assert slugs[1] == {"quinn-aes-128-gcm", "quinn-noop"}


def test_a_new_baseline_is_measured_together_with_what_is_compared_with_it(project: Project) -> None:
    run(project)
    file = project.root / "config" / "experiments" / "test.yaml"
    renamed = EXPERIMENT.replace("baseline:", "  - {label: AES-256-GCM, cipher: aes-256-gcm}\nbaseline:")
    file.write_text(renamed.replace("baseline: AES-128-GCM", "baseline: AES-256-GCM"), encoding="utf-8")
    again = Project(project.root)
    run(again)
    by_id = {entry["cell"]["id"]: entry["cell"]["slug"] for entry in runs(again)}
    for order in orders(again)[3:]:
        assert {"quiche-aes-256-gcm", "quiche-aes-128-gcm", "quiche-noop"} <= {by_id[cell] for cell in order}
    assert len(orders(again)) == 6


def test_a_proof_is_looked_at_again_when_it_is_used_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project)
    monkeypatch.setattr(
        proof, "check", lambda _seen, claims, _resumed: ["it is not clear any more"] if claims.aead == "noop" else []
    )
    with pytest.raises(MeasureError, match="quiche-noop: not measured: capture: it is not clear any more"):
        run(project)


def test_a_capture_with_gaps_is_marked_and_gives_no_packet_metrics(project: Project) -> None:
    project = Project(project.root, {"libraries": ["quinn"]})
    testbed = FakeTestbed()
    run(project, testbed)
    proofs = runs(project, "proofs/*")
    assert {entry["metrics"]["client_mean_frame_bytes"] for entry in proofs} == {80.0}
    assert {entry["host"]["capture"]["lost"] for entry in proofs} == {0}
    shutil.rmtree(project.raw)
    testbed.lost = 3
    with pytest.raises(MeasureError, match="not measured: capture: the capture lost 3 packets"):
        run(project, testbed)
    proofs = runs(project, "proofs/*")
    assert {entry["reason"] for entry in proofs} == {"capture: the capture lost 3 packets"}
    # it is in view, with what it shows
    assert all((entry["host"]["capture"]["packets"], entry["host"]["capture"]["lost"]) == (7, 3) for entry in proofs)
    assert all("client_mean_frame_bytes" not in entry["metrics"] for entry in proofs)
    assert all(entry["evidence"]["seen"]["client_to_server"]["mean_frame_bytes"] == 80 for entry in proofs)
    assert len(list(project.raw.glob("local/proofs/*/*/capture.pcap"))) == len(proofs)


class Losing(FakeTestbed):
    """Its client is lost at its first program while something is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing = False
        self.recovered: list[bool] = []
        """Whether something was being captured, each time that hosts were connected to again."""
        self.hosts["client"] = LosingHost("client", self)

    @contextlib.contextmanager
    def capture(self, path: Path, **options: Any) -> Iterator[Capture]:
        self.capturing = True
        try:
            with super().capture(path, **options) as captured:
                yield captured
        finally:
            self.capturing = False

    def recover(self) -> None:
        self.recovered.append(self.capturing)


class LosingHost(FakeHost):
    def __init__(self, name: Role, testbed: Losing) -> None:
        super().__init__(name)
        self.testbed = testbed

    def spawn(self, argv: Sequence[str], **options: Any) -> Process:
        if self.testbed.capturing and not self.testbed.recovered:
            raise HostLostError("client: the connection was lost")
        return super().spawn(argv, **options)


def test_a_proof_whose_host_is_lost_is_tried_again_and_overwrites_nothing(project: Project) -> None:
    project = Project(project.root, {"libraries": ["quinn"]})
    testbed = Losing()
    testbed.lost = 3  # packets, so that what is tried again fails
    with pytest.raises(MeasureError, match="not measured: capture: the capture lost 3 packets"):
        run(project, testbed)
    assert testbed.recovered == [False]
    before = runs(project, "proofs/*")
    run(project)
    after = runs(project, "proofs/*")
    assert [entry for entry in after if entry["status"] == "failed"] == before
    assert len(orders(project)) == 3


class Capturing(FakeTestbed):
    """What it captures is two datagrams of the client and one of the server."""

    @contextlib.contextmanager
    def capture(self, path: Path, **options: Any) -> Iterator[Capture]:
        with super().capture(path, **options) as captured:
            yield captured
        client, server = ("127.0.0.1", 50000), ("127.0.0.1", PORT)
        frames = [udp(client, server, bytes(58)), udp(client, server, bytes(158)), udp(server, client, bytes(1158))]
        pcap(path, frames, snapshot=options["snaplen"])


class Delaying(Capturing):
    """Capturing takes processor time from what is captured."""

    capturing = False

    @contextlib.contextmanager
    def capture(self, path: Path, **options: Any) -> Iterator[Capture]:
        with super().capture(path, **options) as captured:
            self.capturing = True
            yield captured
            self.capturing = False

    def disturbances(self, delta: Mapping[str, float]) -> list[str]:
        del delta
        return ["the capture took processor time"] if self.capturing else []


QUINN = {"libraries": ["quinn"]}


@pytest.mark.parametrize("lost", [0, 3])
def test_selected_runs_are_captured_besides_and_compared_with_none(project: Project, lost: int) -> None:
    first = run(Project(project.root, QUINN))
    plain = runs(project)
    text = EXPERIMENT.replace("scales:", "capture: 1\nscales:")
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    testbed = Capturing()
    testbed.lost = lost
    marker = run(Project(project.root, QUINN), testbed)
    # nothing is measured anew
    assert marker["campaign"] == first["campaign"]
    more = [entry for entry in runs(project) if entry["cell"]["arm"] == "captured"]
    assert [entry for entry in runs(project) if entry["cell"]["arm"] != "captured"] == plain
    done = {entry["cell"]["slug"]: entry for entry in more if entry["status"] == "ok"}
    assert set(done) == {"quinn-aes-128-gcm-captured", "quinn-noop-captured"}
    for entry in done.values():
        assert entry["cell"]["baseline"] is None
        assert (entry["host"]["capture"]["packets"], entry["host"]["capture"]["lost"]) == (7, lost)
        sizes = [entry["metrics"].get(f"{role}_mean_frame_bytes") for role in ("client", "server")]
        assert sizes == ([None, None] if lost else [150.0, 1200.0])
    captures = list(project.raw.glob("local/test/*/b*/*/capture.pcap"))
    assert len(captures) == len(more)
    # the headers are enough
    assert {file.stat().st_size for file in captures} == {24 + 3 * 16 + 100 + 2 * 128}
    table = quicbed_runs.table(project.raw)
    assert set(table.filter(arm="captured")["capture_lost"]) == {lost}
    assert "captured" not in set(quicbed_runs.select_campaign(table, "test")["arm"])


def with_captures(project: Project) -> Project:
    text = EXPERIMENT.replace("scales:", "capture: 1\nscales:")
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    return Project(project.root, QUINN)


def test_a_run_whose_capture_lost_frames_is_repeated_and_fails_nothing(project: Project) -> None:
    run(Project(project.root, QUINN))  # what is captured to prove the variants is whole
    testbed = Capturing()
    testbed.lost = 3
    run(with_captures(project), testbed)
    more = [entry for entry in runs(project) if entry["cell"]["arm"] == "captured"]
    # gate.retries is 1
    assert sorted((entry["cell"]["label"], entry["attempt"], entry["status"]) for entry in more) == [
        (label, attempt, "ok") for label in ("AES-128-GCM", "NOOP") for attempt in (0, 1)
    ]


def test_a_run_that_its_capture_delays_is_not_repeated(project: Project) -> None:
    run(with_captures(project), Delaying())
    more = [entry for entry in runs(project) if entry["cell"]["arm"] == "captured"]
    assert sorted(entry["cell"]["label"] for entry in more) == ["AES-128-GCM", "NOOP"]
    assert all(entry["contaminated"] and entry["metrics"]["server_mean_frame_bytes"] == 1200 for entry in more)


def test_captured_runs_are_in_so_many_blocks_and_are_no_warm_up(project: Project) -> None:
    text = EXPERIMENT.replace("scales:", "capture: 2\nscales:")
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    run(Project(project.root, QUINN), Capturing())
    cells = [(entry["block"], entry["cell"]["label"]) for entry in runs(project) if entry["cell"]["arm"] == "captured"]
    assert set(cells) == {(block, label) for block in (0, 1) for label in ("AES-128-GCM", "NOOP")}
    assert len(orders(project)) == 3
    assert {entry["cell"]["slug"] for entry in runs(project, "test/*/warm-up")} == {"quinn-aes-128-gcm"}


class Full(FakeTestbed):
    """Has no room for the captures that are made besides."""

    @contextlib.contextmanager
    def capture(self, path: Path, **options: Any) -> Iterator[Capture]:
        if "raw/local/test" in str(path):
            raise TestbedError("there is no room for a capture")
        with super().capture(path, **options) as captured:
            yield captured


def test_an_experiment_does_not_depend_on_captures_made_besides(project: Project) -> None:
    text = EXPERIMENT.replace("scales:", "capture: 1\nscales:")
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    run(Project(project.root, QUINN), Full())
    more = [entry for entry in runs(project) if entry["cell"]["arm"] == "captured"]
    assert {entry["status"] for entry in more} == {"failed"}
    assert {entry["reason"] for entry in more} == {"capture: there is no room for a capture"}
    assert len(orders(project)) == 3


class Unanswering(FakeTestbed):
    """Its server is lost when it is first asked what links it can have."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def unsupported(self, link: LinkSettings) -> str | None:
        self.done.append("asked")
        if len(self.done) == 1:
            raise HostLostError("server: the connection was lost")
        return super().unsupported(link)

    def recover(self) -> None:
        self.done.append("connected")


def test_a_host_that_is_lost_while_it_is_asked_what_it_can_do_is_asked_again(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project = Project(project.root, {"libraries": ["quinn"]})
    testbed = Unanswering()
    run(project, testbed)
    assert testbed.done[:3] == ["asked", "connected", "asked"]
    assert testbed.done.count("connected") == 1
    assert [line for line in caplog.messages if "lost" in line] == ["server: the connection was lost; connecting again"]
    assert [len(order) for order in orders(project)] == [3, 3, 3]
    assert {entry["status"] for entry in runs(project)} == {"ok"}


class Broken(FakeTestbed):
    """Its link breaks when the second block is about to begin."""

    def __init__(self, problems: Sequence[str | Exception]) -> None:
        super().__init__()
        self.looks = 0
        self.problems = list(problems)
        self.recovered = 0

    def link_problem(self) -> str | None:
        self.looks += 1
        if self.looks == 1 or not self.problems:
            return None
        problem = self.problems.pop(0)
        if isinstance(problem, Exception):
            raise problem
        return problem

    def recover(self) -> None:
        self.recovered += 1


DOWN = "server: interface link0 is down; connect the cable"


def test_a_block_waits_for_a_link_that_is_broken(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "LINK_POLL", 0.01)
    project = Project(project.root, {"libraries": ["quinn"]})
    testbed = Broken([DOWN, DOWN, HostLostError("server: the connection was lost")])
    run(project, testbed)
    assert len(orders(project)) == 3
    assert (testbed.looks, testbed.recovered) == (6, 1)
    said = [record.getMessage() for record in caplog.records]
    assert said.count(f"{DOWN}; waiting for it for at most 60 s") == 1
    assert "server: the connection was lost; connecting again" in said


def test_a_link_that_stays_broken_ends_measuring_and_keeps_what_is_finished(project: Project) -> None:
    project = Project(project.root, {"libraries": ["quinn"]})
    impatient = Project(project.root, {"libraries": ["quinn"], "gate": {"link_wait_s": 0}})
    with pytest.raises(MeasureError) as error:
        run(impatient, Broken([DOWN] * 9))
    expected = f"{DOWN} (waited 0 s, gate.link_wait_s); finished runs remain, start again when it is fixed"
    assert str(error.value) == expected
    before = runs(project)
    assert {entry["block"] for entry in before} == {0}
    run(project)
    done = runs(project)
    assert {entry["block"] for entry in done} == {0, 1, 2}
    assert [entry for entry in done if entry["block"] == 0] == before


def test_a_variant_whose_proof_fails_is_not_measured_and_fails_loudly(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        proof, "check", lambda _seen, claims, _resumed: ["the payload is visible"] if claims.aead == "noop" else []
    )
    with pytest.raises(MeasureError, match="capture: the payload is visible"):
        run(project)
    assert {entry["cell"]["label"] for entry in runs(project)} == {"AES-128-GCM"}
    excluded = runs(project, "test/*/excluded")
    assert {entry["cell"]["label"] for entry in excluded} == {"NOOP"}
    assert all("the payload is visible" in entry["reason"] for entry in excluded)


@pytest.mark.parametrize("decided", [True, False])
def test_a_proof_that_is_undecided_is_made_larger_and_is_no_failure(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, decided: bool
) -> None:
    project = Project(project.root, {"libraries": ["quinn"]})
    captured = itertools.count()
    monkeypatch.setattr(proof, "check", lambda *_: [] if next(captured) and decided else ["two of three samples"])
    monkeypatch.setattr(proof, "undecided", lambda *_: 3.5)
    if not decided:  # by no size
        with pytest.raises(MeasureError, match="capture: two of three samples"):
            run(project)
        sizes = {entry["workload"]["bytes"] for entry in runs(project, "proofs/*")}
        assert sizes == {spec.PROOF_BYTES_LARGEST}
        return
    run(project)
    proofs = runs(project, "proofs/*")
    assert {entry["status"] for entry in proofs} == {"ok"}
    assert {entry["workload"]["bytes"] for entry in proofs} == {spec.PROOF_BYTES, round(3.5 * spec.PROOF_BYTES)}


def test_what_an_endpoint_cannot_do_stays_in_the_data_with_its_reason(project: Project) -> None:
    behave(project, "quiche", "noop", client=["unsupported"])
    marker = run(project)
    excluded = runs(project, "test/*/excluded")
    assert [entry["status"] for entry in excluded] == ["unsupported"]
    assert excluded[0]["reason"] == "this build cannot do that"
    assert marker["excluded"] == {excluded[0]["cell"]["id"]: "this build cannot do that"}
    assert len(runs(project)) == 15


@pytest.mark.parametrize("role", ["client", "server"])
def test_exit_code_127_without_a_reason_is_a_failure(project: Project, role: str, tmp_path: Path) -> None:
    behave(project, "quiche", "stock", **{role: ["loader"]})
    attempt = once(project, tmp_path / "run")
    said = f"the {role} exited with 127: {role}: error while loading shared libraries: libx.so"
    assert (attempt.status, attempt.reason) == ("failed", said)


def test_cells_of_a_build_that_cannot_be_used_are_left_out_with_its_reason(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_build = campaign.making.read_build

    def known(project: Project, library: str, flavour: str) -> Build:
        problem = {"problem": "setup-env.sh exited with 4"} if library == "quinn" else {}
        return read_build(project, library, flavour).model_copy(update=problem)

    monkeypatch.setattr(campaign.making, "read_build", known)
    marker = run(project)
    assert set(marker["excluded"].values()) == {"quinn: setup-env.sh exited with 4"}
    excluded = runs(project, "test/*/excluded")
    assert {(entry["client"]["library"], entry["status"]) for entry in excluded} == {("quinn", "unsupported")}
    assert {(entry["client"]["library"], entry["status"]) for entry in runs(project)} == {("quiche", "ok")}
    recorded = (project.raw / "local" / "test").glob("*/builds/*.json")
    assert {file.stem for file in recorded} == {"quiche-stock", "quiche-noop"}


def test_a_contaminated_run_is_marked_kept_and_repeated(project: Project) -> None:
    behave(project, "quiche", "noop", client=["ok", "slow", "ok"])
    run(project)
    marked = [entry for entry in runs(project) if entry["contaminated"]]
    assert len(marked) == 1
    assert "waited for a processor" in marked[0]["contamination"][0]
    twin = [
        entry for entry in runs(project) if entry["cell"] == marked[0]["cell"] and entry["block"] == marked[0]["block"]
    ]
    assert [(entry["attempt"], entry["contaminated"]) for entry in twin] == [(0, True), (1, False)]


def test_repeats_of_contaminated_runs_end(project: Project) -> None:
    behave(project, "quiche", "noop", client=["ok", "slow"])
    run(project)
    assert sum(entry["contaminated"] for entry in runs(project)) == 3 * 2


def test_a_full_disk_stops_with_a_remedy_and_keeps_everything(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(project.root)
    calls: list[int] = []

    def full(_path: object) -> Any:
        calls.append(1)
        return usage if len(calls) < 5 else usage._replace(free=0)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", full)
        with pytest.raises(MeasureError, match="make room"):
            run(project)
    kept = runs(project)
    assert len(kept) == 3
    run(project)
    assert len(runs(project)) == 18
    assert all(entry in runs(project) for entry in kept)


def test_a_damaged_run_is_named_and_not_overwritten(project: Project) -> None:
    run(project)
    victim = sorted(project.raw.glob("local/test/*/b0001/*/run.json"))[0]
    victim.write_text('{"format": 1, "cell"', encoding="utf-8")
    with pytest.raises(MeasureError, match="is damaged") as error:
        run(project)
    assert str(victim) in str(error.value)
    assert victim.read_text(encoding="utf-8") == '{"format": 1, "cell"'


def test_expired_or_missing_certificates_are_named_before_anything_runs(project: Project) -> None:
    (certificates.directory(project) / "server.pem").unlink()
    with pytest.raises(certificates.CertificateError, match=r"server\.pem.*quicbed certificates"):
        run(project)
    assert not list(project.raw.rglob("run.json"))


def test_the_contrast_ends_the_experiment_when_it_is_precise(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    text = EXPERIMENT.replace("blocks: 3", "blocks: 9, min_blocks: 3").replace(
        "scales:", "contrast: {labels: [NOOP], half_width: 0.05}\nscales:"
    )
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    goodput: dict[str, Callable[[int], float]] = {
        "precise": lambda count: 1000.0 + count % 2,
        "noisy": lambda count: 1000.0 * (1 + count % 3),
    }
    for kind, blocks in (("precise", 3), ("noisy", 9)):
        shutil.rmtree(project.raw, ignore_errors=True)
        count = iter(range(10_000))
        function = goodput[kind]
        monkeypatch.setattr(events, "goodput_mbps", lambda _connection, f=function, c=count: f(next(c)))
        run(Project(project.root))
        assert len(orders(project)) == blocks


def test_a_pair_that_is_precise_is_in_no_further_block(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time goes to the pairs that are undecided, with their baselines and A/A."""
    text = EXPERIMENT.replace("blocks: 3", "blocks: 6, min_blocks: 3").replace(
        "scales:", "contrast: {labels: [NOOP], half_width: 0.05}\nscales:"
    )
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    intervals = {("quiche", "quiche"): Interval(1.0, 0.99, 1.01, 3), ("quinn", "quinn"): Interval(1.0, 0.9, 1.1, 3)}
    monkeypatch.setattr(campaign.Campaign, "intervals", lambda *_: intervals)
    run(Project(project.root))
    blocks: dict[int, set[str]] = {}
    for one in runs(project):
        blocks.setdefault(one["block"], set()).add(f"{one['client']['library']} {one['cell']['arm']}")
    both = {f"{library} {arm}" for library in ("quiche", "quinn") for arm in ("main", "aa")}
    assert blocks == {block: both if block < 3 else {"quinn main", "quinn aa"} for block in range(6)}


def test_a_pair_is_as_undecided_as_the_widest_of_its_contrasts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = EXPERIMENT.replace("[quiche, quinn]", "[quinn]").replace(
        "baseline: AES", "  - {label: ChaCha20, cipher: chacha20-poly1305}\nbaseline: AES"
    )
    text = text.replace("scales:", "contrast: {labels: [NOOP, ChaCha20], half_width: 0.05}\nscales:")
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    testbed = FakeTestbed()
    own = campaign.Campaign(Driver(Project(project.root), testbed, testbed.facts()), "test")
    by_id = {cell.id: cell for cell in own.cells}
    noise = {"AES-128-GCM": 0, "NOOP": 0, "ChaCha20": 0}

    def values(_: campaign.Campaign) -> dict[str, list[tuple[int, float]]]:
        return {cell.id: [(n, 1000.0 + noise[cell.label] * (n % 3)) for n in range(9)] for cell in own.cells}

    monkeypatch.setattr(campaign.Campaign, "values", values)
    assert own.undecided(by_id) == []
    for label in ("NOOP", "ChaCha20"):
        noise |= dict.fromkeys(noise, 0) | {label: 300}
        assert own.undecided(by_id) == own.cells
        assert own.intervals(by_id)["quinn", "quinn"].half_width > 0.05


def test_time_ends_an_experiment_that_is_not_precise_but_not_before_its_least_number_of_blocks(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = EXPERIMENT.replace("blocks: 3", "blocks: 9, min_blocks: 4, max_minutes: 0.001").replace(
        "scales:", "contrast: {labels: [NOOP], half_width: 0.05}\nscales:"
    )
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    count = iter(range(10_000))
    monkeypatch.setattr(events, "goodput_mbps", lambda _connection: 1000.0 * (1 + next(count) % 3))
    run(Project(project.root))
    assert len(orders(project)) == 4
    run(Project(project.root))
    assert len(orders(project)) == 4


def test_what_surrounds_a_run_is_part_of_the_time_that_an_experiment_has(project: Project) -> None:
    run(project)
    counted = [one["metrics"] for one in runs(project)]
    spent = sum(one["spent_s"] for one in counted)
    assert spent > sum(one["run_wall_s"] for one in counted)
    testbed = FakeTestbed()
    own = campaign.Campaign(Driver(project, testbed, testbed.facts()), "test")
    assert own.spent_s() == pytest.approx(spent)


FINDINGS = EXPERIMENT.replace("[quiche, quinn]", "[quinn]").replace("scales:", "aa: false\nfailures: findings\nscales:")


@pytest.fixture
def findings(project: Project) -> Project:
    """As `project`, in whose experiment failures are findings."""
    (project.root / "config" / "experiments" / "test.yaml").write_text(FINDINGS, encoding="utf-8")
    return Project(project.root)


def labelled(project: Project, label: str = "AES-128-GCM") -> list[dict[str, Any]]:
    """The runs with this label in the order of their blocks."""
    found = [r for r in runs(project) if r["cell"]["label"] == label]
    return sorted(found, key=lambda r: (r["block"], r["attempt"]))


def test_a_failure_that_is_a_finding_is_the_outcome_of_its_block(
    findings: Project, caplog: pytest.LogCaptureFixture
) -> None:
    # the proof is the first execution and the warm-up the second
    behave(findings, "quinn", "stock", client=["ok", "ok", "crash", "ok"])
    marker = run(findings)
    assert [r["status"] for r in labelled(findings)] == ["failed", "ok", "ok"]
    assert len(runs(findings)) == 6
    assert marker["findings"] == {"quinn-aes-128-gcm": "1 of 3 runs failed"}
    summed = [line for line in caplog.messages if "findings" in line]
    assert summed == [
        "test: findings: 1 of 2 cells failed: quinn-aes-128-gcm (1 of 3 runs failed); the report has every reason"
    ]


class Watched(FakeHost):
    """Knows the program that was started last."""

    process: Process | None = None

    def spawn(self, argv: Sequence[str], **options: Any) -> Process:
        self.process = super().spawn(argv, **options)
        return self.process


class Disturbed(FakeTestbed):
    """Something else runs whenever a client fails."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = self.hosts["client"] = Watched("client")

    def disturbances(self, delta: Mapping[str, float]) -> list[str]:
        del delta
        ended = self.watched.process and self.watched.process.poll()
        return ["something else ran"] if ended and ended.returncode else []


def test_a_contaminated_failure_is_repeated_in_its_block(findings: Project) -> None:
    behave(findings, "quinn", "stock", client=["ok", "ok", "crash", "ok"])
    run(findings, Disturbed())
    assert [(r["block"], r["status"]) for r in labelled(findings)] == [
        *((0, "failed"), (0, "ok")),
        *((1, "ok"), (2, "ok")),
    ]


def test_a_pair_that_always_fails_is_tried_in_every_block_and_ends_without_an_error(findings: Project) -> None:
    behave(findings, "quinn", "stock", client=["crash"])
    marker = run(findings)
    assert [r["status"] for r in labelled(findings)] == ["failed"] * 3
    assert all("SIGSEGV" in r["reason"] and "proof" not in r["evidence"] for r in labelled(findings))
    assert marker["findings"] == {"quinn-aes-128-gcm": "3 of 3 runs failed"}
    assert marker["excluded"] == {}
    before = runs(findings)
    assert run(findings) == marker
    assert runs(findings) == before


def test_a_pair_that_fails_first_is_proven_before_a_run_of_it_counts(findings: Project) -> None:
    # both attempts at the proof, the first block; the second block, its proof, the third block
    behave(findings, "quinn", "stock", client=["crash", "crash", "crash", "ok"])
    marker = run(findings)
    seen = labelled(findings)
    assert [r["status"] for r in seen] == ["failed", "ok", "ok"]
    proofs = {r["cell"]["id"]: r["status"] for r in runs(findings, "proofs/*") if r["status"] == "ok"}
    assert proofs[seen[1]["evidence"]["proof"]] == "ok"
    assert seen[2]["evidence"]["proof"] == seen[1]["evidence"]["proof"]
    assert marker["findings"] == {"quinn-aes-128-gcm": "1 of 3 runs failed"}


def test_what_cannot_be_proven_is_a_finding(findings: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        proof, "check", lambda _seen, claims, _resumed: ["it is clear"] if claims.aead == "noop" else []
    )
    marker = run(findings)
    assert {r["cell"]["slug"]: r["reason"] for r in runs(findings, "test/*/excluded")} == {
        "quinn-noop": "capture: it is clear"
    }
    assert marker["findings"] == {"quinn-noop": "not proven"}
    assert {r["cell"]["label"] for r in runs(findings)} == {"AES-128-GCM"}


def test_a_success_that_cannot_be_proven_is_no_data_point(findings: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        proof, "check", lambda _seen, claims, _resumed: ["it is clear"] if claims.aead == "noop" else []
    )
    # its transfer fails while it is captured, so that only its runs tell that it cannot be proven
    behave(findings, "quinn", "noop", client=["crash", "crash", "ok"])
    marker = run(findings)
    assert [(r["status"], r["reason"]) for r in labelled(findings, "NOOP")] == [
        ("failed", "not proven: capture: it is clear")
    ] * 3
    assert marker["findings"] == {"quinn-noop": "3 of 3 runs failed"}


def test_findings_without_any_success_are_an_error(findings: Project) -> None:
    for flavour in ("stock", "noop"):
        behave(findings, "quinn", flavour, client=["crash"])
    with pytest.raises(MeasureError, match=r"2 problems.*no run succeeded, the last failed: .*SIGSEGV"):
        run(findings)
    assert not (findings.root / "marker.json").exists()


def test_contradicting_evidence_is_an_error_where_failures_are_findings(findings: Project) -> None:
    behave(findings, "quinn", "stock", client=["ok", "ok", "wrong-cipher", "ok"])
    with pytest.raises(MeasureError, match="client reports cipher TLS_AES_256_GCM_SHA384, the cell says TLS_AES_128"):
        run(findings)
    assert not (findings.root / "marker.json").exists()


class Disposed:
    """While Python disposes of it, a signal arrives."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_python_drops_ends_the_driver_none_the_less(number: signal.Signals) -> None:
    def work() -> None:
        held = [Disposed(number)]
        held.clear()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), session.terminating():
        work()
    assert sys.unraisablehook is before
