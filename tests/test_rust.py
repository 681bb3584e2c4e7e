"""The Rust endpoints' own tests, on what their builds have compiled."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from quicbed.build import cargo
from quicbed.config import Project

ROOT = Path(__file__).resolve().parents[1]
PROJECT = Project(ROOT)

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("library", [name for name, lib in PROJECT.libraries.items() if lib.recipe == "cargo"])
def test_the_endpoints_own_tests_pass(build_of: Callable[[str, str], Path], library: str, tmp_path: Path) -> None:
    build_of(library, "noop")
    log = tmp_path / "cargo-test.log"
    packages = ["quicbed-contract", *(["quicbed-boringssl"] if library == "ngtcp2" else [])]
    cargo.test(PROJECT, library, "noop", packages, jobs=os.cpu_count() or 1, log=log)
    passed = [int(count) for count in re.findall(r"test result: ok\. (\d+) passed", log.read_text(encoding="utf-8"))]
    assert sum(passed) > 10
