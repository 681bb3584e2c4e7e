"""The clone that the tests run in."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
EXTERNAL = DATA / "external"
"""Folders of external endpoints."""
NATIVE = ROOT / "tests" / "native"
"""Programs in C and C++ that tests compile."""


def copy_config(target: Path) -> None:
    """Copy the configuration without the folders of external endpoints that somebody has added."""

    def added(directory: str, names: list[str]) -> list[str]:
        described = [name for name in names if name.endswith(".yaml") and Path(directory).name == "libraries"]
        return [name for name in described if "\nexternal:" in f"\n{(Path(directory) / name).read_text()}"]

    shutil.copytree(ROOT / "config", target, ignore=added)


def load_tool(repository: Path, name: str) -> ModuleType:
    """Import a program of tools/, which is no package."""
    specification = importlib.util.spec_from_file_location(name, repository / "tools" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    # programs of tools/ import each other by name
    if str(repository / "tools") not in sys.path:
        sys.path.append(str(repository / "tools"))
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
