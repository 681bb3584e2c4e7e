"""What tests of the package alone share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is drawn, as a browser takes longer to start than most tests; those that need one are in tests/full."""
    monkeypatch.setenv("BROWSER_PATH", "/nonexistent")


@pytest.fixture(autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of builds, so that no test writes to the user's."""
    directory = tmp_path_factory.mktemp("store")
    directory.chmod(0o700)
    monkeypatch.setenv("QUICBED_STORE", str(directory))
    return directory
