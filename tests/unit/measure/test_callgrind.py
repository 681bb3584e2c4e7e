"""Counts of instructions: what Callgrind writes, damaged or not, and what a processor of Valgrind's is said to have."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from clone import ROOT
from quicbed.base import untrusted
from quicbed.config.model import Instructions
from quicbed.measure import callgrind
from quicbed.store import symbols
from quicbed.store.stacks import INSTRUCTIONS, PerfError, folded_name, read_folded, write_folded
from quicbed.testbed import TestbedError

# two functions of one name in different contexts; what is called is counted where it is
COUNTS = """# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 7
cmd:  /builds/bin/client --bytes 1
part: 1

desc: Trigger: Program termination

positions: line
events: Ir
summary: 145


ob=(1) /builds/bin/client
fl=(1) client.c
fn=(1) main
0 10
cfn=(2) seal'main
calls=2 0
0 90
0 5

fn=(2)
fi=(2) other.h
0 40
fe=(1)
cob=(2) /usr/lib/libc.so.6
cfi=(3) ???
cfn=(3) memcpy'seal'main
calls=1 0
0 50

ob=(2)
fl=(3)
fn=(3)
0 50

fn=(4) walk'2'walk'main
0 30
fn=(5) 0x00000000000012a0'[u8; 32]::len
0 10
0

totals: 145
"""


def counted(text: str = COUNTS) -> callgrind.Counted:
    return callgrind.read(text.splitlines(keepends=True))


def test_instructions_of_a_function_have_its_callers_outermost_first() -> None:
    found = counted()
    assert found.creator == "callgrind-3.19.0"
    assert found.stacks == {
        "client;client`main": 15,
        "client;client`main;client`seal": 40,
        "client;client`main;client`seal;libc.so.6`memcpy": 50,
        "client;client`main;libc.so.6`walk;libc.so.6`walk": 30,
        "client;[unknown]`[u8, 32]::len;libc.so.6`[unknown]": 10,
    }


DAMAGE = {
    "cut off": (COUNTS[: COUNTS.index("totals")], "ends before its total"),
    "empty": ("", "ends before its total"),
    "another total": (COUNTS.replace("totals: 145", "totals: 146"), "145 instructions of functions, 146 in all"),
    "no total": (COUNTS.replace("totals: 145", "totals: many"), "damaged counts"),
    "other events": (COUNTS.replace("events: Ir", "events: Ir Dr"), "counts 'Ir Dr' instead of instructions"),
    "a number without a name": (COUNTS.replace("fn=(4) walk'2'walk'main", "fn=(9)"), r"line \d+: 'fn=\(9\)'"),
    "negative": (COUNTS.replace("0 40\n", "0 -40\n"), r"line \d+: '0 -40'"),
    "no function": (COUNTS.replace("fn=(1) main\n", ""), r"line \d+: '0 10'"),
    "no costs of a call": (COUNTS.replace("calls=2 0\n0 90\n", "calls=2 0\nfn=(2)\n"), r"line \d+: 'fn=\(2\)'"),
    "text": ("a poem\nof two lines\n", "line 1: 'a poem'"),
    "huge": (COUNTS.replace("0 40\n", f"0 {'9' * 5000}\n"), r"line \d+"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_counts_are_one_error(kind: str) -> None:
    text, said = DAMAGE[kind]
    with pytest.raises(PerfError, match=said) as error:
        counted(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_whatever_a_program_writes_is_counts_or_one_error() -> None:
    generator = random.Random(7)
    content = COUNTS.encode()
    for _ in range(3000):
        hostile = bytearray(content)
        for _ in range(generator.randint(1, 6)):
            place = generator.randrange(len(hostile))
            hostile[place : place + generator.choice((0, 1, 9))] = generator.choice(
                (b"", b"\n", b"'", b"(", b")", b"=", b"9", b"\xff", b"fn=", b"calls=1 0\n", b"0 ", b";", b"\x00", b"*")
            )
        with contextlib.suppress(PerfError):
            found = counted(bytes(hostile).decode(errors="replace"))
            assert all(";" in stack and count > 0 for stack, count in found.stacks.items())


class FakeHost:
    """A host on which valgrind does what a test says."""

    def __init__(self, place: Path, **said: Any) -> None:
        self._place = place
        self.said = {"returncode": 0, "stdout": "", "stderr": ""} | said

    def place(self, _: Path) -> Path:
        return self._place

    def run(self, *_: object, **__: object) -> Any:
        if "error" in self.said:
            raise TestbedError(self.said["error"])
        return type("Done", (), self.said)


def host(place: Path = Path(), **said: Any) -> Any:
    return FakeHost(place, **said)


def test_a_run_keeps_the_stacks_of_all_processes_of_an_end(tmp_path: Path) -> None:
    counts = callgrind.Counts(Instructions(), tmp_path)
    for role in ("client", "server"):
        argv = counts.held(role, host(tmp_path), ["/builds/bin/program", "--events", "x"])
        assert argv[-3:] == ["/builds/bin/program", "--events", "x"]
        assert "--separate-callers=16" in argv
        assert f"--callgrind-out-file={tmp_path}/{role}.callgrind.%p" in argv
        (tmp_path / f"{role}.callgrind.7").write_text(COUNTS)
    (tmp_path / "server.callgrind.8").write_text(COUNTS)
    facts = counts.fold(0, 0)
    assert facts["event"] == INSTRUCTIONS
    assert facts["tool"] == "callgrind-3.19.0"
    assert facts["client"] == {"instructions": 145, "stacks": 5, "files": 1, "callers": 16}
    assert facts["server"] == {"instructions": 290, "stacks": 5, "files": 2, "callers": 16}
    assert read_folded((tmp_path / folded_name("server")).read_bytes()).total() == 290
    counts.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client.folded.gz", "server.folded.gz"]


def test_callers_of_an_interpreter_are_told_apart_as_far_as_its_mapping_says(tmp_path: Path) -> None:
    callers = symbols.symbol_map(ROOT, "aioquic", "server").callers
    assert callers is not None
    counts = callgrind.Counts(Instructions(), tmp_path, {"server": callers})
    argv = {role: counts.held(role, host(tmp_path), ["program"]) for role in ("client", "server")}
    assert "--separate-callers=16" in argv["client"]
    assert f"--separate-callers={callers}" in argv["server"]
    fewer = callgrind.Counts(Instructions(callers=1), tmp_path, {"server": 4})
    assert "--separate-callers=1" in fewer.held("server", host(tmp_path), ["program"])


def test_more_stacks_than_can_be_read_again_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MOST_BYTES", 20)
    with pytest.raises(PerfError, match=r"^2 stacks take 0 MiB: distinguish fewer callers of instructions, or "):
        write_folded(tmp_path / "server.folded.gz", {"program;a`b": 1, "program;a`c": 2})
    assert not any(tmp_path.iterdir())


def test_a_process_that_was_killed_before_it_wrote_all_fails_the_run(tmp_path: Path) -> None:
    counts = callgrind.Counts(Instructions(), tmp_path)
    counts.held("server", host(tmp_path), ["program"])
    (tmp_path / "server.callgrind.7").write_text("")
    with pytest.raises(PerfError, match=r"server\.callgrind\.7: ends before its total, as if the process was killed"):
        counts.fold(0, 0)


def test_what_follows_the_last_request_of_nginx_is_left_out(tmp_path: Path) -> None:
    counts = callgrind.Counts(Instructions(), tmp_path)
    for role in ("client", "server"):
        counts.held(role, host(tmp_path), ["program"])
        (tmp_path / f"{role}.callgrind.7").write_text(COUNTS)
    for part in (1, 2):
        (tmp_path / f"server.callgrind.8.{part}").write_text(COUNTS)
    (tmp_path / "server.callgrind.8").write_text("killed while it wrote")
    assert counts.fold(0, 0)["server"] == {"instructions": 435, "stacks": 5, "files": 3, "callers": 16}


def test_a_program_that_valgrind_cannot_run_says_why(tmp_path: Path) -> None:
    counts = callgrind.Counts(Instructions(), tmp_path)
    counts.held("server", host(tmp_path), ["program"])
    (tmp_path / "server.valgrind.7").write_text(
        "==7== Command: x\nCallgrind: threads.c:247: Assertion 'a == b' failed.\n"
    )
    with pytest.raises(PerfError, match=r"0 files with counts of the server: .*Assertion 'a == b' failed"):
        counts.fold(0, 0)


def test_valgrind_that_is_missing_or_refused_is_one_reason() -> None:
    assert callgrind.problem(host()) is None
    assert callgrind.problem(host(error="no such program")) == (
        "valgrind is missing; install with: apt-get install valgrind"
    )
    refused = callgrind.problem(host(returncode=1, stderr="valgrind: failed to start\ntool 'callgrind'\n"))
    assert refused == "valgrind cannot run programs: valgrind: failed to start tool 'callgrind'"


def test_the_processor_that_programs_see_is_told_by_the_loader() -> None:
    told = """x86.cpu_features.features[0x0].cpuid[0x1]=0x2100800
x86.cpu_features.features[0x0].cpuid[0x2]=0x7ffafbff
x86.cpu_features.features[0x1].cpuid[0x1]=0x427aa
x86.cpu_features.features[0x1].cpuid[0x2]=0x0
"""
    assert callgrind.flags(told) == ("aes", "avx", "avx2", "bmi2", "pclmulqdq", "sse4_1", "ssse3")
    newer = told.replace("0x427aa", "0x200527aa".replace("2005", "2009")).replace(
        "cpuid[0x2]=0x0\n", "cpuid[0x2]=0x700\n"
    )
    assert {"avx512f", "sha_ni", "vaes", "vpclmulqdq", "gfni"} <= set(callgrind.flags(newer) or ())
    assert callgrind.flags("version=2.36") is None
    assert callgrind.processor(host(error="no loader")) is None


def test_callers_that_perf_does_not_see_decide_where_callgrind_tells_them() -> None:
    """s2n-quic's ChaCha20: content in the server, the mask in the client, both where a caller tells."""
    name = "aws_lc_0_47_0_ChaCha20_ctr32_nohw"
    stacks = {
        ("client", (name,)): "header-protection",
        ("client", (name, "[unknown]")): "header-protection",
        ("client", (name, "chacha20_poly1305_seal_scatter")): "packet-protection",
        ("server", (name,)): "packet-protection",
        ("server", (name, "s2n_quic_core::crypto::protect")): "header-protection",
    }
    for (role, frames), category in stacks.items():
        stack = tuple(f"program`{frame}" for frame in frames)
        assert symbols.symbol_map(ROOT, "s2n-quic", role).sort(stack) == category, (role, frames)
    lacking = symbols.symbol_map(ROOT, "s2n-quic", "server").lacking
    assert set(lacking("chacha20-poly1305")) == {"header-protection"}
    assert lacking("aes-128-gcm") == {}
    assert lacking("chacha20-poly1305", counted=True) == {}
    assert symbols.symbol_map(ROOT, "s2n-quic", "client").lacking("chacha20-poly1305") == {}
