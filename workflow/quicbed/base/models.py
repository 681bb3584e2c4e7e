"""What the models of our own JSON files have in common: how they are read and written, and what a bad one is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypeAliasType

from quicbed.base import durable, untrusted
from quicbed.base.errors import QuicbedError
from quicbed.base.untrusted import UntrustedError

OBJECT = ConfigDict(strict=True, frozen=True, extra="ignore", use_attribute_docstrings=True)
"""Of an object in a file: keys that the model does not name are not read."""


class Part(BaseModel):
    """An object in a document; keys that the model does not name are not read."""

    model_config = OBJECT


LARGEST = 1e18
"""A number beyond this is no measurement, and a ratio of two such might not be finite."""


def unless_null(value: object) -> object:
    """An empty object in place of null."""
    return {} if value is None else value


# integers stay integers: what a planned variant is compared with is text
# named, so that JSON schemas say once what they are
Number = TypeAliasType(
    "Number",
    Annotated[int, Field(ge=-int(LARGEST), le=int(LARGEST))]
    | Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)],
)
Positive = TypeAliasType(
    "Positive",
    Annotated[int, Field(ge=0, le=int(LARGEST))] | Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)],
)
Integer = TypeAliasType("Integer", Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)])
Count = TypeAliasType("Count", Annotated[int, Field(ge=0, lt=1 << 63)])


def unknown(values: Mapping[str, Any], known: Mapping[str, Any], before: str = "") -> list[str]:
    """Keys, with dots, of *values* and the objects in it that are not in *known*."""
    found = [f"{before}{key}" for key in values.keys() - known.keys()]
    for key in values.keys() & known.keys():
        if isinstance(values[key], Mapping) and isinstance(known[key], Mapping):
            found += unknown(values[key], known[key], f"{before}{key}.")
    return sorted(found)


_UNIONS = frozenset({"int", "float", "constrained-int", "constrained-float", "str", "list[str]", "dict[str,str]"})
_EXPECTED = {"int_type": "int", "float_type": "int or float", "string_type": "str", "bool_type": "bool"}


def problem(error: ValidationError) -> str:
    """The first problem of a validation, with its key."""
    problems = error.errors(include_url=False)
    place = [part for part in problems[0]["loc"] if part not in _UNIONS]
    # each member of a union says why it is not it; one that is of the right type says most
    same = [one for one in problems if [part for part in one["loc"] if part not in _UNIONS] == place]
    chosen = next((one for one in same if not one["type"].endswith("_type")), same[-1])
    key, kind, found = ".".join(untrusted.shown(part, 60) for part in place), chosen["type"], chosen["input"]
    told = untrusted.shown(repr(found), 60)
    if kind == "missing":
        return f"key '{key}' is missing"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"key '{key}' is no object"
    if kind == "list_type":
        return f"key '{key}' is no list"
    if kind in _EXPECTED:
        return f"key '{key}': expected {_EXPECTED[kind]}, found {told}"
    if kind == "greater_than_equal" and chosen["ctx"]["ge"] == 0:
        return f"key '{key}': {told} is negative"
    if kind in ("greater_than_equal", "less_than_equal", "less_than", "finite_number"):
        return f"key '{key}': {told} is beyond what can be"
    text = str(chosen["ctx"]["error"]) if kind == "value_error" else chosen["msg"]
    if kind == "literal_error":
        text = f"{told} is none of {chosen['ctx']['expected']}"
    return untrusted.shown(f"key '{key}': {text}" if key else text)


class RecordError(QuicbedError, ValueError):
    """A record that cannot be read or made, in one line."""


class Record(Part):
    """A JSON file of ours, which is written and read by its model only."""

    FORMAT: ClassVar[int]
    """Version of the model, in the key `format`."""
    UNNUMBERED: ClassVar[bool] = False
    """Whether files of before there was such a key are this version but for it."""
    NAME: ClassVar[str] = ""
    """Of the file, where a problem is to be told with it."""
    ERROR: ClassVar[type[RecordError]] = RecordError
    """What is raised instead."""

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """The record in a file with this content; RecordError names the key that is missing or of a wrong type."""
        try:
            document = untrusted.parse(content)
        except UntrustedError as error:
            raise cls._refused(str(error)) from None
        if not isinstance(document, dict):
            raise cls._refused("truncated or corrupt: not an object")
        if cls.UNNUMBERED:
            document.setdefault("format", cls.FORMAT)
        if "format" not in document:
            raise cls._refused(f"not a {cls.__name__.lower()} of quicbed: no key 'format'")
        if document["format"] != cls.FORMAT or isinstance(document["format"], bool):
            raise cls._refused(f"format {document['format']!r:.60}, this version reads format {cls.FORMAT}")
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise cls._refused(problem(error)) from None

    @classmethod
    def read(cls, file: Path) -> Self:
        """`parse` of a file, which may be anything; RecordError too where it cannot be read."""
        try:
            return cls.parse(untrusted.read(file))
        except UntrustedError as error:
            raise cls._refused(str(error)) from None

    @classmethod
    def made(cls, values: Mapping[str, Any]) -> Self:
        """The record of these *values*, all of which the model must name; RecordError if they are none."""
        document = {"format": cls.FORMAT, **values}
        try:
            made = cls.model_validate(document)
        except ValidationError as error:
            raise cls.ERROR(problem(error)) from None
        if unnamed := unknown(document, made.model_dump(exclude_unset=True)):
            raise cls.ERROR(f"the model of a {cls.__name__.lower()} does not name {', '.join(unnamed)}")
        return made

    def content(self) -> bytes:
        """What `write` writes: the values that the record was made of, no others."""
        return durable.to_json(self.model_dump(mode="json", exclude_unset=True))

    def write(self, file: Path) -> None:
        """Write it, whole or not at all; directories above it are made."""
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write_bytes(file, self.content())

    @classmethod
    def _refused(cls, told: str) -> RecordError:
        return cls.ERROR(f"{cls.NAME}: {told}" if cls.NAME else told)
