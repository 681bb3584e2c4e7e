"""Claims and verdicts shown: on the command line, in the report, as a table, and as documentation of how to re-measure.

Every claim leads to what re-measures just it: the experiment with the libraries that the claim is about. Time and disk
are those of `quicbed.plan.estimate` in a fresh clone.
"""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import polars as pl

from quicbed.analysis import comparison as analysis
from quicbed.claims.causes import Cause, Found, Test, Tested
from quicbed.claims.papers import DIRECTORY, UNITS, Claim, Paper, Predicate, Stated, digits, stated
from quicbed.claims.verdict import Compared, Verdicts, record_of
from quicbed.claims.verdicts import LEVEL, PUBLISHED, Basis, Outcome, Result, Verdict
from quicbed.config.model import Project
from quicbed.plan.cells import cells_of
from quicbed.plan.estimate import Cost, cost, duration
from quicbed.store import runs

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
WIDTH = 116
SHOWN = 4
"""So many comparisons outside the bounds are named on the command line."""
TWIN_TITLE = "GiB per second of processor time"
"""The twin of goodput."""
FAMILY = (
    "The claims of a paper form one family. Their p-values are adjusted with the procedure of Benjamini and Hochberg, "
    f"so that at most {100 * LEVEL:.0f} % of the verdicts `holds` and `fails` are expected to be wrong by chance. This "
    "does not cover systematic errors, such as those of a testbed or of builds unlike the paper's. The A/A arm "
    "measures the baseline against itself. It shows how far equal cells differ here; a difference within its interval "
    "means nothing."
)


# ---- re-measuring ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """What measures just one claim."""

    experiment: str
    libraries: tuple[str, ...]
    cost: Cost

    def text(self) -> str:
        """For a shell, in a clone of the repository."""
        return f'make all CONFIG="experiments=[{self.experiment}] libraries=[{",".join(self.libraries)}]"'


@dataclass
class Commands:
    """Commands of claims, each worked out once."""

    project: Project
    _done: dict[tuple[str, tuple[str, ...]], Command] = field(default_factory=dict)
    _cells: dict[str, dict[tuple[str, str, str], str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # the commands name no study, and one has few of the experiments
        self.project = self.project.without_study()

    def of(self, claim: Claim) -> Command | None:
        """The command that measures what a claim is about; None where nothing can be measured of it."""
        libraries, _ = self._told(claim)
        return self.whole(claim.reads.experiment, libraries) if libraries else None

    def why_not(self, one: Stated) -> str:
        """Why nothing can be measured of a claim."""
        experiment = one.claim.reads.experiment
        if experiment not in self.project.experiments:
            return f"needs experiment `{experiment}`, {one.paper.awaited[experiment]}"
        _, lacking = self._told(one.claim)
        unknown = [name for name in one.paper.libraries if name in lacking and name not in self.project.libraries]
        names = _listed([one.paper.libraries[name] for name in unknown])
        needed = f"needs {names} as {'external endpoints' if unknown[1:] else 'an external endpoint'}"
        external = [needed] if unknown else []
        return "; ".join(external + [reason for name, reason in lacking.items() if name not in unknown])

    def _told(self, claim: Claim) -> tuple[set[str], dict[str, str]]:
        """Libraries of the outcomes that can be measured, and why others cannot, by library."""
        cells = self._unsupported(claim.reads.experiment)
        found: set[str] = set()
        lacking: dict[str, str] = {}
        for places in claim.needed():
            problems: dict[str, str] = {}
            for client, server, label in places:
                away = [name for name in (client, server) if name not in self.project.libraries]
                if (client, server, label) not in cells:
                    pair = self._titles(client, server)
                    reason = f"{pair} is not measured by experiment `{claim.reads.experiment}`"
                    problems |= dict.fromkeys(away or [client], reason)
                elif (unsupported := cells[client, server, label]) is not None:
                    problems[client] = unsupported
            if not problems:
                found |= {name for client, server, _ in places for name in (client, server)}
            lacking |= problems
        return found, lacking

    def _titles(self, client: str, server: str) -> str:
        return analysis.pair_title(
            (client, server), {name: one.shown_as for name, one in self.project.libraries.items()}
        )

    def _unsupported(self, experiment: str) -> dict[tuple[str, str, str], str | None]:
        """Cells of an experiment by client, server and label, with the reason of those that cannot be measured."""
        if experiment not in self.project.experiments:
            return {}
        if experiment not in self._cells:
            self._cells[experiment] = {
                (cell.client.library, cell.server.library, cell.label): cell.unsupported
                for cell in cells_of(self.project, experiment, "", {})
            }
        return self._cells[experiment]

    def whole(self, experiment: str, libraries: Collection[str]) -> Command:
        """The command that measures an experiment with some libraries."""
        key = (experiment, tuple(name for name in self.project.libraries if name in libraries))
        if key not in self._done:
            self._done[key] = Command(*key, cost(self.project.restricted([key[0]], key[1])))
        return self._done[key]


def _listed(names: Sequence[str]) -> str:
    """Names as in a sentence: `a, b and c`."""
    return " and ".join(", ".join(names).rsplit(", ", 1))


# ---- numbers as text -------------------------------------------------------------------------------------------------


def _scale(claim: Claim, basis: Basis) -> tuple[float, str]:
    """Factor and unit in which values of a claim are shown."""
    if basis == "share":
        return 100.0, "%"
    if basis == "value":
        return 1.0, UNITS.get(claim.reads.metric, "")
    if basis == "count" and not any(comparison.relative for comparison in claim.compare):
        return 1.0, "B" if claim.reads.metric.endswith("_bytes") else ""
    return 1.0, ""


def bounds(claim: Claim, predicate: Predicate | None = None, basis: Basis | None = None) -> str:
    """The bounds of a claim in words; those it is judged by where they are given."""
    if basis is None:
        relative = all(comparison.relative for comparison in claim.compare)
        of_table: dict[str, Basis] = {"runs": "value", "shares": "share"}
        basis = of_table.get(claim.reads.table, "count")
        if relative and basis != "count":
            basis = "ratio"
    return (predicate or claim.predicate).text(*_scale(claim, basis))


def _judged_bounds(result: Result) -> str:
    """The bounds that a claim was judged by; those it sets where it was not."""
    if not result.measured:
        return bounds(result.stated.claim)
    return bounds(result.stated.claim, result.predicate, result.basis)


def _number(value: float | None, factor: float = 1.0) -> str:
    return "" if value is None or math.isnan(value) else digits(value * factor)


def _interval(one: Outcome, factor: float) -> str:
    if math.isnan(one.low) or one.low == one.high:
        return _number(one.value, factor)
    return f"{_number(one.value, factor)} [{_number(one.low, factor)}, {_number(one.high, factor)}]"


def _values(result: Result) -> str:
    """What was measured of a claim, in a few words."""
    measured = result.measured
    if not measured:
        return ""
    factor, unit = _scale(result.stated.claim, result.basis)
    after = f" {unit}" if unit else ""
    if result.basis == "failures":
        return f"{sum(one.inside for one in measured)} of {len(measured)} as stated"
    if len(measured) == 1:
        return _interval(measured[0], factor) + after
    worst = max(measured, key=_beyond)
    inside = sum(one.inside for one in measured)
    named = ", ".join(_told_apart(result, worst))
    return f"{named}: {_interval(worst, factor)}{after}; {inside} of {len(measured)} within the bounds"


def _beyond(one: Outcome) -> float:
    """How far a value is from the bounds, relative to them; negative within them."""
    ends = [(one.low_bound, one.low_bound - one.value), (one.high_bound, one.value - one.high_bound)]
    return max((beyond / (abs(bound) or 1.0) for bound, beyond in ends if math.isfinite(bound)), default=0.0)


def _told_apart(result: Result, one: Outcome) -> list[str]:
    """What tells one comparison of a claim from the others: its library, what it compares, or both."""
    names = result.stated.paper.libraries
    by_library = len({other.library for other in result.measured}) > 1 and one.library is not None
    by_text = len({other.text for other in result.measured}) > 1 or not by_library
    library = [names.get(one.library or "", one.library or "")] if by_library else []
    return [*library, *([one.text] if by_text else [])]


def _probability(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


# ---- results of a paper ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A published result beside what was measured here, as texts."""

    source: str
    statement: str
    bounds: str
    """Those that it was judged by."""
    measured: str
    """Values with intervals; empty without any."""
    experiment: str
    blocks: str
    """Blocks that were compared, or captured connections; empty without any."""
    campaign: str | None
    verdict: Verdict
    open: str
    """Why it is not decided, and what would decide it; empty where it is."""
    behind: str
    """What selects the runs that were compared."""


def standing(results: Iterable[Result], commands: Commands) -> list[Standing]:
    """What holds today of published results, in their order; numbers of tables are left out."""
    return [_standing(result, commands) for result in results if result.stated.group is None]


def _standing(result: Result, commands: Commands) -> Standing:
    counts = {one.n for one in result.measured}
    least, most = (str(min(counts)), str(max(counts))) if counts else ("", "")
    return Standing(
        source=result.stated.claim.source,
        statement=result.stated.claim.statement,
        bounds=_judged_bounds(result),
        measured=_each(result),
        experiment=result.experiment,
        blocks=least if least == most else f"{least} to {most}",
        campaign=result.campaign if result.measured else None,
        verdict=result.verdict,
        open=_open(result, commands),
        behind=_behind(result, *result.measured),
    )


def _each(result: Result) -> str:
    """Every comparison of a claim with few of them, else what they span."""
    measured = result.measured
    if len(measured) > SHOWN or not measured[1:] or result.basis == "failures":
        return _values(result)
    factor, unit = _scale(result.stated.claim, result.basis)
    names = result.stated.paper.libraries
    texts = [
        f"{f'{names.get(one.library, one.library)}: ' if one.library else ''}{one.text}: {_interval(one, factor)}"
        + (f" {unit}" if unit else "")
        for one in measured
    ]
    return "; ".join(texts)


def _open(result: Result, commands: Commands) -> str:
    """What it takes to decide a claim: blocks and hours, or the command of what was not measured."""
    if result.verdict in ("holds", "fails"):
        return ""
    if result.verdict == "inconclusive":
        if result.more_blocks is None:
            return result.reason
        took = "" if result.more_hours is None else f", {duration(60 * result.more_hours)}"
        return f"about {result.more_blocks} more block{'s' if result.more_blocks != 1 else ''}{took}"
    command = commands.of(result.stated.claim)
    if result.verdict == "not applicable" or command is None:
        return result.reason
    project = commands.project
    scale = project.experiments[result.experiment].scales[project.config.scale]
    return f"{scale.blocks} blocks at scale {project.config.scale}: {command.cost.text()}"


# ---- command line ----------------------------------------------------------------------------------------------------


def tally(results: Iterable[Result]) -> str:
    """How many claims have which verdict."""
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]) or "none"


Published = Mapping[tuple[str, str], Result]
"""Verdicts by the published raw data of a paper, where they are known: by paper and claim."""


def by_claim(results: Iterable[Result]) -> Published:
    """Verdicts by paper and claim."""
    return {(result.stated.name, result.stated.claim.id): result for result in results}


def text(
    results: Sequence[Result],
    *,
    cells: bool,
    tested: Mapping[str, int],
    published: Published | None = None,
    found: Found | None = None,
) -> str:
    """A table for a terminal: a claim on each line and what to know about it below; *tested* is the size of families.

    Without *cells* a table of numbers is one line.
    """
    lines: list[str] = []
    for name in dict.fromkeys(result.stated.name for result in results):
        own = [result for result in results if result.stated.name == name]
        lines += [f"{own[0].stated.paper.title} ({name}): {tally(own)}", f"  {_family(tested.get(name, 0))}"]
        if any(result.only_relative for result in own):
            lines.append(f"  ratios and orders only: stated for {own[0].stated.paper.hardware}, the testbed is local")
        shown = [result.stated.claim.id for result in own if cells or result.stated.group is None]
        width = max(map(len, shown), default=0)
        for group in dict.fromkeys(result.stated.group for result in own):
            part = [result for result in own if result.stated.group == group]
            if group is not None and not cells:
                lines.append(f"  {'table':<15} {group:<{width}}  {len(part)} numbers: {tally(part)}")
                continue
            for result in part:
                lines += _claim_lines(result, width, (published or {}).get((name, result.stated.claim.id)))
                if found is not None and result.verdict == "fails":
                    lines += _cause_lines(found.of.get(result.stated.id, ()))
        lines.append("")
    return "\n".join(lines).rstrip()


def _family(count: int) -> str:
    return f"{count} claims with p-values, adjusted together (Benjamini-Hochberg at {100 * LEVEL:.0f} %)"


def _claim_lines(result: Result, width: int, published: Result | None = None) -> list[str]:
    claim = result.stated.claim
    head = f"  {result.verdict:<15} {claim.id:<{width}}  {_judged_bounds(result)}"
    values = _values(result)
    lines = [head + (f": {values}" if values else "")]
    below = [result.reason]
    if result.outside and result.measured[1:]:
        below.append(_outside(result))
    if result.adjusted is not None and result.verdict != "holds":
        below.append(f"adjusted p = {_probability(result.adjusted)}")
    below.append(result.conditions)
    below += _twin_lines(result)
    if published is not None:
        found = f"published data: {published.verdict}"
        below.append(": ".join(filter(None, [found, _values(published) or published.reason])))
        if published.measured and published.reason:
            below.append(published.reason)
    indent = " " * 18
    for note in filter(None, below):
        lines += textwrap.wrap(note, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines


def _twin_lines(result: Result) -> list[str]:
    """What processor time says of a claim about cost."""
    twin = result.twin
    if twin is None or not result.measured:
        return []
    found = [", ".join(filter(None, [_values(twin), twin.noise])), result.differs] if twin.measured else [twin.reason]
    return [f"{TWIN_TITLE}: {twin.verdict}: {'; '.join(filter(None, found))}"]


def _cause_lines(causes: Sequence[Tested]) -> list[str]:
    """Why a claim fails."""
    texts = [f"cause ({one.status}): {_told_of(one.cause)}" for one in causes] or ["no cause known yet"]
    return [" " * 18 + line for text in texts for line in textwrap.wrap(text, WIDTH - 18)]


def _told_of(cause: Cause) -> str:
    """A cause, and what would test it."""
    return cause.text + (f" What would decide: {cause.would_tell}" if cause.would_tell else "")


def _outside(result: Result) -> str:
    """The comparisons that are outside the bounds, the first few of them."""
    factor, _ = _scale(result.stated.claim, result.basis)
    names = result.stated.paper.libraries
    shown = [
        f"{one.text} = {_number(one.value, factor)}"
        + (f" ({names[one.library]}{', external' if one.external else ''})" if one.library else "")
        for one in result.outside
    ]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return f"outside: {', '.join(shown[:SHOWN])}{more}"


# ---- table -----------------------------------------------------------------------------------------------------------

COLUMNS: Mapping[str, pl.DataType] = (
    dict.fromkeys(["paper", "claim", "source", "statement", "verdict", "reason", "judged_as"], pl.String())
    | {"p": pl.Float64(), "adjusted_p": pl.Float64(), "more_blocks": pl.Int64(), "more_hours": pl.Float64()}
    | dict.fromkeys(["experiment", "campaign", "testbed", "scale", "library"], pl.String())
    | {"in_population": pl.Boolean(), "compared": pl.String()}
    | dict.fromkeys(["low_bound", "high_bound", "value", "low", "high"], pl.Float64())
    | {"n": pl.Int64(), "contaminated": pl.Int64(), "aa_low": pl.Float64(), "aa_high": pl.Float64()}
    | {"published": pl.Float64(), "missing": pl.String(), "cells": pl.String(), "causes": pl.String()}
    | {"cpu_verdict": pl.String(), "cpu_adjusted_p": pl.Float64()}
    | dict.fromkeys(["cpu_value", "cpu_low", "cpu_high", "cpu_aa_low", "cpu_aa_high"], pl.Float64())
)
"""Columns of the table of claims: a row for every outcome, or one for a claim that has none.

Those that begin with `cpu` are of what both ends download per second of processor time."""


def frame(kept: Verdicts) -> pl.DataFrame:
    """All verdicts as a table, with the causes of those that fail."""
    rows = []
    for one in kept.verdicts:
        base = one.model_dump(exclude={"outcomes", "causes", "processor_time"})
        base["causes"] = "; ".join(f"{told.cause} ({told.status})" for told in one.causes) or None
        twins: dict[tuple[str | None, str], Compared] = {}
        if one.processor_time is not None:
            base |= {"cpu_verdict": one.processor_time.verdict, "cpu_adjusted_p": one.processor_time.adjusted_p}
            twins = {(twin.library, twin.compared): twin for twin in one.processor_time.outcomes}
        rows += [
            base | _outcome_row(outcome) | _twin_columns(twins.get((outcome.library, outcome.compared)))
            for outcome in one.outcomes
        ] or [base]
    complete = [{name: row.get(name) for name in COLUMNS} for row in rows]
    return pl.DataFrame(complete, schema=COLUMNS, orient="row")


def _twin_columns(twin: Compared | None) -> dict[str, Any]:
    names = ("value", "low", "high", "aa_low", "aa_high")
    return {f"cpu_{name}": getattr(twin, name) for name in names} if twin is not None else {}


def _outcome_row(one: Compared) -> dict[str, Any]:
    row = one.model_dump(exclude={"cells", "missing", "reason"})
    missing = f"{one.missing}: {one.reason}" if one.missing else None
    return row | {"missing": missing, "cells": " ".join(one.cells) or None}


def write_table(
    results: Sequence[Result], directory: Path, name: str = "claims", found: Found | None = None
) -> list[Path]:
    """Write the verdicts as ``<name>.json``, and as a table as ``<name>.parquet`` and ``<name>.csv``."""
    kept = record_of(results, found)
    table = frame(kept)
    files = [directory / f"{name}.{suffix}" for suffix in ("json", "parquet", "csv")]
    kept.write(files[0])
    runs.write_parquet(table, files[1])
    runs.write_csv(table, files[2])
    return files


# ---- report ----------------------------------------------------------------------------------------------------------


def page(
    results: Sequence[Result],
    project: Project,
    artifacts: Path,
    directory: Path,
    published: Published | None = None,
    found: Found | None = None,
) -> dict[str, Any]:
    """What the template of the report's page on claims shows; links are relative to *directory*."""
    found = found or Found()
    links = _Links(project.root, artifacts, directory)
    commands = Commands(project)
    titles = {name: library.shown_as for name, library in project.libraries.items()}
    papers = []
    for name in dict.fromkeys(result.stated.name for result in results):
        own = [result for result in results if result.stated.name == name]
        groups = []
        for group in dict.fromkeys(result.stated.group for result in own):
            part = [result for result in own if result.stated.group == group]
            shown = [
                _entry(result, (published or {}).get((name, result.stated.claim.id)), links, commands, titles)
                | {"causes": [(one.cause.id, one.status) for one in found.of.get(result.stated.id, ())]}
                for result in part
            ]
            source = part[0].stated.claim.source.partition(",")[0]
            groups.append({"id": group, "source": source, "summary": tally(part), "claims": shown})
        papers.append(
            {
                "id": name,
                "paper": own[0].stated.paper,
                "summary": tally(own),
                "family": _family(sum(result.p is not None for result in own)),
                "config": links.config(DIRECTORY / f"{name}.yaml"),
                "groups": groups,
            }
        )
    return {
        "papers": papers,
        "counts": _counts(results),
        "verdicts": VERDICTS,
        "family": FAMILY,
        "found": told(results, found),
        "causes": [_cause(one, titles) for one in found.causes if one.explained],
        "unknown": [_reference(result) for result in found.unknown],
    }


def told(results: Sequence[Result], found: Found) -> str:
    """What was found, in a few sentences."""
    failing = [result for result in results if result.verdict == "fails"]
    counts = Counter(_best(found.of.get(result.stated.id, ())) for result in failing)
    causes = Counter(one.status for one in found.causes if one.explained)
    parts = [f"{len(results)} claims: {tally(results)}."]
    if failing:
        parts.append(
            f"Of those that fail, {counts['supported']} have a cause that tests support, {counts['other']} one that is "
            f"untested or undecided, and for {counts['none']} no cause is known yet."
        )
    if causes:
        named = ", ".join(f"{number} {status}" for status, number in sorted(causes.items()))
        parts.append(f"Causes: {named}.")
    return " ".join(parts)


def _best(causes: Sequence[Tested]) -> str:
    """How well a failing claim is explained."""
    if any(one.status == "supported" for one in causes):
        return "supported"
    return "other" if causes else "none"


def _cause(one: Tested, titles: Mapping[str, str]) -> dict[str, Any]:
    """A cause as the template shows it."""
    return {
        "id": one.cause.id,
        "text": one.cause.text,
        "would_tell": one.cause.would_tell,
        "status": one.status,
        "tests": [_test(test, result) for test, result in one.tests],
        "claims": [
            _reference(result)
            | {"beyond": [f"{titles.get(out.library or '', '')}: {out.text} = {_interval(out, 1)}" for out in beyond]}
            for result, beyond in one.explained
        ],
    }


def _test(test: Test, result: Result | None) -> dict[str, str]:
    """A test of a cause, with what was seen and what selects the runs behind it."""
    told = {"how": test.how, "seen": test.seen or "", "verdict": "counted", "behind": "", "predicted": ""}
    if result is None:
        return told
    told["verdict"] = {"holds": "as predicted", "fails": "not as predicted"}.get(result.verdict, result.verdict)
    if not result.measured:
        return told | {"seen": result.reason}
    behind = _behind(result, *result.measured)
    return told | {"seen": _values(result), "behind": behind, "predicted": _judged_bounds(result)}


def _reference(result: Result) -> dict[str, Any]:
    """A claim that another place names."""
    claim = result.stated.claim
    return {
        "id": claim.id,
        "anchor": f"{result.stated.name}-{claim.id}",
        "group": result.stated.group,
        "verdict": result.verdict,
        "statement": claim.statement,
        "values": _values(result),
    }


def _counts(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Verdicts by paper, findings and numbers of tables apart."""
    rows = []
    for name in dict.fromkeys(result.stated.name for result in results):
        for cells in (False, True):
            own = [r for r in results if r.stated.name == name and (r.stated.group is not None) == cells]
            if own:
                counts = Counter(result.verdict for result in own)
                what = "numbers of tables" if cells else "findings"
                title = own[0].stated.paper.title
                numbers = [counts[verdict] for verdict in VERDICTS]
                rows.append({"id": name, "title": title, "what": what, "numbers": numbers, "all": len(own)})
    return rows


@dataclass(frozen=True)
class _Links:
    """Links from a page in *directory* to what lies behind a claim."""

    root: Path
    artifacts: Path
    directory: Path

    def config(self, path: Path) -> str:
        """A file of the repository."""
        return os.path.relpath(self.root / path, self.directory)

    def of(self, result: Result) -> tuple[list[tuple[str, str]], str]:
        """Names and targets: figure, table and runs where there are any, and the configuration; and why no figure."""
        found = []
        experiment = Path("config") / "experiments" / f"{result.experiment}.yaml"
        if (self.root / experiment).is_file():
            found.append(("config", self.config(experiment)))
        figure, why = self._figure(result)
        if figure:
            found.append(("figure", f"../figures/{figure['figure']}.html"))
        # a figure of published results has a table of its own
        stem = Path(figure["table"]).stem if figure else result.experiment if result.campaign else None
        for suffix in ("html", "csv") if stem else ():
            if (self.artifacts / "tables" / f"{stem}.{suffix}").is_file():
                found.append(("table", f"../tables/{stem}.{suffix}"))
                break
        if result.campaign is not None:
            found.append(("runs", f"runs.html#{_behind(result, *result.measured, *result.beyond)}"))
        return found, why

    def _figure(self, result: Result) -> tuple[dict[str, Any] | None, str]:
        """Manifest of the figure that shows a claim; without one why."""
        name = result.stated.claim.figure
        if name is None:
            return None, result.stated.claim.no_figure or f"there is no experiment {result.experiment}"
        file = self.artifacts / "figures" / f"{name}.json"
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        # one that was drawn of published results alone is of no campaign
        shows = manifest and (manifest["campaign"] == result.campaign or manifest["scale"] == "published")
        if shows and f"{name}.html" in manifest["files"]:
            return manifest, ""
        if not (self.root / "config" / "experiments" / f"{result.experiment}.yaml").is_file():
            return None, f"there is no experiment {result.experiment}"
        return None, f"{name} shows it once it is {'measured' if result.campaign is None else 'drawn of these runs'}"


def _behind(result: Result, *outcomes: Outcome) -> str:
    """What selects the runs of some outcomes on the report's page of runs; empty where there are none of our own."""
    if result.campaign is None or result.testbed_kind == PUBLISHED:
        return ""
    # pairs are runs of another campaign
    campaign = None if any(one.through for one in outcomes) else result.campaign
    return runs.selection(campaign, *(cell for one in outcomes for cell in one.cells))


def _entry(
    result: Result, theirs: Result | None, links: _Links, commands: Commands, titles: Mapping[str, str]
) -> dict[str, Any]:
    """One claim as the template shows it; *theirs* is the verdict by the published data."""
    claim = result.stated.claim
    factor, unit = _scale(claim, result.basis)
    command = commands.of(claim)
    external = {name: one.shown_as for name, one in commands.project.libraries.items() if one.external}
    names = {**titles, **result.stated.paper.libraries, **external}
    found, no_figure = links.of(result)
    return {
        "id": claim.id,
        "anchor": f"{result.stated.name}-{claim.id}",
        "paper": result.stated.name,
        "group": result.stated.group,
        "experiment": result.experiment,
        "figure": claim.figure,
        "source": claim.source,
        "statement": claim.statement,
        "values": _values(result),
        "behind": _behind(result, *result.measured),
        "libraries": ", ".join(result.stated.paper.libraries[name] for name in claim.libraries),
        "population": claim.population,
        "note": claim.note,
        "bounds": _judged_bounds(result),
        "verdict": result.verdict,
        "css": result.verdict.replace(" ", "-"),
        "reason": result.reason,
        "judged": result.judged if result.measured else "",
        "conditions": result.conditions,
        "p": _probability(result.p),
        "adjusted": _probability(result.adjusted),
        "outcomes": [_row(one, names, factor, unit) | {"behind": _behind(result, one)} for one in result.measured],
        "beyond": [_row(one, names, factor, unit) | {"behind": _behind(result, one)} for one in result.beyond],
        "theirs": _theirs(theirs, titles),
        "twin": _twin(result, names),
        "links": found,
        "no_figure": no_figure,
        "command": command.text() if command else "",
        "cost": command.cost.text() if command else "",
        "no_command": "" if command else f"not yet: {commands.why_not(result.stated)}",
    }


def _theirs(result: Result | None, titles: Mapping[str, str]) -> dict[str, Any] | None:
    """The verdict by the published data, as the template shows it."""
    if result is None:
        return None
    factor, unit = _scale(result.stated.claim, result.basis)
    names = {**titles, **result.stated.paper.libraries}
    return {
        "verdict": result.verdict,
        "css": result.verdict.replace(" ", "-"),
        "bounds": _judged_bounds(result),
        "reason": result.reason,
        "outcomes": [_row(one, names, factor, unit) | {"behind": ""} for one in result.measured],
    }


def _twin(result: Result, names: Mapping[str, str]) -> dict[str, Any] | None:
    """What processor time says of a claim about cost, as the template shows it; None of others."""
    twin = result.twin
    if twin is None or not result.measured:
        return None
    return {
        "title": TWIN_TITLE,
        "verdict": twin.verdict,
        "differs": result.differs,
        "reason": twin.reason,
        "conditions": twin.noise,
        "outcomes": [_row(one, names, 1.0, "") | {"behind": _behind(result, one)} for one in twin.measured],
    }


def _row(one: Outcome, titles: Mapping[str, str], factor: float, unit: str) -> dict[str, Any]:
    return {
        "library": titles.get(one.library or "", one.library or ""),
        "text": one.text,
        "value": _interval(one, factor),
        "unit": unit,
        "n": one.n,
        "inside": one.inside,
        "published": _number(one.published, factor),
    }


# ---- documentation ---------------------------------------------------------------------------------------------------


def documentation(project: Project) -> str:
    """docs/claims.md: every claim, its bounds, and the command that measures just it, with time and disk."""
    parts = [
        "# Claims",
        "",
        *textwrap.wrap(
            "Generated from `config/claims/` by `quicbed generate`. This page lists what each paper states, the bounds "
            "within which we say that it holds, and the command that measures it alone. `quicbed claims` prints the "
            "verdicts on your own measurements, or on the reference data until you have measured something. `quicbed "
            "claims ID` prints the verdicts on one claim, table or paper. The report shows them with links to figures, "
            "tables and runs.",
            WIDTH,
        ),
        "",
        *textwrap.wrap(
            f"Times are estimates for two cores, at scale `{project.config.scale}` and in a fresh clone; builds that "
            "already exist take no time. Disk space is for sources, builds and runs. The Python environment takes "
            "another 1 GB, and the caches of package managers take 2 GB in the home directory. Finished runs are kept: "
            "to measure something again, first move `raw/<testbed>/<experiment>` away.",
            WIDTH,
        ),
        "",
        *textwrap.wrap(FAMILY + " `quicbed.claims.verdicts` documents how verdicts are reached.", WIDTH),
        "",
    ]
    commands = Commands(project)
    all_claims = stated(project)
    parts += _overview(all_claims, commands)
    for name in dict.fromkeys(one.name for one in all_claims):
        own = [one for one in all_claims if one.name == name]
        parts += _paper(name, own[0].paper, own, commands)
    return "\n".join(parts).rstrip() + "\n"


def _overview(claims: Sequence[Stated], commands: Commands) -> list[str]:
    """What measures all claims on figures and tables of a paper at once, one line for an experiment."""
    hint = "Claims that a local testbed can decide, and the command that measures all those on a figure or table."
    lines = ["## Figures and tables", "", hint, "", "| paper | figure or table | claims | measured by | time, disk |"]
    lines.append("| --- " * 5 + "|")
    rows: dict[tuple[str, str], list[tuple[str, Command]]] = {}
    for one in claims:
        if (command := commands.of(one.claim)) and one.not_locally is None:
            source = one.claim.source.partition(",")[0]
            rows.setdefault((one.paper.title, command.experiment), []).append((source, command))
    for (title, experiment), found in rows.items():
        libraries = {name for _, command in found for name in command.libraries}
        whole = commands.whole(experiment, libraries)
        sources = ", ".join(dict.fromkeys(source for source, _ in found))
        lines.append(_line([title, sources, str(len(found)), f"`{whole.text()}`", whole.cost.text()]))
    experiments = list(dict.fromkeys(experiment for _, experiment in rows))
    project = commands.project
    needed = cost(project.restricted(experiments, list(project.libraries))).text()
    lines += ["", f"All of them, with all libraries ({needed}):", ""]
    return [*lines, "```sh", f'make all CONFIG="experiments=[{",".join(experiments)}]"', "```", ""]


def _paper(name: str, paper: Paper, own: Sequence[Stated], commands: Commands) -> list[str]:
    """The section on one paper."""
    lines = [f"## {paper.title}", "", *textwrap.wrap(f"`{name}`. {paper.citation}.", WIDTH), ""]
    lines += textwrap.wrap(f"Stated for: {paper.population}.", WIDTH)
    if paper.hardware:
        hint = f"On a local testbed, values from {paper.hardware} are judged only as ratios and orders."
        lines += textwrap.wrap(hint, WIDTH)
    lines += ["", "| claim | source | statement | bounds | measured by | time, disk |", "| --- " * 6 + "|"]
    for one in (one for one in own if one.group is None):
        libraries = ", ".join(paper.libraries[library] for library in one.claim.libraries)
        about = f" ({libraries})" if libraries else ""
        row = [f"`{one.claim.id}`", one.claim.source, f"{one.claim.statement}{about}", _bounds_text(one.claim)]
        lines.append(_line([*row, *_how([one], commands)]))
    for group in dict.fromkeys(one.group for one in own if one.group is not None):
        cells = [one for one in own if one.group == group]
        for library in dict.fromkeys(tuple(one.claim.libraries) for one in cells):
            part = [one for one in cells if tuple(one.claim.libraries) == library]
            first = part[0].claim
            names = _listed([paper.libraries[one] for one in library])
            numbers = f"{len(part)} numbers for {names}, such as: {first.statement}"
            row = [f"`{group}`", first.source.partition(",")[0], numbers, _bounds_text(first)]
            lines.append(_line([*row, *_how(part, commands)]))
    return [*lines, ""]


def _bounds_text(claim: Claim) -> str:
    text = bounds(claim)
    return f"{text}; on a local testbed, {claim.locally.predicate.text()} as a ratio" if claim.locally else text


def _how(claims: Sequence[Stated], commands: Commands) -> tuple[str, str]:
    """The command that measures a claim, or the numbers of a table, and its time and disk; and what is in the way."""
    found = [(commands.of(one.claim), _obstacles(one, commands)) for one in claims]
    command = next((command for command, _ in found if command), None)
    counts = Counter(obstacle for _, obstacles in found for obstacle in obstacles)
    parts = [f"`{command.text()}`"] if command else []
    parts += [text if count == len(claims) else f"{count} of them {text}" for text, count in counts.items()]
    return "; ".join(parts), command.cost.text() if command else ""


def _obstacles(one: Stated, commands: Commands) -> list[str]:
    """Why a claim cannot be measured, and why not on a local testbed; empty where it can."""
    command, needs = commands.of(one.claim), one.claim.needs
    parts = []
    if command is None:
        reason = commands.why_not(one)
        reason = re.sub("external endpoints?", r"[\g<0>](external-endpoints.md)", reason)
        parts.append(f"not yet: {reason}")
    if needs is not None:
        parts.append(f"not on a local testbed: needs {needs}")
    elif one.not_locally:
        parts.append("not on a local testbed: the value is specific to the paper's hardware")
    return parts


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
