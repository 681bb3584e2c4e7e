"""Why claims fail, or why something else is unlike what one expects: causes as data, and what their tests show.

``config/causes.yaml`` names causes. A cause may have tests: comparisons like those of claims, which are made on the
runs at hand, or what was counted elsewhere and what was seen. A cause without a test is `untested`, and says what would
test it; one whose test fails is `contradicted`: nothing is a cause because somebody says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from quicbed.claims import verdicts
from quicbed.claims.papers import Claim, Comparison, Paper, Predicate, Reading, Stated, check_claims
from quicbed.claims.verdicts import Outcome, Result, Tables
from quicbed.config.model import ConfigError, Model, Name, Project, parse_model, read_yaml

FILE = Path("config") / "causes.yaml"
READS = ("config/causes.yaml",)

Status = Literal["supported", "contradicted", "undecided", "untested"]


class Test(Model):
    """How a cause was tested: by a comparison that is made on the runs at hand, or by something that was counted."""

    __test__ = False  # no test, for pytest

    how: str = Field(description="What is looked at, and what the cause predicts.")
    seen: str | None = Field(None, description="What was seen, of a count that no table holds, and where.")
    reads: Reading | None = Field(None, description="The experiment and the table that decide.")
    libraries: list[Name] = Field(default_factory=list, description="Libraries that are compared, each by itself.")
    compare: list[Comparison] = Field(default_factory=list, description="Comparisons, as those of claims.")
    predicate: Predicate | None = Field(None, description="The bounds of values that support the cause.")

    @model_validator(mode="after")
    def _consistent(self) -> Test:
        computed = (self.reads is not None, bool(self.compare), self.predicate is not None)
        if any(computed) == (self.seen is not None) or len(set(computed)) > 1:
            raise ValueError("needs either `seen`, or `reads`, `compare` and `predicate`")
        return self


class Explained(Model):
    """Claims that a cause explains."""

    claims: str = Field(description="`<paper>/<claim>`, where `*` stands for any characters.")
    libraries: list[Name] = Field(
        default_factory=list,
        description="Libraries whose values it explains, those beyond the paper's too; empty: all of the claim.",
    )


class Cause(Model):
    """Why measured values are as they are."""

    id: Name = Field(description="Unique.")
    text: str = Field(description="The cause, in one sentence.")
    explains: list[Explained] = Field(description="What it explains.", min_length=1)
    tests: list[Test] = Field(default_factory=list, description="How it was tested; none: it is shown as untested.")
    would_tell: str | None = Field(None, description="What would test it, of one without tests.")

    @model_validator(mode="after")
    def _testable(self) -> Cause:
        if bool(self.tests) == (self.would_tell is not None):
            raise ValueError("needs either `tests`, or `would_tell`: what would test it")
        return self


class Causes(Model):
    """config/causes.yaml: why measured values are as they are."""

    causes: list[Cause] = Field(description="Causes.")


@dataclass(frozen=True)
class Tested:
    """A cause, what its tests show, and the verdicts it explains."""

    cause: Cause
    tests: Sequence[tuple[Test, Result | None]]
    """With the result of those that were made on the runs at hand."""
    explained: Sequence[tuple[Result, Sequence[Outcome]]]
    """Verdicts with the outcomes beyond the paper's libraries that it explains."""

    @property
    def status(self) -> Status:
        """What the tests say of the cause."""
        made = {result.verdict for _, result in self.tests if result is not None}
        if "fails" in made:
            return "contradicted"
        counted = any(test.seen is not None for test, _ in self.tests)
        if not counted and not made & {"holds", "inconclusive"}:
            return "untested"
        return "undecided" if "inconclusive" in made else "supported"


@dataclass(frozen=True)
class Found:
    """Causes of verdicts."""

    causes: Sequence[Tested] = ()
    unknown: Sequence[Result] = ()
    """Claims that fail, and for which no cause is known."""
    of: Mapping[str, Sequence[Tested]] = field(default_factory=dict)
    """Causes of failing claims, by `Stated.id`."""


def read(project: Project, known: Sequence[Stated]) -> list[Cause]:
    """The causes of a project, none without the file; ConfigError where one explains a claim that there is not."""
    file = project.root / FILE
    if not file.is_file():
        return []
    found = parse_model(Causes, read_yaml(file), file).causes
    seen: set[str] = set()
    for cause in found:
        if cause.id in seen:
            raise ConfigError(f"{file}: `{cause.id}`: the id is given twice")
        seen.add(cause.id)
        for one in cause.explains:
            if not any(fnmatchcase(claim.id, one.claims) for claim in known):
                raise ConfigError(f"{file}: `{cause.id}`: explains: no claim is called `{one.claims}`")
    for cause in found:
        own = [one for _, one in _claims(project, cause) if one is not None]
        if own:
            check_claims(project, file, own[0].paper, own)
    return found


Tests = Mapping[str, Sequence[Result]]
"""Results of the tests of causes that are made on the runs at hand, by the id of the cause."""


def stated_tests(project: Project, known: Sequence[Stated]) -> dict[str, list[Stated]]:
    """Tests of causes of *known* claims that are made on the runs at hand, by the id of the cause."""
    return {cause.id: [one for _, one in _claims(project, cause) if one is not None] for cause in read(project, known)}


def tested(project: Project, known: Sequence[Stated], found: Tables) -> Tests:
    """Results of these tests by the runs in *found*; those of a cause are a family of multiple testing."""
    return {cause: verdicts.evaluate(project, tests, found) for cause, tests in stated_tests(project, known).items()}


def find(project: Project, known: Sequence[Stated], results: Sequence[Result], tests: Tests) -> Found:
    """Causes of *results*, verdicts on some of all *known* claims, with what their *tests* show (`tested`)."""
    causes = []
    for cause in read(project, known):
        made = iter(tests[cause.id])
        of_cause = [(test, None if one is None else next(made)) for test, one in _claims(project, cause)]
        causes.append(Tested(cause, of_cause, _explained(cause, results)))
    of: dict[str, list[Tested]] = {}
    for tested in causes:
        for result, _ in tested.explained:
            of.setdefault(result.stated.id, []).append(tested)
    unknown = [result for result in results if result.verdict == "fails" and result.stated.id not in of]
    return Found(causes, unknown, of)


def _claims(project: Project, cause: Cause) -> list[tuple[Test, Stated | None]]:
    """Tests as claims of our own."""
    paper = _paper(project, {name for test in cause.tests for name in test.libraries})
    return [(test, _stated(paper, cause, number, test)) for number, test in enumerate(cause.tests, 1)]


def _stated(paper: Paper, cause: Cause, number: int, test: Test) -> Stated | None:
    if test.reads is None or test.predicate is None:
        return None
    claim = Claim(
        id=f"{cause.id}-{number}",
        source="causes",
        statement=test.how,
        libraries=test.libraries,
        reads=test.reads,
        compare=test.compare,
        predicate=test.predicate,
        hardware=False,
        beyond=False,
        no_figure="a test of a cause",
    )
    return Stated("causes", paper, claim)


def _paper(project: Project, named: Iterable[str]) -> Paper:
    titles = {name: library.shown_as for name, library in project.libraries.items()}
    return Paper(title="Causes", citation="", population="", libraries={name: name for name in named} | titles)


def _explained(cause: Cause, results: Iterable[Result]) -> Sequence[tuple[Result, Sequence[Outcome]]]:
    """Claims that fail, and outcomes beyond the paper's libraries that are outside, as far as the cause names them."""
    found: list[tuple[Result, Sequence[Outcome]]] = []
    for result in results:
        named = [one for one in cause.explains if fnmatchcase(result.stated.id, one.claims)]
        if not named:
            continue
        of_all = any(not one.libraries for one in named)
        libraries = {name for one in named for name in one.libraries}
        beyond = [one for one in result.beyond if one.library in libraries and not one.inside]
        outside = [one for one in result.outside if of_all or one.library in libraries]
        if (result.verdict == "fails" and outside) or beyond:
            found.append((result, beyond))
    return found
