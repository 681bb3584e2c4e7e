"""All text of figures can be read, in a font that goes with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from choreographer.browsers import Chromium

import legible
from quicbed.figures import font, output

pytestmark = pytest.mark.skipif(Chromium.find_browser(skip_local=False) is None, reason="no Chromium is installed")

NAMES = {"showarrow": False, "xref": "paper", "yref": "paper"}
BESIDE = [{**NAMES, "x": 0.2, "y": 0.5, "text": "one"}, {**NAMES, "x": 0.8, "y": 0.5, "text": "other"}]


def told(directory: Path, **layout: Any) -> list[str]:
    """What is found of a figure with this layout."""
    figure = go.Figure(go.Scatter(y=[1, 2], uid="a"), {"width": 300, "height": 320, "font": {"family": font.FAMILY}})
    figure.update_layout(layout)
    table = pl.DataFrame({"experiment": ["e"], "campaign": ["c"], "testbed": ["local"], "scale": ["tiny"]})
    (saved,) = output.save(output.Drawn("figure", figure, table, [], "nowhere"), directory)
    assert saved.skipped is None
    return legible.problems([directory / "figure.svg"], directory)


def test_text_that_can_be_read_is_no_problem(tmp_path: Path) -> None:
    assert told(tmp_path, annotations=BESIDE, title="A figure") == []


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({"title": {"text": "A title much too long for a figure of only so few pixels in width"}}, "is cut off"),
        ({"annotations": [{**NAMES, "x": 1.5, "y": 0.5, "text": "at the edge", "xanchor": "center"}]}, "is cut off"),
        ({"margin": {"l": 10}, "yaxis": {"title": "Turned", "automargin": False}}, "is cut off"),
        ({"annotations": [{**one, "x": 0.5} for one in BESIDE]}, "'one' and 'other' stand over each other"),
        ({"annotations": [BESIDE[0], {**BESIDE[0], "textangle": -90, "text": "turned"}]}, "stand over each other"),
    ],
)
def test_text_that_cannot_be_read_is_found(tmp_path: Path, layout: dict[str, Any], expected: str) -> None:
    found = told(tmp_path, **layout)
    assert found
    assert any(expected in line for line in found), found


def test_what_a_legend_hides_is_cut_off(tmp_path: Path) -> None:
    assert told(tmp_path, showlegend=True) == []
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    clip = re.search(r'<clipPath id="legend[^"]*">\s*<rect[^>]* width="([\d.]+)"', svg)
    assert clip
    narrow = svg.replace(clip.group(0), clip.group(0).replace(f'width="{clip.group(1)}"', 'width="30"'))
    (tmp_path / "figure.svg").write_text(narrow, encoding="utf-8")
    (line,) = legible.problems([tmp_path / "figure.svg"], tmp_path)
    assert "'trace 0' is cut off" in line
