"""perf: folding its output, mappings of symbols, shares of samples, and recording a real program."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

import fakeproject
import fakeruns
import wording
from clone import ROOT
from faketestbed import FakeHost
from quicbed.config.model import ConfigError, Perf, Project
from quicbed.measure import profile as perf
from quicbed.measure.attempt import Attempt, MeasureError
from quicbed.measure.prove import Prover, Verdict
from quicbed.measure.runner import Runner
from quicbed.plan.spec import RunSpec
from quicbed.store import symbols
from quicbed.store.stacks import PerfError, folded_name, read_folded, write_folded
from quicbed.testbed import Completed, Process, TestbedError

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


def test_samples_of_another_host_are_those_of_the_same_time(tmp_path: Path) -> None:
    class Ahead(FakeHost):
        def monotonic_ahead_ns(self) -> int:
            return 10**9

    profile = perf.Profile(Perf(), tmp_path)
    for role, host in (("client", FakeHost("client")), ("server", Ahead("server"))):
        profile.held(role, host, ["true"])
        (tmp_path / f"{role}.perf.script").write_text(SCRIPT)
        recorder = profile._recorders[role]
        recorder.ahead_ns = host.monotonic_ahead_ns()
    facts = profile.fold(10_000_000_000, 10_000_000_600)
    for role, innermost in (("client", "kernel`udp_sendmsg"), ("server", "client`main")):
        stacks = read_folded((tmp_path / folded_name(role)).read_bytes())
        assert [stack[0] for stack in stacks] == [innermost]
    assert (facts["server"]["ahead_of_client_ns"], facts["client"]["ahead_of_client_ns"]) == (10**9, 0)


def test_folded_stacks_are_read_back_innermost_frame_first(tmp_path: Path) -> None:
    file = tmp_path / folded_name("client")
    write_folded(file, {"comm;a`main;b`f 1": 3, "comm;a`main": 2})
    assert read_folded(file.read_bytes()) == {("b`f 1", "a`main"): 3, ("a`main",): 2}
    for damaged in (file.read_bytes()[:-4], b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 20, gzip.compress(b"a;b`c many\n")):
        with pytest.raises(PerfError, match="damaged"):
            read_folded(damaged)
    with pytest.raises(PerfError, match="without a sample"):
        read_folded(gzip.compress(b""))


def mapping(root: Path, text: str) -> symbols.SymbolMap:
    """The mapping of a library `test` with this text, beside the shared mappings of the repository."""
    shared = root / "config" / "symbols" / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    for file in (ROOT / "config" / "symbols" / "shared").iterdir():
        (shared / file.name).write_bytes(file.read_bytes())
    (root / "config" / "symbols" / "test.yaml").write_text(text, encoding="utf-8")
    symbols.symbol_map.cache_clear()
    return symbols.symbol_map(root, "test", "client")


CLAIMS = """
claims:
  packet-protection: ['^seal$', {symbol: '^(aes|shared)$', under: '^seal$'}]
  header-protection: ['^mask$', {symbol: '^shared$', under: '^mask$'}]
rest:
  packet-protection: ['^shared$']
  connection-management: ['^connection', '^mask', '^\\[python']
objects:
  packet-io: ['^libscript']
"""


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        (["a`aes", "a`mask", "a`connection_send"], "header-protection"),
        (["a`aes", "a`seal", "a`connection_send"], "packet-protection"),
        (["a`aes", "a`connection_send"], "connection-management"),
        (["a`shared", "a`mask", "a`connection_send"], "header-protection"),
        (["a`shared", "a`connection_send"], "packet-protection"),
        (["a`mask"], "header-protection"),
        (["a`mask_of_something_else"], "connection-management"),
        (["libc`memcpy", "a`connection_send", "a`main"], "connection-management"),
        (["a`main"], "uncategorised"),
        (["python3.11`[unknown]"], "connection-management"),
        (["libscript.so`tuple_alloc", "libscript.so`[unknown]"], "packet-io"),
        (["libscript.so`tuple_alloc", "a`mask"], "header-protection"),
        (["a`main", "libscript.so`run"], "uncategorised"),
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


def test_two_categories_for_the_rest_are_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`crypt_mask` is claimed by packet-protection .* and by header-protection"):
        mapping(tmp_path, "claims: {}\nrest: {packet-protection: ['^crypt_'], header-protection: ['^crypt_mask$']}")


def test_an_object_that_two_categories_claim_is_an_error(tmp_path: Path) -> None:
    sorted_by = mapping(tmp_path, "claims: {}\nobjects: {application: ['^lib'], packet-io: ['^libc']}")
    assert sorted_by.sort(("liba`x",)) == "application"
    with pytest.raises(ConfigError, match=r"test\.yaml: objects: `libc` is claimed by application .* and by packet-io"):
        sorted_by.sort(("libc`x",))


def test_two_rules_that_hold_for_one_stack_are_an_error(tmp_path: Path) -> None:
    rules = "[{symbol: '^aes$', under: '^seal'}], header-protection: [{symbol: '^aes$', under: '^mask'}]"
    sorted_by = mapping(tmp_path, f"claims: {{packet-protection: {rules}}}")
    assert sorted_by.sort(("a`aes", "a`mask")) == "header-protection"
    with pytest.raises(ConfigError, match="symbol `aes` is claimed by packet-protection"):
        sorted_by.sort(("a`aes", "a`mask", "a`seal"))


@pytest.mark.parametrize(
    "text",
    [
        "claims: {}\nrest: {packet-io: ['(']}",
        "claims: {}\nrest: {uncategorised: [a]}",
        "claims: {}\nobjects: {packet-io: ['(']}",
        "claims: {packet-io: [a]}\nunsupported: {packet-io: why}",
        "claims: {packet-io: [{symbol: a}]}",
        "claims: {}\nclaim: {}",
        "claims: [",
        "- claims",
        "claims: {packet-io: ['(']}",
        "claims: {packet-io: [{symbol: a, under: '['}]}",
        "claims: {uncategorised: [a]}",
        "claims: {packets: [a]}",
        "include: [nothing]\nclaims: {}",
        f"include: [{'a' * 300}]\nclaims: {{}}",
    ],
    ids=wording.name,
)
def test_a_bad_mapping_is_one_line_that_names_file_and_key(
    tmp_path: Path, text: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ConfigError) as error:
        mapping(tmp_path, text)
    assert wording.one_line(error.value, tmp_path, names="test.yaml: ") == snapshot


@pytest.mark.parametrize("library", sorted(Project(ROOT).without_folders().libraries))
def test_every_library_has_a_mapping(library: str) -> None:
    if Project(ROOT).without_folders().libraries[library].optional:
        pytest.skip("optional libraries need none")
    assert symbols.mapping_problem(ROOT, library) is None


# library, category, functions from the innermost outwards
STACKS = """
quinn HP ring::aead::aes::hw::Key < ring::aead::aes::Key::new_mask < ring::aead::quic::HeaderProtectionKey
quinn PP ring::aead::aes::hw::Key < ring::aead::aes_gcm::seal < quinn_proto::packet
noq HP <quicbed_endpoint_noq::protection::PlainHeaderKey as rustls::quic::HeaderProtectionKey>::decrypt_in_place
noq HP <quicbed_rustls::protection::PlainHeaderKey as rustls::quic::HeaderProtectionKey>::decrypt_in_place
quinn PP <quicbed_rustls::protection::NoopPacketKey as rustls::quic::PacketKey>::encrypt_in_place
quic-go HP golang.org/x/crypto/chacha20.(*Cipher).XORKeyStream < x/handshake.(*chachaHeaderProtector).apply
quic-go PP golang.org/x/crypto/chacha20.(*Cipher).XORKeyStream < golang.org/x/crypto/chacha20poly1305.seal
quic-go PP github.com/quic-go/quic-go/internal/handshake.noop.Open < main.main
quic-go HP github.com/quic-go/quic-go/internal/handshake.noHeaderProtection.DecryptHeader
quic-go CM github.com/quic-go/quic-go/internal/handshake.(*updatableAEAD).rollKeys
quic-go CM runtime.memmove < github.com/quic-go/quic-go.(*SendStream).popNewStreamFrame
quic-go IO quicbed/quic-go/endpoint.(*Socket).ReadBatch < main.main
msquic HP ossl_cipher_generic_stream_update < EVP_EncryptUpdate < CxPlatHpComputeMask
msquic PP __strcmp_evex < OSSL_PARAM_locate < EVP_CIPHER_CTX_set_params < CxPlatDecrypt
msquic HP QuicConnRecvPrepareDecrypt < QuicConnRecvDatagrams
msquic CM CxPlatHashtableEnumerateNext < QuicStreamSetGetFlowControlSummary
msquic IO CxPlatSocketSend < QuicSendFlush
nginx-h3 HP aesni_ctr32_encrypt_blocks < EVP_EncryptUpdate < ngx_quic_crypto_hp.isra.0
nginx-h3 PP aesni_ctr32_encrypt_blocks < EVP_EncryptUpdate < ngx_quic_crypto_common.isra.0
nginx-h3 HP ChaCha20_ctr32_nohw
nginx-h3 HP ChaCha20_avx512 < EVP_EncryptUpdate < ngx_quic_crypto_hp.isra.0
nginx-h3 PP ChaCha20_16x < chacha20_poly1305_aead_cipher < EVP_EncryptUpdate < ngx_quic_crypto_common.isra.0
s2n-quic HP aws_lc_0_47_0_aes_hw_encrypt < s2n_quic_core::crypto::application::keyset::KeySet<K>::encrypt_packet
s2n-quic PP aws_lc_0_47_0_aes_hw_encrypt < aead_aes_gcm_seal_scatter_impl
s2n-quic PP memmove < s2n_quic_core::crypto::encrypt
s2n-quic HP aws_lc_0_47_0_ChaCha20_ctr32_nohw < s2n_quic_core::crypto::protect
s2n-quic CM s2n_connection_recv < <s2n_quic_tls::session::Session as s2n_quic_core::crypto::tls::Session>::poll
s2n-quic APP quicbed_endpoint_s2n_quic::client::Transfer::receive < tokio::runtime::Runtime::block_on
quiche HP aes_hw_encrypt < quiche::crypto::boringssl::HeaderProtectionKey::new_mask < quiche::packet::decrypt_hdr
quiche PP aes_hw_encrypt < aead_aes_gcm_sealv_impl < EVP_AEAD_CTX_seal_scatter
quiche HP AES_ecb_encrypt < quiche::packet::encrypt_pkt < quiche::Connection<F>::send_single
quiche HP aes_hw_encrypt < AES_ecb_encrypt < quiche::packet::encrypt_pkt
quiche HP CRYPTO_chacha_20 < quiche::packet::encrypt_pkt
quiche PP CRYPTO_chacha_20 < chacha20_poly1305_seal < EVP_AEAD_CTX_seal_scatter < quiche::packet::encrypt_pkt
ngtcp2 PP memmove < EVP_AEAD_CTX_open < ngtcp2_crypto_decrypt < conn_recv_pkt
ngtcp2 HP aes_hw_encrypt < ngtcp2_crypto_hp_mask_cb < decrypt_hp < conn_recv_pkt
openssl HP aesni_ecb_encrypt < EVP_CipherUpdate < hdr_generate_mask
openssl PP ossl_cipher_generic_stream_update < EVP_CipherUpdate < qtx_encrypt_into_txe < ossl_qtx_write_pkt
tcp-tls PP EVP_CipherUpdate < tls13_cipher < tls_write_records_default
tcp-tls IO ngx_writev_chain < ngx_http_write_filter
aioquic HP <cryptography_rust::backend::ciphers::CipherContext>::update
aioquic PP <cryptography_rust::backend::aead::AesGcm>::decrypt
"""
SHORT = {
    "PP": "packet-protection",
    "HP": "header-protection",
    "IO": "packet-io",
    "CM": "connection-management",
    "APP": "application",
}


@pytest.mark.parametrize("line", STACKS.strip().splitlines())
def test_stacks_as_perf_sees_them_are_sorted_as_their_sources_say(line: str) -> None:
    library, category, stack = line.split(" ", 2)
    frames = tuple(f"program`{function}" for function in stack.split(" < "))
    assert symbols.symbol_map(ROOT, library, "client").sort(frames) == SHORT[category]


def test_aioquic_says_what_its_stacks_do_not_show() -> None:
    assert set(symbols.symbol_map(ROOT, "aioquic", "client").unsupported) == {"application"}


def test_perf_that_is_missing_is_one_reason() -> None:
    class Bare(FakeHost):
        def run(self, *_, **__):  # type: ignore[no-untyped-def]
            raise TestbedError("client: perf: No such file or directory")

    assert perf.problem(Bare("client")) == "perf: client: perf: No such file or directory"


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
    monkeypatch.setattr(Prover, "prove", lambda *_: Verdict("proof", "ok", None, True))
    monkeypatch.setattr(perf, "problem", lambda _host: None)
    project = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    (project.root / "config" / "symbols" / "quinn.yaml").write_text("claims: {packet-io: ['(']}", encoding="utf-8")
    profiled: list[str] = []

    def execute(_runner: Runner, spec: RunSpec, _directory: Path) -> Attempt:
        if spec.profile is not None:
            profiled.append(spec.cell.client.library)
        return Attempt(metrics={"goodput_mbps": 1.0, "bytes": 1})

    monkeypatch.setattr(Runner, "execute", execute)
    said = fakeproject.run(project)
    assert profiled == ["quiche"]
    assert list(said["excluded"].values()) == [
        "config/symbols/quinn.yaml: claims.packet-io: bad pattern `(`: missing ), unterminated subpattern at position 0"
    ]


def test_perf_that_is_not_permitted_leaves_every_cell_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(host: FakeHost) -> str:
        asked.append(host.name)
        return "perf is not permitted to sample programs"

    monkeypatch.setattr(perf, "problem", refuse)
    said = fakeproject.run(fakeproject.make(tmp_path, EXPERIMENT, monkeypatch))
    assert list(said["excluded"].values()) == ["perf is not permitted to sample programs"] * 2
    assert asked == ["client"]


def test_perf_that_fails_in_one_run_fails_that_run_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach(self: perf.Profile, role: str, _: Process) -> None:
        recorder = self._recorders[role]
        if any("quinn" in word for word in recorder.host.spawned[-1]):  # type: ignore[attr-defined]
            raise PerfError(f"perf does not record the {role}: no space left on device")
        Path(recorder.pipe("gate")).write_bytes(b"\n")

    monkeypatch.setattr(Prover, "prove", lambda *_: Verdict("proof", "ok", None, True))
    monkeypatch.setattr(perf, "problem", lambda _host: None)
    monkeypatch.setattr(perf.Profile, "attach", attach)
    monkeypatch.setattr(perf.Profile, "resolve", lambda *_: None)
    monkeypatch.setattr(perf.Profile, "fold", lambda *_: {"samples": 1})
    project = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    with pytest.raises(MeasureError, match=r"quinn.*no run succeeded, the last failed: perf does not record the"):
        fakeproject.run(project)
    found = {run["client"]["library"]: (run["status"], run["reason"]) for run in fakeproject.runs(project)}
    assert found == {
        "quiche": ("ok", None),
        "quinn": ("failed", "perf does not record the server: no space left on device"),
    }
    assert not [file for file in project.raw.rglob(".*") if file.is_fifo()]


def test_perf_needs_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"perf: needs workload\.kind `bulk`"):
        fakeproject.make(tmp_path, EXPERIMENT.replace("bulk", "handshake"), monkeypatch)


@pytest.mark.skipif(perf.problem(FakeHost("client")) is not None, reason="perf cannot sample programs here")
def test_a_held_program_is_sampled_with_its_children(tmp_path: Path) -> None:
    host = FakeHost("client")
    profile = perf.Profile(Perf(), tmp_path)
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    argv = profile.held("client", host, ["/bin/sh", "-c", f"({busy}) & {busy}; wait; exit 3"])
    process = host.spawn(argv, stdout=tmp_path / "out", stderr=tmp_path / "err")
    profile.attach("client", process)
    assert process.wait(30).returncode == 3
    assert profile.stop()["client"] > 0
    profile.resolve()
    profile.clear()
    facts = profile.fold(0, 2**62)
    profile.discard()
    stacks = read_folded((tmp_path / folded_name("client")).read_bytes())
    assert facts["client"]["samples"] == stacks.total() > 10
    assert {file.name for file in tmp_path.iterdir()} == {"out", "err", folded_name("client")}


def test_perf_that_ends_at_once_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "perf"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'no such event' >&2\nexit 129\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    host = FakeHost("client")
    profile = perf.Profile(Perf(), tmp_path)
    held = profile.held("client", host, ["/bin/true"])
    process = host.spawn(held, stdout=tmp_path / "out", stderr=tmp_path / "err")
    with pytest.raises(PerfError, match="does not record the client: no such event"):
        profile.attach("client", process)
    process.kill()
    profile.stop()


SIDE = fakeruns.make_run()["client"] | {"library": "test"}
OF_TEST = fakeruns.make_run(client=SIDE, server=SIDE)


def test_describe_names_what_no_claim_covers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    mapping(tmp_path, CLAIMS)
    (run / "run.json").write_text(json.dumps(OF_TEST))
    for role in ("client", "server"):
        write_folded(run / folded_name(role), {"c;a`seal": 3, "c;a`odd_caller;b`odd": 1})
    text = symbols.describe(tmp_path, run)
    assert "75.00 %  packet-protection" in text
    assert "25.00 %  b`odd < a`odd_caller" in text
    mapping(tmp_path, CLAIMS + "unsupported: {application: perf sees the interpreter}")
    assert "- %  application: perf sees the interpreter" in symbols.describe(tmp_path, run)


def test_describe_says_in_one_line_what_a_directory_lacks(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match="not the directory of a run"):
        symbols.describe(tmp_path, tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(PerfError, match=r"run\.json: not a run of quicbed"):
        symbols.describe(tmp_path, tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(OF_TEST))
    with pytest.raises(PerfError, match=r"client\.folded\.gz: is missing; only runs of an experiment with `perf`"):
        symbols.describe(tmp_path, tmp_path)
    (tmp_path / folded_name("client")).write_bytes(b"")
    with pytest.raises(PerfError, match=r"client\.folded\.gz: folded stacks without a sample"):
        symbols.describe(tmp_path, tmp_path)
