"""docs/external-endpoints.md, followed to the letter as far as nothing is measured."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import get_args

import pytest
import yaml

from clone import ROOT, copy_config
from quicbed.builds.recipes import external
from quicbed.cli.commands import _parser
from quicbed.cli.generate import pages
from quicbed.config.model import ConfigError, Project, StatedFlavour, Statement
from quicbed.plan.cells import cells_of

PAGE = (ROOT / "docs" / "external-endpoints.md").read_text(encoding="utf-8")
FILES = [
    (block.split(maxsplit=2)[1], block) for block in re.findall(r"```yaml\n(# \S+\.yaml\n.*?)```", PAGE, re.DOTALL)
]
STATEMENTS = [text for name, text in FILES if name.endswith("quicbed.yaml")]


def follow(root: Path, statement: str) -> Project:
    """The project after the files of the page are written where it says, with one of its two statements."""
    copy_config(root / "clone" / "config")
    (root / "clone" / "workflow" / "crypto").mkdir(parents=True)
    shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", root / "clone" / "workflow" / "crypto")
    for name, text in FILES:
        file = root / "clone" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(statement if text in STATEMENTS else text, encoding="utf-8")
    return Project(root / "clone", asked())


def asked() -> dict[str, object]:
    """What the page lets one measure, as the workflow reads it."""
    (command,) = re.findall(r"^make all CONFIG=(.*)$", PAGE, re.MULTILINE)
    (words,) = shlex.split(command)
    return {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words.split())}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_files_of_the_page_make_a_library(statement: str, tmp_path: Path) -> None:
    project = follow(tmp_path, statement)
    library = project.libraries["mvfst"].external
    assert library is not None
    assert library.problem is None
    assert library.shown_as == "mvfst (external)"
    cells = {name: cells_of(project, name, "c", {}) for name in project.config.experiments}
    assert {cell.libraries for found in cells.values() for cell in found} == {("mvfst", "mvfst")}
    plain = "noop" not in library.flavours
    assert {cell.unsupported is None for cell in cells["udp-buffer"]} == {not plain}


def test_both_statements_of_the_page_are_told_apart() -> None:
    assert len(STATEMENTS) == 2
    assert [name for name, _ in FILES] == [
        "../mvfst-runner/quicbed.yaml",
        "config/libraries/mvfst.yaml",
        "../mvfst-runner/quicbed.yaml",
    ]


def test_the_table_of_variables_is_what_scripts_are_given() -> None:
    rows = re.findall(r"^\| (`QUICBED_.*?) \|.*?\| ([^|]*) \|$", PAGE, re.MULTILINE)
    documented = {name for names, _ in rows for name in re.findall(r"QUICBED_\w+", names)}
    every = Statement.model_validate(
        yaml.safe_load(STATEMENTS[1])
        | {"supports": yaml.safe_load(STATEMENTS[1])["supports"] | {"retry": True, "initial_size": True}}
    )
    given = {f"QUICBED_{name.upper()}" for name in external.told(every)}
    assert documented == given | {"QUICBED_FLAVOUR", "QUICBED_AES_HARDWARE", "QUICBED_EVENTS"}
    keys = {key for _, named in rows for key in re.findall(r"`(\w+)`", named)} - {"flavours"}
    assert keys <= set(type(every.supports).model_fields)


def test_the_table_of_libraries_is_what_scripts_are_told() -> None:
    (named,) = get_args(StatedFlavour.model_fields["components"].annotation)
    rows = re.findall(r"^\| (`QUICBED_[^|]*) \| [^|]* \|$", PAGE, re.MULTILINE)
    documented = {name for names in rows for name in re.findall(r"QUICBED_\w+", names)}
    told = external.component_variables(Project(ROOT), get_args(named))
    assert documented == set(told)
    assert Path(told["QUICBED_BORINGSSL_SOURCE"]).parts[-2:] == ("deps", "boringssl")
    assert Path(told["QUICBED_CRYPTO"], "noop-aead", "noop_aead.cc").is_file()
    assert Path(told["QUICBED_CRYPTO"], "pq", "pq.c").is_file()
    assert external.component_variables(Project(ROOT), []) == {}


def test_the_report_on_the_page_can_be_used() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    start, connection = map(json.loads, block.splitlines())
    assert set(start["options"]) == {"receive_buffer", "send_buffer", "gso", "gro"}
    times = [value for name, value in connection.items() if name.startswith("t_")]
    assert times == sorted(times)


def test_documents_are_the_same_with_an_added_folder(tmp_path: Path) -> None:
    """So that `make check` passes for who adds one."""
    for name in ("config", "workflow", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "target"))
    before = pages(tmp_path, _parser())
    (tmp_path / "config" / "libraries" / "mvfst.yaml").write_text(dict(FILES)["config/libraries/mvfst.yaml"])
    assert pages(tmp_path, _parser()) == before


def test_a_key_of_the_old_form_is_told_from_one_that_is_unknown(tmp_path: Path) -> None:
    follow(tmp_path, STATEMENTS[0])
    file = tmp_path / "clone" / "config" / "libraries" / "mvfst.yaml"
    file.write_text("external: {path: x, pathh: y}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"external\.pathh: unknown key; did you mean `path`"):
        Project(tmp_path / "clone")
