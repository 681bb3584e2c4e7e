"""What this kernel and this user can do, found by doing it in a throw-away namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .agent import QUIET_IFB, redirection
from .base import Completed, TestbedError
from .confinement import View, unused_users
from .delay import uml_problem
from .loss import port_loss
from .namespace import NamespaceThread, unshare
from .process import find_program, finish, require_tools, start, user_problem
from .reorder import port_reorder
from .shaping import at_server

# linux/udp.h; Python's socket module does not have them.
UDP_SEGMENT = 103
UDP_GRO = 104

# linux/capability.h
_CAP_NET_ADMIN = 12
_CAP_SYS_ADMIN = 21

_QDISCS: dict[str, tuple[str, ...]] = {
    "tbf": ("rate", "1gbit", "burst", "128kb", "latency", "50ms"),
    "netem": ("delay", "1ms"),
    "fq": (),
    "etf": (),
}

# linux/perf_event.h and the system call's number
_PERF_TYPE_HARDWARE = 0
_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_HW_CPU_CYCLES = 0
_PERF_COUNT_SW_CPU_CLOCK = 0
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
_PERF_ATTRIBUTES_SIZE = 64  # PERF_ATTR_SIZE_VER0

LOCAL_TESTBED_NEEDS = ("root", "namespaces", "veth", "bridge", "udp-gso", "udp-gro")


@dataclass(frozen=True)
class Feature:
    """Whether something can be done here, and if not, why."""

    available: bool
    reason: str = ""


_YES = Feature(True)


def has_capabilities() -> bool:
    """Whether this process may make and configure network namespaces."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                effective = int(line.split()[1], 16)
                return bool(effective >> _CAP_NET_ADMIN & 1 and effective >> _CAP_SYS_ADMIN & 1)
    return False


def _run(*argv: str) -> Completed:
    """Run a tool from a thread in the scratch namespace."""
    return finish("this machine", argv, start("this machine", argv), timeout=30, check=False, text=None)


def _tool_result(done: Completed, missing: str) -> Feature:
    """*missing* is the reason when the kernel does not know the kind that was asked for."""
    if done.returncode == 0:
        return _YES
    message = done.stderr.strip().splitlines()
    last = message[-1] if message else f"exit status {done.returncode}"
    unknown = (
        "Unknown device type",
        "kind is unknown",
        "Operation not supported",
        "No such file or directory",
    )
    return Feature(False, missing if any(text in done.stderr for text in unknown) else last)


def _link(kind: str, *arguments: str) -> Feature:
    return _tool_result(_run("ip", "link", "add", f"{kind}0", "type", kind, *arguments), f"kernel has no {kind}")


def _qdisc(kind: str) -> Feature:
    words = at_server(kind) if kind == "etf" else [kind, *_QDISCS[kind]]
    place = words.index("child") if "child" in words else len(words)
    done = _run("tc", "qdisc", "replace", "dev", "lo", "root", "handle", "1:", *words[:place])
    if done.returncode == 0:
        if inner := words[place + 1 :]:
            done = _run("tc", "qdisc", "add", "dev", "lo", "parent", "1:1", *inner)
        _run("tc", "qdisc", "del", "dev", "lo", "root")
    return _tool_result(done, f"kernel has no {kind}")


def _ifb() -> Feature:
    """Whether frames that arrive can be queued: redirected to a device that has a queueing discipline."""
    if find_program(QUIET_IFB[0]) is not None:
        _run(*QUIET_IFB)
    device = _link("ifb")
    if not device.available:
        return device
    done = [_run("tc", "qdisc", "add", "dev", "lo", "clsact"), _run("tc", *redirection("lo", "ifb0"))]
    _run("tc", "qdisc", "del", "dev", "lo", "clsact")
    _run("ip", "link", "del", "ifb0")
    first = next((one for one in done if one.returncode != 0), done[-1])
    return _tool_result(first, "kernel has no clsact, u32 or mirred")


def _udp_pair() -> tuple[socket.socket, socket.socket]:
    sender, receiver = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind(("127.0.0.1", 0))
    receiver.settimeout(5)
    sender.connect(receiver.getsockname())
    return sender, receiver


def _udp_gso() -> Feature:
    sender, receiver = _udp_pair()
    with sender, receiver:
        try:
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
            sender.send(bytes(2500))
            sizes = [len(receiver.recv(65536)) for _ in range(3)]
        except OSError as error:
            return Feature(False, f"kernel has no UDP GSO: {error}")
    return _YES if sizes == [1000, 1000, 500] else Feature(False, f"UDP GSO gives datagrams of {sizes} bytes")


def _udp_gro() -> Feature:
    sender, receiver = _udp_pair()
    with sender, receiver:
        try:
            receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
            sender.send(bytes(2500))
            content, ancillary, _, _ = receiver.recvmsg(65536, socket.CMSG_SPACE(4))
        except OSError as error:
            return Feature(False, f"kernel has no UDP GRO: {error}")
    told = any(level == socket.IPPROTO_UDP and kind == UDP_GRO for level, kind, _ in ancillary)
    if told and len(content) == 2500:
        return _YES
    return Feature(
        False,
        f"UDP GRO gives {len(content)} bytes {'with' if told else 'without'} their segment size",
    )


class _Here:
    """The scratch namespace, seen from its thread."""

    @staticmethod
    def call(function: Callable[..., object], *args: object) -> object:
        return function(*args)

    @staticmethod
    def run(argv: Sequence[str]) -> Completed:
        return finish("this machine", argv, start("this machine", argv), timeout=30, check=True, text=None)


def _loss() -> Feature:
    """Losses by a seed, tried on the loopback interface."""
    try:
        port_loss(_Here(), "lo").close()
    except (OSError, TestbedError) as error:
        return Feature(False, f"kernel has no tc with extended BPF: {getattr(error, 'strerror', None) or error}")
    return _YES


def _reorder() -> Feature:
    """Packets put back, tried on the loopback interface: whether the kernel takes the program."""
    try:
        port_reorder(_Here(), "lo").close()
    except (OSError, TestbedError) as error:
        said = getattr(error, "strerror", None) or error
        return Feature(False, f"kernel does not take a program of extended BPF that puts packets back: {said}")
    return _YES


def _endpoint_user() -> Feature:
    """Whether programs of endpoints can have a user and a view of files of their own."""
    users = unused_users("probe", 1)
    if not users:
        return Feature(False, "this user namespace has no unused number of a user; endpoints run as this user")
    problem = user_problem(View(users[0], Path(tempfile.gettempdir()), 2**20))
    return _YES if problem is None else Feature(False, f"{problem}; endpoints run as this user")


def _psi() -> Feature:
    try:
        Path("/proc/pressure/cpu").read_text()
    except OSError as error:
        return Feature(False, f"no pressure stall information ({error.strerror}); boot with psi=1")
    return _YES


def _schedstat() -> Feature:
    try:
        fields = Path("/proc/self/schedstat").read_text().split()
    except OSError:
        return Feature(False, "kernel has no /proc/PID/schedstat")
    # The first field is time on a processor: 0 means that the kernel keeps no account.
    return _YES if len(fields) == 3 and int(fields[0]) > 0 else Feature(False, "kernel keeps no schedstat")


def _perf_event(kind: int, config: int) -> Feature:
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return Feature(False, f"perf_event_open is not known for {platform.machine()}")
    attributes = ctypes.create_string_buffer(
        struct.pack("=IIQ", kind, _PERF_ATTRIBUTES_SIZE, config), _PERF_ATTRIBUTES_SIZE
    )
    libc = ctypes.CDLL(None, use_errno=True)
    # this thread, any processor, no group, no flags
    descriptor = libc.syscall(number, attributes, 0, -1, -1, 0)
    if descriptor >= 0:
        os.close(descriptor)
        return _YES
    code = ctypes.get_errno()
    if code in (errno.ENOENT, errno.EOPNOTSUPP):
        return Feature(False, "the machine has no such counter")
    return Feature(False, f"perf_event_open: {os.strerror(code)}")


def _perf() -> Feature:
    feature = _perf_event(_PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_CPU_CLOCK)
    if feature.available and find_program("perf") is None:
        return Feature(False, "perf is missing; install with: apt-get install linux-perf")
    return feature


def _valgrind() -> Feature:
    if find_program("valgrind") is None:
        return Feature(False, "valgrind is missing; install with: apt-get install valgrind")
    return _YES


def _anywhere() -> dict[str, Feature]:
    return {
        "psi": _psi(),
        "schedstat": _schedstat(),
        "perf": _perf(),
        "valgrind": _valgrind(),
        "perf-hardware": _perf_event(_PERF_TYPE_HARDWARE, _PERF_COUNT_HW_CPU_CYCLES),
    }


def _in_namespace() -> dict[str, Feature]:
    probes: dict[str, Callable[[], Feature]] = {
        "veth": lambda: _link("veth", "peer", "name", "veth1"),
        "bridge": lambda: _link("bridge"),
        "ifb": _ifb,
        "udp-gso": _udp_gso,
        "udp-gro": _udp_gro,
        "loss": _loss,
        "reorder": _reorder,
        "endpoint-user": _endpoint_user,
        **{kind: partial(_qdisc, kind) for kind in _QDISCS},
    }
    up = _run("ip", "link", "set", "lo", "up")
    if up.returncode != 0:
        return {name: Feature(False, f"no loopback: {up.stderr.strip()}") for name in probes}
    return {name: probe() for name, probe in probes.items()}


def _delay(netem: Feature) -> Feature:
    """Whether a link can have a round-trip time: by this kernel or by one that runs as a process."""
    if netem.available:
        return _YES
    problem = uml_problem()
    return _YES if problem is None else Feature(False, f"{netem.reason}, and {problem}")


def features() -> dict[str, Feature]:
    """Every feature a testbed or an experiment may need; nothing on the machine changes.

    Keys: ``root``, ``namespaces``, ``veth``, ``bridge``, ``ifb``, ``udp-gso``, ``udp-gro``, ``loss``,
    ``reorder``, ``endpoint-user``, ``tbf``, ``netem``, ``fq``, ``etf``, ``delay``, ``psi``, ``schedstat``, ``perf``,
    ``valgrind``, ``perf-hardware``.
    """
    found = _anywhere()
    devices = ("veth", "bridge", "ifb", "udp-gso", "udp-gro", "loss", "reorder")
    needs_namespace = ("namespaces", *devices, "endpoint-user", *_QDISCS, "delay")
    if not has_capabilities():
        no = Feature(False, "needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN)")
        return {"root": no, **dict.fromkeys(needs_namespace, no), **found}
    require_tools(["ip", "tc", "setpriv"])
    try:
        thread = NamespaceThread("quicbed-probe", unshare)
    except OSError as error:
        no = Feature(False, f"cannot make a network namespace: {error.strerror}")
        return {"root": _YES, **dict.fromkeys(needs_namespace, no), **found}
    try:
        inside = thread.call(_in_namespace)
        return {"root": _YES, "namespaces": _YES, **inside, "delay": _delay(inside["netem"]), **found}
    finally:
        thread.close()


def require(found: Mapping[str, Feature], names: Iterable[str]) -> None:
    """:class:`TestbedError` naming what is missing and why."""
    missing = [f"{name}: {found[name].reason}" for name in names if not found[name].available]
    if missing:
        raise TestbedError(f"this machine cannot hold the testbed: {'; '.join(missing)}")
