"""forewarn agent bundle: write the agent as a single file."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.options import AgentParser
from forewarn.errors import NotPermitted
from forewarn.system.files import write_atomically

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator


# --- Which modules the agent needs ----------------------------------------------------------------


PACKAGE = "forewarn"


def closure(root: Path, part: str) -> dict[str, Path]:
    """Return the files of a subpackage (`agent`) and of the Forewarn modules that it imports, by path in the bundle.

    `root` is the folder of the package `forewarn`.
    """
    found: dict[str, Path] = {}
    pending = [root / "__init__.py", *sorted((root / part).rglob("*.py"))]
    while pending:
        file = pending.pop()
        name = f"{PACKAGE}/{file.relative_to(root).as_posix()}"
        if name not in found:
            found[name] = file
            for module in imported(ast.parse(file.read_bytes())):
                pending += _files(root, module)
    return dict(sorted(found.items()))


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the imported modules of Forewarn, without imports for the type checker."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == PACKAGE:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # each name may be a module
        pending += ast.iter_child_nodes(node)


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _files(root: Path, module: str) -> Iterator[Path]:
    """Yield the file of a module and the __init__ files of its parent packages; nothing if there is no such module."""
    parts = module.split(".")[1:]
    for depth in range(len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        for file in (place / "__init__.py", place.with_suffix(".py") if depth else place):
            if file.is_file():
                yield file


# --- The command ----------------------------------------------------------------------------------


OUTPUT = "forewarn-agent.pyz"
_MAIN = """\
# Runs the agent. Every Python must be able to parse this file, so that an old one reports that it is too old.
import sys

if sys.version_info < (3, 10):
    sys.exit("forewarn: Python 3.10 or newer is required, but this is %d.%d (%s)." % (
        sys.version_info[0], sys.version_info[1], sys.executable))
import os

arguments = sys.argv[2:] if sys.argv[1:2] == ["agent"] else sys.argv[1:]
# An absolute path stays valid when the working directory changes.
sys.path[0] = os.path.abspath(sys.path[0])
if arguments[:1] == ["run"]:
    # The agent imports some modules late. Load them from a private copy in memory: the file may be replaced meanwhile.
    try:
        number = os.memfd_create("forewarn-agent")
        with open(sys.path[0], "rb") as file, os.fdopen(number, "wb", closefd=False) as copy:
            copy.write(file.read())
        if os.path.isfile("/proc/self/fd/%d" % number):
            sys.path[0] = "/proc/self/fd/%d" % number
    except (AttributeError, OSError):
        pass

from forewarn.agent.cli.main import main

sys.exit(main(arguments))
"""


def parser() -> AgentParser:
    parser = AgentParser(
        "bundle",
        "Write the agent as a single file for Python 3.10 or newer.\n\n"
        "The VM needs nothing else: python3 forewarn-agent.pyz run --config agent.toml",
        "forewarn agent bundle --output forewarn-agent.pyz",
    )
    parser.add_argument("--output", "--out", metavar="FILE", default=OUTPUT, help=f"file to write (default: {OUTPUT})")
    return parser


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
    """Return the bundle. The same version of Forewarn always produces the same bytes."""
    import forewarn

    archive = getattr(forewarn.__loader__, "archive", None)
    if archive is not None:
        return Path(archive).read_bytes()  # this program is a bundle already
    import io
    import zipfile

    bundle = io.BytesIO(b"#!/usr/bin/env python3\n")
    bundle.seek(0, os.SEEK_END)
    with zipfile.ZipFile(bundle, "a") as zipped:
        for name, content in sorted({**agent_files(), "__main__.py": _MAIN.encode()}.items()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            # Not compressed: loading is faster, and the agent does not need zlib in memory.
            zipped.writestr(entry, content)
    return bundle.getvalue()


def agent_files() -> dict[str, bytes]:
    """Return every file of the agent, by its path: its modules, its systemd unit, and a TOML reader for Python 3.10.

    The bundle and the package `forewarn-agent` consist of these files.
    """
    import tomllib

    import forewarn

    root = Path(forewarn.__file__ or "").parent
    files = closure(root, "agent")
    for path in sorted((root / "system" / "units").glob("forewarn-agent*")):
        files[f"{PACKAGE}/system/units/{path.name}"] = path
    # The TOML reader of the standard library is pure Python, and also runs on Python 3.10.
    for path in sorted(Path(tomllib.__file__).parent.glob("*.py")):
        files[f"{PACKAGE}/vendored/tomllib/{path.name}"] = path
    return {f"{PACKAGE}/vendored/__init__.py": b"", **{name: path.read_bytes() for name, path in files.items()}}
