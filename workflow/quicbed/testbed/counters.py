"""Counters of the kernel: parsers of the files in /proc that hold them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# RFC 4113 (UDP-MIB) and RFC 4022 (TCP-MIB) names, as the kernel prints them in /proc/net/snmp.
UDP_COUNTERS = (
    "InDatagrams",
    "OutDatagrams",
    "NoPorts",
    "InErrors",
    "RcvbufErrors",
    "SndbufErrors",
)
TCP_COUNTERS = ("InSegs", "OutSegs", "RetransSegs", "InErrs")

# What /proc/net/snmp has among its counters that may fall or never changes.
_NO_COUNTERS = {
    *("IpForwarding", "IpDefaultTTL", "TcpRtoAlgorithm", "TcpRtoMin", "TcpRtoMax", "TcpMaxConn", "TcpCurrEstab"),
}

PRESSURES = ("cpu", "io", "memory")
"""Resources whose pressure the kernel tells, by the names of their files."""

# Columns of /proc/net/dev after the interface's name.
_DEVICE_COLUMNS = {
    "rx_bytes": 0,
    "rx_packets": 1,
    "rx_errors": 2,
    "rx_dropped": 3,
    "tx_bytes": 8,
    "tx_packets": 9,
    "tx_errors": 10,
    "tx_dropped": 11,
}

# Columns of the first line of /proc/stat, proc(5).
_CPU_COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def parse_snmp(text: str) -> dict[str, dict[str, int]]:
    """``/proc/net/snmp`` or ``/proc/net/netstat``: protocol to counter to value."""
    tables: dict[str, dict[str, int]] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        protocol, _, columns = names.partition(":")
        numbers = values.partition(":")[2]
        tables[protocol] = {name: int(number) for name, number in zip(columns.split(), numbers.split(), strict=True)}
    return tables


def netstat(*tables: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """What only grows in what :func:`parse_snmp` has read, by names such as ``UdpRcvbufErrors``."""
    return {
        protocol + name: value
        for table in tables
        for protocol, counters in table.items()
        for name, value in counters.items()
        if protocol + name not in _NO_COUNTERS
    }


def parse_devices(text: str) -> dict[str, dict[str, int]]:
    """``/proc/net/dev``: interface to counter to value."""
    devices: dict[str, dict[str, int]] = {}
    for line in text.splitlines()[2:]:
        name, _, columns = line.partition(":")
        values = columns.split()
        devices[name.strip()] = {counter: int(values[column]) for counter, column in _DEVICE_COLUMNS.items()}
    return devices


def parse_cpu_seconds(text: str) -> dict[str, float]:
    """``/proc/stat``: seconds of all processors by what they did."""
    values = text.split("\n", 1)[0].split()[1:]
    return {
        name: int(value) / _TICKS_PER_SECOND
        for name, value in zip(_CPU_COLUMNS, values, strict=False)  # guest time is part of user
    }


def parse_pressure_seconds(text: str) -> float:
    """``/proc/pressure/*``: seconds in which some task was stalled."""
    for line in text.splitlines():
        if line.startswith("some "):
            return int(line.rsplit("total=", 1)[1]) / 1e6
    raise ValueError("no line 'some' in a pressure file")


def parse_softnet_dropped(text: str) -> int:
    """``/proc/net/softnet_stat``: frames dropped because a processor's backlog was full."""
    return sum(int(line.split()[1], 16) for line in text.splitlines())


def interface_counters(role: str, interfaces: Iterable[str], devices: str) -> dict[str, float]:
    """Counters of interfaces of a host from its ``/proc/net/dev``, as ``<role>.<interface>.<counter>``."""
    found = parse_devices(devices)
    return {f"{role}.{name}.{counter}": value for name in interfaces for counter, value in found[name].items()}


def protocol_counters(role: str, snmp: str, extended: str, statistics: Mapping[str, int]) -> dict[str, float]:
    """Counters of a host's protocols and of its interface's driver.

    *snmp* and *extended* are its ``/proc/net/snmp`` and ``/proc/net/netstat``, *statistics* what ``ethtool -S`` shows.
    """
    tables = parse_snmp(snmp)
    values: dict[str, float] = {}
    for name, value in netstat(tables, parse_snmp(extended)).items():
        values[f"{role}.netstat.{name}"] = value
    for name, value in statistics.items():
        values[f"{role}.ethtool.{name}"] = value
    for protocol, names in (("Udp", UDP_COUNTERS), ("Tcp", TCP_COUNTERS)):
        for name in names:
            values[f"{role}.{protocol.lower()}.{name}"] = tables[protocol][name]
    return values


def machine_counters(machine: str, stat: str, softnet: str, pressures: Mapping[str, str | None]) -> dict[str, float]:
    """Counters of a machine of this name: ``/proc/stat``, ``/proc/net/softnet_stat``, ``/proc/pressure/*``."""
    values: dict[str, float] = {f"{machine}.cpu.{name}_s": value for name, value in parse_cpu_seconds(stat).items()}
    values[f"{machine}.softnet_dropped"] = parse_softnet_dropped(softnet)
    for resource, text in pressures.items():
        if text is not None:
            values[f"{machine}.psi.{resource}_some_s"] = parse_pressure_seconds(text)
    return values
