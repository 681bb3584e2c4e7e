"""Sources and builds: what identifies them, and that nothing changed or foreign is built."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.builds import build_store, kit, making, sources
from quicbed.builds.kit import BuildError
from quicbed.cli.commands import _parser
from quicbed.cli.generate import generate
from quicbed.config.model import Project
from quicbed.plan.built import Build


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The parts of the repository that builds are a function of."""
    for name in ("config", "workflow"):
        ignored = shutil.ignore_patterns("target", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    return tmp_path


def ids(root: Path) -> dict[tuple[str, str], str]:
    project = Project(root).without_folders()
    return {
        (name, flavour): making.build_id(project, name, flavour)
        for name, library in project.libraries.items()
        for flavour in library.flavours
    }


@functools.cache
def own_ids() -> dict[tuple[str, str], str]:
    """Those of this repository, and of a copy as long as nothing is changed in it."""
    return ids(ROOT)


def changed(root: Path, before: dict[tuple[str, str], str] | None = None) -> set[tuple[str, str]]:
    """Builds that are other ones now than before, or than in this repository; *before* says then what they are now."""
    after = ids(root)
    found = {key for key in after if (before or own_ids())[key] != after[key]}
    if before is not None:
        before |= after
    return found


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_build_ids_do_not_depend_on_where_the_repository_is(copy: Path) -> None:
    assert ids(copy) == own_ids()


def test_a_file_that_moves_within_the_repository_changes_no_build(copy: Path) -> None:
    moved = {
        # a patch, an endpoint with its own sources, and code of this package beside which recipes stand
        "workflow/crypto/patches/quiche/noop.patch": ("config/libraries/quiche.yaml", "quiche/noop.patch"),
        "workflow/endpoints/quic-go": ("config/libraries/quic-go.yaml", "quic-go"),
    }
    for place, (description, name) in moved.items():
        before_it = place.removesuffix(name)
        (copy / before_it / "elsewhere").mkdir()
        (copy / place).rename(copy / before_it / "elsewhere" / Path(name).name)
        text = (copy / description).read_text(encoding="utf-8")
        key = "file" if name.endswith(".patch") else "endpoint"
        assert text.count(f"{key}: {name}\n") == 1
        new = text.replace(f"{key}: {name}\n", f"{key}: elsewhere/{Path(name).name}\n")
        (copy / description).write_text(new, encoding="utf-8")
    recipe = copy / making.DIRECTORY / "go.py"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("from quicbed.builds.kit import", "from quicbed.elsewhere import"), encoding="utf-8")
    assert changed(copy) == set()


def test_what_a_recipe_does_decides_and_its_docstrings_and_imports_do_not(copy: Path) -> None:
    recipe = copy / making.DIRECTORY / "go.py"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(f'"""Another one."""\n{text}', encoding="utf-8")
    assert changed(copy) == set()
    append(recipe, "TRIMPATH = False\n")
    assert changed(copy) == {key for key in own_ids() if key[0] == "quic-go"}


def test_a_patch_for_another_package_is_another_build(copy: Path) -> None:
    description = copy / "config" / "libraries" / "quiche.yaml"
    text = description.read_text(encoding="utf-8")
    description.write_text(text.replace("crate: quiche\n", "crate: boring\n"), encoding="utf-8")
    flavours = Project(copy).libraries["quiche"].flavours
    patched = {("quiche", name) for name, flavour in flavours.items() if flavour.patches}
    assert changed(copy) == patched != set()


def test_a_change_to_an_endpoint_rebuilds_that_endpoint_only(copy: Path) -> None:
    append(next((copy / "workflow/endpoints/quiche/src").glob("*.rs")), "// changed\n")
    assert changed(copy) == {key for key in own_ids() if key[0] == "quiche"}


SHARED = {
    "contract/c/contract.c": {"bare-udp", "nginx-h3", "openssl", "tcp-tls"},
    "contract/go/clock.go": {"quic-go"},
    "contract/python/quicbed_contract/clock.py": {"aioquic"},
    "contract/rust/src/clock.rs": {"msquic", "ngtcp2", "noq", "picoquic", "quiche", "quinn", "s2n-quic"},
    "engine/curl/download.c": {"nginx-h3", "tcp-tls"},
    "engine/nginx/nginx.c": {"nginx-h3", "tcp-tls"},
    "engine/poll/src/server.rs": {"ngtcp2", "picoquic", "quiche"},
    "engine/quinn/server.rs": {"noq", "quinn"},
    "tls/boringssl/src/lib.rs": {"ngtcp2", "quiche"},
    "tls/openssl/openssl.c": {"bare-udp", "nginx-h3", "openssl", "tcp-tls"},
    "tls/rustls/src/tls.rs": {"noq", "quinn"},
}
"""A file of each directory that endpoints share, and the libraries that are built with it."""


def test_a_change_to_what_endpoints_share_rebuilds_those_that_use_it(copy: Path) -> None:
    shared = (copy / kit.ENDPOINTS).glob("*/*/")
    kinds = {"contract", "engine", "tls"}
    directories = {path.relative_to(copy / kit.ENDPOINTS).as_posix() for path in shared if path.parent.name in kinds}
    assert directories == {"/".join(file.split("/")[:2]) for file in SHARED}
    before = dict(own_ids())
    for file, libraries in SHARED.items():
        append(copy / kit.ENDPOINTS / file, "\n")
        assert changed(copy, before) == {key for key in before if key[0] in libraries}, file


def test_no_build_is_a_function_of_the_endpoint_of_another_library() -> None:
    project = Project(ROOT).without_folders()
    users: dict[str, set[str]] = {}
    for name, library in project.libraries.items():
        for flavour in library.flavours:
            for file in making.identity(project, name, flavour)["files"]:
                source = (ROOT / file).resolve().relative_to(ROOT)
                if source.is_relative_to(kit.ENDPOINTS):
                    users.setdefault(source.relative_to(kit.ENDPOINTS).parts[0], set()).add(name)
    for name, library in project.libraries.items():
        assert users[library.endpoint] == {name}


def test_a_change_to_a_patch_rebuilds_the_patched_flavour_only(copy: Path) -> None:
    append(copy / "workflow/crypto/patches/quiche/noop.patch", "\n")
    assert changed(copy) == {("quiche", "noop")}


def test_a_flavour_with_an_endpoint_of_its_own_is_a_function_of_it_and_what_it_uses(copy: Path) -> None:
    before = dict(own_ids())
    append(copy / "workflow/endpoints/msquic-pq/src/lib.rs", "// changed\n")
    assert changed(copy, before) == {("msquic", "pq")}
    append(copy / "workflow/endpoints/msquic/src/lib.rs", "// changed\n")
    assert changed(copy, before) == {("msquic", flavour) for flavour in ("stock", "noop", "jumbo", "pq")}
    append(copy / "workflow/crypto/pq/openssl-provider/kem.c", "/* changed */\n")
    assert changed(copy, before) == {(name, "pq") for name in ("msquic", "nginx-h3", "openssl", "picoquic", "tcp-tls")}


def test_another_checksum_of_a_source_rebuilds_what_is_made_from_it(copy: Path) -> None:
    lock = copy / "workflow/sources/Cargo.lock"
    rustls = kit.closure(copy, ["rustls"])
    checksum = next(p["checksum"] for p in rustls if p["name"] == "rustls")
    lock.write_text(lock.read_text(encoding="utf-8").replace(checksum, "0" * 64), encoding="utf-8")
    affected = changed(copy)
    assert {("quinn", "stock"), ("quinn", "noop")} <= affected
    assert ("quiche", "stock") not in affected
    assert ("tcp-tls", "stock") not in affected


def test_every_library_is_pinned_by_checksum() -> None:
    project = Project(ROOT).without_folders()
    for name, library in project.libraries.items():
        packages = {p["name"]: p for p in making.sources_of(project, name)}
        assert set(library.crates) <= set(packages)
        # the sources of an optional library are wherever its user has them
        assert packages or library.optional
        # Cargo.lock and pip have hexadecimal digits, Go has base 64
        assert all(len(package["checksum"]) >= 44 for package in packages.values())
        assert making.version_of(project, name)


def test_a_recipe_that_does_not_exist_is_named_with_those_that_do(copy: Path) -> None:
    file = copy / "config" / "libraries" / "openssl.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("recipe: openssl", "recipe: meson"), encoding="utf-8")
    with pytest.raises(BuildError, match=r"OpenSSL QUIC: recipe: `meson` is unknown; known are cargo, .*tcp-tls"):
        making.build_id(Project(copy), "openssl", "stock")


def test_stock_builds_have_no_patch_and_no_feature() -> None:
    for library in Project(ROOT).without_folders().libraries.values():
        assert not library.flavours["stock"].patches
        assert not library.flavours["stock"].features


def test_every_patch_says_what_and_why() -> None:
    for patch in (ROOT / kit.PATCHES).rglob("*.patch"):
        header = patch.read_text(encoding="utf-8").split("--- ")[0]
        assert len(header.split()) > 20, f"{patch} has no explanation before the first file"


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(
            BuildError, match=r"quinn-stock\.lock: cannot be locked \(No locks available\); let paths\.build"
        ),
        kit.locked(tmp_path / "work" / "quinn-stock.lock"),
    ):
        pytest.fail("entered without the lock")


def test_a_library_that_is_not_locked_is_named(copy: Path) -> None:
    with pytest.raises(BuildError, match="no package `nonesuch`"):
        kit.closure(copy, ["nonesuch"])


@pytest.fixture
def vendored(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    directory = tmp_path / "vendor" / "thing-1.0.0"
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "lib.rs").write_text("pub fn f() {}\n", encoding="utf-8")
    digest = hashlib.sha256((directory / "src" / "lib.rs").read_bytes()).hexdigest()
    recorded = {"files": {"src/lib.rs": digest}, "package": "a" * 64}
    (directory / ".cargo-checksum.json").write_text(json.dumps(recorded), encoding="utf-8")
    return tmp_path / "vendor", {"name": "thing", "version": "1.0.0", "checksum": "a" * 64}


def test_a_source_as_fetched_is_accepted(vendored: tuple[Path, dict[str, str]]) -> None:
    kit.verify_source(*vendored)


def test_a_file_that_no_checksum_names_is_refused(vendored: tuple[Path, dict[str, str]]) -> None:
    vendor, package = vendored
    (vendor / "thing-1.0.0" / "build.rs").write_text("fn main() {}\n", encoding="utf-8")
    with pytest.raises(BuildError, match=r"thing-1\.0\.0/build\.rs: no checksum names it; delete .* and start again"):
        kit.verify_source(vendor, package)


def test_a_changed_missing_or_foreign_source_is_refused(vendored: tuple[Path, dict[str, str]]) -> None:
    vendor, package = vendored
    with pytest.raises(BuildError, match="not the package of"):
        kit.verify_source(vendor, {**package, "checksum": "b" * 64})
    with pytest.raises(BuildError, match="not a fetched source"):
        kit.verify_source(vendor, {**package, "version": "2.0.0"})
    file = vendor / "thing-1.0.0" / "src" / "lib.rs"
    file.write_text("pub fn g() {}\n", encoding="utf-8")
    with pytest.raises(BuildError, match="differs from the registry's source"):
        kit.verify_source(vendor, package)
    file.unlink()
    with pytest.raises(BuildError, match="differs from the registry's source"):
        kit.verify_source(vendor, package)


def test_a_failed_command_names_its_log_and_shows_its_end(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    with pytest.raises(BuildError, match=r"exit code 3.*x\.log") as error:
        kit.run(["sh", "-c", "echo the compiler is unhappy; exit 3"], log=log)
    assert "the compiler is unhappy" in str(error.value)


def test_what_comes_from_the_network_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that does not answer for a moment fails no build, and one that stays away does after a while."""
    monkeypatch.setattr(kit, "PAUSES_S", (0.01, 0.02))
    log, tries = tmp_path / "x.log", tmp_path / "tries"
    kit.fetch(["sh", "-c", f"echo >> {tries}; test $(wc -l < {tries}) = 3"], log=log)
    tries.unlink()
    with pytest.raises(BuildError, match="exit code 7"):
        kit.fetch(["sh", "-c", f"echo >> {tries}; exit 7"], log=log)
    assert len(tries.read_text(encoding="utf-8")) == 3
    with pytest.raises(BuildError, match="nonesuch is not installed"):
        kit.fetch(["nonesuch"], log=log)


def at_once(does: Callable[[], None]) -> list[int | None]:
    """Exit codes of four processes that do something at the same time."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(4)

    def begin() -> None:
        together.wait(60)
        does()

    asking = [context.Process(target=begin) for _ in range(4)]
    for process in asking:
        process.start()
    for process in asking:
        process.join()
    return [process.exitcode for process in asking]


def test_a_finished_build_is_asked_for_by_several_processes_at_once(tmp_path: Path) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path)}})
    directory = making.build_directory(project, "quinn", "stock")
    known = {"build": directory.name, "library": "quinn", "flavour": "stock", "version": "0.11"}
    Build.made(known).write(directory / "build.json")

    def ask() -> None:
        for _ in range(25):
            copy = making.build(project, "quinn", "stock", jobs=1, log=tmp_path / "log")
            assert Build.read(copy).library == "quinn"

    assert at_once(ask) == [0, 0, 0, 0]


def test_a_directory_that_several_processes_need_is_filled_by_one_and_not_by_one_that_fails(tmp_path: Path) -> None:
    target, who = tmp_path / "pages" / "small", tmp_path / "who"

    def fill(made: Path) -> None:
        with who.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.1)
        if len(who.read_text(encoding="utf-8").splitlines()) == 1:
            raise OSError("disk full")
        (made / "index.html").write_text("page", encoding="utf-8")

    def need() -> None:
        assert (kit.filled(target, fill) / "index.html").read_text(encoding="utf-8") == "page"

    assert sorted(map(bool, at_once(need))) == [False, False, False, True]
    assert len(set(who.read_text(encoding="utf-8").splitlines())) == 2


CONDA_SETS = {
    "CC": "/env/bin/x86_64-conda-linux-gnu-cc",
    "CFLAGS": "-march=nocona -mtune=haswell -O2 -isystem /env/include",
    "CPPFLAGS": "-DNDEBUG -isystem /env/include",
    "DEBUG_CFLAGS": "-Og",
    "LDFLAGS": "-Wl,-rpath,/env/lib",
    "CMAKE_ARGS": "-DCMAKE_AR=/env/bin/ar",
    "CMAKE_PREFIX_PATH": "/env",
    "HOST": "x86_64-conda-linux-gnu",
    "CFLAGS_x86_64_unknown_linux_gnu": "-O0",
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER": "/env/bin/cc",
    "CARGO_BUILD_RUSTFLAGS": "-C opt-level=0",
    "CGO_ENABLED": "1",
    "CPATH": "/env/include",
    "LIBRARY_PATH": "/env/lib",
}
"""Some of what the scripts of conda's compiler packages set, and what gcc heeds."""


def test_no_build_heeds_what_the_environment_says_of_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"PATH", "HOME", "CARGO_HOME", "GOPROXY", "LD_LIBRARY_PATH", "CONDA_PREFIX", "HOSTNAME"}
    for name in kept - {"PATH", "HOME"}:
        monkeypatch.setenv(name, "/kept")
    for name, value in CONDA_SETS.items():
        monkeypatch.setenv(name, value)
    with making.unflagged():
        assert not set(os.environ) & set(CONDA_SETS)
        assert kept <= set(os.environ)
        done = subprocess.run(["env"], capture_output=True, text=True, check=True)
        assert "nocona" not in done.stdout
    assert {name: os.environ[name] for name in CONDA_SETS} == CONDA_SETS


def test_what_the_environment_says_stays_away_until_the_last_build_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds are made in several threads of one process."""
    monkeypatch.setenv("CFLAGS", "-O0")
    first, second = making.unflagged(), making.unflagged()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "CFLAGS" not in os.environ
    second.__exit__(None, None, None)
    assert os.environ["CFLAGS"] == "-O0"


def test_generated_code_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(ROOT, _parser(), check=True) == 0, capsys.readouterr().err


def test_drifted_code_is_shown_as_a_diff_and_pages_are_written(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copy / "workflow" / "crypto" / "algorithms.csv"
    file.write_text(file.read_text(encoding="utf-8").replace("x448,X448,x448", "x448,X448,x447"), encoding="utf-8")
    assert generate(copy, _parser(), check=True) == 1
    assert "x447" in capsys.readouterr().err
    assert generate(copy, _parser(), check=False) == 0
    assert generate(copy, _parser(), check=True) == 0
    assert (copy / "docs" / "libraries" / "quinn.md").read_text(encoding="utf-8").startswith("# quinn")
    assert json.loads((copy / "workflow" / "schemas" / "run.schema.json").read_text(encoding="utf-8"))["$defs"]


def test_the_list_of_sources_stays_as_old_as_they_are(tmp_path: Path, store: Path) -> None:
    """What is older than it is made again."""
    project = Project(ROOT, {"paths": {"build": str(tmp_path)}})
    listing = tmp_path / "sources" / "sources.json"
    assert not sources.fetched(project)
    vendor = kit.vendor_directory(project)
    vendor.mkdir(parents=True)
    (vendor / "source").touch()
    build_store.seal(vendor.parent)
    for text in (None, "{}", "cut"):
        if text is not None:
            listing.write_text(text, encoding="utf-8")
        assert sources.fetch(project, tmp_path / "log") == listing
        assert json.loads(listing.read_text(encoding="utf-8")) == kit.wanted_sources(project)
    assert sources.fetched(project)
    os.utime(listing, (1, 1))
    sources.fetch(project, tmp_path / "log")
    assert listing.stat().st_mtime == 1
    assert vendor.is_relative_to(store)
