"""Measuring: campaigns of runs on a testbed, and what they need."""
