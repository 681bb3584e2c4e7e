"""Published data sets, read into the same tables as our own runs (docs/importing.md).

One module a format, in the room of its paper, if it has one (`quicbed.papers.FORMATS`). Each has `read(copy, out,
summary)`, which reads a local copy (`files`), writes its tables to a directory (`tables`) and tells a `Summary` what it
left out and why. Nothing is fetched, and the copy is never changed.
"""

from __future__ import annotations

from pathlib import Path

from quicbed.importers.summary import SUMMARY_FILE


def imported(directory: Path) -> dict[str, Path]:
    """The imports below *directory*, by format; one that did not end is none."""
    return {file.parent.name: file.parent for file in sorted(directory.glob(f"*/{SUMMARY_FILE}"))}


def missing_copy(name: str) -> str:
    """How to get the tables of a format, in HTML."""
    return (
        f"name a local copy of the data set as <code>published: {{{name}: PATH}}</code> in config/config.yaml; "
        "<code>make all</code> and <code>make figures</code> then import it (docs/importing.md)."
    )
