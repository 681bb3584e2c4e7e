"""JSON schemas, pages of reference and tables of algorithms, generated from models, configuration and data files.

`quicbed generate` writes them. Schemas and pages are not in git: set-up, `make docs` and the archive have them made.
Code is, since builds are identified by it; `quicbed generate --check` shows a diff where it has drifted, and a test
runs that.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import polars as pl
from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from typing_extensions import TypeAliasType

from quicbed.analysis import comparison
from quicbed.base import durable
from quicbed.builds import kit, making
from quicbed.builds.recipes import cargo
from quicbed.claims import claims_report, verdict
from quicbed.claims.causes import Causes
from quicbed.claims.papers import Paper
from quicbed.cli.parser import GROUPS
from quicbed.config import algorithms
from quicbed.config.model import (
    Cipher,
    Config,
    Experiment,
    ExternalFile,
    Io,
    Library,
    Project,
    Statement,
    Study,
    Testbed,
)
from quicbed.contract import events
from quicbed.plan import factors, march
from quicbed.plan.built import Build
from quicbed.store import campaign, described, record

RECORDS: dict[str, tuple[type[BaseModel], ...]] = {
    "run": (record.Run,),
    "pacing": (record.Pacing,),
    "build": (Build,),
    "campaign": (campaign.Campaign, campaign.Session, campaign.Block, campaign.Floor),
    "verdicts": (verdict.Verdicts,),
    "events": (
        *(events.Start, events.Ready, events.ClientConnection, events.ServerConnection),
        *(events.Primitive, events.NamedReason, events.Reason, events.End),
    ),
}
"""Models of what a run leaves, by schema."""

KINDS: dict[str, tuple[type[BaseModel], str]] = {
    "config": (Config, "config/config.yaml"),
    "testbed": (Testbed, "config/testbeds/&lt;name&gt;.yaml"),
    "library": (Library, "config/libraries/&lt;name&gt;.yaml"),
    "external": (ExternalFile, "config/libraries/&lt;name&gt;.yaml of an external endpoint"),
    "statement": (Statement, "quicbed.yaml in the folder of an external endpoint"),
    "experiment": (Experiment, "config/experiments/&lt;name&gt;.yaml"),
    "study": (Study, "config/studies/&lt;name&gt;.yaml"),
    "claims": (Paper, "config/claims/&lt;paper&gt;.yaml"),
    "causes": (Causes, "config/causes.yaml"),
}


class _Untitled(GenerateJsonSchema):
    """Without titles of keys, which would be their names again."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False


def generate(root: Path, parser: argparse.ArgumentParser, *, check: bool) -> int:
    """Write every generated file, or compare those in git; returns 1 if `check` found a difference.

    *parser* is that of the command line, for docs/commands.md.
    """
    differences = 0
    for file, text in (code(root) if check else code(root) | pages(root, parser)).items():
        current = file.read_text(encoding="utf-8") if file.exists() else ""
        if current == text:
            continue
        if check:
            differences += 1
            name = file.relative_to(root).as_posix()
            diff = difflib.unified_diff(
                current.splitlines(),
                text.splitlines(),
                f"{name} (as it is)",
                f"{name} (generated)",
                lineterm="",
            )
            print("\n".join(diff), file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            durable.write_text(file, text)
            print(file.relative_to(root))
    if differences:
        print("quicbed: run `quicbed generate` and commit the result", file=sys.stderr)
    return 1 if differences else 0


def code(root: Path) -> dict[Path, str]:
    """The generated files that are in git, and their texts."""
    table = algorithms.read(root)
    return {
        root / "workflow" / "crypto" / "pq" / "algorithms.h": algorithms.c_header(table),
        root / "workflow" / "endpoints" / "contract" / "rust" / "src" / "algorithms.rs": algorithms.rust_module(table),
    }


def pages(root: Path, parser: argparse.ArgumentParser) -> dict[Path, str]:
    """The generated files that are not in git, and their texts."""
    project = Project(root).without_folders()
    files: dict[Path, str] = {}
    for name, (model, _) in KINDS.items():
        schema = model.model_json_schema(schema_generator=_Untitled)
        if variant := schema.get("$defs", {}).get("Variant"):
            variant["required"] = ["label"]  # all else may be in the experiment's `defaults`
        files[root / "workflow" / "schemas" / f"{name}.schema.json"] = json.dumps(schema, indent=2) + "\n"
    for name, recorded in RECORDS.items():
        definitions = models_json_schema([(model, "validation") for model in recorded], schema_generator=_Untitled)[1]
        files[root / "workflow" / "schemas" / f"{name}.schema.json"] = json.dumps(definitions, indent=2) + "\n"
    files[root / "docs" / "configuration.md"] = configuration_page()
    files[root / "docs" / "data.md"] = data_page()
    files[root / "docs" / "libraries.md"] = libraries_page(project)
    for name in project.libraries:
        files[root / "docs" / "libraries" / f"{name}.md"] = library_page(project, name)
    files[root / "docs" / "commands.md"] = commands_page(parser)
    files[root / "docs" / "claims.md"] = claims_report.documentation(project)
    return files


def configuration_page() -> str:
    """docs/configuration.md: every key of every file."""
    parts = [
        "# Configuration",
        "",
        "Every key of every file below `config/`. This page is generated from the models in",
        "`workflow/quicbed/config/` and `workflow/quicbed/claims/` by `quicbed generate`. A key that is not",
        "listed is an error, and so is one given twice.",
        "",
        "A value of `config.yaml` can be overridden for one run: `make all SCALE=tiny` or",
        "`snakemake --cores 8 all --config scale=tiny`.",
        "",
    ]
    done: set[type[BaseModel]] = set()
    for model, path in KINDS.values():
        parts += [f"## {path}", ""]
        parts += _model_tables(model, done, top=True)
    return "\n".join(parts).rstrip() + "\n"


def data_page() -> str:
    """docs/data.md: what a run leaves, key by key, and the tables made of runs, column by column."""
    parts = [
        "# Data",
        "",
        "Every run has a directory below `raw/` with a `run.json` and the files that its two programs wrote.",
        "`quicbed generate` writes this page from the models of these files (`workflow/quicbed/store/record.py`,",
        "`workflow/quicbed/contract/events.py`). Beside the runs are the records",
        "of their campaign (`workflow/quicbed/store/campaign.py`) and, in `builds/`, the `build.json` of each measured",
        "build (`workflow/quicbed/plan/built.py`). The report stores the verdicts on claims in `tables/claims.json`",
        "(`workflow/quicbed/claims/verdict.py`). `workflow/schemas/` has the same models as JSON schemas.",
        "",
        "Archives of reference data store larger event files by column, in files with names in `.columns`",
        "(`workflow/quicbed/store/columns.py`), and stacks uncompressed, with names in `.plain`. All commands read",
        "both. Archives omit most captures, and the event files of connections that begin at a rate and of several",
        "downloads in one run; `left-out.json` has their sizes and checksums.",
        "[Tables](#tables) describes the columns of the tables that are made of runs.",
        "",
        "Names of keys include the unit. Event times are readings of `CLOCK_MONOTONIC` in ns. A key without a value",
        "is null or absent.",
        "",
    ]
    done: set[type[BaseModel]] = set()
    titles = {
        "run": "run.json",
        "pacing": "pacing.json",
        "events": "Lines of client.jsonl, server.jsonl and primitives.jsonl",
        "build": "build.json",
        "campaign": "campaign.json, sessions/*.json, block.json and floor.json",
        "verdicts": "claims.json",
    }
    for name, title in titles.items():
        parts += [f"## {title}", ""]
        for model in RECORDS[name]:
            parts += _record_tables(model, done)
    parts += [
        "## Tables",
        "",
        "The workflow reads all runs into these tables, `artifacts/tables/*.parquet`; those of the reference data lie",
        "below `artifacts/reference/`. Notebooks read the same ones.",
        "",
    ]
    for name, schema in described.TABLES.items():
        parts += [f"### {name}.parquet", "", f"One row for {described.ROWS[name]}.", "", *_column_table(schema)]
    parts += [
        "### Tables of figures",
        "",
        "Beside them is a table for every figure of an experiment, `<experiment>.parquet` and `.csv`, with one row for",
        "every cell. Those of other figures have further columns, with units in their names.",
        "",
        *_column_table(comparison.FIGURE_SCHEMA),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _column_table(schema: Mapping[str, pl.DataType]) -> list[str]:
    rows = [f"| `{one.column}` | {one.kind} | {one.unit} | {one.meaning} |" for one in described.columns(schema)]
    return ["| column | value | unit | meaning |", "| --- | --- | --- | --- |", *rows, ""]


def _record_tables(model: type[BaseModel], done: set[type[BaseModel]]) -> list[str]:
    if model in done:
        return []
    done.add(model)
    title = model.__name__.lower()
    lines = [f"### {title}", "", str(model.__doc__).partition("\n\n")[0].strip(), ""]
    lines += ["| key | value | meaning |", "| --- | --- | --- |"]
    nested: list[type[BaseModel]] = []
    for name, info in model.model_fields.items():
        nested += _models_in(info.annotation)
        meaning = " ".join((info.description or "").split())
        kind = _type_text(info.annotation).removesuffix(" or null")
        lines.append(f"| `{name}` | {kind} | {meaning} |".replace("|  |", "| |"))
    lines.append("")
    for inner in nested:
        lines += _record_tables(inner, done)
    return lines


def _model_tables(model: type[BaseModel], done: set[type[BaseModel]], *, top: bool) -> list[str]:
    if model in done:
        return []
    done.add(model)
    lines = [] if top else [f"### {model.__name__.lower()}", ""]
    lines += [
        str(model.__doc__).split("\n\n")[0].strip(),
        "",
        "| key | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    nested: list[type[BaseModel]] = []
    for name, info in model.model_fields.items():
        nested += _models_in(info.annotation)
        default = _default(info)
        lines.append(f"| `{name}` | {_type_text(info.annotation)} | {default} | {info.description} |")
    lines.append("")
    for inner in nested:
        lines += _model_tables(inner, done, top=False)
    return lines


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _type_text(annotation: Any) -> str:
    if isinstance(annotation, TypeAliasType):
        return _type_text(annotation.__value__)
    origin = get_origin(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, UnionType):
        texts = dict.fromkeys(_type_text(argument) for argument in get_args(annotation))
        return " or ".join(text for text in texts if text != "whole number" or "number" not in texts)
    if origin is list:
        return f"list of {_type_text(get_args(annotation)[0])}"
    if origin is dict:
        return f"mapping of names to {_type_text(get_args(annotation)[1])}"
    if origin is not None and hasattr(annotation, "__metadata__"):
        return _type_text(get_args(annotation)[0])
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__.lower()}](#{annotation.__name__.lower()})"
    names = {
        AwareDatetime: "time (ISO 8601, UTC)",
        str: "text",
        int: "whole number",
        float: "number",
        bool: "`true`, `false`",
        Any: "any value",
    }
    return names.get(annotation, str(annotation))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if info.default_factory is not None:
        return "defaults" if _models_in(info.annotation) else "empty"
    if info.default == "":
        return "empty"
    return f"`{json.dumps(info.default)}`"


APPLICATION = {"hq-interop": "HTTP/0.9 (hq-interop)", "h3": "HTTP/3", "http/1.1": "HTTP/1.1"}
"""What is spoken with an ALPN."""


def commands_page(parser: argparse.ArgumentParser) -> str:
    """docs/commands.md: every command with what it takes."""
    parts = [
        "# Commands",
        "",
        "Every step of the workflow is a command. This page is generated from the command line by `quicbed generate`.",
        "",
        "Activate the environment once in each shell: `. .venv/bin/activate`. To let Bash and zsh complete commands "
        "and names, run:",
        "",
        "```sh",
        'eval "$(register-python-argcomplete quicbed)"',
        "```",
        "",
        "In zsh, first run `autoload -U compinit && compinit`.",
        "",
        "Words of the form `key=value` override `config/config.yaml` for one command, as `CONFIG` does for `make all`: "
        "`quicbed plan scale=paper 'experiments=[aead-goodput]'`. Quote brackets, which are patterns for shells.",
        "",
        "The exit code is 0 on success, 1 on failure, 2 for a wrong command line, and 130 after an interruption. Only "
        "terminals show colours and lines of tables; `NO_COLOR` disables colours.",
        "",
    ]
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for title, names in GROUPS.items():
        parts += [f"## {_sentence(title)}", ""]
        for name in names:
            command = commands.choices[name]
            parts += [f"### {name}", "", _sentence(command.description or ""), ""]
            if own := command._actions[1:]:
                parts += ["| argument | meaning |", "| --- | --- |"]
                parts += [f"| {_argument(action)} | {_sentence(action.help or '')} |" for action in own]
                parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _argument(action: argparse.Action) -> str:
    """An argument as it is written."""
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    return f"`{' '.join([*action.option_strings, str(value)]).strip()}`"


def _sentence(text: str) -> str:
    """A text that begins with a capital letter, fit for a cell of a table."""
    return (text[:1].upper() + text[1:]).replace("|", "\\|").replace("<", "&lt;")


def libraries_page(project: Project) -> str:
    """docs/libraries.md: what is measured, a line each library."""
    parts = [
        "# Libraries",
        "",
        "Generated from `config/libraries/` and the lock files of the sources by `quicbed generate`. Each library has "
        "its own page, with sources, description of the endpoints, and limits with reasons. Tables and figures give "
        "the same reason for a missing cell.",
        "",
        "| library | version | transport | application | TLS library | licence |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, library in project.libraries.items():
        parts.append(
            f"| [{library.title}](libraries/{name}.md) | {making.version_of(project, name)} "
            f"| {library.transport.upper()} | {_application(library)} | {library.tls_library} | {library.licence} |"
        )
    parts += [
        "",
        "## Abilities",
        "",
        "| library | flavours | ciphers | congestion control | NOOP AEAD | header protection off | UDP GSO | UDP GRO |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, library in project.libraries.items():
        supports = library.supports
        quic = [
            _yes(value, library.transport) for value in (supports.header_protection_off, supports.gso, supports.gro)
        ]
        parts.append(
            f"| [{library.title}](libraries/{name}.md) | {', '.join(library.flavours)} | {', '.join(supports.ciphers)} "
            f"| {', '.join(supports.congestion_controls)} | {_yes(supports.noop)} | {' | '.join(quic)} |"
        )
    parts += [
        "",
        "## Common behaviour",
        "",
        "Unless its page says otherwise, an endpoint",
        "",
        "- sets the socket buffers and the flow-control windows of streams and connections to the requested sizes;",
        "- gives credit for bytes that were read, so that windows keep their size;",
        "- uses UDP GSO and GRO unless the experiment disables them.",
        "",
        "Its event `start` reports the effective settings ([the contract](../workflow/endpoints/ENDPOINT.md)).",
    ]
    return "\n".join(parts) + "\n"


def _application(library: Library) -> str:
    """What its endpoints speak."""
    spoken = [library.alpn, *(["h3"] if library.supports.http3 is True and library.alpn != "h3" else [])]
    return ", ".join(APPLICATION[name] for name in spoken)


def library_page(project: Project, name: str) -> str:
    """docs/libraries/<name>.md: one library."""
    library = project.libraries[name]
    supports = library.supports
    version = making.version_of(project, name)
    parts = [
        f"# {library.title}",
        "",
        "Generated by `quicbed generate`. [All libraries](../libraries.md)",
        "",
        "| | |",
        "| --- | --- |",
        f"| version | {version} |",
        f"| transport | {library.transport.upper()}, {_application(library)} |",
        f"| TLS library | {library.tls_library} |",
        f"| licence | {library.licence} |",
        f"| configuration | [config/libraries/{name}.yaml](../../config/libraries/{name}.yaml) |",
        f"| endpoint programs | [workflow/endpoints/{library.endpoint}](../../workflow/endpoints/{library.endpoint}) |",
        f"| built by recipe | `{library.recipe}` |",
        f"| ciphers | {', '.join(supports.ciphers)} |",
        f"| congestion control | {', '.join(supports.congestion_controls)} |",
    ]
    if library.transport == "quic":
        parts.append(f"| UDP GSO, UDP GRO | {_yes(supports.gso)}, {_yes(supports.gro)} |")
    parts += [
        "",
        "## Flavours",
        "",
        "| flavour | key exchange and signatures | changes to the sources | shared |",
    ]
    parts.append("| --- | --- | --- | --- |")
    for flavour, chosen in library.flavours.items():
        if chosen.algorithms == "all":
            lacking = ", ".join(chosen.unsupported)
            text = "all of [algorithms.csv](../../workflow/crypto/algorithms.csv)" + (
                f" except {lacking}" if lacking else ""
            )
        else:
            text = f"{', '.join(supports.groups)}; {', '.join(supports.signatures)}"
        changes = [f"`workflow/crypto/patches/{p.file}` on {p.crate}" for p in chosen.patches]
        changes += [f"`{kit.ENDPOINTS}/{chosen.endpoint}`"] if chosen.endpoint else []
        changes += [f"`{source}`" for source in chosen.sources]
        parts.append(f"| `{flavour}` | {text} | {', '.join(changes) or 'nothing'} | {', '.join(chosen.components)} |")
    for title, text in (
        ("NOOP AEAD", library.notes.noop),
        ("Initial packets", library.notes.initial),
        ("Header protection", library.notes.header_protection),
        ("Input and output", library.notes.io),
    ):
        parts += ["", f"## {title}", "", *textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)]
    if library.notes.flavours is not None:
        lines = textwrap.wrap(library.notes.flavours, 120, break_long_words=False, break_on_hyphens=False)
        parts += ["", "## Special flavours", "", *lines]
    if library.notes.pacing is not None:
        able = [f"`{value}`" for value, can in supports.pacing.items() if can is True]
        text = f"`--pacing`: {', '.join(able)}. {library.notes.pacing}"
        parts += ["", "## Pacing", "", *textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)]
    if unsupported := _unsupported(project, library):
        parts += ["", "## Limits", "", "| unsupported | reason |", "| --- | --- |"]
        parts += [f"| {what} | {why} |" for what, why in unsupported]
    parts += ["", "## Sources", ""]
    if library.example is not None:
        programs = f"`{library.example.server[0]}` and `{library.example.client[0]}`"
        parts += [
            f"`make bench` compares the endpoints with {programs}, the examples of {library.example.package}.",
            "",
        ]
    elif library.no_example is not None:
        parts += [f"`make bench` has no examples to compare the endpoints with: {library.no_example}.", ""]
    if cargo.has_bare(project, name):
        program = f"workflow/endpoints/{library.endpoint}/examples/{cargo.BARE}.rs"
        parts += [f"`make bench BENCH=bare` compares them with a [bare transfer](../../{program}) by the library.", ""]
    parts += ["| source package | version | checksum |", "| --- | --- | --- |"]
    for package in making.sources_of(project, name):
        # what a crate depends on is in Cargo.lock
        if not library.crates or package["name"] in library.crates:
            parts.append(f"| {package['name']} | {package['version']} | `{package['checksum']}` |")
    return "\n".join(parts).replace("|  |", "| |") + "\n"


def _unsupported(project: Project, library: Library) -> list[tuple[str, str]]:
    """What a library cannot do, and why."""
    supports = library.supports
    found: list[tuple[str, str]] = []
    for flavour in sorted(
        {name for other in project.libraries.values() for name, one in other.flavours.items() if not one.jumbo}
    ):
        if flavour not in library.flavours:
            # an external endpoint has `stock` only, as docs/external-endpoints.md tells
            found.append((f"flavour `{flavour}`", library.no_flavour.get(flavour, "is not described for this library")))
        else:
            alike: dict[str, list[str]] = {}
            for name, why in library.flavours[flavour].unsupported.items():
                alike.setdefault(why, []).append(f"`{name}`")
            found += [(f"{', '.join(names)}, flavour `{flavour}`", why) for why, names in alike.items()]
    if not supports.noenc:
        found.append(("NOENC, 1-RTT packets without packet protection", factors.noenc_reason(library)))
    found += [(cipher, "is not among its ciphers") for cipher in get_args(Cipher) if cipher not in supports.ciphers]
    if library.transport == "quic":
        switches = {"Retry": supports.retry, "Initial datagrams above 1200 bytes": supports.initial_size}
        if library.alpn != "h3":
            switches["HTTP/3"] = supports.http3
        found += [(what, why) for what, why in switches.items() if isinstance(why, str)]
        limit = supports.udp_payload_max
        if limit is not None:
            why = limit if isinstance(limit, str) else f"sends datagrams of at most {limit} bytes"
            jumbo = [name for name, flavour in library.flavours.items() if flavour.jumbo]
            where = f", except in flavour {'/'.join(f'`{name}`' for name in jumbo)}" if jumbo else ""
            found.append((f"datagrams that fill larger MTUs{where}", why))
        if not supports.gso:
            found.append(("UDP GSO", "it sends every datagram by itself, see above"))
        if not supports.gro:
            found.append(("UDP GRO", "it receives every datagram by itself, see above"))
        if isinstance(supports.gso_paced, str):
            found.append(("`--gso paced`", supports.gso_paced))
        if missing := [f"`{io}`" for io in get_args(Io) if io not in supports.io]:
            found.append((f"datagrams by {', '.join(missing)} (`io`)", "its endpoints cannot be told to"))
    found += [(f"`--pacing {value}`", why) for value, why in supports.pacing.items() if isinstance(why, str)]
    if isinstance(supports.release_times, str):
        found.append(("pacing precision, by the release times of packets", supports.release_times))
    if isinstance(supports.aes_hardware_off, str):
        found.append(("AES without the instructions of the processor", supports.aes_hardware_off))
    if (reason := march.unsupported_reason(library)) is not None:
        found.append(("builds for an instruction set (`march`)", reason))
    return [(what, why.rstrip(".")) for what, why in found]


def _yes(value: bool | None, transport: str = "quic") -> str:
    if transport == "tcp":
        return "does not apply"
    return "yes" if value else "unsupported"
