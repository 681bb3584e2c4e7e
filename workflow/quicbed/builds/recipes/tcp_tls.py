"""Builds of TCP+TLS: nginx as server and a libcurl program as client, both on OpenSSL, for pages with HTTP/2.

The vendored sources are used as they are, from a copy, because nginx builds inside its source tree. OpenSSL, which is
the component `openssl`, and libcurl are linked statically: the programs then need nothing but the C library, and a
build can be moved.

The flavours ``noop`` and ``pq`` consist of the very files of the ``stock`` one and, beside them, a provider with the
OpenSSL configuration that loads it: that of workflow/crypto/noop-provider, or that of
workflow/crypto/pq/openssl-provider and a program that times primitives.

Layout of a build::

    bin/client, bin/server      the endpoint programs
    bin/openssl, sbin/nginx
    bin/primitives              times cryptographic operations (pq only)
    etc/openssl-*.cnf           named in OPENSSL_CONF by the endpoint programs
    include/openssl, lib/*.a    of OpenSSL, for programs that are to use the same library
    lib/quicbed-*.so            the provider (noop and pq only)
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quicbed.builds.components import FLAGS, FRAME_POINTERS, PQ, PREFIX, WARNINGS
from quicbed.builds.kit import BuildError, Job
from quicbed.builds.recipes import openssl as programs

ROOT = Path(__file__).resolve().parents[4]
ENDPOINT = ROOT / "workflow" / "endpoints" / "tcp-tls"
CONTRACT = ROOT / programs.CONTRACT
TLS = ROOT / programs.TLS
CURL = ENDPOINT.parent / "engine" / "curl"
NGINX = ENDPOINT.parent / "engine" / "nginx"
PROVIDER = ROOT / "workflow" / "crypto" / "noop-provider"

_NGINX_UNUSED = """
access auth_basic autoindex browser charset empty_gif fastcgi geo grpc gzip limit_conn limit_req map memcached mirror
proxy referer rewrite scgi split_clients ssi upstream_hash upstream_ip_hash upstream_keepalive upstream_least_conn
upstream_random upstream_zone userid uwsgi
"""
"""Modules of nginx that are left out; without rewrite and gzip it needs no development packages of PCRE and zlib."""

NGINX_OPTIONS = [
    f"--prefix={PREFIX}",
    "--with-http_ssl_module",
    "--with-http_v2_module",
    "--without-pcre",
    "--without-http-cache",
    *(f"--without-http_{module}_module" for module in _NGINX_UNUSED.split()),
]

CURL_OPTIONS = {
    "CMAKE_BUILD_TYPE": "None",  # exactly FLAGS
    "CMAKE_C_FLAGS": " ".join([*FLAGS, FRAME_POINTERS]),
    "BUILD_SHARED_LIBS": "OFF",
    "BUILD_STATIC_LIBS": "ON",
    "BUILD_CURL_EXE": "OFF",
    "BUILD_EXAMPLES": "OFF",
    "BUILD_LIBCURL_DOCS": "OFF",
    "BUILD_MISC_DOCS": "OFF",
    "BUILD_TESTING": "OFF",
    "CMAKE_DISABLE_FIND_PACKAGE_Perl": "ON",  # only for the documentation, which is not in the package
    "CURL_BROTLI": "OFF",
    "CURL_CA_BUNDLE": "none",
    "CURL_CA_PATH": "none",
    "CURL_DISABLE_ALTSVC": "ON",
    "CURL_DISABLE_COOKIES": "ON",
    "CURL_DISABLE_DOH": "ON",
    "CURL_DISABLE_HSTS": "ON",
    "CURL_DISABLE_INSTALL": "ON",
    "CURL_DISABLE_NETRC": "ON",
    "CURL_DISABLE_PROXY": "ON",
    "CURL_DISABLE_WEBSOCKETS": "ON",
    "CURL_ENABLE_EXPORT_TARGET": "OFF",
    "CURL_USE_LIBPSL": "OFF",
    "CURL_USE_LIBSSH2": "OFF",
    "CURL_USE_PKGCONFIG": "OFF",
    "CURL_ZLIB": "OFF",
    "CURL_ZSTD": "OFF",
    "ENABLE_CURL_MANUAL": "OFF",
    "ENABLE_THREADED_RESOLVER": "OFF",
    "ENABLE_UNIX_SOCKETS": "OFF",
    "HTTP_ONLY": "ON",
    "OPENSSL_USE_STATIC_LIBS": "ON",
    "PICKY_COMPILER": "OFF",
    "USE_LIBIDN2": "OFF",
    "USE_NGHTTP2": "ON",
}


NGHTTP2_FLAGS = [
    *("-std=gnu11", *FLAGS, FRAME_POINTERS, "-w", "-DNDEBUG", "-DNGHTTP2_STATICLIB"),
    *("-DHAVE_ARPA_INET_H=1", "-DHAVE_NETINET_IN_H=1", "-DHAVE_TIME_H=1", "-DHAVE_CLOCK_GETTIME=1"),
]
"""As the release build of nghttp2: no assertions; with what its configuration finds on Linux."""

FROM_STOCK = True
FILES = ("openssl.py",)


def build(job: Job) -> dict[str, Any]:
    """Build a flavour; another one than stock from the finished stock build. Returns what build.json records."""
    return make(
        vendor=job.vendor,
        openssl=job.shared["openssl"],
        provider=job.shared.get("openssl-provider"),
        out=job.out,
        flavour=job.flavour,
        work=job.project.build / "work",
        jobs=job.jobs,
        base=job.stock,
    )


def make(
    vendor: Path,
    openssl: Path,
    out: Path,
    flavour: str,
    work: Path,
    jobs: int,
    base: Path | None,
    provider: Path | None = None,
) -> dict[str, Any]:
    """Build a flavour into ``out``; returns compiler, flags, upstream versions and seconds per step.

    ``vendor`` holds the packages openssl-src, nginx-src, curl-sys and libnghttp2-sys; ``openssl`` and, for the flavour
    pq, ``provider`` are components. ``base`` is the finished stock build that another flavour reuses. Source copies,
    objects and logs
    live in ``work``/tcp-tls-``flavour``; what succeeded is removed but for the logs.
    """
    versions = versions_of(vendor)
    steps = Steps(work.absolute() / f"tcp-tls-{flavour}")
    out = out.absolute()
    if flavour == "stock":
        _build_stock(vendor, openssl, out, steps, jobs, versions)
    elif flavour not in ("noop", "pq"):
        raise BuildError(f"tcp-tls: has no flavour `{flavour}`, only `stock`, `noop` and `pq`")
    else:
        if base is None or not (base / "sbin" / "nginx").is_file():
            raise BuildError(f"{base}: holds no stock build; build the flavour `stock` before `{flavour}`")
        link_tree(base, out)
        if flavour == "noop":
            _build_provider(out, steps)
        elif provider is None:
            raise BuildError("tcp-tls: the flavour `pq` needs the component openssl-provider")
        else:
            programs.place_provider(provider, out)
            _build_primitives(out, steps, versions)
    steps.clean()
    return {
        "compiler": first_line(["gcc", "--version"]),
        "flags": [*FLAGS, FRAME_POINTERS],
        "versions": versions,
        "options": {
            "nginx": NGINX_OPTIONS,
            "curl": [f"{name}={value}" for name, value in CURL_OPTIONS.items()],
            "nghttp2": NGHTTP2_FLAGS,
        },
        "seconds": steps.seconds,
    }


class Steps:
    """Commands of one build, each with its own log file and duration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seconds: dict[str, float] = {}
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)

    def run(self, step: str, argv: Sequence[str | Path], cwd: Path | None = None) -> None:
        """Run a command and log it; BuildError with the last lines of the log if it fails."""
        log = self.directory / f"{step}.log"
        environment = {name: value for name, value in os.environ.items() if name not in _INFLUENTIAL}
        environment |= {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
        began = time.monotonic()
        with log.open("wb") as output:
            try:
                code = subprocess.run(
                    [str(word) for word in argv],
                    cwd=cwd or self.directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                ).returncode
            except FileNotFoundError:
                raise BuildError(f"{argv[0]} is not installed; run `make setup`") from None
        self.seconds[step] = round(time.monotonic() - began, 1)
        if code != 0:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            end = "\n  ".join(lines[-15:])
            raise BuildError(f"building {step} failed with exit code {code}; the end of {log}:\n  {end}")

    def clean(self) -> None:
        """Remove sources and objects, keep the logs."""
        for entry in self.directory.iterdir():
            if entry.is_symlink():
                entry.unlink()
            elif entry.is_dir():
                shutil.rmtree(entry)


_INFLUENTIAL = {
    *("CC", "CXX", "CFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS", "MFLAGS", "CMAKE_GENERATOR"),
    *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_LOCAL_CONFIG_DIR", "CROSS_COMPILE"),
}
"""Environment variables that would change what is built."""


def source_of(vendor: Path, package: str, directory: str) -> Path:
    """Return the upstream source inside the one vendored version of a package."""
    found = [path for path in sorted(vendor.glob(f"{package}-[0-9]*")) if (path / directory).is_dir()]
    if len(found) != 1:
        raise BuildError(f"{vendor}: holds {len(found)} versions of {package}, one is needed; fetch the sources again")
    return (found[0] / directory).absolute()


def _sources(vendor: Path) -> dict[str, Path]:
    return {
        "nginx": source_of(vendor, "nginx-src", "nginx"),
        "curl": source_of(vendor, "curl-sys", "curl"),
    }


def find_in(file: Path, pattern: str) -> str:
    """Return what the one group of a pattern matches in a file that tells a version."""
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise BuildError(f"{file}: does not tell a version")
    return match[1]


def versions_of(vendor: Path) -> dict[str, str]:
    """Return the upstream versions, as the sources tell them."""
    openssl = source_of(vendor, "openssl-src", "openssl") / "VERSION.dat"
    sources = _sources(vendor)
    return {
        "openssl": ".".join(find_in(openssl, rf"^{part}=(\d+)") for part in ("MAJOR", "MINOR", "PATCH")),
        "nginx": find_in(sources["nginx"] / "src/core/nginx.h", r'#define NGINX_VERSION\s+"(.+)"'),
        "curl": find_in(sources["curl"] / "include/curl/curlver.h", r'#define LIBCURL_VERSION\s+"(.+)"'),
    }


def first_line(argv: list[str]) -> str:
    """Return the first line a command prints, as compilers tell their versions."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        raise BuildError(f"{argv[0]} is not installed; run `make setup`") from None


def _build_stock(vendor: Path, prefix: Path, out: Path, steps: Steps, jobs: int, versions: dict[str, str]) -> None:
    for name, source in _sources(vendor).items():
        shutil.copytree(source, steps.directory / name, symlinks=True)
    openssl, nginx, curl = (steps.directory / name for name in ("openssl", "nginx", "curl"))
    openssl.symlink_to(prefix)
    libraries = [openssl / "lib" / "libssl.a", openssl / "lib" / "libcrypto.a"]
    make = ["make", f"-j{jobs}"]

    # Relative paths, because nginx keeps its options in the binary.
    nginx_options = [
        f"--with-cc-opt={' '.join(FLAGS)} {FRAME_POINTERS} -I../openssl/include",
        "--with-ld-opt=-L../openssl/lib",
    ]
    steps.run("nginx-configure", ["sh", "auto/configure", *NGINX_OPTIONS, *nginx_options], nginx)
    steps.run("nginx", make, nginx)

    nghttp2 = source_of(vendor, "libnghttp2-sys", "nghttp2")
    include, http2 = steps.directory / "include", steps.directory / "libnghttp2.a"
    install_headers(nghttp2, "nghttp2", include, "nghttp2ver.h")
    archive(steps, "nghttp2", [*NGHTTP2_FLAGS, f"-I{include}"], sorted((nghttp2 / "lib").glob("*.c")), http2)

    curl_options = CURL_OPTIONS | {
        "NGHTTP2_INCLUDE_DIR": str(include),
        "NGHTTP2_LIBRARY": str(http2),
        "OPENSSL_INCLUDE_DIR": str(openssl / "include"),
        "OPENSSL_SSL_LIBRARY": str(libraries[0]),
        "OPENSSL_CRYPTO_LIBRARY": str(libraries[1]),
    }
    defines = [f"-D{name}={value}" for name, value in curl_options.items()]
    steps.run("curl-configure", ["cmake", "-S", "curl", "-B", "curl-build", "-G", "Unix Makefiles", *defines])
    steps.run("curl", ["cmake", "--build", "curl-build", "-j", str(jobs), "--target", "libcurl_static"])

    for directory in ("bin", "sbin", "lib", "etc", "include"):
        (out / directory).mkdir(parents=True, exist_ok=True)
    told = {"version": versions["nginx"], "tls": f"OpenSSL {versions['openssl']}"}
    own = [ENDPOINT / "tcp.c", ENDPOINT / "library.c"]
    client = [ENDPOINT / "client.c", CURL / "download.c", *own]
    argv = programs.program(ROOT, openssl, client, **told, out=out / "bin" / "client")
    # libcurl has to come before the libraries it uses
    argv[-2:] = [str(steps.directory / "curl-build" / "lib" / "libcurl.a"), str(http2), *argv[-2:]]
    steps.run("client", [*argv, f"-I{CURL}", f"-I{curl / 'include'}", "-DCURL_STATICLIB"])
    steps.run("server", server_program(openssl, own, **told, out=out / "bin" / "server"))

    shutil.copy2(openssl / "bin" / "openssl", out / "bin")
    shutil.copy2(nginx / "objs" / "nginx", out / "sbin")
    shutil.copy2(TLS / "openssl-standard.cnf", out / "etc")
    for library in libraries:
        shutil.copy2(library, out / "lib")
    shutil.copytree(openssl / "include" / "openssl", out / "include" / "openssl")


def install_headers(source: Path, name: str, include: Path, version_header: str = "version.h") -> None:
    """Put public headers into one directory, with the version header that its own build would write."""
    shutil.rmtree(include / name, ignore_errors=True)  # of a stock build, which shares its files with this one
    for headers in (source / "lib" / "includes", source / "crypto" / "includes"):
        if headers.is_dir():
            shutil.copytree(headers / name, include / name, dirs_exist_ok=True)
    told = find_in(source / "CMakeLists.txt", rf"^project\({name} VERSION ([\d.]+)")
    number = 0
    for part in told.split("."):
        number = number << 8 | int(part)
    template = (source / "lib" / "includes" / name / f"{version_header}.in").read_text(encoding="utf-8")
    header = template.replace("@PACKAGE_VERSION@", told).replace("@PACKAGE_VERSION_NUM@", f"{number:#08x}")
    (include / name / version_header).write_text(header, encoding="utf-8")


def archive(steps: Steps, name: str, flags: Sequence[str], files: Sequence[Path], out: Path) -> None:
    """Compile sources and put their objects into an archive."""
    objects = steps.directory / f"{name}-objects"
    objects.mkdir()
    steps.run(name, ["gcc", *flags, "-c", *files], objects)
    out.unlink(missing_ok=True)
    steps.run(f"{name}-archive", ["ar", "rcsD", out, *sorted(objects.glob("*.o"))])


def server_program(openssl: Path, own: Sequence[Path], *, version: str, tls: str, out: Path) -> list[str]:
    """The command that compiles the server that runs nginx; OpenSSL tells it of the processor and does nothing else."""
    defines = [f'-DVERSION="{version}"', f'-DTLS_LIBRARY="{tls}"']
    includes = [f"-I{directory}" for directory in (CONTRACT, ROOT / PQ, openssl / "include")]
    sources = [*own, NGINX / "nginx.c", CONTRACT / "contract.c", TLS / "openssl_cpu.c"]
    crypto = openssl / "lib" / "libcrypto.a"
    return [*programs.COMPILER, *defines, *includes, "-o", str(out), *map(str, sources), str(crypto)]


def _build_provider(out: Path, steps: Steps) -> None:
    compiler = ["gcc", *FLAGS, *WARNINGS, "-fPIC", "-shared", f"-I{out / 'include'}"]
    target = out / "lib" / "quicbed-noop.so"
    steps.run("noop-provider", [*compiler, "-o", target, PROVIDER / "noop_provider.c"])
    shutil.copy2(PROVIDER / "openssl-noop.cnf", out / "etc")


def _build_primitives(out: Path, steps: Steps, versions: dict[str, str]) -> None:
    told = {"version": versions["nginx"], "tls": f"OpenSSL {versions['openssl']}"}
    sources = [TLS / "primitives.c", ENDPOINT / "library.c"]
    steps.run("primitives", programs.program(ROOT, out, sources, **told, out=out / "bin" / "primitives"))


def link_tree(base: Path, out: Path) -> None:
    """Give ``out`` the files of ``base``: hard links, or copies where the file systems differ."""

    def place(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    # build.json describes the build it lies in
    shutil.copytree(base, out, copy_function=place, ignore=shutil.ignore_patterns("build.json"), dirs_exist_ok=True)


def main() -> int:
    """Build by hand: python -m quicbed.builds.recipes.tcp_tls --vendor ... --out ... --flavour ..."""
    parser = argparse.ArgumentParser(prog="python -m quicbed.builds.recipes.tcp_tls", description=main.__doc__)
    parser.add_argument("--vendor", type=Path, required=True, help="directory that `cargo vendor` filled")
    parser.add_argument("--openssl", type=Path, required=True, help="directory of the component openssl")
    parser.add_argument("--out", type=Path, required=True, help="directory of the build")
    parser.add_argument("--flavour", choices=["stock", "noop", "pq"], default="stock")
    parser.add_argument("--work", type=Path, default=Path("build/work"), help="directory for objects and logs")
    parser.add_argument("--base", type=Path, help="the stock build, for the other flavours")
    parser.add_argument("--provider", type=Path, help="directory of the component openssl-provider, for the flavour pq")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel compiler processes")
    arguments = parser.parse_args()
    try:
        told = make(
            vendor=arguments.vendor,
            openssl=arguments.openssl.absolute(),
            provider=arguments.provider,
            out=arguments.out,
            flavour=arguments.flavour,
            work=arguments.work,
            jobs=arguments.jobs,
            base=arguments.base,
        )
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    for step, seconds in told["seconds"].items():
        print(f"{step:20} {seconds:6.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
