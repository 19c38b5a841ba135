"""Text that is safe to print."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from contextlib import redirect_stderr, redirect_stdout

from hypothesis import given
from hypothesis import strategies as st

from forewarn.system.printable import (
    printable,
    printable_json,
    printable_lines,
    printable_output,
    unguarded,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()))
BAD = ("Cc", "Cf", "Cs", "Zl", "Zp")


def is_safe(text: str, allowed: str = "") -> bool:
    return not any(unicodedata.category(letter) in BAD for letter in text if letter not in allowed)


def test_every_control_and_format_character_is_escaped() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert is_safe(printable(every))
    assert is_safe(printable_lines(every), allowed="\n\t")
    assert printable("a\x1b[31m\n\u202eb\ud800 größe ✓") == "a\\x1b[31m\\n\\u202eb\\ud800 größe ✓"
    assert printable_lines("a\n\tb\r") == "a\n\tb\\r"


@given(ANY_TEXT)
def test_json_keeps_its_value(text: str) -> None:
    for options in ({"indent": 2}, {"ensure_ascii": False}):
        written = printable_json(json.dumps({text: [text]}, **options))
        assert is_safe(written, allowed="\n")
        assert json.loads(written) == {text: [text]}


def test_streams_are_guarded_for_a_while() -> None:
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True) for _ in range(2))
    with redirect_stdout(output), redirect_stderr(errors):
        with printable_output():
            assert not hasattr(sys.stdout, "buffer")
            sys.stdout.write("a\x1b[2J\tb ✓\n")
            sys.stderr.writelines(["c\u202e\n", "d\x9b\n"])
            unguarded(sys.stdout).write("\x1b[1mbold\x1b[0m\n")
        assert (sys.stdout, sys.stderr) == (output, errors)
        with printable_output():
            sys.stdout = None
        assert sys.stdout is None
    assert output.buffer.getvalue() == b"a\\x1b[2J\tb \\u2713\n\x1b[1mbold\x1b[0m\n"
    assert errors.buffer.getvalue() == b"c\\u202e\nd\\x9b\n"
