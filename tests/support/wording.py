"""What people are told, as tests compare it: its form is asserted, its words are in a snapshot.

``pytest tests/unit --snapshot-update`` writes the words anew; the difference is what a reader of the change looks at.
"""

from __future__ import annotations

import re
from pathlib import Path

from clone import ROOT

LONGEST = 1000
"""Of a line."""
_NUMBER = re.compile(r"(?<![\w.-])[+\N{MINUS SIGN}-]?\d+(?:\.\d+)?(?!\w|\.\d)")


def one_line(error: object, place: Path | None = None, *, names: str = "") -> str:
    """An error, which has to be a line that can be printed and says the file or key *names*; *place* is left out."""
    said = str(error)
    if place is not None:
        said = said.replace(str(place), "<place>")
    said = said.replace(str(ROOT), "<clone>")
    assert said
    assert said.isprintable(), said
    assert len(said) <= LONGEST
    assert names in said, said
    return said


def name(value: object) -> str:
    """An input as the name of its test, so that those before and behind it keep theirs when it goes."""
    words = value if isinstance(value, list | tuple) else [value]
    text = " ".join(one if isinstance(one, str) else repr(one) for one in words)
    return re.sub(r"[^ -~]|[\[\]\\]", "?", text)[:60].strip() or "nothing"


def numbers(text: str) -> list[float]:
    """The numbers of a sentence, in their order, whatever its words are; those within a word are none."""
    return [float(one.replace("\N{MINUS SIGN}", "-")) for one in _NUMBER.findall(text)]
