"""s2n-quic over loopback: policies of one entry, sizes of datagrams, NOOP on the wire, Retry, and what it refuses."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from loopback import Loopback, Serve, Server, connections, read_events
from quicbed.builds import making
from quicbed.config import algorithms
from quicbed.config.model import Project
from relayed import Relay

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
LIBRARY = PROJECT.libraries["s2n-quic"]
GROUPS = LIBRARY.supports.groups
SIGNATURES = LIBRARY.supports.signatures

# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Callable[[str], Path]:
    """The programs of a flavour, built unless they are there."""
    return lambda flavour: build_of("s2n-quic", flavour) / "bin"


@pytest.fixture
def serve(loopback: Loopback) -> Serve:
    return partial(loopback.serve, "s2n-quic")


def relayed(server: Server, *options: str) -> tuple[Relay, dict[str, Any]]:
    """A successful download through a relay."""
    with Relay(server.port) as relay:
        code, events = server.download(*options, port=relay.port)
    assert code == 0, events
    return relay, events[0]


@pytest.mark.parametrize("flavour", ["stock", "noop"])
@pytest.mark.parametrize("role", ["client", "server"])
def test_groups_and_signatures_are_those_of_the_configuration(
    programs: Callable[[str], Path], flavour: str, role: str
) -> None:
    said = making.describe(programs(flavour) / role)
    assert said["groups"] == GROUPS
    assert said["signatures"] == SIGNATURES


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
    code, _ = server.download(*options, "--timeout", "0.5")
    assert code == 1
    failed = server.stop()
    assert failed
    for connection in failed:
        assert not connection["ok"]
        assert told in connection["error"]


def test_a_client_has_nothing_but_its_policy(serve: Serve) -> None:
    code, events = serve().download("--signature", "ecdsa-p-384")
    assert code == 1
    assert "signature" in events[0]["error"]


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
        code, events = server.run("--congestion-control", name, "--bytes", "3000000")
        assert code == 0
        assert events[0]["options"]["congestion_control"] == name
        assert server.stop()[0]["bytes_sent"] == 3_000_000


def test_aes_instructions_can_be_switched_off(serve: Serve) -> None:
    off = LIBRARY.supports.aes_hardware_off
    assert isinstance(off, dict)
    flags = Path("/proc/cpuinfo").read_text().split()
    for environment, expected in (({}, "aes" in flags), (off, False)):
        server = serve(environment=environment)
        code, events = server.run("--bytes", "100000")
        assert code == 0
        for start in (server.events()[0], events[0]):
            assert start["options"]["aes_hardware"] is expected


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


def test_a_stopped_server_tells_its_client(serve: Serve) -> None:
    server = serve()
    argv, log = server.client("--bytes", "1000000000000", "--timeout", "600")
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
    assert "application" in connections(read_events(log))[0]["error"]


def test_memory_does_not_grow_with_connections(serve: Serve) -> None:
    server = serve("--content", "1")
    code, _ = server.download("--connections", "500")
    assert code == 0
    before = server.resident_kib()
    code, events = server.run("--connections", "2000")
    assert code == 0
    # one lost KiB a connection would be more
    assert server.resident_kib() - before < 1500
    assert len(server.stop()) == 2500
    assert events[-1]["max_rss_bytes"] < 64 << 20
