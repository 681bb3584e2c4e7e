"""The parts of measuring put together: the link prepared, the pair run and judged, variants proven, runs stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from quicbed.config.model import Project
from quicbed.measure import browser
from quicbed.measure.link import PreparedLink
from quicbed.measure.prove import Prover
from quicbed.measure.runner import Runner
from quicbed.measure.storing import Store
from quicbed.testbed import Testbed


class Driver:
    """Measures experiments of a project on its testbed."""

    def __init__(self, project: Project, testbed: Testbed, facts: Mapping[str, Any]) -> None:
        self.project = project
        self.testbed = testbed
        self.facts = facts
        self.link = PreparedLink(project, testbed, facts)
        self.store = Store(project, facts)
        self.runner = Runner(project, testbed, self.link)
        self.prover = Prover(self.runner, self.store)

    @cached_property
    def browser(self) -> str | None:
        """Name and version of the browser on the client's host; None where there is none."""
        return browser.version(self.testbed.client)
