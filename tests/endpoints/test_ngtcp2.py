"""ngtcp2 over loopback: groups and signatures of its BoringSSL, how handshakes fail, Retry, sizes, and late packets."""

from __future__ import annotations

import datetime
import json
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from clone import ROOT
from quicbed.builds import making
from quicbed.config import algorithms
from quicbed.config.model import Project

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
GROUPS = {group.name: group for group in TABLE.groups}
SIGNATURES = {signature.name: signature for signature in TABLE.signatures}
# what BoringSSL has without patches; its own ML-DSA only takes keys in the form of a seed
STOCK_GROUPS = ["x25519", "p-256", "p-384", "p-521", "mlkem1024", "x25519-mlkem768"]
STOCK_SIGNATURES = [name for name, signature in SIGNATURES.items() if not signature.liboqs]
PQ = "pq" in PROJECT.libraries["ngtcp2"].flavours
CASES_GROUPS = [("stock", name) for name in STOCK_GROUPS]
CASES_SIGNATURES = [("stock", name) for name in STOCK_SIGNATURES]
if PQ:
    CASES_GROUPS += [("pq", name) for name in GROUPS if name != "x448"]
    CASES_SIGNATURES += [("pq", name) for name in SIGNATURES]

# a build may be part of a test
pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]

Events = list[dict[str, Any]]


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Callable[[str], Path]:
    """The programs of a flavour, built unless they are there."""
    return lambda flavour: build_of("ngtcp2", flavour) / "bin"


def read(log: Path) -> Events:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def connections(events: Events) -> Events:
    return [event for event in events if event["event"] == "connection"]


class Server:
    """A server on loopback."""

    def __init__(self, programs: Path, identity: Path, log: Path, *options: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.programs, self.identity, self.log = programs, identity, log
        argv = [str(programs / "server"), "--listen", f"127.0.0.1:{self.port}", "--events", str(log)]
        argv += ["--certificate", str(identity / "server.pem"), "--private-key", str(identity / "server.key")]
        self.process = subprocess.Popen([*argv, *options], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while not (log.exists() and '"ready"' in log.read_text()):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.01)

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def stop(self) -> Events:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(5) == 0
        return connections(read(self.log))

    def download(self, *options: str, port: int | None = None) -> tuple[int, Events]:
        """Runs a client; returns its exit code and connections."""
        log = self.log.with_name(f"client-{time.monotonic_ns()}.jsonl")
        argv = [str(self.programs / "client"), "--connect", f"127.0.0.1:{port or self.port}", "--events", str(log)]
        argv += ["--server-name", "server", "--ca", str(self.identity / "ca.pem")]
        # an option given again has the last value
        argv += ["--bytes", "1", "--timeout", "20", *options]
        done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False)
        return done.returncode, connections(read(log))


Serve = Callable[..., Server]


@pytest.fixture
def serve(programs: Callable[[str], Path], made: Callable[[str], Path], tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(*options: str, flavour: str = "stock", signature: str = "ecdsa-p-256") -> Server:
        log = tmp_path / f"server-{len(servers)}.jsonl"
        server = Server(programs(flavour), made(signature), log, "--signature", signature, *options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


ECDSA = ("--signature", "ecdsa-p-256")


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_stock_build_says_what_its_boringssl_has(programs: Callable[[str], Path], role: str) -> None:
    said = making.describe(programs("stock") / role)
    assert said["groups"] == STOCK_GROUPS
    assert set(STOCK_SIGNATURES) <= set(said["signatures"])
    assert said["version"] == making.version_of(PROJECT, "ngtcp2")
    assert said["congestion_controls"] == ["cubic", "reno", "bbr"]
    assert said["retry"]
    assert said["initial_size"]


@pytest.mark.parametrize(("flavour", "name"), CASES_GROUPS)
def test_a_group_is_negotiated(serve: Serve, flavour: str, name: str) -> None:
    server = serve("--group", name, flavour=flavour)
    code, client = server.download(*ECDSA, "--group", name, "--connections", "2")
    assert code == 0, client
    for connection in client + server.stop():
        assert connection["group"] == GROUPS[name].tls_name
        assert connection["hello_retry_request"] is False
        assert connection["retry"] is False
        assert connection["t_handshake_complete"] <= connection["t_handshake_confirmed"] <= connection["t_close"]


@pytest.mark.parametrize(("flavour", "name"), CASES_SIGNATURES)
def test_a_signature_is_verified(serve: Serve, flavour: str, name: str) -> None:
    server = serve(flavour=flavour, signature=name)
    code, client = server.download("--signature", name)
    assert code == 0, client
    for connection in client + server.stop():
        assert connection["signature"] == SIGNATURES[name].tls_name


@pytest.mark.parametrize(
    ("served", "asked"),
    [
        (["--group", "p-256"], []),
        ([], ["--cipher", "aes-256-gcm"]),
        ([], ["--signature", "ed25519"]),
    ],
)
def test_nothing_in_common_is_a_tls_alert_on_both_sides(serve: Serve, served: list[str], asked: list[str]) -> None:
    server = serve(*served)
    code, client = server.download(*ECDSA, *asked)
    assert code == 1
    assert client[0]["error"] == "closed by the peer: TLS alert 40 (handshake failure)"
    assert client[0]["t_handshake_complete"] is None
    code, _ = server.download(*ECDSA, *served)
    assert code == 0, "a failed handshake must not end the server"
    refused, good = server.stop()
    assert refused["error"] == "closed by this side: TLS alert 40 (handshake failure)"
    assert good["ok"]


def test_a_wrong_ca_is_a_tls_alert_on_both_sides(serve: Serve, made: Callable[[str], Path]) -> None:
    server = serve()
    code, client = server.download(*ECDSA, "--ca", str(made("ed25519") / "ca.pem"))
    assert code == 1
    # all trust anchors have one name, so that this one is found, but did not sign
    alert = "TLS alert 51 (decrypt error)"
    assert client[0]["error"] == f"closed by this side: {alert}: certificate signature failure"
    assert server.stop()[0]["error"] == f"closed by the peer: {alert}"


def oversized(target: Path, size: int) -> Path:
    """A certificate with an extension of this size, its key and its CA."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server")}

    def certificate(name: str, extension: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            keys[name].public_key(),
            x509.random_serial_number(),
            start,
            start + datetime.timedelta(days=2),
        )
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("server")]), critical=False)
        made = builder.add_extension(extension, critical=False).sign(keys["ca"], hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)

    target.mkdir()
    (target / "ca.pem").write_bytes(certificate("ca", x509.BasicConstraints(ca=True, path_length=0)))
    filler = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.9999.0"), bytes(size))
    (target / "server.pem").write_bytes(certificate("server", filler))
    key = keys["server"].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (target / "server.key").write_bytes(key)
    return target


# ngtcp2's limit in RFC 9000's words (section 20.1: CRYPTO_BUFFER_EXCEEDED); without it BoringSSL's
NGTCP2_LIMIT = ("ERR_CRYPTO_BUFFER_EXCEEDED", "QUIC error 0xd")
BORINGSSL_LIMIT = ("TLS: [EXCESSIVE_MESSAGE_SIZE]", "QUIC error 0x1")
SIZES = [("stock", 50_000, None), ("stock", 70_000, NGTCP2_LIMIT)]
SIZES += [("pq", 100_000, None), ("pq", 300_000, BORINGSSL_LIMIT)] if PQ else []


@pytest.mark.parametrize(("flavour", "size", "errors"), SIZES)
def test_a_certificate_may_be_large_but_not_too_large(
    programs: Callable[[str], Path], tmp_path: Path, flavour: str, size: int, errors: tuple[str, str] | None
) -> None:
    identity = oversized(tmp_path / "identity", size)
    server = Server(programs(flavour), identity, tmp_path / "server.jsonl", *ECDSA)
    code, client = server.download(*ECDSA)
    served = server.stop()
    assert served[0]["ok"] is client[0]["ok"] is (errors is None)
    if errors is None:
        assert code == 0
        assert served[0]["handshake_bytes_sent"] > size
    else:
        assert code == 1
        assert client[0]["error"] == f"closed by this side: {errors[0]}"
        assert served[0]["error"] == f"closed by the peer: {errors[1]}"


@pytest.mark.parametrize("size", [1200, 1400])
def test_a_retry_costs_each_side_one_more_datagram(serve: Serve, size: int) -> None:
    common = ("--initial-size", str(size))
    bytes_sent = {}
    for retry in ("off", "on"):
        server = serve("--retry", retry, *common)
        code, client = server.download(*ECDSA, *common, "--connections", "3")
        assert code == 0, client
        for mine, other in zip(client, server.stop(), strict=True):
            assert mine["retry"] is other["retry"] is (retry == "on")
            # every datagram of the client has an Initial packet and the size asked for, the last one too
            assert mine["handshake_packets_sent"] == (2 if retry == "on" else 1)
            assert mine["handshake_bytes_sent"] == size * mine["handshake_packets_sent"]
            assert other["handshake_bytes_received"] == size * other["handshake_packets_received"]
            assert other["handshake_packets_received"] == mine["handshake_packets_sent"] + 1
            assert other["handshake_bytes_sent"] == mine["handshake_bytes_received"]
            bytes_sent[retry] = other["handshake_bytes_sent"]
    assert bytes_sent["on"] > bytes_sent["off"]


def test_a_token_of_another_server_gets_a_retry(serve: Serve) -> None:
    """A token that is not this server's own is not worth an error: the client is validated again."""
    first, second = serve("--retry", "on"), serve("--retry", "on")
    moved = [first.port]
    relay = Relay(lambda datagrams: second.port if datagrams > 1 else moved[0])
    with relay:
        code, client = first.download(*ECDSA, "--timeout", "2", port=relay.port)
    # the second server's Retry is dropped by a client that follows RFC 9000, 17.2.5.2, which takes only one
    assert code == 1
    assert client[0]["retry"] is True
    assert first.stop() == second.stop() == []


class Relay:
    """Passes datagrams between one client and the port that `choose` names for the client's nth datagram."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.choose = choose
        self.seen: list[bytes] = []
        self.client, self.server = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for end in (self.client, self.server):
            end.bind(("127.0.0.1", 0))
        self.port: int = self.client.getsockname()[1]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        peer = None
        while not self.over.is_set():
            for end in select.select([self.client, self.server], [], [], 0.05)[0]:
                datagram, sender = end.recvfrom(65535)
                if end is self.client:
                    peer = sender
                    self.seen.append(datagram)
                    self.server.sendto(datagram, ("127.0.0.1", self.choose(len(self.seen))))
                elif peer:
                    self.client.sendto(datagram, peer)

    def __enter__(self) -> Relay:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.client.close()
        self.server.close()


def test_a_late_copy_of_a_client_hello_is_no_new_connection(serve: Serve) -> None:
    server = serve()
    with Relay(lambda _: server.port) as relay:
        code, client = server.download(*ECDSA, "--gso", "off", "--gro", "off", port=relay.port)
        assert code == 0, client
        relay.server.sendto(relay.seen[0], ("127.0.0.1", server.port))
        # a connection that begins after the copy, for the server to have read it
        assert server.download(*ECDSA)[0] == 0
    assert [connection["ok"] for connection in server.stop()] == [True, True]


def test_other_versions_are_answered_and_garbage_is_not(serve: Serve) -> None:
    server = serve()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", server.port))
        client.settimeout(10)
        client.send(b"")
        client.send(b"\x40" * 30)
        client.send(b"\xc0\0\0\0\1" + bytes(1300))
        client.send(b"\xc0\x0a\x0a\x0a\x0a\x08destined\x06source" + bytes(1200))
        answer = client.recv(2000)
    # RFC 9000, 17.2.1: version 0, the IDs exchanged, versions
    assert answer[0] & 0x80
    assert answer[1:] == b"\0\0\0\0\x06source\x08destined\0\0\0\1"
    assert server.download(*ECDSA)[0] == 0
    assert len(server.stop()) == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--congestion-control", "reno"),
        ("--congestion-control", "bbr"),
        ("--udp-payload", "1200"),
        ("--udp-payload", "65507"),
        ("--window", "65536"),
    ],
)
def test_a_download_is_whole(serve: Serve, options: tuple[str, ...]) -> None:
    size = 5_000_001
    server = serve(*options)
    code, client = server.download(*ECDSA, *options, "--bytes", str(size))
    assert code == 0, client
    assert client[0]["bytes_received"] == server.stop()[0]["bytes_sent"] == size


@pytest.mark.parametrize("retry", ["off", "on"])
def test_memory_does_not_grow_with_connections(serve: Serve, retry: str) -> None:
    server = serve("--retry", retry)
    assert server.download(*ECDSA, "--connections", "200")[0] == 0
    before = server.resident_kib()
    assert server.download(*ECDSA, "--connections", "1000")[0] == 0
    # less than one kilobyte for each connection, and a page or two that nobody has touched before
    assert server.resident_kib() - before < 600
    assert len(server.stop()) == 1200


@pytest.mark.skipif(not PQ, reason="no flavour pq is configured")
def test_primitives_of_every_algorithm_are_timed(
    programs: Callable[[str], Path], made: Callable[[str], Path], tmp_path: Path
) -> None:
    groups = ["x25519", "kyber768", "p-256-kyber512", "x25519-mlkem768", "x448"]
    signatures = ["rsa-2048", "ecdsa-p-256", "ed25519", "dilithium3", "mldsa65", "falcon-512"]
    log = tmp_path / "primitives.jsonl"
    argv = [str(programs("pq") / "primitives"), "--events", str(log), "--milliseconds", "1"]
    argv += [part for name in groups for part in ("--group", name)]
    argv += [part for name in signatures for part in ("--signature", f"{name}={made(name)}")]
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    timed: dict[str, Events] = {}
    for event in read(log):
        if event["event"] == "primitive":
            timed.setdefault(event["name"], []).append(event)
    assert list(timed) == [name for name in groups if name != "x448"] + signatures
    assert [event["name"] for event in read(log) if event["event"] == "unsupported"] == ["x448"]
    for name, events in timed.items():
        expected = ["keygen", "encapsulate", "decapsulate"] if name in GROUPS else ["sign", "verify", "verify-chain"]
        assert [event["operation"] for event in events] == expected
        assert all(len(event["samples_ns"]) >= 5 for event in events)
    # RFC 7748; Kyber768's public key and ciphertext; FIPS 204, table 2
    assert [event["bytes"] for event in timed["x25519"]] == [32, 32, None]
    assert [event["bytes"] for event in timed["kyber768"]] == [1184, 1088, None]
    assert timed["mldsa65"][0]["bytes"] == 3309
