"""The runs as the report's page of runs has them: one JSON text, in which repeated texts stand once.

`runs.js` unpacks it. A text of a host or program may hold anything; in the JSON no character can end the element of the
page that it stands in.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

TEXTS = [
    "experiment", "campaign", "testbed", "host", "scale", "client_library", "server_library", "label", "arm", "cell",
    "status", "reason", "contamination", "client_build", "server_build", "client_negotiated_cipher",
    "client_negotiated_group", "client_negotiated_signature", "proof",
]  # fmt: skip
NUMBERS = ["block", "order", "attempt", "goodput_mbps", "ttfb_ms"]


def data(table: pl.DataFrame, figures: Iterable[Mapping[str, Any]]) -> str:
    """The runs of *table*, a column each, and the runs behind each figure as ranges of rows, as JSON for a page.

    A column of texts has each text once, and for every run its place among them. Times are in ms since 1970.
    """
    # the directory of a block, and the run in it: each is the same for many runs
    origins = [origin.rpartition("/") for origin in table["origin"]]
    texts = {name: table[name].to_list() for name in TEXTS}
    texts |= {"place": [place for place, _, _ in origins], "name": [name for _, _, name in origins]}
    rounded = table.with_columns(pl.col("goodput_mbps").round(1), pl.col("ttfb_ms").round(3))
    numbers = {name: rounded[name].to_list() for name in NUMBERS}
    numbers["contaminated"] = table["contaminated"].cast(pl.Int8).to_list()
    numbers["started_at"] = table["started_at"].dt.epoch("ms").to_list()
    rows = {origin: row for row, origin in enumerate(table["origin"])}
    return for_page(
        {
            "texts": {name: _once(values) for name, values in texts.items()},
            "numbers": numbers,
            "figures": {
                one["figure"]: _ranges(rows[origin] for origin in one["runs"] if origin in rows) for one in figures
            },
        }
    )


def for_page(value: Any) -> str:
    """JSON that may stand in a script element of a page, whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _once(values: Sequence[str | None]) -> list[Any]:
    """Every text once, and the place of each value's text."""
    place = {text: number for number, text in enumerate(dict.fromkeys(values))}
    return [list(place), [place[text] for text in values]]


def _ranges(rows: Iterable[int]) -> list[list[int]]:
    """First rows and lengths of ranges."""
    found = []
    # in a range, numbers grow as fast as their places
    for _, group in itertools.groupby(enumerate(sorted(set(rows))), key=lambda one: one[1] - one[0]):
        part = [row for _, row in group]
        found.append([part[0], len(part)])
    return found
