"""What a rule of the workflow is made from: the modules behind its command, and the data that these read.

A module's text tells which others of the package it imports; what it reads besides, it declares as ``READS``, patterns
of files relative to the repository. Nothing is imported to find this out, which takes a few milliseconds.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path

COMMANDS = "quicbed.cli.commands"
_IMPORT = re.compile(r"^ *from +(\.*[\w.]*) +import +(\([^)]*\)|.*)$|^ *import +(quicbed[\w.]*)", re.MULTILINE)
_READS = re.compile(r"^READS = (\([^)]*\))", re.MULTILINE)


def of_command(root: Path, name: str) -> list[str]:
    """Files behind a command of `quicbed`: what its function in `quicbed.cli.commands` imports."""
    text = _text(root, COMMANDS)
    begin = text.index(f"\ndef _{name}(")
    body = text[begin : text.find("\n\n\n", begin)]
    return of_modules(root, imported_modules(root, COMMANDS, body))


def of_notebook(root: Path, notebook: Path) -> list[str]:
    """Files behind the cells of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return of_modules(root, imported_modules(root, "quicbed", code))


def of_modules(root: Path, names: Iterable[str]) -> list[str]:
    """Files of modules, of all they import, directly or not, and what all these read; sorted."""
    known: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in known:
            known.add(name)
            waiting += imports(root, name)
    files = {str(file) for name in known for file in (_file(root, name), *_read_by(root, name)) if file is not None}
    return sorted(files)


@functools.cache
def imports(root: Path, name: str) -> frozenset[str]:
    """Modules of the package that a module imports, those inside functions and the packages it stands in included."""
    found = imported_modules(root, name, _text(root, name))
    return frozenset({*found, *([name.rpartition(".")[0]] if "." in name else [])} - {name})


def imported_modules(root: Path, name: str, text: str) -> set[str]:
    """Modules of the package that the text of module *name* imports."""
    found = set()
    for source, what, whole in _IMPORT.findall(text):
        if whole:
            found.add(whole)
            continue
        base = _absolute(root, name, source) if source.startswith(".") else source
        if base.split(".")[0] != "quicbed":
            continue
        for one in re.findall(r"(\w+|\*)(?: as \w+)?", re.sub(r"#.*", "", what)):
            # a module of the package, or a name in one, or all of them
            found.add(f"{base}.{one}" if _file(root, f"{base}.{one}") else base)
    return found


def _absolute(root: Path, name: str, source: str) -> str:
    parts = name.split(".")
    levels = len(source) - len(source.lstrip("."))
    file = _file(root, name)
    up = levels - (file is not None and file.name == "__init__.py")
    return ".".join([*parts[: len(parts) - up], *filter(None, [source.lstrip(".")])])


def _file(root: Path, name: str) -> Path | None:
    path = root / "workflow" / name.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _text(root: Path, name: str) -> str:
    file = _file(root, name)
    return file.read_text(encoding="utf-8") if file else ""


def _read_by(root: Path, name: str) -> list[Path]:
    declared = _READS.search(_text(root, name))
    patterns = ast.literal_eval(declared[1]) if declared else ()
    return [file for pattern in patterns for file in root.glob(pattern)]
