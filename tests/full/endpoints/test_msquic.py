"""MsQuic over loopback: what its packets show in every variant, NOENC, Retry, sizes, algorithms, and failures."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from loopback import Loopback, Serve, Server, connections, read_events
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.wire.proof import check, examine
from relayed import Claim, Relay
from wirefixtures import SERVER, pcap

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
SUPPORTS = PROJECT.libraries["msquic"].supports
# so small that a capture is quick, and large enough for a proof
PROOF_BYTES = 1024 * 1024

# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Callable[[str], Path]:
    """The programs of a flavour, built unless they are there."""
    return lambda flavour: build_of("msquic", flavour) / "bin"


@pytest.fixture
def serve(loopback: Loopback) -> Serve:
    return partial(loopback.serve, "msquic", signature="rsa-2048")


CLAIMS = [
    Claim("stock", "standard", True),
    Claim("noop", "standard", True),
    Claim("noop", "standard", False),
    Claim("noop", "noop", True),
    Claim("noop", "noop", False),
    Claim("noop", "noop", True, "aes-256-gcm"),
    Claim("noop", "noop", False, "chacha20-poly1305"),
    Claim("stock", "noenc", False),
    Claim("noop", "noenc", False),
]


def proof_of(server: Server, claim: Claim, capture: Path) -> Any:
    # one datagram at a time, for the relay
    offloads = ["--gso", "off", "--gro", "off"]
    # a window that the client has to open again and again: it sends packets enough, however slow the host is
    size = ["--bytes", str(PROOF_BYTES), "--window", str(PROOF_BYTES // 32)]
    with Relay(server.port) as relay:
        code, log = server.run(*claim.options(), *offloads, *size, port=relay.port)
    assert code == 0, log
    (seen,) = connections(log)
    assert (seen["aead"], seen["header_protection"]) == (claim.aead, "on" if claim.header_protection else "off")
    pcap(capture, relay.frames)
    return examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="quic", mtu=1500)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: "-".join(map(str, vars(claim).values())))
def test_packets_prove_the_variant_and_initial_packets_stay_standard(
    serve: Serve, tmp_path: Path, claim: Claim
) -> None:
    server = serve(*claim.options(), "--gso", "off", "--gro", "off", flavour=claim.flavour)
    proof = proof_of(server, claim, tmp_path / "proof.pcap")
    assert check(proof, claim) == []
    assert proof.initial_standard is True
    (accepted,) = server.stop()
    assert accepted["aead"] == claim.aead


def test_packets_after_a_retry_stay_standard(serve: Serve, tmp_path: Path) -> None:
    claim = Claim("noop", "noop", False)
    server = serve(*claim.options(), "--gso", "off", "--gro", "off", "--retry", "on", flavour="noop")
    assert check(proof_of(server, claim, tmp_path / "proof.pcap"), claim) == []
    (accepted,) = server.stop()
    assert accepted["retry"] is True


@pytest.mark.parametrize("role", ["client", "server"])
def test_noenc_needs_both_ends(serve: Serve, role: str) -> None:
    noenc = ("--aead", "noenc")
    server = serve(*(noenc if role == "server" else ()))
    code, log = server.run(*(noenc if role == "client" else ()))
    (seen,) = connections(log)
    (accepted,) = server.stop()
    assert (seen["aead"], accepted["aead"]) == ("standard", "standard")
    if role == "client":
        assert (code, seen["error"]) == (1, "the server did not agree to leave out packet protection")
    else:
        assert accepted["error"] == "the client did not agree to leave out packet protection"


def test_times_and_counts_of_a_handshake(serve: Serve) -> None:
    server = serve()
    _, log = server.run("--connections", "20")
    at_server = server.stop()
    seen = connections(log)
    assert len(seen) == len(at_server) == 20
    for client, accepted in zip(seen, at_server, strict=True):
        assert client["t_client_hello"] < accepted["t_accept"] < accepted["t_handshake_complete"]
        assert client["t_client_hello"] < client["t_handshake_complete"] < client["t_request_sent"]
        assert client["t_handshake_complete"] < client["t_handshake_confirmed"] <= client["t_close"]
        assert client["t_request_sent"] < client["t_first_byte"] <= client["t_last_byte"] <= client["t_close"]
        assert (client["handshake_packets_sent"], client["handshake_bytes_sent"]) == (1, 1220)
        assert client["handshake_bytes_received"] <= accepted["handshake_bytes_sent"]
        assert (client["retry"], client["hello_retry_request"]) == (False, False)


def test_a_server_with_retry_sends_one_to_every_connection(serve: Serve) -> None:
    server = serve("--retry", "on")
    code, log = server.run("--connections", "5")
    assert code == 0
    assert [connection["retry"] for connection in connections(log)] == [True] * 5
    accepted = server.stop()
    assert [connection["retry"] for connection in accepted] == [True] * 5
    # the time of the first datagram, which was answered with the Retry packet
    assert all(c["t_accept"] > s["t_client_hello"] for c, s in zip(accepted, connections(log), strict=True))


@pytest.mark.parametrize(("asked", "sent"), [(1200, 1220), (1300, 1300), (1472, 1472)])
def test_initial_packets_have_the_size_in_force(serve: Serve, asked: int, sent: int) -> None:
    size = ("--initial-size", str(asked))
    code, log = serve(*size).run(*size)
    assert code == 0
    assert log[0]["options"]["initial_size"] == sent
    assert connections(log)[0]["handshake_bytes_sent"] == sent


def test_datagrams_above_its_largest_are_refused(serve: Serve) -> None:
    code, log = serve().run("--udp-payload", "2972")
    assert code == 127
    assert log[-2]["reason"] == "MsQuic sends no datagrams above 1472 bytes (`CXPLAT_MAX_MTU`)"


@pytest.mark.parametrize("aead", ["standard", "noop"])
@pytest.mark.parametrize(("payload", "least"), [(1472, 1400), (2972, 2600), (8972, 2972)])
def test_flavour_jumbo_fills_larger_datagrams(serve: Serve, payload: int, least: int, aead: str) -> None:
    options = ("--udp-payload", str(payload), "--aead", aead, "--gso", "off")
    server = serve(*options, flavour="jumbo")
    code, log = server.run(*options, "--bytes", "400000000")
    assert code == 0
    (sent,) = server.stop()
    # path-MTU discovery gets there in steps of 80 bytes, each of which waits for an acknowledgement
    assert least < 400_000_000 / sent["packets_sent"] < payload
    refused, log = server.run("--udp-payload", "8973")
    assert (refused, log[-2]["reason"]) == (127, "MsQuic sends no datagrams above 8972 bytes (`CXPLAT_MAX_MTU`)")


def test_windows_are_powers_of_two(serve: Serve) -> None:
    code, log = serve().run("--window", "1000000", "--bytes", "3000001")
    assert code == 0
    assert log[0]["options"]["window"] == 1 << 19


# bytes of the client's key share: a curve point and a public key of the KEM
@pytest.mark.parametrize(
    ("group", "share"), [("x25519", 32), ("x25519-mlkem768", 1184 + 32), ("kyber1024", 1568), ("bike-l5", 5122)]
)
@pytest.mark.parametrize("retry", ["off", "on"])
def test_a_large_client_hello_takes_several_initial_packets(serve: Serve, group: str, share: int, retry: str) -> None:
    server = serve("--group", group, "--retry", retry, flavour="pq")
    code, log = server.run("--group", group)
    (seen,) = connections(log)
    (accepted,) = server.stop()
    assert (code, seen["retry"], accepted["retry"]) == (0, retry == "on", retry == "on")
    # all that the client sends before it has the server's answer are Initial packets in datagrams of 1220 bytes
    packets, rest = divmod(seen["handshake_bytes_sent"], 1220)
    assert (packets, rest) == (seen["handshake_packets_sent"], 0)
    assert seen["handshake_bytes_sent"] > share
    assert accepted["t_accept"] > seen["t_client_hello"]
    assert accepted["handshake_bytes_received"] >= seen["handshake_bytes_sent"]


@pytest.mark.parametrize(
    ("flavour", "options", "reason"),
    [
        ("stock", ("--group", "kyber768"), 'no group "kyber768"'),
        ("pq", ("--signature", "dilithium3"), 'no signature "dilithium3"'),
        ("pq", ("--group", "kyber"), 'no group "kyber", there are: x25519, '),
    ],
)
def test_a_build_names_what_it_lacks(
    serve: Serve, programs: Callable[[str], Path], flavour: str, options: tuple[str, str], reason: str
) -> None:
    server = serve()
    argv, log = server.client(*options, programs=programs(flavour))
    assert subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 127
    assert reason in read_events(log)[-2]["reason"]


@pytest.mark.parametrize("control", SUPPORTS.congestion_controls)
def test_congestion_controls(serve: Serve, control: str) -> None:
    chosen = ("--congestion-control", control)
    code, log = serve(*chosen).run(*chosen, "--bytes", "3000001")
    assert (code, connections(log)[0]["content_ok"]) == (0, True)


@pytest.mark.parametrize(
    "options",
    [("--group", "p-384"), ("--group", "kyber768"), ("--signature", "ed25519"), ("--cipher", "aes-256-gcm")],
    ids=["group", "pq-group", "signature", "cipher"],
)
def test_ends_without_a_common_algorithm_say_so(serve: Serve, options: tuple[str, str]) -> None:
    server = serve(flavour="pq" if "kyber768" in options else "stock")
    code, log = server.run(*options)
    assert code == 1
    assert "TLS alert" in connections(log)[0]["error"]
    assert server.run()[0] == 0, "a failed connection must not end the server"
    failed, served = server.stop()
    assert "TLS alert" in failed["error"]
    assert (failed["ok"], served["ok"]) == (False, True)


@pytest.mark.parametrize(("flavour", "group"), [("stock", "x25519"), ("pq", "x25519-mlkem768")])
def test_memory_does_not_grow_with_connections(serve: Serve, flavour: str, group: str) -> None:
    server = serve("--group", group, flavour=flavour)
    server.run("--group", group, "--connections", "100")
    before = server.resident_kib()
    code, log = server.run("--group", group, "--connections", "500")
    assert code == 0
    assert log[-1]["connections"] == 500
    assert server.resident_kib() - before < 1024


def test_a_server_stops_in_the_middle_of_a_download(serve: Serve) -> None:
    server = serve()
    argv, log = server.client("--bytes", str(1 << 40))
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as client:
        # the request has arrived when the server is at work
        working = server.cpu_ticks()
        while server.cpu_ticks() < working + 5:
            assert client.poll() is None
            time.sleep(0.01)
        (stopped,) = server.stop()
        assert client.wait(20) == 1
    assert (stopped["ok"], stopped["error"]) == (False, "the server was stopped")
    (seen,) = connections(read_events(log))
    assert seen["error"] == "closed by the server with application error 2"


def test_aes_instructions_can_be_switched_off(serve: Serve) -> None:
    assert isinstance(SUPPORTS.aes_hardware_off, dict)
    for environment, has in (
        ({}, "aes" in Path("/proc/cpuinfo").read_text().split()),
        (SUPPORTS.aes_hardware_off, False),
    ):
        code, log = serve(environment=environment).run()
        assert code == 0
        assert log[0]["options"]["aes_hardware"] is has


def test_primitives_have_the_sizes_of_the_standards(
    programs: Callable[[str], Path], made: Callable[[str], Path]
) -> None:
    assert not (programs("stock") / "primitives").exists()
    argv = [str(programs("pq") / "primitives"), "--milliseconds", "1", "--group", "none"]
    for group in ("x25519", "p-256", "kyber768", "x25519-mlkem768", "p-384-kyber768"):
        argv += ["--group", group]
    for signature in SUPPORTS.signatures:
        argv += ["--signature", f"{signature}={made(signature)}"]
    argv += ["--signature", f"dilithium3={made('rsa-2048')}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    written = [json.loads(line) for line in done.stdout.splitlines()]
    other = [(event["event"], event.get("name")) for event in written if event["event"] != "primitive"]
    assert other == [("start", None), ("unsupported", "none"), ("unsupported", "dilithium3"), ("end", None)]
    timed = [event for event in written if event["event"] == "primitive"]
    assert all(len(event["samples_ns"]) >= 5 for event in timed)
    assert len(timed) == 3 * (5 + len(SUPPORTS.signatures))
    sizes = {(event["name"], event["operation"]): event["bytes"] for event in timed}
    # RFC 7748; SEC 1, 2.3.3; round 3 Kyber, table 1; draft-ietf-tls-ecdhe-mlkem; draft-ietf-tls-hybrid-design
    assert sizes["x25519", "keygen"] == sizes["x25519", "encapsulate"] == 32
    assert sizes["p-256", "keygen"] == 65
    assert (sizes["kyber768", "keygen"], sizes["kyber768", "encapsulate"]) == (1184, 1088)
    assert (sizes["x25519-mlkem768", "keygen"], sizes["x25519-mlkem768", "encapsulate"]) == (1216, 1120)
    assert (sizes["p-384-kyber768", "keygen"], sizes["p-384-kyber768", "encapsulate"]) == (97 + 1184, 97 + 1088)
    # RFC 8032; RFC 8017
    assert (sizes["ed25519", "sign"], sizes["rsa-2048", "sign"]) == (64, 256)
    implementations = {event["name"]: event["implementation"] for event in timed}
    assert implementations["rsa-2048"] == "quictls 3.1.7"
    assert implementations["kyber768"].startswith("liboqs ")
    assert implementations["x25519-mlkem768"] == f"{implementations['kyber768']} + quictls 3.1.7"


def test_primitives_name_what_they_cannot_read(programs: Callable[[str], Path]) -> None:
    argv = [str(programs("pq") / "primitives"), "--signature", "rsa-2048=/nowhere"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "rsa-2048: /nowhere/server.key: No such file" in line
