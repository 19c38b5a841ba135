"""Delivery of history rows: the feed, webhooks and their connections."""
