"""Programs started by a testbed: exit, signals, process groups, errors before they start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quicbed.testbed import TestbedError
from quicbed.testbed import process as module
from quicbed.testbed.process import LocalProcess, find_program, finish, require_tools, start

PATIENCE_S = 60.0


@pytest.fixture
def launch() -> Iterator[Callable[..., LocalProcess]]:
    """Starts programs and kills what is left of them after the test."""
    started: list[LocalProcess] = []

    def launch(*argv: str, stdout: int = subprocess.DEVNULL) -> LocalProcess:
        started.append(LocalProcess(start("here", argv, stdout=stdout, stderr=subprocess.DEVNULL)))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)


def _gone(pid: int) -> bool:
    """Whether a process has ended, or is a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_exit_status_and_use_of_resources(launch: Callable[..., LocalProcess]) -> None:
    process = launch("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 7")
    done = process.wait(PATIENCE_S)
    assert done.returncode == 7
    assert done.user_s > 0
    assert done.max_rss_bytes > 2**20
    assert process.poll() == done
    assert process.sample_run_delay() is None


def test_a_signal_is_a_negative_status(launch: Callable[..., LocalProcess]) -> None:
    process = launch("sleep", "600")
    assert process.poll() is None
    delay = process.sample_run_delay()
    assert delay is not None
    assert delay >= 0
    process.terminate()
    assert process.wait(PATIENCE_S).returncode == -signal.SIGTERM
    process.terminate()  # nothing to do
    process.kill()


def test_a_process_that_was_reaped_as_this_one_was_interrupted_has_ended(
    launch: Callable[..., LocalProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come between the system call that reaps and keeping what it said; putting back goes on."""
    process = launch("true")

    def interrupted(pid: int, options: int) -> None:
        os.waitpid(pid, options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "wait4", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.wait(10)
    process.terminate()  # what was waited for is ended first, as its number is not known to be free
    ended = process.wait(10)
    assert ended.returncode == -signal.SIGKILL
    process.kill()
    assert process.poll() == ended


def test_waiting_ends_at_the_time_limit(launch: Callable[..., LocalProcess]) -> None:
    process = launch("sleep", "600")
    with pytest.raises(TimeoutError, match=f"process {process.pid} still running"):
        process.wait(0.05)


def test_kill_reaches_the_whole_group(launch: Callable[..., LocalProcess], tmp_path: Path) -> None:
    file = tmp_path / "pid"
    process = launch("sh", "-c", f"sleep 600 & echo $! >{file}.part; mv {file}.part {file}; wait")
    _await(file.exists)
    child = int(file.read_text())
    assert not _gone(child)
    process.kill()
    assert process.wait(PATIENCE_S).returncode == -signal.SIGKILL
    _await(lambda: _gone(child))


def test_no_program_of_the_group_outlives_its_leader(launch: Callable[..., LocalProcess], tmp_path: Path) -> None:
    file = tmp_path / "pid"
    process = launch("sh", "-c", f"sleep 600 & echo $! >{file}")
    assert process.wait(PATIENCE_S).returncode == 0
    _await(lambda: _gone(int(file.read_text())))


def test_a_missing_program_is_an_error_before_anything_starts() -> None:
    with pytest.raises(TestbedError, match="client: cannot run no-such-program: no such program"):
        start("client", ["no-such-program"])


def test_a_missing_interpreter_is_not_taken_for_an_unsupported_variant(tmp_path: Path) -> None:
    script = tmp_path / "endpoint"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(TestbedError, match=r"interpreter '/no/such/interpreter' is missing"):
        start("server", [str(script)])


def test_a_program_is_found_relative_to_its_directory(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "tool"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    assert find_program("bin/tool", tmp_path) is None  # not executable
    script.chmod(0o755)
    assert find_program("bin/tool", tmp_path) == str(script)


def test_missing_tools_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "SYSTEM_DIRECTORIES", str(tmp_path))
    with pytest.raises(TestbedError) as error:
        require_tools(["ip", "tc", "tcpdump"])
    assert str(error.value) == ("missing: ip, tc, tcpdump; install with: apt-get install iproute2 tcpdump")


def _finish(argv: list[str], **options: object) -> object:
    settings = {"timeout": PATIENCE_S, "check": True, "text": None, **options}
    return finish("client", argv, start("client", argv), **settings)  # type: ignore[arg-type]


def test_output_and_failure_of_a_program() -> None:
    done = _finish(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert done == module.Completed(("sh", "-c", "echo out; echo err >&2; exit 3"), 3, "out\n", "err\n")
    with pytest.raises(TestbedError, match=r"^client: sh -c .*: exit status 3: last$"):
        _finish(["sh", "-c", "echo first >&2; echo last >&2; exit 3"])


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(TestbedError, match=r"still running after 1 s"):
        _finish(["sh", "-c", f"sleep 600 & echo $! >{file}; wait"], timeout=1)
    _await(lambda: _gone(int(file.read_text())))


def test_programs_have_their_own_session_and_no_input() -> None:
    done = _finish(["sh", "-c", "cat; ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat"])
    assert isinstance(done, module.Completed)
    assert int(done.stdout) != os.getsid(0)


DRIVER = """
import subprocess, sys
from pathlib import Path
from quicbed.config.model import Limits
from quicbed.testbed.base import Confined
from quicbed.testbed.process import start, start_confined
argv = ["sh", "-c", "touch started; exec sleep 600"]
options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {}, "cwd": Path.cwd()}
if sys.argv[1] == "confined":
    start_confined("here", argv, Confined(Limits()), **options)
else:
    start("here", argv, **options)
sys.stdin.read()
"""
LATE = """#!/bin/sh
read -r pid _ </proc/self/stat
: >"waiting.$pid"
while [ ! -e go ]; do sleep 0.01; done
exec {setpriv} "$@"
"""


@pytest.mark.parametrize("kind", ["plain", pytest.param("confined", marks=pytest.mark.root)])
def test_no_program_outlives_a_driver_that_is_killed_before_it_asks_for_the_signal(
    repository: Path, tmp_path: Path, kind: str
) -> None:
    """A setpriv(1) that begins late, when its driver has been killed."""
    late = tmp_path / "bin" / "setpriv"
    late.parent.mkdir()
    late.write_text(LATE.format(setpriv=find_program("setpriv")), encoding="utf-8")
    late.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{late.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(repository / "workflow"),
    }
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, kind], stdin=subprocess.PIPE, cwd=tmp_path, env=environment
    )
    count = 2 if kind == "confined" else 1  # the first process of the namespace too
    _await(lambda: len(list(tmp_path.glob("waiting.*"))) == count)
    driver.kill()
    driver.communicate()
    waiting = [int(file.suffix[1:]) for file in tmp_path.glob("waiting.*")]
    assert not any(map(_gone, waiting))
    (tmp_path / "go").touch()
    try:
        _await(lambda: all(map(_gone, waiting)))
        # the second of a namespace may begin before the first, with which it ends, has looked for its parent
        assert kind == "confined" or not (tmp_path / "started").exists()
    finally:
        for pid in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
