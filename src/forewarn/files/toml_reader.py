"""Read typed values from TOML files. Errors name the line and the key."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.core.durations import parse_duration
from forewarn.errors import BadDuration, BadFleet, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:  # the files of the agent include a copy: see forewarn.agent.cli.bundle
    from forewarn.vendored import tomllib

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import timedelta

    from forewarn.errors import BadAgentConfig, BadScenario


KeyPath = tuple[str | int, ...]
"""Keys and array indices from the top of the file: `("vm", 3, "host")`."""

_STRING = r'"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'"
# A multi-line string may end in up to five quotes, of which the last three close it.
_LONG_STRING = r'"""(?:[^\\]|\\.)*?""""{0,2}' + r"|'''.*?''''{0,2}"
_BLANK = re.compile(r"(?:[\s,]+|\#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(rf"{_BARE_KEY.pattern}|{_STRING}")
_PIECE = re.compile(rf"[\[\]{{}}]|{_LONG_STRING}|{_STRING}|[^,\[\]{{}}#\n]+", re.DOTALL)


def line_of(text: str, path: KeyPath) -> int:
    """Return the line of a key. If the key is missing, return the line of the closest table around it."""
    return text.count("\n", 0, _LineFinder(text, path).find()) + 1


class _LineFinder:
    """Finds the position of a key in TOML text."""

    def __init__(self, text: str, path: KeyPath) -> None:
        self._text = text
        self._path = path
        self._position = 0
        self._matched = 0
        self._found_position = 0

    def find(self) -> int:
        """Return the position of the longest matching prefix of the path."""
        table: KeyPath = ()
        arrays: dict[KeyPath, int] = {}
        self._read(_BLANK)
        while self._matched < len(self._path) and self._position < len(self._text):
            if self._text[self._position] == "[":
                table = self._header(arrays)
            else:
                self._pair(table)
            self._read(_BLANK)
        return self._found_position

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
            key = self._read(_KEY)
            keys.append(key if key[0] not in "\"'" else str(tomllib.loads(f"key = {key}")["key"]))
            self._read(_SPACE)
            more = self._text.startswith(".", self._position)
            self._position += more
        return keys

    def _value(self, path: KeyPath) -> None:
        # Only containers on the path are searched, so deep nesting elsewhere is no problem.
        if self._text[self._position] in "[{" and path == self._path[: len(path)]:
            self._container(path)
        else:
            self._skip_value()

    def _container(self, path: KeyPath) -> None:
        """Search an array or an inline table."""
        is_array = self._text[self._position] == "["
        self._position += 1
        self._read(_BLANK)
        index = 0
        while self._text[self._position] not in "]}":
            if is_array:
                self._note((*path, index), self._position)
                self._value((*path, index))
                index += 1
            else:
                self._pair(path)
            self._read(_BLANK)
        self._position += 1

    def _skip_value(self) -> None:
        depth = 0
        while piece := self._read(_PIECE):
            depth += (piece in "[{") - (piece in "]}")
            if depth == 0:
                break
            self._read(_BLANK)

    def _read(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        found = match[0] if match else ""
        self._position += len(found)
        return found

    def _note(self, path: KeyPath, at: int) -> None:
        shared = 0
        for here, there in zip(path, self._path, strict=False):
            if here != there:
                break
            shared += 1
        if shared > self._matched:
            self._matched, self._found_position = shared, at


# --- Typed tables -------------------------------------------------------------------------------


class TomlFile(NamedTuple):
    """Text of a TOML file, with its name for error messages."""

    text: str
    source: str
    error_type: type[BadAgentConfig | BadFleet | BadScenario] = BadFleet

    def error(self, problem: str, key: str, path: KeyPath) -> BadAgentConfig | BadFleet | BadScenario:
        """Return the error for the value at `path`."""
        return self.error_type(source=self.source, line=line_of(self.text, path), key=key, problem=problem)

    def load(self) -> dict[str, Any]:
        """Parse the file."""
        try:
            return tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            what, _, where = str(error).rpartition(" (at ")
            found = re.match(r"line (\d+), (column \d+)", where)
            last_line = self.text.count("\n", 0, len(self.text.rstrip())) + 1
            line, place = (int(found[1]), found[2]) if found else (last_line, "the end of the file")
            raise self.error_type(source=self.source, line=line, key="TOML", problem=f"{what} at {place}.") from error
        except (RecursionError, ValueError) as error:
            # Limits of tomllib, which does not report the position.
            problem = "A value is nested too deeply or has too many digits."
            raise self.error_type(source=self.source, line=1, key="TOML", problem=problem) from error


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

    def line(self, *keys: str | int) -> int:
        """Return the line of a key, or of the table's header if the key is missing."""
        return line_of(self._file.text, (*self._path, *keys))

    @property
    def _path(self) -> KeyPath:
        table: KeyPath = (self._table,) if self._table else ()
        return table if self._index is None else (*table, self._index)

    def inner(self, key: str, like: str) -> TomlTable:
        """Return a nested table; `like` is an example for the error message."""
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            raise self.error(f"Must be a table like {like}, not {_type_name(values)}.", key)
        return _InnerTable(self, key, values)

    def error(self, problem: str, *keys: str | int) -> BadAgentConfig | BadFleet | BadScenario:
        """Return the error for a key."""
        name = self._values.get("name")
        named = isinstance(name, str) and name and name.isprintable()
        label = self._table if self._index is None else f"{self._table}[{self._index}]"
        if named and self._table:
            label = f'{self._table} "{name}"'
        for key in keys:
            if isinstance(key, int):
                label += f"[{key}]"
            else:
                label += f".{key}" if _BARE_KEY.fullmatch(key) else f".{key!r}"
        return self._file.error(problem, label.removeprefix("."), (*self._path, *keys))

    @property
    def _label(self) -> str:
        if not self._table:
            return "The file"
        return f"[{self._table}]" if self._index is None else f"[[{self._table}]]"

    def reject_unknown(self, known: Collection[str]) -> None:
        """Reject keys that are not in `known`."""
        for key in self._values:
            if key not in known:
                raise self.error(f"{self._label} has no such key.{nearest(key, known)}", key)

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self.error(f"Must be a string in quotes, not {_type_name(value)}.", key)
        return value

    def required_text(self, key: str, remedy: str) -> str:
        """Return a required string; `remedy` is the hint if it is missing."""
        if key not in self._values:
            raise self.error(f"Is missing. {remedy}", key)
        return self.text(key)

    def choice(self, key: str, allowed: Collection[str], default: str) -> str:
        """Return one of these values."""
        value = self.text(key, default)
        self._check_choice(value, allowed, key)
        return value

    def choices(self, key: str, allowed: Collection[str]) -> tuple[str, ...]:
        """Return an array of these values without duplicates."""
        values = self.texts(key)
        for index, value in enumerate(values):
            self._check_choice(value, allowed, key, index)
        return tuple(dict.fromkeys(values))

    def _check_choice(self, value: str, allowed: Collection[str], *keys: str | int) -> None:
        if value not in allowed:
            raise self.error(f"{value!r} is not one of {', '.join(allowed)}.{nearest(value, allowed)}", *keys)

    def texts(self, key: str) -> list[str]:
        """Return an array of strings."""
        values = self._values.get(key, [])
        if not isinstance(values, list):
            raise self.error(f"Must be an array of strings in brackets, not {_type_name(values)}.", key)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"Must be a string in quotes, not {_type_name(value)}.", key, index)
        return values

    def text_table(self, key: str) -> tuple[tuple[str, str], ...]:
        """Return a table of strings."""
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            raise self.error(f'Must be a table like {{env = "prod"}}, not {_type_name(values)}.', key)
        for inner, value in values.items():
            if not isinstance(value, str):
                raise self.error(f"Must be a string in quotes, not {_type_name(value)}.", key, inner)
        return tuple(values.items())

    def integer(self, key: str, default: int, minimum: int, maximum: int, reason: str = "") -> int:
        """Return an integer within limits. The default may be outside of them."""
        if key not in self._values:
            return default
        return self._integer(self._values[key], minimum, maximum, reason, key)

    def integers(self, key: str, minimum: int, maximum: int, reason: str = "") -> list[int]:
        """Return an array of integers within limits."""
        values = self._values.get(key, [])
        if not isinstance(values, list):
            raise self.error(f"Must be an array of numbers in brackets, not {_type_name(values)}.", key)
        return [self._integer(value, minimum, maximum, reason, key, index) for index, value in enumerate(values)]

    def _integer(self, value: object, minimum: int, maximum: int, reason: str, *keys: str | int) -> int:
        # In Python, True is an int.
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"Must be a whole number, not {_type_name(value)}.", *keys)
        if not minimum <= value <= maximum:
            bounds = f"a whole number from {minimum} to {maximum}" if minimum < maximum else str(minimum)
            raise self.error(f"Must be {bounds}{reason}.", *keys)
        return value

    def flag(self, key: str) -> bool | None:
        """Return a boolean, or None if the key is missing."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"Must be true or false, not {_type_name(value)}.", key)
        return value

    def duration(self, key: str) -> timedelta | None:
        """Return a duration, or None if the key is missing."""
        if key not in self._values:
            return None
        try:
            return parse_duration(self.text(key))
        except BadDuration as error:
            raise self.error(str(error), key) from None


class _InnerTable(TomlTable):
    """A nested table."""

    __slots__ = ("_around", "_key")

    def __init__(self, around: TomlTable, key: str, values: Mapping[str, object]) -> None:
        super().__init__(around._file, key, None, values)  # noqa: SLF001 - same class
        self._around = around
        self._key = key

    def line(self, *keys: str | int) -> int:
        return self._around.line(self._key, *keys)

    def error(self, problem: str, *keys: str | int) -> BadAgentConfig | BadFleet | BadScenario:
        return self._around.error(problem, self._key, *keys)

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
