"""Sender and receiver of UDP super-packets: the ceiling of any QUIC library on a link.

`send ADDRESS PORT SECONDS` sends 64 kB buffers with UDP_SEGMENT as fast as the socket takes them, then a few 1-byte
datagrams to say that it is done; `receive ADDRESS PORT` counts with UDP_GRO and prints {"bytes", "seconds"} as JSON.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time

UDP_SEGMENT = 103  # linux/udp.h
UDP_GRO = 104
PAYLOAD = 1472
SEGMENTS = 44  # 44 * 1472 bytes is the most that fits a 64 kB super-packet
BUFFER = 6815744


def send(address: str, port: int, seconds: float) -> None:
    """Send for `seconds`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        sock.connect((address, port))
        _wait_for(sock)
        data = [bytes(PAYLOAD * SEGMENTS)]
        ancillary = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", PAYLOAD))]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sock.sendmsg(data, ancillary)
        for _ in range(20):
            time.sleep(0.01)
            try:
                sock.send(b".")
            except ConnectionRefusedError:
                return  # the receiver has heard it and gone


def _wait_for(sock: socket.socket) -> None:
    """Wait until the receiver answers."""
    sock.settimeout(0.05)
    for _ in range(200):
        try:
            sock.send(b"?")
            sock.recv(1)
            break
        except (TimeoutError, ConnectionRefusedError):
            time.sleep(0.02)
    else:
        raise SystemExit("the receiver does not answer")
    sock.settimeout(None)


def receive(address: str, port: int) -> None:
    """Receive until told that it is over."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        sock.settimeout(15)
        sock.bind((address, port))
        buffer = bytearray(65536)
        total = 0
        begin = end = 0.0
        while True:
            count, _, _, peer = sock.recvmsg_into([buffer], 64)
            if count > 1:
                end = time.monotonic()
                if not begin:
                    begin = end  # the first buffer starts the clock and does not count
                else:
                    total += count
            elif buffer[:1] == b"?":
                sock.sendto(b"!", peer)
            else:
                break
    print(json.dumps({"bytes": total, "seconds": end - begin}))


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        receive(sys.argv[2], int(sys.argv[3]))
