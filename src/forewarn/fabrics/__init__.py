"""Fabrics carry operations out. One module for each, with the name that the user types."""
