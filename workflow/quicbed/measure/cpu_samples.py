"""Processor time of both endpoints while the client runs, from the kernel's accounting, a sample a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from quicbed.testbed import Exit, Process

INTERVAL_S = 1.0


class CpuSamples:
    """Samples processes while one of them is waited for; between samples the driver sleeps."""

    def __init__(
        self, processes: Mapping[str, Process], also: Callable[[], None] | None = None, also_s: float = INTERVAL_S
    ) -> None:
        """*processes* by role; what they have used so far counts for nothing.

        *also* is called every *also_s* seconds meanwhile.
        """
        self._also = also
        self._also_s = also_s
        self._processes = dict(processes)
        self._begin = self._last = time.monotonic()
        self._used = {role: process.sample_cpu() for role, process in self._processes.items()}
        self._at_begin = dict(self._used)
        self._percent: dict[str, list[float]] = {role: [] for role in self._processes}

    def wait(self, role: str, timeout: float) -> Exit:
        """How a process ended; :class:`TimeoutError` if it still runs after *timeout* seconds."""
        process = self._processes[role]
        deadline = self._begin + timeout
        while True:
            sampled = self._last + INTERVAL_S
            due = min(deadline, sampled)
            if self._also is not None:
                due = min(due, time.monotonic() + self._also_s)
            try:
                ended = process.wait(max(0.0, due - time.monotonic()))
            except TimeoutError:
                if due == deadline:
                    raise
                if self._also is not None:
                    self._also()
                if due == sampled:
                    self._sample()
            else:
                self._finish(role, ended)
                return ended

    def _sample(self) -> None:
        now = time.monotonic()
        for role, process in self._processes.items():
            used, before = process.sample_cpu(), self._used[role]
            if used is not None and before is not None:
                self._percent[role].append(100 * (used - before) / (now - self._last))
            self._used[role] = used
        self._last = now

    def _finish(self, role: str, ended: Exit) -> None:
        """Take the last values; of the process that has ended only its exit tells."""
        self._last = time.monotonic()
        for other, process in self._processes.items():
            self._used[other] = ended.user_s + ended.system_s if other == role else process.sample_cpu()

    def result(self) -> dict[str, dict[str, Any]]:
        """By role ``percent``, the mean up to the end, and ``samples``, those of whole seconds; 100 is one processor.

        ``seconds`` are those of the processor up to the end.

        A role of which nothing was told at the beginning or at the end is not there, and neither is one that had done
        all its work by the beginning: its exit tells microseconds, so that less than before may seem used.
        """
        found = {}
        for role, used in self._used.items():
            before = self._at_begin[role]
            if used is not None and before is not None and used > before and self._last > self._begin:
                percent = 100 * (used - before) / (self._last - self._begin)
                found[role] = {"percent": percent, "samples": self._percent[role], "seconds": used - before}
        return found
