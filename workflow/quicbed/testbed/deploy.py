"""Whether the programs of a directory can run on another host: the C library and the processor that they need."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from quicbed.base.models import RecordError
from quicbed.plan import march
from quicbed.plan.built import BUILD_FILE, Build

from .agent import tree

# elf.h: types of program headers and tags of the dynamic section
_PT_LOAD = 1
_PT_DYNAMIC = 2
_DT_NULL = 0
_DT_STRTAB = 5
_DT_VERNEED = 0x6FFFFFFE
_DT_VERNEEDNUM = 0x6FFFFFFF

Version = tuple[int, ...]


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def needed_glibc(content: bytes) -> Version | None:
    """The newest version of the GNU C library that an ELF file needs (gABI, "Symbol Versioning"), None if none.

    Files of other kinds and of other word sizes or byte orders than 64-bit little-endian need none.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        return None
    try:
        names = list(_needed_versions(content))
    except (struct.error, ValueError, IndexError):
        return None
    versions = [_version(found[1]) for name in names if (found := re.fullmatch(r"GLIBC_(\d+(?:\.\d+)+)", name))]
    return max(versions, default=None)


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _needed_versions(content: bytes) -> Iterator[str]:
    (offset,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    segments = []
    for number in range(count):
        kind, _, at, address, _, length = struct.unpack_from("<IIQQQQ", content, offset + number * size)
        segments.append(_Segment(kind, at, address, length))

    def place(address: int) -> int:
        for segment in segments:
            if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise ValueError(f"no segment holds the address {address:#x}")

    dynamic = next((segment for segment in segments if segment.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return
    tags: dict[int, int] = {}
    for at in range(dynamic.offset, dynamic.offset + dynamic.size, 16):
        tag, value = struct.unpack_from("<QQ", content, at)
        if tag == _DT_NULL:
            break
        tags[tag] = value
    if _DT_VERNEED not in tags:
        return
    strings, at = place(tags[_DT_STRTAB]), place(tags[_DT_VERNEED])
    for _ in range(tags[_DT_VERNEEDNUM]):
        _, auxiliaries, _, first, following = struct.unpack_from("<HHIII", content, at)
        inner = at + first
        for _ in range(auxiliaries):
            _, _, _, name, step = struct.unpack_from("<IHHII", content, inner)
            begin = strings + name
            yield content[begin : content.index(b"\0", begin)].decode("ascii", errors="replace")
            inner += step
        at += following


def libc_problem(directory: Path, libc: str, leave: Collection[str] = ()) -> str | None:
    """Why a host with this C library (confstr(3), `glibc 2.36`) cannot run the programs of a directory, or None.

    Directories of names *leave* are not looked at.
    """
    found = re.fullmatch(r"glibc (\d+(?:\.\d+)+)", libc)
    for _, path in tree(directory, leave):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        needed = needed_glibc(path.read_bytes())
        if needed is None:
            continue
        wanted = ".".join(map(str, needed))
        if found is None:
            return f"{path.name} needs the GNU C library {wanted}, the host has {libc or 'another one'}"
        if needed > _version(found[1]):
            return f"{path.name} needs glibc {wanted}, the host has {found[1]}"
    return None


def march_problem(directory: Path, cpuinfo: str) -> str | None:
    """Why a host with this processor (/proc/cpuinfo) cannot run a build, or None; for other directories None."""
    file = directory / BUILD_FILE
    if not file.is_file():
        return None
    try:
        known = Build.read(file).march
    except RecordError as error:
        return f"{file.name}: {error}"
    if known is None:
        return None
    return march.processor_problem(known.model_dump(exclude_unset=True), march.processor(cpuinfo))
