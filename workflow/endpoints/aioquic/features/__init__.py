"""What only some flavours have; a build holds the modules of its own features."""
