"""What an agent shows of itself: its status, its metrics, its health."""
