"""What captures show: packets, handshakes, proofs."""
