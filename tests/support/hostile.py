"""Inputs that nobody wrote on purpose, or somebody did: made of good ones, by the seed of a batch.

`QUICBED_INPUTS` is how many of them each property is tried on, or fewer where one takes long; others every time. Where
it is not set, they are always the same 1 000.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import random
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

INPUTS = int(os.environ.get("QUICBED_INPUTS", "0"))

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400, 0.5, -0.0, 1e308, -1e308),
    *("", "x", "ok", "0", "-1", "nan", "1e999", "é\n\r\t\0\x1b[2J", "../../../x", "/etc/passwd", "a" * 5000, "\u2028"),
    *("{row}", "%s", "$(id)", "\\end{table}~^&%$#_", '=HYPERLINK("x")', "<script>alert(1)</script>"),
    *([], {}, [[]], [None], {"": {}}, {"library": []}, [1, "2", None], [{}], "2030-01-02T03:04:05+00:00"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "ok; x", "aa", "proof", "handshake", "bulk"),
]
RAW = [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5000, b'"\\ud800"', b'"\\udfff\\ud800"', b"'x'"),
    *(b"[" * 5000, b'{"a":' * 5000, b"[" * 200 + b"]" * 200, b'"\xff\xfe"', b"\0", b"", b"1" + b"0" * 25, b"0x1"),
]
"""What stands for a value in the text of a document, and may be no JSON."""
NUMBERS = [b"nan", b"inf", b"-inf", b"-7", b"1e400", b"0", b": 1", b"/" * 500, b"(" * 999]
_MARK = "a mark that stands for something raw"


def property_of(batch: int, share: float = 1.0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with a generator of random numbers, as often as there are batches of that many inputs.

    *share* is for inputs that take long: this part of the number for each property.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        chosen = settings(
            max_examples=max(1, round(share * (INPUTS or 1_000) / batch)),
            derandomize=not INPUTS,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate),  # a seed is not made simpler by being smaller
        )
        seeded = st.integers(0, 2**64 - 1).map(random.Random)
        return chosen(given(seeded)(test))

    return decorate


def document(rng: random.Random, good: Any) -> bytes:
    """A JSON document like a good one, with one to three places that are not."""
    root = [json.loads(json.dumps(good))]
    raw: list[bytes] = []
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(_places(root))
        match rng.randrange(5):
            case 0:
                holder[key] = _MARK
                raw.append(rng.choice(RAW))
            case 1 if isinstance(holder, dict):
                del holder[key]
            case 2 if isinstance(holder, dict):
                holder[rng.choice(["", "x", "é", "__class__", "origin"])] = holder.pop(key)
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(root[0]).encode()
    for one in raw:
        text = text.replace(json.dumps(_MARK).encode(), one, 1)
    return damaged(rng, text) if rng.random() < 0.1 else text


def _places(root: Any) -> list[tuple[Any, Any]]:
    found, level = [], [root]
    while level:
        holder = level.pop()
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            found.append((holder, key))
            if isinstance(value, dict | list):
                level.append(value)
    return found


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Content that is cut off, or with bytes changed, doubled or left out."""
    if not content:
        return rng.randbytes(rng.randint(1, 20))
    begin = rng.randrange(len(content))
    end = min(len(content), begin + rng.randint(1, 40))
    match rng.randrange(5):
        case 0:
            return content[:begin]
        case 1:
            return content[:begin] + rng.randbytes(end - begin) + content[end:]
        case 2:
            return content[:begin] + content[end:]
        case 3:
            return content[:end] + content[begin:]
        case _:
            return content[:begin] + rng.choice(RAW) + content[end:]


def text(rng: random.Random, good: bytes) -> bytes:
    """A text of lines and numbers like a good one: a number, a word or a line of it is something else."""
    words = good.split(b" ")
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(words))
        match rng.randrange(6):
            case 0:
                words[place] = rng.choice(RAW)
            case 1:
                words[place] = str(rng.choice(VALUES)).encode(errors="replace")
            case 2:
                words[place] = words[place] * rng.randint(2, 200)
            case 3:
                words[place] = b" " * rng.randint(1, 3000)
            case 4:
                words[place] = rng.choice(
                    [b"nan", b"inf", b"-inf", b"-7", b"1e400", b"0", b": 1", b"/" * 500, b"(" * 999]
                )
            case _:
                del words[place : place + rng.randint(0, 4)]
                words.append(b"")
    changed = b" ".join(words)
    return damaged(rng, changed) if rng.random() < 0.2 else changed


def tar(rng: random.Random, files: Mapping[str, bytes], *, compressed: bool = True) -> bytes:
    """An archive of these files, one of whose headers says something else, or that is damaged."""
    out = io.BytesIO()
    hostile = rng.randrange(len(files))
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number, (name, content) in enumerate(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if number == hostile:
                _twist(rng, info, archive, content)
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    packed = bytearray(out.getvalue())
    if rng.random() < 0.5:
        _patch(rng, packed)
    data = bytes(packed)
    if compressed:
        data = gzip.compress(data, 1, mtime=0)
    return damaged(rng, data) if rng.random() < 0.3 else data


def _twist(rng: random.Random, info: tarfile.TarInfo, archive: tarfile.TarFile, content: bytes) -> None:
    match rng.randrange(7):
        case 0:
            info.type, info.size = rng.choice([tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]), 0
        case 1:
            info.type, info.linkname, info.size = rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE]), "/etc/passwd", 0
        case 2:
            info.name = rng.choice(
                ["../" * 5 + info.name, f"/{info.name}", info.name + "\udcff", "a" * 300, "x\ny", "."]
            )
        case 3:
            archive.addfile(info, io.BytesIO(content))  # and once more
        case 4:
            size = rng.choice(["-512", "99999999999999999999", "x", "0", "1e9", "-1"])
            info.pax_headers = {"size": size}
        case 5:
            info.pax_headers = {
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.realsize": rng.choice(["9" * 18, "-5", "x"]),
                "GNU.sparse.name": info.name,
            }
        case _:
            info.pax_headers = {"path": rng.choice(["x" * 100_000, "a\nb", "é", "/", ""])}


def _patch(rng: random.Random, packed: bytearray) -> None:
    """Change a field of a header, and its checksum with it."""
    begin = 512 * rng.randrange(max(1, len(packed) // 512))
    header = packed[begin : begin + 512]
    if len(header) < 512 or not any(header):
        return
    match rng.randrange(4):
        case 0:
            number = rng.choice([-512, -1, 2**33, 2**60, 512 * rng.randrange(100)])
            header[124:136] = (b"\xff" if number < 0 else b"\x80") + (number % 256**11).to_bytes(11, "big")
        case 1:
            header[156:157] = bytes([rng.choice(b"01234567SLKxgDV\0z")])
        case 2:
            header[0:100] = rng.randbytes(100)
        case _:
            place = rng.randrange(512)
            header[place : place + 8] = rng.randbytes(8)
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    packed[begin : begin + 512] = header[:512]
