"""Network namespaces without helper processes: threads that live in one, and the processes in one.

A network namespace belongs to a thread, not to a process. A thread of the driver that has joined
one can read its counters, open sockets and start programs in it, at no cost per call.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from .base import TestbedError

P = ParamSpec("P")
T = TypeVar("T")

CLONE_NEWNET = 0x40000000
RUN_NETNS = Path("/run/netns")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def setns(path: Path) -> None:
    """Move the calling thread into the network namespace at *path* (setns(2))."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, CLONE_NEWNET))
    finally:
        os.close(descriptor)


def unshare() -> None:
    """Move the calling thread into a new network namespace that ends with it (unshare(2))."""
    _check(_libc.unshare(CLONE_NEWNET))


class NamespaceThread:
    """A thread that lives in a network namespace and makes calls there.

    The parent-death signal of a program started here comes when this thread ends (prctl(2),
    PR_SET_PDEATHSIG), so the thread has to outlive the programs.
    """

    def __init__(self, name: str, enter: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        try:
            self.call(enter)
        except BaseException:
            self.close()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Result of the call, made in the namespace."""
        return self._pool.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=True)


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Device and inode of a namespace, which name it uniquely while it lives."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_namespace(path: Path) -> bool:
    """Whether *path* is a mounted namespace, not the empty file an interrupted creation leaves."""
    here, there = _identity("/proc/self/ns/net"), _identity(path)
    return here is not None and there is not None and here[0] == there[0]


def processes(path: Path) -> Iterator[int]:
    """Processes of the network namespace at *path*."""
    namespace = _identity(path)
    if namespace is None or not is_namespace(path):
        return
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries if entry.name.isdigit()]
    for name in names:
        if _identity(f"/proc/{name}/ns/net") == namespace:
            yield int(name)


def kill_processes(path: Path, timeout: float = 20) -> None:
    """Kill every process in the namespace at *path*, including ones started meanwhile."""
    deadline = time.monotonic() + timeout
    while pids := [pid for pid in processes(path) if pid != os.getpid()]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise TestbedError(
                f"{path.name}: process {pids[0]} does not end after SIGKILL; it is probably stuck in the kernel, reboot"
            )
        time.sleep(0.005)
