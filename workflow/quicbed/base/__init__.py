"""Helpers that know nothing of QUIC: hashes, statistics, archives."""
