"""Results of "QUIC on the Highway" (Jaeger et al., IFIP Networking 2023, arXiv 2309.16395).

``<experiment>/<logdir>/{result.json, <server>_<client>/<test>/<repetition>/{output.txt, client/, server/}}``, anywhere
in the copy. The raw files of every repetition are read. ``result.json`` only adds what they do not tell; its
``details`` leave out failed repetitions, so that they cannot be matched by position, and are compared with what the raw
files give. ``processed.csv``, which was made by that position, is only compared with the raw files.

Perf samples are sorted by the mapping that the data set brings in ``perf/mappings/<implementation>.json`` (first
matching regular expression); a copy without it has no ``cpu_shares.parquet``. Recordings that come before their mapping
are read in a second pass over the copy: all of them in memory would be too much.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from quicbed.base import untrusted
from quicbed.importers import tables
from quicbed.importers.files import MOST_BYTES, MOST_RECORDED, TWICE, CopyError, Entry, content_of, entries
from quicbed.importers.logs import ParseError, parse_object
from quicbed.importers.repetitions import Repetition
from quicbed.importers.summary import Summary
from quicbed.papers.highway import perf, processed

SOURCE = "highway"
LAYOUT = "<logdir>/<server>_<client>/<test>/<repetition>/output.txt"
RESULT_FILE = "result.json"
PERF_FILE = "out.perf.zst"
MAPPING = re.compile(r"(?:^|/)perf/mappings/([^/]+)\.json$")
MAPPINGS_BESIDE = Path("analysis-pipeline/result-parsing/util/perf/mappings")
"""Where the repository has the mappings, beside ``results/``."""

_FILE = re.compile(
    r"^(?:(?P<logdir>.+)/)?(?P<server>[^/_]+)_(?P<client>[^/_]+)/(?P<test>[^/]+)/(?P<number>\d{1,9})/(?P<file>.+)$"
)
TOLERANCE = 1e-5
"""Relative difference between a goodput and the same in result.json that rounding explains."""
_MIB = 1 << 20
ROWS_AT_ONCE = 100_000

Key = tuple[str, str, str, str, int]
"""Logdir, server, client, test, repetition."""
_Folding = Future[tuple[dict[str, int], int, int]]
FOLDED_AT_ONCE = 4
"""Recordings in memory, which are a hundred times larger unpacked."""


@dataclass
class _Gathered:
    """What was read so far."""

    repetitions: dict[Key, Repetition] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """result.json by logdir."""
    mappings: dict[str, perf.Mapping] = field(default_factory=dict)
    processed: list[processed.Processed] = field(default_factory=list)
    shares: list[dict[str, Any]] = field(default_factory=list)
    """Rows of ``cpu_shares.parquet``."""
    early: dict[str, tuple[Key, str]] = field(default_factory=dict)
    """Perf recordings met before a mapping for them, by path: repetition, role."""
    folding: deque[tuple[Key, str, str, _Folding]] = field(default_factory=deque)
    """Perf recordings being folded: repetition, role, path."""


def read(copy: Path, out: Path, summary: Summary) -> None:
    """Import a copy of the results; see `quicbed.papers.reading.read`."""
    gathered = _Gathered(mappings=_mappings_beside(copy))
    # folding a recording takes longer than everything else of its repetition
    workers = min(2, os.cpu_count() or 1)
    # not forked: polars has threads
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for entry in entries(copy, summary):
            _take(entry, gathered, pool, summary)
        _fold_early(copy, gathered, pool, summary)
        _finish(gathered, 0, summary)
    ordered = sorted(gathered.repetitions.items())
    rows = []
    for key, repetition in ordered:
        origin = _origin(key)
        repetition.close(origin, summary)
        rows.append(repetition.row(SOURCE, origin, summary, **_known(key, gathered.results.get(key[0]), summary)))
    if not rows:
        return
    _compare(rows, gathered.results, summary)
    tables.write_runs(rows, out, summary)
    tables.write(_counters(ordered), out, "counters", summary)
    successful = {row["origin"] for row in rows if row["status"] == "ok"}
    shares = [share for share in gathered.shares if share["origin"] in successful]
    if shares:
        table = tables.frame(shares, tables.CPU_SHARES, ["origin", "role", "category"])
        tables.write(table, out, "cpu_shares", summary)
    _write_processed(rows, shares, gathered.processed, out, summary)


def _write_processed(
    rows: list[dict[str, Any]],
    shares: list[dict[str, Any]],
    files: list[processed.Processed],
    out: Path,
    summary: Summary,
) -> None:
    """``processed.parquet``, if the copy has something to compare."""
    runs = {row["origin"]: dict.fromkeys(tables.RUNS) | row for row in rows}
    percent = {
        (share["origin"], share["role"], share["category"]): 100 * share["samples"] / share["all_samples"]
        for share in shares
    }
    compared = [row for file in files for row in processed.compare(file, runs, percent)]
    for what, where in processed.told(compared):
        summary.differ(what, where)
    if compared:
        table = tables.frame(
            ({"source": SOURCE} | row for row in compared), tables.PROCESSED, ["file", "origin", "quantity"]
        )
        tables.write(table, out, "processed", summary)


def _take(entry: Entry, gathered: _Gathered, pool: ProcessPoolExecutor, summary: Summary) -> None:
    if entry.again and (entry.name in (RESULT_FILE, processed.FILE) or MAPPING.search(entry.path)):
        summary.skip(TWICE, entry.path)
        return
    if entry.name == RESULT_FILE:
        document = _object(entry, summary)
        if document is not None:
            gathered.results[str(PurePosixPath(entry.path).parent)] = document
        return
    if found := MAPPING.search(entry.path):
        document = _object(entry, summary)
        if document is not None:
            gathered.mappings[found[1]] = perf.mapping(document)
        return
    if entry.name == processed.FILE:
        data = content_of(entry, summary)
        if data is not None:
            try:
                gathered.processed.append(processed.parse(entry.path, data))
            except ParseError as error:
                summary.skip(f"{processed.FILE}: {error}", entry.path)
        return
    place = _FILE.match(entry.path)
    if place is None:
        summary.skip(f"not part of a repetition ({LAYOUT})", entry.path)
        return
    key = (place["logdir"] or ".", place["server"], place["client"], place["test"], int(place["number"]))
    repetition = gathered.repetitions.setdefault(key, Repetition(*key[1:]))
    file = place["file"]
    role, _, name = file.partition("/")
    if name == PERF_FILE and not entry.again:
        _fold(entry, key, role, gathered, pool, summary)
        return
    if name == PERF_FILE:
        repetition.doubled = file
        summary.skip(f"{name}: is there twice", entry.path)
        return
    if not repetition.wants(file):
        summary.skip("log of an endpoint, not used", entry.path)
        return
    data = content_of(entry, summary)
    if data is None:
        return
    try:
        repetition.take(file, data)
    except ParseError as error:
        summary.skip(f"{name or file}: {error}", entry.path)


def _object(entry: Entry, summary: Summary) -> dict[str, Any] | None:
    data = content_of(entry, summary)
    if data is None:
        return None
    try:
        return parse_object(data)
    except ParseError as error:
        summary.skip(f"{entry.name if entry.name == RESULT_FILE else 'perf mapping'}: {error}", entry.path)
        return None


def _origin(key: Key) -> str:
    logdir, server, client, test, number = key
    return f"{logdir}/{server}_{client}/{test}/{number}".removeprefix("./")


# ---- result.json -----------------------------------------------------------------------------------------------------


def _known(key: Key, result: Mapping[str, Any] | None, summary: Summary) -> dict[str, Any]:
    """Columns that the place of a repetition and the result.json of its logdir tell."""
    logdir, server, client, *_ = key
    # the same experiment was often measured in several logdirs
    place = PurePosixPath(logdir)
    parts = place.parts[place.parts.index("results") + 1 :] if "results" in place.parts else place.parts
    columns: dict[str, Any] = {"experiment": "/".join(parts[:-1]) or ".", "campaign": parts[-1] if parts else "."}
    columns["scale"] = "published"
    if result is None:
        summary.differ(f"no usable {RESULT_FILE}: versions of the implementations are null", _origin(key))
        return columns
    for role, implementation in (("client", client), ("server", server)):
        versions = result.get(f"{role}_implementations")
        version = versions.get(implementation) if isinstance(versions, dict) else None
        columns[f"{role}_version"] = version if isinstance(version, str) else None
    for role in ("client", "server"):
        node = result.get(f"{role}_node_name")
        columns[f"{role}_host"] = node if isinstance(node, str) else None
    if limit := _rate_mbit(result.get("bandwidth_limit")):
        columns["rate_mbit"] = limit
    # the size in `args` is not that of every pair: slow libraries have a largest one of their own
    for measurement in measurements(result):
        if (measurement.get("server"), measurement.get("client"), measurement.get("name")) == key[1:4]:
            columns["workload_bytes"] = _bytes(measurement.get("filesize"))
    return {name: value for name, value in columns.items() if value is not None}


def _bytes(size: Any) -> int | None:
    """The size of a download, which is in bytes in some versions of result.json and in MiB in others."""
    if type(size) is not int or not 0 < size < 1 << 40:
        return None
    return size if size >= _MIB else size * _MIB


_RATE = re.compile(r"^(\d{1,15}(?:\.\d{1,15})?)\s?([kmg])bit$", re.IGNORECASE)


def _rate_mbit(limit: Any) -> float | None:
    """Rate limit in Mbit/s from tc's notation; "None", as a string, is none."""
    found = _RATE.match(limit) if isinstance(limit, str) else None
    return float(found[1]) * {"k": 1e-3, "m": 1.0, "g": 1e3}[found[2].lower()] if found else None


def _compare(rows: list[dict[str, Any]], results: Mapping[str, Mapping[str, Any]], summary: Summary) -> None:
    """Tell where result.json has other goodputs than the raw files, which are what the table has."""
    successful: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["status"] == "ok" and row["workload"] == "bulk":
            logdir, pair = row["origin"].rsplit("/", 3)[:2] if row["origin"].count("/") > 2 else (".", row["slug"])
            successful.setdefault((logdir, pair), []).append(row["goodput_mbps"])
    for logdir, result in sorted(results.items()):
        for measurement in measurements(result):
            pair = f"{measurement.get('server')}_{measurement.get('client')}"
            details = measurement.get("details")
            ours = successful.get((logdir, pair))
            if measurement.get("name") != "goodput" or not isinstance(details, list) or not (ours or details):
                continue
            where = f"{logdir}/{pair}"
            if not all(isinstance(value, int | float) and math.isfinite(value) for value in details):
                summary.differ(f"{RESULT_FILE} has goodputs that are no numbers; those of the raw files count", where)
                continue
            if len(details) != len(ours or []):
                summary.differ(f"{RESULT_FILE} has another number of successful repetitions; the logs count", where)
            elif any(abs(a - b) > TOLERANCE * b for a, b in zip(details, ours or [], strict=True)):
                summary.differ(f"{RESULT_FILE} has other goodputs; those of the raw files count", where)


def measurements(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The measurements of a result.json of the bare-metal runner, whatever pair they belong to."""
    cells = result.get("measurements")
    for cell in cells if isinstance(cells, list) else []:
        for measurement in cell if isinstance(cell, list) else []:
            if isinstance(measurement, dict):
                yield measurement


# ---- counters and perf -----------------------------------------------------------------------------------------------


def _counters(ordered: list[tuple[Key, Repetition]]) -> pl.DataFrame:
    """``counters.parquet``, in the order of the repetitions."""
    parts = [pl.DataFrame(schema=tables.COUNTERS)]
    rows: list[tuple[str, str, str, str, str, int]] = []
    for key, repetition in ordered:
        rows.extend(sorted(repetition.counters(SOURCE, _origin(key))))
        repetition.counted.clear()
        if len(rows) >= ROWS_AT_ONCE:
            parts.append(pl.DataFrame(rows, schema=tables.COUNTERS, orient="row"))
            rows = []
    parts.append(pl.DataFrame(rows, schema=tables.COUNTERS, orient="row"))
    return pl.concat(parts)


def _mappings_beside(copy: Path) -> dict[str, perf.Mapping]:
    """The mappings of the repository whose ``results/`` the copy is; those in the copy itself are found on the way."""
    directory = copy.absolute().parent / MAPPINGS_BESIDE
    found = {}
    for file in sorted(directory.glob("*.json")):
        with contextlib.suppress(ParseError, untrusted.UntrustedError):
            found[file.stem] = perf.mapping(parse_object(untrusted.read(file, MOST_BYTES, links=True)))
    return found


def _fold_early(copy: Path, gathered: _Gathered, pool: ProcessPoolExecutor, summary: Summary) -> None:
    """Fold the recordings whose mapping came later."""
    wanted = dict(gathered.early)
    for path, (key, role) in gathered.early.items():
        implementation = _implementation(key, role)
        if implementation not in gathered.mappings:
            reason = f"no perf/mappings/{implementation}.json in the copy or beside it"
            summary.skip(f"perf samples of {implementation}: {reason}", path)
            del wanted[path]
    if not wanted:
        return
    quiet = Summary(SOURCE)  # the first pass told everything
    for entry in entries(copy, quiet):
        if entry.path in wanted:
            _fold(entry, *wanted.pop(entry.path), gathered, pool, summary)
            if not wanted:
                break


def _implementation(key: Key, role: str) -> str:
    return key[1] if role == "server" else key[2]


def _fold(entry: Entry, key: Key, role: str, gathered: _Gathered, pool: ProcessPoolExecutor, summary: Summary) -> None:
    """Begin to fold a recording, once there is room for it and its mapping is known."""
    implementation = _implementation(key, role)
    mapping = gathered.mappings.get(implementation)
    if mapping is None:
        gathered.early[entry.path] = (key, role)
        return
    data = content_of(entry, summary, MOST_RECORDED)
    if data is None:
        return
    _finish(gathered, FOLDED_AT_ONCE - 1, summary)
    job = pool.submit(perf.shares, data, perf.program(implementation, role), mapping)
    gathered.folding.append((key, role, entry.path, job))


def _finish(gathered: _Gathered, left: int, summary: Summary) -> None:
    """Take the results of the oldest recordings until only *left* are being folded."""
    while len(gathered.folding) > left:
        key, role, path, job = gathered.folding.popleft()
        try:
            counted, endpoint, everything = job.result()
        except perf.PerfTextError as error:
            summary.skip(f"{PERF_FILE}: {error}", path)
            continue
        except BrokenExecutor:
            remedy = "free memory, or leave it out of the copy"
            raise CopyError(f"{path}: what sorts its samples was killed; {remedy}") from None
        for category, samples in counted.items():
            gathered.shares.append(
                {
                    "source": SOURCE,
                    "origin": _origin(key),
                    "role": role,
                    "implementation": _implementation(key, role),
                    "category": category,
                    "samples": samples,
                    "endpoint_samples": endpoint,
                    "all_samples": everything,
                }
            )
