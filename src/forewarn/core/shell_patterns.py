"""Shell patterns: *, ?, and [] with ! or ^ for all other characters. They match whole names; letter case matters.

The time of a match is linear in the length of the name: see `glob_matcher`. A pattern that is a name means that name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forewarn.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

MAX_PATTERNS = 20
"""Maximum number of patterns in a request."""
MAX_STARS = 10
"""Maximum number of * in a pattern. The work of a database grows with it."""

_MEMBERS = re.compile(r"([!^]?)(\]?[^\]]*)\]")


def is_pattern(text: str) -> bool:
    """Return whether a text contains *, ? or [."""
    return any(character in text for character in "*?[")


def quoted(name: str) -> str:
    """Return the pattern that matches only this name."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def check_patterns(texts: Iterable[str]) -> None:
    """Reject too many patterns, or a pattern with too many stars. Raises LimitExceeded."""
    patterns = list(filter(is_pattern, texts))
    if len(patterns) > MAX_PATTERNS:
        raise LimitExceeded(
            count=len(patterns),
            things="patterns",
            what="request",
            maximum=MAX_PATTERNS,
            remedy="Use fewer, wider patterns.",
        )
    most = max((pattern.count("*") for pattern in patterns), default=0)
    if most > MAX_STARS:
        raise LimitExceeded(count=most, things="*", what="pattern", maximum=MAX_STARS, remedy="Use a simpler pattern.")


def matcher(patterns: Iterable[str], known: Container[str]) -> Callable[[str], object]:
    """Return a function that says whether a name is one of the patterns, or matches one that is not a known name."""
    names = {pattern for pattern in patterns if pattern in known or not is_pattern(pattern)}
    globs = [glob_matcher(pattern) for pattern in patterns if pattern not in names]
    return lambda name: name in names or any(matches(name) for matches in globs)


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match a pattern, in their order."""
    return list(filter(matcher(patterns, frozenset(names)), names))


def glob_matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that says whether a whole text matches a pattern.

    What follows a star matches where it is first found, which loses no match: only the last star can find another
    place. An atomic group never tries a second one, so the search does not go back.
    """
    first, *rest = _between_stars(pattern)
    *middle, last = rest or [""]
    expression = first + "".join(f"(?>.*?{part})" for part in middle if part) + (f".*{last}" if rest else "")
    try:
        return re.compile(expression, re.DOTALL).fullmatch
    except re.error:  # a range like z-a
        return lambda _: None


def glob_to_regex(pattern: str) -> str:
    """Return a regular expression for PostgreSQL, which searches without going back."""
    return f"^{'.*'.join(_between_stars(pattern))}$"


def _between_stars(pattern: str) -> list[str]:
    """Return regular expressions for the parts before, between and after the stars of a pattern."""
    parts, position = [""], 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if character == "*":
            parts.append("")
        elif character == "?":
            parts[-1] += "."
        elif character == "[" and (found := _MEMBERS.match(pattern, position)):
            members = re.sub(r"([\[\]^\\&~|])", r"\\\1", found[2])
            parts[-1] += f"[{'^' if found[1] else ''}{members}]"
            position = found.end()
        else:
            parts[-1] += re.sub(r"([\\.*+?()\[\]{}|^$])", r"\\\1", character)
    return parts
