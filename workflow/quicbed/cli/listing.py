"""What there is, a line each: libraries, variants, experiments, claims, runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quicbed.base.untrusted import shown
from quicbed.builds import making
from quicbed.claims import papers
from quicbed.config.model import ConfigError, Project, Variant
from quicbed.measure import stored_pairs
from quicbed.store import runs
from quicbed.store.record import Run

_STATEMENT = 100
Line = tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """Which lines are wanted."""

    raw: Path
    """Directory of runs."""
    experiment: str | None = None
    status: str | None = None


def _libraries(project: Project, _: Wanted) -> Iterator[Line]:
    yield "library", "version", "transport", "TLS library", "builds"
    for name, library in project.libraries.items():
        yield (
            name,
            making.version_of(project, name),
            library.transport,
            library.tls_library,
            ", ".join(library.flavours),
        )


def _variants(project: Project, wanted: Wanted) -> Iterator[Line]:
    yield "experiment", "variant", "differs from the default in"
    for name, experiment in project.experiments.items():
        if wanted.experiment in (None, name):
            for variant in experiment.variants:
                yield name, variant.label, _told(variant)


def _told(variant: Variant) -> str:
    """What a variant sets."""
    values = variant.model_dump(exclude_defaults=True, exclude_none=True, exclude={"label", "arm", "baseline"})
    return ", ".join(f"{key} {shown(value, 60)}" for key, value in values.items())


def _experiments(project: Project, _: Wanted) -> Iterator[Line]:
    yield "experiment", "measured by `make all`", "what it reproduces", "title"
    for name, experiment in project.experiments.items():
        chosen = "yes" if name in project.config.experiments else "no"
        yield name, chosen, experiment.source, experiment.title


def _claims(project: Project, wanted: Wanted) -> Iterator[Line]:
    yield "claim", "source", "statement"
    for one in papers.stated(project):
        if wanted.experiment in (None, one.claim.reads.experiment):
            yield one.id, one.claim.source, shown(one.claim.statement, _STATEMENT)


def _runs(_: Project, wanted: Wanted) -> Iterator[Line]:
    yield "run", "status", "contaminated", "what", "result"
    for origin, run in runs.scan(wanted.raw):
        if not isinstance(run, Run):
            if wanted.experiment is None and wanted.status in (None, "unreadable"):
                yield origin, "unreadable", "", "", shown(run, _STATEMENT)
        elif wanted.experiment in (None, run.experiment) and wanted.status in (None, run.status):
            libraries = " and ".join(dict.fromkeys((run.client.library, run.server.library)))
            contaminated = "yes" if run.contaminated else "no"
            yield origin, run.status, contaminated, f"{libraries}, {run.cell.label}", _result(run)


def _result(run: Run) -> str:
    if run.status != "ok":
        return shown(run.reason or "", _STATEMENT)
    if run.together is not None:
        return f"{stored_pairs.per_byte(run) * 2**30:.2f} s of processors per GiB, in a pair"
    if run.metrics.goodput_mbps is not None:
        return f"{run.metrics.goodput_mbps:.0f} Mbit/s"
    return "" if run.metrics.ttfb_ms is None else f"TTFB {run.metrics.ttfb_ms:.2f} ms"


KINDS: Mapping[str, Callable[[Project, Wanted], Iterator[Line]]] = {
    "libraries": _libraries,
    "variants": _variants,
    "experiments": _experiments,
    "claims": _claims,
    "runs": _runs,
}


def table(project: Project, kind: str, wanted: Wanted) -> tuple[Line, list[Line]]:
    """Heads and lines of one of `KINDS`. ConfigError where the experiment is unknown."""
    if wanted.experiment not in (None, "proofs", *project.experiments):
        raise ConfigError(f"experiment `{wanted.experiment}` is unknown; known are {', '.join(project.experiments)}")
    heads, *lines = KINDS[kind](project, wanted)
    return heads, lines
