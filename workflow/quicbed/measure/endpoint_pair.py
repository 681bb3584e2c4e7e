"""Client and server of one run started, waited for and ended: what they used, wrote and said becomes an attempt."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from quicbed.base.untrusted import scrub
from quicbed.config.model import Instructions, Project, Side
from quicbed.contract import events
from quicbed.measure import callgrind, judge
from quicbed.measure import profile as perf
from quicbed.measure.attempt import Attempt
from quicbed.measure.cpu_samples import CpuSamples
from quicbed.measure.event_logs import complaint, read_logs
from quicbed.measure.link import PreparedLink, link_settings
from quicbed.measure.program import Program
from quicbed.measure.progress import now
from quicbed.measure.sent_bytes import SentBytes
from quicbed.measure.usage import Usage, gate, processor_s
from quicbed.plan.spec import RunSpec
from quicbed.store import stacks, symbols
from quicbed.store.paths import CAPTURE, DISSECTED, OPENINGS, PACING, RUN_FILE, TRACE
from quicbed.testbed import Exit, Host, HostLostError, Process, Testbed, TestbedError

Profile = perf.Profile | callgrind.Counts

READY_TIMEOUT = 20.0
STOP_TIMEOUT = 5.0
# A client gives up by itself and says why; one that has not is stopped this many seconds later.
HANG_MARGIN = 10.0
_FOLDED = (stacks.folded_name("client"), stacks.folded_name("server"))
_OWN_FILES = frozenset({RUN_FILE, DISSECTED, OPENINGS, CAPTURE, TRACE, PACING, *_FOLDED})
"""Files of a run's directory that readers believe, and only the driver writes; it begins after its programs have ended,
but for captures."""


class Pair:
    """Client and server of one run, executed once with their output in a directory."""

    def __init__(self, project: Project, testbed: Testbed, link: PreparedLink, spec: RunSpec, directory: Path) -> None:
        self._project = project
        self._testbed = testbed
        self._link = link
        self._spec = spec
        self._directory = directory
        self._programs: dict[Side, Program] = {
            role: Program(project, testbed, spec, directory, role) for role in spec.libraries
        }
        self._exits: dict[Side, Exit | None] = dict.fromkeys(spec.libraries)
        self._sent: SentBytes | None = None
        self._profile = _profile(project, spec, directory)
        self._slack_s = callgrind.SLACK_S if spec.counted else 0.0

    def run(self) -> Attempt:
        """What the run gave, judged; raises HostLostError."""
        there = frozenset(path.name for path in self._directory.iterdir())
        for program in self._programs.values():
            program.provide()
        attempt = Attempt(started_at=now())
        competing = self._link.competing(attempt)
        usage = Usage(self._testbed)
        perf_cpu = self._execute(attempt)
        usage.end()
        if not competing.ended():
            self._link.give_up_load()
        if self._profile is not None:
            self._resolve(attempt, self._profile)
        collect(attempt, self._directory, there, self._testbed.client, self._testbed.server)
        with attempt.judging():
            self._judge(attempt, usage)
        if isinstance(self._profile, callgrind.Counts) and attempt.reason:
            said = self._profile.said()
            attempt.reason += "" if said in attempt.reason else f"; {said}"
        if self._profile is not None:
            self._profile.discard()
        used: dict[str, float] = {
            role: perf_cpu.get(role, 0.0) + competing.cpu_s.get(role, 0.0) + processor_s(exit_)
            for role, exit_ in self._exits.items()
        }
        attempt.host |= usage.facts(used, usage.delta.get("link.cpu_s", 0.0)) | usage.counters()
        self._measure(attempt, usage)
        if not self._spec.counted:  # other load takes time, and no instructions
            gate(attempt, self._spec.libraries, self._project.config.gate, self._spec.copies)
        attempt.contamination += self._testbed.disturbances(usage.delta)
        return attempt

    # ---- programs ------------------------------------------------------------------------------------------------

    def _execute(self, attempt: Attempt) -> dict[str, float]:
        """Start both programs and see them end; the seconds of processors that sampling them took, by role."""
        server: Process | None = None
        perf_cpu: dict[str, float] = {}
        try:
            server = self._start(attempt, "server")
            if (problem := self._await_ready(server)) is not None:
                attempt.fail(problem)
            else:
                self._transfer(attempt, server)
        except stacks.PerfError as error:
            attempt.fail(str(error))
        finally:
            if server is not None:
                self._exits["server"] = stop(server, attempt, STOP_TIMEOUT * self._spec.copies + self._slack_s)
            if self._profile is not None:
                perf_cpu = self._profile.stop()
        return perf_cpu

    def _start(self, attempt: Attempt, role: Side) -> Process:
        program = self._programs[role]
        argv, host = program.argv(), program.host
        if self._profile is not None:
            argv = self._profile.held(role, host, argv)
        confined = program.confined()
        attempt.host.setdefault("confinement", {})[role] = host.confinement(confined)
        process = host.spawn(
            argv,
            stdout=program.output / f"{role}.out",
            stderr=program.output / f"{role}.err",
            env=program.environment(),
            confined=confined,
        )
        if self._profile is not None:
            try:
                self._profile.attach(role, process)
            except BaseException:
                kill(process)
                raise
        return process

    def _await_ready(self, server: Process) -> str | None:
        """Wait for the server's `ready` event; returns what went wrong, if anything."""
        program = self._programs["server"]
        limit_s = READY_TIMEOUT + program.set_up_s + self._slack_s
        try:
            # a server that has ended says why in its events
            return None if self._testbed.server.await_text(program.log, '"ready"', server, limit_s) else ""
        except TimeoutError:
            return f"the server was not ready after {limit_s:g} s"

    def _transfer(self, attempt: Attempt, server: Process) -> None:
        """Start the client and see it end."""
        program = self._programs["client"]
        before = server.sample_memory() if self._spec.held else None
        sent = self._sent = SentBytes(self._testbed)
        rates = self._link.rates(self._spec, attempt)
        client = self._start(attempt, "client")

        def also() -> None:
            sent.take()
            if rates is not None:
                rates.follow()

        limit = self._spec.timeout_s + HANG_MARGIN + program.set_up_s + self._slack_s
        try:
            if self._spec.held:
                self._hold(attempt, server, client, before, limit)
            samples = CpuSamples({"client": client, "server": server}, also, self._testbed.sample_s)
            self._exits["client"] = samples.wait("client", limit)
            sent.end()
            attempt.host["cpu"] = samples.result()
        except TimeoutError:
            said = complaint(program.log)
            attempt.fail(f"the client hung: not finished {limit:g} s after its start" + (f": {said}" if said else ""))
        finally:
            if self._exits["client"] is None:
                end(client)
            if rates is not None:
                rates.end()

    def _hold(self, attempt: Attempt, server: Process, client: Process, before: int | None, limit: float) -> None:
        """Read the memory of the server once the client holds its connections; *before* is that without any."""
        said = self._programs["client"].output / "client.out"
        if not self._testbed.client.await_text(said, "held ", client, limit):
            return  # the client has ended, and says why
        after = server.sample_memory()
        if before is None or after is None:
            attempt.fail("the memory of the server cannot be read: the kernel has no smaps_rollup of it (proc(5))")
            return
        attempt.metrics |= {"memory_none_bytes": before, "memory_held_bytes": after}

    # ---- what they gave ------------------------------------------------------------------------------------------

    @staticmethod
    def _resolve(attempt: Attempt, profile: Profile) -> None:
        """Leave of the recordings on the hosts what folding needs."""
        if attempt.ok:
            try:
                profile.resolve()
            except HostLostError:
                raise
            except (stacks.PerfError, TestbedError, ValueError) as error:  # a program may reach perf's files
                attempt.fail(str(error))
        profile.clear()

    def _judge(self, attempt: Attempt, usage: Usage) -> None:
        limits = self._project.config.limits
        logs = read_logs(attempt, self._directory, self._exits, limits)
        if logs is None or not attempt.ok:
            return
        judge.judge(attempt, self._project, self._spec, logs)
        ends: dict[Side, events.EndpointLog[Any]] = {"client": logs.client, "server": logs.server}
        for role, log in ends.items():
            if (exit_ := self._exits[role]) is not None:
                judge.held_against_kernel(attempt, role, log.connections, processor_s(exit_))
        if self._sent is not None:
            link, fastest_mbit = link_settings(self._spec), limits.goodput_gbps * 1000
            problem = self._sent.contradiction(self._spec, logs.client.connections, usage.delta, link, fastest_mbit)
            if problem is not None:
                attempt.fail(problem)
        if self._profile is not None and attempt.ok:
            _fold(attempt, self._profile, logs.client.connections[0])

    def _measure(self, attempt: Attempt, usage: Usage) -> None:
        """Keep what the driver itself measured."""
        for role, exit_ in self._exits.items():
            if exit_ is not None:
                attempt.metrics[f"{role}_process_cpu_s"] = processor_s(exit_)
        attempt.metrics["run_wall_s"] = usage.wall_s
        if self._spec.link.rate_mbit is not None and "link.dropped" in usage.delta:
            attempt.metrics["dropped_packets"] = usage.delta["link.dropped"]
        misplaced = sum(usage.delta.get(f"link.reorder_lost_to_{to}", 0) for to in ("client", "server"))
        if misplaced:
            attempt.fail(f"the link lost {misplaced:g} packets that it held for reordering")
        if "wall_s" in attempt.metrics:
            attempt.metrics["overhead_s"] = usage.wall_s - attempt.metrics["wall_s"]


def collect(attempt: Attempt, directory: Path, there: frozenset[str], *hosts: Host) -> None:
    """Bring what the endpoints have written to the run's directory, and remove what is not theirs to write.

    Those are files that only the driver writes, unless they were *there* before, and what `scrub` takes for none.
    """
    for host in hosts:
        try:
            host.collect(directory)
        except HostLostError:
            raise
        except TestbedError as error:
            attempt.fail(str(error))
    if removed := scrub(directory, _OWN_FILES, there):
        attempt.host["removed"] = removed
        attempt.fail(f"an endpoint left what is no file of its own in the run's directory: {', '.join(removed)}")


def _profile(project: Project, spec: RunSpec, directory: Path) -> Profile | None:
    """What samples both programs of a run, or counts their instructions."""
    if isinstance(spec.profile, Instructions):
        maps = {role: symbols.symbol_map(project.root, spec.side(role).library, role) for role in spec.libraries}
        return callgrind.Counts(spec.profile, directory, {role: one.callers for role, one in maps.items()})
    return perf.Profile(spec.profile, directory) if spec.profile else None


def _fold(attempt: Attempt, profile: Profile, connection: events.ClientConnection) -> None:
    """Keep the samples of the transfer, or the instructions of the programs, as folded stacks."""
    if connection.t_client_hello is None or connection.t_last_byte is None:
        attempt.fail("the client reported a transfer without its times")
        return
    try:
        attempt.host["perf"] = profile.fold(connection.t_client_hello, connection.t_last_byte)
    except stacks.PerfError as error:
        attempt.fail(str(error))


def stop(server: Process, attempt: Attempt, limit_s: float) -> Exit | None:
    """End a server with SIGTERM, or kill it, of which the attempt fails; how it ended, unless it was killed."""
    exit_ = server.poll()
    if exit_ is not None:
        return exit_
    server.terminate()
    try:
        return server.wait(limit_s)
    except TimeoutError:
        attempt.fail(f"the server did not stop within {limit_s:g} s of SIGTERM")
        kill(server)
        return None


def end(process: Process) -> None:
    """End a process, which ends what it has started elsewhere than in its process group, or is killed."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except TimeoutError:
        kill(process)


def kill(process: Process) -> None:
    """End a process and wait until it has ended, so that its port is free again."""
    process.kill()
    with contextlib.suppress(TimeoutError):
        process.wait(STOP_TIMEOUT)
