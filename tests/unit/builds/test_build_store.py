"""The store of builds: what is taken from it is as it was made, and nobody else can put anything in it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clone import ROOT
from quicbed.builds import build_store, kit, making
from quicbed.builds.build_store import Entry
from quicbed.builds.kit import BuildError
from quicbed.cli import commands
from quicbed.config.model import ConfigError, Project
from quicbed.plan.built import BUILD_FILE, Build


class Clone:
    """What the store asks of a project."""

    def __init__(self, root: Path, store: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.store = root, store

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the store needs no {name}")


@pytest.fixture
def clone(tmp_path: Path, store: Path) -> Any:
    return Clone(tmp_path / "one", store)


@pytest.fixture
def entry(store: Path) -> Entry:
    return Entry(store, "system/builds", "quinn-stock-0123456789ab")


@pytest.fixture(autouse=True)
def nothing_in_use() -> None:
    build_store.let_go()


def fill(made: Path) -> None:
    (made / "bin").mkdir()
    (made / "bin" / "client").write_text("program", encoding="utf-8")
    (made / "bin" / "client").chmod(0o775)
    (made / "lib").symlink_to("bin")


def refuse(_: Path) -> None:
    raise AssertionError("made again")


def test_what_one_clone_has_made_another_one_takes(entry: Entry, clone: Any, tmp_path: Path) -> None:
    directory = build_store.provide(entry, clone, fill)
    other: Any = Clone(tmp_path / "other", entry.store)
    assert build_store.provide(entry, other, refuse) == directory == entry.directory
    assert {use.clone for use in build_store.uses(entry)} == {clone.root, other.root}
    # whatever the umask, nobody else may write to it
    modes = [path.lstat().st_mode for path in entry.store.rglob("*") if not path.is_symlink()]
    assert not [mode for mode in modes if mode & 0o002]
    assert (directory / "bin" / "client").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in directory.parent.iterdir()) == [entry.name]


def add(directory: Path) -> None:
    (directory / "more").touch()


def lose(directory: Path) -> None:
    (directory / "bin" / "client").unlink()


def change(directory: Path) -> None:
    (directory / "bin" / "client").write_text("another", encoding="utf-8")


def disable(directory: Path) -> None:
    (directory / "bin" / "client").chmod(0o644)


def lead_astray(directory: Path) -> None:
    (directory / "lib").unlink()
    (directory / "lib").symlink_to("/tmp")


def cut(directory: Path) -> None:
    (directory / "manifest.json").write_text("{", encoding="utf-8")


def empty(directory: Path) -> None:
    (directory / "manifest.json").write_text("[]", encoding="utf-8")


def forget(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def make_fifo(directory: Path) -> None:
    os.mkfifo(directory / "more")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (add, "more is new"),
        (lose, "bin/client is missing"),
        (change, "bin/client was changed"),
        (disable, "bin/client was changed"),
        (lead_astray, "lib was changed"),
        (cut, "cannot be read"),
        (empty, "manifest.json was changed"),
        (forget, "manifest.json is missing"),
        (make_fifo, "more is new"),
    ],
)
def test_what_was_changed_is_made_again_and_a_line_says_so(
    entry: Entry, clone: Any, damage: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = build_store.provide(entry, clone, fill)
    damage(directory)
    assert build_store.provide(entry, clone, fill) == directory
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"quicbed: {directory}: is not as it was made ({said}")
    assert build_store.changed(directory) is None
    build_store.provide(entry, clone, refuse)


def test_what_an_interrupted_process_left_is_not_taken(entry: Entry, clone: Any) -> None:
    half = entry.directory.with_name(f".{entry.name}.partial")
    half.mkdir(parents=True)
    (half / "half").touch()
    with pytest.raises(BuildError, match="the compiler is unhappy"):
        build_store.provide(entry, clone, unhappy)
    assert not entry.directory.exists()
    build_store.provide(entry, clone, fill)
    assert not (entry.directory / "half").exists()
    assert not half.exists()


def unhappy(_: Path) -> None:
    raise BuildError("the compiler is unhappy")


def test_of_two_clones_that_need_a_build_at_once_the_second_takes_it(entry: Entry, clone: Any, tmp_path: Path) -> None:
    who = tmp_path / "who"

    def make(made: Path) -> None:
        with who.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.2)
        fill(made)

    context = get_context("fork")
    processes = [context.Process(target=build_store.provide, args=(entry, clone, make)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(who.read_text(encoding="utf-8").splitlines()) == 1


# ---- whose it is -----------------------------------------------------------------------------------------------------


def refused(project: Any, says: str) -> None:
    with pytest.raises(BuildError, match=says) as error:
        build_store.check(project.store, project.root)
    assert "\n" not in str(error.value)
    assert "QUICBED_STORE" in str(error.value)


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for store in (tmp_path / "file", tmp_path / "file" / "store"):
        refused(Clone(tmp_path / "one", store), "store: the store of builds is no directory|file: the store")


def test_a_store_of_another_user_is_refused(clone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(clone.store, 4711, 4711)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    refused(clone, rf"{clone.store}: belongs to the user .*, who could put programs into the store")


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o1777])
def test_a_store_that_others_may_write_to_is_refused(clone: Any, mode: int) -> None:
    clone.store.chmod(mode)
    refused(clone, rf"others may write there.*run `chmod go-w {clone.store}`")


def test_a_store_that_a_group_may_write_to_is_refused(clone: Any) -> None:
    clone.store.chmod(0o770)
    status, user = clone.store.stat(), os.geteuid()
    # a group of this user's own has the same number
    build_store._refuse(clone.store, os.stat_result((*status[:5], user, *status[6:])), {user}, sticky=False)
    with pytest.raises(BuildError, match="others may write there"):
        build_store._refuse(clone.store, os.stat_result((*status[:5], user + 1, *status[6:])), {user}, sticky=False)


def test_a_store_that_others_could_replace_is_refused(clone: Any, tmp_path: Path) -> None:
    above = tmp_path / "above"
    store = above / "below" / "store"
    above.mkdir()
    build_store.check(store, clone.root)
    assert [path.stat().st_mode & 0o777 for path in (store.parent, store)] == [0o700, 0o700]
    above.chmod(0o777)
    refused(Clone(tmp_path / "one", store), rf"{above}: others may write there")
    above.chmod(0o1777)  # as /tmp
    build_store.check(store, clone.root)
    # who can write to a clone changes its code
    above.chmod(0o777)
    build_store.check(store, above)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_written_gives_what_it_has(
    entry: Entry, clone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_store.provide(entry, clone, fill)
    build_store.let_go()

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(entry.store))

    monkeypatch.setattr(build_store, "make_below", read_only)
    assert build_store.provide(entry, clone, refuse) == entry.directory
    missing = Entry(entry.store, entry.part, "quinn-noop-0123456789ab")
    says = rf"{entry.store}: Read-only file system: the store of builds has no whole {missing.name} and cannot be"
    with pytest.raises(BuildError, match=rf"{says} written; name another directory in paths\.store or in the variable"):
        build_store.provide(missing, clone, fill)


def test_a_full_disk_is_told_with_what_to_do(entry: Entry, clone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(made: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(made / "client"))

    with pytest.raises(BuildError, match=r"client: No space left on device; make room, as with `quicbed store prune`"):
        build_store.provide(entry, clone, full)
    assert not list(entry.directory.parent.iterdir())
    # as a compiler says it
    with pytest.raises(BuildError, match="the compiler is unhappy"):
        build_store.provide(entry, clone, unhappy)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(BuildError, match="No space left on device; make room"):
        build_store.provide(entry, clone, unhappy)


def test_without_locks_what_is_there_is_taken_and_nothing_is_made(
    entry: Entry, clone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_store.provide(entry, clone, fill)
    build_store.let_go()

    def refuse_lock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    assert build_store.provide(entry, clone, refuse) == entry.directory
    missing = Entry(entry.store, entry.part, "quinn-noop-0123456789ab")
    with pytest.raises(BuildError, match=r"cannot be locked \(No locks available\); let paths\.build and paths\.store"):
        build_store.provide(missing, clone, fill)


# ---- where it is -----------------------------------------------------------------------------------------------------


def place(**paths: str) -> Path:
    return Project(ROOT, {"paths": paths}).store


def test_the_configuration_then_the_environment_then_the_home_say_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("QUICBED_STORE", str(tmp_path / "named"))
    assert place(store="~/own") == tmp_path / "own"
    assert place(store="build/own") == ROOT / "build" / "own"
    assert place() == tmp_path / "named"
    monkeypatch.delenv("QUICBED_STORE")
    assert place() == tmp_path / "cache" / "quicbed"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert place() == tmp_path / ".cache" / "quicbed"
    # as make sets it for who has no home
    assert place(build=str(tmp_path.parent)) == tmp_path.parent / "store"
    monkeypatch.delenv("XDG_CACHE_HOME")
    for home in ("", "/nonexistent", "/proc/1"):
        monkeypatch.setenv("HOME", home)
        assert place() == ROOT / "build" / "store"
    with pytest.raises(ConfigError, match=r"~nobody-of-this-name/x: .*paths\.store, or in the variable QUICBED_STORE"):
        place(store="~nobody-of-this-name/x")


def test_systems_that_differ_share_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = build_store.of_system()
    python = build_store.of_system(Path("/usr/bin/python3.11"))
    assert python.startswith(f"{own}-{sys.implementation.cache_tag}-")
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.99")
    assert build_store.of_system() not in (own, python)
    assert build_store.of_system().endswith("-glibc2.99")
    assert build_store.of_system(Path("/usr/bin/python3.11")) != build_store.of_system(Path("/opt/bin/python3.11"))


# ---- a build ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The builds that were made, by a recipe that takes a moment."""
    found: list[str] = []

    def build(_: Project, name: str, flavour: str, made: Path, identified: str, **_options: object) -> None:
        found.append(identified)
        Build(build=identified, library=name, flavour=flavour, version="1").write(made / BUILD_FILE)

    monkeypatch.setattr(making, "build_into", build)
    return found


def of_clone(directory: Path) -> Project:
    return Project(ROOT, {"paths": {"build": str(directory)}})


def test_a_clone_has_a_link_to_a_build_and_a_listing(
    made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = of_clone(tmp_path / "one"), of_clone(tmp_path / "two")
    key = ("quinn", "stock")
    assert not making.is_made(two, *key)
    copies = [making.build(project, *key, jobs=1, log=tmp_path / "log") for project in (one, two)]
    assert made == [copies[0].stem]
    assert copies[0].read_bytes() == copies[1].read_bytes()
    assert making.build_directory(two, *key).resolve().is_relative_to(two.store)
    assert making.is_made(of_clone(tmp_path / "three"), *key)
    making.keep(two, *key, copies[1].stem)
    making.forget(two, [key])
    assert copies[1].exists()
    # what was changed since it was taken is not measured, and the workflow makes it again
    (making.build_directory(one, *key) / "more").touch()
    says = rf"{copies[1].stem}: is not as it was made \(more is new\); start again, or run `quicbed build quinn stock`"
    with pytest.raises(BuildError, match=says):
        making.keep(two, *key, copies[1].stem)
    assert not copies[1].exists()
    assert making.build(two, *key, jobs=1, log=tmp_path / "log") == copies[1]
    assert len(made) == 2
    assert capsys.readouterr().err.count("\n") == 1
    # nor is what was removed
    shutil.rmtree(two.store)
    making.forget(two, [key])
    assert not copies[1].exists()
    with pytest.raises(BuildError, match="build it with `quicbed build quinn stock`"):
        making.read_build(two, *key)


def test_a_build_that_a_clone_has_itself_stays_in_use(made: list[str], tmp_path: Path) -> None:
    project = of_clone(tmp_path)
    directory = making.build_directory(project, "quinn", "stock")
    Build(build=directory.name, library="quinn", flavour="stock", version="1").write(directory / BUILD_FILE)
    making.build(project, "quinn", "stock", jobs=1, log=tmp_path / "log")
    making.keep(project, "quinn", "stock", directory.name)
    assert not directory.is_symlink()
    assert not made
    # half of one does not
    (directory / BUILD_FILE).unlink()
    making.build(project, "quinn", "stock", jobs=1, log=tmp_path / "log")
    assert directory.is_symlink()
    assert made == [directory.name]


def test_builds_of_hosts_and_of_folders_are_no_others(tmp_path: Path) -> None:
    project = of_clone(tmp_path)
    assert making.in_store(project, "quinn", tmp_path / "quinn-stock+client-0123456789ab") is None
    assert making.in_store(project, "quinn", tmp_path / "quinn-stock-0123456789ab") is not None
    python = making.in_store(project, "aioquic", tmp_path / "aioquic-stock-0123456789ab")
    assert python is not None
    assert str(sys.implementation.cache_tag) in python.part
    folder = project.libraries["quinn"].model_copy(update={"recipe": "external"})
    project.libraries = {**project.libraries, "ext": folder}
    assert making.in_store(project, "ext", tmp_path / "ext-stock-0123456789ab") is None


# ---- the command -----------------------------------------------------------------------------------------------------


def run(*words: str) -> int:
    return commands.main(["store", *words])


def test_the_store_is_listed(entry: Entry, clone: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    build_store.provide(entry, clone, fill)
    gone: Any = Clone(tmp_path / "gone", entry.store)
    build_store.provide(Entry(entry.store, "sources", "0123456789ab"), gone, fill)
    gone.root.rmdir()
    assert run("list") == 0
    _, source, build = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"source  0123456789ab +0\.0 +\d{{4}}-\d\d-\d\d +{gone.root} \(gone\)", source)
    assert re.fullmatch(rf"build +{entry.name}  system +0\.0 +\d{{4}}-\d\d-\d\d +{clone.root}", build)


def test_only_what_nobody_used_for_a_while_is_removed(
    entry: Entry, clone: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Entry(entry.store, entry.part, "quinn-noop-0123456789ab")
    for one in (entry, old):
        build_store.provide(one, clone, fill)
    build_store.let_go()
    month = time.time() - 31 * 86400
    for file in old.notes.glob("*.clone"):
        os.utime(file, (month, month))
    half = entry.directory.with_name(".quiche-stock-0123456789ab.partial")
    half.mkdir()
    assert run("prune", "--dry-run") == 0
    assert re.search(rf"would be removed .*{old.name}  0\.0 MB\n.*would be freed", capsys.readouterr().out)
    assert old.directory.is_dir()
    assert half.is_dir()
    assert run("prune") == 0
    assert [one.name for one in build_store.stored_entries(clone)] == [entry.name]
    assert not half.exists()
    assert run("prune", "--days", "0.5") == 0
    assert entry.directory.is_dir()
    # who uses it now keeps it
    holding = (
        "import sys, types, pathlib; sys.path.insert(0, sys.argv[1]); from quicbed.builds import build_store as store; "
        "one = store.Entry(pathlib.Path(sys.argv[2]), *sys.argv[3:5]); "
        "store.use(one, types.SimpleNamespace(root=pathlib.Path('.'))); print('ready', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", holding, str(ROOT / "workflow"), str(entry.store), entry.part, entry.name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "ready\n"
        capsys.readouterr()
        assert run("prune", "--days", "0") == 0
        assert capsys.readouterr().out.startswith("in use ")
        user.communicate("")
    assert entry.directory.is_dir()
    assert run("prune", "--days", "0") == 0
    assert not entry.directory.exists()
    build_store.provide(entry, clone, fill)


@pytest.mark.parametrize("days", ["-1", "nan", "soon"])
def test_days_are_a_number(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("prune", f"--days={days}")
    assert "--days" in capsys.readouterr().err


def test_third_party_sources_are_found_by_their_checksums(tmp_path: Path) -> None:
    project = of_clone(tmp_path)
    assert kit.vendor_directory(project) == project.store / "sources" / kit.sources_name(project) / "vendor"
