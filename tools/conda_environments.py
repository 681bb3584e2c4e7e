"""Write environment.yml and envs/*.yaml for conda users from the locks in requirements/.

`make locks` runs it. The versions are those of requirements/*.txt, so that users of conda and of
pip compute with the same packages; what differs between the two is listed here and nowhere else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"

PYTHON = "3.11"
CHANNELS = ("conda-forge", "bioconda", "nodefaults")

# Names on conda's channels that differ from PyPI's. bioconda's `snakemake` adds dozens of plugins.
CONDA_NAMES = {"kaleido": "python-kaleido", "snakemake": "snakemake-minimal"}
# Taken from PyPI by conda's pip section: the wheel of libclang holds libclang.so where the builds look for it;
# Tabulator and axe are packages of no channel.
FROM_PYPI = ("axe-core-python", "django-js-lib-tabulator", "libclang")


class Program(NamedTuple):
    """A package with programs: which versions serve, the commands that are run, Debian's packages for the same."""

    version: str
    commands: tuple[str, ...]
    debian: tuple[str, ...] = ()


# Programs that are no Python packages. Compilers are those with the plain names (gcc, g++, cc, c++), which come without
# the scripts that set CFLAGS, LDFLAGS and CC; builds heed no such variable anyway (`quicbed.builds.kit.unflagged`) and
# record the compiler. conda's gcc also looks for headers and libraries of the environment,
# after all others, and programs find their libraries there: builds serve as long as the environment is there.
PROGRAMS: dict[str, Program] = {
    "binutils": Program(">=2.35", ("ar", "objcopy")),
    "cmake": Program(">=3.25", ("cmake",), ("cmake",)),
    "gcc": Program(">=12", ("gcc", "cc"), ("gcc",)),
    "git": Program(">=2.30", ("git",), ("git",)),
    "go": Program(">=1.26", ("go",)),
    "gxx": Program(">=12", ("g++", "c++"), ("g++",)),
    "iperf": Program(">=3.12", ("iperf3",), ("iperf3",)),
    "linux-perf": Program(">=6.3", ("perf",), ("linux-perf",)),
    "make": Program(">=4.3", ("make",), ("make",)),
    "patch": Program(">=2.7", ("patch",), ("patch",)),
    "perl": Program(">=5.32", ("perl",), ("perl",)),
    "procps-ng": Program(">=3.3", ("sysctl",), ("procps",)),
    "rust": Program(">=1.95", ("cargo", "rustc")),
    # the C library's headers, and those of a kernel that knows UDP segmentation offload
    "sysroot_linux-64": Program(">=2.28", (), ("libc6-dev",)),
    "util-linux": Program(">=2.36", ("unshare", "setpriv", "nsenter", "mount"), ("util-linux",)),
    "valgrind": Program(">=3.19", ("valgrind",), ("valgrind",)),
    "zstd": Program(">=1.5", ("zstd",), ("zstd",)),
}


class Missing(NamedTuple):
    """Programs that no channel has: which, Debian's packages for them, and what is to be done about it."""

    commands: tuple[str, ...]
    debian: tuple[str, ...]
    reason: str


# Told in docs/artifact-evaluation.md too, as conda users need to know.
MISSING: dict[str, Missing] = {
    "tshark": Missing(
        ("tshark", "dumpcap", "editcap"),
        ("tshark",),
        "conda-forge has no Wireshark (a recipe is proposed: staged-recipes 33701). Captures are dissected where the "
        "system has tshark",
    ),
    "chromium": Missing(
        ("chromium",),
        ("chromium",),
        "conda-forge has no Chromium (asked for: staged-recipes 21431). `kaleido_get_chrome`, which python-kaleido "
        "brings, fetches one without root; BROWSER_PATH names another; without one, figures are interactive pages",
    ),
    "npm": Missing(
        ("npm",),
        ("npm",),
        "it is in conda-forge's nodejs; only videos need it, once, and pip fetches one where there is none",
    ),
    "iproute2": Missing(
        ("ip", "tc"), ("iproute2",), "no recipe on conda-forge. Measuring needs root, and so the system's packages"
    ),
    "ethtool": Missing(("ethtool",), ("ethtool",), "as iproute2"),
    "tcpdump": Missing(("tcpdump",), ("tcpdump",), "as iproute2; conda-forge has libpcap only"),
    "iputils": Missing(
        ("ping",), ("iputils-ping",), "as iproute2; the ping of conda-forge's inetutils takes other options"
    ),
    "kmod": Missing(("modprobe",), ("kmod",), "as iproute2"),
    "user-mode-linux": Missing(("linux.uml",), ("user-mode-linux",), "as iproute2"),
    "openssh": Missing(
        ("sshd", "ssh-keygen", "ssh-keyscan"),
        ("openssh-server", "openssh-client"),
        "only the guests of one machine need it, which need root and so the system's packages",
    ),
}

CONFIGURATION = ("pydantic", "pyyaml")
# Its commit is recorded in what is measured and drawn.
GIT = ("git",)
# pyzmq: whatever estimates or judges loads the driver, which knows every traffic generator
RUNS = (*CONFIGURATION, *GIT, "cryptography", "numpy", "polars", "pyzmq", "scipy")
DRAWING = (*RUNS, "kaleido", "plotly")
MEASURING = (*RUNS, "asyncssh", "iperf", "linux-perf", "procps-ng", "rich", "util-linux", "valgrind")
COMPILERS = ("binutils", "cmake", "gcc", "go", "gxx", "make", "patch", "perl", "rust", "sysroot_linux-64")
# One environment for each group of rules, used by `snakemake --sdm conda`.
RULE_GROUPS: dict[str, tuple[str, ...]] = {
    "build": (*CONFIGURATION, "libclang", *GIT, *COMPILERS),
    "measure": MEASURING,
    # sends what builds need to hosts over SSH
    "host-builds": (*MEASURING, "libclang", "go", "rust"),
    "analysis": (*DRAWING, "django-js-lib-tabulator", "jinja2", "zstd"),
    "notebooks": (*DRAWING, "ipython", "jinja2", "nbconvert", "nbformat", "pyshark"),
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
    for name in ("build", "runtime", "test", "lab", "docs"):
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
    for name in ("build", "runtime", "test", "lab", "docs"):
        for line in (REQUIREMENTS / f"{name}.in").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith(("#", "-")):
                names.add(canonicalize_name(Requirement(line).name))
    return sorted(names)


def environment(name: str, packages: tuple[str, ...], purpose: str, pip: tuple[str, ...] = ()) -> str:
    """One environment file."""
    versions = locked_versions()
    conda = sorted(
        f"{package} {PROGRAMS[package].version}"
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
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    if check and outdated:
        sys.exit(f"out of date: {', '.join(outdated)}. Run: make locks")


if __name__ == "__main__":
    main()
