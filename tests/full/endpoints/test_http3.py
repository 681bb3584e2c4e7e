"""Libraries that download over a bare stream and over HTTP/3: any with any other, and with those of HTTP/3 alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clone import ROOT
from loopback import Loopback, Server, ServerError
from quicbed.config.model import Project
from quicbed.measure import certificates

PROJECT = Project(ROOT)
BOTH = [name for name, library in PROJECT.libraries.items() if library.supports.http3 is True]
ALL = [*BOTH, *(name for name, library in PROJECT.libraries.items() if library.alpn == "h3")]
SIZE = 1_000_001

pytestmark = pytest.mark.timeout(1800)

BuildOf = Callable[[str, str], Path]


def asked(library: str) -> list[str]:
    """What lets a program speak HTTP/3; those that speak nothing else are not told."""
    return ["--alpn", "h3"] if library in BOTH else []


def serve(loopback: Loopback, library: str, *options: str, flavour: str = "stock", size: int = SIZE) -> Server:
    given = ("--content", str(size), *asked(library), *options)
    return loopback.serve(library, *given, flavour=flavour, signature=certificates.DEFAULT)


def test_three_libraries_speak_both() -> None:
    assert sorted(BOTH) == ["aioquic", "quic-go", "quiche"]


@pytest.mark.parametrize("size", [SIZE, 0])
@pytest.mark.parametrize(("client", "server"), [(a, b) for a in ALL for b in ALL if {a, b} & {*BOTH}])
def test_any_client_downloads_from_any_server(
    loopback: Loopback, build_of: BuildOf, client: str, server: str, size: int
) -> None:
    running = serve(loopback, server, size=size)
    programs = build_of(client, "stock") / "bin"
    options = ("--connections", "3", "--bytes", str(size), *asked(client))
    seen = running.fetch(*options, programs=programs)
    sent = running.stop(after=3)
    assert [(one["ok"], one["error"], one["alpn"]) for one in seen] == [(True, None, "h3")] * 3
    assert [(one["bytes_received"], one["content_ok"]) for one in seen] == [(size, True)] * 3
    assert [(one["ok"], one["error"], one["alpn"]) for one in sent] == [(True, None, "h3")] * 3
    assert [one["bytes_sent"] for one in sent] == [size] * 3
    for one in seen if size else ():
        names = ("t_client_hello", "t_handshake_complete", "t_request_sent", "t_first_byte", "t_last_byte")
        times = [one[name] for name in names]
        assert times == sorted(times)


@pytest.mark.parametrize("flavour", ["noop", "pq"])
@pytest.mark.parametrize("library", BOTH)
def test_other_flavours_speak_it_too(loopback: Loopback, library: str, flavour: str) -> None:
    if flavour not in PROJECT.libraries[library].flavours:
        pytest.skip(f"{library} has no flavour {flavour}")
    options = ["--aead", "noop", "--header-protection", "off"] if flavour == "noop" else ["--group", "x25519-mlkem768"]
    running = serve(loopback, library, *options, flavour=flavour)
    (seen,) = running.fetch("--bytes", str(SIZE), *asked(library), *options)
    assert (seen["error"], seen["alpn"], seen["content_ok"]) == (None, "h3", True)


@pytest.mark.parametrize("library", BOTH)
def test_a_file_is_served_and_saved(loopback: Loopback, tmp_path: Path, library: str) -> None:
    (tmp_path / "www").mkdir()
    data = os.urandom(300_001)
    (tmp_path / "www" / "a-file.bin").write_bytes(data)
    running = serve(loopback, library, "--www", str(tmp_path / "www"))
    argv, log = running.client("--save", str(tmp_path / "a-file.bin"), *asked(library))
    at = argv.index("--bytes")
    done = subprocess.run(argv[:at] + argv[at + 2 :], timeout=60, check=False)
    assert done.returncode == 0, log.read_text()
    assert (tmp_path / "a-file.bin").read_bytes() == data


@pytest.mark.parametrize("server", BOTH)
@pytest.mark.parametrize("client", BOTH)
def test_ends_with_different_protocols_say_so(loopback: Loopback, build_of: BuildOf, client: str, server: str) -> None:
    # a server that speaks only hq-interop
    running = loopback.serve(server, signature=certificates.DEFAULT)
    (seen,) = running.fetch("--timeout", "10", *asked(client), programs=build_of(client, "stock") / "bin")
    assert not seen["ok"]
    # no_application_protocol (RFC 7301, 3.2)
    assert "120" in seen["error"] or "0x178" in seen["error"] or "application protocol" in seen["error"].lower()
    assert seen["t_handshake_complete"] is None
    running.stop()


def test_a_library_with_one_protocol_says_so(loopback: Loopback, build_of: BuildOf) -> None:
    argv = [str(build_of("quinn", "stock") / "bin" / "client"), "--alpn", "h3", "--connect", "127.0.0.1:1"]
    argv += ["--server-name", "server", "--ca", "none.pem", "--bytes", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 127
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["reason"] for one in told if one["event"] == "unsupported"] == [
        "the endpoints of quinn do not speak h3"
    ]


@pytest.mark.parametrize("library", BOTH)
def test_an_unknown_protocol_is_a_wrong_command_line(loopback: Loopback, library: str) -> None:
    with pytest.raises(ServerError) as failed:
        loopback.serve(library, "--alpn", "h2", signature=certificates.DEFAULT)
    assert failed.value.code == 2
    assert "--alpn: not one of hq-interop, h3" in str(failed.value)


@contextmanager
def hostile(build_of: BuildOf, identity: Path, wrong: str) -> Iterator[int]:
    """The port of a server that answers wrongly."""
    packages = build_of("aioquic", "stock") / "lib"
    script = ROOT / "tests" / "support" / "hostile_http3.py"
    argv = [sys.executable, "-IBS", str(script), str(packages), str(identity), wrong, str(SIZE)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("library", BOTH)
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("status", ["404"]),
        ("short", [f"received {SIZE - 1} bytes of content instead of {SIZE}", "content-length"]),
        ("long", [f"received {SIZE + 1} bytes", f"{SIZE + 1} bytes of content arrived"]),
        # what is wrong with the section is told in the words of the library
        ("huge headers", ["ExcessiveLoad", "too large", "more than 16384 bytes", "StreamLimit"]),
        ("no headers", ["HEADERS", "no status", "0x105"]),
        ("reset", ["268", "0x10c", "H3_REQUEST_CANCELLED"]),
    ],
)
def test_a_wrong_answer_is_a_failed_connection_with_its_reason(
    loopback: Loopback, build_of: BuildOf, library: str, wrong: str, told: list[str]
) -> None:
    # for the command line of a client, and the identity
    running = serve(loopback, library)
    with hostile(build_of, running.identity, wrong) as port:
        (seen,) = running.fetch("--bytes", str(SIZE), "--timeout", "10", *asked(library), port=port)
    assert not seen["ok"]
    assert any(words in seen["error"] for words in told), seen["error"]
    assert "\n" not in seen["error"]
    # the next connection of another client is not concerned
    (next_one,) = running.fetch("--bytes", "10", *asked(library))
    assert next_one["ok"], next_one["error"]


@pytest.mark.parametrize("client", BOTH)
def test_what_a_server_of_nginx_does_not_have_is_status_404(loopback: Loopback, build_of: BuildOf, client: str) -> None:
    running = serve(loopback, "nginx-h3", size=10)
    (seen,) = running.fetch("--bytes", "11", *asked(client), programs=build_of(client, "stock") / "bin")
    assert not seen["ok"]
    assert "404" in seen["error"]
