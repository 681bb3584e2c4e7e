"""The files of a local copy of published data: a folder, a tar archive (read as a stream), or one file.

Nothing is unpacked to disk. An archive may be plain or compressed with gzip, bzip2, xz or, where the program ``zstd``
is there, Zstandard. A damaged archive gives the files before the damage.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from quicbed.base import untrusted
from quicbed.base.errors import QuicbedError
from quicbed.base.untrusted import Stream, UntrustedError
from quicbed.importers.summary import Summary

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
MOST_BYTES = 16 << 20
"""Largest file that is read where no other limit is given: logs and JSON."""
MOST_RECORDED = 512 << 20
"""Largest recording, capture or archive in a copy."""
LONGEST_LINE = 1 << 20
UNPACKED_AT_LEAST, UNPACKED_RATIO = 64 << 20, 400
"""Bytes to which a compressed file of a copy may unpack, and times its size more; recordings take a hundred times."""

APPLE_DOUBLE = "AppleDouble file (._*), left by macOS"
_FOREIGN_DIRECTORIES = frozenset({".git", "__MACOSX", "__pycache__", ".ipynb_checkpoints"})
FOREIGN = f"folder that is no data ({', '.join(sorted(_FOREIGN_DIRECTORIES))})"
LINKED_FOLDER = "a link to a folder, which is not followed"
TWICE = "is in the archive twice; the first one counts"
NO_FILE = "a link or device, not a file"


class CopyError(QuicbedError):
    """A copy of published data that cannot be read at all: one line naming it and the remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the copy. It can be read only until the next one is asked for: an archive is a stream."""

    path: str
    """Relative to the copy, with ``/``."""
    size: int
    """Bytes, as stored."""
    read: Callable[[int], bytes]
    """Its content of at most so many bytes; `content_of` is what handles the errors of folders and archives."""
    again: bool = False
    """Whether the archive had a file of this path before; nobody knows which one is meant."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def entries(copy: Path, summary: Summary) -> Iterator[Entry]:
    """Every regular file of a copy, those of a folder in a fixed order; foreign ones are told to *summary* only."""
    if not copy.exists():
        raise CopyError(f"{copy}: no such file or folder; name a local copy of the data")
    if copy.is_dir():
        found = _folder(copy, summary)
    elif not copy.is_file():
        raise CopyError(f"{copy}: is neither a folder nor a file; name a local copy of the data")
    elif _is_archive(copy):
        found = _archive(copy, summary)
    elif told := untrusted.other_form(_beginning(copy)):
        raise CopyError(f"{copy}: is {told}")
    else:
        found = iter([Entry(copy.name, copy.stat().st_size, _reading(copy))])
    for entry in found:
        summary.seen(entry.size)
        if entry.name.startswith("._"):
            summary.skip(APPLE_DOUBLE, entry.path)
        else:
            yield entry


def content_of(entry: Entry, summary: Summary, most: int = MOST_BYTES) -> bytes | None:
    """The content of a file; None, told to *summary*, if it cannot be read or has more than *most* bytes."""
    try:
        data = entry.read(most)
    except UntrustedError as error:
        summary.skip(f"cannot be read: {str(error).removeprefix('cannot be read: ')}", entry.path)
        return None
    summary.read(len(data))
    return data


def _reading(file: Path) -> Callable[[int], bytes]:
    return lambda most: untrusted.read(file, most, links=True)


def _folder(copy: Path, summary: Summary) -> Iterator[Entry]:
    # no recursion: folders may be in each other a thousand times
    waiting = [copy]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as listed:
                inside = sorted(listed, key=lambda found: found.name)
        except OSError as error:
            where = directory.relative_to(copy).as_posix()
            summary.skip(f"folder that cannot be read: {error.strerror}", where)
            continue
        folders = []
        for found in inside:
            path = directory / found.name
            relative = path.relative_to(copy).as_posix()
            try:
                status = found.stat()
            except OSError as error:
                summary.seen(0)
                summary.skip(f"cannot be read: {error.strerror}", relative)
                continue
            if stat.S_ISDIR(status.st_mode):
                if reason := _not_entered(found):
                    summary.skip(reason, relative)
                else:
                    folders.append(path)
            elif problem := untrusted.problem_with_name(relative):
                summary.skip(problem, relative)
            elif stat.S_ISREG(status.st_mode):
                yield Entry(relative, status.st_size, _reading(path))
            else:
                summary.skip(NO_FILE, relative)
        waiting += reversed(folders)


def _not_entered(folder: os.DirEntry[str]) -> str | None:
    """Why what is in a folder does not belong to the copy; None if it does."""
    return FOREIGN if folder.name in _FOREIGN_DIRECTORIES else LINKED_FOLDER if folder.is_symlink() else None


def _beginning(copy: Path) -> bytes:
    with copy.open("rb") as file:
        return file.read(_TAR_MAGIC_AT + len(_TAR_MAGIC))


def _is_archive(copy: Path) -> bool:
    start = _beginning(copy)
    if start.startswith((ZSTD_MAGIC, *untrusted.PACKED_MAGICS)):
        return True
    return start[_TAR_MAGIC_AT:] == _TAR_MAGIC


def _archive(copy: Path, summary: Summary) -> Iterator[Entry]:
    start = _beginning(copy)
    most = untrusted.MOST_UNPACKED + untrusted.UNPACKED_RATIO * copy.stat().st_size
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(copy.open("rb"))
        stream: Stream = raw
        if start.startswith(ZSTD_MAGIC):
            stream = stack.enter_context(zstd(raw, most))
        elif start.startswith(untrusted.PACKED_MAGICS):
            stream = untrusted.Unpacking(raw)
        yield from members_of(stream, copy.name, summary, most)


def members_of(stream: Stream, name: str, summary: Summary, most: int) -> Iterator[Entry]:
    """The regular files of a tar stream of at most *most* bytes.

    Where it is damaged, *summary* is told and the files before it stay.
    """
    seen: set[str] = set()
    count = 0
    foreign: set[str] = set()
    try:
        for member in untrusted.members(stream, most):
            inside = member.path
            folder = _foreign(inside)
            if folder is not None:
                if folder not in foreign:
                    foreign.add(folder)
                    summary.skip(FOREIGN, folder)
            elif member.is_directory:
                pass
            elif problem := untrusted.problem_with_name(inside.as_posix()):
                summary.skip(problem, inside.as_posix())
            elif not member.is_file:
                summary.skip(NO_FILE, inside.as_posix())
            else:
                count += 1
                path = inside.as_posix()
                yield Entry(path, member.size, member.read, path in seen)
                seen.add(path)
    except UntrustedError as error:
        summary.skip(f"damaged archive: {error}", f"{name} after {count} files")


def _foreign(path: PurePosixPath) -> str | None:
    """The foreign folder that a path is, or is in."""
    for number, part in enumerate(path.parts, 1):
        if part in _FOREIGN_DIRECTORIES:
            return "/".join(path.parts[:number])
    return None


def zstd_program() -> str:
    """Path of the program ``zstd``."""
    program = shutil.which("zstd")
    if program is None:
        raise CopyError("zstd is missing, which this data is compressed with; install with: apt-get install zstd")
    return program


class Unpacked:
    """What ``zstd`` unpacks, at most *most* bytes of it; a damaged end is an `OSError`."""

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes], most: int) -> None:
        self._process = process
        self._pipe = cast(io.BufferedReader, process.stdout)
        self._said = said
        self._most = self._left = most

    def read1(self, size: int, /) -> bytes:
        """Some bytes, none at the end."""
        return self._counted(self._pipe.read1(size))

    def lines(self) -> Iterator[bytes]:
        """Its lines, without their ends and a byte order mark."""
        rest, begun = b"", False
        while data := self.read1(LONGEST_LINE):
            rest += data
            if not begun and len(rest) < len(codecs.BOM_UTF8):
                continue
            rest, begun = rest if begun else rest.removeprefix(codecs.BOM_UTF8), True
            *whole, rest = rest.split(b"\n")
            yield from whole
            if len(rest) > LONGEST_LINE:
                raise OSError("a line that does not end")
        if rest:
            yield rest

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise OSError(f"zstd: unpacks to more than {self._most >> 20} MiB")
        if not data and (status := self._process.wait()):
            self._said.seek(0)
            said = self._said.read(1000).decode(errors="replace").strip().splitlines()
            raise OSError(f"zstd: {said[-1] if said else f'exit status {status}'}")
        return data


@contextmanager
def zstd(source: IO[bytes] | bytes, most: int | None = None) -> Iterator[Unpacked]:
    """The decompressed stream of a file or of bytes, from the program ``zstd``; of bytes in relation to their number.

    Nothing is unpacked beyond what is read: a few kB can hold many GB.
    """
    argv = [zstd_program(), "-dcq"]
    with contextlib.ExitStack() as stack:
        if isinstance(source, bytes):
            most = UNPACKED_AT_LEAST + UNPACKED_RATIO * len(source) if most is None else most
            packed = stack.enter_context(tempfile.TemporaryFile())
            packed.write(source)
            packed.seek(0)
            source = packed
        said = stack.enter_context(tempfile.TemporaryFile())
        process = stack.enter_context(subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE, stderr=said))
        try:
            yield Unpacked(process, said, untrusted.MOST_UNPACKED if most is None else most)
        finally:
            process.kill()  # it waits for a reader that has left; after the end this does nothing
