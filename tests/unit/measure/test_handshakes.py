"""Handshake experiments: runs of many connections, their captured proofs, delays, primitives, tables; and bad input."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeproject
import fakeruns
from clone import DATA
from fakeproject import behave, orders, run, runs
from faketestbed import FakeHost, FakeTestbed
from quicbed.builds import components
from quicbed.cli.commands import main
from quicbed.config.model import Gate, Project
from quicbed.contract import events
from quicbed.measure import certificates, doctor, session, workflow_estimate
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.measure.usage import gate
from quicbed.plan import cells, spec
from quicbed.store import details
from quicbed.store import runs as runs_module
from quicbed.testbed import Capture, Process
from quicbed.testbed.features import Feature
from quicbed.wire import handshake

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: handshake, congestion_control: any}
link: {mode: wire}
flavour: pq
libraries: [quinn, tcp-tls]
variants:
  - {label: X25519, cipher: aes-128-gcm}
  - {label: Kyber768, cipher: aes-128-gcm, group: kyber768}
  - {label: Dilithium3, cipher: aes-128-gcm, signature: dilithium3, slow: true}
baseline: X25519
aa: false
scales:
  tiny: {bytes: 1, connections: 3, slow_connections: 2, blocks: 2, timeout_s: 1}
"""
HANDSHAKES = DATA / "handshakes"

needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")


def seen_handshake(
    event: events.ClientConnection, server: events.ServerConnection, project: Project, transport: str
) -> handshake.Handshake:
    """What a capture would show of a connection that the fake endpoints report."""
    index = event.index
    known = project.algorithms
    sent = {
        "packets": 3,
        "datagrams": 2,
        "bytes": 2400,
        "largest_datagram_bytes": 1200,
        "levels": {"initial": {"packets": 3, "bytes": 2400, "crypto_bytes": 300, "ack_only_packets": 1}},
        "ack_only_packets": 1,
        "packets_before_finished": 2,
        "datagrams_before_finished": 1,
        "bytes_before_finished": 1200,
        "packets_until_confirmed": 4,
        "datagrams_until_confirmed": 3,
        "bytes_until_confirmed": 3600,
        "tls_records": None,
        "tls_record_bytes": None,
    }
    return handshake.Handshake.model_validate(
        {
            "index": index,
            "transport": transport,
            "client_port": 50_000 + index,
            "t_client_hello": 10**18 + index * 10**7,
            "t_server_hello": 10**18 + index * 10**7 + 1,
            "t_client_finished": 10**18 + index * 10**7 + 2,
            "t_confirmed": None,
            "decrypted": True,
            "problem": None,
            "client": sent,
            "server": sent,
            "retry": bool(server.retry),
            "hello_retry_request": bool(event.hello_retry_request),
            "cipher": 0x1301,
            "group": next(one.code_point for one in known.groups if one.tls_name == event.group),
            "signature": next(one.code_point for one in known.signatures if one.tls_name == event.signature),
            "messages": {"certificate": 900},
            "amplification": {
                "bytes_before_validation": 2400,
                "received_before_validation": 1200,
                "limit_bytes": 3600,
                "limit_hits": 0,
                "round_trips_blocked": 0,
            }
            if transport == "quic"
            else None,
            "server_flights": 1,
        }
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for a project, and captures that show what the fake client reports."""
    real = handshake.examine

    def examine(capture: Path, key_log: Path, **options: Any) -> list[handshake.Handshake]:
        if capture.stat().st_size:
            return real(capture, key_log, **options)
        project = Project(tmp_path)
        clients = events.read(capture.with_name("client.jsonl"), "client").connections
        servers = events.read(capture.with_name("server.jsonl"), "server").connections
        both = zip(clients, servers, strict=True)
        return [seen_handshake(client, server, project, options["transport"]) for client, server in both]

    monkeypatch.setattr(handshake, "examine", examine)
    monkeypatch.setattr(session, "check_tools", lambda *_: None)
    monkeypatch.setattr(spec, "PROOF_CONNECTIONS", 4)
    return tmp_path


@pytest.fixture
def project(root: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return fakeproject.make(root, EXPERIMENT, monkeypatch)


def rewrite(project: Project, *changes: tuple[str, str]) -> Project:
    """The project with another experiment."""
    text = EXPERIMENT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (project.root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    return Project(project.root)


def told(project: Project, one: dict[str, Any], role: str) -> list[dict[str, Any]]:
    """The connections that one end of a run reports."""
    cell = one["cell"]
    directory = f"{cell['slug']}-{cell['id']}.{one['attempt']}"
    (log,) = (project.raw / "local" / "test").glob(f"*/b{one['block']:04d}/{directory}/{role}.jsonl")
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return [event for event in lines if event["event"] == "connection"]


# ---- runs


def test_a_run_is_judged_by_all_its_connections(project: Project) -> None:
    run(project)
    done = runs(project)
    assert {one["status"] for one in done} == {"ok"}
    assert len(done) == 2 * 3 * 2
    for one in done:
        count = 2 if one["cell"]["label"] == "Dilithium3" else 3
        assert one["workload"] == {"kind": "handshake", "bytes": 1, "connections": count}
        clients = told(project, one, "client")
        assert len(clients) == len(told(project, one, "server")) == count
        times = [(c["t_handshake_complete"] - c["t_client_hello"]) / 1e6 for c in clients]
        metrics = one["metrics"]
        assert metrics["connections"] == metrics["bytes"] == count
        assert metrics["ttfb_ms"] == pytest.approx(statistics.median(times))
        assert metrics["ttfb_ms_mean"] == pytest.approx(statistics.fmean(times))
        assert min(times) <= metrics["ttfb_ms_p25"] <= metrics["ttfb_ms"] <= metrics["ttfb_ms_p75"] <= max(times)
        assert metrics["ttfb_ms"] < metrics["confirmed_ms"] < metrics["first_byte_ms"]
        seconds = (clients[-1]["t_close"] - clients[0]["t_client_hello"]) / 1e9
        assert metrics["handshakes_per_s"] == pytest.approx(count / seconds)
        assert metrics["client_cpu_ms"] == metrics["server_cpu_ms"] == 2.0
        assert metrics["server_handshake_packets_sent"] == 3
        assert one["evidence"]["client"]["group"] == ("kyber768" if one["cell"]["label"] == "Kyber768" else "x25519")


def test_both_ends_get_the_cell_s_options(project: Project) -> None:
    arm = "{label: Arm, cipher: aes-128-gcm, signature: dilithium3, retry: true, initial_size: 1400}"
    project = rewrite(project, ("baseline:", f"  - {arm}\nbaseline:"), ("[quinn, tcp-tls]", "[quinn]"))
    testbed = FakeTestbed()
    run(project, testbed)
    started = {}
    for role in ("client", "server"):
        host = testbed.hosts[role]
        (argv,) = {tuple(argv[3:]) for argv in host.spawned if "1400" in argv and "/b0000/" in argv[2]}
        started[role] = dict(zip(argv[::2], argv[1::2], strict=True))
    made = certificates.directory(project, "dilithium3")
    client, server = started["client"], started["server"]
    assert (client["--ca"], client["--bytes"], client["--connections"]) == (str(made / "ca.pem"), "1", "3")
    assert (server["--certificate"], server["--private-key"]) == (str(made / "server.pem"), str(made / "server.key"))
    assert server["--retry"] == "on"
    assert "--retry" not in client
    for one in (client, server):
        assert (one["--signature"], one["--group"]) == ("dilithium3", "x25519")
        assert one["--initial-size"] == "1400"
        assert one["--congestion-control"] == project.libraries["quinn"].supports.congestion_controls[0]
        assert "--key-log" not in one, "only captured runs write their secrets"


@pytest.mark.parametrize(
    ("role", "behaviour", "reason"),
    [
        (
            "client",
            "failed-connection",
            "the client exited with 1: 1 of {n} connections failed, the first because: handshake failed: TLS alert "
            "bad_certificate (42)",
        ),
        ("client", "hang", "the client hung"),
        ("server", "lost-connection", "the server reported {less} connections, the client {n}"),
    ],
)
def test_a_run_with_a_failed_connection_is_no_data_point_and_the_others_go_on(
    project: Project, role: str, behaviour: str, reason: str
) -> None:
    # proofs of three variants and the warm-up come first
    behave(project, "quinn", "pq", **{role: ["ok"] * 4 + [behaviour, "ok"]})
    run(project)
    (failed,) = (one for one in runs(project) if one["status"] == "failed")
    # which cell is the first, a slow one or another, is drawn
    n = failed["workload"]["connections"]
    assert failed["reason"].startswith(reason.format(n=n, less=n - 1))
    assert "ttfb_ms" not in failed["metrics"]
    assert sum(one["status"] == "ok" for one in runs(project)) == 12


def test_an_endpoint_that_fails_always_is_named_and_the_others_are_measured(project: Project) -> None:
    behave(project, "quinn", "pq", client=["ok"] * 4 + ["failed-connection"])
    with pytest.raises(MeasureError, match=r"no run succeeded, the last failed: .* TLS alert bad_certificate \(42\)"):
        run(project)
    done = runs(project)
    assert {one["status"] for one in done if one["client"]["library"] == "tcp-tls"} == {"ok"}
    assert {one["status"] for one in done if one["client"]["library"] == "quinn"} == {"failed"}


@pytest.mark.parametrize(
    ("role", "behaviour", "problem"),
    [
        ("client", "wrong-group", "the client reports group secp384r1, the cell says x25519"),
        ("server", "wrong-group", "the server reports group secp384r1, the cell says x25519"),
        ("client", "wrong-cipher", "the client reports cipher TLS_AES_256_GCM_SHA384, the cell says TLS_AES_128_GCM"),
        ("client", "wrong-signature", "the client reports signature ed448, the cell says rsa_pss"),
        ("server", "wrong-retry", "the server reports retry True, the cell says False"),
        ("client", "hello-retry-request", "the client reports hello_retry_request True, the cell says False"),
    ],
)
def test_evidence_of_every_connection_is_looked_at(project: Project, role: str, behaviour: str, problem: str) -> None:
    project = rewrite(
        project,
        ("  - {label: Kyber768, cipher: aes-128-gcm, group: kyber768}\n", ""),
        ("  - {label: Dilithium3, cipher: aes-128-gcm, signature: dilithium3, slow: true}\n", ""),
        ("[quinn, tcp-tls]", "[quinn]"),
    )
    behave(project, "quinn", "pq", **{role: ["ok", "ok", behaviour, "ok"]})
    with pytest.raises(MeasureError) as error:
        run(project)
    assert problem in str(error.value)
    assert "(connection 1 of 3)" in str(error.value)
    assert [one["status"] for one in runs(project)] == ["failed", "ok", "ok"]


class Stopping(FakeHost):
    """Where somebody stops the driver when one program more than so many is to be started."""

    def __init__(self, programs: int) -> None:
        super().__init__("server")
        self.programs = programs

    def spawn(self, argv: Sequence[str], **options: Any) -> Process:
        if len(self.spawned) == self.programs:
            raise KeyboardInterrupt
        return super().spawn(argv, **options)


@pytest.mark.parametrize("executions", [3, 8, 12])
def test_a_campaign_that_was_stopped_goes_on_with_what_is_missing(project: Project, executions: int) -> None:
    testbed = FakeTestbed()
    testbed.hosts["server"] = Stopping(executions)
    with pytest.raises(KeyboardInterrupt):
        run(project, testbed)
    before = {file: file.read_bytes() for file in project.raw.rglob("run.json")}
    assert len(before) == executions
    run(project)
    for file, content in before.items():
        assert file.read_bytes() == content
    done = runs(project)
    assert len({(one["cell"]["id"], one["block"]) for one in done}) == len(done) == 2 * 3 * 2
    assert len(runs(project, "proofs/*")) == 2 * 3
    assert not list(project.raw.rglob("*.partial"))


def test_what_a_build_cannot_do_is_unsupported_with_its_reason(project: Project) -> None:
    behave(project, "quinn", "pq", server=["unsupported", "ok"])
    marker = run(project)
    (excluded,) = runs(project, "test/*/excluded")
    assert (excluded["status"], excluded["reason"]) == ("unsupported", "this build cannot do that")
    assert list(marker["excluded"]) == [excluded["cell"]["id"]]


def test_delay_of_a_short_run_is_judged_against_all_of_it(project: Project) -> None:
    limits = Gate(max_run_delay=0.15, max_foreign_cpu=1.0)
    libraries = dict.fromkeys(("client", "server"), project.libraries["quinn"])
    host = {"run_delay_s": {"client": 0.01, "server": 0.0}}
    for metrics, contaminated in (
        ({"wall_s": 0.02, "run_wall_s": 0.1, "connections": 4}, False),
        ({"wall_s": 0.02, "run_wall_s": 0.06, "connections": 4}, True),
        ({"wall_s": 0.02, "run_wall_s": 0.1}, True),  # a download
    ):
        attempt = Attempt(metrics=metrics, host=host)
        gate(attempt, libraries, limits)
        assert bool(attempt.contamination) == contaminated


def test_threads_of_one_endpoint_may_wait_for_each_other(project: Project) -> None:
    path = project.root / "config" / "libraries" / "quinn.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "threads: several\n", encoding="utf-8")
    libraries = Project(project.root).libraries
    limits = Gate(max_run_delay=0.15, max_foreign_cpu=0.1)
    for client, server, delayed, foreign, contaminated in (
        ("quinn", "tcp-tls", "client", 0.0, False),
        ("quinn", "tcp-tls", "server", 0.0, True),
        ("tcp-tls", "quinn", "server", 0.0, False),
        ("tcp-tls", "quinn", "client", 0.0, True),
        ("quinn", "quinn", "client", 0.2, True),
    ):
        attempt = Attempt(metrics={"wall_s": 1.0}, host={"run_delay_s": {delayed: 1.3}, "foreign_cpu_share": foreign})
        gate(attempt, {"client": libraries[client], "server": libraries[server]}, limits)
        assert bool(attempt.contamination) == contaminated


def test_the_contrast_of_an_experiment_is_one_of_ttfb(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = "tiny: {bytes: 1, connections: 3, slow_connections: 2, blocks: 8, min_blocks: 3, timeout_s: 1}"
    project = rewrite(
        project,
        ("scales:", "contrast: {labels: [Kyber768], half_width: 0.05}\nscales:"),
        ("tiny: {bytes: 1, connections: 3, slow_connections: 2, blocks: 2, timeout_s: 1}", scale),
        ("[quinn, tcp-tls]", "[quinn]"),
    )
    monkeypatch.setattr(events, "ttfb_ms", lambda connection: 2.0 + ("kyber" in (connection.group or "")))
    run(project)
    assert len(orders(project)) == 3
    shutil.rmtree(project.raw)
    values = iter(range(10_000))
    monkeypatch.setattr(events, "ttfb_ms", lambda _connection: 1.0 + next(values) % 17)
    run(project)
    assert len(orders(project)) == 8


# ---- delays


def test_cells_of_one_delay_follow_each_other_in_random_order(project: Project) -> None:
    more = "".join(
        f"  - {{label: {rtt} ms {group}, cipher: aes-128-gcm, group: {group}, rtt_ms: {rtt}}}\n"
        for group in ("p-256", "p-384")
        for rtt in (10, 40)
    )
    project = rewrite(project, ("baseline:", f"{more}baseline:"), ("[quinn, tcp-tls]", "[quinn]"), ("ks: 2", "ks: 6"))
    testbed = FakeTestbed()
    run(project, testbed)
    delays = {one["cell"]["id"]: one["link"]["rtt_ms"] for one in runs(project)}
    assert set(delays.values()) == {0, 10, 40}
    sequences = []
    for order in orders(project):
        changes = [delays[cell] for cell in order]
        sequences.append(tuple(dict.fromkeys(changes)))
        assert changes == sorted(changes, key=sequences[-1].index)
    assert len(set(sequences)) > 1
    assert len({tuple(order) for order in orders(project)}) > 1
    for one in runs(project):
        assert one["variant"]["rtt_ms"] == one["link"]["rtt_ms"]
    # proofs: one delay after the other; warm-up and blocks: not more than three changes a block
    assert len(testbed.applied) <= 3 + 1 + 3 * 6
    assert all(now != before for now, before in zip(testbed.applied[1:], testbed.applied, strict=False))


def test_a_delay_that_the_testbed_cannot_make_excludes_its_cells_alone(project: Project) -> None:
    project = rewrite(
        project,
        ("baseline:", "  - {label: Far, cipher: aes-128-gcm, rtt_ms: 10}\nbaseline:"),
        ("[quinn, tcp-tls]", "[quinn]"),
    )
    testbed = FakeTestbed()
    testbed.no_delay = "no round-trip time: the kernel has no netem"
    marker = run(project, testbed)
    (excluded,) = runs(project, "test/*/excluded")
    assert excluded["cell"]["label"] == "Far"
    assert marker["excluded"] == {excluded["cell"]["id"]: testbed.no_delay}
    assert len(runs(project)) == 3 * 2


@pytest.mark.parametrize(("refusals", "ends"), [(1, False), (2, True)])
def test_a_link_that_is_refused_is_asked_for_once_more(project: Project, refusals: int, ends: bool) -> None:
    testbed = FakeTestbed()
    testbed.refusals = refusals
    with pytest.raises(MeasureError, match="no TCP connection") if ends else contextlib.nullcontext():
        run(project, testbed)
    assert bool(runs(project)) is not ends


# ---- proofs


def test_the_proof_of_a_handshake_cell_is_captured_whole_with_its_secrets(project: Project) -> None:
    testbed = FakeTestbed()
    run(project, testbed)
    proofs = runs(project, "proofs/*")
    assert len(proofs) == 2 * 3
    for one in proofs:
        count = cells.PROOF_SLOW_CONNECTIONS if one["cell"]["label"] == "Dilithium3" else 4
        assert one["workload"] == {"kind": "handshake", "bytes": 1, "connections": count}
        link = {"mode": "wire", "mtu": 1500, "rate_mbit": None, "rtt_ms": 0, "loss_percent": 0}
        assert one["link"] == link
        assert one["evidence"]["handshake"]["client"] == {
            "packets": 3,
            "datagrams": 2,
            "bytes": 2400,
            "ack_only_packets": 1,
        }
        assert one["evidence"]["handshake"]["count_differences"] == []
    for directory in (project.raw / "local" / "proofs").glob("*/*"):
        assert (directory / "keys.log").read_text() == "# secrets\n"
        found = json.loads((directory / "handshakes.json").read_text(encoding="utf-8"))
        assert [one["index"] for one in found] == list(range(len(found)))
    assert set(testbed.snaplens) == {1600}, "whole frames, or nothing can be decrypted"
    known = {one["cell"]["id"] for one in proofs}
    assert {one["evidence"]["proof"] for one in runs(project)} == known


def test_a_proof_is_made_once_for_all_scales(project: Project) -> None:
    run(project)
    project = rewrite(
        project,
        ("tiny: {bytes: 1, connections: 3, slow_connections: 2,", "tiny: {bytes: 1, connections: 5,"),
    )
    testbed = FakeTestbed()
    run(project, testbed)
    assert testbed.snaplens == []
    assert {one["workload"]["connections"] for one in runs(project)} == {2, 3, 5}


def test_a_capture_that_contradicts_the_cell_fails_it_loudly_and_the_others_go_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine = handshake.examine

    def altered(capture: Path, key_log: Path, **options: Any) -> list[handshake.Handshake]:
        found: list[handshake.Handshake] = examine(capture, key_log, **options)
        if "kyber768" in capture.parent.name:
            found[1] = found[1].model_copy(update={"group": 0x001D})
        return found

    monkeypatch.setattr(handshake, "examine", altered)
    with pytest.raises(MeasureError, match="kyber768: not measured: capture: connection 1: group 0x001d, expected"):
        run(project)
    assert {one["cell"]["label"] for one in runs(project)} == {"X25519", "Dilithium3"}
    assert {one["cell"]["label"] for one in runs(project, "test/*/excluded")} == {"Kyber768"}


@needs_tshark
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("capture", r"capture\.pcap: "),
        ("keys", r"keys\.log has no CLIENT_HANDSHAKE_TRAFFIC_SECRET"),
        ("connections", "the capture holds 2 connections, not 4"),
    ],
)
def test_a_damaged_capture_or_key_log_is_a_failed_proof_with_its_reason(
    project: Project, monkeypatch: pytest.MonkeyPatch, damage: str, reason: str
) -> None:
    monkeypatch.setattr(spec, "PROOF_CONNECTIONS", 4 if damage == "connections" else 2)

    class Damaged(FakeTestbed):
        """What it captures of one proof is stored, with a part of it damaged."""

        @contextlib.contextmanager
        def capture(self, path: Path, **options: Any) -> Iterator[Capture]:
            with super().capture(path, **options) as captured:
                yield captured
            if "quinn-x25519" in path.parent.name:
                content = (HANDSHAKES / "quiche.pcap").read_bytes()
                path.write_bytes(content[:-7] if damage == "capture" else content)
                secrets = (HANDSHAKES / "quiche.keys").read_text()
                path.with_name("keys.log").write_text("" if damage == "keys" else secrets)

    testbed = Damaged()
    testbed.hosts["server"].address = "10.113.0.2"  # of the stored capture
    with pytest.raises(MeasureError, match=f"quinn-x25519: not measured: capture: .*{reason}"):
        run(project, testbed)
    assert {one["cell"]["slug"] for one in runs(project)} == {
        f"{library}-{label}" for library in ("quinn", "tcp-tls") for label in ("x25519", "kyber768", "dilithium3")
    } - {"quinn-x25519"}


# ---- what stops before anything is measured


def test_without_tshark_nothing_is_measured(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(project.root))
    with pytest.raises(MeasureError, match="test: tshark is missing; install with: apt-get install tshark"):
        run(project)
    assert not list(project.root.rglob("run.json"))


@pytest.mark.parametrize(("experiment", "code", "state"), [("test", 1, "MISSING"), ("download", 0, "unsupported")])
def test_doctor_asks_for_tshark_where_handshakes_are_captured(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    experiment: str,
    code: int,
    state: str,
) -> None:
    bulk = EXPERIMENT.replace("handshake,", "bulk,").replace(", slow: true", "").replace("slow_connections: 2, ", "")
    file = project.root / "config" / "experiments" / "download.yaml"
    file.write_text(bulk.replace("connections: 3, ", ""), encoding="utf-8")
    needed = ("root", "namespaces", "veth", "bridge")
    monkeypatch.setattr(doctor.workflow_estimate, "disk_mb", lambda *_: 0.0)
    monkeypatch.setattr(doctor, "features", lambda: dict.fromkeys(needed, Feature(True)))
    monkeypatch.setenv("PATH", str(project.root))
    assert doctor.doctor(Project(project.root, {"experiments": [experiment]})) == code
    assert re.search(rf"tshark +{state}: tshark is missing; install with: ", capsys.readouterr().out)


@needs_tshark
def test_a_provider_that_is_missing_stops_before_anything_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(components, "directory", lambda made, name: made.build / "work" / name)
    with pytest.raises(MeasureError, match=r"openssl: is missing; build the flavour `pq` again"):
        run(project)
    assert not list(project.root.rglob("run.json"))


def test_certificates_of_every_signature_of_the_experiment_are_checked_first(project: Project) -> None:
    shutil.rmtree(certificates.directory(project, "dilithium3"))
    with pytest.raises(certificates.CertificateError, match=r"ca\.pem.*quicbed certificates dilithium3"):
        run(project)
    assert not list(project.root.rglob("run.json"))


# ---- primitives


def with_primitives(project: Project, blocks: int = 1) -> Project:
    return rewrite(project, ("flavour: pq", f"flavour: pq\nprimitives: {blocks}"))


def test_primitives_are_timed_in_as_many_blocks_as_asked_for_and_compared_with_nothing(project: Project) -> None:
    project = with_primitives(project)
    testbed = FakeTestbed()
    run(project, testbed)
    timed = [one for one in runs(project) if one["cell"]["arm"] == "primitives"]
    assert [(one["client"]["library"], one["block"]) for one in timed] == [("quinn", 0), ("tcp-tls", 0)]
    for one in timed:
        assert one["status"] == "ok"
        assert one["workload"] == {"kind": "primitives", "bytes": None, "connections": None}
        assert one["cell"]["baseline"] is None
        assert one["variant"] == {"groups": ["x25519", "kyber768"], "signatures": ["rsa-2048", "dilithium3"]}
        assert "proof" not in one["evidence"]
    assert [len(order) for order in orders(project)] == [8, 6]
    (argv,) = (argv for argv in testbed.hosts["client"].spawned if argv[0].endswith("/quinn-pq/bin/primitives"))
    assert f"dilithium3={certificates.directory(project, 'dilithium3')}" in argv
    assert argv.count("--group") == argv.count("--signature") == 2
    before = len(runs(project))
    run(project)
    assert len(runs(project)) == before


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("lacking", "rsa-2048: this build has no such algorithm; dilithium3: this build has no such algorithm"),
        ("crash", "the primitives was killed by SIGSEGV"),
    ],
)
def test_primitives_that_fail_are_failed_runs_and_the_others_go_on(
    project: Project, behaviour: str, reason: str
) -> None:
    project = with_primitives(project)
    behave(project, "quinn", "pq", primitives=[behaviour])
    with pytest.raises(MeasureError, match=f"quinn-primitives: no run succeeded, the last failed: {reason}"):
        run(project)
    done = {one["status"] for one in runs(project) if one["cell"]["slug"] != "quinn-primitives"}
    assert done == {"ok"}


def test_what_a_processor_cannot_compute_is_unsupported_and_not_timed(project: Project) -> None:
    project = rewrite(
        project, ("flavour: pq", "flavour: pq\nprimitives: 1"), ("Kyber768", "HQC"), ("kyber768", "hqc-128-avx2")
    )
    for library in ("quinn", "tcp-tls"):
        behave(project, library, "pq", primitives=["older"])
    testbed = FakeTestbed()
    testbed.machine |= {"hosts": {"client": {"cpu_flags": ["avx2", "bmi1", "pclmulqdq"]}, "server": {"cpu_flags": []}}}
    run(project, testbed)
    excluded = runs(project, "test/*/excluded")
    assert [one["status"] for one in excluded] == ["unsupported"] * 2
    reason = "HQC-128 (AVX2) needs a processor with avx2, bmi1, pclmulqdq"
    assert {(one["cell"]["label"], one["reason"]) for one in excluded} == {("HQC", reason)}
    timed = [one for one in runs(project) if one["cell"]["arm"] == "primitives"]
    assert [one["status"] for one in timed] == ["ok", "ok"]


# ---- tables


def test_tables_of_connections_primitives_and_captured_handshakes(project: Project, tmp_path: Path) -> None:
    project = with_primitives(project, blocks=2)
    run(project)
    out = tmp_path / "tables"
    assert main(["tables", str(project.raw), str(out / "runs.parquet")]) == 0
    table = pl.read_parquet(out / "runs.parquet")
    assert dict(table.group_by("workload").len().rows()) == {"handshake": 12 + 6 + 2, "primitives": 4}
    assert set(table["signature"].drop_nulls()) == {"rsa-2048", "dilithium3"}
    assert set(table.filter(pl.col("arm") == "main")["connections"]) == {2, 3}

    connections = pl.read_parquet(out / "connections.parquet")
    assert connections.schema == pl.Schema(details.CONNECTIONS)
    assert len(connections) == 2 * 2 * (3 + 3 + 2), "neither warm-up nor proofs"
    medians = connections.group_by("origin").agg(pl.col("ttfb_ms", "confirmed_ms", "server_cpu_ms").median(), pl.len())
    both = medians.join(table, on="origin", suffix="_run")
    assert len(both) == 12
    for name in ("ttfb_ms", "confirmed_ms", "server_cpu_ms"):
        assert both[name].to_list() == pytest.approx(both[f"{name}_run"].to_list())
    assert both["len"].to_list() == both["connections"].to_list()

    primitives = pl.read_parquet(out / "primitives.parquet")
    assert primitives.schema == pl.Schema(details.PRIMITIVE_TIMES)
    assert len(primitives) == 2 * 2 * 4 * 3
    assert set(primitives["median_ns"]) == set(primitives["mean_ns"]) == {20_000.0}
    assert set(primitives["n"]) == {3}

    handshakes = pl.read_parquet(out / "handshakes.parquet")
    assert handshakes.schema == pl.Schema(details.HANDSHAKES)
    assert len(handshakes) == 2 * (4 + 4 + 3)
    assert set(handshakes["packets_client"]) == {3}
    assert set(handshakes["proof"]) == set(table["proof"].drop_nulls())
    assert handshakes.filter(pl.col("library") == "tcp-tls")["round_trips_blocked"].null_count() == 11

    first = {file.name: file.read_bytes() for file in out.iterdir()}
    assert main(["tables", str(project.raw), str(out / "runs.parquet")]) == 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} == first


def test_an_archive_gives_the_same_tables(project: Project) -> None:
    project = with_primitives(project)
    run(project)
    tree = details.read(project.raw / "local")
    assert main_reference(project)
    packed = details.read(project.raw / "reference")
    for name in ("connections", "primitives", "handshakes"):
        one, other = getattr(tree, name), getattr(packed, name)
        assert len(one) > 0
        assert other.drop("origin").equals(one.drop("origin"))
    assert packed.problems == tree.problems == []


def main_reference(project: Project) -> bool:
    """Pack what was measured as reference data."""
    from quicbed.store import reference

    return all(file.exists() for file in reference.pack(project, ["test"]))


@pytest.mark.parametrize("damage", ["truncated", "missing", "other"])
def test_a_run_whose_events_are_damaged_is_named_and_the_others_are_read(project: Project, damage: str) -> None:
    run(project)
    victim = min(project.raw.glob("local/test/*/b0001/*/server.jsonl"))
    if damage == "missing":
        victim.unlink()
    elif damage == "truncated":
        victim.write_bytes(victim.read_bytes()[:-400])
    else:
        lines = victim.read_text(encoding="utf-8").splitlines(keepends=True)
        victim.write_text("".join(lines[:2] + lines[3:]), encoding="utf-8")
    found = details.read(project.raw)
    (problem,) = found.problems
    assert problem.startswith(victim.parent.relative_to(project.root).as_posix())
    assert found.connections["origin"].n_unique() == 11


def test_stored_runs_of_format_1_have_their_times_under_today_s_names(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_run(raw, fakeruns.make_run())
    table = runs_module.table(raw)
    row = table.row(0, named=True)
    assert (row["ttfb_ms"], row["first_byte_ms"]) == (1.9, 2.4)
    assert row["workload"] == "bulk"
    found = details.read(raw)
    assert found.problems == []
    assert found.connections.is_empty()


# ---- estimate


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be built, so that an estimate is one of measuring."""
    monkeypatch.setattr(workflow_estimate, "builds_needed", lambda *_: [])


@pytest.mark.usefixtures("built")
def test_the_plan_tells_handshakes_time_and_disk(project: Project) -> None:
    text = workflow_estimate.describe(with_primitives(project))
    assert "measure test: 6 cells, 2 blocks of 3 or 2 handshakes, about " in text
    assert "at most 32 handshakes, " in text


@pytest.mark.usefixtures("built")
def test_delay_and_slow_signatures_take_longer(project: Project) -> None:
    def minutes(*changes: tuple[str, str]) -> float:
        made = rewrite(project, ("connections: 3, slow_connections: 2", "connections: 1000"), *changes)
        number, unit = workflow_estimate.describe(made).partition("handshakes, about ")[2].split(" ")[:2]
        assert unit == "min"
        return float(number)

    plain = minutes(("slow: true", "slow: false"))
    assert plain > 0
    assert minutes() > 2 * plain
    assert minutes(("slow: true", "rtt_ms: 100")) > 2 * plain
