"""Files written whole: what is on disk after success, an error, a link in the way."""

from __future__ import annotations

import ast
import json
import math
import os
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.base import durable


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    durable.write_text(file, "old\n")
    durable.write_json(file, {"b": [1, "±"], "a": None}, sort_keys=True)
    assert file.read_bytes() == '{\n "a": null,\n "b": [\n  1,\n  "±"\n ]\n}\n'.encode()
    assert [left.name for left in tmp_path.iterdir()] == ["run.json"]


def test_content_is_on_disk_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        calls.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        calls.append(f"-> {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    durable.write_bytes(tmp_path / "run.json", b"1")
    assert calls == [".run.json.partial", "-> run.json", tmp_path.name]


def test_a_tree_is_on_disk_before_it_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "partial"
    (made / "logs").mkdir(parents=True)
    (made / "run.json").write_text("{}")
    (made / "logs" / "client").write_text("x")
    (made / "dangling").symlink_to("nowhere")
    os.mkfifo(made / "fifo")
    calls: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        calls.append(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path).as_posix())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    durable.move(made, tmp_path / "run")
    assert calls == ["partial/logs/client", "partial/logs", "partial/run.json", "partial", "."]
    assert (tmp_path / "run" / "logs" / "client").read_text() == "x"
    assert not made.exists()
    file = tmp_path / "file.partial"
    file.write_text("x")
    durable.move(file, tmp_path / "file")
    assert calls[-2:] == ["file.partial", "."]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    durable.write_text(file, "old")
    with pytest.raises(ValueError, match="Out of range float"):
        durable.write_json(file, {"goodput": math.nan})
    with pytest.raises(UnicodeEncodeError):
        durable.write_text(file, "\ud800")
    with pytest.raises(FileNotFoundError), durable.replacing(file) as partial:
        partial.rename(tmp_path / "elsewhere" / "half")
    assert file.read_text() == "old"
    assert [left.name for left in tmp_path.iterdir()] == ["run.json"]


def test_what_utf8_cannot_say_is_escaped_in_json(tmp_path: Path) -> None:
    said = {"name \udcff": "\ud800 \\ud800 ü"}
    durable.write_json(tmp_path / "file", said)
    assert json.loads((tmp_path / "file").read_bytes()) == said


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    file = tmp_path / "file"
    file.symlink_to(outside)
    (tmp_path / ".file.partial").symlink_to(outside)
    durable.write_text(file, "new")
    assert outside.read_text() == "kept"
    assert not file.is_symlink()
    assert file.read_text() == "new"


def test_a_fifo_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileExistsError, match="is not a regular file"):
        durable.write_text(tmp_path / "fifo", "new")
    assert (tmp_path / "fifo").is_fifo()


def test_what_a_killed_process_left_is_removed_file_or_directory(tmp_path: Path) -> None:
    """A file's partial content may stand inside the partial directory of a run, or beside a finished run.

    What a finished run has, it keeps, whatever it is called.
    """
    finished = tmp_path / "b0000" / "run"
    half = tmp_path / "b0000" / ".other.partial"
    for directory in (finished, half):
        directory.mkdir(parents=True)
        (directory / "run.json").write_text("{}")
        (directory / ".run.json.partial").write_text("{")
    (tmp_path / "b0000" / ".block.json.partial").write_text("{")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "b0000" / ".link.partial").symlink_to(elsewhere)
    durable.remove_leftovers(tmp_path / "b0000", "run.json")
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == [".run.json.partial", "b0000", "elsewhere", "run", "run.json"]


def test_whatever_has_the_name_of_a_partial_file_gives_way(tmp_path: Path) -> None:
    file, partial = tmp_path / "run.json", tmp_path / ".run.json.partial"
    (partial / "deep").mkdir(parents=True)
    (partial / "deep" / "file").write_text("x")
    durable.write_text(file, "new")
    partial.symlink_to(tmp_path)
    durable.write_text(file, "newer")
    os.mkfifo(partial)
    durable.write_text(file, "newest")
    assert [left.name for left in tmp_path.iterdir()] == ["run.json"]
    assert file.read_text() == "newest"


def test_a_directory_has_its_name_with_all_its_files_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "run"
    with durable.filling(target) as made:
        (made / "run.json").write_text("1")
        assert not target.exists()
        assert durable.is_unfinished(made / "run.json")
    assert (target / "run.json").read_text() == "1"
    assert not durable.is_unfinished(target / "run.json")
    for replace in (False, True):
        with pytest.raises(ZeroDivisionError), durable.filling(target, replace=replace) as made:
            (made / "run.json").write_text(str(1 / 0))
    with pytest.raises(OSError, match="not empty"), durable.filling(target) as made:
        (made / "other").touch()
    assert (target / "run.json").read_text() == "1"
    with durable.filling(target, replace=True) as made:
        (made / "other").touch()
    assert sorted(path.name for path in target.parent.rglob("*")) == ["other", "run"]


def test_a_tree_of_many_files_is_on_disk_before_it_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("sync", "_sync_file_system"):
        monkeypatch.setattr(durable, name, lambda path, name=name: calls.append(f"{name} {path.name}"))
    with durable.filling(tmp_path / "vendor") as made:
        for number in range(durable.MANY + 1):
            (made / str(number)).touch()
    assert calls == ["_sync_file_system .vendor.partial", f"sync {tmp_path.name}"]
    monkeypatch.undo()
    durable._sync_file_system(tmp_path)


PACKAGE = ROOT / "workflow" / "quicbed"
UNFINISHED = "what is in a directory that is not in its place yet"
TEMPORARY = "what is in a temporary directory"
DRAWN = "what a rule of the workflow draws"
LOG = "a log"
OTHERS = {
    "base/durable.py": "all the others",
    **dict.fromkeys(
        [
            *("analysis/dissect.py", "papers/quic_benchmark/analysis.py", "papers/quic_benchmark/published.py"),
            *("report/look.py", "wire/tshark.py"),
        ],
        TEMPORARY,
    ),
    **dict.fromkeys(["figures/output.py", "report/workflow_report.py"], DRAWN),
    **dict.fromkeys(["builds/kit.py", "cli/commands.py"], LOG),
    "builds/making.py": LOG,
    "builds/build_store.py": "who has used what, which is only asked before something is removed, and links",
    **{
        f"builds/{name}.py": UNFINISHED
        for name in (
            *("compiled", "components", "recipes/cargo", "recipes/external", "recipes/go", "recipes/nginx_h3"),
            *("recipes/python", "recipes/tcp_tls", "sources"),
        )
    },
    **dict.fromkeys(["measure/browser.py", "measure/certificates.py"], UNFINISHED),
    "measure/hosted.py": f"{LOG}, and {TEMPORARY}",
    "papers/reading.py": "moves tables that are on disk, between a summary that has gone and one that comes",
    **dict.fromkeys(
        ["importers/samples.py", "papers/steps/samples.py"], "made-up copies for tests and the documentation"
    ),
    "store/runs.py": "into a file of durable",
    "store/tarball.py": "into a file of durable",
    "testbed/agent.py": "one file on a host, with a writer of its own",
    "testbed/confinement.py": f"file systems in memory, and {UNFINISHED}",
    "testbed/process.py": "what a program says, in memory",
    "testbed/guests.py": "what guests are started with, made anew each time",
    "testbed/delay.py": "the first program of a guest, in a temporary directory",
    **dict.fromkeys(["testbed/capture.py", "testbed/remote.py"], UNFINISHED),
    "testbed/local.py": f"files of the kernel, and {UNFINISHED}",
    "testbed/lock.py": "files of the kernel",
}
"""Modules that write files by themselves, and what these are."""


def writes(file: Path) -> list[str]:
    """Calls in a module by which a file gets content or a name."""
    found = []
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        match call.func:
            case ast.Attribute(value=ast.Name(id="durable")):
                continue
            case ast.Attribute(attr="write_text" | "write_bytes" | "copyfile" | "copytree" | "move" as name):
                found.append(name)
            case ast.Attribute(attr="rename" | "replace" as name) if (
                len(call.args) == 1
                and isinstance(call.args[0], ast.Name | ast.BinOp | ast.Call)
                and "rename(renamed)" not in ast.unparse(call)  # columns of a table
            ):
                found.append(name)
            case ast.Attribute(attr="open") | ast.Name(id="open"):
                modes = [one.value for one in call.args if isinstance(one, ast.Constant)]
                if any(isinstance(mode, str) and set(mode) & set("wax") and len(mode) < 4 for mode in modes):
                    found.append("open")
    return found


def test_files_are_written_durably_but_for_what_is_named_here() -> None:
    found = {file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py") if writes(file)}
    assert found == set(OTHERS)


@pytest.mark.parametrize("way", [".", "..", "/", "made/.."])
def test_what_has_no_name_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    Path("made").mkdir()
    for replace in (False, True):
        with pytest.raises(OSError, match="has no name of its own"), durable.filling(Path(way), replace=replace):
            pytest.fail("nothing is filled")
        with pytest.raises(OSError, match="has no name of its own"):
            durable.move(Path("made"), Path(way), replace=replace)
    with pytest.raises(FileExistsError), durable.replacing(Path(way)):
        pytest.fail("nothing is replaced")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "inner", tmp_path / "inner" / "made"]
