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
    "hosts": {"client": {"address": "10.0.0.1"}, "server": {"address": "10.0.0.2"}},
}


@pytest.mark.parametrize("name", FACTS)
def test_every_fact_makes_another_host(name: str) -> None:
    host = host_of(LOCAL)
    assert host == Host("0123456789ab", "Example CPU", "0x1", "6.1.0", "24 GiB")
    assert replace(host, **{name: "another"}).id != host.id
    assert replace(host, **{name: None}).id != host.id


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
