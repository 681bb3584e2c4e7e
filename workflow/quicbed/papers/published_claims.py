"""Verdicts on claims by the raw data that their authors published, where a copy was imported (docs/importing.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from quicbed.claims import verdicts
from quicbed.claims.papers import Stated
from quicbed.claims.verdicts import Result
from quicbed.config.model import Project
from quicbed.papers.highway import claims as highway
from quicbed.papers.quic_benchmark import claims as quic_benchmark
from quicbed.papers.steps import claims as steps


def evaluate(project: Project, claims: Sequence[Stated], imported: Mapping[str, Path]) -> list[Result]:
    """Verdicts on the claims of the papers whose data was imported, in the order of *claims*.

    *imported* are directories of tables by format; nothing else is looked at.
    """
    found = {room.PAPER: room.campaigns(imported.get(room.SOURCE)) for room in (highway, steps, quic_benchmark)}
    results: list[Result] = []
    for name in dict.fromkeys(one.name for one in claims):
        tables = found.get(name)
        if tables is not None:
            results += verdicts.evaluate(project, [one for one in claims if one.name == name], tables)
    return results
