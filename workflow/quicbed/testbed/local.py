"""The local testbed: client, middle and server as network namespaces of this machine.

::

    client                     middle                      server
    link0 10.113.0.1 ---- client0 [bridge0] server0 ---- link0 10.113.0.2

Every line is a veth pair. The tap is ``server0``. A rate limit acts on ``client0``, in the
direction of downloads. The addresses exist inside the namespaces only. For a round-trip time
``server0`` moves to a second bridge, and a delay line joins the two (:mod:`.delay`).
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from quicbed.base import environment, trees
from quicbed.base.untrusted import one_line

from . import counters as parse
from . import facts as machine_facts
from .agent import LOOK_S, cores, overrun
from .base import CLOCK_STEP_S, ROLES, Capture, Completed, Confined, Host, LinkSettings, Role, TestbedError
from .capture import Command, Tcpdump, Tool, capturing
from .confinement import View, take, unused_users, used
from .delay import CLIENT_END, SERVER_END, DelayLine, open_line
from .ethtool import Statistics
from .facts import sysctl_path
from .features import LOCAL_TESTBED_NEEDS, UDP_SEGMENT, features, has_capabilities, require
from .lifecycle import Attempts, LockedTestbed
from .lock import HostSetting, State, host_settings_lock, runtime_directory
from .loss import LinkLoss
from .namespace import RUN_NETNS, NamespaceThread, is_namespace, kill_processes, setns
from .process import LocalProcess, finish, require_tools, start, start_confined, user_problem
from .reorder import IDLE_S, LinkReorder
from .shaping import (
    at_server,
    burst_bytes,
    dropped,
    dropped_at_server,
    qdisc_problem,
    root_qdisc,
    rtt_problem,
    tcp_settings,
    token_bucket,
    told_rows,
    verify_at_server,
    verify_token_bucket,
)

_PREFIX = "quicbed-"
_PREFIX_LENGTH = 24
_ADDRESSES: dict[Role, str | None] = {
    "client": "10.113.0.1",
    "middle": None,
    "server": "10.113.0.2",
}
# Locally administered (second bit of the first byte); fixed, so that neighbours need not be asked
# for.
_MAC_ADDRESSES: dict[Role, str] = {"client": "02:71:62:64:00:01", "server": "02:71:62:64:00:02"}
_INTERFACES: dict[Role, tuple[str, ...]] = {
    "client": ("link0",),
    "middle": ("client0", "server0"),
    "server": ("link0",),
}
_ENDS: tuple[Role, Role] = ("client", "server")
_TAP = "server0"
_SHAPED = "client0"
_BRIDGE = "bridge0"
_SERVER_BRIDGE = "bridge1"  # between delay line and server, only while there is a round-trip time

# Options of ethtool -K to the names ethtool -k prints.
_OFFLOADS = {
    "tx": "tx-checksumming",
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
    "tx-udp-segmentation": "tx-udp-segmentation",
}

# Namespace settings read for the record.
_RECORDED_SETTINGS = (
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.ip_local_port_range",
)
_ALLOWED_CONGESTION_CONTROL = sysctl_path("net.ipv4.tcp_allowed_congestion_control")
_PROBE_TIMEOUT_S = 10.0
_RTT_ECHOES = 5
_RTT_ATTEMPTS = 4
_COPY_TIMEOUT_S = 600.0
_BUFFERS = ("net.core.rmem_max", "net.core.wmem_max")
_LARGEST_BUFFER = 2**30
CONFINED = "QUICBED_CONFINED"
"""Environment variable of programs with a view of their own of the machine's files."""


def _remove(directory: Path) -> None:
    """Remove a directory that other people's programs have written to, as deep as it may be."""
    try:
        trees.remove(directory)
    except OSError as error:
        raise TestbedError(f"{directory}: cannot be removed: {one_line(error, 300)}") from None


def namespace_name(testbed: str, role: Role) -> str:
    """Name of the network namespace of a host of a local testbed."""
    return f"{_PREFIX}{testbed}-{role}"


class LocalHost(Host):
    """A network namespace."""

    def __init__(self, name: Role, testbed: str) -> None:
        self.name = name
        self.address = _ADDRESSES[name]
        self.interface = _TAP if name == "middle" else "link0"
        self.namespace = namespace_name(testbed, name)
        self._thread: NamespaceThread | None = None
        self._files: dict[str, int] = {}
        self._spawned: list[LocalProcess] = []
        self._statistics: Statistics | None = None
        self._user: int | None = None
        self._no_user = "the testbed is not open"
        self._own = Path()
        """Directory for what its user has outside of runs, which others may not enter."""
        self._places: dict[Path, Path] = {}
        self._copies: dict[Path, Path] = {}
        self._last: Confined | None = None
        self.allow_buffers: Callable[[int], bool] = lambda _: False
        """Let programs have socket buffers of so many bytes; whether it could be done."""

    @property
    def path(self) -> Path:
        """The namespace as a file."""
        return RUN_NETNS / self.namespace

    def open(self) -> None:
        """Join the namespace, which exists by now."""
        self._thread = NamespaceThread(self.namespace, lambda: setns(self.path))

    def close(self) -> None:
        """End every program and let go of the namespace."""
        if self._thread is None:
            return
        kill_processes(self.path)
        for process in self._spawned:
            process.kill()
            process.wait(20)
        self._spawned.clear()
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        if self._statistics is not None:
            self._statistics.close()
            self._statistics = None
        self._thread.close()
        self._thread = None
        if self._user is not None:
            self._places.clear()
            self._copies.clear()
            _remove(self._own)
            self._user, self._no_user = None, "the testbed is not open"

    def be_user(self, user: int | None) -> None:
        """Let confined programs be of this user, if the kernel lets them."""
        if user is None:
            self._no_user = "this user namespace has no unused number of a user"
            return
        self._own = Path(tempfile.gettempdir()) / self.namespace
        if os.path.lexists(self._own):
            status = self._own.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise TestbedError(f"{self._own}: is not of this user; remove it")
            _remove(self._own)
        self._own.mkdir(mode=0o700)
        self._user = user
        self._renew_temporary()
        view = self._view(Confined(self.limits))
        self._no_user = self.call(user_problem, view) or ""
        if self._no_user:
            _remove(self._own)
            self._user = None

    def _renew_temporary(self) -> None:
        """Have an empty directory for temporary files."""
        temporary = self._own / "tmp"
        if temporary.is_dir():
            with os.scandir(temporary) as found:
                if next(found, None) is None:
                    return
            _remove(temporary)
        temporary.mkdir(mode=0o700)
        os.chown(temporary, self._user or 0, self._user or 0)

    def _view(self, confined: Confined) -> View:
        if self._user is None:
            raise ValueError(self._no_user)
        return View(
            self._user,
            self._own / "tmp",
            confined.limits.total_memory_mib << 20,
            writable=[*self._places.values()],
            readable=[*confined.readable, *confined.changing],
            copies={path: self._copies[path] for path in confined.changing if path in self._copies},
            private=confined.private,
            names=confined.names,
            capabilities=self._capabilities(confined),
        )

    def confinement(self, confined: Confined | None = None) -> dict[str, Any]:
        why = "asked for by the configuration (external.root)" if confined and confined.privileged else self._no_user
        known: dict[str, Any] = {
            "endpoint_user": os.geteuid() if why else self._user,
            "memory_limit": f"resident memory of all its processes, looked at every {LOOK_S:g} s",
        }
        if why:
            return known | {"why": why}
        return known | {"capabilities": self._capabilities(confined)}

    def _capabilities(self, confined: Confined | None) -> list[str]:
        """What a program keeps of root's."""
        size, needed = (0, ()) if confined is None else (confined.buffer_bytes, confined.capabilities)
        # before Linux has it for a namespace of its own, this is all that there is in a container
        return sorted({*needed, *(() if self.allow_buffers(size) else ("net_admin",))})

    def place(self, directory: Path) -> Path:
        if self._user is None:
            return directory
        if directory not in self._places:
            place = directory / f".{self.name}"
            place.mkdir(mode=0o700)
            os.chown(place, self._user, self._user)
            self._places[directory] = place
        return self._places[directory]

    def provide_copy(self, directory: Path, leave: Collection[str]) -> Path:
        del leave  # as it stands in the directory's place, it is the same for what has been made in there
        if self._user is None or directory in self._copies:
            return directory
        copy = self._own / f"copy{len(self._copies)}"
        argv = ["cp", "-a", "--reflink=auto", str(directory), str(copy)]
        done = self.run(argv, timeout=_COPY_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise TestbedError(f"{directory}: cannot be copied to {copy}: {one_line(done.stderr, 300)}")
        self.run(["chown", "-hR", f"{self._user}:{self._user}", str(copy)], timeout=_COPY_TIMEOUT_S)
        self._copies[directory] = copy
        return directory

    def collect(self, directory: Path) -> None:
        place = self._places.pop(directory, None)
        if place is None or self._user is None:
            return
        try:
            last = self._last or Confined(self.limits)
            left = used([place, self._own / "tmp"], last.limits, last.transfer_bytes)
            if left.problem is not None:
                raise TestbedError(f"the {self.name} {left.problem}")
            entries = [entry for entry in left.entries if Path(entry.path).is_relative_to(place)]
            if refused := take(place, directory, entries, self._user):
                raise TestbedError(
                    f"the {self.name} left what is not its own in the run's directory: {', '.join(refused)}"
                )
        except OSError as error:
            raise TestbedError(f"{self.name}: what it left cannot be taken: {error}") from error
        finally:
            _remove(place)
            self._renew_temporary()

    def forget(self, directory: Path) -> None:
        if (place := self._places.pop(directory, None)) is not None:
            _remove(place)
            self._renew_temporary()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Result of a call made in the namespace."""
        if self._thread is None:
            raise TestbedError(f"{self.name}: the testbed is not open; use it as a context manager")
        return self._thread.call(function, *args)

    def start(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in the namespace; options as of :func:`.process.start`."""
        process: subprocess.Popen[bytes] = self.call(lambda: start(self.name, argv, **options))
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30,
        check: bool = True,
        input: str | None = None,  # noqa: A002
    ) -> Completed:
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.start(argv, stdin=stdin)
        return finish(self.name, argv, process, timeout=timeout, check=check, text=input)

    def read(self, path: str) -> str:
        if path.startswith("/sys/class/net"):
            # sysfs shows the namespace it was mounted in; ip netns exec mounts one.
            return self.run(["ip", "netns", "exec", self.namespace, "cat", path]).stdout
        # /proc/net is that of the process; the thread is what lives in the namespace.
        path = re.sub(r"^/proc/(self/)?net/", "/proc/thread-self/net/", path)
        try:
            text: str = self.call(lambda: Path(path).read_text())
        except OSError as error:
            raise TestbedError(f"{self.name}: cannot read {path}: {error.strerror}") from error
        return text

    def read_again(self, path: str) -> str:
        """Like :meth:`read`, for a file in ``/proc/net`` that is read often: it stays open."""
        descriptor = self._files.get(path)
        if descriptor is None:
            inside = path.replace("/proc/net/", "/proc/thread-self/net/")
            descriptor = self.call(lambda: os.open(inside, os.O_RDONLY | os.O_CLOEXEC))
            self._files[path] = descriptor
        content = b""
        while part := os.pread(descriptor, 65536, len(content)):
            content += part
        return content.decode()

    def write(self, path: str, value: str) -> None:
        """Write a kernel setting of the namespace."""
        self.call(lambda: Path(path).write_text(value))

    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        confined: Confined | None = None,
    ) -> LocalProcess:
        first, look = None, None
        with stdout.open("wb") as out, stderr.open("wb") as err:
            options: dict[str, Any] = {"stdout": out, "stderr": err, "env": environment.named(env), "cwd": cwd}
            if confined is None:
                popen = self.start(argv, **options)
            else:
                if self._user is not None and not confined.privileged:
                    for file in (out, err):  # programs open them again, by names such as /dev/stderr
                        os.fchown(file.fileno(), self._user, self._user)
                    temporary = tempfile.gettempdir()
                    own = {"HOME": temporary, "TMPDIR": temporary, CONFINED: "1"}
                    self._last = confined
                    options |= {
                        "view": self._view(confined),
                        "env": options["env"] | own,
                        "cwd": cwd or Path(temporary),
                    }
                popen, first = self.call(lambda: start_confined(self.name, argv, confined, **options))
                look = partial(self._overrun, confined)
        process = LocalProcess(popen, first, look)
        self._spawned = [other for other in self._spawned if other.poll() is None]
        self._spawned.append(process)
        return process

    def _overrun(self, confined: Confined, pids: Sequence[int]) -> str | None:
        """Which limit a program exceeds now, with all that it has started; None if none."""
        problem = overrun(pids, confined.amounts)
        if problem is None and self._user is not None:
            problem = used(
                [*self._places.values(), self._own / "tmp"], confined.limits, confined.transfer_bytes
            ).problem
        return problem

    def set(self, name: str, value: str) -> None:
        """Set a sysctl of the namespace and verify it."""
        try:
            self.write(sysctl_path(name), value)
        except OSError as error:
            raise TestbedError(f"{self.name}: cannot set {name} to {value!r}: {error.strerror}") from error
        self.verify(name, value)

    def verify(self, name: str, value: str) -> None:
        """:class:`TestbedError` unless a sysctl of the namespace has this value."""
        found = self.read(sysctl_path(name))
        if found.split() != value.split():
            raise TestbedError(f"{self.name}: {name} is {found.strip()!r} after it was set to {value!r}")

    def offloads(self, interface: str) -> dict[str, bool]:
        """What ``ethtool -k`` tells about an interface."""
        rows = self.rows(["ethtool", "--json", "-k", interface], "ifname")
        return {
            name: bool(feature["active"])
            for row in rows
            for name, feature in row.items()
            if isinstance(feature, dict) and "active" in feature
        }

    def rows(self, argv: Sequence[str], key: str) -> list[dict[str, Any]]:
        """The objects that a tool prints as JSON, all with a text *key*."""
        return told_rows(self.name, " ".join(argv), self.run(argv).stdout, key)

    def qdisc(self, interface: str) -> dict[str, Any]:
        """The queueing discipline at an interface, with its statistics."""
        shown = self.run(["tc", "-s", "-j", "qdisc", "show", "dev", interface])
        return root_qdisc(shown.stdout, self.name)

    def statistics(self) -> dict[str, int]:
        """What the driver of the measured interface counts (``ethtool -S``)."""
        if self._statistics is None:
            control = self.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            self._statistics = Statistics(control, self.interface)
        return self._statistics.read()

    def links(self) -> list[dict[str, Any]]:
        """The interfaces of this host on the measured link, as ``ip`` shows them."""
        rows = self.rows(["ip", "-s", "-j", "link", "show"], "ifname")
        return [row for row in rows if row["ifname"] != "lo"]


class LocalTestbed(LockedTestbed):
    """Client, middle and server as network namespaces of this machine; needs root."""

    kind = "local"

    def __init__(self, name: str = "local", capture: Tool | None = None) -> None:
        """*capture* is the program that captures, by default tcpdump."""
        if not re.fullmatch(rf"[a-z0-9][a-z0-9-]{{0,{_PREFIX_LENGTH - 1}}}", name):
            raise TestbedError(
                f"testbed {name!r}: a name is at most {_PREFIX_LENGTH} lower-case letters, digits and hyphens"
            )
        super().__init__(name)
        self._local = {role: LocalHost(role, name) for role in ROLES}
        self.hosts = dict(self._local)
        self._state = State(testbed=name)
        self._state_path = Path()
        self._checksums_in_captures: bool | None = None
        self.capture_tool = capture or Tcpdump()
        self._tools: dict[str, str] | None = None
        self._has_netem = False
        self._no_delay = ""
        self.why_no_loss = ""
        self.why_no_reorder = ""
        self._no_qdisc: dict[str, str] = {}
        self.link_loss: LinkLoss | None = None
        self.link_reorder: LinkReorder | None = None
        self._delay: DelayLine | None = None
        self._delayed = False

    # -- set-up and removal

    def _lock_directory(self) -> Path:
        if not has_capabilities():
            raise TestbedError(
                f"testbed {self.name}: making network namespaces needs root; run the command again "
                "as root, for "
                "example: sudo make all"
            )
        require_tools(["ip", "tc", "ethtool", *self.capture_tool.programs, "setpriv"])
        return runtime_directory()

    def _set_up(self, directory: Path) -> None:
        self._state_path = directory / f"{self.name}.json"
        found = features()
        require(found, LOCAL_TESTBED_NEEDS)
        self._has_netem = found["netem"].available
        self._no_delay = found["delay"].reason
        self.why_no_loss = found["loss"].reason
        self.why_no_reorder = found["reorder"].reason
        guests = "that of the testbed `guests` has it"
        self._no_qdisc = {name: f"{found[name].reason}; {guests}" for name in ("fq", "etf") if found[name].reason}
        with self._signals.held():
            self._remove_leftovers()
            # a signal between the start of a program and the wait for it would let it make a namespace later
            self._create()
            users: list[int | None] = [*unused_users(self.name, len(_ENDS))]
            for role, user in zip(_ENDS, users or [None] * len(_ENDS), strict=True):
                self._local[role].allow_buffers = self._allow_buffers
                self._local[role].be_user(user)
        self.probe_path(udp_segment=None)

    def _allow_buffers(self, size: int) -> bool:
        """Let everybody on the machine have socket buffers of so many bytes, which programs of endpoints ask for.

        Root may have any size, in any namespace. While the testbed lasts, the machine's limits are larger instead, and
        all testbeds make them the same: the one that ends last puts back what was there.
        """
        for name in _BUFFERS:
            file = Path(sysctl_path(name))
            try:
                now = int(file.read_text())
                if now >= size:
                    continue
                with self._signals.held(), host_settings_lock(self._state_path.parent):
                    if str(file) not in [setting.path for setting in self._state.host_settings]:
                        self._state.host_settings.append(HostSetting(str(file), str(now), str(_LARGEST_BUFFER)))
                        self._state.write(self._state_path)
                    file.write_text(str(_LARGEST_BUFFER))
            except OSError:  # as in a container
                return False
        return True

    def _put_back(self, attempt: Attempts) -> None:
        if self._delay is not None:
            attempt(self._delay.close)
        self._delay, self._delayed = None, False
        attempt(self._reorder_no_more)
        if self.link_loss is not None:
            attempt(self.link_loss.close)
        self.link_loss = None
        for host in self._local.values():
            attempt(host.close)
        for setting in self._state.host_settings:
            attempt(setting.restore)
        for name in self._state.namespaces:
            attempt(partial(self._delete_namespace, name))
        if self._state.namespaces and not attempt.errors:
            # With errors the state stays, so that the next start tries again.
            attempt(partial(self._state_path.unlink, missing_ok=True))
        self._state = State(testbed=self.name)

    def _delete_namespace(self, name: str) -> None:
        path = RUN_NETNS / name
        if not path.exists():
            return
        kill_processes(path)
        self._tool("ip", "netns", "delete", name)
        if path.exists():
            raise TestbedError(f"namespace {name} is still there after it was deleted")

    def _tool(self, *argv: str) -> Completed:
        """Run a tool on the machine itself."""
        return finish("this machine", argv, start("this machine", argv), timeout=30, check=True, text=None)

    @property
    def _delay_directory(self) -> Path:
        return self._state_path.with_suffix(".delay")

    @property
    def _mark(self) -> str:
        """Alias of the loopback interface of our namespaces: they say themselves whose they are."""
        return f"quicbed testbed {self.name}"

    def _is_marked(self, name: str) -> bool:
        if not is_namespace(RUN_NETNS / name):
            return False
        argv = ("ip", "-n", name, "-j", "link", "show", "dev", "lo")
        shown = told_rows("this machine", " ".join(argv), self._tool(*argv).stdout, "ifname")
        return any(row.get("ifalias") == self._mark for row in shown)

    def _remove_leftovers(self) -> None:
        """Remove what a driver that crashed has left, if it is provably this testbed's."""
        try:
            state = State.read(self._state_path)
        except ValueError:
            state = None  # damaged: what the namespaces say about themselves has to do
        listed = set(state.namespaces) if state is not None else set()
        names = [host.namespace for host in self._local.values()]
        present = [name for name in names if (RUN_NETNS / name).exists()]
        for name in present:
            if name not in listed and not self._is_marked(name):
                raise TestbedError(
                    f"namespace {name} exists and was not made by this testbed; remove it with: ip netns delete {name}"
                )
        for name in present:
            self._delete_namespace(name)
        trees.remove(self._delay_directory, ignore_errors=True)
        for setting in state.host_settings if state is not None else []:
            setting.restore()
        self._state_path.unlink(missing_ok=True)

    def _create(self) -> None:
        self._state = State(testbed=self.name, namespaces=[host.namespace for host in self._local.values()])
        self._state.write(self._state_path)
        for host in self._local.values():
            self._tool("ip", "netns", "add", host.namespace)
            host.open()
            host.run(["ip", "link", "set", "dev", "lo", "alias", self._mark, "up"])
            # Neighbour and router discovery would be strangers in the captures.
            for scope in ("all", "default"):
                path = f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"
                if host.call(os.path.exists, path):
                    host.write(path, "1")
        middle = self._local["middle"]
        commands = [f"link add {_BRIDGE} type bridge stp_state 0 mcast_snooping 0"]
        for role in _ENDS:
            commands += [
                f"link add {role}0 type veth peer name link0 address {_MAC_ADDRESSES[role]} "
                f"netns {self._local[role].namespace}",
                f"link set {role}0 master {_BRIDGE} up",
            ]
        commands.append(f"link set {_BRIDGE} up")
        middle.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n")
        for role, peer in (_ENDS, _ENDS[::-1]):
            host = self._local[role]
            commands = [
                f"addr add {host.address}/24 dev link0",
                "link set link0 up",
                # A handshake must not wait for an address resolution.
                f"neigh replace {_ADDRESSES[peer]} lladdr {_MAC_ADDRESSES[peer]} dev link0 nud permanent",
            ]
            host.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n")

    def pins(self) -> Mapping[Role, int] | str:
        allowed = os.sched_getaffinity(0)
        found = cores(allowed)
        if len(found) < 2:
            many = f"{len(allowed)} of {os.cpu_count()} processors"
            return f"each end needs a core of its own, and this process may use {many}, all of one core"
        pins: dict[Role, int] = {"server": found[0], "client": found[1]}
        for cpu in pins.values():
            try:
                self._tool(*self._local["server"].on_processor(cpu, ["true"]))
            except TestbedError as error:
                return f"programs cannot be pinned to processor {cpu}: {error}"
        return pins

    # -- the link

    def unsupported(self, link: LinkSettings) -> str | None:
        if link.rtt_ms and self._no_delay:
            return f"no round-trip time: {self._no_delay}"
        if link.loss_percent and self.why_no_loss:
            return f"no losses: {self.why_no_loss}"
        if link.reorder_packets is not None and self.why_no_reorder:
            return f"no reordering: {self.why_no_reorder}"
        return qdisc_problem(link.qdisc, self._no_qdisc.get(link.qdisc or "", ""))

    def _set_link(self, link: LinkSettings) -> None:
        try:
            self._change(link)
        except TestbedError:
            # a delay line may be what does not work: the next attempt begins with another
            self._remove_delay()
            raise

    def _change(self, link: LinkSettings) -> None:
        if self.link_loss is not None:
            self.link_loss.set(0)  # for what is sent below
        self._reorder_no_more()
        offloads = link.segmentation
        checksums = offloads != "off"
        self._join(delayed=link.rtt_ms > 0)
        for host in self._local.values():
            self._set_mtu(host, link.mtu)
            # the middle is no host: it passes single frames on as such
            own = "off" if host.name == "middle" and offloads == "gso-gro" else offloads
            for interface in _INTERFACES[host.name]:
                self._set_offloads(host, interface, own, checksums=checksums)
        self._set_rate(link)
        self._set_qdisc(link.qdisc)
        if self._delay is not None and link.rtt_ms > 0:
            self._delay.set(link.rtt_ms / 2)
        self._set_congestion_control(link.congestion_control)
        for role in _ENDS:
            host = self._local[role]
            for name, value in tcp_settings(link).items():
                host.set(name, value)
        if not self.probe_path(udp_segment=1200, congestion_control=link.congestion_control):
            # Before Linux 6.11, UDP GSO needs an interface that completes checksums, which veth
            # leaves undone.
            checksums = True
            for role in _ENDS:
                host = self._local[role]
                self._set_offloads(host, host.interface, offloads, checksums=True)
            if not self.probe_path(udp_segment=1200, congestion_control=link.congestion_control):
                raise TestbedError(f"testbed {self.name}: UDP GSO does not work on the link in mode {link.mode}")
        self._checksums_in_captures = not checksums
        if link.rtt_ms > 0:
            self._measured_rtt_ms = self._measure_rtt(link.rtt_ms)
        if link.loss_percent:
            if self.link_loss is None:
                self.link_loss = LinkLoss(self._local["middle"], from_client=_SHAPED, from_server=_TAP)
            self.link_loss.set(link.loss_percent)
        if link.reorder_packets is not None:
            self.link_reorder = LinkReorder(self._local["middle"], from_client=_SHAPED, from_server=_TAP)
            self.link_reorder.set(
                link.reorder_permille,
                link.reorder_packets,
                to_client=SERVER_END if self._delayed else _SHAPED,
                to_server=CLIENT_END if self._delayed else _TAP,
                idle_s=IDLE_S + link.rtt_ms / 1000,
            )

    def _reorder_no_more(self) -> None:
        """Take away what puts packets back."""
        reorder, self.link_reorder = self.link_reorder, None
        if reorder is not None:
            reorder.close()

    def link_problem(self) -> str | None:
        for role, peer in (_ENDS, _ENDS[::-1]):
            host = self._local[role]
            rows = host.rows(["ip", "-j", "addr", "show", "dev", host.interface], "ifname")
            row = next((row for row in rows if row["ifname"] == host.interface), {})
            if not {"UP", "LOWER_UP"} <= set(_texts(row, "flags")):
                return f"{role}: {host.interface} is down; {self._remedy(host, 'link set', host.interface, 'up')}"
            if host.address not in [info.get("local") for info in _objects(row, "addr_info")]:
                add = self._remedy(host, "addr add", f"{host.address}/24", "dev", host.interface)
                return f"{role}: {host.interface} does not have the address {host.address}; {add}"
            if self._link is not None and row.get("mtu") != self._link.mtu:
                set_ = self._remedy(host, "link set", host.interface, "mtu", str(self._link.mtu))
                return f"{role}: the MTU of {host.interface} is {row.get('mtu')}, not {self._link.mtu}; {set_}"
            argv = ["ip", "-j", "route", "get", str(_ADDRESSES[peer])]
            done = host.run(argv, check=False)
            ways = told_rows(host.name, " ".join(argv), done.stdout, "dev") if done.returncode == 0 else []
            if [way["dev"] for way in ways[:1]] != [host.interface]:
                return f"{role}: the way to {_ADDRESSES[peer]} is not through {host.interface}; start again"
        down = [row["ifname"] for row in self._local["middle"].links() if "LOWER_UP" not in _texts(row, "flags")]
        for name in _INTERFACES["middle"]:
            if name in down:
                return f"middle: {name} is down; {self._remedy(self._local['middle'], 'link set', name, 'up')}"
        return None

    @staticmethod
    def _remedy(host: LocalHost, command: str, *words: str) -> str:
        """What mends a host by hand."""
        return f"somebody has changed it, start again or: ip -n {host.namespace} {command} {' '.join(words)}"

    def seed_losses(self, seed: int) -> None:
        if self.link_loss is not None:
            self.link_loss.seed(seed)
        if self.link_reorder is not None:
            self.link_reorder.seed(seed)

    def _join(self, *, delayed: bool) -> None:
        """Put the delay line between client and server, or take it out."""
        if delayed == self._delayed:
            return
        middle = self._local["middle"]
        if self._delay is None:
            self._delay = open_line(middle, self._delay_directory, netem=self._has_netem)
            commands = [
                f"link add {_SERVER_BRIDGE} type bridge stp_state 0 mcast_snooping 0",
                f"link set {CLIENT_END} master {_BRIDGE}",
                f"link set {SERVER_END} master {_SERVER_BRIDGE}",
            ]
            middle.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n")
        state = "up" if delayed else "down"
        commands = [
            *(f"link set {name} {state}" for name in (CLIENT_END, SERVER_END, _SERVER_BRIDGE)),
            f"link set {_TAP} master {_SERVER_BRIDGE if delayed else _BRIDGE}",
        ]
        middle.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n")
        if not delayed:
            self._delay.pause()
        self._delayed = delayed

    def _remove_delay(self) -> None:
        """Take out a delay line that does not work, so that the next one begins anew."""
        if self._delay is None:
            return
        self._join(delayed=False)
        self._delay.close()
        self._delay = None
        middle = self._local["middle"]
        for name in (CLIENT_END, SERVER_END, _SERVER_BRIDGE):
            middle.run(["ip", "link", "delete", name], check=False)  # both ends of a pair go with the first

    def _measure_rtt(self, wanted_ms: float) -> float:
        """Median time of UDP echoes in ms, once the fastest of them says that the delay is right."""
        client, server = self._local["client"], self._local["server"]
        near: socket.socket = client.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        far: socket.socket = server.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        times: list[float] = []
        with near, far:
            for one, host in ((near, client), (far, server)):
                one.bind((str(host.address), 0))
                one.settimeout(_PROBE_TIMEOUT_S)
            try:
                for _ in range(_RTT_ATTEMPTS):
                    for _ in range(_RTT_ECHOES):
                        begin = time.monotonic()
                        near.sendto(bytes(1200), far.getsockname())
                        content, address = far.recvfrom(65536)
                        far.sendto(content, address)
                        near.recv(65536)
                        times.append((time.monotonic() - begin) * 1e3)
                    if rtt_problem(wanted_ms, times) is None:
                        break
            except OSError as error:
                raise TestbedError(f"testbed {self.name}: no UDP echo over the delayed link: {error}") from error
        if (problem := rtt_problem(wanted_ms, times)) is not None:
            raise TestbedError(f"testbed {self.name}: {problem}")
        return statistics.median(times)

    def _set_mtu(self, host: LocalHost, mtu: int) -> None:
        interfaces = list(_INTERFACES[host.name])
        if host.name == "middle":
            interfaces += [_BRIDGE, *((_SERVER_BRIDGE, CLIENT_END, SERVER_END) if self._delay is not None else ())]
        commands = "".join(f"link set {interface} mtu {mtu}\n" for interface in interfaces)
        host.run(["ip", "-batch", "-"], input=commands)
        for row in host.links():
            if row["mtu"] != mtu:
                raise TestbedError(f"{host.name}: MTU of {row['ifname']} is {row['mtu']} after it was set to {mtu}")

    def _set_offloads(self, host: LocalHost, interface: str, offloads: str, *, checksums: bool) -> None:
        wanted = dict.fromkeys(_OFFLOADS, offloads == "default")
        if offloads == "gso-gro":
            wanted |= dict.fromkeys(("gso", "gro"), True)
        wanted["tx"] = checksums
        argv = ["ethtool", "-K", interface]
        for option, on in wanted.items():
            argv += [option, "on" if on else "off"]
        done = host.run(argv, check=False)
        found = host.offloads(interface)
        for option, on in wanted.items():
            if found.get(_OFFLOADS[option]) != on:
                message = done.stderr.strip().splitlines()
                raise TestbedError(
                    f"{host.name}: {_OFFLOADS[option]} of {interface} cannot be switched "
                    f"{'on' if on else 'off'}" + (f": {message[-1]}" if message else "")
                )

    def _set_rate(self, link: LinkSettings) -> None:
        middle = self._local["middle"]
        kind = middle.qdisc(_SHAPED).get("kind", "noqueue")
        if link.rate_mbit is None:
            if kind != "noqueue":
                middle.run(["tc", "qdisc", "del", "dev", _SHAPED, "root"])
            kind = middle.qdisc(_SHAPED).get("kind", "noqueue")
            if kind != "noqueue":
                raise TestbedError(f"middle: {_SHAPED} still has the queueing discipline {kind}")
            return
        done = middle.run(["tc", "qdisc", "replace", "dev", _SHAPED, "root", *token_bucket(link)], check=False)
        if done.returncode != 0:
            reason = "kernel has no tbf" if "kind is unknown" in done.stderr else done.stderr.strip()
            raise TestbedError(
                f"middle: cannot limit the rate to {link.rate_mbit:g} Mbit/s: {reason}; set rate_mbit to null"
            )
        verify_token_bucket("middle", _SHAPED, link, middle.qdisc(_SHAPED))

    def _change_rate(self, link: LinkSettings) -> None:
        self._local["middle"].run(["tc", "qdisc", "change", "dev", _SHAPED, "root", *token_bucket(link)])

    def _set_qdisc(self, name: str | None) -> None:
        """Give the server's interface a queueing discipline, or that which the system gives it."""
        server = self._local["server"]
        interface = server.interface
        if server.qdisc(interface).get("kind") in ("fq", "prio"):
            server.run(["tc", "qdisc", "del", "dev", interface, "root"])
        if name is None:
            return
        words = at_server(name)
        place = words.index("child") if "child" in words else len(words)
        server.run(["tc", "qdisc", "add", "dev", interface, "root", "handle", "1:", *words[:place]])
        if inner := words[place + 1 :]:
            server.run(["tc", "qdisc", "add", "dev", interface, "parent", "1:1", *inner])
        verify_at_server("server", interface, name, server.run(["tc", "-j", "qdisc", "show", "dev", interface]).stdout)

    def _set_congestion_control(self, name: str) -> None:
        setting = "net.ipv4.tcp_congestion_control"
        path = sysctl_path(setting)
        hosts = [self._local["client"], self._local["server"]]
        available = hosts[0].read(sysctl_path("net.ipv4.tcp_available_congestion_control")).split()
        if name not in available:
            raise TestbedError(
                f"kernel has no TCP congestion control {name} (it has {', '.join(available)}); try: modprobe tcp_{name}"
            )
        try:
            for host in hosts:
                host.write(path, name)
        except PermissionError:
            # A namespace may only choose what the machine allows to unprivileged users. The list is
            # read when the choice is made and not afterwards, so it is widened for that moment
            # only.
            with self._signals.held(), self._allowed(name):
                for host in hosts:
                    host.write(path, name)
        for host in hosts:
            host.verify(setting, name)

    @contextmanager
    def _allowed(self, name: str) -> Iterator[None]:
        file = Path(_ALLOWED_CONGESTION_CONTROL)
        with host_settings_lock(self._state_path.parent):
            before = file.read_text().strip()
            setting = HostSetting(str(file), before, f"{before} {name}")
            self._state.host_settings.append(setting)
            self._state.write(self._state_path)
            try:
                file.write_text(setting.changed_to)
                yield
            finally:
                setting.restore()
                self._state.host_settings.remove(setting)
                self._state.write(self._state_path)

    def probe_path(self, *, udp_segment: int | None, congestion_control: str | None = None) -> bool:
        """Send over TCP and UDP from the server to the client and verify how.

        ``False`` if the kernel refuses UDP GSO on this link; :class:`TestbedError` if anything else
        goes wrong.
        """
        client, server = self._local["client"], self._local["server"]
        listener: socket.socket = server.call(lambda: socket.create_server((str(server.address), 0), backlog=1))
        with listener:
            listener.settimeout(_PROBE_TIMEOUT_S)
            try:
                near: socket.socket = client.call(
                    lambda: socket.create_connection(listener.getsockname(), _PROBE_TIMEOUT_S)
                )
                with near:
                    far, _ = listener.accept()
                    with far:
                        used = {_congestion_control(near), _congestion_control(far)}
            except OSError as error:
                raise TestbedError(f"testbed {self.name}: no TCP connection from client to server: {error}") from error
        if congestion_control is not None and used != {congestion_control}:
            raise TestbedError(
                f"testbed {self.name}: TCP uses {', '.join(sorted(used))} after {congestion_control} was set"
            )
        sender: socket.socket = server.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receiver: socket.socket = client.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        size = udp_segment or 1200
        with sender, receiver:
            receiver.bind((str(client.address), 0))
            receiver.settimeout(_PROBE_TIMEOUT_S)
            try:
                if udp_segment is not None:
                    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
                    try:
                        sender.sendto(bytes(3 * size), receiver.getsockname())
                    except OSError as error:
                        if error.errno == errno.EIO:
                            return False
                        raise
                else:
                    sender.sendto(bytes(size), receiver.getsockname())
                sizes = [len(receiver.recv(65536)) for _ in range(3 if udp_segment else 1)]
            except OSError as error:
                raise TestbedError(f"testbed {self.name}: UDP from server to client fails: {error}") from error
        if set(sizes) != {size}:
            raise TestbedError(f"testbed {self.name}: datagrams of {size} bytes arrive with {sizes} bytes")
        return True

    # -- observation

    def facts(self) -> dict[str, Any]:
        if self._tools is None:
            options = {"ip": "-V", "tc": "-V", "ethtool": "--version"}
            if not isinstance(self.capture_tool, Command):
                options[self.capture_tool.name] = "--version"
            self._tools = {
                tool: (done.stdout or done.stderr).strip().partition("\n")[0]
                for tool, option in options.items()
                for done in [self._tool(tool, option)]
            }
        return {
            "name": self.name,
            "kind": self.kind,
            **machine_facts.machine(),
            "endpoint_user": {role: self._local[role].confinement() for role in _ENDS},
            "tools": self._tools,
            "link": self._link_facts(
                burst_bytes=burst_bytes(self._link) if self._link is not None and self._link.rate_mbit else None,
                checksums_valid_in_captures=self._checksums_in_captures,
                delay=self._delay.description if self._delay is not None and self._delayed else None,
            ),
            "hosts": {role: self._host_facts(host) for role, host in self._local.items()},
        }

    @staticmethod
    def _host_facts(host: LocalHost) -> dict[str, Any]:
        rows = {row["ifname"]: row for row in host.links()}
        for name in _INTERFACES[host.name]:
            if missing := [key for key in ("mtu", "address", "stats64") if key not in rows.get(name, {})]:
                lacks = f"prints no {missing[0]} of {name}"
                raise TestbedError(f"{host.name}: ip -s -j link show: {lacks}; install a newer iproute2")
        return {
            "address": host.address,
            "interfaces": {
                name: {
                    "mtu": rows[name]["mtu"],
                    "mac": rows[name]["address"],
                    "offloads": host.offloads(name),
                    "qdisc": host.qdisc(name),
                    "statistics": rows[name]["stats64"],
                }
                for name in _INTERFACES[host.name]
            },
            "settings": {name: " ".join(host.read(sysctl_path(name)).split()) for name in _RECORDED_SETTINGS},
        }

    def counters(self) -> dict[str, float]:
        values: dict[str, float] = {"time_s": time.monotonic()}
        for role, host in self._local.items():
            values |= parse.interface_counters(role, _INTERFACES[role], host.read_again("/proc/net/dev"))
            if role != "middle":
                snmp, extended = host.read_again("/proc/net/snmp"), host.read_again("/proc/net/netstat")
                values |= parse.protocol_counters(role, snmp, extended, host.statistics())
        shaped = self._link is not None and self._link.rate_mbit is not None
        # Without a rate limit the port has no queue and nothing to drop.
        values["link.dropped"] = dropped(self._local["middle"].qdisc(_SHAPED), "middle") if shaped else 0
        if self._link is not None and self._link.qdisc is not None:
            server = self._local["server"]
            shown = server.run(["tc", "-s", "-j", "qdisc", "show", "dev", server.interface]).stdout
            values["server.qdisc_dropped"] = dropped_at_server(shown, server.name)
        values["link.cpu_s"] = self._delay.cpu_seconds() if self._delay is not None else 0.0
        values |= {"link.lost_to_client": 0, "link.lost_to_server": 0}
        if self.link_loss is not None:
            values |= self.link_loss.counters()
        if self.link_reorder is not None:
            values |= self.link_reorder.counters()
        values |= parse.machine_counters(
            "machine",
            Path("/proc/stat").read_text(),
            Path("/proc/net/softnet_stat").read_text(),
            {name: machine_facts.read_optional(f"/proc/pressure/{name}") for name in parse.PRESSURES},
        )
        for minutes, load in zip((1, 5, 15), os.getloadavg(), strict=True):
            values[f"machine.load_{minutes}m"] = load
        values["machine.clock_s"] = time.time() - time.monotonic()
        return values

    def disturbances(self, delta: Mapping[str, float]) -> list[str]:
        # captures are stamped by it, what programs tell is not
        step = delta.get("machine.clock_s", 0.0)
        return [f"the clock was set, by {step:+.3f} s"] if abs(step) > CLOCK_STEP_S else []

    sample_s = 0.02

    def sent_by_server(self) -> int | None:
        server = self._local["server"]
        return parse.parse_devices(server.read_again("/proc/net/dev"))[server.interface]["tx_bytes"]

    @contextmanager
    def capture(
        self,
        path: Path,
        *,
        snaplen: int = 128,
        count: int | None = None,
        filter: str = "",  # noqa: A002
    ) -> Iterator[Capture]:
        middle = self._local["middle"]
        sent = self._sent(count, filter)
        with capturing(
            middle,
            [middle.interface],
            self.capture_tool,
            path,
            snaplen=snaplen,
            count=count,
            expression=filter,
            sent=sent,
        ) as capture:
            yield capture

    def _frames_sent(self) -> float:
        # both act where frames arrive in the middle: those of the client are lost, or held, before the tap
        missing = 0 if self.link_loss is None else self.link_loss.counters()["link.lost_to_server"]
        waiting = 0 if self.link_reorder is None else self.link_reorder.waiting("server")
        return super()._frames_sent() - missing - waiting


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    """The texts of a list that ip(8) tells of an interface."""
    value = row.get(name)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _objects(row: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of such a list."""
    value = row.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _congestion_control(connection: socket.socket) -> str:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()
