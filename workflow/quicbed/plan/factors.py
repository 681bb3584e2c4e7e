"""What variants ask of a library: what that means for its endpoints, and why it cannot do it."""

from __future__ import annotations

from collections.abc import Iterator

from quicbed.config.model import STATEMENT, ExternalLibrary, Library, Side, Variant
from quicbed.plan import march
from quicbed.plan.variant import CellVariant

BROWSER_GROUPS = frozenset({"x25519", "x25519-mlkem768"})
"""Groups that Chromium sends key shares of; others that it has take a HelloRetryRequest."""
BROWSER_SIGNATURES = frozenset({"rsa-2048", "rsa-4096", "ecdsa-p-256", "ecdsa-p-384"})
"""Signature algorithms of certificates that Chromium takes."""

SMALLEST_INITIAL = 1200
"""UDP payload in bytes that datagrams with Initial packets have at least (RFC 9000, 14.1)."""
UDP_OVERHEAD = 28
"""Bytes of IPv4 and UDP headers."""
DEFAULT_MTU = 1500


def flavour_of(variant: Variant, library: Library) -> str:
    """The flavour that a variant is measured on."""
    if variant.flavour is not None:
        return variant.flavour
    # all MTUs on one build, as they are compared
    jumbo = next((name for name, flavour in library.flavours.items() if flavour.jumbo), None)
    if variant.mtu is not None and jumbo is not None:
        return jumbo
    # without packet protection there is no header protection either, which takes no other build
    unprotected = library.transport == "quic" and not variant.header_protection and variant.aead != "noenc"
    return "noop" if variant.aead == "noop" or unprotected else "stock"


def congestion_control_of(library: Library, asked: str) -> str:
    """The congestion control that a workload asks for, of a library."""
    return library.supports.congestion_controls[0] if asked == "any" else asked


def pacing_of(library: Library, asked: str | None, congestion_control: str) -> str | None:
    """The `--pacing` of a library's endpoints with this congestion control, or None if it is not told."""
    supports = library.supports
    if asked is None or not supports.pacing:
        return None
    if asked != "own":
        return asked
    if supports.paces is not None and congestion_control not in supports.paces:
        return "off"
    return next(value for value, able in supports.pacing.items() if able is True)


def io_of(variant: CellVariant, role: Side) -> str | None:
    """How datagrams pass at one end of a cell, or None if UDP GSO and GRO are all that is said of it."""
    return "gso" if variant.io is not None and variant.io_at not in (None, role) else variant.io


def alpn_of(library: Library, variant: CellVariant) -> str:
    """The application protocol of a cell's connections."""
    return variant.alpn or library.alpn


def algorithm_reason(title: str, library: Library, flavour: str, kind: str, name: str) -> str | None:
    """Why a flavour has no group or signature algorithm of this name, or None if it has."""
    build = library.flavours[flavour]
    if build.algorithms == "all":
        return f"{title}: {build.unsupported[name]}" if name in build.unsupported else None
    listed = library.supports.groups if kind == "group" else library.supports.signatures
    return None if name in listed else f"{title} has no {kind} {name} in flavour {flavour}"


def noenc_reason(library: Library) -> str:
    """Why a library that has no NOENC cannot leave out packet protection."""
    if library.transport == "tcp":
        return "TLS 1.3 protects every record of content (RFC 8446, 5.2)"
    return "QUIC protects all 1-RTT packets (RFC 9001, 5), and the library has no extension for both ends to agree on"


def open_loop_reason(library: Library, variant: Variant) -> str | None:
    """Why a library's client cannot begin connections as a variant asks, or None if it can."""
    able = library.supports.open_loop
    return None if variant.load is None or able is True else f"{library.title}: {able or 'has no --rate'}"


Reasons = Iterator[str | bool | None]
"""Why a library cannot do what is asked of it, one after the other; null or false where it can."""


def unsupported_reason(library: Library, variant: Variant, congestion_control: str) -> str | None:
    """Why a library cannot do a variant according to its description, or None if it can."""
    return next((str(reason) for reason in _reasons(library, variant, congestion_control) if reason), None)


def _lack(title: str, able: object, otherwise: str = "") -> str | None:
    """Null if *able* is true, else why it is not: *able* itself, or *otherwise* if that gives no reason."""
    return None if able is True else f"{title}: {able or otherwise}"


def _reasons(library: Library, variant: Variant, congestion_control: str) -> Reasons:
    """Of all keys of a variant. What comes later relies on what comes before."""
    title, supports, external = library.title, library.supports, library.external
    quic = library.transport == "quic"
    yield external is not None and external.problem and f"{title}: {external.problem}"
    flavour = flavour_of(variant, library)
    if flavour not in library.flavours:
        reason = library.no_flavour.get(flavour)
        yield f"{title}: {reason}" if reason else f"{title} has no flavour {flavour}"
    yield variant.cipher not in supports.ciphers and f"{title} has no {variant.cipher}"
    yield algorithm_reason(title, library, flavour, "group", variant.group)
    yield algorithm_reason(title, library, flavour, "signature", variant.signature)
    if variant.tls_version == "TLSv1.2":
        yield quic and f"{title}: QUIC has no TLS before 1.3 (RFC 9001, 4.2)"
        yield not supports.tls12 and f"{title} has no TLS 1.2"
    if variant.alpn not in (None, library.alpn):
        yield _lack(title, supports.http3 if quic else "HTTP/3 runs over QUIC (RFC 9114)", "has no HTTP/3")
    if variant.bytes is not None and library.max_bytes is not None:
        yield variant.bytes > library.max_bytes and f"{title} is asked for at most {library.max_bytes} bytes"
    yield variant.retry and _lack(title, supports.retry, "has no Retry")
    if variant.initial_size > SMALLEST_INITIAL:
        yield _lack(title, supports.initial_size, "has no larger Initial packets")
    yield from _of_sending(library, variant, congestion_control)
    if variant.page is not None or variant.video is not None:
        yield not supports.pages and f"{title}: its endpoints load no pages"
    if variant.visit in ("resumed", "early-data"):
        yield _lack(title, supports.resumption)
    if variant.visit == "early-data":
        yield variant.tls_version == "TLSv1.2" and "TLS 1.2 has no early data (RFC 8446, 1.2)"
        yield _lack(title, supports.early_data)
    if variant.loaded_by == "chromium":
        # what else loads pages can load another over the same connection
        kept = "the program that drives Chromium waits until the connection of the first visit is closed"
        yield variant.visit == "kept" and kept
        yield (variant.aead != "standard" or not variant.header_protection) and "Chromium protects all packets"
        yield variant.group not in BROWSER_GROUPS and f"Chromium sends no key share of {variant.group}"
        yield variant.signature not in BROWSER_SIGNATURES and f"Chromium takes no certificates with {variant.signature}"
    yield variant.aead == "noop" and not supports.noop and f"{title} has no NOOP AEAD"
    if variant.aead == "noenc":
        yield not supports.noenc and f"{title} cannot leave out packet protection: {noenc_reason(library)}"
    elif quic and not variant.header_protection:
        yield not supports.header_protection_off and f"{title} cannot switch header protection off"
    if library.transport == "udp" and (variant.receive_buffer, variant.mtu) != (None, None):
        yield f"{title} has sockets and datagrams of one size"
    yield variant.receive_buffer is not None and not quic and f"{title}: the kernel sizes the buffers of TCP"
    if external is not None:
        yield from _unstated(external, variant)
    if variant.aes_hardware is False and isinstance(supports.aes_hardware_off, str):
        yield f"{title}: {supports.aes_hardware_off}"
    if variant.march is not None:
        yield _lack(title, march.unsupported_reason(library) or True)
    limit = None if library.flavours[flavour].jumbo else supports.udp_payload_max
    if limit is not None and variant.mtu is not None and variant.mtu > DEFAULT_MTU:
        if isinstance(limit, str):
            yield f"{title}: {limit}"
        elif variant.mtu > (holds := limit + UDP_OVERHEAD):
            yield f"{title} sends datagrams of at most {limit} bytes, which an MTU of {holds} holds"


def _of_sending(library: Library, variant: Variant, congestion_control: str) -> Reasons:
    """Of congestion control, and of how and when datagrams leave."""
    title, supports, transport = library.title, library.supports, library.transport
    gso, gro, io, pacing = variant.gso, variant.gro, variant.io, variant.pacing
    controlled = congestion_control_of(library, variant.congestion_control or congestion_control)
    yield controlled not in supports.congestion_controls and f"{title} has no congestion control {controlled}"
    if transport == "udp" and (gso, gro, io) not in ((None, None, None), (None, None, "gso")):
        yield f"{title} is always with UDP GSO and GRO"
    yield gso is not None and transport != "quic" and f"{title}: the kernel segments what TCP sends"
    yield gro is not None and transport != "quic" and f"{title}: the kernel joins what TCP receives"
    yield io is not None and transport == "tcp" and f"{title}: the kernel makes the segments of TCP"
    yield gso in ("on", "paced") and not supports.gso and f"{title} has no UDP GSO"
    yield gro and not supports.gro and f"{title} has no UDP GRO"
    yield gso == "paced" and _lack(title, supports.gso_paced)
    if io is not None and io not in supports.io:
        yield f"{title}: its endpoints cannot be told to pass datagrams by `{io}`"
    if pacing is not None and pacing != "own":
        yield _lack(title, supports.pacing.get(pacing, "its endpoint has no option for pacing"))
    if variant.qdisc == "etf":
        timed = pacing_of(library, pacing, controlled) == "txtime"
        yield not timed and f"{title}: ETF needs a release time for every packet, so `pacing: txtime`"
        yield library.external is not None and f"{title}: external endpoints have no option for ETF"
    if supports.paces is not None and controlled not in supports.paces:
        timed = gso == "paced" or pacing in ("library", "txtime")
        yield timed and f"{title} computes release times with {', '.join(supports.paces)} only"


def _unstated(library: ExternalLibrary, variant: Variant) -> Reasons:
    """Of what the folder of an external endpoint does not state, but for lists of `supports`.

    Interfaces of the hosts are set whatever a folder states, which is all that offloads are for TCP.
    """
    stated, told = library.statement.supports, f"{library.title}: its {STATEMENT}"
    unset = variant.receive_buffer is not None and not stated.receive_buffer
    yield unset and f"{told} does not say that it sets the size of its buffers"
    gso = None if variant.gso is None else variant.gso != "off"
    gro = variant.gro
    if variant.offloads is not None:
        gso = gro = variant.offloads != "off"
    for what, wanted, able in (("GSO", gso, stated.gso), ("GRO", gro, stated.gro)):
        if wanted is not None and library.transport == "quic":
            yield not able and f"{told} does not say whether it uses UDP {what}"
            yield not wanted and False not in able and f"{told} says that it always uses UDP {what}"
