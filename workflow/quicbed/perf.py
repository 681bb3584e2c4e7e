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
function without a symbol is claimed by its object's name, as ``[python3.11]``. Mappings are applied when results are
evaluated: runs that were measured before a mapping was mended need not be measured again.
"""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from quicbed.config import ConfigError, Model, Name, Perf, parse, read_yaml
from quicbed.testbed import Host, HostLostError, Process, TestbedError

EVENT = "cpu-clock"
KERNEL_OBJECT = "kernel"
KERNEL_ADDRESSES = 1 << 63
"""The upper half of the address space is the kernel's."""
UNKNOWN = "[unknown]"
ANSWER_TIMEOUT = 10.0
POLL_S = 0.005
STOP_TIMEOUT = 10.0
SCRIPT_TIMEOUT = 120.0

Category = Literal[
    "packet-protection",
    "header-protection",
    "packet-io",
    "connection-management",
    "application",
    "kernel",
    "uncategorised",
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
CLAIMED: tuple[Category, ...] = CATEGORIES[:-1]
"""Categories that a mapping can claim symbols for."""

Stacks = Counter[tuple[str, ...]]
"""Samples by stack: frames from the innermost to the outermost, as ``object`symbol``, without the comm."""


class PerfError(Exception):
    """perf cannot record or its output cannot be read; one line."""


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
    process: Process | None = None
    cpu_s: float = 0.0
    data_bytes: int = 0
    ahead_ns: int = 0
    """How far the host's clock is ahead of the driver's machine's."""

    def pipe(self, name: str) -> str:
        return str(self.place / f".{self.role}.{name}")

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
        recorder = _Recorder(host, host.workspace(self.directory), role)
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
            recorder.host.run(["rm", "-f", *recorder.pipes, str(recorder.file("data"))])

    def fold(self, begin: int, end: int) -> dict[str, Any]:
        """Write ``<role>.folded.gz`` of the samples between two times of the client's clock; returns what was recorded.

        The times are those of CLOCK_MONOTONIC in ns; the text of the recordings is in the run's directory by now.
        Raises PerfError if there is no sample of that time.
        """
        facts: dict[str, Any] = {"event": EVENT, **self.settings.model_dump(), "begin_ns": begin, "end_ns": end}
        for role, recorder in self._recorders.items():
            ahead = recorder.ahead_ns - self._recorders["client"].ahead_ns
            script = (self.directory / f"{role}.perf.script").read_text(encoding="utf-8", errors="replace")
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
                (self.directory / f"{role}.perf.{kind}").unlink(missing_ok=True)


# ---- folding ---------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"(?P<comm>\S.*?)\s+\d+\s+(?P<s>\d+)\.(?P<ns>\d{9}):\s*(?:PERF_RECORD_LOST lost (?P<lost>\d+))?")
_FRAME = re.compile(r"\s+(?P<ip>[0-9a-f]+) (?P<symbol>.*) \((?P<object>.*)\)$")


def folded_name(role: str) -> str:
    """Name of the file with the folded stacks of a role."""
    return f"{role}.folded.gz"


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


def write_folded(file: Path, folded: Mapping[str, int]) -> None:
    """Write folded stacks, gzipped; equal stacks give equal bytes."""
    text = "".join(f"{stack} {count}\n" for stack, count in sorted(folded.items()))
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_folded(content: bytes) -> Stacks:
    """Stacks of a folded file's (gzipped) content; PerfError if it is damaged or empty."""
    stacks: Stacks = Counter()
    try:
        for line in gzip.decompress(content).decode().splitlines():
            stack, _, count = line.rpartition(" ")
            _, *frames = stack.split(";")
            stacks[tuple(reversed(frames))] += int(count)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise PerfError(f"damaged folded stacks: {error}") from None
    if not stacks:
        raise PerfError("folded stacks without a sample")
    return stacks


# ---- sorting ---------------------------------------------------------------------------------------------------------


class Rule(Model):
    """A claim that holds under a condition; it goes before claims without one."""

    symbol: str = Field(description="Regular expression, found anywhere in the symbol.")
    under: str = Field(description="Regular expression of a symbol further out in the stack.")


class Symbols(Model):
    """config/symbols/<library>.yaml: which category the symbols of a library's stacks belong to."""

    description: str = Field("", description="What is claimed and where the names come from.")
    include: list[Name] = Field(
        default_factory=list, description="Mappings in config/symbols/shared/ whose claims hold too."
    )
    claims: dict[Category, list[str | Rule]] = Field(
        description="Category: regular expressions, found anywhere in a symbol, or rules."
    )
    rest: dict[Category, list[str]] = Field(
        default_factory=dict, description="Category: regular expressions for what no claim covers, as all of a library."
    )
    unsupported: dict[Category, str] = Field(
        default_factory=dict, description="Category: why the stacks of this library do not show it."
    )


@dataclass(frozen=True)
class _Claim:
    category: Category
    text: str
    pattern: re.Pattern[str]
    under: re.Pattern[str] | None
    rest: bool
    file: Path

    def __str__(self) -> str:
        return f"{self.category} (`{self.text}` in {self.file.name})"


class Claims:
    """All claims of one mapping and of those it includes."""

    def __init__(self, file: Path, claims: Iterable[_Claim], unsupported: Mapping[Category, str]) -> None:
        self.file = file
        self.unsupported = unsupported
        everything = list(claims)
        self._plain = [claim for claim in everything if claim.under is None and not claim.rest]
        self._conditional = [claim for claim in everything if claim.under is not None]
        self._rest = [claim for claim in everything if claim.rest]
        self._known: dict[str, tuple[Category | None, list[_Claim]]] = {}
        # a pattern without special characters is a symbol that can be looked up now
        for claim in everything:
            literal = claim.text.removeprefix("^").removesuffix("$")
            if re.fullmatch(r"[\w:]+", literal):
                self._look_up(literal)

    def sort(self, symbols: Sequence[str]) -> Category | None:
        """Category of the innermost claimed symbol of a stack (innermost first), None if none is claimed.

        Raises ConfigError if two categories claim it.
        """
        for position, symbol in enumerate(symbols):
            plain, conditional = self._look_up(symbol)
            outer = symbols[position + 1 :]
            holding = [claim for claim in conditional if claim.under and any(map(claim.under.search, outer))]
            self._one(symbol, holding)
            if holding:
                return holding[0].category
            if plain is not None:
                return plain
        return None

    def _look_up(self, symbol: str) -> tuple[Category | None, list[_Claim]]:
        if symbol not in self._known:
            plain = [claim for claim in self._plain if claim.pattern.search(symbol)]
            plain = plain or [claim for claim in self._rest if claim.pattern.search(symbol)]
            self._one(symbol, plain)
            conditional = [claim for claim in self._conditional if claim.pattern.search(symbol)]
            self._known[symbol] = (plain[0].category if plain else None, conditional)
        return self._known[symbol]

    def _one(self, symbol: str, claims: Sequence[_Claim]) -> None:
        other = next((claim for claim in claims if claim.category != claims[0].category), None)
        if other is not None:
            raise ConfigError(
                f"{self.file}: claims: symbol `{symbol}` is claimed by {claims[0]} and by {other}; narrow one of them"
            )


class SymbolMap:
    """Sorts the stacks of one library into categories."""

    def __init__(self, user: Claims, kernel: Claims) -> None:
        self._user = user
        self._kernel = kernel
        self.unsupported = user.unsupported
        """Categories that the stacks do not show, with the reason."""
        self._known: dict[tuple[str, ...], Category] = {}

    def sort(self, stack: tuple[str, ...]) -> Category:
        """Category of a stack, innermost frame first; ConfigError if two claim the symbol that decides."""
        if stack not in self._known:
            self._known[stack] = self._sort(stack)
        return self._known[stack]

    def _sort(self, stack: tuple[str, ...]) -> Category:
        frames = [
            (name, f"[{name}]" if symbol == UNKNOWN else symbol)
            for name, _, symbol in (frame.partition("`") for frame in stack)
        ]
        in_kernel = [symbol for name, symbol in itertools.takewhile(lambda frame: frame[0] == KERNEL_OBJECT, frames)]
        if in_kernel:
            return self._kernel.sort(in_kernel) or "kernel"
        return self._user.sort([symbol for _, symbol in frames]) or "uncategorised"

    def count(self, stacks: Stacks) -> Counter[Category]:
        """Samples by category."""
        counts: Counter[Category] = Counter()
        for stack, samples in stacks.items():
            counts[self.sort(stack)] += samples
        return counts


def directory(root: Path) -> Path:
    """Where the mappings are, of the repository at `root`."""
    return root / "config" / "symbols"


@functools.cache
def symbol_map(root: Path, library: str) -> SymbolMap:
    """The mapping of a library; ConfigError names the file and key that is wrong, or the file that is missing."""
    file = directory(root) / f"{library}.yaml"
    kernel = directory(root) / "shared" / "linux.yaml"
    return SymbolMap(_read(file), _read(kernel))


def mapping_problem(root: Path, library: str) -> str | None:
    """Why the samples of a library cannot be sorted, or None if nothing is known against it."""
    file = directory(root) / f"{library}.yaml"
    if not file.is_file():
        return f"no mapping of its symbols to categories, config/symbols/{library}.yaml"
    try:
        symbol_map(root, library)
    except ConfigError as error:
        return str(error).replace(f"{root}/", "")
    return None


def _read(file: Path) -> Claims:
    described = parse(Symbols, read_yaml(file), file)
    claims = _claims(described, file)
    for name in described.include:
        shared = file.parent / "shared" / f"{name}.yaml"
        if not shared.is_file():
            raise ConfigError(f"{file}: include: there is no {shared}")
        included = parse(Symbols, read_yaml(shared), shared)
        if included.include:
            raise ConfigError(f"{shared}: include: a shared mapping includes no other")
        claims += _claims(included, shared)
    for claim in claims:
        if claim.category in described.unsupported:
            raise ConfigError(f"{file}: unsupported: {claim.category} is claimed too, by `{claim.text}`")
    return Claims(file, claims, described.unsupported)


def _claims(described: Symbols, file: Path) -> list[_Claim]:
    claims = []
    given: list[tuple[str, Mapping[Category, Sequence[str | Rule]]]] = [
        ("claims", described.claims),
        ("rest", described.rest),
    ]
    for name, categories in given:
        for category, rules in categories.items():
            if category not in CLAIMED:
                raise ConfigError(f"{file}: {name}: {category} is what no symbol is claimed for; leave it out")
            for rule in rules:
                key = f"{file}: {name}.{category}"
                text, under = (rule, None) if isinstance(rule, str) else (rule.symbol, _pattern(rule.under, key))
                claims.append(_Claim(category, text, _pattern(text, key), under, name == "rest", file))
    return claims


def _pattern(text: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{key}: bad pattern `{text}`: {error}") from None


# ---- for people who write mappings -----------------------------------------------------------------------------------


def describe(root: Path, run_directory: Path, top: int = 15) -> str:
    """What a run's samples were sorted into, and the innermost symbols of those no claim covers."""
    try:
        run = json.loads((run_directory / "run.json").read_text(encoding="utf-8"))
        libraries = {role: run[role]["library"] for role in ("client", "server")}
    except (OSError, ValueError) as error:
        raise PerfError(f"{run_directory}: not the directory of a run: {error}") from None
    except (KeyError, TypeError):
        raise PerfError(f"{run_directory / 'run.json'}: does not name the libraries of client and server") from None
    lines = []
    for role, library in libraries.items():
        file = run_directory / folded_name(role)
        if not file.is_file():
            raise PerfError(f"{file}: is missing; only runs of an experiment with `perf` that succeeded have it")
        try:
            stacks = read_folded(file.read_bytes())
        except PerfError as error:
            raise PerfError(f"{file}: {error}") from None
        mapping = symbol_map(root, library)
        total = stacks.total()
        counts = mapping.count(stacks)
        lines.append(f"{role} {library}: {total} samples")
        for name in CATEGORIES:
            reason = mapping.unsupported.get(name)
            share = f"  {100 * counts[name] / total:6.2f} %  {name}"
            lines.append(f"       - %  {name}: {reason}" if reason else share)
        unclaimed: Counter[str] = Counter()
        for stack, samples in stacks.items():
            if mapping.sort(stack) == "uncategorised":
                callers = [frame for frame in stack[1:4] if UNKNOWN not in frame]
                unclaimed[" < ".join([stack[0], *callers])] += samples
        if unclaimed:
            lines.append("  uncategorised, innermost frame and its callers:")
        lines += [f"  {100 * samples / total:6.2f} %  {name}" for name, samples in unclaimed.most_common(top)]
    return "\n".join(lines)
