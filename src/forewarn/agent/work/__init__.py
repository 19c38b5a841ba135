"""What was begun for which event, kept on disk so that it is undone whatever happens to the agent."""
