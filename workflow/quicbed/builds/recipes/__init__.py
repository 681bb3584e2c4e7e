"""How libraries are built: a module a build system."""
