"""Trees of any depth: walked as the standard library does where that can, removed, and never left by a link."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nesting import nested
from quicbed.base import durable, trees


def test_a_walk_tells_what_the_standard_library_tells(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("", encoding="ascii")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "e")
    (tmp_path / "a" / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "e" / "fifo")
    found = {(top, frozenset(names), frozenset(files)) for top, names, files in trees.walk(tmp_path)}
    assert found == {(Path(top), frozenset(names), frozenset(files)) for top, names, files in os.walk(tmp_path)}
    entered = []
    for top, names, _ in trees.walk(tmp_path):
        entered.append(top.name)
        if "a" in names:
            names.remove("a")
    assert entered == [tmp_path.name, "e"]
    refused: list[OSError] = []
    assert list(trees.walk(tmp_path / "nothing", refused.append)) == []
    assert [Path(error.filename).name for error in refused] == ["nothing"]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory where there is one: many disks take milliseconds to remove a directory."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as made:
        yield Path(made)


@pytest.mark.parametrize("name", ["d", "d" * 200])
def test_no_tree_is_too_deep(memory: Path, name: str) -> None:
    """More directories than Python recurses, and with longer names more than a path may have."""
    depth = 1100
    nested(memory / "made" / "tree", depth, name)
    refused: list[OSError] = []
    seen = sum(1 for _ in trees.walk(memory / "made", refused.append))
    assert seen == depth + 2 if len(name) == 1 else refused
    durable.sync_tree(memory / "made")
    durable.remove_leftovers(memory, "run.json")
    with durable.filling(memory / "made", replace=True) as partial:
        nested(partial, depth, name)
    trees.remove(memory / "made")
    assert list(memory.iterdir()) == []


def test_removing_takes_everything_and_follows_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("", encoding="ascii")
    tree = tmp_path / "tree"
    for name in ("a/b/c", "a/b/d", "a/.1", ".1/.2", ".2", "closed/deep"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text("", encoding="ascii")
    (tree / "a" / "b" / "link").symlink_to(outside)
    (tree / "link").symlink_to(outside)
    os.mkfifo(tree / "fifo")
    (tree / "closed").chmod(0)
    trees.remove(tree)
    trees.remove(tree)
    link = tmp_path / "link"
    link.symlink_to(outside)
    trees.remove(link)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").is_file()


def test_what_cannot_be_removed_is_an_error_unless_it_may_stay(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="ascii")
    with pytest.raises(NotADirectoryError):
        trees.remove(file / "below")
    trees.remove(file / "below", ignore_errors=True)
    assert file.is_file()
