"""Scenarios: one TOML file each, and the runner, which is a client of the control API."""
