"""Arms of cells that are no part of a comparison."""

from __future__ import annotations

PRIMITIVES = "primitives"
"""Arm and label of the cells in which a library's primitives are timed."""


CAPTURED = "captured"
"""Arm of the cells that are measured beside a capture."""
