"""UDP input and output: segmentation and receive offload (GSO, GRO), socket buffers, and waiting in the kernel."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from quicbed_contract.options import Address, Options

# Constants of Linux that the module socket of Python 3.11 does not have.
SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
IP_MTU_DISCOVER = 10
IPV6_MTU_DISCOVER = 23
PMTUDISC_PROBE = 3

MAX_BATCH_BYTES = 65535 - 40 - 8
"""Most bytes of one GSO send: what fits an IPv6 packet with its headers."""

MAX_BATCH_SEGMENTS = 64
"""Most segments of one GSO send (UDP_MAX_SEGMENTS of the kernels before 6.9)."""

RECEIVE_BUFFER = 65535
"""Room for the largest datagram, or for the largest run of datagrams GRO joins."""

_CONTROL = socket.CMSG_SPACE(4)


class Socket:
    """A non-blocking UDP socket with the buffers and offloads asked for, as far as the kernel grants them."""

    def __init__(self, address: Address, options: Options) -> None:
        six = len(address) == 4
        self.socket = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)
        # QUIC must not be fragmented (RFC 9000, section 14); the size of datagrams is set by hand
        level, name = (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER) if six else (socket.IPPROTO_IP, IP_MTU_DISCOVER)
        self.socket.setsockopt(level, name, PMTUDISC_PROBE)
        self._buffer(SO_RCVBUFFORCE, socket.SO_RCVBUF, options.receive_buffer)
        self._buffer(SO_SNDBUFFORCE, socket.SO_SNDBUF, options.send_buffer)
        # a segment size of 0 changes nothing, but fails on a kernel without GSO
        self.gso = options.gso and self._granted(UDP_SEGMENT, 0)
        self.gro = options.gro and self._granted(UDP_GRO, 1)

    @classmethod
    def for_peer(cls, peer: Address, options: Options) -> Socket:
        """A socket for a client of `peer`, on a free port."""
        return cls(("::", 0, 0, 0) if len(peer) == 4 else ("0.0.0.0", 0), options)  # noqa: S104

    def _buffer(self, force: int, plain: int, size: int) -> None:
        """Set a buffer beyond the system's limit if the program may, and within it otherwise."""
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, force, size)
        except OSError:
            self.socket.setsockopt(socket.SOL_SOCKET, plain, size)

    def _granted(self, name: int, value: int) -> bool:
        try:
            self.socket.setsockopt(SOL_UDP, name, value)
        except OSError:
            return False
        return True

    def in_force(self) -> dict[str, Any]:
        """Options of this socket, read back from the kernel."""

        # the kernel doubles what is asked for, to have room for its own structures, and tells the double (socket(7))
        def size(name: int) -> int:
            return self.socket.getsockopt(socket.SOL_SOCKET, name) // 2

        buffers = {"receive_buffer": size(socket.SO_RCVBUF), "send_buffer": size(socket.SO_SNDBUF)}
        return {"gso": self.gso, "gro": self.gro, **buffers}

    def send(self, datagrams: Sequence[bytes], to: Address) -> int:
        """Send datagrams, with GSO in runs of the same size; returns how many the kernel took before it would block."""
        sent, total = 0, len(datagrams)
        try:
            while sent < total:
                end = self._run(datagrams, sent) if self.gso else sent + 1
                if end == sent + 1:
                    self.socket.sendto(datagrams[sent], to)
                else:
                    segment = struct.pack("=H", len(datagrams[sent]))
                    self.socket.sendmsg(datagrams[sent:end], [(SOL_UDP, UDP_SEGMENT, segment)], 0, to)
                sent = end
        except BlockingIOError:
            pass
        return sent

    @staticmethod
    def _run(datagrams: Sequence[bytes], start: int) -> int:
        """End of the run from `start` on that one GSO send can take: all of one size, the last may be shorter."""
        size = len(datagrams[start])
        limit = min(len(datagrams), start + min(MAX_BATCH_SEGMENTS, MAX_BATCH_BYTES // size))
        for end in range(start + 1, limit):
            if len(datagrams[end]) != size:
                return end + 1 if len(datagrams[end]) < size else end
        return limit

    def receive(self) -> tuple[list[bytes], Any] | None:
        """Datagrams received in one call, and where from; None if there are none."""
        try:
            data, control, _, sender = self.socket.recvmsg(RECEIVE_BUFFER, _CONTROL)
        except BlockingIOError:
            return None
        for level, kind, value in control:
            if level == SOL_UDP and kind == UDP_GRO:
                segment = int.from_bytes(value[:4], sys.byteorder)
                if segment < len(data):
                    return [data[at : at + segment] for at in range(0, len(data), segment)], sender
        return [data], sender

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class Waiter:
    """Sleeps in the kernel; SIGTERM and SIGINT end a sleep instead of the process."""

    def __init__(self) -> None:
        self._wakeup, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def wait(self, sock: Socket, to_write: bool, seconds: float | None) -> tuple[bool, bool, bool]:
        """Wait for the socket, the signal to stop, or the time: whether it can be read, written, and is to stop.

        The time is kept to microseconds, which select(2) can and poll(2) cannot.
        """
        writers = (sock.socket,) if to_write else ()
        readable, writable, _ = select.select((sock.socket, self._wakeup), writers, (), seconds)
        return sock.socket in readable, bool(writable), self._wakeup in readable
