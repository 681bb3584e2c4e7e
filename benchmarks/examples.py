"""Programs to hold our endpoints against, over loopback: the examples that libraries ship, and bare transfers.

An example comes with the library's fetched source and its own lock file, is built as it is with the same profile as the
endpoints, and can mostly do nothing else than serve over loopback. A bare transfer is a program of ours that uses the
library as its project's own program for speed does, where that is not published.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import select
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from quicbed.builds import kit, making
from quicbed.builds.kit import BuildError
from quicbed.builds.recipes import cargo
from quicbed.config.model import Example, Project
from quicbed.contract.content import PERIOD, content
from quicbed.measure import certificates

PORT = 4433
"""Some examples have no option for it."""

READY_TIMEOUT = 20.0
CLIENT_TIMEOUT = 120.0
NEEDS = Path("workflow/examples")
"""A directory for each library in Python whose examples need more than its endpoint does."""
LAUNCHER = """\
#!/bin/sh
PYTHONPATH={path} exec {interpreter} -sB {program} "$@"
"""


class Transfer(NamedTuple):
    """A download by a client that ended with exit code 0."""

    seconds: float
    """Wall time of the client."""
    said: str
    """What it wrote to standard error."""
    wrote: int
    """Bytes it wrote elsewhere, sockets not counted."""
    cpu_s: float
    """Processor time of client and server, of their starts too."""

    def mbps(self, size: int) -> float:
        """Goodput in Mbit/s of a download of so many bytes."""
        return 8 * size / self.seconds / 1e6


def build(project: Project, name: str, *, jobs: int, log: Path) -> Path:
    """Build the example programs of a library; returns the directory they are in."""
    example = _example(project, name)
    out = project.build / "work" / f"{name}-example"
    recipe = project.libraries[name].recipe
    if recipe == "go":
        _build_go(project, name, example, out, log)
    elif recipe == "python":
        _build_python(project, name, example, out, log)
    else:
        _build_cargo(project, name, example, out, jobs, log)
    return (out / "bin").absolute()


def _example(project: Project, name: str) -> Example:
    example = project.libraries[name].example
    if example is None:
        raise BuildError(f"config/libraries/{name}.yaml: example: is missing; there is nothing to compare with")
    return example


def _programs(example: Example) -> list[str]:
    return [example.server[0], example.client[0]]


def _build_cargo(project: Project, name: str, example: Example, out: Path, jobs: int, log: Path) -> None:
    """Build examples of a crate with the Cargo.lock that it was published with."""
    library = project.libraries[name]
    (package,) = (p for p in kit.crates_of(project.root, library) if p["name"] == example.package)
    vendor = kit.vendor_directory(project)
    kit.verify_source(vendor, package)
    source = out / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(vendor / f"{package['name']}-{package['version']}", source)
    environment = cargo.environment(project, library, "stock")
    profile = {"DEBUG": "line-tables-only", "LTO": "off", "CODEGEN_UNITS": "1"}
    examples = [word for program in _programs(example) for word in ("--example", program)]
    argv = ["cargo", "build", "--release", "--locked", "--jobs", str(jobs), *examples]
    argv += ["--target-dir", str((out / "target").absolute())]
    kit.run(argv, log=log, cwd=source, env={**environment, **_profile(profile)})
    (out / "bin").mkdir(exist_ok=True)
    for program in _programs(example):
        shutil.copy2(out / "target" / "release" / "examples" / program, out / "bin" / program)


def _profile(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of the release profile as environment variables, which cargo puts before those of a package."""
    return {f"CARGO_PROFILE_RELEASE_{key}": value for key, value in settings.items()}


def build_bare(project: Project, name: str, *, jobs: int, log: Path) -> Path:
    """Build the bare transfer of a library as its users do: cargo's own release profile and no flags; returns it."""
    library = project.libraries[name]
    vendor = kit.vendor_directory(project)
    target = (project.build / "work" / f"{name}-{cargo.BARE}").absolute()
    argv = ["cargo", "build", "--release", "--locked", "--offline", "--jobs", str(jobs)]
    argv += ["--manifest-path", str(project.root / kit.SOURCES / "Cargo.toml"), "--target-dir", str(target)]
    argv += ["--package", str(library.package), "--example", cargo.BARE, *cargo.vendored(vendor)]
    environment = cargo.environment(project, library, "stock")
    for flags in ("RUSTFLAGS", "CFLAGS", "CXXFLAGS"):
        del environment[flags]
    environment |= _profile({"LTO": "false", "CODEGEN_UNITS": "16"})
    kit.run(argv, log=log, cwd=project.root, env=environment)
    return target / "release" / "examples" / cargo.BARE


def _build_go(project: Project, name: str, example: Example, out: Path, log: Path) -> None:
    """Build commands of a module with the go.sum that it was published with."""
    from quicbed.builds.recipes import go

    environment = go.environment()
    job = kit.Job(project, name, "stock", kit.vendor_directory(project), {}, out, 1, log)
    module = go.cached(job, example.package, environment)
    for program in _programs(example):
        argv = ["go", "build", "-o", str((out / "bin" / Path(program).name).absolute()), f"./{program}"]
        kit.run(argv, log=log, cwd=module, env=environment)


def _build_python(project: Project, name: str, example: Example, out: Path, log: Path) -> None:
    """Lay out examples that only the source archive of a package has, beside the package and what they need.

    All of it is in hash locks: the endpoint's, whose hashes cover the source archive, and that of the examples.
    """
    endpoint = project.root / kit.ENDPOINTS / project.libraries[name].endpoint / "requirements.txt"
    own = (project.root / NEEDS / name).absolute()
    locks = [endpoint, own / "requirements.txt"]
    shutil.rmtree(out, ignore_errors=True)
    (out / "bin").mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    flags = ["--require-hashes", "--no-deps"]
    wanted = [word for lock in locks for word in ("--requirement", str(lock))]
    lib = (out / "lib").absolute()
    target = ["--ignore-installed", "--only-binary", ":all:", "--target", str(lib)]
    kit.run([*pip, "install", *flags, *target, *wanted], log=log)
    source = out / "source.txt"
    source.write_text(_entry(endpoint, example.package), encoding="utf-8")
    # setuptools, which tells pip the name of what is in the archive, is that of this environment
    only = ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(out), "--requirement", str(source)]
    kit.run([*pip, "download", *flags, *only], log=log)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        for member in packed:
            inside = Path(*Path(member.name).parts[1:])
            if member.isfile() and ".." not in inside.parts:
                (out / "source" / inside).parent.mkdir(parents=True, exist_ok=True)
                with packed.extractfile(member) or io.BytesIO() as file:
                    (out / "source" / inside).write_bytes(file.read())
    for program in _programs(example):
        script = (out / "source" / program).absolute()
        launcher = out / "bin" / Path(program).name
        words = {"path": f"{lib}:{own}", "interpreter": sys.executable, "program": str(script)}
        launcher.write_text(LAUNCHER.format(**{key: shlex.quote(word) for key, word in words.items()}), "utf-8")
        launcher.chmod(0o755)


def _entry(lock: Path, package: str) -> str:
    """What a lock says of a package: its version and hashes."""
    for entry in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
        if entry.startswith(f"{package}=="):
            return f"{entry}\n"
    raise BuildError(f"{lock}: does not have `{package}`, whose examples are to be compared with")


def goodput(project: Project, name: str, programs: Path, size: int, directory: Path) -> float:
    """Mbit/s of one download by a library's own example programs: size over the wall time of the client process."""
    example = _example(project, name)
    words = _words(project, size, directory)
    for target, source in example.files.items():
        file = directory / target.format_map(words)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.symlink_to(source.format_map(words))
    server = [str(programs / Path(example.server[0]).name), *(word.format_map(words) for word in example.server[1:])]
    client = [str(programs / Path(example.client[0]).name), *(word.format_map(words) for word in example.client[1:])]
    transfer = _transfer(server, client, PORT, directory)
    _check(client[0], transfer, size, example.received)
    return transfer.mbps(size)


def bare_transfer(project: Project, program: Path, size: int, directory: Path) -> Transfer:
    """One download by a bare transfer, whose client counts the bytes that it receives."""
    words = _words(project, size, directory)
    address = f"127.0.0.1:{PORT}"
    server = [str(program), "server", address, words["certificate"], words["key"]]
    return _transfer(server, [str(program), "client", address, words["ca"], str(size)], PORT, directory)


def own_transfer(project: Project, name: str, size: int, directory: Path) -> Transfer:
    """One download by our endpoints, timed in the same way over the same loopback."""
    words = _words(project, size, directory)
    programs = making.build_directory(project, name, "stock") / "bin"
    address = f"127.0.0.1:{PORT}"
    server = [str(programs / "server"), "--listen", address, "--events", str(directory / "server.jsonl")]
    server += ["--certificate", words["certificate"], "--private-key", words["key"], "--content", str(size)]
    client = [str(programs / "client"), "--connect", address, "--events", str(directory / "client.jsonl")]
    client += ["--server-name", "server", "--ca", words["ca"], "--bytes", str(size)]
    # the client has compared what it received
    return _transfer(server, client, PORT, directory)


def _words(project: Project, size: int, directory: Path) -> dict[str, str]:
    """What stands for the placeholders of an example's command line; makes the files they name."""
    identity = certificates.directory(project)
    root = directory / "root"
    root.mkdir(parents=True, exist_ok=True)
    served = root / str(size)
    if not served.exists():
        with served.open("wb") as file:
            for offset in range(0, size, PERIOD):
                file.write(content(min(PERIOD, size - offset), offset))
    authority = directory / "ca.der"
    authority.write_bytes(ssl.PEM_cert_to_DER_cert((identity / "ca.pem").read_text(encoding="ascii")))
    return {
        "bytes": str(size),
        "ca": str(identity / "ca.pem"),
        "ca_der": str(authority),
        "certificate": str(identity / "server.pem"),
        "content": str(served),
        "key": str(identity / "server.key"),
        "port": str(PORT),
        "root": str(root),
    }


def _transfer(server: Sequence[str], client: Sequence[str], port: int, directory: Path) -> Transfer:
    """Serve one client until it ends, with exit code 0 or a BuildError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (directory / "server.log").open("wb") as log, _running(server, directory, log.fileno()) as process:
        _await_port(process, port, directory / "server.log")
        code, seconds, written = _run(client, directory)
    said = (directory / "client.log").read_text(encoding="utf-8", errors="replace")
    if code != 0:
        last = said.strip().splitlines()
        raise BuildError(f"{client[0]}: exit code {code}: {last[-1] if last else 'it said nothing'}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Transfer(seconds, said, written - (directory / "client.log").stat().st_size, cpu_s)


def _run(client: Sequence[str], directory: Path) -> tuple[int, float, int]:
    """Exit code, wall time in s, and bytes written by a client, whose standard error becomes client.log.

    Its output goes nowhere, so that no reader or disk is part of the time; the kernel counts it (`wchar` of
    /proc/PID/io, proc(5)), and still tells when the process has ended and nobody has waited for it.
    """
    begin = time.monotonic()
    with (
        (directory / "client.log").open("wb") as errors,
        subprocess.Popen(client, cwd=directory, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        handle = os.pidfd_open(process.pid)
        try:
            with Path(f"/proc/{process.pid}/io").open("rb", buffering=0) as counters:
                ended = select.select([handle], [], [], CLIENT_TIMEOUT)[0]
                seconds = time.monotonic() - begin
                written = int(dict(line.split(b": ") for line in counters.read().splitlines())[b"wchar"])
        except OSError as error:
            raise BuildError(f"{client[0]}: the kernel does not tell what it writes: {error}") from None
        finally:
            process.kill()
            os.close(handle)
        if not ended:
            raise BuildError(f"{client[0]}: not finished after {CLIENT_TIMEOUT:g} s")
        return process.wait(), seconds, written


def _check(client: str, transfer: Transfer, size: int, received: str | None) -> None:
    """Whether an example has received everything: by what it says, or by what it wrote."""
    if received is None:
        if transfer.wrote < size:
            raise BuildError(f"{client}: exit code 0, but it wrote {max(transfer.wrote, 0)} of {size} bytes")
        return
    told = re.search(received, transfer.said)
    if told is None:
        raise BuildError(f"{client}: does not say how much it received, as `{received}` of its `example` expects")
    if int(told[1]) != size:
        raise BuildError(f"{client}: exit code 0, but it received {told[1]} of {size} bytes")


@contextlib.contextmanager
def _running(argv: Sequence[str], directory: Path, output: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, cwd=directory, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until somebody has bound a UDP port."""
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise BuildError(f"{log}: the server ended: {said[-1] if said else 'it said nothing'}")
        for table in ("/proc/net/udp", "/proc/net/udp6"):
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
            if any(int(line.split()[1].rpartition(":")[2], 16) == port for line in lines):
                return
        time.sleep(0.01)
    raise BuildError(f"{log}: the server did not open UDP port {port} within {READY_TIMEOUT:g} s")
