"""Cells of notebooks, run without a kernel."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest

from quicbed.report import cells


def outputs(*sources: str, timeout_s: int = 60) -> list[list[Any]]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    cells.run(notebook, timeout_s)
    nbformat.validate(notebook)
    return [cell.outputs for cell in notebook.cells]


def test_a_cell_shows_its_last_line_what_it_displays_and_what_it_prints() -> None:
    shown, hidden, displayed, printed = outputs(
        "class Shown:\n    def _repr_html_(self):\n        return '<b>1</b>'\none = Shown()\none",
        "one;",
        "from IPython.display import display\ndisplay(one, 2)",
        "import sys\nprint('out')\nprint('err', file=sys.stderr)",
    )
    assert [(one.output_type, one.data["text/html"]) for one in shown] == [("execute_result", "<b>1</b>")]
    assert hidden == []
    assert [one.output_type for one in displayed] == ["display_data", "display_data"]
    assert displayed[1].data == {"text/plain": "2"}
    assert [(one.name, one.text) for one in printed] == [("stdout", "out\n"), ("stderr", "err\n")]


def test_pictures_are_kept_as_text_and_one_notebook_knows_nothing_of_another() -> None:
    ((picture,),) = outputs("class Shown:\n    def _repr_png_(self):\n        return b'png'\nleft = Shown()\nleft")
    assert picture.data["image/png"].strip() == "cG5n"
    with pytest.raises(cells.CellError, match="NameError"):
        outputs("left")


@pytest.mark.parametrize(
    ("source", "says"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("1 +", "SyntaxError"), ("raise SystemExit(1)", "SystemExit")],
)
def test_what_a_cell_raises_ends_the_notebook(source: str, says: str) -> None:
    with pytest.raises(cells.CellError, match=says) as raised:
        outputs("1", source, "2")
    assert "\x1b" not in raised.value.trace


def test_what_the_user_can_mend_is_one_line_without_a_trace() -> None:
    with pytest.raises(cells.CellError) as raised:
        outputs("from quicbed.store import runs", "from pathlib import Path\nruns.table(Path('/nowhere'))")
    assert str(raised.value) == raised.value.trace
    assert raised.value.trace == "RunsError: /nowhere: no such directory of runs; measure first or name another"


def test_a_cell_that_does_not_end_is_ended() -> None:
    with pytest.raises(cells.CellError, match="TimeoutError: a cell took more than 1 s"):
        outputs("while True: pass", timeout_s=1)
