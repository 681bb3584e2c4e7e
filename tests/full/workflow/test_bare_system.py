"""The commands of the documents for root, and what goes wrong with them, on a system where nothing has been installed.

What measures is cut to a few small downloads through the clone's configuration, not through the commands.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import bareroot
from bareroot import USER, BareRoot
from clone import ROOT
from quicbed.builds import build_store
from quicbed.config.model import Project
from stranger import (
    COMPARING,
    DEPOSITING,
    LESSENING,
    MEASURING,
    PACKETS,
    PLACE,
    PROOF,
    SHOWN,
    UNPACKING,
    debian,
    drawn,
    expect,
    notebook,
    packets_shipped,
    stopped,
    visited,
)

__all__ = ["debian", "visited"]  # fixtures

# namespaces of a bare system are its own
pytestmark = [pytest.mark.root, pytest.mark.xdist_group("bare system"), pytest.mark.timeout(3000)]


BAD_CHROMIUM = "#!/bin/sh\nkill -SEGV $$\n"


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Address of a proxy that has one answer to everything, or that nobody listens at."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer or b"")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler, bind_and_activate=False) as server:
        server.server_bind()
        if answer is not None:
            server.server_activate()
            threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        if answer is not None:
            server.shutdown()


# What goes wrong: these come before the test in which everything works, in the same clone.


DIRECT = {"http_proxy": "", "https_proxy": ""}
NO_PACKAGES = "a proxy before it, does not answer with packages: use another network or index, then run the same"
BAD_PROXY = "the proxy does not work: check http_proxy, https_proxy and what pip and apt are told of proxies, then run"


def test_no_network(visited: BareRoot) -> None:
    says = "the package registry cannot be reached: connect to the network, then run the same command again"
    stopped(visited, says, prefix=("unshare", "--net"), environment=DIRECT)
    visited.clone(ROOT, "/srv/quicbed")
    says = f"Debian packages could not be installed: {says}"
    alone = {"prefix": ("unshare", "--net"), "environment": DIRECT, "user": "root"}
    stopped(visited, says, command="make setup", cwd="/srv/quicbed", **alone)


def test_another_apt_at_work(debian: BareRoot, tmp_path: Path) -> None:
    """As at the first start of a machine: set-up waits for it, and goes on until it finds no network."""
    with bareroot.copy(debian, tmp_path / "root") as root, ThreadPoolExecutor() as beside:
        root.clone(ROOT, PLACE)
        (root.directory / "var/lib/apt/lists").mkdir(parents=True, exist_ok=True)
        with (root.directory / "var/lib/apt/lists/lock").open("a") as lists:
            fcntl.lockf(lists, fcntl.LOCK_EX)
            says = "the package registry cannot be reached"
            alone = {"prefix": ("unshare", "--net"), "environment": DIRECT, "user": "root"}
            waiting = beside.submit(stopped, root, says, command="make setup", **alone)
            log = root.directory / f"{PLACE}/logs/setup.log".lstrip("/")
            while not waiting.done() and not (log.exists() and "Could not get lock" in log.read_text("utf-8")):
                time.sleep(0.1)
            assert not waiting.done()
            fcntl.lockf(lists, fcntl.LOCK_UN)
            waiting.result()


@pytest.mark.parametrize(
    ("answer", "of_apt", "of_pip"),
    [
        (None, "cannot be reached.* and check the proxy in http_proxy and https_proxy, then run the same", BAD_PROXY),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", NO_PACKAGES, BAD_PROXY),
        (b"\0\x15\x03 nonsense\r\n\r\n", NO_PACKAGES, NO_PACKAGES),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nLog in", NO_PACKAGES, NO_PACKAGES),
    ],
    ids=["is not there", "refuses", "answers nonsense", "answers with a page"],
)
def test_a_proxy_that(visited: BareRoot, answer: bytes | None, of_apt: str, of_pip: str) -> None:
    with answering(answer) as proxy:
        stopped(visited, of_apt, environment={"http_proxy": proxy, "https_proxy": proxy})
        stopped(visited, of_pip, environment={"PIP_PROXY": proxy, "PIP_INDEX_URL": "https://packages.example/simple"})


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("size=500m", r"/disk/quicbed: its disk has \d+ MB left, and 1130 MB are needed. Free some, then run"),
        ("size=2g,nr_inodes=5000", r"room for \d+ more files, and 35000 are needed. Free some, then run the same"),
    ],
    ids=["too small", "for too few files"],
)
def test_a_clone_on_a_disk_that_is(visited: BareRoot, size: str, says: str) -> None:
    disk = f'mkdir -p "$root/disk" && mount -t tmpfs -o {size} tmpfs "$root/disk" && cp -a "$root{PLACE}" "$root/disk/"'
    stopped(visited, says, cwd="/disk/quicbed", before=disk)


def test_a_clone_that_nobody_can_write_to(visited: BareRoot) -> None:
    """No cache in the home directory either, which is on the same disk."""
    home = f'"$root/home/{USER}"'
    says = "quicbed/.*: Read-only file system: clone to a directory that can be written"
    stopped(visited, says, before=f"mount --bind {home} {home} && mount -o remount,bind,ro {home}")


def test_a_disk_that_fills_while_packages_are_installed(visited: BareRoot) -> None:
    venv, left = (visited.directory / f"{PLACE}/{name}".lstrip("/") for name in (".venv", ".left"))
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir()
    visited.give(venv, USER)
    small = f'mount -t tmpfs -o size=60m,uid={bareroot.USER_ID} tmpfs "$root{PLACE}/.venv"'
    says = "Python packages could not be installed.*: the disk is full: free some, then run the same command again"
    stopped(visited, says, command="{ make figures; code=$?; cp -a .venv .left; exit $code; }", before=small)
    # what comes next finds what this one has left
    assert (left / "bin" / "python").is_symlink()
    venv.rmdir()
    left.rename(venv)


def test_an_old_python(visited: BareRoot) -> None:
    """Debian 12 has a Python 3.9: that of PyPy."""
    place, venv = "/opt/old", visited.directory / f"{PLACE}/.venv".lstrip("/")
    # without what is to be tried here: a `python3` in a .venv that is not complete, which comes first on the PATH
    aside = venv.with_name(".aside")
    if venv.exists():
        venv.rename(aside)
    unpack = f"""apt-get update && cd /tmp && apt-get download pypy3 pypy3-lib && mkdir -p {place}/bin &&
        for package in *.deb; do dpkg-deb --extract $package {place}; done &&
        printf '#!/bin/sh\nLD_LIBRARY_PATH=$(echo {place}/usr/lib/*-linux-gnu) exec {place}/usr/bin/pypy3 "$@"\n' \
            > {place}/bin/python3 && chmod +x {place}/bin/python3 && {place}/bin/python3 --version"""
    assert "Python 3.9." in expect(visited, unpack, "/")
    old = {"PATH": f"{place}/bin:/usr/bin:/bin", **DIRECT}
    says = (
        r"Python 3.11 or newer is needed, .*pypy3 is 3\.9\.\d+. Install one, or name it: make PYTHON=/path/to/python3"
    )
    stopped(visited, says, environment=old, before='mount --bind /dev/null "$root/usr/bin/python3.11"')
    # a newer one under its own name takes over
    stopped(visited, "cannot be reached", environment=old, prefix=("unshare", "--net"))
    if aside.exists():
        shutil.rmtree(venv, ignore_errors=True)
        aside.rename(venv)


def test_a_visitor_deposits_what_another_one_draws_again(visited: BareRoot) -> None:
    root = visited
    clone = root.directory / PLACE.lstrip("/")
    expect(root, LESSENING, PLACE, USER)
    (clone / "artifacts").mkdir(exist_ok=True)
    root.give(clone / "artifacts", USER)
    full = f'mount -t tmpfs -o size=100k,uid={bareroot.USER_ID} tmpfs "$root{PLACE}/artifacts"'
    done = root.run("make figures", cwd=PLACE, user=USER, before=full)
    assert done.code != 0
    assert re.search(r"(?m)^quicbed: .*/runs.parquet: .*No space left on device", done.said), done.said
    assert "Traceback" not in done.said

    # a home directory that cannot be written, a Chromium that crashes
    chromium = root.directory / "usr" / "bin" / "chromium"
    chromium.write_text(BAD_CHROMIUM, encoding="utf-8")
    chromium.chmod(0o755)
    home = f'h="$root/home/{USER}"; p="$root{PLACE}"; mount --bind "$h" "$h"; mount --bind "$p" "$p"; '
    home += 'mount -o remount,bind,ro "$h"'
    (deposit,) = DEPOSITING
    told = expect(root, deposit, PLACE, USER, before=home)
    figures = drawn(clone / "artifacts" / "reference", "html")
    assert figures >= {"goodput-by-aead", "ttfb-by-kem", "web-connection"}
    assert "home directory '/home/visitor' cannot be written; caches go to build/home" in told
    assert re.search(rf"(?m)^{len(figures)} figures are HTML only.*: /usr/bin/chromium fails: ", told), told
    chromium.unlink()

    (archive,) = (clone / "artifacts" / "archive").glob("quicbed-*.tar.gz")
    place = f"/home/{USER}/deposited"
    target = root.directory / place.lstrip("/")
    target.mkdir()
    archive.rename(target / archive.name)
    root.give(target, USER)
    unpack, check = UNPACKING
    assert expect(root, f"{unpack} && {check}", place, USER).endswith("complete\n")
    (inside,) = (path for path in target.iterdir() if path.is_dir())
    draw, compare = COMPARING
    # a small machine, and no home directory; packages are in the cache that the first set-up has filled
    processor = str(min(os.sched_getaffinity(0)))
    small = ("taskset", "--cpu-list", processor, "prlimit", f"--as={2 << 30}")
    (inside / PACKETS).unlink()
    homeless = {"HOME": "/home/nobody", "PIP_CACHE_DIR": f"/home/{USER}/.cache/pip"}
    expect(root, draw, f"{place}/{inside.name}", USER, prefix=small, environment=homeless)
    assert expect(root, compare, f"{place}/{inside.name}", USER) == "same\n"
    results = inside / "artifacts" / "reference"
    assert drawn(results, "html") == figures
    assert packets_shipped() not in notebook(results)
    what = " with ".join([SHOWN["library"], f"{SHOWN['group']} and {SHOWN['signature']}"])
    assert f"a handshake of {what}: tshark is missing; install with: apt-get install tshark" in notebook(results)
    # two clones with their environments, of which nothing is asked any more: the disk may be small
    shutil.rmtree(root.directory / "home" / USER)


def cut(clone: Path) -> None:
    """Let the clone's configuration measure little, whatever scale is asked for, and commit that."""
    config = clone / "config" / "config.yaml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings |= {"experiments": ["aead-goodput"], "libraries": ["quinn"], "gate": {"retries": 0}}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    file = clone / "config" / "experiments" / "aead-goodput.yaml"
    experiment = yaml.safe_load(file.read_text(encoding="utf-8"))
    for scale in experiment["scales"].values():
        scale |= {"bytes": 262144, "blocks": 2, "timeout_s": 60}
        scale.pop("min_blocks", None)
    file.write_text(yaml.safe_dump(experiment), encoding="utf-8")
    for line in ("config user.name Test", "config user.email test@example.org", "commit --all --quiet --message Cut"):
        subprocess.run(["git", "-C", str(clone), *line.split()], check=True)


def steps(recipe: str) -> list[str]:
    """The commands that a recipe for containers runs, without what concerns the image only."""
    text = (ROOT / recipe).read_text(encoding="utf-8")
    if recipe == "Containerfile":
        return re.findall(r"^RUN (.+)$", text, re.MULTILINE)
    post = text.partition("%post\n")[2].partition("\n%")[0]
    lines = (line.strip() for line in post.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "cd ", "chmod "))]


def test_recipes_for_containers_take_the_same_steps_from_the_same_system() -> None:
    assert steps("Containerfile") == steps("quicbed.def")
    assert steps("Containerfile")[-1] == "make setup"
    bases = re.findall(r"(?mi)^from:? (?:docker.io/library/)?(\S+)$", (ROOT / "Containerfile").read_text("utf-8"))
    assert bases == re.findall(r"(?mi)^from: (\S+)$", (ROOT / "quicbed.def").read_text("utf-8"))
    assert re.fullmatch(r"debian:12-slim@sha256:[0-9a-f]{64}", bases[0])


def test_root_draws_builds_measures_and_tests(debian: BareRoot, tmp_path: Path) -> None:
    place = "/srv/quicbed"
    # the whole suite would not end within itself; all checks and benchmarks run where everything is built
    less = {
        "CHECKS": "ruff snakefmt",
        "BENCH": "goodput",
        "PYTEST_ADDOPTS": "-k 'citation_file or shipped_archives or unpacked_with_its_links'",
    }
    # what this machine has built is taken; other systems than its own find nothing there
    shared = Project(ROOT)
    build_store.check(shared.store, shared.root)
    with bareroot.copy(debian, tmp_path / "root") as root:
        clone = root.clone(ROOT, place)
        cut(clone)
        # all of the reference data is drawn by the visitor of the default layers
        expect(root, LESSENING, place)
        said: dict[str, str] = {}
        for command in MEASURING:
            said[command] = expect(root, command, place, environment=less, store=shared.store)
            if command == "make figures":
                results = clone / "artifacts" / "reference"
                assert drawn(results, "html") == drawn(results, "svg")
                assert "goodput-by-aead" in drawn(results, "svg")
                # the containers' recipes, whose last step is the set-up; asked for again, it has nothing to do
                recipe = "".join(expect(root, step, place) for step in steps("Containerfile"))
                assert "installing Rust into .toolchains/" in recipe
                assert "installing Go into .toolchains/" in recipe
            elif command == "make setup":
                assert "installing" not in said[command]
                # so that a step of the set-up shows that is missing
                expect(root, "quicbed build quinn stock", place, environment={"QUICBED_STORE": "/srv/own"})
            elif "libraries=[aioquic,quinn]" in command:
                of_proofs = {"benchmark-flow-transfer", "benchmark-overhead-transfer"}
                assert drawn(clone / "artifacts", "svg") == of_proofs | {"goodput-by-aead", "goodput-by-aead-cost"}
                assert (clone / "artifacts" / "report" / "index.html").is_file()
        assert re.search(r"(?m)^seen\.payload_in_clear +True$", said[PROOF])
        assert (clone / "artifacts" / "docs" / "tutorial.html").is_file()
        measured = list((clone / "raw" / "local" / "aead-goodput").glob("*/b*/*/run.json"))
        assert measured
