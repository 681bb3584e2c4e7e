"""s2n-quic over loopback: policies of one entry, sizes of datagrams, NOOP on the wire, Retry, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from quicbed.builds import making
from quicbed.config import algorithms
from quicbed.config.model import Project

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
LIBRARY = PROJECT.libraries["s2n-quic"]
GROUPS = LIBRARY.supports.groups
SIGNATURES = LIBRARY.supports.signatures

# a build may be part of a test
pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]

Events = list[dict[str, Any]]


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Callable[[str], Path]:
    """The programs of a flavour, built unless they are there."""
    return lambda flavour: build_of("s2n-quic", flavour) / "bin"


def read(log: Path) -> Events:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def connections(events: Events) -> Events:
    return [event for event in events if event["event"] == "connection"]


class Relay:
    """Passes datagrams between one client and a server, and keeps them."""

    def __init__(self, server: int) -> None:
        self.to_server: list[bytes] = []
        self.to_client: list[bytes] = []
        self._front, self._back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for end in (self._front, self._back):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
            end.settimeout(0.1)
        self._front.bind(("127.0.0.1", 0))
        self._back.connect(("127.0.0.1", server))
        self.port: int = self._front.getsockname()[1]
        self._client: Any = None
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._forward, self._return)]
        for thread in self._threads:
            thread.start()

    def _forward(self) -> None:
        while not self._over.is_set():
            try:
                datagram, self._client = self._front.recvfrom(65535)
                self.to_server.append(datagram)
                self._back.send(datagram)
            except (TimeoutError, ConnectionRefusedError):
                continue

    def _return(self) -> None:
        while not self._over.is_set():
            try:
                datagram = self._back.recv(65535)
                self.to_client.append(datagram)
                self._front.sendto(datagram, self._client)
            except (TimeoutError, ConnectionRefusedError):
                continue

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._front.close()
        self._back.close()


class Server:
    """A server on loopback, and clients for it."""

    def __init__(self, programs: Path, identity: Path, log: Path, *options: str, env: dict[str, str]) -> None:
        self.programs, self.identity, self.log, self.env = programs, identity, log, os.environ | env
        argv = [str(programs / "server"), "--listen", "127.0.0.1:0", "--events", str(log)]
        argv += ["--certificate", str(identity / "server.pem"), "--private-key", str(identity / "server.key")]
        self.process = subprocess.Popen([*argv, *options], stderr=subprocess.PIPE, text=True, env=self.env)
        deadline = time.monotonic() + 20
        while not (log.exists() and '"ready"' in log.read_text()):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.01)
        self.started, ready = read(log)[:2]
        self.port: int = ready["port"]

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def stop(self) -> Events:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(5) == 0
        return connections(read(self.log))

    def download(self, *options: str, port: int | None = None) -> tuple[int, Events]:
        """Runs a client; returns its exit code and all its events."""
        log = self.log.with_name(f"client-{time.monotonic_ns()}.jsonl")
        argv = [str(self.programs / "client"), "--connect", f"127.0.0.1:{port or self.port}", "--events", str(log)]
        argv += ["--server-name", "server", "--ca", str(self.identity / "ca.pem")]
        # an option given again has the last value
        argv += ["--bytes", "1", "--timeout", "20", *options]
        done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False, env=self.env)
        return done.returncode, read(log)


Serve = Callable[..., Server]


@pytest.fixture
def serve(programs: Callable[[str], Path], made: Callable[[str], Path], tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(
        *options: str, flavour: str = "stock", signature: str = "ecdsa-p-256", env: dict[str, str] | None = None
    ) -> Server:
        log = tmp_path / f"server-{len(servers)}.jsonl"
        server = Server(programs(flavour), made(signature), log, "--signature", signature, *options, env=env or {})
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


ECDSA = ("--signature", "ecdsa-p-256")


def relayed(server: Server, *options: str) -> tuple[Relay, dict[str, Any]]:
    """A successful download through a relay."""
    relay = Relay(server.port)
    try:
        code, events = server.download(*ECDSA, *options, port=relay.port)
    finally:
        relay.close()
    assert code == 0, events
    return relay, connections(events)[0]


@pytest.mark.parametrize("flavour", ["stock", "noop"])
@pytest.mark.parametrize("role", ["client", "server"])
def test_groups_and_signatures_are_those_of_the_configuration(
    programs: Callable[[str], Path], flavour: str, role: str
) -> None:
    said = making.describe(programs(flavour) / role)
    assert said["groups"] == GROUPS
    assert said["signatures"] == SIGNATURES


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_is_negotiated_in_one_round_trip(serve: Serve, group: str) -> None:
    server = serve("--group", group)
    code, events = server.download(*ECDSA, "--group", group)
    assert code == 0, events
    (got,) = connections(events)
    (sent,) = server.stop()
    assert got["group"] == sent["group"] == TABLE.group(group).tls_name
    assert got["hello_retry_request"] is False


@pytest.mark.parametrize("signature", SIGNATURES)
def test_every_signature_is_made_and_verified(serve: Serve, signature: str) -> None:
    server = serve(signature=signature)
    code, events = server.download("--signature", signature)
    assert code == 0, events
    (got,) = connections(events)
    (sent,) = server.stop()
    assert got["signature"] == sent["signature"] == TABLE.signature(signature).tls_name


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--cipher", "aes-256-gcm"], "Cipher"),
        (["--group", "p-256"], "Group"),
        (["--group", "x25519-mlkem768"], "Group"),
    ],
)
def test_a_server_has_nothing_but_its_policy(serve: Serve, options: list[str], told: str) -> None:
    server = serve()
    # the server drops what it cannot answer, as s2n-quic does with any connection that fails at its first packet
    code, _ = server.download(*ECDSA, *options, "--timeout", "0.5")
    assert code == 1
    failed = server.stop()
    assert failed
    for connection in failed:
        assert not connection["ok"]
        assert told in connection["error"]


def test_a_client_has_nothing_but_its_policy(serve: Serve) -> None:
    code, events = serve().download("--signature", "ecdsa-p-384")
    assert code == 1
    assert "signature" in connections(events)[0]["error"]


@pytest.mark.parametrize("payload", [1300, 1472, 2972, 5972, 8972])
def test_the_search_for_a_size_ends_at_the_payload_asked_for(serve: Serve, payload: int) -> None:
    options = ("--udp-payload", str(payload))
    relay, got = relayed(serve(*options), *options, "--bytes", "20000000")
    assert got["content_ok"]
    sizes = [len(datagram) for datagram in relay.to_client]
    assert max(sizes) == payload
    assert sizes[-200:].count(payload) > 150


@pytest.mark.parametrize("size", [1200, 1350, 1472])
def test_the_initial_size_is_kept_until_the_handshake_is_complete(serve: Serve, size: int) -> None:
    options = ("--initial-size", str(size))
    relay, got = relayed(serve(*options, "--content", "1"), *options)
    assert len(relay.to_server[0]) == size
    assert max(len(datagram) for datagram in relay.to_client) <= size
    assert got["handshake_bytes_sent"] == size * got["handshake_packets_sent"]


def test_the_switches_of_the_noop_flavour_leave_initial_packets_alone(serve: Serve) -> None:
    variant = ("--aead", "noop", "--header-protection", "off")
    relay, got = relayed(serve(*variant, flavour="noop"), *variant, "--bytes", "100000")
    assert (got["aead"], got["header_protection"]) == ("noop", "off")
    hello, flight = relay.to_server[0], relay.to_client[0]
    # long header, fixed bit, Initial; the ClientHello names server and protocol
    assert hello[0] & 0xF0 == 0xC0
    assert b"hq-interop" not in hello
    # behind the server's Initial packet comes its first Handshake packet, with EncryptedExtensions
    assert b"hq-interop" in b"".join(relay.to_client[:3])
    assert flight[0] & 0xF0 == 0xC0
    content = [datagram for datagram in relay.to_client if b"quicbed00000" in datagram]
    assert len(content) > 60
    for datagram in content:
        assert datagram.endswith(b"\x2a" * 16)
        # short header, fixed bit, reserved bits that header protection would mask
        assert datagram[0] & 0xD8 == 0x40


@pytest.mark.parametrize(("aead", "header_protection"), [("noop", "on"), ("standard", "off"), ("standard", "on")])
def test_aead_and_header_protection_are_switched_independently(serve: Serve, aead: str, header_protection: str) -> None:
    variant = ("--aead", aead, "--header-protection", header_protection)
    server = serve(*variant, flavour="noop")
    relay, got = relayed(server, *variant, "--bytes", "1000000")
    (sent,) = server.stop()
    for side in (got, sent):
        assert (side["aead"], side["header_protection"]) == (aead, header_protection)
    full = [datagram for datagram in relay.to_client if len(datagram) == 1472]
    assert any(b"quicbed00000" in datagram for datagram in full) == (aead == "noop")
    masked = {datagram[0] & 0x18 for datagram in full} != {0}
    assert masked == (header_protection == "on")


def test_a_retry_is_told_by_both(serve: Serve) -> None:
    server = serve("--retry", "on")
    relay, got = relayed(server, "--bytes", "1")
    (sent,) = server.stop()
    assert got["retry"] is True
    assert sent["retry"] is True
    # long header, fixed bit, Retry
    assert relay.to_client[0][0] & 0xF0 == 0xF0
    # one ClientHello without and one with the token
    assert got["handshake_packets_sent"] == 2


def test_both_congestion_controls_download(serve: Serve) -> None:
    for name in ("cubic", "bbr"):
        server = serve("--congestion-control", name)
        code, events = server.download(*ECDSA, "--congestion-control", name, "--bytes", "3000000")
        assert code == 0
        assert events[0]["options"]["congestion_control"] == name
        assert server.stop()[0]["bytes_sent"] == 3_000_000


def test_aes_instructions_can_be_switched_off(serve: Serve) -> None:
    off = LIBRARY.supports.aes_hardware_off
    assert isinstance(off, dict)
    flags = Path("/proc/cpuinfo").read_text().split()
    for environment, expected in (({}, "aes" in flags), (off, False)):
        server = serve(env=environment)
        code, events = server.download(*ECDSA, "--bytes", "100000")
        assert code == 0
        for start in (server.started, events[0]):
            assert start["options"]["aes_hardware"] is expected


def test_secrets_are_logged_by_both(serve: Serve, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "client.keys", tmp_path / "server.keys"
    server = serve("--key-log", str(theirs))
    code, _ = server.download(*ECDSA, "--key-log", str(ours))
    assert code == 0
    server.stop()
    lines = sorted(ours.read_text().splitlines())
    assert lines == sorted(theirs.read_text().splitlines())
    labels = [line.split()[0] for line in lines]
    assert {"CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"} <= set(labels)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--udp-payload", "6552"], "GSO"),
        (["--udp-payload", "65500", "--connect", "[::1]:9"], "65487"),
        (["--window", str(1 << 32)], "window"),
        (["--congestion-control", "reno"], "reno"),
        (["--signature", "ed25519"], "ed25519"),
        (["--group", "mlkem768"], "mlkem768"),
    ],
)
def test_what_cannot_be_done_is_refused(
    programs: Callable[[str], Path], made: Callable[[str], Path], options: list[str], named: str
) -> None:
    argv = [str(programs("stock") / "client"), "--connect", "127.0.0.1:9", "--server-name", "server"]
    argv += ["--ca", str(made("ecdsa-p-256") / "ca.pem"), "--bytes", "1", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    (line,) = done.stderr.splitlines()
    assert line.startswith("unsupported: ")
    assert named in line


def test_a_stopped_server_tells_its_client(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    log = tmp_path / "client.jsonl"
    argv = [str(server.programs / "client"), "--connect", f"127.0.0.1:{server.port}", "--server-name", "server"]
    argv += ["--ca", str(server.identity / "ca.pem"), "--bytes", "1000000000000", *ECDSA, "--events", str(log)]
    client = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        sent = Path(f"/proc/{server.process.pid}/net/snmp")
        assert sent.exists()
        deadline = time.monotonic() + 20
        # a handshake takes a few milliseconds of CPU time: with so many the transfer is on its way
        while int(Path(f"/proc/{client.pid}/schedstat").read_text().split()[0]) < 200_000_000:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        (stopped,) = server.stop()
        assert client.wait(5) == 1
    finally:
        client.kill()
        client.wait()
    assert stopped["error"] == "the server was stopped"
    assert stopped["bytes_sent"] > 0
    assert "application" in connections(read(log))[0]["error"]


def test_memory_does_not_grow_with_connections(serve: Serve) -> None:
    server = serve("--content", "1")
    code, _ = server.download(*ECDSA, "--connections", "500")
    assert code == 0
    before = server.resident_kib()
    code, events = server.download(*ECDSA, "--connections", "2000")
    assert code == 0
    # one lost KiB a connection would be more
    assert server.resident_kib() - before < 1500
    assert len(server.stop()) == 2500
    assert events[-1]["max_rss_bytes"] < 64 << 20
