"""How large downloads are that are to last so long, and of which the start of a program is to be a small part.

A pilot has measured what goodput and start are (`quicbed.measure.pilot`); before it, a plan takes rough figures.
"""

from __future__ import annotations

import math

from quicbed.config.model import Experiment
from quicbed.plan.arms import PRIMITIVES
from quicbed.plan.cells import Cell

STEP_BYTES = 2**20
ROOM = 1.1
"""So much more is downloaded, because a run may be faster than the pilot."""
START_SHARE = 0.01
"""Of a download, that the start of an external client's program may take."""
START_ROOM = 1.25
"""So much larger is such a download, because a start may take longer than those of the pilot."""
MOST_BYTES = 2**32
"""Largest download that is chosen because of a start: both hosts keep it in a file."""
TIME_SHARE = 0.2
"""Of the limit of time of a run, that such a download may take."""


def with_start(experiment: Experiment, cell: Cell) -> bool:
    """Whether the goodput of a cell has the start of its client's program in it."""
    bulk = experiment.workload.kind == "bulk" and cell.arm != PRIMITIVES
    return bulk and cell.client.external and not cell.client.times and cell.unsupported is None


def needed_bytes(goodput_mbps: float, least_s: float) -> int:
    """Size in bytes of a download that lasts *least_s* at this goodput, with `ROOM`, in whole MiB."""
    return math.ceil(goodput_mbps * 1e6 / 8 * least_s * ROOM / STEP_BYTES) * STEP_BYTES


def without_start(fastest_mbps: float, slowest_mbps: float, timeout_s: float, start_s: float) -> int:
    """Size in bytes of a download of which a start takes `START_SHARE`, as far as there is time and room for it.

    The pair's downloads are between these goodputs without the start.
    """
    possible = int(slowest_mbps * 1e6 / 8 * timeout_s * TIME_SHARE)
    return min(needed_bytes(fastest_mbps, START_ROOM * start_s / START_SHARE), possible, MOST_BYTES)
