"""Builds endpoints in Python: packages of a hash-locked requirements file beside the endpoint's own modules.

The endpoint's directory holds `requirements.in`, whose first requirement is the library, the lock `requirements.txt`
that tools/compile_locks makes of it, and a module for each program, `client.py` and `server.py` with a function `main`
that returns the exit code; the modules are imported as the package `endpoint`. A feature of a flavour is a module
`features/<feature>.py`, which no other flavour gets; `sources` of a flavour are files of this repository and
directories whose modules and packages can be imported too. A flavour with the component `liboqs` gets
workflow/crypto/pq/pq.h as a library that can be loaded.

A build needs the interpreter it was made with and nothing else: the programs run isolated from the environment and from
the system's packages (`-I`, `-S`), out of byte code made here, and write none (`-B`). It can be moved.

Layout of a build::

    bin/client, bin/server      start the programs
    lib/                        packages, byte-compiled
    lib/endpoint/               the endpoint's own modules
    lib/libquicbed-pq.so        liboqs (flavours with that component)
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from quicbed.builds import components, kit
from quicbed.builds.kit import BuildError, Job
from quicbed.config.model import Project

PROGRAMS = ("client", "server", "primitives")
"""Modules or features of an endpoint that become programs; the first two are needed."""

START = '''\
"""Starts a program of the endpoint; the first argument names its module."""

import importlib
import sys

sys.exit(importlib.import_module(sys.argv.pop(1)).main())
'''

# faulthandler gives signals a stack of their own. Without it, Valgrind cannot deliver them while Python waits in
# select(2), and ends it by SIGSEGV. The launcher of external folders has it too.
LAUNCHER = """\
#!/bin/sh
# Runs a program with the packages of this build, isolated from environment and system.
python={interpreter}
if ! test -x "$python"; then
    echo "$0: the interpreter of this build is gone: $python; delete the build and make it again" >&2
    exit 1
fi
exec "$python" -IBS -X faulthandler "${{0%/*}}/../lib" {module} "$@"
"""

_REQUIREMENT = re.compile(r"^([A-Za-z0-9][\w.-]*)\s*==\s*([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def build(job: Job) -> dict[str, Any]:
    """Build a flavour; returns interpreter, archives and flags for build.json."""
    lock = job.endpoint / "requirements.txt"
    locked(lock)
    lib = job.out / "lib"
    report = job.work / "report.json"
    job.work.mkdir(parents=True, exist_ok=True)
    flags = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-compile"]
    quiet = ["--disable-pip-version-check", "--no-input", "--ignore-installed", "--report", str(report)]
    pip = [sys.executable, "-m", "pip", "install", *quiet, *flags]
    try:
        kit.run([*pip, "--target", str(lib), "--requirement", str(lock)], log=job.log)
    except BuildError as error:
        raise BuildError(f"{lock}: cannot be installed: {_reason(job.log)}") from error
    # programs of the packages, which name this directory
    shutil.rmtree(lib / "bin", ignore_errors=True)
    for source in job.chosen.sources:
        _copy(job.project.root / source, lib)
    if "liboqs" in job.shared:
        _pq(job, lib)
    _copy(job.endpoint, lib / "endpoint", leave=("features", "requirements.in", "requirements.txt"))
    _copy_features(job, lib / "endpoint" / "features")
    (lib / "__main__.py").write_text(START, encoding="utf-8")
    interpreter = Path(sys.executable).resolve()
    compiler = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(job.out)]
    kit.run([str(interpreter), "-I", *compiler, str(lib)], log=job.log)
    for program in PROGRAMS:
        if (lib / "endpoint" / f"{program}.py").is_file():
            _launcher(job.out / "bin" / program, interpreter, f"endpoint.{program}")
        elif program in job.chosen.features:
            _launcher(job.out / "bin" / program, interpreter, f"endpoint.features.{program}")
        elif program != "primitives":
            raise BuildError(f"{job.endpoint / f'{program}.py'}: is missing; an endpoint needs a client and a server")
    return {
        "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "flags": flags,
        "interpreter": str(interpreter),
        "archives": _archives(report),
    }


def version(project: Project, name: str) -> str:
    """Version of the library: that of the first requirement."""
    endpoint = project.root / kit.ENDPOINTS / project.libraries[name].endpoint
    wanted = endpoint / "requirements.in"
    first = next((line for line in _read(wanted).splitlines() if line.strip() and not line.startswith("#")), "")
    match = re.match(r"[A-Za-z0-9][\w.-]*", first)
    found = {package["name"]: package["version"] for package in locked(endpoint / "requirements.txt")}
    if match is None or _normal(match[0]) not in found:
        lock = endpoint / "requirements.txt"
        raise BuildError(
            f"{lock}: does not have `{first or 'the library'}` of requirements.in; run tools/compile_locks"
        )
    return found[_normal(match[0])]


def sources(project: Project, name: str) -> list[dict[str, str]]:
    """The packages of the lock; which of its archives was installed is in build.json under `archives`."""
    return locked(project.root / kit.ENDPOINTS / project.libraries[name].endpoint / "requirements.txt")


def locked(lock: Path) -> list[dict[str, str]]:
    """Packages of a lock: name, version and checksum, sorted.

    Where a package has several archives, as for each platform, the checksum is the SHA-256 of their sorted SHA-256.
    """
    packages = []
    for line in _read(lock).replace("\\\n", " ").splitlines():
        match = _REQUIREMENT.match(line)
        if match is None:
            if line.strip() and not line.strip().startswith("#"):
                raise BuildError(f"{lock}: `{line.split()[0]}` is not pinned to a version; run tools/compile_locks")
            continue
        hashes = sorted(_HASH.findall(line))
        if not hashes:
            raise BuildError(f"{lock}: {match[1]} has no SHA-256; run tools/compile_locks")
        checksum = hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
        packages.append({"name": _normal(match[1]), "version": match[2], "checksum": checksum})
    if not packages:
        raise BuildError(f"{lock}: names no package; run tools/compile_locks")
    return sorted(packages, key=lambda package: package["name"])


def _normal(name: str) -> str:
    """A package's name in its one spelling (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        raise BuildError(f"{file}: cannot be read; write requirements.in and run tools/compile_locks") from None


def _reason(log: Path) -> str:
    """What pip said, as one line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if line.startswith("ERROR: ")]
    if any("DO NOT MATCH THE HASHES" in line for line in said):
        found = [line.split()[0] for line in lines if " from " in line and line.rstrip().endswith(":")]
        return f"{', '.join(found) or 'a package'} is not what the lock was made of (wrong SHA-256); see {log}"
    last = said[-1].removeprefix("ERROR: ") if said else "pip failed"
    return f"{last}; see {log}"


def _pq(job: Job, lib: Path) -> None:
    """Make a library of liboqs, with the functions of pq.h to be seen and nothing else."""
    liboqs = job.shared["liboqs"]
    own = job.project.root / components.PQ
    compiler = ["gcc", "-std=c11", *components.FLAGS, components.FRAME_POINTERS, *components.WARNINGS, "-fPIC"]
    files = [str(own / "pq.c"), str(liboqs / "lib" / "liboqs.a")]
    linker = ["-shared", "-pthread", "-Wl,--exclude-libs,ALL", "-Wl,-z,defs", "-o", str(lib / "libquicbed-pq.so")]
    kit.run([*compiler, f"-I{own}", f"-I{liboqs / 'include'}", *files, *linker], log=job.log)


def _copy(source: Path, target: Path, leave: tuple[str, ...] = ()) -> None:
    """Copy a file, or a directory without the names to leave and without byte code."""
    if source.is_file():
        shutil.copy2(source, target)
        return
    if not source.is_dir():
        raise BuildError(f"{source}: is missing; restore it from version control")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", *leave)
    shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)


def _copy_features(job: Job, target: Path) -> None:
    """Copy the modules of this flavour's features, and none of another's."""
    directory = job.endpoint / "features"
    if directory.is_dir():
        target.mkdir()
    if (package := directory / "__init__.py").is_file():
        shutil.copy2(package, target)
    for feature in job.chosen.features:
        module = directory / f"{feature}.py"
        if not module.is_file():
            config = f"config/libraries/{job.name}.yaml: flavours.{job.flavour}.features"
            raise BuildError(f"{config}: `{feature}` needs a module {module}")
        shutil.copy2(module, target)


def _launcher(file: Path, interpreter: Path, module: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(LAUNCHER.format(interpreter=shlex.quote(str(interpreter)), module=module), encoding="utf-8")
    file.chmod(0o755)


def _archives(report: Path) -> list[dict[str, str]]:
    """Archives that pip installed: name, version, file and SHA-256 (PyPA installation report)."""
    found = []
    for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
        download = item["download_info"]
        name = _normal(item["metadata"]["name"])
        file = download["url"].rpartition("/")[2].partition("#")[0]
        sha256 = download["archive_info"]["hashes"]["sha256"]
        found.append({"name": name, "version": item["metadata"]["version"], "file": file, "sha256": sha256})
    return sorted(found, key=lambda archive: archive["name"])
