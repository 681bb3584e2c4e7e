"""Numbers of QUIC packets of a capture, opened with a key log, for `quicbed.wire.packets`."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from quicbed.wire.handshake import quic_connections
from quicbed.wire.opened import Secrets
from quicbed.wire.packets import Keys
from quicbed.wire.pcap import Capture
from quicbed.wire.tshark import read_key_log


def keys(log: Path, server: tuple[str, int]) -> Keys:
    """What opens packets from and to a server; TsharkError for a key log that is none."""
    secrets = read_key_log(log)
    return Keys(log, lambda plain: _numbers(plain, secrets, (str(ipaddress.ip_address(server[0])), server[1])))


def _numbers(plain: Path, secrets: Secrets, server: tuple[str, int]) -> dict[int, int]:
    """Of every frame with a packet that could be opened the number of the first one."""
    packets = (
        packet
        for packet in Capture(plain).packets()
        if packet.protocol == "udp"
        and server in ((packet.source, packet.source_port), (packet.destination, packet.destination_port))
    )
    found = {}
    for connection in quic_connections(packets, server):
        for unit, opened in zip(connection.units, connection.open(secrets).packets, strict=True):
            number = next((one.number for one in opened if one.number is not None), None)
            if number is not None:
                found[unit.frame + 1] = number
    return found
