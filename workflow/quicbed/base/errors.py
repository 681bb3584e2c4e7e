"""What a command says in one line."""


class QuicbedError(Exception):
    """Something the user can mend, with the remedy; commands print it as one line. Anything else is a bug."""
