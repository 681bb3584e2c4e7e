"""Drives a folder that keeps the contract of the QUIC Interop Runner through the endpoint contract of this project."""
