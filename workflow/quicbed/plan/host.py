"""Who measured: what makes two runs those of one host, or of two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quicbed.base.hashing import digest

from . import processors

_BYTES_PER_GIB = 2**30
_CREDIBLE_BYTES = range(2**20, 2**63)


@dataclass(frozen=True)
class Host:
    """The identity of a host, of two hosts at the ends of a link that of both; None is what is not known.

    Runs of two hosts are never compared. A new kernel, microcode or processor makes another host of one machine, and
    so does a fact that is known of one run and not of the other. Of runs from before they were recorded, `processor`
    and `extensions` are not known.
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
    processor: str | None = None
    """Family, model and stepping, as /proc/cpuinfo has them."""
    extensions: str | None = None
    """Flags of /proc/cpuinfo that cryptography depends on, with a space between two."""

    @property
    def identity(self) -> dict[str, str | None]:
        """All of it, without what was not recorded: what was measured before keeps its identity."""
        facts = asdict(self)
        return {name: value for name, value in facts.items() if value is not None or name not in _RECORDED_LATER}

    @property
    def id(self) -> str:
        """A short name for all of it."""
        return digest(self.identity)

    @property
    def described(self) -> str | None:
        """The processor in a line of text: model, generation, vector and crypto extensions."""
        return processors.described(self.cpu_model, self.processor, self.extensions)


_RECORDED_LATER = ("processor", "extensions")


FACTS = tuple(Host.__dataclass_fields__)
"""Names of what identifies a host, in run.json and in the table of runs too."""


def host_of(facts: Mapping[str, Any]) -> Host:
    """The host that the facts of a testbed describe (`Testbed.facts`), which may be recorded ones of any version.

    What they lack is not known.
    """
    found = {name: value if isinstance(value := facts.get(name), str) else None for name in FACTS}
    ends = facts.get("hosts")
    both = [ends.get(role) for role in ("client", "server")] if isinstance(ends, Mapping) else []
    machines = [one for one in (facts, *both) if isinstance(one, Mapping)]
    sizes = [one.get("memory_bytes") for one in machines]
    told = [_rounded(size) for size in sizes if isinstance(size, int) and size in _CREDIBLE_BYTES]
    # before `processor` was recorded, these were only some of the flags
    flags = [one.get("cpu_flags") for one in machines] if found["processor"] else []
    extensions = [" ".join(map(str, own)) for own in flags if isinstance(own, list)]
    joined = {"memory": told, "extensions": extensions}
    return Host(**found | {name: " / ".join(dict.fromkeys(texts)) or None for name, texts in joined.items()})


def _rounded(size: int) -> str:
    gib = size / _BYTES_PER_GIB
    return f"{math.ceil(gib)} GiB" if gib >= 1 else f"{gib:.1f} GiB"
