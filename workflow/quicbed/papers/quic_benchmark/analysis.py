"""What the figures and tables of "quic-benchmark" are made of: packets by layer and durations, published and ours.

Ours are read from captures of proofs, of libraries with themselves and without emulated delay: series of handshakes
with X25519 and RSA-2048, whose key log is kept and each of whose connections is a run here, and downloads of builds
with the NOOP AEAD and without header protection, which need no keys and whose packets are laid out as any others. The
published ones are the tables of `quicbed.papers.quic_benchmark.published`.

Durations are those of that importer, with the client's events in place of the server's: ours tells when the first and
the last byte came. Both clocks are only compared with themselves. By captures the handshake begins with the
ClientHello, also over TCP, as in the events of clients.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from quicbed import importers
from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.importers import tables
from quicbed.importers.summary import SUMMARY_FILE
from quicbed.papers.quic_benchmark.published import BASES, PHASES
from quicbed.store import walk
from quicbed.store.paths import CAPTURE, KEYS, PORT
from quicbed.wire import layers
from quicbed.wire.layers import LAYERS
from quicbed.wire.pcap import CaptureError
from quicbed.wire.tshark import TsharkError

SOURCE = "quic-benchmark"
HANDSHAKES, DOWNLOADS = "handshake", "download"
EVENTS = "client.jsonl"

_PLACE: Mapping[str, pl.DataType] = {
    "source": pl.String(),  # quic-benchmark, or where our runs are from
    "library": pl.String(),  # of client and server; quic or tcp of the published ones
    "label": pl.String(),  # handshake, download, or the published experiment
    "origin": pl.String(),
}
PACKETS: Mapping[str, pl.DataType] = {**_PLACE, **layers.ROW}
"""Columns of the table of packets."""
DURATIONS: Mapping[str, pl.DataType] = {
    **_PLACE,
    "connection": pl.Int64(),
    "basis": pl.String(),  # events or capture
    **dict.fromkeys(PHASES, pl.Float64()),
}
"""Columns of the table of durations in ms: of every connection once by events and once by its capture."""


@dataclass(frozen=True)
class Measured(tables.Results):
    """Packets and durations of one side, published or ours."""

    packets: pl.DataFrame
    """`PACKETS`"""
    durations: pl.DataFrame
    """`DURATIONS`"""
    runs: pl.DataFrame
    """The runs behind them."""
    problems: tuple[str, ...] = ()
    """Captures that could not be read."""
    missing: str | None = None
    """Why there are none."""

    def count(self) -> str:
        """Repetitions and settings."""
        cells = self.durations.select("library", "label").n_unique()
        return f"{self.durations['origin'].n_unique()} repetitions of {cells} settings"


def _empty() -> tuple[pl.DataFrame, pl.DataFrame]:
    return pl.DataFrame(schema=dict(PACKETS)), pl.DataFrame(schema=dict(DURATIONS))


# ---- published -------------------------------------------------------------------------------------------------------


def published(directory: Path | None) -> Measured:
    """What was imported into *directory*; nothing, with the reason, without one or where no import ended there."""
    needed = (SUMMARY_FILE, "runs.parquet", "phases.parquet", "packets.parquet")
    if directory is None or not all((directory / name).is_file() for name in needed):
        return Measured(*_empty(), pl.DataFrame(schema=tables.RUNS), missing=importers.missing_copy(SOURCE))
    place = pl.col("transport").alias("library"), pl.col("experiment").alias("label")
    phases = pl.read_parquet(directory / "phases.parquet").with_columns(*place, connection=pl.lit(0, pl.Int64))
    packets = pl.read_parquet(directory / "packets.parquet").with_columns(*place)
    runs = pl.read_parquet(directory / "runs.parquet")
    return Measured(packets.select(list(PACKETS)), phases.select(list(DURATIONS)), runs)


# ---- ours ------------------------------------------------------------------------------------------------------------


def own(table: pl.DataFrame, raw: Path) -> Measured:
    """Of the proofs in the table of runs below *raw* those of which a capture is kept; the newest of each library."""
    beside = walk.Beside(raw, lambda path: path.name in (CAPTURE, KEYS, EVENTS) and "proofs" in path.parts)
    packets, durations, origins, problems = [], [], [], []
    done: set[tuple[str, str]] = set()
    for run in _proofs(table).to_dicts():
        if (key := (run["library"], run["label"])) in done:
            continue
        try:
            capture = beside.read(run["origin"], CAPTURE)
            keys = beside.read(run["origin"], KEYS) if run["label"] == HANDSHAKES else None
        except UntrustedError:
            continue  # left out of the archive, to be small
        place = {name: run[name] for name in _PLACE}
        try:
            found = _read(capture, keys)
            events = _events(beside.read(run["origin"], EVENTS))
        except (CaptureError, TsharkError, ValueError, LookupError, TypeError) as error:
            problems.append(f"{run['origin']}: {str(error).partition(chr(10))[0]}")
            continue
        done.add(key)
        origins.append(run["origin"])
        packets += [place | row for connection in found for row in connection.rows()]
        for index, connection in enumerate(found):
            by_basis = dict(zip(BASES, (events[index] if index < len(events) else {}, _times(connection)), strict=True))
            durations += [place | {"connection": index, "basis": name} | times for name, times in by_basis.items()]
    return Measured(
        tables.frame(packets, PACKETS, ["label", "library", "connection", "packet"]),
        tables.frame(durations, DURATIONS, ["label", "library", "connection", "basis"]),
        table.filter(pl.col("origin").is_in(origins)),
        tuple(problems),
    )


def _proofs(table: pl.DataFrame) -> pl.DataFrame:
    """Proofs whose captures can be read without secrets that are not kept, the newest first."""
    plain = (pl.col("rtt_ms").fill_null(0) == 0) & ~pl.col("client_external").fill_null(False)
    alike = pl.col("client_library") == pl.col("server_library")
    handshake = (pl.col("workload") == "handshake") & (pl.col("group") == "x25519")
    handshake &= (pl.col("signature") == "rsa-2048") & (pl.col("initial_size").fill_null(1200) == 1200)
    handshake &= ~pl.col("retry").fill_null(False)
    download = (
        (pl.col("workload") == "bulk") & (pl.col("aead") == "noop") & ~pl.col("header_protection").fill_null(False)
    )
    label = pl.when(handshake).then(pl.lit(HANDSHAKES)).when(download).then(pl.lit(DOWNLOADS))
    proofs = table.filter((pl.col("arm") == "proof") & (pl.col("status") == "ok") & plain & alike)
    chosen = proofs.with_columns(label=label, library=pl.col("client_library")).filter(pl.col("label").is_not_null())
    return chosen.sort("started_at", "origin", descending=[True, False], nulls_last=True)


def _read(capture: bytes, keys: bytes | None) -> list[layers.Connection]:
    """The connections of a capture, of a build with the NOOP AEAD if there are no *keys*."""
    with tempfile.TemporaryDirectory(prefix="quicbed-layers-") as directory:
        file, key_log = Path(directory) / CAPTURE, Path(directory) / KEYS
        file.write_bytes(capture)
        if keys is not None:
            key_log.write_bytes(keys)
        try:
            return layers.read(file, key_log if keys is not None else None, clear=keys is None, port=PORT)
        except (CaptureError, TsharkError) as error:
            raise type(error)(str(error).replace(f"{directory}/", "")) from None


def _events(log: bytes) -> list[dict[str, float | None]]:
    """Durations of every connection by the events of its client."""
    logged = [untrusted.parse(line) for line in log.splitlines()]
    found = []
    for one in (event for event in logged if event["event"] == "connection"):
        hello, complete, first, last, close = (
            one[f"t_{name}"] for name in ("client_hello", "handshake_complete", "first_byte", "last_byte", "close")
        )
        moments = ((hello, complete), (hello, first), (first, last), (last, close))
        found.append({name: _ms(*pair) for name, pair in zip(PHASES, moments, strict=True)})
    return found


def _times(connection: layers.Connection) -> dict[str, float | None]:
    """Durations of a connection by its capture."""
    hello, finished = (connection.moment("client", name) for name in ("ClientHello", "Finished"))
    first, last = (connection.contents[end] if connection.contents else None for end in (0, -1))
    moments = ((hello, finished), (hello, first), (first, last), (last, connection.units[-1].time_ns))
    return {name: _ms(*pair) for name, pair in zip(PHASES, moments, strict=True)}


def _ms(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else (end - begin) / 1e6


# ---- what figures show -----------------------------------------------------------------------------------------------

_CELL = ["source", "label", "library"]
USUAL = 0.5
"""A packet is in a chart if at least this share of the runs has it."""


def flow(packets: pl.DataFrame, most: int | None = None) -> pl.DataFrame:
    """The packets of a usual run of every cell, in the order of their mean times.

    A packet is the *n*-th of its end with the same contents (column ``what``). Columns: mean and standard deviation of
    its time in ms and of its frame's size in bytes, ``share`` of the ``runs`` that have it. Of each cell at most *most*
    rows.
    """
    run = [*_CELL, "origin", "connection"]
    numbered = packets.sort(*run, "packet").with_columns(n=pl.int_range(pl.len()).over([*run, "role", "what"]))
    many = packets.group_by(_CELL).agg(runs=pl.struct("origin", "connection").n_unique())
    found = (
        numbered.group_by([*_CELL, "role", "what", "n"], maintain_order=True)
        .agg(
            present=pl.len(),
            time_ms=pl.col("time_ms").mean(),
            time_sd_ms=pl.col("time_ms").std(),
            frame_bytes=pl.col("frame_bytes").mean(),
            frame_sd_bytes=pl.col("frame_bytes").std(),
        )
        .join(many, on=_CELL)
        .with_columns(share=pl.col("present") / pl.col("runs"))
        .filter(pl.col("share") >= USUAL)
        .sort([*_CELL, "time_ms", "role", "what", "n"])
    )
    limited = found if most is None else found.group_by(_CELL, maintain_order=True).head(most)
    return limited.drop("n", "present")


def overhead(packets: pl.DataFrame) -> pl.DataFrame:
    """Bytes of every cell by direction and layer: columns ``role``, ``layer``, ``bytes`` (mean of the runs),
    ``percent`` of what that end sends, and ``runs``.
    """
    run = [*_CELL, "role", "origin", "connection"]
    # in one order, for sums of floating-point numbers that are the same on every machine
    sums = packets.group_by(run).agg(pl.col(list(LAYERS)).sum()).sort(run)
    long = sums.unpivot(LAYERS, index=run, variable_name="layer", value_name="bytes")
    cell = [*_CELL, "role"]
    found = long.group_by([*cell, "layer"], maintain_order=True).agg(pl.col("bytes").mean(), runs=pl.len())
    whole = pl.col("bytes").sum().over(cell)
    order = pl.col("layer").replace_strict(list(LAYERS), list(range(len(LAYERS))), return_dtype=pl.Int64)
    return found.with_columns(percent=100 * pl.col("bytes") / whole).sort([*cell, order])


def timelines(durations: pl.DataFrame) -> pl.DataFrame:
    """Mean and standard deviation of every phase of every cell by events and by captures: columns ``basis``, ``phase``,
    ``mean_ms``, ``sd_ms`` and ``runs``.
    """
    cell = [*_CELL, "basis"]
    ordered = durations.sort(*_CELL, "origin", "connection", "basis")
    long = ordered.unpivot(PHASES, index=cell, variable_name="phase", value_name="ms").drop_nulls("ms")
    order = pl.col("phase").replace_strict(list(PHASES), list(range(len(PHASES))), return_dtype=pl.Int64)
    return (
        long.group_by([*cell, "phase"], maintain_order=True)
        .agg(mean_ms=pl.col("ms").mean(), sd_ms=pl.col("ms").std(), runs=pl.len())
        .sort([*cell, order])
    )


def differences(durations: pl.DataFrame) -> pl.DataFrame:
    """Durations by events less those by the capture of the same run: columns ``phase`` and ``difference_ms``, a row a
    run that has both.
    """
    run = [*_CELL, "origin", "connection"]
    long = durations.unpivot(PHASES, index=[*run, "basis"], variable_name="phase", value_name="ms").drop_nulls("ms")
    by_events, by_capture = (long.filter(pl.col("basis") == basis).drop("basis") for basis in BASES)
    both = by_events.join(by_capture, on=[*run, "phase"], suffix="_capture")
    return both.select(*run, "phase", difference_ms=pl.col("ms") - pl.col("ms_capture")).sort(*run, "phase")
