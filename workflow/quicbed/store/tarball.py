"""Archives that are the same bytes whenever and by whomever they are written, from the same contents in the same order.

Members have no owner and one time; compression has neither a name nor a time in its header. Another version of zlib or
liblzma may compress to other bytes; what is inside stays the same.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from quicbed.base import durable
from quicbed.base.untrusted import one_line
from quicbed.config.model import Limits


class ArchiveError(Exception):
    """An archive of somebody else's that is not unpacked: one line without its name."""


class Writer:
    """Adds members to an archive that is being written."""

    def __init__(self, archive: tarfile.TarFile, mtime: int) -> None:
        self._archive = archive
        self._mtime = mtime

    def file(self, name: str, content: bytes, *, executable: bool = False) -> None:
        """Add a file."""
        info = self._info(name, 0o755 if executable else 0o644)
        info.size = len(content)
        self._archive.addfile(info, io.BytesIO(content))

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        info = self._info(name, 0o777)
        info.type = tarfile.SYMTYPE
        info.linkname = target
        self._archive.addfile(info)

    def _info(self, name: str, mode: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.mode = mode
        info.mtime = self._mtime
        return info


def _compressor(raw: BinaryIO, path: Path) -> gzip.GzipFile | lzma.LZMAFile:
    if path.suffix == ".xz":
        # files that resemble each other lie megabytes apart
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
        return lzma.LZMAFile(raw, "wb", filters=filters)
    return gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)


@contextmanager
def write(path: Path, *, mtime: int = 0, headers: Mapping[str, str] | None = None) -> Iterator[Writer]:
    """Write a `.tar.gz` or `.tar.xz` that appears at *path* when it is complete.

    *mtime* is the time of all members in seconds since 1970, *headers* are global ones of the format pax.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        durable.replacing(path) as partial,
        partial.open("wb") as raw,
        _compressor(raw, path) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT, pax_headers=dict(headers or {})) as archive,
    ):
        yield Writer(archive, mtime)


def unpack(archive: Path, directory: Path, top: str, limits: Limits) -> None:
    """Unpack a `.tar` that somebody else has made, all of which is below the directory *top*, into a directory.

    Raises ArchiveError before anything is written for what is neither file, directory nor link, stands in it twice, is
    reached through a link, leads out of *directory* or is larger than the limits; and for what is no archive.
    """
    try:
        with tarfile.open(archive, "r:") as content:
            members = _checked(content, top, limits)
            # once more where Python can: filters came with 3.11.4, which is newer than that of Debian 12
            again: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            for member in members:
                member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            content.extractall(directory, members, **again)  # noqa: S202 (of members that are checked)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise ArchiveError(f"cannot be unpacked: {one_line(error, 300)}") from None


def _checked(content: tarfile.TarFile, top: str, limits: Limits) -> list[tarfile.TarInfo]:
    """The members of an archive that can be unpacked."""
    members: dict[PurePosixPath, tarfile.TarInfo] = {}
    total = 0
    for member in content:
        shown = ascii(member.name[:100])
        path = PurePosixPath(member.name)
        if len(os.fsencode(member.name)) > limits.path_bytes or len(os.fsencode(member.linkname)) > limits.path_bytes:
            raise ArchiveError(f"holds a name of more than {limits.path_bytes} bytes (limits.path_bytes)")
        known = (member.isreg() and not member.issparse()) or member.isdir() or member.islnk() or member.issym()
        if not known or path.is_absolute() or ".." in path.parts or path.parts[:1] != (top,):
            raise ArchiveError(f"holds {shown}, which is no part of it")
        if path in members:
            raise ArchiveError(f"holds {shown} twice")
        if len(members) >= limits.files:
            raise ArchiveError(f"holds more than {limits.files} files (limits.files)")
        total += max(0, member.size)
        if total > limits.total_mib << 20:
            raise ArchiveError(f"holds more than {limits.total_mib} MiB (limits.total_mib)")
        members[path] = member
    for path, member in members.items():
        for parent in path.parents:
            if parent in members and not members[parent].isdir():
                raise ArchiveError(f"holds {str(path)[:100]!a} below what is no directory")
        if member.islnk():
            target = members.get(PurePosixPath(member.linkname))
            if target is None or not target.isreg():
                raise ArchiveError(f"holds {str(path)[:100]!a}, a link to what is no file of it")
        if member.issym():
            # from where it stands, as none of its directories is a link; up only at first, as others may be
            place = os.path.normpath(PurePosixPath(path.parent, member.linkname))
            down = dropwhile("..".__eq__, PurePosixPath(member.linkname).parts)
            within = PurePosixPath(place).parts[:1] == (top,) and ".." not in down
            if PurePosixPath(member.linkname).is_absolute() or not within:
                raise ArchiveError(f"holds {str(path)[:100]!a}, a link out of it")
    return list(members.values())
