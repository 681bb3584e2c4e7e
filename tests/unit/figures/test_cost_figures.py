"""Goodput and processor time beside each other: what the figure shows of a table."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.config.model import Project
from quicbed.figures import cost_figures, goodput, output
from quicbed.figures.cost_figures import KINDS, TWINS
from quicbed.store import runs

TITLES = {"quinn": "Quinn"}
PROJECT = Project(ROOT).without_folders()


def measured(tmp_path: Path, experiment: str = "aead-goodput", blocks: int = 4) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A campaign and its table, as the twin of the experiment's figure prepares it; processor time tells more."""
    fakeruns.write_campaign(tmp_path / "raw", experiment, blocks=blocks, incidents=False)
    campaign, table = goodput.experiment_table(runs.table(tmp_path / "raw"), experiment)
    table = TWINS[experiment].prepare(campaign, table)
    return campaign, table.with_columns(pl.col("^cpu_(ratio|aa).*$") * 1.1)


def draw(campaign: pl.DataFrame, table: pl.DataFrame, experiment: str = "aead-goodput") -> output.Drawn:
    found = cost_figures.both_ways(campaign, table, TWINS[experiment], TITLES)
    assert found is not None
    return found


@pytest.mark.parametrize("experiment", TWINS)
def test_contrasts_are_variants_of_the_experiment(experiment: str) -> None:
    described = PROJECT.experiments[experiment]
    labels = {one.label for one in described.variants}
    assert set(TWINS[experiment].contrasts) <= labels - {described.baseline}


@pytest.mark.parametrize("experiment", ["aead-goodput", "header-protection"])
def test_both_ratios_and_both_floors_are_those_of_the_table(tmp_path: Path, experiment: str) -> None:
    campaign, table = measured(tmp_path, experiment)
    figure = draw(campaign, table, experiment)
    shown = table.filter(pl.col("label").is_in(list(TWINS[experiment].contrasts)) & pl.col("ratio").is_not_null())
    assert len(shown) >= 6
    drawn = [trace for trace in figure.figure.data if trace.error_x.array is not None]
    for number, (kind, (_, colour, _, _)) in enumerate(KINDS.items()):
        points = [trace for trace in drawn if trace.marker.color == colour]
        assert len(points) == len(drawn) / len(KINDS)
        places = sorted(x for trace in points for x in trace.x)
        assert places == pytest.approx(sorted(100 * (shown[f"{kind}ratio"] - 1)))
        highs = sorted(x + more for trace in points for x, more in zip(trace.x, trace.error_x.array, strict=True))
        assert highs == pytest.approx(sorted(100 * (shown[f"{kind}ratio_high"] - 1)))
        floors = sorted(
            (s.x0, s.x1) for s in figure.figure.layout.shapes if s.type == "rect" and (s.y0 % 1 < 0.5) == number
        )
        expected = zip(100 * (shown[f"{kind}aa_low"] - 1), 100 * (shown[f"{kind}aa_high"] - 1), strict=True)
        assert floors == [pytest.approx(pair) for pair in sorted(expected)]
    assert figure.name == f"{TWINS[experiment].name}-cost"
    assert set(shown["cell"]) | set(shown["baseline"]) <= {
        origin.split("-")[-1].split(".")[0] for origin in figure.origins
    }


def test_a_library_whose_processor_time_differs_from_itself_is_marked(tmp_path: Path) -> None:
    campaign, table = measured(tmp_path)
    like = table.with_columns(pl.lit(0.9).alias(f"{kind}aa_low") for kind in KINDS)
    unlike = like.with_columns(
        cpu_aa_low=pl.when(pl.col("client_library") == "quinn").then(1.01).otherwise("cpu_aa_low"),
        cpu_aa_high=pl.lit(1.1),
        aa_high=pl.lit(1.1),
    )
    told = draw(campaign, unlike).figure
    assert f"Quinn {goodput.UNLIKE_ITSELF}" in told.layout.yaxis.ticktext
    assert sum(goodput.UNLIKE_ITSELF in name for name in told.layout.yaxis.ticktext) == 1
    assert goodput.UNLIKE_ITSELF_MEANS in told.layout.annotations[-1].text
    told = draw(campaign, like.with_columns(aa_high=pl.lit(1.1), cpu_aa_high=pl.lit(1.1))).figure
    assert goodput.UNLIKE_ITSELF not in str(told.layout)


def test_without_intervals_there_is_nothing_to_show(tmp_path: Path) -> None:
    campaign, table = measured(tmp_path, blocks=1)
    assert cost_figures.both_ways(campaign, table, TWINS["aead-goodput"]) is None


def test_what_is_found_is_that_of_processor_time(tmp_path: Path) -> None:
    _, table = measured(tmp_path)
    noop = {f"{kind}{end}": 1.0 for kind in KINDS for end in ("ratio", "ratio_low", "ratio_high")}
    table = table.with_columns(pl.lit(value).alias(name) for name, value in noop.items())
    table = table.with_columns(cpu_ratio=pl.lit(1.5), cpu_ratio_low=pl.lit(1.4), cpu_ratio_high=pl.lit(1.6))
    found = cost_figures.found(table, TWINS["aead-goodput"], TITLES)
    assert found is not None
    assert all("+50.0 %" in told and "by processor time" in told for told in found.sentences)
    assert len(found.sentences) == len(TWINS["aead-goodput"].contrasts)


def test_a_library_that_lacks_a_contrast_says_why(tmp_path: Path) -> None:
    fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", blocks=4)
    campaign, table = goodput.experiment_table(runs.table(tmp_path / "raw"), "aead-goodput")
    told = [(one.text, one.hovertext) for one in draw(campaign, table).figure.layout.annotations if one.hovertext]
    assert told == [("unsupported", "quinn has no NOOP AEAD")]
    single = pl.when(pl.col("label") == "AES-256-GCM").then(None).otherwise("cpu_ratio_low").alias("cpu_ratio_low")
    beside = pl.when(pl.col("label") == "NOOP").then(pl.lit("quinn")).alias("baseline_library")
    own = table.with_columns(beside, baseline_label=pl.col("label")).filter(
        (pl.col("label") != "NOOP") | (pl.col("client_library") != "quinn")
    )
    told = [(one.text, one.hovertext) for one in draw(campaign, own).figure.layout.annotations if one.hovertext]
    assert told == [("baseline", "ratios are to this one")]
    two = table.with_columns(single).filter(~((pl.col("label") == "NOOP") & (pl.col("client_library") == "quinn")))
    shown = draw(campaign, two.vstack(table.filter(pl.col("label") == "AES-256-GCM").head(1))).figure
    assert sorted(one.text for one in shown.layout.annotations if one.hovertext) == ["no interval"] * 2 + [
        "not measured"
    ]
