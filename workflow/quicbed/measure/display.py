"""How far a measurement is, in one line below what is said, where somebody watches on a terminal.

The line is drawn again after each run and never during one: a thread that draws takes time of the processors that are
measured.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from quicbed.measure.progress import At, logger


class Display(logging.Handler):
    """Writes what is said above a bar with the runs of the block."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        rest = TextColumn("{task.fields[told]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), rest)
        self.bar = Progress(
            *columns, console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task: TaskID | None = None
        self._contaminated = 0
        self._why = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; one that says how far the measurement is moves the bar instead."""
        at: At | None = getattr(record, "at", None)
        if at is None or at.contamination or not at.ok:
            self.bar.console.print(record.getMessage(), markup=False, highlight=False, soft_wrap=True)
        if at is not None:
            self._move(at)

    def _move(self, at: At) -> None:
        if at.contamination:
            self._contaminated += 1
            self._why = at.contamination[-1]
        told = at.forecast
        if self._contaminated:
            told = "; ".join(filter(None, [told, f"{self._contaminated} contaminated, the last: {self._why}"]))
        if self._task is None:
            self._task = self.bar.add_task(at.where, total=at.of, told=told)
        self.bar.update(self._task, description=at.where, completed=at.done, total=at.of, told=told)
        self.bar.refresh()


@contextlib.contextmanager
def showing_progress(console: Console | None = None) -> Iterator[None]:
    """While the context lasts, show how far a measurement is, if standard error (or *console*) is a terminal."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    display = Display(console)
    plain = [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]
    for handler in plain:
        logger.removeHandler(handler)
    logger.addHandler(display)
    try:
        with display.bar:
            yield
    finally:
        logger.removeHandler(display)
        for handler in plain:
            logger.addHandler(handler)
