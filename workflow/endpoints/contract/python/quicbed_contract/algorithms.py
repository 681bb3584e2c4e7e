"""The table of groups and signature algorithms (workflow/crypto/algorithms.csv), which lies beside this package."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).parents[1] / "algorithms.csv"


class Algorithm(NamedTuple):
    """A group or signature algorithm that liboqs has a part in."""

    name: str
    tls_name: str
    code_point: int
    liboqs: str
    """What liboqs calls it, or the post-quantum part of a hybrid."""
    classical: str
    """Name of the classical part of a hybrid group; empty where there is none."""
    oid: str
    """Of signature algorithms, in dots."""

    @property
    def kem_first(self) -> bool:
        """Whether the post-quantum part of a hybrid comes first (draft-ietf-tls-ecdhe-mlkem, section 4)."""
        return self.tls_name == "X25519MLKEM768"


def liboqs(kind: str) -> list[Algorithm]:
    """Algorithms of a kind, `group` or `signature`, with a part of liboqs, in the order of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind and row["liboqs"]]
    fields = ("name", "tls_name", "liboqs", "classical", "oid")
    return [Algorithm(code_point=int(row["code_point"], 16), **{field: row[field] for field in fields}) for row in rows]
