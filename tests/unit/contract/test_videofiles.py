"""Files of videos: segments are as large as their bit rate asks for, the same every time, and WebM with VP8."""

from __future__ import annotations

import re

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from quicbed.config.videos import Video, VideoError
from quicbed.contract import videofiles

VIDEO = Video("a", 2, (350, 1400))
FILES = dict(videofiles.files(VIDEO, 4, b"<!DOCTYPE html>"))


def elements(data: bytes) -> list[tuple[str, bytes]]:
    """Identities in hexadecimal and content of the elements of EBML one after the other (RFC 8794)."""
    found, at = [], 0
    while at < len(data):
        length = 9 - data[at].bit_length()
        identity, at = data[at : at + length].hex(), at + length
        width = 9 - data[at].bit_length()
        size = int.from_bytes(data[at : at + width]) & ((1 << 7 * width) - 1)
        at += width
        size = len(data) - at if size == (1 << 7 * width) - 1 else size
        assert at + size <= len(data)
        found.append((identity, data[at : at + size]))
        at += size
    return found


def test_all_files_of_a_video_are_named_and_made() -> None:
    segments = [videofiles.segment(kbit, number) for kbit in VIDEO.kbits for number in (1, 2)]
    assert {*FILES} == {"index.html", "manifest.mpd", "350-init.webm", "1400-init.webm", *segments}
    assert dict(videofiles.files(VIDEO, 4, b"<!DOCTYPE html>")) == FILES


@pytest.mark.parametrize("kbit", VIDEO.kbits)
@pytest.mark.parametrize("number", [1, 2])
def test_a_segment_has_the_bytes_of_its_bit_rate_in_frames(kbit: int, number: int) -> None:
    content = FILES[videofiles.segment(kbit, number)]
    assert len(content) == kbit * 1000 * 2 // 8
    ((cluster, inside),) = elements(content)
    (time, *blocks) = elements(inside)
    assert (cluster, time[0], int.from_bytes(time[1])) == ("1f43b675", "e7", (number - 1) * 2000)
    assert [identity for identity, _ in blocks] == ["a3"] * 50
    for index, (_, block) in enumerate(blocks):
        assert (block[0], int.from_bytes(block[1:3]), block[3]) == (0x81, index * 40, 0x80)
        # RFC 6386, 9.1: a key frame that is shown, its start code and size
        assert block[4] & 1 == 0
        assert block[7:14] == bytes.fromhex("9d012a") + bytes([128, 0, 72, 0])
        first = int.from_bytes(block[4:7], "little") >> 5
        assert not any(block[14 : 14 + first + 200])
    noise = blocks[0][1][600:]
    assert len(set(noise)) > 200
    assert content != FILES[videofiles.segment(kbit, 3 - number)]


def test_an_initialization_segment_has_one_track_of_vp8() -> None:
    (header, segment) = elements(FILES["350-init.webm"])
    assert dict(elements(header[1]))["4282"] == b"webm"
    about, tracks = elements(segment[1])
    ((_, track),) = elements(tracks[1])
    assert (about[0], dict(elements(track))["86"]) == ("1549a966", b"V_VP8")


def test_the_manifest_names_every_representation() -> None:
    text = FILES["manifest.mpd"].decode()
    assert 'mediaPresentationDuration="PT4S"' in text
    assert re.findall(r'id="(\d+)" bandwidth="(\d+)"', text) == [("350", "350000"), ("1400", "1400000")]


@pytest.mark.parametrize(
    "video",
    [
        Video("a", 2, (50,)),
        Video("a", 0.05, (350,)),
        Video("a", 60, (350,)),
    ],
)
def test_a_video_that_cannot_be_made_says_why(video: Video, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(VideoError) as error:
        videofiles.check(video)
    assert wording.one_line(error.value) == snapshot
