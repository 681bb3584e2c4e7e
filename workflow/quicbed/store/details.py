"""What lies beside run.json: connections of handshake runs, times of primitives, captured handshakes, gaps and trains
of traced downloads, each as a tidy table, and the records of campaigns (`quicbed.store.provenance`).

`quicbed.store.runs` has one row a run; these tables have one row for every connection, primitive, captured handshake or
kept point of a distribution of the runs that succeeded, and name the run by its origin. The table of floors has one row
for every kept point of what a campaign's bare sender sent.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

import quicbed
from quicbed.base import durable, untrusted
from quicbed.base.models import RecordError
from quicbed.base.untrusted import UntrustedError
from quicbed.plan.arms import ARMS, PRIMITIVES
from quicbed.store import provenance, runs, walk
from quicbed.store.campaign import CAMPAIGN_FILE, FLOOR_FILE, Campaign, Floor
from quicbed.store.paths import DISSECTED, OPENINGS, PACING, RUN_FILE, archives_below, directories
from quicbed.store.provenance import Records
from quicbed.store.record import Pacing, Run, RunsError
from quicbed.store.runs import collected, read_parquet, write_parquet
from quicbed.store.walk import Files
from quicbed.wire.pacing import DISTRIBUTIONS, GAPS, TRAINS

FILES = ("client.jsonl", "server.jsonl", "primitives.jsonl", DISSECTED)
"""Beside these where a run's times are taken from its capture."""
WANTED = frozenset({RUN_FILE, *FILES, OPENINGS, PACING})


_RUN: dict[str, pl.DataType] = dict.fromkeys(
    ["testbed", "experiment", "campaign", "library", "build", "arm", "cell", "origin"], pl.String()
) | {"block": pl.Int64()}

CONNECTIONS: dict[str, pl.DataType] = (
    _RUN
    | {"index": pl.Int64(), "t_client_hello": pl.Int64()}
    | dict.fromkeys(["ttfb_ms", "confirmed_ms", "first_byte_ms", "client_cpu_ms", "server_cpu_ms"], pl.Float64())
    | dict.fromkeys(
        [
            f"{role}_{name}"
            for role in ("client", "server")
            for name in ("handshake_packets_sent", "handshake_bytes_sent", "packets_sent", "packets_lost")
        ],
        pl.Int64(),
    )
    | dict.fromkeys(["hello_retry_request", "retry"], pl.Boolean())
)
"""Columns of the table of connections; times in ms, `t_client_hello` in CLOCK_MONOTONIC ns of the client's host, null
where times are taken from a capture.
"""

PRIMITIVE_TIMES: dict[str, pl.DataType] = (
    _RUN
    | dict.fromkeys(["kind", "name", "operation", "implementation"], pl.String())
    | {"n": pl.Int64(), "median_ns": pl.Float64(), "mean_ns": pl.Float64(), "min_ns": pl.Int64(), "bytes": pl.Int64()}
)
"""Columns of the table of primitives: one row for every library, algorithm, operation and block."""

_LEVELS = ("initial", "handshake", "1rtt", "retry")
_MESSAGES = (
    "client_hello",
    "server_hello",
    "certificate",
    "certificate_verify",
    "signature",
    "public_key",
    "client_key_share",
    "server_key_share",
)

HANDSHAKES: dict[str, pl.DataType] = (
    dict.fromkeys(["testbed", "library", "build", "proof", "origin"], pl.String())
    | {"index": pl.Int64()}
    | dict.fromkeys(
        [
            f"{name}_{role}"
            for role in ("client", "server")
            for name in (
                "packets",
                "datagrams",
                "bytes",
                "ack_only_packets",
                *(f"packets_{level}" for level in _LEVELS),
                *(f"bytes_{level}" for level in _LEVELS),
            )
        ],
        pl.Int64(),
    )
    | dict.fromkeys(
        ["handshake_bytes", "waits", "round_trips_blocked", "limit_hits", "bytes_before_validation", "server_flights"],
        pl.Int64(),
    )
    | dict.fromkeys([f"tls_{name}_bytes" for name in _MESSAGES], pl.Int64())
    | dict.fromkeys(["hello_retry_request", "retry"], pl.Boolean())
)
"""Columns of the table of captured handshakes, see `quicbed.wire.handshake`; `waits` are the round trips beyond the
first.
"""

PACED: dict[str, pl.DataType] = _RUN | dict(DISTRIBUTIONS)
"""Columns of the table of gaps and trains (`quicbed.wire.pacing.distributions`)."""

DEVIATIONS, SENDER_DEVIATIONS = "deviation_ns", "sender_deviation_ns"
"""Quantities of floors, beside those of `DISTRIBUTIONS`: captured gap minus intended gap, and the same of the times at
which the sender handed over its packets."""

FLOORS: dict[str, pl.DataType] = (
    dict.fromkeys(["testbed", "experiment", "campaign", "origin", "qdisc", "method", "schedule"], pl.String())
    | {"intended_train_packets": pl.Int64(), "intended_gap_ns": pl.Int64()}
    | dict(DISTRIBUTIONS)
)
"""Columns of the table of floors (`quicbed.store.campaign.Floor`)."""

SCHEMAS: dict[str, dict[str, pl.DataType]] = {
    "connections": CONNECTIONS,
    "primitives": PRIMITIVE_TIMES,
    "handshakes": HANDSHAKES,
    "pacing": PACED,
    "floors": FLOORS,
    "campaigns": provenance.RECORDS,
    "unread": {"problem": pl.String()},
}
"""Columns of the files that `write_tables` makes, by their names."""

_ORDERS = {
    "connections": ["origin", "index"],
    "primitives": ["origin", "kind", "name", "operation"],
    "handshakes": ["origin", "index"],
    "pacing": ["origin", "quantity", "value"],
    "floors": ["origin", "qdisc", "method", "schedule", "quantity", "value"],
}


@dataclass(frozen=True)
class Details:
    """The tables, the records of campaigns by origin, and what could not be read beside runs."""

    connections: pl.DataFrame
    primitives: pl.DataFrame
    handshakes: pl.DataFrame
    pacing: pl.DataFrame
    floors: pl.DataFrame
    campaigns: list[Records]
    problems: list[str]


def read(root: Path) -> Details:
    """Read what lies beside the runs below *root* (``raw``, a testbed's directory in it, or ``raw/reference``).

    Where the workflow has collected the table of these runs (`quicbed.store.runs.collected`), the tables beside it.
    """
    if (table := collected(root)) is not None:
        return _made(table)
    found = Collected()
    for place in walk.walk(root, WANTED, records=True):
        found.add(place, runs.read(place))
    return found.details()


class Collected:
    """What lies beside runs, as it is read place by place."""

    def __init__(self) -> None:
        self._frames: dict[str, list[pl.DataFrame]] = {name: [] for name in _ORDERS}
        self._campaigns = provenance.Found()
        self._problems: list[str] = []

    def add(self, place: walk.Place, told: Iterable[tuple[str, Run | RunsError]]) -> None:
        """What lies beside the runs of a place, which are *told* (`quicbed.store.runs.read`)."""
        self._campaigns.add(place)
        if place.is_archive and place.damage is not None:
            self._problems.append(f"{place.origin}: damaged archive: {place.damage}")
        for path in place.records:
            if path.name == FLOOR_FILE:
                try:
                    self._frames["floors"].append(_frame(_floor(place, path), FLOORS))
                except (RecordError, UntrustedError) as error:
                    self._problems.append(f"{place.prefix}{path}: cannot be read: {error}")
        for origin, run in told:
            if origin not in place.runs:
                continue
            try:
                if isinstance(run, RunsError):
                    raise run
                name, rows = _beside(origin, run, place.runs[origin])
                if name is not None:
                    self._frames[name].append(_frame(rows, SCHEMAS[name]))
            except KeyError as error:
                self._problems.append(f"{origin}: what lies beside {RUN_FILE} cannot be read: {error} is missing")
            except (ValueError, TypeError, AttributeError, IndexError, ArithmeticError, PolarsError) as error:
                text = untrusted.shown(str(error).partition("\n")[0])
                self._problems.append(
                    f"{origin}: what lies beside {RUN_FILE} cannot be read: {type(error).__name__}: {text}"
                )

    def details(self) -> Details:
        """The tables of all places so far."""
        frames = {
            name: pl.concat([_frame([], SCHEMAS[name]), *found]).sort(_ORDERS[name])
            for name, found in self._frames.items()
        }
        return Details(**frames, campaigns=self._campaigns.sorted(), problems=self._problems)


def _beside(origin: str, run: Run, files: Files) -> tuple[str | None, list[dict[str, Any]]]:
    """Which table what lies beside a run belongs to, and its rows there; None for a run that has nothing of these."""
    kind = run.workload.kind
    if run.status != "ok":
        return None, []
    if kind == PRIMITIVES:
        return "primitives", _primitives(origin, run, files)
    if kind == "handshake" and run.cell.arm == "proof":
        return "handshakes", _handshakes(origin, run, files)
    if run.workload.rate_per_s is not None and "client.jsonl" not in files:
        return None, []  # archives leave them out
    if kind == "handshake" and run.block is not None:
        return "connections", _connections(origin, run, files)
    # where there was no trace, or none that counts, the file is not the driver's
    if PACING in files and run.metrics.traced_packets is not None and run.cell.arm in ARMS and run.block is not None:
        return "pacing", _pacing(origin, run, files)
    return None, []


def _frame(rows: list[dict[str, Any]], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """The rows of one run as a table; one by one, so that a value of a wrong type spoils no other run."""
    return pl.DataFrame(rows, schema=schema, orient="row")


class _Part:
    """What some places have for all tables."""

    def __init__(self, places: Iterable[walk.Place]) -> None:
        self.rows: list[dict[str, Any]] = []
        beside = Collected()
        for place in places:
            told = list(runs.read(place))
            self.rows += [runs.values_of(origin, run) for origin, run in told]
            beside.add(place, told)
        self.beside = beside.details()


def _of_archive(archive: tuple[Path, str]) -> _Part:
    return _Part([walk.packed(*archive, WANTED, records=True)])


def everything(raw: Path, jobs: int = 1, made: Path | None = None) -> tuple[pl.DataFrame, Details]:
    """The table of the runs below *raw* (`quicbed.store.runs.table`) and what `read` returns, in one go.

    Every archive is read once, *jobs* at a time; none where *made* is the table that `write_tables` of this version has
    made of the same archives.
    """
    if collected(raw) is not None:
        return runs.table(raw), read(raw)
    if made is not None and (told := read_of(raw)) is not None:
        with suppress(OSError):
            if made.with_name(READ).read_text(encoding="utf-8") == told:
                return read_parquet(made, runs.SCHEMA), _made(made)
    return _everything(raw, jobs)


READ = "read.json"
"""File beside the tables that tells what they were made of."""


def read_of(raw: Path) -> str | None:
    """What the runs below *raw* and what reads them are told apart by, as text; None where nothing lies there.

    Of archives the checksums; of files in directories, which nobody changes, names, sizes and times.
    """
    archives = archives_below(raw)
    files = []
    for directory, names in directories(raw):
        for file in sorted({directory / name for name in names}.difference(archives)) if directory != raw else ():
            status = file.lstat()
            files.append(f"{file.relative_to(raw)} {status.st_size} {status.st_mtime_ns}\n")
    if not archives and not files:
        return None
    # the columns of a table are code too, as is every check
    code = hashlib.sha256()
    for file in sorted(Path(quicbed.__file__).parent.rglob("*.py")):
        code.update(file.read_bytes())
    told = {path.relative_to(raw).as_posix(): _sha256(path) for path in archives}
    listed = "".join(files).encode(errors="surrogateescape")
    others = {"files": hashlib.sha256(listed).hexdigest()} if files else {}
    return json.dumps({"archives": told, "code": code.hexdigest(), **others}, indent=1, sort_keys=True) + "\n"


def _sha256(file: Path) -> str:
    with untrusted.opened(file, untrusted.MOST_PACKED, links=True) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _made(table: Path) -> Details:
    """The tables beside that of runs."""
    frames = {name: read_parquet(table.with_name(f"{name}.parquet"), schema) for name, schema in SCHEMAS.items()}
    problems = frames.pop("unread")["problem"].to_list()
    campaigns = provenance.of_frame(frames.pop("campaigns"))
    return Details(**frames, campaigns=campaigns, problems=problems)


def _everything(raw: Path, jobs: int) -> tuple[pl.DataFrame, Details]:
    archives: list[tuple[Path, str]] = []
    parts = [_Part(walk.walk(raw, WANTED, records=True, archives=archives))]
    if (workers := min(jobs, len(archives))) > 1:
        archives.sort(key=lambda one: (-one[0].lstat().st_size, one[1]))  # the large ones first
        # not forked: polars has threads
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            parts += pool.map(_of_archive, archives)
    else:
        parts += map(_of_archive, archives)
    campaigns = sorted((one for part in parts for one in part.beside.campaigns), key=lambda one: one.origin)
    table = runs.tabled([values for part in parts for values in part.rows], campaigns)
    frames = {name: pl.concat([getattr(part.beside, name) for part in parts]).sort(_ORDERS[name]) for name in _ORDERS}
    problems = sorted(problem for part in parts for problem in part.beside.problems)
    return table, Details(**frames, campaigns=campaigns, problems=problems)


def write_tables(raw: Path, out: Path, jobs: int = 1) -> pl.DataFrame:
    """Write the table of the runs below *raw* to the Parquet file *out*, and these tables beside it; returns the first.

    It reads as `everything`, whatever was collected before.
    """
    told = read_of(raw)
    out.with_name(READ).unlink(missing_ok=True)
    table, beside = _everything(raw, jobs)
    write_parquet(table, out)
    frames = {name: getattr(beside, name) for name in _ORDERS}
    frames["campaigns"] = provenance.frame(beside.campaigns)
    frames["unread"] = pl.DataFrame({"problem": beside.problems}, schema=SCHEMAS["unread"])
    for name, frame in frames.items():
        write_parquet(frame, out.with_name(f"{name}.parquet"))
    if told is not None:
        durable.write_text(out.with_name(READ), told)
    return table


def _file(files: Files, name: str) -> bytes:
    content = files[name]
    if isinstance(content, UntrustedError):
        raise ValueError(f"{name} {content}")
    return content


def _json(files: Files, name: str) -> Any:
    try:
        return untrusted.parse(_file(files, name))
    except UntrustedError as error:
        raise ValueError(f"{name}: {error}") from None


def _place(origin: str, run: Run) -> dict[str, Any]:
    return {
        "testbed": run.testbed.name,
        "experiment": run.experiment,
        "campaign": run.campaign,
        "library": run.client.library,
        "build": run.client.build,
        "arm": run.cell.arm,
        "cell": run.cell.id,
        "block": run.block,
        "origin": origin,
    }


def _events(name: str, files: Files, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in a log that was written to its end."""
    events = [untrusted.parse(line) for line in _file(files, name).splitlines()]
    if not events or events[-1]["event"] != "end":
        raise ValueError(f"{name} is truncated: its last event is not `end`")
    return [event for event in events if event["event"] == kind]


def _some(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The events; a ValueError if there are none, which a run that succeeded cannot have."""
    if not events:
        raise ValueError(f"no {kind} in the events")
    return events


def _connections(origin: str, run: Run, files: Files) -> list[dict[str, Any]]:
    clients = _some(_events("client.jsonl", files, "connection"), "connection")
    servers = _events("server.jsonl", files, "connection")
    # an external server reports none
    if servers and len(clients) != len(servers):
        raise ValueError(f"{len(clients)} connections of the client, {len(servers)} of the server")
    observed = _openings(files, len(clients))
    place = _place(origin, run)
    rows = []
    for position, (client, opening) in enumerate(zip(clients, observed, strict=True)):
        begin = client["t_client_hello"] if opening is None else None
        row = place | {
            "index": client["index"],
            "t_client_hello": begin,
            "ttfb_ms": _ms(begin, client["t_handshake_complete"]),
            "confirmed_ms": _ms(begin, client["t_handshake_confirmed"]),
            "first_byte_ms": _ms(begin, client["t_first_byte"]),
            "hello_retry_request": client["hello_retry_request"],
            "retry": client["retry"],
        }
        if opening is not None:
            row["ttfb_ms"] = _ms(opening["t_client_hello"], opening["t_client_one_rtt"])
        for role, side in (("client", client), *([("server", servers[position])] if servers else [])):
            row[f"{role}_cpu_ms"] = _cpu_ms(side)
            for name in ("handshake_packets_sent", "handshake_bytes_sent", "packets_sent", "packets_lost"):
                row[f"{role}_{name}"] = side[name]
        rows.append(row)
    return rows


def _floor(place: walk.Place, path: PurePosixPath) -> list[dict[str, Any]]:
    """The rows of a campaign's floor.json. Raises RecordError and UntrustedError."""
    contents = []
    for file in (path.with_name(CAMPAIGN_FILE), path):
        content = place.records.get(file, UntrustedError(f"{file.name} is missing"))
        if isinstance(content, UntrustedError):
            raise content
        contents.append(content)
    campaign, floor = Campaign.parse(contents[0]), Floor.parse(contents[1])
    named = {"testbed": campaign.testbed, "experiment": campaign.experiment, "campaign": campaign.id}
    rows = []
    for one in floor.series:
        told = named | {
            "origin": f"{place.prefix}{path.parent}",
            "qdisc": one.qdisc,
            "method": one.method,
            "schedule": one.schedule,
            "intended_train_packets": one.train_packets,
            "intended_gap_ns": one.gap_ns,
        }
        counts = [
            *((DEVIATIONS, value, count) for value, count in sorted(Counter(one.deviation_ns).items())),
            *((SENDER_DEVIATIONS, value, count) for value, count in sorted(Counter(one.sender_deviation_ns).items())),
            *((GAPS, *pair) for pair in zip(one.captured_gap_ns, one.gaps, strict=True)),
            *((TRAINS, *pair) for pair in zip(one.captured_train_packets, one.packets, strict=True)),
        ]
        rows += [told | {"quantity": quantity, "value": value, "count": count} for quantity, value, count in counts]
    return rows


def _openings(files: Files, connections: int) -> list[dict[str, Any] | None]:
    """What the capture of a run shows of every connection, None where the client told its times itself."""
    if OPENINGS not in files:
        return [None] * connections
    found: list[dict[str, Any] | None] = _json(files, OPENINGS)
    return found


def _ms(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else (end - begin) / 1e6


def _cpu_ms(connection: Mapping[str, Any]) -> float | None:
    user, system = connection["cpu_user_ns"], connection["cpu_system_ns"]
    return None if user is None or system is None else (user + system) / 1e6


def _primitives(origin: str, run: Run, files: Files) -> list[dict[str, Any]]:
    place = _place(origin, run)
    return [
        place
        | {name: event[name] for name in ("kind", "name", "operation", "implementation", "bytes")}
        | {
            "n": len(event["samples_ns"]),
            "median_ns": statistics.median(event["samples_ns"]),
            "mean_ns": statistics.fmean(event["samples_ns"]),
            "min_ns": min(event["samples_ns"]),
        }
        for event in _some(_events("primitives.jsonl", files, "primitive"), "primitive")
    ]


def _handshakes(origin: str, run: Run, files: Files) -> list[dict[str, Any]]:
    rows = []
    for one in _json(files, DISSECTED):
        row: dict[str, Any] = {
            "testbed": run.testbed.name,
            "library": run.client.library,
            "build": run.client.build,
            "proof": run.cell.id,
            "origin": origin,
            "index": one["index"],
            "handshake_bytes": one["client"]["bytes"] + one["server"]["bytes"],
            "server_flights": one["server_flights"],
            "hello_retry_request": one["hello_retry_request"],
            "retry": one["retry"],
        }
        for role in ("client", "server"):
            sent = one[role]
            row |= {f"{name}_{role}": sent[name] for name in ("packets", "datagrams", "bytes", "ack_only_packets")}
            for level in _LEVELS:
                counts = sent["levels"].get(level, {"packets": 0, "bytes": 0})
                row |= {f"{name}_{level}_{role}": counts[name] for name in ("packets", "bytes")}
        if (limit := one["amplification"]) is not None:
            row |= {name: limit[name] for name in ("round_trips_blocked", "limit_hits", "bytes_before_validation")}
        # Without a round-trip time acknowledgements overtake the flight that they would have to wait for.
        row["waits"] = (
            max((one["server_flights"] or 1) - 1, 0)
            if run.link.rtt_ms
            else row.get("round_trips_blocked", 0) + one["retry"] + one["hello_retry_request"]
        )
        # captures that were read before public keys were looked at do not tell theirs
        row |= {f"tls_{name}_bytes": ({"public_key": None} | one["messages"])[name] for name in _MESSAGES}
        rows.append(row)
    return rows


def _pacing(origin: str, run: Run, files: Files) -> list[dict[str, Any]]:
    kept, place = Pacing.parse(_file(files, PACING)), _place(origin, run)
    pairs = ((GAPS, kept.gap_ns, kept.gaps), (TRAINS, kept.train_packets, kept.packets))
    return [
        place | {"quantity": quantity, "value": value, "count": count}
        for quantity, values, counts in pairs
        for value, count in zip(values, counts, strict=True)
    ]
