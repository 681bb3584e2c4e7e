"""Client of the traffic generator Cisco TRex in stateless mode: JSON-RPC 2.0 over a ZeroMQ request socket.

Commands, fields and states are those of "The TRex RPC Server" (TRex documentation, trex_rpc_server_spec); errors beyond
those of JSON-RPC and the names of port counters are what servers of version 3 send. Requests are repeated where that
does no harm; where it might, the whole start is repeated, which begins by stopping and removing what is there.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import zmq

from quicbed.base.untrusted import one_line
from quicbed.testbed import TestbedError

RPC_PORT = 4501
"""TCP port of the server's request socket by default."""
API = {"name": "STL", "major": 5, "minor": 0}
"""Stateless API that is spoken, of version 2.88 and later. A server takes its own major version and every minor
version up to its own."""
FCS_BYTES = 4
"""Frame check sequence, which the generator's interface adds to a frame."""
HEADER_BYTES = 14 + 20 + 8
"""Ethernet, IPv4 and UDP headers."""

# JSON-RPC 2.0, section 5.1, and the range that it leaves to servers
_METHOD_NOT_FOUND = -32601
_EXECUTE = -32000
_TRY_AGAIN = -32001
_WORK_IN_PROGRESS = -32002

_POLL_S = 0.1
_ATTEMPTS = 3
SESSION = 1
"""Session of a client that has none of its own: 0 makes servers abort."""
# answers of a server that was started anew, or whose port somebody else has taken by force
_STALE_API = "API handler provided mismatch"
_BUSY_PORT = "middle of configuration"
# states of a port that sends, or would if it were resumed
_ACTIVE = ("TX", "PAUSE", "PCAP_TX")


class TrexError(TestbedError):
    """What TRex refused or did not do, in one line with the remedy."""


class NoAnswerError(TrexError):
    """The server did not answer in time: whether it has done what was asked is not known."""


@dataclass(frozen=True)
class Address:
    """One end of the generated packets."""

    ip: str
    port: int
    mac: str | None = None
    """Hardware address; None for that of TRex's own configuration."""


@dataclass(frozen=True)
class Stream:
    """Frames of one size among those of a profile."""

    frame: bytes
    """From the Ethernet header on, without frame check sequence."""
    packets_per_second: float
    """Relative to the other streams: what starts the traffic scales all of them."""


@dataclass(frozen=True)
class PortCounters:
    """Counters of a port since the server was started, bytes with frame check sequences."""

    sent_packets: int
    sent_bytes: int
    received_packets: int
    received_bytes: int


def udp_frame(size: int, source: Address, destination: Address) -> bytes:
    """An Ethernet frame with a UDP datagram of zeros; `size` is in bytes without frame check sequence."""
    if size < HEADER_BYTES:
        raise ValueError(f"a frame of {size} bytes has no room for {HEADER_BYTES} bytes of headers")
    macs = [bytes.fromhex((end.mac or "00:00:00:00:00:00").replace(":", "")) for end in (destination, source)]
    ethernet = b"".join(macs) + b"\x08\x00"
    total = size - len(ethernet)
    addresses = b"".join(ipaddress.IPv4Address(end.ip).packed for end in (source, destination))
    # RFC 791: version and header length, no options, do not fragment, time to live 64, UDP
    before, after = struct.pack("!BBHHHBB", 0x45, 0, total, 0, 0x4000, 64, 17), addresses
    ip = before + struct.pack("!H", _checksum(before + b"\0\0" + after)) + after
    # RFC 768: a checksum of zero says that there is none
    udp = struct.pack("!HHHH", source.port, destination.port, total - 20, 0)
    return (ethernet + ip + udp).ljust(size, b"\0")


def _checksum(header: bytes) -> int:
    """Internet checksum (RFC 1071) of an even number of bytes."""
    words: tuple[int, ...] = struct.unpack(f"!{len(header) // 2}H", header)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Server:
    """A TRex server; a context manager that closes the connection.

    `timeout_s` is the longest time of one answer, `patience_s` that of work which the server does in the background.
    """

    def __init__(self, host: str, port: int = RPC_PORT, *, timeout_s: float = 3, patience_s: float = 20) -> None:
        self.name = f"TRex at {host}:{port}"
        self._endpoint = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._socket: zmq.Socket[bytes] | None = None
        self._api: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        self._disconnect()
        self._api = None

    def call(self, method: str, *, again: bool = True, **params: Any) -> Any:
        """The result of a command.

        `again`: it is repeated if there is no answer. Raises NoAnswerError where there is none, and TrexError with what
        the server says.
        """
        deadline = time.monotonic() + self._patience_s
        synchronised = False
        while True:
            answer = self._request(method, {**params, "api_h": self._handle()}, again=again)
            error = answer.get("error")
            if error is None:
                return answer.get("result")
            code, text = error.get("code"), str(error.get("specific_err") or error.get("message") or "")
            if code == _WORK_IN_PROGRESS and text.isdecimal():
                return self._await(method, int(text), deadline)
            if code == _TRY_AGAIN or (code == _EXECUTE and _BUSY_PORT in text):
                if time.monotonic() > deadline:
                    raise TrexError(f"{self.name}: {method}: still busy after {self._patience_s:g} s")
                time.sleep(_POLL_S)
            elif _STALE_API in text and not synchronised:
                # it was started anew since
                self._api, synchronised = None, True
            else:
                raise TrexError(f"{self.name}: {method}: {one_line(text, 300)}")

    def version(self) -> str:
        """The server's version."""
        found = _object(self.name, "get_version", self.call("get_version"))
        return one_line(found.get("version", "unknown"), 100)

    def _handle(self) -> str:
        """What authorises commands, from the server's agreement on the version of the API."""
        if self._api is not None:
            return self._api
        answer = self._request("api_sync_v2", API, again=True)
        if (error := answer.get("error")) is not None:
            text = one_line(error.get("specific_err") or error.get("message") or "", 300)
            wanted = f"a server in stateless mode with API {API['name']} {API['major']}.x is needed"
            if error.get("code") == _METHOD_NOT_FOUND:
                text = "it has no api_sync_v2: it is older than version 2.88"
            raise TrexError(f"{self.name}: {text}; {wanted}")
        self._api = str(_object(self.name, "api_sync_v2", answer.get("result")).get("api_h"))
        return self._api

    def _await(self, method: str, ticket: int, deadline: float) -> Any:
        """The result of work that the server does in the background; cancelled when it takes too long."""
        while time.monotonic() < deadline:
            answer = self._request("get_async_results", {"ticket_id": ticket, "api_h": self._handle()}, again=True)
            error = answer.get("error")
            if error is None:
                return answer.get("result")
            if error.get("code") != _WORK_IN_PROGRESS:
                text = str(error.get("specific_err") or error.get("message") or "")
                raise TrexError(f"{self.name}: {method}: {one_line(text, 300)}")
            time.sleep(_POLL_S)
        self._request("cancel_async_task", {"ticket_id": ticket, "api_h": self._handle()}, again=True)
        raise TrexError(f"{self.name}: {method}: not done after {self._patience_s:g} s, cancelled")

    def _request(self, method: str, params: dict[str, Any], *, again: bool) -> dict[str, Any]:
        """One request and its answer as it is."""
        for left in reversed(range(_ATTEMPTS if again else 1)):
            number = secrets.token_hex(4)
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            try:
                socket = self._connected()
                socket.send(json.dumps(message).encode())
                text = socket.recv()
            except zmq.ZMQError as error:
                # a request socket that got no answer takes no other request
                self._disconnect()
                if left:
                    continue
                why = "no answer" if isinstance(error, zmq.Again) else error.strerror or str(error)
                raise NoAnswerError(
                    f"{self.name}: {method}: {why} within {self._timeout_s:g} s; check that TRex runs there "
                    "(t-rex-64 -i --stl) and that this port of it can be reached"
                ) from None
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(text)
                if isinstance(answer, dict) and answer.get("id") == number and _is_answer(answer):
                    return answer
            break
        raise TrexError(f"{self.name}: {method}: the answer is no JSON-RPC 2.0; is this the port of TRex?")

    def _connected(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._socket = zmq.Context.instance().socket(zmq.REQ)
            milliseconds = max(1, round(self._timeout_s * 1000))
            self._socket.setsockopt(zmq.IPV6, 1)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.RCVTIMEO, milliseconds)
            self._socket.setsockopt(zmq.SNDTIMEO, milliseconds)
            self._socket.connect(self._endpoint)
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None


def _is_answer(answer: dict[str, Any]) -> bool:
    """Whether a JSON object is a response (JSON-RPC 2.0, section 5)."""
    return "result" in answer or isinstance(answer.get("error"), dict)


class Port:
    """A port of a TRex server that sends continuous traffic while it is ours.

    `user` is to be of one client only: what it owns is acquired again, also after that client has crashed. `session`
    is told to other clients (32 bits, never 0). `force` takes the port from whoever owns it.
    """

    def __init__(
        self, server: Server, number: int, *, user: str = "quicbed", session: int = SESSION, force: bool = False
    ) -> None:
        self.server = server
        self.number = number
        self.name = f"{server.name}, port {number}"
        self._user = user
        self._force = force
        self._session = session
        self._handler: str | None = None
        self.asked_bps: float | None = None
        """Rate in bit/s, of frames with check sequence, that the server said it would send at the last start."""
        # what was before may have crashed while it sent
        self._quiet = False

    def start(self, streams: Sequence[Stream], unit: str, value: float) -> None:
        """Acquire the port and send *streams*, scaled to a total rate, until :meth:`stop`.

        *unit* is `bps` (bits of frames with check sequence), `pps` or `percentage` (of the line rate, with preamble and
        gap). Raises TrexError if the port cannot be had or the rate not be reached.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._start(streams, unit, value)
            except NoAnswerError:
                if not left:
                    raise
            else:
                return

    def _start(self, streams: Sequence[Stream], unit: str, value: float) -> None:
        self._quiet = False
        self._acquire()
        self._silence()
        for number, stream in enumerate(streams, 1):
            self._owned("add_stream", again=False, stream_id=number, stream=_described(stream))
        mul = {"type": unit, "op": "abs", "value": float(value)}
        started = self._owned("start_traffic", again=False, mul=mul, duration=-1.0, force=False)
        self.asked_bps = self._rate(started, streams)
        deadline = time.monotonic() + 5
        while (state := self.status().get("state")) != "TX":
            if time.monotonic() > deadline:
                raise TrexError(f"{self.name}: is {state} after start_traffic; look at the server's console")
            time.sleep(_POLL_S)

    def _rate(self, started: Any, streams: Sequence[Stream]) -> float:
        """The total rate in bit/s of *streams* by what start_traffic answers: how often it sends each of them."""
        factor = _object(self.name, "start_traffic", started).get("multiplier")
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < float("inf"):
            raise TrexError(f"{self.name}: start_traffic: the answer has no multiplier; is this the port of TRex?")
        return factor * sum(one.packets_per_second * (len(one.frame) + FCS_BYTES) * 8 for one in streams)

    def take_all(self) -> bool:
        """Let the port receive frames for any hardware address; whether it did not do so before.

        It is ours for that moment only, and belongs to whom it belonged before. Raises TrexError if that cannot be.
        """
        if self._is_promiscuous():
            return False
        self._set_promiscuous(enabled=True)
        return True

    def take_own(self) -> None:
        """Undo what :meth:`take_all` did."""
        if self._is_promiscuous():
            self._set_promiscuous(enabled=False)

    def _is_promiscuous(self) -> bool:
        attributes = self.status().get("attr")
        mode = attributes.get("promiscuous") if isinstance(attributes, dict) else None
        return isinstance(mode, dict) and mode.get("enabled") is True

    def _set_promiscuous(self, *, enabled: bool) -> None:
        self._acquire()
        try:
            self._owned("set_port_attr", attr={"promiscuous": {"enabled": enabled}})
        finally:
            self._owned("release", again=False)
            self._handler = None
        if self._is_promiscuous() is not enabled:
            raise TrexError(
                f"{self.name}: its promiscuous mode cannot be set, so that it may drop what it is to count; start TRex "
                "with --prom, or leave out `receiver`"
            )

    def stop(self) -> None:
        """Return when the port sends nothing, and give it up if it is ours, also if a client that has ended left it so.

        Raises TrexError where it may still send: there is no answer, or it is somebody else's who sends. It is asked
        again then by the next call, and else only after the next start.
        """
        if self._quiet:
            return
        for left in reversed(range(_ATTEMPTS)):
            status = self.status()
            # after a restart it is nobody's, and what somebody took is theirs to give up
            if status.get("owner") != self._user and status.get("state") not in _ACTIVE:
                break
            try:
                self._acquire()
                self._silence()
                self._owned("release", again=False)
                break
            except NoAnswerError:  # the status tells whether it was carried out
                if not left:
                    raise
        self._handler, self._quiet = None, True

    def status(self) -> dict[str, Any]:
        """State of the port: `state` (DOWN, IDLE, STREAMS, TX, PAUSE) and `owner`, among others."""
        found = self.server.call("get_port_status", port_id=self.number, block=False)
        return _object(self.name, "get_port_status", found)

    def check_sending(self) -> None:
        """Raise TrexError unless the port sends for us."""
        status = self.status()
        state, owner = status.get("state"), status.get("owner")
        if owner != self._user:
            raise TrexError(f"{self.name}: is owned by {one_line(owner or 'nobody', 60)}, no longer by us")
        if state != "TX":
            raise TrexError(f"{self.name}: is {one_line(state, 40)}: its traffic has ended")
        # which leaves the state as it is
        if link_is_up(status) is False:
            raise TrexError(f"{self.name}: its link is down; check the cable and the interface at its other end")

    def counters(self) -> PortCounters:
        """The port's counters, which the server refreshes for the answer."""
        found = _object(self.name, "get_port_stats", self.server.call("get_port_stats", port_id=self.number))
        return PortCounters(
            self._counter(found, "opackets", "total_tx_pkts"),
            self._counter(found, "obytes", "total_tx_bytes"),
            self._counter(found, "ipackets", "total_rx_pkts"),
            self._counter(found, "ibytes", "total_rx_bytes"),
        )

    def _counter(self, found: dict[str, Any], *names: str) -> int:
        """A counter by the name that servers give it, or that of the documentation."""
        for name in names:
            value = found.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float(2**63):
                return int(value)
        raise TrexError(f"{self.name}: get_port_stats has neither {' nor '.join(names)}")

    def _silence(self) -> None:
        """End what is sent, of every profile, and remove the streams of the default one, which is ours."""
        if self.status().get("state") in _ACTIVE:
            self._owned("stop_traffic", profile_id="*")
        self._owned("remove_all_streams")

    def _acquire(self) -> None:
        # servers refuse a port to its owner in another session
        force = self._force or self.status().get("owner") == self._user
        try:
            handler = self.server.call(
                "acquire", again=False, port_id=self.number, user=self._user, session_id=self._session, force=force
            )
        except TrexError as error:
            if "already" not in str(error):
                raise
            raise TrexError(f"{error}; wait until it is released, or set `force: true` to take it") from None
        if not isinstance(handler, str):
            raise TrexError(f"{self.name}: acquire: the answer is no handler")
        self._handler = handler

    def _owned(self, method: str, *, again: bool = True, **params: Any) -> Any:
        """A command on the port, which must be ours."""
        return self.server.call(method, again=again, handler=self._handler, port_id=self.number, **params)


def link_is_up(status: Mapping[str, Any]) -> bool | None:
    """Whether the link of a port is up, by what get_port_status says; None where it does not."""
    attributes = status.get("attr")
    link = attributes.get("link") if isinstance(attributes, dict) else None
    up = link.get("up") if isinstance(link, dict) else None
    return up if isinstance(up, bool) else None


def _described(stream: Stream) -> dict[str, Any]:
    """The `stream` object of add_stream: sent continuously from the start."""
    # bit 0: source address of the packet, bits 1 and 2: 1 for its destination address, 0 for those of the server
    macs = (1 if any(stream.frame[6:12]) else 0) | (2 if any(stream.frame[:6]) else 0)
    return {
        "enabled": True,
        "self_start": True,
        "start_paused": False,
        "isg": 0.0,
        "next_stream_id": -1,
        "action_count": 0,
        "flags": macs,
        "mode": {"type": "continuous", "rate": {"type": "pps", "value": float(stream.packets_per_second)}},
        "packet": {"binary": base64.b64encode(stream.frame).decode(), "meta": ""},
        "vm": {"instructions": []},
        "flow_stats": {"enabled": False},
        "rx_stats": {"enabled": False},
    }


def _object(name: str, method: str, value: Any) -> dict[str, Any]:
    """An answer that has to be an object."""
    if not isinstance(value, dict):
        raise TrexError(f"{name}: {method}: the answer is no object; is this the port of TRex?")
    return value
