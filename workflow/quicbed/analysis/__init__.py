"""Numbers out of runs: what counts, how cells compare, what they are made of."""
