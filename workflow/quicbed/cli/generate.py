"""JSON schemas, documentation and tables of algorithms that are generated from configuration and data files.

`quicbed generate` writes them, `quicbed generate --check` shows a diff where they have drifted; a test runs the latter.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

from quicbed.base import durable
from quicbed.builds import kit, making
from quicbed.claims import claims_report
from quicbed.claims.causes import Causes
from quicbed.claims.papers import Paper
from quicbed.config import algorithms
from quicbed.config.model import Cipher, Config, Experiment, Library, Project, Testbed
from quicbed.contract import events
from quicbed.plan import built, cells, march
from quicbed.store import record

RECORDS: dict[str, tuple[type[BaseModel], ...]] = {
    "run": (record.Run,),
    "build": (built.Build,),
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
    "experiment": (Experiment, "config/experiments/&lt;name&gt;.yaml"),
    "claims": (Paper, "config/claims/&lt;paper&gt;.yaml"),
    "causes": (Causes, "config/causes.yaml"),
}


def generate(root: Path, *, check: bool) -> int:
    """Write (or compare) every generated file; returns 1 if `check` found a difference."""
    differences = 0
    for file, text in outputs(root).items():
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


def outputs(root: Path) -> dict[Path, str]:
    """Every generated file and its text."""
    project = Project(root)
    files: dict[Path, str] = {}
    for name, (model, _) in KINDS.items():
        schema = model.model_json_schema()
        if variant := schema.get("$defs", {}).get("Variant"):
            variant["required"] = ["label"]  # all else may be in the experiment's `defaults`
        files[root / "workflow" / "schemas" / f"{name}.schema.json"] = json.dumps(schema, indent=2) + "\n"
    for name, recorded in RECORDS.items():
        definitions = models_json_schema([(model, "validation") for model in recorded])[1]
        files[root / "workflow" / "schemas" / f"{name}.schema.json"] = json.dumps(definitions, indent=2) + "\n"
    files[root / "config" / "README.md"] = configuration_page()
    files[root / "docs" / "data.md"] = data_page()
    files[root / "docs" / "libraries.md"] = libraries_page(project)
    files[root / "docs" / "claims.md"] = claims_report.documentation(project)
    table = algorithms.read(root)
    files[root / "workflow" / "crypto" / "pq" / "algorithms.h"] = algorithms.c_header(table)
    files[root / "workflow" / "endpoints" / "contract" / "rust" / "src" / "algorithms.rs"] = algorithms.rust_module(
        table
    )
    return files


def configuration_page() -> str:
    """config/README.md: every key of every file."""
    parts = [
        "# Configuration",
        "",
        "Every key of every file below this directory. This page is generated from the models in",
        "`workflow/quicbed/config/model.py` and `workflow/quicbed/claims/` by `quicbed generate`. A key that is not",
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
    """docs/data.md: what a run leaves, key by key."""
    parts = [
        "# What a run leaves",
        "",
        "Every run has a directory below `raw/`, with a `run.json` and what its two programs wrote. This page is",
        "generated by `quicbed generate` from the models by which these files are read and written",
        "(`workflow/quicbed/store/record.py`, `workflow/quicbed/contract/events.py`). The `build.json` of each build",
        "that was measured is beside the runs in `builds/` (`workflow/quicbed/plan/built.py`). The same as JSON",
        "schemas, in `workflow/schemas/`: `run.schema.json`, `events.schema.json`, `build.schema.json`. Units are in",
        "the names; times of events are those of `CLOCK_MONOTONIC` in ns. A key that has no value is null or left out.",
        "",
    ]
    done: set[type[BaseModel]] = set()
    titles = {
        "run": "run.json",
        "events": "Lines of client.jsonl, server.jsonl and primitives.jsonl",
        "build": "build.json",
    }
    for name, title in titles.items():
        parts += [f"## {title}", ""]
        for model in RECORDS[name]:
            parts += _record_tables(model, done)
    return "\n".join(parts).rstrip() + "\n"


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


def libraries_page(project: Project) -> str:
    """docs/libraries.md: what is measured, from which source, and what each library can do."""
    parts = [
        "# Libraries",
        "",
        "Generated from `config/libraries/` and the lock files of the sources by `quicbed generate`. What a library "
        "cannot do is listed with its reason; the same reason stands in tables and figures where a cell is missing.",
        "",
        "Unless its section says otherwise, an endpoint sets the socket buffers and the flow-control windows of a "
        "stream and of a connection that are asked for, gives credit for what was read so that windows keep their "
        "size, and has UDP GSO and GRO on unless the experiment switches them off. Its event `start` tells what is in "
        "force ([the contract](../workflow/endpoints/ENDPOINT.md)).",
        "",
        "| library | version | transport | application | TLS library | licence | flavours | NOOP AEAD "
        "| header protection off |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, library in project.libraries.items():
        supports = library.supports
        parts.append(
            f"| [{library.title}](#{name}) | {making.version_of(project, name)} | {library.transport.upper()} "
            f"| {APPLICATION[library.alpn]} | {library.tls_library} | {library.licence} "
            f"| {', '.join(library.flavours)} | {_yes(supports.noop)} "
            f"| {_yes(supports.header_protection_off, library.transport)} |"
        )
    for name, library in project.libraries.items():
        parts += ["", f'<a id="{name}"></a>', "", f"## {library.title}", "", *_library(project, name, library)]
    return "\n".join(parts) + "\n"


def _library(project: Project, name: str, library: Library) -> list[str]:
    """The section about one library."""
    supports = library.supports
    parts = [
        f"- Endpoint programs: `workflow/endpoints/{library.endpoint}/`; configuration: "
        f"`config/libraries/{name}.yaml`; built by recipe `{library.recipe}`.",
        f"- Ciphers: {', '.join(supports.ciphers)}.",
        f"- Congestion control: {', '.join(supports.congestion_controls)}.",
    ]
    for flavour, chosen in library.flavours.items():
        if chosen.algorithms == "all":
            lacking = ", ".join(chosen.unsupported)
            text = "all groups and signature algorithms of [algorithms.csv](../workflow/crypto/algorithms.csv)"
            parts.append(f"- Flavour `{flavour}`: {text}{f' but {lacking}' if lacking else ''}.")
        else:
            parts.append(
                f"- Flavour `{flavour}`: groups {', '.join(supports.groups)}; signature algorithms "
                f"{', '.join(supports.signatures)}."
            )
    if library.transport == "quic":
        parts.append(f"- UDP GSO on sending: {_yes(supports.gso)}. UDP GRO on receiving: {_yes(supports.gro)}.")
    parts += [
        f"- **NOOP AEAD.** {library.notes.noop}",
        f"- **Initial packets.** {library.notes.initial}",
        f"- **Header protection.** {library.notes.header_protection}",
        f"- **Input and output.** {library.notes.io}",
    ]
    if library.example is not None:
        programs = f"`{library.example.server[0]}` and `{library.example.client[0]}`"
        parts.append(
            f"- **Own examples.** `make bench` holds the endpoints against {programs} of {library.example.package}."
        )
    elif library.no_example is not None:
        parts.append(f"- **Own examples.** None to hold the endpoints against: {library.no_example}.")
    parts += [f"- **Unsupported**: {what}: {reason}." for what, reason in _unsupported(project, library)]
    parts += ["", "| source package | version | checksum |", "| --- | --- | --- |"]
    for package in making.sources_of(project, name):
        # what a crate depends on is in Cargo.lock
        if not library.crates or package["name"] in library.crates:
            parts.append(f"| {package['name']} | {package['version']} | `{package['checksum']}` |")
    for flavour, chosen in library.flavours.items():
        patches = ", ".join(f"`workflow/crypto/patches/{p.file}` on {p.crate}" for p in chosen.patches)
        own = [f"{kit.ENDPOINTS}/{chosen.endpoint}"] if chosen.endpoint else []
        extra = ", ".join(f"`{source}`" for source in [*own, *chosen.sources])
        text = "; ".join(filter(None, [f"patches {patches}" if patches else "", f"with {extra}" if extra else ""]))
        shared = f"; shared components: {', '.join(chosen.components)}" if chosen.components else ""
        parts.append("")
        parts.append(f"Flavour `{flavour}`: {text or 'third-party sources exactly as the registry has them'}{shared}.")
    return parts


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
        found.append(("NOENC, 1-RTT packets without packet protection", cells.noenc_reason(library)))
    found += [(cipher, "is not among its ciphers") for cipher in get_args(Cipher) if cipher not in supports.ciphers]
    if library.transport == "quic":
        switches = {"Retry": supports.retry, "Initial datagrams above 1200 bytes": supports.initial_size}
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
    if isinstance(supports.aes_hardware_off, str):
        found.append(("AES without the instructions of the processor", supports.aes_hardware_off))
    if (reason := march.unsupported_reason(library)) is not None:
        found.append(("builds for an instruction set (`march`)", reason))
    return [(what, why.rstrip(".")) for what, why in found]


def _yes(value: bool | None, transport: str = "quic") -> str:
    if transport == "tcp":
        return "does not apply"
    return "yes" if value else "unsupported"
