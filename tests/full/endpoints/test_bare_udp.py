"""Bare UDP: what it sends arrives, is sealed or can be read, and what is lost or of another key is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopback import Loopback
from quicbed.measure import certificates
from quicbed.wire.proof import check, examine
from relayed import Relay
from wirefixtures import SERVER, pcap

pytestmark = pytest.mark.timeout(1800)
SIZE = 300_001


class Claim:
    """A variant, as far as the wire can show it."""

    header_protection = cipher_suite = group = None

    def __init__(self, aead: str) -> None:
        self.aead = aead


@pytest.mark.parametrize("options", [(), ("--cipher", "chacha20-poly1305"), ("--aead", "noenc")])
@pytest.mark.parametrize("size", [0, 1, SIZE, 20_000_000])
def test_downloads(loopback: Loopback, options: tuple[str, ...], size: int) -> None:
    server = loopback.serve("bare-udp", *options, "--content", str(size), signature=certificates.DEFAULT)
    seen = server.fetch(*options, "--bytes", str(size), "--connections", "2")
    assert [(one["ok"], one["bytes_received"], one["content_ok"]) for one in seen] == [(True, size, True)] * 2
    served = server.stopped(2)
    assert [one.bytes_sent for one in served.connections] == [size] * 2
    aead = "noenc" if "noenc" in options else "standard"
    for one in served.connections:
        assert (one.aead, one.group, one.tls_version, one.ok) == (aead, None, None, True)
        assert (one.cipher is None) == (aead == "noenc")


@pytest.mark.parametrize("aead", ["standard", "noenc"])
def test_a_capture_shows_what_is_sealed(loopback: Loopback, tmp_path: Path, aead: str) -> None:
    server = loopback.serve("bare-udp", "--aead", aead, "--content", str(SIZE), signature=certificates.DEFAULT)
    with Relay(server.port) as relay:
        (seen,) = server.fetch("--aead", aead, "--bytes", str(SIZE), port=relay.port)
        server.stop(1)
    assert seen["ok"]
    capture = pcap(tmp_path / "proof.pcap", relay.frames)
    proof = examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="udp", mtu=1500)
    assert check(proof, Claim(aead), 0) == []
    assert check(proof, Claim("noenc" if aead == "standard" else "standard"), 0)


def test_a_lost_datagram_ends_a_download(loopback: Loopback) -> None:
    server = loopback.serve("bare-udp", "--content", str(SIZE), signature=certificates.DEFAULT)

    def passes(datagram: bytes) -> list[bytes]:
        return [] if int.from_bytes(datagram[:8], "big") == 3 else [datagram]

    with Relay(server.port, passes) as relay:
        (seen,) = server.fetch("--bytes", str(SIZE), port=relay.port)
    assert (seen["ok"], seen["error"]) == (False, "datagram 4 came instead of 3")
    (served,) = server.stop()
    assert (served["ok"], served["error"]) == (False, "the server was stopped")


def test_what_cannot_be_opened_is_an_error(loopback: Loopback) -> None:
    server = loopback.serve("bare-udp", "--content", str(SIZE), signature=certificates.DEFAULT)

    def passes(datagram: bytes) -> list[bytes]:
        return [datagram[:-1] + bytes([datagram[-1] ^ 1])]

    with Relay(server.port, passes) as relay:
        (seen,) = server.fetch("--bytes", str(SIZE), port=relay.port)
    assert (seen["ok"], seen["error"]) == (False, "a datagram cannot be opened")
    server.stop()


def test_a_server_asked_in_another_way_answers_nothing(loopback: Loopback) -> None:
    server = loopback.serve("bare-udp", "--content", str(SIZE), signature=certificates.DEFAULT)
    (seen,) = server.fetch("--aead", "noenc", "--bytes", str(SIZE), "--timeout", "2")
    assert (seen["ok"], seen["error"]) == (False, "timed out, the answer is not complete")
    assert server.stop() == []
