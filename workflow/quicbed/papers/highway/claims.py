"""The published raw data of "QUIC on the Highway" as tables that its claims can be judged by
(`quicbed.claims.verdicts`).

Each of our experiments that repeats one of the paper gets the runs behind the figure (`analysis`). The repetitions were
not measured in blocks: those of a cell are numbered, and what has the same number is taken as a block, which for
independent values is as good as any other pairing. Runs that were not measured as their figure says are left out.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from quicbed.analysis import cpu_shares
from quicbed.claims import verdicts
from quicbed.papers.highway import analysis
from quicbed.papers.highway.analysis import Published
from quicbed.store import runs

PAPER, SOURCE = "quic-on-the-highway", analysis.SOURCE
NATIVE = "hardware-native"
"""The experiment that the claim on all hosts of Fig. 9 awaits."""
_AES = "AES-128-GCM"

_SHARES = {
    "PACKET_IO": "packet-io",
    "IO": "application",
    "CRYPTO": "packet-protection",
    "CONN_MGMT": "connection-management",
    "GENERAL": "uncategorised",
}


def campaigns(directory: Path | None) -> verdicts.Tables | None:
    """The published runs in *directory* as if they were a campaign of each of our experiments; None without runs."""
    found = analysis.published(directory)
    return None if found.empty else as_campaigns(found)


def as_campaigns(found: Published) -> verdicts.Tables:
    """The published runs as if they were a campaign of each of our experiments."""
    table = _runs(found)
    return verdicts.Tables(table, shares=_shares(found, table), published=True)


def _runs(found: Published) -> pl.DataFrame:
    parts = []
    for directory, label, size in (
        (analysis.FIG3, "208 KiB", analysis.DEFAULT_BUFFER),
        (analysis.FIG10, "6.5 MiB", analysis.LARGE_BUFFER),
    ):
        pairs = analysis.in_directory(found.runs, directory).filter(
            (pl.col("client_receive_buffer") == size) & (pl.col("testbed") == analysis.HOSTS)
        )
        parts.append(_as(pairs, "pairwise", label))
        # which is the goodput that the paper compares TCP+TLS with
        if directory == analysis.FIG3:
            parts.append(_as(pairs.filter(pl.col("client_library") == pl.col("server_library")), "aead-goodput", _AES))
    for figure in (analysis.FIG5, analysis.FIG7, analysis.FIG8):
        parts.append(_settings(figure, found).with_columns(experiment=pl.lit(figure.experiment)))
    # labels of settings are pairs of hosts and builds, which no experiment of ours has
    machines = _settings(analysis.FIG9, found)
    parts.append(machines.with_columns(experiment=pl.lit(NATIVE)))
    # our experiment is one of a single pair of hosts
    native = pl.col("label").str.ends_with(analysis.NATIVE)
    parts.append(
        machines.filter(pl.col("testbed") == analysis.HOSTS).with_columns(
            experiment=pl.lit(analysis.FIG9.experiment),
            label=pl.when(native).then(pl.lit("march=native")).otherwise(pl.lit("default")),
        )
    )
    # TCP+TLS, which takes no UDP buffer, was not measured with them
    instructions = analysis.labelled(analysis.FIG7, found.runs).drop("value", "deviation")
    with_aes = (pl.col("label") == "AES with AES-NI") & (pl.col("client_library") == "tcp-tls")
    # whatever cipher it was to have, which Fig. 3 does not ask for: by default it has AES
    parts.append(_as(instructions.filter(with_aes & pl.col("aes_hardware")), "aead-goodput", _AES))
    parts.append(_as(analysis.in_directory(found.runs, analysis.FIG4), "cpu-shares", _AES))
    cpu = {
        f"{role}_cpu_s_per_gib": pl.col(f"{role}_cpu_percent")
        / 100
        * pl.col("wall_s")
        * runs.BYTES_PER_GIB
        / pl.col("bytes")
        for role in ("client", "server")
    }
    return (
        pl.concat(parts, how="diagonal")
        .sort("experiment", "label", "client_library", "server_library", pl.col("status") != "ok", "origin")
        .pipe(verdicts.as_campaign)
        .with_columns(
            block=pl.int_range(pl.len(), dtype=pl.Int64).over("cell"),
            client_ack_packets=pl.col("client_udp_packets_sent"),
            **cpu,
        )
    )


def _settings(figure: analysis.Figure, found: Published) -> pl.DataFrame:
    """Runs of a figure of single libraries that were measured as it says."""
    used = analysis.settings(figure, found.runs)
    return used.filter(pl.col("deviation").is_null()).drop("value", "deviation")


def _as(frame: pl.DataFrame, experiment: str, label: str) -> pl.DataFrame:
    return frame.with_columns(experiment=pl.lit(experiment), label=pl.lit(label))


def _shares(found: Published, table: pl.DataFrame) -> pl.DataFrame:
    """Shares of the samples of the endpoint; its one category of cryptography has header protection too."""
    own = table.filter((pl.col("experiment") == "cpu-shares") & (pl.col("status") == "ok"))
    shares = (
        found.shares.join(own.select("origin", "cell", "block"), on="origin")
        .filter(pl.col("category").is_in(list(_SHARES)))
        .with_columns(
            category=pl.col("category").replace_strict(_SHARES, return_dtype=pl.String),
            share=pl.col("samples") / pl.col("endpoint_samples"),
        )
    )
    columns = list(cpu_shares.BLOCKS)
    within = shares.filter(pl.col("category") == "packet-protection").with_columns(
        category=pl.lit("header-protection"), share=pl.lit(0.0)
    )
    return pl.concat([shares, within]).select(columns).sort(columns)
