"""Times of web pages over HTTP/3 and HTTP/2: by what is varied, and the ratio of the two paired within blocks.

An experiment varies one factor at a time around its baseline, and losses together with round-trip times (`PANELS`).
Over TCP it does so with TLS 1.3, and for some factors with TLS 1.2 as well. Times begin with the connection, so that
the handshake of TCP is in those of HTTP/2, or in a browser with the navigation, which is before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.base.statistics import paired_ratio

EXPERIMENT = "web"
BROWSER = "web-browser"
"""The experiment whose pages are loaded by Chromium."""
REUSE = "connection-reuse"
"""The experiment of pages that are loaded over a connection that is open already."""

METRICS = {
    "connection_ms": "Connection time",
    "page_first_byte_ms": "Time to first byte",
    "page_load_ms": "Page load time",
}
DRAWN = {
    "largest_contentful_paint_ms": "Largest contentful paint",
    "load_event_ms": "Load event",
}
"""Metrics that only a browser has."""

FACTORS = ("rtt_ms", "rate_mbit", "loss_percent", "page", "group", "signature", "chain", "visit")

PANELS: dict[str, tuple[str, frozenset[str], frozenset[str]]] = {
    # name: the factor along its axis, those that must differ from the baseline, and those that may
    "rtt": ("rtt_ms", frozenset(), frozenset({"rtt_ms"})),
    "loss": ("rtt_ms", frozenset({"loss_percent"}), frozenset({"rtt_ms", "loss_percent"})),
    "rate": ("rate_mbit", frozenset(), frozenset({"rate_mbit"})),
    "page": ("page", frozenset(), frozenset({"page"})),
    "cryptography": ("label", frozenset(), frozenset({"group", "signature"})),
    "chains": ("label", frozenset(), frozenset({"signature", "chain"})),
    "handshake": ("label", frozenset(), frozenset({"group", "signature", "chain"})),
    "visits": ("label", frozenset(), frozenset({"rtt_ms", "group", "signature", "visit"})),
}
"""Cells that are compared with each other."""

VISITS = (None, "resumed", "early-data", "kept")
"""Visits, each of which keeps more of an earlier one than those before it."""
USUAL = {"group": "x25519", "signature": "rsa-2048"}

RATIOS: dict[str, pl.DataType] = {
    "experiment": pl.String(),
    "campaign": pl.String(),
    "label": pl.String(),  # of the cell over QUIC
    "metric": pl.String(),
    "quic": pl.String(),  # library over QUIC
    "tcp": pl.String(),  # library over TCP
    "tls_version": pl.String(),  # which that one speaks
    "ratio": pl.Float64(),  # value over QUIC by that over TCP, geometric mean of blocks
    "low": pl.Float64(),  # its 95 % interval, null for fewer than two blocks
    "high": pl.Float64(),
    "n": pl.Int64(),  # blocks that have both
}
"""Columns of `against_tcp`, a row for each variant over QUIC, metric, pair of libraries and version of TLS."""

SAVED: dict[str, pl.DataType] = {
    "experiment": pl.String(),
    "campaign": pl.String(),
    "library": pl.String(),
    "tls_version": pl.String(),  # over TCP
    "metric": pl.String(),
    "label": pl.String(),  # of the second visit, or of a first one with other cryptography
    "against": pl.String(),  # label of the cell that it is compared with
    "ratio": pl.Float64(),  # time of that visit by that of the other, geometric mean of blocks
    "low": pl.Float64(),  # its 95 % interval, null for fewer than two blocks
    "high": pl.Float64(),
    "n": pl.Int64(),  # blocks that have both
}
"""Columns of `saved`: a row for each visit, metric and cell that differs from it in the visit or in cryptography."""


def metrics_of(campaign: pl.DataFrame) -> dict[str, str]:
    """Metrics of the pages of a campaign with their titles."""
    return METRICS | (DRAWN if campaign["loaded_by"].is_not_null().any() else {})


def by_metric(campaign: pl.DataFrame) -> pl.DataFrame:
    """A row for every cell and metric: `quicbed.analysis.comparison.figure_table` with `metric` and `FACTORS`.

    Also with `tls_version`. It is null over QUIC, where cells that ask for an older one in vain are left out.
    """
    known = campaign.with_columns(pl.col("loss_percent").fill_null(0.0))
    added = [name for name in (*FACTORS, "tls_version") if name not in comparison.FIGURE_SCHEMA]
    factors = known.sort("started_at", nulls_last=False).unique("cell", keep="last").select("cell", *added)
    parts = [
        comparison.figure_table(known, metric)
        .with_columns(metric=pl.lit(metric))
        .join(factors, on="cell", how="left", maintain_order="left")
        for metric in metrics_of(campaign)
    ]
    over_tcp = pl.col("header_protection").is_null()
    able = pl.concat(parts).filter(over_tcp | pl.col("tls_version").is_null())
    return able.with_columns(tls_version=pl.when(over_tcp).then(pl.col("tls_version").fill_null("TLSv1.3")))


def panel(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Rows of the main arm that belong to a panel of `PANELS`, of every version of TLS, in the order of its axis.

    *table* is that of `by_metric`.
    """
    along, must, may = PANELS[name]
    main = table.filter(pl.col("arm") == "main")
    kept = []
    for library in sorted(set(main["client_library"])):
        own = main.filter(pl.col("client_library") == library)
        base = next((row for row in own.to_dicts() if row["baseline"] is None), None)
        if base is None:
            continue
        kept += [row for row in own.to_dicts() if must <= _differing(row, base) <= may]
    return pl.DataFrame(kept, schema=table.schema, orient="row").sort(along, "client_library", maintain_order=True)


def _differing(row: Mapping[str, Any], base: Mapping[str, Any]) -> set[str]:
    return {name for name in FACTORS if row[name] != base[name]}


def against_tcp(
    campaign: pl.DataFrame, table: pl.DataFrame, metrics: Iterable[str] | None = None, factors: Sequence[str] = FACTORS
) -> pl.DataFrame:
    """Rows of `RATIOS`: every variant that a library over QUIC and one over TCP have measured.

    Of all metrics of *table*, or of *metrics*; *factors* are what both have the same of.
    """
    rows = []
    main = table.filter(pl.col("arm") == "main")
    for metric in metrics or table["metric"].unique(maintain_order=True):
        values = comparison.block_values(campaign, metric)
        cells = main.filter(pl.col("metric") == metric).to_dicts()
        for quic in (cell for cell in cells if cell["tls_version"] is None):
            for tcp in (cell for cell in cells if cell["tls_version"]):
                alike = all(tcp[name] == quic[name] for name in factors)
                if alike and (ratio := _ratio(values, quic, tcp)):
                    row = {name: quic[name] for name in ("experiment", "campaign", "label")} | {"metric": metric}
                    row |= {"quic": quic["client_library"], "tcp": tcp["client_library"]}
                    rows.append(row | {"tls_version": tcp["tls_version"]} | ratio)
    return pl.DataFrame(rows, schema=RATIOS, orient="row")


def _ratio(values: comparison.Values, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last columns of `RATIOS` and `SAVED` of two cells; None without a block that has both."""
    found = paired_ratio(values.get(one["cell"], {}).items(), values.get(other["cell"], {}).items())
    ends = {"low": found.low, "high": found.high} if found.n > 1 else {"low": None, "high": None}
    return {"ratio": found.ratio, "n": found.n} | ends if found.n else None


def visits(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of second visits, and of first ones with the same cryptography and round-trip time as one of them.

    *table* is as of `panel`.
    """
    shown = panel(table, "visits")
    if shown.is_empty():
        return shown
    same = ["group", "signature", "rtt_ms"]
    known = shown.filter(pl.col("visit").is_not_null()).select(same).unique()
    return shown.join(known, on=same, how="semi", maintain_order="left")


def _simpler(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether *other* is what a visit is compared with."""
    differing = _differing(one, other)
    if differing == {"visit"}:
        return VISITS.index(other["visit"]) < VISITS.index(one["visit"])
    return bool(differing) and differing <= USUAL.keys() and all(other[name] == USUAL[name] for name in differing)


def saved(campaign: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Rows of `SAVED`: every second visit against those cells of its library that differ in one thing.

    That is against visits with the same cryptography that keep less of an earlier one (`VISITS`), and with other
    cryptography against the same visit with that of the baseline. So is a first visit where a kept connection has the
    same cryptography. Times are paired within blocks.
    """
    rows = []
    for metric in table["metric"].unique(maintain_order=True):
        values = comparison.block_values(campaign, metric)
        cells = visits(table.filter(pl.col("metric") == metric)).to_dicts()
        kept = {(cell["group"], cell["signature"]) for cell in cells if cell["visit"] == "kept"}
        for one in (cell for cell in cells if cell["visit"] or (cell["group"], cell["signature"]) in kept):
            for other in cells:
                same = all(one[name] == other[name] for name in ("client_library", "tls_version"))
                if same and _simpler(one, other) and (ratio := _ratio(values, one, other)):
                    row = {name: one[name] for name in ("experiment", "campaign", "tls_version", "label")}
                    row |= {"library": one["client_library"], "metric": metric, "against": other["label"]}
                    rows.append(row | ratio)
    return pl.DataFrame(rows, schema=SAVED, orient="row")
