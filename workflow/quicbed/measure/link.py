"""The link between client and server while runs need it: given what a cell needs, watched, and cleared of traffic."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quicbed.base.hashing import digest
from quicbed.config.model import Load, Project
from quicbed.measure import callgrind, fleet, generator, ping, player
from quicbed.measure import profile as perf
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.measure.competing import Competing
from quicbed.measure.progress import now, say
from quicbed.measure.rates import Rates
from quicbed.plan.spec import RunSpec
from quicbed.store import symbols
from quicbed.testbed import HostLostError, LinkSettings, Testbed, TestbedError

# Between two looks at a link that is not as it was set up.
LINK_POLL = 0.5


def link_settings(spec: RunSpec) -> LinkSettings:
    """The link while a run lasts."""
    link, variant, congestion_control = spec.link, spec.cell.variant, spec.workload.congestion_control
    return LinkSettings(
        mode=link.mode,
        mtu=link.mtu,
        rate_mbit=link.rate_mbit,
        rtt_ms=variant.rtt_ms,
        loss_percent=variant.loss_percent,
        **variant.reordering,
        offloads=variant.offloads,
        qdisc=variant.qdisc,
        bottleneck=link.bottleneck,
        **({} if link.queue_ms is None else {"queue_ms": link.queue_ms}),
        # handshakes end before the congestion control of TCP matters
        congestion_control="cubic" if congestion_control == "any" else congestion_control,
    )


@dataclass
class Settled:
    """A link right before a run."""

    host: dict[str, Any] = field(default_factory=dict)
    """What is kept of it in the run's `host`."""
    contamination: list[str] = field(default_factory=list)
    """Why it is not what the cell asks for."""


class PreparedLink:
    """The link of a testbed, and what competes on it with what is measured."""

    def __init__(self, project: Project, testbed: Testbed, facts: Mapping[str, Any]) -> None:
        self._project = project
        self._testbed = testbed
        # of the machine that has both ends, or of each end
        self._flags = [one["cpu_flags"] for one in (facts, *facts.get("hosts", {}).values()) if "cpu_flags" in one]
        self._applied: LinkSettings | None = None
        self._generator = generator.of(project.testbed.generator, testbed)
        self._load: Load | None = None
        # whether the generator may be sending, also what it was not asked for
        self._sending = False
        # of perf, and of what counts instructions, once they were tried
        self._profile_problems: dict[bool, str | None] = {}
        self.copies = fleet.copies(project.testbed, facts)
        """Programs of an end where it has one for each processor."""

    def unsupported(self, spec: RunSpec) -> str | None:
        """Why the testbed cannot give a run the link it needs, or None if nothing is known against it.

        Nor compute its key exchange, nor sample it or count its instructions, if it is to, or sort what that gives.
        Hosts that are lost meanwhile are asked again.
        """
        try:
            return self._unsupported(spec)
        except HostLostError as error:
            self.lost(error, now())
            return self._unsupported(spec)

    def _unsupported(self, spec: RunSpec) -> str | None:
        if spec.observed and not spec.quic:
            return (
                "an external client does not report when its handshake is complete, and captures show it for QUIC only"
            )
        lacking = self._project.algorithms.lacking(spec.cell.variant.group, self._flags)
        reason = lacking or self._testbed.unsupported(link_settings(spec))
        if reason is None and spec.cell.variant.processors is not None and self.copies < 2:
            reason = f"testbed {self._project.config.testbed} has a single processor for each end"
        if reason is None and spec.video is not None:
            reason = self._playerless()
        if reason is None and spec.perf is not None:
            reason = self._unprofiled(spec)
        if reason is None and spec.load is not None:
            if self._generator is None:
                return f"testbed {self._project.config.testbed} has no generator of competing traffic"
            reason = self._generator.problem(spec.load, spec.link)
            # a controller that crashed may have left traffic
            self._sending = True
        return reason

    def _playerless(self) -> str | None:
        """Why no video can be played, or None; what plays it is fetched."""
        try:
            player.fetch(self._project)
        except player.PlayerError as error:
            return str(error)
        return None

    def _unprofiled(self, spec: RunSpec) -> str | None:
        """Why a run cannot be sampled or counted, or what that gives cannot be sorted."""
        if spec.counted not in self._profile_problems:
            problem = callgrind.problem if spec.counted else perf.problem
            found = problem(self._testbed.client) or problem(self._testbed.server)
            self._profile_problems[spec.counted] = found
        libraries = dict.fromkeys(spec.cell.libraries)
        problems = (symbols.mapping_problem(self._project.root, library) for library in libraries)
        return self._profile_problems[spec.counted] or next(filter(None, problems), None)

    # ---- before a run --------------------------------------------------------------------------------------------

    def prepare(self, spec: RunSpec) -> None:
        """Give the link what a run needs, unless it has it already, and the traffic that the run competes with.

        What the link needs is tried once more if that fails.
        """
        settings = link_settings(spec)
        if settings != self._applied:
            self._applied = None
            self.unload()
            try:
                self._testbed.apply(settings)
            except TestbedError as error:
                # a machine that is busy for seconds must not end what takes hours
                say(f"{error}; trying once more")
                self._testbed.apply(settings)
            self._applied = settings
        try:
            self._compete(spec)
        except HostLostError as error:
            self.lost(error, now())
            self._testbed.apply(settings)
            self._applied = settings
            self._compete(spec)

    def _compete(self, spec: RunSpec) -> None:
        """Let the generator send the traffic that a run competes with, and no other."""
        load = spec.load
        if self._generator is None or (load == self._load and self._sending == (load is not None)):
            return
        self.unload()
        if load is not None:
            self._sending = True
            self._generator.start(load, spec.link)
            self._load = load

    def settle(self, spec: RunSpec, where: str, *, pings: bool) -> Settled:
        """Begin what a prepared link loses and puts back anew, with *pings* once those say that its delay is right.

        *where* is what the seed depends on beside that of the project: it is the same frames again in the same place.
        """
        settled = Settled()
        try:
            if pings:
                self._ping(spec, settled)
            variant = spec.cell.variant
            kinds = {"loss_seed": variant.loss_percent, "reorder_seed": variant.reorder_packets}
            if any(kinds.values()):
                seed = int(digest(f"{self._project.config.seed}/{where}"), 16)
                self._testbed.seed_losses(seed)
                settled.host |= {name: seed for name, asked in kinds.items() if asked}
        except HostLostError as error:
            say(str(error))  # and the run that is next fails with it
        return settled

    def _ping(self, spec: RunSpec, settled: Settled) -> None:
        wanted = spec.cell.variant.rtt_ms
        address = str(self._testbed.server.address)
        pinged, problem = ping.settle(self._testbed.client, address, wanted, self._project.config.gate.ping)
        settled.host["ping"] = pinged
        if problem is not None:
            settled.contamination.append(problem)

    def rates(self, spec: RunSpec, attempt: Attempt) -> Rates | None:
        """The rates that the link has one after the other from now on, if they change."""
        return None if spec.rate_trace is None else Rates(self._testbed, spec.rate_trace, attempt)

    # ---- competing traffic ---------------------------------------------------------------------------------------

    def competing(self, attempt: Attempt) -> Competing:
        """The traffic that an attempt competes with from now on, if any."""
        return Competing(attempt, self._generator if self._load else None, self._load)

    def unload(self) -> None:
        """End competing traffic; TestbedError where it may go on, so that no run without it is next."""
        self._load = None
        if self._generator is not None and self._sending:
            self._generator.stop()
        self._sending = False

    def give_up_load(self) -> None:
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
            self.give_up_load()
            raise
        self.unload()

    # ---- what is lost --------------------------------------------------------------------------------------------

    def await_link(self) -> None:
        """Return when the link is as it was set up; raises MeasureError if it is not within `gate.link_wait_s`."""
        patience_s = self._project.config.gate.link_wait_s
        deadline = time.monotonic() + patience_s
        said = None
        while (problem := self._problem()) is not None:
            if time.monotonic() >= deadline:
                raise MeasureError(
                    f"{problem} (waited {patience_s:g} s, gate.link_wait_s); finished runs remain, start again when "
                    "it is fixed"
                )
            if problem != said:
                say(f"{problem}; waiting for it for at most {patience_s:g} s")
                said = problem
            time.sleep(LINK_POLL)

    def _problem(self) -> str | None:
        try:
            return self._testbed.link_problem()
        except HostLostError as error:
            say(f"{error}; connecting again")
            self._applied = None
            self._testbed.recover()
            return self._testbed.link_problem()

    def lost(self, error: HostLostError, begin: str) -> Attempt:
        """The attempt in which a host was lost, once it is there again."""
        say(f"{error}; connecting again")
        self._applied = None
        self._load = None  # its programs end with those of the run; what is sent from elsewhere is stopped by the next
        self._testbed.recover()
        attempt = Attempt(started_at=begin)
        attempt.fail(str(error))
        return attempt
