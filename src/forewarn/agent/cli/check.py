"""forewarn agent check: read a config, and say what it does or what is wrong in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.options import CONFIG_VARIABLE, Parser, add_places, config_path, load_config
from forewarn.errors import BadCommandLine

if TYPE_CHECKING:
    from argparse import Namespace


def parser() -> Parser:
    found = Parser(
        "check",
        "Read a config and say what it does, or what is wrong in it.\n\nNothing is run and nobody is asked.",
        "forewarn agent check --config agent.toml",
        "forewarn agent check agent.toml --json",
    )
    found.add_argument("file", nargs="?", metavar="FILE", help="the config, as with --config")
    add_places(found)
    found.add_argument("--json", action="store_true", help="print it as JSON")
    return found


def run(options: Namespace) -> int:
    # Only here: it loads every handler's words, which an agent at work does without.
    from forewarn.agent.explain import as_json, explain
    from forewarn.system.logs import printable

    if options.file is not None and options.config is not None:
        problem = f"The config is named twice: {options.file!r} and --config {options.config!r}."
        raise BadCommandLine(problem=problem, program="forewarn agent check")
    path = Path(options.file) if options.file else config_path(options)
    if path is None:
        problem = f"Say which config: --config FILE, or {CONFIG_VARIABLE}."
        raise BadCommandLine(problem=problem, program="forewarn agent check")
    config = load_config(path)
    if options.json:
        import json

        sys.stdout.write(json.dumps(as_json(config), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in explain(config))
    return 0
