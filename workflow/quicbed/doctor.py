"""What a testbed needs and has, before anything is measured."""

from __future__ import annotations

from quicbed import tshark
from quicbed.config import Project
from quicbed.testbed import features
from quicbed.testbed.features import Feature


def doctor(project: Project) -> int:
    """Print every probed feature of the testbed; returns 1 if measuring cannot work without one that is missing."""
    needed = {"root", "namespaces", "veth", "bridge"}
    if any(project.experiments[name].workload.kind == "handshake" for name in project.config.experiments):
        needed.add("tshark")
    missing = 0
    print(f"testbed {project.config.testbed} ({project.testbed.kind})")
    problem = tshark.problem()
    for name, feature in {**features(), "tshark": Feature(problem is None, problem or "")}.items():
        required = name in needed
        missing += required and not feature.available
        state = "yes" if feature.available else f"{'MISSING' if required else 'unsupported'}: {feature.reason}"
        print(f"  {name:12} {state}")
    return 1 if missing else 0
