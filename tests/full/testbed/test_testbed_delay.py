"""Round-trip time on the local testbed: where it lies, that it changes and goes, and what happens without it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from quicbed.testbed import LinkSettings, LocalTestbed, TestbedError, features
from quicbed.testbed import delay as module
from quicbed.testbed import local as local_module
from quicbed.testbed.base import ROLES
from quicbed.testbed.delay import CLIENT_END, SERVER_END
from quicbed.testbed.features import Feature, _delay
from quicbed.testbed.local import namespace_name
from quicbed.wire.pcap import Capture

PATIENCE_S = 60.0

# A driver that is killed with a delay on its link.
DRIVER = """
import sys, time
from quicbed.testbed import LinkSettings, LocalTestbed

with LocalTestbed(sys.argv[1]) as testbed:
    testbed.apply(LinkSettings(mode="wire", rtt_ms=10))
    print("applied", flush=True)
    time.sleep(600)
"""


def link(rtt_ms: float) -> LinkSettings:
    return LinkSettings(mode="wire", rtt_ms=rtt_ms)


def guests(name: str) -> list[int]:
    """Processes whose command line names the delay line of a testbed."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"/{name}.delay/".encode() in words and b"linux.uml" in words:
            found.append(int(file.parent.name))
    return found


@pytest.fixture
def name() -> Iterator[str]:
    """Name of a testbed of this test alone; nothing of it is left."""
    name = f"d{os.getpid()}{random.randrange(10**6):06}"
    yield name
    try:
        assert guests(name) == []
        assert not Path(f"/run/quicbed/{name}.delay").exists()
        assert not [role for role in ROLES if Path(f"/run/netns/{namespace_name(name, role)}").exists()]
    finally:
        for role in ROLES:
            subprocess.run(
                ["ip", "netns", "delete", namespace_name(name, role)], stderr=subprocess.DEVNULL, check=False
            )
        for kind in ("lock", "json"):
            Path(f"/run/quicbed/{name}.{kind}").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def testbed() -> Iterator[LocalTestbed]:
    feature = features()["delay"]
    if not feature.available:
        pytest.skip(feature.reason)
    name = f"d{os.getpid()}"
    with LocalTestbed(name) as testbed:
        yield testbed
    Path(f"/run/quicbed/{name}.lock").unlink()


def echo_ms(testbed: LocalTestbed) -> float:
    """Time of one UDP echo from client to server and back."""
    client, server = testbed._local["client"], testbed._local["server"]
    near: socket.socket = client.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    far: socket.socket = server.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with near, far:
        near.bind((str(client.address), 0))
        far.bind((str(server.address), 0))
        near.settimeout(PATIENCE_S)
        far.settimeout(PATIENCE_S)
        begin = time.monotonic()
        near.sendto(b"there", far.getsockname())
        content, address = far.recvfrom(100)
        far.sendto(content + b" and back", address)
        assert near.recv(100) == b"there and back"
        return (time.monotonic() - begin) * 1e3


def master_of_tap(testbed: LocalTestbed) -> str:
    return str(next(row for row in testbed._local["middle"].links() if row["ifname"] == "server0")["master"])


@pytest.mark.root
@pytest.mark.parametrize("rtt_ms", [10, 40, 4])
def test_an_echo_takes_the_round_trip_time(testbed: LocalTestbed, rtt_ms: float) -> None:
    testbed.apply(link(rtt_ms))
    facts = testbed.facts()["link"]
    assert facts["rtt_ms"] == rtt_ms
    assert facts["measured_rtt_ms"] >= 0.98 * rtt_ms
    assert facts["delay"] == "netem" or facts["delay"].startswith("user-mode-linux 6.")
    assert echo_ms(testbed) >= 0.98 * rtt_ms


@pytest.mark.root
def test_the_time_that_delaying_takes_is_told(testbed: LocalTestbed) -> None:
    testbed.apply(link(4))
    before = testbed.counters()["link.cpu_s"]
    if not guests(testbed.name):
        assert before == 0
        return
    assert before > 0
    while testbed.counters()["link.cpu_s"] == before:
        echo_ms(testbed)


@pytest.mark.root
def test_the_delay_lies_between_client_and_tap(testbed: LocalTestbed, tmp_path: Path) -> None:
    testbed.apply(link(400))
    with testbed.capture(tmp_path / "echo.pcap", filter="udp"):
        echo_ms(testbed)
    there, back = Capture(tmp_path / "echo.pcap").packets()
    assert there.source == testbed.client.address
    assert back.source == testbed.server.address
    # The server answers at once, so what is between the two at the tap is not the link.
    assert back.frame.time_ns - there.frame.time_ns < 200e6


@pytest.mark.root
def test_without_a_round_trip_time_nothing_is_in_the_path(testbed: LocalTestbed) -> None:
    testbed.apply(link(4))
    assert master_of_tap(testbed) == "bridge1"
    testbed.apply(link(0))
    assert master_of_tap(testbed) == "bridge0"
    echo_ms(testbed)
    facts = testbed.facts()["link"]
    assert facts["measured_rtt_ms"] is None
    assert facts["delay"] is None
    ports = {row["ifname"]: row["flags"] for row in testbed._local["middle"].links()}
    assert "UP" not in ports[CLIENT_END]
    assert "UP" not in ports[SERVER_END]


@pytest.mark.root
def test_large_frames_pass(testbed: LocalTestbed) -> None:
    testbed.apply(LinkSettings(mode="wire", rtt_ms=4, mtu=9000))
    client, server = testbed._local["client"], testbed._local["server"]
    near: socket.socket = client.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    far: socket.socket = server.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with near, far:
        far.bind((str(server.address), 0))
        far.settimeout(PATIENCE_S)
        near.sendto(bytes(8972), far.getsockname())
        assert len(far.recv(65536)) == 8972
    testbed.apply(link(0))


@pytest.mark.root
def test_nothing_but_the_echo_crosses_the_tap(testbed: LocalTestbed, tmp_path: Path) -> None:
    testbed.apply(link(4))
    with testbed.capture(tmp_path / "all.pcap"):
        echo_ms(testbed)
    assert len(list(Capture(tmp_path / "all.pcap"))) == 2


@pytest.mark.root
def test_a_rate_limit_and_a_round_trip_time_go_together(testbed: LocalTestbed) -> None:
    testbed.apply(LinkSettings(mode="wire", rtt_ms=10, rate_mbit=100))
    assert testbed._local["middle"].qdisc("client0")["kind"] == "tbf"
    assert echo_ms(testbed) >= 9.8
    testbed.apply(link(0))


@pytest.mark.root
def test_a_guest_that_ends_is_an_error_and_the_next_one_works(testbed: LocalTestbed) -> None:
    testbed.apply(link(4))
    pids = guests(testbed.name)
    if not pids:
        pytest.skip("the kernel's own netem delays")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(TestbedError, match="user-mode-linux") as caught:
        testbed.apply(link(5))
    assert "\n" not in str(caught.value)
    testbed.apply(link(0))
    echo_ms(testbed)
    testbed.apply(link(5))
    assert echo_ms(testbed) >= 4.9


@pytest.mark.root
def test_a_killed_driver_leaves_nothing_that_stays(testbed: LocalTestbed, name: str, repository: Path) -> None:
    del testbed  # only for its check that there is a delay
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repository / "workflow")},
    )
    assert driver.stdout is not None
    with driver, driver.stdout:
        assert driver.stdout.readline() == "applied\n"
        driver.kill()
    with LocalTestbed(name) as again:
        assert guests(name) == []
        again.apply(link(4))


@pytest.mark.root
def test_without_user_mode_linux_only_the_round_trip_time_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_program", lambda _: None)
    no = Feature(False, "kernel has no netem")
    monkeypatch.setattr(local_module, "features", lambda: {**features(), "netem": no, "delay": _delay(no)})
    with LocalTestbed(name) as testbed:
        assert testbed.unsupported(link(0)) is None
        reason = testbed.unsupported(link(10))
        assert reason is not None
        assert reason.endswith("user-mode-linux is missing; install with: apt-get install user-mode-linux kmod")
        with pytest.raises(TestbedError, match="no netem, and user-mode-linux is missing; install with: apt-get"):
            testbed.apply(link(10))
        testbed.apply(link(0))
        echo_ms(testbed)


def test_the_feature_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _delay(Feature(True)).available
    monkeypatch.setattr(module, "find_program", lambda _: None)
    found = _delay(Feature(False, "kernel has no netem"))
    assert not found.available
    assert found.reason == (
        "kernel has no netem, and user-mode-linux is missing; install with: apt-get install user-mode-linux kmod"
    )


def test_wrong_round_trip_times() -> None:
    with pytest.raises(ValidationError, match="rtt_ms needs mode `wire`"):
        LinkSettings(mode="throughput", rtt_ms=10)
    with pytest.raises(ValidationError, match="rtt_ms"):
        LinkSettings(mode="wire", rtt_ms=-1)
    with pytest.raises(ValidationError, match="rtt_ms"):
        LinkSettings(mode="wire", rtt_ms=1001)
