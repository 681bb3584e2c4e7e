"""What the columns of tables mean, with units, for those who work with the tables themselves.

A column that is a key of run.json means what the model of a run says (`quicbed.store.record`), and one of what was
varied what the model of an experiment says (`quicbed.config.model`). What these leave to the name, and what is worked
out, is said here, once for all tables that have a column of this name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, get_args

import polars as pl
from polars.datatypes import DataTypeClass
from pydantic import BaseModel

from quicbed.config.model import Link, Variant
from quicbed.store import details, runs
from quicbed.store.record import Run

TABLES: Mapping[str, Mapping[str, pl.DataType]] = {"runs": runs.SCHEMA, **details.SCHEMAS}
"""Columns of the files ``artifacts/tables/<name>.parquet`` that the workflow makes of runs, by their names."""

ROWS = {
    "runs": "every run, whatever its status",
    "connections": "every connection of the handshake runs that succeeded",
    "primitives": "every cryptographic operation of a library that was timed alone, in each block",
    "handshakes": "every captured handshake",
    "pacing": "every kept point of the distribution of gaps or trains of a traced download",
    "floors": "every kept point of what a campaign's bare sender sent",
    "campaigns": "every file of a campaign's records",
    "unread": "every file beside runs that could not be read",
}
"""What has a row in each of them."""

_UNITS = (
    (r"_s_per_gib", "s/GiB"),
    (r"gib_per(_busy)?_cpu_s", "GiB/s"),
    (r"_per_s", "1/s"),
    (r"_mbps|_mbit", "Mbit/s"),
    (r"(^|_)bytes(_(client|server|initial|handshake|1rtt|retry))*|_receive_buffer|^mtu|^initial_size", "bytes"),
    (r"_percent|_cpu_samples", "%"),
    (r"_permille", "per mille"),
    (r"_ns", "ns"),
    (r"_us", "µs"),
    (r"_ms(_p\d+)?", "ms"),
    (r"_s", "s"),
    (r"^t_client_hello", "ns"),
    (r"^memory", "GiB"),
)
_MEANINGS = {
    # who measured, and what
    "testbed": "Name of the testbed (config/testbeds/).",
    "testbed_kind": "`local` or `ssh`.",
    "host": "Who measured: runs of two hosts are never compared.",
    "host_id": "The machine, as a digest.",
    "cpu_model": "The processor, with its generation and extensions where they are recorded.",
    "cpus": "Processors of the machine.",
    "kernel": "Release of the kernel.",
    "experiment": "Name of the experiment (config/experiments/).",
    "scale": "How much was measured: `tiny`, `quick` or `paper`.",
    "cell": "Id of the cell: two builds in one variant, as what.",
    "slug": "Readable name of the cell, as in names of directories.",
    "arm": "What the cell is for: `main`, `aa` (the baseline once more), `control`; others are never compared.",
    "label": "The variant, as in figures.",
    "baseline": "Id of the cell that this one is compared with.",
    "library": "Library of the client.",
    "flavour": "Flavour of the client's build.",
    "build": "Id of the client's build.",
    # what was done
    "workload": "Kind of transfer.",
    "block": "Number of the block, in which every cell is measured once. Null for warm-up runs and proofs.",
    "workload_bytes": "Content of each transfer.",
    "connections": "How many connections the run makes.",
    "status": "`ok`, `failed`, `unsupported`, or `unreadable` where run.json cannot be read.",
    "background_percent": "Competing traffic that was planned, of the rate of the link.",
    "server_pacing": "Pacing that the server reports.",
    "loss_seed": "Seed that says which frames are lost.",
    "reorder_seed": "Seed that determines which frames are reordered.",
    # what was measured
    "goodput_mbps": "8 x bytes / (last byte - request sent), at the client. Null for runs at the same time as another.",
    "ttfb_ms": "Time to first byte: from the ClientHello to when the client can send its request.",
    "ttfb_ms_p25": "Lower quartile over the connections of a run.",
    "ttfb_ms_p75": "Upper quartile over the connections of a run.",
    "ttfb_ms_p99": "99th percentile of connections that begin at a rate, counted from when they were to begin.",
    "first_byte_ms": "From the ClientHello to the first byte of content.",
    "confirmed_ms": "From the ClientHello to the handshake confirmed at the client (RFC 9001, 4.1.2).",
    "handshakes_per_s": "Connections divided by the time that all of them took, one after the other.",
    "bytes": "Content that was transferred; of a primitive the length of what it makes.",
    "gib_per_cpu_s": "Content by the processor time of both ends together.",
    "gib_per_busy_cpu_s": "Content by the processor time of the end that takes more of it.",
    "gap_ms_p25": "Lower quartile of the gaps between packets of the server.",
    "gap_ms_p75": "Upper quartile of the gaps between packets of the server.",
    "background_sent_mbps": "Competing traffic that was sent.",
    "background_received_mbps": "Competing traffic that arrived.",
    "rtt_mean_ms": "Mean round-trip time of pings before the run.",
    "rtt_deviation_ms": "Standard deviation of the round-trip times of pings before the run.",
    "rtt_within_limits": "Whether these pings found the link as planned.",
    "capture_packets": "Frames in the run's own capture.",
    "capture_lost": "Frames that this capture lacks.",
    # whether it counts
    "contaminated": "Whether something else disturbed the run; of a cell, how many such runs count.",
    "contamination": "The limits that the run exceeded, with `; ` between two.",
    "psi_cpu_some_s": "Time in which some program of the machine waited for a processor, while the run lasted.",
    "load_1m": "Load average of one minute before the run.",
    "foreign_cpu_share": "Share of all processor time that neither the ends nor what measures them used.",
    "pair": "Name that both runs of a pair at the same time share. Null for a run that was measured alone.",
    "pair_first": "Whether it was started first of its pair.",
    "pair_overlap": "Share of the longer transfer of the pair in which both transferred.",
    "counters": "Counters of the kernel and of network interfaces that moved during the run.",
    "started_at": "When the run was started.",
    "session_started_at": "Start of the campaign's newest session, which has the plan. Null where none left one.",
    "planned": "Whether that plan has the run's cell; the three columns that follow say as what.",
    "planned_arm": "Arm of the cell in that plan.",
    "planned_label": "Label of the cell in that plan.",
    "planned_baseline": "Baseline of the cell in that plan.",
    "source": "The archive or directory that the run was read from.",
    "origin": "Directory of the run, or its place in an archive: `quicbed show ORIGIN` shows it.",
    # connections and primitives
    "index": "Number of the connection in its run, from 0.",
    "t_client_hello": "CLOCK_MONOTONIC of the client's host. Null where times are taken from a capture.",
    "hello_retry_request": "Whether the server sent a HelloRetryRequest.",
    "kind": "Kind of what the row is about.",
    "name": "Its name; of a primitive the algorithm.",
    "operation": "What was timed, such as `encapsulate` or `sign`.",
    "implementation": "What computes it.",
    "n": "How many values there are: runs that count, or samples of a primitive.",
    "median_ns": "Median of the samples.",
    "mean_ns": "Mean of the samples.",
    "min_ns": "Shortest sample.",
    # captured handshakes
    "handshake_bytes": "UDP or TCP payload of both ends until the client's Finished.",
    "waits": "Round trips beyond the first.",
    "server_flights": "Flights of the server.",
    "round_trips_blocked": "Flights of the client that the server had to wait for (RFC 9000, 8.1).",
    "limit_hits": "How often the server had too little allowance for its next datagram (RFC 9000, 8.1).",
    "bytes_before_validation": "UDP payload in bytes that the server sent before the address was validated.",
    # pacing
    "quantity": "`gap_ns`, `train_packets`, or of a bare sender `deviation_ns` and `sender_deviation_ns`.",
    "value": "The value, in the unit in the name of the quantity.",
    "count": "How often it was found; trains are counted for every packet in them.",
    "method": "How the bare sender waited between packets.",
    "schedule": "Name of what it was to send.",
    "intended_train_packets": "Packets that it was to send without a gap.",
    "intended_gap_ns": "Gap that it was to leave after them.",
    # records
    "content": "The file, as text.",
    "problem": "What is wrong with which file.",
    # tables of figures
    "unsupported": "Why the cell cannot be measured. Null for one that can.",
    "mean": "Mean of the figure's metric over the runs that count.",
    "median": "Their median.",
    "q1": "Their lower quartile.",
    "q3": "Their upper quartile.",
    "min": "The smallest.",
    "max": "The largest.",
    "blocks": "Blocks in which the cell was tried.",
    "failed": "Runs that failed, or 1 for a cell whose proof failed.",
    "failure": "Why the last of them failed.",
    "repeated": "Contaminated runs that were repeated, so that they do not count.",
    "baseline_label": "Label of the cell that this one is compared with.",
    "ratio": "Geometric mean of the ratios to the baseline within blocks.",
    "ratio_low": "Lower end of its 95 % interval.",
    "ratio_high": "Upper end of its 95 % interval.",
    "ratio_n": "Blocks that have both cells.",
    "ratio_deviation": "Standard deviation of the logarithm of the ratio over blocks.",
    "aa_ratio": "The ratio of the A/A arm of the same library: of equal cells.",
    "aa_low": "Lower end of its 95 % interval.",
    "aa_high": "Upper end of its 95 % interval.",
    "block_s": "Time that all runs of the cell's libraries took in a block.",
}

_PATTERNS = (
    (r"(client|server)_library", "Library of the {0}."),
    (r"(client|server)_flavour", "Flavour of the {0}'s build."),
    (r"(client|server)_version", "Version of the {0}'s library."),
    (r"(client|server)_build", "Id of the {0}'s build."),
    (r"(client|server)_march", "Instruction set of a {0}'s build that is not for every processor."),
    (r"(client|server)_negotiated_(\w+)", "What the {0}'s TLS library reports of it."),
    (r"(client|server)_cpu_s", "Processor time of the {0}, for all transfers of the run."),
    (r"(client|server)_cpu_ms", "Processor time of the {0} for a connection."),
    (r"(client|server)_cpu_s_per_gib", "Processor time of the {0} by content."),
    (r"(client|server)_cpu_percent", "Processor time of the {0} while the client ran; 100 is one processor."),
    (r"(client|server)_cpu_samples", "Processor time of the {0} in every whole second of the run."),
    (r"(client|server)_run_delay_s", "Time in which the {0} was ready to run and had no processor."),
    (r"(client|server)_max_rss_bytes", "Largest resident memory of the {0}."),
    (r"(client|server)_receive_buffer", "Receive buffer of the {0}'s socket that the kernel reports."),
    (r"(client|server)_(gso|gro)", "Whether the {0} used it, as it reports."),
    (r"(client|server)_mean_frame_bytes", "Mean size of the {0}'s frames in a capture."),
    (r"(client|server)_packets_sent", "Packets that the {0}'s library counts as sent."),
    (r"(client|server)_packets_received", "Packets that the {0}'s library counts as received."),
    (r"(client|server)_packets_lost", "Packets that the {0}'s library counts as lost; of handshakes their median."),
    (r"(client|server)_handshake_packets_sent", "Packets that the {0} sent in the handshake, as its library counts."),
    (r"(client|server)_handshake_bytes_sent", "Bytes that the {0} sent in the handshake, as its library counts."),
    (r"(client|server)_udp_packets_sent", "Datagrams that the {0}'s host sent; what one call sends with GSO is one."),
    (r"(client|server)_udp_packets_received", "Datagrams that the {0}'s host received."),
    (
        r"(client|server)_udp_receive_buffer_errors",
        "Datagrams that the {0}'s host dropped as a receive buffer was full.",
    ),
    (r"frames_lost_to_(client|server)", "Frames to the {0} that the link was asked to lose."),
    (r"frames_held_to_(client|server)", "Frames to the {0} that the link held to put them back."),
    (r"frames_put_back_to_(client|server)", "Frames to the {0} that the link sent later than others."),
    (r"frames_flushed_to_(client|server)", "Such frames to the {0} that it sent because no more arrived."),
    (r"packets_(client|server)", "Initial, Handshake and Retry packets of the {0}, or its TCP segments with payload."),
    (r"datagrams_(client|server)", "Datagrams of the {0} that have these packets."),
    (r"bytes_(client|server)", "UDP or TCP payload of the {0}, padding and retransmissions included."),
    (r"ack_only_packets_(client|server)", "Packets of the {0} with nothing but acknowledgement and padding."),
    (r"packets_(initial|handshake|1rtt|retry)_(client|server)", "Packets of the {1} of type {0}."),
    (
        r"bytes_(initial|handshake|1rtt|retry)_(client|server)",
        "Bytes of the packets of the {1} of type {0}, without padding outside them.",
    ),
    (r"tls_(\w+)_bytes", "Size of this message, or what it has of this name; null where it was not seen."),
    (r"cpu_((ratio|aa)\w*)", "As `{0}`, of GiB by processor time instead of goodput."),
)


class Described(NamedTuple):
    """A column; the unit is empty where there is none."""

    column: str
    kind: str
    unit: str
    meaning: str


def columns(schema: Mapping[str, pl.DataType]) -> list[Described]:
    """What the columns of a table are; the meaning is empty where nothing tells it, as of a column of one's own."""
    return [Described(name, _kind(dtype), _unit(name, dtype), _meaning(name)) for name, dtype in schema.items()]


def _kind(dtype: pl.DataType | DataTypeClass) -> str:
    if dtype.is_integer():
        return "whole number"
    if dtype.is_float():
        return "number"
    if isinstance(dtype, pl.List):
        return f"list of {_kind(dtype.inner)}"
    named = ((pl.String, "text"), (pl.Boolean, "true, false"), (pl.Datetime, "time (UTC)"))
    return next((name for kind, name in named if dtype == kind), "structure")


def _unit(name: str, dtype: pl.DataType) -> str:
    if dtype in (pl.Boolean, pl.Datetime):
        return ""
    return next((unit for pattern, unit in _UNITS if re.search(f"(?:{pattern})$", name)), "")


def _meaning(name: str) -> str:
    if name in _MEANINGS:
        return _MEANINGS[name]
    for pattern, meaning in _PATTERNS:
        if found := re.fullmatch(pattern, name):
            return meaning.format(*found.groups())
    return _OF_RUNS.get(name, "")


def _of_run(key: str) -> str:
    """What the models say of a key of run.json."""
    first, _, name = key.partition(".")
    planned = {"variant": (Variant,), "link": (Variant, Link)}.get(first, ())
    return next((found for one in planned if (found := _of(one, name))), "") or _of(Run, key)


def _of(model: type[BaseModel] | None, key: str) -> str:
    meaning = ""
    for part in key.split("."):
        field = model.model_fields.get(part) if model is not None else None
        meaning = (field.description or "") if field is not None else ""
        model = _model(field.annotation) if field is not None else None
    return " ".join(meaning.split())


def _model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model(one)) is not None), None)


_OF_RUNS = {column.name: _of_run(column.key) for column in runs.COLUMNS}
