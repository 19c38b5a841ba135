"""Forewarn in the VM: the agent, and the client library that it is built on. Standard library only."""
