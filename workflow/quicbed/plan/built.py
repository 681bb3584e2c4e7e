"""The model of a build: what build.json holds, written and read here only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from quicbed.base import durable, untrusted
from quicbed.base.models import OBJECT, problem, unknown
from quicbed.base.untrusted import UntrustedError

BUILD_FILE = "build.json"
FORMAT = 1


class BuiltError(ValueError):
    """A build.json that cannot be read, in one line."""


class Part(BaseModel):
    """An object in build.json."""

    model_config = OBJECT


class Crate(Part):
    """A package that a build is made of."""

    name: str
    version: str
    checksum: str
    """SHA-256."""
    patched: bool | None = None


class BuildPatch(Part):
    """A change to a package."""

    crate: str
    file: str
    """Below workflow/crypto/patches/."""
    sha256: str


class Wheel(Part):
    """An archive of a Python package that was installed."""

    name: str
    version: str
    file: str
    sha256: str


class InstructionSet(Part):
    """What a build for an instruction set is made for."""

    level: str
    processor: dict[str, Any] | None = None
    """Of `native`."""
    flags: dict[str, str] | None = None
    """What compilers are told."""


class BuiltOn(Part):
    """The host of a testbed where a build was made."""

    role: str
    address: str
    build: str
    """Id there."""
    host_id: str | None = None
    cpu_model: str | None = None
    architecture: str | None = None
    kernel: str | None = None
    libc: str | None = None


class Build(Part):
    """build.json: what a build is made of. A build that cannot be used has `problem` and nothing after it."""

    format: Literal[1] | None = None
    """Version of this model; those before it have no such key, and else the same."""
    build: str
    """Id, and name of its directory."""
    library: str
    flavour: str
    version: str
    """Of the library."""
    problem: str | None = None
    """Why it cannot be used."""
    features: list[str] = []
    crates: list[Crate] = []
    patches: list[BuildPatch] = []
    components: dict[str, dict[str, Any]] = {}
    """What is shared with other builds: component.json of each."""
    files: dict[str, str] = {}
    """SHA-256 of each file of this repository that it is made of."""
    describe: dict[str, dict[str, Any]] = {}
    """What client and server say about themselves (`--describe`)."""
    march: InstructionSet | None = None
    built_on: BuiltOn | None = None
    """Null of builds that were made where they are."""
    compiler: str | dict[str, str] | None = None
    flags: list[str] | dict[str, str] | None = None
    """Of compilers."""
    tags: list[str] | None = None
    """Of Go."""
    versions: dict[str, str] | None = None
    """Of what the programs are made of."""
    options: dict[str, list[str]] | None = None
    """With which those were configured."""
    seconds: dict[str, float] | None = None
    """That its steps took."""
    interpreter: str | None = None
    """Python that runs it."""
    archives: list[Wheel] | None = None
    folders: dict[str, str] | None = None
    """Of an external endpoint, by role."""


def parse(content: bytes) -> Build:
    """The build that a build.json with this content is of; BuiltError names the key that does not fit."""
    try:
        document = untrusted.parse(content)
    except UntrustedError as error:
        raise BuiltError(str(error)) from None
    if not isinstance(document, dict):
        raise BuiltError("truncated or corrupt: not an object")
    if isinstance(document.get("format"), bool) or document.get("format") not in (None, FORMAT):
        raise BuiltError(f"format {document['format']!r:.60}, this version reads format {FORMAT}")
    try:
        return Build.model_validate(document)
    except ValidationError as error:
        raise BuiltError(problem(error)) from None


def read(file: Path) -> Build:
    """`parse` of a file, which may be anything; BuiltError too where it cannot be read."""
    try:
        return parse(untrusted.read(file))
    except UntrustedError as error:
        raise BuiltError(str(error)) from None


def made(values: Mapping[str, Any]) -> Build:
    """The build of these *values*, all of which the model must name; BuiltError if they are none."""
    document = json.loads(durable.to_json({"format": FORMAT, **values}))
    try:
        build = Build.model_validate(document)
    except ValidationError as error:
        raise BuiltError(problem(error)) from None
    if unnamed := unknown(document, build.model_dump(exclude_unset=True)):
        raise BuiltError(f"the model of a build does not name {', '.join(unnamed)}")
    return build


def write(file: Path, build: Build) -> None:
    """Write a build.json, whole or not at all; directories above it are made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.write_json(file, build.model_dump(mode="json", exclude_unset=True), sort_keys=True)
