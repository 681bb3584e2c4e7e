"""Testbeds: the hosts and links measured on.

The driver knows the interfaces in :mod:`.base` only. :mod:`.local` is the testbed of network
namespaces on this machine.
"""

from .base import (
    Capture,
    Completed,
    Exit,
    Host,
    HostLostError,
    LinkSettings,
    Process,
    Role,
    Testbed,
    TestbedError,
)
from .features import Feature, features, require
from .local import LocalTestbed

__all__ = [
    "Capture",
    "Completed",
    "Exit",
    "Feature",
    "Host",
    "HostLostError",
    "LinkSettings",
    "LocalTestbed",
    "Process",
    "Role",
    "Testbed",
    "TestbedError",
    "features",
    "open_testbed",
    "require",
]

_KINDS: dict[str, type[LocalTestbed]] = {"local": LocalTestbed}


def open_testbed(name: str, kind: str) -> Testbed:
    """The testbed of this name and kind, to be used as a context manager."""
    if kind not in _KINDS:
        raise TestbedError(f"testbed {name}: unknown kind {kind!r}; known: {', '.join(_KINDS)}")
    return _KINDS[kind](name)
