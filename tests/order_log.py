"""An operator's program for the command fabric: it logs when the work of each order begins and ends."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """#!/bin/sh
# The work of an order is done once, whoever gives it, and however often. Its clock is always right.
unset LD_PRELOAD
test "$1" != inspect || {{ echo '{{"running": true, "boots": 1}}'; exit; }}
cd "{folder}" && read -r order || exit 75
operation=${{order#*'"operation": "'}}
operation=${{operation%%'"'*}}
test ! -e "done-$operation" || exit 0
echo "$(date +%s.%N) $order" >>log
sleep {seconds}
echo "$(date +%s.%N) $operation" >>log
: >"done-$operation"
"""


class LoggedOrder(NamedTuple):
    """The beginning of the work of an order, or its end."""

    at: datetime
    operation: str
    order: dict[str, Any] | None
    """What the fabric got; None at the end."""
    sequence: float = math.inf
    """The history row with which things of the same time are put in order."""


class OrderLog:
    """The program, and what it has logged. All nodes of a service use the same folder, as they have the same hosts."""

    def __init__(self, folder: Path, *, seconds: float) -> None:
        """`seconds`: how long the work of each order takes."""
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        self._program = folder / "host-work"
        self._program.write_text(PROGRAM.format(folder=folder, seconds=seconds))
        self._program.chmod(0o755)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a service that uses it."""
        return ("--fabric", "command", "--fabric-command", str(self._program))

    def read(self) -> list[LoggedOrder]:
        """Return what was logged, in order."""
        found = []
        for line in self._log.read_text().splitlines() if self._log.exists() else ():
            time, _, rest = line.partition(" ")
            order = json.loads(rest) if rest.startswith("{") else None
            at = datetime.fromtimestamp(float(time), UTC)
            found.append(LoggedOrder(at, order["operation"] if order is not None else rest, order))
        return found
