"""QUIC Steps (Kempf et al., CoNEXT 2025, arXiv 2505.09222)."""
