"""Builds of HTTP/3: nginx on OpenSSL as server, and a libcurl program on ngtcp2 and BoringSSL as client.

The package of ngtcp2 has its BoringSSL helper only, so that curl's HTTP/3 has no other backend. Everything is linked
statically.

The flavour ``noop`` has the very nginx and libraries of the ``stock`` one; beside nginx lies a provider for OpenSSL,
and the client is linked with the AEAD of workflow/crypto/noop-aead. The flavour ``pq`` has the nginx of the ``stock``
one with the provider of workflow/crypto/pq/openssl-provider, and a client of its libcurl and nghttp3 with the component
`boringssl-pq` and an ngtcp2 that takes longer handshakes.

Layout of a build::

    bin/client, bin/server      the endpoint programs
    sbin/nginx
    bin/primitives              times cryptographic operations of the server's OpenSSL (pq only)
    etc/openssl-*.cnf           named in OPENSSL_CONF by the server
    lib/libcurl.a, lib/libng*.a for the client of another flavour
    lib/quicbed-*.so            the provider (noop and pq only)
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from quicbed.builds import kit
from quicbed.builds.components import FLAGS, FRAME_POINTERS, PQ
from quicbed.builds.kit import Job
from quicbed.builds.recipes import openssl as programs
from quicbed.builds.recipes import tcp_tls
from quicbed.builds.recipes.tcp_tls import (
    CONTRACT,
    CURL,
    ROOT,
    TLS,
    Steps,
    archive,
    find_in,
    first_line,
    install_headers,
    link_tree,
    source_of,
)

FROM_STOCK = True
FILES = ("openssl.py", "tcp_tls.py")

AEAD = ROOT / "workflow" / "crypto" / "noop-aead"

NGINX_OPTIONS = [*tcp_tls.NGINX_OPTIONS, "--with-http_v3_module", "--without-quic_bpf_module"]

CURL_OPTIONS = {
    **tcp_tls.CURL_OPTIONS,
    "USE_NGHTTP2": "OFF",
    "USE_NGTCP2": "ON",
    # what curl's configuration would find by linking with BoringSSL, which needs the C++ library
    "CMAKE_EXE_LINKER_FLAGS": "-Wl,--no-as-needed -lstdc++",
}

FOUND = [
    *("HAVE_ARPA_INET_H", "HAVE_NETINET_IN_H", "HAVE_NETINET_IP_H", "HAVE_UNISTD_H", "HAVE_ENDIAN_H"),
    *("HAVE_BYTESWAP_H", "HAVE_DECL_BE64TOH", "HAVE_DECL_BSWAP_64", "HAVE_EXPLICIT_BZERO"),
]
"""What the configurations of ngtcp2 and nghttp3 find on Linux."""

OBJECT_FLAGS = [
    *("-std=gnu11", *FLAGS, FRAME_POINTERS, "-w", "-DNDEBUG", "-D_GNU_SOURCE"),
    *("-DNGTCP2_STATICLIB", "-DNGHTTP3_STATICLIB"),
    *(f"-D{name}=1" for name in FOUND),
]
"""As the release builds of ngtcp2 and nghttp3: no assertions."""

WRAPPED = [
    *("sendmsg", "ngtcp2_conn_client_new_versioned", "ngtcp2_conn_read_pkt_versioned"),
    *("ngtcp2_conn_writev_stream_versioned", "ngtcp2_conn_del"),
]
"""Functions whose calls by libcurl pass through the client program: see client.c."""

WRAPPED_NOOP = ["ngtcp2_crypto_ctx_tls", "ngtcp2_crypto_hp_mask_cb"]


def build(job: Job) -> dict[str, Any]:
    """Build a flavour; another one than stock from the finished stock build. Returns what build.json records."""
    steps = Steps(job.work)
    versions = _versions(job.vendor)
    out = job.out
    for directory in ("bin", "sbin", "etc", "lib"):
        (out / directory).mkdir(parents=True, exist_ok=True)
    if job.stock is None:
        _build_nginx(job, steps)
        _build_quic(job, steps)
        _build_curl(job, steps)
        shutil.copy2(TLS / "openssl-standard.cnf", out / "etc")
        _build_server(job, steps, versions)
    else:
        link_tree(job.stock, out)
        (out / "bin" / "client").unlink()
    if job.flavour == "noop":
        steps.run("noop-provider", programs.noop_provider(ROOT, job.shared["openssl"], out))
        programs.place_noop_configuration(ROOT, out)
    elif job.flavour == "pq":
        programs.place_provider(job.shared["openssl-provider"], out)
        _build_quic(job, steps)
        told = _told(versions)
        sources = [TLS / "primitives.c", job.endpoint / "library.c"]
        argv = programs.program(ROOT, job.shared["openssl"], sources, **told, out=out / "bin" / "primitives")
        steps.run("primitives", argv)
    _build_client(job, steps, versions)
    steps.clean()
    return {
        "compiler": first_line(["gcc", "--version"]),
        "flags": [*FLAGS, FRAME_POINTERS],
        "versions": versions,
        "options": {
            "nginx": NGINX_OPTIONS,
            "curl": [f"{name}={value}" for name, value in CURL_OPTIONS.items()],
            "ngtcp2": OBJECT_FLAGS,
        },
        "seconds": steps.seconds,
    }


def _versions(vendor: Path) -> dict[str, str]:
    versions = tcp_tls.versions_of(vendor)
    for name in ("ngtcp2", "nghttp3"):
        lists = source_of(vendor, f"{name}-sys", f"deps/{name}") / "CMakeLists.txt"
        versions[name] = find_in(lists, rf"^project\({name} VERSION ([\d.]+)")
    return versions


def _told(versions: dict[str, str]) -> dict[str, str]:
    return {"version": versions["nginx"], "tls": f"OpenSSL {versions['openssl']} (server), BoringSSL (client)"}


def _defines(versions: dict[str, str]) -> list[str]:
    told = _told(versions)
    return [f'-DVERSION="{told["version"]}"', f'-DTLS_LIBRARY="{told["tls"]}"', f"-I{CONTRACT}", f"-I{ROOT / PQ}"]


def _build_nginx(job: Job, steps: Steps) -> None:
    nginx = steps.directory / "nginx"
    shutil.copytree(source_of(job.vendor, "nginx-src", "nginx"), nginx, symlinks=True)
    (steps.directory / "openssl").symlink_to(job.shared["openssl"])
    # Relative paths, because nginx keeps its options in the binary.
    options = [
        f"--with-cc-opt={' '.join(FLAGS)} {FRAME_POINTERS} -I../openssl/include",
        "--with-ld-opt=-L../openssl/lib",
    ]
    steps.run("nginx-configure", ["sh", "auto/configure", *NGINX_OPTIONS, *options], nginx)
    steps.run("nginx", ["make", f"-j{job.jobs}"], nginx)
    shutil.copy2(nginx / "objs" / "nginx", job.out / "sbin")


def _boringssl(job: Job) -> Path:
    """The client's BoringSSL; both components have the same public headers."""
    return job.shared["boringssl-pq" if job.flavour == "pq" else "boringssl"]


def _build_quic(job: Job, steps: Steps) -> None:
    """Compile ngtcp2 and nghttp3: archives in ``lib``, headers in ``include``."""
    boringssl = _boringssl(job)
    include = job.out / "include"
    sources: dict[str, Path] = {}
    for name in ("ngtcp2", "nghttp3"):
        crate = source_of(job.vendor, f"{name}-sys", "deps").parent
        copy = steps.directory / f"{name}-sys"
        shutil.copytree(crate, copy)
        for patch in job.chosen.patches:
            if patch.crate == copy.name:
                file = ROOT / kit.PATCHES / patch.file
                argv = ["patch", "--strip=1", "--fuzz=0", "--no-backup-if-mismatch", f"--input={file}"]
                steps.run(f"patch-{file.stem}", argv, copy)
        sources[name] = copy / "deps" / name
        install_headers(sources[name], name, include)
    ngtcp2, nghttp3 = sources["ngtcp2"], sources["nghttp3"]
    crypto = [ngtcp2 / "crypto" / "shared.c", ngtcp2 / "crypto" / "boringssl" / "boringssl.c"]
    archives = {
        "ngtcp2": (sorted((ngtcp2 / "lib").glob("*.c")), ngtcp2),
        "ngtcp2_crypto_boringssl": (crypto, ngtcp2),
        "nghttp3": ([*sorted((nghttp3 / "lib").glob("*.c")), nghttp3 / "lib/sfparse/sfparse.c"], nghttp3),
    }
    for name, (files, source) in archives.items():
        includes = [include, source / "lib", source / "crypto", source / "lib" / "sfparse", boringssl / "include"]
        flags = [*OBJECT_FLAGS, *(f"-I{directory}" for directory in includes)]
        archive(steps, name, flags, files, job.out / "lib" / f"lib{name}.a")


def _build_curl(job: Job, steps: Steps) -> None:
    include, boringssl = job.out / "include", _boringssl(job)
    shutil.copytree(source_of(job.vendor, "curl-sys", "curl"), steps.directory / "curl", symlinks=True)
    options = CURL_OPTIONS | {
        "OPENSSL_INCLUDE_DIR": str(boringssl / "include"),
        "OPENSSL_SSL_LIBRARY": str(boringssl / "lib" / "libssl.a"),
        "OPENSSL_CRYPTO_LIBRARY": str(boringssl / "lib" / "libcrypto.a"),
        "NGTCP2_INCLUDE_DIR": str(include),
        "NGTCP2_LIBRARY": str(job.out / "lib" / "libngtcp2.a"),
        "NGTCP2_CRYPTO_BORINGSSL_LIBRARY": str(job.out / "lib" / "libngtcp2_crypto_boringssl.a"),
        "NGHTTP3_INCLUDE_DIR": str(include),
        "NGHTTP3_LIBRARY": str(job.out / "lib" / "libnghttp3.a"),
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    steps.run("curl-configure", ["cmake", "-S", "curl", "-B", "curl-build", "-G", "Unix Makefiles", *defines])
    steps.run("curl", ["cmake", "--build", "curl-build", "-j", str(job.jobs), "--target", "libcurl_static"])
    shutil.copy2(steps.directory / "curl-build" / "lib" / "libcurl.a", job.out / "lib")
    shutil.copytree(steps.directory / "curl" / "include" / "curl", include / "curl")


def _build_server(job: Job, steps: Steps, versions: dict[str, str]) -> None:
    own = [job.endpoint / file for file in ("udp.c", "library.c")]
    argv = tcp_tls.server_program(job.shared["openssl"], own, **_told(versions), out=job.out / "bin" / "server")
    steps.run("server", argv)


def _build_client(job: Job, steps: Steps, versions: dict[str, str]) -> None:
    boringssl = _boringssl(job)
    own = [job.endpoint / file for file in ("client.c", "boringssl.c", "udp.c", "library.c")]
    shared = [CURL / "download.c", CONTRACT / "tls.c", CONTRACT / "contract.c"]
    extra: list[str | Path] = []
    wrapped = list(WRAPPED)
    if job.flavour == "noop":
        internal = source_of(job.vendor, "boring-sys", "deps/boringssl")
        aead = steps.directory / "noop_aead.o"
        # as BoringSSL itself is built; its headers are not written for -Wextra
        flags = ["-std=c++17", "-fno-exceptions", "-fno-rtti", *FLAGS, FRAME_POINTERS, "-DNDEBUG"]
        includes = [f"-I{boringssl / 'include'}", f"-I{internal}"]
        steps.run("noop-aead", ["g++", *flags, *includes, "-c", "-o", aead, AEAD / "noop_aead.cc"])
        extra = ["-DQUICBED_NOOP", job.endpoint / "protection.c", aead]
        wrapped += WRAPPED_NOOP
    archives = ["curl", "ngtcp2_crypto_boringssl", "ngtcp2", "nghttp3"]
    libraries: list[str | Path] = [job.out / "lib" / f"lib{name}.a" for name in archives]
    libraries += [boringssl / "lib" / name for name in ("libssl.a", "libcrypto.a")]
    if job.flavour == "pq":
        libraries += [
            ROOT / PQ / "pq.c",
            job.shared["liboqs"] / "lib" / "liboqs.a",
            f"-I{job.shared['liboqs'] / 'include'}",
        ]
    includes = [f"-I{directory}" for directory in (CURL, job.out / "include", boringssl / "include")]
    includes += ["-DCURL_STATICLIB", "-DNGTCP2_STATICLIB"]
    argv: list[str | Path] = [*programs.COMPILER, *_defines(versions), *includes, "-o", job.out / "bin" / "client"]
    argv += [*own, *shared, *extra, *(f"-Wl,--wrap={name}" for name in wrapped), *libraries, "-lstdc++", "-lpthread"]
    steps.run("client", argv)
