"""A Chromium that opens pages as a reader's does: at a width, by mouse and keyboard, with what it says of errors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choreographer import Browser, Tab
from choreographer.browsers.chromium import Chromium

TIMEOUT_S = 300.0
LENIENT = {"--disable-web-security", "--allow-file-access-from-files", "--disable-lazy-loading"}
"""What drawing wants of a browser, and no reader's has."""


class PageError(Exception):
    """What a page or the browser refuses."""


def path() -> str | None:
    """Where a Chromium is, if there is one."""
    found = Chromium.find_browser(skip_local=False)
    return str(found) if found else None


class Strict(Chromium):
    """Refuses files what a reader's browser refuses them."""

    def get_cli(self) -> Sequence[str]:
        """The command line."""
        return [argument for argument in super().get_cli() if argument not in LENIENT]


class Page:
    """One tab."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tab: Tab) -> None:
        self._loop, self._tab = loop, tab
        self.errors: list[str] = []
        self.requests: list[str] = []

    def command(self, name: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command of its DevTools protocol."""
        answer = self._wait(self._tab.send_command(name, params=parameters))
        if "error" in answer:
            raise PageError(str(answer["error"]))
        result: dict[str, Any] = answer["result"]
        return result

    def _wait(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, TIMEOUT_S))

    def open(self, page: Path | str, fragment: str = "", width: int = 1280, height: int = 900) -> None:
        """Load a file or an address, and wait until all is there that it loads; earlier errors are forgotten."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.errors.clear()
        self.requests.clear()
        # of a page that is open already, only the fragment would change
        address = page if isinstance(page, str) else page.resolve().as_uri()
        for one in ("about:blank", address + fragment):
            self._wait(self._load(one))

    async def _load(self, address: str) -> None:
        loaded = self._tab.subscribe_once("Page.loadEventFired")
        await self._tab.send_command("Page.navigate", params={"url": address})
        await loaded

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; what it promises is awaited."""
        answer = self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise PageError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, as a keyboard sends it."""
        for kind in ("keyDown", "keyUp"):
            said = {"text": text} if text and kind == "keyDown" else {}
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **said)

    def point(self, script: str) -> tuple[float, float]:
        """Move the mouse to the middle of the element that an expression has; returns where that is."""
        middle = "[box.x + box.width / 2, box.y + box.height / 2]"
        x, y = self.evaluate(f"(() => {{ const box = ({script}).getBoundingClientRect(); return {middle}; }})()")
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, script: str) -> None:
        """The left button of the mouse, on such an element."""
        x, y = self.point(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, *, whole: bool = False) -> bytes:
        """The page as PNG: what is seen of it, or all."""
        return base64.b64decode(self.command("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def printed(self) -> bytes:
        """The page as PDF, on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True, "printBackground": True}
        return base64.b64decode(self.command("Page.printToPDF", **size)["data"])

    async def watch(self) -> None:
        """Note what fails and what is asked for from now on."""

        async def error(event: Any) -> None:
            told = event["params"].get("exceptionDetails") or event["params"].get("entry")
            self.errors.append(str(told))

        async def request(event: Any) -> None:
            self.requests.append(event["params"]["request"]["url"])

        async def called(event: Any) -> None:
            if event["params"]["type"] in ("assert", "error"):
                self.errors.append(str(event["params"]["args"]))

        self._tab.subscribe("Runtime.consoleAPICalled", called)
        self._tab.subscribe("Runtime.exceptionThrown", error)
        self._tab.subscribe("Log.entryAdded", error)
        self._tab.subscribe("Network.requestWillBeSent", request)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._tab.send_command(f"{domain}.enable")


@contextmanager
def opened() -> Iterator[Page]:
    """A tab of a browser of its own."""
    loop = asyncio.new_event_loop()
    browser = Browser(path(), browser_cls=Strict)
    try:
        loop.run_until_complete(asyncio.wait_for(browser.open(), TIMEOUT_S))
        tab = loop.run_until_complete(browser.create_tab("about:blank"))
        page = Page(loop, tab)
        loop.run_until_complete(page.watch())
        yield page
    finally:
        loop.run_until_complete(browser.close())
        loop.close()
