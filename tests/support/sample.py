"""The builds and pairs that the default layers of the tests are about: a covering array, worked out from config/.

Every aspect that a build or a pair can have is in the sample at least once; what is left out has none that is not.
Layer `full` has all of them. As a program it prints the files that Snakemake makes for a layer, one a line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import TypeVar

from clone import ROOT
from quicbed.builds import kit, making
from quicbed.config.model import Project, Variant
from quicbed.plan import march
from quicbed.plan.cells import build_of
from quicbed.plan.factors import open_loop_reason, unsupported_reason

FULL = os.environ.get("QUICBED_LAYER") == "full"
HUBS = ("quinn", "quiche")
"""Libraries that every other of the sample meets, in both directions."""
KINDS = ("stock", "noop", "pq")
"""Flavours with a name of their own in the configuration; the others are one kind."""

Build = tuple[str, str]
"""A library and a flavour."""
Pair = tuple[str, str]
"""The library of the client and that of the server."""
Item = TypeVar("Item", bound=Hashable)


def covering(
    aspects: Mapping[Item, Iterable[Hashable]], first: Iterable[Item] = (), cost: Callable[[Item], float] = lambda _: 1
) -> list[Item]:
    """Items that have every aspect among them: *first*, then the one with the most new aspects for its cost.

    Of several that are as good, the first by name; sorted.
    """
    chosen = list(first)
    missing = set().union(*map(set, aspects.values())) - set().union(*(set(aspects[item]) for item in chosen))
    while missing:
        best = min(sorted(aspects, key=str), key=lambda item: -len(missing & set(aspects[item])) / cost(item))
        chosen.append(best)
        missing -= set(aspects[best])
    return sorted(chosen)


@cache
def project() -> Project:
    """The repository's, without folders that somebody has added."""
    return Project(ROOT).without_folders()


def all_builds() -> list[Build]:
    """Every flavour of every library; not of what has no handshake, of which little that all keep can be asked."""
    libraries = {name: one for name, one in project().libraries.items() if one.transport != "udp"}
    return [(name, flavour) for name, library in libraries.items() for flavour in library.flavours]


@cache
def variant_keys() -> dict[Build, set[str]]:
    """The keys of a variant that experiments ask of a build otherwise than by default."""
    found: dict[Build, set[str]] = {build: set() for build in all_builds()}
    for experiment in project().experiments.values():
        control = experiment.workload.congestion_control
        for pair in experiment.pairs():
            client, server = (project().libraries[name] for name in (pair.client, pair.server))
            for variant in experiment.variants:
                reasons = [unsupported_reason(one, variant, control) for one in (client, server)]
                if any(reasons) or open_loop_reason(client, variant):
                    continue
                keys = {
                    name
                    for name, field in Variant.model_fields.items()
                    if name != "label" and getattr(variant, name) != field.get_default(call_default_factory=True)
                }
                for name, role in ((pair.client, "client"), (pair.server, "server")):
                    flavour = march.parts(build_of(project(), name, variant, role)).flavour  # type: ignore[arg-type]
                    found.setdefault((name, flavour), set()).update(keys)
    return found


def aspects_of_build(build: Build) -> set[tuple[str, str]]:
    """Recipe, TLS library, engines, kind of flavour and keys of variants."""
    name, flavour = build
    library = project().libraries[name]
    of_flavour = project().of_flavour(name, flavour).libraries[name]
    directories = [*library.flavours[flavour].sources]
    if of_flavour.package:
        directories += map(str, kit.workspace_directories(ROOT, of_flavour.package))
    engines = {part for directory in directories for part in [directory.partition("/engine/")[2]] if part}
    return {
        ("recipe", library.recipe),
        ("TLS library", library.tls_library),
        ("kind of flavour", flavour if flavour in KINDS else "another"),
        *(("engine", engine) for engine in engines),
        *(("variant key", key) for key in variant_keys()[build]),
    }


def build_minutes(build: Build) -> float:
    """What a build takes, with the stock build that it may be made from."""
    name, flavour = build
    library = project().libraries[name]
    from_stock = flavour != "stock" and getattr(making.recipe_of(library), "FROM_STOCK", False)
    return sum(library.flavours[one].estimate.minutes for one in {flavour, *(["stock"] if from_stock else [])})


def aspects_of_pair(pair: Pair) -> set[tuple[str, str]]:
    """What the two ends have in common, and each TLS library at each end."""
    client, server = (project().libraries[name] for name in pair)
    if pair[0] == pair[1]:
        kind = f"a library with itself, {client.alpn}"
    else:
        kind = "the same TLS library" if client.tls_library == server.tls_library else "different TLS libraries"
    return {("kind of pair", kind), ("TLS client", client.tls_library), ("TLS server", server.tls_library)}


@cache
def builds() -> list[Build]:
    """Those of the layers that run: the hubs' of every kind, and what it takes for every aspect."""
    if FULL:
        return all_builds()
    first = [(hub, flavour) for hub in HUBS for flavour in KINDS]
    return covering({build: aspects_of_build(build) for build in all_builds()}, first, build_minutes)


def libraries(flavour: str | None = None) -> list[str]:
    """Libraries of `builds`, those of a flavour if one is named."""
    return list(dict.fromkeys(name for name, built in builds() if flavour in (None, built)))


def flavour_of(library: str, wanted: str = "stock") -> str | None:
    """A flavour in the sample that does what the wanted one does; every flavour does what `stock` does."""
    flavours = [flavour for name, flavour in builds() if name == library]
    return wanted if wanted in flavours else flavours[0] if wanted == "stock" and flavours else None


@cache
def pairs() -> list[Pair]:
    """Client and server of `libraries` that can meet: in layer `full` all, else all with a hub, and a covering rest."""
    chosen = libraries()
    able = [
        (one, two) for one in chosen for two in chosen if project().libraries[one].pairs_with(project().libraries[two])
    ]
    if FULL:
        return able
    first = [pair for pair in able if set(pair) & set(HUBS)]
    return covering({pair: aspects_of_pair(pair) for pair in able}, first)


def main() -> None:
    """Print the copies of build.json of the builds."""
    for build in builds():
        print(making.listing(project(), *build))


if __name__ == "__main__":
    sys.exit(main())
