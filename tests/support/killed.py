"""Processes to be killed: how often, when and which. For tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

KILLS = int(os.environ.get("QUICBED_KILLS", "0"))
"""How often each kind is killed; 0 where nobody asks for a number, for a few times."""
STEPS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}


def die_at(step: int, below: Path) -> None:
    """Let this process be killed right before it touches files below a directory for the *step*-th time."""
    count = itertools.count(1)
    prefix = f"{below}/"

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS and str(arguments[0]).startswith(prefix) and next(count) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def processes(*words: str) -> list[int]:
    """Processes in whose command line one of these words stands."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(word in line for word in words):
                found.append(int(process.name))
    return found


def chances() -> random.Random:
    return random.Random() if KILLS else random.Random(1)
