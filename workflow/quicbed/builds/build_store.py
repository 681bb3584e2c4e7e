"""The store: finished builds, components and third-party sources, which the clones of a user share.

Layout::

    <platform>/builds/<id>/         a build
    <platform>/components/<id>/     a component
    sources/<digest>/vendor/        the packages of the Cargo.lock files with this digest
    notes/<any of these>/           locks, and a file for each clone that has used it

A platform is what a program needs of a system: architecture and C library, and for builds in Python the interpreter. So
systems that share a home directory do not share programs. A directory appears under its name when it is whole, with
`manifest.json`, which has the SHA-256 of each file in it. It is compared when something is taken out of the store: what
was changed is made again. Nobody but its user and root may write to a store, and endpoints have it read-only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import pwd
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quicbed.base import durable
from quicbed.base.hashing import digest
from quicbed.base.untrusted import one_line
from quicbed.builds import kit
from quicbed.builds.kit import BuildError
from quicbed.config.model import Project

MANIFEST = "manifest.json"
NOTES = "notes"
SOURCES = "sources"
KINDS = ("builds", "components")
IN_USE = "in use"
_REMEDY = "name another directory in paths.store or in the variable QUICBED_STORE"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = 1 << 20
"""Bytes below which a disk counts as full."""
_DENIED = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Entry:
    """A directory of a store, whether it is there or not."""

    store: Path
    part: str
    """Directory of the store that it is in, as `x86_64-glibc2.36/builds`."""
    name: str

    @property
    def directory(self) -> Path:
        """Where it is or will be."""
        return self.store / self.part / self.name

    @property
    def notes(self) -> Path:
        """Directory of its locks and of who has used it."""
        return self.store / NOTES / self.part / self.name

    @property
    def lock(self) -> Path:
        """Locked by who makes or removes it."""
        return self.notes / "made.lock"

    @property
    def users(self) -> Path:
        """Locked, together with others, by who uses it, and alone by who removes it."""
        return self.notes / "used.lock"


def of_system(interpreter: Path | None = None) -> str:
    """What programs that are made here need of a system; those of an interpreter need that too."""
    try:
        library = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    except (ValueError, OSError):
        library = ""
    needed = [platform.machine(), library or "libc"]
    if interpreter is not None:
        needed += [str(sys.implementation.cache_tag), digest(str(interpreter), 8)]
    return "-".join(needed)


def of_project(project: Project, kind: str, name: str, interpreter: Path | None = None) -> Entry:
    """A build or component of this system."""
    return Entry(project.store, f"{of_system(interpreter)}/{kind}", name)


def entry_of(directory: Path) -> Entry | None:
    """The build or component of a store that has this directory; None for other directories."""
    if directory.parent.name not in KINDS or len(directory.parents) < 3:
        return None
    kind, system, store = directory.parents[:3]
    if not (store / NOTES).is_dir():
        return None
    return Entry(store, f"{system.name}/{kind.name}", directory.name)


def sources_of(project: Project) -> Entry:
    """The third-party sources of a project."""
    return Entry(project.store, SOURCES, kit.sources_name(project))


# ---- whose it is -----------------------------------------------------------------------------------------------------


def check(store: Path, root: Path) -> None:
    """Make a store unless it is there; BuildError, with the remedy, where others could put programs in it.

    Who could change what a clone's own directory is in can change its code: a store in there adds nothing to that.
    """
    try:
        _make(store)
        status = store.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(store))
        trusted = {0, os.geteuid(), Path("/").stat().st_uid}  # a user namespace may lack the number of root
        _refuse(store, status, trusted, sticky=False)
        for parent in () if store.is_relative_to(root.resolve()) else store.parents:
            _refuse(parent, parent.stat(), trusted, sticky=True)
    except (FileExistsError, NotADirectoryError):
        raise BuildError(f"{store}: the store of builds is no directory; {_REMEDY}") from None
    except OSError as error:
        raise _problem(store, error) from None


def _make(directory: Path) -> None:
    """Make a directory, and those above it that are missing, which others of a group may not write to."""
    if not directory.parent.exists():
        _make(directory.parent)
    # what is below the first one is this user's only
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))


def _refuse(path: Path, status: os.stat_result, trusted: set[int], *, sticky: bool) -> None:
    """BuildError where others could change or replace a directory; *sticky*: unless only their own files in it."""
    if status.st_uid not in trusted:
        raise BuildError(
            f"{path}: belongs to {_name(status.st_uid)}, who could put programs into the store of builds; {_REMEDY}"
        )
    if sticky and status.st_mode & stat.S_ISVTX:
        return
    # Debian and others give each user a group of the same number, with nobody else in it
    alone = status.st_gid == status.st_uid
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not alone):
        raise BuildError(
            f"{path}: others may write there, and so put programs into the store of builds; run `chmod go-w {path}`, "
            f"or {_REMEDY}"
        )


def _name(user: int) -> str:
    try:
        return f"the user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"the user with the number {user}"


def _problem(store: Path, error: OSError, lacking: str = "") -> BuildError:
    """An error of the operating system as one line with its remedy."""
    said = f"{error.filename or store}: {error.strerror or error}"
    if error.errno in _FULL:
        return BuildError(f"{said}; make room, as with `quicbed store prune`, or {_REMEDY}")
    if error.errno in _DENIED:
        return BuildError(f"{said}: the store of builds {lacking}cannot be written; {_REMEDY}")
    return BuildError(f"{said}; {_REMEDY}")


# ---- what is in it ---------------------------------------------------------------------------------------------------


def listed(directory: Path) -> dict[str, list[str]]:
    """What is in a directory by its relative name, without the manifest: kind, and SHA-256 or target of a link."""
    found: dict[str, list[str]] = {}
    for top, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(top, name)
            relative = path.relative_to(directory).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[relative] = ["link", str(path.readlink())]
            elif stat.S_ISREG(mode) and relative != MANIFEST:
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                found[relative] = ["program" if mode & 0o100 else "file", sha256]
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                found[relative] = ["other"]
    return found


def seal(directory: Path) -> None:
    """Finish a directory: whatever the umask, endpoints may read it and only its user may write to it; a manifest."""
    for top, _, files in os.walk(directory):
        for path in (Path(top), *(Path(top, name) for name in files)):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode):
                readable = 0o055 if mode & 0o100 else 0o044
                path.chmod((stat.S_IMODE(mode) | readable) & ~0o022)
    kit.write_json(directory / MANIFEST, listed(directory))


def changed(directory: Path) -> str | None:
    """How a directory differs from its manifest, with the first difference; None if it does not."""
    try:
        wanted = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        found = listed(directory)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, RecursionError) as error:
        return f"cannot be read ({one_line(error, 200)})"
    if wanted == found:
        return None
    if not isinstance(wanted, dict):
        return f"{MANIFEST} was changed"
    name = min(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    how = "is missing" if name not in found else "is new" if name not in wanted else "was changed"
    return f"{one_line(name, 200)} {how}"


# ---- taking and making -----------------------------------------------------------------------------------------------


def provide(entry: Entry, project: Project, fill: Callable[[Path], None]) -> Path:
    """The directory of an entry, which is compared with its manifest; it is made unless it is there as it was made.

    *fill* fills an empty directory. Who comes meanwhile waits.
    """
    check(entry.store, project.root)
    use(entry, project)
    try:
        if _is_whole(entry):
            return entry.directory
        for directory in (entry.notes, entry.directory.parent):
            make_below(entry.store, directory)
        with kit.locked(entry.lock):
            if _is_whole(entry):  # by the one who had the lock
                return entry.directory
            if entry.directory.exists():
                problem = changed(entry.directory)
                print(f"quicbed: {entry.directory}: is not as it was made ({problem}); made again", file=sys.stderr)
            with durable.filling(entry.directory, replace=True) as made:
                try:
                    fill(made)
                except BuildError:  # of a program that may have found no room
                    if shutil.disk_usage(made).free > _ROOM:
                        raise
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(made)) from None
                seal(made)
    except OSError as error:
        raise _problem(entry.store, error, f"has no whole {entry.name} and ") from None
    return entry.directory


def _is_whole(entry: Entry) -> bool:
    return entry.directory.is_dir() and changed(entry.directory) is None


def make_below(store: Path, directory: Path) -> None:
    if directory != store:
        make_below(store, directory.parent)
        directory.mkdir(mode=0o755, exist_ok=True)


_used: dict[Entry, int] = {}
"""Descriptors of the locks of what this process uses, until it ends."""


def use(entry: Entry, project: Project) -> None:
    """Note that a clone uses an entry, and keep it from being removed until this process ends.

    Nothing is noted in a store that cannot be written: nobody removes anything from it.
    """
    with suppress(OSError):
        if entry not in _used:
            make_below(entry.store, entry.notes)
            descriptor = os.open(entry.users, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            except OSError:
                os.close(descriptor)
                raise
            _used[entry] = descriptor
        clone = str(project.root.resolve())
        (entry.notes / f"{digest(clone, 12)}.clone").write_text(clone, encoding="utf-8", errors="surrogateescape")


def let_go() -> None:
    """Let others remove what this process has used."""
    while _used:
        os.close(_used.popitem()[1])


def link(entry: Entry, place: Path) -> None:
    """Let a name in a clone lead to an entry, in the place of what is there."""
    if place.is_symlink() and place.readlink() == entry.directory:
        return
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)  # half of a build
    place.parent.mkdir(parents=True, exist_ok=True)
    made = place.with_name(f".{place.name}.partial")
    made.unlink(missing_ok=True)
    made.symlink_to(entry.directory)
    made.replace(place)
    durable.sync(place.parent)


# ---- listing and removing --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    """A clone that has used an entry."""

    clone: Path
    last: float
    """When, in s since 1970."""


def stored_entries(project: Project) -> list[Entry]:
    """Everything in a store, sorted; nothing where there is none."""
    store = project.store
    if not os.path.lexists(store):
        return []
    check(store, project.root)
    parts = [SOURCES, *(f"{top.name}/{kind}" for top in store.glob("[!.]*") for kind in KINDS if top.name != NOTES)]
    found = [Entry(store, part, path.name) for part in parts for path in (store / part).glob("[!.]*") if path.is_dir()]
    return sorted(found, key=lambda entry: (entry.part, entry.name))


def uses(entry: Entry) -> list[Use]:
    """Who has used an entry, the last one first."""
    found = []
    for file in entry.notes.glob("*.clone"):
        with suppress(OSError):
            clone = file.read_text(encoding="utf-8", errors="surrogateescape")
            if clone:  # not of a process that was killed
                found.append(Use(Path(clone), file.stat().st_mtime))
    return sorted(found, key=lambda use: -use.last)


def last_use(entry: Entry) -> float:
    """When an entry was last used or, if it never was, made, in s since 1970."""
    with suppress(OSError):
        return max((use.last for use in uses(entry)), default=entry.directory.stat().st_mtime)
    return time.time()


def size_of(directory: Path) -> int:
    """Bytes that the files of a directory have."""
    files = (Path(top, name) for top, _, names in os.walk(directory) for name in names)
    return sum(file.lstat().st_size for file in files)


def row(entry: Entry) -> list[str]:
    """Kind, name, size in MB, day of the last use, and clones of an entry, for people."""
    clones = [f"{one.clone}{'' if one.clone.is_dir() else ' (gone)'}" for one in uses(entry)]
    kind = entry.part if entry.part == SOURCES else entry.part.partition("/")[2]
    where = "" if entry.part == SOURCES else entry.part.partition("/")[0]
    day = time.strftime("%Y-%m-%d", time.localtime(last_use(entry)))
    megabytes = f"{size_of(entry.directory) / 1e6:.1f}"
    return [kind.removesuffix("s"), entry.name, where, megabytes, day, one_line(", ".join(clones), 500)]


def prune(project: Project, days: float, *, dry_run: bool) -> Iterator[tuple[Entry, int, str]]:
    """Remove what no clone has used for so many days, unless somebody uses it now.

    Tells of each such entry its bytes and what becomes of it.
    """
    store = project.store
    for entry in stored_entries(project):
        if time.time() - last_use(entry) < days * 86400:
            continue
        size = size_of(entry.directory)
        with _alone(entry) as alone:
            if alone and not dry_run:
                _remove(entry)
        yield entry, size, IN_USE if not alone else "would be removed" if dry_run else "removed"
    if not dry_run:
        for top in (store / SOURCES, *(top / kind for top in store.glob("[!.]*") for kind in KINDS)):
            _remove_leftovers(store, top)


@contextmanager
def _alone(entry: Entry) -> Iterator[bool]:
    """Whether nobody makes or uses an entry, nor will as long as this lasts."""
    descriptors: list[int] = []
    try:
        make_below(entry.store, entry.notes)
        for lock in (entry.lock, entry.users):
            descriptors.append(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    except OSError as error:
        raise _problem(entry.store, error) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _remove(entry: Entry) -> None:
    gone = entry.directory.with_name(f".{entry.name}.partial")
    shutil.rmtree(gone, ignore_errors=True)
    entry.directory.rename(gone)  # never half a directory under its name
    shutil.rmtree(gone)
    for file in entry.notes.glob("*.clone"):
        file.unlink(missing_ok=True)


def _remove_leftovers(store: Path, top: Path) -> None:
    """Remove what killed processes left unfinished."""
    for partial in top.glob(".*.partial"):
        name = partial.name.removeprefix(".").removesuffix(".partial").removesuffix(".old")
        with _alone(Entry(store, str(top.relative_to(store)), name)) as alone:
            if alone:
                shutil.rmtree(partial, ignore_errors=True)
