"""The whole workflow at a tiny scale: really built, really measured in namespaces, resumed, traced and cleaned up."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import yaml

from clone import ROOT
from quicbed.analysis import dissect
from quicbed.builds import build_store, kit, making
from quicbed.config.model import Project
from quicbed.measure import certificates, session
from quicbed.store import details, runs
from runlinks import runs_behind

SNAKEMAKE = str(Path(sys.executable).parent / "snakemake")
QUICBED = [sys.executable, "-m", "quicbed"]

pytestmark = [pytest.mark.root, pytest.mark.timeout(2400)]


def settings(directory: Path, **more: object) -> Path:
    """A configuration file that measures a little, with results of its own, on the builds of this clone."""
    file = directory / "config.yaml"
    chosen = {
        "scale": "tiny",
        "experiments": ["aead-goodput", "header-protection"],
        "libraries": ["quiche", "quinn", "tcp-tls"],
        "paths": {"raw": str(directory / "raw"), "artifacts": str(directory / "artifacts")},
        # what is tested is the workflow, on a machine that may be busy
        "gate": {"retries": 0},
        **more,
    }
    file.write_text(yaml.safe_dump(chosen), encoding="utf-8")
    return file


def snakemake(file: Path, *targets: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    argv = [SNAKEMAKE, "--cores", "all", "--configfile", str(file), "--nolock", *targets]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if check:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


def namespaces() -> list[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("quicbed-")]


def endpoints() -> list[str]:
    """Programs of this clone's builds that are running in namespaces of testbeds, and its components anywhere.

    Other tests may run endpoints in this namespace at the same time.
    """
    store = Project(ROOT).store / build_store.of_system()
    here = Path("/proc/self/ns/net").readlink()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is none of ours
            program = (process / "exe").readlink()
            elsewhere = (process / "ns" / "net").readlink() != here
            if program.is_relative_to(store if elsewhere else store / "components"):
                found.append(str(program))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one run of the whole workflow."""
    directory = tmp_path_factory.mktemp("workflow")
    snakemake(settings(directory), "all")
    return directory


@pytest.fixture(scope="module")
def table(finished: Path) -> pl.DataFrame:
    return pl.read_parquet(finished / "artifacts" / "tables" / "runs.parquet")


def test_every_cell_of_every_experiment_was_measured_and_proven(table: pl.DataFrame) -> None:
    measured = table.filter(pl.col("arm").is_in(["main", "aa", "control"]))
    # what these libraries cannot do is there too
    lacking = measured.filter(pl.col("status") == "unsupported")
    assert set(lacking["label"]) == {"NOENC"}
    assert set(lacking["client_library"]) == {"quiche", "quinn", "tcp-tls"}
    assert lacking["reason"].null_count() == 0
    measured = measured.filter(pl.col("status") != "unsupported")
    assert set(measured["status"]) == {"ok"}
    expected = {"aead-goodput": 15, "header-protection": 16}
    for experiment, cells in expected.items():
        rows = measured.filter(pl.col("experiment") == experiment)
        assert rows["cell"].n_unique() == cells
        assert len(rows) == cells * 2
        assert rows["block"].n_unique() == 2
        assert rows["proof"].null_count() == 0
        assert rows["goodput_mbps"].min() > 0
        assert rows["client_cpu_s"].min() > 0
        # nginx tells its CPU time in ticks of 10 ms, longer than some of these transfers
        assert rows["server_cpu_s"].min() >= 0
        assert rows["server_cpu_s"].mean() > 0
    proofs = table.filter(pl.col("experiment") == "proofs")
    assert set(proofs["status"]) == {"ok"}
    assert set(measured["proof"]) <= set(proofs["cell"])
    assert set(measured["link_mode"]) == {"throughput"}
    assert set(proofs["link_mode"]) == {"wire"}


def test_captures_show_payload_and_headers_in_the_clear_exactly_where_the_variant_says(finished: Path) -> None:
    seen = 0
    for file in (finished / "raw" / "local" / "proofs").glob("*/*/run.json"):
        run = json.loads(file.read_text(encoding="utf-8"))
        proof = run["evidence"]["seen"]
        assert proof["payload_in_clear"] == (run["variant"]["aead"] == "noop"), file
        if run["variant"]["header_protection"] is not None:
            assert proof["header_protection_off"] == (not run["variant"]["header_protection"]), file
            assert proof["initial_standard"], file
        assert (file.parent / "capture.pcap").stat().st_size > 262144
        seen += 1
    # quiche and quinn: three stock ciphers, and on the noop build six; TCP+TLS: three and one
    assert seen == 2 * 9 + 4


def test_library_kernel_and_capture_agree_on_what_a_client_sends(finished: Path, table: pl.DataFrame) -> None:
    proofs = table.filter((pl.col("experiment") == "proofs") & (pl.col("client_library") != "tcp-tls"))
    assert proofs.height == 2 * 9
    for row in proofs.rows(named=True):
        run = json.loads((finished / row["origin"] / "run.json").read_text(encoding="utf-8"))
        seen = run["evidence"]["seen"]["client_to_server"]
        # packets share a datagram in the handshake; the kernel counts what is sent by one call once
        allowed = 3 + 0.1 * seen["packets"]
        for told in (row["client_packets_sent"], row["client_udp_packets_sent"]):
            assert abs(told - seen["packets"]) <= allowed, row["origin"]
        assert abs(row["client_ack_packets"] - seen["one_rtt_packets"]) <= allowed, row["origin"]


def test_counters_of_both_hosts_are_in_the_table(table: pl.DataFrame) -> None:
    measured = table.filter(pl.col("block").is_not_null() & (pl.col("status") == "ok"))
    assert measured["client_cpu_percent"].min() > 0
    assert measured.select("client_udp_receive_buffer_errors", "server_udp_packets_sent").null_count().row(0) == (0, 0)
    counters = measured.select("origin", "counters").explode("counters").unnest("counters")
    assert counters["origin"].n_unique() == len(measured)
    assert counters["delta"].min() > 0
    received = counters.filter((pl.col("role") == "client") & (pl.col("counter") == "UdpInDatagrams"))
    assert set(received["tool"]) == {"netstat"}
    told = measured.filter(pl.col("client_udp_packets_received") > 0).select("origin", "client_udp_packets_received")
    assert sorted(received.select("origin", "delta").rows()) == sorted(told.rows())
    segments = counters.filter((pl.col("role") == "server") & (pl.col("counter") == "TcpOutSegs"))
    assert set(segments["origin"]) == set(measured.filter(pl.col("client_library") == "tcp-tls")["origin"])


def test_results_are_complete_and_traceable(finished: Path, table: pl.DataFrame) -> None:
    artifacts = finished / "artifacts"
    origins = set(table["origin"])
    for name in ("goodput-by-aead", "header-protection"):
        for suffix in ("html", "svg", "json"):
            assert (artifacts / "figures" / f"{name}.{suffix}").stat().st_size > 500
        manifest = json.loads((artifacts / "figures" / f"{name}.json").read_text(encoding="utf-8"))
        assert set(manifest["runs"]) <= origins
        assert manifest["runs"]
    of_proofs = {"benchmark-flow-transfer", "benchmark-overhead-transfer"}
    for experiment, figure in (("aead-goodput", "goodput-by-aead"), ("header-protection", "header-protection")):
        rows = pl.read_parquet(artifacts / "tables" / f"{experiment}.parquet")
        assert (artifacts / "tables" / f"{experiment}.csv").exists()
        drawn = json.loads((artifacts / "drawn" / "local" / f"{experiment}.json").read_text(encoding="utf-8"))
        assert set(drawn["figures"]) - of_proofs == {figure}
        assert rows.filter(pl.col("label") != "NOENC")["n"].min() == 2
    captures = pl.read_parquet(artifacts / "tables" / "captures.parquet")
    assert dict(captures["outcome"].value_counts().rows()) == {"agrees": 2 * 9 + 4}, dissect.problems(captures)
    assert set(captures["origin"]) == set(table.filter(pl.col("experiment") == "proofs")["origin"])
    pages = "\n".join(file.read_text(encoding="utf-8") for file in sorted((artifacts / "report").glob("*.html")))
    assert dissect.text(captures) in pages
    for notebook in ("quantum-of-quic", "quic-benchmark"):
        behind = runs_behind(artifacts / "notebooks" / f"{notebook}.html", table)
        assert behind
        assert [selected for selected, found in behind.items() if not found] == []
    for word in ("goodput-by-aead", "header-protection", *(p["checksum"] for p in kit.closure(ROOT, ["quiche"]))):
        assert word in pages


def test_a_second_start_builds_and_measures_nothing(finished: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in (finished / "raw").rglob("*") if file.is_file()}
    done = snakemake(finished / "config.yaml", "all")
    assert "Nothing to be done" in done.stdout + done.stderr
    assert {file: file.stat().st_mtime_ns for file in (finished / "raw").rglob("*") if file.is_file()} == before


HANDSHAKES = """
title: Handshakes
source: none
question: none
workload: {kind: handshake, congestion_control: any}
link: {mode: wire}
flavour: pq
primitives: 1
libraries: [%s]
variants:
  - {label: plain, cipher: aes-128-gcm}
  - {label: hybrid, cipher: aes-128-gcm, group: x25519-mlkem768, signature: ecdsa-p-256}
  - {label: large, cipher: aes-128-gcm, group: kyber768, signature: dilithium3}
  - {label: retry, cipher: aes-128-gcm, signature: dilithium3, retry: true}
  - {label: far, cipher: aes-128-gcm, signature: dilithium3, rtt_ms: 10, slow: true}
baseline: plain
aa: false
scales:
  tiny: {bytes: 1, connections: 5, slow_connections: 2, blocks: 2, timeout_s: 60}
"""


@pytest.fixture(scope="module")
def handshakes(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a small experiment of handshakes, measured on the builds here that know its algorithms."""
    root = tmp_path_factory.mktemp("handshakes")
    shutil.copytree(ROOT / "config", root / "config")
    (root / "workflow").symlink_to(ROOT / "workflow")
    flavours = {name: library.flavours.get("pq") for name, library in Project(ROOT).without_folders().libraries.items()}
    capable = [name for name, flavour in flavours.items() if flavour and "dilithium3" not in flavour.unsupported]
    experiment = root / "config" / "experiments" / "handshakes.yaml"
    experiment.write_text(HANDSHAKES % ", ".join(capable), encoding="utf-8")
    chosen = {
        "scale": "tiny",
        "experiments": ["handshakes"],
        "paths": {"build": str(Project(ROOT).build)},
        "gate": {"retries": 0},
    }
    project = Project(root, chosen)
    needed = [making.listing(project, name, "pq") for name in capable]
    needed += [certificates.directory(project, name) / "server.pem" for name in certificates.needed(project)]
    snakemake(settings(root), *map(str, needed))
    session.measure(project, "handshakes", root / "marker.json")
    return project


def test_handshakes_are_measured_captured_and_their_primitives_timed(handshakes: Project) -> None:
    libraries = handshakes.experiments["handshakes"].libraries
    table = runs.table(handshakes.raw)
    assert runs.problems(table) == []
    measured = table.filter(pl.col("arm") == "main")
    failed = measured.filter(pl.col("status") == "failed")
    assert failed.select("slug", "reason").rows() == []
    unsupported = measured.filter(pl.col("status") == "unsupported")
    assert set(unsupported["label"]) <= {"retry", "far"}, unsupported["reason"].to_list()
    ok = measured.filter(pl.col("status") == "ok")
    assert dict(ok.group_by("label").len().rows())["plain"] == 2 * len(libraries)
    assert ok["ttfb_ms"].min() > 0
    # a handshake takes a round trip at least
    assert ok.filter(pl.col("label") == "far")["ttfb_ms"].min() >= 10

    found = details.read(handshakes.raw)
    assert found.problems == []
    assert len(found.connections) == ok["connections"].sum()
    timed = found.primitives.group_by("library").agg(pl.struct("name", "operation").n_unique())
    assert timed["name"].to_list() == [3 * 3 + 3 * 3] * len(libraries)

    labels = measured.select("proof", "label").drop_nulls().unique()
    captured = found.handshakes.join(labels, on="proof")
    assert set(captured["label"]) == set(ok["label"])
    quic = captured.filter(pl.col("library") != "tcp-tls")
    plain = quic.filter(pl.col("label") == "plain")
    assert (plain["packets_client"].median(), plain["packets_server"].median()) == (3, 3)
    assert quic["hello_retry_request"].any() is False
    assert quic.filter(pl.col("retry"))["label"].unique().to_list() == ["retry"]
    # the certificate and signature of Dilithium3 are more than three Initial datagrams of 1200 bytes
    far = quic.filter(pl.col("label") == "far")
    assert far["waits"].min() >= 1


def test_a_measured_experiment_of_handshakes_is_not_measured_again(handshakes: Project) -> None:
    before = {file: file.stat().st_mtime_ns for file in handshakes.raw.rglob("run.json")}
    session.measure(handshakes, "handshakes", handshakes.root / "marker.json")
    assert {file: file.stat().st_mtime_ns for file in handshakes.raw.rglob("run.json")} == before
    assert namespaces() == []
    assert endpoints() == []


def test_nothing_is_left_of_the_testbed(finished: Path) -> None:
    del finished
    assert namespaces() == []
    assert endpoints() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_was_stopped_goes_on_where_it_was(finished: Path, tmp_path: Path, how: signal.Signals) -> None:
    del finished  # the builds are there
    # an endpoint that is one process, and one that starts another
    config = yaml.safe_load(settings(tmp_path, libraries=["quinn", "tcp-tls"]).read_text(encoding="utf-8"))
    argv = [*QUICBED, "--config", json.dumps(config), "measure", "aead-goodput", "--marker", str(tmp_path / "marker")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    said = tmp_path / "first.err"
    with said.open("wb") as stderr:
        first = subprocess.Popen(argv, cwd=ROOT, stderr=stderr, env=environment)
    runs = tmp_path / "raw" / "local" / "aead-goodput"
    deadline = time.monotonic() + 300
    while not list(runs.glob("*/b*/[!.]*/run.json")) and time.monotonic() < deadline:
        assert first.poll() is None, said.read_text()
        time.sleep(0.05)
    time.sleep(random.Random(how).uniform(0, 0.6))
    first.send_signal(how)
    code = first.wait(30)
    kept = {file: file.read_bytes() for file in runs.glob("*/b*/[!.]*/run.json")}
    assert kept
    if how is not signal.SIGKILL:
        assert code == 130, said.read_text()
        assert namespaces() == []
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for file, content in kept.items():
        assert file.read_bytes() == content
    assert len(list(runs.glob("*/b*/[!.]*/run.json"))) == 20
    assert namespaces() == []
    assert endpoints() == []


def test_ctrl_c_ends_the_whole_workflow_and_a_second_start_completes_it(finished: Path, tmp_path: Path) -> None:
    del finished  # the builds are there
    file = settings(tmp_path, experiments=["aead-goodput"])
    argv = [SNAKEMAKE, "--cores", "all", "--configfile", str(file), "--nolock", "all"]
    with (tmp_path / "log").open("wb") as log:
        # a terminal sends its Ctrl-C to every process of the foreground group
        first = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    runs = tmp_path / "raw" / "local" / "aead-goodput"
    deadline = time.monotonic() + 300
    seen: set[str] = set()
    while not (seen and list(runs.glob("*/b*/[!.]*/run.json"))) and time.monotonic() < deadline:
        assert first.poll() is None, (tmp_path / "log").read_text()
        seen.update(endpoints())
        time.sleep(0.01)
    assert seen, "no endpoint was seen at work"
    assert namespaces()
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait(60) != 0
    assert namespaces() == []
    assert endpoints() == []
    kept = {run: run.read_bytes() for run in runs.glob("*/b*/[!.]*/run.json")}
    assert 0 < len(kept) < 30
    snakemake(file, "all")
    for run, content in kept.items():
        assert run.read_bytes() == content
    assert len(list(runs.glob("*/b*/[!.]*/run.json"))) == 30
    assert (tmp_path / "artifacts" / "report" / "index.html").exists()
    assert namespaces() == []


def test_a_second_driver_on_the_testbed_is_refused(finished: Path, tmp_path: Path) -> None:
    del finished
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom quicbed.testbed import open_testbed\n"
            "with open_testbed('local', 'local'):\n print('held', flush=True)\n sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        done = snakemake(settings(tmp_path), str(tmp_path / "artifacts" / "report" / "index.html"), check=False)
        assert done.returncode != 0
        assert "testbed local is in use by" in done.stdout + done.stderr
        assert not list((tmp_path / "raw").rglob("run.json"))
    finally:
        holder.communicate(timeout=30)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"scael": "tiny"}, "scael: unknown key; did you mean `scale`?"),
        ({"experiments": ["aead-godput"]}, "did you mean `aead-goodput`?"),
        ({"scale": "huge"}, "has no scale `huge`"),
    ],
)
def test_a_wrong_configuration_stops_before_anything_is_done(
    tmp_path: Path, override: dict[str, object], expected: str
) -> None:
    done = snakemake(settings(tmp_path, **override), "all", check=False)
    assert done.returncode != 0
    assert expected in done.stdout + done.stderr
    assert not (tmp_path / "raw").exists()
