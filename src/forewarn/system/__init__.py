"""Operating system helpers that only use the standard library."""
