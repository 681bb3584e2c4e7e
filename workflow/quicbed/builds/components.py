"""Components: libraries that several builds share, and the reader of captures, each compiled once.

A component is a directory `<component>-<hash>` of the store (`quicbed.builds.build_store`), with `include/`, `lib/`
and sometimes `bin/`. The hash covers the checksum of its package (out of Cargo.lock), patches, own files, options and
compiler flags, the recipe, and the components it needs. `component.json` records that.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicbed.builds import build_store, kit, sources
from quicbed.builds.kit import BuildError
from quicbed.config.model import Project
from quicbed.plan import march

PQ = Path("workflow/crypto/pq")
"""The C interface to liboqs that every TLS library uses."""

FLAGS = ["-O3", "-g1"]
"""Optimised, with line numbers for a profiler; what a library's own build system adds to it is kept."""

FRAME_POINTERS = "-fno-omit-frame-pointer"
"""Lets perf walk stacks cheaply."""

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow"]
"""For code of this project."""

PREFIX = "/nonexistent"
"""Prefix compiled into OpenSSL: nothing is read from there, whatever is installed on a host."""

_INFLUENTIAL = (
    *("AR", "CC", "CXX", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "MAKEFLAGS", "MFLAGS", "CMAKE_", "OPENSSL_"),
    *("CROSS_COMPILE", "OQS_"),
)
"""Beginnings of the names of environment variables that would change what is built."""

LIBOQS_ALGORITHMS = [
    *(f"KEM_kyber_{size}" for size in (512, 768, 1024)),
    *(f"KEM_ml_kem_{size}" for size in (512, 768, 1024)),
    *(f"KEM_bike_l{level}" for level in (1, 3, 5)),
    # Off by default since liboqs 0.13.0, because this version of HQC is not IND-CCA2 secure (CVE-2025-48946). Measured
    # all the same: sizes and costs are those of the published tables. No reason to use it for anything but measuring.
    *(f"KEM_hqc_{size}" for size in (128, 192, 256)),
    *(f"SIG_dilithium_{level}" for level in (2, 3, 5)),
    *(f"SIG_ml_dsa_{size}" for size in (44, 65, 87)),
    # the padded variants are compiled from the files of the others
    *(f"SIG_falcon_{variant}{size}" for variant in ("", "padded_") for size in (512, 1024)),
    *(f"SIG_sphincs_{h}_{s}{v}_simple" for h in ("sha2", "shake") for s in (128, 192, 256) for v in ("f", "s")),
]
"""What algorithms.csv needs, as liboqs' build system calls it."""

LIBOQS_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_C_FLAGS": " ".join(FLAGS),
    # liboqs appends -fomit-frame-pointer to whatever flags it is given; this appends to that
    "CMAKE_C_COMPILE_OBJECT": "<CMAKE_C_COMPILER> <DEFINES> <INCLUDES> <FLAGS> "
    f"{FRAME_POINTERS} -o <OBJECT> -c <SOURCE>",
    "CMAKE_INSTALL_LIBDIR": "lib",
    "CMAKE_POSITION_INDEPENDENT_CODE": "ON",  # a part of quicbed-pq.so
    "BUILD_SHARED_LIBS": "OFF",
    "OQS_BUILD_ONLY_LIB": "ON",
    # vector instructions are chosen at run time, so that a build runs on every processor
    "OQS_DIST_BUILD": "ON",
    "OQS_ENABLE_KEM_HQC": "ON",  # see LIBOQS_ALGORITHMS
    "OQS_MINIMAL_BUILD": ";".join(LIBOQS_ALGORITHMS),
    # SHA-2, SHA-3 and AES of its own: the same code whichever TLS library is measured
    "OQS_USE_OPENSSL": "OFF",
}

OLDER_ALGORITHMS = [f"KEM_hqc_{size}{code}" for size in (128, 192, 256) for code in ("", "_avx2")]
"""Of liboqs 0.9, which still has HQC with AVX2; it leaves such code out of a minimal build unless it is listed."""

OLDER_OPTIONS = LIBOQS_OPTIONS | {"OQS_MINIMAL_BUILD": ";".join(OLDER_ALGORITHMS)}

_OPENSSL_UNUSED = """
aria bf camellia cast cmp cms comp ct docs dtls ec2m engine gost idea legacy md4 mdc2 rc2 rc4 rc5 seed shared sm2
sm3 sm4 srp srtp ssl3 tests tls1 tls1_1 ts whirlpool
"""
"""Algorithms, protocols and tools that no variant uses, left out to build faster. QUIC is in."""

OPENSSL_OPTIONS = [
    f"--prefix={PREFIX}",
    "--libdir=lib",
    f"--openssldir={PREFIX}/ssl",
    # SSLKEYLOGFILE lets an unmodified nginx write a key log when one is asked for.
    "enable-sslkeylog",
    # Packet protection, key schedule, key exchange, signatures and X.509 are built as upstream builds them.
    *(f"no-{feature}" for feature in _OPENSSL_UNUSED.split()),
]

BORINGSSL_OPTIONS = {
    # as boring-sys builds it within a release build that has line numbers: -O2
    "CMAKE_BUILD_TYPE": "RelWithDebInfo",
    **{
        f"CMAKE_{language}_FLAGS{suffix}": flags
        for language in ("C", "CXX", "ASM")
        for suffix, flags in {
            "": f"-ffunction-sections -fdata-sections -fPIC {FRAME_POINTERS} -w",
            "_RELWITHDEBINFO": "-O2 -g1 -DNDEBUG",
        }.items()
    },
}

_QUICTLS_OPTIONS = """
enable-tls1_3 no-makedepend no-dgram no-ssl3 no-psk no-srp no-zlib no-egd no-idea no-rc5 no-rc4 no-afalgeng no-comp
no-cms no-ct no-srtp no-ts no-gost no-dso no-ec2m no-tls1 no-tls1_1 no-tls1_2 no-dtls no-dtls1 no-dtls1_2 no-ssl
no-ssl3-method no-tls1-method no-tls1_1-method no-tls1_2-method no-dtls1-method no-dtls1_2-method no-siphash
no-whirlpool no-aria no-bf no-blake2 no-sm2 no-sm3 no-sm4 no-camellia no-cast no-md4 no-mdc2 no-ocb no-rc2 no-rmd160
no-scrypt no-seed no-weak-ssl-ciphers no-shared no-tests no-uplink no-cmp no-fips no-padlockeng no-siv no-legacy
no-deprecated
"""
"""What MsQuic configures quictls with: `OPENSSL_CONFIG_FLAGS` in submodules/CMakeLists.txt of its package."""

QUICTLS_OPTIONS = [
    f"--prefix={PREFIX}",
    "--libdir=lib",
    f"--openssldir={PREFIX}/ssl",
    *_QUICTLS_OPTIONS.split(),
]

MSQUIC_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",  # -O3 -DNDEBUG
    "CMAKE_C_FLAGS": f"-g1 {FRAME_POINTERS}",
    "QUIC_BUILD_SHARED": "OFF",
    "QUIC_EMBED_GIT_HASH": "OFF",  # it would be that of whatever repository lies around the build
    "QUIC_ENABLE_LOGGING": "OFF",
    "QUIC_TLS_LIB": "quictls",
}

MSQUIC_TLS = """cmake_minimum_required(VERSION 3.16)
project(OpenSSLQuic C)
add_library(OpenSSLQuic INTERFACE)
target_include_directories(OpenSSLQuic INTERFACE ${QUICBED_QUICTLS}/include)
add_library(OpenSSLQuic::OpenSSLQuic ALIAS OpenSSLQuic)
"""
"""Takes the place of MsQuic's own build of quictls: the headers of the component."""

PICOTLS = """cmake_minimum_required(VERSION 3.16)
project(picotls C)
include_directories(deps/cifra/src/ext deps/cifra/src deps/micro-ecc include ${QUICBED_OPENSSL}/include)
add_definitions(-D_GNU_SOURCE)
add_library(picotls-core STATIC lib/hpke.c lib/picotls.c lib/pembase64.c)
add_library(picotls-openssl STATIC lib/openssl.c)
file(GLOB CIFRA deps/cifra/src/*.c)
list(FILTER CIFRA INCLUDE REGEX
  "/(aes|blockwise|chacha20|chash|curve25519|drbg|hmac|gcm|gf128|modes|poly1305|sha256|sha512)\\\\.c$")
add_library(picotls-minicrypto STATIC ${CIFRA} deps/micro-ecc/uECC.c lib/cifra.c lib/cifra/x25519.c lib/cifra/chacha20.c
  lib/cifra/aes128.c lib/cifra/aes256.c lib/cifra/random.c lib/minicrypto-pem.c lib/uecc.c lib/asn1.c lib/ffx.c)
add_library(picotls-fusion STATIC lib/fusion.c)
target_compile_options(picotls-fusion PRIVATE -mavx2 -maes -mpclmul -mvaes -mvpclmulqdq)
"""
"""picotls' own CMakeLists.txt without what it looks for on the host: pkg-config, libbrotli, DTrace and programs."""

PICOTLS_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",  # -O3 -DNDEBUG, and before that what picotls' own CMakeLists.txt sets
    "CMAKE_C_FLAGS": f"-std=gnu99 -pthread -O2 -g1 {FRAME_POINTERS} -w",
}

PICOQUIC_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_C_FLAGS": f"-g1 {FRAME_POINTERS} -w",
    "OPENSSL_USE_STATIC_LIBS": "ON",
    # programs, and the logs and HTTP that only they use
    **dict.fromkeys(
        [
            *("BUILD_DEMO", "BUILD_HTTP", "BUILD_LOGLIB", "BUILD_LOGREADER", "BUILD_PQBENCH", "BUILD_PICO_SIM"),
            *("picoquic_BUILD_TESTS", "BUILD_TESTING"),
        ],
        "OFF",
    ),
    "DISABLE_DEBUG_PRINTF": "ON",
}

PICOQUIC_FLAGS = [
    *("-std=gnu11", "-g1", FRAME_POINTERS, "-w", "-O3", "-DNDEBUG", "-DDISABLE_DEBUG_PRINTF", "-DPTLS_WITHOUT_FUSION"),
    *("-fno-exceptions", "-fno-signed-zeros", "-frename-registers", "-fno-trapping-math"),
]
"""What picoquic's own CMakeLists.txt compiles a file with, given these options."""

PICOQUIC_NEEDED = ("picoquic/CMakeLists.txt", "picoquic/picoquic/picoquic.h", "picotls/include/picotls.h")
"""Files below third_party/ of aiopquic by which the layout is known."""

BORING_SYS_PATCH = "boring-pq.patch"
"""The patch that boring-sys applies to BoringSSL whatever its features; the crate boring needs it."""


@dataclass(frozen=True)
class Place:
    """Where a component is built and from what."""

    project: Project
    name: str
    source: Path
    """The fetched package."""
    work: Path
    """An empty directory for copies and objects, removed afterwards."""
    out: Path
    """The empty directory that becomes the component; its path changes afterwards."""
    needs: dict[str, Path]
    """The components needed."""
    jobs: int
    log: Path

    def run(self, *argv: str | Path, cwd: Path | None = None) -> None:
        """Run a command of the build without anything in the environment that would change what is built."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_INFLUENTIAL)}
        # OpenSSL compiles in the time of its build otherwise.
        environment |= {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
        kit.run([str(word) for word in argv], log=self.log, cwd=cwd or self.work, env=environment)

    def cmake(self, source: Path, options: dict[str, str], *targets: str) -> Path:
        """Configure and build with CMake; returns the directory of the objects."""
        objects = self.work / "objects"
        defines = [f"-D{name}={value}" for name, value in options.items()]
        self.run("cmake", "-S", source, "-B", objects, "-G", "Unix Makefiles", *defines)
        chosen = ["--target", *targets] if targets else []
        self.run("cmake", "--build", objects, "--parallel", str(self.jobs), *chosen)
        return objects


@dataclass(frozen=True)
class Component:
    """How a component is made."""

    package: str
    """Package of Cargo.lock that holds its source."""
    workspace: Path = field(default=kit.SOURCES, kw_only=True)
    """Directory of that Cargo.lock."""
    build: Callable[[Place], None]
    options: Any = None
    """Everything beside the build function that decides what is compiled."""
    files: tuple[Path, ...] = ()
    """Files and directories of this repository that are compiled in or applied."""
    needs: tuple[str, ...] = ()
    companions: tuple[Path, ...] = ()
    """Files of this repository that a build compiles itself to use the component."""
    variables: tuple[str, ...] = ()
    """Environment variables that tell the build scripts of endpoints where it is."""
    compiles: str | None = None
    """Package of this repository that cargo compiles, with all of Cargo.lock that it depends on."""
    source: str | None = None
    """Directory in the package with its source, for what is compiled against its internal headers."""
    recipe: str = field(init=False)
    """Text of the build function."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", inspect.getsource(self.build))


_DISPATCH = re.compile(
    r"defined\((OQS_ENABLE_(KEM|SIG)_(\w+)_(?:avx2|x86_64))\)\n#if defined\(OQS_DIST_BUILD\)\n\s*if \((.+)\) \{\n"
)
_BIKE = re.compile(r"is_avx(2|512)_enabled\(void\)\s*\{.*?return (OQS_CPU_has_extension\(\w+\));", re.DOTALL)


def dispatch_header(sources: Path) -> str:
    """When a liboqs takes vector instructions, as a C header: the conditions of its own code, out of its sources.

    Raises BuildError where functions of one algorithm have different ones, or where those of BIKE are not found.
    """
    found: dict[str, dict[str, str]] = {}
    for file in sorted(sources.glob("src/*/*/*.c")):
        for compiled, kind, algorithm, usable in _DISPATCH.findall(file.read_text(encoding="utf-8")):
            found.setdefault(f"defined({compiled})", {}).setdefault(usable, f"OQS_{kind}_alg_{algorithm}")
    lines = []
    for compiled, conditions in found.items():
        if len(conditions) > 1:
            raise BuildError(f"{sources}: {compiled} has several conditions: {', '.join(conditions)}")
        lines += [(compiled, algorithm, "AVX2", usable) for usable, algorithm in conditions.items()]
    # one set of functions for all sizes, which ask by themselves
    bike = sources / "src/kem/bike/additional_r4/cpu_features.h"
    extensions = dict(_BIKE.findall(bike.read_text(encoding="utf-8")))
    if set(extensions) != {"2", "512"}:
        raise BuildError(f"{bike}: does not tell when BIKE takes AVX2 and AVX-512")
    for level, (width, name) in itertools.product((1, 3, 5), (("512", "AVX-512"), ("2", "AVX2"))):
        compiled = f"defined(OQS_ENABLE_KEM_bike_l{level}) && defined(OQS_DIST_X86_64_BUILD)"
        lines.append((compiled, f"OQS_KEM_alg_bike_l{level}", name, extensions[width]))
    parts = [
        f'#if {compiled}\nQUICBED_DISPATCH({name}, "{how}", {usable})\n#endif' for compiled, name, how, usable in lines
    ]
    return "\n".join([*parts, ""])


def _build_liboqs(place: Place) -> None:
    objects = place.cmake(place.source / "liboqs", LIBOQS_OPTIONS)
    place.run("cmake", "--install", objects, "--prefix", place.out)
    header = dispatch_header(place.source / "liboqs")
    (place.out / "include" / "quicbed_dispatch.h").write_text(header, encoding="utf-8")
    place.run("ar", "qs", place.out / "lib" / "liboqs.a", place.needs["liboqs-0.9"] / "lib" / "liboqs-0.9.o")


def _build_older_liboqs(place: Place) -> None:
    objects = place.cmake(place.source / "liboqs", OLDER_OPTIONS)
    installed, own = place.work / "installed", place.project.root.absolute() / PQ
    place.run("cmake", "--install", objects, "--prefix", installed)
    header = dispatch_header(place.source / "liboqs")
    (installed / "include" / "quicbed_dispatch.h").write_text(header, encoding="utf-8")
    (place.out / "lib").mkdir()
    compiler = ("gcc", "-std=c11", *FLAGS, FRAME_POINTERS, *WARNINGS, "-fPIC", f"-I{own}", f"-I{installed / 'include'}")
    place.run(*compiler, "-c", "-o", place.work / "older.o", own / "older.c")
    # Its symbols have the names of those of the other liboqs, beside which it is linked.
    merged, result = place.work / "merged.o", place.out / "lib" / "liboqs-0.9.o"
    place.run("gcc", "-r", "-nostdlib", "-o", merged, place.work / "older.o", installed / "lib" / "liboqs.a")
    renamed = "OQS_randombytes_custom_algorithm=quicbed_older_random"  # known answers have random numbers of their own
    shown = [f"--keep-global-symbol={name}" for name in ("quicbed_older_kem", "quicbed_older_random")]
    place.run("objcopy", f"--redefine-sym={renamed}", *shown, merged, result)


def _build_openssl(place: Place) -> None:
    # it builds inside its source tree
    tree = place.work / "openssl"
    shutil.copytree(place.source / "openssl", tree, symlinks=True)
    make = ["make", f"-j{place.jobs}"]
    place.run("perl", "Configure", "linux-x86_64", *OPENSSL_OPTIONS, *FLAGS, FRAME_POINTERS, cwd=tree)
    place.run(*make, "build_generated", cwd=tree)
    place.run(*make, "libcrypto.a", "libssl.a", "apps/openssl", cwd=tree)
    for directory in ("bin", "lib"):
        (place.out / directory).mkdir()
    shutil.copy2(tree / "apps" / "openssl", place.out / "bin")
    for library in ("libcrypto.a", "libssl.a"):
        shutil.copy2(tree / library, place.out / "lib")
    templates = shutil.ignore_patterns("*.in")
    shutil.copytree(tree / "include" / "openssl", place.out / "include" / "openssl", ignore=templates)


def _build_openssl_provider(place: Place) -> None:
    own = place.project.root / PQ
    provider = own / "openssl-provider"
    openssl, liboqs = place.needs["openssl"], place.needs["liboqs"]
    (place.out / "lib").mkdir()
    # The provider has a libcrypto of its own inside: none of its symbols may mix with those of the program. That
    # libcrypto has thread-specific data with destructors, so it must not be unloaded before the process ends.
    place.run(
        *("gcc", "-std=c11", *FLAGS, FRAME_POINTERS, *WARNINGS, "-fPIC", "-fvisibility=hidden", "-shared", "-pthread"),
        *("-o", place.out / "lib" / "quicbed-pq.so"),
        *(f"-I{directory}" for directory in (own, liboqs / "include", openssl / "include")),
        *(own / "pq.c", *sorted(provider.glob("*.c"))),
        *(liboqs / "lib" / "liboqs.a", openssl / "lib" / "libcrypto.a"),
        *("-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-z,nodelete"),
    )
    shutil.copy2(provider / "openssl.cnf", place.out)


def _build_boringssl(place: Place) -> None:
    tree = place.work / "boringssl"
    shutil.copytree(place.source / "deps" / "boringssl", tree, symlinks=True)
    patches = [place.source / "patches" / BORING_SYS_PATCH]
    options = dict(BORINGSSL_OPTIONS)
    if place.name == "boringssl-pq":
        patches += sorted((place.project.root / kit.PATCHES / "boringssl").glob("*.patch"))
        # pq.h and algorithms.h; what they declare is linked with the endpoint
        for language in ("C", "CXX"):
            options[f"CMAKE_{language}_FLAGS"] += f" -I{place.project.root / PQ}"
    for patch in patches:
        place.run("patch", "--strip=1", "--fuzz=0", "--no-backup-if-mismatch", f"--input={patch}", cwd=tree)
    objects = place.cmake(tree, options, "crypto", "ssl")
    (place.out / "lib").mkdir()
    for library in ("libcrypto.a", "libssl.a"):
        shutil.copy2(objects / library, place.out / "lib")
    shutil.copytree(tree / "include", place.out / "include")


def _build_quictls(place: Place) -> None:
    # it builds inside its source tree
    tree = place.work / "quictls"
    shutil.copytree(place.source / "submodules" / "quictls", tree, symlinks=True)
    make = ["make", f"-j{place.jobs}"]
    place.run("perl", "Configure", "linux-x86_64", *QUICTLS_OPTIONS, *FLAGS, FRAME_POINTERS, cwd=tree)
    place.run(*make, "build_generated", cwd=tree)
    place.run(*make, "libcrypto.a", "libssl.a", cwd=tree)
    (place.out / "lib").mkdir()
    for library in ("libcrypto.a", "libssl.a"):
        shutil.copy2(tree / library, place.out / "lib")
    templates = shutil.ignore_patterns("*.in")
    shutil.copytree(tree / "include" / "openssl", place.out / "include" / "openssl", ignore=templates)


def _build_msquic(place: Place) -> None:
    tree = place.work / "msquic"
    shutil.copytree(place.source, tree, symlinks=True, ignore=shutil.ignore_patterns("quictls"))
    for file in COMPONENTS[place.name].files:
        patch = place.project.root.absolute() / file
        place.run("patch", "--strip=1", "--fuzz=0", "--no-backup-if-mismatch", f"--input={patch}", cwd=tree)
    tls = place.work / "tls"
    tls.mkdir()
    (tls / "CMakeLists.txt").write_text(MSQUIC_TLS, encoding="utf-8")
    found = {"FETCHCONTENT_SOURCE_DIR_OPENSSLQUIC": str(tls), "QUICBED_QUICTLS": str(place.needs["quictls"])}
    objects = place.cmake(tree, MSQUIC_OPTIONS | found, "core", "msquic_platform")
    (place.out / "lib").mkdir()
    for library in ("libcore.a", "libmsquic_platform.a"):
        shutil.copy2(objects / "obj" / "Release" / library, place.out / "lib")
    shutil.copytree(tree / "src" / "inc", place.out / "include")


def _build_picoquic(place: Place) -> None:
    third_party = place.source / "third_party"
    if missing := [name for name in PICOQUIC_NEEDED if not (third_party / name).is_file()]:
        raise BuildError(f"{third_party}: has no {', '.join(missing)}; {kit.SDISTS} names a package of another layout")
    openssl = place.needs["openssl"]
    # CMake may write into the sources
    tls, tree = place.work / "picotls", place.work / "picoquic"
    shutil.copytree(third_party / "picotls", tls, symlinks=True)
    shutil.copytree(third_party / "picoquic", tree, symlinks=True)
    (tls / "CMakeLists.txt").write_text(PICOTLS, encoding="utf-8")
    objects = place.cmake(tls, PICOTLS_OPTIONS | {"QUICBED_OPENSSL": str(openssl)})
    (place.out / "lib").mkdir()
    for library in ("core", "openssl", "minicrypto", "fusion"):
        shutil.move(objects / f"libpicotls-{library}.a", place.out / "lib")
    shutil.rmtree(objects)
    found = {"OPENSSL_ROOT_DIR": str(openssl), "PTLS_INCLUDE_DIR": str(tls / "include"), "PTLS_PREFIX": str(place.out)}
    objects = place.cmake(tree, PICOQUIC_OPTIONS | found, "picoquic-core")
    shutil.copy2(objects / "libpicoquic-core.a", place.out / "lib")
    shutil.copytree(tls / "include", place.out / "include")
    for header in (tree / "picoquic").glob("*.h"):
        shutil.copy2(header, place.out / "include")


def _build_searched_picoquic(place: Place) -> None:
    """picoquic with one file changed, compiled as its own build system has compiled it."""
    built = place.needs["picoquic"]
    shutil.copytree(built / "include", place.out / "include")
    shutil.copytree(built / "lib", place.out / "lib")
    tree = place.work / "picoquic"
    shutil.copytree(place.source / "third_party" / "picoquic" / "picoquic", tree / "picoquic", symlinks=True)
    patch = place.project.root.absolute() / PICOQUIC_SEARCH
    place.run("patch", "--strip=1", "--fuzz=0", "--no-backup-if-mismatch", f"--input={patch}", cwd=tree)
    changed = place.work / "sacks.c.o"
    include = f"-I{built / 'include'}"
    place.run("gcc", *PICOQUIC_FLAGS, include, "-c", "-o", changed, tree / "picoquic" / "sacks.c")
    place.run("ar", "r", place.out / "lib" / "libpicoquic-core.a", changed)


def _build_capture_reader(place: Place) -> None:
    vendor = place.source.parent
    place.run(
        *("cargo", "build", "--release", "--locked", "--offline", "--jobs", str(place.jobs)),
        *("--manifest-path", place.project.root.absolute() / kit.SOURCES / "Cargo.toml"),
        *("--package", CAPTURE_PACKAGE, "--target-dir", place.work / "target"),
        *("--config", 'source.crates-io.replace-with="vendored"'),
        *("--config", f"source.vendored.directory={json.dumps(str(vendor))}"),
    )
    (place.out / "bin").mkdir()
    shutil.copy2(place.work / "target" / "release" / CAPTURE_PACKAGE, place.out / "bin" / "capture-reader")


CAPTURE_PACKAGE = "quicbed-capture"
PICOQUIC_SEARCH = kit.PATCHES / "picoquic" / "search.patch"
MSQUIC_NOOP = kit.PATCHES / "msquic" / "noop.patch"
_CORE = (PQ / "pq.c", PQ / "pq.h", PQ / "kem.h", PQ / "algorithms.h")

COMPONENTS = {
    "liboqs": Component(
        "oqs-sys",
        _build_liboqs,
        [LIBOQS_OPTIONS, inspect.getsource(dispatch_header), _DISPATCH.pattern, _BIKE.pattern],
        needs=("liboqs-0.9",),
        companions=_CORE,
        variables=("QUICBED_LIBOQS",),
    ),
    "openssl": Component(
        "openssl-src", _build_openssl, [OPENSSL_OPTIONS, FLAGS, FRAME_POINTERS], variables=("QUICBED_OPENSSL",)
    ),
    "openssl-provider": Component(
        "openssl-src",
        _build_openssl_provider,
        [FLAGS, FRAME_POINTERS],
        files=(*_CORE, PQ / "openssl-provider"),
        needs=("liboqs", "openssl"),
        variables=("QUICBED_OPENSSL_PROVIDER",),
    ),
    "liboqs-0.9": Component(
        "oqs-sys",
        _build_older_liboqs,
        [OLDER_OPTIONS, FLAGS, FRAME_POINTERS, inspect.getsource(dispatch_header), _DISPATCH.pattern, _BIKE.pattern],
        workspace=kit.OLDER_LIBOQS,
        files=(PQ / "older.c", PQ / "kem.h"),
    ),
    "boringssl": Component(
        "boring-sys",
        _build_boringssl,
        [BORINGSSL_OPTIONS, BORING_SYS_PATCH],
        # boring-sys compiles no BoringSSL of its own where BORING_BSSL_PATH tells of one
        variables=("QUICBED_BORINGSSL", "BORING_BSSL_PATH"),
        source="deps/boringssl",
    ),
    "boringssl-pq": Component(
        "boring-sys",
        _build_boringssl,
        [BORINGSSL_OPTIONS, BORING_SYS_PATCH],
        files=(PQ / "pq.h", PQ / "algorithms.h", kit.PATCHES / "boringssl"),
        variables=("QUICBED_BORINGSSL", "BORING_BSSL_PATH"),
        source="deps/boringssl",
    ),
    "quictls": Component(
        "msquic", _build_quictls, [QUICTLS_OPTIONS, FLAGS, FRAME_POINTERS], variables=("QUICBED_QUICTLS",)
    ),
    "msquic": Component(
        "msquic", _build_msquic, [MSQUIC_OPTIONS, MSQUIC_TLS], needs=("quictls",), variables=("QUICBED_MSQUIC",)
    ),
    "msquic-noop": Component(
        "msquic",
        _build_msquic,
        [MSQUIC_OPTIONS, MSQUIC_TLS],
        files=(MSQUIC_NOOP,),
        needs=("quictls",),
        variables=("QUICBED_MSQUIC",),
    ),
    "msquic-jumbo": Component(
        "msquic",
        _build_msquic,
        [MSQUIC_OPTIONS, MSQUIC_TLS],
        files=(MSQUIC_NOOP, kit.PATCHES / "msquic" / "mtu.patch"),
        needs=("quictls",),
        variables=("QUICBED_MSQUIC",),
    ),
    "picoquic": Component(
        "aiopquic",
        _build_picoquic,
        [PICOTLS, PICOTLS_OPTIONS, PICOQUIC_OPTIONS, PICOQUIC_NEEDED],
        needs=("openssl",),
        variables=("QUICBED_PICOQUIC",),
    ),
    "picoquic-searched": Component(
        "aiopquic",
        _build_searched_picoquic,
        [PICOQUIC_FLAGS],
        files=(PICOQUIC_SEARCH,),
        needs=("picoquic",),
        variables=("QUICBED_PICOQUIC",),
    ),
    "capture-reader": Component(
        "pcap-parser",
        _build_capture_reader,
        files=(Path("workflow/capture"), Path("workflow/quicbed/wire/versions.csv")),
        compiles=CAPTURE_PACKAGE,
    ),
}


def _component(name: str) -> Component:
    try:
        return COMPONENTS[name]
    except KeyError:
        raise BuildError(f"components: there is no `{name}`, only {', '.join(COMPONENTS)}") from None


def _package(project: Project, name: str) -> dict[str, str]:
    """The one version of the package that a component's source is in."""
    package, workspace = _component(name).package, _component(name).workspace
    found = [p for p in kit.closure(project.root, [package], workspace) if p["name"] == package]
    if len(found) != 1:
        lock = project.root / workspace / "Cargo.lock"
        raise BuildError(f"{lock}: has {len(found)} versions of {package}, component {name} needs one")
    return found[0]


def identity(project: Project, name: str) -> dict[str, Any]:
    """Everything a component is a function of; `files`, which tells where that stands, is for the record alone."""
    component = _component(name)
    compiled: dict[str, Any] = {}
    if component.compiles:
        manifest = kit.parsed((project.root / kit.SOURCES / "Cargo.toml").read_text(encoding="utf-8"))
        compiled = {"crates": kit.closure(project.root, [component.compiles]), "profile": manifest["profile"]}
    return {
        "component": name,
        "package": _package(project, name),
        "recipe": component.recipe,
        "options": component.options,
        "contents": kit.contents(project.root, component.files),
        "files": kit.hash_files(project.root, component.files),
        "needs": [component_id(project, needed) for needed in component.needs],
        **compiled,
    } | march.identified(project)


def component_id(project: Project, name: str) -> str:
    """Directory name of a component: `<component>-<12 hex digits>`."""
    return f"{name}-{kit.identified(identity(project, name))}"


def directory(project: Project, name: str) -> Path:
    """Where a component is or will be."""
    return _entry(project, name).directory


def _entry(project: Project, name: str) -> build_store.Entry:
    return build_store.of_project(project, "components", component_id(project, name))


def listing(project: Project, name: str) -> Path:
    """A copy of component.json in the clone."""
    return project.build / "components" / f"{component_id(project, name)}.json"


def is_built(project: Project, name: str) -> bool:
    """Whether a component is there and complete."""
    return (directory(project, name) / "component.json").is_file()


def forget(project: Project) -> None:
    """Remove listings of components that are not in the store any more: they are made again where they are needed."""
    for copy in (project.build / "components").glob("*.json"):
        if not (build_store.of_project(project, "components", copy.stem).directory / "component.json").is_file():
            copy.unlink(missing_ok=True)


def environment(project: Project, names: Sequence[str]) -> dict[str, str]:
    """Environment variables that tell build scripts where components are."""
    return {variable: str(directory(project, name)) for name in names for variable in _component(name).variables}


def internal_sources(project: Project, names: Sequence[str]) -> dict[str, str]:
    """Environment variables `<variable>_SOURCE` with the unpatched sources of components that others may look into."""
    found = {}
    for name in names:
        component = _component(name)
        if component.source is not None:
            package = _package(project, name)
            place = kit.vendor_directory(project) / f"{package['name']}-{package['version']}" / component.source
            found[f"{component.variables[0]}_SOURCE"] = str(place.absolute())
    return found


def provide(project: Project, name: str, *, jobs: int, log: Path) -> Path:
    """Build a component unless it is there already; returns its directory."""
    component = _component(name)

    def fill(out: Path) -> None:
        needs = {needed: provide(project, needed, jobs=jobs, log=log) for needed in component.needs}
        sources.need(project, log)
        vendor = kit.vendor_directory(project)
        package = _package(project, name)
        for one in [package, *identity(project, name).get("crates", ())]:
            kit.verify_source(vendor, one)
        work = (project.build / "work" / component_id(project, name)).absolute()
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        source = (vendor / f"{package['name']}-{package['version']}").absolute()
        began = time.monotonic()
        with kit.unflagged(), march.compilers(project):
            component.build(Place(project, name, source, work, out, needs, jobs, log))
        seconds = round(time.monotonic() - began, 1)
        programs = ("rustc", "gcc") if component.compiles else ("gcc", "g++")
        told = {"compiler": {program: _version(program) for program in programs}, "seconds": seconds}
        kit.write_json(out / "component.json", {**identity(project, name), **told})
        shutil.rmtree(work)

    final = build_store.provide(_entry(project, name), project, fill)
    kit.have_content(listing(project, name), (final / "component.json").read_bytes())
    return final


def _version(program: str) -> str | None:
    """What a compiler says about itself; None where it is missing, and nothing has needed it."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def read(project: Project, name: str) -> dict[str, Any]:
    """component.json of a built component: its identity, compilers and the seconds its build took."""
    file = directory(project, name) / "component.json"
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise BuildError(f"{file}: cannot be read ({error}); delete {file.parent} and build again") from None
    return data
