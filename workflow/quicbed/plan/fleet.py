"""The program that runs copies of an endpoint's program, one for each processor, as part of what a cell is."""

from __future__ import annotations

import hashlib
from pathlib import Path

FLEET = Path("workflow/endpoints/fleet/fleet.py")


def identity(root: Path) -> str:
    """SHA-256 of the program."""
    return hashlib.sha256((root / FLEET).read_bytes()).hexdigest()
