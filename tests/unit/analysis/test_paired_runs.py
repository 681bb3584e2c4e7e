"""What experiments of concurrent pairs become: rows, tables, figures, and what must not be mixed up with them."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.analysis import comparison, paired_runs
from quicbed.config.model import Project
from quicbed.figures import cost_figures, goodput, sheets
from quicbed.plan.cells import campaign_of
from quicbed.store import runs

PROJECT = Project(ROOT).without_folders()
EXPERIMENTS = [name for name, one in PROJECT.experiments.items() if one.alone is not None]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_ratios_are_those_within_pairs(tmp_path: Path, experiment: str) -> None:
    fakeruns.write_pairs(tmp_path / "raw", experiment)
    campaigns = comparison.Campaigns(runs.table(tmp_path / "raw"))
    assert paired_runs.is_paired(campaigns.newest(experiment))
    table = paired_runs.table(campaigns, experiment)
    expected = {label: ratio for label, _, ratio in fakeruns.PAIRS[experiment]}
    assert len(table) == 2 * len(expected)
    for cell in table.to_dicts():
        ratio = expected[cell["label"]]
        for part in ("both", "client", "server"):
            assert cell[f"{part}_ratio"] == pytest.approx(ratio, rel=0.01)
            assert cell[f"{part}_ratio_low"] < cell[f"{part}_ratio"] < cell[f"{part}_ratio_high"]
            assert cell[f"{part}_aa_low"] < 1.01
            assert cell[f"{part}_aa_high"] > 0.99
        assert cell["follows_ratio"] == pytest.approx(1 / cell["server_ratio"]), "the server is the busier end"
        assert cell["ratio_n"] == 6
        assert cell["goodput_ratio"] is None, "nothing was measured alone"
        # the interval of both ends is that of compare: Student's over pairs, and turned round it is the same
        width = math.log(cell["both_ratio_high"] / cell["both_ratio_low"])
        assert width == pytest.approx(math.log(cell["server_ratio_high"] / cell["server_ratio_low"]), rel=0.01)
    assert dict(table.schema) == paired_runs.SCHEMA


def test_they_have_no_goodput_and_are_in_no_statistics_of_runs_alone(tmp_path: Path) -> None:
    fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", blocks=6, incidents=False)
    alone = comparison.Campaigns(runs.table(tmp_path / "raw")).figure("aead-goodput")
    fakeruns.write_pairs(tmp_path / "raw")
    table = runs.table(tmp_path / "raw")
    paired = table.filter(pl.col("pair").is_not_null())
    assert set(paired["experiment"]) == {"aead-pairs"}
    assert paired["goodput_mbps"].null_count() == len(paired) == 2 * 2 * 4 * 6
    assert paired["planned"].all()
    assert table.filter(pl.col("pair").is_null())["goodput_mbps"].null_count() == 0
    campaigns = comparison.Campaigns(table)
    assert campaigns.figure("aead-goodput").equals(alone)
    told = {(one["client_library"], one["label"], one["arm"]): one for one in alone.to_dicts()}
    for cell in paired_runs.table(campaigns, "aead-pairs", "aead-goodput").filter(pl.col("arm") == "main").to_dicts():
        assert cell["goodput_ratio"] == told[cell["client_library"], cell["label"], "main"]["ratio"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_figure_shows_both_ends_and_each(tmp_path: Path, experiment: str) -> None:
    fakeruns.write_pairs(tmp_path / "raw", experiment)
    campaigns = comparison.Campaigns(runs.table(tmp_path / "raw"))
    table, twin = paired_runs.table(campaigns, experiment), cost_figures.PAIRS[experiment]
    drawn = cost_figures.both_ways(campaigns.newest(experiment), table, twin, {"quinn": "Quinn"})
    assert drawn is not None
    assert drawn.name == experiment
    shown = table.filter(pl.col("arm") == "main")
    traces = [trace for trace in drawn.figure.data if trace.error_x.array is not None]
    for kind, (_, colour, _, _) in twin.kinds.items():
        places = sorted(x for trace in traces if trace.marker.color == colour for x in trace.x)
        assert places == pytest.approx(sorted(100 * (shown[f"{kind}ratio"] - 1)))
    bands = [shape for shape in drawn.figure.layout.shapes if shape.fillcolor == goodput.PUBLISHED]
    assert len(bands) == len(set(twin.published) & set(shown["label"]))
    assert "share processors" in drawn.figure.layout.meta["caption"]
    # every run behind it, those beside too
    assert len(drawn.origins) == len(campaigns.newest(experiment))
    found = cost_figures.found(table, twin, {})
    assert found is not None
    assert len(found.sentences) == 3
    sheet = sheets.paired(table, {"quinn": "Quinn"})
    assert len(sheet.rows) == len(table)
    assert f"{table['both_ratio'][0]:.3f} {table['both_ratio_low'][0]:.3f} to" in str(sheet.rows[0])
    column = sheet.headers.index("ratio, client")
    behind = sheet.behind[0, column]
    assert table["cell"][0] in behind
    assert table["baseline"][0] in behind
    assert (0, sheet.headers.index("ratio of goodput of separate runs")) not in sheet.behind


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_figures_name_what_experiments_compare(experiment: str) -> None:
    described, twin = PROJECT.experiments[experiment], cost_figures.PAIRS[experiment]
    assert described.paired == "concurrent"
    assert described.contrast is not None
    assert set(twin.contrasts) == set(described.contrast.labels)
    assert described.alone in PROJECT.experiments
    # what is only shown beside is no part of what is measured
    project = copy.copy(PROJECT)
    project.experiments = {experiment: described.model_copy(update={"alone": None})}
    assert campaign_of(project, experiment, {}) == campaign_of(PROJECT, experiment, {})
    assert set(twin.published) <= set(twin.contrasts)


def test_what_ran_beside_may_be_of_another_library(tmp_path: Path) -> None:
    fakeruns.write_pairs(tmp_path / "raw", "floor", beside="tcp-tls")
    campaigns = comparison.Campaigns(runs.table(tmp_path / "raw"))
    table, twin = paired_runs.table(campaigns, "floor"), cost_figures.PAIRS["floor"]
    assert {(cell["client_library"], cell["label"]): cell["both_ratio"] for cell in table.to_dicts()} == {
        (library, label): pytest.approx(ratio, rel=0.01)
        for library in ("quiche", "quinn")
        for label, _, ratio in fakeruns.PAIRS["floor"]
    }
    assert set(table["baseline_library"]) == {"tcp-tls"}
    assert table["client_cpu_s_per_gib"].null_count() == 0
    drawn = cost_figures.both_ways(campaigns.newest("floor"), table, twin, {})
    assert drawn is not None
    # on logarithmic axes, a ratio is where it is
    assert {axis.type for axis in drawn.figure.select_xaxes()} == {"log"}
    both = twin.kinds["both_"][1]
    traces = [one for one in drawn.figure.data if one.error_x.array is not None and one.marker.color == both]
    places = sorted(x for trace in traces for x in trace.x)
    assert places == pytest.approx(sorted(table["both_ratio"]))
    for axis, label in zip(drawn.figure.select_xaxes(), twin.contrasts, strict=False):
        low, high = (10**end for end in axis.range)
        shown = table.filter(pl.col("label") == label)
        assert low < min(1, shown["both_ratio_low"].min())
        assert high > max(1, shown["both_ratio_high"].max())
    assert "on logarithmic axes" in drawn.figure.layout.meta["caption"]
    assert len(drawn.origins) == len(campaigns.newest("floor"))
    rows = sheets.paired(table, {"tcp-tls": "TCP+TLS"})
    assert rows.rows[0][rows.headers.index("compared with")] == "TCP+TLS, AES-128-GCM"
    assert "+" in rows.rows[0][rows.headers.index("CPU client + server [s/GiB]")]


@pytest.mark.parametrize("experiment", sorted(set(cost_figures.PAIRS) - set(EXPERIMENTS)))
def test_figures_of_pairs_across_libraries_name_what_experiments_compare(experiment: str) -> None:
    described, twin = PROJECT.experiments[experiment], cost_figures.PAIRS[experiment]
    assert described.contrast is not None
    assert list(twin.contrasts) == described.contrast.labels
    assert {one.against for one in described.variants} <= {None, "tcp-tls"}
    assert twin.times
