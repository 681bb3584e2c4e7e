"""What client and server have in common: aioquic set up as the options say, and what it tells about a connection."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import cryptography
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.bindings.openssl.binding import Binding
from quicbed_contract import ALPN, CONTRACT, HTTP3
from quicbed_contract.clock import CpuTime, now_ns
from quicbed_contract.events import one_line
from quicbed_contract.options import Options

import aioquic
from aioquic import tls
from aioquic._crypto import AEAD, HeaderProtection
from aioquic.buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion, pull_quic_transport_parameters

from . import features
from .context import Context

LIBRARY = "aioquic"
VERSION: str = aioquic.__version__

OPENSSL = " ".join(backend.openssl_version_text().split()[:2])
"""What is inside of the package cryptography, as `OpenSSL 4.0.3`."""

LARGEST_PACKET = 16383
"""aioquic writes lengths of packets and frames in two bytes (RFC 9000, section 16)."""

HTTP3_NO_ERROR = 0x100
"""H3_NO_ERROR (RFC 9114, section 8.1). Over HTTP/3 the contract's errors of a connection are counted from it."""

OPENSSL_CPU_INFO = 9
"""What OpenSSL_version(3) is asked for."""

CIPHERS = {
    "aes-128-gcm": tls.CipherSuite.AES_128_GCM_SHA256,
    "aes-256-gcm": tls.CipherSuite.AES_256_GCM_SHA384,
    "chacha20-poly1305": tls.CipherSuite.CHACHA20_POLY1305_SHA256,
}
GROUPS: dict[str, int] = {
    "x25519": tls.Group.X25519,
    "x448": tls.Group.X448,
    "p-256": tls.Group.SECP256R1,
    "p-384": tls.Group.SECP384R1,
    "p-521": tls.Group.SECP521R1,
}
SIGNATURES: dict[str, int] = {
    "rsa-1024": tls.SignatureAlgorithm.RSA_PSS_RSAE_SHA256,
    "rsa-2048": tls.SignatureAlgorithm.RSA_PSS_RSAE_SHA256,
    "rsa-4096": tls.SignatureAlgorithm.RSA_PSS_RSAE_SHA256,
    "ecdsa-p-256": tls.SignatureAlgorithm.ECDSA_SECP256R1_SHA256,
    "ecdsa-p-384": tls.SignatureAlgorithm.ECDSA_SECP384R1_SHA384,
    "ed25519": tls.SignatureAlgorithm.ED25519,
}

_pq = features.find("pq")
if _pq:
    GROUPS |= _pq.GROUPS
    SIGNATURES |= _pq.SIGNATURES


def description() -> dict[str, Any]:
    """What `--describe` prints."""
    noop = features.find("noop") is not None
    return {
        "contract": CONTRACT,
        "library": LIBRARY,
        "version": VERSION,
        "tls_library": f"aioquic {VERSION} on cryptography {cryptography.__version__}, {OPENSSL}",
        "flavour_features": [name for name in ("noop", "pq") if features.find(name)],
        "transport": "quic",
        "alpn": [ALPN, HTTP3],
        "ciphers": list(CIPHERS),
        "aead": ["standard", "noop"] if noop else ["standard"],
        "header_protection": ["on", "off"] if noop else ["on"],
        "groups": list(GROUPS),
        "signatures": list(SIGNATURES),
        "retry": True,
        "initial_size": True,
        "congestion_controls": ["cubic", "reno"],
        "pacing": ["library"],
        "gso": True,
        "gso_paced": False,
        "gro": True,
        "files": True,
    }


def aes_hardware() -> bool | None:
    """Whether OpenSSL uses the AES instructions of the processor, as it tells itself; None where it does not.

    It tells the capabilities it goes by, those left by the variable OPENSSL_ia32cap: CPUID leaf 1, EDX and above it
    ECX, whose bit 25 is AES (OPENSSL_ia32cap(3)).
    """
    bindings = Binding()
    said = bindings.ffi.string(bindings.lib.OpenSSL_version(OPENSSL_CPU_INFO)).decode()
    found = re.search(r"OPENSSL_ia32cap=0x([0-9a-f]+)", said)
    return bool(int(found[1], 16) >> (32 + 25) & 1) if found else None


def unsupported(options: Options) -> str | None:
    """Why aioquic cannot do what is asked, beyond what its description tells."""
    if options.udp_payload > LARGEST_PACKET:
        return f"{LIBRARY} makes no datagrams of more than {LARGEST_PACKET} bytes"
    return None


class KeyLog:
    """TLS secrets, kept in memory until a connection is over."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lines: list[str] = []
        self.save()  # a path that cannot be written is to be noticed at the start

    def write(self, line: str) -> None:
        """Keep a line."""
        self._lines.append(line)

    def flush(self) -> None:
        """Do nothing: aioquic flushes after every line."""

    def save(self) -> None:
        """Append what was kept to the file."""
        with open(self.path, "a", encoding="ascii") as file:
            file.writelines(self._lines)
        self._lines.clear()


class Cubic(CubicCongestionControl):
    """CUBIC of aioquic, counting the packets declared lost."""

    lost = 0

    def on_packets_lost(self, *, now: float, packets: Iterable[Any]) -> None:
        """Count and go on."""
        packets = list(packets)
        self.lost += len(packets)
        super().on_packets_lost(now=now, packets=packets)


class Reno(RenoCongestionControl):
    """NewReno of aioquic, counting the packets declared lost."""

    lost = 0

    def on_packets_lost(self, *, now: float, packets: Iterable[Any]) -> None:
        """Count and go on."""
        packets = list(packets)
        self.lost += len(packets)
        super().on_packets_lost(now=now, packets=packets)


class Connection(QuicConnection):
    """A connection of aioquic restricted as the options say, which tells what the contract asks for."""

    def __init__(self, options: Options, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._options = options
        # congestion control and pacing count in full datagrams from the start; only the first ones are smaller
        self._max_datagram_size = options.initial_size
        self.packets_received = 0
        self.closed_by_peer = False
        self.t_handshake_complete: int | None = None
        self.t_handshake_confirmed: int | None = None
        self.negotiated: dict[str, Any] = {}

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls._supported_groups = [GROUPS[self._options.group]]
        self.tls._signature_algorithms = [SIGNATURES[self._options.signature]]

    def _confirm_handshake(self) -> None:
        super()._confirm_handshake()
        if self.t_handshake_confirmed is None:
            self.t_handshake_confirmed = now_ns()

    def _close_begin(self, is_initiator: bool, now: float) -> None:
        super()._close_begin(is_initiator=is_initiator, now=now)
        self.closed_by_peer = not is_initiator

    def _payload_received(self, *arguments: Any, **named: Any) -> tuple[bool, bool]:
        self.packets_received += 1
        return super()._payload_received(*arguments, **named)

    def completed(self) -> None:
        """Note that the handshake is complete and what was negotiated."""
        self.t_handshake_complete = now_ns()
        if not self._is_client and self.t_handshake_confirmed is not None:
            # for a server both are the same moment (RFC 9001, section 4.1.2)
            self.t_handshake_complete = self.t_handshake_confirmed
        context = self.tls
        keys = self._cryptos[tls.Epoch.ONE_RTT]
        # the one private key that was made, whose public key the peer has answered
        if context._x25519_private_key is not None:
            group = "x25519"
        elif context._x448_private_key is not None:
            group = "x448"
        else:
            group = context._ec_private_keys[-1].curve.name
        standard = type(keys.send.aead) is AEAD and type(keys.recv.aead) is AEAD
        protected = type(keys.send.hp) is HeaderProtection and type(keys.recv.hp) is HeaderProtection
        self.negotiated = {
            "cipher": f"TLS_{tls.CipherSuite(context.key_schedule.cipher_suite).name}",
            "group": group,
            "signature": _signature_name(context.signature),
            "alpn": context.alpn_negotiated,
            "tls_version": "TLSv1.3",
            "aead": "standard" if standard else "noop",
            "header_protection": "on" if protected else "off",
            "hello_retry_request": False,
        }

    def full_size(self) -> None:
        """Send datagrams of full size from now on, as far as the peer takes them, which aioquic does not look at."""
        self._max_datagram_size = self._options.udp_payload
        for kind, data in self.tls.received_extensions or ():
            if kind == tls.ExtensionType.QUIC_TRANSPORT_PARAMETERS:
                most = pull_quic_transport_parameters(Buffer(data=data)).max_udp_payload_size
                self._max_datagram_size = min(self._max_datagram_size, most or self._max_datagram_size)

    def sent(self, stream: int) -> int:
        """Bytes of a stream that were put into packets so far."""
        known = self._streams.get(stream)
        return known.sender.highest_offset if known else 0

    @property
    def closed(self) -> bool:
        """Whether the connection was closed, by this side or by the peer."""
        return self._close_event is not None and not self._close_pending

    def end(self, code: int, reason: str = "") -> None:
        """Close the connection with an error of the contract."""
        self.close(error_code=self._no_error + code, reason_phrase=reason)

    @property
    def _no_error(self) -> int:
        return HTTP3_NO_ERROR if self._options.alpn == HTTP3 else 0

    def why_closed(self) -> str | None:
        """Why the connection was closed, as one line; None if it was without an error."""
        event = self._close_event
        # an error of the application has no type of frame
        if event is None or event.error_code == (self._no_error if event.frame_type is None else 0):
            return None
        what = f"error 0x{event.error_code:x}"
        if event.frame_type is not None and event.error_code & ~0xFF == 0x100:
            alert = event.error_code & 0xFF
            names = {description.value: description.name for description in tls.AlertDescription}
            what = f"TLS alert {alert} ({names.get(alert, 'unknown')})"
        reason = f": {event.reason_phrase}" if event.reason_phrase else ""
        if event.reason_phrase == "Idle timeout" and not self.closed_by_peer:
            return "nothing was received until the idle timeout"
        return one_line(f"{'received' if self.closed_by_peer else 'sent'} {what}{reason}")

    def report(self) -> dict[str, Any]:
        """Fields of the `connection` event that aioquic knows."""
        return {
            "t_handshake_complete": self.t_handshake_complete,
            "t_handshake_confirmed": self.t_handshake_confirmed,
            "packets_sent": self._packet_number,
            "packets_received": self.packets_received,
            "packets_lost": self._loss._cc.lost,
            **self.negotiated,
        }

    def take_apart(self) -> None:
        """Free the memory now: aioquic's objects refer to each other, and would wait for the garbage collector."""
        vars(self).clear()


class Traffic:
    """Datagrams of a connection until its handshake is complete, and processor time from its first one."""

    def __init__(self) -> None:
        self.cpu: CpuTime | None = None
        self.counts = dict.fromkeys(("packets_sent", "packets_received", "bytes_sent", "bytes_received"), 0)
        self.counting = True

    def sent(self, datagrams: list[bytes]) -> None:
        """Datagrams were handed to the system."""
        if self.counting:
            self.counts["packets_sent"] += len(datagrams)
            self.counts["bytes_sent"] += sum(map(len, datagrams))

    def received(self, datagram: bytes) -> None:
        """A datagram was received."""
        if self.counting:
            self.counts["packets_received"] += 1
            self.counts["bytes_received"] += len(datagram)

    def report(self, end: CpuTime) -> dict[str, Any]:
        """Fields of the `connection` event; those of the handshake only if it was completed."""
        fields: dict[str, Any] = {}
        if not self.counting:
            fields = {f"handshake_{name}": count for name, count in self.counts.items()}
        if self.cpu is not None:
            fields["cpu_user_ns"] = end.user_ns - self.cpu.user_ns
            fields["cpu_system_ns"] = end.system_ns - self.cpu.system_ns
        return fields


def _signature_name(scheme: int | None) -> str | None:
    """The name of a signature scheme in TLS."""
    if _pq and scheme in _pq.SCHEMES:
        return str(_pq.SCHEMES[scheme].algorithm.tls_name)
    return tls.SignatureAlgorithm(scheme).name.lower() if scheme else None


def set_up(options: Options) -> None:
    """Prepare aioquic for all connections of this process."""
    # warnings about failed connections are events; a line on standard error would cost time
    logging.getLogger("quic").setLevel(logging.CRITICAL + 1)
    register_congestion_control("cubic", Cubic)
    register_congestion_control("reno", Reno)
    tls.Context = Context
    if _pq:
        _pq.install()
    noop, off = options.aead == "noop", options.header_protection == "off"
    if (noop or off) and (module := features.find("noop")):
        module.install(noop_aead=noop, header_protection_off=off)


def configuration(
    options: Options, key_log: KeyLog | None, *, is_client: bool, idle_timeout: float
) -> QuicConfiguration:
    """The configuration of all connections of this process."""
    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=[options.alpn or ALPN],
        cipher_suites=[CIPHERS[options.cipher]],
        congestion_control_algorithm=options.congestion_control or "cubic",
        idle_timeout=idle_timeout,
        max_data=options.window,
        max_stream_data=options.window,
        max_datagram_size=options.udp_payload,
        secrets_log_file=key_log,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )


def read(option: str, path: str, parse: Callable[[bytes], Any]) -> Any:
    """What a PEM file named in an option holds; raises OSError or ValueError with a message that names both."""
    try:
        with open(path, "rb") as file:
            held = parse(file.read())
    except OSError as error:
        raise OSError(f"--{option} {path}: {os.strerror(error.errno or 0)}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # cryptography says TypeError where a key has a password
        raise ValueError(f"--{option} {path}: {one_line(error)}") from None
    if not held:
        raise ValueError(f"--{option} {path}: is empty")
    return held


def load_private_key(pem: bytes) -> Any:
    """A server's private key; raises ValueError or TypeError."""
    return _pq.load_private_key(pem) if _pq else tls.load_pem_private_key(pem)


def belongs(key: Any, certificate: Any) -> bool:
    """Whether a private key is that of a certificate."""
    if _pq and isinstance(key, _pq.SigningKey):
        return bool(key.belongs_to(certificate))
    try:
        return bool(key.public_key() == certificate.public_key())
    except UnsupportedAlgorithm:
        return False
