"""Steps on the file system that fail, or at which the process is killed."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEPS = ("open", "rename", "replace", "mkdir", "unlink", "rmdir", "fsync")
ENOUGH = 2000


class KilledError(BaseException):
    """The process is gone."""


class Steps:
    """Counts the steps that change files, and lets one of them fail; where it kills, all after it as well.

    With *below*, only those count whose first argument is a path there.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kills: bool, below: Path | None = None) -> None:
        self.kills = kills
        self.left: int | None = None
        self._below = None if below is None else str(below)
        for name in STEPS:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self._failing(io.open))
        monkeypatch.setattr(io, "open", builtins.open)

    def _counts(self, first: object) -> bool:
        if self._below is None or isinstance(first, int):
            return True
        return isinstance(first, (str, Path)) and str(first).startswith(self._below)

    def _failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            if self.left is not None and self._counts(args[0]):
                self.left -= 1
                if self.left < 0 and self.kills:
                    raise KilledError
                if self.left == -1:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*args, **options)

        return step
