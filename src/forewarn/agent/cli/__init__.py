"""forewarn agent: its command line, made of the standard library alone, one file per verb."""
