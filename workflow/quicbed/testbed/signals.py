"""Signals while a testbed is in use: none interrupts its removal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Signals:
    """SIGTERM ends the driver by an exception as Ctrl-C does; neither interrupts the removal."""

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}
        self._pending: list[int] = []

    def watch(self) -> None:
        """Turn SIGTERM into an exception, unless the program has its own way."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._previous[int(signal.SIGTERM)] = signal.signal(signal.SIGTERM, self._exit)

    @staticmethod
    def _exit(number: int, frame: FrameType | None) -> None:  # noqa: ARG004 (a handler's signature)
        raise SystemExit(128 + number)

    def unwatch(self) -> None:
        """Put the signal's handling back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals wait until the end of the context."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {
            int(number): signal.signal(number, lambda caught, _: self._pending.append(caught))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            pending, self._pending = self._pending, []
            for number in pending[:1]:
                signal.raise_signal(number)
