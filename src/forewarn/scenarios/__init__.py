"""Scenarios: one TOML file each, and the runner."""
