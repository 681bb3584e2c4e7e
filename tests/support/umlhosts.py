"""Two hosts with an SSH server and a kernel of their own each: user-mode Linux with what this one may lack. For tests.

::

    manage  bridge0 10.114.0.254 ---- tap ---- mgmt0 10.114.0.1  client  link0 10.115.0.1 ---- tap --- bridge1 ---+
                                 ---- tap ---- mgmt0 10.114.0.2  server  link0 10.115.0.2 ---- tap --- bridge1 ---+

Their file system is this machine's, read-only, with memory of their own at `/run` and `/srv`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from quicbed.testbed import uml
from quicbed.testbed.delay import UML, UML_MODULES
from sshhosts import MANAGEMENT, MEASURED, PATIENCE_S, ROLES, SSHD, SshHosts

BOOT_S = 60.0
# What an experiment on the link asks the kernel for; a guest finds no modules by itself.
MODULES = "sch_netem sch_tbf sch_fq sch_ingress cls_bpf cls_u32 act_mirred"
INIT = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs -o size=1G tmpfs /srv
modprobe -d {directory} ipv6 disable_ipv6=1
modprobe -d {directory} -a {modules}
modprobe -d {directory} ifb numifbs=0
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


class UmlHosts(SshHosts):
    """The hosts as guests; a test works in the namespace of the management network."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.namespaces = {"manage": self.namespaces["manage"]}
        self.guests: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        space = self.namespaces["manage"]
        subprocess.run(["ip", "netns", "add", space], check=True)
        for number in (0, 1):
            self._ip("manage", f"link add bridge{number} type bridge stp_state 0 mcast_snooping 0")
            self._ip("manage", f"link set bridge{number} up")
        self._ip("manage", "addr add 10.114.0.254/24 dev bridge0")
        self._ip("manage", "link set lo up")
        self._keygen(self.key)
        for role in ROLES:
            self._keygen(self.directory / f"{role}.hostkey")
            config = self._write_server(role)
            if uml.has_amx():  # for the programs of connections, which have an environment of their own
                config.write_text(f"{config.read_text()}SetEnv {' '.join(uml.WITHOUT_AVX)}\n")
            self._boot(role)
        self.write_known_hosts()
        self._write_client()
        deadline = time.monotonic() + BOOT_S
        for role in ROLES:
            while not self._answers(role):
                if time.monotonic() > deadline:
                    raise RuntimeError((self.directory / f"{role}.log").read_text(errors="replace"))
                time.sleep(0.05)

    def _answers(self, role: str) -> bool:
        argv = ["ip", "netns", "exec", self.namespaces["manage"], "ssh-keyscan", "-T", "1", MANAGEMENT[role]]
        return b"ssh-" in subprocess.run(argv, capture_output=True).stdout

    def _boot(self, role: str) -> None:
        place = self.directory / f"{role}-guest"
        modules = place / "lib" / "modules"
        modules.mkdir(parents=True)
        for release in UML_MODULES.iterdir():
            (modules / release.name).symlink_to(release)
        init = place / "init"
        words = {
            "directory": shlex.quote(str(place)),
            "modules": MODULES,
            "management": MANAGEMENT[role],
            "measured": MEASURED[role],
            "sshd": SSHD,
            "config": shlex.quote(str(self.directory / f"{role}.sshd")),
        }
        init.write_text(INIT.format(**words))
        init.chmod(0o755)
        argv = [UML, "mem=256M", f"uml_dir={place}/", "umid=guest"]
        argv += ["root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "con0=null,fd:1", "con=null"]
        argv += ["ssl=null", "quiet", "loglevel=1"]
        for number in (0, 1):
            tap = f"{role}{number}"
            self._ip("manage", f"tuntap add dev {tap} mode tap")
            self._ip("manage", f"link set {tap} master bridge{number} up")
            argv.append(f"vec{number}:transport=tap,ifname={tap},depth=128,mtu=1500")
        within = ["ip", "netns", "exec", self.namespaces["manage"], *uml.command(argv)]
        with (self.directory / f"{role}.log").open("wb") as log:
            self.guests.append(
                subprocess.Popen(within, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def run(self, role: str, command: str) -> str:
        """Output of a command on a host."""
        argv = ["ip", "netns", "exec", self.namespaces["manage"], "ssh", "-F", str(self.config), MANAGEMENT[role]]
        return subprocess.run([*argv, command], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        for guest in self.guests:
            if guest.poll() is None:
                os.killpg(guest.pid, 9)  # with its programs, which are in its group
                guest.wait(PATIENCE_S)
        subprocess.run(["ip", "netns", "delete", self.namespaces["manage"]], check=False)

    def data(self, **changes: Any) -> dict[str, Any]:
        return super().data(directory="/srv/quicbed", **changes)


def problem() -> str | None:
    """Why there can be no such hosts here; None if nothing is known against it."""
    if not SSHD:
        return "needs an SSH server; install one with: apt-get install openssh-server"
    if shutil.which(UML) is None:
        return "needs user-mode Linux; install it with: apt-get install user-mode-linux kmod"
    return None
