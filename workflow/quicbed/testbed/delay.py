"""Delay in the middle of the link: two interfaces, and what delays the frames that pass between them.

::

    client0 [bridge0] delay0 ==== delay1 [bridge1] server0

Where the kernel has netem, the two are a veth pair with netem at both ends. Where it has not, they are TAP devices of a
user-mode Linux that bridges them with its own netem: a kernel as an ordinary process, whose file system is the
machine's own, read-only. It boots in about 2 s, adds 0.2 to 0.7 ms to the round-trip time and carries 400 to 500
Mbit/s (two shared cores): enough for handshakes, not for bulk transfers.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from quicbed.base import trees

from . import uml
from .agent import cpu_seconds
from .base import Completed, TestbedError
from .process import find_program
from .shaping import constant_delay, root_qdisc, verify_delay

CLIENT_END = "delay0"
SERVER_END = "delay1"

UML = "linux.uml"
"""The kernel of Debian's package user-mode-linux."""
UML_MODULES = Path("/usr/lib/uml/modules")
UML_PACKAGES = "user-mode-linux kmod"

_UML_MEMORY = "128M"
# Largest MTU of LinkSettings; the guest's ports forward every frame up to it.
_UML_MTU = 9000
_BOOT_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 20.0
_ANSWER = "quicbed-answer"
_PULSE_S = 0.005
# To 01-80-C2-00-00-01 from a locally administered address, with the EtherType for local experiments (IEEE 802).
_PULSE_FRAME = bytes.fromhex("0180c2000001 027162640003 88b5").ljust(60, b"\0")

# IPv6 is loaded because the bridge needs its symbols, and disabled so that the guest sends no frame of its own.
_INIT = """#!/bin/sh
# First and only program of the guest: joins the two ports, then does what the console tells it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
stty -echo
mount -t proc proc /proc
set_up() {{
    modprobe -d {directory} ipv6 disable_ipv6=1 &&
    modprobe -d {directory} -a bridge sch_netem &&
    ip link add bridge0 type bridge stp_state 0 mcast_snooping 0 &&
    ip link set vec0 master bridge0 up &&
    ip link set vec1 master bridge0 up &&
    ip link set bridge0 up &&
    uname -r
}}
output=$(set_up 2>&1)
echo {answer} 0 $? $output
while read -r number command; do
    output=$(eval "$command" 2>&1)
    echo {answer} $number $? $output
done
# The end of the console's input is the end of the guest.
"""


def uml_problem() -> str | None:
    """Why no user-mode Linux can be booted here; None if nothing is known against it."""
    if find_program(UML) is None or find_program("modprobe") is None:
        return f"user-mode-linux is missing; install with: apt-get install {UML_PACKAGES}"
    if not any(UML_MODULES.glob("*/kernel/net/sched/sch_netem.ko*")):
        return f"{UML_MODULES} has no module sch_netem; reinstall with: apt-get install --reinstall {UML_PACKAGES}"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/net/tun: {error.strerror}; load it with: modprobe tun"
    return None


class Middle(Protocol):
    """The namespace between the two ends of the link, as far as a delay line needs it."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Result of a call made in the namespace."""

    def start(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in the namespace."""

    def run(self, argv: Sequence[str], *, check: bool = True) -> Completed:
        """Run a program in the namespace to its end."""


class DelayLine(ABC):
    """Joins `delay0` and `delay1` in the middle's namespace; both exist, down, until it is closed."""

    description: str
    """What delays, for the record."""

    @abstractmethod
    def set(self, milliseconds: float) -> None:
        """Delay every frame by this time, in each direction, and verify it by reading back."""

    def pause(self) -> None:
        """No frame will pass until the next :meth:`set`."""
        return

    def cpu_seconds(self) -> float:
        """Processor time so far of programs that delay."""
        return 0.0

    @abstractmethod
    def close(self) -> None:
        """End what delays; the interfaces go with the namespace."""


def open_line(middle: Middle, directory: Path, *, netem: bool) -> DelayLine:
    """A delay line in the middle's namespace; *directory* is for its files alone."""
    return _Netem(middle) if netem else _UserModeLinux(middle, directory)


def _netem(port: str, milliseconds: float) -> list[str]:
    return ["tc", "qdisc", "replace", "dev", port, "root", *constant_delay(milliseconds)]


def _verify(where: str, port: str, shown: str, milliseconds: float) -> None:
    """:class:`TestbedError` unless ``tc -j qdisc show`` tells of this delay."""
    verify_delay(where, port, milliseconds, root_qdisc(shown, where))


class _Netem(DelayLine):
    """A veth pair with netem of this kernel at both ends."""

    description = "netem"

    def __init__(self, middle: Middle) -> None:
        self._middle = middle
        middle.run(["ip", "link", "add", CLIENT_END, "type", "veth", "peer", "name", SERVER_END])

    def set(self, milliseconds: float) -> None:
        for port in (CLIENT_END, SERVER_END):
            self._middle.run(_netem(port, milliseconds))
            shown = self._middle.run(["tc", "-j", "qdisc", "show", "dev", port]).stdout
            _verify("middle", port, shown, milliseconds)

    def close(self) -> None:
        """Nothing runs; the pair goes with the namespace."""


class _Pulse:
    """Wakes a guest every 5 ms by a frame at each port.

    On a busy machine user-mode Linux sometimes (one frame in 2000) does not notice that a frame has come, and takes it
    with the next one. The frames go to the address of MAC control, which no bridge forwards (IEEE 802.1Q, 8.6.3).
    """

    def __init__(self, middle: Middle) -> None:
        self._sockets = [middle.call(self._open, port) for port in (CLIENT_END, SERVER_END)]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="quicbed-pulse", daemon=True)
        self._thread.start()

    @staticmethod
    def _open(port: str) -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        opened.bind((port, 0))  # protocol 0: it receives nothing
        return opened

    def _beat(self) -> None:
        while not self._end.wait(_PULSE_S):
            for port in self._sockets:
                # A full queue means that frames wake the guest anyway; a port that is gone ends with the testbed.
                with contextlib.suppress(OSError):
                    port.send(_PULSE_FRAME, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        for port in self._sockets:
            port.close()


class _UserModeLinux(DelayLine):
    """Two TAP devices bridged by a user-mode Linux with netem."""

    def __init__(self, middle: Middle, directory: Path) -> None:
        reason = uml_problem()
        if reason is not None:
            raise TestbedError(f"no delay: kernel has no netem, and {reason}")
        self._directory = directory
        self._middle = middle
        self._pulse: _Pulse | None = None
        self._asked = 0
        self._buffer = b""
        self._prepare()
        for port in (CLIENT_END, SERVER_END):
            middle.run(["ip", "tuntap", "add", "dev", port, "mode", "tap"])
        argv = [UML, f"mem={_UML_MEMORY}", f"uml_dir={directory}/", "umid=guest"]
        argv += ["root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={directory}/init"]
        argv += ["con0=fd:0,fd:1", "con=null", "ssl=null", "quiet", "loglevel=1"]
        argv += [
            f"vec{number}:transport=tap,ifname={port},depth=128,mtu={_UML_MTU}"
            for number, port in enumerate((CLIENT_END, SERVER_END))
        ]
        self._process = middle.start(
            uml.command(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=directory
        )
        try:
            release = self._answer(_BOOT_TIMEOUT_S)
        except BaseException:
            self.close()
            for port in (CLIENT_END, SERVER_END):  # the next attempt makes them again
                middle.run(["ip", "link", "delete", port], check=False)
            raise
        self.description = f"user-mode-linux {release}"

    def _prepare(self) -> None:
        trees.remove(self._directory, ignore_errors=True)
        modules = self._directory / "lib" / "modules"
        modules.mkdir(parents=True)
        for release in UML_MODULES.iterdir():
            (modules / release.name).symlink_to(release)
        init = self._directory / "init"
        init.write_text(_INIT.format(directory=shlex.quote(str(self._directory)), answer=_ANSWER))
        init.chmod(0o755)

    def set(self, milliseconds: float) -> None:
        for port in ("vec0", "vec1"):
            self._ask(shlex.join(_netem(port, milliseconds)))
            shown = self._ask(f"tc -j qdisc show dev {port}")
            _verify("user-mode-linux", port, shown, milliseconds)
        if self._pulse is None:
            self._pulse = _Pulse(self._middle)

    def pause(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
            self._pulse = None

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid) or 0.0

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None  # noqa: S101 (started with a pipe)
        self._asked += 1
        try:
            # Past the buffer of the stream, which would want to be written again when it is closed.
            os.write(self._process.stdin.fileno(), f"{self._asked} {command}\n".encode())
        except OSError as error:
            raise TestbedError(f"user-mode-linux has ended: {error.strerror}") from None
        return self._answer(_ANSWER_TIMEOUT_S)

    def _answer(self, timeout: float) -> str:
        """What the guest answers to the last question (0 is the boot)."""
        assert self._process.stdout is not None  # noqa: S101 (started with a pipe)
        deadline = time.monotonic() + timeout
        poller = select.poll()
        poller.register(self._process.stdout, select.POLLIN)
        said = ""
        while True:
            line, separator, rest = self._buffer.partition(b"\n")
            if separator:
                self._buffer = rest
                words = line.decode(errors="replace").strip()
                found = words.split(" ", 3)
                if found[:2] != [_ANSWER, str(self._asked)]:
                    said = words or said
                    continue
                output = found[3] if len(found) > 3 else ""
                if found[2] != "0":
                    raise TestbedError(f"user-mode-linux: {output or 'its set-up failed'}")
                return output
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poller.poll(remaining * 1000):
                raise TestbedError(f"user-mode-linux: no answer after {timeout:g} s{': ' + said if said else ''}")
            content = os.read(self._process.stdout.fileno(), 65536)
            if not content:
                raise TestbedError(f"user-mode-linux ended: {said or 'no message'}")
            self._buffer += content

    def close(self) -> None:
        self.pause()
        if self._process.poll() is None:
            # Its user-space processes are in its group.
            os.killpg(self._process.pid, 9)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        trees.remove(self._directory, ignore_errors=True)
