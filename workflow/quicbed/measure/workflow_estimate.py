"""What a run of the workflow will do, before it starts."""

from __future__ import annotations

from collections.abc import Sequence

from quicbed.builds import making, sources
from quicbed.config.model import Project
from quicbed.plan.cells import builds_needed
from quicbed.plan.estimate import ANALYSIS_MINUTES, SOURCES_MB, SOURCES_MINUTES, build_estimate, duration, of_measuring


def describe(project: Project) -> str:
    """A few lines for the person who starts the workflow."""
    config = project.config
    rules = f"scale {config.scale}" if project.study is None else f"study {config.study}, {project.study.digest}"
    lines = [f"quicbed: testbed {config.testbed}, {rules}"]
    total_minutes = ANALYSIS_MINUTES
    total_mb = 0.0
    if not _fetched(project):
        lines.append(f"  sources: fetched from package registries, about {SOURCES_MB} MB")
        total_mb += SOURCES_MB
        total_minutes += SOURCES_MINUTES
    for name, flavour in missing_builds(project, config.experiments):
        estimate = build_estimate(project, name, flavour)
        lines.append(
            f"  build {name}, flavour {flavour}: about {duration(estimate.minutes)} on two cores, "
            f"{estimate.disk_mb:.0f} MB"
        )
        total_minutes += estimate.minutes
        total_mb += estimate.disk_mb
    for name in config.experiments:
        text, minutes, mb = of_measuring(project, name)
        lines.append(f"  measure {name}: {text}")
        total_minutes += minutes
        total_mb += mb
    lines.append(f"  all: at most about {duration(total_minutes)} and {total_mb / 1000:.1f} GB of disk")
    return "\n".join(lines)


def missing_builds(project: Project, experiments: Sequence[str]) -> list[tuple[str, str]]:
    """Library and name of every build that experiments need and that has to be made."""
    return [key for key in builds_needed(project, list(experiments)) if not making.is_made(project, *key)]


def disk_mb(project: Project, experiments: Sequence[str]) -> float:
    """Disk in MB that sources, builds and runs of experiments take besides what is there."""
    builds = sum(build_estimate(project, *key).disk_mb for key in missing_builds(project, experiments))
    runs = sum(of_measuring(project, name)[2] for name in experiments)
    return builds + runs + (0 if _fetched(project) else SOURCES_MB)


def _fetched(project: Project) -> bool:
    return sources.fetched(project)
