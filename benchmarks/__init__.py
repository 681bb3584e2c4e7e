"""Benchmarks of the instrument; they stand outside the package, which never needs them."""
