"""Command line of quicbed: every step of the workflow, also to run by hand with the same result.

Words of the form key=value override config/config.yaml for one command, as CONFIG does for make:
quicbed plan scale=paper 'experiments=[aead-goodput]'
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import select
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from quicbed import __version__
from quicbed.base.environment import OVERRIDES, STARTED, find_toolchains
from quicbed.base.errors import QuicbedError
from quicbed.base.untrusted import visible
from quicbed.cli.parser import Parser
from quicbed.config.model import ConfigError, Project
from quicbed.importers import imported
from quicbed.papers import FORMATS
from quicbed.store.record import STATUSES

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("libraries", "variants", "experiments", "claims", "runs")
N = TypeVar("N", int, float)
_COMPARED = (
    *("cipher", "aead", "header_protection", "group", "signature", "tls_version", "alpn"),
    *("mtu", "offloads", "gso", "gro", "io", "pacing", "congestion_control", "receive_buffer", "aes_hardware", "march"),
)
"""Keys of variants that `compare` takes."""
_LOG_TEXT = "log file"
_SETTING = re.compile(r"[A-Za-z_][\w-]*=")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong command line, 130 interrupted."""
    parser = _parser()
    # set by a shell that completes a line
    if "_ARGCOMPLETE" in os.environ:
        from quicbed.cli import completion

        completion.serve(parser, actions(parser), ROOT)
    return run(parser, argv)


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Run what a command line asks for, the default `run` of its parser; returns the exit code.

    Words of the form key=value are taken out first (`project_of`), unless they are the value of an option.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files that are not UTF-8
    # endpoints have users of their own, who need builds, and nobody else is to change what was measured
    os.umask(0o022)
    words = sys.argv[1:] if argv is None else argv
    taking = {option for action in actions(parser) if action.nargs != 0 for option in action.option_strings}
    settings = [at for at, word in enumerate(words) if _SETTING.match(word) and not {*words[at - 1 : at]} & taking]
    arguments = parser.parse_args([word for at, word in enumerate(words) if at not in settings])
    arguments.settings = [words[at] for at in settings]
    find_toolchains()
    command: Callable[[argparse.Namespace], int | None] = arguments.run
    try:
        code = command(arguments) or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("quicbed: interrupted; finished runs remain", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return 1
    except QuicbedError as error:
        print(visible(f"quicbed: {error}"), file=sys.stderr)
        return 1
    except MemoryError:
        print("quicbed: memory is full: end other programs, then run the same command again", file=sys.stderr)
        return 1
    except OSError as error:  # no place, no permission, a name that is too long
        where = f"{error.filename}: " if error.filename else ""
        print(visible(f"quicbed: {where}{error.strerror or error}"), file=sys.stderr)
        return 1


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What a parser and those of its commands take."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from actions(one)


def _nobody_reads() -> bool:
    """Whether the reader of the output has gone, as with ``| head``; what is left to write is then dropped."""
    output = select.poll()
    output.register(sys.stdout, 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False  # it was another pipe
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def configured(prog: str, description: str | None) -> Parser:
    """A parser with the option that overrides the configuration (`project_of`)."""
    parser = Parser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config",
        metavar="JSON",
        default=os.environ.get(OVERRIDES, "{}"),
        help="keys that override config/config.yaml, as a JSON object (default: those the workflow was started with)",
    )
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = configured("quicbed", __doc__)
    parser.add_argument("--version", action="version", version=f"quicbed {__version__}")
    commands = parser.commands = parser.add_subparsers(
        required=True, metavar="COMMAND", parser_class=argparse.ArgumentParser
    )

    def add(name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    def table(command: argparse.ArgumentParser) -> None:
        text = "table of these runs, as `tables` wrote it (default: the runs are read)"
        command.add_argument("--table", type=Path, help=text)

    def published(command: argparse.ArgumentParser) -> None:
        text = "tables of published results to show beside ours, as `import` wrote them: <format>/ (default: none)"
        command.add_argument("--published", type=Path, nargs="*", default=[], metavar="DIR", help=text)

    command = add("plan", _plan, "print what would be built and measured, with estimates of time, disk and traffic")
    command.add_argument("experiment", nargs="*", help="experiments (default: those of the configuration)")
    command = add("list", _list, "list libraries, variants, experiments, claims or runs")
    command.add_argument("kind", choices=tuple(KINDS), help="what to list")
    command.add_argument("--experiment", help="variants, claims and runs of this experiment only")
    command.add_argument("--status", choices=(*STATUSES, "unreadable"), help="runs with this status only")
    raw_text = "directory of runs (default: your own runs, or else the reference data)"
    command.add_argument("--raw", type=Path, metavar="DIR", help=raw_text)
    command = add("show", _show, "print runs: cell, metrics, evidence, disturbances, and events by time")
    command.add_argument(
        "name", nargs="+", metavar="RUN", help="a run's directory, or its name in tables, pages and `list runs`"
    )
    command.add_argument("--all", action="store_true", help="the times of all connections")
    add(
        "doctor",
        _doctor,
        "check tools, disk, memory and kernel features, and report which experiments this testbed can measure",
    )
    command = add("guests", _guests, "start or stop guests of user-mode Linux, the hosts of the testbed `guests`")
    command.add_argument("action", choices=("start", "stop"), help="start: no effect if they are running")
    add("sources", _sources, "fetch and check all third-party sources").add_argument("--log", type=Path, help=_LOG_TEXT)
    command = add("build", _build, "build a flavour of a library")
    command.add_argument("library", help="a library, as `quicbed list libraries` names it")
    command.add_argument("flavour", help="flavour, or build as `quicbed plan` names it: stock@native")
    command.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, help="jobs at a time")
    command.add_argument("--log", type=Path, help=_LOG_TEXT)
    command.add_argument("--id", help="hexadecimal digits with which its id has to end")
    command.add_argument(
        "--leave-out",
        action="store_true",
        help="exit with 0 if an external endpoint is unusable: its cells are left out, with the reason",
    )
    command = add("host-builds", _host_builds, "make the builds that the experiments need on the testbed's hosts")
    command.add_argument("--log", type=Path, help=_LOG_TEXT)
    command = add("component", _component, "build a library that several builds share")
    command.add_argument("name", help="a component, as flavours in config/libraries/ name them")
    command.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, help="jobs at a time")
    command.add_argument("--log", type=Path, help=_LOG_TEXT)
    text = "list builds, components and sources in the store, or remove those that no clone has used for a while"
    command = add("store", _store, text)
    command.add_argument("action", choices=("list", "prune"), help="prune: leaves what is in use")
    text = "prune: remove what was not used for this number of days (default: 30)"
    command.add_argument("--days", type=_days, default=30.0, help=text)
    command.add_argument("--dry-run", action="store_true", help="prune: only list what would be removed")
    command = add(
        "runner-folder", _runner_folder, "write a folder with which the QUIC Interop Runner runs one of our builds"
    )
    command.add_argument("library", help="a library, as `quicbed list libraries` names it")
    command.add_argument("flavour", nargs="?", default="stock", help="its flavour (default: stock)")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    command = add(
        "try", _try, "test the folder of an external endpoint: build it, prove its variants, download from it"
    )
    command.add_argument("folder", type=Path, help="its folder (docs/external-endpoints.md)")
    text = "environment variable of its scripts; can be repeated"
    command.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE", help=text)
    command = add("certificates", _certificates, "create the testbed's missing or unusable certificates")
    command.add_argument(
        "signature",
        nargs="*",
        help="signature algorithm, a name in workflow/crypto/algorithms.csv, or with a dot and a `chain` appended "
        "(default: those of the experiments)",
    )
    command.add_argument("--all", action="store_true", help="for every signature algorithm")
    command.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, help="jobs at a time")
    command.add_argument("--log", type=Path, help=_LOG_TEXT)
    command = add("measure", _measure, "measure the missing runs of an experiment")
    command.add_argument("experiment", help="an experiment, as `quicbed list experiments` names it")
    command.add_argument("--marker", type=Path, help="file to write when the experiment is complete")
    command.add_argument("--log", type=Path, help="file for a copy of the progress")
    text = "compare the processor time of two cells or builds with concurrent pairs of downloads, and count their "
    text += "instructions; exit code, by processor time alone: 0: as precise as requested, 1: failed, 2: bad input, "
    command = add("compare", _compare, text + "3: not precise, 127: unsupported")
    text = "LIBRARY, LIBRARY/FLAVOUR, or a cell: quinn, quinn/noop, aead-goodput/quinn-noop"
    command.add_argument("a", metavar="A", help=f"the cell or build to compare with: {text}")
    command.add_argument("b", metavar="B", help="the cell or build that is compared; same form")
    for key in _COMPARED:
        word = key.replace("_", "-")
        command.add_argument(
            *(f"--{word}", f"--a-{word}", f"--b-{word}"),
            dest="variants",
            action=_OfArms,
            default=(),
            metavar="VALUE",
            help=f"`{key}` of the variant (docs/configuration.md), for both or for one",
        )
    command.add_argument(
        "--bytes", type=_bytes, default=1 << 28, help="download size of the faster one (default: 268435456)"
    )
    text = "stop when half the 95 percent interval of the ratio is at most this percentage of it (default: 1)"
    command.add_argument("--half-width", type=_percent, default=0.01, metavar="PERCENT", help=text)
    command.add_argument(
        "--min-pairs", type=_pairs, default=8, metavar="N", help="minimum number of pairs (default: 8)"
    )
    command.add_argument(
        "--max-pairs", type=_pairs, default=100, metavar="N", help="maximum number of pairs (default: 100)"
    )
    text = "start no pair after this time (default: 30)"
    command.add_argument("--minutes", type=_minutes, default=30.0, metavar="M", help=text)
    text = "do not count instructions after the pairs, which takes up to a minute, with aioquic several"
    command.add_argument("--no-instructions", action="store_false", dest="instructions", help=text)
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="directory for runs (default: that of the configuration)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="file for the result as JSON")
    command.add_argument("--log", type=Path, help="log file of builds")
    command = add("tables", _tables, "write the tables of runs, connections, primitives and handshakes")
    command.add_argument("raw", type=Path, help="directory of runs")
    command.add_argument("output", type=_file, help="file to write")
    command.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, help="archives at a time")
    command = add(
        "dissect", _dissect, "dissect stored captures again and compare with the stored values; exit code 0 either way"
    )
    command.add_argument("raw", type=Path, help="directory of runs")
    command.add_argument("output", type=_file, help="table to write (Parquet)")
    command.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, help="captures at a time")
    command = add("verdicts", _verdicts, "judge all claims, and store the verdicts for notebooks, report and `claims`")
    command.add_argument("raw", type=Path, help="directory of runs")
    command.add_argument("output", type=_file, help="file to write")
    table(command)
    command = add("notebooks", _notebooks, "run notebooks, which write figures and their tables; each becomes a page")
    command.add_argument("raw", type=Path, help="directory of runs")
    command.add_argument("artifacts", type=Path, help="directory of results")
    command.add_argument("notebook", type=Path, nargs="+", help="a notebook")
    command.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, help="notebooks at a time")
    table(command)
    published(command)
    command = add("draw", _draw, "draw the figures of one experiment, as the notebooks do, and print their paths")
    command.add_argument("experiment", help="an experiment, as `quicbed list experiments` names it")
    command.add_argument("raw", type=Path, help="directory of runs")
    command.add_argument("artifacts", type=Path, help="directory of results")
    command.add_argument("--marker", type=Path, help="file to write with the names of the figures")
    # not --log, which a package behind plotly takes for one of its own options
    command.add_argument("--messages", dest="log", metavar="LOG", type=Path, help=_LOG_TEXT)
    command = add("report", _report, "write the report")
    command.add_argument("raw", type=Path, help="directory of runs")
    command.add_argument("artifacts", type=Path, help="directory of results")
    table(command)
    published(command)
    command = add("claims", _claims, "print the verdicts on published claims; exit code 0 for any verdict")
    command.add_argument("claim", nargs="*", help="id of a claim, of a table of numbers or of a paper (default: all)")
    command.add_argument("--all", action="store_true", help="a line for every number of a table too")
    text = "claims with this verdict only, as `fails` or `holds,inconclusive`; can be repeated"
    command.add_argument("--verdict", action="extend", type=_verdict_names, default=[], help=text)
    command.add_argument(
        "--raw", type=Path, help="directory of runs (default: your own runs, or else the reference data)"
    )
    command = add("summary", _summary, "print in five sentences what cryptography costs QUIC in these runs")
    command.add_argument(
        "--raw", type=Path, help="directory of runs (default: your own runs, or else the reference data)"
    )
    command = add("predict", _predict, "predict the handshake of a library with two algorithms from measured ones")
    command.add_argument("--library", required=True, help="a library, as `quicbed list libraries` names it")
    command.add_argument("--group", required=True, help="key exchange, a name in workflow/crypto/algorithms.csv")
    command.add_argument("--signature", required=True, help="signature algorithm, a name in the same table")
    command.add_argument("--rtt", type=_milliseconds, default=0.0, metavar="MS", help="round-trip time (default: 0)")
    command.add_argument(
        "--raw", type=Path, help="directory of runs (default: your own runs, or else the reference data)"
    )
    table(command)
    command = add("reference", _reference, "pack measured campaigns into raw/reference/")
    command.add_argument("experiment", nargs="*", help="experiments (default: those of the configuration)")
    text = "write the handshake packets that notebooks show beside archives of runs, with tshark"
    command = add("packets", _packets, text)
    command.add_argument("archive", type=Path, nargs="*", help="archives (default: the reference data)")
    command = add("import", _import, "read published results into tables like those of our own runs")
    command.add_argument("format", choices=list(FORMATS), help="; ".join(f"{k}: {v.what}" for k, v in FORMATS.items()))
    command.add_argument("path", type=Path, help="local copy: a folder, a tar archive, or a result.json (qir)")
    command.add_argument("--out", type=Path, metavar="DIR", help="default: artifacts/published/<format>")
    command = add("export", _export, "write measured runs in another project's format")
    command.add_argument("format", choices=["qir"], help="qir: result.json of the QUIC Interop Runner")
    command.add_argument("experiment", help="the experiment, of which the newest campaign is written")
    command.add_argument("output", type=_file, help="file to write")
    command.add_argument("--table", type=Path, help="table of runs (default: artifacts/tables/runs.parquet)")
    command = add("archive", _archive, "write the archive to deposit: commit, results, bill of materials, checksums")
    command.add_argument("--out", type=Path, metavar="DIR", help="directory (default: archive/ beside the results)")
    command.add_argument("--check", action="store_true", help="only check whether the clone can be archived")
    command = add("handshake", _handshake, "print the handshakes of a capture: packets, bytes, messages, waiting")
    command.add_argument("capture", type=Path, help="capture file, as tcpdump writes it")
    command.add_argument("key_log", type=Path, metavar="key-log", help="its key log (NSS format)")
    command.add_argument("--server", metavar="IP:PORT", required=True, help="address of the server")
    command.add_argument("--transport", choices=("quic", "tcp"), default="quic", help="default: quic")
    command = add(
        "capture", _capture, "write the packets of a capture as a table; exit code 1 if the capture has problems"
    )
    command.add_argument("capture", type=Path, help="pcap or pcapng, also in gzip or zstd")
    command.add_argument("--output", "-o", type=_file, metavar="FILE.parquet", required=True, help="table to write")
    command.add_argument("--server", metavar="IP:PORT", help="address of the server (default: detected)")
    numbers = command.add_mutually_exclusive_group()
    numbers.add_argument("--key-log", type=Path, help="decrypt packet numbers; needs --server")
    text = "read the packet numbers of a variant without header protection"
    numbers.add_argument("--visible-numbers", action="store_true", help=text)
    command = add("symbols", _symbols, "print the categories of a run's samples, and the functions without one")
    command.add_argument("run_directory", type=Path, metavar="run", help="directory of a run of cpu-shares")
    command.add_argument("--top", type=int, default=15, help="number of symbols to show")
    command = add("generate", _generate, "write JSON schemas and the generated reference pages")
    command.add_argument(
        "--check",
        action="store_true",
        help="only compare; on differences print a diff and exit with 1",
    )
    return parser


class _OfArms(argparse.Action):
    """Collects options that are of both arms of a comparison, or of the one that their name begins with."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        del parser
        words = (option or "").removeprefix("--").split("-")
        arm = words.pop(0) if words[0] in ("a", "b") else None
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), ("_".join(words), arm, values)))


def _bytes(text: str) -> int:
    return _between(int(text), 1 << 20, 1 << 40)


def _pairs(text: str) -> int:
    return _between(int(text), 2, 9999)


def _minutes(text: str) -> float:
    return _between(float(text), 0, 100_000)


def _percent(text: str) -> float:
    return _between(float(text), 0.01, 99) / 100


def _between(value: N, low: float, high: float) -> N:
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
    return value


def _jobs(text: str) -> int:
    number = int(text)
    if not 0 < number <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1024")
    return number


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    return path


def _days(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of days")
    return number


def _verdict_names(text: str) -> list[str]:
    """Verdicts, separated by commas; a hyphen stands for a space."""
    return [one.strip().replace("-", " ") for one in text.split(",")]


def _milliseconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100000")
    return value


def project_of(arguments: argparse.Namespace) -> Project:
    """The project with what the command line overrides."""
    return Project(ROOT, _overrides(arguments))


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        overrides: Any = json.loads(arguments.config)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config: not valid JSON: {error}") from None
    if not isinstance(overrides, dict):
        raise ConfigError("--config: must be a JSON object of keys and values")
    return overrides | (_settings(arguments.settings) if arguments.settings else {})


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """What words of the form key=value say, as Snakemake reads them after --config."""
    from snakemake.cli import parse_config

    try:
        return dict(parse_config(words))
    except ValueError as error:
        raise ConfigError(f"{' '.join(words)}: {error}") from None


def _log(arguments: argparse.Namespace, name: str) -> Path:
    log: Path = getattr(arguments, "log", None) or ROOT / "logs" / f"{name}.log"
    return log.resolve()


def _plan(arguments: argparse.Namespace) -> None:
    from quicbed.claims import causes
    from quicbed.claims import papers as claims
    from quicbed.cli import terminal
    from quicbed.measure import profile, workflow_estimate

    project = project_of(arguments)
    if arguments.experiment:
        chosen = _overrides(arguments) | {"experiments": arguments.experiment}
        project = Project(ROOT, chosen)
    # what is read when all has been measured is checked before
    causes.read(project, claims.stated(project))
    profile.check(project.root)
    terminal.show(workflow_estimate.describe(project))


def _list(arguments: argparse.Namespace) -> None:
    from quicbed.analysis import place
    from quicbed.cli import listing, terminal

    project = project_of(arguments)
    raw = arguments.raw or place.here(ROOT, project.config).raw
    wanted = listing.Wanted(raw, arguments.experiment, arguments.status)
    terminal.show_table(*listing.table(project, arguments.kind, wanted))


def _show(arguments: argparse.Namespace) -> None:
    from quicbed.cli import show, terminal

    raw, shipped = project_of(arguments).raw, ROOT / "raw" / "reference"
    places = [raw] if raw in shipped.parents else [raw, shipped]
    for number, name in enumerate(arguments.name):
        origin, files = show.find(name, places)
        terminal.show(("\n\n" if number else "") + show.text(origin, files, every=arguments.all))


def _doctor(arguments: argparse.Namespace) -> int:
    from quicbed.cli import terminal
    from quicbed.measure.doctor import doctor

    return doctor(project_of(arguments), terminal.show)


def _guests(arguments: argparse.Namespace) -> None:
    from quicbed.testbed import guests

    pair = guests.Guests(guests.DIRECTORY, guests.NAMESPACE)
    if arguments.action == "stop":
        print("the guests are stopped" if pair.stop() else "there are no guests")
    else:
        started = pair.start()
        print(f"the guests {'are' if started else 'were'} up: use testbed=guests, then `quicbed guests stop`")


def _sources(arguments: argparse.Namespace) -> None:
    from quicbed.builds import sources

    print(sources.fetch(project_of(arguments), _log(arguments, "sources")))


def _build(arguments: argparse.Namespace) -> None:
    from quicbed.builds import kit, making

    project = project_of(arguments)
    if arguments.library not in project.libraries:
        raise ConfigError(f"library `{arguments.library}` is unknown; known are {', '.join(project.libraries)}")
    log = _log(arguments, f"build-{arguments.library}-{arguments.flavour}")
    wanted = making.build_id(project, arguments.library, arguments.flavour)
    if arguments.id and not wanted.endswith(f"-{arguments.id}"):
        raise kit.BuildError(
            f"{wanted}: a build with the id {arguments.id} was asked for, and here it is another one: `native` is for "
            "the processor that the workflow was started on; build there, or give `march` a level"
        )
    if STARTED in os.environ and not making.is_made(project, arguments.library, arguments.flavour):
        from quicbed.measure import time_left

        print(f"quicbed: {time_left.building(project, arguments.library, arguments.flavour)}", file=sys.stderr)
    try:
        made = making.build(project, arguments.library, arguments.flavour, jobs=arguments.jobs, log=log)
    except kit.UnusableError as error:
        if not arguments.leave_out:
            raise
        print(f"quicbed: {arguments.library} is left out: {error}", file=sys.stderr)
        made = making.listing(project, arguments.library, arguments.flavour)
    print(made)


def _store(arguments: argparse.Namespace) -> None:
    from quicbed.builds import build_store
    from quicbed.cli import terminal

    project = project_of(arguments)
    if arguments.action == "list":
        heads = ("kind", "name", "for", "MB", "last used", "clones")
        terminal.show_table(heads, map(build_store.row, build_store.stored_entries(project)))
        return
    freed = 0
    for entry, size, told in build_store.prune(project, arguments.days, dry_run=arguments.dry_run):
        print(f"{told:16} {entry.part}/{entry.name}  {size / 1e6:.1f} MB")
        freed += size if told != build_store.IN_USE else 0
    print(f"{project.store}: {freed / 1e6:.1f} MB {'would be ' if arguments.dry_run else ''}freed")


def _host_builds(arguments: argparse.Namespace) -> None:
    from quicbed.measure import hosted
    from quicbed.plan import march
    from quicbed.plan.cells import builds_needed

    project = project_of(arguments)
    needed = [key for key in builds_needed(project, project.config.experiments) if march.parts(key[1]).host]
    for file in hosted.make(project, needed, _log(arguments, f"host-builds-{project.config.testbed}")):
        print(file)


def _runner_folder(arguments: argparse.Namespace) -> None:
    from quicbed.builds import interop_folder

    project = project_of(arguments)
    if arguments.library not in project.libraries:
        raise ConfigError(f"library `{arguments.library}` is unknown; known are {', '.join(project.libraries)}")
    interop_folder.write(project, arguments.library, arguments.flavour, arguments.out)
    print(arguments.out)


def _component(arguments: argparse.Namespace) -> None:
    from quicbed.builds import components

    log = _log(arguments, f"component-{arguments.name}")
    print(components.provide(project_of(arguments), arguments.name, jobs=arguments.jobs, log=log))


def _try(arguments: argparse.Namespace) -> int:
    from quicbed.measure import try_folder

    parameters = dict(one.partition("=")[::2] for one in arguments.parameter)
    if wrong := [one for one in arguments.parameter if "=" not in one]:
        raise ConfigError(f"--parameter {wrong[0]}: write it as NAME=VALUE")
    good = True
    for outcome in try_folder.try_folder(project_of(arguments), arguments.folder, parameters):
        print(f"{'ok' if outcome.ok else 'WRONG':5}  {outcome.step}: {outcome.told}", flush=True)
        good = good and outcome.ok
    return 0 if good else 1


def _certificates(arguments: argparse.Namespace) -> None:
    from quicbed.config import algorithms
    from quicbed.measure import certificates

    project = project_of(arguments)
    signatures = arguments.signature or certificates.needed(project)
    if arguments.all:
        signatures = [signature.name for signature in algorithms.read(project.root).signatures]
    log = _log(arguments, "certificates")
    for directory in certificates.make_all(project, signatures, jobs=arguments.jobs, log=log):
        print(directory)


def _measure(arguments: argparse.Namespace) -> None:
    from quicbed.measure.progress import copy_progress
    from quicbed.measure.session import measure

    project = project_of(arguments)
    if arguments.experiment not in project.experiments:
        raise ConfigError(f"experiment `{arguments.experiment}` is unknown; known are {', '.join(project.experiments)}")
    marker = (
        arguments.marker or project.artifacts / "measured" / project.config.testbed / f"{arguments.experiment}.json"
    )
    if arguments.log:
        copy_progress(arguments.log)
    measure(project, arguments.experiment, marker)


def _compare(arguments: argparse.Namespace) -> int:
    from quicbed.builds import kit
    from quicbed.cli import terminal
    from quicbed.measure import comparing

    arms: dict[Literal["a", "b"], str] = {"a": arguments.a, "b": arguments.b}
    try:
        if arguments.min_pairs > arguments.max_pairs:
            raise ConfigError(f"--min-pairs {arguments.min_pairs} is more than --max-pairs {arguments.max_pairs}")
        overrides = _overrides(arguments)
        if arguments.out is not None:
            paths = overrides.get("paths") or {}
            overrides["paths"] = {**paths, "raw": str(arguments.out.resolve())}
        asked = comparing.Asked(
            arms=arms,
            variants={
                arm: {key: value for whose in (None, arm) for key, of, value in arguments.variants if of == whose}
                for arm in arms
            },
            bytes=arguments.bytes,
            half_width=arguments.half_width,
            min_pairs=arguments.min_pairs,
            max_pairs=arguments.max_pairs,
            minutes=arguments.minutes,
            instructions=arguments.instructions,
        )
        compared = comparing.compare(Project(ROOT, overrides), asked, _log(arguments, "compare"))
    except ConfigError as error:
        print(f"quicbed: {error}", file=sys.stderr)
        return 2
    except comparing.UnsupportedError as error:
        print(f"quicbed: unsupported: {error}", file=sys.stderr)
        return 127
    if arguments.json is not None:
        kit.write_json(arguments.json, compared.as_dict())
    terminal.show(compared.text())
    return 0 if compared.decided else 3


def _tables(arguments: argparse.Namespace) -> None:
    from quicbed.store import details

    details.write_tables(arguments.raw, arguments.output, arguments.jobs)


def _dissect(arguments: argparse.Namespace) -> None:
    from quicbed.analysis import dissect

    table = dissect.write(arguments.raw, arguments.output, arguments.jobs)
    print(visible(dissect.text(table)))
    for one in dissect.problems(table):
        connection = "" if one["index"] is None else f" connection {one['index']}:"
        print(visible(f"{one['origin']}:{connection} {one['outcome']}: {one['words']}"))


def _places(
    arguments: argparse.Namespace, artifacts: Path, published: Sequence[Path] = (), table: Path | None = None
) -> dict[str, str]:
    """Environment of notebooks or the report: where they read and write."""
    from quicbed.analysis import place
    from quicbed.config.model import PICTURES_VARIABLE
    from quicbed.store import paths

    project = project_of(arguments)
    return {
        paths.RAW_VARIABLE: str(arguments.raw.resolve()),
        paths.TABLE_VARIABLE: str(table.resolve()) if table else "",
        paths.VERDICTS_VARIABLE: _judged_of(project, arguments.raw) if table else "",
        place.ARTIFACTS_VARIABLE: str(artifacts.resolve()),
        place.PUBLISHED_VARIABLE: os.pathsep.join(str(path.resolve()) for path in published),
        PICTURES_VARIABLE: ",".join(project.config.pictures),
    }


def _judged_of(project: Project, raw: Path) -> str:
    """What verdicts on the runs below *raw* are of: these runs, and all that verdicts are worked out with.

    Empty where there are no runs.
    """
    from quicbed.cli import inputs
    from quicbed.store import details

    if (read := details.read_of(raw)) is None:
        return ""
    told = hashlib.sha256(read.encode())
    for file in map(Path, inputs.of_command(ROOT, "verdicts")):
        told.update(f"{file.relative_to(ROOT)} ".encode() + file.read_bytes())
    # folders of others, wherever they are
    told.update(repr({name: one.external for name, one in project.libraries.items() if one.external}).encode())
    return told.hexdigest()


def _verdicts(arguments: argparse.Namespace) -> None:
    from quicbed.claims import judged, verdicts
    from quicbed.store import details, paths, runs

    project, raw = project_of(arguments), arguments.raw
    of = _judged_of(project, raw)
    if arguments.table:
        os.environ.update(
            {paths.RAW_VARIABLE: str(raw.resolve()), paths.TABLE_VARIABLE: str(arguments.table.resolve())}
        )
    table, beside = details.everything(raw, os.cpu_count() or 1)
    found = verdicts.tables(raw, ROOT, runs.without(table, project.left_out), beside)
    judged.write(judged.judge(project, found), arguments.output, of)


def _notebooks(arguments: argparse.Namespace) -> None:
    from quicbed.analysis import place
    from quicbed.report import notebooks

    environment = _places(arguments, arguments.artifacts, arguments.published, arguments.table)
    pages, report = arguments.artifacts / "notebooks", arguments.artifacts / "report" / place.RUNS_PAGE
    environment[place.RUNS_PAGE_VARIABLE] = os.path.relpath(report, pages)
    notebooks.run(arguments.notebook, environment, pages, arguments.jobs)
    if (told := notebooks.without_images(arguments.artifacts / "figures")) is not None:
        print(told)


def _draw(arguments: argparse.Namespace) -> None:
    from quicbed.builds import kit
    from quicbed.report import notebooks

    log = _log(arguments, f"draw-{arguments.experiment}")
    os.environ.update(_places(arguments, arguments.artifacts))
    try:
        saved, problem = notebooks.draw(ROOT / "notebooks", arguments.experiment), ""
    except Exception:  # noqa: BLE001 (measuring goes on, and the notebooks fail in the same way at the end)
        saved, problem = [], traceback.format_exc()
    lines = [f"figure {one.drawn.name} is ready: {one.files[0]}" for one in saved]
    if problem:
        lines = [f"{arguments.experiment}: its figures cannot be drawn yet, {log} says why; tried again at the end"]
    print("\n".join(lines or [f"{arguments.experiment}: its figures are drawn at the end"]), file=sys.stderr)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join([*lines, problem]), encoding="utf-8")
    if arguments.marker:
        kit.write_json(arguments.marker, {"figures": [one.drawn.name for one in saved]})


def _report(arguments: argparse.Namespace) -> None:
    from quicbed.report import page

    published = {path.name: path for path in arguments.published}
    os.environ.update(_places(arguments, arguments.artifacts, arguments.published, arguments.table))
    page.write(arguments.artifacts, arguments.raw, project=project_of(arguments), published=published)


def _claims(arguments: argparse.Namespace) -> None:
    from quicbed.analysis import place
    from quicbed.claims import causes, claims_report, judged, verdicts
    from quicbed.claims import papers as claims
    from quicbed.cli import terminal
    from quicbed.papers import published_claims
    from quicbed.store import details, runs

    known_verdicts = get_args(verdicts.Verdict)
    if unknown := [one for one in arguments.verdict if one not in known_verdicts]:
        raise ConfigError(f"--verdict: `{unknown[0]}` is unknown; known are {', '.join(known_verdicts)}")
    project = project_of(arguments)
    every = claims.stated(project)
    shown = claims.chosen(every, arguments.claim or [one.id for one in every])
    here = place.here(ROOT, project.config)
    raw = arguments.raw or here.raw
    # all of a paper are judged together, whatever is shown of them
    papers = {one.name for one in shown}
    known = [one for one in every if one.name in papers]
    made = here.artifacts / "tables" / "runs.parquet"
    if (kept := judged.read(made.with_name(judged.FILE), project, _judged_of(project, raw))) is not None:
        results = kept.of_papers(papers)
        why = kept.found(project, results)
    else:
        table, beside = details.everything(raw, os.cpu_count() or 1, made)
        tables = verdicts.tables(raw, ROOT, runs.without(table, project.left_out), beside)
        results = verdicts.evaluate(project, known, tables)
        why = causes.find(project, every, results, causes.tested(project, every, tables))
    tested = {name: sum(r.p is not None for r in results if r.stated.name == name) for name in papers}
    ids = {one.id for one in shown}
    wanted = [result for result in results if result.stated.id in ids]
    if arguments.verdict:
        wanted = [result for result in wanted if result.verdict in arguments.verdict]
    print(f"Runs of {raw}\n")
    published = imported(project.published_tables)
    theirs = claims_report.by_claim(published_claims.evaluate(project, known, published))
    cells = arguments.all or bool(arguments.claim) or bool(arguments.verdict)
    told = claims_report.text(wanted, cells=cells, tested=tested, published=theirs, found=why)
    terminal.show(told or f"No claim has the verdict {' or '.join(arguments.verdict)}.")


def _summary(arguments: argparse.Namespace) -> None:
    from quicbed.analysis import place
    from quicbed.claims import judged, verdicts
    from quicbed.report import made_with, summary
    from quicbed.store import details, runs

    project = project_of(arguments)
    here = place.here(ROOT, project.config)
    raw = arguments.raw or here.raw
    made = here.artifacts / "tables" / "runs.parquet"
    table, beside = details.everything(raw, os.cpu_count() or 1, made)
    counting = runs.without(table, project.left_out)
    kept = judged.read(made.with_name(judged.FILE), project, _judged_of(project, raw))
    if kept is None:
        kept = judged.judge(project, verdicts.tables(raw, ROOT, counting, beside))
    print(f"{len(table)} runs of {raw}, on {made_with.measured_by(table, beside.campaigns) or 'no known host'}\n")
    told = summary.of_project(project, counting, beside, kept)
    for one in told:
        print(visible(textwrap.fill(f"{one.topic}. {one.text}", 100)) + "\n")
    print(summary.READING if told else "Nothing measured yet.")


def _predict(arguments: argparse.Namespace) -> None:
    from quicbed.analysis import additivity, place
    from quicbed.config import algorithms
    from quicbed.store import details, paths, runs

    project = project_of(arguments)
    if arguments.library not in project.libraries:
        raise ConfigError(f"library `{arguments.library}` is unknown; known are {', '.join(project.libraries)}")
    known = algorithms.read(project.root)
    group, signature = known.group(arguments.group).name, known.signature(arguments.signature).name
    raw = arguments.raw or place.here(ROOT, project.config).raw
    if arguments.table:
        os.environ.update(
            {paths.RAW_VARIABLE: str(raw.resolve()), paths.TABLE_VARIABLE: str(arguments.table.resolve())}
        )
    measured = runs.without(runs.table(raw), project.left_out)
    every = additivity.measured(measured, details.read(raw), known)
    pair = additivity.pair(every, additivity.delayed(measured), arguments.library, group, signature, arguments.rtt)
    print(f"Runs of {raw}\n")
    print(additivity.text(pair, arguments.library, group, signature))


def _reference(arguments: argparse.Namespace) -> None:
    from quicbed.store.reference import pack

    project = project_of(arguments)
    archives = pack(project, arguments.experiment or project.config.experiments)
    for file in archives:
        print(file)
    _write_packets(archives)


def _packets(arguments: argparse.Namespace) -> None:
    from quicbed.store.paths import archives_below
    from quicbed.wire import tshark

    if (missing := tshark.problem()) is not None:  # before any archive is read
        raise tshark.TsharkError(missing)
    _write_packets(arguments.archive or archives_below(ROOT / "raw" / "reference"))


def _write_packets(archives: Sequence[Path]) -> None:
    from quicbed.report import look

    for archive in archives:
        if (file := look.write(archive)) is not None:
            print(file)


def _import(arguments: argparse.Namespace) -> None:
    from quicbed.papers import reading

    out: Path | None = arguments.out
    if out is None:
        out = project_of(arguments).published_tables / arguments.format
    print(visible(reading.read(arguments.format, arguments.path, out).text()))


def _export(arguments: argparse.Namespace) -> None:
    from quicbed.report import export

    table: Path | None = arguments.table
    if table is None:
        table = project_of(arguments).artifacts / "tables" / "runs.parquet"
    export.write(table, arguments.output, arguments.experiment)
    print(arguments.output)


def _archive(arguments: argparse.Namespace) -> None:
    from quicbed.cli import archive, generate

    project = project_of(arguments)
    if arguments.check:
        archive.check(project)
        return
    pages = generate.pages(project.root, _parser())
    file = archive.make(project, arguments.out or project.artifacts / "archive", pages)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB, SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()}")


def _handshake(arguments: argparse.Namespace) -> None:
    from quicbed.wire.handshake import main_table

    print(
        visible(
            main_table(arguments.capture, arguments.key_log, server=arguments.server, transport=arguments.transport)
        )
    )


def _capture(arguments: argparse.Namespace) -> int:
    from quicbed.builds import components
    from quicbed.wire import handshake, numbers, packets
    from quicbed.wire.pcap import CaptureError

    project = project_of(arguments)
    log = _log(arguments, "component-capture-reader")
    if not components.is_built(project, "capture-reader"):
        print("quicbed: building the reader of captures", file=sys.stderr)
    program = components.provide(project, "capture-reader", jobs=os.cpu_count() or 1, log=log) / "bin/capture-reader"

    def tell(read: int, size: int, frames: int) -> None:
        print(f"quicbed: {frames:,} packets, {read / max(size, 1):.0%} of {size / 1e6:,.0f} MB", file=sys.stderr)

    server = handshake.address_of(arguments.server) if arguments.server else None
    if arguments.key_log is not None and server is None:
        raise CaptureError(f"{arguments.key_log}: a key log is of no use without the address of the server")
    found = packets.read(
        program,
        arguments.capture,
        arguments.output,
        server=server,
        visible_numbers=arguments.visible_numbers,
        keys=numbers.keys(arguments.key_log, server) if arguments.key_log is not None and server is not None else None,
        progress=tell,
    )
    print(f"{arguments.output}: {found.frames} packets of {found.connections} connections")
    problems = found.problems(arguments.capture)
    for problem in problems:
        print(visible(f"quicbed: {problem}"), file=sys.stderr)
    return 1 if problems else 0


def _symbols(arguments: argparse.Namespace) -> None:
    from quicbed.store import symbols

    print(visible(symbols.describe(ROOT, arguments.run_directory, arguments.top)))


def _generate(arguments: argparse.Namespace) -> int:
    from quicbed.cli.generate import generate

    return generate(ROOT, _parser(), check=arguments.check)
