"""The built endpoints keep the contract: any client downloads from any server, and they report what happened."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

import sample
from clone import ROOT
from loopback import Server
from quicbed.builds import making
from quicbed.config.model import Pacing, Variant
from quicbed.contract import events
from quicbed.measure import certificates
from quicbed.measure.certificates import Tools
from quicbed.measure.judge import SUITES
from quicbed.measure.program import RELEASE_TIMES
from quicbed.plan.factors import algorithm_reason, unsupported_reason
from quicbed.store import symbols
from quicbed.wire import releases
from relayed import Relay

PROJECT = sample.project()
LIBRARIES = sample.libraries()
QUIC = [name for name in LIBRARIES if PROJECT.libraries[name].transport == "quic"]
TCP = [name for name in LIBRARIES if PROJECT.libraries[name].transport == "tcp"]
NOOP = sample.libraries("noop")
PQ = sample.libraries("pq")
WAYS = [(name, io) for name in QUIC for io in PROJECT.libraries[name].supports.io if io in ("mmsg", "io-uring")]
GROUPS = [group.name for group in PROJECT.algorithms.groups]
SIGNATURES = [signature.name for signature in PROJECT.algorithms.signatures]
POST_QUANTUM = [
    ("kyber768", "rsa-2048"),
    ("x25519-mlkem768", "ecdsa-p-256"),
    ("p-256-kyber512", "rsa-2048"),
    ("p-384-mlkem1024", "mldsa65"),
    ("x25519", "dilithium3"),
    ("x25519", "falcon-512"),
    ("x25519", "sphincs-sha2-128f"),
]
# an odd size, so that the last packet, record and buffer are not full
SIZE = 1_000_001


@pytest.fixture(scope="session", autouse=True)
def built(every_build: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make the certificates of the tests."""
    signatures = {certificates.DEFAULT, *(signature for _, signature in POST_QUANTUM)}
    certificates.make_all(
        PROJECT, sorted(signatures), jobs=os.cpu_count() or 1, log=tmp_path_factory.mktemp("certificates") / "log"
    )


@dataclass
class Bench:
    """Starts endpoints over loopback and ends what a test left running."""

    directory: Path
    servers: list[Server] = field(default_factory=list)

    def build(self, library: str, flavour: str) -> Path:
        """That of the flavour or, for `stock`, of one that does the same."""
        return making.build_directory(PROJECT, library, sample.flavour_of(library, flavour) or flavour)

    def program(self, library: str, flavour: str, role: str) -> str:
        return str(self.build(library, flavour) / "bin" / role)

    def serve(self, library: str, flavour: str = "stock", size: int = SIZE, **options: str) -> Server:
        log = self.directory / f"server-{len(self.servers)}.jsonl"
        made = certificates.directory(PROJECT, options.get("signature", certificates.DEFAULT))
        self.servers.append(Server(self.build(library, flavour), made, log, "--content", str(size), *flat(options)))
        return self.servers[-1]

    def download(self, library: str, flavour: str, address: str, size: int = SIZE, **options: str) -> tuple[int, Path]:
        log = self.directory / f"client-{time.monotonic_ns()}.jsonl"
        argv = [self.program(library, flavour, "client"), "--events", str(log), "--connect", address]
        chosen = {
            "server_name": "server",
            "ca": str(certificates.directory(PROJECT, options.get("signature", certificates.DEFAULT)) / "ca.pem"),
            "bytes": str(size),
            "timeout": "20",
        }
        done = subprocess.run(argv + flat(chosen | options), stderr=subprocess.DEVNULL, timeout=60, check=False)
        return done.returncode, log


def flat(options: dict[str, str]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for server in made.servers:
        server.kill()


def raw_events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("library", "flavour"), sample.builds())
@pytest.mark.parametrize("role", ["client", "server"])
def test_a_build_can_do_what_its_configuration_says(
    library: str, flavour: str, role: Literal["client", "server"]
) -> None:
    described = PROJECT.libraries[library]
    supports = described.supports
    info = making.read_build(PROJECT, library, flavour)
    said = info.describe[role]
    assert set(said["ciphers"]) == set(supports.ciphers)
    for kind, known in (("group", GROUPS), ("signature", SIGNATURES)):
        able = {name for name in known if algorithm_reason(library, described, flavour, kind, name) is None}
        if described.flavours[flavour].algorithms == "all":
            assert set(said[f"{kind}s"]) == able
        else:
            assert able <= set(said[f"{kind}s"])
    for name in ("retry", "initial_size"):
        configured = getattr(supports, name) is True
        # quiche takes larger Initial packets from the patch of its flavour pq; others say `unsupported` when asked.
        # What a build can do may still be of no use to an experiment.
        assert said[name] or not configured or flavour != "pq"
    assert set(supports.congestion_controls) <= set(said["congestion_controls"])
    assert set(said["pacing"]) == {value for value, able in supports.pacing.items() if able is True}
    unprotected = flavour == "noop" or described.flavours[flavour].jumbo
    noop = {"noop"} if unprotected and supports.noop else set()
    assert set(said["aead"]) == {"standard"} | noop | ({"noenc"} if supports.noenc else set())
    assert said["library"] == library
    assert ("h3" in said["alpn"]) is (described.alpn == "h3" or supports.http3 is True)
    assert said.get("open_loop", False) is (role == "client" and supports.open_loop is True)
    if PROJECT.libraries[library].transport == "quic":
        off = unprotected and supports.header_protection_off
        assert set(said["header_protection"]) == ({"on", "off"} if off else {"on"})
        assert (said["gso"], said["gro"]) == (supports.gso, supports.gro)
        assert said["gso_paced"] == (supports.gso_paced is True)


VARIANTS = [
    ("stock", "aes-128-gcm", "standard", "on"),
    ("stock", "aes-256-gcm", "standard", "on"),
    ("stock", "chacha20-poly1305", "standard", "on"),
    ("noop", "aes-128-gcm", "standard", "on"),
    ("noop", "aes-128-gcm", "noop", "on"),
    ("noop", "aes-128-gcm", "noop", "off"),
    ("noop", "aes-128-gcm", "standard", "off"),
    ("noop", "chacha20-poly1305", "standard", "off"),
]
# every pair with and without packet protection; what else there is with itself and with quiche, which has it all
EVERYWHERE = {VARIANTS[0], VARIANTS[5]}


@pytest.mark.parametrize(
    ("client", "server", "flavour", "cipher", "aead", "header_protection"),
    [
        (client, server, *variant)
        for client, server in sample.pairs()
        for variant in VARIANTS
        if (variant in EVERYWHERE or client == server or "quiche" in (client, server))
        and all(sample.flavour_of(end, variant[0]) for end in (client, server))
        # TCP has no header protection
        and not (client in TCP and variant[3] == "off")
    ],
)
def test_any_client_downloads_from_any_server(
    bench: Bench, client: str, server: str, flavour: str, cipher: str, aead: str, header_protection: str
) -> None:
    options = {"cipher": cipher, "aead": aead}
    if client in QUIC:
        options["header_protection"] = header_protection
    running = bench.serve(server, flavour, **options)
    code, log = bench.download(client, flavour, running.address, **options)
    assert code == 0, log.read_text()
    got = events.read(log, "client").connections[0]
    sent = running.stopped(after=1).connections[0]
    assert got.ok
    assert got.content_ok
    assert got.bytes_received == SIZE
    assert sent.bytes_sent == SIZE
    for side in (got, sent):
        assert side.cipher == SUITES[cipher]
        assert str(side.group).lower() == "x25519"
        assert side.aead == aead
        assert side.header_protection == options.get("header_protection")
        assert side.tls_version == "TLSv1.3"
        assert side.cpu_user_ns is not None
    assert str(got.signature).startswith("rsa_pss_rsae_sha")
    times = [got.t_client_hello, got.t_handshake_complete, got.t_request_sent, got.t_first_byte, got.t_last_byte]
    assert None not in times
    assert times == sorted(times, key=lambda t: t or 0)


@pytest.mark.parametrize("send_buffer", ["6815744", "20000"])
@pytest.mark.parametrize("at", [("client", "server"), ("client",), ("server",)])
@pytest.mark.parametrize(("library", "io"), WAYS)
def test_datagrams_pass_as_an_end_is_told(
    bench: Bench, library: str, io: str, at: Sequence[str], send_buffer: str
) -> None:
    """With little room in the socket, too, which takes only a part of a batch then."""
    client, server = ({"io": io} if role in at else {} for role in ("client", "server"))
    running = bench.serve(library, **server, send_buffer=send_buffer)
    code, log = bench.download(library, "stock", running.address, **client, connections="3")
    assert code == 0, log.read_text()
    assert [one.content_ok for one in events.read(log, "client").connections] == [True] * 3
    running.stopped(3)
    started = {"client": events.read(log, "client").start, "server": events.read(running.log, "server").start}
    for role, start in started.items():
        told, own = start.options, role in at
        assert (told.get("io"), told["gso"], told["gro"]) == ((io, False, False) if own else (None, True, True))


@pytest.mark.parametrize("library", dict.fromkeys(name for name, _ in WAYS))
@pytest.mark.parametrize("words", [["--io"], ["--io", "gso"], ["--io=pigeons"]])
def test_a_way_that_is_none_is_a_wrong_command_line(bench: Bench, library: str, words: list[str]) -> None:
    done = subprocess.run(
        [bench.program(library, "stock", "server"), *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("--io: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("library", sample.libraries("stock"))
def test_a_stock_build_has_no_noop(bench: Bench, library: str) -> None:
    code, log = bench.download(library, "stock", "127.0.0.1:9", aead="noop")
    assert code == 127
    reasons = [event["reason"] for event in raw_events(log) if event["event"] == "unsupported"]
    assert reasons
    assert reasons[0]


@pytest.mark.parametrize("library", [name for name in LIBRARIES if not PROJECT.libraries[name].optional])
def test_no_function_is_claimed_by_two_categories(build_of: Callable[[str, str], Path], library: str) -> None:
    """Of all the functions that perf may see, in the build that has most of them."""
    build = build_of(library, sample.flavour_of(library, "noop") or str(sample.flavour_of(library)))
    functions: set[str] = set()
    for file in build.rglob("*"):
        if file.is_file() and file.open("rb").read(4) == b"\x7fELF":
            listed = subprocess.run(
                ["nm", "--demangle", "--defined-only", str(file)], capture_output=True, text=True, check=True
            )
            functions.update(line.split(" ", 2)[2] for line in listed.stdout.splitlines())
    for role in ("client", "server"):
        mapping = symbols.symbol_map(ROOT, library, role)
        categories = {mapping.sort((f"program`{function}",)) for function in functions}
        assert {"packet-protection", "connection-management"} <= categories


@pytest.mark.parametrize("library", [name for name in NOOP if name in QUIC])
def test_padding_behind_a_packet_is_no_packet_without_protection(bench: Bench, library: str) -> None:
    """Small certificates leave room for padding behind the Handshake packets of a datagram."""
    options = {"aead": "noop", "header_protection": "off", "signature": "ecdsa-p-256"}
    running = bench.serve(library, "noop", size=1, **options)
    code, log = bench.download(library, "noop", running.address, size=1, **options)
    assert code == 0, log.read_text()
    assert running.stopped(after=1).connections[0].ok


@pytest.mark.parametrize("library", [name for name in NOOP if name in QUIC])
def test_noop_is_not_understood_by_a_peer_that_encrypts(bench: Bench, library: str) -> None:
    running = bench.serve(library, "noop", aead="noop", header_protection="off")
    code, log = bench.download(library, "noop", running.address, timeout="2")
    assert code == 1
    assert not raw_events(log)[-2]["ok"]
    running.stop()


@pytest.mark.parametrize("congestion_control", ["cubic", "reno", "bbr"])
@pytest.mark.parametrize("pacing", ["off", "library", "txtime"])
@pytest.mark.parametrize("library", QUIC)
def test_a_download_is_paced_as_the_server_tells(
    bench: Bench, library: str, pacing: Pacing, congestion_control: str
) -> None:
    described = PROJECT.libraries[library]
    asked = Variant(label="x", cipher="aes-128-gcm", pacing=pacing, congestion_control=congestion_control)
    if unsupported_reason(described, asked, "any") is not None:
        pytest.skip(f"{library} cannot")
    options = {"pacing": pacing, "congestion_control": congestion_control}
    running = bench.serve(library, **options)
    code, log = bench.download(library, "stock", running.address, **options)
    assert code == 0, log.read_text()
    running.stop()
    assert events.read(running.log, "server").start.options["pacing"] == pacing


@pytest.mark.parametrize("pacing", ["off", "library", "txtime"])
@pytest.mark.parametrize("library", [name for name in QUIC if PROJECT.libraries[name].supports.release_times is True])
def test_a_server_notes_when_its_datagrams_were_to_leave(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, library: str, pacing: Pacing
) -> None:
    options = {"pacing": pacing, "congestion_control": "bbr"}
    file = bench.directory / "releases.bin"
    monkeypatch.setenv(RELEASE_TIMES, str(file))
    running = bench.serve(library, **options)
    monkeypatch.delenv(RELEASE_TIMES)
    for _ in range(2):
        code, log = bench.download(library, "stock", running.address, **options)
        assert code == 0, log.read_text()
    told = running.stopped(2).connections
    noted = releases.read(file)
    # of both connections; a datagram can hold several packets
    sent = sum(connection.packets_sent or 0 for connection in told)
    assert 0.9 * sent < noted.height <= sent
    assert noted["fingerprint"].n_unique() == noted.height
    assert noted["bytes"].max() == 1472
    assert noted["bytes"].sum() > 2 * SIZE
    meant = noted["intended_ns"].drop_nulls()
    assert (len(meant) > 0) == (pacing != "off")
    begin, end = told[0].t_accept, told[-1].t_close
    assert begin is not None
    assert end is not None
    assert meant.is_between(begin, end + 10**9).all()


@pytest.mark.parametrize("library", QUIC)
def test_a_late_copy_of_the_first_datagram_changes_nothing_of_a_connection(bench: Bench, library: str) -> None:
    """Clients repeat it where a server is slow, so that copies come after the handshake."""
    offloads = {"gso": "off", "gro": "off"}  # one datagram at a time, for the relay
    running = bench.serve(library, **offloads)
    passed = 0

    def passes(datagram: bytes) -> list[bytes]:
        nonlocal passed
        passed += 1
        if passed in {100, 300}:
            relay.again(relay.to_server[0])
        return [datagram]

    with Relay(running.port, passes) as relay:
        code, log = bench.download(library, "stock", f"127.0.0.1:{relay.port}", **offloads)
    assert code == 0, log.read_text()
    assert passed > 300
    # whose times are in order, or it is no event; to nginx and quic-go, copies are connections that never complete
    (sent,) = (one for one in running.stopped(after=1).connections if one.ok)
    assert sent.handshake_packets_received in {None, *range(1, 10)}


class Late(Relay):
    """Everything reaches the server later."""

    LATE_S = 0.3

    def again(self, datagram: bytes) -> None:
        threading.Timer(self.LATE_S, super().again, [datagram]).start()


@pytest.mark.parametrize("library", QUIC)
def test_a_connection_whose_end_has_arrived_has_ended_when_its_server_is_stopped(bench: Bench, library: str) -> None:
    """On a busy machine a server finds both at once: that its client closed the connection, and that it is to stop."""
    running = bench.serve(library, size=1)
    with Late(running.port) as relay:
        code, log = bench.download(library, "stock", f"127.0.0.1:{relay.port}", size=1)
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(2 * relay.LATE_S)
    assert code == 0, log.read_text()
    running.process.send_signal(signal.SIGTERM)
    running.process.send_signal(signal.SIGCONT)
    assert running.process.wait(5) == 0
    (ended,) = events.read(running.log, "server").connections
    assert ended.ok, ended.error


def test_a_relay_passes_on_what_a_client_sent_before_it_ended() -> None:
    """A client that has closed its connection is gone at once; a server that misses the close waits for long."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", 0))
        with Relay(server.getsockname()[1]) as relay:
            for number in range(50):
                client.sendto(bytes([number]), ("127.0.0.1", relay.port))
        assert [server.recv(2, socket.MSG_DONTWAIT) for _ in range(50)] == [bytes([number]) for number in range(50)]


@pytest.mark.parametrize("library", QUIC)
@pytest.mark.parametrize(("gso", "gro"), [("on", "off"), ("off", "on"), ("off", "off")])
def test_segmentation_offloads_can_be_switched_off(bench: Bench, library: str, gso: str, gro: str) -> None:
    running = bench.serve(library, gso=gso, gro=gro)
    code, log = bench.download(library, "stock", running.address, gso=gso, gro=gro)
    assert code == 0
    seen = events.read(log, "client").start.options
    supports = PROJECT.libraries[library].supports
    assert (seen["gso"], seen["gro"]) == (gso == "on" and supports.gso, gro == "on" and supports.gro)
    running.stop()


@pytest.mark.parametrize("library", LIBRARIES)
def test_both_tell_of_the_aes_instructions(bench: Bench, library: str) -> None:
    running = bench.serve(library, size=1)
    code, log = bench.download(library, "stock", running.address, size=1)
    assert code == 0
    running.stop()
    has = "aes" in Path("/proc/cpuinfo").read_text().split()
    for start in (events.read(log, "client").start, events.read(running.log, "server").start):
        assert start.options["aes_hardware"] is has


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("chain", ["leaf-scts", "two-intermediates-scts"])
@pytest.mark.parametrize("signature", [certificates.DEFAULT, "mldsa65"])
def test_a_chain_is_sent_and_verified(bench: Bench, tmp_path: Path, library: str, chain: str, signature: str) -> None:
    flavour = "pq" if library in PQ else "stock"
    if algorithm_reason(library, PROJECT.libraries[library], flavour, "signature", signature) is not None:
        pytest.skip(f"{library} has no {signature}")
    tools = Tools.provide(PROJECT, jobs=1, log=tmp_path / "tools.log")
    made = PROJECT.algorithms.signature(signature)
    certificates.make(tmp_path / "made", made, tools, certificates.CHAINS[chain])
    build = bench.build(library, flavour)
    options = ["--signature", signature, "--content", str(SIZE)]
    server = Server(build, tmp_path / "made", tmp_path / "server.jsonl", *options)
    bench.servers.append(server)
    (got,) = server.fetch("--bytes", str(SIZE))
    assert got["ok"], got
    # the client knows the root: without the certificates between, there is no way to it
    if chain.startswith("two"):
        leaf, *_ = (tmp_path / "made" / "server.pem").read_text().split("-----END CERTIFICATE-----\n")
        (tmp_path / "made" / "server.pem").write_text(f"{leaf}-----END CERTIFICATE-----\n")
        lacking = Server(build, tmp_path / "made", tmp_path / "lacking.jsonl", *options)
        bench.servers.append(lacking)
        (refused,) = lacking.fetch("--bytes", str(SIZE))
        assert not refused["ok"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("wrong", ["ca", "server_name"])
def test_a_server_that_cannot_be_verified_is_refused(bench: Bench, tmp_path: Path, library: str, wrong: str) -> None:
    certificates.make(tmp_path / "other")
    value = {"ca": str(tmp_path / "other" / "ca.pem"), "server_name": "another.example"}[wrong]
    running = bench.serve(library)
    code, log = bench.download(library, "stock", running.address, **{wrong: value})
    assert code == 1
    refused = events.read(log, "client").connections[0]
    assert not refused.ok
    assert refused.error
    assert refused.bytes_received == 0
    code, log = bench.download(library, "stock", running.address)
    assert code == 0, "a failed connection must not end the server"
    running.stop()


@pytest.mark.parametrize("library", LIBRARIES)
def test_many_connections_one_after_the_other(bench: Bench, library: str) -> None:
    running = bench.serve(library, size=1)
    code, log = bench.download(library, "stock", running.address, size=1, connections="50")
    assert code == 0
    got = events.read(log, "client")
    assert len(got.connections) == 50
    assert all(connection.ok for connection in got.connections)
    assert len(running.stopped(after=50).connections) == 50


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_without_a_server_gives_up(bench: Bench, library: str) -> None:
    code, log = bench.download(library, "stock", "127.0.0.1:9", timeout="1")
    assert code == 1
    assert events.read(log, "client").connections[0].error


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize(
    "argv",
    [
        ["--frobnicate", "1"],
        [],
        ["--cipher", "rot13"],
        ["--bytes", "-1"],
        ["--listen", "here"],
        ["--save", ".."],
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(bench: Bench, library: str, role: str, argv: list[str]) -> None:
    done = subprocess.run(
        [bench.program(library, "stock", role), *argv], capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("library", LIBRARIES)
def test_only_who_saves_a_file_can_leave_the_server_unverified(bench: Bench, tmp_path: Path, library: str) -> None:
    client = [bench.program(library, "stock", "client"), "--connect", "127.0.0.1:9", "--server-name", "server"]
    for more, why in (
        (["--verify", "off", "--bytes", "9"], "--verify off: only with --save"),
        (["--verify", "off", "--save", "x", "--ca", "ca.pem"], "--ca: not with --verify off"),
        (["--save", "x"], "--ca is missing"),
        (["--bytes", "9"], "--ca is missing"),
        (["--save", "x", "--verify", "no"], "--verify"),
    ):
        argv = [*client, "--events", str(tmp_path / "client.jsonl"), *more]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == 2
        assert why in done.stderr


@pytest.mark.parametrize("library", TCP)  # those over QUIC do the same in the runner's folders, see test_external
def test_files_are_served_and_saved(bench: Bench, tmp_path: Path, library: str) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "a file.bin").write_bytes(b"no name of a request")
    (tmp_path / "www" / "a-file.bin").write_bytes(content)
    running = bench.serve(library, www=str(tmp_path / "www"))
    log = tmp_path / "client.jsonl"
    argv = [bench.program(library, "stock", "client"), "--connect", running.address, "--server-name", "server"]
    argv += ["--ca", str(certificates.directory(PROJECT) / "ca.pem"), "--events", str(log)]
    argv += ["--save", str(tmp_path / "a-file.bin")]
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0, log.read_text()
    assert (tmp_path / "a-file.bin").read_bytes() == content
    unverified = [*argv, "--verify", "off"]
    del unverified[unverified.index("--ca") : unverified.index("--ca") + 2]
    (tmp_path / "a-file.bin").unlink()
    assert subprocess.run(unverified, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    assert (tmp_path / "a-file.bin").read_bytes() == content
    saved = events.read(log, "client").connections[0]
    assert (saved.bytes_requested, saved.bytes_received, saved.content_ok) == (SIZE, SIZE, True)
    # and content by its size, as without files
    code, log = bench.download(library, "stock", running.address)
    assert code == 0, log.read_text()
    assert running.stopped(after=1).connections[0].bytes_sent == SIZE


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_server_leaves_nothing_behind(bench: Bench, library: str) -> None:
    running = bench.serve(library)
    children = subprocess.run(
        ["pgrep", "--parent", str(running.process.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    if "nginx-src" in PROJECT.libraries[library].crates:
        assert children, "nginx is a process of its own"
    running.stop()
    for pid in (running.process.pid, *children):
        assert not Path(f"/proc/{pid}").exists()


def has(library: str, kind: str, algorithm: str) -> bool:
    """Whether flavour pq of a library has a group or signature algorithm."""
    return algorithm_reason(library, PROJECT.libraries[library], "pq", kind, algorithm) is None


@pytest.mark.parametrize(
    ("client", "server", "group", "signature"),
    [
        (*pair, group, signature)
        for pair in sample.pairs()
        for group, signature in POST_QUANTUM
        # MsQuic's server does not go on under the connection ID that noq waits for (docs/libraries.md)
        if {*pair} <= {*PQ}
        and pair != ("noq", "msquic")
        and all(has(end, "group", group) and has(end, "signature", signature) for end in pair)
    ],
)
def test_post_quantum_handshakes_between_libraries(
    bench: Bench, client: str, server: str, group: str, signature: str
) -> None:
    running = bench.serve(server, "pq", size=1, group=group, signature=signature)
    code, log = bench.download(client, "pq", running.address, size=1, group=group, signature=signature, connections="2")
    assert code == 0, log.read_text()
    expected = (PROJECT.algorithms.group(group).tls_name, PROJECT.algorithms.signature(signature).tls_name)
    for side in (*events.read(log, "client").connections, *running.stopped(after=2).connections):
        assert side.ok
        assert not side.hello_retry_request
        assert str(side.group).lower() == expected[0].lower()
        assert side.signature in (None, expected[1])


@pytest.mark.parametrize("library", PQ)
@pytest.mark.parametrize("wrong", ["group", "signature"])
def test_ends_without_a_common_algorithm_say_so(bench: Bench, library: str, wrong: str) -> None:
    running = bench.serve(library, "pq", size=1)
    signature = "dilithium3" if has(library, "signature", "dilithium3") else "ecdsa-p-384"
    option = {"group": "kyber768"} if wrong == "group" else {"signature": signature}
    trusted = str(certificates.directory(PROJECT) / "ca.pem")
    code, log = bench.download(library, "pq", running.address, size=1, ca=trusted, timeout="5", **option)
    assert code == 1
    (refused,) = events.read(log, "client").connections
    assert "not finished" not in str(refused.error), "a handshake that cannot succeed must not wait for its time limit"
    code, log = bench.download(library, "pq", running.address, size=1)
    assert code == 0, "a failed connection must not end the server"
    running.stop()
