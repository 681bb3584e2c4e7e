"""Browsers that do not draw: figures go on without them, and nobody waits for them twice."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import plotly.graph_objects as go
import polars as pl
import pytest
from choreographer.browsers import Chromium

from quicbed.figures import browser, output
from quicbed.report import notebooks


def drawn(name: str) -> output.Drawn:
    table = pl.DataFrame({"experiment": ["e"], "campaign": ["c"], "testbed": ["local"], "scale": ["tiny"]})
    figure = go.Figure(go.Scatter(y=[1, 2]), {"width": 300, "height": 200})
    return output.Drawn(name, figure, table, ["raw/local/e/c/b0001/x"], "nowhere")


def ends(process: str) -> bool:
    """Whether a process is gone within ten seconds.

    Between it and this one is kaleido's wrapper, which is killed with it; whoever reaps orphans does so when it can.
    """
    for _ in range(100):
        if not Path(f"/proc/{process}").exists():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 1", "fails: "),
        ("kill -SEGV $$", "fails: "),
        ("echo '{}' >&4; exit 0", "fails: "),
        ("exec sleep 600", "does not answer; "),
        ("trap '' TERM; while :; do :; done", "does not answer; "),
    ],
)
def test_a_browser_that_fails_is_started_once_and_costs_the_images_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    fake = tmp_path / "chromium"
    fake.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/starts\n{script}\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(fake))
    # one that ends is waited for, however busy the machine is
    monkeypatch.setattr(browser, "START_TIMEOUT_S", 3.0 if says == "does not answer; " else 60.0)
    out = tmp_path / "figures"
    (first,) = output.save(drawn("first"), out)
    second, third = output.save([drawn("second"), drawn("third")], out)
    assert first.skipped is not None
    assert first.skipped.startswith(f"{fake} {says}")
    assert "\n" not in first.skipped
    assert "BROWSER_PATH" in first.skipped
    assert first.skipped == second.skipped == third.skipped
    names = {path.name for path in out.iterdir()}
    assert names == {f"{name}.{kind}" for name in ("first", "second", "third") for kind in ("html", "json")} | {
        "plotly.min.js"
    }
    (started,) = (tmp_path / "starts").read_text().split()
    assert ends(started)
    told = notebooks.without_images(out)
    assert told == f"3 figures are HTML only, without pictures: {first.skipped}"
    assert json.loads((out / "first.json").read_text(encoding="utf-8"))["skipped"].endswith(first.skipped)


def test_a_browser_that_is_only_being_started_when_time_is_over_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\nwhile :; do sleep 0.1; done\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(fake))
    monkeypatch.setattr(browser, "START_TIMEOUT_S", 0.5)
    before = Chromium.pre_open
    monkeypatch.setattr(Chromium, "pre_open", lambda itself: (time.sleep(1.5), before(itself)))
    (saved,) = output.save(drawn("first"), tmp_path / "figures")
    assert saved.skipped is not None
    assert saved.skipped.startswith(f"{fake} does not answer; ")
    time.sleep(2)  # one that nobody waits for starts later
    running = subprocess.run(["pgrep", "--full", str(fake)], capture_output=True, text=True)
    assert running.stdout == ""


def test_an_empty_file_is_no_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "chromium"
    fake.touch()
    fake.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(fake))
    (saved,) = output.save(drawn("first"), tmp_path / "figures")
    assert saved.skipped is not None
    assert saved.skipped.startswith(f"{fake} fails: ")


def test_a_path_without_a_browser_is_none_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    (saved,) = output.save(drawn("first"), tmp_path / "figures")
    assert saved.skipped == browser.NOT_FOUND
