"""Options that several kinds of handlers have, and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.errors import Invalid

if TYPE_CHECKING:
    from forewarn.files.toml_reader import TomlTable


def read_argv(options: TomlTable, key: str) -> tuple[str, ...]:
    """A program and its arguments; nothing where the option is not given."""
    if key not in options:
        return ()
    if _is_text(options, key):
        problem = 'Must be a list of a program and its arguments. For a line of the shell write ["sh", "-c", "..."].'
        raise options.wrong(problem, key)
    argv = options.texts(key)
    if not argv or not argv[0]:
        raise options.wrong('Names no program. Write it like ["systemctl", "stop", "web"].', key)
    for index, word in enumerate(argv):
        if "\0" in word:
            raise options.wrong("Holds a character that no argument can hold.", key, index)
    if "/" in argv[0] and not argv[0].startswith("/") and "directory" not in options:
        problem = "The agent may run in any folder: write the whole path of the program, or give `directory`."
        raise options.wrong(problem, key, 0)
    return tuple(argv)


def read_path(options: TomlTable, key: str) -> str:
    """A whole path; nothing where the option is not given."""
    path = options.text(key)
    if key in options and (not path.startswith("/") or "\0" in path):
        raise options.wrong("The agent may run in any folder: write the whole path, from / on.", key)
    return path


def read_several(options: TomlTable, one: str, several: str, like: str) -> tuple[str, ...]:
    """Names that are given either as one or as several."""
    if one in options and several in options:
        raise options.wrong(f"Give either {one} or {several}.", one)
    key = several if several in options else one
    names = options.texts(several) if key == several else [options.required_text(one, f"Write it like {like}.")]
    if not names:
        raise options.wrong("Is empty.", key)
    for index, name in enumerate(names):
        place = (key, index) if key == several else (key,)
        if not name or not name.isprintable() or any(letter.isspace() for letter in name):
            raise options.wrong(f"{name!r} is no name. Write it like {like}.", *place)
        if name in names[:index]:
            raise options.wrong(f"{name!r} is there twice.", *place)
    return tuple(names)


def _is_text(options: TomlTable, key: str) -> bool:
    try:
        options.text(key)
    except Invalid:
        return False
    return True
