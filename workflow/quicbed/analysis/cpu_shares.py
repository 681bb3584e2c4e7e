"""Shares of processor time by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from quicbed.analysis import comparison
from quicbed.base import statistics
from quicbed.base.untrusted import UntrustedError
from quicbed.config.model import ConfigError
from quicbed.store import runs, symbols, walk
from quicbed.store.stacks import FOLDED_SUFFIX, PerfError, Stacks, folded_name, read_folded

EXPERIMENT = "cpu-shares"


ROLES = ("client", "server")


PAIR = ("client_library", "server_library")


SHARES: Mapping[str, pl.DataType] = (
    dict.fromkeys(["testbed", "host", "cpu_model", "kernel", "experiment", "campaign", "scale"], pl.String())
    | dict.fromkeys(["cell", "label", "cipher", "aead"], pl.String())
    | dict.fromkeys(["client_library", "server_library", "role", "library", "category"], pl.String())
    | dict.fromkeys(["share", "low", "high"], pl.Float64())
    | dict.fromkeys(["blocks", "samples"], pl.Int64())
    | dict.fromkeys(["problem"], pl.String())
)
"""Columns of the table: a row for every cell, role and category; shares from 0 to 1, null with a `problem`."""


BLOCKS: Mapping[str, pl.DataType] = dict.fromkeys(["cell", "role", "category"], pl.String()) | {
    "block": pl.Int64(),
    "share": pl.Float64(),
}
"""Columns of the shares of single blocks, whose means the other table has."""


@dataclass
class Profiled:
    """Shares of one campaign, and the stacks behind them by (cell, role)."""

    campaign: pl.DataFrame
    shares: pl.DataFrame
    blocks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BLOCKS))
    stacks: dict[tuple[str, str], Stacks] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return self.shares.is_empty()


def profiled(table: pl.DataFrame, raw: Path, root: Path, experiment: str = EXPERIMENT) -> Profiled:
    """Shares of the newest campaign; `raw` holds its runs, `root` is the repository with the mappings."""
    campaign = runs.select_campaign(table, experiment)
    if campaign.is_empty():
        return Profiled(campaign, pl.DataFrame(schema=SHARES))
    cells = comparison.figure_table(campaign).filter(pl.col("arm") == "main")
    used = comparison.counted(campaign).filter(pl.col("cell").is_in(cells["cell"].to_list()))
    files = _Files(raw)
    result = Profiled(campaign, pl.DataFrame(schema=SHARES), origins=used["origin"].sort().to_list())
    rows: list[dict[str, Any]] = []
    blocks: list[tuple[str, str, str, int, float]] = []
    for cell in cells.to_dicts():
        counting = used.filter(pl.col("cell") == cell["cell"]).sort("block")
        origins = counting["origin"].to_list()
        for role in ROLES:
            base = {name: cell.get(name) for name in SHARES} | {"role": role, "library": cell[f"{role}_library"]}
            problem = cell["unsupported"] or cell["failure"] or "not measured" if not origins else None
            lacking: Mapping[symbols.Category, str] = {}
            counts: list[Counter[symbols.Category]] = []
            try:
                if problem is None:
                    mapping = symbols.symbol_map(root, base["library"])
                    lacking = mapping.unsupported
                    total: Stacks = Counter()
                    for origin in origins:
                        stacks = files.stacks(origin, role)
                        counts.append(mapping.count(stacks))
                        total.update(stacks)
                    result.stacks[cell["cell"], role] = total
            except (ConfigError, PerfError) as error:
                problem = str(error).replace(f"{root}/", "")
            for category in symbols.CATEGORIES:
                reason = problem or lacking.get(category)
                rows.append(base | {"category": category, "problem": reason} | _share(counts, category, reason))
                if reason is None:
                    for block, count in zip(counting["block"], counts, strict=True):
                        blocks.append((cell["cell"], role, category, block, count[category] / count.total()))
    result.blocks = pl.DataFrame(blocks, schema=BLOCKS, orient="row")
    result.shares = pl.DataFrame(
        [{name: row.get(name) for name in SHARES} for row in rows], schema=SHARES, orient="row"
    )
    return result


def _share(counts: list[Counter[symbols.Category]], category: symbols.Category, problem: str | None) -> dict[str, Any]:
    if problem is not None or not counts:
        return {"blocks": 0}
    values = np.array([count[category] / count.total() for count in counts])
    low, high = statistics.mean_interval(values, 0) if len(values) > 1 else (None, None)
    samples = sum(count.total() for count in counts)
    return {"share": float(values.mean()), "low": low, "high": high, "blocks": len(values), "samples": samples}


class _Files:
    """Folded stacks beside run.json, by the run's origin."""

    def __init__(self, raw: Path) -> None:
        self._beside = walk.Beside(raw, lambda file: file.name.endswith(FOLDED_SUFFIX))

    def stacks(self, origin: str, role: str) -> Stacks:
        """Folded stacks of an endpoint in one run; PerfError names the run."""
        name = folded_name(role)
        try:
            content = self._beside.read(origin, name)
        except UntrustedError:
            raise PerfError(f"{origin}: {name} is missing or cannot be read") from None
        try:
            return read_folded(content)
        except PerfError as error:
            raise PerfError(f"{origin}: {role}: {error}") from None
