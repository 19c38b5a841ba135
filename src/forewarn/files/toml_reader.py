"""Read typed values from TOML files.

A reader reports each mistake and continues with a neutral value. At the end, one error lists all mistakes of the file,
each with its line and key.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, cast

from forewarn.core.durations import parse_duration
from forewarn.errors import BadDuration, BadFleet, Mistake, nearest, nearest_name, shortened, shown

if sys.version_info >= (3, 11):
    import tomllib
else:  # the files of the agent include a copy: see forewarn.agent.cli.bundle
    from forewarn.vendored import tomllib

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import timedelta

    from forewarn.errors import BadFile


KeyPath = tuple[str | int, ...]
"""Keys and array indices from the top of the file: `("vm", 3, "host")`."""

MAX_PIECE = 262_144
"""Maximum length of a string, of a comment, and of what else is in a line without one. tomllib checks each of them with
one call that holds the interpreter lock."""
MAX_KEY_PARTS = 20
"""The work of tomllib grows with the square of the parts of a key."""
MAX_DOTS = 100_000
"""Maximum number of dots outside of strings and comments. tomllib needs half a kilobyte for each one in a key."""
MAX_SEARCHED = 1_048_576
"""In longer text the lines of mistakes are not searched. Their keys say where they are."""

_SPACES = re.compile(r"[\s,]*")
_COMMENT = re.compile(r"#[^\n]*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[\[\]{}]|[^,\[\]{}#\n]+")
_BETWEEN = re.compile(rf"\s{{0,{MAX_PIECE}}}([^\"'#\n]{{0,{MAX_PIECE + 1}}})")
_SEPARATOR = re.compile(r"[=,\[\]{}\n]")


# --- Strings, and the size of all pieces --------------------------------------------------------------


def _string_end(text: str, start: int, stop: int) -> int:
    """Return the end of the string that starts here. An open one ends with its line, or at `stop`."""
    quote = text[start]
    is_long = text.startswith(quote * 3, start)
    delimiter = quote * 3 if is_long else quote
    end = text.find(delimiter, start + len(delimiter), stop)
    while end >= 0 and quote == '"' and _is_escaped(text, end):
        end = text.find(delimiter, end + 1, stop)
    if end < 0:
        end = stop
    if not is_long:
        line_end = text.find("\n", start, end)
        return min(end + 1, stop) if line_end < 0 else line_end
    end += len(delimiter)
    # It may end in up to five quotes, of which the last three close it.
    end += text.startswith(quote, end) + text.startswith(quote * 2, end)
    return min(end, stop)


def _is_escaped(text: str, position: int) -> bool:
    backslash = position
    while text[backslash - 1] == "\\":
        backslash -= 1
    return (position - backslash) % 2 == 1


def check_pieces(text: str) -> tuple[int, str] | None:
    """Return the position and the problem of the first piece that is too long for tomllib; None if there is none.

    Reads strings and comments as tomllib does, up to the first mistake that ends its work.
    """
    position = dots = all_dots = 0
    while position < len(text):
        start = position
        stop = min(start + MAX_PIECE + 2, len(text))
        if text[start] in "\"'":
            position = _string_end(text, start, stop)
        elif text[start] == "#":
            position = text.find("\n", start, stop)
            position = stop if position < 0 else position
        else:
            found = cast("re.Match[str]", _BETWEEN.match(text, start))
            start, position = found.span(1)
            before, *others = map(_count_dots, _SEPARATOR.split(found[0]))
            most = max(dots + before, *others) if others else dots + before
            if most >= MAX_KEY_PARTS:
                return start, f"A key has more than {MAX_KEY_PARTS} parts."
            dots = others[-1] if others else most
            all_dots += _count_dots(found[0])
            if all_dots > MAX_DOTS:
                return start, f"The file has more than {MAX_DOTS} dots in keys. Write tables inline: {{a = 1, b = 2}}."
        if position - start > MAX_PIECE:
            problem = f"A string, a comment, or another part of a line has more than {MAX_PIECE} characters."
            return start, f"{problem} Shorten it, or write it in several lines."
    return None


def _count_dots(text: str) -> int:
    return text.count(".")


# --- Lines of keys ------------------------------------------------------------------------------------


def on_line(line: int) -> str:
    """Return " on line 3", or an empty string if the line is not known."""
    return f" on line {line}" if line else ""


def lines_of(text: str, paths: Sequence[KeyPath]) -> list[int]:
    """Return the line of each key. If a key is missing, return the line of the closest table around it.

    If the text is too long for the search, all lines are 0.
    """
    return [line for line, _ in _places(text, paths)]


def list_mistakes(text: str, reported: Sequence[tuple[KeyPath, str, str]]) -> list[Mistake]:
    """Return mistakes in the order of the text, from the path, the key and the problem of each."""
    found = zip(_places(text, [path for path, _, _ in reported]), reported, strict=True)
    return [Mistake(line, key, problem) for (line, _), (_, key, problem) in sorted(found, key=lambda each: each[0])]


def _places(text: str, paths: Sequence[KeyPath]) -> list[tuple[int, int]]:
    """Return the line and the position of each key."""
    if len(text) > MAX_SEARCHED:
        return [(0, 0)] * len(paths)
    positions = _PositionFinder(text, paths).find()
    lines: dict[int, int] = {}
    line, counted = 1, 0
    for position in sorted(set(positions.values())):
        line += text.count("\n", counted, position)
        lines[position], counted = line, position
    closest = [next(positions[prefix] for prefix in _prefixes(path) if prefix in positions) for path in paths]
    return [(lines[position], position) for position in closest]


def _prefixes(path: KeyPath) -> Iterable[KeyPath]:
    """Return the path and all paths above it, the longest first."""
    return (path[:length] for length in range(len(path), -1, -1))


class _PositionFinder:
    """Finds the positions of keys, and of the tables around them, in one pass over TOML text."""

    def __init__(self, text: str, paths: Iterable[KeyPath]) -> None:
        self._text = text
        self._missing = set(paths)
        self._wanted = {prefix for path in self._missing for prefix in _prefixes(path)}
        self._position = 0
        self._found: dict[KeyPath, int] = {(): 0}

    def find(self) -> dict[KeyPath, int]:
        """Return the position of each key and table that is there."""
        table: KeyPath = ()
        arrays: dict[KeyPath, int] = {}
        self._skip_blank()
        while self._missing and self._position < len(self._text):
            if self._text[self._position] == "[":
                table = self._header(arrays)
            else:
                self._pair(table)
            self._skip_blank()
        return self._found

    def _header(self, arrays: dict[KeyPath, int]) -> KeyPath:
        """Skip `[table]` or `[[table]]`. `arrays` has the last index of each array of tables."""
        start = self._position
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._position += brackets
        *parents, last = self._dotted_key()
        self._position += brackets
        path: KeyPath = ()
        for key in parents:
            path = (*path, key)
            if path in arrays:
                path = (*path, arrays[path])
        path = (*path, last)
        if brackets == 2:
            arrays[path] = arrays.get(path, -1) + 1
            path = (*path, arrays[path])
        self._note(path, start)
        return path

    def _pair(self, table: KeyPath) -> None:
        """Skip `key = value`."""
        start = self._position
        path = (*table, *self._dotted_key())
        self._position += len("=")
        self._note(path, start)
        self._read(_SPACE)
        self._value(path)

    def _dotted_key(self) -> list[str]:
        keys = []
        more = True
        while more:
            self._read(_SPACE)
            if self._text[self._position] in "\"'":
                keys.append(str(tomllib.loads(f"key = {self._string()}")["key"]))
            else:
                keys.append(self._read(_BARE_KEY))
            self._read(_SPACE)
            more = self._text.startswith(".", self._position)
            self._position += more
        return keys

    def _value(self, path: KeyPath) -> None:
        # Only containers around a wanted key are searched, so deep nesting elsewhere is no problem.
        if self._text[self._position] in "[{" and path in self._wanted:
            self._container(path)
        else:
            self._skip_value()

    def _container(self, path: KeyPath) -> None:
        """Search an array or an inline table."""
        is_array = self._text[self._position] == "["
        self._position += 1
        self._skip_blank()
        index = 0
        while self._text[self._position] not in "]}":
            if is_array:
                self._note((*path, index), self._position)
                self._value((*path, index))
                index += 1
            else:
                self._pair(path)
            self._skip_blank()
        self._position += 1

    def _skip_value(self) -> None:
        depth = 0
        while piece := self._string() or self._read(_OTHER):
            depth += (piece in "[{") - (piece in "]}")
            if depth == 0:
                break
            self._skip_blank()

    def _string(self) -> str:
        """Return the string at the position, and skip it; an empty text, if there is none."""
        start = self._position
        if not self._text.startswith(('"', "'"), start):
            return ""
        self._position = _string_end(self._text, start, len(self._text))
        return self._text[start : self._position]

    def _skip_blank(self) -> None:
        """Skip white space, commas and comments."""
        while self._read(_SPACES) or self._read(_COMMENT):
            pass

    def _read(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        found = match[0] if match else ""
        self._position += len(found)
        return found

    def _note(self, path: KeyPath, at: int) -> None:
        # A dotted key or a header also opens the tables before its last part.
        for prefix in _prefixes(path):
            if prefix in self._wanted:
                self._found.setdefault(prefix, at)
        self._missing.discard(path)


def free(value: object) -> None:
    """Empty a value that only the caller uses, with all its lists and tables, one item after the other.

    To free millions of objects with one call holds the interpreter lock.
    """
    around = [value]
    while around:
        inner = around[-1]
        if isinstance(inner, dict) and inner:
            around.append(inner.popitem()[1])
        elif isinstance(inner, list) and inner:
            around.append(inner.pop())
        else:
            around.pop()


# --- Typed tables -------------------------------------------------------------------------------


_LARGEST_SHOWN = 10**20
_MAX_MISTAKES = 1000
"""With more mistakes, reading ends: hints take time, and nobody reads so many lines."""


class TomlFile:
    """Text of a TOML file, with its name for error messages, and the mistakes that were found in it."""

    __slots__ = ("_direct", "_reported", "_wrong", "error_type", "source", "text")

    def __init__(self, text: str, source: str, error_type: type[BadFile] = BadFleet) -> None:
        self.text = text
        self.source = source
        self.error_type = error_type
        self._reported: list[tuple[KeyPath, str, str]] = []
        self._direct: set[KeyPath] = set()
        self._wrong: set[KeyPath] = set()
        """The paths with a mistake, and all paths above them."""

    def is_right(self, path: KeyPath) -> bool:
        """Whether no mistake is known at this path, above it or below it."""
        return not self._wrong or (path not in self._wrong and self._direct.isdisjoint(_prefixes(path)))

    def distrust(self, path: KeyPath) -> None:
        """Do not report this value, nor what follows from it: another mistake explains it."""
        self._direct.add(path)
        self._wrong.update(_prefixes(path))

    def report(self, problem: str, key: str, path: KeyPath) -> None:
        """Report a mistake at this path. Only the first one at a path counts: others follow from it."""
        if self.is_right(path):
            self._reported.append((path, key, problem))
            self.distrust(path)
            if len(self._reported) == _MAX_MISTAKES:
                self.raise_mistakes()

    def raise_mistakes(self) -> None:
        """Raise one error with all mistakes, if there are any."""
        if self._reported:
            raise self.error(self._reported)

    def error(self, reported: Sequence[tuple[KeyPath, str, str]]) -> BadFile:
        """Return the error for these mistakes: each with its path, its key and the problem."""
        mistakes = list_mistakes(self.text, reported)
        return self.error_type.listing(self.source, mistakes, is_complete=len(mistakes) < _MAX_MISTAKES)

    def load(self) -> dict[str, Any]:
        """Parse the file."""
        too_long = check_pieces(self.text)
        if too_long is not None:
            position, problem = too_long
            raise self._unreadable(self.text.count("\n", 0, position) + 1, problem)
        try:
            return tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            what, _, where = str(error).rpartition(" (at ")
            found = re.match(r"line (\d+), (column \d+)", where)
            last_line = self.text.count("\n", 0, len(self.text.rstrip())) + 1
            line, place = (int(found[1]), found[2]) if found else (last_line, "the end of the file")
            raise self._unreadable(line, f"{what} at {place}.") from error
        except (RecursionError, ValueError) as error:
            # Limits of tomllib, which does not report the position.
            raise self._unreadable(1, "A value is nested too deeply or has too many digits.") from error

    def _unreadable(self, line: int, problem: str) -> BadFile:
        return self.error_type.listing(self.source, [Mistake(line, "TOML", problem)])


class TomlTable:
    """A table of a TOML file, with typed access to its values.

    With an index, it is one `[[table]]` of an array. Without a name, it is the whole file.
    """

    __slots__ = ("_file", "_index", "_table", "_values")

    def __init__(self, file: TomlFile, table: str, index: int | None, values: Mapping[str, object]) -> None:
        self._file = file
        self._table = table
        self._index = index
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def path(self, *keys: str | int) -> KeyPath:
        """Return the path of a key, or of the table itself."""
        table: KeyPath = (self._table,) if self._table else ()
        return (*table, *keys) if self._index is None else (*table, self._index, *keys)

    def inner(self, key: str, like: str) -> TomlTable:
        """Return a nested table; `like` is an example for the error message."""
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            self.report(f"Must be a table like {like}, not {_type_name(values)}.", key)
            values = {}
        return _InnerTable(self, key, values)

    def rows(self, table: str, problem: str) -> list[TomlTable]:
        """Return the tables of an array; `problem` is the message if it is something else."""
        rows = self._values.get(table, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self.report(problem, table)
            rows = []
        return [TomlTable(self._file, table, index, row) for index, row in enumerate(rows)]

    def is_right(self, *keys: str) -> bool:
        """Whether no mistake is known in these keys; without keys, in the whole table."""
        return all(self._file.is_right(self.path(key)) for key in keys) if keys else self._file.is_right(self.path())

    def distrust(self, *keys: str | int) -> None:
        """Do not report this key, nor what follows from it: another mistake explains it."""
        self._file.distrust(self.path(*keys))

    def report(self, problem: str, *keys: str | int) -> None:
        """Report a mistake in a key, and continue. Only the first mistake in a key counts."""
        self._file.report(problem, self._label_of(keys), self.path(*keys))

    def error(self, problem: str, *keys: str | int) -> BadFile:
        """Return the error for a key, for a reader that cannot continue."""
        error = self._file.error([(self.path(*keys), self._label_of(keys), problem)])
        error.path = self.path(*keys)
        return error

    def report_raised(self, error: BadFile) -> None:
        """Report the mistake that has ended a reader."""
        self._file.report(str(error.fields["problem"]), str(error.fields["key"]), error.path)

    def _label_of(self, keys: tuple[str | int, ...]) -> str:
        name = self._values.get("name")
        label = self._table if self._index is None else f"{self._table}[{self._index}]"
        if isinstance(name, str) and name and name.isprintable() and self._table:
            label = f'{self._table} "{shortened(name)}"'
        for key in keys:
            if isinstance(key, int):
                label += f"[{key}]"
            else:
                label += f".{shortened(key)}" if _BARE_KEY.fullmatch(key) else f".{shown(key)}"
        return label.removeprefix(".")

    @property
    def _label(self) -> str:
        if not self._table:
            return "The file"
        return f"[{self._table}]" if self._index is None else f"[[{self._table}]]"

    def reject_unknown(self, known: Collection[str]) -> None:
        """Reject keys that are not in `known`. A key that is only misspelled is not reported as missing, too."""
        for key in self._values:
            if key not in known:
                self.report(f"{self._label} has no such key.{nearest(key, known)}", key)
                if (meant := nearest_name(key, known)) and meant not in self._values:
                    self.distrust(meant)

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        value = self._values.get(key, default)
        if isinstance(value, str):
            return value
        self.report(f"Must be a string in quotes, not {_type_name(value)}.", key)
        return default

    def required_text(self, key: str, remedy: str) -> str:
        """Return a required string; `remedy` is the hint if it is missing."""
        if key not in self._values:
            self.report(f"It is missing. {remedy}", key)
        return self.text(key)

    def choice(self, key: str, allowed: Collection[str], default: str) -> str:
        """Return one of these values."""
        value = self.text(key, default)
        return value if self._is_allowed(value, allowed, key) else default

    def choices(self, key: str, allowed: Collection[str]) -> tuple[str, ...]:
        """Return an array of these values without duplicates."""
        values = enumerate(self.texts(key))
        return tuple(dict.fromkeys(value for index, value in values if self._is_allowed(value, allowed, key, index)))

    def _is_allowed(self, value: str, allowed: Collection[str], *keys: str | int) -> bool:
        if value not in allowed:
            self.report(f"{shown(value)} is not one of {', '.join(allowed)}.{nearest(value, allowed)}", *keys)
        return value in allowed

    def texts(self, key: str) -> list[str]:
        """Return an array of strings. Each has its place in the file, also after a mistake."""
        values = self._values.get(key, [])
        if not isinstance(values, list):
            self.report(f"Must be an array of strings in brackets, not {_type_name(values)}.", key)
            return []
        return [self._string(value, key, index) for index, value in enumerate(values)]

    def one_or_more_texts(self, key: str) -> list[str]:
        """Return an array of strings. A single string may be written without brackets."""
        return [self.text(key)] if self.is_text(key) else self.texts(key)

    def is_text(self, key: str) -> bool:
        """Whether the value is a string."""
        return isinstance(self._values.get(key), str)

    def text_table(self, key: str) -> tuple[tuple[str, str], ...]:
        """Return a table of strings."""
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            self.report(f'Must be a table like {{env = "prod"}}, not {_type_name(values)}.', key)
            return ()
        return tuple((inner, self._string(value, key, inner)) for inner, value in values.items())

    def _string(self, value: object, *keys: str | int) -> str:
        if isinstance(value, str):
            return value
        self.report(f"Must be a string in quotes, not {_type_name(value)}.", *keys)
        return ""

    def integer(self, key: str, default: int, minimum: int, maximum: int, reason: str = "") -> int:
        """Return an integer within limits. The default may be outside of them."""
        if key not in self._values:
            return default
        value = self._integer(self._values[key], minimum, maximum, reason, key)
        return default if value is None else value

    def integers(self, key: str, minimum: int, maximum: int, reason: str = "") -> list[int]:
        """Return an array of integers within limits."""
        values = self._values.get(key, [])
        if not isinstance(values, list):
            self.report(f"Must be an array of numbers in brackets, not {_type_name(values)}.", key)
            return []
        found = [self._integer(value, minimum, maximum, reason, key, index) for index, value in enumerate(values)]
        return [value for value in found if value is not None]

    def _integer(self, value: object, minimum: int, maximum: int, reason: str, *keys: str | int) -> int | None:
        # In Python, True is an int.
        if not isinstance(value, int) or isinstance(value, bool):
            self.report(f"Must be a whole number, not {_type_name(value)}.", *keys)
            return None
        if not minimum <= value <= maximum:
            bounds = f"a whole number from {minimum} to {maximum}" if minimum < maximum else str(minimum)
            shown = f" It is {value}." if abs(value) < _LARGEST_SHOWN else ""
            self.report(f"Must be {bounds}{reason}.{shown}", *keys)
            return None
        return value

    def flag(self, key: str) -> bool | None:
        """Return a boolean, or None if the key is missing."""
        value = self._values.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.report(f"Must be true or false, not {_type_name(value)}.", key)
        return None

    def duration(self, key: str) -> timedelta | None:
        """Return a duration, or None if the key is missing."""
        if key not in self._values:
            return None
        try:
            return parse_duration(self.text(key))
        except BadDuration as error:
            self.report(str(error), key)
            return None


class _InnerTable(TomlTable):
    """A nested table."""

    __slots__ = ("_around", "_key")

    def __init__(self, around: TomlTable, key: str, values: Mapping[str, object]) -> None:
        super().__init__(around._file, key, None, values)  # noqa: SLF001 - same class
        self._around = around
        self._key = key

    def path(self, *keys: str | int) -> KeyPath:
        return self._around.path(self._key, *keys)

    def _label_of(self, keys: tuple[str | int, ...]) -> str:
        return self._around._label_of((self._key, *keys))  # noqa: SLF001 - same class

    @property
    def _label(self) -> str:
        return self._key


_TYPE_NAMES = {
    bool: "a boolean",
    dict: "a table",
    float: "a decimal number",
    int: "a number",
    list: "an array",
    str: "a string",
}


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "a date or time")
