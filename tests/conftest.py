"""What all tests share: where the repository is, its builds, and that tests which need root do run where they must."""

from __future__ import annotations

import contextlib
import enum
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from loopback import Loopback
from quicbed.builds import components, kit, making, sources
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.store import details


def flavours(project: Project) -> list[tuple[str, str]]:
    """Every flavour of every library."""
    return [(name, flavour) for name, library in project.libraries.items() for flavour in library.flavours]


def yield_to_others() -> None:
    """Let this process and what it starts have only the time of the processors that nobody else wants."""
    os.setsid()
    os.nice(19)
    # Where the kernel shares the processors out among sessions (sched(7), autogroup), niceness counts within one only.
    with contextlib.suppress(OSError):  # this kernel does not
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


class Stage(enum.IntEnum):
    """When a test runs."""

    BESIDE_BUILDS = 1
    """It needs no build, and works where all processors are busy."""
    SOME_BUILDS = 2
    """It needs builds, which are made first where they are missing."""
    AFTER_BUILDS = 3
    """It needs every build, or measures what has been built: nothing is built any more."""


READER = "capture-reader"
"""A component that no build needs, but whoever reads captures."""

BESIDE_FROM = {"apart": Stage.BESIDE_BUILDS, "beside": Stage.AFTER_BUILDS, "some builds": Stage.AFTER_BUILDS}
"""Groups of tests that run in a process each beside the others, and from when on."""


class Builder:
    """Makes every build of this clone in the background while tests run that need none.

    What fails is tried once more when all of it is waited for: a network may have been away. What then fails again
    fails in the test that asks for the build, with its reason.
    """

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("fork")
        self._fetched = self._context.Event()
        self._took_s = self._context.Value("d", 0.0)
        self._failures = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (read at the end)
        self._failed = False  # in the process that builds
        self._attempts = 0
        self.waited_s = 0.0
        self._start()

    def _start(self) -> None:
        self._attempts += 1
        # a process of its own: tests change environment and working directory of theirs
        self._process = self._context.Process(target=self._run)
        self._process.start()

    @property
    def took_s(self) -> float:
        """How long all builds took beside the tests; 0 as long as they are made."""
        return float(self._took_s.value)

    @property
    def failures(self) -> str:
        """What failed, a paragraph each."""
        self._failures.seek(0)
        return self._failures.read()

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Go on after an error, which is kept."""
        try:
            yield
        except (kit.BuildError, OSError) as error:
            self._failures.write(f"{what}: {error}\n")
            self._failures.flush()
            self._failed = True

    def _run(self) -> None:
        began = time.monotonic()
        yield_to_others()
        project = Project(ROOT)
        logs, jobs = ROOT / "logs", os.cpu_count() or 1

        def build(key: tuple[str, str]) -> None:
            log = logs / f"build-{key[0]}-{key[1]}.log"
            with self._noting(f"{key[0]} {key[1]}"):
                making.build(project, *key, jobs=jobs, log=log)

        def build_reader() -> None:
            with self._noting(READER):
                components.provide(project, READER, jobs=jobs, log=logs / "build-reader.log")

        for pause in (60, 60, 60, 0):  # without them nothing can be built beside the tests
            with self._noting("sources"):
                sources.fetch(project, logs / "sources.log")
                break
            time.sleep(pause)
        self._fetched.set()
        # other flavours are made from the stock ones
        keys = sorted(flavours(project), key=lambda key: key[1] != "stock")
        # several at once: every build has parts that keep one processor busy only, and some wait for a component
        # that another one is making
        with ThreadPoolExecutor(jobs + 1) as pool:
            pool.submit(build_reader)
            list(pool.map(build, keys))
        self._took_s.value += time.monotonic() - began
        if self._failed:
            sys.exit(1)

    def wait_for_sources(self) -> None:
        """Return when the third-party sources are there or cannot be fetched."""
        while self._process.is_alive() and not self._fetched.wait(1):
            pass

    def wait(self) -> None:
        """Return when everything is built or has failed."""
        began = time.monotonic()
        self._process.join()
        if self._process.exitcode != 0 and self._attempts == 1:
            self._start()
            self._process.join()
        self.waited_s += time.monotonic() - began

    def stop(self) -> None:
        """End what is being built; nothing happens when all is done."""
        if self._process.is_alive() and self._process.pid:
            try:
                os.killpg(self._process.pid, signal.SIGTERM)  # with the compilers
            except ProcessLookupError:  # it has just been started or has just ended
                self._process.terminate()
        self._process.join()


class Beside:
    """Tests in a process of their own beside the others, from a stage on; what they say is kept until the end."""

    def __init__(self, items: list[pytest.Item], options: list[str], stage: Stage) -> None:
        self.stage = stage
        # in their order, on which some rely
        names = list(dict.fromkeys(item.nodeid.partition("[")[0] for item in items))
        self.files = ", ".join(dict.fromkeys(name.partition("::")[0] for name in names))
        self._argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *names]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (read at the end)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start them, once."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._argv, cwd=ROOT, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def end(self, *, stop: bool) -> bool:
        """Wait for those that were started, or interrupt them; whether there were any and not all of them passed."""
        if self._process is None:
            return False
        if stop and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # they take down what they have made
        return self._process.wait() != 0

    def said(self) -> str:
        """What they have printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")


BESIDE = pytest.StashKey[list[Beside]]()
BUILDER = pytest.StashKey[Builder]()
BUILDS_ALL = pytest.StashKey[bool]()
"""Whether every build is made beside the tests."""
SPENT = pytest.StashKey[dict[tuple["Stage", str], float]]()


LONG_S = 300.0
"""Where tests took longer, the end tells which files did."""
SLOWEST_FILES = 20
"""So many of a stage."""


def fixtures_of(item: pytest.Item) -> list[str]:
    """The names of the fixtures a test uses."""
    return item.fixturenames if isinstance(item, pytest.Function) else []


def stage_of(item: pytest.Item) -> Stage:
    """When a test runs, from the fixtures it uses and its markers."""
    fixtures = fixtures_of(item)
    if "every_build" in fixtures:
        return Stage.AFTER_BUILDS
    builds_or_workflow = "build_of" in fixtures or item.get_closest_marker("workflow")
    if item.get_closest_marker("root") and builds_or_workflow:
        return Stage.AFTER_BUILDS
    return Stage.SOME_BUILDS if "build_of" in fixtures else Stage.BESIDE_BUILDS


def group_of(item: pytest.Item) -> str | None:
    """The tests of `BESIDE_FROM` that a test is one of."""
    for marker in ("apart", "beside"):
        if item.get_closest_marker(marker):
            return marker
    return "some builds" if stage_of(item) is Stage.SOME_BUILDS else None


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
def build_of(vendor: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The directory of a build of this clone, by library and flavour; made unless it is there."""
    project = Project(ROOT)
    log = tmp_path_factory.mktemp("builds") / "build.log"
    done: dict[tuple[str, str], Path] = {}

    def make(library: str, flavour: str) -> Path:
        key = (library, flavour)
        if key not in done:
            making.build(project, *key, jobs=os.cpu_count() or 1, log=log)
            done[key] = making.build_directory(project, *key)
        return done[key]

    return make


@pytest.fixture(scope="session")
def capture_reader(build_of: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that reads captures into tables; made unless it is there."""
    project, log = Project(ROOT), tmp_path_factory.mktemp("component") / "build.log"
    jobs = os.cpu_count() or 1
    return components.provide(project, READER, jobs=jobs, log=log) / "bin" / "capture-reader"


@pytest.fixture(scope="session")
def every_build(build_of: Callable[[str, str], Path]) -> None:
    """Every flavour of every library is built."""
    for key in flavours(Project(ROOT)):
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


@pytest.hookimpl(trylast=True)  # when those are gone that -k and -m leave out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `root` for other users, with the reason; sort by stage, in each the slow ones last.

    Those of a group in `BESIDE_FROM` run in a process of their own where there are others that need every build.
    """
    if os.geteuid() != 0:
        needs_root = pytest.mark.skip(reason="needs root (network namespaces)")
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(needs_root)
    # components are among the first things that are built, so those who need some find them at the end of their stage
    last = ("workflow", "slow")
    items.sort(key=lambda item: (stage_of(item), [item.get_closest_marker(name) is not None for name in last]))
    # options whose value is in the same word, and those that choose tests
    options = [word for word in config.invocation_params.args if word.startswith("--") and "=" in word]
    for name, chosen in (("-k", config.option.keyword), ("-m", config.option.markexpr)):
        options += [name, chosen] if chosen else []
    # asked before the items are shared out: those that need every build may all go to other processes
    config.stash[BUILDS_ALL] = any("every_build" in fixtures_of(item) for item in items) and (
        stage_of(items[0]) is Stage.BESIDE_BUILDS
    )
    groups = {item: group_of(item) for item in items}
    for name, stage in BESIDE_FROM.items():
        grouped = [item for item in items if groups[item] == name]
        if grouped and any(stage_of(item) is Stage.AFTER_BUILDS for item in items if groups[item] is None):
            items[:] = [item for item in items if groups[item] != name]
            config.stash.setdefault(BESIDE, []).append(Beside(grouped, options, stage))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """What happens beside the tests that are listed."""
    said = [f"in a process beside these: {beside.files}" for beside in config.stash.get(BESIDE, [])]
    return [*said, "beside these: every build"] if config.stash.get(BUILDS_ALL, False) else said


def pytest_runtestloop(session: pytest.Session) -> None:
    """Start to build when everything will be asked for and there are other tests to run meanwhile."""
    if session.config.option.collectonly or not session.items or session.testsfailed:
        return
    if session.config.stash.get(BUILDS_ALL, False):
        session.config.stash[BUILDER] = Builder()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Sum up the time of every stage and file."""
    began = time.monotonic()
    try:
        return (yield)
    finally:
        spent = item.config.stash.setdefault(SPENT, {})
        key = (stage_of(item), item.nodeid.partition("::")[0])
        spent[key] = spent.get(key, 0.0) + time.monotonic() - began


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Wait for what a test needs of what is built in the background."""
    builder, stage = item.config.stash.get(BUILDER, None), stage_of(item)
    if builder:
        if stage is Stage.AFTER_BUILDS:
            builder.wait()
        elif item.get_closest_marker("workflow"):
            builder.wait_for_sources()
    for beside in item.config.stash.get(BESIDE, []):
        if stage >= beside.stage:
            beside.start()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell how long stages, files and builds took, and how long tests waited for these; and what others said."""
    for beside in config.stash.get(BESIDE, []):
        terminalreporter.section(f"beside these: {beside.files}")
        terminalreporter.write_line(beside.said())
    spent = config.stash.get(SPENT, {})
    if sum(spent.values()) > LONG_S:
        for stage in Stage:
            of_stage = [(seconds, file) for (at, file), seconds in spent.items() if at is stage]
            if of_stage:
                terminalreporter.section(f"{stage.name}: {sum(seconds for seconds, _ in of_stage):.0f} s")
            for seconds, file in sorted(of_stage, reverse=True)[:SLOWEST_FILES]:
                terminalreporter.write_line(f"{seconds:6.0f} s {file}")
    if builder := config.stash.get(BUILDER, None):
        terminalreporter.write_line(
            f"builds made in the background: {builder.took_s:.0f} s, of which tests waited {builder.waited_s:.0f} s"
        )
        if builder.failures:
            terminalreporter.section("failed in the background")
            terminalreporter.write_line(builder.failures)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Wait for the tests beside these, which may have failed, and leave no build behind that still runs."""
    stop = exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    for beside in session.config.stash.get(BESIDE, []):
        if beside.end(stop=stop):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    if builder := session.config.stash.get(BUILDER, None):
        builder.stop()
