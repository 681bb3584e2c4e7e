"""Arms of cells: what is compared, and what is measured besides."""

from __future__ import annotations

BESIDE = "beside"
"""Arm of the baseline of a pair of runs at the same time: every cell that is compared has one of its own."""

ARMS = ("main", "aa", "control", BESIDE)
"""What is measured in blocks and compared. Other arms, warm-up and proof too, are recorded but count for nothing."""

PRIMITIVES = "primitives"
"""Arm and label of the cells in which a library's primitives are timed."""


LEFT_OUT = "left out: "
"""What the reason of a cell begins with that its scale does not measure."""

CAPTURED = "captured"
"""Arm of the cells that are measured beside a capture."""
