"""A Chromium draws all figures of a process, always alike, and ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import plotly.graph_objects as go
import polars as pl
import pytest
from choreographer.browsers import Chromium

from quicbed.config.model import PICTURES, PICTURES_VARIABLE
from quicbed.figures import browser, output
from quicbed.report import notebooks

HAS_CHROMIUM = Chromium.find_browser(skip_local=False) is not None


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


@pytest.mark.skipif(not HAS_CHROMIUM, reason="no Chromium is installed")
def test_one_browser_draws_all_figures_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Chromium.find_browser(skip_local=False)
    counting = tmp_path / "chromium"
    counting.write_text(f'#!/bin/sh\necho $$ >> {tmp_path}/starts\nexec "{real}" "$@"\n', encoding="utf-8")
    counting.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(counting))
    for name in ("first", "second"):
        (saved,) = output.save(drawn(name), tmp_path / "figures")
        assert saved.skipped is None
    (started,) = (tmp_path / "starts").read_text().split()
    os.kill(int(started), 0)  # it waits for more
    browser.close()
    assert ends(started)
    assert notebooks.without_images(tmp_path / "figures") is None


DRAWN_BY_ANOTHER = """
import multiprocessing
import plotly.graph_objects as go
from quicbed.figures import browser
figure = {"fig": go.Figure(go.Scatter(y=[1, 2])), "opts": {"format": "svg"}}
def draw(name):
    return browser.render([figure | {"path": name}])
if __name__ == "__main__":
    with browser.shared():
        for name in ("first.svg", "second.svg"):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(draw, [name]))
"""


@pytest.mark.skipif(not HAS_CHROMIUM, reason="no Chromium is installed")
def test_one_browser_draws_for_all_processes_and_ends(tmp_path: Path) -> None:
    counting = tmp_path / "chromium"
    real = Chromium.find_browser(skip_local=False)
    counting.write_text(f'#!/bin/sh\necho $$ >> {tmp_path}/starts\nexec "{real}" "$@"\n', encoding="utf-8")
    counting.chmod(0o755)
    (tmp_path / "draws.py").write_text(DRAWN_BY_ANOTHER, encoding="utf-8")
    environment = {**os.environ, "BROWSER_PATH": str(counting)}
    argv = [sys.executable, "draws.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "None\nNone\n"), done.stderr
    assert all((tmp_path / f"{name}.svg").stat().st_size > 500 for name in ("first", "second"))
    (started,) = (tmp_path / "starts").read_text().split()
    assert ends(started)


@pytest.mark.skipif(not HAS_CHROMIUM, reason="no Chromium is installed")
def test_images_do_not_depend_on_what_was_drawn_before(tmp_path: Path) -> None:
    figures = [drawn("first"), drawn("second")]
    figures[0].figure.update_layout(showlegend=True)
    figures[1].figure.add_scatter(y=[3, 1]).update_layout(width=700, legend={"orientation": "h"})
    for one in figures:
        for number, trace in enumerate(one.figure.data):
            trace.uid = str(number)  # else it is a random one
    output.save(figures, tmp_path / "ahead")
    output.save(figures[::-1], tmp_path / "back")
    for file in (tmp_path / "ahead").iterdir():
        assert file.read_bytes() == (tmp_path / "back" / file.name).read_bytes(), file.name


DRAWN_AT_EXIT = """
import plotly.graph_objects as go
from quicbed.figures import browser
figure = {"fig": go.Figure(go.Scatter(y=[1, 2])), "path": "figure.svg", "opts": {"format": "svg"}}
assert browser.render([figure]) is None
"""


@pytest.mark.skipif(not HAS_CHROMIUM, reason="no Chromium is installed")
def test_a_browser_ends_before_its_directory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    telling = tmp_path / "chromium"
    telling.write_text(
        f"""#!/bin/sh
"{Chromium.find_browser(skip_local=False)}" "$@"
for option; do
    case $option in --user-data-dir=*) test -d "${{option#*=}}" && echo there > {tmp_path}/profile ;; esac
done
""",
        encoding="utf-8",
    )
    telling.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(telling))
    done = subprocess.run(
        [sys.executable, "-c", DRAWN_AT_EXIT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert (tmp_path / "profile").read_text() == "there\n"


@pytest.mark.skipif(not HAS_CHROMIUM, reason="no Chromium is installed")
def test_a_figure_that_cannot_be_drawn_does_not_stop_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PICTURES_VARIABLE, ",".join(PICTURES))
    wrong = drawn("wrong")
    wrong.figure.update_layout(width=10**7)
    (saved,) = output.save(wrong, tmp_path / "figures")
    assert saved.skipped is not None
    assert saved.skipped.startswith("Chromium could not render: ")
    assert {path.suffix for path in saved.files} == {".html", ".json"}
    (good,) = output.save(drawn("good"), tmp_path / "figures")
    assert good.skipped is None
