"""The engine: the writer, the scheduler, the executor, and what is read from the store."""
