"""How a testbed is taken, changed and given back, whatever its hosts are: the order of things, and what errors undo.

A testbed is one driver's at a time. It is set up when it is entered and put back when it is left, also where setting
up fails half-way or a signal comes; every step of putting back is tried, and the first that fails is told. A link is
changed only where it differs from the one in use, and one that could not be made is in use by nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from quicbed.base.untrusted import one_line

from .base import LinkSettings, Testbed, TestbedError
from .lock import Lock
from .signals import Signals


class Attempts:
    """Steps of which each is tried, whatever becomes of the others."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def __call__(self, step: Callable[[], object]) -> None:
        """Make a step and keep its error, whatever that is: what comes next is put back all the same."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (told when all is put back)
            self.errors.append(error)


class LockedTestbed(Testbed):
    """A testbed that a driver has for itself from its beginning to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._signals = Signals()
        self._lock: Lock | None = None
        self._link: LinkSettings | None = None
        """The link as it is; None while it is changed, and where that has failed."""
        self._measured_rtt_ms: float | None = None

    def __enter__(self) -> Self:
        directory = self._lock_directory()
        lock = Lock(directory / f"{self.name}.lock", self.name)
        lock.acquire()
        self._lock = lock
        self._signals.watch()
        try:
            self._set_up(directory)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._lock is None:
            return
        try:
            with self._signals.held():
                self._leave(self._lock)
        finally:
            self._signals.unwatch()

    def _leave(self, lock: Lock) -> None:
        attempt = Attempts()
        self._link = None
        attempt(partial(self._put_back, attempt))
        lock.release()
        self._lock = None
        if attempt.errors:
            first = attempt.errors[0]
            told = str(first) if isinstance(first, TestbedError | OSError) else f"{type(first).__name__}: {first}"
            raise TestbedError(f"testbed {self.name} is not restored completely: {one_line(told)}") from first

    def apply(self, link: LinkSettings) -> None:
        self.recover()
        if link == self._link:
            return
        self._link = None
        self._measured_rtt_ms = None
        self._set_link(link)
        self._link = link

    def set_rate(self, rate_mbit: float) -> None:
        if self._link is None or self._link.rate_mbit is None:
            raise TestbedError("the link has no rate that could be changed")
        self._change_rate(self._link.model_copy(update={"rate_mbit": rate_mbit}))

    def _link_facts(self, **more: Any) -> dict[str, Any] | None:
        """The link in use and *more* of it, for :meth:`facts`; None if there is none."""
        if self._link is None:
            return None
        return {**self._link.model_dump(), "measured_rtt_ms": self._measured_rtt_ms, **more}

    def _sent(self, count: int | None, expression: str) -> Callable[[], float] | None:
        """What tells how many frames have been sent that a capture of *count* frames and of a filter has to hold.

        ``None`` where it holds others: not all of them, or such that offloads make of many packets.
        """
        comparable = count is None and not expression and self._link is not None and self._link.mode == "wire"
        return self._frames_sent if comparable else None

    def _frames_sent(self) -> float:
        """Frames that client and server have sent so far and that come past the tap."""
        values = self.counters()
        return sum(values[f"{host.name}.{host.interface}.tx_packets"] for host in (self.client, self.server))

    @abstractmethod
    def _lock_directory(self) -> Path:
        """Where the lock and the state of this testbed are kept; TestbedError if it cannot be used at all."""

    @abstractmethod
    def _set_up(self, directory: Path) -> None:
        """Remove what a crashed driver left, create and verify; *directory* is that of the lock."""

    @abstractmethod
    def _put_back(self, attempt: Attempts) -> None:
        """End every program and put back what was changed, as far as setting up had come; each step by *attempt*."""

    @abstractmethod
    def _set_link(self, link: LinkSettings) -> None:
        """Make the link and the hosts as *link* says, whatever they were, and verify it by reading back."""

    @abstractmethod
    def _change_rate(self, link: LinkSettings) -> None:
        """Give the link that is in use the rate of *link*, which else is the same."""
