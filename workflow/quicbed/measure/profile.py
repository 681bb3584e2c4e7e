"""Where the processor time of a download goes: recording with perf(1), folding, and sorting samples into categories.

**Recording.** perf samples the task clock of an endpoint's threads and children (`cpu-clock`: a timer of the kernel,
which needs no hardware counters). A program is held until perf has answered, so that no thread is missed. Samples are
stamped with CLOCK_MONOTONIC, as the endpoints' events are, and only those between the client sending its ClientHello
and its last byte of content are kept: start and end of the programs, which weigh more in a short download than in the
8 GiB of the papers, are left out. Where the endpoints run on two hosts, the server's clock is compared with the
client's right after the run, to half of the time that a question to each takes (below 1 ms in a local network).

**Folding.** perf.data is read on the host where it was recorded, because that has the programs and the kernel it is of,
and reduced to folded stacks, one line a stack with the number of its samples::

    comm;outermost frame;...;innermost frame 17

A frame is ``object`symbol`` as DTrace prints it, with the object ``kernel`` for the kernel and its modules. Flame graph
tools and speedscope open these files. perf.data, of no use without the very same builds, is not kept.

**Sorting.** A mapping (`config/symbols/`) claims symbols for categories. A sample belongs to the category of its
innermost claimed frame: what an unclaimed function does, as memcpy, counts for the nearest caller that is claimed. A
sample taken in the kernel is looked at there only: what no claim of ``shared/linux.yaml`` covers is `kernel`. A
function without a symbol is claimed by its object's name, as ``[python3.11]``, and what no claim covers by the object
that it is in, if that is claimed. Mappings are applied when results are
evaluated: runs that were measured before a mapping was mended need not be measured again.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicbed.base import trees, untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.config.model import Perf
from quicbed.store import symbols
from quicbed.store.record import ROLES
from quicbed.store.stacks import KERNEL_OBJECT, PerfError, folded_name, write_folded
from quicbed.store.symbols import symbol_map
from quicbed.testbed import Host, HostLostError, Process, TestbedError

EVENT = "cpu-clock"
KERNEL_ADDRESSES = 1 << 63
"""The upper half of the address space is the kernel's."""
ANSWER_TIMEOUT = 10.0
POLL_S = 0.005
STOP_TIMEOUT = 10.0
SCRIPT_TIMEOUT = 120.0

# ---- recording -------------------------------------------------------------------------------------------------------


def problem(host: Host) -> str | None:
    """Why perf cannot sample programs on a host, or None if it can: tried on a program that ends at once."""
    argv = ["perf", "record", "--quiet", "--event", EVENT, "--output", "/dev/null", "--", "true"]
    try:
        done = host.run(argv, check=False)
    except HostLostError:
        raise
    except TestbedError as error:
        return f"perf: {error}"
    if done.returncode == 0:
        return None
    said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip(" :\t")]
    if any("perf_event_paranoid" in line for line in said):
        return (
            "perf is not permitted to sample programs; run as root, give perf CAP_PERFMON or lower the kernel setting "
            "kernel.perf_event_paranoid"
        )
    return f"perf cannot sample {EVENT}: {said[0] if said else f'exit status {done.returncode}'}"


# Runs a program under the same process id once a line is in the pipe that is the first argument.
_HELD = 'read -r _ <"$1"; shift; exec "$@"'
# perf has both ends of its pipes open from its beginning on: asks it whether it records, and lets the program go.
_LET_GO = 'echo ping >"$1" && read -r _ <"$2" && echo >"$3"'


@dataclass
class _Recorder:
    """perf at work on one endpoint, with its files in a directory of that endpoint's host."""

    host: Host
    place: Path
    role: str
    gate: Path
    """Directory that the program may look into."""
    process: Process | None = None
    cpu_s: float = 0.0
    data_bytes: int = 0
    ahead_ns: int = 0
    """How far the host's clock is ahead of the driver's machine's."""

    def pipe(self, name: str) -> str:
        return str((self.gate if name == "gate" else self.place) / f".{self.role}.{name}")

    @property
    def pipes(self) -> list[str]:
        return [self.pipe(name) for name in ("control", "answer", "gate")]

    def file(self, name: str) -> Path:
        return self.place / f"{self.role}.perf.{name}"


class Profile:
    """perf attached to both endpoints of one run; what is kept goes to the run's directory."""

    def __init__(self, settings: Perf, directory: Path) -> None:
        self.settings = settings
        self.directory = directory
        self._recorders: dict[str, _Recorder] = {}

    def held(self, role: str, host: Host, argv: Sequence[str]) -> list[str]:
        """The command that starts `argv` on a host, under the same process id, once `attach` has let it go."""
        recorder = _Recorder(host, host.workspace(self.directory), role, host.place(self.directory))
        self._recorders[role] = recorder
        host.run(["mkfifo", *recorder.pipes])
        return ["/bin/sh", "-c", _HELD, "sh", recorder.pipe("gate"), *argv]

    def attach(self, role: str, process: Process) -> None:
        """Record a program that is held, and let it go; raises PerfError if perf does not answer."""
        recorder = self._recorders[role]
        argv = ["perf", "record", "--quiet", "--event", EVENT, "--freq", str(self.settings.frequency)]
        argv += ["--call-graph", self.settings.call_graph, "--clockid", "CLOCK_MONOTONIC"]
        # otherwise perf copies every program into a cache in the home directory
        argv += ["--no-buildid", "--no-buildid-cache", "--pid", str(process.pid)]
        argv += ["--control", f"fifo:{recorder.pipe('control')},{recorder.pipe('answer')}"]
        argv += ["--output", str(recorder.file("data"))]
        said = recorder.file("err")
        recording = recorder.host.spawn(argv, stdout=recorder.file("out"), stderr=said)
        recorder.process = recording
        nowhere = Path("/dev/null")
        ask = ["/bin/sh", "-c", _LET_GO, "sh", *recorder.pipes]
        asking = recorder.host.spawn(ask, stdout=nowhere, stderr=nowhere)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        try:
            while (answered := asking.poll()) is None:
                if recording.poll() is not None or time.monotonic() > deadline:
                    break
                time.sleep(POLL_S)
        finally:
            asking.kill()
        if answered is None or answered.returncode != 0:
            text = recorder.host.read(str(said)).strip().partition("\n")[0]
            raise PerfError(f"perf does not record the {role}: {text or 'it does not answer'}")

    def stop(self) -> dict[str, float]:
        """End perf, which ends by itself with the program it records; the processor time it took in seconds by role."""
        for recorder in self._recorders.values():
            if recorder.process is None:
                continue
            # it writes what it still has
            recorder.process.terminate()
            try:
                ended = recorder.process.wait(STOP_TIMEOUT)
            except TimeoutError:
                recorder.process.kill()
                ended = recorder.process.wait(STOP_TIMEOUT)
            recorder.cpu_s = ended.user_s + ended.system_s
        return {role: recorder.cpu_s for role, recorder in self._recorders.items()}

    def resolve(self) -> None:
        """Have the recordings in text, with names of symbols, as files of the hosts.

        Programs, libraries and kernel modules are looked for on the host where they ran. Raises PerfError if a
        recording is damaged.
        """
        running: list[tuple[_Recorder, Process]] = []
        try:
            for recorder in self._recorders.values():
                argv = ["perf", "script", "--input", str(recorder.file("data")), "--no-inline", "--ns"]
                argv += ["--show-lost-events", "--fields", "comm,tid,time,ip,sym,dso"]
                process = recorder.host.spawn(argv, stdout=recorder.file("script"), stderr=recorder.file("err"))
                running.append((recorder, process))
            for recorder, process in running:
                self._resolved(recorder, process)
        finally:
            for _, process in running:
                process.kill()

    def _resolved(self, recorder: _Recorder, process: Process) -> None:
        try:
            ended = process.wait(SCRIPT_TIMEOUT)
        except TimeoutError:
            raise PerfError(f"perf script of the {recorder.role} took longer than {SCRIPT_TIMEOUT:g} s") from None
        if ended.returncode != 0:
            lines = recorder.host.read(str(recorder.file("err"))).strip().splitlines()
            said = lines[-1] if lines else f"exit code {ended.returncode}"
            raise PerfError(f"perf script of the {recorder.role}: {said}")
        recorder.data_bytes = int(recorder.host.run(["stat", "-c", "%s", str(recorder.file("data"))]).stdout)
        recorder.ahead_ns = recorder.host.monotonic_ahead_ns()

    def clear(self) -> None:
        """Remove the recordings, which are of no use elsewhere, and the pipes from the hosts."""
        for recorder in self._recorders.values():
            recorder.host.run(["rm", "-rf", "--", *recorder.pipes, str(recorder.file("data"))], check=False)

    def fold(self, begin: int, end: int) -> dict[str, Any]:
        """Write ``<role>.folded.gz`` of the samples between two times of the client's clock; returns what was recorded.

        The times are those of CLOCK_MONOTONIC in ns; the text of the recordings is in the run's directory by now.
        Raises PerfError if there is no sample of that time.
        """
        facts: dict[str, Any] = {"event": EVENT, **self.settings.model_dump(), "begin_ns": begin, "end_ns": end}
        for role, recorder in self._recorders.items():
            ahead = recorder.ahead_ns - self._recorders["client"].ahead_ns
            try:
                with untrusted.opened(self.directory / f"{role}.perf.script", None) as file:
                    script = file.read().decode(errors="replace")
            except UntrustedError as error:
                raise PerfError(f"perf script of the {role}: {error}") from None
            stacks, lost = fold(script, begin + ahead, end + ahead)
            if not stacks:
                raise PerfError(f"perf recorded no sample of the {role} during the transfer")
            write_folded(self.directory / folded_name(role), stacks)
            facts[role] = {
                "samples": sum(stacks.values()),
                "lost": lost,
                "stacks": len(stacks),
                "data_bytes": recorder.data_bytes,
                "perf_cpu_s": recorder.cpu_s,
                "ahead_of_client_ns": ahead,
            }
        return facts

    def discard(self) -> None:
        """Remove what perf printed from the run's directory."""
        for role in self._recorders:
            for kind in ("out", "err", "script"):
                trees.remove(self.directory / f"{role}.perf.{kind}")


# ---- folding ---------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"(?P<comm>\S.*?)\s+\d+\s+(?P<s>\d+)\.(?P<ns>\d{9}):\s*(?:PERF_RECORD_LOST lost (?P<lost>\d+))?")
_FRAME = re.compile(r"\s+(?P<ip>[0-9a-f]+) (?P<symbol>.*) \((?P<object>.*)\)$")


def fold(script: str, begin: int, end: int) -> tuple[Counter[str], int]:
    """Folded stacks of what ``perf script`` printed, between two times in ns, and the number of samples lost then."""
    folded: Counter[str] = Counter()
    lost = 0
    comm: str | None = None
    frames: list[str] = []
    # an empty line ends a sample
    for line in io.StringIO(f"{script}\n\n"):
        if not line.strip():
            if comm is not None and frames:
                folded[";".join([comm, *reversed(frames)])] += 1
            comm, frames = None, []
        elif (frame := _FRAME.match(line.rstrip("\n"))) is not None:
            frames.append(_frame(frame["symbol"], frame["object"], int(frame["ip"], 16)))
        elif (header := _HEADER.match(line)) is not None:
            if not begin <= int(header["s"]) * 10**9 + int(header["ns"]) <= end:
                comm = None
            elif header["lost"]:
                lost += int(header["lost"])
            else:
                comm = header["comm"].replace(";", ":")
    return folded, lost


def _frame(symbol: str, path: str, address: int) -> str:
    name = KERNEL_OBJECT if address >= KERNEL_ADDRESSES else path.rpartition("/")[2]
    # `;` separates frames, and Rust writes arrays as [u8; 32]
    return f"{name}`{symbol}".replace("; ", ", ").replace(";", ":")


# ---- sorting ---------------------------------------------------------------------------------------------------------


def check(root: Path) -> None:
    """Read every mapping; ConfigError names the file and key that is wrong."""
    for file in sorted(symbols.directory(root).glob("*.yaml")):
        for role in ROLES:
            symbol_map(root, file.stem, role)


# ---- for people who write mappings -----------------------------------------------------------------------------------
