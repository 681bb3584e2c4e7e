"""Software bill of materials: every third-party source of a clone, as CycloneDX 1.6 JSON (ECMA-424).

What is fetched is named by lock files, and they are all this is made from: Cargo.lock, sdists.txt, those beside
endpoints that recipes read (their `sources`), those of the Python environment in requirements/, those of examples that
endpoints are compared with in workflow/examples/, and that of npm in workflow/sources/player/. Each package has its
package URL and, where its lock gives one, the SHA-256 of what the registry hands out; of a Python package these are the
archives of all platforms, any of which may be the one that is installed. What the locks of Go and npm give is another
hash, so it is a property. The endpoint programs of a library depend on what they are built from. There is no time and
no random serial number in it: equal locks give equal bytes.

Locks tell no licences, but for that of npm. Those that the registries state are in licences.csv, which
tools/licences.py writes; modules of Go have none there. C libraries whose sources are inside a crate are packages of
their own (embedded.csv, by hand).
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from quicbed import __version__
from quicbed.builds import components, kit, making
from quicbed.builds.recipes import go, python
from quicbed.config.model import Library, Project
from quicbed.plan.browser import PLAYER

ROOT = "quicbed"

LICENCES = Path(__file__).parent / "licences.csv"
LICENCE_COLUMNS = ("package", "licence", "words")
"""Package URL; SPDX expression, or else the registry's words."""
EMBEDDED = Path(__file__).parent / "embedded.csv"
"""Library inside a package of one version; its version and licence, an SPDX expression. BoringSSL has no versions."""

_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass
class Package:
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

    def component(self) -> Component:
        """The package as CycloneDX has it."""
        expression, words = licences().get(self.url, ("", ""))
        licence = LicenseExpression(expression) if expression else DisjunctiveLicense(name=words) if words else None
        return Component(
            type=ComponentType.LIBRARY,
            bom_ref=self.url,
            name=self.name,
            version=self.version,
            purl=PackageURL.from_string(self.url),
            properties=[Property(name=f"quicbed:{name}", value=value) for name, value in self.properties],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in self.sha256],
            licenses=[licence] if licence else [],
        )


class _Packages:
    """Packages by their URL; one that several locks name is one."""

    def __init__(self) -> None:
        self.by_url: dict[str, Package] = {}

    def add(self, package: Package) -> str:
        known = self.by_url.setdefault(package.url, package)
        known.sha256 = known.sha256 | package.sha256
        known.properties = known.properties | package.properties
        return package.url


@cache
def licences() -> dict[str, tuple[str, str]]:
    """SPDX expression, or else the registry's words, by package URL."""
    return {row["package"]: (row["licence"], row["words"]) for row in _rows(LICENCES)}


@cache
def _embedded() -> dict[str, list[Component]]:
    """Libraries inside a crate, as CycloneDX has them, by the crate's package URL."""
    found: dict[str, list[Component]] = {}
    for row in _rows(EMBEDDED):
        crate = Package(row["kind"], row["crate"], row["crate_version"]).url
        url = Package("generic", row["name"], row["version"]).url if row["version"] else f"pkg:generic/{row['name']}"
        entry = Component(
            type=ComponentType.LIBRARY,
            bom_ref=url,
            name=row["name"],
            version=row["version"] or None,
            purl=PackageURL.from_string(url),
            licenses=[LicenseExpression(row["licence"])],
            properties=[Property(name="quicbed:inside", value=crate)],
        )
        found.setdefault(crate, []).append(entry)
    return found


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def packages(project: Project) -> list[Package]:
    """Every package that a lock names, sorted by package URL."""
    found = _Packages()
    for package in _crates(project):
        found.add(package)
    for package in _npm(project):
        found.add(package)
    for lock in _python_locks(project):
        for package in _wheels(project, lock):
            found.add(package)
    for name, library in project.libraries.items():
        for package in _parts(project, name, library):
            found.add(package)
    return [found.by_url[url] for url in sorted(found.by_url)]


def text(project: Project, revision: str | None = None) -> str:
    """The bill of materials of a clone at a revision as a JSON document."""
    document = json.loads(JsonV1Dot6(bill(project, revision)).output_as_string())
    # whoever made it when says nothing of what is in it, and would make two bills of equal locks differ
    del document["serialNumber"], document["metadata"]["timestamp"]
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def bill(project: Project, revision: str | None = None) -> Bom:
    """The bill of materials; raises BuildError naming a lock that is missing or cannot be read."""
    known = _Packages()
    unused = {known.add(package) for package in _crates(project)}
    direct = {known.add(package) for package in _npm(project)}
    for lock in _python_locks(project):
        direct |= {known.add(package) for package in _wheels(project, lock)}
    endpoints: list[Component] = []
    needs: dict[str, set[str]] = {}
    for name, library in project.libraries.items():
        reference = f"endpoint:{name}"
        endpoints.append(
            Component(
                type=ComponentType.APPLICATION,
                bom_ref=reference,
                group=ROOT,
                name=name,
                version=making.version_of(project, name),
                description=f"Endpoint programs on {library.title}; licence and version are those of the library",
                licenses=[LicenseExpression(library.licence)],
            )
        )
        needs[reference] = {known.add(package) for package in _parts(project, name, library)}
        direct.add(reference)
        unused -= needs[reference]
    # a crate that no endpoint needs here, as those of other systems, is fetched with the others
    needs[ROOT] = direct | unused
    inside = {url: entries for url, entries in _embedded().items() if url in known.by_url}
    needs |= {url: {str(one.bom_ref) for one in entries} for url, entries in inside.items()}
    own = Component(
        type=ComponentType.APPLICATION,
        bom_ref=ROOT,
        name=ROOT,
        version=__version__,
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
        properties=[Property(name="quicbed:revision", value=revision)] if revision else [],
    )
    libraries = [package.component() for package in known.by_url.values()]
    parts = itertools.chain(endpoints, libraries, *inside.values())
    references = {ref: [Dependency(BomRef(one)) for one in sorted(found)] for ref, found in needs.items()}
    return Bom(
        metadata=BomMetaData(component=own),
        components=parts,
        dependencies=[Dependency(BomRef(ref), found) for ref, found in references.items()],
    )


def _crates(project: Project) -> Iterator[Package]:
    """Every package of the Cargo.lock files and sdists.txt; a property names the components whose source is in it."""
    inside: dict[tuple[Path, str], set[tuple[str, str]]] = {}
    for name, component in components.COMPONENTS.items():
        inside.setdefault((component.workspace, component.package), set()).add(("component", name))
    for workspace in kit.WORKSPACES:
        for versions in kit.lock_packages(project.root, workspace).values():
            for one in versions:
                if "checksum" in one:
                    lock = kit.SDISTS if _kind(one) == "pypi" else workspace / "Cargo.lock"
                    properties = {("lock", lock.as_posix())} | inside.get((workspace, one["name"]), set())
                    yield Package(_kind(one), one["name"], one["version"], {one["checksum"]}, properties)


def _kind(package: Mapping[str, Any]) -> str:
    """The registry of a package of Cargo.lock or sdists.txt, as a type of package URLs."""
    return str(package.get("registry", "cargo"))


def _npm(project: Project) -> Iterator[Package]:
    """Every package of the lock of npm, whose hash of an archive is not SHA-256 and therefore a property."""
    lock = PLAYER / "package-lock.json"
    for place, one in npm_packages(project.root).items():
        properties = {("lock", lock.as_posix()), ("integrity", one["integrity"])}
        yield Package("npm", place.rpartition("node_modules/")[2], one["version"], properties=properties)


def npm_packages(root: Path) -> dict[str, dict[str, Any]]:
    """What the lock of the player says of each package, by its place."""
    read = json.loads((root / PLAYER / "package-lock.json").read_text(encoding="utf-8"))
    return {place: one for place, one in read["packages"].items() if place}


def canonical(name: str) -> str:
    """The name of a Python package as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _python_locks(project: Project) -> list[Path]:
    """Locks that pip reads, but for those of endpoints."""
    patterns = ("requirements/*.txt", "workflow/examples/*/requirements.txt")
    return sorted(file for pattern in patterns for file in project.root.glob(pattern))


def _wheels(project: Project, lock: Path) -> Iterator[Package]:
    """Packages of a lock that pip reads, with the SHA-256 of each of their archives."""
    properties = {("lock", lock.relative_to(project.root).as_posix())}
    for entry in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
        if match := _PINNED.match(entry):
            yield Package("pypi", canonical(match[1]), match[2], set(_HASH.findall(entry)), properties)


def _parts(project: Project, name: str, library: Library) -> Iterator[Package]:
    """What the endpoint programs of a library are built from, in any of its flavours."""
    kinds = {one["name"]: _kind(one) for one in kit.sdists(project.root)}
    for one in kit.crates_of(project.root, library):
        yield Package(kinds.get(one["name"], "cargo"), one["name"], one["version"])
    waiting: list[str] = [component for flavour in library.flavours.values() for component in flavour.components]
    while waiting:
        component = components.COMPONENTS[waiting.pop()]
        waiting += component.needs
        for one in kit.lock_packages(project.root, component.workspace)[component.package]:
            yield Package(_kind(one), one["name"], one["version"])
    recipe = making.recipe_of(library)
    endpoint = project.root / kit.ENDPOINTS / library.endpoint
    if recipe is python:
        yield from _wheels(project, endpoint / "requirements.txt")
    elif recipe is go:
        lock = (kit.ENDPOINTS / library.endpoint / "go.sum").as_posix()
        for one in go.sources(project, name):
            properties = {("lock", lock), ("go.sum", one["checksum"])}
            yield Package("golang", one["name"], one["version"], properties=properties)
    elif own := getattr(recipe, "sources", None):
        for one in own(project, name):
            yield Package("generic", one["name"], one["version"], properties={("digest", one["checksum"])})
