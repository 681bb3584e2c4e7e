"""Sorting samples into categories."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from quicbed.base import untrusted
from quicbed.config.model import Cipher, ConfigError, Model, Name, parse_model, read_yaml
from quicbed.store.paths import RUN_FILE
from quicbed.store.record import ROLES, Role, Run, RunsError
from quicbed.store.stacks import INSTRUCTIONS, KERNEL_OBJECT, UNKNOWN, PerfError, Stacks, folded_name, read_folded

READS = ("config/symbols/**/*.yaml",)

Category = Literal[
    "packet-protection",
    "header-protection",
    "packet-io",
    "connection-management",
    "application",
    "kernel",
    "uncategorised",
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
CLAIMED: tuple[Category, ...] = CATEGORIES[:-1]
"""Categories that a mapping can claim symbols for."""


class Rule(Model):
    """A claim that holds under a condition; it goes before claims without one."""

    symbol: str = Field(description="Regular expression, found anywhere in the symbol.")
    under: str | None = Field(None, description="Regular expression of a symbol further out in the stack.")
    alone: bool = Field(False, description="It holds where the stack has no other symbol.")
    role: Role | None = Field(None, description="It holds in the client or in the server alone; null: in both.")

    @model_validator(mode="after")
    def _conditional(self) -> Rule:
        if (self.under is None) != self.alone:
            raise ValueError("needs `under` or `alone: true`, and not both")
        return self


def _kind(claim: object) -> str:
    return "rule" if isinstance(claim, dict | Rule) else "symbol"


Claimed = Annotated[Annotated[str, Tag("symbol")] | Annotated[Rule, Tag("rule")], Discriminator(_kind)]
"""So that an error tells of what was written."""


class Inseparable(Model):
    """A category that samples of some runs do not distinguish from another one."""

    category: Category = Field(description="The category, which then has no share.")
    role: Role = Field(description="Of the client or of the server.")
    cipher: Cipher = Field(description="With this cipher.")
    reason: str = Field(description="From what it cannot be distinguished, and why.")


class Symbols(Model):
    """config/symbols/<library>.yaml: which category the symbols of a library's stacks belong to."""

    description: str = Field("", description="What is claimed and where the names come from.")
    include: list[Name] = Field(
        default_factory=list, description="Mappings in config/symbols/shared/ whose claims hold too."
    )
    claims: dict[Category, list[Claimed]] = Field(
        description="Category: regular expressions, found anywhere in a symbol, or rules."
    )
    rest: dict[Category, list[str]] = Field(
        default_factory=dict, description="Category: regular expressions for what no claim covers, as all of a library."
    )
    objects: dict[Category, list[str]] = Field(
        default_factory=dict,
        description="Category: regular expressions of programs and shared libraries (their files' names), for stacks "
        "that begin there and of which no symbol is claimed.",
    )
    unsupported: dict[Category, str] = Field(
        default_factory=dict, description="Category: why the stacks of this library do not show it."
    )
    inseparable: list[Inseparable] = Field(
        default_factory=list, description="Categories that samples do not show in some runs. Callgrind's stacks do."
    )
    callers: int | None = Field(
        None,
        ge=1,
        description="How many callers of a function Callgrind distinguishes at most, where more are an interpreter's; "
        "null: as many as the experiment says.",
    )


@dataclass(frozen=True)
class _Claim:
    category: Category
    text: str
    pattern: re.Pattern[str]
    under: re.Pattern[str] | None
    alone: bool
    rest: bool
    file: Path

    @property
    def conditional(self) -> bool:
        return self.alone or self.under is not None

    def holds(self, outer: Sequence[str]) -> bool:
        """Whether its condition holds under these symbols, of which those without a name are none."""
        if self.alone:
            return all(symbol.startswith("[") for symbol in outer)
        return self.under is not None and any(map(self.under.search, outer))

    def __str__(self) -> str:
        return f"{self.category} (`{self.text}` in {self.file.name})"


class Claims:
    """All claims of one mapping and of those it includes."""

    def __init__(
        self,
        file: Path,
        claims: Iterable[_Claim],
        objects: Iterable[_Claim],
        unsupported: Mapping[Category, str],
        inseparable: Sequence[Inseparable] = (),
        callers: int | None = None,
    ) -> None:
        self.file = file
        self.callers = callers
        self.unsupported = unsupported
        self.inseparable = inseparable
        everything = list(claims)
        self._objects = list(objects)
        self._plain = [claim for claim in everything if not claim.conditional and not claim.rest]
        self._conditional = [claim for claim in everything if claim.conditional]
        self._rest = [claim for claim in everything if claim.rest]
        self._known: dict[str, tuple[Category | None, list[_Claim]]] = {}
        # a pattern without special characters is a symbol that can be looked up now
        for claim in everything:
            literal = claim.text.removeprefix("^").removesuffix("$")
            if re.fullmatch(r"[\w:]+", literal):
                self._look_up(literal)

    def sort(self, symbols: Sequence[str]) -> Category | None:
        """Category of the innermost claimed symbol of a stack (innermost first), None if none is claimed.

        Raises ConfigError if two categories claim it.
        """
        for position, symbol in enumerate(symbols):
            plain, conditional = self._look_up(symbol)
            outer = symbols[position + 1 :]
            holding = [claim for claim in conditional if claim.holds(outer)]
            self._one(symbol, holding)
            if holding:
                return holding[0].category
            if plain is not None:
                return plain
        return None

    def of_object(self, name: str) -> Category | None:
        """Category of a program or shared library; ConfigError if two categories claim it."""
        claims = [claim for claim in self._objects if claim.pattern.search(name)]
        self._one(name, claims, "objects:")
        return claims[0].category if claims else None

    def _look_up(self, symbol: str) -> tuple[Category | None, list[_Claim]]:
        if symbol not in self._known:
            plain = [claim for claim in self._plain if claim.pattern.search(symbol)]
            plain = plain or [claim for claim in self._rest if claim.pattern.search(symbol)]
            self._one(symbol, plain)
            conditional = [claim for claim in self._conditional if claim.pattern.search(symbol)]
            self._known[symbol] = (plain[0].category if plain else None, conditional)
        return self._known[symbol]

    def _one(self, symbol: str, claims: Sequence[_Claim], what: str = "claims: symbol") -> None:
        other = next((claim for claim in claims if claim.category != claims[0].category), None)
        if other is not None:
            raise ConfigError(
                f"{self.file}: {what} `{symbol}` is claimed by {claims[0]} and by {other}; narrow one of them"
            )


class SymbolMap:
    """Sorts the stacks of one library into categories."""

    def __init__(self, user: Claims, kernel: Claims) -> None:
        self._user = user
        self._kernel = kernel
        self.unsupported = user.unsupported
        """Categories that the stacks do not show, with the reason."""
        self.inseparable = user.inseparable
        """Categories that samples do not show in some runs."""
        self.callers = user.callers
        """Callers that Callgrind distinguishes at most, None if the experiment alone says so."""
        self._known: dict[tuple[str, ...], Category] = {}

    def lacking(self, cipher: str | None, *, counted: bool = False) -> dict[Category, str]:
        """Categories that stacks of runs with a cipher do not show, with the reason; *counted* by Callgrind or not."""
        found = {} if counted else {one.category: one.reason for one in self.inseparable if one.cipher == cipher}
        return {**found, **self.unsupported}

    def sort(self, stack: tuple[str, ...]) -> Category:
        """Category of a stack, innermost frame first; ConfigError if two claim the symbol that decides."""
        known = self._known.get(stack)
        if known is None:
            known = self._known[stack] = self._sort(stack)
        return known

    def _sort(self, stack: tuple[str, ...]) -> Category:
        frames = [
            (name, f"[{name}]" if symbol == UNKNOWN else symbol)
            for name, _, symbol in (frame.partition("`") for frame in stack)
        ]
        in_kernel = [symbol for name, symbol in itertools.takewhile(lambda frame: frame[0] == KERNEL_OBJECT, frames)]
        if in_kernel:
            return self._kernel.sort(in_kernel) or "kernel"
        found = self._user.sort([symbol for _, symbol in frames])
        # a stack of a hostile file may be empty
        return found or (frames and self._user.of_object(frames[0][0])) or "uncategorised"

    def count(self, stacks: Stacks) -> Counter[Category]:
        """Samples by category."""
        counts: dict[Category, int] = {}
        for stack, samples in stacks.items():
            category = self.sort(stack)
            counts[category] = counts.get(category, 0) + samples
        return Counter(counts)

    def reduced(self, stacks: Stacks) -> Stacks:
        """Stacks of the frames alone that decide on the categories, which are the same."""
        found: dict[tuple[str, ...], int] = {}
        for stack, samples in stacks.items():
            category = self.sort(stack)
            frames = ((frame,) for frame in stack)
            decides = next((frame for frame in frames if self.sort(frame) == category), stack)
            found[decides] = found.get(decides, 0) + samples
        return Counter(found)


def directory(root: Path) -> Path:
    """Where the mappings are, of the repository at `root`."""
    return root / "config" / "symbols"


@functools.cache
def symbol_map(root: Path, library: str, role: str) -> SymbolMap:
    """The mapping of a library as client or server.

    ConfigError names the file and key that is wrong, or the file that is missing.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", library):
        raise ConfigError(f"{untrusted.shown(library, 60)!r} is no name of a library, so it has no mapping")
    file = directory(root) / f"{library}.yaml"
    kernel = directory(root) / "shared" / "linux.yaml"
    return SymbolMap(_read(file, role), _read(kernel, role))


def mapping_problem(root: Path, library: str) -> str | None:
    """Why the samples of a library cannot be sorted, or None if nothing is known against it."""
    file = directory(root) / f"{library}.yaml"
    if not file.is_file():
        return f"no mapping of its symbols to categories, config/symbols/{library}.yaml"
    try:
        for role in ROLES:
            symbol_map(root, library, role)
    except ConfigError as error:
        return str(error).replace(f"{root}/", "")
    return None


def _read(file: Path, role: str) -> Claims:
    described = parse_model(Symbols, read_yaml(file), file)
    claims = _claims(described, file, role)
    objects = _of_objects(described, file)
    for name in described.include:
        shared = file.parent / "shared" / f"{name}.yaml"
        if not shared.is_file():
            raise ConfigError(f"{file}: include: there is no {shared}")
        included = parse_model(Symbols, read_yaml(shared), shared)
        if included.include:
            raise ConfigError(f"{shared}: include: a shared mapping includes no other")
        claims += _claims(included, shared, role)
        objects += _of_objects(included, shared)
    for claim in [*claims, *objects]:
        if claim.category in described.unsupported:
            raise ConfigError(f"{file}: unsupported: {claim.category} is claimed too, by `{claim.text}`")
    inseparable = [one for one in described.inseparable if one.role == role]
    return Claims(file, claims, objects, described.unsupported, inseparable, described.callers)


def _claims(described: Symbols, file: Path, role: str) -> list[_Claim]:
    return _given({"claims": described.claims, "rest": described.rest}, file, role)


def _of_objects(described: Symbols, file: Path) -> list[_Claim]:
    return _given({"objects": described.objects}, file, "")


def _given(given: Mapping[str, Mapping[Category, Sequence[str | Rule]]], file: Path, role: str) -> list[_Claim]:
    claims = []
    for name, categories in given.items():
        for category, rules in categories.items():
            if category not in CLAIMED:
                raise ConfigError(f"{file}: {name}: {category} is what no symbol is claimed for; leave it out")
            for rule in rules:
                key = f"{file}: {name}.{category}"
                one = rule if isinstance(rule, Rule) else None
                text = rule if isinstance(rule, str) else rule.symbol
                under = None if one is None or one.under is None else _pattern(one.under, key)
                claim = _Claim(
                    category, text, _pattern(text, key), under, bool(one and one.alone), name == "rest", file
                )
                if one is None or one.role in (None, role):
                    claims.append(claim)
    return claims


def _pattern(text: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{key}: bad pattern `{untrusted.shown(text)}`: {untrusted.shown(error)}") from None


def describe(root: Path, run_directory: Path, top: int = 15) -> str:
    """What a run's samples were sorted into, and the innermost symbols of those no claim covers."""
    try:
        run = Run.read(run_directory / RUN_FILE)
    except RunsError as error:
        raise PerfError(f"{run_directory}: not the directory of a run: {error}") from None
    libraries = {"client": run.client.library, "server": run.server.library}
    lines = []
    for role, library in libraries.items():
        file = run_directory / folded_name(role)
        if not file.is_file():
            raise PerfError(f"{file}: is missing; only runs of an experiment with `perf` that succeeded have it")
        try:
            stacks = read_folded(untrusted.read(file))
        except (PerfError, untrusted.UntrustedError) as error:
            raise PerfError(f"{file}: {error}") from None
        mapping = symbol_map(root, library, role)
        total = stacks.total()
        counts = mapping.count(stacks)
        lines.append(f"{role} {library}: {total} samples")
        lacking = mapping.lacking(run.variant.cipher, counted=(run.host.perf or {}).get("event") == INSTRUCTIONS)
        for name in CATEGORIES:
            reason = lacking.get(name)
            share = f"  {100 * counts[name] / total:6.2f} %  {name}"
            lines.append(f"       - %  {name}: {reason}" if reason else share)
        unclaimed: Counter[str] = Counter()
        for stack, samples in stacks.items():
            if mapping.sort(stack) == "uncategorised":
                callers = [frame for frame in stack[1:4] if UNKNOWN not in frame]
                unclaimed[" < ".join([stack[0], *callers])] += samples
        if unclaimed:
            lines.append("  uncategorised, innermost frame and its callers:")
        lines += [f"  {100 * samples / total:6.2f} %  {name}" for name, samples in unclaimed.most_common(top)]
    return "\n".join(lines)
