"""Flavour pq of quinn: handshakes with every group and signature over loopback, how they fail, and the primitives."""

from __future__ import annotations

import datetime
import json
import shutil
import signal
import socket
import subprocess
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

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
GROUPS = {group.name: group for group in TABLE.groups if group.name != "x448"}
SIGNATURES = {signature.name: signature for signature in TABLE.signatures}
NOW = datetime.datetime.now(datetime.UTC)

# a build may be part of a test
pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]

Events = list[dict[str, Any]]


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Path:
    """The build's programs, built unless they are there."""
    return build_of("quinn", "pq") / "bin"


def read(log: Path) -> Events:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def connections(events: Events) -> Events:
    return [event for event in events if event["event"] == "connection"]


class Server:
    """A server on loopback."""

    def __init__(self, programs: Path, identity: Path, log: Path, *options: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.log = log
        argv = [str(programs / "server"), "--listen", self.address, "--events", str(log), "--content", "1"]
        argv += ["--certificate", str(identity / "server.pem"), "--private-key", str(identity / "server.key")]
        self.process = subprocess.Popen([*argv, *options], stderr=subprocess.PIPE, text=True)

    def wait_for(self, event: str, count: int = 1) -> None:
        deadline = time.monotonic() + 20
        while not (self.log.exists() and self.log.read_text().count(f'{{"event":"{event}"') >= count):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, f"the server wrote no {event}"
            time.sleep(0.01)

    def stop(self, count: int) -> Events:
        """End the server once it has told of `count` connections; returns its events."""
        self.wait_for("connection", count)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(5) == 0
        return read(self.log)


@pytest.fixture
def serve(programs: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(identity: Path, *options: str) -> Server:
        server = Server(programs, identity, tmp_path / f"server-{len(servers)}.jsonl", *options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.fixture
def download(programs: Path, tmp_path: Path) -> Callable[..., tuple[int, Events]]:
    def run(server: Server, ca: Path, *options: str) -> tuple[int, Events]:
        log = tmp_path / f"client-{time.monotonic_ns()}.jsonl"
        argv = [str(programs / "client"), "--connect", server.address, "--server-name", "server", "--ca", str(ca)]
        argv += ["--bytes", "1", "--timeout", "20", "--events", str(log), *options]
        done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False)
        return done.returncode, connections(read(log))

    return run


def algorithm(group: str, signature: str) -> list[str]:
    return ["--group", group, "--signature", signature]


def test_all_of_the_table_is_there_but_x448(programs: Path) -> None:
    for program in ("client", "server"):
        said = making.describe(programs / program)
        assert said["groups"] == list(GROUPS)
        assert said["signatures"] == list(SIGNATURES)
        assert said["flavour_features"] == ["pq"]


def exchange(
    serve: Callable[..., Server], download: Callable[..., tuple[int, Events]], identity: Path, *options: str
) -> tuple[Events, Events]:
    """Two connections, as the client and the server tell them."""
    server = serve(identity, *options)
    server.wait_for("ready")
    shared = [part for part in options if part not in ("--retry", "on")]
    code, client = download(server, identity / "ca.pem", *shared, "--connections", "2")
    assert code == 0, client
    assert len(client) == 2
    return client, connections(server.stop(2))


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_is_negotiated(
    serve: Callable[..., Server],
    download: Callable[..., tuple[int, Events]],
    made: Callable[[str], Path],
    name: str,
) -> None:
    client, server = exchange(serve, download, made("ecdsa-p-256"), *algorithm(name, "ecdsa-p-256"))
    for connection in client + server:
        assert connection["group"] == GROUPS[name].tls_name
        assert connection["hello_retry_request"] is False
        assert connection["retry"] is False
        assert connection["t_handshake_complete"] <= connection["t_handshake_confirmed"] <= connection["t_close"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_verified(
    serve: Callable[..., Server],
    download: Callable[..., tuple[int, Events]],
    made: Callable[[str], Path],
    name: str,
) -> None:
    client, server = exchange(serve, download, made(name), *algorithm("x25519", name))
    for connection in client + server:
        assert connection["signature"] == SIGNATURES[name].tls_name


def test_a_retry_and_the_initial_size_hold_for_large_messages(
    serve: Callable[..., Server], download: Callable[..., tuple[int, Events]], made: Callable[[str], Path]
) -> None:
    identity = made("sphincs-sha2-128f")
    options = [*algorithm("p-521-bike-l5", "sphincs-sha2-128f"), "--initial-size", "1300"]
    client, server = exchange(serve, download, identity, *options, "--retry", "on")
    for connection in client + server:
        assert connection["retry"] is True
        assert connection["handshake_bytes_sent"] <= 1300 * connection["handshake_packets_sent"]
    # a key share of more than 5000 bytes takes five datagrams, and again after the Retry packet
    assert all(connection["handshake_packets_sent"] >= 10 for connection in client)


def test_a_failed_handshake_tells_the_reason_and_the_server_goes_on(
    serve: Callable[..., Server],
    download: Callable[..., tuple[int, Events]],
    made: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    identity = made("dilithium3")
    options = algorithm("kyber768", "dilithium3")
    server = serve(identity, *options)
    server.wait_for("ready")
    other = tmp_path / "other"
    certificates.make(other, SIGNATURES["dilithium3"], Tools.provide(PROJECT, jobs=1, log=tmp_path / "build.log"))
    # with their alerts: handshake_failure, twice, and decrypt_error (RFC 8446, section 6.2)
    failures = (
        (identity, algorithm("bike-l1", "dilithium3"), "error 40: ", "NoKxGroupsInCommon"),
        (identity, algorithm("kyber768", "falcon-512"), "error 40: ", "NoSignatureSchemesInCommon"),
        (other, options, "error 51: ", "BadSignature"),
    )
    for ca, chosen, alert, reason in failures:
        code, client = download(server, ca / "ca.pem", *chosen)
        assert code == 1
        assert client[0]["ok"] is False
        assert alert in client[0]["error"]
        assert reason in client[0]["error"]
        assert "\n" not in client[0]["error"]
    code, _ = download(server, identity / "ca.pem", *options)
    assert code == 0
    told = connections(server.stop(4))
    assert [connection["ok"] for connection in told] == [False, False, False, True]
    for connection, (_, _, alert, reason) in zip(told[:3], failures, strict=True):
        assert alert in connection["error"]
        assert reason in connection["error"]


def test_a_key_has_to_match(
    serve: Callable[..., Server], made: Callable[[str], Path], programs: Path, tmp_path: Path
) -> None:
    for name, key, reason in (
        ("dilithium3", "falcon-512", "no private key of dilithium3: it is a key of another algorithm"),
        ("ecdsa-p-256", "dilithium3", "no private key of ecdsa-p-256"),
        ("rsa-2048", "rsa-4096", "no private key of rsa-2048: it has 4096 bits"),
    ):
        identity = tmp_path / f"{name}-{key}"
        identity.mkdir()
        shutil.copy2(made(name) / "server.pem", identity)
        shutil.copy2(made(key) / "server.key", identity)
        server = serve(identity, "--signature", name)
        assert server.process.wait(20) == 1
        [error] = [event["reason"] for event in read(server.log) if event["event"] == "error"]
        assert reason in error


@pytest.mark.parametrize("name", ["mldsa44", "falcon-512", "rsa-1024", "ed25519"])
def test_a_key_of_the_same_algorithm_has_to_match_too(
    serve: Callable[..., Server], made: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    other = tmp_path / "other"
    signature = SIGNATURES[name]
    tools = Tools.provide(PROJECT, jobs=1, log=tmp_path / "build.log") if signature.liboqs else None
    certificates.make(other, signature, tools)
    identity = tmp_path / "identity"
    identity.mkdir()
    shutil.copy2(made(name) / "server.pem", identity)
    shutil.copy2(other / "server.key", identity)
    server = serve(identity, "--signature", name)
    assert server.process.wait(20) == 1
    [error] = [event["reason"] for event in read(server.log) if event["event"] == "error"]
    assert "does not match the certificate" in error


def write_certificates(target: Path, *, end: datetime.datetime, padding: int = 0) -> None:
    """A CA and a server certificate of ECDSA P-256, valid until `end`, with an extension of `padding` bytes."""
    target.mkdir()
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    for file, subject, owner, is_ca in (("ca.pem", ca, authority, True), ("server.pem", server, key, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca)
            .public_key(owner.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(days=20))
            .not_valid_after(NOW + datetime.timedelta(days=1) if is_ca else end)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if not is_ca:
            names = x509.SubjectAlternativeName([x509.DNSName("server")])
            unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.9999.1"), bytes(padding))
            builder = builder.add_extension(names, critical=False).add_extension(unknown, critical=False)
        certificate = builder.sign(authority, hashes.SHA256())
        (target / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (target / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@pytest.mark.parametrize(
    ("days", "padding", "copies", "reason"),
    [
        (-1, 0, 1, "certificate expired"),
        (1, 60_000, 1, None),
        # rustls takes handshake messages of 65535 bytes (MAX_HANDSHAKE_SIZE)
        (1, 40_000, 2, "HandshakePayloadTooLarge"),
    ],
)
def test_certificates_that_are_expired_or_too_large_are_refused(
    serve: Callable[..., Server],
    download: Callable[..., tuple[int, Events]],
    tmp_path: Path,
    days: int,
    padding: int,
    copies: int,
    reason: str | None,
) -> None:
    identity = tmp_path / "identity"
    write_certificates(identity, end=NOW + datetime.timedelta(days=days), padding=padding)
    chain = identity / "server.pem"
    chain.write_bytes(copies * chain.read_bytes())
    server = serve(identity, "--signature", "ecdsa-p-256")
    server.wait_for("ready")
    code, [client] = download(server, identity / "ca.pem", "--signature", "ecdsa-p-256")
    [told] = connections(server.stop(1))
    assert code == (1 if reason else 0)
    for connection in (client, told):
        assert connection["ok"] is (reason is None)
        assert (reason or "") in (connection["error"] or "")


def test_a_certificate_that_rustls_cannot_read_is_refused_before_serving(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    identity = tmp_path / "identity"
    # rustls-webpki reads no element of more than 65535 bytes (TWO_BYTE_DER_SIZE)
    write_certificates(identity, end=NOW + datetime.timedelta(days=1), padding=66_000)
    server = serve(identity, "--signature", "ecdsa-p-256")
    assert server.process.wait(20) == 1
    [error] = [event["reason"] for event in read(server.log) if event["event"] == "error"]
    assert str(identity / "server.pem") in error
    assert "rustls cannot read the certificate" in error


def primitives(programs: Path, log: Path, *options: str) -> tuple[int, Events]:
    argv = [str(programs / "primitives"), "--events", str(log), "--milliseconds", "1", *options]
    done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False)
    return done.returncode, read(log)


def test_primitives_are_timed(programs: Path, made: Callable[[str], Path], tmp_path: Path) -> None:
    # sizes: FIPS 203, table 3 with points of 32 and 65 bytes; Table III of A Quantum of QUIC
    sizes: dict[str, list[int | None]] = {
        "x25519": [32, 32, None],
        "p-521": [133, 133, None],
        "kyber512": [800, 768, None],
        "x25519-mlkem768": [1184 + 32, 1088 + 32, None],
        "p-256-mlkem768": [1184 + 65, 1088 + 65, None],
    }
    signatures: dict[str, int] = {"rsa-1024": 128, "rsa-2048": 256, "falcon-512": 666, "dilithium3": 3293}
    options = [part for name in [*sizes, "x448"] for part in ("--group", name)]
    for name in signatures:
        options += ["--signature", f"{name}={made(name)}"]
    code, events = primitives(programs, tmp_path / "events.jsonl", *options)
    assert code == 0
    assert (events[0]["event"], events[0]["role"]) == ("start", "primitives")
    assert events[-1]["event"] == "end"
    assert [event["name"] for event in events if event["event"] == "unsupported"] == ["x448"]
    timed = [event for event in events if event["event"] == "primitive"]
    assert all(5 <= len(event["samples_ns"]) <= 1000 and min(event["samples_ns"]) > 0 for event in timed)
    for name, expected in sizes.items():
        of_name = [event for event in timed if event["name"] == name]
        assert [event["operation"] for event in of_name] == ["keygen", "encapsulate", "decapsulate"]
        assert [event["bytes"] for event in of_name] == expected
    for name, size in signatures.items():
        of_name = [event for event in timed if event["name"] == name]
        assert [event["operation"] for event in of_name] == ["sign", "verify", "verify-chain"]
        der = x509.load_pem_x509_certificate((made(name) / "server.pem").read_bytes()).public_bytes(
            serialization.Encoding.DER
        )
        assert [event["bytes"] for event in of_name] == [size, None, len(der)]
    [hybrid] = {event["implementation"] for event in timed if event["name"] == "x25519-mlkem768"}
    assert hybrid.startswith("liboqs ")
    assert "ring " in hybrid


def test_primitives_of_an_unreadable_directory_fail_with_its_name(programs: Path, tmp_path: Path) -> None:
    code, events = primitives(programs, tmp_path / "events.jsonl", "--signature", f"ed25519={tmp_path}/none")
    assert code == 1
    [error] = [event["reason"] for event in events if event["event"] == "error"]
    assert f"{tmp_path}/none" in error
    assert "\n" not in error
