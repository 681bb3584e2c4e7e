"""What the server's interface has sent while the client ran: what the client says of its download is held against it.

The kernel counts the bytes, and this machine's clock says when it was asked. An endpoint can change neither.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quicbed.contract.events import ClientConnection
from quicbed.plan.spec import RunSpec
from quicbed.testbed import LinkSettings, Testbed
from quicbed.testbed.shaping import burst_bytes

# Errors of the clocks of hosts beside each other: half of the quickest of some round trips on a network nearby.
_SKEW_NS = 20_000_000
# The kernel counts with headers, which can only make it more.
_RATE_MARGIN = 1.05
# A client that has to wait for a processor between sending its request and reading its clock has been sent this much
# before its time: no more, since a server waits for acknowledgements after its first window (RFC 9002, section 7.2).
_UNANSWERED_BYTES = 65536


@dataclass(frozen=True)
class _Sample:
    """The counter was read at some time between the two, of this machine's CLOCK_MONOTONIC in ns."""

    before: int
    after: int
    sent: int


class SentBytes:
    """Samples of the bytes that the server's interface has sent, from before the client starts to after its end."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._samples: list[_Sample] = []
        self.take()
        self.begin = time.monotonic_ns()
        self._end: int | None = None

    def take(self) -> None:
        """Take a sample."""
        before = time.monotonic_ns()
        sent = self._testbed.sent_by_server()
        if sent is not None:
            self._samples.append(_Sample(before, time.monotonic_ns(), sent))

    def end(self) -> None:
        """The client has ended."""
        self._end = time.monotonic_ns()
        self.take()

    def contradiction(
        self,
        spec: RunSpec,
        connections: Sequence[ClientConnection],
        delta: Mapping[str, float],
        link: LinkSettings,
        fastest_mbit: float,
    ) -> str | None:
        """Where what the client says is not what was seen from outside of the programs; None if it is.

        *delta* is by how much the counters of the testbed grew; *fastest_mbit* as in `problem`.
        """
        ahead = self._testbed.client.monotonic_ahead_ns()
        for one in connections:
            begins = [time for time in (one.t_client_hello, one.t_request_sent) if time is not None]
            problem = self.problem(
                begin=min(begins, default=None),
                request=one.t_request_sent,
                end=one.t_last_byte,
                size=one.bytes_received,
                ahead=ahead,
                link=link,
                fastest_mbit=fastest_mbit,
                # a script may go on after the interval that its time.json tells
                anywhere=spec.silent("client"),
            )
            if problem is not None:
                return problem
        total = delta.get(f"server.{self._testbed.server.interface}.tx_bytes")
        size = sum(one.bytes_received for one in connections)
        if total is not None and total < size:
            return f"the client reports {size} bytes, and the server's interface sent {total:.0f} during the whole run"
        return None

    def problem(
        self,
        *,
        begin: int | None,
        request: int | None,
        end: int | None,
        size: int,
        ahead: int,
        link: LinkSettings,
        fastest_mbit: float,
        anywhere: bool = False,
    ) -> str | None:
        """What does not agree with a download of *size* bytes; None if all does.

        The times are those of the client's CLOCK_MONOTONIC in ns, which is *ahead* of this machine's: the *begin* of
        its connection, its *request* and the *end* of the content. *fastest_mbit* is the goodput that is believed where
        the link has no rate. *anywhere*: it is known how long the download took, not when in the run it was.
        """
        if request is None or end is None or begin is None or self._end is None:
            return None
        # hosts of one machine have one clock
        skew = 0 if ahead == 0 else _SKEW_NS
        if begin - ahead < self.begin - skew or end - ahead > self._end + skew:
            return (
                f"the client's times are not those of its run: from {(begin - ahead - self.begin) / 1e9:.6f} s after "
                f"its start to {(self._end - end + ahead) / 1e9:.6f} s before its end by this machine's clock"
            )
        if not self._samples:  # nothing counts here, and there may be no link either
            return None
        seconds = (end - request) / 1e9
        mbit = size * 8 / 1e6
        if link.rate_mbit is not None:
            most = link.rate_mbit * _RATE_MARGIN * (seconds + skew / 1e9) + burst_bytes(link) * 8 / 1e6
            if mbit > most:
                return (
                    f"the client reports {size} bytes in {seconds:.9f} s, more than a link of {link.rate_mbit:g} "
                    "Mbit/s carries"
                )
        elif mbit > fastest_mbit * seconds:
            return (
                f"the client reports {size} bytes in {seconds:.9f} s, which is more than {fastest_mbit / 1000:g} "
                "Gbit/s (limits.goodput_gbps)"
            )
        elif (speed := self._testbed.speed_mbit) is not None and (
            mbit > speed * _RATE_MARGIN * (seconds + skew / 1e9) + _UNANSWERED_BYTES * 8 / 1e6
        ):
            told = f"{size} bytes in {seconds:.9f} s"
            return f"the client reports {told}, more than an interface of {speed:g} Mbit/s carries"
        if anywhere:
            sent = self._most_in(end - request)
            told = f"at most {sent} in as long a part of the run"
        else:
            sent = self._most_between(request - ahead - skew, end - ahead + skew)
            before = self._most_between(self.begin, end - ahead + skew)
            if sent is not None and before is not None:
                sent = min(sent + _UNANSWERED_BYTES, before)
            told = f"{sent} about that time"
        if sent is not None and sent < size:
            return f"the client reports {size} bytes in {seconds:.6f} s, and the server's interface sent {told}"
        return None

    def _most_between(self, begin: int, end: int) -> int | None:
        """Bytes of which no more were sent between two times of this machine's CLOCK_MONOTONIC; None if unknown.

        Times before the client's start and after its end are those: what is sent then is not sent to it.
        """
        ended = self._end if self._end is not None else end
        earlier = [sample.sent for sample in self._samples if sample.after <= max(begin, self.begin)]
        later = [sample.sent for sample in self._samples if sample.before >= min(end, ended)]
        return later[0] - earlier[-1] if earlier and later else None

    def _most_in(self, length: int) -> int | None:
        """Bytes of which no more were sent in any *length* ns of the client's run; None if unknown."""
        if self._end is None:
            return None
        # most is between two samples where the first one is about to be followed by another
        last = max(self.begin, self._end - length)
        begins = {min(max(self.begin, sample.after - 1), last) for sample in self._samples}
        found = (self._most_between(begin, min(begin + length, self._end)) for begin in begins)
        return max((sent for sent in found if sent is not None), default=None)
