"""quic-benchmark, a university project of 2021."""
