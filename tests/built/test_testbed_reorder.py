"""Packets put back by a seed: those that the seed says, as far as asked for, and nothing is lost or left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from clone import ROOT
from quicbed.testbed import LinkSettings, LocalTestbed, TestbedError, agent, local
from quicbed.testbed.loss import drawn
from quicbed.testbed.reorder import NAME, order, threshold

pytestmark = pytest.mark.root

FRAMES = 3000
PATIENCE_S = 60.0
SEED = 42
SIZES = (10, 400, 1400)
ROLES = ("client", "server")


@pytest.fixture(scope="module")
def testbed() -> Iterator[LocalTestbed]:
    with (
        pytest.MonkeyPatch.context() as changed,
        LocalTestbed(f"o{os.getpid()}{random.randrange(10**6):06}") as testbed,
    ):
        # on a busy machine a sender may be away for longer than the link is to wait
        changed.setattr(local, "IDLE_S", 600.0)
        yield testbed


def flush(testbed: LocalTestbed, to: str) -> None:
    assert testbed.link_reorder is not None
    testbed._local["middle"].call(testbed.link_reorder._ports[to].flush)


def link(permille: float, packets: int, **more: float) -> LinkSettings:
    return LinkSettings.model_validate(
        {"mode": "wire", "reorder_permille": permille, "reorder_packets": packets, **more}
    )


def sent(testbed: LocalTestbed, to: str, count: int) -> None:
    """Return when so many packets have come to the link since the seed was set."""
    assert testbed.link_reorder is not None
    deadline = time.monotonic() + PATIENCE_S
    while testbed.link_reorder._ports[to].seen() < count:
        assert time.monotonic() < deadline


def arrived(testbed: LocalTestbed, *, to_client: bool = True, count: int = FRAMES, flushed: bool = True) -> list[int]:
    """Numbers of datagrams of several sizes in the order in which they arrive; all of them do."""
    ends = [testbed._local["server"], testbed._local["client"]]
    sending, receiving = ends if to_client else ends[::-1]
    sender = sending.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver = receiving.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with sender, receiver:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 2**25)  # SO_RCVBUFFORCE
        receiver.bind((str(receiving.address), 0))
        receiver.settimeout(PATIENCE_S)
        for number in range(count):
            sender.sendto(number.to_bytes(4, "big") + bytes(SIZES[number % 3]), receiver.getsockname())
        if testbed.link_reorder is not None and flushed:
            to = "client" if to_client else "server"
            sent(testbed, to, count)
            flush(testbed, to)
        found = []
        for _ in range(count):
            content = receiver.recv(2000)
            found.append(int.from_bytes(content[:4], "big"))
            assert content[4:] == bytes(SIZES[found[-1] % 3])
        return found


def counted(testbed: LocalTestbed, to: str) -> dict[str, float]:
    values = testbed.counters()
    return {name: values[f"link.reorder_{name}_to_{to}"] for name in ("held", "put_back", "flushed", "lost")}


@pytest.mark.parametrize(("permille", "packets"), [(0, 1), (10, 1), (10, 8), (10, 83), (10, 830), (500, 1), (300, 100)])
def test_the_packets_that_the_seed_says_leave_as_many_later_as_asked_for(
    testbed: LocalTestbed, permille: float, packets: int
) -> None:
    testbed.apply(link(permille, packets))
    for _ in range(2):  # the same ones again
        for to, seed in (("client", SEED + 1), ("server", ~(SEED + 1))):
            before = counted(testbed, to)
            testbed.seed_losses(SEED)
            wanted = list(order(seed, permille, packets, FRAMES))
            assert arrived(testbed, to_client=to == "client") == wanted
            after = counted(testbed, to)
            chosen = chosen_of(seed, permille, range(FRAMES))
            late = chosen_of(seed, permille, range(FRAMES - packets, FRAMES))
            grown = {name: after[name] - before[name] for name in after}
            assert grown == {"held": chosen, "put_back": chosen, "flushed": late, "lost": 0}


def chosen_of(seed: int, permille: float, numbers: range) -> int:
    """How many packets of these numbers are put back."""
    return sum(drawn(seed, number) < threshold(permille) for number in numbers)


def test_losses_come_first(testbed: LocalTestbed) -> None:
    testbed.apply(link(50, 3, loss_percent=5))
    testbed.seed_losses(SEED)
    before = testbed.counters()["link.lost_to_client"]
    ends = [testbed._local[role].call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for role in ROLES]
    with ends[0] as receiver, ends[1] as sender:
        receiver.bind((str(testbed.client.address), 0))
        for _ in range(FRAMES):
            sender.sendto(b"x", receiver.getsockname())
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert testbed.link_reorder is not None
            lost = testbed.counters()["link.lost_to_client"] - before
            if testbed.link_reorder._ports["client"].seen() + lost == FRAMES:
                break
            assert time.monotonic() < deadline
    assert 0 < lost < FRAMES
    # those that are lost have no number here
    assert counted(testbed, "client")["held"] == chosen_of(SEED + 1, 50, range(FRAMES - int(lost)))
    assert counted(testbed, "client")["lost"] == 0


def test_what_is_held_arrives_once_the_link_is_idle(testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "IDLE_S", 0.05)
    testbed.apply(link(500, 1000))
    testbed.seed_losses(SEED)
    assert sorted(arrived(testbed, count=100, flushed=False)) == list(range(100))
    found = counted(testbed, "client")
    assert found["held"] == found["put_back"] == found["flushed"] > 0
    assert found["lost"] == 0


def test_senders_on_several_processors_lose_nothing(testbed: LocalTestbed) -> None:
    testbed.apply(link(500, 1))
    testbed.seed_losses(SEED)
    server, client = testbed._local["server"], testbed._local["client"]
    receiver = client.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    senders = [server.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(4)]
    with receiver, contextlib.ExitStack() as stack:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 2**26)  # SO_RCVBUFFORCE
        receiver.bind((str(client.address), 0))
        receiver.settimeout(PATIENCE_S)

        def send(first: int, sender: socket.socket) -> None:
            for number in range(first, first + FRAMES):
                sender.sendto(number.to_bytes(4, "big"), receiver.getsockname())

        threads = [
            threading.Thread(target=send, args=(place * FRAMES, stack.enter_context(sender)))
            for place, sender in enumerate(senders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sent(testbed, "client", len(senders) * FRAMES)
        flush(testbed, "client")
        found = {int.from_bytes(receiver.recv(100), "big") for _ in range(len(senders) * FRAMES)}
    assert found == set(range(len(senders) * FRAMES))
    assert counted(testbed, "client")["lost"] == 0


def test_what_the_link_puts_back_is_delayed_too(testbed: LocalTestbed) -> None:
    settings = link(100, 5, rtt_ms=20)
    if (reason := testbed.unsupported(settings)) is not None:
        pytest.skip(reason)
    testbed.apply(settings)
    testbed.seed_losses(SEED)
    assert sorted(arrived(testbed, count=300)) == list(range(300))
    assert counted(testbed, "client")["lost"] == 0


def filters(testbed: LocalTestbed) -> str:
    middle = testbed._local["middle"]
    return "".join(
        middle.run(["tc", "filter", "show", "dev", f"{role}0", "ingress"]).stdout for role in ("client", "server")
    )


def test_the_program_goes_with_the_link_that_needs_it(testbed: LocalTestbed) -> None:
    testbed.apply(link(500, 1))
    assert filters(testbed).count(NAME) == 2
    testbed.apply(LinkSettings(mode="wire"))
    assert NAME not in filters(testbed)
    assert "link.reorder_held_to_client" not in testbed.counters()
    assert arrived(testbed) == list(range(FRAMES))


def test_a_kernel_that_refuses_the_program_says_so_and_the_link_stays_usable(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed.apply(LinkSettings(mode="wire"))
    with monkeypatch.context() as changed:
        changed.setattr(testbed, "why_no_reorder", "kernel does not take it")
        assert testbed.unsupported(link(1, 1)) == "no reordering: kernel does not take it"
        assert testbed.unsupported(LinkSettings(mode="wire")) is None
        changed.setattr(testbed, "link_loss", None)
        changed.setattr(agent, "BPF_SYSCALL", {})
        with pytest.raises(TestbedError, match=r"middle: cannot put packets back: bpf: bpf\(2\) is not known for"):
            testbed.apply(link(1, 1))
    testbed.apply(LinkSettings(mode="wire"))
    assert arrived(testbed) == list(range(FRAMES))


KILLED = """
import sys, time
from quicbed.testbed import LinkSettings, LocalTestbed
with LocalTestbed(sys.argv[1]) as testbed:
    testbed.apply(LinkSettings(mode="wire", reorder_permille=500, reorder_packets=1))
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_killed_driver_leaves_no_program_behind() -> None:
    name = f"p{os.getpid()}{random.randrange(10**6):06}"
    command = [sys.executable, "-c", KILLED, name]
    driver = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")}, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    with LocalTestbed(name) as testbed:
        testbed.apply(LinkSettings(mode="wire"))
        assert NAME not in filters(testbed)
        assert arrived(testbed) == list(range(FRAMES))
