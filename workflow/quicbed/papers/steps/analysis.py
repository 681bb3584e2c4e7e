"""What the figures and tables of "QUIC Steps" are made of: its published raw data, and what was measured here.

The published repetitions are those that `quicbed import steps` reads from a local copy. Which configuration of the data
set a figure or table is made of is told by its name. A repetition of which the copy has no logs counts with its gaps,
as in the paper's own figures; what logs alone tell is null then.

Gaps and trains are pooled over the runs of a cell, as in the paper's figures, but never joined across runs, which the
scripts of the paper do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from quicbed import importers
from quicbed.analysis import comparison
from quicbed.base import statistics
from quicbed.importers import names, tables
from quicbed.importers.summary import SUMMARY_FILE
from quicbed.store import runs
from quicbed.wire import pacing

SOURCE = "steps"
BASELINE, CONGESTION_CONTROL, FQ, GSO, ETF = (
    f"pacing-{name}" for name in ("baseline", "congestion-control", "fq", "gso", "etf")
)
CIPHER, PRECISION = "pacing-cipher", "pacing-precision"
"""Experiments that the paper has not."""
_QUICHE = "quiche-gso-txtime-{}-gso_unpaced"
_GSO = "quiche-gso-txtime-cubic-fq-gso_{}-spurious_fixed"
CONFIGURATIONS: tuple[tuple[str, str, str], ...] = (
    # configuration, experiment of ours, label
    (_QUICHE.format("cubic"), BASELINE, "baseline"),
    ("picoquic-cubic", BASELINE, "baseline"),
    ("ngtcp2-cubic", BASELINE, "baseline"),
    ("tcp+tls-cubic", BASELINE, "baseline"),
    *(
        (_QUICHE.format(name), CONGESTION_CONTROL, label)
        for name, label in (("cubic", "CUBIC"), ("reno", "Reno"), ("bbr", "BBR"), ("bbr2", "BBR2"))
    ),
    *(
        (f"{library}-{name}", CONGESTION_CONTROL, label)
        for library in ("ngtcp2", "picoquic")
        for name, label in (("cubic", "CUBIC"), ("reno", "Reno"), ("bbr", "BBR"))
    ),
    (_QUICHE.format("cubic"), FQ, "default"),
    (_QUICHE.format("cubic-fq"), FQ, "FQ"),
    (f"{_QUICHE.format('cubic')}-spurious_fixed", FQ, "no roll-back"),
    (f"{_QUICHE.format('cubic-fq')}-spurious_fixed", FQ, "FQ, no roll-back"),
    (_GSO.format("unpaced"), GSO, "GSO"),
    (_GSO.format("disabled"), GSO, "no GSO"),
    (_GSO.format("paced"), GSO, "paced GSO"),
)

_KEPT: Mapping[str, pl.DataType] = {"configuration": pl.String(), "repetition": pl.Int64()} | dict(pacing.DISTRIBUTIONS)


@dataclass(frozen=True)
class Published(tables.Results):
    """Tables of the published results."""

    runs: pl.DataFrame
    """Columns `quicbed.importers.tables.RUNS`, ``experiment`` and ``label`` those of ours, and ``configuration``."""
    distributions: pl.DataFrame
    """Gaps and trains (`quicbed.wire.pacing.distributions`) by ``configuration`` and ``repetition``."""
    missing: str | None = None
    """Why there are none."""

    def count(self) -> str:
        """Repetitions and settings."""
        repetitions = self.runs.select("configuration", "repetition").n_unique()
        return f"{repetitions} repetitions of {self.runs['configuration'].n_unique()} settings"


def published(directory: Path | None) -> Published:
    """What was imported into *directory*; nothing, with the reason, without one or where no import ended there."""
    nothing = pl.DataFrame(schema=tables.RUNS | {"configuration": pl.String()}), pl.DataFrame(schema=_KEPT)
    if directory is None or not all((directory / name).is_file() for name in (SUMMARY_FILE, "runs.parquet")):
        return Published(*nothing, importers.missing_copy(SOURCE))
    kept = _distributions(directory / "gaps")
    logged = pl.read_parquet(directory / "runs.parquet")
    trains = kept.filter(pl.col("quantity") == pacing.TRAINS)
    short = trains.filter(pl.col("value") <= pacing.SHORT)
    place = ["configuration", "repetition"]
    share = (
        trains.group_by(place)
        .agg(_all=pl.col("count").sum())
        .join(short.group_by(place).agg(_short=pl.col("count").sum()), on=place, how="left")
    )
    share = share.select(*place, packets_in_trains_to_5=pl.col("_short").fill_null(0) / pl.col("_all"))
    # an import of an earlier version has fewer columns
    found = pl.concat([nothing[0], logged, _without_logs(share, logged)], how="diagonal")
    parts = [
        found.filter(pl.col("experiment") == configuration).with_columns(
            experiment=pl.lit(experiment), label=pl.lit(label), configuration=pl.lit(configuration)
        )
        for configuration, experiment, label in CONFIGURATIONS
    ]
    told = pl.concat(parts).drop("packets_in_trains_to_5").join(share, on=place, how="left")
    counted = told.with_columns(dropped_packets=pl.col("bottleneck_dropped"))
    return Published(counted.select(*tables.RUNS, "configuration"), kept)


def _distributions(directory: Path) -> pl.DataFrame:
    parts = [pl.DataFrame(schema=_KEPT)]
    for configuration in dict.fromkeys(name for name, _, _ in CONFIGURATIONS):
        file = directory / f"{configuration}.parquet"
        if not file.is_file():
            continue
        gaps = pl.read_parquet(file, columns=["repetition", "gap_ns", "train_packets"])
        for (number,), packets in gaps.partition_by("repetition", as_dict=True, maintain_order=True).items():
            place = [pl.lit(configuration).alias("configuration"), pl.lit(number, pl.Int64).alias("repetition")]
            parts.append(pacing.distributions(packets).select(*place, *pacing.DISTRIBUTIONS))
    return pl.concat(parts)


def _without_logs(known: pl.DataFrame, logged: pl.DataFrame) -> pl.DataFrame:
    """Rows as those of *logged* for repetitions that only have gaps."""
    logs = set(logged.select("experiment", "repetition").rows())
    rows = []
    for configuration, number in known.select("configuration", "repetition").rows():
        if (configuration, number) not in logs:
            library, flavour = names.library(configuration)
            sides = {f"{role}_library": library for role in ("client", "server")}
            place = {"experiment": configuration, "scale": "published", "repetition": number, "block": number}
            rows.append(tables.run(SOURCE, configuration, "ok", library=library, flavour=flavour, **sides, **place))
    return tables.frame(rows, tables.RUNS, runs.SORT)


# ---- what figures show -----------------------------------------------------------------------------------------------

CURVES: Mapping[str, pl.DataType] = {
    "source": pl.String(),  # steps, or where our runs are from
    "experiment": pl.String(),
    "campaign": pl.String(),
    "testbed": pl.String(),
    "scale": pl.String(),
    "library": pl.String(),
    "label": pl.String(),
    "quantity": pl.String(),  # gap_ns, train_packets or `LOSS`
    "value": pl.Int64(),
    "count": pl.Int64(),  # gaps, or packets in trains of this length, of all runs; null of `LOSS`
    "share": pl.Float64(),  # of gaps that are at most as long, of packets in trains at most as long, or of lost packets
    "runs": pl.Int64(),
}
"""Columns of the table of a figure: the CDF of gaps and trains of every cell, and the loss that trains predict."""

LOSS = "queue_packets"
"""Quantity: room in a queue, in packets, of which `share` of the packets are lost."""
QUEUES = range(1, 21)


def own_campaign(table: pl.DataFrame, experiment: str) -> pl.DataFrame:
    """Our newest campaign of an experiment, of libraries with themselves; empty without runs."""
    campaign = runs.select_campaign(table, experiment)
    alike = (pl.col("client_library") == pl.col("server_library")) & (pl.col("arm") == "main")
    return campaign.filter(alike)


def published_curves(theirs: Published, experiment: str) -> pl.DataFrame:
    """The columns `CURVES` of an experiment, of the published repetitions that succeeded."""
    used = published_runs(theirs, experiment)
    return _curves(used.join(theirs.distributions, on=["configuration", "repetition"], how="inner"))


def own_curves(campaign: pl.DataFrame, paced: pl.DataFrame) -> pl.DataFrame:
    """As `published_curves` of our runs that count; *paced* is the table ``pacing`` of `quicbed.store.details`."""
    used = comparison.counted(campaign)
    return _curves(used.join(paced.select("origin", *pacing.DISTRIBUTIONS), on="origin", how="inner"))


def _curves(kept: pl.DataFrame) -> pl.DataFrame:
    place = ["source", "experiment", "campaign", "testbed", "scale", "library", "label"]
    named = kept.with_columns(library=pl.col("client_library"))
    many = named.group_by(place).agg(runs=pl.struct("origin", "block").n_unique())
    curve = [*place, "quantity"]
    counts = named.group_by([*curve, "value"]).agg(pl.col("count").sum()).sort([*curve, "value"])
    shares = counts.with_columns(share=pl.col("count").cum_sum().over(curve) / pl.col("count").sum().over(curve))
    both = pl.concat([shares, _predicted_loss(counts, place)], how="diagonal")
    return both.join(many, on=place, how="left", nulls_equal=True).select(
        pl.col(name).cast(kind) for name, kind in CURVES.items()
    )


def _predicted_loss(counts: pl.DataFrame, place: list[str]) -> pl.DataFrame:
    """Share of packets that a short queue drops if each train meets it empty and arrives at once: of a train of n
    packets those beyond its room.
    """
    trains = counts.filter(pl.col("quantity") == pacing.TRAINS)
    queues = pl.DataFrame({"queue": list(QUEUES)}, schema={"queue": pl.Int64()})
    beyond = (pl.col("value") - pl.col("queue")).clip(lower_bound=0) / pl.col("value") * pl.col("count")
    lost = trains.join(queues, how="cross").group_by([*place, "queue"]).agg(share=beyond.sum() / pl.col("count").sum())
    return lost.select(*place, pl.lit(LOSS).alias("quantity"), pl.col("queue").alias("value"), "share").sort(
        [*place, "value"]
    )


METRICS = ("dropped_packets", "goodput_mbps", "packets_in_trains_to_5", "gap_ms", "pacing_precision_us")
"""Of every run; the last two the data set does not tell."""
NUMBERS: Mapping[str, pl.DataType] = (
    {name: CURVES[name] for name in ("source", "experiment", "campaign", "testbed", "scale", "library", "label")}
    | {f"{metric}_n": pl.Int64() for metric in METRICS}
    | {f"{metric}{end}": pl.Float64() for metric in METRICS for end in ("", "_low", "_high")}
)
"""Columns of the table behind Tables 1 and 2: means over runs with their 95 % interval, null of one run."""


def numbers(used: pl.DataFrame) -> pl.DataFrame:
    """The columns `NUMBERS` of runs that count, a row a cell."""
    rows = []
    place = [name for name in NUMBERS if name in CURVES]
    named = used.with_columns(library=pl.col("client_library"))
    for key, cell in named.group_by(place, maintain_order=True):
        row = dict(zip(place, key, strict=True))
        for metric in METRICS:
            values = cell[metric].drop_nulls().cast(pl.Float64).sort().to_numpy()
            row[f"{metric}_n"] = len(values)
            if len(values):
                row[metric] = float(values.mean())
            if len(values) > 1:
                row[f"{metric}_low"], row[f"{metric}_high"] = statistics.mean_interval(values, 0)
        rows.append(row)
    complete = [{name: row.get(name) for name in NUMBERS} for row in rows]
    return pl.DataFrame(complete, schema=NUMBERS, orient="row").sort(place, nulls_last=True)


def published_runs(theirs: Published, experiment: str) -> pl.DataFrame:
    """Published repetitions of an experiment that succeeded."""
    used = theirs.runs.filter((pl.col("experiment") == experiment) & (pl.col("status") == "ok"))
    return used.with_columns(campaign=pl.lit(None, pl.String), testbed=pl.lit("published"))
