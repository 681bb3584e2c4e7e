"""Testbeds: the hosts and links measured on.

The driver knows the interfaces in :mod:`.base` only. :mod:`.local` is the testbed of network
namespaces on this machine, :mod:`.remote` that of hosts reached over SSH.
"""

from __future__ import annotations

from quicbed.config.model import Limits
from quicbed.config.model import Testbed as Settings

from .base import (
    Capture,
    Completed,
    Confined,
    Exit,
    Host,
    HostLostError,
    LinkSettings,
    Process,
    Role,
    Testbed,
    TestbedError,
)
from .capture import tool_of
from .features import Feature, features, require
from .local import LocalTestbed
from .remote import SshTestbed

__all__ = [
    "Capture",
    "Completed",
    "Confined",
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


def open_testbed(
    name: str, kind: str, settings: Settings | None = None, patience_s: float = 0, limits: Limits | None = None
) -> Testbed:
    """The testbed of this name and kind, to be used as a context manager; kind `ssh` needs its settings.

    *patience_s* is how long its hosts are awaited once they are lost, *limits* what is taken from them at most.
    """
    made = _made(name, kind, settings, patience_s)
    if limits is not None:
        made.limits = limits
    return made


def _made(name: str, kind: str, settings: Settings | None, patience_s: float) -> Testbed:
    if kind == "local":
        return LocalTestbed(name, None if settings is None else tool_of(settings))
    if kind == "ssh":
        if settings is None:
            raise TestbedError(f"testbed {name}: kind `ssh` needs what config/testbeds/{name}.yaml says")
        return SshTestbed(name, settings, patience_s)
    raise TestbedError(f"testbed {name}: unknown kind {kind!r}; known: local, ssh")
