"""What the mappings in config/symbols/ make of the reference data."""

from __future__ import annotations

import polars as pl
import pytest

from clone import ROOT
from quicbed.analysis import comparison, cpu_shares
from quicbed.config.model import Project
from quicbed.figures import cpu_figures
from quicbed.store import runs, symbols

AES, NOOP = "AES-128-GCM", "NOOP"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> cpu_shares.Profiled:
    """What the mappings in config/symbols/ make of the reference data."""
    raw = tmp_path_factory.mktemp("reference") / "raw" / "reference"
    raw.mkdir(parents=True)
    archive = f"{cpu_shares.EXPERIMENT}.tar.xz"
    (raw / archive).symlink_to(ROOT / "raw" / "reference" / archive)
    return cpu_shares.profiled(runs.table(raw), raw, ROOT)


UNMEASURED = {"picoquic"}
"""Libraries that came after the reference data was measured."""


def test_less_than_a_tenth_of_the_reference_data_is_uncategorised_in_every_library(
    reference: cpu_shares.Profiled,
) -> None:
    planned = comparison.figure_table(reference.campaign).filter(pl.col("unsupported").is_null())
    assert {cell for cell, _ in reference.stacks} == set(planned["cell"]), "no cell failed, and every mapping was read"
    described = {name for name, library in Project(ROOT).without_folders().libraries.items() if not library.optional}
    assert set(planned["client_library"]) == described - UNMEASURED
    sampled = reference.shares.filter(pl.col("cell").is_in(planned["cell"].to_list()))
    for (library, role, cipher, aead), own in sampled.group_by("library", "role", "cipher", "aead"):
        ciphered = str(cipher) if aead == "standard" else None
        hidden = symbols.symbol_map(ROOT, str(library), str(role)).lacking(ciphered)
        without = own.filter(pl.col("share").is_null()).select("category", "problem").unique()
        assert dict(without.rows()) == dict(hidden), f"{library} {role}"
        left = own.filter(pl.col("category") == "uncategorised").select("label", "share")
        assert not left.is_empty()
        worst = left.sort("share").row(-1)
        assert worst[1] < cpu_figures.UNCATEGORISED_LIMIT, f"{library} {role}, {worst[0]}"


# What is left of the share of packet protection at most, with NOOP or NOENC instead of AES-128-GCM.
LEFT = {NOOP: 0.5, "NOENC": 0.1}


# OpenSSL's server copies content from a stream's send buffer into the packet, as a cipher would while encrypting.
LEFT_MORE = {("openssl", "server", NOOP): 0.8}


@pytest.mark.parametrize("label", LEFT)
def test_packet_protection_falls_in_the_reference_data_as_in_table_i(
    reference: cpu_shares.Profiled, label: str
) -> None:
    """How far, claims say of the paper's libraries; the copy that a cipher would have made stays with some NOOPs."""
    protection = reference.shares.filter((pl.col("category") == "packet-protection") & pl.col("share").is_not_null())
    shares = {(row["library"], row["role"], row["label"]): row["share"] for row in protection.to_dicts()}
    supported = {
        name
        for name, library in Project(ROOT).without_folders().libraries.items()
        if not library.optional and (library.supports.noop if label == NOOP else library.supports.noenc)
    }
    assert {library for library, _, of in shares if of == label} == supported - UNMEASURED
    for library in supported - UNMEASURED:
        for role in cpu_shares.ROLES:
            left = shares[library, role, label] / shares[library, role, AES]
            assert left < LEFT_MORE.get((library, role, label), LEFT[label]), f"{library} {role}: {left:.2f}"
