"""From configuration to cells: what is measured, on which builds, and what that takes."""
