"""Formats, lint and types: `make check` runs every check and says which failed.

python tools/check.py            all
python tools/check.py ruff mypy  the checks whose names begin with one of these words
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORKSPACE = "workflow/sources/Cargo.toml"
ENDPOINTS = "workflow/endpoints"
PYTHON_FILES = ("workflow", "benchmarks", "tests", "tools")


class Check(NamedTuple):
    """One check: a command that fails when something is wrong."""

    name: str
    command: tuple[str, ...]
    # Clippy compiles every library first; the others take seconds.
    slow: bool = False


def tool(name: str) -> str:
    """A program of the environment this runs in."""
    return str(Path(sys.executable).parent / name)


def fetched() -> Path:
    """Directory of the sources that the workflow fetches."""
    from quicbed.builds import kit
    from quicbed.config.model import Project

    return kit.vendor_directory(Project(ROOT))


def vendored() -> tuple[str, ...]:
    """Let cargo use the sources the workflow has fetched, once it has."""
    if not fetched().is_dir():
        return ()
    source = f'source.vendored.directory="{fetched()}"'
    return ("--offline", "--config", 'source.crates-io.replace-with="vendored"', "--config", source)


NATIVE = {
    "aws-lc-sys": {"rustc-cfg": ["universal"]},  # which of its bindings
    "s2n-tls-sys": {},
    "zstd-sys": {},
}
"""Packages whose build scripts do nothing but compile a library in C, and what these tell the compiler of Rust."""


def without_native() -> tuple[str, ...]:
    """Let cargo not run the build scripts in `NATIVE`: they take a third of the time, and a check links nothing."""
    if shutil.which("rustc") is None:  # cargo says so
        return ()
    compiler = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    triple = compiler.partition("\nhost: ")[2].partition("\n")[0]
    words: list[str] = []
    for name, told in NATIVE.items():
        for manifest in fetched().glob(f"{name}-[0-9]*/Cargo.toml"):
            links = tomllib.loads(manifest.read_text(encoding="utf-8"))["package"]["links"]
            for key, value in {"rustc-link-lib": [links], "include": "", **told}.items():
                words += ["--config", f"target.{triple}.{links}.{key}={json.dumps(value)}"]
    return tuple(words)


def snakemake_files() -> list[str]:
    """Every file in Snakemake's language."""
    rules = sorted((ROOT / "workflow" / "rules").glob("*.smk"))
    return ["Snakefile", "workflow/Snakefile", *(str(path.relative_to(ROOT)) for path in rules)]


def go_modules() -> list[str]:
    """Modules in Go, by their directories below the endpoints."""
    return sorted(str(file.parent.relative_to(ROOT / ENDPOINTS)) for file in (ROOT / ENDPOINTS).glob("**/go.mod"))


def checks() -> list[Check]:
    """All checks, the quick ones first."""
    clippy = ("cargo", "clippy", "--quiet", "--locked", "--manifest-path", WORKSPACE, *vendored(), *without_native())
    cargo_fmt = ("cargo", "fmt", "--all", "--check", "--manifest-path", WORKSPACE)
    deny = ("--all-targets", "--", "--deny", "warnings")
    # has no code, and pins the source inside a package for a newer Rust
    without = ["--exclude", "quicbed-sources"]
    # need sources and components, which the first build of a flavour with them makes
    known = native()
    if "QUICBED_LIBOQS" not in known:
        without += ("--exclude", "quicbed-pq")
    if not {"QUICBED_NGTCP2_SOURCE", "QUICBED_BORINGSSL"} <= known.keys():
        without += ("--exclude", "quicbed-endpoint-ngtcp2")
    msquic = {"QUICBED_MSQUIC", "QUICBED_QUICTLS"} <= known.keys()
    if not msquic:
        without += ("--exclude", "quicbed-endpoint-msquic")
    if not msquic or "QUICBED_LIBOQS" not in known:
        without += ("--exclude", "quicbed-endpoint-msquic-pq")
    if not {"QUICBED_PICOQUIC", "QUICBED_OPENSSL"} <= known.keys():
        without += ("--exclude", "quicbed-endpoint-picoquic")
    return [
        Check("ruff format", (tool("ruff"), "format", "--quiet", "--diff", *PYTHON_FILES)),
        Check("ruff check", (tool("ruff"), "check", "--quiet", *PYTHON_FILES)),
        Check("imports", (tool("lint-imports"), "--no-logo", "--no-cache")),
        Check("architecture", (sys.executable, "tools/architecture.py", "--check")),
        Check("prose", (sys.executable, "tools/prose.py")),
        Check("snakefmt", (tool("snakefmt"), "--check", "--compact-diff", *snakemake_files())),
        Check("conda environments", (sys.executable, "tools/conda_environments.py", "--check")),
        Check("cargo fmt", (*cargo_fmt, "--", "--color", "never")),
        *(Check(f"gofmt {name}", ("gofmt", "-d", f"{ENDPOINTS}/{name}")) for name in go_modules()),
        *(Check(f"go vet {name}", ("go", "-C", f"{ENDPOINTS}/{name}", "vet", "./...")) for name in go_modules()),
        Check("snakemake lint", (tool("snakemake"), "--lint")),
        Check("mypy", (tool("mypy"),)),
        Check("clippy", (*clippy, "--workspace", *without, *deny), slow=True),
        Check(
            "clippy quinn noop",
            (
                *clippy,
                "--package",
                "quicbed-endpoint-quinn",
                "--package",
                "quicbed-rustls",
                "--features",
                "noop",
                *deny,
            ),
            slow=True,
        ),
    ]


def native() -> dict[str, str]:
    """Where packages that compile or link native code find it, as far as it is fetched and built."""
    from quicbed.builds import components
    from quicbed.config.model import Project

    project = Project(ROOT)
    environment: dict[str, str] = {}
    for component in ("liboqs", "boringssl", "quictls", "msquic", "openssl", "picoquic"):
        if components.is_built(project, component):
            environment |= components.environment(project, [component])
    for source in fetched().glob("ngtcp2-sys-*/deps/ngtcp2"):
        environment["QUICBED_NGTCP2_SOURCE"] = str(source)
    return environment


def libclang() -> dict[str, str]:
    """Where bindgen, which boring-sys runs when it is compiled, finds libclang and the compiler's headers."""
    import clang.native

    # the wheel has no compiler headers; gcc's serve, as in the builds
    headers = subprocess.run(
        ["gcc", "-print-file-name=include"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "LIBCLANG_PATH": str(Path(clang.native.__file__).parent),
        "BINDGEN_EXTRA_CLANG_ARGS": f"-isystem {headers}",
    }


def run(check: Check) -> subprocess.CompletedProcess[str]:
    """Run one check in the repository's root; standard error is part of what it prints."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "build" / "clippy"), **libclang(), **native()}
    return subprocess.run(
        check.command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def main(names: Sequence[str]) -> int:
    """Run the checks named, or all; the exit code is 1 when one failed."""
    wanted = [check for check in checks() if not names or check.name.startswith(tuple(names))]
    if not wanted:
        known = ", ".join(check.name for check in checks())
        print(f"no check is named {' or '.join(names)}; there are: {known}", file=sys.stderr)
        return 2
    failed = []
    for check in wanted:
        started = time.monotonic()
        done = run(check)
        outcome = "ok" if done.returncode == 0 else "FAILED"
        print(f"{check.name:20} {outcome:6} {time.monotonic() - started:6.1f} s", flush=True)
        if done.returncode != 0:
            failed.append(check.name)
            print(done.stdout, flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
