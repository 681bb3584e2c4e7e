"""build.json is written and read by one model, those of earlier versions too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from quicbed.base.models import RecordError
from quicbed.plan.built import Build

OLD: dict[str, Any] = {"build": "quinn-stock-1", "library": "quinn", "flavour": "stock", "version": "0.11"}


def test_what_is_written_is_read_back_with_its_format(tmp_path: Path) -> None:
    values = OLD | {"compiler": {"rustc": "1.90"}, "flags": ["-O3"], "seconds": {"client": 1.5, "server": 2}}
    made = Build.made(values | {"crates": [{"name": "a", "version": "1", "checksum": "ab", "patched": False}]})
    made.write(tmp_path / "new" / "build.json")
    assert Build.read(tmp_path / "new" / "build.json") == made
    assert json.loads((tmp_path / "new" / "build.json").read_text())["format"] == Build.FORMAT


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": True},
        {"version": None},
        {"crates": ["x"]},
        {"files": {"a": 1}},
        {"compiler": 1},
    ],
    ids=wording.name,
)
def test_what_is_no_build_is_one_line(change: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(RecordError) as refused:
        Build.parse(json.dumps(OLD | change).encode())
    assert wording.one_line(refused.value) == snapshot


def test_a_key_that_the_model_does_not_name_is_not_written() -> None:
    with pytest.raises(RecordError, match=r"the model of a build does not name march\.more, surprise"):
        Build.made(OLD | {"surprise": 1, "march": {"level": "native", "more": 1}})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"build": "\\ud800"}'])
def test_what_is_no_json_is_one_line(content: bytes) -> None:
    with pytest.raises(RecordError):
        Build.parse(content)
