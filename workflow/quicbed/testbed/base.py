"""What every testbed is to the driver: hosts that run programs, and a link with settings.

The driver uses nothing but these interfaces, so a testbed of hosts reached over SSH can stand
beside the local one.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quicbed.base import untrusted
from quicbed.base.errors import QuicbedError
from quicbed.config.model import MOST_REORDERED_MTU, Limits

Role = Literal["client", "middle", "server", "tap"]
ROLES: tuple[Role, ...] = ("client", "middle", "server")

CLOCK_STEP_S = 0.1
"""More than slewing, at most 500 ppm (adjtimex(2)), changes a clock by during a run of minutes."""
_POLL_S = 0.002
_AWAITED_BYTES = 2**20
"""Beginning of a file in which a text is waited for."""

# Debian packages of the tools a testbed calls, for error messages.
PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
    "tcpdump": "tcpdump",
    "dumpcap": "wireshark-common",
    "editcap": "wireshark-common",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "perf": "linux-perf",
    "valgrind": "valgrind",
    "ping": "iputils-ping",
    "iperf3": "iperf3",
}


_logger = logging.getLogger("quicbed")


class TestbedError(QuicbedError):
    """A testbed that cannot be used or did not do what was asked, in one line with the remedy."""

    __test__ = False  # not a test class, in spite of its name


@contextlib.contextmanager
def understood(where: str, what: str = "reports something unusable") -> Iterator[None]:
    """Whatever an answer of a host leads to, where nobody has thought of it, is a TestbedError of that host."""
    try:
        yield
    except (TestbedError, OSError):
        raise
    except Exception as error:
        _logger.debug("%s", where, exc_info=True)
        said = f"{type(error).__name__}: {untrusted.one_line(error, 200)}"
        raise TestbedError(f"{where}: {what}: {said}") from error


class HostLostError(TestbedError):
    """The connection to a host is gone, and with it what ran there; applying link settings connects again."""


class LinkSettings(BaseModel):
    """The link between client and server and how the hosts use it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["throughput", "wire"] = Field(
        description="`throughput`: segmentation offloads on, captures show super-frames of up to "
        "64 kB; `wire`: off, "
        "every frame is at most MTU + 14 bytes."
    )
    mtu: int = Field(1500, ge=1280, le=9000, description="MTU of every interface in bytes.")
    rate_mbit: float | None = Field(
        None,
        ge=1,
        le=5000,
        description="Rate towards the client in Mbit/s including Ethernet headers; above the range timer lateness "
        "dominates. Below 12 Mbit/s the burst is of four full frames, so that it is longer than 4 ms. null: no limit.",
    )
    queue_ms: float = Field(
        50,
        gt=0,
        le=1000,
        description="Longest time a frame waits in the queue of a rate-limited link, in ms.",
    )
    rtt_ms: float = Field(
        0,
        ge=0,
        le=1000,
        description="Round-trip time added to the link in ms, half of it in each direction; in mode `wire` only. On "
        "the local testbed all of it lies between the tap, which is at the server, and the client; hosts over SSH "
        "delay what they send.",
    )
    loss_percent: float = Field(
        0,
        ge=0,
        le=50,
        description="Share of IPv4 packets in percent that are lost in each direction, between the tap, which is at "
        "the server, and the client; in mode `wire` only.",
    )
    reorder_permille: float = Field(
        0,
        ge=0,
        le=500,
        description="IPv4 packets in a thousand that are reordered in each direction, between the tap, which is at the "
        "server, and the client; in mode `wire` only, on the local testbed.",
    )
    reorder_packets: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="How many packets later in its direction such a packet leaves, or once the link is idle; null: "
        "nothing puts packets back.",
    )
    offloads: Literal["off", "gso-gro", "default"] | None = Field(
        None,
        description="Segmentation and receive offloads of client and server: none, those in software, all; null: all "
        "in mode `throughput`, none in mode `wire`.",
    )
    bottleneck: Literal["client"] | None = Field(
        None,
        description="Where hosts over SSH delay and limit what is sent to the client: as it arrives there, or, null, "
        "where the server sends it.",
    )
    qdisc: Literal["fq", "etf", "etf-launchtime"] | None = Field(
        None,
        description="Queueing discipline of the server's interface; null: what the system has, or what delays and "
        "limits there.",
    )
    congestion_control: str = Field(
        "cubic",
        pattern=r"^[a-z0-9_-]{1,15}$",
        description="TCP congestion control of client and server.",
    )
    tcp_buffer_bytes: int = Field(
        16 * 2**20,
        ge=2**18,
        description="Maximum of net.ipv4.tcp_rmem and tcp_wmem on client and server.",
    )

    @property
    def segmentation(self) -> Literal["off", "gso-gro", "default"]:
        """The offloads of client and server, of the mode where none are named."""
        return self.offloads or ("default" if self.mode == "throughput" else "off")

    @model_validator(mode="after")
    def _delay_in_wire_mode(self) -> Self:
        if self.rtt_ms and self.mode != "wire":
            raise ValueError("rtt_ms needs mode `wire`: what delays the frames takes none that is longer than the MTU")
        if self.loss_percent and self.mode != "wire":
            raise ValueError("loss_percent needs mode `wire`: a longer frame stands for many packets")
        if self.reorder_packets is not None and (self.mode != "wire" or self.mtu > MOST_REORDERED_MTU):
            raise ValueError(
                f"reorder_packets needs mode `wire` and an MTU of at most {MOST_REORDERED_MTU}: no longer frame is held"
            )
        if self.reorder_permille and self.reorder_packets is None:
            raise ValueError("reorder_permille needs reorder_packets: by how many packets")
        if self.rate_mbit is not None and self.rate_mbit < 40 and self.mode != "wire":
            raise ValueError(
                "rate_mbit below 40 needs mode `wire`: a super-frame takes longer than the burst is meant to"
            )
        if self.offloads and self.mode == "wire":
            raise ValueError("offloads need mode `throughput`: in mode `wire` there are none")
        return self


@dataclass(frozen=True)
class Completed:
    """A program that has ended, with its output."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Confined:
    """What a program of other people may use and see.

    Limits are those of the configuration (`limits`); what it sees beside what everybody may is looked at where it has a
    user of its own.
    """

    limits: Limits
    transfer_bytes: int = 0
    """What it downloads or serves, which may be in files besides what the limits say."""
    buffer_bytes: int = 0
    """Size of the socket buffers that it asks for."""
    readable: tuple[Path, ...] = ()
    """What it is made of and needs."""
    private: tuple[Path, ...] = ()
    """Directories with files that it may read though others may not."""
    changing: tuple[Path, ...] = ()
    """Directories that it may change: a copy of its own stands in their place (`Host.provide_copy`)."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Addresses by name of host that it has to know."""
    capabilities: tuple[str, ...] = ()
    """Capabilities of root that it needs (capabilities(7))."""
    privileged: bool = False
    """Whether it runs as the user that the testbed is of, and sees all that this sees."""

    @property
    def amounts(self) -> dict[str, int]:
        """What each of its processes may use, and all of them together, as the agent of a host is told."""
        return {
            "file_bytes": (self.limits.file_mib << 20) + self.transfer_bytes,
            "memory_bytes": self.limits.memory_mib << 20,
            "open_files": self.limits.open_files,
            "total_memory_bytes": self.limits.total_memory_mib << 20,
            "processes": self.limits.processes,
        }


@dataclass(frozen=True)
class Exit:
    """How a program ended and what it used, from wait4(2); its waited-for children are included.

    ``max_rss_bytes`` is never less than the resident size of the process that started the program:
    Linux carries the maximum across exec.
    """

    returncode: int
    """Exit status; a negative number is the signal that ended it."""
    user_s: float
    system_s: float
    max_rss_bytes: int
    exceeded: str | None = None
    """The limit for which the testbed has killed it, with what else it has started."""


@dataclass
class Capture:
    """A capture on the tap; the counts are known once it has been stopped."""

    path: Path
    packets_captured: int | None = None
    packets_dropped: int | None = None
    """Packets lost for want of buffer space or by the tap's interface; ``None`` if the program does not tell."""
    packets_missing: int | None = None
    """Packets that client and server have sent and that are not in the file; ``None`` where frames cannot be compared
    with what the interfaces count: with a filter, and where offloads make one frame of many packets.
    """
    tool: str = "tcpdump"
    where: str = ""
    """Host of the tap."""

    @property
    def packets_lost(self) -> int | None:
        """Packets that are not in the file, as the program or the interfaces tell; ``None`` if neither does."""
        known = [count for count in (self.packets_dropped, self.packets_missing) if count is not None]
        return max(known, default=None)

    def facts(self) -> dict[str, Any]:
        """What a run keeps of its capture."""
        return {
            "tool": self.tool,
            "where": self.where,
            "packets": self.packets_captured,
            "dropped": self.packets_dropped,
            "missing": self.packets_missing,
            "lost": self.packets_lost,
        }


class Process(ABC):
    """A program started on a host, leader of its own process group."""

    pid: int

    @abstractmethod
    def poll(self) -> Exit | None:
        """How it ended, or ``None`` while it runs.

        What is left of its process group is killed when it has ended.
        """

    @abstractmethod
    def wait(self, timeout: float) -> Exit:
        """How it ended; :class:`TimeoutError` if it still runs after *timeout* seconds."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the program alone; nothing happens if it has ended."""

    @abstractmethod
    def terminate(self) -> None:
        """Ask the program to end (SIGTERM to it alone); nothing happens if it has ended."""

    @abstractmethod
    def kill(self) -> None:
        """End its whole process group (SIGKILL); nothing happens if it has ended."""

    @abstractmethod
    def sample_run_delay(self) -> float | None:
        """Seconds its threads have waited for a processor so far (schedstat); ``None`` once it has
        ended.

        Threads that have ended are not counted: programs report the sum over their own threads as
        they end.
        """

    def sample_cpu(self) -> float | None:
        """Processor time in seconds that it and its descendants have used so far, with the kernel's resolution;
        ``None`` once it has ended, and on testbeds that cannot tell while it runs.
        """
        return None

    def sample_memory(self) -> int | None:
        """Memory in bytes that it and its descendants take, what they share with others in parts (PSS, proc(5));
        ``None`` once it has ended, and where the kernel does not tell.
        """
        return None

    # on testbeds whose `Testbed.pins` names processors

    def hold(self) -> None:
        """Stop it and all that descends from it until :meth:`release`; nothing happens if it has ended."""
        raise NotImplementedError

    def release(self) -> None:
        """Let it go on, if it was held."""
        raise NotImplementedError

    def pin(self, cpu: int) -> None:
        """Keep all threads, and those of what descends from it, to a processor from now on; OSError if refused."""
        raise NotImplementedError

    def pinned(self, cpu: int) -> bool:
        """Whether none of these threads may use another processor; true once it has ended."""
        raise NotImplementedError


class Host(ABC):
    """One host of a testbed."""

    name: Role
    address: str | None
    """IPv4 address on the measured link; ``None`` for the middle, which only forwards frames."""
    interface: str
    """Interface on the measured link; on the middle the tap, its port towards the server."""
    limits: Limits = Limits()
    """What is taken at most from the host, and from programs on it."""

    @property
    def where(self) -> str:
        """Name in messages."""
        return self.name

    @abstractmethod
    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30,
        check: bool = True,
        input: str | None = None,  # noqa: A002 (named as in subprocess)
    ) -> Completed:
        """Run a program to its end.

        :class:`TestbedError` if it exits with another status than 0 (with *check*) or takes longer
        than *timeout* seconds.
        """

    @abstractmethod
    def read(self, path: str) -> str:
        """Content of a file as seen on this host."""

    @abstractmethod
    def spawn(
        self,
        argv: Sequence[str],
        *,
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        confined: Confined | None = None,
    ) -> Process:
        """Start a program with its output in files of this host.

        *env* is added to the variables that programs are given on this host (`quicbed.base.environment`). What a
        *confined* one has started ends with it, whatever session it is in, where the kernel has namespaces of
        processes.
        """

    def provide(self, directory: Path) -> Path:
        """Where this host has what is in a directory of the driver's machine.

        Another machine is given a copy; :class:`TestbedError` if it cannot run what is in it.
        """
        return directory

    def provide_copy(self, directory: Path, leave: Collection[str]) -> Path:
        """As :meth:`provide`, where programs may change what is in the directory.

        What is in directories of names *leave* is not copied to another machine: programs make it anew there.
        """
        del leave
        return directory

    def workspace(self, directory: Path) -> Path:
        """Where programs on this host may write files that :meth:`collect` brings to *directory*."""
        return directory

    def place(self, directory: Path) -> Path:
        """Where confined programs on this host may write files that :meth:`collect` brings to *directory*.

        The programs of this host that are not confined have nothing there that these could put a link in the way of.
        """
        return self.workspace(directory)

    def collect(self, directory: Path) -> None:
        """Bring the files of workspace and place to *directory*; both are gone afterwards."""
        del directory

    def confinement(self, confined: Confined | None = None) -> dict[str, Any]:
        """Who programs of endpoints run as on this host and what holds their limits, for the record.

        `endpoint_user` is a number, and `why` says why it is not one of its own. *confined*: of this one program.
        """
        del confined
        return {}

    def on_processor(self, cpu: int, argv: Sequence[str]) -> list[str]:
        """A command line that starts a program on one processor, which is then the only one that it knows of."""
        return ["taskset", "--cpu-list", str(cpu), *argv]

    def has_unread(self, port: int) -> bool:
        """Whether something has arrived at a UDP or TCP port of this host that no program has read yet."""
        for name in ("udp", "tcp", "udp6", "tcp6"):
            # sockets of IPv6 take packets of IPv4 too; without IPv6 there is no such file
            with contextlib.suppress(TestbedError):
                if unread(self.read(f"/proc/net/{name}"), port):
                    return True
        return False

    def monotonic_ahead_ns(self) -> int:
        """How far CLOCK_MONOTONIC of this host is ahead of the driver's machine's, in ns."""
        return 0

    def forget(self, directory: Path) -> None:
        """Remove a workspace with what is in it; nothing happens if there is none."""
        del directory

    def await_text(self, path: Path, text: str, process: Process, timeout: float) -> bool:
        """Wait until a file that a program writes has *text* in a complete line; ``False`` if the program has ended.

        Links and FIFOs of this name are no such files.
        :class:`TimeoutError` after *timeout* seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ended = process.poll() is not None
            with contextlib.suppress(untrusted.UntrustedError):  # not there yet, or not a file
                if text.encode() in untrusted.beginning(path, _AWAITED_BYTES) and untrusted.end(path, 1) == b"\n":
                    return True
            if ended:
                return False
            time.sleep(_POLL_S)
        raise TimeoutError(f"no {text} in {path} after {timeout:g} s")


def unread(table: str, port: int) -> bool:
    """Whether a socket of this local port has something to read, by /proc/net/udp or /proc/net/tcp (proc_pid_net(5)).

    Sockets that listen are left out: theirs are connections that wait to be accepted.
    """
    found = False
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 4 and fields[3] != "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            found = found or int(fields[4].rpartition(":")[2], 16) > 0
    return found


class Testbed(ABC):
    """Hosts joined by a link; a context manager that sets all up and puts all back."""

    __test__ = False

    name: str
    kind: str
    hosts: dict[Role, Host]
    limits: Limits = Limits()
    """What is taken at most from hosts and endpoints."""
    POLL_S = 0.002
    """How often programs of concurrent pairs are looked at, in seconds."""

    @property
    def client(self) -> Host:
        """The host that downloads."""
        return self.hosts["client"]

    @property
    def server(self) -> Host:
        """The host that sends."""
        return self.hosts["server"]

    @property
    def tap(self) -> Host:
        """The host whose port towards the server is captured."""
        return self.hosts["middle"]

    @abstractmethod
    def __enter__(self) -> Testbed:
        """Lock the testbed, remove what a crashed driver left, create and verify."""

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every program, remove what was created, put host settings back and unlock."""

    def unsupported(self, link: LinkSettings) -> str | None:  # noqa: ARG002 (for testbeds that lack something)
        """Why this testbed cannot have such a link; ``None`` if nothing is known against it."""
        return None

    def pins(self) -> Mapping[Role, int] | str:
        """A processor for the programs of each end, of different cores; or why programs cannot be kept to any.

        Empty where only hosts can tell that are not reached yet.
        """
        return f"testbed {self.name} of kind {self.kind} does not keep programs to processors; others do"

    def disturbances(self, delta: Mapping[str, float]) -> list[str]:
        """What happened to the hosts during a run in which :meth:`counters` grew by *delta*, and ought not to."""
        del delta
        return []

    def link_problem(self) -> str | None:
        """What keeps the link from being measured on, with host and remedy; ``None`` if it is as it was set up."""
        return None

    def recover(self) -> None:
        """Connect again to hosts that were lost, end what runs on the others, and put back what was changed.

        The next :meth:`apply` begins anew. :class:`TestbedError` if a host stays lost.
        """
        return

    @abstractmethod
    def apply(self, link: LinkSettings) -> None:
        """Make the link and the hosts as *link* says and verify it by reading back."""

    @abstractmethod
    def set_rate(self, rate_mbit: float) -> None:
        """Change the rate of a rate-limited link as it is; what its queue holds stays there."""

    def seed_losses(self, seed: int) -> None:  # noqa: B027 (for testbeds that lose frames)
        """Begin the sequences of frames that the link loses and of those that it puts back anew, as *seed* says."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What identifies the testbed and its state: machine, link, offloads, settings, tools."""

    @abstractmethod
    def counters(self) -> dict[str, float]:
        """Counters of hosts, interfaces and machine now; all but the load averages only grow.

        ``link.cpu_s`` is the processor time of programs on the driver's machine that are part of the link,
        ``link.dropped`` the frames to the client for which the queue of a rate-limited link had no room,
        ``link.lost_to_client`` and ``link.lost_to_server`` are the frames that the link was asked to lose.
        Where it puts packets back, ``link.reorder_held_to_client`` and so on tell those that were taken out of the
        traffic, ``put_back`` those sent after all, ``flushed`` those of them for which nothing else came, and ``lost``
        those that it could not treat so, which is a fault.
        What netstat and ``ethtool -S`` show of a host is below ``<role>.netstat.`` and ``<role>.ethtool.``.
        """

    sample_s = 0.05
    """Seconds between two samples of :meth:`sent_by_server` that do not disturb what is measured."""

    speed_mbit: float | None = None
    """What the slower interface of the link sends at, in Mbit/s, where its hardware says so."""

    def sent_by_server(self) -> int | None:
        """Bytes of frames that the server's interface has sent so far, as the kernel counts them; ``None`` where
        nothing counts them.
        """
        return None

    @abstractmethod
    def capture(
        self,
        path: Path,
        *,
        snaplen: int = 128,
        count: int | None = None,
        filter: str = "",  # noqa: A002 (the field's word)
    ) -> AbstractContextManager[Capture]:
        """Capture at the tap into the pcap file *path* while the context lasts.

        Of every frame at least *snaplen* bytes are kept, and at most 15 more. *count* is the number
        of frames after which the capture ends, *filter* a pcap filter. The context begins when
        frames are being captured, and ends with everything written. Frames can be lost when the
        machine is busy: the capture's ``packets_lost`` says how many.
        """
