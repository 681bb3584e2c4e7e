"""``processed.csv`` of "QUIC on the Highway", which the authors' parser made from the raw files, held against them.

Nothing of it gets into the tables of runs. Every number that the raw files of the same repetition give as well is
compared, so that it can be told what the paper's figures, drawn from these files, would be with the raw ones.
"""

from __future__ import annotations

import ast
import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from quicbed.importers.logs import LITERAL_ERRORS, LONGEST_DICTIONARY, ROLES, ParseError, text_of

FILE = "processed.csv"
DEEPEST = 32
"""Folders of the authors' machine within each other that are looked for in a copy."""
NEEDED = ("logdir", "server", "client", "repetition")
ROUNDING = 1e-6
"""Relative difference of two numbers that are the same."""

QUANTITIES: Mapping[str, str] = {
    "goodput": "goodput_mbps",
    "client_runtime": "wall_s",
    "filesize": "workload_bytes",
} | {
    f"{role}_{theirs}": f"{role}_{ours}"
    for role in ROLES
    for theirs, ours in (
        ("cpu_avg", "cpu_percent"),
        ("netstat_packets_sent", "udp_packets_sent"),
        ("netstat_packets_received", "udp_packets_received"),
        ("netstat_receive_buffer_errors", "udp_receive_buffer_errors"),
    )
}
"""Column of ``runs.parquet`` by column of ``processed.csv``."""

OTHER, ONLY_PROCESSED, ONLY_RAW = "another value", "a value of a repetition that has none", "no value"
NOT_THERE, MISSING = "a repetition that is not in the copy", "without a repetition that is in the copy"


@dataclass(frozen=True)
class Processed:
    """One file."""

    path: str
    rows: list[dict[str, str]]


def parse(path: str, data: bytes) -> Processed:
    """Read a file; `ParseError` if it has not the columns that name a repetition."""
    try:
        rows = list(csv.DictReader(io.StringIO(text_of(data), newline="")))
    except csv.Error as error:
        raise ParseError(f"damaged table: {error}") from None
    if rows and not set(NEEDED) <= rows[0].keys():
        raise ParseError(f"without the columns {', '.join(NEEDED)}")
    return Processed(path, rows)


def compare(
    file: Processed, runs: Mapping[str, Mapping[str, Any]], shares: Mapping[tuple[str, str, str], float]
) -> Iterator[dict[str, Any]]:
    """Rows of ``processed.parquet``: its numbers and those of the raw files.

    *runs* are the rows of ``runs.parquet`` by origin, *shares* the categories of perf samples in % of the whole host's,
    by origin, role and category.
    """
    directory = str(PurePosixPath(file.path).parent)
    below = [origin for origin in runs if origin.startswith(f"{directory}/") or directory == "."]
    logdirs = {origin.rsplit("/", 3)[0] for origin in below}
    seen = set()
    for row in file.rows:
        logdir = _logdir(row["logdir"] or "", directory, logdirs)
        origin = f"{logdir}/{row['server']}_{row['client']}/goodput/{row['repetition']}"
        if logdir is None or origin not in runs:
            named = f"{row['logdir']}/{row['server']}_{row['client']}/goodput/{row['repetition']}"
            yield {"file": file.path, "origin": named, "problem": NOT_THERE}
            continue
        seen.add(origin)
        for quantity, theirs, ours in _numbers(row, runs[origin], shares, origin):
            problem = _problem(theirs, ours)
            if theirs is not None or ours is not None:
                yield {
                    "file": file.path,
                    "origin": origin,
                    "quantity": quantity,
                    "processed": theirs,
                    "raw": ours,
                    "problem": problem,
                }
    if file.rows:
        named_logdirs = {origin.rsplit("/", 3)[0] for origin in seen}
        for origin in sorted(below):
            if origin not in seen and origin.rsplit("/", 3)[0] in named_logdirs:
                yield {"file": file.path, "origin": origin, "problem": MISSING}


def _logdir(named: str, directory: str, known: Iterable[str]) -> str | None:
    """The logdir of the copy, of *known*, that a row names by a path of the authors' machine."""
    parts = PurePosixPath(named).parts
    for length in range(1, min(len(parts), DEEPEST) + 1):
        found = str(PurePosixPath(directory, *parts[-length:]))
        if found in known:
            return found
    return None


def _numbers(
    row: Mapping[str, str], run: Mapping[str, Any], shares: Mapping[tuple[str, str, str], float], origin: str
) -> Iterator[tuple[str, float | None, float | None]]:
    """What both can tell of a repetition: name, number in the file, number of the raw files."""
    for column, quantity in QUANTITIES.items():
        if column in row:
            yield quantity, _number(row[column]), run[quantity]
    for role in ROLES:
        for category, theirs in _perf(row.get(f"{role}_perf")).items():
            if (ours := shares.get((origin, role, category))) is not None:
                yield f"{role}_{category}_percent", theirs, ours


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _perf(cell: str | None) -> dict[str, float]:
    """Shares of categories in %, from the dictionary that is a cell of the file."""
    try:
        if len(cell or "") > LONGEST_DICTIONARY:
            return {}
        document = ast.literal_eval(cell or "{}")
        total = document["SUM_SAMPLES"]
        shares = {str(category): 100 * samples / total for category, samples in document["OVERVIEW"].items()}
        return {category: float(share) for category, share in shares.items() if math.isfinite(share)}
    except (*LITERAL_ERRORS, LookupError, ArithmeticError, AttributeError):
        return {}


def _problem(theirs: float | None, ours: float | None) -> str | None:
    if theirs is None or ours is None:
        return None if theirs is ours else ONLY_RAW if theirs is None else ONLY_PROCESSED
    return OTHER if abs(theirs - ours) > ROUNDING * max(abs(theirs), abs(ours)) else None


def told(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What differs, for a summary: in words that are the same for equal differences, and where."""
    for row in rows:
        if row["problem"]:
            of = f" of {row['quantity']}" if row.get("quantity") else ""
            yield f"{FILE} has {row['problem']}{of}; the raw files count", row["origin"]
