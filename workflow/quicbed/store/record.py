"""The model of a run: what run.json holds, written and read by it only.

Keys that the model does not name are not read; the driver writes none. Units are in the names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from quicbed.base.models import Count, Integer, Number, Part, Positive, Record, RecordError, unless_null
from quicbed.plan.arms import ARMS
from quicbed.plan.host import FACTS, Host
from quicbed.plan.variant import Variant
from quicbed.store.paths import PACING, RUN_FILE

Status = Literal["ok", "failed", "unsupported"]
STATUSES: tuple[Status, ...] = ("ok", "failed", "unsupported")
Role = Literal["client", "server"]
ROLES: tuple[Role, ...] = ("client", "server")


class RunsError(RecordError):
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


class Machine(Part):
    """The host that ran the measurement."""

    host_id: str | None = None
    cpu_model: str | None = None
    microcode: str | None = None
    """Unknown for runs that were measured before it was recorded."""
    kernel: str | None = None
    memory: str | None = None
    """In GiB. For runs that were measured before it was recorded, the session has it."""
    processor: str | None = None
    """Family, model and stepping. Unknown for runs that were measured before it was recorded, as are `extensions`."""
    extensions: str | None = None
    """Flags of the processor that cryptography depends on, with a space between two."""

    @property
    def host(self) -> Host:
        """As far as it is recorded here."""
        return Host(**{name: getattr(self, name) for name in FACTS})


class TestbedFacts(Machine):
    """Where a run was measured."""

    __test__ = False  # no test, for pytest

    name: str
    kind: str
    cpus: Integer | None = None


class CellName(Part):
    """The cell of a run, as planned when it was measured (`quicbed.plan.cells.Cell`)."""

    id: str
    slug: str
    label: str
    arm: str
    baseline: str | None = None


class Side(Part):
    """The build of a library that ran as the client or the server."""

    library: str
    flavour: str
    version: str
    build: str
    march: str | None = None
    external: bool | None = None
    """Whether it is an external endpoint (docs/external-endpoints.md)."""
    times: bool | None = None
    """Whether this external endpoint reports the times of its connections, so that they include no program start."""


class LinkFacts(Part):
    """The link during the run."""

    mode: str | None = None
    mtu: Integer | None = None
    rate_mbit: Number | None = None
    queue_ms: Number | None = None
    bottleneck: str | None = None
    rtt_ms: Number | None = None
    loss_percent: Number | None = None
    reorder_permille: Number | None = None
    reorder_packets: Integer | None = None


class Work(Part):
    """What the connections of a run did."""

    kind: str | None = None
    bytes: Integer | None = None
    connections: Integer | None = None
    rate_per_s: Number | None = None
    """Planned rate of new connections, whether or not earlier ones have ended; null: one after the other."""
    arrival_seed: Integer | None = None
    """Seed for the planned start times of the connections."""
    visits_before: Integer | None = None
    """Loads before those that are measured, whose session or connection these go on with; null: none."""
    copies: Integer | None = None
    """Programs at each end, which have equal shares of connections and rate; null: one."""


class Metrics(Part):
    """What was measured. For a series of handshakes, times and counts are medians over its connections.

    For a run of several downloads, times are medians too; rates, processor time and packets are for all of them.
    """

    bytes: Count | None = None
    connections: Count | None = None
    goodput_mbps: Positive | None = None
    throughput_mbps: Positive | None = None
    """For downloads: from the ClientHello to the last byte."""
    ttfb_ms: Positive | None = None
    ttfb_ms_mean: Positive | None = None
    ttfb_ms_p25: Positive | None = None
    ttfb_ms_p75: Positive | None = None
    ttfb_ms_p99: Positive | None = None
    """Only for connections that begin at a given rate. Their time to first byte counts from the planned start."""
    late_ms_p99: Positive | None = None
    """How much later than planned the client started these connections."""
    late_share: Positive | None = None
    """Share of these connections that the client started more than 1 ms late."""
    most_in_flight: Count | None = None
    """Largest number of these connections that were open at the same time."""
    memory_none_bytes: Count | None = None
    """For connections that are held open: memory (PSS) of the server and its descendants before the first one."""
    memory_held_bytes: Count | None = None
    """The same with all connections open and idle."""
    memory_per_connection_bytes: Positive | None = None
    """The difference of the two, by connection."""
    first_byte_ms: Positive | None = None
    confirmed_ms: Positive | None = None
    connection_ms: Positive | None = None
    """For a page: from the start of its connection to the complete TLS handshake, including the TCP handshake.

    None where the connection was kept open for it.
    """
    page_first_byte_ms: Positive | None = None
    """For a page: from the start of its connection to the first byte of the document.

    If the connection was kept open for it: from the start of the load.
    """
    page_load_ms: Positive | None = None
    """For a page: from the start of its connection to the last byte of the last object.

    If the connection was kept open for it: from the start of the load.
    """
    load_event_ms: Positive | None = None
    """For a page in a browser: from the start of the navigation to the event `load`."""
    largest_contentful_paint_ms: Positive | None = None
    """For a page in a browser: from the start of the navigation to the largest contentful paint."""
    startup_delay_ms: Positive | None = None
    """For a video: from the start of the navigation to the first frame that is played."""
    bit_rate_mbps: Positive | None = None
    """For a video: mean bit rate of the segments that the player chose."""
    download_rate_mbps: Positive | None = None
    """For a video: bytes of its segments divided by the sum of the times from their request to their last byte."""
    quality_switches: Count | None = None
    """For a video: how often two segments in succession have different bit rates."""
    stalls: Count | None = None
    """For a video: how often it stopped after its start because its buffer was empty, for a frame or longer."""
    stall_s: Positive | None = None
    """For a video: how long it stood still altogether."""
    handshakes_per_s: Positive | None = None
    wall_s: Positive | None = None
    """From the first ClientHello to the last byte or the last close; from the start of a load where there is none."""
    run_wall_s: Positive | None = None
    """From the start of the server until both programs have ended."""
    overhead_s: Positive | None = None
    """The difference between `run_wall_s` and `wall_s`."""
    spent_s: Positive | None = None
    """Total time of the run, including preparing the link and storing the results."""
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
    start_share: Positive | None = None
    """For a download by an external client that does not report times: the share that starting its program takes."""
    client_ack_packets: Count | None = None
    """For a download: packets of the client after its handshake. Except for the request, they are acknowledgements."""
    client_handshake_packets_sent: Positive | None = None
    client_handshake_bytes_sent: Positive | None = None
    server_handshake_packets_sent: Positive | None = None
    server_handshake_bytes_sent: Positive | None = None
    client_mean_frame_bytes: Positive | None = None
    server_mean_frame_bytes: Positive | None = None
    dropped_packets: Count | None = None
    """Packets to the client that were dropped because the queue of a rate-limited link was full."""
    traced_packets: Count | None = None
    """Packets of the server in the run's trace (docs/pacing.md)."""
    gap_ms: Positive | None = None
    """Median of the gaps between these packets."""
    gap_ms_p25: Positive | None = None
    gap_ms_p75: Positive | None = None
    packets_in_trains_to_5: Positive | None = None
    """Share of these packets that are in trains of at most five packets."""
    pacing_precision_us: Positive | None = None
    """Standard deviation of gap minus intended gap, over packets in succession whose release times the server noted."""
    background_sent_mbps: Positive | None = None
    background_received_mbps: Positive | None = None


class Negotiated(Part):
    """What one end read back from its TLS library; null where the library cannot report it."""

    cipher: str | None = None
    group: str | None = None
    signature: str | None = None
    tls_version: str | None = None
    aead: str | None = None
    header_protection: str | None = None
    alpn: str | None = None
    """Left out of runs that were measured before it was kept."""
    hello_retry_request: bool | None = None
    retry: bool | None = None
    resumed: bool | None = None
    early_data: bool | None = None
    aes_hardware: bool | None = None


class Visit(Part):
    """A first visit that is not measured: times in ms from the beginning of its connection."""

    connection_ms: Number | None = None
    page_load_ms: Number | None = None


class Evidence(Part):
    """Evidence that a run measured its cell."""

    client: Annotated[Negotiated, BeforeValidator(unless_null)] = Negotiated()
    server: Annotated[Negotiated, BeforeValidator(unless_null)] = Negotiated()
    proof: str | None = None
    """Id of the captured run that proves the variant."""
    unproven: str | None = None
    """What the evidence does not show."""
    ttfb: str | None = None
    """Where the times come from, if the client does not report them."""
    unknown: dict[str, str] | None = None
    """Metrics that are not available for this run, with the reason."""
    seen: dict[str, Any] | None = None
    """What the capture of a download shows (`quicbed.wire.proof.Proof`)."""
    handshake: dict[str, Any] | None = None
    """What the capture of a series of handshakes shows."""
    signatures: list[Integer] | None = None
    """Code points of the signature schemes in the capture of a download, decrypted with its TLS secrets."""
    visits_before: list[Visit] | None = None
    """First visits, of a run that measures a second one."""
    early_bytes: list[Integer] | None = None
    """Early data of each second visit in the capture of a download, in bytes on the wire."""


class Pings(Part):
    """Pings before the run: round-trip times in ms."""

    sent: Integer | None = None
    received: Integer | None = None
    mean_ms: Number | None = None
    deviation_ms: Number | None = None
    within_limits: bool | None = None
    attempts: Integer | None = None


class Captured(Part):
    """The run's own capture: the frames in it, and the frames that it lacks."""

    tool: str | None = None
    where: str | None = None
    packets: Integer | None = None
    dropped: Integer | None = None
    missing: Integer | None = None
    lost: Integer | None = None


class Share(Part):
    """Processor time from the start to the end of the client; 100 % is one processor."""

    percent: Number | None = None
    samples: list[Number] | None = None
    """Percentage in each whole second."""
    seconds: Number | None = None
    """Processor time in seconds."""


class Shares(Part):
    """Processor time of both endpoints."""

    client: Annotated[Share, BeforeValidator(unless_null)] = Share()
    server: Annotated[Share, BeforeValidator(unless_null)] = Share()


class Delays(Part):
    """Seconds during which each endpoint was ready to run but no processor was free."""

    client: Number | None = None
    server: Number | None = None


class Options(Part):
    """Some of the options in effect that an endpoint read back. run.json keeps all of them."""

    model_config = ConfigDict(extra="allow")

    receive_buffer: Integer | None = None
    gro: bool | None = None
    gso: bool | None = None
    gso_paced: bool | None = None
    io: str | None = None
    xdp: str | None = None
    """Whether AF_XDP copies frames, and where its program is."""
    pacing: str | None = None
    etf: bool | None = None
    congestion_control: str | None = None
    aes_hardware: bool | None = None
    browser: str | None = None
    """Name and version of the browser in the place of a client."""


class BothOptions(Part):
    """Options of both endpoints."""

    client: Annotated[Options, BeforeValidator(unless_null)] = Options()
    server: Annotated[Options, BeforeValidator(unless_null)] = Options()


class Confinement(Part):
    """The user that a program of an endpoint ran as, and how its limits were enforced (docs/confinement.md)."""

    endpoint_user: Integer | None = None
    why: str | None = None
    """Why the program did not have a user of its own."""
    capabilities: list[str] | None = None
    """Capabilities of root that the program kept."""
    memory_limit: str | None = None
    """How the memory of all its processes was limited."""


class HostFacts(Part):
    """The state of the hosts before and during a run."""

    run_delay_s: Annotated[Delays, BeforeValidator(unless_null)] = Delays()
    psi_cpu_some_s: Number | None = None
    load_1m: Number | None = None
    foreign_cpu_share: Number | None = None
    driver_cpu_s: Number | None = None
    loss_seed: Integer | None = None
    reorder_seed: Integer | None = None
    ping: Annotated[Pings, BeforeValidator(unless_null)] = Pings()
    capture: Annotated[Captured, BeforeValidator(unless_null)] = Captured()
    cpu: Annotated[Shares, BeforeValidator(unless_null)] = Shares()
    options: Annotated[BothOptions, BeforeValidator(unless_null)] = BothOptions()
    max_rss_bytes: dict[str, Integer | None] | None = None
    before: Annotated[dict[str, Number], BeforeValidator(unless_null)] = Field({})
    """Counters of hosts, interfaces and link at the start of the run."""
    delta: Annotated[dict[str, Number | None], BeforeValidator(unless_null)] = Field({})
    """How much these counters grew during the run."""
    rate_changes: list[list[Number]] | None = None
    """Of a link that follows a rate trace: seconds since the client started, and the rate in Mbit/s from then on."""
    playback: dict[str, Any] | None = None
    """The course of a video: when its segments were asked for and loaded, and when it stalled."""
    background: dict[str, Any] | None = None
    perf: dict[str, Any] | None = None
    confinement: dict[str, Confinement] | None = None
    """By program."""
    removed: list[str] | None = None
    """What an endpoint was not allowed to leave in the run's directory; it was removed."""


class Together(Part):
    """What a run was measured beside: another one, at the same time and on the same processors (docs/method.md)."""

    pair: str
    """Name that both runs share."""
    beside: str
    """Arm of the other run, which is in the directory of this name beside that of this run."""
    first: bool
    """Whether this one was started first, and had the lower port."""
    port: Integer
    processors: dict[str, Integer]
    """The processor of each end, which both runs share."""
    seconds: Positive | None = None
    """From when both servers had a ClientHello to the end of this run's client.

    This and what follows is missing where a run has failed, unless that is because of too short an overlap.
    """
    overlap: Positive | None = None
    """Share of the longer one of both transfers in which both transferred."""
    client_cpu_s: Positive | None = None
    """Processor time that its client used in these seconds, by the kernel's accounting."""
    server_cpu_s: Positive | None = None


class StudyFacts(Part):
    """The study of a run (config/studies/)."""

    name: str | None = None
    digest: str | None = None
    """Digest of everything that the study decides before measuring."""


class Run(Record):
    """run.json: one measurement of one cell in one block."""

    FORMAT: ClassVar[int] = 2
    NAME: ClassVar[str] = RUN_FILE
    ERROR: ClassVar[type[RecordError]] = RunsError

    format: Literal[2]
    """Version of this model."""
    testbed: TestbedFacts
    experiment: str
    """Name of the experiment; `proofs` for a run that was captured to prove a variant, `compare` for one of a pair."""
    campaign: str
    """Id shared by all runs that were measured the same way and may be compared."""
    scale: str
    study: Annotated[StudyFacts, BeforeValidator(unless_null)] = StudyFacts()
    """Left out if the run was not part of a study."""
    cell: CellName
    client: Side
    server: Side
    block: Integer | None = None
    """Null for warm-up runs, proofs and cells that were not measured."""
    order: Integer | None = None
    """Position of the cell in its block."""
    attempt: Integer | None = None
    """How often the cell had already been measured in its block."""
    seed: Integer | None = None
    """Seed for everything that is random."""
    variant: Annotated[Variant, BeforeValidator(unless_null)] = Variant()
    link: Annotated[LinkFacts, BeforeValidator(unless_null)] = LinkFacts()
    workload: Annotated[Work, BeforeValidator(unless_null)] = Work()
    status: Status
    reason: str | None = None
    """Why the run failed, or why it is unsupported."""
    contaminated: bool | None = None
    """Whether something else disturbed the run."""
    contamination: Annotated[list[str], BeforeValidator(lambda value: value or [])] = Field([])
    """The gates whose limits the run exceeded."""
    contradictions: Annotated[list[str], BeforeValidator(lambda value: value or [])] = Field([])
    """Where the two ends negotiated something other than what the cell specifies."""
    metrics: Annotated[Metrics, BeforeValidator(unless_null)] = Metrics()
    evidence: Annotated[Evidence, BeforeValidator(unless_null)] = Evidence()
    host: Annotated[HostFacts, BeforeValidator(unless_null)] = HostFacts()
    together: Together | None = None
    """Left out of a run that was measured separately."""
    started_at: Moment | None = None

    @model_validator(mode="after")
    def _finished(self) -> Self:
        """A run that succeeded has what it was measured for."""
        if self.status != "ok":
            return self
        if self.cell.arm in ARMS and self.block is None:
            raise ValueError("key 'block' is missing")
        transfer = ("goodput_mbps", "bytes")
        played = ("startup_delay_ms", "bit_rate_mbps", "download_rate_mbps")
        wanted = {"handshake": ("ttfb_ms",), "bulk": transfer, "page": transfer, "video": played}
        for name in wanted.get(self.workload.kind or "", ()):
            if not getattr(self.metrics, name):
                raise ValueError(f"a finished run without a positive 'metrics.{name}'")
        return self


class Pacing(Record):
    """pacing.json: how often each gap and each train length occurs among the server's packets in the trace of a run."""

    FORMAT: ClassVar[int] = 1
    NAME: ClassVar[str] = PACING
    ERROR: ClassVar[type[RecordError]] = RunsError

    format: Literal[1]
    """Version of this model."""
    gap_ns: list[Count]
    """Upper bounds of gaps in ascending order, 100 per decade. A gap counts at the next larger bound."""
    gaps: list[Count]
    """Number of gaps at each bound."""
    train_packets: list[Count]
    """Lengths of trains in ascending order."""
    packets: list[Count]
    """Number of packets in trains of each length."""

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.gap_ns) != len(self.gaps) or len(self.train_packets) != len(self.packets):
            raise ValueError("values and their counts are not equally many")
        return self
