"""Write environment.yml and envs/*.yaml for conda users from the locks in requirements/.

`make locks` runs it. The versions are those of requirements/*.txt, so that users of conda and of
pip compute with the same packages; what differs between the two is listed here and nowhere else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"

PYTHON = "3.11"
CHANNELS = ("conda-forge", "bioconda", "nodefaults")

# Names on conda's channels that differ from PyPI's. bioconda's `snakemake` adds dozens of plugins.
CONDA_NAMES = {"kaleido": "python-kaleido", "snakemake": "snakemake-minimal"}
# Taken from PyPI by conda's pip section: the wheel holds libclang.so where the builds look for it.
FROM_PYPI = ("libclang",)
# Programs that are no Python packages. Rust, Go and the C and C++ compilers come from the system:
# conda's compilers bring flags of their own, and all users should measure the same builds.
PROGRAMS = {"cmake": ">=3.25", "git": ">=2.30", "make": ">=4.3", "patch": ">=2.7", "perl": ">=5.32"}

CONFIGURATION = ("pydantic", "pyyaml")
ANALYSIS = (*CONFIGURATION, "jinja2", "kaleido", "numpy", "plotly", "polars", "scipy")
# One environment for each group of rules, used by `snakemake --sdm conda`.
RULE_GROUPS: dict[str, tuple[str, ...]] = {
    "build": (*CONFIGURATION, *FROM_PYPI, *PROGRAMS),
    "measure": (*CONFIGURATION, "asyncssh", "cryptography", "numpy", "polars", "pyzmq", "scipy"),
    "analysis": ANALYSIS,
    "notebooks": (*ANALYSIS, "ipykernel", "nbclient", "nbconvert", "nbformat", "pyshark"),
}


def locked_versions() -> dict[str, str]:
    """Version of every package in the locks, as `PYTHON` on Linux x86-64 gets it."""
    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "python_full_version": f"{PYTHON}.99",
        "python_version": PYTHON,
        "sys_platform": "linux",
    }
    versions: dict[str, str] = {}
    for name in ("build", "runtime", "test", "lab"):
        for line in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            if "==" not in line or line.startswith((" ", "#")):
                continue
            requirement = Requirement(line.removesuffix("\\"))
            marker: Marker | None = requirement.marker
            if marker is None or marker.evaluate(environment):
                versions[canonicalize_name(requirement.name)] = str(requirement.specifier)[2:]
    return versions


def asked_for() -> list[str]:
    """Packages that requirements/*.in name: what the environment of the whole workflow has."""
    names = set()
    for name in ("build", "runtime", "test", "lab"):
        for line in (REQUIREMENTS / f"{name}.in").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith(("#", "-")):
                names.add(canonicalize_name(Requirement(line).name))
    return sorted(names)


def environment(name: str, packages: tuple[str, ...], purpose: str, pip: tuple[str, ...] = ()) -> str:
    """One environment file."""
    versions = locked_versions()
    conda = sorted(
        f"{package} {PROGRAMS[package]}"
        if package in PROGRAMS
        else f"{CONDA_NAMES.get(package, package)} =={versions[package]}"
        for package in packages
        if package not in FROM_PYPI
    )
    from_pypi = [f"{package}=={versions[package]}" for package in packages if package in FROM_PYPI]
    lines = [
        f"# {purpose}",
        "# Written by tools/conda_environments.py from the locks in requirements/; do not edit.",
        f"name: {name}",
        "channels:",
        *(f"  - {channel}" for channel in CHANNELS),
        "dependencies:",
        f"  - python {PYTHON}.*",
        *(f"  - {specification}" for specification in conda),
    ]
    if from_pypi or pip:
        if "pip" not in packages:
            lines.append(f"  - pip =={versions['pip']}")
        lines += ["  - pip:", *(f"      - {requirement}" for requirement in (*from_pypi, *pip))]
    return "\n".join(lines) + "\n"


def environment_files() -> dict[str, str]:
    """Path in the repository and content of every environment file."""
    whole = environment(
        "quicbed",
        (*asked_for(), *PROGRAMS),
        "Everything for conda users: conda env create --file environment.yml",
        pip=("--editable .",),
    )
    files = {"environment.yml": whole}
    for group, packages in RULE_GROUPS.items():
        purpose = f"The rules in workflow/rules/ that belong to: {group}. Used by snakemake --sdm conda."
        files[f"envs/{group}.yaml"] = environment(f"quicbed-{group}", packages, purpose)
    return files


def main() -> None:
    """Write the files, or with --check only tell which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    check = parser.parse_args().check
    outdated = []
    for name, content in environment_files().items():
        path = ROOT / name
        if path.is_file() and path.read_text(encoding="utf-8") == content:
            continue
        outdated.append(name)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
    if check and outdated:
        sys.exit(f"out of date: {', '.join(outdated)}. Run: make locks")


if __name__ == "__main__":
    main()
