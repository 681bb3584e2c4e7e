"""The client of TRex, against a server that speaks its protocol."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import fakeproject
import wording
from clone import ROOT
from faketestbed import FakeTestbed
from quicbed.config.model import Generator, Link, Load, Project
from quicbed.measure import generator, trex
from quicbed.measure.attempt import MeasureError
from quicbed.testbed import Feature
from quicbed.wire import proof
from trexserver import Clock, TrexServer

FRAME = trex.udp_frame(60, trex.Address("198.18.0.1", 1024), trex.Address("198.18.0.2", 9))
STREAMS = [trex.Stream(FRAME, 1)]


@pytest.fixture
def server() -> Iterator[TrexServer]:
    with TrexServer() as started:
        yield started


def client(server: TrexServer, **limits: float) -> trex.Server:
    return trex.Server("127.0.0.1", server.port, **({"timeout_s": 0.3, "patience_s": 1} | limits))


def port_of(server: TrexServer, number: int = 0, **options: Any) -> trex.Port:
    return trex.Port(client(server), number, **options)


# ---- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [42, 60, 1514])
def test_a_frame_is_ethernet_ipv4_and_udp(size: int) -> None:
    source = trex.Address("198.18.0.1", 1024, "02:00:00:00:00:01")
    destination = trex.Address("198.18.0.2", 9, "02:00:00:00:00:02")
    frame = trex.udp_frame(size, source, destination)
    assert len(frame) == size
    assert frame[:14].hex() == "0200000000020200000000010800"
    header = struct.unpack("!10H", frame[14:34])
    total = sum(header)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF  # RFC 1071: a header with its checksum sums up to all ones
    assert (header[0], header[1]) == (0x4500, size - 14)
    assert [str(ipaddress.IPv4Address(frame[i : i + 4])) for i in (26, 30)] == ["198.18.0.1", "198.18.0.2"]
    assert struct.unpack("!HHHH", frame[34:42]) == (1024, 9, size - 34, 0)


def test_a_frame_has_room_for_its_headers() -> None:
    with pytest.raises(ValueError, match="no room"):
        trex.udp_frame(41, trex.Address("198.18.0.1", 1), trex.Address("198.18.0.2", 9))


# ---- traffic ---------------------------------------------------------------------------------------------------------


def test_traffic_is_started_counted_and_stopped(server: TrexServer) -> None:
    port = port_of(server)
    port.start(STREAMS, "pps", 5000)
    port.check_sending()
    state = server.ports[0]
    assert (state.owner, state.state, state.mul) == ("quicbed", "TX", {"type": "pps", "op": "abs", "value": 5000.0})
    assert base64.b64decode(state.streams[1]["packet"]["binary"]) == FRAME
    before = port.counters()
    time.sleep(0.05)
    after = port.counters()
    sent = after.sent_packets - before.sent_packets
    assert sent > 0
    assert after.sent_bytes - before.sent_bytes == pytest.approx(64 * sent, abs=64)
    port.stop()
    assert (state.owner, state.state, state.streams) == ("", "IDLE", {})
    port.stop()
    assert server.methods.count("release") == 1


@pytest.mark.parametrize(("mac", "flags"), [(None, 0), ("02:00:00:00:00:01", 3)])
def test_addresses_of_a_packet_are_used_where_they_are_given(server: TrexServer, mac: str | None, flags: int) -> None:
    frame = trex.udp_frame(60, trex.Address("198.18.0.1", 9, mac), trex.Address("198.18.0.2", 9, mac))
    port_of(server).start([trex.Stream(frame, 1)], "pps", 1)
    assert server.ports[0].streams[1]["flags"] == flags


def test_what_was_left_on_a_port_is_stopped_and_removed(server: TrexServer) -> None:
    port = port_of(server)
    port.start([trex.Stream(FRAME, 1), trex.Stream(FRAME, 2)], "pps", 10)
    port.start(STREAMS, "bps", 1e6)
    assert (len(server.ports[0].streams), server.ports[0].mul["type"]) == (1, "bps")


def test_a_rate_above_that_of_the_line_is_refused(server: TrexServer) -> None:
    with pytest.raises(
        trex.TrexError, match=r"start_traffic: Expected L1 B/W: '131.25 Gbps' exceeds port line rate: '10 Gbps'"
    ):
        port_of(server).start(STREAMS, "bps", 1e11)


def test_a_port_that_is_not_there_is_named(server: TrexServer) -> None:
    # the server says its numbers as bytes
    with pytest.raises(trex.TrexError, match=r"invalid port id - should be:$"):
        port_of(server, 7).start(STREAMS, "pps", 1)


# ---- versions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(5, 0), (5, 9)])
def test_any_server_of_the_same_major_version_will_do(version: tuple[int, int]) -> None:
    with TrexServer(version=version) as server:
        assert client(server).version() == "v3.08"


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"version": (4, 6)}, set()),
        ({"version": (6, 0)}, set()),
        ({"name": "ASTF"}, set()),
        ({}, {"api_sync_v2"}),
    ],
    ids=wording.name,
)
def test_a_server_that_speaks_something_else_is_refused_in_one_line(
    options: dict[str, Any], missing: set[str], snapshot: SnapshotAssertion
) -> None:
    with TrexServer(**options) as server:
        server.without = missing
        with pytest.raises(trex.TrexError) as error:
            port_of(server).start(STREAMS, "pps", 1)
        assert re.sub(r":\d+", ":<port>", wording.one_line(error.value)) == snapshot
        assert set(server.methods) == {"api_sync_v2"}


# ---- ownership -------------------------------------------------------------------------------------------------------


def test_a_port_of_somebody_else_is_taken_by_force_only(server: TrexServer) -> None:
    server.take(0, "somebody")
    with pytest.raises(trex.TrexError, match="already taken by 'somebody'; wait until it is released, or set `force"):
        port_of(server).start(STREAMS, "pps", 1)
    assert "remove_all_streams" not in server.methods
    port = port_of(server, force=True)
    port.start(STREAMS, "pps", 1)
    port.check_sending()


def test_a_port_that_is_ours_is_acquired_again(server: TrexServer) -> None:
    port = port_of(server)
    for _ in range(2):
        port.start(STREAMS, "pps", 1)
        port.check_sending()


def test_a_port_that_was_taken_from_us_is_told(server: TrexServer) -> None:
    port = port_of(server)
    port.start(STREAMS, "pps", 1)
    server.take(0, "somebody")
    with pytest.raises(trex.TrexError, match="is owned by somebody, no longer by us"):
        port.check_sending()
    # as long as they send
    for _ in range(2):
        with pytest.raises(trex.TrexError, match="already taken by 'somebody'; wait until it is released"):
            port.stop()
    assert server.ports[0].state == "TX"
    server.ports[0].sending_since = None
    port.stop()
    assert server.ports[0].owner == "somebody"


def test_a_port_that_was_taken_from_us_is_stopped_by_force_only(server: TrexServer) -> None:
    port = port_of(server, force=True)
    port.start(STREAMS, "pps", 1)
    server.take(0, "somebody")
    port.stop()
    assert (server.ports[0].state, server.ports[0].owner) == ("IDLE", "")


def test_traffic_that_ended_is_told(server: TrexServer) -> None:
    port = port_of(server)
    port.start(STREAMS, "pps", 1)
    server.ports[0].sending_since = None
    with pytest.raises(trex.TrexError, match="is STREAMS: its traffic has ended"):
        port.check_sending()


# ---- work in progress ------------------------------------------------------------------------------------------------


def test_what_is_done_in_the_background_is_waited_for(server: TrexServer) -> None:
    server.background["acquire"] = 2
    server.busy["get_port_status"] = 2
    port_of(server).start(STREAMS, "pps", 1)
    assert server.methods.count("get_async_results") == 3
    assert server.ports[0].state == "TX"


def test_what_is_not_done_in_time_is_cancelled(server: TrexServer) -> None:
    server.background["acquire"] = 1000
    with pytest.raises(trex.TrexError, match=r"acquire: not done after 0\.2 s, cancelled"):
        trex.Port(client(server, patience_s=0.2), 0).start(STREAMS, "pps", 1)
    assert server.cancelled == [1]


def test_a_server_that_stays_busy_is_told(server: TrexServer) -> None:
    server.busy["acquire"] = 1000
    with pytest.raises(trex.TrexError, match=r"acquire: still busy after 0\.2 s"):
        trex.Port(client(server, patience_s=0.2), 0).start(STREAMS, "pps", 1)


# ---- servers that go -------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_told() -> None:
    with TrexServer() as server:
        pass
    with pytest.raises(trex.NoAnswerError, match="check that TRex runs there"):
        trex.Port(client(server, timeout_s=0.05), 0).start(STREAMS, "pps", 1)


@pytest.mark.parametrize("method", ["acquire", "get_port_status", "add_stream", "start_traffic"])
def test_an_answer_that_is_lost_is_made_up_for(server: TrexServer, method: str) -> None:
    server.swallow[method] = 1
    port = port_of(server)
    port.start(STREAMS, "pps", 1)
    assert (server.ports[0].state, list(server.ports[0].streams)) == ("TX", [1])


@pytest.mark.parametrize("method", ["acquire", "stop_traffic", "release"])
def test_a_lost_answer_does_not_keep_traffic_from_being_stopped(server: TrexServer, method: str) -> None:
    port = port_of(server)
    port.start(STREAMS, "pps", 1)
    server.swallow[method] = 1
    port.stop()
    assert (server.ports[0].state, server.ports[0].owner) == ("IDLE", "")


def test_a_server_that_was_started_anew_is_used_again(server: TrexServer) -> None:
    port = port_of(server)
    port.start(STREAMS, "pps", 1)
    server.restart()
    with pytest.raises(trex.TrexError, match="is owned by nobody"):
        port.check_sending()
    port.stop()
    assert "release" not in server.methods
    port.start(STREAMS, "pps", 1)
    port.check_sending()


def test_a_server_that_does_not_answer_may_go_on_sending(server: TrexServer) -> None:
    port = trex.Port(client(server, timeout_s=0.1), 0)
    port.start(STREAMS, "pps", 1)
    server.swallow["get_port_status"] = 3  # as often as it is tried
    with pytest.raises(trex.NoAnswerError):
        port.stop()
    port.stop()
    assert (server.ports[0].state, server.ports[0].owner) == ("IDLE", "")


@pytest.mark.parametrize("answer", [b"220 mail ready", b"[]", b'{"jsonrpc": "2.0", "id": "another", "result": {}}'])
def test_what_is_no_trex_is_told(server: TrexServer, answer: bytes) -> None:
    server.raw_answer = answer
    with pytest.raises(trex.TrexError, match=r"the answer is no JSON-RPC 2\.0; is this the port of TRex"):
        client(server).version()


# ---- the generator ---------------------------------------------------------------------------------------------------

LINK = Link(mode="wire", rate_mbit=None)


def trex_generator(server: TrexServer, testbed: str = "lab", **settings: Any) -> generator.Generator:
    given = {"kind": "trex", "host": "127.0.0.1", "rpc_port": server.port, "timeout_s": 0.3} | settings
    place = FakeTestbed()
    place.name = testbed
    source = generator.of(Generator.model_validate(given), place)
    assert source is not None
    return source


@pytest.mark.parametrize(
    ("load", "mul"),
    [
        ({"percent": 50}, ("percentage", 50)),
        ({"bps": 2e9}, ("bps", 2e9)),
        ({"pps": 1e5, "frames": "imix"}, ("pps", 1e5)),
    ],
)
def test_a_load_is_what_trex_sends(server: TrexServer, load: dict[str, Any], mul: tuple[str, float]) -> None:
    source = trex_generator(server, receiver=1)
    assert source.problem(Load.model_validate(load), LINK) is None
    source.start(Load.model_validate(load), LINK)
    state = server.ports[0]
    assert (state.mul["type"], state.mul["value"]) == mul
    before = source.sample()
    time.sleep(0.1)
    rates = generator.achieved(before, source.sample())
    assert set(rates) == {"background_sent_mbps", "background_received_mbps"}
    assert min(rates.values()) > 0
    source.stop()
    assert state.owner == ""
    assert source.facts()["version"] == "v3.08"


def test_rates_are_those_between_two_samples() -> None:
    before = generator.Sample(generator.Count(10.0, 100, 100_000), generator.Count(20.0, 90, 90_000))
    after = generator.Sample(generator.Count(12.0, 300, 350_000), generator.Count(21.0, 190, 190_000))
    assert generator.achieved(before, after) == {"background_sent_mbps": 1.0, "background_received_mbps": 0.8}
    unrefreshed = generator.Sample(before.sent, None)
    assert generator.achieved(before, unrefreshed) == {}


def test_traffic_that_a_crash_left_is_ours(server: TrexServer) -> None:
    trex_generator(server).start(Load.model_validate({"percent": 10}), LINK)
    again = trex_generator(server)
    again.start(Load.model_validate({"percent": 20}), LINK)
    assert server.ports[0].mul["value"] == 20
    again.stop()
    assert server.ports[0].state == "IDLE"


def test_traffic_that_a_crash_left_is_stopped_before_there_is_any_of_ours(server: TrexServer) -> None:
    trex_generator(server).start(Load.model_validate({"percent": 10}), LINK)
    again = trex_generator(server)
    again.stop()
    assert (server.ports[0].state, server.ports[0].owner) == ("IDLE", "")


def test_traffic_of_another_testbed_is_not_ours(server: TrexServer) -> None:
    trex_generator(server).start(Load.model_validate({"percent": 10}), LINK)
    other = trex_generator(server, "other")
    with pytest.raises(trex.TrexError, match=r"already taken by 'quicbed-[0-9a-f]{8}'; wait until it is released"):
        other.start(Load.model_validate({"percent": 10}), LINK)
    with pytest.raises(trex.TrexError, match="already taken by"):
        other.stop()


def test_imix_is_three_streams_in_proportion(server: TrexServer) -> None:
    trex_generator(server).start(Load.model_validate({"percent": 10, "frames": "imix"}), LINK)
    shown = [
        (len(base64.b64decode(stream["packet"]["binary"])) + 4, stream["mode"]["rate"]["value"])
        for stream in server.ports[0].streams.values()
    ]
    assert shown == [(64, 7), (594, 4), (1518, 1)]


def test_frames_that_the_link_does_not_take_are_no_load(server: TrexServer) -> None:
    large = Load.model_validate({"percent": 10, "frames": [{"bytes": 4000}]})
    assert "do not fit an MTU of 1500" in (trex_generator(server).problem(large, LINK) or "")


def test_a_queue_that_the_traffic_does_not_pass_is_not_what_it_competes_for(server: TrexServer) -> None:
    limited = LINK.model_copy(update={"rate_mbit": 200})
    said = trex_generator(server).problem(Load.model_validate({"percent": 50}), limited)
    assert said is not None
    assert said.endswith("leave out link.rate_mbit")
    # one experiment for either kind of generator
    experiments = Project(ROOT).experiments
    assert experiments["background-load"].link.rate_mbit is not None
    for variant in experiments["background-line"].variants:
        if variant.background is not None:
            assert trex_generator(server).problem(variant.background, experiments["background-line"].link) is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(generator, "time", made)
    return made


def test_rates_of_short_runs_are_those_between_two_samples(clock: Clock) -> None:
    with TrexServer(clock=clock.monotonic) as server:
        source = trex_generator(server, receiver=1)
        source.start(Load.model_validate({"bps": 8e9}), LINK)
        assert source.asked_mbps() == pytest.approx(8000)
        before = source.sample()
        clock.sleep(0.1)
        begin_s = clock.now_s
        rates = generator.achieved(before, source.sample())
        assert rates == pytest.approx(dict.fromkeys(rates, 8000), rel=0.01)
        assert clock.now_s - begin_s == pytest.approx(0.4)
        # a receiver that nothing gets to
        server.lost_share = 1
        before = source.sample()
        rates = generator.achieved(before, source.sample())
        assert rates["background_received_mbps"] == 0


def test_all_of_what_was_sent_alone_is_counted(clock: Clock) -> None:
    with TrexServer(clock=clock.monotonic) as server:
        server.lost_share = 0.25
        source = trex_generator(server, receiver=1)
        assert isinstance(source, generator.Trex)
        trial = source.trial(Load.model_validate({"pps": 1000}), LINK, 2)
        assert trial.sent == int(server.ports[0].sent[0]) >= 2000
        assert trial.received == int(0.75 * server.ports[0].sent[0])
        assert (server.ports[0].state, server.ports[0].owner) == ("IDLE", "")


# ---- the driver ------------------------------------------------------------------------------------------------------

EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: wire}
libraries: [quinn]
variants:
  - {label: none, cipher: aes-128-gcm}
  - {label: half, cipher: aes-128-gcm, background: {percent: 50}}
baseline: none
aa: false
scales:
  tiny: {bytes: 1000, blocks: 2, timeout_s: 1}
"""


class Disturbed(FakeTestbed):
    """Something happens to TRex during the first runs beside its traffic; runs have whether there was any."""

    def __init__(self, server: TrexServer, what: Callable[[], object], times: int = 1) -> None:
        super().__init__()
        self.trex = server
        self.what = what
        self.times = times

    def counters(self) -> dict[str, float]:
        sending = self.trex.ports[0].state == "TX"
        if sending and self.times:
            self.times -= 1
            self.what()
        return super().counters() | {"sending": float(sending)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    class Proven:
        def model_dump(self, mode: str) -> dict[str, str]:
            return {"mode": mode}

    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    return fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)


def beside(
    project: Project, server: TrexServer, *, retries: int = 1, force: bool = False, timeout_s: float = 0.3
) -> Project:
    """The project on a testbed whose generator is this server."""
    described = {
        "kind": "local",
        "generator": {
            "kind": "trex",
            "host": "127.0.0.1",
            "rpc_port": server.port,
            "timeout_s": timeout_s,
            "force": force,
        },
    }
    (project.root / "config" / "testbeds" / "local.yaml").write_text(json.dumps(described), encoding="utf-8")
    return Project(project.root, {"gate": {"retries": retries}})


def check_traffic(project: Project) -> None:
    """There was traffic at the beginning of runs that compete with it, and of no other."""
    for entry in fakeproject.runs(project) + fakeproject.runs(project, "test/*/warm-up"):
        assert entry["host"]["before"]["sending"] == ("background" in entry["host"]), entry["cell"]["label"]


def test_a_trex_that_was_restarted_fails_a_run_and_sends_again(project: Project, server: TrexServer) -> None:
    project = beside(project, server)
    fakeproject.run(project, Disturbed(server, server.restart))
    failed = [entry["reason"] for entry in fakeproject.runs(project) if entry["status"] == "failed"]
    assert len(failed) == 1
    assert failed[0].endswith("port 0: is owned by nobody, no longer by us")
    assert sum(entry["status"] == "ok" for entry in fakeproject.runs(project)) == 4
    check_traffic(project)
    assert server.ports[0].owner == ""


def test_a_port_that_was_taken_is_taken_back_by_force_only(project: Project, server: TrexServer) -> None:
    def take() -> None:
        server.take(0, "somebody")

    with pytest.raises(MeasureError, match="already taken by 'somebody'; wait until it is released, or set `force"):
        fakeproject.run(beside(project, server), Disturbed(server, take))
    server.restart()
    project = beside(project, server, force=True)
    fakeproject.run(project, Disturbed(server, take))
    failed = [entry["reason"] for entry in fakeproject.runs(project) if entry["status"] == "failed"]
    assert len(failed) == 2
    assert all("is owned by somebody, no longer by us" in reason for reason in failed)
    check_traffic(project)


def test_traffic_that_is_not_known_to_go_on_is_stopped(project: Project, server: TrexServer) -> None:
    def silence() -> None:
        server.swallow["get_port_status"] = 3  # as often as it is asked

    project = beside(project, server, retries=0, timeout_s=0.5)
    with pytest.raises(MeasureError, match=r"quinn-half: no run succeeded, the last failed: .*no answer within 0\.5 s"):
        fakeproject.run(project, Disturbed(server, silence, times=100))
    labels = {entry["cell"]["id"]: entry["cell"]["label"] for entry in fakeproject.runs(project)}
    assert ["half", "none"] in [[labels[cell] for cell in order] for order in fakeproject.orders(project)]
    check_traffic(project)


def test_traffic_that_a_crashed_controller_left_is_beside_no_run(project: Project, server: TrexServer) -> None:
    project = beside(project, server)
    settings = project.testbed.generator
    assert settings is not None
    left = generator.of(settings, FakeTestbed())
    assert left is not None
    left.start(Load.model_validate({"percent": 10}), LINK)
    fakeproject.run(project, Disturbed(server, lambda: None, times=0))
    check_traffic(project)


# ---- what `quicbed doctor` says --------------------------------------------------------------------------------------


def inspected(server: TrexServer, **settings: Any) -> dict[str, Feature]:
    given = {"kind": "trex", "host": "127.0.0.1", "rpc_port": server.port, "receiver": 1, "timeout_s": 0.3} | settings
    return generator.inspect(Generator.model_validate(given), "lab")


def test_the_server_and_its_ports_are_told_in_a_line_each(server: TrexServer) -> None:
    free = Feature(True, "IDLE, link up, 10 Gbit/s")
    name = f"TRex at 127.0.0.1:{server.port}, version v3.08"
    assert inspected(server) == {"server": Feature(True, name), "port 0": free, "port 1": free}
    # nobody else's port is acquired or touched
    assert set(server.methods) == {"api_sync_v2", "get_version", "get_port_status"}


def test_a_port_that_cannot_be_had_says_why(server: TrexServer) -> None:
    server.take(0, "bob")
    server.ports[1].link_up = False
    rows = inspected(server)
    assert not rows["port 0"].available
    assert rows["port 0"].reason.startswith("is owned by bob; wait until it is released, or set `force: true`")
    assert rows["port 1"] == Feature(False, "its link is down; check the cable and the interface at its other end")
    assert inspected(server, force=True)["port 0"] == Feature(True, "IDLE, link up, 10 Gbit/s, owned by bob")
    # what a crash of ours left is ours
    trex_generator(server, force=True).start(Load.model_validate({"percent": 10}), LINK)
    assert inspected(server)["port 0"].reason.startswith("TX, link up, 10 Gbit/s, owned by quicbed-")
    # the port that only counts may be anybody's
    server.ports[1].link_up = True
    server.take(1, "bob")
    assert inspected(server)["port 1"].available
    rows = inspected(server, port=7)
    assert "invalid port id - should be" in rows["port 7"].reason


def test_a_server_that_cannot_be_used_is_one_line() -> None:
    with TrexServer() as server:
        server.without.add("api_sync_v2")
        assert list(inspected(server)) == ["server"]
        assert "older than version 2.88" in inspected(server)["server"].reason
    rows = inspected(server)
    assert not rows["server"].available
    assert "check that TRex runs there" in rows["server"].reason
