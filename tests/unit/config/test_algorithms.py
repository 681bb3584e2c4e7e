"""The table of algorithms: read strictly, and the same in Python, C and Rust."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT
from quicbed.config import algorithms
from quicbed.config.algorithms import AlgorithmError

TABLE = algorithms.read(ROOT)

PRINT_HEADER = r"""
#include <stdio.h>
#include "algorithms.h"
static const char *text(const char *s) { return s ? s : "-"; }
int main(void) {
    for (size_t i = 0; i < QUICBED_GROUPS; i++) {
        const quicbed_group *g = &quicbed_groups[i];
        printf("%s %s %d %d %s %s %d\n", g->name, g->tls_name, g->code_point, g->nist_level, text(g->liboqs),
               text(g->classical), g->pq_first);
    }
    for (size_t i = 0; i < QUICBED_SIGNATURES; i++) {
        const quicbed_signature *s = &quicbed_signatures[i];
        printf("%s %s %d %d %s %s %s ", s->name, s->tls_name, s->code_point, s->nist_level, text(s->liboqs),
               text(s->classical), s->oid);
        for (size_t k = 0; k < s->oid_der_len; k++) {
            printf("%02x", s->oid_der[k]);
        }
        printf("\n");
    }
    return 0;
}
"""


def test_names_are_found() -> None:
    # draft-ietf-tls-ecdhe-mlkem, section 4.1; RFC 8446, section 4.2.7
    hybrid = TABLE.group("x25519-mlkem768")
    assert (hybrid.code_point, hybrid.classical, hybrid.liboqs) == (0x11EC, "x25519", "ML-KEM-768")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AlgorithmError, match=r"algorithms\.csv: has no group `kyber`; there are x25519, "):
        TABLE.group("kyber")
    with pytest.raises(AlgorithmError, match="has no signature `kyber512`"):
        TABLE.signature("kyber512")


def test_only_one_hybrid_has_the_kem_first() -> None:
    assert [group.name for group in TABLE.groups if group.pq_first] == ["x25519-mlkem768"]
    assert TABLE.group("x25519-mlkem768").hybrid
    assert not TABLE.group("kyber512").hybrid
    assert not TABLE.group("x25519").hybrid


def test_what_a_processor_lacks_is_told() -> None:
    group = TABLE.group("hqc-128-avx2")
    assert group.lacking(["avx2", "bmi1", "pclmulqdq", "aes"]) is None
    assert group.lacking(["avx2", "aes"]) == "HQC-128 (AVX2) needs a processor with bmi1, pclmulqdq"
    assert TABLE.group("hqc-128").lacking([]) is None


@pytest.mark.parametrize(
    ("name", "der"),
    [
        ("ed25519", "06032b6570"),  # RFC 8410, section 10.1
        ("rsa-2048", "06092a864886f70d010101"),  # RFC 8017, appendix C
        ("ecdsa-p-256", "06072a8648ce3d0201"),  # RFC 5480, section 2.1.1
        ("mldsa44", "0609608648016503040311"),  # RFC 9881, appendix C
        ("dilithium2", "060b2b0601040102820b070404"),
        ("falcon-512", "06052bce0f0310"),
    ],
)
def test_object_identifiers_are_encoded_as_in_certificates(name: str, der: str) -> None:
    assert TABLE.signature(name).oid_der.hex() == der


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kind,name,", "kind,title,"),
        ("group,x448,", "groups,x448,"),
        ("group,x448,", "group,X448,"),
        ("group,x448,", "group,x25519,"),
        (",x448,0x001e", ",x25519,0x001e"),
        ("0x001e", "0x001d"),
        ("0x001e", "30"),
        ("0x001e,3", "0x001e,4"),
        ("0x001e,3,no", "0x001e,3,maybe"),
        ("0x001e,3,no", "0x001e,3,yes"),
        (",x448,,,IANA", ",,,,IANA"),
        (",x448,,,IANA", ",x448,,1.2.3,IANA"),
        (",x448,,,IANA", ",x448,AVX2,,IANA"),
        (",x448,,,IANA", ",x448,"),
        (",x448,,,IANA", ",x448,,,"),
        ("Kyber512,p-256,", "Kyber512,p-255,"),
        ("1.3.101.112", "ed25519"),
        ("Dilithium2,,,1.3.", "Dilithium2,ed25519,,1.3."),
        ("1.3.9999.3.19", "1.3.9999.3.16"),
    ],
    ids=wording.name,
)
def test_a_mistake_is_named_with_line_and_column(
    tmp_path: Path, old: str, new: str, snapshot: SnapshotAssertion
) -> None:
    text = (ROOT / algorithms.FILE).read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / algorithms.FILE
    file.parent.mkdir(parents=True)
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(AlgorithmError) as error:
        algorithms.read(tmp_path)
    assert str(error.value).startswith(f"{file}, line ")
    assert wording.one_line(error.value, tmp_path) == snapshot


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(AlgorithmError, match=r"algorithms\.csv: cannot be read"):
        algorithms.read(tmp_path)


def test_the_c_table_says_the_same(tmp_path: Path) -> None:
    source, program = tmp_path / "table.c", tmp_path / "table"
    source.write_text(PRINT_HEADER, encoding="utf-8")
    include = f"-I{ROOT / 'workflow' / 'crypto' / 'pq'}"
    warnings = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    subprocess.run(["gcc", *warnings, include, "-o", str(program), str(source)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    expected = [
        f"{g.name} {g.tls_name} {g.code_point} {g.nist_level} {g.liboqs or '-'} {g.classical or '-'} {int(g.pq_first)}"
        for g in TABLE.groups
    ]
    expected += [
        f"{s.name} {s.tls_name} {s.code_point} {s.nist_level} {s.liboqs or '-'} {s.classical or '-'} {s.oid} "
        f"{s.oid_der.hex()}"
        for s in TABLE.signatures
    ]
    assert printed == expected
