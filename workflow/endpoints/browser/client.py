"""Loads one page in a fresh Chromium and tells when what happened; compares every object with its file.

The environment tells what the command line does not: QUICBED_PAGE is the directory of the page's files, `index.html`
its document, and QUICBED_PIN the SHA-256 of the public key of the server's certificate, in Base64, by which Chromium
knows the server: it trusts no authority of the command line. Times are Chromium's own, on the clock of the contract.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from endpoint import devtools
from endpoint.devtools import Browser, BrowserError, TimeoutBrowserError
from quicbed_contract import FAILED
from quicbed_contract.events import FIELDS, Events, one_line
from quicbed_contract.options import Address, ClientOptions, from_command_line, in_force

DOCUMENT = "index.html"
PAINT_MS = 5000
"""How long is waited for a contentful paint after the page is loaded."""
SETTLE_MS = 300
"""How long the largest one may be replaced by a larger one: images that are there are drawn in the next frames."""
IDLE_S = 4.0
"""After a first visit: the server closes a connection that has been idle for 2 s."""
DESCRIBE = {
    "library": "Chromium",
    "alpn": ["h3", "h2"],
    "congestion_controls": ["cubic", "bbr", "reno"],
    "pacing": ["library"],
}
EXTRA = ("t_connect", "t_navigation", "t_load", "t_largest_paint", "playback")
"""Fields of `connection` that only clients have that load pages or play videos."""

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio"),
    *("--no-default-browser-check", "--disable-background-networking", "--disable-component-update"),
    *("--disable-default-apps", "--disable-domain-reliability", "--disable-extensions", "--disable-sync"),
    *("--metrics-recording-only", "--no-pings", "--password-store=basic", "--disable-breakpad", "--no-proxy-server"),
    "--disable-features=Translate,OptimizationHints,MediaRouter,NetworkTimeServiceQuerying",
    "--window-size=1280,900",
)
"""What Chromium does for nobody's page is switched off."""

PREFERENCES = {"net": {"network_prediction_options": 2}}
"""Of the profile: no connections before they are asked for, so that a page has one, whose times are told."""

LARGEST = """
new Promise(done => {
  let last = null;
  const take = entries => entries.forEach(entry => { last = entry.startTime; });
  const observer = new PerformanceObserver(list => take(list.getEntries()));
  observer.observe({type: "largest-contentful-paint", buffered: true});
  const begin = performance.now();
  const look = () => {
    take(observer.takeRecords());
    if (last !== null || performance.now() - begin > %d) done(last);
    else setTimeout(look, %d);
  };
  setTimeout(look, %d);
})
"""


def main(kind: type[Page] | None = None) -> int:
    """Load the page, or what another *kind* makes of it; returns the exit code."""
    old = _taken("--tls-version") == "TLSv1.2"
    visit = _taken("--visit") or "first"
    options = cast(ClientOptions, from_command_line("client", DESCRIBE))
    path, told, problem = devtools.find(), "unknown", None
    try:
        told = told if path is None else devtools.version(path)
    except BrowserError as error:
        problem = one_line(error)
    events = Events("client", "Chromium", told.removeprefix("Chromium "), options.events)
    # what the command line says of sockets and congestion control is nothing that Chromium takes
    unknown = dict.fromkeys(("congestion_control", "pacing", "gso", "gro", "receive_buffer", "send_buffer", "window"))
    events.start(in_force(options) | unknown | {"browser": told})
    if path is None:
        return events.unsupported(devtools.NOT_FOUND)
    if problem is not None:
        return events.error(problem)
    home = Path(tempfile.mkdtemp(prefix="quicbed-chromium-"))
    try:
        records = _load(path, options, home, ["--ssl-version-max=tls1.2"] if old else [], visit, kind or Page)
    except (OSError, KeyError, TypeError, ValueError) as error:
        return events.error(f"{type(error).__name__}: {one_line(error)}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    events.connections, events.failed = len(records), sum(not record["ok"] for record in records)
    names = (*FIELDS["client"], *EXTRA)
    for record in records:
        events.write("connection", **{name: record.get(name) for name in names})
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    events.write(
        "end",
        connections=events.connections,
        failed=events.failed,
        cpu_user_ns=round(children.ru_utime * 1e6) * 1000,
        cpu_system_ns=round(children.ru_stime * 1e6) * 1000,
        run_delay_ns=None,
        max_rss_bytes=children.ru_maxrss * 1024,
    )
    return FAILED if events.failed else 0


def _taken(name: str) -> str | None:
    """Value of an option that is of TCP alone, which the shared command line does not know; it is taken off."""
    if name not in sys.argv[:-1]:
        return None
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return value


def _load(
    path: str, options: ClientOptions, home: Path, more: Sequence[str], visit: str, kind: type[Page]
) -> list[dict[str, Any]]:
    """The `connection` events of one page, or of a first visit and another one that goes on with its session."""
    wanted = {file.name: file for file in sorted(Path(os.environ["QUICBED_PAGE"]).iterdir())}
    total = sum(file.stat().st_size for file in wanted.values())
    record: dict[str, Any] = {}
    records: list[dict[str, Any]] = []
    deadline = time.monotonic() + options.timeout
    preferences = home / "profile" / "Default" / "Preferences"
    preferences.parent.mkdir(parents=True)
    preferences.write_text(json.dumps(PREFERENCES), encoding="utf-8")
    own = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    early = ["--enable-features=EnableTLS13EarlyData"] if visit == "early-data" else []
    browser = Browser(path, [*_arguments(options, home), *more, *early], dict(os.environ) | own, home / "said")
    try:
        for index in range(1 if visit == "first" else 2):
            record = {"index": index, "bytes_requested": total, "bytes_received": 0}
            records.append(record)
            page = kind(browser, str(options.server_name), deadline)
            if index == 0:
                browser.attach(deadline)
            else:
                page.leave()
            record |= page.load()
            if "error" not in record and index > 0:
                record |= _later(record, visit)
            if "error" not in record:
                record |= page.compared(wanted)
            if "error" in record:
                break
    except TimeoutBrowserError as error:
        record["error"] = f"{error} within {options.timeout:g} s"
    except BrowserError as error:
        record["error"] = one_line(error)
    finally:
        browser.close()
    record["t_close"] = time.monotonic_ns()
    return [one | {"ok": one.get("error") is None} for one in records]


def _later(record: Mapping[str, Any], visit: str) -> dict[str, Any]:
    """What is told otherwise of a second visit: Chromium shows what the first handshake of its session had."""
    if record.get("t_connect") is None:
        return {"error": "Chromium used the connection of the first visit again"}
    without = ["signature"] if record.get("tls_version") == "TLSv1.3" else ["signature", "group"]
    # Chromium calls a connection complete once early data can be sent
    without += ["t_handshake_complete"] if visit == "early-data" else []
    return dict.fromkeys(without)


def _arguments(options: ClientOptions, home: Path) -> list[str]:
    name = str(options.server_name)
    host, port = cast(Address, options.connect)[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    words = [
        *QUIET,
        f"--user-data-dir={home}/profile",
        # names are looked up nowhere: of any other host there is no address
        f"--host-resolver-rules=MAP {name} {address}, MAP * ~NOTFOUND",
        f"--ignore-certificate-errors-spki-list={os.environ['QUICBED_PIN']}",
    ]
    if os.environ["QUICBED_TRANSPORT"] == "quic":
        words += ["--enable-quic", f"--origin-to-force-quic-on={name}:443"]
    else:
        words.append("--disable-quic")
    if options.key_log is not None:
        words.append(f"--ssl-key-log-file={options.key_log}")
    return words


class Page:
    """A page that is loaded, as the browser tells of it."""

    def __init__(self, browser: Browser, server: str, deadline: float) -> None:
        self._browser = browser
        self._deadline = deadline
        self._origin = f"https://{server}/"
        self._requests: dict[str, str] = {}
        """Names of the objects asked for, by the id of the request."""
        self._done: dict[str, float] = {}
        """When an object was complete, in seconds."""
        self._response: dict[str, Any] | None = None
        """That of the document."""

    def load(self) -> dict[str, Any]:
        """Load the page; fields of its `connection` event, with an `error` where it is not what it has to be."""
        browser, deadline = self._browser, self._deadline
        for domain in ("Page", "Network", "Performance", "Runtime"):
            browser.call(f"{domain}.enable", deadline)
        browser.call("Network.setCacheDisabled", deadline, cacheDisabled=True)
        browser.events.clear()
        begun = browser.call("Page.navigate", deadline, url=f"{self._origin}{DOCUMENT}")
        if begun.get("errorText"):
            return {"error": f"Chromium does not load the page: {begun['errorText']}"}
        response: dict[str, Any] | None = None
        loaded = False
        for event in browser.listen(deadline):
            method, told = event.get("method"), event.get("params", {})
            if method == "Inspector.targetCrashed":
                return {"error": "the page crashed in Chromium"}
            if method == "Network.requestWillBeSent":
                if not told["request"]["url"].startswith("data:"):
                    self._requests[told["requestId"]] = told["request"]["url"]
            elif method == "Network.responseReceived" and told["response"]["url"] == f"{self._origin}{DOCUMENT}":
                response = told["response"]
            elif method == "Network.loadingFinished":
                self._done[told["requestId"]] = told["timestamp"]
            elif method == "Network.loadingFailed":
                url = self._requests.get(told["requestId"], "an object")
                return {"error": f"{url}: {told.get('errorText') or 'not loaded'}"}
            elif method == "Page.loadEventFired":
                loaded = True
            if loaded and self._done.keys() >= self._requests.keys():
                break
        if not loaded or response is None:
            waiting = sorted(url for one, url in self._requests.items() if one not in self._done)
            raise TimeoutBrowserError(f"the page is not loaded, without {waiting[0] if waiting else 'its load event'},")
        return self._negotiated(response) | self._times(response)

    def leave(self) -> None:
        """Go to an empty page, and wait until the server has closed the connection of the page before."""
        self._browser.call("Page.navigate", self._deadline, url="about:blank")
        time.sleep(IDLE_S)

    def _negotiated(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """What the connection of the document is, as far as Chromium tells."""
        security = response.get("securityDetails") or {}
        quic = response.get("protocol") == "h3"
        version = str(security.get("protocol", "")).replace(" ", "v")
        cipher = _suite(str(security.get("cipher", "")), str(security.get("keyExchange", "")))
        return {
            "alpn": response.get("protocol"),
            "tls_version": "TLSv1.3" if version == "QUIC" else version,
            "cipher": cipher,
            "group": security.get("keyExchangeGroup") or None,
            "aead": "standard",
            "header_protection": "on" if quic else None,
            "hello_retry_request": None,
            "retry": None,
            "signature": SCHEMES.get(security.get("serverSignatureAlgorithm", -1)),
        }

    def _connection_times(self, response: Mapping[str, Any]) -> dict[str, int | None]:
        """When the connection of the document did what."""
        timing = response["timing"]

        def at(name: str) -> int | None:
            """A time of the document's request: milliseconds after its beginning, which is in seconds."""
            value = timing.get(name, -1)
            return round(timing["requestTime"] * 1e9 + value * 1e6) if value >= 0 else None

        connect, complete = at("connectStart"), at("connectEnd")
        hello = connect if response.get("protocol") == "h3" else at("sslStart")
        times = {
            "t_connect": connect,
            "t_client_hello": hello,
            "t_handshake_complete": complete,
            "t_request_sent": at("sendEnd"),
            "t_first_byte": at("receiveHeadersStart") or at("receiveHeadersEnd"),
            "t_last_byte": round(max(self._done.values()) * 1e9),
        }
        return _in_order(times)

    def _navigation(self) -> int:
        """When the navigation began."""
        measured = self._browser.call("Performance.getMetrics", self._deadline)["metrics"]
        return round(next(one["value"] for one in measured if one["name"] == "NavigationStart") * 1e9)

    def _times(self, response: Mapping[str, Any]) -> dict[str, Any]:
        navigation = self._navigation()
        loaded = self._browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventStart", self._deadline)
        largest = self._browser.evaluate(LARGEST % (PAINT_MS, SETTLE_MS, SETTLE_MS), self._deadline)

        def after(milliseconds: float | None) -> int | None:
            return None if milliseconds is None else navigation + round(milliseconds * 1e6)

        return self._connection_times(response) | {
            "t_navigation": navigation,
            "t_load": after(loaded),
            "t_largest_paint": after(largest),
        }

    def compared(self, wanted: Mapping[str, Path]) -> dict[str, Any]:
        """Bytes of all objects that were asked for, and what is wrong with one, as fields of the event."""
        received, problem = 0, None
        asked = {url.removeprefix(self._origin): one for one, url in self._requests.items()}
        for name, file in wanted.items():
            if name not in asked:
                problem = problem or f"{name}: was not asked for"
                continue
            told = self._browser.call("Network.getResponseBody", self._deadline, requestId=asked[name])
            body = base64.b64decode(told["body"]) if told["base64Encoded"] else told["body"].encode()
            content = file.read_bytes()
            received += len(body)
            if body != content:
                problem = problem or f"{name}: {len(body)} bytes that are not the {len(content)} of the file"
        if more := sorted(set(asked) - set(wanted)):
            problem = problem or f"{more[0]}: is no object of the page"
        return {"bytes_received": received, "content_ok": problem is None} | ({"error": problem} if problem else {})


def _in_order(times: Mapping[str, int | None]) -> dict[str, int | None]:
    """Times of which none is before an earlier one by the rounding of Chromium's milliseconds."""
    latest, kept = 0, {}
    for name, value in times.items():
        if value is not None and latest - 1_000_000 < value < latest:
            value = latest
        kept[name] = value
        latest = max(latest, value or 0)
    return kept


SCHEMES = {0x0804: "rsa_pss_rsae_sha256", 0x0403: "ecdsa_secp256r1_sha256", 0x0503: "ecdsa_secp384r1_sha384"}
"""Names of TLS signature schemes (RFC 8446, 4.2.3) that are negotiated here."""
_CIPHERS = {
    "AES_128_GCM": "AES_128_GCM_SHA256",
    "AES_256_GCM": "AES_256_GCM_SHA384",
    "CHACHA20_POLY1305": "CHACHA20_POLY1305_SHA256",
}


def _suite(cipher: str, exchange: str) -> str | None:
    """IANA name of a cipher suite that Chromium tells in parts; TLS 1.3 has no key exchange in it."""
    name = _CIPHERS.get(cipher)
    return None if name is None else f"TLS_{f'{exchange}_WITH_' if exchange else ''}{name}"


if __name__ == "__main__":
    sys.exit(main())
