"""Recipe for libraries that are Rust crates: one Cargo package in workflow/endpoints/ with client and server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quicbed.base.hashing import digest
from quicbed.builds import components, kit
from quicbed.builds.kit import Job
from quicbed.config.model import Library, Project
from quicbed.plan.march import RUSTFLAGS

CFLAGS = "-fno-omit-frame-pointer"

BARE = "bare"
"""Example of an endpoint's package that transfers with nothing but the library, to hold the endpoint against."""


def build(job: Job) -> dict[str, Any]:
    """Build the endpoint's programs; returns compiler and flags."""
    project, name, flavour = job.project, job.name, job.flavour
    _cargo("build", project, name, flavour, [], jobs=job.jobs, log=job.log)
    binaries = job.out / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    for program in programs(project, name, flavour):
        shutil.copy2(_target(project, name, flavour) / "release" / f"quicbed-{name}-{program}", binaries / program)
    return {
        "compiler": {"rustc": _version("rustc"), "cc": _version("cc"), "cxx": _version("c++")},
        "flags": {"rustc": RUSTFLAGS, "cc": CFLAGS, "profile": "release"},
    }


def test(project: Project, name: str, flavour: str, packages: Sequence[str], *, jobs: int, log: Path) -> None:
    """Run the tests of an endpoint and of further packages of the workspace, on what its build has compiled."""
    _cargo("test", project, name, flavour, packages, jobs=jobs, log=log)


def programs(project: Project, name: str, flavour: str) -> list[str]:
    """Programs of a build: client, server and, where the endpoint's package has it in this flavour, primitives."""
    library = project.libraries[name]
    file = project.root / kit.ENDPOINTS / library.endpoint / "Cargo.toml"
    binaries = tomllib.loads(file.read_text(encoding="utf-8")).get("bin", [])
    features = set(library.flavours[flavour].features)
    optional = any(
        binary["name"] == f"quicbed-{name}-primitives" and features.issuperset(binary.get("required-features", []))
        for binary in binaries
    )
    return ["client", "server", *(["primitives"] if optional else [])]


def has_bare(project: Project, name: str) -> bool:
    """Whether a library's endpoint has the example `BARE`."""
    return (project.root / kit.ENDPOINTS / project.libraries[name].endpoint / "examples" / f"{BARE}.rs").exists()


def _target(project: Project, name: str, flavour: str) -> Path:
    """Where cargo compiles: kept from build to build, except when anything cargo itself does not track has changed."""
    library = project.libraries[name]
    untracked = {
        "flags": [RUSTFLAGS, CFLAGS],
        "environment": library.environment,
        "crates": kit.crates_of(project.root, library),
        "components": components.environment(project, library.flavours[flavour].components),
        "patches": kit.contents(
            project.root, [kit.PATCHES / patch.file for patch in library.flavours[flavour].patches]
        ),
    }
    return project.build / "work" / f"{name}-{flavour}-{digest(untracked)}"


def _cargo(
    command: str, project: Project, name: str, flavour: str, packages: Sequence[str], *, jobs: int, log: Path
) -> None:
    library = project.libraries[name]
    chosen = library.flavours[flavour]
    patched = _patched(project, library, flavour, log)
    argv = [
        "cargo",
        command,
        "--release",
        "--locked",
        "--offline",
        "--jobs",
        str(jobs),
        "--manifest-path",
        str(project.root / kit.SOURCES / "Cargo.toml"),
        *(part for package in (str(library.package), *packages) for part in ("--package", package)),
        "--target-dir",
        str(_target(project, name, flavour)),
        *vendored(kit.vendor_directory(project)),
        *(["--config", f"paths={json.dumps([str(copy) for copy in patched.values()])}"] if patched else []),
    ]
    for feature in chosen.features:
        argv += ["--features", f"{library.package}/{feature}"]
    kit.run(argv, log=log, cwd=project.root, env=environment(project, library, flavour, patched))


def vendored(sources: Path) -> list[str]:
    """Words that let cargo take crates from a directory."""
    directory = f"source.vendored.directory={json.dumps(str(sources))}"
    return ["--config", 'source.crates-io.replace-with="vendored"', "--config", directory]


def environment(
    project: Project, library: Library, flavour: str, patched: Mapping[str, Path] | None = None
) -> dict[str, str]:
    """The environment of cargo: the caller's without anything that changes what is compiled."""
    dropped = (
        "RUSTFLAGS",
        "CFLAGS",
        "CXXFLAGS",
        "LDFLAGS",
        "CARGO_BUILD",
        "CARGO_PROFILE",
        "CARGO_ENCODED",
        "CARGO_TARGET_",
        "BORING_",
        "QUICBED_",
        "RUSTC",
        "CC",
        "CXX",
        "AR",
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    env |= {
        "RUSTFLAGS": RUSTFLAGS,
        "CFLAGS": CFLAGS,
        "CXXFLAGS": CFLAGS,
        "CARGO_TERM_COLOR": "never",
    }
    try:
        import clang.native  # the libclang wheel; bindgen loads the library inside it

        env["LIBCLANG_PATH"] = str(Path(clang.native.__file__).parent)
        # the wheel has no compiler headers (stddef.h); gcc's serve
        headers = _output("gcc", "-print-file-name=include")
        # and where gcc has a C library of its own, as conda's has, there is perhaps no other
        sysroot = _output("gcc", "-print-sysroot").rstrip("/")
        env["BINDGEN_EXTRA_CLANG_ARGS"] = f"-isystem {headers}" + (f" --sysroot={sysroot}" if sysroot else "")
    except ImportError as error:
        raise kit.BuildError(f"Python package libclang is missing ({error}); run `make setup`") from None
    vendor = kit.vendor_directory(project)
    places = {p["name"]: f"{p['name']}-{p['version']}" for p in kit.crates_of(project.root, library)}
    directories = {name: str((patched or {}).get(place, vendor / place)) for name, place in places.items()}
    env |= components.environment(project, library.flavours[flavour].components)
    for name, value in library.environment.items():
        try:
            env[name] = value.format_map(directories)
        except (KeyError, ValueError) as error:
            raise kit.BuildError(
                f"config/libraries: environment.{name}: `{value}`: {error} is no package that {library.package} uses "
                "or that `crates` lists"
            ) from None
    return env


def _version(program: str) -> str:
    return _output(program, "--version").splitlines()[0]


def _output(*argv: str) -> str:
    try:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise kit.BuildError(f"{' '.join(argv)}: {error}; run `make setup`") from None
    return result.stdout.strip()


def _patched(project: Project, library: Library, flavour: str, log: Path) -> dict[str, Path]:
    """Patched copies of crates, by name and version; cargo compiles them in place of those that were fetched.

    Whatever does not depend on them is the same crate as in other builds, from the same place.
    """
    patches = library.flavours[flavour].patches
    directory = (project.build / "work" / f"{library.package}-{flavour}-sources").absolute()
    shutil.rmtree(directory, ignore_errors=True)
    copies: dict[str, Path] = {}
    for patch in patches:
        found = [
            f"{p['name']}-{p['version']}" for p in kit.crates_of(project.root, library) if p["name"] == patch.crate
        ]
        if len(found) != 1:
            raise kit.BuildError(
                f"{patch.file} is for one version of {patch.crate}, and {library.package} uses {len(found)}"
            )
        name = found[0]
        if name not in copies:
            copies[name] = directory / name
            shutil.copytree(kit.vendor_directory(project) / name, copies[name])
        file = project.root / kit.PATCHES / patch.file
        argv = ["patch", "--strip=1", "--fuzz=0", "--no-backup-if-mismatch", f"--input={file}"]
        kit.run(argv, log=log, cwd=copies[name])
    return copies
