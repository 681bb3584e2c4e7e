"""Datagrams past the kernel's stack: at either end of a link or both, with nothing left at it or lost unseen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quicbed.measure import certificates
from quicbed.measure.program import BYPASSING

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
SIZE = 20_000_000
ADDRESSES = {"client": "10.77.0.1", "server": "10.77.0.2"}
SOCKETS, BYPASS = ("--gso", "on", "--gro", "on"), ("--io", "af-xdp")


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


@dataclass
class Ends:
    """A namespace for either end of a pair of interfaces."""

    build: Path
    identity: Path
    directory: Path
    prefix: str

    def space(self, role: str) -> str:
        return f"{self.prefix}{role[0]}"

    def interface(self, role: str) -> str:
        return ip("-n", self.space(role), "link", "show", "e0")

    def start(self, role: str, *words: str, by: tuple[str, ...] = ()) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.directory / f"{role}-{time.monotonic_ns()}.jsonl"
        argv = ["ip", "netns", "exec", self.space(role), *by, str(self.build / "bin" / role), "--events", str(log)]
        at = f"{ADDRESSES['server']}:4433"
        own = {
            "server": ["--listen", at, "--certificate", f"{self.identity}/server.pem", "--private-key"],
            "client": [
                "--connect",
                at,
                "--server-name",
                "server",
                "--timeout",
                "20",
                "--ca",
                f"{self.identity}/ca.pem",
            ],
        }[role]
        own += [f"{self.identity}/server.key"] if role == "server" else ["--bytes", str(SIZE)]
        return subprocess.Popen([*argv, *own, *words], stderr=subprocess.DEVNULL), log

    def serve(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        process, log = self.start("server", *words)
        deadline = time.monotonic() + 20
        while not any(event["event"] == "ready" for event in told(log)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process, log


def told(log: Path) -> list[dict[str, Any]]:
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def connections(log: Path) -> list[dict[str, Any]]:
    return [event for event in told(log) if event["event"] == "connection"]


@pytest.fixture
def ends(build_of: Callable[[str, str], Path], made: Callable[..., Path], tmp_path: Path) -> Iterator[Ends]:
    found = Ends(build_of("picoquic", "stock"), made(certificates.DEFAULT), tmp_path, f"qb{os.getpid()}")
    spaces = [found.space(role) for role in ADDRESSES]
    try:
        for space in spaces:
            ip("netns", "add", space)
        ip("link", "add", "e0", "netns", spaces[0], "type", "veth", "peer", "name", "e0", "netns", spaces[1])
        for space, address in zip(spaces, ADDRESSES.values(), strict=True):
            ip("-n", space, "address", "add", f"{address}/24", "dev", "e0")
            ip("-n", space, "link", "set", "e0", "up")
            # single frames with whole checksums, as in link mode wire
            off = [word for name in ("tso", "gso", "gro", "tx") for word in (name, "off")]
            ip("netns", "exec", space, "ethtool", "-K", "e0", *off)
        yield found
    finally:
        for space in spaces:
            listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for number in listed.stdout.split():
                os.kill(int(number), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", space], check=False)


@pytest.mark.parametrize(("client", "server"), [(BYPASS, BYPASS), (BYPASS, SOCKETS), (SOCKETS, BYPASS)])
def test_either_end_or_both_can_bypass(ends: Ends, client: tuple[str, ...], server: tuple[str, ...]) -> None:
    running, served = ends.serve(*server)
    for _ in range(2):  # the second one begins while the kernel still lets go of what the first one had
        process, log = ends.start("client", *client, "--connections", "2")
        assert process.wait(60) == 0, told(log)
        assert [(one["ok"], one["bytes_received"]) for one in connections(log)] == [(True, SIZE)] * 2
    running.send_signal(signal.SIGTERM)
    assert running.wait(10) == 0
    assert [one["ok"] for one in connections(served)] == [True] * 4
    for words, file in ((client, log), (server, served)):
        options = told(file)[0]["options"]
        own = words == BYPASS
        assert (options.get("io"), options["gso"]) == (("af-xdp", False) if own else (None, True))
        # a pair of interfaces without a card can but copy, and says so
        assert options.get("xdp") == ("copy, native" if own else None)
    assert not any("xdp" in ends.interface(role) for role in ADDRESSES)


def test_what_is_killed_leaves_no_program_at_the_interface(ends: Ends) -> None:
    running, _ = ends.serve(*BYPASS)
    assert "prog/xdp" in ends.interface("server")
    running.kill()
    running.wait(10)
    deadline = time.monotonic() + 20
    while "xdp" in ends.interface("server"):
        assert time.monotonic() < deadline


def test_a_download_that_lost_frames_to_full_rings_fails(ends: Ends) -> None:
    running, _ = ends.serve(*SOCKETS)
    # of which more than its rings hold is under way
    process, log = ends.start("client", *BYPASS, "--bytes", "300000000")
    received, deadline = "statistics/rx_packets", time.monotonic() + 20
    while int(ip("netns", "exec", ends.space("client"), "cat", f"/sys/class/net/e0/{received}")) < 20_000:
        assert time.monotonic() < deadline
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
    process.wait(60)
    assert process.returncode == 1
    (failed,) = connections(log)
    assert not failed["ok"]
    assert failed["error"].startswith("AF_XDP lost frames: ")
    assert running.poll() is None


def test_without_the_capabilities_it_is_unsupported(ends: Ends) -> None:
    """A program that may have none is told what is missing; it needs no more than these."""
    kept = "".join(f",+{name}" for name in BYPASSING)
    running, _ = ends.serve(*BYPASS)
    for capabilities, code in (("-all", 127), (f"-all{kept}", 0)):
        by = ("setpriv", "--no-new-privs", f"--inh-caps={capabilities}", f"--bounding-set={capabilities}")
        process, log = ends.start("client", *BYPASS, by=by)
        assert process.wait(60) == code, told(log)
        reasons = [event["reason"] for event in told(log) if event["event"] == "unsupported"]
        assert ["CAP_NET_RAW" in reason for reason in reasons] == ([True] if code else [])
    assert running.poll() is None
