"""What says which code made something: the same in every clone of a commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quicbed.base.revision import revision


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_the_whole_commit_whatever_tags_and_settings_a_clone_has(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "One")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert revision(tmp_path) == commit
    git(tmp_path, "tag", "--annotate", "--message", "First", "v1")
    git(tmp_path, "tag", "light")
    git(tmp_path, "config", "core.abbrev", "4")
    assert revision(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert revision(tmp_path) == f"{commit}-dirty"


def test_only_a_clone_has_one(tmp_path: Path) -> None:
    assert revision(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert revision(tmp_path) is None  # nothing is committed
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked" / "file").touch()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "One")
    assert revision(tmp_path / "unpacked") is None


def test_that_of_a_clone_of_another_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "One")
    commit = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(subprocess.CalledProcessError):
        git(tmp_path, "rev-parse", "HEAD")
    assert revision(tmp_path) == commit
