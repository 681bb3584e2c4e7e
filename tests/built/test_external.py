"""Folders that keep the contract of the QUIC Interop Runner as libraries, and contract endpoints as such folders."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import yaml

import fakeproject
import sample
from clone import EXTERNAL, ROOT
from fakeproject import described
from quicbed.builds import making
from quicbed.builds.kit import BuildError, UnusableError
from quicbed.builds.recipes import external
from quicbed.config.model import ConfigError, Experiment, ExternalFile, Project, StatedSupports, parse_model
from quicbed.contract import events
from quicbed.measure import certificates, examine, session
from quicbed.measure import endpoint_pair as pair_module
from quicbed.measure.attempt import MeasureError
from quicbed.measure.sent_bytes import SentBytes
from quicbed.plan import spec
from quicbed.store import details, runs
from quicbed.store.paths import PORT
from quicbed.testbed import LinkSettings
from quicbed.wire import handshake, proof

FOLDERS = EXTERNAL
SIZE = 300_001

pytestmark = pytest.mark.root
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Builds an external library of a folder in a project of its own; returns the build's directory."""

    def built(folder: str | Path, **external: Any) -> Path:
        project = Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})
        project.libraries["ext"] = described(path=str(FOLDERS / folder), **external)
        making.build(project, "ext", "stock", jobs=1, log=tmp_path / "build.log")
        return making.build_directory(project, "ext", "stock")

    return built


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with certificates."""
    directory = tmp_path_factory.mktemp("certificates") / "made"
    certificates.make(directory)
    return directory


def copy_of_misbehaving(directory: Path, script: str, *lines: str) -> Path:
    """A copy of the misbehaving folder in a directory, one of its scripts being these lines."""
    folder = directory / "folder"
    shutil.copytree(FOLDERS / "misbehaving", folder)
    (folder / script).write_text("\n".join(["#!/bin/sh", *lines, ""]))
    return folder


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(build: Path, identity: Path, directory: Path, size: int = SIZE) -> Iterator[int]:
    """A server of a build, stopped with SIGTERM at the end; gives its port."""
    port = free_port()
    log = directory / "server.jsonl"
    argv = [str(build / "bin" / "server"), "--listen", f"127.0.0.1:{port}", "--events", str(log)]
    argv += ["--certificate", str(identity / "server.pem"), "--private-key", str(identity / "server.key")]
    process = subprocess.Popen([*argv, "--content", str(size)], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not (log.exists() and '"ready"' in log.read_text()) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def download(
    build: Path, identity: Path, directory: Path, port: int, *more: str, size: int = SIZE
) -> tuple[int, list[dict[str, Any]]]:
    """A client of a build; returns its exit code and events."""
    log = directory / "client.jsonl"
    argv = [str(build / "bin" / "client"), "--connect", f"127.0.0.1:{port}", "--server-name", "server"]
    argv += ["--ca", str(identity / "ca.pem"), "--bytes", str(size), "--events", str(log), "--timeout", "3", *more]
    code = subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=60, check=False, start_new_session=True).returncode
    return code, [json.loads(line) for line in log.read_text().splitlines()]


def reasons(seen: list[dict[str, Any]]) -> list[str]:
    """What went wrong, of connections and of the program."""
    found = [event.get("error") or event.get("reason") for event in seen]
    return [reason for reason in found if reason]


def sleepers() -> list[int]:
    """Processes that the misbehaving endpoint left behind."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.read_bytes() == b"sleep\x00987\x00":
                found.append(int(file.parent.name))
    return found


@pytest.mark.parametrize(("client", "server"), [("ext", "quinn"), ("quinn", "ext"), ("ext", "ext")])
def test_an_external_endpoint_meets_a_contract_peer(
    client: str, server: str, make: Make, build_of: Callable[[str, str], Path], identity: Path, tmp_path: Path
) -> None:
    quinn = build_of("quinn", "stock")
    of = {"quinn": quinn, "ext": make("wrapping", parameters={"PROGRAMS": str(quinn / "bin")})}
    with serving(of[server], identity, tmp_path) as port:
        code, seen = download(of[client], identity, tmp_path, port, "--key-log", str(tmp_path / "keys.log"))
    assert reasons(seen) == []
    assert code == 0
    log = events.read(tmp_path / "client.jsonl", "client")
    assert log.connections[0].bytes_received == SIZE
    assert log.connections[0].content_ok
    assert (events.goodput_mbps(log.connections[0]) or 0) > 0
    served = events.read(tmp_path / "server.jsonl", "server")
    assert served.errors == ()
    assert "CLIENT_TRAFFIC_SECRET_0" in (tmp_path / "keys.log").read_text()
    if client == "ext":
        # its script reports what the wrapped program says
        assert (log.connections[0].cipher, log.connections[0].group) == ("TLS_AES_128_GCM_SHA256", "x25519")
        assert log.start.options["receive_buffer"] is not None
        assert log.start.version == "1.0 (wraps a contract endpoint)"


def test_several_connections_and_several_files(
    make: Make,
    build_of: Callable[[str, str], Path],
    identity: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quinn = build_of("quinn", "stock")
    build = make("wrapping", parameters={"PROGRAMS": str(quinn / "bin")})
    monkeypatch.setenv("QUICBED_FILES", " ".join(map(str, external.sizes(3, SIZE))))
    with serving(quinn, identity, tmp_path) as port:
        code, _ = download(build, identity, tmp_path, port, "--connections", "2")
    assert code == 0
    assert [c.bytes_received for c in events.read(tmp_path / "client.jsonl", "client").connections] == [SIZE, SIZE]
    # three downloads on each of the two connections that were asked for
    assert len(events.read(tmp_path / "server.jsonl", "server").connections) == 6


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("hangs", "run-client.sh hung: not finished after 3 s"),
        ("wrong bytes", f"file {SIZE}: byte {SIZE // 2} of the content is wrong"),
        ("too short", f"file {SIZE}: {SIZE - 1} bytes of content arrived instead of {SIZE}"),
        ("no file", f"run-client.sh exited with 0 without the file {SIZE} in DOWNLOADS"),
        ("unreadable time", 'time.json: is not {"start": ns, "end": ns}'),
        ("time goes back", "time.json: `end` is not after `start`, in whole nanoseconds"),
        ("too much time", "time.json: 99 s, longer than run-client.sh ran"),
        ("leaves children", "run-client.sh left processes behind that had to be killed: sleep"),
        ("exits with 3", "run-client.sh exited with 3: something of its own went wrong"),
    ],
)
def test_a_misbehaving_client_gives_one_reason(
    how: str, reason: str, make: Make, identity: Path, tmp_path: Path
) -> None:
    code, seen = download(make("misbehaving", parameters={"MISBEHAVE": how}), identity, tmp_path, 4433)
    assert code == 1
    assert len(reasons(seen)) == 1
    assert reasons(seen)[0].startswith(reason)
    assert not events.read(tmp_path / "client.jsonl", "client").connections[0].ok
    assert sleepers() == []


def test_sizes_of_files_differ_and_add_up() -> None:
    assert external.sizes(1, 1000) == [1000]
    assert external.sizes(3, 1000) == [330, 331, 339]
    assert external.sizes(3, 1) == [1]


def test_exit_code_127_is_unsupported_whatever_was_said_before(make: Make, identity: Path, tmp_path: Path) -> None:
    folder = copy_of_misbehaving(tmp_path, "setup-env.sh", "echo 'ccache: not found'")
    code, seen = download(make(folder, parameters={"MISBEHAVE": "refuses"}), identity, tmp_path, 4433)
    assert code == 127
    assert reasons(seen) == ["run-client.sh cannot do test case goodput"]


def test_the_interval_is_that_of_the_script(make: Make, identity: Path, tmp_path: Path) -> None:
    code, seen = download(make("misbehaving", parameters={"MISBEHAVE": "its own time"}), identity, tmp_path, 4433)
    assert (code, reasons(seen)) == (0, [])
    (connection,) = events.read(tmp_path / "client.jsonl", "client").connections
    assert connection.t_last_byte is not None
    assert connection.t_request_sent == connection.t_client_hello == connection.t_last_byte - 1_000_000
    assert events.goodput_mbps(connection) == SIZE * 8 / 1e3


@pytest.mark.parametrize(("how", "told"), [("works on", None), ("tells a nanosecond", "limits.goodput_gbps")])
def test_a_script_that_works_on_after_its_transfer_is_believed_what_was_sent(
    how: str, told: str | None, make: Make, identity: Path, tmp_path: Path
) -> None:
    arrived = tmp_path / "client.logs" / "arrived"
    testbed: Any = SimpleNamespace(
        sent_by_server=lambda: SIZE * (arrived.stat().st_size if arrived.exists() else 0) // 10, speed_mbit=None
    )
    build = make("misbehaving", parameters={"MISBEHAVE": how})
    sent = SentBytes(testbed)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(download, build, identity, tmp_path, 4433)
        while not running.done():
            sent.take()
            time.sleep(0.002)
    sent.end()
    assert running.result()[0] == 0
    (one,) = events.read(tmp_path / "client.jsonl", "client").connections
    claim: dict[str, Any] = {"begin": one.t_client_hello, "request": one.t_request_sent, "end": one.t_last_byte}
    claim |= {"size": SIZE, "ahead": 0, "link": LinkSettings(mode="throughput"), "fastest_mbit": 400_000}
    problem = sent.problem(**claim, anywhere=True)
    assert problem is None if told is None else told in (problem or "")
    # it was sent before the interval that ends with the script
    assert sent.problem(**claim) is not None


def test_a_client_that_behaves_and_writes_no_times(make: Make, identity: Path, tmp_path: Path) -> None:
    code, seen = download(make("misbehaving"), identity, tmp_path, 4433)
    assert (code, reasons(seen)) == (0, [])


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("leaves children", "run-server.sh left processes behind that had to be killed: sleep"),
        ("exits with 3", "run-server.sh exited with 3: something of its own went wrong, before it was ready"),
        ("", None),
    ],
)
def test_a_server_that_misbehaves(how: str, reason: str | None, make: Make, identity: Path, tmp_path: Path) -> None:
    build = make("misbehaving", parameters={"MISBEHAVE": how})
    with serving(build, identity, tmp_path):
        pass
    log = events.read(tmp_path / "server.jsonl", "server")
    assert log.errors == ((reason,) if reason else ())
    assert sleepers() == []


def impatient(build: Path) -> Path:
    """A build whose server waits half a second for its port to be bound."""
    module = build / "lib" / "endpoint" / "server.py"
    text = module.read_text()
    assert "READY_TIMEOUT = 15.0" in text
    module.write_text(text.replace("READY_TIMEOUT = 15.0", "READY_TIMEOUT = 0.5"))
    return build


def test_a_server_that_is_never_ready(make: Make, identity: Path, tmp_path: Path) -> None:
    build = impatient(make("misbehaving", parameters={"MISBEHAVE": "never ready"}))
    with serving(build, identity, tmp_path) as port:
        pass
    expected = f"run-server.sh did not become ready: UDP port {port} not bound after 0.5 s"
    assert events.read(tmp_path / "server.jsonl", "server").errors == (expected,)


def report(*events: object) -> str:
    """What a script reports, a line each; a text as it is."""
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in events)


@pytest.mark.parametrize(
    ("text", "stated", "reason"),
    [
        (report({"event": "connection", "group": 29}), {}, "events.jsonl: line 1: `group` is 29, no text of one line"),
        (report({"event": "start"}, "{"), {}, "events.jsonl: line 1: `options` is no object"),
        (report("[" * 100_000), {}, "events.jsonl: line 1: is longer than 64 KiB"),
        (report({"event": "connection", "t_last_byte": 5}), {}, "events.jsonl: line 1: `t_last_byte` is not within"),
        (
            report({"event": "connection", "cipher": "a"}, {"event": "connection", "cipher": "b"}),
            {},
            "events.jsonl: the connections differ in `cipher`",
        ),
        ("", {"times": True}, "events.jsonl: has 0 connections, and quicbed.yaml says `times: true`"),
        (
            report({"event": "connection"}),
            {"times": True},
            "events.jsonl: has no `t_client_hello`, and quicbed.yaml says `times: true`",
        ),
        (report({"event": "connection", "error": "no route"}), {}, "events.jsonl: line 1: the connection failed: no"),
    ],
)
def test_a_report_that_cannot_be_used_fails_the_run(
    text: str, stated: dict[str, Any], reason: str, make: Make, identity: Path, tmp_path: Path
) -> None:
    build = make("misbehaving", parameters={"REPORT": text}, **stated)
    code, seen = download(build, identity, tmp_path, 4433)
    assert code == 1
    assert len(reasons(seen)) == 1
    assert reasons(seen)[0].startswith(reason)


def test_what_a_script_reports_is_in_the_events(make: Make, identity: Path, tmp_path: Path) -> None:
    build = make("misbehaving", parameters={"MISBEHAVE": "reports"}, times=True)
    code, seen = download(build, identity, tmp_path, 4433)
    assert (code, reasons(seen)) == (0, [])
    log = events.read(tmp_path / "client.jsonl", "client")
    (connection,) = log.connections
    assert (connection.cipher, connection.group) == ("TLS_AES_128_GCM_SHA256", "secp256r1")
    assert log.start.options["receive_buffer"] == 1234
    # times are its own, and no start of a program is in them
    assert events.goodput_mbps(connection) == SIZE * 8 / 1e3
    assert events.ttfb_ms(connection) == 0.5
    assert (connection.cpu_user_ns, connection.cpu_system_ns) == (3000, 2000)
    assert connection.t_client_hello is not None
    assert connection.t_close is not None
    assert connection.t_close > connection.t_client_hello + 2_000_000


def test_a_server_may_report_what_is_in_force_after_it_has_bound_its_port(
    make: Make, identity: Path, tmp_path: Path
) -> None:
    build = make("misbehaving", parameters={"MISBEHAVE": "reports late"}, supports=BUFFERED)
    with serving(build, identity, tmp_path):
        pass
    log = events.read(tmp_path / "server.jsonl", "server")
    assert log.errors == ()
    assert log.start.options["receive_buffer"] == 1234


def test_nothing_in_logs_is_left_for_the_next_connection(make: Make, identity: Path, tmp_path: Path) -> None:
    build = make("misbehaving", parameters={"MISBEHAVE": "keeps a ticket"}, qlog=True)
    code, seen = download(build, identity, tmp_path, 4433, "--connections", "3")
    assert (code, reasons(seen)) == (0, [])
    kept = sorted(path.relative_to(tmp_path / "client.logs") for path in (tmp_path / "client.logs").rglob("ticket"))
    assert kept == [Path(f"{index:05d}/ticket") for index in range(3)]


def test_a_folder_that_takes_any_test_case_is_refused(make: Make) -> None:
    with pytest.raises(BuildError, match=r"run-client\.sh exited with 0 for test case \w+; it must exit with 127"):
        make("misbehaving", parameters={"MISBEHAVE": "does anything"})


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/no/such/shell\n", "its interpreter /no/such/shell is missing"),
        ("#!/usr/bin/env no-such-python\n", "its interpreter no-such-python is missing"),
        ("#!/bin/sh\nexec no-such-python x\n", "needs a program that is missing"),
    ],
)
def test_a_missing_interpreter_is_said_in_every_run(
    script: str, reason: str, make: Make, identity: Path, tmp_path: Path
) -> None:
    shutil.copytree(FOLDERS / "misbehaving", tmp_path / "folder")
    (tmp_path / "folder" / "run-client.sh").write_text(script)
    code, seen = download(make(tmp_path / "folder"), identity, tmp_path, 4433)
    assert code == 1
    assert len(reasons(seen)) == 1
    assert reason in reasons(seen)[0]


@pytest.mark.parametrize(
    ("script", "content", "told"),
    [
        ("setup-env.sh", b"#!/bin/bash\r\nexit 0\r\n", r"setup-env\.sh: has Windows line ends \(CRLF\).*sed -i"),
        ("setup-env.sh", b"\r\n: made up\r\nexit 0\r\n", r"setup-env\.sh: has Windows line ends"),
        ("run-client.sh", b"#!/usr/bin/env python3\r\nprint()\n", r"run-client\.sh: has Windows line ends"),
        ("run-server.sh", b"#!/bin/sh\nexit 127\r\n", r"run-server\.sh: has Windows line ends"),
        ("run-client.sh", b"#!/bin/sh\nexec ./other.sh\n", r"run-client\.sh: other\.sh has Windows line ends"),
        ("run-client.sh", b"#!/bin/bash\nexit'\r'\n", r"run-client\.sh: what it starts has Windows line ends"),
        ("setup-env.sh", b"\xef\xbb\xbf#!/bin/bash\nexit 0\n", r"setup-env\.sh: begins with a byte order mark"),
        ("run-client.sh", "#!/bin/sh\nexit 127\n".encode("utf-16"), r"run-client\.sh: begins with a byte order mark"),
    ],
)
def test_what_an_editor_on_windows_made_of_a_script_is_said(
    script: str, content: bytes, told: str, make: Make, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(FOLDERS / "misbehaving", folder)
    (folder / "other.sh").write_bytes(b"#!/bin/sh\r\nexit 127\r\n")
    (folder / "other.sh").chmod(0o755)
    (folder / script).write_bytes(content)
    with pytest.raises(UnusableError, match=told):
        make(folder)


def test_lines_of_a_script_of_another_language_may_end_as_they_like(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(FOLDERS / "misbehaving", folder)
    (folder / "run-client.sh").write_bytes(b"#!/usr/bin/env python3\nimport sys\r\nsys.exit(127)\r\n")
    (folder / "VERSION").write_bytes(b"\xef\xbb\xbf1.5\r\n")
    assert json.loads((make(folder) / "build.json").read_text())["version"] == "1.5"


def test_a_changed_folder_is_a_new_build(make: Make, tmp_path: Path) -> None:
    shutil.copytree(FOLDERS / "misbehaving", tmp_path / "folder")
    first = make(tmp_path / "folder")
    (tmp_path / "folder" / "venv").mkdir()
    (tmp_path / "folder" / "venv" / "made").write_text("by setup-env.sh")
    assert make(tmp_path / "folder") == first
    (tmp_path / "folder" / "endpoint.py").open("a").write("\n")
    assert make(tmp_path / "folder") != first


VARIANT = {
    "QUICBED_CIPHER": "aes-128-gcm",
    "QUICBED_AEAD": "standard",
    "QUICBED_HEADER_PROTECTION": "on",
    "QUICBED_GROUP": "x25519",
    "QUICBED_SIGNATURE": "rsa-2048",
    "QUICBED_CONGESTION_CONTROL": "cubic",
    "QUICBED_UDP_PAYLOAD": "1472",
    "QUICBED_WINDOW": "16777216",
}
"""Of a folder that states the least."""


def test_scripts_are_told_where_the_components_of_the_flavour_are(make: Make, identity: Path, tmp_path: Path) -> None:
    stated = yaml.safe_load((FOLDERS / "misbehaving" / "quicbed.yaml").read_text(encoding="utf-8"))
    folder = tmp_path / "folder"
    shutil.copytree(FOLDERS / "misbehaving", folder)
    stated["flavours"] = {"stock": {"components": ["boringssl"]}}
    (folder / "quicbed.yaml").write_text(yaml.safe_dump(stated), encoding="utf-8")
    build = make(folder, parameters={"MISBEHAVE": "tells"})
    with serving(build, identity, tmp_path) as port:
        code, seen = download(build, identity, tmp_path, port)
    assert (code, reasons(seen)) == (0, [])
    for role in ("client", "server"):
        given = json.loads((tmp_path / f"{role}.logs" / "told.json").read_text())["environment"]
        assert (Path(given["QUICBED_BORINGSSL"]) / "lib" / "libssl.a").is_file()
        assert (Path(given["QUICBED_BORINGSSL_SOURCE"]) / "crypto" / "internal.h").is_file()
        assert (Path(given["QUICBED_CRYPTO"]) / "noop-aead" / "noop_aead.cc").is_file()
        assert "QUICBED_LIBOQS" not in given


@pytest.mark.parametrize("qlog", [True, False])
def test_scripts_of_both_sides_are_told_what_the_contract_says(
    qlog: bool, make: Make, identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QLOGDIR", "/elsewhere")
    for name in [name for name in os.environ if name.startswith("QUICBED_")]:  # those of the tests themselves
        monkeypatch.delenv(name)
    other = tmp_path / "other"
    shutil.copytree(FOLDERS / "misbehaving", other)
    parameters = {"MISBEHAVE": "tells", "CONGESTION": "cubic"}
    build = make("misbehaving", server_path=str(other), parameters=parameters, qlog=qlog)
    with serving(build, identity, tmp_path) as port:
        code, seen = download(build, identity, tmp_path, port)
    assert (code, reasons(seen)) == (0, [])
    told = {role: json.loads((tmp_path / f"{role}.logs" / "told.json").read_text()) for role in ("client", "server")}
    assert [told[role]["directory"] for role in told] == [str(FOLDERS / "misbehaving"), str(other)]
    for role, given in told.items():
        logs, environment = tmp_path / f"{role}.logs", given["environment"]
        expected = {"TESTCASE": "goodput", "LOGS": str(logs), "SSLKEYLOGFILE": str(logs / "keys.log"), **parameters}
        expected |= {"QUICBED_EVENTS": str(logs / "events.jsonl"), "QUICBED_FLAVOUR": "stock", **VARIANT}
        assert {name for name in environment if name.startswith("QUICBED_")} == {
            name for name in expected if name.startswith("QUICBED_")
        }
        assert expected.items() <= environment.items()
        assert environment.get("QLOGDIR") == (f"{logs}/qlog/" if qlog else None)
        assert (logs / "qlog" / "told.json").exists() == qlog
        assert given["variables"] == {
            "implementation": "ext",
            "role": role,
            "log_dir": str(logs),
            "parameters": parameters,
            **parameters,
        }
    server = {"IP": "127.0.0.1", "PORT": str(port), "SERVERNAME": "server"}
    assert server.items() <= told["server"]["environment"].items()
    assert told["server"]["files"] == {"WWW": [str(SIZE)], "CERTS": ["cert.pem", "priv.key"]}
    assert told["client"]["environment"]["REQUESTS"] == f"https://server:{port}/{SIZE}"
    assert told["client"]["files"] == {"CERTS": ["ca.pem"]}


def test_a_folder_without_its_scripts(make: Make, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"external\.path: .* has no quicbed\.yaml; state there what it can do"):
        make(tmp_path)
    shutil.copy(FOLDERS / "misbehaving" / "quicbed.yaml", tmp_path)
    with pytest.raises(BuildError, match=r"external\.path: .* has no setup-env\.sh"):
        make(tmp_path)
    with pytest.raises(BuildError, match=r"external\.path: .* is no directory"):
        make(tmp_path / "none")


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("VERSION", None, "VERSION: cannot be read; its first line has to be the version"),
        ("VERSION", "\n1.0\n", "VERSION: is empty; its first line has to be the version"),
        ("setup-env.sh", "#!/bin/sh\necho no compiler\nexit 4\n", "setup-env.sh exited with 4: no compiler"),
        ("setup-env.sh", "#!/bin/sh\nexit 127\n", "setup-env.sh exited with 127"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_when_built(
    file: str, text: str | None, reason: str, make: Make, tmp_path: Path
) -> None:
    shutil.copytree(FOLDERS / "misbehaving", tmp_path / "folder")
    if text is None:
        (tmp_path / "folder" / file).unlink()
    else:
        (tmp_path / "folder" / file).write_text(text)
    with pytest.raises(BuildError, match=re.escape(reason)):
        make(tmp_path / "folder")


def test_a_folder_that_cannot_be_used_is_recorded_and_tried_again(tmp_path: Path) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})
    project.libraries["ext"] = described(path=str(tmp_path / "folder"))

    def build() -> Path:
        return making.build(project, "ext", "stock", jobs=1, log=tmp_path / "build.log")

    missing = making.listing(project, "ext", "stock")
    with pytest.raises(UnusableError, match="is no directory"):
        build()
    assert "is no directory" in (making.problem_of(missing) or "")

    copy_of_misbehaving(tmp_path, "setup-env.sh", "test -e venv/compiler")
    project.libraries["ext"] = described(path=str(tmp_path / "folder"))  # what it states is read with the configuration
    copy = making.listing(project, "ext", "stock")
    assert copy != missing
    with pytest.raises(UnusableError, match=r"setup-env\.sh exited with 1"):
        build()
    known = making.read_known(project, "ext", "stock")
    assert (known.build, known.version) == (copy.stem, "2.0")
    assert known.problem == making.problem_of(copy) == f"{tmp_path / 'folder'}: setup-env.sh exited with 1"

    changing = tmp_path / "folder" / "setup-env.sh"
    changing.write_text("#!/bin/sh\necho more >> notes\n", encoding="utf-8")
    with pytest.raises(UnusableError):
        build()
    # what it has become is known as unusable too
    assert making.read_known(project, "ext", "stock").problem

    (tmp_path / "folder" / "notes").unlink()
    changing.write_text("#!/bin/sh\ntest -e venv/compiler\n", encoding="utf-8")
    assert making.listing(project, "ext", "stock") == copy
    (tmp_path / "folder" / "venv").mkdir(exist_ok=True)
    (tmp_path / "folder" / "venv" / "compiler").touch()
    assert build() == copy
    assert making.problem_of(copy) is None
    assert making.read_known(project, "ext", "stock").problem is None


def test_the_workflow_goes_on_without_a_folder_that_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    for name in ("config", "envs", "workflow"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "target"))
    for name in ("Snakefile", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    library = {"external": {"path": str(tmp_path / "none")}}
    (root / "config" / "libraries" / "ext.yaml").write_text(json.dumps(library), encoding="utf-8")
    (root / "config" / "config.yaml").write_text("scale: tiny\nexperiments: [test]\n", encoding="utf-8")
    experiment = yaml.safe_load(EXPERIMENT.replace("KIND", "bulk")) | {"libraries": ["ext"]}
    (root / "config" / "experiments" / "test.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    # so that nothing is fetched
    (root / "build" / "sources").mkdir(parents=True)
    (root / "build" / "sources" / "sources.json").write_text("{}", encoding="utf-8")
    copy = making.listing(Project(root), "ext", "stock")
    argv = [str(Path(sys.executable).parent / "snakemake"), "--cores", "1", str(copy)]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    reason = f"config/libraries/ext.yaml: external.path: {tmp_path / 'none'} is no directory"
    assert f"LEFT OUT: ext, stock: {reason}" in done.stderr
    assert (making.problem_of(copy) or "").startswith(reason)


def test_a_venv_that_was_not_finished_is_made_again(make: Make, identity: Path, tmp_path: Path) -> None:
    folder = copy_of_misbehaving(
        tmp_path,
        "setup-env.sh",
        "test ! -d venv || exit 0",
        "mkdir venv",
        "test ! -e target/trouble || exec sleep 986",
        ": >venv/whole",
    )
    build = make(folder)
    shutil.rmtree(folder / "venv")
    (folder / "target").mkdir()
    (folder / "target" / "trouble").touch()
    argv = [str(build / "bin" / "client"), "--connect", "127.0.0.1:4433", "--server-name", "server", "--bytes", "9"]
    argv += ["--ca", str(identity / "ca.pem"), "--events", str(tmp_path / "client.jsonl")]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 20
    while not (folder / "venv").is_dir():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    assert not (folder / "venv" / "whole").exists()
    (folder / "target" / "trouble").unlink()
    code, seen = download(build, identity, tmp_path, 4433)
    assert (code, reasons(seen)) == (0, [])
    assert (folder / "venv" / "whole").exists()
    assert not (folder / external.UNFINISHED).exists()


def test_the_description_needs_the_folder() -> None:
    with pytest.raises(ConfigError, match=r"external\.path: is missing"):
        parse_model(ExternalFile, {"external": {}}, "test")


def generate(library: str, folder: Path) -> None:
    """Make the runner's folder of a stock build."""
    argv = [sys.executable, "-m", "quicbed", "runner-folder", library, "--out", str(folder)]
    subprocess.run(argv, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")}, capture_output=True)


@pytest.mark.parametrize(("client", "server"), [("ext", "quinn"), ("quinn", "ext")])
def test_a_generated_folder_plugs_in_again(
    client: str, server: str, make: Make, build_of: Callable[[str, str], Path], identity: Path, tmp_path: Path
) -> None:
    quinn = build_of("quinn", "stock")
    generate("quinn", tmp_path / "folder")
    of = {"quinn": quinn, "ext": make(tmp_path / "folder")}
    with serving(of[server], identity, tmp_path) as port:
        code, seen = download(of[client], identity, tmp_path, port)
    assert (code, reasons(seen)) == (0, [])
    assert events.read(tmp_path / "server.jsonl", "server").errors == ()
    assert (tmp_path / "folder" / "VERSION").read_text().splitlines()[0]


QUIC = [name for name in sample.libraries("stock") if sample.project().libraries[name].transport == "quic"]


@dataclass
class Runner:
    """What the runner does for a pair of folders: directories, environment, one server, one client after the other."""

    directory: Path
    identity: Path
    port: int
    address: str = "127.0.0.1"

    def environment(self, role: str, **more: str) -> dict[str, str]:
        made = {name: self.directory / role / name.lower() for name in ("LOGS", "WWW", "DOWNLOADS", "CERTS")}
        for path in made.values():
            path.mkdir(parents=True, exist_ok=True)
        for name, source in (("cert.pem", "server.pem"), ("priv.key", "server.key")):
            shutil.copy(self.identity / source, made["CERTS"] / name)
        for foreign in {"client": ("CERTS", "WWW"), "server": ("DOWNLOADS",)}[role]:
            del made[foreign]
        told = {name: f"{path}/" for name, path in made.items() if name != "LOGS"} | {"LOGS": str(made["LOGS"])}
        keys = {"SSLKEYLOGFILE": str(made["LOGS"] / "keys.log")}
        return {**os.environ, "TESTCASE": "goodput", **told, **keys, **more}

    @contextlib.contextmanager
    def serving(self, folder: Path) -> Iterator[None]:
        environment = self.environment("server", IP=self.address, PORT=str(self.port), SERVERNAME="server")
        process = subprocess.Popen(["./run-server.sh"], cwd=folder, env=environment, stderr=subprocess.DEVNULL)
        log = Path(environment["LOGS"]) / "server.jsonl"
        try:
            deadline = time.monotonic() + 30
            while not (log.exists() and '"ready"' in log.read_text()):
                assert process.poll() is None, log.read_text() if log.exists() else "no log"
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield
        finally:
            process.terminate()
            process.wait(10)

    def fetch(self, folder: Path, *names: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        requests = " ".join(f"https://server:{self.port}/{name}" for name in names)
        environment = self.environment("client", REQUESTS=requests, **more)
        hosts = self.directory / "hosts"
        hosts.write_text(f"{self.address.strip('[]')} server\n", encoding="utf-8")
        argv = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec ./run-client.sh', str(hosts)]
        return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("library", QUIC)
def test_a_generated_folder_serves_and_fetches_files_of_any_content(
    library: str, build_of: Callable[[str, str], Path], identity: Path, tmp_path: Path
) -> None:
    build_of(library, "stock")
    folder = tmp_path / "folder"
    generate(library, folder)
    runner = Runner(tmp_path, identity, free_port())
    environment = runner.environment("server")
    files = {"AbcXyz": os.urandom(2_500_001), "tiny.bin": b"\0", "nothing": b"", "1000": os.urandom(17)}
    for name, content in files.items():
        (Path(environment["WWW"]) / name).write_bytes(content)
    with runner.serving(folder):
        done = runner.fetch(folder, *files)
        assert done.returncode == 0, done.stdout + done.stderr
        assert runner.fetch(folder, "missing").returncode == 1
        downloads = Path(runner.environment("client")["DOWNLOADS"])
        assert {name: (downloads / name).read_bytes() for name in files} == files
        # a client that is given a trust anchor verifies the server against it
        shutil.copy(identity / "ca.pem", folder)
        assert runner.fetch(folder, "tiny.bin").returncode == 0
        certificates.make(tmp_path / "stranger")
        shutil.copy(tmp_path / "stranger" / "ca.pem", folder)
        assert runner.fetch(folder, "tiny.bin").returncode == 1
    logs = tmp_path / "client" / "logs"
    times = json.loads((logs / "time.json").read_text())
    assert times["start"] < times["end"]
    assert "CLIENT_TRAFFIC_SECRET_0" in (logs / "keys.log").read_text()
    served = events.read(tmp_path / "server" / "logs" / "server.jsonl", "server")
    assert [connection.bytes_sent for connection in served.connections][:4] == [len(data) for data in files.values()]


@pytest.mark.parametrize("address", ["::1", "[::1]"])
def test_a_generated_folder_serves_over_ipv6(
    address: str, build_of: Callable[[str, str], Path], identity: Path, tmp_path: Path
) -> None:
    build_of("quinn", "stock")
    folder = tmp_path / "folder"
    generate("quinn", folder)
    runner = Runner(tmp_path, identity, free_port(), address)
    (Path(runner.environment("server")["WWW"]) / "some").write_bytes(b"content")
    with runner.serving(folder):
        done = runner.fetch(folder, "some")
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"is not verified" in done.stdout
    assert (Path(runner.environment("client")["DOWNLOADS"]) / "some").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("names", "test_case", "said"),
    [
        (["below/file"], "goodput", b"only https://<name>:<port>/<file> can be fetched"),
        (["one", "two"], "transfer", b"test case transfer wants them on one"),
        (["one"], "chacha20", b""),
    ],
)
def test_a_generated_folder_refuses_what_it_cannot_do(
    names: list[str], test_case: str, said: bytes, build_of: Callable[[str, str], Path], identity: Path, tmp_path: Path
) -> None:
    build_of("quinn", "stock")
    generate("quinn", tmp_path / "folder")
    done = Runner(tmp_path, identity, 4433).fetch(tmp_path / "folder", *names, TESTCASE=test_case)
    assert done.returncode == 127
    assert said in done.stdout


def test_a_stopped_client_leaves_nothing(make: Make, identity: Path, tmp_path: Path) -> None:
    build = make("misbehaving", parameters={"MISBEHAVE": "hangs"})
    log = tmp_path / "client.jsonl"
    argv = [str(build / "bin" / "client"), "--connect", "127.0.0.1:4433", "--server-name", "server", "--bytes", "9"]
    argv += ["--ca", str(identity / "ca.pem"), "--events", str(log)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    running = b"endpoint.py\x00client"

    def scripts() -> list[Path]:
        return [f for f in Path("/proc").glob("[0-9]*/cmdline") if running in _read(f)]

    deadline = time.monotonic() + 20
    while not scripts():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 1
    assert scripts() == []
    assert events.read(log, "client").errors == ("stopped by a signal",)


STARTS = 3
EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: KIND}
link: {mode: throughput}
libraries: [quiche, {client: ext, server: quiche}, {client: quiche, server: ext}]
variants: [{label: AES-128-GCM, cipher: aes-128-gcm}]
baseline: AES-128-GCM
aa: false
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 60}
"""


def matrix(how: str, kind: str, make: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Measures fake endpoints and a misbehaving external one with each other; the proof of each pair by name."""

    class Proven:
        def model_dump(self, mode: str) -> dict[str, str]:
            return {"mode": mode}

    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    folder = FOLDERS / "misbehaving"
    if how == "missing interpreter":
        folder = shutil.copytree(folder, root.parent / "folder")
        (folder / "run-client.sh").write_text("#!/no/such/shell\n")
    build = make(folder, parameters={"MISBEHAVE": how})
    if how == "never ready":
        impatient(build)
    experiment = EXPERIMENT.replace("KIND", kind)
    if kind == "handshake":
        experiment = experiment.replace("bytes: 1000,", f"bytes: 1, connections: {STARTS},")
        # the made-up server would report connections that this client does not make
        experiment = experiment.replace("{client: ext, server: quiche}", "ext")
    # the ids of these builds are made up
    monkeypatch.setattr(making, "changed", lambda *_: None)
    fakeproject.make(root, experiment.replace("ext", "quinn"), monkeypatch)
    monkeypatch.setattr(pair_module, "READY_TIMEOUT", 20.0)
    monkeypatch.setattr(pair_module, "STOP_TIMEOUT", 5.0)
    library = {"external": {"path": str(folder)}}
    (root / "config" / "libraries" / "ext.yaml").write_text(json.dumps(library), encoding="utf-8")
    (root / "config" / "experiments" / "test.yaml").write_text(experiment, encoding="utf-8")
    project = Project(root)
    shutil.copytree(build, project.build / "ext-stock")
    with contextlib.suppress(MeasureError):
        fakeproject.run(project)
    found = fakeproject.runs(project, "proofs/*")
    first: dict[str, dict[str, Any]] = {}
    for run in sorted(found, key=lambda run: run["started_at"]):
        first.setdefault(f"{run['client']['library']} {run['server']['library']}", run)
    return first


@pytest.mark.parametrize(
    ("how", "pair", "reason"),
    [
        (
            "no file",
            "ext quiche",
            f"the client exited with 1: run-client.sh exited with 0 without the file {spec.PROOF_BYTES} in",
        ),
        ("unreadable time", "ext quiche", 'the client exited with 1: time.json: is not {"start": ns, "end": ns}'),
        (
            "missing interpreter",
            "ext quiche",
            "the client exited with 1: FOLDER/run-client.sh: its interpreter /no/such/shell is missing",
        ),
        # its files are right, but it did not fetch them from the server
        ("", "ext quiche", "the server reported no connection"),
        (
            "never ready",
            "quiche ext",
            "the server exited with 1: run-server.sh did not become ready: UDP port 4433 not",
        ),
    ],
)
def test_the_rest_of_a_matrix_goes_on(
    how: str, pair: str, reason: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven = matrix(how, "bulk", make, tmp_path / "project", monkeypatch)
    assert proven["quiche quiche"]["status"] == "ok"
    assert proven[pair]["status"] == "failed"
    assert proven[pair]["reason"].startswith(reason.replace("FOLDER", str(tmp_path / "folder")))
    if pair == "ext quiche":
        # what an external endpoint cannot tell is null in the evidence, and the other end tells it
        assert proven["quiche ext"]["status"] == "ok"
        assert proven["quiche ext"]["evidence"]["server"]["cipher"] is None
        assert proven["quiche ext"]["evidence"]["client"]["cipher"] == "TLS_AES_128_GCM_SHA256"


BUFFERED = StatedSupports(
    ciphers=["aes-128-gcm"], groups=["x25519"], congestion_controls=["cubic"], receive_buffer=True
)


def pair(
    make: Make,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: dict[str, Any],
    server: dict[str, Any] | list[str],
    **limits: float,
) -> Project:
    """A project that measures an external client with an external server, or a fake one that behaves like this.

    `limits` are time limits of the driver.
    """
    experiment = EXPERIMENT.replace("KIND", "bulk")
    # the ids of these builds are made up
    monkeypatch.setattr(making, "changed", lambda *_: None)
    project = fakeproject.make(root, experiment.replace("ext", "quinn"), monkeypatch)
    sides = {}
    for role, side in (("client", client), ("server", server)):
        if isinstance(side, list):
            fakeproject.behave(project, "quiche", "stock", **{role: side})
            sides[role] = "quiche"
            continue
        described_by = {"path": str(FOLDERS / "misbehaving"), **side}
        project.libraries[f"own-{role}"] = described(**described_by)
        shutil.copytree(make(described_by.pop("path"), **described_by), project.build / f"own-{role}-stock")
        sides[role] = f"own-{role}"
    data = yaml.safe_load(experiment) | {"libraries": [sides]}
    project.experiments["test"] = parse_model(Experiment, data, "test").resolved(project.libraries)
    for name, seconds in ({"STOP_TIMEOUT": 5.0, "READY_TIMEOUT": 20.0, "HANG_MARGIN": 10.0} | limits).items():
        monkeypatch.setattr(external if name == "SET_UP_TIMEOUT" else pair_module, name, seconds)
    return project


def test_a_client_of_several_files_finds_them_in_another_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FOLDERS / "misbehaving", tmp_path / "other")
    server = {"path": str(tmp_path / "other"), "parameters": {"MISBEHAVE": "tells"}}
    # setting up is not part of what the driver's other limits are for
    limits = {"READY_TIMEOUT": 0.0, "HANG_MARGIN": -60.0}
    project = pair(make, tmp_path / "project", monkeypatch, {"requests": 3}, server, **limits)
    attempt = fakeproject.once(project, tmp_path / "run")
    assert (attempt.status, attempt.reason) == ("ok", None)
    told = json.loads((tmp_path / "run" / "server.logs" / "told.json").read_text())
    assert told["files"]["WWW"] == ["330", "331", "339"]


def test_connections_of_one_download_are_added_up(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = pair(make, tmp_path / "project", monkeypatch, {"requests": 3}, ["by-file", "by-file-short"])
    attempt = fakeproject.once(project, tmp_path / "whole")
    assert (attempt.status, attempt.reason) == ("ok", None)
    assert attempt.metrics["server_packets_sent"] == 3 * 10
    assert not {"server_cpu_s", "server_cpu_s_per_gib"} & set(attempt.metrics)
    assert set(attempt.evidence["unknown"]) == {"server_cpu_s"}
    attempt = fakeproject.once(project, tmp_path / "short")
    assert attempt.status == "failed"
    assert attempt.reason == "the server sent 999 of 1000 bytes, on 3 connections"


def test_a_report_that_contradicts_the_cell_fails_the_run(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = {"parameters": {"MISBEHAVE": "reports"}, "supports": BUFFERED}
    project = pair(make, tmp_path / "project", monkeypatch, client, ["by-file"])
    (variant,) = project.experiments["test"].variants
    varied = [variant.model_copy(update={"receive_buffer": 425_984})]
    project.experiments["test"] = project.experiments["test"].model_copy(update={"variants": varied})
    attempt = fakeproject.once(project, tmp_path / "run")
    assert attempt.status == "failed"
    assert attempt.contradictions == [
        "evidence: the client reports group secp256r1, the cell says x25519",
        "evidence: the client reports receive_buffer 1234, the cell says 425984",
    ]


def test_what_a_client_that_is_stopped_has_detached_is_ended(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # when it is built there is no driver that loses patience
    folder = copy_of_misbehaving(
        tmp_path,
        "setup-env.sh",
        'test -n "$QUICBED_FOLDER" || exit 0',
        'setsid sleep 987 & : >"$LOGS/detached"',
        "exec sleep 986",
    )
    limits = {"SET_UP_TIMEOUT": 0.0, "HANG_MARGIN": -57.0}
    project = pair(make, tmp_path / "project", monkeypatch, {"path": str(folder)}, ["ok"], **limits)
    attempt = fakeproject.once(project, tmp_path / "run")
    assert attempt.status == "failed"
    assert attempt.reason == "the client hung: not finished 3 s after its start"
    assert (tmp_path / "run" / "client.logs" / "detached").exists()
    assert sleepers() == []


def handshakes(
    captured: int, make: Make, root: Path, monkeypatch: pytest.MonkeyPatch, resumed: int = 0
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Measures handshakes with and without an external end; proofs, and runs, each by pair.

    Captures hold this many, of which some are resumed.
    """

    def openings(capture: Path, *, server_ip: str, server_port: int) -> list[handshake.Opening]:
        assert capture.is_file()
        assert (server_ip, server_port) == ("127.0.0.1", PORT)
        begin = 10**18
        return [
            handshake.Opening(
                index=index, client_port=1000, t_client_hello=begin, t_client_one_rtt=begin + (index + 1) * 10**6
            )
            for index in range(captured)
        ]

    monkeypatch.setattr(handshake, "openings", openings)
    monkeypatch.setattr(proof, "resumed", lambda *_, **__: resumed)
    monkeypatch.setattr(spec, "PROOF_CONNECTIONS", STARTS)
    monkeypatch.setattr(examine.Examiner, "handshakes", lambda *_: ({}, []))
    proven = matrix("", "handshake", make, root, monkeypatch)
    seen = fakeproject.runs(Project(root), "test/*/b*")
    return proven, {f"{run['client']['library']} {run['server']['library']}": run for run in seen}


def test_handshakes_of_an_external_client_are_timed_in_the_capture(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    proven, seen = handshakes(STARTS, make, root, monkeypatch)
    assert {pair: run["status"] for pair, run in seen.items()} == dict.fromkeys(
        ("quiche quiche", "quiche ext", "ext ext"), "ok"
    )
    external = seen["ext ext"]
    assert (external["metrics"]["connections"], external["metrics"]["ttfb_ms"]) == (STARTS, 2.0)
    # of programs that start for every connection, neither rate nor processor time tells of handshakes
    assert not {"handshakes_per_s", "client_cpu_ms", "confirmed_ms"} & set(external["metrics"])
    assert set(external["evidence"]["unknown"]) == {"client_cpu_ms", "confirmed_ms", "first_byte_ms"}
    assert external["evidence"]["ttfb"].startswith("capture")
    assert "ttfb" not in seen["quiche quiche"]["evidence"]
    (table,) = [
        rows["ttfb_ms"].to_list()
        for (library, _), rows in details.read(root / "raw").connections.group_by("library", "origin")
        if library == "ext"
    ]
    assert table == [1.0, 2.0, 3.0]
    assert proven["ext ext"]["status"] == "ok"
    kept = list(root.glob("raw/local/**/capture.pcap"))
    assert kept
    assert all("proofs" in path.parts for path in kept)


def test_a_capture_with_other_connections_than_asked_for_fails_the_run(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven, seen = handshakes(STARTS - 1, make, tmp_path / "project", monkeypatch)
    assert proven["ext ext"]["status"] == "failed"
    assert proven["ext ext"]["reason"] == f"the capture holds {STARTS - 1} connections, {STARTS} were asked for"
    assert "ext ext" not in seen


def test_resumed_handshakes_fail_the_run(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven, seen = handshakes(STARTS, make, tmp_path / "project", monkeypatch, resumed=2)
    assert proven["ext ext"]["status"] == "failed"
    assert "takes a pre-shared key on 2 connections: the scripts have kept a ticket" in proven["ext ext"]["reason"]
    assert "ext ext" not in seen


def test_starts_of_an_example_folder_can_be_timed_in_a_capture(
    make: Make, build_of: Callable[[str, str], Path], identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUICBED_WORKLOAD", "handshake")
    quinn = build_of("quinn", "stock")
    build = make("wrapping", parameters={"PROGRAMS": str(quinn / "bin")})
    with serving(quinn, identity, tmp_path, size=1) as port:
        argv = ["tcpdump", "-i", "lo", "-U", "--immediate-mode", "--time-stamp-precision=nano", "-Z", "root", "-w"]
        argv += [str(tmp_path / "capture.pcap"), "udp", "port", str(port)]
        with subprocess.Popen(argv, stderr=subprocess.PIPE) as tcpdump:
            try:
                assert tcpdump.stderr is not None
                while b"listening on" not in tcpdump.stderr.readline():
                    assert tcpdump.poll() is None
                code, seen = download(build, identity, tmp_path, port, "--connections", "3", size=1)
                deadline = time.monotonic() + 20
                found: list[handshake.Opening] = []
                while len(found) < 3 or found[-1].ttfb_ms is None:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                    with contextlib.suppress(handshake.HandshakeError):  # while it is written
                        found = handshake.openings(tmp_path / "capture.pcap", server_ip="127.0.0.1", server_port=port)
            finally:
                tcpdump.terminate()
    assert (code, reasons(seen)) == (0, [])
    assert [one.index for one in found] == [0, 1, 2]
    assert all((one.ttfb_ms or 0) > 0 for one in found)
    log = events.read(tmp_path / "client.jsonl", "client")
    for one, connection in zip(found, log.connections, strict=True):
        # of a handshake the whole run of the script tells neither time
        assert connection.t_handshake_complete is None
        assert connection.cpu_user_ns is None
        assert connection.t_close is not None
        assert connection.t_client_hello is not None
        assert (one.ttfb_ms or 0) * 1e6 < connection.t_close - connection.t_client_hello


MATRIX = """
title: Test
source: none
question: none
workload: {kind: bulk, congestion_control: any}
link: {mode: throughput}
libraries: [quinn, wrapped]
pairwise: true
failures: findings
variants: [{label: AES-128-GCM, cipher: aes-128-gcm}]
baseline: AES-128-GCM
aa: false
scales:
  tiny: {bytes: 300001, blocks: 1, timeout_s: 10}
"""


def test_every_pair_with_external_endpoints_on_the_testbed(
    build_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """quinn's endpoint and quiche's behind the scripts of a folder, each with each other."""
    quinn, quiche = build_of("quinn", "stock"), build_of("quiche", "stock")
    paths = {"build": str(tmp_path / "build"), "raw": str(tmp_path / "raw")}
    project = Project(ROOT, {"scale": "tiny", "paths": paths, "gate": {"retries": 0}})
    wrapped = described(path=str(FOLDERS / "wrapping"), parameters={"PROGRAMS": str(quiche / "bin")})
    # whether the start is small beside a download is not what is tested, and files of a GiB take their time
    project.libraries["wrapped"] = wrapped.model_copy(update={"max_bytes": 16 << 20})
    making.build(project, "wrapped", "stock", jobs=1, log=tmp_path / "build.log")
    (project.build / quinn.name).symlink_to(quinn)
    certificates.make(certificates.directory(project))
    project.experiments["test"] = parse_model(Experiment, yaml.safe_load(MATRIX), "test").resolved(project.libraries)
    session.measure(project, "test", tmp_path / "marker.json")

    table = runs.table(project.raw).filter((pl.col("experiment") == "test") & pl.col("block").is_not_null())
    pairs = table.select("client_library", "server_library", "status", "reason").sort(
        "client_library", "server_library"
    )
    names = ("quinn", "wrapped")
    assert pairs.rows() == [(client, server, "ok", None) for client in names for server in names]
    assert table["goodput_mbps"].min() > 0  # type: ignore[operator]
    assert json.loads((tmp_path / "marker.json").read_text(encoding="utf-8"))["findings"] == {}
    # both ends report what was negotiated; the capture of the proof shows it, and its key log
    (proven,) = (project.raw / "local" / "proofs").glob("*/wrapped-aes-128-gcm-*/run.json")
    evidence = json.loads(proven.read_text(encoding="utf-8"))["evidence"]
    assert evidence["client"]["cipher"] == evidence["server"]["cipher"] == "TLS_AES_128_GCM_SHA256"
    assert (evidence["seen"]["cipher_suites"], evidence["seen"]["groups"]) == ([0x1301], [0x001D])
    assert evidence["signatures"] == [0x0804]  # rsa_pss_rsae_sha256
    assert "unproven" not in evidence


def _read(file: Path) -> bytes:
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""
