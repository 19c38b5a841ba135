"""Agents that tell each other how far they are, so that one of them approves for all."""
