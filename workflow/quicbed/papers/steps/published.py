"""Results of "QUIC Steps" (Kempf et al., CoNEXT 2025, arXiv 2505.09222).

``results/detailed/<config>/<config>[-repN].tar.zst``: the files of one repetition of the bare-metal runner each, which
give ``runs.parquet`` and ``counters.parquet``. ``analysis/build/data/<config>/<config>[-repN].pcap.json``: the packets
that the server sent, ``[relative ns, raw ns, frame bytes, packet number or -1]``, which give ``gaps/<config>.parquet``;
``.ipg.json``, the gaps of the same packets in ms, is read where the other is missing. A file without ``-repN`` is one
more repetition, number 0, not the sum of the others. Gaps are taken within a repetition only; they and packet trains
are those of `quicbed.wire.trains`.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from quicbed.base import untrusted
from quicbed.base.untrusted import Stream
from quicbed.importers import names, tables
from quicbed.importers.files import (
    MOST_RECORDED,
    UNPACKED_AT_LEAST,
    UNPACKED_RATIO,
    Entry,
    content_of,
    entries,
    members_of,
    zstd,
)
from quicbed.importers.logs import ParseError
from quicbed.importers.repetitions import Repetition
from quicbed.importers.summary import Summary
from quicbed.store import runs
from quicbed.wire.trains import with_trains

SOURCE = "steps"
LAYOUT = "<config>/<config>[-repN].tar.zst, .pcap.json or .ipg.json"
OK = "ok"

_FILE = re.compile(
    r"(?:^|/)(?P<config>[^/]+)/(?P=config)(?:-rep(?P<number>\d{1,9}))?\.(?P<kind>tar\.zst|tar|pcap\.json|ipg\.json)$"
)
_INSIDE = re.compile(r"(?:^|/)(?P<server>[^/_]+)_(?P<client>[^/_]+)/(?P<test>[^/]+)/\d+/(?P<file>.+)$")
LONGEST_NS = 10**15
"""No repetition took longer: eleven days."""
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_WHITE_SPACE = b" \t\r\n"
_PACKET_COLUMNS = {"time_ns": pl.Int64, "raw_ns": pl.Int64, "frame_bytes": pl.Int32, "packet_number": pl.Int64}


def read(copy: Path, out: Path, summary: Summary) -> None:
    """Import a copy of the results; see `quicbed.papers.reading.read`."""
    rows: dict[str, dict[str, Any]] = {}
    counters: dict[str, list[tuple[str, str, str, str, str, int]]] = {}
    gaps = _GapWriter(out, summary)
    for entry in entries(copy, summary):
        place = _FILE.search(entry.path)
        if place is None:
            summary.skip(_foreign(entry), entry.path)
            continue
        config, number = place["config"], int(place["number"] or 0)
        if place["kind"] in ("pcap.json", "ipg.json"):
            gaps.take(entry, config, number, whole=place["kind"] == "pcap.json")
        else:
            repetition = _detailed(entry, summary)
            row = _row(repetition, config, number, entry.path, summary)
            origin = row["origin"]
            if origin in rows:
                summary.skip("archive of a repetition that is there twice", entry.path)
                rows[origin] = _row(None, config, number, entry.path, summary, "its archive is there twice")
                counters[origin] = []
                continue
            rows[origin] = row
            counters[origin] = [] if repetition is None else sorted(repetition.counters(SOURCE, origin))
    gaps.close({(row["experiment"], row["repetition"]): row["status"] for row in rows.values()})
    # empty where the copy has gap files only
    tables.write_runs(rows.values(), out, summary)
    counted = [count for of_one in counters.values() for count in of_one]
    table = pl.DataFrame(counted, schema=tables.COUNTERS, orient="row")
    tables.write(table.sort(list(tables.COUNTERS)), out, "counters", summary)


def _foreign(entry: Entry) -> str:
    if entry.name.endswith((".pcap.zst", ".pcap")):
        return "capture; the published .pcap.json of it is read instead"
    return f"not of a repetition ({LAYOUT})"


# ---- logs ------------------------------------------------------------------------------------------------------------


def _detailed(entry: Entry, summary: Summary) -> Repetition | None:
    """The repetition in an archive of logs."""
    data = content_of(entry, summary, MOST_RECORDED)
    if data is None:
        return None
    repetition: Repetition | None = None
    quiet = Summary(SOURCE)  # the files inside are not files of the copy
    try:
        with _unpacked(data, entry.name) as stream:
            most = UNPACKED_AT_LEAST + UNPACKED_RATIO * len(data)
            for member in members_of(stream, entry.path, quiet, most):
                place = _INSIDE.search(member.path)
                if place is None or member.name.startswith("._"):
                    continue
                if repetition is None:
                    repetition = Repetition(place["server"], place["client"], place["test"], 0)
                if not repetition.wants(place["file"]):
                    continue
                inside = content_of(member, quiet)
                if inside is None:
                    continue
                try:
                    repetition.take(place["file"], inside)
                except ParseError as error:
                    summary.skip(f"{member.name}: {error}", f"{entry.path}!{member.path}")
    except OSError as error:
        summary.skip(f"damaged archive: {error}", entry.path)
    for reason in quiet.skipped:
        summary.skip(reason, entry.path)
    if repetition is None:
        summary.skip("archive without the logs of a repetition", entry.path)
        return None
    repetition.close(entry.path, summary)
    return repetition


@contextmanager
def _unpacked(data: bytes, name: str) -> Iterator[Stream]:
    if name.endswith(".zst"):
        with zstd(data) as stream:
            yield stream
    else:
        yield io.BytesIO(data)


def _row(
    repetition: Repetition | None,
    config: str,
    number: int,
    path: str,
    summary: Summary,
    reason: str = "its archive has no logs that can be read",
) -> dict[str, Any]:
    """Its row; the configuration is the cell, because scripts that patch a library are part of it.

    *reason* is why there is no repetition, where there is none.
    """
    origin = path.removesuffix(".zst").removesuffix(".tar")
    place = {"experiment": config, "campaign": config, "scale": "published", "repetition": number, "block": number}
    named = {"label": config, "slug": config}
    if repetition is None:
        return tables.run(SOURCE, origin, runs.UNREADABLE, reason=reason, cell=config, **place, **named)
    repetition.number = number
    row = repetition.row(SOURCE, origin, summary, **place) | named
    if repetition.output is None or repetition.conditions_known:
        row["cell"] = config
    _check_name(row, config, summary)
    return row


def _check_name(row: dict[str, Any], config: str, summary: Summary) -> None:
    """Tell where a configuration is named after something else than was applied."""
    words = config.split("-")
    named = next((word for word in words if word in names.CONGESTION_CONTROLS), None)
    used = row.get("congestion_control")
    if named and used and named != used:
        summary.differ(f"named after {named}, but the server got {used}, which counts", row["origin"])
    if named and not used and row.get("status") == "ok":
        told = f"named after {named}, which nothing shows {row['server_implementation']} reading"
        summary.differ(f"{told}; congestion_control is null", row["origin"])


# ---- gaps ------------------------------------------------------------------------------------------------------------


def parse_packets(data: bytes) -> pl.DataFrame:
    """The packets of a ``.pcap.json``, without a JSON parser: half a hundred MB/s would be too slow for 1.4 GB.

    Columns time_ns, raw_ns, frame_bytes, packet_number. A `ParseError` if it is anything but a list of four whole
    numbers each.
    """
    dense = _dense(data)
    if dense == b"[]":
        return pl.DataFrame(schema=_PACKET_COLUMNS)
    if not (dense.startswith(b"[[") and dense.endswith(b"]]")):
        raise ParseError("truncated JSON, or not a list of packets")
    packets = _numbers(dense[2:-2].replace(b"],[", b"\n"), _PACKET_COLUMNS)
    times, sizes = packets["time_ns"], packets["frame_bytes"]
    if not times.is_between(0, LONGEST_NS).all() or not times.is_sorted() or not sizes.is_between(0, 1 << 16).all():
        raise ParseError("JSON of times that go back or sizes that no packet has")
    return packets


def parse_gaps(data: bytes) -> pl.DataFrame:
    """The packets that the gaps of an ``.ipg.json`` are between; what it does not tell is null.

    Gaps are in ms, of whole nanoseconds.
    """
    dense = _dense(data)
    if not (dense.startswith(b"[") and dense.endswith(b"]")):
        raise ParseError("truncated JSON, or not a list of gaps")
    gaps = _numbers(dense[1:-1].replace(b",", b"\n"), {"gap_ms": pl.Float64})
    if not gaps["gap_ms"].is_between(0, LONGEST_NS / 1e6).all() or gaps["gap_ms"].sum() > LONGEST_NS / 1e6:
        raise ParseError("JSON of gaps that are no times between packets")
    ns = (gaps["gap_ms"] * 1e6).round().cast(pl.Int64)
    times = pl.concat([pl.Series("time_ns", [0], pl.Int64), ns.cum_sum().rename("time_ns")])
    return times.to_frame().with_columns(
        pl.lit(None, kind).alias(name) for name, kind in _PACKET_COLUMNS.items() if name != "time_ns"
    )


def _dense(data: bytes) -> bytes:
    """JSON of numbers without white space and byte order mark."""
    if (told := untrusted.other_form(data)) is not None:
        raise ParseError(f"is {told}")
    if data.startswith(_WIDE_MARKS):
        data = untrusted.decoded(data).encode()
    return data.removeprefix(codecs.BOM_UTF8).translate(None, _WHITE_SPACE)


def _numbers(lines: bytes, columns: dict[str, Any]) -> pl.DataFrame:
    """Comma-separated numbers, a row a line."""
    if not lines:
        return pl.DataFrame(schema=columns)
    try:
        table = pl.read_csv(
            io.BytesIO(lines), has_header=False, schema=columns, quote_char=None, truncate_ragged_lines=False
        )
    except pl.exceptions.PolarsError:
        raise ParseError("JSON of something else than numbers") from None
    if table.height != lines.count(b"\n") + 1 or sum(table.null_count().row(0)):
        raise ParseError("JSON of rows of another length")
    return table


def trains(packets: pl.DataFrame, repetition: int) -> pl.DataFrame:
    """Gaps and trains of one repetition's packets, in their order: the columns `tables.GAPS`."""
    return (
        with_trains(packets.lazy())
        .select(
            repetition=pl.lit(repetition, pl.Int32),
            gap_ns="gap_ns",
            frame_bytes=pl.col("frame_bytes").cast(pl.Int32),
            packet_number=pl.when(pl.col("packet_number") >= 0).then("packet_number"),
            train_packets="train_packets",
        )
        .collect()
    )


class _GapWriter:
    """Writes a file a configuration, as soon as the files of another one follow: the whole does not fit in memory."""

    def __init__(self, out: Path, summary: Summary) -> None:
        self.out = out / "gaps"
        self.summary = summary
        self.config: str | None = None
        self.packets: dict[int, pl.DataFrame] = {}
        """Of the current configuration, by repetition, from .pcap.json."""
        self.taken: set[tuple[str, int, bool]] = set()
        self.gaps: dict[int, tuple[str, bytes]] = {}
        """Path and content of its .ipg.json: a folder has them before the .pcap.json of the same repetition."""
        self.written: dict[str, dict[int, bool]] = {}
        """By configuration and repetition, whether its rows are from a .pcap.json."""

    def take(self, entry: Entry, config: str, number: int, *, whole: bool) -> None:
        """Read a gap file: a .pcap.json if *whole*, else an .ipg.json."""
        if config != self.config:
            self.flush()
            self.config = config
        data = content_of(entry, self.summary, MOST_RECORDED)
        if data is None:
            return
        if (config, number, whole) in self.taken:
            self.summary.skip("gaps that are there twice; the first count", entry.path)
            return
        self.taken.add((config, number, whole))
        if whole:
            self._parse(number, parse_packets, data, entry.path)
        else:
            self.gaps[number] = (entry.path, data)

    def _parse(self, number: int, parser: Callable[[bytes], pl.DataFrame], data: bytes, path: str) -> bool:
        try:
            self.packets[number] = trains(parser(data), number)
        except ParseError as error:
            self.summary.skip(f"{'.pcap.json' if parser is parse_packets else '.ipg.json'}: {error}", path)
            return False
        return True

    def flush(self) -> None:
        """Write the configuration whose files were read last."""
        if self.config is None:
            return
        done = self.written.setdefault(self.config, {})
        done |= dict.fromkeys(self.packets, True)
        for number, (path, data) in sorted(self.gaps.items()):
            if number in done:
                self.summary.skip("the same gaps are in the .pcap.json", path)
            elif self._parse(number, parse_gaps, data, path):
                done[number] = False
        if self.packets:
            self._write(self.config)
        self.packets, self.gaps = {}, {}

    def _write(self, config: str) -> None:
        file = self.out / f"{config}.parquet"
        parts = list(self.packets.values())
        if file.exists():  # the files of a configuration are not together in the archive
            earlier = pl.read_parquet(file, columns=list(tables.GAPS), glob=False)
            parts.append(earlier.filter(~pl.col("repetition").is_in(list(self.packets))))
        table = pl.concat(parts).sort("repetition", maintain_order=True)
        labels = [pl.lit(SOURCE).alias("source"), pl.lit(config).alias("config")]
        runs.write_parquet(table.select(*labels, *tables.GAPS), file)
        self.summary.tables[f"gaps/{config}"] = table.height

    def close(self, logged: Mapping[tuple[str, int], str]) -> None:
        """Write what is left, take out repetitions whose logs say that they are no result, and tell what is not known.

        *logged* are the statuses of the repetitions that have logs.
        """
        self.flush()
        for config, numbers in sorted(self.written.items()):
            for number, whole in sorted(numbers.items()):
                where = f"{config}, repetition {number}"
                if not whole:
                    self.summary.differ("no usable .pcap.json: frame lengths and packet numbers are null", where)
                if logged and (config, number) not in logged:
                    self.summary.differ("gaps without logs: whether the repetition succeeded is not known", where)
            failed = [number for number in numbers if logged.get((config, number), OK) != OK]
            if failed:
                self._drop(config, failed)

    def _drop(self, config: str, numbers: list[int]) -> None:
        for number in sorted(numbers):
            self.summary.skip("gaps of a repetition that is no result", f"{config}, repetition {number}")
        file = self.out / f"{config}.parquet"
        table = pl.read_parquet(file, glob=False).filter(~pl.col("repetition").is_in(numbers))
        runs.write_parquet(table, file)
        self.summary.tables[f"gaps/{config}"] = table.height
