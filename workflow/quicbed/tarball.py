"""Archives that are the same bytes whenever and by whomever they are written, from the same contents in the same order.

Members have no owner and one time; compression has neither a name nor a time in its header. Another version of zlib may
compress to other bytes; what is inside stays the same.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def write(path: Path, *, mtime: int = 0, headers: Mapping[str, str] | None = None) -> Iterator[Writer]:
    """Write a `.tar.gz` that appears at *path* when it is complete.

    *mtime* is the time of all members in seconds since 1970, *headers* are global ones of the format pax.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with (
            partial.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as zipped,
            tarfile.open(
                fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT, pax_headers=dict(headers or {})
            ) as archive,
        ):
            yield Writer(archive, mtime)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
