"""Pairs of runs at the same time, and the comparison that is made of them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import fakeproject
from clone import ROOT
from fakeproject import behave
from faketestbed import FakeHost, FakeProcess, FakeTestbed, Sending
from quicbed.base.statistics import Interval
from quicbed.cli import commands, show
from quicbed.config.model import ConfigError, Project
from quicbed.measure import comparing, concurrent_pair, counted_arms, prove
from quicbed.measure import endpoint_pair as pair_module
from quicbed.measure.attempt import MeasureError
from quicbed.measure.comparing import Asked, Compared, UnsupportedError, compare
from quicbed.measure.counted_arms import Counted
from quicbed.measure.runner import Runner
from quicbed.store import runs
from quicbed.store.record import Run
from quicbed.testbed import TestbedError
from quicbed.testbed.agent import cpu_seconds

OK = {"client": ["lasting"]}


PROVE = prove.Prover.prove


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = fakeproject.make(tmp_path / "clone", fakeproject.EXPERIMENT, monkeypatch)
    fakeproject.prove(monkeypatch)
    monkeypatch.setattr(FakeProcess, "sample_cpu", lambda self: cpu_seconds(self.pid))
    # on a busy machine a program may take much longer than the one beside it
    monkeypatch.setattr(concurrent_pair, "LEAST_OVERLAP", 0.0)
    # nothing of it is waited for but in vain
    monkeypatch.setattr(pair_module, "READY_TIMEOUT", 20.0)
    monkeypatch.setattr(prove.Prover, "prove", lambda *_: prove.Verdict("0123abcd", "ok", None, transferred=True))
    for flavour in ("stock", "noop"):
        behave(made, "quinn", flavour, **OK)
    return made


def asked(a: str = "quinn/stock", b: str = "quinn/noop", **more: Any) -> Asked:
    """Two pairs."""
    variants = more.pop("variants", {"a": {}, "b": {}})
    return Asked(**{"arms": {"a": a, "b": b}, "variants": variants, "min_pairs": 2, "max_pairs": 2, **more})


def made(project: Project, what: Asked, testbed: FakeTestbed | None = None) -> Compared:
    return compare(project, what, project.root / "log", lambda _: testbed or Sending())


def stored(project: Project) -> list[dict[str, Run]]:
    """Both runs of every pair that is stored."""
    pairs = sorted((project.raw / "local" / "compare").glob("*/p*"))
    return [{arm: Run.read(pair / arm / "run.json") for arm in "ab"} for pair in pairs]


def test_pairs_are_measured_stored_and_compared(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove.Prover, "prove", PROVE)
    testbed = Sending()
    found = made(project, asked(variants={"a": {}, "b": {"header_protection": "off"}}), testbed)
    assert (found.pairs, found.failed, found.earlier) == (2, 0, 0)
    assert {name: one.n for name, one in found.intervals.items()} == {"both ends": 2, "client": 2, "server": 2}
    assert all(one.low <= one.ratio <= one.high for one in found.intervals.values())
    pairs = stored(project)
    assert [{arm: run.status for arm, run in pair.items()} for pair in pairs] == [{"a": "ok", "b": "ok"}] * 2
    for number, pair in enumerate(pairs):
        a, b = (pair[arm].together for arm in "ab")
        assert a is not None
        assert b is not None
        assert (a.beside, b.beside) == ("b", "a")
        assert a.pair == b.pair == f"{pair['a'].campaign}/p{number:04d}"
        assert {a.port, b.port} == {4433, 4434}
        assert (a.port == 4433) is a.first is not b.first
        assert a.processors == b.processors == testbed.pinned
        assert a.overlap == b.overlap
        assert min(a.client_cpu_s or 0, a.server_cpu_s or 0, b.client_cpu_s or 0, b.server_cpu_s or 0) > 0
        assert all(run.evidence.proof for run in pair.values())
        assert [run.variant.header_protection for run in pair.values()] == [True, False]
        assert "ttfb_ms" in (pair["a"].evidence.unknown or {}), "its server was held"
        assert pair["a"].metrics.ttfb_ms is None
    first = [pair["a"].together.first for pair in pairs if pair["a"].together]
    assert sorted(first) == [False, True], "each arm is first in one of two pairs"
    table = runs.table(project.raw)
    assert len(table.filter(experiment="compare")) == 4
    shown = show.text(*show.find(str(found.directory / "p0001" / "b"), []))
    assert re.search(r"^Together\npair .*/p0001\nbeside +a\n", shown, re.MULTILINE)


def test_what_is_stored_counts_and_is_not_measured_again(project: Project) -> None:
    made(project, asked())
    again = made(project, asked(max_pairs=3, min_pairs=3))
    assert (again.pairs, again.earlier) == (3, 2)
    assert len(stored(project)) == 3
    other = made(project, asked(bytes=1 << 20))
    assert other.earlier == 0, "another size is another comparison"


def test_nothing_counts_of_a_pair_of_which_one_arm_fails(project: Project) -> None:
    behave(project, "quinn", "noop", client=["lasting", "crash", "lasting"])
    found = made(project, asked())
    assert (found.pairs, found.failed) == (2, 1)
    reasons = [{arm: run.reason for arm, run in pair.items()} for pair in stored(project)]
    assert reasons[1]["b"] == "the client was killed by SIGSEGV"
    assert reasons[1]["a"] == "arm b: failed: the client was killed by SIGSEGV"
    assert "1 failed" in found.text()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ({"client": ["hang"]}, "the client hung: not finished 1 s after both began"),
        ({"client": ["lasting"], "server": ["crash"]}, "the server ended before it was ready"),
        ({"client": ["lasting"], "server": ["never-ready"]}, "the server was not ready after 1 s"),
        ({"client": ["lasting"], "server": ["ignore-sigterm"]}, "the server did not stop within 0.5 s"),
        ({"client": ["wrong-cipher"]}, "evidence: the client reports cipher TLS_AES_256_GCM_SHA384"),
        ({"client": ["truncated"]}, "client.jsonl"),
    ],
)
def test_a_comparison_ends_where_pairs_only_fail(
    behaviour: dict[str, list[str]], reason: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "FAILURES", 1)
    monkeypatch.setattr(comparing, "TIMEOUT_S", 0.5 if "hang" in str(behaviour) else 60.0)
    monkeypatch.setattr(pair_module, "READY_TIMEOUT", 1.0 if "never" in str(behaviour) else 20.0)
    behave(project, "quinn", "noop", **behaviour)
    with pytest.raises(MeasureError, match=f"failed one after the other, the last because of arm b: .*{reason}"):
        made(project, asked())
    assert [{run.status for run in pair.values()} for pair in stored(project)] == [{"failed"}]


class Deaf(FakeHost):
    """At the second port nothing arrives."""

    def has_unread(self, port: int) -> bool:
        return port == 4433


@pytest.mark.parametrize(
    ("client", "reason"),
    [("hang", "the client sent nothing for 1 s"), ("ok", "the client ended before the other arm had begun")],
)
def test_a_barrier_that_one_arm_does_not_reach(
    client: str, reason: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_module, "READY_TIMEOUT", 1.0 if client == "hang" else 20.0)
    for flavour in ("stock", "noop"):
        behave(project, "quinn", flavour, client=[client])
    testbed = Sending()
    testbed.hosts["server"] = Deaf("server")
    with pytest.raises(MeasureError, match=reason):
        made(project, asked(), testbed)


def test_three_pairs_that_fail_one_after_the_other(project: Project) -> None:
    behave(project, "quinn", "stock", client=["lasting", "crash"])
    with pytest.raises(MeasureError, match="3 pairs failed one after the other, the last because of arm a: the client"):
        made(project, asked())
    assert [pair["a"].status for pair in stored(project)] == ["ok", "failed", "failed", "failed"]


def test_a_server_that_sends_less_than_its_client_tells(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sending, "sent_by_server", lambda _: 4096)
    with pytest.raises(MeasureError, match="what the server's interface sends is 0 bytes since both began"):
        made(project, asked())


def test_pairs_of_which_one_arm_is_alone_for_long_count_for_the_sizes_only(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_pair, "LEAST_OVERLAP", 0.45)
    behave(project, "quinn", "noop", client=["trailing", "lasting"])
    found = made(project, asked(bytes=1 << 24))
    assert (found.pairs, found.failed) == (2, 1)
    assert re.fullmatch(
        "one arm transferred alone for .* % of the time; the next .*", stored(project)[0]["b"].reason or ""
    )
    first, second, _ = [{arm: run.workload.bytes for arm, run in pair.items()} for pair in stored(project)]
    assert first == {"a": 1 << 24, "b": 1 << 24}
    assert second["a"] == 1 << 24
    assert 0.2 < (second["b"] or 0) / (1 << 24) < 0.6
    assert "1 failed" in found.text()


def test_what_cannot_be_compared_here(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = Sending()
    testbed.pinned = "each end needs a core of its own"
    with pytest.raises(UnsupportedError, match="each end needs a core of its own"):
        made(project, asked(), testbed)
    with pytest.raises(UnsupportedError, match="does not keep programs to processors"):
        made(project, asked(), FakeTestbed())
    with pytest.raises(UnsupportedError, match="QUIC protects all 1-RTT packets"):
        made(project, asked(b="quinn", variants={"a": {}, "b": {"aead": "noenc", "header_protection": "off"}}))
    unsupported = prove.Verdict("0123abcd", "unsupported", "it has no such thing", transferred=False)
    monkeypatch.setattr(prove.Prover, "prove", lambda *_: unsupported)
    with pytest.raises(UnsupportedError, match="quinn/stock: it has no such thing"):
        made(project, asked())
    assert stored(project) == []


def test_an_arm_that_says_late_that_it_is_unsupported(project: Project) -> None:
    behave(project, "quinn", "noop", client=["unsupported"])
    with pytest.raises(UnsupportedError, match="quinn/noop: this build cannot do that"):
        made(project, asked())
    (pair,) = stored(project)
    assert {arm: run.status for arm, run in pair.items()} == {"a": "failed", "b": "unsupported"}


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"b": "quin"}, r"arm B \(quin\): no library or experiment is named `quin`"),
        ({"b": "quinn/fast"}, r"arm B \(quinn/fast\): has no flavour `fast`; it has stock, noop"),
        ({"b": "test/quinn-aes"}, "its experiment has no cell `quinn-aes`; among its cells are quinn-aes-128-gcm"),
        ({"variants": {"a": {}, "b": {"cipher": "rot13"}}}, r"arm B \(quinn/noop\): cipher: Input should be"),
        ({"variants": {"a": {}, "b": {"mtu": "9000"}}}, "mtu is a setting of the link, .* A has 1500, B has 9000"),
    ],
)
def test_what_does_not_exist_or_go_together(what: dict[str, Any], problem: str, project: Project) -> None:
    with pytest.raises(ConfigError, match=problem):
        made(project, asked(**what))


def test_cells_of_an_experiment(project: Project) -> None:
    found = made(project, asked("test/quinn-aes-128-gcm", "test/quinn-noop"))
    assert "quinn/noop 1: cipher aes-128-gcm, aead noop, header_protection off" in found.told["b"]
    assert [pair["b"].variant.aead for pair in stored(project)] == ["noop", "noop"]


# ---- instructions ----------------------------------------------------------------------------------------------------

VALGRIND = """#!/bin/sh
# writes what programs would execute, and becomes them
while [ "${1#--}" != "$1" ]; do
    case "$1" in
        --callgrind-out-file=*) out="${1#*=}" ;;
        --log-file=*) said="${1#*=}" ;;
        --tool=none) exit 0 ;;
    esac
    shift
done
[ "$1" = true ] && exit 0
case "$1" in
    */REFUSED/bin/client) echo "valgrind: Fatal error: cannot run this" > "${said%%%p}$$"; exit 1 ;;
    *-noop/bin/client) each=5 ;;
    *-noop/bin/server) each=15 ;;
    */client) each=10 ;;
    */server) each=20 ;;
esac
echo "$1" >> "$0.log"
size="$(printf '%s\n' "$@" | grep -A 1 -E '^--(bytes|content)$' | tail -n 1)"
count=$((1000000 + each * size))
printf 'creator: callgrind-fake\ncmd: %s\nevents: Ir\nfn=(1) main\n0 %s\ntotals: %s\n' "$1" $count $count \
    > "${out%%%p}$$"
exec "$@"
"""
SETARCH = """#!/bin/sh
# containers may forbid what it does
shift
exec "$@"
"""


class FakeValgrind:
    """What stands for valgrind on this machine."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "valgrind"
        self.become(VALGRIND)
        (directory / "setarch").write_text(SETARCH)
        (directory / "setarch").chmod(0o755)

    def become(self, script: str) -> None:
        self._file.write_text(script)
        self._file.chmod(0o755)

    @property
    def programs(self) -> list[str]:
        """Build and role of all that it has run."""
        log = self._file.with_suffix(".log")
        lines = log.read_text().splitlines() if log.exists() else []
        return [f"{Path(line).parents[1].name} {Path(line).name}" for line in lines]


@pytest.fixture
def valgrind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeValgrind:
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return FakeValgrind(directory)


def counted_runs(project: Project) -> list[Run]:
    files = sorted((project.raw / "local" / "compare").glob("*/counted/*/run.json"))
    return [Run.read(file) for file in files]


def test_instructions_are_counted_after_the_pairs_and_stored(project: Project, valgrind: FakeValgrind) -> None:
    found = made(project, asked(instructions=True))
    assert found.pairs == 2
    assert isinstance(found.instructions, Counted)
    assert found.instructions.as_dict()["ratios"] == {
        "both ends": {"ratio": pytest.approx(20 / 30), "blocks": [pytest.approx(20 / 30)] * 2},
        "client": {"ratio": pytest.approx(5 / 10), "blocks": [pytest.approx(5 / 10)] * 2},
        "server": {"ratio": pytest.approx(15 / 20), "blocks": [pytest.approx(15 / 20)] * 2},
    }
    assert found.instructions.as_dict()["per_byte"] == {
        "a": pytest.approx({"both ends": 30, "client": 10, "server": 20}),
        "b": pytest.approx({"both ends": 20, "client": 5, "server": 15}),
    }
    runs_of = counted_runs(project)
    size = counted_arms.BYTES
    assert [(run.block, run.cell.arm, run.workload.bytes) for run in runs_of] == [
        (block, arm, bytes_) for block in range(2) for arm in "ab" for bytes_ in (1, size)
    ]
    for run in runs_of:
        assert (run.status, run.together) == ("ok", None)
        assert run.evidence.proof
        assert (run.host.perf or {})["event"] == "instructions"
    assert (runs_of[0].cell.baseline, runs_of[2].cell.baseline) == (None, runs_of[0].cell.id)
    assert len(list(found.directory.glob("counted/*/server.folded.gz"))) == 8
    assert len(valgrind.programs) == 16
    again = made(project, asked(instructions=True))
    assert again.instructions == found.instructions
    assert len(valgrind.programs) == 16, "what is stored is not counted again"
    shutil.rmtree(found.directory / "counted" / "0002-b")
    assert made(project, asked(instructions=True)).instructions == found.instructions
    assert valgrind.programs[16:] == ["quinn-noop server", "quinn-noop client"]
    assert counted_runs(project)[-1].workload.bytes == 1


def test_without_being_asked_nothing_is_counted(project: Project, valgrind: FakeValgrind) -> None:
    found = made(project, asked())
    assert found.instructions is None
    assert "nstructions" not in found.text()
    assert found.as_dict()["instructions"] is None
    assert valgrind.programs == []


def test_counting_that_is_interrupted_goes_on_where_it_ended(
    project: Project, valgrind: FakeValgrind, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, begun = Runner.execute, []

    def interrupted(*arguments: Any) -> Any:
        begun.append(arguments)
        if len(begun) == 4:
            raise KeyboardInterrupt
        return execute(*arguments)

    monkeypatch.setattr(Runner, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made(project, asked(instructions=True))
    monkeypatch.setattr(Runner, "execute", execute)
    assert len(stored(project)) == 2
    assert len(counted_runs(project)) == 3
    (directory,) = (project.raw / "local" / "compare").glob("*/counted")
    (directory / ".0003-b.partial").mkdir()
    found = made(project, asked(instructions=True))
    assert found.earlier == 2
    assert isinstance(found.instructions, Counted)
    assert len(valgrind.programs) == 16
    assert sorted(path.name for path in directory.iterdir()) == [f"{n:04d}-{'aabb'[n % 4]}" for n in range(8)]


def test_a_library_that_cannot_run_under_valgrind_is_one_line(project: Project, valgrind: FakeValgrind) -> None:
    valgrind.become(VALGRIND.replace("REFUSED", "quinn-noop"))
    found = made(project, asked(instructions=True))
    assert found.pairs == 2
    assert found.instructions == ("quinn/noop: the client exited with 1; valgrind: Fatal error: cannot run this")
    assert f"Instructions are not counted: {found.instructions}\n" in found.text()
    assert found.as_dict()["instructions"] == {"problem": found.instructions}
    assert [run.status for run in counted_runs(project)] == ["ok", "ok", "failed"]
    valgrind.become(VALGRIND)
    again = made(project, asked(instructions=True))
    assert isinstance(again.instructions, Counted), "the same command tries it again"
    assert [run.attempt for run in counted_runs(project)] == [0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_counts_that_are_damaged_or_do_not_grow_are_one_line(project: Project, valgrind: FakeValgrind) -> None:
    valgrind.become(VALGRIND.replace("totals: %s", "total: %s"))
    found = made(project, asked(instructions=True))
    assert isinstance(found.instructions, str)
    assert re.search("quinn/stock: .*ends before its total", found.instructions)
    valgrind.become(VALGRIND.replace("each * size", "0 * size"))
    found = made(project, asked(instructions=True))
    size = counted_arms.BYTES
    assert found.instructions == (f"{size} bytes take the client of arm a no more instructions than one byte does")


def test_without_valgrind_there_is_the_remedy(project: Project, valgrind: FakeValgrind) -> None:
    testbed = Sending()
    run = FakeHost.run

    class Lacking(FakeHost):
        def run(self, argv: Any, **options: Any) -> Any:
            if argv[0] == "valgrind":
                raise TestbedError("valgrind: no such file")
            return run(self, argv, **options)

    testbed.hosts["server"] = Lacking("server")
    found = made(project, asked(instructions=True), testbed)
    assert found.instructions == "valgrind is missing; install with: apt-get install valgrind"
    assert found.pairs == 2
    assert counted_runs(project) == []


def test_what_else_goes_wrong_while_it_counts_takes_nothing_from_the_pairs(
    project: Project, valgrind: FakeValgrind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Any:
        raise MeasureError("less than 500 MiB free on its disk")

    monkeypatch.setattr(Runner, "execute", full)
    found = made(project, asked(instructions=True))
    assert (found.pairs, found.instructions) == (2, "less than 500 MiB free on its disk")


def test_ratios_of_instructions_stand_beside_those_of_processor_time() -> None:
    blocks = [
        {"a": {"both ends": 10.0, "client": 4.0, "server": 6.0}, "b": {"both ends": 9.0, "client": 4.0, "server": 5.0}},
        {"a": {"both ends": 12.0, "client": 6.0, "server": 6.0}, "b": {"both ends": 9.0, "client": 4.0, "server": 5.0}},
    ]
    counted = Counted(blocks, 4 << 20)
    found = compared(instructions=counted)
    ratio = math.sqrt(0.9 * 0.75)
    percent = f"{100 * (ratio - 1):+.2f}"
    lines = found.text().splitlines()
    at = lines.index("Instructions per byte, B over A (2 counts, [lowest, highest])")
    assert lines[at - 1].startswith("  server  ")
    assert lines[at + 1] == f"  both ends  {ratio:.4f}  [0.7500, 0.9000]  {percent} %, 9.00 over 11.00"
    assert "not time" in lines[at + 4]
    assert "AVX-512" in lines[at + 4]
    told = json.loads(json.dumps(found.as_dict()))["instructions"]
    assert told["ratios"]["both ends"] == {"ratio": pytest.approx(ratio), "blocks": [0.9, 0.75]}
    assert told["per_byte"]["a"]["client"] == pytest.approx(5.0)


def compared(**more: Any) -> Compared:
    values: dict[str, Any] = {
        "told": {"a": "one", "b": "other"},
        "directory": Path("raw/local/compare/0123abcd"),
        "half_width": 0.01,
        "intervals": {name: Interval(0.95, 0.94, 0.96, 8, 0.012) for name in comparing.PARTS},
        "pairs": 8,
        "failed": 0,
        "earlier": 0,
        "disturbances": [],
        "decided": True,
        "seconds": 3.0,
    }
    return Compared(**(values | more))


@pytest.mark.parametrize(("decided", "code"), [(True, 0), (False, 3)])
def test_the_command_says_what_it_found(
    decided: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Asked] = []

    def pretended(project: Project, what: Asked, log: Path) -> Compared:
        del log
        assert project.raw == tmp_path / "runs"
        seen.append(what)
        return compared(decided=decided)

    monkeypatch.setattr(comparing, "compare", pretended)
    argv = ["compare", "quinn/stock", "quinn/noop", "--a-cipher", "aes-128-gcm", "--b-header-protection", "off"]
    argv += ["--cipher", "aes-256-gcm", "--half-width", "2", "--json", str(tmp_path / "found.json")]
    assert commands.main([*argv, "--out", str(tmp_path / "runs")]) == code
    (what,) = seen
    assert what.arms == {"a": "quinn/stock", "b": "quinn/noop"}
    assert what.variants == {
        "a": {"cipher": "aes-128-gcm"},
        "b": {"cipher": "aes-256-gcm", "header_protection": "off"},
    }
    assert what.half_width == pytest.approx(0.02)
    assert what.instructions
    told = capsys.readouterr().out
    assert "both ends  0.9500  [0.9400, 0.9600]  -5.00 % ± 1.05 %" in told
    assert ("as narrow as requested" in told) is decided
    kept = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert kept["decided"] is decided
    assert kept["ratios"]["server"]["ratio"] == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no such library"), 2), (UnsupportedError("one core"), 127), (MeasureError("all pairs failed"), 1)],
)
def test_exit_codes(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> Compared:
        raise error

    monkeypatch.setattr(comparing, "compare", refused)
    assert commands.main(["compare", "quinn", "quiche"]) == code
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--half-width", "0"], ["--min-pairs", "1"], ["--bytes", "1000"], ["--minutes", "-1"], ["--b-page", "x"]]
)
def test_a_wrong_command_line(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        commands.main(["compare", "quinn", "quiche", *words])
    assert stopped.value.code == 2


def test_more_pairs_at_least_than_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["compare", "quinn", "quiche", "--min-pairs", "9", "--max-pairs", "8"]) == 2
    assert "--min-pairs 9 is more than --max-pairs 8" in capsys.readouterr().err


def test_without_pairs_there_is_no_interval() -> None:
    none = Interval(math.nan, math.nan, math.nan, 0)
    empty = compared(pairs=0, decided=False, intervals=dict.fromkeys(comparing.PARTS, none))
    assert empty.needed is None
    assert empty.as_dict()["ratios"]["client"]["low"] is None
    assert "wider than requested" in empty.text()


def test_the_repository_has_no_experiment_of_this_name() -> None:
    assert not (ROOT / "config" / "experiments" / f"{comparing.NAME}.yaml").exists()
