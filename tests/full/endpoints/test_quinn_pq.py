"""Flavour pq of quinn: handshakes with every group and signature over loopback, how they fail, and the primitives."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from clone import ROOT
from identities import write_certificates
from loopback import Events, Loopback, Serve, ServerError, read_events
from quicbed.builds import making
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.measure.certificates import Tools

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
GROUPS = {group.name: group for group in TABLE.groups if group.name != "x448"}
SIGNATURES = {signature.name: signature for signature in TABLE.signatures}

# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Path:
    """The build's programs, built unless they are there."""
    return build_of("quinn", "pq") / "bin"


@pytest.fixture
def serve(loopback: Loopback) -> Serve:
    return partial(loopback.serve, "quinn", flavour="pq")


def test_all_of_the_table_is_there_but_x448(programs: Path) -> None:
    for program in ("client", "server"):
        said = making.describe(programs / program)
        assert said["groups"] == list(GROUPS)
        assert said["signatures"] == list(SIGNATURES)
        assert said["flavour_features"] == ["pq"]


def exchange(serve: Serve, *options: str, signature: str = "ecdsa-p-256") -> tuple[Events, Events]:
    """Two connections, as the client and the server tell them."""
    server = serve(*options, signature=signature)
    shared = [part for part in options if part not in ("--retry", "on")]
    code, client = server.download(*shared, "--connections", "2")
    assert code == 0, client
    assert len(client) == 2
    return client, server.stop(after=2)


def test_a_retry_and_the_initial_size_hold_for_large_messages(serve: Serve) -> None:
    options = ("--group", "p-521-bike-l5", "--initial-size", "1300", "--retry", "on")
    client, server = exchange(serve, *options, signature="sphincs-sha2-128f")
    for connection in client + server:
        assert connection["retry"] is True
        assert connection["handshake_bytes_sent"] <= 1300 * connection["handshake_packets_sent"]
    # a key share of more than 5000 bytes takes five datagrams, and again after the Retry packet
    assert all(connection["handshake_packets_sent"] >= 10 for connection in client)


def test_a_failed_handshake_tells_the_reason_and_the_server_goes_on(serve: Serve, tmp_path: Path) -> None:
    server = serve("--group", "kyber768", signature="dilithium3")
    options = ("--group", "kyber768")
    other = tmp_path / "other"
    certificates.make(other, SIGNATURES["dilithium3"], Tools.provide(PROJECT, jobs=1, log=tmp_path / "build.log"))
    # with their alerts: handshake_failure, twice, and decrypt_error (RFC 8446, section 6.2)
    failures = (
        (("--group", "bike-l1"), "error 40: ", "NoKxGroupsInCommon"),
        ((*options, "--signature", "falcon-512"), "error 40: ", "NoSignatureSchemesInCommon"),
        ((*options, "--ca", str(other / "ca.pem")), "error 51: ", "BadSignature"),
    )
    for chosen, alert, reason in failures:
        code, client = server.download(*chosen)
        assert code == 1
        assert client[0]["ok"] is False
        assert alert in client[0]["error"]
        assert reason in client[0]["error"]
        assert "\n" not in client[0]["error"]
    assert server.download(*options)[0] == 0
    told = server.stop(after=4)
    assert [connection["ok"] for connection in told] == [False, False, False, True]
    for connection, (_, alert, reason) in zip(told[:3], failures, strict=True):
        assert alert in connection["error"]
        assert reason in connection["error"]


def refused(serve: Serve, identity: Path, signature: str) -> str:
    """Why a server does not serve with certificates in a directory."""
    with pytest.raises(ServerError):
        serve(identity=identity, signature=signature)
    (log,) = identity.parent.glob("server-*.jsonl")
    [error] = [event["reason"] for event in read_events(log) if event["event"] == "error"]
    return str(error)


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        ("dilithium3", "falcon-512", "no private key of dilithium3: it is a key of another algorithm"),
        ("ecdsa-p-256", "dilithium3", "no private key of ecdsa-p-256"),
        ("rsa-2048", "rsa-4096", "no private key of rsa-2048: it has 4096 bits"),
        *((name, name, "does not match the certificate") for name in ("mldsa44", "falcon-512", "rsa-1024", "ed25519")),
    ],
)
def test_a_key_has_to_match(
    serve: Serve, made: Callable[..., Path], tmp_path: Path, name: str, key: str, reason: str
) -> None:
    identity = tmp_path / "identity"
    identity.mkdir()
    shutil.copy2(made(name) / "server.pem", identity)
    # one of the same algorithm is another key
    shutil.copy2(made(key, "other") / "server.key", identity)
    assert reason in refused(serve, identity, name)


@pytest.mark.parametrize(
    ("days", "filler", "copies", "reason"),
    [
        (-1, 0, 1, "certificate expired"),
        (1, 60_000, 1, None),
        # rustls takes handshake messages of 65535 bytes (MAX_HANDSHAKE_SIZE)
        (1, 40_000, 2, "HandshakePayloadTooLarge"),
    ],
)
def test_certificates_that_are_expired_or_too_large_are_refused(
    serve: Serve, tmp_path: Path, days: int, filler: int, copies: int, reason: str | None
) -> None:
    identity = write_certificates(tmp_path / "identity", days=days, filler=filler)
    chain = identity / "server.pem"
    chain.write_bytes(copies * chain.read_bytes())
    server = serve(identity=identity)
    code, [client] = server.download()
    [told] = server.stop(after=1)
    assert code == (1 if reason else 0)
    for connection in (client, told):
        assert connection["ok"] is (reason is None)
        assert (reason or "") in (connection["error"] or "")


def test_a_certificate_that_rustls_cannot_read_is_refused_before_serving(serve: Serve, tmp_path: Path) -> None:
    # rustls-webpki reads no element of more than 65535 bytes (TWO_BYTE_DER_SIZE)
    identity = write_certificates(tmp_path / "identity", filler=66_000)
    error = refused(serve, identity, "ecdsa-p-256")
    assert str(identity / "server.pem") in error
    assert "rustls cannot read the certificate" in error


def primitives(programs: Path, log: Path, *options: str) -> tuple[int, Events]:
    argv = [str(programs / "primitives"), "--events", str(log), "--milliseconds", "1", *options]
    done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False)
    return done.returncode, read_events(log)


def test_primitives_are_timed(programs: Path, made: Callable[[str], Path], tmp_path: Path) -> None:
    # sizes: FIPS 203, table 3 with points of 32 and 65 bytes; Table III of A Quantum of QUIC
    sizes: dict[str, list[int | None]] = {
        "x25519": [32, 32, None],
        "p-521": [133, 133, None],
        "kyber512": [800, 768, None],
        # HQC's specifications of 2023 and 2020
        "hqc-128": [2249, 4433, None],
        "hqc-128-avx2": [2249, 4481, None],
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
    implementations = {event["name"]: event["implementation"] for event in timed}
    assert [part.split()[0] for part in implementations["x25519-mlkem768"].split(" + ")] == ["liboqs", "ring"]
    assert implementations["hqc-128"] == "liboqs 0.13.0 (portable)"
    assert implementations["hqc-128-avx2"] == "liboqs 0.9.0 (AVX2)"
    assert implementations["dilithium3"] == implementations["kyber512"]


def test_primitives_of_an_unreadable_directory_fail_with_its_name(programs: Path, tmp_path: Path) -> None:
    code, events = primitives(programs, tmp_path / "events.jsonl", "--signature", f"ed25519={tmp_path}/none")
    assert code == 1
    [error] = [event["reason"] for event in events if event["event"] == "error"]
    assert f"{tmp_path}/none" in error
    assert "\n" not in error
