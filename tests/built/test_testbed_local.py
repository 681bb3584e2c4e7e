"""The local testbed: what it makes, what it sets, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

import killed
from quicbed.measure import floor
from quicbed.testbed import LinkSettings, LocalTestbed, TestbedError, open_testbed
from quicbed.testbed import local as module
from quicbed.testbed.base import ROLES
from quicbed.testbed.capture import Dumpcap
from quicbed.testbed.local import namespace_name
from quicbed.testbed.lock import HostSetting, State
from quicbed.testbed.shaping import burst_bytes

PATIENCE_S = 60.0
THROUGHPUT = LinkSettings(mode="throughput")
WIRE = LinkSettings(mode="wire")

# A driver that works through link modes, with a program, a program that left its session, and a capture.
DRIVER = """
import subprocess, sys, time
from pathlib import Path
from quicbed.measure import floor
from quicbed.testbed import LinkSettings, LocalTestbed

name, directory, forever = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "forever"
print("starting", flush=True)
with LocalTestbed(name) as testbed:
    output = {"stdout": directory / "out", "stderr": directory / "err"}
    direct = testbed.client.spawn(["sleep", f"6001.{name}"], **output)
    testbed.server.spawn(["sh", "-c", f"setsid sleep 6002.{name} & sleep 6003.{name}"], **output)
    with testbed.capture(directory / f"{name}.pcap"):
        print(direct.pid, flush=True)
        for turn in range(10**9 if forever else 2):
            mode = ("wire", "throughput")[turn % 2]
            testbed.apply(LinkSettings(mode=mode, rate_mbit=(None, 100)[turn // 2 % 2]))
            testbed.counters()
"""


@dataclass(frozen=True)
class Machine:
    """What a testbed could leave behind or change on the machine."""

    namespaces: frozenset[str]
    links: frozenset[str]
    routes: str
    settings: tuple[str, ...]
    programs: frozenset[str]

    @classmethod
    def now(cls, testbed: str) -> Machine:
        own = Path("/run/netns").glob(f"quicbed-{testbed}-*")
        settings = ("tcp_allowed_congestion_control", "tcp_congestion_control", "tcp_rmem")
        return cls(
            namespaces=frozenset(path.name for path in own),
            links=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            routes=Path("/proc/net/route").read_text(),
            settings=tuple(Path(f"/proc/sys/net/ipv4/{name}").read_text() for name in settings),
            programs=frozenset(_programs(testbed)),
        )


def _programs(mark: str) -> Iterator[str]:
    """Running programs with *mark* in their command line."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(mark in word for word in words):
            yield f"{file.parent.name} {' '.join(words)}"


def _state(name: str) -> Path:
    return Path(f"/run/quicbed/{name}.json")


@pytest.fixture
def name() -> Iterator[str]:
    """Name of a testbed of this test alone, removed whatever the test did.

    It is a number, so that a driver can hand it to sleep as a fraction of a second.
    """
    name = f"{os.getpid()}{random.randrange(10**9):09}"
    before = Machine.now(name)
    yield name
    try:
        after = Machine.now(name)
        assert after == before
        assert not _state(name).exists()
    finally:
        for role in ROLES:
            subprocess.run(
                ["ip", "netns", "delete", namespace_name(name, role)],
                stderr=subprocess.DEVNULL,
                check=False,
            )
        Path(f"/run/quicbed/{name}.lock").unlink(missing_ok=True)
        _state(name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def testbed() -> Iterator[LocalTestbed]:
    """A testbed for tests that do not care how it was made."""
    name = f"t{os.getpid()}"
    with LocalTestbed(name) as testbed:
        yield testbed
    Path(f"/run/quicbed/{name}.lock").unlink()


@pytest.fixture
def drive(repository: Path, tmp_path: Path, name: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts drivers of the testbed *name* as programs of their own."""
    drivers: list[subprocess.Popen[str]] = []

    def drive(how_long: str = "forever") -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, name, str(tmp_path), how_long],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(repository / "workflow")},
        )
        drivers.append(driver)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "starting\n"
        return driver

    yield drive
    for driver in drivers:
        driver.kill()
        driver.communicate()


def _running(driver: subprocess.Popen[str]) -> int:
    """Wait until a driver's testbed is up; the number of a program it has started."""
    assert driver.stdout is not None
    return int(driver.stdout.readline())


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- removal


@pytest.mark.root
def test_everything_is_made_and_removed(name: str) -> None:
    before = Machine.now(name)
    with LocalTestbed(name) as testbed:
        during = Machine.now(name)
        assert during.namespaces == {namespace_name(name, role) for role in ROLES}
        assert (during.links, during.routes) == (before.links, before.routes)
        assert _state(name).exists()
        assert testbed.server.address is not None
        # The machine itself has no way to the addresses inside.
        assert (
            testbed.server.address
            not in subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, check=True).stdout
        )
    assert Machine.now(name) == before
    with LocalTestbed(name):  # and again
        pass


@pytest.mark.root
def test_an_error_in_the_driver_is_passed_on_after_removal(name: str) -> None:
    with pytest.raises(RuntimeError, match="from the driver"), LocalTestbed(name):
        raise RuntimeError("from the driver")
    # The fixture verifies that nothing is left.


@pytest.mark.root
def test_a_testbed_that_is_not_open_says_so(name: str) -> None:
    testbed = LocalTestbed(name)
    with testbed:
        pass
    with pytest.raises(TestbedError, match="not open"):
        testbed.client.run(["true"])


@pytest.mark.root
@pytest.mark.parametrize("seed", range(killed.KILLS or 4))
def test_the_next_start_removes_what_a_killed_driver_left(
    name: str, drive: Callable[..., subprocess.Popen[str]], seed: int
) -> None:
    before = Machine.now(name)
    driver = drive()
    time.sleep(random.Random(seed).uniform(0, 0.6))
    driver.kill()
    driver.wait(PATIENCE_S)
    with LocalTestbed(name) as testbed:
        testbed.apply(THROUGHPUT)
        assert Machine.now(name).settings == before.settings
        assert not list(_programs(name))


@pytest.mark.root
def test_programs_end_with_a_killed_driver(name: str, drive: Callable[..., subprocess.Popen[str]]) -> None:
    driver = drive()
    child = _running(driver)
    driver.kill()
    driver.wait(PATIENCE_S)
    _await(lambda: not Path(f"/proc/{child}").exists())
    with LocalTestbed(name):
        pass


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_an_interrupted_driver_removes_everything(
    name: str,
    drive: Callable[..., subprocess.Popen[str]],
    number: signal.Signals,
    seed: int | None,
) -> None:
    before = Machine.now(name)
    driver = drive()
    if seed is None:
        _running(driver)
    else:
        time.sleep(random.Random(seed).uniform(0, 0.4))
    driver.send_signal(number)
    try:
        _, errors = driver.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as ignored:
        # Python drops what is raised while it deletes an object; then a user interrupts once more
        if b"Exception ignored in" not in (ignored.stderr or b""):
            raise
        driver.send_signal(number)
        _, errors = driver.communicate(timeout=PATIENCE_S)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
    else:
        # Before the testbed is entered, the signal still has its usual effect.
        assert driver.returncode in (128 + number, -number)
    assert Machine.now(name) == before
    assert not _state(name).exists()


@pytest.mark.root
def test_a_second_driver_is_refused_and_disturbs_nothing(
    name: str, drive: Callable[..., subprocess.Popen[str]]
) -> None:
    driver = drive()
    child = _running(driver)
    with pytest.raises(TestbedError, match=f"in use by process {driver.pid}"):
        LocalTestbed(name).__enter__()
    assert driver.poll() is None
    assert Path(f"/proc/{child}").exists()
    driver.terminate()
    driver.communicate(timeout=PATIENCE_S)


@pytest.mark.root
@pytest.mark.parametrize("content", ["", "{", '{"format": 1}'])
def test_leftovers_are_known_without_the_state_file(
    name: str, drive: Callable[..., subprocess.Popen[str]], content: str
) -> None:
    driver = drive()
    _running(driver)
    driver.kill()
    driver.wait(PATIENCE_S)
    _state(name).write_text(content)
    with LocalTestbed(name):
        pass


@pytest.mark.root
def test_the_next_start_puts_back_a_setting_of_the_machine(name: str) -> None:
    file = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    available = file.with_name("tcp_available_congestion_control").read_text().strip()
    before = file.read_text().strip()
    widened = available if set(available.split()) != set(before.split()) else "reno"
    State(name, [], [HostSetting(str(file), before, widened)]).write(_state(name))
    file.write_text(widened)
    try:
        with LocalTestbed(name):
            assert set(file.read_text().split()) == set(before.split())
    finally:
        file.write_text(before)


@pytest.mark.root
def test_a_stranger_s_namespace_is_left_alone(name: str) -> None:
    stranger = namespace_name(name, "middle")
    subprocess.run(["ip", "netns", "add", stranger], check=True)
    try:
        with pytest.raises(TestbedError, match=f"ip netns delete {stranger}"):
            LocalTestbed(name).__enter__()
        assert Path(f"/run/netns/{stranger}").exists()
        assert not Path(f"/run/netns/{namespace_name(name, 'client')}").exists()
    finally:
        subprocess.run(["ip", "netns", "delete", stranger], check=True)


@pytest.mark.root
def test_without_capabilities_nothing_is_changed(repository: Path, name: str) -> None:
    program = f"from quicbed.testbed import LocalTestbed\nLocalTestbed({name!r}).__enter__()"
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(repository / "workflow")},
    )
    assert done.returncode == 1
    assert "needs root; run the command again as root, for example: sudo make all" in done.stderr


@pytest.mark.root
def test_missing_tools_are_named_before_anything_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("quicbed.testbed.process.SYSTEM_DIRECTORIES", str(tmp_path))
    with pytest.raises(TestbedError, match="apt-get install ethtool iproute2 tcpdump"):
        LocalTestbed(name).__enter__()


@pytest.mark.parametrize("bad", ["", "Local", "a_b", "-a", "a" * 25, "a/b"])
def test_names_that_cannot_be_namespaces_are_refused(bad: str) -> None:
    with pytest.raises(TestbedError, match="lower-case letters"):
        LocalTestbed(bad)


def test_kinds_of_testbeds() -> None:
    assert isinstance(open_testbed("a", "local"), LocalTestbed)
    with pytest.raises(TestbedError, match="unknown kind 'moon'; known: local, ssh"):
        open_testbed("a", "moon")
    with pytest.raises(TestbedError, match=r"kind `ssh` needs what config/testbeds/a\.yaml says"):
        open_testbed("a", "ssh")


# -- the link

# Sends 50 times 20 segments of 1200 bytes with UDP GSO.
SEGMENTS = 20
SENDER = f"""
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_UDP, {module.UDP_SEGMENT}, 1200)
for _ in range(50):
    sender.sendto(b"quicbed!" * ({SEGMENTS} * 150), (sys.argv[1], 4433))
"""


def _frames(path: Path) -> list[tuple[int, bytes]]:
    """Original length and kept bytes of every frame of a pcap file with nanosecond stamps."""
    content = path.read_bytes()
    assert struct.unpack_from("<I", content)[0] == 0xA1B23C4D
    frames, position = [], 24
    while position < len(content):
        _, _, kept, length = struct.unpack_from("<IIII", content, position)
        frames.append((length, content[position + 16 : position + 16 + kept]))
        position += 16 + kept
    return frames


def _checksum_is_valid(frame: bytes) -> bool:
    """UDP checksum of an Ethernet frame without IP options (RFC 768)."""
    packet = frame[14:]
    datagram = packet[20 : struct.unpack_from("!H", packet, 2)[0]]
    data = packet[12:20] + struct.pack("!BBH", 0, 17, len(datagram)) + datagram
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


@pytest.mark.root
@pytest.mark.parametrize("mtu", [1500, 4000])
def test_no_frame_is_longer_than_the_mtu_in_mode_wire(testbed: LocalTestbed, tmp_path: Path, mtu: int) -> None:
    testbed.apply(LinkSettings(mode="wire", mtu=mtu))
    path = tmp_path / "wire.pcap"
    with testbed.capture(path, snaplen=65535, filter="udp port 4433") as capture:
        testbed.server.run([sys.executable, "-c", SENDER, str(testbed.client.address)])
    frames = _frames(path)
    assert [length for length, _ in frames] == [1200 + 8 + 20 + 14] * (50 * SEGMENTS)
    assert (capture.packets_captured, capture.packets_dropped) == (50 * SEGMENTS, 0)
    if testbed.facts()["link"]["checksums_valid_in_captures"]:
        assert all(_checksum_is_valid(frame) for _, frame in frames)


@pytest.mark.root
def test_where_udp_gso_needs_checksum_offload_the_ends_keep_it(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Linux 6.11: sending with UDP_SEGMENT fails while checksum offload is off."""

    def probe_path(**_: object) -> bool:
        return testbed._local["server"].offloads("link0")["tx-checksumming"]

    monkeypatch.setattr(testbed, "probe_path", probe_path)
    testbed.apply(LinkSettings(mode="wire", mtu=1400))
    facts = testbed.facts()
    assert facts["link"]["checksums_valid_in_captures"] is False
    for role, interface, on in (
        ("client", "link0", True),
        ("server", "link0", True),
        ("middle", "client0", False),
        ("middle", "server0", False),
    ):
        offloads = facts["hosts"][role]["interfaces"][interface]["offloads"]
        assert offloads["tx-checksumming"] is on
        assert offloads["tx-udp-segmentation"] is False


def _send_over_tcp(testbed: LocalTestbed, size: int) -> None:
    server = testbed._local["server"]
    with server.call(lambda: socket.create_server((str(server.address), 0))) as listener:
        near = testbed._local["client"].call(lambda: socket.create_connection(listener.getsockname(), PATIENCE_S))
        with near, listener.accept()[0] as far:
            far.settimeout(PATIENCE_S)
            received = 0
            while received < size:
                far.sendall(bytes(65536))
                while received < size and (part := near.recv(65536)):
                    received += len(part)
                    if received % 65536 == 0:
                        break


@pytest.mark.root
def test_tcp_segments_fit_the_mtu_in_mode_wire(testbed: LocalTestbed, tmp_path: Path) -> None:
    testbed.apply(WIRE)
    path = tmp_path / "wire.pcap"
    with testbed.capture(path, filter="tcp"):
        _send_over_tcp(testbed, 2**20)
    lengths = [length for length, _ in _frames(path)]
    assert sum(lengths) > 2**20
    assert max(lengths) == 1514


@pytest.mark.root
def test_frames_cross_the_link_unsegmented_in_mode_throughput(testbed: LocalTestbed, tmp_path: Path) -> None:
    testbed.apply(THROUGHPUT)
    path = tmp_path / "throughput.pcap"
    with testbed.capture(path, filter="udp port 4433"):
        testbed.server.run([sys.executable, "-c", SENDER, str(testbed.client.address)])
    lengths = [length for length, _ in _frames(path)]
    assert lengths == [SEGMENTS * 1200 + 8 + 20 + 14] * 50


@pytest.mark.root
def test_offloads_are_as_the_mode_says_at_every_end(testbed: LocalTestbed) -> None:
    for link, on in ((WIRE, False), (THROUGHPUT, True)):
        testbed.apply(link)
        facts = testbed.facts()
        assert facts["link"]["mode"] == link.mode
        ends = [interface for host in facts["hosts"].values() for interface in host["interfaces"].values()]
        assert len(ends) == 4
        for end in ends:
            for name in (
                "tcp-segmentation-offload",
                "generic-segmentation-offload",
                "generic-receive-offload",
                "tx-udp-segmentation",
            ):
                assert end["offloads"][name] is on


@pytest.mark.root
@pytest.mark.parametrize(
    ("offloads", "generic", "other"), [("off", False, False), ("gso-gro", True, False), ("default", True, True)]
)
def test_offloads_can_be_chosen(testbed: LocalTestbed, offloads: str, generic: bool, other: bool) -> None:
    testbed.apply(LinkSettings.model_validate({"mode": "throughput", "offloads": offloads}))
    hosts = testbed.facts()["hosts"]
    for role in ("client", "server"):
        end = hosts[role]["interfaces"]["link0"]["offloads"]
        assert end["generic-segmentation-offload"] is end["generic-receive-offload"] is generic
        assert end["tcp-segmentation-offload"] is end["tx-udp-segmentation"] is other
    for port in hosts["middle"]["interfaces"].values():
        assert port["offloads"]["generic-receive-offload"] is other


@pytest.mark.root
def test_super_frames_cross_the_link_only_with_all_offloads(testbed: LocalTestbed, tmp_path: Path) -> None:
    longest = {}
    for offloads in ("off", "gso-gro", "default"):
        testbed.apply(LinkSettings.model_validate({"mode": "throughput", "offloads": offloads}))
        path = tmp_path / f"{offloads}.pcap"
        with testbed.capture(path):
            _send_over_tcp(testbed, 2**20)
        longest[offloads] = max(length for length, _ in _frames(path))
    assert longest["off"] == longest["gso-gro"] == 1514
    assert longest["default"] > 10_000


def test_offloads_are_no_matter_of_mode_wire() -> None:
    with pytest.raises(ValidationError, match="offloads need mode `throughput`"):
        LinkSettings(mode="wire", offloads="default")


def test_low_rates_are_no_matter_of_super_frames() -> None:
    LinkSettings(mode="wire", rate_mbit=5)
    with pytest.raises(ValidationError, match="rate_mbit below 40 needs mode `wire`"):
        LinkSettings(mode="throughput", rate_mbit=5)


@pytest.mark.root
@pytest.mark.parametrize("mode", ["wire", "throughput"])
def test_a_rate_is_set_read_back_and_taken_away(testbed: LocalTestbed, mode: str) -> None:
    for rate in (40, 2500, 5000, *([5] if mode == "wire" else [])):
        link = LinkSettings(mode=mode, rate_mbit=rate)
        testbed.apply(link)
        facts = testbed.facts()
        qdisc = facts["hosts"]["middle"]["interfaces"]["client0"]["qdisc"]
        assert qdisc["kind"] == "tbf"
        assert qdisc["options"]["rate"] * 8 == rate * 10**6
        assert qdisc["options"]["burst"] == pytest.approx(burst_bytes(link), rel=0.01)
        assert facts["link"]["burst_bytes"] == burst_bytes(link)
        assert testbed.counters()["link.dropped"] == 0
    testbed.apply(LinkSettings(mode=mode))
    middle = testbed.facts()["hosts"]["middle"]["interfaces"]
    assert {interface["qdisc"]["kind"] for interface in middle.values()} == {"noqueue"}


@pytest.mark.root
def test_a_full_queue_counts_its_drops(testbed: LocalTestbed) -> None:
    testbed.apply(LinkSettings(mode="wire", rate_mbit=40, queue_ms=1))
    testbed.server.run([sys.executable, "-c", SENDER, str(testbed.client.address)])
    assert testbed.counters()["link.dropped"] > 0


@pytest.mark.parametrize("settings", [{"rate_mbit": 0.5}, {"rate_mbit": 10_000}, {"mtu": 1000}, {"speed": 1}])
def test_links_that_cannot_be_trusted_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        LinkSettings.model_validate({"mode": "wire", **settings})


@pytest.mark.root
def test_congestion_control_and_buffers_are_set_on_both_ends(testbed: LocalTestbed) -> None:
    for name in ("cubic", "reno"):
        testbed.apply(LinkSettings(mode="throughput", congestion_control=name, tcp_buffer_bytes=2**21))
        for role in ("client", "server"):
            settings = testbed.facts()["hosts"][role]["settings"]
            assert settings["net.ipv4.tcp_congestion_control"] == name
            assert settings["net.ipv4.tcp_rmem"].split()[2] == str(2**21)
            assert settings["net.ipv4.tcp_wmem"].split()[2] == str(2**21)


@pytest.mark.root
def test_an_unknown_congestion_control_is_named(testbed: LocalTestbed) -> None:
    with pytest.raises(TestbedError, match=r"no TCP congestion control nosuch .*modprobe"):
        testbed.apply(LinkSettings(mode="wire", congestion_control="nosuch"))
    testbed.apply(WIRE)  # the error did not leave a half-made link in use
    assert testbed.facts()["link"]["congestion_control"] == "cubic"


@pytest.mark.root
def test_a_setting_that_does_not_hold_is_named(testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._OFFLOADS, "lro", "large-receive-offload")  # fixed off for veth
    with pytest.raises(TestbedError, match="large-receive-offload of link0 cannot be switched on"):
        testbed.apply(LinkSettings(mode="throughput", mtu=1400))
    client = testbed._local["client"]
    client.set("net.ipv4.tcp_no_metrics_save", "0")
    with pytest.raises(TestbedError, match=r"client: net.ipv4.tcp_no_metrics_save is '0' after"):
        client.verify("net.ipv4.tcp_no_metrics_save", "1")
    with pytest.raises(TestbedError, match=r"client: cannot set net.ipv4.tcp_rmem to 'many'"):
        client.set("net.ipv4.tcp_rmem", "many")


@pytest.mark.root
def test_applying_the_same_link_runs_nothing(testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed.apply(WIRE)

    def no(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(module, "start", no)
    testbed.apply(LinkSettings(mode="wire"))


# -- observation


@pytest.mark.root
def test_counters_count(testbed: LocalTestbed) -> None:
    testbed.apply(WIRE)
    before = testbed.counters()
    client = testbed._local["client"]
    receiver = client.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with receiver:
        receiver.bind((str(client.address), 4433))
        testbed.server.run([sys.executable, "-c", SENDER, str(client.address)])
        received = 0
        receiver.settimeout(PATIENCE_S)
        receiver.recv(65536)
        receiver.settimeout(0)
        try:
            while receiver.recv(65536):
                received += 1
        except BlockingIOError:
            pass
    after = testbed.counters()
    delta = {key: after[key] - before[key] for key in before}
    assert set(after) == set(before)
    total = 50 * SEGMENTS
    assert delta["client.udp.InDatagrams"] + delta["client.udp.RcvbufErrors"] == total
    assert delta["client.netstat.UdpInDatagrams"] == delta["client.udp.InDatagrams"]
    assert delta["client.netstat.IpExtInOctets"] >= delta["client.udp.InDatagrams"] * 1200
    # what a veth pair counts is named by its driver
    assert {"client.ethtool.peer_ifindex", "server.ethtool.peer_ifindex"} <= set(after)
    assert delta["middle.server0.rx_packets"] >= total
    assert delta["server.link0.tx_bytes"] >= total * 1200
    assert delta["time_s"] > 0
    assert all(isinstance(value, int | float) for value in after.values())
    # loads fall, and so does what a clock is ahead of another one
    falling = [key for key, value in delta.items() if value < 0 and ".load_" not in key]
    assert [key for key in falling if key != "machine.clock_s"] == []
    assert received + 1 == delta["client.udp.InDatagrams"]


@pytest.mark.root
def test_counters_start_no_program_on_a_link_without_a_rate(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed.apply(WIRE)
    monkeypatch.setattr(module, "start", None)
    assert testbed.counters()["machine.cpu.user_s"] > 0


@pytest.mark.root
def test_facts_can_be_stored_and_do_not_name_the_machine(testbed: LocalTestbed) -> None:
    testbed.apply(WIRE)
    text = json.dumps(testbed.facts())
    facts = json.loads(text)
    assert (facts["name"], facts["kind"]) == (testbed.name, "local")
    assert facts["kernel"] == os.uname().release
    assert re.fullmatch(r"[0-9a-f]{12}", facts["host_id"])
    assert facts["cpus"] >= 1
    assert facts["hosts"]["client"]["interfaces"]["link0"]["mtu"] == 1500
    assert facts["tools"]["tcpdump"].startswith("tcpdump version")
    machine_id = Path("/etc/machine-id")
    if machine_id.exists():
        assert machine_id.read_text().strip() not in text


@pytest.mark.root
def test_files_are_read_as_the_host_sees_them(testbed: LocalTestbed) -> None:
    testbed.apply(WIRE)
    assert "link0" in testbed.client.read("/proc/net/dev")
    assert "server0" in testbed.tap.read("/proc/self/net/dev")
    assert testbed.client.read("/sys/class/net/link0/mtu") == "1500\n"
    assert testbed.client.read("/proc/sys/net/ipv4/tcp_congestion_control") == "cubic\n"
    with pytest.raises(TestbedError, match=r"client: cannot read /proc/thread-self/net/nothing"):
        testbed.client.read("/proc/net/nothing")


@pytest.mark.root
def test_programs_run_inside_their_namespace(testbed: LocalTestbed, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = testbed.client.spawn(
        ["sh", "-c", "cat /proc/net/dev; pwd; env; exit 5"],
        stdout=out,
        stderr=tmp_path / "err",
        env={"ADDED": "this"},
        cwd=tmp_path,
    )
    assert process.wait(PATIENCE_S).returncode == 5
    text = out.read_text()
    assert "link0" in text
    assert f"\n{tmp_path}\n" in text
    assert "\nADDED=this\n" in text
    assert f"\nPATH={os.environ['PATH']}\n" in text
    done = testbed.tap.run(["cat"], input="some text")
    assert done.stdout == "some text"


@pytest.mark.root
def test_a_capture_can_end_by_count_and_rounds_up_what_it_keeps(testbed: LocalTestbed, tmp_path: Path) -> None:
    testbed.apply(WIRE)
    path = tmp_path / "count.pcap"
    with testbed.capture(path, snaplen=49, count=3, filter="udp") as capture:
        testbed.server.run([sys.executable, "-c", SENDER, str(testbed.client.address)])
    frames = _frames(path)
    assert [len(frame) for _, frame in frames] == [64, 64, 64]
    assert capture.packets_captured == 3


@pytest.mark.root
def test_the_tap_captures_every_packet_of_a_bare_sender(testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "PACKETS", 60)
    link = LinkSettings(mode="wire", rate_mbit=40, queue_ms=80)
    testbed.apply(link)
    series, missing = floor.of_link(testbed, link)
    assert missing == []
    assert [(one.schedule, one.train_packets, sum(one.packets)) for one in series] == [
        ("even", 1, 60),
        ("trains", 10, 60),
    ]
    for one in series:
        assert len(one.deviation_ns) == len(one.sender_deviation_ns) == sum(one.gaps) == 59


@pytest.mark.root
def test_a_capture_that_cannot_begin_says_why(testbed: LocalTestbed, tmp_path: Path) -> None:
    with (
        pytest.raises(TestbedError, match=r"middle: tcpdump does not begin to capture: .*syntax"),
        testbed.capture(tmp_path / "x.pcap", filter="no such filter"),
    ):
        pass
    with (
        pytest.raises(TestbedError, match=r"no/x.pcap"),
        testbed.capture(tmp_path / "no" / "x.pcap"),
    ):
        pass


@pytest.mark.root
def test_a_capture_ends_with_an_error_in_its_context(testbed: LocalTestbed, tmp_path: Path) -> None:
    path = tmp_path / "error.pcap"
    with pytest.raises(RuntimeError, match="inside"), testbed.capture(path):
        raise RuntimeError("inside")
    # the file that is written has a directory of its own
    assert not list(_programs(f"{path}.parts"))
    assert not list(tmp_path.iterdir())


@pytest.mark.root
def test_frames_that_the_tap_does_not_see_are_missing(
    testbed: LocalTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quicbed.testbed.capture.IN_FLIGHT_S", 0.1)
    testbed.apply(WIRE)
    with testbed.capture(tmp_path / "whole.pcap") as capture:
        testbed.server.run([sys.executable, "-c", SENDER, str(testbed.client.address)])
    assert (capture.packets_dropped, capture.packets_missing, capture.packets_lost) == (0, 0, 0)
    assert (capture.packets_captured or 0) >= 50 * SEGMENTS
    port = ["ip", "link", "set", "server0"]
    with testbed.capture(tmp_path / "gaps.pcap") as capture:
        testbed.tap.run([*port, "nomaster"])
        testbed.client.run([sys.executable, "-c", SENDER, str(testbed.server.address)])
        testbed.tap.run([*port, "master", "bridge0"])
    assert capture.packets_dropped == 0
    assert (capture.packets_lost or 0) == (capture.packets_missing or 0) >= 50 * SEGMENTS
    # a super-frame is many packets
    testbed.apply(THROUGHPUT)
    with testbed.capture(tmp_path / "super.pcap") as capture:
        testbed.server.run([sys.executable, "-c", SENDER, str(testbed.client.address)])
    assert capture.packets_missing is None


@pytest.mark.root
@pytest.mark.skipif(shutil.which("dumpcap") is None, reason="needs dumpcap (apt-get install wireshark-common)")
def test_dumpcap_captures_the_same(testbed: LocalTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "capture_tool", Dumpcap())
    testbed.apply(WIRE)
    path = tmp_path / "dumpcap.pcap"
    with testbed.capture(path, snaplen=49, filter="udp port 4433") as capture:
        testbed.server.run([sys.executable, "-c", SENDER, str(testbed.client.address)])
    assert [len(frame) for _, frame in _frames(path)] == [64] * (50 * SEGMENTS)
    assert (capture.packets_captured, capture.packets_dropped, capture.tool) == (50 * SEGMENTS, 0, "dumpcap")


@pytest.mark.root
def test_what_has_become_of_the_link_is_told(testbed: LocalTestbed) -> None:
    testbed.apply(WIRE)
    assert testbed.link_problem() is None
    for host, broken, mended, reason in (
        (
            testbed.client,
            "link set link0 mtu 1400",
            "link set link0 mtu 1500",
            "client: the MTU of link0 is 1400, not 15",
        ),
        (
            testbed.server,
            "addr del 10.113.0.2/24 dev link0",
            "addr add 10.113.0.2/24 dev link0",
            "not have the address",
        ),
        (testbed.tap, "link set server0 down", "link set server0 up", "server: link0 is down; somebody has changed it"),
    ):
        host.run(["ip", *broken.split()])
        found = testbed.link_problem()
        host.run(["ip", *mended.split()])
        assert reason in (found or ""), found
    assert testbed.link_problem() is None


@pytest.mark.root
def test_a_rate_changes_while_a_link_is_used(testbed: LocalTestbed) -> None:
    testbed.apply(LinkSettings(mode="wire", rate_mbit=5))
    for rate in (1, 5):
        testbed.set_rate(rate)
        qdisc = testbed.facts()["hosts"]["middle"]["interfaces"]["client0"]["qdisc"]
        assert (qdisc["kind"], qdisc["options"]["rate"] * 8) == ("tbf", rate * 10**6)
    testbed.apply(LinkSettings(mode="wire"))
    with pytest.raises(TestbedError, match="the link has no rate that could be changed"):
        testbed.set_rate(1)
