"""Endpoint programs on aioquic."""
