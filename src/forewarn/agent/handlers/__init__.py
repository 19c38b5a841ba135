"""Handlers: one module per kind. The module's name is the kind."""
