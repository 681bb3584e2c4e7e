"""The report, notebooks, and results in the formats of others."""
