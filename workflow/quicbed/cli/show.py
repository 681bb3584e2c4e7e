"""A run as text: what it measured, with what evidence, what disturbed it, and what its programs said when."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError, shown
from quicbed.store import walk
from quicbed.store.paths import RUN_FILE, without_suffix
from quicbed.store.record import ROLES, Run, RunsError, Side
from quicbed.store.walk import Files

LOGS = {role: f"{role}.jsonl" for role in ROLES}
_NAMES = frozenset({RUN_FILE, *LOGS.values()})
_MOST_NAMED = 10
FEW_CONNECTIONS = 3
"""Connections whose times are shown, unless all are asked for."""


def find(name: str, places: Sequence[Path]) -> tuple[str, Files]:
    """The origin of a run and its files by name.

    *name* is a run's directory or run.json, an origin as tables and pages have it, or enough of the end of one.
    *places* are directories of runs, looked through in this order. RunsError where none or several are meant.
    """
    path = Path(name)
    directory = path.parent if path.name == RUN_FILE else path
    if (directory / RUN_FILE).is_file():
        return str(directory), {file: walk.content(directory / file) for file in _NAMES if (directory / file).exists()}
    wanted = tuple(part for part in name.removesuffix(f"/{RUN_FILE}").replace("!", "/").split("/") if part)
    for found in _places(wanted, [place for place in places if place.is_dir()]):
        if len(found) > 1:
            more = f", and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            raise RunsError(f"{name}: several runs end like this: {', '.join(sorted(found)[:_MOST_NAMED])}{more}")
        if found:
            return next(iter(found.items()))
    looked = ", ".join(map(str, places))
    raise RunsError(f"{name}: no run has this name below {looked}; `quicbed list runs` names them")


def _places(wanted: tuple[str, ...], roots: Sequence[Path]) -> Iterator[dict[str, Files]]:
    """The runs that are meant in each directory of runs, and then in each archive."""

    def meant(place: walk.Place) -> dict[str, Files]:
        return {origin: files for origin, files in place.runs.items() if _ends(origin, wanted)}

    archives: list[tuple[Path, str]] = []
    for root in roots:
        found: dict[str, Files] = {}
        for place in walk.walk(root, _NAMES, archives=archives):
            found |= meant(place)
        yield found
    # the one that an origin names, or that has the experiment's name, comes first
    archives.sort(key=lambda one: not {one[0].name, without_suffix(one[0].name)} & set(wanted))
    for archive, origin in archives:
        yield meant(walk.packed(archive, origin, _NAMES))


def _ends(origin: str, wanted: tuple[str, ...]) -> bool:
    return tuple(origin.replace("!", "/").split("/"))[-len(wanted) :] == wanted


def text(origin: str, files: Files, *, every: bool = False) -> str:
    """What a run is, for people; *every* shows the times of all its connections. RunsError if it cannot be read."""
    content = files[RUN_FILE]
    if isinstance(content, UntrustedError):
        raise RunsError(f"{origin}: {content}")
    try:
        run = Run.parse(content)
    except RunsError as error:
        raise RunsError(f"{origin}: {error}") from None
    parts = [_of_cell(origin, run), _part("Metrics", _flat(run.metrics.model_dump(exclude_none=True)))]
    if run.together is not None:
        parts.append(_part("Together", _flat(run.together.model_dump(exclude_none=True))))
    parts.append(_part("Evidence", _flat(run.evidence.model_dump(exclude_none=True))))
    disturbed = {"load_1m": run.host.load_1m, "foreign_cpu_share": run.host.foreign_cpu_share}
    disturbed |= {f"run_delay_s.{role}": getattr(run.host.run_delay_s, role) for role in ROLES}
    parts.append(_part("Around it", {key: value for key, value in disturbed.items() if value is not None}))
    parts.append(_timeline(files, every=every))
    return "\n\n".join(part for part in parts if part)


def _of_cell(origin: str, run: Run) -> str:
    """Its cell, place and outcome."""
    host = run.testbed
    rows: dict[str, str | None] = {
        "run": origin,
        "experiment": f"{run.experiment}, scale {run.scale}, campaign {run.campaign}",
        "cell": f"{run.cell.label} ({run.cell.arm}), id {run.cell.id}",
        "baseline": run.cell.baseline,
        "block": None if run.block is None else f"{run.block}, place {run.order}, attempt {run.attempt}",
        "client": _end(run.client),
        "server": _end(run.server),
        "variant": _inline(run.variant.model_dump(exclude_none=True)),
        "link": _inline(run.link.model_dump(exclude_none=True)),
        "workload": _inline(run.workload.model_dump(exclude_none=True)),
        "testbed": ", ".join(str(one) for one in (host.name, host.host.described, host.kernel) if one),
        "started": None if run.started_at is None else run.started_at.isoformat(timespec="seconds"),
        "status": run.status + (f": {run.reason}" if run.reason else ""),
        "contaminated": "; ".join(run.contamination) or ("yes" if run.contaminated else "no"),
        "contradictions": "; ".join(run.contradictions) or None,
    }
    return _rows({key: value for key, value in rows.items() if value is not None})


def _end(side: Side) -> str:
    return f"{side.library} {side.version}, {side.build}"


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {shown(value, 60)}" for key, value in _flat(values).items())


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values by keys with dots."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def _part(title: str, values: Mapping[str, Any]) -> str:
    return f"{title}\n{_rows(values)}" if values else ""


def _rows(values: Mapping[str, Any]) -> str:
    return _columns([(shown(key, 80), _value(value)) for key, value in values.items()])


def _columns(rows: Sequence[tuple[str, ...]], **options: Any) -> str:
    return str(tabulate(rows, tablefmt="plain", disable_numparse=True, **options))


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shown(value, 300)


def _timeline(files: Files, *, every: bool) -> str:
    """What the programs said, by time in ms from the first ClientHello, or from the first event where there is none."""
    said: list[tuple[int, str, str]] = []
    sent: list[int] = []
    left_out = 0
    for role, name in LOGS.items():
        for event in _events(files.get(name)):
            kind, index = event.get("event"), event.get("index")
            if kind == "connection" and isinstance(index, int):
                times = {key: at for key, at in event.items() if key.startswith("t_") and _is_time(at)}
                sent += [at for key, at in times.items() if key == "t_client_hello"]
                if index >= FEW_CONNECTIONS and not every:
                    left_out += role == "client"
                    continue
                said += [
                    (at, role, f"connection {index}: {shown(key[2:], 60).replace('_', ' ')}")
                    for key, at in times.items()
                ]
                outcome = "ok" if event.get("ok") is True else f"failed: {shown(event.get('error'), 200)}"
                told = f"connection {index}: {outcome}"
            else:
                told = shown(kind, 60) + (f": {shown(event['reason'], 200)}" if "reason" in event else "")
            if _is_time(event.get("t")):
                said.append((event["t"], role, told))
    if not said:
        return ""
    begin = min(sent, default=min(said)[0])
    rows = [(f"{(at - begin) / 1e6:.3f}", role, told) for at, role, told in sorted(said)]
    table = _columns(rows, headers=("ms", "", ""), colalign=("right", "left", "left"))
    more = f"\n{left_out} more connections; --all shows them" if left_out else ""
    return f"Events (ms from the first ClientHello)\n{table}{more}"


def _events(content: object) -> Iterator[dict[str, Any]]:
    """The events of a log, as far as it can be read."""
    for line in content.split(b"\n") if isinstance(content, bytes) else ():
        with contextlib.suppress(UntrustedError):
            event = untrusted.parse(line)
            if isinstance(event, dict):
                yield event


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
