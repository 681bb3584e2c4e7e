"""One driver per testbed, and what it left behind if it crashed.

The lock is an flock(2) held by the driver's process alone: it ends with the process, however that
ends. The state file says what the driver has made and changed; it is written before anything is,
and removed after everything is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quicbed.base import durable

from .agent import boot_id, process_namespace, start_ticks
from .base import TestbedError

STATE_FORMAT = 1
_INHERITED_TIMEOUT_S = 5.0


def runtime_directory() -> Path:
    """Directory for locks and state, emptied by a reboot: in /run or in $XDG_RUNTIME_DIR."""
    candidates = [Path("/run")]
    if "XDG_RUNTIME_DIR" in os.environ:
        candidates.append(Path(os.environ["XDG_RUNTIME_DIR"]))
    for parent in candidates:
        directory = parent / "quicbed"
        try:
            directory.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            require_own(directory)
            return directory
    raise TestbedError(
        f"cannot write to {candidates[0] / 'quicbed'}; run as root, or set XDG_RUNTIME_DIR to a writable directory"
    )


def require_own(directory: Path) -> None:
    """TestbedError unless a directory for locks and state belongs to this user, and nobody else may write to it."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise TestbedError(
            f"{directory}: is not a directory of this user that nobody else may write to; move it out of the way, or: "
            f"chown {os.geteuid()} {directory}; chmod go-w {directory}"
        )


def _open_lock(path: Path) -> int:
    """A lock file that only this user can open, and so lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _space() -> list[str]:
    """What the number of a process is of: this boot, and the namespace of processes."""
    return [boot_id(), process_namespace()]


@dataclass(frozen=True)
class _Holder:
    """The process that has a lock, as it says in the lock file."""

    pid: int
    start_ticks: int | None
    since: str
    space: list[str] | None = None
    """What `_space` says where the holder is."""

    @classmethod
    def this_process(cls) -> _Holder:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(os.getpid(), start_ticks(os.getpid()), since, _space())

    @classmethod
    def parse(cls, content: bytes) -> _Holder | None:
        try:
            fields = json.loads(content)
            return cls(int(fields["pid"]), int(fields["start_ticks"]), str(fields["since"]), fields.get("space"))
        except (ValueError, KeyError, TypeError):
            return None

    def format(self) -> bytes:
        return json.dumps(vars(self)).encode()

    def is_alive(self) -> bool:
        """Whether it runs, as far as can be seen from here; one of another namespace does."""
        if self.space is not None and self.space != _space():
            return self.space[:1] == [boot_id()]  # of an earlier boot nobody runs
        return self.start_ticks is not None and start_ticks(self.pid) == self.start_ticks

    def __str__(self) -> str:
        return f"process {self.pid} since {self.since}"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Lock:
    """Exclusive use of a testbed by this process."""

    def __init__(self, path: Path, testbed: str) -> None:
        self._path = path
        self._testbed = testbed
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; :class:`TestbedError` naming its holder if another driver has it."""
        descriptor = _open_lock(self._path)
        try:
            deadline = time.monotonic() + _INHERITED_TIMEOUT_S
            while not _try_lock(descriptor):
                holder = _Holder.parse(os.pread(descriptor, 4096, 0))
                # A driver that was killed while it started a program shares the lock with that
                # program until it has been executed, some milliseconds.
                if (holder is not None and holder.is_alive()) or time.monotonic() > deadline:
                    raise TestbedError(
                        f"testbed {self._testbed} is in use by {holder or 'another process'}; wait for "
                        "it to end or stop it"
                    )
                time.sleep(0.01)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _Holder.this_process().format(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two drivers lock two files."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def host_settings_lock(directory: Path) -> Iterator[None]:
    """Held by any testbed's driver while it changes a setting of the whole machine."""
    descriptor = _open_lock(directory / "host-settings.lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass
class HostSetting:
    """A setting of the whole machine that is changed for a moment: its file and values."""

    path: str
    before: str
    changed_to: str

    def restore(self) -> None:
        """Put the value back, unless somebody has changed it since."""
        path = Path(self.path)
        # The kernel may list the words in another order than they were written.
        if set(path.read_text().split()) == set(self.changed_to.split()):
            path.write_text(self.before)


@dataclass
class State:
    """What a driver makes and changes on the machine."""

    testbed: str
    namespaces: list[str] = field(default_factory=list)
    host_settings: list[HostSetting] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write to *path*, whole or not at all."""
        content = {
            "format": STATE_FORMAT,
            "testbed": self.testbed,
            "pid": os.getpid(),
            "namespaces": self.namespaces,
            "host_settings": [vars(setting) for setting in self.host_settings],
        }
        durable.write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> State | None:
        """The state in *path*, or ``None``; :class:`ValueError` if it is not a state file."""
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        content: Any = json.loads(text)
        try:
            if content["format"] != STATE_FORMAT:
                raise ValueError(f"format {content['format']!r} is not {STATE_FORMAT}")
            for item in content["host_settings"]:
                if not str(item["path"]).startswith("/proc/sys/") or ".." in item["path"]:
                    raise ValueError(f"{item['path']!r} is not a kernel setting")
            return cls(
                testbed=str(content["testbed"]),
                namespaces=[str(name) for name in content["namespaces"]],
                host_settings=[
                    HostSetting(str(item["path"]), str(item["before"]), str(item["changed_to"]))
                    for item in content["host_settings"]
                ],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state file: {error!r}") from error
