"""Every record in the archives of the reference data is read, and loses nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import PurePosixPath

import pytest

from clone import ROOT
from quicbed.base import untrusted
from quicbed.base.models import Record
from quicbed.plan.built import Build
from quicbed.store.campaign import BLOCK_FILE, CAMPAIGN_FILE, Block, Campaign, Session
from quicbed.store.paths import archives_below


def model_of(path: PurePosixPath) -> type[Record] | None:
    """The model of a file in an archive of runs."""
    of_directory = {"sessions": Session, "builds": Build}.get(path.parent.name)
    return of_directory or {CAMPAIGN_FILE: Campaign, BLOCK_FILE: Block}.get(path.name)


@pytest.mark.timeout(1800)
def test_every_shipped_record_is_read_and_loses_nothing() -> None:
    """Sessions, blocks and builds have no key `format`, and campaigns of before know less of their machine."""
    found: Counter[type[Record]] = Counter()
    for archive in archives_below(ROOT / "raw" / "reference"):
        for name, content in untrusted.packed(archive, lambda path: model_of(path) is not None):
            model = model_of(PurePosixPath(name))
            assert model is not None
            assert isinstance(content, bytes), name
            told = model.parse(content).model_dump(mode="json", exclude_unset=True)
            assert told == {"format": model.FORMAT} | json.loads(content), name
            found[model] += 1
    assert found.keys() == {Campaign, Session, Block, Build}
    assert found[Build] > 100
