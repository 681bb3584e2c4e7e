"""What a run of the workflow will do, before it starts."""

from __future__ import annotations

from quicbed.builds import kit, making
from quicbed.config.model import Project
from quicbed.plan.cells import builds_needed
from quicbed.plan.estimate import ANALYSIS_MINUTES, SOURCES_MB, SOURCES_MINUTES, build_estimate, duration, of_measuring


def describe(project: Project) -> str:
    """A few lines for the person who starts the workflow."""
    config = project.config
    lines = [f"quicbed: testbed {config.testbed}, scale {config.scale}"]
    total_minutes = ANALYSIS_MINUTES
    total_mb = 0.0
    if not (kit.vendor_directory(project).parent / "sources.json").exists():
        lines.append(f"  sources: fetched from package registries, about {SOURCES_MB} MB")
        total_mb += SOURCES_MB
        total_minutes += SOURCES_MINUTES
    missing = [
        key
        for key in builds_needed(project, config.experiments)
        if not (making.build_directory(project, *key) / "build.json").exists()
    ]
    for name, flavour in missing:
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
