"""quicbed: build QUIC libraries in cryptographic variants, measure them, check published claims."""

__version__ = "0.1.0"
