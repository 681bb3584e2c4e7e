"""Third-party sources: the packages of the Cargo.lock files and of sdists.txt, fetched once into the store."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from quicbed.base import durable
from quicbed.builds import build_store, kit
from quicbed.builds.kit import WORKSPACES, BuildError, vendor_directory, wanted_sources
from quicbed.config.model import Project

BACKEND = '''\
"""Stands in for the build backend of a source distribution, of which pip wants to know name and version."""

import email
import pathlib
import shutil


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    told = email.message_from_bytes(pathlib.Path("PKG-INFO").read_bytes())
    made = pathlib.Path(directory, f"{told['Name']}-{told['Version']}.dist-info")
    made.mkdir()
    shutil.copy("PKG-INFO", made / "METADATA")
    return made.name
'''
"""Nothing of a distribution is run, and what it would need for that is not there."""


def fetched(project: Project) -> bool:
    """Whether the packages have been fetched."""
    return os.access(vendor_directory(project), os.R_OK)


def fetch(project: Project, log: Path) -> Path:
    """Fetch every package through cargo and pip, which check the checksums; returns sources.json.

    sources.json, in the clone, lists name, version and SHA-256 of every package.
    """
    listing = project.build / "sources" / "sources.json"

    def fill(made: Path) -> None:
        manifest, *others = (str(project.root / workspace / "Cargo.toml") for workspace in WORKSPACES)
        argv = ["cargo", "vendor", "--locked", "--versioned-dirs", "--manifest-path", manifest]
        kit.fetch([*argv, *(f"--sync={other}" for other in others), str(made / "vendor")], log=log, cwd=project.root)
        for package in kit.sdists(project.root):
            _fetch_sdist(package, made / "vendor", log)

    build_store.provide(build_store.sources_of(project), project, fill)
    kit.have_content(listing, durable.to_json(wanted_sources(project), sort_keys=True))
    return listing


def need(project: Project, log: Path) -> None:
    """Have the packages in the store."""
    if fetched(project):
        build_store.use(build_store.sources_of(project), project)
    else:
        fetch(project, log)


def _unpack(archive: Path, directory: Path, name: str) -> None:
    """Unpack files and directories of an archive whose checksum is known, where Python has no filters too."""
    with tarfile.open(archive) as opened:
        members = [one for one in opened if one.isfile() or one.isdir()]
        for one in members:
            path = PurePosixPath(one.name)
            if path.is_absolute() or ".." in path.parts:
                raise BuildError(f"{name}: the archive has {one.name!r}, which lies outside of it")
            one.uid, one.gid, one.uname, one.gname = os.geteuid(), os.getegid(), "", ""
            one.mode = 0o755 if one.isdir() or one.mode & 0o100 else 0o644
        again: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        opened.extractall(directory, members, **again)  # noqa: S202 (of members that are checked)


def _fetch_sdist(package: dict[str, Any], vendor: Path, log: Path) -> None:
    """Fetch a source distribution through pip; unpacked, it has its checksums as a package of cargo has."""
    name = f"{package['name']}-{package['version']}"
    with tempfile.TemporaryDirectory(dir=vendor.parent) as temporary:
        work = Path(temporary)
        backend = work / "backend" / "setuptools"
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(BACKEND, encoding="utf-8")
        lock = work / "lock.txt"
        wanted = f"{package['name']}=={package['version']} --hash=sha256:{package['checksum']}\n"
        lock.write_text(wanted, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
        # the version of Python that it is for does not matter to its C
        pip += ["--require-hashes", "--no-binary", ":all:", "--no-build-isolation", "--ignore-requires-python"]
        environment = os.environ | {"PYTHONPATH": str(backend.parent)}
        kit.fetch([*pip, "--dest", str(work), "--requirement", str(lock)], log=log, cwd=work, env=environment)
        archives = list(work.glob("*.tar.gz"))
        if len(archives) != 1:
            raise BuildError(f"{name}: pip fetched {len(archives)} archives instead of one; see {log}")
        if hashlib.sha256(archives[0].read_bytes()).hexdigest() != package["checksum"]:
            raise BuildError(f"{name}: is not what {kit.SDISTS} names (wrong SHA-256); see {log}")
        _unpack(archives[0], work, name)
        if not (work / name).is_dir():
            raise BuildError(f"{name}: the archive has no directory {name}; {kit.SDISTS} needs another version")
        files = {
            file.relative_to(work / name).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted((work / name).rglob("*"))
            if file.is_file()
        }
        checksums = {"files": files, "package": package["checksum"]}
        (work / name / ".cargo-checksum.json").write_text(json.dumps(checksums), encoding="utf-8")
        shutil.move(work / name, vendor / name)
