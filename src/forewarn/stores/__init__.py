"""Stores: one module for each. SQL is in .sql files."""
