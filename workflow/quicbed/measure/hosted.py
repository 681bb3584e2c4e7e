"""Builds made on the hosts of a testbed, where its `build.where` is `hosts`: each host builds what runs there.

The controller sends the sources that it has fetched and checked, this repository's own files, and the Python packages
that a build needs; on the host works `quicbed build`, as it does here. What it makes is taken back and kept beside the
other builds, so that all that follows, its deployment included, is the same for every build.

Such a build is named by the role of its host, `stock+client` or `stock@native+server`, and identified by the host's
address, because what the host is can only be asked of it. build.json records that (`built_on`), and whether programs
run on a host is looked at when they are deployed (`quicbed.testbed.deploy`). What is kept on a host for its next build
is below `<directory>/builder`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import yaml

from quicbed.base import durable
from quicbed.base.models import RecordError
from quicbed.base.untrusted import one_line
from quicbed.builds import kit, making
from quicbed.builds.kit import BuildError
from quicbed.builds.recipes import go
from quicbed.config.model import Project, Side
from quicbed.measure.session import testbed_of
from quicbed.plan import march
from quicbed.plan.built import BUILD_FILE, Build, BuiltOn
from quicbed.store import tarball
from quicbed.testbed import Testbed, TestbedError
from quicbed.testbed.remote import RemoteHost

PACKAGES = ("annotated-types", "pydantic", "pydantic-core", "pyyaml", "typing-extensions", "typing-inspection")
"""Python packages that a build needs."""
PACKAGES_OF = {"cargo": ("libclang",)}
"""What builds of a recipe need beside them."""

PATH = ("/usr/local/go/bin", "/usr/local/cargo/bin")
"""Where compilers are, beside the user's `.cargo/bin`, that are not the distribution's."""

LIMIT_S = 600.0
"""Longest time in s of a command that copies or looks at something."""
LEAST_S, FACTOR = 1800.0, 10
"""A build may take so many times its estimate, which is for two cores, and always as many seconds."""
SOURCES_MB = 2500
"""Room in MB for sources, packed and unpacked."""
_TREE = re.compile(r"(python|sources|go)-[0-9a-f]{12}(\.partial)?")
"""Names of what :meth:`Builder._unpacked` makes."""
_OWN = ("workflow", "config")
_MADE = re.compile(r"[a-z0-9][A-Za-z0-9@+._-]{0,199}")
"""Name of a build, which a host tells."""
_PACKED = "content.tar"
_ASK = (
    "import os, sys, pathlib; print('%d.%d' % sys.version_info[:2], os.environ['PATH'], pathlib.Path.home(), sep='\\n')"
)
_RECORDED = ("host_id", "cpu_model", "architecture", "kernel", "libc")


def make(
    project: Project,
    wanted: Sequence[tuple[str, str]],
    log: Path,
    opener: Callable[[Project], Testbed] = testbed_of,
) -> list[Path]:
    """Make the builds (library and name) that are not there yet; returns the copies of their build.json."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    missing = [key for key in wanted if not (making.build_directory(project, *key) / "build.json").is_file()]
    if missing:
        with opener(project) as testbed:
            for role in get_args(Side):
                own = [(name, named) for name, named in missing if march.parts(named).host == role]
                host = testbed.hosts[role]
                if own and isinstance(host, RemoteHost):
                    _on_host(project, host, own, log)
    copies = []
    for key in wanted:
        copies.append(making.listing(project, *key))
        making.read_build(project, *key).write(copies[-1])
    return copies


def _on_host(project: Project, host: RemoteHost, wanted: Sequence[tuple[str, str]], log: Path) -> None:
    """Make builds on one host."""
    estimates = [project.libraries[name].flavours[march.parts(named).flavour].estimate for name, named in wanted]
    needed = SOURCES_MB + math.ceil(sum(estimate.disk_mb for estimate in estimates))
    free = host.hello["disk_free_bytes"] >> 20
    if free < needed:
        raise TestbedError(
            f"{host.where}: {free} MiB free in {host.settings.directory}, {needed} are needed to build there; make room"
        )
    builder = Builder(project, host, log)
    builder.send([name for name, _ in wanted])
    for (name, named), estimate in zip(wanted, estimates, strict=True):
        builder.build(name, named, max(LEAST_S, FACTOR * 60 * estimate.minutes))
    builder.tidy()


class Builder:
    """A host with what builds need."""

    def __init__(self, project: Project, host: RemoteHost, log: Path) -> None:
        self.project = project
        self.host = host
        self.log = log
        self.directory = Path(host.settings.directory) / "builder"
        self.root = self.directory / "project"
        self.environment: dict[str, str] = {}
        self.trees: set[str] = set()
        """Names of the trees in its directory that its builds are made of."""

    # ---- what a build needs --------------------------------------------------------------------------------------

    def send(self, libraries: Sequence[str]) -> None:
        """Send sources, files of the repository and Python packages, each content once."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        said = self.host.run(["python3", "-c", _ASK]).stdout.splitlines()
        if len(said) != 3:
            raise BuildError(f"{self.host.where}: python3 there does not report what it is; look at its start-up files")
        has, path, home = said
        if has != python:
            raise TestbedError(
                f"{self.host.where}: to build there python3 has to be the controller's {python}, and it is {has}; "
                "install it there, or set `build.where: controller`"
            )
        work = self.project.build / "work"
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work) as temporary:
            staged = Path(temporary)
            packages = self._unpacked(_packed(staged / "python", _python_packages(self.project, libraries)))
            sources = self._unpacked(_packed(staged / "sources", _below(kit.vendor_directory(self.project).parent)))
            modules = _go_modules(self.project, libraries)
            proxy = self._unpacked(_packed(staged / "go", modules)) if modules else None
            own = self.host.provide(_packed(staged / "repository", self._repository(staged)))
        self.host.run(["rm", "-rf", *(str(self.root / top) for top in _OWN)], timeout=LIMIT_S)
        self.host.run(["mkdir", "-p", str(self.root / "build")])
        # with times of now: cargo compiles its own packages again where a file is newer than what was made of it
        self.host.run(["tar", "-xmf", str(own / _PACKED), "-C", str(self.root)], timeout=LIMIT_S)
        store = self.root / "build" / "store"
        self.host.run(["mkdir", "-p", "-m", "700", str(store)])
        self.host.run(["mkdir", "-p", str(store / "sources")])
        self.host.run(["ln", "-sfnT", str(sources), str(store / "sources" / kit.sources_name(self.project))])
        self.environment = {
            "PATH": os.pathsep.join((path, f"{home}/.cargo/bin", *PATH)),
            "PYTHONPATH": f"{self.root / 'workflow'}:{packages}",
            "QUICBED_STORE": str(store),
            **({"GOPROXY": f"file://{proxy}"} if proxy else {}),
        }

    def _unpacked(self, directory: Path) -> Path:
        """Where the content of a packed directory is on the host, unpacked once."""
        stored = self.host.provide(directory)
        target = self.directory / f"{directory.name}-{stored.name[:12]}"
        if self.host.run(["test", "-d", str(target)], check=False).returncode != 0:
            partial = f"{target}.partial"
            self.host.run(["rm", "-rf", partial], timeout=LIMIT_S)
            self.host.run(["mkdir", "-p", partial])
            self.host.run(["tar", "-xmf", str(stored / _PACKED), "-C", partial], timeout=LIMIT_S)
            self.host.run(["sync"], timeout=LIMIT_S)
            self.host.run(["mv", "-T", partial, str(target)])
        self.trees.add(target.name)
        return target

    def tidy(self) -> None:
        """Remove older trees of the kinds that builds have been made of; what else is there stays."""
        kinds = {name.partition("-")[0] for name in self.trees}
        look = ["find", str(self.directory), "-mindepth", "1", "-maxdepth", "1", "-type", "d", "-printf", r"%f\0"]
        names = self.host.run(look).stdout.split("\0")
        found = [match for match in map(_TREE.fullmatch, names) if match is not None]
        old = sorted(match[0] for match in found if match[1] in kinds and match[0] not in self.trees)
        if old:
            self.host.run(["rm", "-rf", *(str(self.directory / name) for name in old)], timeout=LIMIT_S)

    def _repository(self, directory: Path) -> Files:
        """This repository's files that builds are made of, and the configuration without the controller's paths.

        Nor is it told there how hosts are reached, reserved and booted.
        """
        root = self.project.root
        files = {
            f"{top}/{name}": file
            for top in _OWN
            for name, file in _below(root / top).items()
            if not {"target", "__pycache__"} & set(file.relative_to(root).parts)  # made by cargo and Python
            and file.parent != root / "config" / "testbeds"
        }
        config = directory / "config.yaml"
        told = self.project.config.model_dump(exclude={"paths", "published"})
        config.write_text(yaml.safe_dump(told), encoding="utf-8")
        testbed = directory / "testbed.yaml"
        testbed.write_text("kind: local\n", encoding="utf-8")
        return files | {
            "config/config.yaml": config,
            f"config/testbeds/{self.project.config.testbed}.yaml": testbed,
        }

    # ---- a build -------------------------------------------------------------------------------------------------

    def build(self, name: str, named: str, limit_s: float) -> None:
        """Build on the host within a time in s, and put what was made beside the other builds here."""
        there = march.named(*march.parts(named)[:2])
        words = [f"{key}={value}" for key, value in self.environment.items()]
        jobs = str(self.host.hello["cpus"])
        log = str(self.directory / f"{name}-{there}.log")
        argv = ["env", *words, "python3", "-m", "quicbed", "build", name, there, "--jobs", jobs, "--log", log]
        with self.log.open("a", encoding="utf-8") as out:
            out.write(f"{self.host.where}$ {' '.join(argv)}\n")
        done = self.host.run(argv, timeout=limit_s, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().removeprefix("quicbed: ") or f"exit status {done.returncode}"
            raise BuildError(f"{self.host.where}: {said}")
        made = Path((done.stdout.strip().splitlines() or [""])[-1]).stem
        if _MADE.fullmatch(made) is None:
            raise BuildError(f"{self.host.where}: {name} {there}: says no name of a build but {made[:100]!a}")
        directory = making.build_directory(self.project, name, named)
        with tempfile.TemporaryDirectory(dir=self.project.build / "work") as temporary:
            fetched = self._fetch(made, Path(temporary))
            self._keep(fetched, directory, name, named)

    def _fetch(self, made: str, directory: Path) -> Path:
        """Copy a build of the host into a directory; what arrives has to be what left."""
        place = self.host.workspace(directory)
        packed = place / "build.tar"
        real = self.host.run(["realpath", str(self.root / "build" / made)]).stdout.rstrip("\n")
        self.host.run(["tar", "-cf", str(packed), "-C", str(Path(real).parent), made], timeout=LIMIT_S)
        told = self.host.run(["sha256sum", str(packed)], timeout=LIMIT_S).stdout.partition(" ")[0]
        self.host.collect(directory)
        archive = directory / packed.name
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != told:
            raise BuildError(
                f"{self.host.where}: {made}: arrived with another SHA-256 than it left with; build it again"
            )
        try:
            tarball.unpack(archive, directory, made, self.project.config.limits)
        except tarball.ArchiveError as error:
            raise BuildError(f"{self.host.where}: {made}: {error}") from None
        archive.unlink()
        return directory / made

    def _keep(self, fetched: Path, directory: Path, name: str, named: str) -> None:
        """Give a fetched build its name and record, and its place."""
        file = fetched / BUILD_FILE
        try:
            made = Build.read(file)
        except RecordError as error:
            raise BuildError(f"{self.host.where}: {fetched.name}: build.json: {one_line(error, 200)}") from None
        wanted = making.identity(self.project, name, named)
        if made.files != wanted["files"]:
            raise BuildError(
                f"{self.host.where}: {fetched.name}: was made of other files than are here; build it again"
            )
        address = self.host.key
        record = {key: self.host.hello[key] for key in _RECORDED}
        built_on = BuiltOn(role=self.host.name, address=address, build=fetched.name, **record)
        made.model_copy(update={"build": directory.name, "built_on": built_on}).write(file)
        durable.move(fetched, directory, replace=True)


Files = dict[str, Path]
"""Files by their names in an archive."""


def _below(directory: Path) -> Files:
    """All files below a directory."""
    return {file.relative_to(directory).as_posix(): file for file in directory.rglob("*") if file.is_file()}


def _python_packages(project: Project, libraries: Sequence[str]) -> Files:
    """The Python packages that builds of libraries need."""
    files: Files = {}
    recipes = {project.libraries[name].recipe for name in libraries}
    for name in (*PACKAGES, *(name for recipe in sorted(recipes) for name in PACKAGES_OF.get(recipe, ()))):
        try:
            found = importlib.metadata.distribution(name).files or []
        except importlib.metadata.PackageNotFoundError:
            raise BuildError(f"Python package {name} is missing; run `make setup`") from None
        inside = (file for file in found if not {"..", "__pycache__"} & set(file.parts))
        files |= {file.as_posix(): Path(str(file.locate())) for file in inside}
    return files


def _go_modules(project: Project, libraries: Sequence[str]) -> Files:
    """What the Go module client has in its cache of what the libraries' go.sum list, as a module proxy has it."""
    own = [project.libraries[name] for name in libraries if project.libraries[name].recipe == "go"]
    if not own:
        return {}
    asked = subprocess.run(
        ["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True, env=go.environment()
    )
    cache = Path(asked.stdout.strip()) / "cache" / "download"
    files: Files = {}
    for library in own:
        sums = project.root / kit.ENDPOINTS / library.endpoint / "go.sum"
        for line in sums.read_text(encoding="utf-8").splitlines():
            module, version, _ = line.split()
            place = f"{module}/@v/{version.removesuffix('/go.mod')}"
            # a capital letter is written as an exclamation mark and the small one (Go Modules Reference, Module cache)
            name = re.sub("[A-Z]", lambda letter: f"!{letter[0].lower()}", place)
            files |= {f"{name}.{kind}": cache / f"{name}.{kind}" for kind in ("info", "mod", "zip")}
    return {name: file for name, file in files.items() if file.is_file()}


def _packed(directory: Path, files: Files) -> Path:
    """A directory with an archive of files in it, which is the same bytes for the same content."""
    directory.mkdir()
    with tarfile.open(directory / _PACKED, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, file in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = file.stat().st_size
            info.mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
            with file.open("rb") as content:
                archive.addfile(info, content)
    return directory
