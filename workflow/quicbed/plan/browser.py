"""What a browser loads and what drives it, as part of what a cell is: files of the page, modules of the driver."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from quicbed.base.hashing import digest
from quicbed.config.pages import Page
from quicbed.contract import webpage

DRIVER = Path("workflow/endpoints/browser")
CONTRACT = Path("workflow/endpoints/contract/python/quicbed_contract")


def files(root: Path, page: Page) -> dict[str, bytes]:
    """Content by name below the directory that both ends are given; PageError for a page that cannot be made.

    `www/` has the page (`quicbed.contract.webpage`), `lib/` the modules of the driver.
    """
    found = {f"www/{name}": content for name, content in _page(page).items()}
    for source, target in ((DRIVER, "endpoint"), (CONTRACT, "quicbed_contract")):
        for module in sorted((root / source).glob("*.py")):
            found[f"lib/{target}/{module.name}"] = module.read_bytes()
    return found


def identity(content: Mapping[str, bytes]) -> str:
    """A short name for all files of this content."""
    return digest({name: hashlib.sha256(data).hexdigest() for name, data in content.items()})


@lru_cache
def _page(page: Page) -> dict[str, bytes]:
    return webpage.files(page)
