"""What `quicbed.base.durable` has written is on disk when the power is cut, and nothing is there that is not whole.

A guest (user-mode Linux) stores runs on a disk of its own, an image, and is killed: what its kernel had only in memory
is lost. `QUICBED_KILLS` is how often, by other chances every time; a few times, always the same, where it is not set.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import powercutguest
from killed import KILLS, chances
from powercutguest import FILES, expected
from quicbed.base import durable
from quicbed.testbed import uml
from quicbed.testbed.delay import UML

PATIENCE_S = 120
CUTS_OF_A_DISK = 10
# more than a fast machine stores between two fresh ones; the image has holes
DISK_BYTES = 512 << 20
# Debian has them where not every user looks
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/disk
mount -t ext4 /dev/ubda /run/disk
exec {python} -ISB {program} /run/disk {more}
"""
pytestmark = pytest.mark.timeout(300 + 20 * KILLS)


class Guest:
    """A machine with a disk."""

    def __init__(self, directory: Path, disk: Path, *, forgets: bool = False) -> None:
        init = directory / "init"
        words = {"python": sys.executable, "program": powercutguest.__file__, "more": "forgets" if forgets else ""}
        init.write_text(INIT.format(**{key: shlex.quote(word) for key, word in words.items()}), encoding="utf-8")
        init.chmod(0o755)
        self.argv = [UML, "mem=128M", f"uml_dir={directory}/", "umid=guest", f"ubda={disk}", "root=none"]
        self.argv += ["rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "con0=null,fd:1", "con=null"]
        self.argv += ["ssl=null", "quiet", "loglevel=1"]
        self.disk = disk
        self.said: list[tuple[str, int]] = []
        """What the guest says is on disk."""

    def live(self, seconds: float, least: int = 0) -> None:
        """Store for so long, once the guest has told of number *least*, and cut its power."""
        guest = subprocess.Popen(
            uml.command(self.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        begun, other = threading.Event(), []

        def listen() -> None:
            assert guest.stdout is not None
            for line in guest.stdout:
                words = line.decode(errors="replace").split()
                if len(words) == 2 and words[0] in ("begin", "run", "state", "build"):
                    self.said.append((words[0], int(words[1])))
                    if self.said[-1][1] >= least:
                        begun.set()
                else:
                    other.append(line)
            begun.set()

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            assert begun.wait(PATIENCE_S)
            time.sleep(seconds)
            assert guest.poll() is None, other
        finally:
            os.killpg(guest.pid, 9)  # its programs are in its group
            guest.wait(PATIENCE_S)
            listener.join()
        assert self.said, other

    def look(self, place: Path) -> None:
        """What is on its disk: all it has told of, and nothing half."""
        environment = {**os.environ, "PATH": PATH}
        # what mounting does too
        subprocess.run(["e2fsck", "-y", "-E", "journal_only", self.disk], env=environment, capture_output=True)
        place.mkdir()
        dump = ["debugfs", "-R", f"rdump / {place}", str(self.disk)]
        subprocess.run(dump, env=environment, capture_output=True, check=True)
        last = {kind: max((n for k, n in self.said if k == kind), default=-1) for kind in ("run", "state", "build")}
        whole(place / "runs", last["run"])
        state = place / "state.json"
        assert (json.loads(state.read_bytes())["state"] if state.exists() else -1) >= last["state"]
        build = place / "build"
        if build.exists():
            (number,) = {int(file.name.partition(".")[0]) for file in build.iterdir()}
            assert number >= last["build"]
            for file in range(durable.MANY + 1):
                assert (build / f"{number}.{file}").read_bytes() == expected(f"build {number} {file}", 300)
        else:  # only while one takes the place of another
            assert last["build"] < 0 or (last["state"] % 3 == 0 and last["build"] < last["state"])
        shutil.rmtree(place)


def whole(runs: Path, last: int) -> None:
    """Every run up to the last one is there, and all that have a name are whole."""
    found = {int(run.name) for run in runs.glob("[!.]*")}
    assert found >= set(range(last + 1))
    for number in found:
        for name, size in FILES.items():
            assert (runs / str(number) / name).read_bytes() == expected(f"{number} {name}", size)
        assert json.loads((runs / str(number) / "run.json").read_bytes()) == {"run": number}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An image, in memory: what a guest has written to its disk, this machine's kernel keeps."""
    missing = [name for name in (UML, "mkfs.ext4", "debugfs") if shutil.which(name, path=PATH) is None]
    if missing:
        reason = f"{missing[0]} is missing; install with: apt-get install user-mode-linux e2fsprogs"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        disk = Path(directory, "disk")
        fresh(disk)
        yield disk


def fresh(disk: Path) -> None:
    with disk.open("wb") as image:
        image.truncate(DISK_BYTES)
    make = ["mkfs.ext4", "-q", "-F", str(disk)]
    subprocess.run(make, env={**os.environ, "PATH": PATH}, check=True)


def test_what_was_told_to_be_on_disk_is_there_after_a_power_cut(tmp_path: Path, disk: Path) -> None:
    chance = chances()
    guest = Guest(tmp_path, disk)
    for number in range(KILLS or 3):
        if number % CUTS_OF_A_DISK == 0:
            fresh(disk)
            guest.said.clear()
        guest.live(chance.uniform(0, 0.8))
        guest.look(tmp_path / "found")


def test_what_is_not_synchronised_is_missed(tmp_path: Path, disk: Path) -> None:
    guest = Guest(tmp_path, disk, forgets=True)
    guest.live(random.Random(1).uniform(0.3, 0.8), least=1)
    assert max(number for _, number in guest.said) > 0
    with pytest.raises(AssertionError):
        guest.look(tmp_path / "found")
