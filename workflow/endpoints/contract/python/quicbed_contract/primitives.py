"""The `primitives` program of the contract: its command line, and the timing of one operation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicbed_contract import USAGE
from quicbed_contract.clock import now_ns
from quicbed_contract.options import UsageError

LEAST, MOST = 5, 1000
"""Repetitions of an operation, whatever its duration."""


@dataclass
class Options:
    """What a command line asks for."""

    events: str = "-"
    milliseconds: int = 20
    """Time to spend on one operation."""
    groups: list[str] = field(default_factory=list)
    signatures: list[tuple[str, Path]] = field(default_factory=list)
    """Names, with the directory of ca.pem, server.pem and server.key."""


def parse(arguments: Sequence[str]) -> Options:
    """Options of a program's arguments. Raises UsageError."""
    options = Options()
    words = iter(arguments)
    for word in words:
        if word not in ("--events", "--milliseconds", "--group", "--signature"):
            raise UsageError(f"unknown option {word}")
        value = next(words, None)
        if value is None:
            raise UsageError(f"{word}: the value is missing")
        if word == "--events":
            options.events = value
        elif word == "--group":
            options.groups.append(value)
        elif word == "--milliseconds":
            if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 60_000):
                raise UsageError(f"{word}: not a whole number from 1 to 60000: {value!r}")
            options.milliseconds = int(value)
        else:
            name, equals, directory = value.partition("=")
            if not equals:
                raise UsageError(f"{word}: not NAME=DIRECTORY: {value!r}")
            options.signatures.append((name, Path(directory)))
    return options


def from_command_line() -> Options:
    """Options of this process; does not return for a wrong command line."""
    try:
        return parse(sys.argv[1:])
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(USAGE)


def time(milliseconds: int, operation: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None) -> list[int]:
    """Nanoseconds of repetitions of `operation` on what `prepare` returns, after one that does not count.

    They go on for about `milliseconds`, five times at least and 1000 times at most; only the operation itself is timed.
    """
    operation(prepare())
    end = now_ns() + milliseconds * 1_000_000
    samples: list[int] = []
    while len(samples) < LEAST or (len(samples) < MOST and now_ns() < end):
        prepared = prepare()
        start = now_ns()
        operation(prepared)
        samples.append(now_ns() - start)
    return samples
