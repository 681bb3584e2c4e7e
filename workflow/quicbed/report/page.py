"""The report: a small site that is read from files, without a server and without a network.

``report/``::

    index.html               what was found, where it was measured, how far to trust it
    paper-<name>.html        what a paper states: its figures, tables and the verdicts on its claims
    experiment-<name>.html   figures and numbers of an experiment, what failed, how it was measured
    claims.html              every claim with its verdict, by what makes it fail; filtered
    runs.html                every run; a number on another page leads to those behind it
    provenance.html          hosts, sessions, builds, tables and notebooks
    site.css, *.js           style and scripts of these pages, Tabulator among them
    results/                 what Snakemake's own report shows (`quicbed.report.workflow_report`)

Texts of runs, hosts and claims may hold anything. Pages have them escaped, or as JSON in an element that is no script
(`quicbed.report.grid`); they forbid scripts that are not files beside them, and everything from a network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
import js_lib_tabulator
import polars as pl

from quicbed.analysis import comparison, dissect, paired_runs
from quicbed.base import durable
from quicbed.claims import claims_report, verdicts
from quicbed.claims import judged as judging
from quicbed.config.model import Project
from quicbed.figures import cost_figures, cpu_figures, findings, handshake_tables, sheets
from quicbed.figures.handshake_tables import Printed
from quicbed.figures.sheets import Sheet, latency_summary, summary
from quicbed.papers import TITLES, published_claims, results
from quicbed.plan.arms import ARMS, CAPTURED
from quicbed.report import grid, made_with, pictures, workflow_report
from quicbed.report import summary as answering
from quicbed.store import details, runs

READS = ("workflow/quicbed/report/templates/*.j2", "workflow/quicbed/report/assets/*")

TEMPLATES = Path(__file__).parent / "templates"
ASSETS = Path(__file__).parent / "assets"
TABULATOR = ("js/tabulator.min.js", "css/tabulator_simple.min.css")
"""Files of Tabulator, which the page of runs loads."""

JUDGED = ("holds", "fails", "inconclusive")
"""Verdicts that something measured led to."""


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
    of imported tables by format, by which they are judged as well. Pages of an earlier report are removed.
    """
    table = runs.table(raw)
    beside = details.read(raw)
    directory = artifacts / "report"
    directory.mkdir(parents=True, exist_ok=True)
    counting = runs.without(table, project.left_out) if project else table
    campaigns = comparison.Campaigns(counting)
    judged, known = None, None
    if project:
        known = judging.made(raw, project)
        if known is None:
            found = verdicts.tables(raw, project.root, counting, beside)
            campaigns = found.campaigns
            known = judging.judge(project, found)
        judged = _claims(project, artifacts, known, counting, published or {})
    figures = pictures.found(artifacts, table)
    left_out = made_with.left_out(project, table)
    site = _Site(project, artifacts, table, campaigns, figures, judged)
    answers = []
    if project and known is not None:
        why = known.found(project, known.results)
        answers = answering.answers(project, counting, beside, known.results, why, site.undecided)
    (artifacts / "tables").mkdir(parents=True, exist_ok=True)
    comparison.write_figure_table(site.undecided, "undecided", artifacts / "tables")
    pages = {
        "index.html": (
            "index.html.j2",
            site.first()
            | {
                "machine": made_with.measured_by(table, beside.campaigns),
                "answers": answers,
                "reading": answering.READING,
                "problems": _problems(beside, table),
                "left_out": left_out,
            },
        ),
        "runs.html": ("runs.html.j2", {"data": grid.data(table, figures), "total": len(table)}),
        "provenance.html": (
            "provenance.html.j2",
            {
                "hosts": made_with.hosts(table),
                "facts": made_with.facts(beside.campaigns),
                "left_out": left_out,
                "sessions": made_with.sessions(beside.campaigns),
                "builds": made_with.builds(beside.campaigns, builds),
                "captures": _captures(artifacts / "tables"),
                "downloads": _links(artifacts, directory, "tables", (".html", ".tex", ".csv", ".parquet")),
                "notebooks": _links(artifacts, directory, "notebooks", (".html",)),
            },
        ),
        **{one["href"]: ("experiment.html.j2", {"one": one}) for one in site.experiments},
    }
    if judged:
        pages["claims.html"] = (
            "claims.html.j2",
            judged | {"sections": _sections(judged), "experiments": site.stated()},
        )
        pages |= {one["href"]: ("paper.html.j2", {"one": one}) for one in site.papers}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "site": site,
        "cause_of": {one["id"]: one for one in judged["causes"]} if judged else {},
        "reference": raw.name == "reference",
    }
    environment.filters["plain"] = lambda text: str(text).replace("`", "")
    workflow_report.write(artifacts, figures)
    _write_files(directory)
    # the first page last: it says that the report is whole
    for name, (template, shown) in reversed(pages.items()):
        text = environment.get_template(template).render(**shown, page=name)
        durable.write_text(directory / name, text)
    for stale in directory.glob("*.html"):
        if stale.name not in pages:
            stale.unlink()
    return directory / "index.html"


def _write_files(directory: Path) -> None:
    """Style and scripts of the pages."""
    for asset in sorted(ASSETS.iterdir()):
        durable.write_bytes(directory / asset.name, asset.read_bytes())
    for name in TABULATOR:
        file = resources.files(js_lib_tabulator) / "static" / "tabulator" / name
        # without the name of a map of sources, which would be looked for
        text = re.sub(r"\n?(//|/\*)# sourceMappingURL=.*", "", file.read_text(encoding="utf-8"))
        durable.write_text(directory / name.rpartition("/")[2], text)


@dataclass
class _Site:
    """What pages share: experiments, papers, figures, and the claims about them."""

    project: Project | None
    artifacts: Path
    table: pl.DataFrame
    campaigns: comparison.Campaigns
    """Without those that a study leaves out."""
    figures: list[dict[str, Any]]
    judged: dict[str, Any] | None
    undecided: pl.DataFrame = field(init=False)
    """Of all experiments: rows of `quicbed.analysis.comparison.undecided`."""
    experiments: list[dict[str, Any]] = field(init=False)
    papers: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.claims = [
            claim
            for paper in (self.judged or {"papers": []})["papers"]
            for group in paper["groups"]
            for claim in group["claims"]
        ]
        measured = self.table.filter(pl.col("arm").is_in(ARMS))["experiment"].drop_nulls().unique().sort()
        drawn = sorted({one["experiment"] for one in self.figures} - set(measured))
        # two names that differ in characters no file should have would be one page
        names = {_file(name): name for name in [*measured, *drawn]}
        self.undecided = pl.DataFrame(schema=comparison.UNDECIDED)
        found = (self._experiment(name, href) for href, name in sorted(names.items()))
        self.experiments = [one for one in found if one is not None]
        for figure in self.figures:
            figure["claims"] = [
                claim for claim in self._judged() if claim["figure"] == figure["figure"] and not claim["group"]
            ]
        self.papers = self._papers()

    def _judged(self) -> list[dict[str, Any]]:
        return [claim for claim in self.claims if claim["verdict"] in JUDGED]

    def address(self, experiment: str) -> str | None:
        """The page of an experiment, if it has one."""
        return next((one["href"] for one in self.experiments if one["name"] == experiment), None)

    def figure_at(self, name: str | None) -> str | None:
        """Where a figure is shown."""
        figure = next((one for one in self.figures if one["figure"] == name), None)
        page = self.address(figure["experiment"]) if figure else None
        return f"{page}#figure-{quote(str(name))}" if page else None

    def stated(self) -> list[str]:
        """Experiments that claims are judged by, measured or not."""
        return sorted({claim["experiment"] for claim in self.claims})

    def file(self, path: str) -> str:
        """Address of a file of the repository."""
        root = self.project.root if self.project else Path()
        return os.path.relpath(root / path, self.artifacts / "report")

    def first(self) -> dict[str, Any]:
        """What the first page shows besides."""
        floors = [cell["ratio"] for one in self.experiments for cell in one["floors"]]
        return {
            "hosts": made_with.hosts(self.table),
            "proofs": self.table.filter(pl.col("arm") == "proof").height,
            "captures": _captures(self.artifacts / "tables"),
            # as the page of runs counts, to which they lead
            "counts": {
                "failed": self.table.filter(pl.col("status") == "failed").height,
                "unsupported": self.table.filter(pl.col("status") == "unsupported").height,
                "contaminated": self.table.filter(pl.col("contaminated") & (pl.col("status") == "ok")).height,
            },
            "floor": {"count": len(floors), "percent": 100 * max((abs(ratio - 1) for ratio in floors), default=0.0)},
        }

    def _papers(self) -> list[dict[str, Any]]:
        """Papers with their pages, the one that the project began with first."""
        order = list(TITLES.values())
        known = sorted(
            (self.judged or {"papers": []})["papers"],
            key=lambda one: (order.index(title) if (title := one["paper"].title) in order else len(order), one["id"]),
        )
        return [self._paper(one) for one in known]

    def _paper(self, paper: dict[str, Any]) -> dict[str, Any]:
        title = paper["paper"].title
        own = [claim for group in paper["groups"] if not group["id"] for claim in group["claims"]]
        about = [figure for figure in self.figures if title in figure["source"]]
        shown = [figure for figure in about if not figure["source"].startswith("beyond")]
        names = {figure["figure"] for figure in shown}
        stem = next((name for name, of in TITLES.items() if of == title), paper["id"])
        notebook = f"notebooks/{stem}.html"
        return paper | {
            "href": f"paper-{paper['id']}.html",
            "title": title,
            "short": paper["paper"].short or title,
            # those that findings are about first, in the order of the paper
            "shown": [
                figure | {"claims": [claim for claim in figure["claims"] if claim["paper"] == paper["id"]]}
                for figure in shown
                if figure["claims"] or not figure["flame"]
            ],
            "beyond": [figure for figure in about if figure["figure"] not in names],
            "printed": [
                (one["printed"], one)
                for one in self.experiments
                if one["printed"] and any(figure["experiment"] == one["name"] for figure in shown)
            ],
            "tables": [group for group in paper["groups"] if group["id"]],
            "findings": [claim for claim in own if claim["verdict"] in JUDGED],
            "others": [claim for claim in own if claim["verdict"] in JUDGED and claim["figure"] not in names],
            "unjudged": [claim for claim in own if claim["verdict"] not in JUDGED],
            "notebook": f"../{notebook}" if (self.artifacts / notebook).is_file() else None,
            # what the first page shows of it
            "lead": next(
                (
                    one
                    for claim in own
                    for one in shown
                    if one["figure"] == claim["figure"] and claim["verdict"] in JUDGED
                ),
                None,
            ),
        }

    def _experiment(self, name: str, href: str) -> dict[str, Any] | None:
        campaign = self.campaigns.newest(name)
        figures = pictures.of_experiment(self.figures, name)
        if campaign.is_empty() and not figures:
            return None
        config = self.project.experiments.get(name) if self.project else None
        own = self.table.filter((pl.col("experiment") == name) & (pl.col("arm") != CAPTURED))
        known = self.table.filter(pl.col("experiment") == name)
        command = None
        if self.project and config:
            command = claims_report.Commands(self.project).whole(name, list(self.project.libraries))
        found = {
            "name": name,
            "href": href,
            "title": config.title if config else name,
            "question": config.question if config else "",
            "source": config.source if config else "",
            "figures": figures,
            "claims": [claim for claim in self._judged() if claim["experiment"] == name and not claim["group"]],
            "groups": [
                group | {"paper": paper["paper"].title}
                for paper in (self.judged or {"papers": []})["papers"]
                for group in paper["groups"]
                if group["id"] and group["claims"][0]["experiment"] == name
            ],
            "unsupported": _incidents(own, pl.col("status") == "unsupported"),
            "failed": _incidents(known, pl.col("status") == "failed"),
            "contaminated": _incidents(own, pl.col("contaminated") & (pl.col("status") == "ok"), "contamination"),
            "command": command,
            "config": self.file(f"config/experiments/{name}.yaml") if config else None,
            "downloads": _links(
                self.artifacts,
                self.artifacts / "report",
                "tables",
                (".html", ".tex", ".csv", ".parquet"),
                {Path(one["table"]).stem for one in figures} | {name},
            ),
        }
        if campaign.is_empty():
            lacking = dict.fromkeys(["sheet", "printed", "measured", "campaign", "undecided"])
            return found | lacking | {"floors": [], "runs": 0}
        titles = self._titles()
        metric = cost_figures.metric(campaign)
        cells = self.campaigns.figure(name, metric)
        if metric == comparison.TWIN:
            alone = config.alone if config else None
            sheet = sheets.paired(paired_runs.table(self.campaigns, name, alone), titles, alone)
        else:
            sheet = latency_summary(cells, titles) if metric == "ttfb_ms" else summary(cells, titles)
        first = campaign.row(0, named=True)
        shown = list(campaign["campaign"].unique(maintain_order=True))
        wide = cost_figures.undecided(self.campaigns, self.project.experiments if self.project else {}, name)
        self.undecided = pl.concat([self.undecided, wide])
        return found | {
            "sheet": sheet,
            "undecided": {"sheet": sheets.undecided(wide, titles), "told": findings.undecided(wide, titles)}
            if len(wide)
            else None,
            "printed": self._printed(name, shown, titles),
            "floors": cells.filter((pl.col("arm") == "aa") & pl.col("ratio").is_not_null()).to_dicts(),
            "campaign": first["campaign"],
            "runs": self.table.filter(pl.col("campaign") == first["campaign"]).height,
            "measured": {key: first[key] for key in ("testbed", "host", "cpu_model", "kernel", "scale")}
            | {
                "seeds": sorted(set(campaign["seed"].drop_nulls())),
                "superseded": len(comparison.superseded(campaign)),
                "study": self._study(first["study"]),
                "external": [
                    {
                        "campaign": one,
                        "libraries": sorted({titles.get(name, name) for name in part["client_library"]}),
                        "runs": self.table.filter(pl.col("campaign") == one).height,
                    }
                    for one in shown[1:]
                    for part in [campaign.filter((pl.col("campaign") == one) & pl.col("client_external"))]
                ],
                "others": self._others(name, known.filter(pl.col("arm").is_in(ARMS)), shown),
            },
        }

    def _study(self, digest: str | None) -> str | None:
        return self.project.study_of(digest) if self.project else digest

    def _others(self, experiment: str, known: pl.DataFrame, shown: Collection[str]) -> list[dict[str, Any]]:
        """Campaigns of an experiment that are not shown: their study, and why they are left out."""
        left_out = self.project.left_out if self.project else {}
        others = (
            known.filter(~pl.col("campaign").is_in(list(shown)))
            .select("campaign", "study", "scale")
            .unique()
            .sort("campaign")
        )
        return [
            {
                "campaign": campaign,
                "rules": f"study {self._study(study)}" if study else f"scale {scale}",
                "reason": left_out.get((experiment, campaign), ("", ""))[1],
            }
            for campaign, study, scale in others.rows()
        ]

    def studies(self) -> list[str]:
        """Rules that the campaigns that are shown were measured by, where there is a study among them."""
        shown = [one["measured"] for one in self.experiments if one["measured"]]
        if all(one["study"] is None for one in shown):
            return []
        return sorted({f"study {one['study']}" if one["study"] else f"scale {one['scale']}" for one in shown})

    def _titles(self) -> dict[str, str]:
        return comparison.titles(self.project.libraries if self.project else {}, self.table)

    def _printed(self, name: str, shown: Collection[str], titles: Mapping[str, str]) -> Printed | None:
        """The table of the paper that an experiment repeats, of the numbers that a notebook has left."""
        file = self.artifacts / "tables" / f"{name}.parquet"
        if name not in _PRINTED or not file.is_file():
            return None
        cells = pl.read_parquet(file)
        if "campaign" not in cells.columns or set(cells["campaign"]) != set(shown):
            return None
        return _PRINTED[name](cells, titles)


_PRINTED: dict[str, Callable[[pl.DataFrame, Mapping[str, str]], Printed]] = {
    "table2-kem": lambda cells, titles: handshake_tables.handshake_table(cells, "group", titles),
    "table3-signature": lambda cells, titles: handshake_tables.handshake_table(cells, "signature", titles),
    "cpu-shares": cpu_figures.table_i,
}
"""Tables as the paper prints them, by experiment."""


def _file(experiment: str) -> str:
    """Name of the page of an experiment, whatever a run says of itself."""
    return f"experiment-{re.sub('[^a-z0-9]+', '-', experiment.lower())[:80]}.html"


def _claims(
    project: Project, artifacts: Path, known: judging.Judged, table: pl.DataFrame, published: Mapping[str, Path]
) -> dict[str, Any]:
    """Verdicts on all claims, for the pages; also writes them as a table."""
    judged = known.results
    why = known.found(project, judged)
    (artifacts / "tables").mkdir(parents=True, exist_ok=True)
    claims_report.write_table(judged, artifacts / "tables", found=why)
    theirs = published_claims.evaluate(project, [one.stated for one in judged], published)
    for file in (artifacts / "tables").glob("claims-published.*"):
        file.unlink()  # of a copy that may not be told any more
    if theirs:
        claims_report.write_table(theirs, artifacts / "tables", "claims-published")
    shown = claims_report.page(judged, project, artifacts, artifacts / "report", claims_report.by_claim(theirs), why)
    for paper in shown["papers"]:
        own = [result for result in judged if result.stated.name == paper["id"]]
        paper["results"] = results.sheet(own, table, project)
    return shown


def _sections(judged: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All claims, each once: those that fail by their first cause, the others by verdict."""
    claims = [claim for paper in judged["papers"] for group in paper["groups"] for claim in group["claims"]]
    failing = [claim for claim in claims if claim["verdict"] == "fails"]
    sections = []
    for cause in judged["causes"]:
        first = [claim for claim in failing if claim["causes"] and claim["causes"][0][0] == cause["id"]]
        anchors = {claim["anchor"] for claim in first}
        also = [one for one in cause["claims"] if one["anchor"] not in anchors]
        sections.append({"id": f"cause-{cause['id']}", "cause": cause, "claims": first, "also": also})
    known = {claim["anchor"] for section in sections for claim in section["claims"]}
    unknown = [claim for claim in failing if claim["anchor"] not in known]
    sections.append({"id": "no-cause", "title": "Fails, no cause known yet", "claims": unknown})
    for verdict in judged["verdicts"]:
        if verdict != "fails":
            of = [claim for claim in claims if claim["verdict"] == verdict]
            sections.append({"id": verdict.replace(" ", "-"), "title": verdict.capitalize(), "claims": of})
    return [{"cause": None, "also": [], **section} for section in sections]


def _problems(found: details.Details, table: pl.DataFrame) -> list[str]:
    """What could not be read: a line for every run, for what lies beside one that could be read, and for records."""
    unread = runs.problems(table)
    named = {line.partition(": ")[0] for line in unread}
    beside = [line for line in found.problems if line.partition(": ")[0] not in named]
    return unread + beside + [line for one in found.campaigns for line in one.problems]


def _links(
    artifacts: Path, directory: Path, folder: str, suffixes: tuple[str, ...], stems: set[str] | None = None
) -> list[dict[str, Any]]:
    files = sorted(p for p in (artifacts / folder).glob("*") if p.suffix in suffixes)
    return [
        {"name": p.name, "href": quote(os.path.relpath(p, directory)), "kib": -(-p.stat().st_size // 1024)}
        for p in files
        if stems is None or p.stem in stems
    ]


def _incidents(table: pl.DataFrame, condition: pl.Expr, reason: str = "reason") -> Sheet:
    bad = table.filter(condition).select(
        *("campaign", "client_library", "server_library", "label", "arm", "block", "attempt"), *(reason, "origin")
    )
    headers = ["campaign", "client", "server", "cell", "arm", "block", "attempt", "reason", "run"]
    behind = {(row, 8): urlencode({"run": origin}, quote_via=quote) for row, origin in enumerate(bad["origin"])}
    return Sheet(headers, bad.rows(), frozenset({5, 6}), behind=behind)


def _captures(tables: Path) -> dict[str, Any] | None:
    """What came of dissecting captures again, None where that was not done."""
    if not (file := tables / dissect.FILE).is_file():
        return None
    try:
        table = pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError):
        return None  # `make figures` writes it again
    return {"text": dissect.text(table), "problems": dissect.problems(table), "table": f"../tables/{dissect.FILE}"}
