"""forewarn agent plan: show what the agent would do about an event, and when."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.options import AgentParser, add_common_options, config_path, load_config, resolve_options
from forewarn.agent.clock import EndpointClock
from forewarn.agent.files import read_bounded, read_whole
from forewarn.core.durations import parse_time
from forewarn.errors import BadCommandLine, BadOption, UnreadableDocument, UnreadableFile

if TYPE_CHECKING:
    from argparse import Namespace
    from datetime import datetime

    from forewarn.wire.document_reader import ScheduledEvent


def parser() -> AgentParser:
    parser = AgentParser(
        "plan",
        "Show what the agent would do about an event, and when.\n\n"
        "FILE contains one event or a whole document of any api-version. - reads standard input.\n"
        "The command runs no handler and sends no request. Without a VM name, it treats every event\n"
        "as an event of this VM.",
        "forewarn agent plan --config agent.toml --event event.json",
        "forewarn vm document web-0 | forewarn agent plan --config agent.toml --event - --vm-name web-0",
    )
    add_common_options(parser)
    parser.add_argument("--event", metavar="FILE", help="file with the event or the document")
    parser.add_argument("--now", metavar="TIME", help="plan as if it were this time, for example 2026-11-20T02:00:00Z")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: Namespace) -> int:
    # Imported here: a running agent does not need it.
    from forewarn.agent.plan import plan, plan_json, plan_lines
    from forewarn.system.printable import printable

    if not options.event:
        raise BadCommandLine(problem="Name the file with the event: --event FILE.", program="forewarn agent plan")
    config = load_config(config_path(options))
    name = resolve_options(options, config).vm_name.value
    now = EndpointClock().now() if options.now is None else _time(options.now)
    plans = [plan(config, event, now, _listed_as(name, event)) for event in _events(options.event)]
    if options.json:
        import json

        sys.stdout.write(json.dumps({"plans": [plan_json(found) for found in plans]}, indent=2) + "\n")
        return 0
    for index, found in enumerate(plans):
        lines = ["", *plan_lines(found)] if index else plan_lines(found)
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    if not plans:
        sys.stdout.write("The document contains no events.\n")
    return 0


def _events(path: str) -> tuple[ScheduledEvent, ...]:
    from forewarn.wire.document_reader import read_events

    name = "standard input" if path == "-" else path
    text = read_bounded(sys.stdin.buffer, name) if path == "-" else read_whole(Path(path))
    try:
        return read_events(text)
    except UnreadableDocument as error:
        raise UnreadableFile(path=name, problem=error) from error


def _time(text: str) -> datetime:
    try:
        return parse_time(text.upper())
    except ValueError:
        raise BadOption(name="--now", value=text, problem="write a time like 2026-11-20T02:00:00Z.") from None


def _listed_as(name: str, event: ScheduledEvent) -> str:
    """Return this VM's entry in the event. Without a VM name, return the first entry."""
    if not name:
        return next(iter(event.resources), "")
    from forewarn.agent.identity import GIVEN, MachineIdentity

    return MachineIdentity(name, GIVEN).listed_as(event.resources) or ""
