"""The endpoint contract (workflow/endpoints/ENDPOINT.md) for programs in Python.

Command line, events, content, sockets and waiting, with nothing but the standard library; what a QUIC library has to do
is left to the endpoint.
"""

from __future__ import annotations

CONTRACT = 2
"""Version of the contract."""

ALPN = "hq-interop"
"""Application protocol that endpoints speak unasked."""
HTTP3 = "h3"
"""HTTP/3 (RFC 9114)."""

OK, FAILED, USAGE, UNSUPPORTED = 0, 1, 2, 127
"""Exit codes."""
