"""Videos, and rates of links while they are played, read from `config/videos.csv` and `config/rate-traces.csv`.

A video is a ladder of bit rates: one representation for each, cut into segments of one length. A rate trace says which
rate the link has from when to when. What is wrong in a table is told in one line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READS = ("config/videos.csv", "config/rate-traces.csv")

FILE = Path("config/videos.csv")
COLUMNS = ["video", "segment_s", "kbit", "source"]
TRACES = Path("config/rate-traces.csv")
TRACE_COLUMNS = ["trace", "begin_s", "end_s", "rate_mbit", "source"]

LOWEST_MBIT, HIGHEST_MBIT = 1.0, 5000.0
"""Rates that a link can have."""


class VideoError(Exception):
    """A table that cannot be used: one line naming file, line and what is wrong."""


@dataclass(frozen=True)
class Video:
    """A ladder of representations."""

    name: str
    segment_s: float
    """Length of a segment in seconds."""
    kbits: tuple[int, ...]
    """Bit rates of the representations in kbit/s, rising."""

    def segments(self, play_s: float) -> int:
        """Segments of each representation that last *play_s* seconds or, for less than a segment, longer."""
        return math.ceil(round(play_s / self.segment_s, 6))


@dataclass(frozen=True)
class Step:
    """The rate of a link for a while."""

    begin_s: float
    end_s: float
    rate_mbit: float


@dataclass(frozen=True)
class RateTrace:
    """Rates of a link, one after the other without a gap. After the last one it begins anew."""

    name: str
    steps: tuple[Step, ...]

    @property
    def highest_mbit(self) -> float:
        """The highest of its rates."""
        return max(step.rate_mbit for step in self.steps)

    def at(self, seconds: float) -> float:
        """The rate so many seconds after the beginning, in Mbit/s."""
        within = seconds % self.steps[-1].end_s
        return next(step.rate_mbit for step in self.steps if within < step.end_s)


def read(root: Path) -> dict[str, Video]:
    """The videos of a repository by name; VideoError where the table is not as described."""
    found: dict[str, tuple[float, list[int]]] = {}
    for row, where in _rows(root / FILE, COLUMNS):
        name, segment_s, kbit = row["video"], _above_zero(row, "segment_s", where), _above_zero(row, "kbit", where)
        if not name or kbit != int(kbit):
            raise VideoError(f"{where}: video must not be empty, and kbit is a whole number")
        length, kbits = found.setdefault(name, (segment_s, []))
        if segment_s != length:
            raise VideoError(f"{where}: segment_s: all segments of `{name}` are {length:g} s long, write that here too")
        if kbits and kbit <= kbits[-1]:
            raise VideoError(f"{where}: kbit: `{row['kbit']}` is not above {kbits[-1]} before it: let them rise")
        kbits.append(int(kbit))
    return {name: Video(name, length, tuple(kbits)) for name, (length, kbits) in found.items()}


def read_traces(root: Path) -> dict[str, RateTrace]:
    """The rate traces of a repository by name; VideoError where the table is not as described or a trace has a gap."""
    found: dict[str, list[Step]] = {}
    for row, where in _rows(root / TRACES, TRACE_COLUMNS):
        name = row["trace"]
        if not name:
            raise VideoError(f"{where}: trace must not be empty")
        steps = found.setdefault(name, [])
        begin, end = _number(row, "begin_s", where), _above_zero(row, "end_s", where)
        rate, before = _above_zero(row, "rate_mbit", where), steps[-1].end_s if steps else 0.0
        if begin != before:
            raise VideoError(
                f"{where}: begin_s: trace `{name}` has no rate from {before:g} s on, this line begins at {begin:g} s: "
                "let each begin where the one before ends, the first at 0"
            )
        if end <= begin:
            raise VideoError(f"{where}: end_s: `{row['end_s']}` is not after begin_s")
        if not LOWEST_MBIT <= rate <= HIGHEST_MBIT:
            raise VideoError(f"{where}: rate_mbit: links have {LOWEST_MBIT:g} to {HIGHEST_MBIT:g} Mbit/s")
        steps.append(Step(begin, end, rate))
    return {name: RateTrace(name, tuple(steps)) for name, steps in found.items()}


def _rows(file: Path, columns: list[str]) -> Iterator[tuple[dict[str, str], str]]:
    """The lines of a table, each with where it is; none where there is no table."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if reader.fieldnames != columns:
            raise VideoError(f"{file}: the first line has to be {','.join(columns)}")
        for row in reader:
            yield {key: row[key] or "" for key in columns}, f"{file}: line {reader.line_num}"


def _number(row: dict[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise VideoError(f"{where}: {column}: `{row[column]}` is no number from 0 on")
    return value


def _above_zero(row: dict[str, str], column: str, where: str) -> float:
    value = _number(row, column, where)
    if value == 0:
        raise VideoError(f"{where}: {column}: `{row[column]}` is not above 0")
    return value
