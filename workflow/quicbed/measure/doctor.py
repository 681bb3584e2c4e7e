"""What a testbed needs and has, before anything is measured."""

from __future__ import annotations

from quicbed.config.model import Project
from quicbed.measure import generator
from quicbed.testbed import features
from quicbed.testbed.features import Feature
from quicbed.testbed.remote import SshTestbed
from quicbed.wire import tshark


def doctor(project: Project) -> int:
    """Print every probed feature of the testbed; returns 1 if measuring cannot work without one that is missing."""
    needed = {"root", "namespaces", "veth", "bridge"}
    if any(project.experiments[name].workload.kind == "handshake" for name in project.config.experiments):
        needed.add("tshark")
    missing = 0
    print(f"testbed {project.config.testbed} ({project.testbed.kind})")
    problem = tshark.problem()
    if project.testbed.kind == "ssh":
        unusable = _inspect(project, Feature(problem is None, problem or ""), needs_tshark="tshark" in needed)
        return max(unusable, _inspect_generator(project))
    for name, feature in {**features(), "tshark": Feature(problem is None, problem or "")}.items():
        required = name in needed
        missing += required and not feature.available
        state = "yes" if feature.available else f"{'MISSING' if required else 'unsupported'}: {feature.reason}"
        print(f"  {name:13} {state}")
    return max(int(missing > 0), _inspect_generator(project))


def _inspect_generator(project: Project) -> int:
    """Print what the testbed's generator of competing traffic is.

    Returns 1 if it cannot be used and an experiment that is to be measured needs it.
    """
    settings = project.testbed.generator
    # iperf3 runs on the hosts, which tell themselves
    if settings is None or (settings.kind == "iperf3" and project.testbed.kind == "ssh"):
        return 0
    print(f"generator {settings.kind}")
    chosen = [project.experiments[name] for name in project.config.experiments]
    required = any(variant.background is not None for experiment in chosen for variant in experiment.variants)
    missing = 0
    for name, feature in generator.inspect(settings, project.config.testbed).items():
        missing |= required and not feature.available
        word = "" if feature.available else f"{'MISSING' if required else 'unsupported'}: "
        print(f"  {name:13} {word}{feature.reason}")
    return int(missing)


def _inspect(project: Project, controller_tshark: Feature, *, needs_tshark: bool) -> int:
    """Print what the hosts of a testbed over SSH are; returns 1 if one cannot be used."""
    missing = needs_tshark and not controller_tshark.available
    state = "yes" if controller_tshark.available else f"{'MISSING' if missing else 'unsupported'}: "
    print(f"  {'tshark':12} {state}{controller_tshark.reason}")
    for where, rows in SshTestbed(project.config.testbed, project.testbed).inspect().items():
        print(where)
        for name, feature in rows.items():
            state = (feature.reason or "yes") if feature.available else f"MISSING: {feature.reason}"
            missing |= not feature.available
            print(f"  {name:13} {state}")
    return int(missing)
