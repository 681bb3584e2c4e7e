"""The tables that imports write, beside those of our own runs.

``runs.parquet`` has every column of the table of our own runs (`quicbed.store.runs.SCHEMA`), so that the two can be put
together with ``polars.concat(..., how="diagonal")``, and the columns `PUBLISHED` after them. One row is one repetition,
whatever became of it. What a data set does not tell is null, never a default of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from quicbed.importers.summary import Summary
from quicbed.store import runs
from quicbed.wire import layers

PUBLISHED: dict[str, pl.DataType] = {
    "repetition": pl.Int64(),  # as numbered in the copy, from 1; `block` counts the same from 0
    "client_implementation": pl.String(),  # the name in the data set, of library and build
    "server_implementation": pl.String(),
    "client_host": pl.String(),
    "server_host": pl.String(),
    "congestion_control": pl.String(),  # of the server, which sends; null where nothing told the server
    "gso": pl.String(),  # as the server was told
    "qdisc": pl.String(),  # of the server
    "client_scripts": pl.String(),  # what the runner ran on the hosts before and after, in its order
    "server_scripts": pl.String(),
    "client_send_buffer": pl.Int64(),  # bytes, the socket default of the host
    "server_send_buffer": pl.Int64(),
    "parameters": pl.String(),  # JSON of what the hosts were told and something is known to read
    "unread_parameters": pl.String(),  # JSON of what the hosts were told and nothing is known to read
    "goodput_basis": pl.String(),  # where the duration is from: time.json, or the runner's log
    "repetitions": pl.Int64(),  # more than one where a value is the mean of several
    "goodput_sd_mbps": pl.Float64(),
    "bottleneck_dropped": pl.Int64(),  # packets that the bottleneck's queue dropped
    "bottleneck_queue": pl.Int64(),  # its limit in packets
    "rtt_threshold_ms": pl.Float64(),  # the mean above which the repetition was to wait
}
"""Columns of ``runs.parquet`` that only published runs have."""

RUNS: dict[str, pl.DataType] = runs.SCHEMA | PUBLISHED

COUNTERS: dict[str, pl.DataType] = {
    "source": pl.String(),
    "origin": pl.String(),
    "role": pl.String(),  # client or server
    "tool": pl.String(),  # ethtool or netstat
    "counter": pl.String(),  # per-queue counters are summed, their queue number is *
    "delta": pl.Int64(),  # after the repetition less before it
}
"""``counters.parquet``: what counted on both hosts. A counter that a NIC does not have is not there."""

CPU_SHARES: dict[str, pl.DataType] = {
    "source": pl.String(),
    "origin": pl.String(),
    "role": pl.String(),
    "implementation": pl.String(),
    "category": pl.String(),  # of the data set's own mapping, as PACKET_IO
    "samples": pl.Int64(),  # each weighted by its period: cycles
    "endpoint_samples": pl.Int64(),  # of the endpoint, with or without a category
    "all_samples": pl.Int64(),  # of the whole host between the endpoint's first and last sample
}
"""``cpu_shares.parquet``: perf samples of an endpoint by category; those that no expression matches are in none."""

PROCESSED: dict[str, pl.DataType] = {
    "source": pl.String(),
    "file": pl.String(),
    "origin": pl.String(),  # the repetition, as in ``runs.parquet``
    "quantity": pl.String(),  # column of ``runs.parquet``; <role>_<category>_percent for perf samples
    "processed": pl.Float64(),
    "raw": pl.Float64(),
    "problem": pl.String(),  # in which way the file disagrees with the raw files; null where it agrees
}
"""``processed.parquet``: what the authors' parser made of a repetition, and what its raw files say."""

PHASES: dict[str, pl.DataType] = {
    "source": pl.String(),
    "origin": pl.String(),
    "experiment": pl.String(),
    "transport": pl.String(),
    "repetition": pl.Int64(),
    "basis": pl.String(),  # events or capture
    "handshake_ms": pl.Float64(),
    "first_byte_ms": pl.Float64(),  # from the start of the handshake
    "transfer_ms": pl.Float64(),
    "close_ms": pl.Float64(),
    "client_packets": pl.Int64(),
    "server_packets": pl.Int64(),
    "client_bytes": pl.Int64(),  # of whole frames
    "server_bytes": pl.Int64(),
    "problem": pl.String(),  # why a time is null
}
"""``phases.parquet``: times of a connection from the events of its endpoints and from its capture."""

EVENTS: dict[str, pl.DataType] = {
    "source": pl.String(),
    "origin": pl.String(),
    "role": pl.String(),
    "event": pl.String(),
    "time": pl.Datetime("ms", "UTC"),  # the clock of the role's host; never compared across roles
}
"""``events.parquet``: what the endpoints logged."""

PACKETS: dict[str, pl.DataType] = {
    "source": pl.String(),
    "origin": pl.String(),
    "experiment": pl.String(),
    "transport": pl.String(),
    "repetition": pl.Int64(),
    **layers.ROW,
}
"""``packets.parquet``: the packets of captured connections, with their bytes by layer (`quicbed.wire.layers`)."""

RESULTS: dict[str, pl.DataType] = {
    "source": pl.String(),
    "origin": pl.String(),
    "kind": pl.String(),  # test or measurement
    "client": pl.String(),
    "server": pl.String(),
    "test": pl.String(),
    "abbreviation": pl.String(),
    "result": pl.String(),  # succeeded, failed, unsupported; null: not run
    "details": pl.String(),
}
"""``results.parquet``: the interop matrix and the measurements of a result.json, a row a cell and test."""

GAPS: dict[str, pl.DataType] = {
    "repetition": pl.Int32(),
    "gap_ns": pl.Int64(),  # since the packet before it; null for the first of a repetition
    "frame_bytes": pl.Int32(),
    "packet_number": pl.Int64(),  # null where the capture does not tell
    "train_packets": pl.Int32(),  # length of the packet's train
}
"""``gaps/<config>.parquet``: the packets of one configuration's server, in their order within each repetition, after
the columns ``source`` and ``config``."""


def frame(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, pl.DataType], sort: Sequence[str]) -> pl.DataFrame:
    """Rows as a table of this schema, what is missing null, sorted."""
    complete = [{name: row.get(name) for name in schema} for row in rows]
    return pl.DataFrame(complete, schema=schema, orient="row").sort(sort, nulls_last=True)


def run(source: str, origin: str, status: str, **values: Any) -> dict[str, Any]:
    """A row of ``runs.parquet``; a column that does not exist is a programming error."""
    unknown = values.keys() - RUNS.keys()
    if unknown:
        raise KeyError(f"runs.parquet has no column {', '.join(sorted(unknown))}")
    return {
        "source": source,
        "origin": origin,
        "status": status,
        "testbed_kind": "published",
        "arm": "main",
        "contaminated": False,
    } | values


def write_runs(rows: Iterable[Mapping[str, Any]], out: Path, summary: Summary) -> None:
    """Write ``runs.parquet`` and count statuses."""
    table = frame(rows, RUNS, runs.SORT)
    summary.statuses.update(table["status"].to_list())
    write(table, out, "runs", summary)


def write(table: pl.DataFrame, out: Path, name: str, summary: Summary) -> None:
    """Write ``<name>.parquet`` and count its rows."""
    runs.write_parquet(table, out / f"{name}.parquet")
    summary.tables[name] = table.height


class Results:
    """Published results, of which a notebook shows how many there are, or why there are none."""

    runs: pl.DataFrame
    missing: str | None

    @property
    def empty(self) -> bool:
        """Whether there are no published results here."""
        return self.runs.is_empty()

    def count(self) -> str:
        """How many there are."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        if self.missing:
            return f"<p><strong>No published results here:</strong> {self.missing}</p>"
        return f"<p>Published results: {self.count()}.</p>"
