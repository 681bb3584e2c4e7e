"""Testbeds: the hosts and links measured on.

The driver knows the interfaces in :mod:`.base` only. :mod:`.local` is the testbed of network
namespaces on this machine, :mod:`.remote` that of hosts reached over SSH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from .capture import tool_of
from .features import Feature, features, require
from .local import LocalTestbed

if TYPE_CHECKING:
    from quicbed.config import Testbed as Settings

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


def open_testbed(name: str, kind: str, settings: Settings | None = None, patience_s: float = 0) -> Testbed:
    """The testbed of this name and kind, to be used as a context manager; kind `ssh` needs its settings.

    *patience_s* is how long its hosts are awaited once they are lost.
    """
    if kind == "local":
        return LocalTestbed(name, None if settings is None else tool_of(settings))
    if kind == "ssh":
        if settings is None:
            raise TestbedError(f"testbed {name}: kind `ssh` needs what config/testbeds/{name}.yaml says")
        # loading the SSH library takes a moment that other testbeds need not wait
        from .remote import SshTestbed

        return SshTestbed(name, settings, patience_s)
    raise TestbedError(f"testbed {name}: unknown kind {kind!r}; known: local, ssh")
