"""What tc(8), ip(8) and ethtool(8) print in versions other than ours: used, or one error that says what to do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from quicbed.testbed import LinkSettings, TestbedError, local, shaping
from quicbed.testbed.agent import AgentError, json_rows
from quicbed.testbed.base import Completed
from quicbed.testbed.local import LocalHost

LINK = LinkSettings(mode="wire", rate_mbit=100, rtt_ms=10)
WORDS = '[{"kind":"tbf","root":true,"options":{rate 1Gbit burst 500000b lat 50.0ms }}]'

NO_JSON = [
    WORDS,
    "Cannot open netlink\n[]",
    "qdisc tbf 1: root refcnt 2 rate 1Gbit",
    '{"kind": "tbf"}',
    '[[{"kind": "tbf"}]]',
    '[{"kind": 1}]',
    '[{"root": true}]',
    "[" * 100_000,
    "\ufeff[]",
]
READERS: list[Callable[[str], Any]] = [
    lambda shown: shaping.root_qdisc(shown, "birch"),
    lambda shown: shaping.dropped_at_server(shown, "birch"),
    lambda shown: shaping.verify_egress("birch", "eth0", LINK, shown, limited=True),
    lambda shown: shaping.verify_at_server("birch", "eth0", "fq", shown),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("shown", NO_JSON)
def test_what_is_no_json_of_tc_is_one_line_with_the_remedy(read: Callable[[str], Any], shown: str) -> None:
    with pytest.raises(TestbedError) as caught:
        read(shown)
    told = str(caught.value)
    assert "\n" not in told
    assert len(told) < 300
    assert told.startswith("birch: tc -j qdisc show: prints no JSON")
    assert "install a newer iproute2 (tc -V prints the version)" in told


@pytest.mark.parametrize(
    "options", [None, [], "rate", {}, {"rate": "1Gbit", "burst": "5b"}, {"burst": None}, {"delay": 5}, {"delay": [1]}]
)
def test_options_of_another_kind_are_not_what_was_set(options: Any) -> None:
    for kind in ("tbf", "netem"):
        shown = json.dumps([{"kind": kind, "root": True, "options": options}])
        with pytest.raises(TestbedError, match=r"birch: eth0 has .* was set"):
            shaping.verify_egress("birch", "eth0", LINK, shown, limited=True)


@pytest.mark.parametrize("drops", ["5", None, True, [5]])
def test_drops_that_are_no_number_are_not_counted(drops: Any) -> None:
    with pytest.raises(TestbedError, match=r"birch: .*reports no `drops` of fq; install a newer iproute2"):
        shaping.dropped_at_server(json.dumps([{"kind": "fq", "root": True, "drops": drops}]), "birch")


def test_empty_objects_are_left_out() -> None:
    assert json_rows("ip -j addr show dev eth0", '[{},{"ifname":"eth0"},{}]\n', "ifname") == [{"ifname": "eth0"}]
    assert json_rows("tc -j qdisc show", "", "kind") == []
    with pytest.raises(AgentError, match=r"install a newer ethtool \(ethtool --version prints the version\)"):
        json_rows("ethtool --json -k eth0", "Features for eth0:", "ifname")


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a program prints in a namespace, by its name."""
    by_program: dict[str, str] = {}

    def run(self: LocalHost, argv: list[str], **_: Any) -> Completed:
        return Completed(tuple(argv), 0, by_program[argv[0]], "")

    monkeypatch.setattr(LocalHost, "run", run)
    return by_program


@pytest.mark.parametrize("shown", ["", "[]", "[{}]", "2: eth0: <UP>", '[{"ifname": "link0"}]', '[{"flags": ["UP"]}]'])
def test_a_link_that_ip_tells_nothing_of_is_a_problem_or_an_error(printed: dict[str, str], shown: str) -> None:
    printed["ip"] = shown
    testbed = local.LocalTestbed("told")
    told = ""
    try:
        told = str(testbed.link_problem())
    except TestbedError as error:
        told = str(error)
    assert "client: link0 is down" in told or "install a newer iproute2" in told
    with pytest.raises(TestbedError, match="install a newer iproute2"):
        testbed._host_facts(testbed._local["client"])


def test_a_clock_that_is_set_during_a_run_is_told() -> None:
    testbed = local.LocalTestbed("told")
    assert testbed.disturbances({"machine.clock_s": 0.01}) == []
    assert testbed.disturbances({"machine.clock_s": -3600.0}) == ["the clock was set, by -3600.000 s"]


def test_features_that_ethtool_does_not_print_as_json(printed: dict[str, str]) -> None:
    host = local.LocalTestbed("told")._local["client"]
    printed["ethtool"] = '[{"ifname": "link0", "rx-gro": {"active": true}, "driver": "veth"}]'
    assert host.offloads("link0") == {"rx-gro": True}
    printed["ethtool"] = "Features for link0:\nrx-gro: on\n"
    with pytest.raises(TestbedError, match=r"client: ethtool --json -k link0: prints no JSON .* newer ethtool"):
        host.offloads("link0")


def test_what_tc_of_this_machine_prints_is_read() -> None:
    shown = subprocess.run(["tc", "-j", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, check=True)
    assert shaping.root_qdisc(shown.stdout, "here").get("kind") in ("noqueue", None)
