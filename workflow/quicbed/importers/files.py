"""The files of a local copy of published data: a folder, a tar archive (read as a stream), or one file.

Nothing is unpacked to disk. An archive may be plain or compressed with gzip, bzip2, xz or, where the program ``zstd``
is there, Zstandard. A damaged archive gives the files before the damage.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast

from quicbed.importers.summary import Summary

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_OPENERS: dict[bytes, Callable[[Path, Literal["rb"]], IO[bytes]]] = {
    b"\x1f\x8b": gzip.GzipFile,  # type: ignore[dict-item]  # an IO[bytes] but for its name
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_BUFFER = 1 << 20
_DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)

APPLE_DOUBLE = "AppleDouble file (._*), left by macOS"
_FOREIGN_DIRECTORIES = frozenset({".git", "__MACOSX", "__pycache__", ".ipynb_checkpoints"})
FOREIGN = f"folder that is no data ({', '.join(sorted(_FOREIGN_DIRECTORIES))})"
LINKED_FOLDER = "a link to a folder, which is not followed"
NO_FILE = "a link or device, not a file"


class CopyError(Exception):
    """A copy of published data that cannot be read at all: one line naming it and the remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the copy. It can be read only until the next one is asked for: an archive is a stream."""

    path: str
    """Relative to the copy, with ``/``."""
    size: int
    """Bytes, as stored."""
    read: Callable[[], bytes]
    """Its content; `content` is what handles the errors of folders and archives."""

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
    elif _is_archive(copy):
        found = _archive(copy, summary)
    else:
        found = iter([Entry(copy.name, copy.stat().st_size, copy.read_bytes)])
    for entry in found:
        summary.seen(entry.size)
        if entry.name.startswith("._"):
            summary.skip(APPLE_DOUBLE, entry.path)
        else:
            yield entry


def content(entry: Entry, summary: Summary) -> bytes | None:
    """The content of a file; None, told to *summary*, if it cannot be read."""
    try:
        data = entry.read()
    except _DAMAGE as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else error
        summary.skip(f"cannot be read: {told}", entry.path)
        return None
    summary.read(len(data))
    return data


def _folder(copy: Path, summary: Summary) -> Iterator[Entry]:
    def unreadable(error: OSError) -> None:
        where = Path(error.filename).relative_to(copy).as_posix()
        summary.skip(f"folder that cannot be read: {error.strerror}", where)

    for directory, names, files in os.walk(copy, onerror=unreadable):
        names[:] = [name for name in sorted(names) if _entered(Path(directory) / name, copy, summary)]
        for name in sorted(files):
            path = Path(directory) / name
            relative = path.relative_to(copy).as_posix()
            try:
                size = path.stat().st_size
            except OSError as error:
                summary.seen(0)
                summary.skip(f"cannot be read: {error.strerror}", relative)
                continue
            if path.is_file():
                yield Entry(relative, size, path.read_bytes)
            else:
                summary.skip(NO_FILE, relative)


def _entered(folder: Path, copy: Path, summary: Summary) -> bool:
    """Whether what is in a folder belongs to the copy; *summary* is told if it does not."""
    reason = FOREIGN if folder.name in _FOREIGN_DIRECTORIES else LINKED_FOLDER if folder.is_symlink() else None
    if reason:
        summary.skip(reason, folder.relative_to(copy).as_posix())
    return reason is None


def _is_archive(copy: Path) -> bool:
    with copy.open("rb") as file:
        start = file.read(_TAR_MAGIC_AT + len(_TAR_MAGIC))
    if start.startswith((ZSTD_MAGIC, *_OPENERS)):
        return True
    return start[_TAR_MAGIC_AT:] == _TAR_MAGIC


def _archive(copy: Path, summary: Summary) -> Iterator[Entry]:
    with copy.open("rb") as file:
        start = file.read(8)
    opener = next((found for magic, found in _OPENERS.items() if start.startswith(magic)), None)
    with contextlib.ExitStack() as stack:
        if start.startswith(ZSTD_MAGIC):
            stream = stack.enter_context(zstd(stack.enter_context(copy.open("rb"))))
        else:
            stream = stack.enter_context(opener(copy, "rb") if opener else copy.open("rb"))
        yield from members(stream, copy.name, summary)


class _AsItComes:
    """Reads what is there, so that a damaged end does not take with it what comes before."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        return cast(bytes, self._stream.read1(size))


def members(stream: IO[bytes], name: str, summary: Summary) -> Iterator[Entry]:
    """The regular files of a tar stream; where it is damaged, *summary* is told and the files before it stay."""
    count = 0
    foreign: set[str] = set()
    try:
        with tarfile.open(fileobj=cast(IO[bytes], _AsItComes(stream)), mode="r|", bufsize=_BUFFER) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header in memory
                inside = PurePosixPath(member.name)
                folder = _foreign(inside)
                if folder is not None:
                    if folder not in foreign:
                        foreign.add(folder)
                        summary.skip(FOREIGN, folder)
                    continue
                if member.isdir():
                    continue
                if not member.isfile():
                    summary.skip(NO_FILE, member.name)
                    continue
                file = cast(IO[bytes], archive.extractfile(member))
                count += 1
                yield Entry(inside.as_posix(), member.size, file.read)
    except _DAMAGE as error:
        summary.skip(f"damaged archive: {error or type(error).__name__}", f"{name} after {count} files")


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


@contextmanager
def zstd(source: IO[bytes] | bytes) -> Iterator[IO[bytes]]:
    """The decompressed stream of a file or of bytes, from the program ``zstd``; a damaged end is an `OSError`."""
    argv = [zstd_program(), "-dcq"]
    if isinstance(source, bytes):
        done = subprocess.run(argv, input=source, capture_output=True, check=False)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise OSError(f"zstd: {said[-1] if said else f'exit status {done.returncode}'}")
        yield io.BytesIO(done.stdout)
        return
    with subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield cast(IO[bytes], process.stdout)
        finally:
            process.kill()  # it waits for a reader that has left; after the end this does nothing
