"""Agents of one group that approve an event together."""
