"""Shell patterns with the meaning of GLOB in SQLite: *, ?, and [] with ^ for all other characters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MEMBERS = re.compile(r"(\^?)(\]?[^\]]*)\]")


def glob_to_regex(pattern: str) -> str:
    """Return a regular expression for a shell pattern."""
    result, position = "^", 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "*":
            result += ".*"
        elif character == "?":
            result += "."
        elif character == "[" and (found := _MEMBERS.match(pattern, position)):
            members = re.sub(r"([\[\]^\\&~|])", r"\\\1", found[2])
            result += f"[{found[1]}{members}]"
            position = found.end()
        else:
            result += re.sub(r"([\\.*+?()\[\]{}|^$])", r"\\\1", character)
    return result + "$"


def glob_matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that says whether a whole text matches a shell pattern. Letter case matters."""
    try:
        return re.compile(glob_to_regex(pattern), re.DOTALL).fullmatch
    except re.error:  # a range like z-a
        return lambda _: None
