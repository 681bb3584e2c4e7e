"""Parsers of the kernel's counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicbed.testbed import counters

SNMP = """\
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors
Udp: 12 3 4 56 7 8
Tcp: RtoAlgorithm MaxConn RetransSegs
Tcp: 1 -1 9
"""

DEVICES = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
 link0: 100 2 3 4 5 6 7 8 900 10 11 12 13 14 15 16
    lo:1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
"""


def test_snmp() -> None:
    tables = counters.parse_snmp(SNMP)
    assert tables["Udp"]["RcvbufErrors"] == 7
    assert tables["Tcp"] == {"RtoAlgorithm": 1, "MaxConn": -1, "RetransSegs": 9}


def test_netstat_leaves_out_what_may_fall() -> None:
    extended = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 5 6\nIpExt: InOctets\nIpExt: 10\n"
    named = counters.netstat(counters.parse_snmp(SNMP), counters.parse_snmp(extended))
    assert named["UdpRcvbufErrors"] == 7
    assert named["TcpRetransSegs"] == 9
    assert (named["TcpExtTCPTimeouts"], named["IpExtInOctets"]) == (6, 10)
    assert not {"TcpRtoAlgorithm", "TcpMaxConn"} & set(named)


def test_snmp_with_unequal_lines_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        counters.parse_snmp("Udp: InDatagrams NoPorts\nUdp: 1\n")


def test_devices() -> None:
    devices = counters.parse_devices(DEVICES)
    assert devices["link0"] == {
        "rx_bytes": 100,
        "rx_packets": 2,
        "rx_errors": 3,
        "rx_dropped": 4,
        "tx_bytes": 900,
        "tx_packets": 10,
        "tx_errors": 11,
        "tx_dropped": 12,
    }
    assert devices["lo"]["tx_packets"] == 1


def test_processor_time_is_in_seconds() -> None:
    seconds = counters.parse_cpu_seconds("cpu  200 0 100 4000 5 6 7 8 9 10\ncpu0 1 1 1\n")
    ticks = 200 / seconds["user"]
    assert ticks == counters._TICKS_PER_SECOND
    assert seconds["steal"] == 8 / ticks
    assert set(seconds) == {"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"}


def test_pressure_counts_stalls_of_some_task() -> None:
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    assert counters.parse_pressure_seconds(text) == 2.5
    with pytest.raises(ValueError, match="some"):
        counters.parse_pressure_seconds("")


def test_softnet_drops_are_hexadecimal() -> None:
    assert counters.parse_softnet_dropped("00000001 0000000a 0\n00000002 00000001 0\n") == 11


def test_the_parsers_read_this_machine() -> None:
    assert "RcvbufErrors" in counters.parse_snmp(Path("/proc/net/snmp").read_text())["Udp"]
    assert "lo" in counters.parse_devices(Path("/proc/net/dev").read_text())
    assert counters.parse_cpu_seconds(Path("/proc/stat").read_text())["user"] > 0
