"""Two hosts for the testbed over SSH on this machine: guests of user-mode Linux, whose kernel has FQ, netem and tbf.

::

    quicbed-guests  bridge0 10.114.0.254 ---- tap ---- mgmt0 10.114.0.1  client  link0 10.115.0.1 ---- tap --- bridge1
                                         ---- tap ---- mgmt0 10.114.0.2  server  link0 10.115.0.2 ---- tap --- bridge1

Their file system is this machine's, read-only, with memory of their own at `/run` and `/srv`. All of it is in a network
namespace of its own, into which a program of ours joins SSH connections (:mod:`.relay`): the machine's own network is
not touched. `config/testbeds/guests.yaml` names them by the OpenSSH configuration that is written here. They are there
until they are stopped, or the machine is; what they know is forgotten then.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from . import relay, uml
from .base import TestbedError
from .delay import UML, UML_MODULES, uml_problem
from .namespace import RUN_NETNS, is_namespace, kill_processes

DIRECTORY = Path("/var/lib/quicbed-guests")
"""Keys, configuration, and what the guests print; not below `/run`, where guests have something else."""
NAMESPACE = "quicbed-guests"
ROLES: tuple[Literal["client"], Literal["server"]] = ("client", "server")
MANAGEMENT = {"client": "10.114.0.1", "server": "10.114.0.2"}
MEASURED = {"client": "10.115.0.1", "server": "10.115.0.2"}
SHADOW = Path("/etc/shadow")
SSHD_PLACES = "/usr/sbin:/usr/local/sbin:/sbin"
PACKAGES = ("openssh-server", "openssh-client")

_MEMORY = "1536M"
BOOT_S = 60.0
_LOOK_S = 0.1
# What experiments on the link ask the kernel for; a guest finds no modules by itself.
_MODULES = "sch_netem sch_tbf sch_fq sch_prio sch_etf sch_ingress cls_bpf cls_u32 act_mirred tcp_bbr overlay"
_INIT = """#!/bin/sh
# First program of the guest: sets its network up and keeps its SSH server.
export PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs -o size=1G tmpfs /srv
modprobe -d {directory} ipv6 disable_ipv6=1
modprobe -d {directory} -a {modules}
modprobe -d {directory} ifb numifbs=0
# programs write there (nginx does), and find what this machine has there
mkdir -m 700 /run/tmp /run/tmp/upper /run/tmp/work
chmod 1777 /run/tmp/upper
mount -t overlay -o lowerdir=/tmp,upperdir=/run/tmp/upper,workdir=/run/tmp/work overlay /tmp
hostname {role}
ip link set lo up
ip link set vec0 name mgmt0
ip link set vec1 name link0
ip addr add {management}/24 dev mgmt0
ip addr add {measured}/24 dev link0
ip link set mgmt0 up
ip link set link0 up
mkdir -m 755 /run/sshd
{sshd} -D -e -f {config}
"""
_SSHD = """\
ListenAddress {address}
HostKey {directory}/{role}.hostkey
PidFile none
AuthorizedKeysFile {directory}/key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxStartups 100
UsePAM {pam}
"""
_SSH = """\
Host {names}
  User root
  IdentityFile {directory}/key
  UserKnownHostsFile {directory}/known_hosts
  ProxyCommand ip netns exec {namespace} {python} -IS {relay} %h %p
"""


def sshd() -> str | None:
    """Path of the SSH server, which starts itself again by it for every connection; None without one."""
    return shutil.which("sshd", path=SSHD_PLACES)


def problem() -> str | None:
    """Why no guests can be started here; None if nothing is known against it."""
    if os.geteuid() != 0:
        return "only root can start guests, which need a network namespace and TAP devices"
    if sshd() is None or shutil.which("ssh-keygen") is None:
        return (
            f"an SSH server is missing; install with: apt-get install {' '.join(PACKAGES)} (the machine's own server "
            "then runs too, unless the file /etc/ssh/sshd_not_to_be_run is made first)"
        )
    return uml_problem()


class Guests:
    """The two guests; *directory* and *namespace* are theirs alone."""

    def __init__(self, directory: Path, namespace: str) -> None:
        self.directory = directory
        self.namespace = namespace
        self.ssh_config = directory / "ssh_config"

    def are_up(self) -> bool:
        """Whether both can be reached."""
        return is_namespace(RUN_NETNS / self.namespace) and all(map(self._answers, ROLES))

    def start(self) -> bool:
        """Boot them; False where they are up already. Raises TestbedError with the reason and what to do."""
        if (reason := problem()) is not None:
            raise TestbedError(f"guests: {reason}")
        with self._alone():
            if self.are_up():
                return False
            self._stop()
            try:
                self._start()
            except BaseException:
                self._stop()
                raise
            return True

    def stop(self) -> bool:
        """End them and remove what is theirs; False where there is nothing. What is left of them counts, too."""
        with self._alone():
            return self._stop()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else starts or stops them; TestbedError where somebody does."""
        lock = os.open(f"{self.directory}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                told = "guests: they are being started or stopped; wait for that, then try again"
                raise TestbedError(told) from None
            yield
        finally:
            os.close(lock)

    def _stop(self) -> bool:
        path = RUN_NETNS / self.namespace
        found = path.exists() or self.directory.exists()
        if path.exists():
            kill_processes(path)  # a guest's programs are processes of this machine, too
            self._tool("ip", "netns", "delete", self.namespace)
        shutil.rmtree(self.directory, ignore_errors=True)
        return found

    def _start(self) -> None:
        self.directory.mkdir(parents=True, mode=0o700)
        self._tool("ip", "netns", "add", self.namespace)
        for bridge in ("bridge0", "bridge1"):
            self._ip(f"link add {bridge} type bridge stp_state 0 mcast_snooping 0")
            self._ip(f"link set {bridge} up")
        # a guest takes no frame of several segments, as the relay's would leave without this
        self._within("ethtool", "-K", "bridge0", "tx", "off", "tso", "off", "gso", "off")
        self._ip("addr add 10.114.0.254/24 dev bridge0")
        self._ip("link set lo up")
        self._keygen("key")
        known = []
        for role in ROLES:
            self._keygen(f"{role}.hostkey")
            key = (self.directory / f"{role}.hostkey.pub").read_text(encoding="ascii")
            known.append(f"{self.name(role)},{MANAGEMENT[role]} {key}")
            self._boot(role)
        (self.directory / "known_hosts").write_text("".join(known), encoding="ascii")
        self._write_ssh_config()
        deadline = time.monotonic() + BOOT_S
        for role in ROLES:
            while not self._answers(role):
                if time.monotonic() > deadline:
                    raise TestbedError(f"guests: the {role} does not answer after {BOOT_S:g} s: {self._said(role)}")
                time.sleep(_LOOK_S)

    def _boot(self, role: str) -> None:
        place = self.directory / role
        modules = place / "lib" / "modules"
        modules.mkdir(parents=True)
        for release in UML_MODULES.iterdir():
            (modules / release.name).symlink_to(release)
        config = self.directory / f"{role}.sshd"
        # without PAM the server refuses an account whose password is locked
        passwords = dict(line.split(":")[:2] for line in SHADOW.read_text(encoding="utf-8").splitlines() if ":" in line)
        pam = "yes" if passwords.get("root") == "!" else "no"
        text = _SSHD.format(address=MANAGEMENT[role], directory=self.directory, role=role, pam=pam)
        if uml.has_amx():  # for the programs of connections, which have an environment of their own
            text += f"SetEnv {' '.join(uml.WITHOUT_AVX)}\n"
        config.write_text(text, encoding="ascii")
        init = place / "init"
        words = {"directory": place, "modules": _MODULES, "role": role, "sshd": sshd(), "config": config}
        init.write_text(_INIT.format(management=MANAGEMENT[role], measured=MEASURED[role], **words), encoding="ascii")
        init.chmod(0o755)
        argv = [UML, f"mem={_MEMORY}", f"uml_dir={place}/", "umid=guest"]
        argv += ["root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "con0=null,fd:1", "con=null"]
        argv += ["ssl=null", "quiet", "loglevel=1"]
        for number in (0, 1):
            tap = f"{role}{number}"
            self._ip(f"tuntap add dev {tap} mode tap")
            self._ip(f"link set {tap} master bridge{number} up")
            argv.append(f"vec{number}:transport=tap,ifname={tap},depth=128,mtu=1500")
        with (self.directory / f"{role}.log").open("wb") as log:
            subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *uml.command(argv)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _write_ssh_config(self) -> None:
        text = _SSH.format(
            names=" ".join(map(self.name, ROLES)),
            directory=self.directory,
            namespace=self.namespace,
            python=shlex.quote(sys.executable),
            relay=shlex.quote(str(Path(relay.__file__).resolve())),
        )
        for role in ROLES:
            text += f"Host {self.name(role)}\n  HostName {MANAGEMENT[role]}\n"
        self.ssh_config.write_text(text, encoding="utf-8")

    @staticmethod
    def name(role: str) -> str:
        """What a guest is called in configurations."""
        return f"quicbed-guest-{role}"

    def _answers(self, role: str) -> bool:
        # of the key that it has: a connection for each type takes a slow guest more than a second
        return b"ssh-" in self._within("ssh-keyscan", "-t", "ed25519", "-T", "3", MANAGEMENT[role], check=False)

    def _said(self, role: str) -> str:
        lines = (self.directory / f"{role}.log").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it has printed nothing")

    def _keygen(self, name: str) -> None:
        self._tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.directory / name))

    def _ip(self, command: str) -> None:
        self._tool("ip", "-n", self.namespace, *command.split())

    def _within(self, *argv: str, check: bool = True) -> bytes:
        return self._tool("ip", "netns", "exec", self.namespace, *argv, check=check)

    @staticmethod
    def _tool(*argv: str, check: bool = True) -> bytes:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if check and done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().split("\n")[-1]
            raise TestbedError(f"guests: {' '.join(argv[:6])} fails: {said}")
        return done.stdout
