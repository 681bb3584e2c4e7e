"""Files that are on disk, whole, once they can be seen: written, synchronised, renamed, their directory synchronised.

A file appears under its name with its new content or keeps its old one, also when the process is killed or the power
fails. One process at a time writes a file. Errors are those of the operating system (OSError); what was being written
is then removed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file to fill in a `with` block, after which it takes the place of *path* or, on an error, is removed.

    What *path* links to is left alone. A device or FIFO of this name is not replaced.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is not a regular file", str(path))
    partial = path.with_name(f".{path.name}.partial")
    # never through a link that somebody left here
    partial.unlink(missing_ok=True)
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
        yield partial
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all, and have it on disk on return."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` in UTF-8; UnicodeEncodeError (a ValueError) for what UTF-8 cannot say, before anything changes."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, *, indent: int | None = 1, sort_keys: bool = False) -> None:
    """Write a value as JSON with a newline; ValueError for NaN, infinities and cycles, before anything changes."""
    write_bytes(path, to_json(value, indent=indent, sort_keys=sort_keys))


def to_json(value: Any, *, indent: int | None = 1, sort_keys: bool = False) -> bytes:
    """A value as JSON in UTF-8, with a newline; lone surrogates are escaped. ValueError for NaN and infinities."""
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False)
    # they stand in strings only, where a backslash, u and four digits are JSON's own escape
    return (text + "\n").encode(errors="backslashreplace")


def move(made: Path, target: Path) -> None:
    """Rename a file or directory, everything below it on disk before, to a *target* that does not exist."""
    sync_tree(made)
    made.rename(target)
    for parent in {made.parent, target.parent}:
        sync(parent)


def remove_leftovers(directory: Path) -> None:
    """Remove what killed processes left below a directory: files and directories that had not got their names yet."""
    for leftover in list(directory.glob("**/.*.partial")):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            # gone with the directory it was in
            leftover.unlink(missing_ok=True)


def sync_tree(directory: Path) -> None:
    """Have a file, or a directory with all files below it, on disk; links are not followed, devices are left out."""
    for top, _, files in os.walk(directory, topdown=False):
        for name in files:
            file = Path(top, name)
            if file.is_file() and not file.is_symlink():
                sync(file)
        sync(Path(top))
    if not directory.is_dir():
        sync(directory)


def sync(path: Path) -> None:
    """Have the content of a file, or the names in a directory, on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
