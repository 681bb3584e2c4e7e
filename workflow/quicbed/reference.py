"""Reference data: measured campaigns packed into one archive per experiment, to be shipped with the repository."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from quicbed.config import ConfigError, Project

SHOWN = {("x25519", "rsa-2048"), ("kyber768", "rsa-2048"), ("x25519", "dilithium3")}
"""Group and signature algorithm of the captured handshakes that are shipped whole, without Retry or delay."""


def _contents(file: Path) -> tuple[str, bytes]:
    """Name and content of a file as packed: of most captured series of handshakes the SHA-256 in place of the capture.

    What was read from such a capture is in handshakes.json beside it.
    """
    content = file.read_bytes()
    if file.name != "capture.pcap" or not (file.parent / "handshakes.json").is_file():
        return file.name, content
    variant = json.loads((file.parent / "run.json").read_text(encoding="utf-8"))["variant"]
    plain = not variant["retry"] and not variant["rtt_ms"] and variant["initial_size"] in (None, 1200)
    if plain and (variant["group"], variant["signature"]) in SHOWN:
        return file.name, content
    digest = hashlib.sha256(content).hexdigest()
    return f"{file.name}.sha256", f"{digest}  {file.name}, {len(content)} bytes\n".encode()


def pack(project: Project, experiments: Sequence[str]) -> list[Path]:
    """Pack the newest campaign of each experiment with its proofs on the configured testbed; returns the archives.

    The archives are byte-stable: members are sorted, and neither owners nor times are kept (runs record their own).
    Captures of handshakes are left out but for a few, see `SHOWN`.
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
            for file in sorted(file for directory in (campaign, *_proofs(campaign)) for file in directory.rglob("*")):
                if file.is_file() and ".partial" not in file.as_posix():
                    name_in_archive, content = _contents(file)
                    info = tarfile.TarInfo((file.relative_to(base).parent / name_in_archive).as_posix())
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        partial.replace(target)
        archives.append(target)
    return archives


def _proofs(campaign: Path) -> list[Path]:
    """Directories of the proofs that the runs of a campaign name."""
    named = set()
    for file in campaign.glob("b[0-9]*/*/run.json"):
        named.add(json.loads(file.read_text(encoding="utf-8"))["evidence"].get("proof"))
    found = (campaign.parents[1] / "proofs").glob("*/*/run.json")
    return [file.parent for file in found if json.loads(file.read_text(encoding="utf-8"))["cell"]["id"] in named]


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
