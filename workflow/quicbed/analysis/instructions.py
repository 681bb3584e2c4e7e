"""Instructions by category: of a byte, of a packet that the client receives, and of a handshake.

A run counts whole programs (`quicbed.measure.callgrind`). What a byte takes is the difference of a download and of one
of a single byte, and what a handshake takes that of several connections and of one, each within a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.analysis.cpu_shares import ROLES, StackFiles
from quicbed.base.models import RecordError
from quicbed.base.untrusted import UntrustedError
from quicbed.config.model import ConfigError, at_start, of_handshakes
from quicbed.store import runs, symbols, walk
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run
from quicbed.store.stacks import PerfError

EXPERIMENT = "instructions"
ALL = "all"
"""The sum of all categories."""
USER: tuple[symbols.Category, ...] = tuple(name for name in symbols.CATEGORIES if name != "kernel")
"""Categories of what runs outside of the kernel, which is all that is counted."""

COUNTS: Mapping[str, pl.DataType] = (
    dict.fromkeys(["testbed", "host", "cpu_model", "kernel", "experiment", "campaign", "scale"], pl.String())
    | dict.fromkeys(["cell", "label", "cipher", "aead"], pl.String())
    | dict.fromkeys(["client_library", "server_library", "role", "library", "category"], pl.String())
    | dict.fromkeys(["per_byte", "per_packet", "per_handshake", "ratio", "spread"], pl.Float64())
    | dict.fromkeys(["blocks"], pl.Int64())
    | dict.fromkeys(["problem"], pl.String())
)
"""Columns of the table: a row for every cell, role and category, and one of all categories; means over blocks.

`ratio` is what a byte takes over what it takes with the baseline of the experiment, and `spread` the difference between
the largest and the smallest block over the mean.
"""


@dataclass
class Counted:
    """Instructions of one campaign."""

    campaign: pl.DataFrame
    counts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COUNTS))
    processor: tuple[str, ...] = ()
    """Instructions that the programs found, of those that cryptography uses; empty where no run tells."""
    origins: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return self.counts.is_empty()


Sorted = Counter[str]
"""Instructions by category, and of `ALL`."""


@dataclass(frozen=True)
class _Block:
    """What one block tells of a cell and a role: by category."""

    per_byte: Mapping[str, float]
    per_packet: Mapping[str, float] | None
    per_handshake: Mapping[str, float] | None


def counted(table: pl.DataFrame, raw: Path, root: Path) -> Counted:
    """Instructions of the newest campaign; `raw` holds its runs, `root` is the repository with the mappings."""
    campaign = runs.select_campaign(table, EXPERIMENT)
    if campaign.is_empty():
        return Counted(campaign)
    cells = comparison.figure_table(campaign)
    used = comparison.counted(campaign)
    by_cell: dict[str, dict[int, dict[str, Any]]] = {}
    for run in used.to_dicts():
        by_cell.setdefault(run["cell"], {})[run["block"]] = run
    found = Counted(
        campaign, processor=_processor(raw, used["origin"].to_list()), origins=used["origin"].sort().to_list()
    )
    named = {(row["client_library"], row["server_library"], row["label"]): row["cell"] for row in cells.to_dicts()}
    files = StackFiles(raw)
    rows: list[dict[str, Any]] = []
    for cell in cells.filter(pl.col("arm") == "main").to_dicts():
        pair = cell["client_library"], cell["server_library"]
        start, several = (
            by_cell.get(named.get((*pair, label(cell["label"])), ""), {}) for label in (at_start, of_handshakes)
        )
        for role in ROLES:
            base = {name: cell.get(name) for name in COUNTS} | {"role": role, "library": cell[f"{role}_library"]}
            problem = cell["unsupported"] or cell["failure"]
            blocks: list[_Block] = []
            try:
                mapping = symbols.symbol_map(root, base["library"], role)
                for block, run in by_cell.get(cell["cell"], {}).items():
                    if block in start:
                        more = several.get(block)
                        whole, one = (_sorted(files, each, role, mapping) for each in (run, start[block]))
                        blocks.append(
                            _differences(
                                run, whole, one, more, None if more is None else _sorted(files, more, role, mapping)
                            )
                        )
            except (ConfigError, PerfError) as error:
                problem = str(error).replace(f"{root}/", "")
            if not blocks and problem is None:
                problem = "not measured"
            rows += [base | {"category": name} | _means(blocks, name, problem) for name in (*USER, ALL)]
    found.counts = _with_ratios(
        pl.DataFrame([{n: row.get(n) for n in COUNTS} for row in rows], schema=COUNTS, orient="row"), cells
    )
    return found


def _processor(raw: Path, origins: Iterable[str]) -> tuple[str, ...]:
    """What the first run tells of the processor that the programs saw: the same in all, as the campaign's host is."""
    files = walk.Beside(raw, lambda file: file.name == RUN_FILE)
    for origin in sorted(origins)[:1]:
        try:
            told = (Run.parse(files.read(origin, RUN_FILE)).host.perf or {}).get("processor")
        except (RecordError, UntrustedError):
            return ()
        if isinstance(told, list):
            return tuple(str(name) for name in told[:64])
    return ()


def _sorted(files: StackFiles, run: Mapping[str, Any], role: str, mapping: symbols.SymbolMap) -> Sorted:
    counts: Sorted = Counter(
        {str(name): count for name, count in mapping.count(files.stacks(run["origin"], role)).items()}
    )
    counts[ALL] = counts.total()
    return counts


def _differences(
    run: Mapping[str, Any], download: Sorted, start: Sorted, several: Mapping[str, Any] | None, more: Sorted | None
) -> _Block:
    """What one byte, one packet and one handshake take in a block."""
    names = (*USER, ALL)
    less = {name: download[name] - start[name] for name in names}
    packets = run["client_packets_received"]
    handshakes = None if several is None else several["connections"] - 1
    return _Block(
        {name: less[name] / (run["bytes"] - 1) for name in names},
        {name: less[name] / packets for name in names} if packets else None,
        {name: (more[name] - start[name]) / handshakes for name in names} if more and handshakes else None,
    )


def _means(blocks: Sequence[_Block], name: str, problem: str | None) -> dict[str, Any]:
    if not blocks:
        return {"blocks": 0, "problem": problem}
    per_byte = [one.per_byte[name] for one in blocks]
    mean = sum(per_byte) / len(per_byte)
    others = {}
    for kind in ("per_packet", "per_handshake"):
        values = [told[name] for one in blocks if (told := getattr(one, kind)) is not None]
        others[kind] = sum(values) / len(values) if values else None
    spread = (max(per_byte) - min(per_byte)) / mean if len(blocks) > 1 and mean > 0 else None
    return {"per_byte": mean, **others, "spread": spread, "blocks": len(blocks)}


def _with_ratios(counts: pl.DataFrame, cells: pl.DataFrame) -> pl.DataFrame:
    """With what each takes over the experiment's baseline: that of the cell whose baseline is none."""
    baselines = cells.filter(pl.col("baseline").is_null() & (pl.col("arm") == "main"))["cell"].implode()
    of = ["client_library", "server_library", "role", "category"]
    first = counts.filter(pl.col("cell").is_in(baselines) & (pl.col("per_byte") > 0)).select(*of, _first="per_byte")
    return (
        counts.join(first, on=of, how="left", maintain_order="left")
        .with_columns(ratio=pl.col("per_byte") / pl.col("_first"))
        .drop("_first")
    )


def header_protection(found: Counted) -> dict[tuple[str, str, str], float]:
    """What client and server together save of their instructions without header protection, by pair and cipher.

    As `quicbed.analysis.cpu_shares.header_protection` has it of samples: what is in its functions, less what stays
    there without it, over the instructions that are left.
    """
    per_byte: dict[tuple[str, str, str, bool], dict[str, float]] = {}
    has = dict(found.campaign.select("cell", "header_protection").unique("cell").rows())
    for row in found.counts.filter((pl.col("aead") == "standard") & pl.col("per_byte").is_not_null()).to_dicts():
        key = row["client_library"], row["server_library"], row["cipher"], has[row["cell"]] is True
        sums = per_byte.setdefault(key, {})
        sums[row["category"]] = sums.get(row["category"], 0.0) + row["per_byte"]
    gains = {}
    for (client, server, cipher, protected), sums in per_byte.items():
        without = per_byte.get((client, server, cipher, False))
        if protected and without is not None:
            cost = sums["header-protection"] - without["header-protection"]
            gains[client, server, cipher] = cost / (sums[ALL] - cost)
    return gains
