"""The records of campaigns are written and read by one model each, those that are shipped too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clone import ROOT
from quicbed.base import untrusted
from quicbed.base.models import Record, RecordError
from quicbed.store.campaign import BLOCK_FILE, CAMPAIGN_FILE, Block, Campaign, Session
from quicbed.store.paths import archives_below


def model_of(path: str) -> type[Record] | None:
    """The model of a file in an archive of runs."""
    *_, directory, name = path.split("/") if "/" in path else ("", path)
    return Session if directory == "sessions" else {CAMPAIGN_FILE: Campaign, BLOCK_FILE: Block}.get(name)


def test_every_shipped_record_is_read_and_loses_nothing() -> None:
    """Sessions and blocks have no key `format`, and campaigns of before know less of their machine."""
    found: set[type[Record]] = set()
    for archive in archives_below(ROOT / "raw" / "reference"):
        for name, content in untrusted.packed(archive, lambda path: model_of(str(path)) is not None):
            model = model_of(name)
            assert model is not None
            assert isinstance(content, bytes), name
            told = model.parse(content).model_dump(mode="json", exclude_unset=True)
            assert told == {"format": model.FORMAT} | json.loads(content), name
            found.add(model)
    assert found == {Campaign, Session, Block}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    values = {"block": 3, "cells": ["a", "b"], "seed": 1, "created_at": "2030-01-02T03:04:05.000000Z"}
    block = Block.made(values)
    block.write(tmp_path / "b0003" / BLOCK_FILE)
    assert Block.read(tmp_path / "b0003" / BLOCK_FILE) == block
    with pytest.raises(RecordError, match=r"^the model of a block does not name more$"):
        Block.made(values | {"more": 1})
