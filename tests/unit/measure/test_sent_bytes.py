"""What a client says of its download is held against what the server's interface has sent."""

from __future__ import annotations

import time

import pytest

from faketestbed import FakeTestbed
from quicbed.measure.sent_bytes import SentBytes
from quicbed.testbed import LinkSettings

THROUGHPUT = LinkSettings(mode="throughput")
MS = 1_000_000


class Counting(FakeTestbed):
    """Its server's interface sends a megabyte in every 10 ms, on a clock that a test moves."""

    now = 0

    def sent_by_server(self) -> int | None:
        return self.now // (10 * MS) * 1_000_000


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> SentBytes:
    """Sampled each 10 ms for a second, in which the client ran."""
    testbed = Counting()
    monkeypatch.setattr(time, "monotonic_ns", lambda: testbed.now)
    samples = SentBytes(testbed)
    for _ in range(100):
        testbed.now += 10 * MS
        samples.take()
    samples.end()
    return samples


def problem(
    sent: SentBytes,
    request: int,
    end: int,
    size: int,
    link: LinkSettings = THROUGHPUT,
    ahead: int = 0,
    anywhere: bool = False,
) -> str | None:
    return sent.problem(
        begin=request + ahead,
        request=request + ahead,
        end=end + ahead,
        size=size,
        ahead=ahead,
        link=link,
        fastest_mbit=400_000,
        anywhere=anywhere,
    )


def test_what_agrees_passes(sent: SentBytes) -> None:
    assert problem(sent, 105 * MS, 605 * MS, 50_000_000) is None
    assert problem(sent, 0, 1000 * MS, 100_000_000) is None
    assert problem(sent, 105 * MS, 605 * MS, 50_000_000, ahead=7 * 10**15) is None


def test_a_download_that_was_not_sent_in_its_time_is_told(sent: SentBytes) -> None:
    said = problem(sent, 105 * MS, 205 * MS, 50_000_000)
    assert said is not None
    assert "50000000 bytes in 0.100000 s, and the server's interface sent 11065536 about that time" in said
    assert problem(sent, 105 * MS, 205 * MS, 50_000_000, ahead=5) is not None


def test_the_last_sample_counts_where_none_is_later(sent: SentBytes) -> None:
    """A client on another clock that ends with its last byte: no sample is as late as the error of the clocks."""
    ahead = 7 * 10**15
    assert problem(sent, 5 * MS, 1000 * MS, 99_000_000, ahead=ahead) is None
    said = problem(sent, 998 * MS, 1000 * MS, 99_000_000, ahead=ahead)
    assert said is not None
    assert "99000000 bytes in 0.002000 s, and the server's interface sent 3065536 about that time" in said
    said = problem(sent, 0, 2 * MS, 99_000_000, ahead=ahead)
    assert said is not None
    assert "the server's interface sent 3000000 about that time" in said


def test_nothing_is_faster_than_the_interface(sent: SentBytes) -> None:
    sent._testbed.speed_mbit = 10_000
    assert problem(sent, 100 * MS, 110 * MS, 1_000_000) is None
    said = problem(sent, 100 * MS, 101 * MS, 2_000_000)
    assert said is not None
    assert "more than an interface of 10000 Mbit/s carries" in said


def test_a_client_may_read_its_clock_after_its_first_packets_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent any more when it says that it has requested."""
    testbed = Counting()
    monkeypatch.setattr(Counting, "sent_by_server", lambda _: 10**9 if testbed.now else 0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: testbed.now)
    samples = SentBytes(testbed)
    testbed.now += 10 * MS
    samples.take()
    testbed.now += 10 * MS
    samples.end()
    assert problem(samples, 11 * MS, 12 * MS, 1) is None
    assert problem(samples, 11 * MS, 12 * MS, 65536) is None
    assert problem(samples, 11 * MS, 12 * MS, 65537) is not None


def test_a_megabyte_in_a_nanosecond_is_not_believed(sent: SentBytes) -> None:
    said = problem(sent, 105 * MS, 105 * MS + 1, 1_000_000)
    assert said is not None
    assert "1000000 bytes in 0.000000001 s, which is more than 400 Gbit/s (limits.goodput_gbps)" in said


def test_nothing_is_faster_than_the_link(sent: SentBytes) -> None:
    link = LinkSettings(mode="wire", rate_mbit=100)
    said = problem(sent, 100 * MS, 200 * MS, 2_000_000, link)
    assert said is not None
    assert "more than a link of 100 Mbit/s carries" in said
    assert problem(sent, 100 * MS, 200 * MS, 1_200_000, link) is None
    # a bucket that was full
    assert problem(sent, 100 * MS, 105 * MS, 80_000, link) is None


def test_times_before_the_start_and_after_the_end_are_not_those_of_the_run(sent: SentBytes) -> None:
    for request, end in ((-1, 500 * MS), (100 * MS, 1001 * MS)):
        said = problem(sent, request, end, 1000)
        assert said is not None
        assert "the client's times are not those of its run" in said


def test_a_testbed_that_counts_nothing_has_the_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = SentBytes(FakeTestbed())
    samples.end()
    begin = samples.begin
    assert problem(samples, begin, begin + 1, 10**9) is None
    assert problem(samples, begin - 1, begin + 1, 1) is not None


@pytest.mark.parametrize("begin", [0, 200, 395, 700])
def test_where_only_the_length_is_known_any_part_of_the_run_will_do(
    monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    """A client that goes on after 300 ms in which 30 MB were sent to it."""
    testbed = Counting()

    def burst(_: Counting) -> int:
        return min(max(0, testbed.now - begin * MS), 300 * MS) // (10 * MS) * 1_000_000

    monkeypatch.setattr(Counting, "sent_by_server", burst)
    monkeypatch.setattr(time, "monotonic_ns", lambda: testbed.now)
    samples = SentBytes(testbed)
    for _ in range(100):
        testbed.now += 10 * MS
        samples.take()
    samples.end()
    for ahead in (0, 7 * 10**15):
        for length in (300, 600, 1000):
            assert problem(samples, (1000 - length) * MS, 1000 * MS, 30_000_000, ahead=ahead, anywhere=True) is None
        said = problem(samples, 800 * MS, 1000 * MS, 30_000_000, ahead=ahead, anywhere=True)
        assert said is not None
        assert "30000000 bytes in 0.200000 s, and the server's interface sent at most 2" in said
    assert problem(samples, 999 * MS, 1000 * MS, 1_000_001, anywhere=True) is None
    assert problem(samples, 999 * MS, 1000 * MS, 3_000_000, anywhere=True) is not None
    said = problem(samples, 1000 * MS - 1, 1000 * MS, 1_000_000, anywhere=True)
    assert said is not None
    assert "limits.goodput_gbps" in said
