"""Whether pairs at the same time show a cost in full: one arm has a known one, and what comes out is held against it.

The kernel charges the work on received packets to the program that it interrupts, which may be one of the other arm.
That an A/A comparison shows nothing cannot tell: a part of every cost might go to the other side.
"""

from __future__ import annotations

import copy
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from quicbed.builds import making
from quicbed.config.model import Project
from quicbed.measure.comparing import Asked, compare
from quicbed.measure.concurrent_pair import ARMS
from quicbed.plan.built import BUILD_FILE, Build
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run

LIBRARY = "quinn"
SPINS = {"plain": 0, "costly": 5_000}
"""How often each call of the server that sends goes through a loop before, by arm. What counts its time is in both."""
PAIRS = 10
BYTES = 256 * 2**20
_SOURCE = Path(__file__).with_name("dilution.c")


def found(project: Project, directory: Path) -> Iterator[tuple[float, float]]:
    """What each byte of a server cost more in each pair, as it was found and as it was, in ns.

    The builds are those of the project, everything else is below *directory*.
    """
    own = copy.copy(project)
    paths = project.config.paths.model_copy(update={"build": str(directory / "build"), "raw": str(directory / "raw")})
    own.config = project.config.model_copy(update={"paths": paths})
    own.libraries = {**project.libraries, **dict.fromkeys(SPINS, project.libraries[LIBRARY])}
    making.read_build(project, LIBRARY, "stock")  # which says how it is made where it is missing
    for name in SPINS:
        _make(own, name, making.build_directory(project, LIBRARY, "stock"))
    plain, costly = SPINS
    asked = Asked(
        arms={"a": f"{plain}/stock", "b": f"{costly}/stock"},
        variants={"a": {}, "b": {}},
        bytes=BYTES,
        min_pairs=PAIRS,
        max_pairs=PAIRS,
    )
    compared = compare(own, asked, directory / "log")
    for pair in sorted(compared.directory.glob("p*")):
        costs = [_cost(pair / arm) for arm in ARMS]
        if None not in costs:
            (a, spent_a), (b, spent_b) = (cost for cost in costs if cost is not None)
            yield b - a, spent_b - spent_a


def _cost(directory: Path) -> tuple[float, float] | None:
    """Processor time of a server by byte, and what it spent besides, in ns; None of a run that does not count."""
    run = Run.read(directory / RUN_FILE)
    if run.status != "ok" or run.together is None:
        return None
    said = (directory / "server.err").read_text(encoding="utf-8", errors="replace")
    told = re.search(r"spent (\d+) ns", said)
    size = run.workload.bytes
    if told is None or not int(told[1]) or not size or not run.together.server_cpu_s:
        return None
    return 1e9 * run.together.server_cpu_s / size, int(told[1]) / size


def _make(project: Project, name: str, real: Path) -> None:
    """A copy of a build whose server is started with what costs more."""
    made = making.build_directory(project, name, "stock")
    shutil.copytree(real, made)
    build = Build.read(made / BUILD_FILE).model_copy(update={"build": made.name, "library": name})
    build.write(made / BUILD_FILE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made / "dilution.so", _SOURCE, "-ldl"], check=True)
    server = made / "bin" / "server"
    server.rename(server.with_name("server-itself"))
    loaded = f"SPINS={SPINS[name]} LD_PRELOAD={shlex.quote(str(made / 'dilution.so'))}"
    server.write_text(f'#!/bin/sh\n{loaded} exec "$0-itself" "$@"\n', encoding="utf-8")
    server.chmod(0o755)
