"""Shapes of web pages: how many objects of each type a page has and how large they are, read from `config/pages.csv`.

The pages are those of the HTTP Archive's crawls, as the Web Almanac publishes them: medians and deciles of numbers and
bytes over all home pages (2025) or desktop pages (2019), each type on its own, with 1 KB of 1024 bytes. Objects of one
type have the same size here, because what is published of a page is their number and their sum.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

READS = ("config/pages.csv",)

FILE = Path("config/pages.csv")

COLUMNS = ["page", "type", "objects", "kib", "source", "date"]

DOCUMENT = "html"
"""The type of which the first object is the page's document."""


class PageError(Exception):
    """A table that cannot be used: one line naming file, line and what is wrong."""


@dataclass(frozen=True)
class Part:
    """All objects of one type in a page."""

    type: str
    objects: int
    kib: int
    """Of all together, in KiB."""
    source: str
    date: str
    """Month of the crawl."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each object: equal, but for what a division leaves to the first ones."""
        each, left = divmod(self.kib * 1024, self.objects)
        return tuple(each + (number < left) for number in range(self.objects))


@dataclass(frozen=True)
class Page:
    """The objects of a page."""

    name: str
    parts: tuple[Part, ...]
    """By type, the document's first."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the document and then of every other object, in the order in which they are asked for."""
        return tuple(size for part in self.parts for size in part.sizes)

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return sum(self.sizes)


def read(root: Path) -> dict[str, Page]:
    """The pages of a repository by name; PageError where the table is not as described."""
    file = root / FILE
    if not file.is_file():
        return {}
    parts: dict[str, list[Part]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if reader.fieldnames != COLUMNS:
            raise PageError(f"{file}: the first line has to be {','.join(COLUMNS)}")
        for row in reader:
            where = f"{file}: line {reader.line_num}"
            parts.setdefault(row["page"], []).append(_part(row, where))
    for name, found in parts.items():
        types = [part.type for part in found]
        if types[0] != DOCUMENT or len(set(types)) != len(types):
            raise PageError(f"{file}: page `{name}` needs one line for each type, that of {DOCUMENT} first")
    return {name: Page(name, tuple(found)) for name, found in parts.items()}


def _part(row: dict[str, str], where: str) -> Part:
    numbers = {}
    for column in ("objects", "kib"):
        value = row[column] or ""
        if not value.isdecimal() or int(value) == 0:
            raise PageError(f"{where}: {column}: `{value}` is not a whole number above 0")
        numbers[column] = int(value)
    if not row["page"] or not row["type"]:
        raise PageError(f"{where}: page and type must not be empty")
    return Part(row["type"], numbers["objects"], numbers["kib"], row["source"] or "", row["date"] or "")
