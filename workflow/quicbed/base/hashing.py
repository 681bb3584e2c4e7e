"""Identities out of contents."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(value: Any, length: int = 8) -> str:
    """First `length` hexadecimal digits of the SHA-256 of a JSON value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
