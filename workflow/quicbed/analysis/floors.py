"""What the floors of campaigns come to (`quicbed.store.details.FLOORS`): how far a value has to be from what it is held
against, to be more than the timers of the testbed.

Of the series of a campaign always the worst one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from quicbed.store import details
from quicbed.wire import pacing

SERIES = ("qdisc", "method", "schedule")
NOT_MEASURED = "the floor of the timers of this testbed was not measured"


@dataclass(frozen=True)
class Series:
    """What a bare sender's packets missed their times by, in one series."""

    qdisc: str | None
    method: str
    schedule: str
    intended_gap_ns: int
    packets: int
    sd_ns: float
    """Standard deviation of captured gap minus intended gap."""
    p99_ns: float
    """What 99 % of these deviations are within."""
    sender_sd_ns: float | None
    """Standard deviation of the same at the sender, when it handed over its packets; None where the kernel released
    them."""
    misplaced: float
    """Share of packets in trains of at most five that should not be, or the other way round."""


@dataclass(frozen=True)
class Floor:
    """The worst of the series of a campaign."""

    series: tuple[Series, ...]

    @property
    def gap_ns(self) -> float:
        """Standard deviation of captured gap minus intended gap of packets that are sent evenly."""
        return max((one.sd_ns for one in self.series if one.schedule == "even"), default=float("inf"))

    @property
    def p99_ns(self) -> float:
        """What 99 % of the deviations of such packets are within."""
        return max((one.p99_ns for one in self.series if one.schedule == "even"), default=float("inf"))

    @property
    def misplaced(self) -> float:
        """Share of packets that are captured in trains of another kind than they were sent in."""
        return max(one.misplaced for one in self.series)

    def of(self, metric: str) -> float | None:
        """The floor of a metric of runs, in its unit; None of one that is not about gaps or trains."""
        by_metric = {
            "gap_ms": self.gap_ns / 1e6,
            "packets_in_trains_to_5": self.misplaced,
            "pacing_precision_us": self.gap_ns / 1e3,
        }
        return by_metric.get(metric)


METRICS = frozenset({"gap_ms", "packets_in_trains_to_5", "pacing_precision_us"})
"""Metrics of runs that are about gaps and trains."""


def of_campaign(table: pl.DataFrame, campaign: str | None) -> Floor | None:
    """The floor of a campaign in the table of floors; None where it was not measured."""
    own = table.filter(pl.col("campaign") == campaign)
    found = [_series(key, part) for key, part in own.group_by(SERIES, maintain_order=True)]
    return Floor(tuple(sorted(found, key=lambda one: (one.qdisc or "", one.method, one.schedule)))) if found else None


def _series(key: tuple[Any, ...], part: pl.DataFrame) -> Series:
    kept = {name: rows for (name,), rows in part.group_by("quantity")}
    nothing = part.clear()
    deviations = _values(kept[details.DEVIATIONS])
    own = _values(kept.get(details.SENDER_DEVIATIONS, nothing))
    trains = kept[pacing.TRAINS]
    packets = int(trains["count"].sum())
    short = int(trains.filter(pl.col("value") <= pacing.SHORT)["count"].sum()) / packets
    first = part.row(0, named=True)
    intended = float(first["intended_train_packets"] <= pacing.SHORT)
    return Series(
        qdisc=key[0],
        method=key[1],
        schedule=key[2],
        intended_gap_ns=first["intended_gap_ns"],
        packets=packets,
        sd_ns=float(deviations.std(ddof=1)) if len(deviations) > 1 else 0.0,
        p99_ns=float(np.quantile(np.abs(deviations), 0.99)),
        sender_sd_ns=float(own.std(ddof=1)) if len(own) > 1 else None,
        misplaced=abs(short - intended),
    )


def _values(counts: pl.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.repeat(counts["value"].to_numpy().astype(np.float64), counts["count"].to_numpy())


def curves(table: pl.DataFrame, campaign: str | None) -> Mapping[str, pl.DataFrame]:
    """The CDFs of the evenly sent packets of a campaign by quantity: ``value``, rising, and ``share``.

    Those that a program slept for, without a queueing discipline of its own; empty where there are none.
    """
    own = table.filter(
        (pl.col("campaign") == campaign) & (pl.col("method") == "sleep") & (pl.col("schedule") == "even")
    )
    # where there are several links, the one without a queueing discipline
    own = own.filter(pl.col("qdisc").is_null()) if own["qdisc"].null_count() else own
    counts = own.group_by("quantity", "value").agg(pl.col("count").sum()).sort("quantity", "value")
    shared = counts.with_columns(
        share=pl.col("count").cum_sum().over("quantity") / pl.col("count").sum().over("quantity")
    )
    return {quantity: shared.filter(pl.col("quantity") == quantity) for quantity in (pacing.GAPS, pacing.TRAINS)}
