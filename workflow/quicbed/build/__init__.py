"""Sources and builds: every flavour of a library, as a function of sources, patches and flags only.

A build lives in `<build>/<library>-<flavour>-<hash>/`. The hash covers the checksums of all third-party packages it is
made from (out of Cargo.lock), its patches, the endpoint's own files, the components it shares with other builds, the
compiler flags and the recipe, so a build whose directory exists is never made again and one that would differ never
takes its place. `build.json` inside records all that.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from quicbed import march
from quicbed.config import Flavour, Library, Project
from quicbed.plan import digest

SOURCES = Path("workflow/sources")
ENDPOINTS = Path("workflow/endpoints")
PATCHES = Path("workflow/crypto/patches")
RECIPES = Path("workflow/quicbed/build")


class BuildError(Exception):
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


def recipe_of(library: Library) -> ModuleType:
    """The module of this package that builds a library.

    It has ``build(job: Job) -> dict`` with what build.json records, and may have ``FILES``, further files of this
    package that decide the result; ``version(project, name) -> str``, where packages of Cargo.lock do not tell it; and
    ``sources(project, name)``, the third-party packages (name, version, checksum) that it takes from elsewhere.
    """
    directory = Path(__file__).parent
    known = sorted(file.stem for file in directory.glob("*.py") if file.stem not in ("__init__", "components"))
    name = library.recipe.replace("-", "_")
    if name not in known:
        names = ", ".join(stem.replace("_", "-") for stem in known)
        raise BuildError(f"{library.title}: recipe: `{library.recipe}` is unknown; known are {names}")
    return importlib.import_module(f"quicbed.build.{name}")


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


def lock_packages(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Packages of Cargo.lock by name (a name may have several versions)."""
    file = root / SOURCES / "Cargo.lock"
    try:
        lock = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BuildError(f"{file}: cannot be read: {error}; restore it from version control") from None
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in lock["package"]:
        packages.setdefault(package["name"], []).append(package)
    return packages


def _all_packages(root: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Packages of Cargo.lock that `names` depend on, themselves included, each once."""
    packages = lock_packages(root)
    waiting = list(names)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    while waiting:
        # a dependency is "name" or, where a name has several versions, "name version"
        name, _, version = waiting.pop().partition(" ")
        candidates = [p for p in packages.get(name, []) if version in ("", p["version"])]
        if not candidates:
            raise BuildError(
                f"{root / SOURCES / 'Cargo.lock'}: has no package `{name}`; add it to {SOURCES / 'Cargo.toml'}"
            )
        for package in candidates:
            key = (package["name"], package["version"])
            if key not in found:
                found[key] = package
                waiting += package.get("dependencies", [])
    return [found[key] for key in sorted(found)]


def closure(root: Path, names: Iterable[str]) -> list[dict[str, str]]:
    """Third-party packages that `names` depend on, themselves included: name, version, checksum; sorted."""
    return [
        {"name": package["name"], "version": package["version"], "checksum": package["checksum"]}
        for package in _all_packages(root, names)
        if "checksum" in package
    ]


def workspace_directories(root: Path, name: str) -> list[Path]:
    """Directories of this repository's own packages that package `name` depends on, itself included."""
    file = root / SOURCES / "Cargo.toml"
    directories: dict[str, Path] = {}
    for member in tomllib.loads(file.read_text(encoding="utf-8"))["workspace"]["members"]:
        directory = Path(os.path.normpath(SOURCES / member))
        manifest = root / directory / "Cargo.toml"
        try:
            directories[tomllib.loads(manifest.read_text(encoding="utf-8"))["package"]["name"]] = directory
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


def crates_of(root: Path, library: Library) -> list[dict[str, str]]:
    """Packages that are compiled: those an endpoint's Cargo package depends on, and those that are only sources."""
    compiled = closure(root, [library.package]) if library.package else []
    sources = [package for package in closure(root, library.crates) if package["name"] in library.crates]
    both = {(package["name"], package["version"]): package for package in [*compiled, *sources]}
    return [both[key] for key in sorted(both)]


def sources_of(project: Project, name: str) -> list[dict[str, str]]:
    """Third-party packages a library is made of (name, version, checksum): of Cargo.lock, then the recipe's own."""
    library = project.libraries[name]
    elsewhere = getattr(recipe_of(library), "sources", None)
    return [*crates_of(project.root, library), *(elsewhere(project, name) if elsewhere else [])]


def _chosen(project: Project, name: str, named: str) -> tuple[Project, str]:
    """The project that builds for the instruction set and on the host of a build's name, and the flavour.

    A name without them has those of the project, so that a build within another is for the same.
    """
    try:
        flavour, level, host = march.parts(named)
    except ValueError as error:
        raise BuildError(f"{name}: {error}") from None
    if (level or host) and (reason := march.unsupported_reason(project.libraries[name])) is not None:
        what = "for an instruction set" if level else "on a host"
        raise BuildError(f"{project.libraries[name].title} cannot be built {what}: {reason}")
    if host and host not in project.testbed.hosts:
        raise BuildError(f"{name}: `{named}`: testbed {project.config.testbed} has no host {host}")
    return march.applied(project, level or project.march, host or project.host), flavour


def identity(project: Project, name: str, flavour: str) -> dict[str, Any]:
    """Everything a build is a function of."""
    from quicbed.build import components

    project, flavour = _chosen(project, name, flavour)
    project = project.of_flavour(name, flavour)
    root = project.root
    library = project.libraries[name]
    chosen = library.flavours[flavour]
    own = [ENDPOINTS / library.endpoint]
    recipe = recipe_of(library)
    own += [RECIPES / file for file in (Path(str(recipe.__file__)).name, *getattr(recipe, "FILES", ()))]
    own += [PATCHES / patch.file for patch in chosen.patches]
    own += [Path(source) for source in chosen.sources]
    profile: Any = None
    for component in chosen.components:
        own += components.COMPONENTS[component].companions
    if library.package:
        own += workspace_directories(root, library.package)
        manifest = tomllib.loads((root / SOURCES / "Cargo.toml").read_text(encoding="utf-8"))
        profile = manifest.get("profile")
    return {
        "library": name,
        "flavour": flavour,
        "features": chosen.features,
        "environment": library.environment,
        "crates": sources_of(project, name),
        "components": {component: components.component_id(project, component) for component in chosen.components},
        "files": hash_files(root, own),
        "profile": profile,
    } | march.identified(project)


def build_id(project: Project, name: str, flavour: str) -> str:
    """Directory name of a build: `<library>-<name>-<12 hex digits>`, its name being that of `quicbed.march.named`."""
    chosen, plain = _chosen(project, name, flavour)
    return f"{name}-{march.named(plain, chosen.march, chosen.host)}-{digest(identity(project, name, flavour), 12)}"


def version_of(project: Project, name: str) -> str:
    """Version of a library: as configured, or of its first package, whose build metadata names the upstream version."""
    if configured := project.libraries[name].version:
        return configured
    if told := getattr(recipe_of(project.libraries[name]), "version", None):
        return str(told(project, name))
    first = project.libraries[name].crates[0]
    version: str = lock_packages(project.root)[first][0]["version"]
    return version.partition("+")[2] or version


def build_directory(project: Project, name: str, flavour: str) -> Path:
    """Where a build is or will be."""
    return project.build / build_id(project, name, flavour)


def listing(project: Project, name: str, flavour: str) -> Path:
    """A copy of build.json beside the build's directory."""
    return project.build / f"{build_id(project, name, flavour)}.json"


def read_build(project: Project, name: str, flavour: str) -> dict[str, Any]:
    """build.json of a finished build."""
    file = build_directory(project, name, flavour) / "build.json"
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise BuildError(f"{file}: cannot be read ({error}); build it with `quicbed build {name} {flavour}`") from None
    return data


def read_known(project: Project, name: str, flavour: str) -> dict[str, Any]:
    """build.json of a finished build or, with `problem`, what is known of one that cannot be used."""
    try:
        return read_build(project, name, flavour)
    except BuildError:
        known = _unusable(listing(project, name, flavour))
        if known is None:
            raise
        return known


def problem_of(copy: Path) -> str | None:
    """Why a build cannot be used, according to the copy of its build.json; None if it can, or is not made yet."""
    known = _unusable(copy)
    return None if known is None else str(known["problem"])


def _unusable(copy: Path) -> dict[str, Any] | None:
    with suppress(OSError, json.JSONDecodeError):
        data: dict[str, Any] = json.loads(copy.read_text(encoding="utf-8"))
        return data if "problem" in data else None
    return None


def vendor_directory(project: Project) -> Path:
    """Where the third-party sources are."""
    return project.build / "sources" / "vendor"


def fetch_sources(project: Project, log: Path) -> Path:
    """Fetch every package of Cargo.lock through cargo, which checks the checksums; returns sources.json.

    sources.json lists name, version and SHA-256 of every package.
    """
    target = vendor_directory(project)
    listing = target.parent / "sources.json"
    # a workflow engine deletes the listing before it calls for it again
    kept = target.parent / "kept.json"
    packages = [
        {"name": p["name"], "version": p["version"], "checksum": p["checksum"]}
        for versions in lock_packages(project.root).values()
        for p in versions
        if "checksum" in p
    ]
    packages.sort(key=lambda p: (p["name"], p["version"]))
    wanted = {"packages": packages}
    text = json.dumps(wanted, sort_keys=True)
    if target.is_dir() and kept.is_file() and kept.read_text(encoding="utf-8") == text:
        write_json(listing, wanted)
        return listing
    kept.unlink(missing_ok=True)
    manifest = project.root / SOURCES / "Cargo.toml"
    partial = target.with_name("vendor.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    argv = ["cargo", "vendor", "--locked", "--versioned-dirs", "--manifest-path", str(manifest), str(partial)]
    run(argv, log=log, cwd=project.root)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    kept.write_text(text, encoding="utf-8")
    write_json(listing, wanted)
    return listing


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


def write_json(file: Path, data: Any) -> None:
    """Write JSON so that a reader sees either the old or the whole new file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    partial.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(file)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; it ends with the process whatever happens.

    On a shared file system it holds for all machines. Raises BuildError where files cannot be locked.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise BuildError(
                f"{file}: cannot be locked ({error.strerror}); let paths.build be on a file system with locks, such as "
                "NFS 4 or Lustre mounted with `flock`"
            ) from None
        yield


def build(project: Project, name: str, flavour: str, *, jobs: int, log: Path) -> Path:
    """Build a flavour unless its directory is there already; returns the copy of its build.json beside it.

    `flavour` may name an instruction set too (`quicbed.march.named`). Of what cannot be used (UnusableError) there is
    that copy alone, with the reason as `problem`, and it is tried again the next time.
    """
    project, flavour = _chosen(project, name, flavour)
    if project.host:
        raise BuildError(f"{name}: builds of the host {project.host} are made there; run `quicbed host-builds`")
    library = project.libraries[name]
    if flavour not in library.flavours:
        raise BuildError(f"config/libraries/{name}.yaml: has no flavour `{flavour}`")
    directory = build_directory(project, name, flavour)
    copy = listing(project, name, flavour)
    if not (directory / "build.json").is_file():
        with locked(project.build / "work" / f"{name}-{flavour}.lock"):
            # another process may have built it meanwhile
            if not (directory / "build.json").is_file():
                if project.march and (problem := march.builder_problem(project.march)) is not None:
                    raise BuildError(f"{directory.name} cannot be built here: march: {problem}")
                try:
                    with march.compilers(project):
                        _build(project, name, flavour, directory, jobs=jobs, log=log)
                except UnusableError as error:
                    known = {"library": name, "flavour": flavour, "version": version_of(project, name)}
                    # a folder that has changed meanwhile has another id already, by which it is looked for
                    for place in {copy, listing(project, name, flavour)}:
                        write_json(place, {"build": place.stem, **known, "problem": str(error)})
                    raise
    write_json(copy, json.loads((directory / "build.json").read_text(encoding="utf-8")))
    return copy


def _build(project: Project, name: str, flavour: str, directory: Path, *, jobs: int, log: Path) -> None:
    from quicbed import compiled
    from quicbed.build import components

    project = project.of_flavour(name, flavour)
    library = project.libraries[name]
    vendor = vendor_directory(project)
    known = identity(project, name, flavour)
    for package in crates_of(project.root, library):
        verify_source(vendor, package)
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    shared = {
        component: components.provide(project, component, jobs=jobs, log=log)
        for component in library.flavours[flavour].components
    }
    if library.recipe == compiled.RECIPE and (source := compiled.take_over(project, name, flavour)):
        with log.open("a", encoding="utf-8") as out:
            out.write(f"starting from what {source} has compiled\n")
    details = recipe_of(library).build(Job(project, name, flavour, vendor, shared, partial.absolute(), jobs, log))
    described = {role: describe(partial / "bin" / role) for role in ("client", "server")}
    patched = {patch.crate for patch in library.flavours[flavour].patches}
    write_json(
        partial / "build.json",
        {
            "build": directory.name,
            "library": name,
            "flavour": flavour,
            "version": version_of(project, name),
            "features": known["features"],
            "crates": [{**p, "patched": p["name"] in patched} for p in known["crates"]],
            "patches": [
                {
                    "crate": p.crate,
                    "file": p.file,
                    "sha256": known["files"][(PATCHES / p.file).as_posix()],
                }
                for p in library.flavours[flavour].patches
            ],
            "components": {component: components.read(project, component) for component in shared},
            "files": known["files"],
            "describe": described,
            **march.recorded(project, name),
            **details,
        },
    )
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def describe(program: Path) -> dict[str, Any]:
    """What a built endpoint says about itself (`--describe`)."""
    from quicbed.events import CONTRACT

    try:
        result = subprocess.run([str(program), "--describe"], capture_output=True, text=True, timeout=20, check=False)
        data = json.loads(result.stdout) if result.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise BuildError(f"{program} --describe: {error}") from None
    if not isinstance(data, dict) or data.get("contract") != CONTRACT:
        raise BuildError(f"{program} --describe: does not print a description of contract version {CONTRACT}")
    return data
