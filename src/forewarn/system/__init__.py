"""What needs the operating system and the standard library only."""
