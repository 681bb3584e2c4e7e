"""ngtcp2 and quiche over loopback: what BoringSSL negotiates, how handshakes fail, Retry, sizes, and late packets."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from clone import ROOT
from identities import write_certificates
from loopback import Events, Loopback, Serve, ServerError, read_events
from quicbed.builds import making
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.measure.certificates import Tools
from quicbed.wire import quicwire
from relayed import Relay

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
GROUPS = {group.name: group for group in TABLE.groups}
SIGNATURES = {signature.name: signature for signature in TABLE.signatures}
# BoringSSL has no X448
PQ_GROUPS = [name for name in GROUPS if name != "x448"]
# what BoringSSL has without patches; its own ML-DSA only takes keys in the form of a seed
STOCK_GROUPS = ["x25519", "p-256", "p-384", "p-521", "mlkem1024", "x25519-mlkem768"]
STOCK_SIGNATURES = [name for name, signature in SIGNATURES.items() if not signature.liboqs]
LIBRARIES = ("ngtcp2", "quiche")
ONE_BY_ONE = ("--gso", "off", "--gro", "off")

# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)

Build = Callable[[str, str], Path]
Made = Callable[[str], Path]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """A test is of both libraries unless it names one."""
    return str(request.param)


@pytest.fixture
def serve(loopback: Loopback, library: str) -> Serve:
    return partial(loopback.serve, library)


@pytest.mark.parametrize("role", ["client", "server"])
def test_builds_say_what_their_boringssl_has(build_of: Build, library: str, role: str) -> None:
    stock, pq = (making.describe(build_of(library, flavour) / "bin" / role) for flavour in ("stock", "pq"))
    assert stock["groups"] == STOCK_GROUPS
    assert set(STOCK_SIGNATURES) <= set(stock["signatures"])
    assert pq["groups"] == PQ_GROUPS
    assert pq["signatures"] == list(SIGNATURES)
    assert (stock["retry"], pq["retry"]) == (True, True)
    assert (stock["initial_size"], pq["initial_size"]) == (library == "ngtcp2", True)
    assert stock["version"] == making.version_of(PROJECT, library)


@pytest.mark.parametrize("role", ["client", "server"])
def test_ngtcp2_has_its_congestion_controls(build_of: Build, role: str) -> None:
    said = making.describe(build_of("ngtcp2", "stock") / "bin" / role)
    assert said["congestion_controls"] == ["cubic", "reno", "bbr"]


@pytest.mark.parametrize(
    ("flavour", "name"), [*(("stock", name) for name in STOCK_GROUPS), *(("pq", name) for name in PQ_GROUPS)]
)
def test_a_group_is_negotiated(serve: Serve, library: str, flavour: str, name: str) -> None:
    server = serve("--group", name, flavour=flavour)
    code, client = server.download("--group", name, "--connections", "2")
    assert code == 0, client
    served = server.stop()
    assert len(client) == len(served) == 2
    for connection in client + served:
        assert connection["group"] == GROUPS[name].tls_name
        assert connection["hello_retry_request"] is False
        assert connection["retry"] is False
    # only the patched quiche tells a client when the handshake is confirmed
    untold = library == "quiche" and flavour == "stock"
    for connection in served if untold else client + served:
        assert connection["t_handshake_complete"] <= connection["t_handshake_confirmed"] <= connection["t_close"]
    assert {connection["t_handshake_confirmed"] for connection in client if untold} <= {None}


@pytest.mark.parametrize(
    ("flavour", "name"), [*(("stock", name) for name in STOCK_SIGNATURES), *(("pq", name) for name in SIGNATURES)]
)
def test_a_signature_is_verified(serve: Serve, flavour: str, name: str) -> None:
    server = serve(flavour=flavour, signature=name)
    code, client = server.download()
    assert code == 0, client
    for connection in client + server.stop():
        assert connection["signature"] == SIGNATURES[name].tls_name


@pytest.mark.parametrize(
    ("flavour", "served", "asked"),
    [
        ("stock", ["--group", "p-256"], []),
        ("stock", [], ["--cipher", "aes-256-gcm"]),
        ("stock", [], ["--signature", "ed25519"]),
        ("pq", ["--group", "kyber768"], ["--group", "p-384-kyber768"]),
        ("pq", [], ["--signature", "falcon-512"]),
    ],
)
def test_nothing_in_common_is_a_tls_alert_on_both_sides(
    serve: Serve, flavour: str, served: list[str], asked: list[str]
) -> None:
    server = serve(*served, flavour=flavour)
    code, client = server.download(*asked)
    assert code == 1
    assert client[0]["error"] == "closed by the peer: TLS alert 40 (handshake failure)"
    assert client[0]["t_handshake_complete"] is None
    code, _ = server.download(*served)
    assert code == 0, "a failed handshake must not end the server"
    refused, good = server.stop()
    assert refused["error"] == "closed by this side: TLS alert 40 (handshake failure)"
    assert good["ok"]


@pytest.mark.parametrize("name", ["ecdsa-p-256", "falcon-512", "mldsa44"])
def test_certificates_that_cannot_be_verified_are_tls_alerts_on_both_sides(serve: Serve, made: Made, name: str) -> None:
    server = serve(flavour="pq", signature=name)
    for options, alert, reason in (
        # all trust anchors have one name, so that this one is found, but did not sign
        (["--ca", str(made("ed25519") / "ca.pem")], "51 (decrypt error)", "certificate signature failure"),
        (["--server-name", "other"], "42 (bad certificate)", "Hostname mismatch"),
    ):
        code, client = server.download(*options)
        assert code == 1
        assert client[0]["error"] == f"closed by this side: TLS alert {alert}: {reason}"
        assert client[0]["t_handshake_complete"] is None
    assert server.download()[0] == 0
    errors = [connection["error"] for connection in server.stop()]
    alerts = ("51 (decrypt error)", "42 (bad certificate)")
    assert errors == [*(f"closed by the peer: TLS alert {alert}" for alert in alerts), None]


@pytest.mark.parametrize("library", ["quiche"])
@pytest.mark.parametrize("name", ["rsa-1024", "ecdsa-p-256", "falcon-512", "mldsa44", "sphincs-sha2-128f"])
def test_a_key_of_another_certificate_ends_the_server_before_it_serves(
    serve: Serve, made: Made, tmp_path: Path, name: str
) -> None:
    identity, signature = tmp_path / "identity", SIGNATURES[name]
    log = tmp_path / "build.log"
    tools = Tools.provide(PROJECT, jobs=os.cpu_count() or 1, log=log) if signature.liboqs else None
    certificates.make(identity, signature, tools)
    (identity / "server.pem").write_bytes((made(name) / "server.pem").read_bytes())
    with pytest.raises(ServerError, match="KEY_VALUES_MISMATCH") as failed:
        serve(flavour="pq", signature=name, identity=identity)
    line = str(failed.value).rstrip("\n")
    assert "\n" not in line
    assert line.startswith(f"--private-key {identity / 'server.key'}: ")


def test_an_expired_certificate_is_a_tls_alert_on_both_sides(serve: Serve, tmp_path: Path) -> None:
    server = serve(identity=write_certificates(tmp_path / "identity", days=-1))
    code, client = server.download()
    assert code == 1
    alert = "TLS alert 45 (certificate expired)"
    assert client[0]["error"] == f"closed by this side: {alert}: certificate has expired"
    assert server.stop()[0]["error"] == f"closed by the peer: {alert}"


# the limits of the libraries in the words of RFC 9000, section 20.1 (CRYPTO_BUFFER_EXCEEDED); without these BoringSSL's
LIMITS = {
    "ngtcp2": ("ERR_CRYPTO_BUFFER_EXCEEDED", "QUIC error 0xd"),
    "quiche": ("quiche: CryptoBufferExceeded", "QUIC error 0xd"),
}
# TLS: internal error; PROTOCOL_VIOLATION
OWN_LIMITS = {
    library: ("TLS: [EXCESSIVE_MESSAGE_SIZE]", error)
    for library, error in (("ngtcp2", "QUIC error 0x1"), ("quiche", "QUIC error 0xa"))
}


@pytest.mark.parametrize(
    ("flavour", "size", "errors"),
    [("stock", 50_000, None), ("stock", 70_000, LIMITS), ("pq", 100_000, None), ("pq", 300_000, OWN_LIMITS)],
)
def test_a_certificate_may_be_large_but_not_too_large(
    serve: Serve, library: str, tmp_path: Path, flavour: str, size: int, errors: dict[str, tuple[str, str]] | None
) -> None:
    server = serve(flavour=flavour, identity=write_certificates(tmp_path / "identity", filler=size))
    code, client = server.download()
    served = server.stop()
    assert served[0]["ok"] is client[0]["ok"] is (errors is None)
    if errors is None:
        assert code == 0
        assert served[0]["handshake_bytes_sent"] > size
    else:
        assert code == 1
        assert client[0]["error"] == f"closed by this side: {errors[library][0]}"
        assert served[0]["error"] == f"closed by the peer: {errors[library][1]}"


@pytest.mark.parametrize("size", [1200, 1400])
@pytest.mark.parametrize(("group", "datagrams"), [("x25519", 1), ("bike-l1", 2)])
def test_a_retry_makes_the_client_send_its_hello_again(serve: Serve, size: int, group: str, datagrams: int) -> None:
    common = ("--initial-size", str(size), "--group", group)
    bytes_sent = {}
    for retry in ("off", "on"):
        server = serve("--retry", retry, *common, flavour="pq")
        code, client = server.download(*common, "--connections", "3")
        assert code == 0, client
        for mine, other in zip(client, server.stop(), strict=True):
            assert mine["retry"] is other["retry"] is (retry == "on")
            hellos = 2 * datagrams if retry == "on" else datagrams
            assert mine["handshake_packets_sent"] >= hellos
            # every datagram of the client has an Initial packet and the size asked for, the last one too
            assert mine["handshake_bytes_sent"] >= hellos * size
            if group == "x25519":
                # the server's first flight is one datagram, so that there is nothing to acknowledge before
                assert mine["handshake_packets_sent"] == hellos
                assert mine["handshake_bytes_sent"] == hellos * size
                assert other["handshake_packets_received"] == hellos + 1
            assert other["handshake_bytes_sent"] >= mine["handshake_bytes_received"] > 0
            bytes_sent[retry] = other["handshake_bytes_sent"]
    assert bytes_sent["on"] > bytes_sent["off"] or group != "x25519"


@pytest.mark.parametrize("library", ["quiche"])
def test_an_unpatched_quiche_has_no_other_initial_size(serve: Serve) -> None:
    code, events = serve().run("--initial-size", "1400")
    assert code == 127
    (reason,) = [event["reason"] for event in events if event["event"] == "unsupported"]
    assert "MIN_CLIENT_INITIAL_LEN" in reason


def client_hello_random(datagram: bytes) -> bytes:
    """The random of the ClientHello that starts in a client's first Initial packet."""
    (packet, *_) = quicwire.parse_datagram(datagram).packets
    _, payload = quicwire.unprotect(packet, quicwire.initial_keys(packet.destination_cid).client)
    # CRYPTO frame (RFC 9000, 19.6) at offset 0 with a length of two bytes; then type, length and version of the message
    assert payload[:2] == b"\x06\0"
    hello = payload[4:]
    assert hello[0] == 1
    return hello[6:38]


@pytest.mark.parametrize("library", ["quiche"])
def test_a_retry_gets_the_same_client_hello_again(serve: Serve) -> None:
    """RFC 9000, section 17.2.5.2; quiche without the patch makes a new one."""
    server = serve("--retry", "on", flavour="pq")
    with Relay(server.port) as relay:
        code, client = server.download(*ONE_BY_ONE, port=relay.port)
    assert code == 0, client
    assert client_hello_random(relay.to_server[0]) == client_hello_random(relay.to_server[1])


def test_a_token_of_another_server_is_worth_nothing(serve: Serve, library: str) -> None:
    """A token that is not this server's own is not worth an error: the client is validated again."""
    first, second = serve("--retry", "on"), serve("--retry", "on")
    with Relay(lambda datagrams: second.port if datagrams > 1 else first.port) as relay:
        code, client = first.download("--timeout", "2", port=relay.port)
    # the second server answers with a Retry of its own, of which a client takes only one (RFC 9000, 17.2.5.2)
    assert code == 1
    assert client[0]["retry"] is True or library == "quiche"
    assert first.stop() == second.stop() == []


@pytest.mark.parametrize("flavour", ["stock", "pq"])
def test_a_late_copy_of_a_client_hello_is_no_new_connection(serve: Serve, flavour: str) -> None:
    server = serve(flavour=flavour)
    with Relay(server.port) as relay:
        code, client = server.download(*ONE_BY_ONE, port=relay.port)
        assert code == 0, client
        relay.again(relay.to_server[0])
        # a connection that begins after the copy, for the server to have read it
        assert server.download()[0] == 0
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
    assert server.download()[0] == 0
    assert server.stop()[-1]["ok"]


@pytest.mark.parametrize("library", ["ngtcp2"])
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
    code, client = server.download(*options, "--bytes", str(size))
    assert code == 0, client
    assert client[0]["bytes_received"] == server.stop()[0]["bytes_sent"] == size


@pytest.mark.parametrize("retry", ["off", "on"])
def test_memory_does_not_grow_with_connections(serve: Serve, retry: str) -> None:
    server = serve("--retry", retry)
    assert server.download("--connections", "200")[0] == 0
    before = server.resident_kib()
    assert server.download("--connections", "1000")[0] == 0
    # less than one kilobyte for each connection, and a page or two that nobody has touched before
    assert server.resident_kib() - before < 600
    assert len(server.stop()) == 1200


def test_both_ends_write_the_secrets_of_every_connection(serve: Serve, tmp_path: Path) -> None:
    logs = {role: tmp_path / f"{role}.keys" for role in ("client", "server")}
    server = serve("--key-log", str(logs["server"]))
    assert server.download("--connections", "3", "--key-log", str(logs["client"]))[0] == 0
    server.stop()
    secrets = {role: set(log.read_text().splitlines()) for role, log in logs.items()}
    assert secrets["client"] == secrets["server"]
    labels = [line.split()[0] for line in secrets["client"]]
    for side in ("CLIENT", "SERVER"):
        for level in ("HANDSHAKE_TRAFFIC_SECRET", "TRAFFIC_SECRET_0"):
            assert labels.count(f"{side}_{level}") == 3


def test_primitives_of_every_kind_are_timed(build_of: Build, library: str, made: Made, tmp_path: Path) -> None:
    groups = ["x25519", "kyber768", "p-256-kyber512", "x25519-mlkem768", "x448"]
    signatures = ["rsa-2048", "ecdsa-p-256", "ed25519", "dilithium3", "mldsa65", "falcon-512"]
    log = tmp_path / "primitives.jsonl"
    argv = [str(build_of(library, "pq") / "bin" / "primitives"), "--events", str(log), "--milliseconds", "1"]
    argv += [part for name in groups for part in ("--group", name)]
    argv += [part for name in signatures for part in ("--signature", f"{name}={made(name)}")]
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    events = read_events(log)
    assert events[0]["library"] == library
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
    # RFC 7748; Kyber768's public key and ciphertext; FIPS 204, table 2
    assert [event["bytes"] for event in timed["x25519"]] == [32, 32, None]
    assert [event["bytes"] for event in timed["kyber768"]] == [1184, 1088, None]
    assert timed["mldsa65"][0]["bytes"] == 3309
    assert {event["implementation"] for event in timed["x25519-mlkem768"] + timed["mldsa65"]} == {"BoringSSL"}
    assert {event["implementation"].split()[0] for event in timed["kyber768"] + timed["dilithium3"]} == {"liboqs"}
