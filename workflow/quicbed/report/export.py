"""Our runs as a result.json of the QUIC Interop Runner, which the code of its website shows.

What that code asks for (``web/script.js`` of the runner): `servers` and `clients`, lists of names; `results` and
`measurements`, one entry for every client and, within it, every server; in each a list of objects with `abbr`, `name`,
`result` (succeeded, failed, unsupported) and, for a measurement, `details`: a text whose first word is a number, as
``8123 (± 45) kbps``; `tests` by abbreviation with `name` and `desc`; start and end in s since the Unix epoch;
`log_dir`, `quic_draft` and `quic_version`. Abbreviations become names of CSS classes: letters and digits only.

A measurement succeeded if every counted run did, as with the runner. A combination that was not measured has no entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.base import durable
from quicbed.importers.files import CopyError
from quicbed.store import runs

HANDSHAKE, GOODPUT = "handshake", "goodput"
KBIT = 1000
_WALL = pl.duration(microseconds=(pl.col("wall_s").fill_null(0) * 1e6).cast(pl.Int64))


def write(table: Path, out: Path, experiment: str) -> dict[str, Any]:
    """Write the newest campaign of an experiment; returns the document. A `CopyError` if there is nothing to write."""
    if not table.is_file():
        remedy = "`make all` writes it; --table artifacts/reference/tables/runs.parquet is what `make figures` writes"
        raise CopyError(f"{table}: no such file; {remedy}")
    try:
        frame = pl.read_parquet(table)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise CopyError(f"{table}: not a table of runs: {error}; write it with `quicbed tables`") from None
    missing = set(runs.SCHEMA) - set(frame.columns)
    if missing:
        raise CopyError(f"{table}: not a table of runs: no column {min(missing)}; write it with `quicbed tables`")
    document = result(frame, experiment)
    out.parent.mkdir(parents=True, exist_ok=True)
    durable.write_json(out, document)
    return document


def result(frame: pl.DataFrame, experiment: str) -> dict[str, Any]:
    """The newest campaign of an experiment as the document."""
    chosen = runs.select_campaign(frame, experiment)
    # without the cells that the newest plan no longer has: another build, a variant removed
    campaign = chosen.filter((pl.col("arm") == "main") & pl.col("planned").fill_null(True))
    if campaign.is_empty():
        known = sorted(frame["experiment"].drop_nulls().unique().to_list())
        raise CopyError(f"no runs of experiment `{experiment}`; the table has {', '.join(known) or 'none'}")
    labels = campaign["label"].unique(maintain_order=True).sort().to_list()
    workload = HANDSHAKE if HANDSHAKE in campaign["workload"].to_list() else GOODPUT
    tests = _tests(workload, labels)
    clients = sorted(campaign["client_library"].unique())
    servers = sorted(campaign["server_library"].unique())
    document: dict[str, Any] = {
        "start_time": _epoch(campaign["started_at"].min()),
        "end_time": _epoch(campaign.select(pl.col("started_at") + _WALL).to_series().max()),
        "log_dir": f"{experiment}-{campaign['campaign'][0]}",
        "servers": servers,
        "clients": clients,
        "tests": {abbreviation: described for abbreviation, _, described in tests},
        "quic_draft": 34,
        "quic_version": "0x1",
        "results": [],
        "measurements": [],
    }
    cells = dict(campaign.group_by("client_library", "server_library", "label"))
    for client in clients:
        for server in servers:
            found = [
                entry
                for abbreviation, label, described in tests
                if (group := cells.get((client, server, label))) is not None
                and (entry := _entry(group, abbreviation, described["name"], workload)) is not None
            ]
            document["results"].append(found if workload == HANDSHAKE else [])
            document["measurements"].append(found if workload == GOODPUT else [])
    return document


def _tests(workload: str, labels: Sequence[str]) -> list[tuple[str, str, dict[str, str]]]:
    """Abbreviation, label and description of the test that stands for each variant."""
    letter = workload[0].upper()
    single = len(labels) == 1
    what = "Connections complete their handshake" if workload == HANDSHAKE else "Goodput of a download"
    return [
        (
            letter if single else f"{letter}{number}",
            label,
            {"name": workload if single else f"{workload}-{number}", "desc": f"{what}, {label}."},
        )
        for number, label in enumerate(labels, start=1)
    ]


def _entry(group: pl.DataFrame, abbreviation: str, name: str, workload: str) -> dict[str, Any] | None:
    """A cell's entry; None if nothing was measured."""
    statuses = set(group["status"].to_list())
    entry: dict[str, Any] = {"abbr": abbreviation, "name": name}
    if statuses == {"unsupported"}:
        return entry | {"result": "unsupported"} | ({"details": ""} if workload == GOODPUT else {})
    counted = comparison.counted(group)
    # a block whose run failed and was measured again has a run that counts
    failed = group.filter(pl.col("status") == "failed", ~pl.col("block").is_in(counted["block"].to_list()))
    outcome = "failed" if failed.height else "succeeded" if counted.height else None
    if outcome is None:
        return None
    entry["result"] = outcome
    if workload == GOODPUT:
        values = (counted["goodput_mbps"] * KBIT).to_list() if outcome == "succeeded" else []
        deviation = stdev(values) if len(values) > 1 else 0
        entry["details"] = f"{fmean(values):.0f} (± {deviation:.0f}) kbps" if values else ""
    return entry


def _epoch(moment: Any) -> float | None:
    return None if moment is None else moment.timestamp()
