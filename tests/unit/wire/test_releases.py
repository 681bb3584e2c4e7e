"""Release times as a server notes them, beside captures made to have known gaps."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

import hostile
import wording
from quicbed.wire import releases
from quicbed.wire.releases import ReleasesError
from wirefixtures import stamped, udp

SERVER, CLIENT = ("10.0.0.1", 4433), ("10.0.0.2", 50_000)
US = 1000
FIRST = releases.HEADER.pack(releases.MAGIC, releases.VERSION, releases.RECORD.itemsize)


def datagram(number: int, size: int = 1200) -> bytes:
    return random.Random(number).randbytes(size)


def noted(path: Path, times: list[int], size: int = 1200) -> Path:
    """What a server writes that means its datagrams to leave at these times; 0: at once."""
    records = [
        struct.pack("<QQQ", releases.fingerprint(datagram(number)), moment, size) for number, moment in enumerate(times)
    ]
    path.write_bytes(FIRST + b"".join(records))
    return path


def captured(path: Path, times: list[int]) -> Path:
    """A capture of these datagrams, cut as traces are, with one of the client between them."""
    sent = [(moment, udp(SERVER, CLIENT, datagram(number))) for number, moment in enumerate(times)]
    return stamped(path, [*sent, (times[-1], udp(CLIENT, SERVER, datagram(0)))])


def test_the_fingerprint_is_that_of_the_contract() -> None:
    assert releases.fingerprint(b"") == 0xCBF29CE484222325
    assert releases.fingerprint(b"foobar") == 0x85944171F73967E8
    assert releases.fingerprint(b"\7" * 100) == releases.fingerprint(b"\7" * releases.TELLING)


def test_the_precision_is_the_deviation_of_gaps_from_those_that_were_meant(tmp_path: Path) -> None:
    # on clocks of their own, and a datagram at once between the fourth and the last two
    meant = [5_000_000 + 300 * US * number for number in range(4)] + [0, 7_000_000, 7_300_000]
    sent = [0, 310 * US, 590 * US, 900 * US, 1000 * US, 2000 * US, 2300 * US]
    file, capture = noted(tmp_path / "releases.bin", meant), captured(tmp_path / "t.pcap", sent)
    # deviations are 10, -20, 10 and 0 us
    assert releases.precision_us(file, capture, SERVER) == pytest.approx(200**0.5)


def test_a_datagram_that_was_not_captured_is_no_gap(tmp_path: Path) -> None:
    meant = [10**6 + 300 * US * number for number in range(301)]
    sent = [300 * US * number for number in range(301)]
    file = noted(tmp_path / "releases.bin", meant)
    lost = captured(tmp_path / "t.pcap", sent[:-1])
    assert releases.precision_us(file, lost, SERVER) == 0


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"other" * 10,
        releases.HEADER.pack(releases.MAGIC, 2, 24),
        releases.HEADER.pack(releases.MAGIC, 1, 8),
        FIRST + bytes(23),
        FIRST + struct.pack("<QQQ", 1, 1 << 63, 1200),
        FIRST,
        FIRST + bytes(48),
        FIRST + struct.pack("<QQQ", 1, 9, 1200),
        FIRST + bytes(releases.MOST_BYTES),
    ],
)
def test_what_is_no_file_of_release_times_says_why(
    tmp_path: Path, content: bytes | None, snapshot: SnapshotAssertion
) -> None:
    file = tmp_path / "releases.bin"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ReleasesError) as error:
        releases.precision_us(file, captured(tmp_path / "t.pcap", [0, 1]), SERVER)
    assert wording.one_line(error.value, tmp_path) == snapshot


def test_a_datagram_of_another_length_is_another_one(tmp_path: Path) -> None:
    file = noted(tmp_path / "releases.bin", [9, 10, 11], size=1100)
    with pytest.raises(ReleasesError, match="0 of its 3 datagrams"):
        releases.precision_us(file, captured(tmp_path / "t.pcap", [0, 1, 2]), SERVER)


def test_too_few_times_in_succession_are_no_precision(tmp_path: Path) -> None:
    file = noted(tmp_path / "releases.bin", [9, 10, 0, 11, 12][:4])
    with pytest.raises(ReleasesError, match="no three packets in succession"):
        releases.precision_us(file, captured(tmp_path / "t.pcap", [0, 1, 2, 3]), SERVER)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "releases.bin")
    with pytest.raises(ReleasesError, match=r"releases\.bin: "):
        releases.read(tmp_path / "releases.bin")


def test_hostile_files_are_refused_in_one_line(tmp_path: Path) -> None:
    whole = noted(tmp_path / "whole", [9, 10, 11]).read_bytes()
    draw = random.Random(1)
    file = tmp_path / "releases.bin"
    for _ in range(min(hostile.INPUTS or 300, 300)):
        content = bytearray(whole[: draw.randrange(len(whole) + 1)])
        for _ in range(draw.randrange(4)):
            if content:
                content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content)
        told = ""
        try:
            assert releases.read(file).columns == ["fingerprint", "intended_ns", "bytes"]
        except ReleasesError as error:
            told = str(error)
        assert "\n" not in told
