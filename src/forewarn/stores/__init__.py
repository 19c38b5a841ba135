"""What keeps the committed: one file per store. SQL lives in .sql files beside it."""
