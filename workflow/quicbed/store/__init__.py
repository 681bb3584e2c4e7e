"""Runs as files below raw/: where they are, what lies in them, tables of them."""
