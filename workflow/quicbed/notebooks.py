"""Notebooks: where they read and write, and running them without a browser."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicbed import importers
from quicbed.config import Config, read_config

CELL_TIMEOUT_S = 600
RAW_VARIABLE, ARTIFACTS_VARIABLE, PUBLISHED_VARIABLE = "QUICBED_RAW", "QUICBED_ARTIFACTS", "QUICBED_PUBLISHED"


class NotebookError(Exception):
    """A notebook that cannot be read or run; one line that names it."""


@dataclass(frozen=True)
class Place:
    """What a notebook reads and where it writes."""

    root: Path  # of the repository
    raw: Path
    artifacts: Path
    published: Mapping[str, Path]  # directories of tables of published results, by format

    @property
    def tables(self) -> Path:
        return self.artifacts / "tables"

    @property
    def figures(self) -> Path:
        return self.artifacts / "figures"

    @property
    def reference(self) -> bool:
        """Whether the runs are the reference data shipped with the repository."""
        return self.raw.resolve() == (self.root / "raw" / "reference").resolve()


def place(start: Path | None = None, config: Config | None = None) -> Place:
    """Where to read and write: QUICBED_RAW and QUICBED_ARTIFACTS, else what the repository has.

    By default the runs of the testbed in *config* (that of the repository) and ``artifacts``, or as long as nothing has
    been measured on it ``raw/reference`` and ``artifacts/reference``. Published results are those imported into the
    directories in QUICBED_PUBLISHED, none if it is empty, else whatever was imported below ``artifacts/published``.
    *start* is a directory in the repository.
    """
    root = _repository((start or Path.cwd()).resolve())
    config = config or read_config(root / "config" / "config.yaml")
    own = root / config.paths.raw / config.testbed
    measured = next(own.glob("*/*/b*/*/run.json"), None) is not None
    raw = own if measured else root / "raw" / "reference"
    raw = Path(os.environ.get(RAW_VARIABLE) or raw)
    results = default = root / config.paths.artifacts
    if raw.resolve() == (root / "raw" / "reference").resolve():
        default /= "reference"
    artifacts = Path(os.environ.get(ARTIFACTS_VARIABLE) or default)
    told = os.environ.get(PUBLISHED_VARIABLE)
    if told is None:
        published = importers.imported(results / "published")
    else:
        published = {path.name: path for path in map(Path, filter(None, told.split(os.pathsep)))}
    return Place(root, raw, artifacts, published)


def _repository(start: Path) -> Path:
    for directory in (start, *start.parents):
        if (directory / "pyproject.toml").is_file() and (directory / "notebooks").is_dir():
            return directory
    raise NotebookError(f"{start}: not inside a clone of the repository; start from its notebooks/")


def run(path: Path, environment: Mapping[str, str], out_html: Path) -> None:
    """Run the notebook at *path* and write it with its outputs to *out_html*.

    The notebook file itself is not changed. *environment* is added to that of the kernel.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise NotebookError(f"{path}: no such notebook") from None
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise NotebookError(f"{path}: not a notebook: {error}") from None
    package = str(Path(__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.resolve().parent)}},
        record_timing=False,
    )
    try:
        client.execute(env={**os.environ, **environment, "PYTHONPATH": search})
    except CellExecutionError as error:
        trace = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback)  # without the terminal's colours
        raise NotebookError(f"{path}: {error.ename}: {error.evalue}\n{trace}") from None
    except (CellTimeoutError, DeadKernelError) as error:
        raise NotebookError(f"{path}: {error}") from None
    out_html.parent.mkdir(parents=True, exist_ok=True)
    partial = out_html.with_name(f".{out_html.name}.{os.getpid()}")
    partial.write_text(_page(notebook, path), encoding="utf-8")
    partial.replace(out_html)


def _page(notebook: Any, path: Path) -> str:
    from nbconvert import HTMLExporter

    # without the scripts that nbconvert would have a reader fetch from the network
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="lab",
        mathjax_url="",
        require_js_url="",
        mermaid_js_url="",
        mermaid_layout_elk_js_url="",
        jupyter_widgets_base_url="",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": path.stem}})
    return str(body)
