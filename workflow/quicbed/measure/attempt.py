"""What one execution of client and server gave."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from quicbed.base.errors import QuicbedError
from quicbed.base.untrusted import one_line
from quicbed.testbed import TestbedError

_logger = logging.getLogger("quicbed")


class MeasureError(QuicbedError):
    """Measuring cannot start or go on: one line naming what and the remedy."""


@dataclass
class Attempt:
    """What one execution of client and server gave; it is judged, and then stored."""

    status: str = "ok"
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    contamination: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    started_at: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has failed so far."""
        return self.status == "ok"

    def fail(self, reason: str) -> None:
        """Mark as failed; the first reason stays."""
        if self.status == "ok":
            self.status, self.reason = "failed", one_line(reason)

    def contradict(self, problem: str) -> None:
        """Mark as failed because the evidence is not what the cell says."""
        self.fail(problem)
        self.contradictions.append(problem)

    def unproven(self, said: str) -> None:
        """Note what no evidence shows."""
        before = self.evidence.get("unproven")
        self.evidence["unproven"] = f"{before}; {said}" if before else said

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """What judges a run and does not understand what it finds makes a failed run of it, and nothing else."""
        try:
            yield
        except (TestbedError, MeasureError):
            raise
        except Exception as error:
            _logger.debug("judging", exc_info=True)
            self.fail(f"cannot be judged: {type(error).__name__}: {one_line(error, 300)}")
