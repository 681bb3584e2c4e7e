"""Configuration: models of every file under config/, read strictly.

Every key is declared here with a description. From these models come the validation, the JSON schemas in
workflow/schemas/ and the key tables in docs/configuration.md, so the three cannot disagree. Unknown keys are errors.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from quicbed.base import untrusted
from quicbed.base.errors import QuicbedError
from quicbed.base.hashing import digest
from quicbed.config import algorithms, pages, videos

Cipher = Literal["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"]
Aead = Literal["standard", "noop", "noenc"]
Component = Literal[
    "boringssl",
    "boringssl-pq",
    "liboqs",
    "liboqs-0.9",
    "msquic",
    "msquic-jumbo",
    "msquic-noop",
    "openssl",
    "openssl-provider",
    "picoquic",
    "picoquic-searched",
    "quictls",
]
Offloads = Literal["off", "gso-gro", "default"]
Pacing = Literal["off", "library", "txtime"]
Gso = Literal["off", "on", "paced"]
Discipline = Literal["fq", "etf", "etf-launchtime"]
March = Literal["native", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
Side = Literal["client", "server"]
TlsVersion = Literal["TLSv1.2", "TLSv1.3"]
LoadedBy = Literal["endpoint", "chromium"]
Visit = Literal["first", "resumed", "early-data", "kept"]
Chain = Literal["leaf", "leaf-scts", "intermediate", "intermediate-scts", "two-intermediates", "two-intermediates-scts"]
PublishedFormat = Literal["highway", "steps", "quic-benchmark", "qir"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=100)]


MOST_BRACKETS = 1000
MOST_LEVELS = 1000
STATEMENT = "quicbed.yaml"
"""File in the folder of an external endpoint, with what it can do (`Statement`)."""


class ConfigError(QuicbedError):
    """A configuration that cannot be used: names the file, the key and the remedy in one line."""


class Model(BaseModel):
    """Base of every configuration model: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


M = TypeVar("M", bound=Model)


class Paths(Model):
    """Where files go, relative to the repository's root."""

    raw: str = Field("raw", description="Runs: append-only, nothing there is ever overwritten or deleted.")
    build: str = Field("build", description="Links to builds, and what is compiled; can be deleted and made again.")
    store: str | None = Field(
        None,
        description="Store of finished builds, components and third-party sources, which clones share; `~` is the home "
        "directory. Null: the variable QUICBED_STORE, else `quicbed` below XDG_CACHE_HOME or `~/.cache`, else `store` "
        "below the directory of builds, where there is no home directory of this user's own.",
    )
    artifacts: str = Field("artifacts", description="Tables, figures and report; can be deleted and made again.")


class PingLimits(Model):
    """Pings before every run of an experiment that asks for them, and what they must show."""

    count: int = Field(20, ge=2, le=1000, description="Pings at a time.")
    interval_ms: float = Field(10, ge=2, le=1000, description="Time between two pings in ms.")
    max_difference_ms: float = Field(
        2, gt=0, description="Largest difference in ms between their mean and the round-trip time of the cell."
    )
    max_deviation_ms: float = Field(1, gt=0, description="Largest standard deviation in ms.")
    attempts: int = Field(
        5, ge=1, le=100, description="How often they are repeated before the run is made none the less and marked."
    )


class Gate(Model):
    """When a run counts as contaminated by something else on the machine."""

    max_run_delay: float = Field(
        0.15,
        gt=0,
        description="Largest share of the run's wall time that the client or the server may have spent runnable but "
        "waiting for a processor (second field of /proc/PID/schedstat). Not asked of endpoints with several `threads`.",
    )
    max_foreign_cpu: float = Field(
        0.10,
        gt=0,
        description="Largest share of all processor time during the run that may have gone to anything but the two "
        "endpoints.",
    )
    retries: int = Field(
        2,
        ge=0,
        le=10,
        description="How often a contaminated run is measured again within its block.",
    )
    link_wait_s: float = Field(
        60,
        ge=0,
        le=3600,
        description="How long a block waits, in s, for a link that is down or not as it was set up, and measuring "
        "for a host that is lost, at least 60 s; then measuring ends, with finished runs kept.",
    )
    ping: PingLimits = Field(default_factory=PingLimits, description="Pings before runs.")


class Limits(Model):
    """What is taken at most from endpoints and hosts, which are other people's programs and machines."""

    line_kib: int = Field(1024, ge=1, le=65536, description="Longest line of an endpoint's events, in KiB.")
    log_mib: int = Field(256, ge=1, le=16384, description="Largest file of an endpoint's events, in MiB.")
    file_mib: int = Field(
        4096,
        ge=1,
        le=2**20,
        description="Largest file that an endpoint may write, its output and complaints included, in MiB besides what "
        "it downloads.",
    )
    memory_mib: int = Field(
        16384, ge=64, le=2**24, description="Largest data segment of a process of an endpoint (RLIMIT_DATA), in MiB."
    )
    total_memory_mib: int = Field(
        16384,
        ge=64,
        le=2**24,
        description="Largest resident memory of all processes of an endpoint together, in MiB.",
    )
    processes: int = Field(
        4096, ge=16, le=2**22, description="Most processes and threads of an endpoint at a time (RLIMIT_NPROC)."
    )
    open_files: int = Field(4096, ge=64, le=2**20, description="Files that a process of an endpoint may have open.")
    goodput_gbps: float = Field(
        400, gt=0, description="Largest goodput that is believed where the link has no rate, in Gbit/s."
    )
    files: int = Field(
        50000,
        ge=16,
        le=10**7,
        description="Most files that a program of an endpoint may leave, or that are taken from a host "
        "over SSH as a run or a build.",
    )
    total_mib: int = Field(
        32768,
        ge=16,
        le=2**24,
        description="Largest size of the files that an endpoint leaves, besides what it "
        "downloads, or of a run or a build that is taken from a host, in MiB.",
    )
    path_bytes: int = Field(
        1024, ge=64, le=4096, description="Longest name of a file, with its directories, that an endpoint leaves."
    )


Picture = Literal["svg", "pdf", "png"]
PICTURES: tuple[Picture, ...] = get_args(Picture)
PICTURES_VARIABLE = "QUICBED_PICTURES"
"""Names `pictures` of the configuration to what draws, separated by commas."""


class Config(Model):
    """config/config.yaml: which experiments are measured, where, and at what scale."""

    testbed: Name = Field("local", description="Name of a file in config/testbeds/, without .yaml.")
    scale: Name = Field(
        "quick",
        description="`quick` (minutes), `paper` (8 GiB and 25 repetitions as published; hours) or `tiny` (seconds, "
        "for trying the workflow); each experiment says what its scales mean.",
    )
    study: Name | None = Field(
        None,
        description="Name of a file in config/studies/, without .yaml, that says instead of `scale`, `seed` and `gate` "
        "how it is measured; null: none.",
    )
    experiments: list[Name] = Field(
        description="Experiments to measure: names of files in config/experiments/, without .yaml. Where only `study` "
        "is overridden, those of the study.",
        min_length=1,
    )
    libraries: list[Name] | None = Field(
        None,
        description="Only these of an experiment's libraries are built and measured; null: all of them.",
        min_length=1,
    )
    seed: int = Field(1, ge=0, description="Seed of the random order of runs; recorded with every run.")
    gate: Gate = Field(default_factory=Gate, description="Contamination gate.")
    limits: Limits = Field(default_factory=Limits, description="Limits of endpoints and hosts.")
    paths: Paths = Field(default_factory=Paths, description="Directories.")
    published: dict[PublishedFormat, str] = Field(
        default_factory=dict,
        description="Local copies of published results, imported beside our own (docs/importing.md): folder, tar "
        "archive or file by format, `highway`, `steps`, `quic-benchmark` or `qir`.",
    )
    pictures: list[Picture] = Field(
        default_factory=lambda: [PICTURES[0]],
        description="Formats that figures are drawn in beside their interactive pages, where there is a Chromium: "
        "`svg`, which notebooks and report show, `pdf` and `png`.",
    )

    @field_validator("experiments")
    @classmethod
    def _unique(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError("names an experiment twice")
        return value


_MOST_CPUS = 8192  # of the kernel (CONFIG_NR_CPUS)


def _cpu_list(text: str) -> str:
    """Check a list of processors as in cpuset(7), "List format"; returns it as the kernel prints it: `0,1` as `0-1`."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = [first, last or first]
        if not all(map(str.isdigit, numbers)) or not int(numbers[0]) <= int(numbers[1]) < _MOST_CPUS:
            raise ValueError("is not a list of processors; write one as `2-5` or `0,2-3`")
    return cpu_ranges(cpus_of(text))


CpuList = Annotated[str, AfterValidator(_cpu_list)]
# A slash stands for a point in the name of an interface, as in sysctl(8): `net.ipv4.conf.eth0/100.rp_filter`.
Sysctl = Annotated[str, Field(pattern=r"^[a-z0-9_-]+(\.[a-zA-Z0-9_-]+(/[a-zA-Z0-9_-]+)*)+$")]
LINK_SYSCTLS = (
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)
"""Kernel settings that every link sets (`quicbed.testbed.shaping.tcp_settings`)."""
Ipv4 = Annotated[str, Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}$")]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:%-]+$")]
Argv = Annotated[list[str], Field(min_length=1)]


def _one_group(text: str) -> str:
    """Check a regular expression with one group."""
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if groups != 1:
        raise ValueError("needs one group, around the number")
    return text


Regex = Annotated[str, AfterValidator(_one_group)]


def cpus_of(text: str) -> list[int]:
    """`0,2-3` to [0, 2, 3]."""
    parts = (part.partition("-") for part in text.split(","))
    return sorted({cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)})


def cpu_ranges(cpus: Iterable[int]) -> str:
    """[0, 2, 3] to `0,2-3`."""
    known = set(cpus)
    begins = sorted(cpu for cpu in known if cpu - 1 not in known)
    ends = sorted(cpu for cpu in known if cpu + 1 not in known)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(begins, ends, strict=True))


class SshAddress(Model):
    """How a host is reached with SSH."""

    address: HostName = Field(description="Host name or address, or an alias of the OpenSSH configuration.")
    port: int | None = Field(None, ge=1, le=65535, description="Port; null: that of the OpenSSH configuration, or 22.")
    user: str | None = Field(None, description="User; null: that of the OpenSSH configuration, or one's own name.")
    key: str | None = Field(
        None,
        description="File of a private key; null: those of the SSH agent and the OpenSSH configuration. A key with a "
        "passphrase has to be in the agent.",
    )
    host_key: str | None = Field(
        None,
        pattern=r"^[a-z0-9@.-]+ [A-Za-z0-9+/=]+$",
        description="Public key of the host that alone is accepted, as in known_hosts without the name; null: the host "
        "has to be in known_hosts. Unknown keys are refused.",
    )


class Interface(Model):
    """An interface of a host, by one of the three."""

    name: str | None = Field(None, pattern=r"^[^/\s]{1,15}$", description="Name.")
    pci: str | None = Field(
        None, pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", description="PCI address, as `0000:3b:00.0`."
    )
    mac: str | None = Field(None, pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$", description="Hardware address.")

    @model_validator(mode="after")
    def _one(self) -> Interface:
        if sum(value is not None for value in (self.name, self.pci, self.mac)) != 1:
            raise ValueError("needs one of `name`, `pci` and `mac`")
        return self


class SshMachine(SshAddress):
    """A machine that is reached with SSH and works for the controller."""

    jump: SshAddress | None = Field(None, description="Host through which it is reached; null: none, or `ProxyJump`.")
    sudo: bool = Field(False, description="The user is not root and may run everything with `sudo -n`.")
    directory: str = Field(
        "/var/lib/quicbed",
        pattern=r"^(/[A-Za-z0-9_.+-]+){2,}$",
        description="Directory of ours on the host: what is deployed, and the record of what is changed.",
    )


class SshHost(SshMachine):
    """A host of a testbed of kind `ssh`. What is not named here is not touched on it."""

    interface: Interface = Field(description="The interface on the measured link.")
    ip: Ipv4 = Field(description="Its IPv4 address, which the host has already.")
    cpus: CpuList | None = Field(
        None, description="Processors of endpoints and of what samples, captures or competes beside them; null: any."
    )
    governor: str | None = Field(None, description="Frequency governor of all processors; null: left as it is.")
    irq_cpus: CpuList | None = Field(
        None, description="Processors that take the interface's interrupts; null: left as they are."
    )
    rings: dict[Literal["rx", "tx"], Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict, description="Entries in the interface's rings (`ethtool -G`)."
    )
    sysctl: dict[Sysctl, int | str] = Field(
        default_factory=dict, description="Kernel settings while the testbed is in use."
    )
    names: dict[HostName, Ipv4] = Field(default_factory=dict, description="Names to add to /etc/hosts.")
    record: list[Sysctl] = Field(default_factory=list, description="Further kernel settings to record.")
    ingress: Argv | None = Field(
        None,
        description="Queueing discipline that arriving frames go through, in the words of tc(8), as `[netem, delay, "
        "10ms]`: at an `ifb` interface that the kernel must have; null: none.",
    )

    @field_validator("sysctl")
    @classmethod
    def _not_of_links(cls, value: dict[str, int | str]) -> dict[str, int | str]:
        for name in LINK_SYSCTLS:
            if name in value:
                own = "workload.congestion_control" if name.endswith("congestion_control") else "its link"
                raise ValueError(f"{name}: every experiment sets this by {own} and would overwrite it; leave it out")
        return value


class TapHost(SshMachine):
    """A host that captures what passes on the measured link of a testbed of kind `ssh`, and sends nothing there."""

    interfaces: list[Interface] = Field(
        min_length=1,
        max_length=2,
        description="What the frames of both directions arrive at: one interface at a mirror port, or two at the "
        "outputs of an optical tap.",
    )


class CaptureCommand(Model):
    """A program of one's own that captures; one for each interface of the tap."""

    command: Argv = Field(
        description="Words of its command line; `{interface}`, `{file}` and `{snaplen}` stand for the interface, the "
        "pcap file with nanoseconds that it writes, and the least number of bytes of a frame to keep.",
    )
    begins: str = Field(min_length=1, description="What it prints once frames are being captured.")
    signal: Literal["INT", "TERM"] = Field("INT", description="Signal that ends it with its file whole.")
    captured: Regex | None = Field(
        None,
        description="Regular expression of what it prints about the frames it has captured, with the number as its "
        "group; null: they are counted in the file.",
    )
    dropped: Regex | None = Field(
        None,
        description="The same for frames it has lost; null: unknown, and only what the interfaces of client and server "
        "count as sent tells of losses.",
    )

    @model_validator(mode="after")
    def _writes(self) -> CaptureCommand:
        if not any("{file}" in word for word in self.command):
            raise ValueError("command: `{file}` is missing, which stands for the file to write")
        return self


class Commands(Model):
    """Programs to run on the controller, as lists of words; each has to succeed."""

    reserve: list[Argv] = Field(default_factory=list, description="Before anything else.")
    boot: list[Argv] = Field(default_factory=list, description="After reserving; then the hosts have to answer.")
    release: list[Argv] = Field(
        default_factory=list,
        description="When everything is put back, also after an error, if anything was reserved or a host was taken.",
    )
    timeout_s: float = Field(900, gt=0, description="Longest time of one command, and of the hosts to answer, in s.")


class TrafficAddress(Model):
    """One end of the packets that TRex generates."""

    ip: str = Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}$", description="IPv4 address.")
    port: int = Field(9, ge=1, le=65535, description="UDP port; 9 is that of the discard protocol.")
    mac: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$",
        description="Hardware address; null: that of TRex's own configuration.",
    )


class Generator(Model):
    """What generates competing traffic on a testbed."""

    kind: Literal["iperf3", "trex"] = Field(
        description="`iperf3`: UDP from the server to the client host; `trex`: a Cisco TRex server in stateless mode, "
        "reached over JSON-RPC (docs/background-traffic.md)."
    )
    host: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.:-]+$", description="Name or address of the TRex server (kind `trex`)."
    )
    rpc_port: int = Field(4501, ge=1, le=65535, description="TCP port of its request socket.")
    port: int = Field(0, ge=0, le=255, description="Its port that sends.")
    receiver: int | None = Field(
        None,
        ge=0,
        le=255,
        description="Its port that the traffic comes back to, which counts what arrived; null: none.",
    )
    user: Name = Field(
        "quicbed",
        description="Name under which the port is acquired; digits that tell controllers and testbeds apart are added.",
    )
    force: bool = Field(False, description="Take the port from another user.")
    source: TrafficAddress = Field(
        default_factory=lambda: TrafficAddress(ip="198.18.0.1"),
        description="Source of the packets; by default of the network for benchmarks (RFC 2544, C.2.2).",
    )
    destination: TrafficAddress = Field(
        default_factory=lambda: TrafficAddress(ip="198.18.0.2"), description="Destination of the packets."
    )
    timeout_s: float = Field(3, gt=0, le=60, description="Longest time of one answer of the TRex server, in seconds.")

    @model_validator(mode="after")
    def _consistent(self) -> Generator:
        if self.kind == "trex" and self.host is None:
            raise ValueError("host: kind `trex` needs the name or address of its server")
        given = self.model_fields_set - {"kind"}
        if self.kind == "iperf3" and given:
            raise ValueError(f"{', '.join(sorted(given))}: only for kind `trex`")
        return self


class Builds(Model):
    """How the endpoints are built that are measured on a testbed."""

    where: Literal["controller", "hosts"] = Field(
        "controller",
        description="`controller`: once, here; `hosts`: each host builds what runs there (kind `ssh`), but for "
        "libraries that are not compiled, which are made here.",
    )
    march: March | None = Field(
        None,
        description="Instruction set that compilers may use: a level of x86-64, or `native`, all that the processor "
        "has which builds, and tuned for it; null: what every processor has. A library that cannot be built for one is "
        "as without; figures say `in part` then.",
    )


class Testbed(Model):
    """config/testbeds/<name>.yaml: the hosts and links measured on."""

    kind: Literal["local", "ssh"] = Field(
        description="`local`: network namespaces on this machine, joined by a bridge; `ssh`: two hosts joined by a "
        "link, reached over SSH (docs/dedicated-testbed.md)."
    )
    description: str = Field("", description="One line for reports.")
    hosts: dict[Literal["client", "server"], SshHost] = Field(
        default_factory=dict, description="The hosts of kind `ssh`: `client` and `server`."
    )
    ssh_config: list[str] | None = Field(
        None, description="OpenSSH configuration files that are honoured; null: `~/.ssh/config`."
    )
    commands: Commands = Field(default_factory=Commands, description="Commands around a campaign (kind `ssh`).")
    build: Builds = Field(default_factory=Builds, description="How endpoints are built.")
    generator: Generator | None = Field(
        None, description="What generates the traffic of variants with `background`; null: they are unsupported."
    )
    tap: TapHost | None = Field(
        None,
        description="A third host that captures (kind `ssh`); null: captures are made at the server's own interface.",
    )
    capture: Literal["tcpdump", "dumpcap"] = Field(
        "tcpdump", description="What captures, at the tap or else at the server."
    )
    capture_command: CaptureCommand | None = Field(
        None, description="A program of one's own that captures in its place, as MoonGen; null: none."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Testbed:
        if self.kind == "local":
            if self.build.where == "hosts":
                raise ValueError("build.where: `hosts` needs kind `ssh`; a testbed of kind `local` is built here")
            for key in ("hosts", "ssh_config", "commands", "tap"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key}: belongs to kind `ssh`; a testbed of kind `local` has no such settings")
            return self
        missing = {"client", "server"} - set(self.hosts)
        if missing:
            raise ValueError(f"hosts: `{min(missing)}` is missing; kind `ssh` needs `client` and `server`")
        client, server = self.hosts["client"], self.hosts["server"]
        if client.ip == server.ip:
            raise ValueError(f"hosts: client and server have the same ip {client.ip}")
        for role, host in self.hosts.items():
            if self.tap is not None and (self.tap.address, self.tap.port) == (host.address, host.port):
                raise ValueError(f"tap: is the {role}; leave it out: captures are made at the server then")
        return self


class Patch(Model):
    """A patch to one third-party package of a flavour."""

    crate: str = Field(description="Package whose source is patched, as named in Cargo.lock.")
    file: str = Field(description="Patch file below workflow/crypto/patches/, applied with -p1.")


class Estimate(Model):
    """What a build takes on two cores; shown before it starts, decides nothing."""

    minutes: float = Field(gt=0, description="Time of the build in minutes.")
    disk_mb: float = Field(gt=0, description="Disk the build takes, its work directory included, in MB.")


class Flavour(Model):
    """One build of a library."""

    patches: list[Patch] = Field(
        default_factory=list,
        description="Patches to third-party sources; a stock flavour has none.",
    )
    features: list[str] = Field(
        default_factory=list,
        description="Cargo features of the endpoint switched on in this flavour.",
    )
    endpoint: str | None = Field(
        None, description="Directory of its endpoint programs, where it has others than the library's `endpoint`."
    )
    package: str | None = Field(
        None, description="Cargo package of its endpoint, where it has another than the library's `package`."
    )
    sources: list[str] = Field(
        default_factory=list,
        description="Further files or directories of this repository that are compiled in.",
    )
    components: list[Component] = Field(
        default_factory=list,
        description="Libraries built once and shared with other builds (`workflow/quicbed/builds/components.py`).",
    )
    algorithms: Literal["listed", "all"] = Field(
        "listed",
        description="`all`: every group and signature algorithm of workflow/crypto/algorithms.csv but those under "
        "`unsupported`; `listed`: those under the library's `supports`.",
    )
    unsupported: dict[str, str] = Field(
        default_factory=dict,
        description="Groups and signature algorithms that this flavour cannot do although `algorithms` is `all`: name "
        "and reason.",
    )
    jumbo: bool = Field(
        False,
        description="Built for larger MTUs than the library as it comes: what varies the MTU is measured on it.",
    )
    estimate: Estimate = Field(description="Time and disk of the build.")

    @model_validator(mode="after")
    def _consistent(self) -> Flavour:
        if self.unsupported and self.algorithms != "all":
            raise ValueError("unsupported: needs `algorithms: all`; without it a flavour has what `supports` lists")
        return self


class Supports(Model):
    """What the endpoints of a library can do; checked against `--describe` of the builds."""

    ciphers: list[Cipher] = Field(description="AEAD cipher suites.")
    groups: list[str] = Field(description="Key-exchange groups of flavours whose `algorithms` are `listed`.")
    signatures: list[str] = Field(
        ["rsa-2048"],
        description="Signature algorithms of certificates, of flavours whose `algorithms` are `listed`.",
    )
    retry: bool | str = Field(True, description="Retry packets: `true`, or the reason why there are none.")
    initial_size: bool | str = Field(
        True, description="Initial datagrams above 1200 bytes: `true`, or the reason why they cannot be."
    )
    congestion_controls: list[str] = Field(description="Congestion controls.")
    tls12: bool = Field(False, description="Whether endpoints over TCP have TLS 1.2 besides 1.3; QUIC has none.")
    noop: bool = Field(description="Whether flavour noop has a NOOP AEAD.")
    noenc: bool = Field(
        False,
        description="Whether 1-RTT packets can be sent without packet protection (NOENC; A Quantum of QUIC, Sec. III).",
    )
    aes_hardware_off: dict[str, str] | str = Field(
        "has no switch for the AES instructions of the processor",
        description="Environment variables with which the endpoints leave the AES instructions of the processor alone, "
        "or the reason why they cannot.",
    )
    udp_payload_max: int | str | None = Field(
        None,
        description="Largest UDP payload in bytes of its datagrams, where `--udp-payload` cannot raise them further, "
        "or the reason why they cannot be above those of the default MTU; null: no limit of its own.",
    )
    header_protection_off: bool = Field(description="Whether flavour noop can switch header protection off.")
    pacing: dict[Pacing, Literal[True] | str] = Field(
        default_factory=dict,
        description="Values of `--pacing`, each with `true` or the reason why it cannot be; the first that can is how "
        "the library's own programs pace. Empty: the endpoint is not told.",
    )
    paces: list[str] | None = Field(
        None, description="Congestion controls whose packets it paces, as the others give it no rate; null: all."
    )
    gso: bool | None = Field(description="UDP GSO on sending; null for TCP.")
    gso_paced: bool | str = Field(
        "sends in one batch what its pacer lets go at once",
        description="`--gso paced`, batches that end where the pacer's next release time begins: `true`, or the reason "
        "why they cannot.",
    )
    release_times: bool | str = Field(
        "keeps the release times of its pacer to itself",
        description="Whether the server can note when each packet was to leave by its pacer: `true`, or the reason why "
        "it cannot.",
    )
    gro: bool | None = Field(description="UDP GRO on receiving; null for TCP.")
    pages: bool = Field(
        False,
        description="Whether its endpoints load pages, several objects over one connection as browsers do, and keep "
        "it for another load (`--visit kept`).",
    )
    http3: bool | str = Field(
        "its endpoints speak one application protocol",
        description="Downloads over HTTP/3 besides those over a bare stream (`--alpn h3`; RFC 9114): `true`, or the "
        "reason why they cannot. A library whose `alpn` is `h3` has no others.",
    )
    resumption: bool | str = Field(
        "its endpoints resume no sessions",
        description="Second visits, whose connection resumes the session of the first (`--visit resumed`): `true`, or "
        "the reason why it cannot.",
    )
    early_data: bool | str = Field(
        "its endpoints resume no sessions",
        description="Second visits that send their request before the handshake is complete (`--visit early-data`; "
        "RFC 8446, 2.3): `true`, or the reason why they cannot.",
    )
    open_loop: bool | str = Field(
        "its client makes one connection after the other",
        description="Connections of the client that begin at a rate, whatever becomes of those before (`--rate`): "
        "`true`, or the reason why they cannot.",
    )


class Notes(Model):
    """Prose for docs/libraries.md."""

    noop: str = Field(description="What the NOOP AEAD covers and how it is made.")
    initial: str = Field(description="Whether Initial packets stay standard in the noop flavour.")
    header_protection: str = Field(description="What switching header protection off does.")
    io: str = Field(description="How the endpoints do I/O, batching, buffers and windows.")
    pacing: str | None = Field(None, description="What its pacer does, and what of that the endpoints use.")
    flavours: str | None = Field(None, description="What its own flavours are, and who computes those of `pq`.")


class Example(Model):
    """The example programs that a library ships, which `make bench` holds our endpoints against.

    In words and file names `{bytes}`, `{port}`, `{root}` (a directory that holds `{bytes}`), `{content}` (that file),
    `{certificate}`, `{key}`, `{ca}` and `{ca_der}` stand for what a transfer has.
    """

    package: str = Field(description="Package whose examples these are, as among its sources.")
    server: list[str] = Field(min_length=1, description="Example that serves, and its command line.")
    client: list[str] = Field(min_length=1, description="Example that downloads, and its command line.")
    files: dict[str, str] = Field(
        default_factory=dict,
        description="Links that the programs expect in their working directory, and what they lead to.",
    )
    received: Regex | None = Field(
        None,
        description="Regular expression of what the client says on standard error about the bytes it has received, "
        "with their number as its group; null: it writes what it receives.",
    )


class External(Model):
    """A folder that keeps the contract of the bare-metal QUIC Interop Runner (docs/external-endpoints.md)."""

    path: str = Field(
        description="The folder, absolute or relative to the repository's root. It holds `quicbed.yaml`, which says "
        "what it is and can do."
    )
    client_path: str | None = Field(None, description="Folder of the client, where it has its own.")
    server_path: str | None = Field(None, description="Folder of the server, where it has its own.")
    parameters: dict[str, str] = Field(
        default_factory=dict,
        description="Further environment variables of the scripts, also in /tmp/interop-variables.json as they see it.",
    )
    root: bool = Field(
        False,
        description="Whether its scripts run as the user of who starts quicbed, in the folder itself, with all that "
        "this user may read and change: for a folder that needs root.",
    )

    @field_validator("parameters")
    @classmethod
    def _not_of_quicbed(cls, value: dict[str, str]) -> dict[str, str]:
        if own := [name for name in value if name.startswith("QUICBED_")]:
            raise ValueError(f"`{own[0]}` is a name of quicbed's own; give it another")
        return value


class ExternalFile(Model):
    """config/libraries/<name>.yaml of an external endpoint: where its folder is."""

    external: External = Field(description="The folder.")
    optional: bool = Field(
        False,
        description="Left out of experiments on `all` libraries; takes part where it is named, also by `libraries` of "
        "config.yaml.",
    )


class StatedFlavour(Model):
    """A flavour of a folder: what it has instead of what is under `supports`."""

    groups: list[str] | None = Field(None, min_length=1, description="Key-exchange groups; null: those of `supports`.")
    signatures: list[str] | None = Field(
        None, min_length=1, description="Signature algorithms; null: those of `supports`."
    )


class StatedSupports(Model):
    """What the scripts of a folder can do, when they are told so in their environment or anyway."""

    ciphers: list[Cipher] = Field(min_length=1, description="AEAD cipher suites, each as the only one.")
    groups: list[str] = Field(min_length=1, description="Key-exchange groups, each as the only one.")
    signatures: list[str] = Field(
        ["rsa-2048"], min_length=1, description="Signature algorithms of the server's certificate."
    )
    congestion_controls: list[Literal["cubic", "reno", "bbr"]] = Field(
        min_length=1, description="Congestion controls; the first one where an experiment asks for none."
    )
    noop: bool = Field(False, description="Whether flavour `noop` has a NOOP AEAD.")
    noenc: bool = Field(False, description="Whether 1-RTT packets can be sent without packet protection (NOENC).")
    header_protection_off: bool = Field(False, description="Whether flavour `noop` can switch header protection off.")
    retry: bool = Field(False, description="Whether its server can send Retry packets.")
    initial_size: bool = Field(False, description="Whether Initial datagrams can be larger than 1200 bytes.")
    udp_payload_max: int = Field(1472, ge=1200, le=65507, description="Largest UDP payload in bytes of its datagrams.")
    receive_buffer: bool = Field(False, description="Whether it sets its socket buffers to the sizes it is told.")
    gso: list[bool] = Field(
        default_factory=list,
        max_length=2,
        description="UDP GSO on sending: `[true, false]` as it is told, `[true]` always, `[false]` never, `[]` not "
        "known.",
    )
    gso_paced: bool = Field(
        False, description="Whether its batches can end where the pacer's next release time begins."
    )
    gro: list[bool] = Field(default_factory=list, max_length=2, description="UDP GRO on receiving, as `gso`.")
    pacing: list[Pacing] = Field(
        default_factory=list,
        description="Ways to pace that it can be told, the first as its library does by itself; empty: not told.",
    )
    paces: list[str] | None = Field(None, description="Congestion controls whose packets it paces; null: all.")
    aes_hardware_off: bool = Field(
        False, description="Whether it can leave the AES instructions of the processor alone."
    )

    @field_validator("pacing", mode="before")
    @classmethod
    def _off_is_false(cls, value: Any) -> Any:
        """What YAML makes of `off`."""
        return ["off" if one is False else one for one in value] if isinstance(value, list) else value


class Statement(Model):
    """quicbed.yaml in the folder of an external endpoint: what it is and what its scripts can do."""

    statement: Literal[1] = Field(description="Version of this format.")
    title: str = Field(min_length=1, max_length=100, description="Name in figures.")
    transport: Literal["quic", "tcp"] = Field("quic", description="What runs under the application protocol.")
    alpn: Literal["hq-interop", "h3", "http/1.1"] = Field(
        "hq-interop", description="Application protocol; only endpoints with the same one are paired."
    )
    tls_library: str = Field("unknown", description="The TLS library it uses.")
    licence: str = Field("unknown", description="Licence of the library, as an SPDX expression.")
    testcases: dict[Literal["bulk", "handshake"], str] = Field(
        {"bulk": "goodput", "handshake": "handshake"},
        description="TESTCASE that the scripts are given, by workload; some folders know `transfer` instead of "
        "`goodput`.",
    )
    qlog: bool = Field(False, description="Whether the scripts are given a QLOGDIR.")
    requests: int = Field(
        1, ge=1, le=100, description="Files that its client downloads at once, which together have the size asked for."
    )
    times: bool = Field(
        False,
        description="Whether its client reports the times of every connection in its event file. Goodput and time to "
        "first byte are then those of the connection, without the start of the program.",
    )
    threads: Literal["one", "several"] = Field(
        "one", description="Whether an endpoint works on one thread, as for libraries that are built here."
    )
    max_bytes: int | None = Field(None, gt=0, description="Largest download in bytes that is asked of it; null: any.")
    flavours: dict[Name, StatedFlavour] = Field(
        default_factory=lambda: {"stock": StatedFlavour()},
        description="Its flavours: `stock`, and `noop`, `pq` or others that experiments ask for; `stock` alone if left "
        "out. The scripts are told which one is wanted.",
    )
    supports: StatedSupports = Field(description="Capabilities.")

    @model_validator(mode="after")
    def _consistent(self) -> Statement:
        if missing := {"bulk", "handshake"} - set(self.testcases):
            raise ValueError(f"testcases: `{min(missing)}` is missing; name the test case of both workloads")
        if "stock" not in self.flavours:
            raise ValueError("flavours: `stock` is missing; add `stock: {}`")
        plain = self.supports.noop or self.supports.header_protection_off
        if plain and "noop" not in self.flavours:
            raise ValueError(
                "flavours: `noop` is missing, which supports.noop and supports.header_protection_off are about; add "
                "`noop: {}`"
            )
        if self.times and self.requests > 1:
            raise ValueError("times: are those of one connection with one request; leave out `requests`")
        return self


class Library(Model):
    """config/libraries/<name>.yaml: one QUIC (or TCP+TLS) implementation."""

    title: str = Field(description="Name in figures.")
    transport: Literal["quic", "tcp", "udp"] = Field(
        description="What runs under the application protocol; `udp`: datagrams alone, without a handshake and TLS."
    )
    tls_library: str = Field(description="The TLS library it uses.")
    licence: str = Field(description="Licence of the library, as an SPDX expression.")
    alpn: Literal["hq-interop", "h3", "http/1.1"] = Field(
        "hq-interop", description="Application protocol of its endpoints; only endpoints with the same one are paired."
    )
    recipe: Name = Field(
        description="How it is built: the name of a module in workflow/quicbed/builds/recipes/, as `cargo` for a "
        "crate in workflow/endpoints/."
    )
    endpoint: str = Field(description="Directory of its endpoint programs below workflow/endpoints/.")
    package: str | None = Field(None, description="Cargo package of the endpoint (recipe `cargo`).")
    crates: list[str] = Field(
        default_factory=list,
        description="Third-party packages of Cargo.lock that make up the library, the first one giving its version. A "
        "recipe that takes its sources elsewhere has a lock file in the endpoint's directory.",
    )
    version: str | None = Field(
        None, description="Version of the library, where the first package has a numbering of its own."
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the build (recipe `cargo`); `{package}` stands for the directory of the "
        "fetched source of a package.",
    )
    flavours: dict[Name, Flavour] = Field(description="Builds: `stock` and others.")
    no_flavour: dict[Name, str] = Field(
        default_factory=dict,
        description="Flavours that other libraries have and this one has not: name and reason.",
    )
    example: Example | None = Field(None, description="Example programs in the library's own sources, for comparison.")
    no_example: str | None = Field(None, description="Why `example` is missing.")
    threads: Literal["one", "several"] = Field(
        "one",
        description="Whether an endpoint works on one thread. Several wait for each other, so that waiting for a "
        "processor does not tell of other work on the machine (gate.max_run_delay); the processor time of others "
        "still does.",
    )
    max_bytes: int | None = Field(
        None,
        gt=0,
        description="Largest download in bytes that is asked of it, for a library so slow that a larger one would take "
        "minutes; goodput is that of the bytes transferred.",
    )
    optional: bool = Field(
        False,
        description="Left out of experiments on `all` libraries; takes part where it is named, also by `libraries` of "
        "config.yaml.",
    )
    supports: Supports = Field(description="Capabilities.")
    notes: Notes = Field(description="What the documentation says about this library.")

    @model_validator(mode="after")
    def _consistent(self) -> Library:
        if "stock" not in self.flavours:
            raise ValueError("flavours: `stock` is missing; every library has an unpatched build")
        if both := self.no_flavour.keys() & self.flavours.keys():
            raise ValueError(
                f"no_flavour: `{min(both)}` is one of `flavours`; tell why it is missing, or describe it, not both"
            )
        stock = self.flavours["stock"]
        if stock.endpoint or stock.package:
            raise ValueError("flavours.stock: endpoint and package are those of the library; leave them out here")
        if stock.patches or stock.features:
            raise ValueError("flavours.stock: a stock build has neither patches nor features; move them to another")
        if self.recipe == "cargo" and not self.package:
            raise ValueError("package: is missing; recipe `cargo` needs the endpoint's Cargo package")
        if self.recipe == "cargo" and not self.crates:
            raise ValueError("crates: is missing; recipe `cargo` takes sources and version from packages of Cargo.lock")
        if self.example is not None and self.no_example is not None:
            raise ValueError("no_example: tells why there is no example, but `example` has one; remove one of the two")
        return self

    @property
    def external(self) -> ExternalLibrary | None:
        """The library, if it is an external endpoint."""
        return None

    @property
    def shown_as(self) -> str:
        """Name in figures and tables, where external endpoints are marked."""
        return f"{self.title} (external)" if self.external else self.title

    def pairs_with(self, other: Library) -> bool:
        """Whether a client of one of the two can meet a server of the other."""
        return (self.transport, self.alpn) == (other.transport, other.alpn)


class ExternalLibrary(Library):
    """An external endpoint as a library: made of where its folder is and of what that states."""

    folder: External
    statement: Statement
    problem: str | None = None
    """Why it is not known what the folder can do."""

    @property
    def external(self) -> ExternalLibrary | None:
        """The library itself."""
        return self


_UNSTATED = "its quicbed.yaml does not say that it {}"


def external_library(root: Path, name: str, file: ExternalFile, table: algorithms.Table) -> ExternalLibrary:
    """The library *name* that a folder states; one with a `problem` where the statement cannot be used."""
    problem = None
    try:
        stated = read_statement((root / file.external.path).resolve(), table)
    except ConfigError as error:
        problem = f"config/libraries/{name}.yaml: external.path: {error}"
        nothing = StatedSupports.model_construct(ciphers=[], groups=[], signatures=[], congestion_controls=["cubic"])
        stated = Statement(statement=1, title=name, supports=nothing)
    supports = stated.supports
    return ExternalLibrary(
        title=stated.title,
        transport=stated.transport,
        tls_library=stated.tls_library,
        licence=stated.licence,
        alpn=stated.alpn,
        recipe="external",
        endpoint="external",
        flavours={flavour: _stated_flavour(one, supports, table) for flavour, one in stated.flavours.items()},
        threads=stated.threads,
        max_bytes=stated.max_bytes,
        optional=file.optional,
        supports=Supports(
            ciphers=supports.ciphers,
            groups=supports.groups,
            signatures=supports.signatures,
            retry=supports.retry or _UNSTATED.format("sends Retry packets"),
            initial_size=supports.initial_size or _UNSTATED.format("has larger Initial packets"),
            congestion_controls=[*supports.congestion_controls],
            noop=supports.noop,
            noenc=supports.noenc,
            aes_hardware_off={} if supports.aes_hardware_off else _UNSTATED.format("can do without AES instructions"),
            udp_payload_max=supports.udp_payload_max,
            header_protection_off=supports.header_protection_off,
            pacing=dict.fromkeys(supports.pacing, True),
            paces=supports.paces,
            gso=True in supports.gso if supports.gso else None,
            gso_paced=supports.gso_paced or _UNSTATED.format("sends batches by release time"),
            release_times="is an external endpoint, which is not asked for release times",
            gro=True in supports.gro if supports.gro else None,
        ),
        notes=Notes(noop="", initial="", header_protection="", io=""),
        folder=file.external,
        statement=stated,
        problem=problem,
    )


def read_statement(folder: Path, table: algorithms.Table) -> Statement:
    """What a folder states; raises ConfigError."""
    file = folder / STATEMENT
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory; give the folder of the endpoint")
    if not file.exists():
        raise ConfigError(f"{folder} has no {STATEMENT}; state there what it can do (docs/external-endpoints.md)")
    stated = parse_model(Statement, read_yaml(file), file)
    known = {kind: {one.name: one for one in getattr(table, kind)} for kind in ("groups", "signatures")}
    lists: list[tuple[str, StatedSupports | StatedFlavour]] = [("supports", stated.supports)]
    lists += [(f"flavours.{name}", one) for name, one in stated.flavours.items()]
    for where, one in lists:
        for kind, names in known.items():
            for name in getattr(one, kind) or ():
                _known(f"{where}.{kind}", name, names, file)
    return stated


def _stated_flavour(stated: StatedFlavour, supports: StatedSupports, table: algorithms.Table) -> Flavour:
    """A flavour of a folder as a build of a library."""
    estimate = Estimate(minutes=0.1, disk_mb=1)
    if stated.groups is None and stated.signatures is None:
        return Flavour(estimate=estimate)
    listed = {*(stated.groups or supports.groups), *(stated.signatures or supports.signatures)}
    missing = [one.name for one in (*table.groups, *table.signatures) if one.name not in listed]
    return Flavour(
        algorithms="all",
        unsupported={name: f"its quicbed.yaml does not list {name}" for name in missing},
        estimate=estimate,
    )


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
    offloads: Offloads | None = Field(
        None,
        description="Offloads of client and server: `off`; `gso-gro`: generic segmentation and receive offload, which "
        "the kernel does itself, only; `default`: all that their interfaces have. With `off`, QUIC endpoints use no "
        "UDP GSO and GRO either. null: as `link.mode` says.",
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
        description="Whether the endpoints use the AES instructions of the processor, as both must tell; "
        "`false`: they are started with the environment `supports.aes_hardware_off`; null: as they are, whatever they "
        "tell.",
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


def _tls12_problem(variant: Variant) -> str | None:
    """What a variant asks of TLS 1.2 that it does not have, or that is not made here; None where it has all."""
    usual = variant.aead == "standard" and variant.signature.startswith("rsa-") and variant.chain == "leaf"
    if variant.tls_version == "TLSv1.3" or (usual and variant.group in _TLS12_GROUPS):
        return None
    groups = ", ".join(_TLS12_GROUPS)
    return f"tls_version TLSv1.2 is for aead standard, an RSA signature, chain leaf and the groups {groups}"


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
        description="Blocks of all cells, before the contrast tells which go on; default: `blocks`.",
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


class StudyPart(Scale):
    """What a study says of one experiment."""

    half_width: float | None = Field(
        None, gt=0, lt=1, description="Instead of that of the experiment's contrast; null: that one."
    )
    claims: list[str] = Field(
        default_factory=list, description="Claims that are judged by the data: ids, tables or papers of config/claims/."
    )
    figures: list[Name] = Field(
        min_length=1, description="Figures that are drawn of it: names of files, without ending."
    )


class LeftOut(Model):
    """A campaign of a study that its data is not taken from."""

    experiment: Name = Field(description="Its experiment.")
    campaign: str = Field(pattern=r"^[0-9a-f]{6,64}$", description="Its id.")
    reason: str = Field(min_length=10, description="Why it is left out.")


class Study(Model):
    """config/studies/<name>.yaml: what is measured, how long and what is reported, written down before the first run.

    It is a scale of its own. Its digest is in every run and part of every campaign's identity, so that runs measured
    by other rules are in other campaigns.
    """

    title: str = Field(description="Title in the report.")
    question: str = Field(description="What it is to answer.")
    seed: int = Field(1, ge=0, description="Instead of that of config.yaml.")
    gate: Gate = Field(default_factory=Gate, description="Instead of that of config.yaml.")
    experiments: dict[Name, StudyPart] = Field(min_length=1, description="How much of which experiment.")
    left_out: list[LeftOut] = Field(
        default_factory=list,
        description="Campaigns of this study that are not in the reference data. Not part of its digest.",
    )

    @property
    def digest(self) -> str:
        """Of all that was decided before measuring."""
        return digest(self.model_dump(mode="json", exclude={"left_out"}))


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
        5, ge=2, le=100, description="Connections of the run that tells what one handshake takes more."
    )
    callers: int = Field(
        8, ge=1, le=32, description="How many callers of a function are told apart; Callgrind takes longer with more."
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


SHARED_BY_PAIRS = (
    "mtu",
    "rate_mbit",
    "rtt_ms",
    "loss_percent",
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
        "compared (workload `bulk`, docs/method.md); null: every run is measured alone.",
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
            if self.link.mode == "wire" and variant.offloads:
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
            sending = (variant.pacing, variant.gso, variant.gro, variant.congestion_control, variant.qdisc)
            if handshakes and any(value is not None for value in sending):
                raise ValueError(
                    f"variants: `{variant.label}`: pacing, gso, gro, congestion_control and qdisc need workload.kind "
                    "`bulk`"
                )
            if (problem := self._size_problem(variant) or _tls12_problem(variant)) is not None:
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
            return "a pair of which one run fails tells nothing; leave out failures: findings"
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


class Project:
    """Everything under config/, read and checked against each other."""

    march: March | None = None
    """Instruction set that is built for (`quicbed.plan.march.applied`), where it is not that of every processor."""
    host: Side | None = None
    """Host of the testbed that builds, where it is not the controller."""

    def __init__(self, root: Path, overrides: Mapping[str, Any] | None = None) -> None:
        self.root = root
        directory = root / "config"
        written = any((directory / "studies").glob("*.yaml"))
        self.studies = _read_directory(directory / "studies", Study) if written else {}
        self.config = self._of_study(read_config(directory / "config.yaml", overrides), overrides or {})
        # now: while builds are made, the environment lacks what names it (`quicbed.base.environment.only_named`)
        self.store = self._store()
        """Directory of finished builds, components and third-party sources (`quicbed.builds.build_store`)."""
        self.testbeds = _read_directory(directory / "testbeds", Testbed)
        self.algorithms = _algorithms(root)
        self.pages = _pages(root)
        self.videos, self.rate_traces = _videos(root)
        self.libraries = _libraries(root, directory / "libraries", self.algorithms)
        experiments = self._studied(_read_directory(directory / "experiments", Experiment))
        self.experiments = {
            name: experiment.resolved(self.libraries, self.config.libraries) for name, experiment in experiments.items()
        }
        self._check(directory)

    def _of_study(self, config: Config, overrides: Mapping[str, Any]) -> Config:
        """The configuration with what its study says instead of it."""
        if config.study is None:
            return config
        file = self.root / "config" / "config.yaml"
        _known("study", config.study, self.studies, file)
        study = self.studies[config.study]
        if "scale" in overrides:
            raise ConfigError(f"{file}: scale: the study `{config.study}` is a scale of its own; leave out one of both")
        names = config.experiments if "experiments" in overrides or "study" not in overrides else study.experiments
        for name in names:
            _known("experiments", name, study.experiments, self.root / "config" / "studies" / f"{config.study}.yaml")
        changed = {"scale": config.study, "seed": study.seed, "gate": study.gate, "experiments": list(names)}
        return config.model_copy(update=changed)

    def _studied(self, experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
        """The experiments with studies among their scales, and with the half width of the chosen one."""
        found = dict(experiments)
        for title, study in self.studies.items():
            file = self.root / "config" / "studies" / f"{title}.yaml"
            for name, part in study.experiments.items():
                key = f"experiments.{name}"
                _known("experiments", name, experiments, file)
                experiment = found[name]
                if title in experiment.scales:
                    raise ConfigError(f"{file}: {key} has a scale `{title}` already; give the study another name")
                if (problem := experiment.scale_problem(part)) is not None:
                    raise ConfigError(f"{file}: {key}: {problem}")
                if part.half_width is not None and experiment.contrast is None:
                    raise ConfigError(f"{file}: {key}.half_width: the experiment has no contrast; leave it out")
                update: dict[str, Any] = {"scales": {**experiment.scales, title: part}}
                if part.half_width is not None and title == self.config.study and experiment.contrast is not None:
                    update["contrast"] = experiment.contrast.model_copy(update={"half_width": part.half_width})
                found[name] = experiment.model_copy(update=update)
        return found

    @property
    def study(self) -> Study | None:
        """The study named in config.yaml."""
        return self.studies[self.config.study] if self.config.study is not None else None

    @property
    def left_out(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Campaigns that a study leaves out, by experiment and id: the name of the study, and the reason."""
        return {
            (one.experiment, one.campaign): (name, one.reason)
            for name, study in self.studies.items()
            for one in study.left_out
        }

    def study_of(self, digest: str | None) -> str | None:
        """Name of the study with these rules, in words where none has them any more; None for runs of none."""
        known = {study.digest: name for name, study in self.studies.items()}
        return None if digest is None else known.get(digest, f"with rules that are not here any more ({digest})")

    @property
    def testbed(self) -> Testbed:
        """The testbed named in config.yaml."""
        return self.testbeds[self.config.testbed]

    def of_flavour(self, name: str, flavour: str) -> Project:
        """This project with a library as it is in one of its flavours: with the flavour's own endpoint and package."""
        library = self.libraries[name]
        chosen = library.flavours[flavour]
        own = {"endpoint": chosen.endpoint, "package": chosen.package}
        project = copy.copy(self)
        changed = library.model_copy(update={key: value for key, value in own.items() if value is not None})
        project.libraries = {**self.libraries, name: changed}
        return project

    @property
    def raw(self) -> Path:
        """Directory of runs."""
        return self.root / self.config.paths.raw

    @property
    def build(self) -> Path:
        """Directory of links to builds, and of what is compiled."""
        return self.root / self.config.paths.build

    def _store(self) -> Path:
        named = self.config.paths.store or os.environ.get("QUICBED_STORE")
        if named:
            try:
                return (self.root / Path(named).expanduser()).resolve()
            except (RuntimeError, OSError, ValueError) as error:
                raise ConfigError(
                    f"{named}: {error}; name a directory in paths.store, or in the variable QUICBED_STORE"
                ) from None
        home, cache = Path(os.environ.get("HOME") or "/nonexistent"), os.environ.get("XDG_CACHE_HOME")
        try:
            # make gives who has none a home below the directory of builds
            usable = home.stat().st_uid == os.geteuid() and not home.is_relative_to(self.build.resolve())
        except OSError:
            usable = False
        if cache and Path(cache).is_absolute():  # XDG Base Directory Specification: others are ignored
            return (Path(cache) / "quicbed").resolve()
        return (
            (home / ".cache" / "quicbed") if usable and os.access(home, os.W_OK) else self.build / "store"
        ).resolve()

    @property
    def artifacts(self) -> Path:
        """Directory of tables, figures and report."""
        return self.root / self.config.paths.artifacts

    @property
    def published(self) -> dict[str, Path]:
        """Local copies of published results, by format."""
        return {name: self.root / path for name, path in self.config.published.items()}

    @property
    def published_tables(self) -> Path:
        """Directory of the tables made from them, one directory a format."""
        return self.artifacts / "published"

    def scale(self, experiment: str) -> Scale:
        """The scale named in config.yaml, as the experiment defines it."""
        return self.experiments[experiment].scales[self.config.scale]

    def without_study(self) -> Project:
        """This project at the scale that it has by default, which every experiment knows, if a study is chosen."""
        if self.config.study is None:
            return self
        other = copy.copy(self)
        default = Config.model_fields["scale"].default
        other.config = self.config.model_copy(update={"study": None, "scale": default})
        return other

    def restricted(self, experiments: Sequence[str], libraries: Sequence[str]) -> Project:
        """The same project with these experiments, and only these of their libraries, as config.yaml can ask for."""
        other = copy.copy(self)
        other.config = self.config.model_copy(update={"experiments": list(experiments), "libraries": list(libraries)})
        other.experiments = {
            name: experiment.resolved(self.libraries, libraries) for name, experiment in self.experiments.items()
        }
        return other

    def without_folders(self) -> Project:
        """The project as it comes, without the folders of external endpoints that somebody has added."""
        built = {name: library for name, library in self.libraries.items() if library.external is None}
        other = self.restricted(self.config.experiments, list(built))
        other.config, other.libraries = self.config, built
        return other

    def _check(self, directory: Path) -> None:
        config_file = directory / "config.yaml"
        _known("testbed", self.config.testbed, self.testbeds, config_file)
        for library in self.config.libraries or []:
            _known("libraries", library, self.libraries, config_file)
        for name, path in self.published.items():
            if not path.exists():
                raise ConfigError(
                    f"{config_file}: published.{name}: {path} does not exist; name a local copy of the data, or leave "
                    "out the key"
                )
        for name in self.config.experiments:
            _known("experiments", name, self.experiments, config_file)
            experiment = self.experiments[name]
            if not experiment.pairs():
                chosen = ", ".join(self.config.libraries or [])
                raise ConfigError(
                    f"{config_file}: libraries: experiment `{name}` has none of {chosen}; "
                    "name one that it measures, or leave out the experiment"
                )
            file = directory / "experiments" / f"{name}.yaml"
            if self.config.scale not in experiment.scales:
                raise ConfigError(
                    f"{config_file}: scale: experiment `{name}` has no scale `{self.config.scale}`; it has "
                    f"{', '.join(sorted(experiment.scales))}"
                )
        groups = {group.name: group for group in self.algorithms.groups}
        signatures = {signature.name: signature for signature in self.algorithms.signatures}
        for name, described in self.libraries.items():
            file = directory / "libraries" / f"{name}.yaml"
            for group in described.supports.groups:
                _known("supports.groups", group, groups, file)
            for signature in described.supports.signatures:
                _known("supports.signatures", signature, signatures, file)
            for flavour_name, flavour in described.flavours.items():
                for algorithm in flavour.unsupported:
                    _known(f"flavours.{flavour_name}.unsupported", algorithm, groups | signatures, file)
        flavours = {flavour: None for described in self.libraries.values() for flavour in described.flavours}
        for name, described in self.libraries.items():
            for missing in described.no_flavour:
                _known("no_flavour", missing, flavours, directory / "libraries" / f"{name}.yaml")
        for name, experiment in self.experiments.items():
            file = directory / "experiments" / f"{name}.yaml"
            for variant in experiment.variants:
                _known(f"variants: `{variant.label}`: group", variant.group, groups, file)
                _known(f"variants: `{variant.label}`: signature", variant.signature, signatures, file)
                if variant.page is not None:
                    _known(f"variants: `{variant.label}`: page", variant.page, self.pages, file)
                if variant.video is not None:
                    _known(f"variants: `{variant.label}`: video", variant.video, self.videos, file)
                if variant.rate_trace is not None:
                    _known(f"variants: `{variant.label}`: rate_trace", variant.rate_trace, self.rate_traces, file)
                if variant.against is not None:
                    _known(f"variants: `{variant.label}`: against", variant.against, self.libraries, file)
            if experiment.open_loop is not None:
                _known("open_loop.client", experiment.open_loop.client, self.libraries, file)
            for pair in experiment.pairs():
                for library in (pair.client, pair.server):
                    _known("libraries", library, self.libraries, file)
                if not self.libraries[pair.client].pairs_with(self.libraries[pair.server]):
                    raise ConfigError(
                        f"{file}: libraries: {pair.client} and {pair.server} do not use the same transport and "
                        "application protocol; pair QUIC with QUIC, TCP with TCP and equal `alpn`"
                    )
            for variant in experiment.variants:
                # a library without the flavour is unsupported; a flavour that none has is a mistake
                if variant.flavour:
                    _known(f"variants: `{variant.label}`: flavour", variant.flavour, flavours, file)
                unprotected = not variant.header_protection and variant.aead != "noenc"
                if variant.flavour == "stock" and (variant.aead == "noop" or unprotected):
                    raise ConfigError(
                        f"{file}: variants: `{variant.label}` is impossible: a stock build has neither a NOOP AEAD nor "
                        "a switch for header protection; leave out `flavour`"
                    )


def _pages(root: Path) -> dict[str, pages.Page]:
    try:
        return pages.read(root)
    except pages.PageError as error:
        raise ConfigError(str(error)) from None


def _videos(root: Path) -> tuple[dict[str, videos.Video], dict[str, videos.RateTrace]]:
    try:
        return videos.read(root), videos.read_traces(root)
    except videos.VideoError as error:
        raise ConfigError(str(error)) from None


def _algorithms(root: Path) -> algorithms.Table:
    try:
        return algorithms.read(root)
    except algorithms.AlgorithmError as error:
        raise ConfigError(str(error)) from None


def _known(key: str, name: str, known: Mapping[str, Any], file: Path) -> None:
    if name not in known:
        raise ConfigError(f"{file}: {key}: `{name}` is unknown{_suggest(name, known)}")


def _suggest(name: str, known: Mapping[str, Any] | list[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known are {', '.join(sorted(known)) or 'none'}"


class _UniqueKeys(yaml.constructor.SafeConstructor):
    """YAML in which a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key `{key}` is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_UniqueKeys, yaml.SafeLoader):
    pass


class _FastLoader(_UniqueKeys, yaml.CSafeLoader):
    """The same, ten times as fast; its stack is C's, which nothing guards."""


def _load(text: str) -> Any:
    # a level of a block stands further to the right than the one around it
    if max(map(len, text.splitlines()), default=0) <= MOST_LEVELS:
        # what is wrong the other one tells better
        with contextlib.suppress(yaml.YAMLError):
            return yaml.load(text, Loader=_FastLoader)  # noqa: S506 (a SafeLoader)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping from a file; raises ConfigError naming the file and line."""
    try:
        text = untrusted.decoded(untrusted.read(file, links=True), "strict")
        # of open ones the loader takes a time that grows with the square of their number
        brackets = (1 if character in "[{" else -1 for character in text if character in "[]{}")
        if max(itertools.accumulate(brackets), default=0) > MOST_BRACKETS:
            raise ConfigError(f"{file}: not valid YAML: more than {MOST_BRACKETS} open brackets")
        data = _load(text)
    except (untrusted.UntrustedError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {'is missing' if not file.exists() else f'cannot be read: {error}'}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(
            f"{file}:{line} not valid YAML: {untrusted.shown(getattr(error, 'problem', error))}"
        ) from None
    except (ValueError, TypeError, ArithmeticError, RecursionError, LookupError, AttributeError) as error:
        # what the loader raises at a date that is none, a key that is a list, or a thousand brackets
        told = untrusted.shown(error) or type(error).__name__
        raise ConfigError(f"{file}: not valid YAML: {told}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must be a mapping of keys to values")
    return data


def parse_model(model: type[M], data: Mapping[str, Any], file: Path | str) -> M:
    """Validate `data` as `model`; raises ConfigError with the first problem, its key and a remedy."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        location = untrusted.shown(".".join(str(part) for part in problem["loc"] if not _is_union_tag(part)))
        if problem["type"] == "extra_forbidden":
            key = untrusted.shown(problem["loc"][-1])
            fields = _fields_at(model, problem["loc"][:-1])
            raise ConfigError(f"{file}: {location}: unknown key{_suggest(key, fields)}") from None
        if problem["type"] == "missing":
            raise ConfigError(f"{file}: {location}: is missing; add it") from None
        message = problem["msg"].removeprefix("Value error, ")
        value = "" if isinstance(problem["input"], (dict, list)) else f" (it is `{untrusted.shown(problem['input'])}`)"
        where = f" {location}:" if location else ""
        raise ConfigError(f"{file}:{where} {message}{value}") from None


def _is_union_tag(part: str | int) -> bool:
    # pydantic puts the branch of a union it tried into the location
    return isinstance(part, str) and (part.startswith("constrained-") or part in {"Pair"})


def _fields_at(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Names of the fields of the model that an error location leads to."""
    current: Any = model
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = current.model_fields[str(part)].annotation
        candidates = [current, *getattr(current, "__args__", ())]
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if models:
            current = models[0]
    if isinstance(current, type) and issubclass(current, BaseModel):
        return list(current.model_fields)
    return []


def read_config(file: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """config.yaml with overrides (from `snakemake --config`) on top; an empty mapping takes what is there away."""
    data = read_yaml(file)
    for key, value in (overrides or {}).items():
        if isinstance(value, Mapping) and value and isinstance(data.get(key), Mapping):
            data[key] = {**data[key], **value}
        else:
            data[key] = value
    return parse_model(Config, data, file)


def _read_directory(directory: Path, model: type[M]) -> dict[str, M]:
    return {file.stem: parse_model(model, read_yaml(file), file) for file in _files_in(directory)}


def _files_in(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.yaml"))
    if not files:
        raise ConfigError(f"{directory}: holds no .yaml file")
    return files


def _libraries(root: Path, directory: Path, table: algorithms.Table) -> dict[str, Library]:
    """The libraries that are built here, and those that folders state."""
    found: dict[str, Library] = {}
    for file in _files_in(directory):
        data = read_yaml(file)
        if "external" not in data and data.get("recipe") != "external":
            found[file.stem] = parse_model(Library, data, file)
            continue
        own = data.get("external")
        stated = {*Statement.model_fields, *Library.model_fields} - ExternalFile.model_fields.keys()
        moved = [key for key in data if key in stated]
        moved += [f"external.{key}" for key in own if key in stated] if isinstance(own, dict) else []
        if moved:
            raise ConfigError(
                f"{file}: {moved[0]}: what an external endpoint is and can do is said in {STATEMENT} in its folder "
                "(docs/external-endpoints.md); leave here `external` with its path, parameters and root, and `optional`"
            )
        found[file.stem] = external_library(root, file.stem, parse_model(ExternalFile, data, file), table)
    return found
