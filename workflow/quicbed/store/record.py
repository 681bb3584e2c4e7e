"""The model of a run: what run.json holds, written and read here only.

Keys that the model does not name are not read; the driver writes none. Units are in the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from quicbed.base import durable, untrusted
from quicbed.base.models import Count, Integer, Number, Part, Positive, problem, unknown, unless_null
from quicbed.base.untrusted import UntrustedError
from quicbed.plan.arms import ARMS
from quicbed.plan.host import FACTS, Host
from quicbed.plan.variant import Variant
from quicbed.store.paths import RUN_FILE

FORMAT = 2
Status = Literal["ok", "failed", "unsupported"]
STATUSES: tuple[Status, ...] = ("ok", "failed", "unsupported")
Role = Literal["client", "server"]
ROLES: tuple[Role, ...] = ("client", "server")


class RunsError(ValueError):
    """Runs that cannot be read, in one line: a run.json that is truncated, corrupt or not ours."""


def _moment(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r:.60} is no ISO 8601 time") from None
    raise ValueError(f"{value!r:.60} has no time zone")


Moment = Annotated[
    AwareDatetime,
    BeforeValidator(_moment),
    PlainSerializer(lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), when_used="json"),
]


class TestbedFacts(Part):
    """Where a run was measured."""

    __test__ = False  # no test, for pytest

    name: str
    kind: str
    host_id: str | None = None
    cpu_model: str | None = None
    cpus: Integer | None = None
    microcode: str | None = None
    """Unknown of runs that were measured before it was recorded."""
    kernel: str | None = None
    memory: str | None = None
    """In GiB. Of runs that were measured before it was recorded, their session has it."""

    @property
    def host(self) -> Host:
        """As far as it is recorded here."""
        return Host(**{name: getattr(self, name) for name in FACTS})


class CellName(Part):
    """The cell of a run, as planned when it was measured (`quicbed.plan.cells.Cell`)."""

    id: str
    slug: str
    label: str
    arm: str
    baseline: str | None = None


class Side(Part):
    """The build of a library that was client or server."""

    library: str
    flavour: str
    version: str
    build: str
    march: str | None = None
    external: bool | None = None
    """Whether it is an external endpoint (docs/external-endpoints.md)."""


class LinkFacts(Part):
    """The link while the run lasted."""

    mode: str | None = None
    mtu: Integer | None = None
    rate_mbit: Number | None = None
    rtt_ms: Number | None = None
    loss_percent: Number | None = None


class Work(Part):
    """What the connections of a run did."""

    kind: str | None = None
    bytes: Integer | None = None
    connections: Integer | None = None


class Metrics(Part):
    """What was measured. Of a series of handshakes times and counts are medians over its connections."""

    bytes: Count | None = None
    connections: Count | None = None
    goodput_mbps: Positive | None = None
    ttfb_ms: Positive | None = None
    ttfb_ms_mean: Positive | None = None
    ttfb_ms_p25: Positive | None = None
    ttfb_ms_p75: Positive | None = None
    first_byte_ms: Positive | None = None
    confirmed_ms: Positive | None = None
    handshakes_per_s: Positive | None = None
    wall_s: Positive | None = None
    """From the first ClientHello to the last byte or the last close."""
    run_wall_s: Positive | None = None
    """From the start of the server to the end of both programs."""
    overhead_s: Positive | None = None
    """The difference of the two."""
    spent_s: Positive | None = None
    """All that the run took, with preparing the link and storing."""
    client_cpu_s: Positive | None = None
    server_cpu_s: Positive | None = None
    client_cpu_s_per_gib: Positive | None = None
    server_cpu_s_per_gib: Positive | None = None
    client_cpu_ms: Positive | None = None
    server_cpu_ms: Positive | None = None
    client_process_cpu_s: Positive | None = None
    server_process_cpu_s: Positive | None = None
    client_packets_sent: Count | None = None
    client_packets_received: Count | None = None
    client_packets_lost: Positive | None = None
    server_packets_sent: Count | None = None
    server_packets_received: Count | None = None
    server_packets_lost: Positive | None = None
    client_ack_packets: Count | None = None
    """Of a download, packets after the client's handshake, which but for the request acknowledge."""
    client_handshake_packets_sent: Positive | None = None
    client_handshake_bytes_sent: Positive | None = None
    server_handshake_packets_sent: Positive | None = None
    server_handshake_bytes_sent: Positive | None = None
    client_mean_frame_bytes: Positive | None = None
    server_mean_frame_bytes: Positive | None = None
    background_sent_mbps: Positive | None = None
    background_received_mbps: Positive | None = None


class Negotiated(Part):
    """What one end read back from its TLS library; null is what it cannot tell."""

    cipher: str | None = None
    group: str | None = None
    signature: str | None = None
    aead: str | None = None
    header_protection: str | None = None
    hello_retry_request: bool | None = None
    retry: bool | None = None
    aes_hardware: bool | None = None


class Evidence(Part):
    """What shows that a run measured its cell."""

    client: Annotated[Negotiated, BeforeValidator(unless_null)] = Negotiated()
    server: Annotated[Negotiated, BeforeValidator(unless_null)] = Negotiated()
    proof: str | None = None
    """Id of the captured run that proves the variant."""
    unproven: str | None = None
    """What no evidence shows."""
    ttfb: str | None = None
    """Where the times come from, if the client does not tell them."""
    unknown: dict[str, str] | None = None
    """Metrics that the run cannot have, with the reason."""
    seen: dict[str, Any] | None = None
    """What the capture of a download shows (`quicbed.wire.proof.Proof`)."""
    handshake: dict[str, Any] | None = None
    """What the capture of a series of handshakes shows."""
    signatures: list[Integer] | None = None
    """Code points of the signature schemes that a capture of a download with its secrets shows."""


class Pings(Part):
    """Pings before the run: round-trip times in ms."""

    sent: Integer | None = None
    received: Integer | None = None
    mean_ms: Number | None = None
    deviation_ms: Number | None = None
    within_limits: bool | None = None
    attempts: Integer | None = None


class Captured(Part):
    """The run's own capture: its frames, and those that are not in it."""

    tool: str | None = None
    where: str | None = None
    packets: Integer | None = None
    dropped: Integer | None = None
    missing: Integer | None = None
    lost: Integer | None = None


class Share(Part):
    """Processor time from the start to the end of the client; 100 is one processor."""

    percent: Number | None = None
    samples: list[Number] | None = None
    """Of every whole second."""


class Shares(Part):
    """Of both endpoints."""

    client: Annotated[Share, BeforeValidator(unless_null)] = Share()
    server: Annotated[Share, BeforeValidator(unless_null)] = Share()


class Delays(Part):
    """Seconds in which the endpoints were ready to run and no processor was free."""

    client: Number | None = None
    server: Number | None = None


class Options(Part):
    """Some of the values in force that an endpoint read back; all of them are kept."""

    model_config = ConfigDict(extra="allow")

    receive_buffer: Integer | None = None
    gro: bool | None = None
    gso: bool | None = None
    aes_hardware: bool | None = None


class BothOptions(Part):
    """Of both endpoints."""

    client: Annotated[Options, BeforeValidator(unless_null)] = Options()
    server: Annotated[Options, BeforeValidator(unless_null)] = Options()


class Confinement(Part):
    """Who a program of an endpoint ran as, and what held its limits (docs/confinement.md)."""

    endpoint_user: Integer | None = None
    why: str | None = None
    """Why that was not a user of its own."""
    capabilities: list[str] | None = None
    """What it kept of root's."""
    memory_limit: str | None = None
    """How the memory of all its processes was limited."""


class HostFacts(Part):
    """The state of the hosts around a run."""

    run_delay_s: Annotated[Delays, BeforeValidator(unless_null)] = Delays()
    psi_cpu_some_s: Number | None = None
    load_1m: Number | None = None
    foreign_cpu_share: Number | None = None
    driver_cpu_s: Number | None = None
    loss_seed: Integer | None = None
    ping: Annotated[Pings, BeforeValidator(unless_null)] = Pings()
    capture: Annotated[Captured, BeforeValidator(unless_null)] = Captured()
    cpu: Annotated[Shares, BeforeValidator(unless_null)] = Shares()
    options: Annotated[BothOptions, BeforeValidator(unless_null)] = BothOptions()
    max_rss_bytes: dict[str, Integer | None] | None = None
    before: Annotated[dict[str, Number], BeforeValidator(unless_null)] = Field({})
    """Counters of hosts, interfaces and link at the beginning."""
    delta: Annotated[dict[str, Number | None], BeforeValidator(unless_null)] = Field({})
    """By how much they grew."""
    background: dict[str, Any] | None = None
    perf: dict[str, Any] | None = None
    confinement: dict[str, Confinement] | None = None
    """By program."""
    removed: list[str] | None = None
    """What an endpoint left in the run's directory that is not its to leave."""


class Run(Part):
    """run.json: one measurement of one cell in one block."""

    format: Literal[2]
    """Version of this model."""
    testbed: TestbedFacts
    experiment: str
    """`proofs` of a run that was captured to prove a variant."""
    campaign: str
    """Id of all runs that are measured alike, and may be compared."""
    scale: str
    cell: CellName
    client: Side
    server: Side
    block: Integer | None = None
    """Null of warm-up, proofs and cells that were not measured."""
    order: Integer | None = None
    """Place of the cell in its block."""
    attempt: Integer | None = None
    """How often the cell had been measured in its block."""
    seed: Integer | None = None
    """Of all that is random."""
    variant: Annotated[Variant, BeforeValidator(unless_null)] = Variant()
    link: Annotated[LinkFacts, BeforeValidator(unless_null)] = LinkFacts()
    workload: Annotated[Work, BeforeValidator(unless_null)] = Work()
    status: Status
    reason: str | None = None
    """Why it failed, or is unsupported."""
    contaminated: bool | None = None
    """Whether something else disturbed it."""
    contamination: Annotated[list[str], BeforeValidator(lambda value: value or [])] = Field([])
    """The gates that the run went over."""
    contradictions: Annotated[list[str], BeforeValidator(lambda value: value or [])] = Field([])
    """Where what both ends negotiated is not what the cell says."""
    metrics: Annotated[Metrics, BeforeValidator(unless_null)] = Metrics()
    evidence: Annotated[Evidence, BeforeValidator(unless_null)] = Evidence()
    host: Annotated[HostFacts, BeforeValidator(unless_null)] = HostFacts()
    started_at: Moment | None = None

    @model_validator(mode="after")
    def _finished(self) -> Self:
        """A run that succeeded has what it was measured for."""
        if self.status != "ok":
            return self
        if self.cell.arm in ARMS and self.block is None:
            raise ValueError("key 'block' is missing")
        wanted = {"handshake": ("ttfb_ms",), "bulk": ("goodput_mbps", "bytes")}
        for name in wanted.get(self.workload.kind or "", ()):
            if not getattr(self.metrics, name):
                raise ValueError(f"a finished run without a positive 'metrics.{name}'")
        return self


def parse(content: bytes) -> Run:
    """The run that a run.json with this content is of; RunsError names the key that is missing or of a wrong type."""
    try:
        document = untrusted.parse(content)
    except UntrustedError as error:
        raise RunsError(f"{RUN_FILE}: {error}") from None
    if not isinstance(document, dict) or "format" not in document:
        raise RunsError(f"{RUN_FILE}: not a run of quicbed: no key 'format'")
    if document["format"] != FORMAT or isinstance(document["format"], bool):
        raise RunsError(f"{RUN_FILE}: format {document['format']!r:.60}, this version reads format {FORMAT}")
    try:
        return Run.model_validate(document)
    except ValidationError as error:
        raise RunsError(f"{RUN_FILE}: {problem(error)}") from None


def read(file: Path) -> Run:
    """`parse` of a file, which may be anything; RunsError too where it cannot be read."""
    try:
        return parse(untrusted.read(file))
    except UntrustedError as error:
        raise RunsError(f"{RUN_FILE}: {error}") from None


def made(values: Mapping[str, Any]) -> Run:
    """The run of these *values*, all of which the model must name; RunsError if they are none."""
    try:
        run = Run.model_validate(dict(values))
    except ValidationError as error:
        raise RunsError(problem(error)) from None
    if unnamed := unknown(values, run.model_dump(exclude_unset=True)):
        raise RunsError(f"the model of a run does not name {', '.join(unnamed)}")
    return run


def write(file: Path, run: Run) -> None:
    """Write a run.json, whole or not at all."""
    durable.write_bytes(file, content(run))


def content(run: Run) -> bytes:
    """The content of a run's run.json: the values that it was made of, no others."""
    return durable.to_json(run.model_dump(mode="json", exclude_unset=True))
