"""Proofs of endpoints over loopback: a relay that captures what it passes on, and what is claimed."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

from wirefixtures import CLIENT, SERVER, udp

BUFFER = 8 << 20
SO_RCVBUFFORCE = 33
"""socket(7); Python has no name for it."""


class Relay:
    """Stands between a client and a server and keeps what they send.

    The client gets what `passes` makes of every datagram of the server. *port* may be a function that names the server
    of the client's nth datagram.
    """

    def __init__(
        self,
        port: int | Callable[[int], int],
        passes: Callable[[bytes], list[bytes]] = lambda datagram: [datagram],
    ) -> None:
        self.passes = passes
        self.server = port if callable(port) else lambda _: port
        self.to_server: list[bytes] = []
        self.to_client: list[bytes] = []
        self.frames: list[bytes] = []
        self.client: tuple[str, int] | None = None
        self.front, self.back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for end in (self.front, self.back):
            # as much as endpoints have; not forced, it is at most what the system allows
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            with contextlib.suppress(PermissionError):
                end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
            end.bind(("127.0.0.1", 0))
        self.port: int = self.front.getsockname()[1]
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end in (self.front, self.back):
                selector.register(end, selectors.EVENT_READ)
            while not self.ended.is_set():
                self._pass_on(selector, 0.05)
            # what the client sent before it ended, as the close of its connection, still reaches the server
            selector.unregister(self.back)
            while self._pass_on(selector, 0):
                pass

    def _pass_on(self, selector: selectors.BaseSelector, wait_s: float) -> bool:
        """A datagram of each side, if there is one within the time; tells whether there was any."""
        ready = selector.select(wait_s)
        for key, _ in ready:
            if key.fileobj is self.front:
                data, self.client = self.front.recvfrom(65535)
                self.to_server.append(data)
                self.frames.append(udp(CLIENT, SERVER, data))
                self.again(data)
            elif self.client is not None:
                for data in self.passes(self.back.recv(65535)):
                    self.to_client.append(data)
                    self.frames.append(udp(SERVER, CLIENT, data))
                    self.front.sendto(data, self.client)
        return bool(ready)

    def again(self, datagram: bytes) -> None:
        """Send the server something in the name of the client."""
        self.back.sendto(datagram, ("127.0.0.1", self.server(len(self.to_server))))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> list[bytes]:
        """End; returns the frames of a capture."""
        if not self.ended.is_set():
            self.ended.set()
            self.thread.join()
            self.front.close()
            self.back.close()
        return self.frames


class HeldBack:
    """Stands between a client and a server of TCP; what the server says first arrives *held_s* seconds late."""

    def __init__(self, port: int, held_s: float) -> None:
        self.server, self.held_s = port, held_s
        self.front = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.front.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self.front.accept()
                server = socket.create_connection(("127.0.0.1", self.server))
                for source, sink, held_s in ((client, server, 0.0), (server, client, self.held_s)):
                    threading.Thread(target=self._pass_on, args=(source, sink, held_s), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, held_s: float) -> None:
        with contextlib.suppress(OSError):  # one end is gone
            data = source.recv(65536)
            time.sleep(held_s)
            while data:
                sink.sendall(data)
                data = source.recv(65536)
            sink.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.front.shutdown(socket.SHUT_RDWR)
        self.front.close()


@dataclass(frozen=True)
class Claim:
    """A variant, as far as the wire can show it."""

    flavour: str
    aead: str
    header_protection: bool | None
    cipher: str = "aes-128-gcm"
    cipher_suite: ClassVar[int | None] = None
    group: ClassVar[int | None] = None

    def options(self) -> list[str]:
        shown = "on" if self.header_protection else "off"
        return ["--aead", self.aead, "--header-protection", shown, "--cipher", self.cipher]
