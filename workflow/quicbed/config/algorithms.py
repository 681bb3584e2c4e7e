"""Groups and signature algorithms: the one table of names, code points and object identifiers, read strictly.

The table is `workflow/crypto/algorithms.csv`. From it `quicbed generate` writes the tables of the C and Rust code, so
that every endpoint, certificate and report spells an algorithm the same way.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from quicbed.base.errors import QuicbedError

READS = ("workflow/crypto/algorithms.csv",)

FILE = Path("workflow/crypto/algorithms.csv")

COLUMNS = [
    *("kind", "name", "title", "tls_name", "code_point", "nist_level"),
    *("quantum_safe", "liboqs", "classical", "processor", "oid", "source"),
]

NIST_LEVELS = (1, 2, 3, 5)
"""Security categories of NIST's call for proposals (4.A.5) that an algorithm of the table claims."""


class AlgorithmError(QuicbedError):
    """A table that cannot be used, or a name that is not in it: one line naming file, line and column."""


@dataclass(frozen=True)
class Algorithm:
    """What groups and signature algorithms have in common."""

    name: str
    """As in the configuration and on the command line of endpoints."""
    title: str
    """As in figures and tables."""
    tls_name: str
    code_point: int
    """TLS NamedGroup or SignatureScheme."""
    nist_level: int
    quantum_safe: bool
    liboqs: str | None
    """Name in liboqs, with `@0.9` after it in liboqs 0.9; None for a classical algorithm."""
    classical: str | None
    """The classical algorithm, or the classical part of a hybrid; None for a post-quantum algorithm alone."""
    processor: tuple[str, ...]
    """Flags in /proc/cpuinfo that a processor needs for it; none for most."""
    source: str
    """Who assigned code point and object identifier: IANA or a version of oqs-provider; or `private use`."""

    def lacking(self, flags: Iterable[str]) -> str | None:
        """Why a processor with these flags cannot compute it, or None if it can."""
        missing = [flag for flag in self.processor if flag not in set(flags)]
        return f"{self.title} needs a processor with {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Group(Algorithm):
    """A key-exchange group."""

    @property
    def hybrid(self) -> bool:
        """Whether an (EC)DH group and a KEM are used together."""
        return self.liboqs is not None and self.classical is not None

    @property
    def pq_first(self) -> bool:
        """Whether the KEM's part comes first in key shares and the shared secret.

        Only in X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem, 4.1 to 4.3); all other hybrids have the (EC)DH part first.
        """
        return self.tls_name == "X25519MLKEM768"


@dataclass(frozen=True)
class Signature(Algorithm):
    """A signature algorithm of certificates."""

    oid: str
    """Dotted object identifier of the public key."""

    @property
    def oid_der(self) -> bytes:
        """The object identifier as DER, with tag and length."""
        return encode_oid(self.oid)


A = TypeVar("A", bound=Algorithm)


@dataclass(frozen=True)
class Table:
    """The algorithms in the order of the file."""

    file: Path
    groups: tuple[Group, ...]
    signatures: tuple[Signature, ...]

    @cached_property
    def _groups(self) -> dict[str, Group]:
        return {group.name: group for group in self.groups}

    @cached_property
    def _signatures(self) -> dict[str, Signature]:
        return {signature.name: signature for signature in self.signatures}

    def group(self, name: str) -> Group:
        """The group of a name; AlgorithmError if there is none."""
        return self._named("group", self._groups, name)

    def lacking(self, group: str | None, processors: Iterable[Collection[str]]) -> str | None:
        """Why one of some processors, by their flags, cannot compute a group; None where none is known not to."""
        if not group:
            return None
        known = self.group(group)
        return next(filter(None, map(known.lacking, processors)), None)

    def signature(self, name: str) -> Signature:
        """The signature algorithm of a name; AlgorithmError if there is none."""
        return self._named("signature", self._signatures, name)

    def _named(self, kind: str, known: Mapping[str, A], name: str) -> A:
        try:
            return known[name]
        except KeyError:
            raise AlgorithmError(f"{self.file}: has no {kind} `{name}`; there are {', '.join(known)}") from None


def read(root: Path) -> Table:
    """Read the table below `root`; AlgorithmError on the first thing wrong with it."""
    file = root / FILE
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AlgorithmError(f"{file}: cannot be read: {error}; restore it from version control") from None
    rows = list(csv.reader(text.splitlines(), strict=True))
    if not rows or rows[0] != COLUMNS:
        raise AlgorithmError(f"{file}, line 1: the columns must be {','.join(COLUMNS)}")
    groups: list[Group] = []
    signatures: list[Signature] = []
    taken: dict[tuple[str, str, str], int] = {}
    for line, values in enumerate(rows[1:], start=2):
        if len(values) != len(COLUMNS):
            raise AlgorithmError(f"{file}, line {line}: has {len(values)} columns instead of {len(COLUMNS)}")
        row = _Row(file, line, dict(zip(COLUMNS, values, strict=True)))
        kind = row.value("kind", lambda text: text in ("group", "signature"), "must be `group` or `signature`")
        algorithm = _group(row) if kind == "group" else _signature(row)
        if isinstance(algorithm, Group):
            groups.append(algorithm)
        else:
            signatures.append(algorithm)
        # RSA keys of all sizes have one signature scheme and one object identifier
        shared = kind == "signature" and (algorithm.classical or "").startswith("rsa-")
        for column in ("name", "title") if shared else ("name", "title", "tls_name", "code_point", "oid"):
            value = row.values[column]
            if not value or (column == "oid" and algorithm.classical):
                continue
            first = taken.setdefault((kind, column, value.lower()), line)
            if first != line:
                raise row.error(column, f"`{value}` is on line {first} already")
    for number, group in enumerate(groups):
        if group.hybrid and not any(g.name == group.classical and not g.liboqs for g in groups):
            line = next(n for n, v in enumerate(rows[1:], start=2) if v[:2] == ["group", groups[number].name])
            raise AlgorithmError(f"{file}, line {line}, column classical: `{group.classical}` is no group of the table")
    return Table(file, tuple(groups), tuple(signatures))


@dataclass(frozen=True)
class _Row:
    """One line of the table."""

    file: Path
    line: int
    values: dict[str, str]

    def error(self, column: str, text: str) -> AlgorithmError:
        return AlgorithmError(f"{self.file}, line {self.line}, column {column}: {text}")

    def value(self, column: str, valid: Callable[[str], object], requirement: str) -> str:
        text = self.values[column]
        if not valid(text):
            raise self.error(column, f"`{text}` {requirement}")
        return text


def _common(row: _Row) -> Algorithm:
    text = row.value
    name = text("name", re.compile(r"[a-z0-9]+(-[a-z0-9]+)*").fullmatch, "must be lower-case words joined by -")
    quantum_safe = text("quantum_safe", lambda value: value in ("yes", "no"), "must be `yes` or `no`") == "yes"
    liboqs = row.values["liboqs"] or None
    classical = row.values["classical"] or None
    if quantum_safe != (liboqs is not None):
        raise row.error("liboqs", "must be given for a quantum-safe algorithm and for no other")
    if not (liboqs or classical):
        raise row.error("classical", "must be given for a classical algorithm")
    return Algorithm(
        name=name,
        title=text("title", str.strip, "must not be empty"),
        tls_name=text("tls_name", re.compile(r"[A-Za-z0-9_]+").fullmatch, "must be letters, digits and _"),
        code_point=int(text("code_point", re.compile(r"0x[0-9a-f]{4}").fullmatch, "must be 0x and 4 hex digits"), 16),
        nist_level=int(
            text("nist_level", [str(level) for level in NIST_LEVELS].__contains__, f"must be one of {NIST_LEVELS}")
        ),
        quantum_safe=quantum_safe,
        liboqs=liboqs,
        classical=classical,
        processor=tuple(
            text(
                "processor",
                re.compile(r"([a-z0-9_]+( [a-z0-9_]+)*)?").fullmatch,
                "must be flags of /proc/cpuinfo with a space between two",
            ).split()
        ),
        source=text("source", str.strip, "must not be empty"),
    )


def _group(row: _Row) -> Group:
    row.value("oid", lambda value: not value, "must be empty for a group")
    return Group(**vars(_common(row)))


def _signature(row: _Row) -> Signature:
    common = _common(row)
    if common.liboqs and common.classical:
        raise row.error("classical", "must be empty for a post-quantum signature: there are no hybrids")
    oid = row.value(
        "oid",
        re.compile(r"[0-2](\.(0|[1-9][0-9]*))+").fullmatch,
        "must be a dotted object identifier",
    )
    return Signature(**vars(common), oid=oid)


def encode_oid(dotted: str) -> bytes:
    """DER of an OBJECT IDENTIFIER with tag and length (X.690, 8.19)."""
    first, second, *others = (int(part) for part in dotted.split("."))
    contents = b""
    for number in (40 * first + second, *others):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        contents += bytes(reversed(digits))
    return bytes([0x06, len(contents)]) + contents


_ORIGIN = "Generated from workflow/crypto/algorithms.csv by `quicbed generate`; do not edit."


def c_header(table: Table) -> str:
    """The table as a C header: workflow/crypto/pq/algorithms.h."""
    groups = [
        f"    {{{_c(g.name)}, {_c(g.tls_name)}, 0x{g.code_point:04x}, {g.nist_level}, {_c(g.liboqs)}, "
        f"{_c(g.classical)}, {str(g.pq_first).lower()}}},"
        for g in table.groups
    ]
    signatures: list[str] = []
    for s in table.signatures:
        der = ", ".join(f"0x{byte:02x}" for byte in s.oid_der)
        signatures += [
            f"    {{{_c(s.name)}, {_c(s.tls_name)}, 0x{s.code_point:04x}, {s.nist_level}, {_c(s.liboqs)}, "
            f"{_c(s.classical)},",
            f"     {_c(s.oid)}, {{{der}}}, {len(s.oid_der)}}},",
        ]
    longest = max(len(s.oid_der) for s in table.signatures)
    return "\n".join(
        [
            f"/* {_ORIGIN} */",
            "",
            "#ifndef QUICBED_ALGORITHMS_H",
            "#define QUICBED_ALGORITHMS_H",
            "",
            "#include <stdbool.h>",
            "#include <stddef.h>",
            "#include <stdint.h>",
            "",
            "/* A key-exchange group. */",
            "typedef struct quicbed_group {",
            "    const char *name; /* value of --group */",
            "    const char *tls_name;",
            "    uint16_t code_point; /* TLS NamedGroup */",
            "    int nist_level;",
            "    const char *liboqs;    /* the KEM's name in liboqs, NULL for (EC)DH alone */",
            "    const char *classical; /* name of the (EC)DH group, NULL for a KEM alone */",
            "    bool pq_first;         /* of a hybrid: the KEM's part comes first in shares and secret */",
            "} quicbed_group;",
            "",
            "/* A signature algorithm of certificates. */",
            "typedef struct quicbed_signature {",
            "    const char *name; /* value of --signature */",
            "    const char *tls_name;",
            "    uint16_t code_point; /* TLS SignatureScheme */",
            "    int nist_level;",
            "    const char *liboqs;    /* name in liboqs, NULL for a classical algorithm */",
            "    const char *classical; /* algorithm and key size, NULL for a post-quantum algorithm */",
            "    const char *oid;       /* object identifier of the public key, dotted */",
            f"    uint8_t oid_der[{longest}];   /* the same as DER, with tag and length */",
            "    size_t oid_der_len;",
            "} quicbed_signature;",
            "",
            f"#define QUICBED_GROUPS {len(table.groups)}",
            f"#define QUICBED_SIGNATURES {len(table.signatures)}",
            "",
            "static const quicbed_group quicbed_groups[QUICBED_GROUPS] = {",
            *groups,
            "};",
            "",
            "static const quicbed_signature quicbed_signatures[QUICBED_SIGNATURES] = {",
            *signatures,
            "};",
            "",
            "#endif",
            "",
        ]
    )


def _c(text: str | None) -> str:
    return "NULL" if text is None else f'"{text}"'


def rust_module(table: Table) -> str:
    """The table as workflow/endpoints/contract/rust/src/algorithms.rs, formatted as rustfmt leaves it."""
    lines = [
        f"//! {_ORIGIN}",
        "",
        "use crate::tls::{Group, Signature};",
        "",
        f"pub const GROUPS: [Group; {len(table.groups)}] = [",
    ]
    for g in table.groups:
        lines += [
            "    Group {",
            f'        name: "{g.name}",',
            f'        tls_name: "{g.tls_name}",',
            f"        code_point: 0x{g.code_point:04x},",
            f"        liboqs: {_rust(g.liboqs)},",
            f"        classical: {_rust(g.classical)},",
            f"        pq_first: {str(g.pq_first).lower()},",
            "    },",
        ]
    lines += ["];", "", f"pub const SIGNATURES: [Signature; {len(table.signatures)}] = ["]
    for s in table.signatures:
        der = "".join(f"\\x{byte:02x}" for byte in s.oid_der)
        lines += [
            "    Signature {",
            f'        name: "{s.name}",',
            f'        tls_name: "{s.tls_name}",',
            f"        code_point: 0x{s.code_point:04x},",
            f"        liboqs: {_rust(s.liboqs)},",
            f"        classical: {_rust(s.classical)},",
            f'        oid: "{s.oid}",',
            f'        oid_der: b"{der}",',
            "    },",
        ]
    return "\n".join([*lines, "];", ""])


def _rust(text: str | None) -> str:
    return "None" if text is None else f'Some("{text}")'
