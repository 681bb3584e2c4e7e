"""What a guest whose power is cut runs: it stores runs, state and builds for ever.

`powercutguest.py DIRECTORY [forgets]`

It prints what is on disk once the functions of `quicbed.base.durable` have returned; with `forgets` nothing is
synchronised. What a file holds follows from its name, so that anybody can tell whether it is whole.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workflow"))

from quicbed.base import durable

FILES = {"client.jsonl": 9000, "server.jsonl": 70_000, "logs/client.log": 1, "capture.pcap": 200_000}


def expected(name: str, size: int) -> bytes:
    """Content of a file."""
    return hashlib.shake_128(name.encode()).digest(size)


def store(runs: Path, number: int) -> None:
    """A run, as the driver stores one."""
    with durable.filling(runs / str(number)) as made:
        (made / "logs").mkdir()
        for name, size in FILES.items():
            (made / name).write_bytes(expected(f"{number} {name}", size))
        durable.write_json(made / "run.json", {"run": number})


def build(target: Path, number: int) -> None:
    """A directory of more files than are synchronised one after the other; the one before it goes."""
    with durable.filling(target, replace=True) as made:
        for file in range(durable.MANY + 1):
            (made / f"{number}.{file}").write_bytes(expected(f"build {number} {file}", 300))


def main() -> None:
    top = Path(sys.argv[1])
    runs = top / "runs"
    if "forgets" in sys.argv:
        os.fsync = lambda _: None
        durable._sync_file_system = lambda _: None
    runs.mkdir(exist_ok=True)
    durable.sync(top)
    durable.remove_leftovers(top, "run.json")
    begin = max((int(path.name) for path in runs.iterdir()), default=-1) + 1
    print("begin", begin, flush=True)
    for number in itertools.count(begin):
        store(runs, number)
        print("run", number, flush=True)
        durable.write_text(top / "state.json", json.dumps({"state": number, "more": "x" * 5000}))
        print("state", number, flush=True)
        if number % 3 == 0:
            build(top / "build", number)
            print("build", number, flush=True)


if __name__ == "__main__":
    main()
