"""What is special about TCP+TLS: the no-op provider of OpenSSL, and the server that stands in for nginx."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import loopback
from clone import NATIVE, ROOT
from quicbed.builds import build_store, making
from quicbed.builds.kit import BuildError
from quicbed.builds.recipes import tcp_tls
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.contract.content import content
from quicbed.measure import certificates

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
NOOP_TAG = "2a" * 16
# The first test vectors with a block of zero bytes: GCM specification (McGrew and Viega), test cases 2 and 14 with 5
# bytes of additional data, which changes the tag only; AES-ECB of a zero block under a zero key.
CIPHERTEXT = {
    "AES-128-GCM": "0388dace60b6a392f328c2b971b2fe78",
    "AES-256-GCM": "cea7403d4d606b6e074ec5d3baf39d18",
    "AES-128-ECB": "66e94bd4ef8a2c3b884cfa59ca342b2e",
    "AES-256-ECB": "dc95c078a2408989ad48a21492842087",
}
AEADS = ["AES-128-GCM", "AES-256-GCM", "ChaCha20-Poly1305"]
MASKS = ["AES-128-ECB", "AES-128-CTR", "ChaCha20"]


@pytest.fixture(scope="session")
def build(build_of: Callable[[str, str], Path]) -> Path:
    """The noop build; but for the provider it is the stock build."""
    return build_of("tcp-tls", "noop")


@pytest.fixture(scope="session")
def pq(build_of: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pq build, and certificates of every signature algorithm."""
    log = tmp_path_factory.mktemp("certificates") / "log"
    certificates.make_all(PROJECT, [signature.name for signature in TABLE.signatures], jobs=2, log=log)
    return build_of("tcp-tls", "pq")


Probe = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def probe(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Probe:
    """Asks the build's OpenSSL what a cipher does under a configuration."""
    directory = tmp_path_factory.mktemp("probe")
    program = directory / "openssl_probe"
    source = NATIVE / "openssl_probe.c"
    subprocess.run(
        [
            *("gcc", "-O1", "-Wall", "-Werror", f"-I{build / 'include'}", "-o", str(program), str(source)),
            str(build / "lib" / "libcrypto.a"),
        ],
        check=True,
    )

    def ask(cipher: str, size: int = 16, *, standard: bool = False, **switches: str) -> dict[str, str]:
        config = build / "etc" / ("openssl-standard.cnf" if standard else "openssl-noop.cnf")
        if switches:
            lines = config.read_text(encoding="utf-8").splitlines()
            given = {name.replace("_", "-"): value for name, value in switches.items()}
            kept = [line for line in lines if line.partition(" = ")[0] not in given]
            config = directory / "openssl.cnf"
            config.write_text("\n".join([*kept, *(f"{n} = {v}" for n, v in given.items())]) + "\n", encoding="utf-8")
        environment = {"OPENSSL_CONF": str(config), "OPENSSL_MODULES": str(build / "lib")}
        done = subprocess.run(
            [str(program), cipher, str(size)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    return ask


@pytest.mark.parametrize("cipher", AEADS)
@pytest.mark.parametrize("size", [1, 16, 1000, 4096])
def test_noop_leaves_the_plaintext_and_sets_a_constant_tag(probe: Probe, cipher: str, size: int) -> None:
    seen = probe(cipher, size)
    assert seen["provider"] == "quicbed-noop"
    assert seen["ciphertext"] == seen["decrypted"] == "00" * size
    assert seen["tag"] == NOOP_TAG
    assert (seen["right_tag"], seen["wrong_tag"]) == ("accepted", "accepted")


@pytest.mark.parametrize("cipher", [*AEADS, *MASKS])
def test_the_standard_configuration_encrypts(probe: Probe, cipher: str) -> None:
    seen = probe(cipher, standard=True)
    assert seen["provider"] == "default"
    assert seen["ciphertext"] == CIPHERTEXT.get(cipher, seen["ciphertext"])
    assert seen["ciphertext"] != "00" * 16
    assert seen["decrypted"] == "00" * 16
    if cipher in AEADS:
        assert (seen["right_tag"], seen["wrong_tag"]) == ("accepted", "refused")


@pytest.mark.parametrize("cipher", MASKS)
def test_header_protection_is_a_switch_of_its_own(probe: Probe, cipher: str) -> None:
    assert probe(cipher)["provider"] == "default"
    off = probe(cipher, header_protection="off", aead="standard")
    assert off["provider"] == "quicbed-noop"
    assert off["ciphertext"] == "00" * 16
    aead = probe("AES-128-GCM", header_protection="off", aead="standard")
    assert aead["provider"] == "default"
    assert aead["ciphertext"] == CIPHERTEXT["AES-128-GCM"]


def test_the_random_number_generator_is_left_alone(probe: Probe) -> None:
    seen = [probe("AES-256-ECB", header_protection="off") for _ in range(2)]
    assert {each["generator"] for each in seen} == {"default"}
    assert seen[0]["random"] != seen[1]["random"]
    assert seen[0]["ciphertext"] == CIPHERTEXT["AES-256-ECB"]


@pytest.mark.parametrize("switch", [{"aead": "off"}, {"header_protection": "no"}])
def test_a_misspelt_switch_disables_the_provider(probe: Probe, switch: dict[str, str]) -> None:
    assert probe("AES-128-GCM", **switch)["provider"] == "default"


def test_the_noop_flavour_is_the_stock_build_and_the_provider(build: Path) -> None:
    stock = making.build_directory(PROJECT, "tcp-tls", "stock")
    own = {path.relative_to(build) for path in build.rglob("*") if path.is_file()}
    reused = {path.relative_to(stock) for path in stock.rglob("*") if path.is_file()}
    assert own - reused == {Path("lib/quicbed-noop.so"), Path("etc/openssl-noop.cnf")}
    assert reused <= own
    for path in reused - {Path("build.json"), Path(build_store.MANIFEST)}:
        assert filecmp.cmp(build / path, stock / path, shallow=False), path


def test_the_pq_flavour_is_the_stock_build_and_the_provider(pq: Path) -> None:
    stock = making.build_directory(PROJECT, "tcp-tls", "stock")
    own = {path.relative_to(pq) for path in pq.rglob("*") if path.is_file()}
    reused = {path.relative_to(stock) for path in stock.rglob("*") if path.is_file()}
    assert own - reused == {Path("lib/quicbed-pq.so"), Path("etc/openssl-pq.cnf"), Path("bin/primitives")}
    for path in reused - {Path("build.json"), Path(build_store.MANIFEST)}:
        assert filecmp.cmp(pq / path, stock / path, shallow=False), path


class Server(loopback.Server):
    """A running server over loopback, and its nginx."""

    def __init__(self, build: Path, log: Path, *options: str) -> None:
        made = certificates.directory(PROJECT)
        super().__init__(build, made, log, "--signature", certificates.DEFAULT, *options)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.nginx = int(children[0])

    def command(self, build: Path, size: int, *options: str, ca: str = certificates.DEFAULT) -> list[str]:
        """The command line of a client that tells on standard output."""
        trusted = str(certificates.directory(PROJECT, ca) / "ca.pem")
        given = ("--server-name", "localhost", "--ca", trusted, "--bytes", str(size), *options)
        return [*self.client(*given, programs=build / "bin")[0], "--events", "-"]


@pytest.fixture
def serve(build: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*options: str) -> Server:
        servers.append(Server(build, tmp_path / f"server-{len(servers)}.jsonl", *options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.mark.parametrize(
    ("options", "ca", "alert"),
    [
        (["--group", "p-256"], "rsa-2048", "received TLS alert 40 (handshake failure)"),
        (["--signature", "ed25519"], "rsa-2048", "received TLS alert 40 (handshake failure)"),
        ([], "rsa-4096", "sent TLS alert"),
    ],
    ids=["group", "signature", "CA"],
)
def test_a_refused_handshake_tells_the_alert(
    pq: Path, serve: Callable[..., Server], options: list[str], ca: str, alert: str
) -> None:
    server = serve("--content", "1")
    done = subprocess.run(
        server.command(pq, 1, *options, ca=ca), capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert alert in json.loads(done.stdout.splitlines()[1])["error"]
    served = subprocess.run(server.command(pq, 1), capture_output=True, timeout=20, check=False)
    assert served.returncode == 0  # the server survives


@pytest.mark.parametrize(
    ("cipher", "suite"),
    [
        ("aes-128-gcm", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("aes-256-gcm", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
        ("chacha20-poly1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
    ],
)
def test_both_ends_speak_tls_1_2_when_told_so(
    build: Path, serve: Callable[..., Server], cipher: str, suite: str
) -> None:
    asked = ("--cipher", cipher, "--tls-version", "TLSv1.2")
    server = serve("--content", "100000", *asked)
    command = server.command(build, 100000, "--connections", "2", *asked)
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    # the other version is refused, by an alert of the server
    newer = subprocess.run(
        server.command(build, 100000, "--cipher", cipher), capture_output=True, text=True, timeout=20, check=False
    )
    assert newer.returncode == 1
    assert "received TLS alert 70 (protocol version)" in json.loads(newer.stdout.splitlines()[1])["error"]
    got = loopback.connections([json.loads(line) for line in done.stdout.splitlines()])
    sent = loopback.connections(server.stop())[:2]
    assert len(got) == len(sent) == 2
    for side in (*got, *sent):
        assert (side["tls_version"], side["cipher"], side["group"]) == ("TLSv1.2", suite, "x25519")
    order = ("t_client_hello", "t_handshake_complete", "t_request_sent", "t_first_byte", "t_last_byte")
    for one in got:
        assert one["signature"] == "rsa_pss_rsae_sha256"
        times = [one[name] for name in order]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--aead", "noop"], "the NOOP AEAD is one of TLS 1.3"),
        (["--signature", "ed25519"], "for certificates with RSA"),
    ],
)
def test_what_tls_1_2_does_not_have_is_unsupported(
    build: Path, serve: Callable[..., Server], options: list[str], reason: str
) -> None:
    command = serve("--content", "1").command(build, 1, "--tls-version", "TLSv1.2", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    assert reason in json.loads(done.stdout.splitlines()[1])["reason"]


def test_the_processor_time_of_a_connection_is_told_in_ns(build: Path, serve: Callable[..., Server]) -> None:
    server = serve("--content", "1000000")
    subprocess.run(server.command(build, 1000000, "--connections", "5"), capture_output=True, timeout=20, check=True)
    told = server.stop()
    spent = [one["cpu_user_ns"] + one["cpu_system_ns"] for one in loopback.connections(told)]
    assert len(spent) == 5
    # of connections whose ends the program sees at once, as on a busy machine, the first has the time of all
    assert spent[0] > 0
    # clock ticks would make multiples of 10 ms of them
    assert any(one % 10_000_000 for one in spent)
    # and no part runs backwards
    assert all(one[name] >= 0 for one in loopback.connections(told) for name in ("cpu_user_ns", "cpu_system_ns"))


def test_a_server_without_its_provider_says_so(pq: Path, tmp_path: Path) -> None:
    copy = tmp_path / "build"
    shutil.copytree(pq, copy)
    (copy / "lib" / "quicbed-pq.so").unlink()
    made = certificates.directory(PROJECT)
    argv = [str(copy / "bin" / "server"), "--listen", "127.0.0.1:0"]
    argv += ["--certificate", str(made / "server.pem"), "--private-key", str(made / "server.key")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "provider" in json.loads(done.stdout.splitlines()[1])["reason"]


def test_primitives_are_timed(pq: Path) -> None:
    made = certificates.directory(PROJECT, "ed25519")
    argv = [
        str(pq / "bin" / "primitives"),
        "--milliseconds",
        "1",
        "--group",
        "kyber512",
        "--signature",
        f"ed25519={made}",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    written = [json.loads(line) for line in done.stdout.splitlines()]
    assert written[0]["library"] == "tcp-tls"
    timed = [(event["name"], event["operation"]) for event in written if event["event"] == "primitive"]
    assert timed[:3] == [("kyber512", operation) for operation in ("keygen", "encapsulate", "decapsulate")]
    assert timed[3:] == [("ed25519", operation) for operation in ("sign", "verify", "verify-chain")]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.01)
    return False


def test_nginx_does_not_outlive_a_killed_server(serve: Callable[..., Server]) -> None:
    server = serve("--content", "1000000")
    server.process.kill()
    server.process.wait()
    assert gone(server.nginx)
    assert server.events()[-1]["event"] != "end"


def test_a_server_whose_nginx_dies_says_so(serve: Callable[..., Server]) -> None:
    server = serve()
    os.kill(server.nginx, signal.SIGKILL)
    assert server.process.wait(5) == 1
    assert events.read(server.log, "server").errors == ("nginx was ended by signal 9",)


def test_sizes_that_were_not_announced_are_not_served(build: Path, serve: Callable[..., Server]) -> None:
    server = serve("--content", "10")
    done = subprocess.run(server.command(build, 11), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    connection = json.loads(done.stdout.splitlines()[1])
    assert "404" in connection["error"]
    server.process.terminate()
    assert server.process.wait(5) == 0
    refused = events.read(server.log, "server").connections[0]
    assert (refused.ok, refused.bytes_sent) == (False, 0)
    assert refused.error == "HTTP status 404 for /11"


def test_a_download_that_breaks_off_is_a_failed_connection(build: Path, serve: Callable[..., Server]) -> None:
    size = 1 << 30
    server = serve("--content", str(size))
    client = subprocess.Popen(server.command(build, size), stdout=subprocess.PIPE)
    # until content flows; the client is then stopped, so that the server dies in the middle of the transfer
    time.sleep(0.1)
    client.send_signal(signal.SIGSTOP)
    server.process.kill()
    client.send_signal(signal.SIGCONT)
    output, _ = client.communicate(timeout=30)
    assert client.returncode == 1
    written = [json.loads(line) for line in output.splitlines()]
    assert written[-1]["event"] == "end"
    assert written[-1]["failed"] == 1
    assert not written[1]["ok"]
    assert written[1]["error"]


def test_a_silent_server_runs_into_the_timeout(build: Path) -> None:
    made = certificates.directory(PROJECT)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        argv = [str(build / "bin" / "client"), "--connect", f"127.0.0.1:{silent.getsockname()[1]}"]
        argv += ["--server-name", "localhost", "--ca", str(made / "ca.pem"), "--bytes", "1", "--timeout", "0.3"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    connection = json.loads(done.stdout.splitlines()[1])
    assert connection["t_client_hello"] is not None
    assert connection["t_handshake_complete"] is None
    assert "timed out" in connection["error"].lower()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (content(70_000) + b"?" + content(29_999, 70_001), "wrong content at byte 70000"),
        (content(100_004), "100004 of 100000 bytes received"),
        (content(99_999), "99999 of 100000 bytes received"),
    ],
    ids=["wrong byte", "too long", "too short"],
)
def test_wrong_content_is_noticed(build: Path, body: bytes, error: str) -> None:
    made = certificates.directory(PROJECT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server.pem", made / "server.key")

    def answer(listener: socket.socket) -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        argv = [str(build / "bin" / "client"), "--connect", f"127.0.0.1:{listener.getsockname()[1]}"]
        argv += ["--server-name", "localhost", "--ca", str(made / "ca.pem"), "--bytes", "100000", "--timeout", "5"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        thread.join()
    assert done.returncode == 1
    connection = json.loads(done.stdout.splitlines()[1])
    assert connection["content_ok"] is False
    assert connection["bytes_received"] == len(body)
    assert connection["error"] == error


def test_a_server_in_the_middle_of_a_transfer_stops_within_a_second(build: Path, serve: Callable[..., Server]) -> None:
    size = 1 << 30
    server = serve("--content", str(size))
    client = subprocess.Popen(server.command(build, size), stdout=subprocess.DEVNULL)
    time.sleep(0.1)
    client.send_signal(signal.SIGSTOP)  # so that it cannot have everything before the server ends
    server.process.terminate()
    assert server.process.wait(1) == 0
    client.send_signal(signal.SIGCONT)
    assert client.wait(5) == 1
    assert gone(server.nginx)
    assert server.events()[-1]["event"] == "end"


def test_content_that_does_not_fit_is_refused(build: Path, tmp_path: Path) -> None:
    made = certificates.directory(PROJECT)
    log = tmp_path / "server.jsonl"
    argv = [str(build / "bin" / "server"), "--listen", "127.0.0.1:0", "--events", str(log)]
    argv += ["--certificate", str(made / "server.pem"), "--private-key", str(made / "server.key")]
    done = subprocess.run([*argv, "--content", str(1 << 60)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "MiB of memory" in events.read(log, "server").errors[0]


def test_sources_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"holds 0 versions of openssl-src"):
        tcp_tls.make(tmp_path, tmp_path, tmp_path / "out", "stock", tmp_path / "work", 1, None)


def fake_sources(vendor: Path) -> None:
    for package in ("openssl-src-1/openssl", "nginx-src-1/nginx/src/core", "curl-sys-1/curl/include/curl"):
        (vendor / package).mkdir(parents=True)
    (vendor / "openssl-src-1/openssl/VERSION.dat").write_text("MAJOR=3\nMINOR=5\nPATCH=5\n")
    (vendor / "nginx-src-1/nginx/auto").mkdir()
    (vendor / "nginx-src-1/nginx/auto/configure").write_text("echo no compiler today; exit 3\n")
    (vendor / "nginx-src-1/nginx/src/core/nginx.h").write_text('#define NGINX_VERSION      "1.28.3"\n')
    (vendor / "curl-sys-1/curl/include/curl/curlver.h").write_text('#define LIBCURL_VERSION "8.22.0"\n')


def test_a_failed_step_shows_the_end_of_its_log(tmp_path: Path) -> None:
    fake_sources(tmp_path / "vendor")
    with pytest.raises(BuildError, match=r"(?s)nginx-configure failed with exit code 3.*no compiler today"):
        tcp_tls.make(tmp_path / "vendor", tmp_path, tmp_path / "out", "stock", tmp_path / "work", 1, None)


def test_noop_needs_a_stock_build(tmp_path: Path) -> None:
    fake_sources(tmp_path / "vendor")
    with pytest.raises(BuildError, match=r"holds no stock build"):
        tcp_tls.make(tmp_path / "vendor", tmp_path, tmp_path / "out", "noop", tmp_path / "work", 1, tmp_path)


def test_pq_needs_the_provider(tmp_path: Path) -> None:
    fake_sources(tmp_path / "vendor")
    (tmp_path / "base" / "sbin").mkdir(parents=True)
    (tmp_path / "base" / "sbin" / "nginx").touch()
    with pytest.raises(BuildError, match=r"needs the component openssl-provider"):
        tcp_tls.make(tmp_path / "vendor", tmp_path, tmp_path / "out", "pq", tmp_path / "work", 1, tmp_path / "base")
