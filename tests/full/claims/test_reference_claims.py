"""Claims that the reference data make fail are explained, but for those of Table I."""

from __future__ import annotations

from pathlib import Path

from clone import ROOT
from quicbed.claims import judged, verdicts
from quicbed.config.model import Project
from quicbed.store import details

PROJECT = Project(ROOT).without_folders()


def test_causes_of_what_the_reference_data_make_fail_are_known_but_of_shares_and_no_test_contradicts_them(
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
    # why shares of processor time are larger here than in Table I is not known
    assert {result.stated.group for result in why.unknown} == {"table1"}
    assert [one.cause.id for one in why.causes if one.status == "contradicted"] == []
