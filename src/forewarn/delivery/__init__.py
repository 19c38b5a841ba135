"""What leaves the service: the feed, webhooks and their connections."""
