"""Command line: every step of the workflow can be run by hand, with the same result."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quicbed.config import ConfigError, Project
from quicbed.environment import OVERRIDES
from quicbed.importers import FORMATS

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong command line, 130 interrupted."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int | None] = arguments.run
    try:
        code = command(arguments) or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("quicbed: interrupted; finished runs are kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return 1
    except _expected_errors() as error:
        print(f"quicbed: {error}", file=sys.stderr)
        return 1


def _nobody_reads() -> bool:
    """Whether the reader of the output has gone, as with ``| head``; what is left to write is then dropped."""
    output = select.poll()
    output.register(sys.stdout, 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False  # it was another pipe
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _expected_errors() -> tuple[type[Exception], ...]:
    """Errors that are the user's to mend; anything else is a bug and shows its traceback."""
    from quicbed.build import BuildError

    errors: list[type[Exception]] = [ConfigError, BuildError]
    # only modules that the command has loaded can have raised theirs
    for module, name in (
        ("quicbed.driver", "MeasureError"),
        ("quicbed.algorithms", "AlgorithmError"),
        ("quicbed.certificates", "CertificateError"),
        ("quicbed.testbed.base", "TestbedError"),
        ("quicbed.runs", "RunsError"),
        ("quicbed.notebooks", "NotebookError"),
        ("quicbed.bench", "BenchError"),
        ("quicbed.handshake", "HandshakeError"),
        ("quicbed.tshark", "TsharkError"),
        ("quicbed.perf", "PerfError"),
        ("quicbed.importers.files", "CopyError"),
        ("quicbed.archive", "ArchiveError"),
    ):
        if module in sys.modules:
            errors.append(getattr(sys.modules[module], name))
    return tuple(errors)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quicbed", description=__doc__)
    parser.add_argument(
        "--config",
        metavar="JSON",
        default=os.environ.get(OVERRIDES, "{}"),
        help="keys that override config/config.yaml, as a JSON object (default: those the workflow was started with)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    def published(command: argparse.ArgumentParser) -> None:
        text = "tables of published results to show beside ours, as `import` wrote them: <format>/ (default: none)"
        command.add_argument("--published", type=Path, nargs="*", default=[], metavar="DIR", help=text)

    add("plan", _plan, "what would be built and measured, with estimates of time, disk and traffic")
    add("doctor", _doctor, "check tools, permissions and kernel features of the testbed")
    add("sources", _sources, "fetch and check all third-party sources").add_argument("--log", type=Path)
    command = add("build", _build, "build one flavour of a library")
    command.add_argument("library")
    command.add_argument("flavour", help="flavour, or build as `quicbed plan` names it: stock@native")
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    command.add_argument("--log", type=Path)
    command.add_argument("--id", help="hexadecimal digits that its id has to end with")
    command.add_argument(
        "--leave-out",
        action="store_true",
        help="exit with 0 where an external endpoint cannot be used: its cells are left out with the reason",
    )
    command = add("host-builds", _host_builds, "build on the testbed's hosts what the experiments need of them")
    command.add_argument("--log", type=Path)
    command = add("component", _component, "build a library that several builds share")
    command.add_argument("name")
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    command.add_argument("--log", type=Path)
    command = add("runner-folder", _runner_folder, "write a folder with which the QUIC Interop Runner runs a build")
    command.add_argument("library")
    command.add_argument("flavour", nargs="?", default="stock")
    command.add_argument("--out", type=Path, required=True, metavar="DIR")
    command = add("certificates", _certificates, "make the testbed's certificates that are missing or not usable")
    command.add_argument(
        "signature",
        nargs="*",
        help="signature algorithm, a name in workflow/crypto/algorithms.csv (default: those of the experiments)",
    )
    command.add_argument("--all", action="store_true", help="for every signature algorithm")
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    command.add_argument("--log", type=Path)
    command = add("measure", _measure, "measure what is missing of an experiment")
    command.add_argument("experiment")
    command.add_argument("--marker", type=Path, help="file to write when the experiment is complete")
    command.add_argument("--log", type=Path, help="file that gets a copy of the progress")
    command = add("tables", _tables, "write the tables of runs, connections, primitives and handshakes")
    command.add_argument("raw", type=Path)
    command.add_argument("output", type=Path)
    command = add(
        "dissect", _dissect, "dissect stored captures again and compare what is stored; exit code 0 either way"
    )
    command.add_argument("raw", type=Path)
    command.add_argument("output", type=Path, help="table to write (Parquet)")
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="captures at a time")
    command = add("notebook", _notebook, "run a notebook, which writes figures and their tables")
    command.add_argument("notebook", type=Path)
    command.add_argument("raw", type=Path)
    command.add_argument("artifacts", type=Path)
    command.add_argument("output", type=Path)
    published(command)
    command = add("report", _report, "write the report")
    command.add_argument("raw", type=Path)
    command.add_argument("artifacts", type=Path)
    published(command)
    command = add("claims", _claims, "print the verdicts on published claims; exit code 0 whatever they are")
    command.add_argument("claim", nargs="*", help="id of a claim, of a table of numbers or of a paper (default: all)")
    command.add_argument("--all", action="store_true", help="a line for every number of a table too")
    command.add_argument("--raw", type=Path, help="directory of runs (default: what was measured here, else reference)")
    command = add("reference", _reference, "pack measured campaigns into raw/reference/")
    command.add_argument("experiment", nargs="*")
    command = add("import", _import, "read published results into tables like those of our own runs")
    command.add_argument("format", choices=list(FORMATS), help="; ".join(f"{k}: {v}" for k, v in FORMATS.items()))
    command.add_argument("path", type=Path, help="local copy: a folder, a tar archive, or a result.json (qir)")
    command.add_argument("--out", type=Path, metavar="DIR", help="default: artifacts/published/<format>")
    command = add("export", _export, "write measured runs in the format of others")
    command.add_argument("format", choices=["qir"], help="qir: result.json of the QUIC Interop Runner")
    command.add_argument("experiment", help="its newest campaign is written")
    command.add_argument("output", type=Path)
    command.add_argument("--table", type=Path, help="table of runs (default: artifacts/tables/runs.parquet)")
    command = add("archive", _archive, "write the archive to deposit: commit, results, bill of materials, checksums")
    command.add_argument("--out", type=Path, metavar="DIR", help="where it goes (default: archive/ beside the results)")
    command = add("handshake", _handshake, "print the handshakes of a capture: packets, bytes, messages, waiting")
    command.add_argument("capture", type=Path)
    command.add_argument("key_log", type=Path, metavar="key-log")
    command.add_argument("--server", metavar="IP:PORT", required=True, help="address of the server")
    command.add_argument("--transport", choices=("quic", "tcp"), default="quic")
    command = add("symbols", _symbols, "print what the samples of a run were sorted into, and what no mapping claims")
    command.add_argument("run_directory", type=Path, metavar="run", help="directory of a run of cpu-shares")
    command.add_argument("--top", type=int, default=15, help="number of symbols shown")
    command = add("generate", _generate, "write JSON schemas and generated documentation")
    command.add_argument(
        "--check",
        action="store_true",
        help="only compare; exit code 1 and a diff where they differ",
    )
    command = add("bench", _bench, "print the benchmarks: ratios measured side by side in one run")
    command.add_argument("--only", action="append", default=[], help="name of a benchmark, may be repeated")
    return parser


def _project(arguments: argparse.Namespace) -> Project:
    try:
        overrides: Any = json.loads(arguments.config)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--config: not valid JSON: {error}") from None
    if not isinstance(overrides, dict):
        raise ConfigError("--config: must be a JSON object of keys and values")
    return Project(ROOT, overrides)


def _log(arguments: argparse.Namespace, name: str) -> Path:
    log: Path = arguments.log or ROOT / "logs" / f"{name}.log"
    return log.resolve()


def _plan(arguments: argparse.Namespace) -> None:
    from quicbed.estimate import describe

    print(describe(_project(arguments)))


def _doctor(arguments: argparse.Namespace) -> int:
    from quicbed.doctor import doctor

    return doctor(_project(arguments))


def _sources(arguments: argparse.Namespace) -> None:
    from quicbed import build

    print(build.fetch_sources(_project(arguments), _log(arguments, "sources")))


def _build(arguments: argparse.Namespace) -> None:
    from quicbed import build

    project = _project(arguments)
    if arguments.library not in project.libraries:
        raise ConfigError(f"library `{arguments.library}` is unknown; known are {', '.join(project.libraries)}")
    log = _log(arguments, f"build-{arguments.library}-{arguments.flavour}")
    wanted = build.build_id(project, arguments.library, arguments.flavour)
    if arguments.id and not wanted.endswith(f"-{arguments.id}"):
        raise build.BuildError(
            f"{wanted}: a build with the id {arguments.id} was asked for, and here it is another one: `native` is for "
            "the processor that the workflow was started on; build there, or give `march` a level"
        )
    try:
        made = build.build(project, arguments.library, arguments.flavour, jobs=arguments.jobs, log=log)
    except build.UnusableError as error:
        if not arguments.leave_out:
            raise
        print(f"quicbed: {arguments.library} is left out: {error}", file=sys.stderr)
        made = build.listing(project, arguments.library, arguments.flavour)
    print(made)


def _host_builds(arguments: argparse.Namespace) -> None:
    from quicbed import hosted, march
    from quicbed.plan import builds_needed

    project = _project(arguments)
    needed = [key for key in builds_needed(project, project.config.experiments) if march.parts(key[1]).host]
    for file in hosted.make(project, needed, _log(arguments, f"host-builds-{project.config.testbed}")):
        print(file)


def _runner_folder(arguments: argparse.Namespace) -> None:
    from quicbed import interop_folder

    project = _project(arguments)
    if arguments.library not in project.libraries:
        raise ConfigError(f"library `{arguments.library}` is unknown; known are {', '.join(project.libraries)}")
    interop_folder.write(project, arguments.library, arguments.flavour, arguments.out)
    print(arguments.out)


def _component(arguments: argparse.Namespace) -> None:
    from quicbed.build import components

    log = _log(arguments, f"component-{arguments.name}")
    print(components.provide(_project(arguments), arguments.name, jobs=arguments.jobs, log=log))


def _certificates(arguments: argparse.Namespace) -> None:
    from quicbed import algorithms, certificates

    project = _project(arguments)
    signatures = arguments.signature or certificates.needed(project)
    if arguments.all:
        signatures = [signature.name for signature in algorithms.read(project.root).signatures]
    log = _log(arguments, "certificates")
    for directory in certificates.make_all(project, signatures, jobs=arguments.jobs, log=log):
        print(directory)


def _measure(arguments: argparse.Namespace) -> None:
    from quicbed import driver
    from quicbed.measure import measure

    project = _project(arguments)
    if arguments.experiment not in project.experiments:
        raise ConfigError(f"experiment `{arguments.experiment}` is unknown; known are {', '.join(project.experiments)}")
    marker = (
        arguments.marker or project.artifacts / "measured" / project.config.testbed / f"{arguments.experiment}.json"
    )
    if arguments.log:
        driver.copy_progress(arguments.log)
    measure(project, arguments.experiment, marker)


def _tables(arguments: argparse.Namespace) -> None:
    from quicbed import details, runs

    runs.write_table(arguments.raw, arguments.output)
    details.write(arguments.raw, arguments.output.parent)


def _dissect(arguments: argparse.Namespace) -> None:
    from quicbed import dissect

    table = dissect.write(arguments.raw, arguments.output, arguments.jobs)
    print(dissect.text(table))
    for one in dissect.problems(table):
        connection = "" if one["index"] is None else f" connection {one['index']}:"
        print(f"{one['origin']}:{connection} {one['outcome']}: {one['words']}")


def _notebook(arguments: argparse.Namespace) -> None:
    from quicbed import notebooks

    environment = {
        notebooks.RAW_VARIABLE: str(arguments.raw.resolve()),
        notebooks.ARTIFACTS_VARIABLE: str(arguments.artifacts.resolve()),
        notebooks.PUBLISHED_VARIABLE: os.pathsep.join(str(path.resolve()) for path in arguments.published),
    }
    notebooks.run(arguments.notebook, environment, arguments.output)


def _report(arguments: argparse.Namespace) -> None:
    from quicbed import report

    published = {path.name: path for path in arguments.published}
    report.write(arguments.artifacts, arguments.raw, project=_project(arguments), published=published)


def _claims(arguments: argparse.Namespace) -> None:
    from quicbed import claims, claims_report, importers, notebooks, published_claims, verdicts

    project = _project(arguments)
    every = claims.stated(project)
    shown = claims.chosen(every, arguments.claim or [one.id for one in every])
    raw = arguments.raw or notebooks.place(ROOT, project.config).raw
    # all of a paper are judged together, whatever is shown of them
    papers = {one.name for one in shown}
    known = [one for one in every if one.name in papers]
    results = verdicts.evaluate(project, known, verdicts.tables(raw, ROOT))
    tested = {name: sum(r.p is not None for r in results if r.stated.name == name) for name in papers}
    ids = {one.id for one in shown}
    wanted = [result for result in results if result.stated.id in ids]
    print(f"Runs of {raw}\n")
    published = importers.imported(project.published_tables)
    theirs = claims_report.by_claim(published_claims.evaluate(project, known, published))
    cells = arguments.all or bool(arguments.claim)
    print(claims_report.text(wanted, cells=cells, tested=tested, published=theirs))


def _reference(arguments: argparse.Namespace) -> None:
    from quicbed.reference import pack

    project = _project(arguments)
    for file in pack(project, arguments.experiment or project.config.experiments):
        print(file)


def _import(arguments: argparse.Namespace) -> None:
    from quicbed import importers

    out: Path | None = arguments.out
    if out is None:
        out = _project(arguments).published_tables / arguments.format
    print(importers.read(arguments.format, arguments.path, out).text())


def _export(arguments: argparse.Namespace) -> None:
    from quicbed.importers import export

    table: Path | None = arguments.table
    if table is None:
        table = _project(arguments).artifacts / "tables" / "runs.parquet"
    export.write(table, arguments.output, arguments.experiment)
    print(arguments.output)


def _archive(arguments: argparse.Namespace) -> None:
    from quicbed import archive

    project = _project(arguments)
    file = archive.make(project, arguments.out or project.artifacts / "archive")
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB, SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()}")


def _handshake(arguments: argparse.Namespace) -> None:
    from quicbed.handshake import main_table

    print(main_table(arguments.capture, arguments.key_log, server=arguments.server, transport=arguments.transport))


def _symbols(arguments: argparse.Namespace) -> None:
    from quicbed import perf

    print(perf.describe(ROOT, arguments.run_directory, arguments.top))


def _generate(arguments: argparse.Namespace) -> int:
    from quicbed.generate import generate

    return generate(ROOT, check=arguments.check)


def _bench(arguments: argparse.Namespace) -> int:
    from quicbed.bench import bench

    return bench(_project(arguments), arguments.only)
