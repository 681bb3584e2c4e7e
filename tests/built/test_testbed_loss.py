"""Losses by a seed: exactly the frames that the seed says, in either direction, and none when none are asked for."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from quicbed.testbed import LinkSettings, LocalTestbed, TestbedError, agent
from quicbed.testbed.agent import loss_threshold
from quicbed.testbed.loss import is_lost

FRAMES = 1000
PATIENCE_S = 60.0
WIRE = LinkSettings(mode="wire")
SEED = 42
# Every frame of that many is lost or not with this probability; 5 standard deviations of a binomial distribution.
PERCENT, SPREAD = 5.0, 35


@pytest.fixture(scope="module")
def testbed() -> Iterator[LocalTestbed]:
    with LocalTestbed(f"l{os.getpid()}{random.randrange(10**6):06}") as testbed:
        yield testbed


def arrived(testbed: LocalTestbed, *, to_client: bool) -> set[int]:
    """Which of so many numbered datagrams arrive, once the others have been counted as lost."""
    ends = [testbed._local["server"], testbed._local["client"]]
    lost = f"link.lost_to_{'client' if to_client else 'server'}"
    before = testbed.counters()[lost]
    sending, receiving = ends if to_client else ends[::-1]
    sender = sending.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver = receiving.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with sender, receiver:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 2**24)  # SO_RCVBUFFORCE
        receiver.bind((str(receiving.address), 0))
        for number in range(FRAMES):
            sender.sendto(number.to_bytes(4, "big"), receiver.getsockname())
        receiver.setblocking(False)
        found: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(found) + testbed.counters()[lost] - before < FRAMES:
            assert time.monotonic() < deadline
            with contextlib.suppress(BlockingIOError):
                while len(found) < FRAMES:
                    found.add(int.from_bytes(receiver.recv(100), "big"))
        return found


def test_the_numbers_are_those_of_splitmix64() -> None:
    # first outputs for the seed 1234567 (test vector of the reference implementation)
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    for index, output in enumerate(outputs):
        upper = output >> 32
        assert is_lost(1234567, index, 100 * (upper + 1) / 2**32)
        assert not is_lost(1234567, index, 100 * upper / 2**32)


def test_shares() -> None:
    assert loss_threshold(0) == 0
    assert loss_threshold(100) == 2**32
    assert not any(is_lost(SEED, index, 0) for index in range(FRAMES))
    assert all(is_lost(SEED, index, 100) for index in range(FRAMES))
    lost = sum(is_lost(SEED, index, PERCENT) for index in range(FRAMES))
    assert abs(lost - FRAMES * PERCENT / 100) < SPREAD


@pytest.mark.root
def test_the_frames_that_the_seed_says_are_lost_and_counted(testbed: LocalTestbed) -> None:
    testbed.apply(LinkSettings(mode="wire", loss_percent=PERCENT))
    kept = {
        to_client: {n for n in range(FRAMES) if not is_lost(SEED if to_client else ~SEED, n, PERCENT)}
        for to_client in (True, False)
    }
    assert kept[True] != kept[False]
    for _ in range(2):  # the same ones again
        before = testbed.counters()
        testbed.seed_losses(SEED)
        assert arrived(testbed, to_client=True) == kept[True]
        testbed.seed_losses(SEED)
        assert arrived(testbed, to_client=False) == kept[False]
        after = testbed.counters()
        assert after["link.lost_to_client"] - before["link.lost_to_client"] == FRAMES - len(kept[True])
        assert after["link.lost_to_server"] - before["link.lost_to_server"] == FRAMES - len(kept[False])


@pytest.mark.root
def test_no_frame_is_lost_where_none_is_to_be(testbed: LocalTestbed) -> None:
    testbed.apply(LinkSettings(mode="wire", loss_percent=50))
    testbed.apply(WIRE)
    testbed.seed_losses(SEED)
    assert len(arrived(testbed, to_client=True)) == FRAMES


@pytest.mark.root
def test_a_kernel_that_cannot_lose_frames_says_so(testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "why_no_loss", "kernel has no tc with extended BPF: Operation not permitted")
    assert testbed.unsupported(WIRE) is None
    reason = testbed.unsupported(LinkSettings(mode="wire", loss_percent=1))
    assert reason == "no losses: kernel has no tc with extended BPF: Operation not permitted"
    monkeypatch.setattr(agent, "BPF_SYSCALL", {})
    monkeypatch.setattr(testbed, "link_loss", None)
    with pytest.raises(TestbedError, match=r"middle: cannot lose frames by a seed: bpf: bpf\(2\) is not known for"):
        testbed.apply(LinkSettings(mode="wire", loss_percent=1))


def test_losses_need_single_frames() -> None:
    with pytest.raises(ValidationError, match="loss_percent needs mode `wire`"):
        LinkSettings(mode="throughput", loss_percent=1)
    with pytest.raises(ValidationError, match="loss_percent"):
        LinkSettings(mode="wire", loss_percent=51)
