"""Runs of pages: what both programs are asked, what is kept of what they tell, and what fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import judge
from quicbed.measure.attempt import Attempt
from quicbed.measure.said import Logs
from quicbed.plan import cells, spec

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
    told = cells.unsupported_reason("quinn", PROJECT.libraries["quinn"], variant, "cubic")
    assert told == "quinn: its endpoints load no pages"


def written(role: str, directory: Path, connection: dict[str, Any]) -> Path:
    """The event file of a program with one connection."""
    start = {"event": "start", "t": 0, "contract": 2, "role": role, "library": "nginx-h3", "version": "1", "pid": 1}
    end = {"event": "end", "t": 900 * MS, "connections": 1, "failed": int(not connection["ok"])}
    end |= dict.fromkeys(["cpu_user_ns", "cpu_system_ns", "run_delay_ns", "max_rss_bytes"])
    ready = {"event": "ready", "t": 0, "address": "10.0.0.1", "port": 4433}
    lines = [start | {"options": {}}, *([ready] if role == "server" else []), connection, end]
    file = directory / f"{role}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def logs(directory: Path, run: spec.RunSpec, **client: Any) -> Logs:
    """What both programs tell of a page that is loaded."""
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
    return Logs(
        client=events.read(written("client", directory, both | own | client), "client"),
        server=events.read(written("server", directory, both | served), "server"),
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
