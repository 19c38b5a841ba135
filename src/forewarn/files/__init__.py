"""Files that people write: fleets, scenarios, policies. One TOML reader, with line and key."""
