"""The clone that the tests run in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
EXTERNAL = DATA / "external"
"""Folders of external endpoints."""
NATIVE = ROOT / "tests" / "native"
"""Programs in C and C++ that tests compile."""


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
