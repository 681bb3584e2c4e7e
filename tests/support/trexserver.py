"""A server that speaks the JSON-RPC of Cisco TRex's stateless mode, as far as the client of ours needs it. For tests.

It keeps the state machine of ports that "The TRex RPC Server" describes, checks what requests must have, and can be
told to misbehave.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq

LINE_RATE_BPS = 10e9
STREAM_FIELDS = {
    "enabled": bool,
    "self_start": bool,
    "flags": int,
    "action_count": int,
    "isg": float,
    "next_stream_id": int,
    "packet": dict,
    "mode": dict,
    "vm": dict,
    "flow_stats": dict,
}


class RpcError(Exception):
    def __init__(self, code: int, message: str, specific: str | None = None) -> None:
        self.error = {"code": code, "message": message} | ({} if specific is None else {"specific_err": specific})


def execute_error(text: str) -> RpcError:
    return RpcError(-32000, "Failed To Execute Method", text)


@dataclass
class PortState:
    owner: str = ""
    handler: str = ""
    streams: dict[int, dict[str, Any]] = field(default_factory=dict)
    sending_since: float | None = None
    bits_per_second: float = 0.0
    packets_per_second: float = 0.0
    mul: dict[str, Any] = field(default_factory=dict)
    link_up: bool = True
    promiscuous: bool = False
    stuck: bool = False
    """Whether the promiscuous mode stays as it is."""
    sends_share: float = 1.0
    """Part of the asked rate that is sent."""
    session: int = 0
    sent: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Packets and bytes."""

    @property
    def state(self) -> str:
        return "TX" if self.sending_since is not None else "STREAMS" if self.streams else "IDLE"


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 10.3

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class TrexServer:
    """A context manager; `methods` are the requests so far, `address` where it listens."""

    def __init__(
        self,
        *,
        ports: int = 2,
        name: str = "STL",
        version: tuple[int, int] = (5, 1),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.version = name, version
        self._clock = clock
        self.lost_share = 0.0
        """Part of the packets that do not arrive at the other port."""
        self.rates: list[dict[str, Any]] = []
        """The rate of each start."""
        self.ports = [PortState() for _ in range(ports)]
        self.methods: list[str] = []
        self.without: set[str] = set()
        """Methods that are not there."""
        self.swallow: dict[str, int] = {}
        """So many requests of a method are carried out, but not answered."""
        self.busy: dict[str, int] = {}
        """So many requests of a method are answered with `Try again`."""
        self.background: dict[str, int] = {}
        """A method is worked on in the background, for so many questions after its results."""
        self.raw_answer: bytes | None = None
        """The answer to everything."""
        self.cancelled: list[int] = []
        self._tickets: dict[int, tuple[int, Callable[[], Any]]] = {}
        self._api = secrets.token_urlsafe(6)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ending = threading.Event()

    def __enter__(self) -> TrexServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close(linger=0)
        self._context.term()

    def restart(self) -> None:
        """As a server that was ended and started anew."""
        self._api = secrets.token_urlsafe(6)
        self.ports = [PortState() for _ in self.ports]

    def take(self, number: int, owner: str) -> None:
        """Another user takes a port by force."""
        port = self.ports[number]
        port.owner, port.handler = owner, secrets.token_urlsafe(6)

    # ---- transport ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        while not self._ending.is_set():
            if not poller.poll(20):
                continue
            identity, empty, text = self._socket.recv_multipart()
            request = json.loads(text)
            method = request["method"]
            self.methods.append(method)
            answer = self.raw_answer or json.dumps(self._answer(request)).encode()
            if self.swallow.get(method, 0) > 0:
                self.swallow[method] -= 1
                continue
            self._socket.send_multipart([identity, empty, answer])

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        envelope = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            if request["jsonrpc"] != "2.0":
                raise RpcError(-32600, "Invalid JSONRPC Version")
            return envelope | {"result": self._run(request["method"], request["params"])}
        except RpcError as refused:
            return envelope | {"error": refused.error}

    def _run(self, method: str, params: dict[str, Any]) -> Any:
        handler = getattr(self, f"do_{method}", None)
        if handler is None or method in self.without:
            raise RpcError(-32601, f"Method {method} not registered")
        if method != "api_sync_v2" and params.get("api_h") != self._api:
            raise execute_error("API verification failed - API handler provided mismatch for class: 'STL'")
        if self.busy.get(method, 0) > 0:
            self.busy[method] -= 1
            raise RpcError(-32001, "Try again later")
        if method in self.background:
            ticket = len(self._tickets) + 1
            self._tickets[ticket] = (self.background[method], lambda: handler(params))
            raise RpcError(-32002, "Work in progress", str(ticket))
        return handler(params)

    def _port(self, params: dict[str, Any], *, owned: bool = False) -> PortState:
        if not 0 <= params["port_id"] < len(self.ports):
            # which writes the numbers as bytes
            raise execute_error(f"invalid port id - should be: {chr(len(self.ports) - 1)} {chr(0)}")
        port = self.ports[params["port_id"]]
        if owned and not port.owner:
            raise execute_error("please acquire the port before modifying port state")
        if owned and params.get("handler") != port.handler:
            raise execute_error("port is not owned by you or your current executing session")
        return port

    # ---- commands ----------------------------------------------------------------------------------------------------

    def do_api_sync_v2(self, params: dict[str, Any]) -> Any:
        if params["name"] != self.name:
            raise execute_error(
                f"RPC configuration mismatch - server RPC configuration: '{self.name}', "
                f"client RPC configuration: '{params['name']}'"
            )
        asked = (params["major"], params["minor"])
        if asked[0] != self.version[0] or asked[1] > self.version[1]:
            server, client = (".".join(map(str, version)) for version in (self.version, asked))
            what = "RPC version mismatch: a newer client version is required"
            raise execute_error(f"{what}\n(API type 'STL' - server: '{server}', client: '{client}')")
        return {"api_h": self._api}

    def do_get_version(self, _: dict[str, Any]) -> Any:
        built = {"build_date": "Nov 22 2026", "build_time": "08:18:16", "built_by": "unknown"}
        return {"version": "v3.08", **built, "mode": "STL"}

    def do_get_async_results(self, params: dict[str, Any]) -> Any:
        left, task = self._tickets[params["ticket_id"]]
        if left > 0:
            self._tickets[params["ticket_id"]] = (left - 1, task)
            raise RpcError(-32002, "Work in progress", str(params["ticket_id"]))
        return task()

    def do_cancel_async_task(self, params: dict[str, Any]) -> Any:
        self.cancelled.append(params["ticket_id"])
        return {}

    def do_acquire(self, params: dict[str, Any]) -> Any:
        port = self._port(params)
        if not isinstance(params["session_id"], int):
            raise RpcError(-32602, "Bad paramters for method", "field 'session_id' is missing")
        if params["session_id"] == 0:
            # an assertion, which ends the real one
            raise RpcError(-32603, "session 0 ends the server")
        if port.owner and not params["force"]:
            if port.owner != params["user"]:
                raise execute_error(f"port is already taken by '{port.owner}'")
            if port.session != params["session_id"]:
                raise execute_error(f"port is already owned by another session of '{port.owner}'")
        port.owner, port.handler, port.session = params["user"], secrets.token_urlsafe(6), params["session_id"]
        return port.handler

    def do_release(self, params: dict[str, Any]) -> Any:
        port = self._port(params, owned=True)
        port.owner, port.handler = "", ""
        return {}

    def do_remove_all_streams(self, params: dict[str, Any]) -> Any:
        port = self._port(params, owned=True)
        if port.state == "TX":
            raise execute_error("command 'remove_and_delete_all_streams' cannot be executed on current state: 'TX'")
        port.streams.clear()
        return {}

    def do_add_stream(self, params: dict[str, Any]) -> Any:
        port = self._port(params, owned=True)
        stream, number = params["stream"], params["stream_id"]
        for name, kind in STREAM_FIELDS.items():
            if not isinstance(stream.get(name), kind):
                raise RpcError(-32602, "Bad paramters for method", f"field '{name}' is missing")
        if number in port.streams:
            raise execute_error(f"stream {number} already exists in profile_id(_)")
        if stream["mode"]["type"] != "continuous" or not isinstance(stream["vm"]["instructions"], list):
            raise RpcError(-32602, "Bad paramters for method", "bad stream type provided")
        base64.b64decode(stream["packet"]["binary"], validate=True)
        port.streams[number] = stream
        return {}

    def do_start_traffic(self, params: dict[str, Any]) -> Any:
        port, mul = self._port(params, owned=True), params["mul"]
        if port.state != "STREAMS":
            raise execute_error(f"command 'start' cannot be executed on current state: '{port.state}'")
        if mul["type"] not in ("raw", "bps", "bpsl1", "pps", "percentage") or mul["op"] != "abs" or mul["value"] <= 0:
            raise RpcError(-32602, "Bad paramters for method", "multiplier")
        sizes = [len(base64.b64decode(s["packet"]["binary"])) + 4 for s in port.streams.values()]
        rates = [s["mode"]["rate"]["value"] for s in port.streams.values()]
        bits, line_bits = (sum(r * (n + more) * 8 for r, n in zip(rates, sizes, strict=True)) for more in (0, 20))
        units = {"bps": bits, "pps": sum(rates), "percentage": line_bits / LINE_RATE_BPS * 100}
        factor = mul["value"] / units[mul["type"]]
        if line_bits * factor > LINE_RATE_BPS * 1.0001:
            wanted = f"{line_bits * factor / 1e9:.2f} Gbps"
            raise execute_error(f"Expected L1 B/W: '{wanted}' exceeds port line rate: '10 Gbps'")
        port.mul, port.bits_per_second, port.packets_per_second = mul, bits * factor, sum(rates) * factor
        port.sending_since = self._clock()
        self.rates.append(mul)
        return {"multiplier": factor, "ts": 0.0}

    def do_stop_traffic(self, params: dict[str, Any]) -> Any:
        port = self._port(params, owned=True)
        self._settle(port, self._clock())
        port.sending_since = None
        return {}

    def do_get_port_status(self, params: dict[str, Any]) -> Any:
        port = self._port(params)
        return {
            "owner": port.owner,
            "state": port.state,
            "service": False,
            "max_stream_id": max(port.streams, default=0),
            "service_filtered": False,
            "profile_count": 1,
            "attr": {
                "fc": {"mode": -1},
                "link": {"up": port.link_up},
                "multicast": {"enabled": False},
                "promiscuous": {"enabled": port.promiscuous},
                "rx_filter_mode": "hw",
                # in Gbit/s
                "speed": LINE_RATE_BPS / 1e9,
                "vlan": {"tags": []},
            },
        }

    def do_set_port_attr(self, params: dict[str, Any]) -> Any:
        port = self._port(params, owned=True)
        if not port.stuck:
            port.promiscuous = params["attr"]["promiscuous"]["enabled"]
        return {}

    def do_get_port_stats(self, params: dict[str, Any]) -> Any:
        self._port(params)
        for port in self.ports:
            self._settle(port, self._clock())
        own, other = self.ports[params["port_id"]], self.ports[params["port_id"] ^ 1]
        arrived = 1 - self.lost_share
        return {
            "opackets": int(own.sent[0]),
            "obytes": int(own.sent[1]),
            "oerrors": 0,
            "ipackets": int(other.sent[0] * arrived),
            "ibytes": int(other.sent[1] * arrived),
            "ierrors": 0,
            **dict.fromkeys(
                ("m_cpu_util", "m_total_rx_bps", "m_total_rx_pps", "m_total_tx_bps", "m_total_tx_pps"), 0.0
            ),
        }

    @staticmethod
    def _settle(port: PortState, until: float) -> None:
        """Count what was sent until then."""
        if port.sending_since is not None and until > port.sending_since:
            seconds, port.sending_since = until - port.sending_since, until
            # a lost link leaves the state as it is
            seconds *= port.sends_share if port.link_up else 0
            port.sent[0] += seconds * port.packets_per_second
            port.sent[1] += seconds * port.bits_per_second / 8
