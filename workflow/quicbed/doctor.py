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
    if project.testbed.kind == "ssh":
        return _inspect(project, Feature(problem is None, problem or ""), needs_tshark="tshark" in needed)
    for name, feature in {**features(), "tshark": Feature(problem is None, problem or "")}.items():
        required = name in needed
        missing += required and not feature.available
        state = "yes" if feature.available else f"{'MISSING' if required else 'unsupported'}: {feature.reason}"
        print(f"  {name:12} {state}")
    return 1 if missing else 0


def _inspect(project: Project, controller_tshark: Feature, *, needs_tshark: bool) -> int:
    """Print what the hosts of a testbed over SSH are; returns 1 if one cannot be used."""
    # loading the SSH library takes a moment that other testbeds need not wait
    from quicbed.testbed.remote import SshTestbed

    missing = needs_tshark and not controller_tshark.available
    state = "yes" if controller_tshark.available else f"{'MISSING' if missing else 'unsupported'}: "
    print(f"  {'tshark':12} {state}{controller_tshark.reason}")
    for where, rows in SshTestbed(project.config.testbed, project.testbed).inspect().items():
        print(where)
        for name, feature in rows.items():
            state = (feature.reason or "yes") if feature.available else f"MISSING: {feature.reason}"
            missing |= not feature.available
            print(f"  {name:12} {state}")
    return int(missing)
