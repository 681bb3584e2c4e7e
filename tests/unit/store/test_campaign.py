"""The records of campaigns are written and read by one model each, those that are shipped too."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicbed.base.models import RecordError
from quicbed.store.campaign import BLOCK_FILE, Block


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    values = {"block": 3, "cells": ["a", "b"], "seed": 1, "created_at": "2030-01-02T03:04:05.000000Z"}
    block = Block.made(values)
    block.write(tmp_path / "b0003" / BLOCK_FILE)
    assert Block.read(tmp_path / "b0003" / BLOCK_FILE) == block
    with pytest.raises(RecordError, match=r"^the model of a block does not name more$"):
        Block.made(values | {"more": 1})
