"""Checks of `make check` that compile every endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from clone import ROOT, load_tool


@pytest.mark.usefixtures("every_build")  # a package whose native code is not built is left out
@pytest.mark.parametrize("name", [check.name for check in load_tool(ROOT, "check").checks() if check.slow])
def test_a_check_that_compiles(repository: Path, name: str) -> None:
    tool = load_tool(repository, "check")
    (check,) = [check for check in tool.checks() if check.name == name]
    done = tool.run(check)
    assert done.returncode == 0, done.stdout
