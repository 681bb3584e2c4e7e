"""Names of implementations in published data: a library and, after it, a build."""

from __future__ import annotations

LIBRARIES = {
    "aioquic": "aioquic",
    "lsquic": "lsquic",
    "mvfst": "mvfst",
    "ngtcp2": "ngtcp2",
    "picoquic": "picoquic",
    "quic-go": "quic-go",
    "quiche": "quiche",
    "tcp": "tcp-tls",
    "tcp+tls": "tcp-tls",
    "tcp-tls": "tcp-tls",
    "tls1.3": "tcp-tls",
}
"""Our name of the library, by the name that begins theirs."""

TITLES = {
    "aioquic": "aioquic",
    "quic-go": "quic-go",
    "mvfst": "mvfst",
    "picoquic": "picoquic",
    "quiche": "quiche",
    "lsquic": "LSQUIC",
    "tcp-tls": "TCP+TLS",
}
"""What papers call libraries, which need not be among ours."""

STOCK = "stock"
TCP = "tcp-tls"
CONGESTION_CONTROLS = ("cubic", "newreno", "reno", "bbr", "bbr2", "bbr3")


def library(implementation: str) -> tuple[str, str]:
    """Library and build of an implementation, as ``quiche-aes``: quiche, aes; an unknown one is its own library."""
    for name in sorted(LIBRARIES, key=len, reverse=True):
        if implementation == name:
            return LIBRARIES[name], STOCK
        if implementation.startswith(f"{name}-"):
            return LIBRARIES[name], implementation[len(name) + 1 :]
    return implementation, STOCK
