"""Handlers: one file per kind, found by its name."""
