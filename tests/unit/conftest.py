"""What all tests of the package alone share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is drawn, as a browser takes longer to start than most tests; those that need one are in tests/full."""
    monkeypatch.setenv("BROWSER_PATH", "/nonexistent")
