"""Reading a local copy of published data in one of the formats."""

from __future__ import annotations

import importlib
import os
import re
import shutil
from pathlib import Path

from quicbed.base import durable, untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.importers.files import CopyError
from quicbed.importers.summary import SUMMARY_FILE, Summary
from quicbed.papers import FORMATS

JOURNAL = ".import-files.json"
"""Names of what an import that has not ended is taking away and putting there."""


def read(name: str, copy: Path, out: Path) -> Summary:
    """Import a local copy into the directory *out*, whose old tables are replaced when all has been read.

    Raises `CopyError` if there is no such copy, nothing in it is of the format, or *out* has tables of somebody else.
    """
    if not copy.exists():
        raise CopyError(f"{copy}: no such file or folder; name a local copy of the data")
    importer = importlib.import_module(FORMATS[name].importer)
    out = out.resolve()  # `.` has no name
    if not out.name:
        raise CopyError(f"{out}: is no folder for tables; name one in it with --out")
    _refuse_others(out, _tables_in(out))
    # nobody else gives a folder this name
    partial = out.with_name(f".{out.name}.quicbed-import")
    shutil.rmtree(partial, ignore_errors=True)
    summary = Summary(name)
    try:
        importer.read(copy, partial, summary)
        if not any(summary.tables.values()):
            reasons = "; ".join(f"{count} x {reason}" for reason, count in summary.skipped.items())
            found = f"among {summary.files} files ({reasons})" if reasons else f"among {summary.files} files"
            raise CopyError(f"{copy}: nothing of {FORMATS[name].what} found {found}; expected {importer.LAYOUT}")
        _replace(partial, out, summary)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return summary


def _replace(new: Path, out: Path, summary: Summary) -> None:
    """Move an import to the place of an earlier one: the summary goes first and comes last."""
    before = _written(out)
    names = {f"{name}.parquet" for name in summary.tables}
    _refuse_others(out, names)
    out.mkdir(parents=True, exist_ok=True)
    durable.write_json(out / JOURNAL, {"tables": dict.fromkeys(sorted(before | names))})
    (out / SUMMARY_FILE).unlink(missing_ok=True)
    durable.sync(out)
    for name in sorted(before - names):
        (out / name).unlink(missing_ok=True)
    for name in sorted(names):
        (out / name).parent.mkdir(exist_ok=True)
        (new / name).replace(out / name)
    for folder in {(out / name).parent for name in before | names}:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    durable.sync_tree(out)
    summary.write(out / SUMMARY_FILE)
    (out / JOURNAL).unlink()


def _tables_in(out: Path) -> set[str]:
    """Names of what could be tables of an import in a directory."""
    return {
        file.relative_to(out).as_posix() for pattern in ("*.parquet", "gaps/*.parquet") for file in out.glob(pattern)
    }


def _refuse_others(out: Path, names: set[str]) -> None:
    ours = _written(out)
    for name in sorted(names - ours):
        if os.path.lexists(out / name):
            raise CopyError(f"{out / name}: is of no import that ended here; move it away, or name another --out")


def _written(out: Path) -> set[str]:
    """Names of the files in a directory that an import wrote, besides its summary."""
    names = set()
    for file, suffix in ((out / SUMMARY_FILE, ".parquet"), (out / JOURNAL, "")):
        try:
            listed = untrusted.parse(untrusted.read(file))["tables"]
            names |= {f"{name}{suffix}" for name in listed}
        except (UntrustedError, LookupError, TypeError):
            continue
    # whatever a summary that somebody edited says, nothing elsewhere
    return {name for name in names if re.fullmatch(r"(gaps/)?[^/\0]+\.parquet", name)}
