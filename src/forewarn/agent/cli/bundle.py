"""forewarn agent bundle: write the agent as one file that any Python 3.10 or newer runs."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.options import Parser
from forewarn.errors import NotPermitted
from forewarn.system.files import write_atomically

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator


# --- Which modules the agent needs ----------------------------------------------------------------


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


# --- The command ----------------------------------------------------------------------------------


OUTPUT = "forewarn-agent.pyz"
CARRIED = "carried"
"""Where in the file the TOML reader is, for a Python that has none."""

_MAIN = f"""\
# Runs the agent. What is here must be understood by every Python, so that an old one says what it lacks.
import sys

if sys.version_info < (3, 10):
    sys.exit("forewarn: this needs Python 3.10 or newer, and is run by %d.%d (%s)." % (
        sys.version_info[0], sys.version_info[1], sys.executable))
import os

words = sys.argv[2:] if sys.argv[1:2] == ["agent"] else sys.argv[1:]
# Whole, so that it is still found when somebody has changed the working folder.
sys.path[0] = os.path.abspath(sys.path[0])
if words[:1] == ["run"]:
    # It runs for long, and loads some parts only when they are needed: from a copy that nobody else has, since by then
    # another file may be in its place.
    try:
        number = os.memfd_create("forewarn-agent")
        with open(sys.path[0], "rb") as file, os.fdopen(number, "wb", closefd=False) as copy:
            copy.write(file.read())
        if os.path.isfile("/proc/self/fd/%d" % number):
            sys.path[0] = "/proc/self/fd/%d" % number
    except (AttributeError, OSError):
        pass
# At the end: the standard library's own reader goes first, where there is one.
sys.path.append(sys.path[0] + "/{CARRIED}")

from forewarn.agent.cli.main import main

sys.exit(main(words))
"""


def parser() -> Parser:
    found = Parser(
        "bundle",
        "Write the agent as one file that any Python 3.10 or newer runs.\n\n"
        "Nothing else needs to be installed there: python3 forewarn-agent.pyz run --config agent.toml",
        "forewarn agent bundle --output forewarn-agent.pyz",
    )
    found.add_argument("--output", metavar="FILE", default=OUTPUT, help=f"the file to write (default: {OUTPUT})")
    return found


def run(options: Namespace) -> int:
    file = Path(options.output)
    content = make_bundle()
    try:
        write_atomically(file, content, 0o755, follow_links=True)
    except OSError as error:
        raise NotPermitted(action="write", path=file, problem=error.strerror, flag="--output") from error
    sys.stdout.write(f"Wrote {file}, {len(content) / 1000:,.0f} kB. Run it with: python3 {file} run --help\n")
    return 0


def make_bundle() -> bytes:
    """The same bytes each time: whoever looks can see what has changed."""
    import forewarn

    archive = getattr(forewarn.__loader__, "archive", None)
    if archive is not None:
        return Path(archive).read_bytes()  # this is one already
    import io
    import zipfile

    kept = io.BytesIO(b"#!/usr/bin/env python3\n")
    kept.seek(0, os.SEEK_END)
    with zipfile.ZipFile(kept, "a") as zipped:
        for name, content in sorted(_contents().items()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            # Not compressed: it is read at every start, and no agent then needs to hold what unpacks it.
            zipped.writestr(entry, content)
    return kept.getvalue()


def _contents() -> dict[str, bytes]:
    import forewarn

    root = Path(forewarn.__file__ or "").parent
    files = {name: path.read_bytes() for name, path in closure(root, "agent").items()}
    version = forewarn.__version__
    files[f"forewarn-{version}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: forewarn\nVersion: {version}\nLicense: Apache-2.0\n".encode()
    )
    files["__main__.py"] = _MAIN.encode()
    return {**files, **_toml_reader()}


def _toml_reader() -> dict[str, bytes]:
    """The standard library's, which is written in Python alone and runs on 3.10 as well."""
    import tomllib

    folder = Path(tomllib.__file__).parent
    return {f"{CARRIED}/tomllib/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
