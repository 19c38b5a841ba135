"""forewarn agent plan: what would be done about an event, and when."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.cli.options import Parser, add_places, choose_places, config_path, load_config
from forewarn.agent.clock import EndpointClock
from forewarn.agent.files import read_bounded, read_whole
from forewarn.core.durations import parse_time
from forewarn.errors import BadCommandLine, BadOption, UnreadableDocument, UnreadableFile

if TYPE_CHECKING:
    from argparse import Namespace
    from datetime import datetime

    from forewarn.wire.document_reader import ToldEvent


def parser() -> Parser:
    found = Parser(
        "plan",
        "Say what would be done about an event, and when.\n\n"
        "FILE holds one event or a whole document, of any version, as the endpoint gives it; - is the standard input.\n"
        "Nothing is run and nobody is asked. Without a name for this machine, every event is taken for its own.",
        "forewarn agent plan --config agent.toml --event event.json",
        "forewarn vm document web-0 | forewarn agent plan --config agent.toml --event - --vm-name web-0",
    )
    add_places(found)
    found.add_argument("--event", metavar="FILE", help="the event, or the document that it is in")
    found.add_argument("--now", metavar="MOMENT", help="as if it were that moment, like 2026-11-20T02:00:00Z")
    found.add_argument("--json", action="store_true", help="print it as JSON")
    return found


def run(options: Namespace) -> int:
    # Only here: an agent at work decides the same without words for it.
    from forewarn.agent.logs import printable
    from forewarn.agent.plan import plan, plan_json, plan_lines

    if not options.event:
        raise BadCommandLine(problem="Say which event: --event FILE.", program="forewarn agent plan")
    config = load_config(config_path(options))
    name = choose_places(options, config).vm_name.value
    now = EndpointClock().now() if options.now is None else _moment(options.now)
    plans = [plan(config, event, now, _listed_as(name, event)) for event in _events(options.event)]
    if options.json:
        import json

        sys.stdout.write(json.dumps({"plans": [plan_json(found) for found in plans]}, indent=2) + "\n")
        return 0
    for index, found in enumerate(plans):
        lines = ["", *plan_lines(found)] if index else plan_lines(found)
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    if not plans:
        sys.stdout.write("The document has no event.\n")
    return 0


def _events(path: str) -> tuple[ToldEvent, ...]:
    from forewarn.wire.document_reader import read_events

    name = "the standard input" if path == "-" else path
    text = read_bounded(sys.stdin.buffer, name) if path == "-" else read_whole(Path(path))
    try:
        return read_events(text)
    except UnreadableDocument as error:
        raise UnreadableFile(path=name, problem=error) from error


def _moment(text: str) -> datetime:
    try:
        return parse_time(text.upper())
    except ValueError:
        raise BadOption(name="--now", value=text, problem="write it like 2026-11-20T02:00:00Z.") from None


def _listed_as(name: str, event: ToldEvent) -> str:
    """The machine's entry in the event; nobody has said who it is: whichever the event names first."""
    if not name:
        return next(iter(event.resources), "")
    from forewarn.agent.identity import GIVEN, Me

    return Me(name, GIVEN).listed_as(event.resources) or ""
