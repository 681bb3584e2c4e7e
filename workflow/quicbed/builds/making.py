"""Sources and builds: every flavour of a library, as a function of sources, patches and flags only.

A build lives in the store (`quicbed.builds.build_store`), and `<build>/<library>-<flavour>-<hash>` leads to it. The
hash covers the checksums of all third-party packages it is made from (out of Cargo.lock), its patches, the endpoint's
own files, the components it shares with other builds, the compiler flags and the recipe, so a build that is there is
never made again unless its files were changed, and one that would differ never takes its place. `build.json` inside
records all that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from quicbed.base import durable, environment
from quicbed.base.models import RecordError
from quicbed.builds import build_store, compiled, components, kit, sources
from quicbed.builds.kit import (
    ENDPOINTS,
    PATCHES,
    SOURCES,
    BuildError,
    Job,
    UnusableError,
    contents,
    crates_of,
    hash_code,
    hash_files,
    lock_packages,
    unflagged,
    vendor_directory,
    verify_source,
    workspace_directories,
)
from quicbed.builds.recipes import cargo, external, go, nginx_h3, openssl, python, tcp_tls
from quicbed.config.model import Library, Project
from quicbed.contract.events import CONTRACT
from quicbed.plan import march
from quicbed.plan.built import BUILD_FILE, Build

DIRECTORY = Path("workflow/quicbed/builds/recipes")
RECIPES: Mapping[str, ModuleType] = {
    "cargo": cargo,
    "external": external,
    "go": go,
    "nginx-h3": nginx_h3,
    "openssl": openssl,
    "python": python,
    "tcp-tls": tcp_tls,
}
"""The modules that build libraries, by the key `recipe` of a library's description.

One has ``build(job: Job) -> dict`` with what build.json records, and may have ``FILES``, other modules beside it that
decide the result, and ``COMPANIONS``, further files of the repository that do; ``FROM_STOCK = True``, where it makes
other flavours from the finished stock build; ``version(project, name) -> str``, where packages of Cargo.lock do not
tell it; and ``sources(project, name)``, the third-party packages (name, version, checksum) that it takes from
elsewhere.
"""


def recipe_of(library: Library) -> ModuleType:
    """The module that builds a library; BuildError where there is none."""
    if library.recipe not in RECIPES:
        raise BuildError(f"{library.title}: recipe: `{library.recipe}` is unknown; known are {', '.join(RECIPES)}")
    return RECIPES[library.recipe]


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
    if flavour not in (flavours := project.libraries[name].flavours):
        raise BuildError(f"config/libraries/{name}.yaml: has no flavour `{flavour}`; it has {', '.join(flavours)}")
    return march.applied(project, level or project.march, host or project.host), flavour


def identity(project: Project, name: str, flavour: str) -> dict[str, Any]:
    """Everything a build is a function of; `files`, which tells where that stands, is for the record alone."""
    project, flavour = _chosen(project, name, flavour)
    project = project.of_flavour(name, flavour)
    root = project.root
    library = project.libraries[name]
    chosen = library.flavours[flavour]
    own = [ENDPOINTS / library.endpoint]
    recipe = recipe_of(library)
    own += getattr(recipe, "COMPANIONS", ())
    own += [Path(source) for source in chosen.sources]
    profile: Any = None
    for component in chosen.components:
        own += components.COMPONENTS[component].companions
    if library.package:
        own += workspace_directories(root, library.package)
        manifest = kit.parsed((root / SOURCES / "Cargo.toml").read_text(encoding="utf-8"))
        profile = manifest.get("profile")
    patches = [PATCHES / patch.file for patch in chosen.patches]
    modules = [DIRECTORY / file for file in (Path(str(recipe.__file__)).name, *getattr(recipe, "FILES", ()))]
    return {
        "library": name,
        "flavour": flavour,
        "features": chosen.features,
        "environment": library.environment,
        "crates": sources_of(project, name),
        "components": {component: components.component_id(project, component) for component in chosen.components},
        "recipe": [hash_code(root / module) for module in modules],
        "patches": [
            [patch.crate, *contents(root, [file])] for patch, file in zip(chosen.patches, patches, strict=True)
        ],
        "contents": contents(root, own),
        "profile": profile,
        "files": hash_files(root, [*own, *modules, *patches]),
    } | march.identified(project)


def build_id(project: Project, name: str, flavour: str) -> str:
    """Directory name of a build: `<library>-<name>-<12 hex digits>`, with the name of `quicbed.plan.march.named`."""
    chosen, plain = _chosen(project, name, flavour)
    return f"{name}-{march.named(plain, chosen.march, chosen.host)}-{kit.identified(identity(project, name, flavour))}"


def changed(project: Project, name: str, named: str, build: str) -> str | None:
    """Why the folders of a library are not what its build of a name was made of any more, None if they are."""
    if build_id(project, name, named) == build:
        return None
    shown = ", ".join(dict.fromkeys(map(str, external.folders_of(project, name).values())))
    return f"{shown}: was changed since it was built; build it again, and let its scripts write to venv/ or LOGS only"


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
    """Where a build is or will be, as the clone sees it: a link into the store, or a directory (`in_store`)."""
    return project.build / build_id(project, name, flavour)


def in_store(project: Project, name: str, directory: Path) -> build_store.Entry | None:
    """Where a build is or will be in the store, to which its place in the clone leads; None for one that is there.

    That is one of an external endpoint, whose folder is asked by each clone whether it keeps the contract, and one of a
    host, which is identified by an address that may be another host's in another clone.
    """
    recipe = recipe_of(project.libraries[name])
    if "+" in directory.name or recipe is external:
        return None
    interpreter = Path(sys.executable).resolve() if recipe is python else None
    return build_store.of_project(project, "builds", directory.name, interpreter)


def is_made(project: Project, name: str, flavour: str) -> bool:
    """Whether a build is there, in this clone or in the store, from where it is taken in a moment."""
    directory = build_directory(project, name, flavour)
    entry = in_store(project, name, directory)
    places = (directory, *([entry.directory] if entry else []))
    return any(os.access(place / BUILD_FILE, os.R_OK) for place in places)


def forget(project: Project, wanted: Iterable[tuple[str, str]]) -> None:
    """Remove listings of builds that are not there any more, as after the store was pruned: they are made again."""
    for key in wanted:
        copy = listing(project, *key)
        made = os.access(build_directory(project, *key) / BUILD_FILE, os.R_OK)
        if copy.is_file() and not made and problem_of(copy) is None:
            copy.unlink(missing_ok=True)


def keep(project: Project, name: str, named: str, identified: str) -> None:
    """Keep a build in the store as long as this process lasts; BuildError for one that is not as it was made."""
    directory = project.build / identified
    entry = build_store.entry_of(directory.resolve())
    if entry is None:
        return
    build_store.check(entry.store, project.root)
    build_store.use(entry, project)
    if (problem := build_store.changed(entry.directory)) is not None:
        (project.build / f"{identified}.json").unlink(missing_ok=True)  # so that the workflow makes it again
        raise BuildError(
            f"{directory}: is not as it was made ({problem}); start again, or run `quicbed build {name} {named}`"
        )


def listing(project: Project, name: str, flavour: str) -> Path:
    """A copy of build.json beside the build's directory."""
    return project.build / f"{build_id(project, name, flavour)}.json"


def read_build(project: Project, name: str, flavour: str) -> Build:
    """build.json of a finished build."""
    file = build_directory(project, name, flavour) / BUILD_FILE
    try:
        return Build.read(file)
    except RecordError as error:
        raise BuildError(f"{file}: {error}; build it with `quicbed build {name} {flavour}`") from None


def read_known(project: Project, name: str, flavour: str) -> Build:
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
    return None if known is None else known.problem


def _unusable(copy: Path) -> Build | None:
    with suppress(RecordError):
        build = Build.read(copy)
        return None if build.problem is None else build
    return None


def build(project: Project, name: str, flavour: str, *, jobs: int, log: Path) -> Path:
    """Build a flavour unless its directory is there already; returns the copy of its build.json beside it.

    `flavour` may name an instruction set too (`quicbed.plan.march.named`). Of what cannot be used (UnusableError) there
    is that copy alone, with the reason as `problem`, and it is tried again the next time.
    """
    project, flavour = _chosen(project, name, flavour)
    if project.host:
        raise BuildError(f"{name}: builds of the host {project.host} are made there; run `quicbed host-builds`")
    library = project.libraries[name]
    if flavour not in library.flavours:
        raise BuildError(f"config/libraries/{name}.yaml: has no flavour `{flavour}`")
    directory = build_directory(project, name, flavour)
    copy = listing(project, name, flavour)
    entry = in_store(project, name, directory)

    def fill(made: Path) -> None:
        if project.march and (problem := march.builder_problem(project.march)) is not None:
            raise BuildError(f"{directory.name} cannot be built here: march: {problem}")
        with environment.only_named(), unflagged(), march.compilers(project):
            build_into(project, name, flavour, made, directory.name, jobs=jobs, log=log)

    with kit.locked(project.build / "work" / f"{name}-{flavour}.lock"):  # of those who build in this clone
        # one of a clone from before there was a store stays in use
        own = (directory / BUILD_FILE).is_file() and not directory.is_symlink()
        if entry is not None and not own:
            build_store.provide(entry, project, fill)
            build_store.link(entry, directory)
        elif not own:
            try:
                with durable.filling(directory, replace=True) as made:
                    fill(made)
            except UnusableError as error:
                known = {"library": name, "flavour": flavour, "version": version_of(project, name)}
                # a folder that has changed meanwhile has another id already, by which it is looked for
                for place in {copy, listing(project, name, flavour)}:
                    Build.made({"build": place.stem, **known, "problem": str(error)}).write(place)
                raise
        kit.have_content(copy, read_build(project, name, flavour).content())
    return copy


def build_into(project: Project, name: str, flavour: str, made: Path, identified: str, *, jobs: int, log: Path) -> None:
    """Build a flavour into an empty directory, with its record."""
    project = project.of_flavour(name, flavour)
    library = project.libraries[name]
    vendor = vendor_directory(project)
    known = identity(project, name, flavour)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    packages = crates_of(project.root, library)
    if packages:
        sources.need(project, log)
    for package in packages:
        verify_source(vendor, package)
    shared = {
        component: components.provide(project, component, jobs=jobs, log=log)
        for component in library.flavours[flavour].components
    }
    if library.recipe == compiled.RECIPE and (source := compiled.take_over(project, name, flavour)):
        with log.open("a", encoding="utf-8") as out:
            out.write(f"starting from what {source} has compiled\n")
    recipe = recipe_of(library)
    stock = None
    if getattr(recipe, "FROM_STOCK", False) and flavour != "stock":
        build(project, name, "stock", jobs=jobs, log=log)
        stock = build_directory(project, name, "stock").resolve()
    version = version_of(project, name)
    job = Job(project, name, flavour, vendor, shared, made.absolute(), jobs, log, version, stock)
    details = recipe.build(job)
    described = {role: describe(made / "bin" / role) for role in ("client", "server")}
    patched = {patch.crate for patch in library.flavours[flavour].patches}
    values = {
        "build": identified,
        "library": name,
        "flavour": flavour,
        "version": version,
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
    }
    try:
        Build.made(json.loads(durable.to_json(values))).write(made / BUILD_FILE)
    except RecordError as error:
        raise BuildError(f"{name}: recipe {library.recipe}: build.json: {error}") from None


def describe(program: Path) -> dict[str, Any]:
    """What a built endpoint says about itself (`--describe`)."""
    try:
        result = subprocess.run([str(program), "--describe"], capture_output=True, text=True, timeout=20, check=False)
        data = json.loads(result.stdout) if result.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise BuildError(f"{program} --describe: {error}") from None
    if not isinstance(data, dict) or data.get("contract") != CONTRACT:
        raise BuildError(f"{program} --describe: does not print a description of contract version {CONTRACT}")
    return data
