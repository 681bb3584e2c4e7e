"""config/experiments/: factors, workload, link and scales behind a figure or table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from quicbed.config.libraries import Library
from quicbed.config.reading import Model, Name
from quicbed.config.variants import Variant, tls12_problem


class Workload(Model):
    """What a connection does."""

    kind: Literal["bulk", "handshake", "page", "video"] = Field(
        description="`bulk`: one download; `handshake`: many fresh connections one after the other, without "
        "resumption, each with a small download; `page`: a web page, its document and then all its objects at once, "
        "over one fresh connection with HTTP/3 or HTTP/2; `video`: a video whose bit rates a player chooses."
    )
    congestion_control: str = Field(
        "cubic",
        description="Congestion control of both endpoints; `any`: the first that each library has, which is CUBIC or "
        "else Reno.",
    )
    receive_buffer: int = Field(
        6815744,
        gt=0,
        description="UDP socket buffers in bytes; the default is 32 x 208 KiB as in A Quantum of QUIC.",
    )
    window: int = Field(16777216, gt=0, description="QUIC flow-control window in bytes.")
    gso: bool = Field(True, description="UDP generic segmentation offload on sending.")
    gro: bool = Field(True, description="UDP generic receive offload.")


class Link(Model):
    """The link between client and server while an experiment runs."""

    mode: Literal["throughput", "wire"] = Field(
        description="`throughput`: segmentation offloads on (captures show 64 kB super-frames); `wire`: off, every "
        "frame at most MTU + 14 bytes. Never compared with each other."
    )
    mtu: int = Field(1500, ge=1280, le=9000, description="MTU of the link in bytes.")
    rate_mbit: float | None = Field(
        None, ge=1, le=5000, description="Rate limit towards the client in Mbit/s (tbf, 1 to 5000); null: none."
    )
    queue_ms: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="Longest time a frame waits in the queue of a rate-limited link, in ms; null: 50.",
    )

    bottleneck: Literal["client"] | None = Field(
        None,
        description="Where hosts over SSH delay and limit what is sent to the client: `client`, as it arrives there, "
        "behind captures and the queueing discipline of the server; null: at the server. The local testbed does so "
        "between the two.",
    )

    @model_serializer(mode="wrap")
    def _as_it_was(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what an experiment does not set, so that its campaigns stay those they were."""
        values: dict[str, Any] = handler(self)
        return {name: value for name, value in values.items() if value is not None or name == "rate_mbit"}

    @model_validator(mode="after")
    def _queue_of_a_limited_link(self) -> Link:
        if self.rate_mbit is None and (self.queue_ms is not None or self.bottleneck is not None):
            raise ValueError("queue_ms, bottleneck: need `rate_mbit`; a link without a limit has no queue")
        if self.rate_mbit is not None and self.rate_mbit < 40 and self.mode != "wire":
            raise ValueError("rate_mbit: below 40 needs mode `wire`")
        return self


class Scale(Model):
    """How much is measured."""

    bytes: int = Field(
        gt=0,
        description="Size of the download in bytes; of no meaning for pages and videos, which have their own.",
    )
    play_s: float | None = Field(
        None,
        gt=0,
        le=600,
        description="Seconds of the video that are played (workload `video`), in whole segments; null: no video.",
    )
    most_bytes: int | None = Field(
        None,
        gt=0,
        description="Variants whose own `bytes` are more are left out at this scale: recorded as unsupported, with "
        "this as the reason; null: none.",
    )
    connections: int = Field(
        1,
        gt=0,
        le=100_000,
        description="Connections of a run (workload `handshake`), or the most of one whose variant has `bytes`.",
    )
    slow_connections: int | None = Field(
        None, gt=0, le=100_000, description="Connections of a run of a variant that is `slow`; default: `connections`."
    )
    blocks: int = Field(gt=0, description="Blocks (repetitions of every cell) at most.")
    min_blocks: int | None = Field(
        None,
        gt=1,
        description="Blocks of all cells, before the contrast selects those that continue; default: `blocks`.",
    )
    max_minutes: float | None = Field(
        None,
        gt=0,
        description="No block beyond `min_blocks` is begun once the runs so far have taken this long; null: no limit.",
    )
    timeout_s: float = Field(60, gt=0, description="A run that takes longer has failed, in seconds.")
    least_s: float | None = Field(
        None,
        gt=0,
        le=600,
        description="A download lasts at least this many seconds. A pilot of `bytes` of every cell says how many bytes "
        "that is; all cells of a pair of libraries download the same. Null: all download `bytes`.",
    )

    def connections_of(self, variant: Variant) -> int:
        """Connections of a run of a variant."""
        if variant.connections is not None:
            return variant.connections
        if variant.bytes is not None:
            return min(self.connections, -(-self.bytes // variant.bytes))
        if variant.held is not None:
            return min(self.connections, variant.held)
        return (self.slow_connections if variant.slow else None) or self.connections

    @model_serializer(mode="wrap")
    def _as_it_was(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is of videos alone, so that studies without any stay those they were."""
        values: dict[str, Any] = handler(self)
        return {name: value for name, value in values.items() if name != "play_s" or value is not None}

    @model_validator(mode="after")
    def _order(self) -> Scale:
        if self.min_blocks is not None and self.min_blocks > self.blocks:
            raise ValueError(f"min_blocks {self.min_blocks} is more than blocks {self.blocks}")
        return self


class Contrast(Model):
    """The comparisons whose precision ends an experiment."""

    labels: list[str] = Field(
        min_length=1, description="Variants that are compared with their baselines, within blocks."
    )
    half_width: float = Field(
        gt=0,
        lt=1,
        description="After `min_blocks`, a pair of libraries is in further blocks only while the 95 % interval of one "
        "of its paired ratios (of goodput or TTFB) is more than this from it on either side, as a fraction of the "
        "ratio; with no pair left the experiment ends.",
    )


class Pair(Model):
    """A client of one library downloading from a server of another."""

    client: Name = Field(description="Library of the client.")
    server: Name = Field(description="Library of the server.")


class Perf(Model):
    """Sampling of both endpoints with perf; runs under it are compared with no others."""

    frequency: int = Field(
        999, ge=10, le=20000, description="Samples per second of processor time; not a multiple of the timer's."
    )
    call_graph: Literal["fp", "dwarf"] = Field(
        "fp",
        description="How stacks are walked: `fp` by frame pointers, which all builds keep; `dwarf` by debug "
        "information, from copies of the stack, with much larger recordings.",
    )


class Instructions(Model):
    """Counting of the instructions of both endpoints with Callgrind; runs under it are compared with no others."""

    handshakes: int = Field(
        5, ge=2, le=100, description="Connections of the run from which the cost of a handshake follows."
    )
    callers: int = Field(
        16,
        ge=1,
        le=32,
        description="How many callers of a function are distinguished; Callgrind takes longer with more.",
    )


def at_start(label: str) -> str:
    """Label of a variant whose run makes one connection for a single byte."""
    return f"{label}, start"


def of_handshakes(label: str) -> str:
    """Label of a variant whose run makes several connections for a single byte each."""
    return f"{label}, handshakes"


class Held(Model):
    """Connections that are held open, whose memory is read."""

    connections: int = Field(
        gt=0, le=2000, description="`held` of the variants; a client has two files open for each connection."
    )
    load: float = Field(gt=0, le=4, description="`load` at which they begin.")


class OpenLoop(Model):
    """Connections that begin at rising rates, made by one client."""

    client: Name = Field(description="Library whose client makes the connections to the servers of all `libraries`.")
    loads: list[Annotated[float, Field(gt=0, le=4)]] = Field(
        min_length=2, description="`load` of the variants, rising: every variant is measured with each of them."
    )

    held: Held | None = Field(
        None, description="Every variant is also measured with connections that are held open; null: it is not."
    )

    @field_validator("loads")
    @classmethod
    def _rising(cls, value: list[float]) -> list[float]:
        if sorted(set(value)) != value:
            raise ValueError("are to rise")
        return value


def at_load(label: str, load: float) -> str:
    """Label of a variant with a load."""
    return f"{label}, load {load:g}"


def held_open(label: str) -> str:
    """Label of a variant whose connections are held open."""
    return f"{label}, held"


MOST_REORDERED_MTU = 1500
"""MTU in bytes up to which a link can hold a frame."""
MOST_BYPASSING_MTU = 1500
"""MTU in bytes up to which AF_XDP sockets have room for a frame."""
SHARED_BY_PAIRS = (
    "mtu",
    "rate_mbit",
    "rtt_ms",
    "loss_percent",
    "reorder_permille",
    "reorder_packets",
    "offloads",
    "qdisc",
    "congestion_control",
    "background",
)
"""Keys of variants that are of the link, or what it is prepared for."""


class Experiment(Model):
    """config/experiments/<name>.yaml: factors, workload, link and scales behind a figure or table."""

    title: str = Field(description="Title in figures.")
    source: str = Field(description="What it reproduces: paper and figure or table.")
    question: str = Field(description="What it answers, in one sentence.")
    workload: Workload = Field(description="What a connection does.")
    link: Link = Field(description="The link while measuring.")
    flavour: Name | None = Field(
        None, description="Build that variants without a `flavour` of their own are measured on."
    )
    primitives: int = Field(
        0,
        ge=0,
        description="In how many blocks the cryptographic primitives of every group and signature algorithm of the "
        "experiment are timed, on every library; 0: not at all.",
    )
    capture: int = Field(
        0,
        ge=0,
        description="In how many blocks every cell is run once more with a capture of its frames' first 128 bytes, as "
        "arm `captured`, which is compared with none; 0: not at all.",
    )
    capture_bytes: int | None = Field(
        None,
        gt=0,
        description="Size in bytes of the download of such a run, where that of the scale is larger; null: as large as "
        "that of any run.",
    )
    libraries: Annotated[list[Name | Pair], Field(min_length=1)] | Literal["all", "quic"] = Field(
        description="Libraries, or pairs of a client's and a server's library; external endpoints that have the "
        "experiment's `flavour` need not be named. `all`: every library in config/libraries/ that is not `optional`; "
        "`quic`: those of them that speak QUIC.",
    )
    pairwise: bool = Field(
        False, description="Every client is measured with every server among `libraries` that it can be paired with."
    )
    open_loop: OpenLoop | None = Field(
        None,
        exclude=True,
        description="Connections begin at rates (workload `handshake`): every variant becomes one for each load, with "
        "the load in its label, compared with the lowest; null: as variants say.",
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict,
        exclude=True,
        description="Keys of variants, with the values that those have which say nothing else, for example "
        "`{cipher: aes-128-gcm}`.",
    )
    variants: list[Variant] = Field(description="Variants measured on every library.", min_length=1)
    baseline: str = Field(description="Label of the variant that the others are compared with, within blocks.")
    aa: bool = Field(
        True,
        description="Measure the baseline twice per block and library: the noise floor of a ratio.",
    )
    contrast: Contrast | None = Field(None, description="Ends the experiment when it is narrow enough.")
    paired: Literal["concurrent"] | None = Field(
        None,
        description="`concurrent`: each variant of the `contrast`, and the A/A arm, is measured at the same time as "
        "its baseline, servers on one processor and clients on another, and their processor times per byte are "
        "compared (workload `bulk`, docs/method.md); null: every run is measured separately.",
    )
    alone: Name | None = Field(
        None,
        exclude=True,
        description="Of an experiment that is `paired`: the experiment whose runs measure the same labels alone, whose "
        "goodput its table shows beside; null: none.",
    )
    failures: Literal["errors", "findings"] = Field(
        "errors",
        description="What a cell is that fails in every run or cannot be proven. `errors`: the experiment ends with an "
        "error once everything else is measured, and a failed run is repeated within its block. `findings`: a result, "
        "recorded with its reason; a failed run is the outcome of its block, a cell whose captured transfer failed is "
        "tried in every block and proven before a run of it counts, and only an experiment without any success ends "
        "with an error. Evidence that contradicts a cell is an error in both.",
    )
    ping: bool = Field(
        False,
        description="Every run is preceded by pings, which are repeated until they are within `gate.ping`; a run "
        "before which they never were is contaminated.",
    )
    perf: Perf | None = Field(
        None, description="Where processor time goes is sampled in every run (workload `bulk`); null: not."
    )
    instructions: Instructions | None = Field(
        None,
        description="Instructions are counted in every run (workload `bulk`), by function. Every variant becomes "
        "three: the download, one of a single byte, and several of those; null: not.",
    )
    trace: bool = Field(
        False,
        description="Every run keeps a compressed capture of the headers of what the server sends, taken before the "
        "link delays or drops it (workload `bulk`, link mode `wire`).",
    )
    scales: dict[Name, Scale] = Field(description="Scales: `quick`, `paper`, `tiny` and others.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Give variants the defaults."""
        if not isinstance(data, dict) or not isinstance(data.get("variants"), list):
            return data
        defaults = data.get("defaults") or {}
        if not isinstance(defaults, dict):
            return data
        known = Variant.model_fields.keys() - {"label"}
        if unknown := sorted(str(key) for key in defaults.keys() - known):
            raise ValueError(f"defaults: `{unknown[0]}` is no key of variants that may be the same in several")
        variants = [defaults | one if isinstance(one, dict) else one for one in data["variants"]]
        return _with_counts(_with_loads(data | {"variants": variants}))

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        labels = [variant.label for variant in self.variants]
        if len(set(labels)) != len(labels):
            raise ValueError("variants: two have the same label")
        if self.baseline not in labels:
            raise ValueError(f"baseline: `{self.baseline}` is not the label of a variant; there are {labels}")
        for label in self.contrast.labels if self.contrast else ():
            if label not in labels:
                raise ValueError(f"contrast.labels: `{label}` is not the label of a variant; there are {labels}")
            if label == self.baseline and self.variant(label).against is None:
                raise ValueError(f"contrast.labels: `{label}` is the baseline itself")
        handshakes = self.workload.kind == "handshake"
        if self.primitives and not handshakes:
            raise ValueError("primitives: needs workload.kind `handshake`")
        if self.perf and self.workload.kind != "bulk":
            raise ValueError("perf: needs workload.kind `bulk`")
        if self.instructions and (self.workload.kind != "bulk" or self.perf or self.trace):
            raise ValueError("instructions: needs workload.kind `bulk`, without perf and trace")
        for variant in self.variants:
            if not handshakes and (variant.retry or variant.slow or variant.initial_size != 1200):
                raise ValueError(
                    f"variants: `{variant.label}`: retry, slow and initial_size need workload.kind `handshake`"
                )
            if self.link.mode != "wire" and (variant.rtt_ms or variant.loss_percent):
                raise ValueError(f"variants: `{variant.label}`: rtt_ms and loss_percent need link.mode `wire`")
            if self.link.mode != "wire" and variant.rate_mbit is not None and variant.rate_mbit < 40:
                raise ValueError(f"variants: `{variant.label}`: rate_mbit below 40 needs link.mode `wire`")
            if self.link.mode == "wire" and variant.offloads and variant.io is None:
                raise ValueError(f"variants: `{variant.label}`: offloads need link.mode `throughput`")
            mtu = variant.mtu or self.link.mtu
            if variant.initial_size > mtu - 28:
                raise ValueError(
                    f"variants: `{variant.label}`: initial_size {variant.initial_size} is more than the link's MTU "
                    f"{mtu} holds without IP and UDP headers, {mtu - 28}"
                )
            if (problem := self._video_problem(variant)) is not None:
                raise ValueError(f"variants: `{variant.label}`: {problem}")
            if variant.loaded_by != "endpoint" and variant.page is None and variant.video is None:
                raise ValueError(f"variants: `{variant.label}`: loaded_by is of workload.kind `page`")
            if (variant.page is None) == (self.workload.kind == "page"):
                raise ValueError(f"variants: `{variant.label}`: page is of workload.kind `page`, where each has one")
            if variant.alpn is not None and self.workload.kind not in ("bulk", "handshake"):
                raise ValueError(f"variants: `{variant.label}`: alpn needs workload.kind `bulk` or `handshake`")
            if variant.visit != "first" and variant.page is None:
                raise ValueError(f"variants: `{variant.label}`: visit is of workload.kind `page`")
            varied = (variant.mtu, variant.receive_buffer, variant.loss_percent, variant.offloads, variant.rate_mbit)
            if handshakes and any(value is not None for value in varied):
                raise ValueError(
                    f"variants: `{variant.label}`: mtu, receive_buffer, loss_percent, offloads and rate_mbit need "
                    "workload.kind `bulk` or `page`"
                )
            if not handshakes and variant.load is not None:
                raise ValueError(f"variants: `{variant.label}`: load needs workload.kind `handshake`")
            if variant.held is not None and variant.load is None:
                raise ValueError(f"variants: `{variant.label}`: held needs load")
            if variant.processors is not None and (variant.load is None or variant.held is not None):
                raise ValueError(f"variants: `{variant.label}`: processors needs open_loop, without `held`")
            sending = (variant.pacing, variant.gso, variant.gro, variant.io, variant.congestion_control, variant.qdisc)
            if handshakes and any(value is not None for value in sending):
                raise ValueError(
                    f"variants: `{variant.label}`: pacing, gso, gro, io, congestion_control and qdisc need "
                    "workload.kind `bulk`"
                )
            problem = self._size_problem(variant) or tls12_problem(variant) or self._reorder_problem(variant)
            if (problem := problem or self._io_problem(variant)) is not None:
                raise ValueError(f"variants: `{variant.label}`: {problem}")
            if (variant.gso, variant.gro) != (None, None) and variant.offloads is not None:
                raise ValueError(
                    f"variants: `{variant.label}`: offloads are for UDP GSO and GRO, too; leave out gso and gro"
                )
            if variant.against is not None and self.paired is None:
                raise ValueError(f"variants: `{variant.label}`: against needs `paired`; other runs are not compared so")
            if variant.baseline is not None and variant.baseline not in labels:
                raise ValueError(
                    f"variants: `{variant.label}` has baseline `{variant.baseline}`, which is no variant's label"
                )
            if variant.aead == "noenc" and variant.header_protection:
                raise ValueError(
                    f"variants: `{variant.label}`: aead noenc leaves out header protection too; set header_protection: "
                    "false"
                )
            if variant.baseline == variant.label:
                raise ValueError(f"variants: `{variant.label}` is its own baseline")
        for name, scale in self.scales.items():
            if (problem := self.scale_problem(scale)) is not None:
                raise ValueError(f"scales: `{name}`: {problem}")
        if self.alone is not None and self.paired is None:
            raise ValueError("alone: is only for experiments that are `paired`")
        if self.paired is not None and (problem := self._paired_problem()) is not None:
            raise ValueError(f"paired: {problem}")
        if self.trace and (self.workload.kind != "bulk" or self.link.mode != "wire"):
            raise ValueError("trace: needs workload.kind `bulk` and link.mode `wire`, where a frame is a packet")
        if self.capture_bytes and (handshakes or not self.capture):
            raise ValueError("capture_bytes: needs capture and workload.kind `bulk`")
        if isinstance(self.libraries, list):
            pairs = [pair if isinstance(pair, str) else (pair.client, pair.server) for pair in self.libraries]
            if len(set(pairs)) != len(pairs):
                raise ValueError("libraries: one is named twice")
            if self.pairwise and any(isinstance(entry, Pair) for entry in self.libraries):
                raise ValueError("libraries: name libraries, not pairs, or leave out `pairwise`")
            if self.open_loop and (self.pairwise or any(isinstance(entry, Pair) for entry in self.libraries)):
                raise ValueError("open_loop: has one client for all servers; name libraries, and leave out `pairwise`")
        return self

    def scale_problem(self, scale: Scale) -> str | None:
        """Why a scale is none of this experiment, or None."""
        if self.workload.kind == "handshake":
            if scale.play_s:
                return "play_s needs workload.kind `video`"
            return "least_s needs workload.kind `bulk`" if scale.least_s else None
        if (scale.play_s is None) == (self.workload.kind == "video"):
            return "play_s is of workload.kind `video`, where each scale has it"
        sized = [variant.bytes is not None for variant in self.variants]
        if scale.slow_connections or (scale.connections != 1 and not all(sized)):
            return "connections need workload.kind `handshake`, or `bytes` in every variant"
        if any(sized) and scale.least_s:
            return "least_s says how much is downloaded, and so do the `bytes` of variants; leave out one of them"
        if scale.most_bytes is not None and not any(sized):
            return "most_bytes is about the `bytes` of variants, and none has any"
        return None

    def variant(self, label: str) -> Variant:
        """The variant of a label, which there has to be."""
        return next(variant for variant in self.variants if variant.label == label)

    def beside(self, variant: Variant) -> Variant:
        """What is measured at the same time as a variant, of its own library or of the one it is `against`."""
        own = self.baseline if variant.against is None else variant.label
        return self.variant(variant.baseline or own)

    def _paired_problem(self) -> str | None:
        """Why variants cannot be measured at the same time as their baselines, or None."""
        if self.workload.kind != "bulk":
            return "needs workload.kind `bulk`"
        besides = {"perf": self.perf, "trace": self.trace, "capture": self.capture, "ping": self.ping}
        if others := [name for name, asked in besides.items() if asked]:
            return f"two runs at the same time have no {others[0]}; leave it out"
        if self.failures == "findings":
            return "a pair with a failed run has no result; leave out failures: findings"
        if self.contrast is None:
            return "`contrast` names what is compared; add it"
        used = {self.baseline}
        for label in self.contrast.labels:
            own, other = self.variant(label), self.beside(self.variant(label))
            used |= {label, other.label}
            for name in SHARED_BY_PAIRS:
                if getattr(own, name) != getattr(other, name):
                    return f"`{label}` and `{other.label}` share the link; give both the same {name}"
        for variant in self.variants:
            if variant.bytes is not None:
                return f"`{variant.label}` has bytes; runs at the same time have sizes by their speeds"
            if variant.label not in used:
                return f"`{variant.label}` is in no pair; add it to contrast.labels, or leave it out"
        return None

    def _video_problem(self, variant: Variant) -> str | None:
        """What does not go together of the video of a variant, or None."""
        if (variant.video is None) == (self.workload.kind == "video"):
            return "video is of workload.kind `video`, where each has one"
        if variant.video is not None and variant.loaded_by != "chromium":
            return "a video is loaded_by `chromium`"
        if variant.rate_trace is not None and variant.video is None:
            return "rate_trace is of workload.kind `video`"
        if variant.rate_trace is not None and variant.rate_mbit is not None:
            return "rate_trace and rate_mbit both say what the rate is; leave out one of them"
        if variant.rate_trace is not None and self.link.mode != "wire":
            return "rate_trace needs link.mode `wire`"
        return None

    def _reorder_problem(self, variant: Variant) -> str | None:
        """Why a variant cannot have packets put back, or None."""
        if variant.reorder_permille is None and variant.reorder_packets is None:
            return None
        if variant.reorder_permille is None or variant.reorder_packets is None:
            return "reorder_permille and reorder_packets need each other: how many, and how far"
        if self.link.mode != "wire" or self.workload.kind == "handshake":
            return "reorder_permille and reorder_packets need link.mode `wire` and workload.kind `bulk` or `page`"
        if (variant.mtu or self.link.mtu) > MOST_REORDERED_MTU:
            return f"reorder_packets needs an MTU of at most {MOST_REORDERED_MTU}: no longer frame is held"
        return None

    def _io_problem(self, variant: Variant) -> str | None:
        """Why datagrams cannot pass as a variant says, or None."""
        if variant.io_at is not None and variant.io in (None, "gso"):
            return "io_at needs io, other than `gso`, which both ends have"
        if variant.io is not None and (variant.gso, variant.gro) != (None, None):
            return "leave out gso and gro, which io stands for"
        if variant.io is not None and variant.offloads is not None:
            if (variant.io, variant.offloads, self.link.mode) != ("gso", "default", "wire"):
                return "leave out offloads, which io stands for; only io `gso` in link.mode `wire` may have `default`"
            if variant.label in {self.baseline, *(one.baseline for one in self.variants)}:
                return "with super-frames it is the baseline of none: a network card sends none"
        if variant.io == "af-xdp" and (self.link.mode != "wire" or (variant.mtu or self.link.mtu) > MOST_BYPASSING_MTU):
            return f"io af-xdp needs link.mode `wire` and an MTU of at most {MOST_BYPASSING_MTU}: no larger frame fits"
        return None

    def _size_problem(self, variant: Variant) -> str | None:
        """Why a variant cannot have a size of its own, or None."""
        if variant.bytes is not None and (self.workload.kind != "bulk" or self.perf or self.trace):
            return "bytes need workload.kind `bulk`, without perf and trace"
        if variant.connections is not None and variant.bytes is None:
            return "connections need bytes"
        return None

    def resolved(self, libraries: Mapping[str, Library], chosen: Sequence[str] | None = None) -> Experiment:
        """The experiment with its libraries by name or pair, and the default flavour in every variant."""
        taking_part = {name: one for name, one in libraries.items() if name in (chosen or ()) or not one.optional}
        named: list[str | Pair]
        if isinstance(self.libraries, list):
            named = list(self.libraries)
            # folders that state its flavour
            named += [
                name
                for name, one in taking_part.items()
                if one.external is not None and self.flavour in one.flavours and name not in named
            ]
        else:
            named = [name for name, one in taking_part.items() if self.libraries == "all" or one.transport == "quic"]
        if chosen is not None:
            named = [
                entry
                for entry in named
                if ({entry} if isinstance(entry, str) else {entry.client, entry.server}) <= set(chosen)
            ]
        if self.pairwise:
            known = [name for name in named if isinstance(name, str) and name in libraries]
            met = [(a, b) for a in known for b in known if libraries[a].pairs_with(libraries[b])]
            # an unknown name stays, for the message about it
            named = [*(Pair(client=a, server=b) for a, b in met), *(name for name in named if name not in known)]
        if self.open_loop is not None and self.open_loop.client in libraries:
            client = libraries[self.open_loop.client]
            named = [
                Pair(client=self.open_loop.client, server=entry)
                if isinstance(entry, str) and entry in libraries
                else entry
                for entry in named
                if not (isinstance(entry, str) and entry in libraries and not client.pairs_with(libraries[entry]))
            ]
        variants = [
            variant if variant.flavour or self.flavour is None else variant.model_copy(update={"flavour": self.flavour})
            for variant in self.variants
        ]
        return self.model_copy(update={"variants": variants, "libraries": named})

    def pairs(self) -> list[Pair]:
        """Client and server library of every combination measured, in the order of the file; needs `resolved`."""
        if isinstance(self.libraries, str):
            raise TypeError(f"libraries `{self.libraries}` of an experiment that is not resolved")
        return [entry if isinstance(entry, Pair) else Pair(client=entry, server=entry) for entry in self.libraries]


def _with_loads(data: dict[str, Any]) -> dict[str, Any]:
    """An experiment's data with every variant at each of its loads; as it is where there are none, or no valid ones."""
    open_loop = data.get("open_loop")
    loads = open_loop.get("loads") if isinstance(open_loop, dict) else None
    variants = data["variants"]
    if not isinstance(loads, list) or not all(isinstance(load, int | float) for load in loads) or not loads:
        return data
    if not all(isinstance(one, dict) and isinstance(one.get("label"), str) for one in variants):
        return data
    if any("load" in one or "held" in one for one in variants):
        raise ValueError("variants: `load` and `held` come from open_loop; leave them out")
    expanded = [
        one
        | {"label": at_load(one["label"], load), "load": load}
        | ({} if load == loads[0] else {"baseline": at_load(one["label"], loads[0])})
        for one in variants
        for load in loads
    ]
    held = open_loop.get("held") if isinstance(open_loop, dict) else None
    if isinstance(held, dict) and {"connections", "load"} <= held.keys():
        expanded += [
            one
            | {"label": held_open(one["label"]), "load": held["load"], "held": held["connections"]}
            | {"baseline": at_load(one["label"], loads[0])}
            for one in variants
            if "processors" not in one
        ]
    return data | {"variants": expanded, "baseline": at_load(str(data.get("baseline")), loads[0])}


def _with_counts(data: dict[str, Any]) -> dict[str, Any]:
    """An experiment's data with what instructions are counted of beside every download; as it is if they are not."""
    counted = data.get("instructions")
    variants = data["variants"]
    if not isinstance(counted, dict) or not all(
        isinstance(one, dict) and isinstance(one.get("label"), str) for one in variants
    ):
        return data
    if any("bytes" in one or "connections" in one for one in variants):
        raise ValueError("variants: `bytes` and `connections` come from instructions; leave them out")
    handshakes = counted.get("handshakes", Instructions.model_fields["handshakes"].default)
    beside = [
        {name: value for name, value in one.items() if name != "baseline"}
        | {"label": label(one["label"]), "bytes": 1, "connections": connections, "arm": "control"}
        for one in variants
        for label, connections in ((at_start, 1), (of_handshakes, handshakes))
    ]
    return data | {"variants": [*variants, *beside]}
