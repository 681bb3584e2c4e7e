"""A Chromium that is started for one page and spoken to over its DevTools protocol, through pipes.

https://chromedevtools.github.io/devtools-protocol/ describes the messages: JSON objects that end with a zero byte,
read from file descriptor 3 and written to 4 by the browser (`--remote-debugging-pipe`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""What the browser is called, in the order in which it is looked for."""
VARIABLE = "BROWSER_PATH"
"""Of the environment: the path of the browser."""
NOT_FOUND = f"no Chromium found (Debian: apt-get install chromium, or set {VARIABLE})"
_VERSION = re.compile(r"[\w ]*?[\d.]+")
"""In what it prints: `Chromium 156.0.8078.79 built on Debian GNU/Linux 12 (bookworm)`."""
START_S = 30.0
CLOSE_S = 3.0
PART = 1 << 16
MOST = 1 << 28
"""Bytes of the largest message that is taken."""


class BrowserError(Exception):
    """A browser that does not do what it is asked to, as one line."""


class TimeoutBrowserError(BrowserError):
    """It did not answer in time."""


def find() -> str | None:
    """Path of the browser; None without one."""
    named = os.environ.get(VARIABLE)
    if named:
        return named if os.access(named, os.X_OK) else None
    return next(filter(None, map(shutil.which, NAMES)), None)


def version(path: str) -> str:
    """What it says that it is, as `Chromium 140.0.7339.80` or `Google Chrome 140.0.7339.80`."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=START_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeError) as error:
        raise BrowserError(f"{path} --version fails: {error}") from None
    found = _VERSION.match(done.stdout)
    if found is None:
        raise BrowserError(f"{path} --version fails: no version in {done.stdout[:100]!a}")
    return found[0].strip()


_PR_SET_CHILD_SUBREAPER = 36


def _adopt() -> None:
    """Be the parent of processes whose own has ended, so that what they used is told of this one's (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap(deadline: float) -> None:
    """Wait for all processes that this one is the parent of."""
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


class Browser:
    """A running browser; all its processes end with `close`."""

    def __init__(self, path: str, arguments: Sequence[str], environment: dict[str, str], log: Path) -> None:
        _adopt()
        ours, theirs = os.pipe(), os.pipe()
        command = [path, "--remote-debugging-pipe", *arguments]

        # its ends of the pipes are to be 3 and 4, which may be taken by the other ends
        script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", script, "sh", str(ours[0]), str(theirs[1]), *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                pass_fds=(ours[0], theirs[1]),
                start_new_session=True,
            )
        os.close(ours[0])
        os.close(theirs[1])
        self._write, self._read = ours[1], theirs[0]
        os.set_blocking(self._read, False)
        self._buffer = bytearray()
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """Messages that answer nothing, in order of arrival."""

    def attach(self, deadline: float) -> None:
        """Open a page, to which `call` then speaks."""
        target = self.call("Target.createTarget", deadline, url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", deadline, targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, deadline: float, **parameters: Any) -> dict[str, Any]:
        """The result of a method; what arrives meanwhile is added to `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            data = json.dumps(message).encode() + b"\0"
            while data:
                data = data[os.write(self._write, data) :]
        except OSError:
            raise BrowserError(self._ended()) from None
        for answer in self._messages(deadline):
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"Chromium refuses {method}: {thrown(answer['error'])}")
            else:
                result = answer.get("result")
                return result if isinstance(result, dict) else {}
        raise TimeoutBrowserError(f"Chromium does not answer {method}")

    def evaluate(self, expression: str, deadline: float) -> Any:
        """Value of an expression on the page, of which a promise is waited for."""
        done = self.call("Runtime.evaluate", deadline, expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise BrowserError(f"the page fails: {thrown(done['exceptionDetails'])}")
        return done.get("result", {}).get("value")

    def listen(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Messages that answer nothing, those first that have arrived already, until the deadline."""
        yield from list(self.events)
        for message in self._messages(deadline):
            self.events.append(message)
            yield message

    def _messages(self, deadline: float) -> Iterator[dict[str, Any]]:
        while True:
            end = self._buffer.find(b"\0")
            if end >= 0:
                text = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                try:
                    message = json.loads(text)
                except ValueError:
                    raise BrowserError("Chromium sends a message that is no JSON") from None
                if isinstance(message, dict):
                    yield message
                continue
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                return
            part = os.read(self._read, PART)
            if not part:
                raise BrowserError(self._ended())
            self._buffer += part
            if len(self._buffer) > MOST:
                raise BrowserError(f"Chromium sends a message of more than {MOST} bytes")

    def _ended(self) -> str:
        try:
            code = self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            return "Chromium closes its DevTools connection"
        return f"Chromium ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"

    def close(self) -> None:
        """End the browser, with SIGKILL where it does not otherwise."""
        if self._process.poll() is None:
            self._session = None
            with contextlib.suppress(BrowserError, OSError):
                self.call("Browser.close", time.monotonic() + CLOSE_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _reap(time.monotonic() + CLOSE_S)
        for end in (self._write, self._read):
            os.close(end)


def thrown(told: object) -> str:
    """The first line of what Chromium tells of an error."""
    if isinstance(told, dict):
        told = told.get("exception", {}).get("description") or told.get("message") or told.get("text")
    return str(told).partition("\n")[0][:300]
