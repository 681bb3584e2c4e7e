"""What is special about nginx HTTP/3: keys that a provider follows, functions that the linker puts before others, and a
server that tells little of its connections.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clone import ROOT
from loopback import Loopback
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.contract.content import content
from quicbed.measure import certificates
from quicbed.wire import proof
from relayed import Relay

PROJECT = Project(ROOT)
SIZE = 300_001
NOOP_TAG = b"\x2a" * 16
RECORD = content(16)
CIPHERS = ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"]

pytestmark = pytest.mark.timeout(1800)

BuildOf = Callable[[str, str], Path]


class Bench:
    """A server of a flavour on loopback, and the clients that come to it."""

    def __init__(self, loopback: Loopback, flavour: str) -> None:
        self.loopback, self.flavour = loopback, flavour
        self.relay: Relay | None = None

    def serve(self, *options: str, size: int = SIZE, relayed: bool = False) -> int:
        """Returns the port that clients are to connect to."""
        options = ("--content", str(size), *options)
        self.server = self.loopback.serve("nginx-h3", *options, flavour=self.flavour, signature=certificates.DEFAULT)
        if not relayed:
            return self.server.port
        self.relay = Relay(self.server.port)
        return self.relay.port

    def download(self, port: int, *options: str, size: int = SIZE) -> events.EndpointLog[events.ClientConnection]:
        argv, log = self.server.client("--bytes", str(size), "--timeout", "40", *options, port=port)
        subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=100, check=False)
        return events.read(log, "client")

    def stop(self) -> events.EndpointLog[events.ServerConnection]:
        log = self.server.stopped()
        if self.relay is not None:
            self.relay.close()
        return log


@pytest.fixture
def bench(loopback: Loopback) -> Iterator[Callable[[str], Bench]]:
    benches: list[Bench] = []

    def start(flavour: str) -> Bench:
        benches.append(Bench(loopback, flavour))
        return benches[-1]

    yield start
    for one in benches:
        if one.relay is not None:
            one.relay.close()


def is_initial(datagram: bytes) -> bool:
    """Whether a datagram begins with an Initial packet of QUIC v1 (RFC 9000, section 17.2.2)."""
    return datagram[0] & 0xF0 == 0xC0 and datagram[1:5] == b"\0\0\0\1"


def is_short(datagram: bytes) -> bool:
    """Whether a datagram has a 1-RTT packet only."""
    return datagram[0] & 0x80 == 0


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("header_protection", ["on", "off"])
@pytest.mark.parametrize("aead", ["noop", "standard"])
def test_packets_are_changed_as_asked_but_for_initial_ones(
    bench: Callable[[str], Bench], cipher: str, aead: str, header_protection: str
) -> None:
    options = ["--cipher", cipher, "--aead", aead, "--header-protection", header_protection]
    one = bench("noop")
    log = one.download(one.serve(*options, relayed=True), *options)
    assert log.connections[0].ok, log.connections[0].error
    one.stop()
    assert one.relay is not None
    sent, received = one.relay.to_server, one.relay.to_client
    plain = aead == "noop"
    short = [datagram for datagram in received if is_short(datagram)]
    assert len(short) > 100
    assert any(RECORD in datagram for datagram in received) == plain
    assert any(proof.REQUEST.search(datagram) for datagram in sent) == plain
    assert all(datagram.endswith(NOOP_TAG) == plain for datagram in short)
    assert all(datagram.endswith(NOOP_TAG) == plain for datagram in sent if is_short(datagram))
    # reserved bits are zero under header protection (RFC 9000, section 17.3.1), whose mask sets them in most packets
    clear = [datagram for datagram in short if datagram[0] & 0x18 == 0]
    if header_protection == "off":
        assert len(clear) == len(short)
    else:
        assert len(clear) < len(short) / 2
    # the client's first datagram is one Initial packet: its ClientHello has the name of the server
    assert is_initial(sent[0])
    assert is_initial(received[0])
    assert b"\0\x06server" not in sent[0]
    assert not sent[0].endswith(NOOP_TAG)


@pytest.mark.parametrize("flavour", ["stock", "noop"])
def test_a_retry_is_answered(bench: Callable[[str], Bench], flavour: str) -> None:
    options = ["--aead", "noop", "--header-protection", "off"] if flavour == "noop" else []
    one = bench(flavour)
    log = one.download(one.serve("--retry", "on", *options), "--connections", "3", *options)
    assert [(connection.ok, connection.retry) for connection in log.connections] == [(True, True)] * 3
    assert len(one.stop().connections) == 3


@pytest.mark.parametrize("payload", [1200, 1472])
def test_datagrams_have_the_sizes_asked_for(bench: Callable[[str], Bench], payload: int) -> None:
    # long enough for nginx to search for the path MTU, which it begins 100 ms after the handshake and does in steps
    size = 60_000_000 if payload == 1200 else 250_000_000
    one = bench("stock")
    port = one.serve("--udp-payload", str(payload), size=size, relayed=True)
    log = one.download(port, "--udp-payload", str(payload), size=size)
    assert log.connections[0].ok, log.connections[0].error
    one.stop()
    assert one.relay is not None
    initial = [len(datagram) for datagram in one.relay.to_server if is_initial(datagram)]
    # a later one may share its datagram with the request
    assert initial[0] == min(initial) == 1200
    assert max(map(len, one.relay.to_client)) == payload
    assert log.start.options["udp_payload"] == payload


def test_the_client_tells_when_it_did_what(bench: Callable[[str], Bench]) -> None:
    one = bench("stock")
    (got,) = one.download(one.serve()).connections
    one.stop()
    assert got.alpn == "h3"
    assert got.t_handshake_confirmed is not None
    assert got.t_handshake_complete is not None
    assert got.t_handshake_complete <= got.t_handshake_confirmed
    assert got.handshake_packets_sent is not None
    assert got.handshake_bytes_sent is not None
    assert got.handshake_bytes_sent >= 1200 * got.handshake_packets_sent >= 1200
    assert got.packets_received is not None
    assert got.packets_received > SIZE / 1472


def test_both_sides_can_do_without_aes_instructions(
    bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    off = PROJECT.libraries["nginx-h3"].supports.aes_hardware_off
    assert isinstance(off, dict)
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    one = bench("stock")
    log = one.download(one.serve())
    assert log.connections[0].ok
    assert log.start.options["aes_hardware"] is False
    assert one.stop().start.options["aes_hardware"] is False


def test_a_server_tells_of_connections_that_had_no_request(bench: Callable[[str], Bench], tmp_path: Path) -> None:
    certificates.make(tmp_path / "other")
    one = bench("stock")
    port = one.serve()
    for options in (["--ca", str(tmp_path / "other" / "ca.pem")], ["--signature", "ecdsa-p-256"], []):
        one.download(port, *options)
    told = one.stop().connections
    assert [connection.ok for connection in told] == [False, False, True]
    assert "without a request" in str(told[0].error)
    assert "SSL_do_handshake() failed" in str(told[1].error)


def test_a_server_that_reads_late_what_nginx_tells_counts_every_connection_once(
    bench: Callable[[str], Bench], tmp_path: Path
) -> None:
    certificates.make(tmp_path / "other")
    one = bench("stock")
    port = one.serve()
    one.server.process.send_signal(signal.SIGSTOP)
    for options in ([], ["--signature", "ecdsa-p-256"], [], ["--ca", str(tmp_path / "other" / "ca.pem")], []):
        one.download(port, *options)
    one.server.process.send_signal(signal.SIGCONT)
    assert [connection.ok for connection in one.stop().connections] == [True, False, True, False, True]


def test_an_alert_of_the_server_is_told(bench: Callable[[str], Bench]) -> None:
    one = bench("stock")
    (refused,) = one.download(one.serve("--group", "p-384"), "--group", "p-256").connections
    assert "received TLS alert 40 (handshake failure)" in str(refused.error)
    one.stop()


def test_a_size_that_was_not_prepared_fails(bench: Callable[[str], Bench]) -> None:
    one = bench("stock")
    (refused,) = one.download(one.serve(), size=SIZE + 1).connections
    assert not refused.ok
    assert "404" in str(refused.error)
    (told,) = one.stop().connections
    assert "HTTP status 404" in str(told.error)


def test_memory_does_not_grow_with_connections(bench: Callable[[str], Bench]) -> None:
    def resident() -> int:
        pid = one.server.process.pid
        (nginx,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(Path(f"/proc/{nginx}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    one = bench("stock")
    port = one.serve(size=1)
    one.download(port, "--connections", "100", size=1)
    before = resident()
    log = one.download(port, "--connections", "400", size=1)
    assert all(connection.ok for connection in log.connections)
    # what is freed stays with the process for a while, one or two MiB; 400 connections that were kept would be far more
    assert resident() - before < 4 << 20
    one.stop()


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--initial-size", "1300", "1200 bytes"),
        ("--congestion-control", "bbr", "CUBIC"),
        ("--aead", "noop", "noop flavour"),
        ("--aead", "noenc", "packet protection"),
        ("--header-protection", "off", "noop flavour"),
        ("--group", "x448", "both sides"),
        ("--group", "kyber768", "flavour pq"),
        ("--signature", "mldsa44", "flavour pq"),
    ],
)
def test_what_it_cannot_do_is_said(
    build_of: BuildOf, made: Callable[[str], Path], role: str, option: str, value: str, reason: str
) -> None:
    argv, identity = [str(build_of("nginx-h3", "stock") / "bin" / role)], made(certificates.DEFAULT)
    if role == "client":
        argv += [
            "--connect",
            "127.0.0.1:9",
            "--server-name",
            "server",
            "--ca",
            str(identity / "ca.pem"),
            "--bytes",
            "1",
        ]
    else:
        argv += ["--listen", "127.0.0.1:0", "--certificate", str(identity / "server.pem")]
        argv += ["--private-key", str(identity / "server.key")]
    done = subprocess.run([*argv, option, value], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in told] == ["start", "unsupported", "end"]
    assert reason in told[1]["reason"]
