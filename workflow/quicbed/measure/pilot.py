"""How many bytes the downloads of an experiment have, where its scale says how long they last at least.

Before anything is measured, every cell downloads the `bytes` of the scale once. All cells of a pair of libraries then
download what the fastest of them needs `least_s` for, so that runs that are compared differ in nothing but the variant.
What was found is kept beside the runs, and is not found anew while the campaign goes on.

Where connections are to begin at a load (`quicbed.config.model.Variant.load`), the pilot makes the connections of a run
one after the other, and what one of them takes of the server's processor says which rate that load is.

An external client that does not report times is started within what is measured. What that costs is measured by
downloads of one byte, and its downloads are so large that this is less than `START_SHARE` of them, as far as the limit
of time and the room for files allow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from quicbed.base.models import Part, Record, RecordError
from quicbed.config.model import Scale
from quicbed.measure.attempt import MeasureError
from quicbed.plan.cells import Cell
from quicbed.plan.sizing import needed_bytes, without_start

PILOT_FILE = "pilot.json"
STARTS = 3
"""Downloads of one byte, of which the median counts."""
START_PILOT_BYTES = 64 * 2**20
"""Downloads of the pilot have so many at least, of which a start is a small part."""


class PilotPair(Part):
    """What the pilot found of a client's and a server's library."""

    client: str
    server: str
    goodput_mbps: dict[str, float] = Field(min_length=1)
    """By label, of every cell whose download succeeded."""
    bytes: int = Field(gt=0)
    """Of the downloads that are measured."""
    start_s: float | None = Field(None, ge=0)
    """What a download of one byte takes, of an external client whose start is within what is measured."""


class PilotCost(Part):
    """What a connection of a variant takes of the server."""

    client: str
    server: str
    variant: str
    """As JSON, without its load."""
    server_cpu_s: float = Field(gt=0)


class Pilot(Record):
    """pilot.json of a campaign."""

    FORMAT: ClassVar[int] = 1

    format: Literal[1]
    least_s: float | None = Field(None, gt=0)
    """How long downloads last at least; null where only starts are to take little of them."""
    pairs: list[PilotPair] = Field([])
    costs: list[PilotCost] = Field([])

    @property
    def sizes(self) -> dict[tuple[str, str], int]:
        """Bytes of a download by client and server."""
        return {(pair.client, pair.server): pair.bytes for pair in self.pairs}

    @property
    def starts(self) -> dict[tuple[str, str], float]:
        """Seconds that the start of the client's program takes of a download, by client and server."""
        return {(pair.client, pair.server): pair.start_s for pair in self.pairs if pair.start_s is not None}

    def server_cpu_s(self, cell: Cell) -> float | None:
        """Seconds of the server's processor that a connection of a cell takes; None where that was not found."""
        wanted = (*cell.libraries, without_load(cell))
        found = (one.server_cpu_s for one in self.costs if (one.client, one.server, one.variant) == wanted)
        return next(found, None)

    def with_cost(self, cell: Cell, server_cpu_s: float) -> Pilot:
        """This and what a connection of a cell takes."""
        client, server = cell.libraries
        cost = PilotCost(client=client, server=server, variant=without_load(cell), server_cpu_s=server_cpu_s)
        return self.model_copy(update={"costs": [*self.costs, cost]})

    def with_pair(
        self,
        libraries: tuple[str, str],
        goodput_mbps: Mapping[str, float],
        scale: Scale,
        tried: int,
        start_s: float | None = None,
    ) -> Pilot:
        """This and what was found of one more pair, of a scale, with downloads of *tried* bytes."""
        found = dict(goodput_mbps)
        size = scale.bytes if self.least_s is None else needed_bytes(max(found.values()), self.least_s)
        if start_s is not None:
            took = [8 * tried / rate / 1e6 for rate in found.values()]
            size = max(size, _without_start(took, tried, scale.timeout_s, start_s))
        values = {"client": libraries[0], "server": libraries[1], "goodput_mbps": found, "bytes": size}
        pair = PilotPair(**values, start_s=start_s)
        return self.model_copy(update={"pairs": [*self.pairs, pair]})


def without_load(cell: Cell) -> str:
    """The variant of a cell without its load and what is done at it, as JSON."""
    return json.dumps(cell.variant.without("load", "held", "processors").as_dict(), sort_keys=True)


def _without_start(took: Sequence[float], tried: int, timeout_s: float, start_s: float) -> int:
    """Size in bytes of a download of which a start takes `START_SHARE`, as far as there is time and room for it.

    Downloads of *tried* bytes *took* so many seconds, with the start in them.
    """
    transfers = [max(time - start_s, time / 10) for time in (min(took), max(took))]
    fastest, slowest = (8 * tried / time / 1e6 for time in transfers)
    return without_start(fastest, slowest, timeout_s, start_s)


def read_pilot(directory: Path, least_s: float | None) -> Pilot:
    """What was found for the campaign of a directory so far; MeasureError where the file is damaged."""
    file = directory / PILOT_FILE
    if not file.exists():
        return Pilot.made({"least_s": least_s})
    try:
        found = Pilot.read(file)
    except RecordError as error:
        raise MeasureError(f"{file}: is damaged ({error}); move {directory} out of the way") from None
    if found.least_s != least_s:
        raise MeasureError(
            f"{file}: is for downloads of {found.least_s} s, not {least_s} s; move {directory} out of the way"
        )
    return found


def write_pilot(directory: Path, pilot: Pilot) -> None:
    """Keep what was found, whole or not at all."""
    pilot.write(directory / PILOT_FILE)
