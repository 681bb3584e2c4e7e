"""Whether time to first byte is additive, shown out of sample; and what a pair that was never measured should take.

**Model.** ``TTFB = crypto + a + b * bytes + c * waits + RTT * flights`` as in `quicbed.analysis.ttfb`, but of a target
nothing is taken from its own handshakes: *crypto* is the sum of its primitives as timed alone, bytes and packets follow
from the sizes of its key shares, certificate and signature, and what is fitted (a, b, c and the lines below) comes from
other handshakes of the library.

**Bytes and packets.** A ClientHello fills datagrams of `DATAGRAM` bytes (RFC 9000, 14.1), over TCP segments. What else
either side sends, and the packets for it, are each a straight line over the bytes of the server's key share,
certificate and signature, with neither end below zero.

**Round trips.** A server sends at most three times what it received until the address is validated (RFC 9000, 8.1), and
a congestion window from ten datagrams on that grows by what is acknowledged (RFC 9002, 7.2 and 7.3.1; RFC 6928 for
TCP). Each flight beyond the first takes a round trip; waiting for the address takes c besides.

**Interval.** Out of sample, measured over predicted is known for many cells of a library. The 95 % prediction interval
is the predicted value times or divided by the ratio that 95 % of them keep (split conformal prediction: Lei et al.,
"Distribution-Free Predictive Inference for Regression", JASA 113(523), 2018, sec. 2.2). Round trips are not scaled:
for each, the interval is longer by the least and the most that handshakes with delay took beyond their prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from quicbed.analysis import comparison, ttfb
from quicbed.base.errors import QuicbedError
from quicbed.base.statistics import CONFIDENCE
from quicbed.config import algorithms
from quicbed.plan.arms import PRIMITIVES
from quicbed.store import details, runs

FITTED = {"table3-signature": "signature", "table2-kem": "group", "hybrid-cost": "group"}
"""Experiments that models are fitted on, with what they vary; each is predicted from those that vary something else."""
FURTHER = {"amplification": "signature"}
"""Experiments that are only predicted."""
DELAYED = "delay-loss"
"""Downloads at several round-trip times: their handshakes are predicted from those without delay."""

DATAGRAM = 1200
HELLO_PER_DATAGRAM = 1150
"""Bytes of a ClientHello in a datagram: the rest is header, length, frame and tag (RFC 9000, 17.2.2)."""
SEGMENT = 1448
"""Bytes of a TCP segment on a link with an MTU of 1500."""
WINDOW = 10 * DATAGRAM
FEWEST = 5
"""Cells that a model of a library is fitted on at least, as in `quicbed.analysis.ttfb.predict`."""
SILENT_MS = 25.0
"""A client that computes longer than this, the default max_ack_delay (RFC 9000, 18.2), may be sent everything again."""

LIMIT, SILENT = "above the amplification limit", "silent client"
PLAIN = "neither"

_KEY = ("group", "signature", "rtt_ms")
_OF = ("experiment", "campaign", "testbed", "host", "scale")


class PredictionError(QuicbedError):
    """A pair that cannot be predicted from these runs; one line that says what is missing and where it comes from."""


@dataclass(frozen=True)
class Line:
    """A straight line, neither end below zero."""

    at_zero: float
    per_byte: float

    def at(self, size: float) -> float:
        return self.at_zero + self.per_byte * size


def _line(sizes: Sequence[float], values: Sequence[float], weights: Sequence[float]) -> Line:
    from scipy.optimize import nnls  # as in quicbed.analysis.ttfb

    weight = np.asarray(weights, dtype=float)
    columns = np.column_stack([np.ones(len(sizes)), np.asarray(sizes, dtype=float)])
    (at_zero, per_byte), _ = nnls(columns / weight[:, None], np.maximum(np.asarray(values, dtype=float), 0) / weight)
    return Line(float(at_zero), float(per_byte))


@dataclass(frozen=True)
class Prediction:
    """What a handshake should take: times in ms, sizes in bytes of UDP or TCP payload."""

    local_ms: float  # all but round trips
    flights: int  # of the server, each a round trip where there is one
    limited: bool  # the server waits at the anti-amplification limit
    silent: bool  # the client computes longer than `SILENT_MS`
    packets_client: int
    packets_server: int
    handshake_bytes: float

    def ms(self, rtt_ms: float) -> float:
        """TTFB with a round-trip time."""
        return self.local_ms + rtt_ms * self.flights

    @property
    def condition(self) -> str:
        """What may break additivity here: `LIMIT`, `SILENT` or `PLAIN`."""
        return LIMIT if self.limited else SILENT if self.silent else PLAIN


@dataclass(frozen=True)
class Model:
    """What handshakes of one library on one host have in common."""

    transport: ttfb.Transport
    hello: float  # bytes of a ClientHello without its key share
    quic: bool
    bytes_client: Line
    bytes_server: Line
    packets_client: Line
    packets_server: Line

    def predict(self, cell: Mapping[str, Any]) -> Prediction:
        """From the primitives of a cell (`quicbed.analysis.ttfb.phases`) and their `sizes`."""
        size = _answer(cell)
        datagrams, sent = _hello(self.hello, cell["client_share_bytes"], quic=self.quic)
        server = max(self.bytes_server.at(size), DATAGRAM if self.quic else 0)
        limit = 3.0 * datagrams * DATAGRAM if self.quic else math.inf
        total = sent + self.bytes_client.at(size) + server
        limited = server > limit
        return Prediction(
            local_ms=self.transport.predict(cell["crypto_ms"], total / 1000, limited, 0),
            flights=_flights(server, limit),
            limited=limited,
            silent=cell["client_crypto_ms"] > SILENT_MS,
            packets_client=max(1, round(datagrams + self.packets_client.at(size))),
            packets_server=max(1, round(self.packets_server.at(size))),
            handshake_bytes=total,
        )


def _answer(cell: Mapping[str, Any]) -> float:
    """Bytes that a server's flight carries for the algorithms."""
    return float(cell["server_share_bytes"] + cell["certificate_bytes"] + cell["signature_bytes"])


def _hello(rest: float, share: float, *, quic: bool) -> tuple[int, float]:
    """Datagrams or segments of a ClientHello, and the bytes that it takes; over TCP only those of the key share."""
    if quic:
        datagrams = math.ceil((rest + share) / HELLO_PER_DATAGRAM)
        return datagrams, float(DATAGRAM * datagrams)
    return math.ceil((rest + share) / SEGMENT), float(share)


def _flights(size: float, limit: float) -> int:
    """Flights in which a server sends *size* bytes, where the client acknowledges each at once."""
    window, sent, flights = float(WINDOW), 0.0, 0
    while sent < size:
        flight = min(window, limit - sent) if sent < limit and not flights else window
        sent += flight
        window += flight
        flights += 1
    return max(flights, 1)


_NEEDED = (
    *("client_library", *_KEY),
    *("ttfb_ms", "crypto_ms", "client_crypto_ms", "handshake_bytes", "waits", "bytes_client", "bytes_server"),
    *("packets_client", "packets_server", "tls_client_hello_bytes"),
    *("client_share_bytes", "server_share_bytes", "signature_bytes", "certificate_bytes"),
)


_USED = (*_NEEDED, "cell", "ttfb_low", "ttfb_high", "limit_hits", *_OF)


def usable(cells: pl.DataFrame) -> pl.DataFrame:
    """Cells of one library at both ends that have all that a model needs, with the columns for it.

    Those with Retry or larger Initial datagrams are left out.
    """
    plain = ~pl.col("retry").fill_null(False) & (pl.col("initial_size").fill_null(DATAGRAM) == DATAGRAM)
    known = pl.all_horizontal(pl.col(name).is_not_null() for name in _NEEDED)
    one = pl.col("client_library") == pl.col("server_library")
    return cells.filter((pl.col("arm") == "main") & plain & known & one).select(_USED)


def fit(cells: pl.DataFrame) -> dict[str, Model]:
    """Models by library, from cells as of `quicbed.analysis.ttfb.table`; those with delay are left out.

    A library with fewer than `FEWEST` cells gets none.
    """
    models = {}
    near = usable(cells).filter(pl.col("rtt_ms") == 0).sort("client_library", *_KEY, "cell")
    for (library,), own in near.group_by("client_library", maintain_order=True):
        if len(own) >= FEWEST:
            models[str(library)] = _model(own)
    return models


def _model(own: pl.DataFrame) -> Model:
    rows = own.to_dicts()
    kb = (own["handshake_bytes"] / 1000).to_list()
    transport = ttfb.fit(own["ttfb_ms"].to_list(), own["crypto_ms"].to_list(), kb, own["waits"].to_list())
    quic = bool(own["limit_hits"].is_not_null().any())
    rest = float(np.median([row["tls_client_hello_bytes"] - row["client_share_bytes"] for row in rows]))
    sizes = [_answer(row) for row in rows]
    hellos = [_hello(rest, row["client_share_bytes"], quic=quic) for row in rows]

    def line(name: str, taken: Iterable[float]) -> Line:
        values = own[name].to_list()
        return _line(sizes, [value - less for value, less in zip(values, taken, strict=True)], values)

    return Model(
        transport,
        rest,
        quic,
        bytes_client=line("bytes_client", (sent for _, sent in hellos)),
        bytes_server=line("bytes_server", [0.0] * len(rows)),
        packets_client=line("packets_client", (datagrams for datagrams, _ in hellos)),
        packets_server=line("packets_server", [0.0] * len(rows)),
    )


@dataclass(frozen=True)
class Measured:
    """The newest campaign of a handshake experiment on one host."""

    host: str
    processor: str
    experiment: str
    factor: str
    found: ttfb.Handshakes

    @property
    def rules(self) -> tuple[str, str]:
        """Digest of the study, if it is of one, and scale."""
        first = self.found.campaign.row(0, named=True)
        return first["study"] or "", first["scale"]


def measured(runs_table: pl.DataFrame, beside: details.Details, known: algorithms.Table) -> list[Measured]:
    """Handshake experiments of every host, sorted by host."""
    every = []
    of_handshakes = pl.col("experiment").is_in([*FITTED, *FURTHER]) | pl.col("arm").is_in(["proof", PRIMITIVES])
    for (host,), own in runs_table.filter(of_handshakes).sort("host").group_by("host", maintain_order=True):
        for experiment, factor in (FITTED | FURTHER).items():
            found = ttfb.handshakes(own, beside, experiment, factor, known)
            if not found.empty:
                processor = str(found.campaign["cpu_model"][-1])
                every.append(Measured(str(host), processor, experiment, factor, found))
    return every


SCHEMA: Mapping[str, pl.DataType] = (
    dict.fromkeys(["fitted_on", *_OF, "library", "cell", "group", "signature"], pl.String())
    | dict.fromkeys(["rtt_ms", "ttfb_ms", "ttfb_low", "ttfb_high", "predicted_ms", "error"], pl.Float64())
    | dict.fromkeys(["packets_client", "packets_server", "handshake_bytes", "waits"], pl.Float64())
    | dict.fromkeys(["predicted_packets_client", "predicted_packets_server"], pl.Int64())
    | {"predicted_bytes": pl.Float64()}
    | {"condition": pl.String(), "flights": pl.Int64()}
)
"""Columns of `out_of_sample` and `delayed`: one row a predicted cell, which is one of *experiment*.

*error* is predicted over measured TTFB, minus 1. Packets and bytes are null where only times are predicted.
"""


def out_of_sample(every: Sequence[Measured]) -> pl.DataFrame:
    """Every cell predicted from cells that have another group or signature, or are of another host.

    Within a host an experiment is predicted from those that vary something else, less the pairs that are in both; from
    another host it is predicted by the same experiment, with the primitives of its own. Columns are `SCHEMA`.
    """
    rows = []
    for known in every:
        if known.experiment not in FITTED:
            continue
        models = fit(known.found.cells)
        seen = set(usable(known.found.cells).select("client_library", *_KEY).rows())
        for target in every:
            moved = target.host != known.host and target.experiment == known.experiment
            varied = target.host == known.host and target.experiment != known.experiment
            if not moved and not (varied and (target.factor != known.factor or target.experiment in FURTHER)):
                continue
            for cell in usable(target.found.cells).to_dicts():
                key = (cell["client_library"], *(cell[name] for name in _KEY))
                if cell["client_library"] not in models or (varied and key in seen):
                    continue
                rows.append(_row(known, target, cell, models[cell["client_library"]].predict(cell)))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _row(known: Measured, target: Measured, cell: Mapping[str, Any], made: Prediction) -> dict[str, Any]:
    elsewhere = f" on {known.processor} ({known.host})" if known.host != target.host else ""
    elsewhere += ", measured under other rules" if known.rules != target.rules else ""
    predicted = made.ms(cell["rtt_ms"])
    return {
        "fitted_on": known.experiment + elsewhere,
        "library": cell["client_library"],
        **{name: cell[name] for name in (*_OF, "cell", *_KEY, "ttfb_ms", "ttfb_low", "ttfb_high")},
        **{name: cell[name] for name in ("packets_client", "packets_server", "handshake_bytes", "waits")},
        "predicted_ms": predicted,
        "error": predicted / cell["ttfb_ms"] - 1,
        "predicted_packets_client": made.packets_client,
        "predicted_packets_server": made.packets_server,
        "predicted_bytes": made.handshake_bytes,
        "condition": made.condition,
        "flights": made.flights,
    }


def delayed(runs_table: pl.DataFrame) -> pl.DataFrame:
    """Handshakes of the downloads of `DELAYED` without loss: those with delay, from those without.

    ``TTFB(RTT) = TTFB(0) + RTT``: stock builds with X25519 and RSA-2048, one connection a run. Columns are `SCHEMA`.
    """
    rows = []
    downloads = runs_table.filter(pl.col("experiment") == DELAYED).sort("host")
    for _, own in downloads.group_by("host", maintain_order=True):
        campaign = runs.select_campaign(own, DELAYED)
        used = comparison.counted(campaign).filter(
            (pl.col("arm") == "main") & (pl.col("loss_percent").fill_null(0) == 0) & pl.col("ttfb_ms").is_not_null()
        )
        keys = [*_OF, "client_library", *_KEY, "cell"]
        cells = used.group_by(keys).agg(pl.col("ttfb_ms").median()).sort(keys)
        near = dict(cells.filter(pl.col("rtt_ms") == 0).select("client_library", "ttfb_ms").rows())
        for cell in cells.filter((pl.col("rtt_ms") > 0) & pl.col("client_library").is_in(list(near))).to_dicts():
            predicted = near[cell["client_library"]] + cell["rtt_ms"]
            values = {
                "fitted_on": f"{DELAYED}, 0 ms",
                "library": cell["client_library"],
                **{name: cell[name] for name in (*_OF, "cell", *_KEY, "ttfb_ms")},
                "predicted_ms": predicted,
                "error": predicted / cell["ttfb_ms"] - 1,
                "condition": PLAIN,
                "flights": 1,
            }
            rows.append(dict.fromkeys(SCHEMA) | values)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def kept_ratio(predicted: Sequence[float], found: Sequence[float]) -> float:
    """The ratio, at least 1, that 95 % of new values keep to their predictions in either direction; infinite for fewer
    than 19 values, which cannot tell.
    """
    logs = np.sort(np.abs(np.log(np.asarray(found, dtype=float) / np.asarray(predicted, dtype=float))))
    place = math.ceil(CONFIDENCE * (len(logs) + 1))
    return math.exp(logs[place - 1]) if place <= len(logs) else math.inf


@dataclass(frozen=True)
class Range:
    """A predicted value and its 95 % prediction interval; no interval where too few cells tell."""

    value: float
    low: float | None
    high: float | None

    def later(self, ms: float, trips: int, each: tuple[float, float] | None) -> Range:
        """After round trips that take *ms* in all, and *each* from less to more than that; None: nobody knows."""
        if each is None or self.low is None or self.high is None:
            return Range(self.value + ms, None, None)
        return Range(self.value + ms, self.low + ms + trips * each[0], self.high + ms + trips * each[1])


@dataclass(frozen=True)
class Pair:
    """What a library's handshake with a group and a signature should take on one host; times in ms."""

    host: str
    processor: str
    used: Mapping[str, str]  # campaigns by experiment
    cells: int  # that the model was fitted on
    tested: int  # that were predicted out of sample
    crypto: Mapping[str, float]  # by role
    rtt_ms: float
    prediction: Prediction
    time: Range
    packets_client: Range
    packets_server: Range
    handshake_bytes: Range
    measured_ms: float | None  # of this pair, where there is one
    each_ms: tuple[float, float] | None  # what handshakes with delay took beyond prediction, a round trip


def pair(every: Sequence[Measured], far: pl.DataFrame, library: str, group: str, signature: str, rtt_ms: float) -> Pair:
    """The prediction for a library's handshake with two algorithms, from its runs on the host measured last.

    *far* is what `delayed` made of the same runs.

    Raises PredictionError where the library, or one of its primitives, was not measured.
    """
    having = [one for one in every if one.experiment in FITTED and library in one.found.cells["client_library"]]
    if not having:
        known = sorted({name for one in every for name in one.found.cells["client_library"]})
        raise PredictionError(
            f"these runs have no handshakes of {library} with timed primitives; they have those of"
            f" {', '.join(known) or 'no library'}: measure {library} in one of {', '.join(FITTED)}"
        )
    host = max(having, key=_started).host
    here = [one for one in having if one.host == host]
    cells = pl.concat([usable(one.found.cells).filter(pl.col("client_library") == library) for one in here])
    near = cells.filter(pl.col("rtt_ms") == 0)
    if len(near) < FEWEST:
        raise PredictionError(
            f"`{library}` has {len(near)} complete handshake cells on {here[0].processor}, a prediction needs {FEWEST};"
            f" measure more of {', '.join(FITTED)}"
        )
    target = _target(here, library, group, signature)
    made = _model(near).predict(target)
    own = pl.col("library") == library
    sampled = out_of_sample([one for one in every if one.host == host]).filter(own)
    tests = sampled.filter(pl.col("rtt_ms") == 0)
    late = sampled.vstack(far.filter(own & (pl.col("host") == host))).filter(pl.col("rtt_ms") > 0)
    beyond = [0.0, *((late["ttfb_ms"] - late["predicted_ms"]) / late["flights"])]
    each = None if late.is_empty() else (min(beyond), max(beyond))
    time = _range(made.local_ms, tests["predicted_ms"], tests["ttfb_ms"])
    same = near.filter((pl.col("group") == group) & (pl.col("signature") == signature))
    return Pair(
        host,
        here[0].processor,
        used={one.experiment: str(one.found.campaign["campaign"][0]) for one in here},
        cells=len(near),
        tested=len(tests),
        crypto={role: target[f"{role}_crypto_ms"] for role in ("client", "server")},
        rtt_ms=rtt_ms,
        prediction=made,
        time=time.later(rtt_ms * made.flights, made.flights, each) if rtt_ms else time,
        packets_client=_range(made.packets_client, tests["predicted_packets_client"], tests["packets_client"]),
        packets_server=_range(made.packets_server, tests["predicted_packets_server"], tests["packets_server"]),
        handshake_bytes=_range(made.handshake_bytes, tests["predicted_bytes"], tests["handshake_bytes"]),
        measured_ms=None if same.is_empty() or rtt_ms else float(np.median(same["ttfb_ms"].to_numpy())),
        each_ms=each,
    )


def _started(one: Measured) -> Any:
    return one.found.campaign["started_at"].max()


def _target(here: Sequence[Measured], library: str, group: str, signature: str) -> dict[str, Any]:
    """The primitives of a pair and their sizes, as columns of a cell."""
    primitives = pl.concat([one.found.primitives for one in here]).filter(pl.col("library") == library)
    for kind, name in (("group", group), ("signature", signature)):
        timed = sorted(set(primitives.filter(pl.col("kind") == kind)["name"]))
        if name not in timed:
            raise PredictionError(
                f"the {kind} `{name}` was not timed with {library}; timed are {', '.join(timed) or 'none'}: measure"
                f" {library} with it in one of {', '.join(FITTED)}"
            )
    ends = {"client_library": library, "server_library": library, "group": group, "signature": signature}
    cell = ttfb.phases(ttfb.sizes(pl.DataFrame([ends]), primitives), primitives).row(0, named=True)
    lacking = [name for name in _NEEDED if name in cell and cell[name] is None]
    if lacking:
        raise PredictionError(f"the primitives of {library} with `{group}` and `{signature}` lack {', '.join(lacking)}")
    return cell


def _range(value: float, predicted: pl.Series, found: pl.Series) -> Range:
    ratio = kept_ratio(predicted.to_list(), found.to_list())
    return Range(value, None, None) if math.isinf(ratio) else Range(value, value / ratio, value * ratio)


def text(found: Pair, library: str, group: str, signature: str) -> str:
    """A prediction to read: time, packets, bytes with their intervals, the data behind them, and warnings."""
    made = found.prediction
    local = made.local_ms - sum(found.crypto.values())
    lines = [
        f"{library} with {group} and {signature} at {found.rtt_ms:g} ms RTT, predicted",
        f"  TTFB      {_said(found.time, '.3f')} ms",
        f"  packets   client {_said(found.packets_client, '.0f')}, server {_said(found.packets_server, '.0f')}",
        f"  bytes     {_said(found.handshake_bytes, '.0f')}",
        f"  made of   server cryptography {found.crypto['server']:.3f} ms, client cryptography"
        f" {found.crypto['client']:.3f} ms, transport {local:.3f} ms, round trips {made.flights} x {found.rtt_ms:g} ms",
        f"  data      {', '.join(f'{name} ({campaign})' for name, campaign in found.used.items())}:"
        f" {found.cells} cells, host {found.host}, {found.processor}",
    ]
    if found.handshake_bytes.low is None:
        lines.append(f"  interval  none: {found.tested} cells of {library} were predicted out of sample, 19 are needed")
    elif not found.rtt_ms:
        lines.append(f"  interval  95 %, from {found.tested} cells of {library} predicted out of sample")
    elif found.each_ms is None:
        lines.append(f"  interval  none of the time: no handshake of {library} with delay was measured")
    else:
        low, high = found.each_ms
        lines.append(
            f"  interval  95 %, from {found.tested} cells of {library} predicted out of sample; of the time longer by"
            f" {low:+.3f} to {high:+.3f} ms a round trip, as handshakes with delay were"
        )
    if found.measured_ms is not None:
        lines.append(f"  measured  {found.measured_ms:.3f} ms: this pair is among the data")
    if made.limited:
        lines.append(
            "Warning: the server has more to send than three times what it receives (RFC 9000, 8.1): its wait for the"
            " client is counted as a further round trip."
        )
    if found.rtt_ms and made.flights > 1 + made.limited:
        lines.append(
            f"Warning: the server's flight exceeds a congestion window of {WINDOW} bytes: {made.flights} flights are"
            " counted; a library with another window needs fewer or more."
        )
    if made.silent:
        lines.append(
            f"Warning: the client computes longer than {SILENT_MS:g} ms: the server may take its flight for lost and"
            " send it again, which adds packets and bytes that are not counted."
        )
    return "\n".join(lines)


def _said(found: Range, form: str) -> str:
    if found.low is None or found.high is None:
        return format(found.value, form)
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"


def lacking(every: Sequence[Measured], delays: pl.DataFrame) -> list[str]:
    """What these runs cannot show of additivity, a sentence each; *delays* as of `delayed`."""
    told = []
    if len({one.host for one in every}) < 2:
        told.append("Runs of a single host: nothing is predicted for another processor.")
    if not any((one.found.cells["rtt_ms"] > 0).any() for one in every):
        other = "only downloads with X25519 and RSA-2048 do" if len(delays) else "nor do downloads"
        told.append(f"No handshake experiment here has a round-trip time ({', '.join(FURTHER)} has); {other}.")
    told.append("native-handshake is not predicted: the primitives of unpatched builds are not timed.")
    experiments: dict[str, set[str]] = {}
    for one in every:
        for library in usable(one.found.cells)["client_library"]:
            experiments.setdefault(library, set()).add(one.factor)
    if alone := sorted(library for library, factors in experiments.items() if len(factors) < 2):
        told.append(f"Measured by key exchange or by signature only, and therefore not predicted: {', '.join(alone)}.")
    return told
