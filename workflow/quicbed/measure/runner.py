"""One run: client and server executed once, with a capture where one is wanted, and judged."""

from __future__ import annotations

from pathlib import Path

from quicbed.base import trees
from quicbed.builds import components
from quicbed.config.model import Project
from quicbed.measure import captures
from quicbed.measure.attempt import Attempt
from quicbed.measure.endpoint_pair import Pair
from quicbed.measure.link import PreparedLink
from quicbed.measure.primitives import time_primitives
from quicbed.measure.progress import now
from quicbed.plan.spec import RunSpec
from quicbed.store.paths import CAPTURE
from quicbed.testbed import Capture, HostLostError, Testbed, TestbedError


class Runner:
    """Executes runs on the prepared link of a testbed."""

    def __init__(self, project: Project, testbed: Testbed, link: PreparedLink) -> None:
        self.project = project
        self.testbed = testbed
        self.link = link

    def execute(self, spec: RunSpec, directory: Path) -> Attempt:
        """Run server and client once; their output goes to `directory`.

        A run in which the connection to a host is lost has failed.

        Handshakes of a client that does not tell their times are captured; the capture stays in `directory` where it
        was of no use, or there are secrets to examine it with. So is every other run that is to be captured; such a
        capture stays.
        """
        begin = now()
        try:
            if spec.observed:
                return self._observed(spec, directory)
            if spec.traced and not spec.captured:
                return self._traced(spec, directory)
            return self._captured(spec, directory) if spec.captured else self.run(spec, directory)
        except HostLostError as error:
            return self.link.lost(error, begin)

    def time_primitives(self, spec: RunSpec, directory: Path) -> Attempt:
        """Time the primitives of a cell's build; the output goes to `directory`."""
        begin = now()
        try:
            return time_primitives(self.project, self.testbed, spec, directory)
        except HostLostError as error:
            return self.link.lost(error, begin)

    def run(self, spec: RunSpec, directory: Path) -> Attempt:
        """As `execute`, without a capture; raises HostLostError."""
        return Pair(self.project, self.testbed, self.link, spec, directory).run()

    def capturing(self, spec: RunSpec, directory: Path, snaplen: int) -> tuple[Attempt, Capture]:
        """As `run`, with so many bytes of every frame captured."""
        attempt = None
        try:
            with self.testbed.capture(directory / CAPTURE, snaplen=snaplen) as seen:
                # a lost host ends the capture before it is connected to again
                attempt = self.run(spec, directory)
        except HostLostError:
            raise
        except TestbedError as error:
            # before the run it is the testbed's fault, afterwards a program may have reached the capture's files
            if attempt is None:
                raise
            attempt.fail(f"capture: {error}")
        attempt.host["capture"] = seen.facts()
        return attempt, seen

    def _observed(self, spec: RunSpec, directory: Path) -> Attempt:
        """A run of handshakes whose times are taken from its capture."""
        attempt, seen = self.capturing(spec, directory, captures.whole_frames(spec.link))
        if attempt.ok and seen.packets_lost:
            attempt.fail(captures.lost_packets(seen))
        if attempt.ok:
            with attempt.judging():
                captures.observe(attempt, spec, directory, str(self.testbed.server.address))
        if attempt.ok and not spec.secrets and not spec.captured:
            trees.remove(directory / CAPTURE)
        return attempt

    def _traced(self, spec: RunSpec, directory: Path) -> Attempt:
        """A run whose packets are told by a capture of their headers, which is kept compressed.

        What it tells is no metric where it has gaps.
        """
        attempt, seen = self.capturing(spec, directory, captures.CAPTURED_BYTES)
        if seen.packets_lost:
            attempt.contamination.append(captures.lost_packets(seen))
        if attempt.ok:
            with attempt.judging():
                captures.keep_trace(directory)
        if attempt.ok and not seen.packets_lost:
            program = components.directory(self.project, captures.READER) / "bin" / captures.READER
            with attempt.judging():
                captures.measure_pacing(attempt, directory, program, str(self.testbed.server.address))
                captures.measure_precision(attempt, spec, directory, str(self.testbed.server.address))
        trees.remove(directory / CAPTURE)
        return attempt

    def _captured(self, spec: RunSpec, directory: Path) -> Attempt:
        """A run that is captured besides: nothing depends on its capture."""
        begin = now()
        try:
            attempt, seen = self.capturing(spec, directory, captures.CAPTURED_BYTES)
        except HostLostError:
            raise
        except TestbedError as error:
            attempt = Attempt(started_at=begin)
            attempt.fail(f"capture: {error}")
            return attempt
        # what a capture with gaps shows is no metric
        if attempt.ok and not seen.packets_lost:
            with attempt.judging():
                captures.measure_frames(attempt, directory, str(self.testbed.server.address))
        return attempt
