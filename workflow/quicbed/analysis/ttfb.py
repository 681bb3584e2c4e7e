"""Time to first byte of handshakes: its median with an interval, what it is made of, and what it should have been.

**TTFB** is the time "from the client sending its ClientHello to it being able to send its HTTP request" (A Quantum of
QUIC, Sec. IV): completion of the TLS handshake on the client.

**Median.** A cell is measured in blocks of one run, a run is a series of fresh connections. The median is that of all
connections of all runs that count. Connections of one run share the state of the machine, so the 95 % interval is one
over blocks, not connections: as wide to both sides, in logarithms, as that of the mean of the blocks' medians
(`quicbed.base.statistics.mean_interval`).

**Crypto.** The primitives are timed on the same host in the same blocks, through the same code of the same TLS library.
Between ClientHello and completion lie the server's encapsulation and signature and the client's decapsulation and two
verifications (CertificateVerify, and the certificate against the CA). The client's key generation precedes the
ClientHello and is shown, but is not part of TTFB.

**Prediction.** ``TTFB = crypto + a + b * bytes + (c + RTT) * waits + RTT``: *bytes* are the UDP payload of the
handshake in both directions and *waits* the round trips beyond the first (address validation, HelloRetryRequest,
Retry), both taken from captures. a, b and c are properties of a library's transport on this testbed, the same for all
its cells, none below zero; they minimise the squared relative error. The residual, measured minus predicted, is what
this does not explain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from quicbed.analysis import comparison, published
from quicbed.base import statistics
from quicbed.config import algorithms
from quicbed.plan.arms import PRIMITIVES
from quicbed.store import details, runs

FACTORS = ("group", "signature", "retry", "initial_size", "rtt_ms")
"""What handshake experiments vary."""

CAPTURED = tuple(name for name, kind in details.HANDSHAKES.items() if kind == pl.Int64() and name != "index")
"""What is taken from the captured connections of a cell."""

SERVER_OPERATIONS = (("group", "encapsulate"), ("signature", "sign"))
CLIENT_OPERATIONS = (("group", "decapsulate"), ("signature", "verify"), ("signature", "verify-chain"))


def median_interval(blocks: Sequence[np.ndarray[tuple[int], np.dtype[np.float64]]]) -> tuple[float, float, float]:
    """Median of all values and its 95 % interval over blocks; no interval (NaN) for fewer than two blocks."""
    median = float(np.median(np.concatenate(blocks)))
    if len(blocks) < 2:
        return median, float("nan"), float("nan")
    logs = np.log([np.median(values) for values in blocks])
    low, high = (median * statistics.antilog(end - logs.mean()) for end in statistics.mean_interval(logs))
    return median, low, high


def medians(campaign: pl.DataFrame, connections: pl.DataFrame) -> pl.DataFrame:
    """TTFB of every cell of a campaign, from the connections of the runs that count.

    Columns: cell, n (connections), ttfb_ms (median), ttfb_low, ttfb_high, ttfb_q1, ttfb_q3, confirmed_ms and CPU time
    per connection of both roles in ms (medians).
    """
    counting = comparison.counted(campaign).select("origin", "cell", "block")
    used = counting.join(connections.drop("cell", "block"), on="origin", how="inner")
    used = used.filter(pl.col("ttfb_ms").is_not_null()).sort("cell", "block", "index")
    rows = []
    for (cell,), own in used.group_by("cell", maintain_order=True):
        blocks = [part["ttfb_ms"].to_numpy() for _, part in own.group_by("block", maintain_order=True)]
        median, low, high = median_interval(blocks)
        rows.append(
            {
                "cell": cell,
                "n": len(own),
                "ttfb_ms": median,
                "ttfb_low": None if np.isnan(low) else low,
                "ttfb_high": None if np.isnan(high) else high,
                "ttfb_q1": own["ttfb_ms"].quantile(0.25, "linear"),
                "ttfb_q3": own["ttfb_ms"].quantile(0.75, "linear"),
                **{name: own[name].median() for name in ("confirmed_ms", "client_cpu_ms", "server_cpu_ms")},
            }
        )
    types = {"cell": pl.String(), "n": pl.Int64()}
    names = ["ttfb_ms", "ttfb_low", "ttfb_high", "ttfb_q1", "ttfb_q3", "confirmed_ms", "client_cpu_ms", "server_cpu_ms"]
    return pl.DataFrame(rows, schema=types | dict.fromkeys(names, pl.Float64()), orient="row")


def crypto(primitives: pl.DataFrame) -> pl.DataFrame:
    """Median time of every primitive by library, over blocks, in ms.

    Columns: library, kind, name, operation, ms, bytes, implementation. The median of a block's repetitions is taken
    first.
    """
    return (
        primitives.group_by("library", "kind", "name", "operation")
        .agg(
            (pl.col("median_ns").median() / 1e6).alias("ms"),
            pl.col("bytes").sort().last(),
            pl.col("implementation").sort().last(),
        )
        .sort("library", "kind", "name", "operation")
    )


def sizes(cells: pl.DataFrame, primitives: pl.DataFrame) -> pl.DataFrame:
    """Adds what goes on the wire, in bytes, as the client's library made it, to cells.

    New columns: client_share_bytes (public key), server_share_bytes (ciphertext), signature_bytes, certificate_bytes
    (DER).
    """
    found = crypto(primitives).filter(pl.col("bytes").is_not_null())
    for factor, operation, column in (
        ("group", "keygen", "client_share_bytes"),
        ("group", "encapsulate", "server_share_bytes"),
        ("signature", "sign", "signature_bytes"),
        ("signature", "verify-chain", "certificate_bytes"),
    ):
        own = found.filter((pl.col("kind") == factor) & (pl.col("operation") == operation))
        cells = cells.join(
            own.select(client_library="library", **{factor: "name", column: "bytes"}),
            on=["client_library", factor],
            how="left",
            maintain_order="left",
        )
    return cells


def computed_by(cells: pl.DataFrame, primitives: pl.DataFrame, factor: str) -> pl.DataFrame:
    """Adds `implementation` to cells: what computes their group or signature (*factor*) in the client's library."""
    own = crypto(primitives).filter(pl.col("kind") == factor)
    told = own.select(client_library="library", **{factor: "name"}, implementation="implementation")
    return cells.join(told.unique(), on=["client_library", factor], how="left", maintain_order="left")


def phases(cells: pl.DataFrame, primitives: pl.DataFrame) -> pl.DataFrame:
    """Adds to cells (columns client_library, server_library, group, signature) what their primitives take.

    New columns, in ms: keygen_ms (client, before the ClientHello), server_crypto_ms (encapsulation and signature),
    client_crypto_ms (decapsulation and verifications) and crypto_ms, their sum without key generation. Null where a
    primitive was not timed.
    """
    times = {
        (row["library"], row["kind"], row["name"], row["operation"]): row["ms"]
        for row in crypto(primitives).iter_rows(named=True)
    }

    def total(row: Mapping[str, str], side: str, operations: Sequence[tuple[str, str]]) -> float | None:
        found = [times.get((row[f"{side}_library"], kind, row[kind], operation)) for kind, operation in operations]
        return None if None in found else sum(value for value in found if value is not None)

    rows = cells.select("client_library", "server_library", "group", "signature").to_dicts()
    client = [total(row, "client", CLIENT_OPERATIONS) for row in rows]
    server = [total(row, "server", SERVER_OPERATIONS) for row in rows]
    both = [None if c is None or s is None else c + s for c, s in zip(client, server, strict=True)]
    return cells.with_columns(
        pl.Series("keygen_ms", [total(row, "client", (("group", "keygen"),)) for row in rows], pl.Float64),
        pl.Series("server_crypto_ms", server, pl.Float64),
        pl.Series("client_crypto_ms", client, pl.Float64),
        pl.Series("crypto_ms", both, pl.Float64),
    )


@dataclass(frozen=True)
class Transport:
    """What a library's transport adds to the cryptography of a handshake on this testbed."""

    fixed_ms: float
    per_kb_ms: float
    per_wait_ms: float
    cells: int
    median_error: float  # median of |residual| / measured

    def predict(self, crypto_ms: float, kb: float, waits: float, rtt_ms: float) -> float:
        """Predicted TTFB in ms; *kb* in 1000 bytes of UDP payload, *waits* beyond the first round trip."""
        return crypto_ms + self.fixed_ms + self.per_kb_ms * kb + (self.per_wait_ms + rtt_ms) * waits + rtt_ms


def fit(ttfb_ms: Sequence[float], crypto_ms: Sequence[float], kb: Sequence[float], waits: Sequence[float]) -> Transport:
    """The transport that explains the cells of one library best without added delay (relative least squares, >= 0)."""
    from scipy.optimize import nnls  # loading it takes longer than many a notebook computes

    measured = np.asarray(ttfb_ms, dtype=float)
    columns = np.column_stack([np.ones_like(measured), np.asarray(kb, dtype=float), np.asarray(waits, dtype=float)])
    rest = np.maximum(measured - np.asarray(crypto_ms, dtype=float), 0)
    (fixed, per_kb, per_wait), _ = nnls(columns / measured[:, None], rest / measured)
    predicted = np.asarray(crypto_ms) + columns @ np.array([fixed, per_kb, per_wait])
    error = float(np.median(np.abs(measured - predicted) / measured))
    return Transport(float(fixed), float(per_kb), float(per_wait), len(measured), error)


def predict(cells: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, Transport]]:
    """Adds predicted_ms and residual_ms to cells that have measured times, crypto, bytes and waits; and the fits by
    library.

    A library's transport is fitted over its cells without added delay; one with fewer than five of them gets no
    prediction.
    """
    needed = ["ttfb_ms", "crypto_ms", "handshake_bytes", "waits"]
    usable = pl.all_horizontal(pl.col(name).is_not_null() for name in needed)
    fits: dict[str, Transport] = {}
    near = cells.filter(usable & (pl.col("rtt_ms") == 0) & (pl.col("client_library") == pl.col("server_library")))
    for (library,), own in near.sort("client_library", "cell").group_by("client_library", maintain_order=True):
        if len(own) >= 5:
            kb = (own["handshake_bytes"] / 1000).to_list()
            fits[str(library)] = fit(own["ttfb_ms"].to_list(), own["crypto_ms"].to_list(), kb, own["waits"].to_list())
    predicted = [
        fits[row["client_library"]].predict(
            row["crypto_ms"], row["handshake_bytes"] / 1000, row["waits"], row["rtt_ms"]
        )
        if row["client_library"] in fits and all(row[name] is not None for name in needed)
        else None
        for row in cells.to_dicts()
    ]
    cells = cells.with_columns(pl.Series("predicted_ms", predicted, pl.Float64))
    return cells.with_columns((pl.col("ttfb_ms") - pl.col("predicted_ms")).alias("residual_ms")), fits


def with_published(cells: pl.DataFrame, factor: str, known: algorithms.Table) -> pl.DataFrame:
    """Adds the published row of Table II (*factor* ``group``) or III (``signature``) to each cell, by its algorithm.

    Also adds the algorithm's title, NIST level and whether it is quantum-safe, and sorts as the paper does.
    """
    rows: Sequence[algorithms.Algorithm] = known.groups if factor == "group" else known.signatures
    named = pl.DataFrame(
        {
            factor: [row.name for row in rows],
            "algorithm": [row.title for row in rows],
            "nist_level": [row.nist_level for row in rows],
            "quantum_safe": [row.quantum_safe for row in rows],
        }
    )
    printed = published.kems() if factor == "group" else published.signatures()
    renamed = {name: f"published_{name}" for name in printed.columns if name != "algorithm"}
    printed = printed.rename(renamed).with_row_index("position")
    # the paper has one HQC, of which here are two
    printed = pl.concat([printed, printed.with_columns(pl.col("algorithm") + " (AVX2)")])
    return (
        cells.join(named, on=factor, how="left", maintain_order="left")
        .join(printed, on="algorithm", how="left", maintain_order="left")
        # the paper's rows in its order, others of a level behind them
        .sort(
            pl.coalesce("published_nist_level", "nist_level"),
            "position",
            factor,
            "client_library",
            "server_library",
            "cell",
            nulls_last=True,
        )
    )


def captured(handshakes: pl.DataFrame) -> pl.DataFrame:
    """Medians over the captured connections of every proof: packets, bytes and waits of a handshake.

    Columns: proof, captured (connections) and `CAPTURED`.
    """
    columns = [pl.col(name).cast(pl.Float64).median() for name in CAPTURED]
    return handshakes.group_by("proof").agg(pl.len().alias("captured"), *columns).sort("proof")


def table(
    campaign: pl.DataFrame,
    connections: pl.DataFrame,
    handshakes: pl.DataFrame,
    primitives: pl.DataFrame,
    factor: str,
    known: algorithms.Table,
) -> tuple[pl.DataFrame, dict[str, Transport]]:
    """One row a cell of a handshake experiment, with everything above, sorted as the paper's table; and the fits.

    *campaign* is that of `quicbed.store.runs.select_campaign`, *primitives* that of `timed`, *handshakes* that
    of `proven`; *connections* are of all runs, or of more than these.
    """
    cells = comparison.figure_table(campaign, "ttfb_ms").drop("n")
    newest = campaign.sort("started_at", "origin").unique("cell", keep="last", maintain_order=True)
    cells = cells.join(newest.select("cell", *FACTORS), on="cell", how="left", maintain_order="left")
    proofs = counted_proofs(campaign)
    cells = (
        cells.join(medians(campaign, connections), on="cell", how="left", maintain_order="left")
        .join(proofs, on="cell", how="left", maintain_order="left")
        .join(captured(handshakes), on="proof", how="left", maintain_order="left")
        .with_columns(pl.col("n").fill_null(0))
    )
    cells = computed_by(sizes(cells, primitives), primitives, factor)
    cells, fits = predict(phases(cells, primitives))
    return with_published(cells, factor, known), fits


def timed(runs_table: pl.DataFrame, campaign: pl.DataFrame, primitives: pl.DataFrame) -> pl.DataFrame:
    """The primitives of the runs that count in a campaign: uncontaminated ones where there are any."""
    identity = ["testbed", "host", "campaign", "source"]
    own = runs_table.filter((pl.col("arm") == PRIMITIVES) & pl.col("planned").fill_null(True))
    own = own.join(campaign.select(identity).unique(), on=identity, how="semi", nulls_equal=True)
    return primitives.join(comparison.counted(own).select("origin"), on="origin", how="semi", maintain_order="left")


@dataclass(frozen=True)
class Handshakes:
    """The newest campaign of a handshake experiment, its cells as of `table`, its primitives and fitted transports."""

    campaign: pl.DataFrame
    cells: pl.DataFrame
    primitives: pl.DataFrame
    fits: Mapping[str, Transport]

    @property
    def empty(self) -> bool:
        return self.campaign.is_empty()


def handshakes(
    runs_table: pl.DataFrame, found: details.Details, experiment: str, factor: str, known: algorithms.Table
) -> Handshakes:
    """What was measured of an experiment; empty without runs of it."""
    campaign = runs.select_campaign(runs_table, experiment)
    if campaign.is_empty():
        return Handshakes(campaign, campaign, found.primitives.clear(), {})
    primitives = timed(runs_table, campaign, found.primitives)
    own = proven(runs_table, campaign, found.handshakes)
    cells, fits = table(campaign, found.connections, own, primitives, factor, known)
    return Handshakes(campaign, cells, primitives, fits)


def proven(runs_table: pl.DataFrame, campaign: pl.DataFrame, captured_handshakes: pl.DataFrame) -> pl.DataFrame:
    """The captured handshakes of the proofs that the host of a campaign has made."""
    own = runs_table.filter(pl.col("arm") == "proof").join(campaign.select("host").unique(), on="host", how="semi")
    return captured_handshakes.join(own.select("origin"), on="origin", how="semi", maintain_order="left")


def counted_proofs(campaign: pl.DataFrame) -> pl.DataFrame:
    """The proof behind the runs of every cell that count: columns cell, proof."""
    used = comparison.counted(campaign).filter(pl.col("proof").is_not_null())
    return used.sort("started_at", "origin").unique("cell", keep="last", maintain_order=True).select("cell", "proof")


def hybrids(measured: Handshakes, known: algorithms.Table) -> pl.DataFrame:
    """TTFB of every hybrid minus (classical part + KEM - base), in ms, paired within blocks.

    Each of the three has in it what every handshake takes, and each part's handshake its part. *base* is therefore the
    handshake with X25519 less what X25519 itself takes: its encapsulation and decapsulation as timed alone, and its key
    shares at the fitted time per byte. Nothing is in the difference twice, so that parts that add up leave zero. The
    primitives count as known exactly: their median differs little between blocks.

    Columns: client_library, algorithm, classical, kem (titles), cell, ttfb_ms, excess_ms (mean over blocks), excess_low
    and excess_high (95 % interval), n (blocks). Hybrids whose parts were not all measured are left out.
    """
    groups = {group.name: group for group in known.groups}
    alone = {group.liboqs: group for group in known.groups if group.liboqs and not group.classical}
    used = comparison.counted(measured.campaign).filter((pl.col("arm") == "main") & pl.col("ttfb_ms").is_not_null())
    by_cell = {
        str(cell): dict(own.select("block", "ttfb_ms").rows())
        for (cell,), own in used.group_by("cell", maintain_order=True)
    }
    rows = []
    main = measured.cells.filter((pl.col("arm") == "main") & pl.col("ttfb_ms").is_not_null())
    within = _x25519(measured)
    for cell in main.to_dicts():
        hybrid = groups[cell["group"]]
        if not hybrid.hybrid or hybrid.liboqs not in alone or cell["cell"] not in by_cell:
            continue
        same = main.filter(
            *(pl.col(name) == cell[name] for name in ("client_library", "server_library", "signature", "rtt_ms"))
        )
        parts = [str(hybrid.classical), alone[hybrid.liboqs].name, "x25519"]
        cells_of = [same.filter(pl.col("group") == part)["cell"].to_list() for part in parts]
        itself = within.get((cell["client_library"], cell["server_library"]))
        if itself is None or not all(cells_of) or not all(found[0] in by_cell for found in cells_of):
            continue
        classical, kem, reference = (by_cell[found[0]] for found in cells_of)
        own = by_cell[cell["cell"]]
        blocks = sorted(own.keys() & classical.keys() & kem.keys() & reference.keys())
        excess = np.array([own[b] - classical[b] - kem[b] + (reference[b] - itself) for b in blocks])
        if not len(excess):
            continue
        low, high = statistics.mean_interval(np.sort(excess)) if len(excess) > 1 else (None, None)
        rows.append(
            {
                "client_library": cell["client_library"],
                "algorithm": hybrid.title,
                "classical": groups[parts[0]].title,
                "kem": groups[parts[1]].title,
                "cell": cell["cell"],
                "ttfb_ms": cell["ttfb_ms"],
                "excess_ms": float(excess.mean()),
                "excess_low": low,
                "excess_high": high,
                "n": len(excess),
            }
        )
    text = dict.fromkeys(["client_library", "algorithm", "classical", "kem", "cell"], pl.String())
    numbers = dict.fromkeys(["ttfb_ms", "excess_ms", "excess_low", "excess_high"], pl.Float64())
    return pl.DataFrame(rows, schema=text | numbers | {"n": pl.Int64()}, orient="row")


def _x25519(measured: Handshakes) -> dict[tuple[str, str], float]:
    """What X25519 itself takes within TTFB, in ms, by client and server library; those that were not timed are left
    out.
    """
    own = crypto(measured.primitives).filter((pl.col("kind") == "group") & (pl.col("name") == "x25519"))
    timed = {(row["library"], row["operation"]): (row["ms"], row["bytes"] or 0) for row in own.to_dicts()}
    found = {}
    for client, server in set(measured.cells.select("client_library", "server_library").rows()):
        operations = [(client, "keygen"), (server, "encapsulate"), (client, "decapsulate")]
        if not all(operation in timed for operation in operations):
            continue
        (_, public_key), (encapsulated, ciphertext), (decapsulated, _) = (timed[one] for one in operations)
        per_byte = measured.fits[client].per_kb_ms / 1000 if client in measured.fits else 0.0
        found[client, server] = encapsulated + decapsulated + per_byte * (public_key + ciphertext)
    return found
