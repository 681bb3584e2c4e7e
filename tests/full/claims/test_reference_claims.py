"""Claims that the reference data make fail are explained."""

from __future__ import annotations

from pathlib import Path

from clone import ROOT
from quicbed.claims import judged, verdicts
from quicbed.config.model import Project
from quicbed.store import details

PROJECT = Project(ROOT).without_folders()


def test_every_claim_that_the_reference_data_make_fail_has_a_cause_that_no_test_contradicts(
    reference_table: Path, tmp_path: Path
) -> None:
    raw = ROOT / "raw" / "reference"
    found = verdicts.tables(raw, ROOT, *details.everything(raw, made=reference_table))
    kept = judged.judge(PROJECT, found)
    # what is kept of it is all of it
    file, again = tmp_path / judged.FILE, tmp_path / "again.json"
    judged.write(kept, file, "these runs")
    assert judged.read(file, PROJECT, "other runs") is None
    told = judged.read(file, PROJECT, "these runs")
    assert told is not None
    judged.write(told, again, "these runs")
    assert again.read_bytes() == file.read_bytes()
    assert [one.predicate for one in told.results] == [one.predicate for one in kept.results]
    why = kept.found(PROJECT, kept.results)
    assert [result.stated.id for result in why.unknown] == []
    assert [one.cause.id for one in why.causes if one.status == "contradicted"] == []
