"""Agents that ask each other whether they are ready, so that one of them approves for all."""
