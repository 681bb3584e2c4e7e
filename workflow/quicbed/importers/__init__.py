"""Published data sets, read into the same tables as our own runs (docs/importing.md).

One module a format. Each has `read(copy, out, summary)`, which reads a local copy (`quicbed.importers.files`), writes
its tables to a directory (`quicbed.importers.tables`) and tells a `Summary` what it left out and why. Nothing is
fetched, and the copy is never changed.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from quicbed.importers.files import CopyError
from quicbed.importers.summary import SUMMARY_FILE, Summary

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "highway": "results of QUIC on the Highway (IFIP Networking 2023)",
        "steps": "results of QUIC Steps (CoNEXT 2025)",
        "quic-benchmark": "samples of the university project quic-benchmark",
        "qir": "result.json of the QUIC Interop Runner",
    }
)
"""Formats by name, with what they are."""


def read(name: str, copy: Path, out: Path) -> Summary:
    """Import a local copy into the directory *out*, whose old tables are replaced when all has been read.

    Raises `CopyError` if there is no such copy, or nothing in it is of the format.
    """
    if not copy.exists():
        raise CopyError(f"{copy}: no such file or folder; name a local copy of the data")
    importer = importlib.import_module(f"quicbed.importers.{name.replace('-', '_')}")
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    summary = Summary(name)
    try:
        importer.read(copy, partial, summary)
        if not any(summary.tables.values()):
            reasons = "; ".join(f"{count} x {reason}" for reason, count in summary.skipped.items())
            found = f"among {summary.files} files ({reasons})" if reasons else f"among {summary.files} files"
            raise CopyError(f"{copy}: nothing of {FORMATS[name]} found {found}; expected {importer.LAYOUT}")
        summary.write(partial / SUMMARY_FILE)
        _replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return summary


def imported(directory: Path) -> dict[str, Path]:
    """The imports below *directory*, by format; one that did not end is none."""
    return {name: directory / name for name in FORMATS if (directory / name / SUMMARY_FILE).is_file()}


def _replace(new: Path, out: Path) -> None:
    """Move an import to the place of an earlier one."""
    for file in (*out.glob("*.parquet"), out / SUMMARY_FILE):
        file.unlink(missing_ok=True)
    shutil.rmtree(out / "gaps", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    for file in new.iterdir():
        file.rename(out / file.name)
