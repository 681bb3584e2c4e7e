"""A figure as a few lines to compare: what it says in words as it stands, its numbers rounded and told in short."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

DIGITS = 5
"""Significant ones; what differs behind them no reader sees."""
SHOWN = 12
"""So many values stand as they are; of more there are the number, the range and a digest."""
LONGEST = 300
"""Of a text within a trace, as the captions of points and links are; longer ones are a digest."""


def figure(drawn: go.Figure) -> str:
    """The figure in lines of JSON, without the template that all of them share; each trace and annotation is a line."""
    content = drawn.to_plotly_json()
    layout = {name: _short(value) for name, value in content["layout"].items() if name != "template"}
    lines = []
    for name in sorted(layout):
        value = layout[name]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{name}: {_line(one)}" for one in value]
        else:
            lines.append(f"{name}: {_line(value)}")
    return "\n".join([*lines, *(f"trace: {_line(_short(trace, LONGEST))}" for trace in content["data"])])


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _short(value: Any, longest: int | None = None) -> Any:
    if isinstance(value, Mapping):
        if "bdata" in value:  # how plotly writes an array
            return _values(np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"]).tolist(), longest)
        return {name: _short(one, longest) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return _values(value.tolist(), longest)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _values(list(value), longest)
    if isinstance(value, str) and longest is not None and len(value) > longest:
        return f"{len(value)} characters, {_digest(value)}"
    return _rounded(value)


def _values(values: list[Any], longest: int | None) -> Any:
    short = [_short(one, longest) for one in values]
    if len(short) <= SHOWN or longest is None:
        return short
    told = {"values": len(short), "digest": _digest(_line(short))}
    numbers = [one for one in short if isinstance(one, int | float) and not isinstance(one, bool)]
    return told | ({"from": min(numbers), "to": max(numbers)} if numbers else {})


def _rounded(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, str | int) else str(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
