"""The state of the code that something was made by."""

from __future__ import annotations

import subprocess
from pathlib import Path

TIMEOUT_S = 20
DIRTY = "-dirty"
"""Behind a commit whose files are others than those that were there."""


def revision(root: Path) -> str | None:
    """The commit of the clone at *root* in full, with `DIRTY` behind it if its files are others; None outside one.

    Equal in every clone: neither tags nor a number of digits that depends on how many objects there are. Of a clone of
    another user too: whoever asks runs its code already.
    """
    if _git(root, "rev-parse", "--show-prefix") != "":
        return None  # inside another repository, which says nothing of this code, or in none
    return _git(root, "describe", "--always", f"--dirty={DIRTY}", "--abbrev=40", "--exclude=*")


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), "-c", "safe.directory=*", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
