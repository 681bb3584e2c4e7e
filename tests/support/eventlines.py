"""Events as endpoints write them (workflow/endpoints/ENDPOINT.md)."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

OPTIONS = {
    "receive_buffer": 13631488,
    "send_buffer": 13631488,
    "gso": True,
    "gro": None,
    "udp_payload": 1472,
    "congestion_control": "cubic",
    "window": 16777216,
}


def start(role: str = "client", **changes: Any) -> Event:
    return {
        "event": "start",
        "t": 1_000,
        "contract": 2,
        "role": role,
        "library": "quinn",
        "version": "0.11.12",
        "pid": 4711,
        "options": OPTIONS,
    } | changes


def ready(**changes: Any) -> Event:
    return {"event": "ready", "t": 1_500, "address": "10.0.0.1", "port": 4433} | changes


def common(index: int) -> Event:
    return {
        "event": "connection",
        "index": index,
        "ok": True,
        "error": None,
        "cipher": "TLS_AES_128_GCM_SHA256",
        "group": "x25519",
        "signature": None,
        "hello_retry_request": False,
        "retry": None,
        "alpn": "hq-interop",
        "tls_version": "TLSv1.3",
        "aead": "standard",
        "header_protection": "on",
        "handshake_packets_sent": 4,
        "handshake_packets_received": 3,
        "handshake_bytes_sent": 2500,
        "handshake_bytes_received": 3000,
        "packets_sent": 100,
        "packets_received": 800,
        "packets_lost": None,
        "cpu_user_ns": 1_000_000,
        "cpu_system_ns": 2_000_000,
    }


def client_connection(index: int = 0, t0: int = 2_000_000, **changes: Any) -> Event:
    times = {
        "t_client_hello": t0,
        "t_handshake_complete": t0 + 1_500_000,
        "t_handshake_confirmed": t0 + 1_900_000,
        "t_request_sent": t0 + 1_600_000,
        "t_first_byte": t0 + 2_100_000,
        "t_last_byte": t0 + 9_600_000,
        "t_close": t0 + 9_700_000,
        "t": t0 + 9_800_000,
    }
    content = {"bytes_requested": 1_000_000, "bytes_received": 1_000_000, "content_ok": True}
    return common(index) | times | content | changes


def server_connection(index: int = 0, t0: int = 2_000_000, **changes: Any) -> Event:
    times = {
        "t_accept": t0,
        "t_handshake_complete": t0 + 1_000,
        "t_handshake_confirmed": t0 + 1_000,
        "t_close": t0 + 2_000,
        "t": t0 + 3_000,
    }
    return common(index) | times | {"bytes_sent": 1_000_000} | changes


def end(connections: int = 1, failed: int = 0, **changes: Any) -> Event:
    return {
        "event": "end",
        "t": 900_000_000,
        "connections": connections,
        "failed": failed,
        "cpu_user_ns": 5,
        "cpu_system_ns": 6,
        "run_delay_ns": 7,
        "max_rss_bytes": 8,
    } | changes
