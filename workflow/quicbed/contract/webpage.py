"""Files of a page as a browser loads it: a document that names all its objects, each as large as the page says.

Style sheets and scripts are padded with a comment, documents in frames with one as well; images are PNGs of random
pixels, which do not compress, padded with a chunk that is not looked at (PNG, 4.7.1). The first image is grey and has
three times the pixels of others of its size: it is the largest contentful paint. Fonts are preloaded and not drawn.
"""

from __future__ import annotations

import math
import random
import struct
import zlib
from collections.abc import Callable

from quicbed.config.pages import FILE, Page, PageError

DOCUMENT = "index.html"
SUFFIXES = {"html": "html", "css": "css", "font": "woff2", "javascript": "js", "image": "png"}
"""Of files, by the type of objects in config/pages.csv."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = 12
"""Bytes of a chunk without its data."""


def files(page: Page) -> dict[str, bytes]:
    """Content of all files of a page by name, the document first; PageError where an object is too small for it."""
    names: list[str] = []
    made: dict[str, bytes] = {}
    for part in page.parts:
        if part.type not in SUFFIXES:
            raise PageError(f"{FILE}: {page.name}: a browser is given no `{part.type}`, only {', '.join(SUFFIXES)}")
        for size in part.sizes:
            name = f"{len(names)}.{SUFFIXES[part.type]}" if names else DOCUMENT
            names.append(name)
            if name != DOCUMENT:
                made[name] = _sized(page, name, size, len(names), largest=name == _first_image(names))
    document = _document(page, names).encode()
    return {DOCUMENT: _padded(page, DOCUMENT, document, page.sizes[0], "<!--", "-->")} | made


def _first_image(names: list[str]) -> str | None:
    return next((name for name in names if name.endswith(".png")), None)


def _document(page: Page, names: list[str]) -> str:
    styles, scripts, images, fonts, frames = (
        [name for name in names[1:] if name.endswith(f".{suffix}")] for suffix in ("css", "js", "png", "woff2", "html")
    )
    parts = [f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{page.name}</title>']
    parts += ['<link rel="icon" href="data:,">']
    parts += [f'<link rel="stylesheet" href="{name}">' for name in styles]
    parts += [f'<link rel="preload" as="font" href="{name}" crossorigin>' for name in fonts]
    parts += [f'<script defer src="{name}"></script>' for name in scripts]
    parts += ["</head><body>", *(f'<img src="{name}" alt="">' for name in images)]
    parts += [f'<iframe src="{name}"></iframe>' for name in frames]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _sized(page: Page, name: str, size: int, seed: int, *, largest: bool) -> bytes:
    makers: dict[str, Callable[[], bytes]] = {
        "html": lambda: _padded(page, name, b"<!DOCTYPE html><title>frame</title>\n", size, "<!--", "-->"),
        "css": lambda: _padded(page, name, f".object-{seed} {{ color: black; }}\n".encode(), size, "/*", "*/"),
        "js": lambda: _padded(page, name, f"window.object{seed} = true;\n".encode(), size, "/*", "*/"),
        "png": lambda: _image(page, name, size, seed, channels=1 if largest else 3),
        "woff2": lambda: random.Random(seed).randbytes(size),
    }
    return makers[name.rpartition(".")[2]]()


def _padded(page: Page, name: str, content: bytes, size: int, begin: str, end: str) -> bytes:
    """Text with a comment behind it, as large as *size*."""
    room = size - len(content) - len(begin) - len(end)
    if room < 0:
        raise _too_small(page, name, size, len(content) + len(begin) + len(end))
    words = b"quicbed " * (room // 8 + 1)
    return content + begin.encode() + words[:room] + end.encode()


def _image(page: Page, name: str, size: int, seed: int, *, channels: int) -> bytes:
    """A PNG image of random pixels with as many 8-bit channels (1 grey, 3 colours), nearly square."""
    beside = len(_SIGNATURE) + 4 * _CHUNK + 13 + 16  # header, pixels, padding, end, and what zlib adds at least
    # what zlib and the filter bytes of rows add is about this much, and never less by more than the steps make up for
    more = math.isqrt(size // channels) + size // 16_384 * 5
    for pixels in range(max(size - beside - more, 8) // channels, 0, -8):
        width = math.isqrt(pixels)
        height = pixels // width
        rows = random.Random(seed).randbytes(width * channels * height)
        line = width * channels
        raw = b"".join(b"\0" + rows[at : at + line] for at in range(0, len(rows), line))
        head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
        made = _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(raw, 0))
        room = size - len(made) - 2 * _CHUNK
        if room >= 0:
            return made + _chunk(b"quBd", bytes(room)) + _chunk(b"IEND", b"")
    raise _too_small(page, name, size, beside + channels)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _too_small(page: Page, name: str, size: int, least: int) -> PageError:
    return PageError(f"{FILE}: {page.name}: {name} of {size} bytes cannot be made, it takes {least}: give it more")
