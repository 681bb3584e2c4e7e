"""What the figures of "QUIC on the Highway" show: of its published raw data, and of what was measured here.

The published runs are those that `quicbed import highway` reads from a local copy. Which of them a figure is made of
is told by the directories of the data set; what a run was really measured with (buffers, hosts) by the run itself, and
where that is not what the figure says, the run is marked. Only repetitions that succeeded count.

A published goodput is that of a client process on a link of 10 Gbit/s, ours that of a download on another machine
(docs/importing.md): what can be compared is how it changes within a data set. Changes of published values are ratios of
means with a 95 % interval after Fieller, since its repetitions were not measured in blocks; ours are paired within
blocks (`quicbed.analysis.comparison`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import polars as pl

from quicbed import importers
from quicbed.analysis import comparison
from quicbed.base import statistics
from quicbed.importers import tables
from quicbed.importers.summary import SUMMARY_FILE
from quicbed.papers.highway.processed import MISSING, NOT_THERE
from quicbed.plan import march
from quicbed.store import runs

SOURCE = "highway"
DEFAULT_BUFFER = 212992
"""Bytes; what multiples of the receive buffer refer to."""
LARGE_BUFFER = 32 * DEFAULT_BUFFER
HOSTS = "goracle-gard"
"""The pair of hosts (server, client) that every figure but Fig. 9 is of."""

PAIRS_OF_HOSTS: Mapping[str, str] = {
    "dogecoin": "Intel-1",
    "amdexp0": "AMD-1",
    "uniswap": "Intel-2",
    "goracle": "AMD-2",
    "tinyman": "Intel-3",
}
"""Names of the pairs of hosts in Fig. 9, in its order, by the server's name."""

PROCESSORS: Mapping[str, str] = {
    "Intel-1": "Xeon D-1518",
    "AMD-1": "EPYC 7551P",
    "Intel-2": "Xeon E5-1650",
    "AMD-2": "EPYC 7543",
    "Intel-3": "Xeon Gold 6312U",
}
"""Of both hosts of a pair in Fig. 9."""

LIBRARIES = ("aioquic", "quic-go", "mvfst", "picoquic", "quiche", "lsquic")
"""In the order of Fig. 3."""
BUFFERS = ("0.5x", "1x", "2x", "4x", "8x", "16x", "32x")
NATIVE = "*"
"""Behind a pair of hosts: the library was built for its processor."""


@dataclass(frozen=True)
class Figure:
    """A figure with goodput, or another number of a run, of single libraries under several settings."""

    name: str
    number: str
    title: str
    experiment: str
    """Ours, which repeats it."""
    labels: tuple[str, ...]
    """Settings, in the order of the figure."""
    baseline: Mapping[str, str]
    """The setting that another one is compared with."""
    directories: tuple[str, ...]
    """What the path of a published experiment ends with."""
    metric: str = "goodput_mbps"
    """Of our runs."""
    published_metric: str = "goodput_mbps"
    unit: str = "Goodput [Gbit/s]"
    scale: float = 1e-3
    per_gib: bool = False
    """Whether the number is divided by the size of the download in GiB."""
    counts: bool = False
    """Whether zero is a value, of which there are no ratios."""
    aes_hardware: Mapping[str, bool] = field(default_factory=dict)
    """Settings that say whether the AES instructions of the processor are used."""
    ciphers: Mapping[str, str] = field(default_factory=dict)
    """Settings that say which cipher is used."""
    alone: bool = True
    """Whether it is drawn without published data; some of ours have a figure that tells more."""
    sides: str = "goodputs of both sides are not defined alike: compare changes"
    """What makes published and measured values differ."""


def _against(baseline: str, labels: Sequence[str]) -> dict[str, str]:
    return {label: baseline for label in labels if label != baseline}


AES, CHACHA20 = "aes-128-gcm", "chacha20-poly1305"
CIPHER_TITLES = {AES: "AES", CHACHA20: "ChaCha20"}
"""Of Fig. 7. All implementations prefer AES where nothing else is asked of them, so that a run is one with AES
unless its log says otherwise, and one with ChaCha20 only if its log says so."""

_AES = ("AES without AES-NI", "AES with AES-NI", "ChaCha20")
_OFFLOADS = ("off", "gso-gro", "default")
_MACHINES = tuple(f"{name}{build}" for name in PAIRS_OF_HOSTS.values() for build in ("", NATIVE))

FIG5 = Figure(
    name="highway-fig5",
    number="Fig. 5",
    title="Goodput by UDP receive buffer",
    experiment="udp-buffer",
    labels=BUFFERS,
    baseline=_against("1x", BUFFERS),
    directories=("buffer/udp/run3",),
)
FIG6 = Figure(
    name="highway-fig6",
    number="Fig. 6",
    title="Packets that the client sends, by UDP receive buffer",
    experiment="udp-buffer",
    labels=BUFFERS,
    baseline=_against("1x", BUFFERS),
    directories=("buffer/udp/run3",),
    metric="client_ack_packets",
    published_metric="client_udp_packets_sent",
    unit="Packets per GiB [1000]",
    per_gib=True,
    sides="published are UDP packets of the host, ours packets after the handshake",
)
DROPS = Figure(
    name="highway-fig6-drops",
    number="Fig. 6, drops",
    title="Datagrams that the client has no buffer for",
    experiment="udp-buffer",
    labels=BUFFERS,
    baseline={},
    directories=("buffer/udp/run3",),
    metric="client_udp_receive_buffer_errors",
    published_metric="client_udp_receive_buffer_errors",
    unit="Drops per GiB [1000]",
    per_gib=True,
    counts=True,
    sides="",
)
FIG7 = Figure(
    name="highway-fig7",
    number="Fig. 7",
    title="Goodput with and without AES instructions",
    experiment="aes-ni",
    labels=_AES,
    baseline=_against("AES with AES-NI", _AES),
    directories=("crypto/aes-noni", "crypto/aes-ni", "crypto/chacha20"),
    aes_hardware={"AES without AES-NI": False, "AES with AES-NI": True},
    ciphers=dict(zip(_AES, (AES, AES, CHACHA20), strict=True)),
    alone=False,
)
FIG8 = Figure(
    name="highway-fig8",
    number="Fig. 8",
    title="Goodput by offloads",
    experiment="offloads",
    labels=_OFFLOADS,
    baseline=_against("default", _OFFLOADS),
    directories=("offloading/goracle/off", "offloading/goracle/only-udp", "offloading/goracle/default"),
)
FIG8_CPU = Figure(
    name="highway-fig8-cpu",
    number="Fig. 8, client",
    title="Processor of the client, by offloads",
    experiment="offloads",
    labels=_OFFLOADS,
    baseline=_against("default", _OFFLOADS),
    directories=FIG8.directories,
    metric="client_cpu_percent",
    published_metric="client_cpu_percent",
    unit="Processor time [%]",
    scale=1,
    sides="100 % is one processor, which the hosts of a local testbed share",
)
FIG9 = Figure(
    name="highway-fig9",
    number="Fig. 9",
    title="Goodput by pair of hosts",
    experiment="hardware",
    labels=_MACHINES,
    baseline={f"{name}{NATIVE}": name for name in PAIRS_OF_HOSTS.values()},
    directories=("hardware/optimized",),
)
FIGURES = (FIG5, FIG6, DROPS, FIG7, FIG8, FIG8_CPU, FIG9)
FIG3, FIG10 = "baseline/client-timestamps/goracle", "baseline/client-timestamps/goracle-optimized"
"""Directories of the experiments behind the figures of all pairs."""
FIG4 = "perf/goracle/optimized"

NUMBERS: Mapping[str, str] = {
    FIG3: "Fig. 3",
    FIG4: "Fig. 4",
    FIG10: "Fig. 10",
    **{directory: figure.number for figure in (FIG5, FIG7, FIG8, FIG9) for directory in figure.directories},
}
"""Figures by directory of the data set; Fig. 6 is of the same runs as Fig. 5."""


@dataclass(frozen=True)
class Published(tables.Results):
    """Tables of the published results."""

    runs: pl.DataFrame
    shares: pl.DataFrame
    processed: pl.DataFrame
    missing: str | None = None
    """Why there are none."""

    def count(self) -> str:
        """Repetitions, and how many succeeded."""
        ok = int((self.runs["status"] == "ok").sum())
        return f"{self.runs.height} repetitions, {ok} of them successful"


def published(directory: Path | None) -> Published:
    """What was imported into *directory*; nothing, with the reason, without one or where no import ended there."""
    there = directory if directory and (directory / SUMMARY_FILE).is_file() else None

    def read(name: str, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
        file = there / f"{name}.parquet" if there else None
        return pl.read_parquet(file) if file and file.is_file() else pl.DataFrame(schema=schema)

    return Published(
        read("runs", tables.RUNS),
        read("cpu_shares", tables.CPU_SHARES),
        read("processed", tables.PROCESSED),
        None if there else importers.missing_copy(SOURCE),
    )


def in_directory(frame: pl.DataFrame, directory: str) -> pl.DataFrame:
    """Runs whose experiment has this path in the data set."""
    return frame.filter((pl.col("experiment") == directory) | pl.col("experiment").str.ends_with(f"/{directory}"))


# ---- settings of single libraries ------------------------------------------------------------------------------------

SUMMARY: Mapping[str, pl.DataType] = {
    "source": pl.String(),  # highway, or where our runs are from
    "experiment": pl.String(),
    "cell": pl.String(),  # null for published runs
    "baseline_cell": pl.String(),
    "campaign": pl.String(),
    "testbed": pl.String(),
    "scale": pl.String(),
    "library": pl.String(),
    "label": pl.String(),
    "n": pl.Int64(),  # runs that count
    "failed": pl.Int64(),
    "mean": pl.Float64(),  # in the unit of the figure, as the next ones
    "median": pl.Float64(),
    "q1": pl.Float64(),
    "q3": pl.Float64(),
    "min": pl.Float64(),
    "max": pl.Float64(),
    "baseline": pl.String(),  # label
    "ratio": pl.Float64(),
    "ratio_low": pl.Float64(),
    "ratio_high": pl.Float64(),
    "aa_low": pl.Float64(),  # of the A/A arm, which published runs have not
    "aa_high": pl.Float64(),
    "problem": pl.String(),  # why there is no value
    "deviation": pl.String(),  # in which way it was not measured as the figure says
}
"""Columns of the table behind a figure: a row for each source, library and setting."""


def settings(figure: Figure, found: pl.DataFrame) -> pl.DataFrame:
    """The published runs behind a figure, with the columns `label`, `deviation` and `value`, in the unit of the figure.

    Where a library has runs that were measured as the setting says, the others are left out; where it has none, all are
    there, and say what is different.
    """
    used = labelled(figure, found)
    as_said = pl.col("deviation").is_null()
    return used.filter(as_said | ~as_said.any().over("client_library", "label"))


def labelled(figure: Figure, found: pl.DataFrame) -> pl.DataFrame:
    """As `settings`, with all runs.

    What a directory says of a run is compared with what the run itself tells.
    """
    parts = [in_directory(found, directory) for directory in figure.directories]
    used = pl.concat(parts).filter(pl.col("client_library") == pl.col("server_library"))
    labels = [_label(figure, row) for row in used.iter_rows(named=True)]
    told = [_contradicted(figure, label, row) for label, row in zip(labels, used.iter_rows(named=True), strict=True)]
    value = pl.col(figure.published_metric) * figure.scale
    if figure.per_gib:
        value = value * runs.BYTES_PER_GIB / pl.col("bytes")
    return used.with_columns(
        label=pl.Series(labels, dtype=pl.String),
        deviation=pl.Series(told, dtype=pl.String),
        value=pl.when(pl.col("status") == "ok").then(value),
    ).filter(pl.col("label").is_in(figure.labels))


_DECISIVE = re.compile(r"cipher|offload|(?<![a-z])(?:gso|gro|tso)(?![a-z])", re.IGNORECASE)
"""Parameters that a directory of Fig. 7 or 8 is named after."""


def _contradicted(figure: Figure, label: str | None, run: Mapping[str, Any]) -> str | None:
    """In which way a run was not measured as its directory says; None where that is told by the run itself."""
    if figure.labels not in (_AES, _OFFLOADS):
        return None
    found = []
    wanted, told = figure.aes_hardware.get(label or ""), run["aes_hardware"]
    if wanted is not None and told is not wanted:
        how = {True: "used", False: "not used", None: "switched off on one side, or not reported"}[told]
        found.append(f"AES instructions {how}")
    cipher, used = figure.ciphers.get(label or ""), run["cipher"]
    if cipher is not None and cipher != (used or AES):
        shown = f"its log has {used}" if used else "its log has no cipher that anything read"
        found.append(f"not shown to be {CIPHER_TITLES[cipher]}: {shown}")
    unread = set(_unread(run["unread_parameters"])) if run["unread_parameters"] else set()
    if used is not None:
        unread.discard("cipher")  # the side that decides has read it
    if names := sorted(name for name in unread if _DECISIVE.search(name)):
        found.append(f"nothing read the parameter {', '.join(names)}")
    return "; ".join(found) or None


def _label(figure: Figure, run: Mapping[str, Any]) -> str | None:
    if figure.labels == BUFFERS:
        size = run["client_receive_buffer"]
        return f"{size / DEFAULT_BUFFER:g}x" if size else None
    if figure.labels == _MACHINES:
        server = (run["testbed"] or "").partition("-")[0]
        native = run["client_flavour"] not in (None, "stock")
        return PAIRS_OF_HOSTS.get(server, server) + (NATIVE if native else "")
    ends = (directory for directory in figure.directories if f"/{run['experiment']}".endswith(f"/{directory}"))
    return figure.labels[figure.directories.index(next(ends))]


def published_summary(figure: Figure, found: pl.DataFrame) -> pl.DataFrame:
    """Rows of `SUMMARY` of the published runs; repetitions of all logdirs of an experiment are pooled."""
    used = settings(figure, found)
    rows = []
    for (library, label), group in sorted(used.group_by("client_library", "label"), key=lambda item: str(item[0])):
        values = _values(group)
        row: dict[str, Any] = {
            "source": SOURCE,
            "experiment": group["experiment"].sort()[0],
            "campaign": ", ".join(group["campaign"].unique().sort()),
            "testbed": ", ".join(group["testbed"].drop_nulls().unique().sort()),
            "scale": "published",
            "library": library,
            "label": label,
            "n": len(values),
            "failed": int((group["status"] != "ok").sum()),
        }
        if len(values):
            row |= _moments(values)
        else:
            row["problem"] = "no repetition succeeded" if row["failed"] else "its raw files do not show it"
        base = figure.baseline.get(str(label))
        row["deviation"] = "; ".join(group["deviation"].drop_nulls().unique().sort()) or None
        others = _values(used.filter((pl.col("client_library") == library) & (pl.col("label") == (base or ""))))
        if base and len(others) and len(values):
            row |= dict(
                zip(("baseline", "ratio", "ratio_low", "ratio_high"), (base, *ratio(values, others)), strict=True)
            )
        rows.append(row)
    return _summary(rows, figure)


Values = np.ndarray[Any, np.dtype[np.float64]]


def _values(group: pl.DataFrame) -> Values:
    return np.asarray(group["value"].drop_nulls().sort().to_numpy(), dtype=np.float64)


def _moments(values: Values) -> dict[str, float]:
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
    numbers = {"mean": values.mean(), "median": median, "q1": q1, "q3": q3, "min": values[0], "max": values[-1]}
    return {name: float(number) for name, number in numbers.items()}


def ratio(values: Values, baseline: Values) -> tuple[float, float | None, float | None]:
    """Ratio of two means, with its 95 % interval where both have two values; the values are not paired."""
    middle = float(values.mean() / baseline.mean())
    if min(len(values), len(baseline)) < 2:
        return middle, None, None
    return middle, *statistics.ratio_of_means(values, baseline, paired=False)


def own_campaigns(figure: Figure, table: pl.DataFrame) -> list[pl.DataFrame]:
    """Our runs behind a figure: the newest campaign, in Fig. 9 that of every testbed."""
    if figure.labels != _MACHINES:
        return [campaign for campaign in [runs.select_campaign(table, figure.experiment)] if not campaign.is_empty()]
    testbeds = table.filter(pl.col("experiment") == figure.experiment)["testbed"].drop_nulls().unique().sort()
    found = (runs.select_campaign(table, figure.experiment, testbed=testbed) for testbed in testbeds)
    return [campaign for campaign in found if not campaign.is_empty()]


def of_other_testbeds(raw: Path, experiment: str) -> pl.DataFrame:
    """Our runs of an experiment on the testbeds whose directories are beside *raw*, which is that of one."""
    beside = sorted(raw.absolute().parent.iterdir()) if raw.is_dir() else []
    parts = [
        runs.table(other, experiment)
        for other in beside
        if other.name not in (raw.name, "reference") and (other / experiment).is_dir()
    ]
    return pl.concat([pl.DataFrame(schema=runs.SCHEMA), *parts])


def own_summary(figure: Figure, campaigns: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Rows of `SUMMARY` of our campaigns, of libraries with themselves."""
    rows = [row for campaign in campaigns for row in _own_rows(figure, campaign)]
    return _summary(rows, figure)


def _own_rows(figure: Figure, campaign: pl.DataFrame) -> list[dict[str, Any]]:
    if figure.metric not in campaign.columns:
        return []
    value = pl.col(figure.metric).cast(pl.Float64) * figure.scale
    if figure.per_gib:
        value = value * runs.BYTES_PER_GIB / pl.col("bytes")
    if figure.counts:
        shown = campaign.with_columns(_shown=value, baseline=pl.lit(None, dtype=pl.String))
    else:
        shown = campaign.with_columns(_shown=pl.when(value > 0).then(value))  # there are no ratios of others
    table = comparison.figure_table(shown, "_shown")
    main = table.filter((pl.col("arm") == "main") & (pl.col("client_library") == pl.col("server_library")))
    source = dict(campaign.select("cell", "source").unique("cell", keep="last").rows())
    machines = {cell["cell"]: _machine(cell) for cell in main.to_dicts()}
    rows = []
    for cell in main.to_dicts():
        row = {name: cell.get(name) for name in SUMMARY}
        row |= {"source": source.get(cell["cell"]), "library": cell["client_library"]}
        row["baseline_cell"] = cell["baseline"]
        row["baseline"] = cell["baseline_label"] if cell["baseline_label"] != cell["label"] else None
        if figure.labels == _MACHINES:
            label, base = machines[cell["cell"]], machines.get(cell["baseline"])
            if base == label and cell["baseline"] not in (None, cell["cell"]):
                label = f"{label} ({cell['label']})"  # both are what the testbed's builds are for
            row |= {"label": label, "baseline": base if base != label else None}
        row["problem"] = None if cell["n"] else cell["unsupported"] or cell["failure"] or "no run has finished"
        rows.append(row)
    return rows


def _machine(cell: Mapping[str, Any]) -> str:
    """Testbed and, where it is not for every processor, build of a cell: `lab`, `lab*`, `lab x86-64-v3`."""
    level = cell["client_march"]
    return str(cell["testbed"]) + (NATIVE if level == march.NATIVE else f" {level}" if level else "")


def _summary(rows: Sequence[Mapping[str, Any]], figure: Figure) -> pl.DataFrame:
    order = {label: position for position, label in enumerate(figure.labels)}
    ordered = sorted(rows, key=lambda row: (row["library"], order.get(row["label"], len(order)), row["label"]))
    complete = [{name: row.get(name) for name in SUMMARY} for row in ordered]
    return pl.DataFrame(complete, schema=SUMMARY, orient="row")


# ---- every client with every server ----------------------------------------------------------------------------------

PAIR: Mapping[str, pl.DataType] = {
    "source": pl.String(),
    "experiment": pl.String(),
    "campaign": pl.String(),
    "testbed": pl.String(),
    "scale": pl.String(),
    "client_library": pl.String(),
    "server_library": pl.String(),
    "n": pl.Int64(),
    "failed": pl.Int64(),
    "mean": pl.Float64(),  # Mbit/s
    "mean_low": pl.Float64(),
    "mean_high": pl.Float64(),
    "receive_buffer": pl.Int64(),  # of the client, bytes, as really applied
    "deviation": pl.String(),  # in which way it was not measured as the figure says
}
"""Columns of the table of all published pairs: a row for each client and server."""


def published_pairs(found: pl.DataFrame, directory: str) -> pl.DataFrame:
    """Rows of `PAIR` of Fig. 3 or 10, by the directory of the experiment.

    Repetitions measured as the figure says count; where a pair has none, all do, and the row says what is different.
    """
    wanted = DEFAULT_BUFFER if directory == FIG3 else LARGE_BUFFER
    used = in_directory(found, directory).filter(pl.col("workload") == "bulk")
    rows = []
    for (client, server), pair in used.group_by("client_library", "server_library"):
        as_said = (pl.col("testbed") == HOSTS) & (pl.col("client_receive_buffer") == wanted)
        group = pair.filter(as_said)
        deviation = None
        if group.is_empty():
            group, deviation = pair, _deviation(pair, wanted)
        values = np.asarray(group["goodput_mbps"].drop_nulls().sort().to_numpy(), dtype=np.float64)
        low, high = statistics.mean_interval(values, 0) if len(values) > 1 else (None, None)
        rows.append(
            {
                "source": SOURCE,
                "experiment": pair["experiment"].sort()[0],
                "campaign": ", ".join(group["campaign"].unique().sort()),
                "testbed": ", ".join(group["testbed"].drop_nulls().unique().sort()),
                "scale": "published",
                "client_library": client,
                "server_library": server,
                "n": len(values),
                "failed": int((group["status"] != "ok").sum()),
                "mean": float(values.mean()) if len(values) else None,
                "mean_low": low,
                "mean_high": high,
                "receive_buffer": group["client_receive_buffer"].drop_nulls().max(),
                "deviation": deviation,
            }
        )
    return pl.DataFrame(rows, schema=PAIR, orient="row").sort("client_library", "server_library")


def _deviation(pair: pl.DataFrame, wanted: int) -> str:
    """What is different in all repetitions of a pair."""
    hosts = pair["testbed"].drop_nulls().unique().sort().to_list()
    sizes = pair["client_receive_buffer"].drop_nulls().unique().sort().to_list()
    found = []
    if sizes != [wanted]:
        found.append(f"receive buffer {', '.join(f'{size // 1024} KiB' for size in sizes) or 'unknown'}")
    if hosts != [HOSTS]:
        found.append(f"hosts {', '.join(hosts) or 'unknown'}")
    unread = [set(_unread(text)) for text in pair["unread_parameters"].unique().drop_nulls()]
    if names := sorted(set().union(*unread)):
        found.append(f"nothing read the parameter {', '.join(names)}")
    return "; ".join(found)


def _unread(parameters: str) -> list[str]:
    """Names of parameters that nothing read, of any role."""
    document = json.loads(parameters)
    return [name for by_role in document.values() for name in by_role]


# ---- perf samples ----------------------------------------------------------------------------------------------------

SHARE: Mapping[str, pl.DataType] = {
    "source": pl.String(),
    "experiment": pl.String(),
    "campaign": pl.String(),
    "testbed": pl.String(),
    "scale": pl.String(),
    "library": pl.String(),
    "role": pl.String(),
    "category": pl.String(),
    "n": pl.Int64(),
    "mean": pl.Float64(),  # %
    "median": pl.Float64(),
    "low": pl.Float64(),  # 95 % interval of the mean
    "high": pl.Float64(),
}
"""Columns of the table behind Fig. 4: a row for each source, library, role and category."""

CATEGORIES: Mapping[str, tuple[str, ...]] = {
    # name: those of the data set, of the whole host's samples; ours, of the endpoint's
    "Packet I/O": ("PACKET_IO", "packet-io"),
    "I/O": ("IO", "application"),
    "Crypto": ("CRYPTO", "packet-protection", "header-protection"),
    "Conn. mgmt.": ("CONN_MGMT", "connection-management"),
    "Kernel": ("kernel",),
    "Uncategorised": ("GENERAL", "uncategorised"),
}
"""Categories of Fig. 4, and what they are called in the two sources. The paper has no other work of the kernel."""


def published_shares(found: Published) -> pl.DataFrame:
    """Rows of `SHARE` of the published perf samples of libraries with themselves; a share is of all of the host's."""
    used = in_directory(found.runs, FIG4).filter(pl.col("client_library") == pl.col("server_library"))
    columns = ["origin", "experiment", "campaign", "testbed", "client_library", "repetition"]
    samples = found.shares.join(used.select(columns), on="origin")
    rows = []
    for name, kinds in CATEGORIES.items():
        part = samples.filter(pl.col("category").is_in(kinds))
        groups = sorted(part.group_by("client_library", "role"), key=lambda item: str(item[0]))
        for (library, role), group in groups:
            per_run = group.group_by("origin").agg(share=100 * pl.col("samples").sum() / pl.col("all_samples").first())
            values = np.asarray(per_run["share"].sort().to_numpy(), dtype=np.float64)
            low, high = statistics.mean_interval(values, 0) if len(values) > 1 else (None, None)
            rows.append(
                {
                    "source": SOURCE,
                    "experiment": group["experiment"][0],
                    "campaign": ", ".join(group["campaign"].unique().sort()),
                    "testbed": ", ".join(group["testbed"].drop_nulls().unique().sort()),
                    "scale": "published",
                    "library": library,
                    "role": role,
                    "category": name,
                    "n": len(values),
                    "mean": float(values.mean()),
                    "median": float(np.median(values)),
                    "low": low,
                    "high": high,
                }
            )
    return pl.DataFrame(rows, schema=SHARE, orient="row")


def own_shares(shares: pl.DataFrame, blocks: pl.DataFrame, label: str) -> pl.DataFrame:
    """Rows of `SHARE` of one variant of ours, from the tables of `quicbed.analysis.cpu_shares.profiled`."""
    cells = shares.filter((pl.col("label") == label) & (pl.col("client_library") == pl.col("server_library"))).unique(
        ["cell", "role"], maintain_order=True
    )
    rows = []
    for cell in cells.to_dicts():
        own = blocks.filter((pl.col("cell") == cell["cell"]) & (pl.col("role") == cell["role"]))
        for name, kinds in CATEGORIES.items():
            part = own.filter(pl.col("category").is_in(kinds)).group_by("block").agg(pl.col("share").sum())
            values = 100 * np.asarray(part["share"].sort().to_numpy(), dtype=np.float64)
            if not len(values):
                continue
            low, high = statistics.mean_interval(values, 0) if len(values) > 1 else (None, None)
            rows.append(
                {key: cell.get(key) for key in SHARE}
                | {"source": "own", "library": cell["library"], "category": name, "n": len(values)}
                | {"mean": float(values.mean()), "median": float(np.median(values)), "low": low, "high": high}
            )
    return pl.DataFrame(rows, schema=SHARE, orient="row").sort("library", "role", "category")


# ---- where processed.csv differs -------------------------------------------------------------------------------------


def differences(found: Published) -> pl.DataFrame:
    """Where ``processed.csv`` disagrees with the raw files: a row for each file, quantity and way.

    Columns: figure, file, quantity, problem, differing (repetitions), compared (repetitions with this quantity), and
    largest (relative difference, null where one of the two is missing).
    """
    keys = ["file", "quantity"]
    relative = (pl.col("processed") - pl.col("raw")).abs() / pl.max_horizontal(
        pl.col("processed").abs(), pl.col("raw").abs()
    )
    compared = found.processed.group_by(keys).agg(compared=pl.len())
    differing = (
        found.processed.filter(pl.col("problem").is_not_null())
        .with_columns(relative=relative)
        .group_by([*keys, "problem"])
        .agg(differing=pl.len(), largest=pl.col("relative").max())
    )
    figures = [_figure_of(file) for file in differing["file"]]
    return (
        differing.with_columns(figure=pl.Series(figures, dtype=pl.String))
        .join(compared, on=keys, how="left", nulls_equal=True)
        .select("figure", *keys, "problem", "differing", "compared", "largest")
        .sort("file", "quantity", "problem", nulls_last=True)
    )


def _figure_of(file: str) -> str | None:
    directory = f"/{PurePosixPath(file).parent}"
    for known, number in NUMBERS.items():
        parents = [known, *(str(parent) for parent in PurePosixPath(known).parents if len(parent.parts) > 1)]
        if any(directory.endswith(f"/{parent}") for parent in parents):
            return number
    return None


def changed_means(found: Published) -> pl.DataFrame:
    """Mean goodputs that the figures would have otherwise if they were drawn from ``processed.csv``, the most changed
    first.

    Columns: figure, pair, setting (directory), processed and raw (means in Mbit/s), processed_n, raw_n, change.
    """
    known = found.runs.select("origin", "experiment", "slug")
    keys = ["experiment", "slug"]
    means = (
        found.processed.filter(
            (pl.col("quantity") == "goodput_mbps") & ~pl.col("problem").is_in([NOT_THERE, MISSING]).fill_null(False)
        )
        .join(known, on="origin")
        .group_by(keys)
        .agg(
            processed=pl.col("processed").mean(),
            raw=pl.col("raw").mean(),
            processed_n=pl.col("processed").count(),
            raw_n=pl.col("raw").count(),
            differing=pl.col("problem").count(),
        )
        .filter(pl.col("differing") > 0)
        .with_columns(change=pl.col("processed") / pl.col("raw") - 1)
    )
    numbers = [
        next((number for known, number in NUMBERS.items() if f"/{name}".endswith(f"/{known}")), None)
        for name in means["experiment"]
    ]
    return means.with_columns(figure=pl.Series(numbers, dtype=pl.String)).sort(
        pl.col("change").abs(), *keys, descending=[True, False, False], nulls_last=True
    )
