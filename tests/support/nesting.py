"""Directories so deep within each other that what recurses, or names them by their paths, fails."""

from __future__ import annotations

import os
from pathlib import Path


def nested(directory: Path, depth: int, name: str = "d") -> None:
    """Make so many directories within each other below a directory, which is made too."""
    directory.mkdir(parents=True, exist_ok=True)
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(depth):
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
