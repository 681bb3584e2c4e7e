"""Pages: a document and all its objects over one connection, as both ends tell it, and what fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from clone import ROOT
from loopback import Loopback, Server
from quicbed.builds import making
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.contract.content import content

pytestmark = pytest.mark.timeout(1800)

PROJECT = Project(ROOT)
ALPN = {"nginx-h3": "h3", "tcp-tls": "h2"}
PAGE = (22_000, 1000, 500, 500, 40_000, 3_000_000)


BuildOf = Callable[[str, str], Path]


def served(loopback: Loopback, library: str, page: tuple[int, ...], *options: str, requests: int = 0) -> Server:
    sizes = [part for size in dict.fromkeys(page) for part in ("--content", str(size))]
    # TLS 1.2 is for certificates with RSA
    signature = {"signature": "rsa-2048"} if "--tls-version" in options else {}
    return loopback.serve(library, *sizes, "--requests", str(requests or len(page)), *options, **signature)


def asked(page: tuple[int, ...]) -> tuple[str, str]:
    return "--page", ",".join(map(str, page))


@pytest.mark.parametrize("library", ALPN)
def test_a_page_is_loaded_over_one_connection(loopback: Loopback, library: str) -> None:
    server = served(loopback, library, PAGE)
    code, loaded = server.download(*asked(PAGE), "--connections", "3")
    assert code == 0
    assert [one["bytes_received"] for one in loaded] == [sum(PAGE)] * 3
    for one in loaded:
        assert one["alpn"] == ALPN[library]
        names = ("t_connect", "t_client_hello", "t_handshake_complete", "t_request_sent", "t_first_byte")
        times = [one[name] for name in (*names, "t_last_byte", "t_close")]
        assert times == sorted(times)
    told = server.stop(after=3)
    assert [(one["ok"], one["bytes_sent"], one["alpn"]) for one in told] == [(True, sum(PAGE), ALPN[library])] * 3


@pytest.mark.parametrize("library", ALPN)
def test_every_page_that_is_measured_can_be_loaded(loopback: Loopback, library: str) -> None:
    heavy = max(PROJECT.pages.values(), key=lambda page: len(page.sizes))
    server = served(loopback, library, heavy.sizes)
    (loaded,) = server.fetch(*asked(heavy.sizes))
    assert (loaded["error"], loaded["bytes_received"]) == (None, heavy.bytes)


@pytest.mark.parametrize("library", ALPN)
def test_a_missing_object_fails_the_page_and_is_named(loopback: Loopback, library: str) -> None:
    server = served(loopback, library, PAGE[:1], requests=3)
    (loaded,) = server.fetch(*asked((PAGE[0], PAGE[0], 7)))
    assert loaded["error"].startswith("object 3 of 3 (7): ")
    assert "404" in loaded["error"]
    (told,) = server.stop(after=1)
    assert told["error"] == "HTTP status 404 for /7"


@pytest.mark.parametrize("library", ALPN)
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (content(400), "object 2 of 3 (500): 400 of 500 bytes received"),
        (content(600), "object 2 of 3 (500): 600 of 500 bytes received"),
        (content(399) + b"?" + content(100, 400), "object 2 of 3 (500): wrong content at byte 399"),
    ],
    ids=["short", "long", "wrong"],
)
def test_an_object_that_is_not_as_asked_fails_the_page(
    loopback: Loopback, tmp_path: Path, library: str, body: bytes, error: str
) -> None:
    # a file goes before content whose size is its name
    (tmp_path / "www").mkdir()
    (tmp_path / "www/500").write_bytes(body)
    page = (2000, 500, 1000)
    server = served(loopback, library, page, "--www", str(tmp_path / "www"))
    (loaded,) = server.fetch(*asked(page))
    assert (loaded["error"], loaded["content_ok"]) == (error, False)


@pytest.mark.parametrize("library", ALPN)
def test_a_connection_with_fewer_requests_has_failed(loopback: Loopback, library: str) -> None:
    server = served(loopback, library, (1000,), requests=3)
    loaded = server.fetch(*asked((1000, 1000)), "--connections", "2")
    assert all(one["ok"] for one in loaded)
    told = server.stop(after=1)
    assert [one["error"] for one in told] == ["the connection ended after 2 of 3 requests"] * 2


VISITS = [
    *(("nginx-h3", "resumed", ()), ("tcp-tls", "resumed", ()), ("tcp-tls", "early-data", ())),
    ("tcp-tls", "resumed", ("--tls-version", "TLSv1.2")),
]


@pytest.mark.parametrize(("library", "visit", "options"), VISITS)
def test_a_second_visit_goes_on_with_the_session_of_the_first(
    loopback: Loopback, library: str, visit: str, options: tuple[str, ...]
) -> None:
    page, more = PAGE[:4], ("--visit", visit, *options)
    server = served(loopback, library, page, *more)
    code, loaded = server.download(*asked(page), "--connections", "3", *more)
    assert (code, [one["error"] for one in loaded]) == (0, [None] * 3)
    served_ones = server.stop(after=3)
    early = visit == "early-data"
    for told in (loaded, served_ones):
        assert [one["resumed"] for one in told] == [False, True, True]
        assert [one["early_data"] for one in told] == [False, early, early]
        assert (told[1]["group"] is None) == ("TLSv1.2" in options)
    assert [one["signature"] is None for one in loaded] == [False, True, True]
    for one in loaded:
        # a handshake is not complete with its first flight
        times = sorted([one["t_handshake_complete"], one["t_request_sent"]], reverse=one["early_data"])
        assert times == [one["t_handshake_complete"], one["t_request_sent"]]
        assert one["t_client_hello"] < one["t_request_sent"] < one["t_first_byte"]
        assert one["t_handshake_complete"] < one["t_first_byte"]


@pytest.mark.parametrize(
    ("asked_for", "served_as", "told"),
    [
        ("resumed", "first", "the session of the connection before was not resumed"),
        ("early-data", "resumed", "no early data was sent, or the server refused it"),
    ],
)
def test_a_visit_that_the_server_does_not_let_be_has_failed(
    loopback: Loopback, asked_for: str, served_as: str, told: str
) -> None:
    server = served(loopback, "tcp-tls", PAGE[:4], "--visit", served_as)
    code, loaded = server.download(*asked(PAGE[:4]), "--connections", "2", "--visit", asked_for)
    assert (code, [one["error"] for one in loaded]) == (1, [None, told])


@pytest.mark.parametrize(
    ("library", "options", "told"),
    [
        ("nginx-h3", (), "takes no 0-RTT over QUIC"),
        ("tcp-tls", ("--tls-version", "TLSv1.2"), "TLS 1.2 has no early data"),
    ],
)
def test_early_data_that_cannot_be_is_unsupported(
    loopback: Loopback, library: str, options: tuple[str, ...], told: str
) -> None:
    argv, _ = served(loopback, library, (1,), *options).client("--bytes", "1", "--visit", "early-data", *options)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, told in done.stderr) == (127, True)


KEPT = ("--visit", "kept")
KEPT_WITH = [("nginx-h3", ()), ("tcp-tls", ()), ("tcp-tls", ("--tls-version", "TLSv1.2"))]


@pytest.mark.parametrize(("library", "options"), KEPT_WITH)
def test_a_connection_that_is_kept_takes_several_loads(
    loopback: Loopback, library: str, options: tuple[str, ...]
) -> None:
    page = PAGE[:5]
    server = served(loopback, library, page, *KEPT, *options, requests=3 * len(page))
    argv, log = server.client(*asked(page), "--connections", "3", *KEPT, *options)
    assert subprocess.run(argv, timeout=60, check=False).returncode == 0
    loads = events.read(log, "client").connections
    assert [(one.kept, one.bytes_received, one.resumed) for one in loads] == [
        *((kept, sum(page), False) for kept in (False, True, True))
    ]
    assert loads[0].t_handshake_complete is not None
    for before, one in pairwise(loads):
        times = (before.t_last_byte, one.t_connect, one.t_request_sent, one.t_first_byte, one.t_last_byte)
        known = [time for time in times if time is not None]
        assert len(known) == len(times)
        assert known == sorted(known)
        assert (before.t_close, one.t_client_hello, one.t_handshake_complete, one.packets_sent) == (None,) * 4
        assert one.cpu_user_ns is not None
        assert (one.cipher, one.group, one.signature) == (before.cipher, before.group, before.signature)
    assert loads[-1].t_close is not None
    (told,) = server.stopped(after=1).connections
    assert (told.ok, told.bytes_sent, told.resumed) == (True, 3 * sum(page), False)


@pytest.mark.parametrize("library", ALPN)
def test_a_heavy_page_can_be_loaded_twice_over_a_connection(loopback: Loopback, library: str) -> None:
    # Larger objects are cut to 20 kB. On a busy machine nginx may take the whole page for a flood (the test below).
    heavy = tuple(min(size, 20_000) for size in max(PROJECT.pages.values(), key=lambda page: len(page.sizes)).sizes)
    server = served(loopback, library, heavy, *KEPT, requests=2 * len(heavy))
    loaded = server.fetch(*asked(heavy), "--connections", "2", *KEPT)
    assert [(one["error"], one["kept"]) for one in loaded] == [(None, False), (None, True)]
    assert [one["bytes_sent"] for one in server.stop(after=1)] == [2 * sum(heavy)]


def test_a_connection_that_nginx_takes_for_a_flood_has_that_reason(loopback: Loopback) -> None:
    # nginx allows 4292 frames at once (docs/libraries/nginx-h3.md), 128 streams with 60 kB each have more. Whether they
    # come to that depends on how far the client falls behind: mostly in one of these eight loads.
    page = (60_000,) * 600
    for _ in range(20):
        server = served(loopback, "nginx-h3", page, *KEPT, requests=8 * len(page))
        code, loaded = server.download(
            *asked(page), "--connections", "8", *KEPT, "--receive-buffer", "16777216", "--timeout", "60"
        )
        told = server.stop(after=1)
        if code != 0:
            break
    assert code == 1
    # libcurl opens another connection, and asks again for objects of which nothing has come
    assert any("libcurl opened" in one["error"] for one in loaded if not one["ok"])
    assert told[0]["error"].endswith("; nginx closed it: quic flood detected")


@pytest.mark.parametrize("library", ALPN)
def test_a_connection_takes_more_requests_than_nginx_allows_by_default(loopback: Loopback, library: str) -> None:
    page = (100,) * 600
    server = served(loopback, library, page, *KEPT, requests=2 * len(page))
    loaded = server.fetch(*asked(page), "--connections", "2", *KEPT)
    assert [(one["error"], one["kept"]) for one in loaded] == [(None, False), (None, True)]


@pytest.mark.parametrize("library", ALPN)
def test_a_download_can_be_repeated_over_a_connection(loopback: Loopback, library: str) -> None:
    server = loopback.serve(library, "--content", "50000", "--requests", "2", *KEPT)
    loaded = server.fetch("--bytes", "50000", "--connections", "2", *KEPT)
    assert [(one["error"], one["kept"]) for one in loaded] == [(None, False), (None, True)]
    assert [one["bytes_sent"] for one in server.stop(after=1)] == [100_000]


def test_a_connection_that_does_not_stay_open_has_failed(loopback: Loopback) -> None:
    # one that expects a single request closes the connection behind it
    server = loopback.serve("tcp-tls", "--content", "50000", *KEPT)
    code, loaded = server.download("--bytes", "50000", "--connections", "2", *KEPT)
    told = "the connection of the first load did not stay open: libcurl opened another one"
    assert (code, [(one["error"], one["kept"]) for one in loaded]) == (1, [(None, False), (told, False)])
    # so that the server has seen two
    assert len(server.stop(after=2)) == 2


@pytest.mark.parametrize("library", ALPN)
def test_a_server_reports_fewer_requests_than_both_loads_have(loopback: Loopback, library: str) -> None:
    server = served(loopback, library, PAGE[:3], *KEPT, requests=6)
    (loaded,) = server.fetch(*asked(PAGE[:3]), *KEPT)
    assert loaded["ok"]
    (told,) = server.stop()
    assert told["error"] == "the connection ended after 3 of 6 requests"


@pytest.mark.parametrize("library", ALPN)
def test_an_object_that_is_short_fails_every_load(loopback: Loopback, tmp_path: Path, library: str) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www/500").write_bytes(content(400))
    page = (2000, 500, 1000)
    server = served(loopback, library, page, "--www", str(tmp_path / "www"), *KEPT, requests=6)
    loaded = server.fetch(*asked(page), "--connections", "2", *KEPT)
    assert [one["error"] for one in loaded] == ["object 2 of 3 (500): 400 of 500 bytes received"] * 2


@pytest.mark.parametrize("library", ALPN)
def test_what_loads_pages_can_keep_a_connection_and_says_so(build_of: BuildOf, library: str) -> None:
    for role in ("client", "server"):
        assert "kept" in making.describe(build_of(library, "stock") / "bin" / role)["visits"]


def test_a_library_without_pages_keeps_no_connection(build_of: BuildOf) -> None:
    program = build_of("openssl", "stock") / "bin/client"
    argv = [str(program), "--connect", "127.0.0.1:9", "--server-name", "server", "--ca", "none", "--bytes", "1", *KEPT]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, "keep no connection for a second visit" in done.stderr) == (127, True)


def test_a_server_without_pages_is_no_server_of_one(loopback: Loopback) -> None:
    server = served(loopback, "tcp-tls", (1000, 500), requests=1)  # which speaks HTTP/1.1 alone
    (loaded,) = server.fetch(*asked((1000, 500)))
    assert not loaded["ok"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--page", "1,0"], "--page"),
        (["--page", "1,x"], "--page"),
        (["--page", "1", "--bytes", "1"], "--bytes, --save and --page: only one of them"),
    ],
)
def test_a_page_that_is_none_is_refused(loopback: Loopback, options: list[str], told: str) -> None:
    argv, _ = served(loopback, "tcp-tls", (1,)).client(*options)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, told in done.stderr) == (2, True)
