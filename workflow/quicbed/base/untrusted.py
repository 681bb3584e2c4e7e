"""What other people's programs and machines say and leave: read within bounds, and refused in one line.

A name may be that of a link, a FIFO or a file of any size; JSON may be nested, hold numbers that nothing else can hold
or text that is no Unicode; an archive may be damaged, be a bomb, or have headers that send its reader in circles. What
cannot be read is an `UntrustedError`, never another exception, and nothing waits for ever.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import io
import json
import lzma
import os
import re
import signal
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Container, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from quicbed.base import trees
from quicbed.base.errors import QuicbedError

MOST_TEXT = 2000
"""Characters that are kept of what a program says."""
MOST_BYTES = 64 << 20
"""Largest file that is read whole where no other limit is given."""
MOST_UNPACKED = 1 << 30
"""Bytes to which an archive may unpack, and `UNPACKED_RATIO` times its size more."""
UNPACKED_RATIO = 1000
MOST_PACKED = 16 << 30
"""Largest archive of runs."""
MOST_KEPT = 2 << 30
"""Bytes that are read of an archive of runs: a table of them is made in memory."""
MOST_MEMORY = 256 << 20
"""Bytes that decompressing may take."""
MOST_MEMBERS, MOST_OF_RUNS = 1_000_000, 200_000
"""Members of an archive, and of one of runs."""
MOST_HEADER_BYTES = 1 << 20
"""What a header of a tar archive may ask to be read at once."""
DEEPEST = 64
"""Objects and lists within each other in a JSON document."""
DEEPEST_DIRECTORIES = 64
"""Directories within each other that a program may leave."""
NAME_BYTES, PATH_BYTES = 200, 4000
"""Longest name and path that are taken from an archive: a file system takes 255 and 4095."""

_CHUNK = 1 << 20
_CONTAINERS = (dict, list)
_LEAST, _MOST = -(1 << 63), 1 << 64
_SHORT, _LONGEST = 18, 20
"""Characters of an integer: so many are within these limits, and more are not."""
# the last are marks that change the direction in which text is read
_COMMANDS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_COMMAND, _UNPRINTABLE = re.compile(f"[{_COMMANDS}]"), re.compile(f"[{_COMMANDS}\ud800-\udfff]")


_ANYTHING = (
    *(tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error),
)
"""What tarfile and decompressors raise at what nobody meant them to read."""


class Stream(Protocol):
    """A file or what a decompressor offers."""

    def read1(self, size: int, /) -> bytes:
        """Some bytes, none at the end."""
        ...


class UntrustedError(QuicbedError, ValueError):
    """Why a file is not used: what is wrong with it, without its name."""


# ---- text ------------------------------------------------------------------------------------------------------------


def one_line(text: object, most: int = MOST_TEXT) -> str:
    """What a program says as a part of a line: words with single spaces, at most *most* characters; may be empty."""
    # what is longer is cut before it is looked at
    words = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * most]).split()
    return " ".join(words)[:most]


def shown(value: object, most: int = 300) -> str:
    """A value that is quoted: one line of at most *most* characters, what is no printable character made visible."""
    try:
        line = str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        line = f"a {type(value).__name__} that cannot be printed"
    line = _UNPRINTABLE.sub("\ufffd", line[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # it begins as that of UTF-16 does
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, and what is encoded so."""
_OTHER_FORMS = {
    b"PK\x03\x04": "a ZIP archive: unpack it",
    b"PK\x05\x06": "an empty ZIP archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it",
    b"Rar!\x1a\x07": "a RAR archive: unpack it",
    b"\x1f\x8b": "compressed with gzip: unpack it",
    b"BZh": "compressed with bzip2: unpack it",
    b"\xfd7zXZ\x00": "compressed with xz: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard: unpack it",
    b"version https://git-lfs.github.com/": "a pointer of Git LFS without the content: run git lfs pull",
}
_JSON = (b"{", b"[")
_HTML = re.compile(rb"\s{0,100}<(?:!doctype html|html)\b", re.IGNORECASE)
_LINE_END = re.compile(r"\r+\n?")


def other_form(content: bytes) -> str | None:
    """What content that should be text is instead, with the remedy; None if nothing is known against it."""
    for magic, told in _OTHER_FORMS.items():
        if content.startswith(magic):
            return told
    return "a page in HTML, as servers send one in place of a file: fetch it again" if _HTML.match(content) else None


def decoded(content: bytes, errors: str = "replace") -> str:
    """Content as text: in the encoding that its byte order mark tells, which is left out, else in UTF-8.

    UntrustedError where it is known to be something else than text; UnicodeDecodeError with *errors* `strict`.
    """
    if content.startswith(_JSON):  # as nothing else begins; most of what is read are short lines of JSON
        return content.decode("utf-8", errors)
    if (told := other_form(content)) is not None:
        raise UntrustedError(f"is {told}")
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors)
    return content.decode("utf-8", errors)


def plain_text(content: bytes) -> str:
    """`decoded` with lines that end with a newline only, whatever system or checkout wrote them.

    What ended with ``\\r\\n`` before a copy made it ``\\r\\r\\n`` is one end of a line.
    """
    found = decoded(content)
    if "\r" in found:
        found = _LINE_END.sub(lambda ends: "\n" if ends[0][-1] == "\n" else "\n" * len(ends[0]), found)
    return found


def visible(text: object) -> str:
    """Text that commands no terminal: control characters are made visible, lines stay."""
    return "\n".join(_COMMAND.sub("\ufffd", line.replace("\t", " ")) for line in str(text).split("\n"))


def signal_name(number: int) -> str:
    """Name of a signal that has ended a program; those for real-time programs have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# ---- files -----------------------------------------------------------------------------------------------------------


def opened(path: Path, most: int | None = MOST_BYTES, *, links: bool = False) -> io.BufferedReader:
    """A regular file of at most *most* bytes, open; of what a link leads to only with *links*."""
    # not blocking: nobody may ever write to a FIFO
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise UntrustedError("is a link, not a file") from None
        raise UntrustedError(f"cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "cannot be read: Is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
    elif most is not None and status.st_size > most:
        problem = f"is larger than {most / 2**20:g} MiB"
    if problem is not None:
        os.close(descriptor)
        raise UntrustedError(problem)
    return open(descriptor, "rb")


def read(path: Path, most: int = MOST_BYTES, *, links: bool = False) -> bytes:
    """The content of what `opened` opens."""
    with opened(path, most, links=links) as file:
        content = _read(file, most + 1)
    if len(content) > most:
        raise UntrustedError(f"is larger than {most / 2**20:g} MiB")
    return content


def beginning(path: Path, length: int) -> bytes:
    """The first *length* bytes of a regular file of any size."""
    with opened(path, None) as file:
        return _read(file, length)


def end(path: Path, length: int) -> bytes:
    """The last *length* bytes of a regular file of any size."""
    with opened(path, None) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - length))
        return _read(file, length)


def _read(file: io.BufferedReader, length: int) -> bytes:
    try:
        return _beginning(file, length)
    except OSError as error:
        raise UntrustedError(f"cannot be read: {error.strerror}") from None


def _beginning(stream: Stream, size: int) -> bytes:
    """At most so many bytes, in pieces: most files are small, and memory for all that is allowed may not be there."""
    pieces, left = [], size
    while left and (piece := stream.read1(min(left, _CHUNK))):
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def scrub(directory: Path, reserved: Container[str] = (), there: Container[str] = ()) -> list[str]:
    """Remove from a directory what is not for programs to leave; returns the names, with the reason where it has to be.

    That is what is neither file nor directory, what is deeper than `DEEPEST_DIRECTORIES` or cannot be read, and, in the
    directory itself, what begins with a dot, as the names of files do that are being written, or has a *reserved* name.
    What was *there* before is no program's. Nothing is followed.
    """
    removed: list[str] = []
    unreadable: list[OSError] = []

    def remove(path: Path, why: str = "") -> None:
        removed.append(one_line(path.relative_to(directory), 200) + (f" ({why})" if why else ""))
        trees.remove(path)

    for top, names, others in trees.walk(directory, unreadable.append):
        depth = len(top.parts) - len(directory.parts)
        for name in [*names, *others]:
            path = top / name
            mode = path.lstat().st_mode
            if depth == 0 and name in there:
                keep = True
            elif depth == 0 and (name.startswith(".") or name in reserved):
                keep = False
            else:
                keep = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
            if not keep:
                remove(path)
            elif stat.S_ISDIR(mode) and depth >= DEEPEST_DIRECTORIES:
                remove(path, f"more than {DEEPEST_DIRECTORIES} directories deep")
            else:
                continue
            if name in names:
                names.remove(name)
    for error in unreadable:
        remove(Path(error.filename), f"cannot be read: {error.strerror}")
    return sorted(removed)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def parse(content: bytes, *, finite: bool = True) -> Any:
    """A JSON document of finite numbers of 64 bits, text that is Unicode, and at most `DEEPEST` levels.

    Without *finite* it may have the NaN and Infinity that JSON has not and Python writes: whoever reads on looks.
    """
    try:
        text = decoded(content, "strict")
        document = _DECODERS[finite, _has_many_digits(content)].decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except UntrustedError:
        raise
    except UnicodeEncodeError:
        raise UntrustedError("text that is no Unicode: a lone surrogate") from None
    except RecursionError:
        raise UntrustedError(f"nested more than {DEEPEST} deep") from None
    except _BeyondError as error:
        raise UntrustedError(f"a number beyond 64 bits: {shown(error, 24)}") from None
    except ValueError as error:
        raise UntrustedError(f"truncated or corrupt: {error}") from None
    if text.count("{") + text.count("[") > DEEPEST:
        _limit_depth(document)
    return document


class _BeyondError(ValueError):
    pass


def _limit_depth(document: Any) -> None:
    level = [document]
    for _ in range(DEEPEST + 2):
        level = [value for value in level if type(value) in _CONTAINERS]
        if not level:
            return
        level = [value for one in level for value in (one.values() if type(one) is dict else one)]
    raise UntrustedError(f"nested more than {DEEPEST} deep")


def _integer(text: str) -> int:
    if len(text) > _SHORT and not (len(text) <= _LONGEST and _LEAST <= int(text) < _MOST):
        raise _BeyondError(text)
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not _LEAST <= value < _MOST:
        raise _BeyondError(value)
    return value


def _refuse(name: str) -> None:
    raise UntrustedError(f"{name} is not JSON")


_MANY_DIGITS = b"0" * (_SHORT + 1)
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else 0 for byte in range(256))


def _has_many_digits(content: bytes) -> bool:
    """Whether a JSON document may have an integer beyond 64 bits."""
    return not content.startswith(_JSON) or _MANY_DIGITS in content.translate(_DIGITS)


_DECODERS = {
    (finite, many_digits): json.JSONDecoder(
        # looking at every number takes as long as reading all else
        parse_int=_integer if many_digits else None,
        parse_float=_float,
        parse_constant=_refuse if finite else None,
    )
    for finite in (True, False)
    for many_digits in (True, False)
}


# ---- archives --------------------------------------------------------------------------------------------------------


class _Forward:
    """A stream as tarfile takes it: read forward only, headers in small parts, and no more than *most* bytes."""

    def __init__(self, stream: Stream, most: int) -> None:
        self._stream = stream
        self._most = most
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self.take(size)

    def seek(self, position: int) -> None:
        if position < self._at:
            raise tarfile.ReadError("a header that leads back")
        while self._at < position and self.take(min(_CHUNK, position - self._at)):
            pass

    def take(self, size: int) -> bytes:
        taken = _beginning(self._stream, size)
        self._at += len(taken)
        if self._at > self._most:
            raise tarfile.ReadError(f"unpacks to more than {self._most >> 20} MiB")
        return taken


class Member:
    """A member of a tar stream; `read` works only until the next one is asked for."""

    def __init__(self, info: tarfile.TarInfo, stream: _Forward) -> None:
        self.path = PurePosixPath(info.name)
        self.name_bytes = len(info.name)
        self.is_directory = info.isdir()
        self.is_file = info.isfile() and not info.issparse()
        self.size = info.size
        self._stream = stream
        self._begin = info.offset_data

    def read(self, most: int = MOST_BYTES) -> bytes:
        """Its content; UntrustedError if that is too large, or cut off."""
        if not 0 <= self.size <= most:
            raise UntrustedError(f"is larger than {most / 2**20:g} MiB")
        try:
            self._stream.seek(self._begin)
            content = self._stream.take(self.size)
        except _ANYTHING as error:
            raise _damage(error) from None
        if len(content) != self.size:
            raise UntrustedError("ends early")
        return content


def _damage(error: Exception) -> UntrustedError:
    told = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UntrustedError(shown(told) or type(error).__name__)


def members(stream: Stream, most: int, count: int = MOST_MEMBERS) -> Iterator[Member]:
    """The members of a tar stream of at most *most* bytes, of every kind; UntrustedError where it is damaged, and after
    *count* of them.
    """
    forward = _Forward(stream, most)
    try:
        archive = tarfile.TarFile(fileobj=forward, mode="r")  # type: ignore[arg-type]  # all that tarfile uses
    except _ANYTHING as error:
        raise _damage(error) from None
    for _ in range(count):
        before = archive.offset
        try:
            info = archive.next()
        except _ANYTHING as error:
            raise _damage(error) from None
        if info is None:
            return
        archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every header in memory
        if archive.offset < before or info.size < 0:
            raise UntrustedError("a header that leads back")
        yield Member(info, forward)
    raise UntrustedError(f"more than {count} members")


class _Gzip:
    """zlib's decompressor of one gzip stream, used as those of lzma and bz2 are."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._rest = b""
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        found = self._zlib.decompress(self._rest + data, most)
        self._rest = self._zlib.unconsumed_tail
        self.needs_input = not self._rest and len(found) < most
        return found


def _xz() -> lzma.LZMADecompressor:
    # a header cannot ask for all memory
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_MEMORY)


_DECOMPRESSORS: dict[bytes, Callable[[], _Gzip | lzma.LZMADecompressor | bz2.BZ2Decompressor]] = {
    b"\x1f\x8b": _Gzip,
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": _xz,
}
PACKED_MAGICS = tuple(_DECOMPRESSORS)
"""What begins a file that `Unpacking` unpacks."""


class Unpacking:
    """What gzip, bzip2 or xz compressed, as a stream: one after the other where several were put together.

    What stands in headers, as a name of any length, is passed over, and zeros behind the last are padding.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._next = raw.read(_CHUNK)
        made = (new for magic, new in _DECOMPRESSORS.items() if self._next.startswith(magic))
        self._new = next(made, _Gzip)
        self._decoder = self._new()

    def read1(self, size: int, /) -> bytes:
        """Some bytes, none at the end; EOFError where it ends before a stream does."""
        found = b""
        while not found:
            if self._decoder.eof:
                rest = self._decoder.unused_data.lstrip(b"\0")
                while not rest and (rest := self._raw.read(_CHUNK)):
                    rest = rest.lstrip(b"\0")
                if not rest:
                    return b""
                self._decoder, self._next = self._new(), rest
            more = b""
            if self._decoder.needs_input:
                more, self._next = self._next or self._raw.read(_CHUNK), b""
                if not more:
                    raise EOFError("ends early")
            found = self._decoder.decompress(more, size)
        return found


def packed(archive: Path, wanted: Callable[[PurePosixPath], bool]) -> Iterator[tuple[str, bytes | UntrustedError]]:
    """Names and contents of the *wanted* regular files in a ``.tar.gz`` or ``.tar.xz``, or why one cannot be read.

    UntrustedError where the archive is damaged, after the files before the damage.
    """
    with opened(archive, MOST_PACKED, links=True) as raw:
        try:
            stream = Unpacking(raw)
        except OSError as error:
            raise _damage(error) from None
        most = MOST_UNPACKED + UNPACKED_RATIO * os.fstat(raw.fileno()).st_size
        seen: set[str] = set()
        kept = 0
        for member in members(stream, most, MOST_OF_RUNS):
            if member.name_bytes > PATH_BYTES:
                raise UntrustedError(f"a name of more than {PATH_BYTES} bytes")
            if not wanted(member.path) or member.is_directory:
                continue
            name = as_text(member.path)
            content: bytes | UntrustedError
            if name in seen:
                content = UntrustedError("is in the archive twice")
            elif not member.is_file:
                content = UntrustedError("is not a regular file")
            else:
                try:
                    content = member.read()
                except UntrustedError as error:
                    content = error
            seen.add(name)
            if not isinstance(content, UntrustedError):
                kept += len(content)
                if kept > MOST_KEPT:
                    raise UntrustedError(f"holds more than {MOST_KEPT >> 20} MiB to read")
            yield name, content


def as_text(path: PurePosixPath) -> str:
    """A path as text that any table can hold: bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def gunzip(content: bytes, most: int = MOST_BYTES) -> bytes:
    """What gzip compressed, of at most *most* bytes."""
    try:
        unpacked = _beginning(Unpacking(io.BytesIO(content)), most + 1) if content else b""
    except _ANYTHING as error:
        raise _damage(error) from None
    if len(unpacked) > most:
        raise UntrustedError(f"unpacks to more than {most / 2**20:g} MiB")
    return unpacked


def problem_with_name(path: str) -> str | None:
    """Why the path of a file from elsewhere is not used, or None."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "name that is not UTF-8"
    if _UNPRINTABLE.search(path):
        return "name with control characters"
    if len(encoded) > PATH_BYTES or any(len(part) > NAME_BYTES for part in encoded.split(b"/")):
        return "name that is too long"
    return None
