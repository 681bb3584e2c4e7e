"""What a host sends stays below the directory that it is for, whatever the host says."""

from __future__ import annotations

import asyncio
import io
import json
import random
import stat
import tarfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncssh
import pytest
from syrupy.assertion import SnapshotAssertion

import hostile
import wording
from hostile import damaged, document, property_of
from quicbed.config.model import Interface, Limits, SshAddress
from quicbed.store import tarball
from quicbed.testbed import TestbedError
from quicbed.testbed.agent import LENGTHS, MAX_BLOB, MAX_HEADER
from quicbed.testbed.base import HostLostError
from quicbed.testbed.lifecycle import Attempts
from quicbed.testbed.remote import RemoteHost, RemoteProcess, _hello
from quicbed.testbed.ssh import Connection, Loop, UnreachableError, _finite, _of_64_bits, _refuse, connect

LIMITS = Limits(files=20, total_mib=16, path_bytes=64)
INPUTS = hostile.INPUTS or 2500

# ---- archives --------------------------------------------------------------------------------------------------------


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def archive(directory: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    file = directory / "build.tar"
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as out:
        for info, content in members:
            out.addfile(info, io.BytesIO(content))
    return file


SYM, HARD, DIR, FIFO = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE


@pytest.mark.parametrize(
    "members",
    [
        # a link, then a file of the same name: tarfile writes through the link
        [("made/x", SYM, "../../outside"), ("made/x", tarfile.REGTYPE, "")],
        [("made/./x", SYM, "a"), ("made/x", tarfile.REGTYPE, "")],
        [("made/x", SYM, "a"), ("made/x/y", tarfile.REGTYPE, "")],
        [("made/x/y", tarfile.REGTYPE, ""), ("made/x", SYM, "a")],
        [("made/x", SYM, "/etc/passwd")],
        [("made/x", SYM, "../../outside")],
        [("made/x", SYM, "..")],
        # by its words within, but not by way of another link
        [("made/a/b", SYM, ".."), ("made/x", SYM, "a/b/../outside")],
        [("made/x", HARD, "/etc/passwd")],
        [("made/x", HARD, "made/y")],
        [("made/x", FIFO, "")],
        [("made/x", tarfile.CHRTYPE, "")],
        [("/made/x", tarfile.REGTYPE, "")],
        [("made/../../x", tarfile.REGTYPE, "")],
        [("other", tarfile.REGTYPE, "")],
        [(f"made/{'x' * 60}", tarfile.REGTYPE, "")],
        [("made/x", SYM, "y" * 65)],
        [(f"made/{n}", tarfile.REGTYPE, "") for n in range(21)],
    ],
)
def test_an_archive_that_is_no_build_is_not_unpacked(
    tmp_path: Path, members: list[tuple[str, bytes, str]], snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "outside").write_text("kept", encoding="ascii")
    place = tmp_path / "place"
    place.mkdir()
    file = archive(tmp_path, *(member(*one) for one in members))
    with pytest.raises(tarball.ArchiveError) as refused:
        tarball.unpack(file, place, "made", LIMITS)
    assert wording.one_line(refused.value, tmp_path) == snapshot
    assert not list(place.iterdir())
    assert (tmp_path / "outside").read_text(encoding="ascii") == "kept"


def test_an_archive_of_more_than_the_limit_is_not_unpacked(tmp_path: Path) -> None:
    file = archive(tmp_path, *(member(f"made/{n}", content=bytes(9 << 20)) for n in range(2)))
    with pytest.raises(tarball.ArchiveError, match="holds more than 16 MiB"):
        tarball.unpack(file, tmp_path, "made", LIMITS)


def test_a_build_is_unpacked_with_its_links(tmp_path: Path) -> None:
    parts = [
        member("made", DIR),
        member("made/lib", DIR),
        member("made/lib/a.so.1", content=b"abc"),
        member("made/lib/a.so", SYM, "a.so.1"),
        member("made/bin", SYM, "lib"),
        member("made/copy", HARD, "made/lib/a.so.1"),
    ]
    tarball.unpack(archive(tmp_path, *parts), tmp_path, "made", LIMITS)
    for name in ("lib/a.so", "bin/a.so", "copy"):
        assert (tmp_path / "made" / name).read_bytes() == b"abc"


def test_a_build_has_no_rights_that_its_archive_gives_away(tmp_path: Path) -> None:
    program, content = member("made/program", content=b"abc")
    program.mode = 0o6777
    tarball.unpack(archive(tmp_path, member("made", DIR), (program, content)), tmp_path, "made", LIMITS)
    assert stat.S_IMODE((tmp_path / "made" / "program").stat().st_mode) == 0o755


def test_no_archive_writes_elsewhere_or_ends_in_a_traceback(tmp_path: Path) -> None:
    """Members of any kind and name, and archives with a few bytes changed or cut off."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept", encoding="ascii")
    names = ["made", "made/a", "made/a/b", "made/./a", "made//a", "a", "..", "made/..", "made/\udcff", str(outside), ""]
    targets = ["", "a", "..", "../..", "../../outside", str(outside / "file"), "made/a", "/", "../outside/file"]
    kinds = [tarfile.REGTYPE, SYM, HARD, DIR, FIFO, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"Z"]
    unpacked = 0
    for number in range(INPUTS):
        chosen = random.Random(number)
        parts = [
            member(
                chosen.choice(names),
                chosen.choice(kinds),
                chosen.choice(targets),
                chosen.randbytes(chosen.randrange(9)),
            )
            for _ in range(chosen.randrange(1, 5))
        ]
        try:
            file = archive(tmp_path, *parts)
        except (ValueError, UnicodeError):
            continue
        if chosen.randrange(2):
            content = bytearray(file.read_bytes())
            for _ in range(chosen.randrange(1, 8)):
                content[chosen.randrange(min(len(content), 3000))] = chosen.randrange(256)
            file.write_bytes(content[: chosen.randrange(len(content))] if chosen.randrange(3) == 0 else content)
        place = tmp_path / str(number)
        place.mkdir()
        said = "-"
        try:
            tarball.unpack(file, place, "made", LIMITS)
            unpacked += 1
        except tarball.ArchiveError as error:
            said = str(error)
        assert said.isprintable()
        assert sorted(path.name for path in place.iterdir()) in ([], ["made"])
        assert [path.name for path in outside.iterdir()] == ["file"]
        assert (outside / "file").read_text(encoding="ascii") == "kept"
    assert unpacked > INPUTS // 50


# ---- names and files of runs -----------------------------------------------------------------------------------------


class Told:
    """A connection to an agent that answers `list` and `read` with what it is told to."""

    failure = None

    def __init__(self, files: Any, piece: Any = b"") -> None:
        self.files = files
        self.piece = piece
        self.asked: list[str] = []

    async def request(self, op: str, **more: Any) -> Any:
        self.asked.append(op)
        if op == "list":
            return self.files
        if op == "read":
            return self.piece if self.piece != b"" else b"x" * more["size"]
        return None

    async def discard(self) -> None:
        pass


def host_with(connection: Any, loop: Loop | None = None) -> RemoteHost:
    settings = SimpleNamespace(
        address="one.example", port=None, directory="/var/lib/quicbed", ip="192.0.2.1", cpus=None
    )
    host = RemoteHost("server", cast(Any, settings), cast(Any, loop), None)
    host.limits = LIMITS
    host.connection = connection
    return host


def collect(directory: Path, files: Any, piece: Any = b"") -> None:
    asyncio.run(host_with(Told(files, piece))._collect(Path("/var/lib/quicbed/runs/1"), directory))


def test_files_of_a_host_come_to_the_directory_of_the_run(tmp_path: Path) -> None:
    collect(tmp_path, [["server.jsonl", 3], ["server.logs/a/b", 2 << 20], ["empty", 0]])
    assert (tmp_path / "server.jsonl").read_bytes() == b"xxx"
    assert (tmp_path / "server.logs" / "a" / "b").stat().st_size == 2 << 20
    assert (tmp_path / "empty").stat().st_size == 0


@pytest.mark.parametrize(
    "files",
    [
        [["../../../outside", 1]],
        [["/etc/quicbed-test", 1]],
        [["a/../../b", 1]],
        [["", 1]],
        [[".", 1]],
        [["a\0b", 1]],
        [["a", 1], ["./a", 1]],
        [["a", 1], ["a/b", 1]],
        [["x" * 65, 1]],
        [[str(n), 1] for n in range(21)],
        [["a", 17 << 20]],
        [["a", -1]],
        [["a", 2**80]],
        [["a", "1"]],
        [["a", True]],
        [[3, 3]],
        [[]],
        [None],
        {},
        [["there/a", 1]],
        [["client.jsonl", 1]],
    ],
    ids=wording.name,
)
def test_names_that_lead_elsewhere_are_not_taken(tmp_path: Path, files: Any, snapshot: SnapshotAssertion) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    run = tmp_path / "a" / "b" / "run"
    run.mkdir(parents=True)
    (run / "there").symlink_to(outside)
    (run / "client.jsonl").write_text("of the client", encoding="ascii")  # which came before
    with pytest.raises(TestbedError) as refused:
        collect(run, files)
    assert str(refused.value).startswith("server (one.example): ")
    assert wording.one_line(refused.value, tmp_path) == snapshot
    assert sorted(path.name for path in run.iterdir()) == ["client.jsonl", "there"]
    assert (run / "client.jsonl").read_text(encoding="ascii") == "of the client"
    assert not list(outside.iterdir())
    assert not Path("/etc/quicbed-test").exists()


@pytest.mark.parametrize("piece", [b"more than was asked for", "text", None, 3])
def test_more_or_something_else_than_was_asked_for_is_not_taken(tmp_path: Path, piece: Any) -> None:
    with pytest.raises(TestbedError, match=r"where 3 were asked for|where bytes is expected"):
        collect(tmp_path, [["a", 3]], piece)


def test_no_list_of_files_writes_elsewhere_or_ends_in_a_traceback(tmp_path: Path) -> None:
    words: list[Any] = [
        "a",
        "b",
        "..",
        "/",
        "a/b",
        "../x",
        "a/..",
        "\udcff",
        "\0",
        "/tmp/x",
        ".",
        "",
        None,
        1,
        [],
        {},
        1.5,
    ]
    for number in range(INPUTS):
        chosen = random.Random(number)
        files = [
            [chosen.choice(words), chosen.choice([0, 1, 5, -1, 2**70, "1", None])][: chosen.choice([2, 2, 2, 1, 0])]
            for _ in range(chosen.randrange(4))
        ]
        top = tmp_path / str(number)
        run = top / "x" / "y"
        run.mkdir(parents=True)
        said = "-"
        try:
            collect(run, files)
        except TestbedError as error:
            said = str(error)
        assert said.isprintable()
        assert [path.name for path in top.iterdir()] == ["x"]
        assert [path.name for path in (top / "x").iterdir()] == ["y"]


# ---- answers ---------------------------------------------------------------------------------------------------------


class Answering:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.failure = None

    async def request(self, *_: Any, **__: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [[], {"returncode": 0}, {"returncode": "0"}, "x", 1, {"user_s": float("nan")}, b"x"])
def test_answers_of_the_wrong_kind_are_errors_of_the_host(answer: Any) -> None:
    loop = Loop("test")
    try:
        host = host_with(Answering(answer), loop)
        with pytest.raises(TestbedError, match=r"server \(one\.example\): answers"):
            RemoteProcess(host, 1).poll()
        with pytest.raises(TestbedError, match=r"server \(one\.example\): answers"):
            host.run(["true"])
        if not isinstance(answer, bytes):
            with pytest.raises(TestbedError, match=r"server \(one\.example\): answers"):
                host.read("/proc/stat")
    finally:
        loop.close()


HELLO = {
    **dict.fromkeys(("uid", "cpus", "memory_bytes", "hugepages", "disk_free_bytes"), 1),
    **dict.fromkeys(
        ("boot_id", "host_id", "kernel", "architecture", "libc", "cpu_model", "processor", "cpuinfo", "python"), "x"
    ),
    "microcode": "0x1",
    "cpus_online": "0-1",
    "packages": [0],
    "missing": [],
    "optional": ["perf"],
    "congestion_controls": ["cubic"],
    "cpu_flags": [],
    "kernel_parameters": [],
    "clock_source": "tsc",
}


@pytest.mark.parametrize("name", [*HELLO])
def test_what_a_host_tells_of_itself_is_of_its_kind(name: str) -> None:
    assert _hello(dict(HELLO), "server (a)") == HELLO
    for wrong in (None, "0-99999999999", 1.5, [None], {}, True, [[]]):
        told = HELLO | {name: wrong}
        if name == "clock_source" or (
            isinstance(wrong, str) and isinstance(HELLO[name], str) and name != "cpus_online"
        ):
            _hello(told, "server (a)")
            continue
        with pytest.raises(TestbedError, match=r"server \(a\): (answers|reports)"):
            _hello(told, "server (a)")


class Stream:
    """Bytes that come from a host."""

    def __init__(self, content: bytes, *, ends: bool = True) -> None:
        self.reader = asyncio.StreamReader()
        self.reader.feed_data(content)
        if ends:
            self.reader.feed_eof()

    async def readexactly(self, size: int) -> bytes:
        return await self.reader.readexactly(size)


def message(header: bytes, blob: bytes = b"") -> bytes:
    return LENGTHS.pack(len(header), len(blob)) + header + blob


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        LENGTHS.pack(MAX_HEADER + 1, 0),
        LENGTHS.pack(1, 0xFFFFFFFF),
        *(
            message(header)
            for header in (
                b'{"id": 1, "result": NaN}',
                b'{"id": 1, "result": 1e999}',
                b"{}",
                b"[]",
                b"null",
                b"3",
                b"{",
                b'"x"',
                b'{"id": []}',
                b"[" * 100_000,
            )
        ),
    ],
)
def test_messages_that_are_none_end_the_connection_only(content: bytes) -> None:
    async def listen() -> str | None:
        connection = Connection("server (a)")
        connection._process = cast(Any, SimpleNamespace(stdout=Stream(content)))
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection._pending[1] = waiting
        await connection._listen()
        with pytest.raises(HostLostError):
            await waiting
        return connection.failure

    assert "the connection was lost" in (asyncio.run(listen()) or "")


@pytest.mark.parametrize("lengths", [(MAX_HEADER + 1, 0), (1, MAX_BLOB + 1)])
def test_a_message_that_is_too_long_is_not_waited_for(lengths: tuple[int, int]) -> None:
    async def listen() -> str | None:
        connection = Connection("server (a)")
        stream = Stream(LENGTHS.pack(*lengths) + b"0", ends=False)
        connection._process = cast(Any, SimpleNamespace(stdout=stream))
        async with asyncio.timeout(20):
            await connection._listen()
        return connection.failure

    assert "the connection was lost" in (asyncio.run(listen()) or "")


def test_no_host_can_use_the_keys_of_who_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the OpenSSH configuration says."""
    config = tmp_path / "config"
    config.write_text(f"Host *\n  ForwardAgent yes\n  IdentityAgent {tmp_path}/agent\n", encoding="utf-8")
    chosen = []

    async def create(_: Any, host: str, **options: Any) -> Any:
        chosen.append(await asyncssh.SSHClientConnectionOptions.construct(host=host, **options))
        raise OSError("no connection")

    monkeypatch.setattr(asyncssh, "create_connection", create)
    with pytest.raises(UnreachableError):
        asyncio.run(connect("server", SshAddress(address="one.example", port=None, user=None), [str(config)]))
    assert [one.agent_path for one in chosen] == [f"{tmp_path}/agent"]
    assert [one.agent_forward_path for one in chosen] == [None]


def test_an_error_that_a_host_tells_is_one_line() -> None:
    async def listen() -> str:
        connection = Connection("server (a)")
        answer = message(json.dumps({"id": 1, "error": "a\nb\x1b[2J" + "x" * 10**6}).encode())
        connection._process = cast(Any, SimpleNamespace(stdout=Stream(answer)))
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection._pending[1] = waiting
        await connection._listen()
        with pytest.raises(TestbedError) as told:
            await waiting
        return str(told.value)

    said = asyncio.run(listen())
    assert said.isprintable()
    assert len(said) < 3000


@pytest.mark.parametrize(
    "line", [b"[" * 100000, b'{"error": "a\\nb\\u001b[2J\\u202e' + b"x" * 10**5 + b'"}', b'{"ready": 1e999}']
)
def test_whatever_is_said_at_the_start_is_an_error_of_the_host(line: bytes) -> None:
    async def start() -> str:
        connection = Connection("server (a)")
        written = SimpleNamespace(write=lambda _: None)
        lines = iter([line + b"\n"])

        async def readline() -> bytes:
            return next(lines, b"")

        async def wait_closed() -> None:
            connection._said.append("the end")

        async def silent() -> bytes:
            return b""

        process = SimpleNamespace(
            stdin=written,
            stdout=SimpleNamespace(readline=readline),
            stderr=SimpleNamespace(readline=silent),
            wait_closed=wait_closed,
            exit_status=1,
        )

        async def create_process(*_: Any, **__: Any) -> Any:
            return process

        connection._connections = [cast(Any, SimpleNamespace(create_process=create_process))]
        host = SimpleNamespace(sudo=False, directory="/var/lib/quicbed")
        with pytest.raises(TestbedError) as told:
            await connection._start(cast(Any, host))
        return str(told.value)

    said = asyncio.run(start())
    assert said.startswith("server (a): the agent cannot start: ")
    assert said.isprintable()
    assert len(said) < 3000


@pytest.mark.parametrize("name", ["\ud800", "a/\udfff", "\udcff\ud800"])
def test_a_name_that_is_no_text_is_an_error_of_the_host(tmp_path: Path, name: str) -> None:
    with pytest.raises(TestbedError, match=r"^server \(one\.example\): names .*which no file can have"):
        collect(tmp_path, [[name, 1]])


def test_what_nobody_has_thought_of_is_an_error_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with(None)
    for error in (RecursionError("deep"), StopIteration(), KeyError("clock"), ValueError("a\nb"), UnicodeError("x")):

        def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(host, "interface_rows", broken)
        with pytest.raises(TestbedError, match=r"^server \(one\.example\): reports something") as told:
            host.find_interface()
        assert str(told.value).isprintable()


def test_putting_back_goes_on_whatever_a_host_answers() -> None:
    attempt = Attempts()
    done: list[str] = []

    def broken(error: Exception) -> None:
        raise error

    for error in (RecursionError(), KeyError("x"), OSError("y"), TestbedError("z")):
        attempt(partial(broken, error))
    attempt(lambda: done.append("released"))
    assert done == ["released"]
    assert len(attempt.errors) == 4


# ---- any answer ------------------------------------------------------------------------------------------------------

ROWS = [
    {
        "ifname": "link0",
        "mtu": 1500,
        "flags": ["UP", "LOWER_UP"],
        "addr_info": [{"local": "192.0.2.1"}],
        "address": "x",
    },
    {"ifname": "lo", "mtu": 65536, "flags": ["UP"], "addr_info": []},
]
COUNTERS = {"texts": [" lo: 1 2\n", None], "statistics": {"rx": 1}, "clock_s": 1.5}
DONE = {"returncode": 0, "stdout": json.dumps(ROWS), "stderr": "", "user_s": 0.1, "system_s": 0.2, "max_rss_bytes": 1}
FEATURE = {"active": True, "fixed": False, "requested": True}
SETTING = [["sysctl", "a"], ["sysctl", "b"]]
ASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "abilities": ({"delay": "", "loss": "x", "ifb": "", "fq": "", "etf": "y"}, {}),
    "acquire": ({"session": "x", "who": "y"}, {}),
    "counters": (COUNTERS, {"paths": ["/a", "/b"]}),
    "echo": ([0.1, 0.2], {"count": 2}),
    "echo_open": (7, {}),
    "features": ({"tso": FEATURE, "gso": FEATURE}, {}),
    "held_to": ([0, 1], {}),
    "holder": (None, {}),
    "lost": ([1, 2], {}),
    "read_all": (["1", None], {"paths": ["/a", "/b"]}),
    "read_settings": (["1", None], {"settings": SETTING}),
    "working_copy": ("/x", {}),
}


def use(host: RemoteHost, op: str, asked: dict[str, Any]) -> None:
    """What is done with an answer, as far as it shows what is wrong with it."""
    match op:
        case "hello":
            _hello(host.request("hello"), host.where)
        case "run":
            host.run(["true"])
        case "rows":
            host._look_up(Interface(name="link0"), host.interface_rows())
        case "wait":
            RemoteProcess(host, 1).poll()
        case "run_delay":
            RemoteProcess(host, 1).sample_run_delay()
        case "spawn":
            host.spawn(["true"], stdout=Path("out"), stderr=Path("err"))
        case "monotonic":
            host.monotonic_ahead_ns()
        case "abilities":
            host._abilities = None
            host.lacks("delay") + host.lacks("loss") + host.lacks("ifb")
        case "features":
            host._feature_changes("link0", {"tso": False})
        case "read_settings":
            assert len(host._values("sysctl", ["a", "b"])) == 2
        case "held_to":
            set(host.request(op))
        case "working_copy":
            Path(host.request(op))
        case "echo":
            assert sum(host.request(op, **asked)) >= 0
        case "lost":
            to_client, to_server = host.request(op)
            assert to_client + to_server is not None
        case "counters":
            found = host.request(op, **asked)
            dict(zip(asked["paths"], found["texts"], strict=True))
            json.dumps([found["clock_s"], found["statistics"]])
        case _:
            host.request(op, **asked)


ANSWERED = {
    "hello": HELLO,
    "run": DONE,
    "rows": DONE,
    "wait": DONE,
    "run_delay": 0.5,
    "spawn": 7,
    "monotonic": 7,
    **{op: good for op, (good, _) in ASKED.items()},
}


@property_of(batch=100)
def test_any_answer_is_used_or_an_error_of_the_host(rng: random.Random) -> None:
    loop = Loop("test")
    try:
        for _ in range(100):
            op = rng.choice([*ANSWERED])
            good = ANSWERED[op]
            if op == "rows" and rng.random() < 0.8:
                answer: Any = DONE | {"stdout": document(rng, ROWS).decode(errors="replace")}
            else:
                answer = sent(document(rng, [good]))
            host = host_with(Answering(answer), loop)
            said = "server (one.example): "
            try:
                use(host, op, ASKED.get(op, (None, {}))[1])
            except TestbedError as error:
                said = str(error)
            assert said.startswith("server (one.example): ")
            assert said.isprintable()
    finally:
        loop.close()


def sent(content: bytes) -> Any:
    """What a connection takes an answer for; nothing where it would end."""
    try:
        found = json.loads(content, parse_constant=_refuse, parse_float=_finite, parse_int=_of_64_bits)
        return found[0]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


@property_of(batch=100)
def test_any_bytes_are_an_answer_or_end_the_connection(rng: random.Random) -> None:
    async def listen(content: bytes) -> None:
        connection = Connection("server (a)")
        connection._process = cast(Any, SimpleNamespace(stdout=Stream(content)))
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection._pending[1] = waiting
        await connection._listen()
        assert "the connection was lost" in (connection.failure or "")
        said = ""
        try:
            await waiting
        except TestbedError as error:
            said = str(error)
        assert said.isprintable()

    async def every() -> None:
        for _ in range(100):
            header = document(rng, {"id": 1, rng.choice(["result", "error"]): {"a": [1, "x"]}, "bytes": False})
            content = message(header, rng.randbytes(rng.randrange(9)))
            await listen(damaged(rng, content) if rng.random() < 0.3 else content)

    asyncio.run(every())
