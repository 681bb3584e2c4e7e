"""aioquic, and the recipe for endpoints in Python: how they are built, and what aioquic does beyond the contract."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import socket
import statistics
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from benchmarks import examples
from clone import ROOT
from loopback import Loopback, Serve, connections, read_events
from quicbed.builds import kit, making
from quicbed.builds.kit import BuildError, Job
from quicbed.builds.recipes import python
from quicbed.config.model import Project
from quicbed.measure import certificates

PROJECT = Project(ROOT)
SUPPORTS = PROJECT.libraries["aioquic"].supports if "aioquic" in PROJECT.libraries else None
CLIENT = """\
import json, sys
from parcel import WEIGHT
from quicbed_shared import SIDE

def main():
    try:
        from .features import extra
    except ImportError:
        extra = None
    seen = {"weight": WEIGHT, "side": SIDE, "extra": extra is not None, "path": sys.path, "arguments": sys.argv[1:]}
    print(json.dumps(seen))
    return 3
"""


def wheel(directory: Path, name: str, version: str, text: str) -> str:
    """Write a wheel with one module; returns its SHA-256."""
    meta = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{meta}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{meta}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for file, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{file},sha256={digest},{len(content)}\n"
    archive = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as made:
        for file, content in {**files, f"{meta}/RECORD": record + f"{meta}/RECORD,,\n"}.items():
            made.writestr(file, content)
    return hashlib.sha256(archive.read_bytes()).hexdigest()


class Example:
    """A project with one library in Python, whose packages are found in a directory instead of an index."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packages = root / "packages"
        self.endpoint = root / kit.ENDPOINTS / "example"
        (self.endpoint / "features").mkdir(parents=True)
        self.packages.mkdir()
        (root / "shared").mkdir()
        shutil.copytree(ROOT / "config", root / "config")
        for part in ("crypto", "quicbed/builds/recipes", "sources"):
            shutil.copytree(ROOT / "workflow" / part, root / "workflow" / part)
        (root / "shared" / "quicbed_shared.py").write_text("SIDE = 'left'\n", encoding="utf-8")
        for name in ("client", "server"):
            (self.endpoint / f"{name}.py").write_text(CLIENT, encoding="utf-8")
        for name in ("__init__", "extra", "other"):
            (self.endpoint / "features" / f"{name}.py").write_text("", encoding="utf-8")
        self.sha256 = wheel(self.packages, "parcel", "1.5", "WEIGHT = 7\n")
        self.lock(f"parcel==1.5 \\\n    --hash=sha256:{self.sha256}\n    # via -r requirements.in\n")
        (self.endpoint / "requirements.in").write_text("# the library\nParcel==1.5\n", encoding="utf-8")
        self.describe(features=["extra"])

    def lock(self, text: str) -> None:
        (self.endpoint / "requirements.txt").write_text(text, encoding="utf-8")

    def describe(self, features: list[str]) -> None:
        """Write the library's configuration, that of aioquic but for these."""
        file = self.root / "config" / "libraries" / "example.yaml"
        data = yaml.safe_load((ROOT / "config" / "libraries" / "aioquic.yaml").read_text(encoding="utf-8"))
        flavour = {"sources": ["shared"], "estimate": {"minutes": 1, "disk_mb": 1}}
        data |= {"endpoint": "example", "flavours": {"stock": flavour, "extra": {**flavour, "features": features}}}
        file.write_text(yaml.safe_dump(data), encoding="utf-8")

    def build(self, flavour: str = "stock") -> Path:
        """Build a flavour; returns where it was moved to afterwards."""
        project = Project(self.root)
        out = self.root / f"{flavour}.partial"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        log = self.root / "build.log"
        log.write_text("", encoding="utf-8")
        told = python.build(Job(project, "example", flavour, self.root, {}, out, 1, log))
        (out / "build.json").write_text(json.dumps(told), encoding="utf-8")
        return out.rename(self.root / flavour)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    made = Example(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.packages))
    return made


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_a_build_runs_where_it_was_moved_to_and_knows_nothing_else(example: Example, tmp_path: Path) -> None:
    moved = example.build()
    (tmp_path / "parcel.py").write_text("WEIGHT = 1\n", encoding="utf-8")
    before = snapshot(moved)
    argv = [str(moved / "bin" / "client"), "--a", "b c"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=20, check=False)
    assert done.returncode == 3, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["weight"], seen["side"], seen["arguments"]) == (7, "left", ["--a", "b c"])
    assert str(tmp_path) not in seen["path"]
    assert not [entry for entry in seen["path"] if "site-packages" in entry or "dist-packages" in entry]
    assert snapshot(moved) == before, "byte code was made ahead"


def test_byte_code_is_used_without_a_look_at_the_source(example: Example) -> None:
    moved = example.build()
    for file in ("parcel.py", "endpoint/client.py", "quicbed_shared.py"):
        source = moved / "lib" / file
        (compiled,) = (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")
        # PEP 552: bit 0 says that a hash of the source is kept, bit 1 that it is to be checked
        assert int.from_bytes(compiled.read_bytes()[4:8], "little") == 1
        assert str(example.root).encode() not in compiled.read_bytes()


def test_a_feature_is_in_its_own_flavour_only(example: Example) -> None:
    for flavour, expected in (("stock", ["__init__"]), ("extra", ["__init__", "extra"])):
        moved = example.build(flavour)
        features = moved / "lib" / "endpoint" / "features"
        assert sorted(file.stem for file in features.glob("*.py")) == expected
        done = subprocess.run([str(moved / "bin" / "server")], capture_output=True, text=True, timeout=20, check=False)
        assert json.loads(done.stdout)["extra"] == (flavour == "extra")


def test_a_build_records_interpreter_and_archives(example: Example) -> None:
    told = json.loads((example.build() / "build.json").read_text(encoding="utf-8"))
    (archive,) = told["archives"]
    assert archive == {"name": "parcel", "version": "1.5", "file": archive["file"], "sha256": example.sha256}
    assert archive["file"] == "parcel-1.5-py3-none-any.whl"
    assert Path(told["interpreter"]).is_file()


def test_version_and_sources_come_from_the_lock(example: Example) -> None:
    project = Project(example.root)
    assert python.version(project, "example") == "1.5"
    assert python.sources(project, "example") == [{"name": "parcel", "version": "1.5", "checksum": example.sha256}]
    before = making.build_id(project, "example", "stock")
    example.lock(f"parcel==1.5 --hash=sha256:{'0' * 64} --hash=sha256:{example.sha256}\n")
    assert making.build_id(project, "example", "stock") != before


def test_a_launcher_without_its_interpreter_says_so(example: Example) -> None:
    launcher = example.build() / "bin" / "client"
    interpreter = json.loads((launcher.parents[1] / "build.json").read_text(encoding="utf-8"))["interpreter"]
    launcher.write_text(launcher.read_text(encoding="utf-8").replace(interpreter, "/nowhere/python"), encoding="utf-8")
    done = subprocess.run([str(launcher)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "interpreter of this build is gone: /nowhere/python" in done.stderr


@pytest.mark.parametrize(
    ("lock", "reason"),
    [
        (f"parcel==1.5 --hash=sha256:{'0' * 64}\n", "parcel.* is not what the lock was made of"),
        (f"absent==1.0 --hash=sha256:{'0' * 64}\n", "No matching distribution found for absent==1.0"),
        ("parcel==1.5\n", "parcel has no SHA-256; run tools/compile_locks"),
        ("parcel>=1\n", "`parcel>=1` is not pinned to a version; run tools/compile_locks"),
        ("# nothing\n", "names no package; run tools/compile_locks"),
    ],
    ids=["checksum", "absent", "no-hash", "no-version", "empty"],
)
def test_a_lock_that_cannot_be_installed_is_one_clear_line(example: Example, lock: str, reason: str) -> None:
    example.lock(lock)
    with pytest.raises(BuildError, match=reason) as raised:
        example.build()
    assert "requirements.txt" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_missing_lock_module_or_feature_is_named(example: Example) -> None:
    example.describe(features=["absent"])
    with pytest.raises(BuildError, match=r"example\.yaml: flavours\.extra\.features: `absent` needs a module"):
        example.build("extra")
    (example.endpoint / "server.py").unlink()
    with pytest.raises(BuildError, match=r"server\.py: is missing; an endpoint needs"):
        example.build()
    (example.endpoint / "requirements.txt").unlink()
    with pytest.raises(BuildError, match=r"cannot be read; write requirements\.in and run tools/compile_locks"):
        python.sources(Project(example.root), "example")


def test_examples_of_a_source_archive_run_with_what_is_locked(example: Example) -> None:
    needs = example.root / examples.NEEDS / "example"
    needs.mkdir(parents=True)
    (needs / "application.py").write_text("SIZE = 6\n", encoding="utf-8")
    sha256 = wheel(example.packages, "stamp", "2", "PRICE = 3\n")
    (needs / "requirements.txt").write_text(f"stamp==2 --hash=sha256:{sha256}\n", encoding="utf-8")
    files = {
        "setup.cfg": "[metadata]\nname = parcel\nversion = 1.5\n",
        "setup.py": "import setuptools\nsetuptools.setup()\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: parcel\nVersion: 1.5\n",
        "examples/fetch.py": "import sys, application, parcel, stamp\n"
        "print(application.SIZE, parcel.WEIGHT, stamp.PRICE, *sys.argv[1:])\n",
    }
    archive = example.packages / "parcel-1.5.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name, text in files.items():
            member = tarfile.TarInfo(f"parcel-1.5/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    own = {"package": "parcel", "server": ["examples/fetch.py"], "client": ["examples/fetch.py", "it"]}
    file = example.root / "config" / "libraries" / "example.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text("utf-8")) | {"example": own}), encoding="utf-8")
    # the lock has the hash of the wheel only
    with pytest.raises(BuildError, match=r"failed with exit code 1"):
        examples.build(Project(example.root), "example", jobs=1, log=example.root / "build.log")
    source = hashlib.sha256(archive.read_bytes()).hexdigest()
    example.lock(f"parcel==1.5 \\\n    --hash=sha256:{example.sha256} \\\n    --hash=sha256:{source}\n")
    programs = examples.build(Project(example.root), "example", jobs=1, log=example.root / "build.log")
    argv = [str(programs / "fetch.py"), "it"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=example.root, timeout=20, check=False)
    assert (done.stdout, done.stderr) == ("6 7 3 it\n", "")


# What follows needs builds of aioquic.


@pytest.fixture(scope="session")
def stock(build_of: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stock build, and certificates."""
    directory = build_of("aioquic", "stock")
    log = tmp_path_factory.mktemp("certificates") / "log"
    certificates.make_all(PROJECT, PROJECT.libraries["aioquic"].supports.signatures, jobs=2, log=log)
    return directory


@pytest.fixture(scope="session")
def noop(build_of: Callable[[str, str], Path]) -> Path:
    """The build of flavour noop."""
    return build_of("aioquic", "noop")


@pytest.fixture(scope="session")
def pq(build_of: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build of flavour pq, and certificates of every signature algorithm."""
    directory = build_of("aioquic", "pq")
    log = tmp_path_factory.mktemp("certificates") / "log"
    certificates.make_all(PROJECT, [signature.name for signature in PROJECT.algorithms.signatures], jobs=2, log=log)
    return directory


@pytest.fixture
def serve(loopback: Loopback) -> Serve:
    return partial(loopback.serve, "aioquic")


def test_connections_are_fresh_and_counted_on_both_sides(serve: Serve) -> None:
    server = serve()
    seen = server.fetch("--connections", "30")
    told = server.stop()
    assert len(seen) == len(told) == 30
    both = list(zip(seen, told, strict=True))
    for client, at_server in both:
        assert client["t_client_hello"] < client["t_handshake_complete"] <= client["t_handshake_confirmed"]
        assert at_server["t_handshake_complete"] == at_server["t_handshake_confirmed"]
        assert (client["hello_retry_request"], client["retry"]) == (False, False)
    # Loopback loses nothing. Where one end waits for a processor, the other may send something again, which comes too
    # late to be of use; not in most connections.
    unused = [client["packets_sent"] - (at_server["packets_received"] or 0) for client, at_server in both]
    assert statistics.mode(unused) == min(unused) == 0
    # a client that has everything leaves the last acknowledgement unread
    unread = [(at_server["packets_sent"] or 0) - client["packets_received"] for client, at_server in both]
    assert min(unread) >= 0
    assert statistics.mode(unread) in (0, 1)
    lost = [(client["packets_lost"], at_server["packets_lost"] or 0) for client, at_server in both]
    assert statistics.mode(lost) == min(lost) == (0, 0)
    flights = [(client["handshake_packets_sent"], client["handshake_bytes_sent"]) for client in seen]
    assert statistics.mode(flights) == min(flights) == (1, 1200)  # one padded Initial packet (RFC 9000, 14.1)


@pytest.mark.parametrize("size", [0, 1, 65_488, 65_489, 5_000_001])
def test_content_of_any_size_arrives(serve: Serve, size: int) -> None:
    server = serve()
    (seen,) = server.fetch("--bytes", str(size))
    assert (seen["ok"], seen["content_ok"], seen["bytes_received"]) == (True, True, size)
    assert server.stop()[0]["bytes_sent"] == size


def test_initial_datagrams_have_the_size_asked_for(serve: Serve) -> None:
    server = serve("--initial-size", "1400", signature="rsa-4096")
    seen = server.fetch("--initial-size", "1400", "--connections", "5")
    told = server.stop()
    # on a busy machine either end may send something again
    assert min((one["handshake_packets_sent"], one["handshake_bytes_sent"]) for one in seen) == (1, 1400)
    # the first datagram of the server's flight is full, the second has the rest
    assert 1400 < min(one["handshake_bytes_sent"] for one in told) < 2800


def test_a_server_with_retry_sends_one_to_every_connection(serve: Serve) -> None:
    server = serve("--retry", "on")
    assert [connection["retry"] for connection in server.fetch("--connections", "3")] == [True] * 3
    assert [connection["retry"] for connection in server.stop()] == [True] * 3


@pytest.mark.parametrize(
    "options",
    [("--group", "p-384"), ("--signature", "ed25519"), ("--cipher", "aes-256-gcm")],
    ids=["group", "signature", "cipher"],
)
def test_both_sides_tell_the_alert_when_nothing_is_shared(serve: Serve, options: tuple[str, ...]) -> None:
    server = serve()
    (refused,) = server.fetch(*options)
    assert "received TLS alert 40 (handshake_failure)" in refused["error"]
    (served,) = server.fetch()
    assert served["ok"], "a failed connection must not end the server"
    told = server.stop()
    assert "sent TLS alert 40 (handshake_failure)" in told[0]["error"]
    assert [connection["ok"] for connection in told] == [False, True]


def test_memory_of_a_server_does_not_grow_with_connections(serve: Serve) -> None:
    server = serve()

    server.fetch("--connections", "300")
    before = server.resident_kib()
    server.fetch("--connections", "700")
    assert server.resident_kib() < before + 2048


def test_a_server_that_is_stopped_reports_open_connections(serve: Serve) -> None:
    server = serve()
    argv, log = server.client("--bytes", str(1 << 40), "--timeout", "600")
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as client:
        # until the server has spent a fifth of a second on the transfer
        working = server.cpu_ticks()
        while server.cpu_ticks() < working + os.sysconf("SC_CLK_TCK") // 5:
            assert client.poll() is None
            time.sleep(0.01)
        (told,) = server.stop()
        client.wait(20)
    assert told["error"] == "the server was stopped"
    assert told["bytes_sent"] > 0
    (seen,) = connections(read_events(log))
    assert seen["error"] == "received error 0x1: the server was stopped"


def test_garbage_does_not_disturb_a_server(serve: Serve) -> None:
    server = serve()
    version_1 = b"\xc0\x00\x00\x00\x01\x08" + bytes(8) + b"\x08" + bytes(8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(5)
        for datagram in (b"", b"\x00", b"\x40" + bytes(30), b"\xc0", version_1, version_1 + bytes(1300)):
            peer.sendto(datagram, ("127.0.0.1", server.port))
        # a version that does not exist is answered with those that do (RFC 9000, section 6)
        peer.sendto(b"\xc0\x1a\x1a\x1a\x1a" + version_1[5:] + bytes(1300), ("127.0.0.1", server.port))
        answer = peer.recv(2000)
        assert answer[1:5] == bytes(4)
        assert answer.endswith(b"\x00\x00\x00\x01")
    (served,) = server.fetch()
    assert served["ok"]
    assert [connection["ok"] for connection in server.stop()] == [True], "garbage is no connection"


@pytest.mark.parametrize("environment", [{}, SUPPORTS.aes_hardware_off if SUPPORTS else {}], ids=["on", "off"])
def test_the_aes_instructions_can_be_left_alone(serve: Serve, environment: dict[str, str]) -> None:
    server = serve(environment=environment)
    _, seen = server.run("--cipher", "aes-128-gcm", "--bytes", "100000")
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    has = next(line for line in flags.splitlines() if line.startswith("flags")).split()
    expected = "aes" in has and not environment
    assert seen[0]["options"]["aes_hardware"] is expected
    assert server.events()[0]["options"]["aes_hardware"] is expected
    assert seen[1]["ok"]


def test_what_aioquic_cannot_do_is_unsupported(stock: Path) -> None:
    for option, value, reason in (
        ("--udp-payload", "20000", "16383"),
        ("--congestion-control", "bbr", "bbr"),
        ("--aead", "noop", "noop flavour"),
        ("--group", "kyber768", "kyber768"),
    ):
        argv = [str(stock / "bin" / "client"), "--connect", "127.0.0.1:1", "--server-name", "server", "--bytes", "1"]
        argv += ["--ca", "/dev/null", option, value]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 127
        assert reason in json.loads(done.stdout.splitlines()[1])["reason"]


@pytest.mark.parametrize(("file", "reason"), [("server.pem", "--certificate"), ("server.key", "--private-key")])
def test_a_file_that_cannot_be_used_is_named(stock: Path, tmp_path: Path, file: str, reason: str) -> None:
    shutil.copytree(certificates.directory(PROJECT, "ed25519"), tmp_path / "made")
    argv = [str(stock / "bin" / "server"), "--listen", "127.0.0.1:0", "--signature", "ed25519"]
    argv += ["--certificate", str(tmp_path / "made" / "server.pem")]
    argv += ["--private-key", str(tmp_path / "made" / "server.key")]
    for damage in ("missing", "broken"):
        if damage == "missing":
            (tmp_path / "made" / file).unlink()
        else:
            (tmp_path / "made" / file).write_text("nothing\n", encoding="utf-8")
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 1
        assert reason in json.loads(done.stdout.splitlines()[1])["reason"]


def test_a_stock_build_does_not_hold_noop(stock: Path, noop: Path) -> None:
    assert (noop / "lib" / "endpoint" / "features" / "noop.py").is_file()
    assert not list(stock.rglob("noop*"))
    assert not list(noop.rglob("*pq*"))
    assert (stock / "lib" / "aioquic" / "quic" / "crypto.py").read_bytes() == (
        noop / "lib" / "aioquic" / "quic" / "crypto.py"
    ).read_bytes()


KEY_UPDATES = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
certificate, key, ca, aead, protection = sys.argv[2:]
from aioquic.buffer import Buffer
from aioquic.quic.events import StreamDataReceived
from endpoint import library
from quicbed_contract.options import Options
options = Options(aead=aead, header_protection=protection, signature="ecdsa-p-256")
library.set_up(options)
here = library.configuration(options, None, is_client=True, idle_timeout=9)
here.server_name = "server"
here.load_verify_locations(cadata=Path(ca).read_bytes())
there = library.configuration(options, None, is_client=False, idle_timeout=9)
there.load_cert_chain(certificate, key)
client = library.Connection(options, configuration=here)
address = ("127.0.0.1", 1)
client.connect(address, time.monotonic())
server, received, wire, phases = None, b"", [], set()
text = b"the quick brown fox jumps over the lazy dog " * 5
for turn in range(400):
    now = time.monotonic()
    if turn % 40 == 39 and client.t_handshake_confirmed:
        client.send_stream_data(0, text)
        client.request_key_update()
    for data, _ in client.datagrams_to_send(now):
        wire.append(data)
        if server is None:
            original = data[6:6 + data[5]]
            server = library.Connection(options, configuration=there, original_destination_connection_id=original)
        server.receive_datagram(data, address, now)
    for data, _ in server.datagrams_to_send(now):
        client.receive_datagram(data, address, now)
    while (event := server.next_event()) is not None:
        received += event.data if isinstance(event, StreamDataReceived) else b""
    phases.add(server._cryptos[library.tls.Epoch.ONE_RTT].recv.key_phase)
    time.sleep(0.002)
short = [data for data in wire if not data[0] & 0x80]
print(json.dumps({
    "received": len(received) // len(text), "right": received == text * (len(received) // len(text)),
    "phases": sorted(phases), "clear": sum(text in data for data in short),
    "tags": sum(data.endswith(b"*" * 16) for data in short),
    "fixed": sum(data[0] & 0x78 in (0x40, 0x60) for data in short), "short": len(short),
    "initial": any(b"server" in data for data in wire if data[0] & 0xf0 == 0xc0),
}))
"""


@pytest.mark.parametrize(
    ("aead", "protection"), [("standard", "on"), ("noop", "on"), ("noop", "off"), ("standard", "off")]
)
def test_keys_of_every_variant_can_be_updated(
    noop: Path, stock: Path, tmp_path: Path, aead: str, protection: str
) -> None:
    assert stock.is_dir()  # certificates are made with it
    made = certificates.directory(PROJECT, "ecdsa-p-256")
    interpreter = making.read_build(PROJECT, "aioquic", "noop").interpreter
    script = tmp_path / "key_updates.py"
    script.write_text(KEY_UPDATES, encoding="utf-8")
    argv = [interpreter, "-IBS", str(script), str(noop / "lib"), str(made / "server.pem"), str(made / "server.key")]
    done = subprocess.run(
        [*argv, str(made / "ca.pem"), aead, protection], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["received"] >= 8
    assert seen["right"]
    assert seen["phases"] == [0, 1], "keys were updated"
    assert not seen["initial"], "the server name of an Initial packet is never in the clear"
    if aead == "noop":
        assert seen["clear"] >= 8
        assert seen["tags"] == seen["short"]
    else:
        assert seen["clear"] == 0
    if protection == "off":
        assert seen["fixed"] == seen["short"], "reserved bits are zero"


@pytest.mark.parametrize("signature", ["dilithium3", "falcon-512", "mldsa65"])
def test_post_quantum_certificates_are_verified(serve: Serve, pq: Path, tmp_path: Path, signature: str) -> None:
    server = serve(flavour="pq", signature=signature)
    made = certificates.directory(PROJECT, signature) / "ca.pem"
    (other_name,) = server.fetch("--server-name", "another.example")
    assert "sent TLS alert 42 (bad_certificate): certificate is not that of 'another.example'" in other_name["error"]
    other = next(name for name in ("dilithium2", "mldsa44") if name != signature)
    (other_ca,) = server.fetch("--ca", str(certificates.directory(PROJECT, other) / "ca.pem"))
    assert "sent TLS alert 42 (bad_certificate)" in other_ca["error"]
    # the authority's name with another key: a byte of its public key, which lies before the extensions, is changed
    body = "".join(made.read_text(encoding="utf-8").split("-----")[2].split())
    der = bytearray(base64.b64decode(body))
    der[der.index(bytes.fromhex("551d13")) - 64] ^= 1
    changed = tmp_path / "ca.pem"
    text = base64.encodebytes(bytes(der)).decode()
    changed.write_text(f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n", encoding="utf-8")
    (forged,) = server.fetch("--ca", str(changed))
    assert "sent TLS alert 42 (bad_certificate): certificate signature failure" in forged["error"]
    (served,) = server.fetch()
    assert served["ok"]


def test_a_post_quantum_key_of_another_certificate_is_named(pq: Path) -> None:
    argv = [str(pq / "bin" / "server"), "--listen", "127.0.0.1:0", "--signature", "mldsa65"]
    argv += ["--certificate", str(certificates.directory(PROJECT, "mldsa65") / "server.pem")]
    for other in ("dilithium3", "rsa-2048"):
        key = certificates.directory(PROJECT, other) / "server.key"
        done = subprocess.run(
            [*argv, "--private-key", str(key)], capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 1
        reason = json.loads(done.stdout.splitlines()[1])["reason"]
        assert reason == f"--private-key {key}: does not match the certificate"


def test_primitives_have_the_sizes_of_the_standards(pq: Path, stock: Path) -> None:
    assert not (stock / "bin" / "primitives").exists()
    argv = [str(pq / "bin" / "primitives"), "--milliseconds", "1", "--group", "none"]
    for group in ("x25519", "p-256", "kyber768", "x25519-mlkem768", "p-384-kyber768"):
        argv += ["--group", group]
    for signature in ("ed25519", "rsa-2048", "dilithium3", "falcon-512"):
        argv += ["--signature", f"{signature}={certificates.directory(PROJECT, signature)}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    written = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in written if event["event"] != "primitive"] == ["start", "unsupported", "end"]
    timed = [event for event in written if event["event"] == "primitive"]
    assert all(len(event["samples_ns"]) >= 5 for event in timed)
    sizes = {(event["name"], event["operation"]): event["bytes"] for event in timed}
    # RFC 7748; SEC 1, 2.3.3; round 3 Kyber, table 1; draft-ietf-tls-ecdhe-mlkem; draft-ietf-tls-hybrid-design
    assert sizes["x25519", "keygen"] == sizes["x25519", "encapsulate"] == 32
    assert sizes["p-256", "keygen"] == 65
    assert (sizes["kyber768", "keygen"], sizes["kyber768", "encapsulate"]) == (1184, 1088)
    assert (sizes["x25519-mlkem768", "keygen"], sizes["x25519-mlkem768", "encapsulate"]) == (1216, 1120)
    assert (sizes["p-384-kyber768", "keygen"], sizes["p-384-kyber768", "encapsulate"]) == (97 + 1184, 97 + 1088)
    # RFC 8032; RFC 8017; round 3 Dilithium and Falcon-padded
    assert (sizes["ed25519", "sign"], sizes["rsa-2048", "sign"]) == (64, 256)
    assert (sizes["dilithium3", "sign"], sizes["falcon-512", "sign"]) == (3293, 666)
    implementations = {event["name"]: event["implementation"] for event in timed}
    assert implementations["kyber768"].startswith("liboqs ")
    assert [part.split()[0] for part in implementations["x25519-mlkem768"].split(" + ")] == ["liboqs", "OpenSSL"]
    assert [part.split()[0] for part in implementations["p-384-kyber768"].split(" + ")] == ["OpenSSL", "liboqs"]


def test_primitives_name_what_they_cannot_read(pq: Path) -> None:
    for argv, code, reason in (
        (["--signature", "rsa-2048=/nowhere"], 1, "rsa-2048: /nowhere/server.key"),
        (["--signature", "rsa-2048"], 2, "NAME=DIRECTORY"),
        (["--milliseconds", "0"], 2, "--milliseconds"),
    ):
        program = [str(pq / "bin" / "primitives"), *argv]
        done = subprocess.run(program, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == code
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
