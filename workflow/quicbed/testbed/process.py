"""Programs in a network namespace: started by a thread in it, and ended with the driver."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from quicbed.base.untrusted import one_line
from quicbed.config.model import Limits

from .agent import LOOK_S, cpu_seconds, memory_bytes, pin, pinned, send_to_all
from .base import PACKAGES, Completed, Confined, Exit, Process, TestbedError
from .confinement import View, seen

# Root's PATH lacks these for some ways of becoming root.
SYSTEM_DIRECTORIES = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
_CLONE_NEWPID = 0x20000000
_ENDING_S = 20.0
_OF_PROCESS = (
    ("fsize", "file_bytes", resource.RLIMIT_FSIZE),
    ("data", "memory_bytes", resource.RLIMIT_DATA),
    ("nofile", "open_files", resource.RLIMIT_NOFILE),
)
# The fourth word of proc_pid_stat(5) is the parent, also where that is in another namespace; getppid(2) says 0 then.
_WITH_PARENT = 'read -r _ _ _ parent _ </proc/self/stat; [ "$parent" = "$1" ] || exit 1; shift; exec "$@"'
_libc = ctypes.CDLL(None, use_errno=True)


def find_program(name: str, cwd: Path | None = None) -> str | None:
    """Path of a program that can be executed, or ``None``."""
    if "/" in name:
        path = (cwd or Path.cwd()) / name
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_DIRECTORIES}")


def require_tools(names: Sequence[str]) -> None:
    """:class:`TestbedError` naming the Debian packages of the tools that are missing."""
    missing = [name for name in names if find_program(name) is None]
    if missing:
        raise TestbedError(f"missing: {', '.join(missing)}; {installation(missing)}")


def installation(names: Sequence[str], place: str = "") -> str:
    """How missing programs are installed, as far as they are known in Debian; *place* is empty or ` there`."""
    packages = " ".join(sorted({PACKAGES[name] for name in names if name in PACKAGES}))
    return f"install{place} with: apt-get install {packages}" if packages else f"install it{place}, or name its path"


def _program(where: str, name: str, cwd: Path | None) -> str:
    program = find_program(name, cwd)
    if program is None:
        package = f"; install with: apt-get install {PACKAGES[name]}" if name in PACKAGES else ""
        raise TestbedError(f"{where}: cannot run {name}: no such program or not executable{package}")
    # setpriv exits with 127 when it cannot execute, which an endpoint uses for "unsupported".
    with open(program, "rb") as file:
        first = file.readline(256)
    if first.startswith(b"#!"):
        words = first[2:].split()
        interpreter = words[0].decode(errors="replace") if words else ""
        if not os.access(interpreter, os.X_OK):
            raise TestbedError(f"{where}: cannot run {name}: its interpreter {interpreter!r} is missing")
    return program


def start(
    where: str,
    argv: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    bound: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program from the calling thread, in a session of its own and killed when that thread
    ends.

    setpriv(1) sets the parent-death signal: code run between fork and exec is unsafe in a process
    with threads. Whoever is killed before that sends none, so a shell looks for its parent after it;
    a program that is *bound* ends with its namespace of processes anyway.
    """
    program = _program(where, argv[0], cwd)
    words = [_program(where, "setpriv", None), "--pdeathsig", "KILL", "--"]
    if not bound:
        words += [_program(where, "sh", None), "-c", _WITH_PARENT, "sh", str(os.getpid())]
    return subprocess.Popen(
        [*words, program, *argv[1:]],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=None if env is None else dict(env),
        cwd=cwd,
        start_new_session=True,
    )


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def start_confined(
    where: str,
    argv: Sequence[str],
    confined: Confined,
    *,
    stdout: IO[bytes],
    stderr: IO[bytes],
    env: Mapping[str, str],
    cwd: Path | None = None,
    view: View | None = None,
) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes] | None]:
    """As :func:`start`, in a namespace of processes (pid_namespaces(7)) of its own and with limits.

    *view* is that of a user of its own, if it is to have one. Returns the program and the namespace's first process,
    with which all in it ends, whatever session it is in; None where the kernel makes no such namespace, which there is
    no view without.
    """
    program = _program(where, argv[0], cwd)  # whose absence the programs before it would tell in their words
    limited = ["prlimit", "--core=0"]
    wanted = {option: (number, confined.amounts[name]) for option, name, number in _OF_PROCESS}
    if view is not None:  # otherwise it would count what others run as this user
        wanted["nproc"] = (resource.RLIMIT_NPROC, confined.amounts["processes"])
    for option, (number, value) in wanted.items():
        hard = resource.getrlimit(number)[1]
        limited.append(f"--{option}={value if hard == resource.RLIM_INFINITY else min(value, hard)}")
    limited.append("--")
    if view is None and not has_process_namespaces():
        return start(where, [*limited, *argv], stdout=stdout, stderr=stderr, env=env, cwd=cwd), None
    own = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.unshare(_CLONE_NEWPID))
        quiet = subprocess.DEVNULL
        first = start(where, ["sleep", "infinity"], stdout=quiet, stderr=quiet, env={"PATH": SYSTEM_DIRECTORIES})
        try:
            # its own /proc: what is in there by number would be other processes
            inside = [*limited, "unshare", "--mount-proc"]
            inside += ["--", *argv] if view is None else ["--ipc", "--", *_as_user(view), program, *argv[1:]]
            with contextlib.nullcontext() if view is None else seen(view):
                return start(where, inside, stdout=stdout, stderr=stderr, env=env, cwd=cwd, bound=True), first
        except BaseException:
            first.kill()
            first.wait()
            raise
    finally:
        # what this thread starts from now on is as before
        _check(_libc.setns(own, _CLONE_NEWPID))
        os.close(own)


def _as_user(view: View) -> list[str]:
    """Words before a program that become the user of a view, with which the parent-death signal is lost."""
    words = ["setpriv", "--pdeathsig", "KILL", "--reuid", str(view.user), "--regid", str(view.user), "--clear-groups"]
    kept = "".join(f",+{name}" for name in view.capabilities)
    return [
        *words,
        *(f"--{which}=-all{kept}" for which in ("inh-caps", "ambient-caps", "bounding-set")),
        "--no-new-privs",
    ]


def user_problem(view: View) -> str | None:
    """Why programs cannot have a view and be its user, None if they can: tried on a program that ends at once."""
    try:
        with open(os.memfd_create("said"), "w+b") as said:
            options: dict[str, Any] = {"stdout": said, "stderr": said, "env": {"PATH": SYSTEM_DIRECTORIES}}
            ended = LocalProcess(
                *start_confined("this machine", ["true"], Confined(Limits()), view=view, cwd=Path("/"), **options)
            ).wait(_ENDING_S)
            said.seek(0)
            text = one_line(said.read(4096).decode(errors="replace"), 300)
    except (OSError, TestbedError, TimeoutError) as error:
        return one_line(error)
    return None if ended.returncode == 0 else text or f"exit status {ended.returncode}"


@functools.cache
def has_process_namespaces() -> bool:
    """Whether programs can be given a namespace of processes with a /proc of its own."""
    try:
        argv = [_program("this machine", "unshare", None), "--pid", "--fork", "--mount-proc", "true"]
        return subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0
    except (TestbedError, OSError, subprocess.TimeoutExpired):
        return False


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def finish(
    where: str,
    argv: Sequence[str],
    process: subprocess.Popen[bytes],
    *,
    timeout: float,
    check: bool,
    text: str | None,
) -> Completed:
    """Wait for a program started with pipes and return its output."""
    try:
        stdout, stderr = process.communicate(None if text is None else text.encode(), timeout)
    except subprocess.TimeoutExpired:
        raise TestbedError(f"{where}: {' '.join(argv)}: still running after {timeout:g} s") from None
    finally:
        # Also on an exception such as Ctrl-C; the process is not reaped yet, so the number is still
        # its own.
        if process.returncode is None:
            _kill_group(process.pid)
            process.communicate()
    done = Completed(
        tuple(argv),
        process.returncode,
        stdout.decode(errors="replace"),
        stderr.decode(errors="replace"),
    )
    if check and done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = lines[-1] if lines else "no message"
        raise TestbedError(f"{where}: {' '.join(argv)}: exit status {done.returncode}: {reason}")
    return done


class LocalProcess(Process):
    """A program on this machine, started with :func:`start` or :func:`start_confined`."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        first: subprocess.Popen[bytes] | None = None,
        look: Callable[[Sequence[int]], str | None] | None = None,
    ) -> None:
        """*first* is the first process of its namespace, if it has one of its own.

        *look* is called from time to time with the processes that all others of the program descend from, and what it
        returns is why the program is killed.
        """
        self._popen = popen
        self._first = first
        self.pid = popen.pid
        self._exit: Exit | None = None
        self._exceeded: str | None = None
        self._lock = threading.Lock()
        self._pidfd = os.pidfd_open(popen.pid)
        if look is not None:
            threading.Thread(target=self._watch, args=(os.pidfd_open(popen.pid), look), daemon=True).start()

    def _watch(self, pidfd: int, look: Callable[[Sequence[int]], str | None]) -> None:
        """Kill the program once it exceeds a limit; ends with it."""
        # what has lost its parent is a child of the namespace's first process
        pids = [self.pid, *(() if self._first is None else (self._first.pid,))]
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        try:
            while not poller.poll(LOOK_S * 1000):
                problem = look(pids)
                if problem is not None:
                    with self._lock:
                        if self._exit is None:
                            self._exceeded = problem
                            self._kill_all()
                    return
        finally:
            os.close(pidfd)

    def poll(self) -> Exit | None:
        with self._lock:
            if self._exit is not None:
                return self._exit
            # Look without reaping: as long as the process is a zombie, its number and group are its
            # own.
            try:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
                self._kill_all()
                _, status, usage = os.wait4(self.pid, 0)
            except ChildProcessError:
                # a signal to this process came between reaping it and keeping how it ended, which nobody knows now
                status, usage = signal.SIGKILL, resource.struct_rusage([0] * len(resource.getrusage(0)))
            self._popen.returncode = os.waitstatus_to_exitcode(status)
            self._exit = Exit(
                returncode=self._popen.returncode,
                user_s=usage.ru_utime,
                system_s=usage.ru_stime,
                max_rss_bytes=usage.ru_maxrss * 1024,
                exceeded=self._exceeded,
            )
            os.close(self._pidfd)
            if self._first is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # something is stuck in the kernel
                    self._first.wait(_ENDING_S)  # it ends after all that was in the namespace
            return self._exit

    def _kill_all(self) -> None:
        """Kill its group and, if it has a namespace of its own, all that is in there."""
        _kill_group(self.pid)
        if self._first is not None:
            self._first.kill()

    def wait(self, timeout: float) -> Exit:
        done = self.poll()
        if done is None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            poller.poll(max(0.0, timeout) * 1000)
            done = self.poll()
        if done is None:
            raise TimeoutError(f"process {self.pid} still running after {timeout:g} s")
        return done

    def signal(self, number: int) -> None:
        with self._lock:
            if self._exit is None:
                if number == signal.SIGKILL:
                    self._kill_all()
                else:
                    # as in `poll`, it may have been reaped though this is not known
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def sample_run_delay(self) -> float | None:
        total = 0
        try:
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                total += int((thread / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return None
        return total / 1e9 if self._exit is None else None

    def sample_cpu(self) -> float | None:
        used = cpu_seconds(self.pid)
        return used if self._exit is None else None

    def sample_memory(self) -> int | None:
        taken = memory_bytes(self.pid)
        return taken if self._exit is None else None

    def hold(self) -> None:
        with self._lock:
            if self._exit is None:
                send_to_all(self.pid, signal.SIGSTOP)

    def release(self) -> None:
        with self._lock:
            if self._exit is None:
                send_to_all(self.pid, signal.SIGCONT)

    def pin(self, cpu: int) -> None:
        with self._lock:
            if self._exit is None:
                pin(self.pid, cpu)

    def pinned(self, cpu: int) -> bool:
        with self._lock:
            return self._exit is not None or pinned(self.pid, cpu)
