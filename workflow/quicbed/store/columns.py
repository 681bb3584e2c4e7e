"""Event files of runs as archives hold them: their numbers by column, which halves what they take.

The lines of an event file differ in their numbers only, and a number resembles the one above it or another one of its
line: most are times. `COLUMNS_SUFFIX` behind the name of a file in an archive says that it is written so. Nothing is
lost: a file comes out as it was, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import accumulate, islice, repeat
from operator import sub
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quicbed.base.untrusted import MOST_BYTES, UntrustedError

COLUMNS_SUFFIX = ".columns"
LEAST_BYTES = 8192
"""Files below this size stay as they are."""

# JSON's integers between signs, with the space that some programs write
_NUMBER = re.compile(r"(?<=[:,\[ ])(?:0|-?[1-9]\d{0,18})(?=[,}\]])")
_LARGEST = 10**20
_PLACEHOLDER = re.compile(r"%[%d]")
_MOST_LINES = 1_000_000
# Of a file as large as may be: every number is in memory by itself.
_LEAST_PER_NUMBER = 8


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Integer = Annotated[int, Field(gt=-_LARGEST, lt=_LARGEST)]
_Count = Annotated[int, Field(ge=0)]


class _Column(_Model):
    """The numbers at one place of lines that resemble each other."""

    less: Literal["", "above", "first"] | Annotated[int, Field(ge=1)] = ""
    """What each is written without: nothing, the number above it, the first one of its line, or another before it."""
    numbers: list[_Integer] | _Integer
    """One if all are the same."""


class _Lines(_Model):
    """Lines of one file that differ in their numbers only."""

    text: str
    """The line, with `%d` for each number and `%%` for a percent sign."""
    count: _Count
    columns: list[_Column]


class _File(_Model):
    format: Literal[1]
    order: list[tuple[_Count, _Count]]
    """Which of `kinds` the lines of the file are: how many of each follow each other."""
    kinds: list[_Lines]


def packed(content: bytes) -> bytes | None:
    """An event file by columns; None for what is small, does not get smaller, or would not come out as it was."""
    if len(content) < LEAST_BYTES:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    order: list[tuple[int, int]] = []
    kinds: dict[str, tuple[int, list[list[int]]]] = {}
    for line in text.split("\n"):
        numbers = [int(number) for number in _NUMBER.findall(line)]
        kind, rows = kinds.setdefault(_NUMBER.sub("%d", line.replace("%", "%%")), (len(kinds), []))
        rows.append(numbers)
        if order and order[-1][0] == kind:
            order[-1] = (kind, order[-1][1] + 1)
        else:
            order.append((kind, 1))
    lines = [_Lines(text=line, count=len(rows), columns=_columns(rows)) for line, (_, rows) in kinds.items()]
    made = _File(format=1, order=order, kinds=lines).model_dump_json(exclude_defaults=True).encode()
    if len(made) >= len(content):
        return None
    try:
        return made if unpacked(made) == content else None
    except UntrustedError:
        return None


def _columns(rows: list[list[int]]) -> list[_Column]:
    by_place = list(zip(*rows, strict=True))
    columns = []
    for place, numbers in enumerate(by_place):
        if len(set(numbers)) == 1:
            columns.append(_Column(numbers=numbers[0]))
            continue
        tried = [_Column(numbers=list(numbers)), _Column(less="above", numbers=list(map(sub, numbers, (0, *numbers))))]
        for before in range(place):
            differences = list(map(sub, numbers, by_place[before]))
            same = len(set(differences)) == 1
            tried.append(_Column(less=before or "first", numbers=differences[0] if same else differences))
        columns.append(min(tried, key=lambda one: len(json.dumps(one.numbers))))
    return columns


def unpacked(content: bytes, most: int = MOST_BYTES) -> bytes:
    """The event file; UntrustedError for what `packed` did not write, and for one of more than *most* bytes."""
    try:
        file = _File.model_validate_json(content)
    except ValidationError as error:
        raise UntrustedError(f"is no event file by columns: {error.errors()[0]['msg']}") from None
    total = sum(one.count for one in file.kinds)
    if total > _MOST_LINES or sum(one.count * len(one.text) for one in file.kinds) > most:
        raise UntrustedError(f"is larger than {most / 2**20:g} MiB or has more than {_MOST_LINES} lines")
    if sum(count for _, count in file.order) != total or any(kind >= len(file.kinds) for kind, _ in file.order):
        raise UntrustedError("is no event file by columns: not the lines that it says")
    if sum(one.count * len(one.columns) for one in file.kinds) > most // _LEAST_PER_NUMBER:
        raise UntrustedError(f"has more than {most // _LEAST_PER_NUMBER} numbers")
    kinds = [_lines(one) for one in file.kinds]
    lines: list[str] = []
    size = 0
    for kind, count in file.order:
        for line in islice(kinds[kind], count):
            size += len(line) + 1
            if size > most:
                raise UntrustedError(f"is larger than {most / 2**20:g} MiB")
            lines.append(line)
    if len(lines) != total:
        raise UntrustedError("is no event file by columns: not the lines that it says")
    return "\n".join(lines).encode()


def _lines(lines: _Lines) -> Iterator[str]:
    """Lines of one kind, one after the other; raises UntrustedError before the first."""
    placeholders = _PLACEHOLDER.findall(lines.text)
    # any other, as a width of a number, could make a line of any size
    if lines.text.count("%") != sum(map(len, placeholders)) - placeholders.count("%d"):
        raise UntrustedError("is no event file by columns: a line with another placeholder")
    by_place: list[list[int]] = []
    for column in lines.columns:
        numbers = column.numbers if isinstance(column.numbers, list) else [column.numbers] * lines.count
        if len(numbers) != lines.count:
            raise UntrustedError("is no event file by columns: a column of another length")
        if column.less == "above":
            numbers = list(accumulate(numbers))
        elif column.less:
            before = 0 if column.less == "first" else column.less
            if before >= len(by_place):
                raise UntrustedError("is no event file by columns: a column less one that does not stand before it")
            numbers = [number + other for number, other in zip(numbers, by_place[before], strict=True)]
        if numbers and not (min(numbers) > -_LARGEST and max(numbers) < _LARGEST):
            raise UntrustedError("is no event file by columns: a number that is too large")
        by_place.append(numbers)
    if len(by_place) != placeholders.count("%d"):
        raise UntrustedError("is no event file by columns: more or fewer columns than numbers")
    rows = zip(*by_place, strict=True) if by_place else repeat((), lines.count)
    return (lines.text % row for row in rows)
