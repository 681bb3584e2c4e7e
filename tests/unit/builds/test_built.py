"""build.json is written and read by one model, those of earlier versions too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from quicbed.base import untrusted
from quicbed.base.models import RecordError
from quicbed.plan.built import Build
from quicbed.store.paths import archives_below

OLD: dict[str, Any] = {"build": "quinn-stock-1", "library": "quinn", "flavour": "stock", "version": "0.11"}


def test_what_is_written_is_read_back_with_its_format(tmp_path: Path) -> None:
    values = OLD | {"compiler": {"rustc": "1.90"}, "flags": ["-O3"], "seconds": {"client": 1.5, "server": 2}}
    made = Build.made(values | {"crates": [{"name": "a", "version": "1", "checksum": "ab", "patched": False}]})
    made.write(tmp_path / "new" / "build.json")
    assert Build.read(tmp_path / "new" / "build.json") == made
    assert json.loads((tmp_path / "new" / "build.json").read_text())["format"] == Build.FORMAT


def test_every_shipped_build_is_read_and_loses_nothing() -> None:
    """They have no key `format`."""
    count = 0
    for archive in archives_below(ROOT / "raw" / "reference"):
        for name, content in untrusted.packed(archive, lambda path: path.parent.name == "builds"):
            assert isinstance(content, bytes), name
            told = Build.parse(content).model_dump(mode="json", exclude_unset=True)
            assert told == {"format": 1} | json.loads(content), name
            count += 1
    assert count > 100


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format 2, this version reads format 1"),
        ({"format": True}, "format True, this version reads format 1"),
        ({"version": None}, "key 'version': expected str, found None"),
        ({"crates": ["x"]}, "key 'crates.0' is no object"),
        ({"files": {"a": 1}}, "key 'files.a': expected str, found 1"),
        ({"compiler": 1}, "key 'compiler' is no object"),
    ],
)
def test_what_is_no_build_is_one_line(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordError) as refused:
        Build.parse(json.dumps(OLD | change).encode())
    assert str(refused.value) == reason


def test_a_key_that_the_model_does_not_name_is_not_written() -> None:
    with pytest.raises(RecordError, match=r"the model of a build does not name march\.more, surprise"):
        Build.made(OLD | {"surprise": 1, "march": {"level": "native", "more": 1}})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"build": "\\ud800"}'])
def test_what_is_no_json_is_one_line(content: bytes) -> None:
    with pytest.raises(RecordError):
        Build.parse(content)
