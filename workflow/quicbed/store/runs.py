"""Raw runs read into one tidy table.

A run is one directory below ``raw/<testbed>/`` with a ``run.json`` in it, or the same tree in an
archive below ``raw/reference/``. The table has one row for every run, whatever its status; a file
that cannot be read becomes a row with the status ``unreadable`` and the reason, so that nothing
is left out silently.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any, get_args
from urllib.parse import quote, urlencode

import polars as pl

from quicbed.base import durable, untrusted
from quicbed.base.models import Count, Integer, Number, Positive
from quicbed.base.untrusted import UntrustedError
from quicbed.plan.arms import ARMS
from quicbed.plan.host import FACTS, Host
from quicbed.store import provenance, walk
from quicbed.store.campaign import Session
from quicbed.store.paths import RAW_VARIABLE, RUN_FILE, TABLE_VARIABLE
from quicbed.store.record import ROLES, Run, RunsError

UNREADABLE = "unreadable"
BYTES_PER_GIB = 2**30


@dataclass(frozen=True)
class Column:
    """One column of the table and where its value stands in run.json."""

    name: str
    dtype: pl.DataType
    key: str


_DTYPES = {Integer: pl.Int64(), Count: pl.Int64(), Number: pl.Float64(), Positive: pl.Float64(), bool: pl.Boolean()}
"""Types of columns, by those of keys; all others are text."""


def _columns(part: str, keys: str, prefix: str = "") -> list[Column]:
    """Columns of *keys* below a part of run.json, with a space between two, and of the types in its model.

    Each one has the *prefix* and the name of its key, or the name behind its key and a colon.
    """
    model: Any = Run
    for name in filter(None, part.split(".")):
        model = _plain(model.model_fields[name].annotation)
    found = []
    for name, _, column in (one.partition(":") for one in keys.split()):
        dtype = _DTYPES.get(_plain(model.model_fields[name].annotation), pl.String())
        found.append(Column(column or prefix + name, dtype, f"{part}.{name}".lstrip(".")))
    return found


def _plain(annotation: Any) -> Any:
    """The type of a key, without that it may be null."""
    return next((one for one in get_args(annotation) if one is not NoneType), annotation)


# the model says what they mean; `tabled` and `_identified` replace some of what testbeds record
COLUMNS: list[Column] = [
    *_columns(
        "testbed",
        "name:testbed kind:testbed_kind host_id cpu_model cpus microcode kernel memory processor extensions",
    ),
    *_columns("", "experiment campaign scale"),
    *_columns("study", "digest:study"),
    *_columns("", "block order attempt seed"),
    *_columns("cell", "id:cell slug arm label baseline"),
    *_columns("client", "library flavour"),
    *_columns("client", "library flavour version build", "client_"),
    *_columns("server", "library flavour version build", "server_"),
    *_columns("variant", "cipher aead header_protection group signature chain tls_version alpn retry initial_size"),
    *_columns("link", "rtt_ms mode:link_mode mtu rate_mbit"),
    *_columns("workload", "kind:workload"),
    *_columns("variant", "page loaded_by visit video rate_trace"),
    *_columns("workload", "bytes:workload_bytes connections"),
    *_columns("", "status reason contaminated"),
    *_columns(
        "metrics",
        "goodput_mbps throughput_mbps ttfb_ms ttfb_ms_p25 ttfb_ms_p75 first_byte_ms confirmed_ms connection_ms "
        "page_first_byte_ms page_load_ms load_event_ms largest_contentful_paint_ms startup_delay_ms bit_rate_mbps "
        "download_rate_mbps quality_switches stalls stall_s handshakes_per_s client_cpu_ms server_cpu_ms bytes "
        "client_cpu_s server_cpu_s wall_s overhead_s",
    ),
    *_columns("host.run_delay_s", "client:client_run_delay_s server:server_run_delay_s"),
    *_columns("host", "psi_cpu_some_s load_1m foreign_cpu_share"),
    *_columns("evidence.client", "cipher group signature tls_version aead header_protection", "client_negotiated_"),
    *_columns("evidence.server", "cipher group signature tls_version aead header_protection", "server_negotiated_"),
    *_columns("evidence", "proof unproven"),
    *_columns("metrics", "client_mean_frame_bytes server_mean_frame_bytes"),
    *_columns("variant", "receive_buffer:asked_receive_buffer aes_hardware"),
    *_columns("variant.background", "percent:background_percent"),
    *_columns("metrics", "background_sent_mbps background_received_mbps"),
    *_columns("host.options.client", "receive_buffer", "client_"),
    *_columns("host.options.server", "receive_buffer", "server_"),
    *_columns("variant", "offloads pacing gso gro io io_at congestion_control qdisc"),
    *_columns("host.options.server", "pacing", "server_"),
    *_columns("metrics", "dropped_packets traced_packets gap_ms gap_ms_p25 gap_ms_p75 packets_in_trains_to_5"),
    *_columns("host.options.client", "browser gro", "client_"),
    *_columns("host.options.server", "gso", "server_"),
    *_columns("host.options.client", "xdp", "client_"),
    *_columns("host.options.server", "xdp", "server_"),
    *_columns("link", "loss_percent"),
    *_columns("host", "loss_seed"),
    *_columns("link", "reorder_permille reorder_packets"),
    *_columns("host", "reorder_seed"),
    *_columns("host.capture", "packets:capture_packets lost:capture_lost"),
    *_columns("host.ping", "mean_ms:rtt_mean_ms deviation_ms:rtt_deviation_ms within_limits:rtt_within_limits"),
    *_columns("host.cpu.client", "percent", "client_cpu_"),
    *_columns("host.cpu.server", "percent", "server_cpu_"),
    *_columns(
        "metrics",
        "client_packets_sent client_packets_received client_packets_lost server_packets_sent "
        "server_packets_received server_packets_lost client_ack_packets",
    ),
    *_columns("client", "march", "client_"),
    *_columns("server", "march", "server_"),
    *_columns("client", "external", "client_"),
    *_columns("server", "external", "server_"),
    *_columns("client", "times", "client_"),
    *_columns("metrics", "start_share"),
    *_columns("variant", "load"),
    *_columns("workload", "rate_per_s"),
    *_columns("variant", "processors"),
    *_columns("workload", "copies"),
    *_columns("variant", "held"),
    *_columns(
        "metrics",
        "memory_none_bytes memory_held_bytes memory_per_connection_bytes ttfb_ms_p99 late_ms_p99 late_share "
        "most_in_flight pacing_precision_us",
    ),
]
"""Columns taken from run.json as they are; units are in the names."""

_UDP = {
    "udp_packets_sent": "udp.OutDatagrams",
    "udp_packets_received": "udp.InDatagrams",
    "udp_receive_buffer_errors": "udp.RcvbufErrors",
}
"""Counters of a whole host while a run lasts; the kernel counts what one call sends with GSO as one datagram."""

_LINK = {
    f"frames_{name}_to_{to}": f"link.{key}_to_{to}"
    for name, key in (
        ("lost", "lost"),
        ("held", "reorder_held"),
        ("put_back", "reorder_put_back"),
        ("flushed", "reorder_flushed"),
    )
    for to in ("client", "server")
}
"""Counters of a link that loses frames or puts them back."""

MOVED = pl.List(
    pl.Struct({"role": pl.String(), "tool": pl.String(), "counter": pl.String(), "delta": pl.Int64()}),
)
"""Counters of netstat and ``ethtool -S`` that moved during a run."""

DERIVED: dict[str, pl.DataType] = {
    "host": pl.String(),  # who measured (`quicbed.plan.host.Host.id`); runs of two are never compared
    "contamination": pl.String(),  # the gates a run went over, joined by "; "
    "client_cpu_s_per_gib": pl.Float64(),
    "server_cpu_s_per_gib": pl.Float64(),
    "gib_per_cpu_s": pl.Float64(),  # of a download, by the processor time of both ends together
    "gib_per_busy_cpu_s": pl.Float64(),  # by the processor time of the end that takes more: what limits goodput
    "pair": pl.String(),  # what both runs of a concurrent pair share; null of a run that was measured separately
    "pair_first": pl.Boolean(),  # whether it was started first
    "pair_overlap": pl.Float64(),  # share of the longer transfer in which both transferred
    "server_max_rss_bytes": pl.Int64(),
    "client_cpu_samples": pl.List(pl.Float64()),  # percent of a processor in every whole second
    "server_cpu_samples": pl.List(pl.Float64()),
    **{f"{role}_{name}": pl.Int64() for role in ("client", "server") for name in _UDP},
    # frames that the link was asked to lose; to put back, so that it held them; those that it sent later; and of these,
    # those that it sent because no more frames arrived
    **dict.fromkeys(_LINK, pl.Int64()),
    "counters": MOVED,
    "started_at": pl.Datetime("us", "UTC"),
    # from the newest session of the run's campaign; null when no session left a plan
    "session_started_at": pl.Datetime("us", "UTC"),
    "planned": pl.Boolean(),  # whether that session's plan has the run's cell, and if so as what:
    "planned_arm": pl.String(),
    "planned_label": pl.String(),
    "planned_baseline": pl.String(),
    "source": pl.String(),  # the archive, or the directory, the run was read from
    "origin": pl.String(),  # the run's directory, relative to the parent of raw/
}
"""Columns worked out here."""

SCHEMA: dict[str, pl.DataType] = {column.name: column.dtype for column in COLUMNS} | DERIVED

SORT = [
    "testbed",
    "experiment",
    "host",
    "campaign",
    "source",
    "block",
    "order",
    "attempt",
    "cell",
    "origin",
]
"""A total order (origins are unique), so that the same runs always give the same file."""

_VALUES = {column.name: attrgetter(column.key) for column in COLUMNS}


def scan(root: Path, experiment: str = "") -> Iterator[tuple[str, Run | RunsError]]:
    """Every run below *root* (see `walk.walk`) with its origin, in the order of the paths.

    A run that cannot be read comes as a `RunsError`, and so does what is damaged.
    """
    for place in walk.walk(root, {RUN_FILE}, experiment=experiment):
        yield from read(place)


def read(place: walk.Place) -> Iterator[tuple[str, Run | RunsError]]:
    """The runs of a place, as `scan`."""
    if place.damage is not None:
        many = f"damaged archive, {len(place.runs)} runs read: " if place.is_archive else ""
        yield place.origin, RunsError(f"{many}{place.damage}")
    elif place.is_archive and not place.runs:
        yield place.origin, RunsError(f"archive without a {RUN_FILE}")
    for origin, files in place.runs.items():
        content = files[RUN_FILE]
        yield origin, _told(content) if isinstance(content, UntrustedError) else _run(content)


def _told(error: UntrustedError) -> RunsError:
    return RunsError(f"{RUN_FILE}: {error}")


def _run(content: bytes) -> Run | RunsError:
    try:
        return Run.parse(content)
    except RunsError as error:
        return error


def row(origin: str, run: Run) -> dict[str, Any]:
    """The row of one run; a `RunsError` names the counter that is none."""
    values: dict[str, Any] = {name: value(run) for name, value in _VALUES.items()}
    values["host"] = run.testbed.host.id
    values["contaminated"] = bool(run.contaminated)
    values["contamination"] = "; ".join(run.contamination) or None
    if run.together is not None:
        values |= {f"{role}_cpu_s": getattr(run.together, f"{role}_cpu_s") for role in ROLES}
    for role in ROLES:
        cpu, received = values[f"{role}_cpu_s"], values["bytes"]
        values[f"{role}_cpu_s_per_gib"] = cpu * BYTES_PER_GIB / received if cpu and received else None
        values[f"{role}_cpu_samples"] = getattr(run.host.cpu, role).samples
    spent = [values[f"{role}_cpu_s_per_gib"] for role in ROLES]
    values["gib_per_cpu_s"] = 1 / sum(spent) if all(spent) else None
    values["gib_per_busy_cpu_s"] = 1 / max(spent) if all(spent) else None
    values["server_max_rss_bytes"] = (run.host.max_rss_bytes or {}).get("server")
    values |= _counted(run.host.delta)
    values["started_at"] = run.started_at
    if (pair := run.together) is not None:
        # what shares its processors with another run has no goodput of its own
        values |= {"goodput_mbps": None, "pair": pair.pair, "pair_first": pair.first, "pair_overlap": pair.overlap}
    values["source"] = _source(origin)
    values["origin"] = origin
    return values


def _counted(delta: Mapping[str, float | None]) -> dict[str, Any]:
    """What the kernel counted while a run lasted."""
    values: dict[str, Any] = {name: _count(delta, key) for name, key in _LINK.items()}
    for role in ROLES:
        values |= {f"{role}_{name}": _count(delta, f"{role}.{key}") for name, key in _UDP.items()}
    parts = ((key.split(".", 2), key) for key in sorted(delta))
    moved = [
        {"role": part[0], "tool": part[1], "counter": part[2], "delta": _count(delta, key)}
        for part, key in parts
        if len(part) == 3 and part[1] in ("netstat", "ethtool")
    ]
    return values | {"counters": moved or None}


def _count(delta: Mapping[str, float | None], key: str) -> int | None:
    value = delta.get(key)
    if value is not None and value != int(value):
        raise RunsError(f"{RUN_FILE}: key 'host.delta': '{key}' is {value!r:.60}, no count")
    return None if value is None else int(value)


def _source(origin: str) -> str:
    """The archive, or ``raw/<testbed>`` of ``raw/<testbed>/<experiment>/<campaign>/<block>/<run>``."""
    return origin.partition("!")[0] if "!" in origin else "/".join(origin.split("/")[:2])


def table(root: Path, experiment: str = "") -> pl.DataFrame:
    """One row a run below *root* (see `scan`), with the columns and the order of this module.

    In what the workflow runs, it is the file that is `collected`.
    """
    if not experiment and (made := collected(root)) is not None:
        return read_parquet(made, SCHEMA)
    told, campaigns = [], provenance.Found()
    for place in walk.walk(root, {RUN_FILE}, experiment=experiment, records=True):
        told += [values_of(origin, run) for origin, run in read(place)]
        campaigns.add(place)
    return tabled(told, campaigns.sorted())


def values_of(origin: str, run: Run | RunsError) -> dict[str, Any]:
    """The row of one run, but for what is planned; of one that cannot be read, why."""
    try:
        if isinstance(run, RunsError):
            raise run
        return row(origin, run)
    except RunsError as error:
        return unread(origin, str(error))


def unread(origin: str, reason: str) -> dict[str, Any]:
    """The row of a run that does not count."""
    return {
        "status": UNREADABLE,
        "reason": reason,
        "contaminated": False,
        "source": origin.partition("!")[0],
        "origin": origin,
    }


def tabled(rows: Sequence[dict[str, Any]], campaigns: Sequence[provenance.Records]) -> pl.DataFrame:
    """The table of runs, from their rows (`values_of`) and the records of their campaigns."""
    plans = {one.origin: one.newest for one in campaigns}
    sessions: dict[str, list[Session]] = {}
    for one in campaigns:
        sessions.setdefault(_source(one.origin), []).extend(one.sessions.values())
    first: dict[tuple[object, ...], str] = {}
    for values in rows:
        if values["status"] != UNREADABLE and values["arm"] != "proof":
            # as where a campaign was packed and its directory is there too; proofs are packed with all that need them
            own = PurePosixPath(values["origin"].replace("!", "/")).parts[-3:]
            identity = ("testbed", "host_id", "experiment", "campaign", "cell", "started_at")
            known = (*(values[name] for name in identity), *own)
            before = first.setdefault(known, values["origin"])
            if before != values["origin"]:
                reason = f"is the same run as {before}, which counts; move one of both away"
                values.update(dict.fromkeys(values) | unread(values["origin"], reason))
        if values["status"] != UNREADABLE and values["memory"] is None:
            values.update(_identified(values, sessions.get(values["source"], [])))
        # <campaign>/<block, excluded or warm-up>/<run>, or <campaign>/<block>/<pair>/<run>
        above = PurePosixPath(values["origin"]).parents
        plan = next((plans[str(one)] for one in above if str(one) in plans), None)
        if plan and values["status"] != UNREADABLE:
            values.update(_planned(plan, values["cell"]))
        if values["status"] != UNREADABLE:
            values["cpu_model"] = Host(**{name: values[name] for name in FACTS}).described
    complete = [{name: values.get(name) for name in SCHEMA} for values in rows]
    return pl.DataFrame(complete, schema=SCHEMA, orient="row").sort(SORT, nulls_last=True)


def collected(root: Path) -> Path | None:
    """The table that the workflow has made of the runs below *root*: QUICBED_TABLE, of the runs in QUICBED_RAW."""
    made, of = os.environ.get(TABLE_VARIABLE), os.environ.get(RAW_VARIABLE)
    return Path(made) if made and of and root.resolve() == Path(of).resolve() else None


def read_parquet(file: Path, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The table with this *schema* in a file that `write_parquet` of this version wrote."""
    try:
        with untrusted.opened(file, None, links=True):  # not what is waited for
            found = pl.read_parquet(file)
    except (OSError, UntrustedError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0].removeprefix("cannot be read: ")
        raise RunsError(f"{file}: cannot be read: {reason}; run `quicbed tables` again") from None
    if dict(found.schema) != dict(schema):
        raise RunsError(f"{file}: was written by another version; run `quicbed tables` again")
    return found


def _identified(values: Mapping[str, Any], sessions: Sequence[Session]) -> dict[str, Any]:
    """The columns that say who measured a run, of one whose run.json is from before it said all of it.

    What it does not say is taken from the session that measured it: the last one of the same machine, processor and
    kernel in this archive or directory of a testbed that had begun. Where none had, as of a proof that was made for
    another experiment, from the first.
    """
    own = Host(**{name: values[name] for name in FACTS})
    same = (own.host_id, own.cpu_model, own.kernel)
    hosts = sorted(((one.started_at, one.host) for one in sessions), key=itemgetter(0))
    alike = [(began, host) for began, host in hosts if (host.host_id, host.cpu_model, host.kernel) == same]
    begun = [one for one in alike if values["started_at"] is not None and one[0] <= values["started_at"]]
    if alike:
        _, told = begun[-1] if begun else alike[0]
        own = replace(own, microcode=own.microcode or told.microcode, memory=told.memory)
    return asdict(own) | {"host": own.id}


def _planned(plan: Session, cell: str) -> dict[str, Any]:
    """The columns that say what the newest session makes of a run's cell."""
    planned = next((one for one in plan.cells if one.id == cell), None)
    values: dict[str, Any] = {"session_started_at": plan.started_at, "planned": planned is not None}
    if planned is not None:
        values |= {
            "planned_arm": planned.arm,
            "planned_label": planned.label,
            "planned_baseline": planned.baseline,
        }
    return values


def problems(table: pl.DataFrame) -> list[str]:
    """One line for every file that could not be read, naming it."""
    bad = table.filter(pl.col("status") == UNREADABLE).select("origin", "reason")
    return [f"{origin}: {reason}" for origin, reason in bad.rows()]


_ROOM_BYTES = 16 << 20


def selection(campaign: str | None, *cells: str, **chosen: str) -> str:
    """The end of an address: what selects runs of a campaign, or of cells of it, on the report's page of runs.

    *chosen* are other filters of the page: experiment, library, label, arm, status, host, run.
    """
    told = {"campaign": campaign, "cell": ",".join(dict.fromkeys(cells)), **chosen}
    return urlencode({key: value for key, value in told.items() if value}, safe=",", quote_via=quote)


def write_parquet(frame: pl.DataFrame, out: Path) -> None:
    """Write *frame* so that a reader never sees half a file; equal frames give equal bytes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.replacing(out) as partial:
        try:
            with partial.open("wb") as file:
                frame.write_parquet(file, compression="zstd", statistics=True)
        except pl.exceptions.PolarsError as error:
            with partial.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)  # says so where the disk is full
            raise OSError(errno.EIO, f"cannot be written: {error}", str(out)) from None


def write_csv(frame: pl.DataFrame, out: Path) -> None:
    """Write *frame* for people and spreadsheets.

    An apostrophe stands before text that spreadsheets would take for a formula and carry out (CWE-1236).
    """
    safe = []
    for name in (name for name, dtype in frame.schema.items() if dtype == pl.String):
        text = pl.col(name)
        safe.append(pl.when(text.str.contains(r"^[=+@\t\r-]")).then("'" + text).otherwise(text).alias(name))
    durable.write_text(out, frame.with_columns(safe).write_csv(float_precision=6))


def without(table: pl.DataFrame, campaigns: Iterable[tuple[str, str]]) -> pl.DataFrame:
    """*table* without the runs of campaigns, given by experiment and id, that are not to count."""
    left_out = pl.DataFrame(list(campaigns), schema={"experiment": pl.String, "campaign": pl.String}, orient="row")
    return table.join(left_out, on=["experiment", "campaign"], how="anti", maintain_order="left")


def select_campaign(
    table: pl.DataFrame,
    experiment: str,
    *,
    testbed: str | None = None,
    campaign: str | None = None,
) -> pl.DataFrame:
    """The runs of one campaign of *experiment*: the one started last, unless one is named.

    A campaign is started anew by every session, also by one that finds nothing left to measure;
    without records of sessions its newest run counts. Arm, label and baseline of a cell are those
    of the newest session's plan, which may have changed since the run.

    A figure shows one campaign; runs of two campaigns, hosts, studies or sources are not mixed, with one exception. An
    external endpoint is measured where its folder is: what the campaign lacks of it is from the newest campaign of
    external endpoints alone, on a testbed of the same name and at the same scale. These runs come last. They share no
    cell, baseline or A/A arm with the others.

    Empty when there are no runs, or none of a cell that is still planned. Warm-up runs are left out.
    """
    runs = table.filter((pl.col("experiment") == experiment) & pl.col("arm").is_in(ARMS))
    if testbed is not None:
        runs = runs.filter(pl.col("testbed") == testbed)
    if campaign is not None:
        runs = runs.filter(pl.col("campaign") == campaign)
    identity = ["testbed", "host", "campaign", "scale", "source"]
    measured = runs.filter(pl.col("block").is_not_null())
    if measured.is_empty():
        return measured
    campaigns = (
        measured.group_by(identity)
        .agg(pl.col("session_started_at").max(), pl.col("started_at").max(), external=_EXTERNAL.all())
        .with_columns(_newest=pl.coalesce("session_started_at", "started_at"))
        .sort(["_newest", "started_at", *identity], nulls_last=[False, False, *[True] * len(identity)])
    )
    alike = campaigns.join(
        campaigns.tail(1), on=["testbed", "scale"], how="semi", nulls_equal=True, maintain_order="left"
    )
    # first that of the project's own libraries, then those of external endpoints alone, from the newest on
    order = pl.concat([alike.filter(~pl.col("external")).tail(1), alike.filter("external").reverse()])
    parts: list[pl.DataFrame] = []
    taken: set[str] = set()
    for one in order.select(identity).iter_slices(1):
        part = _as_planned(runs.join(one, on=identity, how="semi", nulls_equal=True))
        if parts:
            part = part.filter(_has_external(set(_externals(part)) - taken))
        taken |= set(_externals(part))
        parts.append(part)
    return pl.concat(parts)


_EXTERNAL = pl.any_horizontal(f"{role}_external" for role in ROLES).fill_null(value=False)


def _externals(table: pl.DataFrame) -> list[str]:
    """The libraries of runs that are external endpoints."""
    return [name for role in ROLES for name in table.filter(pl.col(f"{role}_external"))[f"{role}_library"].unique()]


def _has_external(libraries: Collection[str]) -> pl.Expr:
    """Whether an end of a run is one of these external endpoints."""
    return pl.any_horizontal(
        pl.col(f"{role}_external") & pl.col(f"{role}_library").is_in(list(libraries)) for role in ROLES
    )


def _as_planned(campaign: pl.DataFrame) -> pl.DataFrame:
    """A campaign with the arms, labels and baselines of its newest session; empty if no planned cell was measured."""
    if campaign.filter(pl.col("block").is_not_null() & pl.col("planned").fill_null(True)).is_empty():
        return campaign.clear()
    # a session that plans a cell as something else than it was measured as is not believed
    planned = pl.col("planned") & pl.col("planned_arm").is_in(ARMS)
    return campaign.with_columns(
        pl.when(planned).then(f"planned_{name}").otherwise(name).alias(name) for name in ("arm", "label", "baseline")
    ).sort(SORT, nulls_last=True)
