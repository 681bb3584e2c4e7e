"""A process whose copies are fake endpoints. For tests of the driver, see `faketestbed`.

`nursery.py PID ROOM`, where ROOM is as long as command lines may be, has a socket as its standard input. Each message
on it is the JSON of an argv, an environment and a working directory, with the descriptors of standard output, standard
error and a pipe. On the pipe it writes the PID of the endpoint, and when that has ended exit code, processor times in s
and the largest memory in bytes, a JSON line each. All end with the process PID.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # prctl(2)
MOST = 1 << 20


def end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, which may have happened already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def show(argv: list[str]) -> None:
    """Let this be the command line that others see of this process, in the room of the one it was started with."""
    begin, end = map(int, Path("/proc/self/stat").read_text("ascii").rpartition(")")[2].split()[45:47])
    room = end - begin
    words = "\0".join(argv).encode()[: room - 1]
    ctypes.memmove(begin, words.ljust(room, b"\0"), room)


def endpoint(asked: dict[str, object]) -> int:
    import fake_endpoint

    if asked["cwd"] is not None:
        os.chdir(str(asked["cwd"]))
    os.environ.clear()
    os.environ.update(asked["env"])  # type: ignore[call-overload]
    sys.argv = asked["argv"]  # type: ignore[assignment]
    show(sys.argv)
    try:
        return fake_endpoint.main()
    except Exception:  # noqa: BLE001 (as the interpreter does)
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


def watch(message: bytes, out: int, err: int, told: int) -> None:
    """Start an endpoint and tell of it; returns in neither process."""
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            end_with(watcher)
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.closerange(3, 64)
            os._exit(endpoint(json.loads(message)))
        finally:
            os._exit(1)
    # its session is there when somebody hears of it
    while os.getsid(pid) != pid:
        pass
    os.write(told, f"{pid}\n".encode())
    os.close(out)
    os.close(err)
    _, status, usage = os.wait4(pid, 0)
    ended = [os.waitstatus_to_exitcode(status), usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024]
    with contextlib.suppress(BrokenPipeError):
        os.write(told, f"{json.dumps(ended)}\n".encode())
    os._exit(0)


def main() -> None:
    end_with(int(sys.argv[1]))
    sys.path.insert(0, str(Path(__file__).parent))
    import fake_endpoint  # noqa: F401 (for the copies)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers need no waiting for
    listening = socket.socket(fileno=os.dup(0))
    own = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(listening, MOST, 3)
        if not message:
            return
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            end_with(own)
            watch(message, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
