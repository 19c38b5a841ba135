"""The control API, for operators and their tools."""
