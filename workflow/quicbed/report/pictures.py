"""Figures as the report shows them: what their manifests say of them, and where their files are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from quicbed.base import untrusted
from quicbed.figures import output

HEAD_BYTES = 1000
"""Of an SVG, which begin with its size."""


def _manifest(file: Path) -> dict[str, Any] | None:
    """What `quicbed.figures.output` left beside a figure; None for something else."""
    texts = dict.fromkeys(["figure", "source", "experiment", "campaign", "testbed", "scale", "table"], str)
    wanted = {**texts, "files": dict, "runs": list}
    try:
        manifest = untrusted.parse(untrusted.read(file))
    except untrusted.UntrustedError:
        return None
    is_whole = isinstance(manifest, dict) and all(isinstance(manifest.get(key), kind) for key, kind in wanted.items())
    return manifest if is_whole and manifest["figure"] == file.stem else None


def _size(svg: Path) -> dict[str, int]:
    """Width and height in pixels, as a page has to know them before it has loaded the figure."""
    head = svg.read_bytes()[:HEAD_BYTES].decode(errors="replace")
    found = {key: re.search(rf'\b{key}="(\d+)"', head) for key in ("width", "height")}
    return {key: int(match[1]) for key, match in found.items() if match}


def _shown(manifest: dict[str, Any], directory: Path) -> dict[str, Any]:
    name = manifest["figure"]
    svg = directory / f"{name}.svg"
    has_svg = svg.name in manifest["files"] and svg.is_file()
    return {
        **manifest,
        "title": manifest.get("title") or name,
        "caption": manifest.get("caption") or "",
        "conditions": manifest.get("conditions") or [],
        "page": f"../figures/{name}.html",
        "svg": f"../figures/{svg.name}" if has_svg else None,
        "bytes": svg.stat().st_size if has_svg else 0,
        "size": _size(svg) if has_svg else {},
        "links": [(_version(Path(file)), f"../figures/{file}") for file in sorted(manifest["files"])],
        "manifest": f"../figures/{name}.json",
        "count": len(manifest["runs"]),
        # one of every library, which a page folds
        "flame": name.startswith("flame-"),
    }


def _version(file: Path) -> str:
    """What a file of a figure is called in a link."""
    column = " (one column)" if file.stem.endswith(output.COLUMN) else ""
    return f"{file.suffix[1:].upper()}{column}"


def found(artifacts: Path, table: pl.DataFrame) -> list[dict[str, Any]]:
    """Figures in *artifacts* that were drawn from the runs of *table*, or from published ones alone; by source."""
    known = set(table["campaign"].drop_nulls())
    manifests = filter(None, map(_manifest, sorted((artifacts / "figures").glob("*.json"))))
    ours = [
        _shown(one, artifacts / "figures")
        for one in manifests
        if one["scale"] == "published" or not known.isdisjoint(one["campaign"].split(", "))
    ]
    return sorted(ours, key=lambda one: in_order(one["source"]))


def in_order(source: str) -> str:
    """A key by which Fig. 10 comes after Fig. 3."""
    return re.sub(r"\d+", lambda match: match[0].zfill(4), source)


def of_experiment(figures: Sequence[Mapping[str, Any]], experiment: str) -> list[Mapping[str, Any]]:
    """The figures of an experiment."""
    return [one for one in figures if one["experiment"] == experiment]
