"""Ladders of bit rates and rate traces: read strictly, and what a variant of workload `video` must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT
from quicbed.config import videos
from quicbed.config.model import ConfigError, Experiment, Project


def tables(root: Path, video: list[str] = [], trace: list[str] = []) -> Path:  # noqa: B006 (not changed)
    (root / "config").mkdir()
    (root / videos.FILE).write_text("\n".join([",".join(videos.COLUMNS), *video]) + "\n", encoding="utf-8")
    (root / videos.TRACES).write_text("\n".join([",".join(videos.TRACE_COLUMNS), *trace]) + "\n", encoding="utf-8")
    return root


def test_a_ladder_has_its_bit_rates_in_their_order(tmp_path: Path) -> None:
    root = tables(tmp_path, ["a,2,350,here", "a,2,700,here", "b,4,1000,here"])
    assert videos.read(root) == {"a": videos.Video("a", 2, (350, 700)), "b": videos.Video("b", 4, (1000,))}


@pytest.mark.parametrize(("play_s", "segments"), [(2, 1), (6, 3), (6.1, 4), (0.3, 1), (60, 30)])
def test_whole_segments_are_played(play_s: float, segments: int) -> None:
    assert videos.Video("a", 2, (350,)).segments(play_s) == segments


@pytest.mark.parametrize(
    "lines",
    [
        ["a,2,350,here", "a,2,350,here"],
        ["a,2,350,here", "a,4,700,here"],
        ["a,0,350,here"],
        ["a,2,fast,here"],
        ["a,2,inf,here"],
        ["a,2,1.5,here"],
        [",2,350,here"],
        ["a,2"],
    ],
    ids=wording.name,
)
def test_a_ladder_that_cannot_be_used_says_where(tmp_path: Path, lines: list[str], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(videos.VideoError) as error:
        videos.read(tables(tmp_path, lines))
    assert wording.one_line(error.value, tmp_path, names="videos.csv: line ") == snapshot


def test_a_trace_begins_anew_after_its_end(tmp_path: Path) -> None:
    trace = videos.read_traces(tables(tmp_path, trace=["a,0,4,5,here", "a,4,12,1,here"]))["a"]
    assert [trace.at(second) for second in (0, 3.9, 4, 11.9, 12, 16)] == [5, 5, 1, 1, 5, 1]
    assert trace.highest_mbit == 5


@pytest.mark.parametrize(
    "lines",
    [
        ["a,0,4,5,here", "a,5,9,1,here"],
        ["a,1,4,5,here"],
        ["a,0,4,5,here", "a,3,9,1,here"],
        ["a,0,4,5,here", "b,4,8,1,here"],
        ["a,0,4,0.5,here"],
        ["a,0,0,5,here"],
        ["a,-1,4,5,here"],
        [",0,4,5,here"],
    ],
    ids=wording.name,
)
def test_a_trace_that_cannot_be_used_says_where(tmp_path: Path, lines: list[str], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(videos.VideoError) as error:
        videos.read_traces(tables(tmp_path, trace=lines))
    assert wording.one_line(error.value, tmp_path, names="rate-traces.csv: line ") == snapshot


def test_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / videos.TRACES).write_text("trace,rate\n", encoding="utf-8")
    with pytest.raises(videos.VideoError, match="the first line has to be trace,begin_s,end_s,rate_mbit,source"):
        videos.read_traces(tmp_path)
    assert videos.read(tmp_path) == {}


def experiment(changes: dict[str, Any], **top: Any) -> dict[str, Any]:
    read = yaml.safe_load((ROOT / "config/experiments/video.yaml").read_text(encoding="utf-8"))
    read["variants"][0] |= changes
    return {**read, **top}


@pytest.mark.parametrize(
    ("changes", "top", "told"),
    [
        ({"video": None}, {}, "video is of workload.kind `video`, where each has one"),
        ({"loaded_by": "endpoint"}, {}, "a video is loaded_by `chromium`"),
        ({"rate_trace": "drop"}, {}, "rate_trace and rate_mbit both say what the rate is"),
        ({"page": "light-2019"}, {}, "page is of workload.kind `page`"),
        ({}, {"workload": {"kind": "page"}}, "video is of workload.kind `video`"),
        ({}, {"scales": {"tiny": {"bytes": 1, "blocks": 1}}}, "play_s is of workload.kind `video`, where each scale"),
    ],
)
def test_a_video_has_its_variants_and_scales(changes: dict[str, Any], top: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Experiment.model_validate(experiment(changes, **top))


def test_scales_of_other_workloads_are_written_as_they_were() -> None:
    project = Project(ROOT)
    assert "play_s" not in project.experiments["web"].scales["quick"].model_dump()
    assert project.experiments["video"].scales["quick"].model_dump()["play_s"] == 14


def test_a_trace_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    (root / "config").mkdir(parents=True)
    (root / "workflow").symlink_to(ROOT / "workflow")
    for name in ("config.yaml", "pages.csv", "videos.csv", "testbeds", "libraries"):
        (root / "config" / name).symlink_to(ROOT / "config" / name)
    (root / "config/experiments").mkdir()
    text = (ROOT / "config/experiments/video.yaml").read_text(encoding="utf-8")
    (root / "config/experiments/video.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"video\.yaml: variants: `5, 1, 5 Mbit/s`: rate_trace: `drop` is unknown"):
        Project(root, {"experiments": ["video"]})
