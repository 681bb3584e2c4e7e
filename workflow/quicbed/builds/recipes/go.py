"""Recipe for libraries that are Go modules: one Go module in workflow/endpoints/ with a program in each of its
directories client and server, and in primitives where there is one.

The module's go.mod names what it is made from, the library itself first, and go.sum has the checksums. The Go module
client fetches them into its own cache and refuses anything else; a build changes neither file. A flavour's `features`
are build tags. A patched module is copied out of the cache, patched, and put in its place by a `replace` in another
go.mod. Modules of this repository that it uses are replaced in go.mod by their directories, which the `sources` of a
flavour name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quicbed.builds import kit
from quicbed.builds.kit import BuildError, Job
from quicbed.config.model import Project

PROGRAMS = ("client", "server", "primitives")

# Go keeps frame pointers without being asked. The processor level is Go's default, and the same everywhere.
SETTINGS = {
    "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
    "GOAMD64": "v1",
    "GOEXPERIMENT": "",
    "GOFIPS140": "off",
    "CGO_ENABLED": "0",
}
# Where modules come from, where they are kept and how they are checked is the user's business.
KEPT = (
    *("GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE", "GOAUTH", "GOVCS"),
    *("GOPATH", "GOMODCACHE", "GOCACHE", "GOTMPDIR", "GOENV", "GOROOT"),
)

_REPLACED = re.compile(r"^\s*(?:replace\s+)?(?P<name>\S+)(?:\s+v\S+)?\s+=>\s+\.{1,2}/", re.MULTILINE)
"""A module of this repository, put in place by a directory."""
_REQUIRED = re.compile(r"^\s*(?:require\s+)?(?P<name>[^\s/()]+/\S+)\s+(?P<version>v\S+)", re.MULTILINE)


def version(project: Project, name: str) -> str:
    """Version of the library: of the first module that go.mod requires."""
    return sources(project, name)[0]["version"]


def sources(project: Project, name: str) -> list[dict[str, str]]:
    """Modules of go.mod in its order: name, version and checksum, the hash of go.sum that the module client checks."""
    directory = project.root / kit.ENDPOINTS / project.libraries[name].endpoint
    hashes = dict(_hashes(directory / "go.sum"))
    packages = []
    for module, numbered in _required(directory / "go.mod"):
        try:
            checksum = hashes[module, numbered]
        except KeyError:
            raise BuildError(
                f"{directory / 'go.sum'}: has no checksum of {module} {numbered}; run `go mod tidy` in {directory}"
            ) from None
        packages.append({"name": module, "version": numbered.removeprefix("v"), "checksum": checksum})
    return packages


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{file}: cannot be read: {error.strerror}; restore it from version control") from None


def _required(file: Path) -> list[tuple[str, str]]:
    """Module and version of every requirement but modules of this repository, in blocks and on lines of their own."""
    text = re.sub(r"//.*", "", _read(file))
    own = {match["name"] for match in _REPLACED.finditer(text)}
    found = [
        (match["name"], match["version"])
        for part in re.findall(r"^require\s*\(([^)]*)\)|^(require\s+[^(\s].*)$", text, re.MULTILINE)
        for match in _REQUIRED.finditer(part[0] or part[1])
        if match["name"] not in own
    ]
    if not found:
        raise BuildError(f"{file}: requires no module; the first one required is the library")
    return found


def _hashes(file: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """Hashes of modules; those of a go.mod alone are left out."""
    for number, line in enumerate(_read(file).splitlines(), 1):
        fields = line.split()
        if len(fields) != 3:
            raise BuildError(f"{file}: line {number} is not `module version hash`; restore it from version control")
        if not fields[1].endswith("/go.mod"):
            yield (fields[0], fields[1]), fields[2]


def environment(settings: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of the go command: the caller's without anything that changes what is compiled."""
    dropped = ("CGO_", "CC", "CXX", "AR")
    kept = {
        key: value
        for key, value in os.environ.items()
        if key in KEPT or not (key in ("GOOS", "GOARCH") or key.startswith("GO") or key.startswith(dropped))
    }
    return kept | SETTINGS | (settings or {})


def compiler(directory: Path) -> str:
    """What the go command says about itself, when it is new enough for the go.mod in a directory."""
    try:
        done = subprocess.run(
            ["go", "version"], capture_output=True, text=True, timeout=20, check=True, env=environment()
        )
    except FileNotFoundError:
        raise BuildError("go is not installed; install Go (https://go.dev/dl) and put it on the PATH") from None
    except subprocess.SubprocessError as error:
        raise BuildError(f"`go version` does not work: {error}; install Go (https://go.dev/dl)") from None
    told = done.stdout.strip()
    file = directory / "go.mod"
    needed = re.search(r"^go (\d+)\.(\d+)", _read(file), re.MULTILINE)
    if needed is None:
        raise BuildError(f"{file}: has no line `go <version>`")
    found = re.search(r"\bgo(\d+)\.(\d+)", told)
    if found is None:
        raise BuildError(f"`go version` names no version: {told}; install Go (https://go.dev/dl)")
    if (int(found[1]), int(found[2])) < (int(needed[1]), int(needed[2])):
        raise BuildError(
            f"Go {found[1]}.{found[2]} is too old, {file} needs {needed[1]}.{needed[2]}; install it "
            "(https://go.dev/dl) and put it first on the PATH"
        )
    return told


def build(job: Job) -> dict[str, Any]:
    """Build the programs of a flavour; returns compiler and flags."""
    told = compiler(job.endpoint)
    env = environment(job.library.environment)
    # what lies in the cache is what its checksums say, also when it was fetched long ago
    kit.run(["go", "mod", "verify"], log=job.log, cwd=job.endpoint, env=env)
    argv = ["go", "build", "-p", str(job.jobs), f"-o={job.out / 'bin'}{os.sep}", *_replaced(job, env)]
    if job.chosen.features:
        argv.append(f"-tags={','.join(job.chosen.features)}")
    argv += [f"./{program}" for program in PROGRAMS if (job.endpoint / program).is_dir()]
    (job.out / "bin").mkdir(parents=True, exist_ok=True)
    kit.run(argv, log=job.log, cwd=job.endpoint, env=env)
    return {"compiler": told, "flags": SETTINGS | job.library.environment, "tags": job.chosen.features}


def _replaced(job: Job, env: dict[str, str]) -> list[str]:
    """The option that has patched copies of modules compiled instead of those in the cache; none without patches."""
    if not job.chosen.patches:
        return []
    shutil.rmtree(job.work, ignore_errors=True)
    job.work.mkdir(parents=True)
    other = job.work / "go.mod"
    for file in ("go.mod", "go.sum"):
        shutil.copy2(job.endpoint / file, job.work)
    copies: dict[str, Path] = {}
    for patch in job.chosen.patches:
        module = patch.crate
        if module not in copies:
            copies[module] = job.work / module
            _copy(cached(job, module, env), copies[module])
            # relative to the module that is built: the program records the path, and a clone may lie anywhere
            path = Path(os.path.relpath(copies[module], job.endpoint)).as_posix()
            kit.run(["go", "mod", "edit", f"-replace={module}={path}", str(other)], log=job.log, env=env)
        diff = job.project.root.absolute() / kit.PATCHES / patch.file
        argv = ["patch", "--strip=1", "--fuzz=0", "--no-backup-if-mismatch", f"--input={diff}"]
        kit.run(argv, log=job.log, cwd=copies[module])
    return [f"-modfile={other}"]


def cached(job: Job, module: str, env: dict[str, str]) -> Path:
    """Directory of a module in the cache, fetched and checked against go.sum if it is not there."""
    required = dict(_required(job.endpoint / "go.mod"))
    if module not in required:
        names = ", ".join(required)
        raise BuildError(
            f"config/libraries/{job.name}.yaml: flavours.{job.flavour}.patches: go.mod does not require `{module}`; "
            f"it requires {names}"
        )
    argv = ["go", "mod", "download", "-json", module]
    done = subprocess.run(argv, cwd=job.endpoint, env=env, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout or "{}")
    if done.returncode != 0 or "Dir" not in told:
        reason = told.get("Error") or done.stderr.strip() or f"exit code {done.returncode}"
        raise BuildError(f"{module} {required[module]} cannot be fetched: {' '.join(reason.split())}")
    return Path(told["Dir"])


def _copy(source: Path, target: Path) -> None:
    """Copy a module out of the cache, where everything is write-protected."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
