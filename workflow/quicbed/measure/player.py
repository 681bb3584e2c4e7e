"""The program that plays videos, dash.js: a package of npm, fetched when a video is to be measured and not before.

`workflow/sources/player/package-lock.json` pins it and all that it is made of by version and integrity hash, which npm
verifies. What is kept is its bundle and its licences.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from quicbed.base import durable
from quicbed.base.hashing import digest
from quicbed.config.model import Project
from quicbed.plan.browser import PLAYER

FILE = "dash.js"
_PACKAGE = "node_modules/dashjs"
_BUNDLE = "dist/modern/umd/dash.all.min.js"
_LICENCES = ("LICENSE.md", f"{_BUNDLE}.LICENSE.txt")
_LOCKS = ("package.json", "package-lock.json")
_LIMIT_S = 300.0


class PlayerError(Exception):
    """The player cannot be had: one line with the reason and the remedy."""


def version(root: Path) -> str:
    """The pinned version."""
    locked = json.loads((root / PLAYER / "package-lock.json").read_text(encoding="utf-8"))
    return str(locked["packages"][_PACKAGE]["version"])


def directory(project: Project) -> Path:
    """Where the player is once it has been fetched."""
    locks = {name: (project.root / PLAYER / name).read_text(encoding="utf-8") for name in _LOCKS}
    return project.build / "player" / digest(locks)


def problem(project: Project) -> str | None:
    """Why this machine has no player and cannot fetch it, or None."""
    if directory(project).is_dir() or shutil.which("npm"):
        return None
    return f"dash.js {version(project.root)} is a package of npm, and there is no npm (Debian: apt-get install npm)"


def fetch(project: Project) -> Path:
    """The file of the player, fetched where it is missing; PlayerError."""
    target = directory(project)
    if not target.is_dir():
        if (reason := problem(project)) is not None:
            raise PlayerError(reason)
        with tempfile.TemporaryDirectory(prefix="quicbed-npm-") as temporary:
            for name in _LOCKS:
                shutil.copy(project.root / PLAYER / name, temporary)
            _install(project, Path(temporary))
            package = Path(temporary) / _PACKAGE
            with durable.filling(target) as made:
                shutil.copy(package / _BUNDLE, made / FILE)
                for name in _LICENCES:
                    shutil.copy(package / name, made)
    return target / FILE


def _install(project: Project, place: Path) -> None:
    words = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", f"--cache={place}/cache"]
    what = f"npm cannot fetch dash.js {version(project.root)}"
    try:
        done = subprocess.run(
            words,
            cwd=place,
            env=os.environ | {"CI": "true"},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlayerError(f"{what}: {error}") from None
    if done.returncode != 0 or not (place / _PACKAGE / _BUNDLE).is_file():
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"it ended with {done.returncode}"]
        raise PlayerError(f"{what}: {said[0][:300]}; connect to the network and start again")
