"""What the person watching a measurement sees, and a log has too."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path

_logger = logging.getLogger("quicbed")
_logger.setLevel(logging.INFO)
_logger.addHandler(logging.StreamHandler())


def say(text: str) -> None:
    """A line for the person watching."""
    _logger.info(text)


def copy_progress(log: Path) -> None:
    """Write what the person watching sees to `log` too, with times."""
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(log, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _logger.addHandler(handler)


def now() -> str:
    """Wall-clock time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
