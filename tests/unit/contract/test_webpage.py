"""Files of pages for browsers: as large as the page says, and what they are taken for."""

from __future__ import annotations

import re
import struct
import zlib

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT
from quicbed.config import pages
from quicbed.config.pages import Page, PageError, Part
from quicbed.contract import webpage

PAGES = pages.read(ROOT)


@pytest.mark.parametrize("name", PAGES)
def test_every_file_is_as_large_as_its_object(name: str) -> None:
    files = webpage.files(PAGES[name])
    assert [len(content) for content in files.values()] == list(PAGES[name].sizes)
    assert webpage.files(PAGES[name]) == files


def test_the_document_names_every_other_object_once() -> None:
    document, *others = webpage.files(PAGES["median-2025"])
    text = webpage.files(PAGES["median-2025"])[document].decode()
    named = re.findall(r'(?:href|src)="([^"]+)"', text)
    assert sorted(named) == sorted([*others, "data:,"])


def chunks(image: bytes) -> dict[bytes, bytes]:
    """Chunks of a PNG by their type, each with a checksum that is right."""
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    found, at = {}, 8
    while at < len(image):
        (size,) = struct.unpack_from(">I", image, at)
        kind, data = image[at + 4 : at + 8], image[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", image, at + 8 + size) == (zlib.crc32(kind + data),)
        found[kind] = data
        at += 12 + size
    return found


def test_images_can_be_decoded_and_the_first_is_the_largest() -> None:
    images = [content for name, content in webpage.files(PAGES["median-2025"]).items() if name.endswith(".png")]
    areas = []
    for image in images:
        parts = chunks(image)
        width, height, depth, colour = struct.unpack_from(">IIBB", parts[b"IHDR"])
        channels = {0: 1, 2: 3}[colour]
        assert (depth, len(zlib.decompress(parts[b"IDAT"]))) == (8, height * (1 + width * channels))
        assert list(parts)[-1] == b"IEND"
        areas.append(width * height)
    assert len(images) == 19
    assert areas[0] > 2 * max(areas[1:])


def page(*parts: tuple[str, int, int]) -> Page:
    return Page("p", tuple(Part(kind, objects, kib, "", "") for kind, objects, kib in parts))


@pytest.mark.parametrize(
    "made",
    [
        page(("html", 1, 4), ("video", 1, 9)),
        page(("html", 1, 1), ("image", 40, 40)),
        page(("html", 1, 9), ("image", 40, 1)),
        page(("html", 1, 9), ("css", 100, 1)),
    ],
)
def test_a_page_that_cannot_be_made_says_what_is_too_small(made: Page, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(PageError) as error:
        webpage.files(made)
    assert wording.one_line(error.value) == snapshot
