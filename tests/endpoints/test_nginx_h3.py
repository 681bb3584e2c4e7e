"""What is special about nginx HTTP/3: keys that a provider follows, functions that the linker puts before others, and a
server that tells little of its connections.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.contract.content import content
from quicbed.measure import certificates
from quicbed.wire import proof

PROJECT = Project(ROOT)
SIZE = 300_001
NOOP_TAG = b"\x2a" * 16
RECORD = content(16)
CIPHERS = ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"]

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]

BuildOf = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the default signature algorithm."""
    certificates.make(target := tmp_path_factory.mktemp("certificates") / "made")
    return target


@dataclass
class Relay:
    """Passes datagrams between a client and a server, and keeps them."""

    server: tuple[str, int]
    sent: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.front, self.back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for end in (self.front, self.back):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.front.bind(("127.0.0.1", 0))
        self.back.connect(self.server)
        self.address = f"127.0.0.1:{self.front.getsockname()[1]}"
        self.ending = False
        self.thread = threading.Thread(target=self.pass_on)
        self.thread.start()

    def pass_on(self) -> None:
        client = None
        while not self.ending:
            for end in select.select([self.front, self.back], [], [], 0.1)[0]:
                if end is self.front:
                    datagram, client = self.front.recvfrom(65536)
                    self.sent.append(datagram)
                    self.back.send(datagram)
                else:
                    datagram = self.back.recv(65536)
                    self.received.append(datagram)
                    if client is not None:
                        self.front.sendto(datagram, client)

    def close(self) -> None:
        self.ending = True
        self.thread.join()
        for end in (self.front, self.back):
            end.close()


class Bench:
    """A server of a flavour on loopback, and the clients that come to it."""

    def __init__(self, build: Path, made: Path, directory: Path) -> None:
        self.build, self.made, self.directory = build, made, directory
        self.log = directory / "server.jsonl"
        self.process: subprocess.Popen[bytes] | None = None
        self.relay: Relay | None = None

    def serve(self, *options: str, size: int = SIZE, relayed: bool = False) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        argv = [str(self.build / "bin" / "server"), "--listen", f"127.0.0.1:{port}", "--events", str(self.log)]
        argv += ["--certificate", str(self.made / "server.pem"), "--private-key", str(self.made / "server.key")]
        self.process = subprocess.Popen([*argv, "--content", str(size), *options], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not (self.log.exists() and '"ready"' in self.log.read_text()):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.01)
        if relayed:
            self.relay = Relay(("127.0.0.1", port))
            return self.relay.address
        return f"127.0.0.1:{port}"

    def download(self, address: str, *options: str, size: int = SIZE) -> events.EndpointLog[events.ClientConnection]:
        log = self.directory / f"client-{time.monotonic_ns()}.jsonl"
        argv = [str(self.build / "bin" / "client"), "--connect", address, "--events", str(log), "--timeout", "10"]
        argv += ["--server-name", "server", "--ca", str(self.made / "ca.pem"), "--bytes", str(size), *options]
        subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=100, check=False)
        return events.read(log, "client")

    def stop(self) -> events.EndpointLog[events.ServerConnection]:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(5) == 0
        if self.relay is not None:
            self.relay.close()
        return events.read(self.log, "server")


@pytest.fixture
def bench(build_of: BuildOf, made: Path, tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    benches: list[Bench] = []

    def start(flavour: str) -> Bench:
        benches.append(Bench(build_of("nginx-h3", flavour), made, tmp_path))
        return benches[-1]

    yield start
    for one in benches:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        if one.relay is not None and one.relay.thread.is_alive():
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
    sent, received = one.relay.sent, one.relay.received
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
    address = one.serve("--udp-payload", str(payload), size=size, relayed=True)
    log = one.download(address, "--udp-payload", str(payload), size=size)
    assert log.connections[0].ok, log.connections[0].error
    one.stop()
    assert one.relay is not None
    initial = [len(datagram) for datagram in one.relay.sent if is_initial(datagram)]
    # a later one may share its datagram with the request
    assert initial[0] == min(initial) == 1200
    assert max(map(len, one.relay.received)) == payload
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
    address = one.serve()
    for options in (["--ca", str(tmp_path / "other" / "ca.pem")], ["--signature", "ecdsa-p-256"], []):
        one.download(address, *options)
    told = one.stop().connections
    assert [connection.ok for connection in told] == [False, False, True]
    assert "without a request" in str(told[0].error)
    assert "SSL_do_handshake() failed" in str(told[1].error)


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
        assert one.process is not None
        (nginx,) = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
        return int(Path(f"/proc/{nginx}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    one = bench("stock")
    address = one.serve(size=1)
    one.download(address, "--connections", "100", size=1)
    before = resident()
    log = one.download(address, "--connections", "400", size=1)
    assert all(connection.ok for connection in log.connections)
    assert resident() - before < 1 << 20
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
    build_of: BuildOf, made: Path, role: str, option: str, value: str, reason: str
) -> None:
    argv = [str(build_of("nginx-h3", "stock") / "bin" / role)]
    if role == "client":
        argv += ["--connect", "127.0.0.1:9", "--server-name", "server", "--ca", str(made / "ca.pem"), "--bytes", "1"]
    else:
        argv += ["--listen", "127.0.0.1:0", "--certificate", str(made / "server.pem")]
        argv += ["--private-key", str(made / "server.key")]
    done = subprocess.run([*argv, option, value], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in told] == ["start", "unsupported", "end"]
    assert reason in told[1]["reason"]
