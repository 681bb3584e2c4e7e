"""The captured handshakes that are shipped beside the reference data are those of its archives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quicbed.cli.commands import main
from quicbed.report import look
from quicbed.store import paths

NEEDS_TSHARK = pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")


ARCHIVES = ("native-handshake", "table2-kem", "table3-signature")


@pytest.fixture
def reference(repository: Path) -> Path:
    return repository / "raw" / "reference"


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which there is nothing yet."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def copied(reference: Path, tmp_path: Path, name: str) -> Path:
    """An archive of the reference data with what is shipped beside it, in a directory of their own."""
    target = tmp_path / "raw" / "reference"
    target.mkdir(parents=True)
    shutil.copy(reference / f"{name}{look.PACKETS_SUFFIX}", target)
    (archive,) = reference.glob(f"{name}.tar.*")
    return Path(shutil.copy(archive, target))


def test_every_captured_handshake_of_the_reference_data_is_shipped(reference: Path, no_tools: Path) -> None:
    captured = set()
    for archive in paths.archives_below(reference):
        captured |= set(look._handshakes(archive).values())
    assert len(captured) > 15
    for one in captured:
        assert len(look.handshake(reference, **one._asdict()).rows) > 10


@NEEDS_TSHARK
@pytest.mark.parametrize("name", ARCHIVES)
def test_what_is_shipped_is_what_tshark_finds_in_the_archive(reference: Path, tmp_path: Path, name: str) -> None:
    archive = copied(reference, tmp_path, name)
    shipped = archive.with_name(f"{name}{look.PACKETS_SUFFIX}")
    before = [json.loads(line) for line in shipped.read_text(encoding="utf-8").splitlines()]
    shipped.unlink()
    assert main(["packets", str(archive)]) == 0
    after = [json.loads(line) for line in shipped.read_text(encoding="utf-8").splitlines()]
    assert before[0].pop("tshark")
    assert after[0].pop("tshark")  # another version of it has to find the same
    assert after == before, f"run `quicbed packets raw/reference/{archive.name}`"
