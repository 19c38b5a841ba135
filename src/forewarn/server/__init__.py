"""HTTP: thin, decides nothing."""
