"""Packets put back on purpose on the local testbed: chosen ones leave the middle some packets later.

A program of extended BPF at a port of the middle draws a number for every IPv4 packet, as that which loses frames does
(:class:`.agent.FrameLoss`). A chosen packet is copied into a map and taken out of the traffic. The packet that arrives
so many later lets it go: a copy of that one is sent, and then that one itself, with the content of the held one. So
nothing waits for a timer or for user space, and which packets move, and how far, is exact. All of them are sent to the
port on the other side at once, past the bridge, which takes longer than the program.

What is held when no more packets arrive would wait for ever. A thread looks whether packets still arrive, and lets the
program send what it holds once none does.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .agent import (
    ETH_P_IP,
    INGRESS,
    MAP_CREATE,
    MAP_LOOKUP,
    MAP_TYPE_ARRAY,
    MAP_UPDATE,
    SPLITMIX_MASK,
    attach,
    bpf,
    draw_number,
    instruction,
    load_constant,
    load_program,
)
from .base import TestbedError
from .loss import CLSACT, Where, drawn

NAME = "quicbed-reorder"
_PRIORITY = 2
"""Of the filter: after the one that loses frames, which has 1."""

SLOTS = 2048
"""More than twice the longest way back, so that a slot is empty again before its turn, on any number of processors."""
FRAME_BYTES = 2032
"""Longest frame that is held; a frame of MTU 1500 has 1514."""
_SLOT_BYTES = 8 + FRAME_BYTES
IDLE_S = 0.05
"""On a link on which nothing has arrived for so long and its round-trip time, nothing is held any more."""
_POLL_S = 0.01
_TAKE_AWAY = ["tc", "filter", "del", "dev"]

_STATE = struct.Struct("=9Q")
_SEEN, _SEED, _THRESHOLD, _PACKETS, _TARGET, _HELD, _PUT_BACK, _FLUSHED, _FAILED = range(0, 72, 8)
_NUMBERS = _STATE.size
"""Where the numbers of held packets begin, one for each slot: that of the packet and one, or 0."""
_STATE_BYTES = _NUMBERS + 8 * SLOTS

# linux/bpf.h
_PROG_TEST_RUN = 10
_LOOK_UP, _STORE_BYTES, _CLONE_REDIRECT, _REDIRECT, _LOAD_BYTES, _CHANGE_TAIL = 1, 9, 13, 23, 26, 38
_SKB_LENGTH, _SKB_MARK, _SKB_PROTOCOL = 0, 8, 16
_UNSPECIFIED, _STOLEN, _SHOT = -1, 4, 2
_ADD_FETCH, _EXCHANGE, _COMPARE_EXCHANGE = 0x01, 0xE1, 0xF1


@dataclass(frozen=True)
class Counts:
    """Packets so far."""

    held: int
    """Taken out of the traffic."""
    put_back: int
    """Sent after all."""
    flushed: int
    """Of those, the ones that the link sent because no more packets arrived."""
    lost: int
    """Neither sent nor held any more, or not treated as they were to be."""


def threshold(permille: float) -> int:
    """What the upper half of a drawn number is below when its packet is put back."""
    return round(permille / 1000 * 2**32)


def order(seed: int, permille: float, packets: int, count: int) -> Iterator[int]:
    """Numbers of packets in the order in which they leave, of *count* that arrive, with those held at the end last."""

    def chosen(number: int) -> bool:
        return drawn(seed, number) < threshold(permille)

    for number in range(count):
        if not chosen(number):
            yield number
        if number >= packets and chosen(number - packets):
            yield number - packets
    yield from (number for number in range(max(0, count - packets), count) if chosen(number))


class _Program:
    """Instructions with names for the places that are jumped to."""

    def __init__(self) -> None:
        self._code = bytearray()
        self._places: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def add(self, code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> None:
        self.append(instruction(code, target, source, offset, value))

    def append(self, instructions: bytes) -> None:
        self._code += instructions

    def mov(self, target: int, value: int) -> None:
        self.add(0xB7, target, value=value)

    def copy(self, target: int, source: int) -> None:
        self.add(0xBF, target, source)

    def call(self, function: int) -> None:
        self.add(0x85, value=function)

    def jump(self, code: int, place: str, target: int = 0, source: int = 0, value: int = 0) -> None:
        self._jumps.append((len(self._code), place))
        self.add(code, target, source, 0, value)

    def place(self, name: str) -> None:
        self._places[name] = len(self._code)

    def leave(self, action: int) -> None:
        self.mov(0, action)
        self.add(0x95)

    def count(self, counter: int) -> None:
        """One more in the state, whose address is in r7."""
        self.mov(1, 1)
        self.add(0xDB, 7, 1, counter)

    def whole(self) -> bytes:
        for begin, name in self._jumps:
            struct.pack_into("=h", self._code, begin + 2, (self._places[name] - begin) // 8 - 1)
        return bytes(self._code)


def program(state: int, frames: int) -> bytes:
    """The instructions; *state* and *frames* are descriptors of the maps.

    r6 is the packet, r7 the state, r8 where a slot has its number, r9 its frame. On the stack: -4 a key of a map,
    -16 the number of the packet, -24 whether it is held.

    Programs of several processors may work at the same time, so a held packet is what the number in its slot says, and
    whoever exchanges the number for 0 sends it. A packet with a mark, which none has that comes from another namespace,
    is from :meth:`PortReorder.flush`: the mark is that of the slot to empty, and one.
    """
    p = _Program()

    def look_up(map_: int, place: str) -> None:
        p.copy(2, 10)
        p.add(0x07, 2, value=-4)
        p.append(load_constant(1, map_, source=1))
        p.call(_LOOK_UP)
        p.jump(0x15, place, 0, value=0)

    def number_of_slot(target: int, number: int) -> None:
        """Address of the number in the slot that the register *number* leads to; and the slot is the key."""
        p.add(0x57, number, value=SLOTS - 1)
        p.add(0x63, 10, number, -4)
        p.add(0x67, number, value=3)
        p.copy(target, 7)
        p.add(0x0F, target, number)

    p.copy(6, 1)
    p.add(0x61, 1, 6, _SKB_PROTOCOL)
    p.jump(0x55, "passed", 1, value=socket.htons(ETH_P_IP))
    p.add(0x62, 10, 0, -4, 0)
    look_up(state, "passed")
    p.copy(7, 0)
    p.add(0x7A, 10, 0, -24, 0)
    p.add(0x61, 1, 6, _SKB_MARK)
    p.jump(0x55, "flush", 1, value=0)

    # the number of the packet, and what is drawn for it
    p.mov(1, 1)
    p.add(0xDB, 7, 1, _SEEN, _ADD_FETCH)
    p.add(0x7B, 10, 1, -16)
    p.append(draw_number(7, _SEED))
    p.add(0x79, 2, 7, _THRESHOLD)
    p.jump(0x3D, "due", 1, 2)

    # hold it: the frame first, then its number, which makes it one that is held
    p.add(0x79, 1, 10, -16)
    number_of_slot(8, 1)
    p.add(0x79, 1, 8, _NUMBERS)
    p.jump(0x55, "not held", 1, value=0)
    look_up(frames, "not held")
    p.copy(9, 0)
    p.add(0x61, 4, 6, _SKB_LENGTH)
    p.jump(0x25, "not held", 4, value=FRAME_BYTES)
    p.jump(0xA5, "not held", 4, value=14)
    p.add(0x7B, 9, 4, 0)
    p.copy(1, 6)
    p.mov(2, 0)
    p.copy(3, 9)
    p.add(0x07, 3, value=8)
    p.call(_LOAD_BYTES)
    p.jump(0x55, "not held", 0, value=0)
    p.count(_HELD)
    p.mov(1, 1)
    p.add(0x7B, 10, 1, -24)
    p.add(0x79, 1, 10, -16)
    p.add(0x07, 1, value=1)
    p.add(0xDB, 8, 1, _NUMBERS, _EXCHANGE)
    # the packet that it waits for may have been here meanwhile, on another processor: then it goes on now
    p.add(0x79, 1, 10, -16)
    p.add(0x79, 2, 7, _PACKETS)
    p.add(0x0F, 1, 2)
    p.add(0x79, 2, 7, _SEEN)
    p.jump(0x3D, "due", 1, 2)
    p.add(0x79, 0, 10, -16)
    p.add(0x07, 0, value=1)
    p.copy(3, 0)
    p.mov(1, 0)
    p.add(0xDB, 8, 1, _NUMBERS, _COMPARE_EXCHANGE)
    p.jump(0x5D, "due", 0, 3)
    p.count(_PUT_BACK)
    p.add(0x7A, 10, 0, -24, 0)
    p.jump(0x05, "due")
    p.place("not held")
    p.count(_FAILED)

    # whether a packet has waited for this one
    p.place("due")
    p.add(0x79, 1, 10, -16)
    p.add(0x79, 2, 7, _PACKETS)
    p.jump(0xAD, "none due", 1, 2)
    p.add(0x1F, 1, 2)
    p.copy(0, 1)
    p.add(0x07, 0, value=1)
    p.copy(3, 0)
    number_of_slot(8, 1)
    p.mov(1, 0)
    p.add(0xDB, 8, 1, _NUMBERS, _COMPARE_EXCHANGE)
    p.jump(0x5D, "none due", 0, 3)
    look_up(frames, "lost")
    p.copy(9, 0)
    p.add(0x79, 1, 10, -24)
    p.jump(0x55, "put back", 1, value=0)
    p.copy(1, 6)
    p.add(0x79, 2, 7, _TARGET)
    p.mov(3, 0)
    p.call(_CLONE_REDIRECT)
    p.add(0x67, 0, value=32)
    p.add(0xC7, 0, value=32)
    # above 0: a queue of the link had no room, which counts that itself
    p.jump(0x65, "put back", 0, value=-1)
    p.count(_FAILED)
    p.jump(0x05, "put back")

    # whatever the slot holds is sent
    p.place("flush")
    p.add(0x07, 1, value=-1)
    number_of_slot(8, 1)
    p.mov(1, 0)
    p.add(0xDB, 8, 1, _NUMBERS, _EXCHANGE)
    p.jump(0x15, "stolen", 1, value=0)
    look_up(frames, "lost")
    p.copy(9, 0)

    # this packet becomes the one in r9
    p.place("put back")
    p.add(0x79, 8, 9, 0)
    p.jump(0x25, "lost", 8, value=FRAME_BYTES)
    p.jump(0xA5, "lost", 8, value=14)
    p.copy(1, 6)
    p.copy(2, 8)
    p.mov(3, 0)
    p.call(_CHANGE_TAIL)
    p.jump(0x55, "lost", 0, value=0)
    p.copy(1, 6)
    p.mov(2, 0)
    p.copy(3, 9)
    p.add(0x07, 3, value=8)
    p.copy(4, 8)
    p.mov(5, 0)
    p.call(_STORE_BYTES)
    p.jump(0x55, "lost", 0, value=0)
    p.count(_PUT_BACK)
    p.add(0x61, 1, 6, _SKB_MARK)
    p.jump(0x15, "on", 1, value=0)
    p.count(_FLUSHED)
    p.mov(1, 0)
    p.add(0x63, 6, 1, _SKB_MARK)
    p.copy(1, 6)
    p.add(0x79, 2, 7, _TARGET)
    p.mov(3, 0)
    p.call(_CLONE_REDIRECT)
    p.leave(_STOLEN)

    p.place("none due")
    p.add(0x79, 1, 10, -24)
    p.jump(0x15, "on", 1, value=0)
    p.place("stolen")
    p.leave(_STOLEN)

    # the counters tell: it was held, and is not put back
    p.place("lost")
    p.leave(_SHOT)
    # past the bridge, which would take longer
    p.place("on")
    p.add(0x79, 1, 7, _TARGET)
    p.mov(2, 0)
    p.call(_REDIRECT)
    p.add(0x95)
    p.place("passed")
    p.leave(_UNSPECIFIED)
    return p.whole()


class PortReorder:
    """Puts packets back that arrive at one port; none until it is told to."""

    def __init__(self) -> None:
        """OSError where the kernel cannot do it."""
        self._descriptors: list[int] = []
        self._lock = threading.Lock()
        try:
            for size, entries in ((_STATE_BYTES, 1), (_SLOT_BYTES, SLOTS)):
                self._descriptors.append(bpf(MAP_CREATE, struct.pack("=4I", MAP_TYPE_ARRAY, 4, size, entries)))
            self._descriptors.append(load_program(program(*self._descriptors)))
        except BaseException:
            self.close()
            raise

    def attach(self, interface: str) -> None:
        """Begin, in the network namespace of the interface, which has the discipline clsact."""
        self._empty(0)  # whether the kernel can do that is known from the beginning
        attach(interface, INGRESS, self._descriptors[2], NAME, _PRIORITY)

    def set(self, permille: float, packets: int, seed: int, target: int) -> None:
        """Put this share of packets back by so many from now on, beginning with the first number of *seed*.

        *target* is the index of the interface to which the bridge sends what arrives here.
        """
        with self._lock:
            self._flush()
            counted = _STATE.unpack_from(self._read())[5:]
            below = threshold(permille)
            content = _STATE.pack(0, seed & SPLITMIX_MASK, below, packets, target, *counted) + bytes(8 * SLOTS)
            self._reach(MAP_UPDATE, ctypes.create_string_buffer(content, _STATE_BYTES))

    def seen(self) -> int:
        """Packets that have arrived since the seed was set."""
        return int(_STATE.unpack_from(self._read())[0])

    def counts(self) -> Counts:
        """What has become of packets so far."""
        state = self._read()
        held, put_back, flushed, failed = _STATE.unpack_from(state)[5:]
        waiting = sum(number > 0 for number in _numbers(state))
        return Counts(held, put_back, flushed, held - put_back - waiting + failed)

    def flush(self) -> None:
        """Send what is held, in the order in which it came, in the network namespace of the interface."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        state = self._read()
        held, put_back = _STATE.unpack_from(state)[5:7]
        if held != put_back:
            for _, slot in sorted((number, slot) for slot, number in enumerate(_numbers(state)) if number):
                self._empty(slot)

    def _empty(self, slot: int) -> None:
        """Run the program with a frame of its own, which becomes what is held in a slot, if anything, and is sent."""
        frame = ctypes.create_string_buffer(bytes(12) + struct.pack("!H", ETH_P_IP) + bytes(46), 60)
        marked = ctypes.create_string_buffer(struct.pack("=3I", 0, 0, slot + 1), 12)
        run = (self._descriptors[2], 0, 60, 0, ctypes.addressof(frame), 0, 1, 0, 12, 0, ctypes.addressof(marked), 0)
        bpf(_PROG_TEST_RUN, struct.pack("=4I2Q4I2Q", *run))

    def _read(self) -> bytes:
        state = ctypes.create_string_buffer(_STATE_BYTES)
        self._reach(MAP_LOOKUP, state)
        return state.raw

    def _reach(self, command: int, value: ctypes.Array[ctypes.c_char]) -> None:
        key = ctypes.create_string_buffer(4)
        bpf(command, struct.pack("=I4xQQQ", self._descriptors[0], ctypes.addressof(key), ctypes.addressof(value), 0))

    def close(self) -> None:
        """Let go of the kernel's objects."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _numbers(state: bytes) -> tuple[int, ...]:
    """The numbers in all slots."""
    return struct.unpack_from(f"={SLOTS}Q", state, _NUMBERS)


def port_reorder(host: Where, interface: str) -> PortReorder:
    """Puts back packets that arrive at a port; OSError or :class:`TestbedError` where the kernel cannot do it."""
    port = PortReorder()
    try:
        host.run([*CLSACT, interface, "clsact"])
        host.call(port.attach, interface)
    except BaseException:
        port.close()
        raise
    return port


class LinkReorder:
    """Puts packets of both directions back, each with numbers of its own, and sends what is held on an idle link."""

    def __init__(self, host: Where, *, from_client: str, from_server: str) -> None:
        """*from_client* and *from_server* are the ports at which frames of the two arrive."""
        self._host = host
        self._ports: dict[str, PortReorder] = {}
        self._at = {"server": from_client, "client": from_server}
        self._put: tuple[float, int, dict[str, int]] = (0, 1, {})
        self._idle_s = 0.0
        self._end = threading.Event()
        self._watch = threading.Thread(target=self._flush_when_idle, name="quicbed-reorder", daemon=True)
        try:
            for to, interface in self._at.items():
                self._ports[to] = port_reorder(host, interface)
            # a thread is in the namespace of that which starts it
            host.call(self._watch.start)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise TestbedError(f"middle: cannot put packets back: bpf: {error.strerror}") from error
            raise

    def set(self, permille: float, packets: int, *, to_client: str, to_server: str, idle_s: float) -> None:
        """Put this share of the packets of each direction back by so many.

        *to_client* and *to_server* are the interfaces through which frames leave to the two. What is held is sent after
        *idle_s* in which no packet has arrived.
        """
        targets = {"client": to_client, "server": to_server}
        self._put = permille, packets, {to: self._host.call(socket.if_nametoindex, targets[to]) for to in targets}
        self._idle_s = idle_s
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Begin anew with another seed."""
        permille, packets, targets = self._put
        for to, port in self._ports.items():
            # other numbers than those of losses
            own = seed + 1 if to == "client" else ~(seed + 1)
            self._host.call(port.set, permille, packets, own, targets[to])

    def _flush_when_idle(self) -> None:
        last = {to: (-1, time.monotonic()) for to in self._ports}
        while not self._end.wait(_POLL_S):
            for to, port in self._ports.items():
                seen, now = port.seen(), time.monotonic()
                if seen != last[to][0]:
                    last[to] = seen, now
                elif now - last[to][1] >= self._idle_s:
                    port.flush()

    def counters(self) -> dict[str, int]:
        """Packets held, put back, flushed of those, and lost so far, by direction."""
        counts = {to: port.counts() for to, port in self._ports.items()}
        return {
            f"link.reorder_{name}_to_{to}": getattr(count, name)
            for to, count in counts.items()
            for name in ("held", "put_back", "flushed", "lost")
        }

    def waiting(self, to: str) -> int:
        """Packets in a direction, `client` or `server`, that are held now."""
        counts = self._ports[to].counts()
        return counts.held - counts.put_back

    def close(self) -> None:
        """Send what is held, and take the programs away."""
        self._end.set()
        if self._watch.is_alive():
            self._watch.join()
        for to, port in self._ports.items():
            self._host.call(port.flush)
            self._host.run([*_TAKE_AWAY, self._at[to], "ingress", "prio", str(_PRIORITY)])
            port.close()
        self._ports.clear()
