"""Published claims and the verdicts on them."""
