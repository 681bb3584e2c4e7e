"""What Snakemake's own report (`snakemake --report`) shows: figures and tables, each with caption and labels.

Which figures there are depends on what was measured, so no rule can name them as outputs. The rule that writes the
report has one directory for them, ``report/results/``, which is its own and made anew as a whole::

    <group>/<figure>.svg     or .html, and plotly.min.js beside it, where no Chromium draws
    tables/<table>.csv       the numbers behind figures; .html as a paper prints them
    <group>/<name>.rst       caption of a file of that name, which workflow/report/result.rst takes up
    labels.json              columns of the report's lists, by the name of a file below this directory
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quicbed.base import durable
from quicbed.papers import TITLES

DIRECTORY = "results"
"""Below the directory of the report."""

CATEGORIES = {**TITLES, "beyond": "Beyond the papers", "tables": "Tables"}
"""Heading in the report by group."""

PATTERNS = [f"{{group}}/{{name}}.{suffix}" for suffix in ("svg", "html", "csv", "js")]
"""Files that the report shows."""

SCRIPT = "plotly.min.js"
LABELS = "labels.json"

_VERDICTS = {
    "claims": "Verdicts on every published claim, judged by the runs of this report.",
    "claims-published": "Verdicts on the same claims, judged by published results that were imported.",
}


def write(artifacts: Path, manifests: Iterable[Mapping[str, Any]]) -> Path:
    """Write the directory of results for the figures with these manifests; returns it.

    Figures and tables are those already in *artifacts*.
    """
    final = artifacts / "report" / DIRECTORY
    labels: dict[str, dict[str, str]] = {}
    behind: dict[str, list[Mapping[str, Any]]] = {}
    with durable.filling(final, replace=True) as made:
        for manifest in manifests:
            labels |= _figure(artifacts / "figures", made, manifest)
            behind.setdefault(Path(manifest["table"]).stem, []).append(manifest)
        for name in (*behind, *_VERDICTS):
            labels |= _table(artifacts / "tables", made, name, behind.get(name, []))
        (made / LABELS).write_text(json.dumps(labels, indent=1) + "\n", encoding="utf-8")
    return final


def labels(directory: Path, group: str, name: str) -> dict[str, str]:
    """Columns of the report's list for a result, as `write` has left them in *directory*."""
    known: dict[str, dict[str, str]] = json.loads((directory / LABELS).read_text(encoding="utf-8"))
    return known[f"{group}/{name}"]


def _group(source: str) -> str:
    return next((group for group, title in TITLES.items() if title in source), "beyond")


def _figure(figures: Path, out: Path, manifest: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Copy a figure, with its caption; returns its labels."""
    name, group = manifest["figure"], _group(manifest["source"])
    picture = figures / (f"{name}.svg" if f"{name}.svg" in manifest["files"] else f"{name}.html")
    directory = out / group
    directory.mkdir(exist_ok=True)
    shutil.copyfile(picture, directory / picture.name)
    title = manifest.get("title") or name
    found = {f"{group}/{name}": columns(title, manifest["source"], manifest)}
    if picture.suffix == ".html":
        shutil.copyfile(figures / SCRIPT, directory / SCRIPT)
        stem = SCRIPT.removesuffix(".js")
        found[f"{group}/{stem}"] = {**dict.fromkeys(found[f"{group}/{name}"], ""), "result": "what the pages load"}
        _caption(directory / f"{stem}.rst", "The library that draws the interactive pages beside it.")
    runs = len(manifest["runs"])
    _caption(
        directory / f"{name}.rst",
        f"{title} ({manifest['source']})" if manifest["source"] else title,
        *manifest.get("conditions", ()),
        manifest.get("caption"),
        f"Drawn from {runs} runs of {_measured(manifest)}. Their directories are listed in figures/{name}.json, the "
        f"numbers are in {manifest['table']}."
        if runs
        else f"Drawn from published results; the numbers are in {manifest['table']}.",
    )
    return found


def _table(tables: Path, out: Path, name: str, manifests: list[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Copy a table in the formats that a reader opens, with its caption; returns its labels."""
    files = [file for suffix in (".html", ".csv") if (file := tables / f"{name}{suffix}").is_file()]
    if not files:
        return {}
    directory = out / "tables"
    directory.mkdir(exist_ok=True)
    for file in files:
        shutil.copyfile(file, directory / file.name)
    titles = ", ".join(dict.fromkeys(manifest.get("title") or manifest["figure"] for manifest in manifests))
    text = _VERDICTS.get(name) or f"The numbers behind: {titles}."
    also = "As the paper prints it (HTML) and in full (CSV)." if len(files) > 1 else ""
    from_runs = f"From runs of {_measured(manifests[0])}." if manifests and manifests[0]["runs"] else ""
    _caption(directory / f"{name}.rst", text, also, from_runs)
    source = manifests[0]["source"] if manifests else "all papers"
    return {f"tables/{name}": columns(name, source, manifests[0] if manifests else {})}


def columns(result: str, source: str, manifest: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Columns of the report's lists for a result; with a manifest also of which runs it is."""
    manifest = manifest or {}
    found = {"result": result, "of": source, "experiment": manifest.get("experiment"), "scale": manifest.get("scale")}
    # Snakemake takes braces for wildcards
    return {key: re.sub(r"[{}]", "", str(value or "")) for key, value in found.items()}


def _measured(manifest: Mapping[str, Any]) -> str:
    return (
        f"{manifest['experiment']} (campaign {manifest['campaign']}, testbed {manifest['testbed']}, scale "
        f"{manifest['scale']})"
    )


def _caption(file: Path, first: str, *paragraphs: str | None) -> None:
    """Write a caption in reStructuredText: a line in bold and paragraphs of plain text."""
    texts = [f"**{_escaped(first)}**", *(_escaped(text) for text in paragraphs if text)]
    file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def _escaped(text: str) -> str:
    """Plain text as one paragraph in which nothing is markup."""
    line = re.sub(r"([\\*`_|])", r"\\\1", " ".join(text.split()))
    return line if line[:1].isalpha() else f"\\ {line}"  # no list, no comment
