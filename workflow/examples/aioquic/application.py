"""What aioquic's example server serves: as many bytes as the path says.

Its own application, demo.py, does the same for such a path, but needs web frameworks for its other pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]


async def application(scope: Message, _receive: object, send: Callable[[Message], Awaitable[None]]) -> None:
    """An ASGI application that answers `/<n>` with *n* bytes."""
    body = b"Z" * int(scope["path"].removeprefix("/"))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
