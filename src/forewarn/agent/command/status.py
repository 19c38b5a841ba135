"""forewarn agent status: ask the agent of this machine what is coming and what it has done."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from forewarn.agent.command.parser import Parser, add_places, choose_places, config_path, load_config
from forewarn.agent.pages.sockets import connect
from forewarn.errors import AgentHung, ForewarnError, NoAgentRuns, NotPermitted, UnreadableFile

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

_LARGEST = 16_000_000


def parser() -> Parser:
    found = Parser(
        "status",
        "Ask the agent of this machine what is coming and what it has done.\n\n"
        "It is found by its state folder. When none is running: what the last one has left, and exit code 6.",
        "forewarn agent status",
        "forewarn agent status --state /var/lib/forewarn-agent --json",
    )
    add_places(found)
    found.add_argument("--json", action="store_true", help="print all of it as JSON")
    return found


def run(options: Namespace) -> int:
    folder = choose_places(options, load_config(config_path(options))).folder
    snapshot = _ask(folder)
    running = snapshot is not None
    if snapshot is None:
        snapshot = _left_behind(folder)
    if options.json:
        sys.stdout.write(json.dumps({"running": running, **snapshot}, indent=2) + "\n")
    else:
        from forewarn.agent.pages.metrics import read_moment
        from forewarn.agent.pages.status import status_lines

        now = read_moment(snapshot["now"]) if snapshot.get("now") else None
        sys.stdout.writelines(f"{line}\n" for line in status_lines(snapshot, now))
        sys.stdout.flush()
    if not running:
        raise NoAgentRuns(folder=folder)
    return 0


def _left_behind(folder: Path) -> dict[str, Any]:
    """What the last agent has written down: what the next one will look after."""
    # Only here: who asks an agent that runs needs nothing of it.
    from forewarn.agent.clock import EndpointClock
    from forewarn.agent.standing import describe_work
    from forewarn.agent.work.deciding import Seen
    from forewarn.agent.work.state_file import FILE, read_works

    path = folder / FILE
    try:
        works = read_works(path)
    except (FileNotFoundError, NotADirectoryError):
        works = []
    except OSError as error:
        raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--state") from error
    except (ValueError, KeyError, TypeError, AttributeError, ForewarnError) as error:
        raise UnreadableFile(path=path, problem=f"it is no state of an agent ({error}).") from error
    seen = Seen(EndpointClock().now(), 0.0)
    return {"events": [describe_work(work, seen) for work in works]}


def _ask(folder: Path) -> dict[str, Any] | None:
    """What the agent says; None: there is none."""
    try:
        line = connect(folder)
    except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotPermitted(action="ask the agent on", path=folder, problem=error.strerror, flag="--state") from error
    except OSError as error:
        raise AgentHung(folder=folder, problem=error.strerror or "no answer") from error
    answer = bytearray()
    try:
        with line:
            line.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            while (came := line.recv(65536)) and len(answer) < _LARGEST:
                answer += came
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise AgentHung(folder=folder, problem=body.decode("utf-8", "replace").strip() or "its answer is cut off")
        found: dict[str, Any] = json.loads(body)
    except (OSError, ValueError) as error:
        raise AgentHung(folder=folder, problem=getattr(error, "strerror", "") or str(error)) from error
    return found
