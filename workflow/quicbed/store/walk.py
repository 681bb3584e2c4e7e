"""What lies below a directory of runs, in directories and in archives: the one place that walks there.

What is found are other people's files: names, contents and archives may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from quicbed.base import untrusted
from quicbed.base.untrusted import MOST_KEPT, UntrustedError
from quicbed.store import columns, stacks
from quicbed.store.campaign import CAMPAIGN_FILE, FLOOR_FILE
from quicbed.store.paths import ARCHIVE_SUFFIXES, RUN_FILE, directories, located, origin_of
from quicbed.store.record import RunsError

Content = bytes | UntrustedError
"""Of a file, or why it cannot be read."""
Files = Mapping[str, Content]
"""By name."""

RECORDS = ("sessions", "builds")
"""Directories beside it with a file each for every session and build."""


@dataclass
class Place:
    """A directory or an archive, and what was wanted of it."""

    origin: str
    runs: dict[str, Files] = field(default_factory=dict)
    """By origin, in the order of the paths. In the origin of a run in an archive, ``!`` separates the path of the
    archive from the path in it."""
    prefix: str = ""
    """What the origins begin with, of what is in an archive."""
    records: dict[PurePosixPath, Content] = field(default_factory=dict)
    """Files of campaigns (`CAMPAIGN_FILE`, `FLOOR_FILE`, `RECORDS`) by their origins, without the prefix."""
    damage: str | None = None
    """Why there may be more than was found."""
    is_archive: bool = False


def walk(
    root: Path,
    names: Container[str],
    *,
    experiment: str = "",
    records: bool = False,
    archives: list[tuple[Path, str]] | None = None,
) -> Iterator[Place]:
    """The runs below *root*, of each the files with these *names*; with *records* those of campaigns too.

    *root* is ``raw``, one testbed's directory in it, where *experiment* may limit it to one, or ``raw/reference``.
    Archives are named in *archives*, if that is given, with their origins, for somebody else to read (`packed`).
    Raises RunsError where there is no such directory.
    """
    if not (root / experiment).is_dir():
        raise RunsError(f"{root / experiment}: no such directory of runs; measure first or name another")
    refused: list[OSError] = []
    for path, files in directories(root / experiment, refused):
        origin = origin_of(path, root)
        if RUN_FILE in files:
            yield Place(origin, {origin: {name: content(path / name) for name in files if name in names}})
            continue
        for name in files:
            if name.endswith(ARCHIVE_SUFFIXES):
                archive = path / name, origin_of(path / name, root)
                if archives is None:
                    yield packed(*archive, names, records=records)
                else:
                    archives.append(archive)
        if records and CAMPAIGN_FILE in files:
            found = {PurePosixPath(origin_of(file, root)): content(file) for file in _records(path)}
            yield Place(origin, records=found)
    for error in refused:
        told = f"directory that cannot be read: {error.strerror}"
        yield Place(origin_of(Path(error.filename), root), damage=told)


def content(file: Path) -> Content:
    """Of a file that may be anything."""
    try:
        return untrusted.read(file)
    except UntrustedError as error:
        return error


def _records(campaign: Path) -> Iterator[Path]:
    yield campaign / CAMPAIGN_FILE
    if (campaign / FLOOR_FILE).exists():
        yield campaign / FLOOR_FILE
    for kind in RECORDS:
        if not (campaign / kind).is_symlink():
            yield from sorted((campaign / kind).glob("*.json"))


def _is_record(path: PurePosixPath) -> bool:
    return path.name in (CAMPAIGN_FILE, FLOOR_FILE) or (path.parent.name in RECORDS and path.suffix == ".json")


def packed(archive: Path, origin: str, names: Container[str], *, records: bool = False) -> Place:
    """What an archive of runs holds."""
    place = Place(origin, prefix=f"{origin}!", is_archive=True)
    files: dict[str, dict[str, Content]] = {}
    others: dict[PurePosixPath, Content] = {}

    def wanted(path: PurePosixPath) -> bool:
        return path.name == RUN_FILE or path.name in names or (records and _is_record(path))

    try:
        for name, found in unpacked(archive, wanted):
            path = PurePosixPath(name)
            if path.name == RUN_FILE or path.name in names:
                files.setdefault(str(path.parent), {})[path.name] = found
            else:
                others[path] = found
    except UntrustedError as error:
        place.damage = str(error)
    runs = {directory for directory, beside in files.items() if RUN_FILE in beside}
    place.runs = {f"{origin}!{one}": files[one] for one in own(runs)}
    # what a program left in a run's directory is no record
    place.records = {path: found for path, found in others.items() if runs.isdisjoint(map(str, path.parents))}
    return place


def unpacked(archive: Path, wanted: Callable[[PurePosixPath], bool]) -> Iterator[tuple[str, Content]]:
    """Names and contents of *wanted* files in an archive of runs, as `untrusted.packed`.

    Files are named as they are beside archives. Columns are lines again; what is not gzipped there stays so.
    """
    seen: set[str] = set()
    kept = 0

    def meant(path: PurePosixPath) -> bool:
        return wanted(PurePosixPath(_named(str(path))))

    for packed_as, found in untrusted.packed(archive, meant):
        name = _named(packed_as)
        if name in seen:
            found = UntrustedError("is in the archive twice")
        elif packed_as.endswith(columns.COLUMNS_SUFFIX) and not isinstance(found, UntrustedError):
            try:
                found = columns.unpacked(found)
            except UntrustedError as error:
                found = error
        seen.add(name)
        if not isinstance(found, UntrustedError):
            kept += len(found)
            if kept > MOST_KEPT:
                raise UntrustedError(f"holds more than {MOST_KEPT >> 20} MiB to read")
        yield name, found


def _named(packed_as: str) -> str:
    """Name of a file without what an archive puts behind it."""
    suffix = next((one for one in (columns.COLUMNS_SUFFIX, stacks.PLAIN_SUFFIX) if packed_as.endswith(one)), "")
    return packed_as.removesuffix(suffix)


def archived(archive: Path, names: Container[str]) -> Iterator[tuple[str, str, Content]]:
    """Directory, name and content of the files of these *names* in an archive of runs, as `unpacked`."""
    for path, found in unpacked(archive, lambda path: path.name in names):
        directory, _, name = path.rpartition("/")
        yield directory or ".", name, found


class Beside:
    """Files beside run.json by the run's origin, in directories and archives; each archive is read once.

    Of archives only those that are *wanted* by their paths in them are kept.
    """

    def __init__(self, raw: Path, wanted: Callable[[PurePosixPath], bool]) -> None:
        self._raw = raw
        self._wanted = wanted
        self._archives: dict[str, dict[str, Content]] = {}

    def read(self, origin: str, name: str) -> bytes:
        """A file of a run; UntrustedError where it is missing or cannot be read."""
        archive, _, inside = origin.partition("!")
        if not inside:
            return untrusted.read(located(origin, self._raw) / name)
        if archive not in self._archives:
            self._archives[archive] = dict(unpacked(located(archive, self._raw), self._wanted))
        found = self._archives[archive].get(f"{inside}/{name}", UntrustedError("is missing"))
        if isinstance(found, UntrustedError):
            raise found
        return found


def own(found: Set[str]) -> list[str]:
    """Those directories of runs in an archive that are not within another one, sorted."""
    own: list[str] = []
    last = None
    # what is within a directory follows it directly
    for below, one in sorted((one if one.endswith("/") else f"{one}/", one) for one in found - {"."}):
        if last is None or not below.startswith(last):
            own.append(one)
            last = below
    within = [one for one in own if one.startswith("/")]
    return sorted([".", *within] if "." in found else own)
