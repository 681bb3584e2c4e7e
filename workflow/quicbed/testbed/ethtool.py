"""Statistics that a network driver keeps of an interface, as ``ethtool -S`` shows them (linux/ethtool.h)."""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_ETHTOOL_GSTRINGS = 0x1B
_ETHTOOL_GSTATS = 0x1D
_ETHTOOL_GSSET_INFO = 0x37
_ETH_SS_STATS = 1
_NAME_BYTES = 32


class Statistics:
    """Statistics of one interface; its names are asked for once."""

    def __init__(self, control: socket.socket, interface: str) -> None:
        """*control* is any socket of the interface's network namespace, closed with this object.

        :class:`OSError` if there is no such interface.
        """
        self._control = control
        self._interface = interface.encode()
        self._names = self._read_names()

    def _ask(self, request: bytes, answer: int) -> bytes:
        """The kernel's answer, *answer* bytes after the request."""
        buffer = array.array("B", request + bytes(answer))
        # struct ifreq: name, then the address of what is asked
        fcntl.ioctl(self._control, _SIOCETHTOOL, struct.pack("16sP16x", self._interface, buffer.buffer_info()[0]))
        return buffer.tobytes()

    def _read_names(self) -> list[str]:
        try:
            told = self._ask(struct.pack("=IIQ", _ETHTOOL_GSSET_INFO, 0, 1 << _ETH_SS_STATS), 4)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return []
            raise
        mask, count = struct.unpack_from("=QI", told, 8)
        if not mask:
            return []
        header = struct.pack("=III", _ETHTOOL_GSTRINGS, _ETH_SS_STATS, count)
        text = self._ask(header, count * _NAME_BYTES)[len(header) :]
        names = (text[at : at + _NAME_BYTES].split(b"\0")[0] for at in range(0, count * _NAME_BYTES, _NAME_BYTES))
        return [name.decode(errors="replace").strip() for name in names]

    def read(self) -> dict[str, int]:
        """The statistics now; empty where the driver keeps none."""
        if not self._names:
            return {}
        header = struct.pack("=II", _ETHTOOL_GSTATS, len(self._names))
        values = struct.unpack_from(f"={len(self._names)}Q", self._ask(header, 8 * len(self._names)), len(header))
        return dict(zip(self._names, values, strict=True))

    def close(self) -> None:
        """Let go of the namespace."""
        self._control.close()
