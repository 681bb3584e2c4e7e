"""Captures of any size, made in seconds."""

from __future__ import annotations

import struct
from ipaddress import ip_address
from pathlib import Path

import numpy as np

SERVER, CLIENT = ("10.0.0.1", 4433), ("10.0.0.2", 50_000)
ROUND = 10
"""Packets that repeat: all but the last are of the server."""
_CHUNK = 20_000
_BEGIN_NS = 1_700_000_000 * 10**9


def write(path: Path, packets: int, snap_bytes: int) -> int:
    """Write a download over QUIC as a pcap file with nanoseconds; returns its packets, *packets* rounded to rounds."""
    client_hello = b"\xc0\0\0\0\1\x08" + bytes(8) + b"\x08" + bytes(1183)
    rows = [_record(_frame(SERVER, CLIENT, b"\x40" + bytes(1251)), snap_bytes)] * (ROUND - 1)
    rows.append(_record(_frame(CLIENT, SERVER, b"\x40" + bytes(40)), snap_bytes))
    pattern = np.frombuffer(b"".join(rows), np.uint8)
    begins = np.cumsum([0, *map(len, rows[:-1])])
    dice = np.random.default_rng(1)
    time_ns, left = _BEGIN_NS, packets // ROUND
    with path.open("wb") as file:
        file.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, snap_bytes, 1))
        first = _record(_frame(CLIENT, SERVER, client_hello), snap_bytes)
        file.write(struct.pack("<II", *divmod(_BEGIN_NS, 10**9)) + first[8:])
        while left:
            rounds = min(left, _CHUNK)
            left -= rounds
            times = time_ns + np.cumsum(dice.integers(200, 60_000, rounds * ROUND))
            time_ns = int(times[-1])
            stamps = np.stack(np.divmod(times, 10**9), 1).astype("<u4").view(np.uint8).reshape(rounds, ROUND, 8)
            chunk = np.tile(pattern, (rounds, 1))
            for number, begin in enumerate(begins):
                chunk[:, begin : begin + 8] = stamps[:, number]
            file.write(chunk.tobytes())
    return 1 + packets // ROUND * ROUND


def _record(frame: bytes, snap_bytes: int) -> bytes:
    kept = frame[:snap_bytes]
    return bytes(8) + struct.pack("<II", len(kept), len(frame)) + kept


def _frame(source: tuple[str, int], destination: tuple[str, int], payload: bytes) -> bytes:
    udp = struct.pack("!HHHH", source[1], destination[1], 8 + len(payload), 0) + payload
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0x4000, 64, 17, 0)
    addresses = ip_address(source[0]).packed + ip_address(destination[0]).packed
    return bytes(12) + b"\x08\x00" + ip + addresses + udp
