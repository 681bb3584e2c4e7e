"""Dissecting QUIC Implementation Performance."""
