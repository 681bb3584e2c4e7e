"""Perf samples of "QUIC on the Highway": the text of ``perf script``, folded and sorted into categories.

Samples of the whole host were recorded. Those between the first and the last sample of the endpoint's process are
kept; the endpoint's are folded as ``stackcollapse-perf.pl`` of FlameGraph does, each counting as many as its period
(cycles), and a stack belongs to the category of the first regular expression of the mapping that matches it. Not to
weight them would count the short periods at the begin of a recording, and those of a processor that wakes up, as much
as the others.
"""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping as AnyMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from quicbed.base import untrusted
from quicbed.importers import names
from quicbed.importers.files import zstd

REGEX = "regex:"
_HEADER = re.compile(rb"^(\S(?:.*?\S)??)\s++-?\d++(?:/-?\d++)?\s++(?:\[\d++\]\s++)?\d++\.\d++:\s++(?:(\d{1,18})\s)?")
"""First line of a sample: comm, process id (-1 if it has ended), processor, time, period."""
_FRAME = re.compile(rb"^\s+[0-9a-f]+ (.*) \((.*)\)$")
_OFFSET = re.compile(rb"\+0x[0-9a-f]+$")

LONGEST_HEADER = 4096
MOST_FRAMES, MOST_SYMBOLS, MOST_STACKS = 10_000, 1_000_000, 1_000_000
"""What a recording may hold, so that it does not fill the memory."""
MATCHING_S = 60.0
"""Processor time for sorting one recording."""

Mapping = list[tuple[re.Pattern[str] | str, str]]
"""Patterns, or whole stacks, and their categories, in the order in which they are tried."""


class PerfTextError(Exception):
    """A recording that cannot be used, in words that are the same for every such file."""


@dataclass
class Profile:
    """Samples of one endpoint."""

    stacks: Counter[str] = field(default_factory=Counter)
    """``comm;outermost;...;innermost`` and its samples, weighted by their periods."""
    all_samples: int = 0
    """The same of the whole host between the endpoint's first and last sample."""


def program(implementation: str, role: str) -> str:
    """Name of an endpoint's process: what the runner told pidstat to watch."""
    library, _ = names.library(implementation)
    if library == names.TCP:
        return "nginx-server" if role == "server" else "wget"
    if library == "lsquic":
        return f"http_{role}"
    return {"picoquic": "picoquicdemo", "mvfst": "hq"}.get(library, f"{library}-{role}")


def mapping(document: AnyMapping[str, Any]) -> Mapping:
    """A mapping as the data set has it: ``regex:<expression>`` or a whole stack, to ``CATEGORY (detail)``."""
    found: Mapping = []
    for key, category in document.items():
        if not isinstance(category, str):
            continue
        name = category.partition(" ")[0]
        if key.startswith(REGEX):
            try:
                found.append((re.compile(key.removeprefix(REGEX), re.IGNORECASE), name))
            except (re.error, OverflowError, RecursionError):
                continue
        else:
            found.append((key, name))
    return found


def fold(compressed: bytes, comm: str) -> Profile:
    """Fold a compressed recording; a `PerfTextError` if it is damaged or has no sample of the process *comm*."""
    profile = Profile()
    wanted = comm.encode()
    # samples of others since the last one of the endpoint: they count only if another one follows
    pending = 0
    seen = False
    frames: list[bytes] | None = None
    period = 1
    cache: dict[bytes, bytes] = {}
    stacks: Counter[tuple[bytes, ...]] = Counter()
    try:
        with zstd(compressed) as text:
            for line in text.lines():
                if not line or line[:1].isspace():
                    if frames is not None and (stripped := line.strip()):
                        name = cache.get(stripped)
                        if name is None:
                            if len(cache) >= MOST_SYMBOLS or len(frames) >= MOST_FRAMES:
                                raise PerfTextError("more symbols than a program has, or deeper stacks")
                            name = cache[stripped] = _symbol(line)
                        frames.append(name)
                    elif frames is not None:
                        stacks[tuple(frames)] += period
                        frames = None
                    continue
                found = _HEADER.match(line) if len(line) <= LONGEST_HEADER else None
                if found is None or len(stacks) >= MOST_STACKS:
                    raise PerfTextError("not the text of perf script")
                if frames is not None:
                    stacks[tuple(frames)] += period
                    frames = None
                period = int(found[2] or 1)
                if found[1] == wanted:
                    frames = []
                    profile.all_samples += pending + period
                    pending, seen = 0, True
                elif seen:
                    pending += period
    except OSError as error:
        raise PerfTextError(untrusted.shown(error)) from None
    if frames is not None:
        stacks[tuple(frames)] += period
    if not stacks:
        raise PerfTextError("no sample of the endpoint's process")
    if not stacks.total():
        raise PerfTextError("periods of zero, which are no samples of anything")
    if profile.all_samples >= 1 << 63 or stacks.total() >= 1 << 63:
        raise PerfTextError("periods beyond 64 bits")
    for stack, samples in stacks.items():
        folded = b";".join([wanted, *reversed(stack)]).decode(errors="replace")
        profile.stacks[folded] += samples
    return profile


def _symbol(line: bytes) -> bytes:
    """The name of a frame; one without a symbol is ``[object]``."""
    line = line.rstrip(b"\r\n")
    found = _FRAME.match(line) if line.endswith(b")") else None  # else every bracket would be tried
    if found is None:
        return b"[unknown]"
    symbol, where = found[1], found[2]
    if symbol == b"[unknown]":
        return b"[" + (where.rpartition(b"/")[2] if where != b"[unknown]" else b"unknown") + b"]"
    return _OFFSET.sub(b"", symbol).replace(b";", b":")


def shares(compressed: bytes, comm: str, by: Mapping) -> tuple[dict[str, int], int, int]:
    """Samples of a compressed recording by category, those of the endpoint, and those of the whole host."""
    profile = fold(compressed, comm)
    return categories(profile, by), sum(profile.stacks.values()), profile.all_samples


def categories(profile: Profile, by: Mapping) -> dict[str, int]:
    """Samples by category, with the categories that got none; a stack that nothing matches is in none."""
    counted = dict.fromkeys((category for _, category in by), 0)
    with _bounded(MATCHING_S):
        for stack, samples in profile.stacks.items():
            for pattern, category in by:
                if stack == pattern if isinstance(pattern, str) else pattern.match(stack):
                    counted[category] += samples
                    break
    return counted


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """A `PerfTextError` once a block has taken so much processor time: the patterns are the copy's, and may never end.

    Of the main thread only, to which signals come; it is what a worker process has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ended(*_: object) -> None:
        raise PerfTextError(f"a mapping that sorts no recording in {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
