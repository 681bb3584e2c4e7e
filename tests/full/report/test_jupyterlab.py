"""The notebooks in JupyterLab, as `make lab` opens it in a fresh clone: run from its menu, in a real browser."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil
import pytest

from benchmarks import chromium
from benchmarks.chromium import Page
from clone import ROOT, copy_config
from quicbed.figures.output import INTERACTIVE

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
WAIT_S, RUN_S, END_S = 600.0, 1800.0, 60.0
"""For what JupyterLab does itself, for all cells of a notebook, and for a process to end."""

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(chromium.path() is None, reason="no Chromium is installed"),
    pytest.mark.skipif(
        not (ROOT / ".venv/bin/jupyter-lab").exists(), reason="JupyterLab is missing: make lab, or LAYER=full"
    ),
]

READY = "/[|] Idle$/m.test(document.querySelector('#jp-main-statusbar')?.innerText)"
PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map((one) => one.textContent)"
DRAWN = """[...document.querySelectorAll(".jp-Notebook .jp-Cell")].map((cell) => cell.querySelectorAll(
  ".js-plotly-plot .main-svg :is(path, text)").length > 0)"""


@dataclass
class Lab:
    """A server of its own, in a copy of the clone."""

    clone: Path
    address: str
    token: str
    server: psutil.Process

    def notebook(self, name: str) -> dict[str, Any]:
        """As it was saved."""
        found: dict[str, Any] = json.loads((self.clone / "notebooks" / name).read_text(encoding="utf-8"))
        return found

    def end_kernels(self) -> None:
        """As its user ends them; what they have started ends with them."""
        started = [one for kernel in self.server.children() for one in (kernel, *kernel.children(recursive=True))]
        for session in self._ask("GET", ""):
            self._ask("DELETE", f"/{session['id']}")
        _, left = psutil.wait_procs(started, END_S)
        assert left == []

    def _ask(self, method: str, path: str) -> Any:
        request = Request(f"{self.address}api/sessions{path}", method=method)  # noqa: S310 (of the test's own server)
        request.add_header("Authorization", f"token {self.token}")
        with urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310
            return json.loads(answer.read() or b"[]")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    clone = tmp_path_factory.mktemp("lab") / "clone"
    copy_config(clone / "config")
    for name in ("notebooks", "workflow", "raw/reference"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "target", ".*"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, clone)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    home, runtime = clone.with_name("home"), clone.with_name("runtime")
    home.mkdir()
    # neither settings of this user, nor what make tells the programs that it starts
    others = ("JUPYTER", "IPYTHON", "QUICBED", "MAKE", "MFLAGS", "XDG")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    token = secrets.token_hex()
    environment |= {"HOME": str(home), "JUPYTER_TOKEN": token, "JUPYTER_RUNTIME_DIR": str(runtime)}
    recipe = subprocess.run(
        ["make", "--dry-run", "lab"], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    command = recipe.stdout.splitlines()[-1].split()
    assert command[:2] == [".venv/bin/jupyter", "lab"]
    options = ["--no-browser", "--ip=127.0.0.1", "--port=0"]
    log = clone.with_name("log")
    with log.open("wb") as written:
        server = psutil.Popen([*command, *options], cwd=clone, env=environment, stdout=written, stderr=written)
    try:
        told = _until(
            lambda: next(runtime.glob("jpserver-*.json"), None) or not server.is_running(), WAIT_S, "no server"
        )
        assert isinstance(told, Path), log.read_text(encoding="utf-8")
        yield Lab(clone, json.loads(told.read_text(encoding="utf-8"))["url"], token, server)
    finally:
        _end(server)


def _end(server: psutil.Process) -> None:
    """End a process, and then whatever is left of those that it has started."""
    started = server.children(recursive=True)
    server.terminate()
    for signal in (psutil.Process.kill, None):
        _, left = psutil.wait_procs([server, *started], END_S)
        for process in left if signal is not None else ():
            signal(process)


def _until(happened: Callable[[], Any], wait_s: float, otherwise: str) -> Any:
    deadline = time.monotonic() + wait_s
    while not (found := happened()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium.opened() as opened:
        yield opened


def choose(page: Page, menu: str, command: str) -> None:
    """Choose from a menu as a user does, who sees that it is open, which item is chosen, and that it closes."""
    item = f"document.querySelector('.lm-Menu-item[data-command=\"{command}\"]')"
    page.click(f"[...document.querySelectorAll('.lm-MenuBar-item')].find((one) => one.textContent === '{menu}')")
    _until(lambda: page.evaluate(f"{item} !== null"), WAIT_S, f"no {command} in menu {menu}")
    page.point(item)
    _until(lambda: page.evaluate(f"{item}.classList.contains('lm-mod-active')"), WAIT_S, f"{command} is not chosen")
    page.click(item)
    _until(lambda: page.evaluate(f"{item} === null"), WAIT_S, f"menu {menu} does not close")


def run(lab: Lab, page: Page, name: str) -> dict[str, Any]:
    """Open a notebook, run all its cells, and save it."""
    # in a workspace of its own, which has no other notebook open
    page.open(f"{lab.address}lab/workspaces/{secrets.token_hex(4)}/tree/notebooks/{quote(name)}?token={lab.token}")
    _until(lambda: page.evaluate(READY), WAIT_S, "the notebook is not open, or has no kernel")
    choose(page, "Run", "runmenu:run-all")
    _until(lambda: set(page.evaluate(PROMPTS)) != {"[ ]:"}, WAIT_S, "no cell is run")
    _until(lambda: "[*]:" not in page.evaluate(PROMPTS) and page.evaluate(READY), RUN_S, "the cells do not end")
    before = (lab.clone / "notebooks" / name).stat().st_mtime_ns
    choose(page, "File", "docmanager:save")
    _until(lambda: (lab.clone / "notebooks" / name).stat().st_mtime_ns > before, WAIT_S, "it is not saved")
    _until(lambda: page.evaluate("document.querySelector('.jp-mod-dirty') === null"), WAIT_S, "it is not saved")
    return lab.notebook(name)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_and_every_figure_is_drawn(lab: Lab, page: Page, name: str) -> None:
    notebook = run(lab, page, name)
    drawn = page.evaluate(DRAWN)
    assert len(drawn) == len(notebook["cells"])
    figures = 0
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            told = [one for one in cell["outputs"] if one["output_type"] in ("error", "stream")]
            assert told == [], number
            assert cell["execution_count"], number
            interactive = any(INTERACTIVE in one["data"] for one in cell["outputs"])
            assert drawn[number] is interactive, number
            figures += interactive
    assert figures
    assert page.errors == []
    lab.end_kernels()


def test_what_is_missing_is_said_in_one_line(lab: Lab, page: Page) -> None:
    reference = lab.clone / "raw" / "reference"
    reference.rename(lab.clone / "raw" / "away")
    try:
        first, *others = (cell for cell in run(lab, page, NOTEBOOKS[-1])["cells"] if cell["cell_type"] == "code")
    finally:
        (lab.clone / "raw" / "away").rename(reference)
    (told,) = first["outputs"]
    assert told["traceback"] == [f"RunsError: {reference}: no such directory of runs; measure first or name another"]
    assert [one["outputs"] for one in others] == [[]] * len(others)
    lab.end_kernels()
