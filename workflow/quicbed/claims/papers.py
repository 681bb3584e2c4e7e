"""Published claims as data: what a paper states and where, which measured table tells, and within which bounds.

A file of ``config/claims/`` holds the claims of one paper. A claim names cells of an experiment by the labels of its
variants, what of them is compared, and a predicate; `quicbed.claims.verdicts` evaluates it. A table of numbers is one
entry, from which every numeric cell becomes a claim of its own: the numbers stand in `quicbed.analysis.published`.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from quicbed.analysis import published
from quicbed.analysis.comparison import TWIN
from quicbed.base import untrusted
from quicbed.config.model import ConfigError, Model, Name, Project, parse_model, read_yaml
from quicbed.store import details, runs, symbols

READS = (
    "config/claims/*.yaml",
    "config/experiments/*.yaml",
    "config/libraries/*.yaml",
    "config/studies/*.yaml",
    "config/testbeds/*.yaml",
)

DIRECTORY = Path("config") / "claims"

Table = Literal["runs", "shares", "handshakes", "sizes", "frames", "phases"]
Role = Literal["client", "server"]
Printed = Literal["table1", "table2", "table3"]
Kind = Literal["between", "equal", "at-most", "at-least", "magnitude", "order", "fails-above"]

SAMPLED: tuple[Table, ...] = ("runs", "shares")
"""Tables with one value a block. The others hold what protocol and build decide, of which blocks tell nothing more."""

METRICS: Mapping[Table, frozenset[str]] = {
    "runs": frozenset(name for name, kind in runs.SCHEMA.items() if kind.is_numeric()),
    "shares": frozenset({"share"}),
    "handshakes": frozenset(name for name, kind in details.HANDSHAKES.items() if kind.is_numeric() and name != "index"),
    "sizes": frozenset({"client_share_bytes", "server_share_bytes", "signature_bytes", "certificate_bytes"}),
    "frames": frozenset({"client_mean_frame_bytes", "server_mean_frame_bytes"}),
    "phases": frozenset({"crypto_share"}),
}

UNITS = {"goodput_mbps": "Mbit/s", "ttfb_ms": "ms", "share": "%", "cpu_percent": "%", "client_cpu_percent": "%"}
"""Units of metrics that claims state as values; a share is stored as a fraction."""

GOODPUT = "goodput_mbps"
SAME_MAGNITUDE = math.sqrt(10)


def digits(value: float) -> str:
    """A number for people: four digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 1000 and math.isfinite(value) else f"{value:.4g}"


class Term(Model):
    """One cell of the experiment, or what a table has of it."""

    label: str = Field(description="Label of a variant of the experiment.")
    library: Name | None = Field(
        None, description="Library of the client; null: each of the claim's `libraries` in turn."
    )
    server: Name | None = Field(None, description="Library of the server; null: that of the client.")
    role: Role | None = Field(None, description="Endpoint whose share it is (table `shares`).")
    category: symbols.Category | None = Field(None, description="Category of processor time (table `shares`).")

    def text(self) -> str:
        """For people, without the library."""
        return ", ".join(filter(None, [self.label, self.role, self.category and self.category.replace("-", " ")]))


class Ratio(Model):
    """A ratio of sums of cells."""

    of: list[Term] = Field(description="Cells that are added up.", min_length=1)
    over: list[Term] = Field(description="Cells whose sum it is divided by.", min_length=1)


class Comparison(Model):
    """What is compared with the bounds: a value, a ratio, a ratio of ratios, an order, or what all pairs span."""

    of: list[Term] = Field(
        default_factory=list,
        description="Cells that are added up. In an experiment of concurrent pairs, each counts as its ratio to the "
        "run beside it.",
    )
    over: list[Term] = Field(default_factory=list, description="Cells whose sum it is divided by; empty: the value.")
    against: Ratio | None = Field(None, description="A ratio that this one is divided by.")
    rising: list[Term] = Field(default_factory=list, description="Cells in their order, the smallest first.")
    spread: Term | None = Field(
        None,
        description="The largest over the smallest cell with this label, of all clients and servers among `libraries`.",
    )
    smallest: Term | None = Field(None, description="The smallest of those cells, as a value.")
    largest: Term | None = Field(None, description="The largest of those cells, as a value.")

    @model_validator(mode="after")
    def _consistent(self) -> Comparison:
        if sum(map(bool, (self.of, self.rising, self.spread, self.smallest, self.largest))) != 1:
            raise ValueError("needs one of `of`, `rising`, `spread`, `smallest` and `largest`")
        if (self.over or self.against) and not self.of:
            raise ValueError("`over` and `against` go with `of`")
        if self.against and not self.over:
            raise ValueError("`against` divides a ratio: `over` is missing")
        if len(self.rising) == 1:
            raise ValueError("rising: an order needs two cells")
        return self

    def terms(self) -> Iterator[Term]:
        """Every cell that it names."""
        yield from (*self.of, *self.over, *self.rising)
        if self.pairs:
            yield self.pairs
        if self.against:
            yield from (*self.against.of, *self.against.over)

    @property
    def pairs(self) -> Term | None:
        """What is looked for among all pairs of libraries; None where cells are named."""
        return self.spread or self.smallest or self.largest

    @property
    def relative(self) -> bool:
        """Whether a unit cancels."""
        return bool(self.over or self.rising or self.spread)

    @property
    def simple(self) -> bool:
        """Whether it is a ratio of one cell to another."""
        return len(self.of) == len(self.over) == 1 and self.against is None

    @property
    def within(self) -> bool:
        """Whether it is a ratio or an order of cells of the same library."""
        one_library = len({(term.library, term.server) for term in self.terms()}) == 1
        return self.relative and self.pairs is None and one_library


_BOUNDS: Mapping[Kind, frozenset[str]] = {
    "between": frozenset({"low", "high"}),
    "equal": frozenset({"value"}),
    "at-most": frozenset({"value"}),
    "at-least": frozenset({"value"}),
    "magnitude": frozenset({"value"}),
    "order": frozenset(),
    "fails-above": frozenset({"value"}),
}


class Predicate(Model):
    """The bounds that a claim sets."""

    kind: Kind = Field(
        description="`between` low and high; `equal`, `at-most`, `at-least` a value; `magnitude`: within a factor of "
        "the square root of 10 of it; `order`: each cell of `rising` above the one before; `fails-above`: connections "
        "fail exactly where a certificate has more bytes."
    )
    low: float | None = Field(None, description="Lower bound, of `between`.")
    high: float | None = Field(None, description="Upper bound, of `between`.")
    value: float | None = Field(None, description="The bound of the others.")
    tolerance: float = Field(0, ge=0, lt=10, description="Bounds are widened by this fraction.")
    slack: float = Field(0, ge=0, description="Bounds are widened by this much, in the unit of the value.")

    @model_validator(mode="after")
    def _consistent(self) -> Predicate:
        given = {name for name in ("low", "high", "value") if getattr(self, name) is not None}
        needed = _BOUNDS[self.kind]
        if given != needed:
            wanted = " and ".join(f"`{name}`" for name in sorted(needed, reverse=True)) or "no bound"
            raise ValueError(f"kind {self.kind} needs {wanted}, has {', '.join(sorted(given)) or 'none'}")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is more than high {self.high:g}")
        return self

    def region(self) -> tuple[float, float]:
        """Smallest and largest value with which it holds."""
        value = self.value or 0.0
        low, high = {
            "between": (self.low or 0.0, self.high or 0.0),
            "equal": (value, value),
            "at-most": (-math.inf, value),
            "at-least": (value, math.inf),
            "magnitude": (value / SAME_MAGNITUDE, value * SAME_MAGNITUDE),
            "order": (1.0, math.inf),
            "fails-above": (value, value),
        }[self.kind]
        return (low - self.slack) / (1 + self.tolerance), (high + self.slack) * (1 + self.tolerance)

    def text(self, factor: float = 1.0, unit: str = "") -> str:
        """For people; values are multiplied by `factor` and have a unit."""

        def number(value: float | None) -> str:
            return digits((value or 0.0) * factor)

        after = f" {unit}" if unit else ""
        text = {
            "between": f"between {number(self.low)} and {number(self.high)}{after}",
            "equal": f"{number(self.value)}{after}",
            "at-most": f"at most {number(self.value)}{after}",
            "at-least": f"at least {number(self.value)}{after}",
            "magnitude": f"within a factor of √10 of {number(self.value)}{after}",
            "order": "rising in the stated order",
            "fails-above": f"fails with certificates above {number(self.value)} B",
        }[self.kind]
        widened = [f"± {100 * self.tolerance:.3g} %"] if self.tolerance else []
        widened += [f"± {number(self.slack)}{after}"] if self.slack else []
        return text + (f" ({', '.join(widened)})" if widened else "")


class Locally(Model):
    """What a value becomes on a local testbed, which tells nothing of other hardware but ratios."""

    over: list[Term] = Field(description="Cells whose sum the value is divided by.", min_length=1)
    predicate: Predicate = Field(description="The bounds of the ratio.")


class Reading(Model):
    """The experiment and the table that decide."""

    experiment: Name = Field(description="Name of an experiment, or one of the paper's `awaited`.")
    table: Table = Field(
        "runs",
        description="`runs`: one value a run; `shares`: processor time by category; `handshakes`: captured ones; "
        "`sizes`: of keys, signatures and certificates; `frames`: mean sizes on the wire; `phases`: the part of the "
        "time to first byte that primitives take, as they take it by themselves.",
    )
    metric: str = Field(description="Column of the table.")


class Claim(Model):
    """One published statement."""

    id: Name = Field(description="Unique within the paper.")
    source: str = Field(description="Figure, table or section.")
    statement: str = Field(description="What it states, in our words.")
    libraries: list[Name] = Field(
        default_factory=list, description="Libraries it was stated for, of the paper's `libraries`; it is about each."
    )
    population: str = Field("", description="What else it was stated for, beyond the paper's `population`.")
    reads: Reading = Field(description="The experiment and the table that decide.")
    compare: list[Comparison] = Field(description="Comparisons that all have to be within the bounds.", min_length=1)
    predicate: Predicate = Field(description="The bounds.")
    locally: Locally | None = Field(None, description="How a value of the paper's hardware is judged elsewhere.")
    hardware: bool = Field(True, description="Whether its values depend on the paper's `hardware`.")
    cost: bool = Field(
        False,
        description="Whether it is about what something costs a library. Its comparisons of goodput are then also made "
        "of what both ends download per second of their processor time, and judged beside it.",
    )
    pairs: Name | None = Field(
        None,
        description="Experiment with the same labels whose runs are measured in concurrent pairs. Where it was "
        "measured, comparisons of processor time are made of it, and those of goodput of the goodput that follows from "
        "it, where the measured goodput agrees.",
    )
    needs: str | None = Field(None, description="What it needs that no local testbed has.")
    beyond: bool = Field(True, description="Whether it is shown for our other libraries too, which decide nothing.")
    figure: Name | None = Field(None, description="Our figure that shows it: name of a file, without ending.")
    no_figure: str | None = Field(None, description="Why no figure shows it, although its experiment is there.")
    note: str = Field("", description="How our measurement differs from the paper's.")

    @model_validator(mode="after")
    def _consistent(self) -> Claim:
        if (self.predicate.kind == "order") != all(comparison.rising for comparison in self.compare):
            raise ValueError("predicate.kind: `order` goes with `rising`, and with nothing else")
        if self.predicate.kind == "fails-above" and any(c.relative or not c.of for c in self.compare):
            raise ValueError("predicate.kind: `fails-above` goes with `of` alone")
        if len({comparison.relative for comparison in self.compare}) > 1:
            raise ValueError("compare: values and ratios are claims of their own")
        if self.locally and any(comparison.relative for comparison in self.compare):
            raise ValueError("locally: a ratio is judged everywhere; leave it out")
        if self.cost and (self.reads.metric != GOODPUT or not all(one.within for one in self.compare)):
            raise ValueError(f"cost: goes with ratios and orders of `{GOODPUT}` of one library")
        if self.pairs and not (self.cost and all(one.simple for one in self.compare)):
            raise ValueError("pairs: goes with `cost` and ratios of one cell to another")
        if len({comparison.pairs is None for comparison in self.compare}) > 1 or (
            self.locally and self.compare[0].pairs
        ):
            raise ValueError("compare: `spread`, `smallest` and `largest` go with neither `of`, `rising` nor `locally`")
        for comparison in self.compare:
            for term in comparison.terms():
                open_ = term.library is None
                if open_ and not self.libraries:
                    raise ValueError(f"libraries: `{term.label}` names no library, and neither does the claim")
                if (self.reads.table == "shares") != (term.role is not None and term.category is not None):
                    raise ValueError(f"compare: `{term.label}`: role and category go with table `shares`")
        return self

    def subjects(self) -> list[str | None]:
        """The libraries that are judged, each by itself; one null where comparisons name theirs."""
        if any(comparison.pairs for comparison in self.compare):
            return [None]
        open_ = any(term.library is None for comparison in self.compare for term in comparison.terms())
        return list(self.libraries) if open_ else [None]

    def needed(self) -> Iterator[list[tuple[str, str, str]]]:
        """Client, server and label of the cells of every outcome, which cannot be told without all of them."""
        for subject, comparison in itertools.product(self.subjects(), self.compare):
            if comparison.pairs:
                pairs = itertools.product(self.libraries, repeat=2)
                yield [(client, server, comparison.pairs.label) for client, server in pairs]
            elif self.predicate.kind == "fails-above":
                yield from (_places([term], subject) for term in comparison.of)
            elif comparison.rising:
                yield from (_places(terms, subject) for terms in itertools.pairwise(comparison.rising))
            else:
                local = self.locally.over if self.locally else []
                yield _places([*comparison.terms(), *local], subject)


def _places(terms: Iterable[Term], subject: str | None) -> list[tuple[str, str, str]]:
    clients = ((term, term.library or subject or "") for term in terms)
    return [(client, term.server or client, term.label) for term, client in clients]


class Cells(Model):
    """Every numeric cell of a published table as a claim."""

    id: Name = Field(description="What the ids of its claims begin with.")
    source: str = Field(description="The table.")
    statement: str = Field(
        description="Statement of a claim, with `{row}`, `{library}`, `{role}`, `{category}` and `{value}`."
    )
    data: Printed = Field(description="The table's numbers, in workflow/quicbed/analysis/published/.")
    column: str = Field(description="Column of a number, with `{library}`, `{role}` and `{category}`.")
    libraries: list[Name] = Field(description="Libraries of the columns or rows.", min_length=1)
    roles: list[Role] = Field(default_factory=list, description="Endpoints, where columns are of one.")
    categories: list[symbols.Category] = Field(
        default_factory=list, description="Categories, where columns are of one."
    )
    reads: Reading = Field(description="The experiment and the table that decide; the metric with `{role}`.")
    percent: bool = Field(False, description="Whether numbers are percentages of a share.")
    reference: str | None = Field(
        None, description="Row that the others are divided by on a local testbed, where its own values say nothing."
    )
    tolerance: float = Field(0, ge=0, lt=10, description="Bounds are widened by this fraction.")
    slack: float = Field(0, ge=0, description="Bounds are widened by this much, in the unit of the numbers.")
    figure: Name | None = Field(None, description="Our figure that shows it: name of a file, without ending.")
    no_figure: str | None = Field(None, description="Why no figure shows it, although its experiment is there.")
    note: str = Field("", description="How our measurement differs from the paper's.")


class Paper(Model):
    """config/claims/<name>.yaml: what one paper states."""

    title: str = Field(description="Title.")
    short: str | None = Field(None, description="A short name, where there is little room; null: the title.")
    citation: str = Field(description="Authors, venue, identifier.")
    population: str = Field(description="What all claims were stated for: hosts, link, versions, repetitions.")
    hardware: str | None = Field(
        None, description="Hardware that absolute values belong to; null: they belong to none."
    )
    libraries: dict[Name, str] = Field(description="Its libraries by the name they have here, with its own name.")
    published: dict[Name, Printed] = Field(
        default_factory=dict, description="Its tables whose numbers are shipped, by the experiment that repeats them."
    )
    awaited: dict[Name, str] = Field(
        default_factory=dict, description="Experiments that claims need and that may not exist yet: what they vary."
    )
    claims: list[Claim] = Field(default_factory=list, description="Findings.")
    cells: list[Cells] = Field(default_factory=list, description="Tables of numbers.")


@dataclass(frozen=True)
class Stated:
    """A claim of a paper."""

    name: str  # of the paper's file
    paper: Paper
    claim: Claim
    group: str | None = None  # id of the table it is a cell of

    @property
    def id(self) -> str:
        """Unique among all papers."""
        return f"{self.name}/{self.claim.id}"

    @property
    def value_of(self) -> str | None:
        """The hardware whose value it states, of which other hardware can tell a ratio or nothing; None for others."""
        claim = self.claim
        if claim.reads.table != "runs" or claim.predicate.kind == "fails-above" or not claim.hardware:
            return None
        return None if any(comparison.relative for comparison in claim.compare) else self.paper.hardware

    @property
    def twin(self) -> Stated | None:
        """The same of processor time, for a claim about cost; None for others."""
        if not self.claim.cost:
            return None
        reads = self.claim.reads.model_copy(update={"metric": TWIN})
        return replace(self, claim=self.claim.model_copy(update={"reads": reads, "cost": False}))

    @property
    def not_locally(self) -> str | None:
        """Why no local testbed can tell; None where one can."""
        if self.claim.needs is not None:
            return f"needs {self.claim.needs}"
        if self.value_of is not None and self.claim.locally is None:
            return f"a value of {self.value_of}: on a local testbed only ratios and orders can be compared"
        return None


def read(root: Path) -> dict[str, Paper]:
    """Every paper by the name of its file; raises ConfigError that names the file and the key."""
    files = sorted((root / DIRECTORY).glob("*.yaml"))
    return {file.stem: parse_model(Paper, read_yaml(file), file) for file in files}


def stated(project: Project) -> list[Stated]:
    """All claims, in the order of the files; checked against the experiments of the project."""
    found: list[Stated] = []
    for name, paper in read(project.root).items():
        own = [Stated(name, paper, claim) for claim in paper.claims]
        for cells in paper.cells:
            own += [Stated(name, paper, claim, cells.id) for claim in _claims(cells, project.root / DIRECTORY / name)]
        check_claims(project, project.root / DIRECTORY / f"{name}.yaml", paper, own)
        found += own
    for experiment, part in project.study.experiments.items() if project.study is not None else ():
        try:
            chosen(found, part.claims)
        except ConfigError as error:
            where = project.root / "config" / "studies" / f"{project.config.study}.yaml"
            raise ConfigError(f"{where}: experiments.{experiment}.claims: {error}") from None
    return found


def chosen(all_claims: Iterable[Stated], ids: Iterable[str]) -> list[Stated]:
    """Claims by id, by table or by paper; in their order."""
    known = list(all_claims)
    names: dict[str, set[str]] = {}
    for one in known:
        table = [one.group, f"{one.name}/{one.group}"] if one.group else []
        for name in (one.id, one.claim.id, one.name, *table):
            names.setdefault(name, set()).add(one.id)
    wanted: set[str] = set()
    for name in ids:
        if name not in names:
            raise ConfigError(f"claim `{name}` is unknown{_suggest(name, names)}")
        wanted |= names[name]
    return [one for one in known if one.id in wanted]


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else "; `quicbed claims --all` lists them"


def check_claims(project: Project, file: Path, paper: Paper, own: Sequence[Stated]) -> None:
    """ConfigError where claims name what there is not; *file* says it."""
    seen: set[str] = {cells.id for cells in paper.cells}
    if len(seen) != len(paper.cells):
        raise ConfigError(f"{file}: cells: two have the same id")
    for one in own:
        claim, where = one.claim, f"{file}: `{one.claim.id}`"
        if claim.id in seen:
            raise ConfigError(f"{where}: the id is given twice")
        seen.add(claim.id)
        named = [*claim.libraries, *(n for c in claim.compare for t in c.terms() for n in (t.library, t.server) if n)]
        for library in named:
            _known(f"{where}: libraries", library, paper.libraries, "declare it under `libraries` of the paper")
        experiment = project.experiments.get(claim.reads.experiment)
        if experiment is None and claim.reads.experiment in paper.awaited:
            continue  # what it will be called there is not known yet
        if experiment is None:
            remedy = "name one of config/experiments/, or declare it under `awaited`"
            _known(f"{where}: reads.experiment", claim.reads.experiment, project.experiments, remedy)
            continue
        if (claim.figure is None) == (claim.no_figure is None):
            raise ConfigError(f"{where}: figure: name the figure that shows it, or else say why none does: `no_figure`")
        labels = {variant.label for variant in experiment.variants}
        local = claim.locally.over if claim.locally else []
        for term in [*local, *(term for comparison in claim.compare for term in comparison.terms())]:
            _known(f"{where}: label", term.label, labels, f"name a variant of {claim.reads.experiment}")
        if claim.pairs is not None:
            in_pairs = {name for name, one in project.experiments.items() if one.paired}
            _known(f"{where}: pairs", claim.pairs, in_pairs, "name an experiment whose runs are `paired`")
        table = claim.reads.table
        _known(f"{where}: reads.metric", claim.reads.metric, METRICS[table], f"name a column of table `{table}`")


def _known(key: str, name: str, known: Iterable[str], remedy: str) -> None:
    if name not in set(known):
        close = difflib.get_close_matches(name, list(known), n=1)
        raise ConfigError(f"{key}: `{name}` is unknown; {f'did you mean `{close[0]}`?' if close else remedy}")


def _claims(cells: Cells, where: Path) -> Iterator[Claim]:
    """The claims of a table, one a number; an empty cell is none."""
    try:
        yield from _claims_of(cells, where)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"{where}.yaml: `{cells.id}`: {key}: {problem['msg']}") from None
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        # a name in braces that there is not, a row without the reference, a reference of zero
        told = f"{type(error).__name__}: {untrusted.shown(error)}"
        raise ConfigError(f"{where}.yaml: `{cells.id}`: cannot be filled in from {cells.data}: {told}") from None


def _claims_of(cells: Cells, where: Path) -> Iterator[Claim]:
    rows = published.rows(cells.data)
    labels = {row["label"] for row in rows}
    if cells.reference is not None:
        _known(f"{where}.yaml: `{cells.id}`: reference", cells.reference, labels, "name a row of the table")
    by_label = {(row["label"], row.get("library")): row for row in rows}
    for row in rows:
        for library, role, category in _columns(cells, row):
            column = cells.column.format(library=library, role=role, category=(category or "").replace("-", "_"))
            if column not in row:
                raise ConfigError(f"{where}.yaml: `{cells.id}`: column: {cells.data} has no column `{column}`")
            if row[column] is None:
                continue
            reference = by_label[cells.reference, row.get("library")][column] if cells.reference else None
            yield _cell_claim(cells, row["label"], library, role, category, float(row[column]), reference)


def _columns(cells: Cells, row: Mapping[str, Any]) -> Iterator[tuple[str | None, Role | None, symbols.Category | None]]:
    """Library, role and category of every number that a row has."""
    libraries: list[str | None] = list(cells.libraries)
    if "library" in row:
        libraries = [row["library"]] if row["library"] in cells.libraries else []
    elif "{library}" not in cells.column:
        libraries = [None]
    roles: list[Role | None] = [*cells.roles] or [None]
    categories: list[symbols.Category | None] = [*cells.categories] or [None]
    yield from itertools.product(libraries, roles, categories)


def _cell_claim(
    cells: Cells,
    label: str,
    library: str | None,
    role: Role | None,
    category: symbols.Category | None,
    value: float,
    reference: float | None,
) -> Claim:
    factor = 0.01 if cells.percent else 1.0
    own = Predicate(kind="equal", value=value * factor, tolerance=cells.tolerance, slack=cells.slack * factor)
    locally = None
    if reference is not None and label != cells.reference:
        ratio = Predicate(kind="equal", value=value / reference, tolerance=cells.tolerance)
        locally = Locally(over=[Term(label=str(cells.reference))], predicate=ratio)
    words = {"row": label, "library": library or "", "role": role or "", "value": f"{value:g}"}
    parts = [cells.id, label, library, role, category]
    return Claim(
        id=re.sub(r"[^a-z0-9]+", "-", "-".join(filter(None, parts)).lower()).strip("-"),
        source=f"{cells.source}, {label}",
        statement=cells.statement.format(**words, category=(category or "").replace("-", " ")),
        libraries=[library] if library else cells.libraries,
        reads=cells.reads.model_copy(update={"metric": cells.reads.metric.format(role=role)}),
        compare=[Comparison(of=[Term(label=label, role=role, category=category) if category else Term(label=label)])],
        predicate=own,
        locally=locally,
        beyond=False,
        figure=cells.figure,
        no_figure=cells.no_figure,
        note=cells.note,
    )
