"""The C interface to liboqs computes what the algorithms' authors published, also from many threads at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clone import NATIVE, ROOT
from quicbed.builds import components, kit
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.plan import march

PROJECT = Project(ROOT)
CORE = ROOT / "workflow" / "crypto" / "pq"
TABLE = algorithms.read(ROOT)
KEMS = list(dict.fromkeys(group.liboqs for group in TABLE.groups if group.liboqs))
SIGNATURES = [signature.liboqs for signature in TABLE.signatures if signature.liboqs]
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]

THREADS = r"""
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "pq.h"
static pthread_barrier_t start;
static void *work(void *failed) {
    pthread_barrier_wait(&start);
    const quicbed_kem *kem = quicbed_kem_find("Kyber512");
    const quicbed_sig *sig = quicbed_sig_find("Dilithium2");
    static _Thread_local uint8_t pk[4096], sk[4096], ct[4096], sent[32], received[32], signature[4096];
    size_t len;
    if (!kem || !sig || kem != quicbed_kem_find("Kyber512") || sig != quicbed_sig_find("Dilithium2") ||
        !quicbed_kem_keypair(kem, pk, sk) || !quicbed_kem_encapsulate(kem, ct, sent, pk) ||
        !quicbed_kem_decapsulate(kem, received, ct, sk) || memcmp(sent, received, 32) ||
        !quicbed_sig_keypair(sig, pk, sk) || !quicbed_sig_sign(sig, signature, &len, ct, 768, sk) ||
        !quicbed_sig_verify(sig, ct, 768, signature, len, pk)) {
        *(int *)failed = 1;
    }
    return NULL;
}
int main(void) {
    pthread_t threads[16];
    int failed[16] = {0}, any = 0;
    pthread_barrier_init(&start, NULL, 16);
    for (int i = 0; i < 16; i++) {
        pthread_create(&threads[i], NULL, work, &failed[i]);
    }
    for (int i = 0; i < 16; i++) {
        pthread_join(threads[i], NULL);
        any |= failed[i];
    }
    if (quicbed_kem_find("Kyber") || quicbed_kem_find(NULL) || quicbed_sig_find("Kyber512")) {
        any = 1;
    }
    printf("%s\n", quicbed_pq_version());
    return any;
}
"""


IMPLEMENTATIONS = r"""
#include <stdio.h>
#include "algorithms.h"
#include "pq.h"
int main(void) {
    for (size_t i = 0; i < QUICBED_GROUPS; i++) {
        const char *name = quicbed_groups[i].liboqs;
        if (name != NULL) {
            const quicbed_kem *kem = quicbed_kem_find(name);
            const char *missing = quicbed_kem_left_out(name) ? "left out" : "missing";
            printf("%s %s\n", name, kem == NULL ? missing : quicbed_kem_implementation(kem));
        }
    }
    for (size_t i = 0; i < QUICBED_SIGNATURES; i++) {
        const char *name = quicbed_signatures[i].liboqs;
        if (name != NULL) {
            const quicbed_sig *sig = quicbed_sig_find(name);
            printf("%s %s\n", name, sig == NULL ? "missing" : quicbed_sig_implementation(sig));
        }
    }
    return 0;
}
"""


def package(workspace: Path) -> str:
    """Version of the package of a workspace that liboqs is in, as `0.11.0+liboqs-0.13.0`."""
    (found,) = (p["version"] for p in kit.closure(ROOT, ["oqs-sys"], workspace) if p["name"] == "oqs-sys")
    return found


@pytest.fixture(scope="session")
def parts(vendor: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The components the tests link, built unless they are there."""
    log = tmp_path_factory.mktemp("components") / "build.log"
    jobs = os.cpu_count() or 1
    return {name: components.provide(PROJECT, name, jobs=jobs, log=log) for name in ("liboqs", "openssl")}


def compiled(parts: dict[str, Path], source: Path, program: Path, *flags: str) -> Path:
    """A C program linked with the interface, without a warning."""
    includes = [f"-I{directory}" for directory in (CORE, *(part / "include" for part in parts.values()))]
    archives = [str(parts["liboqs"] / "lib" / "liboqs.a"), str(parts["openssl"] / "lib" / "libcrypto.a")]
    argv = ["gcc", *WARNINGS, "-O1", *flags, "-pthread", *includes, "-o", str(program), str(source), str(CORE / "pq.c")]
    done = subprocess.run([*argv, *archives], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="session")
def pq_kat(parts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(parts, NATIVE / "pq_kat.c", tmp_path_factory.mktemp("kat") / "pq_kat")


@pytest.mark.parametrize(("kind", "name"), [*(("kem", kem) for kem in KEMS), *(("sig", sig) for sig in SIGNATURES)])
def test_known_answers(vendor: Path, pq_kat: Path, kind: str, name: str) -> None:
    """liboqs' `single` is the SHA-256 of the first entry of NIST's response file (liboqs, tests/test_kat.py)."""
    own, _, older = name.partition("@")
    version = package(kit.OLDER_LIBOQS if older else kit.SOURCES)
    file = vendor / f"oqs-sys-{version}" / "liboqs" / "tests" / "KATs" / kind / "kats.json"
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    done = subprocess.run([str(pq_kat), kind, name], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    # liboqs 0.9 has but the one
    expected = known[own] if older else known[own]["single"]
    assert hashlib.sha256(done.stdout).hexdigest() == expected


def test_implementations_are_those_of_the_processor(parts: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "implementations.c"
    source.write_text(IMPLEMENTATIONS, encoding="utf-8")
    program = compiled(parts, source, tmp_path / "implementations")
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=True)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    flags = march.processor()["flags"]
    assert list(told) == [*KEMS, *SIGNATURES]
    for name, implementation in told.items():
        if name.startswith("HQC-"):
            here = "liboqs 0.9.0 (AVX2)" if "avx2" in flags else "left out"
            assert implementation == (here if "@" in name else "liboqs 0.13.0 (portable)")
        elif name.startswith("BIKE-") and "avx512f" in flags:
            assert implementation == "liboqs 0.13.0 (AVX-512)"
        else:
            assert implementation == f"liboqs 0.13.0 ({'AVX2' if 'avx2' in flags else 'portable'})"


def test_many_threads_may_begin_at_once(parts: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "threads.c"
    source.write_text(THREADS, encoding="utf-8")
    program = compiled(parts, source, tmp_path / "threads", "-fsanitize=address,undefined")
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    # the package is called <its own version>+liboqs-<version>
    assert done.stdout.strip().replace(" ", "-") == package(kit.SOURCES).partition("+")[2]


def test_the_library_keeps_frame_pointers(parts: dict[str, Path]) -> None:
    """Walking stacks needs them, and liboqs' own build leaves them out."""
    archive = str(parts["liboqs"] / "lib" / "liboqs.a")
    code = subprocess.run(["objdump", "-d", archive], capture_output=True, text=True, errors="replace", check=True)
    functions = re.split(r"\n[0-9a-f]+ <", code.stdout)
    (signing,) = (text for text in functions if text.startswith("PQCLEAN_FALCONPADDED512_CLEAN_crypto_sign_signature>"))
    assert re.search(r"mov +%rsp,%rbp", signing)


def test_the_rust_interface(parts: dict[str, Path], vendor: Path) -> None:
    source = f'source.vendored.directory="{vendor}"'
    argv = ["cargo", "test", "--locked", "--offline", "--package", "quicbed-pq"]
    argv += ["--manifest-path", str(ROOT / "workflow" / "sources" / "Cargo.toml")]
    argv += ["--config", 'source.crates-io.replace-with="vendored"', "--config", source]
    target = str(PROJECT.build / "work" / "quicbed-pq-test")
    environment = {**os.environ, "CARGO_TARGET_DIR": target, "CARGO_TERM_COLOR": "never"}
    environment.pop("QUICBED_LIBOQS", None)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "QUICBED_LIBOQS is not set" in done.stderr
    environment["QUICBED_LIBOQS"] = str(parts["liboqs"])
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"test result: ok\. [1-9]\d* passed", done.stdout)
