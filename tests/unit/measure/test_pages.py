"""Runs of pages: what both programs are asked, what is kept of what they tell, and what fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT
from faketestbed import FakeTestbed
from quicbed.config.model import Project, Side
from quicbed.contract import events
from quicbed.measure import browser, certificates, judge
from quicbed.measure import campaign as measured
from quicbed.measure.attempt import Attempt
from quicbed.measure.driver import Driver
from quicbed.measure.event_logs import Logs
from quicbed.measure.examine import Examiner
from quicbed.measure.program import Program
from quicbed.plan import browser as plan_browser
from quicbed.plan import cells, factors, spec
from quicbed.plan.cells import campaign_of
from quicbed.store import record
from quicbed.store.paths import CAPTURE, KEYS
from quicbed.wire import handshake, tshark

ROLES: tuple[Side, Side] = ("client", "server")
PROJECT = Project(ROOT, {"scale": "tiny"})
WEB = PROJECT.experiments["web"]
MS = 1_000_000


def cells_of() -> list[cells.Cell]:
    return cells.cells_of(PROJECT, "web", "c0ffee00", {})


def cell_of(label: str, library: str = "nginx-h3") -> cells.Cell:
    return next(one for one in cells_of() if one.label == label and one.client.library == library)


def run_of(label: str) -> spec.RunSpec:
    return spec.run_spec(PROJECT, WEB, cell_of(label), PROJECT.scale("web"))


def test_a_cell_has_its_own_page_and_rate() -> None:
    heavy, slow = run_of("heavy page"), run_of("50 ms, 5 Mbit/s")
    assert heavy.page == PROJECT.pages["heavy-2019"].sizes
    assert heavy.bytes == sum(heavy.page)
    assert (heavy.link.rate_mbit, slow.link.rate_mbit) == (50, 5)
    assert heavy.work == {"kind": "page", "bytes": heavy.bytes, "connections": 1}


def test_the_shape_of_a_page_is_part_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {cell.label: cell.id for cell in cells_of()}
    changed = PROJECT.pages | {"heavy-2019": PROJECT.pages["light-2019"]}
    monkeypatch.setattr(PROJECT, "pages", changed)
    after = {cell.label: cell.id for cell in cells_of()}
    assert {label for label in before if before[label] != after[label]} == {"heavy page"}


def test_a_proof_is_of_a_download_without_what_the_link_does() -> None:
    proof = spec.proof_spec(PROJECT, WEB, cell_of("50 ms, 5 Mbit/s"))
    assert (proof.page, proof.bytes, proof.link.rate_mbit) == ((), spec.PROOF_BYTES, spec.PROOF_RATE_MBIT)
    one, other = (spec.proof_spec(PROJECT, WEB, cell_of(label)).cell.variant for label in ("heavy page", "light page"))
    assert one == other


def test_a_library_that_loads_no_pages_is_unsupported() -> None:
    variant = WEB.variants[0].model_copy(update={"flavour": "stock"})
    told = factors.unsupported_reason(PROJECT.libraries["quinn"], variant, "cubic")
    assert told == "quinn: its endpoints load no pages"


def written(role: str, directory: Path, *connections: dict[str, Any]) -> Path:
    """The event file of a program with these connections."""
    start = {"event": "start", "t": 0, "contract": 2, "role": role, "library": "nginx-h3", "version": "1", "pid": 1}
    end = {"event": "end", "t": 900 * MS, "connections": len(connections)}
    end["failed"] = sum(not one["ok"] for one in connections)
    end |= dict.fromkeys(["cpu_user_ns", "cpu_system_ns", "run_delay_ns", "max_rss_bytes"])
    ready = {"event": "ready", "t": 0, "address": "10.0.0.1", "port": 4433}
    lines = [start | {"options": {}}, *([ready] if role == "server" else []), *connections, end]
    file = directory / f"{role}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def logs(directory: Path, run: spec.RunSpec, *, later: dict[str, Any] | None = None, **client: Any) -> Logs:
    """What both programs tell of a page that is loaded, and *later* of a second visit."""
    both = dict.fromkeys(events.Connection.model_fields) | {
        "event": "connection",
        "t": 800 * MS,
        "index": 0,
        "ok": True,
        "cipher": "TLS_AES_128_GCM_SHA256",
        "tls_version": "TLSv1.3",
        "group": "x25519",
        "aead": "standard",
        "header_protection": "on",
    }
    own = {
        "t_connect": 100 * MS,
        "t_client_hello": 101 * MS,
        "t_handshake_complete": 150 * MS,
        "t_request_sent": 151 * MS,
        "t_first_byte": 200 * MS,
        "t_last_byte": 700 * MS,
        "bytes_requested": run.bytes,
        "bytes_received": run.bytes,
        "content_ok": True,
    }
    served = {"t_accept": None, "bytes_sent": run.bytes}
    clients, servers = [both | own | client], [both | served]
    if later is not None:
        visit = {name: value for name, value in later.items() if name in events.Connection.model_fields}
        clients.append(clients[0] | {"index": 1} | later)
        servers.append(servers[0] | {"index": 1} | visit | later.get("server", {}))
        clients[1].pop("server", None)
    return Logs(
        client=events.read(written("client", directory, *clients), "client"),
        server=events.read(written("server", directory, *servers), "server"),
    )


def judged(directory: Path, **client: Any) -> Attempt:
    attempt, run = Attempt(), run_of("50 ms, 50 Mbit/s")
    judge.judge(attempt, PROJECT, run, logs(directory, run, **client))
    return attempt


def test_times_begin_with_the_connection(tmp_path: Path) -> None:
    attempt = judged(tmp_path)
    assert (attempt.status, attempt.reason) == ("ok", None)
    assert {name: attempt.metrics[name] for name in ("connection_ms", "page_first_byte_ms", "page_load_ms")} == {
        "connection_ms": 50,
        "page_first_byte_ms": 100,
        "page_load_ms": 600,
    }
    assert attempt.metrics["bytes"] == PROJECT.pages["median-2025"].bytes


def in_browser(label: str = "50 ms, 50 Mbit/s", library: str = "nginx-h3") -> cells.Cell:
    found = cells.cells_of(PROJECT, "web-browser", "c0ffee00", {})
    return next(one for one in found if one.label == label and one.client.library == library)


def test_a_browser_proves_a_cell_with_the_page_itself() -> None:
    experiment = PROJECT.experiments["web-browser"]
    page = PROJECT.pages["median-2025"]
    proof = spec.proof_spec(PROJECT, experiment, in_browser("50 ms, 5 Mbit/s"))
    assert (proof.browser, proof.page, proof.bytes, proof.secrets) == (True, page.sizes, page.bytes, True)
    assert proof.cell.variant.rate_mbit is None
    heavy = spec.proof_spec(PROJECT, experiment, in_browser("heavy page"))
    assert heavy.page == PROJECT.pages["heavy-2019"].sizes
    assert not run_of("50 ms, 50 Mbit/s").browser


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"signature": "mldsa65"}, "Chromium takes no certificates with mldsa65"),
        ({"group": "p-256"}, "Chromium sends no key share of p-256"),
        ({"aead": "noop", "flavour": "noop"}, "Chromium protects all packets"),
        ({"group": "x25519-mlkem768", "signature": "ecdsa-p-256"}, None),
    ],
)
def test_what_a_browser_cannot_do_is_unsupported(changes: dict[str, Any], told: str | None) -> None:
    variant = PROJECT.experiments["web-browser"].variants[0].model_copy(update=changes)
    assert factors.unsupported_reason(PROJECT.libraries["nginx-h3"], variant, "cubic") == told


VISITS: dict[str, dict[str, Any]] = {
    "resumed": {"resumed": True, "early_data": False},
    # the request is sent before the handshake is complete
    "0-RTT": {"resumed": True, "early_data": True, "t_request_sent": 102 * MS},
}


def visited(directory: Path, label: str, later: dict[str, Any] | None, **first: Any) -> Attempt:
    """A run of HTTP/2 with a second visit, judged."""
    run = spec.run_spec(PROJECT, WEB, cell_of(label, "tcp-tls"), PROJECT.scale("web"))
    attempt = Attempt()
    told = {"header_protection": None, "resumed": False, "early_data": False} | first
    names = ("header_protection", "resumed", "early_data")
    both = logs(directory, run, later=None if later is None else told | later, **told)
    served = [one.model_copy(update=dict.fromkeys(names[:1])) for one in both.server.connections]
    if later is None or "server" not in later:
        served[0] = served[0].model_copy(update={name: told[name] for name in names})
    server = replace(both.server, connections=tuple(served))
    judge.judge(attempt, PROJECT, run, Logs(both.client, server))
    return attempt


def test_both_programs_are_told_of_a_second_visit(tmp_path: Path) -> None:
    project = Project(ROOT, {"scale": "tiny", "paths": {"build": str(tmp_path)}})
    certificates.make(certificates.directory(project, "rsa-2048"), None)
    for label, visit in (("50 ms, 50 Mbit/s", None), ("resumed", "resumed"), ("0-RTT", "early-data")):
        run = spec.run_spec(project, project.experiments["web"], cell_of(label, "tcp-tls"), project.scale("web"))
        for role in ("client", "server"):
            words = Program(project, FakeTestbed(), run, tmp_path / "run", role).argv()
            if role == "client":
                assert words[words.index("--connections") + 1] == ("2" if visit else "1")
            assert ("--visit" in words) == (visit is not None)
            assert visit is None or words[words.index("--visit") + 1] == visit


@pytest.mark.parametrize("label", VISITS)
def test_a_second_visit_is_measured_and_the_first_one_kept(tmp_path: Path, label: str) -> None:
    attempt = visited(tmp_path, label, VISITS[label] | {"t_last_byte": 400 * MS})
    assert (attempt.status, attempt.reason) == ("ok", None)
    assert (attempt.metrics["page_load_ms"], attempt.metrics["connection_ms"]) == (300, 50)
    assert attempt.metrics["bytes"] == PROJECT.pages["median-2025"].bytes
    assert attempt.evidence["visits_before"] == [{"connection_ms": 50, "page_load_ms": 600}]
    assert (attempt.evidence["client"]["resumed"], attempt.evidence["client"]["early_data"]) == (
        True,
        label == "0-RTT",
    )


@pytest.mark.parametrize(
    ("label", "later"),
    [
        ("resumed", {"resumed": False}),
        ("resumed", {"resumed": None}),
        ("resumed", VISITS["0-RTT"]),
        ("0-RTT", VISITS["resumed"]),
        ("resumed", VISITS["resumed"] | {"signature": "rsa_pss_rsae_sha256"}),
        ("resumed", None),
    ],
)
def test_a_second_visit_that_is_another_one_fails_the_run(
    tmp_path: Path, label: str, later: dict[str, Any] | None, snapshot: SnapshotAssertion
) -> None:
    attempt = visited(tmp_path, label, later)
    assert attempt.status == "failed"
    assert wording.one_line(attempt.reason, tmp_path) == snapshot


@pytest.mark.parametrize(("label", "later"), [("resumed", VISITS["resumed"]), ("50 ms, 50 Mbit/s", None)])
def test_a_first_visit_that_is_resumed_fails_the_run(tmp_path: Path, label: str, later: dict[str, Any] | None) -> None:
    attempt = visited(tmp_path, label, later, resumed=True)
    assert "reports resumed True, the cell says False" in str(attempt.reason)


@pytest.mark.parametrize(
    ("label", "library", "told"),
    [
        ("resumed", "nginx-h3", None),
        ("0-RTT", "tcp-tls", None),
        ("0-RTT", "nginx-h3", "nginx 1.28 on OpenSSL takes no 0-RTT over QUIC"),
        ("resumed, TLS 1.2", "tcp-tls", None),
    ],
)
def test_what_visits_each_transport_has(label: str, library: str, told: str | None) -> None:
    reason = cell_of(label, library).unsupported
    assert reason is None if told is None else told in str(reason)


def test_tls_1_2_has_no_early_data() -> None:
    variant = WEB.variants[0].model_copy(update={"visit": "early-data", "tls_version": "TLSv1.2"})
    told = factors.unsupported_reason(PROJECT.libraries["tcp-tls"], variant, "cubic")
    assert told == "TLS 1.2 has no early data (RFC 8446, 1.2)"


def test_a_resumed_session_of_tls_1_2_has_no_key_exchange() -> None:
    expected = judge.second_visit(PROJECT, cell_of("resumed, TLS 1.2", "tcp-tls"))
    assert (expected["group"], expected["signature"], expected["resumed"]) == (None, None, True)
    assert judge.second_visit(PROJECT, cell_of("resumed", "tcp-tls"))["group"] == "x25519"


def test_a_proof_of_a_second_visit_has_both(tmp_path: Path) -> None:
    proof = spec.proof_spec(PROJECT, WEB, cell_of("0-RTT", "tcp-tls"))
    assert (proof.visits_before, proof.connections, proof.secrets) == (1, 1, True)
    assert (proof.cell.variant.visit, proof.cell.variant.rtt_ms) == ("early-data", 50)
    first = spec.proof_spec(PROJECT, WEB, cell_of("50 ms, 50 Mbit/s", "tcp-tls"))
    assert (first.visits_before, first.secrets) == (0, False)


@pytest.mark.parametrize("label", ["resumed", "50 ms, 50 Mbit/s"])
def test_a_capture_without_the_visit_that_was_to_be_proves_nothing(tmp_path: Path, label: str) -> None:
    proven = spec.proof_spec(PROJECT, WEB, cell_of(label, "tcp-tls"))
    capture = ROOT / "tests/data/handshakes" / ("tcp-tls.pcap" if label == "resumed" else "tcp-tls-early-data.pcap")
    shutil.copy(capture, tmp_path / CAPTURE)
    _, problems = Examiner(PROJECT, proven, "10.113.0.2" if label == "resumed" else "127.0.0.1").download(tmp_path)
    counted = "0 of 1" if label == "resumed" else "1 of 2"
    told = f"{counted} connections resume the session of an earlier one, instead of {int(label == 'resumed')}."
    assert told in problems


REUSE = PROJECT.experiments["connection-reuse"]
KEPT = {
    "kept": True,
    "t_connect": 701 * MS,
    **dict.fromkeys(["t_client_hello", "t_handshake_complete", "t_handshake_confirmed"]),
    "t_request_sent": 702 * MS,
    "t_first_byte": 751 * MS,
    "t_last_byte": 791 * MS,
    "cpu_user_ns": 3 * MS,
    "cpu_system_ns": MS,
}


def kept_cell(label: str = "kept open", library: str = "tcp-tls") -> cells.Cell:
    found = cells.cells_of(PROJECT, "connection-reuse", "c0ffee00", {})
    return next(one for one in found if one.label == label and one.client.library == library)


def kept_run(label: str = "kept open", library: str = "tcp-tls") -> spec.RunSpec:
    return spec.run_spec(PROJECT, REUSE, kept_cell(label, library), PROJECT.scale("connection-reuse"))


def kept(
    directory: Path, later: dict[str, Any] | None = None, first: dict[str, Any] | None = None, **served: Any
) -> Attempt:
    """A run of HTTP/2 over a connection that is kept, judged; *served* is what its server tells otherwise."""
    run, attempt = kept_run(), Attempt()
    told = {"header_protection": None, "resumed": False, "early_data": False, "kept": False} | (first or {})
    both = logs(directory, run, later=told | KEPT | (later or {}), **told)
    visit = {"header_protection": None, "resumed": False, "early_data": False}
    connection = both.server.connections[0].model_copy(update=visit | {"bytes_sent": 2 * run.bytes} | served)
    judge.judge(attempt, PROJECT, run, Logs(both.client, replace(both.server, connections=(connection,))))
    return attempt


def test_a_load_over_a_kept_connection_has_its_own_times_only(tmp_path: Path) -> None:
    attempt = kept(tmp_path)
    assert (attempt.status, attempt.reason, attempt.contradictions) == ("ok", None, [])
    size = PROJECT.pages["median-2025"].bytes
    assert attempt.metrics == {
        "bytes": size,
        "wall_s": 0.09,
        "goodput_mbps": pytest.approx(8e-6 * size / 0.089),
        "page_first_byte_ms": 50,
        "page_load_ms": 90,
        "client_cpu_s": 0.004,
        "client_cpu_s_per_gib": pytest.approx(0.004 * 2**30 / size),
    }
    assert attempt.evidence["visits_before"] == [{"connection_ms": 50, "page_load_ms": 600}]
    unknown = attempt.evidence["unknown"]
    assert not unknown.keys() & attempt.metrics.keys()
    assert {"connection_ms", "ttfb_ms", "server_cpu_s", "client_packets_lost"} <= unknown.keys()
    assert unknown.keys() <= record.Metrics.model_fields.keys()


@pytest.mark.parametrize(
    ("later", "first", "served"),
    [
        ({"kept": None}, {}, {}),
        ({}, {"kept": None}, {}),
        ({}, {}, {"bytes_sent": 1000}),
        ({}, {}, {"ok": False, "error": "the connection ended after 56 of 112 requests"}),
        ({}, {}, {"resumed": True}),
        ({"t_connect": None}, {}, {}),
        ({"ok": False, "error": "object 2 of 56 (9): 1 of 9 bytes received", "content_ok": False}, {}, {}),
    ],
)
def test_loads_that_did_not_go_over_one_connection_fail_the_run(
    tmp_path: Path, later: dict[str, Any], first: dict[str, Any], served: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    attempt = kept(tmp_path, later, first, **served)
    assert attempt.status == "failed"
    assert wording.one_line(attempt.reason, tmp_path) == snapshot


def test_a_server_that_saw_two_connections_fails_the_run(tmp_path: Path) -> None:
    run, attempt = kept_run(), Attempt()
    told = {"header_protection": None, "kept": False}
    judge.judge(attempt, PROJECT, run, logs(tmp_path, run, later=told | KEPT, **told))
    assert attempt.reason == "the server reported 2 connections, 2 loads were to go over one"


@pytest.mark.parametrize(
    ("label", "library", "told"),
    [
        ("kept open", "nginx-h3", None),
        ("kept open", "tcp-tls", None),
        ("kept open, TLS 1.2", "tcp-tls", None),
        ("kept open, TLS 1.2", "nginx-h3", "QUIC has no TLS before 1.3"),
    ],
)
def test_what_keeps_connections(label: str, library: str, told: str | None) -> None:
    reason = kept_cell(label, library).unsupported
    assert reason is None if told is None else told in str(reason)


def test_a_browser_and_what_loads_no_pages_keep_no_connection() -> None:
    variant = REUSE.variants[3].model_copy(update={"loaded_by": "chromium"})
    assert variant.visit == "kept"
    told = factors.unsupported_reason(PROJECT.libraries["nginx-h3"], variant, "cubic")
    assert told == "the program that drives Chromium waits until the connection of the first visit is closed"
    stock = REUSE.variants[3].model_copy(update={"flavour": "stock"})
    assert factors.unsupported_reason(PROJECT.libraries["quinn"], stock, "cubic") == (
        "quinn: its endpoints load no pages"
    )


def test_both_programs_are_told_of_all_loads_over_the_connection(tmp_path: Path) -> None:
    project = Project(ROOT, {"scale": "tiny", "paths": {"build": str(tmp_path)}})
    certificates.make(certificates.directory(project, "rsa-2048"), None)
    run = spec.run_spec(project, project.experiments["connection-reuse"], kept_cell(), project.scale("web"))
    proof = spec.proof_spec(project, project.experiments["connection-reuse"], kept_cell())
    assert (run.requests, proof.requests) == (2 * 56, 2)
    assert run.work["visits_before"] == 1
    for one in (run, proof):
        client, server = (Program(project, FakeTestbed(), one, tmp_path / "run", role).argv() for role in ROLES)
        assert client[client.index("--connections") + 1] == "2"
        assert server[server.index("--requests") + 1] == str(one.requests)
        assert all(words[words.index("--visit") + 1] == "kept" for words in (client, server))
    assert "--key-log" not in client


@pytest.mark.parametrize(
    ("label", "capture", "server", "told"),
    [
        # of two connections, the second of which resumes the session of the first
        ("kept open, TLS 1.2", "tcp-tls-resumed-tls12.pcap", "127.0.0.1", "There are 2 connections, but 2 loads"),
        ("kept open, TLS 1.2", "tcp-tls-resumed-tls12.pcap", "127.0.0.1", "1 of 2 connections resume the session of"),
        ("kept open", "tcp-tls.pcap", "10.113.0.2", "less than the 524288 of 2 loads."),
    ],
)
def test_a_capture_of_other_than_two_loads_over_one_connection_proves_nothing(
    tmp_path: Path, label: str, capture: str, server: str, told: str
) -> None:
    proven = spec.proof_spec(PROJECT, REUSE, kept_cell(label))
    shutil.copy(ROOT / "tests/data/handshakes" / capture, tmp_path / CAPTURE)
    _, problems = Examiner(PROJECT, proven, server).download(tmp_path)
    assert any(told in problem for problem in problems), problems


def test_cells_of_other_experiments_stay_what_they_were() -> None:
    assert "visit" not in cell_of("50 ms, 50 Mbit/s").variant.as_dict()
    assert kept_cell().variant.as_dict()["visit"] == "kept"


DRAWN = {"t_navigation": 90 * MS, "t_load": 710 * MS, "t_largest_paint": 490 * MS}


@pytest.mark.parametrize("left_out", [None, *DRAWN])
def test_what_a_visitor_sees_begins_with_the_navigation(tmp_path: Path, left_out: str | None) -> None:
    run = spec.run_spec(PROJECT, PROJECT.experiments["web-browser"], in_browser(), PROJECT.scale("web-browser"))
    attempt = Attempt()
    judge.judge(attempt, PROJECT, run, logs(tmp_path, run, **DRAWN | ({left_out: None} if left_out else {})))
    if left_out:
        assert attempt.reason == "the browser reported a page without its load event or its largest contentful paint"
        return
    assert (attempt.status, attempt.metrics["page_load_ms"]) == ("ok", 600)
    assert (attempt.metrics["load_event_ms"], attempt.metrics["largest_contentful_paint_ms"]) == (620, 400)


@pytest.mark.parametrize(("transport", "library"), [("quic", "nginx-h3"), ("tcp", "tcp-tls")])
def test_both_ends_have_the_page_and_the_browser_knows_the_server(tmp_path: Path, transport: str, library: str) -> None:
    project = Project(ROOT, {"scale": "tiny", "paths": {"build": str(tmp_path)}})
    cell = in_browser("50 ms, 50 Mbit/s", library)
    certificates.make(certificates.directory(project, "rsa-2048"), None)
    run = spec.run_spec(project, project.experiments["web-browser"], cell, project.scale("web-browser"))
    client, server = (Program(project, FakeTestbed(), run, tmp_path / "run", role) for role in ("client", "server"))
    place = Path(client.argv()[0]).parents[1]
    assert place.parent == tmp_path / "pages"
    words = server.argv()
    assert words[words.index("--www") + 1] == str(place / "www")
    assert words[words.index("--requests") + 1] == str(len(PROJECT.pages["median-2025"].sizes))
    assert not {"--content", "--page"} & {*words, *client.argv()}
    told = client.environment() or {}
    assert (told["QUICBED_PAGE"], told["QUICBED_TRANSPORT"]) == (str(place / "www"), transport)
    # 32 bytes in Base64
    assert len(told["QUICBED_PIN"]) == 44
    assert server.environment() is None


def test_the_program_that_drives_a_browser_is_part_of_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_browser().id
    shutil.copytree(ROOT / plan_browser.CONTRACT, tmp_path / plan_browser.CONTRACT)
    shutil.copytree(ROOT / plan_browser.DRIVER, tmp_path / plan_browser.DRIVER)
    monkeypatch.setattr(PROJECT, "root", tmp_path)
    assert in_browser().id == before
    with (tmp_path / plan_browser.DRIVER / "client.py").open("a", encoding="utf-8") as module:
        module.write("# changed\n")
    assert in_browser().id != before


def test_a_capture_without_a_handshake_of_tls_1_3_proves_no_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = in_browser("50 ms, 50 Mbit/s, TLS 1.2", "tcp-tls")
    examiner = Examiner(PROJECT, spec.proof_spec(PROJECT, PROJECT.experiments["web-browser"], cell), "10.0.0.1")
    (tmp_path / KEYS).touch()
    monkeypatch.setattr(tshark, "problem", lambda: None)
    monkeypatch.setattr(handshake, "examine", lambda *_, **__: [])
    attempt = Attempt()
    examiner.problems(attempt, tmp_path, None)
    assert "the signature algorithm is not seen: there is no handshake of TLS 1.3" in str(attempt.evidence)


def test_a_machine_without_a_browser_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    assert str(browser.problem()).startswith("no Chromium found")
    monkeypatch.delenv("BROWSER_PATH")
    (tmp_path / "chromium").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser.problem() is None


def test_another_version_of_the_browser_is_another_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(ROOT)

    def campaign(name: str, told: str | None) -> str:
        return campaign_of(project, name, {"host_id": "a", "browser": told})[0]

    assert campaign("web-browser", "Chromium 1.2") != campaign("web-browser", "Chromium 1.3")
    # what no browser loads is of none, and runs from before it was known stay what they are
    assert campaign("web", "Chromium 1.2") == campaign("web", None)
    assert campaign_of(project, "web-browser", {"host_id": "a"})[0] == campaign("web-browser", None)
    assert "browser" not in campaign_of(project, "web", {"browser": "Chromium 1.2"})[1]
    monkeypatch.setattr(measured, "builds_needed", lambda *_: [])
    # as the host of the client tells it, wherever its browser is
    program = tmp_path / "chromium"
    for said, version in (("Chromium 1.2.3 built on Debian GNU/Linux 12", "Chromium 1.2.3"), ("", None)):
        program.write_text(f"#!/bin/sh\necho '{said}'\n", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("BROWSER_PATH", str(program))
        testbed = FakeTestbed()
        driver = Driver(project, testbed, testbed.facts())
        assert driver.browser == version
        assert measured.Campaign(driver, "web-browser").identity.get("browser") == version
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    assert Driver(project, testbed, testbed.facts()).browser is None


def test_an_object_that_is_missing_fails_the_run_with_its_reason(tmp_path: Path) -> None:
    reason = "object 3 of 56 (7509): The requested URL returned error: 404"
    attempt = judged(tmp_path, ok=False, error=reason, bytes_received=1000, content_ok=False)
    assert attempt.status == "failed"
    assert attempt.reason == f"the client's connection failed: {reason}"


def test_a_page_that_is_too_short_fails_the_run(tmp_path: Path) -> None:
    attempt = judged(tmp_path, bytes_requested=1000, bytes_received=1000)
    assert attempt.reason is not None
    assert attempt.reason.startswith("wrong content: 1000 of 2045952 bytes received")


def test_a_client_that_does_not_tell_when_it_began_fails_the_run(tmp_path: Path) -> None:
    assert judged(tmp_path, t_connect=None).reason == "the client reported a page without the times of its connection"
