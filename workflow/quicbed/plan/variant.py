"""What is varied, as a cell has it and run.json keeps it: one model for what is planned and for what is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict

from quicbed.base.models import Integer, Number, Part, unless_null


class Background(Part):
    """Traffic that was planned to compete with the measured traffic (`quicbed.config.model.Load`)."""

    model_config = ConfigDict(extra="allow")

    percent: Number | None = None


class Variant(Part):
    """What was varied; null if it does not apply to the transport or the workload."""

    cipher: str | None = None
    aead: str | None = None
    header_protection: bool | None = None
    group: str | None = None
    signature: str | None = None
    chain: str | None = None
    """Null for the server's certificate alone."""
    tls_version: str | None = None
    """Null for TLS 1.3, which all runs use that do not vary the version."""
    alpn: str | None = None
    """Null for the application protocol of the library."""
    retry: bool | None = None
    initial_size: Integer | None = None
    rtt_ms: Number | None = None
    rate_mbit: Number | None = None
    page: str | None = None
    loaded_by: str | None = None
    """Null for the library's own client."""
    visit: str | None = None
    """Null for a first one."""
    video: str | None = None
    rate_trace: str | None = None
    """Where there is one, `rate_mbit` is the highest of its rates."""
    mtu: Integer | None = None
    receive_buffer: Integer | None = None
    aes_hardware: bool | None = None
    march: str | None = None
    loss_percent: Number | None = None
    reorder_permille: Number | None = None
    reorder_packets: Integer | None = None
    load: Number | None = None
    held: Integer | None = None
    """Null where each connection ends with its answer."""
    processors: str | None = None
    """Null for one program at each end."""
    offloads: str | None = None
    pacing: str | None = None
    gso: str | None = None
    gro: bool | None = None
    io: str | None = None
    io_at: str | None = None
    """Null for both ends."""
    congestion_control: str | None = None
    qdisc: str | None = None
    background: Annotated[Background, BeforeValidator(unless_null)] = Background()
    groups: list[str] | None = None
    signatures: list[str] | None = None
    """For runs that time primitives: the algorithms."""

    @property
    def reordering(self) -> dict[str, Any]:
        """What the link does to the order of packets, if anything."""
        if self.reorder_packets is None:
            return {}
        return {"reorder_permille": self.reorder_permille or 0, "reorder_packets": self.reorder_packets}

    @property
    def timed(self) -> list[str]:
        """The algorithms whose primitives are timed."""
        return [*(self.groups or ()), *(self.signatures or ())]

    def as_dict(self) -> dict[str, Any]:
        """What was set, as in run.json: what was not varied is not there."""
        return self.model_dump(exclude_unset=True)


class CellVariant(Variant):
    """The variant of a cell: all of its connections have these.

    Where primitives are timed there are none, and only `groups` and `signatures` are set.
    """

    cipher: str = ""
    aead: str = ""
    group: str = ""
    signature: str = ""
    rtt_ms: Number = 0
    loss_percent: Number = 0
    offloads: Literal["off", "gso-gro", "default"] | None = None
    qdisc: Literal["fq", "etf", "etf-launchtime"] | None = None
    processors: Literal["all"] | None = None

    def without(self, *names: str) -> CellVariant:
        """Without what was varied of these names."""
        return CellVariant.model_validate(self.model_dump(exclude_unset=True, exclude=set(names)))
