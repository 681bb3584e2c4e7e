"""`python dpkt_reader.py FILE`: read times, sizes and ports of a capture's datagrams with dpkt, in a few lines."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

import dpkt


def read(path: Path) -> int:
    """Read a capture into columns; returns its datagrams."""
    times, sizes, ports = array("d"), array("l"), array("l")
    with path.open("rb") as file:
        for seconds, data in dpkt.pcap.Reader(file):
            datagram = dpkt.ethernet.Ethernet(data).data.data
            if isinstance(datagram, dpkt.udp.UDP):
                times.append(seconds)
                sizes.append(datagram.ulen - 8)
                ports.append(datagram.sport)
    return len(times)


if __name__ == "__main__":
    print(read(Path(sys.argv[1])))
