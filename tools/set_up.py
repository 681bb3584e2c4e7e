#!/usr/bin/env python3
"""Make a fresh Debian machine ready for quicbed: Debian packages, Rust, Go, Python environment.

The Makefile calls it before every target; it is done in a moment when nothing is missing. It uses
the standard library only, because it is what installs everything else. What the installers say goes
to logs/setup.log, one line per step to the screen.
"""

from __future__ import annotations

import argparse
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
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "set-up.json"
LOG = ROOT / "logs" / "setup.log"
LOCK = ROOT / "build" / ".set-up.lock"
REQUIREMENTS = ROOT / "requirements"

MINIMUM_PYTHON = (3, 11)
# The highest rust-version among the crates in workflow/sources/Cargo.lock (s2n-quic).
MINIMUM_RUST = (1, 95)
# The highest `go` line among the go.mod files in workflow/endpoints/ (quic-go).
MINIMUM_GO = (1, 26)

# Makefile targets: those that need root, network namespaces and everything to build with; others.
MEASURING_TARGETS = ("all", "test", "bench", "setup")
OTHER_TARGETS = ("figures", "check", "lab")
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


def has_ensurepip() -> bool:
    """What `python3 -m venv` needs is not part of Debian's python3."""
    return importlib.util.find_spec("ensurepip") is not None


def has_user_mode_linux() -> bool:
    """Debian has it for x86 only; elsewhere a round-trip time needs netem of the kernel."""
    return platform.machine() not in ("x86_64", "i686") or command("linux.uml")()


PYTHON_VENV = Tool("python3-venv", "the Python environment", has_ensurepip)
CHROMIUM = Tool("chromium", "figures as SVG and PDF", has_chromium)
MEASURING_TOOLS = (
    PYTHON_VENV,
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
SSH_SERVER_OFF = Path("/etc/ssh/sshd_not_to_be_run")


class SetUpError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def say(message: str) -> None:
    """One line of progress on the screen."""
    print(f"set-up: {message}", file=sys.stderr, flush=True)


def missing_tools(tools: Iterable[Tool]) -> list[Tool]:
    """The tools that are not there, in the order given."""
    return [tool for tool in tools if not tool.present()]


def apt_get_line(packages: Iterable[str]) -> str:
    """The command that installs packages, as an administrator types it."""
    return "apt-get update && apt-get install --yes --no-install-recommends " + " ".join(packages)


def root_needed(target: str, missing: list[Tool]) -> str:
    """What to tell somebody without root: the exact commands that do the job."""
    lines = [f"`make {target}` needs root: it measures in network namespaces. Run as an administrator:"]
    if missing:
        packages = " ".join(tool.package for tool in missing)
        lines.append(f"  sudo sh -c '{apt_get_line([packages])}'")
    rustup = shutil.which("cargo") or ""
    # rustup's cargo finds its toolchain through the home directory, which sudo changes.
    toolchain = ' "RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}"' if "/.cargo/" in rustup else ""
    lines.append(f'  sudo env "PATH=$PATH"{toolchain} make {target}')
    return "\n".join(lines)


def check_python() -> None:
    """The interpreter that runs this is the one .venv is made of."""
    if sys.version_info[:2] < MINIMUM_PYTHON:
        raise SetUpError(
            f"Python {'.'.join(map(str, MINIMUM_PYTHON))} or newer is needed, {sys.executable} is "
            f"{sys.version.split()[0]}. Name another one: make PYTHON=/path/to/python3.11"
        )


def check_rust() -> None:
    """Cargo is there and new enough for every crate in the lock file."""
    needed = ".".join(map(str, MINIMUM_RUST))
    remedy = (
        "Install the current stable Rust with rustup (https://rustup.rs), or, where rustup is "
        "there already, run: rustup update stable && rustup default stable. Debian 12's own Rust "
        f"(1.63) is too old; Rust {needed} or newer must come first on the PATH"
        + (" of root: sudo keeps a PATH of its own" if os.environ.get("SUDO_USER") else "")
    )
    for program in ("cargo", "rustc"):
        path = shutil.which(program)
        if path is None:
            raise SetUpError(f"{program} is not on the PATH. {remedy}.")
    shown = subprocess.run(["rustc", "--version"], capture_output=True, text=True)
    found = re.match(r"rustc (\d+)\.(\d+)", shown.stdout)
    if found is None:
        reason = (shown.stderr.strip().splitlines() or ["it prints no version"])[0]
        raise SetUpError(f"`rustc --version` does not work: {reason}. {remedy}.")
    if (int(found[1]), int(found[2])) < MINIMUM_RUST:
        raise SetUpError(f"Rust {found[1]}.{found[2]} is too old, {needed} is needed. {remedy}.")


def check_go() -> None:
    """Go is there and new enough for every module in workflow/endpoints/."""
    needed = ".".join(map(str, MINIMUM_GO))
    remedy = (
        f"Install Go {needed} or newer (https://go.dev/dl); Debian 12's own Go (1.19) is too old. It must come first "
        "on the PATH" + (" of root: sudo keeps a PATH of its own" if os.environ.get("SUDO_USER") else "")
    )
    if shutil.which("go") is None:
        raise SetUpError(f"go is not on the PATH. {remedy}.")
    # the toolchain that go.mod files may ask for is not fetched: builds use the one that is there
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    shown = subprocess.run(["go", "version"], capture_output=True, text=True, env=environment)
    found = re.search(r"\bgo(\d+)\.(\d+)", shown.stdout)
    if found is None:
        reason = (shown.stderr.strip().splitlines() or ["it prints no version"])[0]
        raise SetUpError(f"`go version` does not work: {reason}. {remedy}.")
    if (int(found[1]), int(found[2])) < MINIMUM_GO:
        raise SetUpError(f"Go {found[1]}.{found[2]} is too old, {needed} is needed. {remedy}.")


def check_namespaces() -> None:
    """Root in a container may still not be allowed to make network namespaces."""
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        raise SetUpError(
            f"root is not allowed to make network namespaces here ({tried.stderr.strip()}). "
            "A container needs CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)."
        )


def run_logged(arguments: list[str], log: TextIO, environment: dict[str, str] | None = None) -> bool:
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
            cwd=ROOT,
        )
    except OSError as error:
        log.write(f"{error}\n")
        return False
    return done.returncode == 0


def log_tail(lines: int = 15) -> str:
    """The end of the log, indented."""
    text = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join("  | " + line for line in text[-lines:])


def install_packages(packages: list[str], log: TextIO, *, update: bool) -> bool:
    """Install Debian packages without asking anything; True when all are there."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Wait for another apt (unattended upgrades) instead of failing.
    apt_get = ["apt-get", "-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0", "--yes"]
    if update and not run_logged([*apt_get, "update"], log, environment):
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
    debian = shutil.which("apt-get") is not None
    is_root = os.geteuid() == 0
    if missing and not (debian and is_root):
        listing = ", ".join(f"{tool.package} ({tool.purpose})" for tool in missing)
        if debian:
            raise SetUpError(
                f"`make {target}` needs Debian packages. Run as an administrator:\n"
                f"  sudo sh -c '{apt_get_line(tool.package for tool in missing)}'"
            )
        raise SetUpError(
            "this is not Debian, so nothing is installed for you. Install what these Debian "
            f"packages have, then run make again: {listing}."
        )
    if missing:
        names = [tool.package for tool in missing]
        say(f"installing Debian packages: {' '.join(names)}")
        if "openssh-server" in names:
            keep_ssh_server_off()
        if not install_packages(names, log, update=True):
            raise SetUpError(
                f"Debian packages could not be installed. Run `{apt_get_line(names)}` by hand. "
                f"{LOG} ends:\n{log_tail()}"
            )
        still = missing_tools(tools)
        if still:
            names = [tool.package for tool in still]
            raise SetUpError(f"installed, but still not found on the PATH: {' '.join(names)}")
    if not wants_chromium or CHROMIUM.present():
        return True
    if debian and is_root and (target == "setup" or not recorded().get("without_chromium")):
        say("installing Debian package: chromium (about 100 MB)")
        if install_packages(["chromium"], log, update=not missing) and CHROMIUM.present():
            return True
        say("Chromium could not be installed (logs/setup.log)")
    remedy = "`make setup` tries again" if is_root else f"as an administrator: {apt_get_line(['chromium'])}"
    say(f"no Chromium: figures are made as HTML only, without SVG and PDF ({remedy})")
    return False


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


def pip(arguments: list[str], log: TextIO) -> bool:
    """Run the environment's own pip, unaffected by settings that would send packages elsewhere."""
    environment = {
        **os.environ,
        "PIP_USER": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"):
        environment.pop(name, None)
    return run_logged([str(VENV / "bin" / "python"), "-m", "pip", *arguments], log, environment)


def install_locked(locks: list[str], log: TextIO) -> None:
    """Install exactly what lock files name, each file checked against its hash."""
    options: list[str] = []
    for name in locks:
        options += ["--requirement", f"requirements/{name}"]
    # pip and setuptools are locked themselves, so nothing unlocked takes part in a build.
    if not pip(["install", "--require-hashes", "--no-build-isolation", *options], log):
        raise SetUpError(
            f"Python packages could not be installed from requirements/ ({', '.join(locks)}). {LOG} ends:\n{log_tail()}"
        )


def provide_environment(target: str, log: TextIO) -> None:
    """Make .venv what the locks say; nothing to do when its stamp carries their hash."""
    # The editable install holds absolute paths: a clone that was moved needs a new environment.
    locks = digest("build.txt", "runtime.txt", "test.txt") + f" {ROOT}"
    package = digest("../pyproject.toml", "runtime.in")
    lab = digest("lab.txt")
    stamp = recorded()
    if stamp.get("locks") != locks or not runs(VENV / "bin" / "python"):
        say(f"making the Python environment .venv of {base_python()} (about a minute, 1 GB)")
        STAMP.unlink(missing_ok=True)
        if not run_logged([base_python(), "-m", "venv", "--clear", str(VENV)], log):
            raise SetUpError(f"no Python environment could be made. {LOG} ends:\n{log_tail()}")
        install_locked(["build.txt"], log)
        install_locked(["runtime.txt", "test.txt"], log)
        stamp = {"locks": locks}
    if stamp.get("package") != package:
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
        if not pip(["install", *options, "--editable", "."], log):
            raise SetUpError(f"the package quicbed could not be installed. {LOG} ends:\n{log_tail()}")
        stamp = {**stamp, "package": package}
    if target == "lab" and stamp.get("lab") != lab:
        say("adding JupyterLab to .venv (half a minute, 100 MB)")
        install_locked(["lab.txt"], log)
        stamp = {**stamp, "lab": lab}
    if stamp != recorded():
        write_stamp(stamp)


def runs(python: Path) -> bool:
    """Does this interpreter start? It does not when the one it was made of was removed."""
    try:
        return subprocess.run([str(python), "-IS", "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


def release_stale_lock() -> None:
    """Remove the lock a killed Snakemake left in this directory, unless one is at work here."""
    locks = ROOT / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()):
        return
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = (process / "cwd").readlink() == ROOT
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if here and b"snakemake" in words:
            raise SetUpError(f"Snakemake is at work in this clone already (process {process.name}).")
    shutil.rmtree(locks)
    say("removed the lock that a killed Snakemake had left")


def write_stamp(stamp: dict[str, object]) -> None:
    """Record a complete set-up; never half a file."""
    partial = STAMP.with_suffix(".partial")
    partial.write_text(json.dumps(stamp, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(STAMP)


def set_up(target: str) -> None:
    """Check and provide all that a Makefile target needs."""
    check_python()
    measures = target in MEASURING_TARGETS
    tools = list(MEASURING_TOOLS) if measures else [PYTHON_VENV]
    if target == "test":
        tools += (*SSH_TOOLS, *SLURM_TOOLS)
    if measures and os.geteuid() != 0:
        missing = missing_tools(tools)
        raise SetUpError(root_needed(target, missing if CHROMIUM.present() else [*missing, CHROMIUM]))
    if measures or target == "check":
        check_rust()
        check_go()
    LOG.parent.mkdir(exist_ok=True)
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w", encoding="utf-8") as lock, LOG.open("a", encoding="utf-8") as log:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this clone")
            fcntl.flock(lock, fcntl.LOCK_EX)
        started = time.monotonic()
        has_browser = provide_packages(target, tools, target != "check", log)
        provide_environment(target, log)
        stamp = {**recorded(), "without_chromium": not has_browser}
        if target != "check" and stamp != recorded():
            write_stamp(stamp)
        if measures:
            check_namespaces()
        if target in SNAKEMAKE_TARGETS:
            release_stale_lock()
        elapsed = time.monotonic() - started
        if elapsed > 1:
            say(f"done in {elapsed:.0f} s")


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
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted; run the same command again to go on")


if __name__ == "__main__":
    main()
