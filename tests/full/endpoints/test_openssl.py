"""OpenSSL's own QUIC: what its endpoints do beyond the tests for all libraries, and what they do with the providers."""

from __future__ import annotations

import filecmp
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from clone import NATIVE, ROOT
from loopback import Loopback, Serve
from quicbed.builds import build_store, components, making
from quicbed.builds.recipes import openssl as recipe
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.wire.proof import check, examine
from relayed import Claim, Relay
from wirefixtures import SERVER, pcap

PROJECT = Project(ROOT)
TABLE = algorithms.read(ROOT)
HANDSHAKE_FAILURE = "TLS alert 40 (handshake failure)"
NOOP = ("--aead", "noop", "--header-protection", "off")
NOOP_TAG = b"\x2a" * 16


@pytest.fixture(scope="session")
def build(build_of: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build of flavour pq, and certificates of every signature algorithm."""
    build_of("openssl", "stock")
    directory = build_of("openssl", "pq")
    log = tmp_path_factory.mktemp("certificates") / "log"
    certificates.make_all(PROJECT, [signature.name for signature in TABLE.signatures], jobs=2, log=log)
    return directory


@pytest.fixture(scope="session")
def noop(build: Path, build_of: Callable[[str, str], Path]) -> Path:
    """The build of flavour noop."""
    return build_of("openssl", "noop")


def made(signature: str) -> Path:
    """Certificates of a signature algorithm."""
    return certificates.directory(PROJECT, signature)


@pytest.fixture
def serve(loopback: Loopback) -> Serve:
    return partial(loopback.serve, "openssl", flavour="pq")


def test_connections_are_fresh_and_counted_on_both_sides(serve: Serve) -> None:
    server = serve()
    seen = server.fetch("--connections", "50")
    told = server.stop()
    assert len(seen) == len(told) == 50
    for client, at_server in zip(seen, told, strict=True):
        assert client["ok"]
        assert at_server["ok"]
        assert client["t_client_hello"] < client["t_handshake_complete"] <= client["t_handshake_confirmed"]
        assert (client["hello_retry_request"], client["retry"]) == (False, False)
        # loopback loses nothing
        assert client["packets_sent"] == at_server["packets_received"]
        assert client["packets_received"] == at_server["packets_sent"]
        assert client["handshake_bytes_sent"] == 1200  # one padded Initial packet (RFC 9000, 14.1)
        assert client["handshake_packets_sent"] == 1


def test_content_is_right_with_and_without_offload(serve: Serve) -> None:
    for offload in ("on", "off"):
        server = serve("--gso", offload, "--gro", offload)
        (seen,) = server.fetch("--gso", offload, "--gro", offload, "--bytes", "5000001")
        assert (seen["ok"], seen["content_ok"]) == (True, True)
        assert server.stop()[0]["bytes_sent"] == 5_000_001


def test_a_server_with_retry_sends_one_to_every_connection(serve: Serve) -> None:
    server = serve("--retry", "on")
    assert [connection["retry"] for connection in server.fetch("--connections", "3")] == [True] * 3
    assert [connection["retry"] for connection in server.stop()] == [True] * 3


@pytest.fixture(scope="session")
def other_client(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client that does what that of the endpoint does not."""
    return compiled("openssl_quic_client.c", tmp_path_factory.mktemp("program") / "client")


def compiled(source: str, program: Path) -> Path:
    """A program with the OpenSSL of the builds."""
    openssl = components.directory(PROJECT, "openssl")
    argv = ["gcc", "-Wall", "-Werror", f"-I{openssl / 'include'}", "-o", str(program)]
    libraries = [str(openssl / "lib" / name) for name in ("libssl.a", "libcrypto.a")]
    subprocess.run([*argv, str(NATIVE / source), *libraries], check=True)
    return program


def test_a_hello_retry_request_is_noticed(serve: Serve, other_client: Path) -> None:
    server = serve("--group", "p-256")
    argv = [str(other_client), "127.0.0.1", str(server.port), "x25519:secp256r1"]
    done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (0, b"secp256r1\n")
    (connection,) = server.stop()
    assert (connection["group"], connection["hello_retry_request"]) == ("secp256r1", True)


@pytest.mark.parametrize(
    "options",
    [("--group", "p-384"), ("--signature", "ed25519"), ("--cipher", "aes-256-gcm")],
    ids=["group", "signature", "cipher"],
)
def test_both_sides_tell_the_alert_when_nothing_is_shared(serve: Serve, options: tuple[str, ...]) -> None:
    server = serve()
    (refused,) = server.fetch(*options)
    assert not refused["ok"]
    assert f"received {HANDSHAKE_FAILURE}" in refused["error"]
    (served,) = server.fetch()  # the server survives
    assert served["ok"]
    told = server.stop()
    assert f"sent {HANDSHAKE_FAILURE}" in told[0]["error"]
    assert [connection["ok"] for connection in told] == [False, True]


def test_a_certificate_that_does_not_verify_is_refused_with_an_alert(serve: Serve) -> None:
    server = serve()
    (other_ca,) = server.fetch("--ca", str(made("rsa-2048") / "ca.pem"))
    (other_name,) = server.fetch("--server-name", "elsewhere.test")
    assert "sent TLS alert" in other_ca["error"]
    assert "hostname mismatch" in other_name["error"]
    assert ["received TLS alert" in str(connection["error"]) for connection in server.stop()] == [True, True]


def test_memory_of_a_server_does_not_grow_with_connections(serve: Serve) -> None:
    server = serve()

    server.fetch("--connections", "300")
    before = server.resident_kib()
    server.fetch("--connections", "1500")
    server.fetch("--connections", "500", "--group", "p-384")  # refused
    assert server.resident_kib() < before + 1024


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--congestion-control", "cubic"), "NewReno"),
        (("--initial-size", "1300"), "1200"),
        (("--header-protection", "off"), "--header-protection off, it is no noop flavour"),
        (("--aead", "noop"), "--aead noop, it is no noop flavour"),
    ],
)
def test_what_openssl_cannot_do_is_unsupported(build: Path, options: tuple[str, ...], reason: str) -> None:
    argv = [str(build / "bin" / "client"), "--connect", "127.0.0.1:1", "--server-name", "localhost"]
    argv += ["--ca", str(made("rsa-2048") / "ca.pem"), "--bytes", "1", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    assert reason in json.loads(done.stdout.splitlines()[1])["reason"]


@pytest.mark.usefixtures("build")
def test_a_stock_build_says_that_it_has_no_kyber() -> None:
    program = making.build_directory(PROJECT, "openssl", "stock") / "bin" / "client"
    argv = [str(program), "--connect", "127.0.0.1:1", "--server-name", "localhost", "--group", "kyber768"]
    argv += ["--ca", str(made("rsa-2048") / "ca.pem"), "--bytes", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    assert "kyber768" in json.loads(done.stdout.splitlines()[1])["reason"]


@pytest.mark.parametrize("content", [None, b"not a library"], ids=["missing", "broken"])
def test_a_provider_that_cannot_be_loaded_is_one_clear_error(
    build: Path, tmp_path: Path, content: bytes | None
) -> None:
    copy = tmp_path / "build"
    shutil.copytree(build, copy)
    provider = copy / "lib" / "quicbed-pq.so"
    provider.unlink()
    if content is not None:
        provider.write_bytes(content)
    done = subprocess.run(
        [str(copy / "bin" / "primitives"), "--group", "x25519"], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot load quicbed-pq.so" in line
    assert "build this flavour again" in line


def test_a_key_of_another_certificate_is_named(build: Path) -> None:
    argv = [str(build / "bin" / "server"), "--listen", "127.0.0.1:0"]
    argv += ["--certificate", str(made("rsa-2048") / "server.pem")]
    key = made("rsa-4096") / "server.key"
    done = subprocess.run([*argv, "--private-key", str(key)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[1])["reason"] == f"{key}: key values mismatch"


def test_primitives_have_the_sizes_of_the_standards(build: Path) -> None:
    argv = [str(build / "bin" / "primitives"), "--milliseconds", "1", "--group", "none"]
    for group in ("x25519", "p-256", "kyber768", "x25519-mlkem768", "p-384-kyber768"):
        argv += ["--group", group]
    for signature in ("ed25519", "rsa-2048", "dilithium3", "falcon-512"):
        argv += ["--signature", f"{signature}={made(signature)}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    written = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in written if event["event"] != "primitive"] == ["start", "unsupported", "end"]
    sizes = {(e["name"], e["operation"]): e["bytes"] for e in written if e["event"] == "primitive"}
    assert all(len(e["samples_ns"]) >= 5 for e in written if e["event"] == "primitive")
    # RFC 7748; SEC 1, 2.3.3; round 3 Kyber, table 1; draft-ietf-tls-ecdhe-mlkem; draft-ietf-tls-hybrid-design
    assert sizes["x25519", "keygen"] == sizes["x25519", "encapsulate"] == 32
    assert sizes["p-256", "keygen"] == 65
    assert (sizes["kyber768", "keygen"], sizes["kyber768", "encapsulate"]) == (1184, 1088)
    assert (sizes["x25519-mlkem768", "keygen"], sizes["x25519-mlkem768", "encapsulate"]) == (1216, 1120)
    assert (sizes["p-384-kyber768", "keygen"], sizes["p-384-kyber768", "encapsulate"]) == (97 + 1184, 97 + 1088)
    # RFC 8032; RFC 8017; round 3 Dilithium and Falcon-padded
    assert (sizes["ed25519", "sign"], sizes["rsa-2048", "sign"]) == (64, 256)
    assert (sizes["dilithium3", "sign"], sizes["falcon-512", "sign"]) == (3293, 666)
    assert {operation for name, operation in sizes if name == "kyber768"} == {"keygen", "encapsulate", "decapsulate"}
    assert {operation for name, operation in sizes if name == "ed25519"} == {"sign", "verify", "verify-chain"}


CLAIMS = [
    Claim("noop", "standard", True),
    Claim("noop", "standard", False),
    Claim("noop", "noop", True),
    Claim("noop", "noop", False),
    Claim("noop", "standard", False, "aes-256-gcm"),
    Claim("noop", "noop", False, "aes-256-gcm"),
    Claim("noop", "standard", False, "chacha20-poly1305"),
    Claim("noop", "noop", True, "chacha20-poly1305"),
]


@pytest.mark.parametrize("retry", ["off", "on"])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: "-".join(map(str, vars(claim).values())))
def test_packets_prove_the_variant_and_initial_packets_stay_standard(
    serve: Serve, tmp_path: Path, claim: Claim, retry: str
) -> None:
    # one datagram at a time, for the relay
    offloads = ["--gso", "off", "--gro", "off"]
    server = serve(*claim.options(), *offloads, "--retry", retry, flavour=claim.flavour)
    with Relay(server.port) as relay:
        (seen,) = server.fetch(*claim.options(), *offloads, "--bytes", str(1 << 18), port=relay.port)
    assert (seen["ok"], seen["content_ok"]) == (True, True)
    (accepted,) = server.stop()
    shown = (claim.aead, "on" if claim.header_protection else "off")
    assert (seen["aead"], seen["header_protection"]) == (accepted["aead"], accepted["header_protection"]) == shown
    capture = pcap(tmp_path / "proof.pcap", relay.frames)
    proof = examine(capture, server_ip=SERVER[0], server_port=SERVER[1], transport="quic", mtu=1500)
    assert check(proof, claim) == []
    assert proof.initial_standard is True


def test_the_noop_flavour_is_the_stock_build_and_the_provider(noop: Path) -> None:
    stock = making.build_directory(PROJECT, "openssl", "stock")
    own = {path.relative_to(noop) for path in noop.rglob("*") if path.is_file()}
    reused = {path.relative_to(stock) for path in stock.rglob("*") if path.is_file()}
    assert own - reused == {Path("lib/quicbed-noop.so"), Path("etc/openssl-noop.cnf")}
    assert reused <= own
    for path in reused - {Path("build.json"), Path(build_store.MANIFEST)}:
        assert filecmp.cmp(noop / path, stock / path, shallow=False), path


@pytest.mark.usefixtures("build")
def test_a_program_is_the_same_from_any_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "workflow" / "endpoints", clone / "workflow" / "endpoints")
    shutil.copytree(ROOT / "workflow" / "crypto", clone / "workflow" / "crypto")
    openssl = components.directory(PROJECT, "openssl")
    made = []
    for root in (ROOT, clone):
        own = root / "workflow" / "endpoints" / "openssl"
        sources = [*sorted(set(own.glob("*.c")) - {own / "server.c"}), root / recipe.CONTEXT]
        made.append(tmp_path / f"client-{len(made)}")
        argv = recipe.program(root, openssl, sources, version="1", tls="OpenSSL 1", out=made[-1])
        subprocess.run(argv, cwd=root, check=True)
    assert filecmp.cmp(*made, shallow=False)


def test_only_what_a_switch_changes_passes_through_the_provider(noop: Path, tmp_path: Path) -> None:
    program = compiled("openssl_probe.c", tmp_path / "probe")
    files = {"OPENSSL_CONF": str(noop / "etc" / "openssl-noop.cnf"), "OPENSSL_MODULES": str(noop / "lib")}
    aeads = ("AES-128-GCM", "AES-256-GCM", "ChaCha20-Poly1305")
    masks = ("AES-128-ECB", "AES-256-ECB", "AES-128-CTR", "AES-256-CTR", "ChaCha20")
    for aead, protection in itertools.product(("standard", "noop"), ("on", "off")):
        switches = {"QUICBED_AEAD": aead, "QUICBED_HEADER_PROTECTION": protection}
        seen = {}
        for cipher in (*aeads, *masks):
            done = subprocess.run([str(program), cipher, "16"], env=files | switches, capture_output=True, check=True)
            seen[cipher] = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
        ours = {cipher for cipher, told in seen.items() if told["provider"] == "quicbed-noop"}
        assert ours == {*(aeads if aead == "noop" else ()), *(masks if protection == "off" else ())}
        # zero bytes as the key, which no connection has derived
        assert "00" * 16 not in {told["ciphertext"] for told in seen.values()}


def test_noop_holds_for_more_connections_than_the_provider_remembers(serve: Serve) -> None:
    server = serve(*NOOP, flavour="noop")
    # a connection has nine secrets of Initial packets or more; the provider remembers 256
    seen = server.fetch(*NOOP, "--connections", "60", "--bytes", "10000")
    assert [connection["error"] for connection in seen] == [None] * 60
    assert len(server.stop()) == 60


def test_noop_holds_after_a_key_update(serve: Serve, noop: Path, other_client: Path) -> None:
    server = serve(*NOOP, "--gso", "off", "--gro", "off", flavour="noop")
    switches = {"QUICBED_AEAD": "noop", "QUICBED_HEADER_PROTECTION": "off"}
    files = {"OPENSSL_CONF": str(noop / "etc" / "openssl-noop.cnf"), "OPENSSL_MODULES": str(noop / "lib")}
    with Relay(server.port) as relay:
        argv = [str(other_client), "127.0.0.1", str(relay.port), "x25519", "200000"]
        done = subprocess.run(argv, env=os.environ | files | switches, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, b"x25519\n200000\n")
    assert server.stop()[0]["bytes_sent"] == 200_000
    # headers of Ethernet, IPv4 and UDP
    content = [frame[42:] for frame in relay.frames if b"quicbed00000" in frame]
    assert content
    # short headers with key phase 1 (RFC 9000, section 17.3.1)
    assert {datagram[0] & 0x84 for datagram in content} == {0x04}
    assert {datagram[-16:] for datagram in content} == {NOOP_TAG}


class Withheld:
    """Holds the first bytes of a download back until the server has nothing else to send for lack of credit.

    Then the client gets them, and nothing more until the server has new credit.
    """

    # a STREAM frame without an offset (RFC 9000, section 19.8) on stream 0, with or without a length
    beginning = re.compile(rb"[\x08\x0a]\x00.{0,2}quicbed00000000\n", re.DOTALL)

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self.released = self.credited = False

    def __call__(self, datagram: bytes) -> list[bytes]:
        begins = self.beginning.search(datagram) is not None
        if b"quicbed" in datagram and not begins:
            self.credited = self.released
            self.held.clear()
        if self.credited or not (begins or self.released):
            return [datagram]
        if self.released:
            return []
        self.held.append(datagram)
        self.released = len(self.held) == 3
        # one that the client has noticed to be missing, so that it acknowledges it at once
        return [self.held[1]] if self.released else []


def test_a_server_is_told_at_once_of_the_credit_it_gets(serve: Serve) -> None:
    plain = [*NOOP, "--gso", "off", "--gro", "off"]
    server = serve(*plain, flavour="noop")
    withheld = Withheld()
    with Relay(server.port, withheld) as relay:
        # half of OpenSSL's idle timeout is 15 s, when a PING would bring the credit with it
        (seen,) = server.fetch(*plain, "--timeout", "10", "--bytes", str(1 << 20), port=relay.port)
    assert withheld.credited
    assert (seen["error"], seen["content_ok"]) == (None, True)


def test_a_server_sends_at_once_what_openssl_has_taken_of_an_answer(serve: Serve) -> None:
    server = serve()
    # larger than what OpenSSL keeps of a stream; only where all that was received is acknowledged as the answer begins
    # does no acknowledgement take its beginning along, which is so in about every fourth download
    for _ in range(24):
        (seen,) = server.fetch("--timeout", "5", "--bytes", str(1 << 20))
        assert (seen["error"], seen["content_ok"]) == (None, True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--aead", "noop"), "OpenSSL's AES-128-GCM is standard, but --aead is noop"),
        (("--header-protection", "off"), "AES-128-ECB is on, but --header-protection is off"),
    ],
)
def test_a_configuration_that_does_something_else_is_noticed(
    noop: Path, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    copy = tmp_path / "build"
    shutil.copytree(noop, copy)
    config = copy / "etc" / "openssl-noop.cnf"
    switched_off = {"$ENV::QUICBED_AEAD": "standard", "$ENV::QUICBED_HEADER_PROTECTION": "on"}
    text = config.read_text(encoding="utf-8")
    for variable, value in switched_off.items():
        assert variable in text
        text = text.replace(variable, value)
    config.write_text(text, encoding="utf-8")
    argv = [str(copy / "bin" / "client"), "--connect", "127.0.0.1:1", "--server-name", "localhost"]
    argv += ["--ca", str(made("rsa-2048") / "ca.pem"), "--bytes", "1", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert reason in json.loads(done.stdout.splitlines()[1])["reason"]


def test_a_noop_provider_that_cannot_be_loaded_is_one_clear_error(noop: Path, tmp_path: Path) -> None:
    copy = tmp_path / "build"
    shutil.copytree(noop, copy)
    (copy / "lib" / "quicbed-noop.so").write_bytes(b"not a library")
    argv = [str(copy / "bin" / "client"), "--connect", "127.0.0.1:1", "--server-name", "localhost"]
    argv += ["--ca", str(made("rsa-2048") / "ca.pem"), "--bytes", "1"]
    for options in (NOOP[:2], NOOP[2:]):
        done = subprocess.run([*argv, *options], capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "cannot load quicbed-noop.so" in line
        assert "build this flavour again" in line
