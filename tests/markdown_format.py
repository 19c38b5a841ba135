"""Markdown in the form that script/format gives it, for pages that a script writes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import mdformat

OPTIONS = tomllib.loads((Path(__file__).parents[1] / ".mdformat.toml").read_text())


def format_markdown(text: str) -> str:
    """Return the text as script/format would write it."""
    formatted: str = mdformat.text(text, options=OPTIONS, extensions={"gfm", "tables"})
    return formatted
