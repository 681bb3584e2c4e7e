"""Notebooks: where they read and write, and running them without a browser."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quicbed.base import durable
from quicbed.base.errors import QuicbedError

if TYPE_CHECKING:  # loaded by the processes that run notebooks
    from quicbed.figures.output import Saved

CELL_TIMEOUT_S = 600
FIRST = "every-experiment"
"""Tag of the cell that the cells of every experiment, which have its name as a tag, come after."""

_MACHINE = {
    r"No space left on device|Disk quota exceeded": "free some of the disk",
    r"MemoryError|Cannot allocate memory": "memory is full; end other programs",
    r"Read-only file system|Permission denied": "write somewhere else, or give yourself the directory",
}
"""What a cell raises where the machine lacks something, and what to do; a trace would say nothing of it."""


class NotebookError(QuicbedError):
    """A notebook that cannot be read or run; one line that names it."""


def run(paths: Sequence[Path], environment: Mapping[str, str], directory: Path, jobs: int = 1) -> None:
    """Run notebooks and write each with its outputs to ``<name>.html`` in *directory*.

    The notebook files themselves are not changed. *environment* is added to that of the *jobs* processes they run in,
    one after the other; one browser draws the pictures of all. The first error is raised when all others have been run.
    """
    from quicbed.figures import browser

    for path in paths:
        _read(path)
    package = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    # glibc would set 64 MiB of addresses aside for each thread of a process, which counts where they are limited
    added = {"MALLOC_ARENA_MAX": "2", **os.environ, **environment, "PYTHONPATH": search}
    # those with most to run first
    ordered = sorted(paths, key=lambda path: (-path.stat().st_size, path))
    problems = []
    with _set(added), browser.shared():
        # not forked: polars has threads
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(ordered)), mp_context=spawning) as pool:
            pages = {path: pool.submit(page, path, directory / f"{path.stem}.html") for path in ordered}
        for path, made in pages.items():
            try:
                made.result()
            except NotebookError as error:
                problems.append(str(error))
            except BrokenProcessPool:
                problems.append(f"{path}: the process that ran it was ended; where memory is full, end other programs")
    if problems:
        raise NotebookError("\n".join(problems))


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _read(path: Path) -> Any:
    import nbformat

    try:
        return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise NotebookError(f"{path}: no such notebook") from None
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise NotebookError(f"{path}: not a notebook: {error}") from None


def page(path: Path, out_html: Path) -> None:
    """Run the notebook at *path* in this process, in its directory, and write it with its outputs to *out_html*."""
    from quicbed.report import cells

    notebook = _read(path)
    try:
        with contextlib.chdir(path.resolve().parent):
            cells.run(notebook, CELL_TIMEOUT_S)
    except cells.CellError as error:
        told = f"{path}: {error}"
        for pattern, remedy in _MACHINE.items():
            if re.search(pattern, told):
                raise NotebookError(f"{told}: {remedy}, then run the same command again") from None
        # of what the user can mend there is no more than this line
        raise NotebookError(told if error.trace == str(error) else f"{told}\n{error.trace}") from None
    out_html.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(out_html, _page(notebook, path))


def without_images(figures: Path) -> str | None:
    """How many figures in a directory lack the pictures asked for, and why the first does; None if none does."""
    reasons = []
    for manifest in sorted(figures.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if reason := json.loads(manifest.read_text(encoding="utf-8"))["skipped"]:
                reasons.append(str(reason).removeprefix("no pictures: "))
    if not reasons:
        return None
    figures_are = "1 figure is" if len(reasons) == 1 else f"{len(reasons)} figures are"
    return f"{figures_are} HTML only, without pictures: {reasons[0]}"


def draw(directory: Path, experiment: str) -> list[Saved]:
    """Run what the notebooks in *directory* draw of an experiment alone; returns the figures that were written.

    In this process, and with this environment: its cells are those tagged with the name of the experiment.
    """
    from quicbed.figures.output import Saved

    drawn: dict[str, Saved] = {}
    for path in sorted(directory.glob("*.ipynb")):
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        tagged = [(cell["metadata"].get("tags", []), "".join(cell["source"])) for cell in cells]
        if not any(experiment in tags for tags, _ in tagged):
            continue
        namespace: dict[str, Any] = {}
        for tags, source in tagged:
            if experiment in tags or FIRST in tags:
                exec(compile(source, str(path), "exec"), namespace)  # noqa: S102 (our own notebook)
                shown = namespace.get("shown")
                shown = getattr(shown, "figure", shown)  # of a section
                if isinstance(shown, Saved):
                    drawn[shown.drawn.name] = shown
    return list(drawn.values())


@functools.cache
def _exporter() -> Any:
    from nbconvert import HTMLExporter

    # without the scripts that nbconvert would have a reader fetch from the network
    return HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="lab",
        mathjax_url="",
        require_js_url="",
        mermaid_js_url="",
        mermaid_layout_elk_js_url="",
        jupyter_widgets_base_url="",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )


def _page(notebook: Any, path: Path) -> str:
    body, _ = _exporter().from_notebook_node(notebook, resources={"metadata": {"name": path.stem}})
    return str(body)
