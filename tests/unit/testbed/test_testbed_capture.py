"""Programs that capture: what they are told and say, and the files of several interfaces as one."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from faketestbed import FakeHost
from quicbed.config.model import CaptureCommand, ConfigError, parse_model
from quicbed.config.model import Testbed as Settings
from quicbed.testbed import Capture, TestbedError, capture
from quicbed.testbed.capture import Command, Counts, Dumpcap, Tcpdump, capturing, tool_of
from quicbed.wire import pcap

# Writes frames to a file until it is interrupted: `capture.py FILE SNAPLEN INTERFACE`, where the interface is the first
# time and the number of the frames, a microsecond apart.
PROGRAM = """
import signal, struct, sys
path, snaplen, interface = sys.argv[1:]
first, number = map(int, interface.split("-")[1:])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
with open(path, "wb") as file:
    file.write(struct.pack("<IHHiIII", MAGIC, 2, 4, 0, 0, int(snaplen), 1))
    for i in range(number):
        file.write(struct.pack("<IIII", 5, first + 1000 * i, 4, 60) + struct.pack("<I", first))
print("now capturing", interface, flush=True)
signal.sigwait([signal.SIGINT])
print(f"saw {number} frames, lost {first} of them", file=sys.stderr)
sys.exit(STATUS)
"""

Make = Callable[..., Command]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A program of one's own: with stamps in units by its magic number, an exit status, and patterns."""

    def made(*, magic: int = 0xA1B23C4D, status: int = 0, begins: str = "now capturing", **more: Any) -> Command:
        file = tmp_path / "capture.py"
        text = PROGRAM.replace("MAGIC", hex(magic)).replace("STATUS", str(status))
        file.write_text(text, encoding="utf-8")
        words = [sys.executable, "-S", "-I", str(file), "{file}", "{snaplen}", "{interface}"]
        return Command(CaptureCommand(command=words, begins=begins, **more))

    return made


def captured(tool: Command, path: Path, *interfaces: str, sent: int | None = None) -> Capture:
    """A capture by a program on this machine, while so many frames are sent."""
    counted = iter([100, *([100 + (sent or 0)] * 1000)])
    options: dict[str, Any] = {"snaplen": 96, "count": None, "expression": ""}
    told = None if sent is None else lambda: next(counted)
    with capturing(FakeHost("middle"), interfaces, tool, path, sent=told, **options) as running:
        assert running.packets_captured is None
    return running


PATTERNS = {"captured": r"saw (\d+) frames", "dropped": r"lost (\d+) of"}


def test_frames_of_two_interfaces_are_one_capture_in_the_order_of_their_times(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "QUIET_S", 0.05)
    path = tmp_path / "both.pcap"
    found = captured(make(**PATTERNS), path, "if-3-4", "if-500-2", sent=10)
    assert (found.packets_captured, found.packets_dropped, found.packets_missing, found.packets_lost) == (
        6,
        503,
        4,
        503,
    )
    assert found.facts()["where"] == "middle"
    file = pcap.Capture(path)
    assert (file.nanoseconds, file.snapshot_bytes, file.link_type) == (True, 96, pcap.LINK_ETHERNET)
    seen = [(frame.time_ns - 5 * 10**9, struct.unpack("<I", frame.data)[0], frame.wire_bytes) for frame in file]
    assert seen == [(3, 3, 60), (500, 500, 60), (1003, 3, 60), (1500, 500, 60), (2003, 3, 60), (3003, 3, 60)]
    assert not list(tmp_path.glob("*.parts"))


def test_what_a_program_does_not_tell_is_unknown_but_for_what_was_sent(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "QUIET_S", 0.05)
    found = captured(make(), tmp_path / "a.pcap", "if-0-5", sent=5)
    assert (found.packets_captured, found.packets_dropped, found.packets_missing, found.packets_lost) == (5, None, 0, 0)
    found = captured(make(), tmp_path / "b.pcap", "if-0-5", sent=7)
    assert (found.packets_missing, found.packets_lost) == (2, 2)
    found = captured(make(), tmp_path / "c.pcap", "if-0-5")
    assert (found.packets_missing, found.packets_lost) == (None, None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"magic": 0xA1B2C3D4},
            r"stamps frames with microseconds; let it write nanoseconds \(pcap, magic number a1b23c",
        ),
        ({"magic": 0x0A0D0D0A}, r"at byte 0: this is a pcapng file"),
        ({"status": 3}, r"ended with status 3: saw 1 frames, lost 0 of them"),
        ({"captured": r"wrote (\d+)"}, r"did not report what it captured: saw 1 frames"),
    ],
)
def test_a_capture_that_is_of_no_use_is_one_line(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(capture, "QUIET_S", 0.05)
    with pytest.raises(TestbedError, match=rf"^middle: {sys.executable}:? {reason}"):
        captured(make(**options), tmp_path / "a.pcap", "if-0-1")
    assert not list(tmp_path.glob("a.pcap*"))


def test_a_capture_that_does_not_begin(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "START_TIMEOUT_S", 3.0)  # time for a program to begin on a busy machine
    with pytest.raises(TestbedError, match=r"does not begin to capture: now capturing if-0-1"):
        captured(make(begins="frames"), tmp_path / "a.pcap", "if-0-1")
    with pytest.raises(TestbedError, match=r"does not begin to capture: ValueError"):
        captured(make(), tmp_path / "a.pcap", "if-0-none")


def test_a_disk_that_is_about_to_be_full(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "FREE_BYTES", 2**60)
    with pytest.raises(TestbedError, match=r"middle: \d+ MiB free in .*, \d+ MiB are needed for a capture; make room"):
        captured(make(), tmp_path / "a.pcap", "if-0-1")


def test_what_tcpdump_and_dumpcap_say() -> None:
    said = "5 packets captured\n9 packets received by filter\n2 packets dropped by kernel\n"
    later = (
        "8 packets captured\n9 packets received by filter\n1 packet dropped by kernel\n3 packets dropped by interface\n"
    )
    tcpdump = Tcpdump()
    assert tcpdump.read("listening on lo") == Counts()
    assert not tcpdump.read(said).is_complete
    assert tcpdump.read(said + later) == Counts(8, 9, 1, 3)
    assert tcpdump.read(said + later).is_complete
    assert tcpdump.read(said + later).lost == 4
    told = (
        "Capturing on 'link0'\nFile: a.pcap\nPackets captured: 12\n"
        "Packets received/dropped on interface 'link0': 12/7 (pcap:4/dumpcap:2/flushed:1/ps_ifdrop:5) (63.2%)\n"
    )
    found = Dumpcap().read(told)
    assert (found.captured, found.lost) == (12, 12)


def test_the_program_is_the_one_that_the_testbed_names() -> None:
    assert isinstance(tool_of(Settings(kind="local")), Tcpdump)
    assert isinstance(tool_of(Settings(kind="local", capture="dumpcap")), Dumpcap)
    own = {"command": ["moongen", "{file}"], "begins": "ready"}
    tool = tool_of(parse_model(Settings, {"kind": "local", "capture_command": own}, "t"))
    assert isinstance(tool, Command)
    options: dict[str, Any] = {"snaplen": 100, "count": None, "expression": ""}
    assert tool.arguments("eth0", Path("/a b"), **options) == ["moongen", "/a b"]
    with pytest.raises(TestbedError, match="moongen: captures by filter"):
        tool.arguments("eth0", Path("/a"), **{**options, "expression": "udp"})


@pytest.mark.parametrize(
    "own",
    [
        {"command": ["moongen"], "begins": "x"},
        {"command": ["m", "{file}"], "begins": "x", "dropped": "lost"},
        {"command": ["m", "{file}"], "begins": "x", "dropped": "(lost"},
        {"command": ["m", "{file}"]},
    ],
    ids=wording.name,
)
def test_a_program_that_cannot_be_is_named(own: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ConfigError) as error:
        parse_model(Settings, {"kind": "local", "capture_command": own}, "local.yaml")
    assert wording.one_line(error.value, names="local.yaml: capture_command") == snapshot
