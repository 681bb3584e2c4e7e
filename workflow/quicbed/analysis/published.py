"""What the papers print, as data: the numbers that measured ones are shown beside.

The files in ``published/`` hold Tables II and III of M. Kempf, N. Gauder, B. Jaeger, J. Zirngibl, G. Carle: "A Quantum
of QUIC: Dissecting Cryptography with Post-Quantum Insights", IFIP Networking 2024, arXiv 2405.09264. An empty value is
a cell the paper leaves empty: LSQUIC fails with certificates over 30 kB.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

READS = ("workflow/quicbed/analysis/published/*.csv",)

DIRECTORY = Path(__file__).parent / "published"
LIBRARIES = ("lsquic", "quiche")
"""Libraries of Tables II and III."""

RATIOS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "aead-goodput": {"AES-256-GCM": (1.0, 1.0), "ChaCha20-Poly1305": (0.84, 0.91), "NOOP": (1.1, 1.2)},
    "header-protection": {"AES-128-GCM without HP": (1.0, 1.02), "ChaCha20-Poly1305 without HP": (1.04, 1.06)},
}
"""Ranges of goodput ratios that A Quantum of QUIC states for its libraries (Fig. 3 and 4), by experiment and label."""

_COUNTS = [f"packets_{role}_{library}" for library in LIBRARIES for role in ("client", "server")]
_TIMES = [f"ttfb_ms_{library}" for library in LIBRARIES]
_SIZES = ["public_key_bytes", "signature_bytes", "certificate_bytes"]


def _read(name: str, algorithm: str) -> pl.DataFrame:
    types: dict[str, type[pl.DataType]] = {"nist_level": pl.Int64, algorithm: pl.String, "quantum_safe": pl.String}
    types |= dict.fromkeys(_TIMES, pl.Float64) | dict.fromkeys(_COUNTS, pl.Int64)
    frame = pl.read_csv(DIRECTORY / name, schema_overrides=types | dict.fromkeys(_SIZES, pl.Int64))
    return frame.rename({algorithm: "algorithm"}).with_columns(pl.col("quantum_safe") == "yes")


def kems() -> pl.DataFrame:
    """Table II: TTFB in ms and packets sent during the handshake by client and server, for 22 key exchanges.

    Columns: nist_level, algorithm, quantum_safe, ttfb_ms_<library>, packets_<role>_<library>. RSA-2048, AES-128-GCM.
    """
    return _read("quantum-of-quic-table2.csv", "kem")


def signatures() -> pl.DataFrame:
    """Table III: as `kems` for 19 signature algorithms, with the sizes of key, signature and certificate in bytes.
    X25519.
    """
    return _read("quantum-of-quic-table3.csv", "signature")


def cpu_shares() -> pl.DataFrame:
    """Table I: shares of samples in packet and header protection of client and server, in %.

    Columns: label, library, <role>_packet_protection, <role>_header_protection.
    """
    frame = pl.read_csv(DIRECTORY / "quantum-of-quic-table1.csv")
    return frame.rename({name: name.removesuffix("_pct") for name in frame.columns}).with_columns(
        label=pl.col("cipher"), library=pl.col("implementation").str.to_lowercase()
    )


@functools.cache
def rows(table: str) -> list[dict[str, Any]]:
    """The rows of Table I, II or III (`table1`, `table2`, `table3`), each with the label it has in our experiments.

    HQC of the paper has vector instructions, as in liboqs up to 0.9 (docs/handshakes.md).
    """
    frame = {"table1": cpu_shares, "table2": kems, "table3": signatures}[table]()
    if "algorithm" in frame.columns:
        portable = pl.col("algorithm").str.contains("HQC").not_()
        ours = pl.when(portable).then("algorithm").otherwise(pl.col("algorithm") + " (AVX2)")
        frame = frame.with_columns(ours.alias("label")).drop("algorithm")
    return frame.to_dicts()
