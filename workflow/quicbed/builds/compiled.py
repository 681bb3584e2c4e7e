"""Crates compiled once: cargo starts a build from what a similar one, finished before, has compiled.

The recipe `quicbed.builds.recipes.cargo` has cargo compile every flavour in a directory of its own. Most of what is in
it other flavours and libraries need as well, and a copy of it is made in seconds. cargo itself decides what it can use:
it compiles anew whatever differs in version, features, profile, compiler flags, place of the source, or in a variable
or file that a build script has declared. So a build is the same with and without the copy; only its time differs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quicbed.base import durable
from quicbed.builds import kit
from quicbed.builds.recipes import cargo
from quicbed.config.model import Project

RECIPE = "cargo"

_OWN = shutil.ignore_patterns("quicbed*", "libquicbed*")
"""This repository's packages, which are edited, and the programs made of them."""

_KEPT = (".fingerprint", "build", "deps")
"""What cargo needs to know a crate as compiled."""

_REPLACED = {".rlib", ".rmeta"}
"""Suffixes of what rustc writes under another name and then moves into place, and most of what there is to copy."""


def take_over(project: Project, name: str, flavour: str) -> Path | None:
    """Copy what a similar build has compiled to where a flavour will be compiled; returns where from.

    Nothing is copied when the flavour has been compiled before, or when no other build is of use to it.
    """
    target = cargo._target(project, name, flavour)
    if target.exists():
        return None
    for source in _most_similar_first(project, name, flavour):
        with _undisturbed(source) as free:
            if free:
                _copy(source, target)
                return source
    return None


def _most_similar_first(project: Project, name: str, flavour: str) -> list[Path]:
    """Directories of other builds that have crates in common with a flavour, those with most of them first."""
    wanted = _crates(project, name)
    found: list[tuple[int, Path]] = []
    for other, library in project.libraries.items():
        if library.recipe != RECIPE:
            continue
        common = len(wanted & _crates(project, other))
        for one in library.flavours:
            if common and (other, one) != (name, flavour):
                found.append((common, cargo._target(project, other, one)))
    return [directory for _, directory in sorted(found, key=lambda pair: -pair[0])]


def _crates(project: Project, name: str) -> set[tuple[str, str]]:
    return {(crate["name"], crate["version"]) for crate in kit.crates_of(project.root, project.libraries[name])}


@contextmanager
def _undisturbed(directory: Path) -> Iterator[bool]:
    """Whether cargo has compiled in a directory and does not do so as long as this lasts."""
    try:
        lock = (directory / "release" / ".cargo-lock").open("rb")
    except FileNotFoundError:
        yield False
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _copy(source: Path, target: Path) -> None:
    try:
        with durable.filling(target) as made:
            for part in _KEPT:
                old, new = source / "release" / part, made / "release" / part
                shutil.copytree(old, new, symlinks=True, ignore=_OWN, copy_function=_copy_file)
    except shutil.Error as error:
        _, _, why = error.args[0][0]  # of the first of all files
        raise kit.BuildError(f"{target}: {why}") from None


def _copy_file(source: str, target: str) -> None:
    if Path(source).suffix in _REPLACED:
        with suppress(OSError):  # a file system without hard links, a file of somebody else
            os.link(source, target)
            return
    shutil.copy2(source, target)
