"""Builds nothing: makes the programs that drive a folder which keeps the contract of the QUIC Interop Runner.

The build's id covers every file of the folder and what its links lead to, so that a changed folder is a new build; left
out are `venv/`, version control and byte code. The folder is asked once for a test case that does not exist, which it
must refuse with exit code 127, as the runner does before it measures. A folder that cannot be used has an id too, so
that whatever does not need it goes on without it.

Layout of a build::

    bin/client, bin/server   start the programs
    lib/settings.json        folders, test cases, parameters and description
    lib/endpoint/, lib/quicbed_contract/
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import shlex
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quicbed.base import untrusted
from quicbed.base.hashing import digest
from quicbed.builds import components
from quicbed.builds import sources as third_party
from quicbed.builds.kit import BuildError, Job, UnusableError
from quicbed.builds.recipes import python
from quicbed.config.model import ExternalLibrary, Project, Statement
from quicbed.contract.events import CONTRACT
from quicbed.plan import cells

FILES = ("python.py",)
ROLES = ("client", "server")
CONTRACT_PACKAGE = Path("workflow/endpoints/contract/python")
COMPANIONS = (CONTRACT_PACKAGE,)
CRYPTO = Path("workflow/crypto")
"""Where `quicbed.config.model.OWN_CRYPTO` is."""
SCRIPTS = {"client": "run-client.sh", "server": "run-server.sh"}
UNFINISHED = ".quicbed-unfinished"
"""Directory of a folder while setup-env.sh makes its venv/; where it is left behind, so is a part of that."""
LEFT_OUT = {"venv", ".git", "__pycache__", UNFINISHED}
"""Directories of a folder that do not decide what it does, or that setup-env.sh makes."""
MOST_FILES = 100_000
"""Files that a folder may have, with those that its links lead to."""
MADE_ON_HOST = {"venv", ".git", "__pycache__", UNFINISHED}
"""Directories of a folder that other hosts are not given: they hold paths of this one, and setup-env.sh makes them."""
SET_UP_TIMEOUT = 600.0
"""Seconds that setup-env.sh may take; it runs first in every program."""
CHECK_TIMEOUT = SET_UP_TIMEOUT + 60.0
UNKNOWN = "unknown"
"""Version of a folder that does not tell it."""

LAUNCHER = """\
#!/bin/sh
# Runs a program of this build; where its interpreter is not, as on another host, with the Python there.
python={interpreter}
test -x "$python" || python=python3
exec "$python" -IBS -X faulthandler "${{0%/*}}/../lib" endpoint.{role} "$@"
"""


def build(job: Job) -> dict[str, Any]:
    """Make the programs and check the folder; returns folders and settings for build.json.

    Raises UnusableError for a folder that does not keep the contract.
    """
    if (reason := problem(job.project, job.name)) is not None:
        raise UnusableError(reason)
    if job.chosen.components:  # whose sources may be looked into
        third_party.need(job.project, job.log)
    folders = folders_of(job.project, job.name)
    before = sources(job.project, job.name)
    lib = job.out / "lib"
    python._copy(job.endpoint, lib / "endpoint")
    python._copy(job.project.root / CONTRACT_PACKAGE, lib)
    (lib / "__main__.py").write_text(python.START, encoding="utf-8")
    library = _external(job.project, job.name)
    stated = library.statement
    settings = {
        "folders": {role: str(folder) for role, folder in folders.items()},
        "flavour": job.flavour,
        "testcases": stated.testcases,
        "parameters": library.folder.parameters,
        "qlog": stated.qlog,
        "times": stated.times,
        "told": told(stated),
        "components": component_variables(job.project, job.chosen.components),
        "set_up_timeout_s": SET_UP_TIMEOUT,
        "unfinished": UNFINISHED,
        "describe": _description(job),
    }
    (lib / "settings.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    (job.out / "bin").mkdir(exist_ok=True)
    for role in ROLES:
        program = job.out / "bin" / role
        interpreter = shlex.quote(str(Path(sys.executable).resolve()))
        program.write_text(LAUNCHER.format(interpreter=interpreter, role=role), encoding="utf-8")
        program.chmod(0o755)
    for role in ROLES:
        try:
            asked = [str(job.out / "bin" / role), "--check"]
            result = subprocess.run(asked, capture_output=True, text=True, timeout=CHECK_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            raise UnusableError(f"{folders[role]}: not checked after {CHECK_TIMEOUT:g} s") from None
        if result.returncode:
            said = (result.stdout.strip() or result.stderr.strip()).splitlines()
            raise UnusableError(f"{folders[role]}: {said[-1] if said else 'cannot be checked'}")
    if sources(job.project, job.name) != before:
        raise UnusableError(
            f"{folders['client']}: its scripts change files of the folder; build once more, and if this is said again "
            "let them write to venv/ or LOGS"
        )
    return {
        "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "flags": [],
        "folders": settings["folders"],
    }


def problem(project: Project, name: str) -> str | None:
    """What the folders lack that the contract asks for, None if nothing."""
    library = _external(project, name)
    if library.problem is not None:
        return library.problem
    folders = folders_of(project, name)
    for role, path in (("client", library.folder.client_path), ("server", library.folder.server_path)):
        folder = folders[role]
        key = f"config/libraries/{name}.yaml: external.{f'{role}_path' if path else 'path'}"
        if not folder.is_dir():
            return f"{key}: {folder} is no directory; give the folder of the endpoint"
        for script in ("setup-env.sh", SCRIPTS[role]):
            if not (folder / script).is_file():
                return f"{key}: {folder} has no {script}, which the contract of the runner asks for"
        if len(_files(folder)) > MOST_FILES:
            return f"{key}: {folder} and what its links lead to have more than {MOST_FILES} files; leave out some"
    try:
        _version(folders["client"] / "VERSION")
    except UnusableError as error:
        return str(error)
    return None


def version(project: Project, name: str) -> str:
    """Line 1 of VERSION, of the client's folder; `UNKNOWN` where that has none."""
    try:
        return _version(folders_of(project, name)["client"] / "VERSION")
    except UnusableError:
        return UNKNOWN


def _version(file: Path) -> str:
    try:
        lines = untrusted.decoded(file.read_bytes(), "strict").splitlines()
    except (OSError, ValueError):
        raise UnusableError(f"{file}: cannot be read; its first line has to be the version") from None
    if not lines or not lines[0].strip():
        raise UnusableError(f"{file}: is empty; its first line has to be the version")
    return lines[0].strip()


def sizes(requests: int, total: int) -> list[int]:
    """Sizes in bytes of the files, all different, that a download of `total` bytes is made of: `requests` of them if it
    is large enough.
    """
    for count in range(requests, 1, -1):
        base = total // count - count
        if base > 0:
            parts = [base + index for index in range(count - 1)]
            return [*parts, total - sum(parts)]
    return [total]


def sources(project: Project, name: str) -> list[dict[str, str]]:
    """The folders, one for both roles or one each, as packages: their version and a digest of files and settings."""
    folders = folders_of(project, name)
    library = _external(project, name)
    settings = [library.folder.model_dump(), library.statement.model_dump()]
    found = []
    for folder in dict.fromkeys(folders.values()):
        files = [(name, _content(file)) for name, file in _files(folder).items()]
        checksum = digest({"files": files, "settings": settings, "folder": str(folder)}, 64)
        found.append({"name": folder.name, "version": version(project, name), "checksum": checksum})
    return found


def folders_of(project: Project, name: str) -> dict[str, Path]:
    """The folder of each role, whether it is there or not."""
    folder = _external(project, name).folder
    own = {"client": folder.client_path, "server": folder.server_path}
    return {role: (project.root / (path or folder.path)).resolve() for role, path in own.items()}


def folder_of_build(build: Path, role: str) -> Path:
    """The folder that a build was made of."""
    settings = json.loads((build / "lib" / "settings.json").read_text(encoding="utf-8"))
    return Path(settings["folders"][role])


def led_to(folder: Path) -> list[Path]:
    """What links in a folder lead to outside of it."""
    real = folder.resolve()
    targets = {path.resolve() for path in _files(folder).values() if path.is_symlink()}
    return sorted(target for target in targets if target.exists() and not target.is_relative_to(real))


def told(stated: Statement) -> list[str]:
    """Options of the contract that the scripts are given as `QUICBED_*`: those that the folder states to heed."""
    supports = stated.supports
    always = [
        "cipher",
        "aead",
        "header_protection",
        "group",
        "signature",
        "congestion_control",
        "udp_payload",
        "window",
    ]
    heeded = {
        "retry": supports.retry,
        "initial_size": supports.initial_size,
        "receive_buffer": supports.receive_buffer,
        "send_buffer": supports.receive_buffer,
        "gso": bool(supports.gso),
        "gro": bool(supports.gro),
        "pacing": bool(supports.pacing),
    }
    return always + [name for name, heeds in heeded.items() if heeds]


def component_variables(project: Project, names: Sequence[str]) -> dict[str, str]:
    """Environment variables of the scripts that say where components are, and the code that they are compiled with."""
    if not names:
        return {}
    known = components.environment(project, names) | components.internal_sources(project, names)
    own = {name: value for name, value in known.items() if name.startswith("QUICBED_")}
    return own | {"QUICBED_CRYPTO": str((project.root / CRYPTO).absolute())}


def _external(project: Project, name: str) -> ExternalLibrary:
    external = project.libraries[name].external
    if external is None:
        raise BuildError(f"config/libraries/{name}.yaml: external: is missing; give the path of the folder")
    return external


def _description(job: Job) -> dict[str, Any]:
    """What the programs print for `--describe`: what the folder states of a flavour."""
    library, supports = job.library, job.library.supports
    plain = job.flavour == "noop"
    aead = {"standard": True, "noop": plain and supports.noop, "noenc": supports.noenc}
    unprotected = (plain and supports.header_protection_off) or supports.noenc
    table = {"group": job.project.algorithms.groups, "signature": job.project.algorithms.signatures}
    listed = {
        kind: [
            one.name
            for one in known
            if cells.algorithm_reason(library.title, library, job.flavour, kind, one.name) is None
        ]
        for kind, known in table.items()
    }
    return {
        "contract": CONTRACT,
        "library": job.name,
        "version": job.version,
        "tls_library": library.tls_library,
        "flavour_features": [],
        "transport": library.transport,
        "alpn": [library.alpn],
        "ciphers": supports.ciphers,
        "aead": [name for name, able in aead.items() if able],
        "header_protection": ["on", "off"] if unprotected else ["on"],
        "groups": listed["group"],
        "signatures": listed["signature"],
        "retry": supports.retry is True,
        "initial_size": supports.initial_size is True,
        "congestion_controls": supports.congestion_controls,
        "pacing": list(supports.pacing),
        "gso_paced": supports.gso_paced is True,
        "gso": supports.gso,
        "gro": supports.gro,
        "files": False,
    }


def _files(folder: Path) -> dict[str, Path]:
    """What a folder consists of by name, sorted, and what its links lead to; one more than MOST_FILES at most."""
    found: dict[str, Path] = {}
    # directories with those that they are in, as links may lead back
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(folder, frozenset())]
    while waiting and len(found) <= MOST_FILES:
        directory, above = waiting.pop()
        try:
            status = directory.stat()
            entries = list(directory.iterdir())
        except OSError:
            continue
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            continue
        for path in entries:
            if path.name in LEFT_OUT and path.is_dir():
                continue
            found[path.relative_to(folder).as_posix()] = path
            if path.is_dir():
                waiting.append((path, above | {identity}))
    return dict(sorted(found.items()))


def _content(path: Path) -> list[str]:
    """What stands for a file, a directory or a link, and what it leads to, in the digest of a folder."""
    try:
        link = [str(path.readlink())] if path.is_symlink() else []
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return ["directory", *link]
        if not stat.S_ISREG(status.st_mode):
            return ["other", *link]
        kind = "program" if status.st_mode & 0o111 else "file"
        # the time of a change of the inode is the kernel's, whatever a program sets the others to
        unchanged = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return [kind, _sha256(path, unchanged), *link]
    except OSError as error:
        return ["unreadable", str(error.strerror)]


@functools.cache
def _sha256(file: Path, _unchanged: tuple[int, ...]) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
