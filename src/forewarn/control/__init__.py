"""The plane that operators see: the control API."""
