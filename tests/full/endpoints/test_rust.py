"""The Rust endpoints' own tests, on what their builds have compiled."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.builds import kit
from quicbed.builds.recipes import cargo
from quicbed.config.model import Project

PROJECT = Project(ROOT)

pytestmark = pytest.mark.timeout(1800)


CARGO = [name for name, library in PROJECT.libraries.items() if library.recipe == "cargo"]
SHARED = {"quinn": ["contract/rust", "tls/rustls"], "ngtcp2": ["tls/boringssl", "engine/poll"]}
"""What several endpoints use is tested with one that does."""


def own_tests(*directories: str) -> int:
    """Number of tests in directories below the endpoints, those of other features included."""
    files = [file for directory in directories for file in (ROOT / kit.ENDPOINTS / directory).rglob("*.rs")]
    return sum(file.read_text(encoding="utf-8").count("#[test]") for file in files)


def has_tests(library: str) -> bool:
    """Whether there are tests in an endpoint and what it compiles beside its packages."""
    chosen = PROJECT.libraries[library]
    sources = [os.path.relpath(source, kit.ENDPOINTS) for source in chosen.flavours["noop"].sources]
    return own_tests(chosen.endpoint, *sources) > 0


def package(directory: str) -> str:
    """Name of the package in a directory below the endpoints."""
    manifest = (ROOT / kit.ENDPOINTS / directory / "Cargo.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(manifest)["package"]["name"])


@pytest.mark.parametrize("library", [name for name in CARGO if has_tests(name)])
def test_the_endpoints_own_tests_pass(build_of: Callable[[str, str], Path], library: str, tmp_path: Path) -> None:
    build_of(library, "noop")
    log = tmp_path / "cargo-test.log"
    shared = SHARED.get(library, [])
    packages = [package(directory) for directory in shared]
    cargo.test(PROJECT, library, "noop", packages, jobs=os.cpu_count() or 1, log=log)
    passed = [int(count) for count in re.findall(r"test result: ok\. (\d+) passed", log.read_text(encoding="utf-8"))]
    assert sum(passed) > own_tests(*shared)
