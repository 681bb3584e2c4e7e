"""The testbed over SSH between hosts with kernels of their own, which have netem."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from quicbed.testbed import LinkSettings
from quicbed.testbed.base import Role
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


def disciplines(shown: str) -> list[str]:
    """Queueing disciplines of an interface from the outermost inwards, in what `tc -j qdisc show` prints."""
    return [row["kind"] for row in json.loads(shown)]


def test_hosts_delay_what_they_send_and_are_put_back(hosts: UmlHosts) -> None:
    show = ["tc", "-j", "qdisc", "show", "dev", "link0"]
    with SshTestbed("pair", hosts.settings()) as testbed:
        before = [disciplines(testbed.hosts[role].run(show).stdout) for role in ROLES]
        link = LinkSettings(mode="wire", rtt_ms=200, rate_mbit=50)
        assert testbed.unsupported(link) is None
        testbed.apply(link)
        # setting it has verified by echoes that the round-trip time is right
        assert [disciplines(testbed.hosts[role].run(show).stdout) for role in ROLES] == [["netem"], ["netem", "tbf"]]
    assert [disciplines(hosts.run(role, " ".join(show))) for role in ROLES] == before


def test_a_link_is_limited_where_it_arrives_and_the_server_keeps_its_own_queue(hosts: UmlHosts) -> None:
    def shown(testbed: SshTestbed, role: Role, interface: str = "link0") -> list[str]:
        done = testbed.hosts[role].run(["tc", "-j", "qdisc", "show", "dev", interface], check=False)
        return disciplines(done.stdout) if done.returncode == 0 else []

    link = LinkSettings(mode="wire", rtt_ms=200, rate_mbit=50)
    arriving = link.model_copy(update={"bottleneck": "client", "qdisc": "fq"})
    with SshTestbed("pair", hosts.settings()) as testbed:
        assert testbed.unsupported(link.model_copy(update={"qdisc": "fq"})) is not None
        assert "ETF drops" in str(testbed.unsupported(arriving.model_copy(update={"qdisc": "etf"})))
        assert testbed.unsupported(arriving) is None
        testbed.apply(arriving)
        assert shown(testbed, "server") == ["fq"]
        assert shown(testbed, "client")[0] == "netem"
        assert shown(testbed, "client", "ifb-link0") == ["netem", "tbf"]
        testbed.set_rate(5)
        told = testbed.hosts["client"].run(["tc", "-j", "qdisc", "show", "dev", "ifb-link0"]).stdout
        assert [row["options"]["rate"] * 8 for row in json.loads(told) if row["kind"] == "tbf"] == [5 * 10**6]
        assert testbed.counters()["link.dropped"] == 0
        testbed.apply(link)
        assert shown(testbed, "server") == ["netem", "tbf"]
        assert shown(testbed, "client", "ifb-link0") == []
        testbed.apply(arriving)
    assert hosts.run("client", "tc -j qdisc show dev ifb-link0 || true").strip() in ("", "[]")
