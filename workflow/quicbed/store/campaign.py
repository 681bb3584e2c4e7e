"""The models of what a campaign leaves beside its runs: each file is written and read by one of them only.

A campaign has ``campaign.json`` and, for every session that measured, one file in ``sessions/``; each of its blocks has
``block.json``. What configuration held is kept as it was then: its keys are those of the version that measured.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from quicbed.base.models import Integer, Number, Record
from quicbed.plan.host import Host, host_of
from quicbed.store.record import CellName, Machine, Moment

CAMPAIGN_FILE = "campaign.json"
BLOCK_FILE = "block.json"


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
    trace: bool | None = None
    """Whether its runs keep the headers of their packets."""
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
