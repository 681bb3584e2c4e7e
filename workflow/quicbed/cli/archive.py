"""The archive to deposit (Zenodo): the sources of a commit, its results, a bill of materials and checksums.

Layout of ``quicbed-<version>-<commit>.tar.gz``::

    quicbed-<version>/            every file of the commit, the reference data in raw/reference/ among them
        docs/, workflow/schemas/  what `quicbed generate` made of the commit
        results/reference/        what `make figures` made of the reference data: report/, figures/, tables/, notebooks/
        sbom.cdx.json             every third-party source that is fetched (`quicbed.builds.bom`)
        SHA256SUMS                of all these files; `sha256sum --check SHA256SUMS`

Results are not where `make figures` writes, so that an unpacked archive makes them anew and they can be compared; they
are as deep as there, so that links of the report to the configuration lead there too. The same commit with the same
results gives the same bytes: the time of all members is that of the commit. The header of the archive names the commit
as that of `git archive` does.
"""

from __future__ import annotations

import hashlib
import io
import shlex
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quicbed import __version__
from quicbed.base import trees
from quicbed.base.errors import QuicbedError
from quicbed.builds import bom
from quicbed.config.model import Project
from quicbed.store import tarball

RESULTS = "results/reference"
BILL = "sbom.cdx.json"
SUMS = "SHA256SUMS"


class ArchiveError(QuicbedError, ValueError):
    """An archive that cannot be made, in one line with the remedy."""


@dataclass(frozen=True)
class Member:
    """A file, or with a target a symbolic link, of the archive."""

    content: bytes = b""
    executable: bool = False
    target: str | None = None


def make(project: Project, directory: Path, pages: Mapping[Path, str]) -> Path:
    """Write the archive of the clone's commit and of *pages* that were generated into *directory*; returns it.

    Raises ArchiveError outside a clone, with changes that are not committed, and where results are missing.
    """
    root = project.root
    commit, time = _commit(root)
    members = _committed(root, commit)
    added = _results(project.artifacts / "reference")
    added |= {file.relative_to(root).as_posix(): Member(text.encode()) for file, text in pages.items()}
    added[BILL] = Member(bom.text(project, commit).encode())
    for name in (*added, SUMS):
        if name in members:
            raise ArchiveError(f"{root / name}: the archive has something else of this name; rename it")
    members |= added
    sums = {
        name: hashlib.sha256(member.content).hexdigest() for name, member in members.items() if member.target is None
    }
    members[SUMS] = Member("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())
    archive = directory / f"quicbed-{__version__}-{commit[:12]}.tar.gz"
    with tarball.write(archive, mtime=time, headers={"comment": commit}) as out:
        for name in sorted(members):
            inside, member = f"quicbed-{__version__}/{name}", members[name]
            if member.target is not None:
                out.link(inside, member.target)
            else:
                out.file(inside, member.content, executable=member.executable)
    return archive


def check(project: Project) -> None:
    """ArchiveError unless everything in the clone is committed, before results are made for long."""
    _commit(project.root)


def _git(root: Path, *arguments: str) -> bytes:
    try:
        # files as they are stored, whatever the user's settings make of line ends
        argv = ["git", "-C", str(root), "-c", "core.autocrlf=false", *arguments]
        done = subprocess.run(argv, capture_output=True, check=False)
    except FileNotFoundError:
        raise ArchiveError("git is not installed; install with: apt-get install git") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        if "dubious ownership" in said[0]:
            raise ArchiveError(
                f"{root}: git takes no clone of another user; make the archive as the user it belongs to, or run "
                f"`git config --global --add safe.directory {shlex.quote(str(root.resolve()))}`"
            )
        raise ArchiveError(f"git {arguments[0]}: {said[0]}; make the archive in a git clone")
    return done.stdout


def _commit(root: Path) -> tuple[str, int]:
    """The commit of the clone, all of whose files are committed, and its time in seconds since 1970."""
    top = Path(_git(root, "rev-parse", "--show-toplevel").decode().strip())
    if top.resolve() != root.resolve():
        raise ArchiveError(f"{root}: is not a git clone but inside that of {top}; make the archive in a clone")
    changed = _git(root, "status", "--porcelain").decode().splitlines()
    if changed:
        raise ArchiveError(f"{root}: not committed: {changed[0].strip()}; commit, stash or ignore what has changed")
    commit, time = _git(root, "log", "-1", "--format=%H %ct").decode().split()
    return commit, int(time)


def _committed(root: Path, commit: str) -> dict[str, Member]:
    """Every file of a commit, as it is stored."""
    members = {}
    with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", "--format=tar", commit))) as tree:
        for info in tree:
            if info.issym():
                members[info.name] = Member(target=info.linkname)
            elif file := tree.extractfile(info):
                members[info.name] = Member(file.read(), executable=bool(info.mode & 0o100))
    return members


def _results(directory: Path) -> dict[str, Member]:
    """The results drawn from the reference data, without what was being written."""
    page = directory / "report" / "index.html"
    if not page.is_file():
        raise ArchiveError(f"{page}: is missing; run `make figures`, or `make archive`, which does")
    found = (file for file in trees.files(directory) if not file.name.startswith("."))
    files = (file for file in found if file.is_file() and not file.is_symlink())
    return {f"{RESULTS}/{file.relative_to(directory).as_posix()}": Member(file.read_bytes()) for file in files}
