"""Pages in Chromium: what it tells of a page that nginx serves, and what is said of a browser or page that fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from loopback import Loopback, Server, connections, read_events
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import browser
from relayed import HeldBack

pytestmark = pytest.mark.timeout(600)

PROJECT = Project(ROOT)
PAGE = PROJECT.pages["median-2025"]
TRANSPORTS = {"nginx-h3": "quic", "tcp-tls": "tcp"}
FAKE = ROOT / "tests/support/fake_chromium.py"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The directory of a page, for both ends."""
    return browser.provided(Project(ROOT, {"paths": {"build": str(tmp_path / "build")}}), PAGE)


def served(loopback: Loopback, library: str, files: Path, *options: str) -> Server:
    server = loopback.serve(
        library, "--www", str(files / "www"), "--requests", str(len(PAGE.sizes)), *options, signature="rsa-2048"
    )
    server.environment |= {
        "QUICBED_PAGE": str(files / "www"),
        "QUICBED_PIN": browser.pin(server.identity),
        "QUICBED_TRANSPORT": TRANSPORTS[library],
    }
    return server


def load(server: Server, files: Path, *options: str, **place: Any) -> tuple[int, list[dict[str, Any]]]:
    return server.run("--bytes", str(PAGE.bytes), *options, programs=files / "bin", **place)


@pytest.mark.parametrize("group", ["x25519", "x25519-mlkem768"])
@pytest.mark.parametrize("library", TRANSPORTS)
def test_a_page_is_drawn_over_one_connection(
    loopback: Loopback, files: Path, tmp_path: Path, library: str, group: str
) -> None:
    server = served(loopback, library, files, "--group", group)
    keys = tmp_path / "keys.log"
    code, told = load(server, files, "--group", group, "--key-log", str(keys))
    (loaded,) = connections(told)
    assert (code, loaded["error"], loaded["bytes_received"]) == (0, None, PAGE.bytes)
    assert loaded["alpn"] == ("h3" if library == "nginx-h3" else "h2")
    assert (loaded["group"].lower(), loaded["tls_version"]) == (group.replace("-", ""), "TLSv1.3")
    assert (loaded["cipher"], loaded["signature"]) == ("TLS_AES_128_GCM_SHA256", "rsa_pss_rsae_sha256")
    names = ("t_navigation", "t_connect", "t_client_hello", "t_handshake_complete", "t_request_sent", "t_first_byte")
    times = [loaded[name] for name in (*names, "t_last_byte", "t_close")]
    assert times == sorted(times)
    assert loaded["t_first_byte"] < loaded["t_largest_paint"] < loaded["t_close"]
    assert loaded["t_last_byte"] <= loaded["t_load"] + 50_000_000
    (log,) = server.log.parent.glob("client-*.jsonl")
    assert events.read(log, "client").start.options["browser"]
    (one,) = server.stop(after=1)
    assert (one["error"], one["bytes_sent"]) == (None, PAGE.bytes)
    assert "SECRET" in keys.read_text(encoding="ascii")


def test_a_page_is_drawn_over_tls_1_2(loopback: Loopback, files: Path) -> None:
    server = served(loopback, "tcp-tls", files, "--tls-version", "TLSv1.2")
    _, told = load(server, files, "--tls-version", "TLSv1.2")
    (loaded,) = connections(told)
    assert (loaded["error"], loaded["tls_version"]) == (None, "TLSv1.2")
    assert loaded["cipher"] == "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


Visits = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def visited(loopback: Loopback, library: str, files: Path, *options: str, held_s: float = 0) -> Visits:
    """A first and a second visit, as Chromium tells of them and as the server does.

    *held_s* is how late the first bytes of a TCP server arrive, in seconds.
    """
    server = served(loopback, library, files, *options)
    with HeldBack(server.port, held_s) if held_s else contextlib.nullcontext(server) as reached:
        code, told = load(server, files, "--connections", "2", *options, port=reached.port)
    first, later = connections(told)
    assert (code, first["error"], later["error"]) == (0, None, None)
    assert (first["bytes_received"], later["bytes_received"]) == (PAGE.bytes, PAGE.bytes)
    # the second one is a connection of its own, and what Chromium tells of its session is of the first
    assert later["t_connect"] > first["t_load"]
    assert (first["signature"] is None, later["signature"]) == (False, None)
    served_ones = server.stop(after=2)
    assert [one["resumed"] for one in served_ones] == [False, True]
    return [first, later], served_ones


@pytest.mark.parametrize(
    ("library", "options"), [("nginx-h3", ()), ("tcp-tls", ()), ("tcp-tls", ("--tls-version", "TLSv1.2"))]
)
def test_a_second_visit_resumes_the_session_of_the_first(
    loopback: Loopback, files: Path, library: str, options: tuple[str, ...]
) -> None:
    (_, later), served_ones = visited(loopback, library, files, "--visit", "resumed", *options)
    assert later["t_handshake_complete"] > later["t_client_hello"]
    assert [one["early_data"] for one in served_ones] == [False, False]


def test_a_second_visit_can_send_its_request_as_early_data(loopback: Loopback, files: Path) -> None:
    # without a delay the handshake may be complete before Chromium has written its request
    (_, later), served_ones = visited(loopback, "tcp-tls", files, "--visit", "early-data", held_s=1)
    assert later["t_handshake_complete"] is None
    assert [one["early_data"] for one in served_ones] == [False, True]


@pytest.mark.parametrize("library", TRANSPORTS)
def test_a_server_with_another_key_is_refused(loopback: Loopback, files: Path, library: str) -> None:
    server = served(loopback, library, files)
    server.environment |= {"QUICBED_PIN": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
    code, told = load(server, files)
    (loaded,) = connections(told)
    assert code == 1
    assert loaded["error"].startswith("Chromium does not load the page: net::ERR_")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: file.unlink(), r"5.css: was not asked for|/5.css: "),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "5.css: "),
        (lambda file: file.write_bytes(b"!" + file.read_bytes()[1:]), "5.css: "),
    ],
    ids=["missing", "short", "wrong"],
)
def test_an_object_that_is_not_as_it_has_to_be_fails_the_page(
    loopback: Loopback, files: Path, tmp_path: Path, change: Any, told: str
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(files, changed)
    change(changed / "www" / "5.css")
    server = served(loopback, "tcp-tls", changed)
    server.environment |= {"QUICBED_PAGE": str(files / "www")}
    code, all_told = load(server, files)
    (loaded,) = connections(all_told)
    assert (code, loaded["ok"]) == (1, False)
    assert any(part in loaded["error"] for part in told.split("|"))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("ends", "--version fails"),
        ("no version", "--version fails: no version in '"),
        ("ends later", "Chromium ended with exit code 7"),
        ("silent", "Chromium does not answer Target.createTarget within 2 s"),
        ("no json", "Chromium sends a message that is no JSON"),
        ("blocks", "Chromium does not load the page: net::ERR_CERT_INVALID"),
        ("refuses", "Chromium refuses Page.navigate: Cannot navigate"),
        ("crashes", "the page crashed in Chromium"),
        ("waits", "the page is not loaded, without https://server/3.css, within 2 s"),
        ("loses", "https://server/3.css: net::ERR_CONNECTION_RESET"),
    ],
)
def test_a_browser_that_fails_is_a_failed_run_with_the_reason(files: Path, tmp_path: Path, how: str, told: str) -> None:
    program = tmp_path / "chromium"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    code, said = without_server(files, tmp_path, BROWSER_PATH=str(program), FAKE_CHROMIUM=how)
    assert code == 1
    reasons = [str(event.get("reason") or event.get("error")) for event in said]
    assert any(told in reason for reason in reasons), said
    assert said[-1]["event"] == "end"
    assert said[0]["version"] == ("unknown" if "--version" in told else "Google Chrome 1.2.3")


def test_a_machine_without_a_browser_cannot_load_pages(files: Path, tmp_path: Path) -> None:
    code, said = without_server(files, tmp_path, BROWSER_PATH=str(tmp_path / "none"))
    assert code == 127
    assert "no Chromium found" in next(event["reason"] for event in said if event["event"] == "unsupported")


def without_server(files: Path, directory: Path, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    log = directory / "client.jsonl"
    argv = [str(files / "bin" / "client"), "--events", str(log), "--connect", "127.0.0.1:9", "--server-name", "server"]
    more = {"QUICBED_PAGE": str(files / "www"), "QUICBED_PIN": "A", "QUICBED_TRANSPORT": "tcp"} | environment
    options = ["--ca", "none", "--bytes", "1", "--timeout", "2"]
    done = subprocess.run([*argv, *options], env=os.environ | more, timeout=60, check=False, capture_output=True)
    return done.returncode, read_events(log)
