"""Files that the bare-metal QUIC Interop Runner leaves of a repetition, in "QUIC on the Highway" and "QUIC Steps".

Parsers only: each takes the content of one file. `ParseError` says what is wrong with it in words that are the same for
every such file, so that a summary can count them.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from quicbed.base import untrusted

Role = Literal["client", "server"]
ROLES: tuple[Role, ...] = ("client", "server")
Counters = dict[str, int]

DEFAULT_BUFFER = 212992
"""Socket buffers in bytes where no script changes them: net.core.rmem_default and wmem_default of Linux, 208 KiB."""

PIDSTAT_TRIMMED = 2
"""Samples of pidstat left out at either end: the endpoint starts and ends within them."""


# 2001 to 2096
_EARLIEST_NS, _LATEST_NS = 10**18, 4 * 10**18


class ParseError(Exception):
    """A file that is not what its name says."""


def text_of(data: bytes) -> str:
    """Content as text with newlines, as every parser here takes it."""
    try:
        return untrusted.plain_text(data)
    except untrusted.UntrustedError as error:
        raise ParseError(str(error)) from None


# ---- JSON ------------------------------------------------------------------------------------------------------------


def parse_json(data: bytes) -> Any:
    """Any JSON document, also with NaN and Infinity, which programs write: whoever takes a number of it looks."""
    try:
        return untrusted.parse(data, finite=False)
    except untrusted.UntrustedError as error:
        told = str(error)
        if told.startswith("is "):
            raise ParseError(told) from None
        told = told.partition(":")[0]
        raise ParseError(f"{told} JSON" if told.startswith("truncated") else f"JSON with {told}") from None


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object."""
    document = parse_json(data)
    if not isinstance(document, dict):
        raise ParseError("JSON, but not an object")
    return document


def parse_time(data: bytes) -> tuple[int, int]:
    """Start and end of the client in ns since the Unix epoch, from ``time.json``."""
    document = parse_object(data)
    start, end = document.get("start"), document.get("end")
    if type(start) is not int or type(end) is not int:
        raise ParseError("without whole numbers `start` and `end`")
    if end <= start:
        raise ParseError("an end that is not after the start")
    if not _EARLIEST_NS <= start < _LATEST_NS:
        raise ParseError("times that are not in ns since the Unix epoch")
    return start, end


# ---- output.txt ------------------------------------------------------------------------------------------------------

_VARIABLES = re.compile(r"^\S+ \S+ Setting (?:the pos )?variables:\n(\{.*\})\non the host (\S+)", re.MULTILINE)
_SCRIPT = re.compile(r"^\S+ \S+ Run (\S+) on (\S+)", re.MULTILINE)
_FILE_SIZE = re.compile(r"Generated random file: \S+ of size: (\d{1,18})(?!\d)")
_STARTED = re.compile(r"Starting (server|client):\n(.*)$", re.MULTILINE)
_READ_BY_SCRIPT = re.compile(r"^\++ pos_get_variable (?:-r|--remote) (\w+)", re.MULTILINE)
_SHELL_VARIABLE = re.compile(r"^\+ ([A-Z_]+)=(\S*)$", re.MULTILINE)
_STDERR = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (Client|Server) stderr\n", re.MULTILINE)
_NEXT_STEP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?!Warning)", re.MULTILINE)
_TOOK = re.compile(r"Transferring \S+ MB took (\S+) s\. Goodput: (\S+) Mbps")
_VERDICT = re.compile(r"(?:^|\s)Test (successful|failed|unsupported)\s*$", re.MULTILINE)
_FAILURES = (
    re.compile(r"Client or server (?:expired|failed)"),
    re.compile(r"Different filesize not tolerated: \S+"),
    re.compile(r"An error occured while comparing the filesize"),
    re.compile(r"testcase\.check\(\) threw Exception: .*"),
    re.compile(r"(?:server|client) does not support the test"),
)
# what the runner tells its hosts about a repetition, not a parameter of it
_BOOKKEEPING = frozenset(
    [
        *("implementation", "interface", "hostname", "role", "driver", "mac", "server_mac", "pci_id", "ip"),
        *("client_ip", "server_ip", "log_dir", "sim_log_dir", "www_dir", "certs_dir", "download_dir"),
    ]
)
LONGEST_DICTIONARY = 100_000
"""Characters of a dictionary in Python's notation: its parser takes a thousand times the memory."""
LITERAL_ERRORS = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
"""What parsing Python's notation raises at text that is none."""
LARGEST = 1e12
"""Seconds or Mbit/s that no repetition took or reached."""
AES_SWITCH = "OPENSSL_ia32cap="
"""In the command of an endpoint whose AES instructions were switched off."""


@dataclass
class Output:
    """What ``output.txt``, the runner's log of one repetition, says."""

    status: Literal["ok", "failed", "unsupported"]
    reason: str | None
    file_bytes: int | None
    """Nominal size of the download."""
    logged_s: float | None
    """Duration that the runner computed, to the millisecond."""
    logged_mbps: float | None
    """Goodput that it computed."""
    hosts: dict[Role, str] = field(default_factory=dict)
    variables: dict[Role, dict[str, Any]] = field(default_factory=dict)
    """What each host was told for this repetition."""
    scripts: dict[Role, list[str]] = field(default_factory=dict)
    """Names of the scripts run on each host, before and after."""
    reads: dict[Role, set[str]] = field(default_factory=dict)
    """Parameters that a shell trace shows the endpoint's script reading."""
    aes_switched_off: dict[Role, bool] = field(default_factory=dict)


def parse_output(data: bytes) -> Output:
    """The log of a repetition; a `ParseError` if it has no verdict: a repetition counts only if the log says so."""
    text = text_of(data)
    verdicts = _VERDICT.findall(text)
    if not verdicts:
        raise ParseError("without a verdict (truncated, or of another program)")
    successful = verdicts[-1] == "successful"
    size, took = _FILE_SIZE.search(text), _TOOK.search(text)
    output = Output(
        status="ok" if successful else "unsupported" if verdicts[-1] == "unsupported" else "failed",
        reason=None if successful else _failure(text),
        file_bytes=int(size[1]) if size else None,
        logged_s=positive(took[1]) if took else None,
        logged_mbps=positive(took[2]) if took else None,
    )
    _hosts(text, output)
    for role, command in _STARTED.findall(text):
        output.aes_switched_off[role] = AES_SWITCH in command
    for role, trace in _traces(text):
        output.reads.setdefault(role, set()).update(_READ_BY_SCRIPT.findall(trace))
    return output


def positive(text: str) -> float | None:
    """A number above zero that a duration or goodput can have; None for anything else."""
    try:
        value = float(text[:40])
    except ValueError:
        return None
    return value if 0 < value < LARGEST else None


def _plain(value: Any) -> Any:
    """A value of a parameter as any table can hold it: a number of 64 bits, or text."""
    if value is None or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return untrusted.shown(value)


def _failure(text: str) -> str:
    for pattern in _FAILURES:
        if found := pattern.search(text):
            return untrusted.shown(found[0])
    return "the runner's log says that the test failed"


def _hosts(text: str, output: Output) -> None:
    """What the hosts were told and ran; after the repetition the runner sets every variable to nothing."""
    for told, host in _VARIABLES.findall(text):
        if len(told) > LONGEST_DICTIONARY:
            continue
        try:
            values = ast.literal_eval(told)
        except LITERAL_ERRORS:
            continue
        role = values.get("role") if isinstance(values, dict) else None
        if role in ROLES and role not in output.variables:
            output.hosts[role] = host
            output.variables[role] = {
                untrusted.shown(key): _plain(value)
                for key, value in values.items()
                if isinstance(key, str) and key not in _BOOKKEEPING
            }
    ran: dict[str, list[str]] = {}
    for script, host in _SCRIPT.findall(text):
        ran.setdefault(host, []).append(script.rpartition("/")[2])
    output.scripts = {role: ran.get(host, []) for role, host in output.hosts.items()}


def _traces(text: str) -> list[tuple[Role, str]]:
    """What client and server wrote to stderr, where ``bash -x`` shows what a script read."""
    found: list[tuple[Role, str]] = []
    for begin in _STDERR.finditer(text):
        # the first line of the trace carries the time of the log as well
        after = _NEXT_STEP.search(text, begin.end())
        role: Role = "client" if begin[1] == "Client" else "server"
        found.append((role, text[begin.end() : after.start() if after else len(text)]))
    return found


# ---- what was applied ------------------------------------------------------------------------------------------------

SCRIPT_READS: dict[str, tuple[str, ...]] = {
    "set-rcvbuf.sh": ("rmem_value",),
    "set-sendbuf.sh": ("wmem_value",),
    "set-mtu.sh": ("mtu",),
    "set-rtt-netem.sh": ("rtt",),
    "setup-etf.sh": ("delta", "offload", "port"),
}
"""The parameters that a script run on a host puts to use."""

QDISC_SCRIPTS = {"setup-fq.sh": "fq", "setup-etf.sh": "etf"}
"""Scripts that set the queueing discipline of the host they run on."""


def applied_parameters(
    output: Output, role: Role, endpoint_reads: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of a host that took effect, and those that nothing is known to read.

    A parameter took effect if a script that reads it ran on the host, if the trace of the endpoint's script shows it
    being read, or if the endpoint's script is known to read it (*endpoint_reads*). A misspelt name is read by nobody.
    """
    told = output.variables.get(role, {})
    read = {name for script in output.scripts.get(role, []) for name in SCRIPT_READS.get(script, ())}
    read |= output.reads.get(role, set()) | endpoint_reads
    return (
        {key: value for key, value in told.items() if key in read},
        {key: value for key, value in told.items() if key not in read},
    )


def buffer(taken: dict[str, Any], key: str) -> int:
    """Socket buffer in bytes that a host ended up with."""
    value = taken.get(key)
    try:
        found = int(value) if value is not None else DEFAULT_BUFFER
    except (TypeError, ValueError, OverflowError):
        return DEFAULT_BUFFER  # sysctl refuses what is no number
    return found if 0 <= found < 1 << 31 else DEFAULT_BUFFER  # and what is none of C's int


# ---- counters --------------------------------------------------------------------------------------------------------

_ETHTOOL = re.compile(r"^ +(\S.*): (-?[0-9]{1,20})$", re.MULTILINE)
# how drivers number queues: "[3]: rx_packets", "rx_queue_3_packets", "rx-3.packets" or "rx3_packets"; not "rx_64_bytes"
_BRACKETED_QUEUE = re.compile(r"^\[[0-9]+\]: ")
_NAMED_QUEUE = re.compile(r"^([rt]x)(_queue_|-|)[0-9]+(?=[._])")
_NETSTAT_SECTION = re.compile(r"^(\w+):$")
_NETSTAT_COUNT = re.compile(r"^ +([0-9]{1,20}) (.+)$")
_NETSTAT_PAIR = re.compile(r"^ +(\w+): ([0-9]{1,20})$")

MOST_NAMES = 100_000
_ethtool_names: dict[str, str] = {}
"""Names without queue numbers: the same few thousand in tens of thousands of files."""


def parse_ethtool(data: bytes) -> Counters:
    """Counters of ``ethtool -S``; those of several queues are summed."""
    counters: Counters = {}
    for raw, value in _ETHTOOL.findall(text_of(data)):
        name = _ethtool_names.get(raw)
        if name is None:
            if len(_ethtool_names) >= MOST_NAMES:
                _ethtool_names.clear()
            name = _ethtool_names[raw] = _queue_name(raw)
        counters[name] = counters.get(name, 0) + int(value)
    if not counters:
        raise ParseError("no counters of ethtool -S")
    return counters


def _queue_name(raw: str) -> str:
    return _NAMED_QUEUE.sub(r"\1\2*", _BRACKETED_QUEUE.sub("*: ", raw))


def parse_netstat(data: bytes) -> Counters:
    """Counters of ``netstat -su`` as ``Udp: receive buffer errors``."""
    counters: Counters = {}
    section = ""
    for line in text_of(data).split("\n"):
        if found := _NETSTAT_SECTION.match(line):
            section = found[1]
        elif found := _NETSTAT_COUNT.match(line):
            counters[f"{section}: {found[2]}"] = int(found[1])
        elif found := _NETSTAT_PAIR.match(line):
            counters[f"{section}: {found[1]}"] = int(found[2])
    if not counters:
        raise ParseError("no counters of netstat -s")
    return counters


def delta(start: Counters, stop: Counters) -> tuple[Counters, list[str]]:
    """What was counted in between, for the counters that are in both, without those that fell; and their names.

    One that grew by more than 63 bits hold has fallen, and was counted by a driver as unsigned.

    Some of what ``ethtool -S`` shows is a level and no count, and a count that a reset lies in tells nothing.
    """
    changes = {name: value - start[name] for name, value in stop.items() if name in start}
    return (
        {name: value for name, value in changes.items() if 0 <= value < 1 << 63},
        sorted(name for name, value in changes.items() if not 0 <= value < 1 << 63),
    )


# ---- pidstat ---------------------------------------------------------------------------------------------------------


def parse_pidstat(data: bytes) -> float:
    """Mean of %CPU over the samples without the first two and the last two.

    In every language a sample begins with its time, of one word or several, the row of averages with a word, and then
    both have the numbers of user or process. The command at the end may have several words too.
    """
    values: list[float] = []
    column: int | None = None
    for line in text_of(data).split("\n"):
        fields = line.split()
        if "%CPU" in fields:
            first = next((fields.index(name) for name in ("UID", "PID") if name in fields), 0)
            column = fields.index("%CPU") - first
            continue
        begin = next((place for place, word in enumerate(fields) if place and word.isdecimal()), 0)
        if column is not None and len(fields) >= 7 and any(one.isdigit() for word in fields[:begin] for one in word):
            value = _share(fields[begin + column]) if begin + column < len(fields) else None
            if value is None:
                raise ParseError("a row without a number under %CPU")
            values.append(value)
    if column is None:
        raise ParseError("not an output of pidstat")
    kept = values[PIDSTAT_TRIMMED:-PIDSTAT_TRIMMED]
    if not kept:
        raise ParseError(f"no sample left without the first and last {PIDSTAT_TRIMMED}")
    return fmean(kept)


_DECIMAL_POINT = str.maketrans(",\u066b", "..")
"""What some languages write in its place."""


def _share(text: str) -> float | None:
    try:
        value = float(text[:40].translate(_DECIMAL_POINT))
    except ValueError:
        return None
    return value if 0 <= value < LARGEST else None


# ---- tc --------------------------------------------------------------------------------------------------------------

_DROPPED = re.compile(r"\(dropped (\d{1,18})(?!\d)")
_RATE = re.compile(r"^qdisc tbf .*\brate (\d{1,15}(?:\.\d{1,15})?)([KMGT]?)bit\b", re.MULTILINE)
_DELAY = re.compile(r"^qdisc netem .*\bdelay (\d{1,15}(?:\.\d{1,15})?)(us|ms|s)\b", re.MULTILINE)
_LIMIT = re.compile(r"^qdisc netem .*\bparent \S+ limit (\d{1,15})(?!\d)", re.MULTILINE)
_SI = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
BOTTLENECK = 2
"""Which of the counts of dropped packets is that of the bottleneck: the third, after the egress and ingress qdiscs."""


@dataclass(frozen=True)
class Bottleneck:
    """``tc -s -d qdisc show`` of the client's interfaces: what the path was really like."""

    dropped: int
    rate_mbit: float | None
    rtt_ms: float | None
    """Sum of the delays of both directions."""
    queue: int | None
    """Limit of the queue behind the rate limit, in packets."""


def parse_tc(data: bytes) -> Bottleneck:
    """The bottleneck at the client."""
    text = text_of(data)
    dropped = _DROPPED.findall(text)
    if len(dropped) <= BOTTLENECK:
        raise ParseError("fewer than three qdiscs, of which the bottleneck is the third")
    rate, limit = _RATE.search(text), _LIMIT.search(text)
    delays = [float(value) * _MS[unit] for value, unit in _DELAY.findall(text)]
    return Bottleneck(
        dropped=int(dropped[BOTTLENECK]),
        rate_mbit=float(rate[1]) * _SI[rate[2]] / 1e6 if rate else None,
        rtt_ms=sum(delays) if delays else None,
        queue=int(limit[1]) if limit else None,
    )
