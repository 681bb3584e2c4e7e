"""Programs of endpoints on the local testbed: what they see of the environment, what they may use, what they leave."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quicbed.config.model import Limits
from quicbed.testbed import Confined, LocalTestbed
from quicbed.testbed.process import LocalProcess, has_process_namespaces, start, start_confined

pytestmark = pytest.mark.root
LIMITS = Confined(Limits(file_mib=1, memory_mib=256, open_files=64))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where programs write; nothing that they have started runs afterwards."""
    yield tmp_path
    assert not alive(tmp_path)


def alive(place: Path) -> list[int]:
    """Processes whose command line names a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(place).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def run(place: Path, script: str, *, wait_s: float | None = 20, confined: Confined = LIMITS) -> LocalProcess:
    argv = ["/bin/sh", "-c", script, "sh", str(place)]
    with (place / "out").open("wb") as out, (place / "err").open("wb") as err:
        process = LocalProcess(
            *start_confined("here", argv, confined, stdout=out, stderr=err, env={"PATH": os.environ["PATH"]})
        )
    if wait_s is not None:
        process.wait(wait_s)
    return process


ESCAPED = "setsid sh -c 'setsid sleep 1000 </dev/null >/dev/null 2>&1 & sleep 1000' sh \"$1\" & "


def test_what_a_program_has_started_ends_with_it(place: Path) -> None:
    process = run(place, f"{ESCAPED} sleep 0.2; exit 3")
    ended = process.poll()
    assert ended is not None
    assert ended.returncode == 3
    assert not alive(place)


def test_what_a_program_has_started_is_killed_with_it(place: Path) -> None:
    process = run(place, f"{ESCAPED} sleep 1000", wait_s=None)
    while len(alive(place)) < 2:
        time.sleep(0.01)
    process.kill()
    assert process.wait(20).returncode == -9
    assert not alive(place)


def test_a_program_is_ended_by_a_signal_as_outside(place: Path) -> None:
    process = run(place, "kill -TERM $$")
    ended = process.poll()
    assert ended is not None
    assert ended.returncode == -15
    waiting = run(place, "sleep 1000", wait_s=None)
    waiting.terminate()
    assert waiting.wait(20).returncode == -15


def test_a_program_sees_its_own_processes_only(place: Path) -> None:
    assert has_process_namespaces()
    run(place, "ls /proc | grep -c '^[0-9]'; readlink /proc/self; echo $$")
    count, self_, own = (place / "out").read_text(encoding="ascii").split()
    assert int(count) <= 5
    assert int(self_) < 100
    assert int(own) < 100


def test_files_memory_and_open_files_are_limited(place: Path) -> None:
    ended = run(place, "exec head -c 2000000 /dev/zero >&2").poll()
    assert ended is not None
    assert ended.returncode == -25  # SIGXFSZ
    assert (place / "err").stat().st_size == 1 << 20
    ended = run(place, "exec python3 -c 'bytearray(1 << 30)'").poll()
    assert ended is not None
    assert ended.returncode == 1
    assert "MemoryError" in (place / "err").read_text(encoding="utf-8")
    run(place, "ulimit -n; ulimit -c")
    assert (place / "out").read_text(encoding="ascii").split() == ["64", "0"]


def test_the_driver_s_own_programs_are_as_before(place: Path) -> None:
    run(place, "true")
    done = start("here", ["readlink", "/proc/self/ns/pid"])
    assert done.communicate()[0].decode().strip() == str(Path("/proc/self/ns/pid").readlink())


def test_a_program_of_the_testbed_is_given_named_variables_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    with LocalTestbed(f"confined-{os.getpid()}") as testbed:
        before = testbed.sent_by_server()
        for number, confined in enumerate((LIMITS, None)):
            out = tmp_path / f"{number}.out"
            process = testbed.server.spawn(
                ["env", "-0"], stdout=out, stderr=tmp_path / "err", env={"OWN": "1"}, confined=confined
            )
            assert process.wait(20).returncode == 0
            seen = dict(row.split("=", 1) for row in out.read_text(encoding="utf-8").split("\0") if row)
            assert not {"AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK"} & set(seen)
            assert (seen["https_proxy"], seen["OWN"]) == ("http://proxy.example", "1")
        argv = ["ping", "-c", "2", "-i", "0.01", "-s", "1000", str(testbed.client.address)]
        testbed.server.run(argv)
        after = testbed.sent_by_server()
        assert before is not None
        assert after is not None
        assert after - before >= 2000


def test_builds_are_made_with_named_variables_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quicbed.base import environment
    from quicbed.builds import kit

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    log = tmp_path / "log"
    with environment.only_named():
        kit.run(["env"], log=log)
    assert "AWS_SECRET_ACCESS_KEY" not in log.read_text(encoding="utf-8")
    assert (
        subprocess.run(["env"], capture_output=True, text=True, check=True).stdout.count("AWS_SECRET_ACCESS_KEY") == 1
    )
