"""Tables of pairs of libraries and of sizes of frames."""

from __future__ import annotations

import numpy as np
import polars as pl

from quicbed.analysis import comparison
from quicbed.base import statistics
from quicbed.plan.arms import CAPTURED

_SIZES = ("client_mean_frame_bytes", "server_mean_frame_bytes")


def pair_table(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """*table* of a pairwise experiment with the 95 % interval of each mean, `mean_low` to `mean_high` in Mbit/s.

    `runs` is how many runs of the cell there are in blocks, `failed` ones included; none where it was not proven.
    """
    used = comparison.counted(campaign)
    in_blocks = campaign.filter(pl.col("block").is_not_null())
    rows = []
    for cell in table["cell"]:
        values = used.filter(pl.col("cell") == cell)["goodput_mbps"].drop_nulls().sort().to_numpy()
        low, high = statistics.mean_interval(np.asarray(values), 0) if len(values) > 1 else (None, None)
        runs = len(in_blocks.filter(pl.col("cell") == cell))
        rows.append({"cell": cell, "mean_low": low, "mean_high": high, "runs": runs})
    schema = {"cell": pl.String(), "mean_low": pl.Float64(), "mean_high": pl.Float64(), "runs": pl.Int64()}
    return table.join(pl.DataFrame(rows, schema=schema), on="cell", how="left")


def mtu_table(runs: pl.DataFrame, campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The table of `pair_table` with the gain of NOOP by MTU, and mean frame sizes in bytes of each side.

    `noop_ratio`, `noop_low` and `noop_high` are of NOOP over the cipher at the same MTU, paired within blocks.

    Sizes have the link-layer header in them. They are those of the newest run of a cell that was captured besides and,
    where there is none, of its proof: `frames_arm` says which, `frames_download_bytes` how large that download was.
    *runs* holds every run.
    """
    sizes = [
        pl.col("arm").alias("frames_arm"),
        pl.col("workload_bytes").alias("frames_download_bytes"),
        *(pl.col(name) for name in _SIZES),
    ]
    names = ("cell", "frames_arm", "frames_download_bytes", *_SIZES)
    place = ["testbed", "host", "experiment", "campaign", "source"]
    found = runs.filter(pl.col("status") == "ok")
    # a capture with gaps has left no sizes
    captured = (
        found.filter((pl.col("arm") == CAPTURED) & pl.all_horizontal(pl.col(*_SIZES).is_not_null()))
        .join(campaign.select(place).unique(), on=place, how="semi", nulls_equal=True)
        .with_columns(label=pl.coalesce("planned_label", "label"))
        .sort("started_at", "origin")
        .unique(["proof", "label"], keep="last", maintain_order=True)
        .select("proof", "label", *sizes)
    )
    proofs = (
        found.filter((pl.col("arm") == "proof") & pl.col("host").is_in(campaign["host"].unique().to_list()))
        .sort("started_at", "origin")
        .unique("cell", keep="last", maintain_order=True)
        .select(pl.col("cell").alias("proof"), *sizes)
    )
    proven = campaign.filter(pl.col("proof").is_not_null()).unique("cell", keep="last", maintain_order=True)
    # builds and variants of one proof and label are the same
    besides = proven.select("cell", "proof", "label").join(captured, on=["proof", "label"], how="inner")
    others = proven.select("cell", "proof").join(besides, on="cell", how="anti").join(proofs, on="proof", how="inner")
    chosen = pl.concat([besides.select(names), others.select(names)])
    noop = _over_cipher(campaign, table)
    for more in (noop, chosen):
        table = table.join(more, on="cell", how="left", maintain_order="left")
    return pair_table(campaign, table)


def _over_cipher(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Ratios of cells with NOOP to those with a cipher that differ in nothing else of a figure's table."""
    key = ("client_library", "server_library", "mtu")
    main = table.filter(pl.col("arm") == "main").to_dicts()
    ciphers = {tuple(cell[name] for name in key): cell["cell"] for cell in main if cell["aead"] != "noop"}
    of = {cell["cell"]: ciphers.get(tuple(cell[name] for name in key)) for cell in main if cell["aead"] == "noop"}
    found = comparison.compared(campaign, table, of).filter(pl.col("cell").is_in(list(of)))
    return found.select("cell", noop_ratio="ratio", noop_low="ratio_low", noop_high="ratio_high")
