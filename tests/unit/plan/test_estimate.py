"""Estimates of time: of connections that begin at a rate."""

from __future__ import annotations

import re

import pytest

from clone import ROOT
from quicbed.config.model import Project
from quicbed.plan import estimate
from quicbed.plan.spec import HOLD_S
from quicbed.plan.variant import Variant


@pytest.mark.parametrize("load", [0.1, 0.5, 1.1])
def test_connections_at_a_rate_take_as_long_as_the_rate_says(load: float) -> None:
    rate_per_s = load / estimate.SERVER_SECONDS
    assert estimate.handshakes_s(Variant(load=load), 200, ()) == pytest.approx(200 / rate_per_s)
    held = estimate.handshakes_s(Variant(load=load, held=200), 200, ())
    assert held == pytest.approx(200 / rate_per_s + HOLD_S)


def test_connections_one_after_the_other_take_as_long_as_each() -> None:
    one = estimate.connection_s("rsa-2048", 40, ())
    assert estimate.handshakes_s(Variant(signature="rsa-2048", rtt_ms=40), 50, ()) == pytest.approx(50 * one)
    assert estimate.handshakes_s(Variant(signature="slow"), 1, {"slow"}) == pytest.approx(estimate.SLOW_SECONDS)


def test_the_workloads_of_the_tnsm_paper_take_three_quarters_of_an_hour_at_scale_quick() -> None:
    project = Project(ROOT, {"scale": "quick"}).without_folders()
    names = ("web", "cloud-storage", "video", "capacity")
    assert sum(estimate.of_measuring(project, name)[1] for name in names) <= 50


def test_a_pilot_and_the_slower_variants_are_part_of_what_downloads_of_a_least_time_take() -> None:
    project = Project(ROOT, {"study": "reference", "experiments": ["cpu-shares"]}).without_folders()
    scale = project.scale("cpu-shares")
    assert scale.least_s
    assert scale.max_minutes is None
    text, minutes, _ = estimate.of_measuring(project, "cpu-shares")
    cells = int(text.split()[0])
    # all blocks, and one for the pilot
    assert minutes * 60 > cells * (scale.blocks + 1) * scale.least_s * estimate.SLOWER


def test_the_last_block_begins_before_the_time_is_over_and_ends_after_it() -> None:
    project = Project(ROOT, {"study": "workloads", "experiments": ["web"]}).without_folders()
    scale = project.scale("web")
    assert scale.min_blocks is not None
    assert scale.max_minutes is not None
    text, most, _ = estimate.of_measuring(project, "web")
    fewest = int(re.search(r"about (\d+) min to", text)[1])  # type: ignore[index]
    assert scale.max_minutes < most < scale.max_minutes + (fewest + 1) / scale.min_blocks


def test_proofs_and_pilots_come_on_top_of_the_time_that_a_scale_has() -> None:
    project = Project(ROOT, {"study": "reference", "experiments": ["aes-ni"]}).without_folders()
    limit = project.scale("aes-ni").max_minutes
    assert limit is not None
    assert estimate.of_measuring(project, "aes-ni")[1] > limit + 0.5
