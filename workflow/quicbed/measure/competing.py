"""Competing traffic during one run: its rates become metrics of the attempt."""

from __future__ import annotations

from quicbed.config.model import Load
from quicbed.measure import generator
from quicbed.measure.attempt import Attempt
from quicbed.testbed import HostLostError, TestbedError


class Competing:
    """Competing traffic from before the start of both programs to after their end."""

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
        self._before = self._sample(source)

    def _sample(self, source: generator.Generator) -> generator.Sample | None:
        try:
            return source.sample()
        except HostLostError:
            raise
        except TestbedError as error:
            self._attempt.fail(f"competing traffic: {error}")
            return None

    def ended(self) -> bool:
        """Take the rates; whether it was sent all the time. The attempt has failed if not."""
        if self._source is None:
            return True
        after = None if self._before is None else self._sample(self._source)
        if self._before is not None and after is not None:
            rates = generator.achieved(self._before, after)
            self._attempt.metrics.update(rates)
            if (problem := generator.rate_problem(self._source.asked_mbps(), rates)) is not None:
                self._attempt.fail(f"competing traffic: {problem}")
        self.cpu_s = {role: used - self._cpu_before[role] for role, used in self._source.cpu_s().items()}
        return after is not None
