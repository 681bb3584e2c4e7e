"""Reference data: measured campaigns packed into one archive per experiment, to be shipped with the repository."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from quicbed.config import ConfigError, Project


def pack(project: Project, experiments: Sequence[str]) -> list[Path]:
    """Pack the newest campaign of each experiment on the configured testbed; returns the archives.

    The archives are byte-stable: members are sorted, and neither owners nor times are kept (runs record their own).
    """
    archives = []
    for name in experiments:
        campaign = _newest(project, name)
        base = project.raw
        target = project.root / "raw" / "reference" / f"{name}.tar.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        with (
            partial.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for file in sorted(campaign.rglob("*")):
                if file.is_file() and ".partial" not in file.as_posix():
                    info = tarfile.TarInfo(file.relative_to(base).as_posix())
                    info.size = file.stat().st_size
                    with file.open("rb") as content:
                        archive.addfile(info, content)
        partial.replace(target)
        archives.append(target)
    return archives


def _newest(project: Project, name: str) -> Path:
    """Directory of the campaign whose latest session is the newest."""
    parent = project.raw / project.config.testbed / name
    if name == "proofs":
        found = [path for path in parent.glob("*") if path.is_dir()]
        if len(found) != 1:
            raise ConfigError(f"{parent}: holds the proofs of {len(found)} machines, can pack those of one only")
        return found[0]
    sessions = []
    for file in parent.glob("*/sessions/*.json"):
        started = json.loads(file.read_text(encoding="utf-8"))["started_at"]
        sessions.append((started, file.parent.parent))
    if not sessions:
        raise ConfigError(f"{parent}: has no measured campaign; run `quicbed measure {name}`")
    return max(sessions)[1]
