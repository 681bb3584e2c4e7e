"""State, locks and programs of hosts that other users of the machine, and other machines, cannot reach."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentclient import Client, spawn, taken
from quicbed.builds import kit
from quicbed.testbed import TestbedError, agent
from quicbed.testbed.lock import Lock, _Holder, _space, require_own, runtime_directory
from quicbed.testbed.remote import SshTestbed, state_directory
from quicbed.testbed.ssh import _BOOTSTRAP


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[[], Client]]:
    """Starts agents of one host."""
    directory = tmp_path / "host"
    directory.mkdir(mode=0o755)
    started: list[Client] = []

    def start() -> Client:
        started.append(Client(directory))
        return started[-1]

    yield start
    for client in started:
        client.end()


# ---- directories and locks -------------------------------------------------------------------------------------------


def test_a_directory_of_state_is_its_user_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in (0o777, 0o775, 0o702):
        own = tmp_path / f"{mode:o}"
        own.mkdir()
        own.chmod(mode)
        with pytest.raises(TestbedError, match=f"{mode:o}: is not a directory of this user that nobody else may write"):
            require_own(own)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(TestbedError, match="link: is not a directory of this user"):
        require_own(link)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert stat.S_IMODE(state_directory().stat().st_mode) & 0o022 == 0
    (tmp_path / "quicbed").chmod(0o777)
    with pytest.raises(TestbedError, match="is not a directory of this user"):
        state_directory()


@pytest.mark.root
def test_a_directory_of_state_that_is_somebody_else_s_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(TestbedError, match=r"chown \d+ .*; chmod go-w"):
        require_own(tmp_path)
    os.chown(tmp_path, 0, 0)


def bootstrap(directory: Path) -> dict[str, Any]:
    """What the start of an agent says about its directory."""
    wanted = json.dumps({"directory": str(directory), "sha256": "0" * 64, "size": 1}).encode() + b"\nx"
    done = subprocess.run([sys.executable, "-I", "-c", _BOOTSTRAP], input=wanted, capture_output=True, check=False)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_an_agent_does_not_start_where_others_may_write(tmp_path: Path) -> None:
    directory = tmp_path / "agent-s"
    directory.mkdir(mode=0o755)
    assert bootstrap(directory) == {"error": "the agent arrived damaged"}
    directory.chmod(0o777)
    assert "nobody else may write to" in bootstrap(directory)["error"]
    directory.chmod(0o755)
    (directory / "agent").chmod(0o775)
    assert "nobody else may write to" in bootstrap(directory)["error"]
    link = tmp_path / "link"
    link.symlink_to(directory)
    assert "nobody else may write to" in bootstrap(link)["error"]


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_locks_cannot_be_opened_by_others(tmp_path: Path, host: Callable[[], Client]) -> None:
    (tmp_path / "test.lock").touch(mode=0o644)  # of an earlier version
    lock = Lock(tmp_path / "test.lock", "test")
    lock.acquire()
    assert mode_of(tmp_path / "test.lock") == 0o600
    lock.release()
    taken(host)
    assert mode_of(tmp_path / "host" / "lock") == 0o600
    (tmp_path / "work").mkdir(mode=0o755)
    with kit.locked(tmp_path / "work" / "build.lock"):
        assert mode_of(tmp_path / "work" / "build.lock") == 0o600
    assert runtime_directory().is_dir()


def test_a_lock_that_is_a_link_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "test.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Lock(tmp_path / "test.lock", "test").acquire()
    assert not (tmp_path / "elsewhere").exists()


# ---- who has a lock --------------------------------------------------------------------------------------------------


def test_a_holder_is_gone_only_where_its_processes_can_be_seen() -> None:
    boot, namespace = _space()
    dead = {"pid": 1, "start_ticks": -1, "since": "now"}
    assert not _Holder.parse(json.dumps(dead | {"space": [boot, namespace]}).encode()).is_alive()  # type: ignore[union-attr]
    assert _Holder.parse(json.dumps(dead | {"space": [boot, "pid:[1]"]}).encode()).is_alive()  # type: ignore[union-attr]
    assert not _Holder.parse(json.dumps(dead | {"space": ["another", namespace]}).encode()).is_alive()  # type: ignore[union-attr]
    assert _Holder.this_process().is_alive()


@pytest.mark.parametrize(
    ("space", "gone"), [(None, False), ("same", True), (["another", "pid:[1]"], False), ("namespace", False)]
)
def test_a_controller_is_gone_only_where_its_processes_can_be_seen(space: Any, gone: bool) -> None:
    from quicbed.testbed.facts import host_id

    own = _space()
    space = own if space == "same" else [own[0], "pid:[1]"] if space == "namespace" else space
    holder = {"session": "x", "controller": host_id(), "pid": 1, "pid_ticks": -1, "space": space}
    testbed = cast(SshTestbed, SimpleNamespace(session="mine", where="testbed pair"))
    assert SshTestbed._is_gone(testbed, holder) is gone
    assert SshTestbed._is_gone(testbed, {"session": "mine"})


def test_an_agent_of_another_namespace_is_not_ended(host: Callable[[], Client], tmp_path: Path) -> None:
    first = taken(host, "a")
    lock = tmp_path / "host" / "lock"
    known = json.loads(lock.read_text())
    assert known["agent_space"] == _space()
    known["agent_space"][1] = "pid:[1]"
    lock.write_text(json.dumps(known))
    second = host()
    found = second.ask("acquire", holder={"session": "b", "who": "b"}, replace=known)
    assert found["session"] == "a"
    assert first.ask("ping") > 0


# ---- programs on a host ----------------------------------------------------------------------------------------------

LIMITS = {"file_bytes": 1 << 20, "memory_bytes": 1 << 30, "open_files": 64}
LIMITS |= {"total_memory_bytes": 100 << 20, "processes": 40}


@pytest.mark.root
def test_all_that_a_confined_program_has_started_ends_with_it(host: Callable[[], Client], tmp_path: Path) -> None:
    client = taken(host)
    away = f"setsid sh -c 'setsid sleep 1000 & sleep 1000' sh {tmp_path}/marked </dev/null >/dev/null 2>&1 & "
    pid = spawn(client, tmp_path, f"{away} sleep 0.2; exit 5", confined=LIMITS)
    assert client.ask("wait", pid=pid, timeout=20)["returncode"] == 5
    assert not subprocess.run(["pgrep", "-f", f"{tmp_path}/marked"], capture_output=True, check=False).stdout
    pid = spawn(client, tmp_path, f"{away} sleep 1000", confined=LIMITS)
    time.sleep(0.2)
    client.ask("signal", pid=pid, number=9)
    assert client.ask("wait", pid=pid, timeout=20)["returncode"] == -9
    assert not subprocess.run(["pgrep", "-f", f"{tmp_path}/marked"], capture_output=True, check=False).stdout
    # what is started next is as before
    assert client.ask("run", argv=["readlink", "/proc/self/ns/pid"], timeout=9)["stdout"].strip() == _space()[1]


def test_a_confined_program_has_limits_and_named_variables(
    host: Callable[[], Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("https_proxy", "kept")
    client = taken(host)
    pid = spawn(
        client, tmp_path, "ulimit -n; env", confined=LIMITS, inherited=["HOME", "http*_proxy"], env={"OWN": "1"}
    )
    assert client.ask("wait", pid=pid, timeout=20)["returncode"] == 0
    number, *seen = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert number == "64"
    assert "AWS_SECRET_ACCESS_KEY=secret" not in seen
    assert {"https_proxy=kept", "OWN=1"} <= set(seen)
    pid = spawn(client, tmp_path, "exec head -c 2000000 /dev/zero >&2", confined=LIMITS)
    assert client.ask("wait", pid=pid, timeout=20)["returncode"] == -25  # SIGXFSZ


@pytest.mark.parametrize(
    ("script", "exceeded"),
    [
        (
            "for _ in 1 2 3 4; do setsid python3 -c \"x = b'x' * (40 << 20); import time; time.sleep(60)\" &"
            " done; wait",
            "took more than 100 MiB of memory (limits.total_memory_mib)",
        ),
        (
            "for _ in $(seq 50); do setsid sleep 60 & done; wait",
            "had more than 40 processes and threads (limits.processes)",
        ),
    ],
)
def test_a_confined_program_is_ended_for_what_all_that_it_has_started_takes(
    host: Callable[[], Client], tmp_path: Path, script: str, exceeded: str
) -> None:
    client = taken(host)
    ended = client.ask("wait", pid=spawn(client, tmp_path, script, confined=LIMITS), timeout=20)
    assert (ended["returncode"], ended["exceeded"]) == (-9, exceeded)
    pid = spawn(client, tmp_path, "sleep 0.6", confined=LIMITS)
    ended = client.ask("wait", pid=pid, timeout=20)
    assert (ended["returncode"], ended["exceeded"]) == (0, None)


def test_an_agent_waits_for_no_fifo(host: Callable[[], Client], tmp_path: Path) -> None:
    client = taken(host)
    os.mkfifo(tmp_path / "fifo")
    pid = spawn(client, tmp_path, "sleep 1000")
    late = client.ask("await_text", path=str(tmp_path / "fifo"), text="ready", pid=pid, timeout=0.1)
    assert late == "late"
    with pytest.raises(agent.AgentError, match="is not a regular file"):
        client.ask("read", path=str(tmp_path / "fifo"))
    assert client.ask("read", path="/proc/self/stat")
