"""Experiments whose runs are measured in concurrent pairs: ratios of processor time by end, and what follows.

A ratio is that of processor time per byte, of a cell to the baseline that ran beside it, which may be of another
library, paired within blocks with Student's interval as every ratio is (`quicbed.analysis.comparison`). Beside it
stands the goodput that follows, where the processor of the busier end limits it, and the goodput measured by
separate runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from quicbed.analysis import comparison
from quicbed.config.model import Experiment
from quicbed.plan.arms import BESIDE

BUSY = "gib_per_busy_cpu_s"
"""What the goodput that follows is proportional to."""
PARTS: Mapping[str, tuple[str, bool]] = {
    "both": (comparison.TWIN, True),
    "client": ("client_cpu_s_per_gib", False),
    "server": ("server_cpu_s_per_gib", False),
    "follows": (BUSY, False),
}
"""Metric of what stands in the columns of a part, and whether its ratio is turned round."""
_ENDS = ("ratio", "ratio_low", "ratio_high", "ratio_deviation", "aa_ratio", "aa_low", "aa_high")
_KEYS = (
    *("testbed", "testbed_kind", "host", "cpu_model", "kernel", "experiment", "campaign", "scale", "workload_bytes"),
    *("client_library", "server_library", "arm", "label", "cell", "baseline", "baseline_label"),
    *("unsupported", "failed", "failure", "contaminated", "n", "ratio_n"),
    *("client_cpu_s_per_gib", "server_cpu_s_per_gib"),
)
SCHEMA: dict[str, pl.DataType] = {
    **{name: comparison.FIGURE_SCHEMA[name] for name in _KEYS},
    "baseline_library": pl.String(),  # that ran beside
    # processor time per byte of both ends together, of each, and the goodput that follows
    **{f"{part}_{end}": pl.Float64() for part in PARTS for end in _ENDS},
    # goodput of separate runs on the same host, where there are any
    **{f"goodput_{end}": pl.Float64() for end in _ENDS[:3]},
}
"""Columns of `table`: a row for every cell that is compared, and for the A/A arm."""


def is_paired(campaign: pl.DataFrame) -> bool:
    """Whether the runs of a campaign were measured at the same time as others."""
    return bool((campaign["arm"] == BESIDE).any())


def deciding(campaigns: comparison.Campaigns, experiments: Mapping[str, Experiment], experiment: str) -> str | None:
    """The experiment of pairs that was measured and asks what this one of separate runs asks; None if there is none."""
    asking = (name for name, one in experiments.items() if one.alone == experiment)
    return next((name for name in asking if len(campaigns.newest(name))), None)


def table(campaigns: comparison.Campaigns, experiment: str, alone: str | None = None) -> pl.DataFrame:
    """The newest campaign of an experiment of pairs, in the columns of `SCHEMA`.

    *alone* is the experiment whose runs measure the same labels alone, if there is one (`Experiment.alone`).
    """
    rows: dict[str, dict[str, object]] = {}
    for part, (metric, turned) in PARTS.items():
        cells = campaigns.figure(experiment, metric)
        libraries = dict(cells.select("cell", "client_library").rows())
        for cell in cells.filter(pl.col("arm") != BESIDE).to_dicts():
            row = rows.setdefault(cell["cell"], {name: cell[name] for name in _KEYS})
            row["baseline_library"] = libraries.get(cell["baseline"])
            row |= {f"{part}_{end}": value for end, value in _ends(cell, turned=turned).items()}
    others = campaigns.figure(alone).filter(pl.col("arm") == "main").to_dicts() if alone is not None else []
    where = ("host", "client_library", "server_library", "label")
    measured = {tuple(one[key] for key in where): one for one in others}
    for row in rows.values():
        other = measured.get(tuple(row[key] for key in where))
        if other is not None and row["arm"] != "aa":
            row |= {f"goodput_{end}": other[end] for end in _ENDS[:3]}
    complete = [{name: row.get(name) for name in SCHEMA} for row in rows.values()]
    return pl.DataFrame(complete, schema=SCHEMA, orient="row")


def _ends(cell: Mapping[str, float | None], *, turned: bool) -> dict[str, float | None]:
    """A ratio and its A/A ratio with their intervals; *turned* round, the ratio of the baseline to the cell."""
    if not turned:
        return {end: cell[end] for end in _ENDS}
    other = {"ratio_low": "ratio_high", "ratio_high": "ratio_low", "aa_low": "aa_high", "aa_high": "aa_low"}
    inverse = {end: 1 / value if (value := cell[other.get(end, end)]) else None for end in _ENDS}
    return inverse | {"ratio_deviation": cell["ratio_deviation"]}
