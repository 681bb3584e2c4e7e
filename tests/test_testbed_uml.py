"""The testbed over SSH between hosts with kernels of their own, which have netem."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from quicbed.testbed import LinkSettings
from quicbed.testbed.remote import SshTestbed
from sshhosts import ROLES
from umlhosts import UmlHosts, problem

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UmlHosts]:
    reason = problem()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    hosts = UmlHosts(tmp_path_factory.mktemp("hosts"))
    try:
        hosts.open()
        with pytest.MonkeyPatch.context() as environment, hosts.inside():
            environment.setenv("XDG_STATE_HOME", str(hosts.directory / "state"))
            environment.delenv("SSH_AUTH_SOCK", raising=False)
            yield hosts
    finally:
        hosts.close()


def kinds(hosts: UmlHosts, role: str) -> list[str]:
    """Queueing disciplines of the measured interface of a host, from the outermost inwards."""
    return [row["kind"] for row in json.loads(hosts.run(role, "tc -j qdisc show dev link0"))]


def test_hosts_delay_what_they_send_and_are_put_back(hosts: UmlHosts) -> None:
    before = {role: kinds(hosts, role) for role in ROLES}
    with SshTestbed("pair", hosts.settings()) as testbed:
        link = LinkSettings(mode="wire", rtt_ms=40, rate_mbit=50)
        assert testbed.unsupported(link) is None
        testbed.apply(link)
        assert kinds(hosts, "client") == ["netem"]
        assert kinds(hosts, "server") == ["netem", "tbf"]
        # that it is not much longer was verified when it was set
        assert testbed.facts()["link"]["measured_rtt_ms"] > 39
        testbed.apply(link.model_copy(update={"rtt_ms": 10, "rate_mbit": None}))
        assert [kinds(hosts, role) for role in ROLES] == [["netem"], ["netem"]]
        testbed.apply(link)
    assert {role: kinds(hosts, role) for role in ROLES} == before
