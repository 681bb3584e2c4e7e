"""Two hosts with an SSH server each, in network namespaces: a measured link and a management network. For tests.

::

    manage  bridge0 10.114.0.254 ---- mgmt0 10.114.0.1  client  link0 10.115.0.1 ---+
                                 ---- mgmt0 10.114.0.2  server  link0 10.115.0.2 ---+
                                                                mirror0 ------------+
                                 ---- mgmt0 10.114.0.3  tap     tap0 ---------------+

The tap is there once a test has asked for it (:meth:`SshHosts.open_tap`): what passes at the server's end of the link
is copied to it, as a switch with a mirror port would do. A test works in the namespace of the management network
(:meth:`SshHosts.inside`), as a controller does. The hosts share file system, processes and kernel with it; each has its
own directory and hosts file.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from fakehardware import Hardware
from quicbed.config.model import Testbed, parse_model
from quicbed.testbed.namespace import RUN_NETNS, kill_processes, processes, setns

ROLES: tuple[Literal["client"], Literal["server"]] = ("client", "server")
MANAGEMENT = {"client": "10.114.0.1", "server": "10.114.0.2"}
TAP = "10.114.0.3"
ADDRESSES = {**MANAGEMENT, "tap": TAP}
MEASURED = {"client": "10.115.0.1", "server": "10.115.0.2"}
# sshd starts itself again for every connection and needs its whole path; empty if there is none.
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or ""
PATIENCE_S = 20.0
ALLOWED_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")

# Counters and state that changes by itself.
_RESTLESS = ("/nf_conntrack", "/route/flush", "/rt_cache", "/netfilter", "/ns_last_pid", "random", "/base_reachable")


def _tool(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _difference(before: str, now: str) -> list[str]:
    rows = difflib.unified_diff(before.replace(",", "\n").splitlines(), now.replace(",", "\n").splitlines(), n=0)
    return [row for row in rows if not row.startswith(("---", "+++", "@@"))]


class SshHosts:
    """The hosts, their servers and what is needed to reach them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.prefix = f"qbt{os.getpid()}"
        self.namespaces = {name: f"{self.prefix}-{name}" for name in ("manage", *ROLES)}
        self.has_tap = False
        self.key = directory / "key"
        self.known_hosts = directory / "known_hosts"
        self.config = directory / "config"
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.hardware: dict[str, Hardware] = {}
        self.hosts_files = {role: Path("/etc/netns") / self.namespaces[role] / "hosts" for role in ROLES}
        self.allowed: str | None = None

    @staticmethod
    def _add(name: str) -> None:
        _tool("ip", "netns", "add", name)
        for scope in ("all", "default"):
            path = f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"
            subprocess.run(["ip", "netns", "exec", name, "sh", "-c", f"test ! -e {path} || echo 1 > {path}"])

    def _manage(self, role: str) -> None:
        """Join a host to the management network."""
        self._ip("manage", f"link add {role}0 type veth peer name mgmt0 netns {self.namespaces[role]}")
        self._ip("manage", f"link set {role}0 master bridge0 up")
        self._ip(role, f"addr add {ADDRESSES[role]}/24 dev mgmt0")
        self._ip(role, "link set mgmt0 up")

    def _await_links(self) -> None:
        """Return when all links are up: the kernel tells of a carrier a moment after there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while any("DOWN" in _tool("ip", "-n", space, "link") for space in self.namespaces.values()):
            if time.monotonic() > deadline:
                raise RuntimeError("the links do not come up")
            time.sleep(0.02)

    def open(self) -> None:
        # a host sets what it likes; a namespace, even root's, only what the kernel allows everybody
        allowed = ALLOWED_CONGESTION_CONTROL.read_text()
        if "cubic" not in allowed.split():
            ALLOWED_CONGESTION_CONTROL.write_text(f"{allowed.strip()} cubic")
            self.allowed = allowed
        for name in self.namespaces.values():
            self._add(name)
        self._ip("manage", "link add bridge0 type bridge stp_state 0 mcast_snooping 0")
        self._ip("manage", "addr add 10.114.0.254/24 dev bridge0")
        for role in ROLES:
            self._manage(role)
        self._ip("client", f"link add link0 type veth peer name link0 netns {self.namespaces['server']}")
        for role in ROLES:
            self._ip(role, f"addr add {MEASURED[role]}/24 dev link0")
            self._ip(role, "link set link0 up")
        for role in ("manage", *ROLES):
            self._ip(role, "link set lo up")
        self._ip("manage", "link set bridge0 up")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._keygen(self.key)
        for role in ROLES:
            hosts_file = self.hosts_files[role]
            hosts_file.parent.mkdir(parents=True)
            hosts_file.write_text("127.0.0.1 localhost\n# no newline at the end")
            self._keygen(self.directory / f"{role}.hostkey")
            self.start(role)
        self._await_links()
        self.write_known_hosts()
        self._write_client()

    def _write_client(self) -> None:
        """The configuration of who reaches the hosts."""
        self.config.write_text(
            f"Host *\n  UserKnownHostsFile {self.known_hosts}\n  IdentityFile {self.key}\n  User root\n"
            f"Host the-server\n  HostName {MANAGEMENT['server']}\n"
        )

    def open_tap(self) -> None:
        """Have the third host, which gets a copy of every frame from now on."""
        if self.has_tap:
            return
        self.namespaces["tap"] = f"{self.prefix}-tap"
        self._add(self.namespaces["tap"])
        self._manage("tap")
        self._ip("server", f"link add mirror0 type veth peer name tap0 netns {self.namespaces['tap']}")
        for name, command in (
            ("server", "link set mirror0 up"),
            ("tap", "link set tap0 up"),
            ("tap", "link set lo up"),
        ):
            self._ip(name, command)
        _tool("tc", "-n", self.namespaces["server"], "qdisc", "add", "dev", "link0", "clsact")
        for way in ("ingress", "egress"):
            self.mirror(way)
        self._await_links()
        self._keygen(self.directory / "tap.hostkey")
        self.start("tap")
        self.has_tap = True
        self.write_known_hosts()

    def equip(self) -> None:
        """Have rings, governors and interrupts at client and server, until :meth:`strip`."""
        for role in ROLES:
            self.hardware[role] = Hardware(self.directory / f"{role}.hardware")
            self.stop(role)
            self.start(role)

    def strip(self) -> None:
        """Have what the machine has."""
        for role in ROLES:
            del self.hardware[role]
            shutil.rmtree(self.directory / f"{role}.hardware")
            self.stop(role)
            self.start(role)

    def mirror(self, way: str) -> None:
        """Copy to the tap what arrives at the server (`ingress`) or what it sends (`egress`)."""
        words = f"filter add dev link0 {way} protocol all u32 match u32 0 0 action mirred egress mirror dev mirror0"
        _tool("tc", "-n", self.namespaces["server"], *words.split())

    def unmirror(self, way: str) -> None:
        """Copy it no more."""
        _tool("tc", "-n", self.namespaces["server"], "filter", "del", "dev", "link0", way)

    def _ip(self, name: str, command: str) -> None:
        _tool("ip", "-n", self.namespaces[name], *command.split())

    @staticmethod
    def _keygen(path: Path) -> None:
        path.unlink(missing_ok=True)
        _tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path))

    def host_key(self, role: str) -> str:
        """The public host key of a host, as in known_hosts without the name."""
        return (self.directory / f"{role}.hostkey.pub").read_text().strip()

    def write_known_hosts(self) -> None:
        roles = (*ROLES, "tap") if self.has_tap else ROLES
        lines = [f"{ADDRESSES[role]} {self.host_key(role)}" for role in roles]
        self.known_hosts.write_text("\n".join(lines) + "\n")

    def start(self, role: str) -> None:
        """Start a host's SSH server."""
        config = self._write_server(role)
        entering = self.hardware[role].entering() if role in self.hardware else []
        argv = ["ip", "netns", "exec", self.namespaces[role], *entering, SSHD, "-D", "-e", "-f", str(config)]
        with (self.directory / f"{role}.log").open("ab") as log:
            self.servers[role] = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_S
        while f"{ADDRESSES[role]}:22" not in _tool("ip", "netns", "exec", self.namespaces[role], "ss", "-Htln"):
            if time.monotonic() > deadline or self.servers[role].poll() is not None:
                raise RuntimeError((self.directory / f"{role}.log").read_text())
            time.sleep(0.02)

    def _write_server(self, role: str) -> Path:
        """The configuration of a host's SSH server."""
        locked = subprocess.run(["getent", "shadow", "root"], capture_output=True, text=True).stdout
        config = self.directory / f"{role}.sshd"
        config.write_text(
            f"ListenAddress {ADDRESSES[role]}\nHostKey {self.directory}/{role}.hostkey\nPidFile none\n"
            f"AuthorizedKeysFile {self.key}.pub\nStrictModes no\nPermitRootLogin prohibit-password\n"
            f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\nMaxStartups 100\n"
            # without PAM the server refuses an account whose password is locked
            f"UsePAM {'yes' if locked.split(':')[1:2] == ['!'] else 'no'}\n"
        )
        return config

    def stop(self, role: str) -> None:
        """End a host's SSH server; connections stay."""
        server = self.servers.pop(role)
        server.terminate()
        server.wait(PATIENCE_S)

    def close(self) -> None:
        for role in list(self.servers):
            self.stop(role)
        for role, name in self.namespaces.items():
            path = RUN_NETNS / name
            if path.exists():
                if role != "manage":
                    kill_processes(path)
                _tool("ip", "netns", "delete", name)
        for file in self.hosts_files.values():
            shutil.rmtree(file.parent, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()
        if self.allowed is not None:
            ALLOWED_CONGESTION_CONTROL.write_text(self.allowed)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread, and threads it starts, are in the management network."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        setns(RUN_NETNS / self.namespaces["manage"])
        try:
            yield
        finally:
            setns(Path(f"/proc/self/fd/{before}"))
            os.close(before)

    def data(self, **changes: Any) -> dict[str, Any]:
        """Configuration of the testbed; *changes* are keys of both hosts."""
        hosts = {
            role: {
                "address": MANAGEMENT[role],
                "interface": {"name": "link0"},
                "ip": MEASURED[role],
                "directory": str(self.directory / f"{role}-host"),
                **changes,
            }
            for role in ROLES
        }
        return {"kind": "ssh", "hosts": hosts, "ssh_config": [str(self.config)]}

    def tap(self, **changes: Any) -> dict[str, Any]:
        """Configuration of the tap."""
        return {
            "address": TAP,
            "interfaces": [{"name": "tap0"}],
            "directory": str(self.directory / "tap-host"),
            **changes,
        }

    def settings(self, **changes: Any) -> Testbed:
        return parse_model(Testbed, self.data(**changes), "testbed")

    # -- what the hosts are like

    def state(self) -> dict[str, str]:
        """Every setting of the hosts that could have been changed, and the programs that run there."""
        found: dict[str, str] = {}
        interfaces = dict.fromkeys(ROLES, "link0") | ({"tap": "tap0"} if self.has_tap else {})
        for role, interface in interfaces.items():
            for what, argv in {
                "links": ["ip", "-j", "-d", "addr", "show"],
                "queues": ["tc", "-j", "qdisc", "show"],
                "features": ["ethtool", "-k", interface],
                "hosts": ["cat", "/etc/hosts"],
                "sysctl": ["sh", "-c", "grep -rs . /proc/sys/net || true"],
            }.items():
                text = _tool("ip", "netns", "exec", self.namespaces[role], *argv)
                if what == "sysctl":
                    rows = [row for row in text.splitlines() if not any(word in row for word in _RESTLESS)]
                    text = "\n".join(sorted(rows))
                found[f"{role}.{what}"] = text
            found[f"{role}.programs"] = "\n".join(self.programs(role))
        for role, hardware in self.hardware.items():
            found[f"{role}.hardware"] = "\n".join(f"{name} {value}" for name, value in hardware.state().items())
        return found

    def programs(self, role: str) -> list[str]:
        """Command lines of what runs on a host, but for its SSH server and what serves connections."""
        found = []
        for pid in processes(RUN_NETNS / self.namespaces[role]):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if words and not words.startswith((SSHD, "sshd:")):
                    found.append(words)
        return sorted(found)

    def pids(self, role: str, word: str) -> list[int]:
        """Processes of a host whose command line holds *word*."""
        found = []
        for pid in processes(RUN_NETNS / self.namespaces[role]):
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(pid)
        return sorted(found)

    def settle(self, before: dict[str, str], patience_s: float = PATIENCE_S) -> dict[str, list[str]]:
        """What differs from an earlier state, once nothing changes for the better any more."""
        deadline = time.monotonic() + patience_s
        while True:
            now = self.state()
            different = {key: _difference(before[key], now[key]) for key in before if before[key] != now[key]}
            if not different or time.monotonic() > deadline:
                return different
            time.sleep(0.1)

    def kill(self, role: str, word: str) -> bool:
        """Kill one process of a host whose command line holds *word*; False if there is none."""
        for pid in self.pids(role, word):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False
