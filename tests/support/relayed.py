"""Proofs of endpoints over loopback: a relay that captures what it passes on, and what is claimed."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from wirefixtures import CLIENT, SERVER, udp


class Relay:
    """Stands between a client and a server and keeps what they send as frames of a capture.

    The client gets what `passes` makes of every datagram of the server.
    """

    def __init__(self, port: int, passes: Callable[[bytes], list[bytes]] = lambda datagram: [datagram]) -> None:
        self.passes = passes
        self.frames: list[bytes] = []
        self.front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for end in (self.front, self.back):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.front.bind(("127.0.0.1", 0))
        self.back.connect(("127.0.0.1", port))
        self.port: int = self.front.getsockname()[1]
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        client = None
        with selectors.DefaultSelector() as selector:
            for end in (self.front, self.back):
                selector.register(end, selectors.EVENT_READ)
            while not self.ended.is_set():
                for key, _ in selector.select(0.05):
                    if key.fileobj is self.front:
                        data, client = self.front.recvfrom(65535)
                        self.frames.append(udp(CLIENT, SERVER, data))
                        self.back.send(data)
                    elif client is not None:
                        for data in self.passes(self.back.recv(65535)):
                            self.frames.append(udp(SERVER, CLIENT, data))
                            self.front.sendto(data, client)

    def close(self) -> list[bytes]:
        self.ended.set()
        self.thread.join()
        self.front.close()
        self.back.close()
        return self.frames


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
