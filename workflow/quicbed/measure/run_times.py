"""How long runs took, by cell; of the reference data it is kept below build/.

Reading all that is shipped takes many seconds, and every experiment that is measured wants to know it.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from quicbed.base import durable
from quicbed.builds import kit
from quicbed.builds.kit import BuildError
from quicbed.config.model import Project
from quicbed.store import details, runs
from quicbed.store.record import Run

SHIPPED = "reference-times.json"
"""The file below build/."""
PROOF_BESIDES_S = 0.3
"""What a proof takes beside its run, where it does not tell: starting the capture, and looking at it."""


class Took(NamedTuple):
    """Times of runs that are alike but for the size of what they transferred, added up."""

    runs: int = 0
    spent_s: float = 0.0
    """All that they took."""
    transfer_s: float = 0.0
    work: int = 0
    """Bytes, or handshakes."""

    def and_(self, other: Took) -> Took:
        """These runs and others together."""
        spent_s, transfer_s = self.spent_s + other.spent_s, self.transfer_s + other.transfer_s
        return Took(self.runs + other.runs, spent_s, transfer_s, self.work + other.work)

    def seconds(self, work: int) -> float:
        """A mean run that transfers so much."""
        transfer = self.transfer_s / self.work * work if self.work else self.transfer_s / self.runs
        return (self.spent_s - self.transfer_s) / self.runs + transfer


def key(experiment: str, arm: str, libraries: tuple[str, str], label: str, size: int | None) -> str:
    """What runs have in common that take about as long by byte; those of a single byte are others."""
    return json.dumps([experiment, arm, *libraries, label, "download" if (size or 0) > 1 else ""])


def proofs(kind: str | None) -> str:
    """The same of proofs, by the kind of their workload."""
    return json.dumps(["proofs", kind])


def spent_s(run: Run) -> float | None:
    """All the seconds that a run took, preparing the link and storing included; None where it does not tell."""
    metrics = run.metrics
    if metrics.spent_s is not None or metrics.run_wall_s is None:
        return metrics.spent_s
    return metrics.run_wall_s + (PROOF_BESIDES_S if run.cell.arm == "proof" else 0.0)


def work(size: int | None, connections: int | None) -> int:
    """What a run transfers, in bytes; of handshakes their number."""
    return (size or 1) * (connections or 1)


def shipped(project: Project) -> dict[str, Took]:
    """Of successful runs of the reference data, by key; kept until the data or the code change."""
    raw, kept = project.root / "raw" / "reference", project.build / SHIPPED
    if not raw.is_dir():
        return {}
    if (of := details.read_of(raw)) is None:
        return _read(raw)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["of"] == of:
            return {name: Took(*values) for name, values in known["times"].items()}
    found = _read(raw)
    # what cannot be kept is read again the next time
    with contextlib.suppress(OSError, BuildError), kit.locked(kept.with_suffix(".lock")):
        durable.write_json(kept, {"of": of, "times": found}, indent=None)
    return found


def _read(raw: Path) -> dict[str, Took]:
    found: dict[str, Took] = {}
    for _, run in runs.scan(raw):
        spent = spent_s(run) if isinstance(run, Run) and run.status == "ok" else None
        if isinstance(run, Run) and spent is not None:
            if run.cell.arm == "proof":
                name, took = proofs(run.workload.kind), Took(1, spent)
            else:
                size, libraries = run.workload.bytes, (run.client.library, run.server.library)
                name = key(run.experiment, run.cell.arm, libraries, run.cell.label, size)
                done = run.metrics.wall_s or 0.0
                took = Took(1, spent, done, work(size, run.workload.connections))
            found[name] = found.get(name, Took()).and_(took)
    return found
