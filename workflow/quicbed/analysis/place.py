"""What a notebook reads and where it writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quicbed import importers
from quicbed.base.errors import QuicbedError
from quicbed.store.paths import RAW_VARIABLE

if TYPE_CHECKING:
    from quicbed.config.model import Config

ARTIFACTS_VARIABLE, PUBLISHED_VARIABLE = "QUICBED_ARTIFACTS", "QUICBED_PUBLISHED"

RUNS_PAGE = "runs.html"
"""Beside the other pages of the report."""
RUNS_PAGE_VARIABLE = "QUICBED_RUNS_PAGE"
"""Names the address of that page for the page that a notebook becomes; in an open notebook there is none."""


@dataclass(frozen=True)
class Place:
    """What a notebook reads and where it writes."""

    root: Path  # of the repository
    raw: Path
    artifacts: Path
    published: Mapping[str, Path]  # directories of tables of published results, by format

    @property
    def tables(self) -> Path:
        return self.artifacts / "tables"

    @property
    def figures(self) -> Path:
        return self.artifacts / "figures"

    @property
    def reference(self) -> bool:
        """Whether the runs are the reference data shipped with the repository."""
        return self.raw.resolve() == (self.root / "raw" / "reference").resolve()


def here(start: Path | None = None, config: Config | None = None) -> Place:
    """Where to read and write: QUICBED_RAW and QUICBED_ARTIFACTS, else what the repository has.

    By default the runs of the testbed in *config* (that of the repository) and ``artifacts``, or as long as nothing has
    been measured on it ``raw/reference`` and ``artifacts/reference``. Published results are those imported into the
    directories in QUICBED_PUBLISHED, none if it is empty, else whatever was imported below ``artifacts/published``.
    *start* is a directory in the repository.
    """
    from quicbed.config.model import read_config

    root = _repository((start or Path.cwd()).resolve())
    config = config or read_config(root / "config" / "config.yaml")
    own = root / config.paths.raw / config.testbed
    measured = next(own.glob("*/*/b*/**/run.json"), None) is not None
    raw = own if measured else root / "raw" / "reference"
    raw = Path(os.environ.get(RAW_VARIABLE) or raw)
    results = default = root / config.paths.artifacts
    if raw.resolve() == (root / "raw" / "reference").resolve():
        default /= "reference"
    artifacts = Path(os.environ.get(ARTIFACTS_VARIABLE) or default)
    told = os.environ.get(PUBLISHED_VARIABLE)
    if told is None:
        published = importers.imported(results / "published")
    else:
        published = {path.name: path for path in map(Path, filter(None, told.split(os.pathsep)))}
    return Place(root, raw, artifacts, published)


def _repository(start: Path) -> Path:
    for directory in (start, *start.parents):
        if (directory / "pyproject.toml").is_file() and (directory / "notebooks").is_dir():
            return directory
    raise QuicbedError(f"{start}: not inside a clone of the repository; start from its notebooks/")
