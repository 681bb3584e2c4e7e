"""Who measured: machine, processor, microcode, kernel and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quicbed.plan.host import FACTS, Host, host_of
from quicbed.testbed import facts as machine_facts

GIB = 2**30
LOCAL = {
    "host_id": "0123456789ab",
    "cpu_model": "Example CPU",
    "microcode": "0x1",
    "kernel": "6.1.0",
    "memory_bytes": 24 * GIB - 450 * 2**20,
    "processor": "AuthenticAMD family 26 model 2 stepping 1",
    "cpu_flags": ["aes", "avx2", "avx512f", "vaes"],
    "hosts": {"client": {"address": "10.0.0.1"}, "server": {"address": "10.0.0.2"}},
}


@pytest.mark.parametrize("name", FACTS)
def test_every_fact_makes_another_host(name: str) -> None:
    host = host_of(LOCAL)
    numbers, flags = "AuthenticAMD family 26 model 2 stepping 1", "aes avx2 avx512f vaes"
    assert host == Host("0123456789ab", "Example CPU", "0x1", "6.1.0", "24 GiB", numbers, flags)
    assert replace(host, **{name: "another"}).id != host.id
    assert replace(host, **{name: None}).id != host.id


def test_hosts_that_differ_in_a_vector_extension_alone_are_two() -> None:
    assert host_of(LOCAL | {"cpu_flags": ["aes", "avx2", "vaes"]}).id != host_of(LOCAL).id
    one, other = ({"cpu_flags": ["aes", *more]} for more in ([], ["avx512f"]))
    both = {"processor": "a / b", "hosts": {"client": one, "server": other}}
    assert host_of(both).extensions == "aes / aes avx512f"


def test_what_was_measured_before_flags_were_recorded_keeps_its_identity() -> None:
    before = {name: value for name, value in LOCAL.items() if name != "processor"}
    host = host_of(before)
    assert (host.processor, host.extensions, host.described) == (None, None, "Example CPU")
    # as it was named then
    assert host.id == "33f25c75"
    assert host_of(before | {"cpu_flags": []}) == host


@pytest.mark.parametrize(
    ("processor", "extensions", "described"),
    [
        ("AuthenticAMD family 25 model 1 stepping 1", "aes avx2 vaes", "CPU (Zen 3; AES, VAES, AVX2)"),
        ("AuthenticAMD family 26 model 2 stepping 1", "aes avx2 avx512f", "CPU (Zen 5; AES, AVX2, AVX-512)"),
        ("AuthenticAMD family 99 model 2 stepping 1", "", "CPU (family 99 model 2 stepping 1; no vector extensions)"),
        ("GenuineIntel family 6 model 207 stepping 2", "aes", "CPU (Emerald Rapids; AES)"),
        ("GenuineIntel family 6 model 85 stepping 7", None, "CPU (Cascade Lake)"),
        ("GenuineIntel family 6 model 85 stepping 4", None, "CPU (Skylake)"),
        ("implementer 0x41 part 0xd40", "aes pmull sve", "CPU (implementer 0x41 part 0xd40; AES, PMULL, SVE)"),
        (
            "AuthenticAMD family 25 model 1 stepping 1 / AuthenticAMD family 25 model 17 stepping 1",
            "aes avx2 / aes avx2 avx512f",
            "CPU (Zen 3 / Zen 4; AES, AVX2 / AES, AVX2, AVX-512)",
        ),
        (None, None, "CPU"),
    ],
)
def test_a_caption_names_generation_and_vector_extensions(
    processor: str | None, extensions: str | None, described: str
) -> None:
    assert Host("h", "CPU", None, "6.1", None, processor, extensions).described == described


def test_pages_that_the_kernel_keeps_make_no_other_host() -> None:
    assert host_of(LOCAL | {"memory_bytes": LOCAL["memory_bytes"] - 5 * 2**20}) == host_of(LOCAL)
    # also where the kernel leaves about half a GiB of the last
    assert host_of(LOCAL | {"memory_bytes": int(23.46 * GIB)}) == host_of(LOCAL | {"memory_bytes": int(23.54 * GIB)})
    assert host_of(LOCAL | {"memory_bytes": 2**29}).memory == "0.5 GiB"


@pytest.mark.parametrize(("sizes", "memory"), [((64, 64), "64 GiB"), ((64, 128), "64 GiB / 128 GiB")])
def test_two_hosts_at_the_ends_of_a_link_are_one_identity(sizes: tuple[int, int], memory: str) -> None:
    ends = dict(zip(("client", "server"), ({"memory_bytes": size * GIB} for size in sizes), strict=True))
    facts = {"host_id": "h", "cpu_model": "A / B", "kernel": "6.1", "hosts": ends | {"tap": {"memory_bytes": GIB}}}
    assert host_of(facts) == Host("h", "A / B", None, "6.1", memory)


@pytest.mark.parametrize("value", [None, 7, True, [], {}, 10**400, -1, float("nan")])
def test_facts_of_another_kind_are_not_known(value: Any) -> None:
    facts = dict.fromkeys((*FACTS, "memory_bytes", "hosts"), value)
    assert host_of(facts) == Host(**dict.fromkeys(FACTS))


def test_this_machine_is_known() -> None:
    host = host_of(machine_facts.machine())
    assert None not in (host.host_id, host.cpu_model, host.kernel, host.memory)
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    told = [line.partition(":")[2].strip() for line in lines if line.startswith("microcode")]
    assert host.microcode == next(iter(told), None)
