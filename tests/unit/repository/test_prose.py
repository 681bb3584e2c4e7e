"""The check of prose finds what it is for, where it stands, and leaves code alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from types import ModuleType
from typing import Any

import pytest

from clone import ROOT, load_tool

LONG = "The " + "very " * 40 + "long sentence ends here."


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    return load_tool(ROOT, "prose")


@pytest.fixture(scope="module")
def rules(prose: ModuleType) -> dict[str, Any]:
    return tomllib.loads(prose.RULES.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("One.\n\nReference data is shipped of all but two.", 3, "name the thing"),
        ("The rate is that of\nthe link.", 1, "repeat the noun"),
        ("- first\n- a copy that is not told any more\n", 2, "no longer"),
        ("It goes to the the server.", 1, "one of the two words"),
        ("Frames, which are queued, which takes time.", 1, "two sentences"),
        (f"Short.\n\n{LONG}", 3, "words in a sentence, at most"),
    ],
)
def test_what_stops_a_reader_is_found(
    prose: ModuleType, rules: dict[str, Any], text: str, line: int, says: str
) -> None:
    found = list(prose.problems(text, rules))
    assert [at for at, words in found if says in words] == [line]


@pytest.mark.parametrize(
    "text",
    [
        "The link has this rate. It no longer changes.",
        f"```sh\n{LONG}\n```",
        f"| a | {LONG} |",
        f"    {LONG}",
        "Write `the the`, then go on.",
        "[claims](what-is-that-of-it.md)",
    ],
)
def test_plain_sentences_code_and_tables_are_left_alone(prose: ModuleType, rules: dict[str, Any], text: str) -> None:
    assert list(prose.problems(text, rules)) == []


def test_every_rule_says_what_to_write_instead(rules: dict[str, Any]) -> None:
    assert all(set(rule) == {"find", "say"} and rule["say"] for rule in rules["rules"])


def test_a_page_with_a_problem_fails_the_check(prose: ModuleType) -> None:
    page = prose.ROOT / "build" / "prose-test.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("The rate is that of the link.\n", encoding="utf-8")
    try:
        done = subprocess.run([sys.executable, prose.__file__, page], capture_output=True, text=True)
    finally:
        page.unlink()
    assert done.returncode == 1
    assert done.stdout == "build/prose-test.md:1: `is that of`: repeat the noun, or use a possessive\n"
