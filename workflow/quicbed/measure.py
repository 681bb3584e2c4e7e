"""The driver: measures an experiment block by block and stores every run.

Order, repetition and resumption live here, not in the workflow engine. An experiment is measured in randomised complete
blocks. A block's order is written down before its first run, so a driver that was killed finishes that block first; a run's
directory appears whole or not at all; a finished run is never measured again. Cells added later are measured in new blocks
together with their baselines, because ratios are paired within blocks.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from quicbed import build as builds
from quicbed import events, proof
from quicbed.analysis import paired_ratio
from quicbed.certificates import check as check_certificates
from quicbed.certificates import directory as certificates_directory
from quicbed.config import Link, Project, Scale, Workload
from quicbed.plan import Cell, builds_needed, campaign_of, cells_of, digest
from quicbed.testbed import LinkSettings, Process, Testbed, TestbedError, open_testbed

FORMAT = 1
PORT = 4433
SERVER_NAME = "server"
SUITES = {
    "aes-128-gcm": "TLS_AES_128_GCM_SHA256",
    "aes-256-gcm": "TLS_AES_256_GCM_SHA384",
    "chacha20-poly1305": "TLS_CHACHA20_POLY1305_SHA256",
}
# IPv4 and UDP headers
UDP_OVERHEAD = 28
READY_TIMEOUT = 20.0
STOP_TIMEOUT = 5.0
# A download this size gives a capture of about a hundred packets.
PROOF_BYTES = 131072
PROOF_ATTEMPTS = 2
FREE_BYTES = 500 * 2**20


class MeasureError(Exception):
    """Measuring cannot start or go on: one line naming what and the remedy."""


def say(text: str) -> None:
    """A line for the person watching."""
    print(text, file=sys.stderr, flush=True)


def now() -> str:
    """Wall-clock time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Attempt:
    """What one execution of client and server gave, before it is judged."""

    status: str = "ok"
    reason: str | None = None
    metrics: dict[str, float | int] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    contamination: list[str] = field(default_factory=list)
    started_at: str = ""

    def fail(self, reason: str) -> None:
        """Mark as failed; the first reason stays."""
        if self.status == "ok":
            self.status, self.reason = "failed", reason


@contextlib.contextmanager
def _terminating() -> Iterator[None]:
    """SIGTERM and SIGHUP end the driver the way Ctrl-C does: with clean-up."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Driver:
    """Measures experiments of a project on its testbed."""

    def __init__(self, project: Project, testbed: Testbed, facts: Mapping[str, Any]) -> None:
        self.project = project
        self.testbed = testbed
        self.facts = facts
        self.raw = project.raw / project.config.testbed
        self.certificates = certificates_directory(project)
        self.mismatches: list[str] = []

    # ---- one run -------------------------------------------------------------------------------------------------

    def execute(self, cell: Cell, workload: Workload, scale: Scale, link: Link, directory: Path) -> Attempt:
        """Run server and client of a cell once; their output goes to `directory`."""
        attempt = Attempt(started_at=now())
        begin = time.monotonic()
        before = self.testbed.counters()
        own_before = time.process_time()
        server: Process | None = None
        client: Process | None = None
        server_exit = client_exit = None
        try:
            server = self._spawn("server", cell, workload, scale, link, directory)
            if (problem := self._await_ready(server, directory / "server.jsonl")) is not None:
                attempt.fail(problem)
            else:
                client = self._spawn("client", cell, workload, scale, link, directory)
                try:
                    # the client itself gives up first and says why
                    client_exit = client.wait(scale.timeout_s + 10)
                except TimeoutError:
                    attempt.fail(f"the client hung: not finished {scale.timeout_s + 10:g} s after its start")
        finally:
            if client is not None and client_exit is None:
                client.kill()
            if server is not None:
                server_exit = self._stop(server, attempt)
        after = self.testbed.counters()
        own_cpu = time.process_time() - own_before
        wall = time.monotonic() - begin
        logs = self._read_logs(attempt, directory, client_exit, server_exit)
        if attempt.status == "ok" and logs is not None:
            self._judge(attempt, cell, scale, *logs)
        delta = {
            key: after[key] - before[key]
            for key in after
            if isinstance(after[key], (int, float)) and isinstance(before.get(key), (int, float))
        }
        endpoints_cpu = sum(e.user_s + e.system_s for e in (client_exit, server_exit) if e is not None)
        attempt.host |= {
            "before": dict(before),
            "after": dict(after),
            "delta": delta,
            "foreign_cpu_share": _foreign_share(delta, endpoints_cpu + own_cpu, wall),
            "driver_cpu_s": own_cpu,
        }
        if client_exit is not None:
            attempt.metrics["client_process_cpu_s"] = client_exit.user_s + client_exit.system_s
        if server_exit is not None:
            attempt.metrics["server_process_cpu_s"] = server_exit.user_s + server_exit.system_s
        attempt.metrics["run_wall_s"] = wall
        if "wall_s" in attempt.metrics:
            attempt.metrics["overhead_s"] = wall - attempt.metrics["wall_s"]
        self._gate(attempt)
        return attempt

    def _spawn(
        self, role: str, cell: Cell, workload: Workload, scale: Scale, link: Link, directory: Path
    ) -> Process:
        side = cell.client if role == "client" else cell.server
        program = self.project.build / side.build / "bin" / role
        address = f"{self.testbed.server.address}:{PORT}"
        argv = [str(program), "--events", str(directory / f"{role}.jsonl")]
        if role == "server":
            argv += ["--listen", address]
            argv += ["--certificate", str(self.certificates / "server.pem")]
            argv += ["--private-key", str(self.certificates / "server.key")]
            argv += ["--content", str(scale.bytes)]
        else:
            argv += ["--connect", address, "--server-name", SERVER_NAME]
            argv += ["--ca", str(self.certificates / "ca.pem")]
            argv += ["--bytes", str(scale.bytes), "--timeout", f"{scale.timeout_s:g}"]
        argv += ["--cipher", cell.variant["cipher"], "--aead", cell.variant["aead"], "--group", cell.variant["group"]]
        argv += ["--congestion-control", workload.congestion_control]
        if cell.transport == "quic":
            argv += ["--header-protection", "on" if cell.variant["header_protection"] else "off"]
            argv += ["--gso", "on" if workload.gso else "off", "--gro", "on" if workload.gro else "off"]
            argv += ["--udp-payload", str(link.mtu - UDP_OVERHEAD)]
            argv += ["--receive-buffer", str(workload.receive_buffer), "--send-buffer", str(workload.receive_buffer)]
            argv += ["--window", str(workload.window)]
        host = self.testbed.client if role == "client" else self.testbed.server
        return host.spawn(argv, stdout=directory / f"{role}.out", stderr=directory / f"{role}.err")

    def _await_ready(self, server: Process, log: Path) -> str | None:
        """Wait for the server's `ready` event; returns what went wrong, if anything."""
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                text = log.read_bytes()
                if b'"ready"' in text and text.endswith(b"\n"):
                    return None
            if server.poll() is not None:
                return ""  # it ended; its events say why
            time.sleep(0.002)
        return f"the server was not ready after {READY_TIMEOUT:g} s"

    def _stop(self, server: Process, attempt: Attempt) -> Any:
        exit_ = server.poll()
        if exit_ is not None:
            return exit_
        server.terminate()
        try:
            return server.wait(STOP_TIMEOUT)
        except TimeoutError:
            attempt.fail(f"the server did not stop within {STOP_TIMEOUT:g} s of SIGTERM")
            server.kill()
            return None

    def _read_logs(
        self, attempt: Attempt, directory: Path, client_exit: Any, server_exit: Any
    ) -> tuple[events.EndpointLog, events.EndpointLog] | None:
        """Both event files, after the exit codes have been looked at; None when the run has failed."""
        for role, exit_ in (("server", server_exit), ("client", client_exit)):
            if exit_ is not None and exit_.returncode == 127:
                attempt.status = "unsupported"
                attempt.reason = _unsupported_event(directory / f"{role}.jsonl")
                return None
        logs: dict[str, events.EndpointLog] = {}
        problems: list[str] = []
        for role, exit_ in (("client", client_exit), ("server", server_exit)):
            if exit_ is None:
                continue
            if exit_.returncode != 0:
                problems.append(_exit_text(role, exit_.returncode, directory))
                continue
            try:
                logs[role] = events.read(directory / f"{role}.jsonl", role)
            except events.EventError as error:
                problems.append(str(error).replace(f"{directory}/", ""))
        if attempt.reason:
            problems.insert(0, attempt.reason)
        if problems:
            attempt.status = "failed"
            attempt.reason = "; ".join(problems)
            return None
        if len(logs) < 2:
            attempt.fail("the run did not finish")
            return None
        return logs["client"], logs["server"]

    def _judge(
        self, attempt: Attempt, cell: Cell, scale: Scale, client: events.EndpointLog, server: events.EndpointLog
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
        if not server.connections:
            attempt.fail("the server reported no connection")
            return
        accepted = server.connections[-1]
        assert connection.t_last_byte is not None
        assert connection.t_client_hello is not None
        gib = scale.bytes / 2**30
        attempt.metrics |= {
            "goodput_mbps": events.goodput_mbps(connection),
            "handshake_ms": events.handshake_ms(connection),
            "ttfb_ms": events.ttfb_ms(connection),
            "bytes": connection.bytes_received,
            "wall_s": (connection.t_last_byte - connection.t_client_hello) / 1e9,
            "client_cpu_s": _cpu_s(connection),
            "server_cpu_s": _cpu_s(accepted),
            "client_cpu_s_per_gib": _cpu_s(connection) / gib,
            "server_cpu_s_per_gib": _cpu_s(accepted) / gib,
        }
        for role, side in (("client", connection), ("server", accepted)):
            for name in ("packets_sent", "packets_received", "packets_lost"):
                value = getattr(side, name)
                if value is not None:
                    attempt.metrics[f"{role}_{name}"] = value
        attempt.host["run_delay_s"] = {
            role: None if log.end.run_delay_ns is None else log.end.run_delay_ns / 1e9
            for role, log in (("client", client), ("server", server))
        }
        attempt.host["options"] = {"client": client.start.options, "server": server.start.options}
        attempt.evidence = {
            role: {name: getattr(side, name) for name in ("cipher", "group", "signature", "aead", "header_protection")}
            for role, side in (("client", connection), ("server", accepted))
        }
        for problem in contradictions(cell, attempt.evidence):
            attempt.fail(problem)
            self.mismatches.append(f"{cell.slug}: {problem}")

    def _gate(self, attempt: Attempt) -> None:
        """Note what else the machine was doing, where it was too much."""
        gate = self.project.config.gate
        wall = attempt.metrics.get("wall_s")
        if wall:
            for role, delay in attempt.host.get("run_delay_s", {}).items():
                if delay is not None and delay / wall > gate.max_run_delay:
                    attempt.contamination.append(
                        f"{role} waited for a processor {delay / wall:.2f} of the wall time, more than {gate.max_run_delay:g}"
                    )
        share = attempt.host.get("foreign_cpu_share")
        if share is not None and share > gate.max_foreign_cpu:
            attempt.contamination.append(
                f"{share:.2f} of all processor time went elsewhere, more than {gate.max_foreign_cpu:g}"
            )

    # ---- storing -------------------------------------------------------------------------------------------------

    def record(
        self, cell: Cell, attempt: Attempt, *, experiment: str, campaign: str, link: Link, size: int, **place: Any
    ) -> dict[str, Any]:
        """The run.json of an attempt."""
        return {
            "format": FORMAT,
            "testbed": {
                "name": self.project.config.testbed,
                "kind": self.project.testbed.kind,
                "host_id": self.facts["host_id"],
                "cpu_model": self.facts.get("cpu_model"),
                "cpus": self.facts.get("cpus"),
                "kernel": self.facts.get("kernel"),
            },
            "link": link.model_dump(),
            "experiment": experiment,
            "campaign": campaign,
            "scale": self.project.config.scale,
            "cell": cell.as_dict(),
            "seed": self.project.config.seed,
            "client": cell.client.as_dict(),
            "server": cell.server.as_dict(),
            "variant": dict(cell.variant),
            "workload": {"kind": "bulk", "bytes": size, "connections": 1},
            "status": attempt.status,
            "reason": attempt.reason,
            "contaminated": bool(attempt.contamination),
            "contamination": attempt.contamination,
            "metrics": attempt.metrics,
            "evidence": attempt.evidence,
            "host": attempt.host,
            "started_at": attempt.started_at or now(),
            **place,
        }

    @contextlib.contextmanager
    def stored(self, directory: Path) -> Iterator[Path]:
        """A directory to fill that takes its place under `directory` only when complete."""
        partial = directory.with_name(f".{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for file in partial.iterdir():
            if file.suffix in (".out", ".err") and file.stat().st_size == 0:
                file.unlink()
        if directory.exists():
            raise MeasureError(f"{directory}: exists already; nothing measured is ever overwritten")
        partial.rename(directory)

    # ---- proofs --------------------------------------------------------------------------------------------------

    def prove(self, cell: Cell, workload: Workload, mtu: int) -> tuple[str, str | None, str]:
        """Prove once per pair of builds that a variant does on the wire what it says.

        Returns the id of the proof, the reason why it did not succeed (None: proven) and its status.
        """
        link = Link(mode="wire", mtu=mtu)
        identity = {
            "client": cell.client.build,
            "server": cell.server.build,
            "variant": dict(cell.variant),
            "mtu": mtu,
            "workload": workload.model_dump(),
            "host_id": self.facts["host_id"],
        }
        proof_id = digest(identity)
        parent = self.raw / "proofs" / digest({"host_id": self.facts["host_id"]})
        done = sorted(parent.glob(f"*-{proof_id}.*/run.json"))
        for file in done:
            stored = json.loads(file.read_text(encoding="utf-8"))
            if stored["status"] != "failed":
                return proof_id, stored["reason"], stored["status"]
        scale = Scale(bytes=PROOF_BYTES, blocks=1, timeout_s=30)
        attempts = itertools.count(len(done))
        result = "failed"
        reason: str | None = None
        for _ in range(PROOF_ATTEMPTS):
            number = next(attempts)
            self.testbed.apply(_settings(link, workload))
            name = f"{cell.slug.removesuffix('-aa')}-{proof_id}.{number}"
            with self.stored(parent / name) as directory:
                capture = directory / "capture.pcap"
                with self.testbed.capture(capture) as captured:
                    attempt = self.execute(cell, workload, scale, link, directory)
                attempt.contamination = []
                if attempt.status == "ok":
                    seen = proof.examine(
                        capture,
                        server_ip=str(self.testbed.server.address),
                        server_port=PORT,
                        transport="quic" if cell.transport == "quic" else "tcp",
                        mtu=mtu,
                    )
                    problems = proof.check(seen, cell.variant)
                    attempt.evidence["proof"] = proof_id
                    attempt.evidence["seen"] = seen.as_dict()
                    if captured.dropped:
                        problems.append(f"the capture lost {captured.dropped} packets")
                    for problem in problems:
                        attempt.fail(f"capture: {problem}")
                run = self.record(
                    cell,
                    attempt,
                    experiment="proofs",
                    campaign=parent.name,
                    link=link,
                    size=PROOF_BYTES,
                    block=None,
                    order=None,
                    attempt=number,
                )
                run["cell"] |= {"id": proof_id, "arm": "proof", "baseline": None}
                builds.write_json(directory / "run.json", run)
            result, reason = attempt.status, attempt.reason
            if result != "failed":
                break
        if result == "failed":
            self.mismatches.append(f"{cell.slug}: {reason}")
        return proof_id, reason, result


def contradictions(cell: Cell, evidence: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where the values read back from the TLS libraries are not those of the cell."""
    header_protection = cell.variant["header_protection"]
    expected = {
        "cipher": SUITES[cell.variant["cipher"]],
        "group": cell.variant["group"],
        "aead": cell.variant["aead"],
        "header_protection": None if header_protection is None else ("on" if header_protection else "off"),
    }
    problems = []
    for role in ("client", "server"):
        for name, wanted in expected.items():
            seen = evidence[role][name]
            if seen is not None and name == "group":
                seen = seen.lower()
            if seen != wanted:
                problems.append(f"evidence: the {role} reports {name} {seen}, the cell says {wanted}")
    return problems


def _cpu_s(connection: events.Connection) -> float:
    return (connection.cpu_user_ns + connection.cpu_system_ns) / 1e9


def _foreign_share(delta: Mapping[str, float], accounted_s: float, wall_s: float) -> float | None:
    """Share of all processor time in `wall_s` that neither the endpoints nor the driver used.

    Interrupt time is left out: it is mostly the endpoints' own packets.
    """
    if "cpu_user_s" not in delta:
        return None
    cpus = os.cpu_count() or 1
    busy = sum(delta[f"cpu_{name}_s"] for name in ("user", "nice", "system", "steal"))
    return max(0.0, busy - accounted_s) / (cpus * wall_s)


def _unsupported_event(log: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            event = json.loads(line)
            if event.get("event") == "unsupported":
                return str(event["reason"])
    return "the endpoint exited with 127 and gave no reason"


def _exit_text(role: str, code: int, directory: Path) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    detail = ""
    with contextlib.suppress(OSError, ValueError):
        for line in (directory / f"{role}.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
            event = json.loads(line)
            detail = event.get("reason") or event.get("error") or detail
    with contextlib.suppress(OSError):
        if not detail:
            detail = (directory / f"{role}.err").read_text(encoding="utf-8", errors="replace").strip()[-300:]
    return f"the {role} {how}" + (f": {detail}" if detail else "")


def _settings(link: Link, workload: Workload) -> LinkSettings:
    return LinkSettings(
        mode=link.mode, mtu=link.mtu, rate_mbit=link.rate_mbit, congestion_control=workload.congestion_control
    )


class Campaign:
    """Runs of one experiment at one scale on one testbed, and what is still missing."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver = driver
        self.name = name
        project = driver.project
        self.experiment = project.experiments[name]
        self.scale = project.scale(name)
        self.id, self.identity = campaign_of(project, name, driver.facts["host_id"])
        self.directory = driver.raw / name / self.id
        self.builds = {
            (library, flavour): builds.read_build(project, library, flavour)
            for library, flavour in builds_needed(project, [name])
        }
        self.cells = cells_of(project, name, self.id, self.builds)
        self.proofs: dict[str, str] = {}
        self.excluded: dict[str, str] = {}

    # ---- state on disk -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Record what identifies this campaign and session."""
        for key, info in self.builds.items():
            file = self.directory / "builds" / f"{info['build']}.json"
            if not file.exists():
                builds.write_json(file, info)
            del key
        campaign = self.directory / "campaign.json"
        if not campaign.exists():
            builds.write_json(campaign, {"format": FORMAT, "id": self.id, **self.identity})
        for leftover in self.directory.glob("**/.*.partial"):
            shutil.rmtree(leftover)
        session = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
        builds.write_json(
            self.directory / "sessions" / f"{session}.json",
            {
                "started_at": now(),
                "facts": dict(self.driver.facts),
                "config": self.driver.project.config.model_dump(),
                "experiment": self.experiment.model_dump(),
                "revision": _revision(self.driver.project.root),
                "cells": [cell.as_dict() for cell in self.cells],
            },
        )

    def blocks(self) -> dict[int, list[str]]:
        """Planned blocks: number -> cell ids in order."""
        planned = {}
        for file in sorted(self.directory.glob("b[0-9][0-9][0-9][0-9]/block.json")):
            try:
                planned[int(file.parent.name[1:])] = list(json.loads(file.read_text(encoding="utf-8"))["cells"])
            except (json.JSONDecodeError, KeyError) as error:
                raise MeasureError(f"{file}: is damaged ({error}); move {file.parent} out of the way") from None
        return planned

    def runs(self, block: int) -> dict[str, list[dict[str, Any]]]:
        """Finished runs of a block: cell id -> attempts in order."""
        found: dict[str, list[dict[str, Any]]] = {}
        for file in (self.directory / f"b{block:04d}").glob("*/run.json"):
            try:
                run = json.loads(file.read_text(encoding="utf-8"))
                found.setdefault(run["cell"]["id"], []).append(run)
            except (json.JSONDecodeError, KeyError) as error:
                raise MeasureError(f"{file}: is damaged ({error}); move {file.parent} out of the way") from None
        for attempts in found.values():
            attempts.sort(key=lambda run: run["attempt"])
        return found

    def settled(self, attempts: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a cell of a block needs no further attempt."""
        if any(run["status"] != "failed" and not run["contaminated"] for run in attempts):
            return True
        return len(attempts) > self.driver.project.config.gate.retries

    # ---- measuring -----------------------------------------------------------------------------------------------

    def prove(self) -> None:
        """Proof of every build and variant in the experiment; cells without one are not measured."""
        for cell in self.cells:
            if cell.unsupported is not None:
                self.exclude(cell, "unsupported", cell.unsupported)
                continue
            say(f"{self.name}: proof of {cell.slug}")
            proof_id, reason, status = self.driver.prove(cell, self.experiment.workload, self.experiment.link.mtu)
            if status == "ok":
                self.proofs[cell.id] = proof_id
            else:
                self.exclude(cell, status, reason or "")

    def exclude(self, cell: Cell, status: str, reason: str) -> None:
        """Keep a cell that is not measured in the data, with its reason."""
        self.excluded[cell.id] = reason
        say(f"{self.name}: {cell.slug}: {status}: {reason}")
        directory = self.directory / "excluded" / f"{cell.slug}-{cell.id}"
        if directory.exists():
            return
        with self.driver.stored(directory) as partial:
            run = self._record(cell, Attempt(status=status, reason=reason), block=None, order=None, attempt=0)
            builds.write_json(partial / "run.json", run)

    def measure(self) -> None:
        """Measure what is missing."""
        workload, link = self.experiment.workload, self.experiment.link
        active = [cell for cell in self.cells if cell.id not in self.excluded]
        if not active:
            raise MeasureError(f"{self.name}: no cell can be measured; the reasons are above")
        self.driver.testbed.apply(_settings(link, workload))
        by_id = {cell.id: cell for cell in active}
        warm = False
        begin, measured = time.monotonic(), 0
        while (work := self.next_work(by_id)) is not None:
            block, order = work
            if not warm:
                self.warm_up(active)
                warm = True
            for position, cell_id in enumerate(order):
                cell = by_id.get(cell_id)
                if cell is None:
                    continue
                while not self.settled(attempts := self.runs(block).get(cell_id, [])):
                    run = self.measure_once(cell, block, position, len(attempts))
                    measured += 1
                    pace = (time.monotonic() - begin) / measured
                    remaining = self.remaining(by_id, block)
                    say(
                        f"{self.name}: block {block + 1} of at most {self.scale.blocks}, {position + 1}/{len(order)} "
                        f"{cell.slug}: {_summary(run)}; at most {_minutes(pace * remaining)} left"
                    )

    def next_work(self, by_id: Mapping[str, Cell]) -> tuple[int, list[str]] | None:
        """The block to measure next and its order, or None when the experiment is complete."""
        planned = self.blocks()
        for block, order in planned.items():
            runs = self.runs(block)
            if any(cell in by_id and not self.settled(runs.get(cell, [])) for cell in order):
                return block, order
        wanted = self.wanted(by_id, planned)
        if not wanted:
            return None
        block = max(planned, default=-1) + 1
        order = sorted(wanted)
        # the seed is a string so that it does not depend on Python's hash of tuples
        random.Random(f"{self.driver.project.config.seed}/{self.id}/{block}").shuffle(order)
        builds.write_json(
            self.directory / f"b{block:04d}" / "block.json",
            {"block": block, "cells": order, "seed": self.driver.project.config.seed, "created_at": now()},
        )
        return block, order

    def wanted(self, by_id: Mapping[str, Cell], planned: Mapping[int, Sequence[str]]) -> set[str]:
        """Cells that need another block, with the baselines they are compared to."""
        counts = {cell: sum(cell in order for order in planned.values()) for cell in by_id}
        least = self.scale.min_blocks or self.scale.blocks
        lacking = {cell for cell, count in counts.items() if count < least}
        if not lacking and not self.precise(by_id):
            lacking = {cell for cell, count in counts.items() if count < self.scale.blocks}
        result = set(lacking)
        while more := {b for c in result if (b := by_id[c].baseline) is not None and b in by_id} - result:
            result |= more
        return result

    def precise(self, by_id: Mapping[str, Cell]) -> bool:
        """Whether the contrast's interval is narrow enough for every pair of libraries."""
        contrast = self.experiment.contrast
        if contrast is None:
            return False
        values = self.values()
        for cell in by_id.values():
            if cell.label != contrast.label or cell.arm != "main" or cell.baseline not in by_id:
                continue
            interval = paired_ratio(values.get(cell.id, []), values.get(cell.baseline, []))
            if interval is None or not interval.low > 0:
                return False
            half_width = max(interval.high - interval.ratio, interval.ratio - interval.low) / interval.ratio
            if half_width > contrast.half_width:
                return False
        return True

    def values(self) -> dict[str, list[tuple[int, float]]]:
        """Goodput by cell: (block, Mbit/s) of the first uncontaminated successful attempt."""
        values: dict[str, list[tuple[int, float]]] = {}
        for block in self.blocks():
            for cell, attempts in self.runs(block).items():
                good = [run for run in attempts if run["status"] == "ok"]
                clean = [run for run in good if not run["contaminated"]]
                if chosen := (clean[:1] or good[-1:]):
                    values.setdefault(cell, []).append((block, chosen[0]["metrics"]["goodput_mbps"]))
        return values

    def remaining(self, by_id: Mapping[str, Cell], current: int) -> int:
        """Runs that are left at most."""
        planned = self.blocks()
        open_ = sum(
            not self.settled(self.runs(current).get(cell, [])) for cell in planned[current] if cell in by_id
        )
        missing = (max(0, self.scale.blocks - sum(cell in order for order in planned.values())) for cell in by_id)
        return open_ + sum(missing)

    def warm_up(self, active: Sequence[Cell]) -> None:
        """One run of every baseline that is kept but counts for nothing: caches, frequency, memory."""
        parent = self.directory / "warm-up"
        number = len(list(parent.glob("*"))) if parent.exists() else 0
        for cell in active:
            if cell.baseline is None:
                say(f"{self.name}: warm-up {cell.slug}")
                with self.driver.stored(parent / f"{number:04d}-{cell.slug}-{cell.id}") as directory:
                    attempt = self.driver.execute(
                        cell, self.experiment.workload, self.scale, self.experiment.link, directory
                    )
                    run = self._record(cell, attempt, block=None, order=None, attempt=number)
                    run["cell"] |= {"arm": "warm-up"}
                    builds.write_json(directory / "run.json", run)
                number += 1

    def measure_once(self, cell: Cell, block: int, order: int, number: int) -> dict[str, Any]:
        """One stored run."""
        if shutil.disk_usage(self.directory).free < FREE_BYTES:
            raise MeasureError(
                f"{self.directory}: less than {FREE_BYTES >> 20} MiB free on its disk; make room and start again: "
                "finished runs are kept"
            )
        target = self.directory / f"b{block:04d}" / f"{cell.slug}-{cell.id}.{number}"
        with self.driver.stored(target) as directory:
            attempt = self.driver.execute(
                cell, self.experiment.workload, self.scale, self.experiment.link, directory
            )
            attempt.evidence["proof"] = self.proofs[cell.id]
            run = self._record(cell, attempt, block=block, order=order, attempt=number)
            builds.write_json(directory / "run.json", run)
        return run

    def _record(self, cell: Cell, attempt: Attempt, **place: Any) -> dict[str, Any]:
        return self.driver.record(
            cell,
            attempt,
            experiment=self.name,
            campaign=self.id,
            link=self.experiment.link,
            size=self.scale.bytes,
            **place,
        )


def _summary(run: Mapping[str, Any]) -> str:
    if run["status"] != "ok":
        return f"{run['status']}: {run['reason']}"
    text = f"{run['metrics']['goodput_mbps'] / 1000:.2f} Gbit/s"
    return text + (" (contaminated)" if run["contaminated"] else "")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _revision(root: Path) -> str | None:
    """`git describe` of the repository, None outside one."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def measure(project: Project, name: str, marker: Path, opener: Callable[[Project], Testbed] | None = None) -> None:
    """Measure an experiment and write `marker` (JSON: campaign and cells) when it is complete.

    Raises MeasureError after everything else was measured if the evidence of a cell contradicts it.
    """
    check_certificates(project)
    project.raw.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(project.raw).free < FREE_BYTES:
        raise MeasureError(f"{project.raw}: less than {FREE_BYTES >> 20} MiB free on its disk; make room")
    try:
        with _terminating(), (opener or open_testbed)(project) as testbed:
            driver = Driver(project, testbed, testbed.facts())
            campaign = Campaign(driver, name)
            campaign.open()
            campaign.prove()
            campaign.measure()
    except TestbedError as error:
        raise MeasureError(str(error)) from error
    except OSError as error:
        raise MeasureError(f"{error}; finished runs are kept, start again when it is mended") from error
    if driver.mismatches:
        raise MeasureError(
            f"{name}: the evidence of {len(driver.mismatches)} runs contradicts their cells, first: {driver.mismatches[0]}"
        )
    builds.write_json(
        marker,
        {
            "experiment": name,
            "campaign": campaign.id,
            "directory": campaign.directory.relative_to(project.root).as_posix()
            if campaign.directory.is_relative_to(project.root)
            else str(campaign.directory),
            "cells": {cell.id: cell.slug for cell in campaign.cells},
            "excluded": campaign.excluded,
        },
    )
