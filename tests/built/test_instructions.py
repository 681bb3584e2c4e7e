"""Instructions of real endpoints, counted over loopback: that they repeat, and what they catch."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from loopback import Loopback
from quicbed.config.model import Instructions
from quicbed.measure import callgrind
from quicbed.store import symbols
from quicbed.store.stacks import folded_name, read_folded

LIBRARIES = ("quiche", "quinn")
SIZE = 4 << 20
REPEATS, CIPHER_REPEATS = 0.05, 0.005
"""Of all instructions, of which batches decide a part that is larger on a busy machine, and of packet protection."""
NOOP = ("--aead", "noop", "--header-protection", "off")
ROLES = ("client", "server")
Counts = dict[str, Counter[str]]
"""Instructions by role and category."""


class Here:
    """This machine, as the host of both ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def place(self, _: Path) -> Path:
        return self.directory

    def run(self, argv: list[str], **_: Any) -> Any:
        return subprocess.run(argv, capture_output=True, text=True, check=False)


class Bench:
    """Downloads whose instructions are counted, each made once."""

    def __init__(self, loopback: Loopback, directory: Path) -> None:
        self._loopback, self._directory = loopback, directory
        self._made: dict[tuple[str, ...], Counts] = {}

    def download(self, library: str, *options: str, flavour: str = "stock", number: int = 0) -> Counts:
        """Instructions of a download without those of one of a single byte, from a build."""
        whole, start = (self.counted(library, flavour, str(size), str(number), *options) for size in (SIZE, 1))
        return {role: Counter({name: whole[role][name] - start[role][name] for name in whole[role]}) for role in ROLES}

    def counted(self, *what: str) -> Counts:
        """Instructions of a whole download: library, flavour, bytes, a number, and options."""
        if what not in self._made:
            self._made[what] = self._count(*what)
        return self._made[what]

    def _count(self, library: str, flavour: str, size: str, _: str, *options: str) -> Counts:
        directory = self._directory / str(len(self._made))
        directory.mkdir()
        here: Any = Here(directory)
        maps = {role: symbols.symbol_map(ROOT, library, role) for role in ROLES}
        counts = callgrind.Counts(Instructions(), directory, {role: one.callers for role, one in maps.items()})
        runs_it = counts.held("server", here, [])
        environment = dict(callgrind.ENVIRONMENT)
        place: dict[str, Any] = {"flavour": flavour, "environment": environment, "runs_it": runs_it}
        server = self._loopback.serve(library, "--content", size, *options, **place)
        server.before_client = counts.held("client", here, [])
        code, connections = server.download(*options, "--bytes", size, "--timeout", "60")
        assert code == 0, connections
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        counts.fold(0, 0)
        return {
            role: Counter(
                {
                    str(name): count
                    for name, count in maps[role]
                    .count(read_folded((directory / folded_name(role)).read_bytes()))
                    .items()
                }
            )
            for role in ROLES
        }


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are."""
    return tmp_path_factory.mktemp("counted")


@pytest.fixture(scope="module")
def bench(build_of: Any, made: Any, directory: Path) -> Iterator[Bench]:
    """Counts of this module, made as they are asked for."""
    here: Any = Here(directory)
    if (told := callgrind.problem(here)) is not None:
        pytest.skip(told)
    loopback = Loopback(build_of, made, directory)
    yield Bench(loopback, directory)
    loopback.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_counts_repeat(bench: Bench, library: str) -> None:
    first, again = (bench.download(library, number=number) for number in (0, 1))
    for role in ROLES:
        assert again[role].total() == pytest.approx(first[role].total(), rel=REPEATS), role
        protection = first[role]["packet-protection"]
        assert again[role]["packet-protection"] == pytest.approx(protection, rel=CIPHER_REPEATS), role


@pytest.mark.parametrize("library", ["aioquic", "quic-go"])
def test_a_server_ends_well_when_it_is_counted(bench: Bench, library: str) -> None:
    """SIGTERM ends it, and Valgrind can deliver signals neither to Python that waits nor to Go on their own stacks."""
    assert bench.counted(library, "noop", "1", "0")["server"].total() > 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_noop_takes_hardly_any_instructions_of_packet_protection(bench: Bench, library: str) -> None:
    """One that encrypts, as another run of the same build with AES, does not pass for it."""
    aes, noop = bench.download(library), bench.download(library, *NOOP, flavour="noop")
    for role in ROLES:
        assert is_noop(noop[role], aes[role]), role
        assert not is_noop(aes[role], aes[role]), role
        assert noop[role].total() < 0.9 * aes[role].total()
        assert noop[role]["header-protection"] < aes[role]["header-protection"]


def is_noop(counts: Counter[str], aes: Counter[str]) -> bool:
    """Whether packet protection takes less than half of what AES takes: what stays are calls and a copy."""
    return counts["packet-protection"] < 0.5 * aes["packet-protection"]


def test_the_processor_that_programs_see_has_aes_and_is_recorded(directory: Path) -> None:
    here: Any = Here(directory)
    found = callgrind.processor(here)
    assert found is not None
    assert {"aes", "pclmulqdq", "avx2"} <= set(found)
