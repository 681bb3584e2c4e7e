"""What becomes of a figure: files in every format this machine can make, with a manifest of the runs behind it."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import plotly.graph_objects as go
import polars as pl

from quicbed.analysis import comparison
from quicbed.analysis.place import Place
from quicbed.base import durable
from quicbed.base.revision import revision
from quicbed.config.model import PICTURES, PICTURES_VARIABLE
from quicbed.figures import browser, font

INTERACTIVE = "application/vnd.plotly.v1+json"
"""Type of figures that JupyterLab draws itself."""
COLUMN = "-column"
"""Behind the name of a figure: its version for a column."""


@dataclass(frozen=True)
class Drawn:
    """A figure with the table behind it and the runs behind the table."""

    name: str
    figure: go.Figure
    table: pl.DataFrame
    origins: list[str]
    source: str
    table_name: str | None = None
    """Of the file with the table; null: that of the experiment."""
    column: go.Figure | None = None
    """A version that fits one column of a page, for papers: only pictures are made of it."""

    def __post_init__(self) -> None:
        self.__dict__["name"] = file_name(self.name)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {INTERACTIVE: self.figure.to_plotly_json()}


def file_name(name: str) -> str:
    """A name that may hold what a run says of itself, as that of a file: without directories, of at most 200 bytes."""
    return re.sub(r"[/\x00-\x1f]", "-", name).encode(errors="replace")[:200].decode(errors="ignore")


@dataclass(frozen=True)
class Saved:
    """A figure that was written to files; shows itself in a notebook."""

    drawn: Drawn
    files: list[Path]
    skipped: str | None = field(default=None)

    def _repr_mimebundle_(self, *, exclude: Collection[str] | None = None, **_: Any) -> dict[str, Any]:
        """Interactive where JupyterLab can, else the SVG, else the page with plotly.js in it.

        The page not beside what JupyterLab draws: plotly.js would make a notebook 5 MB larger with every figure.
        """
        bundle: dict[str, Any] = {"text/plain": self.drawn.name}
        if INTERACTIVE not in (exclude or ()):
            bundle[INTERACTIVE] = json.loads(self.drawn.figure.to_json())
        svg = next((path for path in self.files if path.suffix == ".svg"), None)
        if svg:
            bundle["image/svg+xml"] = svg.read_text(encoding="utf-8")
        elif INTERACTIVE not in bundle:
            bundle["text/html"] = font.script() + self.drawn.figure.to_html(
                full_html=False, include_plotlyjs=True, div_id=self.drawn.name
            )
        return bundle


@dataclass(frozen=True)
class NotMeasured:
    """Shown in a notebook in place of a figure."""

    experiment: str
    needs: str = ""
    """What it takes besides this machine, if anything."""
    what: str = "runs"
    """What there is none of."""

    def _repr_html_(self) -> str:
        command = html.escape(f'make all CONFIG="experiments=[{self.experiment}]"')
        return (
            f"<p><strong>Not measured:</strong> there are no {html.escape(self.what)} of {self.experiment} here. "
            f"As root, <code>{command}</code> measures it{html.escape(self.needs)}.</p>"
        )


def pictures() -> list[str]:
    """Formats of static pictures that are asked for: SVG, if nothing is said."""
    return [kind for kind in os.environ.get(PICTURES_VARIABLE, PICTURES[0]).split(",") if kind in PICTURES]


def save(drawn: Drawn | Sequence[Drawn], directory: Path, *, root: Path | None = None) -> list[Saved]:
    """Write figures to *directory*: HTML always, and the `pictures` that are asked for where a Chromium is found.

    ``plotly.min.js`` is written once beside the pages. All pictures of a process are made in
    one browser session. A manifest ``<name>.json`` names the runs behind the figure and the state of the
    repository at *root*. The same runs give the same bytes.
    """
    wanted = [drawn] if isinstance(drawn, Drawn) else list(drawn)
    directory.mkdir(parents=True, exist_ok=True)
    skipped = _write_static(wanted, directory)
    return [_write_pages(one, directory, skipped, root) for one in wanted]


def save_all(drawn: Sequence[Drawn], prefix: str, here: Place) -> dict[str, Saved]:
    """Write figures and their tables, by name; what an earlier call wrote with names that begin alike is removed."""
    for file in (*here.figures.glob(f"{prefix}*"), *here.tables.glob(f"{prefix}*")):
        file.unlink()
    for one in drawn:
        comparison.write_figure_table(one.table, one.name, here.tables)
    saved = save(drawn, here.figures, root=here.root) if drawn else []
    return {one.drawn.name: one for one in saved}


def _write_pages(drawn: Drawn, directory: Path, skipped: str | None, root: Path | None) -> Saved:
    page = directory / f"{drawn.name}.html"
    drawn.figure.write_html(
        page,
        include_plotlyjs="directory",
        div_id=drawn.name,
        config={"displaylogo": False, "responsive": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]},
    )
    page.write_text(page.read_text(encoding="utf-8").replace("<head>", f"<head>{font.script()}", 1), encoding="utf-8")
    files = [page]
    if skipped is None:
        files += [directory / f"{name}.{kind}" for name, _ in _versions(drawn) for kind in pictures()]
    first = drawn.table.row(0, named=True)
    manifest = {
        "figure": drawn.name,
        **(drawn.figure.layout.meta or {}),
        "source": drawn.source,
        "experiment": first["experiment"],
        "campaign": _of_all(drawn.table, "campaign"),
        "testbed": _of_all(drawn.table, "testbed"),
        "scale": first["scale"],
        "table": f"tables/{drawn.table_name or first['experiment']}.parquet",
        "code": revision(root) if root else None,
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "skipped": f"no pictures: {skipped}" if skipped else None,
        "runs": drawn.origins,
    }
    path = directory / f"{drawn.name}.json"
    durable.write_json(path, manifest)
    return Saved(drawn, [*files, path], skipped)


def _versions(drawn: Drawn) -> list[tuple[str, go.Figure]]:
    """A figure, and its version for a column, with the names of their files."""
    column = [(f"{drawn.name}{COLUMN}", drawn.column)] if drawn.column is not None else []
    return [(drawn.name, drawn.figure), *column]


def _of_all(table: pl.DataFrame, column: str) -> str:
    """What a column says of the first row, and of all others that were measured here where testbeds are compared."""
    first = table.head(1)
    if first["scale"][0] == "published":
        return str(first[column][0])
    same = table.join(first, on="experiment", how="semi", nulls_equal=True)
    return ", ".join(same[column].drop_nulls().unique(maintain_order=True))


def _write_static(drawn: list[Drawn], directory: Path) -> str | None:
    """Render `pictures`; returns why not, if not."""
    specifications = [
        {
            "fig": figure.to_dict(),
            "path": str(directory / f"{name}.{kind}"),
            "opts": {
                "format": kind,
                "width": figure.layout.width,
                "height": figure.layout.height,
                "scale": 2 if kind == "png" else 1,
            },
        }
        for one in drawn
        for name, figure in _versions(one)
        for kind in pictures()
    ]
    for one in drawn:  # never leave images of another figure behind
        for kind in PICTURES:
            for end in ("", COLUMN):
                (directory / f"{one.name}{end}.{kind}").unlink(missing_ok=True)

    skipped = browser.render(specifications) if specifications else None
    if skipped is not None:
        for specification in specifications:  # those that were drawn before one failed
            Path(str(specification["path"])).unlink(missing_ok=True)
        return skipped
    for specification in specifications:
        _normalise(Path(str(specification["path"])))
    return None


def _normalise(path: Path) -> None:
    """Take out what differs between two renderings of one figure: dates, random ids and the order of attributes."""
    content = path.read_bytes()
    if path.suffix == ".pdf":
        content = re.sub(rb"(/(?:Creation|Mod)Date) \(D:\d{14}", rb"\1 (D:20000101000000", content)
    elif path.suffix == ".svg":
        identity = re.search(rb'id="defs-([0-9a-f]{6})"', content)
        if identity:
            content = content.replace(identity.group(1), b"quicbd")
        content = ElementTree.canonicalize(content.decode()).encode()
    path.write_bytes(content)
