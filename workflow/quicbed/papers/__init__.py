"""Papers: the registry of published data, and rooms of papers.

A room has the importer of what the paper's authors published (`published`), what its figures and tables are made of
(`analysis`, or a module a workload), `figures`, the tables its claims are judged by (`claims`) and the `sections` of
its notebook, as far as no other paper needs them. All else knows a paper by its entry here, and its claims by that in
`quicbed.papers.published_claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

TITLES: Mapping[str, str] = {
    "quantum-of-quic": "A Quantum of QUIC",
    "quic-on-the-highway": "QUIC on the Highway",
    "quic-steps": "QUIC Steps",
    "workloads": "Evaluating QUIC Performance over Web, Cloud Storage and Video Workloads",
    "dissecting-quic": "Dissecting QUIC Implementation Performance",
    "quic-benchmark": "quic-benchmark",
}
"""Title of the paper by the name of its notebook, in the order of the report."""


class Format(NamedTuple):
    """A format of published data."""

    what: str
    importer: str
    """Module with `read(copy, out, summary)` and `LAYOUT`, loaded when a copy is read."""
    shown: bool = True
    """Whether notebooks and the report show it."""


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "highway": Format("results of QUIC on the Highway (IFIP Networking 2023)", "quicbed.papers.highway.published"),
        "steps": Format("results of QUIC Steps (CoNEXT 2025)", "quicbed.papers.steps.published"),
        "quic-benchmark": Format(
            "samples of the university project quic-benchmark", "quicbed.papers.quic_benchmark.published"
        ),
        "qir": Format("result.json of the QUIC Interop Runner", "quicbed.importers.qir", shown=False),
    }
)
