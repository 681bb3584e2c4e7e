"""Joins standard input and output to a TCP port, as `ProxyCommand` of ssh_config(5) wants it: `python relay.py ADDRESS
PORT`. A program of the standard library.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

PART = 1 << 16
CONNECT_S = 10.0


def _outwards(connection: socket.socket) -> None:
    while part := os.read(0, PART):
        connection.sendall(part)
    connection.shutdown(socket.SHUT_WR)


def main() -> None:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), CONNECT_S)
    connection.settimeout(None)
    threading.Thread(target=_outwards, args=(connection,), daemon=True).start()
    while part := connection.recv(PART):
        while part:
            part = part[os.write(1, part) :]


if __name__ == "__main__":
    main()
