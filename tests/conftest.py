"""What all tests share: where the repository is, its builds, and that tests which need root do run where they must."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sample
from clone import ROOT
from groups import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from loopback import Loopback
from quicbed.builds import components, kit, making, sources
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.store import details


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests write below their temporary directory goes when they end: it need not be on disk before.

    Builds are kept and lie elsewhere. That it is asked for, tests of `quicbed.base.durable` and of power cuts see.
    """
    temporary, fsync = tmp_path_factory.getbasetemp().resolve(), os.fsync

    def synchronise(file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        if not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(temporary):
            fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", synchronise)
        yield


@pytest.fixture(autouse=True)
def no_browser_is_left() -> Iterator[None]:
    """What one test found of a browser says nothing to the next."""
    yield
    if browser := sys.modules.get("quicbed.figures.browser"):
        browser.close()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the clone the tests run in."""
    return ROOT


@pytest.fixture(scope="session")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the third-party sources; fetched unless they are there."""
    sources.fetch(Project(ROOT), tmp_path_factory.mktemp("sources") / "fetch.log")
    return kit.vendor_directory(Project(ROOT))


@pytest.fixture(scope="session")
def build_of(
    vendor: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """The directory of a build, by library and flavour; made unless it is there.

    A test that asks for one outside the sample belongs in tests/full.
    """
    project = Project(ROOT)
    log = tmp_path_factory.mktemp("builds") / "build.log"
    full = any(item.path.is_relative_to(ROOT / "tests" / "full") for item in request.session.items)

    def make(library: str, flavour: str) -> Path:
        assert full or (library, flavour) in sample.builds(), f"{library} {flavour} is not in the sample"
        making.build(project, library, flavour, jobs=os.cpu_count() or 1, log=log)
        return making.build_directory(project, library, flavour).resolve()  # in the store

    return make


@pytest.fixture(scope="session")
def capture_reader(build_of: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that reads captures into tables; made unless it is there."""
    project, log = Project(ROOT), tmp_path_factory.mktemp("component") / "build.log"
    jobs = os.cpu_count() or 1
    return components.provide(project, "capture-reader", jobs=jobs, log=log) / "bin" / "capture-reader"


@pytest.fixture(scope="session")
def every_build(build_of: Callable[[str, str], Path]) -> None:
    """Every build of the layers that run is made."""
    for key in sample.builds():
        build_of(*key)


@pytest.fixture(scope="session")
def reference_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of the runs that are shipped, with those beside it; to be read only."""
    table = tmp_path_factory.mktemp("reference") / "runs.parquet"
    details.write_tables(ROOT / "raw" / "reference", table, os.cpu_count() or 1)
    return table


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Certificates of a signature algorithm, made once for each `word`, all with keys of their own; to be read only."""
    directory = tmp_path_factory.mktemp("certificates")
    project = Project(ROOT)

    def make(name: str, word: str = "usual") -> Path:
        target = directory / name / word
        if not target.is_dir():
            signature = project.algorithms.signature(name)
            jobs, log, tools = os.cpu_count() or 1, directory / "build.log", None
            if signature.quantum_safe:
                request.getfixturevalue("vendor")
                tools = certificates.Tools.provide(project, jobs=jobs, log=log)
            certificates.make(target, signature, tools)
        return target

    return make


@pytest.fixture
def loopback(build_of: Callable[[str, str], Path], made: Callable[..., Path], tmp_path: Path) -> Iterator[Loopback]:
    """Starts servers of builds, and ends those that a test leaves running."""
    bench = Loopback(build_of, made, tmp_path)
    yield bench
    bench.close()


def pytest_configure(config: pytest.Config) -> None:
    """Continuous integration without root would skip what matters most and still look green."""
    # a shell's background jobs are started with SIGINT ignored, which the programs under test would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("CI") == "true" and os.geteuid() != 0:
        raise pytest.UsageError("with CI=true the tests must run as root (network namespaces)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `root` for other users."""
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root (network namespaces)"))
