"""The testbed over SSH, against real SSH servers in network namespaces."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import clone
import fakeproject
import killed
from clone import ROOT
from fakehardware import BEFORE, CPUS, INTERRUPTS, LARGEST
from faketestbed import FakeHost
from quicbed.builds import kit, making
from quicbed.config.model import LINK_SYSCTLS, ConfigError, Link, Load, Project, SshHost, parse_model
from quicbed.config.model import Testbed as Settings
from quicbed.contract.events import CONTRACT
from quicbed.measure import certificates, endpoint_pair, profile, session, workflow_estimate
from quicbed.measure.attempt import Attempt
from quicbed.measure.doctor import doctor
from quicbed.measure.generator import Iperf3
from quicbed.measure.runner import Runner
from quicbed.measure.sent_bytes import SentBytes
from quicbed.plan import march
from quicbed.plan.spec import RunSpec
from quicbed.store import stacks
from quicbed.testbed import HostLostError, LinkSettings, TestbedError, features, ssh
from quicbed.testbed.base import PACKAGES
from quicbed.testbed.loss import is_lost
from quicbed.testbed.remote import RemoteMachine, SshTestbed, state_directory
from quicbed.testbed.shaping import tcp_settings
from quicbed.testbed.ssh import Loop, connect
from quicbed.wire import proof
from sshhosts import MANAGEMENT, MEASURED, ROLES, SSHD, TAP, SshHosts

PATIENCE_S = 20.0
THROUGHPUT = LinkSettings(mode="throughput", congestion_control="reno")
WIRE = LinkSettings(mode="wire", mtu=1400, rate_mbit=100, congestion_control="reno")
# How often the test that kills at random does so; many times by hand: QUICBED_KILLS=200
KILLS = killed.KILLS or 4
# What a controller outlives, by a word of its command line.
VICTIMS = {"agent": "/agent/", "connection": "sshd: root", "endpoint": "sleep 8639"}

# Sends five datagrams from the client to the server.
SEND = (
    "import socket\n"
    "near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    f"for _ in range(5): near.sendto(bytes(100), ({MEASURED['server']!r}, 9))\n"
)

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if not SSHD:
        reason = "needs an SSH server; install one with: apt-get install openssh-server"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    hosts = SshHosts(tmp_path_factory.mktemp("hosts"))
    try:
        hosts.open()
        yield hosts
    finally:
        hosts.close()


class Shared:
    """A testbed that tests use one after the other which leave it as it is."""

    def __init__(self, network: SshHosts, state: Path) -> None:
        self.network = network
        self.state = state
        self.before: dict[str, str] = {}
        self.testbed: SshTestbed | None = None

    def open(self) -> SshTestbed:
        if self.testbed is None:
            self.before = self.network.state()
            with pytest.MonkeyPatch.context() as environment, self.network.inside():
                environment.setenv("XDG_STATE_HOME", str(self.state))
                environment.delenv("SSH_AUTH_SOCK", raising=False)
                self.testbed = SshTestbed("shared", self.network.settings()).__enter__()
        return self.testbed

    def close(self) -> None:
        if self.testbed is not None:
            self.testbed.__exit__(None, None, None)
            self.testbed = None
            assert self.network.settle(self.before, patience_s=5) == {}


@pytest.fixture(scope="module")
def shared(network: SshHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    one = Shared(network, tmp_path_factory.mktemp("state"))
    yield one
    one.close()


@pytest.fixture
def hosts(network: SshHosts, shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHosts]:
    """The hosts, in use by nobody, which have to be afterwards as they were before."""
    shared.close()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    before = network.state()
    with network.inside():
        yield network
    assert network.settle(before, patience_s=5) == {}


@pytest.fixture
def testbed(shared: Shared) -> SshTestbed:
    return shared.open()


def _noting(log: Path, *kinds: str) -> dict[str, Any]:
    """Commands of these kinds that write their kind to a file."""
    note = ["sh", "-c", 'echo "$2" >> "$1"', "sh", str(log)]
    return {kind: [[*note, kind]] for kind in kinds}


def _refused(settings: Settings, reason: str) -> None:
    """The testbed cannot be opened, for this reason in one line."""
    with pytest.raises(TestbedError, match=reason) as error:
        SshTestbed("pair", settings).__enter__()
    assert "\n" not in str(error.value)


# ---- configuration


def _parsed(**changes: Any) -> Settings:
    host = {"address": "a", "interface": {"name": "eth1"}, "ip": "10.0.0.1"}
    hosts = {"client": {**host, **changes}, "server": {**host, "ip": "10.0.0.2"}}
    return parse_model(Settings, {"kind": "ssh", "hosts": hosts}, "pair.yaml")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"interface": {}}, "needs one of `name`, `pci` and `mac`"),
        ({"interface": {"name": "a", "mac": "02:00:00:00:00:01"}}, "needs one of"),
        ({"cpus": "5-2"}, "is not a list of processors"),
        ({"irq_cpus": "0-99999999999"}, "is not a list of processors"),
        ({"adress": "b"}, "adress: unknown key; did you mean `address`"),
        ({"ip": "10.0.0.2"}, "client and server have the same ip"),
        ({"directory": "/"}, "directory"),
        ({"sysctl": {"net/x": "1"}}, "sysctl"),
        ({"sysctl": {"net.ipv4.conf.//.x": "1"}}, "sysctl"),
        (
            {"sysctl": {"net.ipv4.tcp_rmem": "4096 131072 33554432"}},
            "pair.yaml: hosts.client.sysctl: net.ipv4.tcp_rmem: every experiment sets this by its link and would",
        ),
        (
            {"sysctl": {"net.ipv4.tcp_congestion_control": "bbr"}},
            "net.ipv4.tcp_congestion_control: every experiment sets this by workload.congestion_control",
        ),
        ({"host_key": "SHA256:abc"}, "host_key"),
        ({"sysctl": {"net.core.rmem_max": [1]}}, "net.core.rmem_max"),
        ({"ingress": []}, "ingress"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        _parsed(**changes)


def test_kernel_settings_of_links_are_all_refused_on_hosts() -> None:
    assert sorted(LINK_SYSCTLS) == sorted(["net.ipv4.tcp_congestion_control", *tcp_settings(WIRE)])


def test_lists_of_processors_are_written_as_the_kernel_reads_them_back() -> None:
    client = _parsed(cpus="5,2-3,3-4", irq_cpus="0,1,7").hosts["client"]
    assert (client.cpus, client.irq_cpus) == ("2-5", "0-1,7")


def test_a_tap_is_a_third_host() -> None:
    host = {"address": "a", "interface": {"name": "eth1"}, "ip": "10.0.0.1"}
    hosts = {"client": host, "server": {**host, "address": "b", "ip": "10.0.0.2"}}
    tap = {"address": "b", "interfaces": [{"name": "eth2"}]}
    with pytest.raises(ConfigError, match="tap: is the server; leave it out"):
        parse_model(Settings, {"kind": "ssh", "hosts": hosts, "tap": tap}, "pair.yaml")
    with pytest.raises(ConfigError, match="tap: belongs to kind `ssh`"):
        parse_model(Settings, {"kind": "local", "tap": tap}, "local.yaml")


def test_hosts_belong_to_kind_ssh_alone() -> None:
    with pytest.raises(ConfigError, match="hosts: belongs to kind `ssh`"):
        parse_model(Settings, {"kind": "local", "hosts": {}}, "local.yaml")
    with pytest.raises(ConfigError, match="hosts: `client` is missing"):
        parse_model(Settings, {"kind": "ssh"}, "pair.yaml")


def test_the_documented_testbed_is_a_valid_one(repository: Path) -> None:
    page = (repository / "docs" / "dedicated-testbed.md").read_text(encoding="utf-8")
    smallest, block, capture = (part.split("```")[0] for part in page.split("```yaml\n")[1:])
    assert parse_model(Settings, yaml.safe_load(smallest), "docs/dedicated-testbed.md").tap is None
    found = parse_model(Settings, yaml.safe_load(block), "docs/dedicated-testbed.md")
    assert found.hosts["server"].cpus == "2-5"
    assert found.commands.release
    assert found.tap is not None
    own = yaml.safe_load(capture)
    assert parse_model(Settings, {"kind": "local", **own}, "docs/dedicated-testbed.md").capture_command is not None


# ---- connecting


def test_an_openssh_configuration_is_honoured(hosts: SshHosts) -> None:
    data = hosts.data()
    data["hosts"]["server"]["address"] = "the-server"
    hosts.known_hosts.write_text(hosts.known_hosts.read_text() + f"the-server {hosts.host_key('server')}\n")
    try:
        with SshTestbed("pair", parse_model(Settings, data, "t")) as testbed:
            assert testbed.server.run(["true"]).returncode == 0
    finally:
        hosts.write_known_hosts()


def test_a_host_is_reached_through_a_jump_host(hosts: SshHosts) -> None:
    data = hosts.data()
    data["hosts"]["server"]["jump"] = {"address": MANAGEMENT["client"]}
    with SshTestbed("pair", parse_model(Settings, data, "t")) as testbed:
        shown = testbed.server.run(["sh", "-c", "ss -Htn state established sport = :22"]).stdout
        assert MANAGEMENT["client"] in shown


def test_a_pinned_key_needs_no_known_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    data = hosts.data()
    data["ssh_config"] = []
    for role in ROLES:
        data["hosts"][role] |= {"user": "root", "key": str(hosts.key), "host_key": hosts.host_key(role)}
    with SshTestbed("pair", parse_model(Settings, data, "t")) as testbed:
        assert testbed.client.run(["true"]).returncode == 0
    data["hosts"]["server"]["host_key"] = hosts.host_key("client")
    reason = (
        rf"server \({MANAGEMENT['server']}\): the host key SHA256:\S+ of .* is not trusted \(SHA256:\S+ is pinned\)"
    )
    _refused(parse_model(Settings, data, "t"), reason)


@pytest.mark.parametrize("known", ["no", "another"])
def test_unknown_and_changed_host_keys_are_refused(hosts: SshHosts, known: str) -> None:
    lines = hosts.known_hosts.read_text().splitlines()[:1]
    if known == "another":
        lines.append(f"{MANAGEMENT['server']} {hosts.host_key('client')}")
    hosts.known_hosts.write_text("\n".join(lines) + "\n")
    try:
        _refused(hosts.settings(), rf"server .*: the host key SHA256:\S+ of {MANAGEMENT['server']} is not trusted\. If")
    finally:
        hosts.write_known_hosts()


def _connected(settings: Settings) -> None:
    """The hosts can be connected to."""
    testbed = SshTestbed("pair", settings)
    testbed.connect()
    try:
        assert testbed.server.run(["true"]).returncode == 0
    finally:
        testbed.disconnect()


def test_a_configuration_that_takes_every_host_key_is_refused(hosts: SshHosts, tmp_path: Path) -> None:
    config = tmp_path / "config"
    every = f"Host {MANAGEMENT['server']}\n  UserKnownHostsFile none\n  StrictHostKeyChecking no\n"
    config.write_text(every + hosts.config.read_text())
    data = hosts.data() | {"ssh_config": [str(config)]}
    _refused(
        parse_model(Settings, data, "t"), r"server .*: `UserKnownHostsFile none` of the .*pin the key with `host_key`$"
    )
    data["hosts"]["server"]["host_key"] = hosts.host_key("server")
    _connected(parse_model(Settings, data, "t"))
    # nor are jump hosts trusted that way
    jump = f"Host {MANAGEMENT['client']}\n  ProxyJump root@{MANAGEMENT['server']}:22\n"
    config.write_text(jump + config.read_text())
    _refused(parse_model(Settings, data, "t"), r"client .*: `UserKnownHostsFile none` .*with its `host_key` as `jump`$")


def test_the_systems_host_keys_are_trusted_too(
    hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "ssh_known_hosts"
    system.write_text(hosts.known_hosts.read_text())
    monkeypatch.setitem(ssh._KNOWN_HOSTS, "GlobalKnownHostsFile", (str(system), str(tmp_path / "none")))
    hosts.known_hosts.unlink()
    try:
        _connected(hosts.settings())
        system.unlink()
        _refused(hosts.settings(), r"client .*: the host key SHA256:\S+ of .* is not trusted\. If")
    finally:
        hosts.write_known_hosts()


def test_a_key_that_is_refused_and_one_that_cannot_be_used(hosts: SshHosts, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    _refused(hosts.settings(key=str(other)), r"client .*: 10\.114\.0\.1 accepts no key of .*; add the public key")
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    _refused(hosts.settings(key=str(locked)), r"locked cannot be used: .*passphrase has to be in the SSH agent")
    _refused(hosts.settings(key=str(tmp_path / "none")), r"none is missing; check `key`")


def test_an_address_without_a_server(hosts: SshHosts) -> None:
    data = hosts.data()
    data["hosts"]["server"]["port"] = 23
    _refused(parse_model(Settings, data, "t"), r"server .*: 10\.114\.0\.2:23 cannot be reached: .*check `address`")


def test_a_host_without_sudo(hosts: SshHosts) -> None:
    _refused(hosts.settings(sudo=True), r"client .*: the agent cannot start: .*sudo.*needs sudo without a password")


def test_a_directory_that_cannot_be_made(hosts: SshHosts) -> None:
    _refused(hosts.settings(directory="/proc/quicbed/here"), r"client .*: the agent cannot start: .*/proc/quicbed")


# ---- checks before anything is changed


def test_a_queueing_discipline_of_somebody_else_is_not_touched(hosts: SshHosts) -> None:
    server = hosts.namespaces["server"]
    argv = ["tc", "-n", server, "qdisc"]
    tbf = ["tbf", "rate", "1gbit", "burst", "100kb", "latency", "10ms"]
    subprocess.run([*argv, "add", "dev", "link0", "root", *tbf], check=True)
    try:
        with (
            SshTestbed("pair", hosts.settings()) as testbed,
            pytest.raises(TestbedError, match=r"server .*: qdisc link0: somebody has set tbf.*tc qdisc del"),
        ):
            testbed.apply(WIRE)
        assert "tbf" in subprocess.run([*argv, "show"], capture_output=True, text=True).stdout
    finally:
        subprocess.run([*argv, "del", "dev", "link0", "root"], check=True)


def test_what_somebody_else_does_to_frames_is_not_touched_and_can_be_removed_as_is_said(hosts: SshHosts) -> None:
    argv = ["tc", "-n", hosts.namespaces["client"], "qdisc"]
    kind = "clsact"
    try:
        with SshTestbed("pair", hosts.settings()) as testbed:
            for kind, what in (("clsact", "it"), ("ingress", "ingress")):
                subprocess.run([*argv, "add", "dev", "link0", kind], check=True)
                if kind == "clsact":
                    testbed.apply(WIRE)  # which needs nothing of it
                reason = rf"client .*: clsact link0: somebody has set {what}, .*remove it with: tc qdisc (del dev .*)$"
                with pytest.raises(TestbedError, match=reason) as error:
                    testbed.apply(LinkSettings(mode="wire", congestion_control="reno", loss_percent=1))
                assert kind in subprocess.run([*argv, "show"], capture_output=True, text=True).stdout
                subprocess.run([*argv, *str(error.value).rpartition("tc qdisc ")[2].split()], check=True)
    finally:
        subprocess.run([*argv, "del", "dev", "link0", kind], check=False, capture_output=True)


# ---- one testbed, used by several tests


def _changed(network: SshHosts, key: str, value: Any) -> SshHost:
    """The client's configuration with another value."""
    data = network.data()
    data["hosts"]["client"][key] = value
    return parse_model(Settings, data, "t").hosts["client"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("interface", {"name": "eth7"}, r"client .*: no interface eth7; it has .*link0"),
        ("interface", {"mac": "02:00:00:00:00:99"}, r"no interface 02:00:00:00:00:99"),
        ("interface", {"pci": "0000:ff:1f.7"}, r"no interface 0000:ff:1f\.7"),
        ("interface", {"name": "mgmt0"}, r"interface mgmt0 does not have the address 10\.115\.0\.1"),
        ("ip", "10.115.0.77", r"interface link0 does not have the address 10\.115\.0\.77"),
        ("cpus", "4000", r"cpus: the host has no processor 4000"),
        ("irq_cpus", "4000", r"irq_cpus: the host has no processor 4000"),
    ],
)
def test_what_a_host_does_not_have(
    testbed: SshTestbed, network: SshHosts, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, reason: str
) -> None:
    client = testbed.client
    monkeypatch.setattr(client, "settings", _changed(network, key, value))
    with pytest.raises(TestbedError, match=reason):
        client.check(MEASURED["server"])


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("irq_cpus", "0", r"irq_cpus: link0 does not list its interrupts"),
        ("sysctl", {"net.ipv4.no_such": "1"}, r"sysctl net\.ipv4\.no_such: cannot be read"),
        ("governor", "performance", r"governor cpu0: cannot be read"),
        ("rings", {"rx": 4096}, r"ethtool -g link0"),
    ],
)
def test_settings_that_a_host_does_not_have(
    testbed: SshTestbed, network: SshHosts, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, reason: str
) -> None:
    client = testbed.client
    monkeypatch.setattr(client, "settings", _changed(network, key, value))
    with pytest.raises(TestbedError, match=rf"client .*: {reason}"):
        testbed._change({"client": client.standing_changes()})


def test_what_is_set_on_a_host_is_recorded_as_it_reads_back(
    testbed: SshTestbed, network: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = testbed.client
    data = network.data(cpus="0", sysctl={"net.ipv4.tcp_fin_timeout": 7}, record=["net.core.somaxconn"])
    monkeypatch.setattr(client, "settings", parse_model(Settings, data, "t").hosts["client"])
    monkeypatch.setitem(client.hello, "cpus_online", "0-1,4")
    governors = dict(zip(("cpu0", "cpu1", "cpu4"), ("performance", "performance", "powersave"), strict=True))
    there = {"governor": governors, "ring": {"link0 rx": "512", "link0 tx": "256"}, "irq": {"40": "2", "41": "0-1"}}
    monkeypatch.setattr(client, "interrupts", lambda: ["40", "41", "42"])
    request = client.request

    def answered(op: str, **arguments: Any) -> Any:
        known = there.get(arguments["settings"][0][0]) if op == "read_settings" else None
        return [known.get(name) for _, name in arguments["settings"]] if known else request(op, **arguments)

    monkeypatch.setattr(client, "request", answered)
    found = client.facts()
    assert (found["cpu_set"], found["cpu_governor"]) == ("0", "performance (0-1), powersave (4)")
    assert found["interface"]["rings"] == {"rx": 512, "tx": 256}
    assert found["interface"]["irq_cpus"] == ["0-1", "2"]
    # as they are, not as they were asked for
    assert found["settings"]["net.ipv4.tcp_fin_timeout"] == client.read("/proc/sys/net/ipv4/tcp_fin_timeout").strip()
    assert found["settings"]["net.core.somaxconn"]
    governors["cpu4"] = "performance"
    assert client.facts()["cpu_governor"] == "performance"
    # processors need not be numbered without gaps
    monkeypatch.setattr(client, "settings", _changed(network, "governor", "performance"))
    assert [change["name"] for change in client.standing_changes()] == ["cpu0", "cpu1", "cpu4"]


def test_every_package_of_a_host_can_be_too_hot(
    testbed: SshTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed.apply(THROUGHPUT)
    for cpu, count in ((0, 3), (16, 4)):
        (tmp_path / f"cpu{cpu}").write_text(f"{count}\n")
    monkeypatch.setattr("quicbed.testbed.remote.THROTTLED", f"{tmp_path}/cpu{{}}")
    monkeypatch.setitem(testbed.client.hello, "packages", [0, 16])
    monkeypatch.setitem(testbed.server.hello, "packages", [1])
    found = testbed.counters()
    assert found["client.machine.throttled"] == 7
    assert "server.machine.throttled" not in found


def test_hosts_of_another_kind_and_disks_that_are_full(testbed: SshTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value, reason in (
        ("architecture", "riscv64", r"client .*: has processors of kind riscv64"),
        ("disk_free_bytes", 2**20, r"client .*: 1 MiB free in /.*; make room"),
        ("missing", ["tc"], r"client .*: missing: tc; install there with: apt-get install iproute2"),
        ("uid", 1000, r"client .*: the agent is not root; log in as root or set `sudo: true`"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(testbed.client.hello, key, value)
            with pytest.raises(TestbedError, match=reason):
                testbed.client.check(MEASURED["server"])


def test_processors_that_a_control_group_keeps_from_programs(
    testbed: SshTestbed, network: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = testbed.client
    one = min(os.sched_getaffinity(0))
    monkeypatch.setattr(client, "settings", _changed(network, "cpus", str(one)))
    client.check(MEASURED["server"])
    monkeypatch.setattr(client, "request", lambda op, **_arguments: [] if op == "held_to" else pytest.fail(op))
    reason = rf"client .*: cpus: programs cannot be held to processor {one}; a control group"
    with pytest.raises(TestbedError, match=reason):
        client.check(MEASURED["server"])


def test_an_interface_that_is_down(testbed: SshTestbed, network: SshHosts) -> None:
    argv = ["ip", "-n", network.namespaces["client"], "link", "set", "link0"]
    subprocess.run([*argv, "down"], check=True)
    try:
        with pytest.raises(TestbedError, match=r"client .*: interface link0 is down; .*ip link set link0 up"):
            testbed.client.check(MEASURED["server"])
    finally:
        subprocess.run([*argv, "up"], check=True)


def test_a_link_that_is_not_the_one_between_the_hosts(
    testbed: SshTestbed, network: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = network.data()
    data["hosts"]["client"] |= {"interface": {"name": "mgmt0"}, "ip": MANAGEMENT["client"]}
    monkeypatch.setattr(testbed.client, "settings", parse_model(Settings, data, "t").hosts["client"])
    monkeypatch.setattr(testbed.client, "interface", testbed.client.interface)
    with pytest.raises(TestbedError, match=r"client .*: the way to 10\.115\.0\.2 is through .*, not through mgmt0"):
        testbed.client.check(MEASURED["server"])


def test_what_a_kernel_cannot_do_to_a_link_is_unsupported(testbed: SshTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = {"delay": "kernel has no netem", "loss": "kernel has no tc with extended BPF: not permitted"}
    monkeypatch.setattr(testbed.server, "lacks", lacks.__getitem__)
    assert testbed.unsupported(WIRE) is None
    delayed = LinkSettings(mode="wire", rtt_ms=10)
    if testbed.client.lacks("delay") == "":
        assert testbed.unsupported(delayed) == "no round-trip time: server (10.114.0.2): kernel has no netem"
    # the client loses frames of both directions
    assert testbed.unsupported(LinkSettings(mode="wire", loss_percent=1)) is None
    monkeypatch.setattr(testbed.client, "lacks", lacks.__getitem__)
    assert testbed.unsupported(delayed) == "no round-trip time: client (10.114.0.1): kernel has no netem"
    with pytest.raises(TestbedError, match=r"testbed shared: no losses: client \(10\.114\.0\.1\): kernel has no tc"):
        testbed.apply(LinkSettings(mode="wire", loss_percent=1))


FRAMES, LOST_PERCENT, SEED = 1000, 5.0, 42
# Prints the port, then the numbers of the datagrams that arrive until there are no more.
RECEIVE = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
    near.setsockopt(socket.SOL_SOCKET, 33, 2**24)  # SO_RCVBUFFORCE
    near.bind((sys.argv[1], 0))
    print("port", near.getsockname()[1], flush=True)
    near.settimeout(20)
    try:
        while True:
            print(int.from_bytes(near.recv(100), "big"))
            near.settimeout(1)
    except TimeoutError:
        pass
"""
SEND_NUMBERS = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
    for number in range(int(sys.argv[3])):
        near.sendto(number.to_bytes(4, "big"), (sys.argv[1], int(sys.argv[2])))
"""


def _arrived(testbed: SshTestbed, receiving: str, directory: Path) -> set[int]:
    """Which of so many datagrams arrive at a host."""
    directory.mkdir()
    far, near = (testbed.client, testbed.server) if receiving == "client" else (testbed.server, testbed.client)
    place = far.workspace(directory)
    argv = [sys.executable, "-c", RECEIVE, str(far.address)]
    receiver = far.spawn(argv, stdout=place / "out", stderr=place / "err")
    assert far.await_text(place / "out", "port", receiver, PATIENCE_S)
    port = far.read(str(place / "out")).split()[1]
    near.run([sys.executable, "-c", SEND_NUMBERS, str(far.address), port, str(FRAMES)])
    assert receiver.wait(3 * PATIENCE_S).returncode == 0
    far.collect(directory)
    return set(map(int, (directory / "out").read_text().split()[2:]))


def test_the_frames_that_the_seed_says_are_lost_and_counted(testbed: SshTestbed, tmp_path: Path) -> None:
    testbed.apply(LinkSettings(mode="wire", congestion_control="reno", loss_percent=LOST_PERCENT))
    before = testbed.counters()
    for receiving, seed in (("client", SEED), ("server", ~SEED)):
        testbed.seed_losses(SEED)
        found = _arrived(testbed, receiving, tmp_path / receiving)
        assert found == {number for number in range(FRAMES) if not is_lost(seed, number, LOST_PERCENT)}
    after = testbed.counters()
    for receiving in ROLES:
        lost = after[f"link.lost_to_{receiving}"] - before[f"link.lost_to_{receiving}"]
        # what answers in the other direction may be lost too
        assert lost >= FRAMES - len((tmp_path / receiving / "out").read_text().split()[2:]) > 0
    testbed.apply(WIRE)
    assert len(_arrived(testbed, "client", tmp_path / "again")) == FRAMES
    assert testbed.counters()["link.lost_to_client"] == 0


def test_losses_of_one_direction_alone_are_noticed_and_made_whole(testbed: SshTestbed, network: SshHosts) -> None:
    lossy = LinkSettings(mode="wire", congestion_control="reno", loss_percent=LOST_PERCENT)
    testbed.apply(lossy)
    client, asked = testbed.client, [["clsact", "link0"]]
    for way in ("ingress", "egress"):
        assert client.request("read_settings", settings=asked) == ["loss"]
        argv = ["tc", "-n", network.namespaces["client"], "filter", "del", "dev", "link0", way]
        subprocess.run(argv, check=True)
        assert client.request("read_settings", settings=asked) == ["(incomplete)"]
        client.request("apply", changes=client.link_changes(lossy))
    assert client.request("read_settings", settings=asked) == ["loss"]
    testbed.apply(WIRE)


def test_an_mtu_that_the_way_does_not_carry(testbed: SshTestbed, network: SshHosts) -> None:
    testbed.apply(THROUGHPUT)
    # as a switch between the hosts would, it drops what is longer
    subprocess.run(["ip", "-n", network.namespaces["server"], "link", "set", "link0", "mtu", "1300"], check=True)
    client = testbed.client
    port = testbed.server.request("echo_open", address=MEASURED["server"])
    ends = {"source": MEASURED["client"], "address": MEASURED["server"], "port": port}
    assert len(client.request("echo", **ends, size=1200, count=2)) == 2
    with pytest.raises(TestbedError, match=r"datagrams of 1472 bytes to 10\.115\.0\.2: no answer"):
        client.request("echo", **ends, size=1472, count=1)
    subprocess.run(["ip", "-n", network.namespaces["server"], "link", "set", "link0", "mtu", "1500"], check=True)


def test_programs_have_exit_codes_times_and_limits(testbed: SshTestbed, tmp_path: Path) -> None:
    client = testbed.client
    done = client.run(["sh", "-c", "cat; exit 3"], input="text", check=False)
    assert (done.returncode, done.stdout) == (3, "text")
    with pytest.raises(TestbedError, match=r"client \(10\.114\.0\.1\): sh -c .*: exit status 3: no message"):
        client.run(["sh", "-c", "exit 3"])
    with pytest.raises(TestbedError, match=r"sleep 1000: still running after 0.2 s"):
        client.run(["sleep", "1000"], timeout=0.2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PACKAGES, "no-such-tool", "some-package")
        with pytest.raises(TestbedError, match=r"cannot run no-such-tool: .*; install there with: apt-get install so"):
            client.run(["no-such-tool"])
    assert abs(client.monotonic_ahead_ns()) < PATIENCE_S * 1e9  # it has this machine's clock
    target = tmp_path / "run"
    target.mkdir()
    place = client.workspace(target)
    process = client.spawn(
        ["sh", "-c", "echo ready; read -r line; exit 5"], stdout=place / "out", stderr=place / "err", env={"X": "1"}
    )
    assert client.await_text(place / "out", "ready", process, PATIENCE_S)
    assert process.wait(PATIENCE_S).returncode == 5
    sleeping = client.spawn(["sleep", "1000"], stdout=place / "a", stderr=place / "b")
    assert sleeping.poll() is None
    assert sleeping.sample_run_delay() is not None
    assert sleeping.sample_cpu() is not None
    assert sleeping.sample_memory() is not None
    with pytest.raises(TimeoutError):
        sleeping.wait(0.1)
    sleeping.terminate()
    assert sleeping.wait(PATIENCE_S).returncode == -signal.SIGTERM
    assert sleeping.sample_cpu() is None
    assert sleeping.sample_memory() is None
    client.collect(target)
    assert (target / "out").read_text() == "ready\n"
    assert client.run(["ls", str(place.parent)]).stdout == ""


def test_counters_are_those_of_both_hosts(testbed: SshTestbed) -> None:
    before = testbed.counters()
    testbed.client.run([sys.executable, "-c", SEND])
    after = testbed.counters()
    assert after["server.link0.rx_packets"] - before["server.link0.rx_packets"] >= 5
    for role in ROLES:
        assert after[f"{role}.machine.cpu.user_s"] >= before[f"{role}.machine.cpu.user_s"]
        assert f"{role}.ethtool.peer_ifindex" in after
    assert after["client.netstat.UdpOutDatagrams"] - before["client.netstat.UdpOutDatagrams"] >= 5


def test_what_is_deployed_is_copied_once_and_verified(testbed: SshTestbed, tmp_path: Path) -> None:
    build = tmp_path / "build"
    (build / "bin").mkdir(parents=True)
    (build / "bin" / "client").write_text("#!/bin/sh\ncat $(dirname $0)/../data\n")
    (build / "bin" / "client").chmod(0o755)
    (build / "data").write_bytes(os.urandom(3 * 2**20))
    (build / "link").symlink_to("data")
    (build / "empty").touch()
    place = testbed.client.provide(build)
    assert testbed.client.provide(build) == place
    assert place.is_relative_to(testbed.settings.hosts["client"].directory)
    assert (place / "data").read_bytes() == (build / "data").read_bytes()
    assert (place / "link").readlink() == Path("data")
    assert len(testbed.client.run([str(place / "bin" / "client")]).stdout) > 0
    (place / "data").write_bytes(b"tampered")
    testbed.client._provided.clear()
    assert testbed.client.provide(build) == place
    assert (place / "data").read_bytes() == (build / "data").read_bytes()


def test_a_build_for_a_newer_c_library_is_refused(
    testbed: SshTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "client").write_bytes(Path(sys.executable).resolve().read_bytes())
    monkeypatch.setitem(testbed.client.hello, "libc", "glibc 2.1")
    with pytest.raises(TestbedError, match=r"client .*: cannot run .*: client needs glibc 2\.\d+, the host has 2\.1;"):
        testbed.client.provide(tmp_path)


def test_a_build_for_another_processor_is_refused(testbed: SshTestbed, tmp_path: Path) -> None:
    known: dict[str, Any] = {"build": "b", "library": "quinn", "flavour": "stock", "version": "1"}
    known["march"] = march.identity("native")
    file = tmp_path / "build.json"
    file.write_text(json.dumps(known), encoding="utf-8")
    testbed.client.provide(tmp_path)
    known["march"]["processor"] |= {"model": "another"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "build.json").write_text(json.dumps(known), encoding="utf-8")
    with pytest.raises(TestbedError, match=r"client .*: cannot run other: it is made for .*; give `build\.march` of"):
        testbed.client.provide(other)


def test_a_capture_at_the_server(testbed: SshTestbed, tmp_path: Path) -> None:
    testbed.apply(WIRE)
    path = tmp_path / "capture.pcap"
    with testbed.capture(path, filter="udp port 9") as capture:
        testbed.client.run([sys.executable, "-c", SEND])
    assert (capture.packets_captured, capture.packets_dropped) == (5, 0)
    shown = subprocess.run(["tcpdump", "-n", "-r", str(path)], capture_output=True, text=True, check=True).stdout
    assert shown.count("length 100") == 5


def test_offloads_are_those_asked_for(testbed: SshTestbed) -> None:
    for offloads, software, hardware in (("gso-gro", True, False), ("off", False, False), ("default", True, True)):
        testbed.apply(LinkSettings(mode="throughput", congestion_control="reno", offloads=offloads))
        for role in ROLES:
            shown = testbed.facts()["hosts"][role]["interface"]["offloads"]
            assert shown["generic-segmentation-offload"] is shown["generic-receive-offload"] is software
            assert shown["tx-tcp-segmentation"] is shown["tx-udp-segmentation"] is hardware


def test_what_has_become_of_a_link_is_told(testbed: SshTestbed, network: SshHosts) -> None:
    testbed.apply(THROUGHPUT)
    assert testbed.link_problem() is None
    for role, broken, mended, reason in (
        (
            "client",
            "link set link0 down",
            "link set link0 up",
            r"client .*: interface link0 is down; connect the cable",
        ),
        (
            "server",
            "link set link0 mtu 1400",
            "link set link0 mtu 1500",
            r"server .*: the MTU of link0 is 1400, not 1500",
        ),
        ("server", "addr del 10.115.0.2/24 dev link0", "addr add 10.115.0.2/24 dev link0", "not have the address"),
        (
            "client",
            "route add 10.115.0.2 dev mgmt0",
            "route del 10.115.0.2 dev mgmt0",
            r"is through mgmt0, not through",
        ),
    ):
        argv = ["ip", "-n", network.namespaces[role]]
        subprocess.run([*argv, *broken.split()], check=True)
        try:
            found = testbed.link_problem()
        finally:
            subprocess.run([*argv, *mended.split()], check=True)
        assert re.search(reason, found or ""), found
    assert testbed.link_problem() is None


def test_what_disturbs_a_host_marks_the_run(testbed: SshTestbed, network: SshHosts) -> None:
    testbed.apply(THROUGHPUT)
    before = testbed.counters()
    argv = ["ip", "-n", network.namespaces["server"], "link", "set", "link0"]
    subprocess.run([*argv, "down"], check=True)
    subprocess.run([*argv, "up"], check=True)
    after = testbed.counters()
    delta = {key: after[key] - before[key] for key in after}
    assert "server (10.114.0.2): link0 lost its carrier" in testbed.disturbances(delta)
    delta = {"client.machine.throttled": 2, "server.machine.clock_s": -3.5, "client.machine.clock_s": 0.01}
    assert testbed.disturbances(delta) == [
        "client (10.114.0.1): the processor was too hot and ran slower",
        "server (10.114.0.2): the clock was set, by -3.500 s",
    ]


# ---- at work


def test_a_link_is_as_it_was_asked_for_and_gone_afterwards(hosts: SshHosts) -> None:
    before = hosts.state()
    with SshTestbed("pair", hosts.settings()) as testbed:
        testbed.apply(WIRE)
        facts = testbed.facts()
        for role in ROLES:
            interface = facts["hosts"][role]["interface"]
            assert interface["mtu"] == 1400
            assert interface["offloads"]["generic-segmentation-offload"] is False
            assert interface["offloads"]["tx-tcp-segmentation"] is False
            assert facts["hosts"][role]["settings"]["net.ipv4.tcp_congestion_control"] == "reno"
        assert facts["hosts"]["server"]["interface"]["qdisc"]["kind"] == "tbf"
        assert facts["link"]["rate_mbit"] == 100
        assert 0 < facts["link"]["measured_rtt_ms"] < 1000
        records = list(state_directory().glob("*.json"))
        assert [sorted(json.loads(record.read_text())["hosts"]) for record in records] == [sorted(MANAGEMENT.values())]
        testbed.apply(THROUGHPUT)
        facts = testbed.facts()
        assert facts["hosts"]["client"]["interface"]["offloads"]["generic-segmentation-offload"] is True
        assert facts["hosts"]["server"]["interface"]["qdisc"].get("kind") != "tbf"
        assert facts["hosts"]["server"]["interface"]["mtu"] == 1500
    assert hosts.settle(before) == {}
    assert not list(state_directory().glob("*.json"))


def test_a_rate_changes_while_a_link_is_used(hosts: SshHosts) -> None:
    before = hosts.state()
    with SshTestbed("pair", hosts.settings()) as testbed:
        testbed.apply(WIRE)
        for rate in (5, 100):
            testbed.set_rate(rate)
            qdisc = testbed.facts()["hosts"]["server"]["interface"]["qdisc"]
            assert (qdisc["kind"], qdisc["options"]["rate"] * 8) == ("tbf", rate * 10**6)
        testbed.apply(THROUGHPUT)
        with pytest.raises(TestbedError, match="the link has no rate that could be changed"):
            testbed.set_rate(5)
    assert hosts.settle(before) == {}


def test_what_the_configuration_names_is_set_and_restored(hosts: SshHosts) -> None:
    before = hosts.state()
    settings = hosts.settings(
        sysctl={"net.ipv4.tcp_slow_start_after_idle": "0"},
        names={"measured-server": "10.115.0.2"},
        record=["net.ipv4.tcp_fin_timeout"],
    )
    with SshTestbed("pair", settings) as testbed:
        assert testbed.client.read("/proc/sys/net/ipv4/tcp_slow_start_after_idle") == "0\n"
        found = testbed.client.run(["getent", "hosts", "measured-server"]).stdout.split()
        assert found == ["10.115.0.2", "measured-server"]
        assert testbed.facts()["hosts"]["server"]["settings"]["net.ipv4.tcp_fin_timeout"] is not None
    assert hosts.settle(before) == {}


def test_programs_are_held_to_processors_that_are_isolated(hosts: SshHosts, tmp_path: Path) -> None:
    own = os.sched_getaffinity(0)
    if len(own) < 2:
        pytest.skip("needs two processors")
    isolated = max(own)
    hosts.stop("server")
    try:
        # as with isolcpus= or CPUAffinity=, what the SSH server starts does not run there by itself
        os.sched_setaffinity(0, own - {isolated})
        hosts.start("server")
    finally:
        os.sched_setaffinity(0, own)
    data = hosts.data()
    data["hosts"]["server"]["cpus"] = str(isolated)
    data["commands"] = _noting(tmp_path / "log", "release")
    try:
        with SshTestbed("pair", parse_model(Settings, data, "t")) as testbed:
            place = testbed.server.workspace(tmp_path)
            argv = ["grep", "Cpus_allowed_list", "/proc/self/status"]
            assert str(isolated) not in testbed.server.run(argv).stdout.split()
            process = testbed.server.spawn(argv, stdout=place / "out", stderr=place / "err")
            assert process.wait(PATIENCE_S).returncode == 0
            assert testbed.server.read(str(place / "out")).split() == ["Cpus_allowed_list:", str(isolated)]
            testbed.server.forget(tmp_path)
            assert testbed.facts()["hosts"]["server"]["cpu_set"] == str(isolated)
            assert not (tmp_path / "log").exists()
        # what was taken is released, where nothing has to be reserved too
        assert (tmp_path / "log").read_text().split() == ["release"]
    finally:
        hosts.stop("server")
        hosts.start("server")


def test_commands_reserve_boot_and_release(hosts: SshHosts, tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = hosts.data()
    data["commands"] = _noting(log, "reserve", "boot", "release")
    with SshTestbed("pair", parse_model(Settings, data, "t")):
        assert log.read_text().split() == ["reserve", "boot"]
    assert log.read_text().split() == ["reserve", "boot", "release"]
    # words may be secrets
    failing = ["sh", "-c", "echo taken by somebody >&2; exit 4", "sh", "secret-word"]
    data["commands"]["reserve"].append(failing)
    reason = r"^testbed pair: commands\.reserve\[1\] \(sh\): taken by somebody \(exit status 4\)$"
    _refused(parse_model(Settings, data, "t"), reason)
    # what was reserved before is released
    assert log.read_text().split()[3:] == ["reserve", "release"]
    data["commands"] = {"reserve": [["sh", "-c", "exec sleep 1000", "sh", "secret-word"]], "timeout_s": 0.2}
    reason = r"^testbed pair: commands\.reserve\[0\] \(sh\): still running after 0\.2 s; raise commands\.timeout_s"
    _refused(parse_model(Settings, data, "t"), reason)
    data["commands"] = {"reserve": [["no-such-command", "secret-word"]]}
    reason = r"^testbed pair: commands\.reserve\[0\] \(no-such-command\): No such file or directory$"
    _refused(parse_model(Settings, data, "t"), reason)


def test_what_was_neither_reserved_nor_taken_is_not_released(hosts: SshHosts, tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = hosts.data()
    data["commands"] = _noting(log, "release")
    data["hosts"]["server"]["interface"] = {"name": "eth7"}
    _refused(parse_model(Settings, data, "t"), "no interface eth7")
    assert not log.exists()


def test_hosts_that_boot_are_awaited(hosts: SshHosts) -> None:
    hosts.stop("server")
    later = threading.Timer(1.0, hosts.start, ["server"])
    later.start()
    data = hosts.data()
    data["commands"] = {"boot": [["true"]]}
    with SshTestbed("pair", parse_model(Settings, data, "t")) as testbed:
        assert testbed.server.run(["true"]).returncode == 0
    later.join()


def test_hosts_that_nobody_boots_are_not_awaited(hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.stop("server")
    data = hosts.data()
    data["commands"] = {"boot": [["false"]]}
    monkeypatch.setattr("quicbed.testbed.remote.time", SimpleNamespace(monotonic=time.monotonic, time=time.time))
    try:
        with pytest.raises(TestbedError, match=r"server .*: 10\.114\.0\.2 cannot be reached"):
            SshTestbed("pair", parse_model(Settings, data, "t")).inspect()
    finally:
        hosts.start("server")


def test_a_second_controller_is_told_who_has_the_hosts(
    hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SshTestbed("pair", hosts.settings()):
        _refused(hosts.settings(), rf"testbed pair is in use by process {os.getpid()}")
        # one of another machine does not see that lock
        monkeypatch.setattr("quicbed.testbed.remote.host_id", lambda: "another")
        reason = rf"client .*: is in use by .*, process {os.getpid()}; wait for it to end or stop it"
        with pytest.raises(TestbedError, match=f"{reason}$"):
            SshTestbed("other", hosts.settings()).__enter__()
        # nor does it boot or release them
        log = tmp_path / "log"
        for kinds, done, kept in (
            (("boot", "release"), [], ""),
            (("reserve", "release"), ["reserve"], "; what `commands.reserve` has reserved is not released"),
        ):
            log.write_text("")
            settings = parse_model(Settings, {**hosts.data(), "commands": _noting(log, *kinds)}, "t")
            with pytest.raises(TestbedError, match=f"{reason}{kept}$"):
                SshTestbed("other", settings).__enter__()
            assert log.read_text().split() == done


SECRET = "word-that-nobody-is-told"


def _files_with(text: str, directory: Path) -> list[str]:
    """Files below a directory that hold a text."""
    argv = ["grep", "-rlFe", text, str(directory)]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()


def test_no_key_and_no_data_stand_on_a_command_line(hosts: SshHosts) -> None:
    settings = hosts.settings(names={"secret-name": "10.115.0.2"})
    with SshTestbed("pair", settings) as testbed:
        testbed.client.run(["true"])
        shown = " ".join(hosts.programs("client"))
    assert "agent" in shown
    assert "secret-name" not in shown


# ---- a third host as the tap


@pytest.fixture
def tap(network: SshHosts, shared: Shared) -> dict[str, Any]:
    """Its configuration; from now on it is there."""
    shared.close()
    network.open_tap()
    return network.tap()


def test_a_third_host_captures_what_passes(
    tap: dict[str, Any], hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quicbed.testbed.capture.IN_FLIGHT_S", 0.2)
    with SshTestbed("pair", parse_model(Settings, {**hosts.data(), "tap": tap}, "t")) as testbed:
        testbed.apply(WIRE)
        facts = testbed.facts()
        assert facts["hosts"]["tap"]["interfaces"]["tap0"]["mtu"] == 1400
        assert facts["link"]["checksums_valid_in_captures"] is True
        path = tmp_path / "capture.pcap"
        with testbed.capture(path) as capture:
            testbed.client.run([sys.executable, "-c", SEND])
        assert capture.where == "tap"
        assert (capture.packets_dropped, capture.packets_missing) == (0, 0)
        shown = subprocess.run(["tcpdump", "-n", "-r", str(path)], capture_output=True, text=True, check=True).stdout
        assert shown.count("UDP, length 100") >= 5
        # what the tap does not see is known from what the ends count
        hosts.unmirror("ingress")
        with testbed.capture(path) as capture:
            testbed.client.run([sys.executable, "-c", SEND])
        assert (capture.packets_dropped, capture.packets_lost) == (0, capture.packets_missing)
        assert (capture.packets_missing or 0) >= 5
        hosts.mirror("ingress")
        # it is looked at between blocks, and is there again after it was lost
        argv = ["ip", "-n", hosts.namespaces["tap"], "link", "set", "tap0"]
        subprocess.run([*argv, "down"], check=True)
        assert re.match(rf"tap \({TAP}\): interface tap0 is down; .*ip link set tap0 up", testbed.link_problem() or "")
        subprocess.run([*argv, "up"], check=True)
        assert hosts.kill("tap", "/agent/")
        with pytest.raises(HostLostError):
            testbed.tap.run(["true"])
        testbed.apply(WIRE)
        assert testbed.link_problem() is None
        assert testbed.facts()["hosts"]["tap"]["interfaces"]["tap0"]["mtu"] == 1400


def test_a_tap_that_cannot_be_used_is_refused(tap: dict[str, Any], hosts: SshHosts) -> None:
    described = SshTestbed("pair", parse_model(Settings, {**hosts.data(), "tap": tap}, "t")).inspect()[f"tap ({TAP})"]
    assert described["ready"].available
    assert described["tap tap0"].reason.startswith("tap0, ")
    elsewhere = {**tap, "interfaces": [{"name": "tap7"}]}
    reason = rf"tap \({TAP}\): no interface tap7; it has .*tap0"
    _refused(parse_model(Settings, {**hosts.data(), "tap": elsewhere}, "t"), reason)
    own = {"command": ["no-such-capture", "{file}"], "begins": "ready"}
    settings = parse_model(Settings, {**hosts.data(), "tap": tap, "capture_command": own}, "t")
    _refused(settings, rf"tap \({TAP}\): missing: no-such-capture; install it there, or name its path")


# ---- hardware


@pytest.fixture
def equipped(network: SshHosts, shared: Shared) -> Iterator[None]:
    """Client and server have rings, governors and interrupts."""
    shared.close()
    network.equip()
    yield
    network.strip()


HARDWARE = {"rings": {"rx": LARGEST, "tx": 1024}, "governor": "performance", "irq_cpus": "2,0"}
CHANGED = {
    "ring rx": str(LARGEST),
    "ring tx": "1024",
    **{f"governor {cpu}": "performance" for cpu in CPUS},
    **{f"irq {number}": "0,2" for number in INTERRUPTS},
}


def _hardware(hosts: SshHosts) -> list[dict[str, str]]:
    """What both hosts' hardware is set to."""
    return [hosts.hardware[role].state() for role in ROLES]


def test_rings_governors_and_interrupts_are_set_and_put_back_also_by_the_next_agent(
    equipped: None, hosts: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RemoteMachine.request
    killed: list[str] = []

    def killing(self: RemoteMachine, op: str, **arguments: Any) -> Any:
        if op == "clean_up" and self.name not in killed:
            assert _hardware(hosts)[ROLES.index(self.name)] == CHANGED
            assert hosts.kill(self.name, "/agent/")
            killed.append(self.name)
        return request(self, op, **arguments)

    assert _hardware(hosts) == [BEFORE, BEFORE]
    with SshTestbed("pair", hosts.settings(**HARDWARE)) as testbed:
        assert _hardware(hosts) == [CHANGED, CHANGED]
        assert testbed.client.run(["ethtool", "-g", "link0"]).stdout.count(str(LARGEST)) == 3
        assert hosts.kill("client", "/agent/")
        with pytest.raises(HostLostError):
            testbed.client.run(["true"])
        testbed.recover()
        assert _hardware(hosts) == [CHANGED, CHANGED]
        monkeypatch.setattr(RemoteMachine, "request", killing)
    assert killed == list(ROLES)
    assert _hardware(hosts) == [BEFORE, BEFORE]


def test_a_size_of_a_ring_that_a_host_does_not_take_is_an_error_and_the_old_one_returns(
    equipped: None, hosts: SshHosts
) -> None:
    data = hosts.data()
    for size, reason in (
        (1000, r"ring link0 rx is '1024' after it was set to '1000'"),
        (8192, r"ring link0 rx: cannot be 8192, its largest size is 4096"),
        (16, r"ethtool -G link0 rx 16: netlink error: Invalid argument"),
    ):
        data["hosts"]["client"]["rings"] = {"tx": 1024, "rx": size}
        _refused(parse_model(Settings, data, "t"), rf"client \(10\.114\.0\.1\): {reason}$")
        assert _hardware(hosts) == [BEFORE, BEFORE]


# ---- queueing of arriving frames


def test_arriving_frames_go_through_a_queue_that_is_gone_afterwards(hosts: SshHosts) -> None:
    if not (ifb := features()["ifb"]).available:
        pytest.skip(ifb.reason)
    data = hosts.data()
    data["hosts"]["client"]["ingress"] = ["tbf", "rate", "50mbit", "burst", "20kb", "latency", "50ms"]
    lossy = LinkSettings(mode="wire", loss_percent=30, congestion_control="reno")
    tc = ["tc", "-n", hosts.namespaces["client"], "-s", "-j", "qdisc", "show", "dev", "ifb-link0"]
    with SshTestbed("pair", parse_model(Settings, data, "t")) as testbed:
        testbed.apply(WIRE)
        for lost in (False, True):
            if lost:  # the next agent removes what this one has made, and makes it again
                assert hosts.kill("client", "/agent/")
                with pytest.raises(HostLostError):
                    testbed.client.run(["true"])
                testbed.apply(WIRE)
            (queue,) = json.loads(subprocess.run(tc, capture_output=True, check=True).stdout)
            assert queue["kind"] == "tbf"
            # the echoes that prove a link come through it
            assert queue["packets"] >= 3
        # what is lost on purpose is lost before it
        testbed.apply(lossy)
        testbed.client.request("lose", interface="link0", percent=50, seed=1)
        before = testbed.counters()
        testbed.server.run([sys.executable, "-c", SEND.replace(MEASURED["server"], MEASURED["client"])])
        after = testbed.counters()
        lost = after["link.lost_to_client"] - before["link.lost_to_client"]
        assert 0 < lost < 5
        (after_loss,) = json.loads(subprocess.run(tc, capture_output=True, check=True).stdout)
        assert after_loss["packets"] > queue["packets"]
    assert subprocess.run(tc, capture_output=True, text=True).returncode != 0


def test_a_kernel_that_cannot_queue_arriving_frames_says_so(
    testbed: SshTestbed, network: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = testbed.client
    monkeypatch.setattr(client, "settings", _changed(network, "ingress", ["fq"]))
    lacking = {"delay": "", "loss": "", "ifb": "kernel has no ifb: Error: Unknown device type."}
    monkeypatch.setattr(client, "lacks", lacking.__getitem__)
    with pytest.raises(TestbedError, match=r"client .*: ingress: unsupported: kernel has no ifb: .*; load the module"):
        client.standing_changes()
    assert client.inspect(MEASURED["server"])["ifb"].reason.startswith("unsupported: kernel has no ifb")


# ---- what is lost


def test_a_lost_connection_fails_what_runs_and_is_made_again(hosts: SshHosts, tmp_path: Path) -> None:
    with SshTestbed("pair", hosts.settings()) as testbed:
        testbed.apply(WIRE)
        place = testbed.server.workspace(tmp_path)
        process = testbed.server.spawn(["sleep", "86399"], stdout=place / "out", stderr=place / "err")
        assert hosts.kill("server", "sshd: root")
        with pytest.raises(HostLostError, match=r"server \(10\.114\.0\.2\): the connection was lost"):
            process.wait(PATIENCE_S)
        testbed.apply(WIRE)
        assert hosts.pids("server", "sleep 86399") == []
        assert testbed.facts()["hosts"]["server"]["interface"]["mtu"] == 1400
        with pytest.raises(HostLostError, match="ended with the connection that was lost"):
            process.poll()


def test_a_killed_agent_is_replaced_and_cleaned_up_after(hosts: SshHosts, tmp_path: Path) -> None:
    with SshTestbed("pair", hosts.settings()) as testbed:
        testbed.apply(WIRE)
        place = testbed.client.workspace(tmp_path)
        testbed.client.spawn(["setsid", "sleep", "86399"], stdout=place / "out", stderr=place / "err")
        assert hosts.kill("client", "/agent/")
        with pytest.raises(HostLostError):
            testbed.client.run(["true"])
        testbed.recover()
        assert hosts.pids("client", "sleep 86399") == []
        # the other host was not lost: its settings stay
        assert "mtu 1400" in _shown_link(hosts, "server")
        assert "mtu 1500" in _shown_link(hosts, "client")
        testbed.apply(WIRE)
        assert "mtu 1400" in _shown_link(hosts, "client")


def test_a_host_that_is_booted_again_is_awaited_with_its_link(hosts: SshHosts) -> None:
    link = ["ip", "-n", hosts.namespaces["server"], "link", "set", "link0"]
    with SshTestbed("pair", hosts.settings()) as testbed:
        hosts.stop("server")
        assert hosts.kill("server", "/agent/")
        with pytest.raises(HostLostError):
            testbed.server.run(["true"])
        subprocess.run([*link, "down"], check=True)
        later = [threading.Timer(0.3, hosts.start, ["server"]), threading.Timer(1, subprocess.run, [[*link, "up"]])]
        for step in later:
            step.start()
        try:
            testbed.recover()
        finally:
            for step in later:
                step.join()
        assert testbed.link_problem() is None


def test_a_host_that_is_lost_while_another_is_regained_is_regained_too(hosts: SshHosts) -> None:
    with SshTestbed("pair", hosts.settings()) as testbed:
        testbed.apply(WIRE)
        assert hosts.kill("client", "/agent/")
        with pytest.raises(HostLostError):
            testbed.client.run(["true"])
        assert hosts.kill("server", "/agent/")  # of which nothing is known yet
        testbed.recover()
        testbed.apply(WIRE)
        for role in ROLES:
            assert testbed.hosts[role].run(["true"]).returncode == 0
            assert "mtu 1400" in _shown_link(hosts, role)


def test_competing_traffic_of_iperf3_outlives_a_lost_connection(hosts: SshHosts) -> None:
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed")
    load = parse_model(Load, {"pps": 500, "frames": [{"bytes": 500}]}, "load")
    link = parse_model(Link, {"mode": "throughput"}, "link")
    with SshTestbed("pair", hosts.settings()) as testbed:
        testbed.apply(THROUGHPUT)
        source = Iperf3(testbed)
        assert source.problem(load, link) is None
        source.start(load, link)
        assert hosts.pids("client", "iperf3 --server")
        assert hosts.pids("server", "iperf3 --client")
        assert hosts.kill("server", "/agent/")
        with pytest.raises(HostLostError):
            source.sample()
        testbed.apply(THROUGHPUT)
        source.start(load, link)
        sample = source.sample()
        assert sample.received is not None
        assert min(sample.sent.packets, sample.received.packets) > 0
        assert set(source.cpu_s()) == set(ROLES)
        source.stop()
        assert [hosts.pids(role, "iperf3") for role in ROLES] == [[], []]


def _shown_link(hosts: SshHosts, role: str) -> str:
    argv = ["ip", "-n", hosts.namespaces[role], "link", "show", "dev", "link0"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@functools.cache
def _queues_arriving() -> bool:
    return features()["ifb"].available


class Controller:
    """A controller in a process of its own, see sshcontroller.py."""

    def __init__(self, hosts: SshHosts, directory: Path, number: int = 0, tap: dict[str, Any] | None = None) -> None:
        self.out = directory / f"out{number}"
        self.out.mkdir()
        config = directory / "pair.json"
        changes = {"names": {"measured-server": "10.115.0.2"}, "sysctl": {"net.ipv4.tcp_slow_start_after_idle": "0"}}
        data = hosts.data(**changes, **(HARDWARE if hosts.hardware else {}))
        if tap is not None:
            data["tap"] = tap
        if _queues_arriving():
            data["hosts"]["client"]["ingress"] = ["pfifo", "limit", "1000"]
        self.settings = parse_model(Settings, data, "pair")
        config.write_text(json.dumps(data))
        repository = ROOT
        self.said: list[str] = []
        self.popen = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "support" / "sshcontroller.py"), "pair", str(config), str(self.out)],
            stdout=subprocess.PIPE,
            stderr=(directory / f"err{number}").open("wb"),
            text=True,
            env={**os.environ, "PYTHONPATH": str(repository / "workflow")},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.said.append(line.strip())

    def runs(self) -> list[str]:
        return [line for line in list(self.said) if line.startswith("run ")]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 3 * PATIENCE_S
        while not condition():
            assert self.popen.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.005)

    def end(self, number: signal.Signals, kill_after_s: float | None = None) -> None:
        """Send a signal and, unless it has ended so long after it, SIGKILL."""
        self.popen.send_signal(number)
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            self.popen.kill()
        self.popen.wait(3 * PATIENCE_S)
        self._reader.join()


def test_a_later_start_restores_what_a_killed_controller_left(equipped: None, hosts: SshHosts, tmp_path: Path) -> None:
    before = hosts.state()
    controller = Controller(hosts, tmp_path)
    controller.wait_for(lambda: len(controller.runs()) >= 2)
    # the agents first, or they would put everything back when their controller is gone
    controller.popen.send_signal(signal.SIGSTOP)
    for role in ROLES:
        assert hosts.kill(role, "/agent/")
    controller.end(signal.SIGKILL)
    assert hosts.state() != before
    assert _hardware(hosts) == [CHANGED, CHANGED]
    assert len(list(state_directory().glob("*.json"))) == 1
    with SshTestbed("pair", hosts.settings()):
        pass
    assert hosts.settle(before) == {}
    assert not list(state_directory().glob("*.json"))


def test_the_controllers_record_does_where_the_hosts_is_lost(equipped: None, hosts: SshHosts, tmp_path: Path) -> None:
    before = hosts.state()
    controller = Controller(hosts, tmp_path)
    controller.wait_for(lambda: len(controller.runs()) >= 2)
    controller.popen.send_signal(signal.SIGSTOP)
    for role in ROLES:
        assert hosts.kill(role, "/agent/")
        (Path(hosts.settings().hosts[role].directory) / "journal.json").unlink()
    controller.end(signal.SIGKILL)
    assert hosts.state() != before
    other = hosts.data()
    other["hosts"]["client"]["address"] = "the-server"
    _refused(
        parse_model(Settings, other, "t"),
        r"testbed pair: 10\.114\.0\.1 was left changed and is no longer among its hosts",
    )
    with SshTestbed("pair", hosts.settings()):
        pass
    assert hosts.settle(before) == {}


def test_hosts_restore_themselves_when_their_controller_is_gone(hosts: SshHosts, tmp_path: Path) -> None:
    before = hosts.state()
    controller = Controller(hosts, tmp_path)
    controller.wait_for(lambda: len(controller.runs()) >= 1)
    controller.end(signal.SIGKILL)
    assert hosts.settle(before) == {}


@pytest.mark.timeout(300 + 10 * KILLS)
def test_whatever_is_killed_nothing_stays_changed_and_no_run_is_lost(
    tap: dict[str, Any], equipped: None, hosts: SshHosts, tmp_path: Path
) -> None:
    before = hosts.state()
    random_ = random.Random(KILLS)
    killed = 0
    for number in itertools.count():
        controller = Controller(hosts, tmp_path, number, tap)
        early = number % 3 == 0
        # somebody has to put back what an agent cannot that was killed while nobody was there to replace it
        again = number % 2 == 1
        story = []
        if early:
            # while the hosts are set up, or one that was lost is
            controller.wait_for(lambda c=controller: "begin" in c.said)
            time.sleep(random_.uniform(0, 1.5))
            if random_.random() < 0.5:
                role = random_.choice((*ROLES, "tap"))
                again = hosts.kill(role, VICTIMS["agent"])
                story += [f"agent of {role}"] * again
                time.sleep(random_.uniform(0, 1))
        else:
            controller.wait_for(lambda c=controller: "ready" in c.said)
            for victim in random_.sample(sorted(VICTIMS), len(VICTIMS)):
                time.sleep(random_.uniform(0, 0.4))
                role = random_.choice(ROLES if victim == "endpoint" else (*ROLES, "tap"))
                controller.wait_for(lambda r=role, v=victim: hosts.kill(r, VICTIMS[v]))
                story.append(f"{victim} of {role}")
                # it goes on by itself
                done = len(controller.runs())
                controller.wait_for(lambda c=controller, n=done: len(c.runs()) > n + 1)
            time.sleep(random_.uniform(0, 0.4))
        how = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[(number + number // 3) % 3]
        # while it puts everything back
        kill_after_s = random_.choice([None, random_.uniform(0, 0.3)]) if how != signal.SIGKILL else None
        controller.end(how, kill_after_s)
        story.append(f"controller by {how.name}" + (f" and SIGKILL {kill_after_s:.3f} s later" if kill_after_s else ""))
        if again:
            with SshTestbed("pair", controller.settings):
                pass
        assert hosts.settle(before) == {}, f"{number}: {story}: {controller.said}"
        assert early or controller.runs()
        for name in controller.runs():
            files = {file.name: file.read_text() for file in (controller.out / name).iterdir()}
            assert files["client.out"] == "begin\nend\n"
            assert files["server.out"] == "begin\n"
        killed += len(story)
        if killed >= KILLS:
            return


# ---- the whole


EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk, congestion_control: any}
link: {mode: throughput}
libraries: [quinn]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
  - {label: NOOP, cipher: aes-128-gcm, aead: noop, header_protection: false}
baseline: AES-128-GCM
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 5}
"""


class _Proven:
    def model_dump(self, mode: str) -> dict[str, str]:
        return {"mode": mode}


def test_an_experiment_is_measured_over_ssh(
    hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: _Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    project = fakeproject.make(tmp_path / "project", EXPERIMENT, monkeypatch)
    data = hosts.data() | {"commands": {kind: [["true", SECRET]] for kind in ("reserve", "release")}}
    (project.root / "config" / "testbeds" / "pair.yaml").write_text(json.dumps(data), encoding="utf-8")
    certificates = project.build / "certificates"
    shutil.copytree(certificates / "local", certificates / "pair")
    project = Project(project.root, {"testbed": "pair", "gate": {"retries": 3}})
    monkeypatch.setattr(endpoint_pair, "READY_TIMEOUT", 10.0)
    # the fake endpoints send nothing, which is noticed
    monkeypatch.setattr(SentBytes, "contradiction", lambda *_: None)
    executed = 0
    execute = Runner.run

    def killing(self: Runner, spec: RunSpec, directory: Path) -> Attempt:
        nonlocal executed
        executed += 1
        if executed == 6:
            assert hosts.kill("server", "/agent/")
        return execute(self, spec, directory)

    monkeypatch.setattr(Runner, "run", killing)
    session.measure(project, "test", project.root / "marker.json")
    stored = [json.loads(file.read_text(encoding="utf-8")) for file in project.raw.glob("pair/test/*/b*/*/run.json")]
    good = [one for one in stored if one["status"] == "ok"]
    assert len(good) >= 3
    assert {one["testbed"]["kind"] for one in stored} == {"ssh"}
    lost = [one for one in stored if one["status"] == "failed"]
    assert ["the connection was lost" in one["reason"] for one in lost] == [True]
    assert all(one["metrics"]["bytes"] == 1000 for one in good)
    capsys.readouterr()
    monkeypatch.setattr(workflow_estimate, "disk_mb", lambda *_: 0.0)
    assert doctor(project) == 0
    shown = capsys.readouterr().out
    assert "client (10.114.0.1)" in shown
    assert "interface" in shown
    # neither the words of commands nor keys are told anywhere
    key = hosts.key.read_text().splitlines()[1]
    for kept in (project.root, *(Path(hosts.settings().hosts[role].directory) for role in ROLES)):
        found = [file for text in (SECRET, key) for file in _files_with(text, kept)]
        assert found == [str(project.root / "config" / "testbeds" / "pair.yaml")] * (kept == project.root)
    assert SECRET not in shown


REAL = """
title: Test
source: none
question: none
workload: {kind: KIND, congestion_control: any}
link: {mode: throughput}
flavour: FLAVOUR
libraries: [quinn]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
baseline: AES-128-GCM
aa: false
scales:
  tiny: {bytes: BYTES, connections: 3, blocks: 2, timeout_s: 20}
"""


def test_builds_are_deployed_proven_and_measured_over_ssh(
    hosts: SshHosts, build_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    root, repository = tmp_path / "project", ROOT
    shutil.copytree(repository / "config", root / "config")
    (root / "workflow").symlink_to(repository / "workflow")
    (root / "config" / "testbeds" / "pair.yaml").write_text(json.dumps(hosts.data()), encoding="utf-8")
    (root / "build").mkdir()
    sampled = profile.problem(FakeHost("client")) is None
    # long enough for samples of the kernel's part, which may be none of ten
    for kind, flavour, size in (("bulk", "stock", 200_000_000), ("handshake", "pq", 1)):
        build = build_of("quinn", flavour)
        (root / "build" / build.name).symlink_to(build)
        text = REAL.replace("KIND", kind).replace("FLAVOUR", flavour).replace("BYTES", str(size))
        if kind == "bulk":
            text = text.replace("connections: 3, ", "") + ("perf: {}\n" if sampled else "")
        (root / "config" / "experiments" / f"{kind}.yaml").write_text(text, encoding="utf-8")
    chosen = {"testbed": "pair", "scale": "tiny", "experiments": ["bulk", "handshake"], "gate": {"retries": 0}}
    project = Project(root, chosen)
    certificates.make(certificates.directory(project))
    for name in ("bulk", "handshake"):
        session.measure(project, name, root / f"{name}.json")
    stored = [json.loads(file.read_text(encoding="utf-8")) for file in project.raw.glob("pair/*/*/b*/*/run.json")]
    assert sorted(one["experiment"] for one in stored) == ["bulk"] * 2 + ["handshake"] * 2
    proofs = [json.loads(file.read_text(encoding="utf-8")) for file in project.raw.glob("pair/proofs/*/*/run.json")]
    assert {one["workload"]["kind"] for one in proofs} == {"bulk", "handshake"}
    for one in stored + proofs:
        assert (one["status"], one["reason"]) == ("ok", None)
    for one in stored:
        # the certificates alone are over 1000 bytes a handshake
        sent = one["host"]["delta"]["server.link0.tx_bytes"]
        assert sent > (200_000_000 if one["experiment"] == "bulk" else 3 * 1000)
        assert one["metrics"]["goodput_mbps" if one["experiment"] == "bulk" else "ttfb_ms"] > 0
    assert not list(root.rglob("*.partial"))
    for role in ROLES if sampled else ():
        # symbols of the program and of the kernel, found on the host
        for file in project.raw.glob(f"pair/bulk/*/b*/*/{role}.folded.gz"):
            frames = {frame for stack in stacks.read_folded(file.read_bytes()) for frame in stack}
            assert any(frame.startswith(f"{role}`quinn") for frame in frames)
            assert any(frame.startswith("kernel`") for frame in frames)
        kept = {file.name for file in project.raw.glob("pair/bulk/*/b*/*/*")}
        assert {f"{role}.folded.gz", f"{role}.jsonl"} <= kept
        assert not [name for name in kept if ".perf." in name]


PAIRED = """
title: t
source: s
question: q
workload: {kind: bulk, congestion_control: any}
link: {mode: throughput}
libraries: [quinn]
variants:
  - {label: AES-128-GCM, cipher: aes-128-gcm}
  - {label: ChaCha20-Poly1305, cipher: chacha20-poly1305}
baseline: AES-128-GCM
aa: true
paired: concurrent
contrast: {labels: [ChaCha20-Poly1305], half_width: 0.02}
scales:
  tiny: {bytes: 50_000_000, blocks: 1, timeout_s: 20}
"""


def test_pairs_at_the_same_time_are_measured_over_ssh(
    hosts: SshHosts, build_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    root = tmp_path / "project"
    shutil.copytree(ROOT / "config", root / "config")
    (root / "workflow").symlink_to(ROOT / "workflow")
    (root / "config" / "testbeds" / "pair.yaml").write_text(json.dumps(hosts.data()), encoding="utf-8")
    (root / "build").mkdir()
    build = build_of("quinn", "stock")
    (root / "build" / build.name).symlink_to(build)
    (root / "config" / "experiments" / "at-once.yaml").write_text(PAIRED, encoding="utf-8")
    project = Project(root, {"testbed": "pair", "scale": "tiny", "experiments": ["at-once"], "gate": {"retries": 10}})
    certificates.make(certificates.directory(project))
    session.measure(project, "at-once", root / "marker.json")
    stored = [
        json.loads(file.read_text(encoding="utf-8")) for file in project.raw.glob("pair/at-once/*/b*/*/*/run.json")
    ]
    counting = [run for run in stored if run["status"] == "ok"]
    assert len(counting) == 4, [run["reason"] for run in stored]
    for run in counting:
        told = run["together"]
        assert told["overlap"] >= 0.8
        assert told["client_cpu_s"] > 0 < told["server_cpu_s"]
        # both ends are programs of one machine here
        assert told["processors"]["client"] != told["processors"]["server"]
    assert not list(root.rglob("*.partial"))


EXTERNAL = "external: {path: PATH, parameters: {PROGRAMS: BINARIES}}"


def test_external_endpoints_are_deployed_and_measured_over_ssh(
    hosts: SshHosts, build_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder, quinn = tmp_path / "folder", build_of("quinn", "stock")
    repository = ROOT
    shutil.copytree(clone.EXTERNAL / "wrapping", folder)
    (folder / "setup-env.sh").write_text('#!/bin/sh\nmkdir -p venv\npwd >"$LOGS/where"\n')
    (folder / "venv").mkdir()
    (folder / "venv" / "activate").write_text("of the controller")
    with (folder / "quicbed.yaml").open("a", encoding="utf-8") as statement:
        statement.write("max_bytes: 16777216\n")
    root = tmp_path / "project"
    shutil.copytree(repository / "config", root / "config")
    (root / "workflow").symlink_to(repository / "workflow")
    (root / "config" / "testbeds" / "pair.yaml").write_text(json.dumps(hosts.data()), encoding="utf-8")
    library = EXTERNAL.replace("PATH", str(folder)).replace("BINARIES", str(quinn / "bin"))
    (root / "config" / "libraries" / "wrapped.yaml").write_text(library, encoding="utf-8")
    text = REAL.replace("KIND", "bulk").replace("FLAVOUR", "stock").replace("BYTES", "200_000")
    text = text.replace("connections: 3, blocks: 2", "blocks: 1")
    text = text.replace("[quinn]", "[{client: wrapped, server: quinn}, {client: quinn, server: wrapped}]")
    (root / "config" / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    project = Project(root, {"testbed": "pair", "scale": "tiny", "experiments": ["test"], "gate": {"retries": 0}})
    making.build(project, "wrapped", "stock", jobs=1, log=tmp_path / "build.log")
    (project.build / quinn.name).symlink_to(quinn)
    certificates.make(certificates.directory(project))
    session.measure(project, "test", root / "marker.json")
    files = list(project.raw.glob("pair/test/*/b*/*/run.json"))
    assert len(files) == 3  # the folder takes part with itself, too
    for file in files:
        run = json.loads(file.read_text(encoding="utf-8"))
        assert (run["status"], run["reason"]) == ("ok", None)
        role = "client" if run["client"]["library"] == "wrapped" else "server"
        # its scripts ran in a copy of the folder on the host, without what is made there
        place = Path((file.parent / f"{role}.logs" / "where").read_text().strip())
        assert place.parent == Path(hosts.settings().hosts[role].directory) / "copies"
        assert not list((place / "venv").iterdir())


def test_a_server_that_never_answers_is_an_error_after_a_time(hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicbed.testbed.ssh.CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("10.114.0.254", 0)) as silent:
        settings = hosts.settings(port=silent.getsockname()[1], address="10.114.0.254")
        loop = Loop("test")
        try:
            with pytest.raises(TestbedError, match=r"client: 10\.114\.0\.254:\d+ cannot be reached: "):
                loop.call(connect("client", settings.hosts["client"], settings.ssh_config))
        finally:
            loop.close()


QUICK = """
from quicbed.builds import kit

def build(job):
    (job.out / "bin").mkdir()
    for role in ("client", "server"):
        argv = ["gcc", "-o", str(job.out / "bin" / role), str(job.endpoint / "endpoint.c")]
        kit.run(argv, log=job.log)
    return {"compiler": "gcc", "flags": []}
"""
ENDPOINT = f"""
#include <stdio.h>
int main(void) {{
#ifdef __SSE4_2__
    puts("{{\\"contract\\": {CONTRACT}, \\"sse4_2\\": true}}");
#else
    puts("{{\\"contract\\": {CONTRACT}, \\"sse4_2\\": false}}");
#endif
}}
"""


def _quick_project(root: Path, hosts: SshHosts, **build: str) -> None:
    """A repository with one library, whose programs are compiled in a moment, on a testbed with builds on its hosts."""
    repository = ROOT
    for name in ("config", "workflow"):
        ignored = shutil.ignore_patterns("target", "__pycache__", "endpoints")
        shutil.copytree(repository / name, root / name, ignore=ignored)
    builds = root / "workflow" / "quicbed" / "builds"
    (builds / "recipes" / "quick.py").write_text(QUICK, encoding="utf-8")
    known = (builds / "making.py").read_text(encoding="utf-8")
    known = known.replace("import cargo, ", "import quick, cargo, ").replace(
        '"cargo": cargo,', '"cargo": cargo, "quick": quick,'
    )
    (builds / "making.py").write_text(known, encoding="utf-8")
    endpoint = root / "workflow" / "endpoints" / "quick" / "endpoint.c"
    endpoint.parent.mkdir(parents=True)
    endpoint.write_text(ENDPOINT, encoding="utf-8")
    config = root / "config"
    library = yaml.safe_load((config / "libraries" / "openssl.yaml").read_text(encoding="utf-8"))
    estimate = {"minutes": 0.1, "disk_mb": 1}
    own = {"recipe": "quick", "endpoint": "quick", "crates": [], "version": "1", "title": "Quick"}
    library |= own | {"flavours": {"stock": {"estimate": estimate}}, "no_flavour": {}}
    for directory in ("libraries", "experiments"):
        shutil.rmtree(config / directory)
        (config / directory).mkdir()
    shutil.rmtree(config / "studies")  # they name experiments that are not here
    (config / "libraries" / "quick.yaml").write_text(yaml.safe_dump(library), encoding="utf-8")
    text = REAL.replace("KIND", "bulk").replace("flavour: FLAVOUR\n", "").replace("quinn", "quick")
    text = text.replace("BYTES, connections: 3", "1000")
    (config / "experiments" / "test.yaml").write_text(text, encoding="utf-8")
    data = hosts.data() | {"build": {"where": "hosts", **build}, "commands": {"release": [["true", SECRET]]}}
    (config / "testbeds" / "pair.yaml").write_text(json.dumps(data), encoding="utf-8")
    settings = {"testbed": "pair", "scale": "tiny", "experiments": ["test"], "paths": {"store": "build/store"}}
    (config / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    vendor = kit.vendor_directory(Project(root))
    vendor.mkdir(parents=True)
    (vendor / "package").touch()


def _host_builds(root: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "quicbed", "host-builds", "--log", str(root / "log")]
    environment = os.environ | {"PYTHONPATH": str(root / "workflow")}
    return subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=False)


def test_hosts_build_what_runs_there(hosts: SshHosts, tmp_path: Path) -> None:
    root = tmp_path / "project"
    _quick_project(root, hosts, march="x86-64-v2")
    builder = Path(hosts.data()["hosts"]["client"]["directory"]) / "builder"
    older = builder / "sources-0123456789ab"  # of an earlier build
    older.mkdir(parents=True)
    done = _host_builds(root)
    assert (done.returncode, done.stderr) == (0, "")
    files = [Path(line) for line in done.stdout.splitlines()]
    assert [file.name.rpartition("-")[0] for file in files] == [f"quick-stock@x86-64-v2+{role}" for role in ROLES]
    for file, role in zip(files, ROLES, strict=True):
        info = json.loads(file.read_text(encoding="utf-8"))
        directory = file.with_suffix("")
        assert json.loads((directory / "build.json").read_text(encoding="utf-8")) == info
        assert (info["build"], info["march"]["level"]) == (directory.name, "x86-64-v2")
        on = info["built_on"]
        assert (on["role"], on["address"]) == (role, MANAGEMENT[role])
        assert on["build"].startswith("quick-stock@x86-64-v2-")
        assert on["libc"].startswith("glibc ")
        shown = subprocess.run([str(directory / "bin" / role)], capture_output=True, text=True, check=True)
        assert json.loads(shown.stdout)["sse4_2"] is True
    # nothing but what is kept for the next build, and that is made of the same files
    kept = sorted(path.name.partition("-")[0] for path in builder.iterdir())
    assert kept == ["project", "python", "quick", "sources"]
    assert not older.exists()
    assert not list(root.rglob("*.tar"))
    # what reserves the hosts is known here alone
    assert _files_with(SECRET, root) == [str(root / "config" / "testbeds" / "pair.yaml")]
    assert [_files_with(SECRET, Path(host.directory)) for host in hosts.settings().hosts.values()] == [[], []]
    (root / "log").unlink()
    again = _host_builds(root)  # although the hosts are not asked
    assert (again.returncode, again.stdout, (root / "log").read_text()) == (0, done.stdout, "")
    # what goes wrong there is told here, and the sources of the build before stay
    (next((root / "build" / "store" / "sources").iterdir()) / "more").touch()
    endpoint = root / "workflow" / "endpoints" / "quick" / "endpoint.c"
    endpoint.write_text("int main(void) { return missing; }\n", encoding="utf-8")
    failed = _host_builds(root)
    assert failed.returncode == 1
    assert re.match(r"quicbed: client \(10\.114\.0\.1\): `gcc -o` failed with exit code 1", failed.stderr)
    assert "missing" in failed.stderr
    assert len(list(builder.glob("sources-*"))) == 2
