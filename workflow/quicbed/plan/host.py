"""Who measured: what makes two runs those of one host, or of two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quicbed.base.hashing import digest

_BYTES_PER_GIB = 2**30
_CREDIBLE_BYTES = range(2**20, 2**63)


@dataclass(frozen=True)
class Host:
    """The identity of a host, of two hosts at the ends of a link that of both; None is what is not known.

    Runs of two hosts are never compared. A new kernel, microcode or processor makes another host of one machine, and
    so does a fact that is known of one run and not of the other.
    """

    host_id: str | None
    """The machine: from the SHA-256 of machine-id(5)."""
    cpu_model: str | None
    microcode: str | None
    """Revision, as /proc/cpuinfo has it."""
    kernel: str | None
    """Release."""
    memory: str | None
    """Rounded up to GiB, because the kernel keeps a part to itself that differs from boot to boot."""

    @property
    def id(self) -> str:
        """A short name for all of it."""
        return digest(asdict(self))


FACTS = tuple(Host.__dataclass_fields__)
"""Names of what identifies a host, in run.json and in the table of runs too."""


def host_of(facts: Mapping[str, Any]) -> Host:
    """The host that the facts of a testbed describe (`Testbed.facts`), which may be recorded ones of any version.

    What they lack is not known.
    """
    found = {name: value if isinstance(value := facts.get(name), str) else None for name in FACTS}
    ends = facts.get("hosts")
    both = [ends.get(role) for role in ("client", "server")] if isinstance(ends, Mapping) else []
    sizes = [one.get("memory_bytes") for one in (facts, *both) if isinstance(one, Mapping)]
    told = [_rounded(size) for size in sizes if isinstance(size, int) and size in _CREDIBLE_BYTES]
    return Host(**found | {"memory": " / ".join(dict.fromkeys(told)) or None})


def _rounded(size: int) -> str:
    gib = size / _BYTES_PER_GIB
    return f"{math.ceil(gib)} GiB" if gib >= 1 else f"{gib:.1f} GiB"
