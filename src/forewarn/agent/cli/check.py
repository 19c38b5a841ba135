"""forewarn agent check: describe what a policy does, or report the first error in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.options import CONFIG_VARIABLE, AgentParser, add_common_options, config_path, load_config
from forewarn.errors import BadCommandLine, PolicyHasWarnings

if TYPE_CHECKING:
    from argparse import Namespace


def parser() -> AgentParser:
    parser = AgentParser(
        "check",
        "Describe what a policy does, or report the first error in it.\n\n"
        "The command runs no handler. Without --here, it sends no request.",
        "forewarn agent check --config agent.toml",
        "forewarn agent check agent.toml --here --strict",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the policy file, as with --config")
    add_common_options(parser)
    parser.add_argument(
        "--here", action="store_true", help="also check that programs, units and sockets exist on this machine"
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 2 if there is a warning")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: Namespace) -> int:
    # Imported here: a running agent does not need it.
    from forewarn.agent.explain import as_json, config_warnings, explain, problems_here
    from forewarn.system.printable import printable

    if options.file is not None and options.config is not None:
        problem = f"The policy file is given twice: {options.file!r} and --config {options.config!r}."
        raise BadCommandLine(problem=problem, program="forewarn agent check")
    path = Path(options.file) if options.file else config_path(options)
    if path is None:
        problem = f"Name the policy file with --config FILE or {CONFIG_VARIABLE}."
        raise BadCommandLine(problem=problem, program="forewarn agent check")
    config = load_config(path)
    here = problems_here(config) if options.here else []
    if options.json:
        import json

        sys.stdout.write(json.dumps(as_json(config, here), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in explain(config, here))
    if options.strict and (count := len(config_warnings(config)) + len(here)):
        sys.stdout.flush()
        raise PolicyHasWarnings(source=config.source, count=count)
    return 0
