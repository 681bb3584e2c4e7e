"""The command line that all endpoints share."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quicbed_contract import ALPN, HTTP3, USAGE
from quicbed_contract.request import name_of

CIPHERS = ("aes-128-gcm", "aes-256-gcm", "chacha20-poly1305")
AEADS = ("standard", "noop", "noenc")
CONGESTION_CONTROLS = ("cubic", "reno", "bbr")
"""In the order in which a library's default is chosen."""

Address = tuple[str, int] | tuple[str, int, int, int]
"""Address as sockets of its family know it."""


class UsageError(Exception):
    """A wrong command line, as one line."""


@dataclass
class Options:
    """Options of both programs; sizes are in bytes."""

    events: str = "-"
    alpn: str | None = None
    """None: the first that the library has."""
    cipher: str = "aes-128-gcm"
    aead: str = "standard"
    header_protection: str = "on"
    group: str = "x25519"
    signature: str = "rsa-2048"
    initial_size: int = 1200
    congestion_control: str | None = None
    """None: the first of CONGESTION_CONTROLS that the library has."""
    pacing: str | None = None
    """None: what the endpoint does unasked."""
    gso: bool = True
    gso_paced: bool = False
    gro: bool = True
    udp_payload: int = 1472
    receive_buffer: int = 6_815_744
    send_buffer: int = 6_815_744
    window: int = 16_777_216
    key_log: str | None = None


@dataclass
class ClientOptions(Options):
    """Options of a client; those without a usable default are required."""

    connect: Address | None = None
    server_name: str | None = None
    ca: str | None = None
    """PEM trust anchor; None if any certificate is accepted, which is for saving files only."""
    verify: bool = True
    bytes: int | None = None
    """Not where a file is saved."""
    save: str | None = None
    """File to write what arrives to; its name is that of the file asked for."""
    connections: int = 1
    timeout: float = 60.0


@dataclass
class ServerOptions(Options):
    """Options of a server; those without a usable default are required."""

    listen: Address | None = None
    certificate: str | None = None
    private_key: str | None = None
    content: list[int] = field(default_factory=list)
    www: str | None = None
    """Directory of files that are served too."""
    retry: bool = False


def _text(value: str) -> str:
    return value


def _switch(value: str) -> bool:
    return _choice("on", "off")(value) == "on"


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return value

    return parse


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
            raise ValueError(f"not a whole number from {least} to {most}")
        return int(value)

    return parse


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError("not a positive number of seconds")
    return seconds


def _address(value: str) -> Address:
    host, colon, port = value.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not colon or (ip.version == 6) != host.startswith("["):
            raise ValueError
        number = _number(0, 65535)(port)
    except ValueError:
        raise ValueError("not IP:PORT") from None
    return (str(ip), number) if ip.version == 4 else (str(ip), number, 0, 0)


def _to_save(value: str) -> str:
    name_of(value)
    return value


_BUFFER = _number(1, (1 << 30) - 1)  # Linux doubles a socket buffer, and keeps it in a C int
_PAYLOAD = _number(1200, 65507)  # RFC 9000, section 14; the most that UDP over IPv4 carries
_U64 = (1 << 64) - 1

_COMMON: dict[str, Callable[[str], Any]] = {
    "events": _text,
    "alpn": _choice(ALPN, HTTP3),
    "cipher": _choice(*CIPHERS),
    "aead": _choice(*AEADS),
    "header-protection": _choice("on", "off"),
    "group": _text,
    "signature": _text,
    "initial-size": _PAYLOAD,
    "congestion-control": _choice(*CONGESTION_CONTROLS),
    "pacing": _choice("off", "library", "txtime"),
    "gso": _choice("on", "off", "paced"),
    "gro": _switch,
    "udp-payload": _PAYLOAD,
    "receive-buffer": _BUFFER,
    "send-buffer": _BUFFER,
    "window": _number(1, (1 << 62) - 1),  # RFC 9000, section 16
    "key-log": _text,
}
_CLIENT: dict[str, Callable[[str], Any]] = {
    "connect": _address,
    "server-name": _text,
    "ca": _text,
    "verify": _switch,
    "bytes": _number(0, _U64),
    "save": _to_save,
    "connections": _number(1, _U64),
    "timeout": _seconds,
}
_SERVER: dict[str, Callable[[str], Any]] = {
    "listen": _address,
    "certificate": _text,
    "private-key": _text,
    "content": _number(0, _U64),
    "www": _text,
    "retry": _switch,
}
_REQUIRED = {"client": ("connect", "server-name", "ca", "bytes"), "server": ("listen", "certificate", "private-key")}


def parse(role: str, arguments: Sequence[str]) -> Options | None:
    """Options of a program's arguments; None where `--describe` is among them. Raises UsageError."""
    known = _COMMON | (_CLIENT if role == "client" else _SERVER)
    options: Options = ClientOptions() if role == "client" else ServerOptions()
    seen = set()
    words = iter(arguments)
    for word in words:
        name = word.removeprefix("--")
        if word == "--describe":
            return None
        if not word.startswith("--") or name not in known:
            raise UsageError(f"unknown option {word}")
        text = next(words, None)
        if text is None:
            raise UsageError(f"{word}: the value is missing")
        try:
            value = known[name](text)
        except ValueError as error:
            raise UsageError(f"{word}: {error}: {text!r}") from None
        seen.add(name)
        if name == "content":
            options.content.append(value)  # type: ignore[attr-defined]
        elif name == "gso":
            options.gso, options.gso_paced = value != "off", value == "paced"
        else:
            setattr(options, name.replace("-", "_"), value)
    if {"bytes", "save"} <= seen:
        raise UsageError("--bytes: not with --save, which asks for a file")
    if isinstance(options, ClientOptions) and not options.verify:
        if options.save is None:
            raise UsageError("--verify off: only with --save, what is measured comes from a verified server")
        if options.ca is not None:
            raise UsageError("--ca: not with --verify off")
        seen.add("ca")
    for name in _REQUIRED[role]:
        if name not in seen and not (name == "bytes" and "save" in seen):
            raise UsageError(f"--{name} is missing")
    if options.initial_size > options.udp_payload:
        raise UsageError(f"--initial-size: {options.initial_size} is more than --udp-payload {options.udp_payload}")
    return options


def from_command_line(role: str, description: Mapping[str, Any]) -> Options:
    """Options of this process; does not return for `--describe` and for a wrong command line."""
    try:
        options = parse(role, sys.argv[1:])
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(USAGE)
    if options is None:
        print(json.dumps(description))
        sys.exit(0)
    if options.alpn is None:
        options.alpn = description["alpn"][0]
    if options.congestion_control is None:
        able = description["congestion_controls"]
        options.congestion_control = next(name for name in CONGESTION_CONTROLS if name in able)
    if options.pacing is None and len(description["pacing"]) == 1:
        (options.pacing,) = description["pacing"]
    return options


def unsupported(options: Options, description: Mapping[str, Any]) -> str | None:
    """Why a build that describes itself so cannot do what is asked, or None if it can."""
    library = description["library"]
    if options.alpn is not None and options.alpn not in description["alpn"]:
        return f"the endpoints of {library} do not speak {options.alpn}"
    if options.cipher not in description["ciphers"]:
        return f"{library} has no {options.cipher}"
    if options.aead not in description["aead"]:
        if options.aead == "noenc":
            return f"{library} cannot leave out packet protection"
        return "this build has no --aead noop, it is no noop flavour"
    if options.header_protection not in description["header_protection"]:
        return "this build has no --header-protection off, it is no noop flavour"
    for kind in ("group", "signature"):
        known = description[f"{kind}s"]
        if (asked := getattr(options, kind)) not in known:
            return f"no {kind} {asked!r}, there are: {', '.join(known)}"
    if options.initial_size > 1200 and not description["initial_size"]:
        return f"{library} has no --initial-size above 1200"
    if isinstance(options, ServerOptions) and options.retry and not description["retry"]:
        return f"{library} sends no Retry packets"
    if options.congestion_control not in description["congestion_controls"]:
        return f"{library} has no congestion control {options.congestion_control}"
    if options.pacing is not None and options.pacing not in description["pacing"]:
        return f"{library} has no --pacing {options.pacing}"
    if options.gso_paced and not description["gso_paced"]:
        return f"{library} has no --gso paced"
    if getattr(options, "www", None) or getattr(options, "save", None):
        return None if description["files"] else f"{library} neither serves nor saves files"
    return None


def in_force(options: Options) -> dict[str, Any]:
    """The options asked for, as the `start` event has them; what the system can tell is to be overwritten."""
    names = ("cipher", "aead", "header_protection", "group", "signature", "initial_size", "congestion_control")
    more = ("pacing", "gso", "gro", "udp_payload", "receive_buffer", "send_buffer", "window")
    told = {name: getattr(options, name) for name in (*names, *more)}
    if isinstance(options, ServerOptions):
        told["retry"] = options.retry
    return told
