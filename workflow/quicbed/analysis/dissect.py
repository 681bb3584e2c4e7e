"""Stored captures dissected again: whether the numbers stored with runs follow from the captures stored with them.

A variant is measured only once a capture has proven it, so captures are dissected where they are taken and tables show
what was stored then. Here every capture that is kept is dissected anew, with the code as it now is, and compared with
what is stored, value by value:

- of a series of handshakes ``handshakes.json`` (`quicbed.wire.handshake.Handshake`, one object a connection), and
  ``openings.json`` where the times of a run are taken from its capture (`quicbed.wire.handshake.Opening`);
- of a download ``evidence.seen`` of run.json (`quicbed.wire.proof.Proof`), the signature algorithms seen with its
  key log,
  and the mean frame sizes among its metrics.

Which end is the server and what it speaks is read from the capture, not from what is stored.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import polars as pl

from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.plan.arms import CAPTURED
from quicbed.store import walk
from quicbed.store.paths import (
    ARCHIVE_SUFFIXES,
    CAPTURE,
    DISSECTED,
    KEYS,
    OPENINGS,
    PORT,
    RUN_FILE,
    directories,
    origin_of,
)
from quicbed.store.record import Run, RunsError
from quicbed.store.reference import LEFT_OUT
from quicbed.store.runs import write_parquet
from quicbed.wire import handshake, proof, tshark
from quicbed.wire.pcap import Capture, CaptureError

FILE = "captures.parquet"
"""Name of the table among those of the results."""


AGREES, DIFFERS, NOT_HERE, NOT_COMPARED = "agrees", "differs", "left out", "not compared"

COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(["testbed", "workload", "client_library", "server_library", "label", "cell"], pl.String()),
    "origin": pl.String(),  # of the run, as in the table of runs
    "capture_sha256": pl.String(),
    "capture_bytes": pl.Int64(),
    "index": pl.Int64(),  # connection, in the order of the ClientHello; null: the whole capture
    # agrees, differs, left out (of an archive, to be small) or not compared (for the reason)
    "outcome": pl.String(),
    "reason": pl.String(),
    "compared": pl.Int64(),  # values that both have
    "differences": pl.List(pl.String()),  # a sentence each
    "not_stored": pl.List(pl.String()),  # values that were not yet looked at when the capture was taken
    "dissected": pl.String(),  # JSON, as in `handshakes.json` or `evidence.seen`
    "stored": pl.String(),
}
"""Columns of the table: one row for every connection of a captured series of handshakes and for every download."""

_FILES = (RUN_FILE, DISSECTED, OPENINGS, CAPTURE, KEYS)

# Whatever else is wrong with a file is the reason of a row: another one may be fine.
_UNUSABLE = (handshake.HandshakeError, CaptureError, OSError, ValueError, LookupError, TypeError, AttributeError)

# A problem of a handshake names its key log, which was elsewhere when it was stored.
_KEY_LOG_FOLDER = re.compile(rf"(?<= )/.*/(?={re.escape(KEYS)})")


@dataclass(frozen=True)
class _Stored:
    """A directory with a capture, or with what was read from one."""

    origin: str
    directory: Path
    """Where its files are; of a run in an archive those it was unpacked to."""
    left_out: dict[str, Any] | None = None
    """Of a run in an archive, which holds few captures: size and checksum of its own, where they are listed."""
    problem: str | None = None
    """Why there is nothing to look at."""


def write(root: Path, out: Path, jobs: int = 1) -> pl.DataFrame:
    """Dissect every capture below *root*, *jobs* at a time, and write the table to the Parquet file *out*.

    *root* is ``raw``, a testbed's directory in it, or ``raw/reference``. Raises RunsError where there is none, and
    TsharkError where tshark is needed and missing.
    """
    table = read(root, jobs)
    write_parquet(table, out)
    return table


def read(root: Path, jobs: int = 1) -> pl.DataFrame:
    """As `write`, without writing."""
    if not root.is_dir():
        raise RunsError(f"{root}: no such directory of runs; measure first or name another")
    with tempfile.TemporaryDirectory(prefix="quicbed-dissect-") as temporary:
        missing = tshark.problem()
        found = []
        for one in _scan(root.absolute(), Path(temporary)):
            # before all the others are unpacked
            if missing and all((one.directory / name).is_file() for name in (CAPTURE, KEYS, DISSECTED)):
                raise tshark.TsharkError(missing)
            found.append(one)
        workers = min(jobs, len(found))
        if workers > 1:
            # not forked: polars has threads
            with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
                rows = list(itertools.chain.from_iterable(pool.map(_rows, found)))
        else:
            rows = [row for one in found for row in _rows(one)]
    complete = [{name: row.get(name) for name in COLUMNS} for row in rows]
    return pl.DataFrame(complete, schema=COLUMNS, orient="row").sort("origin", "index", nulls_last=False)


def text(table: pl.DataFrame) -> str:
    """What came of it, in a sentence."""
    outcomes = table.select("origin", "outcome").unique()
    compared = outcomes.filter(pl.col("outcome").is_in([AGREES, DIFFERS]))["origin"].n_unique()
    wrong = outcomes.filter(pl.col("outcome") == DIFFERS).height
    parts = [f"{_captures(compared)} dissected again"]
    if compared:
        parts[0] += f" and {table['compared'].sum()} values compared: " + (
            f"{_captures(wrong)} with stored values that do not follow from them" if wrong else "all agree"
        )
    for outcome, what in ((NOT_COMPARED, "could not be compared"), (NOT_HERE, "left out of the archives")):
        if number := outcomes.filter(pl.col("outcome") == outcome).height:
            parts.append(f"{number} {what}")
    return "; ".join(parts)


def _captures(number: int) -> str:
    return f"{number} capture{'s' if number != 1 else ''}"


def problems(table: pl.DataFrame) -> list[dict[str, Any]]:
    """What does not agree or could not be compared: origin, index, outcome and words."""
    found = table.filter(pl.col("outcome").is_in([DIFFERS, NOT_COMPARED])).sort(
        pl.col("outcome") == NOT_COMPARED, "origin", "index", nulls_last=False
    )
    words = pl.coalesce("reason", pl.col("differences").list.join("; ")).alias("words")
    return found.select("origin", "index", "outcome", words).to_dicts()


# ---- finding captures


def _scan(root: Path, temporary: Path) -> Iterator[_Stored]:
    """Every directory with a capture or with what was read from one; those in archives are unpacked."""
    for path, files in directories(root):
        if {CAPTURE, DISSECTED} & set(files) or (RUN_FILE in files and _is_download(walk.content(path / RUN_FILE))):
            yield _Stored(origin_of(path, root), path)
        if RUN_FILE in files:
            continue
        for name in files:
            if name.endswith(ARCHIVE_SUFFIXES):
                target = Path(tempfile.mkdtemp(dir=temporary))
                yield from _unpacked(path / name, origin_of(path / name, root), target)


def _unpacked(archive: Path, origin: str, target: Path) -> Iterator[_Stored]:
    """As `_scan` for an archive of runs, from which what is needed goes to *target*."""
    found: dict[str, dict[str, bytes]] = {}
    left_out: dict[str, dict[str, Any]] = {}
    try:
        for directory, name, content in walk.archived(archive, {*_FILES, LEFT_OUT}):
            if isinstance(content, UntrustedError):
                yield _Stored(f"{origin}!{directory}", target, problem=f"{name} {content}")
            elif name == LEFT_OUT:
                left_out = _left_out(untrusted.parse(content))
            else:
                found.setdefault(directory, {})[name] = content
    except (ValueError, LookupError, TypeError) as error:
        yield _Stored(origin, target, problem=f"damaged archive: {error}")
    for number, (name, files) in enumerate(sorted(found.items())):
        if {CAPTURE, DISSECTED} & files.keys() or _is_download(files.get(RUN_FILE, b"")):
            directory_of = target / str(number)
            directory_of.mkdir()
            for file_name, content in files.items():
                (directory_of / file_name).write_bytes(content)
            yield _Stored(f"{origin}!{name}", directory_of, left_out.get(name, {}))


def _left_out(listed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Size and checksum of the captures that were not packed into an archive, by their directory in it."""
    return {
        str(file.parent): {"capture_sha256": str(one["sha256"]), "capture_bytes": int(one["bytes"])}
        for one in listed["left_out"]
        if (file := PurePosixPath(one["file"])).name == CAPTURE
    }


def _is_download(run: walk.Content) -> bool:
    """Whether a run.json tells what a capture of a download showed; the table of runs tells why one cannot be read."""
    try:
        return isinstance(run, bytes) and bool(Run.parse(run).evidence.seen)
    except RunsError:
        return False


# ---- comparing


def _rows(stored: _Stored) -> list[dict[str, Any]]:
    """The rows of one capture."""
    directory = stored.directory
    row: dict[str, Any] = {"origin": stored.origin}
    try:
        if stored.problem is not None:
            raise ValueError(stored.problem)
        run = Run.read(directory / RUN_FILE)
        row |= {
            "testbed": run.testbed.name,
            "workload": run.workload.kind,
            "client_library": run.client.library,
            "server_library": run.server.library,
            "label": run.cell.label,
            "cell": run.cell.id,
        }
        if run.cell.arm == CAPTURED and not (directory / OPENINGS).is_file():
            return []  # nothing was read from it but sizes of frames
        capture = directory / CAPTURE
        if stored.left_out is not None and not capture.is_file():
            return [row | stored.left_out | {"outcome": NOT_HERE}]
        with capture.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        row |= {"capture_sha256": checksum, "capture_bytes": capture.stat().st_size}
        compared = _handshakes if row["workload"] == "handshake" else _download
        return [row | {"index": index} | _compared(*pair) for index, *pair in compared(directory, run)]
    except _UNUSABLE as error:
        return [row | {"outcome": NOT_COMPARED, "reason": _reason(error, directory)}]


def _reason(error: Exception, directory: Path) -> str:
    match error:
        case FileNotFoundError(filename=missing) if missing:
            return f"{Path(missing).name} is missing"
        case _:
            return str(error).replace(f"{directory}/", "").partition("\n")[0]


def _json(file: Path) -> Any:
    if not os.path.lexists(file):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    try:
        return untrusted.parse(untrusted.read(file))
    except UntrustedError as error:
        raise ValueError(f"{file.name}: {error}") from None


_Handshaking = Literal["quic", "tcp"]


def _server(capture: Path) -> tuple[str, _Handshaking]:
    """Address of the server in a capture, and what carries its handshakes, if there are any."""
    for packet in Capture(capture, allow_truncated=True).packets():
        if PORT in (packet.source_port, packet.destination_port):
            address = packet.destination if packet.destination_port == PORT else packet.source
            return address, "quic" if packet.protocol == "udp" else "tcp"
    raise CaptureError(f"{capture}: no packet from or to port {PORT}")


def _handshakes(directory: Path, run: Run) -> list[tuple[int | None, Any, Any]]:
    """Of a series of handshakes every connection: its index, what is stored and what is dissected, None for nothing."""
    if not any((directory / name).is_file() for name in (DISSECTED, OPENINGS)):
        raise ValueError(_nothing(run))
    address, transport = _server(directory / CAPTURE)
    stored: list[list[dict[str, Any]]] = []
    seen: list[list[dict[str, Any]]] = []
    if (file := directory / DISSECTED).is_file():
        stored.append([_portable(one) for one in _objects(file)])
        seen.append([_portable(one.model_dump(mode="json")) for one in _examined(directory, address, transport)])
    if (file := directory / OPENINGS).is_file():
        openings = handshake.openings(directory / CAPTURE, server_ip=address, server_port=PORT)
        stored.append([{"opening": one} for one in _objects(file)])
        seen.append([{"opening": one.model_dump(mode="json")} for one in openings])
    pairs = itertools.zip_longest(_joined(stored), _joined(seen))
    return [(index, *pair) for index, pair in enumerate(pairs)] or [(None, {}, {})]


def _examined(directory: Path, address: str, transport: _Handshaking) -> list[handshake.Handshake]:
    capture, key_log = directory / CAPTURE, directory / KEYS
    return handshake.examine(capture, key_log, server_ip=address, server_port=PORT, transport=transport)


def _objects(file: Path) -> list[dict[str, Any]]:
    found = _json(file)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{file.name}: is not a list of objects")
    return found


def _portable(one: dict[str, Any]) -> dict[str, Any]:
    """An object of ``handshakes.json`` without the directory it was made in."""
    problem = one.get("problem")
    return one | {"problem": _KEY_LOG_FOLDER.sub("", problem)} if isinstance(problem, str) else one


def _joined(parts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Objects of the same connections as one each."""
    return [
        {name: value for one in together if one for name, value in one.items()}
        for together in itertools.zip_longest(*parts)
    ]


def _download(directory: Path, run: Run) -> list[tuple[int | None, Any, Any]]:
    """As `_handshakes` of a download, which is looked at as a whole."""
    evidence = run.evidence
    if not evidence.seen:
        raise ValueError(_nothing(run))
    if run.link.mtu is None:
        raise ValueError(f"{RUN_FILE}: key 'link.mtu' is missing")
    capture = directory / CAPTURE
    address, transport = _server(capture)
    spoken: proof.Transport = "udp" if evidence.seen.get("transport") == "udp" else transport
    shown = proof.examine(capture, server_ip=address, server_port=PORT, transport=spoken, mtu=run.link.mtu)
    seen = shown.model_dump(mode="json")
    stored = dict(evidence.seen)
    for role, direction in (("client", shown.client_to_server), ("server", shown.server_to_client)):
        if (mean := getattr(run.metrics, metric := f"{role}_mean_frame_bytes")) is not None:
            stored[metric], seen[metric] = mean, direction.mean_frame_bytes
    if evidence.signatures is not None:
        stored["signatures"] = evidence.signatures
        found = {one.signature for one in _examined(directory, address, transport)}
        seen["signatures"] = sorted(signature for signature in found if signature is not None)
    return [(None, stored, seen)]


def _nothing(run: Run) -> str:
    return "what it showed is not stored" + (f"; the run failed: {run.reason}" if run.reason else "")


def _compared(stored: Mapping[str, Any] | None, seen: Mapping[str, Any] | None) -> dict[str, Any]:
    """Columns that tell whether the values of a connection or download agree."""
    if stored is None or seen is None:
        where = "not stored, but in the capture" if stored is None else "stored, but not in the capture"
        differences, compared, lacking = [f"the connection is {where}"], 0, []
    else:
        old, new = _flat(stored), _flat(seen)
        differences = [
            f"{name}: stored {_said(old[name])}, "
            + (f"dissected {_said(new[name])}" if name in new else "which is no longer dissected")
            for name in sorted(old)
            if name not in new or old[name] != new[name]
        ]
        compared, lacking = len(old.keys() & new.keys()), sorted(new.keys() - old.keys())
    return {
        "outcome": DIFFERS if differences else AGREES,
        "compared": compared,
        "differences": differences,
        "not_stored": lacking,
        "dissected": None if seen is None else _said(seen),
        "stored": None if stored is None else _said(stored),
    }


def _said(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name; of encryption levels, which may be absent, all of a level are one value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name == "levels" and isinstance(value, Mapping):
            flat |= {f"{prefix}levels.{level}": value.get(level) for level in {*get_args(handshake.Level), *value}}
        elif isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
