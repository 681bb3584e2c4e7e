"""The configuration: files below config/ as typed models, and the table of algorithms."""
