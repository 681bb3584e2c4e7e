"""perf: folding its output, mappings of symbols, shares of samples, and recording a real program."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import fakeproject
from faketestbed import FakeHost
from quicbed import driver, perf
from quicbed.config import ConfigError, Perf, Project
from quicbed.testbed import Completed

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """\
client  2779 10.000000500:
\tffffffff8141acc5 udp_sendmsg ([kernel.kallsyms])
\tffffffff8137b9c6 do_syscall_64 ([kernel.kallsyms])
\t           fd867 __libc_sendmsg (/usr/lib/libc.so.6)
\t           dc7a1 quiche::fill::<[u8; 32]> (/somewhere/bin/client)

client  2779 10.000000600: PERF_RECORD_LOST lost 7
a thread 2780 10.000000700:
\t            1000 [unknown] (/usr/bin/python3.11)

client  2779 11.000000000:
\t            2000 main (/somewhere/bin/client)

"""


def test_fold_keeps_the_samples_of_the_interval_and_counts_lost_ones() -> None:
    folded, lost = perf.fold(SCRIPT, 10_000_000_500, 10_999_999_999)
    assert folded == {
        "client;client`quiche::fill::<[u8, 32]>;libc.so.6`__libc_sendmsg;kernel`do_syscall_64;kernel`udp_sendmsg": 1,
        "a thread;python3.11`[unknown]": 1,
    }
    assert lost == 7
    assert perf.fold(SCRIPT, 10_000_000_601, 12 * 10**9)[1] == 0


def test_folded_stacks_are_read_back_innermost_frame_first(tmp_path: Path) -> None:
    file = tmp_path / perf.folded_name("client")
    perf.write_folded(file, {"comm;a`main;b`f 1": 3, "comm;a`main": 2})
    assert perf.read_folded(file.read_bytes()) == {("b`f 1", "a`main"): 3, ("a`main",): 2}
    with pytest.raises(perf.PerfError, match="damaged"):
        perf.read_folded(file.read_bytes()[:-4])


def mapping(root: Path, text: str) -> perf.SymbolMap:
    """The mapping of a library `test` with this text, beside the shared mappings of the repository."""
    shared = root / "config" / "symbols" / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    for file in (ROOT / "config" / "symbols" / "shared").iterdir():
        (shared / file.name).write_bytes(file.read_bytes())
    (root / "config" / "symbols" / "test.yaml").write_text(text, encoding="utf-8")
    perf.symbol_map.cache_clear()
    return perf.symbol_map(root, "test")


CLAIMS = """
claims:
  packet-protection: ['^seal$', {symbol: '^aes$', under: '^seal$'}]
  header-protection: ['^mask$']
  connection-management: ['^connection', '^\\[python']
"""


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        (["a`aes", "a`mask", "a`connection_send"], "header-protection"),
        (["a`aes", "a`seal", "a`connection_send"], "packet-protection"),
        (["libc`memcpy", "a`connection_send", "a`main"], "connection-management"),
        (["a`main"], "uncategorised"),
        (["python3.11`[unknown]"], "connection-management"),
        (["kernel`copy", "kernel`udp_sendmsg", "libc`send", "a`seal"], "packet-io"),
        (["kernel`net_rx_action", "kernel`asm_sysvec_apic_timer_interrupt", "a`seal"], "packet-io"),
        (["kernel`tick", "kernel`asm_sysvec_apic_timer_interrupt", "kernel`udp_sendmsg"], "kernel"),
        (["kernel`do_futex", "a`seal"], "kernel"),
    ],
)
def test_the_innermost_claimed_frame_decides(tmp_path: Path, stack: list[str], category: str) -> None:
    assert mapping(tmp_path, CLAIMS).sort(tuple(stack)) == category


def test_counts_are_samples_by_category(tmp_path: Path) -> None:
    stacks = Counter({("a`seal",): 3, ("a`aes", "a`seal"): 2, ("b`other",): 1})
    assert mapping(tmp_path, CLAIMS).count(stacks) == {"packet-protection": 5, "uncategorised": 1}


def test_a_symbol_that_two_categories_claim_is_an_error(tmp_path: Path) -> None:
    claims = "claims: {packet-protection: ['^crypt_'], header-protection: ['_mask$']}"
    sorted_by = mapping(tmp_path, claims)
    with pytest.raises(ConfigError, match=r"test\.yaml: claims: symbol `crypt_mask` is claimed by packet-protection"):
        sorted_by.sort(("a`crypt_mask",))


def test_a_name_that_two_categories_claim_is_found_when_the_mapping_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`crypt_mask` is claimed by"):
        mapping(tmp_path, "claims: {packet-protection: ['^crypt_'], header-protection: ['^crypt_mask$']}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claims: {packet-io: ['(']}", r"test\.yaml: claims\.packet-io: bad pattern `\(`"),
        ("claims: {packet-io: [{symbol: a, under: '['}]}", r"claims\.packet-io: bad pattern `\[`"),
        ("claims: {uncategorised: [a]}", "claims: uncategorised"),
        ("claims: {packets: [a]}", r"test\.yaml: claims"),
        ("include: [nothing]\nclaims: {}", r"test\.yaml: include: there is no .*nothing\.yaml"),
    ],
)
def test_a_bad_mapping_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        mapping(tmp_path, text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("library", sorted(Project(ROOT).libraries))
def test_every_library_has_a_mapping(library: str) -> None:
    if Project(ROOT).libraries[library].optional:
        pytest.skip("optional libraries need none")
    assert perf.mapping_problem(ROOT, library) is None


def test_perf_that_is_not_permitted_is_one_reason() -> None:
    class Refusing(FakeHost):
        def run(self, argv, **_):  # type: ignore[no-untyped-def]
            text = "Error:\nAccess to performance monitoring is limited.\nperf_event_paranoid setting is 4:\n"
            return Completed(tuple(argv), 255, "", text)

    said = perf.problem(Refusing("client"))
    assert said is not None
    assert "not permitted" in said
    assert "\n" not in said


EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: throughput}
libraries: [quiche, quinn]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
baseline: AES-128-GCM
aa: false
perf: {frequency: 999}
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 5}
"""


def test_a_library_without_mapping_is_unsupported_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.Driver, "prove", lambda *_: driver.Verdict("proof", "ok", None, True))
    monkeypatch.setattr(perf, "problem", lambda _host: None)
    project = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    (project.root / "config" / "symbols" / "quinn.yaml").write_text("claims: {packet-io: ['(']}", encoding="utf-8")
    profiled: list[str] = []

    def execute(self, cell, *_, profile=None, **__):  # type: ignore[no-untyped-def]
        if profile is not None:
            profiled.append(cell.client.library)
        return driver.Attempt(metrics={"goodput_mbps": 1.0})

    monkeypatch.setattr(driver.Driver, "execute", execute)
    said = fakeproject.run(project)
    assert profiled == ["quiche"]
    assert list(said["excluded"].values()) == [
        "config/symbols/quinn.yaml: claims.packet-io: bad pattern `(`: missing ), unterminated subpattern at position 0"
    ]


def test_perf_needs_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"perf: needs workload\.kind `bulk`"):
        fakeproject.make(tmp_path, EXPERIMENT.replace("bulk", "handshake"), monkeypatch)


@pytest.mark.skipif(perf.problem(FakeHost("client")) is not None, reason="perf cannot sample programs here")
def test_a_held_program_is_sampled_with_its_children(tmp_path: Path) -> None:
    host = FakeHost("client")
    profile = perf.Profile(Perf(), tmp_path)
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    argv = profile.held("client", ["/bin/sh", "-c", f"({busy}) & {busy}; wait; exit 3"])
    process = host.spawn(argv, stdout=tmp_path / "out", stderr=tmp_path / "err")
    profile.attach("client", host, process)
    assert process.wait(30).returncode == 3
    profile.stop()
    facts = profile.fold({"client": host}, 0, 2**62)
    profile.discard()
    stacks = perf.read_folded((tmp_path / perf.folded_name("client")).read_bytes())
    assert facts["client"]["samples"] == stacks.total() > 10
    assert {file.name for file in tmp_path.iterdir()} == {"out", "err", perf.folded_name("client")}


def test_perf_that_ends_at_once_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "perf"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'no such event' >&2\nexit 129\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    host = FakeHost("client")
    profile = perf.Profile(Perf(), tmp_path)
    process = host.spawn(profile.held("client", ["/bin/true"]), stdout=tmp_path / "out", stderr=tmp_path / "err")
    with pytest.raises(perf.PerfError, match="does not record the client: no such event"):
        profile.attach("client", host, process)
    process.kill()
    profile.stop()


def test_describe_names_what_no_claim_covers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    mapping(tmp_path, CLAIMS)
    (run / "run.json").write_text(json.dumps({role: {"library": "test"} for role in ("client", "server")}))
    for role in ("client", "server"):
        perf.write_folded(run / perf.folded_name(role), {"c;a`seal": 3, "c;a`odd_caller;b`odd": 1})
    text = perf.describe(tmp_path, run)
    assert "75.00 %  packet-protection" in text
    assert "25.00 %  b`odd < a`odd_caller" in text
    with pytest.raises(perf.PerfError, match="not the directory of a run"):
        perf.describe(tmp_path, tmp_path)
