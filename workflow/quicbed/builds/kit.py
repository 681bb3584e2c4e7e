"""What recipes and components work with: sources, commands, locks."""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicbed.base import durable, trees
from quicbed.base.errors import QuicbedError
from quicbed.base.hashing import digest
from quicbed.config.model import Flavour, Library, Project

SOURCES = Path("workflow/sources")

OLDER_LIBOQS = SOURCES / "liboqs-0.9"
"""A workspace of its own: cargo lets one have a single package that links liboqs."""

WORKSPACES = (SOURCES, OLDER_LIBOQS)
"""Directories with the Cargo.toml and Cargo.lock of what is fetched through cargo."""


SDISTS = SOURCES / "sdists.txt"
"""Packages of PyPI of which only the sources are used, as pip reads them."""


ENDPOINTS = Path("workflow/endpoints")


PATCHES = Path("workflow/crypto/patches")


PAUSES_S = (5.0, 25.0)
"""Before each new attempt to fetch packages: a network or a registry may be away for a moment."""


class BuildError(QuicbedError):
    """A source that cannot be fetched or a build that failed: one line with the log that tells more."""


class UnusableError(BuildError):
    """What is of others and is not built here cannot be used: all that does not need it can go on."""


@dataclass(frozen=True)
class Job:
    """What a recipe's `build` works with."""

    project: Project
    name: str
    flavour: str
    vendor: Path
    """Directory of the fetched packages of Cargo.lock, `<name>-<version>` each, already verified."""
    shared: Mapping[Any, Path]
    """Directories of the flavour's components."""
    out: Path
    """Where the programs go, `bin/client` and `bin/server`; the directory is renamed when the build is finished."""
    jobs: int
    log: Path
    version: str = ""
    """Version of the library."""
    stock: Path | None = None
    """Directory of the finished stock build, of a recipe that makes other flavours from it."""

    @property
    def library(self) -> Library:
        """The library's description."""
        return self.project.libraries[self.name]

    @property
    def chosen(self) -> Flavour:
        """The flavour's description."""
        return self.library.flavours[self.flavour]

    @property
    def endpoint(self) -> Path:
        """Directory of the endpoint's own files."""
        return (self.project.root / ENDPOINTS / self.library.endpoint).absolute()

    @property
    def work(self) -> Path:
        """Directory for objects and copies of sources; kept from build to build unless the recipe clears it."""
        return (self.project.build / "work" / f"{self.name}-{self.flavour}").absolute()


def run(argv: Sequence[str], *, log: Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command with its output appended to `log`; raises BuildError with the last lines when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="replace") as out:
        out.write(f"$ {' '.join(argv)}\n")
        out.flush()
        try:
            code = subprocess.run(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                check=False,
            ).returncode
        except FileNotFoundError:
            raise BuildError(f"{argv[0]} is not installed; run `make setup`") from None
    if code != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-15:]
        raise BuildError(
            f"`{argv[0]} {argv[1] if len(argv) > 1 else ''}` failed with exit code {code}; the end of {log}:\n  "
            + "\n  ".join(tail)
        )


def fetch(argv: Sequence[str], *, log: Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command that takes packages from the network: again after each of `PAUSES_S` when it fails."""
    for pause in PAUSES_S:
        try:
            return run(argv, log=log, cwd=cwd, env=env)
        except BuildError:
            if shutil.which(argv[0], path=(env or os.environ).get("PATH")) is None:
                raise
            time.sleep(pause)
    return run(argv, log=log, cwd=cwd, env=env)


@functools.lru_cache(maxsize=32)
def parsed(text: str) -> dict[str, Any]:
    """A TOML document, to be read only: the identities of builds ask for the same lock and manifests many times."""
    return tomllib.loads(text)


def lock_packages(root: Path, workspace: Path = SOURCES) -> dict[str, list[dict[str, Any]]]:
    """Packages of the Cargo.lock of a workspace by name (a name may have several versions), and those of `SDISTS`."""
    file = root / workspace / "Cargo.lock"
    try:
        lock = parsed(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BuildError(f"{file}: cannot be read: {error}; restore it from version control") from None
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in [*lock["package"], *(sdists(root) if workspace == SOURCES else ())]:
        packages.setdefault(package["name"], []).append(package)
    return packages


_SDIST = re.compile(r"([a-z0-9-]+)==([\w.]+) --hash=sha256:([0-9a-f]{64})")


def sdists(root: Path) -> list[dict[str, Any]]:
    """Packages of `SDISTS`, as those of Cargo.lock are described; `registry` tells them apart."""
    file = root / SDISTS
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BuildError(f"{file}: cannot be read: {error}; restore it from version control") from None
    found = []
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        match = _SDIST.fullmatch(line.strip())
        if match is None:
            raise BuildError(f"{file}: `{line.split()[0]}` is not `<name>==<version> --hash=sha256:<64 digits>`")
        found.append({"name": match[1], "version": match[2], "checksum": match[3], "registry": "pypi"})
    return found


def _all_packages(root: Path, names: Iterable[str], workspace: Path = SOURCES) -> list[dict[str, Any]]:
    """Packages of Cargo.lock and `SDISTS` that `names` depend on, themselves included, each once."""
    packages = lock_packages(root, workspace)
    waiting = list(names)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    while waiting:
        # a dependency is "name" or, where a name has several versions, "name version"
        name, _, version = waiting.pop().partition(" ")
        candidates = [p for p in packages.get(name, []) if version in ("", p["version"])]
        if not candidates:
            raise BuildError(
                f"{root / workspace / 'Cargo.lock'}: has no package `{name}`; add it to {workspace / 'Cargo.toml'}"
            )
        for package in candidates:
            key = (package["name"], package["version"])
            if key not in found:
                found[key] = package
                waiting += package.get("dependencies", [])
    return [found[key] for key in sorted(found)]


def closure(root: Path, names: Iterable[str], workspace: Path = SOURCES) -> list[dict[str, str]]:
    """Third-party packages that `names` depend on, themselves included: name, version, checksum; sorted."""
    return [
        {"name": package["name"], "version": package["version"], "checksum": package["checksum"]}
        for package in _all_packages(root, names, workspace)
        if "checksum" in package
    ]


def workspace_directories(root: Path, name: str) -> list[Path]:
    """Directories of this repository's own packages that package `name` depends on, itself included."""
    file = root / SOURCES / "Cargo.toml"
    directories: dict[str, Path] = {}
    for member in parsed(file.read_text(encoding="utf-8"))["workspace"]["members"]:
        directory = Path(os.path.normpath(SOURCES / member))
        manifest = root / directory / "Cargo.toml"
        try:
            directories[parsed(manifest.read_text(encoding="utf-8"))["package"]["name"]] = directory
        except OSError as error:
            raise BuildError(f"{manifest}: cannot be read: {error}; restore it from version control") from None
    own = [package["name"] for package in _all_packages(root, [name]) if "checksum" not in package]
    return [directories[package] for package in own if package in directories]


def hash_files(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files, and of all files below directories, by path relative to `root`."""
    hashes: dict[str, str] = {}
    for path in paths:
        full = root / path
        if not full.exists():
            raise BuildError(f"{full}: is missing; restore it from version control")
        files = [full] if full.is_file() else [f for f in full.rglob("*") if f.is_file()]
        for file in files:
            relative = file.relative_to(root)
            if {"target", "__pycache__"} & set(relative.parts):
                continue
            hashes[relative.as_posix()] = hashlib.sha256(file.read_bytes()).hexdigest()
    return dict(sorted(hashes.items()))


def contents(root: Path, paths: Iterable[Path]) -> list[str]:
    """What files and directories hold, wherever in the repository they stand: a hash of each, sorted.

    That of a directory covers the names of the files in it.
    """
    found = []
    for path in paths:
        hashes = hash_files(root / path, [Path()]) if (root / path).is_dir() else hash_files(root, [path])
        found.append(digest(hashes, 64) if (root / path).is_dir() else hashes[path.as_posix()])
    return sorted(found)


def hash_code(file: Path) -> str:
    """SHA-256 of a module without its imports and docstrings, which tell where others stand."""
    return _hash_code(file.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=64)
def _hash_code(text: str) -> str:
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = (line for number, line in enumerate(text.splitlines(), 1) if number not in left_out and line.strip())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def identified(identity: Mapping[str, Any]) -> str:
    """The 12 hexadecimal digits of an identity; its `files`, which name places in the repository, do not count."""
    return digest({name: value for name, value in identity.items() if name != "files"}, 12)


def crates_of(root: Path, library: Library) -> list[dict[str, str]]:
    """Packages that are compiled: those an endpoint's Cargo package depends on, and those that are only sources."""
    compiled = closure(root, [library.package]) if library.package else []
    sources = [package for package in closure(root, library.crates) if package["name"] in library.crates]
    both = {(package["name"], package["version"]): package for package in [*compiled, *sources]}
    return [both[key] for key in sorted(both)]


def wanted_sources(project: Project) -> dict[str, list[dict[str, str]]]:
    """Name, version and SHA-256 of every package of the Cargo.lock files and of `SDISTS`."""
    locked = {
        (p["name"], p["version"]): p["checksum"]
        for workspace in WORKSPACES
        for versions in lock_packages(project.root, workspace).values()
        for p in versions
        if "checksum" in p
    }
    return {
        "packages": [{"name": n, "version": v, "checksum": checksum} for (n, v), checksum in sorted(locked.items())]
    }


def sources_name(project: Project) -> str:
    """What these packages are called in the store: a digest of their checksums."""
    return digest(wanted_sources(project), 12)


def vendor_directory(project: Project) -> Path:
    """Where the third-party sources are."""
    return project.store / "sources" / sources_name(project) / "vendor"


def verify_source(vendor: Path, package: dict[str, str]) -> None:
    """Check every file of a vendored package against the checksums its registry archive came with."""
    directory = vendor / f"{package['name']}-{package['version']}"
    try:
        recorded = json.loads((directory / ".cargo-checksum.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        raise BuildError(f"{directory}: is not a fetched source; delete {vendor.parent} and start again") from None
    if recorded["package"] != package["checksum"]:
        raise BuildError(f"{directory}: is not the package of Cargo.lock; delete {vendor.parent} and start again")
    for name, expected in recorded["files"].items():
        file = directory / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise BuildError(f"{file}: differs from the registry's source; delete {vendor.parent} and start again")
    own = {file.relative_to(directory).as_posix() for file in trees.files(directory)}
    if more := sorted(own - recorded["files"].keys() - {".cargo-checksum.json"}):
        raise BuildError(f"{directory / more[0]}: no checksum names it; delete {vendor.parent} and start again")


def write_json(file: Path, data: Any) -> None:
    """Write JSON, on disk and whole or not at all (`quicbed.base.durable`); ValueError for NaN and infinities."""
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.write_json(file, data, sort_keys=True)


def have_content(file: Path, content: bytes) -> None:
    """Write a file unless it has this content: what is made from an older one is made again.

    Several processes of a clone may write it at once.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.parent / ".written.lock"):
        if not (file.is_file() and file.read_bytes() == content):
            durable.write_bytes(file, content)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; it ends with the process whatever happens.

    On a shared file system it holds for all machines. Raises BuildError where files cannot be locked.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # who can open a file can lock it: those who may write here
    shared = file.parent.stat().st_mode & 0o060 == 0o060
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as lock:
        try:
            if os.fstat(lock.fileno()).st_uid == os.geteuid():
                os.fchmod(lock.fileno(), 0o660 if shared else 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise BuildError(
                f"{file}: cannot be locked ({error.strerror}); let paths.build and paths.store be on a file system "
                "with locks, such as NFS 4 or Lustre mounted with `flock`"
            ) from None
        yield


def filled(target: Path, fill: Callable[[Path], None]) -> Path:
    """The directory *target*, filled by the first process that needs it; those that come meanwhile wait."""
    if not target.is_dir():
        with locked(target.with_name(f"{target.name}.lock")):
            if not target.is_dir():
                with durable.filling(target) as made:
                    fill(made)
    return target


_INFLUENTIAL = re.compile(
    r"((HOST|BUILD|TARGET|DEBUG)_)?(CC|CXX|CPP|AS|AR|NM|RANLIB|STRIP|(C|CXX|CPP|AS|LD)FLAGS)(_\w+)?"
    r"|CPATH|(C|CPLUS|OBJC)_INCLUDE_PATH|LIBRARY_PATH|LD|LD_RUN_PATH|COMPILER_PATH|GCC_EXEC_PREFIX|LIBS|HOST|BUILD"
    r"|(CMAKE|CARGO_BUILD|CARGO_TARGET|CARGO_PROFILE|CGO|MESON|PKG_CONFIG)_\w+"
    r"|(CARGO_ENCODED_)?RUSTFLAGS|RUSTC(_\w+)?"
)
"""Environment variables that change what compilers and build systems make; conda sets some of them."""


_unflagged = threading.Lock()


_flags: list[dict[str, str]] = []
"""What each `unflagged` that lasts has taken away."""


@contextmanager
def unflagged() -> Iterator[None]:
    """Let nothing in the environment change what is compiled while this lasts, in any thread."""
    with _unflagged:
        _flags.append({name: os.environ.pop(name) for name in list(os.environ) if _INFLUENTIAL.fullmatch(name)})
    try:
        yield
    finally:
        with _unflagged:
            # whoever is last brings back what was there before the first
            if len(_flags) > 1:
                _flags[0] |= _flags.pop()
            else:
                os.environ.update(_flags.pop())
