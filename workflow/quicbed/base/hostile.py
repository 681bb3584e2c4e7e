"""What other people's programs and machines say and leave: text in one line, files that are read without waiting."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
from pathlib import Path

TEXT_LENGTH = 2000
"""Characters that are kept of a text."""


def one_line(text: object, length: int = TEXT_LENGTH) -> str:
    """A text as a part of a line: without control characters and lone surrogates, at most so many characters."""
    # what is longer is cut before it is looked at
    shown = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * length])
    return " ".join(shown.split())[:length]


def signal_name(number: int) -> str:
    """Name of a signal that has ended a program; those for real-time programs have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def open_plain(path: Path) -> int:
    """A descriptor to read a regular file with; OSError for a link, a FIFO or whatever else may be there instead."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link", str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number, what = (errno.EISDIR, "Is a directory") if stat.S_ISDIR(mode) else (errno.EINVAL, "is no regular file")
        raise OSError(number, what, str(path))
    return descriptor


def read_plain(path: Path, length: int) -> bytes:
    """The first *length* bytes of a regular file, opened as `open_plain` does."""
    with open(open_plain(path), "rb") as file:
        return file.read(length)


def end_of_plain(path: Path, length: int) -> bytes:
    """The last *length* bytes of a regular file, opened as `open_plain` does."""
    with open(open_plain(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - length))
        return file.read(length)


def scrub(directory: Path, reserved: frozenset[str] = frozenset()) -> list[str]:
    """Remove from a directory what is neither file nor directory, and what has a *reserved* name; returns the names.

    Nothing is followed.
    """
    removed: list[str] = []
    for top, directories, files in os.walk(directory):
        for name in (*directories, *files):  # a copy: directories that are removed are not entered
            path = Path(top, name)
            mode = path.lstat().st_mode
            planted = Path(top) == directory and name in reserved
            if not planted and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                continue
            removed.append(one_line(path.relative_to(directory), 200))
            if stat.S_ISDIR(mode):
                shutil.rmtree(path)
                directories.remove(name)
            else:
                path.unlink()
    return sorted(removed)
