"""Verdicts on all claims as they were worked out: a file beside the tables of runs, for whatever shows them.

It is of what the one who writes it says, and whoever reads it says what it has to be of: other runs, code or
configuration need other verdicts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from quicbed.base import durable
from quicbed.claims import causes, papers, verdicts
from quicbed.claims.causes import Found
from quicbed.claims.papers import Stated
from quicbed.claims.verdicts import Outcome, Result, Tables
from quicbed.config.model import Project
from quicbed.store.paths import VERDICTS_VARIABLE
from quicbed.store.runs import collected

FILE = "verdicts.json"

_PLAIN = [one.name for one in fields(Result) if one.name not in ("stated", "predicate", "outcomes", "beyond", "twin")]


@dataclass(frozen=True)
class Judged:
    """Verdicts on all claims, in their order, and what the tests of causes show."""

    results: Sequence[Result]
    tests: causes.Tests

    def of_papers(self, names: Iterable[str]) -> list[Result]:
        """The verdicts on the claims of some papers."""
        wanted = set(names)
        return [result for result in self.results if result.stated.name in wanted]

    def found(self, project: Project, results: Sequence[Result]) -> Found:
        """Causes of some of the results."""
        return causes.find(project, [one.stated for one in self.results], results, self.tests)


def judge(project: Project, found: Tables) -> Judged:
    """Judge all claims of a project by the runs in *found*."""
    known = papers.stated(project)
    return Judged(verdicts.evaluate(project, known, found), causes.tested(project, known, found))


def write(judged: Judged, file: Path, of: str) -> None:
    """Write verdicts that are *of* something; where that is empty nobody takes them."""
    told = {
        "of": of,
        "verdicts": {result.stated.id: _told(result) for result in judged.results},
        "tests": {cause: [_told(result) for result in results] for cause, results in judged.tests.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(file, json.dumps(told) + "\n")


def read(file: Path, project: Project, of: str) -> Judged | None:
    """What `write` has left; None where it is of something else, or cannot be read."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        if not of or told["of"] != of:
            return None
        known = papers.stated(project)
        results = [_result(one, told["verdicts"][one.id]) for one in known]
        tests = {
            cause: [_result(*pair) for pair in zip(own, told["tests"][cause], strict=True)]
            for cause, own in causes.stated_tests(project, known).items()
        }
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Judged(results, tests)


def made(raw: Path, project: Project) -> Judged | None:
    """What the workflow has judged by the runs below *raw*, beside the table that it has made of them."""
    table, of = collected(raw), os.environ.get(VERDICTS_VARIABLE)
    return read(table.with_name(FILE), project, of) if table is not None and of else None


def _told(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in _PLAIN} | {
        # its bounds are one of two of the claim's
        "locally": result.predicate != result.stated.claim.predicate,
        "outcomes": [asdict(one) for one in result.outcomes],
        "beyond": [asdict(one) for one in result.beyond],
        "twin": None if result.twin is None else _told(result.twin),
    }


def _result(stated: Stated, told: Mapping[str, Any]) -> Result:
    claim, twin = stated.claim, stated.twin
    found = Result(stated, **{name: told[name] for name in _PLAIN})
    found.predicate = claim.locally.predicate if told["locally"] and claim.locally else claim.predicate
    found.outcomes, found.beyond = ([_outcome(one) for one in told[name]] for name in ("outcomes", "beyond"))
    found.floor = _floor(told["floor"])
    if told["twin"] is not None and twin is not None:
        found.twin = _result(twin, told["twin"])
    return found


def _outcome(told: Mapping[str, Any]) -> Outcome:
    return Outcome(**{**told, "cells": tuple(told["cells"]), "floor": _floor(told["floor"])})


def _floor(told: Sequence[float] | None) -> tuple[float, float] | None:
    return None if told is None else (told[0], told[1])
