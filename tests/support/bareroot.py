"""A system in which nothing has been installed: a minimal root of Debian, made by debootstrap.

It holds what a stranger is asked to have (python3, make, git, certificates) and nothing that this machine or its tests
brought along. Commands run in it through chroot, in mount and process namespaces of their own, so that nothing stays
mounted or running when they end. The machine's network is used; its home directories are not visible.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("ca-certificates", "python3", "make", "git")
USER, USER_ID = "visitor", 1500
# Package clients may be told where their packages come from; nothing else of this machine's environment is passed on.
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "GOPROXY", "GOSUMDB")
# Makes the mounts in a mount namespace of its own; the kernel undoes them with the last process in it.
MOUNTS = """
set -eu
root=$1; before=$2; shift 2
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
eval "$before"
exec chroot "$root" "$@"
"""


class Done(NamedTuple):
    """What a command in a bare root did."""

    code: int
    said: str
    """Standard output and standard error, as they came."""


class BareRoot:
    """The directory of a minimal system."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(
        self,
        command: str,
        *,
        cwd: str = "/",
        user: str = "root",
        timeout: float = 1500,
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        before: str = "",
        store: Path | None = None,
    ) -> Done:
        """Run a shell command; another user than root may not become root by any program.

        *prefix* stands before the whole, as ``("taskset", "-c", "0")``; *before* is run by root's shell after the
        mounts, with the directory of the system in ``$root``; *store* is mounted as the user's store of builds. Raises
        subprocess.TimeoutExpired.
        """
        home = "/root" if user == "root" else f"/home/{user}"
        if store is not None:
            place = f'"$root"{shlex.quote(home)}/.cache/quicbed'
            before = f"mkdir -p {place} && mount --bind {shlex.quote(str(store))} {place}\n{before}"
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "USER": user, "TERM": "dumb"}
        variables |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        variables |= environment or {}
        become = []
        if user != "root":
            ids = ["--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups"]
            become = ["setpriv", *ids, "--no-new-privs", "--bounding-set=-all"]
        words = [*prefix, "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MOUNTS, "sh"]
        words += [
            str(self.directory),
            before,
            *become,
            "env",
            "-i",
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        words += ["sh", "-c", f'cd "$1" && {command}', "sh", cwd]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout
        )
        return Done(done.returncode, done.stdout.decode(errors="replace"))

    def clone(self, repository: Path, place: str, *, user: str = "root") -> Path:
        """A clone of the repository's commit at a place inside, which belongs to the user; returns it as seen here."""
        target = self.directory / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--no-local", str(repository), str(target)], check=True)
        if user != "root":
            self.give(target, user)
        return target

    def give(self, path: Path, user: str) -> None:
        """Let a directory and all below belong to a user of this root."""
        owner = USER_ID if user == USER else 0
        subprocess.run(["chown", "-R", f"{owner}:{owner}", str(path)], check=True)


def problem() -> str | None:
    """Why no bare root can be made here; None where one can."""
    if os.geteuid() != 0:
        return "only root can make a bare root"
    return None if shutil.which("debootstrap") else "debootstrap is not installed"


@contextmanager
def made(directory: Path, suite: str) -> Iterator[BareRoot]:
    """A minimal system of a suite of Debian, removed afterwards; raises RuntimeError with what debootstrap said."""
    try:
        yield _bootstrap(directory, suite)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _bootstrap(directory: Path, suite: str) -> BareRoot:
    # what it mounts goes with it, however it ends
    words = ["unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    words += [suite, str(directory)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"debootstrap {suite}: {done.stdout[-1500:]}")
    root = BareRoot(directory)
    # the network's: name servers, and certificates of proxies that look into connections
    shutil.copy("/etc/resolv.conf", directory / "etc" / "resolv.conf")
    for certificate in Path("/usr/local/share/ca-certificates").glob("*.crt"):
        shutil.copy(certificate, directory / "usr/local/share/ca-certificates")
    made = root.run(f"update-ca-certificates && useradd --create-home --uid {USER_ID} {USER}")
    if made.code != 0:
        raise RuntimeError(made.said)
    return root


@contextmanager
def copy(root: BareRoot, directory: Path) -> Iterator[BareRoot]:
    """A copy of a root that may be changed, removed afterwards."""
    subprocess.run(["cp", "--archive", "--reflink=auto", str(root.directory), str(directory)], check=True)
    try:
        yield BareRoot(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def commands(page: str) -> list[str]:
    """Every command of a page of documentation: lines of its `sh` blocks, and `make ...` in the first cell of a table.

    Comments are cut off, and lines that end in a backslash are joined.
    """
    found = []
    for block in re.findall(r"^[ ]*```sh\n(.*?)^[ ]*```", page, re.DOTALL | re.MULTILINE):
        joined = re.sub(r"\\\n\s*", " ", block)
        lines = (re.sub(r"\s+#.*", "", line).strip() for line in joined.splitlines())
        found += [line for line in lines if line]
    found += re.findall(r"^\| `(make [^`]+)`", page, re.MULTILINE)
    return list(dict.fromkeys(found))
