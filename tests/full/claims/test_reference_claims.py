"""Claims that the reference data make fail are explained."""

from __future__ import annotations

from pathlib import Path

from clone import ROOT
from quicbed.claims import causes, papers, verdicts
from quicbed.config.model import Project
from quicbed.store import details

PROJECT = Project(ROOT).without_folders()


STATED = papers.stated(PROJECT)


def test_every_claim_that_the_reference_data_make_fail_has_a_cause_that_no_test_contradicts(
    reference_table: Path,
) -> None:
    raw = ROOT / "raw" / "reference"
    found = verdicts.tables(raw, ROOT, *details.everything(raw, made=reference_table))
    why = causes.find(PROJECT, STATED, verdicts.evaluate(PROJECT, STATED, found), found)
    assert [result.stated.id for result in why.unknown] == []
    assert [one.cause.id for one in why.causes if one.status == "contradicted"] == []
