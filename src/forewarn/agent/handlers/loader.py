"""Loads the handlers of a policy: built-in kinds, kinds of installed packages, and Python files."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from forewarn.agent import handlers
from forewarn.agent.handlers.handler import Handler
from forewarn.errors import BadFile, ForewarnError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.files.toml_reader import TomlTable


GROUP = "forewarn.handlers"
"""Entry point group for kinds of handlers in installed packages."""


def make_handler(options: TomlTable, kind: str, file: str, config_folder: Path) -> Handler | None:
    """Create the handler of one `[handler.NAME]`. None: it has a mistake in its options, which is reported."""
    if kind and file:
        options.report("Give either kind or file.", "file")
    elif not kind and not file and options.is_right("file"):
        problem = f"It is missing. Write one of {', '.join(kinds())}, or give the `file` of your own handler."
        options.report(problem, "kind")
    if not options.is_right("kind", "file"):
        return None
    try:
        found = _from_file(options, config_folder / file) if file else _of_kind(options, kind)
        return found(options)
    except BadFile as error:
        options.report_raised(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - third-party code: blame its options
        problem = str(error) if isinstance(error, ForewarnError) else f"Cannot create the handler: {_describe(error)}"
        if options.is_right():
            options.report(problem, "file" if file else "kind")
    return None


def kinds() -> list[str]:
    """Return the built-in kinds."""
    return [name for name in _modules() if hasattr(import_module(f"{handlers.__name__}.{name}"), "KIND")]


def _modules() -> list[str]:
    import pkgutil  # imported here: only needed for an error message

    # Not from the folder: the single-file agent has none.
    return [module.name for module in pkgutil.iter_modules(handlers.__path__)]


def _module(kind: str) -> ModuleType | None:
    name = f"{handlers.__name__}.{kind}"
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def _of_kind(options: TomlTable, kind: str) -> type[Handler]:
    found = getattr(_module(kind), "KIND", None) if kind.isidentifier() else None
    if found is not None:
        return _validate(options, found, "kind", kind)
    from importlib.metadata import entry_points  # imported here: rarely needed

    installed = {point.name: point for point in entry_points(group=GROUP)}
    if kind in installed:
        try:
            found = installed[kind].load()
        except Exception as error:  # third-party code
            raise options.error(f"{installed[kind].value} cannot be loaded: {_describe(error)}", "kind") from error
        return _validate(options, found, "kind", installed[kind].value)
    known = [*kinds(), *sorted(installed)]
    raise options.error(f"{kind!r} is not one of {', '.join(known)}.{nearest(kind, known)}", "kind")


def _from_file(options: TomlTable, path: Path) -> type[Handler]:
    module = _load(options, path)
    if hasattr(module, "KIND"):
        return _validate(options, module.KIND, "file", f"KIND of {path}")
    found = [value for value in vars(module).values() if _is_kind(value) and value.__module__ == module.__name__]
    if len(found) != 1:
        several = ", ".join(sorted(kind.__name__ for kind in found))
        problem = f"has several handlers ({several}). Choose one with KIND = ..." if found else "has no handler."
        raise options.error(f"{path} {problem} A handler is a class that inherits from forewarn.agent.Handler.", "file")
    return _validate(options, found[0], "file", found[0].__name__)


def _load(options: TomlTable, path: Path) -> ModuleType:
    module = ModuleType(f"forewarn_handler_{path.stem}")
    module.__file__ = str(path)
    try:
        code = compile(path.read_bytes(), str(path), "exec")
        # Classes and tracebacks look up their module there.
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)  # noqa: S102 - the purpose of the file
    except OSError as error:
        raise options.error(f"{path} cannot be read: {error.strerror}.", "file") from error
    except (Exception, SystemExit) as error:  # third-party code
        raise options.error(f"{path} cannot be loaded: {_describe(error)}", "file") from error
    return module


def _is_kind(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Handler) and value is not Handler


def _validate(options: TomlTable, found: Any, key: str, called: str) -> type[Handler]:
    if not _is_kind(found):
        raise options.error(f"{called} is not a class that inherits from forewarn.agent.Handler.", key)
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise options.error(f"{called} does not define {', '.join(missing)}.", key)
    kind: type[Handler] = found
    return kind


def _describe(error: BaseException) -> str:
    """Return an exception as one line, with the line number of a syntax error."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}."
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
