"""Reading the files below config/: YAML in which nothing is given twice, and models that take no unknown key."""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quicbed.base import untrusted
from quicbed.base.errors import QuicbedError

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=100)]
MOST_BRACKETS = 1000
MOST_LEVELS = 1000


class ConfigError(QuicbedError):
    """A configuration that cannot be used: names the file, the key and the remedy in one line."""


class Model(BaseModel):
    """Base of every configuration model: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


M = TypeVar("M", bound=Model)


def check_known(key: str, name: str, known: Mapping[str, Any], file: Path) -> None:
    """Raise ConfigError, with what may be meant, where the value *name* of a key is not among those known."""
    if name not in known:
        raise ConfigError(f"{file}: {key}: `{name}` is unknown{suggest(name, known)}")


def suggest(name: str, known: Mapping[str, Any] | list[str]) -> str:
    """What may be meant by an unknown name, to put behind a message."""
    close = difflib.get_close_matches(name, list(known), n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known are {', '.join(sorted(known)) or 'none'}"


class _UniqueKeys(yaml.constructor.SafeConstructor):
    """YAML in which a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key `{key}` is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_UniqueKeys, yaml.SafeLoader):
    pass


class _FastLoader(_UniqueKeys, yaml.CSafeLoader):
    """The same, ten times as fast; its stack is C's, which nothing guards."""


def _load(text: str) -> Any:
    # a level of a block stands further to the right than the one around it
    if max(map(len, text.splitlines()), default=0) <= MOST_LEVELS:
        # what is wrong the other one tells better
        with contextlib.suppress(yaml.YAMLError):
            return yaml.load(text, Loader=_FastLoader)  # noqa: S506 (a SafeLoader)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping from a file; raises ConfigError naming the file and line."""
    try:
        text = untrusted.decoded(untrusted.read(file, links=True), "strict")
        # of open ones the loader takes a time that grows with the square of their number
        brackets = (1 if character in "[{" else -1 for character in text if character in "[]{}")
        if max(itertools.accumulate(brackets), default=0) > MOST_BRACKETS:
            raise ConfigError(f"{file}: not valid YAML: more than {MOST_BRACKETS} open brackets")
        data = _load(text)
    except (untrusted.UntrustedError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {'is missing' if not file.exists() else f'cannot be read: {error}'}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(
            f"{file}:{line} not valid YAML: {untrusted.shown(getattr(error, 'problem', error))}"
        ) from None
    except (ValueError, TypeError, ArithmeticError, RecursionError, LookupError, AttributeError) as error:
        # what the loader raises at a date that is none, a key that is a list, or a thousand brackets
        told = untrusted.shown(error) or type(error).__name__
        raise ConfigError(f"{file}: not valid YAML: {told}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must be a mapping of keys to values")
    return data


def parse_model(model: type[M], data: Mapping[str, Any], file: Path | str) -> M:
    """Validate `data` as `model`; raises ConfigError with the first problem, its key and a remedy."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        location = untrusted.shown(".".join(str(part) for part in problem["loc"] if not _is_union_tag(part)))
        if problem["type"] == "extra_forbidden":
            key = untrusted.shown(problem["loc"][-1])
            fields = _fields_at(model, problem["loc"][:-1])
            raise ConfigError(f"{file}: {location}: unknown key{suggest(key, fields)}") from None
        if problem["type"] == "missing":
            raise ConfigError(f"{file}: {location}: is missing; add it") from None
        message = problem["msg"].removeprefix("Value error, ")
        value = "" if isinstance(problem["input"], (dict, list)) else f" (it is `{untrusted.shown(problem['input'])}`)"
        where = f" {location}:" if location else ""
        raise ConfigError(f"{file}:{where} {message}{value}") from None


def _is_union_tag(part: str | int) -> bool:
    # pydantic puts the branch of a union it tried into the location
    return isinstance(part, str) and (part.startswith("constrained-") or part in {"Pair"})


def _fields_at(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Names of the fields of the model that an error location leads to."""
    current: Any = model
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = current.model_fields[str(part)].annotation
        candidates = [current, *getattr(current, "__args__", ())]
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if models:
            current = models[0]
    if isinstance(current, type) and issubclass(current, BaseModel):
        return list(current.model_fields)
    return []


def read_directory(directory: Path, model: type[M]) -> dict[str, M]:
    """Every YAML file of a directory as a model, by name without ending."""
    return {file.stem: parse_model(model, read_yaml(file), file) for file in files_in(directory)}


def files_in(directory: Path) -> list[Path]:
    """The YAML files of a directory, sorted; ConfigError where there is none."""
    files = sorted(directory.glob("*.yaml"))
    if not files:
        raise ConfigError(f"{directory}: holds no .yaml file")
    return files
