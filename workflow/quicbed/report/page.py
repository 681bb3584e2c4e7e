"""The report: one page on what was measured, one on published claims, one that lists every run.

``report/index.html`` shows the figures, the numbers behind them, what is unsupported, failed or
contaminated and why, and what everything was made with. ``report/claims.html`` has the verdicts on
published claims. ``report/runs.html`` is the trace from a number to its runs: every run with its
cell, builds, proof and directory. ``report/results/`` is what Snakemake's own report shows
(`quicbed.report.workflow_report`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import polars as pl

from quicbed.analysis import comparison, dissect
from quicbed.base import durable, untrusted
from quicbed.claims import causes, claims_report, papers, published_claims, verdicts
from quicbed.config.model import Project
from quicbed.figures.sheets import Sheet, latency_summary, overview, summary
from quicbed.plan import built
from quicbed.plan.arms import ARMS, CAPTURED
from quicbed.plan.built import BUILD_FILE, Build, BuiltError
from quicbed.plan.host import FACTS, host_of
from quicbed.report import workflow_report
from quicbed.store import details, provenance, runs

READS = ("workflow/quicbed/report/templates/*.j2",)

TEMPLATES = Path(__file__).parent / "templates"


def write(
    artifacts: Path,
    raw: Path,
    builds: Path | None = None,
    project: Project | None = None,
    published: Mapping[str, Path] | None = None,
) -> Path:
    """Write the report on the runs below *raw* into *artifacts*/report; returns its first page.

    Figures, tables and notebooks already in *artifacts* are linked. *builds* is a directory of
    builds; the ``build.json`` files in it are added to those recorded beside the runs. The claims
    are those of *project*; their verdicts are written as a table too. *published* are directories
    of imported tables by format, by which they are judged as well.
    """
    table = runs.table(raw)
    beside = details.read(raw)
    directory = artifacts / "report"
    directory.mkdir(parents=True, exist_ok=True)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    records = provenance.campaigns(raw)
    # what cannot be measured cannot be captured either, and capturing takes processor time
    measured = table.filter(pl.col("arm") != CAPTURED)
    experiments = [
        _experiment(table, name) for name in table.filter(pl.col("arm").is_in(ARMS))["experiment"].unique().sort()
    ]
    claims_page = _claims(project, artifacts, raw, table, beside, published or {}) if project else None
    figures = _figures(artifacts, table)
    page = environment.get_template("report.html.j2").render(
        claims=claims_page,
        overview=overview(table),
        experiments=[experiment for experiment in experiments if experiment],
        figures=figures,
        downloads=_links(artifacts, directory, "tables", (".html", ".tex", ".csv", ".parquet")),
        notebooks=_links(artifacts, directory, "notebooks", (".html",)),
        problems=_problems(beside, table, records),
        unsupported=_incidents(measured, pl.col("status") == "unsupported"),
        failed=_incidents(table, pl.col("status") == "failed"),
        contaminated=_incidents(measured, pl.col("contaminated") & (pl.col("status") == "ok"), "contamination"),
        captures=_captures(artifacts / "tables"),
        hosts=_hosts(table),
        facts=_facts(records),
        sessions=_sessions(records),
        builds=_builds(records, builds),
        total=len(table),
        reference=raw.name == "reference",
    )
    if claims_page:
        durable.write_text(directory / "claims.html", environment.get_template("claims.html.j2").render(**claims_page))
    workflow_report.write(artifacts, figures)
    durable.write_text(directory / "runs.html", environment.get_template("runs.html.j2").render(**_trace(table)))
    durable.write_text(directory / "index.html", page)
    return directory / "index.html"


def _claims(
    project: Project,
    artifacts: Path,
    raw: Path,
    table: pl.DataFrame,
    beside: details.Details,
    published: Mapping[str, Path],
) -> dict[str, Any]:
    """Verdicts on all claims, for their page; also writes them as a table."""
    known = papers.stated(project)
    found = verdicts.tables(raw, project.root, table, beside)
    results = verdicts.evaluate(project, known, found)
    why = causes.find(project, known, results, found)
    (artifacts / "tables").mkdir(parents=True, exist_ok=True)
    claims_report.write_table(results, artifacts / "tables", found=why)
    theirs = published_claims.evaluate(project, known, published)
    for file in (artifacts / "tables").glob("claims-published.*"):
        file.unlink()  # of a copy that may not be told any more
    if theirs:
        claims_report.write_table(theirs, artifacts / "tables", "claims-published")
    return claims_report.page(results, project, artifacts, artifacts / "report", claims_report.by_claim(theirs), why)


def _problems(found: details.Details, table: pl.DataFrame, records: Sequence[provenance.Campaign]) -> list[str]:
    """What could not be read: a line for every run, for what lies beside one that could be read, and for records."""
    unread = runs.problems(table)
    named = {line.partition(": ")[0] for line in unread}
    beside = [line for line in found.problems if line.partition(": ")[0] not in named]
    return unread + beside + [line for one in records for line in one.problems]


def _experiment(table: pl.DataFrame, name: str) -> dict[str, Any] | None:
    campaign = runs.select_campaign(table, name)
    if campaign.is_empty():
        return None
    first = campaign.row(0, named=True)
    if "handshake" in set(campaign["workload"].drop_nulls()):
        sheet = latency_summary(comparison.figure_table(campaign, "ttfb_ms"))
    else:
        sheet = summary(comparison.figure_table(campaign))
    others = table.filter((pl.col("experiment") == name) & pl.col("arm").is_in(ARMS))
    return {
        "name": name,
        "campaign": first["campaign"],
        "testbed": first["testbed"],
        "host": first["host"],
        "scale": first["scale"],
        "sheet": sheet,
        "superseded": len(comparison.superseded(campaign)),
        "others": sorted(set(others["campaign"]) - {first["campaign"]}),
        "seeds": sorted(set(campaign["seed"].drop_nulls())),
    }


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _manifest(file: Path) -> dict[str, Any] | None:
    """What `quicbed.figures.goodput` left beside a figure; None for something else."""
    wanted = {"figure": str, "source": str, "campaign": str, "scale": str, "files": dict, "runs": list}
    try:
        manifest = untrusted.parse(untrusted.read(file))
    except untrusted.UntrustedError:
        return None
    is_whole = isinstance(manifest, dict) and all(isinstance(manifest.get(key), kind) for key, kind in wanted.items())
    return manifest if is_whole else None


def _figures(artifacts: Path, table: pl.DataFrame) -> list[dict[str, Any]]:
    """Figures in *artifacts* that were drawn from the runs of this report, or from published ones alone."""
    found = []
    known = set(table["campaign"].drop_nulls())
    for file in sorted((artifacts / "figures").glob("*.json")):
        manifest = _manifest(file)
        if manifest is None:
            continue
        if known.isdisjoint(manifest["campaign"].split(", ")) and manifest["scale"] != "published":
            continue
        picture = file.with_suffix(".png")
        found.append(
            manifest
            | {
                "picture": base64.b64encode(picture.read_bytes()).decode()
                if picture.name in manifest["files"] and picture.is_file()
                else None,
                "links": [f"../figures/{name}" for name in sorted(manifest["files"])],
                "manifest": f"../figures/{file.name}",
                "count": len(manifest["runs"]),
            }
        )
    return sorted(found, key=lambda one: one["source"])


def _links(artifacts: Path, directory: Path, folder: str, suffixes: tuple[str, ...]) -> list[dict[str, Any]]:
    files = sorted(p for p in (artifacts / folder).glob("*") if p.suffix in suffixes)
    return [{"name": p.name, "href": os.path.relpath(p, directory), "kib": -(-p.stat().st_size // 1024)} for p in files]


def _incidents(table: pl.DataFrame, condition: pl.Expr, reason: str = "reason") -> Sheet:
    bad = table.filter(condition).select(
        *("experiment", "campaign", "client_library", "server_library", "label", "arm", "block", "attempt"),
        *(reason, "origin"),
    )
    headers = ["experiment", "campaign", "client", "server", "cell", "arm", "block", "attempt", "reason", "run"]
    return Sheet(headers, bad.rows(), frozenset({6, 7}))


def _captures(tables: Path) -> dict[str, Any] | None:
    """What came of dissecting captures again, None where that was not done."""
    if not (file := tables / dissect.FILE).is_file():
        return None
    try:
        table = pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError):
        return None  # `make figures` writes it again
    return {"text": dissect.text(table), "problems": dissect.problems(table), "table": f"../tables/{dissect.FILE}"}


def _hosts(table: pl.DataFrame) -> Sheet:
    """Every host that measured runs, and what it measured."""
    measured = table.filter(pl.col("arm").is_in(ARMS)).sort("experiment")
    found = measured.group_by("host", *FACTS).agg(
        pl.col("testbed").unique().sort().str.join(", "),
        pl.len().alias("runs"),
        pl.col("experiment").unique(maintain_order=True).str.join(", "),
    )
    headers = ["host", "machine", "processor", "microcode", "kernel", "memory", "testbed", "runs", "experiments"]
    rows = found.sort("host").fill_null("unknown").rows()
    return Sheet(headers, rows, frozenset({7}))


def _facts(records: list[provenance.Campaign]) -> list[dict[str, Any]]:
    """Facts about the hosts that sessions recorded, once for each host."""
    seen: dict[str, dict[str, Any]] = {}
    for record in records:
        for session in record.sessions.values():
            facts = session.get("facts")
            if isinstance(facts, dict):
                seen[host_of(facts).id] = facts
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


def _sessions(records: list[provenance.Campaign]) -> list[dict[str, Any]]:
    return [
        {
            "origin": record.origin,
            "name": name,
            "started_at": session.get("started_at"),
            "revision": session.get("revision"),
            "config": json.dumps(session.get("config"), indent=1, sort_keys=True),
            "experiment": json.dumps(session.get("experiment"), indent=1, sort_keys=True),
        }
        for record in records
        for name, session in sorted(record.sessions.items())
    ]


def _builds(records: list[provenance.Campaign], directory: Path | None) -> list[dict[str, Any]]:
    found: dict[str, Build] = {}
    for file in sorted(directory.glob(f"*/{BUILD_FILE}")) if directory else []:
        with contextlib.suppress(BuiltError):
            found[file.parent.name] = built.read(file)
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


TRACE = [
    "experiment", "campaign", "host", "block", "order", "attempt", "library", "label", "arm", "cell",
    "status", "contaminated", "goodput_mbps", "ttfb_ms", "client_build", "server_build",
    "client_negotiated_cipher", "proof", "started_at", "reason", "contamination", "origin",
]  # fmt: skip


def _trace(table: pl.DataFrame) -> dict[str, Any]:
    shown = table.select(TRACE).with_columns(
        pl.col("started_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"),
        pl.col("goodput_mbps").round(1),
        pl.col("ttfb_ms").round(3),
        pl.when("contaminated").then(pl.lit("yes")).otherwise(None).alias("contaminated"),
    )
    numeric = frozenset(TRACE.index(name) for name in ("block", "order", "attempt", "goodput_mbps", "ttfb_ms"))
    return {"sheet": Sheet([name.replace("_", " ") for name in TRACE], shown.rows(), numeric), "total": len(table)}
