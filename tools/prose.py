"""Prose of the documents: words, idioms and sentences that stop a reader (tools/prose.toml). `make check` runs this.

python tools/prose.py            every page
python tools/prose.py FILE ...   these
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RULES = Path(__file__).with_suffix(".toml")
PAGES = ("*.md", "docs/**/*.md", "config/*.md", "workflow/endpoints/*.md")
# What is no prose: code, tables, comments, headings, addresses of links.
NO_PROSE = (
    r"(?ms)^ *```.*?^ *```$",
    r"(?ms)<!--.*?-->",
    r"(?m)^ {4,}\S.*$",
    r"(?m)^ *[|#<].*$",
    r"(?<=\])\([^)\s]*\)",
)
BLOCK = re.compile(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )")
SENTENCE = re.compile(r"(?<=[.!?;:])\s+(?=[\[*\w`(])")


def main(names: Sequence[str]) -> int:
    """Print what is found, a line each; 1 where there is something."""
    rules = tomllib.loads(RULES.read_text(encoding="utf-8"))
    files = [Path(name).resolve() for name in names] or pages(rules)
    found = [
        f"{file.relative_to(ROOT)}:{line}: {words}"
        for file in files
        for line, words in problems(file.read_text(encoding="utf-8"), rules)
    ]
    print("\n".join(found))
    return 1 if found else 0


def pages(rules: dict[str, Any]) -> list[Path]:
    """Every page that people write."""
    found = {file for pattern in PAGES for file in ROOT.glob(pattern)}
    return sorted(found - {ROOT / name for name in rules["skip"]})


def problems(text: str, rules: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Line and words of each problem of a page."""
    for pattern in NO_PROSE:
        # lines keep their numbers
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text)
    for begin, block in blocks(text):
        line = text.count("\n", 0, begin) + 1
        prose = re.sub(r"`[^`]*`", "`code`", block)
        for rule in rules["rules"]:
            for found in re.finditer(rule["find"], prose, re.IGNORECASE):
                yield line + prose.count("\n", 0, found.start()), f"`{' '.join(found[0].split())}`: {rule['say']}"
        for sentence in SENTENCE.split(prose):
            if (count := len(sentence.split())) > rules["words"]:
                opening = " ".join(sentence.split()[:6])
                yield line, f"{count} words in a sentence, at most {rules['words']}: {opening} ..."


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of lists, with where they begin."""
    begin = 0
    for end in [*BLOCK.finditer(text), None]:
        block = text[begin : end.start() if end else len(text)]
        if block.strip():
            yield begin + len(block) - len(block.lstrip()), block.strip()
        begin = end.end() if end else begin


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
