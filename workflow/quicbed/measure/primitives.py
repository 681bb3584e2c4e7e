"""Timing of the primitives of a build, on the host of the client."""

from __future__ import annotations

from pathlib import Path

from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import certificates
from quicbed.measure.attempt import Attempt
from quicbed.measure.endpoint_pair import collect, kill
from quicbed.measure.event_logs import exit_text
from quicbed.measure.program import confined
from quicbed.measure.progress import now
from quicbed.measure.usage import Usage, gate, processor_s
from quicbed.plan.spec import RunSpec
from quicbed.testbed import Exit, Testbed

PRIMITIVES_TIMEOUT = 900.0
# Time to spend on one operation of one primitive in a run.
PRIMITIVES_MS = 20
_LOG = "primitives.jsonl"


def time_primitives(project: Project, testbed: Testbed, spec: RunSpec, directory: Path) -> Attempt:
    """Time the primitives of a cell's build; raises HostLostError."""
    attempt = Attempt(started_at=now())
    there = frozenset(path.name for path in directory.iterdir())
    usage = Usage(testbed)
    ended = _run(attempt, project, testbed, spec, directory)
    usage.end()
    collect(attempt, directory, there, testbed.client)
    with attempt.judging():
        if ended is not None and (ended.returncode != 0 or ended.exceeded is not None):
            attempt.fail(exit_text("primitives", ended, directory))
        elif ended is not None and (problem := _problem(project, directory)) is not None:
            attempt.fail(problem)
    attempt.metrics |= {"wall_s": usage.wall_s, "run_wall_s": usage.wall_s}
    attempt.host |= usage.facts({"client": processor_s(ended)})
    gate(attempt, spec.libraries, project.config.gate)
    return attempt


def _run(attempt: Attempt, project: Project, testbed: Testbed, spec: RunSpec, directory: Path) -> Exit | None:
    """Run the program to its end, None where it has none."""
    host, side, variant = testbed.client, spec.cell.client, spec.cell.variant
    output = host.place(directory)
    identities = {name: certificates.directory(project, name) for name in variant.signatures or ()}
    argv = [str(host.provide(project.build / side.build) / "bin" / "primitives")]
    argv += ["--events", str(output / _LOG), "--milliseconds", str(PRIMITIVES_MS)]
    argv += [part for name in variant.groups or () for part in ("--group", name)]
    for name, identity in identities.items():
        argv += ["--signature", f"{name}={host.provide(identity)}"]
    held = confined(project, testbed, side, "primitives", list(identities.values()))
    attempt.host["confinement"] = {"primitives": host.confinement(held)}
    process = host.spawn(argv, stdout=output / "primitives.out", stderr=output / "primitives.err", confined=held)
    ended = None
    try:
        ended = process.wait(PRIMITIVES_TIMEOUT)
    except TimeoutError:
        attempt.fail(f"the primitives hung: not finished {PRIMITIVES_TIMEOUT:g} s after their start")
    finally:
        if ended is None:
            kill(process)
    return ended


def _problem(project: Project, directory: Path) -> str | None:
    """What is wrong with the events of a program that ended well."""
    try:
        seen = events.read_primitives(directory / _LOG, project.config.limits)
    except events.EventError as error:
        return str(error).replace(f"{directory}/", "")
    # what only other processors can do is left out
    special = {group.name for group in project.algorithms.groups if group.processor}
    lacking = [f"{one.name}: {one.reason}" for one in seen.unsupported if one.name not in special]
    if lacking or seen.errors or not seen.primitives:
        return "; ".join([*lacking, *seen.errors]) or "no primitive was timed"
    return None
