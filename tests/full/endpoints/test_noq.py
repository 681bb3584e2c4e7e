"""noq is built from sources that quinn is built from, too: what is shared, what is its own, and what comes of it."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clone import ROOT
from loopback import Loopback, read_events
from quicbed.builds import kit, making
from quicbed.config.model import Project
from quicbed.measure import certificates
from quicbed.wire import quicwire

PROJECT = Project(ROOT)
SHARED = kit.ENDPOINTS / "engine" / "quinn"

# a build may be part of a test
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("library", ["noq", "quinn"])
@pytest.mark.parametrize("flavour", ["stock", "noop", "pq"])
def test_what_is_shared_belongs_to_the_identity_of_its_builds(library: str, flavour: str) -> None:
    (line,) = re.findall(r'#\[path = "(.*)"\]', (ROOT / kit.ENDPOINTS / library / "src" / "lib.rs").read_text())
    assert (ROOT / kit.ENDPOINTS / library / "src" / line).resolve() == ROOT / SHARED / "mod.rs"
    files = making.identity(PROJECT, library, flavour)["files"]
    assert {(SHARED / name).as_posix() for name in ("mod.rs", "client.rs", "server.rs", "session.rs")} <= files.keys()
    assert (kit.ENDPOINTS / "tls" / "rustls" / "src" / "tls.rs").as_posix() in files


@pytest.mark.parametrize("flavour", ["stock", "noop", "pq"])
def test_the_programs_say_which_library_they_are(build_of: Callable[[str, str], Path], flavour: str) -> None:
    built = build_of("noq", flavour)
    packages = {package["name"]: package["version"] for package in making.sources_of(PROJECT, "noq")}
    assert {"noq", "noq-proto", "noq-udp", "rustls", "ring"} <= packages.keys()
    assert not {"quinn", "quinn-proto", "quinn-udp"} & packages.keys()
    for role in ("client", "server"):
        said = making.describe(built / "bin" / role)
        assert (said["library"], said["version"]) == ("noq", packages["noq"])


def transport_parameters(hello: bytes) -> dict[int, int]:
    """Parameters with an integer as their value, by id, of a ClientHello (RFC 9000, 18; RFC 9001, 8.2)."""
    cursor = quicwire._Cursor(hello)
    cursor.take(4 + 2 + 32, "the header, version and random")
    cursor.take(cursor.take(1, "a length")[0], "the session id")
    for size in (2, 1):
        cursor.take(int.from_bytes(cursor.take(size, "a length"), "big"), "cipher suites, then compression methods")
    cursor.take(2, "the length of the extensions")
    found = {}
    while cursor.offset < len(hello):
        kind, size = (int.from_bytes(cursor.take(2, "an extension"), "big") for _ in range(2))
        body = quicwire._Cursor(cursor.take(size, "an extension"))
        while kind == 0x39 and body.offset < size:
            parameter = body.varint("an id")
            value = quicwire._Cursor(body.take(body.varint("a length"), "a value"))
            if value.data and len(value.data) == 1 << (value.data[0] >> 6):
                found[parameter] = value.varint("a value")
    return found


INITIAL_MAX_DATA, INITIAL_MAX_STREAM_DATA_BIDI_LOCAL = 0x04, 0x05


@pytest.mark.parametrize(
    ("library", "asked", "in_force"),
    [("noq", 16 << 20, 2 << 20), ("noq", 1 << 20, 1 << 20), ("quinn", 16 << 20, 16 << 20)],
)
def test_the_window_stays_below_what_noq_can_keep(
    build_of: Callable[[str, str], Path], tmp_path: Path, library: str, asked: int, in_force: int
) -> None:
    certificates.make(tmp_path / "identity")
    events = tmp_path / "client.jsonl"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(20)
        argv = [str(build_of(library, "stock") / "bin" / "client"), "--connect", f"127.0.0.1:{server.getsockname()[1]}"]
        argv += ["--server-name", "server", "--ca", str(tmp_path / "identity" / "ca.pem"), "--bytes", "1"]
        argv += ["--timeout", "1", "--window", str(asked), "--events", str(events)]
        with subprocess.Popen(argv) as client:
            (packet,) = quicwire.parse_datagram(server.recv(2048)).packets
            client.terminate()
    payload = quicwire.open_initial(packet, [packet.destination_cid], from_server=False)
    assert payload is not None
    parameters = transport_parameters(quicwire.crypto_stream([payload]))
    assert parameters[INITIAL_MAX_STREAM_DATA_BIDI_LOCAL] == in_force
    assert parameters[INITIAL_MAX_DATA] == in_force
    assert read_events(events)[0]["options"]["window"] == in_force


def test_memory_does_not_grow_with_connections(loopback: Loopback) -> None:
    server = loopback.serve("noq", "--content", "1")
    # closed connections are kept until late packets cannot arrive any more, so the first thousands fill their room
    assert server.download("--connections", "4000")[0] == 0
    before = server.resident_kib()
    assert server.download("--connections", "4000")[0] == 0
    # one lost KiB a connection would be more
    assert server.resident_kib() - before < 3000
    assert len(server.stop()) == 8000
