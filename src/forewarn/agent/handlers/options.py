"""Readers for options that several kinds of handlers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forewarn.files.toml_reader import TomlTable


def read_argv(options: TomlTable, key: str) -> tuple[str, ...]:
    """Return a program and its arguments; empty without the option."""
    if key not in options:
        return ()
    if options.is_text(key):
        problem = 'Must be a list of a program and its arguments. For a shell command write ["sh", "-c", "..."].'
        options.report(problem, key)
        return ()
    argv = options.texts(key)
    if not argv or not argv[0]:
        options.report('Is empty. Write it like ["systemctl", "stop", "web"].', key)
        return ()
    for index, word in enumerate(argv):
        if "\0" in word:
            options.report("Contains a null character.", key, index)
    if "/" in argv[0] and not argv[0].startswith("/") and "directory" not in options and options.is_right("directory"):
        problem = "Write the absolute path of the program, or give `directory`: the agent can run in any folder."
        options.report(problem, key, 0)
    return tuple(argv)


def read_path(options: TomlTable, key: str) -> str:
    """Return an absolute path; empty without the option."""
    path = options.text(key)
    if key in options and (not path.startswith("/") or "\0" in path):
        options.report("Must be an absolute path: the agent can run in any folder.", key)
    return path


def read_several(options: TomlTable, one: str, several: str, like: str) -> tuple[str, ...]:
    """Return names from an option for one name or an option for several."""
    if one in options and several in options:
        options.report(f"Give either {one} or {several}.", one)
    key = several if several in options or not options.is_right(several) else one
    names = options.texts(several) if key == several else [options.required_text(one, f"Write it like {like}.")]
    if not names:
        options.report("Is empty.", key)
    for index, name in enumerate(names):
        place = (key, index) if key == several else (key,)
        if not name or not name.isprintable() or any(letter.isspace() for letter in name):
            options.report(f"{name!r} is not a valid name. Write it like {like}.", *place)
        if name in names[:index]:
            options.report(f"{name!r} is listed twice.", *place)
    return tuple(names)
