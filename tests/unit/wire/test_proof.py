"""Proofs of variants: every variant is recognised, and every wrong claim is contradicted."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from quicbed.contract.content import content
from quicbed.wire.pcap import CaptureError
from quicbed.wire.proof import Proof, check, examine, judge_headers, resumed, undecided
from quicbed.wire.quicwire import crypto_stream, parse_datagram
from wirefixtures import (
    CLIENT,
    RETRY_RANDOM,
    SERVER,
    Protection,
    QuicTransfer,
    crypto_frame,
    ethernet,
    pcap,
    server_hello,
    some_keys,
    tcp,
    tls_transfer,
    udp,
)


@dataclass(frozen=True)
class Claim:
    """A variant, as far as the wire can show it."""

    aead: str = "standard"
    header_protection: bool | None = True
    cipher_suite: int | None = None
    group: int | None = None


STANDARD = Claim()
STANDARD_CLEAR_HEADERS = Claim(header_protection=False)
NOOP = Claim("noop", False)
NOOP_PROTECTED_HEADERS = Claim("noop")
QUIC_CLAIMS = [STANDARD, STANDARD_CLEAR_HEADERS, NOOP, NOOP_PROTECTED_HEADERS]


def quic_proof(path: Path, frames: list[bytes], mtu: int = 1500) -> Proof:
    capture = pcap(path / "proof.pcap", frames)
    return examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="quic", mtu=mtu)


def tcp_proof(path: Path, frames: list[bytes]) -> Proof:
    capture = pcap(path / "proof.pcap", frames)
    return examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="tcp", mtu=1500)


def transfer(claim: Claim) -> QuicTransfer:
    return QuicTransfer(claim.aead == "noop", claim.header_protection is True)


@pytest.mark.parametrize("seen", QUIC_CLAIMS)
@pytest.mark.parametrize("claimed", QUIC_CLAIMS)
def test_a_quic_variant_is_proven_exactly_when_it_is_the_one(tmp_path: Path, seen: Claim, claimed: Claim) -> None:
    proof = quic_proof(tmp_path, transfer(seen).run())
    problems = check(proof, claimed)
    assert any(p.startswith("The AEAD is") for p in problems) == (seen.aead != claimed.aead)
    assert any(p.startswith("Header protection is") for p in problems) == (
        seen.header_protection != claimed.header_protection
    )
    assert bool(problems) == (seen != claimed)


def test_what_a_noop_transfer_shows(tmp_path: Path) -> None:
    frames = QuicTransfer(noop=True, header_protection=False).run()
    proof = quic_proof(tmp_path, frames)
    assert proof.payload_in_clear is True
    assert proof.clear_fraction is not None
    assert proof.clear_fraction > 0.95
    assert proof.request_in_clear is True
    assert proof.header_protection_off is True
    assert proof.tag_constant is True
    assert proof.initial_standard is True
    assert proof.server_to_client.tag == "2a" * 16
    assert proof.server_to_client.reserved_bits_set == 0
    assert proof.connections == 1
    assert proof.server == "10.0.0.1:4433"
    assert proof.max_frame_bytes == max(map(len, frames)) == 1514
    assert proof.client_to_server.packets + proof.server_to_client.packets == len(frames)
    assert proof.client_to_server.payload_bytes + proof.server_to_client.payload_bytes == sum(
        len(frame) - 42 for frame in frames
    )
    assert (proof.cut_packets, proof.unattributed_packets, proof.truncation) == (0, 0, None)


def test_what_a_standard_transfer_shows(tmp_path: Path) -> None:
    proof = quic_proof(tmp_path, QuicTransfer().run())
    assert proof.payload_in_clear is False
    assert proof.clear_fraction == 0
    assert proof.request_in_clear is False
    assert proof.header_protection_off is False
    assert proof.tag_constant is False
    assert proof.initial_standard is True
    server = proof.server_to_client
    assert (server.headers, server.tags, server.tag) == ("protected", "varying", None)
    assert server.initial_packets == server.initial_decrypted == 1
    assert server.samples == server.one_rtt_packets


def test_a_proof_is_json(tmp_path: Path) -> None:
    proof = quic_proof(tmp_path, QuicTransfer().run())
    assert Proof.model_validate(json.loads(json.dumps(proof.model_dump(mode="json")))) == proof


@pytest.mark.parametrize("seen", QUIC_CLAIMS)
def test_one_side_in_another_variant_is_caught(tmp_path: Path, seen: Claim) -> None:
    """The client alone has the wrong AEAD, then the wrong header protection."""
    wrong_aead = transfer(seen)
    wrong_aead.client_noop = not wrong_aead.noop
    problems = check(quic_proof(tmp_path, wrong_aead.run()), seen)
    assert any("the client's request" in p for p in problems)
    assert any("the tags of the client's packets" in p for p in problems)
    assert not any("server" in p for p in problems)
    wrong_headers = transfer(seen)
    wrong_headers.client_header_protection = not wrong_headers.header_protection
    problems = check(quic_proof(tmp_path, wrong_headers.run()), seen)
    assert len(problems) == 1
    assert "the client's headers must be" in problems[0]


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
def test_initial_packets_without_standard_protection_are_caught(tmp_path: Path, claim: Claim) -> None:
    frames = transfer(claim)
    frames.initial_standard = False
    proof = quic_proof(tmp_path, frames.run())
    assert proof.initial_standard is False
    assert check(proof, claim) == [
        f"Initial packets must be standard, but 0 of the 1 from the {side} decrypt with the Initial keys of RFC 9001."
        for side in ("client", "server")
    ]


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
@pytest.mark.parametrize("cid", [b"", b"\x07", b"\x33" * 20])
def test_connection_ids_of_any_length(tmp_path: Path, claim: Claim, cid: bytes) -> None:
    frames = transfer(claim)
    frames.client_cid = cid
    assert check(quic_proof(tmp_path, frames.run()), claim) == []


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
@pytest.mark.parametrize("first_number", [250, 16_000, 65_500])
def test_packet_numbers_that_wrap_in_their_encoding(tmp_path: Path, claim: Claim, first_number: int) -> None:
    frames = transfer(claim)
    frames.first_number = first_number
    assert check(quic_proof(tmp_path, frames.run()), claim) == []


def test_a_retry_changes_the_initial_keys(tmp_path: Path) -> None:
    frames = QuicTransfer(retry_cid=b"retried-cid")
    proof = quic_proof(tmp_path, frames.run())
    assert check(proof, STANDARD) == []
    assert (proof.connections, proof.client_to_server.initial_packets) == (1, 2)


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
@pytest.mark.parametrize("client_cid", [b"", b"other"])
def test_a_connection_id_issued_during_the_handshake(tmp_path: Path, claim: Claim, client_cid: bytes) -> None:
    """As OpenSSL's client with ngtcp2's server: from its second Initial on, the client uses an ID it was just given."""
    frames = transfer(claim)
    frames.client_cid, frames.issued_cid = client_cid, b"issued in 1-RTT!"
    proof = quic_proof(tmp_path, frames.run())
    assert check(proof, claim) == []
    assert (proof.connections, proof.unattributed_packets) == (1, 0)
    client = proof.client_to_server
    assert client.initial_packets == client.initial_decrypted == 2
    assert client.one_rtt_packets == client.packets - 1


@pytest.mark.parametrize("seen", QUIC_CLAIMS)
def test_a_client_in_another_variant_is_caught_after_a_change_of_its_connection_id(tmp_path: Path, seen: Claim) -> None:
    frames = transfer(seen)
    frames.client_cid, frames.issued_cid = b"", b"issued in 1-RTT!"
    frames.client_noop = not frames.noop
    problems = check(quic_proof(tmp_path, frames.run()), seen)
    assert any("the tags of the client's packets" in p for p in problems)
    assert not any("server" in p for p in problems)


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
@pytest.mark.parametrize("same_address", [True, False])
@pytest.mark.parametrize("client_cid", [b"", b"other"])
def test_several_connections_in_one_capture(
    tmp_path: Path, claim: Claim, same_address: bool, client_cid: bytes
) -> None:
    first, second = transfer(claim), transfer(claim)
    first.client_cid = client_cid
    second.client_cid = client_cid and b"yet another"
    second.original_cid, second.server_cid = b"original", b"second server"
    second.name = "second"
    if not same_address:
        second.client = (CLIENT[0], CLIENT[1] + 1)
    proof = quic_proof(tmp_path, first.run() + second.run())
    assert proof.connections == 2
    assert check(proof, claim) == []


def test_ipv6(tmp_path: Path) -> None:
    frames = QuicTransfer(client=("fd00::2", 5), server=("fd00::1", 4433), datagram=1452).run()
    capture = pcap(tmp_path / "proof.pcap", frames)
    proof = examine(capture, server_ip="fd00:0:0::1", server_port=4433, transport="quic", mtu=1500)
    assert proof.server == "[fd00::1]:4433"
    assert check(proof, STANDARD) == []


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
def test_losses_reordering_and_repetition_of_a_few_packets(tmp_path: Path, claim: Claim) -> None:
    frames = transfer(claim).run()
    frames[20], frames[21] = frames[21], frames[20]
    del frames[30:33]
    proof = quic_proof(tmp_path, frames)
    assert check(proof, claim) == []


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
def test_stateless_resets_and_strangers_do_not_count(tmp_path: Path, claim: Claim) -> None:
    dice = random.Random(1)
    resets = [udp(SERVER, CLIENT, b"\x5d" + dice.randbytes(40)) for _ in range(8)]
    stranger = [
        udp(("10.0.0.9", 1), SERVER, b"\x40" + bytes(60)),
        udp(CLIENT, ("10.0.0.1", 53), b"quicbed00000000\n" * 9),
        udp(SERVER, CLIENT, b"\xff" * 8),
    ]
    proof = quic_proof(tmp_path, transfer(claim).run() + resets + stranger)
    assert check(proof, claim) == []
    assert proof.unattributed_packets == 2


def test_a_connection_id_issued_later_counts(tmp_path: Path) -> None:
    """From some packet on the server uses another of the client's IDs, and its headers are clear."""
    frames = QuicTransfer(size=16_384, name="one").run()
    keys = Protection(some_keys("later"), header_protection=False)
    frames += [udp(SERVER, CLIENT, keys.seal(b"\x41rotated!", number, 2, bytes(1200))) for number in range(20, 80)]
    assert quic_proof(tmp_path, frames).server_to_client.headers == "mixed"


def test_a_part_of_the_payload_in_clear_proves_nothing(tmp_path: Path) -> None:
    first = QuicTransfer(noop=True)
    second = QuicTransfer(size=400_000, name="second", client_cid=b"cid two!")
    proof = quic_proof(tmp_path, first.run() + second.run())
    assert proof.payload_in_clear is None
    assert proof.server_to_client.tags == "mixed"
    for claim in (STANDARD, NOOP_PROTECTED_HEADERS):
        assert any("neither nowhere nor in most" in p for p in check(proof, claim))
        assert any("but they are mixed" in p for p in check(proof, claim))


def test_super_frames_are_caught(tmp_path: Path) -> None:
    proof = quic_proof(tmp_path, QuicTransfer(datagram=4000, size=200_000).run())
    assert proof.max_frame_bytes == 4042
    (problem,) = check(proof, STANDARD)
    assert problem.startswith("A frame of 4042 bytes was seen on a link with MTU 1500")
    jumbo = quic_proof(tmp_path, QuicTransfer(datagram=4000, size=200_000).run(), mtu=4028)
    assert check(jumbo, STANDARD) == []


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
def test_too_few_packets_prove_nothing(tmp_path: Path, claim: Claim) -> None:
    frames = transfer(claim)
    frames.size = 8_000
    proof = quic_proof(tmp_path, frames.run())
    assert proof.payload_in_clear is None
    assert proof.header_protection_off is None
    assert proof.server_to_client.headers == "undecided"
    problems = check(proof, claim)
    assert any("bytes of payload from the server; at least" in p for p in problems)
    assert any("the server's headers must be" in p and "undecided" in p for p in problems)


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
@pytest.mark.parametrize("samples", [0, 1, 9])
def test_a_larger_transfer_decides_what_too_few_packets_of_a_client_leave_open(
    tmp_path: Path, claim: Claim, samples: int
) -> None:
    seen = quic_proof(tmp_path, transfer(claim).run())
    assert undecided(seen, claim) is None
    few = seen.client_to_server.model_copy(update={"samples": samples, "headers": "undecided"})
    small = seen.model_copy(update={"client_to_server": few})
    assert len(check(small, claim)) == 1
    assert undecided(small, claim) == 20 / max(1, samples)
    # what contradicts the variant does so in a larger one too
    assert undecided(small.model_copy(update={"mtu": 100}), claim) is None
    assert undecided(small, claim, 1) is None


@pytest.mark.parametrize("claim", QUIC_CLAIMS)
@pytest.mark.parametrize("transport", ["quic", "tcp"])
def test_an_empty_capture_proves_nothing(tmp_path: Path, claim: Claim, transport: str) -> None:
    proof = quic_proof(tmp_path, []) if transport == "quic" else tcp_proof(tmp_path, [])
    assert (proof.payload_in_clear, proof.tag_constant, proof.max_frame_bytes) == (None, None, None)
    (problem,) = check(proof, claim)
    assert problem.startswith("The capture proves nothing: it holds 0 packets to and 0 packets")


def test_a_capture_without_the_handshake_proves_nothing(tmp_path: Path) -> None:
    proof = quic_proof(tmp_path, QuicTransfer().run()[3:])
    assert proof.connections == 0
    assert proof.unattributed_packets == proof.client_to_server.packets + (proof.server_to_client.packets)
    assert proof.initial_standard is None
    assert any("0 of the 0 from the server" in p for p in check(proof, STANDARD))


def test_a_truncated_capture_is_examined_and_reported(tmp_path: Path) -> None:
    capture = pcap(tmp_path / "proof.pcap", QuicTransfer(noop=True).run())
    capture.write_bytes(capture.read_bytes()[:-700])
    proof = examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="quic", mtu=1500)
    assert proof.payload_in_clear is True
    (problem,) = check(proof, NOOP_PROTECTED_HEADERS)
    assert problem.startswith("The capture file is cut off: at byte ")


def test_a_snapshot_length_is_reported(tmp_path: Path) -> None:
    capture = pcap(tmp_path / "proof.pcap", QuicTransfer(noop=True).run(), snapshot=128)
    proof = examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="quic", mtu=1500)
    assert proof.cut_packets > 40
    assert any("capture whole frames" in p for p in check(proof, NOOP_PROTECTED_HEADERS))


def test_a_big_endian_capture_with_microseconds(tmp_path: Path) -> None:
    frames = QuicTransfer(noop=True, header_protection=False).run()
    capture = pcap(tmp_path / "proof.pcap", frames, order=">", nanoseconds=False)
    proof = examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="quic", mtu=1500, drops=2)
    assert check(proof, NOOP) == []
    assert proof.drops == 2
    assert check(proof, STANDARD)[-1].startswith("The capture lost 2 packets")


def test_a_file_that_is_no_capture(tmp_path: Path) -> None:
    path = tmp_path / "proof.pcap"
    path.write_text("tcpdump: no permission")
    with pytest.raises(CaptureError, match="not a pcap file"):
        examine(path, server_ip="10.0.0.1", server_port=4433, transport="quic", mtu=1500)


@pytest.mark.parametrize("noop", [False, True])
@pytest.mark.parametrize("aead", ["standard", "noop"])
@pytest.mark.parametrize("header_protection", [None, True])
def test_tls_over_tcp(tmp_path: Path, noop: bool, aead: str, header_protection: bool | None) -> None:
    proof = tcp_proof(tmp_path, tls_transfer(noop=noop))
    assert proof.payload_in_clear is noop
    assert proof.request_in_clear is noop
    assert proof.tag_constant is noop
    assert (proof.header_protection_off, proof.initial_standard) == (None, None)
    problems = check(proof, Claim(aead, header_protection))
    assert bool(problems) == ((aead == "noop") != noop)
    assert all(p.startswith("The AEAD is") for p in problems)


def test_tcp_has_no_header_protection_to_switch_off(tmp_path: Path) -> None:
    proof = tcp_proof(tmp_path, tls_transfer())
    assert check(proof, Claim(header_protection=False)) == [
        "The variant has no header protection, but TCP has none to switch off."
    ]


@pytest.mark.parametrize("noop", [False, True])
def test_a_tcp_client_in_another_variant_is_caught(tmp_path: Path, noop: bool) -> None:
    proof = tcp_proof(tmp_path, tls_transfer(noop=noop, client_noop=not noop))
    problems = check(proof, Claim("noop" if noop else "standard", None))
    assert any("the client's request" in p for p in problems)
    assert any("the tags of the client's packets" in p for p in problems)
    assert not any("server" in p for p in problems)


@pytest.mark.parametrize("noop", [False, True])
def test_tcp_segments_reordered_repeated_and_lost(tmp_path: Path, noop: bool) -> None:
    frames = tls_transfer(noop=noop)
    frames[10:16] = reversed(frames[10:16])
    frames.insert(30, frames[20])
    del frames[60]
    proof = tcp_proof(tmp_path, frames)
    assert proof.payload_in_clear is noop
    assert check(proof, Claim("noop" if noop else "standard", None)) == []


def test_tcp_retransmissions_do_not_count_twice(tmp_path: Path) -> None:
    frames = tls_transfer(noop=True)
    proof = tcp_proof(tmp_path, frames)
    again = tcp_proof(tmp_path, frames + [f for f in frames if len(f) > 1000])
    assert again.clear_fraction == proof.clear_fraction
    assert again.server_to_client.payload_bytes > proof.server_to_client.payload_bytes


def test_a_tcp_capture_from_the_middle_of_a_connection(tmp_path: Path) -> None:
    proof = tcp_proof(tmp_path, tls_transfer(noop=True)[12:])
    assert proof.payload_in_clear is True
    assert proof.request_in_clear is None
    (problem,) = check(proof, Claim("noop", None))
    assert problem == "The AEAD is noop, but the client's request was not captured."


def test_a_request_that_cannot_be_told_apart_is_no_contradiction_where_nothing_is_readable(tmp_path: Path) -> None:
    proof = tcp_proof(tmp_path, tls_transfer(noop=False)[12:])
    assert (proof.payload_in_clear, proof.request_in_clear) == (False, None)
    assert check(proof, Claim("standard", None)) == []


def test_content_readable_over_tcp_without_any_tls(tmp_path: Path) -> None:
    text = b"GET /65536 HTTP/1.1\r\n\r\n"
    frames = [tcp(CLIENT, SERVER, 1, text)]
    frames += [tcp(SERVER, CLIENT, 1 + at, b"quicbed00000000\n" * 64) for at in range(0, 65536, 1024)]
    proof = tcp_proof(tmp_path, frames)
    assert proof.payload_in_clear is True
    assert proof.server_to_client.tags == "undecided"


def judged(protected: list[bool], seed: int = 0, *, size: int = 2) -> str:
    """Judge packets, one for each element, that have header protection or not."""
    dice = random.Random(seed)
    keys = some_keys("judge")
    packets = []
    for number, on in enumerate(protected):
        data = Protection(keys, header_protection=on).seal(
            bytes([0x40 | (size - 1)]) + b"abcd", number, size, dice.randbytes(100)
        )
        packets += parse_datagram(data, 4).packets
    return judge_headers([packets]).headers


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [10, 11, 45, 5000])
def test_header_verdicts(count: int, size: int) -> None:
    assert judged([False] * count, size=size) == "clear"
    assert judged([True] * count, size=size) == "protected"
    assert judged([True] * 9, size=size) == judged([False] * 9, size=size) == "undecided"


def test_headers_protected_in_part_are_mixed() -> None:
    assert judged([i % 2 == 0 for i in range(200)]) == "mixed"
    assert judged([i < 20 for i in range(2000)]) == "mixed"


def test_protected_headers_are_never_judged_clear_or_mixed() -> None:
    assert {judged([True] * 12, seed) for seed in range(500)} == {"protected"}


def test_zero_reserved_bits_without_a_sequence_decide_nothing() -> None:
    dice = random.Random(5)
    keys = Protection(some_keys("judge"), header_protection=False)
    packets = [
        parse_datagram(keys.seal(b"\x43abcd", dice.randrange(1 << 30), 4, dice.randbytes(100)), 4).packets[0]
        for _ in range(30)
    ]
    assert judge_headers([packets]).headers == "undecided"


def test_packets_with_the_same_sample_count_once() -> None:
    """NOOP with header protection on: equal plaintexts have equal masks."""
    keys = Protection(some_keys("judge"), noop=True)
    packets = [parse_datagram(keys.seal(b"\x41abcd", number, 2, bytes(100)), 4).packets[0] for number in range(50)]
    judgement = judge_headers([packets])
    assert (judgement.packets, judgement.samples, judgement.headers) == (50, 1, "undecided")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("transport", ["quic", "tcp"])
def test_damaged_captures_raise_nothing_else(tmp_path: Path, seed: int, transport: str) -> None:
    """Whatever the bytes, there is a proof or the documented error, and damage proves no NOOP."""
    dice = random.Random(seed)
    frames = tls_transfer(size=20_000) if transport == "tcp" else QuicTransfer(size=20_000).run()
    capture = pcap(tmp_path / "proof.pcap", frames)
    data = bytearray(capture.read_bytes())
    for _ in range(dice.randint(1, 400)):
        at = dice.randrange(24, len(data))
        # Frame contents more often than the frame headers, of which one is enough to end it all.
        data[at] = dice.randrange(256)
    capture.write_bytes(data)
    try:
        proof = examine(
            capture,
            server_ip=SERVER[0],
            server_port=SERVER[1],
            transport=transport,  # type: ignore[arg-type]
            mtu=1500,
        )
    except CaptureError as error:
        assert str(error).startswith(f"{capture}: at byte ")  # noqa: PT017
        return
    assert check(proof, NOOP)
    assert check(proof, NOOP_PROTECTED_HEADERS)


NEGOTIATED = Claim(cipher_suite=0x1301, group=0x001D)


def test_cipher_suite_and_group_are_those_of_the_server_hello(tmp_path: Path) -> None:
    proof = quic_proof(tmp_path, QuicTransfer(hello=server_hello(0x1303, 0x11EC)).run())
    assert (proof.cipher_suites, proof.groups) == ((0x1303,), (0x11EC,))
    assert (proof.hello_retry_requests, proof.unread_hellos) == (0, 0)
    assert check(proof, Claim(cipher_suite=0x1303, group=0x11EC)) == []
    assert check(proof, STANDARD) == []
    assert check(proof, NEGOTIATED) == [
        "The cipher suite is 0x1301, but a ServerHello has 0x1303.",
        "The group is 0x001d, but a ServerHello has 0x11ec.",
    ]


def test_cipher_suite_and_group_over_tcp(tmp_path: Path) -> None:
    proof = tcp_proof(tmp_path, tls_transfer(messages=(server_hello(0x1302),)))
    assert (proof.cipher_suites, proof.groups, proof.unread_hellos) == ((0x1302,), (0x001D,), 0)
    assert check(proof, NEGOTIATED) == ["The cipher suite is 0x1301, but a ServerHello has 0x1302."]


def test_tls_1_2_is_seen_by_its_cipher_suite(tmp_path: Path) -> None:
    # its ServerHello has no key share (RFC 5246, 7.4.1.3)
    proof = tcp_proof(tmp_path, tls_transfer(messages=(server_hello(0xC02F, None),)))
    assert (proof.cipher_suites, proof.groups, proof.unread_hellos) == ((0xC02F,), (), 0)
    assert check(proof, Claim(cipher_suite=0xC02F)) == []
    assert check(proof, NEGOTIATED) == [
        "The cipher suite is 0x1301, but a ServerHello has 0xc02f.",
        "A group is to be negotiated, but the ServerHello has no key share.",
    ]


def test_one_connection_with_another_cipher_suite_is_caught(tmp_path: Path) -> None:
    first = QuicTransfer()
    second = QuicTransfer(name="second", client=(CLIENT[0], 7), hello=server_hello(0x1302))
    assert check(quic_proof(tmp_path, first.run() + second.run()), NEGOTIATED) == [
        "The cipher suite is 0x1301, but a ServerHello has 0x1302."
    ]


@pytest.mark.parametrize("transport", ["quic", "tcp"])
def test_a_hello_retry_request_is_caught(tmp_path: Path, transport: str) -> None:
    messages = (server_hello(random_bytes=RETRY_RANDOM, group=0x001D), server_hello())
    if transport == "quic":
        proof = quic_proof(tmp_path, QuicTransfer(hello=b"".join(messages)).run())
    else:
        proof = tcp_proof(tmp_path, tls_transfer(messages=messages))
    assert (proof.cipher_suites, proof.hello_retry_requests) == ((0x1301,), 1)
    assert check(proof, NEGOTIATED) == ["The server asked for another key share with a HelloRetryRequest."]


@pytest.mark.parametrize(
    "hello",
    [
        b"",
        bytes(120),
        server_hello()[:-1],  # the rest was not captured
        server_hello()[:4] + b"\x03\x04" + server_hello()[6:],  # another legacy version
        server_hello()[:-40] + b"\xff" * 40,  # an extension that is longer than the message
        server_hello(random_bytes=RETRY_RANDOM),  # nothing behind the HelloRetryRequest
    ],
)
def test_a_server_hello_that_cannot_be_read_proves_no_cipher_suite(tmp_path: Path, hello: bytes) -> None:
    proof = quic_proof(tmp_path, QuicTransfer(hello=hello).run())
    assert (proof.cipher_suites, proof.groups, proof.unread_hellos) == ((), (), 1)
    assert check(proof, NEGOTIATED)[0] == "No ServerHello can be read in 1 of 1 connections."
    assert check(proof, STANDARD) == []


@pytest.mark.parametrize("transport", ["quic", "tcp"])
def test_resumed_connections_are_counted(tmp_path: Path, transport: Literal["quic", "tcp"]) -> None:
    def count(hello: bytes) -> int:
        frames = QuicTransfer(hello=hello).run() if transport == "quic" else tls_transfer(messages=(hello,))
        capture = pcap(tmp_path / "proof.pcap", frames)
        return resumed(capture, server_ip=SERVER[0], server_port=SERVER[1], transport=transport)

    assert count(server_hello()) == 0
    assert count(server_hello(resumed=True)) == 1


def old_messages(*, resumed: bool) -> tuple[bytes, ...]:
    """What a server of TLS 1.2 sends before its ChangeCipherSpec, in one record."""
    body = b"\x03\x03" + bytes(32) + b"\x00" + bytes.fromhex("c02f 00 0000")
    hello = b"\x02" + len(body).to_bytes(3, "big") + body
    certificate, ticket = b"\x0b\x00\x00\x02\x00\x00", b"\x04\x00\x00\x02\x00\x00"
    return (hello + (b"" if resumed else certificate) + ticket,)


@pytest.mark.parametrize("again", [False, True])
def test_an_abbreviated_handshake_of_tls_1_2_is_a_resumed_one(tmp_path: Path, again: bool) -> None:
    capture = pcap(tmp_path / "proof.pcap", tls_transfer(messages=old_messages(resumed=again)))
    assert resumed(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="tcp") == again


@pytest.mark.parametrize(
    ("name", "transport"),
    [("nginx-h3-resumed", "quic"), ("tcp-tls-early-data", "tcp"), ("tcp-tls-resumed-tls12", "tcp")],
)
def test_one_of_two_visits_is_resumed(repository: Path, name: str, transport: Literal["quic", "tcp"]) -> None:
    capture = repository / "tests/data/handshakes" / f"{name}.pcap"
    seen = examine(capture, server_ip="127.0.0.1", server_port=4433, transport=transport, mtu=65535)
    assert (seen.connections, seen.resumed) == (2, 1)


def test_a_server_hello_without_key_share(tmp_path: Path) -> None:
    proof = quic_proof(tmp_path, QuicTransfer(hello=server_hello(group=None)).run())
    assert check(proof, NEGOTIATED) == ["A group is to be negotiated, but the ServerHello has no key share."]


def test_crypto_data_are_put_together_in_any_order() -> None:
    ack = b"\x03\x05\x00\x01\x00\x00\x00\x01\x02\x03"  # one more range, ECN counts
    first = b"\x00\x01" + ack + crypto_frame(b"Server")
    overlapping = crypto_frame(b"erHello", 4) + bytes(20)
    assert crypto_stream([overlapping, first]) == b"ServerHello"
    assert crypto_stream([overlapping]) == b""
    closed = b"\x1c\x00\x00\x00" + crypto_frame(b"Server")
    assert crypto_stream([closed, b"\x06\x00\x09cut", b"\x02"]) == b"Server"
    unknown = b"\x21" + crypto_frame(b"Server")
    assert crypto_stream([unknown, crypto_frame(b"before") + unknown]) == b"before"


@pytest.mark.parametrize(
    ("name", "server", "transport", "group", "requests"),
    [
        ("quiche", "10.113.0.2", "quic", 0x001D, 0),
        ("quiche-x25519-mlkem768", "10.113.0.2", "quic", 0x11EC, 0),
        ("openssl-retry", "10.113.0.2", "quic", 0x001D, 0),
        ("tcp-tls", "10.113.0.2", "tcp", 0x001D, 0),
        ("tcp-tls-hrr", "127.0.0.1", "tcp", 0x001D, 1),
    ],
)
def test_server_hellos_of_real_captures(
    repository: Path, name: str, server: str, transport: Literal["quic", "tcp"], group: int, requests: int
) -> None:
    capture = repository / "tests" / "data" / "handshakes" / f"{name}.pcap"
    proof = examine(capture, server_ip=server, server_port=4433, transport=transport, mtu=1500)
    assert proof.connections > 0
    assert (len(proof.cipher_suites), proof.unread_hellos) == (1, 0)
    assert proof.groups == (group,)
    assert proof.hello_retry_requests == requests


@pytest.mark.parametrize("how", ["vlan", "qinq", "cooked", "trailer"])
@pytest.mark.parametrize(("mtu", "fits"), [(1500, True), (1499, False)])
def test_the_mtu_limits_ip_packets_whatever_the_link_has_around_them(
    tmp_path: Path, how: str, mtu: int, fits: bool
) -> None:
    """The longest packets of the transfer have 1500 bytes."""
    claim = Claim("noop", header_protection=False)
    plain = transfer(claim).run()
    wrap = {
        "vlan": lambda frame: ethernet(frame[14:], vlans=1),
        "qinq": lambda frame: ethernet(frame[14:], vlans=2),
        "cooked": lambda frame: frame[12:14] + bytes(18) + frame[14:],
        "trailer": lambda frame: frame + bytes(6),
    }[how]
    path = pcap(tmp_path / "c.pcap", [wrap(frame) for frame in plain], link=276 if how == "cooked" else 1)
    ends = {"server_ip": SERVER[0], "server_port": SERVER[1], "transport": "quic"}
    proof = examine(path, mtu=mtu, **ends)  # type: ignore[arg-type]
    assert [one for one in check(proof, claim) if "MTU" in one] == ([] if fits else check(proof, claim))
    assert bool(check(proof, claim)) != fits
    same = examine(pcap(tmp_path / "plain.pcap", plain), mtu=mtu, **ends)  # type: ignore[arg-type]
    assert proof.server_to_client == same.server_to_client


def test_fragments_prove_nothing(tmp_path: Path) -> None:
    claim = Claim("standard", header_protection=True)
    frames = [bytearray(frame) for frame in transfer(claim).run()]
    for frame in frames:
        frame[20:22] = b"\x20\x00"
    first, second = check(quic_proof(tmp_path, [bytes(frame) for frame in frames]), claim)
    assert first.startswith("The capture proves nothing")
    assert second.startswith(f"{len(frames)} frames, the first is frame 0, hold fragments")


BARE = [Claim("standard", None), Claim("noenc", None)]


@pytest.mark.parametrize("seen", BARE)
@pytest.mark.parametrize("claimed", BARE)
def test_datagrams_without_a_handshake_are_proven_by_what_can_be_read(
    tmp_path: Path, seen: Claim, claimed: Claim
) -> None:
    stream = random.Random(1)

    def body(plain: bytes) -> bytes:
        return stream.randbytes(len(plain) + 16) if seen.aead == "standard" else plain

    sent = [body(content(1400, 1400 * number)) for number in range(20)]
    told = [body(b"GET /28000\r\n"), body((28000).to_bytes(8, "big"))]
    frames = [udp(CLIENT, SERVER, number.to_bytes(8, "big") + one) for number, one in enumerate(told[:1])]
    frames += [udp(SERVER, CLIENT, number.to_bytes(8, "big") + one) for number, one in enumerate(sent)]
    frames.append(udp(CLIENT, SERVER, (1).to_bytes(8, "big") + told[1]))
    capture = pcap(tmp_path / "proof.pcap", frames)
    proof = examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="udp", mtu=1500)
    assert (proof.connections, proof.cipher_suites, proof.server_to_client.headers) == (1, (), None)
    assert bool(check(proof, claimed, 0)) == (seen != claimed)
