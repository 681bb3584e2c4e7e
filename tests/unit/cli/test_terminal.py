"""What a command prints on a terminal and elsewhere, what it takes, and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quicbed.cli import commands, completion
from quicbed.config.model import Project
from quicbed.measure import try_folder, workflow_estimate

HEADS = ("run", "status")
ROWS = [("a", "ok"), ("a name [that] is long", "failed")]


def on_terminal(code: str, **environment: str) -> str:
    """What a program prints whose output is a terminal of 60 columns."""
    wanted = {"TERM": "xterm-256color", "COLUMNS": "60", **environment}
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    argv = ["script", "--quiet", "--return", "--command", f"{sys.executable} -c '{code}'", "/dev/null"]
    done = subprocess.run(argv, env=inherited | wanted, capture_output=True, text=True, check=True)
    return done.stdout.replace("\r\n", "\n")


SHOWN = f"from quicbed.cli import terminal; terminal.show_table({HEADS!r}, {ROWS!r})".replace("'", '"')


def test_a_table_is_plain_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from quicbed.cli import terminal

    terminal.show_table(HEADS, ROWS)
    assert (
        capsys.readouterr().out
        == "run                    status\na                      ok\na name [that] is long  failed\n"
    )


def test_a_terminal_has_colours_unless_they_are_not_wanted() -> None:
    coloured, plain = on_terminal(SHOWN), on_terminal(SHOWN, NO_COLOR="1")
    for text in (coloured, plain):
        assert "a name [that] is long" in text
    assert "\x1b[1;31mfailed" in coloured
    assert "\x1b[32mok" in coloured
    assert "\x1b[3" not in plain


def test_verdicts_are_coloured_where_they_stand_and_not_in_sentences() -> None:
    code = 'from quicbed.cli import terminal; terminal.show("  fails           x: holds\\n  A claim fails.")'
    assert on_terminal(code).count("\x1b[1;31m") == 1


def test_a_plan_names_its_steps_in_bold() -> None:
    lines = "  build quinn, flavour pq: 5 min\\n  measure a: no\\n  all: x"
    told = on_terminal(f'from quicbed.cli import terminal; terminal.show("{lines}")')
    assert [one.partition("\x1b[0m")[0] for one in told.split("\x1b[1m")[1:]] == ["quinn, flavour pq", "a", "all"]


# ---- settings


def test_settings_are_read_as_make_all_reads_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from snakemake.cli import parse_config

    seen = {}
    monkeypatch.setattr(workflow_estimate, "describe", lambda project: str(seen.update(project.config)))
    words = ["scale=paper", "experiments=[aead-goodput,mtu]", "seed=7", "gate={retries: 2}"]
    assert commands.main([words[0], "plan", *words[1:]]) == 0
    assert parse_config(words)["gate"] == {"retries": "2"}
    assert (seen["scale"], seen["seed"], seen["experiments"]) == ("paper", 7, ["aead-goodput", "mtu"])
    assert seen["gate"].retries == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["schale=paper"], r"config\.yaml: schale: unknown key; did you mean `scale`?"),
        (["a=b"], "a=b: Invalid config definition"),
        (["scale=huge"], "scale"),
    ],
)
def test_a_setting_that_is_wrong_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["plan", *words]) == 1
    told = capsys.readouterr()
    assert says.replace("\\", "") in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_the_value_of_an_option_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def tried(project: Project, _: Path, parameters: dict[str, str]) -> list[try_folder.Outcome]:
        seen.append((parameters, project.config.seed))
        return []

    monkeypatch.setattr(try_folder, "try_folder", tried)
    assert commands.main(["try", "folder", "--parameter", "CONGESTION=cubic", "seed=7"]) == 0
    assert seen == [({"CONGESTION": "cubic"}, 7)]


# ---- verdicts


def test_claims_of_the_verdicts_that_are_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Where nothing is measured, no claim holds or fails."""
    argv = ["claims", "--raw", str(tmp_path), "fig3-aes-equal", "fig3-chacha-slower"]
    assert commands.main([*argv, "--verdict", "holds, fails", "--verdict", "inconclusive"]) == 0
    assert "No claim has the verdict holds or fails or inconclusive." in capsys.readouterr().out
    assert commands.main([*argv, "--verdict", "holds,not-measured"]) == 0
    assert capsys.readouterr().out.count("\n  not measured ") == 2


def test_a_verdict_that_is_unknown_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["claims", "--verdict", "fails,wrong"]) == 1
    assert "`wrong` is unknown; known are holds, fails, " in capsys.readouterr().err


# ---- completion


def completed(line: str, tmp_path: Path) -> set[str]:
    """What a shell is offered at the end of a line."""
    out = tmp_path / "offered"
    environment = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash", "_ARC_DEBUG": ""}
    environment |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    subprocess.run([sys.executable, "-m", "quicbed"], env=os.environ | environment, check=True, capture_output=True)
    return {word.strip() for word in out.read_text(encoding="utf-8").split("\n")}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("quicbed pl", {"plan"}),
        ("quicbed plan aead-g", {"aead-goodput"}),
        ("quicbed build quin", {"quinn"}),
        ("quicbed claims fig3-aes", {"fig3-aes-equal"}),
        ("quicbed list run", {"runs"}),
        ("quicbed plan sca", {"scale="}),
        ("quicbed plan mtu test", {"testbed="}),
    ],
)
def test_a_shell_completes_commands_and_names(line: str, offered: set[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == offered


def test_every_name_that_is_completed_is_an_argument() -> None:
    taken = {action.dest for action in commands.actions(commands._parser())}
    assert set(completion._NAMES) <= taken


def test_every_argument_is_explained() -> None:
    assert [action.dest for action in commands.actions(commands._parser()) if not action.help][1:] == []
