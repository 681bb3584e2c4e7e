"""A process that is killed at a step of its own. For tests."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

STEPS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}


def die_at(step: int, below: Path) -> None:
    """Let this process be killed right before it touches files below a directory for the *step*-th time."""
    count = itertools.count(1)
    prefix = f"{below}/"

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS and str(arguments[0]).startswith(prefix) and next(count) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
