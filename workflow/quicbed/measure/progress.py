"""What the person watching a measurement sees, and a log has too."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quicbed.base.untrusted import visible

logger = logging.getLogger("quicbed")
logger.setLevel(logging.INFO)
logger.addHandler(logging.StreamHandler())


@dataclass(frozen=True)
class At:
    """How far an experiment is after a run."""

    where: str
    """Experiment and block."""
    done: int
    of: int
    """Cells of the block that are done, and all of them."""
    ok: bool
    contamination: Sequence[str]
    """Why the run counts as disturbed."""
    forecast: str
    """When the experiment will be done; empty if nothing tells."""


def say(text: str, at: At | None = None) -> None:
    """A line for the person watching; *at* moves the bar that a terminal has (`quicbed.measure.display`)."""
    logger.info("%s", visible(text), extra={"at": at})


def copy_progress(log: Path) -> None:
    """Write what the person watching sees to `log` too, with times."""
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(log, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)


def now() -> str:
    """Wall-clock time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
