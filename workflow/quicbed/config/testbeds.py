"""config/testbeds/: hosts, the link between them, and what builds, captures and competes on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from quicbed.config.reading import Model, Name

March = Literal["native", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
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
    user: str | None = Field(None, description="User; null: that of the OpenSSH configuration, or your own name.")
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
        "pcap file with nanoseconds that it writes, and the minimum number of bytes to capture per frame.",
    )
    begins: str = Field(min_length=1, description="What it prints once frames are being captured.")
    signal: Literal["INT", "TERM"] = Field("INT", description="Signal that ends it with a complete file.")
    captured: Regex | None = Field(
        None,
        description="Regular expression of what it prints about the frames it has captured, with the number as its "
        "group; null: they are counted in the file.",
    )
    dropped: Regex | None = Field(
        None,
        description="The same for frames it has lost; null: unknown, and only the counters of client and server show "
        "losses.",
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
        description="After settings are restored, also after an error, if anything was reserved or a host was locked.",
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
        description="Name under which the port is acquired; digits for controller and testbed are added.",
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
        None, description="Your own program that captures in its place, as MoonGen; null: none."
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
