"""A Quantum of QUIC; what its tables print is in `quicbed.analysis.published`."""
