"""Write workflow/quicbed/builds/licences.csv: licences of packages of the lock files, as their registries state them.

Read from the metadata in the packages themselves, so that it has to run where they are: after `make lab` and a build of
aioquic, as `.venv/bin/python tools/licences.py build/aioquic-stock-*/lib`. Directories that are named are searched for
Python packages besides the environment. A licence that is no SPDX expression is kept in the registry's words. Lines of
packages that are not there stay, as long as a lock has them.
"""

from __future__ import annotations

import csv
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "workflow"))

from quicbed.builds import bom  # noqa: E402
from quicbed.builds.kit import vendor_directory  # noqa: E402
from quicbed.config.model import Project  # noqa: E402

CLASSIFIER = "License :: "
CLASSIFIERS = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Those, and words beside them, that name one licence; "BSD License" is any of several."""


def main(directories: list[str]) -> None:
    """Write the table."""
    project = Project(ROOT)
    wanted = {package.url: package for package in bom.packages(project)}
    found = dict(bom.licences())
    found |= crates(vendor_directory(project))
    found |= dict(npm(project))
    for path in (sys.path, directories):
        found |= dict(wheels(path))
    with bom.LICENCES.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(bom.LICENCE_COLUMNS)
        for url in sorted(found.keys() & wanted.keys()):
            table.writerow([url, *found[url]])
    without = sorted(wanted.keys() - found.keys())
    print(f"{bom.LICENCES}: {len(wanted) - len(without)} packages; none stated by {', '.join(without) or 'no other'}")


def crates(vendor: Path) -> dict[str, tuple[str, str]]:
    """SPDX expression, and words that are none, of every fetched crate by its package URL."""
    found = {}
    for file in vendor.glob("*/Cargo.toml"):
        package = tomllib.loads(file.read_text(encoding="utf-8"))["package"]
        if licence := package.get("license"):
            # a slash is what Cargo took for OR before it took SPDX
            url = bom.Package("cargo", package["name"], package["version"]).url
            found[url] = stated(licence.replace("/", " OR "))
    return found


def npm(project: Project) -> Iterator[tuple[str, tuple[str, str]]]:
    """The same of the packages that the lock of npm names, as the lock tells."""
    for place, one in bom.npm_packages(project.root).items():
        yield bom.Package("npm", place.rpartition("node_modules/")[2], one["version"]).url, stated(one["license"])


def wheels(path: list[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The same of installed Python packages."""
    for distribution in distributions(path=path):
        if told := of_wheel(distribution):
            name = bom.canonical(distribution.metadata["Name"])
            yield bom.Package("pypi", name, distribution.version).url, stated(told)


def of_wheel(distribution: Distribution) -> str | None:
    """What the metadata of a Python package says."""
    metadata = distribution.metadata.json
    if expression := metadata.get("license_expression"):
        return str(expression)
    field = str(metadata.get("license") or "")
    if stated(field)[0]:
        return field
    told = [
        str(line).rpartition(" :: ")[2]
        for line in metadata.get("classifier") or []
        if str(line).startswith(CLASSIFIER) and " :: " in str(line).removeprefix(CLASSIFIER)
    ]
    told = told or field.splitlines()[:1]
    return CLASSIFIERS.get(told[0], told[0]) if len(told) == 1 else "; ".join(told) or None


def stated(licence: str) -> tuple[str, str]:
    """SPDX expression, or else the words."""
    try:
        return str(canonicalize_license_expression(licence)), ""
    except InvalidLicenseExpression:
        return "", licence


if __name__ == "__main__":
    main(sys.argv[1:])
