"""Benchmarks of Forewarn, compared with nginx and plain SQLite. Run them with script/bench."""
