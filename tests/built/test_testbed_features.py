"""Probes of what the kernel can do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quicbed.testbed import Feature, TestbedError, features, require
from quicbed.testbed.base import Completed
from quicbed.testbed.features import LOCAL_TESTBED_NEEDS, _tool_result

NAMES = {
    "root",
    "namespaces",
    "veth",
    "bridge",
    "ifb",
    "udp-gso",
    "udp-gro",
    "loss",
    "reorder",
    "endpoint-user",
    "tbf",
    "netem",
    "fq",
    "etf",
    "delay",
    "psi",
    "schedstat",
    "perf",
    "perf-hardware",
    "valgrind",
}

# Without any capability, also for root.
POWERLESS = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--"]


@pytest.mark.root
def test_every_feature_is_there_or_says_why_not() -> None:
    found = features()
    assert set(found) == NAMES
    for name, feature in found.items():
        assert feature.available == (feature.reason == ""), name
    for name in LOCAL_TESTBED_NEEDS:
        assert found[name].available, found[name].reason


@pytest.mark.root
def test_probes_leave_no_interface_behind() -> None:
    def links() -> set[str]:
        return {entry.name for entry in Path("/sys/class/net").iterdir()}

    before = links()
    features()
    assert links() <= before


@pytest.mark.root
def test_without_capabilities_the_reason_is_root(repository: Path) -> None:
    program = (
        "from quicbed.testbed import features\nprint({name: feature.reason for name, feature in features().items()})"
    )
    done = subprocess.run(
        [*POWERLESS, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(repository / "workflow")},
    )
    assert "'root': 'needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN)'" in done.stdout
    assert "'netem': 'needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN)'" in done.stdout


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Error: Specified qdisc kind is unknown.", "kernel has no fq"),
        ("RTNETLINK answers: No such file or directory", "kernel has no fq"),
        ("Error: Unknown device type.", "kernel has no fq"),
        ("warning\nRTNETLINK answers: File exists", "RTNETLINK answers: File exists"),
        ("", "exit status 2"),
    ],
)
def test_a_missing_feature_is_told_from_another_failure(message: str, reason: str) -> None:
    assert _tool_result(Completed((), 2, "", message), "kernel has no fq") == Feature(False, reason)


def test_what_is_needed_and_missing_is_named() -> None:
    found = {"veth": Feature(True), "tbf": Feature(False, "kernel has no tbf")}
    require(found, ["veth"])
    with pytest.raises(TestbedError, match="tbf: kernel has no tbf"):
        require(found, ["veth", "tbf"])
