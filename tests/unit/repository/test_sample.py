"""The sample of builds and pairs keeps its promise: every aspect is in it, and what is left out is in layer full."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

import sample
from quicbed.config.model import Variant

LIBRARIES = {name: one for name, one in sample.project().libraries.items() if one.transport != "udp"}


def test_every_aspect_of_a_build_is_in_the_sample() -> None:
    chosen = set().union(*map(sample.aspects_of_build, sample.builds()))
    assert chosen == set().union(*map(sample.aspects_of_build, sample.all_builds()))
    # what is counted as an aspect comes from the configuration; so much has to be there
    for kind, least in (
        ("recipe", {library.recipe for library in LIBRARIES.values()}),
        ("TLS library", {library.tls_library for library in LIBRARIES.values()}),
        ("engine", {"curl", "nginx", "poll", "quinn"}),
        ("kind of flavour", {*sample.KINDS, "another"}),
        ("variant key", {"aead", "cipher", "group", "header_protection", "retry", "signature"}),
    ):
        assert {name for of, name in chosen if of == kind} >= least


def test_variant_keys_are_those_that_experiments_ask_for() -> None:
    asked = {
        key
        for experiment in sample.project().experiments.values()
        for variant in experiment.variants
        for key in Variant.model_fields
        if key != "label" and getattr(variant, key) != Variant.model_fields[key].get_default(call_default_factory=True)
    }
    sampled = {
        name for build in sample.builds() for kind, name in sample.aspects_of_build(build) if kind == "variant key"
    }
    assert sampled == asked


def test_every_aspect_of_a_pair_is_in_the_sample_and_hubs_meet_everybody_both_ways() -> None:
    chosen = sample.libraries()
    able = [pair for pair in itertools.product(chosen, chosen) if LIBRARIES[pair[0]].pairs_with(LIBRARIES[pair[1]])]
    assert set().union(*map(sample.aspects_of_pair, sample.pairs())) == set().union(*map(sample.aspects_of_pair, able))
    for hub in sample.HUBS:
        assert {pair for pair in able if hub in pair} <= set(sample.pairs())


@pytest.fixture
def of_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[bool], tuple[list[sample.Build], list[sample.Pair]]]]:
    """Builds and pairs of layer full or of the default layers, whichever of them this test runs in."""

    def chosen(full: bool) -> tuple[list[sample.Build], list[sample.Pair]]:
        monkeypatch.setattr(sample, "FULL", full)
        sample.builds.cache_clear()
        sample.pairs.cache_clear()
        return sample.builds(), sample.pairs()

    yield chosen
    sample.builds.cache_clear()
    sample.pairs.cache_clear()


def test_the_sample_is_smaller_than_all_and_full_has_the_rest(
    of_layer: Callable[[bool], tuple[list[sample.Build], list[sample.Pair]]],
) -> None:
    (builds, pairs), (all_builds, all_pairs) = of_layer(False), of_layer(True)
    assert len(builds) < len(sample.all_builds()) / 2
    assert all_builds == sample.all_builds()
    every = list(itertools.product(LIBRARIES, LIBRARIES))
    assert all_pairs == [(one, two) for one, two in every if LIBRARIES[one].pairs_with(LIBRARIES[two])]
    assert set(builds) < set(all_builds)
    assert set(pairs) < set(all_pairs)


def test_a_covering_array_takes_the_cheapest_of_equals_and_stops_when_all_is_covered() -> None:
    aspects = {"a": {1, 2}, "b": {2, 3}, "c": {1, 2, 3}, "d": {4}, "e": {4}}
    assert sample.covering(aspects) == ["c", "d"]
    assert sample.covering(aspects, cost=lambda item: {"c": 9, "d": 2}.get(item, 1)) == ["a", "b", "e"]
    assert sample.covering(aspects, first=["b"]) == ["a", "b", "d"]


def test_a_flavour_of_the_sample_does_what_stock_does() -> None:
    for library in sample.libraries():
        assert (library, sample.flavour_of(library)) in sample.builds()
    assert sample.flavour_of("quinn", "pq") == "pq"
    assert sample.flavour_of("no such library") is None
