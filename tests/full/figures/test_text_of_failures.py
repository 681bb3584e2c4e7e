"""Text of the figure of precision can be read where a rate has failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from choreographer.browsers import Chromium

import legible
from pacedruns import FLOOR, at_rates
from quicbed.config.model import PICTURES_VARIABLE
from quicbed.figures import output
from quicbed.papers.steps import precision


@pytest.mark.skipif(Chromium.find_browser(skip_local=False) is None, reason="no Chromium is installed")
def test_all_text_can_be_read_where_a_rate_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PICTURES_VARIABLE, "svg")
    campaign = at_rates(tmp_path / "raw", failing=(1000.0, False))
    drawn = precision.precision(campaign, precision.by_rate(campaign), FLOOR)
    output.save(drawn, tmp_path / "figures")
    assert legible.problems(sorted((tmp_path / "figures").glob("*.svg")), tmp_path) == []
