"""The published raw data of "QUIC Steps" as tables that its claims can be judged by (`quicbed.claims.verdicts`).

Which configuration of the data set a figure or table is made of is told by its name. Repetitions were not measured in
blocks; those with the same number are taken as one, which for independent values is as good as any other pairing.
A repetition of which the copy has no logs counts with its gaps, as in the paper's own figures; what logs alone tell is
null then.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from quicbed.analysis import cpu_shares
from quicbed.claims import verdicts
from quicbed.importers import names, tables
from quicbed.importers.summary import SUMMARY_FILE
from quicbed.store import details, runs

PAPER = "quic-steps"
SOURCE = "steps"
SHORT = 5
"""Packets of a train that the paper calls short."""

_QUICHE = "quiche-gso-txtime-{}-gso_unpaced"
_GSO = "quiche-gso-txtime-cubic-fq-gso_{}-spurious_fixed"
CONFIGURATIONS: tuple[tuple[str, str, str], ...] = (
    # configuration, experiment of ours, label
    (_QUICHE.format("cubic"), "pacing-baseline", "baseline"),
    ("picoquic-cubic", "pacing-baseline", "baseline"),
    ("ngtcp2-cubic", "pacing-baseline", "baseline"),
    ("tcp+tls-cubic", "pacing-baseline", "baseline"),
    *(
        (_QUICHE.format(name), "pacing-congestion-control", label)
        for name, label in (("cubic", "CUBIC"), ("reno", "Reno"), ("bbr", "BBR"), ("bbr2", "BBR2"))
    ),
    *(
        (f"{library}-{name}", "pacing-congestion-control", label)
        for library in ("ngtcp2", "picoquic")
        for name, label in (("cubic", "CUBIC"), ("reno", "Reno"), ("bbr", "BBR"))
    ),
    (_GSO.format("unpaced"), "pacing-gso", "GSO"),
    (_GSO.format("disabled"), "pacing-gso", "no GSO"),
    (_GSO.format("paced"), "pacing-gso", "paced GSO"),
)


def steps_campaigns(directory: Path) -> verdicts.Tables | None:
    """What was imported into *directory* as if it were a campaign of each of our experiments; None if nothing was."""
    if not (directory / SUMMARY_FILE).is_file() or not (directory / "runs.parquet").is_file():
        return None
    trains = _trains(directory / "gaps")
    logged = pl.read_parquet(directory / "runs.parquet")
    found = pl.concat([logged, _without_logs(trains, logged)])
    parts = [
        found.filter(pl.col("experiment") == configuration).with_columns(
            experiment=pl.lit(experiment), label=pl.lit(label), _configuration=pl.lit(configuration)
        )
        for configuration, experiment, label in CONFIGURATIONS
    ]
    cell = ["experiment", "label", "client_library", "server_library"]
    table = (
        pl.concat(parts)
        .join(trains, on=["_configuration", "repetition"], how="left")
        .with_columns(
            campaign=pl.lit("published data"),
            testbed=pl.lit(verdicts.PUBLISHED),
            cell=pl.concat_str(cell, separator=" "),
            dropped_packets=pl.col("bottleneck_dropped"),
        )
    )
    nothing = pl.DataFrame(schema=details.HANDSHAKES), pl.DataFrame(), pl.DataFrame(schema=cpu_shares.BLOCKS)
    return verdicts.Tables(table, *nothing, published=True)


def _without_logs(trains: pl.DataFrame, logged: pl.DataFrame) -> pl.DataFrame:
    """Rows as those of *logged* for repetitions that only have gaps."""
    known = set(logged.select("experiment", "repetition").rows())
    rows = []
    for configuration, number in trains.select("_configuration", "repetition").rows():
        if (configuration, number) not in known:
            library, flavour = names.library(configuration)
            sides = {f"{role}_library": library for role in ("client", "server")}
            place = {"experiment": configuration, "scale": "published", "repetition": number, "block": number}
            rows.append(tables.run(SOURCE, configuration, "ok", library=library, flavour=flavour, **sides, **place))
    return tables.frame(rows, tables.RUNS, runs.SORT)


def _trains(directory: Path) -> pl.DataFrame:
    """Share of the packets of each repetition that are in trains of at most `SHORT`."""
    schema = {"_configuration": pl.String(), "repetition": pl.Int64(), "packets_in_trains_to_5": pl.Float64()}
    parts = [pl.DataFrame(schema=schema)]
    for configuration in sorted({name for name, _, _ in CONFIGURATIONS}):
        file = directory / f"{configuration}.parquet"
        if file.is_file():
            gaps = pl.read_parquet(file, columns=["repetition", "train_packets"])
            shares = gaps.group_by(pl.col("repetition").cast(pl.Int64)).agg(
                packets_in_trains_to_5=(pl.col("train_packets") <= SHORT).mean()
            )
            parts.append(shares.select(pl.lit(configuration).alias("_configuration"), *list(schema)[1:]))
    return pl.concat(parts)
