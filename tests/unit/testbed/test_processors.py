"""What machines that are not x86-64, or are of one image, tell of themselves."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from typing import Any

import pytest

from quicbed.testbed import agent, facts

ARM = """processor\t: {number}
BogoMIPS\t: 243.75
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics
CPU implementer\t: {maker}
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: {part}
CPU revision\t: 1

"""
POWER = """processor\t: 0
cpu\t\t: POWER9, altivec supported
clock\t\t: 2900.000000MHz
revision\t: 2.2 (pvr 004e 1202)

timebase\t: 512000000
platform\t: {platform}
model\t\t: made up
"""
X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 7543 32-Core Processor
microcode\t: 0xa001173
flags\t\t: fpu aes avx2 {more}

"""


def arm(*cores: tuple[str, str]) -> str:
    return "".join(ARM.format(number=number, maker=maker, part=part) for number, (maker, part) in enumerate(cores))


@pytest.mark.parametrize(
    ("cpuinfo", "model", "virtual"),
    [
        (arm(("0x41", "0xd0c"), ("0x41", "0xd0c")), "Arm Neoverse-N1 r3p1", None),
        (arm(("0x41", "0xd05"), ("0x41", "0xd0b")), "Arm Cortex-A55 r3p1 + Arm Cortex-A76 r3p1", None),
        (arm(("0x61", "0x022")), "Apple part 0x22 r3p1", None),
        (arm(("0x99", "0xabc")), "Arm implementer 0x99 part 0xabc r3p1", None),
        ("processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc\nuarch\t\t: sifive,u74-mc\n", "sifive,u74-mc", None),
        (POWER.format(platform="pSeries"), "POWER9, altivec supported", True),
        (POWER.format(platform="PowerNV"), "POWER9, altivec supported", False),
        (X86.format(more="hypervisor"), "AMD EPYC 7543 32-Core Processor", True),
        (X86.format(more="") * 2, "AMD EPYC 7543 32-Core Processor", False),
        ("", platform.machine(), None),
        ("CPU implementer : x\nCPU part : \n", platform.machine(), None),
    ],
)
def test_a_processor_has_a_name_and_is_virtual_only_where_that_is_told(
    cpuinfo: str, model: str, virtual: bool | None
) -> None:
    found = agent.processor(cpuinfo)
    assert (found["cpu_model"], found["virtual_machine"]) == (model, virtual)


def test_flags_of_x86_and_features_of_arm_are_both_taken() -> None:
    assert agent.processor(arm(("0x41", "0xd0c")))["cpu_flags"] == ["aes", "pmull", "sha2"]
    assert agent.processor(X86.format(more=""))["cpu_flags"] == ["aes", "avx2"]
    assert agent.processor(X86.format(more=""))["microcode"] == "0xa001173"
    wide = "avx512f avx512_vbmi2 avx512bw vaes vpclmulqdq pclmulqdq sha_ni gfni nopl hypervisor spec_ctrl"
    assert agent.processor(X86.format(more=wide))["cpu_flags"] == sorted(["aes", "avx2", *wide.split()[:8]])
    riscv = "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdcv_zicsr_zbc_zvkned\n"
    assert agent.processor(riscv)["cpu_flags"] == ["v", "zbc", "zvkned"]


def test_processors_are_told_apart_by_family_model_and_stepping() -> None:
    x86 = X86.replace("model name", "cpu family\t: 25\nmodel\t\t: 17\nstepping\t: 1\nmodel name").format(more="")
    assert agent.processor(x86 * 2)["processor"] == "AuthenticAMD family 25 model 17 stepping 1"
    cores = arm(("0x41", "0xd05"), ("0x41", "0xd0b"))
    assert agent.processor(cores)["processor"] == " + ".join(
        f"implementer 0x41 part {part} variant 0x3 revision 1" for part in ("0xd05", "0xd0b")
    )
    assert agent.processor(POWER.format(platform="pSeries"))["processor"] == "revision 2.2 (pvr 004e 1202)"
    assert agent.processor("")["processor"] == platform.machine()
    loongson = "processor\t: 0\nCPU Family\t: Loongson-64bit\nModel Name\t: Loongson-3A5000\nCPU Revision\t: 0x10\n"
    assert agent.processor(loongson)["processor"] == "Loongson-64bit revision 0x10"
    assert agent.processor("vendor_id : IBM/S390\nprocessor 0: version = 00\n")["processor"] == "IBM/S390"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The name of a machine with this identity, host name and identity of its hardware."""

    def named(identity: str | None, node: str = "birch", uuid: str | None = None) -> str:
        files: dict[str, Any] = {"/etc/machine-id": identity, "/sys/class/dmi/id/product_uuid": uuid}
        monkeypatch.setattr(platform, "node", lambda: node)
        monkeypatch.setattr(facts, "read_optional", files.get)
        return facts.host_id()

    return named


@pytest.mark.parametrize("none", ["uninitialized", "", None, "0" * 32])
def test_machines_of_one_image_are_not_one_host(machine: Callable[..., str], none: str | None) -> None:
    assert machine(none) == machine(none)
    assert machine(none, node="maple") != machine(none)
    assert machine(none, uuid="a") != machine(none, uuid="b")


def test_a_machine_that_has_an_identity_is_named_by_it_alone(machine: Callable[..., str]) -> None:
    identity = "0123456789abcdef0123456789abcdef"
    assert machine(identity) == hashlib.sha256(identity.encode()).hexdigest()[:12]
    assert machine(identity, node="maple", uuid="b") == machine(identity)
