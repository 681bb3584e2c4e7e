"""Plays one video with dash.js in a fresh Chromium, and tells when it started, stalled and ended, and what it loaded.

QUICBED_PAGE is the directory of the video's files (`index.html`, `manifest.mpd`, `<kbit>-init.webm` and
`<kbit>-<number>.webm`), QUICBED_PLAYER the file of dash.js. The player is not loaded from the server: it is given to
the page before that is loaded, as a visitor has it in the cache. What the page tells comes as one text through a
binding (`Runtime.addBinding`) and is believed only as far as it is plausible.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from endpoint.client import DOCUMENT, Page, main
from endpoint.devtools import Browser, BrowserError, TimeoutBrowserError, thrown

MANIFEST = "manifest.mpd"
BINDING = "quicbedTells"
MOST_TOLD = 1 << 20
"""Characters of what the page tells."""
MOST_STALLS = 1000
KEPT_BYTES = 1 << 30
"""Of bodies that Chromium keeps until they have been compared."""

SETTINGS = {
    "streaming": {
        # each segment is loaded once, so that what is loaded is what is played
        "abr": {"rules": {"abandonRequestsRule": {"active": False}}},
        "buffer": {"fastSwitchEnabled": False},
        "cacheInitSegments": True,
        # nothing of earlier visits
        "lastBitrateCachingInfo": {"enabled": False},
        "lastMediaSettingsCachingInfo": {"enabled": False},
    }
}
"""What is not as dash.js has it."""

PLAY = """
addEventListener("DOMContentLoaded", () => {
  %(player)s;
  const told = {playing: null, ended: null, stalls: [], error: null};
  let waits = null;
  const tell = () => window.%(binding)s(JSON.stringify(told));
  const fail = what => { told.error = told.error || String(what).slice(0, 300); tell(); };
  const video = document.querySelector("video");
  video.addEventListener("playing", () => {
    const now = performance.now();
    if (told.playing === null) told.playing = now;
    else if (waits !== null) told.stalls.push([waits, now]);
    waits = null;
  });
  video.addEventListener("waiting", () => {
    if (told.playing !== null && waits === null && !video.ended) waits = performance.now();
  });
  video.addEventListener("ended", () => { told.ended = performance.now(); tell(); });
  video.addEventListener("error", () => fail(video.error ? video.error.message : "the video cannot be played"));
  try {
    const player = dashjs.MediaPlayer().create();
    player.updateSettings(%(settings)s);
    player.on("error", event => fail("dash.js: " + (event.error && event.error.message || event.error)));
    player.initialize(video, "%(manifest)s", true);
  } catch (error) {
    fail(error);
  }
});
"""

FETCH = "Promise.all(%s.map(name => fetch(name).then(answer => answer.arrayBuffer()))).then(all => all.length)"
_SEGMENT = re.compile(r"([1-9]\d{0,8})-([1-9]\d{0,5})\.webm", re.ASCII)
_INIT = re.compile(r"[1-9]\d{0,8}-init\.webm", re.ASCII)


class Player(Page):
    """A video that is played, as the browser and its page tell of it."""

    def __init__(self, browser: Browser, server: str, deadline: float) -> None:
        super().__init__(browser, server, deadline)
        self._sent: dict[str, float] = {}
        """When an object was asked for, in seconds."""

    def load(self) -> dict[str, Any]:
        """Play the video; fields of its `connection` event, with an `error` where it is not what it has to be."""
        browser, deadline = self._browser, self._deadline
        for domain in ("Page", "Performance", "Runtime"):
            browser.call(f"{domain}.enable", deadline)
        kept = {"maxTotalBufferSize": KEPT_BYTES, "maxResourceBufferSize": KEPT_BYTES}
        browser.call("Network.enable", deadline, **kept)
        browser.call("Network.setCacheDisabled", deadline, cacheDisabled=True)
        browser.call("Runtime.addBinding", deadline, name=BINDING)
        words = {"binding": BINDING, "settings": json.dumps(SETTINGS), "manifest": MANIFEST}
        words["player"] = Path(os.environ["QUICBED_PLAYER"]).read_text(encoding="utf-8")
        browser.call("Page.addScriptToEvaluateOnNewDocument", deadline, source=PLAY % words)
        browser.events.clear()
        begun = browser.call("Page.navigate", deadline, url=f"{self._origin}{DOCUMENT}")
        if begun.get("errorText"):
            return {"error": f"Chromium does not load the page: {begun['errorText']}"}
        told = self._play()
        if told["error"]:
            return {"error": told["error"]}
        if self._response is None:
            return {"error": "Chromium tells nothing of the page's own response"}
        fields = self._negotiated(self._response) | self._connection_times(self._response)
        return fields | {"playback": self._playback(told)}

    def _play(self) -> dict[str, Any]:
        """What the page told when the video had ended, or an `error`."""
        for event in self._browser.listen(self._deadline):
            if (problem := self._take(event)) is not None:
                return {"error": problem}
            if event.get("method") == "Runtime.bindingCalled":
                return read_told(event["params"].get("payload"))
        raise TimeoutBrowserError("the video has not ended")

    def _take(self, event: Mapping[str, Any]) -> str | None:
        """Keep what an event tells of requests; why the video cannot go on, if it tells that."""
        method, told = event.get("method"), event.get("params", {})
        if method == "Inspector.targetCrashed":
            return "the page crashed in Chromium"
        if method == "Runtime.exceptionThrown":
            return f"the player fails: {thrown(told.get('exceptionDetails'))}"
        if method == "Network.requestWillBeSent":
            url = str(told["request"]["url"])
            if not url.startswith(("data:", "blob:")):
                self._requests[told["requestId"]] = url
                self._sent[told["requestId"]] = told["timestamp"]
        elif method == "Network.responseReceived" and told["response"]["url"] == f"{self._origin}{DOCUMENT}":
            self._response = told["response"]
        elif method == "Network.loadingFinished":
            self._done[told["requestId"]] = told["timestamp"]
        elif method == "Network.loadingFailed" and told["requestId"] in self._requests:
            return f"{self._requests[told['requestId']]}: {told.get('errorText') or 'not loaded'}"
        return None

    def _playback(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """The `playback` of the event: times in ns on the clock of the contract."""
        navigation = self._navigation()
        segments = []
        for one, url in self._requests.items():
            found = _SEGMENT.fullmatch(url.removeprefix(self._origin))
            if found is None or one not in self._done:
                continue
            begin, end = round(self._sent[one] * 1e9), round(self._done[one] * 1e9)
            segments.append(
                {
                    "number": int(found[2]),
                    "kbit": int(found[1]),
                    "t_request": begin,
                    "t_last_byte": max(begin, end),
                }
            )

        def at(milliseconds: float) -> int:
            return navigation + round(milliseconds * 1e6)

        return {
            "t_navigation": navigation,
            "t_playing": at(told["playing"]),
            "t_ended": at(told["ended"]),
            "stalls": [[at(begin), at(end)] for begin, end in told["stalls"]],
            "segments": segments,
        }

    def compared(self, wanted: Mapping[str, Path]) -> dict[str, Any]:
        """Bytes of all that was loaded, and what is wrong with one object or missing, as fields of the event."""
        asked: dict[str, str] = {}
        for one, url in self._requests.items():
            name = url.removeprefix(self._origin)
            if name in asked:
                return {"error": f"{name}: was asked for twice"}
            asked[name] = one
        # the server expects as many requests on each connection
        left = [name for name in wanted if _INIT.fullmatch(name) and name not in asked]
        self._browser.evaluate(FETCH % json.dumps(left), self._deadline)
        for event in self._browser.events:
            if (problem := self._take(event)) is not None:
                return {"error": problem}
        asked |= {url.removeprefix(self._origin): one for one, url in self._requests.items()}
        received, problem = 0, None
        for name, one in asked.items():
            if name not in wanted:
                problem = problem or f"{name}: is no file of the video"
                continue
            told = self._browser.call("Network.getResponseBody", self._deadline, requestId=one)
            text = str(told.get("body", ""))
            try:
                body = base64.b64decode(text, validate=True) if told.get("base64Encoded") else text.encode()
            except ValueError:
                raise BrowserError(f"{name}: Chromium tells no body of it") from None
            content = wanted[name].read_bytes()
            received += len(body)
            if body != content:
                problem = problem or f"{name}: {len(body)} bytes that are not the {len(content)} of the file"
        problem = problem or missing(wanted, asked)
        fields = {"bytes_requested": received, "bytes_received": received, "content_ok": problem is None}
        return fields | ({"error": problem} if problem else {})


def missing(wanted: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """Which segment was loaded in no representation or in several; None if each was in one."""
    numbers = sorted({int(found[2]) for name in wanted if (found := _SEGMENT.fullmatch(name))})
    loaded = [int(found[2]) for name in asked if (found := _SEGMENT.fullmatch(name))]
    for number in numbers:
        if (count := loaded.count(number)) != 1:
            return f"segment {number}: was loaded {count} times"
    return next(
        (f"{name}: was not asked for" for name in wanted if not _SEGMENT.fullmatch(name) and name not in asked), None
    )


def read_told(text: object) -> dict[str, Any]:
    """What a page tells of its player; BrowserError where that is not what a player can tell."""
    told = None
    if isinstance(text, str) and len(text) <= MOST_TOLD:
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = None
    if not isinstance(told, dict):
        raise BrowserError("the page tells of its player in no way that is understood")
    if told.get("error"):
        return {"error": f"the player fails: {str(told['error']).partition(chr(10))[0][:300]}"}
    playing, ended, stalls = told.get("playing"), told.get("ended"), told.get("stalls")
    if not _time(playing):
        raise BrowserError("the page tells that its video has ended and not that it has begun")
    if not isinstance(stalls, list) or len(stalls) > MOST_STALLS:
        raise BrowserError("the page does not tell how often its video stalled")
    times = [playing]
    for stall in stalls:
        if not isinstance(stall, list) or len(stall) != 2:
            raise BrowserError("the page does not tell when its video stalled")
        times += stall
    times.append(ended)
    if not all(map(_time, times)) or times != sorted(times):
        raise BrowserError("the page tells times of its player that do not follow each other")
    return {"error": None, "playing": playing, "ended": ended, "stalls": stalls}


def _time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1e9


if __name__ == "__main__":
    sys.exit(main(Player))
