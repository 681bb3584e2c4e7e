"""Text of the figure of precision can be read where a rate has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from choreographer.browsers import Chromium

import fakeruns
import legible
from quicbed.analysis.floors import Floor, Series
from quicbed.config.model import PICTURES_VARIABLE
from quicbed.figures import output
from quicbed.papers.steps import precision
from quicbed.store import runs

FLOOR = Floor((Series(None, "sleep", "even", 300_000, 2000, 40_000.0, 1e5, None, 0.0),))


def measured(raw: Path, *, failing: tuple[float, bool] | None = None) -> pl.DataFrame:
    """Three blocks at two rates, with and without AES instructions: 10 and 20 µs, twice that without them."""
    for number, (rate, with_aes) in enumerate(
        (rate, with_aes) for rate in (40.0, 1000.0) for with_aes in (True, False)
    ):
        endpoint = {"library": "quiche", "flavour": "stock", "version": "1", "build": "quiche"}
        label = f"{rate:g} Mbit/s" + ("" if with_aes else ", no AES-NI")
        cell = {
            "id": str(number),
            "slug": "x",
            "label": label,
            "arm": "main",
            "baseline": None if with_aes else "40 Mbit/s",
        }
        for block in (1, 2, 3):
            told: dict[str, Any] = {"cell": cell, "client": endpoint, "server": endpoint}
            told["variant"] = {"cipher": "aes-128-gcm", "aes_hardware": with_aes}
            told["link"] = {"mode": "wire", "mtu": 1500, "rate_mbit": rate}
            if failing == (rate, with_aes):
                told |= {"status": "failed", "reason": "it was too slow", "metrics": {}}
            else:
                # the transfer takes bytes / rate seconds, of which the server computes a quarter, or half
                precision = (10.0 if rate < 100 else 20.0) * (1 if with_aes else 2) + (block - 2)
                told["metrics"] = {
                    "goodput_mbps": rate,
                    "bytes": 5_000_000,
                    "server_cpu_s": (0.25 if with_aes else 0.5) * 40 / rate,
                    "pacing_precision_us": precision,
                }
            fakeruns.write_run(raw, fakeruns.make_run(experiment="pacing-precision", block=block, **told))
    return runs.select_campaign(runs.table(raw), "pacing-precision")


@pytest.mark.skipif(Chromium.find_browser(skip_local=False) is None, reason="no Chromium is installed")
def test_all_text_can_be_read_where_a_rate_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PICTURES_VARIABLE, "svg")
    campaign = measured(tmp_path / "raw", failing=(1000.0, False))
    drawn = precision.precision(campaign, precision.by_rate(campaign), FLOOR)
    output.save(drawn, tmp_path / "figures")
    assert legible.problems(sorted((tmp_path / "figures").glob("*.svg")), tmp_path) == []
