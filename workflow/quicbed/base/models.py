"""What the models of our own JSON files have in common: objects, and what is said of one that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quicbed.base import untrusted

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
Number = (
    Annotated[int, Field(ge=-int(LARGEST), le=int(LARGEST))]
    | Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
)
Positive = Annotated[int, Field(ge=0, le=int(LARGEST))] | Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


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
