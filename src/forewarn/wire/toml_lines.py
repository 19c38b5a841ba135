"""The line on which each thing of a TOML file stands.

`tomllib` keeps no lines. So when something is found to be wrong, and only then, the text is walked a
second time for the one line that is wanted. The walk knows just enough TOML to step over values: the
text has been accepted by `tomllib` before.
"""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]
"""Keys and array indices from the top of the file: `("vm", 3, "host")`."""

_STRING = r'"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'"
# A multi-line string may end in up to five quotes, of which the last three close it.
_LONG_STRING = r'"""(?:[^\\]|\\.)*?""""{0,2}' + r"|'''.*?''''{0,2}"
_BLANK = re.compile(r"(?:[\s,]+|\#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(rf"{_BARE_KEY.pattern}|{_STRING}")
_PIECE = re.compile(rf"[\[\]{{}}]|{_LONG_STRING}|{_STRING}|[^,\[\]{{}}#\n]+", re.DOTALL)


def line_of(text: str, path: Path) -> int:
    """The line of what `path` names, or, where that is not written down, of the nearest thing around it."""
    return text.count("\n", 0, _Walk(text, path).find()) + 1


class _Walk:
    """One walk through TOML text, in search of one path."""

    def __init__(self, text: str, wanted: Path) -> None:
        self._text = text
        self._wanted = wanted
        self._at = 0
        self._matched = 0
        self._found_at = 0

    def find(self) -> int:
        """Where the longest part of the wanted path first stands."""
        table: Path = ()
        arrays: dict[Path, int] = {}
        self._take(_BLANK)
        while self._matched < len(self._wanted) and self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header(arrays)
            else:
                self._pair(table)
            self._take(_BLANK)
        return self._found_at

    def _header(self, arrays: dict[Path, int]) -> Path:
        """Step over `[table]` or `[[table]]`. `arrays` holds the last index of each array of tables."""
        start = self._at
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._at += brackets
        *parents, last = self._dotted_key()
        self._at += brackets
        path: Path = ()
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

    def _pair(self, table: Path) -> None:
        """Step over `key = value`."""
        start = self._at
        path = (*table, *self._dotted_key())
        self._at += len("=")
        self._note(path, start)
        self._take(_SPACE)
        self._value(path)

    def _dotted_key(self) -> list[str]:
        keys = []
        more = True
        while more:
            self._take(_SPACE)
            key = self._take(_KEY)
            keys.append(key if key[0] not in "\"'" else str(tomllib.loads(f"key = {key}")["key"]))
            self._take(_SPACE)
            more = self._text.startswith(".", self._at)
            self._at += more
        return keys

    def _value(self, path: Path) -> None:
        # Only what leads to the wanted path is entered: nesting elsewhere, however deep, is stepped over.
        if self._text[self._at] in "[{" and path == self._wanted[: len(path)]:
            self._container(path)
        else:
            self._step_over()

    def _container(self, path: Path) -> None:
        """Go through an array or an inline table."""
        is_array = self._text[self._at] == "["
        self._at += 1
        self._take(_BLANK)
        index = 0
        while self._text[self._at] not in "]}":
            if is_array:
                self._note((*path, index), self._at)
                self._value((*path, index))
                index += 1
            else:
                self._pair(path)
            self._take(_BLANK)
        self._at += 1

    def _step_over(self) -> None:
        depth = 0
        while piece := self._take(_PIECE):
            depth += (piece in "[{") - (piece in "]}")
            if depth == 0:
                break
            self._take(_BLANK)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        taken = match[0] if match else ""
        self._at += len(taken)
        return taken

    def _note(self, path: Path, at: int) -> None:
        shared = 0
        for here, there in zip(path, self._wanted, strict=False):
            if here != there:
                break
            shared += 1
        if shared > self._matched:
            self._matched, self._found_at = shared, at
