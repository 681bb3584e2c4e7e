"""Videos in Chromium: one that dash.js plays to its end, and what is said of a player, page or browser that fails."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from loopback import Loopback, connections, read_events
from quicbed.config.model import Project
from quicbed.config.videos import Video
from quicbed.contract import videofiles
from quicbed.measure import browser, player

pytestmark = pytest.mark.timeout(300)

VIDEO = Video("short", 1, (350, 700))
PLAY_S = 2
FAKE = ROOT / "tests/support/fake_chromium.py"
NAMES = ("index.html", "manifest.mpd", "350-init.webm", "700-init.webm", "350-1.webm", "700-2.webm")
"""What a fake browser has loaded."""


def made(build: Path) -> Path:
    """The directory of a video, for both ends."""
    return browser.provided_video(Project(ROOT, {"paths": {"build": str(build)}}), VIDEO, PLAY_S)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a video whose player is none."""
    (tmp_path / "none.js").write_text("player", encoding="utf-8")
    monkeypatch.setattr(player, "fetch", lambda _: tmp_path / "none.js")
    return made(tmp_path / "build")


def test_a_video_is_played_to_its_end_over_http_3(loopback: Loopback, tmp_path: Path) -> None:
    if (reason := browser.problem() or player.problem(Project(ROOT))) is not None:
        pytest.skip(reason)
    player.fetch(Project(ROOT))
    build = tmp_path / "build"
    shutil.copytree(ROOT / "build/player", build / "player")
    place = made(build)
    server = loopback.serve("nginx-h3", "--www", str(place / "www"), "--requests", "6", signature="rsa-2048")
    server.environment |= {
        "QUICBED_PAGE": str(place / "www"),
        "QUICBED_PIN": browser.pin(server.identity),
        "QUICBED_TRANSPORT": "quic",
        "QUICBED_PLAYER": str(place / "dash.js"),
    }
    code, told = server.run("--timeout", "300", programs=place / "bin")
    (played,) = connections(told)
    assert (code, played["error"], played["alpn"], played["content_ok"]) == (0, None, "h3", True)
    playback = played["playback"]
    assert sorted(one["number"] for one in playback["segments"]) == [1, 2]
    loaded = sum(videofiles.segment_bytes(VIDEO, one["kbit"]) for one in playback["segments"])
    assert loaded < played["bytes_received"] == played["bytes_requested"] < loaded + 5000
    assert played["t_connect"] < playback["t_playing"] < playback["t_ended"] < played["t_close"]
    (one,) = server.stop(after=1)
    assert (one["error"], one["bytes_sent"]) == (None, played["bytes_received"])


def test_a_machine_without_npm_gets_the_same_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = player.fetch(Project(ROOT))
    found = shutil.which
    monkeypatch.setattr(player.shutil, "which", lambda name: None if name == "npm" else found(name))
    fetched = player.fetch(Project(ROOT, {"paths": {"build": str(tmp_path)}}))
    assert fetched.read_bytes() == expected.read_bytes()


def requested(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """What Chromium tells of files that it loads."""
    found = []
    for number, name in enumerate(names):
        one, url, time = f"r{number}", f"https://server/{name}", 2.0 + number / 10
        timing = {"requestTime": 2.0, "connectStart": 0, "sslStart": 1, "connectEnd": 5, "sendEnd": 6}
        response = {"url": url, "protocol": "h2", "timing": timing | {"receiveHeadersEnd": 9}}
        asked = {"requestId": one, "request": {"url": url}, "timestamp": time}
        found.append({"method": "Network.requestWillBeSent", "params": asked})
        found.append({"method": "Network.responseReceived", "params": {"requestId": one, "response": response}})
        found.append({"method": "Network.loadingFinished", "params": {"requestId": one, "timestamp": time + 0.05}})
    return found


def tells(**told: Any) -> dict[str, Any]:
    """What the page tells of its player."""
    whole = {"playing": 500, "ended": 2600, "stalls": [], "error": None} | told
    return {"method": "Runtime.bindingCalled", "params": {"payload": json.dumps(whole)}}


def run(
    files: Path, directory: Path, told: list[dict[str, Any]], how: str = "plays", **bodies: bytes
) -> dict[str, Any]:
    """The connection that the program reports of a fake browser that tells this; *bodies* are those of other files."""
    program = directory / "chromium"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    content = {f"r{number}": (files / "www" / name).read_bytes() for number, name in enumerate(NAMES)}
    encoded = {name: base64.b64encode(body).decode("ascii") for name, body in (content | bodies).items()}
    (directory / "events.json").write_text(json.dumps(told), encoding="utf-8")
    (directory / "bodies.json").write_text(json.dumps(encoded), encoding="utf-8")
    log = directory / "client.jsonl"
    argv = [str(files / "bin" / "client"), "--events", str(log), "--connect", "127.0.0.1:9", "--server-name", "server"]
    environment = {
        "QUICBED_PAGE": str(files / "www"),
        "QUICBED_PIN": "A",
        "QUICBED_TRANSPORT": "tcp",
        "QUICBED_PLAYER": str(files / "dash.js"),
        "BROWSER_PATH": str(program),
        "FAKE_CHROMIUM": how,
        "FAKE_EVENTS": str(directory / "events.json"),
        "FAKE_BODIES": str(directory / "bodies.json"),
    }
    options = ["--ca", "none", "--bytes", "1", "--timeout", "2"]
    subprocess.run([*argv, *options], env=os.environ | environment, timeout=60, check=False, capture_output=True)
    said = read_events(log)
    assert said[-1]["event"] == "end"
    (connection,) = connections(said)
    return connection


def test_what_a_browser_tells_becomes_times_of_the_contract(files: Path, tmp_path: Path) -> None:
    told = run(files, tmp_path, [*requested(NAMES), tells(stalls=[[1000, 1100]])])
    assert (told["error"], told["content_ok"]) == (None, True)
    assert told["bytes_received"] == sum((files / "www" / name).stat().st_size for name in NAMES)
    ms = 1_000_000
    assert (told["t_connect"], told["t_client_hello"], told["t_handshake_complete"]) == (
        2000 * ms,
        2001 * ms,
        2005 * ms,
    )
    assert told["playback"] == {
        "t_navigation": 1000 * ms,
        "t_playing": 1500 * ms,
        "t_ended": 3600 * ms,
        "stalls": [[2000 * ms, 2100 * ms]],
        "segments": [
            {"number": 1, "kbit": 350, "t_request": 2400 * ms, "t_last_byte": 2450 * ms},
            {"number": 2, "kbit": 700, "t_request": 2500 * ms, "t_last_byte": 2550 * ms},
        ],
    }


@pytest.mark.parametrize(
    ("names", "bodies", "told"),
    [
        (NAMES[:-1], {}, "segment 2: was loaded 0 times"),
        ((*NAMES, "350-2.webm"), {"r6": None}, "segment 2: was loaded 2 times"),
        ((*NAMES, "700-2.webm"), {}, "700-2.webm: was asked for twice"),
        ((*NAMES, "other.webm"), {}, "other.webm: is no file of the video"),
        (("index.html", *NAMES[2:]), {}, "bytes that are not the"),
        (NAMES, {"r4": b"short"}, "350-1.webm: 5 bytes that are not the 43750 of the file"),
        (NAMES, {"r4": b"!" * 43750}, "350-1.webm: 43750 bytes that are not the 43750 of the file"),
    ],
)
def test_segments_that_are_not_the_files_fail_the_video(
    files: Path, tmp_path: Path, names: tuple[str, ...], bodies: dict[str, bytes | None], told: str
) -> None:
    other = (files / "www/350-2.webm").read_bytes()
    given = {name: other if body is None else body for name, body in bodies.items()}
    connection = run(files, tmp_path, [*requested(names), tells()], **given)
    assert not connection["ok"]
    assert told in connection["error"]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (None, "the video has not ended within 2 s"),
        (tells(error="dash.js: no\nmore"), "the player fails: dash.js: no"),
        (tells(playing=None), "the page tells that its video has ended and not that it has begun"),
        (tells(ended=None), "the page tells times of its player that do not follow each other"),
        (tells(ended=400), "the page tells times of its player that do not follow each other"),
        (tells(playing=True), "has ended and not that it has begun"),
        (tells(playing=1e300, ended=1e301), "has ended and not that it has begun"),
        (tells(stalls=[[700, 600]]), "the page tells times of its player that do not follow each other"),
        (tells(stalls=[[600, "7"]]), "the page tells times of its player that do not follow each other"),
        (tells(stalls=[[600]]), "the page does not tell when its video stalled"),
        (tells(stalls=[[600, 700]] * 1001), "the page does not tell how often its video stalled"),
        (tells(stalls="often"), "the page does not tell how often its video stalled"),
        ({"method": "Runtime.bindingCalled", "params": {"payload": "{"}}, "in no way that is understood"),
        ({"method": "Runtime.bindingCalled", "params": {"payload": "[" * 100_000}}, "in no way that is understood"),
        ({"method": "Runtime.bindingCalled", "params": {"payload": 7}}, "in no way that is understood"),
        ({"method": "Runtime.bindingCalled", "params": {}}, "in no way that is understood"),
        (
            {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": {"text": "Uncaught"}}},
            "the player fails: Uncaught",
        ),
        ({"method": "Inspector.targetCrashed"}, "the page crashed in Chromium"),
        (
            {"method": "Network.loadingFailed", "params": {"requestId": "r5", "errorText": "net::ERR_FAILED"}},
            "https://server/700-2.webm: net::ERR_FAILED",
        ),
    ],
)
def test_a_player_that_fails_is_a_failed_run_with_the_reason(
    files: Path, tmp_path: Path, event: dict[str, Any] | None, told: str
) -> None:
    connection = run(files, tmp_path, [*requested(NAMES), *([event] if event else [])])
    assert not connection["ok"]
    assert told in connection["error"]
    assert "\n" not in connection["error"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("silent", "Chromium does not answer Target.createTarget within 2 s"),
        ("ends later", "Chromium ended with exit code 7"),
        ("blocks", "Chromium does not load the page: net::ERR_CERT_INVALID"),
    ],
)
def test_a_browser_that_fails_is_a_failed_run(files: Path, tmp_path: Path, how: str, told: str) -> None:
    assert told in run(files, tmp_path, [], how)["error"]
