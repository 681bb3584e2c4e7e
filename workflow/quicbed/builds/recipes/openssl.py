"""Builds of endpoint programs in C on OpenSSL, linked with the component `openssl`.

A program is `client.c` or `server.c` of the endpoint's directory with all other sources there.

OpenSSL is linked statically: the programs need nothing but the C library, and a build can be moved. The flavour ``pq``
has the same programs and, beside them, the provider of workflow/crypto/pq/openssl-provider with the configuration that
loads it, and a program that times primitives. The flavour ``noop`` has the same programs and the provider of
workflow/crypto/noop-provider with its configuration.

Layout of a build::

    bin/client, bin/server      the endpoint programs
    bin/primitives              times cryptographic operations (pq only)
    etc/openssl-*.cnf           named in OPENSSL_CONF by the programs
    lib/quicbed-*.so            the provider (noop and pq only)
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quicbed.builds import kit
from quicbed.builds.components import FLAGS, FRAME_POINTERS, PQ, WARNINGS
from quicbed.builds.kit import BuildError, Job

CONTRACT = kit.ENDPOINTS / "contract" / "c"
"""What the endpoint programs in C share."""

TLS = kit.ENDPOINTS / "tls" / "openssl"
"""What those on OpenSSL share."""

CONTEXT = TLS / "context.c"
"""What configures connections."""

NOOP_PROVIDER = Path("workflow/crypto/noop-provider")

COMPILER = ["gcc", "-std=gnu11", *FLAGS, FRAME_POINTERS, *WARNINGS]

SHARED = [CONTRACT / "contract.c", CONTRACT / "tls.c", TLS / "openssl.c", TLS / "openssl_cpu.c"]


def program(root: Path, openssl: Path, sources: Sequence[Path], *, version: str, tls: str, out: Path) -> list[str]:
    """The command that compiles a program on OpenSSL from sources of an endpoint and those that all share."""
    return [
        *COMPILER,
        f"-ffile-prefix-map={root}=.",  # a program is the same from any clone
        f'-DVERSION="{version}"',
        f'-DTLS_LIBRARY="{tls}"',
        *(f"-I{directory}" for directory in (root / CONTRACT, root / TLS, root / PQ, openssl / "include")),
        *("-o", str(out)),
        *map(str, sources),
        *(str(root / file) for file in SHARED),
        *(str(openssl / "lib" / name) for name in ("libssl.a", "libcrypto.a")),
    ]


def place_provider(provider: Path, out: Path) -> None:
    """Put the provider and its configuration into a build of flavour pq."""
    for directory in ("etc", "lib"):
        (out / directory).mkdir(exist_ok=True)
    shutil.copy2(provider / "lib" / "quicbed-pq.so", out / "lib")
    shutil.copy2(provider / "openssl.cnf", out / "etc" / "openssl-pq.cnf")


def noop_provider(root: Path, openssl: Path, out: Path) -> list[str]:
    """The command that compiles the provider for programs whose QUIC uses EVP into a build of flavour noop."""
    return [
        *(*COMPILER, "-fPIC", "-shared", f"-I{openssl / 'include'}"),
        *("-o", str(out / "lib" / "quicbed-noop.so"), str(root / NOOP_PROVIDER / "quic_provider.c")),
        *(str(openssl / "lib" / "libcrypto.a"), "-lpthread"),
        # as the provider of flavour pq: the libcrypto inside must not be unloaded before the process ends
        *("-fvisibility=hidden", "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-z,nodelete"),
    ]


def place_noop_configuration(root: Path, out: Path) -> None:
    """Put the configuration that loads this provider beside it."""
    shutil.copy2(root / NOOP_PROVIDER / "openssl-quic-noop.cnf", out / "etc" / "openssl-noop.cnf")


def compiler_version() -> str:
    """First line of what the compiler says about itself."""
    try:
        done = subprocess.run([COMPILER[0], "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise BuildError(f"{COMPILER[0]} is not installed; run `make setup`") from None
    return done.stdout.splitlines()[0]


def build(job: Job) -> dict[str, Any]:
    """Build the programs of a flavour; returns compiler and flags."""
    root = job.project.root.absolute()
    own, shared, out = job.endpoint, job.shared, job.out
    version = job.version
    openssl = shared["openssl"]
    for directory in ("bin", "etc"):
        (out / directory).mkdir()
    both = [*sorted(set(own.glob("*.c")) - {own / "client.c", own / "server.c"}), root / CONTEXT]
    programs = {role: [own / f"{role}.c", *both] for role in ("client", "server")}
    if "openssl-provider" in shared:
        programs["primitives"] = [root / TLS / "primitives.c", own / "library.c"]
        place_provider(shared["openssl-provider"], out)
    if job.flavour == "noop":
        (out / "lib").mkdir()
        kit.run(noop_provider(root, openssl, out), log=job.log)
        place_noop_configuration(root, out)
    for role, sources in programs.items():
        argv = program(root, openssl, sources, version=version, tls=f"OpenSSL {version}", out=out / "bin" / role)
        kit.run(argv, log=job.log)
    shutil.copy2(root / TLS / "openssl-standard.cnf", out / "etc")
    return {"compiler": compiler_version(), "flags": COMPILER[1:]}
