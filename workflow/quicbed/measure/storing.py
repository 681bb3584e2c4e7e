"""Runs as they are kept: made of attempts, and written once, whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quicbed.base import durable
from quicbed.config.model import Project
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.measure.progress import now
from quicbed.plan.host import host_of
from quicbed.plan.spec import RunSpec
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run, RunsError

FREE_BYTES = 500 * 2**20


def need_room(directory: Path) -> None:
    """MeasureError unless the disk of a directory has room for runs."""
    if shutil.disk_usage(directory).free < FREE_BYTES:
        raise MeasureError(
            f"{directory}: less than {FREE_BYTES >> 20} MiB free on its disk; make room and start again: "
            "finished runs remain"
        )


def read_run(file: Path) -> Run:
    """A stored run.json; raises MeasureError naming a damaged one."""
    try:
        return Run.read(file)
    except RunsError as error:
        raise MeasureError(f"{file}: is damaged ({error}); move {file.parent} out of the way") from None


@contextlib.contextmanager
def stored(directory: Path) -> Iterator[Path]:
    """A directory to fill that takes its place under `directory` only when complete."""
    with durable.filling(directory) as partial:
        yield partial
        drop_empty(partial)
        if directory.exists():
            raise MeasureError(f"{directory}: exists already; nothing measured is ever overwritten")


def drop_empty(directory: Path) -> None:
    """Remove what programs of a run have not written to."""
    for file in directory.iterdir():
        if file.suffix in (".out", ".err") and file.is_file() and file.stat().st_size == 0:
            file.unlink()


class Store:
    """The runs of a project's testbed, of one host."""

    def __init__(self, project: Project, facts: Mapping[str, Any]) -> None:
        self._project = project
        self._facts = facts
        self.host = host_of(facts)
        """Who measures."""
        self.raw = project.raw / project.config.testbed
        """Where they are."""
        self.watcher: Callable[[Run], None] | None = None
        """Called with every run that is kept."""

    def record(
        self, spec: RunSpec, attempt: Attempt, /, named: Mapping[str, str | None] | None = None, **place: Any
    ) -> Run:
        """What is kept of an attempt; the cell is kept with what else it is *named*.

        *place* are the keys of run.json that say which attempt it is.
        """
        values = self._values(spec) | {
            "cell": spec.cell.as_dict() | dict(named or {}),
            "status": attempt.status,
            "reason": attempt.reason,
            "contaminated": bool(attempt.contamination),
            "contamination": attempt.contamination,
            "contradictions": attempt.contradictions,
            "metrics": attempt.metrics,
            "evidence": attempt.evidence,
            "host": attempt.host,
            "started_at": attempt.started_at or now(),
            **place,
        }
        try:
            return Run.made(values)
        except RunsError as error:
            # such as an option that an endpoint reports with a value of another type
            attempt.fail(f"cannot be kept: {error}")
            empty: dict[str, Any] = {"metrics": {}, "evidence": {}, "host": {}}
            return Run.made(values | empty | {"status": attempt.status, "reason": attempt.reason})

    def _values(self, spec: RunSpec) -> dict[str, Any]:
        """What was to be measured, and where."""
        project, cell = self._project, spec.cell
        study = project.study
        named = {"study": {"name": project.config.study, "digest": study.digest}} if study is not None else {}
        return named | {
            "testbed": {
                "name": project.config.testbed,
                "kind": project.testbed.kind,
                "cpus": self._facts["cpus"],
                **asdict(self.host),
            },
            "link": {
                **spec.link.model_dump(),
                "rtt_ms": cell.variant.rtt_ms or 0,  # not 0.0
                "loss_percent": cell.variant.loss_percent or 0,
                **cell.variant.reordering,
            },
            "scale": project.config.scale,
            "seed": project.config.seed,
            "client": cell.client.as_dict(),
            "server": cell.server.as_dict(),
            "variant": cell.variant.as_dict(),
            "workload": spec.work,
        }

    def keep(self, run: Run, directory: Path, begin: float) -> Run:
        """Write run.json; returns the run with all the seconds that it took since *begin* (monotonic).

        MeasureError instead where a run has failed on a full disk, which is no finding.
        """
        if run.status == "failed":
            need_room(directory.parent)
        metrics = run.metrics.model_copy(update={"spent_s": time.monotonic() - begin})
        run = run.model_copy(update={"metrics": metrics})
        run.write(directory / RUN_FILE)
        if self.watcher is not None:
            self.watcher(run)
        return run
