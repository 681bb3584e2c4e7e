"""What a browser loads and what drives it, as part of what a cell is: files of the page, modules of the driver."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from quicbed.base.hashing import digest
from quicbed.config.pages import Page
from quicbed.config.videos import Video
from quicbed.contract import videofiles, webpage

DRIVER = Path("workflow/endpoints/browser")
PLAYER = Path("workflow/sources/player")
"""Lock file of the package that plays videos."""
PLAYER_MODULE = "player.py"
"""Of the driver, for videos alone."""
CONTRACT = Path("workflow/endpoints/contract/python/quicbed_contract")


def files(root: Path, page: Page) -> dict[str, bytes]:
    """Content by name below the directory that both ends are given; PageError for a page that cannot be made.

    `www/` has the page (`quicbed.contract.webpage`), `lib/` the modules of the driver.
    """
    return {f"www/{name}": content for name, content in _page(page).items()} | {
        name: content for name, content in modules(root).items() if name != f"lib/endpoint/{PLAYER_MODULE}"
    }


def modules(root: Path) -> dict[str, bytes]:
    """Content of the modules of the driver by name."""
    found = {}
    for source, target in ((DRIVER, "endpoint"), (CONTRACT, "quicbed_contract")):
        for module in sorted((root / source).glob("*.py")):
            found[f"lib/{target}/{module.name}"] = module.read_bytes()
    return found


def identity(content: Mapping[str, bytes]) -> str:
    """A short name for all files of this content."""
    return digest({name: hashlib.sha256(data).hexdigest() for name, data in content.items()})


def video_identity(root: Path, video: Video, play_s: float) -> str:
    """A short name for all that a video is made of and played with; VideoError for one that cannot be made."""
    videofiles.check(video)
    content = modules(root)
    content |= {name: (root / PLAYER / name).read_bytes() for name in ("package.json", "package-lock.json")}
    content["videofiles.py"] = Path(videofiles.__file__).read_bytes()
    content["video"] = repr((video, video.segments(play_s))).encode()
    return identity(content)


@lru_cache
def _page(page: Page) -> dict[str, bytes]:
    return webpage.files(page)
