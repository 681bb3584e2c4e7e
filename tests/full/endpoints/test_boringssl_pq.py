"""BoringSSL patched with liboqs: handshakes in memory, key shares, keys and certificates of every algorithm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clone import NATIVE, ROOT
from quicbed.builds import components
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.measure.certificates import Tools

PROJECT = Project(ROOT)
CORE = ROOT / "workflow" / "crypto" / "pq"
PROBE = NATIVE / "boringssl_pq_probe.cc"
TABLE = algorithms.read(ROOT)
# BoringSSL has no X448 and liboqs no (EC)DH.
GROUPS = {group.name: group for group in TABLE.groups if group.name != "x448"}
SIGNATURES = {signature.name: signature for signature in TABLE.signatures}
UNHASHED = [name for name, signature in SIGNATURES.items() if signature.liboqs or name == "ed25519"]

pytestmark = pytest.mark.timeout(1800)

Probe = Callable[..., "subprocess.CompletedProcess[str]"]
Made = Callable[[str], Path]


@pytest.fixture(scope="session")
def probe(vendor: Path, tmp_path_factory: pytest.TempPathFactory) -> Probe:
    """Runs boringssl_pq_probe, linked with the component and the core."""
    directory = tmp_path_factory.mktemp("boringssl-pq")
    jobs, log = os.cpu_count() or 1, directory / "build.log"
    boringssl = components.provide(PROJECT, "boringssl-pq", jobs=jobs, log=log)
    liboqs = components.provide(PROJECT, "liboqs", jobs=jobs, log=log)
    # The interface of key shares is not among what the patches change: the endpoints compile against this source too.
    (source,) = vendor.glob("boring-sys-*/deps/boringssl")
    core, program = directory / "pq.o", directory / "probe"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    compile_core: list[str | Path] = ["gcc", "-std=c11", "-O1", *warnings, f"-I{liboqs / 'include'}"]
    compile_core += ["-c", CORE / "pq.c", "-o", core]
    link: list[str | Path] = ["g++", "-std=c++17", "-O1", "-DNDEBUG", "-fno-rtti", *warnings, f"-I{CORE}"]
    link += ["-isystem", boringssl / "include", "-isystem", source, "-o", program, PROBE, core]
    link += [boringssl / "lib" / "libssl.a", boringssl / "lib" / "libcrypto.a", liboqs / "lib" / "liboqs.a", "-pthread"]
    for argv in (compile_core, link):
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        argv = [str(program), *map(str, arguments)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    return run


def code_point(algorithm: algorithms.Group | algorithms.Signature) -> str:
    return f"{algorithm.code_point:04x}"


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


def test_tls_knows_the_algorithms_of_the_table(probe: Probe) -> None:
    groups = lines(probe("groups"))
    assert list(groups) == [code_point(group) for group in GROUPS.values()]
    of_liboqs = [group for group in GROUPS.values() if group.liboqs]
    assert [groups[code_point(group)] for group in of_liboqs] == [group.tls_name for group in of_liboqs]
    expected = {code_point(signature): signature.tls_name for signature in SIGNATURES.values()}
    assert lines(probe("signatures")) == expected


@pytest.mark.parametrize("name", GROUPS)
def test_handshake_with_every_group(probe: Probe, made: Made, name: str) -> None:
    scheme, directory = code_point(SIGNATURES["ecdsa-p-256"]), made("ecdsa-p-256")
    group = code_point(GROUPS[name])
    done = probe("handshake", group, scheme, directory)
    assert done.returncode == 0, done.stderr
    # the server asks for the group after a share of another
    other = code_point(GROUPS["p-256" if name == "x25519" else "x25519"])
    done = probe("handshake", group, scheme, directory, other)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SIGNATURES)
def test_handshake_with_every_signature(probe: Probe, made: Made, name: str) -> None:
    done = probe("handshake", code_point(GROUPS["x25519"]), code_point(SIGNATURES[name]), made(name))
    assert done.returncode == 0, done.stderr


def test_largest_group_and_signature_together(probe: Probe, made: Made) -> None:
    group, name = GROUPS["p-521-hqc-256"], "sphincs-shake-256f"
    done = probe("handshake", code_point(group), code_point(SIGNATURES[name]), made(name))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name, group in GROUPS.items() if group.liboqs])
def test_key_shares_are_those_of_the_core(probe: Probe, name: str) -> None:
    """BoringSSL finds the secret of what the core and the (EC)DH group encapsulate, and refuses wrong lengths."""
    done = probe("share", code_point(GROUPS[name]))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "client", "server", "secret"),
    [
        # draft-ietf-tls-ecdhe-mlkem, section 4
        ("x25519-mlkem768", 1184 + 32, 1088 + 32, 64),
        ("p-256-mlkem768", 65 + 1184, 65 + 1088, 64),
        ("p-384-mlkem1024", 97 + 1568, 97 + 1568, 80),
        # HQC's specification of 2023, table 5
        ("hqc-256", 7245, 14421, 64),
        ("p-521-hqc-256", 133 + 7245, 133 + 14421, 66 + 64),
        # HQC's specification of 2020
        ("hqc-256-avx2", 7245, 14469, 64),
    ],
)
def test_sizes_of_key_shares(probe: Probe, name: str, client: int, server: int, secret: int) -> None:
    done = probe("share", code_point(GROUPS[name]))
    assert done.stdout.split() == [str(client), str(server), str(secret)], done.stderr


@pytest.mark.parametrize("name", UNHASHED)
def test_certificates_and_keys_of_openssl(probe: Probe, made: Made, name: str) -> None:
    """They verify and sign; changed signatures, keys of another certificate and keys of a wrong length do not."""
    done = probe("certificate", code_point(SIGNATURES[name]), made(name))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("scheme", "certificate"),
    [
        ("falcon-512", "dilithium2"),
        ("dilithium2", "ecdsa-p-256"),
        ("ecdsa-p-256", "falcon-512"),
        ("dilithium3", "mldsa65"),
    ],
)
def test_a_key_signs_with_its_own_scheme_only(probe: Probe, made: Made, scheme: str, certificate: str) -> None:
    done = probe("handshake", code_point(GROUPS["x25519"]), code_point(SIGNATURES[scheme]), made(certificate))
    assert (done.returncode, done.stderr) == (1, "the server: NO_COMMON_SIGNATURE_ALGORITHMS\n")


def test_a_ca_of_another_key_is_refused(probe: Probe, made: Made, tmp_path: Path) -> None:
    name = "falcon-512"
    directory = tmp_path / "mixed"
    certificates.make(directory, SIGNATURES[name], Tools.provide(PROJECT, jobs=1, log=tmp_path / "log"))
    (directory / "ca.pem").write_bytes((made(name) / "ca.pem").read_bytes())
    done = probe("handshake", code_point(GROUPS["x25519"]), code_point(SIGNATURES[name]), directory)
    assert (done.returncode, done.stderr) == (1, "the client: CERTIFICATE_VERIFY_FAILED\n")
