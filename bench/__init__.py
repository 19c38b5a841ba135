"""Measures Forewarn against nginx and plain SQLite. Run it with script/bench."""
