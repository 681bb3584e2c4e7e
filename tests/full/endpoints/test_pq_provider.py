"""The OpenSSL provider: keys, certificates, handshakes and, against the interface to liboqs itself, right results."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from clone import NATIVE, ROOT
from quicbed.builds import components
from quicbed.config import algorithms
from quicbed.config.algorithms import Group, Signature
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.measure.certificates import CertificateError, Tools

PROJECT = Project(ROOT)
CORE = ROOT / "workflow" / "crypto" / "pq"
TABLE = algorithms.read(ROOT)
GROUPS = [group for group in TABLE.groups if group.liboqs and not group.liboqs.startswith("ML-")]
SIGNATURES = [
    signature for signature in TABLE.signatures if signature.liboqs and not signature.liboqs.startswith("ML-")
]
CURVES: dict[str, tuple[ec.EllipticCurve, int]] = {
    "p-256": (ec.SECP256R1(), 65),
    "p-384": (ec.SECP384R1(), 97),
    "p-521": (ec.SECP521R1(), 133),
}
MESSAGE = b"A Quantum of QUIC"
REFUSED = 3
"""Exit code of the probe when the provider refuses."""

pytestmark = pytest.mark.timeout(1800)
all_groups = pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
all_signatures = pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)


@pytest.fixture(scope="session")
def tools(vendor: Path, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """OpenSSL and the provider, built unless they are there."""
    log = tmp_path_factory.mktemp("components") / "build.log"
    return Tools.provide(PROJECT, jobs=os.cpu_count() or 1, log=log)


@pytest.fixture(scope="session")
def made(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Copies of the certificates of a signature algorithm, beside which OpenSSL can write."""
    directory = tmp_path_factory.mktemp("copies")

    def copy(name: str) -> Path:
        if not (directory / name).is_dir():
            shutil.copytree(made(name), directory / name)
        return directory / name

    return copy


Probe = Callable[..., list[bytes]]


@pytest.fixture(scope="session")
def program(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """provider_probe: a program with OpenSSL linked in statically that exports nothing, as nginx and our client are."""
    target = tmp_path_factory.mktemp("probe") / "provider_probe"
    prefix = tools.openssl.parents[1]
    argv = ["gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{prefix / 'include'}", "-o", str(target)]
    subprocess.run(
        [*argv, str(NATIVE / "provider_probe.c"), str(prefix / "lib" / "libcrypto.a"), "-pthread"], check=True
    )
    return target


@pytest.fixture(scope="session")
def probe(program: Path, tools: Tools) -> Probe:
    def ask(command: str, group: str, *values: bytes) -> list[bytes]:
        text = "".join(f"{value.hex()}\n" for value in values)
        done = subprocess.run(
            [str(program), command, group],
            input=text,
            env=tools.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == REFUSED:
            raise CertificateError(done.stderr)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return [bytes.fromhex(line) for line in done.stdout.splitlines()]

    return ask


class Core:
    """pq.h, from its own shared library."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.quicbed_kem_find.restype = ctypes.c_void_p
        self.library.quicbed_sig_find.restype = ctypes.c_void_p

    def _find(self, kind: str, name: str) -> ctypes.c_void_p:
        found = getattr(self.library, f"quicbed_{kind}_find")(name.encode())
        assert found, name
        return ctypes.c_void_p(found)

    def size(self, kind: str, name: str, what: str) -> int:
        function = getattr(self.library, f"quicbed_{kind}_{what}_bytes")
        function.restype = ctypes.c_size_t
        return int(function(self._find(kind, name)))

    def keypair(self, kind: str, name: str) -> tuple[bytes, bytes]:
        public, secret = (ctypes.create_string_buffer(self.size(kind, name, f"{p}_key")) for p in ("public", "secret"))
        assert getattr(self.library, f"quicbed_{kind}_keypair")(self._find(kind, name), public, secret) == 1
        return public.raw, secret.raw

    def encapsulate(self, name: str, public: bytes) -> tuple[bytes, bytes]:
        ciphertext = ctypes.create_string_buffer(self.size("kem", name, "ciphertext"))
        secret = ctypes.create_string_buffer(self.size("kem", name, "shared_secret"))
        assert self.library.quicbed_kem_encapsulate(self._find("kem", name), ciphertext, secret, public) == 1
        return ciphertext.raw, secret.raw

    def decapsulate(self, name: str, ciphertext: bytes, private: bytes) -> bytes:
        assert len(ciphertext) == self.size("kem", name, "ciphertext")
        secret = ctypes.create_string_buffer(self.size("kem", name, "shared_secret"))
        assert self.library.quicbed_kem_decapsulate(self._find("kem", name), secret, ciphertext, private) == 1
        return secret.raw

    def sign(self, name: str, message: bytes, private: bytes) -> bytes:
        signature = ctypes.create_string_buffer(self.size("sig", name, "signature"))
        length = ctypes.c_size_t()
        done = self.library.quicbed_sig_sign(
            self._find("sig", name), signature, ctypes.byref(length), message, ctypes.c_size_t(len(message)), private
        )
        assert done == 1
        return signature.raw[: length.value]

    def verify(self, name: str, message: bytes, signature: bytes, public: bytes) -> bool:
        sizes = [ctypes.c_size_t(len(value)) for value in (message, signature)]
        found = self._find("sig", name)
        return bool(self.library.quicbed_sig_verify(found, message, sizes[0], signature, sizes[1], public) == 1)


@pytest.fixture(scope="session")
def core(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Core:
    liboqs = components.directory(PROJECT, "liboqs")
    target = tmp_path_factory.mktemp("core") / "pq.so"
    argv = ["gcc", "-std=c11", "-O1", "-shared", "-fPIC", f"-I{CORE}", f"-I{liboqs / 'include'}", "-o", str(target)]
    subprocess.run([*argv, str(CORE / "pq.c"), str(liboqs / "lib" / "liboqs.a")], check=True)
    return Core(target)


@pytest.fixture(scope="session")
def pq_kat(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prints the first known answer of an algorithm."""
    liboqs, target = components.directory(PROJECT, "liboqs"), tmp_path_factory.mktemp("kat") / "pq_kat"
    prefix = tools.openssl.parents[1]
    includes = [f"-I{directory}" for directory in (CORE, liboqs / "include", prefix / "include")]
    sources = [str(NATIVE / "pq_kat.c"), str(CORE / "pq.c")]
    archives = [str(liboqs / "lib" / "liboqs.a"), str(prefix / "lib" / "libcrypto.a")]
    subprocess.run(
        ["gcc", "-std=c11", "-O1", *includes, "-o", str(target), *sources, *archives, "-pthread"], check=True
    )
    return target


def known_answer(pq_kat: Path, kind: str, name: str) -> dict[str, bytes]:
    done = subprocess.run([str(pq_kat), kind, name], capture_output=True, text=True, check=True)
    fields = re.findall(r"(?m)^(pk|sk|ct|ss|msg|sm) = ([0-9A-F]+)$", done.stdout)
    return {name: bytes.fromhex(value) for name, value in fields}


# Registration


def test_only_its_entry_point_is_exported(tools: Tools) -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(tools.provider)], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["OSSL_provider_init"]


def test_openssl_lists_every_group_and_signature_of_the_table(tools: Tools) -> None:
    groups = tools.run("list", "-tls-groups", "-tls1_3").strip().split(":")
    signatures = tools.run("list", "-tls-signature-algorithms").strip().split(":")
    assert {group.tls_name for group in TABLE.groups} <= set(groups)
    assert {signature.tls_name for signature in TABLE.signatures} <= set(signatures)
    assert "quicbed-pq" in tools.run("list", "-providers")


def test_what_openssl_has_itself_is_left_to_it(tools: Tools) -> None:
    for command in ("-kem-algorithms", "-signature-algorithms"):
        own = [line for line in tools.run("list", command).splitlines() if line.endswith("@ quicbed-pq")]
        assert own
        assert not [line for line in own if "kem" in line.lower() or "mldsa" in line.lower() or "rsa" in line.lower()]


# Key exchange


@all_groups
def test_ciphertexts_of_the_provider_mean_to_the_core_what_they_mean_here(
    probe: Probe, core: Core, group: Group
) -> None:
    assert group.liboqs
    public, private = core.keypair("kem", group.liboqs)
    if group.classical is None:
        ciphertext, secret = probe("encapsulate", group.tls_name, public)
        assert secret == core.decapsulate(group.liboqs, ciphertext, private)
        return
    curve, size = CURVES[group.classical]
    key = ec.generate_private_key(curve)
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    ciphertext, secret = probe("encapsulate", group.tls_name, point + public)
    peer = ec.EllipticCurvePublicKey.from_encoded_point(curve, ciphertext[:size])
    assert secret == key.exchange(ec.ECDH(), peer) + core.decapsulate(group.liboqs, ciphertext[size:], private)


@all_groups
def test_the_provider_decapsulates_what_the_core_encapsulated(
    program: Path, tools: Tools, core: Core, group: Group
) -> None:
    assert group.liboqs
    argv = [str(program), "exchange", group.tls_name]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=tools.environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        public = bytes.fromhex(process.stdout.readline())
        if group.classical is None:
            ciphertext, secret = core.encapsulate(group.liboqs, public)
        else:
            curve, size = CURVES[group.classical]
            key = ec.generate_private_key(curve)
            peer = ec.EllipticCurvePublicKey.from_encoded_point(curve, public[:size])
            ciphertext, secret = core.encapsulate(group.liboqs, public[size:])
            ciphertext = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint) + ciphertext
            secret = key.exchange(ec.ECDH(), peer) + secret
        output, _ = process.communicate(f"{ciphertext.hex()}\n", timeout=60)
    assert process.returncode == 0
    assert bytes.fromhex(output) == secret


@pytest.mark.parametrize("group", [group for group in GROUPS if not group.hybrid], ids=lambda group: group.name)
def test_known_ciphertext(probe: Probe, pq_kat: Path, group: Group) -> None:
    """The first entry of the response file of the algorithm's authors, whose digest test_pq_core.py compares."""
    assert group.liboqs
    known = known_answer(pq_kat, "kem", group.liboqs)
    assert probe("decapsulate", group.tls_name, known["pk"], known["sk"], known["ct"]) == [known["ss"]]


@all_groups
def test_wrong_lengths_and_changed_ciphertexts_are_refused(program: Path, tools: Tools, group: Group) -> None:
    done = subprocess.run(
        [str(program), "abuse", group.tls_name], env=tools.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("name", ["kyber768", "p-384-kyber768"])
def test_keys_of_two_processes_differ_after_fork(probe: Probe, name: str) -> None:
    keys = probe("fork", TABLE.group(name).tls_name)
    assert len(keys) == 3
    size = CURVES["p-384"][1]
    assert len({key[:size] for key in keys}) == 3  # the point, or the beginning of the matrix row
    assert len({key[size:] for key in keys}) == 3


@pytest.mark.parametrize("name", ["p-256-kyber512", "p-521-hqc-256"])
def test_a_point_that_is_not_on_the_curve_is_refused(probe: Probe, core: Core, name: str) -> None:
    group = TABLE.group(name)
    assert group.liboqs
    assert group.classical
    public, _ = core.keypair("kem", group.liboqs)
    _, size = CURVES[group.classical]
    with pytest.raises(CertificateError, match=r"elliptic-curve operation failed.*reading a point"):
        probe("encapsulate", group.tls_name, b"\x04" + b"\x01" * (size - 1) + public)


# Signatures and keys


def keys_of(directory: Path, tools: Tools) -> tuple[bytes, bytes]:
    """Public and private key of a server in DER."""
    command = ["pkey", "-in", "server.key", "-outform", "DER", "-out"]
    tools.run(*command, "public.der", "-pubout", cwd=directory)
    tools.run(*command, "private.der", cwd=directory)
    return (directory / "public.der").read_bytes(), (directory / "private.der").read_bytes()


@all_signatures
def test_keys_have_the_published_format(
    made: Callable[[str], Path], tools: Tools, core: Core, signature: Signature
) -> None:
    assert signature.liboqs
    public, private = keys_of(made(signature.name), tools)
    public_bytes = core.size("sig", signature.liboqs, "public_key")
    both_bytes = public_bytes + core.size("sig", signature.liboqs, "secret_key")
    key, both = public[-public_bytes:], private[-both_bytes:]
    identifier = der(0x30, signature.oid_der)
    assert public == der(0x30, identifier + der(0x03, b"\0" + key))
    assert private == der(0x30, b"\x02\x01\x00" + identifier + der(0x04, der(0x04, both)))
    assert both.endswith(key)


def der(tag: int, content: bytes) -> bytes:
    """A DER element (X.690, 8.1)."""
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    octets = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(octets)]) + octets + content


@all_signatures
def test_keys_survive_every_conversion(made: Callable[[str], Path], tools: Tools, signature: Signature) -> None:
    directory = made(signature.name)
    _, private = keys_of(directory, tools)
    tools.run("pkey", "-inform", "DER", "-in", "private.der", "-out", "again.pem", cwd=directory)
    assert (directory / "again.pem").read_text() == (directory / "server.key").read_text()
    tools.run("pkey", "-pubin", "-inform", "DER", "-in", "public.der", "-out", "public.pem", cwd=directory)
    assert tools.run("pkey", "-in", "server.key", "-pubout", cwd=directory) == (directory / "public.pem").read_text()
    assert "Key is valid" in tools.run("pkey", "-in", "server.key", "-check", "-noout", cwd=directory)
    text = tools.run("pkey", "-in", "server.key", "-text", "-noout", cwd=directory)
    octets = re.sub(r"[^0-9a-f]", "", "".join(re.findall(r"(?m)^    (.*)$", text)))
    assert bytes.fromhex(octets) == private[-len(octets) // 2 :]


@all_signatures
def test_signatures_agree_with_the_core(
    made: Callable[[str], Path], tools: Tools, core: Core, signature: Signature
) -> None:
    assert signature.liboqs
    directory = made(signature.name)
    public, private = keys_of(directory, tools)
    public_key = public[-core.size("sig", signature.liboqs, "public_key") :]
    (directory / "message").write_bytes(MESSAGE)
    with_key = ["pkeyutl", "-rawin", "-in", "message", "-inkey"]
    tools.run(*with_key, "server.key", "-sign", "-out", "signature", cwd=directory)
    signed = (directory / "signature").read_bytes()
    assert len(signed) == core.size("sig", signature.liboqs, "signature")
    assert core.verify(signature.liboqs, MESSAGE, signed, public_key)

    size = core.size("sig", signature.liboqs, "secret_key")
    secret = private[-len(public_key) - size : -len(public_key)]
    check = [*with_key, "server.key", "-verify", "-sigfile", "other"]
    other = core.sign(signature.liboqs, MESSAGE, secret)
    (directory / "other").write_bytes(other)
    assert "Verified Successfully" in tools.run(*check, cwd=directory)
    middle = len(other) // 2
    changed = other[:middle] + bytes([other[middle] ^ 1]) + other[middle + 1 :]
    for wrong in (b"", other[:1], other[:-1], other + b"\0", changed, bytes(len(other))):
        (directory / "other").write_bytes(wrong)
        assert refused(tools, directory, *check), len(wrong)


def refused(tools: Tools, directory: Path, *arguments: str) -> bool:
    """Whether a command fails with a message instead of doing its work or crashing."""
    done = subprocess.run(
        [str(tools.openssl), *arguments], cwd=directory, env=tools.environment, capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.returncode
    return done.returncode == 1


@all_signatures
def test_known_signature(tools: Tools, core: Core, pq_kat: Path, signature: Signature, tmp_path: Path) -> None:
    """The first entry of the response file of the algorithm's authors, whose digest test_pq_core.py compares."""
    assert signature.liboqs
    known = known_answer(pq_kat, "sig", signature.liboqs)
    size = core.size("sig", signature.liboqs, "signature")
    info = der(0x30, der(0x30, signature.oid_der) + der(0x03, b"\0" + known["pk"]))
    (tmp_path / "public").write_bytes(info)
    (tmp_path / "message").write_bytes(known["msg"])
    (tmp_path / "signature").write_bytes(known["sm"][:size])
    command = ["pkeyutl", "-verify", "-rawin", "-in", "message", "-pubin", "-keyform", "DER", "-inkey", "public"]
    assert "Verified Successfully" in tools.run(*command, "-sigfile", "signature", cwd=tmp_path)
    (tmp_path / "message").write_bytes(known["msg"][:-1])
    assert refused(tools, tmp_path, *command, "-sigfile", "signature")


@pytest.mark.parametrize("name", ["dilithium3", "falcon-512", "sphincs-sha2-128f"])
def test_damaged_keys_are_refused(made: Callable[[str], Path], tools: Tools, name: str, tmp_path: Path) -> None:
    public, private = keys_of(made(name), tools)
    for data, options in ((public, ["-pubin"]), (private, [])):
        header = data.index(TABLE.signature(name).oid_der)
        damaged = {
            "truncated": data[:-1],
            "half": data[: len(data) // 2],
            "header only": data[:header],
            "longer": data + b"\0",
            "one octet less": shortened(data),
            "another algorithm": data.replace(TABLE.signature(name).oid_der, algorithms.encode_oid("1.3.9999.99.99")),
        }
        for what, content in damaged.items():
            (tmp_path / "key").write_bytes(content)
            command = ["pkey", "-inform", "DER", *options, "-in", "key", "-noout"]
            # openssl itself leaves alone what follows a structure
            assert refused(tools, tmp_path, *command) or what == "longer", what


def shortened(data: bytes) -> bytes:
    """The structure with lengths that fit, but one octet of the key missing."""
    first = 2 + (data[1] & 0x7F) if data[1] & 0x80 else 2
    content = data[first:]
    algorithm = content.index(b"\x06") - 2
    end = algorithm + 2 + content[algorithm + 1]
    tag, rest = content[end], content[end:]
    inner = rest[2 + (rest[1] & 0x7F) if rest[1] & 0x80 else 2 :]
    if tag == 0x04:
        octets = inner[2 + (inner[1] & 0x7F) if inner[1] & 0x80 else 2 :]
        inner = der(0x04, octets[:-1])
    else:
        inner = inner[:-1]
    return der(0x30, content[:end] + der(tag, inner))


def test_private_keys_are_not_written_in_the_clear_when_encryption_was_asked_for(tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="private keys cannot be written encrypted"):
        tools.run("genpkey", "-algorithm", "dilithium2", "-aes256", "-pass", "pass:x", "-out", "key", cwd=tmp_path)
    assert not (tmp_path / "key").exists() or not (tmp_path / "key").read_bytes()


def test_a_digest_is_refused(made: Callable[[str], Path], tools: Tools) -> None:
    directory = made("dilithium2")
    (directory / "message").write_bytes(MESSAGE)
    command = ["dgst", "-sha256", "-sign", "server.key", "-out", "digest.sig", "message"]
    assert refused(tools, directory, *command)


# Handshakes


def handshake(tools: Tools, directory: Path, group: Group, signature: Signature) -> str:
    """What openssl s_client tells of a TLS 1.3 handshake with openssl s_server over loopback."""
    argv = [str(tools.openssl), "s_server", "-accept", "127.0.0.1:0", "-tls1_3", "-naccept", "1", "-groups"]
    argv += [group.tls_name, "-cert", "server.pem", "-key", "server.key", "-sigalgs", signature.tls_name]
    with subprocess.Popen(
        argv, cwd=directory, env=tools.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = next(line.split()[1] for line in server.stdout if line.startswith("ACCEPT "))
            client = [str(tools.openssl), "s_client", "-connect", address, "-tls1_3", "-groups", group.tls_name]
            client += ["-sigalgs", signature.tls_name, "-CAfile", "ca.pem", "-verify_return_error"]
            done = subprocess.run(
                [*client, "-verify_hostname", "server", "-servername", "server"],
                cwd=directory,
                env=tools.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("group", TABLE.groups, ids=lambda group: group.name)
def test_handshake_with_every_group(made: Callable[[str], Path], tools: Tools, group: Group) -> None:
    seen = handshake(tools, made("rsa-2048"), group, TABLE.signature("rsa-2048"))
    assert "Verification: OK" in seen
    if group.liboqs:
        assert f"Negotiated TLS1.3 group: {group.tls_name}\n" in seen
    else:
        names = {"p-256": "prime256v1", "p-384": "secp384r1", "p-521": "secp521r1", "x25519": "X25519", "x448": "X448"}
        assert re.search(rf"Peer Temp Key: .*{names[group.name]}", seen)


@pytest.mark.parametrize("signature", TABLE.signatures, ids=lambda signature: signature.name)
def test_handshake_with_every_signature(made: Callable[[str], Path], tools: Tools, signature: Signature) -> None:
    seen = handshake(tools, made(signature.name), TABLE.group("x25519"), signature)
    assert "Verification: OK" in seen
    assert f"Peer signature type: {signature.tls_name}\n" in seen


def test_a_certificate_of_another_authority_is_refused(made: Callable[[str], Path], tools: Tools) -> None:
    with pytest.raises(CertificateError, match="verification failed"):
        tools.run("verify", "-CAfile", made("dilithium2") / "ca.pem", made("dilithium3") / "server.pem")


def test_a_certificate_with_a_changed_signature_is_refused(
    made: Callable[[str], Path], tools: Tools, tmp_path: Path
) -> None:
    directory = made("falcon-512")
    certificate = x509.load_pem_x509_certificate((directory / "server.pem").read_bytes())
    data = bytearray(certificate.public_bytes(Encoding.DER))
    data[-100] ^= 1
    (tmp_path / "server.der").write_bytes(data)
    with pytest.raises(CertificateError, match="provider signature failure"):
        tools.run("verify", "-CAfile", directory / "ca.pem", tmp_path / "server.der")


# Which OpenSSL


def test_the_provider_of_this_openssl_is_accepted(tools: Tools) -> None:
    assert certificates.provider_problem(tools.openssl, tools.provider) is None


def test_a_provider_built_for_another_openssl_is_refused(tools: Tools, tmp_path: Path) -> None:
    version = tools.run("version").split()[1]
    other = version[:-1] + ("8" if version[-1] == "9" else "9")
    content = tools.provider.read_bytes()
    assert f"\0{version}\0".encode() in content
    copy = tmp_path / tools.provider.name
    copy.write_bytes(content.replace(f"\0{version}\0".encode(), f"\0{other}\0".encode()))
    found = certificates.provider_problem(tools.openssl, copy)
    assert found is not None
    assert f"is built for OpenSSL {other}, but {tools.openssl} is OpenSSL {version}" in found
    assert "\n" not in found
    # OpenSSL goes on without a provider that its configuration names, but not in silence.
    environment = tools.environment | {"OPENSSL_MODULES": str(tmp_path)}
    argv = [str(tools.openssl), "list", "-providers"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == f"quicbed-pq: built for OpenSSL {other}, loaded by OpenSSL {version}; build it again\n"
    assert "quicbed-pq" not in done.stdout


def test_a_file_that_is_no_provider_is_named(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "quicbed-pq.so"
    assert (certificates.provider_problem(tools.openssl, file) or "").startswith(f"{file}: is missing;")
    file.write_text("not a library")
    assert (certificates.provider_problem(tools.openssl, file) or "").startswith(f"{file}: cannot be loaded by ")
