"""quiche over loopback: groups and signatures of its BoringSSL, how handshakes fail, Retry, sizes, and late packets."""

from __future__ import annotations

import datetime
import json
import os
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
from quicbed.measure import certificates
from quicbed.measure.certificates import Tools
from quicbed.wire import quicwire

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
GROUPS = {group.name: group for group in TABLE.groups}
SIGNATURES = {signature.name: signature for signature in TABLE.signatures}
# BoringSSL has no X448
PQ_GROUPS = [name for name in GROUPS if name != "x448"]
# what BoringSSL has without patches
STOCK_GROUPS = ["x25519", "p-256", "p-384", "p-521", "mlkem1024", "x25519-mlkem768"]
STOCK_SIGNATURES = [name for name, signature in SIGNATURES.items() if not signature.liboqs]
ECDSA = ("--signature", "ecdsa-p-256")

# a build may be part of a test
pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]

Events = list[dict[str, Any]]
Programs = Callable[[str], Path]
Made = Callable[[str], Path]


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Programs:
    """The programs of a flavour, built unless they are there."""
    return lambda flavour: build_of("quiche", flavour) / "bin"


def make_certificates(target: Path, name: str, log: Path) -> None:
    signature = SIGNATURES[name]
    tools = Tools.provide(PROJECT, jobs=os.cpu_count() or 1, log=log) if signature.liboqs else None
    certificates.make(target, signature, tools)


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
            if self.process.poll() is not None:
                raise RuntimeError(self.process.communicate()[1])
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.01)

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def stop(self) -> Events:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(5) == 0
        return connections(read(self.log))

    def client(self, *options: str, port: int | None = None) -> tuple[int, Events]:
        """Runs a client; returns its exit code and events."""
        log = self.log.with_name(f"client-{time.monotonic_ns()}.jsonl")
        argv = [str(self.programs / "client"), "--connect", f"127.0.0.1:{port or self.port}", "--events", str(log)]
        argv += ["--server-name", "server", "--ca", str(self.identity / "ca.pem")]
        # an option given again has the last value
        argv += ["--bytes", "1", "--timeout", "20", *options]
        done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False)
        return done.returncode, read(log)

    def download(self, *options: str, port: int | None = None) -> tuple[int, Events]:
        """Runs a client; returns its exit code and connections."""
        code, events = self.client(*options, port=port)
        return code, connections(events)


Serve = Callable[..., Server]


@pytest.fixture
def serve(programs: Programs, made: Made, tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(
        *options: str, flavour: str = "pq", signature: str = "ecdsa-p-256", identity: Path | None = None
    ) -> Server:
        log = tmp_path / f"server-{len(servers)}.jsonl"
        server = Server(programs(flavour), identity or made(signature), log, "--signature", signature, *options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("role", ["client", "server"])
def test_builds_say_what_their_boringssl_has(programs: Programs, role: str) -> None:
    stock, pq = (making.describe(programs(flavour) / role) for flavour in ("stock", "pq"))
    assert stock["groups"] == STOCK_GROUPS
    assert set(STOCK_SIGNATURES) <= set(stock["signatures"])
    assert pq["groups"] == PQ_GROUPS
    assert pq["signatures"] == list(SIGNATURES)
    assert (stock["retry"], pq["retry"]) == (True, True)
    assert (stock["initial_size"], pq["initial_size"]) == (False, True)


@pytest.mark.parametrize(
    ("flavour", "name"), [*(("stock", name) for name in STOCK_GROUPS), *(("pq", name) for name in PQ_GROUPS)]
)
def test_a_group_is_negotiated(serve: Serve, flavour: str, name: str) -> None:
    server = serve("--group", name, flavour=flavour)
    code, client = server.download(*ECDSA, "--group", name, "--connections", "2")
    assert code == 0, client
    served = server.stop()
    assert len(client) == len(served) == 2
    for connection in client + served:
        assert connection["group"] == GROUPS[name].tls_name
        assert connection["hello_retry_request"] is False
        assert connection["retry"] is False
    # only the patched quiche tells a client when the handshake is confirmed
    for connection in served if flavour == "stock" else client + served:
        assert connection["t_handshake_complete"] <= connection["t_handshake_confirmed"] <= connection["t_close"]
    assert {connection["t_handshake_confirmed"] for connection in client if flavour == "stock"} <= {None}


@pytest.mark.parametrize(
    ("flavour", "name"), [*(("stock", name) for name in STOCK_SIGNATURES), *(("pq", name) for name in SIGNATURES)]
)
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
        (["--group", "kyber768"], ["--group", "p-384-kyber768"]),
        ([], ["--cipher", "aes-256-gcm"]),
        ([], ["--signature", "falcon-512"]),
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


@pytest.mark.parametrize("name", ["ecdsa-p-256", "falcon-512", "mldsa44"])
def test_certificates_that_cannot_be_verified_are_tls_alerts_on_both_sides(serve: Serve, made: Made, name: str) -> None:
    server = serve(signature=name)
    other = "ed25519"
    for options, alert, reason in (
        # all trust anchors have one name, so that this one is found, but did not sign
        (["--ca", str(made(other) / "ca.pem")], "51 (decrypt error)", "certificate signature failure"),
        (["--server-name", "other"], "42 (bad certificate)", "Hostname mismatch"),
    ):
        code, client = server.download("--signature", name, *options)
        assert code == 1
        assert client[0]["error"] == f"closed by this side: TLS alert {alert}: {reason}"
        assert client[0]["t_handshake_complete"] is None
    assert server.download("--signature", name)[0] == 0
    errors = [connection["error"] for connection in server.stop()]
    alerts = ("51 (decrypt error)", "42 (bad certificate)")
    assert errors == [*(f"closed by the peer: TLS alert {alert}" for alert in alerts), None]


@pytest.mark.parametrize("name", ["rsa-1024", "ecdsa-p-256", "falcon-512", "mldsa44", "sphincs-sha2-128f"])
def test_a_key_of_another_certificate_ends_the_server_before_it_serves(
    programs: Programs, made: Made, tmp_path: Path, name: str
) -> None:
    identity = tmp_path / "identity"
    make_certificates(identity, name, tmp_path / "build.log")
    (identity / "server.pem").write_bytes((made(name) / "server.pem").read_bytes())
    with pytest.raises(RuntimeError, match="KEY_VALUES_MISMATCH") as failed:
        Server(programs("pq"), identity, tmp_path / "server.jsonl", "--signature", name)
    line = str(failed.value).rstrip("\n")
    assert "\n" not in line
    assert line.startswith(f"--private-key {identity / 'server.key'}: ")


def write_certificates(target: Path, *, days: int = 1, filler: int = 0) -> Path:
    """A certificate that ends in so many days, with an extension of `filler` bytes, its key and its CA."""
    now = datetime.datetime.now(datetime.UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server")}
    extensions: dict[str, list[x509.ExtensionType]] = {
        "ca": [x509.BasicConstraints(ca=True, path_length=0)],
        "server": [
            x509.SubjectAlternativeName([x509.DNSName("server")]),
            x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.9999.0"), bytes(filler)),
        ],
    }
    target.mkdir()
    for name, last in (("ca", 1), ("server", days)):
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            keys[name].public_key(),
            x509.random_serial_number(),
            now - datetime.timedelta(days=10),
            now + datetime.timedelta(days=last),
        )
        for extension in extensions[name]:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(keys["ca"], hashes.SHA256())
        (target / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key = keys["server"].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (target / "server.key").write_bytes(key)
    return target


def test_an_expired_certificate_is_a_tls_alert_on_both_sides(serve: Serve, tmp_path: Path) -> None:
    server = serve(identity=write_certificates(tmp_path / "identity", days=-1))
    code, client = server.download(*ECDSA)
    assert code == 1
    alert = "TLS alert 45 (certificate expired)"
    assert client[0]["error"] == f"closed by this side: {alert}: certificate has expired"
    assert server.stop()[0]["error"] == f"closed by the peer: {alert}"


# quiche's limit, without it BoringSSL's; and CRYPTO_BUFFER_EXCEEDED, PROTOCOL_VIOLATION (RFC 9000, section 20.1)
QUICHE_LIMIT = ("quiche: CryptoBufferExceeded", "QUIC error 0xd")
BORINGSSL_LIMIT = ("TLS: [EXCESSIVE_MESSAGE_SIZE]", "QUIC error 0xa")


@pytest.mark.parametrize(
    ("flavour", "size", "errors"),
    [
        ("stock", 50_000, None),
        ("stock", 70_000, QUICHE_LIMIT),
        ("pq", 100_000, None),
        ("pq", 250_000, BORINGSSL_LIMIT),
    ],
)
def test_a_certificate_may_be_large_but_not_too_large(
    serve: Serve, tmp_path: Path, flavour: str, size: int, errors: tuple[str, str] | None
) -> None:
    server = serve(flavour=flavour, identity=write_certificates(tmp_path / "identity", filler=size))
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
@pytest.mark.parametrize(("group", "datagrams"), [("x25519", 1), ("bike-l1", 2)])
def test_a_retry_makes_the_client_send_its_hello_again(serve: Serve, size: int, group: str, datagrams: int) -> None:
    common = ("--initial-size", str(size), "--group", group)
    for retry in ("off", "on"):
        server = serve("--retry", retry, *common)
        code, client = server.download(*ECDSA, *common, "--connections", "3")
        assert code == 0, client
        for mine, other in zip(client, server.stop(), strict=True):
            assert mine["retry"] is other["retry"] is (retry == "on")
            hellos = 2 * datagrams if retry == "on" else datagrams
            assert mine["handshake_packets_sent"] >= hellos
            assert mine["handshake_bytes_sent"] >= hellos * size
            if group == "x25519":
                # the server's first flight is one datagram, so that there is nothing to acknowledge before
                assert mine["handshake_packets_sent"] == hellos
                assert mine["handshake_bytes_sent"] == hellos * size
                assert other["handshake_packets_received"] == hellos + 1
            assert other["handshake_bytes_sent"] >= mine["handshake_bytes_received"] > 0


def test_an_unpatched_quiche_has_no_other_initial_size(serve: Serve) -> None:
    code, events = serve(flavour="stock").client(*ECDSA, "--initial-size", "1400")
    assert code == 127
    (reason,) = [event["reason"] for event in events if event["event"] == "unsupported"]
    assert "MIN_CLIENT_INITIAL_LEN" in reason


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


def client_hello_random(datagram: bytes) -> bytes:
    """The random of the ClientHello that starts in a client's first Initial packet."""
    (packet, *_) = quicwire.parse_datagram(datagram).packets
    _, payload = quicwire.unprotect(packet, quicwire.initial_keys(packet.destination_cid).client)
    # CRYPTO frame (RFC 9000, 19.6) at offset 0 with a length of two bytes; then type, length and version of the message
    assert payload[:2] == b"\x06\0"
    hello = payload[4:]
    assert hello[0] == 1
    return hello[6:38]


def test_a_retry_gets_the_same_client_hello_again(serve: Serve) -> None:
    """RFC 9000, section 17.2.5.2; quiche without the patch makes a new one."""
    server = serve("--retry", "on")
    with Relay(lambda _: server.port) as relay:
        code, client = server.download(*ECDSA, "--gso", "off", "--gro", "off", port=relay.port)
    assert code == 0, client
    assert client_hello_random(relay.seen[0]) == client_hello_random(relay.seen[1])


def test_a_token_of_another_server_is_worth_nothing(serve: Serve) -> None:
    first, second = serve("--retry", "on"), serve("--retry", "on")
    with Relay(lambda datagrams: second.port if datagrams > 1 else first.port) as relay:
        code, _ = first.download(*ECDSA, "--timeout", "2", port=relay.port)
    # the second server answers with a Retry of its own, of which a client takes only one (RFC 9000, 17.2.5.2)
    assert code == 1
    assert first.stop() == second.stop() == []


@pytest.mark.parametrize("flavour", ["stock", "pq"])
def test_a_late_copy_of_a_client_hello_is_no_new_connection(serve: Serve, flavour: str) -> None:
    server = serve(flavour=flavour)
    with Relay(lambda _: server.port) as relay:
        code, client = server.download(*ECDSA, "--gso", "off", "--gro", "off", port=relay.port)
        assert code == 0, client
        relay.server.sendto(relay.seen[0], ("127.0.0.1", server.port))
        # a connection that begins after the copy, for the server to have read it
        assert server.download(*ECDSA)[0] == 0
    assert [connection["ok"] for connection in server.stop()] == [True, True]


@pytest.mark.parametrize("retry", ["off", "on"])
def test_other_versions_are_answered_and_garbage_is_not(serve: Serve, retry: str) -> None:
    server = serve("--retry", retry)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", server.port))
        client.settimeout(10)
        client.send(b"")
        client.send(b"\x40" * 30)
        if retry == "off":
            client.send(b"\xc0\0\0\0\1" + bytes(1300))
        client.send(b"\xc0\x0a\x0a\x0a\x0a\x08destined\x06source" + bytes(1200))
        answer = client.recv(2000)
    # RFC 9000, 17.2.1: version 0, the IDs exchanged, versions
    assert answer[0] & 0x80
    assert answer[1:] == b"\0\0\0\0\x06source\x08destined\0\0\0\1"
    assert server.download(*ECDSA)[0] == 0
    assert server.stop()[-1]["ok"]


@pytest.mark.parametrize("retry", ["off", "on"])
def test_memory_does_not_grow_with_connections(serve: Serve, retry: str) -> None:
    server = serve("--retry", retry)
    assert server.download(*ECDSA, "--connections", "200")[0] == 0
    before = server.resident_kib()
    assert server.download(*ECDSA, "--connections", "1000")[0] == 0
    # less than one kilobyte for each connection, and a page or two that nobody has touched before
    assert server.resident_kib() - before < 600
    assert len(server.stop()) == 1200


def test_both_ends_write_the_secrets_of_every_connection(serve: Serve, tmp_path: Path) -> None:
    logs = {role: tmp_path / f"{role}.keys" for role in ("client", "server")}
    server = serve("--key-log", str(logs["server"]))
    assert server.download(*ECDSA, "--connections", "3", "--key-log", str(logs["client"]))[0] == 0
    server.stop()
    secrets = {role: set(log.read_text().splitlines()) for role, log in logs.items()}
    assert secrets["client"] == secrets["server"]
    labels = [line.split()[0] for line in secrets["client"]]
    for side in ("CLIENT", "SERVER"):
        for level in ("HANDSHAKE_TRAFFIC_SECRET", "TRAFFIC_SECRET_0"):
            assert labels.count(f"{side}_{level}") == 3


def test_primitives_of_every_kind_are_timed(programs: Programs, made: Made, tmp_path: Path) -> None:
    groups = ["x25519", "kyber768", "p-256-kyber512", "x25519-mlkem768", "x448"]
    signatures = ["rsa-2048", "ecdsa-p-256", "ed25519", "dilithium3", "mldsa65", "falcon-512"]
    log = tmp_path / "primitives.jsonl"
    argv = [str(programs("pq") / "primitives"), "--events", str(log), "--milliseconds", "1"]
    argv += [part for name in groups for part in ("--group", name)]
    argv += [part for name in signatures for part in ("--signature", f"{name}={made(name)}")]
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    events = read(log)
    assert events[0]["library"] == "quiche"
    timed: dict[str, Events] = {}
    for event in events:
        if event["event"] == "primitive":
            timed.setdefault(event["name"], []).append(event)
    assert list(timed) == [name for name in groups if name != "x448"] + signatures
    assert [event["name"] for event in events if event["event"] == "unsupported"] == ["x448"]
    for name, operations in timed.items():
        expected = ["keygen", "encapsulate", "decapsulate"] if name in GROUPS else ["sign", "verify", "verify-chain"]
        assert [event["operation"] for event in operations] == expected
        assert all(len(event["samples_ns"]) >= 5 for event in operations)
    assert {event["implementation"] for event in timed["x25519-mlkem768"] + timed["mldsa65"]} == {"BoringSSL"}
    assert {event["implementation"].split()[0] for event in timed["kyber768"] + timed["dilithium3"]} == {"liboqs"}
