"""The testbed over SSH between guests with kernels of their own, which have netem and FQ."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clone import ROOT
from quicbed.cli import commands
from quicbed.config.model import Testbed as Settings
from quicbed.config.model import parse_model
from quicbed.testbed import LinkSettings, guests
from quicbed.testbed.base import Role, TestbedError
from quicbed.testbed.guests import ROLES, Guests
from quicbed.testbed.namespace import RUN_NETNS, processes
from quicbed.testbed.remote import SshTestbed

pytestmark = pytest.mark.root


class Hosts(Guests):
    """Guests beside those that the machine may have."""

    def settings(self) -> Settings:
        data = yaml.safe_load((ROOT / "config/testbeds/guests.yaml").read_text(encoding="utf-8"))
        assert data["ssh_config"] == [str(guests.DIRECTORY / "ssh_config")]
        return parse_model(Settings, data | {"ssh_config": [str(self.ssh_config)]}, "testbed")

    def run(self, role: str, command: str) -> str:
        """Output of a command on a host."""
        argv = ["ssh", "-F", str(self.ssh_config), self.name(role), command]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    reason = guests.problem()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("hosts")
    hosts = Hosts(directory / "guests", f"qbt{os.getpid()}-guests")
    try:
        assert hosts.start()
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("XDG_STATE_HOME", str(directory / "state"))
            environment.delenv("SSH_AUTH_SOCK", raising=False)
            yield hosts
    finally:
        assert hosts.stop()


def disciplines(shown: str) -> list[str]:
    """Queueing disciplines of an interface from the outermost inwards, in what `tc -j qdisc show` prints."""
    return [row["kind"] for row in json.loads(shown)]


def test_programs_on_hosts_can_write_where_they_keep_temporary_files(hosts: Hosts) -> None:
    """As nginx does; this machine's files are seen there and stay as they are."""
    made = hosts.run("server", "mktemp -d /tmp/quicbed-nginx-XXXXXX").strip()
    assert not Path(made).exists()
    assert hosts.run("server", f"ls -d {made}").strip() == made
    as_others = "setpriv --reuid 65534 --clear-groups mktemp /tmp/quicbed-XXXXXX"
    assert hosts.run("server", as_others).startswith("/tmp/quicbed-")


def test_hosts_delay_what_they_send_and_are_put_back(hosts: Hosts) -> None:
    show = ["tc", "-j", "qdisc", "show", "dev", "link0"]
    with SshTestbed("pair", hosts.settings()) as testbed:
        before = [disciplines(testbed.hosts[role].run(show).stdout) for role in ROLES]
        link = LinkSettings(mode="wire", rtt_ms=200, rate_mbit=50)
        assert testbed.unsupported(link) is None
        testbed.apply(link)
        # setting it has verified by echoes that the round-trip time is right
        assert [disciplines(testbed.hosts[role].run(show).stdout) for role in ROLES] == [["netem"], ["netem", "tbf"]]
    assert [disciplines(hosts.run(role, " ".join(show))) for role in ROLES] == before


def test_a_link_is_limited_where_it_arrives_and_the_server_keeps_its_own_queue(hosts: Hosts) -> None:
    def shown(testbed: SshTestbed, role: Role, interface: str = "link0") -> list[str]:
        done = testbed.hosts[role].run(["tc", "-j", "qdisc", "show", "dev", interface], check=False)
        return disciplines(done.stdout) if done.returncode == 0 else []

    link = LinkSettings(mode="wire", rtt_ms=200, rate_mbit=50)
    arriving = link.model_copy(update={"bottleneck": "client", "qdisc": "fq"})
    with SshTestbed("pair", hosts.settings()) as testbed:
        assert testbed.unsupported(link.model_copy(update={"qdisc": "fq"})) is not None
        assert "network card" in str(testbed.unsupported(arriving.model_copy(update={"qdisc": "etf-launchtime"})))
        assert testbed.unsupported(arriving) is None
        testbed.apply(arriving)
        etf = arriving.model_copy(update={"qdisc": "etf"})
        assert testbed.unsupported(etf) is None
        testbed.apply(etf)
        assert shown(testbed, "server") == ["prio", "etf"]
        assert testbed.counters()["server.qdisc_dropped"] == 0
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


def test_guests_that_have_died_are_started_again_and_leave_nothing(hosts: Hosts) -> None:
    assert not hosts.start()
    before = hosts.run("server", "cat /proc/sys/kernel/random/boot_id")
    kernels = [pid for pid in processes(RUN_NETNS / hosts.namespace) if f"{hosts.directory}/server/" in words(pid)]
    assert kernels
    for pid in kernels:  # all: process ids wrap, so the first need not be the kernel's own
        with contextlib.suppress(ProcessLookupError):  # it died with the others
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while hosts.are_up():
        assert time.monotonic() < deadline
    assert hosts.start()
    assert hosts.run("server", "cat /proc/sys/kernel/random/boot_id") != before
    assert hosts.run("client", "uname -n") == "client\n"
    assert hosts.stop()
    assert not hosts.stop()
    assert not (RUN_NETNS / hosts.namespace).exists()
    assert not hosts.directory.exists()
    assert hosts.start()


def words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def test_what_guests_need_is_named_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "SSHD_PLACES", str(tmp_path))
    none = Guests(tmp_path / "guests", "qbt-none")
    with pytest.raises(TestbedError, match="guests: an SSH server is missing; install with: apt-get install openssh"):
        none.start()
    assert not none.directory.exists()
    assert not none.stop()
    with none._alone(), pytest.raises(TestbedError, match="guests: they are being started or stopped; wait"):
        none.stop()


def test_guests_that_do_not_boot_are_gone_with_what_they_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "UML", "false")
    monkeypatch.setattr(guests, "BOOT_S", 0.5)
    none = Guests(tmp_path / "guests", f"qbt{os.getpid()}-none")
    with pytest.raises(TestbedError, match=r"guests: the client does not answer after 0\.5 s: it has printed nothing"):
        none.start()
    assert not none.directory.exists()
    assert not (RUN_NETNS / none.namespace).exists()


def test_guests_are_stopped_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guests, "DIRECTORY", tmp_path / "guests")
    monkeypatch.setattr(guests, "NAMESPACE", "qbt-none")
    assert commands.main(["guests", "stop"]) == 0
    assert capsys.readouterr().out == "there are no guests\n"
