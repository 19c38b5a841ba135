"""Which modules a part of Forewarn needs: by what it imports, read and not run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "forewarn"


def closure(root: Path, part: str) -> dict[str, Path]:
    """All files of a part (`agent`), with what they import of Forewarn, by their path in the package's parent folder.

    `root` is the package's folder. Packages come with their own module, which may import more in its turn.
    """
    found: dict[str, Path] = {}
    waiting = [root / "__init__.py", *sorted((root / part).rglob("*.py"))]
    while waiting:
        file = waiting.pop()
        name = f"{PACKAGE}/{file.relative_to(root).as_posix()}"
        if name not in found:
            found[name] = file
            for module in imported(ast.parse(file.read_bytes())):
                waiting += _files(root, module)
    return dict(sorted(found.items()))


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules of Forewarn that are imported at some time, not only for the type checker."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_for_types(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == PACKAGE:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # where that is a module too
        waiting += ast.iter_child_nodes(node)


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _files(root: Path, module: str) -> Iterator[Path]:
    """The file of a module, with those of the packages around it; none, if there is no such module."""
    parts = module.split(".")[1:]
    for depth in range(len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        for file in (place / "__init__.py", place.with_suffix(".py") if depth else place):
            if file.is_file():
                yield file
