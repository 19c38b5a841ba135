"""python -m forewarn: the command line, where its program is not on the path."""

from __future__ import annotations

from forewarn.cli import main

main()
