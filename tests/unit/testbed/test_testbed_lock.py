"""The lock of a testbed and the state file of its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quicbed.testbed import TestbedError
from quicbed.testbed.lock import HostSetting, Lock, State

HOLDER = """
import sys, time
from pathlib import Path
from quicbed.testbed.lock import Lock
Lock(Path(sys.argv[1]), "t").acquire()
print("locked", flush=True)
time.sleep(600)
"""


def _environment(repository: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repository / "workflow")}


def test_a_second_driver_is_told_who_holds_the_lock(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(repository),
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            with pytest.raises(TestbedError, match=rf"in use by process {holder.pid} since 20"):
                Lock(path, "t").acquire()
        finally:
            holder.send_signal(signal.SIGKILL)
    lock = Lock(path, "t")  # a crash leaves no lock
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]"])
def test_a_lock_that_a_program_still_shares_with_a_dead_driver_is_awaited(
    repository: Path, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "t.lock"
    dying = HOLDER.replace("time.sleep(600)", "import os; os.fork() == 0 and time.sleep(0.5)")
    subprocess.run(
        [sys.executable, "-c", dying, str(path)],
        stdout=subprocess.DEVNULL,
        check=True,
        env=_environment(repository),
    )
    if content is not None:
        path.write_bytes(content)
    lock = Lock(path, "t")
    lock.acquire()
    lock.release()


def test_a_lock_that_was_released_can_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "t.lock"
    first, second = Lock(path, "t"), Lock(path, "t")
    first.acquire()
    with pytest.raises(TestbedError, match=f"process {os.getpid()} "):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_programs_do_not_inherit_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "t.lock"
    lock = Lock(path, "t")
    lock.acquire()
    with subprocess.Popen(["sleep", "600"], close_fds=False) as program:
        try:
            lock.release()
            again = Lock(path, "t")
            again.acquire()
            again.release()
        finally:
            program.kill()


def test_state_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert State.read(path) is None
    state = State("t", ["a", "b"], [HostSetting("/proc/sys/net/x", "reno bbr", "reno bbr cubic")])
    state.write(path)
    assert State.read(path) == state
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 99}',
        '{"format": 1, "testbed": "t"}',
        '{"format": 1, "testbed": "t", "namespaces": 3, "host_settings": []}',
        json.dumps(
            {
                "format": 1,
                "testbed": "t",
                "namespaces": [],
                "host_settings": [{"path": "/etc/passwd", "before": "", "changed_to": ""}],
            }
        ),
        json.dumps(
            {
                "format": 1,
                "testbed": "t",
                "namespaces": [],
                "host_settings": [{"path": "/proc/sys/../../etc/passwd", "before": "", "changed_to": ""}],
            }
        ),
    ],
)
def test_a_damaged_state_file_is_not_believed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r".+"):
        State.read(path)


def test_a_setting_is_put_back_unless_somebody_else_changed_it(tmp_path: Path) -> None:
    file = tmp_path / "setting"
    setting = HostSetting(str(file), "reno bbr", "reno bbr cubic")
    file.write_text("reno cubic bbr\n")
    setting.restore()
    assert file.read_text() == "reno bbr"
    file.write_text("reno vegas\n")
    setting.restore()
    assert file.read_text() == "reno vegas\n"
