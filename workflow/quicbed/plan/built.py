"""The model of a build: what build.json holds, written and read by it only."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from quicbed.base.models import Part, Record

BUILD_FILE = "build.json"


class Crate(Part):
    """A package that is part of a build."""

    name: str
    version: str
    checksum: str
    """SHA-256."""
    patched: bool | None = None


class BuildPatch(Part):
    """A change to a package."""

    crate: str
    file: str
    """Path below workflow/crypto/patches/."""
    sha256: str


class Wheel(Part):
    """An archive of a Python package that was installed."""

    name: str
    version: str
    file: str
    sha256: str


class InstructionSet(Part):
    """The instruction set that a build is made for."""

    level: str
    processor: dict[str, Any] | None = None
    """For `native`: the processor that the build is made for."""
    flags: dict[str, str] | None = None
    """Flags passed to the compilers."""


class BuiltOn(Part):
    """The host of a testbed where a build was made."""

    role: str
    address: str
    build: str
    """Id of the build on that host."""
    host_id: str | None = None
    cpu_model: str | None = None
    architecture: str | None = None
    kernel: str | None = None
    libc: str | None = None


class Build(Record):
    """build.json: what a build is made of. A build that cannot be used has `problem` and none of the keys after it."""

    FORMAT: ClassVar[int] = 1
    UNNUMBERED: ClassVar[bool] = True

    format: Literal[1] = 1
    """Version of this model."""
    build: str
    """Id of the build, and name of its directory."""
    library: str
    flavour: str
    version: str
    """Version of the library."""
    problem: str | None = None
    """Why the build cannot be used."""
    features: list[str] = Field([])
    crates: list[Crate] = Field([])
    patches: list[BuildPatch] = Field([])
    components: dict[str, dict[str, Any]] = Field({})
    """Components shared with other builds: the component.json of each."""
    files: dict[str, str] = Field({})
    """SHA-256 of each file of this repository that the build is made from."""
    describe: dict[str, dict[str, Any]] = Field({})
    """What client and server report about themselves (`--describe`)."""
    march: InstructionSet | None = None
    built_on: BuiltOn | None = None
    """Null for builds that were made where they are stored."""
    compiler: str | dict[str, str] | None = None
    flags: list[str] | dict[str, str] | None = None
    """Compiler flags."""
    tags: list[str] | None = None
    """Build tags for Go."""
    versions: dict[str, str] | None = None
    """Versions of the software that the programs are made from."""
    options: dict[str, list[str]] | None = None
    """Options with which this software was configured."""
    seconds: dict[str, float] | None = None
    """Seconds that each step of the build took."""
    interpreter: str | None = None
    """The Python interpreter that runs it."""
    archives: list[Wheel] | None = None
    folders: dict[str, str] | None = None
    """Folders of an external endpoint, by role."""
