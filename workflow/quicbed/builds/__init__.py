"""Sources and builds of libraries."""
