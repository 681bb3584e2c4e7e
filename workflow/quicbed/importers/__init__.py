"""Published data sets, read into the same tables as our own runs (docs/importing.md).

One module a format, all of which `quicbed.importers.reading` knows. Each has `read(copy, out, summary)`, which reads a
local copy (`quicbed.importers.files`), writes its tables to a directory (`quicbed.importers.tables`) and tells a
`Summary` what it left out and why. Nothing is fetched, and the copy is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from quicbed.importers.summary import SUMMARY_FILE

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "highway": "results of QUIC on the Highway (IFIP Networking 2023)",
        "steps": "results of QUIC Steps (CoNEXT 2025)",
        "quic-benchmark": "samples of the university project quic-benchmark",
        "qir": "result.json of the QUIC Interop Runner",
    }
)
"""Formats by name, with what they are."""


def imported(directory: Path) -> dict[str, Path]:
    """The imports below *directory*, by format; one that did not end is none."""
    return {name: directory / name for name in FORMATS if (directory / name / SUMMARY_FILE).is_file()}
