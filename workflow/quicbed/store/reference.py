"""Reference data: measured campaigns packed into one archive per experiment, to be shipped with the repository.

Captures do not compress and are most of what a campaign with its proofs takes on disk, so an archive has a few of them,
to look at. Event files of connections that begin at a rate, hundreds of thousands of times, are left out, too, and so
are those of the pilots that find the rates and of several downloads in one run: figures show what a run says of all of
them.
`LEFT_OUT` in the archive names what is left out with size and SHA-256. Tables and figures do not need it: what was read
from captures and such events is in run.json and handshakes.json beside them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from quicbed.base import durable, trees, untrusted
from quicbed.base.revision import DIRTY
from quicbed.base.untrusted import UntrustedError
from quicbed.config.model import ConfigError, Project, Study
from quicbed.plan.variant import Variant
from quicbed.store import columns, symbols, tarball
from quicbed.store.campaign import CAMPAIGN_FILE, Campaign, Session
from quicbed.store.paths import CAPTURE, KEYS, RELEASES, RUN_FILE, TRACE
from quicbed.store.record import Run
from quicbed.store.stacks import FOLDED_SUFFIX, INSTRUCTIONS, PLAIN_SUFFIX, PerfError, folded_bytes, read_folded

LEFT_OUT = "left-out.json"
"""Name in the archive of the list of files that were not packed."""

LOGS = ("client.jsonl", "server.jsonl")
"""Event files."""

SHOWN = {
    ("x25519", "rsa-2048"): "native-handshake",
    ("kyber768", "rsa-2048"): "table2-kem",
    ("x25519", "dilithium3"): "table3-signature",
}
"""Group and signature algorithm of the captured handshakes that are shipped whole, without Retry or delay, and in the
archive of which experiment: several have the same."""

SHOWN_DOWNLOADS = ("aead-goodput", "header-protection")
"""Experiments whose archives have captured downloads, those of which variants differ in what is in the clear."""

DOWNLOADS_BYTES = 2**20
"""Most bytes of captured downloads in an archive."""


def pack(project: Project, experiments: Sequence[str]) -> list[Path]:
    """Pack a campaign of each experiment with its proofs on the configured testbed; returns the archives.

    It is the newest one, or the only one of the configured study that is not left out there. ConfigError for one that
    was measured by code that is in no commit: nobody else has it.

    The archives are byte-stable: members are sorted, and neither owners nor times are kept (runs record their own).
    Files of one name follow each other, because they resemble each other: archives of handshakes are a fifth smaller.
    Larger event files are written by columns (`quicbed.store.columns`), which readers of archives undo, and stacks
    without gzip (`quicbed.store.stacks`). Stacks of counted instructions have a hundred times as many lines:
    they are reduced to the functions that decide on categories, and what they were is listed as left out.
    Most captures are left out, see `_packed_captures`, and so are the event files of some runs, see `_summed_up`.
    A campaign of external endpoints alone goes into an archive that has their names too, beside that of the others.
    """
    archives = []
    chosen = [(name, _chosen(project, name)) for name in experiments]
    for name, campaign in chosen:
        _committed(name, campaign)
    for name, campaign in chosen:
        files = [
            file
            for directory in (campaign, *_proofs(campaign))
            for file in trees.files(directory)
            if file.is_file() and not file.is_symlink() and not durable.is_unfinished(file.relative_to(directory))
        ]
        kept = _packed_captures(name, (file for file in files if file.name == CAPTURE))
        left_out = []
        called = "-".join([name, *_only_external(campaign)])
        target = project.root / "raw" / "reference" / f"{called}.tar.xz"
        with tarball.write(target) as archive:
            for file in sorted(files, key=lambda file: (file.name, file)):
                inside, content = file.relative_to(project.raw).as_posix(), file.read_bytes()
                captured = file.name in (CAPTURE, KEYS, TRACE, RELEASES) and file.with_name(CAPTURE) not in kept
                if captured or (file.name in LOGS and _summed_up(file.parent)):
                    left_out.append(_left(inside, content))
                elif file.name.endswith(FOLDED_SUFFIX) and (stacks := _gunzipped(content)) is not None:
                    if (fewer := _reduced(project.root, file, stacks)) is not None:
                        left_out.append(_left(inside, content))
                    archive.file(f"{inside}{PLAIN_SUFFIX}", fewer or stacks)
                elif file.suffix == ".jsonl" and (by_columns := columns.packed(content)) is not None:
                    archive.file(f"{inside}{columns.COLUMNS_SUFFIX}", by_columns)
                else:
                    archive.file(inside, content)
            if left_out:
                archive.file(LEFT_OUT, (json.dumps({"left_out": left_out}, indent=1) + "\n").encode())
        target.with_name(f"{called}.tar.gz").unlink(missing_ok=True)  # of an earlier version, in place of which this is
        archives.append(target)
    return archives


def _left(inside: str, content: bytes) -> dict[str, str | int]:
    return {"file": inside, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _reduced(root: Path, file: Path, stacks: bytes) -> bytes | None:
    """Stacks of counted instructions of an end, reduced by the mapping of its library; None for all others."""
    run, role = Run.read(file.with_name(RUN_FILE)), file.name.removesuffix(FOLDED_SUFFIX)
    if (run.host.perf or {}).get("event") != INSTRUCTIONS:
        return None
    library = (run.client if role == "client" else run.server).library
    try:
        fewer = symbols.symbol_map(root, library, role).reduced(read_folded(stacks))
    except (ConfigError, PerfError):  # who reads them says so
        return None
    return folded_bytes({";".join((role, *reversed(frames))): count for frames, count in fewer.items()})


def _summed_up(directory: Path) -> bool:
    """Whether `run.json` sums up what events of a run say: of connections at a rate, of the pilot that finds it, and of
    several downloads.
    """
    file = directory / RUN_FILE
    if not file.exists():
        return False
    run = Run.read(file)
    work = run.workload
    of_rate = work.rate_per_s is not None or (run.cell.arm == "pilot" and run.variant.load is not None)
    return of_rate or (work.kind == "bulk" and (work.connections or 1) > 1)


def _gunzipped(content: bytes) -> bytes | None:
    """What is gzipped, or None for what is not as `quicbed.store.stacks` writes it."""
    try:
        return untrusted.gunzip(content)
    except UntrustedError:
        return None


def _packed_captures(name: str, captures: Iterable[Path]) -> set[Path]:
    """The captures that are packed of an experiment, of proofs that succeeded; a key log goes with its capture.

    Of handshakes those of `SHOWN`; of downloads of `SHOWN_DOWNLOADS` the smallest of each variant, whichever the
    libraries, as far as they fit into `DOWNLOADS_BYTES`: those that can be read without keys first, then the smallest.
    """
    kept = set()
    downloads: dict[str, tuple[bool, int, Path]] = {}
    for capture in captures:
        run = Run.read(capture.parent / RUN_FILE)
        if run.status != "ok" or run.cell.arm != "proof":
            continue
        if run.workload.kind == "handshake":
            if _is_shown(run.variant, name):
                kept.add(capture)
            continue
        if name not in SHOWN_DOWNLOADS:
            continue
        # buffers are within the hosts, and change nothing on the wire
        varied = run.variant.model_dump(exclude_unset=True, exclude={"receive_buffer"})
        key = json.dumps(varied, sort_keys=True)
        sealed = run.variant.aead != "noop" or run.variant.header_protection is not False
        one = (sealed, capture.stat().st_size, capture)
        downloads[key] = min(downloads.get(key, one), one)
    room = DOWNLOADS_BYTES
    for _, size, capture in sorted(downloads.values()):
        room -= size
        if room >= 0:
            kept.add(capture)
    return kept


def _is_shown(variant: Variant, name: str) -> bool:
    plain = not variant.retry and not variant.rtt_ms and variant.initial_size in (None, 1200)
    return plain and SHOWN.get((variant.group or "", variant.signature or "")) == name


def _committed(name: str, campaign: Path) -> None:
    """ConfigError where a session of a campaign was measured by code that is in no commit."""
    for file in sorted(campaign.glob("sessions/*.json")):
        if (revision := Session.read(file).revision) is not None and revision.endswith(DIRTY):
            raise ConfigError(
                f"{file}: measured by changed files that are in no commit (revision {revision}); commit them, move "
                f"{campaign} away and run `quicbed measure {name}`"
            )


def _only_external(campaign: Path) -> list[str]:
    """The external endpoints of a campaign of which every run has one; else none."""
    found = set()
    for file in campaign.glob(f"b[0-9]*/**/{RUN_FILE}"):
        run = Run.read(file)
        external = {end.library for end in (run.client, run.server) if end.external}
        if not external:
            return []
        found |= external
    return sorted(found)


def _proofs(campaign: Path) -> list[Path]:
    """Directories of the proofs that the runs of a campaign name."""
    named = {Run.read(file).evidence.proof for file in campaign.glob(f"b[0-9]*/**/{RUN_FILE}")}
    found = (campaign.parents[1] / "proofs").glob(f"*/[!.]*/{RUN_FILE}")
    return [file.parent for file in found if Run.read(file).cell.id in named]


def _chosen(project: Project, name: str) -> Path:
    """Directory of the campaign that is packed."""
    parent = project.raw / project.config.testbed / name
    if name == "proofs":
        found = [path for path in parent.glob("*") if path.is_dir()]
        if len(found) != 1:
            raise ConfigError(f"{parent}: holds the proofs of {len(found)} hosts, can pack those of one only")
        return found[0]
    if project.study is not None:
        return _of_study(project, project.study, name, parent)
    sessions = []
    for file in parent.glob("*/sessions/*.json"):
        sessions.append((Session.read(file).started_at, file.parent.parent))
    if not sessions:
        raise ConfigError(f"{parent}: has no measured campaign; run `quicbed measure {name}`")
    return max(sessions)[1]


def _of_study(project: Project, study: Study, name: str, parent: Path) -> Path:
    """Directory of the one campaign of a study that it does not leave out: which of several counts is said there."""
    left_out = {one.campaign for one in study.left_out if one.experiment == name}
    found = []
    for file in sorted(parent.glob(f"*/{CAMPAIGN_FILE}")):
        if Campaign.read(file).study == study.digest and file.parent.name not in left_out:
            found.append(file.parent)
    if not found:
        raise ConfigError(
            f"{parent}: has no campaign of the study `{project.config.study}` as it is written now; "
            f"run `quicbed measure {name}` with it"
        )
    if len(found) > 1:
        raise ConfigError(
            f"{parent}: has {len(found)} campaigns of the study `{project.config.study}`: "
            f"{', '.join(path.name for path in found)}; name all but one, with the reason, in `left_out` of "
            f"{project.root / 'config' / 'studies' / f'{project.config.study}.yaml'}"
        )
    return found[0]
