"""Numbers of pages that lead to the runs behind them."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs

import polars as pl


def runs_behind(page: Path, table: pl.DataFrame) -> dict[str, int]:
    """How many runs of *table* each link of a page to the page of runs selects there, as `runs.js` does.

    The page of runs has to be where the links say.
    """
    found = {}
    for href in set(re.findall(r"href=[\"']([^\"']*runs\.html#[^\"']*)", page.read_text(encoding="utf-8"))):
        address, _, selected = unescape(href).partition("#")
        assert Path(os.path.normpath(page.parent / address)).is_file(), href
        found[selected] = len(table.filter(*filters(selected)))
    return found


def filters(selected: str) -> list[pl.Expr]:
    """Which runs of a table a selection (`quicbed.store.runs.selection`) is of."""
    chosen = {key: value for key, (value,) in parse_qs(selected, strict_parsing=True).items()}
    found = []
    for key, value in chosen.items():
        if key == "cell":
            found.append(pl.col("cell").is_in(value.split(",")))
        elif key == "library":
            found.append((pl.col("client_library") == value) | (pl.col("server_library") == value))
        else:
            names = {"run": "origin"}
            assert key in ("campaign", "experiment", "label", "arm", "host", "run"), selected
            found.append(pl.col(names.get(key, key)) == value)
    return found
