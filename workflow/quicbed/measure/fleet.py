"""Where a server and its client are several programs each, one for each processor: what runs them as one.

It is put together once, in a directory that is given to both hosts, as what drives a browser is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quicbed.base.hashing import digest
from quicbed.builds import kit
from quicbed.config.model import Project, Testbed, cpus_of
from quicbed.measure import browser
from quicbed.plan import fleet

PROGRAM = "fleet"


def copies(testbed: Testbed, facts: Mapping[str, Any]) -> int:
    """Programs that each end of a testbed with these facts has processors for.

    A machine that has both ends has one processor for the client of each server.
    """
    processors = int(facts.get("cpus") or 1)
    if not testbed.hosts:
        return max(1, processors // 2)
    return min([processors, *(len(cpus_of(host.cpus)) for host in testbed.hosts.values() if host.cpus)])


def provided(project: Project) -> Path:
    """The directory with the program on this machine, made where it is missing."""
    files = {"lib/__main__.py": (project.root / fleet.FLEET).read_bytes(), f"bin/{PROGRAM}": browser.launcher()}
    named = {name: content.decode() for name, content in files.items()}
    return kit.filled(project.build / "fleet" / digest(named), lambda made: browser.write(made, files.items()))
