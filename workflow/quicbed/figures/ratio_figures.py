"""A figure of ratios with their intervals, one a line: what an analysis of one's own ends in."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from quicbed.figures import font
from quicbed.figures.output import Drawn


def ratios(name: str, table: pl.DataFrame, axis: str, runs: pl.DataFrame) -> Drawn:
    """Draw a *table* with columns `library`, `ratio`, `low` and `high`, with what the ratios are of below the *axis*.

    *runs* are those behind it.
    """
    figure = go.Figure(
        go.Scatter(
            x=table["ratio"].to_list(),
            y=table["library"].to_list(),
            error_x={
                "symmetric": False,
                "array": (table["high"] - table["ratio"]).to_list(),
                "arrayminus": (table["ratio"] - table["low"]).to_list(),
            },
            mode="markers",
            uid="ratios",  # else a random one, and two drawings would differ
        )
    )
    figure.update_layout(
        template="none",
        font={"family": font.FAMILY, "size": 12},
        width=560,
        height=110 + 24 * len(table),
        margin={"l": 120, "r": 20, "t": 20, "b": 60},
        xaxis_title=axis,
    )
    figure.add_vline(x=1, line_width=1)
    return Drawn(name, figure, runs, runs["origin"].sort().to_list(), "an analysis of your own")
