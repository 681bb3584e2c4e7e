"""Endpoints as users of their own on the local testbed: what they reach, what they may use, what that costs a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakeproject
from clone import EXTERNAL, ROOT
from fakeproject import EXPERIMENT, HEAD, Proven, described
from quicbed.builds import build_store, making
from quicbed.config.model import Limits, Project
from quicbed.measure import program
from quicbed.plan.cells import Endpoint
from quicbed.testbed import Confined, LocalTestbed, TestbedError, confinement, local
from quicbed.wire import proof

pytestmark = pytest.mark.root
BUFFERS = [Path("/proc/sys/net/core/rmem_max"), Path("/proc/sys/net/core/wmem_max")]


class Uncounted(LocalTestbed):
    """Nothing counts what is sent: the fake endpoints send nothing."""

    def sent_by_server(self) -> int | None:
        return None

    def counters(self) -> dict[str, float]:
        return {name: count for name, count in super().counters().items() if not name.endswith(".tx_bytes")}


@pytest.fixture(scope="module")
def testbed() -> Iterator[LocalTestbed]:
    with Uncounted(f"own-user-{os.getpid()}") as opened:
        yield opened
    assert not opened._local["client"]._own.exists()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    # each ends by a limit or is refused, which takes its time on a busy machine
    patient = EXPERIMENT.replace("timeout_s: 1}", "timeout_s: 20}")
    made = fakeproject.make(tmp_path, patient, monkeypatch)
    return Project(made.root, {"limits": {"total_memory_mib": 200, "processes": 64, "files": 500, "file_mib": 1}})


def said(testbed: LocalTestbed, directory: Path, *argv: str, role: str = "client", **more: object) -> str:
    """What a confined program prints that ends well."""
    host = testbed.client if role == "client" else testbed.server
    place = host.place(directory)
    confined = Confined(Limits(), **more)  # type: ignore[arg-type]
    process = host.spawn(argv, stdout=place / "out", stderr=place / "err", confined=confined)
    ended = process.wait(20)
    host.collect(directory)
    text = (directory / "out").read_text(encoding="utf-8") + (directory / "err").read_text(encoding="utf-8")
    for file in directory.iterdir():
        file.unlink()
    assert ended.returncode == 0, text
    return text


TRIES = """
import pathlib
place = pathlib.Path(log).parent
def trial(what):
    try:
        what()
    except OSError as error:
        emit(json.dumps({"event": "error", "t": 2, "reason": type(error).__name__}))
    else:
        emit(json.dumps({"event": "error", "t": 2, "reason": "done"}))
    sys.exit(1)
"""
REFUSED = tuple(f"the client exited with 1: {error}" for error in ("PermissionError", "FileNotFoundError", "OSError"))
HOSTILE = {
    "controller's file": ("trial(lambda: open('{root}/secret').read())", REFUSED),
    "private key": ("trial(lambda: open('{key}').read())", REFUSED),
    "another place": ("trial(lambda: open(place.parent / '.server' / 'x', 'w'))", REFUSED),
    "run's directory": ("trial(lambda: open(place.parent / 'run.json', 'w'))", REFUSED),
    "raw": ("trial(lambda: os.mkdir('{root}/raw/planted'))", REFUSED),
    "build": ("trial(lambda: open(sys.argv[0], 'a'))", REFUSED),
    "other processes": ("trial(lambda: os.kill(-1, signal.SIGKILL))", ("exited with 1: ProcessLookupError",)),
    "planted": ("(place / 'run.json').write_text('{{}}'); sys.exit(1)", ("no file of its own in the run's dire",)),
    "links": ("os.symlink('{root}/secret', place / 'x'); os.symlink('/', place / 'y')", ("no file of its own in",)),
    "other's name": ("(place / 'server.jsonl').write_text('[]')", ("left what is not its own in the run's directory",)),
    "memory": (
        "for _ in range(2):\n    os.fork()\nx = b'x' * (100 << 20); time.sleep(60)",
        ("the client took more than 200 MiB of memory (limits.total_memory_mib)",),
    ),
    "processes": (
        "while True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.01)",
        ("the client had more than 64 processes and threads (limits.processes)",),
    ),
    "files": (
        "for number in range(100000):\n    (place / str(number)).touch()",
        ("the client left more than 500 files (limits.files)",),
    ),
    "temporary files": (
        "for number in range(100000):\n    open('/tmp/' + str(number), 'w')",
        ("the client left more than 500 files (limits.files)",),
    ),
    "deep": (
        "for _ in range(5000):\n    os.mkdir('d'); os.chdir('d')",
        ("the client left more than 500 files", "a name of more than 1024 bytes (limits.path_bytes)"),
    ),
    "large file": (
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); os.write(2, b'x' * (3 << 20)); os.write(2, b'x')",
        ("the client was killed by SIGXFSZ, as a file was to be larger than limits.file_mib",),
    ),
}


def become(project: Project, body: str) -> None:
    """Let the client of the stock build do this, after a `{`-formatted beginning."""
    fakeproject.behave(project, "quiche", "stock")
    file = project.build / "quiche-stock" / "bin" / "client"
    file.write_text(f"#!{sys.executable} -S\n{HEAD}{TRIES}{body}", encoding="utf-8")


def test_buffers_may_be_as_large_as_asked_for_and_the_machine_is_as_before(tmp_path: Path) -> None:
    before = [int(file.read_text()) for file in BUFFERS]
    ask = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.setsockopt(1, 8, int(sys.argv[1])); "
    size = max(before) + 4096
    assert size < 2**29, "this test has to be the first one"
    with LocalTestbed(f"buffers-{os.getpid()}") as testbed:
        argv = ["/usr/bin/python3", "-c", f"{ask}print(s.getsockopt(1, 8) // 2)", str(size)]
        assert said(testbed, tmp_path, *argv, buffer_bytes=size) == f"{size}\n"
        assert testbed.client.confinement(Confined(Limits(), buffer_bytes=size))["capabilities"] == []
    assert [int(file.read_text()) for file in BUFFERS] == before


def test_what_an_endpoint_may_not_costs_its_run_and_no_other(
    project: Project, testbed: LocalTestbed, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    secret.chmod(0o600)
    (key,) = project.build.glob("certificates/*/rsa-2048/server.key")
    for number, (kind, (body, reasons)) in enumerate(HOSTILE.items()):
        become(project, body.format(root=tmp_path, key=key) if "{" in body else body)
        attempt = fakeproject.once(project, tmp_path / f"run{number}", testbed)
        assert attempt.status == "failed", kind
        assert any(reason in (attempt.reason or "") for reason in reasons), (kind, attempt.reason)
        assert secret.read_text(encoding="utf-8") == "secret"
    fakeproject.behave(project, "quiche", "stock")
    attempt = fakeproject.once(project, tmp_path / "last", testbed)
    assert (attempt.status, attempt.reason) == ("ok", None)
    users = {role: told["endpoint_user"] for role, told in attempt.host["confinement"].items()}
    assert len({os.geteuid(), *users.values()}) == 3
    left = [tmp_path / "last", *(tmp_path / "last").rglob("*")]
    assert {path.name for path in left} == {"last", "client.jsonl", "server.jsonl", "client.out", "client.err"} | {
        "server.out",
        "server.err",
    }
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in left[1:]} == {(os.geteuid(), 0o644)}


def test_a_build_of_the_store_is_used_and_not_changed(project: Project, testbed: LocalTestbed, tmp_path: Path) -> None:
    become(project, "trial(lambda: open(sys.argv[0], 'a'))")
    place = project.build / "quiche-stock"
    # which others may not enter
    with tempfile.TemporaryDirectory(dir=Path.home()) as store:
        entry = build_store.Entry(Path(store), "system/builds", place.name)
        entry.directory.parent.mkdir(parents=True)
        place.rename(entry.directory)
        build_store.link(entry, place)
        attempt = fakeproject.once(project, tmp_path / "hostile", testbed)
        assert any(reason in (attempt.reason or "") for reason in REFUSED), attempt.reason
        fakeproject.behave(project, "quiche", "stock")
        attempt = fakeproject.once(project, tmp_path / "good", testbed)
        assert (attempt.status, attempt.reason) == ("ok", None)


def test_a_program_has_no_rights_and_a_place_of_its_own(testbed: LocalTestbed, tmp_path: Path) -> None:
    status = said(testbed, tmp_path, "cat", "/proc/self/status")
    rows = dict(row.split(":", 1) for row in status.splitlines())
    (user,) = set(rows["Uid"].split())
    assert confinement.FIRST <= int(user) <= confinement.LAST
    assert set(rows["Gid"].split()) == {user}
    assert rows["Groups"].split() == []
    assert {rows[f"Cap{which}"].strip("\t0") for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {""}
    assert rows["NoNewPrivs"].strip() == "1"
    # it can write here and nowhere else
    place = testbed.client.place(tmp_path)
    places = [*map(str, Path("/").iterdir()), "/var/tmp", "/dev/shm", "/run/lock", str(tmp_path), str(place)]
    tried = "for name; do test -w $name && echo $name; done; touch /tmp/a /var/tmp/b /dev/shm/c; ls /tmp"
    found = said(testbed, tmp_path, "sh", "-c", tried, "sh", *places).split()
    assert set(found) - {"/proc"} == {"/tmp", "/var/tmp", "/dev/shm", str(place), "a", "b", "pytest-of-root"}
    assert not any(map(os.path.exists, ("/tmp/a", "/var/tmp/b", "/dev/shm/c")))
    # and what it leaves there is gone with the run
    assert "a" not in said(testbed, tmp_path, "ls", "/tmp").split()


def test_a_program_keeps_the_capabilities_that_it_needs_and_no_others(testbed: LocalTestbed, tmp_path: Path) -> None:
    status = said(testbed, tmp_path, "cat", "/proc/self/status", capabilities=program.BYPASSING)
    rows = dict(row.split(":", 1) for row in status.splitlines())
    # linux/capability.h: CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_BPF
    kept = sum(1 << number for number in (12, 13, 14, 39))
    assert {int(rows[f"Cap{which}"], 16) for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {kept}
    assert set(rows["Uid"].split()) != {"0"}
    told = testbed.client.confinement(Confined(Limits(), capabilities=program.BYPASSING))
    assert told["capabilities"] == list(program.BYPASSING)


def test_a_private_directory_is_for_the_program_that_needs_it(testbed: LocalTestbed, tmp_path: Path) -> None:
    private = tmp_path.parent / "private"
    private.mkdir()
    key = private / "key"
    key.write_text("of the server", encoding="utf-8")
    key.chmod(0o600)
    more = {"readable": (private,), "private": (private,)}
    assert said(testbed, tmp_path, "cat", str(key), role="server", **more) == "of the server"
    with pytest.raises(AssertionError, match="Permission denied"):
        said(testbed, tmp_path, "cat", str(key), readable=(private,))


def test_a_program_reaches_what_it_needs_whatever_the_umask(tmp_path: Path) -> None:
    needed = tmp_path.parent / "umask" / "deep"
    needed.mkdir(parents=True)
    (needed / "file").write_text("there", encoding="ascii")
    usual = os.umask(0o077)
    try:
        with LocalTestbed(f"umask-{os.getpid()}") as testbed:
            assert said(testbed, tmp_path, "cat", str(needed / "file"), readable=(needed,)) == "there"
    finally:
        os.umask(usual)


def test_a_second_name_of_somebody_else_s_file_is_not_taken(testbed: LocalTestbed, tmp_path: Path) -> None:
    """The kernel lets an endpoint make none (protected_hardlinks, proc(5)) unless it is told otherwise."""
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="ascii")
    secret.chmod(0o600)
    os.chown(secret, 12345, 12345)
    os.link(secret, testbed.client.place(tmp_path) / "mine")
    with pytest.raises(TestbedError, match="left what is not its own in the run's directory: mine"):
        said(testbed, tmp_path, "true")
    status = secret.stat()
    assert (status.st_uid, status.st_mode & 0o777, status.st_nlink) == (12345, 0o600, 1)


def test_a_directory_that_changes_is_a_copy(testbed: LocalTestbed, tmp_path: Path) -> None:
    folder = tmp_path.parent / "folder"
    folder.mkdir()
    (folder / "file").write_text("before", encoding="utf-8")
    assert testbed.client.provide_copy(folder, set()) == folder
    more = {"changing": (folder,), "names": {"server": "10.113.0.2"}}
    script = f"cat {folder}/file; echo; echo after >{folder}/file; getent hosts server"
    assert said(testbed, tmp_path, "sh", "-c", script, **more).split() == ["before", "10.113.0.2", "server"]
    assert said(testbed, tmp_path, "cat", str(folder / "file"), **more) == "after\n"
    assert (folder / "file").read_text(encoding="utf-8") == "before"


def test_a_program_that_the_configuration_says_is_privileged_is_root(testbed: LocalTestbed, tmp_path: Path) -> None:
    assert said(testbed, tmp_path, "id", "-u", privileged=True).split() == [str(os.geteuid())]
    told = testbed.client.confinement(Confined(Limits(), privileged=True))
    assert (told["endpoint_user"], told["why"]) == (os.geteuid(), "asked for by the configuration (external.root)")


def test_without_a_user_the_run_is_made_and_says_so(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "unused_users", lambda *_: [])
    with Uncounted(f"no-user-{os.getpid()}") as testbed:
        attempt = fakeproject.once(project, tmp_path / "run", testbed)
        facts = testbed.facts()["endpoint_user"]
    assert attempt.status == "ok"
    told = attempt.host["confinement"]["client"]
    assert told == facts["client"]
    assert (told["endpoint_user"], told["why"]) == (os.geteuid(), "this user namespace has no unused number of a user")


def test_what_a_killed_driver_has_left_is_removed_and_what_others_have_put_there_is_told(tmp_path: Path) -> None:
    name = f"left-{os.getpid()}"
    left = Path(tempfile.gettempdir()) / local.namespace_name(name, "client")
    (left / "tmp" / "old").mkdir(parents=True)
    with LocalTestbed(name) as testbed:
        assert "old" not in said(testbed, tmp_path, "ls", "/tmp").split()
    assert not left.exists()
    left.symlink_to(tmp_path)
    with pytest.raises(TestbedError, match="is not of this user; remove it"), LocalTestbed(name):
        pass
    left.unlink()


def test_a_folder_is_not_root_unless_it_is_said_and_sees_what_its_links_and_parameters_name(
    tmp_path: Path, testbed: LocalTestbed
) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    shutil.copytree(EXTERNAL / "wrapping", folder)
    elsewhere.mkdir()
    (folder / "link").symlink_to(elsewhere)
    for root in (False, True):
        project = Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})
        named = described(path=str(folder), parameters={"A": str(ROOT), "B": "relative", "C": "/not/there"}, root=root)
        project.libraries["ext"] = named
        making.build(project, "ext", "stock", jobs=1, log=tmp_path / "build.log")
        build = making.build_directory(project, "ext", "stock").name
        side = Endpoint("ext", "stock", "1", build)
        made = program.confined(project, testbed, side, "client", [])
        assert (made.privileged, made.changing, made.private) == (root, (folder,), ())
        assert {elsewhere, ROOT} < set(made.readable)
        assert Path("/not/there") not in made.readable


def test_users_are_those_that_nobody_has() -> None:
    first = confinement.unused_users("a", 2)
    assert first == confinement.unused_users("a", 2) != confinement.unused_users("b", 2)
    taken = {first[0]}
    assert first[0] not in confinement.unused_users("a", 2, taken=taken)
    # a container that has the usual numbers only, and one that has root alone
    usual, root_alone = ([[range(size)]] * 2 for size in (65536, 1))
    assert all(60000 < user < 65534 for user in confinement.unused_users("a", 2, taken=taken, mapped=usual))
    assert confinement.unused_users("a", 2, taken=taken, mapped=root_alone) == []


IN_A_CHROOT = """
from pathlib import Path
from quicbed.testbed.confinement import View
from quicbed.testbed.process import user_problem
print(user_problem(View(1900000000, Path("/tmp"), 1 << 20)))
print(Path("/marked").exists(), Path.cwd())
"""
CHANGED_ROOT = """
set -eu
for directory in /*; do
    [ -d "$directory" ] || continue
    if [ -L "$directory" ]; then cp -P "$directory" "$1"; continue; fi
    mkdir "$1$directory"
    mount --rbind "$directory" "$1$directory"
done
exec chroot "$1" sh -c 'cd "$1" && exec "$2" -c "$3"' sh "$2" "$3" "$4"
"""


def test_in_a_chroot_programs_run_as_this_user_and_the_root_directory_stays(repository: Path, tmp_path: Path) -> None:
    """A mount namespace has a root directory of its own, to which nothing may fall back."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "marked").touch()
    argv = ["unshare", "--mount", "sh", "-c", CHANGED_ROOT, "sh", root, repository, sys.executable, IN_A_CHROOT]
    environment = os.environ | {"PYTHONPATH": str(repository / "workflow")}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "a process whose root directory was changed by chroot makes no views of files",
        f"True {repository}",
    ]
