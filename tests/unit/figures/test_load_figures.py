"""The figure of downloads beside competing traffic: every cell is drawn, or says why it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import fakeruns
from quicbed.figures import goodput, load_figures, output
from quicbed.store import runs

LOADS = {"no load": None, "50 % load": 50.0, "90 % load": 90.0}
LIBRARIES = ("quiche", "quinn")


@pytest.fixture
def drawn(tmp_path: Path) -> output.Drawn:
    for library in LIBRARIES:
        for label, percent in LOADS.items():
            for block in (1, 2):
                made = fakeruns.make_run(
                    experiment="background-load",
                    cell={
                        "id": f"{library}-{percent}",
                        "slug": f"{library}-{percent}",
                        "label": label,
                        "arm": "main",
                        "baseline": None,
                    },
                    client={"library": library, "flavour": "stock", "version": "1", "build": library},
                    server={"library": library, "flavour": "stock", "version": "1", "build": library},
                    block=block,
                    metrics={
                        "goodput_mbps": 200.0 - (percent or 0) + block,
                        "ttfb_ms": 2.0 + (percent or 0) / 3,
                        "bytes": 1000,
                    },
                )
                made |= {"format": 2, "link": made["link"] | {"rate_mbit": 200.0}}
                if percent is not None:
                    made["variant"] = made["variant"] | {"background": {"percent": percent}}
                    made["metrics"] |= {
                        "background_sent_mbps": 2 * percent,
                        "background_received_mbps": 2 * percent - 9,
                    }
                if (library, label) == ("quinn", "90 % load"):
                    made |= {"status": "failed", "reason": "competing traffic: it <ended>", "metrics": {}}
                fakeruns.write_run(tmp_path / "raw", made)
    campaign, _ = goodput.experiment_table(runs.table(tmp_path / "raw"), "background-load")
    return load_figures.beside_load(campaign, load_figures.load_table(campaign), {"quinn": "Quinn"})


def test_each_load_has_its_means_by_metric(drawn: output.Drawn) -> None:
    traces = drawn.figure.data
    assert [trace.name for trace in traces] == ["no load", "50 % load", "90 % load"] * 2
    assert [list(trace.y) for trace in traces] == [
        [201.5, 201.5],
        [151.5, 151.5],
        [111.5],
        [2.0, 2.0],
        [pytest.approx(2 + 50 / 3)] * 2,
        [32.0],
    ]
    assert list(drawn.figure.layout.xaxis2.ticktext) == ["quiche", "Quinn"]
    assert "competing: 180.0 Mbit/s sent, 171.0 arrived" in traces[2].hovertext[0]
    left = [shape.y0 for shape in drawn.figure.layout.shapes]
    assert left == [200.0, 100.0, pytest.approx(20.0)]


def test_a_cell_without_a_mean_says_why(drawn: output.Drawn) -> None:
    said = {note.hovertext for note in drawn.figure.layout.annotations if note.text == "failed"}
    assert said == {"competing traffic: it &lt;ended&gt;"}


def test_the_table_has_a_row_for_each_cell_and_metric(drawn: output.Drawn) -> None:
    assert len(drawn.table) == len(LIBRARIES) * len(LOADS) * len(load_figures.METRICS)
    row = drawn.table.filter(label="50 % load", client_library="quiche", metric="goodput_mbps").row(0, named=True)
    assert (row["background_percent"], row["background_sent_mbps"], row["background_received_mbps"]) == (50, 100, 91)
