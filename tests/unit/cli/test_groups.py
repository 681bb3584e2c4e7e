"""How the command line lists its commands."""

from __future__ import annotations

import pytest

from quicbed.cli.commands import _parser
from quicbed.cli.parser import GROUPS


def test_every_command_is_in_one_group() -> None:
    commands = _parser().commands
    assert commands is not None
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(commands.choices)


def test_help_has_every_command_with_what_it_does() -> None:
    text = _parser().format_help()
    assert "measure:\n  compare        compare the processor time" in text
    assert "--version" in text


@pytest.mark.parametrize(("word", "meant"), [("plann", "; did you mean `plan`?"), ("xyzzy", ""), ("a\x1b[2Jb", "")])
def test_a_command_that_there_is_not_is_named(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        _parser().parse_args([word])
    said = capsys.readouterr().err
    assert f"is not a command{meant}; `quicbed --help` lists them\n" in said
    assert "\x1b" not in said
