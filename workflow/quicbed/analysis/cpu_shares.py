"""Shares of processor time by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
BYPASS = "kernel-bypass-shares"


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
    "samples": pl.Int64(),
}
"""Columns of the shares of single blocks, whose means the other table has; `samples` are those of all categories."""


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
    files = StackFiles(raw)
    result = Profiled(campaign, pl.DataFrame(schema=SHARES), origins=used["origin"].sort().to_list())
    rows: list[dict[str, Any]] = []
    blocks: list[tuple[str, str, str, int, float, int]] = []
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
                    mapping = symbols.symbol_map(root, base["library"], role)
                    lacking = mapping.lacking(cell["cipher"] if cell["aead"] == "standard" else None)
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
                        total_samples = count.total()
                        share = count[category] / total_samples
                        blocks.append((cell["cell"], role, category, block, share, total_samples))
    result.blocks = pl.DataFrame(blocks, schema=BLOCKS, orient="row")
    result.shares = pl.DataFrame(
        [{name: row.get(name) for name in SHARES} for row in rows], schema=SHARES, orient="row"
    )
    return result


COST: Mapping[str, pl.DataType] = (
    dict.fromkeys(["testbed", "host", "cpu_model", "kernel", "experiment", "campaign", "scale"], pl.String())
    | dict.fromkeys(["cell", "label", "library", "part"], pl.String())
    | dict.fromkeys(["s_per_gib", "low", "high"], pl.Float64())
    | {"blocks": pl.Int64()}
)
"""Columns of `cryptography_cost`."""
PARTS = ("packet-protection", "header-protection", "rest")


def cryptography_cost(found: Profiled, label: str = "AES-128-GCM") -> pl.DataFrame:
    """Processor time of both ends together per GiB, by what it is spent on: rows of `COST`, of one variant.

    The share of the samples times the processor time of the same run, added over both ends; the mean over blocks with
    its 95 % interval. Libraries whose header protection is not told from other work of one end have no rows.
    """
    used = comparison.counted(found.campaign)
    seconds = {
        (cell, block, role): value
        for role in ROLES
        for cell, block, value in used.select("cell", "block", f"{role}_cpu_s_per_gib").rows()
        if value is not None
    }
    shares: dict[tuple[str, int, str, str], float] = {
        (cell, block, role, category): share
        for cell, role, category, block, share in found.blocks.select(
            "cell", "role", "category", "block", "share"
        ).rows()
    }
    own = found.shares.filter((pl.col("client_library") == pl.col("server_library")) & (pl.col("label") == label))
    rows: list[dict[str, Any]] = []
    for cell in own.unique("cell", keep="first", maintain_order=True).to_dicts():
        blocks = sorted({block for of, block, *_ in shares if of == cell["cell"]})
        costs = (_costs(cell["cell"], block, seconds, shares) for block in blocks)
        by_block = [one for one in costs if one is not None]
        for part in PARTS if by_block else ():
            values = np.array([one[part] for one in by_block])
            low, high = statistics.mean_interval(values, 0) if len(values) > 1 else (None, None)
            told = {"part": part, "s_per_gib": float(values.mean()), "low": low, "high": high, "blocks": len(values)}
            rows.append({name: cell.get(name) for name in COST} | told)
    return pl.DataFrame(rows, schema=COST)


def _costs(
    cell: str,
    block: int,
    seconds: Mapping[tuple[str, int, str], float],
    shares: Mapping[tuple[str, int, str, str], float],
) -> dict[str, float] | None:
    """Seconds per GiB of one block by part; None where one of them is not known."""
    found = dict.fromkeys(PARTS, 0.0)
    for role in ROLES:
        whole = seconds.get((cell, block, role))
        parts = [shares.get((cell, block, role, part)) for part in PARTS[:-1]]
        if whole is None or any(share is None for share in parts):
            return None
        for part, share in zip(PARTS, [*parts, 1 - sum(share or 0 for share in parts)], strict=True):
            found[part] += whole * (share or 0)
    return found


def _share(counts: list[Counter[symbols.Category]], category: symbols.Category, problem: str | None) -> dict[str, Any]:
    if problem is not None or not counts:
        return {"blocks": 0}
    values = np.array([count[category] / count.total() for count in counts])
    low, high = statistics.mean_interval(values, 0) if len(values) > 1 else (None, None)
    samples = sum(count.total() for count in counts)
    return {"share": float(values.mean()), "low": low, "high": high, "blocks": len(values), "samples": samples}


# ---- header protection -----------------------------------------------------------------------------------------------

BOTH = "both"
"""Client and server together."""
HEADER: Mapping[str, pl.DataType] = (
    dict.fromkeys(["campaign", "cell", *PAIR, "label", "cipher", "without", "end"], pl.String())
    | dict.fromkeys(["gain", "low", "high"], pl.Float64())
    | {"blocks": pl.Int64(), "problem": pl.String()}
)
"""Columns of `header_protection`: `without` is the label of the cell that has none."""


def header_protection(found: Profiled) -> pl.DataFrame:
    """What a download gains without header protection, by the samples in its functions; paired within blocks.

    What stays in these functions without header protection, as reading the packet number, is no cost of it. Of how much
    that is, the cell without header protection tells, with the same cipher or else NOOP, by its samples in all that
    neither protects packets nor headers, which is the same in both. The gain is the cost over what is left without it.
    """
    cells = found.shares.unique(["cell"], keep="first", maintain_order=True).to_dicts()
    facts = {row["cell"]: row for row in found.campaign.select("cell", "header_protection").unique("cell").to_dicts()}
    rows: list[dict[str, Any]] = []
    for cell in cells:
        if cell["aead"] != "standard" or facts[cell["cell"]]["header_protection"] is not True:
            continue
        pair = [cell[name] for name in PAIR]
        others = [
            other
            for other in cells
            if [other[name] for name in PAIR] == pair and facts[other["cell"]]["header_protection"] is False
        ]
        same = [other for other in others if other["aead"] == "standard" and other["cipher"] == cell["cipher"]]
        without = next(iter([*same, *(other for other in others if other["aead"] == "noop")]), None)
        for end in (*ROLES, BOTH):
            base = {name: cell[name] for name in ("campaign", "cell", *PAIR, "label", "cipher")} | {"end": end}
            roles = ROLES if end == BOTH else (end,)
            rows.append(base | _gain(found, cell["cell"], without, roles))
    return pl.DataFrame([{name: row.get(name) for name in HEADER} for row in rows], schema=HEADER, orient="row")


def _gain(found: Profiled, cell: str, without: Mapping[str, Any] | None, roles: Sequence[str]) -> dict[str, Any]:
    hidden = found.shares.filter(
        (pl.col("cell") == cell)
        & pl.col("role").is_in(roles)
        & pl.col("category").is_in(["packet-protection", "header-protection"])
        & pl.col("problem").is_not_null()
    )
    if not hidden.is_empty():
        return {"blocks": 0, "problem": hidden["problem"][0]}
    if without is None:
        return {"blocks": 0, "problem": "not measured without header protection"}
    have, lack = (_spent(found, one, roles) for one in (cell, without["cell"]))
    gains = []
    for block in sorted(have.keys() & lack.keys()):
        (header, rest), (stays, other) = have[block], lack[block]
        if other > 0:
            cost = header - stays * rest / other
            gains.append(cost / (1 - cost))
    if not gains:
        return {"blocks": 0, "without": without["label"], "problem": "not measured without header protection"}
    low, high = statistics.mean_interval(np.array(gains)) if len(gains) > 1 else (None, None)
    gain = sum(gains) / len(gains)
    return {"gain": gain, "low": low, "high": high, "blocks": len(gains), "without": without["label"]}


def _spent(found: Profiled, cell: str, roles: Sequence[str]) -> dict[int, tuple[float, float]]:
    """Shares of header protection, and of all that protects nothing, in the samples of some ends, by block."""
    own = found.blocks.filter((pl.col("cell") == cell) & pl.col("role").is_in(roles))
    told = own.with_columns(weighed=pl.col("share") * pl.col("samples"))
    blocks: dict[int, tuple[float, float]] = {}
    for (block,), part in told.group_by("block"):
        total = part.unique("role")["samples"].sum()
        by = dict(part.group_by("category").agg(pl.col("weighed").sum()).rows())
        header = by.get("header-protection", 0.0) / total
        blocks[int(str(block))] = header, 1 - header - by.get("packet-protection", 0.0) / total
    return blocks


class StackFiles:
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
