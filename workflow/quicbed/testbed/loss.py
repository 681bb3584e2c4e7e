"""Frames lost on purpose on the local testbed: where they arrive in the middle, as a seed says.

The program that loses them is that of hosts over SSH (:class:`.agent.FrameLoss`). netem's losses cannot be repeated
before Linux 6.6, which gives it a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .agent import INGRESS, SPLITMIX_1, SPLITMIX_2, SPLITMIX_GAMMA, SPLITMIX_MASK, FrameLoss, loss_threshold
from .base import TestbedError

CLSACT = ["tc", "qdisc", "replace", "dev"]
"""Followed by an interface: it may have programs where frames arrive, and keeps those that it has."""


class Where(Protocol):
    """A host that makes calls in its network namespace and runs tools there."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any: ...

    def run(self, argv: list[str]) -> Any: ...


def drawn(seed: int, index: int) -> int:
    """The number of 32 bits that a program draws for the frame with this index, from 0."""
    value = (seed + (index + 1) * SPLITMIX_GAMMA) & SPLITMIX_MASK
    value = ((value ^ (value >> 30)) * SPLITMIX_1) & SPLITMIX_MASK
    value = ((value ^ (value >> 27)) * SPLITMIX_2) & SPLITMIX_MASK
    return (value ^ (value >> 31)) >> 32


def is_lost(seed: int, index: int, percent: float) -> bool:
    """Whether the frame with this index, from 0, is lost: what the program does, for tests and analyses."""
    return drawn(seed, index) < loss_threshold(percent)


def port_loss(host: Where, interface: str) -> FrameLoss:
    """Loses frames that arrive at a port; :class:`OSError` or :class:`TestbedError` where the kernel cannot do it."""
    loss = FrameLoss()
    try:
        host.run([*CLSACT, interface, "clsact"])
        host.call(loss.attach, interface, INGRESS)
    except BaseException:
        loss.close()
        raise
    return loss


class LinkLoss:
    """Losses of the link in both directions, each with numbers of its own."""

    def __init__(self, host: Where, *, from_client: str, from_server: str) -> None:
        """*from_client* and *from_server* are the ports at which frames of the two arrive."""
        self._percent = 0.0
        try:
            self._to_server = port_loss(host, from_client)
            try:
                self._to_client = port_loss(host, from_server)
            except BaseException:
                self._to_server.close()
                raise
        except OSError as error:
            raise TestbedError(f"middle: cannot lose frames by a seed: bpf: {error.strerror}") from error

    def set(self, percent: float, seed: int = 0) -> None:
        """Lose this share of the frames of each direction, beginning anew with *seed*."""
        self._percent = percent
        self._to_client.set(percent, seed)
        self._to_server.set(percent, ~seed)

    def seed(self, seed: int) -> None:
        """Begin anew with another seed."""
        self.set(self._percent, seed)

    def counters(self) -> dict[str, int]:
        """Frames lost so far by direction."""
        return {"link.lost_to_client": self._to_client.lost, "link.lost_to_server": self._to_server.lost}

    def close(self) -> None:
        """Let go of the kernel's objects."""
        self._to_client.close()
        self._to_server.close()
