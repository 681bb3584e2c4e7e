#!/usr/bin/env python3
"""Make a fresh machine ready for quicbed: Debian packages, Rust, Go, Python environment.

The Makefile calls it before every target; it is done in a moment when nothing is missing. It uses
the standard library only, because it is what installs everything else. What the installers say goes
to logs/setup.log, one line per step to the screen. Drawing from the reference data needs Python and
nothing else, and no root.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

import toolchains

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "set-up.json"
LOG = ROOT / "logs" / "setup.log"
LOCK = ROOT / "build" / ".set-up.lock"
REQUIREMENTS = ROOT / "requirements"

MINIMUM_PYTHON = (3, 11)
# Makefile targets: those that need root, network namespaces and everything to build with; others.
MEASURING_TARGETS = ("all", "test", "bench", "setup")
OTHER_TARGETS = ("figures", "check", "lab", "docs")
# Locks that a target's Python environment is made of, after build.txt.
LOCKS = {
    "test": ("test.txt", "docs.txt"),
    "check": ("test.txt",),
    "setup": ("test.txt", "docs.txt"),
    "bench": ("bench.txt",),
    "lab": ("lab.txt",),
    "docs": ("docs.txt",),
}
# What set-up writes below the clone: the environment, and what the other locks add, in MB; files in the first.
ENVIRONMENT_MB = {"runtime.txt": 960, "test.txt": 250, "bench.txt": 1, "lab.txt": 150, "docs.txt": 120}
ENVIRONMENT_FILES = 35_000
# What is drawn of the reference data, in MB; runs and builds need more, which the estimate says.
RESULTS_MB = 170
# Targets that run Snakemake in this clone (the tests and benchmarks for their builds).
SNAKEMAKE_TARGETS = ("all", "figures", "test", "bench")


class Tool(NamedTuple):
    """Something the workflow runs, and the Debian package that has it."""

    package: str
    purpose: str
    present: Callable[[], bool]


def command(*names: str) -> Callable[[], bool]:
    """A probe: is any of these commands on the PATH?"""
    return lambda: any(shutil.which(name) for name in names)


def has_perl_modules() -> bool:
    """OpenSSL's Configure needs the modules that Debian's perl-base leaves out."""
    if any(Path("/usr/share/perl").glob("5*/IPC/Cmd.pm")):
        return True
    perl = shutil.which("perl")
    probe = "use FindBin; use IPC::Cmd; use File::Compare; use Data::Dumper; use Time::Piece;"
    return perl is not None and subprocess.run([perl, "-e", probe], capture_output=True).returncode == 0


def has_chromium() -> bool:
    """Kaleido draws SVG and PDF with a Chromium; BROWSER_PATH may name one off the PATH."""
    browser = os.environ.get("BROWSER_PATH")
    if browser and os.access(browser, os.X_OK):
        return True
    return command("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")()


def has_user_mode_linux() -> bool:
    """Debian has it for x86 only; elsewhere a round-trip time needs netem of the kernel."""
    return platform.machine() not in ("x86_64", "i686") or command("linux.uml")()


CHROMIUM = Tool("chromium", "figures as SVG and PDF", has_chromium)
MEASURING_TOOLS = (
    Tool("gcc", "builds", command("gcc")),
    Tool("g++", "builds", command("g++")),
    Tool("libc6-dev", "builds", lambda: Path("/usr/include/stdio.h").exists()),
    Tool("make", "builds", command("make")),
    Tool("cmake", "builds (BoringSSL)", command("cmake")),
    Tool("perl", "builds (OpenSSL)", has_perl_modules),
    Tool("patch", "patched flavours", command("patch")),
    Tool("git", "builds (boring-sys applies its patches with it)", command("git")),
    Tool("iproute2", "network namespaces, links and queues", command("tc")),
    Tool("ethtool", "offloads", command("ethtool")),
    Tool("tcpdump", "captures", command("tcpdump")),
    Tool("iputils-ping", "round-trip times before runs", command("ping")),
    Tool("procps", "kernel settings", command("sysctl")),
    Tool("util-linux", "namespaces", command("unshare")),
    Tool("linux-perf", "shares of processor time", command("perf")),
    Tool("valgrind", "counts of instructions", command("valgrind")),
    Tool("iperf3", "the TCP ceiling of the benchmarks", command("iperf3")),
    Tool("tshark", "handshakes in captures", command("tshark")),
    Tool("zstd", "published results in Zstandard archives", command("zstd")),
    Tool("user-mode-linux", "round-trip times where the kernel has no netem", has_user_mode_linux),
    Tool("kmod", "modules of user-mode Linux", command("modprobe")),
)


# What the tests of testbeds over SSH connect to.
SSH_TOOLS = (
    Tool("openssh-server", "tests of testbeds over SSH", lambda: Path("/usr/sbin/sshd").exists()),
    Tool("openssh-client", "tests of testbeds over SSH", command("ssh-keygen")),
)
# The cluster of one node that the tests start.
SLURM_TOOLS = (
    Tool("slurmctld", "tests on a Slurm cluster", command("slurmctld")),
    Tool("slurmd", "tests on a Slurm cluster", command("slurmd")),
    Tool("slurm-client", "tests on a Slurm cluster", command("sbatch")),
    Tool("munge", "tests on a Slurm cluster", command("munged")),
)
# Makes the minimal system in which the tests try the commands of the documents.
BARE_SYSTEM_TOOLS = (Tool("debootstrap", "tests on a minimal system", command("debootstrap")),)
# What Ubuntu has under another name, or not at all.
UBUNTU_PACKAGES = {
    "linux-perf": "linux-tools-generic",
    "user-mode-linux": None,
    # its package leads to a snap, which needs a running snapd
    "chromium": None,
}
SSH_SERVER_OFF = Path("/etc/ssh/sshd_not_to_be_run")


class SetUpError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def say(message: str) -> None:
    """One line of progress on the screen."""
    print(f"set-up: {message}", file=sys.stderr, flush=True)


def missing_tools(tools: Iterable[Tool]) -> list[Tool]:
    """The tools that are not there, in the order given."""
    return [tool for tool in tools if not tool.present()]


def packages_of(tools: Iterable[Tool]) -> list[str]:
    """The packages that have the tools in this distribution, without what it does not have."""
    other = UBUNTU_PACKAGES if "ubuntu" in distribution() else {}
    found = (other.get(tool.package, tool.package) for tool in tools)
    return [package for package in found if package is not None]


def apt_get_line(packages: Iterable[str]) -> str:
    """The command that installs packages, as an administrator types it."""
    return "apt-get update && apt-get install --yes --no-install-recommends " + " ".join(packages)


def root_needed(target: str, missing: list[Tool]) -> str:
    """What to tell somebody without root: the exact commands that do the job."""
    lines = [f"`make {target}` needs root: it measures in network namespaces. Run as an administrator:"]
    if missing:
        lines.append(f"  sudo sh -c '{apt_get_line(packages_of(missing))}'")
    lines.append(f"  sudo make {target}")
    return "\n".join(lines)


def check_python() -> None:
    """The interpreter that runs this is that of .venv; a newer one on the PATH takes over from an old one."""
    if sys.version_info[:2] >= MINIMUM_PYTHON:
        return
    for minor in range(MINIMUM_PYTHON[1] + 9, MINIMUM_PYTHON[1] - 1, -1):
        if newer := shutil.which(f"python3.{minor}"):
            os.execv(newer, [newer, *sys.argv])  # noqa: S606 (the same program with the same words)
    raise SetUpError(
        f"Python {'.'.join(map(str, MINIMUM_PYTHON))} or newer is needed, {sys.executable} is "
        f"{sys.version.split()[0]}. Install one, or name it: make PYTHON=/path/to/python3.11"
    )


def check_disk(megabytes: int, files: int = 0) -> None:
    """What is going to be written below the clone fits on its disk."""
    disk = os.statvfs(ROOT)
    free = disk.f_bavail * disk.f_frsize / 1e6
    if free < megabytes:
        problem = f"{free:.0f} MB left, and {megabytes} MB are needed"
    # some file systems have no limit of files, and tell 0
    elif disk.f_files and disk.f_favail < files:
        problem = f"room for {disk.f_favail} more files, and {files} are needed"
    else:
        return
    raise SetUpError(f"{ROOT}: its disk has {problem}. Free some, then run the same command again")


def check_namespaces(target: str) -> None:
    """Root in a container may still not be allowed to make network namespaces; `make setup` goes on without."""
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if tried.returncode == 0:
        return
    problem = (
        f"root is not allowed to make network namespaces here ({tried.stderr.strip()}), so nothing can be measured. "
        "A container needs CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged); `make figures` works without"
    )
    if target != "setup":
        raise SetUpError(problem)
    say(problem)


def run_logged(arguments: list[str], log: TextIO, environment: dict[str, str] | None = None, cwd: Path = ROOT) -> bool:
    """Run a program with all it prints in the log; True when it succeeded."""
    log.write(f"\n$ {' '.join(arguments)}\n")
    log.flush()
    try:
        done = subprocess.run(
            arguments,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=cwd,
        )
    except OSError as error:
        log.write(f"{error}\n")
        return False
    return done.returncode == 0


PROXIES = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
UNREACHABLE = "the package registry cannot be reached: connect to the network"
# What installers say when a machine lacks something, and what to do.
CAUSES = (
    (r"No space left on device|not enough (free )?space|Disk quota exceeded", "the disk is full: free some"),
    (
        r"ProxyError|Tunnel connection failed|Cannot connect to proxy|IncompleteRead|InvalidProxyURL"
        r"|\b407  ?Proxy Authentication",
        "the proxy does not work: check http_proxy, https_proxy and what pip and apt are told of proxies",
    ),
    (
        r"Temporary failure in name resolution|Temporary failure resolving|Name or service not known"
        r"|Network is unreachable|Could not resolve|No route to host|Connection refused|NewConnectionError",
        UNREACHABLE,
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError|THESE PACKAGES DO NOT MATCH THE HASHES|BadZipFile|Invalid (URL|wheel)"
        r"|No matching distribution found|Clearsigned file isn't valid|Content-Type|Bad header|is not signed"
        r"|(?m:^ +[45]\d\d  )|[45]\d\d (Client|Server) Error",
        "the package registry, or a proxy before it, does not answer with packages: use another network or index",
    ),
    (r"Read timed out|Connection timed out|ReadTimeoutError", "the package registry does not answer: try again later"),
    (r"Could not get lock", "another program installs Debian packages: wait until it has ended"),
    (r"Permission denied|Read-only file system", "a directory cannot be written"),
    (r"MemoryError|Cannot allocate memory|Killed", "memory is full: end other programs"),
)


def known_cause(log_from: int) -> str | None:
    """Why the installer failed that has written to the log from this position on, with the remedy; None if unknown."""
    with LOG.open("rb") as log:
        log.seek(log_from)
        said = log.read().decode(errors="replace")
    for pattern, meaning in CAUSES:
        if re.search(pattern, said):
            proxies = [name for name in PROXIES if os.environ.get(name)]
            if meaning == UNREACHABLE and proxies:
                meaning = f"{meaning}, and check the proxy in {' and '.join(proxies)}"
            return f"{meaning}, then run the same command again ({LOG} has the details)"
    return None


def cause(log_from: int) -> str:
    """The same, or the end of the log."""
    return known_cause(log_from) or f"{LOG} ends:\n{log_tail()}"


def log_tail(lines: int = 15) -> str:
    """The end of the log, indented."""
    text = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join("  | " + line for line in text[-lines:])


APT_LOCK_S = 600
"""Seconds to wait for another apt, as at the first start of a machine."""


def update_lists(command: list[str], log: TextIO, environment: dict[str, str]) -> bool:
    """`apt-get update`, which waits for no lock itself; True when it succeeded."""
    until = time.monotonic() + APT_LOCK_S
    while True:
        began = LOG.stat().st_size
        if run_logged(command, log, environment):
            return True
        with LOG.open("rb") as written:
            written.seek(began)
            if b"Could not get lock" not in written.read() or time.monotonic() > until:
                return False
        time.sleep(2)


def install_packages(packages: list[str], log: TextIO, *, update: bool) -> bool:
    """Install Debian packages without asking anything; True when all are there."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Wait for another apt (unattended upgrades) instead of failing.
    apt_get = ["apt-get", "-o", f"DPkg::Lock::Timeout={APT_LOCK_S}", "-o", "Dpkg::Use-Pty=0", "--yes"]
    if update and not update_lists([*apt_get, "update"], log, environment):
        return False
    return run_logged([*apt_get, "install", "--no-install-recommends", *packages], log, environment)


def keep_ssh_server_off() -> None:
    """Debian's openssh-server starts a server as it is installed, unless there is this file."""
    SSH_SERVER_OFF.parent.mkdir(parents=True, exist_ok=True)
    SSH_SERVER_OFF.touch()
    say(f"openssh-server is for tests: {SSH_SERVER_OFF} keeps the system's own SSH server from being started")


def provide_packages(target: str, tools: list[Tool], wants_chromium: bool, log: TextIO) -> bool:
    """Install what is missing. False when there is no Chromium, which is not an error."""
    missing = missing_tools(tools)
    debian = has_apt()
    is_root = os.geteuid() == 0
    names = packages_of(missing)
    if missing and not debian:
        listing = ", ".join(f"{tool.package} ({tool.purpose})" for tool in missing)
        raise SetUpError(
            "this is not Debian, so nothing is installed for you. Install what these Debian "
            f"packages have, then run make again: {listing}."
        )
    if names and not is_root:
        raise SetUpError(
            f"`make {target}` needs Debian packages. Run as an administrator:\n  sudo sh -c '{apt_get_line(names)}'"
        )
    if names:
        say(f"installing Debian packages: {' '.join(names)}")
        if "openssh-server" in names:
            keep_ssh_server_off()
        began = log.tell()
        if not install_packages(names, log, update=True):
            raise SetUpError(f"Debian packages could not be installed: {cause(began)}")
    still = missing_tools(missing)
    if unfound := [tool.package for tool in still if packages_of([tool])]:
        raise SetUpError(f"installed, but still not found on the PATH: {' '.join(unfound)}")
    for tool in still:
        say(f"{distribution()} has no {tool.package}: {tool.purpose} are unsupported here")
    if not wants_chromium or CHROMIUM.present():
        return True
    packaged = debian and packages_of([CHROMIUM])
    if packaged and is_root and (target == "setup" or not recorded().get("without_chromium")):
        say("installing Debian package: chromium (about 100 MB)")
        if install_packages(["chromium"], log, update=not missing) and CHROMIUM.present():
            return True
        say("Chromium could not be installed (logs/setup.log)")
    if not packaged:
        remedy = "install Chromium or Chrome, or name one: BROWSER_PATH=/path/to/chrome"
    else:
        remedy = "`make setup` tries again" if is_root else f"as an administrator: {apt_get_line(['chromium'])}"
    say(f"no Chromium: figures are made as HTML only, without SVG and PDF ({remedy})")
    return False


def has_apt() -> bool:
    """Is this Debian or a distribution made from it?"""
    return shutil.which("apt-get") is not None


def distribution() -> str:
    """The distribution's ID as in os-release(5); empty where it is not told."""
    try:
        return platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return ""


def recorded() -> dict[str, object]:
    """What the last complete set-up of .venv wrote down; empty when there is none."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def digest(*names: str) -> str:
    """One hash over files in requirements/."""
    sha = hashlib.sha256()
    for name in names:
        sha.update(name.encode() + b"\0" + (REQUIREMENTS / name).read_bytes())
    return sha.hexdigest()


def base_python() -> str:
    """The interpreter .venv is made of, also when this runs inside a virtual environment."""
    return getattr(sys, "_base_executable", None) or sys.executable


def pip(arguments: list[str], log: TextIO, program: tuple[str, ...] = ("-m", "pip")) -> bool:
    """Run pip in the environment, unaffected by settings that would send packages elsewhere."""
    environment = {
        **os.environ,
        "PIP_USER": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        # without a network, each further try waits longer
        "PIP_RETRIES": os.environ.get("PIP_RETRIES", "2"),
    }
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"):
        environment.pop(name, None)
    return run_logged([str(VENV / "bin" / "python"), *program, *arguments], log, environment)


def install_locked(locks: Iterable[str], log: TextIO, program: tuple[str, ...] = ("-m", "pip")) -> None:
    """Install exactly what lock files name, each file checked against its hash."""
    options: list[str] = []
    for name in locks:
        options += ["--requirement", f"requirements/{name}"]
    # pip and setuptools are locked themselves, so nothing unlocked takes part in a build.
    began = log.tell()
    if not pip(["install", "--require-hashes", "--no-build-isolation", *options], log, program):
        raise SetUpError(f"Python packages could not be installed ({', '.join(locks)}): {cause(began)}")


def make_environment(log: TextIO) -> None:
    """Make an empty .venv with the locked pip and setuptools in it.

    Debian and Ubuntu keep what `python3 -m venv` needs of pip in a package of its own. Where it is missing, the
    environment is made without, and pip for the first step is the wheel in the package python3-pip-whl, which any user
    can fetch and unpack.
    """
    bundled = importlib.util.find_spec("ensurepip") is not None
    began = log.tell()
    words = [base_python(), "-m", "venv", "--clear", *([] if bundled else ["--without-pip"]), str(VENV)]
    if not run_logged(words, log):
        raise SetUpError(f"no Python environment could be made: {cause(began)}")
    if bundled:
        install_locked(["build.txt"], log)
        return
    with tempfile.TemporaryDirectory(dir=VENV, prefix="pip-") as temporary:
        if wheel := debian_pip(Path(temporary), log):
            install_locked(["build.txt"], log, (f"{wheel}/pip",))
            return
    lack = f"there is no pip for {base_python()}"
    if why := known_cause(began):
        raise SetUpError(f"{lack}, and none could be fetched: {why}")
    remedy = f"as an administrator: {apt_get_line(['python3-venv'])}" if has_apt() else "install Python with ensurepip"
    raise SetUpError(f"{lack}, and none could be fetched ({LOG} has the details): {remedy}")


def debian_pip(directory: Path, log: TextIO) -> Path | None:
    """The wheel of pip from a Debian package, unpacked into a directory without root; None without success."""
    if not has_apt() or shutil.which("dpkg-deb") is None:
        return None
    package = "python3-pip-whl"
    say(f"fetching pip for the first step (Debian package {package}, unpacked below .venv)")
    # lists of packages of our own: those of the system may be old or missing, and only root can renew them
    lists = directory / "lists"
    (lists / "partial").mkdir(parents=True)
    cache = directory / "cache"
    (cache / "archives" / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User=root"]
    own += ["-o", "Acquire::Retries=1", "-o", "Dpkg::Use-Pty=0"]
    fetched = run_logged(["apt-get", "download", package], log, cwd=directory) or (
        run_logged(["apt-get", *own, "update"], log)
        and run_logged(["apt-get", *own, "download", package], log, cwd=directory)
    )
    for file in directory.glob(f"{package}_*.deb") if fetched else ():
        if run_logged(["dpkg-deb", "--extract", str(file), str(directory)], log):
            return next(directory.glob("usr/share/python-wheels/pip-*.whl"), None)
    return None


def provide_environment(target: str, log: TextIO) -> None:
    """Make .venv what the locks say; nothing to do when its stamp carries their hashes."""
    # The editable install holds absolute paths: a clone that was moved needs a new environment.
    locks = digest("build.txt", "runtime.txt") + f" {ROOT}"
    package = digest("../pyproject.toml", "runtime.in")
    stamp = recorded()
    fresh = stamp.get("locks") != locks or not runs(VENV / "bin" / "python")
    more = [name for name in LOCKS.get(target, ()) if fresh or stamp.get(name) != digest(name)]
    megabytes = sum(ENVIRONMENT_MB[name] for name in ([*more, "runtime.txt"] if fresh else more))
    check_disk(megabytes + (RESULTS_MB if target in SNAKEMAKE_TARGETS else 0), ENVIRONMENT_FILES if fresh else 0)
    if fresh:
        say(f"making the Python environment .venv of {base_python()} (about a minute, 1 GB)")
        STAMP.unlink(missing_ok=True)
        make_environment(log)
        install_locked(["runtime.txt", *more], log)
        stamp = {"locks": locks}
    elif more:
        say(f"adding to .venv what requirements/{', '.join(more)} names")
        install_locked(more, log)
    stamp = {**stamp, **{name: digest(name) for name in more}}
    if stamp.get("package") != package:
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
        if not pip(["install", *options, "--editable", "."], log):
            raise SetUpError(f"the package quicbed could not be installed. {LOG} ends:\n{log_tail()}")
        stamp = {**stamp, "package": package}
        # pages that are not in git, so that links of the others lead somewhere; without them everything else works
        run_logged([str(VENV / "bin" / "quicbed"), "generate"], log)
    if stamp != recorded():
        write_stamp(stamp)


def provide_toolchains(log: TextIO) -> None:
    """Rust and Go: the machine's own where they serve, else below the clone."""
    for toolchain, problem in toolchains.missing():
        check_disk(toolchain.megabytes)
        where = toolchains.DIRECTORY.relative_to(ROOT)
        say(f"{problem}: installing {toolchain.name} into {where}/ (a minute, {toolchain.megabytes} MB)")
        toolchains.DIRECTORY.mkdir(exist_ok=True)
        began = log.tell()
        try:
            if toolchain is toolchains.GO_TOOLCHAIN:
                toolchains.install_go(lambda words: pip(words, log))
            else:
                toolchains.install_rust(lambda words, more: run_logged(words, log, {**os.environ, **more}))
        except toolchains.ToolchainError as error:
            log.flush()
            why = f". {cause(began)}" if log.tell() > began else ""
            raise SetUpError(f"{error}{why}") from None


def runs(python: Path) -> bool:
    """Does this interpreter start? It does not when the one it was made of was removed."""
    try:
        return subprocess.run([str(python), "-IS", "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "overlay", "tmpfs"}
"""File systems that processes of one kernel only can write to."""
FIRST_NAMESPACE = "pid:[4026531836]"
"""That of all processes of a kernel (PROC_PID_INIT_INO in its proc_ns.h)."""


def release_stale_lock() -> None:
    """Remove the lock a killed Snakemake left in this directory, unless one is at work here, or may be out of sight."""
    locks = ROOT / ".snakemake" / "locks"
    held = list(locks.iterdir()) if locks.is_dir() else []
    if not held:
        return
    remedy = f"if none is, remove its lock: rm -r {locks}"
    here = ROOT.stat()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"snakemake" not in (process / "cmdline").read_bytes():
                continue
            # not by name: in a container it has another one
            directory = (process / "cwd").stat()
        except PermissionError:
            raise SetUpError(
                f"Snakemake of another user (process {process.name}) may be at work in this clone; {remedy}"
            ) from None
        except OSError:
            continue
        if (directory.st_dev, directory.st_ino) == (here.st_dev, here.st_ino):
            raise SetUpError(f"Snakemake is at work in this clone already (process {process.name}).")
    space, told = lock_holder(held)
    if space != process_space() and not sees_every_process():
        where = "in another container, of another user or on another machine"
        raise SetUpError(f"Snakemake may be at work in this clone {where}{told}; {remedy}")
    shutil.rmtree(locks)
    say("removed the lock that a killed Snakemake had left")


def lock_holder(held: list[Path]) -> tuple[object, str]:
    """What `process_space` was for the Snakemake that has these locks, and words on it; none where nothing tells."""
    file = ROOT / ".snakemake" / "quicbed-holder.json"
    try:
        if any(lock.stat().st_mtime_ns > file.stat().st_mtime_ns for lock in held):
            return None, ""  # it tells of an earlier one
        holder = json.loads(file.read_text(encoding="utf-8"))
        return holder["space"], f" (started on {holder['host']}, {holder['since']})"
    except (OSError, ValueError, LookupError, TypeError):
        return None, ""


def process_space() -> list[str]:
    """What numbers of processes are of: this boot of the kernel, and the namespace of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return [boot, str(Path("/proc/self/ns/pid").readlink())]


def sees_every_process() -> bool:
    """Whether every process that can have a file of the clone open is in /proc here."""
    mounts: list[tuple[int, str]] = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])
        if ROOT.is_relative_to(place):
            mounts.append((len(place), after.split()[0]))
    # of those at one place the last one is seen
    kind = max(enumerate(mounts), key=lambda mount: (mount[1][0], mount[0]))[1][1] if mounts else ""
    try:
        Path("/proc/1/cmdline").read_bytes()  # proc may be mounted with hidepid
    except OSError:
        return False
    return kind in LOCAL_FILE_SYSTEMS and str(Path("/proc/self/ns/pid").readlink()) == FIRST_NAMESPACE


def write_stamp(stamp: dict[str, object]) -> None:
    """Record a complete set-up; never half a file."""
    partial = STAMP.with_suffix(".partial")
    partial.write_text(json.dumps(stamp, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(STAMP)


def set_up(target: str) -> None:
    """Check and provide all that a Makefile target needs."""
    check_python()
    measures = target in MEASURING_TARGETS
    tools = list(MEASURING_TOOLS) if measures else []
    if target == "test":
        tools += (*SSH_TOOLS, *SLURM_TOOLS, *BARE_SYSTEM_TOOLS)
    if measures and os.geteuid() != 0:
        missing = missing_tools(tools)
        raise SetUpError(root_needed(target, missing if CHROMIUM.present() else [*missing, CHROMIUM]))
    LOG.parent.mkdir(exist_ok=True)
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w", encoding="utf-8") as lock, LOG.open("a", encoding="utf-8") as log:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this clone")
            fcntl.flock(lock, fcntl.LOCK_EX)
        started = time.monotonic()
        has_browser = provide_packages(target, tools, target not in ("check", "docs"), log)
        provide_environment(target, log)
        if measures or target == "check":
            provide_toolchains(log)
        stamp = {**recorded(), "without_chromium": not has_browser}
        if target not in ("check", "docs") and stamp != recorded():
            write_stamp(stamp)
        if measures:
            check_namespaces(target)
        if target in SNAKEMAKE_TARGETS:
            release_stale_lock()
        elapsed = time.monotonic() - started
        if elapsed > 1:
            say(f"done in {elapsed:.0f} s")


# What to do where set-up itself cannot write.
REMEDIES = {
    errno.ENOSPC: ": free some, then run the same command again",
    errno.EDQUOT: ": free some, then run the same command again",
    errno.EROFS: ": clone to a directory that can be written",
}


def fail(message: str) -> NoReturn:
    """End with one message and exit code 1."""
    print(f"set-up: error: {message}", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    """Command line: the Makefile target to prepare for."""
    parser = argparse.ArgumentParser(description="Prepare this machine for a Makefile target.")
    parser.add_argument("target", choices=[*MEASURING_TARGETS, *OTHER_TARGETS])
    target = parser.parse_args().target
    try:
        set_up(target)
    except SetUpError as error:
        fail(str(error))
    except PermissionError as error:
        fail(
            f"{error.filename}: no permission. Something root made? Run make as root again, or "
            "give this directory back to yourself (chown -R)."
        )
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        remedy = REMEDIES.get(error.errno or 0, "")
        fail(f"{where}{error.strerror or error}{remedy}")
    except KeyboardInterrupt:
        fail("interrupted; run the same command again to go on")


if __name__ == "__main__":
    main()
