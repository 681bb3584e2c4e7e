"""The rate of the link while a video is played: changed as a rate trace says, and put back after it."""

from __future__ import annotations

import time

from quicbed.config.videos import RateTrace
from quicbed.measure.attempt import Attempt
from quicbed.testbed import Testbed


class Rates:
    """Follows a trace from when it is made; the link has the rate of the first step from then on."""

    def __init__(self, testbed: Testbed, trace: RateTrace, attempt: Attempt) -> None:
        self._testbed = testbed
        self._trace = trace
        self._changes: list[list[float]] = []
        attempt.host["rate_changes"] = self._changes
        self._begin = time.monotonic()
        self.follow()

    def follow(self) -> None:
        """Give the link the rate that it has by now, unless it has it already."""
        rate = self._trace.at(time.monotonic() - self._begin)
        if not self._changes or self._changes[-1][1] != rate:
            self._testbed.set_rate(rate)
            # when it was in force, in seconds, and what it is
            self._changes.append([round(time.monotonic() - self._begin, 6), rate])

    def end(self) -> None:
        """Give the link the rate that it was prepared with, the highest."""
        self._testbed.set_rate(self._trace.highest_mbit)
