"""What commands print: colours and ruled tables on a terminal, plain text for everything else, and with NO_COLOR."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from tabulate import tabulate

from quicbed.base.untrusted import visible

GOOD, BAD, UNSURE = "green", "bold red", "yellow"
STYLES = {
    **{f"state.{name}": GOOD for name in ("good", "ok")},
    **{f"state.{name}": BAD for name in ("bad", "failed")},
    "state.unsure": UNSURE,
    **{f"state.{name}": "bold" for name in ("name", "all")},
}


class States(RegexHighlighter):
    """Colours what a line is about: verdicts, features of a machine, what became of a run, the steps of a plan."""

    base_style = "state."
    highlights: ClassVar[list[str]] = [
        r"(?m)^  (?:[\w+-]+ +)?(?P<good>holds|yes)(?=$|  |:|;|,)|^(?P<ok>ok)$",
        r"(?m)^  (?:[\w+-]+ +)?(?P<bad>fails|MISSING|no)(?=$|  |:|;|,)|^(?P<failed>failed|unreadable)$",
        r"(?m)^  (?:[\w+-]+ +)?(?P<unsure>inconclusive|unsupported|not measured|not applicable|in part)(?=$|  |:|;|,)",
        r"(?m)^  (?:build|measure) (?P<name>[^:]+)(?=: )|^  (?P<all>all)(?=: )",
    ]


def console() -> Console:
    """Standard output. It is not kept, because tests and pipes replace it."""
    return Console(highlighter=States(), theme=Theme(STYLES), soft_wrap=True)


def show(text: str) -> None:
    """Print text; on a terminal, words of state have colours."""
    console().print(visible(text), markup=False)


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, which fits its columns to a terminal and has a line each row elsewhere."""
    rows = [[visible(re.sub(r"\s+", " ", cell)) for cell in row] for row in rows]
    out = console()
    if not out.is_terminal:
        print(tabulate(rows, headers=list(heads), tablefmt="plain", disable_numparse=True))
        return
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(Text(head), overflow="fold")
    mark = States()
    for row in rows:
        table.add_row(*(mark(Text(cell)) for cell in row))
    out.print(table, soft_wrap=False)
