"""What works on a host for a controller: one file, standard library only, Python 3.9 or newer.

The controller starts it over SSH and speaks with it through its standard input and output. It starts programs, waits
for them and takes their times itself, so that no round trip to the controller is part of what is measured; it keeps
their output; and it changes settings of the host and puts them back.

**Messages.** Both directions: two unsigned 32-bit big-endian lengths, a JSON object and raw bytes. A request has `id`,
`op` and the operation's arguments; its answer has the same `id` and either `result` or `error`. Operations are the
methods of :class:`Agent` named `op_*`.

**Write-ahead journal.** Before a setting is changed, its value and what it is changed to are on disk in
`<directory>/journal.json`. Until it has been read back it is `unverified` there: whatever it is then, as what a driver
has rounded, is this change's doing and not somebody else's. When a change fails, settings that it has not come to are
taken out again: they are not this agent's to put back. The agent puts everything back when it is told to, when the
connection ends, when nothing is heard of the controller for `SILENCE_S`, and on SIGTERM, SIGHUP and SIGINT. If the
agent itself is killed, the next one does it before anything else; so does `python3 <this file> restore <directory>`,
typed on the host.

**Programs.** Each is the leader of a session and ends with the agent (PR_SET_PDEATHSIG). It carries the agent's
directory in its environment, as does what it starts, by which the next agent finds what a killed one has left. One that
is confined is in a namespace of processes of its own (pid_namespaces(7)), with which all that it has started ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FORMAT = 1
LENGTHS = struct.Struct(">II")
MAX_HEADER = 16 * 2**20
MAX_BLOB = 64 * 2**20
PIECE = 2**18
SILENCE_S = 30.0
"""A controller that is alive says something every few seconds."""
TOOL_TIMEOUT_S = 20.0
ENDING_TIMEOUT_S = 20.0
COPY_TIMEOUT_S = 270.0
"""For what reads or copies everything that was deployed; less than the controller waits."""
POLL_S = 0.002
LOOK_S = 0.25
"""Between two looks at what a confined program takes, each of which takes some 0.1 ms."""
AWAITED_BYTES = 2**20
"""Beginning of a file in which a text is waited for."""
ECHO_TIMEOUT_S = 3.0
MARK = "QUICBED_AGENT"
"""Environment variable of every program, with the agent's directory."""
QUIET_IFB = ("modprobe", "ifb", "numifbs=0")
"""Loads ifb as the kernel would by itself, but without the devices ifb0 and ifb1, which nobody would remove."""
SYSTEM_DIRECTORIES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOSTS_BEGIN = "# quicbed: begin"
HOSTS_END = "# quicbed: end"

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# linux/sched.h
_CLONE_NEWPID = 0x20000000
_libc = ctypes.CDLL(None, use_errno=True)

# Parameters of the kernel that tell how processors, timers and memory are used; others are nobody's business.
_PARAMETERS = {
    "amd_iommu",
    "amd_pstate",
    "clocksource",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "irqaffinity",
    "isolcpus",
    "maxcpus",
    "mitigations",
    "nohz",
    "nohz_full",
    "nosmt",
    "numa_balancing",
    "pcie_aspm",
    "preempt",
    "processor.max_cstate",
    "rcu_nocbs",
    "skew_tick",
    "transparent_hugepage",
    "tsc",
}

# linux/in.h
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DO = 2


class AgentError(Exception):
    """Something asked for cannot be done, in one line."""


def json_rows(command: str, shown: str, key: str) -> list[dict[str, Any]]:
    """The objects, all with a text *key*, that a command such as ``tc -j`` prints; AgentError if they are none.

    Versions differ: some print words of tc(8) or warnings among the JSON, some of ip(8) empty objects for what was not
    asked for, which are left out here.
    """
    try:
        found = json.loads(shown.strip() or "[]")
    except (ValueError, RecursionError):
        found = None
    rows = [row for row in found if row != {}] if isinstance(found, list) else None
    if rows is None or not all(isinstance(row, dict) and isinstance(row.get(key), str) for row in rows):
        program = command.partition(" ")[0]
        asked, package = ("--version", "ethtool") if program == "ethtool" else ("-V", "iproute2")
        begin = " ".join(shown[:200].split())[:80]
        raise AgentError(
            f"{command}: prints no JSON of objects with `{key}`, but {begin!r}; install a newer {package} "
            f"({program} {asked} prints the version)"
        )
    return rows


def read_text(path: str) -> str | None:
    """A file's content without surrounding white space, or ``None`` if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


NO_MACHINE_ID = "uninitialized"
"""What machine-id(5) holds in an image that no machine has been started of."""


def host_id(read: Callable[[str], str | None] = read_text) -> str:
    """A name for the machine that does not tell which it is: from the SHA-256 of machine-id(5).

    Where there is none, from the name of the machine and what its hardware says; files are read with *read*.
    """
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        identity = (read(path) or "").strip()
        if identity.strip("0-") and identity != NO_MACHINE_ID:
            break
    else:
        # those of the machine itself; others are made anew
        cards = sorted(card.name for card in Path("/sys/class/net").glob("*") if (card / "device").exists())
        hardware = ["/sys/class/dmi/id/product_uuid", *(f"/sys/class/net/{card}/address" for card in cards)]
        identity = " ".join([platform.node(), *filter(None, map(read, hardware))])
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


_ARM_MAKERS = {
    0x41: "Arm",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x53: "Samsung",
    0x56: "Marvell",
    0x61: "Apple",
    0x6D: "Microsoft",
    0x70: "Phytium",
    0xC0: "Ampere",
}
_PARTS_OF_ARM = """
    c07=Cortex-A7 c08=Cortex-A8 c09=Cortex-A9 c0e=Cortex-A17 c0f=Cortex-A15 d03=Cortex-A53 d04=Cortex-A35
    d05=Cortex-A55 d07=Cortex-A57 d08=Cortex-A72 d09=Cortex-A73 d0a=Cortex-A75 d0b=Cortex-A76 d0c=Neoverse-N1
    d0d=Cortex-A77 d40=Neoverse-V1 d41=Cortex-A78 d44=Cortex-X1 d46=Cortex-A510 d47=Cortex-A710 d48=Cortex-X2
    d49=Neoverse-N2 d4a=Neoverse-E1 d4d=Cortex-A715 d4e=Cortex-X3 d4f=Neoverse-V2 d80=Cortex-A520 d81=Cortex-A720
    d82=Cortex-X4 d84=Neoverse-V3 d85=Cortex-X925 d87=Cortex-A725 d8e=Neoverse-N3
"""
_ARM_PARTS = {
    0x41: {int(number, 16): name for number, _, name in (word.partition("=") for word in _PARTS_OF_ARM.split())},
    0x43: {0x0A1: "ThunderX", 0x0AF: "ThunderX2"},
    0x46: {0x001: "A64FX"},
    0x48: {0xD01: "TaiShan-v110"},
    0xC0: {0xAC3: "Ampere-1", 0xAC4: "Ampere-1a"},
}
"""Makers and processors in the Main ID Register (Arm Architecture Reference Manual), as /proc/cpuinfo tells them."""

_EXTENSIONS = re.compile(
    r"v?aes|v?pclmulqdq|pmull|(avx|s?sse|amx|sve|sme|bmi)[0-9_].*|avx|sve|sme|sha(_ni|2|3|512)|sm[34]|adx|gfni|fma|movbe"
    r"|rdrand|rdseed|lsx|lasx|crypto|v|vx[a-z0-9]*|msa|z[vbk][a-z0-9]+"
)
"""Flags of /proc/cpuinfo that cryptography depends on: what computes on vectors, multiplies or ciphers."""

_NUMBERED = {
    "vendor_id": "{}",
    "cpu family": "family {}",
    "model": "model {}",
    "stepping": "stepping {}",
    "CPU Family": "{}",
    "CPU Revision": "revision {}",
    "CPU implementer": "implementer {}",
    "CPU part": "part {}",
    "CPU variant": "variant {}",
    "CPU revision": "revision {}",
    "mvendorid": "vendor {}",
    "marchid": "architecture {}",
    "mimpid": "implementation {}",
    "revision": "revision {}",
}
"""Fields of a processor in /proc/cpuinfo that number its family, model and stepping, or what others have for these."""


def processor(cpuinfo: str) -> dict[str, Any]:
    """Model, numbers, microcode, flags of a machine with this /proc/cpuinfo, and whether it is virtual.

    Null is what is unknown. The fields are those of an architecture: x86 has names and flags, Arm numbers, RISC-V
    `uarch` and `isa`, POWER `cpu`.
    """
    fields: dict[str, str] = {}
    models: list[str] = []
    numbers: list[str] = []
    for block in cpuinfo.split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        own = {key.strip(): value.strip() for key, _, value in lines}
        if (model := _model(own)) is not None and model not in models:
            models.append(model)
        told = " ".join(text.format(own[key]) for key, text in _NUMBERED.items() if own.get(key))
        if any(key.startswith("processor") for key in own) and told and told not in numbers:
            numbers.append(told)
        # the first processor, and below all of them what POWER tells of the machine
        fields = own | fields
    listed = next((fields[key] for key in ("flags", "Features", "features") if key in fields), "").split()
    # RISC-V: letters of its base, and words
    base, *words = fields.get("isa", "").split("_")
    flags = {*listed, *words, *re.sub(r"^rv\d+", "", base)}
    virtual: bool | None = None
    if "flags" in fields and "vendor_id" in fields:
        virtual = "hypervisor" in flags
    elif "platform" in fields:
        virtual = {"PowerNV": False, "pSeries": True}.get(fields["platform"])
    return {
        "cpu_model": " + ".join(models) or platform.machine(),
        "processor": " + ".join(numbers) or platform.machine(),
        "microcode": fields.get("microcode"),
        "cpu_flags": sorted(flag for flag in flags if _EXTENSIONS.fullmatch(flag)),
        "virtual_machine": virtual,
    }


def _model(fields: Mapping[str, str]) -> str | None:
    """Name of a processor by its fields of /proc/cpuinfo; None if they do not tell."""
    try:
        maker, part = (int(fields[key], 16) for key in ("CPU implementer", "CPU part"))
    except (KeyError, ValueError):
        names = ("model name", "Model Name", "uarch", "cpu", "cpu model")
        return next((fields[key] for key in names if fields.get(key)), None)
    made_by = _ARM_MAKERS.get(maker, f"Arm implementer {maker:#x}")
    name = _ARM_PARTS.get(maker, {}).get(part, f"part {part:#x}")
    try:
        return f"{made_by} {name} r{int(fields['CPU variant'], 16)}p{int(fields['CPU revision'])}"
    except (KeyError, ValueError):
        return f"{made_by} {name}"


async def within(event: asyncio.Event, timeout: float) -> bool:
    """Whether an event comes within *timeout* seconds."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=timeout)
    finally:
        waiting.cancel()
    return event.is_set()


def boot_id() -> str:
    """A name of this boot of the kernel: what is not on disk does not outlive it."""
    return read_text("/proc/sys/kernel/random/boot_id") or ""


_CPUS = Path("/sys/devices/system/cpu")


def listed(text: str) -> list[int]:
    """`0,2-3` to [0, 2, 3]: processors as the kernel prints them (cpuset(7), "List format")."""
    parts = [part.partition("-") for part in text.split(",") if part]
    return [cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)]


def cores(allowed: Collection[int], directory: Path = _CPUS) -> list[int]:
    """The first *allowed* processor of every core, in ascending order; those that say nothing are a core each."""
    found: list[int] = []
    taken: set[int] = set()
    for cpu in sorted(set(allowed)):
        if cpu not in taken:
            found.append(cpu)
            taken |= _siblings(cpu, directory)
    return found


def _siblings(cpu: int, directory: Path) -> set[int]:
    """Processors of the same core (Documentation/ABI/stable/sysfs-devices-system-cpu); empty where it is not told."""
    try:
        text = (directory / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
        return set(listed(text.strip()))
    except (OSError, ValueError):
        return set()


def _packages(cpus: Iterable[int]) -> list[int]:
    """One of *cpus* of every processor package."""
    found: dict[str | None, int] = {}
    for cpu in cpus:
        found.setdefault(read_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), cpu)
    return sorted(found.values())


def process_namespace() -> str:
    """A name of the namespace that numbers of processes are of, while this boot lasts."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """When a living process was started, in clock ticks since boot (proc_pid_stat(5), field 22)."""
    text = read_text(f"/proc/{pid}/stat")
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if fields[0] not in ("Z", "X") else None


def open_plain(path: str, *, follow: bool = True) -> int:
    """A descriptor to read a regular file with, without waiting for a FIFO; OSError for whatever else may be there."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return descriptor


def write_whole(path: Path, text: str) -> None:
    """Replace a file, whole or not at all, and have it on disk on return."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # never through a link that somebody left here
    with part.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove what has a path, if anything has; directories within each other may be more than Python recurses."""
    if os.path.lexists(path):
        subprocess.run(["rm", "-rf", "--", str(path)], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def tree(directory: Path, leave: Container[str] = ()) -> list[tuple[str, Path]]:
    """Relative names and paths of what is in a directory tree, sorted by name; without directories of names *leave*."""
    found, waiting = [], [directory]
    while waiting:  # programs may leave more directories within each other than Python recurses
        try:
            entries = [entry for entry in os.scandir(waiting.pop()) if entry.name not in leave or not entry.is_dir()]
        except OSError as error:
            raise AgentError(f"{directory}: cannot be read: {error.strerror}") from None
        found += [Path(entry.path) for entry in entries]
        waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted((path.relative_to(directory).as_posix(), path) for path in found)


def tree_digest(directory: Path, leave: Container[str] = ()) -> str:
    """SHA-256 of a directory tree: names, kinds, whether files can be executed, contents, targets of links."""
    total = hashlib.sha256()
    for name, path in tree(directory, leave):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            row = ["link", name, str(path.readlink())]
        elif stat.S_ISDIR(mode):
            row = ["directory", name]
        elif stat.S_ISREG(mode):
            with path.open("rb") as file:
                content = hashlib.sha256()
                while block := file.read(2**20):
                    content.update(block)
            row = ["program" if mode & 0o100 else "file", name, content.hexdigest()]
        else:
            raise AgentError(f"{path}: is neither file, directory nor link")
        total.update(json.dumps(row).encode() + b"\n")
    return total.hexdigest()


# ---- programs --------------------------------------------------------------------------------------------------------


class Child:
    """A program that this agent has started, leader of its own session."""

    def __init__(self, popen: subprocess.Popen[bytes], first: int | None = None, first_pid: int | None = None) -> None:
        """*first* is a descriptor of the first process of its namespace, if it has one of its own."""
        self.popen = popen
        self.first = first
        self.pids = [popen.pid] if first_pid is None else [popen.pid, first_pid]
        """What all of its processes descend from: what has lost its parent is a child of the namespace's first."""
        self.exceeded: str | None = None
        self.pid = popen.pid
        self.ended = asyncio.Event()
        self.exit: dict[str, Any] | None = None

    def kill(self) -> None:
        """End its whole process group and namespace; its number is its own until it is reaped."""
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if self.first is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.first, signal.SIGKILL)

    def reap(self) -> None:
        """Keep how a program ended that has; what is left of its group is killed."""
        self.kill()
        _, status, usage = os.wait4(self.pid, 0)
        if self.first is not None:
            # it ends after all that was in the namespace, and is reaped as others are
            select.select([self.first], [], [], ENDING_TIMEOUT_S)
            os.close(self.first)
            self.first = None
        code = os.waitstatus_to_exitcode(status)
        self.popen.returncode = code
        self.exit = {
            "returncode": code,
            "user_s": usage.ru_utime,
            "system_s": usage.ru_stime,
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "exceeded": self.exceeded,
        }
        self.ended.set()

    async def watch(self, limits: Mapping[str, int]) -> None:
        """Kill the program once it and what it has started exceed limits together; returns when it has ended."""
        while not await within(self.ended, LOOK_S):
            problem = overrun(self.pids, limits)
            if problem is not None:
                self.exceeded = problem
                self.kill()
                return


def find_program(name: str) -> str:
    """Path of a program; raises AgentError if there is none that can be executed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_DIRECTORIES}")
    if found is None:
        raise AgentError(f"cannot run {name}: no such program or not executable")
    return found


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h
_LIMITS = {
    "file_bytes": resource.RLIMIT_FSIZE,
    "memory_bytes": resource.RLIMIT_DATA,
    "open_files": resource.RLIMIT_NOFILE,
}


def content(file: str) -> bytes:
    """A small file of /proc, read without what takes longer than the kernel does."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def children(pid: int) -> tuple[int, list[int]]:
    """How many threads a process has, and what they have started."""
    threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 (as above)
    found = b" ".join(content(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return len(threads), [*map(int, found.split())]


def cpu_seconds(pid: int) -> float | None:
    """Processor time in seconds of a process and its descendants so far; ``None`` once it has ended.

    It is exact, but for children that have ended, of which the kernel tells whole ticks.
    """
    ns, ticks, waiting = 0, 0, [pid]
    try:
        while waiting:
            pid = waiting.pop()
            # proc(5): cutime and cstime are those of children waited for, after the name in parentheses
            fields = content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            ticks += int(fields[13]) + int(fields[14])
            # clock_getcpuclockid(3), which Python lacks: all threads, also those that have ended
            ns += time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
            waiting += children(pid)[1]
    except (OSError, IndexError, ValueError):
        return None
    return ns / 1e9 + ticks / _TICKS_PER_SECOND


def descent(pid: int) -> list[int]:
    """A process and all that descend from it, parents first; those that have ended are left out."""
    found, waiting = [], [pid]
    while waiting:
        pid = waiting.pop(0)
        with contextlib.suppress(OSError, ValueError):
            waiting += children(pid)[1]
            found.append(pid)
    return found


def send_to_all(pid: int, number: int) -> None:
    """Send a signal to a process and all that descend from it."""
    for one in descent(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def threads_of(pid: int) -> list[int]:
    """Threads of a process and of all that descend from it."""
    found: list[int] = []
    for one in descent(pid):
        with contextlib.suppress(OSError):
            found += map(int, os.listdir(f"/proc/{one}/task"))  # noqa: PTH208 (names only)
    return found


def pin(pid: int, cpu: int) -> None:
    """Keep all threads of a process and of what descends from it to one processor; OSError where the kernel refuses."""
    for thread in threads_of(pid):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, {cpu})


def pinned(pid: int, cpu: int) -> bool:
    """Whether no thread of a process and of what descends from it may use another processor."""
    for thread in threads_of(pid):
        with contextlib.suppress(ProcessLookupError):
            if os.sched_getaffinity(thread) != {cpu}:
                return False
    return True


def memory_bytes(pid: int) -> int | None:
    """Proportional set size in bytes of a process and its descendants; ``None`` once it has ended, or if not told."""
    total, waiting = 0, [pid]
    try:
        while waiting:
            pid = waiting.pop()
            total += proportional_set(content(f"/proc/{pid}/smaps_rollup"))
            waiting += children(pid)[1]
    except (OSError, IndexError, ValueError):
        return None
    return total


def proportional_set(rollup: bytes) -> int:
    """Bytes of the line `Pss` of smaps_rollup (proc(5)); ValueError without one."""
    for line in rollup.splitlines():
        name, _, value = line.partition(b":")
        if name == b"Pss":
            return int(value.split()[0]) << 10
    raise ValueError("no Pss")


def overrun(pids: Iterable[int], limits: Mapping[str, int]) -> str | None:
    """Which limit processes exceed now, with all that descends from them; None if none, or if they have ended.

    Limits are `processes`, with their threads, and `total_memory_bytes`: of resident memory, with what several of them
    share counted once where it matters.
    """
    count, pages = 0, 0
    found = []
    waiting = [*pids]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
            threads, started = children(pid)
            pages += int(content(f"/proc/{pid}/statm").split()[1])
            count += threads
            found.append(pid)
            waiting += started
        if count > limits["processes"]:
            return f"had more than {limits['processes']} processes and threads (limits.processes)"
    most = limits["total_memory_bytes"]
    if pages * resource.getpagesize() <= most:
        return None
    size = 0
    for pid in found:
        # takes the kernel a while, so only now
        with contextlib.suppress(OSError, IndexError, ValueError):
            size += proportional_set(content(f"/proc/{pid}/smaps_rollup"))
    return f"took more than {most >> 20} MiB of memory (limits.total_memory_mib)" if size > most else None


def _end_with(parent: int) -> None:
    """In a process that *parent* has just started: end with it, at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # proc_pid_stat(5), field 4; getppid(2) says 0 where the parent is in another namespace
    if int(content("/proc/self/stat").rpartition(b")")[2].split()[1]) != parent:
        os._exit(1)


@contextlib.contextmanager
def _new_namespace(mark: str) -> Iterator[tuple[int, int]]:
    """What is started in the context is in a namespace of processes of its own.

    Gives a descriptor and the number of its first process, with which all in it ends, and which ends if the context
    fails.
    """
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    agent = os.getpid()
    try:
        if _libc.unshare(_CLONE_NEWPID):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        sleep = subprocess.Popen(
            [find_program("sleep"), "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={MARK: mark},
            start_new_session=True,
            preexec_fn=lambda: _end_with(agent),
        )
        first = os.pidfd_open(sleep.pid)
        sleep.returncode = 0  # it is reaped as others are
        try:
            yield first, sleep.pid
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(first, signal.SIGKILL)
            os.close(first)
            raise
    finally:
        # what this agent starts from now on is as before
        _libc.setns(own, _CLONE_NEWPID)
        os.close(own)


class Programs:
    """Every program of this agent, and whatever those have started."""

    def __init__(self, directory: Path) -> None:
        self.mark = str(directory)
        self.children: dict[int, Child] = {}

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int,
        stderr: int,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        cpus: Sequence[int] | None = None,
        inherited: Sequence[str] = ("*",),
        limits: Mapping[str, int] | None = None,
        own_namespace: bool = False,
    ) -> Child:
        """Start a program that ends with this agent, on the processors *cpus* alone if they are given.

        Of this agent's environment it has the variables whose names match *inherited*. *limits* are those of each of
        its processes: `file_bytes`, `memory_bytes`, `open_files`. What it starts ends with it in its *own_namespace*.
        """
        agent = os.getpid()

        def prepare() -> None:
            # The agent has one thread, so that code between fork and exec is safe.
            _end_with(agent)
            if cpus:
                os.sched_setaffinity(0, cpus)
            for name, number in _LIMITS.items():
                if limits:
                    hard = resource.getrlimit(number)[1]
                    value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
                    resource.setrlimit(number, (value, value))

        path = f"{os.environ.get('PATH', '')}:{SYSTEM_DIRECTORIES}".lstrip(":")
        known = {
            name: value
            for name, value in os.environ.items()
            if any(fnmatchcase(name, pattern) for pattern in inherited)
        }
        words = [find_program(argv[0]), *argv[1:]]
        if own_namespace:
            words = [find_program("unshare"), "--mount-proc", "--", *words]
        try:
            with _new_namespace(self.mark) if own_namespace else contextlib.nullcontext((None, None)) as first:
                popen = subprocess.Popen(
                    words,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env={**known, "PATH": path, **(env or {})},
                    cwd=cwd,
                    start_new_session=True,
                    preexec_fn=prepare,
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise AgentError(f"cannot run {argv[0]}: {getattr(error, 'strerror', None) or error}") from None
        child = Child(popen, *first)
        self.children[child.pid] = child
        return child

    def reap(self) -> None:
        """Take note of every program that has ended, and of orphans of programs, which become this agent's."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            child = self.children.pop(found.si_pid, None)
            if child is not None:
                child.reap()
            else:
                os.waitpid(found.si_pid, 0)

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = TOOL_TIMEOUT_S,
        text: str | None = None,
        cpus: Sequence[int] | None = None,
    ) -> tuple[int, str, str]:
        """Exit status and output of a program that is run to its end; raises AgentError if it takes too long."""
        with contextlib.ExitStack() as stack:
            streams = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
            for stream in streams:
                stack.callback(os.close, stream)
            if text is not None:
                os.write(streams[0], text.encode())
                os.lseek(streams[0], 0, os.SEEK_SET)
            child = self.start(
                argv, stdin=streams[0], stdout=streams[1], stderr=streams[2], env={MARK: self.mark}, cpus=cpus
            )
            try:
                await within(child.ended, timeout)
            finally:
                child.kill()
            if child.exit is None:
                raise AgentError(f"{' '.join(argv)}: still running after {timeout:g} s")
            outputs = [os.pread(stream, os.fstat(stream).st_size, 0).decode(errors="replace") for stream in streams[1:]]
            return int(child.exit["returncode"]), outputs[0], outputs[1]

    async def tool(self, *argv: str) -> str:
        """Output of a program that must succeed."""
        status, stdout, stderr = await self.run(argv)
        if status != 0:
            lines = (stderr.strip() or stdout.strip()).splitlines()
            raise AgentError(f"{' '.join(argv)}: {lines[-1] if lines else f'exit status {status}'}")
        return stdout

    def _descendants(self) -> set[int]:
        parents: dict[int, int] = {}
        for pid in _all_processes():
            text = read_text(f"/proc/{pid}/stat")
            if text is not None:
                parents[pid] = int(text.rpartition(")")[2].split()[1])
        found = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {os.getpid()}

    def _marked(self) -> set[int]:
        mark = f"{MARK}={self.mark}".encode()
        found = set()
        for pid in _all_processes():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.add(pid)
        return found - {os.getpid()}

    def end(self) -> int:
        """Kill every program of this agent and of earlier ones, and all that those started; returns their number."""
        deadline = time.monotonic() + ENDING_TIMEOUT_S
        seen: set[int] = set()
        while True:
            self.reap()
            pids = {pid for pid in self._descendants() | self._marked() if start_ticks(pid) is not None}
            if not pids:
                self.reap()
                return len(seen)
            seen |= pids
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise AgentError(f"process {min(pids)} does not end after SIGKILL; it is stuck in the kernel, reboot")
            time.sleep(POLL_S)


def _all_processes() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        yield from [int(entry.name) for entry in entries if entry.name.isdigit()]


# ---- frames lost on purpose ------------------------------------------------------------------------------------------

# linux/bpf.h
BPF_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, PROG_LOAD = 0, 1, 2, 5
MAP_TYPE_ARRAY = 2
PROG_TYPE_SCHED_CLS = 3
_ATTRIBUTES_SIZE = 128

# linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h
_RTM_NEWTFILTER = 44
_REQUEST_ACK_CREATE_EXCL = 0x1 | 0x4 | 0x400 | 0x200
INGRESS, EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS = 6, 7, 8
_DIRECT_ACTION = 1
_TC_ACT_STOLEN = 4
_ETH_P_ALL, ETH_P_IP = 0x0003, 0x0800
_SKB_PROTOCOL = 16  # offset in struct __sk_buff (linux/bpf.h)
LOSS_NAME = "quicbed-loss"
_NLMSG_ERROR = 2

SPLITMIX_GAMMA = 0x9E3779B97F4A7C15
SPLITMIX_1 = 0xBF58476D1CE4E5B9
SPLITMIX_2 = 0x94D049BB133111EB
SPLITMIX_MASK = 2**64 - 1

# What the program keeps: frames seen since the seed was set, seed, threshold, frames lost since the beginning.
_STATE = struct.Struct("=4Q")
_SEEN, _SEED, _THRESHOLD, _LOST = 0, 8, 16, 24


def loss_threshold(percent: float) -> int:
    """What the upper half of a drawn number is below when its frame is lost."""
    return round(percent / 100 * 2**32)


def bpf(command: int, attributes: bytes) -> int:
    """bpf(2): the descriptor or 0 that it returns."""
    number = BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) is not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_SIZE)
    result: int = _libc.syscall(number, command, buffer, _ATTRIBUTES_SIZE)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """One instruction (RFC 9669, section 3)."""
    return struct.pack("=BBhi", code, source << 4 | target, offset, value)


def load_constant(target: int, value: int, source: int = 0) -> bytes:
    """A constant of 64 bits, which takes two instructions; source 1: the file descriptor of a map."""
    low, high = struct.unpack("=ii", struct.pack("=Q", value))
    return instruction(0x18, target, source, 0, low) + instruction(0, value=high)


def load_program(instructions: bytes) -> int:
    """Descriptor of a program for frames at an interface; OSError where the kernel refuses it."""
    code = ctypes.create_string_buffer(instructions)
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "=IIQQ", PROG_TYPE_SCHED_CLS, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(licence)
    )
    return bpf(PROG_LOAD, attributes)


def draw_number(state: int, seed: int) -> bytes:
    """Instructions that make of r1, the index of a frame, the number of 32 bits drawn for it; r2 changes too.

    The register *state* has the address of what the program keeps, in which the seed is at the offset *seed*.
    """

    def xor_shifted(bits: int) -> bytes:
        # r2 = r1; r2 >>= bits; r1 ^= r2
        return instruction(0xBF, 2, 1) + instruction(0x77, 2, value=bits) + instruction(0xAF, 1, 2)

    return (
        instruction(0x07, 1, value=1)
        + load_constant(2, SPLITMIX_GAMMA)
        + instruction(0x2F, 1, 2)
        + instruction(0x79, 2, state, seed)
        + instruction(0x0F, 1, 2)
        + xor_shifted(30)
        + load_constant(2, SPLITMIX_1)
        + instruction(0x2F, 1, 2)
        + xor_shifted(27)
        + load_constant(2, SPLITMIX_2)
        + instruction(0x2F, 1, 2)
        + xor_shifted(31)
        + instruction(0x77, 1, value=32)
    )


def _program(map_descriptor: int) -> bytes:
    """The instructions: r6 is the state, r1 the number of the packet, then the number drawn for it.

    What is not IPv4, as questions for addresses, passes without a number: hosts send it when they like.
    """
    lost = (
        instruction(0xB7, 1, value=1)
        + instruction(0xDB, 6, 1, _LOST)  # atomic add
        # as if it had been sent or received: programs must not be told, as they are of queues that are full
        + instruction(0xB7, 0, value=_TC_ACT_STOLEN)
        + instruction(0x95)
    )
    draw = (
        instruction(0xBF, 6, 0)
        + instruction(0xB7, 1, value=1)
        + instruction(0xDB, 6, 1, _SEEN, 1)  # atomic add, and r1 is what it was
        + draw_number(6, _SEED)
        + instruction(0x79, 2, 6, _THRESHOLD)
        + instruction(0x3D, 1, 2, len(lost) // 8)  # r1 >= r2: not lost
    )
    look_up = (
        instruction(0x62, 10, 0, -4, 0)  # key 0, on the stack
        + instruction(0xBF, 2, 10)
        + instruction(0x07, 2, value=-4)
        + load_constant(1, map_descriptor, source=1)
        + instruction(0x85, value=1)  # bpf_map_lookup_elem
        + instruction(0x15, 0, 0, (len(draw) + len(lost)) // 8, 0)
    )
    is_ip = instruction(0x61, 7, 1, _SKB_PROTOCOL) + instruction(
        0x55, 7, 0, (len(look_up) + len(draw) + len(lost)) // 8, socket.htons(ETH_P_IP)
    )
    # TC_ACT_UNSPEC: to other filters, which may queue what arrives
    passed = instruction(0xB7, 0, value=-1) + instruction(0x95)
    return is_ip + look_up + draw + lost + passed


class FrameLoss:
    """Loses frames at one place of the traffic of one interface, as a seed says; none until it is told to.

    A program of some 30 instructions (extended BPF) draws a number for every IPv4 packet and drops it if the number is
    below a threshold. The numbers are those of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, OOPSLA 2014), so that the n-th frame after the seed was set is lost or not whatever it is, and the same
    frames are lost again with the same seed. The kernel forgets it with the queueing discipline that it is attached to.
    """

    def __init__(self) -> None:
        """OSError where the kernel cannot do it."""
        self._map = bpf(MAP_CREATE, struct.pack("=4I", MAP_TYPE_ARRAY, 4, _STATE.size, 1))

    def attach(self, interface: str, parent: int) -> None:
        """Lose frames that arrive at an interface (INGRESS) or leave it (EGRESS), which has the discipline clsact.

        It has to be called in the network namespace of the interface.
        """
        program = load_program(_program(self._map))
        try:
            attach(interface, parent, program, LOSS_NAME)
        finally:
            os.close(program)

    def _state(self) -> tuple[int, int, int, int]:
        state = self._reach(MAP_LOOKUP, _STATE.pack(0, 0, 0, 0))
        seen, seed, below, lost = _STATE.unpack(state)
        return seen, seed, below, lost

    def _reach(self, command: int, content: bytes) -> bytes:
        key = ctypes.create_string_buffer(4)
        value = ctypes.create_string_buffer(content, _STATE.size)
        bpf(command, struct.pack("=I4xQQQ", self._map, ctypes.addressof(key), ctypes.addressof(value), 0))
        return value.raw

    def set(self, percent: float, seed: int) -> None:
        """Lose this share of frames from now on, beginning with the first number of *seed*."""
        lost = self._state()[3]
        self._reach(MAP_UPDATE, _STATE.pack(0, seed & SPLITMIX_MASK, loss_threshold(percent), lost))

    @property
    def lost(self) -> int:
        """Frames lost so far."""
        return self._state()[3]

    def close(self) -> None:
        """Let go of the kernel's objects."""
        os.close(self._map)


def _attribute(kind: int, content: bytes) -> bytes:
    """A netlink attribute, padded to four bytes."""
    length = 4 + len(content)
    return struct.pack("=HH", length, kind) + content + bytes(-length % 4)


def attach(interface: str, parent: int, program: int, name: str, priority: int = 1) -> None:
    """Put a program at the ingress or egress of an interface, which has clsact (netlink, RTM_NEWTFILTER)."""
    options = (
        _attribute(_TCA_BPF_FD, struct.pack("=I", program))
        + _attribute(_TCA_BPF_NAME, name.encode() + b"\0")
        + _attribute(_TCA_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION))
    )
    protocol = priority << 16 | socket.htons(_ETH_P_ALL)
    body = struct.pack("=BxHiIII", 0, 0, socket.if_nametoindex(interface), 0, parent, protocol)
    body += _attribute(_TCA_KIND, b"bpf\0") + _attribute(_TCA_OPTIONS, options)
    header = struct.pack("=IHHII", 16 + len(body), _RTM_NEWTFILTER, _REQUEST_ACK_CREATE_EXCL, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as control:
        control.bind((0, 0))
        control.send(header + body)
        answer = control.recv(65536)
    kind = struct.unpack_from("=H", answer, 4)[0]
    code = struct.unpack_from("=i", answer, 16)[0]
    if kind != _NLMSG_ERROR or code:
        raise OSError(-code, os.strerror(-code))


# ---- settings of the host --------------------------------------------------------------------------------------------

Change = dict[str, Any]
"""A setting and its wanted value: `kind`, `name`, `value`.

Values are strings, but for kinds that are made of words (`REMEDIES`): lists, `["default"]` where there is to be none.
`qdisc` is the root queueing discipline of an interface as tc(8) has it; words after `child` are those of a discipline
in it. `clsact` is what is done to frames as they arrive or leave, with the queueing discipline of this name: `redirect
DEVICE` where they arrive, `loss`, or both. `ifb` is a device of this name, with the words of its queueing discipline:
what is redirected to it goes through that, and on as if it had just arrived.
"""

REMEDIES = {
    "qdisc": "tc qdisc del dev {} root",
    "clsact": "tc qdisc del dev {} clsact",
    "ifb": "ip link del {}",
}
"""Kinds of settings that are made and removed, and what removes one by hand that somebody else has made: it could not
be put back.
"""
LEGACY = "ingress"
"""The queueing discipline that clsact has replaced, as which it is not removed. An interface has one of the two."""

INCOMPLETE = "(incomplete)"
"""What a setting reads as that was being made when the agent was killed."""


def _words(text: str) -> str:
    return " ".join(text.split())


def _sysctl_file(name: str) -> Path:
    """A slash in a name stands for a point in that of a file (sysctl(8))."""
    return Path("/proc/sys") / name.translate(str.maketrans("./", "/."))


_FILES: dict[str, Callable[[str], Path]] = {
    "sysctl": _sysctl_file,
    "governor": lambda cpu: Path(f"/sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor"),
    "irq": lambda number: Path(f"/proc/irq/{number}/smp_affinity_list"),
    "mtu": lambda interface: Path(f"/sys/class/net/{interface}/mtu"),
}
"""Kinds of settings that are a file of the kernel."""


def parse_features(text: str) -> dict[str, dict[str, bool]]:
    """`ethtool -k`: feature to whether it is `active`, `requested` and `fixed`; groups of features are left out."""
    found: dict[str, dict[str, bool]] = {}
    group = ""
    for line in text.splitlines():
        name, separator, rest = line.partition(":")
        state = rest.split()
        if not separator or not state or state[0] not in ("on", "off"):
            continue
        if line.startswith("\t"):
            found.pop(group, None)  # what has indented lines below it is their sum
        else:
            group = name.strip()
        active = state[0] == "on"
        requested = active
        if "[requested" in state:
            requested = state[state.index("[requested") + 1] == "on]"
        found[name.strip()] = {"active": active, "requested": requested, "fixed": "[fixed]" in state}
    return found


def parse_rings(text: str, *, largest: bool = False) -> dict[str, int]:
    """`ethtool -g`: sizes of the rings now, or the largest they can have, by `rx` and `tx`."""
    maximums, _, current = text.partition("Current hardware settings:")
    rows = (line.partition(":") for line in (maximums if largest else current).splitlines())
    values = {name.strip().lower(): value.strip() for name, _, value in rows}
    return {name: int(values[name]) for name in ("rx", "tx") if values.get(name, "").isdigit()}


def parse_statistics(text: str) -> dict[str, int]:
    """`ethtool -S`: counters of the driver by name."""
    rows = (line.rpartition(":") for line in text.splitlines())
    return {name.strip(): int(value) for name, _, value in rows if value.strip().isdigit()}


# What ethtool -k calls some features and what ethtool -K and the kernel call them.
_FEATURE_OPTIONS = {
    "rx-checksumming": "rx",
    "generic-segmentation-offload": "gso",
    "generic-receive-offload": "gro",
    "large-receive-offload": "lro",
    "rx-vlan-offload": "rxvlan",
    "tx-vlan-offload": "txvlan",
    "ntuple-filters": "ntuple",
    "receive-hashing": "rxhash",
}


def ifb_name(interface: str) -> str:
    """The device that frames arriving at an interface are queued at; names have at most 15 bytes (IFNAMSIZ)."""
    return f"ifb-{interface}"[:15]


def redirection(interface: str, device: str) -> list[str]:
    """What tc(8) is told for frames that arrive at an interface, which has clsact, to leave at a device."""
    every = ["protocol", "all", "u32", "match", "u32", "0", "0"]
    return [
        "filter",
        "add",
        "dev",
        interface,
        "ingress",
        *every,
        "action",
        "mirred",
        "egress",
        "redirect",
        "dev",
        device,
    ]


# One line a filter: those without a handle are of its list, and a hash table of u32 has one that ends with a colon.
_FILTER = re.compile(r"^filter .* (?:handle|fh \w+::\w+) .*$", re.MULTILINE)
_REDIRECTED = re.compile(r"mirred \(Egress Redirect to device (\S+)\)")


def shown(change: Mapping[str, Any]) -> str:
    """How a wanted value reads back."""
    value = change["value"]
    if change["kind"] == "clsact":
        return " ".join(value)
    if change["kind"] in REMEDIES:
        return str(value[0])
    return _words(value) if change["kind"] in _FILES else str(value)


class HostsBlock:
    """Our lines in hosts(5), between two comments at its end; other lines are left alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _split(self) -> tuple[bytes, bytes | None, bytes]:
        """What is before our block, the block with its comments, and what is after it."""
        content = self.path.read_bytes()
        place = content.find(HOSTS_BEGIN.encode())
        if place < 0:
            return content, None, b""
        end = content.find(HOSTS_END.encode(), place)
        end = len(content) if end < 0 else end + len(HOSTS_END) + 1  # none: killed while it was written
        # the newline before it is ours if the comment says so, as long as nothing follows
        ours = content[place:].split(b"\n", 1)[0].endswith(b"newline") and not content[end:]
        begin = place - 1 if ours else place
        return content[:begin], content[begin:end], content[end:]

    def read(self) -> str:
        """Our lines, empty if there are none."""
        _, block, _ = self._split()
        if block is None:
            return ""
        lines = block.decode(errors="replace").strip("\n").splitlines()
        return "\n".join(lines[1:-1] if lines[-1] == HOSTS_END else [*lines[1:], INCOMPLETE])

    def write(self, lines: str) -> None:
        """Replace our lines."""
        before, block, after = self._split()
        if block is not None:
            with self.path.open("r+b") as file:
                if after:
                    file.seek(len(before))
                    file.write(after)
                file.truncate(len(before) + len(after))
                os.fsync(file.fileno())
        if lines:
            content = before + after
            lacks_newline = bool(content) and not content.endswith(b"\n")
            head = ("\n" if lacks_newline else "") + HOSTS_BEGIN + (" newline" if lacks_newline else "")
            # appended, not replaced: in a container the file is a mount
            with self.path.open("ab") as file:
                file.write(f"{head}\n{lines}\n{HOSTS_END}\n".encode())
                file.flush()
                os.fsync(file.fileno())


class Settings:
    """Settings of the host: read, changed, verified, restored, with the journal."""

    def __init__(self, directory: Path, programs: Programs) -> None:
        self.path = directory / "journal.json"
        self.programs = programs
        self.entries: list[dict[str, Any]] = []
        self.identity: dict[str, Any] = {}
        self.losses: dict[str, tuple[FrameLoss, ...]] = {}
        """By interface: frames lost as they arrive, and as they leave."""
        self._features: dict[str, dict[str, dict[str, bool]]] = {}
        # kind and name of what the change that is under way has written or tried to write
        self._begun: set[tuple[str, str]] = set()
        # restoring waits until a change that is under way has ended
        self._turn = asyncio.Lock()

    # -- reading

    async def read(self, kind: str, name: str) -> str:
        """A setting's value now; raises AgentError if the host has no such setting."""
        try:
            if kind in _FILES:
                return _words(_FILES[kind](name).read_text())
            if kind == "hosts":
                return HostsBlock(Path(name)).read()
        except OSError as error:
            raise AgentError(f"{kind} {name}: cannot be read: {error.strerror}") from None
        interface, _, what = name.partition(" ")
        if kind == "feature":
            features = await self.features(interface)
            if what not in features:
                raise AgentError(f"feature {name}: the interface has none of this name")
            return "on" if features[what]["requested"] else "off"
        if kind == "ring":
            rings = parse_rings(await self.programs.tool("ethtool", "-g", interface))
            if what not in rings:
                raise AgentError(f"ring {name}: the interface does not report its size")
            return str(rings[what])
        if kind == "qdisc":
            return await self._qdisc(interface)
        if kind == "clsact":
            return await self._clsact(interface)
        if kind == "ifb":
            return await self._ifb(interface)
        raise AgentError(f"{kind}: no such kind of setting")

    async def features(self, interface: str, *, again: bool = False) -> dict[str, dict[str, bool]]:
        """Features of an interface, asked once per change."""
        if again or interface not in self._features:
            self._features[interface] = parse_features(await self.programs.tool("ethtool", "-k", interface))
        return self._features[interface]

    async def _qdisc(self, interface: str) -> str:
        """Kind of the root queueing discipline that somebody has set, or `default`."""
        rows = await self._qdiscs(interface)
        # the kernel's own choice has the handle 0:
        root = next((row for row in rows if row.get("root") and row.get("handle", "0:") != "0:"), None)
        return "default" if root is None else str(root["kind"])

    async def _qdiscs(self, interface: str) -> list[dict[str, Any]]:
        argv = ("tc", "-j", "qdisc", "show", "dev", interface)
        return json_rows(" ".join(argv), await self.programs.tool(*argv), "kind")

    async def _clsact(self, interface: str) -> str:
        """What is attached to clsact, in the words of `Change`; `other` or `LEGACY` if it is not ours."""
        kinds = [row["kind"] for row in await self._qdiscs(interface)]
        if "clsact" not in kinds:
            return LEGACY if LEGACY in kinds else "default"
        shown = ""
        for place in ("ingress", "egress"):
            shown += await self.programs.tool("tc", "filter", "show", "dev", interface, place)
        filters = _FILTER.findall(shown)
        losses = sum(LOSS_NAME in line for line in filters)
        targets = _REDIRECTED.findall(shown)
        if len(filters) != losses + len(targets) or len(targets) > 1:
            return "other"
        words = [word for target in targets for word in ("redirect", target)]
        if losses:
            words.append("loss" if losses == 2 else INCOMPLETE)  # one of each direction
        return " ".join(words) or INCOMPLETE

    async def _ifb(self, device: str) -> str:
        """Kind of the queueing discipline of a device, or `default` if there is no such device."""
        status, _, _ = await self.programs.run(["ip", "link", "show", "dev", device])
        if status != 0:
            return "default"
        kind = await self._qdisc(device)
        return INCOMPLETE if kind == "default" else kind

    # -- changing

    async def _write_ifb(self, device: str, words: Sequence[str]) -> None:
        there = await self._ifb(device) != "default"
        if words[0] == "default":
            if there:
                await self.programs.tool("ip", "link", "del", device)
            return
        # one that is there stays: frames are redirected to it
        if not there:
            with contextlib.suppress(AgentError):
                await self.programs.run(QUIET_IFB)
            await self.programs.tool("ip", "link", "add", device, "type", "ifb")
        if "child" in words:
            await self._write_qdisc(device, words)
        else:
            await self.programs.tool("tc", "qdisc", "replace", "dev", device, "root", *words)
        await self.programs.tool("ip", "link", "set", device, "up")

    async def write_all(self, changes: Sequence[Change]) -> None:
        """Write values; features of one interface at once, as they depend on each other."""
        features: dict[str, list[Change]] = {}
        for change in changes:
            kind, name, value = change["kind"], change["name"], change["value"]
            interface, _, what = name.partition(" ")
            if kind != "feature":
                self._begun.add((kind, name))
            if kind in _FILES:
                try:
                    _FILES[kind](name).write_text(value)
                except OSError as error:
                    raise AgentError(f"{kind} {name}: cannot be set to {value}: {error.strerror}") from None
            elif kind == "hosts":
                HostsBlock(Path(name)).write(value)
            elif kind == "feature":
                features.setdefault(interface, []).append(change)
            elif kind == "ring":
                await self.programs.tool("ethtool", "-G", interface, what, value)
            elif kind == "clsact":
                await self._write_clsact(interface, value)
            elif kind == "ifb":
                await self._write_ifb(interface, value)
            else:
                await self._write_qdisc(interface, value)
        for interface, group in features.items():
            self._features.pop(interface, None)
            options = []
            for change in group:
                self._begun.add(("feature", change["name"]))
                what = change["name"].partition(" ")[2]
                options += [_FEATURE_OPTIONS.get(what, what), change["value"]]
            await self.programs.tool("ethtool", "-K", interface, *options)

    async def _write_qdisc(self, interface: str, words: Sequence[str]) -> None:
        # anew: what is replaced by one of its kind would keep the disciplines in it
        if await self._qdisc(interface) != "default":
            await self.programs.tool("tc", "qdisc", "del", "dev", interface, "root")
        if words[0] == "default":
            return
        place = words.index("child") if "child" in words else len(words)
        await self.programs.tool("tc", "qdisc", "add", "dev", interface, "root", "handle", "1:", *words[:place])
        if child := words[place + 1 :]:
            await self.programs.tool("tc", "qdisc", "add", "dev", interface, "parent", "1:1", "handle", "2:", *child)

    async def _write_clsact(self, interface: str, words: Sequence[str]) -> None:
        for loss in self.losses.pop(interface, ()):
            loss.close()
        if await self._clsact(interface) != "default":
            await self.programs.tool("tc", "qdisc", "del", "dev", interface, "clsact")
        if words[0] == "default":
            return
        await self.programs.tool("tc", "qdisc", "add", "dev", interface, "clsact")
        if words[0] == "redirect":
            await self.programs.tool("tc", *redirection(interface, words[1]))
        if "loss" not in words:
            return
        try:
            self.losses[interface] = (FrameLoss(), FrameLoss())
            for loss, parent in zip(self.losses[interface], (INGRESS, EGRESS)):  # noqa: B905 (Python 3.9)
                loss.attach(interface, parent)
        except OSError as error:
            raise AgentError(f"clsact {interface}: cannot lose frames by a seed: bpf: {error.strerror}") from None

    async def apply(self, changes: Sequence[Change]) -> list[dict[str, str]]:
        """Make settings as wanted and verify it by reading back; returns those changed, with their values before."""
        async with self._turn:
            self._begun.clear()
            earlier = {(entry["kind"], entry["name"]): {**entry, "after": [*entry["after"]]} for entry in self.entries}
            try:
                return await self._apply(changes)
            except (Exception, asyncio.CancelledError):
                self._forget_unwritten(earlier)
                raise

    def _forget_unwritten(self, earlier: Mapping[tuple[str, str], dict[str, Any]]) -> None:
        """Of settings that a failed change has not come to, keep only what was noted *earlier*."""
        entries = []
        for entry in self.entries:
            setting = (entry["kind"], entry["name"])
            known = entry if setting in self._begun else earlier.get(setting)
            if known is not None:
                entries.append(known)
        self.entries = entries
        if self._begun:  # otherwise none of it is on disk
            # the reason of the failed change is what counts; the journal on disk then has more than is needed
            with contextlib.suppress(OSError):
                self._save()

    async def _apply(self, changes: Sequence[Change]) -> list[dict[str, str]]:
        self._features.clear()
        wanted: list[Change] = []
        done: list[dict[str, str]] = []
        for change in changes:
            before = await self.read(change["kind"], change["name"])
            after = shown(change)
            entry = self._entry(change["kind"], change["name"])
            if change["kind"] in REMEDIES and before != "default" and (entry is None or before == LEGACY):
                what = before if change["kind"] == "qdisc" or before == LEGACY else "it"
                remedy = "tc qdisc del dev {} ingress" if before == LEGACY else REMEDIES[change["kind"]]
                raise AgentError(
                    f"{change['kind']} {change['name']}: somebody has set {what}, which could not be restored; remove "
                    f"it with: {remedy.format(change['name'])}"
                )
            # parameters of a queueing discipline are not compared: it is set again
            if before == after and (change["kind"] not in ("qdisc", "ifb") or after == "default"):
                continue
            if change["kind"] == "ring":
                await self._check_ring(change["name"], int(after))
            if entry is None:
                entry = {"kind": change["kind"], "name": change["name"], "before": before, "after": []}
                self.entries.append(entry)
            if after not in entry["after"]:
                entry["after"].append(after)
            if change["kind"] not in REMEDIES:
                entry["unverified"] = True
            wanted.append(change)
            done.append({"kind": change["kind"], "name": change["name"], "before": before, "after": after})
        if not wanted:
            return []
        self._save()
        await self.write_all(wanted)
        self._features.clear()
        for change in wanted:
            found = await self.read(change["kind"], change["name"])
            if found != shown(change):
                raise AgentError(
                    f"{change['kind']} {change['name']} is {found!r} after it was set to {change['value']!r}"
                )
            if (entry := self._entry(change["kind"], change["name"])) is not None:
                entry.pop("unverified", None)
        self._save()
        return done

    async def _check_ring(self, name: str, size: int) -> None:
        """Raise AgentError if a ring cannot be as large as this."""
        interface, _, which = name.partition(" ")
        largest = parse_rings(await self.programs.tool("ethtool", "-g", interface), largest=True).get(which, size)
        if size > largest:
            raise AgentError(f"ring {name}: cannot be {size}, its largest size is {largest}")

    def _entry(self, kind: str, name: str) -> dict[str, Any] | None:
        return next((entry for entry in self.entries if (entry["kind"], entry["name"]) == (kind, name)), None)

    # -- the journal

    def _save(self) -> None:
        content = {"format": FORMAT, "boot_id": boot_id(), **self.identity, "entries": self.entries}
        write_whole(self.path, json.dumps(content, indent=1) + "\n")

    def load(self) -> None:
        """Take over what an earlier agent has changed; settings that ended with its boot are done with."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise AgentError(
                f"{self.path}: is damaged ({error}); look what is changed on the host and remove it"
            ) from None
        if content.get("format") != FORMAT:
            raise AgentError(f"{self.path}: format {content.get('format')!r} is not {FORMAT}; restore with its agent")
        self.entries = living(content["entries"], content["boot_id"])
        if not self.entries:
            self.path.unlink()

    async def restore(self, entries: Iterable[dict[str, Any]] | None = None) -> tuple[list[str], list[str]]:
        """Put values back, the last change first.

        *entries*: those of a controller's record; by default those of the journal, which is removed when all is done.
        Returns the settings put back, and those left alone because somebody has changed them since. Raises AgentError
        naming the first that cannot be put back, after all others have been.
        """
        async with self._turn:
            return await self._restore(entries)

    async def _restore(self, entries: Iterable[dict[str, Any]] | None) -> tuple[list[str], list[str]]:
        own = entries is None
        if own and not self.entries:
            return [], []
        self._features.clear()
        restored, foreign, failed = [], [], []
        remaining: list[dict[str, Any]] = []
        features: list[tuple[dict[str, Any], Change]] = []
        for entry in reversed(self.entries if entries is None else list(entries)):
            label = f"{entry['kind']} {entry['name']}"
            try:
                found = await self.read(entry["kind"], entry["name"])
                if found == entry["before"]:
                    continue
                ours = found in entry["after"] or found.endswith(INCOMPLETE) or entry.get("unverified")
                if not ours:
                    foreign.append(label)
                    continue
                value = [entry["before"]] if entry["kind"] in REMEDIES else entry["before"]
                change = {"kind": entry["kind"], "name": entry["name"], "value": value}
                if entry["kind"] == "feature":
                    features.append((entry, change))
                    continue
                await self.write_all([change])
                await self._verify(entry)
                restored.append(label)
            except AgentError as error:
                failed.append(str(error))
                remaining.append(entry)
        if features:
            try:
                await self.write_all([change for _, change in features])
                for entry, _ in features:
                    await self._verify(entry)
                    restored.append(f"feature {entry['name']}")
            except AgentError as error:
                failed.append(str(error))
                remaining += [entry for entry, _ in features]
        if own:
            self.entries = remaining[::-1]
            if self.entries:
                self._save()
            else:
                self.path.unlink(missing_ok=True)
        if failed:
            raise AgentError(f"not everything could be restored: {failed[0]}")
        return restored, foreign

    async def _verify(self, entry: Mapping[str, Any]) -> None:
        found = await self.read(entry["kind"], entry["name"])
        if found != entry["before"]:
            raise AgentError(
                f"{entry['kind']} {entry['name']} is {found!r} after it was restored to {entry['before']!r}"
            )


def living(entries: Iterable[dict[str, Any]], boot: str) -> list[dict[str, Any]]:
    """Changes that outlive the boot in which they were made, or all of them in that boot."""
    return [entry for entry in entries if boot == boot_id() or entry["kind"] == "hosts"]


class Output:
    """Writes whole messages to the controller.

    asyncio's own pipes for writing do not serve: sshd gives one socket for both directions, and they take what comes
    in for the end of the connection.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.turn = asyncio.Lock()
        os.set_blocking(descriptor, False)

    async def send(self, message: bytes) -> None:
        """Write a message; others wait for their turn."""
        loop = asyncio.get_running_loop()
        async with self.turn:
            view = memoryview(message)
            while view:
                try:
                    view = view[os.write(self.descriptor, view) :]
                except BlockingIOError:
                    room = asyncio.Event()
                    loop.add_writer(self.descriptor, room.set)
                    try:
                        await room.wait()
                    finally:
                        loop.remove_writer(self.descriptor)


# ---- the agent -------------------------------------------------------------------------------------------------------


class Agent:
    """Answers requests until its controller is gone, then leaves the host as it was."""

    def __init__(self, directory: Path, reader: asyncio.StreamReader, output: Output) -> None:
        self.directory = directory
        self.reader = reader
        self.output = output
        self.programs = Programs(directory)
        self.settings = Settings(directory, self.programs)
        self.heard = time.monotonic()
        self.lock: int | None = None
        self.spawned: dict[int, Child] = {}
        self.namespaces: bool | None = None
        self.running: set[asyncio.Task[None]] = set()
        self.echoes: list[asyncio.DatagramTransport] = []
        self.over = asyncio.Event()

    # -- messages

    async def _read(self) -> tuple[dict[str, Any], bytes]:
        header, blob = LENGTHS.unpack(await self.reader.readexactly(LENGTHS.size))
        if header > MAX_HEADER or blob > MAX_BLOB:
            raise AgentError("message too long")
        content = await self.reader.readexactly(header)
        return json.loads(content), await self.reader.readexactly(blob)

    async def _answer(self, request: dict[str, Any], blob: bytes) -> None:
        number = request.pop("id")
        operation: Callable[..., Awaitable[Any]] | None = getattr(self, f"op_{request.pop('op')}", None)
        answer: dict[str, Any] = {"id": number}
        content = b""
        try:
            if operation is None:
                raise AgentError("no such operation")
            if blob:
                request["blob"] = blob
            result = await operation(**request)
            if isinstance(result, bytes):
                content = result
                answer["bytes"] = True
            else:
                answer["result"] = result
        except AgentError as error:
            answer["error"] = str(error)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            answer["error"] = f"{where}{error.strerror or error}"
        header = json.dumps(answer).encode()
        await self.output.send(LENGTHS.pack(len(header), len(content)) + header + content)

    async def _listen(self) -> None:
        while True:
            request, blob = await self._read()
            self.heard = time.monotonic()
            task = asyncio.ensure_future(self._answer(request, blob))
            self.running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.over.set()

    async def _watch(self) -> None:
        while time.monotonic() - self.heard < SILENCE_S:
            await asyncio.sleep(1)

    async def serve(self) -> None:
        """Work until the controller ends the connection, falls silent, or a signal comes; then clean up."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self.programs.reap)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.over.set)
        ends = [asyncio.ensure_future(end) for end in (self._listen(), self._watch(), self.over.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in [*ends, *self.running]:
                task.cancel()
            await asyncio.gather(*ends, *self.running, return_exceptions=True)
            if self.lock is not None:
                try:
                    await self.clean_up()
                except AgentError as error:
                    print(error, file=sys.stderr)

    async def clean_up(self) -> dict[str, Any]:
        """End every program, put every setting back, remove files that are not finished."""
        for echo in self.echoes:
            echo.close()
        self.echoes.clear()
        ended = self.programs.end()
        for leftover in (self.directory / "runs", self.directory / "partial"):
            remove(leftover)
        restored, foreign = await self.settings.restore()
        return {"ended": ended, "restored": restored, "foreign": foreign}

    # -- operations: the host

    async def op_hello(self, optional: list[str]) -> dict[str, Any]:
        """What identifies the host and what it has, of the programs *optional* too."""
        usage = shutil.disk_usage(self.directory)
        memory = {
            key: int(value.split()[0])
            for key, _, value in (line.partition(":") for line in (read_text("/proc/meminfo") or "").splitlines())
        }
        cpuinfo = read_text("/proc/cpuinfo") or ""
        found = processor(cpuinfo)
        try:
            libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
        except (ValueError, OSError):
            libc = ""
        online = read_text("/sys/devices/system/cpu/online") or f"0-{(os.cpu_count() or 1) - 1}"
        parameters = (read_text("/proc/cmdline") or "").split()
        return {
            "pid": os.getpid(),
            "uid": os.geteuid(),
            "python": platform.python_version(),
            "boot_id": boot_id(),
            "host_id": host_id(),
            "kernel": platform.release(),
            "kernel_version": platform.version(),
            "architecture": platform.machine(),
            "libc": libc,
            **found,
            "microcode": found["microcode"] or "",
            "cpuinfo": cpuinfo.partition("\n\n")[0],
            "cpus": os.cpu_count() or 1,
            "cpus_online": online,
            "packages": _packages(listed(online)),
            "memory_bytes": memory.get("MemTotal", 0) * 1024,
            "hugepages": memory.get("HugePages_Total", 0),
            "clock_source": read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            "kernel_parameters": [word for word in parameters if word.partition("=")[0] in _PARAMETERS],
            "congestion_controls": (read_text("/proc/sys/net/ipv4/tcp_available_congestion_control") or "").split(),
            "disk_free_bytes": usage.free,
            "missing": [name for name in ("ip", "tc", "ethtool", "ping") if not _has(name)],
            "optional": [name for name in optional if _has(name)],
        }

    async def op_acquire(self, holder: dict[str, Any], replace: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Take the host for this agent; returns who has it, if somebody else has.

        *replace* is a holder that is known to be dead: its agent is ended first. A host that is taken is cleaned up
        after whoever had it before.
        """
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.fchmod(descriptor, 0o600)  # who can open a file can lock it
        deadline = time.monotonic() + ENDING_TIMEOUT_S
        begin = time.monotonic()
        asked = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            known = _written_holder(descriptor)
            ours = known is not None and replace is not None and known.get("session") == replace.get("session")
            space = known.get("agent_space") if known is not None else None
            if isinstance(space, list) and space[:1] == [boot_id()] and space != [boot_id(), process_namespace()]:
                # it cannot be seen from this namespace, where its number is somebody else's
                os.close(descriptor)
                return known
            if known is not None and ours and start_ticks(known["agent"]) == known["agent_ticks"]:
                # the first signal lets it put everything back itself
                late = time.monotonic() - begin > ENDING_TIMEOUT_S / 2
                with contextlib.suppress(ProcessLookupError):
                    if late or not asked:
                        os.kill(known["agent"], signal.SIGKILL if late else signal.SIGTERM)
                asked = True
            elif known is not None and not ours and start_ticks(known["agent"]) == known["agent_ticks"]:
                os.close(descriptor)
                return known
            if time.monotonic() > deadline:
                os.close(descriptor)
                return known or {"who": "an unknown program"}
            await asyncio.sleep(0.02)
        own = {"agent": os.getpid(), "agent_ticks": start_ticks(os.getpid())}
        content = {**holder, **own, "agent_space": [boot_id(), process_namespace()]}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(content).encode(), 0)
        self.lock = descriptor
        self.settings.identity = {"who": holder.get("who")}
        return None

    async def op_holder(self) -> dict[str, Any] | None:
        """Who has the host, if somebody has; nothing changes."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _written_holder(descriptor) or {"who": "an unknown program"}
        finally:
            os.close(descriptor)
        return None

    async def op_recover(self) -> dict[str, Any]:
        """Clean up what an agent that was killed has left: its programs, its settings, its unfinished files."""
        self._locked()
        self.settings.load()
        return await self.clean_up()

    def _locked(self) -> None:
        if self.lock is None:
            raise AgentError("the host has to be acquired first")

    async def op_ping(self) -> float:
        """Hear that the controller is alive; returns the host's time, in s since the epoch."""
        return time.time()

    async def op_monotonic(self) -> int:
        """CLOCK_MONOTONIC of the host in ns, which is the clock of the endpoints' events."""
        return time.monotonic_ns()

    async def op_held_to(self, cpus: list[int]) -> list[int]:
        """Processors of a program held to *cpus*, which may be others than the agent's; none if it cannot be."""
        try:
            _, stdout, _ = await self.programs.run(["grep", "Cpus_allowed_list:", "/proc/self/status"], cpus=cpus)
        except AgentError:
            return []
        return listed(stdout.partition(":")[2].strip())

    # -- operations: settings

    async def op_read_settings(self, settings: list[list[str]]) -> list[str | None]:
        """Values of settings by kind and name; null for one that the host does not have."""
        values: list[str | None] = []
        for kind, name in settings:
            try:
                values.append(await self.settings.read(kind, name))
            except AgentError:
                values.append(None)
        return values

    async def op_features(self, interface: str) -> dict[str, dict[str, bool]]:
        """Features of an interface as they are now."""
        return await self.settings.features(interface, again=True)

    async def op_apply(self, changes: list[Change]) -> list[dict[str, str]]:
        """Change settings and verify them."""
        self._locked()
        return await self.settings.apply(changes)

    async def op_restore(self, entries: list[dict[str, Any]] | None = None, boot: str = "") -> dict[str, list[str]]:
        """Put settings back: all of this agent's, or those of a controller's record of boot *boot*."""
        self._locked()
        restored, foreign = await self.settings.restore(None if entries is None else living(entries, boot))
        return {"restored": restored, "foreign": foreign}

    async def op_lose(self, interface: str, percent: float, seed: int) -> None:
        """Lose this share of the frames of each direction from now on, each with numbers of its own."""
        arriving, leaving = self._losses(interface)
        arriving.set(percent, seed)
        leaving.set(percent, ~seed)

    async def op_lost(self, interface: str) -> list[int]:
        """Frames lost so far, as they arrived and as they left."""
        return [loss.lost for loss in self._losses(interface)]

    def _losses(self, interface: str) -> tuple[FrameLoss, ...]:
        if interface not in self.settings.losses:
            raise AgentError(f"clsact {interface}: loses no frames")
        return self.settings.losses[interface]

    async def op_abilities(self) -> dict[str, str]:
        """Why the kernel cannot do what a link may ask for, empty if it can; `ABILITIES` are the keys.

        Tried in a network namespace of its own.
        """
        argv = ["unshare", "--net", sys.executable, "-I", str(Path(__file__)), "probe", str(self.directory)]
        try:
            found: dict[str, str] = json.loads(await self.programs.tool(*argv))
        except (AgentError, ValueError) as error:
            return dict.fromkeys(ABILITIES, f"cannot try it in a network namespace: {error}")
        return found

    async def op_end_programs(self) -> int:
        """End every program, and forget their files; settings stay."""
        self._locked()
        ended = self.programs.end()
        remove(self.directory / "runs")
        return ended

    async def op_clean_up(self) -> dict[str, Any]:
        """End every program and put every setting back."""
        self._locked()
        return await self.clean_up()

    # -- operations: programs

    async def op_run(self, argv: list[str], timeout: float, text: str | None = None) -> dict[str, Any]:
        """Run a program to its end."""
        status, stdout, stderr = await self.programs.run(argv, timeout=timeout, text=text)
        return {"returncode": status, "stdout": stdout, "stderr": stderr}

    async def op_spawn(
        self,
        argv: list[str],
        stdout: str,
        stderr: str,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        cpus: list[int] | None = None,
        inherited: Sequence[str] = ("*",),
        confined: dict[str, int] | None = None,
    ) -> int:
        """Start a program with its output in files; returns its process id.

        One that is *confined* is limited (`Programs.start`, `overrun`), and has a namespace of its own where the kernel
        makes one.
        """
        self._locked()
        own = confined is not None and await self._has_namespaces()
        with open(stdout, "wb") as out, open(stderr, "wb") as err:
            child = self.programs.start(
                argv,
                stdout=out.fileno(),
                stderr=err.fileno(),
                env={**(env or {}), MARK: self.programs.mark},
                cwd=cwd,
                cpus=cpus,
                inherited=inherited,
                limits=confined,
                own_namespace=own,
            )
        self.spawned[child.pid] = child
        if confined is not None:
            task = asyncio.ensure_future(child.watch(confined))
            self.running.add(task)
            task.add_done_callback(self._finished)
        return child.pid

    async def _has_namespaces(self) -> bool:
        """Whether programs can be given a namespace of processes with a /proc of its own; tried once."""
        if self.namespaces is None:
            try:
                tried = await self.programs.run(["unshare", "--pid", "--fork", "--mount-proc", "true"])
                self.namespaces = tried[0] == 0
            except AgentError:
                self.namespaces = False
        return self.namespaces

    def _child(self, pid: int) -> Child:
        child = self.spawned.get(pid)
        if child is None:
            raise AgentError(f"process {pid} is not one of this agent's")
        return child

    async def op_wait(self, pid: int, timeout: float) -> dict[str, Any] | None:
        """How a program ended, or null if it still runs after *timeout* seconds."""
        child = self._child(pid)
        if child.exit is None and timeout > 0:
            await within(child.ended, timeout)
        return child.exit

    async def op_signal(self, pid: int, number: int) -> None:
        """Send a signal to a program, SIGKILL to its whole group; nothing if it has ended."""
        child = self._child(pid)
        if child.exit is None:
            if number == signal.SIGKILL:
                child.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    async def op_run_delay(self, pid: int) -> float | None:
        """Seconds the threads of a program have waited for a processor; null once it has ended."""
        total = 0
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                total += int((thread / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return None
        return total / 1e9 if self._child(pid).exit is None else None

    async def op_cpu_time(self, pid: int) -> float | None:
        """Processor time in seconds that a program and its descendants have used; null once it has ended."""
        used = cpu_seconds(self._child(pid).pid)
        return used if self._child(pid).exit is None else None

    async def op_memory(self, pid: int) -> int | None:
        """Proportional set size in bytes of a program and its descendants; null once it has ended, or if not told."""
        taken = memory_bytes(self._child(pid).pid)
        return taken if self._child(pid).exit is None else None

    async def op_signal_all(self, pid: int, number: int) -> None:
        """Send a signal to a program and all that descends from it; nothing if it has ended."""
        if self._child(pid).exit is None:
            send_to_all(pid, number)

    async def op_pin(self, pid: int, cpu: int) -> str | None:
        """Keep a program and all that descends from it to a processor; why the kernel refuses, or null."""
        if self._child(pid).exit is None:
            try:
                pin(pid, cpu)
            except OSError as error:
                return error.strerror or str(error)
        return None

    async def op_pinned(self, pid: int, cpu: int) -> bool:
        """Whether nothing of a program may use another processor; true once it has ended."""
        return self._child(pid).exit is not None or pinned(pid, cpu)

    async def op_cores(self, cpus: Sequence[int] | None) -> list[int]:
        """One processor of each core, of these *cpus*, or of all that the agent may use."""
        return cores(os.sched_getaffinity(0) if cpus is None else cpus)

    async def op_await_text(self, path: str, text: str, pid: int, timeout: float) -> str:
        """Wait for a complete line with *text* in a file that a program writes: `found`, `ended` or `late`."""
        child = self._child(pid)
        deadline = time.monotonic() + timeout
        while True:
            ended = child.exit is not None
            # not there yet, or not a file
            with contextlib.suppress(OSError), open(open_plain(path, follow=False), "rb") as file:
                content = file.read(AWAITED_BYTES)
                file.seek(-1, os.SEEK_END)
                if text.encode() in content and file.read(1) == b"\n":
                    return "found"
            if ended:
                return "ended"
            if time.monotonic() > deadline:
                return "late"
            await asyncio.sleep(POLL_S)

    # -- operations: files

    async def op_read(self, path: str, offset: int = 0, size: int = MAX_BLOB) -> bytes:
        """Bytes of a file."""
        size = min(size, MAX_BLOB)
        content = b""
        # in pieces: the kernel reserves memory for as much as is asked of a file in /proc/sys
        with open(open_plain(path), "rb", buffering=0) as file:
            if offset:
                file.seek(offset)
            while len(content) < size and (piece := file.read(min(size - len(content), PIECE))):
                content += piece
        return content

    async def op_read_all(self, paths: list[str]) -> list[str | None]:
        """Texts of small files, null for what cannot be read."""
        return [read_text(path) for path in paths]

    async def op_counters(self, paths: list[str], interface: str) -> dict[str, Any]:
        """Texts of files with counters, what the driver of an interface counts, and `clock_s`.

        That is how far the clock (CLOCK_REALTIME) is ahead of the time since boot (CLOCK_MONOTONIC), in s; it changes
        only where somebody sets the clock.
        """
        status, stdout, _ = await self.programs.run(["ethtool", "-S", interface])
        return {
            "texts": await self.op_read_all(paths),
            # drivers that keep no statistics make ethtool fail
            "statistics": parse_statistics(stdout) if status == 0 else {},
            "clock_s": time.time() - time.monotonic(),
        }

    async def op_make_directory(self, path: str) -> None:
        """Make a directory of a run, below this agent's own."""
        self._inside(path).mkdir(parents=True)

    async def op_list(self, path: str) -> list[list[Any]]:
        """Relative names and sizes of the files in a directory tree."""
        found = tree(self._inside(path))
        return [[name, file.stat().st_size] for name, file in found if stat.S_ISREG(file.lstat().st_mode)]

    async def op_remove(self, path: str) -> None:
        """Remove a file or directory, below this agent's own."""
        target = self._inside(path)
        remove(target)
        if os.path.lexists(target):
            raise AgentError(f"{target}: cannot be removed")

    def _inside(self, path: str) -> Path:
        target = Path(os.path.normpath(path))
        if self.directory not in target.parents:
            raise AgentError(f"{path}: is not below {self.directory}")
        return target

    # -- operations: what is deployed

    def _store(self, digest: str) -> Path:
        return self._inside(str(self.directory / "store" / digest))

    async def _digest(self, directory: Path) -> str:
        """SHA-256 of a tree (`tree_digest`), by a program of its own: the controller is answered meanwhile."""
        argv = [sys.executable, "-I", str(Path(__file__)), "digest", str(directory)]
        status, stdout, stderr = await self.programs.run(argv, timeout=COPY_TIMEOUT_S)
        if status != 0:
            raise AgentError((stderr.strip().splitlines() or [f"{directory}: cannot be read"])[-1])
        return stdout.strip()

    async def op_has(self, digest: str) -> bool:
        """Whether a directory tree of this content is there, found by reading all of it; one that differs goes."""
        self._locked()
        target = self._store(digest)
        if not target.is_dir():
            return False
        if await self._digest(target) == digest:
            return True
        remove(target)
        return False

    async def op_store_begin(self, digest: str, size: int) -> None:
        """Begin to receive a tree of this digest and size in bytes."""
        self._locked()
        part = self._inside(str(self.directory / "partial" / digest))
        remove(part)
        part.mkdir(parents=True)
        free = shutil.disk_usage(part).free
        if free < size * 2:
            raise AgentError(f"{self.directory}: {free >> 20} MiB free, {size * 2 >> 20} MiB are needed; make room")

    async def op_store_entry(
        self, digest: str, name: str, kind: str, target: str = "", mode: int = 0o644, blob: bytes = b""
    ) -> None:
        """Receive a directory, a link or the next piece of a file of a tree."""
        path = self._inside(str(self.directory / "partial" / digest / name))
        if self.directory / "partial" / digest not in path.parents:
            raise AgentError(f"{name}: is not inside the tree")
        if kind == "directory":
            path.mkdir(exist_ok=True)
        elif kind == "link":
            path.symlink_to(target)
        else:
            with path.open("ab") as file:
                file.write(blob)
            path.chmod(mode & 0o755)

    async def op_store_end(self, digest: str) -> str:
        """Verify a tree that was received and put it in its place; returns its path."""
        part, target = self.directory / "partial" / digest, self._store(digest)
        found = await self._digest(part)
        if found != digest:
            remove(part)
            raise AgentError(f"what arrived has the digest {found[:12]}, not {digest[:12]}; try again")
        target.parent.mkdir(exist_ok=True)
        await self.programs.run(["sync"], timeout=COPY_TIMEOUT_S)
        part.rename(target)
        return str(target)

    async def op_working_copy(self, digest: str) -> str:
        """Path of a copy of a stored tree that programs may write to, made once; whatever is in it by now stays."""
        self._locked()
        target = self._inside(str(self.directory / "copies" / digest))
        if not target.is_dir():
            part = self._inside(str(self.directory / "partial" / f"{digest}.copy"))
            remove(part)
            copy = ["cp", "-a", str(self._store(digest)), str(part)]
            status, _, stderr = await self.programs.run(copy, timeout=COPY_TIMEOUT_S)
            if status != 0:
                raise AgentError((stderr.strip().splitlines() or [f"{target}: cannot be copied"])[-1])
            target.parent.mkdir(exist_ok=True)
            await self.programs.run(["sync"], timeout=COPY_TIMEOUT_S)
            part.rename(target)
        return str(target)

    # -- operations: the measured link

    async def op_echo_open(self, address: str) -> int:
        """Return datagrams that arrive at a port of *address*; returns the port."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(_Echo, local_addr=(address, 0))
        self.echoes.append(transport)
        return int(transport.get_extra_info("sockname")[1])

    async def op_echo_close(self) -> None:
        """Close every such port."""
        for echo in self.echoes:
            echo.close()
        self.echoes.clear()

    async def op_echo(self, source: str, address: str, port: int, size: int, count: int) -> list[float]:
        """Round-trip times in seconds of datagrams of *size* bytes that must not be fragmented."""
        times = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
            near.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            near.bind((source, 0))
            near.connect((address, port))
            near.setblocking(False)
            loop = asyncio.get_running_loop()
            for number in range(count):
                content = number.to_bytes(4, "big") + bytes(size - 4)
                begin = time.monotonic()
                try:
                    await loop.sock_sendall(near, content)
                    answer = asyncio.ensure_future(loop.sock_recv(near, 65536))
                    if not (await asyncio.wait({answer}, timeout=ECHO_TIMEOUT_S))[0]:
                        answer.cancel()
                        raise AgentError(f"datagrams of {size} bytes to {address}: no answer in {ECHO_TIMEOUT_S:g} s")
                    if answer.result() != content:
                        raise AgentError(f"datagrams of {size} bytes to {address}: another one came back")
                except OSError as error:
                    raise AgentError(f"datagrams of {size} bytes to {address}: {error.strerror}") from None
                times.append(time.monotonic() - begin)
        return times


def _written_holder(descriptor: int) -> dict[str, Any] | None:
    """Who stands in the lock file; null while that is being written, or if it was cut off."""
    try:
        found = json.loads(os.pread(descriptor, 65536, 0))
        return {**found, "agent": int(found["agent"]), "agent_ticks": int(found["agent_ticks"])}
    except (ValueError, KeyError, TypeError):
        return None


class _Echo(asyncio.DatagramProtocol):
    """Sends back what it receives."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(data, addr)


def _has(name: str) -> bool:
    try:
        find_program(name)
    except AgentError:
        return False
    return True


ABILITIES = ("delay", "loss", "ifb", "fq", "etf")
"""What a link may ask of a kernel."""


def probe() -> dict[str, str]:
    """What :meth:`Agent.op_abilities` returns, tried on the loopback interface of this network namespace."""
    tc = [find_program("tc"), "qdisc", "add", "dev", "lo"]
    found = dict.fromkeys(ABILITIES, "")
    etf = ["prio", "etf", "clockid", "CLOCK_TAI", "delta", "200000"]
    for ability, words in (("fq", ["fq"]), ("etf", etf), ("delay", ["netem", "delay", "1ms"])):
        # ETF within another discipline, as it is used
        inner = words.pop(0) if words[0] == "prio" else None
        if inner is not None:
            subprocess.run([*tc, "root", "handle", "1:", inner], capture_output=True, check=False)
        place = ["root"] if inner is None else ["parent", "1:1"]
        done = subprocess.run([*tc, *place, *words], capture_output=True, text=True, check=False)
        subprocess.run([tc[0], "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)
        if done.returncode != 0:
            unknown = "kind is unknown" in done.stderr or "No such file" in done.stderr
            found[ability] = f"kernel has no {words[0]}" if unknown else done.stderr.strip().splitlines()[-1]
    try:
        done = subprocess.run([*tc, "clsact"], capture_output=True, text=True, check=False)
        loss = FrameLoss()
        loss.attach("lo", INGRESS)
        loss.close()
    except OSError as error:
        found["loss"] = f"kernel has no tc with extended BPF: {done.stderr.strip() or error.strerror}"
    if _has(QUIET_IFB[0]):
        subprocess.run([find_program(QUIET_IFB[0]), *QUIET_IFB[1:]], capture_output=True, check=False)
    queue = [find_program("ip"), "link", "add", "ifb0", "type", "ifb"]
    for argv, lack in ((queue, "ifb"), ([tc[0], *redirection("lo", "ifb0")], "clsact, u32 or mirred")):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            found["ifb"] = f"kernel has no {lack}: {(done.stderr.strip() or 'no message').splitlines()[0]}"
            break
    return found


# ---- main ------------------------------------------------------------------------------------------------------------


async def _serve(directory: Path) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_BLOB)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", 0))
    output = Output(os.dup(1))
    # What prints must not get between the messages.
    os.dup2(2, 1)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    await Agent(directory, reader, output).serve()


async def _restore(directory: Path) -> int:
    programs = Programs(directory)
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, programs.reap)
    with open(directory / "lock", "a+b") as lock:
        os.fchmod(lock.fileno(), 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("an agent is at work on this host; it restores everything when it ends", file=sys.stderr)
            return 1
        settings = Settings(directory, programs)
        try:
            ended = programs.end()
            settings.load()
            restored, foreign = await settings.restore()
        except AgentError as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{ended} programs ended, {len(restored)} settings restored")
    for name in foreign:
        print(f"left alone, because it was changed since: {name}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """`serve DIRECTORY`: work for the controller at the other end of the pipes; `restore DIRECTORY`: by hand.

    `probe DIRECTORY`: print what the kernel cannot do; `digest DIRECTORY`: print the SHA-256 of a tree.
    """
    if len(arguments) != 2 or arguments[0] not in ("serve", "restore", "probe", "digest"):
        print("usage: agent.py serve|restore|probe|digest DIRECTORY", file=sys.stderr)
        return 2
    if arguments[0] == "digest":
        print(tree_digest(Path(arguments[1])))
        return 0
    if arguments[0] == "probe":
        print(json.dumps(probe()))
        return 0
    directory = Path(arguments[1])
    os.umask(0o022)
    if arguments[0] == "restore":
        return asyncio.run(_restore(directory))
    # Programs whose parent has ended become children of this agent.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    asyncio.run(_serve(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
