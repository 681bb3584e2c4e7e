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
from quicbed.plan.built import BUILD_FILE
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run

LIBRARY, COSTLY = "quinn", "costly"
SPIN_NS = 10_000
"""Processor time in ns that a call costs more which sends datagrams; such a call sends up to 64 kB."""
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
    own.libraries = {**project.libraries, COSTLY: project.libraries[LIBRARY]}
    real = making.build_directory(project, LIBRARY, "stock")
    making.read_build(project, LIBRARY, "stock")
    own.build.mkdir()
    making.build_directory(own, LIBRARY, "stock").symlink_to(real.resolve())
    _make_costly(own, real)
    asked = Asked(
        arms={"a": f"{LIBRARY}/stock", "b": f"{COSTLY}/stock"},
        variants={"a": {}, "b": {}},
        bytes=BYTES,
        min_pairs=PAIRS,
        max_pairs=PAIRS,
    )
    compared = compare(own, asked, directory / "log")
    for pair in sorted(compared.directory.glob("p*")):
        costs: dict[str, float] = {}
        for arm in "ab":
            run = Run.read(pair / arm / RUN_FILE)
            if run.status == "ok" and run.together is not None:
                costs[arm] = 1e9 * (run.together.server_cpu_s or 0) / (run.workload.bytes or 1)
        told = re.search(r"spent (\d+) ns", (pair / "b" / "server.err").read_text(encoding="utf-8", errors="replace"))
        if len(costs) == 2 and told is not None and int(told[1]) > 0:
            yield costs["b"] - costs["a"], int(told[1]) / (run.workload.bytes or 1)


def _make_costly(project: Project, real: Path) -> None:
    """A copy of a build whose server is started with what costs more."""
    made = making.build_directory(project, COSTLY, "stock")
    shutil.copytree(real, made)
    build = making.Build.read(made / BUILD_FILE).model_copy(update={"build": made.name, "library": COSTLY})
    build.write(made / BUILD_FILE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made / "dilution.so", _SOURCE, "-ldl"], check=True)
    server = made / "bin" / "server"
    server.rename(server.with_name("server-itself"))
    loaded = f"SPIN_NS={SPIN_NS} LD_PRELOAD={shlex.quote(str(made / 'dilution.so'))}"
    server.write_text(f'#!/bin/sh\n{loaded} exec "$0-itself" "$@"\n', encoding="utf-8")
    server.chmod(0o755)
