"""Webhooks: history, sent to whoever wants to be told."""
