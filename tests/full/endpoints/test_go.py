"""The recipe for endpoints in Go, and what is particular to quic-go."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from clone import ROOT
from loopback import Server
from quicbed.builds import kit, making
from quicbed.builds.kit import BuildError, Job
from quicbed.builds.recipes import go
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import certificates

PROJECT = Project(ROOT)
GO = [name for name, library in PROJECT.libraries.items() if library.recipe == "go"]

MODULE = "example.org/parcel"
PROGRAM = """\
package main

import "example.org/parcel"

func main() { println(parcel.Weight, extra) }
"""
PATCH = """\
Weigh another weight.

--- a/parcel.go
+++ b/parcel.go
@@ -3,1 +3,1 @@
-const Weight = 7
+const Weight = 8
"""


class Example:
    """A project with one library in Go, whose module is found in a directory instead of at a proxy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.endpoint = root / kit.ENDPOINTS / "example"
        shutil.copytree(ROOT / "config", root / "config")
        (root / "workflow" / "crypto" / "patches" / "example").mkdir(parents=True)
        shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", root / "workflow" / "crypto")
        for name in ("client", "server"):
            (self.endpoint / name).mkdir(parents=True)
            (self.endpoint / name / "main.go").write_text(PROGRAM, encoding="utf-8")
            for tag, value in (("!extra", "false"), ("extra", "true")):
                text = f"//go:build {tag}\n\npackage main\n\nconst extra = {value}\n"
                (self.endpoint / name / f"{'extra' if value == 'true' else 'plain'}.go").write_text(text, "utf-8")
        self.hashes = self._publish(root / "proxy" / MODULE / "@v")
        self.requires("go 1.26.0")
        self.sum = self.endpoint / "go.sum"
        self.sum.write_text(
            f"{MODULE} v1.5.0 {self.hashes[0]}\n{MODULE} v1.5.0/go.mod {self.hashes[1]}\n", encoding="utf-8"
        )
        self.patch = root / kit.PATCHES / "example" / "patched.patch"
        self.patch.write_text(PATCH, encoding="utf-8")
        self.describe(MODULE)

    def _publish(self, directory: Path) -> tuple[str, str]:
        """Lay out the module as a proxy serves it; returns the hashes of the module and of its go.mod."""
        files = {
            "go.mod": f"module {MODULE}\n\ngo 1.21\n",
            "parcel.go": "package parcel\n\nconst Weight = 7\n",
        }
        directory.mkdir(parents=True)
        (directory / "v1.5.0.mod").write_text(files["go.mod"], encoding="utf-8")
        (directory / "v1.5.0.info").write_text('{"Version": "v1.5.0"}', encoding="utf-8")
        with zipfile.ZipFile(directory / "v1.5.0.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(f"{MODULE}@v1.5.0/{name}", text)
        whole = {f"{MODULE}@v1.5.0/{name}": text for name, text in files.items()}
        return h1(whole), h1({"go.mod": files["go.mod"]})

    def requires(self, line: str) -> None:
        """Write go.mod with this line for the version of Go."""
        text = f"module example\n\n{line}\n\n// the library\nrequire {MODULE} v1.5.0 // pinned\n"
        (self.endpoint / "go.mod").write_text(text, encoding="utf-8")

    def describe(self, patched: str) -> None:
        """Write the library's configuration, with a patch of a module in the flavour `patched`."""
        data = yaml.safe_load((ROOT / "config" / "libraries" / "quic-go.yaml").read_text(encoding="utf-8"))
        estimate = {"minutes": 1, "disk_mb": 1}
        patches = [{"crate": patched, "file": "example/patched.patch"}]
        data |= {
            "endpoint": "example",
            "flavours": {
                "stock": {"estimate": estimate},
                "patched": {"estimate": estimate, "features": ["extra"], "patches": patches},
            },
        }
        file = self.root / "config" / "libraries" / "example.yaml"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")

    def build(self, flavour: str = "stock") -> Path:
        """Build a flavour; returns the directory of its programs."""
        out = self.root / f"{flavour}.partial"
        out.mkdir(exist_ok=True)
        go.build(Job(Project(self.root), "example", flavour, self.root, {}, out, 1, self.root / "build.log"))
        return out / "bin"


def h1(files: dict[str, str]) -> str:
    """The hash of go.sum: SHA-256 over the sorted listing that sha256sum would print."""
    lines = [f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(files.items())]
    return "h1:" + base64.b64encode(hashlib.sha256("".join(lines).encode()).digest()).decode()


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    monkeypatch.setenv("GOPROXY", f"file://{tmp_path / 'proxy'}")
    monkeypatch.setenv("GOSUMDB", "off")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "cache"))
    yield Example(tmp_path)
    # the cache is write-protected
    for path in (tmp_path / "cache").rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755)


def said(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, timeout=20, check=True).stderr.strip()


@pytest.mark.timeout(600)
def test_a_flavour_is_patched_and_leaves_everything_else_as_it_was(example: Example) -> None:
    before = {file.name: file.read_bytes() for file in example.endpoint.glob("go.*")}
    assert said(example.build() / "client") == "7 false"
    patched = example.build("patched")
    assert [said(patched / name) for name in ("client", "server")] == ["8 true", "8 true"]
    assert said(example.build() / "client") == "7 false"
    assert {file.name: file.read_bytes() for file in example.endpoint.glob("go.*")} == before
    assert str(example.root).encode() not in (patched / "client").read_bytes(), (
        "a build does not know where it was made"
    )


@pytest.mark.timeout(600)
def test_settings_of_the_user_do_not_change_what_is_built(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = (example.build() / "client").read_bytes()
    monkeypatch.setenv("GOFLAGS", "-tags=extra")
    monkeypatch.setenv("GOAMD64", "v3")
    monkeypatch.setenv("GOARCH", "riscv64")
    monkeypatch.setenv("CGO_ENABLED", "1")
    assert (example.build() / "client").read_bytes() == plain


def test_modules_are_those_of_go_mod_with_the_hashes_of_go_sum(example: Example) -> None:
    project = Project(example.root)
    expected = [{"name": MODULE, "version": "1.5.0", "checksum": example.hashes[0]}]
    assert go.sources(project, "example") == expected
    assert go.version(project, "example") == "1.5.0"
    (example.endpoint / "go.mod").write_text("module example\n\ngo 1.26.0\n", encoding="utf-8")
    with pytest.raises(BuildError, match=r"go\.mod: requires no module"):
        go.sources(project, "example")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "line", ["replace own.example/part => ../own", "replace (\n\town.example/part v0.0.0 => ../own\n)"]
)
def test_a_module_of_this_repository_is_used_from_its_directory_and_has_no_checksum(
    example: Example, line: str
) -> None:
    own = example.endpoint.parent / "own"
    own.mkdir()
    (own / "go.mod").write_text("module own.example/part\n\ngo 1.21\n", encoding="utf-8")
    (own / "part.go").write_text('package part\n\nimport "os"\n\nfunc Tell() { os.Exit(5) }\n', encoding="utf-8")
    before = go.sources(Project(example.root), "example")
    manifest = example.endpoint / "go.mod"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(f"{text}\nrequire own.example/part v0.0.0\n\n{line}\n", encoding="utf-8")
    assert go.sources(Project(example.root), "example") == before
    for name in ("client", "server"):
        imports = f'import (\n\t_ "{MODULE}"\n\t"own.example/part"\n)'
        program = f"package main\n\n{imports}\n\nfunc main() {{ part.Tell() }}\n"
        (example.endpoint / name / "main.go").write_text(program, encoding="utf-8")
    for flavour in ("stock", "patched"):
        done = subprocess.run([example.build(flavour) / "client"], timeout=20, check=False)
        assert done.returncode == 5


@pytest.mark.parametrize("library", GO)
def test_every_module_is_pinned(library: str) -> None:
    modules = go.sources(PROJECT, library)
    assert len({module["name"] for module in modules}) == len(modules)
    for module in modules:
        assert len(base64.b64decode(module["checksum"].removeprefix("h1:"))) == 32
    patched = {patch.crate for flavour in PROJECT.libraries[library].flavours.values() for patch in flavour.patches}
    assert patched <= {module["name"] for module in modules}
    assert making.version_of(PROJECT, library) == modules[0]["version"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"go\.sum: has no checksum of example\.org/parcel v1\.5\.0; run `go mod tidy`"),
        ("example.org/parcel v1.5.0\n", r"go\.sum: line 1 is not `module version hash`"),
    ],
)
def test_a_bad_lock_file_is_named(example: Example, text: str, message: str) -> None:
    example.sum.write_text(text, encoding="utf-8")
    with pytest.raises(BuildError, match=message):
        go.sources(Project(example.root), "example")


def test_a_missing_lock_file_is_named(example: Example) -> None:
    example.sum.unlink()
    with pytest.raises(BuildError, match=r"go\.sum: cannot be read: No such file"):
        go.sources(Project(example.root), "example")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", ["stock", "patched"])
def test_another_module_than_the_one_pinned_is_refused(example: Example, flavour: str) -> None:
    other = h1({"go.mod": "another"})
    example.sum.write_text(example.sum.read_text("utf-8").replace(example.hashes[0], other), encoding="utf-8")
    with pytest.raises(BuildError, match="checksum mismatch"):
        example.build(flavour)


@pytest.mark.timeout(600)
def test_a_changed_module_in_the_cache_is_refused(example: Example) -> None:
    example.build()
    (file,) = (example.root / "cache").rglob("parcel.go")
    file.chmod(0o644)
    file.write_text("package parcel\n\nconst Weight = 9\n", encoding="utf-8")
    with pytest.raises(BuildError, match=r"`go mod` failed[\s\S]*dir has been modified"):
        example.build()


@pytest.mark.timeout(600)
def test_a_module_that_nobody_has_is_named(example: Example) -> None:
    shutil.rmtree(example.root / "proxy")
    with pytest.raises(BuildError, match=r"parcel"):
        example.build("patched")


def test_missing_go_is_named_with_its_remedy(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(example.root / "proxy"))
    with pytest.raises(BuildError, match=r"^go is not installed; install Go \(https://go\.dev/dl\)[^\n]*$"):
        example.build()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo go version go1.25.9 linux/amd64", r"^Go 1\.25 is too old, .*go\.mod needs 1\.26; install it"),
        ("echo nothing", "names no version: nothing"),
        ("exit 3", "`go version` does not work"),
    ],
)
def test_unusable_go_is_named_with_its_remedy(
    example: Example, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    fake = example.root / "proxy" / "go"
    fake.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    with pytest.raises(BuildError, match=message):
        example.build()


def test_go_mod_without_a_version_of_go_is_named(example: Example) -> None:
    example.requires("// nothing")
    with pytest.raises(BuildError, match=r"go\.mod: has no line `go <version>`"):
        example.build()


@pytest.mark.timeout(600)
def test_a_patch_that_does_not_apply_is_named(example: Example) -> None:
    example.patch.write_text(PATCH.replace("Weight = 7", "Weight = 6"), encoding="utf-8")
    with pytest.raises(BuildError, match=r"`patch --strip=1` failed with exit code 1[\s\S]*parcel\.go"):
        example.build("patched")


@pytest.mark.timeout(600)
def test_a_patch_of_a_module_that_is_not_required_is_named(example: Example) -> None:
    example.describe("example.org/letter")
    message = r"example\.yaml: flavours\.patched\.patches: go\.mod does not require `example\.org/letter`; it requires "
    with pytest.raises(BuildError, match=message + r"example\.org/parcel"):
        example.build("patched")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("library", GO)
def test_the_endpoints_own_tests_pass(library: str) -> None:
    directory = ROOT / kit.ENDPOINTS / PROJECT.libraries[library].endpoint
    argv = ["go", "test", "-count=1", "./...", "quicbed.internal/contract"]
    done = subprocess.run(argv, cwd=directory, env=go.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") >= 2


# quic-go

SERVER = "127.0.0.1"


class Programs:
    """Programs of quic-go over loopback."""

    def __init__(self, build_of: Callable[[str, str], Path], directory: Path) -> None:
        self.builds = {flavour: build_of("quic-go", flavour) for flavour in ("stock", "noop")}
        self.directory = directory
        self.servers: list[Server] = []

    def identity(self, signature: str) -> Path:
        made = self.directory / signature
        if not made.is_dir():
            certificates.make(made, PROJECT.algorithms.signature(signature))
        return made

    def serve(self, signature: str = "ecdsa-p-256", flavour: str = "stock", **options: str) -> str:
        made, log = self.identity(signature), self.directory / f"server-{len(self.servers)}.jsonl"
        asked = flat({"signature": signature} | options)
        self.servers.append(Server(self.builds[flavour], made, log, *asked))
        return self.servers[-1].address

    def download(self, address: str, signature: str = "ecdsa-p-256", trusted: str = "", **options: str) -> int:
        argv = [str(self.builds["stock"] / "bin" / "client"), "--connect", address, "--server-name", "server"]
        argv += ["--ca", str(self.identity(trusted or signature) / "ca.pem")]
        argv += ["--events", str(self.directory / "client.jsonl")]
        chosen = {"signature": signature, "bytes": "1", "timeout": "20"} | options
        return subprocess.run([*argv, *flat(chosen)], stderr=subprocess.DEVNULL, timeout=120, check=False).returncode

    def client(self) -> events.EndpointLog[events.ClientConnection]:
        return events.read(self.directory / "client.jsonl", "client")

    def stop(self) -> events.EndpointLog[events.ServerConnection]:
        return self.servers[-1].stopped()


def flat(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture
def programs(build_of: Callable[[str, str], Path], tmp_path: Path) -> Iterator[Programs]:
    made = Programs(build_of, tmp_path)
    yield made
    for server in made.servers:
        server.kill()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("group", PROJECT.libraries["quic-go"].supports.groups)
def test_a_group_is_the_only_one(programs: Programs, group: str) -> None:
    address = programs.serve(group=group)
    assert programs.download(address, group=group) == 0
    other = "p-256" if group == "x25519" else "x25519"
    assert programs.download(address, group=other) == 1
    assert "handshake failure" in str(programs.client().connections[0].error)
    assert programs.download(address, group=group) == 0
    log = programs.stop()
    assert [connection.ok for connection in log.connections] == [True, False, True]
    for side in (programs.client().connections[0], log.connections[0], log.connections[2]):
        assert side.group == PROJECT.algorithms.group(group).tls_name
        assert not side.hello_retry_request


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("signature", PROJECT.libraries["quic-go"].supports.signatures)
def test_both_sides_tell_the_scheme_of_the_signature(programs: Programs, signature: str) -> None:
    address = programs.serve(signature)
    assert programs.download(address, signature) == 0
    expected = PROJECT.algorithms.signature(signature).tls_name
    assert programs.client().connections[0].signature == expected
    assert programs.stop().connections[0].signature == expected


@pytest.mark.timeout(1800)
def test_a_client_refuses_a_scheme_that_it_was_not_told(programs: Programs) -> None:
    address = programs.serve("ecdsa-p-256")
    assert programs.download(address, "ed25519", trusted="ecdsa-p-256") == 1
    reason = "the server signed with ecdsa_secp256r1_sha256 instead of ed25519"
    assert programs.client().connections[0].error == reason
    (refused,) = programs.stop().connections
    assert not refused.ok
    assert reason in str(refused.error)


@pytest.mark.timeout(1800)
def test_a_server_refuses_a_certificate_of_another_algorithm(programs: Programs) -> None:
    made = programs.identity("ed25519")
    argv = [str(programs.builds["stock"] / "bin" / "server"), "--listen", f"{SERVER}:0", "--signature", "rsa-2048"]
    argv += ["--certificate", str(made / "server.pem"), "--private-key", str(made / "server.key")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stderr == "--signature: is rsa-2048, but the certificate's key is ed25519\n"
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["error", "end"]


@pytest.mark.timeout(1800)
def test_retry_is_seen_on_both_sides(programs: Programs) -> None:
    for retry in ("on", "off"):
        address = programs.serve(retry=retry)
        assert programs.download(address, connections="2") == 0
        for side in (*programs.client().connections, *programs.stop().connections):
            assert side.retry == (retry == "on")


@pytest.mark.timeout(1800)
def test_initial_datagrams_have_the_size_asked_for(programs: Programs) -> None:
    address = programs.serve(initial_size="1452")
    assert programs.download(address, initial_size="1452") == 0
    connection = programs.client().connections[0]
    assert connection.handshake_bytes_sent is not None
    assert connection.handshake_packets_sent is not None
    # the client's last datagram of the handshake need not be full
    assert connection.handshake_bytes_sent >= 1452
    assert connection.handshake_bytes_sent > 1200 * connection.handshake_packets_sent - 1200
    assert programs.download(address, initial_size="1453") == 127


@pytest.mark.timeout(1800)
def test_what_is_asked_of_the_socket_is_in_force(programs: Programs) -> None:
    # quic-go by itself would make the buffers larger, and search for larger datagrams
    asked = {
        "receive_buffer": "212992",
        "send_buffer": "106496",
        "udp_payload": "1252",
        "gso": "off",
        "window": "100000",
    }
    address = programs.serve(**asked)
    wanted = {name: int(value) for name, value in asked.items() if name != "gso"}
    taken = socket_buffers(programs.servers[-1].process.pid)
    assert (wanted["receive_buffer"] * 2, wanted["send_buffer"] * 2) in taken
    assert programs.download(address, bytes="5000000", **asked) == 0
    for log in (programs.client(), programs.stop()):
        assert {name: log.start.options[name] for name in wanted} == wanted
        assert (log.start.options["gso"], log.start.options["gro"]) == (False, False)
    connection = programs.client().connections[0]
    assert connection.packets_received is not None
    assert 5_000_000 / connection.packets_received <= 1252, "datagrams were larger than allowed"


def socket_buffers(pid: int) -> set[tuple[int, int]]:
    """SO_RCVBUF and SO_SNDBUF of the UDP sockets of a process, which are twice what was asked for."""
    listing = subprocess.run(["ss", "-uanpm"], capture_output=True, text=True, check=True).stdout
    found = set()
    for line in listing.replace("\n\t", " ").splitlines():
        if f"pid={pid}," in line:
            fields = {field[:2]: field[2:] for field in line.partition("skmem:(")[2].rstrip(") ").split(",")}
            found.add((int(fields["rb"]), int(fields["tb"])))
    return found


@pytest.mark.timeout(1800)
def test_aes_instructions_can_be_left_alone(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    off = PROJECT.libraries["quic-go"].supports.aes_hardware_off
    assert isinstance(off, dict)
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    address = programs.serve()
    assert programs.download(address, bytes="100000") == 0
    for log in (programs.client(), programs.stop()):
        assert log.start.options["aes_hardware"] is False
        assert log.connections[0].cipher == "TLS_AES_128_GCM_SHA256"


@pytest.mark.timeout(1800)
def test_secrets_of_every_connection_are_logged(programs: Programs, tmp_path: Path) -> None:
    files = {side: tmp_path / f"{side}.keys" for side in ("client", "server")}
    address = programs.serve(key_log=str(files["server"]))
    assert programs.download(address, connections="3", key_log=str(files["client"])) == 0
    programs.stop()
    lines = {side: sorted(file.read_text(encoding="ascii").splitlines()) for side, file in files.items()}
    assert lines["client"] == lines["server"]
    assert sum(line.startswith("CLIENT_TRAFFIC_SECRET_0 ") for line in lines["client"]) == 3


@pytest.mark.timeout(1800)
def test_a_server_that_is_stopped_ends_its_connections(programs: Programs) -> None:
    address = programs.serve()
    argv = [str(programs.builds["stock"] / "bin" / "client"), "--connect", address, "--server-name", "server"]
    argv += ["--ca", str(programs.identity("ecdsa-p-256") / "ca.pem"), "--signature", "ecdsa-p-256"]
    log = programs.directory / "client.jsonl"
    client = subprocess.Popen([*argv, "--bytes", str(1 << 50), "--events", str(log)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
            time.sleep(0.01)
        time.sleep(0.5)
        stopped = programs.stop()
        assert client.wait(10) == 1
    finally:
        client.kill()
    assert [connection.error for connection in stopped.connections] == [
        "Application error 0x1 (local): the server was stopped"
    ]
    assert "the server was stopped" in str(programs.client().connections[0].error)


@pytest.mark.timeout(1800)
def test_a_server_does_not_grow_with_its_connections(programs: Programs) -> None:
    address = programs.serve()
    sizes = []
    for _ in range(3):
        assert programs.download(address, connections="500") == 0
        sizes.append(programs.servers[-1].resident_kib())
    # 1000 connections that were kept would be tens of MiB
    assert sizes[2] - sizes[0] < 8 * 1024, sizes
    assert len(programs.stop().connections) == 1500
