"""Completion of the command line by the shell: names that the configuration and the shipped claims know.

`register-python-argcomplete quicbed` prints what bash and zsh evaluate for it. While a line is completed, nothing but
names of files is read, so that the answer comes at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import argcomplete
import yaml

from quicbed.config.model import Config


def serve(parser: argparse.ArgumentParser, actions: Iterable[argparse.Action], root: Path) -> None:
    """Answer a shell that completes a line, which ends this process; *actions* is all that the parser takes."""
    for action in actions:
        if (names := _NAMES.get(action.dest)) is not None and action.choices is None:
            action.completer = _completer(root, names)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _completer(root: Path, names: Callable[[Path], list[str]]) -> Callable[..., list[str]]:
    return lambda **_: names(root) + _SETTINGS


def _stems(kind: str) -> Callable[[Path], list[str]]:
    return lambda root: sorted(file.stem for file in (root / "config" / kind).glob("*.yaml"))


def _claims(root: Path) -> list[str]:
    """Ids of claims, and of tables and papers that have several."""
    found = []
    for file in sorted((root / "config" / "claims").glob("*.yaml")):
        paper = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        found += [file.stem, *(str(claim["id"]) for claim in paper.get("claims", []))]
    return found


_SETTINGS = [f"{name}=" for name in Config.model_fields]
"""The first halves of words that override a setting."""

_NAMES: dict[str, Callable[[Path], list[str]]] = {
    "experiment": _stems("experiments"),
    "library": _stems("libraries"),
    "claim": _claims,
}
"""What an argument of this name can be, beside a word that overrides a setting."""
