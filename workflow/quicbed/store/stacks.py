"""Folded stacks: samples of a run's endpoints, as files beside run.json.

They are gzipped. In archives of reference data they are not, and have `PLAIN_SUFFIX` behind their name: stacks of one
run resemble those of another, which a compressor sees where it sees both.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from quicbed.base import durable, untrusted
from quicbed.base.errors import QuicbedError

FOLDED_SUFFIX = ".folded.gz"
PLAIN_SUFFIX = ".plain"

INSTRUCTIONS = "instructions"
"""What was counted, in `host.perf.event` of a run, where it is not samples."""

KERNEL_OBJECT = "kernel"
UNKNOWN = "[unknown]"

_GZIP = b"\x1f\x8b"  # RFC 1952, 2.3.1

_COUNT = re.compile(r"0*[1-9][0-9]{0,11}")

Stacks = Counter[tuple[str, ...]]
"""Samples by stack: frames from the innermost to the outermost, as ``object`symbol``, without the comm."""


class PerfError(QuicbedError):
    """perf cannot record or its output cannot be read; one line."""


def folded_name(role: str) -> str:
    """Name of the file with the folded stacks of a role."""
    return f"{role}{FOLDED_SUFFIX}"


def write_folded(file: Path, folded: Mapping[str, int]) -> None:
    """Write folded stacks, gzipped; equal stacks give equal bytes. PerfError if they are too many to be read again."""
    content = folded_bytes(folded)
    if len(content) > untrusted.MOST_BYTES:
        size = f"{len(folded)} stacks take {len(content) >> 20} MiB"
        raise PerfError(f"{size}: distinguish fewer callers of instructions, or sample less often")
    durable.write_bytes(file, gzip.compress(content, mtime=0))


def folded_bytes(folded: Mapping[str, int]) -> bytes:
    """Folded stacks as a file has them before it is gzipped."""
    return "".join(f"{stack} {count}\n" for stack, count in sorted(folded.items())).encode()


def read_folded(content: bytes) -> Stacks:
    """Stacks of a folded file's content, gzipped or not; PerfError if it is damaged or empty."""
    stacks: dict[tuple[str, ...], int] = {}
    try:
        text = (untrusted.gunzip(content) if content.startswith(_GZIP) else content).decode()
        for line in text.removesuffix("\n").split("\n") if text else []:
            stack, _, count = line.rpartition(" ")
            frames = tuple(stack.split(";")[:0:-1])
            if not frames or not _COUNT.fullmatch(count):
                raise ValueError(f"not a stack and its samples: {untrusted.shown(line, 60)!r}")
            stacks[frames] = stacks.get(frames, 0) + int(count)
    except ValueError as error:
        raise PerfError(f"damaged folded stacks: {error}") from None
    if not stacks:
        raise PerfError("folded stacks without a sample")
    return Counter(stacks)
