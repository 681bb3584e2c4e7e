"""The models of what a campaign leaves beside its runs: each file is written and read by one of them only.

A campaign has ``campaign.json`` and, for every session that measured, one file in ``sessions/``; each of its blocks has
``block.json``, and a campaign of traced runs has ``floor.json``. What configuration held is kept as it was then: its
keys are those of the version that measured.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from quicbed.base.models import Count, Integer, Number, Part, Record
from quicbed.plan.host import Host, host_of
from quicbed.store.record import CellName, Machine, Moment

CAMPAIGN_FILE = "campaign.json"
BLOCK_FILE = "block.json"
FLOOR_FILE = "floor.json"


class Campaign(Record):
    """campaign.json: what all runs of a campaign have in common. Runs of different campaigns are never compared."""

    FORMAT: ClassVar[int] = 2

    format: Literal[2]
    """Version of this model."""
    id: str
    """Digest of all keys below, and name of the campaign's directory."""
    experiment: str
    scale: str
    testbed: str
    machine: Machine
    bytes: Integer
    """Size of a download."""
    connections: list[Integer | None]
    """Number of connections in a run of handshakes, and in one with slow algorithms."""
    workload: dict[str, Any]
    """Workload of the experiment."""
    link: dict[str, Any]
    """Link of the experiment."""
    perf: dict[str, Any] | None = None
    """How the experiment samples processor time, if it does."""
    instructions: dict[str, Any] | None = None
    """How the experiment counts instructions, if it does."""
    trace: bool | None = None
    """Whether its runs keep the headers of their packets."""
    paired: Literal["concurrent"] | None = None
    """Whether its runs are measured in concurrent pairs."""
    study: str | None = None
    """Digest of everything that the study decides before measuring, if the campaign is part of a study."""
    least_s: Number | None = None
    """Minimum duration of a download of the study."""
    browser: str | None = None
    """Name and version of the browser that loads pages, if one does."""
    host_settings: str | None = None
    """Digest of the settings that the configuration applies to both hosts, if any."""


class Session(Record):
    """sessions/*.json: what a session set out to measure, even if nothing was left to do."""

    FORMAT: ClassVar[int] = 1
    UNNUMBERED: ClassVar[bool] = True

    format: Literal[1]
    """Version of this model."""
    started_at: Moment
    facts: dict[str, Any] = Field({})
    """Facts about the hosts, as the testbed reports them."""
    config: dict[str, Any] = Field({})
    """Content of config/config.yaml, with the overrides from the command line."""
    experiment: dict[str, Any] = Field({})
    """Content of the experiment's file below config/experiments/."""
    revision: str | None = None
    """Revision of this repository."""
    cells: list[CellName]
    """All planned cells, including unsupported ones."""

    @property
    def host(self) -> Host:
        """Who measured."""
        return host_of(self.facts)


class Block(Record):
    """block.json: a block, written before its first run."""

    FORMAT: ClassVar[int] = 1
    UNNUMBERED: ClassVar[bool] = True

    format: Literal[1]
    """Version of this model."""
    block: Integer
    """Number of the block, counted from 0."""
    cells: list[str]
    """Ids of the cells, in the order in which they are measured."""
    seed: Integer
    """Seed for this order."""
    created_at: Moment


class FloorSeries(Part):
    """Packets that a bare sender sent at known times, and how they were captured."""

    qdisc: str | None = None
    """Queueing discipline at the server; null for the system's own."""
    method: Literal["sleep", "txtime"]
    """Whether the sender slept until each time, or told the times to the kernel (SO_TXTIME)."""
    schedule: Literal["even", "trains"]
    train_packets: Integer = Field(ge=1)
    """Packets that were sent at the same time."""
    gap_ns: Integer = Field(ge=1)
    """Intended mean gap between packets: what a packet takes at the rate of the link."""
    deviation_ns: list[Integer]
    """Captured gap minus intended gap, between successive packets, in ascending order."""
    sender_deviation_ns: list[Integer]
    """The same of the times at which the sender handed packets to the kernel. Empty for `txtime`."""
    captured_gap_ns: list[Count]
    """Upper bounds of captured gaps, as in pacing.json."""
    gaps: list[Count]
    captured_train_packets: list[Count]
    """Lengths of captured trains in ascending order."""
    packets: list[Count]
    """Number of captured packets in trains of each length."""

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.captured_gap_ns) != len(self.gaps) or len(self.captured_train_packets) != len(self.packets):
            raise ValueError("values and their counts are not equally many")
        if not self.deviation_ns or not sum(self.packets):
            raise ValueError("a series without packets")
        return self


class Floor(Record):
    """floor.json: how precisely the hosts of a campaign send and stamp packets, measured before its first block."""

    FORMAT: ClassVar[int] = 1
    NAME: ClassVar[str] = FLOOR_FILE

    format: Literal[1]
    """Version of this model."""
    measured_at: Moment
    frame_bytes: Integer
    """Length of each packet on the link."""
    series: list[FloorSeries] = Field(min_length=1)
    missing: list[str] = Field([])
    """What could not be sent, and why."""
