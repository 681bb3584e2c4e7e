"""The environment in which the workflow's rules run."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from quicbed.base import durable

OVERRIDES = "QUICBED_CONFIG"
# Links to the Rust and Go that set-up installed below the clone, where the machine's own do not serve.
TOOLCHAINS = Path(__file__).resolve().parents[3] / ".toolchains" / "bin"
STARTED = "QUICBED_STARTED"
"""Set while the workflow runs, differently each time: more is to come than one experiment."""

NAMED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH"),
    # ways to package registries, and the certificates that are trusted on them
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_*", "UV_*"),
    # toolchains
    *("CARGO_HOME", "CARGO_HTTP_*", "CARGO_NET_*", "CARGO_SOURCE_*", "CARGO_REGISTRIES_*_INDEX", "RUSTUP_*"),
    *("GOPATH", "GOPROXY", "GOFLAGS", "GOTOOLCHAIN", "GOMODCACHE", "GOCACHE", "GOROOT", "GOSUMDB", "GONOSUMDB"),
    *("GONOPROXY", "GOPRIVATE", "GOINSECURE", "PYENV_ROOT", "PYENV_VERSION"),
)
"""Variables that endpoints and builds are given of those of who starts quicbed; `*` stands for any characters.

Others, such as keys of clouds and SSH_AUTH_SOCK, are nothing to other people's programs (docs/external-endpoints.md).
"""
_SECRET = ("*TOKEN*", "*PASSWORD*", "*SECRET*", "*CREDENTIAL*")


def is_named(name: str) -> bool:
    """Whether other people's programs are given a variable."""
    return any(fnmatchcase(name, pattern) for pattern in NAMED) and not any(
        fnmatchcase(name.upper(), pattern) for pattern in _SECRET
    )


def named(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of other people's programs: the variables of this process that they are given, and *more*."""
    return {name: value for name, value in os.environ.items() if is_named(name)} | dict(more or {})


SNAKEMAKE_HOLDER = Path(".snakemake", "quicbed-holder.json")
"""Where the Snakemake that has the lock of this directory says of what its process number is; `make` looks there."""


def note_lock_holder() -> None:
    """Say whose the lock of Snakemake is, once it is held; tools/set_up.py removes one that a killed Snakemake left."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    space = [boot, str(Path("/proc/self/ns/pid").readlink())]
    since = time.strftime("%Y-%m-%d %H:%M")
    # a new file: its time is compared with those of the locks
    durable.write_json(SNAKEMAKE_HOLDER, {"space": space, "host": platform.node(), "since": since})


_turn = threading.Lock()
_inside = 0
_taken: dict[str, str] = {}


@contextlib.contextmanager
def only_named() -> Iterator[None]:
    """While the context lasts, this process has the named variables only; builds of several threads share it."""
    global _inside
    with _turn:
        if not _inside:
            _taken.update({name: value for name, value in os.environ.items() if not is_named(name)})
            for name in _taken:
                del os.environ[name]
        _inside += 1
    try:
        yield
    finally:
        with _turn:
            _inside -= 1
            if not _inside:
                for name, value in _taken.items():
                    os.environ.setdefault(name, value)
                _taken.clear()


def prepare(overrides: Mapping[str, Any]) -> None:
    """Let `python -m quicbed` work in rules, with the configuration of this run of the workflow.

    It has to work without an activated environment, and where the package is not installed (`--sdm conda`). The
    overrides are in the environment rather than in the commands: Snakemake runs a command that changes again.
    """
    find_toolchains()
    _prepend("PATH", Path(sys.executable).parent)
    _prepend("PYTHONPATH", Path(__file__).resolve().parents[2])
    os.environ[OVERRIDES] = json.dumps(overrides)
    # jobs on other nodes read the workflow again
    os.environ.setdefault(STARTED, f"{time.time():.0f}-{os.getpid()}")


def find_toolchains() -> None:
    """Let builds find the Rust and Go that set-up installed below the clone, if it did."""
    if TOOLCHAINS.is_dir():
        _prepend("PATH", TOOLCHAINS)


def _prepend(name: str, directory: Path) -> None:
    """Put a directory first, once."""
    others = [part for part in os.environ.get(name, "").split(os.pathsep) if part and part != str(directory)]
    os.environ[name] = os.pathsep.join([str(directory), *others])
