"""Frames lost on purpose: where they arrive in the middle, as a seed says.

A program of two dozen instructions (extended BPF) at the ingress of a port draws a number for every frame and drops the
frame if the number is below a threshold. The numbers are those of SplitMix64 (Steele, Lea, Flood: Fast Splittable
Pseudorandom Number Generators, OOPSLA 2014), so that the n-th frame after the seed was set is lost or not whatever it
is, and the same frames are lost again with the same seed. netem's losses cannot be repeated before Linux 6.6, which
gives it a seed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Callable
from typing import Any, Protocol

from .base import TestbedError

# linux/bpf.h
_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD = 0, 1, 2, 5
_MAP_TYPE_ARRAY = 2
_PROG_TYPE_SCHED_CLS = 3
_ATTRIBUTES_SIZE = 128

# linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h
_RTM_NEWTFILTER = 44
_REQUEST_ACK_CREATE_EXCL = 0x1 | 0x4 | 0x400 | 0x200
_INGRESS = 0xFFFFFFF2
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS = 6, 7, 8
_DIRECT_ACTION = 1
_ETH_P_ALL = 0x0003
_NLMSG_ERROR = 2

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1

# What the program keeps: frames seen since the seed was set, seed, threshold, frames lost since the beginning.
_STATE = struct.Struct("=4Q")
_SEEN, _SEED, _THRESHOLD, _LOST = 0, 8, 16, 24

_libc = ctypes.CDLL(None, use_errno=True)


class _Where(Protocol):
    """A host that makes calls in its network namespace and runs tools there."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any: ...

    def run(self, argv: list[str]) -> Any: ...


def threshold(percent: float) -> int:
    """What the upper half of a drawn number is below when its frame is lost."""
    return round(percent / 100 * 2**32)


def is_lost(seed: int, index: int, percent: float) -> bool:
    """Whether the frame with this index, from 0, is lost: what the program does, for tests and analyses."""
    value = (seed + (index + 1) * _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return (value ^ (value >> 31)) >> 32 < threshold(percent)


def _bpf(command: int, attributes: bytes) -> int:
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_SIZE)
    result: int = _libc.syscall(number, command, buffer, _ATTRIBUTES_SIZE)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | target, offset, value)


def _load(target: int, value: int, source: int = 0) -> bytes:
    """A constant of 64 bits, which takes two instructions; source 1: the file descriptor of a map."""
    low, high = struct.unpack("=ii", struct.pack("=Q", value))
    return _instruction(0x18, target, source, 0, low) + _instruction(0, value=high)


def _program(map_descriptor: int) -> bytes:
    """The instructions: r6 is the state, r1 the number of the frame, then the number drawn for it."""

    def xor_shifted(bits: int) -> bytes:
        # r2 = r1; r2 >>= bits; r1 ^= r2
        return _instruction(0xBF, 2, 1) + _instruction(0x77, 2, value=bits) + _instruction(0xAF, 1, 2)

    lost = (
        _instruction(0xB7, 1, value=1)
        + _instruction(0xDB, 6, 1, _LOST)  # atomic add
        + _instruction(0xB7, 0, value=2)  # TC_ACT_SHOT
        + _instruction(0x95)
    )
    draw = (
        _instruction(0xBF, 6, 0)
        + _instruction(0xB7, 1, value=1)
        + _instruction(0xDB, 6, 1, _SEEN, 1)  # atomic add, and r1 is what it was
        + _instruction(0x07, 1, value=1)
        + _load(2, _GAMMA)
        + _instruction(0x2F, 1, 2)
        + _instruction(0x79, 2, 6, _SEED)
        + _instruction(0x0F, 1, 2)
        + xor_shifted(30)
        + _load(2, _MIX_1)
        + _instruction(0x2F, 1, 2)
        + xor_shifted(27)
        + _load(2, _MIX_2)
        + _instruction(0x2F, 1, 2)
        + xor_shifted(31)
        + _instruction(0x77, 1, value=32)
        + _instruction(0x79, 2, 6, _THRESHOLD)
        + _instruction(0x3D, 1, 2, len(lost) // 8)  # r1 >= r2: not lost
    )
    look_up = (
        _instruction(0x62, 10, 0, -4, 0)  # key 0, on the stack
        + _instruction(0xBF, 2, 10)
        + _instruction(0x07, 2, value=-4)
        + _load(1, map_descriptor, source=1)
        + _instruction(0x85, value=1)  # bpf_map_lookup_elem
        + _instruction(0x15, 0, 0, (len(draw) + len(lost)) // 8, 0)
    )
    passed = _instruction(0xB7, 0, value=0) + _instruction(0x95)  # TC_ACT_OK
    return look_up + draw + lost + passed


class PortLoss:
    """Loses frames that arrive at one port; none until it is told to. The kernel forgets it with the port."""

    def __init__(self, host: _Where, interface: str) -> None:
        """:class:`OSError` or :class:`TestbedError` where the kernel cannot do it."""
        self._map = _bpf(_MAP_CREATE, struct.pack("=4I", _MAP_TYPE_ARRAY, 4, _STATE.size, 1))
        try:
            host.run(["tc", "qdisc", "add", "dev", interface, "clsact"])
            program = self._load_program()
            try:
                host.call(_attach, interface, program)
            finally:
                os.close(program)
        except BaseException:
            self.close()
            raise

    def _load_program(self) -> int:
        code = ctypes.create_string_buffer(_program(self._map))
        licence = ctypes.create_string_buffer(b"Apache-2.0")
        attributes = struct.pack(
            "=IIQQ", _PROG_TYPE_SCHED_CLS, (len(code) - 1) // 8, ctypes.addressof(code), ctypes.addressof(licence)
        )
        return _bpf(_PROG_LOAD, attributes)

    def _state(self) -> tuple[int, int, int, int]:
        state = self._reach(_MAP_LOOKUP, _STATE.pack(0, 0, 0, 0))
        seen, seed, below, lost = _STATE.unpack(state)
        return seen, seed, below, lost

    def _reach(self, command: int, content: bytes) -> bytes:
        key = ctypes.create_string_buffer(4)
        value = ctypes.create_string_buffer(content, _STATE.size)
        _bpf(command, struct.pack("=I4xQQQ", self._map, ctypes.addressof(key), ctypes.addressof(value), 0))
        return value.raw

    def set(self, percent: float, seed: int) -> None:
        """Lose this share of frames from now on, beginning with the first number of *seed*."""
        lost = self._state()[3]
        self._reach(_MAP_UPDATE, _STATE.pack(0, seed & _MASK, threshold(percent), lost))

    @property
    def lost(self) -> int:
        """Frames lost so far."""
        return self._state()[3]

    def close(self) -> None:
        """Let go of the kernel's objects."""
        os.close(self._map)


def _attribute(kind: int, content: bytes) -> bytes:
    """A netlink attribute, padded to four bytes."""
    length = 4 + len(content)
    return struct.pack("=HH", length, kind) + content + bytes(-length % 4)


def _attach(interface: str, program: int) -> None:
    """Put a program at the ingress of an interface, whose queueing discipline is clsact (netlink, RTM_NEWTFILTER)."""
    options = (
        _attribute(_TCA_BPF_FD, struct.pack("=I", program))
        + _attribute(_TCA_BPF_NAME, b"quicbed-loss\0")
        + _attribute(_TCA_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION))
    )
    protocol = 1 << 16 | socket.htons(_ETH_P_ALL)
    body = struct.pack("=BxHiIII", 0, 0, socket.if_nametoindex(interface), 0, _INGRESS, protocol)
    body += _attribute(_TCA_KIND, b"bpf\0") + _attribute(_TCA_OPTIONS, options)
    header = struct.pack("=IHHII", 16 + len(body), _RTM_NEWTFILTER, _REQUEST_ACK_CREATE_EXCL, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as control:
        control.bind((0, 0))
        control.send(header + body)
        answer = control.recv(65536)
    kind = struct.unpack_from("=H", answer, 4)[0]
    code = struct.unpack_from("=i", answer, 16)[0]
    if kind != _NLMSG_ERROR or code:
        raise OSError(-code, os.strerror(-code))


class LinkLoss:
    """Losses of the link in both directions, each with numbers of its own."""

    def __init__(self, host: _Where, *, from_client: str, from_server: str) -> None:
        """*from_client* and *from_server* are the ports at which frames of the two arrive."""
        self._percent = 0.0
        try:
            self._to_server = PortLoss(host, from_client)
            try:
                self._to_client = PortLoss(host, from_server)
            except BaseException:
                self._to_server.close()
                raise
        except OSError as error:
            raise TestbedError(f"middle: cannot lose frames by a seed: bpf: {error.strerror}") from error

    def set(self, percent: float, seed: int = 0) -> None:
        """Lose this share of the frames of each direction, beginning anew with *seed*."""
        self._percent = percent
        self._to_client.set(percent, seed)
        self._to_server.set(percent, ~seed)

    def seed(self, seed: int) -> None:
        """Begin anew with another seed."""
        self.set(self._percent, seed)

    def counters(self) -> dict[str, int]:
        """Frames lost so far by direction."""
        return {"link.lost_to_client": self._to_client.lost, "link.lost_to_server": self._to_server.lost}

    def close(self) -> None:
        """Let go of the kernel's objects."""
        self._to_client.close()
        self._to_server.close()
