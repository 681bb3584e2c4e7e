"""The testbed of two hosts joined by a link, reached over SSH from a controller.

::

    controller ---- management network ---- client, server, tap
    client  interface ======== measured link ======== interface  server
                                     |
                                    tap

The tap is a third host, to which what passes on the link is copied; without one it is the server's own interface, and
captures show its frames as they are handed to it. What the hosts have, addresses and routes, is checked, never changed;
what the configuration names and the link needs is changed by the agent on the host (:mod:`.agent`), and put back.
Before anything is changed it is recorded, with its value before, in two places: by the agent on the host, and by the
controller in `$XDG_STATE_HOME/quicbed/` (`~/.local/state/quicbed/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import inspect
import itertools
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from quicbed.base import durable, environment, untrusted
from quicbed.base.untrusted import UntrustedError, one_line
from quicbed.config.model import CpuList, Interface, SshHost, SshMachine, TapHost, cpu_ranges, cpus_of
from quicbed.config.model import Testbed as Settings
from quicbed.plan.host import host_of

from . import counters as parse
from .agent import LOOK_S, AgentError, boot_id, ifb_name, process_namespace, shown, start_ticks, tree, tree_digest
from .base import (
    CLOCK_STEP_S,
    PACKAGES,
    Capture,
    Completed,
    Confined,
    Exit,
    Host,
    HostLostError,
    LinkSettings,
    Process,
    Role,
    TestbedError,
    understood,
)
from .capture import Command, Tool, capturing, tool_of
from .deploy import libc_problem, march_problem
from .facts import host_id
from .features import Feature
from .lifecycle import Attempts, LockedTestbed
from .lock import require_own
from .process import installation
from .shaping import (
    at_server,
    constant_delay,
    dropped_at_server,
    egress,
    qdisc_problem,
    root_qdisc,
    rtt_problem,
    tcp_settings,
    token_bucket,
    verify_at_server,
    verify_delay,
    verify_egress,
)
from .ssh import REQUEST_TIMEOUT_S, Connection, Loop, UnreachableError

RECORD_FORMAT = 1
ENDS: tuple[Literal["client"], Literal["server"]] = ("client", "server")
_PIECE = 2**20
_COPIES = 8
"""Files that are copied from a host at the same time."""
_COPY_LIMIT_S = 10 * REQUEST_TIMEOUT_S
"""For what reads or writes a whole directory tree on a host."""
_RECONNECT_S = 60.0
_RETRY_S = 0.5
_CARRIER_TIMEOUT_S = 20.0
_ECHOES = 3
_RTT_ATTEMPTS = 4
_UDP_OVERHEAD = 28  # IPv4 and UDP headers
_FREE_BYTES = 200 * 2**20
PROCESSOR = "instructions"
"""Row of a host with the flags of its processor."""
_OPTIONAL = ("perf", "valgrind", "iperf3")
"""Programs that some experiments need."""
_UNRECORDED = ("pid", "missing", "cpuinfo", "packages")
"""What an agent tells of its host that is of use only while it works."""
# Intel's count of a package since boot; other processors have no such file.
THROTTLED = "/sys/devices/system/cpu/cpu{}/thermal_throttle/package_throttle_count"
_CLOCK_READINGS = 3

# Features of ethtool that make frames longer than the MTU: those that offloads `default` switch on, further ones that
# others switch off, and those in software. Checksums stay as they are; UDP GSO needs them.
_SEGMENTATION = (
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "generic-segmentation-offload",
    "generic-receive-offload",
)
_MERGING = (
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "large-receive-offload",
    "rx-gro-hw",
    "rx-gro-list",
)
_NEEDED = ("generic-segmentation-offload", "generic-receive-offload")
# What makes one frame of several where they arrive, and would change what a tap sees.
_JOINING = ("generic-receive-offload", "large-receive-offload", "rx-gro-hw", "rx-gro-list", "rx-udp-gro-forwarding")

_RECORDED = (
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.rmem_default",
    "net.core.wmem_default",
    "net.core.netdev_max_backlog",
    "net.core.default_qdisc",
    "net.ipv4.udp_mem",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_timestamps",
)


def state_directory() -> Path:
    """Where the controller keeps locks and records, which outlive a reboot."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    directory = Path(base) / "quicbed"
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise TestbedError(f"{directory}: {error.strerror}; set XDG_STATE_HOME to a directory to write to") from None
    require_own(directory)
    return directory


class Record:
    """The controller's record of what is changed on the hosts; a file that exists while anything is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hosts: dict[str, dict[str, Any]] = {}

    def load(self) -> None:
        """Read what an earlier controller left."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["format"] != RECORD_FORMAT:
                raise ValueError(f"format {content['format']!r} is not {RECORD_FORMAT}")
            self.hosts = dict(content["hosts"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TestbedError(
                f"{self.path}: is damaged ({error}); look on the hosts what is changed, then remove it"
            ) from None

    def save(self) -> None:
        """Have it on disk, or no file if nothing is changed."""
        if self.hosts:
            durable.write_json(self.path, {"format": RECORD_FORMAT, "hosts": self.hosts})
        else:
            self.path.unlink(missing_ok=True)

    def add(self, host: str, directory: str, boot: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Note changes: `kind`, `name`, `before`, `after`; the first value before a change stays."""
        known = self.hosts.setdefault(host, {"directory": directory, "boot_id": boot, "entries": []})
        for change in changes:
            same = [e for e in known["entries"] if (e["kind"], e["name"]) == (change["kind"], change["name"])]
            if not same:
                same = [{"kind": change["kind"], "name": change["name"], "before": change["before"], "after": []}]
                known["entries"] += same
            if change["after"] not in same[0]["after"]:
                same[0]["after"].append(change["after"])


class _FeatureOf(TypedDict):
    """A feature of an interface, as an agent tells."""

    active: bool
    fixed: bool


class _Counters(TypedDict):
    """Counters of a host, as an agent tells."""

    texts: list[str | None]
    statistics: dict[str, int]
    clock_s: float


class _Address(TypedDict):
    local: NotRequired[str]


class _Row(TypedDict):
    """An interface, as `ip -j addr` tells."""

    ifname: str
    mtu: int
    flags: list[str]
    addr_info: list[_Address]
    address: NotRequired[str]


class _Way(TypedDict):
    """A route, as `ip -j route get` tells."""

    dev: NotRequired[str]


_ROWS: TypeAdapter[Any] = TypeAdapter(list[_Row])
_WAYS: TypeAdapter[Any] = TypeAdapter(list[_Way])
_ANSWERS: dict[str, TypeAdapter[Any]] = {
    "abilities": TypeAdapter(dict[Literal["delay", "loss", "ifb", "fq", "etf"], str]),
    "acquire": TypeAdapter(dict[str, Any] | None),
    "counters": TypeAdapter(_Counters),
    "echo": TypeAdapter(list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]),
    "echo_open": TypeAdapter(int),
    "features": TypeAdapter(dict[str, _FeatureOf]),
    "held_to": TypeAdapter(list[int]),
    "holder": TypeAdapter(dict[str, Any] | None),
    "lost": TypeAdapter(Annotated[list[int], Field(min_length=2, max_length=2)]),
    "read_all": TypeAdapter(list[str | None]),
    "read_settings": TypeAdapter(list[str | None]),
    "working_copy": TypeAdapter(str),
}
"""What a host may answer, by operation; other answers are looked at where they are used, or not at all."""

V = TypeVar("V")


def _answer(op: str, value: Any, where: str, asked: Mapping[str, Any]) -> Any:
    """An answer of its kind, with as many values as were asked for; TestbedError for another."""
    if op in _ANSWERS:
        _is(_ANSWERS[op], value, where, f"`{op}`")
    counts = {"abilities": 5, "echo": asked.get("count")}
    for name in ("paths", "settings"):
        if op in ("counters", "read_all", "read_settings") and name in asked:
            counts[op] = len(asked[name])
    found = value["texts"] if op == "counters" else value
    if counts.get(op) is not None and len(found) != counts[op]:
        raise TestbedError(f"{where}: answers to `{op}` with {len(found)} values where {counts[op]} are expected")
    return value


_understood = partial(understood, what="reports counters that cannot be read")


def _answering(kind: type[V]) -> type[V]:
    """A class of which every method that fails at an answer of its host, which is `where`, raises a TestbedError."""
    for name, member in list(vars(kind).items()):
        if not name.startswith("__") and inspect.isfunction(member):
            setattr(kind, name, _guarded(member))
    return kind


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def awaited(self: Any, *args: Any, **options: Any) -> Any:
            with understood(self.where):
                return await method(self, *args, **options)

        return awaited

    @wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        with understood(self.where):
            return method(self, *args, **options)

    return called


def _is(adapter: TypeAdapter[Any], value: Any, where: str, what: str) -> None:
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        told = one_line(f"{place}: {first['msg']}" if place else first["msg"], 200)
        raise TestbedError(f"{where}: answers to {what} with something else than it should: {told}") from None


def _of(kind: type[V], value: Any, where: str) -> V:
    """An answer that has to be of a kind; TestbedError where a host sends another."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TestbedError(f"{where}: answers with a {type(value).__name__} where {kind.__name__} is expected")
    return value


def _seconds(value: Any, where: str) -> float | None:
    """A time in seconds that a host tells, if it does."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise TestbedError(f"{where}: answers with no time in seconds")
    return float(value)


def _exit(told: Any, where: str) -> Exit:
    """How a program ended, as its host tells."""
    found = _of(dict, told, where)
    user, system = (_seconds(found.get(name), where) for name in ("user_s", "system_s"))
    code, memory = (_of(int, found.get(name), where) for name in ("returncode", "max_rss_bytes"))
    exceeded = found.get("exceeded")
    if exceeded is not None:
        exceeded = one_line(_of(str, exceeded, where), 200)
    return Exit(returncode=code, user_s=user or 0.0, system_s=system or 0.0, max_rss_bytes=memory, exceeded=exceeded)


_TOLD: dict[type, tuple[str, ...]] = {
    int: ("uid", "cpus", "memory_bytes", "hugepages", "disk_free_bytes"),
    str: (
        "boot_id",
        "host_id",
        "kernel",
        "architecture",
        "libc",
        "cpu_model",
        "processor",
        "microcode",
        "cpuinfo",
        "cpus_online",
        "python",
    ),
    list: ("packages", "missing", "optional", "congestion_controls", "cpu_flags", "kernel_parameters"),
}
"""What a host tells of itself, by kind; lists are of texts or numbers."""


def _hello(told: Any, where: str) -> dict[str, Any]:
    """What a host tells of itself; TestbedError unless all is of its kind."""
    found = _of(dict, told, where)
    for kind, names in _TOLD.items():
        for name in names:
            value: Any = _of(kind, found.get(name), where)
            for one in value if isinstance(value, list) else []:
                _of(int if name == "packages" else str, one, where)
    try:
        TypeAdapter(CpuList).validate_python(found["cpus_online"])
    except ValidationError:
        raise TestbedError(f"{where}: reports no list of its processors") from None
    return found


@_answering
class RemoteProcess(Process):
    """A program started by the agent of a host."""

    def __init__(self, host: RemoteMachine, pid: int) -> None:
        self._host = host
        self._connection = host.connection
        self.pid = pid
        self._exit: Exit | None = None

    @property
    def where(self) -> str:
        """Its host in messages."""
        return self._host.where

    def _ask(self, timeout: float) -> Exit | None:
        if self._exit is None and self._connection is not self._host.connection:
            raise HostLostError(f"{self._host.where}: process {self.pid} ended with the connection that was lost")
        if self._exit is None:
            limit = timeout + REQUEST_TIMEOUT_S
            found = self._host.request("wait", pid=self.pid, timeout=max(0.0, timeout), time_limit=limit)
            self._exit = None if found is None else _exit(found, self._host.where)
        return self._exit

    def poll(self) -> Exit | None:
        return self._ask(0)

    def wait(self, timeout: float) -> Exit:
        done = self._ask(timeout)
        if done is None:
            raise TimeoutError(f"process {self.pid} still running after {timeout:g} s")
        return done

    def signal(self, number: int) -> None:
        # a connection that has ended has ended its programs
        if self._exit is None and self._connection is self._host.connection:
            with contextlib.suppress(HostLostError):
                self._host.request("signal", pid=self.pid, number=int(number))

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def sample_run_delay(self) -> float | None:
        return _seconds(self._host.request("run_delay", pid=self.pid), self._host.where)

    def sample_cpu(self) -> float | None:
        if self._exit is not None:
            return None
        return _seconds(self._host.request("cpu_time", pid=self.pid), self._host.where)

    def sample_memory(self) -> int | None:
        if self._exit is not None:
            return None
        found = _seconds(self._host.request("memory", pid=self.pid), self._host.where)
        return None if found is None else int(found)

    def _signal_all(self, number: int) -> None:
        if self._exit is None and self._connection is self._host.connection:
            with contextlib.suppress(HostLostError):
                self._host.request("signal_all", pid=self.pid, number=int(number))

    def hold(self) -> None:
        self._signal_all(signal.SIGSTOP)

    def release(self) -> None:
        self._signal_all(signal.SIGCONT)

    def pin(self, cpu: int) -> None:
        refused = None if self._exit is not None else self._host.request("pin", pid=self.pid, cpu=cpu)
        if refused is not None:
            raise OSError(errno.EPERM, one_line(_of(str, refused, self.where), 200))

    def pinned(self, cpu: int) -> bool:
        return self._exit is not None or _of(bool, self._host.request("pinned", pid=self.pid, cpu=cpu), self.where)


@_answering
class RemoteMachine(Host):
    """A machine reached over SSH, with an agent of ours at work."""

    def __init__(
        self, name: Role, settings: SshMachine, loop: Loop, config: Sequence[str] | None, tools: Sequence[str] = ()
    ) -> None:
        """*tools* are programs that it needs besides those that every machine does."""
        self.name = name
        self.settings = settings
        self.address = None
        self.interface = ""
        self.tools = tools
        self.hello: dict[str, Any] = {}
        self.connection: Connection | None = None
        self.clock_offset_s = 0.0
        self.taken = False
        """Whether the host is this controller's, or was when the connection was lost."""
        self._loop = loop
        self._config = config
        self._numbers = itertools.count()
        self._workspaces: dict[Path, Path] = {}
        self._provided: dict[Path, Path] = {}
        self._abilities: dict[str, str] | None = None

    @property
    def where(self) -> str:
        """Name in messages."""
        return f"{self.name} ({self.settings.address})"

    @property
    def key(self) -> str:
        """Name in the controller's record."""
        return self.settings.address + (f":{self.settings.port}" if self.settings.port else "")

    @property
    def is_lost(self) -> bool:
        """Whether the connection has to be made again."""
        return self.connection is None or self.connection.failure is not None

    async def open(self) -> None:
        """Connect and ask the host what it is."""
        if self.connection is not None:
            await self.connection.discard()
        self.connection = await Connection.open(self.where, self.settings, self._config)
        self.hello = _hello(await self.connection.request("hello", optional=[*_OPTIONAL, *self.tools]), self.where)
        offsets = []
        for _ in range(_CLOCK_READINGS):
            begin = time.time()
            there = _seconds(await self.connection.request("ping"), self.where) or 0.0
            end = time.time()
            offsets.append((end - begin, there - (begin + end) / 2))
        # the quickest answer tells best, to half of its time
        self.clock_offset_s = min(offsets)[1]
        self._workspaces.clear()
        self._provided.clear()  # a host may come back without its disk
        self._abilities = None

    async def answers(self) -> bool:
        """Whether it could be connected to."""
        try:
            await self.open()
        except TestbedError:
            return False
        return True

    async def close(self) -> None:
        """End the connection; the agent puts everything back that it has not yet."""
        if self.connection is not None:
            await self.connection.close()
            self.connection = None

    def ask(self, op: str, **arguments: Any) -> Coroutine[Any, Any, Any]:
        """A request to the agent, to be awaited in the loop."""
        if self.connection is None:
            raise HostLostError(f"{self.where}: is not connected")
        return self._asked(op, self.connection.request(op, **arguments), arguments)

    async def _asked(self, op: str, answer: Awaitable[Any], arguments: Mapping[str, Any]) -> Any:
        return _answer(op, await answer, self.where, arguments)

    def _json(self, argv: Sequence[str], kind: TypeAdapter[Any]) -> Any:
        """What a command of the host prints, as JSON."""
        try:
            found = untrusted.parse(self.run(argv).stdout.encode(errors="replace"))
        except UntrustedError as error:
            raise TestbedError(f"{self.where}: {' '.join(argv)}: {error}") from None
        _is(kind, found, self.where, f"`{' '.join(argv)}`")
        return found

    def request(self, op: str, **arguments: Any) -> Any:
        """Answer to a request to the agent."""
        return self._loop.call(self.ask(op, **arguments))

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30,
        check: bool = True,
        input: str | None = None,  # noqa: A002
    ) -> Completed:
        limit = timeout + REQUEST_TIMEOUT_S
        try:
            found = self.request("run", argv=list(argv), timeout=timeout, text=input, time_limit=limit)
        except HostLostError:
            raise
        except TestbedError as error:
            package = PACKAGES.get(argv[0])
            if package is None or "no such program" not in str(error):
                raise
            raise TestbedError(f"{error}; install there with: apt-get install {package}") from None
        found = _of(dict, found, self.where)
        code, *said = _of(int, found.get("returncode"), self.where), found.get("stdout"), found.get("stderr")
        done = Completed(tuple(argv), code, *(_of(str, text, self.where) for text in said))
        if check and done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = one_line(lines[-1] if lines else "no message")
            raise TestbedError(f"{self.where}: {' '.join(argv)}: exit status {done.returncode}: {reason}")
        return done

    def read(self, path: str) -> str:
        return _of(bytes, self.request("read", path=path), self.where).decode(errors="replace")

    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        confined: Confined | None = None,
    ) -> RemoteProcess:
        pid = self.request(
            "spawn",
            argv=list(argv),
            stdout=str(stdout),
            stderr=str(stderr),
            env=dict(env or {}),
            cwd=None if cwd is None else str(cwd),
            cpus=self._cpus,
            inherited=[*environment.NAMED],
            confined=None if confined is None else confined.amounts,
        )
        return RemoteProcess(self, _of(int, pid, self.where))

    @property
    def _cpus(self) -> list[int] | None:
        """Processors that programs are held to."""
        return None

    # -- files

    def provide(self, directory: Path) -> Path:
        if directory not in self._provided:
            if (problem := march_problem(directory, self.hello["cpuinfo"])) is not None:
                raise TestbedError(
                    f"{self.where}: cannot run {directory.name}: {problem}; give `build.march` of the testbed a level "
                    "that the host has, or leave it out"
                )
            digest = self._deploy(directory)
            self._provided[directory] = Path(self.settings.directory) / "store" / digest
        return self._provided[directory]

    def provide_copy(self, directory: Path, leave: Collection[str]) -> Path:
        if directory not in self._provided:
            digest = self._deploy(directory, leave)
            self._provided[directory] = Path(self.request("working_copy", digest=digest, time_limit=_COPY_LIMIT_S))
        return self._provided[directory]

    def _deploy(self, directory: Path, leave: Collection[str] = ()) -> str:
        """Have a directory tree of this content in the host's store; returns its digest."""
        try:
            digest = tree_digest(directory, leave)
        except AgentError as error:
            raise TestbedError(str(error)) from None
        if not self.request("has", digest=digest, time_limit=_COPY_LIMIT_S):
            problem = libc_problem(directory, self.hello["libc"], leave)
            if problem is not None:
                raise TestbedError(
                    f"{self.where}: cannot run {directory.name}: {problem}; build on a system as old as the "
                    "host's, or install a newer one there"
                )
            self._loop.call(self._store(directory, digest, leave))
        return digest

    async def _store(self, directory: Path, digest: str, leave: Collection[str]) -> None:
        """Copy a directory tree to the host; links are copied as links."""
        found = tree(directory, leave)
        size = sum(path.lstat().st_size for _, path in found if path.is_file() and not path.is_symlink())
        await self.ask("store_begin", digest=digest, size=size)
        for name, path in found:
            entry: dict[str, Any] = {"digest": digest, "name": name}
            if path.is_symlink():
                await self.ask("store_entry", kind="link", target=str(path.readlink()), **entry)
            elif path.is_dir():
                await self.ask("store_entry", kind="directory", **entry)
            else:
                with path.open("rb") as file:
                    piece = file.read(_PIECE)
                    while True:
                        mode = path.stat().st_mode & 0o777
                        await self.ask("store_entry", kind="file", mode=mode, blob=piece, **entry)
                        piece = file.read(_PIECE)
                        if not piece:
                            break
        await self.ask("store_end", digest=digest, time_limit=_COPY_LIMIT_S)

    def workspace(self, directory: Path) -> Path:
        if directory not in self._workspaces:
            place = Path(self.settings.directory) / "runs" / f"{next(self._numbers):06d}"
            self.request("make_directory", path=str(place))
            self._workspaces[directory] = place
        return self._workspaces[directory]

    def collect(self, directory: Path) -> None:
        place = self._workspaces.pop(directory, None)
        if place is not None:
            self._loop.call(self._collect(place, directory))

    async def _collect(self, place: Path, directory: Path) -> None:
        files = self._listed(directory, await self.ask("list", path=str(place)))
        # one after the other but for a few: every file that is being copied is open
        waiting = iter(files)

        async def copy() -> None:
            for name, target, size in waiting:
                await self.fetch(place / name, target, size)

        await asyncio.gather(*(copy() for _ in range(_COPIES)))
        await self.ask("remove", path=str(place))

    def _listed(self, directory: Path, told: Any) -> list[tuple[str, Path, int]]:
        """Names, places here and sizes of files that the host tells of; TestbedError unless all are below *directory*.

        Wrong ones come from a host that is not what it should be, so none of them is taken.
        """
        limits, total = self.limits, 0
        found: dict[Path, tuple[str, Path, int]] = {}
        rows = _of(list, told, self.where)
        if len(rows) > limits.files:
            raise TestbedError(f"{self.where}: {len(rows)} files of a run, more than {limits.files} (limits.files)")
        for row in rows:
            pair = _of(list, row, self.where)
            name, size = _of(str, pair[0] if pair else None, self.where), _of(int, pair[-1], self.where)
            path, shown = PurePosixPath(name), ascii(name[:100])
            target = directory / path
            if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
                raise TestbedError(f"{self.where}: names {shown}, which is not in the directory of the run")
            try:
                length = len(name.encode(errors="surrogateescape"))
            except UnicodeEncodeError:
                raise TestbedError(f"{self.where}: names {shown}, which no file can have") from None
            if length > limits.path_bytes:
                raise TestbedError(f"{self.where}: a name of more than {limits.path_bytes} bytes (limits.path_bytes)")
            total += max(0, size)
            if size < 0 or total > limits.total_mib << 20:
                raise TestbedError(f"{self.where}: more than {limits.total_mib} MiB of files (limits.total_mib)")
            if target in found:
                raise TestbedError(f"{self.where}: names {shown} twice")
            found[target] = (name, target, size)
        for target in found:
            if any(parent in found for parent in target.parents):
                raise TestbedError(f"{self.where}: names {str(target.name)[:100]!a} below a file")
        real = directory.resolve()
        if any(not parent.is_relative_to(real) for parent in {target.parent.resolve() for target in found}):
            raise TestbedError(f"{self.where}: names a file that is reached through a link")
        return list(found.values())

    def end_programs(self) -> None:
        """End every program of this host and remove the workspaces."""
        self.request("end_programs", time_limit=3 * REQUEST_TIMEOUT_S)
        self._workspaces.clear()

    def forget(self, directory: Path) -> None:
        place = self._workspaces.pop(directory, None)
        if place is not None:
            with contextlib.suppress(TestbedError):  # a host that is lost is cleaned up when it is there again
                self.request("remove", path=str(place))

    async def fetch(self, source: Path, target: Path, size: int) -> None:
        """Copy a file of this host."""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # never through a link, nor in the place of what another host has sent
            with target.open("xb") as file:
                for offset in range(0, size, _PIECE):
                    wanted = min(_PIECE, size - offset)
                    piece = _of(bytes, await self.ask("read", path=str(source), offset=offset, size=wanted), self.where)
                    if len(piece) > wanted:
                        raise TestbedError(f"{self.where}: sends {len(piece)} bytes where {wanted} were asked for")
                    file.write(piece)
        except (OSError, ValueError) as error:
            raise TestbedError(f"{self.where}: {target.name[:100]!a}: cannot be kept: {error}") from None

    def await_text(self, path: Path, text: str, process: Process, timeout: float) -> bool:
        found = self.request(
            "await_text",
            path=str(path),
            text=text,
            pid=process.pid,
            timeout=timeout,
            time_limit=timeout + REQUEST_TIMEOUT_S,
        )
        if found == "late":
            raise TimeoutError(f"no {text} in {path} after {timeout:g} s")
        return bool(found == "found")

    # -- what it is

    def monotonic_ahead_ns(self) -> int:
        readings = []
        for _ in range(_CLOCK_READINGS):
            begin = time.monotonic_ns()
            there = _of(int, self.request("monotonic"), self.where)
            end = time.monotonic_ns()
            readings.append((end - begin, there - (begin + end) // 2))
        # the quickest answer tells best, to half of its time
        return min(readings)[1]

    def check_machine(self) -> None:
        """Raise TestbedError unless the machine can be used; changes nothing."""
        if self.hello["uid"] != 0:
            raise TestbedError(f"{self.where}: the agent is not root; log in as root or set `sudo: true`")
        lacking = [name for name in self.tools if name not in self.hello["optional"]]
        if missing := [*self.hello["missing"], *lacking]:
            raise TestbedError(f"{self.where}: missing: {', '.join(missing)}; {installation(missing, ' there')}")
        if self.hello["disk_free_bytes"] < _FREE_BYTES:
            raise TestbedError(
                f"{self.where}: {self.hello['disk_free_bytes'] >> 20} MiB free in {self.settings.directory}, "
                f"{_FREE_BYTES >> 20} MiB are needed; make room"
            )

    def interface_rows(self) -> list[dict[str, Any]]:
        """The interfaces as `ip -j addr` shows them."""
        rows: list[dict[str, Any]] = self._json(["ip", "-j", "-d", "addr", "show"], _ROWS)
        return rows

    def _look_up(self, wanted: Interface, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """One of *rows*; None if the kernel has no such interface."""
        if wanted.pci is not None:
            names = self.run(["ls", f"/sys/bus/pci/devices/{wanted.pci}/net"], check=False).stdout.split()
            return next((row for row in rows if row["ifname"] in names), None)
        if wanted.mac is not None:
            return next((row for row in rows if row.get("address") == wanted.mac), None)
        return next((row for row in rows if row["ifname"] == wanted.name), None)

    def _find(self, wanted: Interface, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One of *rows*; raises TestbedError unless it is there and up."""
        row = self._look_up(wanted, rows)
        if row is None:
            have = ", ".join(row["ifname"] for row in rows if row["ifname"] != "lo")
            raise TestbedError(
                f"{self.where}: no interface {_label(wanted)}; it has {have or 'none'}; check `interface`"
            )
        name = str(row["ifname"])
        if "UP" not in row["flags"] or "LOWER_UP" not in row["flags"]:
            raise TestbedError(
                f"{self.where}: interface {name} is down; connect the cable, then: ip link set {name} up"
            )
        return row

    @property
    def throttle_counts(self) -> list[str]:
        """Files that tell how often its processors were too hot."""
        return [THROTTLED.format(cpu) for cpu in self.hello["packages"]]

    def _values(self, kind: str, names: Iterable[str]) -> dict[str, str | None]:
        """Settings of one kind as they are now, by name; None where there is none."""
        asked = list(names)
        found = self.request("read_settings", settings=[[kind, name] for name in asked])
        return dict(zip(asked, found, strict=True))

    def _governor(self) -> str | None:
        """The frequency governor of its processors; where they differ, those of which."""
        by_value: dict[str, list[int]] = {}
        cpus = cpus_of(self.hello["cpus_online"])
        for cpu, value in zip(cpus, self._values("governor", (f"cpu{cpu}" for cpu in cpus)).values(), strict=True):
            if value is not None:
                by_value.setdefault(value, []).append(cpu)
        if len(by_value) <= 1:
            return next(iter(by_value), None)
        return ", ".join(f"{value} ({cpu_ranges(own)})" for value, own in by_value.items())

    def _machine_facts(self) -> dict[str, Any]:
        """What the machine is, of any testbed."""
        hello = {key: value for key, value in self.hello.items() if key not in _UNRECORDED}
        return {
            **hello,
            "endpoint_user": self.confinement(),
            "cpu_governor": self._governor(),
            "clock_offset_s": self.clock_offset_s,
        }

    def confinement(self, confined: Confined | None = None) -> dict[str, Any]:
        del confined
        return {
            "endpoint_user": self.hello["uid"],
            "why": "programs of a host over SSH run as the user of its agent",
            "memory_limit": f"resident memory of all its processes, looked at every {LOOK_S:g} s",
        }

    def _described(self) -> dict[str, Feature]:
        """What the machine is, in rows of any testbed."""
        hello = self.hello
        return {
            "kernel": Feature(True, f"{hello['kernel']}, {hello['libc'] or 'no GNU C library'}"),
            "free disk": Feature(True, f"{hello['disk_free_bytes'] >> 20} MiB in {self.settings.directory}"),
            "endpoint-user": Feature(True, f"{hello['uid']}, as the agent: endpoints have no user of their own here"),
            "clock": Feature(True, f"{hello.get('clock_source')}, {self.clock_offset_s:+.3f} s from the controller's"),
        }

    def _interface_row(self, name: str) -> str:
        """An interface in one line: speed, MTU, driver."""
        link = _fields(self.run(["ethtool", name], check=False).stdout, ("Speed",))
        driver = _fields(self.run(["ethtool", "-i", name], check=False).stdout, ("driver",))
        mtu = next((row["mtu"] for row in self.interface_rows() if row["ifname"] == name), "unknown")
        speed = link.get("Speed", "speed unknown")
        return f"{name}, {speed}, MTU {mtu}, driver {driver.get('driver', 'unknown')}"

    def _feature_changes(self, interface: str, wanted: Mapping[str, bool]) -> list[dict[str, Any]]:
        """Features of an interface as they are to be; those that it does not have are left out."""
        features: dict[str, dict[str, bool]] = self.request("features", interface=interface)
        changes: list[dict[str, Any]] = []
        for name, on in wanted.items():
            feature = features.get(name)
            if feature is None or (feature["fixed"] and feature["active"] == on):
                continue
            if feature["fixed"]:
                if name in _NEEDED or not on:
                    raise TestbedError(
                        f"{self.where}: {name} of {interface} cannot be switched {'on' if on else 'off'}"
                    )
                continue  # segmentation in software takes its place
            changes.append({"kind": "feature", "name": f"{interface} {name}", "value": "on" if on else "off"})
        return changes


@_answering
class RemoteHost(RemoteMachine):
    """An end of the measured link."""

    settings: SshHost

    def __init__(
        self, name: Role, settings: SshHost, loop: Loop, config: Sequence[str] | None, tools: Sequence[str] = ()
    ) -> None:
        super().__init__(name, settings, loop, config, tools)
        self.address = settings.ip
        self._shapes = self._loses = self._queues = False

    def cores(self, cpus: Sequence[int] | None = None) -> list[int]:
        """A processor of each core that these *cpus* are of, or those that programs on it may use."""
        found = self.request("cores", cpus=self._cpus if cpus is None else cpus)
        return [_of(int, cpu, self.where) for cpu in _of(list, found, self.where)]

    def bottleneck(self, link: LinkSettings) -> str | None:
        """The interface here at which what goes to the client is delayed and limited; None if it is elsewhere."""
        if link.bottleneck == "client":
            return ifb_name(self.interface) if self.name == "client" else None
        return self.interface if self.name == "server" else None

    @property
    def _cpus(self) -> list[int] | None:
        return cpus_of(self.settings.cpus) if self.settings.cpus else None

    def find_interface(self) -> dict[str, Any]:
        """The measured interface as `ip -j addr` shows it; raises TestbedError unless it can carry the link."""
        row = self._find(self.settings.interface, self.interface_rows())
        name = str(row["ifname"])
        if self.settings.ip not in [info.get("local") for info in row["addr_info"]]:
            raise TestbedError(
                f"{self.where}: interface {name} does not have the address {self.settings.ip}; check `ip`, or: "
                f"ip addr add {self.settings.ip}/24 dev {name}"
            )
        return row

    def check(self, peer: str) -> None:
        """Raise TestbedError unless the host can be used; changes nothing."""
        self.check_machine()
        if self.hello["architecture"] != platform.machine():
            raise TestbedError(
                f"{self.where}: has processors of kind {self.hello['architecture']}, and what is built here is for "
                f"{platform.machine()}; use a controller of the same kind"
            )
        online = self.hello["cpus_online"]
        for key, cpus in (("cpus", self.settings.cpus), ("irq_cpus", self.settings.irq_cpus)):
            if cpus is not None and (unknown := set(cpus_of(cpus)) - set(cpus_of(online))):
                raise TestbedError(f"{self.where}: {key}: the host has no processor {min(unknown)}; it has {online}")
        # isolated ones are not among the agent's own and can be used all the same
        if self._cpus and (refused := set(self._cpus) - set(self.request("held_to", cpus=self._cpus))):
            raise TestbedError(
                f"{self.where}: cpus: programs cannot be held to processor {min(refused)}; a control group of the SSH "
                "server keeps them from it (cpuset(7); `AllowedCPUs=` of systemd): allow it there, or name others"
            )
        name = str(self.find_interface()["ifname"])
        self._check_route(peer, name)
        self.interface = name

    @property
    def measured(self) -> list[str]:
        """Its interfaces on the measured link."""
        return [self.interface]

    def check_link(self, peer: str, mtu: int | None) -> None:
        """Raise TestbedError unless the link is up and as it was set up, with this MTU if one was set."""
        row = self.find_interface()
        self._check_route(peer, self.interface)
        if mtu is not None and row["mtu"] != mtu:
            raise TestbedError(
                f"{self.where}: the MTU of {self.interface} is {row['mtu']}, not {mtu} as it was set; somebody has "
                f"changed it: ip link set {self.interface} mtu {mtu}"
            )

    def _check_route(self, peer: str, interface: str) -> None:
        route = self._json(["ip", "-j", "route", "get", peer, "from", self.settings.ip], _WAYS)
        if not route or route[0].get("dev") != interface:
            by = route[0].get("dev") if route else "nothing"
            raise TestbedError(
                f"{self.where}: the way to {peer} is through {by}, not through {interface}; check `ip` of both hosts "
                "and the routes"
            )

    def inspect(self, peer: str) -> dict[str, Feature]:
        """What the host is; `ready` says whether it can be used."""
        hello = self.hello
        problem = ""
        try:
            self.check(peer)
        except HostLostError:
            raise
        except TestbedError as error:
            problem = str(error).removeprefix(f"{self.where}: ")
        rows = {
            "ready": Feature(not problem, problem),
            **self._described(),
            "processors": Feature(True, f"{hello['cpus']} x {host_of(hello).described}"),
            PROCESSOR: Feature(True, " ".join(hello["cpu_flags"]) or "none"),
            "governor": Feature(True, self._governor() or "none"),
            "congestion": Feature(True, ", ".join(hello["congestion_controls"]) or "none"),
            "hugepages": Feature(True, str(hello["hugepages"])),
            "delay": Feature(True, _ability(self.lacks("delay"))),
            "loss": Feature(True, _ability(self.lacks("loss"))),
            "ifb": Feature(True, _ability(self.lacks("ifb"))),
            # the server's alone is used
            **{one: Feature(True, _ability(self.lacks(one))) for one in ("fq", "etf") if self.name == "server"},
            **{name: Feature(True, self._installed(name)) for name in _OPTIONAL},
        }
        if self.interface:
            interface = self.facts()["interface"]
            offloads = [name for name in (*_SEGMENTATION, *_MERGING) if interface["offloads"].get(name)]
            rows["interface"] = Feature(True, self._interface_row(self.interface))
            rows["offloads"] = Feature(True, ", ".join(offloads) or "none")
        return rows

    def _installed(self, program: str) -> str:
        if program in self.hello["optional"]:
            return "yes"
        return _ability(f"{program} is missing; install there with: apt-get install {PACKAGES[program]}")

    def lacks(self, ability: str) -> str:
        """Why the host's kernel cannot do something, `delay`, `loss`, `ifb`, `fq` or `etf`; empty if it can."""
        if self._abilities is None:
            self._abilities = self.request("abilities")
        return self._abilities[ability]

    def lose(self, percent: float, seed: int = 0) -> None:
        """Lose this share of the frames of each direction, beginning with the first numbers of *seed*."""
        self.request("lose", interface=self.interface, percent=percent, seed=seed)

    def standing_changes(self) -> list[dict[str, Any]]:
        """What the configuration changes for as long as the testbed is in use."""
        settings = self.settings
        changes: list[dict[str, Any]] = [
            {"kind": "sysctl", "name": name, "value": str(value)} for name, value in settings.sysctl.items()
        ]
        changes += [
            {"kind": "ring", "name": f"{self.interface} {which}", "value": str(entries)}
            for which, entries in settings.rings.items()
        ]
        if settings.governor is not None:
            for cpu in cpus_of(self.hello["cpus_online"]):
                changes.append({"kind": "governor", "name": f"cpu{cpu}", "value": settings.governor})
        if settings.irq_cpus is not None:
            interrupts = self.interrupts()
            if not interrupts:
                raise TestbedError(
                    f"{self.where}: irq_cpus: {self.interface} does not list its interrupts; leave out `irq_cpus`"
                )
            changes += [{"kind": "irq", "name": number, "value": settings.irq_cpus} for number in interrupts]
        if settings.ingress is not None:
            if lack := self.lacks("ifb"):
                raise TestbedError(
                    f"{self.where}: ingress: unsupported: {lack}; load the module there with: modprobe ifb, or leave "
                    "out `ingress`"
                )
            changes.append({"kind": "ifb", "name": ifb_name(self.interface), "value": settings.ingress})
            changes.append({"kind": "clsact", "name": self.interface, "value": self._at_arrival(losses=False)})
        if settings.names:
            lines = "\n".join(f"{address} {name}" for name, address in settings.names.items())
            changes.append({"kind": "hosts", "name": "/etc/hosts", "value": lines})
        return changes

    def interrupts(self) -> list[str]:
        """Numbers of the interface's interrupts, as far as it tells them."""
        return self.run(["ls", f"/sys/class/net/{self.interface}/device/msi_irqs"], check=False).stdout.split()

    def link_changes(self, link: LinkSettings) -> list[dict[str, Any]]:
        """What a link needs on this host."""
        offloads = link.segmentation
        wanted = dict.fromkeys(_SEGMENTATION, offloads == "default")
        if offloads == "gso-gro":
            wanted |= dict.fromkeys(_NEEDED, True)
        if offloads != "default":
            wanted |= dict.fromkeys(_MERGING, False)
        changes = self._feature_changes(self.interface, wanted)
        changes.append({"kind": "mtu", "name": self.interface, "value": str(link.mtu)})
        # at the client nothing is touched before something is asked for
        self._shapes |= self.name == "server" or link.rtt_ms > 0
        if self._shapes:
            changes.append({"kind": "qdisc", "name": self.interface, "value": self._at_departure(link)})
        changes += self._arrival_changes(link)
        sysctl = {"net.ipv4.tcp_congestion_control": link.congestion_control, **tcp_settings(link)}
        return changes + [{"kind": "sysctl", "name": name, "value": value} for name, value in sysctl.items()]

    def facts(self) -> dict[str, Any]:
        """What the host and its interface are, with settings as they read back now."""
        names = dict.fromkeys([*_RECORDED, *self.settings.sysctl, *self.settings.record])
        features: dict[str, dict[str, bool]] = self.request("features", interface=self.interface)
        told = self.run(["ethtool", "-i", self.interface], check=False).stdout
        driver = _fields(told, ("driver", "version", "firmware-version", "bus-info"))
        # user-mode Linux 6.1 panics when it is asked for them
        has_rings = driver.get("driver") != "uml-vector"
        rings = self._values("ring", (f"{self.interface} {which}" for which in ("rx", "tx") if has_rings))
        interrupts = self._values("irq", self.interrupts())
        row = self.find_interface()
        return {
            **self._machine_facts(),
            "address": self.address,
            "cpu_set": self.settings.cpus,
            "interface": {
                "name": self.interface,
                "mac": row.get("address"),
                "mtu": row["mtu"],
                "offloads": {name: feature["active"] for name, feature in features.items()},
                "rings": {name.split()[1]: int(entries) for name, entries in rings.items() if entries is not None},
                "irq_cpus": sorted({cpus for cpus in interrupts.values() if cpus is not None}),
                "qdisc": self.qdisc(),
                "ingress": self.settings.ingress,
                "link": _fields(self.run(["ethtool", self.interface], check=False).stdout, ("Speed", "Duplex")),
                "driver": driver,
            },
            "settings": self._values("sysctl", names),
        }

    def _at_departure(self, link: LinkSettings) -> list[str]:
        """The queueing discipline of what this host sends, as words of :mod:`.agent`."""
        if self.name == "client":
            return constant_delay(link.rtt_ms / 2) if link.rtt_ms else ["default"]
        if self.bottleneck(link) is not None:
            return egress(link, limited=True)
        return at_server(link.qdisc)

    def _arrival_changes(self, link: LinkSettings) -> list[dict[str, Any]]:
        """What a link needs where frames arrive at this host."""
        queues = self.name == "client" and link.bottleneck == "client"
        self._queues |= queues
        self._loses |= self.name == "client" and link.loss_percent > 0
        changes: list[dict[str, Any]] = []
        if self._loses or self._queues:
            words = self._at_arrival(losses=link.loss_percent > 0, queues=queues)
            changes.append({"kind": "clsact", "name": self.interface, "value": words})
        if self._queues:
            words = egress(link, limited=True) if queues else ["default"]
            device = {"kind": "ifb", "name": ifb_name(self.interface), "value": words}
            # frames are redirected only to what there is
            changes = [device, *changes] if queues else [*changes, device]
        return changes

    def _at_arrival(self, *, losses: bool, queues: bool = False) -> list[str]:
        """What is done to frames that arrive, as words of :mod:`.agent`."""
        queued = ["redirect", ifb_name(self.interface)] if queues or self.settings.ingress is not None else []
        return queued + (["loss"] if losses else []) or ["default"]

    def verify_egress(self, link: LinkSettings) -> None:
        """TestbedError unless what the host sends, or what arrives, is delayed and limited as the link says."""
        interface = self.bottleneck(link)
        if interface is not None:
            shown = self.run(["tc", "-j", "qdisc", "show", "dev", interface]).stdout
            verify_egress(self.where, interface, link, shown, limited=True)
        if self.name == "client" and link.rtt_ms:
            verify_delay(self.where, self.interface, link.rtt_ms / 2, self.qdisc())
        if self.name == "server" and link.qdisc is not None:
            shown = self.run(["tc", "-j", "qdisc", "show", "dev", self.interface]).stdout
            verify_at_server(self.where, self.interface, link.qdisc, shown)

    def qdisc(self) -> dict[str, Any]:
        """The root queueing discipline of the interface."""
        return root_qdisc(self.run(["tc", "-s", "-j", "qdisc", "show", "dev", self.interface]).stdout, self.where)


def _ability(lack: str) -> str:
    """What a host can do or why not, for people."""
    return f"unsupported: {lack}" if lack else "yes"


@_answering
class RemoteTap(RemoteMachine):
    """A host that what passes on the link is copied to."""

    settings: TapHost

    def __init__(self, settings: TapHost, loop: Loop, config: Sequence[str] | None, tool: Tool) -> None:
        super().__init__("tap", settings, loop, config, tool.programs)
        self.interfaces: list[str] = []
        self._own_driver = isinstance(tool, Command)
        self._of_kernel: list[str] = []

    def check(self) -> None:
        """Raise TestbedError unless the host can capture; changes nothing."""
        self.check_machine()
        self.find_interfaces()

    def find_interfaces(self) -> None:
        """Look for the interfaces; raises TestbedError unless all are there and up.

        A program of one's own may have drivers of its own (DPDK), whose interfaces the kernel does not know: it is
        given what the configuration names.
        """
        rows = self.interface_rows()
        found, known = [], []
        for wanted in self.settings.interfaces:
            if self._own_driver and self._look_up(wanted, rows) is None:
                found.append(_label(wanted))
            else:
                found.append(str(self._find(wanted, rows)["ifname"]))
                known.append(found[-1])
        self.interfaces, self._of_kernel = found, known

    def standing_changes(self) -> list[dict[str, Any]]:
        """What keeps frames as they arrive, for as long as the testbed is in use."""
        return [
            change for name in self._of_kernel for change in self._feature_changes(name, dict.fromkeys(_JOINING, False))
        ]

    def link_changes(self, link: LinkSettings) -> list[dict[str, Any]]:
        """What a link needs here: longer frames may not be taken otherwise."""
        return [{"kind": "mtu", "name": name, "value": str(link.mtu)} for name in self._of_kernel]

    @property
    def measured(self) -> list[str]:
        """Its interfaces at the measured link that the kernel knows."""
        return self._of_kernel

    def check_promiscuous(self) -> None:
        """Raise TestbedError unless an interface that is captured takes frames for others."""
        for row in self.interface_rows():
            if row["ifname"] in self._of_kernel and not row.get("promiscuity"):
                raise TestbedError(
                    f"{self.where}: interface {row['ifname']} takes no frames for others while it is captured; check "
                    f"its driver, or: ip link set {row['ifname']} promisc on"
                )

    def inspect(self) -> dict[str, Feature]:
        """What the host is; `ready` says whether it can be used."""
        problem = ""
        try:
            self.check()
        except HostLostError:
            raise
        except TestbedError as error:
            problem = str(error).removeprefix(f"{self.where}: ")
        rows = {"ready": Feature(not problem, problem), **self._described()}
        for name in self.interfaces:
            rows[f"tap {name}"] = Feature(True, self._interface_row(name) if name in self._of_kernel else name)
        return rows

    def facts(self) -> dict[str, Any]:
        """What the host and its interfaces are."""
        rows = {row["ifname"]: row for row in self.interface_rows()}
        interfaces = {name: {"mtu": rows[name]["mtu"], "mac": rows[name].get("address")} for name in self._of_kernel}
        return {**self._machine_facts(), "interfaces": interfaces}


def _label(interface: Interface) -> str:
    """What the configuration calls an interface."""
    return str(interface.name or interface.pci or interface.mac)


def _speed_mbit(told: str) -> float | None:
    """What ethtool says that an interface sends at; None where it does not know."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})Mb/s", told)
    return float(found[1]) if found else None


def _fields(text: str, names: Sequence[str]) -> dict[str, str]:
    """Fields of what ethtool prints."""
    rows = (line.strip().partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in rows if name in names}


@_answering
class SshTestbed(LockedTestbed):
    """Client and server, and perhaps a tap, as hosts reached over SSH."""

    kind = "ssh"
    POLL_S = 0.02

    def __init__(self, name: str, settings: Settings, patience_s: float = _RECONNECT_S) -> None:
        """*patience_s* is how long a host that is lost is awaited."""
        super().__init__(name)
        self.settings = settings
        self._patience_s = max(patience_s, _RECONNECT_S)
        self.session = uuid.uuid4().hex
        self._loop: Loop | None = None
        self._remote: dict[Role, RemoteHost] = {}
        self._tap: RemoteTap | None = None
        self._capture = tool_of(settings)
        self.hosts = {}
        self._record: Record | None = None
        self._owned = False
        """Whether there is something to release: what was not reserved or taken may be somebody else's."""

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"testbed {self.name}"

    @property
    def tap(self) -> Host:
        return self._tap or self.hosts["server"]

    @property
    def _machines(self) -> list[RemoteHost | RemoteTap]:
        """Client and server, and the tap if it is a host of its own."""
        return [*self._remote.values(), *([self._tap] if self._tap is not None else [])]

    # -- set-up and removal

    def _lock_directory(self) -> Path:
        return state_directory()

    def _set_up(self, directory: Path) -> None:
        self._record = Record(directory / f"{self.name}.json")
        self._record.load()
        self._check_record()
        commands = self.settings.commands
        for number in range(len(commands.reserve)):
            self._command("reserve", number)
            self._owned = True
        if commands.boot:
            self._look_for_others()
        for number in range(len(commands.boot)):
            self._command("boot", number)
        self.connect(commands.timeout_s if commands.boot else 0)
        self._check(self._machines)
        with self._signals.held():
            for machine in self._machines:
                self._take(machine)
        self._change({machine.name: machine.standing_changes() for machine in self._machines})
        self._probe(None)

    def _check(self, machines: Iterable[RemoteHost | RemoteTap]) -> None:
        """Raise TestbedError unless machines can be used; changes nothing."""
        for machine in machines:
            if isinstance(machine, RemoteHost):
                machine.check(self._peer(machine))
            else:
                machine.check()

    def _peer(self, host: RemoteHost) -> str:
        """Address of the other end of the link."""
        return self.settings.hosts["server" if host.name == "client" else "client"].ip

    def inspect(self) -> dict[str, dict[str, Feature]]:
        """What each host has and is; nothing changes. Raises TestbedError if one is not reached."""
        try:
            self.connect()
            found = {host.where: host.inspect(self._peer(host)) for host in self._remote.values()}
            if self._tap is not None:
                found[self._tap.where] = self._tap.inspect()
            return found
        finally:
            self.disconnect()

    def _check_record(self) -> None:
        """Raise TestbedError if a host was left changed that the configuration does not name any more."""
        assert self._record is not None  # noqa: S101 (made before)
        machines = [*self.settings.hosts.values(), *([self.settings.tap] if self.settings.tap is not None else [])]
        known = {host.address + (f":{host.port}" if host.port else "") for host in machines}
        for key, left in self._record.hosts.items():
            if key not in known:
                raise TestbedError(
                    f"testbed {self.name}: {key} was left changed and is no longer among its hosts; name it again "
                    f"and start once, or restore it there by hand (python3 $(ls -t {left['directory']}/agent/*.py | "
                    f"head -n 1) restore {left['directory']}) and remove {self._record.path}"
                )

    def connect(self, patience_s: float = 0) -> None:
        """Connect to the hosts, which may be booting and answer within *patience_s*."""
        self._describe()
        self._connect(self._machines, patience_s)

    def _describe(self) -> None:
        """Have the hosts of the configuration, without connections."""
        self._loop = Loop(f"quicbed-{self.name}")
        config = self.settings.ssh_config
        if self.settings.tap is not None:
            self._tap = RemoteTap(self.settings.tap, self._loop, config, self._capture)
        # without a tap captures are made at the server
        tools = {"client": (), "server": () if self._tap is not None else self._capture.programs}
        self._remote = {
            role: RemoteHost(role, self.settings.hosts[role], self._loop, config, tools[role]) for role in ENDS
        }
        self.hosts = dict(self._remote)
        for machine in self._machines:
            machine.limits = self.limits

    def _connect(self, hosts: Collection[RemoteMachine], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            closed = [host for host in hosts if host.is_lost]
            try:
                self._background.together([host.open() for host in closed])
                return
            except UnreachableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)

    @property
    def _background(self) -> Loop:
        if self._loop is None:
            raise TestbedError(f"testbed {self.name}: is not open; use it as a context manager")
        return self._loop

    def disconnect(self) -> None:
        """End the connections."""
        if self._loop is None:
            return
        try:
            self._loop.together([machine.close() for machine in self._machines])
        finally:
            self._loop.close()
            self._loop = None

    def _command(self, kind: Literal["reserve", "boot", "release"], number: int) -> None:
        """Run a command of the configuration; its words may be secrets and are not told."""
        argv: list[str] = getattr(self.settings.commands, kind)[number]
        what = f"testbed {self.name}: commands.{kind}[{number}] ({argv[0]})"
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.settings.commands.timeout_s,
                check=False,
            )
        except OSError as error:
            raise TestbedError(f"{what}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise TestbedError(
                f"{what}: still running after {self.settings.commands.timeout_s:g} s; raise commands.timeout_s if it "
                "needs longer"
            ) from None
        if done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise TestbedError(f"{what}: {lines[-1] if lines else 'no message'} (exit status {done.returncode})")

    def _look_for_others(self) -> None:
        """Raise TestbedError if a host is in use by another controller, from which booting would take it.

        Hosts that do not answer now, or cannot tell, are looked at when they are booted.
        """
        self._describe()
        try:
            answer = self._background.together([host.answers() for host in self._machines])
            for host, answers in zip(self._machines, answer, strict=True):
                found = None
                with contextlib.suppress(TestbedError):
                    found = host.request("holder") if answers else None
                if found is not None and not self._is_gone(found):
                    raise self._in_use(host, found)
        finally:
            self.disconnect()

    def _in_use(self, host: RemoteMachine, holder: Mapping[str, Any]) -> TestbedError:
        """The error for a host that somebody else has. Nothing is released then: that would take it from them."""
        kept = "; what `commands.reserve` has reserved is not released" if self.settings.commands.reserve else ""
        self._owned = False
        who = holder.get("who", "another program")
        return TestbedError(f"{host.where}: is in use by {who}; wait for it to end or stop it{kept}")

    def _take(self, host: RemoteMachine) -> None:
        """Take a host for this controller, and clean up after whoever had it before."""
        holder = {
            "session": self.session,
            "testbed": self.name,
            "who": f"{platform.node()}, process {os.getpid()}",
            "controller": host_id(),
            "pid": os.getpid(),
            "pid_ticks": start_ticks(os.getpid()),
            "space": [boot_id(), process_namespace()],
        }
        limit = 3 * REQUEST_TIMEOUT_S
        found = host.request("acquire", holder=holder, time_limit=limit)
        if found is not None and self._is_gone(found):
            found = host.request("acquire", holder=holder, replace=found, time_limit=limit)
        if found is not None:
            raise self._in_use(host, found)
        host.taken = self._owned = True
        host.request("recover", time_limit=limit)
        assert self._record is not None  # noqa: S101 (made before)
        if (known := self._record.hosts.get(host.key)) is not None:
            # usually the agent's journal has done it; it may have been lost with the host's disk
            host.request("restore", entries=known["entries"], boot=known["boot_id"], time_limit=limit)
            del self._record.hosts[host.key]
            self._record.save()

    def _is_gone(self, holder: Mapping[str, Any]) -> bool:
        """Whether the controller that has a host is this one, before it lost the connection, or a dead one.

        Only of processes that this one can see is it known that they are dead. A host gives up by itself who says
        nothing to it any more.
        """
        if holder.get("session") == self.session:
            return True
        pid, ticks = holder.get("pid"), holder.get("pid_ticks")
        seen = holder.get("space") == [boot_id(), process_namespace()] and holder.get("controller") == host_id()
        return seen and isinstance(pid, int) and start_ticks(pid) != ticks

    def _put_back(self, attempt: Attempts) -> None:
        if self._loop is not None:
            for machine in self._machines:
                if machine.taken:
                    attempt(partial(self._release, machine))
            attempt(self.disconnect)
        if self._owned:
            for number in range(len(self.settings.commands.release)):
                attempt(partial(self._command, "release", number))
            self._owned = False

    def _release(self, host: RemoteMachine) -> None:
        limit = 3 * REQUEST_TIMEOUT_S
        if not host.is_lost:
            with contextlib.suppress(HostLostError):  # which may be noticed only now
                host.request("clean_up", time_limit=limit)
        if host.is_lost:
            self._connect([host], _RECONNECT_S)
            self._take(host)
            host.request("clean_up", time_limit=limit)
        host.taken = False
        assert self._record is not None  # noqa: S101 (made before)
        self._record.hosts.pop(host.key, None)
        self._record.save()

    # -- the link

    def unsupported(self, link: LinkSettings) -> str | None:
        for host in self._remote.values():
            if link.rtt_ms and (lack := host.lacks("delay")):
                return f"no round-trip time: {host.where}: {lack}"
        client = self._remote["client"]
        if link.loss_percent and (lack := client.lacks("loss")):
            return f"no losses: {client.where}: {lack}"
        if link.reorder_packets is not None:
            return "no reordering: hosts over SSH put no packets back; the local testbed does"
        if link.bottleneck == "client":
            if client.settings.ingress is not None:
                return f"no bottleneck at the client: {client.where}: `ingress` is set, which is in its place"
            if lack := client.lacks("ifb"):
                return f"no bottleneck at the client: {client.where}: {lack}"
        server = self._remote["server"]
        lacks = server.lacks(link.qdisc) if link.qdisc in ("fq", "etf") else ""
        problem = qdisc_problem(link.qdisc, lacks, at_client=link.bottleneck == "client")
        return f"{server.where}: {problem}" if problem else None

    def recover(self) -> None:
        if not any(machine.is_lost for machine in self._machines):
            return
        self._link = None
        deadline = time.monotonic() + self._patience_s
        regained: dict[Role, RemoteHost | RemoteTap] = {}
        while True:
            try:
                self._recover(regained, deadline)
                return
            except HostLostError:  # another one meanwhile, or the same again
                if time.monotonic() > deadline:
                    raise

    def _recover(self, regained: dict[Role, RemoteHost | RemoteTap], deadline: float) -> None:
        """Have all hosts as before they were lost; *regained* are those that are to be set up anew."""
        for machine in self._machines:
            if not machine.is_lost:
                with contextlib.suppress(HostLostError):
                    machine.end_programs()
        lost = [machine for machine in self._machines if machine.is_lost]
        regained |= {machine.name: machine for machine in lost}
        self._regain(lost, deadline)
        with self._signals.held():
            for machine in regained.values():
                self._take(machine)
        self._change({name: machine.standing_changes() for name, machine in regained.items()})

    def _regain(self, lost: Sequence[RemoteHost | RemoteTap], deadline: float) -> None:
        """Connect to hosts again. One that has been booted answers late, and can be used later than that."""
        while True:
            try:
                self._connect(lost, 0)
                self._check(lost)
                return
            except TestbedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)

    def link_problem(self) -> str | None:
        mtu = None if self._link is None else self._link.mtu
        try:
            for host in self._remote.values():
                host.check_link(self._peer(host), mtu)
            if self._tap is not None:
                self._tap.find_interfaces()
        except HostLostError:
            raise
        except TestbedError as error:
            return str(error)
        return None

    def _set_link(self, link: LinkSettings) -> None:
        reason = self.unsupported(link)
        if reason is not None:
            raise TestbedError(f"testbed {self.name}: {reason}")
        self._change({machine.name: machine.link_changes(link) for machine in self._machines})
        for host in self._remote.values():
            host.verify_egress(link)
        client = self._remote["client"]
        if link.loss_percent:
            client.lose(0)  # of what is sent below
        self._measured_rtt_ms = self._probe(link.mtu, link.rtt_ms)
        if link.loss_percent:
            client.lose(link.loss_percent)

    def _change_rate(self, link: LinkSettings) -> None:
        for host in self._remote.values():
            if (interface := host.bottleneck(link)) is not None:
                # as the agent has put it there
                place = ["parent", "1:1", "handle", "2:"] if link.rtt_ms else ["root", "handle", "1:"]
                host.run(["tc", "qdisc", "change", "dev", interface, *place, *token_bucket(link)])

    def seed_losses(self, seed: int) -> None:
        if self._link is not None and self._link.loss_percent:
            self._remote["client"].lose(self._link.loss_percent, seed)

    def _change(self, changes: Mapping[Role, Sequence[Mapping[str, Any]]]) -> None:
        """Record what is going to change, then change it, on all hosts at the same time."""
        assert self._record is not None  # noqa: S101 (made before)
        loop = self._background
        hosts = [machine for machine in self._machines if machine.name in changes]
        before = loop.together(
            host.ask("read_settings", settings=[[c["kind"], c["name"]] for c in changes[host.name]]) for host in hosts
        )
        for host, values in zip(hosts, before, strict=True):
            planned = []
            for change, value in zip(changes[host.name], values, strict=True):
                if value is not None and value != shown(change):
                    planned.append({**change, "before": value, "after": shown(change)})
            if planned:
                self._record.add(host.key, host.settings.directory, host.hello["boot_id"], planned)
        self._record.save()
        loop.together(host.ask("apply", changes=list(changes[host.name])) for host in hosts)

    def _await_carriers(self) -> None:
        """Return when every interface has a carrier, which many lose for seconds as their MTU or rings change."""
        deadline = time.monotonic() + _CARRIER_TIMEOUT_S
        while True:
            answers = self._background.together(
                machine.ask("read_all", paths=[f"/sys/class/net/{name}/carrier" for name in machine.measured])
                for machine in self._machines
            )
            down = [
                f"{machine.where}: {name}"
                for machine, carriers in zip(self._machines, answers, strict=True)
                for name, carrier in zip(machine.measured, carriers, strict=True)
                if carrier != "1"
            ]
            if not down:
                return
            if time.monotonic() > deadline:
                raise TestbedError(f"{down[0]} has no carrier for {_CARRIER_TIMEOUT_S:g} s; check the cable")
            time.sleep(0.05)

    def _probe(self, mtu: int | None, rtt_ms: float = 0) -> float:
        """Median round-trip time in ms of datagrams as long as the MTU, which proves the way there and back.

        TestbedError if they do not come back, or in another time than *rtt_ms* asks for.
        """
        client, server = self._remote["client"], self._remote["server"]
        self._await_carriers()
        size = 1200 if mtu is None else mtu - _UDP_OVERHEAD
        try:
            port = server.request("echo_open", address=server.address)
            times: list[float] = []
            for _ in range(_RTT_ATTEMPTS):
                asked = {"source": client.address, "address": server.address, "port": port, "size": size}
                times += [1e3 * second for second in client.request("echo", **asked, count=_ECHOES)]
                problem = rtt_problem(rtt_ms, times) if rtt_ms else None
                if problem is None:
                    break
            server.request("echo_close")
        except HostLostError:
            raise
        except TestbedError as error:
            # a host that is lost does not answer either
            for host in (client, server):
                host.request("ping")
            raise TestbedError(
                f"{error}; check the cable, the switch's MTU and firewalls on the measured link"
            ) from None
        if problem is not None:
            raise TestbedError(f"testbed {self.name}: {problem}")
        return float(statistics.median(times))

    # -- observation

    def facts(self) -> dict[str, Any]:
        found = self._facts()
        try:
            # what is kept of it has to be read again
            untrusted.parse(durable.to_json(found))
        except ValueError as error:
            raise TestbedError(
                f"testbed {self.name}: a host reports of itself what no file can store: {one_line(error, 200)}"
            ) from None
        return found

    def _facts(self) -> dict[str, Any]:
        hosts: dict[str, dict[str, Any]] = {machine.name: machine.facts() for machine in self._machines}
        both = [hosts[role] for role in ENDS]
        speeds = [_speed_mbit(host["interface"]["link"].get("Speed", "")) for host in both]
        self.speed_mbit = min((speed for speed in speeds if speed is not None), default=None)
        return {
            "name": self.name,
            "kind": self.kind,
            "host_id": hashlib.sha256(" ".join(host["host_id"] for host in both).encode()).hexdigest()[:12],
            "cpu_model": _joined(host["cpu_model"] for host in both),
            "processor": _joined(host["processor"] for host in both),
            "cpus": min(host["cpus"] for host in both),
            "kernel": _joined(host["kernel"] for host in both),
            "microcode": _joined(told) if any(told := [host["microcode"] for host in both]) else None,
            # the server's interface completes checksums after it was captured
            "link": self._link_facts(
                checksums_valid_in_captures=self._tap is not None,
                delay="netem" if self._link is not None and self._link.rtt_ms else None,
            ),
            "hosts": hosts,
        }

    def counters(self) -> dict[str, float]:
        with understood(self.where, "a host reports no counters of a kernel"):
            return self._counters()

    def _counters(self) -> dict[str, float]:
        files = ("net/dev", "net/snmp", "net/netstat", "net/softnet_stat", "stat", "loadavg")
        pressures = {name: f"/proc/pressure/{name}" for name in parse.PRESSURES}
        common = [*(f"/proc/{name}" for name in files), *pressures.values()]
        hosts = list(self._remote.values())
        carriers = [f"/sys/class/net/{host.interface}/carrier_changes" for host in hosts]
        throttles = [host.throttle_counts for host in hosts]
        values: dict[str, float] = {"time_s": time.monotonic(), "machine.load_1m": 0.0}
        to_client, to_server = 0, 0
        if self._link is not None and self._link.loss_percent:
            client = self._remote["client"]
            to_client, to_server = client.request("lost", interface=client.interface)
        values |= {"link.lost_to_client": to_client, "link.lost_to_server": to_server}
        values["link.dropped"] = self._dropped()
        values |= self._dropped_at_server()
        answers = self._background.together(
            host.ask("counters", paths=[*common, carrier, *throttled], interface=host.interface)
            for host, carrier, throttled in zip(hosts, carriers, throttles, strict=True)
        )
        for host, carrier, throttled, answer in zip(hosts, carriers, throttles, answers, strict=True):
            with _understood(host.where):
                content = dict(zip([*common, carrier, *throttled], answer["texts"], strict=True))
                for path in (*common[: len(files)], carrier):
                    if content[path] is None:
                        raise TestbedError(f"{host.where}: cannot read {path}")
                role = host.name
                values[f"{role}.{host.interface}.carrier_changes"] = int(content[carrier])
                values[f"{role}.machine.clock_s"] = answer["clock_s"]
                if counts := [int(content[path]) for path in throttled if content[path] is not None]:
                    values[f"{role}.machine.throttled"] = sum(counts)
                values |= parse.interface_counters(role, [host.interface], content["/proc/net/dev"])
                snmp, extended = content["/proc/net/snmp"], content["/proc/net/netstat"]
                values |= parse.protocol_counters(role, snmp, extended, answer["statistics"])
                values[f"{role}.machine.cpus"] = host.hello["cpus"]
                softnet = content["/proc/net/softnet_stat"]
                texts = {name: content[path] for name, path in pressures.items()}
                values |= parse.machine_counters(f"{role}.machine", content["/proc/stat"], softnet, texts)
                load = float(content["/proc/loadavg"].split()[0])
                values[f"{role}.machine.load_1m"] = load
                values["machine.load_1m"] = max(values["machine.load_1m"], load)
        return values

    def _dropped(self) -> int:
        """Frames to the client for which the queue of the link had no room; 0 where nothing limits it."""
        if self._link is None or self._link.rate_mbit is None:
            return 0
        for host in self._remote.values():
            if (interface := host.bottleneck(self._link)) is not None:
                # netem counts what the discipline in it has dropped
                shown = host.run(["tc", "-s", "-j", "qdisc", "show", "dev", interface]).stdout
                with _understood(host.where):
                    return int(root_qdisc(shown, host.where)["drops"])
        return 0

    def _dropped_at_server(self) -> dict[str, float]:
        """Frames that the server's own queueing discipline has dropped, where the link asks for one."""
        if self._link is None or self._link.qdisc is None:
            return {}
        server = self._remote["server"]
        shown = server.run(["tc", "-s", "-j", "qdisc", "show", "dev", server.interface]).stdout
        with _understood(server.where):
            return {"server.qdisc_dropped": dropped_at_server(shown, server.where)}

    def disturbances(self, delta: Mapping[str, float]) -> list[str]:
        found = []
        for host in self._remote.values():
            if delta.get(f"{host.name}.{host.interface}.carrier_changes"):
                found.append(f"{host.where}: {host.interface} lost its carrier")
            if delta.get(f"{host.name}.machine.throttled"):
                found.append(f"{host.where}: the processor was too hot and ran slower")
            step = delta.get(f"{host.name}.machine.clock_s", 0.0)
            if abs(step) > CLOCK_STEP_S:
                found.append(f"{host.where}: the clock was set, by {step:+.3f} s")
        return found

    def pins(self) -> Mapping[Role, int] | str:
        if not self._remote:
            return {}  # its hosts tell
        found: dict[Role, list[int]] = {"server": [], "client": []}
        for role in found:
            found[role] = self._remote[role].cores()
        server, client = self._remote["server"], self._remote["client"]
        if server.hello["boot_id"] == client.hello["boot_id"] and found["server"]:
            # both ends are programs of one machine, and two threads of a core are one processor
            first = found["server"][0]
            found["client"] = [cpu for cpu in found["client"] if len(server.cores([first, cpu])) == 2]
        for role, host in (("server", server), ("client", client)):
            if not found[role]:
                return f"{host.where}: programs of this end need a core of their own, and have none"
            try:
                host.run(host.on_processor(found[role][0], ["true"]))
            except HostLostError:
                raise
            except TestbedError as error:
                return f"programs cannot be pinned to processor {found[role][0]}: {error}"
        return {role: cpus[0] for role, cpus in found.items()}

    def sent_by_server(self) -> int | None:
        server = self._remote["server"]
        try:
            devices = parse.parse_devices(server.read("/proc/net/dev"))
        except (ValueError, LookupError):
            raise TestbedError(f"{server.where}: /proc/net/dev holds no counters of a kernel") from None
        return devices[server.interface]["tx_bytes"] if server.interface in devices else None

    @contextlib.contextmanager
    def capture(
        self,
        path: Path,
        *,
        snaplen: int = 128,
        count: int | None = None,
        filter: str = "",  # noqa: A002
    ) -> Iterator[Capture]:
        host: RemoteHost | RemoteTap = self._tap or self._remote["server"]
        interfaces = [host.interface] if self._tap is None else self._tap.interfaces
        with capturing(
            host,
            interfaces,
            self._capture,
            path,
            snaplen=snaplen,
            count=count,
            expression=filter,
            sent=self._sent(count, filter),
        ) as capture:
            if self._tap is not None:
                self._tap.check_promiscuous()
            yield capture


def _joined(values: Iterable[str]) -> str:
    """Names of both hosts, once if they are the same."""
    return " / ".join(dict.fromkeys(value or "unknown" for value in values))
