"""Software bill of materials: every third-party source of a clone, as CycloneDX 1.6 JSON (ECMA-424).

What is fetched is named by lock files, and they are all this is made from: Cargo.lock, the lock files beside endpoints
that recipes read (their `sources`), and the locks of the Python environment in requirements/. Each package has its
package URL and, where its lock gives one, the SHA-256 of what the registry hands out; of a Python package these are the
archives of all platforms, any of which may be the one that is installed. What Go's lock gives is a hash of the
module's files and not of an archive, so it is a property. The endpoint programs of a library depend on what they are
built from. There is no time and no random serial number in it: equal locks give equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from quicbed import __version__
from quicbed import build as builds
from quicbed.build import components, go, python
from quicbed.config import Library, Project

SPECIFICATION = "1.6"
ROOT = "quicbed"

_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass
class _Package:
    """A package of one of the registries; *kind* is its type in package URLs."""

    kind: str
    name: str
    version: str
    sha256: set[str] = field(default_factory=set)
    properties: set[tuple[str, str]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The package URL (ECMA-427)."""
        name, version = self.name, self.version
        if self.kind == "golang":
            name, version = name.lower(), f"v{version}"
        path = "/".join(quote(part, safe="") for part in name.split("/"))
        return f"pkg:{self.kind}/{path}@{quote(version, safe='')}"

    def component(self) -> dict[str, Any]:
        """The package as CycloneDX has it."""
        entry: dict[str, Any] = {
            "type": "library",
            "bom-ref": self.url,
            "name": self.name,
            "version": self.version,
            "purl": self.url,
            "properties": [{"name": f"quicbed:{name}", "value": value} for name, value in sorted(self.properties)],
        }
        if self.sha256:
            entry["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in sorted(self.sha256)]
        return entry


class _Packages:
    """Packages by their URL; one that several locks name is one."""

    def __init__(self) -> None:
        self.by_url: dict[str, _Package] = {}

    def add(self, package: _Package) -> str:
        known = self.by_url.setdefault(package.url, package)
        known.sha256 = known.sha256 | package.sha256
        known.properties = known.properties | package.properties
        return package.url


def text(project: Project, revision: str | None = None) -> str:
    """The bill of materials of a clone at a revision as a JSON document."""
    return json.dumps(bill(project, revision), indent=1, sort_keys=True) + "\n"


def bill(project: Project, revision: str | None = None) -> dict[str, Any]:
    """The bill of materials; raises BuildError naming a lock that is missing or cannot be read."""
    packages = _Packages()
    unused = {packages.add(package) for package in _crates(project)}
    direct: set[str] = set()
    for lock in sorted((project.root / "requirements").glob("*.txt")):
        direct |= {packages.add(package) for package in _wheels(project, lock)}
    endpoints: list[dict[str, Any]] = []
    dependencies: list[dict[str, Any]] = []
    for name, library in project.libraries.items():
        reference = f"endpoint:{name}"
        endpoints.append(
            {
                "type": "application",
                "bom-ref": reference,
                "group": ROOT,
                "name": name,
                "version": builds.version_of(project, name),
                "description": f"Endpoint programs on {library.title}; licence and version are those of the library",
                "licenses": [{"expression": library.licence}],
            }
        )
        urls = {packages.add(package) for package in _parts(project, name, library)}
        dependencies.append({"ref": reference, "dependsOn": sorted(urls)})
        direct.add(reference)
        unused -= urls
    # a crate that no endpoint needs here, as those of other systems, is fetched with the others
    dependencies.append({"ref": ROOT, "dependsOn": sorted(direct | unused)})
    own: dict[str, Any] = {
        "type": "application",
        "bom-ref": ROOT,
        "name": ROOT,
        "version": __version__,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    if revision:
        own["properties"] = [{"name": "quicbed:revision", "value": revision}]
    found = [packages.by_url[url] for url in sorted(packages.by_url)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {"component": own},
        "components": [*endpoints, *(package.component() for package in found)],
        "dependencies": sorted(dependencies, key=lambda one: str(one["ref"])),
    }


def _crates(project: Project) -> Iterator[_Package]:
    """Every package of Cargo.lock; a property names the components whose source is in it."""
    lock = (builds.SOURCES / "Cargo.lock").as_posix()
    inside: dict[str, set[tuple[str, str]]] = {}
    for name, component in components.COMPONENTS.items():
        inside.setdefault(component.package, set()).add(("component", name))
    for versions in builds.lock_packages(project.root).values():
        for one in versions:
            if "checksum" in one:
                properties = {("lock", lock)} | inside.get(one["name"], set())
                yield _Package("cargo", one["name"], one["version"], {one["checksum"]}, properties)


def _wheels(project: Project, lock: Path) -> Iterator[_Package]:
    """Packages of a lock that pip reads, with the SHA-256 of each of their archives."""
    properties = {("lock", lock.relative_to(project.root).as_posix())}
    for entry in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
        if match := _PINNED.match(entry):
            name = re.sub(r"[-_.]+", "-", match[1]).lower()  # PEP 503
            yield _Package("pypi", name, match[2], set(_HASH.findall(entry)), properties)


def _parts(project: Project, name: str, library: Library) -> Iterator[_Package]:
    """What the endpoint programs of a library are built from, in any of its flavours."""
    for one in builds.crates_of(project.root, library):
        yield _Package("cargo", one["name"], one["version"])
    waiting: list[str] = [component for flavour in library.flavours.values() for component in flavour.components]
    while waiting:
        component = components.COMPONENTS[waiting.pop()]
        waiting += component.needs
        for one in builds.lock_packages(project.root)[component.package]:
            yield _Package("cargo", one["name"], one["version"])
    recipe = builds.recipe_of(library)
    endpoint = project.root / builds.ENDPOINTS / library.endpoint
    if recipe is python:
        yield from _wheels(project, endpoint / "requirements.txt")
    elif recipe is go:
        lock = (builds.ENDPOINTS / library.endpoint / "go.sum").as_posix()
        for one in go.sources(project, name):
            properties = {("lock", lock), ("go.sum", one["checksum"])}
            yield _Package("golang", one["name"], one["version"], properties=properties)
    elif own := getattr(recipe, "sources", None):
        for one in own(project, name):
            yield _Package("generic", one["name"], one["version"], properties={("digest", one["checksum"])})
