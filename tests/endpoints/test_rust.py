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

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]


CARGO = [name for name, library in PROJECT.libraries.items() if library.recipe == "cargo"]
SHARED = {"quinn": ["contract/rust"], "ngtcp2": ["tls/boringssl"]}
"""What several endpoints use is tested with one that does."""


def own_tests(endpoint: str) -> int:
    """Number of tests in the sources of an endpoint, those of other features included."""
    files = (ROOT / kit.ENDPOINTS / endpoint).rglob("*.rs")
    return sum(file.read_text(encoding="utf-8").count("#[test]") for file in files)


def package(directory: str) -> str:
    """Name of the package in a directory below the endpoints."""
    manifest = (ROOT / kit.ENDPOINTS / directory / "Cargo.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(manifest)["package"]["name"])


@pytest.mark.parametrize("library", [name for name in CARGO if own_tests(PROJECT.libraries[name].endpoint)])
def test_the_endpoints_own_tests_pass(build_of: Callable[[str, str], Path], library: str, tmp_path: Path) -> None:
    build_of(library, "noop")
    log = tmp_path / "cargo-test.log"
    shared = SHARED.get(library, [])
    packages = [package(directory) for directory in shared]
    cargo.test(PROJECT, library, "noop", packages, jobs=os.cpu_count() or 1, log=log)
    passed = [int(count) for count in re.findall(r"test result: ok\. (\d+) passed", log.read_text(encoding="utf-8"))]
    assert sum(passed) > sum(map(own_tests, shared))
