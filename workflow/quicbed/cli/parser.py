"""How the command line lists its commands."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from quicbed.base.untrusted import visible

GROUPS = {
    "explore results and machines": (
        *("summary", "list", "plan", "show", "claims", "draw", "predict", "handshake", "capture", "symbols", "doctor"),
    ),
    "measure": ("compare", "measure", "build", "store", "guests"),
    "exchange endpoints and data": ("try", "runner-folder", "import", "export", "dissect", "reference", "archive"),
    "steps that the workflow calls": (
        *("sources", "component", "host-builds", "certificates", "tables", "verdicts", "notebooks", "report"),
        *("packets", "generate"),
    ),
}
"""Every command, by purpose."""


class Parser(argparse.ArgumentParser):
    """Lists commands by `GROUPS`, and suggests a command for an unknown one."""

    commands: argparse._SubParsersAction[argparse.ArgumentParser] | None = None

    def format_help(self) -> str:
        if self.commands is None:
            return super().format_help()
        about = {one.dest: str(one.help) for one in self.commands._get_subactions()}
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, names in GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments([argparse._StoreAction([], name, help=about[name]) for name in names])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text("`quicbed COMMAND --help` lists the options of a command.")
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"argument COMMAND: invalid choice: '(.*)' \(choose", message, re.DOTALL):
            close = difflib.get_close_matches(unknown[1], [name for names in GROUPS.values() for name in names], n=1)
            meant = f"; did you mean `{close[0]}`?" if close else ""
            message = f"`{visible(unknown[1])}` is not a command{meant}; `quicbed --help` lists them"
        super().error(message)
