"""Text that is safe to print: no character in it can control a terminal or reorder what it shows.

The rule is `str.isprintable`. It excludes control and escape characters, bidirectional and other invisible format
characters, lone surrogates, line and paragraph separators, and every space except the ordinary one.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from forewarn.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

    from forewarn.errors import ForewarnError


def printable(text: str) -> str:
    """Escape every character that must not be printed, line breaks too: `\\x1b`, `\\u202e`."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable_lines(text: str) -> str:
    """Escape every character that must not be printed, except line breaks and tabs."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter in "\n\t" else _escaped(letter) for letter in text)


def printable_error(error: ForewarnError) -> str:
    """Return the text of an error on one line; of the mistakes of a file, one line for each."""
    return printable_lines(str(error)) if isinstance(error, BadFile) else printable(str(error))


def printable_values(value: Any) -> Any:
    """Return a JSON value with printable strings."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(each) for each in value]
    if isinstance(value, dict):
        return {printable(name): printable_values(each) for name, each in value.items()}
    return value


def printable_json(text: str) -> str:
    """Escape every character of a JSON text that must not be printed, except line breaks between the values.

    The value stays the same. JSON in ASCII has no such characters.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter == "\n" or letter.isprintable() else _json_escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


# --- Streams --------------------------------------------------------------------------------------


class PrintableStream:
    """A text stream that prints only printable lines. It has no `buffer`, so nothing gets around it by accident."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream
        """The stream itself, for text that has escape sequences of our own."""

    def write(self, text: str) -> int:
        self.unguarded.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.unguarded, name)


@contextmanager
def printable_output() -> Iterator[None]:
    """Let standard output and standard error print only printable lines, also those that their encoding lacks."""
    guarded = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        if stream is not None and not isinstance(stream, PrintableStream):
            guarded[name] = PrintableStream(stream)
            setattr(sys, name, guarded[name])
    try:
        yield
    finally:
        for name, guard in guarded.items():
            if getattr(sys, name) is guard:  # a command replaces a stream that cannot be written any more
                setattr(sys, name, guard.unguarded)


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream that prints everything."""
    return stream.unguarded if isinstance(stream, PrintableStream) else stream
