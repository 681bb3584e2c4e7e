"""What all tests share: where the repository is, and that tests which need root do run where they must."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from quicbed import build as builds
from quicbed.config import Project

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the clone the tests run in."""
    return ROOT


@pytest.fixture(scope="session")
def build_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The directory of a build of this clone, by library and flavour; made unless it is there."""
    project = Project(ROOT)
    log = tmp_path_factory.mktemp("builds") / "build.log"
    done: dict[tuple[str, str], Path] = {}

    def make(library: str, flavour: str) -> Path:
        if not done:
            builds.fetch_sources(project, log)
        key = (library, flavour)
        if key not in done:
            builds.build(project, *key, jobs=os.cpu_count() or 1, log=log)
            done[key] = builds.build_directory(project, *key)
        return done[key]

    return make


def pytest_configure(config: pytest.Config) -> None:
    """Continuous integration without root would skip what matters most and still look green."""
    # a shell's background jobs are started with SIGINT ignored, which the programs under test would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("CI") == "true" and os.geteuid() != 0:
        raise pytest.UsageError("with CI=true the tests must run as root (network namespaces)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `root` for other users, with the reason; slow tests go last."""
    if os.geteuid() != 0:
        needs_root = pytest.mark.skip(reason="needs root (network namespaces)")
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(needs_root)
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
