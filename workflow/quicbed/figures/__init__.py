"""Figures and tables for people, out of analysed runs."""
