"""QUIC libraries with different TLS libraries shake hands with each other over loopback, with post-quantum algorithms
of every kind; and handshakes that must fail do so at once, with their reason, and leave the server serving.
"""

from __future__ import annotations

import datetime
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from clone import ROOT
from loopback import Loopback, Server, ServerError
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import certificates
from quicbed.measure.judge import SUITES
from quicbed.plan.factors import algorithm_reason

PROJECT = Project(ROOT).without_folders()
TABLE = PROJECT.algorithms
LIBRARIES = [name for name, library in PROJECT.libraries.items() if "pq" in library.flavours]
# nginx meets nobody but libcurl, and tells less of a connection than the others
QUIC = [name for name in LIBRARIES if PROJECT.libraries[name].alpn == "hq-interop"]
COMBINATIONS = [
    ("kyber768", "rsa-2048"),
    ("x25519-mlkem768", "dilithium3"),
    ("p-384-hqc-192", "falcon-512"),
    ("p-521-bike-l5", "sphincs-sha2-128f"),
    ("p-256-mlkem768", "mldsa65"),
    ("mlkem1024", "ecdsa-p-256"),
]
CONNECTIONS = 3

# client and server: the server does not always notice that its certificate was refused
UNNOTICED = {("noq", "noq")}

# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)

Made = Callable[..., Path]
Programs = Callable[[str], Path]


# A client and a server that do not meet with a ClientHello of several datagrams: MsQuic's server goes on under another
# connection ID than it acknowledged the first one with (docs/libraries.md), after a Retry whoever the client is.
APART = [("noq", "msquic")]


def tls_library(name: str) -> str:
    return PROJECT.libraries[name].tls_library


def has(name: str, signature: str) -> bool:
    """Whether a library has a signature algorithm; all have every group but X448."""
    return algorithm_reason(name, PROJECT.libraries[name], "pq", "signature", signature) is None


def other_clients(server: str) -> list[str]:
    """The libraries that meet this server: all with another TLS library; of two with the same, the first the second."""
    return [
        client
        for client in QUIC
        if (tls_library(client) != tls_library(server) or (client, server) in itertools.combinations(QUIC, 2))
        and (client, server) not in APART
    ]


# the libraries that can shake hands with any certificate
COMPLETE = [name for name in QUIC if all(has(name, signature.name) for signature in TABLE.signatures)]
# a client and a server of the same library, and each server with one client of another TLS library
FAILING = [(name, name) for name in LIBRARIES] + [
    (next(client for client in COMPLETE if tls_library(client) != tls_library(server)), server) for server in QUIC
]


def failing(*signatures: str) -> list[tuple[str, str, str]]:
    """The clients and servers of failing handshakes, with each of these signature algorithms that both have."""
    return [
        (*pair, signature) for pair in FAILING for signature in signatures if all(has(end, signature) for end in pair)
    ]


@pytest.fixture(scope="session")
def programs(build_of: Callable[[str, str], Path]) -> Programs:
    """The programs of a library's flavour pq, built unless they are there."""
    return lambda library: build_of(library, "pq") / "bin"


class Peer:
    """A server on loopback, and the clients of other libraries that come to it."""

    def __init__(self, server: Server, programs: Programs) -> None:
        self.server, self.programs = server, programs

    def client(self, library: str, *options: str) -> tuple[int, Sequence[events.ClientConnection]]:
        """Runs a client; returns its exit code and connections. An option given again has the last value."""
        argv, log = self.server.client(*options, programs=self.programs(library))
        done = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=100, check=False)
        return done.returncode, events.read(log, "client").connections

    def stop(self, connections: int = 0) -> Sequence[events.ServerConnection]:
        """Ends the server, once it knows the end of so many connections."""
        return self.server.stopped(connections).connections


Serve = Callable[..., Peer]


@pytest.fixture
def serve(programs: Programs, loopback: Loopback) -> Serve:
    def start(library: str, identity: Path, *options: str) -> Peer:
        server = loopback.serve(library, "--content", "1", *options, flavour="pq", identity=identity)
        return Peer(server, programs)

    return start


def algorithms(group: str, signature: str) -> list[str]:
    return ["--group", group, "--signature", signature]


def check(connection: events.Connection, who: str, group: str, signature: str, *, retry: bool = False) -> None:
    """A connection is what was asked for, as this side reads it back from its TLS library."""
    assert connection.ok, f"{who}: {connection.error}"
    assert connection.group == TABLE.group(group).tls_name, who
    assert connection.signature == TABLE.signature(signature).tls_name, who
    assert connection.cipher == SUITES["aes-128-gcm"], who
    assert (connection.tls_version, connection.alpn) == ("TLSv1.3", "hq-interop"), who
    assert connection.hello_retry_request is False, who
    assert connection.retry is retry, who


def exchange(server: Peer, name: str, group: str, signature: str, *, count: int, retry: bool = False) -> None:
    """Every library that meets this server makes so many connections; both sides say the same of each."""
    clients = [client for client in other_clients(name) if has(client, signature)]
    assert clients
    for client in clients:
        options = [*algorithms(group, signature), "--connections", str(count)]
        code, connections = server.client(client, *options)
        assert code == 0, f"{client}: {[connection.error for connection in connections]}"
        assert len(connections) == count, client
        for connection in connections:
            check(connection, f"client {client}", group, signature, retry=retry)
    accepted = server.stop()
    assert len(accepted) == count * len(clients)
    for index, served in enumerate(accepted):
        check(served, f"server {name} of client {clients[index // count]}", group, signature, retry=retry)


def test_every_pair_of_tls_libraries_meets_both_ways() -> None:
    pairs = {(tls_library(client), tls_library(server)) for server in QUIC for client in other_clients(server)}
    different = {tls_library(name) for name in QUIC}
    assert len(different) > 2
    assert pairs >= set(itertools.permutations(different, 2))


@pytest.mark.parametrize(("group", "signature"), COMBINATIONS)
@pytest.mark.parametrize("name", QUIC)
def test_a_server_shakes_hands_with_other_libraries(
    serve: Serve, made: Made, name: str, group: str, signature: str
) -> None:
    if not has(name, signature):
        signature = certificates.DEFAULT
    server = serve(name, made(signature), *algorithms(group, signature))
    exchange(server, name, group, signature, count=CONNECTIONS)


@pytest.mark.parametrize("name", QUIC)
def test_other_libraries_answer_a_retry(serve: Serve, made: Made, name: str) -> None:
    # a ClientHello of two datagrams, of which the first is answered with a Retry packet; see APART for MsQuic
    group, signature = ("kyber1024", "falcon-512") if name != "msquic" else ("x25519", certificates.DEFAULT)
    server = serve(name, made(signature), *algorithms(group, signature), "--retry", "on")
    exchange(server, name, group, signature, count=CONNECTIONS, retry=True)


@pytest.mark.parametrize("name", [name for name in QUIC if has(name, "sphincs-sha2-256f")])
def test_the_largest_certificate_passes(serve: Serve, made: Made, name: str) -> None:
    # certificate and CertificateVerify of 50 kB each
    group, signature = "x25519", "sphincs-sha2-256f"
    server = serve(name, made(signature), *algorithms(group, signature))
    exchange(server, name, group, signature, count=1)


# TLS alerts (RFC 8446, section 6.2)
HANDSHAKE_FAILURE, BAD_CERTIFICATE, CERTIFICATE_EXPIRED, DECRYPT_ERROR = 40, 42, 45, 51


def tells(connection: events.Connection, *alerts: int) -> bool:
    """A failed connection names one of these TLS alerts in one line."""
    error = connection.error or ""
    named = {int(number) for number in re.findall(r"\b(?:alert|error) (\d+)\b", error)}
    return not connection.ok and "\n" not in error and not named.isdisjoint(alerts)


@pytest.mark.parametrize(("client", "name", "signature"), failing("rsa-2048", "dilithium3", "mldsa65"))
def test_a_failed_handshake_has_its_alert_and_the_server_goes_on(
    serve: Serve, made: Made, client: str, name: str, signature: str
) -> None:
    good = algorithms("kyber768", signature)
    # an authority of the same name and algorithm with another key: the signature on the certificate is not its own
    wrong_ca = [*good, "--ca", str(made(signature, "other") / "ca.pem")]
    failures = [
        (algorithms("bike-l1", signature), [HANDSHAKE_FAILURE]),
        (algorithms("kyber768", "falcon-512" if has(client, "falcon-512") else "ecdsa-p-384"), [HANDSHAKE_FAILURE]),
        # both mean a signature that does not verify, the first one in a certificate (RFC 8446, section 6.2)
        (wrong_ca, [BAD_CERTIFICATE, DECRYPT_ERROR]),
    ]
    server = serve(name, made(signature), *good)
    for options, alerts in failures:
        code, (refused,) = server.client(client, *options)
        assert code == 1
        assert tells(refused, *alerts), refused.error
        assert refused.bytes_received == 0
        code, (served,) = server.client(client, *good)
        assert code == 0, served.error
    told = server.stop(2 * len(failures))
    assert [connection.ok for connection in told] == [False, True] * len(failures)
    for connection, (_, alerts) in zip(told[::2], failures, strict=True):
        # nginx has words of its own for alerts it sends, and sees only a reset where the client was quick to close
        assert tells(connection, *alerts) or name not in QUIC, connection.error


@pytest.mark.parametrize(("client", "name", "signature"), failing("rsa-2048", "falcon-512"))
def test_an_expired_certificate_is_refused(
    serve: Serve, made: Made, monkeypatch: pytest.MonkeyPatch, client: str, name: str, signature: str
) -> None:
    # certificates are valid from an hour before they are made
    monkeypatch.setattr(certificates, "LIFETIME", datetime.timedelta(minutes=30))
    server = serve(name, made(signature, "expired"), *algorithms("x25519", signature))
    code, connections = server.client(client, *algorithms("x25519", signature), "--connections", "2")
    assert code == 1
    told = server.stop(2)
    # the server is there for the second connection
    assert (len(connections), len(told)) == (2, 2)
    for refused in connections:
        assert tells(refused, CERTIFICATE_EXPIRED), refused.error
    for connection in told:
        assert not connection.ok
        if name in QUIC and (client, name) not in UNNOTICED:
            assert tells(connection, CERTIFICATE_EXPIRED), connection.error


# MsQuic does not say why it cannot use a certificate and a key
@pytest.mark.parametrize("signature", ["rsa-2048", "ed25519", "falcon-512", "mldsa65"])
@pytest.mark.parametrize("name", [name for name in LIBRARIES if name != "msquic"])
def test_a_key_of_another_certificate_ends_the_server_before_it_serves(
    serve: Serve, made: Made, tmp_path: Path, name: str, signature: str
) -> None:
    identity = tmp_path / "identity"
    shutil.copytree(made(signature), identity)
    shutil.copy(made(signature, "other") / "server.key", identity)
    with pytest.raises(ServerError) as refused:
        serve(name, identity, *algorithms("x25519", signature))
    complaint = str(refused.value)
    assert refused.value.code == 1
    assert len(complaint.splitlines()) == 1
    assert str(identity / "server.key") in complaint
    assert re.search("mismatch|does not match", complaint, re.IGNORECASE)
