"""result.json of the QUIC Interop Runner: interop matrix and measurements.

Both lists are client-major: one entry for every client and, within it, for every server. Versions differ: the tests
are described in ``tests`` by abbreviation, or each entry has its ``name``; a test that was not run has the result null
or no entry; the bare-metal runner has ``details`` with a goodput in Mbit/s for every successful repetition, and names
client and server in every measurement and in ``client_implementations`` and ``server_implementations``.

``results.parquet`` has every entry. ``runs.parquet`` has a row for every measurement: goodput is the mean of the
`repetitions` behind it, where these are told.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from statistics import fmean, stdev
from typing import Any

from quicbed.base import untrusted
from quicbed.importers import names, tables
from quicbed.importers.files import TWICE, content_of, entries
from quicbed.importers.logs import ParseError, parse_object
from quicbed.importers.repetitions import FASTEST_MBPS
from quicbed.importers.summary import Summary
from quicbed.store import runs

SOURCE = "qir"
LAYOUT = "result.json with `results` and `measurements`"

LONGEST_DETAILS = 10_000
STATUSES = {"succeeded": "ok", "failed": "failed", "unsupported": "unsupported"}
KINDS = {"results": "test", "measurements": "measurement"}
# "8123 (± 45) kbps", as the runner prints a mean and a standard deviation
_MEAN = re.compile(r"^\s*+(\d{1,15}(?:\.\d{1,15})?)\s*+\(±\s*+(\d{1,15}(?:\.\d{1,15})?|nan)\)\s*+([kMG]?)bps\s*+$")
_MBIT = {"": 1e-6, "k": 1e-3, "M": 1.0, "G": 1e3}
TEXTS = ("client", "server", "name", "abbr", "result")
BULK = frozenset({"goodput", "crosstraffic"})
"""Measurements that are downloads, also with a number of the variant after the name."""


def read(copy: Path, out: Path, summary: Summary) -> None:
    """Import a result.json, or every one in a folder or archive; see `quicbed.papers.reading.read`."""
    results: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for entry in entries(copy, summary):
        if not entry.name.endswith(".json"):
            summary.skip("no JSON file", entry.path)
            continue
        if entry.again:
            summary.skip(TWICE, entry.path)
            continue
        data = content_of(entry, summary)
        if data is None:
            continue
        try:
            document = parse_object(data)
            clients, servers = _implementations(document)
            found = list(_cells(document, clients, servers, entry.path, summary))
        except ParseError as error:
            summary.skip(str(error), entry.path)
            continue
        results += found
        rows += [_row(cell, document, entry.path, summary) for cell in found if cell["kind"] == "measurement"]
    if not results:
        return
    tables.write_runs(rows, out, summary)
    for result in results:
        result["details"] = None if result["details"] is None else untrusted.shown(result["details"], LONGEST_DETAILS)
    order = ["origin", "kind", "client", "server", "test"]
    tables.write(tables.frame(results, tables.RESULTS, order), out, "results", summary)


def _implementations(document: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of clients and servers, in the order of the matrix."""
    found = []
    for role in ("client", "server"):
        known = document.get(f"{role}s", document.get(f"{role}_implementations"))
        if not isinstance(known, list | dict) or not all(isinstance(name, str) for name in known):
            raise ParseError(f"JSON without `{role}s`: not a result.json of the runner")
        found.append(list(known))
    return found[0], found[1]


def _cells(
    document: Mapping[str, Any], clients: list[str], servers: list[str], path: str, summary: Summary
) -> Iterator[dict[str, Any]]:
    """Every entry of both lists, with the client and server it belongs to."""
    described = document.get("tests")
    titles = {
        abbreviation: test["name"]
        for abbreviation, test in (described.items() if isinstance(described, dict) else ())
        if isinstance(test, dict) and isinstance(test.get("name"), str)
    }
    for key, kind in KINDS.items():
        cells = document.get(key)
        if cells is None and key == "measurements":
            continue  # newer versions of the runner leave them out where there are none
        if not isinstance(cells, list):
            raise ParseError(f"JSON without `{key}`: not a result.json of the runner")
        pairs = itertools.product(clients, servers)  # not a list: two names in a file of 16 MB are not the whole matrix
        if len(cells) != len(clients) * len(servers):
            # also what an unfinished run leaves: the pairs at hand are the first ones
            summary.differ(f"`{key}` has another number of cells than clients times servers", path)
        for (client, server), cell in zip(pairs, cells, strict=False):
            for item in cell if isinstance(cell, list) else []:
                if not isinstance(item, dict):
                    continue
                if not all(isinstance(item.get(name), str | None) for name in TEXTS):
                    summary.skip(f"entry with something else than text for {' or '.join(TEXTS)}", path)
                    continue
                named = item.get("client") or client, item.get("server") or server
                if named != (client, server):
                    summary.differ("a measurement names another pair than its place; the names count", path)
                abbreviation = item.get("abbr")
                yield {
                    "source": SOURCE,
                    "origin": path,
                    "kind": kind,
                    "client": named[0],
                    "server": named[1],
                    "test": item.get("name") or titles.get(str(abbreviation), abbreviation),
                    "abbreviation": abbreviation,
                    "result": item.get("result"),
                    "details": item.get("details"),
                    "filesize": item.get("filesize"),
                }


def _row(cell: Mapping[str, Any], document: Mapping[str, Any], path: str, summary: Summary) -> dict[str, Any]:
    """The row of a measurement."""
    result = cell["result"]
    mean, deviation, repetitions = _goodput(cell["details"])
    status = STATUSES.get(str(result), runs.UNREADABLE)
    reason = None
    if result is None:
        reason = "not run"
    elif status == runs.UNREADABLE:
        reason = f"result {result!r:.60} is none of {', '.join(STATUSES)}"
    elif status == "ok" and mean is None and str(cell["test"]).partition("-")[0] in BULK:
        lacking = "have NaN or Infinity, which is no goodput" if _has_none(cell["details"]) else "have no goodput"
        status, reason = runs.UNREADABLE, f"details {cell['details']!r:.60} {lacking}"
        where = f"{path}: {cell['server']}_{cell['client']}"
        summary.skip(f"succeeded measurement whose details {lacking}", where)
    client, client_flavour = names.library(cell["client"])
    server, server_flavour = names.library(cell["server"])
    size = cell.get("filesize")
    test = str(cell["test"])
    origin = f"{path}!{cell['server']}_{cell['client']}/{test}"
    started = document.get("start_time", document.get("interop_start_time_unix_timestamp"))
    values: dict[str, Any] = {
        "reason": reason,
        "experiment": test,
        "campaign": untrusted.shown(document.get("log_dir") or PurePosixPath(path).parent),
        "scale": "published",
        "label": cell["client"] if cell["client"] == cell["server"] else f"{cell['client']} from {cell['server']}",
        "slug": f"{cell['server']}_{cell['client']}",
        "cell": f"{cell['server']}_{cell['client']} {test}",
        "client_implementation": cell["client"],
        "server_implementation": cell["server"],
        "library": client,
        "flavour": client_flavour,
        "client_library": client,
        "client_flavour": client_flavour,
        "server_library": server,
        "server_flavour": server_flavour,
        "workload": "bulk" if test.partition("-")[0] in BULK else test,
        "workload_bytes": size if type(size) is int and 0 < size < 1 << 40 else None,
        "started_at": _moment(started),
    }
    if status == "ok":
        values |= {"goodput_mbps": mean, "goodput_sd_mbps": deviation, "repetitions": repetitions}
    return tables.run(SOURCE, origin, status, **values)


def _goodput(details: Any) -> tuple[float | None, float | None, int | None]:
    """Mean and standard deviation in Mbit/s and the number of repetitions, as far as they are told."""
    if isinstance(details, list) and details and all(_is_goodput(value) for value in details):
        return fmean(details), stdev(details) if len(details) > 1 else None, len(details)
    if isinstance(details, str) and (found := _MEAN.match(details)):
        unit = _MBIT[found[3]]
        mean = float(found[1]) * unit
        if _is_goodput(mean):
            return mean, None if found[2] == "nan" else float(found[2]) * unit, None
    return None, None, None


def _has_none(details: Any) -> bool:
    """Whether a number among them is none."""
    values = details if isinstance(details, list) else [details]
    return any(type(one) is float and not math.isfinite(one) for one in values)


def _is_goodput(value: Any) -> bool:
    """Whether a value is one in Mbit/s that a link can carry."""
    return type(value) in (int, float) and 0 < value <= FASTEST_MBPS


def _moment(seconds: Any) -> datetime | None:
    """A time in s since the Unix epoch, up to the year 2100."""
    return datetime.fromtimestamp(seconds, UTC) if type(seconds) in (int, float) and 0 <= seconds < 1 << 32 else None
