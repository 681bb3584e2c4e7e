"""The agent of a host, without SSH: its protocol over pipes, the settings it changes, what it parses."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentclient import Client, holder, spawn, taken
from fakehardware import BEFORE, CPUS, INTERRUPTS, Hardware
from quicbed.testbed import agent
from quicbed.testbed.deploy import libc_problem, needed_glibc
from quicbed.testbed.features import _ifb

PATIENCE_S = 20.0


# ---- what it parses


def test_features_are_read_without_the_sums_of_groups() -> None:
    text = (
        "Features for eth0:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-checksum-ipv4: off [fixed]\n"
        "\ttx-checksum-ip-generic: on\ntcp-segmentation-offload: off\n\ttx-tcp-segmentation: off [requested on]\n"
        "generic-receive-offload: on\n"
    )
    assert agent.parse_features(text) == {
        "rx-checksumming": {"active": True, "requested": True, "fixed": False},
        "tx-checksum-ipv4": {"active": False, "requested": False, "fixed": True},
        "tx-checksum-ip-generic": {"active": True, "requested": True, "fixed": False},
        "tx-tcp-segmentation": {"active": False, "requested": True, "fixed": False},
        "generic-receive-offload": {"active": True, "requested": True, "fixed": False},
    }


def test_lists_of_processors_are_read_as_the_kernel_prints_them() -> None:
    assert agent.listed("0,2-3,7") == [0, 2, 3, 7]
    assert agent.listed("") == []


def test_rings_are_those_of_now_not_the_largest() -> None:
    text = (
        "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t4096\nTX:\t\t4096\n"
        "Current hardware settings:\nRX:\t\t512\nRX Mini:\tn/a\nTX:\t\t256\n"
    )
    assert agent.parse_rings(text) == {"rx": 512, "tx": 256}
    assert agent.parse_rings(text, largest=True) == {"rx": 4096, "tx": 4096}


# ---- hosts(5)


@pytest.mark.parametrize("content", ["", "127.0.0.1 localhost\n", "127.0.0.1 localhost\n# no newline"])
def test_the_hosts_file_is_the_same_to_the_byte_afterwards(tmp_path: Path, content: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(content)
    block = agent.HostsBlock(file)
    assert block.read() == ""
    block.write("10.0.0.1 server\n10.0.0.2 client")
    assert block.read() == "10.0.0.1 server\n10.0.0.2 client"
    assert file.read_text().startswith(content)
    block.write("10.0.0.9 server")
    assert block.read() == "10.0.0.9 server"
    block.write("")
    assert file.read_text() == content


def test_lines_that_somebody_adds_to_the_hosts_file_stay(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost")
    block = agent.HostsBlock(file)
    block.write("10.0.0.1 server")
    file.write_text(file.read_text() + "10.0.0.3 printer\n")
    block.write("")
    assert file.read_text() == "127.0.0.1 localhost\n10.0.0.3 printer\n"


def test_an_entry_in_the_hosts_file_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n")
    agent.HostsBlock(file).write("10.0.0.1 server")
    file.write_text(file.read_text()[:-20])
    assert agent.HostsBlock(file).read().endswith("(incomplete)")
    agent.HostsBlock(file).write("")
    assert file.read_text() == "127.0.0.1 localhost\n"


# ---- settings and their journal


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of /proc/sys."""
    directory = tmp_path / "sys"
    directory.mkdir()
    for name, value in (("a.one", "1"), ("a.two", "4096 131072\t6291456\n"), ("a.clamped", "10")):
        (directory / name).write_text(value)
    monkeypatch.setitem(agent._FILES, "sysctl", lambda name: directory / name)
    return directory


def _settings(directory: Path) -> agent.Settings:
    return agent.Settings(directory, agent.Programs(directory))


def _change(name: str, value: str) -> agent.Change:
    return {"kind": "sysctl", "name": name, "value": value}


def test_names_of_settings_have_a_slash_for_a_point() -> None:
    file = agent._sysctl_file("net.ipv4.conf.eth0/100.rp_filter")
    assert str(file) == "/proc/sys/net/ipv4/conf/eth0.100/rp_filter"


def _reaping(directory: Path, work: Callable[[agent.Settings], Awaitable[Any]]) -> Any:
    """The result of work with settings whose programs are waited for, as an agent does."""

    async def whole() -> Any:
        settings = _settings(directory)
        settings.load()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, settings.programs.reap)
        return await work(settings)

    return asyncio.run(whole())


def test_settings_are_changed_verified_and_restored(kernel: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    done = asyncio.run(settings.apply([_change("a.one", "2"), _change("a.two", "1 2 3")]))
    assert [(one["name"], one["before"], one["after"]) for one in done] == [
        ("a.one", "1", "2"),
        ("a.two", "4096 131072 6291456", "1 2 3"),
    ]
    journal = json.loads((tmp_path / "journal.json").read_text())
    assert [entry["before"] for entry in journal["entries"]] == ["1", "4096 131072 6291456"]
    assert asyncio.run(settings.apply([_change("a.one", "2")])) == []
    assert asyncio.run(settings.restore()) == (["sysctl a.two", "sysctl a.one"], [])
    assert (kernel / "a.one").read_text() == "1"
    assert (kernel / "a.two").read_text().split() == ["4096", "131072", "6291456"]
    assert not (tmp_path / "journal.json").exists()


def test_the_first_value_is_the_one_that_comes_back(kernel: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    for value in ("2", "3", "1", "4"):
        asyncio.run(settings.apply([_change("a.one", value)]))
    asyncio.run(settings.restore())
    assert (kernel / "a.one").read_text() == "1"


def test_the_next_agent_restores_what_a_killed_one_has_changed(kernel: Path, tmp_path: Path) -> None:
    asyncio.run(_settings(tmp_path).apply([_change("a.one", "2")]))
    later = _settings(tmp_path)
    later.load()
    assert asyncio.run(later.restore()) == (["sysctl a.one"], [])
    assert (kernel / "a.one").read_text() == "1"


def test_a_change_that_was_recorded_but_not_made_is_no_change(kernel: Path, tmp_path: Path) -> None:
    asyncio.run(_settings(tmp_path).apply([_change("a.one", "2")]))
    (kernel / "a.one").write_text("1")
    later = _settings(tmp_path)
    later.load()
    assert asyncio.run(later.restore()) == ([], [])
    assert not (tmp_path / "journal.json").exists()


def test_what_somebody_else_has_changed_since_is_left_alone(kernel: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    asyncio.run(settings.apply([_change("a.one", "2")]))
    (kernel / "a.one").write_text("77")
    assert asyncio.run(settings.restore()) == ([], ["sysctl a.one"])
    assert (kernel / "a.one").read_text() == "77"


def test_after_a_reboot_only_files_are_restored(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    settings = _settings(tmp_path)
    changes = [_change("a.one", "2"), {"kind": "hosts", "name": str(hosts), "value": "10.0.0.1 server"}]
    asyncio.run(settings.apply(changes))
    monkeypatch.setattr(agent, "boot_id", lambda: "another")
    later = _settings(tmp_path)
    later.load()
    assert asyncio.run(later.restore()) == ([f"hosts {hosts}"], [])
    assert (kernel / "a.one").read_text() == "2"
    assert hosts.read_text() == "127.0.0.1 localhost\n"


@pytest.fixture
def rounding(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel takes no number above 20, and words not at all."""

    class Rounding(type(kernel)):  # type: ignore[misc]
        def write_text(self, data: str, *_: Any, **__: Any) -> int:
            if not data.isdigit():
                raise OSError(errno.EINVAL, "Invalid argument")
            return int(super().write_text(str(min(int(data), 20))))

    monkeypatch.setitem(agent._FILES, "sysctl", lambda name: Rounding(kernel / name))
    return kernel


@pytest.mark.parametrize("later", [False, True])
def test_a_value_that_does_not_hold_is_an_error_and_put_back(rounding: Path, tmp_path: Path, later: bool) -> None:
    settings = _settings(tmp_path)
    with pytest.raises(agent.AgentError, match=r"sysctl a\.clamped is '20' after it was set to '100'"):
        asyncio.run(settings.apply([_change("a.clamped", "100")]))
    assert (rounding / "a.clamped").read_text() == "20"
    if later:  # by the next agent
        settings = _settings(tmp_path)
        settings.load()
    assert asyncio.run(settings.restore()) == (["sysctl a.clamped"], [])
    assert (rounding / "a.clamped").read_text() == "10"
    assert not (tmp_path / "journal.json").exists()


def test_what_was_set_before_a_change_that_fails_is_put_back(rounding: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    with pytest.raises(agent.AgentError, match=r"sysctl a\.one: cannot be set to word: Invalid argument"):
        asyncio.run(settings.apply([_change("a.clamped", "100"), _change("a.one", "word")]))
    assert (rounding / "a.clamped").read_text() == "20"
    assert asyncio.run(settings.restore()) == (["sysctl a.clamped"], [])
    assert (rounding / "a.clamped").read_text() == "10"


def test_a_value_that_held_at_last_is_protected_again(rounding: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    with pytest.raises(agent.AgentError, match="after it was set"):
        asyncio.run(settings.apply([_change("a.clamped", "100")]))
    asyncio.run(settings.apply([_change("a.clamped", "15")]))
    (rounding / "a.clamped").write_text("17")  # by somebody else
    later = _settings(tmp_path)
    later.load()
    assert asyncio.run(later.restore()) == ([], ["sysctl a.clamped"])


class Refused(type(Path())):  # type: ignore[misc]
    """A setting that is not to be written."""

    refusal: BaseException = OSError(errno.EINVAL, "Invalid argument")

    def write_text(self, *_: Any, **__: Any) -> int:
        raise self.refusal


@pytest.fixture
def refusing(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel refuses whatever `a.refused` is set to."""
    for name in ("a.refused", "a.three"):
        (kernel / name).write_text("1")
    monkeypatch.setitem(
        agent._FILES, "sysctl", lambda name: (Refused if name == "a.refused" else type(kernel))(kernel / name)
    )
    return kernel


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("somebody", ["2", "77"])
@pytest.mark.parametrize("refusal", [Refused.refusal, asyncio.CancelledError()])
def test_what_a_change_that_fails_has_not_come_to_is_left_alone(
    refusing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool, somebody: str, refusal: BaseException
) -> None:
    monkeypatch.setattr(Refused, "refusal", refusal)
    settings = _settings(tmp_path)
    with pytest.raises((agent.AgentError, asyncio.CancelledError)):
        asyncio.run(settings.apply([_change("a.one", "2"), _change("a.refused", "2"), _change("a.three", "2")]))
    journal = json.loads((tmp_path / "journal.json").read_text())
    assert [entry["name"] for entry in journal["entries"]] == ["a.one", "a.refused"]
    (refusing / "a.three").write_text(somebody)
    if later:  # by the next agent
        settings = _settings(tmp_path)
        settings.load()
    assert asyncio.run(settings.restore()) == (["sysctl a.one"], [])
    assert (refusing / "a.one").read_text() == "1"
    assert (refusing / "a.three").read_text() == somebody


def test_what_was_set_before_a_change_that_fails_stays_protected(refusing: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    asyncio.run(settings.apply([_change("a.three", "2")]))
    with pytest.raises(agent.AgentError, match=r"a\.refused: cannot be set"):
        asyncio.run(settings.apply([_change("a.refused", "2"), _change("a.three", "3")]))
    (refusing / "a.three").write_text("3")  # by somebody else
    later = _settings(tmp_path)
    later.load()
    assert asyncio.run(later.restore()) == ([], ["sysctl a.three"])
    # what is still as it was set is put back
    (refusing / "a.three").write_text("2")
    assert asyncio.run(settings.restore()) == (["sysctl a.three"], [])
    assert (refusing / "a.three").read_text() == "1"


def test_a_change_begins_with_what_is_there_after_one_that_failed(refusing: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    with pytest.raises(agent.AgentError, match=r"a\.none: cannot be read"):
        asyncio.run(settings.apply([_change("a.one", "2"), _change("a.none", "2")]))
    with pytest.raises(agent.AgentError, match=r"a\.refused: cannot be set"):
        asyncio.run(settings.apply([_change("a.refused", "2"), _change("a.three", "2")]))
    for name in ("a.one", "a.three"):
        (refusing / name).write_text("77")  # by somebody else
    asyncio.run(settings.apply([_change("a.three", "2")]))
    assert asyncio.run(settings.restore()) == (["sysctl a.three"], [])
    assert [(refusing / name).read_text() for name in ("a.one", "a.three")] == ["77", "77"]
    assert not (tmp_path / "journal.json").exists()


FEATURES = [
    {"kind": "feature", "name": "link0 generic-segmentation-offload", "value": "off"},
    {"kind": "feature", "name": "link0 generic-receive-offload", "value": "off"},
]


@pytest.mark.parametrize("come_to", [False, True])
def test_features_are_restored_if_a_change_that_failed_has_come_to_them(
    refusing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, come_to: bool
) -> None:
    options = {"gso": "generic-segmentation-offload", "gro": "generic-receive-offload"}
    state = dict.fromkeys(options, "on")
    refused = {"gro"}

    async def ethtool(_programs: agent.Programs, *argv: str) -> str:
        if argv[1] == "-k":
            return "".join(f"{options[what]}: {value}\n" for what, value in state.items())
        for what, value in zip(argv[3::2], argv[4::2], strict=True):
            if what in refused:
                raise agent.AgentError("Could not change any device features")
            state[what] = value
        return ""

    monkeypatch.setattr(agent.Programs, "tool", ethtool)
    settings = _settings(tmp_path)
    # features are written last
    with pytest.raises(agent.AgentError, match="Could not change" if come_to else r"a\.refused: cannot be set"):
        asyncio.run(settings.apply([*FEATURES, _change("a.one" if come_to else "a.refused", "2")]))
    assert state == {"gso": "off" if come_to else "on", "gro": "on"}
    refused.clear()
    state["gro"] = "off"  # by somebody else, or late
    restored = ["sysctl a.one", *(f"feature {change['name']}" for change in reversed(FEATURES))] if come_to else []
    assert asyncio.run(settings.restore()) == (restored, [])
    assert state == ({"gso": "on", "gro": "on"} if come_to else {"gso": "on", "gro": "off"})


def test_unknown_settings_are_refused_before_anything_changes(kernel: Path, tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    with pytest.raises(agent.AgentError, match=r"sysctl a\.none: cannot be read: No such file"):
        asyncio.run(settings.apply([_change("a.one", "2"), _change("a.none", "1")]))
    assert (kernel / "a.one").read_text() == "1"
    assert not (tmp_path / "journal.json").exists()


# ---- rings, governors and interrupts


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """A machine that has them."""
    machine = Hardware(tmp_path / "hardware")
    monkeypatch.setenv("PATH", f"{machine.programs}:{os.environ['PATH']}")
    monkeypatch.setitem(agent._FILES, "governor", machine.governor)
    monkeypatch.setitem(agent._FILES, "irq", machine.affinity)
    return machine


WANTED = {
    "ring rx": "4096",
    "ring tx": "1024",
    **{f"governor {cpu}": "performance" for cpu in CPUS},
    **{f"irq {number}": "0-1" for number in INTERRUPTS},
}


def _changes(wanted: Mapping[str, str]) -> list[agent.Change]:
    """These settings of a machine as changes."""
    parts = ((*name.split(), value) for name, value in wanted.items())
    return [
        {"kind": kind, "name": f"link0 {name}" if kind == "ring" else name, "value": value}
        for kind, name, value in parts
    ]


def _labels(names: Iterable[str]) -> list[str]:
    """What settings are called that were put back, the last first."""
    return [name.replace("ring ", "ring link0 ") for name in reversed(list(names))]


def test_rings_governors_and_interrupts_are_read_back_and_restored(hardware: Hardware, tmp_path: Path) -> None:
    async def work(settings: agent.Settings) -> None:
        done = await settings.apply(_changes(WANTED))
        assert [(one["before"], one["after"]) for one in done] == list(
            zip(BEFORE.values(), WANTED.values(), strict=True)
        )
        assert hardware.state() == WANTED
        assert await settings.apply(_changes(WANTED)) == []
        assert await settings.restore() == (_labels(WANTED), [])

    _reaping(tmp_path, work)
    assert hardware.state() == BEFORE
    assert not (tmp_path / "journal.json").exists()


def test_the_next_agent_restores_rings_governors_and_interrupts(hardware: Hardware, tmp_path: Path) -> None:
    _reaping(tmp_path, lambda settings: settings.apply(_changes(WANTED)))
    # but for what somebody else has set since
    hardware.affinity("30").write_text("3\n")
    restored, foreign = _reaping(tmp_path, lambda settings: settings.restore())
    assert (restored, foreign) == ([name for name in _labels(WANTED) if name != "irq 30"], ["irq 30"])
    assert hardware.state() == {**BEFORE, "irq 30": "3"}


class Killed(BaseException):
    """The end of an agent, in its own process."""


@pytest.mark.parametrize("done", range(1, len(WANTED) + 1))
def test_changes_that_were_being_made_are_put_back_whatever_the_device_has_made_of_them(
    hardware: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    write = agent.Settings.write_all

    async def killed(self: agent.Settings, changes: Sequence[agent.Change]) -> None:
        await write(self, changes[:done])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(agent.Settings, "write_all", killed)
        with pytest.raises(Killed):
            _reaping(tmp_path, lambda settings: settings.apply(_changes({**WANTED, "ring rx": "1000"})))
    assert hardware.state()["ring rx"] == "1024"
    restored = _reaping(tmp_path, lambda settings: settings.restore())
    assert restored == (_labels(list(WANTED)[:done]), [])
    assert hardware.state() == BEFORE


def test_a_size_that_a_device_rounds_is_an_error_and_the_old_one_returns(hardware: Hardware, tmp_path: Path) -> None:
    async def work(settings: agent.Settings) -> None:
        with pytest.raises(agent.AgentError, match=r"^ring link0 rx is '1024' after it was set to '1000'$"):
            await settings.apply(_changes({"ring tx": "1024", "ring rx": "1000"}))
        assert hardware.state() == {**BEFORE, "ring tx": "1024", "ring rx": "1024"}
        assert await settings.restore() == (["ring link0 rx", "ring link0 tx"], [])

    _reaping(tmp_path, work)
    assert hardware.state() == BEFORE


def test_a_size_that_a_device_refuses_is_an_error_and_nothing_stays_changed(hardware: Hardware, tmp_path: Path) -> None:
    reason = r"^ring link0 rx: cannot be 8192, its largest size is 4096$"
    with pytest.raises(agent.AgentError, match=reason):
        _reaping(tmp_path, lambda settings: settings.apply(_changes({"ring tx": "1024", "ring rx": "8192"})))
    assert hardware.state() == BEFORE
    assert not (tmp_path / "journal.json").exists()
    reason = r"^ethtool -G link0 rx 16: netlink error: Invalid argument$"
    with pytest.raises(agent.AgentError, match=reason):
        _reaping(tmp_path, lambda settings: settings.apply(_changes({"ring tx": "1024", "ring rx": "16"})))
    assert _reaping(tmp_path, lambda settings: settings.restore()) == (["ring link0 tx"], [])
    assert hardware.state() == BEFORE


@pytest.mark.parametrize(
    ("kind", "name", "code", "reason"),
    [
        ("governor", "cpu2", errno.EINVAL, "governor cpu2: cannot be set to performance: Invalid argument"),
        # of an interrupt that the kernel assigns itself
        ("irq", "31", errno.EIO, "irq 31: cannot be set to 0-1: Input/output error"),
    ],
)
def test_what_the_kernel_refuses_is_an_error_and_what_was_set_before_returns(
    hardware: Hardware,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
    code: int,
    reason: str,
) -> None:
    class Refusing(type(tmp_path)):  # type: ignore[misc]
        def write_text(self, *_: Any, **__: Any) -> int:
            raise OSError(code, os.strerror(code))

    place = agent._FILES[kind]
    monkeypatch.setitem(agent._FILES, kind, lambda one: Refusing(place(one)) if one == name else place(one))
    with pytest.raises(agent.AgentError, match=f"^{reason}$"):
        _reaping(tmp_path, lambda settings: settings.apply(_changes(WANTED)))
    assert hardware.state() != BEFORE
    restored, foreign = _reaping(tmp_path, lambda settings: settings.restore())
    assert restored == _labels(list(WANTED)[: list(WANTED).index(f"{kind} {name}")])
    assert foreign == []
    assert hardware.state() == BEFORE


# ---- queues of arriving frames

# Stands for ip(8), tc(8) and modprobe(8): what is there is a file each in $STATE. A kernel without ifb knows no such
# device; one that has it as a module loads that when a device is asked for, which makes two devices of its own.
TOOLS = """#!/bin/sh
cd "$STATE"
echo "$(basename "$0") $*" >> log
case "$(basename "$0") $*" in
"ip link show dev ifb-link0") test -e ifb ;;
"modprobe ifb numifbs=0") test -e without || touch module ;;
"ip link add "*" type ifb")
    test ! -e without || { echo "Error: Unknown device type." >&2; exit 2; }
    test -e module || touch module ifb0 ifb1
    touch "$(echo "$3" | sed 's/-link0//')" ;;
"ip link del ifb-link0") rm ifb; rm -f queue ;;
"tc -j qdisc show dev ifb-link0") cat queue 2>/dev/null || echo '[{"kind":"pfifo_fast","handle":"0:","root":true}]' ;;
"tc qdisc replace dev ifb-link0 root "*)
    printf '[{"kind":"%s","handle":"8001:","root":true}]\\n' "$6" > queue ;;
"tc -j qdisc show dev link0")
    test ! -e ingress || echo '[{"kind":"ingress","handle":"ffff:"}]'
    test ! -e clsact || echo '[{"kind":"clsact","handle":"ffff:"}]' ;;
"tc qdisc add dev link0 clsact") touch clsact ;;
"tc qdisc del dev link0 clsact") rm clsact; rm -f filter egress ;;
"tc filter add dev link0 ingress "*)
    { echo "filter protocol all pref 49152 u32 chain 0 "
      echo "filter protocol all pref 49152 u32 chain 0 fh 800: ht divisor 1 "
      echo "filter protocol all pref 49152 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 not_in_hw "
      echo "\taction order 1: mirred (Egress Redirect to device $(echo "$*" | sed 's/.* //')) stolen"; } > filter ;;
"tc filter show dev link0 ingress") cat filter 2>/dev/null || true ;;
"tc filter show dev link0 egress") cat egress 2>/dev/null || true ;;
esac
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the tools keep; nothing is there."""
    state, programs = tmp_path / "state", tmp_path / "programs"
    state.mkdir()
    programs.mkdir()
    for name in ("ip", "tc", "modprobe"):
        (programs / name).write_text(TOOLS, encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("STATE", str(state))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return state


QUEUE = [
    {"kind": "ifb", "name": "ifb-link0", "value": ["netem", "delay", "10ms"]},
    {"kind": "clsact", "name": "link0", "value": ["redirect", "ifb-link0"]},
]


def _left(state: Path) -> set[str]:
    return {file.name for file in state.iterdir()} - {"log", "module"}


def test_arriving_frames_are_queued_and_all_of_it_is_removed(tools: Path, tmp_path: Path) -> None:
    done = _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    assert [(one["before"], one["after"]) for one in done] == [("default", "netem"), ("default", "redirect ifb-link0")]
    assert _left(tools) == {"ifb", "queue", "clsact", "filter"}
    assert "ip link set ifb-link0 up" in (tools / "log").read_text()
    # another queue takes the place of the first, at the same device
    _reaping(tmp_path, lambda settings: settings.apply([{**QUEUE[0], "value": ["fq"]}]))
    assert '"fq"' in (tools / "queue").read_text()
    restored, foreign = _reaping(tmp_path, lambda settings: settings.restore())
    assert (restored, foreign) == (["clsact link0", "ifb ifb-link0"], [])
    assert _left(tools) == set()


@pytest.mark.parametrize("left", [{"ifb"}, {"ifb", "queue"}, {"ifb", "queue", "clsact"}])
def test_a_queue_that_was_being_made_is_removed(tools: Path, tmp_path: Path, left: set[str]) -> None:
    _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    for name in _left(tools) - left:
        (tools / name).unlink()
    _reaping(tmp_path, lambda settings: settings.restore())
    assert _left(tools) == set()


def test_the_module_is_loaded_so_that_it_makes_no_devices_of_its_own(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    assert _left(tools) == {"ifb", "queue", "clsact", "filter"}

    def refuse() -> None:
        raise OSError(errno.EPERM, "not here")

    # nor are there any after a host, or this machine, was asked whether it has ifb
    monkeypatch.setattr(agent, "FrameLoss", refuse)
    for ask in (agent.probe, _ifb):
        for file in tools.iterdir():
            file.unlink()
        ask()
        log = (tools / "log").read_text().splitlines()
        assert log.index("modprobe ifb numifbs=0") < log.index("ip link add ifb0 type ifb")
        assert "ifb1" not in _left(tools)


class Loss:
    """In place of what loses frames; it attaches to what the tools show."""

    def __init__(self, state: Path, places: Sequence[int]) -> None:
        self.state = state
        self.places = places

    def attach(self, _interface: str, parent: int) -> None:
        if parent in self.places:
            name = "filter" if parent == agent.INGRESS else "egress"
            line = f"filter protocol all pref 49152 bpf chain 0 handle 0x1 {agent.LOSS_NAME} direct-action not_in_hw \n"
            (self.state / name).write_text(line, encoding="utf-8")

    def close(self) -> None:
        pass


LOSE = [{"kind": "clsact", "name": "link0", "value": ["loss"]}]


def test_losses_of_one_direction_alone_are_noticed_and_made_whole(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "FrameLoss", lambda: Loss(tools, (agent.INGRESS,)))
    with pytest.raises(agent.AgentError, match=r"clsact link0 is '\(incomplete\)' after it was set to \['loss'\]"):
        _reaping(tmp_path, lambda settings: settings.apply(LOSE))
    monkeypatch.setattr(agent, "FrameLoss", lambda: Loss(tools, (agent.INGRESS, agent.EGRESS)))
    (done,) = _reaping(tmp_path, lambda settings: settings.apply(LOSE))
    assert (done["before"], done["after"]) == ("(incomplete)", "loss")
    for name in ("filter", "egress"):
        (tools / name).unlink()
        (done,) = _reaping(tmp_path, lambda settings: settings.apply(LOSE))
        assert (done["before"], done["after"]) == ("(incomplete)", "loss")
        assert _left(tools) == {"clsact", "filter", "egress"}
    (tools / "egress").unlink()
    assert _reaping(tmp_path, lambda settings: settings.restore()) == (["clsact link0"], [])
    assert _left(tools) == set()


def test_a_kernel_without_ifb_and_filters_of_somebody_else(tools: Path, tmp_path: Path) -> None:
    (tools / "without").touch()
    with pytest.raises(agent.AgentError, match=r"ip link add ifb-link0 type ifb: Error: Unknown device type\."):
        _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    _reaping(tmp_path, lambda settings: settings.restore())
    assert _left(tools) == {"without"}
    (tools / "without").unlink()
    (tools / "clsact").touch()
    (tools / "filter").write_text("filter protocol all pref 1 flower chain 0 handle 0x1 \n")
    reason = r"clsact link0: somebody has set it, .*remove it with: tc qdisc del dev link0 clsact"
    with pytest.raises(agent.AgentError, match=reason):
        _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    assert _left(tools) == {"clsact", "filter"}


def test_the_discipline_that_clsact_has_replaced_is_not_removed_as_clsact(tools: Path, tmp_path: Path) -> None:
    (tools / "ingress").touch()
    reason = r"clsact link0: somebody has set ingress, .*remove it with: tc qdisc del dev link0 ingress$"
    with pytest.raises(agent.AgentError, match=reason):
        _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    assert _left(tools) == {"ingress"}
    # nor where it has taken the place of one of ours
    (tools / "ingress").unlink()
    _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    (tools / "clsact").unlink()
    (tools / "ingress").touch()
    with pytest.raises(agent.AgentError, match=reason):
        _reaping(tmp_path, lambda settings: settings.apply(QUEUE))
    assert "qdisc del dev link0" not in (tools / "log").read_text()


def test_what_an_agent_writes_is_on_disk_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        calls.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        calls.append(f"-> {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    agent.write_whole(tmp_path / "journal", "1")
    assert calls == ["journal.part", "-> journal", tmp_path.name]


def test_a_damaged_journal_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "journal.json").write_text("{")
    with pytest.raises(agent.AgentError, match=r"journal\.json: is damaged"):
        _settings(tmp_path).load()


# ---- what is deployed


def test_the_digest_of_a_tree_is_that_of_names_contents_links_and_permissions(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "client").write_text("x")
    (tree / "link").symlink_to("bin/client")
    seen = {agent.tree_digest(tree)}
    (tree / "bin" / "client").chmod(0o755)
    seen.add(agent.tree_digest(tree))
    (tree / "bin" / "client").write_text("y")
    seen.add(agent.tree_digest(tree))
    (tree / "link").unlink()
    (tree / "link").symlink_to("bin")
    seen.add(agent.tree_digest(tree))
    (tree / "bin" / "client").rename(tree / "bin" / "server")
    seen.add(agent.tree_digest(tree))
    assert len(seen) == 5
    assert agent.tree_digest(tree) in seen
    (tree / "bin" / "venv").mkdir()
    (tree / "bin" / "venv" / "python").symlink_to(sys.executable)
    assert agent.tree_digest(tree) not in seen
    assert agent.tree_digest(tree, {"venv"}) in seen


def test_the_c_library_that_a_program_needs_is_read_from_it(tmp_path: Path) -> None:
    content = Path(sys.executable).resolve().read_bytes()
    needed = needed_glibc(content)
    names = {match.group(1).decode() for match in re.finditer(rb"GLIBC_(2\.\d+(?:\.\d+)?)\0", content)}
    assert needed == max(tuple(map(int, name.split("."))) for name in names)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "server").write_bytes(content)
    assert libc_problem(tmp_path, f"glibc {'.'.join(map(str, needed or ()))}") is None
    assert re.fullmatch(r"server needs glibc 2\.\d+, the host has 2\.1", libc_problem(tmp_path, "glibc 2.1") or "")
    assert "needs the GNU C library" in (libc_problem(tmp_path, "") or "")


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + bytes(100)])
def test_other_files_need_no_c_library(content: bytes) -> None:
    assert needed_glibc(content) is None


# ---- the protocol


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[[], Client]]:
    """Starts agents of one host."""
    directory = tmp_path / "host"
    directory.mkdir()
    started: list[Client] = []

    def start() -> Client:
        started.append(Client(directory))
        return started[-1]

    yield start
    for client in started:
        client.end()


def _is_alive(pid: int) -> bool:
    return agent.start_ticks(pid) is not None


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _await_number(file: Path) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(file.read_text())


def test_programs_run_to_their_end(host: Callable[[], Client]) -> None:
    client = host()
    done = client.ask("run", argv=["sh", "-c", "cat; echo oops >&2; exit 3"], timeout=10, text="some text")
    assert done == {"returncode": 3, "stdout": "some text", "stderr": "oops\n"}
    with pytest.raises(agent.AgentError, match=r"sleep 1000: still running after 0.1 s"):
        client.ask("run", argv=["sleep", "1000"], timeout=0.1)
    with pytest.raises(agent.AgentError, match="cannot run no-such-program: no such program"):
        client.ask("run", argv=["no-such-program"], timeout=1)
    with pytest.raises(agent.AgentError, match="no such operation"):
        client.ask("dance")


def test_what_programs_can_be_held_to_is_tried(host: Callable[[], Client]) -> None:
    own = sorted(os.sched_getaffinity(0))
    client = host()
    assert client.ask("held_to", cpus=own) == own
    assert client.ask("held_to", cpus=[*own[:1], 4000]) == own[:1]
    assert client.ask("held_to", cpus=[4000]) == []
    assert sorted(os.sched_getaffinity(client.popen.pid)) == own


def test_who_has_a_host_is_told_without_a_change(host: Callable[[], Client], tmp_path: Path) -> None:
    first, second = host(), host()
    before = sorted((tmp_path / "host").iterdir())
    assert second.ask("holder") is None
    assert sorted((tmp_path / "host").iterdir()) == before
    assert first.ask("acquire", holder=holder("a")) is None
    assert second.ask("holder")["who"] == "controller of a"
    first.end()
    assert second.ask("holder") is None
    assert second.ask("acquire", holder=holder("b")) is None


def test_answers_come_as_they_are_ready(host: Callable[[], Client]) -> None:
    client = host()
    client.send("run", argv=["sleep", "0.5"], timeout=10)
    client.send("ping")
    assert client.receive() > 0
    assert client.receive()["returncode"] == 0


def test_a_program_is_waited_for_and_accounted(host: Callable[[], Client], tmp_path: Path) -> None:
    client = taken(host)
    script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo $ADDED; exit 4"
    pid = spawn(client, tmp_path, script, env={"ADDED": "this"})
    ended = client.ask("wait", pid=pid, timeout=PATIENCE_S)
    assert ended["returncode"] == 4
    assert ended["user_s"] > 0
    assert (tmp_path / "out").read_text() == "this\n"
    assert client.ask("wait", pid=pid, timeout=0) == ended
    assert client.ask("run_delay", pid=pid) is None


def test_a_program_can_be_held_to_processors(host: Callable[[], Client], tmp_path: Path) -> None:
    client = taken(host)
    cpu = min(os.sched_getaffinity(0))
    pid = spawn(client, tmp_path, "grep Cpus_allowed_list /proc/self/status", cpus=[cpu])
    assert client.ask("wait", pid=pid, timeout=PATIENCE_S)["returncode"] == 0
    assert (tmp_path / "out").read_text().split()[1] == str(cpu)


def test_a_line_is_awaited_on_the_host(host: Callable[[], Client], tmp_path: Path) -> None:
    client = taken(host)
    pid = spawn(client, tmp_path, "sleep 0.2; echo ready; exec sleep 1000")
    asked = {"path": str(tmp_path / "out"), "text": "ready", "pid": pid}
    assert client.ask("await_text", timeout=PATIENCE_S, **asked) == "found"
    assert client.ask("await_text", timeout=0.05, **{**asked, "text": "never"}) == "late"
    client.ask("signal", pid=pid, number=int(signal.SIGTERM))
    assert client.ask("wait", pid=pid, timeout=PATIENCE_S)["returncode"] == -signal.SIGTERM
    assert client.ask("await_text", timeout=PATIENCE_S, **{**asked, "text": "never"}) == "ended"


def test_the_end_of_a_program_ends_its_group(host: Callable[[], Client], tmp_path: Path) -> None:
    client = taken(host)
    pid = spawn(client, tmp_path, "sleep 1000 & echo $! ")
    client.ask("wait", pid=pid, timeout=PATIENCE_S)
    _await_end(_await_number(tmp_path / "out"))


@pytest.mark.parametrize("how", ["end of the connection", signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_agent_ends_its_programs(
    host: Callable[[], Client], tmp_path: Path, how: str | signal.Signals
) -> None:
    client = taken(host)
    # the second is in a session of its own and has no parent left
    pid = spawn(client, tmp_path, "setsid sh -c 'echo $$; exec sleep 1000' & exec sleep 1000")
    orphan = _await_number(tmp_path / "out")
    if isinstance(how, str):
        client.end()
    else:
        client.popen.send_signal(how)
        client.popen.wait(PATIENCE_S)
    _await_end(pid)
    if how == signal.SIGKILL:  # nobody was left to look for it
        assert _is_alive(orphan)
        taken(host)
    _await_end(orphan)


def test_a_host_is_one_controllers_at_a_time(host: Callable[[], Client]) -> None:
    first = taken(host, "a")
    second = host()
    assert second.ask("acquire", holder=holder("b"))["who"] == "controller of a"
    with pytest.raises(agent.AgentError, match="has to be acquired first"):
        second.ask("recover")
    first.end()
    assert second.ask("acquire", holder=holder("b")) is None


def test_an_agent_whose_controller_is_gone_is_replaced(host: Callable[[], Client], tmp_path: Path) -> None:
    first = taken(host, "a")
    pid = spawn(first, tmp_path, "exec sleep 1000")
    second = host()
    found = second.ask("acquire", holder=holder("b"))
    assert second.ask("acquire", holder=holder("b"), replace=found) is None
    assert first.popen.wait(PATIENCE_S) == 0
    assert not _is_alive(pid)


def test_files_outside_of_its_directory_are_not_removed(host: Callable[[], Client], tmp_path: Path) -> None:
    client = taken(host)
    (tmp_path / "mine").mkdir()
    for path in (tmp_path / "mine", tmp_path / "host", tmp_path / "host" / ".." / "mine"):
        with pytest.raises(agent.AgentError, match="is not below"):
            client.ask("remove", path=str(path))
    assert (tmp_path / "mine").is_dir()


def test_a_tree_that_arrives_damaged_is_refused_and_copies_can_be_changed(
    host: Callable[[], Client], tmp_path: Path
) -> None:
    client = taken(host)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("content")
    digest = agent.tree_digest(tree)
    assert client.ask("has", digest=digest) is False
    client.ask("store_begin", digest=digest, size=7)
    client.ask("store_entry", b"con", digest=digest, name="file", kind="file")
    client.ask("store_entry", b"tenT", digest=digest, name="file", kind="file")
    with pytest.raises(agent.AgentError, match="what arrived has the digest"):
        client.ask("store_end", digest=digest)
    client.ask("store_begin", digest=digest, size=7)
    client.ask("store_entry", b"content", digest=digest, name="file", kind="file")
    assert Path(client.ask("store_end", digest=digest), "file").read_text() == "content"
    assert client.ask("has", digest=digest) is True
    copy = Path(client.ask("working_copy", digest=digest))
    (copy / "made").mkdir()
    assert [file.name for file in sorted(Path(client.ask("working_copy", digest=digest)).iterdir())] == ["file", "made"]
    assert client.ask("has", digest=digest) is True
    (tmp_path / "host" / "store" / digest / "file").write_text("tampered")
    assert client.ask("has", digest=digest) is False


# Reading a tree waits at a pipe.
HELD = """
_digest_of_tree = tree_digest


def tree_digest(*arguments):
    Path({pipe!r}).read_bytes()
    return _digest_of_tree(*arguments)


"""
HELD_PROGRAM = """#!/bin/sh
cat {pipe} > /dev/null
exec {program} "$@"
"""


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, dict[str, Path]]]:
    """An agent whose reading of trees, and the programs cp and sync, wait at pipes of these names until they end."""
    programs = tmp_path / "programs"
    programs.mkdir()
    pipes = {name: tmp_path / f"{name}.pipe" for name in ("digest", "cp", "sync")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    for name in ("cp", "sync"):
        text = HELD_PROGRAM.format(pipe=pipes[name], program=shutil.which(name))
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    text, main = Path(agent.__file__).read_text(encoding="utf-8"), 'if __name__ == "__main__":'
    assert text.count(main) == 1
    program = tmp_path / "agent.py"
    program.write_text(text.replace(main, HELD.format(pipe=str(pipes["digest"])) + main), encoding="utf-8")
    (tmp_path / "host").mkdir()
    client = Client(tmp_path / "host", str(program))
    yield client, pipes
    client.end()


def _answered_while(client: Client, pipe: Path) -> None:
    """Another request is answered once something waits at a pipe, before that goes on."""
    deadline = time.monotonic() + PATIENCE_S
    held = None
    while held is None and time.monotonic() < deadline:
        try:
            held = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads it yet
                raise
            time.sleep(0.005)
    assert held is not None, f"nothing waits at {pipe.name}"
    try:
        client.send("monotonic")
        assert select.select([client.popen.stdout], [], [], PATIENCE_S)[0], "no answer meanwhile"
        assert isinstance(client.receive(), int)
    finally:
        os.close(held)


def test_the_controller_is_answered_while_much_is_read_or_copied(
    holding: tuple[Client, dict[str, Path]], tmp_path: Path
) -> None:
    client, pipes = holding
    assert client.ask("acquire", holder=holder("a")) is None
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("content")
    digest = agent.tree_digest(tree)
    client.ask("store_begin", digest=digest, size=7)
    client.ask("store_entry", b"content", digest=digest, name="file", kind="file")
    client.send("store_end", digest=digest)
    _answered_while(client, pipes["digest"])
    _answered_while(client, pipes["sync"])
    stored = Path(client.receive())
    client.send("has", digest=digest)
    _answered_while(client, pipes["digest"])
    assert client.receive() is True
    client.send("working_copy", digest=digest)
    _answered_while(client, pipes["cp"])
    _answered_while(client, pipes["sync"])
    assert Path(client.receive(), "file").read_text() == Path(stored, "file").read_text() == "content"


def test_a_tree_that_does_not_fit_is_refused(host: Callable[[], Client]) -> None:
    client = taken(host)
    with pytest.raises(agent.AgentError, match="are needed; make room"):
        client.ask("store_begin", digest="0" * 64, size=2**60)


def test_what_is_changed_can_be_put_back_by_hand(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    directory = tmp_path / "host"
    directory.mkdir()
    change = {"kind": "hosts", "name": str(hosts), "value": "10.0.0.1 server"}
    asyncio.run(_settings(directory).apply([change]))
    argv = [sys.executable, "-I", agent.__file__, "restore", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "0 programs ended, 1 settings restored\n"
    assert hosts.read_text() == "127.0.0.1 localhost\n"
