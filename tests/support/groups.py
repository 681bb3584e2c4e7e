"""Which tests share a process where several run them (`--dist loadgroup`)."""

from __future__ import annotations

import functools
import re

import pytest
from xdist.scheduler import LoadScopeScheduling

from clone import ROOT


class Groups(LoadScopeScheduling):
    """A file's tests share one, and so do all files that need the testbed (marker `root`), of which there is one.

    Another group is named by the marker `xdist_group`. That marker alone does nothing: pytest-xdist 3.8 gives it to
    tests by an attribute that they do not have any more in pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0])


@functools.cache
def group(file: str) -> str:
    """That of a file of tests, relative to the repository."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if named := re.search(r'mark\.xdist_group\("([^"]+)"\)', text):
        return named[1]
    return "testbed" if "mark.root" in text else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups | None:
    """Hook of pytest-xdist."""
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None
