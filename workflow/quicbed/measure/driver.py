"""One run: client and server executed once, judged, and stored; and the proof that a variant is what it says."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
import os
import re
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicbed.base import durable, untrusted
from quicbed.base.hashing import digest
from quicbed.base.untrusted import UntrustedError, one_line, scrub, signal_name
from quicbed.builds import kit
from quicbed.builds.recipes import external
from quicbed.config.model import Link, Load, Perf, Project, Scale, Workload
from quicbed.contract import events
from quicbed.measure import certificates, generator, ping
from quicbed.measure import profile as perf
from quicbed.measure.cpu_samples import CpuSamples
from quicbed.measure.sent_bytes import SentBytes
from quicbed.plan.cells import (
    PROOF_CONNECTIONS,
    PROOF_SLOW_CONNECTIONS,
    UDP_OVERHEAD,
    Cell,
    Endpoint,
    as_proven,
    congestion_control_of,
    link_of,
    load_of,
    workload_of,
)
from quicbed.store import record, stacks, symbols
from quicbed.store.details import OPENINGS
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import Run, RunsError
from quicbed.testbed import Capture, Confined, Exit, Host, HostLostError, LinkSettings, Process, Testbed, TestbedError
from quicbed.wire import handshake, proof, tshark
from quicbed.wire.pcap import Capture as CaptureFile
from quicbed.wire.pcap import CaptureError

PORT = 4433
SERVER_NAME = "server"
SUITES = {
    "aes-128-gcm": "TLS_AES_128_GCM_SHA256",
    "aes-256-gcm": "TLS_AES_256_GCM_SHA384",
    "chacha20-poly1305": "TLS_CHACHA20_POLY1305_SHA256",
}
READY_TIMEOUT = 20.0
STOP_TIMEOUT = 5.0
# A client gives up by itself and says why; one that has not is stopped this many seconds later.
HANG_MARGIN = 10.0
# A download this size gives a capture of a few hundred packets. Its rate is limited so that the client answers every
# few of them: some libraries otherwise acknowledge a transfer this short with a handful of packets.
PROOF_BYTES = 262144
PROOF_RATE_MBIT = 100.0
# A larger one, where the MTU is a factor and the mean size of frames is to be that of a transfer, not of its beginning;
# and for a second attempt, as some pairs acknowledge the first with too few packets to judge headers by.
PROOF_BYTES_LARGE = 4194304
PROOF_ATTEMPTS = 2
# Of each frame of a run that is captured besides: its headers.
CAPTURED_BYTES = 128
# A handshake that takes longer has failed, in seconds; the whole run has the scale's limit.
CONNECTION_TIMEOUT = 20.0
PRIMITIVES_TIMEOUT = 900.0
# Between two looks at a link that is not as it was set up.
LINK_POLL = 0.5
# Time to spend on one operation of one primitive in a run.
PRIMITIVES_MS = 20
FREE_BYTES = 500 * 2**20
_NOT_TRIED = "perf was not tried"
_OWN_FILES = frozenset({RUN_FILE, "handshakes.json", OPENINGS})
"""Files of a run's directory that only the driver writes, after its programs have ended."""
# Hundreds of counters, of which a run keeps those that moved.
_DETAIL = re.compile(r"(client|server)\.(netstat|ethtool)\.")


class MeasureError(Exception):
    """Measuring cannot start or go on: one line naming what and the remedy."""


_logger = logging.getLogger("quicbed")
_logger.setLevel(logging.INFO)
_logger.addHandler(logging.StreamHandler())


def say(text: str) -> None:
    """A line for the person watching."""
    _logger.info(text)


def copy_progress(log: Path) -> None:
    """Write what the person watching sees to `log` too, with times."""
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(log, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _logger.addHandler(handler)


def now() -> str:
    """Wall-clock time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Attempt:
    """What one execution of client and server gave, before it is judged."""

    status: str = "ok"
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    contamination: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    started_at: str = ""

    def fail(self, reason: str) -> None:
        """Mark as failed; the first reason stays."""
        if self.status == "ok":
            self.status, self.reason = "failed", one_line(reason)


def need_room(directory: Path) -> None:
    """MeasureError unless the disk of a directory has room for runs."""
    if shutil.disk_usage(directory).free < FREE_BYTES:
        raise MeasureError(
            f"{directory}: less than {FREE_BYTES >> 20} MiB free on its disk; make room and start again: "
            "finished runs are kept"
        )


@dataclass
class Settled:
    """A link right before a run."""

    host: dict[str, Any] = field(default_factory=dict)
    """What is kept of it in the run's `host`."""
    contamination: list[str] = field(default_factory=list)
    """Why it is not what the cell asks for."""


class _Competing:
    """Competing traffic during one run: its rates become metrics of the attempt."""

    def __init__(self, attempt: Attempt, source: generator.Generator | None, load: Load | None) -> None:
        self._attempt = attempt
        self._source = source
        self.cpu_s: dict[str, float] = {}
        """Processor time that it took on the hosts of the endpoints, in seconds by role; known at the end."""
        self._before: generator.Sample | None = None
        if source is None or load is None:
            return
        attempt.host["background"] = {"load": load.model_dump(exclude_none=True), "generator": source.facts()}
        self._cpu_before = source.cpu_s()
        try:
            self._before = source.sample()
        except HostLostError:
            raise
        except TestbedError as error:
            attempt.fail(f"competing traffic: {error}")

    def ended(self) -> bool:
        """Take the rates; whether it was sent all the time. The attempt has failed if not."""
        if self._source is None:
            return True
        if self._before is not None:
            try:
                after = self._source.sample()
            except HostLostError:
                raise
            except TestbedError as error:
                self._attempt.fail(f"competing traffic: {error}")
                self._before = None
            else:
                rates = generator.achieved(self._before, after)
                self._attempt.metrics.update(rates)
                if (problem := generator.rate_problem(self._source.asked_mbps(), rates)) is not None:
                    self._attempt.fail(f"competing traffic: {problem}")
        self.cpu_s = {role: used - self._cpu_before[role] for role, used in self._source.cpu_s().items()}
        return self._before is not None


@dataclass(frozen=True)
class _Claims:
    """What a cell says about the bytes on the wire."""

    aead: str
    header_protection: bool | None
    cipher_suite: int
    group: int


@dataclass(frozen=True)
class Verdict:
    """Whether a variant was proven between two builds."""

    proof: str
    """Id of the proof."""
    status: str
    """`ok`, `failed` or `unsupported`."""
    reason: str | None
    """Why it is not proven."""
    transferred: bool
    """Whether client and server did what they were asked to, so that it is the capture that does not prove it."""


class Driver:
    """Measures experiments of a project on its testbed."""

    def __init__(self, project: Project, testbed: Testbed, facts: Mapping[str, Any]) -> None:
        self.project = project
        self.testbed = testbed
        self.facts = facts
        self.raw = project.raw / project.config.testbed
        self.applied: LinkSettings | None = None
        self.generator = generator.of(project.testbed.generator, testbed)
        self._load: Load | None = None
        # whether the generator may be sending, also what it was not asked for
        self._sending = False
        self._perf_problem: str | None = _NOT_TRIED
        self.watcher: Callable[[Run], None] | None = None
        """Called with every run that is kept."""

    # ---- one run -------------------------------------------------------------------------------------------------

    def unsupported(self, cell: Cell, workload: Workload, link: Link, profile: Perf | None = None) -> str | None:
        """Why the testbed cannot give a cell the link it needs, or None if nothing is known against it.

        Nor sample it with perf, if it is to be, or sort its samples. Hosts that are lost meanwhile are asked again.
        """
        try:
            return self._unsupported(cell, workload, link, profile)
        except HostLostError as error:
            self._lost(error, now())
            return self._unsupported(cell, workload, link, profile)

    def _unsupported(self, cell: Cell, workload: Workload, link: Link, profile: Perf | None) -> str | None:
        if self._observed(cell, workload) and cell.transport != "quic":
            return "an external client does not tell when its handshake is complete, and captures show it for QUIC only"
        link = link_of(cell, link)
        reason = self.testbed.unsupported(link_settings(link, workload, cell.variant))
        if reason is None and profile is not None:
            if self._perf_problem is _NOT_TRIED:
                self._perf_problem = perf.problem(self.testbed.client) or perf.problem(self.testbed.server)
            libraries = dict.fromkeys((cell.client.library, cell.server.library))
            problems = (symbols.mapping_problem(self.project.root, library) for library in libraries)
            reason = self._perf_problem or next(filter(None, problems), None)
        if reason is None and (load := load_of(cell)) is not None:
            if self.generator is None:
                return f"testbed {self.project.config.testbed} has no generator of competing traffic"
            reason = self.generator.problem(load, link)
            # a controller that crashed may have left traffic
            self._sending = True
        return reason

    def prepare(self, cell: Cell, workload: Workload, link: Link) -> None:
        """Give the link what a cell needs, unless it has it already, and the traffic that the cell competes with.

        What the link needs is tried once more if that fails.
        """
        link = link_of(cell, link)
        settings = link_settings(link, workload, cell.variant)
        if settings != self.applied:
            self.applied = None
            self.unload()
            try:
                self.testbed.apply(settings)
            except TestbedError as error:
                # a machine that is busy for seconds must not end what takes hours
                say(f"{error}; trying once more")
                self.testbed.apply(settings)
            self.applied = settings
        try:
            self.load(load_of(cell), link)
        except HostLostError as error:
            self._lost(error, now())
            self.testbed.apply(settings)
            self.applied = settings
            self.load(load_of(cell), link)

    def load(self, load: Load | None, link: Link) -> None:
        """Let the generator send this traffic, and no other."""
        if self.generator is None or (load == self._load and self._sending == (load is not None)):
            return
        self.unload()
        if load is not None:
            self._sending = True
            self.generator.start(load, link)
            self._load = load

    def unload(self) -> None:
        """End competing traffic; TestbedError where it may go on, so that no run without it is next."""
        self._load = None
        if self.generator is not None and self._sending:
            self.generator.stop()
        self._sending = False

    def _give_up_load(self) -> None:
        """End competing traffic after something else went wrong, which must not be hidden by what goes wrong now."""
        try:
            self.unload()
        except TestbedError as error:
            say(str(error))

    @contextlib.contextmanager
    def unloaded(self) -> Iterator[None]:
        """Competing traffic ends with the context; what goes wrong with that does not hide what ended it."""
        try:
            yield
        except BaseException:
            self._give_up_load()
            raise
        self.unload()

    def await_link(self) -> None:
        """Return when the link is as it was set up; raises MeasureError if it is not within `gate.link_wait_s`."""
        patience_s = self.project.config.gate.link_wait_s
        deadline = time.monotonic() + patience_s
        said = None
        while (problem := self._link_problem()) is not None:
            if time.monotonic() >= deadline:
                raise MeasureError(
                    f"{problem} (waited {patience_s:g} s, gate.link_wait_s); finished runs are kept, start again when "
                    "it is mended"
                )
            if problem != said:
                say(f"{problem}; waiting for it for at most {patience_s:g} s")
                said = problem
            time.sleep(LINK_POLL)

    def _link_problem(self) -> str | None:
        try:
            return self.testbed.link_problem()
        except HostLostError as error:
            say(f"{error}; connecting again")
            self.applied = None
            self.testbed.recover()
            return self.testbed.link_problem()

    def settle(self, cell: Cell, where: str, *, pings: bool) -> Settled:
        """Begin the losses of a prepared link anew, with *pings* once those say that its round-trip time is right.

        *where* is what the seed of the losses depends on beside that of the project: the same frames are lost again in
        the same place.
        """
        settled = Settled()
        try:
            self._settle(settled, cell, where, pings=pings)
        except HostLostError as error:
            say(str(error))  # and the run that is next fails with it
        return settled

    def _settle(self, settled: Settled, cell: Cell, where: str, *, pings: bool) -> None:
        if pings:
            wanted = cell.variant.get("rtt_ms") or 0
            address = str(self.testbed.server.address)
            pinged, problem = ping.settle(self.testbed.client, address, wanted, self.project.config.gate.ping)
            settled.host["ping"] = pinged
            if problem is not None:
                settled.contamination.append(problem)
        if cell.variant.get("loss_percent"):
            seed = int(digest(f"{self.project.config.seed}/{where}"), 16)
            self.testbed.seed_losses(seed)
            settled.host["loss_seed"] = seed

    def execute(
        self,
        cell: Cell,
        workload: Workload,
        scale: Scale,
        link: Link,
        directory: Path,
        *,
        connections: int | None = None,
        key_log: Path | None = None,
        profile: Perf | None = None,
        captured: bool = False,
    ) -> Attempt:
        """Run server and client of a cell once; their output goes to `directory`.

        A run in which the connection to a host is lost has failed.

        `connections` is their number, by default that of the cell; TLS secrets are appended to `key_log`; both are
        sampled with perf as `profile` says. What the cell varies takes the place of `workload` and `link`; the size of
        the download is that of `scale`. Handshakes of a client that does not tell their times are captured; the capture
        stays in `directory` where it was of no use, or there are secrets to examine it with. So is every other run if
        it is to be `captured`; such a capture stays.
        """
        begin = now()
        try:
            return self._execute(
                cell,
                workload,
                scale,
                link,
                directory,
                connections=connections,
                key_log=key_log,
                profile=profile,
                captured=captured,
            )
        except HostLostError as error:
            return self._lost(error, begin)

    def _host(self, role: str) -> Host:
        return self.testbed.client if role == "client" else self.testbed.server

    def _lost(self, error: HostLostError, begin: str) -> Attempt:
        """The attempt in which a host was lost, once it is there again."""
        say(f"{error}; connecting again")
        self.applied = None
        self._load = None  # its programs end with those of the run; what is sent from elsewhere is stopped by the next
        self.testbed.recover()
        attempt = Attempt(started_at=begin)
        attempt.fail(str(error))
        return attempt

    def _execute(
        self,
        cell: Cell,
        workload: Workload,
        scale: Scale,
        link: Link,
        directory: Path,
        *,
        connections: int | None = None,
        key_log: Path | None = None,
        profile: Perf | None = None,
        captured: bool = False,
    ) -> Attempt:
        """As `execute`; raises HostLostError."""
        count = connections or cell.connections
        observed = self._observed(cell, workload)
        if not observed and not captured:
            return self._run(cell, workload, scale, link, directory, count, key_log, profile)
        capture = directory / "capture.pcap"
        snaplen = _snaplen(link_of(cell, link)) if observed else CAPTURED_BYTES
        begin = now()
        try:
            with self.testbed.capture(capture, snaplen=snaplen) as seen:
                attempt = self._run(cell, workload, scale, link, directory, count, key_log, profile)
        except HostLostError:
            raise
        except TestbedError as error:
            if observed:
                raise
            # nothing depends on it
            attempt = Attempt(started_at=begin)
            attempt.fail(f"capture: {error}")
            return attempt
        attempt.host["capture"] = seen.facts()
        if not observed:
            # what a capture with gaps shows is no metric
            if attempt.status == "ok" and not seen.packets_lost:
                with self._judging(attempt):
                    self._measure_frames(attempt, capture)
            return attempt
        if attempt.status == "ok" and seen.packets_lost:
            attempt.fail(_lost_packets(seen))
        if attempt.status == "ok":
            with self._judging(attempt):
                self._observe(attempt, directory, count)
        if attempt.status == "ok" and key_log is None and not captured:
            capture.unlink()
        return attempt

    def _measure_frames(self, attempt: Attempt, file: Path) -> None:
        """Take the mean size of the frames of each direction from a capture."""
        server = (str(self.testbed.server.address), PORT)
        sizes: dict[str, list[int]] = {"client": [], "server": []}
        try:
            for packet in CaptureFile(file).packets():
                if (packet.source, packet.source_port) == server:
                    sizes["server"].append(packet.frame.wire_bytes)
                elif (packet.destination, packet.destination_port) == server:
                    sizes["client"].append(packet.frame.wire_bytes)
        except CaptureError as error:
            attempt.fail(f"capture: {error}".replace(f"{file.parent}/", ""))
            return
        for role, found in sizes.items():
            if found:
                attempt.metrics[f"{role}_mean_frame_bytes"] = round(statistics.fmean(found), 1)

    def _run(
        self,
        cell: Cell,
        workload: Workload,
        scale: Scale,
        link: Link,
        directory: Path,
        count: int,
        key_log: Path | None,
        profile: Perf | None,
    ) -> Attempt:
        """As `_execute`, without a capture."""
        workload, link = workload_of(cell, workload), link_of(cell, link)
        files = self._files(cell, scale)
        more = {
            "server": [part for size in files for part in ("--content", str(size))],
            "client": ["--connections", str(count)],
        }
        if key_log is not None:
            # the secrets are the same on both sides, and not every external endpoint writes them
            role = _key_logger(self._external(cell.client.library), self._external(cell.server.library))
            place = self._host(role).place(key_log.parent)
            more[role] += ["--key-log", str(place / key_log.name)]
        for role, side in (("client", cell.client), ("server", cell.server)):
            self._provide(role, side)
        attempt = Attempt(started_at=now())
        competing = _Competing(attempt, self.generator if self._load else None, self._load)
        begin = time.monotonic()
        before = self.testbed.counters()
        own_before = time.process_time()
        server: Process | None = None
        client: Process | None = None
        server_exit = client_exit = None
        profiled = perf.Profile(profile, directory) if profile else None
        perf_cpu: dict[str, float] = {}
        try:
            server = self._spawn("server", cell, workload, scale, link, directory, more["server"], attempt, profiled)
            log = self.testbed.server.place(directory) / "server.jsonl"
            if (problem := self._await_ready(server, log, READY_TIMEOUT + self._set_up_s(cell.server))) is not None:
                attempt.fail(problem)
            else:
                sent = SentBytes(self.testbed)
                client = self._spawn(
                    "client", cell, workload, scale, link, directory, more["client"], attempt, profiled
                )
                limit = scale.timeout_s + HANG_MARGIN + self._set_up_s(cell.client)
                try:
                    samples = CpuSamples({"client": client, "server": server}, sent.take, self.testbed.sample_s)
                    client_exit = samples.wait("client", limit)
                    sent.end()
                    attempt.host["cpu"] = samples.result()
                except TimeoutError:
                    said = _complaint(self.testbed.client.place(directory) / "client.jsonl")
                    attempt.fail(
                        f"the client hung: not finished {limit:g} s after its start" + (f": {said}" if said else "")
                    )
        except stacks.PerfError as error:
            attempt.fail(str(error))
        finally:
            if client is not None and client_exit is None:
                _end(client)
            if server is not None:
                server_exit = self._stop(server, attempt)
            if profiled is not None:
                perf_cpu = profiled.stop()
        after = self.testbed.counters()
        own_cpu = time.process_time() - own_before
        wall = time.monotonic() - begin
        delta = {key: after[key] - before[key] for key in after.keys() & before.keys()}
        if not competing.ended():
            self._give_up_load()
        if profiled is not None:
            self._resolve(attempt, profiled)
        self._collect(attempt, directory, self.testbed.client, self.testbed.server)
        with self._judging(attempt):
            logs = self._read_logs(attempt, directory, client_exit, server_exit)
            if attempt.status == "ok" and logs is not None:
                if workload.kind == "handshake":
                    self._judge_handshakes(attempt, cell, scale, count, *logs)
                else:
                    self._judge(attempt, cell, scale, *logs)
                if sent is not None:
                    self._hold_against(attempt, cell, logs[0], sent, delta, link_settings(link, workload, cell.variant))
            if profiled is not None and attempt.status == "ok" and logs is not None:
                self._fold(attempt, profiled, logs[0].connections[0])
        if profiled is not None:
            profiled.discard()
        used = {
            role: perf_cpu.get(role, 0.0)
            + competing.cpu_s.get(role, 0.0)
            + (0.0 if ended is None else ended.user_s + ended.system_s)
            for role, ended in (("client", client_exit), ("server", server_exit))
        }
        attempt.host |= {
            "load_1m": before["machine.load_1m"],
            "psi_cpu_some_s": delta.get("machine.psi.cpu_some_s"),
            "before": {key: value for key, value in before.items() if not _DETAIL.match(key)},
            "delta": {key: value for key, value in sorted(delta.items()) if value or not _DETAIL.match(key)},
            "foreign_cpu_share": _foreign_share(before, delta, used, own_cpu + delta.get("link.cpu_s", 0.0), wall),
            "driver_cpu_s": own_cpu,
        }
        if client_exit is not None:
            attempt.metrics["client_process_cpu_s"] = client_exit.user_s + client_exit.system_s
        if server_exit is not None:
            attempt.metrics["server_process_cpu_s"] = server_exit.user_s + server_exit.system_s
        attempt.metrics["run_wall_s"] = wall
        if "wall_s" in attempt.metrics:
            attempt.metrics["overhead_s"] = wall - attempt.metrics["wall_s"]
        self._gate(attempt, cell)
        attempt.contamination += self.testbed.disturbances(delta)
        return attempt

    def _spawn(
        self,
        role: str,
        cell: Cell,
        workload: Workload,
        scale: Scale,
        link: Link,
        directory: Path,
        more: Sequence[str],
        attempt: Attempt,
        profiled: perf.Profile | None = None,
    ) -> Process:
        side = cell.client if role == "client" else cell.server
        host = self._host(role)
        program = host.provide(self.project.build / side.build) / "bin" / role
        output = host.place(directory)
        address = f"{self.testbed.server.address}:{PORT}"
        argv = [str(program), "--events", str(output / f"{role}.jsonl"), *more]
        identity = host.provide(certificates.directory(self.project, cell.variant["signature"]))
        if role == "server":
            argv += ["--listen", address]
            argv += ["--certificate", str(identity / "server.pem")]
            argv += ["--private-key", str(identity / "server.key")]
        else:
            limit = min(scale.timeout_s, CONNECTION_TIMEOUT) if workload.kind == "handshake" else scale.timeout_s
            argv += ["--connect", address, "--server-name", SERVER_NAME]
            argv += ["--ca", str(identity / "ca.pem")]
            argv += ["--bytes", str(scale.bytes), "--timeout", f"{limit:g}"]
        argv += [
            "--cipher",
            cell.variant["cipher"],
            "--aead",
            cell.variant["aead"],
            "--group",
            cell.variant["group"],
            "--signature",
            cell.variant["signature"],
        ]
        library = self.project.libraries[side.library]
        argv += ["--congestion-control", congestion_control_of(library, workload.congestion_control)]
        if cell.transport == "quic":
            argv += ["--initial-size", str(cell.variant["initial_size"])]
            if role == "server":
                argv += ["--retry", "on" if cell.variant["retry"] else "off"]
            argv += ["--header-protection", "on" if cell.variant["header_protection"] else "off"]
            argv += [
                "--gso",
                "on" if workload.gso and library.supports.gso else "off",
                "--gro",
                "on" if workload.gro and library.supports.gro else "off",
            ]
            argv += ["--udp-payload", str(link.mtu - UDP_OVERHEAD)]
            argv += [
                "--receive-buffer",
                str(workload.receive_buffer),
                "--send-buffer",
                str(workload.receive_buffer),
            ]
            argv += ["--window", str(workload.window)]
        if profiled is not None:
            argv = profiled.held(role, host, argv)
        confined = self._confined(role, side, scale.bytes, workload.receive_buffer, identity)
        attempt.host.setdefault("confinement", {})[role] = host.confinement(confined)
        process = host.spawn(
            argv,
            stdout=output / f"{role}.out",
            stderr=output / f"{role}.err",
            env=self._environment(role, cell, scale, workload),
            confined=confined,
        )
        if profiled is not None:
            try:
                profiled.attach(role, process)
            except BaseException:
                _kill(process)
                raise
        return process

    def _confined(self, role: str, side: Endpoint, size: int = 0, buffers: int = 0, *identities: Path) -> Confined:
        """What a program of an endpoint may use and see in a run that downloads so many bytes.

        *identities* are directories of certificates with their keys, which a client has no business with.
        """
        limits = self.project.config.limits
        # the interpreter that builds in Python were made with
        readable = [self.project.build, self.project.build / side.build, Path(sys.prefix), Path(sys.base_prefix)]
        described = self.project.libraries[side.library].external
        if described is None:
            private = () if role == "client" else identities
            return Confined(limits, size, buffers, tuple(readable), private)
        folder = external.folder_of_build(self.project.build / side.build, role)
        named = [Path(value) for value in described.parameters.values() if Path(value).is_absolute()]
        return Confined(
            limits,
            size,
            buffers,
            readable=(*readable, *external.led_to(folder), *filter(Path.exists, named)),
            private=() if role == "client" else identities,
            changing=(folder,),
            names={SERVER_NAME: str(self.testbed.server.address)},
            privileged=described.root,
        )

    def _collect(self, attempt: Attempt, directory: Path, *hosts: Host) -> None:
        """Bring what the endpoints have written to the run's directory, and remove what is not theirs to write.

        Those are files that only this driver writes, and what is neither file nor directory.
        """
        for host in hosts:
            try:
                host.collect(directory)
            except HostLostError:
                raise
            except TestbedError as error:
                attempt.fail(str(error))
        if removed := scrub(directory, _OWN_FILES):
            attempt.host["removed"] = removed
            attempt.fail(f"an endpoint left what is no file of its own in the run's directory: {', '.join(removed)}")

    @contextlib.contextmanager
    def _judging(self, attempt: Attempt) -> Iterator[None]:
        """What judges a run and does not understand what it finds makes a failed run of it, and nothing else."""
        try:
            yield
        except (TestbedError, MeasureError):
            raise
        except Exception as error:
            _logger.debug("judging", exc_info=True)
            attempt.fail(f"cannot be judged: {type(error).__name__}: {one_line(error, 300)}")

    def _hold_against(
        self,
        attempt: Attempt,
        cell: Cell,
        client: events.EndpointLog[events.ClientConnection],
        sent: SentBytes,
        delta: Mapping[str, float],
        link: LinkSettings,
    ) -> None:
        """Fail where what the client says is not what was seen from outside of the programs."""
        total = delta.get(f"server.{self.testbed.server.interface}.tx_bytes")
        ahead = self.testbed.client.monotonic_ahead_ns()
        for one in client.connections:
            begins = [time for time in (one.t_client_hello, one.t_request_sent) if time is not None]
            problem = sent.problem(
                begin=min(begins, default=None),
                request=one.t_request_sent,
                end=one.t_last_byte,
                size=one.bytes_received,
                ahead=ahead,
                link=link,
                fastest_mbit=self.project.config.limits.goodput_gbps * 1000,
                # a script may go on after the interval that its time.json tells
                anywhere=self._external(cell.client.library),
            )
            if problem is not None:
                attempt.fail(problem)
                return
        size = sum(one.bytes_received for one in client.connections)
        if total is not None and total < size:
            attempt.fail(
                f"the client reports {size} bytes, and the server's interface sent {total:.0f} during the whole run"
            )

    def _provide(self, role: str, side: Endpoint) -> None:
        """Have all that an endpoint is made of on its host."""
        host = self._host(role)
        host.provide(self.project.build / side.build)
        if self._external(side.library):
            self._folder(role, side)

    def _folder(self, role: str, side: Endpoint) -> Path:
        """Where the folder of an external endpoint is on its host."""
        folder = external.folder_of_build(self.project.build / side.build, role)
        described = self.project.libraries[side.library].external
        if described is not None and described.root and self.testbed.kind == "local":
            return folder
        return self._host(role).provide_copy(folder, external.MADE_ON_HOST)

    def _files(self, cell: Cell, scale: Scale) -> list[int]:
        """Sizes in bytes of what the client of a cell asks for on each connection."""
        described = self.project.libraries[cell.client.library].external
        return [scale.bytes] if described is None else external.sizes(described.requests, scale.bytes)

    def _environment(self, role: str, cell: Cell, scale: Scale, workload: Workload) -> dict[str, str] | None:
        """What the environment of an endpoint has besides that of its host."""
        side = cell.client if role == "client" else cell.server
        if self._external(side.library):
            # the command line does not tell which of the runner's test cases it is, which files to ask for, nor where
            # the folder is
            return {
                "QUICBED_WORKLOAD": workload.kind,
                "QUICBED_FILES": " ".join(map(str, self._files(cell, scale))),
                "QUICBED_FOLDER": str(self._folder(role, side)),
            }
        off = self.project.libraries[side.library].supports.aes_hardware_off
        if cell.variant.get("aes_hardware") is not False or isinstance(off, str):
            return None
        return dict(off)

    def _set_up_s(self, side: Endpoint) -> float:
        """Seconds that an endpoint may take before it does anything: an external one sets up its folder."""
        return external.SET_UP_TIMEOUT if self._external(side.library) else 0.0

    @staticmethod
    def _resolve(attempt: Attempt, profiled: perf.Profile) -> None:
        """Leave of the recordings on the hosts what folding needs."""
        if attempt.status == "ok":
            try:
                profiled.resolve()
            except stacks.PerfError as error:
                attempt.fail(str(error))
        profiled.clear()

    def _fold(self, attempt: Attempt, profiled: perf.Profile, connection: events.ClientConnection) -> None:
        """Keep the samples of the transfer as folded stacks."""
        if connection.t_client_hello is None or connection.t_last_byte is None:
            attempt.fail("the client reported a transfer without its times")
            return
        try:
            attempt.host["perf"] = profiled.fold(connection.t_client_hello, connection.t_last_byte)
        except stacks.PerfError as error:
            attempt.fail(str(error))

    def _await_ready(self, server: Process, log: Path, limit_s: float) -> str | None:
        """Wait for the server's `ready` event; returns what went wrong, if anything."""
        try:
            # a server that has ended says why in its events
            return None if self.testbed.server.await_text(log, '"ready"', server, limit_s) else ""
        except TimeoutError:
            return f"the server was not ready after {limit_s:g} s"

    def _stop(self, server: Process, attempt: Attempt) -> Exit | None:
        exit_ = server.poll()
        if exit_ is not None:
            return exit_
        server.terminate()
        try:
            return server.wait(STOP_TIMEOUT)
        except TimeoutError:
            attempt.fail(f"the server did not stop within {STOP_TIMEOUT:g} s of SIGTERM")
            _kill(server)
            return None

    def _read_logs(
        self, attempt: Attempt, directory: Path, client_exit: Any, server_exit: Any
    ) -> tuple[events.EndpointLog[events.ClientConnection], events.EndpointLog[events.ServerConnection]] | None:
        """Both event files, after the exit codes have been looked at; None when the run has failed."""
        for role, exit_ in (("server", server_exit), ("client", client_exit)):
            # the dynamic loader and shells exit with 127 too, and write no event
            if (
                exit_ is not None
                and exit_.returncode == 127
                and (reason := _unsupported_event(directory / f"{role}.jsonl")) is not None
            ):
                attempt.status, attempt.reason = "unsupported", reason
                return None
        problems = [attempt.reason] if attempt.reason else []
        client = server = None
        for role, exit_ in (("client", client_exit), ("server", server_exit)):
            if exit_ is None:
                continue
            if exit_.returncode != 0 or exit_.exceeded is not None:
                problems.append(_exit_text(role, exit_, directory))
                continue
            try:
                if role == "client":
                    client = events.read(directory / "client.jsonl", "client", self.project.config.limits)
                else:
                    server = events.read(directory / "server.jsonl", "server", self.project.config.limits)
            except events.EventError as error:
                problems.append(str(error).replace(f"{directory}/", ""))
        if client is None or server is None or problems:
            attempt.status = "failed"
            attempt.reason = one_line("; ".join(problems)) or "the run did not finish"
            return None
        return client, server

    def _judge(
        self,
        attempt: Attempt,
        cell: Cell,
        scale: Scale,
        client: events.EndpointLog[events.ClientConnection],
        server: events.EndpointLog[events.ServerConnection],
    ) -> None:
        """Metrics of a finished run, and whether both ends negotiated what the cell says."""
        if len(client.connections) != 1 or not client.connections[0].ok:
            error = client.connections[0].error if client.connections else "no connection was reported"
            attempt.fail(f"the client's connection failed: {error}")
            return
        connection = client.connections[0]
        if connection.bytes_received != scale.bytes or not connection.content_ok:
            attempt.fail(
                f"wrong content: {connection.bytes_received} of {scale.bytes} bytes received, content_ok is "
                f"{connection.content_ok}"
            )
            return
        if not server.connections and not self._external(cell.server.library):
            attempt.fail("the server reported no connection")
            return
        # only an external client may spread a download over several
        served = server.connections if self._external(cell.client.library) else server.connections[-1:]
        sent = [one.bytes_sent for one in served if one.bytes_sent is not None]
        if self._external(cell.client.library) and served and len(sent) == len(served) and sum(sent) < scale.bytes:
            attempt.fail(f"the server sent {sum(sent)} of {scale.bytes} bytes, on {len(served)} connections")
            return
        if connection.t_last_byte is None or connection.t_client_hello is None:
            attempt.fail("the client reported a transfer without its times")
            return
        gib = scale.bytes / 2**30
        attempt.metrics |= {
            "bytes": connection.bytes_received,
            "wall_s": (connection.t_last_byte - connection.t_client_hello) / 1e9,
        }
        for metric, value in (
            ("goodput_mbps", events.goodput_mbps(connection)),
            ("ttfb_ms", events.ttfb_ms(connection)),
            ("first_byte_ms", events.first_byte_ms(connection)),
        ):
            if value is not None:
                attempt.metrics[metric] = value
        if "goodput_mbps" not in attempt.metrics:
            attempt.fail("the client reported a transfer without the time of its request")
            return
        if len(served) > 1:
            attempt.evidence["unknown"] = {"server_cpu_s": _OVERLAPPING.format(len(served))}
        sides: dict[str, Sequence[events.Connection]] = {"client": [connection], "server": served}
        for role, side in sides.items():
            if len(side) == 1 and (cpu_s := _cpu_s(side[0])) is not None:
                attempt.metrics[f"{role}_cpu_s"] = cpu_s
                attempt.metrics[f"{role}_cpu_s_per_gib"] = cpu_s / gib
            for name in ("packets_sent", "packets_received", "packets_lost"):
                values = [getattr(one, name) for one in side]
                if values and None not in values:
                    attempt.metrics[f"{role}_{name}"] = sum(values)
        if connection.packets_sent is not None and connection.handshake_packets_sent is not None:
            # but for one with the request, what the client of a download sends after its handshake acknowledges
            attempt.metrics["client_ack_packets"] = connection.packets_sent - connection.handshake_packets_sent
        self._judge_both(attempt, cell, client, server)

    def _judge_handshakes(
        self,
        attempt: Attempt,
        cell: Cell,
        scale: Scale,
        count: int,
        client: events.EndpointLog[events.ClientConnection],
        server: events.EndpointLog[events.ServerConnection],
    ) -> None:
        """As `_judge` for a run of many connections: medians over them, evidence of each."""
        errors = [connection.error for connection in client.connections if connection.error]
        if errors:
            attempt.fail(_failures(len(errors), len(client.connections), errors[0]))
            return
        if len(client.connections) != count:
            attempt.fail(f"the client reported {len(client.connections)} connections, {count} were asked for")
            return
        if len(server.connections) != count and not self._external(cell.server.library):
            attempt.fail(f"the server reported {len(server.connections)} connections, the client {count}")
            return
        wrong = [c for c in client.connections if c.bytes_received != scale.bytes or not c.content_ok]
        if wrong:
            attempt.fail(f"wrong content on connection {wrong[0].index}: {wrong[0].bytes_received} bytes received")
            return
        begin, last = client.connections[0].t_client_hello, client.connections[-1].t_close
        if begin is None or last is None:
            attempt.fail("the client reported connections without their beginning or end")
            return
        if last <= begin:
            attempt.fail("the client reported connections that take no time")
            return
        attempt.metrics |= {
            "bytes": scale.bytes * count,
            "connections": count,
            "wall_s": (last - begin) / 1e9,
        }
        if not self._external(cell.client.library):
            attempt.metrics["handshakes_per_s"] = count / attempt.metrics["wall_s"]
            _ttfb_metrics(attempt, [events.ttfb_ms(connection) for connection in client.connections])
            if attempt.status != "ok":
                return
        for metric, function in (("confirmed_ms", events.confirmed_ms), ("first_byte_ms", events.first_byte_ms)):
            _median_metric(attempt, metric, (function(connection) for connection in client.connections))
        for role, log in (("client", client), ("server", server)):
            cpu = (_cpu_s(connection) for connection in log.connections)
            _median_metric(attempt, f"{role}_cpu_ms", (None if value is None else value * 1e3 for value in cpu))
            for name in ("handshake_packets_sent", "handshake_bytes_sent", "packets_lost"):
                values = (getattr(connection, name) for connection in log.connections)
                _median_metric(attempt, f"{role}_{name}", values)
        self._judge_both(attempt, cell, client, server)

    def _judge_both(
        self,
        attempt: Attempt,
        cell: Cell,
        client: events.EndpointLog[events.ClientConnection],
        server: events.EndpointLog[events.ServerConnection],
    ) -> None:
        """Keep what both ends say of themselves, and fail where a connection is not as the cell says."""
        attempt.host["run_delay_s"] = {
            role: None if log.end.run_delay_ns is None else log.end.run_delay_ns / 1e9
            for role, log in (("client", client), ("server", server))
        }
        attempt.host["max_rss_bytes"] = {"client": client.end.max_rss_bytes, "server": server.end.max_rss_bytes}
        attempt.host["options"] = {"client": client.start.options, "server": server.start.options}
        names = ("cipher", "group", "signature", "aead", "header_protection", "hello_retry_request", "retry")
        expected = expectations(self.project, cell)
        for role, log in (("client", client), ("server", server)):
            seen = [{name: getattr(connection, name) for name in names} for connection in log.connections]
            attempt.evidence[role] = seen[-1] if seen else dict.fromkeys(names)
            # an external endpoint tells nothing; the other end does, and captures do
            silent = _EXTERNAL_SILENT if self._external(getattr(cell, role).library) else ()
            for connection, values in zip(log.connections, seen, strict=True):
                told = {name: wanted for name, wanted in expected.items() if name not in silent}
                if problems := contradictions(told, role, values):
                    where = f" (connection {connection.index} of {len(seen)})" if len(seen) > 1 else ""
                    for problem in problems:
                        attempt.fail(problem + where)
                        attempt.contradictions.append(problem + where)
                    attempt.evidence[role] = values
                    break
            self._judge_processor(attempt, cell, role, log.start.options)

    def _observed(self, cell: Cell, workload: Workload) -> bool:
        """Whether the times of a cell's handshakes are taken from captures, because its client does not tell them."""
        return workload.kind == "handshake" and self._external(cell.client.library)

    def _observe(self, attempt: Attempt, directory: Path, count: int) -> None:
        """Take the times of handshakes from the run's capture; writes openings.json.

        One object (`quicbed.wire.handshake.Opening`) a connection.
        """
        try:
            seen = handshake.openings(
                directory / "capture.pcap", server_ip=str(self.testbed.server.address), server_port=PORT
            )
        except (handshake.HandshakeError, OSError) as error:
            attempt.fail(str(error).replace(f"{directory}/", ""))
            return
        kit.write_json(directory / OPENINGS, [one.model_dump() for one in seen])
        if len(seen) != count:
            attempt.fail(f"the capture holds {len(seen)} connections, {count} were asked for")
            return
        attempt.evidence |= {"ttfb": _FROM_CAPTURE, "unknown": dict(_UNKNOWN)}
        _ttfb_metrics(attempt, [one.ttfb_ms for one in seen])

    def _external(self, library: str) -> bool:
        """Whether a library is an external endpoint, which reports no connections and no negotiated values."""
        return self.project.libraries[library].external is not None

    def _judge_processor(self, attempt: Attempt, cell: Cell, role: str, options: Mapping[str, Any]) -> None:
        """Hold what a program tells of the processor's AES instructions against the cell.

        Without them a run must be proven; a program that uses them by default and cannot tell is noted as unproven.
        """
        wanted = cell.variant.get("aes_hardware")
        if wanted is None:
            return
        told = options.get("aes_hardware")
        attempt.evidence[role]["aes_hardware"] = told
        if told is wanted:
            return
        if told is None and wanted:
            _unproven(attempt, f"the {role} cannot tell whether it uses AES instructions")
            return
        problem = f"evidence: the {role} reports aes_hardware {json.dumps(told)}, the cell says {json.dumps(wanted)}"
        attempt.fail(problem)
        attempt.contradictions.append(problem)

    def time_primitives(self, cell: Cell, directory: Path) -> Attempt:
        """Time the primitives of a build; its output goes to `directory`."""
        begin = now()
        try:
            return self._time_primitives(cell, directory)
        except HostLostError as error:
            return self._lost(error, begin)

    def _time_primitives(self, cell: Cell, directory: Path) -> Attempt:
        attempt = Attempt(started_at=now())
        begin = time.monotonic()
        before = self.testbed.counters()
        own_before = time.process_time()
        host = self.testbed.client
        output = host.place(directory)
        log = directory / "primitives.jsonl"
        argv = [str(host.provide(self.project.build / cell.client.build) / "bin" / "primitives")]
        argv += ["--events", str(output / log.name)]
        argv += ["--milliseconds", str(PRIMITIVES_MS)]
        argv += [part for name in cell.variant["groups"] for part in ("--group", name)]
        for name in cell.variant["signatures"]:
            argv += ["--signature", f"{name}={host.provide(certificates.directory(self.project, name))}"]
        identities = (certificates.directory(self.project, name) for name in cell.variant["signatures"])
        confined = self._confined("primitives", cell.client, 0, 0, *identities)
        attempt.host["confinement"] = {"primitives": host.confinement(confined)}
        process = host.spawn(
            argv, stdout=output / "primitives.out", stderr=output / "primitives.err", confined=confined
        )
        exit_ = None
        try:
            exit_ = process.wait(PRIMITIVES_TIMEOUT)
        except TimeoutError:
            attempt.fail(f"the primitives hung: not finished {PRIMITIVES_TIMEOUT:g} s after their start")
        finally:
            if exit_ is None:
                _kill(process)
        after = self.testbed.counters()
        own_cpu = time.process_time() - own_before
        wall = time.monotonic() - begin
        self._collect(attempt, directory, host)
        delta = {key: after[key] - before[key] for key in after.keys() & before.keys()}
        with self._judging(attempt):
            if exit_ is not None and (exit_.returncode != 0 or exit_.exceeded is not None):
                attempt.fail(_exit_text("primitives", exit_, directory))
            elif exit_ is not None:
                try:
                    seen = events.read_primitives(log, self.project.config.limits)
                except events.EventError as error:
                    attempt.fail(str(error).replace(f"{directory}/", ""))
                else:
                    lacking = [f"{one.name}: {one.reason}" for one in seen.unsupported]
                    if lacking or seen.errors or not seen.primitives:
                        attempt.fail("; ".join([*lacking, *seen.errors]) or "no primitive was timed")
        used = exit_.user_s + exit_.system_s if exit_ is not None else 0.0
        attempt.metrics |= {"wall_s": wall, "run_wall_s": wall}
        attempt.host |= {
            "load_1m": before["machine.load_1m"],
            "psi_cpu_some_s": delta.get("machine.psi.cpu_some_s"),
            "foreign_cpu_share": _foreign_share(before, delta, {"client": used}, own_cpu, wall),
        }
        self._gate(attempt, cell)
        return attempt

    def _gate(self, attempt: Attempt, cell: Cell) -> None:
        """Note what else the machine was doing, where it was too much."""
        gate = self.project.config.gate
        # a series of handshakes may be so short that starting its programs is most of what they are delayed in
        wall = attempt.metrics.get("run_wall_s" if "connections" in attempt.metrics else "wall_s")
        if wall:
            for role, delay in attempt.host.get("run_delay_s", {}).items():
                side = cell.client if role == "client" else cell.server
                one_thread = self.project.libraries[side.library].threads == "one"
                if delay is not None and one_thread and delay / wall > gate.max_run_delay:
                    attempt.contamination.append(
                        f"{role} waited for a processor {delay / wall:.2f} of the wall time, more than "
                        f"{gate.max_run_delay:g}"
                    )
        share = attempt.host.get("foreign_cpu_share")
        if share is not None and share > gate.max_foreign_cpu:
            attempt.contamination.append(
                f"{share:.2f} of all processor time went elsewhere, more than {gate.max_foreign_cpu:g}"
            )

    # ---- storing -------------------------------------------------------------------------------------------------

    def record(
        self,
        cell: Cell,
        attempt: Attempt,
        *,
        experiment: str,
        campaign: str,
        link: Link,
        workload: Mapping[str, Any],
        number: int,
        named: Mapping[str, str | None] | None = None,
        **place: Any,
    ) -> Run:
        """What is kept of an attempt; the cell is kept with what else it is *named*."""
        values = {
            "format": record.FORMAT,
            "testbed": {
                "name": self.project.config.testbed,
                "kind": self.project.testbed.kind,
                "host_id": self.facts["host_id"],
                "cpu_model": self.facts["cpu_model"],
                "cpus": self.facts["cpus"],
                "kernel": self.facts["kernel"],
            },
            "link": {
                **link_of(cell, link).model_dump(),
                "rtt_ms": cell.variant.get("rtt_ms") or 0,
                "loss_percent": cell.variant.get("loss_percent") or 0,
            },
            "experiment": experiment,
            "campaign": campaign,
            "scale": self.project.config.scale,
            "cell": cell.as_dict() | dict(named or {}),
            "seed": self.project.config.seed,
            "client": cell.client.as_dict(),
            "server": cell.server.as_dict(),
            "variant": dict(cell.variant),
            "workload": dict(workload),
            "status": attempt.status,
            "reason": attempt.reason,
            "contaminated": bool(attempt.contamination),
            "contamination": attempt.contamination,
            "contradictions": attempt.contradictions,
            "metrics": attempt.metrics,
            "evidence": attempt.evidence,
            "host": attempt.host,
            "started_at": attempt.started_at or now(),
            "attempt": number,
            **place,
        }
        try:
            return record.made(values)
        except RunsError as error:
            # such as an option that an endpoint reports with a value of another type
            attempt.fail(f"cannot be kept: {error}")
            empty: dict[str, Any] = {"metrics": {}, "evidence": {}, "host": {}}
            return record.made(values | empty | {"status": attempt.status, "reason": attempt.reason})

    @contextlib.contextmanager
    def stored(self, directory: Path) -> Iterator[Path]:
        """A directory to fill that takes its place under `directory` only when complete."""
        with durable.filling(directory) as partial:
            yield partial
            for file in partial.iterdir():
                if file.suffix in (".out", ".err") and file.is_file() and file.stat().st_size == 0:
                    file.unlink()
            if directory.exists():
                raise MeasureError(f"{directory}: exists already; nothing measured is ever overwritten")

    def keep(self, run: Run, directory: Path, begin: float) -> Run:
        """Write run.json; returns the run with all the seconds that it took since *begin* (monotonic).

        MeasureError instead where a run has failed on a full disk, which is no finding.
        """
        if run.status == "failed":
            need_room(directory.parent)
        metrics = run.metrics.model_copy(update={"spent_s": time.monotonic() - begin})
        run = run.model_copy(update={"metrics": metrics})
        record.write(directory / RUN_FILE, run)
        if self.watcher is not None:
            self.watcher(run)
        return run

    # ---- proofs --------------------------------------------------------------------------------------------------

    @property
    def proofs(self) -> Path:
        """Where the proofs made on this host are: a directory each, named `<slug>-<proof_id>.<number>`."""
        return self.raw / "proofs" / digest({"host_id": self.facts["host_id"]})

    def proof_id(self, cell: Cell, workload: Workload, mtu: int) -> str:
        """Id of the proof of a cell (`as_proven`)."""
        identity = {
            "client": cell.client.build,
            "server": cell.server.build,
            "variant": dict(cell.variant),
            "mtu": mtu,
            "workload": workload.model_dump(),
            "host_id": self.facts["host_id"],
        }
        return digest(identity)

    def prove(self, cell: Cell, workload: Workload, mtu: int) -> Verdict:
        """Prove once per pair of builds that a variant does on the wire what it says.

        A captured download or, for handshakes, a captured series of them with the TLS secrets, from which packets and
        bytes by encryption level are taken. The secrets of a download are taken where both ends are external, which
        tell nothing themselves.
        """
        handshakes = workload.kind == "handshake"
        cell = as_proven(cell, workload.kind)
        link = proof_link(workload.kind, mtu)
        proof_id, parent = self.proof_id(cell, workload, mtu), self.proofs
        # not what a killed driver had not stored yet, whose name begins with a dot
        done = sorted(parent.glob(f"[!.]*-{proof_id}.*/run.json"))
        for file in done:
            stored = read_run(file)
            if stored.status == "unsupported":
                return Verdict(proof_id, stored.status, stored.reason, transferred=False)
            # looked at again, because what examines captures may have changed since
            if stored.status == "ok" and (handshakes or not self._examine(cell, file.parent / "capture.pcap", mtu)[1]):
                return Verdict(proof_id, "ok", None, transferred=True)
        size, count = proof_size(cell, workload.kind)
        # an attempt that was lost with a host has left none of its number
        attempts = itertools.count(1 + max((int(file.parent.name.rpartition(".")[2]) for file in done), default=-1))
        silent = self._external(cell.client.library) and self._external(cell.server.library)
        verdict = Verdict(proof_id, "failed", None, transferred=False)
        for again in range(PROOF_ATTEMPTS):
            if again and not handshakes:
                size = PROOF_BYTES_LARGE
            scale = Scale(bytes=size, blocks=1, timeout_s=120 if handshakes else 30)
            number = next(attempts)
            begin = time.monotonic()
            self.prepare(cell, workload, link)
            name = f"{cell.slug.removesuffix('-aa')}-{proof_id}.{number}"
            try:
                attempt, transferred = self._prove_once(
                    cell,
                    workload,
                    scale,
                    link,
                    parent / name,
                    proof_id,
                    count,
                    number,
                    secrets=handshakes or silent,
                    begin=begin,
                )
            except HostLostError as error:
                # the capture was lost with the host, and so is this attempt
                attempt, transferred = self._lost(error, now()), False
            verdict = Verdict(proof_id, attempt.status, attempt.reason, transferred)
            if verdict.status != "failed":
                break
        return verdict

    def _prove_once(
        self,
        cell: Cell,
        workload: Workload,
        scale: Scale,
        link: Link,
        target: Path,
        proof_id: str,
        count: int,
        number: int,
        *,
        secrets: bool,
        begin: float,
    ) -> tuple[Attempt, bool]:
        """One stored attempt at a proof, with the TLS secrets if *secrets*, and whether all was transferred."""
        handshakes = workload.kind == "handshake"
        with self.stored(target) as directory:
            capture = directory / "capture.pcap"
            key_log = directory / "keys.log" if secrets else None
            captured: Capture | None = None
            if self._observed(cell, workload):  # which captures by itself
                attempt = self.execute(cell, workload, scale, link, directory, connections=count, key_log=key_log)
            else:
                with self.testbed.capture(capture, snaplen=_snaplen(link)) as captured:
                    # a lost host ends the capture before it is connected to again
                    attempt = self._execute(cell, workload, scale, link, directory, connections=count, key_log=key_log)
                attempt.host["capture"] = captured.facts()
            attempt.contamination = []
            transferred = attempt.status == "ok"
            if transferred:
                attempt.evidence["proof"] = proof_id
                problems: list[str] = []
                with self._judging(attempt):
                    problems = self._examine_proof(
                        attempt, cell, directory, count, link.mtu, captured, handshakes=handshakes, secrets=secrets
                    )
                if captured is not None and captured.packets_lost:
                    problems.append(_lost_packets(captured))
                for problem in problems:
                    attempt.fail(f"capture: {problem}")
            run = self.record(
                cell,
                attempt,
                experiment="proofs",
                campaign=target.parent.name,
                link=link,
                workload={"kind": workload.kind, "bytes": scale.bytes, "connections": count},
                block=None,
                order=None,
                number=number,
                named={"id": proof_id, "arm": "proof", "baseline": None},
            )
            self.keep(run, directory, begin)
        return attempt, transferred

    def _examine_proof(
        self,
        attempt: Attempt,
        cell: Cell,
        directory: Path,
        count: int,
        mtu: int,
        captured: Capture | None,
        *,
        handshakes: bool,
        secrets: bool,
    ) -> list[str]:
        """Keep what the capture of a proof shows; returns where that contradicts the cell."""
        if handshakes:
            attempt.evidence["handshake"], problems = self._examine_handshakes(cell, directory, count, mtu)
            return problems
        attempt.evidence["seen"], problems = self._examine(cell, directory / "capture.pcap", mtu)
        if secrets:
            problems += self._examine_secrets(attempt, cell, directory)
        complete = captured is None or not captured.packets_lost
        for role, direction in (("client", "client_to_server"), ("server", "server_to_client")):
            # what a capture with gaps shows is kept as evidence, and is no metric
            if complete and (mean := attempt.evidence["seen"].get(direction, {}).get("mean_frame_bytes")):
                attempt.metrics[f"{role}_mean_frame_bytes"] = mean
        return problems

    def _examine_secrets(self, attempt: Attempt, cell: Cell, directory: Path) -> list[str]:
        """Where what the key log of a captured download shows, beyond the ServerHello, contradicts the cell.

        Not every endpoint writes a key log: what is not seen then is noted as unproven.
        """
        key_log = directory / "keys.log"
        problem = tshark.problem() if key_log.is_file() else "there is no key log"
        if problem is None:
            try:
                seen = handshake.examine(
                    directory / "capture.pcap",
                    key_log,
                    server_ip=str(self.testbed.server.address),
                    server_port=PORT,
                    transport="quic" if cell.transport == "quic" else "tcp",
                )
            except handshake.HandshakeError as error:
                problem = str(error).replace(f"{directory}/", "")
            else:
                problem = next((one.problem for one in seen if one.problem), None)
        if problem is not None:
            _unproven(attempt, f"the signature algorithm is not seen: {problem}")
            return []
        attempt.evidence["signatures"] = sorted({one.signature for one in seen if one.signature is not None})
        return handshake.contradictions(
            seen,
            self.project.algorithms,
            group=cell.variant["group"],
            signature=cell.variant["signature"],
            cipher=cell.variant["cipher"],
            retry=bool(cell.variant["retry"]),
        )

    def _examine_handshakes(
        self, cell: Cell, directory: Path, count: int, mtu: int
    ) -> tuple[dict[str, Any], list[str]]:
        """What the capture of a series of handshakes shows, and where that contradicts the cell.

        Writes handshakes.json: an object per connection (`quicbed.wire.handshake.Handshake`).
        """
        quic = cell.transport == "quic"
        try:
            seen = handshake.examine(
                directory / "capture.pcap",
                directory / "keys.log",
                server_ip=str(self.testbed.server.address),
                server_port=PORT,
                transport="quic" if quic else "tcp",
            )
        except (handshake.HandshakeError, OSError) as error:
            return {}, [str(error).replace(f"{directory}/", "")]
        kit.write_json(directory / "handshakes.json", [one.model_dump(mode="json") for one in seen])
        problems = handshake.contradictions(
            seen,
            self.project.algorithms,
            connections=count,
            group=cell.variant["group"],
            signature=cell.variant["signature"],
            cipher=cell.variant["cipher"],
            retry=bool(cell.variant["retry"]),
            udp_payload=mtu - UDP_OVERHEAD if quic else None,
        )
        client = events.read(directory / "client.jsonl", "client")
        server = events.read(directory / "server.jsonl", "server")
        summary: dict[str, Any] = {
            # comparing counts needs one connection of each side for every one in the capture
            "count_differences": handshake.count_differences(seen, client.connections, server.connections)
            if quic and len(client.connections) == len(server.connections)
            else [],
        }
        for role in ("client", "server"):
            sent = [one.client if role == "client" else one.server for one in seen]
            summary[role] = {
                name: statistics.median(getattr(one, name) for one in sent) if sent else None
                for name in ("packets", "datagrams", "bytes", "ack_only_packets")
            }
        return summary, problems

    def _examine(self, cell: Cell, capture: Path, mtu: int) -> tuple[dict[str, Any], list[str]]:
        """What a capture shows, and where that contradicts the cell."""
        try:
            seen = proof.examine(
                capture,
                server_ip=str(self.testbed.server.address),
                server_port=PORT,
                transport="quic" if cell.transport == "quic" else "tcp",
                mtu=mtu,
            )
        except (CaptureError, OSError) as error:
            return {}, [str(error)]
        claims = _Claims(
            cell.variant["aead"],
            cell.variant["header_protection"],
            handshake.CIPHER_SUITES[cell.variant["cipher"]],
            self.project.algorithms.group(cell.variant["group"]).code_point,
        )
        return seen.model_dump(mode="json"), proof.check(seen, claims)


def proof_link(kind: str, mtu: int) -> Link:
    """The link on which downloads or handshakes are captured."""
    return Link(mode="wire", mtu=mtu, rate_mbit=None if kind == "handshake" else PROOF_RATE_MBIT)


def proof_size(cell: Cell, kind: str) -> tuple[int, int]:
    """Bytes and connections of the first attempt at a proof."""
    if kind == "handshake":
        return 1, PROOF_SLOW_CONNECTIONS if cell.slow else PROOF_CONNECTIONS
    return PROOF_BYTES_LARGE if cell.variant.get("mtu") else PROOF_BYTES, 1


def read_run(file: Path) -> Run:
    """A stored run.json; raises MeasureError naming a damaged one."""
    try:
        return record.read(file)
    except RunsError as error:
        raise MeasureError(f"{file}: is damaged ({error}); move {file.parent} out of the way") from None


def expectations(project: Project, cell: Cell) -> dict[str, Any]:
    """What both ends of a cell's connections must have negotiated; None where the transport has no such thing."""
    header_protection = cell.variant["header_protection"]
    return {
        "cipher": SUITES[cell.variant["cipher"]],
        "group": project.algorithms.group(cell.variant["group"]).tls_name,
        "signature": project.algorithms.signature(cell.variant["signature"]).tls_name,
        "aead": cell.variant["aead"],
        "header_protection": None if header_protection is None else ("on" if header_protection else "off"),
        "hello_retry_request": False,
        "retry": cell.variant["retry"],
    }


# What a program may be unable to tell, while the other end and captures can.
_OPTIONAL = ("signature", "hello_retry_request", "retry")


# What an external endpoint cannot tell: the contract of its scripts has no place for it.
_EXTERNAL_SILENT = ("cipher", "group", "aead", "header_protection")


_FROM_CAPTURE = "capture: from the client's first Initial packet to its first 1-RTT packet"
# What neither the scripts of an external client tell nor a capture without secrets shows.
_UNKNOWN = {
    "client_cpu_ms": "the processor time of an external client is that of its whole program, not of a connection",
    "confirmed_ms": "an external client does not tell when its handshake is confirmed",
    "first_byte_ms": "an external client does not tell when content arrives",
}


_OVERLAPPING = "the client made {} connections, which a server's processor times by connection may each count"


def _key_logger(external_client: bool, external_server: bool) -> str:
    """The role that writes the TLS secrets: the client, unless it alone is external."""
    return "server" if external_client and not external_server else "client"


def _lost_packets(captured: Capture) -> str:
    """What a capture lacks."""
    by = "" if captured.packets_dropped else ", as client and server have sent more"
    return f"the capture lost {captured.packets_lost} packets{by}"


def _snaplen(link: Link) -> int:
    """Bytes of a frame that hold all of it; with offloads several datagrams of a client make one."""
    return link.mtu + 100 if link.mode == "wire" else 2**16 + 100


def _ttfb_metrics(attempt: Attempt, times: Sequence[float | None]) -> None:
    """Keep what the times to first byte (ms) of a run's connections amount to; fail where one is missing."""
    measured = sorted(time for time in times if time is not None)
    if len(measured) < len(times):
        attempt.fail(f"{len(times) - len(measured)} of {len(times)} handshakes are without their times")
        return
    q1, median, q3 = statistics.quantiles(measured, n=4, method="inclusive") if len(measured) > 1 else measured * 3
    attempt.metrics |= {
        "ttfb_ms": median,
        "ttfb_ms_mean": statistics.fmean(measured),
        "ttfb_ms_p25": q1,
        "ttfb_ms_p75": q3,
    }


def _unproven(attempt: Attempt, said: str) -> None:
    """Note what no evidence of a run shows."""
    before = attempt.evidence.get("unproven")
    attempt.evidence["unproven"] = f"{before}; {said}" if before else said


def contradictions(expected: Mapping[str, Any], role: str, seen: Mapping[str, Any]) -> list[str]:
    """Where the values that one end read back from its TLS library are not those expected."""
    problems = []
    for name, wanted in expected.items():
        value = seen[name]
        if value is None and name in _OPTIONAL:
            continue
        same = (
            value.lower() == wanted.lower() if isinstance(value, str) and isinstance(wanted, str) else value == wanted
        )
        if not same and not (name == "retry" and wanted is None and not value):
            problems.append(f"evidence: the {role} reports {name} {value}, the cell says {wanted}")
    return problems


def _median_metric(attempt: Attempt, name: str, values: Iterable[float | None]) -> None:
    """Keep the median of what connections report, unless one cannot tell."""
    known = list(values)
    present = [value for value in known if value is not None]
    if present and len(present) == len(known):
        attempt.metrics[name] = statistics.median(present)


def _end(process: Process) -> None:
    """End a process, which ends what it has started elsewhere than in its process group, or is killed."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except TimeoutError:
        _kill(process)


def _kill(process: Process) -> None:
    """End a process and wait until it has ended, so that its port is free again."""
    process.kill()
    with contextlib.suppress(TimeoutError):
        process.wait(STOP_TIMEOUT)


def _cpu_s(connection: events.Connection) -> float | None:
    """CPU time of a connection in seconds, None where the endpoint cannot tell."""
    if connection.cpu_user_ns is None or connection.cpu_system_ns is None:
        return None
    return (connection.cpu_user_ns + connection.cpu_system_ns) / 1e9


def _foreign_share(
    before: Mapping[str, float], delta: Mapping[str, float], used: Mapping[str, float], own_s: float, wall_s: float
) -> float | None:
    """Share of all processor time in `wall_s` that neither the endpoints nor the driver used; the larger of two hosts'.

    `used` are the seconds of client and server, of what samples them and of competing traffic there; `own_s` those of
    the driver and of a link made of programs, which are on their machine or on another.
    Interrupt time counts as used, because the kernel charges it to whichever program it interrupts: mostly the
    endpoints, for their own packets. The counters advance by ticks, so a tick of every processor is nobody's.
    """
    machines = {"machine": sum(used.values()) + own_s, **{f"{role}.machine": seconds for role, seconds in used.items()}}
    shares = []
    for machine, accounted_s in machines.items():
        if f"{machine}.cpu.user_s" not in delta:
            continue
        cpus = before.get(f"{machine}.cpus") or os.cpu_count() or 1
        busy = sum(delta[f"{machine}.cpu.{name}_s"] for name in ("user", "nice", "system", "irq", "softirq", "steal"))
        nobodys = cpus / os.sysconf("SC_CLK_TCK")
        shares.append(max(0.0, busy - accounted_s - nobodys) / (cpus * wall_s))
    return max(shares, default=None)


def _unsupported_event(log: Path) -> str | None:
    """Why a program says that it cannot do what it was asked for, None if it does not say so."""
    for event in events.said(log):
        if event.get("event") == "unsupported":
            return _text(event.get("reason")) or "the program does not say why"
    return None


def _text(value: object) -> str:
    """What a program says as a text; empty for what is none."""
    return one_line(value) if isinstance(value, str) else ""


def _exit_text(role: str, ended: Exit, directory: Path) -> str:
    if ended.exceeded is not None:
        return f"the {role} {ended.exceeded}"
    code = ended.returncode
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
    if code == -signal.SIGXFSZ:
        how += ", as a file was to be larger than limits.file_mib"
    detail = _complaint(directory / f"{role}.jsonl")
    with contextlib.suppress(UntrustedError):
        if not detail:
            said = untrusted.end(directory / f"{role}.err", 4096)
            detail = one_line(said.decode(errors="replace").strip()[-300:])
    return f"the {role} {how}" + (f": {detail}" if detail else "")


def _complaint(log: Path) -> str:
    """What a program's events, which may end anywhere, say went wrong: connections, then the program; may be empty."""
    connections: list[str] = []
    reason = ""
    for event in events.said(log):
        if event.get("event") == "connection":
            connections.append(_text(event.get("error")))
        else:
            reason = _text(event.get("reason")) or reason
    errors = [error for error in connections if error]
    complaints = [_failures(len(errors), len(connections), errors[0])] if errors else []
    return "; ".join(complaints + ([reason] if reason else []))


def _failures(failed: int, connections: int, first: str) -> str:
    return first if connections == 1 else f"{failed} of {connections} connections failed, the first because: {first}"


def link_settings(link: Link, workload: Workload, variant: Mapping[str, Any]) -> LinkSettings:
    """The link while cells with this variant run."""
    return LinkSettings(
        mode=link.mode,
        mtu=link.mtu,
        rate_mbit=link.rate_mbit,
        rtt_ms=variant.get("rtt_ms") or 0,
        loss_percent=variant.get("loss_percent") or 0,
        offloads=variant.get("offloads"),
        # handshakes end before the congestion control of TCP matters
        congestion_control="cubic" if workload.congestion_control == "any" else workload.congestion_control,
    )
