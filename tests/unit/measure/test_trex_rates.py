"""What TRex sends is what was asked for, or the run has failed; against our own server or a real one.

`QUICBED_TREX=host:port/sender,receiver` names ports of a real TRex, whose other end is each other's, that nobody else
uses; docs/background-traffic.md has the recipe for one on veth.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from faketestbed import FakeTestbed
from quicbed.config import model
from quicbed.config.model import Link, Load
from quicbed.measure import generator, trex
from quicbed.measure.attempt import Attempt
from quicbed.measure.competing import Competing
from trexserver import Clock, TrexServer

REAL = os.environ.get("QUICBED_TREX", "")
LINK = Link(mode="wire", rate_mbit=None)
FRAME = trex.udp_frame(60, trex.Address("198.18.0.1", 1024), trex.Address("198.18.0.2", 9))


def settings_of(place: str, **more: Any) -> model.Generator:
    """Those of `host:port/sender,receiver`."""
    address, _, ports = place.partition("/")
    host, _, port = address.rpartition(":")
    sender, receiver = map(int, ports.split(","))
    given = {"kind": "trex", "host": host, "rpc_port": int(port), "port": sender, "receiver": receiver}
    return model.Generator.model_validate(given | more)


@pytest.fixture
def server() -> Iterator[TrexServer]:
    with TrexServer() as started:
        yield started


@pytest.fixture(params=["ours", "real"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server and two of its ports."""
    if request.param == "real" and not REAL:
        pytest.skip("QUICBED_TREX names no TRex")
    with contextlib.ExitStack() as stack:
        if request.param == "real":
            yield REAL
        else:
            own = stack.enter_context(TrexServer())
            yield f"127.0.0.1:{own.port}/0,1"


def source_of(settings: model.Generator) -> generator.Trex:
    source = generator.of(settings, FakeTestbed())
    assert isinstance(source, generator.Trex)
    return source


@pytest.mark.parametrize("load", [{"pps": 1000}, {"bps": 2e7, "frames": "imix"}])
def test_what_is_sent_is_what_was_asked_for_and_arrives(place: str, load: dict[str, Any]) -> None:
    source = source_of(settings_of(place))
    wanted = Load.model_validate(load)
    assert source.problem(wanted, LINK) is None
    try:
        source.start(wanted, LINK)
        before = source.sample()
        time.sleep(0.5)
        rates = generator.achieved(before, source.sample())
        asked = source.asked_mbps()
    finally:
        source.stop()
    assert asked == pytest.approx(12.144 if "pps" in load else 20, rel=0.001)
    assert generator.rate_problem(asked, rates) is None
    assert rates["background_received_mbps"] == pytest.approx(asked, rel=0.05)


def test_a_port_starts_again_and_is_given_up(place: str) -> None:
    settings = settings_of(place)
    with trex.Server(str(settings.host), settings.rpc_port) as known:
        port = trex.Port(known, settings.port, user="quicbed-test")
        for _ in range(2):
            port.start([trex.Stream(FRAME, 1)], "pps", 100)
            port.check_sending()
        port.stop()
        status = port.status()
        assert (status["owner"], status["state"]) == ("", "IDLE")
        with pytest.raises(trex.TrexError, match=r"start_traffic: Expected L1 B/W: '.*' exceeds port line rate"):
            port.start([trex.Stream(FRAME, 1)], "bps", 1e15)
        port.stop()
        with pytest.raises(trex.TrexError, match="invalid port id") as refused:
            trex.Port(known, 200).status()
        assert str(refused.value).isprintable()


def test_the_receiving_port_takes_frames_for_others_as_long_as_there_are_any(place: str) -> None:
    settings = settings_of(place)
    source = source_of(settings)

    def promiscuous() -> bool:
        with trex.Server(str(settings.host), settings.rpc_port) as known:
            shown: bool = trex.Port(known, settings.receiver or 0).status()["attr"]["promiscuous"]["enabled"]
            return shown

    before = promiscuous()
    try:
        source.start(Load.model_validate({"pps": 100}), LINK)
        assert promiscuous()
    finally:
        source.stop()
    assert promiscuous() is before


# ---- what only our own server can be told to do ----------------------------------------------------------------------


def test_a_receiving_port_that_stays_closed_is_told(server: TrexServer) -> None:
    server.ports[1].stuck = True
    source = source_of(settings_of(f"127.0.0.1:{server.port}/0,1"))
    with pytest.raises(trex.TrexError, match=r"port 1: its promiscuous mode cannot be set, .* start TRex with --prom"):
        source.start(Load.model_validate({"pps": 100}), LINK)
    # one that is open is nobody's business
    server.ports[1].stuck, server.ports[1].promiscuous = False, True
    server.take(1, "somebody")
    source.start(Load.model_validate({"pps": 100}), LINK)
    source.stop()
    assert (server.ports[1].owner, server.ports[1].promiscuous) == ("somebody", True)


def test_a_link_that_is_lost_is_told_although_the_port_says_that_it_sends(server: TrexServer) -> None:
    port = trex.Port(trex.Server("127.0.0.1", server.port), 0)
    port.start([trex.Stream(FRAME, 1)], "pps", 1)
    server.ports[0].link_up = False
    assert server.ports[0].state == "TX"
    with pytest.raises(trex.TrexError, match="port 0: its link is down"):
        port.check_sending()


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.98, True), (0.96, False), (1.04, False), (0.0, False)])
def test_a_rate_that_is_more_than_3_percent_off_fails_the_run_with_both(
    monkeypatch: pytest.MonkeyPatch, share: float, ok: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(generator, "time", clock)
    with TrexServer(clock=clock.monotonic) as server:
        source = source_of(settings_of(f"127.0.0.1:{server.port}/0,1"))
        load = Load.model_validate({"bps": 1e9})
        source.start(load, LINK)
        server.ports[0].sends_share = share
        attempt = Attempt()
        competing = Competing(attempt, source, load)
        clock.sleep(2)
        assert competing.ended()
    assert attempt.metrics["background_sent_mbps"] == pytest.approx(share * 1000, rel=0.001)
    assert attempt.status == ("ok" if ok else "failed")
    if not ok:
        assert attempt.reason is not None
        assert f"competing traffic: {share * 1000:.1f} Mbit/s were sent and 1000.0 were asked for" in attempt.reason


def test_session_0_is_never_sent(server: TrexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    trex.Port(trex.Server("127.0.0.1", server.port), 0).start([trex.Stream(FRAME, 1)], "pps", 1)
    assert server.ports[0].session != 0
    monkeypatch.setattr(generator.zlib, "crc32", lambda _: 1)
    source = source_of(settings_of(f"127.0.0.1:{server.port}/0,1", force=True))
    source.start(Load.model_validate({"pps": 100}), LINK)
    assert server.ports[0].session != 0
    with pytest.raises(trex.TrexError):
        trex.Port(trex.Server("127.0.0.1", server.port), 1, session=0).start([trex.Stream(FRAME, 1)], "pps", 1)


@pytest.mark.parametrize("multiplier", [None, "x", True, float("inf"), -1.0])
def test_an_answer_without_a_multiplier_is_told(
    server: TrexServer, monkeypatch: pytest.MonkeyPatch, multiplier: object
) -> None:
    monkeypatch.setattr(server, "do_start_traffic", lambda _: {"multiplier": multiplier})
    with pytest.raises(trex.TrexError, match="has no multiplier"):
        trex.Port(trex.Server("127.0.0.1", server.port), 0).start([trex.Stream(FRAME, 1)], "pps", 1)
