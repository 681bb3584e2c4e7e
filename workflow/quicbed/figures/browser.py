"""Images of figures, drawn by a Chromium that stays open until this process ends.

Processes that are started while it is `shared` have their images drawn by the same one.

A Chromium that is missing, does not start, crashes or hangs costs the images only, and is not tried again in this
process: starting it once more would take as long and end alike.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from multiprocessing import current_process
from multiprocessing.connection import Client, Connection, Listener
from subprocess import TimeoutExpired
from typing import Any

from quicbed.figures import font

START_TIMEOUT_S = 60.0
RENDER_TIMEOUT_S = 120.0
"""For images that are drawn together, and `IMAGE_TIMEOUT_S` more for each."""
IMAGE_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 10.0

NOT_FOUND = "no Chromium found (Debian: apt-get install chromium, or set BROWSER_PATH)"

SHARED_VARIABLE = "QUICBED_BROWSER"
"""Names the socket of the process that draws for this one."""

_open: _Chromium | None = None
_problem: str | None = None
_asked: Connection | None = None
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Draw for the processes that `multiprocessing` starts meanwhile, whose `render` asks this one; then end."""
    with tempfile.TemporaryDirectory(prefix="quicbed-") as directory:
        address = os.path.join(directory, "browser")  # noqa: PTH118 (as multiprocessing wants it)
        with Listener(address, "AF_UNIX", authkey=current_process().authkey) as listener:
            threading.Thread(target=_accept, args=(listener,), name="accept", daemon=True).start()
            os.environ[SHARED_VARIABLE] = address
            try:
                yield
            finally:
                del os.environ[SHARED_VARIABLE]
                with _one_at_a_time:
                    close()


def _accept(listener: Listener) -> None:
    with contextlib.suppress(OSError):  # it was closed
        while True:
            asking = listener.accept()
            threading.Thread(target=_answer, args=(asking,), name="answer", daemon=True).start()


def _answer(asking: Connection) -> None:
    with asking, contextlib.suppress(EOFError, OSError):  # the process that asks has ended
        while True:
            specifications = asking.recv()
            with _one_at_a_time:
                problem = _render(specifications)
            asking.send(problem)


def render(specifications: Sequence[dict[str, Any]]) -> str | None:
    """Draw images, each of which is a figure, a path and options as kaleido has them; returns why not, if not."""
    global _asked
    if (address := os.environ.get(SHARED_VARIABLE)) is None:
        return _render(specifications)
    if _asked is None:
        _asked = Client(address, "AF_UNIX", authkey=current_process().authkey)
    _asked.send(specifications)
    problem: str | None = _asked.recv()
    return problem


def _render(specifications: Sequence[dict[str, Any]]) -> str | None:
    global _open, _problem
    from choreographer.errors import DevtoolsProtocolError
    from kaleido.errors import ChromeNotFoundError, JavascriptError, KaleidoError

    if _problem is not None:
        return _problem
    path = "Chromium"
    try:
        if _open is None:
            _open = _Chromium()
            path = _open.find()
            try:
                _open.start()
            finally:
                # What is registered last runs first: the browser ends before the temporary directory that it was given
                # when it started is removed.
                atexit.unregister(close)
                atexit.register(close)
        path = _open.path
        _open.draw(specifications)
        return None
    except ChromeNotFoundError:
        _problem = NOT_FOUND
    except FutureTimeoutError:
        _problem = f"{path} does not answer; {_remedy(path)}"
    except (DevtoolsProtocolError, JavascriptError, KaleidoError) as error:
        close()  # what is wrong with a figure is not wrong with the next one
        return f"Chromium could not render: {type(error).__name__}: {_first_line(error)}"
    except Exception as error:  # noqa: BLE001 (whatever a browser does must not end what does without it)
        said = _first_line(error.args[0] if error.args else error)
        _problem = f"{path} fails: {type(error).__name__}: {said}; {_remedy(path)}"
    problem = _problem
    close()
    _problem = problem
    return problem


def _first_line(said: object) -> str:
    return str(said).partition("\n")[0]


def _remedy(path: str) -> str:
    return (
        f"try `{path} --headless --no-sandbox --dump-dom about:blank`, install Chromium again (Debian: apt-get install "
        "chromium) or name another one in BROWSER_PATH"
    )


def close() -> None:
    """End the browser, if there is one; the next figure tries again."""
    global _open, _problem
    opened, _open, _problem = _open, None, None
    if opened is not None:
        opened.close()


class _Chromium:
    """A browser and the thread in which its messages are read: a notebook's kernel has an event loop of its own."""

    def __init__(self) -> None:
        # what they tell of a browser that fails is told in one line here
        for name in ("choreographer", "kaleido", "browser_proc", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self.path = "Chromium"
        self._kaleido: Any = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)
        self._thread = threading.Thread(target=self._loop.run_forever, name="render figures", daemon=True)
        self._thread.start()

    def find(self) -> str:
        """Path of the browser; kaleido's ChromeNotFoundError without one."""
        from choreographer.browsers import Chromium
        from kaleido.errors import ChromeNotFoundError

        path = Chromium.find_browser(skip_local=False)
        if not path or not os.path.isfile(path):  # noqa: PTH113 (a string, or what else was found)
            raise ChromeNotFoundError(NOT_FOUND)
        self.path = str(path)
        return self.path

    def start(self) -> None:
        """Start the browser; TimeoutError of futures where it does not answer, kaleido's errors where it ends."""
        self._await(self._opened(), START_TIMEOUT_S)

    def draw(self, specifications: Sequence[dict[str, Any]]) -> None:
        """Draw images one after the other; errors as of `start`."""
        work = self._kaleido.write_fig_from_object(list(specifications), cancel_on_error=True)
        self._await(work, RENDER_TIMEOUT_S + IMAGE_TIMEOUT_S * len(specifications))

    def close(self) -> None:
        """End the browser, with SIGKILL where it does not otherwise."""
        if self._kaleido is not None and self._running():
            with contextlib.suppress(Exception):
                self._await(self._kaleido.close(), CLOSE_TIMEOUT_S)
        self._kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)

    async def _opened(self) -> None:
        import kaleido

        class Lasting(kaleido.Kaleido):  # type: ignore[misc]
            """Keeps its page for the next image: loading it again takes twice as long as drawing."""

            async def _return_kaleido_tab(self, tab: Any) -> None:
                await self.tabs_ready.put(tab)

        class Page(kaleido.PageGenerator):  # type: ignore[misc]
            header = kaleido.PageGenerator.header + font.embedding()

        # by default MathJax is a script from the network
        self._kaleido = Lasting(page_generator=Page(mathjax=False), path=self.path)
        await self._kaleido.open()

    def _await(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> None:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(timeout_s)
        except FutureTimeoutError:
            # A browser that is being started right now has no process here until it runs.
            deadline = time.monotonic() + CLOSE_TIMEOUT_S
            while not (self._started() or future.done()) and time.monotonic() < deadline:
                time.sleep(0.01)
            self._kill()  # what waits for it ends then
            future.cancel()
            raise

    def _started(self) -> bool:
        return getattr(self._kaleido, "subprocess", None) is not None

    def _running(self) -> bool:
        return self._started() and self._kaleido.subprocess.poll() is None

    def _kill(self) -> None:
        if self._running():
            with contextlib.suppress(ProcessLookupError, TimeoutExpired):
                os.killpg(self._kaleido.subprocess.pid, signal.SIGKILL)  # it leads a session of its own
                self._kaleido.subprocess.wait(CLOSE_TIMEOUT_S)
