"""Files of a video as a player gets them: a DASH manifest, and for each representation its segments in WebM.

Nothing is encoded. Every frame is a key frame of VP8 (RFC 6386) whose partitions begin with zeros: the boolean decoder
(RFC 6386, 7) reads each flag and token of such a frame as false, which is a grey picture. What follows in the second
partition is never read, random bytes that do not compress. So a segment has exactly the bytes that its bit rate asks
for, all of them in frames, and is the same on every machine.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from quicbed.config.videos import FILE, Video, VideoError

DOCUMENT = "index.html"
MANIFEST = "manifest.mpd"
FRAMES_PER_S = 25
LONGEST_S = 30.0
"""Of a segment: the time of a frame within it has 16 bits (RFC 9559, 10.2)."""
WIDTH, HEIGHT = 128, 72
"""Pixels, few of them: what is measured is not how fast a machine decodes."""
_MODES, _TOKENS = 256, 256
"""Zeros of the first and second partition: 40 macroblocks take fewer, whatever the probabilities are."""
_HEAD, _BLOCK = 22, 13
"""Bytes of a segment before its first frame, and before each frame."""
_TRACK = 1
_TIME_SCALE_NS = 1_000_000


def initialization(kbit: int) -> str:
    """Name of the initialization segment of a representation."""
    return f"{kbit}-init.webm"


def segment(kbit: int, number: int) -> str:
    """Name of a media segment of a representation; the first is 1."""
    return f"{kbit}-{number}.webm"


def files(video: Video, play_s: float, document: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of all files; VideoError where a bit rate is too low for a frame."""
    yield DOCUMENT, document
    yield MANIFEST, manifest(video, play_s).encode()
    for kbit in video.kbits:
        yield initialization(kbit), _initialization()
        for number in range(1, video.segments(play_s) + 1):
            yield segment(kbit, number), _segment(video, kbit, number)


def check(video: Video) -> None:
    """VideoError where a bit rate is too low for a frame, or the frames of a segment are not whole."""
    if video.segment_s * FRAMES_PER_S % 1:
        raise VideoError(f"{FILE}: {video.name}: segments of {video.segment_s:g} s have no whole number of frames")
    if video.segment_s > LONGEST_S:
        raise VideoError(f"{FILE}: {video.name}: segments have at most {LONGEST_S:g} s")
    for kbit in video.kbits:
        _frame_bytes(video, kbit)


def segment_bytes(video: Video, kbit: int) -> int:
    """Size of every media segment of a representation."""
    return round(kbit * 1000 * video.segment_s / 8)


def manifest(video: Video, play_s: float) -> str:
    """The media presentation description (ISO/IEC 23009-1)."""
    lasts = video.segments(play_s) * video.segment_s
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:isoff-live:2011" type="static"',
        f' mediaPresentationDuration="PT{lasts:g}S" minBufferTime="PT{video.segment_s:g}S"><Period>',
        '<AdaptationSet contentType="video" mimeType="video/webm" codecs="vp8" segmentAlignment="true"'
        f' startWithSAP="1" frameRate="{FRAMES_PER_S}">',
        f'<SegmentTemplate timescale="1000" duration="{round(video.segment_s * 1000)}" startNumber="1"'
        ' initialization="$RepresentationID$-init.webm" media="$RepresentationID$-$Number$.webm"/>',
    ]
    lines += [
        f'<Representation id="{kbit}" bandwidth="{kbit * 1000}" width="{WIDTH}" height="{HEIGHT}"/>'
        for kbit in video.kbits
    ]
    return "\n".join([*lines, "</AdaptationSet></Period></MPD>"]) + "\n"


def _initialization() -> bytes:
    """What stands before the first cluster: the header of the file and its only track (RFC 9559)."""
    header = _element(
        0x1A45DFA3,
        _element(0x4286, b"\x01"),  # EBMLVersion
        _element(0x42F7, b"\x01"),  # EBMLReadVersion
        _element(0x42F2, b"\x04"),  # EBMLMaxIDLength
        _element(0x42F3, b"\x08"),  # EBMLMaxSizeLength
        _element(0x4282, b"webm"),  # DocType
        _element(0x4287, b"\x02"),  # DocTypeVersion
        _element(0x4285, b"\x02"),  # DocTypeReadVersion
    )
    about = _element(
        0x1549A966,  # Info
        _element(0x2AD7B1, _number(_TIME_SCALE_NS)),  # TimestampScale
        _element(0x4D80, b"quicbed"),  # MuxingApp
        _element(0x5741, b"quicbed"),  # WritingApp
    )
    picture = _element(0xE0, _element(0xB0, _number(WIDTH)), _element(0xBA, _number(HEIGHT)))
    track = _element(
        0xAE,
        _element(0xD7, _number(_TRACK)),  # TrackNumber
        _element(0x73C5, _number(_TRACK)),  # TrackUID
        _element(0x9C, b"\x00"),  # FlagLacing
        _element(0x86, b"V_VP8"),  # CodecID
        _element(0x83, b"\x01"),  # TrackType: video
        picture,
    )
    unknown = b"\x01" + b"\xff" * 7
    return header + bytes.fromhex("18538067") + unknown + about + _element(0x1654AE6B, track)


def _segment(video: Video, kbit: int, number: int) -> bytes:
    """One cluster: the frames of a segment, which share its bytes equally but for what a division leaves."""
    size, count = segment_bytes(video, kbit), round(video.segment_s * FRAMES_PER_S)
    begin = round((number - 1) * video.segment_s * 1000)
    # the sizes of elements have 8 bytes everywhere, so that it is known what is around frames
    head = bytes.fromhex("1f43b675") + _size(size - 12) + b"\xe7\x88" + begin.to_bytes(8)
    each, left = _frame_bytes(video, kbit)
    seed = hashlib.sha256(f"{video.name} {kbit} {number}".encode()).digest()
    noise = random.Random(seed)
    parts = [head]
    for index in range(count):
        frame = _frame(each + (index < left), noise)
        time = round(index * 1000 / FRAMES_PER_S)
        block = bytes([0x80 | _TRACK]) + time.to_bytes(2) + b"\x80"
        parts += [b"\xa3", _size(len(block) + len(frame)), block, frame]
    return b"".join(parts)


def _frame_bytes(video: Video, kbit: int) -> tuple[int, int]:
    """Bytes of each frame of a segment, and what a division leaves."""
    count = round(video.segment_s * FRAMES_PER_S)
    each, left = divmod(segment_bytes(video, kbit) - _HEAD - count * _BLOCK, count)
    if each < len(_frame(0, random.Random(0))):
        raise VideoError(f"{FILE}: {video.name}: {kbit} kbit/s are too few for a frame: give it more")
    return each, left


def _frame(size: int, noise: random.Random) -> bytes:
    """A key frame of *size* bytes, or the smallest there is (RFC 6386, 9.1)."""
    tag = 0 | 1 << 4 | _MODES << 5  # a key frame of version 0 that is shown, and the size of its first partition
    head = tag.to_bytes(3, "little") + b"\x9d\x01\x2a" + WIDTH.to_bytes(2, "little") + HEIGHT.to_bytes(2, "little")
    grey = head + bytes(_MODES + _TOKENS)
    return grey + noise.randbytes(max(size - len(grey), 0))


def _element(identity: int, *content: bytes) -> bytes:
    """An element of EBML (RFC 8794)."""
    data = b"".join(content)
    return _number(identity) + _size(len(data)) + data


def _size(value: int) -> bytes:
    return (1 << 56 | value).to_bytes(8)


def _number(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8 or 1)
