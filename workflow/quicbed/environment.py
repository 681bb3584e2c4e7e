"""The environment in which the workflow's rules run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OVERRIDES = "QUICBED_CONFIG"


def prepare(overrides: Mapping[str, Any]) -> None:
    """Let `python -m quicbed` work in rules, with the configuration of this run of the workflow.

    It has to work without an activated environment, and where the package is not installed (`--sdm conda`). The
    overrides are in the environment rather than in the commands: Snakemake runs a command that changes again.
    """
    for name, directory in (
        ("PATH", Path(sys.executable).parent),
        ("PYTHONPATH", Path(__file__).resolve().parents[1]),
    ):
        parts = [part for part in os.environ.get(name, "").split(os.pathsep) if part]
        if parts[:1] != [str(directory)]:
            os.environ[name] = os.pathsep.join([str(directory), *parts])
    os.environ[OVERRIDES] = json.dumps(overrides)
