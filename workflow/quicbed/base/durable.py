"""Files that are on disk, whole, once they can be seen: written, synchronised, renamed, their directory synchronised.

A file appears under its name with its new content or keeps its old one, also when the process is killed or the power
fails; a directory that `filling` or `move` puts there has all its files or is not there. One process at a time writes a
file. Errors are those of the operating system (OSError); what was being written is then removed.

What is measured, and what decides whether something is done again, is written by this module. Others write only

- what is in a directory that is not in its place yet, or is temporary;
- logs, which nothing reads but people;
- what a rule of the workflow draws or prints: Snakemake removes the output of a rule that did not end;
- the agent (`quicbed.testbed.agent`), which is one file on a host and has its own `write_whole`;
- files of the kernel, below /proc and /sys.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quicbed.base import trees

MANY = 100
"""Files and directories for which a file system writes everything at once, instead of one after the other."""


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """An empty file to fill in a `with` block, after which it takes the place of *path* or, on an error, is removed.

    What *path* links to is left alone. A device or FIFO of this name is not replaced. *mode* is as open(2) takes it.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is not a regular file", str(path))
    partial = _unfinished(path)
    # whatever somebody left here, and never through a link
    trees.remove(partial)
    try:
        with _naming(path):
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode))
            yield partial
            sync(partial)
            partial.replace(path)
    except BaseException:
        trees.remove(partial, ignore_errors=True)
        raise
    sync(path.parent)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace a file, whole or not at all, and have it on disk on return."""
    with replacing(path, mode=mode) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """`write_bytes` in UTF-8; UnicodeEncodeError (a ValueError) for what UTF-8 cannot say, before anything changes."""
    write_bytes(path, text.encode(), mode=mode)


def write_json(path: Path, value: Any, *, indent: int | None = 1, sort_keys: bool = False) -> None:
    """Write a value as JSON with a newline; ValueError for NaN, infinities and cycles, before anything changes."""
    write_bytes(path, to_json(value, indent=indent, sort_keys=sort_keys))


def to_json(value: Any, *, indent: int | None = 1, sort_keys: bool = False) -> bytes:
    """A value as JSON in UTF-8, with a newline; lone surrogates are escaped. ValueError for NaN and infinities."""
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False)
    # they stand in strings only, where a backslash, u and four digits are JSON's own escape
    return (text + "\n").encode(errors="backslashreplace")


@contextmanager
def filling(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """An empty directory to fill in a `with` block, after which it is moved to *target* or, on an error, removed.

    Directories above it are made. Only with *replace* is there something at *target* before, which then goes.
    """
    partial = _unfinished(target)
    trees.remove(partial, ignore_errors=True)
    try:
        with _naming(target):
            partial.mkdir(parents=True)
            yield partial
            move(partial, target, replace=replace)
    except BaseException:
        trees.remove(partial, ignore_errors=True)
        raise


def move(made: Path, target: Path, *, replace: bool = False) -> None:
    """Rename a file or directory, everything below it on disk before.

    OSError where *target* is a directory that is not empty, unless it is to *replace* that.
    """
    old = _unfinished(target).with_name(f".{target.name}.old.partial")
    sync_tree(made)
    if replace and target.is_dir():
        # never half a directory under its name
        trees.remove(old, ignore_errors=True)
        target.rename(old)
    made.rename(target)
    for parent in {made.parent, target.parent}:
        sync(parent)
    trees.remove(old, ignore_errors=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give an error of the operating system that names no file this name: a full disk says so when it is written to."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def _unfinished(path: Path) -> Path:
    """What a file or directory is called as long as it is not whole; OSError for one that nothing can be renamed to."""
    if path.name in ("", ".."):
        raise OSError(errno.EINVAL, "has no name of its own: name a file or folder in it", str(path))
    return path.with_name(f".{path.name}.partial")


def is_unfinished(path: Path) -> bool:
    """Whether a path, or one above it, has not got its name yet."""
    return any(part.startswith(".") and part.endswith(".partial") for part in path.parts)


def remove_leftovers(directory: Path, finished: str) -> None:
    """Remove what killed processes left below a directory: files and directories that had not got their names yet.

    A directory that has something of the name *finished* is whole, and nothing in it is ours to remove.
    """
    for top, names, files in trees.walk(directory):
        if finished in names or finished in files:
            names.clear()
            continue
        for name in (*names, *files):
            if is_unfinished(Path(name)):
                trees.remove(top / name)
        names[:] = [name for name in names if not is_unfinished(Path(name))]


def sync_tree(directory: Path) -> None:
    """Have a file, or a directory with all files below it, on disk; links are not followed, devices are left out."""
    found = list(trees.walk(directory)) if directory.is_dir() else []
    if sum(1 + len(files) for _, _, files in found) > MANY:
        _sync_file_system(directory)
        return
    for top, _, files in reversed(found):
        for name in files:
            file = top / name
            if file.is_file() and not file.is_symlink():
                sync(file)
        sync(top)
    if not directory.is_dir():
        sync(directory)


def _sync_file_system(directory: Path) -> None:
    """Have everything on disk that the file system of a directory still has in memory (syncfs(2))."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Have the content of a file, or the names in a directory, on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
