"""Variants of experiments: the cryptography of one connection, and what else is varied with it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from quicbed.config.reading import Model, Name
from quicbed.config.testbeds import March

Cipher = Literal["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"]
Aead = Literal["standard", "noop", "noenc"]
Offloads = Literal["off", "gso-gro", "default"]
Pacing = Literal["off", "library", "txtime"]
Gso = Literal["off", "on", "paced"]
Io = Literal["single", "mmsg", "gso", "io-uring", "af-xdp"]
Discipline = Literal["fq", "etf", "etf-launchtime"]
TlsVersion = Literal["TLSv1.2", "TLSv1.3"]
LoadedBy = Literal["endpoint", "chromium"]
Visit = Literal["first", "resumed", "early-data", "kept"]
Chain = Literal["leaf", "leaf-scts", "intermediate", "intermediate-scts", "two-intermediates", "two-intermediates-scts"]


class Frame(Model):
    """A frame size of competing traffic."""

    bytes: int = Field(ge=64, le=9018, description="Size of the frame with its check sequence.")
    share: float = Field(1, gt=0, description="Part of the packets, relative to the other sizes.")


IMIX = (Frame(bytes=64, share=7), Frame(bytes=594, share=4), Frame(bytes=1518, share=1))
"""The "simple IMIX": 7 : 4 : 1 packets of these sizes."""


class Load(Model):
    """Traffic towards the client that competes with the measured one, at a rate in one of three units."""

    percent: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Rate as a part of that of the link: `link.rate_mbit` (kind `iperf3`) or the port's (`trex`).",
    )
    bps: float | None = Field(None, gt=0, description="Rate in bit/s of frames with their check sequence.")
    pps: float | None = Field(None, gt=0, description="Rate in packets/s.")
    frames: list[Frame] | Literal["imix"] = Field(
        default_factory=lambda: [Frame(bytes=1518)],
        min_length=1,
        description="Frame sizes; `imix`: 64, 594 and 1518 bytes in 7 : 4 : 1 packets.",
    )

    @model_validator(mode="after")
    def _one_rate(self) -> Load:
        if sum(rate is not None for rate in (self.percent, self.bps, self.pps)) != 1:
            raise ValueError("needs one of `percent`, `bps` and `pps`")
        return self

    def sizes(self) -> list[Frame]:
        """The frame sizes in their order."""
        return list(IMIX) if self.frames == "imix" else list(self.frames)


class Variant(Model):
    """The cryptography of one connection."""

    label: str = Field(description="Name in figures and tables; unique within the experiment.")
    cipher: Cipher = Field(description="The only cipher suite offered and accepted.")
    aead: Aead = Field(
        "standard",
        description="`noop`: ciphertext = plaintext with a constant 16-byte tag; `noenc`: 1-RTT packets are not "
        "protected and have no tag (A Quantum of QUIC, Sec. III).",
    )
    header_protection: bool = Field(True, description="QUIC header protection (RFC 9001, 5.4); has no meaning for TCP.")
    group: str = Field("x25519", description="The only key-exchange group offered and accepted.")
    signature: str = Field("rsa-2048", description="Signature algorithm of the server's certificate and its CA.")
    chain: Chain = Field(
        "leaf",
        description="What the server sends: its certificate alone, or with those of one or two intermediate "
        "authorities, all of the same signature algorithm; `-scts`: its own has two signed certificate timestamps "
        "(RFC 6962, 3.3).",
    )
    tls_version: TlsVersion = Field(
        "TLSv1.3", description="The only version of TLS offered and accepted; QUIC has none but 1.3 (RFC 9001, 4.2)."
    )
    alpn: Literal["h3"] | None = Field(
        None,
        description="Application protocol: `h3` is HTTP/3 (RFC 9114), of libraries with `supports.http3`; null: that "
        "of the library.",
    )
    bytes: int | None = Field(
        None,
        gt=0,
        description="Size of a download in bytes; null: that of the scale. A run then makes as many connections, one "
        "after the other, as it takes to download the scale's `bytes` in all, at most the scale's `connections`. A "
        "library whose `max_bytes` is less is unsupported.",
    )
    connections: int | None = Field(
        None,
        gt=0,
        description="Connections of a run, one after the other, of a variant with `bytes`; null: as many as `bytes` "
        "says.",
    )
    retry: bool = Field(False, description="The server answers first Initial packets with Retry (RFC 9000, 8.1.2).")
    initial_size: int = Field(
        1200,
        ge=1200,
        le=8972,
        description="UDP payload in bytes of the client's Initial datagrams (RFC 9000, 14.1) and of the largest the "
        "server sends before the handshake is complete.",
    )
    rtt_ms: float = Field(0, ge=0, le=1000, description="Round-trip time added to the link, in ms.")
    rate_mbit: float | None = Field(
        None, ge=1, le=5000, description="Rate limit towards the client in Mbit/s; null: that of `link`."
    )
    page: Name | None = Field(
        None, description="Page that is loaded (workload `page`), of config/pages.csv; its bytes are those of the run."
    )
    loaded_by: LoadedBy = Field(
        "endpoint",
        description="What loads a page: the client of the library, or Chromium as the client's host has it, headless, "
        "in the place of that client (docs/web.md).",
    )
    visit: Visit = Field(
        "first",
        description="Of a page: `first`: over a connection that knows of none before; `resumed`: after a first visit, "
        "whose session it resumes; `early-data`: so too, with the request before the handshake is complete (0-RTT); "
        "`kept`: over the connection of the first visit, which has stayed open. "
        "The first visit is part of the run and is not measured.",
    )
    video: Name | None = Field(
        None,
        description="Video that is played (workload `video`), of config/videos.csv; Chromium loads it, with dash.js "
        "(docs/video.md).",
    )
    rate_trace: Name | None = Field(
        None,
        description="Rates that the link has one after the other while a video is played, of config/rate-traces.csv; "
        "null: `rate_mbit` all the time.",
    )
    loss_percent: float | None = Field(
        None,
        ge=0,
        le=50,
        description="Share of frames in percent that the link loses in each direction, which ones by the seed in "
        "config.yaml and the block: the same for every cell of a block; null: none.",
    )
    reorder_permille: float | None = Field(
        None,
        ge=0,
        le=500,
        description="Packets in a thousand that the link reorders in each direction, selected by the seed in "
        "config.yaml and the block, as with `loss_percent`; 0: the reordering program forwards all unchanged; null: "
        "there is no such program.",
    )
    reorder_packets: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="How many packets later in the same direction such a packet leaves, or once the link is idle.",
    )
    offloads: Offloads | None = Field(
        None,
        description="Offloads of client and server: `off`; `gso-gro`: generic segmentation and receive offload, which "
        "the kernel does itself, only; `default`: all that their interfaces have. With `off`, QUIC endpoints use no "
        "UDP GSO and GRO either. null: as `link.mode` says. With link mode `wire` and `io: gso`, `default` is an arm "
        "with super-frames, in link mode `throughput`.",
    )
    pacing: Pacing | Literal["own"] | None = Field(
        None,
        description="How both endpoints pace, `--pacing` of the contract; `own`: as the library's own programs do, "
        "which is the first that `supports.pacing` has, or `off` where it does not pace the congestion control; null: "
        "what the endpoint does unasked.",
    )
    gso: Gso | None = Field(
        None,
        description="UDP generic segmentation offload on sending; `paced`: batches end where the pacer's next release "
        "time begins. null: that of `workload`.",
    )
    gro: bool | None = Field(None, description="UDP generic receive offload; null: that of `workload`.")
    io: Io | None = Field(
        None,
        description="How both endpoints send and receive datagrams; replaces `gso` and `gro`. `single`: one datagram "
        "per system call; `mmsg`: several, with sendmmsg(2) and recvmmsg(2); `gso`: UDP GSO and GRO; `io-uring`: "
        "io_uring(7); `af-xdp`: AF_XDP sockets, which bypass the kernel's network stack and need link mode `wire`. "
        "Needs `supports.io` of the library. null: as `gso` and `gro` say.",
    )
    io_at: Literal["client", "server"] | None = Field(
        None, description="The only endpoint that `io` applies to, while the other one has `gso`; null: both endpoints."
    )
    congestion_control: str | None = Field(
        None, description="Congestion control of both endpoints; null: that of `workload`."
    )
    qdisc: Discipline | None = Field(
        None,
        description="Queueing discipline of the server's interface: tc-fq(8), tc-etf(8), or the latter with release "
        "times kept by the network card (LaunchTime); null: what the system has.",
    )
    march: March | None = Field(
        None, description="Instruction set that the endpoints are built for; null: that of the testbed's `build`."
    )
    mtu: int | None = Field(
        None,
        ge=1500,
        le=9000,
        description="MTU of the link in bytes, which `--udp-payload` follows; null: that of `link`.",
    )
    receive_buffer: int | None = Field(
        None, gt=0, description="UDP socket buffers in bytes; null: those of `workload`."
    )
    aes_hardware: bool | None = Field(
        None,
        description="Whether the endpoints use the AES instructions of the processor, as both must report; "
        "`false`: they are started with the environment `supports.aes_hardware_off`; null: unchanged, with any "
        "report.",
    )
    background: Load | None = Field(
        None, description="Competing traffic, which the testbed's `generator` sends; null: none."
    )
    load: float | None = Field(
        None,
        gt=0,
        le=4,
        description="Rate at which connections begin, as a share of what one processor of the server could do: the "
        "inverse of its processor time per connection, which a pilot finds with one connection after the other. They "
        "begin whatever becomes of those before; null: one after the other. With `processors`, of all its processors.",
    )
    held: int | None = Field(
        None,
        gt=0,
        le=2000,
        description="Connections, of those of the scale, that stay open until all are, while the memory of the server "
        "is read; null: each one ends with its answer.",
    )
    processors: Literal["all"] | None = Field(
        None,
        description="`all`: as many programs of the server as its host has processors, each with a client of its own "
        "that makes its share of the connections; null: one program at each end.",
    )
    slow: bool = Field(False, description="The scale's `slow_connections` are made instead of its `connections`.")
    flavour: Name | None = Field(
        None,
        description="Build that is measured; default `noop` where the NOOP AEAD is used or QUIC header protection is "
        "off, else `stock`.",
    )
    baseline: str | None = Field(
        None,
        description="Label of the variant this one is compared with; default: the experiment's baseline.",
    )
    against: Name | None = Field(
        None,
        description="Library whose runs are beside those of this variant, where the experiment is `paired`: with the "
        "variant that `baseline` names, by default this one. Null: each library is compared with itself.",
    )
    arm: Literal["main", "control"] = Field(
        "main",
        description="`control`: measured and tabulated to judge the method, not drawn as a result.",
    )


_TLS12_GROUPS = ("x25519", "x448", "p-256", "p-384", "p-521")


def tls12_problem(variant: Variant) -> str | None:
    """What a variant asks of TLS 1.2 that it does not have, or that is not made here; None where it has all."""
    usual = variant.aead == "standard" and variant.signature.startswith("rsa-") and variant.chain == "leaf"
    if variant.tls_version == "TLSv1.3" or (usual and variant.group in _TLS12_GROUPS):
        return None
    groups = ", ".join(_TLS12_GROUPS)
    return f"tls_version TLSv1.2 is for aead standard, an RSA signature, chain leaf and the groups {groups}"
