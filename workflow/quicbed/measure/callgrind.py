"""What a download costs in instructions: counting with Valgrind's Callgrind, function by function.

**Counting.** Both endpoints run under Callgrind, which translates their code and counts every instruction that it
executes outside of the kernel. It needs no hardware counters and no right to sample, and foreign load changes counts
only through the sizes of batches. Counts say nothing of time: caches, what an instruction takes, and the kernel's part
are in none of them. Programs see a processor of Valgrind's own, which has no AVX-512 and no vector AES, so that
libraries may choose other code than on the processor itself; what it has is in the run's `host.perf.processor`.

**Folding.** Callgrind tells a function's callers apart, as many as the experiment says. Its output becomes folded
stacks as those of `quicbed.measure.profile`, with instructions in the place of samples, and is sorted by the same
mappings. The start and the end of the programs are in the counts: results are differences of runs
(`quicbed.analysis.instructions`).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicbed.base import trees, untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.config.model import Instructions
from quicbed.store.stacks import INSTRUCTIONS, UNKNOWN, PerfError, folded_name, write_folded
from quicbed.testbed import Host, HostLostError, Process, TestbedError

SLACK_S = 60.0
"""Seconds that programs may take longer to start and to stop."""
ENVIRONMENT = {"GODEBUG": "asyncpreemptoff=1", "QUICBED_COUNTED": "1"}
"""Callgrind loses count where a signal interrupts Go's runtime at any instruction. Endpoints in Go that know that they
are counted put the stack of signals where Callgrind can follow."""
ENDS = "ngx_http_log_handler*"
"""Function of nginx at the end of a request. Its launcher kills it before it could write the counts of all its life, so
that they are written then, and what follows the last request is left out."""
MOST_FILES = 256
MOST_BYTES = 256 << 20
_MOST_NAMES = 1_000_000
_LOADER = "/lib64/ld-linux-x86-64.so.2"
"""Tells what it found out about the processor (ld.so(8), --list-diagnostics)."""


def problem(host: Host) -> str | None:
    """Why instructions cannot be counted on a host, or None if they can: tried on a program that ends at once."""
    try:
        done = host.run(
            ["valgrind", "--tool=callgrind", "--quiet", "--callgrind-out-file=/dev/null", "true"], check=False
        )
    except HostLostError:
        raise
    except TestbedError:
        return "valgrind is missing; install with: apt-get install valgrind"
    if done.returncode == 0:
        return None
    said = untrusted.one_line(done.stderr + done.stdout, 200)
    return f"valgrind cannot run programs: {said or f'exit status {done.returncode}'}"


# Registers of leaves 1 and 7 of CPUID: number among the four, bit, name as in /proc/cpuinfo.
_FLAGS = {
    (0, 2): {1: "pclmulqdq", 9: "ssse3", 19: "sse4_1", 25: "aes", 28: "avx"},
    (1, 1): {5: "avx2", 8: "bmi2", 16: "avx512f", 19: "adx", 29: "sha_ni"},
    (1, 2): {8: "gfni", 9: "vaes", 10: "vpclmulqdq"},
}
_REGISTER = re.compile(r"x86\.cpu_features\.features\[0x([01])\]\.cpuid\[0x([12])\]=0x([0-9a-f]{1,8})")


@functools.cache
def processor(host: Host) -> tuple[str, ...] | None:
    """Which instructions programs under Valgrind find, of those that cryptography uses; None where none are told."""
    try:
        done = host.run(["valgrind", "--tool=none", "--quiet", _LOADER, "--list-diagnostics"], check=False)
    except HostLostError:
        raise
    except TestbedError:
        return None
    return flags(done.stdout)


def flags(said: str) -> tuple[str, ...] | None:
    """Names of the instructions that the loader's diagnostics tell of, None if they tell of none."""
    registers = {(int(leaf), int(number)): int(value, 16) for leaf, number, value in _REGISTER.findall(said)}
    if not registers.keys() >= _FLAGS.keys():
        return None
    return tuple(
        sorted(name for where, bits in _FLAGS.items() for bit, name in bits.items() if registers[where] >> bit & 1)
    )


class Counts:
    """Callgrind around both endpoints of one run; what is kept goes to the run's directory."""

    def __init__(
        self, settings: Instructions, directory: Path, callers: Mapping[str, int | None] | None = None
    ) -> None:
        """*callers*: how many are distinguished of a role at most; None for as many as the settings say."""
        self.settings = settings
        self.directory = directory
        self._callers = callers or {}
        self._hosts: dict[str, Host] = {}

    def held(self, role: str, host: Host, argv: Sequence[str]) -> list[str]:
        """The command that counts the instructions of `argv` on a host."""
        self._hosts[role] = host
        place = host.place(self.directory)
        words = ["setarch", "--addr-no-randomize", "valgrind", "--tool=callgrind", "--cache-sim=no", "--vgdb=no"]
        words += ["--trace-children=yes", f"--separate-callers={self.callers(role)}", "--dump-line=no"]
        words += [f"--dump-before={ENDS}"]
        words += [f"--log-file={place / role}.valgrind.%p", f"--callgrind-out-file={place / role}.callgrind.%p"]
        return [*words, *argv]

    def callers(self, role: str) -> int:
        """How many callers of a function are distinguished."""
        most = self._callers.get(role)
        return self.settings.callers if most is None else min(self.settings.callers, most)

    def attach(self, role: str, process: Process) -> None:
        """Nothing is left to do: the program counts from its beginning."""

    def stop(self) -> dict[str, float]:
        """Counting takes no processor time but that of the programs."""
        return {}

    def resolve(self) -> None:
        """Nothing is left to do: the programs have written names of functions."""

    def clear(self) -> None:
        """Nothing is left on the hosts."""

    def fold(self, begin: int, end: int) -> dict[str, Any]:  # noqa: ARG002 (whole programs are counted)
        """Write ``<role>.folded.gz`` of what the programs executed; returns what was counted.

        Raises PerfError if the counts of a program are missing or damaged.
        """
        facts: dict[str, Any] = {"event": INSTRUCTIONS, **self.settings.model_dump()}
        for role in self._hosts:
            stacks: Counter[str] = Counter()
            files = _complete(sorted(self.directory.glob(f"{role}.callgrind.*")))
            if not files or len(files) > MOST_FILES:
                raise PerfError(f"{len(files)} files with counts of the {role}: {self.said(role) or 'of any process'}")
            for file in files:
                try:
                    with untrusted.opened(file, MOST_BYTES) as content:
                        counted = read(line.decode(errors="replace") for line in content)
                except (PerfError, UntrustedError) as error:
                    raise PerfError(f"{file.name}: {error}") from None
                stacks.update(counted.stacks)
                facts["tool"] = counted.creator
            write_folded(self.directory / folded_name(role), stacks)
            read_of = {"files": len(files), "callers": self.callers(role)}
            facts[role] = {"instructions": stacks.total(), "stacks": len(stacks), **read_of}
        found = {role: processor(host) for role, host in self._hosts.items()}
        facts["processor"] = list(found["client"] or ()) if found["client"] == found["server"] else found
        return facts

    def said(self, role: str = "*") -> str:
        """What Valgrind says of a program that it cannot run, of either one unless told of which; may be empty."""
        for file in sorted(self.directory.glob(f"{role}.valgrind.*")):
            with suppress(UntrustedError):
                for line in untrusted.beginning(file, 1 << 16).decode(errors="replace").splitlines():
                    if "valgrind:" in line or "Assertion" in line:
                        return untrusted.one_line(line, 200)
        return ""

    def discard(self) -> None:
        """Remove what Callgrind wrote from the run's directory: folded stacks have all of it."""
        for role in self._hosts:
            for kind in ("callgrind", "valgrind"):
                for file in self.directory.glob(f"{role}.{kind}.*"):
                    trees.remove(file)


def _complete(files: Sequence[Path]) -> list[Path]:
    """Files with counts, without the last one of each process that wrote some before its end.

    The name of these ends with the number of the process and their own, that of the last one with that of the process.
    """
    before = {file.with_suffix("") for file in files if file.with_suffix("").suffix.strip(".").isdigit()}
    return [file for file in files if file not in before]


# ---- reading what Callgrind writes -----------------------------------------------------------------------------------

_NAMED = re.compile(r"(fn|ob|fl|fi|fe|cfn|cob|cfi|cfl)=(?:\((\d{1,9})\)(?: (.+))?|(.*))$")
_COSTS = re.compile(r"(?:[+-]?\d{1,18}|\*)(?: (\d{1,18}))?$")
_CALLS = re.compile(r"calls=\d{1,18}(?: (?:[+-]?\d{1,18}|\*))?$")
_HEADER = re.compile(r"([a-z]{1,20}):(?: (.*))?$")
_KINDS = {"fn": "fn", "cfn": "fn", "ob": "ob", "cob": "ob"}


@dataclass
class Counted:
    """Instructions of one process."""

    stacks: Counter[str] = field(default_factory=Counter)
    """By folded stack."""
    creator: str = ""


def read(lines: Iterable[str]) -> Counted:
    """The counts in a file of Callgrind's; PerfError if it is damaged, or ends before it is complete.

    Its format is in Valgrind's manual (Callgrind Format Specification). A function has its own instructions and, after
    `calls=`, those of what it calls, which are counted there. With callers it is called ``function'caller'caller``.
    """
    found = Counted()
    names: dict[tuple[str, str], str] = {}
    own: dict[tuple[str, str], int] = {}
    at: dict[str, str] = {"fn": "", "ob": ""}
    comm, total, called = "", None, False
    for number, line in enumerate(map(str.rstrip, lines), 1):
        if called:
            if not _COSTS.match(line):
                raise _damaged(number, line)
            called = False
        elif (named := _NAMED.match(line)) is not None:
            key, reference, given, plain = named.groups()
            if (kind := _KINDS.get(key)) is None:
                continue
            name = _name(names, (kind, reference), given) if reference else plain
            if name is None or len(names) > _MOST_NAMES:
                raise _damaged(number, line)
            if key == kind:
                at[kind] = name
        elif (costs := _COSTS.match(line)) is not None:
            if not at["fn"]:
                raise _damaged(number, line)
            own[at["ob"], at["fn"]] = own.get((at["ob"], at["fn"]), 0) + int(costs[1] or 0)
        elif _CALLS.match(line):
            called = True
        elif (header := _HEADER.match(line)) is not None:
            if header[1] == "events" and header[2] != "Ir":
                raise PerfError(f"counts {untrusted.shown(header[2], 60)!r} instead of instructions")
            if header[1] == "creator":
                found.creator = untrusted.shown(header[2], 60)
            if header[1] == "cmd":
                comm = (header[2] or "").strip().split(" ", 1)[0].rpartition("/")[2]
            if header[1] == "totals":
                total = int(header[2]) if re.fullmatch(r"\d{1,18}", header[2] or "") else -1
        elif line and not line.startswith("#"):
            raise _damaged(number, line)
    if total is None:
        raise PerfError("ends before its total, as if the process was killed before all was written")
    if total != sum(own.values()):
        raise PerfError(f"damaged counts: {sum(own.values())} instructions of functions, {total} in all")
    for stack, count in _folded(own):
        if count:
            found.stacks[f"{_plain(comm) or 'program'};{stack}"] += count
    return found


def _damaged(number: int, line: str) -> PerfError:
    return PerfError(f"damaged counts: line {number}: {untrusted.shown(line, 60)!r}")


def _name(names: dict[tuple[str, str], str], key: tuple[str, str], given: str | None) -> str | None:
    """What a number stands for, which is given where it is first used."""
    if given is not None:
        names[key] = given
    return names.get(key)


def _folded(own: dict[tuple[str, str], int]) -> Iterator[tuple[str, int]]:
    """Stacks of functions, the outermost caller first."""
    split = {name: _functions(name) for _, name in own}
    # where a caller is, its own instructions tell
    places: dict[str, str] = {}
    for place, name in own:
        places.setdefault(split[name][0], _plain(place.rpartition("/")[2]))
    for (place, name), count in own.items():
        innermost, *callers = split[name]
        frames = [f"{_plain(place.rpartition('/')[2]) or UNKNOWN}`{innermost}"]
        frames += [f"{UNKNOWN if one == UNKNOWN else places.get(one, UNKNOWN)}`{one}" for one in callers]
        yield ";".join(reversed(frames)), count


def _functions(name: str) -> list[str]:
    """A function and its callers; what calls itself has the depth of that as another name behind its own."""
    return [
        UNKNOWN if re.fullmatch(r"0x[0-9a-f]+|\?\?\?|\(below main\)", one) else _plain(one)
        for position, one in enumerate(name.split("'"))
        if position == 0 or not one.isdigit()
    ]


def _plain(text: str) -> str:
    # as `quicbed.measure.profile` writes frames
    return text.replace("; ", ", ").replace(";", ":").replace("\t", " ").replace("\r", " ")
