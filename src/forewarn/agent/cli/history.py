"""forewarn agent history: show what the agent of this VM has done for events."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from forewarn.agent.cli.options import AgentParser, add_common_options, config_path, load_config, resolve_options
from forewarn.agent.history import read_history
from forewarn.errors import NotPermitted
from forewarn.system.logs import text_value
from forewarn.system.printable import printable

if TYPE_CHECKING:
    from argparse import Namespace

_SHOWN_FIRST = ("time", "level", "event", "message", "event_id", "event_type")


def parser() -> AgentParser:
    parser = AgentParser(
        "history",
        "Show what the agent of this VM has done for events, newest last.\n\n"
        "The command reads the state folder. It does not matter whether the agent is running.",
        "forewarn agent history",
        "forewarn agent history --state /var/lib/forewarn-agent --json",
    )
    add_common_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: Namespace) -> int:
    folder = resolve_options(options, load_config(config_path(options))).folder
    try:
        entries = list(read_history(folder))
    except OSError as error:
        problem = error.strerror or str(error)
        raise NotPermitted(action="read the history in", path=folder, problem=problem, flag="--state") from error
    if options.json:
        sys.stdout.write(json.dumps({"entries": entries}, indent=2) + "\n")
    elif entries:
        sys.stdout.writelines(f"{printable(_line(entry))}\n" for entry in entries)
    else:
        sys.stdout.write(f"{printable(str(folder))} has no history.\n")
    return 0


def _line(entry: dict[str, Any]) -> str:
    fields = "".join(f" {name}={text_value(value)}" for name, value in entry.items() if name not in _SHOWN_FIRST)
    about = f"{entry.get('event_type')} {entry.get('event_id')}"
    return f"{str(entry.get('time'))[:19]}Z  {about}  {entry.get('message')}{fields}"
