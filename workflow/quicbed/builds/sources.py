"""Third-party sources: the packages of the Cargo.lock files, fetched once into the store."""

from __future__ import annotations

import os
from pathlib import Path

from quicbed.base import durable
from quicbed.builds import build_store, kit
from quicbed.builds.kit import WORKSPACES, vendor_directory, wanted_sources
from quicbed.config.model import Project


def fetched(project: Project) -> bool:
    """Whether the packages of the Cargo.lock files have been fetched."""
    return os.access(vendor_directory(project), os.R_OK)


def fetch(project: Project, log: Path) -> Path:
    """Fetch every package of the Cargo.lock files through cargo, which checks the checksums; returns sources.json.

    sources.json, in the clone, lists name, version and SHA-256 of every package.
    """
    listing = project.build / "sources" / "sources.json"

    def fill(made: Path) -> None:
        manifest, *others = (str(project.root / workspace / "Cargo.toml") for workspace in WORKSPACES)
        argv = ["cargo", "vendor", "--locked", "--versioned-dirs", "--manifest-path", manifest]
        kit.fetch([*argv, *(f"--sync={other}" for other in others), str(made / "vendor")], log=log, cwd=project.root)

    build_store.provide(build_store.sources_of(project), project, fill)
    kit.have_content(listing, durable.to_json(wanted_sources(project), sort_keys=True))
    return listing


def need(project: Project, log: Path) -> None:
    """Have the packages of the Cargo.lock files in the store."""
    if fetched(project):
        build_store.use(build_store.sources_of(project), project)
    else:
        fetch(project, log)
