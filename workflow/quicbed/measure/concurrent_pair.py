"""Two arms at the same time: what slows the machine down while they run slows both down alike.

Both servers are kept to one processor and both clients to another. The servers are held from when they are ready until
both have a ClientHello to read, so that both arms begin to transfer at one moment. From then on to the end of its
client, the kernel tells what each arm has used for its bytes.

A transfer is taken whole, as its bytes are known exactly then, and neither by an estimate nor by what an endpoint says:
what a socket still holds for a client is not seen from outside. So both have to be about equally long, which whoever
chooses their sizes sees to; `overlap` tells how well that went, and a pair with less than `LEAST_OVERLAP` has failed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from quicbed.config.model import Project, Side
from quicbed.measure import endpoint_pair, judge
from quicbed.measure.attempt import Attempt
from quicbed.measure.event_logs import complaint, read_logs
from quicbed.measure.program import Program
from quicbed.measure.progress import now
from quicbed.measure.usage import Usage, gate_foreign, processor_s
from quicbed.plan.spec import RunSpec
from quicbed.store.paths import PORT
from quicbed.testbed import Exit, Process, Testbed

Arm = Literal["a", "b"]
ARMS: tuple[Arm, ...] = get_args(Arm)
_ROLES: tuple[Side, ...] = ("server", "client")
LEAST_OVERLAP = 0.8
"""Share of the longer transfer in which both transferred, of pairs that count."""
_HELD = "servers were held until both clients had begun"
_UNKNOWN = dict.fromkeys(("throughput_mbps", "ttfb_ms", "first_byte_ms", "wall_s"), _HELD)
"""Metrics that contain the time of the handshake."""


class _WentWrongError(Exception):
    """What ends a pair before its time."""

    def __init__(self, arm: Arm, reason: str) -> None:
        super().__init__(reason)
        self.arm = arm


@dataclass
class _Running:
    """One arm while it runs."""

    spec: RunSpec
    directory: Path
    programs: Mapping[Side, Program]
    attempt: Attempt
    processes: dict[Side, Process] = field(default_factory=dict)
    exits: dict[Side, Exit | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sample:
    """What was used and sent up to a moment."""

    at: float
    sent: int | None
    used: Mapping[tuple[Arm, Side], float | None]
    ended: Set[Arm]
    """Arms whose client has ended."""


class Together:
    """A server-client pair of each of two arms, executed once at the same time, with the output of each in a directory.

    Both are given by arm. *pins* names the processor of each end (`Testbed.pins`); the arm that is *first* is started
    first and has the lower port.
    """

    def __init__(
        self,
        project: Project,
        testbed: Testbed,
        specs: Mapping[Arm, RunSpec],
        directories: Mapping[Arm, Path],
        *,
        first: Arm,
        pins: Mapping[Any, int],
    ) -> None:
        self._project = project
        self._testbed = testbed
        self._pins = pins
        self._culprit: Arm | None = None
        order = ARMS if first == "a" else ARMS[::-1]
        self._arms: dict[Arm, _Running] = {}
        for port, arm in enumerate(order, PORT):
            spec, directory = specs[arm], directories[arm]
            programs: dict[Side, Program] = {
                role: Program(project, testbed, spec, directory, role, port) for role in _ROLES
            }
            self._arms[arm] = _Running(spec, directory, programs, Attempt(started_at=now()))
        self.told: dict[Arm, dict[str, Any]] = {
            arm: {
                "beside": _other(arm),
                "first": arm == first,
                "port": one.programs["server"].port,
                "processors": {role: pins[role] for role in _ROLES},
            }
            for arm, one in self._arms.items()
        }
        """By arm, `together` of its run.json; complete once it has run."""

    def run(self) -> Mapping[Arm, Attempt]:
        """What each arm gave, judged. Where one has failed, so has the other."""
        there = {arm: frozenset(path.name for path in one.directory.iterdir()) for arm, one in self._arms.items()}
        for one in self._arms.values():
            for program in one.programs.values():
                program.provide()
        usage = Usage(self._testbed)
        samples = self._execute()
        usage.end()
        for arm, one in self._arms.items():
            endpoint_pair.collect(one.attempt, one.directory, there[arm], self._testbed.client, self._testbed.server)
        used: dict[str, float] = {
            role: sum(processor_s(one.exits.get(role)) for one in self._arms.values()) for role in _ROLES
        }
        facts = usage.facts(used, usage.delta.get("link.cpu_s", 0.0)) | usage.counters()
        for arm, one in self._arms.items():
            # the programs of the other arm were ended because of what went wrong
            if self._culprit in (None, arm):
                with one.attempt.judging():
                    self._judge(one)
            one.attempt.host |= facts
            one.attempt.metrics |= {f"{role}_process_cpu_s": processor_s(one.exits.get(role)) for role in _ROLES}
            one.attempt.metrics["run_wall_s"] = usage.wall_s
            gate_foreign(one.attempt, self._project.config.gate)
            one.attempt.contamination += self._testbed.disturbances(usage.delta)
        if samples is not None and all(one.attempt.ok for one in self._arms.values()):
            self._value(*samples)
        self._share_failure()
        self._share_contamination()
        return {arm: one.attempt for arm, one in self._arms.items()}

    # ---- programs ------------------------------------------------------------------------------------------------

    def _execute(self) -> tuple[_Sample, _Sample, _Sample] | None:
        """Samples of the moments when both began, the first ended, and the second ended; None where it came otherwise.

        All programs have ended afterwards.
        """
        try:
            return self._transfer()
        except _WentWrongError as error:
            self._arms[error.arm].attempt.fail(str(error))
            self._culprit = error.arm
            return None
        finally:
            # a program that is held does not end when it is asked to
            for one in self._arms.values():
                for process in one.processes.values():
                    process.release()
            for one in self._arms.values():
                if (client := one.processes.get("client")) is not None:
                    if client.poll() is None:
                        endpoint_pair.end(client)
                    else:
                        one.exits["client"] = client.poll()
                if (server := one.processes.get("server")) is not None:
                    one.exits["server"] = endpoint_pair.stop(server, one.attempt, endpoint_pair.STOP_TIMEOUT)

    def _transfer(self) -> tuple[_Sample, _Sample, _Sample]:
        for arm in self._arms:
            self._start(arm, "server")
        for arm in self._arms:
            self._await_ready(arm)
        for one in self._arms.values():
            one.processes["server"].hold()
        for arm in self._arms:
            self._start(arm, "client")
        for arm in self._arms:
            self._await_hello(arm)
        for arm, one in self._arms.items():
            for role, process in one.processes.items():
                try:
                    # threads that have chosen processors themselves, too
                    process.pin(self._pins[role])
                except OSError as error:
                    raise _WentWrongError(
                        arm, f"the {role} cannot be pinned to processor {self._pins[role]}: {error.strerror}"
                    ) from None
        limit = max(one.spec.timeout_s for one in self._arms.values()) + endpoint_pair.HANG_MARGIN
        deadline = time.monotonic() + limit
        begin = self._sample()
        for one in self._arms.values():
            one.processes["server"].release()
        self._await_ends(1, deadline, limit)
        cut = self._sample()
        self._note_unpinned()
        self._await_ends(2, deadline, limit)
        return begin, cut, self._sample()

    def _start(self, arm: Arm, role: Side) -> None:
        one = self._arms[arm]
        program = one.programs[role]
        confined = program.confined()
        one.attempt.host.setdefault("confinement", {})[role] = program.host.confinement(confined)
        one.processes[role] = program.host.spawn(
            program.host.on_processor(self._pins[role], program.argv()),
            stdout=program.output / f"{role}.out",
            stderr=program.output / f"{role}.err",
            env=program.environment(),
            confined=confined,
        )

    def _await_ready(self, arm: Arm) -> None:
        """Wait until a server accepts connections."""
        one = self._arms[arm]
        log, server, limit = one.programs["server"].log, one.processes["server"], endpoint_pair.READY_TIMEOUT
        try:
            if not self._testbed.server.await_text(log, '"ready"', server, limit):
                raise _WentWrongError(arm, "the server ended before it was ready")
        except TimeoutError:
            raise _WentWrongError(arm, f"the server was not ready after {limit:g} s") from None

    def _await_hello(self, arm: Arm) -> None:
        """Wait until the first of a client is at its server, which is held."""
        one = self._arms[arm]
        deadline = time.monotonic() + endpoint_pair.READY_TIMEOUT
        while not self._testbed.server.has_unread(one.programs["server"].port):
            for role in _ROLES:
                if one.processes[role].poll() is not None:
                    raise _WentWrongError(arm, f"the {role} ended before the other arm had begun")
            if time.monotonic() >= deadline:
                said = complaint(one.programs["client"].log)
                raise _WentWrongError(
                    arm,
                    f"the client sent nothing for {endpoint_pair.READY_TIMEOUT:g} s" + (f": {said}" if said else ""),
                )
            time.sleep(self._testbed.POLL_S)

    def _await_ends(self, count: int, deadline: float, limit: float) -> None:
        """Wait until so many clients have ended; it has gone wrong where one of them, or a server, has failed."""
        while True:
            running = []
            for arm, one in self._arms.items():
                ended = one.processes["client"].poll()
                if ended is None:
                    running.append(arm)
                elif ended.returncode != 0:
                    raise _WentWrongError(arm, "")  # how it ended says why
                if one.processes["server"].poll() is not None:
                    raise _WentWrongError(arm, "the server ended before it was asked to")
            if len(running) <= len(self._arms) - count:
                return
            if time.monotonic() >= deadline:
                said = complaint(self._arms[running[0]].programs["client"].log)
                reason = f"the client hung: not finished {limit:g} s after both began" + (f": {said}" if said else "")
                raise _WentWrongError(running[0], reason)
            time.sleep(self._testbed.POLL_S)

    def _note_unpinned(self) -> None:
        for one in self._arms.values():
            for role, process in one.processes.items():
                if not process.pinned(self._pins[role]):
                    one.attempt.contamination.append(f"the {role} did not stay on processor {self._pins[role]}")

    def _sample(self) -> _Sample:
        at, sent = time.monotonic(), self._testbed.sent_by_server()
        # first: of a program that is about to end, nothing is told until it has ended
        ended = {arm for arm, one in self._arms.items() if one.processes["client"].poll()}
        used = {
            (arm, role): _used(process) for arm, one in self._arms.items() for role, process in one.processes.items()
        }
        return _Sample(at, sent, used, ended)

    # ---- what they gave ------------------------------------------------------------------------------------------

    def _judge(self, one: _Running) -> None:
        limits = self._project.config.limits
        exits: dict[Side, Exit | None] = {role: one.exits.get(role) for role in _ROLES}
        logs = read_logs(one.attempt, one.directory, exits, limits)
        if logs is None or not one.attempt.ok:
            return
        judge.judge(one.attempt, self._project, one.spec, logs)
        for name in _UNKNOWN:
            one.attempt.metrics.pop(name, None)
        one.attempt.evidence["unknown"] = one.attempt.evidence.get("unknown", {}) | _UNKNOWN

    def _value(self, begin: _Sample, *ends: _Sample) -> None:
        """Keep what each arm has used from the moment when both began to the end of its client."""
        size = sum(one.spec.bytes for one in self._arms.values())
        sent = None if begin.sent is None or ends[-1].sent is None else ends[-1].sent - begin.sent
        if sent is None or sent < size:
            told = "is not counted" if sent is None else f"is {sent} bytes since both began"
            self._fail(f"the clients report {size} bytes, and what the server's interface sends {told}")
            return
        for arm in ARMS:
            end = next(one for one in ends if arm in one.ended)
            values = self.told[arm]
            for role in _ROLES:
                before, after = begin.used[arm, role], end.used[arm, role]
                used = None if before is None or after is None else after - before
                if used is None or used <= 0:
                    self._fail(
                        f"arm {arm}: the processor time of its {role} is not reported by the kernel (it is {used})"
                    )
                    return
                values[f"{role}_cpu_s"] = used
            values["seconds"] = end.at - begin.at
            values["overlap"] = (ends[0].at - begin.at) / (ends[-1].at - begin.at)
        if (overlap := self.told["a"]["overlap"]) < LEAST_OVERLAP:
            alone = 100 * (1 - overlap)
            self._fail(f"one arm transferred alone for {alone:.0f} % of the time; the next pair has other sizes")

    def _fail(self, reason: str) -> None:
        for one in self._arms.values():
            one.attempt.fail(reason)

    def _share_failure(self) -> None:
        """Let nothing count of a pair of which one arm does not."""
        for arm, one in self._arms.items():
            other = self._arms[_other(arm)].attempt
            if not other.ok and one.attempt.ok:
                one.attempt.fail(f"arm {_other(arm)}: {other.status}: {other.reason}")

    def _share_contamination(self) -> None:
        """Note what disturbed one arm of both, which had it at the same time."""
        found = [one for running in self._arms.values() for one in running.attempt.contamination]
        for one in self._arms.values():
            one.attempt.contamination = list(dict.fromkeys(found))


def _other(arm: Arm) -> Arm:
    return "b" if arm == "a" else "a"


def _used(process: Process) -> float | None:
    """Processor time of a program so far in seconds, also of one that has ended."""
    used = process.sample_cpu()
    return processor_s(process.poll()) if used is None and process.poll() is not None else used
