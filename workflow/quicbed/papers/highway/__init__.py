"""QUIC on the Highway (Jaeger et al., IFIP Networking 2023, arXiv 2309.16395)."""
