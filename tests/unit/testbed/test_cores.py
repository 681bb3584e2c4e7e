"""Which processors programs are kept to, and what says that something has arrived at a port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from quicbed.testbed import local
from quicbed.testbed.agent import cores, cpu_seconds, pin, pinned, send_to_all
from quicbed.testbed.base import unread
from quicbed.testbed.local import LocalTestbed

UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  305: 0200710A:1151 00000000:0000 07 00000000:00000D00 00:00000000 00000000     0        0 9 2 0000000000000000 0
  306: 0200710A:1152 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 8 2 0000000000000000 0
"""
LISTENING = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0200710A:1151 00000000:0000 0A 00000000:00000001 00:00000000 00000000     0        0 7 1 0000000000000000 100 0 0
"""


def machine(directory: Path, siblings: Mapping[int, str]) -> Path:
    for cpu, text in siblings.items():
        topology = directory / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n", encoding="ascii")
    return directory


@pytest.mark.parametrize(
    ("siblings", "allowed", "found"),
    [
        ({0: "0", 1: "1"}, {0, 1}, [0, 1]),
        ({0: "0-1", 1: "0-1"}, {0, 1}, [0]),
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0, 1, 2, 3}, [0, 1]),
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {2, 3}, [2, 3]),
        ({0: "0,2", 2: "0,2"}, {0, 2}, [0]),
        ({}, {3, 4}, [3, 4]),
        ({0: "nonsense", 1: ""}, {0, 1}, [0, 1]),
    ],
)
def test_threads_of_one_core_are_one_processor(
    siblings: dict[int, str], allowed: set[int], found: list[int], tmp_path: Path
) -> None:
    assert cores(allowed, machine(tmp_path, siblings)) == found


def test_a_machine_on_which_programs_cannot_be_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = LocalTestbed("test")
    monkeypatch.setattr(local, "cores", lambda _: [3])
    told = testbed.pins()
    assert isinstance(told, str)
    assert told.startswith("each end needs a core of its own, and this process may use ")
    # as where a cpuset leaves out what the affinity still names
    monkeypatch.setattr(local, "cores", lambda _: [999_999, 1_000_000])
    told = testbed.pins()
    assert isinstance(told, str)
    assert told.startswith("programs cannot be pinned to processor 999999: this machine: taskset")


def test_what_has_arrived_at_a_port() -> None:
    assert unread(UDP, 4433)
    assert not unread(UDP, 4434)
    assert not unread(UDP, 443)
    assert not unread(LISTENING, 4433), "a connection that waits to be accepted has sent nothing yet"
    assert not unread("", 4433)


def test_programs_are_held_pinned_and_their_time_is_told() -> None:
    child = "import os,time\nos.fork()\nprint('up', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for _ in range(2):
                process.stdout.readline()
            cpu = max(os.sched_getaffinity(0))
            pin(process.pid, cpu)
            assert pinned(process.pid, cpu)
            assert not pinned(process.pid, cpu + 1)
            before = cpu_seconds(process.pid) or 0.0
            time.sleep(0.2)
            assert (cpu_seconds(process.pid) or 0.0) > before > 0
            send_to_all(process.pid, signal.SIGSTOP)
            time.sleep(0.1)  # until it is noticed
            held = cpu_seconds(process.pid)
            time.sleep(0.1)
            assert cpu_seconds(process.pid) == held
            send_to_all(process.pid, signal.SIGCONT)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert cpu_seconds(process.pid) is None
