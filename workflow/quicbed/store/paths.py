"""Where runs and what belongs to them lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from quicbed.base import trees, untrusted

RUN_FILE = "run.json"
ARCHIVE_SUFFIXES = (".tar.xz", ".tar.gz")
"""Of archives of runs: as they are packed now, and as they were."""
CAPTURE, KEYS = "capture.pcap", "keys.log"
TRACE = "trace.pcap.gz"
"""Headers of all packets of a run as they passed the tap."""
PACING = "pacing.json"
"""Gaps and trains of the server's packets in it."""
RELEASES = "releases.bin"
"""When the server's packets were to leave by its pacer (workflow/endpoints/ENDPOINT.md)."""
RAW_VARIABLE, TABLE_VARIABLE = "QUICBED_RAW", "QUICBED_TABLE"
"""Name to notebooks the directory of runs and the table that the workflow has made of them."""
VERDICTS_VARIABLE = "QUICBED_VERDICTS"
"""What the verdicts beside that table have to be of to count."""
DISSECTED, OPENINGS = "handshakes.json", "openings.json"
"""What captures show of handshakes: of a proof dissected, of a run with the times of its connections."""
PORT = 4433
"""UDP and TCP port of every server."""


def archives_below(directory: Path) -> list[Path]:
    """Archives of runs, sorted."""
    found = ((path, names) for path, names in directories(directory) if RUN_FILE not in names)
    return sorted(path / name for path, names in found for name in names if name.endswith(ARCHIVE_SUFFIXES))


def without_suffix(archive: str) -> str:
    """The name of an archive of runs without what says that it is one."""
    for suffix in ARCHIVE_SUFFIXES:
        archive = archive.removesuffix(suffix)
    return archive


def origin_of(path: Path, root: Path) -> str:
    """*path* relative to the parent of raw/; *root* is raw/ or a directory in it."""
    return untrusted.as_text(PurePosixPath(path.absolute().relative_to(_parent_of_raw(root))))


def located(origin: str, root: Path) -> Path:
    """Where a directory or archive is, by its origin; *root* is as in `origin_of`."""
    return _parent_of_raw(root) / origin


def _parent_of_raw(root: Path) -> Path:
    absolute = root.absolute()
    for path in (absolute, *absolute.parents):
        if path.name == "raw":
            return path.parent
    return absolute.parent


def directories(top: Path, refused: list[OSError] | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Every directory from *top* down with the names in it that are no directories to enter, sorted.

    `RUN_FILE` is among the names whatever it is. What lies deeper in a run's own directory is what programs left there,
    which is no run, record or archive of ours. Directories that cannot be read are told to *refused*.
    """
    for directory, names, files in trees.walk(top, refused.append if refused is not None else None):
        if RUN_FILE in names:
            files.append(RUN_FILE)
        names[:] = [] if RUN_FILE in files else sorted(name for name in names if not name.startswith("."))
        yield directory, sorted(files)
