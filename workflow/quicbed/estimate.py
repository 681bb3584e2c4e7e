"""What a run of the workflow will do, and estimates of its time, disk and traffic, before it starts."""

from __future__ import annotations

from quicbed import build as builds
from quicbed.config import Project
from quicbed.plan import builds_needed, cells_of

# Rough figures behind the estimates: one download on two cores, and what a run costs beyond its transfer.
GOODPUT_BITS = 5e9
RUN_SECONDS = 0.1
PROOF_SECONDS = 1.0
RUN_BYTES = 30_000
SOURCES_MB = 450
ANALYSIS_MINUTES = 1.0


def _duration(minutes: float) -> str:
    if minutes < 1:
        return f"{minutes * 60:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def describe(project: Project) -> str:
    """A few lines for the person who starts the workflow."""
    config = project.config
    lines = [f"quicbed: testbed {config.testbed}, scale {config.scale}"]
    total_minutes = ANALYSIS_MINUTES
    total_mb = 0.0
    if not (builds.vendor_directory(project).parent / "sources.json").exists():
        lines.append(f"  sources: fetched from package registries, about {SOURCES_MB} MB")
        total_mb += SOURCES_MB
        total_minutes += 1
    missing = [
        key
        for key in builds_needed(project, config.experiments)
        if not (builds.build_directory(project, *key) / "build.json").exists()
    ]
    for name, flavour in missing:
        estimate = project.libraries[name].flavours[flavour].estimate
        lines.append(
            f"  build {name}, flavour {flavour}: about {_duration(estimate.minutes)} on two cores, "
            f"{estimate.disk_mb:.0f} MB"
        )
        total_minutes += estimate.minutes
        total_mb += estimate.disk_mb
    for name in config.experiments:
        scale = project.scale(name)
        cells = [cell for cell in cells_of(project, name, "", {}) if cell.unsupported is None]
        proofs = len({(cell.client, tuple(sorted(cell.variant.items()))) for cell in cells})
        least = scale.min_blocks or scale.blocks
        per_block = len(cells) * (scale.bytes * 8 / GOODPUT_BITS + RUN_SECONDS)
        minutes = [(per_block * blocks + proofs * PROOF_SECONDS) / 60 for blocks in (least, scale.blocks)]
        runs = len(cells) * scale.blocks
        if scale.max_minutes is not None:
            minutes[1] = max(minutes[0], min(minutes[1], scale.max_minutes))
        blocks = f"{scale.blocks}" if least == scale.blocks else f"{least} to {scale.blocks}"
        span = _duration(minutes[0]) if least == scale.blocks else f"{_duration(minutes[0])} to {_duration(minutes[1])}"
        lines.append(
            f"  measure {name}: {len(cells)} cells, {blocks} blocks of "
            f"{scale.bytes / 2**20:.0f} MiB downloads, about {span} unless finished already; at most "
            f"{runs * scale.bytes / 2**30:.0f} GiB of traffic inside the testbed, "
            f"{runs * RUN_BYTES / 1e6:.0f} MB of raw data"
        )
        total_minutes += minutes[1]
        total_mb += runs * RUN_BYTES / 1e6
    lines.append(f"  all: at most about {_duration(total_minutes)} and {total_mb / 1000:.1f} GB of disk")
    return "\n".join(lines)
