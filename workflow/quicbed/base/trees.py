"""Directory trees that other people's programs made: looked at and removed whatever they are.

A tree may be deeper than Python recurses and have longer paths than the kernel takes. Nothing here recurses, and no
link is followed. What the standard library has for trees does recurse (Python 3.11): it is for trees of our own only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 100
"""Directories within each other that are open at a time."""


def walk(top: Path, refused: Callable[[OSError], object] | None = None) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Every directory from *top* down with the names of directories and of other things in it, as `os.walk` tells them.

    Names that are taken out of the first list are not entered. Directories that cannot be read, among them those with a
    path that is too long for the kernel, are left out and told to *refused*.
    """
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        names: list[str] = []
        others: list[str] = []
        links: set[str] = set()
        try:
            with os.scandir(directory) as found:
                for entry in found:
                    (names if _is_directory(entry) else others).append(entry.name)
                    if entry.is_symlink():
                        links.add(entry.name)
        except OSError as error:
            if refused is not None:
                refused(error)
            continue
        yield directory, names, others
        waiting += [directory / name for name in reversed(names) if name not in links]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def files(top: Path, refused: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """Everything below *top* but directories; order and errors are those of `walk`."""
    for directory, _, others in walk(top, refused):
        for name in others:
            yield directory / name


def remove(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file, a link, or a directory with everything in it, of any depth; nothing where there is nothing."""
    try:
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            # Linux says EISDIR, POSIX EPERM
            if error.errno not in (errno.EISDIR, errno.EPERM) or not stat.S_ISDIR(path.lstat().st_mode):
                raise
            _remove_directory(path)
    except OSError:
        if not ignore_errors:
            raise


def _remove_directory(path: Path) -> None:
    """Remove a directory from its leaves up; what is deeper than `_OPEN` directories moves up into it first."""
    top = _opened(path)
    # open directories within each other, each with the names in it that are left
    within = [(top, _emptied(top))]
    number = 0
    try:
        while True:
            directory, left = within[-1]
            if left and len(within) < _OPEN:
                inner = _opened(left[-1], directory)
                try:
                    within.append((inner, _emptied(inner)))
                except BaseException:
                    os.close(inner)
                    raise
            elif left:
                number = _unused(top, number + 1)
                # in the place of the empty directory
                os.rename(left.pop(), f".{number}", src_dir_fd=directory, dst_dir_fd=top)
                within[0][1].insert(0, f".{number}")
            elif len(within) == 1:
                break
            else:
                os.close(within.pop()[0])
                above, names = within[-1]
                os.rmdir(names.pop(), dir_fd=above)
    finally:
        for directory, _ in within:
            os.close(directory)
    path.rmdir()


def _unused(directory: int, number: int) -> int:
    """The next number whose name, with a dot before it, nothing in a directory has; an empty directory has it now."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f".{number}", dir_fd=directory)
            return number
        number += 1


def _opened(name: Path | str, above: int | None = None) -> int:
    """A directory, open; one of ours that may not be read is made readable first."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=above)
    except PermissionError:
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            Path(f"/proc/self/fd/{place}").chmod(0o700)
        finally:
            os.close(place)
        return os.open(name, _DIRECTORY, dir_fd=above)


def _emptied(directory: int) -> list[str]:
    """Remove everything in an open directory but directories that are not empty; returns the names of these."""
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            os.fchmod(directory, 0o700)
    left = []
    with os.scandir(directory) as found:
        # all names first: what a directory tells while it changes is not said
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_directory in entries:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
            continue
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            left.append(name)
    return left
