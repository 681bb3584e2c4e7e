"""Benchmarks of the instrument itself: ratios of things measured side by side, in turn, in one run.

Each prints what it measured, the target and whether it was met. Nothing here is asserted by a test: speed depends on
the machine and on what else it is doing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import numpy as np

from benchmarks import captures, chromium, designs, dilution, examples
from quicbed.base.statistics import mean_interval, paired_ratio
from quicbed.builds import components, making, sources
from quicbed.builds.kit import BuildError
from quicbed.builds.recipes import cargo
from quicbed.config.algorithms import AlgorithmError
from quicbed.config.model import ConfigError, Frame, Link, Load, Project, Scale
from quicbed.config.model import Testbed as TestbedSettings
from quicbed.figures.browser import NOT_FOUND
from quicbed.importers import samples
from quicbed.measure import captures as measured
from quicbed.measure import certificates, generator
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.measure.campaign import Campaign
from quicbed.measure.certificates import CertificateError
from quicbed.measure.driver import Driver
from quicbed.measure.link import link_settings
from quicbed.measure.session import testbed_of
from quicbed.papers.highway.samples import profiled, results
from quicbed.papers.steps import samples as steps_samples
from quicbed.plan.cells import Cell, builds_needed, campaign_of, cells_of
from quicbed.plan.spec import RunSpec, run_spec
from quicbed.store import runs
from quicbed.store.paths import CAPTURE, PORT
from quicbed.testbed import LinkSettings, Testbed, TestbedError

ROUNDS = 7
BULK = Scale(bytes=268435456, blocks=1, timeout_s=60)
# Bytes of a transfer that is compared with a bare one.
LONG = 1 << 30
LINK = Link(mode="throughput")
SECONDS = 1.0
EXPERIMENT = "aead-goodput"
CONTRASTS, FEWEST_BLOCKS = ("AES-256-GCM", "ChaCha20-Poly1305", "NOOP"), 10
"""Whose ratios to AES-128-GCM are resampled, from as many blocks or more."""
# Published data as large as the copies: repetitions of QUIC on the Highway; of it with perf recordings, repetitions of
# each of four pairs and samples of each recording (80 of 2 MB, 60 MB unpacked); configurations, repetitions of each and
# packets of each of QUIC Steps.
HIGHWAY_REPETITIONS = 3000
PERF_SIZE = (10, 86_000)
STEPS_SIZE = (20, 20, 74_000)
# For so long a generator sends frames of each size at its line rate; sizes in bytes with their check sequence, those of
# RFC 2544, section 9.1.
LINE_RATE_S = 10.0
FRAME_BYTES = (64, 128, 256, 512, 1024, 1280, 1518)
# Packets of the capture that all readers get, and bytes kept of each.
CAPTURE_PACKETS, SNAP_BYTES = 300_000, 96
# Handshakes of a run whose rate counts, and of the two after which a server's memory is compared.
SERIES, FEW, MANY = 500, 1000, 10_000


class BenchError(MeasureError):
    """A benchmark that cannot run, with the remedy."""


_CANNOT_RUN = (
    AlgorithmError,
    BenchError,
    BuildError,
    CertificateError,
    ConfigError,
    MeasureError,
    TestbedError,
    OSError,
)
"""What keeps a benchmark, or one thing that it compares, from running: told in a line, and the others go on."""


def bench(project: Project, only: Sequence[str]) -> int:
    """Run the benchmarks (all, or those named).

    Returns 0 however the targets came out, 1 if a benchmark could not run; the others run all the same.
    """
    known: dict[str, Callable[[Project], None]] = {
        "goodput": goodput,
        "handshakes": handshakes,
        "examples": examples_of_libraries,
        "bare": bare_transfers,
        "workflow": workflow,
        "report": report,
        "interval": interval,
        "designs": designs_compared,
        "dilution": dilution_of_pairs,
        "imports": imports,
        "captures": captures_read,
        "ssh": ssh,
        "line-rate": line_rate,
    }
    for name in only:
        if name not in known:
            raise BenchError(f"benchmark `{name}` is unknown; known are {', '.join(known)}")
    code = 0
    for name, function in known.items():
        if not only or name in only:
            print(f"== {name}", flush=True)
            try:
                function(project)
            except _CANNOT_RUN as error:
                print(f"  not run: {_in_a_line(error)}", flush=True)
                code = 1
    return code


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _rounds(arms: Mapping[str, Callable[[], float]], begun: Callable[[], None]) -> dict[str, list[float]]:
    """What each arm returned in rounds of all of them, after a first round that does not count.

    *begun* is called after that one. An arm that cannot run is left out with a line that says why.
    """
    seen: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(1 + ROUNDS):
        for name in list(seen):
            try:
                value = arms[name]()
            except _CANNOT_RUN as error:
                print(f"  {name}: left out: {_in_a_line(error)}", flush=True)
                del seen[name]
                continue
            if number:
                seen[name].append(value)
        if number == 0:
            begun()
    if not seen:
        raise BenchError("nothing is left to compare")
    return seen


def _verdict(label: str, value: float, target: float, *, at_least: bool, unit: str = "") -> None:
    met = value >= target if at_least else value <= target
    sign = "at least" if at_least else "at most"
    print(
        f"  {label}: {value:.3g}{unit}, target {sign} {target:g}{unit}: {'met' if met else 'MISSED'}",
        flush=True,
    )


def _spread(values: Sequence[float]) -> str:
    return f"median {statistics.median(values):.3g}, {min(values):.3g} to {max(values):.3g}"


def _cells(project: Project, name: str, label: str) -> dict[str, Cell]:
    """The cell of each library with this label in an experiment; makes its certificates unless they are there."""
    built = {}
    for key in builds_needed(project, [name]):
        with contextlib.suppress(BuildError):
            built[key] = making.read_known(project, *key)
    campaign, _ = campaign_of(project, name, {})
    cells = {
        cell.client.library: cell
        for cell in cells_of(project, name, campaign, built)
        if cell.label == label and cell.arm == "main" and cell.unsupported is None
    }
    if not cells:
        raise BenchError(f"{name}: no library of the configuration has {label}; name one under `libraries`")
    if missing := [f"{library}-{cell.client.flavour}" for library, cell in cells.items() if not cell.client.build]:
        raise BenchError(f"{', '.join(missing)}: not built; run `snakemake --cores 8 builds`")
    signatures = {cell.variant.signature for cell in cells.values()}
    certificates.make_all(project, sorted(signatures), jobs=os.cpu_count() or 1, log=project.root / "logs/bench.log")
    return cells


def goodput(project: Project) -> None:
    """Endpoint pairs against raw UDP, TCP and nginx+curl on the same link, and what the driver adds to a run."""
    cells = _cells(project, EXPERIMENT, "AES-128-GCM")
    with (
        testbed_of(project) as testbed,
        tempfile.TemporaryDirectory(prefix="quicbed-bench-") as temporary,
    ):
        driver = Driver(project, testbed, testbed.facts())
        experiment = project.experiments[EXPERIMENT]
        plain = {"gso": False, "gro": False}

        def spec_of(cell: Cell, changed: Mapping[str, bool]) -> RunSpec:
            spec = run_spec(project, experiment, cell, BULK)
            most = project.libraries[cell.client.library].max_bytes or BULK.bytes
            workload = spec.workload.model_copy(update=dict(changed))
            return replace(spec, workload=workload, link=LINK, bytes=min(BULK.bytes, most))

        testbed.apply(link_settings(spec_of(next(iter(cells.values())), {})))
        overheads: list[float] = []

        def transfer(cell: Cell, changed: Mapping[str, bool]) -> float:
            directory = Path(temporary) / "run"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            attempt = driver.runner.execute(spec_of(cell, changed), directory)
            if attempt.status != "ok":
                raise BenchError(f"{cell.slug}: {attempt.reason}")
            overheads.append(attempt.metrics["overhead_s"])
            return attempt.metrics["goodput_mbps"]

        arms: dict[str, Callable[[], float]] = {
            "raw UDP, GSO/GRO": lambda: raw_udp(testbed),
            "TCP (iperf3)": lambda: iperf3(testbed),
        }
        for name, cell in cells.items():
            arms[name] = lambda cell=cell: transfer(cell, {})  # type: ignore[misc]
            if cell.transport == "quic":
                arms[f"{name}, plain send/receive"] = lambda cell=cell: transfer(cell, plain)  # type: ignore[misc]
        seen = _rounds(arms, overheads.clear)
    print(f"  {ROUNDS} rounds of {BULK.bytes >> 20} MiB downloads, AES-128-GCM, Mbit/s:")
    for name, values in seen.items():
        print(f"    {name:32} {_spread(values)}")
    for name in [name for name in ("quiche", "quinn") if name in seen]:
        compared = {
            "tcp-tls": ("/ nginx+curl", 0.45),
            f"{name}, plain send/receive": ("with GSO/GRO / without", 2),
        }
        for other, (words, target) in compared.items():
            if other in seen:
                ratios = [a / b for a, b in zip(seen[name], seen[other], strict=True)]
                _verdict(f"{name} {words} ({_spread(ratios)})", statistics.median(ratios), target, at_least=True)
        for ceiling in ("raw UDP, GSO/GRO", "TCP (iperf3)"):
            if ceiling in seen:
                ratios = [a / b for a, b in zip(seen[name], seen[ceiling], strict=True)]
                print(f"  {name} / {ceiling}: {_spread(ratios)}")
    if overheads:
        _verdict(
            f"driver, per run beyond the transfer ({_spread(overheads)} s)",
            statistics.median(overheads) * 1000,
            200,
            at_least=False,
            unit=" ms",
        )


def handshakes(project: Project) -> None:
    """Handshakes per second of every library, and the memory of a server that serves many."""
    name, label = "table3-signature", "ECDSA P-256"
    cells = _cells(project, name, label)
    experiment = project.experiments[name]
    contaminated: list[str] = []
    scale = Scale(bytes=1, connections=MANY, blocks=1, timeout_s=300)
    with (
        testbed_of(project) as testbed,
        tempfile.TemporaryDirectory(prefix="quicbed-bench-") as temporary,
    ):
        driver = Driver(project, testbed, testbed.facts())

        def series(cell: Cell, count: int) -> Attempt:
            directory = Path(temporary) / "run"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            spec = replace(run_spec(project, experiment, cell, scale), connections=count, bytes=scale.bytes)
            driver.link.prepare(spec)
            attempt = driver.runner.execute(spec, directory)
            if attempt.status != "ok":
                raise BenchError(f"{cell.slug}: {attempt.reason}")
            contaminated.extend(f"{cell.slug}, {count} handshakes: {reason}" for reason in attempt.contamination)
            return attempt

        def rate(cell: Cell) -> Callable[[], float]:
            return lambda: series(cell, SERIES).metrics["handshakes_per_s"]

        rates = _rounds({library: rate(cell) for library, cell in cells.items()}, contaminated.clear)
        memory = {}
        for library in rates:
            try:
                memory[library] = [
                    series(cells[library], count).host["max_rss_bytes"]["server"] for count in (FEW, MANY)
                ]
            except _CANNOT_RUN as error:
                print(f"  {library}, memory: left out: {_in_a_line(error)}", flush=True)
    print(f"  {ROUNDS} rounds of {SERIES} handshakes with X25519 and {label}, one after the other, per second:")
    for library, values in rates.items():
        print(f"    {library:32} {_spread(values)}")
    for library, values in rates.items():
        if cells[library].transport == "quic" and "tcp-tls" in rates:
            ratios = [a / b for a, b in zip(values, rates["tcp-tls"], strict=True)]
            _verdict(
                f"{library} ({_spread(ratios)} of nginx and a client on libcurl)",
                statistics.median(values),
                300,
                at_least=True,
                unit=" handshakes/s",
            )
    for library, (few, many) in memory.items():
        if few is None or many is None:
            raise BenchError(f"{library}: the server cannot tell its largest resident set")
        _verdict(
            f"{library}, memory of the server after {MANY} handshakes ({many / 2**20:.1f} MiB) beyond that after {FEW}",
            (many - few) / 2**20,
            2,
            at_least=False,
            unit=" MiB",
        )
    if contaminated:
        print(f"  disturbed by other work on the machine: {len(contaminated)}, the first {contaminated[0]}")


def examples_of_libraries(project: Project) -> None:
    """Endpoints against the example programs that their libraries ship, in turn over loopback."""
    log = project.root / "logs" / "bench-examples.log"
    jobs = os.cpu_count() or 1
    certificates.make_all(project, [certificates.DEFAULT], jobs=jobs, log=log)
    for name, library in project.libraries.items():
        if project.config.libraries is not None and name not in project.config.libraries:
            continue
        if library.example is None:
            reason = library.no_example or f"config/libraries/{name}.yaml names none"
            print(f"  {name}: not compared with an example: {reason}")
            continue
        try:
            _against_example(project, name, jobs, log)
        except _CANNOT_RUN as error:
            print(f"  {name}: not compared with an example: {_in_a_line(error)}", flush=True)


def _against_example(project: Project, name: str, jobs: int, log: Path) -> None:
    """A library's endpoints and its example programs, in turn."""
    library = project.libraries[name]
    programs = examples.build(project, name, jobs=jobs, log=log)
    making.build(project, name, "stock", jobs=jobs, log=log)
    ours: list[float] = []
    theirs: list[float] = []
    size = min(BULK.bytes, library.max_bytes or BULK.bytes)
    with tempfile.TemporaryDirectory(prefix="quicbed-bench-") as temporary:
        for kept in [False, *[True] * ROUNDS]:
            pair = (
                examples.own_transfer(project, name, size, Path(temporary)).mbps(size),
                examples.goodput(project, name, programs, size, Path(temporary)),
            )
            if kept:  # the first is the warm-up
                ours.append(pair[0])
                theirs.append(pair[1])
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(f"  {name}, Mbit/s of {size >> 20} MiB by wall time of the client, loopback:")
    print(f"    {'our endpoints':32} {_spread(ours)}")
    print(f"    {'examples of the library':32} {_spread(theirs)}")
    _verdict(f"{name} / its example ({_spread(ratios)})", statistics.median(ratios), 0.95, at_least=True)


def bare_transfers(project: Project) -> None:
    """Endpoints against transfers with nothing but the library's interface, in turn over loopback.

    Goodput by the wall time of the client, and processor time of both ends, which other work on the machine disturbs
    less. What is above 1 in the latter is what the endpoints do for the contract, the comparison of every byte first.
    """
    log = project.root / "logs" / "bench-bare.log"
    jobs = os.cpu_count() or 1
    certificates.make_all(project, [certificates.DEFAULT], jobs=jobs, log=log)
    for name in project.libraries:
        if cargo.has_bare(project, name) and name in (project.config.libraries or project.libraries):
            _against_bare(project, name, jobs, log)


def _against_bare(project: Project, name: str, jobs: int, log: Path) -> None:
    program = examples.build_bare(project, name, jobs=jobs, log=log)
    making.build(project, name, "stock", jobs=jobs, log=log)
    with tempfile.TemporaryDirectory(prefix="quicbed-bench-") as temporary:
        directory = Path(temporary)
        arms = {
            "our endpoints": lambda: examples.own_transfer(project, name, LONG, directory),
            "bare transfer": lambda: examples.bare_transfer(project, program, LONG, directory),
        }
        seen: dict[str, list[examples.Transfer]] = {arm: [] for arm in arms}
        for number in range(1 + ROUNDS):
            for arm in list(arms)[:: 1 if number % 2 else -1]:
                transfer = arms[arm]()
                if number:  # the first is the warm-up
                    seen[arm].append(transfer)
    print(f"  {name}, {ROUNDS} rounds of {LONG >> 20} MiB over loopback:")
    for arm, transfers in seen.items():
        rates = [transfer.mbps(LONG) for transfer in transfers]
        costs = [transfer.cpu_s * 2**30 / LONG for transfer in transfers]
        print(f"    {arm:16} {_spread(rates)} Mbit/s; {_spread(costs)} s of processor time for a GiB")
    ours, bare = seen.values()
    for label, value, at_least in (
        ("goodput", lambda transfer: transfer.mbps(LONG), True),
        ("processor time", lambda transfer: transfer.cpu_s, False),
    ):
        ratio = paired_ratio(enumerate(map(value, ours)), enumerate(map(value, bare)))
        words = f"{name} / bare, {label} [{ratio.low:.3g}, {ratio.high:.3g}]"
        _verdict(words, ratio.ratio, 1, at_least=at_least)


def raw_udp(testbed: Testbed) -> float:
    """Goodput in Mbit/s of a sender of GSO super-packets and a GRO receiver, without any protocol."""
    program = [sys.executable, "-m", "benchmarks.udp_ceiling"]
    directory = Path(tempfile.mkdtemp(prefix="quicbed-udp-"))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    out = directory / "receiver"
    # downloads run from server to client, so the client receives
    receiver = testbed.client.spawn(
        [*program, "receive", str(testbed.client.address), str(PORT)],
        stdout=out,
        stderr=directory / "receiver.err",
        env=env,
    )
    sender = testbed.server.spawn(
        [*program, "send", str(testbed.client.address), str(PORT), str(SECONDS)],
        stdout=directory / "sender",
        stderr=directory / "sender.err",
        env=env,
    )
    try:
        sender.wait(SECONDS + 20)
        receiver.wait(20)
        result = json.loads(out.read_text(encoding="utf-8"))
    except (TimeoutError, json.JSONDecodeError) as error:
        raise BenchError(f"raw UDP: {error}: {(directory / 'receiver.err').read_text()}") from None
    finally:
        for process in (sender, receiver):
            if process.poll() is None:
                process.kill()
        shutil.rmtree(directory)
    return float(result["bytes"]) * 8 / float(result["seconds"]) / 1e6


def iperf3(testbed: Testbed) -> float:
    """Goodput in Mbit/s of one TCP stream towards the client."""
    directory = Path(tempfile.mkdtemp(prefix="quicbed-iperf3-"))
    server = testbed.server.spawn(
        ["iperf3", "--server", "--one-off", "--port", str(PORT + 1)],
        stdout=directory / "server",
        stderr=directory / "server.err",
    )
    try:
        argv = [
            "iperf3",
            "--client",
            str(testbed.server.address),
            "--port",
            str(PORT + 1),
            "--reverse",
            "--json",
        ]
        for _ in range(50):
            done = testbed.client.run([*argv, "--time", str(max(1, round(SECONDS)))], timeout=30, check=False)
            report = json.loads(done.stdout)
            if "error" not in report:
                return float(report["end"]["sum_received"]["bits_per_second"]) / 1e6
            time.sleep(0.1)
        raise BenchError(f"iperf3: {report['error']}")
    finally:
        if server.poll() is None:
            server.kill()
        shutil.rmtree(directory)


def workflow(project: Project) -> None:
    """Time of a dry run, and time and memory of re-rendering the reference figures."""
    snakemake = [str(Path(sys.executable).parent / "snakemake")]
    seconds = []
    for _ in range(3):
        begin = time.monotonic()
        _run([*snakemake, "-n", "all"], project.root)
        seconds.append(time.monotonic() - begin)
    _verdict(
        f"snakemake -n all ({_spread(seconds)} s)",
        statistics.median(seconds),
        6,
        at_least=False,
        unit=" s",
    )
    begin = time.monotonic()
    peak = _run([*snakemake, "--cores", "2", "--forceall", "figures"], project.root)
    _verdict(
        "re-rendering the reference figures",
        time.monotonic() - begin,
        90,
        at_least=False,
        unit=" s",
    )
    _verdict("its peak memory, all processes together", peak / 2**30, 1, at_least=False, unit=" GiB")


def report(project: Project) -> None:
    """Sizes of the pages of the report on the reference data, with what they load, and how long each takes to open."""
    directory = project.artifacts / "reference" / "report"
    if not (directory / "index.html").is_file():
        raise BenchError(f"{directory}: has no report; run `make figures`, then the same command again")
    if chromium.path() is None:
        raise BenchError(NOT_FOUND)
    opening: dict[str, float] = {}
    with chromium.opened() as page:
        for file in sorted(directory.glob("*.html")):
            seconds = []
            for _ in range(3):
                begin = time.monotonic()
                page.open(file)
                page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
                seconds.append(time.monotonic() - begin)
            opening[file.name] = statistics.median(seconds)
            paths = {Path(unquote(urlsplit(one).path)) for one in page.requests if one.startswith("file:")}
            size = sum(path.stat().st_size for path in paths) / 1e6
            print(f"  {file.name}: {size:.2f} MB, opens in {_spread(seconds)} s", flush=True)
            if file.name == "index.html":
                _verdict("the first page with all it loads", size, 1, at_least=False, unit=" MB")
    slowest = max(opening, key=opening.__getitem__)
    _verdict(f"opening the slowest page, {slowest}", opening[slowest], 2, at_least=False, unit=" s")


def _run(argv: Sequence[str], root: Path) -> int:
    """Run a program to its end; returns the peak memory in bytes of it and all its descendants together.

    Memory is the sum of the proportional set sizes (PSS: a shared page is divided among those who map it), sampled
    every 0.1 s.
    """
    peak = 0
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        family = {process.pid}
        while True:
            try:
                _, stderr = process.communicate(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                parents = _parents()
                # whoever was seen below the program still counts when its parent has ended and it has got another
                family &= parents.keys()
                while found := {pid for pid, parent in parents.items() if parent in family} - family:
                    family |= found
                peak = max(peak, sum(map(_pss, family)))
    if process.returncode:
        raise BenchError(f"`{' '.join(argv)}` failed:\n{stderr[-2000:]}")
    return peak


def _parents() -> dict[int, int]:
    """The parent of every process of this machine."""
    parents = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # the name before the last parenthesis may hold anything
            parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return parents


def _pss(pid: int) -> int:
    """Proportional set size of a process in bytes; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def imports(project: Project) -> None:
    """Time and memory of importing made-up data of the size of the published sets."""
    quicbed = [sys.executable, "-m", "quicbed", "import"]
    with tempfile.TemporaryDirectory(prefix="quicbed-bench-") as temporary:
        directory = Path(temporary)
        recorded = list(profiled(*PERF_SIZE))
        archive = samples.pack_files(chain(recorded, results(HIGHWAY_REPETITIONS)), directory / "highway.tar")
        folder = samples.write(chain(recorded, results(HIGHWAY_REPETITIONS)), directory / "highway")
        recordings = sum(name.endswith(".perf.zst") for name, _ in recorded)
        size = f"{archive.stat().st_size / 1e6:.0f} MB with {recordings} perf recordings"
        gaps = directory / "steps"
        gap_bytes = steps_samples.steps(gaps, *STEPS_SIZE)
        copies = {
            f"QUIC on the Highway, folder, {size}": ("highway", folder, 60, 1.0),
            f"QUIC on the Highway, tar, {size}": ("highway", archive, 60, 1.0),
            f"QUIC Steps, gap files, {gap_bytes / 1e9:.2f} GB": ("steps", gaps, 90, 1.5),
        }
        for label, (name, copy, seconds, gib) in copies.items():
            begin = time.monotonic()
            peak = _run([*quicbed, name, str(copy), "--out", str(directory / "out")], project.root)
            _verdict(label, time.monotonic() - begin, seconds, at_least=False, unit=" s")
            _verdict(f"{label}: its peak memory", peak / 2**30, gib, at_least=False, unit=" GiB")


def captures_read(project: Project) -> None:
    """Packets per second and peak memory of the reader of captures, next to tshark and dpkt on the same capture."""
    log = project.root / "logs" / "bench-captures.log"
    sources.fetch(project, log)
    program = components.provide(project, "capture-reader", jobs=os.cpu_count() or 1, log=log) / "bin/capture-reader"
    with tempfile.TemporaryDirectory(prefix="quicbed-bench-") as temporary:
        small, large, out = (Path(temporary, name) for name in ("small.pcap", "large.pcap", "packets.parquet"))
        fields = ("frame.time_epoch", "frame.len", "udp.length", "udp.srcport")
        readers = {
            "tshark": ["tshark", "-n", "-r", str(small), "-T", "fields", *(w for name in fields for w in ("-e", name))],
            "dpkt": [sys.executable, str(Path(__file__).with_name("dpkt_reader.py")), str(small)],
        }
        packets = captures.write(small, CAPTURE_PACKETS, SNAP_BYTES)

        def rate(argv: Sequence[str]) -> Callable[[], float]:
            def measure() -> float:
                begin = time.monotonic()
                _run(argv, project.root)
                return packets / (time.monotonic() - begin)

            return measure

        arms = {"quicbed": [str(program), str(small), str(out)], **readers}
        seen = _rounds({name: rate(argv) for name, argv in arms.items()}, lambda: None)
        for name, values in seen.items():
            peak = _run(arms[name], project.root) / 2**20
            print(f"  {name}: {_spread(values)} packets/s of {packets:,}, start included; {peak:.0f} MiB")
        for name in seen.keys() - {"quicbed"}:
            ratio = paired_ratio(enumerate(seen["quicbed"]), enumerate(seen[name]))
            print(f"  quicbed / {name}: {ratio.ratio:.0f} [{ratio.low:.0f}, {ratio.high:.0f}]")
        attempt, trace = Attempt(), Path(temporary, CAPTURE)
        packets = captures.write(trace, CAPTURE_PACKETS, SNAP_BYTES)
        begin = time.monotonic()
        measured.measure_pacing(attempt, trace.parent, program, captures.SERVER[0])
        taken = time.monotonic() - begin
        if attempt.contamination:
            raise BenchError(attempt.contamination[0])
        label = f"a trace of {packets:,} packets to the metrics of its run"
        _verdict(label, packets / taken / 1e6, 0.2, at_least=True, unit=" M packets/s")
        for snap, label in ((SNAP_BYTES, "headers"), (1 << 16, "whole frames")):
            packets = captures.write(large, 10 * CAPTURE_PACKETS, snap)
            one_core = ["taskset", "--cpu-list", "0", str(program), str(large), str(out)]
            best = max(rate(one_core)() for _ in range(3))
            size = large.stat().st_size / 1e9
            _verdict(f"{label}, {size:.1f} GB, one core", best / 1e6, 3, at_least=True, unit=" M packets/s")
            _verdict(f"{label}: peak memory", _run(one_core, project.root) / 2**20, 64, at_least=False, unit=" MiB")


def interval(project: Project) -> None:
    """Width of the paired NOOP/AES-128-GCM interval of the newest own measurement, and how many blocks it took."""
    with testbed_of(project) as testbed:
        campaign = Campaign(Driver(project, testbed, testbed.facts()), EXPERIMENT)
    values = campaign.values()
    if not values:
        print(f"  no run of {EXPERIMENT} at scale {project.config.scale} yet; run `make all` first")
        return
    for cell in campaign.cells:
        if (cell.label == "NOOP" and cell.baseline) or cell.arm == "aa":
            ratio = paired_ratio(values.get(cell.id, []), values.get(str(cell.baseline), []))
            span = f"[{ratio.low:.3f}, {ratio.high:.3f}]"
            label = f"{cell.slug} / AES-128-GCM = {ratio.ratio:.3f} {span}, {ratio.n} blocks, half width"
            _verdict(label, ratio.half_width * 100, 5, at_least=False, unit=" %")


def designs_compared(project: Project) -> None:
    """Bytes until the interval of a ratio is narrow, in paired blocks and as in papers, resampled from shipped runs."""
    campaign = runs.select_campaign(runs.table(project.root / "raw" / "reference"), EXPERIMENT)
    found = designs.needed(campaign, CONTRASTS, FEWEST_BLOCKS)
    if not found:
        raise BenchError(f"raw/reference has no {FEWEST_BLOCKS} blocks of {EXPERIMENT}; `git checkout raw/reference`")
    percent = 100 * designs.HALF_WIDTH
    print(f"  of {len(found)} ratios to AES-128-GCM, both cells together, until the half width is {percent:g} %:")
    for name in ("paired", "apart", "long"):
        print(f"  {name:<7} {_spread([getattr(one, name) / designs.GIB for one in found])} GiB", flush=True)
    for paper, count in designs.REPETITIONS.items():
        spent = 2 * count * designs.REPETITION_BYTES
        widths = [100 * one.reached[paper] for one in found]
        what = f"{paper}, {count} repetitions of 8 GiB a cell ({spent / designs.GIB:g} GiB): half width at best"
        print(f"  {what} {_spread(widths)} %", flush=True)
        share = statistics.median(one.paired for one in found) / spent
        _verdict(f"paired blocks take of its bytes, in the middle of {len(found)}", share, 1, at_least=False)
    share = statistics.median(one.paired / one.apart for one in found)
    _verdict("paired blocks take of the bytes of runs of the same size apart, in the middle", share, 1, at_least=False)
    print("  the two baselines of a block differ, by how many runs they are apart:", flush=True)
    for least, most, apart in designs.baselines_by_distance(campaign):
        print(f"  {least} to {most} runs: {100 * math.expm1(apart):.1f} % in the middle", flush=True)


# A run whose programs do nothing takes what preparing a run and cleaning up after it cost.
_EMPTY_SERVER = ["sh", "-c", "echo ready; exec sleep 1000"]
_EMPTY_CLIENT = ["true"]
_BLOCK_RUNS = 20


def dilution_of_pairs(project: Project) -> None:
    """Whether pairs at the same time show a known cost of one arm in full."""
    with tempfile.TemporaryDirectory(prefix="quicbed-bench-") as temporary:
        costs = list(dilution.found(project, Path(temporary)))
    if len(costs) < 2:
        raise BenchError(f"{len(costs)} pairs told what the cost was: does the server send with sendmsg?")
    shares = [measured / real for measured, real in costs]
    low, high = mean_interval(np.array(shares))
    print(
        f"  {len(shares)} pairs of {dilution.BYTES >> 20} MiB; one server spends "
        f"{statistics.median(real for _, real in costs):.3g} ns a byte more than the other"
    )
    print(f"  share of it that is found: {statistics.mean(shares):.3f} [{low:.3f}, {high:.3f}] (95 %)")
    _verdict("share of a known cost that is found", statistics.mean(shares), 0.95, at_least=True)


def ssh(project: Project) -> None:
    """Preparing and cleaning up a run on the configured hosts, beside the same with one ssh process per command."""
    if project.testbed.kind != "ssh":
        print("  unsupported: the testbed is not of kind `ssh`; set `testbed` in config/config.yaml")
        return
    with testbed_of(project) as testbed, tempfile.TemporaryDirectory() as directory:
        testbed.apply(LinkSettings(mode="throughput"))
        _empty_run(testbed, Path(directory))  # what is done once
        kept, single = [], []
        for _ in range(ROUNDS):
            begin = time.monotonic()
            _empty_run(testbed, Path(directory))
            kept.append((time.monotonic() - begin) * 1e3)
            begin = time.monotonic()
            _empty_run_by_processes(project.testbed)
            single.append((time.monotonic() - begin) * 1e3)
        begin = time.monotonic()
        for _ in range(_BLOCK_RUNS):
            _empty_run(testbed, Path(directory), ["sleep", "1"])
        share = 100 * _BLOCK_RUNS / (time.monotonic() - begin)
    print(f"  kept connections: {_spread(kept)} ms; one ssh process per command: {_spread(single)} ms")
    _verdict("preparing and cleaning up a run", statistics.median(kept), 150, at_least=False, unit=" ms")
    _verdict(f"part of {_BLOCK_RUNS} one-second runs in which is measured", share, 80, at_least=True, unit=" %")


def line_rate(project: Project) -> None:
    """What the testbed's traffic generator sends at the line rate of its port, and what of it arrives, by frame size.

    The baseline of the network between its ports, without endpoints.
    """
    settings = project.testbed.generator
    if settings is None or settings.kind != "trex":
        print(
            f"  unsupported: testbed {project.config.testbed} has no generator of kind `trex`, which alone sends at "
            "the rate of a port (docs/background-traffic.md)"
        )
        return
    loads = {f"{size} bytes": Load(percent=100, frames=[Frame(bytes=size)]) for size in FRAME_BYTES}
    loads["IMIX"] = Load(percent=100, frames="imix")
    with testbed_of(project) as testbed:  # nothing is measured meanwhile
        source = generator.Trex(settings, testbed.name)
        trials = {name: source.trial(load, LINK, LINE_RATE_S) for name, load in loads.items()}
        facts = source.facts()
    print(
        f"  port {facts['port']} of TRex at {facts['host']}:{facts['rpc_port']}, {LINE_RATE_S:g} s of each frame size:"
    )
    for name, trial in trials.items():
        print(f"    {name:12} sent {_rate_of(trial.begin.sent, trial.end.sent)}; {_arrived(trial)}")


def _arrived(trial: generator.Trial) -> str:
    if trial.begin.received is None or trial.end.received is None or trial.received is None:
        return "what arrives is not counted: generator.receiver names no port"
    lost = max(0, trial.sent - trial.received)
    share = 100 * lost / trial.sent if trial.sent else 0.0
    rate = _rate_of(trial.begin.received, trial.end.received)
    return f"received {rate}; lost {lost} of {trial.sent} packets ({share:.3g} %)"


def _rate_of(begin: generator.Count, end: generator.Count) -> str:
    """Packets and bits of frames with check sequences per second between two counts."""
    seconds = end.time_s - begin.time_s
    packets, size = end.packets - begin.packets, end.bytes - begin.bytes
    return f"{packets / seconds / 1e6:8.4f} Mpps {size * 8 / seconds / 1e6:9.1f} Mbit/s"


def _empty_run(testbed: Testbed, directory: Path, program: Sequence[str] = _EMPTY_CLIENT) -> None:
    """Everything the driver does for a run, with a server and a client *program* that do nothing."""
    testbed.counters()
    server, client = testbed.server, testbed.client
    place = server.workspace(directory)
    serving = server.spawn(_EMPTY_SERVER, stdout=place / "server.out", stderr=place / "server.err")
    server.await_text(place / "server.out", "ready", serving, 10)
    place = client.workspace(directory)
    asking = client.spawn(program, stdout=place / "client.out", stderr=place / "client.err")
    asking.wait(10)
    serving.terminate()
    serving.wait(10)
    testbed.counters()
    for host in (client, server):
        host.collect(directory)


def _empty_run_by_processes(settings: TestbedSettings) -> None:
    """The same steps, each by an ssh process that connects anew."""
    counters = "cat /proc/net/dev /proc/net/snmp /proc/net/softnet_stat /proc/stat /proc/loadavg"
    steps: list[tuple[Literal["client", "server"], str]] = [
        ("client", counters),
        ("server", counters),
        ("server", "mktemp -d"),
        ("server", "echo ready"),
    ]
    steps += [("client", "mktemp -d"), ("client", "true"), ("server", "true")]
    steps += [("client", counters), ("server", counters), ("client", "true"), ("server", "true")]
    for role, command in steps:
        host = settings.hosts[role]
        argv = ["ssh", "-o", "BatchMode=yes"]
        for option, value in (("-p", host.port), ("-l", host.user), ("-i", host.key)):
            argv += [option, str(value)] if value is not None else []
        for file in settings.ssh_config or []:
            argv += ["-F", file]
        subprocess.run([*argv, host.address, command], stdout=subprocess.DEVNULL, check=True, timeout=60)
