"""Two renderings of a figure are the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from choreographer.browsers.chromium import Chromium

import fakeruns
from quicbed.config.model import PICTURES, PICTURES_VARIABLE
from quicbed.figures import goodput, output
from quicbed.store import runs

TITLES = {"tcp-tls": "TCP+TLS"}


HAS_CHROMIUM = Chromium.find_browser(skip_local=False) is not None


def drawn(tmp_path: Path, experiment: str = "aead-goodput", **options: Any) -> output.Drawn:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, experiment, **options)
    campaign, table = goodput.experiment_table(runs.table(raw), experiment)
    if experiment == "aead-goodput":
        return goodput.goodput_by_aead(campaign, table, TITLES)
    return goodput.header_protection(campaign, goodput.within_builds(campaign, table), TITLES)


@pytest.mark.skipif(not HAS_CHROMIUM, reason="no Chromium is installed")
def test_two_renderings_are_the_same_bytes_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PICTURES_VARIABLE, ",".join(PICTURES))
    contents = []
    for folder in ("a", "b"):
        one = drawn(tmp_path / folder, blocks=3)
        two = drawn(tmp_path / folder, "header-protection", blocks=3)
        saved = output.save([one, two], tmp_path / folder / "figures")
        assert [s.skipped for s in saved] == [None, None]
        contents.append({path.name: path.read_bytes() for s in saved for path in s.files})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 10
    assert contents[0]["goodput-by-aead.pdf"].startswith(b"%PDF-")
    assert contents[0]["goodput-by-aead.png"].startswith(b"\x89PNG")
    svg = contents[0]["header-protection.svg"].decode()
    assert "with header protection" in svg
    assert "unsupported" in svg
