"""When a server's packets were to leave by its pacer, as the server notes it (workflow/endpoints/ENDPOINT.md), beside a
capture of them.

A file is `HEADER` and records of three 64-bit numbers for every datagram in the order in which they were written: the
fingerprint of its first `TELLING` bytes, its release time (CLOCK_MONOTONIC in ns; 0: it might leave at once) and its
length. All numbers are little-endian. The file is that of an endpoint, and may be anything.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import polars as pl

from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.wire import pacing
from quicbed.wire.pcap import Capture

MAGIC, VERSION = b"qbreleas", 1
HEADER = struct.Struct("<8sII")
"""Magic number, version, bytes of a record."""
RECORD = np.dtype([("fingerprint", "<u8"), ("intended_ns", "<u8"), ("bytes", "<u8")])
TELLING = 64
MOST_BYTES = HEADER.size + RECORD.itemsize * (1 << 19)
"""A server notes no more datagrams of a connection than this has room for."""
LEAST_KNOWN = 0.99
"""Share of the noted datagrams that are in the capture where both are of one run."""
FINGERPRINT = "fingerprint"
_OFFSET, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_LATEST_NS = 1 << 62


class ReleasesError(Exception):
    """Release times that tell nothing about a capture: why, in a line."""


def fingerprint(datagram: bytes) -> int:
    """FNV-1a (64 bits) of the first `TELLING` bytes of a datagram."""
    value = _OFFSET
    for byte in datagram[:TELLING]:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def read(file: Path) -> pl.DataFrame:
    """``fingerprint``, ``intended_ns`` (null: at once) and ``bytes`` of every datagram. Raises ReleasesError."""
    try:
        content = untrusted.read(file, MOST_BYTES)
    except UntrustedError as error:
        raise ReleasesError(f"{file.name}: {error}") from None
    if len(content) < HEADER.size or content[: len(MAGIC)] != MAGIC:
        raise ReleasesError(f"{file.name}: is no file of release times")
    _, version, size = HEADER.unpack_from(content)
    if (version, size) != (VERSION, RECORD.itemsize):
        raise ReleasesError(f"{file.name}: version {version} with records of {size} bytes, this is version {VERSION}")
    if (len(content) - HEADER.size) % RECORD.itemsize:
        raise ReleasesError(f"{file.name}: ends within a record")
    records = np.frombuffer(content, RECORD, offset=HEADER.size)
    if len(records) and int(records["intended_ns"].max()) > _LATEST_NS:
        raise ReleasesError(f"{file.name}: has a release time beyond what can be")
    found = pl.DataFrame({name: records[name] for name in RECORD.names or ()})
    told = pl.when(pl.col("intended_ns") > 0).then(pl.col("intended_ns").cast(pl.Int64))
    return found.with_columns(intended_ns=told)


def sent(capture: Path, server: tuple[str, int]) -> pl.DataFrame:
    """``time_ns``, ``gap_ns``, ``fingerprint`` and ``bytes`` of the UDP datagrams of a server. Raises CaptureError."""
    address, port = server
    rows = [
        (packet.frame.time_ns, fingerprint(packet.payload), packet.payload_bytes)
        for packet in Capture(capture).packets()
        if packet.protocol == "udp" and packet.source == address and packet.source_port == port
    ]
    schema = {"time_ns": pl.Int64(), FINGERPRINT: pl.UInt64(), "bytes": pl.UInt64()}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    return found.with_columns(gap_ns=pl.col("time_ns").diff())


def precision_us(file: Path, capture: Path, server: tuple[str, int]) -> float:
    """The pacing precision of a run in µs. Raises ReleasesError, which says why there is none, and CaptureError."""
    noted = read(file)
    if noted["intended_ns"].null_count() == noted.height:
        raise ReleasesError("its pacer let every packet leave at once")
    packets = sent(capture, server)
    known = noted.join(packets.select(FINGERPRINT, "bytes").unique(), on=[FINGERPRINT, "bytes"], how="semi")
    if known.height < LEAST_KNOWN * noted.height:
        raise ReleasesError(f"{file.name}: {known.height} of its {noted.height} datagrams are in the capture")
    value = pacing.precision_ns(packets, noted, FINGERPRINT)
    if value is None:
        raise ReleasesError("its pacer told the times of no three packets in succession")
    return value / 1e3
