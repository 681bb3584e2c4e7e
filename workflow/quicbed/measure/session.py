"""Measuring an experiment on the configured testbed, from the command line or the workflow."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from quicbed.builds import components, kit, making
from quicbed.config.model import Project
from quicbed.measure import captures, certificates, display
from quicbed.measure.attempt import MeasureError
from quicbed.measure.campaign_of_pairs import campaign_for
from quicbed.measure.driver import Driver
from quicbed.measure.progress import say
from quicbed.measure.storing import need_room
from quicbed.measure.time_left import Outlook
from quicbed.plan import march
from quicbed.plan.cells import builds_needed
from quicbed.testbed import Testbed, TestbedError, open_testbed
from quicbed.wire import tshark

NAMED_FINDINGS = 8
AGAIN_S = 0.05
"""After which a signal comes again whose exception was dropped."""


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM and SIGHUP end the driver the way Ctrl-C does: with clean-up."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    def send_again(ignored: Any) -> None:
        if not isinstance(ignored.exc_value, KeyboardInterrupt):
            reported(ignored)
            return
        # Python drops what is raised while it disposes of an object
        timer = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM))
        timer.daemon = True
        timer.start()

    reported, sys.unraisablehook = sys.unraisablehook, send_again
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        sys.unraisablehook = reported
        for number, handler in previous.items():
            signal.signal(number, handler)


def testbed_of(project: Project) -> Testbed:
    """The configured testbed, to be entered as a context manager."""
    patience_s = project.config.gate.link_wait_s
    limits = project.config.limits
    return open_testbed(project.config.testbed, project.testbed.kind, project.testbed, patience_s, limits)


def check_tools(project: Project, name: str) -> None:
    """Raise MeasureError unless there is what an experiment needs: tshark for captures of handshakes, what reads
    traces, a provider that OpenSSL can load where a build uses it.
    """
    if project.experiments[name].workload.kind == "handshake" and (problem := tshark.problem()) is not None:
        raise MeasureError(f"{name}: {problem}")
    if project.experiments[name].trace and not components.is_built(project, captures.READER):
        raise MeasureError(f"{name}: the reader of its traces is not built; run `quicbed component {captures.READER}`")
    levels = set()
    for library, build in builds_needed(project, [name]):
        flavour, level, host = march.parts(build)
        # a host's own are not here to be looked at
        if host is None and "openssl-provider" in project.libraries[library].flavours[flavour].components:
            levels.add(level)
    for level in levels:
        made = march.applied(project, level)
        openssl = components.directory(made, "openssl") / "bin" / "openssl"
        provider = components.directory(made, "openssl-provider") / "lib" / "quicbed-pq.so"
        if (problem := certificates.provider_problem(openssl, provider)) is not None:
            raise MeasureError(problem)


def _in_one_line(findings: Mapping[str, str], cells: int) -> str:
    """What failed, with the first few by name."""
    named = [f"{slug} ({what})" for slug, what in findings.items()]
    shown = ", ".join(named[:NAMED_FINDINGS])
    more = f" and {len(named) - NAMED_FINDINGS} more" if len(named) > NAMED_FINDINGS else ""
    return f"findings: {len(findings)} of {cells} cells failed: {shown}{more}; the report has every reason"


def measure(project: Project, name: str, marker: Path, opener: Callable[[Project], Testbed] = testbed_of) -> None:
    """Measure an experiment and write `marker` (JSON: campaign and cells) when it is complete.

    Raises MeasureError after everything else was measured if the evidence of a cell contradicts it, now or in an
    earlier session, or if no run of a cell succeeded; where the experiment's failures are findings, of any cell.
    """
    certificates.check(project, certificates.needed(project, [name]))
    check_tools(project, name)
    project.raw.mkdir(parents=True, exist_ok=True)
    need_room(project.raw)
    try:
        with terminating(), opener(project) as testbed, display.showing_progress():
            driver = Driver(project, testbed, testbed.facts())
            campaign = campaign_for(driver, name)
            for (library, build), info in campaign.builds.items():
                making.keep(project, library, build, info.build)
            with driver.link.unloaded():
                campaign.size_up()
            campaign.open()
            outlook = Outlook(campaign)
            driver.store.watcher, campaign.watch = outlook.saw, outlook
            outlook.begin()
            campaign.prove()
            with driver.link.unloaded():
                campaign.find_floor()
                campaign.measure()
            outlook.end()
    except TestbedError as error:
        raise MeasureError(str(error)) from error
    except OSError as error:
        raise MeasureError(f"{error}; finished runs remain, start again when it is fixed") from error
    if problems := campaign.problems():
        raise MeasureError(
            f"{name}: measured, but unreliable ({len(problems)} problems): {problems[0]}; "
            f"fix the cause, and see {campaign.directory} for the runs"
        )
    findings = campaign.findings()
    if findings:
        say(f"{name}: {_in_one_line(findings, len(campaign.cells))}")
    kit.write_json(
        marker,
        {
            "experiment": name,
            "campaign": campaign.id,
            "directory": campaign.directory.relative_to(project.root).as_posix()
            if campaign.directory.is_relative_to(project.root)
            else str(campaign.directory),
            "cells": {cell.id: cell.slug for cell in campaign.cells},
            "excluded": campaign.excluded,
            "findings": findings,
        },
    )
