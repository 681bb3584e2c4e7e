"""What runs were measured on and made with, as records beside them tell: hosts, sessions, builds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from quicbed.base.models import RecordError
from quicbed.base.revision import DIRTY
from quicbed.config.model import Project
from quicbed.figures.sheets import Sheet
from quicbed.plan.built import BUILD_FILE, Build
from quicbed.plan.host import FACTS
from quicbed.store import provenance, runs


def hosts(table: pl.DataFrame) -> Sheet:
    """Every host that measured runs, and what it measured; runs of all arms are counted, as the link to them shows."""
    measured = table.filter(pl.col("host").is_not_null()).sort("experiment")
    found = measured.group_by("host", *FACTS).agg(
        pl.col("testbed").unique().sort().str.join(", "),
        pl.len().alias("runs"),
        pl.col("experiment").unique(maintain_order=True).str.join(", "),
    )
    headers = ["host", "machine", "processor", "microcode", "kernel", "memory", "testbed", "runs", "experiments"]
    # the processor is described with what these two tell
    rows = found.drop("processor", "extensions").sort("host").fill_null("unknown").rows()
    behind = {(number, 7): f"host={quote(str(row[0]))}" for number, row in enumerate(rows)}
    return Sheet(headers, rows, frozenset({7}), behind=behind)


def measured_by(table: pl.DataFrame, records: Sequence[provenance.Records]) -> str | None:
    """The host that measured most runs, in a line."""
    counts = table.drop_nulls("host")["host"].value_counts().sort("count", "host", descending=[True, False])
    if counts.is_empty():
        return None
    host = counts["host"][0]
    known = {session.host.id: session.facts for record in records for session in record.sessions.values()}
    first = table.filter(pl.col("host") == host).row(0, named=True)
    told = known.get(host, {})
    virtual = told.get("virtual_machine")
    kind = "a virtual machine" if virtual is True else "a physical machine" if virtual is False else "a machine"
    processors = told.get("cpus")
    parts = [
        f"{processors} processors" if isinstance(processors, int) else None,
        *(first[name] for name in ("cpu_model", "memory")),
        f"Linux {first['kernel']}" if first["kernel"] else None,
        f"testbed {first['testbed']}",
    ]
    others = f", {len(counts) - 1} more hosts measured the rest" if len(counts) > 1 else ""
    return f"{kind} ({', '.join(filter(None, parts))}){others}"


def left_out(project: Project | None, table: pl.DataFrame) -> Sheet:
    """Campaigns that studies leave out, with the reason, and how many runs of them are here."""
    headers = ["study", "experiment", "campaign", "reason", "runs here"]
    rows: list[list[Any]] = []
    behind = {}
    for (experiment, campaign), (study, reason) in project.left_out.items() if project else ():
        own = table.filter((pl.col("experiment") == experiment) & (pl.col("campaign") == campaign))
        behind[len(rows), 4] = runs.selection(campaign)
        rows.append([study, experiment, campaign, reason, len(own)])
    return Sheet(headers, rows, frozenset({4}), behind=behind)


def facts(records: Sequence[provenance.Records]) -> list[dict[str, Any]]:
    """Facts about the hosts that sessions recorded, once for each host."""
    seen: dict[str, dict[str, Any]] = {}
    for record in records:
        for session in record.sessions.values():
            if session.facts:
                seen[session.host.id] = session.facts
    return [{"id": key, "facts": _flat(seen[key])} for key in sorted(seen)]


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as (dotted key, text), sorted."""
    pairs: list[tuple[str, str]] = []
    for key, item in sorted(value.items()):
        if isinstance(item, Mapping):
            pairs += _flat(item, f"{prefix}{key}.")
        elif isinstance(item, list):
            pairs.append((f"{prefix}{key}", ", ".join(map(str, item))))
        else:
            pairs.append((f"{prefix}{key}", str(item)))
    return pairs


def sessions(records: Sequence[provenance.Records]) -> list[dict[str, Any]]:
    """Every session, with the configuration it measured."""
    return [
        {
            "origin": record.origin,
            "name": name,
            "started_at": session.started_at,
            "revision": session.revision,
            "changed": (session.revision or "").endswith(DIRTY),
            "config": json.dumps(session.config, indent=1, sort_keys=True),
            "experiment": json.dumps(session.experiment, indent=1, sort_keys=True),
        }
        for record in records
        for name, session in sorted(record.sessions.items())
    ]


def builds(records: Sequence[provenance.Records], directory: Path | None) -> list[dict[str, Any]]:
    """Builds that are recorded beside runs, and those in *directory*."""
    found: dict[str, Build] = {}
    for file in sorted(directory.glob(f"*/{BUILD_FILE}")) if directory else []:
        with contextlib.suppress(RecordError):
            found[file.parent.name] = Build.read(file)
    for record in records:
        found |= record.builds
    return [
        {
            "id": key,
            "library": build.library,
            "flavour": build.flavour,
            "version": build.version,
            "crates": build.crates,
            "patches": build.patches,
            "rest": json.dumps(
                build.model_dump(mode="json", exclude_unset=True, exclude={"crates", "patches"}),
                indent=1,
                sort_keys=True,
            ),
        }
        for key, build in sorted(found.items())
    ]
