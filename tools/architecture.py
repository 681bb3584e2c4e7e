"""Draw the imports between packages into docs/architecture.md.

python tools/architecture.py           write the drawing and the table
python tools/architecture.py --check   say whether they are current; exit code 1 where they are not
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by tools/architecture.py -->\n", "<!-- end of the drawing -->\n"
PARTS: Mapping[str, Sequence[str]] = {
    "foundation": ("base", "config", "contract", "plan", "wire", "store"),
    "measuring": ("testbed", "builds", "measure"),
    "reading": ("importers", "analysis", "figures", "claims", "papers", "report"),
    "command line": ("cli",),
}
"""Packages in the order in which they may import those before them."""
PURPOSES: Mapping[str, str] = {
    "base": "helpers that know nothing of QUIC: hashes, statistics, tar archives, the revision",
    "config": "the files below `config/` as typed models, and the table of algorithms",
    "contract": "the interface of endpoints: options, events, and the content they transfer",
    "plan": "from configuration to cells: measurements, their builds, time and disk",
    "wire": "contents of captures: packets, handshakes, and evidence for a variant",
    "store": "runs as files below `raw/`: paths, contents, tables",
    "testbed": "hosts and the link between them: namespaces of this machine, or machines over SSH",
    "builds": "sources, builds of every flavour, bills of materials; `recipes` has one module per build system",
    "measure": "campaigns: preparing the link, running a pair of programs, judging, proving and storing",
    "importers": "published data sets, read into tables like our own",
    "analysis": "results from tables: which runs count, comparisons of cells, components of times",
    "figures": "figures and tables",
    "claims": "claims of papers, and verdicts",
    "papers": "the registry of papers, and their rooms: importer, analysis, figures, claims and notebook",
    "report": "the report, notebooks, and exports",
    "cli": "the command line: one command per step",
}


def imports() -> dict[str, set[str]]:
    """The packages that each package imports, function-level imports included."""
    graph = grimp.build_graph("quicbed", cache_dir=None)
    known = {package for packages in PARTS.values() for package in packages}
    found: dict[str, set[str]] = {package: set() for package in known}
    for module in graph.modules:
        importer = module.split(".")[1:2]
        for target in graph.find_modules_directly_imported_by(module):
            imported = target.split(".")[1:2]
            if importer and imported and importer != imported and importer[0] in known:
                found[importer[0]].add(imported[0])
    return found


def direct(found: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Without the imports of what a package reaches through another that it imports as well."""

    def behind(package: str) -> set[str]:
        return {one for target in found[package] for one in {target, *behind(target)}}

    return {
        package: {one for one in targets if not any(one in behind(other) for other in targets - {one})}
        for package, targets in found.items()
    }


def drawing(found: Mapping[str, set[str]]) -> str:
    """The drawing, in Mermaid's language, and the table of all packages."""
    arrows = direct(found)
    lines = ["```mermaid", "graph BT"]
    for part, packages in PARTS.items():
        lines += [
            f'    subgraph {part.split()[0]}["{part}"]',
            *(f"        {package}" for package in packages),
            "    end",
        ]
    for packages in PARTS.values():
        lines += [f"    {package} --> {target}" for package in packages for target in sorted(arrows[package])]
    lines += ["```", "", "| package | purpose | imports |", "| --- | --- | --- |"]
    order = [package for packages in PARTS.values() for package in packages]
    for package in order:
        names = ", ".join(one for one in order if one in found[package])
        lines.append(f"| `{package}` | {PURPOSES[package]} | {names or 'nothing'} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it; returns the exit code."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    drawn = f"{before}{BEGIN}\n{drawing(imports())}\n{END}{after}"
    if "--check" not in arguments:
        PAGE.write_text(drawn, encoding="utf-8")
    elif drawn != text:
        print("docs/architecture.md: is not current; run `.venv/bin/python tools/architecture.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
