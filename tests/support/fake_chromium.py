"""A Chromium that loads nothing and misbehaves on demand: `FAKE_CHROMIUM` names how.

When it is told to load a page, it sends the messages in the file FAKE_EVENTS; FAKE_BODIES has bodies by request.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any


def main() -> None:
    how = os.environ["FAKE_CHROMIUM"]
    if how == "ends":
        sys.exit(7)
    if "--version" in sys.argv:
        print("" if how == "no version" else "Google Chrome 1.2.3 fake")
        return
    if how == "ends later":
        sys.exit(7)
    with os.fdopen(3, "rb") as asked, os.fdopen(4, "wb") as told:
        for message in messages(asked.fileno()):
            if how == "silent":
                time.sleep(60)
            if how == "no json":
                told.write(b"{\0")
                told.flush()
                continue
            answer(how, message, told.fileno())


def messages(descriptor: int) -> Iterator[dict[str, Any]]:
    """What is asked."""
    buffer = b""
    while part := os.read(descriptor, 65536):
        *whole, buffer = (buffer + part).split(b"\0")
        yield from map(json.loads, whole)


def kept(variable: str, otherwise: Any) -> Any:
    """What a file has whose path is in the environment."""
    path = os.environ.get(variable)
    if path is None:
        return otherwise
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def answer(how: str, message: dict[str, Any], out: int) -> None:
    method = message["method"]
    results: dict[str, Any] = {
        "Target.createTarget": {"targetId": "t"},
        "Target.attachToTarget": {"sessionId": "s"},
        "Page.navigate": {"errorText": "net::ERR_CERT_INVALID"} if how == "blocks" else {"frameId": "f"},
        "Performance.getMetrics": {"metrics": [{"name": "NavigationStart", "value": 1.0}]},
        "Network.getResponseBody": {
            "body": kept("FAKE_BODIES", {}).get(message["params"].get("requestId"), ""),
            "base64Encoded": True,
        },
    }

    def say(**told: object) -> None:
        os.write(out, json.dumps(told).encode() + b"\0")

    if how == "refuses" and method == "Page.navigate":
        say(id=message["id"], error={"code": -32000, "message": "Cannot navigate"})
        return
    say(id=message["id"], result=results.get(method, {}))
    if method == "Page.navigate":
        for event in kept("FAKE_EVENTS", []):
            say(**event)
    if method == "Page.navigate" and how == "crashes":
        say(method="Inspector.targetCrashed", params={})
    if method == "Page.navigate" and how in ("waits", "loses"):
        url = "https://server/3.css"
        say(method="Network.requestWillBeSent", params={"requestId": "1", "request": {"url": url}})
        if how == "loses":
            say(method="Network.loadingFailed", params={"requestId": "1", "errorText": "net::ERR_CONNECTION_RESET"})
    if method == "Browser.close":
        sys.exit(0)


if __name__ == "__main__":
    main()
