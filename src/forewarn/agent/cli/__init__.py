"""Command line of `forewarn agent`: one module per command, standard library only."""
