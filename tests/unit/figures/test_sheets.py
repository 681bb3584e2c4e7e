"""Tables for people: what their numbers lead to."""

from __future__ import annotations

import re

import polars as pl
import pytest

from quicbed.analysis import comparison, place
from quicbed.figures import sheets
from quicbed.figures.handshake_tables import Printed
from quicbed.figures.sheets import Sheet
from quicbed.store import runs

ONE, OTHER = runs.selection("c0ffee00", "1a2b"), runs.selection(None, experiment="web & more", library="quiche")


def links(page: str) -> list[tuple[str, str]]:
    return re.findall(r"<a href='([^']*)'>([^<]*)</a>", page)


def test_a_selection_is_the_end_of_an_address() -> None:
    assert runs.selection("c0ffee00", "b", "a", "b") == "campaign=c0ffee00&cell=b,a"
    assert OTHER == "experiment=web%20%26%20more&library=quiche"


def test_numbers_lead_to_their_runs_where_there_is_a_page_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = sheets.leading([ONE, None], [1, 2])
    sheet = Sheet(["library", "n", "mean"], [["quiche", 3, None], ["published", 4, 5]], behind=behind)
    printed = Printed("Table", [("", 3)], ["library", "n", "mean"], [["quiche", "3", "-"]], [], frozenset(), behind)
    for shown in (sheet, printed):
        monkeypatch.delenv(place.RUNS_PAGE_VARIABLE, raising=False)
        assert links(shown._repr_html_()) == []
        assert links(shown.__html__())[0] == (f"runs.html#{ONE.replace('&', '&amp;')}", "3")
        monkeypatch.setenv(place.RUNS_PAGE_VARIABLE, "../report/runs.html")
        assert links(shown._repr_html_())[0] == (f"../report/runs.html#{ONE.replace('&', '&amp;')}", "3")
    # nothing leads where there is no value or no run
    assert len(links(sheet._repr_html_())) == 1


def test_joined_tables_keep_what_their_numbers_lead_to() -> None:
    parts = [
        Sheet(["a", "b"], [["x", 1], ["y", 2]], frozenset({1}), ["note"], sheets.leading([None, ONE], [1])),
        Sheet(["a", "b"], [["z", 3]], frozenset({1}), ["other"], sheets.leading([OTHER], [1])),
    ]
    joined = sheets.joined(parts)
    assert [list(row) for row in joined.rows] == [["x", 1], ["y", 2], ["z", 3]]
    assert joined.behind == {(1, 1): ONE, (2, 1): OTHER}
    assert joined.notes == ["note"]


def test_a_ratio_that_is_not_decided_leads_to_both_its_cells() -> None:
    row = dict.fromkeys(comparison.UNDECIDED) | {
        "campaign": "c0ffee00", "client_library": "quinn", "server_library": "quinn", "label": "NOOP", "cell": "a",
        "baseline": "b", "half_width": 0.1,
    }  # fmt: skip
    sheet = sheets.undecided(pl.DataFrame([row], schema=comparison.UNDECIDED, orient="row"))
    assert set(sheet.behind.values()) == {"campaign=c0ffee00&cell=a,b"}
