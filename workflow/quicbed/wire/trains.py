"""Gaps between packets and packet trains, as "QUIC Steps" (CoNEXT 2025) defines them: for captures of our own and for
the published ones.

A gap is the time from a packet to the next one of the same sender. A packet train is a run of packets with gaps of at
most 0.1 ms between them; a packet alone is a train of one.
"""

from __future__ import annotations

import polars as pl

TRAIN_GAP_NS = 100_000
"""Largest gap within a packet train: 0.1 ms."""


def with_trains(packets: pl.LazyFrame) -> pl.LazyFrame:
    """Packets of one sender in the order of ``time_ns``, with ``gap_ns`` and ``train_packets``.

    ``gap_ns`` is the time since the packet before, null for the first; ``train_packets`` the length of the packet's
    train.
    """
    begins = pl.col("gap_ns").is_null() | (pl.col("gap_ns") > TRAIN_GAP_NS)
    return (
        packets.with_columns(gap_ns=pl.col("time_ns").diff())
        .with_columns(_train=begins.cum_sum())
        .with_columns(train_packets=pl.len().over("_train").cast(pl.Int32))
        .drop("_train")
    )
