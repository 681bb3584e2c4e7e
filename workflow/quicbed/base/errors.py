"""What a command, or a cell of a notebook, says in one line."""


class QuicbedError(Exception):
    """Something the user can mend, with the remedy; commands print it as one line. Anything else is a bug."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: where it was raised says nothing to whoever can mend it."""
        return [f"{type(self).__name__}: {self}"]
