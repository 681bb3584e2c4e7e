"""Copies of published data: folders, archives, damaged ones; the one summary; the commands and the workflow's rules."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest

from clone import ROOT
from quicbed import papers
from quicbed.cli import commands
from quicbed.config.model import PublishedFormat
from quicbed.importers import files, samples
from quicbed.importers.files import CopyError, entries
from quicbed.importers.summary import EXAMPLES, Summary
from quicbed.papers import reading

OTHER = "quantum-of-quic"
"""A notebook that shows no published data."""
CONTENT = {"a/b/two.json": b"{}", "a/one.txt": b"1" * 300_000, "three": b""}


def listed(copy: Path) -> tuple[dict[str, bytes], Summary]:
    summary = Summary("test")
    found = {entry.path: files.content_of(entry, summary) for entry in entries(copy, summary)}
    return {path: data for path, data in found.items() if data is not None}, summary


def zstd(file: Path) -> Path:
    subprocess.run(["zstd", "-q", "--rm", str(file)], check=True)
    return file.with_name(f"{file.name}.zst")


def packed(directory: Path, content: dict[str, bytes], kind: str) -> Path:
    """An archive compressed as *kind* says."""
    name = "copy.tar" if kind in ("", "zst") else f"copy.tar.{kind}"
    archive = samples.pack_files(content.items(), directory / name)
    return zstd(archive) if kind == "zst" else archive


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    found, summary = listed(samples.write(CONTENT, tmp_path))
    assert found == CONTENT
    assert (summary.files, summary.bytes, summary.bytes_read) == (3, 300_002, 300_002)
    assert not summary.skipped


@pytest.mark.parametrize("kind", ["", "gz", "bz2", "xz", "zst"])
def test_an_archive_is_read_whatever_its_name_and_compression(tmp_path: Path, kind: str) -> None:
    archive = packed(tmp_path, CONTENT, kind).rename(tmp_path / "download")
    assert listed(archive)[0] == CONTENT


@pytest.mark.parametrize("kind", ["", "gz", "xz", "zst"])
def test_a_cut_archive_gives_what_comes_before_and_says_so(tmp_path: Path, kind: str) -> None:
    incompressible = {"first": os.urandom(50_000), "second": os.urandom(200_000)}
    archive = packed(tmp_path, incompressible, kind)
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) * 2 // 3])
    found, summary = listed(archive)
    assert found == {"first": incompressible["first"]}
    assert any(reason.startswith(("damaged archive", "cannot be read")) for reason in summary.skipped)


@pytest.mark.parametrize("kind", [None, "gz"])
def test_what_is_no_data_is_left_out_and_told(tmp_path: Path, kind: str | None) -> None:
    foreign = {".git/config": b"x", ".git/objects/a": b"x", "a/__MACOSX/a": b"x", "a/__MACOSX/b": b"x"}
    content = CONTENT | {"a/._one.txt": b"x"} | foreign
    copy = samples.write(content, tmp_path / "copy") if kind is None else packed(tmp_path, content, kind)
    found, summary = listed(copy)
    assert found == CONTENT
    assert summary.skipped == {files.APPLE_DOUBLE: 1, files.FOREIGN: 2}
    assert ".git, a/__MACOSX" in summary.text()


def test_what_a_folder_leads_to_elsewhere_or_hides_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = samples.write(CONTENT | {"locked/inside": b"x"}, tmp_path / "copy")
    (copy / "b").symlink_to(samples.write({"far": b"x"}, tmp_path / "other"))
    (copy / "linked").symlink_to(tmp_path / "other" / "far")
    os.mkfifo(copy / "pipe")
    scandir = os.scandir

    def refusing(path: str | int) -> Any:
        if isinstance(path, int):  # what removes directories
            return scandir(path)
        if Path(path).name == "locked":  # the tests' user may read everything
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found, summary = listed(copy)
    assert found == CONTENT | {"linked": b"x"}
    assert summary.skipped == {
        files.LINKED_FOLDER: 1,
        files.NO_FILE: 1,
        "folder that cannot be read: Permission denied": 1,
    }
    told = summary.text()
    for where in ("not followed: b", "not a file: pipe", "denied: locked"):
        assert where in told


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    archive = tmp_path / "copy.tar"
    with tarfile.open(archive, "w") as tar:
        link = tarfile.TarInfo("passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    found, summary = listed(archive)
    assert found == {}
    assert summary.skipped == {files.NO_FILE: 1}


def test_the_summary_counts_equal_reasons_together(tmp_path: Path) -> None:
    summary = Summary("highway")
    for number in range(EXAMPLES + 2):
        summary.skip("truncated", f"file-{number}")
    summary.skip("foreign", "other")
    summary.differ("two sides", "somewhere")
    text = summary.text()
    assert f"{EXAMPLES + 2} x truncated: file-0, file-1, file-2, ..." in text
    assert text.index("truncated") < text.index("foreign") < text.index("contradictions") < text.index("two sides")
    summary.write(tmp_path / "import.json")
    kept = json.loads((tmp_path / "import.json").read_text(encoding="utf-8"))
    first = {"reason": "truncated", "count": EXAMPLES + 2, "examples": ["file-0", "file-1", "file-2"]}
    assert kept["skipped"][0] == first


# ---- commands --------------------------------------------------------------------------------------------------------


def highway_copy() -> dict[str, bytes]:
    folder = "results/baseline/run1/quiche_lsquic/goodput"
    return {f"{folder}/{number}/{name}": data for number in (1, 2) for name, data in repetition(number).items()} | {
        "results/baseline/run1/result.json": json.dumps(samples.result_json({("quiche", "lsquic"): []})).encode()
    }


def repetition(number: int) -> dict[str, bytes]:
    return samples.repetition("quiche", "lsquic", 20.0 + number)


def test_every_format_of_the_configuration_has_an_importer() -> None:
    assert list(papers.FORMATS) == list(get_args(PublishedFormat))


def test_the_command_prints_the_summary_and_writes_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = samples.write(highway_copy(), tmp_path / "copy")
    assert commands.main(["import", "highway", str(copy), "--out", str(tmp_path / "out")]) == 0
    assert "runs: 2 ok" in capsys.readouterr().out
    assert pl.read_parquet(tmp_path / "out" / "runs.parquet").height == 2
    assert json.loads((tmp_path / "out" / "import.json").read_text(encoding="utf-8"))["tables"]["runs"] == 2


def test_a_reader_that_stops_early_is_no_error_to_print(tmp_path: Path) -> None:
    copy = samples.write(highway_copy(), tmp_path / "copy")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        argv = [sys.executable, "-m", "quicbed", "import", "highway", str(copy), "--out", str(tmp_path / "out")]
        done = subprocess.run(argv, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    assert (tmp_path / "out" / "runs.parquet").is_file()


@pytest.mark.parametrize("name", list(papers.FORMATS))
def test_a_copy_of_something_else_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    samples.write({"holidays.txt": b"x", "notes.json": b"{}"}, tmp_path / "copy")
    assert commands.main(["import", name, str(tmp_path / "copy"), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "nothing of" in error
    assert "among 2 files" in error
    assert "expected" in error
    assert not (tmp_path / "out" / "import.json").exists()


def test_a_missing_copy_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="no such file or folder"):
        reading.read("steps", tmp_path / "nowhere", tmp_path / "out")


def test_a_new_import_leaves_no_table_of_the_old_one(tmp_path: Path) -> None:
    copy = samples.write(highway_copy(), tmp_path / "copy")
    (tmp_path / "out" / "gaps").mkdir(parents=True)
    (tmp_path / "out" / "gaps" / "old.parquet").write_bytes(b"old")
    (tmp_path / "out" / "cpu_shares.parquet").write_bytes(b"old")
    earlier = Summary("highway", tables={"gaps/old": 1, "cpu_shares": 1})
    earlier.write(tmp_path / "out" / "import.json")
    reading.read("highway", copy, tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "counters.parquet",
        "import.json",
        "runs.parquet",
    ]


def test_a_copy_of_something_else_leaves_an_earlier_import(tmp_path: Path) -> None:
    reading.read("highway", samples.write(highway_copy(), tmp_path / "copy"), tmp_path / "out")
    earlier = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    other = samples.write({"holidays.txt": b"x"}, tmp_path / "other")
    with pytest.raises(CopyError, match="nothing of"):
        reading.read("highway", other, tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == earlier
    assert not (tmp_path / "out.partial").exists()


def test_folder_and_archive_give_the_same_bytes_in_any_order_of_files(tmp_path: Path) -> None:
    content = highway_copy()
    folder = samples.write(content, tmp_path / "copy")
    archive = samples.pack_files(reversed(content.items()), tmp_path / "copy.tar.gz")
    for copy, out in ((folder, "a"), (archive, "b")):
        reading.read("highway", copy, tmp_path / out)
    for table in ("runs.parquet", "counters.parquet"):
        assert (tmp_path / "a" / table).read_bytes() == (tmp_path / "b" / table).read_bytes()
