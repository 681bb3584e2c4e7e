"""The testbed of two hosts joined by a link, reached over SSH from a controller.

::

    controller ---- management network ---- client, server
    client  interface ======== measured link ======== interface  server

The tap is the server's own interface: captures show its frames as they are handed to it. What the hosts have, addresses
and routes, is checked, never changed; what the configuration names and the link needs is changed by the agent on the
host (:mod:`.agent`), and put back. Before anything is changed it is recorded, with its value before, in two places: by
the agent on the host, and by the controller in `$XDG_STATE_HOME/quicbed/` (`~/.local/state/quicbed/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import time
import uuid
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from quicbed.config import SshHost, cpus_of
from quicbed.config import Testbed as Settings

from . import counters as parse
from .agent import AgentError, shown, start_ticks, tree, tree_digest, write_durably
from .base import (
    PACKAGES,
    Capture,
    Completed,
    Exit,
    Host,
    HostLostError,
    LinkSettings,
    Process,
    Role,
    TestbedError,
)
from .capture import read_counts, tcpdump_arguments
from .deploy import libc_problem, march_problem
from .facts import host_id
from .features import Feature
from .lifecycle import Attempts, LockedTestbed
from .shaping import egress, root_qdisc, rtt_problem, tcp_settings, verify_egress
from .ssh import REQUEST_TIMEOUT_S, Connection, Loop, UnreachableError

RECORD_FORMAT = 1
ENDS: tuple[Literal["client"], Literal["server"]] = ("client", "server")
_PIECE = 2**20
_COPY_LIMIT_S = 10 * REQUEST_TIMEOUT_S
"""For what reads or writes a whole directory tree on a host."""
_RECONNECT_S = 60.0
_RETRY_S = 0.5
_CARRIER_TIMEOUT_S = 20.0
_ECHOES = 3
_RTT_ATTEMPTS = 4
_UDP_OVERHEAD = 28  # IPv4 and UDP headers
_CAPTURE_TIMEOUT_S = 20.0
_FREE_BYTES = 200 * 2**20
_OPTIONAL = ("perf", "iperf3")
"""Programs that some experiments need."""
# Intel's count since boot; other processors have no such file.
_THROTTLED = "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
_CLOCK_READINGS = 3
_CLOCK_STEP_S = 0.1
"""More than slewing, at most 500 ppm (adjtimex(2)), changes a clock by during a run of minutes."""

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
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TestbedError(f"{directory}: {error.strerror}; set XDG_STATE_HOME to a directory to write to") from None
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
            write_durably(self.path, json.dumps({"format": RECORD_FORMAT, "hosts": self.hosts}, indent=1) + "\n")
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


class RemoteProcess(Process):
    """A program started by the agent of a host."""

    def __init__(self, host: RemoteHost, pid: int) -> None:
        self._host = host
        self._connection = host.connection
        self.pid = pid
        self._exit: Exit | None = None

    def _ask(self, timeout: float) -> Exit | None:
        if self._exit is None and self._connection is not self._host.connection:
            raise HostLostError(f"{self._host.where}: process {self.pid} ended with the connection that was lost")
        if self._exit is None:
            limit = timeout + REQUEST_TIMEOUT_S
            found = self._host.request("wait", pid=self.pid, timeout=max(0.0, timeout), time_limit=limit)
            self._exit = None if found is None else Exit(**found)
        return self._exit

    def poll(self) -> Exit | None:
        return self._ask(0)

    def wait(self, timeout: float) -> Exit:
        done = self._ask(timeout)
        if done is None:
            raise TimeoutError(f"process {self.pid} still running after {timeout:g} s")
        return done

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if it has ended or the connection has, which ends it."""
        if self._exit is None and self._connection is self._host.connection:
            with contextlib.suppress(HostLostError):
                self._host.request("signal", pid=self.pid, number=int(number))

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def sample_run_delay(self) -> float | None:
        delay: float | None = self._host.request("run_delay", pid=self.pid)
        return delay

    def sample_cpu(self) -> float | None:
        if self._exit is not None:
            return None
        used: float | None = self._host.request("cpu_time", pid=self.pid)
        return used


class RemoteHost(Host):
    """A host reached over SSH."""

    def __init__(self, name: Role, settings: SshHost, loop: Loop, config: Sequence[str] | None) -> None:
        self.name = name
        self.settings = settings
        self.address = settings.ip
        self.interface = ""
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
        self._shapes = self._loses = False

    @property
    def _is_limited(self) -> bool:
        """Whether the rate of the link is limited where this host sends."""
        return self.name == "server"

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
        self.hello = await self.connection.request("hello", optional=list(_OPTIONAL))
        offsets = []
        for _ in range(_CLOCK_READINGS):
            begin = time.time()
            there = await self.connection.request("ping")
            end = time.time()
            offsets.append((end - begin, there - (begin + end) / 2))
        # the quickest answer tells best, to half of its time
        self.clock_offset_s = min(offsets)[1]
        self._workspaces.clear()
        self._abilities = None

    async def close(self) -> None:
        """End the connection; the agent puts everything back that it has not yet."""
        if self.connection is not None:
            await self.connection.close()
            self.connection = None

    def ask(self, op: str, **arguments: Any) -> Coroutine[Any, Any, Any]:
        """A request to the agent, to be awaited in the loop."""
        if self.connection is None:
            raise HostLostError(f"{self.where}: is not connected")
        return self.connection.request(op, **arguments)

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
        done = Completed(tuple(argv), found["returncode"], found["stdout"], found["stderr"])
        if check and done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = lines[-1] if lines else "no message"
            raise TestbedError(f"{self.where}: {' '.join(argv)}: exit status {done.returncode}: {reason}")
        return done

    def read(self, path: str) -> str:
        content: bytes = self.request("read", path=path)
        return content.decode(errors="replace")

    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> RemoteProcess:
        pid = self.request(
            "spawn",
            argv=list(argv),
            stdout=str(stdout),
            stderr=str(stderr),
            env=dict(env or {}),
            cwd=None if cwd is None else str(cwd),
            cpus=cpus_of(self.settings.cpus) if self.settings.cpus else None,
        )
        return RemoteProcess(self, pid)

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
        files = await self.ask("list", path=str(place))
        await asyncio.gather(*(self.fetch(place / name, directory / name, size) for name, size in files))
        await self.ask("remove", path=str(place))

    def end_programs(self) -> None:
        """End every program of this host and remove the workspaces."""
        self.request("end_programs", time_limit=3 * REQUEST_TIMEOUT_S)
        self._workspaces.clear()

    def forget(self, directory: Path) -> None:
        """Use no workspace any more that was for *directory*."""
        self._workspaces.pop(directory, None)

    async def fetch(self, source: Path, target: Path, size: int) -> None:
        """Copy a file of this host."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for offset in range(0, size, _PIECE):
                file.write(await self.ask("read", path=str(source), offset=offset, size=min(_PIECE, size - offset)))

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
            there: int = self.request("monotonic")
            end = time.monotonic_ns()
            readings.append((end - begin, there - (begin + end) // 2))
        # the quickest answer tells best, to half of its time
        return min(readings)[1]

    def find_interface(self) -> dict[str, Any]:
        """The measured interface as `ip -j addr` shows it; raises TestbedError unless it can carry the link."""
        wanted = self.settings.interface
        rows = json.loads(self.run(["ip", "-j", "addr", "show"]).stdout)
        if wanted.pci is not None:
            listed = self.run(["ls", f"/sys/bus/pci/devices/{wanted.pci}/net"], check=False)
            names = listed.stdout.split()
            row = next((row for row in rows if row["ifname"] in names), None)
        elif wanted.mac is not None:
            row = next((row for row in rows if row.get("address") == wanted.mac), None)
        else:
            row = next((row for row in rows if row["ifname"] == wanted.name), None)
        label = wanted.name or wanted.pci or wanted.mac
        if row is None:
            have = ", ".join(row["ifname"] for row in rows if row["ifname"] != "lo")
            raise TestbedError(f"{self.where}: no interface {label}; it has {have or 'none'}; check `interface`")
        name = str(row["ifname"])
        if "UP" not in row["flags"] or "LOWER_UP" not in row["flags"]:
            raise TestbedError(
                f"{self.where}: interface {name} is down; connect the cable, then: ip link set {name} up"
            )
        if self.settings.ip not in [info.get("local") for info in row["addr_info"]]:
            raise TestbedError(
                f"{self.where}: interface {name} does not have the address {self.settings.ip}; check `ip`, or: "
                f"ip addr add {self.settings.ip}/24 dev {name}"
            )
        self.interface = name
        found: dict[str, Any] = row
        return found

    def check(self, peer: str) -> None:
        """Raise TestbedError unless the host can be used; changes nothing."""
        if self.hello["uid"] != 0:
            raise TestbedError(f"{self.where}: the agent is not root; log in as root or set `sudo: true`")
        if missing := self.hello["missing"]:
            packages = " ".join(sorted({PACKAGES[name] for name in missing}))
            raise TestbedError(
                f"{self.where}: missing: {', '.join(missing)}; install there with: apt-get install {packages}"
            )
        if self.hello["architecture"] != platform.machine():
            raise TestbedError(
                f"{self.where}: has processors of kind {self.hello['architecture']}, and what is built here is for "
                f"{platform.machine()}; use a controller of the same kind"
            )
        if self.hello["disk_free_bytes"] < _FREE_BYTES:
            raise TestbedError(
                f"{self.where}: {self.hello['disk_free_bytes'] >> 20} MiB free in {self.settings.directory}, "
                f"{_FREE_BYTES >> 20} MiB are needed; make room"
            )
        allowed = set(self.hello["cpus_allowed"])
        for key, cpus in (("cpus", self.settings.cpus), ("irq_cpus", self.settings.irq_cpus)):
            if cpus is not None and (unknown := set(cpus_of(cpus)) - allowed):
                raise TestbedError(f"{self.where}: {key}: the host has no processor {min(unknown)}")
        self.find_interface()
        route = json.loads(self.run(["ip", "-j", "route", "get", peer, "from", self.settings.ip]).stdout)
        if not route or route[0].get("dev") != self.interface:
            by = route[0].get("dev") if route else "nothing"
            raise TestbedError(
                f"{self.where}: the way to {peer} is through {by}, not through {self.interface}; check `ip` of both "
                "hosts and the routes"
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
            "kernel": Feature(True, f"{hello['kernel']}, {hello['libc'] or 'no GNU C library'}"),
            "processors": Feature(True, f"{hello['cpus']} x {hello['cpu_model']}"),
            "governor": Feature(True, hello["cpu_governor"] or "none"),
            "congestion": Feature(True, ", ".join(hello["congestion_controls"]) or "none"),
            "hugepages": Feature(True, str(hello["hugepages"])),
            "delay": Feature(True, _ability(self.lacks("delay"))),
            "loss": Feature(True, _ability(self.lacks("loss"))),
            **{name: Feature(True, self._installed(name)) for name in _OPTIONAL},
            "free disk": Feature(True, f"{hello['disk_free_bytes'] >> 20} MiB in {self.settings.directory}"),
            "clock": Feature(True, f"{hello['clock_source']}, {self.clock_offset_s:+.3f} s from the controller's"),
        }
        if self.interface:
            interface = self.facts()["interface"]
            offloads = [name for name in (*_SEGMENTATION, *_MERGING) if interface["offloads"].get(name)]
            rows["interface"] = Feature(
                True,
                f"{self.interface}, {interface['link'].get('Speed', 'speed unknown')}, MTU {interface['mtu']}, "
                f"driver {interface['driver'].get('driver', 'unknown')}",
            )
            rows["offloads"] = Feature(True, ", ".join(offloads) or "none")
        return rows

    def _installed(self, program: str) -> str:
        if program in self.hello["optional"]:
            return "yes"
        return _ability(f"{program} is missing; install there with: apt-get install {PACKAGES[program]}")

    def lacks(self, ability: str) -> str:
        """Why the host's kernel cannot do something, `delay` or `loss`; empty if it can."""
        if self._abilities is None:
            self._abilities = self.request("abilities")
        return self._abilities[ability]

    def lose(self, percent: float, seed: int = 0) -> None:
        """Lose this share of the frames of each direction, beginning with the first numbers of *seed*."""
        self.request("lose", interface=self.interface, percent=percent, seed=seed)

    def standing_changes(self) -> list[dict[str, Any]]:
        """What the configuration changes for as long as the testbed is in use."""
        settings = self.settings
        changes = [{"kind": "sysctl", "name": name, "value": str(value)} for name, value in settings.sysctl.items()]
        changes += [
            {"kind": "ring", "name": f"{self.interface} {which}", "value": str(entries)}
            for which, entries in settings.rings.items()
        ]
        if settings.governor is not None:
            for cpu in range(self.hello["cpus"]):
                changes.append({"kind": "governor", "name": f"cpu{cpu}", "value": settings.governor})
        if settings.irq_cpus is not None:
            listed = self.run(["ls", f"/sys/class/net/{self.interface}/device/msi_irqs"], check=False)
            if listed.returncode != 0:
                raise TestbedError(
                    f"{self.where}: irq_cpus: {self.interface} does not tell its interrupts; leave out `irq_cpus`"
                )
            changes += [{"kind": "irq", "name": number, "value": settings.irq_cpus} for number in listed.stdout.split()]
        if settings.names:
            lines = "\n".join(f"{address} {name}" for name, address in settings.names.items())
            changes.append({"kind": "hosts", "name": "/etc/hosts", "value": lines})
        return changes

    def link_changes(self, link: LinkSettings) -> list[dict[str, Any]]:
        """What a link needs on this host."""
        features: dict[str, dict[str, bool]] = self.request("features", interface=self.interface)
        offloads = link.segmentation
        wanted = dict.fromkeys(_SEGMENTATION, offloads == "default")
        if offloads == "gso-gro":
            wanted |= dict.fromkeys(_NEEDED, True)
        if offloads != "default":
            wanted |= dict.fromkeys(_MERGING, False)
        changes: list[dict[str, Any]] = []
        for name, on in wanted.items():
            feature = features.get(name)
            if feature is None or (feature["fixed"] and feature["active"] == on):
                continue
            if feature["fixed"]:
                if name in _NEEDED or not on:
                    raise TestbedError(
                        f"{self.where}: {name} of {self.interface} cannot be switched {'on' if on else 'off'}"
                    )
                continue  # segmentation in software takes its place
            changes.append({"kind": "feature", "name": f"{self.interface} {name}", "value": "on" if on else "off"})
        changes.append({"kind": "mtu", "name": self.interface, "value": str(link.mtu)})
        # at the client nothing is touched before something is asked for
        self._shapes |= self.name == "server" or link.rtt_ms > 0
        if self._shapes:
            words = egress(link, limited=self._is_limited)
            changes.append({"kind": "qdisc", "name": self.interface, "value": words})
        self._loses |= self.name == "client" and link.loss_percent > 0
        if self._loses:
            words = ["loss"] if link.loss_percent else ["default"]
            changes.append({"kind": "clsact", "name": self.interface, "value": words})
        sysctl = {"net.ipv4.tcp_congestion_control": link.congestion_control, **tcp_settings(link)}
        return changes + [{"kind": "sysctl", "name": name, "value": value} for name, value in sysctl.items()]

    def facts(self) -> dict[str, Any]:
        """What the host and its interface are."""
        names = [*_RECORDED, *self.settings.record]
        values = self.request("read_settings", settings=[["sysctl", name] for name in names])
        features: dict[str, dict[str, bool]] = self.request("features", interface=self.interface)
        row = self.find_interface()
        hello = {key: value for key, value in self.hello.items() if key not in ("pid", "missing", "cpuinfo")}
        return {
            **hello,
            "address": self.address,
            "clock_offset_s": self.clock_offset_s,
            "interface": {
                "name": self.interface,
                "mac": row.get("address"),
                "mtu": row["mtu"],
                "offloads": {name: feature["active"] for name, feature in features.items()},
                "qdisc": self.qdisc(),
                "link": _fields(self.run(["ethtool", self.interface], check=False).stdout, ("Speed", "Duplex")),
                "driver": _fields(
                    self.run(["ethtool", "-i", self.interface], check=False).stdout,
                    ("driver", "version", "firmware-version", "bus-info"),
                ),
            },
            "settings": dict(zip(names, values, strict=True)),
        }

    def verify_egress(self, link: LinkSettings) -> None:
        """TestbedError unless what the host sends is delayed and limited as the link says."""
        shown = self.run(["tc", "-j", "qdisc", "show", "dev", self.interface]).stdout
        verify_egress(self.where, self.interface, link, shown, limited=self._is_limited)

    def qdisc(self) -> dict[str, Any]:
        """The root queueing discipline of the interface."""
        return root_qdisc(self.run(["tc", "-s", "-j", "qdisc", "show", "dev", self.interface]).stdout)


def _ability(lack: str) -> str:
    """What a host can do or why not, for people."""
    return f"unsupported: {lack}" if lack else "yes"


def _fields(text: str, names: Sequence[str]) -> dict[str, str]:
    """Fields of what ethtool prints."""
    rows = (line.strip().partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in rows if name in names}


class SshTestbed(LockedTestbed):
    """Client and server as hosts reached over SSH."""

    kind = "ssh"

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__(name)
        self.settings = settings
        self.session = uuid.uuid4().hex
        self._loop: Loop | None = None
        self._remote: dict[Role, RemoteHost] = {}
        self.hosts = {}
        self._record: Record | None = None
        self._reserved = False

    @property
    def tap(self) -> Host:
        return self.hosts["server"]

    # -- set-up and removal

    def _lock_directory(self) -> Path:
        return state_directory()

    def _set_up(self, directory: Path) -> None:
        self._record = Record(directory / f"{self.name}.json")
        self._record.load()
        self._check_record()
        self._reserve()
        self.connect()
        for host in self._remote.values():
            host.check(self.settings.hosts["server" if host.name == "client" else "client"].ip)
        with self._signals.held():
            for host in self._remote.values():
                self._take(host)
        self._change({host.name: host.standing_changes() for host in self._remote.values()})
        self._probe(None)

    def inspect(self) -> dict[str, dict[str, Feature]]:
        """What each host has and is; nothing changes. Raises TestbedError if one is not reached."""
        self.connect()
        try:
            found = {}
            for host in self._remote.values():
                peer = self.settings.hosts["server" if host.name == "client" else "client"].ip
                found[host.where] = host.inspect(peer)
            return found
        finally:
            self.disconnect()

    def _check_record(self) -> None:
        """Raise TestbedError if a host was left changed that the configuration does not name any more."""
        assert self._record is not None  # noqa: S101 (made before)
        known = {host.address + (f":{host.port}" if host.port else "") for host in self.settings.hosts.values()}
        for key, left in self._record.hosts.items():
            if key not in known:
                raise TestbedError(
                    f"testbed {self.name}: {key} was left changed and is not among its hosts any more; name it again "
                    f"and start once, or put it back there by hand (python3 {left['directory']}/agent/*.py restore "
                    f"{left['directory']}) and remove {self._record.path}"
                )

    def connect(self) -> None:
        """Connect to the hosts, which may still be booting if there are commands that boot them."""
        self._loop = Loop(f"quicbed-{self.name}")
        self._remote = {
            role: RemoteHost(role, self.settings.hosts[role], self._loop, self.settings.ssh_config) for role in ENDS
        }
        self.hosts = dict(self._remote)
        self._connect(self._remote.values(), self.settings.commands.timeout_s if self.settings.commands.boot else 0)

    def _connect(self, hosts: Collection[RemoteHost], patience_s: float) -> None:
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
            self._loop.together([host.close() for host in self._remote.values()])
        finally:
            self._loop.close()
            self._loop = None

    def _command(self, argv: Sequence[str]) -> None:
        try:
            done = subprocess.run(
                list(argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.settings.commands.timeout_s,
                check=False,
            )
        except OSError as error:
            raise TestbedError(f"testbed {self.name}: command {argv[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise TestbedError(
                f"testbed {self.name}: command {' '.join(argv)}: still running after "
                f"{self.settings.commands.timeout_s:g} s; raise commands.timeout_s if it needs longer"
            ) from None
        if done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise TestbedError(
                f"testbed {self.name}: command {' '.join(argv)}: {lines[-1] if lines else 'no message'} (exit status "
                f"{done.returncode})"
            )

    def _reserve(self) -> None:
        for argv in self.settings.commands.reserve:
            self._command(argv)
            self._reserved = True
        # what was not reserved is not released: it may be somebody else's
        self._reserved = True
        for argv in self.settings.commands.boot:
            self._command(argv)

    def _take(self, host: RemoteHost) -> None:
        """Take a host for this controller, and clean up after whoever had it before."""
        holder = {
            "session": self.session,
            "testbed": self.name,
            "who": f"{platform.node()}, process {os.getpid()}",
            "controller": host_id(),
            "pid": os.getpid(),
            "pid_ticks": start_ticks(os.getpid()),
        }
        limit = 3 * REQUEST_TIMEOUT_S
        found = host.request("acquire", holder=holder, time_limit=limit)
        if found is not None and self._is_gone(found):
            found = host.request("acquire", holder=holder, replace=found, time_limit=limit)
        if found is not None:
            raise TestbedError(
                f"{host.where}: is in use by {found.get('who', 'another program')}; wait for it to end or stop it"
            )
        host.taken = True
        host.request("recover", time_limit=limit)
        assert self._record is not None  # noqa: S101 (made before)
        if (known := self._record.hosts.get(host.key)) is not None:
            # usually the agent's journal has done it; it may have been lost with the host's disk
            host.request("restore", entries=known["entries"], boot=known["boot_id"], time_limit=limit)
            del self._record.hosts[host.key]
            self._record.save()

    def _is_gone(self, holder: Mapping[str, Any]) -> bool:
        """Whether the controller that has a host is this one, before it lost the connection, or a dead one."""
        if holder.get("session") == self.session:
            return True
        pid, ticks = holder.get("pid"), holder.get("pid_ticks")
        return holder.get("controller") == host_id() and isinstance(pid, int) and start_ticks(pid) != ticks

    def _put_back(self, attempt: Attempts) -> None:
        if self._loop is not None:
            for host in self._remote.values():
                if host.taken:
                    attempt(partial(self._release, host))
            attempt(self.disconnect)
        if self._reserved:
            for argv in self.settings.commands.release:
                attempt(partial(self._command, argv))
            self._reserved = False

    def _release(self, host: RemoteHost) -> None:
        if host.is_lost:
            self._connect([host], _RECONNECT_S)
            self._take(host)
        host.request("clean_up", time_limit=3 * REQUEST_TIMEOUT_S)
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
        return None

    def recover(self) -> None:
        lost = [host for host in self._remote.values() if host.is_lost]
        if not lost:
            return
        self._link = None
        for host in self._remote.values():
            if host not in lost:
                host.end_programs()
        self._connect(lost, _RECONNECT_S)
        with self._signals.held():
            for host in lost:
                self._take(host)
        self._change({host.name: host.standing_changes() for host in lost})

    def _set_link(self, link: LinkSettings) -> None:
        reason = self.unsupported(link)
        if reason is not None:
            raise TestbedError(f"testbed {self.name}: {reason}")
        self._change({host.name: host.link_changes(link) for host in self._remote.values()})
        for host in self._remote.values():
            host.verify_egress(link)
        client = self._remote["client"]
        if link.loss_percent:
            client.lose(0)  # of what is sent below
        self._measured_rtt_ms = self._probe(link.mtu, link.rtt_ms)
        if link.loss_percent:
            client.lose(link.loss_percent)

    def seed_losses(self, seed: int) -> None:
        if self._link is not None and self._link.loss_percent:
            self._remote["client"].lose(self._link.loss_percent, seed)

    def _change(self, changes: Mapping[Role, Sequence[Mapping[str, Any]]]) -> None:
        """Record what is going to change, then change it, on all hosts at the same time."""
        assert self._record is not None  # noqa: S101 (made before)
        loop = self._background
        hosts = [self._remote[role] for role in changes]
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
        """Return when both interfaces have a carrier, which many lose for seconds as their MTU or rings change."""
        hosts = list(self._remote.values())
        deadline = time.monotonic() + _CARRIER_TIMEOUT_S
        while True:
            answers = self._background.together(
                host.ask("read_all", paths=[f"/sys/class/net/{host.interface}/carrier"]) for host in hosts
            )
            down = [host for host, answer in zip(hosts, answers, strict=True) if answer != ["1"]]
            if not down:
                return
            if time.monotonic() > deadline:
                raise TestbedError(
                    f"{down[0].where}: {down[0].interface} has no carrier for {_CARRIER_TIMEOUT_S:g} s; check the cable"
                )
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
        hosts = {role: host.facts() for role, host in self._remote.items()}
        both = [hosts[role] for role in ENDS]
        return {
            "name": self.name,
            "kind": self.kind,
            "host_id": hashlib.sha256(" ".join(host["host_id"] for host in both).encode()).hexdigest()[:12],
            "cpu_model": _joined(host["cpu_model"] for host in both),
            "cpus": min(host["cpus"] for host in both),
            "kernel": _joined(host["kernel"] for host in both),
            # the server's interface completes checksums after the tap
            "link": self._link_facts(
                checksums_valid_in_captures=False,
                delay="netem" if self._link is not None and self._link.rtt_ms else None,
            ),
            "hosts": hosts,
        }

    def counters(self) -> dict[str, float]:
        files = ("net/dev", "net/snmp", "net/netstat", "net/softnet_stat", "stat", "loadavg")
        pressures = {name: f"/proc/pressure/{name}" for name in parse.PRESSURES}
        common = [*(f"/proc/{name}" for name in files), *pressures.values(), _THROTTLED]
        hosts = list(self._remote.values())
        carriers = [f"/sys/class/net/{host.interface}/carrier_changes" for host in hosts]
        values: dict[str, float] = {"time_s": time.monotonic(), "machine.load_1m": 0.0}
        to_client, to_server = 0, 0
        if self._link is not None and self._link.loss_percent:
            client = self._remote["client"]
            to_client, to_server = client.request("lost", interface=client.interface)
        values |= {"link.lost_to_client": to_client, "link.lost_to_server": to_server}
        answers = self._background.together(
            host.ask("counters", paths=[*common, carrier], interface=host.interface)
            for host, carrier in zip(hosts, carriers, strict=True)
        )
        for host, carrier, answer in zip(hosts, carriers, answers, strict=True):
            content = dict(zip([*common, carrier], answer["texts"], strict=True))
            for path in (*common[: len(files)], carrier):
                if content[path] is None:
                    raise TestbedError(f"{host.where}: cannot read {path}")
            role = host.name
            values[f"{role}.{host.interface}.carrier_changes"] = int(content[carrier])
            values[f"{role}.machine.clock_s"] = answer["clock_s"]
            if content[_THROTTLED] is not None:
                values[f"{role}.machine.throttled"] = int(content[_THROTTLED])
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

    def disturbances(self, delta: Mapping[str, float]) -> list[str]:
        found = []
        for host in self._remote.values():
            if delta.get(f"{host.name}.{host.interface}.carrier_changes"):
                found.append(f"{host.where}: {host.interface} lost its carrier")
            if delta.get(f"{host.name}.machine.throttled"):
                found.append(f"{host.where}: the processor was too hot and ran slower")
            step = delta.get(f"{host.name}.machine.clock_s", 0.0)
            if abs(step) > _CLOCK_STEP_S:
                found.append(f"{host.where}: the clock was set, by {step:+.3f} s")
        return found

    @contextlib.contextmanager
    def capture(
        self,
        path: Path,
        *,
        snaplen: int = 128,
        count: int | None = None,
        filter: str = "",  # noqa: A002
    ) -> Iterator[Capture]:
        host = self._remote["server"]
        place = host.workspace(path)
        remote = place / "capture.pcap"
        messages = place / "messages"
        argv = tcpdump_arguments(host.interface, remote, snaplen=snaplen, count=count, expression=filter)
        process = host.spawn(argv, stdout=place / "out", stderr=messages)
        capture = Capture(path)
        running = _RemoteTcpdump(host, process, messages, capture)
        try:
            running.await_begin()
            yield capture
            running.stop()
            size = dict(host.request("list", path=str(place)))["capture.pcap"]
            self._background.call(host.fetch(remote, path, size))
            host.request("remove", path=str(place))
        except BaseException:
            process.kill()
            raise
        finally:
            host.forget(path)


class _RemoteTcpdump:
    """A tcpdump at work on a host."""

    def __init__(self, host: RemoteHost, process: RemoteProcess, messages: Path, capture: Capture) -> None:
        self._host = host
        self._process = process
        self._messages = messages
        self.capture = capture

    def _error(self, what: str) -> TestbedError:
        lines = self._host.read(str(self._messages)).strip().splitlines()
        return TestbedError(f"{self._host.where}: tcpdump {what}: {lines[-1] if lines else 'no message'}")

    def await_begin(self) -> None:
        """Return when frames are being captured."""
        try:
            if self._host.await_text(self._messages, "listening on", self._process, _CAPTURE_TIMEOUT_S):
                return
        except TimeoutError:
            pass
        raise self._error("does not begin to capture")

    def _answers(self) -> int:
        """Take the counts that tcpdump has told; returns how often it has."""
        return read_counts(self._host.read(str(self._messages)), self.capture)

    def stop(self) -> None:
        """End with every frame written: tcpdump drops what the kernel still holds when it is told to end."""
        deadline = time.monotonic() + _CAPTURE_TIMEOUT_S
        while self._process.poll() is None:
            answers = self._answers()
            self._process.signal(signal.SIGUSR1)  # print the counts and go on
            while self._answers() == answers and self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            if self.capture.is_complete:
                break
            if time.monotonic() > deadline:
                raise self._error(f"has not written every frame after {_CAPTURE_TIMEOUT_S:g} s")
        self._process.terminate()
        try:
            status = self._process.wait(_CAPTURE_TIMEOUT_S).returncode
        except TimeoutError:
            raise self._error("does not end") from None
        if status != 0:
            raise self._error(f"ended with status {status}")
        self._answers()
        if self.capture.packets_captured is None:
            raise self._error("did not report what it captured")


def _joined(values: Iterable[str]) -> str:
    """Names of both hosts, once if they are the same."""
    return " / ".join(dict.fromkeys(values))
