"""Cells of a notebook, run in this process as Jupyter's kernel runs them, without starting one."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import signal
import types
from collections.abc import Iterator, Mapping
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_output
from traitlets import Any as AnyTrait
from traitlets import Type
from traitlets.config import Config

from quicbed.figures.output import INTERACTIVE

LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}


class CellError(Exception):
    """What a cell has raised, in one line; *trace* has all of it."""

    def __init__(self, told: str, trace: str) -> None:
        super().__init__(told)
        self.trace = trace


def _output(kind: str, data: Mapping[str, Any], metadata: Mapping[str, Any] | None) -> Any:
    texts = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in data.items()
    }
    return new_output(kind, data=texts, metadata=dict(metadata or {}))  # type: ignore[no-untyped-call]


class _Shown(DisplayHook):
    """Keeps what the last line of a cell is."""

    shell: _Shell

    def compute_format_data(self, result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        # a page is static
        formatter: Any = self.shell.display_formatter
        found: tuple[dict[str, Any], dict[str, Any]] = formatter.format(result, exclude={INTERACTIVE})
        return found

    def quiet(self) -> bool:
        """Whether a semicolon ends the cell; IPython looks for it in a history."""
        return bool(self.semicolon_at_end_of_expression(self.shell.source))  # type: ignore[no-untyped-call]

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: Mapping[str, Any], md_dict: Mapping[str, Any] | None = None) -> None:
        self.shell.told.append(_output("execute_result", format_dict, md_dict))

    def finish_displayhook(self) -> None:
        pass


class _Displayed(DisplayPublisher):
    """Keeps what a cell displays."""

    shell: _Shell

    def publish(self, data: Any, metadata: Any = None, *_: Any, **__: Any) -> None:
        self.shell.told.append(_output("display_data", data, metadata))

    def clear_output(self, wait: bool = False) -> None:  # noqa: ARG002 (as IPython calls it)
        self.shell.told.clear()


class _Shell(InteractiveShell):
    """IPython without a terminal and without a history, as the kernel has it."""

    displayhook_class = Type(_Shown)
    display_pub_class = Type(_Displayed)
    source = AnyTrait("")
    told = AnyTrait()
    trace = AnyTrait("")

    def _showtraceback(self, _type: Any, _value: Any, stb: list[str]) -> None:
        self.trace = self.InteractiveTB.stb2text(stb)

    def enable_gui(self, gui: Any = None) -> None:
        pass


def run(notebook: Any, timeout_s: int) -> None:
    """Run the code cells of a *notebook* one after the other and keep what each shows as its outputs.

    Raises CellError for one that raises something, and for one that takes longer than *timeout_s*.
    """
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = _Shell.instance(config=config, user_module=types.ModuleType("__main__"))
    try:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = _outputs(shell, cell.source, timeout_s)
    finally:
        _Shell.clear_instance()
    notebook.metadata["language_info"] = LANGUAGE


def _outputs(shell: _Shell, source: str, timeout_s: int) -> list[Any]:
    shell.source, shell.told = source, []
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    with (
        _within(timeout_s),
        contextlib.redirect_stdout(streams["stdout"]),
        contextlib.redirect_stderr(streams["stderr"]),
    ):
        done = shell.run_cell(source)  # type: ignore[no-untyped-call]
    error = done.error_before_exec or done.error_in_exec
    if error is not None:
        trace = re.sub(r"\x1b\[[0-9;]*m", "", shell.trace)
        raise CellError(f"{type(error).__name__}: {error}", trace)
    said = [
        new_output("stream", name=name, text=text.getvalue())  # type: ignore[no-untyped-call]
        for name, text in streams.items()
        if text.getvalue()
    ]
    return [*said, *shell.told]


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    def over(*_: Any) -> None:
        raise TimeoutError(f"a cell took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
