"""The one request of `hq-interop` as the contract uses it: `GET /<n>` for `n` bytes, `GET /<name>` for a file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from quicbed_contract.content import Body

MAX_NAME = 255
"""Longest name of a file, as of most file systems (NAME_MAX)."""

MAX_REQUEST = 5 + MAX_NAME + 2
"""Longest request: `GET /`, a name, CRLF."""


class BadRequestError(Exception):
    """A request that is neither `GET /<n>` nor for a file that is served."""


class Files:
    """The regular files in a directory by name, as they are now; none may shrink while it is served (mmap(2))."""

    def __init__(self, directory: str | None) -> None:
        """Raises OSError. None is no directory and has no files."""
        self._served = directory is not None
        self._files: dict[str, mmap.mmap | bytes] = {}
        for entry in Path(directory).iterdir() if directory is not None else ():
            if entry.is_file():
                with entry.open("rb") as file:
                    empty = os.fstat(file.fileno()).st_size == 0  # which mmap(2) refuses
                    self._files[entry.name] = b"" if empty else mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def parse(self, request: bytes) -> Body:
        """What a complete request asks for; files go before content of a size that is their name."""
        file = self._files.get(_asked(request).decode(errors="replace"))
        if file is not None:
            return Body(len(file), file)
        try:
            return Body(parse(request))
        except BadRequestError as error:
            raise BadRequestError(f"{error}, nor for a file of --www" if self._served else str(error)) from None


def name_of(path: str) -> str:
    """Name by which a file that is to be saved is asked for. Raises ValueError."""
    name = Path(path).name
    if name in ("", "..") or len(os.fsencode(name)) > MAX_NAME or " " in name or not name.isprintable():
        raise ValueError("its name cannot be asked for")
    return name


def write(size: int) -> bytes:
    """The request for `size` bytes of content."""
    return b"GET /%d\r\n" % size


def _asked(request: bytes) -> bytes:
    """What follows `GET /`, whose line may lack its end; empty where the request is another."""
    line = request.removesuffix(b"\n").removesuffix(b"\r")
    return line.removeprefix(b"GET /") if line.startswith(b"GET /") else b""


def parse(request: bytes) -> int:
    """Number of bytes a complete request asks for; the end of the line may be missing."""
    number = _asked(request)
    if not number.isdigit() or int(number) >= 1 << 64:
        raise BadRequestError(f"request is not `GET /<bytes>`: {request[:MAX_REQUEST]!r}")
    return int(number)
