"""How a sender paces: gaps, packet trains and precision, out of tables of captures (`quicbed.wire.packets`).

The definitions are those of "QUIC Steps" (CoNEXT 2025), shared with the importer of its data (`quicbed.wire.trains`).
Packets dropped at the bottleneck and goodput are not in a capture: they are counted by the bottleneck's queue and by
the client, and columns of the table of runs. Times are in ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from quicbed.wire.packets import Packets
from quicbed.wire.trains import with_trains

SHORT = 5
"""Packets of a train that the paper calls short."""

TO_CLIENT = "to_client"
_MOST_NAMED = 10
_COMPARED = ("direction", "payload_bytes", "packet_type", "packet_number")


class PacingError(Exception):
    """A capture whose times do not count: one line naming the file and the remedy."""


def server_packets(table: Path, connection: int | None = None, interface: int | None = None) -> pl.DataFrame:
    """The packets of the server of a connection in a table of packets, with ``gap_ns`` and ``train_packets``.

    Without *connection* or *interface* it is the only one; a `PacingError` where there are several, or none, or no
    packet of it was sent to the client, or where the times of these packets run backwards.
    """
    packets = pl.scan_parquet(table, glob=False).filter(pl.col("direction") == TO_CLIENT)
    if connection is not None:
        packets = packets.filter(pl.col("connection") == connection)
    if interface is not None:
        packets = packets.filter(pl.col("interface") == interface)
    found = packets.select("connection", "interface", "time_ns", "frame_bytes", "packet_number").collect()
    several = found["connection"].n_unique()
    if several > 1:
        raise PacingError(f"{table}: has packets of {several} connections; choose one")
    interfaces = found["interface"].unique().sort().to_list()
    if len(interfaces) > 1:
        named = ", ".join(map(str, interfaces[:_MOST_NAMED])) + (" and more" if len(interfaces) > _MOST_NAMED else "")
        raise PacingError(
            f"{table}: has packets of the server from interfaces {named}, where each may be captured again; choose one"
        )
    if found.is_empty():
        raise PacingError(f"{table}: has no packet to a client; name the server's address when the capture is read")
    if not found["time_ns"].is_sorted():
        raise PacingError(
            f"{table}: packets of the server are stamped before the one before: a clock was set; capture again"
        )
    return with_trains(found.lazy().drop("connection", "interface")).collect()


def counted(capture: Path, read: Packets) -> None:
    """Raise a `PacingError` with what is wrong with a capture if its times do not count; see `Packets.problems`.

    Where two processors stamp the two directions, a frame of one can be stamped before the one before, of the other.
    That changes no gap; `server_packets` finds what does.
    """
    if problems := read.model_copy(update={"backward_frames": 0}).problems(capture):
        raise PacingError(problems[0])


def gap_distribution(packets: pl.DataFrame) -> pl.DataFrame:
    """The CDF of gaps: ``gap_ns``, rising, and ``share`` of gaps that are at most as long. Empty without a gap."""
    return _distribution(packets, "gap_ns")


def train_distribution(packets: pl.DataFrame) -> pl.DataFrame:
    """The CDF over packets of the length of their train: ``train_packets``, rising, and ``share`` of packets."""
    return _distribution(packets, "train_packets")


def _distribution(packets: pl.DataFrame, column: str) -> pl.DataFrame:
    counts = packets.drop_nulls(column).group_by(column).len().sort(column)
    return counts.select(column, share=pl.col("len").cum_sum() / pl.col("len").sum())


DISTRIBUTIONS: Mapping[str, pl.DataType] = {"quantity": pl.String(), "value": pl.Int64(), "count": pl.Int64()}
"""Columns of the table of `distributions`: rows of a ``quantity``, rising in ``value``, each how often it was found."""
GAPS, TRAINS = "gap_ns", "train_packets"
"""Quantities: gaps, counted each, and lengths of trains, counted for every packet in them."""
_STEPS, _DECADES = 100, 16
_EDGES = np.unique(np.concatenate([[0], np.rint(10.0 ** (np.arange(_STEPS * _DECADES + 1) / _STEPS))]).astype(np.int64))
"""Gaps in ns at which their CDF is kept: 100 a decade, the end of a train (0.1 ms) among them."""


def distributions(packets: pl.DataFrame) -> pl.DataFrame:
    """How often there is which gap and which train, small enough to be kept for every run: the columns `DISTRIBUTIONS`.

    A gap counts at the next larger of the `_EDGES`, so that the CDF is exact at each of them. Trains are exact.
    """
    gaps = packets["gap_ns"].drop_nulls().to_numpy()
    at = _EDGES[np.minimum(np.searchsorted(_EDGES, gaps), len(_EDGES) - 1)]
    parts = [
        pl.Series("value", values, pl.Int64)
        .to_frame()
        .group_by("value")
        .len("count")
        .select(pl.lit(quantity).alias("quantity"), "value", pl.col("count").cast(pl.Int64))
        for quantity, values in ((GAPS, at), (TRAINS, packets["train_packets"].to_numpy()))
    ]
    return pl.concat(parts).sort("quantity", "value")


def metrics(packets: pl.DataFrame) -> dict[str, Any]:
    """What the gaps and trains of a run amount to, by key of run.json; what fewer than two packets do not tell is left
    out.
    """
    found: dict[str, Any] = {"traced_packets": packets.height}
    for name, quantile in (("gap_ms_p25", 0.25), ("gap_ms", 0.5), ("gap_ms_p75", 0.75)):
        if (gap := packets["gap_ns"].quantile(quantile, "linear")) is not None:
            found[name] = gap / 1e6
    return found | {"packets_in_trains_to_5": packets.select(in_short_trains()).item()}


def in_short_trains(train_packets: str = "train_packets") -> pl.Expr:
    """The share of packets in trains of at most `SHORT`; null without packets."""
    return (pl.col(train_packets) <= SHORT).mean()


def deviations(packets: pl.DataFrame, intended: pl.DataFrame, key: str = "packet_number") -> pl.DataFrame:
    """How far gaps are from the intended ones: the *key*, ``gap_ns``, ``intended_gap_ns``, ``deviation_ns``.

    *intended* has ``intended_ns``, when the library meant the packet to be sent, on any clock, and the *key* by which
    both sides know a packet: its number, or a fingerprint. A row for every two packets in succession of which it tells
    both; a key that is there twice on either side is left out, since QUIC uses no number twice (RFC 9000, 12.3). The
    pacing precision is the standard deviation of ``deviation_ns``.
    """
    once = pl.len().over(key) == 1
    told = intended.filter(once).select(key, "intended_ns")
    numbered = packets.with_columns(_once=pl.col(key).is_not_null() & once)
    return (
        numbered.join(told, on=key, how="left", maintain_order="left")
        .with_columns(pl.when("_once").then("intended_ns"))
        .with_columns(intended_gap_ns=pl.col("intended_ns").diff())
        .drop_nulls(["gap_ns", "intended_gap_ns"])
        .select(key, "gap_ns", "intended_gap_ns", deviation_ns=pl.col("gap_ns") - pl.col("intended_gap_ns"))
    )


def precision_ns(packets: pl.DataFrame, intended: pl.DataFrame, key: str = "packet_number") -> float | None:
    """The pacing precision: standard deviation of `deviations` in ns; None with fewer than two of them."""
    value = deviations(packets, intended, key)["deviation_ns"].std()
    return None if value is None else float(value)  # type: ignore[arg-type]


def disagreement(one: Path, other: Path) -> str | None:
    """Where the tables of two captures of the same packets at one place differ, in a line; None if they agree.

    Direction, length and number of packets are compared in their order, and not times, which are of two clocks.
    """
    needed = ("frame", *_COMPARED)
    tables = [pl.scan_parquet(path, glob=False).select(needed).drop_nulls("payload_bytes") for path in (one, other)]
    left, right = (table.collect() for table in tables)
    rows = min(left.height, right.height)
    unequal = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_other")) for name in _COMPARED)
    beside = left.head(rows).hstack(right.head(rows).rename(lambda name: f"{name}_other"))
    differing = beside.filter(unequal)
    remedy = "one of them lost packets: capture again"
    if not differing.is_empty():
        row = differing.row(0, named=True)
        return f"{one} and {other}: differ from frames {row['frame']} and {row['frame_other']} on; {remedy}"
    if left.height != right.height:
        return f"{one} and {other}: have {left.height} and {right.height} packets; {remedy}"
    return None
