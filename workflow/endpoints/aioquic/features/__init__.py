"""What only some flavours have; a build holds the modules of its own features."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def find(name: str) -> ModuleType | None:
    """The module of a feature, if this build has it."""
    module = f"{__name__}.{name}"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None
