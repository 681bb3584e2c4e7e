"""What finished runs tell of how long others will take; of the reference data it is kept below build/.

Reading all that is shipped takes many seconds, and every experiment that is measured wants to know it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quicbed.base import durable
from quicbed.builds import kit
from quicbed.builds.kit import BuildError
from quicbed.config.model import Project
from quicbed.store import details, runs
from quicbed.store.record import Run
from quicbed.store.stacks import INSTRUCTIONS

SHIPPED = "reference-runs.json"
"""The file below build/."""
PROOF_BESIDES_S = 0.3
"""What a proof takes beside its run, where it does not tell: starting the capture, and looking at it."""


class Finished(NamedTuple):
    """What is kept of a run; times are in seconds."""

    experiment: str
    label: str
    arm: str
    client: str
    server: str
    kind: str | None
    """Of its workload; null where it does not tell."""
    variant: str
    """As JSON, what was not varied left out."""
    mode: str | None
    mtu: int | None
    rate_mbit: float | None
    bytes: int | None
    connections: int | None
    profile: str
    """`perf` where its programs were sampled, `counted` where their instructions were; else empty."""
    pinged: bool
    pair: bool
    """Whether it was measured at the same time as another one, with which it took what it tells."""
    spent_s: float | None
    """All it took; null where it does not tell."""
    wall_s: float | None
    """Of its transfer; null unless that succeeded."""
    block: int | None
    value: float | None
    """TTFB in ms or goodput in Mbit/s, if the run counts."""

    @classmethod
    def of(cls, run: Run) -> Finished:
        """Of a run on disk."""
        metrics, link, workload = run.metrics, run.link, run.workload
        ok = run.status == "ok"
        spent = None
        if metrics.run_wall_s is not None:
            spent = metrics.spent_s
            if spent is None:
                spent = metrics.run_wall_s + (PROOF_BESIDES_S if run.cell.arm == "proof" else 0.0)
        value = metrics.ttfb_ms if workload.kind == "handshake" else metrics.goodput_mbps
        return cls(
            run.experiment,
            run.cell.label,
            run.cell.arm,
            run.client.library,
            run.server.library,
            workload.kind,
            json.dumps(run.variant.as_dict(), sort_keys=True),
            link.mode,
            link.mtu,
            link.rate_mbit,
            workload.bytes,
            workload.connections,
            "" if not run.host.perf else "counted" if run.host.perf.get("event") == INSTRUCTIONS else "perf",
            run.host.ping.sent is not None,
            run.together is not None,
            spent,
            metrics.wall_s if ok else None,
            run.block,
            value if ok and not run.contaminated else None,
        )


def shipped(project: Project) -> Iterator[Finished]:
    """Of every run of the reference data, in the order of the paths; kept until the data or the code change."""
    raw, kept = project.root / "raw" / "reference", project.build / SHIPPED
    if not raw.is_dir():
        return iter(())
    if (of := details.read_of(raw)) is None:
        return _read(raw)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["of"] == of:
            return iter([Finished(*values) for values in known["runs"]])
    found = list(_read(raw))
    # what cannot be kept is read again the next time
    with contextlib.suppress(OSError, BuildError), kit.locked(kept.with_suffix(".lock")):
        durable.write_json(kept, {"of": of, "runs": found}, indent=None)
    return iter(found)


def _read(raw: Path) -> Iterator[Finished]:
    for _, run in runs.scan(raw):
        if isinstance(run, Run):
            yield Finished.of(run)
