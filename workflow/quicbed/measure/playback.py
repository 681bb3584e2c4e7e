"""What the playing of a video amounts to, and whether what a client tells of it can be so."""

from __future__ import annotations

import itertools
from typing import Any

from quicbed.contract import videofiles
from quicbed.contract.events import ClientConnection, Playback
from quicbed.measure.attempt import Attempt
from quicbed.plan.spec import RunSpec

SHORTER_S = 0.5
"""How much shorter than the video its playing may be: the last frame needs no time."""
LONGER_S = 5.0
"""How much longer it may be without its stalls: a busy machine goes on late."""


STALL_NS = 10**9 // videofiles.FRAMES_PER_S
"""What a stall lasts at least: a frame, as less is not seen."""


def judge(attempt: Attempt, spec: RunSpec, connection: ClientConnection) -> bool:
    """Keep the metrics of a video that was played; False where the client does not tell of it what can be so."""
    played = connection.playback
    if played is None:
        attempt.fail("the client reported a video without how it was played")
        return False
    if (problem := _problem(spec, connection, played)) is not None:
        attempt.fail(f"the client reports what no player does: {problem}")
        return False
    begin, complete = connection.t_connect, connection.t_handshake_complete
    if begin is None or complete is None:
        attempt.fail("the client reported a video without the times of its connection")
        return False
    assert spec.video is not None  # noqa: S101 (callers check)
    segments = sorted(played.segments, key=lambda one: one.number)
    loaded = sum(videofiles.segment_bytes(spec.video, one.kbit) for one in segments)
    taken_ns = sum(one.t_last_byte - one.t_request for one in segments)
    attempt.metrics |= {
        "connection_ms": (complete - begin) / 1e6,
        "startup_delay_ms": (played.t_playing - played.t_navigation) / 1e6,
        "bit_rate_mbps": sum(one.kbit for one in segments) / len(segments) / 1000,
        "download_rate_mbps": 8e3 * loaded / taken_ns,
        "quality_switches": sum(one.kbit != other.kbit for one, other in itertools.pairwise(segments)),
        "stalls": len(stalls := [end - begin for begin, end in played.stalls if end - begin >= STALL_NS]),
        "stall_s": sum(stalls) / 1e9,
    }
    attempt.host["playback"] = _kept(played)
    return True


def _problem(spec: RunSpec, connection: ClientConnection, played: Playback) -> str | None:
    """What a client tells that cannot be so, or None."""
    video = spec.video
    assert video is not None  # noqa: S101 (callers check)
    count = video.segments(spec.play_s)
    if sorted(one.number for one in played.segments) != list(range(1, count + 1)):
        return f"not each of the {count} segments was loaded once"
    if unknown := {one.kbit for one in played.segments} - set(video.kbits):
        return f"a segment of {min(unknown)} kbit/s, which `{video.name}` does not have"
    if sum(videofiles.segment_bytes(video, one.kbit) for one in played.segments) > connection.bytes_received:
        return f"its segments have more than the {connection.bytes_received} bytes that it received"
    if sum(one.t_last_byte - one.t_request for one in played.segments) <= 0:
        return "its segments took no time"
    lasts, took = count * video.segment_s, (played.t_ended - played.t_playing - _stalled_ns(played)) / 1e9
    if not lasts - SHORTER_S <= took <= lasts + LONGER_S:
        return f"{lasts:g} s of video were played in {took:.3f} s beside stalls"
    return None


def _stalled_ns(played: Playback) -> int:
    return sum(end - begin for begin, end in played.stalls)


def _kept(played: Playback) -> dict[str, Any]:
    """The course of the playing, in seconds from the begin of the navigation."""

    def after(time: int) -> float:
        return round((time - played.t_navigation) / 1e9, 6)

    return {
        "playing_s": after(played.t_playing),
        "ended_s": after(played.t_ended),
        "stalls_s": [[after(begin), after(end)] for begin, end in played.stalls],
        "segments": [
            {
                "number": one.number,
                "kbit": one.kbit,
                "asked_s": after(one.t_request),
                "loaded_s": after(one.t_last_byte),
            }
            for one in sorted(played.segments, key=lambda one: one.number)
        ],
    }
