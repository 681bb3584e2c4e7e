"""Evaluating QUIC Performance over Web, Cloud Storage and Video Workloads."""
